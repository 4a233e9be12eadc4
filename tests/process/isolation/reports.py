#!/usr/bin/python3
"""SERIALIZABLE transactions that only read do not fail, under each protocol and beside writers of
the same rows, declared READ ONLY or not. All that one of them reads is the state at one moment:
transfers keep the sum of all accounts. A long report holds no writer back."""

import collections
import os
import random
import tempfile
import threading
import time

import psycopg2

from lib import protocols
from lib.common import RETRY, check, connect, create_table, drop_database, equal, main, make_database, query, seconds, tool, value

DATABASE = "process_reports"
ROWS, START = 40, 100
WRITERS, READERS = 2, 3


# --- load ------------------------------------------------------------------------

def transfer(cursor, choice):
    """Moves an amount to an account that may have to be made, and ends one that is empty."""
    a, b = choice.sample(range(ROWS), 2)
    cursor.execute("UPDATE t SET v = v - 1, at = at + 1 WHERE id = %s AND v > 0 RETURNING v", (a,))
    if not (left := cursor.fetchone()):
        return
    if left[0] == 0:
        cursor.execute("DELETE FROM t WHERE id = %s", (a,))
    cursor.execute("UPDATE t SET v = v + 1, at = at + 1 WHERE id = %s RETURNING v", (b,))
    if not cursor.fetchone():
        cursor.execute("INSERT INTO t VALUES (%s, %s, 1)", (b, b))


def total(cursor, where):
    cursor.execute(f"SELECT coalesce(sum(v), 0) FROM t WHERE {where}")
    return cursor.fetchone()[0]


def by_keys(cursor, _choice):
    """All rows one by one, some of which may be absent."""
    found = 0
    for key in random.sample(range(ROWS), ROWS):
        cursor.execute("SELECT v FROM t WHERE id = %s", (key,))
        row = cursor.fetchone()
        found += row[0] if row else 0
    return found


def by_ranges(cursor, choice):
    middle = choice.randrange(ROWS)
    parts = [f"id < {middle}", f"id >= {middle}"]
    choice.shuffle(parts)
    return sum(total(cursor, part) for part in parts)


def by_index(cursor, choice):
    """Transfers change `at`, which has an index."""
    middle = choice.randrange(1, 60)
    first = total(cursor, f"at < {middle}")
    return first + total(cursor, f"at >= {middle}")


def twice(cursor, _choice):
    """A scan of all, then a part by keys in a savepoint that is rolled back, then all again."""
    total(cursor, "true")
    cursor.execute("SAVEPOINT s")
    by_keys(cursor, None)
    cursor.execute("ROLLBACK TO s")
    return total(cursor, "true")


def by_cursor(cursor, choice):
    """A scan that others' statements interrupt."""
    cursor.execute("DECLARE c CURSOR FOR SELECT v FROM t ORDER BY id")
    found = 0
    while True:
        cursor.execute("FETCH 7 FROM c")
        rows = cursor.fetchall()
        if not rows:
            return found
        found += sum(row[0] for row in rows)
        total(cursor, f"id = {choice.randrange(ROWS)}")


READS = (by_keys, by_ranges, by_index, twice, by_cursor)


class Load:
    """Writers and readers in threads."""

    def __init__(self, duration, options=""):
        self.until = time.monotonic() + duration
        self.options = options
        self.done, self.failed, self.wrong = collections.Counter(), collections.Counter(), []
        self.problems = []

    def run(self):
        threads = [threading.Thread(target=self.guard, args=(self.write, n)) for n in range(WRITERS)]
        threads += [threading.Thread(target=self.guard, args=(self.read, n)) for n in range(READERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self

    def guard(self, work, number):
        try:
            work(number)
        except Exception as problem:  # a thread's traceback would be lost
            self.problems.append(repr(problem))

    def session(self, options=""):
        connection = connect(DATABASE, options=f"-c default_transaction_isolation=serializable {options}")
        return connection, connection.cursor()

    def write(self, number):
        connection, cursor = self.session("-c deadlock_timeout=10ms")
        choice = random.Random(number)
        while time.monotonic() < self.until:
            self.attempt(cursor, "BEGIN", transfer, choice)
        connection.close()

    def read(self, number):
        connection, cursor = self.session(f"-c deadlock_timeout=10ms {self.options}")
        choice = random.Random(100 + number)
        n = number
        while time.monotonic() < self.until:
            n += 1
            begin = "BEGIN READ ONLY" if n % 7 == 0 else "BEGIN"
            found = self.attempt(cursor, begin, READS[n % len(READS)], choice)
            if found not in (None, ROWS * START):
                self.wrong.append((READS[n % len(READS)].__name__, found))
        connection.close()

    def attempt(self, cursor, begin, work, choice):
        try:
            cursor.execute(begin)
            found = work(cursor, choice)
            cursor.execute("COMMIT")
            self.done[work.__name__] += 1
            return found
        except psycopg2.Error as error:
            if error.pgcode not in RETRY:
                raise
            self.failed[work.__name__, error.pgcode] += 1
            cursor.execute("ROLLBACK")
            return None


def make_accounts(connection, settings):
    query(connection, "DROP TABLE IF EXISTS t")
    create_table(connection, "t", "id int PRIMARY KEY, at int, v int", partitions=4, **settings)
    query(connection, "CREATE INDEX ON t (at)")
    query(connection, f"INSERT INTO t SELECT i, i, {START} FROM generate_series(0, {ROWS - 1}) i")


def test_no_reader_fails(connection):
    kinds = protocols.variants()
    duration = seconds(10, long=30) / (len(kinds) + 1)
    frozen = 0
    for name, settings in kinds.items():
        make_accounts(connection, settings)
        load = Load(duration).run()
        equal(f"readers, {name}: no unexpected error", load.problems, [])
        of_readers = {key: n for key, n in load.failed.items() if key[0] != "transfer"}
        equal(f"readers, {name}: none fails", of_readers, {})
        equal(f"readers, {name}: each reads one state", load.wrong[:5], [])
        done = {kind for kind, n in load.done.items() if n}
        equal(f"readers, {name}: all kinds have run", done, {"transfer", *(r.__name__ for r in READS)})
        frozen += value(connection, "SELECT sum(frozen) FROM mixedcc.partitions WHERE \"table\" = 't'::regclass")
    check("readers freeze", frozen > 0)
    # The same load finds readers that fail where they may not freeze.
    make_accounts(connection, kinds["occ"])
    load = Load(duration, "-c mixedcc.freeze_readers=off").run()
    of_readers = sum(n for key, n in load.failed.items() if key[0] != "transfer")
    check("readers fail where freezing is off", of_readers > 0)


# --- long reports ----------------------------------------------------------------

REPORT = "SELECT sum(v), sum(slow(id)) FROM t"


def writer_passes(connection, report):
    """Does a writer of 2pl pass while the report runs? `report` uses a session, and ends."""
    reader = connect(DATABASE, options="-c default_transaction_isolation=serializable")
    reader_pid = reader.info.backend_pid
    result = []
    thread = threading.Thread(target=lambda: result.append(report(reader)))
    thread.start()
    busy = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event IN ('PgSleep', 'ClientRead') AND query LIKE 'SELECT sum%%'"
    while value(connection, busy, (reader_pid,)) == 0 and thread.is_alive():
        time.sleep(0.01)
    time.sleep(0.1)
    writer = connect(DATABASE, options="-c default_transaction_isolation=serializable -c lock_timeout=150ms")
    passes = 0
    for key in range(0, ROWS, 8):
        try:
            query(writer, f"UPDATE t SET v = v + 1 WHERE id = {key}")
            passes += 1
        except psycopg2.errors.LockNotAvailable:
            pass
    still = thread.is_alive()
    thread.join()
    writer.close()
    reader.close()
    query(connection, f"UPDATE t SET v = {START}")
    return passes == ROWS // 8, still, result


def alone(reader):
    return query(reader, REPORT)[0][0]


def alone_without_freezing(reader):
    query(reader, "SET mixedcc.freeze_readers = off")
    return alone(reader)


def in_a_block(reader):
    """The session has only read for long."""
    for _ in range(101):
        query(reader, "SELECT v FROM t WHERE id = 1")
    query(reader, "BEGIN")
    found = query(reader, "SELECT sum(v) FROM t")[0][0]
    time.sleep(1.5)
    again = query(reader, "SELECT sum(v) FROM t")[0][0]
    query(reader, "COMMIT")
    return found if found == again else (found, again)


def test_reports(connection):
    make_accounts(connection, {"protocol": "2pl"})
    # The planner takes it for costly, and for one that writes nothing.
    query(connection, "CREATE FUNCTION slow(int) RETURNS int STABLE COST 10000 LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.04); RETURN 0; END'")
    for name, report, wanted in (
        ("a long SELECT", alone, True),
        ("a session that only reads", in_a_block, True),
        ("one that may not freeze", alone_without_freezing, False),
    ):
        passes, still, result = writer_passes(connection, report)
        check(f"reports: {name} runs while others write", still)
        equal(f"reports: writers beside {name} pass", passes, wanted)
        if wanted:
            equal(f"reports: {name} reads one state", result, [ROWS * START])


def test_prepared_reports(connection):
    """The top of a generic plan says little of its cost. A report that keeps one is frozen, too."""
    query(connection, "CREATE TABLE many (id int PRIMARY KEY, v int) USING mixedcc; INSERT INTO many SELECT i, i FROM generate_series(1, 60000) i; ANALYZE many")
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write("\\set a 1\nSELECT sum(v) FROM many WHERE id >= :a;\n")
        script.flush()
        tool("pgbench", "-n", "-M", "prepared", "-t", "20", "-f", script.name, DATABASE,
             env={**os.environ, "PGOPTIONS": "-c default_transaction_isolation=serializable"})
    equal("reports: prepared ones freeze", value(connection, "SELECT sum(frozen) FROM mixedcc.partitions WHERE \"table\" = 'many'::regclass"), 20)


def test_all():
    connection = make_database(DATABASE)
    test_no_reader_fails(connection)
    test_reports(connection)
    test_prepared_reports(connection)
    connection.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_all)
