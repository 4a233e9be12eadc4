#!/usr/bin/python3
"""ALTER TABLE ... SET ACCESS METHOD heap and back, each in one statement, also with SET LOGGED and
SET UNLOGGED, while sessions read and write the table. They wait or fail cleanly. No row is lost or
doubled, and the indexes have what the table has. With MIXEDCC_METHOD=heap both access methods are
heap's."""

import random
import threading

import psycopg2

from lib import protocols
from lib.common import OURS, RETRY, check, connect, drop_database, equal, main, make_database, must_come, query, set_protocol, value

DATABASE = "process_conversion"
ACCOUNTS = 60
AMOUNT = 1000
# Rows that heap keeps in a TOAST table.
WIDE = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 300) WHERE i % 3 = 0)"
CONVERSIONS = ("SET ACCESS METHOD heap", "SET ACCESS METHOD mixedcc",
               "SET ACCESS METHOD heap, SET LOGGED", "SET UNLOGGED, SET ACCESS METHOD mixedcc",
               "SET LOGGED, SET ACCESS METHOD heap, ADD COLUMN c int DEFAULT 7", "DROP COLUMN c, SET ACCESS METHOD mixedcc, SET UNLOGGED")
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
# Between two conversions each session commits as many transactions at least.
EACH = 5
STATEMENTS = {
    "add": "UPDATE t SET v = v + $1 WHERE id = $2",
    "mark": "INSERT INTO t (id, v, mark) VALUES ($1, 0, $1)",
    "unmark": "DELETE FROM t WHERE mark = $1",
    "total": "SELECT count(*) FILTER (WHERE mark IS NULL), sum(v) FROM t",
}
TYPES = {"add": "(int, int)", "mark": "(int)", "unmark": "(int)", "total": ""}


class Session(threading.Thread):
    """Moves amounts between accounts. Inserts and deletes marked rows, and keeps a list of them.

    A rewritten table is empty for older snapshots, as PostgreSQL documents. Transactions above READ
    COMMITTED may have one, and so may EXECUTE: it takes its snapshot before it waits for the
    table's lock."""

    def __init__(self, number):
        super().__init__()
        self.number = number
        self.r = random.Random(number)
        self.level, self.prepared = LEVELS[number % 3], number % 2 == 1
        self.may_be_empty = self.level != "READ COMMITTED" or self.prepared
        self.connection = connect(DATABASE)
        query(self.connection, f"SET default_transaction_isolation = '{self.level.lower()}'; SET plan_cache_mode = force_generic_plan")
        self.marks, self.next = set(), number * 1_000_000 + ACCOUNTS + 1
        self.stop, self.committed, self.failed, self.empty, self.wrong = False, 0, 0, 0, []
        for name, sql in STATEMENTS.items():
            query(self.connection, f"PREPARE {name}{TYPES[name]} AS {sql}")

    def execute(self, name, *arguments):
        with self.connection.cursor() as cursor:
            if self.prepared:
                cursor.execute(f"EXECUTE {name}" + (f"({', '.join(map(str, arguments))})" if arguments else ""))
            else:
                sql = STATEMENTS[name]
                for i, argument in enumerate(arguments, 1):
                    sql = sql.replace(f"${i}", str(argument))
                cursor.execute(sql)
            return cursor.fetchall() if cursor.description else cursor.rowcount

    def total(self):
        """Does the session see all rows?"""
        found = self.execute("total")[0]
        if found == (0, None) and self.may_be_empty:
            self.empty += 1
            return False
        if found != (ACCOUNTS, ACCOUNTS * AMOUNT):
            self.wrong.append(found)
        return True

    def work(self):
        """Does the transaction want to commit, and which marks has it made and taken away?"""
        kind = self.r.choice(("read", "move", "move", "mark", "unmark"))
        if kind == "read":
            return self.total(), set(), set()
        if kind == "move":
            a, b = self.r.sample(range(1, ACCOUNTS + 1), 2)
            found = [self.execute("add", -1, a), self.execute("add", 1, b)]
            if found != [1, 1] and not self.may_be_empty:
                self.wrong.append((kind, found))
            return found == [1, 1] and self.total(), set(), set()
        if kind == "mark" or not self.marks:
            self.next += 1
            self.execute("mark", self.next)
            return True, {self.next}, set()
        mark = self.r.choice(sorted(self.marks))
        return self.execute("unmark", mark) == 1, set(), {mark}

    def run(self):
        while not self.stop:
            try:
                query(self.connection, "BEGIN")
                good, more, less = self.work()
                query(self.connection, "COMMIT" if good else "ROLLBACK")
                if good:
                    self.marks = (self.marks | more) - less
                    self.committed += 1
            except psycopg2.Error as error:
                if error.pgcode not in RETRY:
                    self.wrong.append((error.pgcode, str(error)))
                self.failed += 1
                query(self.connection, "ROLLBACK")


def convert(boss, sessions, how, end):
    """The conversion stays open until each session waits for the table's lock; then it ends."""
    query(boss, "BEGIN")
    query(boss, f"ALTER TABLE t {how}")
    waiting = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted AND locktype = 'relation' AND relation = 't'::regclass"
    other = connect(DATABASE)
    must_come(lambda: value(other, waiting) == len(sessions))
    other.close()
    query(boss, end)


def settled(sessions):
    """Each session has committed since."""
    before = [s.committed for s in sessions]
    must_come(lambda: all(s.committed >= b + EACH or not s.is_alive() for s, b in zip(sessions, before)))


def contents(boss, what, sessions):
    """What the sessions have committed, by each access path; then the indexes, by amcheck."""
    wanted = [(i, AMOUNT) for i in range(1, ACCOUNTS + 1)]
    equal(f"{what}: the sum", value(boss, "SELECT sum(v) FROM t"), ACCOUNTS * AMOUNT)
    marks = sorted(m for s in sessions for m in s.marks)
    check(f"{what}: there are marked rows", marks)
    for path, off in (("sequential", ("index", "bitmap", "indexonly")), ("index", ("seq", "bitmap")), ("bitmap", ("seq", "index", "indexonly"))):
        query(boss, "BEGIN; " + "; ".join(f"SET LOCAL enable_{o}scan = off" for o in off))
        equal(f"{what}: marked rows by {path} scans", [m for m, in query(boss, "SELECT mark FROM t WHERE mark > 0 ORDER BY mark")], marks)
        equal(f"{what}: accounts by {path} scans", len(query(boss, "SELECT id FROM t WHERE id BETWEEN 1 AND %s", (ACCOUNTS,))), len(wanted))
        query(boss, "COMMIT")
    equal(f"{what}: wide values stay", value(boss, "SELECT md5(string_agg(pad, ',' ORDER BY id)) FROM t"), value(boss, "SELECT md5(string_agg(pad, ',' ORDER BY id)) FROM pads"))
    for index in ("t_pkey", "t_mark", "t_v"):
        query(boss, f"SELECT bt_index_check('{index}', true)")
    check(f"{what}: the checks of the indexes find nothing", True)


def conversions(protocol):
    name = f"conversion, {protocol}"
    boss = connect(DATABASE)
    query(boss, f"""CREATE TABLE t (id int PRIMARY KEY, v int, mark int, pad text, w int DEFAULT 1) USING mixedcc;
        ALTER TABLE t ALTER pad SET STORAGE external;
        CREATE UNIQUE INDEX t_mark ON t (mark); CREATE INDEX t_v ON t (v, id);
        INSERT INTO t SELECT i, {AMOUNT}, NULL, {WIDE} FROM generate_series(1, {ACCOUNTS}) i;
        CREATE TABLE pads USING heap AS SELECT id, pad FROM t""")
    set_protocol(boss, "t", protocol)
    sessions = [Session(n) for n in range(6)]
    for s in sessions:
        s.start()
    try:
        for how in CONVERSIONS:
            for end in ("ROLLBACK", "COMMIT"):
                settled(sessions)
                convert(boss, sessions, how, end)
            if "mixedcc" in how:
                set_protocol(boss, "t", protocol)
        settled(sessions)
    finally:
        for s in sessions:
            s.stop = True
        for s in sessions:
            s.join(30)
    equal(f"{name}: sessions see all rows, once, or fail cleanly", [w for s in sessions for w in s.wrong][:3], [])
    rates = [(s.level, s.committed, s.failed, s.empty) for s in sessions]
    check(f"{name}: all end, and few transactions fail", not any(s.is_alive() for s in sessions)
          and sum(s.committed for s in sessions) > 2 * sum(s.failed + s.empty for s in sessions), rates)
    contents(boss, f"{name}, ours", sessions)
    query(boss, "ALTER TABLE t SET ACCESS METHOD heap")
    contents(boss, f"{name}, heap", sessions)
    query(boss, "DROP TABLE t, pads")
    boss.close()
    for s in sessions:
        s.connection.close()


def test_conversions():
    boss = make_database(DATABASE)
    query(boss, "CREATE EXTENSION amcheck")
    if not OURS:
        query(boss, "CREATE ACCESS METHOD mixedcc TYPE TABLE HANDLER heap_tableam_handler")
    boss.close()
    for protocol in protocols.ALL if OURS else ("none",):
        conversions(protocol)
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_conversions)
