#!/usr/bin/python3
"""Sequential scans beside transfers, inserts and deletes: rows are found ahead, and each statement
sees the state of one moment. Checked by sums that all commits leave as they were, at each level and
with workers; and by a scan that stops in the middle of its rows while others commit."""

import threading
import time

import psycopg2

from lib import protocols
from lib.common import RETRY, check, connect, create_table, drop_database, equal, main, make_database, query, seconds, value

DATABASE = "process_scans"
ROWS = 2000
TOTAL = 100 * ROWS
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE READ ONLY", "SERIALIZABLE")
SUMS = "SELECT sum(v), count(*) FROM t"
# Conditions that are decided by bytes, and others: each pair has all rows.
HALVES = "SELECT (SELECT sum(v) FROM t WHERE id {0} {1}) + (SELECT sum(v) FROM t WHERE NOT id {0} {1})"


def make_rows(admin, settings):
    query(admin, "DROP TABLE IF EXISTS t")
    create_table(admin, "t", "id int PRIMARY KEY, v bigint, note text", **settings)
    query(admin, f"INSERT INTO t SELECT i, 100, repeat('x', i % 50) FROM generate_series(1, {ROWS}) i")


TRANSFER = """DO $$
DECLARE a int; b int; x int;
BEGIN
    FOR i IN 1..20 LOOP
        a := 1 + random() * 1999; b := 1 + random() * 1999; x := random() * 10;
        IF i % 4 = 0 THEN
            -- The row goes, and comes again as another one.
            DELETE FROM t WHERE id = a RETURNING v INTO x;
            IF x IS NOT NULL THEN INSERT INTO t VALUES (a, x, 'again'); END IF;
        ELSIF a <> b THEN
            UPDATE t SET v = v - x WHERE id = least(a, b);
            IF FOUND THEN
                UPDATE t SET v = v + x WHERE id = greatest(a, b);
                IF NOT FOUND THEN RAISE EXCEPTION 'no row %', greatest(a, b) USING ERRCODE = '40001'; END IF;
            END IF;
        END IF;
    END LOOP;
END $$"""


def again_and_again(stop, once):
    """Calls it until the event is set; a conflict is tried again. How often it came to its end."""
    n = 0
    while not stop.is_set():
        try:
            once()
            n += 1
        except psycopg2.Error as error:
            if error.pgcode not in RETRY:
                raise
    return n


class Session(threading.Thread):
    """Runs one thing again and again."""

    def __init__(self, stop, settings):
        super().__init__()
        self.stop, self.times, self.error, self.wrong = stop, 0, None, []
        self.session = connect(DATABASE)
        query(self.session, settings)

    def run(self):
        try:
            self.times = again_and_again(self.stop, self.once)
        except Exception as error:  # shown by the test
            self.error = error
        finally:
            self.session.close()


class Writer(Session):
    def __init__(self, stop, level):
        super().__init__(stop, f"SET default_transaction_isolation = '{level}'")

    def once(self):
        query(self.session, TRANSFER)


class Reader(Session):
    """A transaction of a level reads all rows, in several ways."""

    def __init__(self, stop, level, workers):
        super().__init__(stop, "SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off;"
                               f"SET max_parallel_workers_per_gather = {workers}; SET parallel_setup_cost = 0;"
                               "SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0")
        self.level, self.workers = level, workers

    def once(self):
        query(self.session, f"BEGIN ISOLATION LEVEL {self.level}")
        try:
            sums = query(self.session, SUMS)[0]
            halves = value(self.session, HALVES.format(">", 1 + self.times * 37 % (ROWS - 1)))
            parts = self.by_cursor()
            query(self.session, "COMMIT")
        except Exception:
            query(self.session, "ROLLBACK")
            raise
        self.times += 1
        if [*sums, halves, *parts] != [TOTAL, ROWS, TOTAL, TOTAL, ROWS]:
            self.wrong.append((self.level, self.workers, sums, halves, parts))

    def by_cursor(self):
        """Others commit between two parts of a scan, in the middle of a run of rows."""
        query(self.session, "DECLARE c CURSOR FOR SELECT id, v FROM t")
        rows = []
        while part := query(self.session, "FETCH 150 FROM c"):
            rows += part
        query(self.session, "CLOSE c")
        return sum(v for _, v in rows), len({key for key, _ in rows})


def beside_transfers(name, settings, duration):
    admin = connect(DATABASE)
    make_rows(admin, settings)
    stop = threading.Event()
    writers = [Writer(stop, level) for level in ("read committed", "serializable")]
    readers = [Reader(stop, level, 0) for level in LEVELS] + [Reader(stop, "REPEATABLE READ", 2)]
    for session in writers + readers:
        session.start()
    time.sleep(duration)
    stop.set()
    for session in writers + readers:
        session.join()
        check(f"{name}: no session has failed", session.error is None, session.error)
    check(f"{name}: others wrote", all(w.times for w in writers), [w.times for w in writers])
    check(f"{name}: all levels read", all(r.times for r in readers), [(r.level, r.times) for r in readers])
    equal(f"{name}: each scan sees one moment", [r.wrong[:2] for r in readers], [[]] * len(readers))
    equal(f"{name}: and the end", query(admin, SUMS), [(TOTAL, ROWS)])
    admin.close()


def test_moments():
    tables = [(name, variant) for name, variant in protocols.variants().items()]
    for name, settings in tables:
        beside_transfers(name, settings, seconds(12, long=60) / len(tables))


def test_cancel():
    """A statement is cancelled in the middle of a scan; the next one sees all rows."""
    admin, session = connect(DATABASE), connect(DATABASE)
    make_rows(admin, {})
    query(session, "SET enable_indexscan = off; SET enable_bitmapscan = off; SET statement_timeout = '200ms'")
    try:
        query(session, "SELECT count(*) FROM t WHERE pg_sleep(0.02) IS NOT NULL")
        check("a scan is cancelled", False)
    except Exception as error:
        check("a scan is cancelled", "statement timeout" in str(error), error)
    equal("all rows are there", query(session, SUMS), [(TOTAL, ROWS)])


def run():
    make_database(DATABASE).close()
    test_moments()
    test_cancel()
    drop_database(DATABASE)


if __name__ == "__main__":
    main(run)
