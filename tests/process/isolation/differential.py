#!/usr/bin/python3
"""Random statements of two or three sessions, at READ COMMITTED and REPEATABLE READ, in the same
order of steps on heap tables and on mixedcc tables: the same rows, tags, SQLSTATEs, notices and
final rows, and the same sessions wait after each step.

differential.py SEED...: these scripts alone, with what both sides say. MIXEDCC_SEED is the first of
the seeds, MIXEDCC_SECONDS how long they may take, MIXEDCC_WORKERS how many run at a time."""

import collections
import multiprocessing
import os
import re
import select
import sys
import time
import traceback

import psycopg2
import psycopg2.extras

from lib import protocols
from lib.common import METHOD, OURS, accepts, check, connect, drop_database, fail, is_lost, main, make_database, ok, query, reload, seconds, value
from lib.interleavings import FUNCTION_NAMES, FUNCTIONS, PREPARED, TABLES, VIEWS, WITHIN, Script, needed

DATABASE = "mixedcc_differential"
USER = "differential_user"
HEAP = "heap"
# Kinds of mixedcc tables: protocol and number of partitions. Each has a schema.
KINDS = [(p, n) for p in (*protocols.without("locks_partitions") * 3, *protocols.having("locks_partitions")) for n in (1, 4)] if OURS else [(HEAP, 1)]
# The last one of a cycle to wait is the one that looks for it, if the others have looked before.
DEADLOCK_TIMEOUT = 0.005
SETTLED = 0.012
# A difference counts if no run on one side is as one on the other. Three sessions that one COMMIT
# wakes go on in any order.
RUNS = 4
# How long a script that differs may take to become smaller.
SMALLER = 15
# Longer than any statement_timeout.
ENDLESS = 20
OPTIONS = ("-c statement_timeout=10s -c enable_seqscan=off -c enable_bitmapscan=off -c enable_material=off -c client_min_messages=notice "
           f"-c deadlock_timeout={int(DEADLOCK_TIMEOUT * 1000)}ms -c jit=off -c max_parallel_workers_per_gather=0 -c enable_memoize=off")
# What is compared of plans.
NODES = re.compile(r"(Nested Loop|Hash \w*\s?Join|Merge \w*\s?Join|(?<= on )\w+(?: \w+)?)")
OURSELVES = [f"SET {s} = off" for s in ("enable_seqscan", "enable_bitmapscan", "enable_material", "enable_memoize")]
# An update of an indexed column of a child.
CHILD_MOVES = re.compile(r"UPDATE f[rcnd] SET pid")
# What locks a row FOR UPDATE before it updates it, perhaps.
STRONGER = re.compile(r"FOR UPDATE|\btl\b|patient|loop_over|walk|EXECUTE sf")
# Statements that do not wait, or that call a function which does not.
HASTY = re.compile("NOWAIT|SKIP LOCKED|patient|EXECUTE s[nk]")
BLOCKED = "waits"
DEADLOCK = ("error", "40P01", "")
MISSED = "is waiting yet"


def kind_of(script):
    return KINDS[int(script.world * len(KINDS))]


def world(kind):
    return HEAP if kind[0] == HEAP else f"{kind[0]}_{kind[1]}"


class Session:
    """One connection, to which a statement is sent without waiting for its end."""

    def __init__(self, database, schema):
        self.connection = psycopg2.connect(dbname=database, async_=True, application_name="process test", options=f"-c search_path={schema} {OPTIONS}")
        psycopg2.extras.wait_select(self.connection)
        self.busy, self.cursor, self.said = False, None, None
        self.blockers, self.since = (), 0.0
        self.pid = self.connection.info.backend_pid

    def fileno(self):
        return self.connection.fileno()

    def send(self, sql):
        del self.connection.notices[:]
        self.cursor = self.connection.cursor()
        self.busy, self.said, self.blockers = True, None, ()
        self.cursor.execute(sql)
        self.poll()

    def poll(self):
        """Takes what has come; the statement may end by it."""
        try:
            if self.connection.poll() != psycopg2.extensions.POLL_OK:
                return
        except psycopg2.Error as error:
            if is_lost(self.connection, error):
                raise
            self.busy, self.said = False, ("error", error.pgcode, error.diag.constraint_name or "")
        else:
            self.busy = False
            if self.cursor:
                rows = sorted(self.cursor.fetchall(), key=str) if self.cursor.description else []
                self.said = (self.cursor.statusmessage, *rows)
        if self.cursor and self.connection.notices:
            self.said = (*self.said, *(n.strip() for n in self.connection.notices))

    def wait(self):
        while self.busy:
            select.select([self], [], [], 0.1)
            self.poll()

    def run(self, sql):
        self.send(sql)
        self.wait()
        if self.said[0] == "error":
            raise RuntimeError(f"{self.said}: {sql}")

    def in_transaction(self):
        return self.connection.info.transaction_status != psycopg2.extensions.TRANSACTION_STATUS_IDLE


class Side:
    """The tables of one kind, and its sessions."""

    def __init__(self, boss, database, kind):
        self.boss, self.kind, self.schema = boss, kind, f'"{world(kind)}"'
        self.gid = f"{database}_{world(kind)}_"
        access = f"SET default_table_access_method = {HEAP if kind[0] == HEAP else METHOD}; SET search_path = {self.schema}"
        if kind[0] != HEAP:
            access += f"; SET mixedcc.default_protocol = '{kind[0]}'; SET mixedcc.default_partitions = {kind[1]}"
        query(boss, f"CREATE SCHEMA {self.schema}; GRANT USAGE ON SCHEMA {self.schema} TO {USER}; {access}")
        for table, (definition, fill, _) in TABLES.items():
            query(boss, definition)
            query(boss, fill) if fill else None
        query(boss, FUNCTIONS)
        query(boss, "ANALYZE")
        query(boss, "RESET ALL")
        self.fillings = 0
        self.sessions = [Session(database, self.schema) for _ in range(3)]
        for session in self.sessions:
            for prepared, sql in PREPARED.items():
                session.run(f"PREPARE {prepared} {sql}")

    def fill(self, tables):
        """Puts the tables' first rows back."""
        self.fillings += 1
        stored = [n for t in tables if t not in VIEWS for n in (t, *WITHIN.get(t, ()))]
        statements = [f"DELETE FROM {name}" for name in reversed(stored)] + [TABLES[t][1] for t in tables if TABLES[t][1]]
        query(self.boss, f"SET search_path = {self.schema}; SET session_replication_role = replica; " + "; ".join(statements))
        query(self.boss, "SET session_replication_role = origin")
        if self.fillings % 100 == 0:
            for name in (n for t in TABLES if t not in VIEWS for n in (t, *WITHIN.get(t, ()))):
                query(self.boss, f"VACUUM {name}")

    def waiting(self, sessions):
        rows = query(self.boss, "SELECT pid, pg_blocking_pids(pid) FROM unnest(%s) pid", ([s.pid for s in sessions],))
        return dict(rows)

    def settle(self):
        """Waits until each session has ended its statement or waits for another one."""
        pids, end = {s.pid: s for s in self.sessions}, time.monotonic() + ENDLESS
        while True:
            if time.monotonic() > end:
                raise RuntimeError(f"{world(self.kind)}: a statement does not end, and waits for none")
            busy = [s for s in self.sessions if s.busy]
            if not busy:
                break
            ready, _, _ = select.select(busy, [], [], 0.001)
            for session in ready:
                session.poll()
            if ready:
                continue
            now, waiting = time.monotonic(), self.waiting(busy)
            for session in busy:
                blockers = tuple(sorted(waiting[session.pid]))
                if blockers != session.blockers:
                    session.blockers, session.since = blockers, now
            edges = {s.pid: [b for b in s.blockers if b in pids and pids[b].busy] for s in busy}
            if all(s.blockers and now - s.since > SETTLED for s in busy) and not has_cycle(edges):
                break

    def run(self, script, steps):
        """What each step says: (session, statement, what it says or that it waits), and behind each
        step what the statements of others say that end by it."""
        sessions, events = self.sessions[:script.sessions], []
        for session in sessions:
            session.run("; ".join(["SET search_path = " + self.schema] + [f"SET {s}" for s in script.settings]))
        known = {}

        def step(number, sql):
            session = sessions[number - 1]
            before = [s.busy for s in sessions]
            if session.busy:
                events.append((f"s{number}", sql, MISSED))
                return
            for other in sessions:
                other.blockers = ()  # those that go on to another wait look for a deadlock once more
            session.send(sql.replace("{gid}", self.gid))
            self.settle()
            known[number] = sql
            events.append((f"s{number}", sql, BLOCKED if session.busy else session.said))
            for other, was in enumerate(before, 1):
                if was and not sessions[other - 1].busy and other != number:
                    events.append((f"s{other}", "... " + known[other], sessions[other - 1].said))

        for number, sql in steps:
            step(number, sql)
        while True:
            free = [n for n, s in enumerate(sessions, 1) if not s.busy and s.in_transaction()]
            if not free:
                break
            step(free[0], "COMMIT")
        if script.prepares:
            for (gid,) in query(self.boss, "SELECT gid FROM pg_prepared_xacts WHERE gid LIKE %s", (self.gid + "%",)):
                query(self.boss, f"ROLLBACK PREPARED '{gid}'")
            self.settle()
        if any(s.busy for s in sessions):
            raise RuntimeError(f"{world(self.kind)}: sessions wait without end: {events}")
        # Prepared statements stay.
        for session in sessions:
            session.run("CLOSE ALL; RESET ROLE; RESET ALL")
        return events

    def rows(self, tables):
        stored = [n for t in tables if t not in VIEWS for n in (t, *WITHIN.get(t, ()))]
        if not stored:
            return ()
        found = query(self.boss, f"SET search_path = {self.schema}; " + " UNION ALL ".join(f"SELECT '{n}', {n}::text FROM {n}" for n in stored))
        return tuple(sorted(found))

    def plans(self, script, steps):
        """The order of the joins of each statement: it decides which rows are locked first, and
        whether a CTE is read at all. Costs differ, and so may plans (docs/limits.md, "Plans")."""
        found = []
        query(self.boss, "; ".join(["SET search_path = " + self.schema, *OURSELVES] + [f"SET {s}" for s in script.settings]))
        for _, sql in steps:
            if sql.split()[0] in ("SELECT", "UPDATE", "DELETE", "INSERT", "MERGE", "WITH"):
                plan = "\n".join(line for line, in query(self.boss, f"EXPLAIN (COSTS OFF) {sql}"))
                found.append(NODES.findall(plan))
        query(self.boss, "RESET ALL")
        return found

    def outcome(self, script, steps, tables):
        self.fill(tables)
        events = self.run(script, steps)
        return tuple(events), self.rows(tables)


def has_cycle(edges):
    done = set()

    def visit(pid, path):
        if pid in path:
            return True
        if pid in done:
            return False
        done.add(pid)
        return any(visit(b, path | {pid}) for b in edges.get(pid, ()))

    return any(visit(pid, frozenset()) for pid in edges)


def tables_of(steps, script):
    words = set(re.findall(r"\w+", " ".join(sql for _, sql in steps)))
    if words & set(PREPARED) or words & set(FUNCTION_NAMES):
        words |= {"t", "q", "lg"}
    return needed(words)


def first_difference(heap, ours):
    """The events of both that differ first, and all of ours until then."""
    for at, (h, o) in enumerate(zip(heap[0], ours[0])):
        if h != o:
            return h, o, ours[0][:at + 1]
    return ("", "", heap[1]), ("", "", ours[1]), ours[0]


def documented(protocol, heap, ours):
    """A rule of docs/limits.md ("Different from heap") by which the two differ first, or None.

    Unique checks: INSERT of a key whose row is being updated fails at once, or does nothing, where
    heap waits. So does an UPDATE to such a key.

    Locks of rows that are gone: of several sessions that wait for a row which is then deleted, the
    first one to go on has the lock of what was the row until its end. On heap none has.

    Keys of rows that move: an update of an indexed column and FOR KEY SHARE wait for each other. So
    a write of a parent waits for an update of its child's column. (The statements themselves use
    the two in different scripts.)

    KEY SHARE behind a stronger lock: heap takes an update of a transaction that had locked the row
    FOR UPDATE for one of the key. So it gives the new row, or fails at REPEATABLE READ.

    Locks of partitions: a writer has the partition for itself until its end, so more sessions wait,
    fail with NOWAIT, and skip rows.
    """
    (session, sql, h), (_, _, o), before = first_difference(heap, ours)
    if h in (BLOCKED, DEADLOCK) and isinstance(o, tuple) and (o[:2] == ("error", "23505") or "DO NOTHING" in sql):
        return "unique checks"
    if o == BLOCKED and any(CHILD_MOVES.search(s) for _, s, _ in before):
        return "keys of rows that move"
    shares = "FOR KEY SHARE" in sql and any(STRONGER.search(s) for _, s, _ in before)
    if shares and isinstance(o, tuple) and (h[:2] == ("error", "40001") or h[0] == o[0]):
        return "KEY SHARE behind a stronger lock"
    if sql.startswith("... ") and is_gone(ours, session, sql, h[:2] == ("error", "40001") or str(h[0]).endswith(" 0")):
        return "locks of rows that are gone"
    if protocols.has(protocol, "locks_partitions") and (HASTY.search(sql) or any(said == BLOCKED for _, _, said in before)):
        return "locks of partitions"
    return None


def is_gone(ours, session, sql, fails):
    """Does this statement go on later, behind the end of another one that has waited, too, and that
    has found no row? Or behind any one, if it finds none or fails because the row was replaced."""
    for who, statement, said in ours[0]:
        if (who, statement) == (session, sql):
            return False
        if statement.startswith("... ") and (fails or said[0].endswith(" 0")):
            return True
    return False


class Pair:
    """Both sides, and what is compared."""

    def __init__(self, database):
        self.database, self.boss, self.sides = database, connect(database), {}
        self.counts = collections.Counter()

    def side(self, kind):
        if kind not in self.sides:
            self.sides[kind] = Side(self.boss, self.database, kind)
        return self.sides[kind]

    def both(self, script):
        return self.side((HEAP, 1)), self.side(kind_of(script))

    def compare(self, script, steps):
        """None, or the runs of both sides which differ."""
        tables = tables_of(steps, script)
        heap_side, our_side = self.both(script)
        heap, ours = [heap_side.outcome(script, steps, tables)], [our_side.outcome(script, steps, tables)]
        if heap[0] == ours[0]:
            return None
        rule = documented(our_side.kind[0], heap[0], ours[0]) if OURS else None
        if rule:
            self.counts[rule] += 1
            return None
        for _ in range(RUNS - 1):
            heap.append(heap_side.outcome(script, steps, tables))
            ours.append(our_side.outcome(script, steps, tables))
            if set(heap) & set(ours):
                self.counts["by chance"] += 1
                return None
        if heap_side.plans(script, steps) != our_side.plans(script, steps):
            self.counts["plans"] += 1
            return None
        return heap[-1], ours[-1]

    def smallest(self, script):
        """The steps and settings of which each is needed for a difference."""
        steps, end = list(script.steps), time.monotonic() + SMALLER
        at = len(steps) - 1
        while at >= 0 and time.monotonic() < end:
            for width in (4, 2, 1):
                less = steps[:max(0, at - width + 1)] + steps[at + 1:]
                if less and self.compare(script, less):
                    steps = less
                    at = min(at, len(steps))
                    break
            at -= 1
        for setting in list(script.settings):
            if time.monotonic() > end:
                break
            before = script.settings
            script.settings = [s for s in before if s != setting]
            if not self.compare(script, steps):
                script.settings = before
        return steps


def shown(script, steps, found):
    """As an isolation spec, and behind it what both sides say."""
    tables = tables_of(steps, script)
    lines = [f"seed {script.seed}, {world(kind_of(script))}, {script.way}", "setup", "{"]
    for table in tables:
        lines += [f"    {line.strip()}" for part in TABLES[table][:2] if part for line in (part + ";").splitlines()]
    lines += ["}"]
    for n in range(1, script.sessions + 1):
        own = [(i, sql) for i, (m, sql) in enumerate(steps) if m == n]
        if own:
            lines += [f"session s{n}", f"setup {{ {' '.join(f'SET {s};' for s in script.settings)} }}"] + [f"step s{n}_{i} {{ {sql}; }}" for i, sql in own]
    lines += ["permutation " + " ".join(f"s{n}_{i}" for i, (n, _) in enumerate(steps)), ""]
    for name, (events, rows) in zip(("heap", "mixedcc"), found):
        lines += [f"{name}:"] + [f"  {s}: {sql}\n      {said}" for s, sql, said in events] + [f"  rows {rows}"]
    return "\n".join(lines)


def one(pair, seed):
    """What differs, as text, or None."""
    script = Script(seed)
    found = pair.compare(script, script.steps)
    if not found:
        return None
    steps = pair.smallest(script)
    for _ in range(3):
        found = pair.compare(script, steps) or found
    return shown(script, steps, found)


def worker(number, workers, first, end, results):
    """Compares the scripts of its share of the seeds until the time is over. One that fails
    otherwise, as by the server's end, counts as one that differs."""
    database = f"{DATABASE}{number}"
    seed, done = first + number, 0
    try:
        pair = anew(database)
        while time.monotonic() < end:
            try:
                text = one(pair, seed)
            except Exception:
                results.put(("difference", seed, traceback.format_exc()))
                if not accepts():
                    break
                pair, text = anew(database), None
            if text:
                results.put(("difference", seed, text))
            seed += workers
            done += 1
        pair.counts["scripts"] = done
        results.put(("counts", 0, dict(pair.counts)))
    except Exception:
        results.put(("difference", seed, traceback.format_exc()))
        results.put(("counts", 0, {"scripts": done}))


def anew(database):
    drop_database(database)
    make_database(database).close()
    return Pair(database)


def prepare(workers=1):
    boss = connect("postgres")
    for number in range(workers):
        drop_database(f"{DATABASE}{number}")
    query(boss, f"DROP ROLE IF EXISTS {USER}; CREATE ROLE {USER}")
    # It would change plans, and hold snapshots.
    query(boss, "ALTER SYSTEM SET autovacuum = off")
    query(boss, "SELECT pg_reload_conf()")
    boss.close()


def finish(workers):
    boss = connect("postgres")
    query(boss, "ALTER SYSTEM RESET autovacuum")
    query(boss, "SELECT pg_reload_conf()")
    try:
        for number in range(workers):
            drop_database(f"{DATABASE}{number}")
        query(boss, f"DROP ROLE IF EXISTS {USER}")
    except psycopg2.Error as error:
        fail("databases are dropped", error)  # a session does not end


def differential():
    first, workers = int(os.environ.get("MIXEDCC_SEED", "1")), int(os.environ.get("MIXEDCC_WORKERS", "2"))
    end, results = time.monotonic() + seconds(45, 600), multiprocessing.Queue()
    prepare(workers)
    processes = [multiprocessing.Process(target=worker, args=(n, workers, first, end, results)) for n in range(workers)]
    for process in processes:
        process.start()
    counts, differences = collections.Counter(), 0
    try:
        waiting = len(processes)
        while waiting:
            kind, seed, what = results.get()
            if kind == "counts":
                waiting -= 1
                counts.update(what)
            else:
                differences += 1
                print(f"-- seed {seed} differs:\n{what}\n", flush=True)
        for process in processes:
            process.join()
        print(f"  {dict(counts)}", flush=True)
        check("the same on heap and on mixedcc", not differences, f"{differences} scripts differ")
        check("the server is up", accepts())
        check("scripts were run", counts["scripts"] >= 20, counts)
    finally:
        finish(workers)


def these():
    prepare()
    pair = anew(DATABASE + "0")
    try:
        for seed in map(int, sys.argv[1:]):
            text = one(pair, seed)
            check(f"seed {seed}", not text, text)
    finally:
        pair = None
        finish(1)


if __name__ == "__main__":
    main(these if sys.argv[1:] else differential)
