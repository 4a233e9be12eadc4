#!/usr/bin/python3
"""The crash matrix of permanent tables: the server is killed at every stop event of the durable
code, by SIGKILL of a backend, of the postmaster, by an immediate shutdown, and twice in a row. An
oracle judges the tables afterwards:

* every commit that was answered is there, and whole;
* nothing is there of a transaction that was rolled back, and all or nothing of one whose answer
  was lost;
* each account has the balance that the committed transactions give it;
* every index agrees with a sequential scan.

`crashes SEED EVENT...` runs the named events only."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time

import psycopg2

from lib import protocols
from lib.common import (OURS, RETRY, check, connect, drop_database, equal, fail, make_database, must_come, query,
                        seconds, server, value, wait_until)

DATABASE = "process_crashes"
ACCOUNTS = 60
START = 1000
WORKERS = 4
# Their commits need not survive, but they are whole.
ASYNCHRONOUS = 3
LARGE = 30_000
HUGE = 1_300_000

# Where each event is met: by a backend in a transaction, by the companion, by the startup process,
# by the first use of a table after a crash, at a clean shutdown.
BACKEND = ["gate-entered", "commit-built", "xcommit-inserted", "xcommit-marked", "commit-inserted", "commit-marked",
           "commit-settled", "commit-flushed", "commit-replicated", "commit-done", "reserve-inserted",
           "reserve-raised"]
COMPANION = ["round-begins", "round-table", "bit-cleared", "batch-full", "batch-inserted", "homes-moved", "round-meta",
             "round-logged", "round-released"]
CLOSING = ["closing-shut", "closing-waited", "closing-round"]
STARTUP = ["redo-record", "redo-page"]
FIRST_USE = ["absorb-page", "absorb-meta", "absorb-truncated", "load-block", "load-registered"]
DDL = ["bulk-page", "drop-marked"]

SERVER = {}


# --- the server ------------------------------------------------------------------

def configure(**settings):
    """Settings of the test, in place of earlier ones. The server need not run."""
    lines = [f"{name.replace('__', '.')} = '{text}'\n" for name, text in settings.items()]
    with open(SERVER["auto"], "w", encoding="ascii") as file:
        file.writelines(SERVER["base"] + lines)


def reload():
    os.kill(postmaster(), signal.SIGHUP)


def postmaster():
    with open(SERVER["data"] + "/postmaster.pid", encoding="ascii") as file:
        return int(file.readline())


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid):
    out = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], stdout=subprocess.PIPE, text=True, check=False).stdout
    return [int(word) for word in out.split()]


def await_end(pid, limit=60.0):
    """Waits until the postmaster has ended by itself, as it does after a crash of a child."""
    must_come(lambda: not is_running(pid), limit)


def kill_group():
    """SIGKILL to the postmaster and all its children at once."""
    pid = postmaster()
    os.kill(pid, signal.SIGSTOP)
    for one in [*children(pid), pid]:
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            pass
    await_end(pid)
    for name in (SERVER["data"] + "/postmaster.pid", SERVER["socket"] + ".lock"):
        if os.path.exists(name):
            os.remove(name)


def immediate():
    pid = postmaster()
    os.kill(pid, signal.SIGQUIT)
    await_end(pid)


def start():
    server("start")


def fails_to_start():
    """Is the startup process killed?"""
    try:
        start()
    except subprocess.CalledProcessError:
        return True
    return False


# --- tables ----------------------------------------------------------------------

def make_tables(connection):
    query(connection, "SET mixedcc.default_persistence = permanent" if OURS else "SELECT 1")
    method = "mixedcc" if OURS else "heap"
    for number, protocol in enumerate(protocols.ALL):
        options = f"WITH (mixedcc.partitions = '3', mixedcc.protocol = '{protocol}')" if OURS else ""
        query(connection, f"CREATE TABLE acct{number} (id int PRIMARY KEY, branch int, balance bigint) USING {method} {options}")
        query(connection, f"INSERT INTO acct{number} SELECT i, i % 5, {START} FROM generate_series(1, {ACCOUNTS}) i")
    # One without other indexes than its key, and one with some.
    query(connection, "CREATE INDEX ON acct1 (branch)")
    query(connection, f"CREATE TABLE marks (worker int, seq int, a int, b int, amount int, flags text, PRIMARY KEY (worker, seq)) USING {method}")
    query(connection, f"CREATE TABLE queue (worker int, seq int, v text, PRIMARY KEY (worker, seq)) USING {method}")
    query(connection, "CREATE INDEX ON queue (seq)")
    query(connection, f"CREATE TABLE large (worker int PRIMARY KEY, seq int, v text) USING {method}")
    query(connection, f"INSERT INTO large SELECT w, 0, '' FROM generate_series(0, {WORKERS - 1}) w")
    query(connection, "CREATE TABLE heap_marks (worker int, seq int) USING heap")
    kinds = query(connection, "SELECT DISTINCT relpersistence FROM pg_class WHERE relname IN ('acct0', 'acct1', 'marks', 'queue', 'large')")
    equal("crashes: the tables are permanent", kinds, [("p",)])


def accounts():
    return [f"acct{number}" for number in range(len(protocols.ALL))]


# --- load ------------------------------------------------------------------------

def text_of(worker, seq, length):
    return (f"{worker}.{seq} " * (length // 4 + 1))[:length]


class Moved(Exception):
    """READ COMMITTED has met an account that another transaction moves."""


class Worker:
    """One session that runs transactions until the server is gone."""

    def __init__(self, number, first, seed, kill_at):
        self.number = number
        self.seq = first
        self.dice = random.Random(f"{seed} {number} {first}")
        self.kill_at = kill_at
        self.answered, self.rolled_back, self.doubtful = [], [], []
        self.unexpected = []

    def run(self):
        try:
            asynchronous = "off" if self.number == ASYNCHRONOUS else "on"
            connection = connect(DATABASE, options=f"-c synchronous_commit={asynchronous} -c deadlock_timeout=50ms "
                                                   "-c lock_timeout=5s")
            cursor = connection.cursor()
            if self.kill_at:
                # After some transactions, so that others are under way.
                for _ in range(self.dice.randrange(3, 12)):
                    self.transaction(cursor)
                cursor.execute(f"SET mixedcc.kill_at = '{self.kill_at}'")
            while True:
                self.transaction(cursor)
        except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
            if error.pgcode not in (None, "57P01", "57P02", "57P03"):
                self.unexpected.append(repr(error))

    def transaction(self, cursor):
        dice, seq = self.dice, self.seq
        self.seq += 1
        committing = False
        try:
            level = dice.choice(["SERIALIZABLE", "SERIALIZABLE", "REPEATABLE READ", "READ COMMITTED"])
            cursor.execute("BEGIN ISOLATION LEVEL " + level)
            self.body(cursor, seq)
            if dice.random() < 0.1:
                self.rolled_back.append(seq)
                cursor.execute("ROLLBACK")
                return
            committing = True
            cursor.execute("COMMIT")
            self.answered.append(seq)
        except Moved:
            self.rolled_back.append(seq)
            cursor.execute("ROLLBACK")
        except psycopg2.Error as error:
            lost = cursor.connection.closed or error.pgcode in (None, "57P01", "57P02")
            if lost:
                (self.doubtful if committing else self.rolled_back).append(seq)
                raise psycopg2.OperationalError from error
            self.rolled_back.append(seq)
            if error.pgcode not in (*RETRY, "55P03", "0A000", "57P03"):
                self.unexpected.append(f"{error.pgcode} {error}")
            cursor.execute("ROLLBACK")

    def body(self, cursor, seq):
        """A transfer, with some of: a deleted row, a large row, a row of heap, a savepoint that is
        rolled back, one that is released."""
        dice, me = self.dice, self.number
        a, b = dice.sample(range(1, ACCOUNTS + 1), 2)
        amount, source, target = dice.randrange(1, 50), dice.choice(accounts()), dice.choice(accounts())
        flags = ""
        if dice.random() < 0.15:
            # Allowed in a SERIALIZABLE transaction only where the setting says so.
            cursor.execute("SET LOCAL mixedcc.mixed_serializable = allow" if OURS else "SELECT 1")
            cursor.execute("INSERT INTO heap_marks VALUES (%s, %s)", (me, seq))
            flags += "h"
        one_row(cursor, f"UPDATE {source} SET balance = balance - %s WHERE id = %s", (amount, a))
        if dice.random() < 0.2:
            cursor.execute("SAVEPOINT s")
            cursor.execute(f"UPDATE {target} SET balance = balance + 1000000 WHERE id = %s", (b,))
            cursor.execute("INSERT INTO queue VALUES (%s, %s, 'never')", (me, -seq))
            cursor.execute("ROLLBACK TO s")
        if dice.random() < 0.2:
            cursor.execute("SAVEPOINT t")
        if dice.random() < 0.15:
            # The account is deleted and comes back.
            cursor.execute(f"DELETE FROM {target} WHERE id = %s RETURNING balance", (b,))
            rows = cursor.fetchall()
            if len(rows) != 1:
                raise Moved
            cursor.execute(f"INSERT INTO {target} VALUES (%s, %s, %s)", (b, dice.randrange(5), rows[0][0] + amount))
        else:
            one_row(cursor, f"UPDATE {target} SET balance = balance + %s, branch = %s WHERE id = %s",
                    (amount, dice.randrange(5), b))
        if dice.random() < 0.4:
            cursor.execute("INSERT INTO queue VALUES (%s, %s, %s)", (me, seq, text_of(me, seq, dice.randrange(1, 60))))
            flags += "q"
        if dice.random() < 0.3:
            cursor.execute("DELETE FROM queue WHERE worker = %s AND seq < %s", (me, seq - 20))
            flags += "d"
        if dice.random() < 0.1:
            length = HUGE if dice.random() < 0.1 else LARGE
            cursor.execute("UPDATE large SET seq = %s, v = %s WHERE worker = %s", (seq, text_of(me, seq, length), me))
            flags += "l"
        names = f"{source},{target},{flags}"
        cursor.execute("INSERT INTO marks VALUES (%s, %s, %s, %s, %s, %s)", (me, seq, a, b, amount, names))


def one_row(cursor, sql, parameters):
    cursor.execute(sql, parameters)
    if cursor.rowcount != 1:
        raise Moved


def work(number, first, seed, kill_at, results):
    worker = Worker(number, first, seed, kill_at)
    worker.run()
    results.put((number, worker.seq, worker.answered, worker.rolled_back, worker.doubtful, worker.unexpected))


def disturb(seed, results):
    """Checkpoints, VACUUM and switches of protocols, until the server is gone."""
    dice = random.Random(f"{seed} disturb")
    done = 0
    try:
        connection = connect(DATABASE, options="-c lock_timeout=2s")
        while True:
            time.sleep(dice.uniform(0.01, 0.1))
            table = dice.choice([*accounts(), "queue", "marks", "large"])
            what = dice.choice(["CHECKPOINT", "vacuum", "switch", "analyze"])
            try:
                if what == "CHECKPOINT":
                    query(connection, "CHECKPOINT")
                elif what == "switch" and OURS and table in accounts():
                    query(connection, f"SELECT mixedcc.set_protocol('{table}', '{dice.choice(protocols.ALL)}')")
                elif what == "vacuum":
                    query(connection, f"VACUUM {table}")
                elif what == "analyze":
                    query(connection, f"ANALYZE {table}")
            except psycopg2.errors.LockNotAvailable:
                pass
            done += 1
    except psycopg2.Error as error:
        problem = "" if error.pgcode in (None, "57P01", "57P02", "57P03") else repr(error)
    results.put(("disturb", done, problem))


# --- oracle ----------------------------------------------------------------------

class Oracle:
    """What the clients know."""

    def __init__(self):
        self.next = [1] * WORKERS
        # Per worker: answered commits, those that must not be there, those without an answer.
        self.answered = [set() for _ in range(WORKERS)]
        self.rolled_back = [set() for _ in range(WORKERS)]
        self.doubtful = [set() for _ in range(WORKERS)]

    def add(self, outcome):
        number, after, answered, rolled_back, doubtful, _ = outcome
        self.next[number] = after
        self.answered[number] |= set(answered)
        self.rolled_back[number] |= set(rolled_back)
        self.doubtful[number] |= set(doubtful)

    def judge(self, name, connection):
        """Returns whether all is as it must be."""
        problems = []
        marks = query(connection, "SELECT worker, seq, a, b, amount, flags FROM marks")
        found = [set() for _ in range(WORKERS)]
        for worker, seq, *_ in marks:
            found[worker].add(seq)
        for w in range(WORKERS):
            self.judge_worker(w, found[w], problems)
        self.judge_accounts(connection, marks, problems)
        self.judge_rest(connection, marks, problems)
        judge_indexes(connection, problems)
        return check(name, not problems, "\n".join(problems[:12]))

    def judge_worker(self, w, found, problems):
        lost = sorted(self.answered[w] - found)
        if w == ASYNCHRONOUS:
            # What is lost is a suffix, and stays lost.
            kept = [seq for seq in self.answered[w] & found if lost and seq > lost[0]]
            lost = kept
            self.rolled_back[w] |= self.answered[w] - found
            self.answered[w] &= found
        if lost:
            problems.append(f"worker {w}: commits are lost: {lost[:10]}")
        if found & self.rolled_back[w]:
            problems.append(f"worker {w}: rolled back, and found: {sorted(found & self.rolled_back[w])[:10]}")
        unknown = found - self.answered[w] - self.doubtful[w]
        if unknown - self.rolled_back[w]:
            problems.append(f"worker {w}: never committed, and found: {sorted(unknown)[:10]}")
        # From now on it is known.
        self.answered[w] |= self.doubtful[w] & found
        self.rolled_back[w] |= self.doubtful[w] - found
        self.doubtful[w] = set()

    @staticmethod
    def judge_accounts(connection, marks, problems):
        wanted = {(table, n): START for table in accounts() for n in range(1, ACCOUNTS + 1)}
        for _, _, a, b, amount, flags in marks:
            source, target, _ = flags.split(",")
            wanted[source, a] -= amount
            wanted[target, b] += amount
        got = {(table, n): balance for table in accounts()
               for n, balance in query(connection, f"SELECT id, balance FROM {table}")}
        wrong = {key: (got.get(key), wanted.get(key)) for key in got.keys() | wanted.keys() if got.get(key) != wanted.get(key)}
        if wrong:
            problems.append(f"balances (found, wanted): {dict(list(wrong.items())[:6])}, {len(wrong)} in all")
        if sum(v for v in got.values()) != START * ACCOUNTS * len(accounts()):
            problems.append("the sum of all balances has changed")

    @staticmethod
    def judge_rest(connection, marks, problems):
        heap = sorted((w, s) for w, s, *_, flags in marks if "h" in flags.split(",")[2])
        if sorted(query(connection, "SELECT worker, seq FROM heap_marks")) != heap:
            problems.append("the heap's part of transactions is not that of the others")
        rows, large = set(), {w: (0, "") for w in range(WORKERS)}
        for worker, seq, _, _, _, flags in sorted(marks):
            kinds = flags.split(",")[2]
            if "q" in kinds:
                rows.add((worker, seq))
            if "d" in kinds:
                rows = {r for r in rows if r[0] != worker or r[1] >= seq - 20}
            if "l" in kinds:
                large[worker] = (seq, None)
        queue = query(connection, "SELECT worker, seq, v FROM queue")
        if {(w, s) for w, s, _ in queue} != rows or len(queue) != len(rows):
            problems.append(f"rows of the queue: {sorted({(w, s) for w, s, _ in queue} ^ rows)[:10]}")
        if any(v != text_of(w, s, len(v)) or not v for w, s, v in queue):
            problems.append("a row of the queue has another text")
        for w, seq, v in query(connection, "SELECT worker, seq, v FROM large"):
            if seq != large[w][0] or v != text_of(w, seq, len(v)) or (seq and len(v) not in (LARGE, HUGE)):
                problems.append(f"large row of worker {w}: {seq}, {len(v)} bytes, and not {large[w][0]}")


def judge_indexes(connection, problems):
    scans = {"seq": "SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off"
                    + ("; SET mixedcc.enable_primary_scan = off; SET mixedcc.enable_bypass = off" if OURS else ""),
             "index": "SET enable_seqscan = off; SET enable_bitmapscan = off",
             "bitmap": "SET enable_seqscan = off; SET enable_indexscan = off"}
    asked = [(table, "id", "id > 0") for table in accounts()]
    asked += [("acct1", "id, branch", "branch >= 0"), ("queue", "worker, seq", "seq > -1000000000"),
              ("queue", "worker, seq", "worker >= 0"), ("marks", "worker, seq", "worker >= 0")]
    for table, columns, where in asked:
        got = {}
        for way, settings in scans.items():
            query(connection, settings)
            got[way] = sorted(query(connection, f"SELECT {columns} FROM {table} WHERE {where}"))
            query(connection, "RESET ALL")
        if got["index"] != got["seq"] or got["bitmap"] != got["seq"]:
            problems.append(f"an index of {table} ({where}) does not agree with its rows: "
                            f"{ {way: len(rows) for way, rows in got.items()} }")
    for table in [*accounts(), "marks", "queue", "large"]:
        try:
            if OURS:
                query(connection, f"SELECT mixedcc.check_primary_index('{table}')")
        except psycopg2.Error as error:
            problems.append(f"{table}: {error}")
    for index in ("acct1_branch_idx", "queue_seq_idx"):
        try:
            query(connection, f"SELECT bt_index_check('{index}', true)")
        except psycopg2.Error as error:
            problems.append(f"{index}: {error}")


# --- a case ----------------------------------------------------------------------

class Load:
    """Workers and a disturber, beside which the server is killed."""

    def __init__(self, oracle, seed, kill_at=None):
        self.oracle = oracle
        self.results = multiprocessing.Queue()
        self.processes = [
            multiprocessing.Process(target=work, daemon=True,
                                    args=(n, oracle.next[n], seed, kill_at if n == 0 else None, self.results))
            for n in range(WORKERS)]
        self.processes.append(multiprocessing.Process(target=disturb, args=(seed, self.results), daemon=True))
        for process in self.processes:
            process.start()
        SERVER["load"] = self

    def end(self, name):
        """The server is gone: what has each client seen?"""
        committed, problems = 0, []
        SERVER["load"] = None
        for _ in self.processes:
            outcome = self.results.get(timeout=120)
            if outcome[0] == "disturb":
                problems += [outcome[2]] if outcome[2] else []
                continue
            self.oracle.add(outcome)
            committed += len(outcome[2])
            problems += outcome[5]
        for process in self.processes:
            process.join(30)
        if problems:
            fail(f"{name}: no unexpected error", "\n".join(problems[:5]))
        return committed


def judge(oracle, name):
    connection = connect(DATABASE)
    good = oracle.judge(name, connection)
    connection.close()
    return good


def after_crash(oracle, name, dice):
    """Recovers, now and then with another crash in the middle or behind, and judges."""
    configure()
    for _ in range(dice.choice([0, 0, 1, 2])):
        start()
        kind = dice.choice(["at once", "used", "checkpoint", "clean"])
        if kind in ("used", "checkpoint"):
            connection = connect(DATABASE)
            for table in dice.sample([*accounts(), "marks", "queue", "large"], 2):
                query(connection, f"SELECT count(*) FROM {table}")
            if kind == "checkpoint":
                query(connection, "CHECKPOINT")
            connection.close()
        if kind == "clean":
            server("stop")
        else:
            kill_group()
    start()
    return judge(oracle, name)


def until_killed(limit):
    """Waits until the server has ended by the event."""
    pid = postmaster()
    return wait_until(lambda: not is_running(pid), limit)


def case_backend(oracle, event, dice, seed):
    load = Load(oracle, seed, kill_at=f"{event}:{dice.randrange(1, 6)}")
    met = until_killed(40)
    if not met:
        kill_group()
    load.end(event)
    check(f"{event}: the event is met", met)
    after_crash(oracle, f"{event}: all is found", dice)


def case_companion(oracle, event, dice, seed):
    load = Load(oracle, seed)
    time.sleep(dice.uniform(0.5, 1.5))
    configure(mixedcc__kill_at=f"{event}:{dice.randrange(1, 4)}")
    reload()
    met = until_killed(40)
    if not met:
        kill_group()
    load.end(event)
    check(f"{event}: the event is met", met)
    after_crash(oracle, f"{event}: all is found", dice)


def case_closing(oracle, event, dice, seed):
    load = Load(oracle, seed)
    time.sleep(dice.uniform(0.5, 1.0))
    configure(mixedcc__kill_at=event)
    reload()
    time.sleep(0.2)
    pid = postmaster()
    os.kill(pid, signal.SIGINT)
    await_end(pid)
    load.end(event)
    with open(SERVER["log"], "rb") as log:
        log.seek(SERVER.get("read", 0))
        text = log.read()
        SERVER["read"] = log.tell()
    check(f"{event}: the event is met", b"terminated by signal 9" in text)
    after_crash(oracle, f"{event}: all is found", dice)


def case_startup(oracle, event, dice, seed):
    """The startup process is killed once or twice; then the server recovers."""
    load = Load(oracle, seed)
    time.sleep(dice.uniform(0.5, 1.5))
    kill_group()
    load.end(event)
    met = 0
    for _ in range(dice.choice([1, 2, 3])):
        configure(mixedcc__kill_at=f"{event}:{dice.choice([1, 2, 10, 50])}")
        met += fails_to_start()
        if os.path.exists(SERVER["data"] + "/postmaster.pid"):
            kill_group()
    SERVER["met"] = SERVER.get("met", 0) + met
    after_crash(oracle, f"{event}: all is found", dice)


def case_first_use(oracle, event, dice, seed):
    """The backend that uses a table first after a crash is killed."""
    load = Load(oracle, seed)
    time.sleep(dice.uniform(0.5, 1.5))
    kill_group()
    load.end(event)
    configure()
    met = False
    for _ in range(dice.choice([1, 2])):
        start()
        for table in [*accounts(), "marks", "queue", "large"]:
            try:
                connection = connect(DATABASE, options=f"-c mixedcc.kill_at={event}")
                query(connection, f"SELECT count(*) FROM {table}")
                connection.close()
            except psycopg2.OperationalError:
                met = True
                break
        if met:
            must_come(lambda: not os.path.exists(SERVER["data"] + "/postmaster.pid"), 60)
        else:
            kill_group()
    check(f"{event}: the event is met", met)
    after_crash(oracle, f"{event}: all is found", dice)


def case_plain(oracle, how, dice, seed):
    load = Load(oracle, seed)
    time.sleep(dice.uniform(0.3, 2.0))
    if how == "backend":
        connection = connect("postgres")
        active = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND state = 'active' ORDER BY random() LIMIT 1"
        must_come(lambda: query(connection, active, (DATABASE,)))
        pids = query(connection, active, (DATABASE,)) or query(connection, "SELECT pg_backend_pid()")
        end = postmaster()
        os.kill(pids[0][0], signal.SIGKILL)
        await_end(end)
    elif how == "group":
        kill_group()
    elif how == "immediate":
        immediate()
    else:
        end = postmaster()
        os.kill(end, signal.SIGINT)
        await_end(end)
    committed = load.end(how)
    check(f"{how}: transactions commit", committed > 5, committed)
    after_crash(oracle, f"{how}: all is found", dice)


# --- DDL -------------------------------------------------------------------------

def case_ddl(oracle, event, dice, seed):
    """A transaction makes, fills, empties and drops tables. It is killed, or ends before a crash."""
    connection = connect(DATABASE)
    settings = "SET mixedcc.default_persistence = permanent; SET client_min_messages = warning" if OURS else "SELECT 1"
    query(connection, settings)
    method = "mixedcc" if OURS else "heap"
    query(connection, f"DROP TABLE IF EXISTS d0, d1, d2, d3; CREATE TABLE d0 (id int PRIMARY KEY, v text) USING {method};"
                      "INSERT INTO d0 SELECT i, 'old' FROM generate_series(1, 500) i; CREATE INDEX ON d0 (v)")
    step = f"""BEGIN;
        CREATE TABLE d1 (id int PRIMARY KEY, v text) USING {method};
        INSERT INTO d1 SELECT i, repeat('x', i % 100) FROM generate_series(1, 2000) i;
        SAVEPOINT a;
        CREATE TABLE d2 USING {method} AS SELECT * FROM d0;
        TRUNCATE d0;
        ROLLBACK TO a;
        CREATE TABLE d3 USING {method} AS SELECT * FROM d0;
        UPDATE d1 SET v = 'new' WHERE id <= 1000;
        DELETE FROM d1 WHERE id > 1900;
        TRUNCATE d0;
        INSERT INTO d0 VALUES (7, 'new');
        COMMIT"""
    if event:
        query(connection, f"SET mixedcc.kill_at = '{event}'")
    pid, answered = postmaster(), True
    try:
        query(connection, step)
        if event:
            query(connection, "DROP TABLE d3; CREATE TABLE d3 AS SELECT id FROM d1")
    except psycopg2.OperationalError:
        answered = False
    if not answered:
        await_end(pid)
    else:
        kill_group()
    check(f"{event or 'ddl'}: the event is met", answered == (not event))
    after_crash(oracle, f"{event or 'ddl'}: all other tables are found", dice)
    connection = connect(DATABASE)
    made = value(connection, "SELECT count(*) FROM pg_class WHERE relname IN ('d1', 'd3')")
    rows = query(connection, "SELECT count(*), min(v), count(*) FILTER (WHERE v = 'new') FROM d0")
    if made:
        got = query(connection, "SELECT (SELECT count(*) FROM d1), (SELECT count(*) FROM d1 WHERE v = 'new'), (SELECT count(*) FROM d3)")
        equal(f"{event or 'ddl'}: the tables are whole", (got, rows), ([(1900, 1000, 500)], [(1, "new", 1)]))
    else:
        equal(f"{event or 'ddl'}: nothing is left of it", (answered, rows), (False, [(500, "old", 0)]))
    query(connection, "INSERT INTO d0 VALUES (1000, 'after'); UPDATE d0 SET v = 'moved' WHERE id = 1000")
    query(connection, "SET enable_seqscan = off")
    equal(f"{event or 'ddl'}: it can be written", query(connection, "SELECT id FROM d0 WHERE v = 'moved'"), [(1000,)])
    connection.close()


# --- main ------------------------------------------------------------------------

def set_up():
    connection = make_database(DATABASE)
    query(connection, "CREATE EXTENSION amcheck")
    SERVER["data"] = value(connection, "SHOW data_directory")
    SERVER["auto"] = SERVER["data"] + "/postgresql.auto.conf"
    SERVER["log"] = os.path.dirname(SERVER["data"]) + "/server.log"
    directory, port = value(connection, "SHOW unix_socket_directories"), value(connection, "SHOW port")
    SERVER["socket"] = f"{directory}/.s.PGSQL.{port}"
    with open(SERVER["auto"], encoding="ascii") as file:
        SERVER["base"] = file.readlines()
    SERVER["base"] += ["restart_after_crash = off\n", "checkpoint_timeout = 30s\n", "max_wal_size = 64MB\n",
                       "shared_buffers = 16MB\n", "full_page_writes = on\n"]
    SERVER["base"] += ["mixedcc.stop_events = on\n"] if OURS else []
    make_tables(connection)
    connection.close()
    server("stop")
    configure()
    start()
    oracle = Oracle()
    judge(oracle, "crashes: a clean restart keeps all")
    return oracle


CASES = ([(case_plain, how) for how in ("group", "backend", "immediate", "fast")]
         + [(case_ddl, None)]
         + ([(case_backend, e) for e in BACKEND] + [(case_companion, e) for e in COMPANION]
            + [(case_closing, e) for e in CLOSING] + [(case_startup, e) for e in STARTUP]
            + [(case_first_use, e) for e in FIRST_USE] + [(case_ddl, e) for e in DDL] if OURS else []))


def main():
    arguments = sys.argv[1:]
    seed = arguments[0] if arguments else os.environ.get("MIXEDCC_SEED", "1")
    wanted = arguments[1:]
    dice = random.Random(f"crashes {seed}")
    oracle = set_up()
    from_then = time.monotonic()
    for run, event in CASES:
        if wanted and str(event) not in wanted:
            continue
        try:
            run(oracle, event, dice, f"{seed} {event}")
        except Exception as error:  # the next case goes on with the same tables
            fail(f"{event}", repr(error))
            configure()
            if os.path.exists(SERVER["data"] + "/postmaster.pid"):
                kill_group()
            if SERVER.get("load"):
                SERVER["load"].end(event)
            start()
    # More of the plain ones, as long as there is time.
    while time.monotonic() < from_then + seconds(0):
        run, event = dice.choice(CASES)
        run(oracle, event, dice, f"{seed} {time.monotonic()}")
    configure()
    drop_database(DATABASE)
    sys.exit(1 if fail_count() else 0)


def fail_count():
    from lib.common import failures
    return len(failures)


if __name__ == "__main__":
    main()
