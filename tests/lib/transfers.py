"""Transfers between accounts of permanent tables, by sessions that note which commits were
answered, and an oracle that judges the tables afterwards. Each transaction leaves a row that says
what it did; so all balances, and the rows of all other tables, follow from the rows that are
there."""

import multiprocessing
import random
import time

import psycopg2

from lib import protocols
from lib.common import OURS, RETRY, TERMINATED, check, connect, equal, fail, is_lost, query

ACCOUNTS = 60
START = 1000
WORKERS = 4
# Their commits need not survive, but they are whole.
ASYNCHRONOUS = 3
# Of large rows: the last takes several records in WAL, the one before several of images.
LENGTHS = [9_000, 30_000, 30_000, 30_000, 400_000, 1_300_000]
# What a transaction did is in one of the first two: an insert into a table with a key takes a
# transaction id, one into a table without does not.
NOTES = ("marks", "notes")
TABLES = (*NOTES, "queue", "large")


# --- tables ----------------------------------------------------------------------

def make_tables(connection):
    method = "mixedcc" if OURS else "heap"
    for number, protocol in enumerate(protocols.ALL):
        options = f"WITH (mixedcc.partitions = '3', mixedcc.protocol = '{protocol}')" if OURS else ""
        query(connection, f"CREATE TABLE acct{number} (id int PRIMARY KEY, branch int, balance bigint) USING {method} {options}")
        query(connection, f"INSERT INTO acct{number} SELECT i, i % 5, {START} FROM generate_series(1, {ACCOUNTS}) i")
    # One without other indexes than its key, and one with some.
    query(connection, "CREATE INDEX ON acct1 (branch)")
    query(connection, f"CREATE TABLE marks (worker int, seq int, a int, b int, amount int, flags text, PRIMARY KEY (worker, seq)) USING {method}")
    query(connection, f"CREATE TABLE notes (worker int, seq int, a int, b int, amount int, flags text) USING {method}")
    query(connection, f"CREATE TABLE queue (worker int, seq int, v text, PRIMARY KEY (worker, seq)) USING {method}")
    query(connection, "CREATE INDEX ON queue (seq)")
    query(connection, f"CREATE TABLE large (worker int PRIMARY KEY, seq int, v text) USING {method}")
    query(connection, f"INSERT INTO large SELECT w, 0, '' FROM generate_series(0, {WORKERS - 1}) w")
    query(connection, "CREATE TABLE heap_marks (worker int, seq int) USING heap")
    kinds = query(connection, "SELECT DISTINCT relpersistence FROM pg_class WHERE relname IN ('acct0', 'acct1', 'marks', 'notes', 'queue', 'large')")
    equal("the tables are permanent", kinds, [("p",)])


def accounts():
    return [f"acct{number}" for number in range(len(protocols.ALL))]


# --- load ------------------------------------------------------------------------

def text_of(worker, seq, length):
    return (f"{worker}.{seq} " * (length // 4 + 1))[:length]


class Moved(Exception):
    """READ COMMITTED has met an account that another transaction moves."""


class Worker:
    """One session that runs transactions until the server is gone."""

    def __init__(self, database, number, first, seed, kill_at):
        self.database = database
        self.number = number
        self.seq = first
        self.dice = random.Random(f"{seed} {number} {first}")
        self.kill_at = kill_at
        self.answered, self.rolled_back, self.doubtful = [], [], []
        self.unexpected = []

    def run(self):
        try:
            asynchronous = "off" if self.number == ASYNCHRONOUS else "on"
            connection = connect(self.database, options=f"-c synchronous_commit={asynchronous} -c deadlock_timeout=50ms "
                                                   "-c lock_timeout=5s")
            cursor = connection.cursor()
            if self.kill_at:
                # After some transactions, so that others are under way.
                for _ in range(self.dice.randrange(3, 12)):
                    self.transaction(cursor)
                cursor.execute(f"SET mixedcc.kill_at = '{self.kill_at}'")
            while True:
                self.transaction(cursor)
        except psycopg2.Error as error:
            if error.pgcode not in (None, "57P03", *TERMINATED):
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
            lost = is_lost(cursor.connection, error)
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
            length = dice.choice(LENGTHS)
            cursor.execute("UPDATE large SET seq = %s, v = %s WHERE worker = %s", (seq, text_of(me, seq, length), me))
            flags += "l"
        names = f"{source},{target},{flags}"
        table = dice.choice(NOTES)
        cursor.execute(f"INSERT INTO {table} VALUES (%s, %s, %s, %s, %s, %s)", (me, seq, a, b, amount, names))


def one_row(cursor, sql, parameters):
    cursor.execute(sql, parameters)
    if cursor.rowcount != 1:
        raise Moved


def work(database, number, first, seed, kill_at, results):
    worker = Worker(database, number, first, seed, kill_at)
    worker.run()
    results.put((number, worker.seq, worker.answered, worker.rolled_back, worker.doubtful, worker.unexpected))


def disturb(database, seed, results):
    """Checkpoints, VACUUM and switches of protocols, until the server is gone."""
    dice = random.Random(f"{seed} disturb")
    done = 0
    try:
        connection = connect(database, options="-c lock_timeout=2s")
        while True:
            time.sleep(dice.uniform(0.01, 0.1))
            table = dice.choice([*accounts(), *TABLES])
            what = dice.choice(["CHECKPOINT", "vacuum", "switch", "analyze"])
            try:
                if what == "CHECKPOINT":
                    query(connection, "CHECKPOINT")
                elif what == "switch" and OURS and table in accounts():
                    query(connection, f"SELECT mixedcc.set_protocol('{table}', '{dice.choice(protocols.ALL)}')")
                elif what == "vacuum":
                    query(connection, f"VACUUM {dice.choice(['', '(FREEZE) '])}{table}")
                elif what == "analyze":
                    query(connection, f"ANALYZE {table}")
            except (psycopg2.errors.LockNotAvailable, psycopg2.errors.DeadlockDetected):
                pass
            done += 1
    except psycopg2.Error as error:
        problem = "" if error.pgcode in (None, "57P03", *TERMINATED) else repr(error)
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
        columns = "SELECT worker, seq, a, b, amount, flags"
        marks = query(connection, " UNION ALL ".join(f"{columns} FROM {table}" for table in NOTES))
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
            if seq != large[w][0] or v != text_of(w, seq, len(v)) or (seq and len(v) not in LENGTHS):
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
    for table in [*accounts(), *TABLES]:
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


class Load:
    """Workers and a disturber, beside which the server is killed."""

    def __init__(self, database, oracle, seed, kill_at=None):
        self.oracle = oracle
        self.results = multiprocessing.Queue()
        self.processes = [
            multiprocessing.Process(target=work, daemon=True,
                                    args=(database, n, oracle.next[n], seed, kill_at if n == 0 else None, self.results))
            for n in range(WORKERS)]
        self.processes.append(multiprocessing.Process(target=disturb, args=(database, seed, self.results), daemon=True))
        for process in self.processes:
            process.start()

    def end(self, name):
        """The server is gone: what has each client seen?"""
        committed, problems = 0, []
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


