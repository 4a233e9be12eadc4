#!/usr/bin/python3
"""Deferred additions (mixedcc.defer_additions, INV-DEFERRED). Each way in which a transaction can
look at a row shows its own additions. Two that add to one row both commit. Rollbacks to savepoints
take back what they should. What a statement has answered is true at the commit, or the transaction
fails. The histories of such transactions are in isolation/history.

`deferred --faults` needs a build with the feature `faults`: each fault fails one of the checks."""

import functools
import sys
import threading

import psycopg2

from lib import protocols
from lib.common import check, connect, create_table, drop_database, equal, main, make_database, must_be_found, query, value

DATABASE = "process_deferred"
OPTIONS = "-c default_transaction_isolation=serializable -c lock_timeout=5s -c deadlock_timeout=20ms"
# What sessions have besides, in the test of faults.
FAULT = ""
ADD = "UPDATE t SET n = n + 1 WHERE id = 1"
# What must show an addition of the same transaction to row 1: a query whose answer is n.
LOOKS = {
    "by key": "SELECT n FROM t WHERE id = 1",
    "whole row": "SELECT (t).n FROM t WHERE id = 1",
    "for update": "SELECT n FROM t WHERE id = 1 FOR UPDATE",
    "range": "SELECT max(n) FROM t WHERE id BETWEEN 1 AND 1",
    "sequential": "SELECT n FROM t WHERE id + 0 = 1",
    "other index": "SELECT n FROM t WHERE branch = 7",
    "join": "SELECT t.n FROM t JOIN u USING (id) WHERE u.id = 1",
    "returning": "UPDATE t SET m = m WHERE id = 1 RETURNING n",
    "native": "SELECT (mixedcc.get(NULL::t, 1)).n",
    "native range": "SELECT n FROM mixedcc.range_scan(NULL::t, 1, 1)",
    "function": "SELECT look()",
    "cursor": "FETCH ALL FROM c",
    "by tid": "SELECT n FROM t WHERE ctid = (SELECT ctid FROM t WHERE id = 1)",
    "sample": "SELECT n FROM t TABLESAMPLE SYSTEM (100) WHERE id = 1",
    "copied": "SELECT n FROM copied()",
}
BEFORE = {"cursor": "DECLARE c CURSOR FOR SELECT n FROM t WHERE id = 1"}


def make(boss, protocol):
    query(boss, "DROP TABLE IF EXISTS t, u CASCADE")
    create_table(boss, "t", "id int PRIMARY KEY, branch int, n int, m numeric(12,2), name text", protocol=protocol)
    create_table(boss, "u", "id int PRIMARY KEY, n smallint NOT NULL, positive int CHECK (positive >= 0)", protocol=protocol)
    query(boss, """INSERT INTO t SELECT i, i * 7, 0, 0, 'name ' || i FROM generate_series(1, 20) i;
        INSERT INTO u SELECT i, 0, 0 FROM generate_series(1, 20) i;
        CREATE INDEX ON t (branch); ANALYZE t;
        CREATE OR REPLACE FUNCTION look() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT n FROM t WHERE id = 1); END';
        CREATE OR REPLACE FUNCTION copied() RETURNS TABLE (n int) LANGUAGE plpgsql AS
        'BEGIN CREATE TEMP TABLE x ON COMMIT DROP AS SELECT t.n FROM t WHERE id = 1; RETURN QUERY SELECT x.n FROM x; END'""")


def session(defers="on"):
    return connect(DATABASE, options=f"{OPTIONS} -c mixedcc.defer_additions={defers} {FAULT}")


def code(connection, sql):
    try:
        query(connection, sql)
        return "ok"
    except psycopg2.Error as error:
        return error.pgcode


def looks(name):
    mine = session()
    for way, look in LOOKS.items():
        query(mine, "BEGIN")
        query(mine, f"{ADD}; {ADD}")
        if way in BEFORE:
            query(mine, BEFORE[way])
        try:
            seen = value(mine, look)
        except psycopg2.Error as error:
            seen = str(error)
        query(mine, "ROLLBACK")
        equal(f"deferred {name}: an own addition is seen, {way}", seen, 2)
    equal(f"deferred {name}: nothing of it stays", value(mine, "SELECT n FROM t WHERE id = 1"), 0)
    mine.close()


def together(name):
    """Two transactions add to one row; neither waits, and neither fails, under whatever validates
    or locks rows."""
    one, other = session(), session()
    for connection in (one, other):
        query(connection, "BEGIN")
        query(connection, ADD)
        equal(f"deferred {name}: the answer has what was not changed",
              query(connection, "UPDATE t SET n = n + 10, m = m - 1.5 WHERE id = 2 RETURNING id, name"), [(2, "name 2")])
    equal(f"deferred {name}: who has added first commits", (code(one, "COMMIT"), code(other, "COMMIT")), ("ok", "ok"))
    equal(f"deferred {name}: no addition is lost",
          query(one, "SELECT n, m FROM t WHERE id <= 2 ORDER BY id"), [(2, 0), (20, -3)])
    query(one, "UPDATE t SET n = 0, m = 0")
    one.close()
    other.close()


def crowd(name, sessions=4, each=40):
    """Additions to a few rows, in any order, with looks in between: none is lost."""
    problems = []

    def run(number):
        mine = session()
        done = 0
        while done < each:
            try:
                query(mine, "BEGIN")
                for k in range(3):
                    row = (number * 7 + done * 3 + k * (1 if number % 2 else 2)) % 3 + 1
                    query(mine, f"UPDATE t SET n = n + 1 WHERE id = {row}")
                    query(mine, f"SELECT name FROM t WHERE id = {row}")
                if done % 5 == 0:
                    query(mine, "SELECT sum(n) FROM t")
                query(mine, "COMMIT")
                done += 1
            except psycopg2.Error as error:
                if error.pgcode not in ("40001", "40P01"):
                    problems.append(str(error))
                    return
                query(mine, "ROLLBACK")
        mine.close()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(sessions)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    boss = connect(DATABASE)
    check(f"deferred {name}: a crowd meets no error", not problems, problems[:2])
    equal(f"deferred {name}: a crowd loses nothing", value(boss, "SELECT sum(n) FROM t"), sessions * each * 3)
    query(boss, "UPDATE t SET n = 0")
    boss.close()


def savepoints(name):
    mine = session()
    for what, commands, n in (
        ("undone", f"SAVEPOINT s; {ADD}; ROLLBACK TO s", 0),
        ("kept", f"SAVEPOINT s; {ADD}; RELEASE s", 1),
        ("of before, looked at and undone", f"{ADD}; SAVEPOINT s; SELECT * FROM t; ROLLBACK TO s", 1),
        ("of before, looked at, undone, looked at", f"{ADD}; SAVEPOINT s; SELECT * FROM t; ROLLBACK TO s; SELECT * FROM t", 1),
        ("of before and within", f"{ADD}; SAVEPOINT s; {ADD}; SELECT * FROM t; {ADD}; ROLLBACK TO s", 1),
        ("two deep, kept", f"{ADD}; SAVEPOINT s; {ADD}; SAVEPOINT r; SELECT * FROM t; {ADD}; RELEASE r; RELEASE s", 3),
        ("two deep, the outer one undone", f"{ADD}; SAVEPOINT s; {ADD}; SAVEPOINT r; SELECT * FROM t; RELEASE r; ROLLBACK TO s", 1),
        ("written beside", f"{ADD}; SAVEPOINT s; UPDATE t SET n = 40 WHERE id = 1; ROLLBACK TO s; {ADD}", 2),
        ("deleted beside", f"{ADD}; SAVEPOINT s; DELETE FROM t WHERE id = 1; ROLLBACK TO s", 1),
        ("truncated beside", f"{ADD}; SAVEPOINT s; TRUNCATE t; ROLLBACK TO s", 1),
    ):
        for command in ["BEGIN", *commands.split("; "), "COMMIT"]:
            query(mine, command)
        equal(f"deferred {name}: {what}", value(mine, "SELECT n FROM t WHERE id = 1"), n)
        query(mine, "UPDATE t SET n = 0")
    mine.close()


def answers(name):
    """What a statement has told is true at the commit, or the transaction fails."""
    mine, other = session(), session("off")
    if defers(name):
        for what, change in (("is gone", "DELETE FROM t WHERE id = 3"), ("has another name", "UPDATE t SET name = 'new' WHERE id = 3")):
            query(mine, "BEGIN")
            query(mine, "UPDATE t SET n = n + 1 WHERE id = 3 RETURNING name")
            query(other, change)
            equal(f"deferred {name}: a row that {what} fails the commit", code(mine, "COMMIT"), "40001")
            query(other, "DELETE FROM t WHERE id = 3; INSERT INTO t VALUES (3, 21, 0, 0, 'name 3')")
    query(other, "UPDATE t SET n = 2147483647 WHERE id = 4")
    equal(f"deferred {name}: an overflow that the statement sees is its error", code(mine, "UPDATE t SET n = n + 1 WHERE id = 4"), "22003")
    query(mine, "BEGIN")
    equal(f"deferred {name}: a row that is not there", code(mine, "UPDATE t SET n = n + 1 WHERE id = 400"), "ok")
    query(mine, "ROLLBACK")
    equal(f"deferred {name}: CHECK", code(mine, "UPDATE u SET positive = positive - 1 WHERE id = 1"), "23514")
    if defers(name):
        query(other, "UPDATE u SET positive = 1 WHERE id = 2")
        query(mine, "BEGIN")
        equal(f"deferred {name}: a CHECK that holds", code(mine, "UPDATE u SET positive = positive - 1 WHERE id = 2"), "ok")
        query(other, "UPDATE u SET positive = 0 WHERE id = 2")
        try:
            query(mine, "COMMIT")
            failed = None
        except psycopg2.Error as error:
            failed = error.pgcode, error.diag.constraint_name
        equal(f"deferred {name}: a CHECK that fails at the end", failed, ("23514", "u_positive_check"))
        equal(f"deferred {name}: nothing of it stays", value(other, "SELECT positive FROM u WHERE id = 2"), 0)
    equal(f"deferred {name}: NOT NULL", code(mine, "UPDATE u SET n = n + NULL WHERE id = 1"), "23502")
    query(mine, "UPDATE u SET n = n + 1 WHERE id = 1")
    equal(f"deferred {name}: a smallint", value(mine, "SELECT n FROM u WHERE id = 1"), 1)
    query(other, "DROP TABLE IF EXISTS z")
    create_table(other, "z", "id int PRIMARY KEY, at timestamptz", protocol=name)
    query(other, "INSERT INTO z VALUES (1, '2026-01-01 12:00+00')")
    query(mine, "SET timezone = 'UTC'; BEGIN")
    query(mine, "UPDATE z SET at = at::date WHERE id = 1")
    query(mine, "SET LOCAL timezone = 'Asia/Tokyo'; COMMIT")
    equal(f"deferred {name}: casts that depend on settings do not wait", value(mine, "SELECT at = '2026-01-01 00:00+00' FROM z"), True)
    query(mine, "BEGIN")
    query(mine, "UPDATE t SET n = n + 1 WHERE id = 5")
    query(mine, "PREPARE TRANSACTION 'deferred'")
    query(mine, "COMMIT PREPARED 'deferred'")
    equal(f"deferred {name}: PREPARE TRANSACTION", value(mine, "SELECT n FROM t WHERE id = 5"), 1)
    mine.close()
    other.close()


def foreign_keys(name):
    """Additions to rows of tables with foreign keys, on both sides."""
    boss = connect(DATABASE)
    query(boss, "DROP TABLE IF EXISTS leaf, child, parent CASCADE")
    create_table(boss, "parent", "id int PRIMARY KEY, n int", protocol=name)
    create_table(boss, "child", """id int PRIMARY KEY, n int, number int, above int REFERENCES child,
        parent int REFERENCES parent ON UPDATE CASCADE ON DELETE CASCADE DEFERRABLE""", protocol=name)
    create_table(boss, "leaf", "id int PRIMARY KEY, n int, child int REFERENCES child", protocol=name)
    query(boss, """INSERT INTO parent SELECT i, 0 FROM generate_series(1, 9) i;
        INSERT INTO child SELECT i, 0, 1, 1, i FROM generate_series(1, 9) i""")
    one, other = session(), session()
    both = [f"UPDATE {table} SET n = n + 1 WHERE id = 1" for table in ("parent", "child")]
    if defers(name):
        for n, mine in enumerate((one, other)):
            for command in ("BEGIN", *both):
                equal(f"deferred {name}: tables with foreign keys, {command}, {n}", code(mine, command), "ok")
        # Its check looks at the child, and so makes the addition there.
        equal(f"deferred {name}: tables with foreign keys, an INSERT", code(one, "INSERT INTO leaf VALUES (1, 0, 1)"), "ok")
        equal(f"deferred {name}: both commit", (code(one, "COMMIT"), code(other, "COMMIT")), ("ok", "ok"))
        equal(f"deferred {name}: no addition beside foreign keys is lost",
              query(boss, "SELECT p.n, c.n FROM parent p, child c WHERE p.id = 1 AND c.id = 1"), [(2, 2)])
        query(one, f"BEGIN; {both[1]}")
        equal(f"deferred {name}: a parent that was deleted takes its child along",
              code(other, "UPDATE child SET above = NULL; DELETE FROM leaf; DELETE FROM parent WHERE id = 1"), "ok")
        equal(f"deferred {name}: an addition to that child fails", code(one, "COMMIT"), "40001")
    # A row that this transaction inserted: the check of the insert leaves rows that were updated
    # to the check of the update.
    for way, commands in (
        ("own row", "INSERT INTO child VALUES (20, 0, 1, NULL, 99); UPDATE child SET n = n + 1 WHERE id = 20"),
        ("own row, looked at", "INSERT INTO child VALUES (20, 0, 1, NULL, 99); UPDATE child SET n = n + 1 WHERE id = 20; TABLE child"),
        ("row with another parent", "UPDATE child SET parent = 99 WHERE id = 2; UPDATE child SET n = n + 1 WHERE id = 2"),
        ("addition before", "UPDATE child SET n = n + 1 WHERE id = 2; UPDATE child SET parent = 99 WHERE id = 2"),
        ("key", "UPDATE child SET parent = parent + 99 WHERE id = 2"),
    ):
        query(one, "BEGIN; SET CONSTRAINTS ALL DEFERRED")
        for command in commands.split("; "):
            equal(f"deferred {name}: {way}, {command}", code(one, command), "ok")
        equal(f"deferred {name}: {way}: no parent", code(one, "COMMIT"), "23503")
    for command in ("BEGIN", "UPDATE child SET n = n + 1 WHERE id = 3", "UPDATE parent SET n = n + 1 WHERE id = 3",
                    "UPDATE parent SET id = 30 WHERE id = 3", "COMMIT"):
        equal(f"deferred {name}: ON UPDATE CASCADE, {command}", code(one, command), "ok")
    equal(f"deferred {name}: an addition and ON UPDATE CASCADE", query(boss, """SELECT c.n, p.n FROM child c
        JOIN parent p ON c.parent = p.id WHERE p.id = 30"""), [(1, 1)])
    for mine in (one, other, boss):
        mine.close()


def parameters(name):
    mine = session()
    query(mine, "PREPARE add (int, numeric) AS UPDATE t SET n = n + $1, m = m + $2 WHERE id = 6")
    for _ in range(8):
        query(mine, "BEGIN")
        query(mine, "EXECUTE add (2, 0.5)")
        query(mine, "EXECUTE add (1, -0.25)")
        query(mine, "COMMIT")
    query(mine, """DO $$ DECLARE d int; BEGIN FOR d IN 1..100 LOOP UPDATE t SET n = n + d WHERE id = 7; END LOOP; END $$""")
    query(mine, "BEGIN; SAVEPOINT s; UPDATE t SET n = n + 1 WHERE id = 9; SAVEPOINT r")
    query(mine, "DO $$ DECLARE d int; BEGIN FOR d IN 1..5000 LOOP UPDATE t SET n = n + 1 WHERE id = 8; END LOOP; END $$")
    kept = value(mine, "SELECT coalesce(sum(total_bytes), 0) FROM pg_backend_memory_contexts WHERE name LIKE 'mixedcc%addition'")
    query(mine, "RELEASE s; COMMIT")
    query(mine, "UPDATE t SET n = 2147483647 WHERE id = 10; BEGIN")
    query(mine, """DO $$ BEGIN FOR i IN 1..2000 LOOP BEGIN UPDATE t SET n = n + 1 WHERE id = 10;
        EXCEPTION WHEN numeric_value_out_of_range THEN NULL; END; END LOOP; END $$""")
    kept = max(kept, value(mine, "SELECT coalesce(sum(total_bytes), 0) FROM pg_backend_memory_contexts WHERE name LIKE 'mixedcc%addition'"))
    query(mine, "ROLLBACK")
    check(f"deferred {name}: additions that were made, or failed, keep no memory", kept < 1_000_000, kept)
    equal(f"deferred {name}: parameters, many", value(mine, "SELECT n FROM t WHERE id = 8"), 5000)
    equal(f"deferred {name}: parameters", query(mine, "SELECT n, m FROM t WHERE id IN (6, 7) ORDER BY id"), [(24, 2), (5050, 0)])
    mine.close()


def defers(protocol):
    """Where a transaction holds the partition in any case, nothing is deferred."""
    return protocol != "partcc"


def test_deferred(only=None):
    boss = make_database(DATABASE)
    for protocol in [only] if only else protocols.ALL:
        make(boss, protocol)
        looks(protocol)
        if defers(protocol):
            together(protocol)
        crowd(protocol)
        savepoints(protocol)
        answers(protocol)
        foreign_keys(protocol)
        parameters(protocol)
    boss.close()
    drop_database(DATABASE)


FAULTS = {"looks_beside_deferred": "deferred occ: an own addition is seen, sequential",
          "deferred_outlives": "deferred occ: undone",
          "answers_forgotten": "deferred occ: a row that has another name fails the commit"}


def test_faults():
    global FAULT
    boss = make_database(DATABASE)
    has_faults = value(boss, "SELECT current_setting('mixedcc.fault', true)") is not None
    boss.close()
    if not has_faults:
        return check("deferred: the build has no deliberate faults", False)
    for fault, found_by in FAULTS.items():
        FAULT = f"-c mixedcc.fault={fault}"
        must_be_found(fault, found_by, functools.partial(test_deferred, "occ"))


if __name__ == "__main__":
    main(test_faults if "--faults" in sys.argv else test_deferred, lambda: drop_database(DATABASE))
