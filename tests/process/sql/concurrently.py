#!/usr/bin/python3
"""CREATE INDEX, REINDEX and DROP INDEX CONCURRENTLY: beside sessions that write, beside old
snapshots, with unique keys, ended in the middle, and cut off by a crash of the server. Each index
is compared with the rows."""

import functools
import os
import random
import threading
import time

import psycopg2

from lib.common import check, connect, drop_database, equal, main, make_database, must_come, query, seconds, server, value, wait_until

DATABASE = "process_concurrently"
LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
EXPECTED = {"40001", "40P01", "23505"}
KINDS = {"unlogged": "CREATE UNLOGGED TABLE", "permanent": "CREATE TABLE"}
BOSS = None

# The definition of each index, and a condition that a plan can use it for.
INDEXES = {
    "plain": ("INDEX CONCURRENTLY x ON t (v)", "v BETWEEN -1 AND 1000000"),
    "covering": ("INDEX CONCURRENTLY x ON t (v DESC) INCLUDE (w)", "v BETWEEN -1 AND 1000000"),
    "partial": ("INDEX CONCURRENTLY x ON t (v) WHERE w % 2 = 0", "v BETWEEN -1 AND 1000000 AND w % 2 = 0"),
    "expression": ("INDEX CONCURRENTLY x ON t ((v + id))", "v + id BETWEEN -1 AND 10000000"),
    "unique": ("UNIQUE INDEX CONCURRENTLY x ON t (u)", "u BETWEEN -1 AND 10000000"),
    "gin": ("INDEX CONCURRENTLY x ON t USING gin (a)", "a @> '{7}'"),
    "hash": ("INDEX CONCURRENTLY x ON t USING hash (h)", "h = 7"),
}


def make_table(kind):
    query(BOSS, "DROP TABLE IF EXISTS t")
    query(BOSS, f"{KINDS[kind]} t (id int PRIMARY KEY, v int, w int, u int, a int[], h int) USING mixedcc")
    query(BOSS, "INSERT INTO t SELECT i, i % 97, i % 5, i, ARRAY[i % 10], 7 FROM generate_series(1, 2000) i")


def rows(connection, condition, index):
    """By the index, or by no index."""
    for way in ("indexscan", "bitmapscan"):
        query(connection, f"SET enable_{way} = {'on' if index else 'off'}")
    query(connection, f"SET enable_seqscan = {'off' if index else 'on'}")
    sql = f"SELECT id, v, w, u, a FROM t WHERE {condition}"
    plan = "\n".join(line for line, in query(connection, f"EXPLAIN (COSTS off) {sql}"))
    if index != (" x" in plan):
        raise RuntimeError(plan)
    return sorted(query(connection, sql))


def compare(name, condition):
    """The rows that the index gives are those of the table, each once."""
    connection = connect(DATABASE)
    query(connection, "BEGIN; LOCK TABLE t IN SHARE MODE")
    equal(f"{name}: rows by the index", rows(connection, condition, True), rows(connection, condition, False))
    if value(connection, "SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relname = 'x'") == "btree":
        query(connection, "SELECT bt_index_parent_check('x', true)")
    query(connection, "ROLLBACK")
    connection.close()


class Writer(threading.Thread):
    """Changes rows at random until it is stopped."""

    def __init__(self, number):
        super().__init__()
        self.random = random.Random(number)
        self.number = number
        self.done = self.failed = 0
        self.stopped = False
        self.error = None

    def statement(self):
        r = self.random
        old, new = r.randrange(1, 2500), r.randrange(1, 1000)
        return r.choice([
            f"INSERT INTO t VALUES ({old}, {new}, {new % 5}, {old}, ARRAY[{new % 10}], 7) ON CONFLICT DO NOTHING",
            f"INSERT INTO t VALUES ({old}, {new}, 1, {r.randrange(3000)}, '{{7}}', 7)",
            f"DELETE FROM t WHERE id = {old}",
            f"UPDATE t SET v = {new} WHERE id = {old}",
            f"UPDATE t SET w = {new % 5} WHERE id BETWEEN {old} AND {old + 3}",
            f"UPDATE t SET u = {r.randrange(5000)}, a = ARRAY[{new % 10}] WHERE id = {old}",
            f"UPDATE t SET h = {r.choice([7, 8])} WHERE id = {old}",
        ])

    def transaction(self, connection):
        r = self.random
        query(connection, f"BEGIN ISOLATION LEVEL {r.choice(LEVELS)}")
        for _ in range(r.randrange(1, 5)):
            query(connection, "SAVEPOINT s")
            try:
                query(connection, self.statement())
                if r.random() < 0.2:
                    query(connection, "ROLLBACK TO s")
            except psycopg2.Error as error:
                if error.pgcode not in EXPECTED:
                    raise
                query(connection, "ROLLBACK TO s")
            if r.random() < 0.2:
                time.sleep(r.random() / 50)
        query(connection, "ROLLBACK" if r.random() < 0.1 else "COMMIT")

    def run(self):
        connection = connect(DATABASE, options="-c deadlock_timeout=10ms")
        try:
            while not self.stopped:
                try:
                    self.transaction(connection)
                    self.done += 1
                except psycopg2.Error as error:
                    if error.pgcode not in EXPECTED:
                        raise
                    self.failed += 1
                    query(connection, "ROLLBACK")
        except Exception as error:
            self.error = error
        finally:
            connection.close()


def beside_writers(kind, name, again):
    make_table(kind)
    definition, condition = INDEXES[name]
    writers = [Writer(n) for n in range(4)]
    for writer in writers:
        writer.start()
    boss = connect(DATABASE)
    time.sleep(0.1)
    made = build(boss, f"CREATE {definition}", name == "unique")
    if made and again:
        made = build(boss, "REINDEX INDEX CONCURRENTLY x", name == "unique")
    before = [w.done for w in writers]
    time.sleep(seconds(0.2))
    wait_until(lambda: all(w.error or w.done > n for w, n in zip(writers, before)))
    for writer in writers:
        writer.stopped = True
    for writer in writers:
        writer.join()
    boss.close()
    check(f"{kind} {name}: writers write", all(w.done > n for w, n in zip(writers, before)),
          [w.error for w in writers])
    check(f"{kind} {name}: writers see no error of their own", all(w.error is None for w in writers),
          [repr(w.error) for w in writers])
    if made:
        compare(f"{kind} {name}", condition)
    return made


def build(boss, command, unique):
    """Did it succeed? A unique index may meet two rows with one key, and stays invalid."""
    try:
        query(boss, command)
        return True
    except psycopg2.errors.UniqueViolation:
        if not unique:
            raise
        query(boss, "DROP INDEX CONCURRENTLY IF EXISTS x")
        return False


def indexes_beside_writers():
    for kind in KINDS:
        for name in INDEXES:
            if name == "unique":
                continue
            beside_writers(kind, name, again=name in ("plain", "gin"))


def unique_keys(kind):
    """Two rows with one key are found by each of the scans."""
    make_table(kind)
    query(BOSS, "UPDATE t SET u = 5 WHERE id = 6")
    try:
        query(BOSS, "CREATE UNIQUE INDEX CONCURRENTLY x ON t (u)")
        found = False
    except psycopg2.errors.UniqueViolation:
        found = True
    check(f"{kind} unique: two rows of one key are found", found)
    check(f"{kind} unique: the index is left invalid", not value(BOSS, "SELECT indisvalid FROM pg_index WHERE indexrelid = 'x'::regclass"))
    query(BOSS, "UPDATE t SET u = 6 WHERE id = 6")
    query(BOSS, "REINDEX INDEX CONCURRENTLY x")
    check(f"{kind} unique: REINDEX makes it valid", value(BOSS, "SELECT indisvalid FROM pg_index WHERE indexrelid = 'x'::regclass"))
    compare(f"{kind} unique after REINDEX", INDEXES["unique"][1])
    try:
        query(BOSS, "INSERT INTO t VALUES (9999, 1, 1, 5, '{1}', 7)")
        found = False
    except psycopg2.errors.UniqueViolation:
        found = True
    check(f"{kind} unique: the index is kept", found)


def undone_rows(kind):
    """A row that is undone later is no second one, although it is there during the build."""
    make_table(kind)
    early, late = connect(DATABASE), connect(DATABASE)
    query(early, "BEGIN; UPDATE t SET w = 1 WHERE id = 1")
    create = Command("CREATE UNIQUE INDEX CONCURRENTLY x ON t (u)")
    must_come(create.waits)
    query(late, "BEGIN; INSERT INTO t VALUES (5001, 1, 1, 17, '{1}', 7)")
    query(early, "COMMIT")
    must_come(lambda: not create.is_alive() or create.phase() == "waiting for writers before validation")
    query(late, "ROLLBACK")
    create.join()
    check(f"{kind} undone rows: the index is made", create.error is None, create.error)
    early.close()
    late.close()


class Command(threading.Thread):
    """A command in a session of its own."""

    def __init__(self, sql):
        super().__init__()
        self.connection = connect(DATABASE)
        self.pid = self.connection.info.backend_pid
        self.sql = sql
        self.error = None
        self.start()

    def run(self):
        try:
            query(self.connection, self.sql)
        except psycopg2.Error as error:
            self.error = error
        finally:
            self.connection.close()

    def waits(self):
        sql = "SELECT wait_event = 'virtualxid' FROM pg_stat_activity WHERE pid = %s"
        found = query(BOSS, sql, (self.pid,))
        return bool(found and found[0][0])

    def phase(self):
        found = query(BOSS, "SELECT phase FROM pg_stat_progress_create_index WHERE pid = %s", (self.pid,))
        return found[0][0] if found else None


def rows_of_each_phase(kind):
    """A row of a session that does not know the index, one that is written while it is built, and
    one after."""
    make_table(kind)
    early, late, old = connect(DATABASE), connect(DATABASE), connect(DATABASE)
    query(early, "BEGIN; INSERT INTO t VALUES (5001, 1, 1, 5001, '{1}', 7); UPDATE t SET v = 500 WHERE id = 17")
    create = Command("CREATE INDEX CONCURRENTLY x ON t (v)")
    must_come(create.waits)
    equal(f"{kind} phases: it waits for who writes", create.phase(), "waiting for writers before build")
    query(late, "BEGIN; INSERT INTO t VALUES (5002, 2, 1, 5002, '{1}', 7); UPDATE t SET v = 501 WHERE id = 18")
    query(early, "COMMIT")
    must_come(lambda: create.waits() and create.phase() == "waiting for writers before validation")
    query(late, "INSERT INTO t VALUES (5003, 3, 1, 5003, '{1}', 7); DELETE FROM t WHERE id = 19")
    query(old, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t")
    query(late, "COMMIT")
    must_come(lambda: create.waits() and create.phase() == "waiting for old snapshots")
    query(BOSS, "INSERT INTO t VALUES (5004, 4, 1, 5004, '{1}', 7); UPDATE t SET v = 502 WHERE id = 20")
    equal(f"{kind} phases: an old snapshot sees its rows", value(old, "SELECT v FROM t WHERE id = 18"), 18)
    query(old, "COMMIT")
    create.join()
    check(f"{kind} phases: it ends", create.error is None, create.error)
    compare(f"{kind} phases", INDEXES["plain"][1])
    for connection in (early, late, old):
        connection.close()


# Statements whose expressions look names up. So they hear of a new index in their middle. With what
# they return.
HEARING = {
    "one row": ("WHERE id = 5 AND to_regclass($1 || id) IS NULL RETURNING id", 1),
    "rows": ("WHERE id BETWEEN 5 AND 10 AND to_regclass($1 || id) IS NULL RETURNING id", 6),
    "a value": ("WHERE id BETWEEN 5 AND 10", 6),
}


def heard_in_a_statement(kind):
    """An UPDATE by key hears in its middle of a new index of a column that it sets. It changes all
    its rows, and gives each of them once."""
    for name, (rest, n) in HEARING.items():
        added = "coalesce(to_regclass($1 || id)::oid::int, 0)" if name == "a value" else "0"
        sql = f"UPDATE t SET v = v + 1000 + {added} {rest}"
        returns = "RETURNING" in sql
        body = f"{sql} INTO found; RETURN NEXT found" if name == "one row" else f"{'RETURN QUERY ' if returns else ''}{sql}"
        for call, wanted in (("EXECUTE change ('{}')", n), ("SELECT * FROM change('{}')", n if returns else 0)):
            make_table(kind)
            writer = connect(DATABASE, options="-c plan_cache_mode=force_generic_plan")
            query(writer, f"""CREATE OR REPLACE FUNCTION change(text) RETURNS SETOF int LANGUAGE plpgsql AS $$
                DECLARE found int; BEGIN {body}; END $$""")
            query(writer, f"PREPARE change (text) AS {sql}")
            query(writer, "BEGIN")
            execute(writer, call.format("none"))
            create = Command("CREATE INDEX CONCURRENTLY x ON t (v)")
            must_come(create.waits)
            what = f"{kind} heard: {name}: {call}"
            equal(what, execute(writer, call.format("nothing")), wanted)
            equal(f"{what}: all is changed", value(writer, "SELECT count(*) FROM t WHERE v >= 2000"), n)
            query(writer, "COMMIT")
            create.join()
            check(f"{what}: the index is made", create.error is None, create.error)
            compare(what, INDEXES["plain"][1])
            writer.close()


def execute(connection, sql):
    """How many rows a statement has returned or changed."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.rowcount


def ended_in_the_middle(kind):
    """A command that is cancelled, or whose session is ended, leaves an invalid index that others
    keep up, and that REINDEX mends."""
    for how in ENDS:
        make_table(kind)
        writer = connect(DATABASE)
        query(writer, "BEGIN; UPDATE t SET v = 0 WHERE id = 1")
        create = Command("CREATE INDEX CONCURRENTLY x ON t (v)")
        must_come(create.waits)
        query(BOSS, f"SELECT {how}(%s)", (create.pid,))
        create.join()
        query(writer, "COMMIT")
        check(f"{kind} {how}: the command fails", create.error is not None)
        check(f"{kind} {how}: the index is invalid", not is_valid("x"))
        query(BOSS, "INSERT INTO t VALUES (6000, 5, 1, 6000, '{1}', 7); UPDATE t SET v = 6 WHERE id = 2")
        query(BOSS, "REINDEX INDEX CONCURRENTLY x")
        compare(f"{kind} {how}: after REINDEX", INDEXES["plain"][1])
        query(BOSS, "DROP INDEX CONCURRENTLY x")
        writer.close()


def is_valid(index):
    """None: there is no such index."""
    return value(BOSS, f"SELECT (SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('{index}'))")


def ended_under_load(kind):
    """Each of the commands beside writers, ended at a moment of chance. What it leaves is valid and
    has the rows, or is invalid and can be dropped; writers notice nothing."""
    make_table(kind)
    query(BOSS, "CREATE INDEX x ON t (v)")
    writers = [Writer(n) for n in range(3)]
    for writer in writers:
        writer.start()
    chance, ended = random.Random(kind), dict.fromkeys(COMMANDS, 0)
    for turn in range(8):
        for sql in COMMANDS:
            if sql.startswith("CREATE"):
                query(BOSS, "DROP INDEX IF EXISTS x")
            elif is_valid("x") is None:
                query(BOSS, "CREATE INDEX x ON t (v)")
            command = Command(sql)
            command.join(chance.random() / 10)
            query(BOSS, f"SELECT {ENDS[turn % 2]}(%s)", (command.pid,))
            command.join()
            ended[sql] += command.error is not None
            check(f"{kind} under load: {sql}: it ends, or is ended", command.error is None or
                  command.error.pgcode in (None, "57014", "57P01"), command.error)
            for index, in query(BOSS, LEFT):
                query(BOSS, f"DROP INDEX CONCURRENTLY {index}")
    for writer in writers:
        writer.stopped = True
    for writer in writers:
        writer.join()
    check(f"{kind} under load: commands were ended", all(ended.values()), ended)
    check(f"{kind} under load: writers see no error of their own", all(w.error is None for w in writers),
          [repr(w.error) for w in writers])
    query(BOSS, "CREATE INDEX CONCURRENTLY IF NOT EXISTS x ON t (v)")
    compare(f"{kind} under load", INDEXES["plain"][1])


ENDS = ("pg_cancel_backend", "pg_terminate_backend")
COMMANDS = ("CREATE INDEX CONCURRENTLY x ON t (v)", "REINDEX INDEX CONCURRENTLY x", "DROP INDEX CONCURRENTLY x")
LEFT = "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = 't'::regclass AND NOT indisvalid"


def of_each_kind(test):
    @functools.wraps(test)
    def run_all():
        for kind in KINDS:
            test(kind)
    return run_all


def dropped_beside_writers():
    """Writers go on while the index leaves. A scan of it that is under way finds all its rows."""
    for kind in KINDS:
        make_table(kind)
        query(BOSS, "CREATE INDEX x ON t (v); CREATE INDEX y ON t (w)")
        old = connect(DATABASE, options="-c enable_seqscan=off -c enable_bitmapscan=off -c enable_sort=off")
        query(old, "BEGIN; DECLARE c CURSOR FOR SELECT v FROM t WHERE v >= 0 ORDER BY v")
        first = query(old, "FETCH 100 c")
        writers = [Writer(n) for n in range(2)]
        for writer in writers:
            writer.start()
        drop = Command("DROP INDEX CONCURRENTLY x")
        must_come(drop.waits)
        before = [w.done for w in writers]
        must_come(lambda: all(w.error or w.done > n + 3 for w, n in zip(writers, before)))
        rest = query(old, "FETCH ALL c")
        whole = len(first) + len(rest) == 2000 and rest == sorted(rest)
        check(f"{kind} drop: the scan ends with all rows", whole, len(rest))
        query(old, "COMMIT")
        drop.join()
        for writer in writers:
            writer.stopped = True
        for writer in writers:
            writer.join()
        check(f"{kind} drop: it ends", drop.error is None, drop.error)
        check(f"{kind} drop: writers see no error of their own", all(w.error is None for w in writers),
              [repr(w.error) for w in writers])
        query(BOSS, "ALTER INDEX y RENAME TO x")
        compare(f"{kind} drop: another index", "w BETWEEN 0 AND 1000")
        old.close()


# What a crash meets in its middle, with a command that makes ready for it, and the index that the
# command has left.
CUT_OFF = {
    "CREATE INDEX CONCURRENTLY x ON t (v)": ("SELECT", "x"),
    "REINDEX INDEX CONCURRENTLY x": ("CREATE INDEX x ON t (v)", "x_ccnew"),
    "DROP INDEX CONCURRENTLY x": ("CREATE INDEX x ON t (v)", "x"),
}


def cut_off_by_a_crash(kind):
    """After recovery the index that the command has left is invalid, and can be dropped; a valid
    one has the rows of the table. An unlogged table is empty."""
    global BOSS
    query(BOSS, f"ALTER DATABASE {DATABASE} SET synchronous_commit = on")
    BOSS.close()
    BOSS = connect(DATABASE)
    for sql, (before, left) in CUT_OFF.items():
        name = f"{kind} crash in {sql.split(' CONC')[0]}"
        make_table(kind)
        query(BOSS, before)
        writer = connect(DATABASE)
        query(writer, "BEGIN; UPDATE t SET v = 0 WHERE id = 1")
        command = Command(sql)
        must_come(command.waits)
        query(BOSS, "INSERT INTO t VALUES (6000, 5, 1, 6000, '{1}', 7); UPDATE t SET v = 6 WHERE id = 2")
        server("crash")
        command.join()
        writer.close()
        BOSS = connect(DATABASE)
        check(f"{name}: the command fails", command.error is not None)
        check(f"{name}: an invalid index is left",
              is_valid(left) is False)
        equal(f"{name}: committed rows are there", query(BOSS, "SELECT id, v FROM t WHERE id IN (1, 2, 6000) ORDER BY id"),
              [(1, 1), (2, 6), (6000, 5)] if kind == "permanent" else [])
        if left != "x":
            compare(f"{name}: the old index", INDEXES["plain"][1])
        query(BOSS, "INSERT INTO t VALUES (6001, 5, 1, 6001, '{1}', 7)")
        query(BOSS, f"DROP INDEX CONCURRENTLY {left}")
        query(BOSS, "DROP INDEX IF EXISTS x")
        query(BOSS, "CREATE INDEX CONCURRENTLY x ON t (v)")
        compare(f"{name}: a new index", INDEXES["plain"][1])


def primary_keys(kind):
    """They are left out; the other indexes of their table are not."""
    make_table(kind)
    query(BOSS, "CREATE INDEX x ON t (v)")
    key, other = files()
    query(BOSS, "REINDEX TABLE CONCURRENTLY t")
    equal(f"{kind} REINDEX TABLE leaves out the primary key", (files()[0] == key, files()[1] == other), (True, False))
    query(BOSS, "REINDEX INDEX CONCURRENTLY t_pkey")
    equal(f"{kind} REINDEX INDEX leaves it out", files()[0], key)
    compare(f"{kind} REINDEX TABLE", INDEXES["plain"][1])


def files():
    return [value(BOSS, f"SELECT pg_relation_filenode('{name}')") for name in ("t_pkey", "x")]


def run():
    global BOSS
    BOSS = make_database(DATABASE)
    query(BOSS, "CREATE EXTENSION amcheck")
    try:
        both = (unique_keys, undone_rows, rows_of_each_phase, heard_in_a_statement, ended_in_the_middle, ended_under_load,
                primary_keys, cut_off_by_a_crash)
        main(indexes_beside_writers, dropped_beside_writers, *map(of_each_kind, both))
    finally:
        BOSS.close()
        drop_database(DATABASE)


if __name__ == "__main__":
    run()
