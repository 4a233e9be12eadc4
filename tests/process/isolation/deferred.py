#!/usr/bin/python3
"""Deferred additions (mixedcc.defer_additions, INV-DEFERRED). Each way in which a transaction can
look at a row shows its own additions. Two that add to one row both commit. Rollbacks to savepoints
take back what they should. What a statement has answered is true at the commit, or the transaction
fails. The histories of such transactions are in isolation/history.

`deferred --faults` needs a build with the feature `faults`: each fault fails one of the checks."""

import functools
import random
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


def seen(name):
    """Statements have seen an addition in a savepoint that is rolled back: that counts."""
    mine, tight = session(), connect(DATABASE, options="-c lock_timeout=150ms")
    for what, before, within in (("before", ADD, "SELECT 1"), ("within", "SELECT 1", ADD)):
        query(mine, "BEGIN")
        query(mine, f"{before}; SAVEPOINT s; {within}")
        equal(f"deferred {name}: an addition of {what} the savepoint is seen", value(mine, "SELECT n FROM t WHERE id = 1"), 1)
        query(mine, "ROLLBACK TO s")
        changed = code(tight, "UPDATE t SET n = n + 100 WHERE id = 1")
        ended = code(mine, "INSERT INTO u VALUES (100, 1, 1); COMMIT")
        query(mine, "ROLLBACK")
        check(f"deferred {name}: an addition of {what} the savepoint that was seen counts", (changed, ended) in (("55P03", "ok"), ("ok", "40001")), (changed, ended))
        query(tight, "UPDATE t SET n = 0; DELETE FROM u WHERE id = 100")
    mine.close()
    tight.close()


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
        # Its check looks at the key of the child alone.
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


def moved(name):
    """Another transaction puts the row into another record, or takes it away."""
    boss = connect(DATABASE)
    query(boss, "DROP TABLE IF EXISTS spots")
    create_table(boss, "spots", "id int PRIMARY KEY, spot int, label text UNIQUE, n int, name text", protocol=name, partitions=4, partition_by="spot")
    query(boss, "INSERT INTO spots SELECT i, i, 'l' || i, 0, 'name ' || i FROM generate_series(1, 20) i")
    mine, other = session(), session("off")
    add = "UPDATE spots SET n = n + 1 WHERE id = 3"
    for what, changes in (
        ("of an index", "UPDATE spots SET label = 'new' WHERE id = 3"),
        ("of the partition", "UPDATE spots SET spot = spot + 1 WHERE id = 3"),
        ("of both, one after the other", "UPDATE spots SET label = 'newer' WHERE id = 3; UPDATE spots SET spot = spot + 2 WHERE id = 3"),
        ("of an index, with n", "UPDATE spots SET label = 'newest', n = n + 10 WHERE id = 3"),
        ("of another index entry and back", "UPDATE spots SET id = 33 WHERE id = 3; UPDATE spots SET id = 3 WHERE id = 33"),
        ("by deletion and insertion", "DELETE FROM spots WHERE id = 3; INSERT INTO spots VALUES (3, 9, 'l3', 0, 'name 3')"),
    ):
        for look in (False, True):
            query(boss, "UPDATE spots SET n = 0, name = 'name ' || id")
            query(mine, "BEGIN")
            for command in (add, f"{add} RETURNING name", add):
                query(mine, command)
            for change in changes.split("; "):
                equal(f"deferred {name}: another transaction's change {what}", code(other, change), "ok")
            wanted = 13 if "10" in changes else 3
            if look:
                equal(f"deferred {name}: a look after a change {what}", value(mine, "SELECT n FROM spots WHERE id = 3"), wanted)
                query(mine, "SAVEPOINT s")
                query(mine, add)
                query(mine, "SELECT * FROM spots WHERE id = 3; ROLLBACK TO s")
            equal(f"deferred {name}: an addition follows a change {what}", code(mine, "COMMIT"), "ok")
            equal(f"deferred {name}: additions after a change {what}", query(boss, "SELECT n FROM spots WHERE id = 3"), [(wanted,)])
    deleted = 'An UPDATE of table "spots" was to be made at the end of the transaction (mixedcc.defer_additions). By then its row had been deleted, or had got another key.'
    for what, change, own, wanted in (
        ("a row that is gone", "DELETE FROM spots WHERE id = 4", "SELECT 1", deleted),
        ("a row with another key", "UPDATE spots SET id = 55 WHERE id = 5", "SELECT 1", deleted),
        ("a row in whose place is an own one", "DELETE FROM spots WHERE id = 6", "INSERT INTO spots VALUES (6, 6, 'l6', 0, '')", deleted),
        ("another name than was returned", "UPDATE spots SET name = '', label = 'l' WHERE id = 7", "SELECT 1", 'An UPDATE of table "spots" '
         'was to be made at the end of the transaction (mixedcc.defer_additions). By then a column that it has returned had been changed.'),
    ):
        row = change[-1]
        query(mine, "BEGIN")
        equal(f"deferred {name}: {what} is there at first",
              query(mine, f"UPDATE spots SET n = n + 1 WHERE id = {row} RETURNING name"), [(f"name {row}",)])
        query(other, change)
        try:
            query(mine, own)
            query(mine, "COMMIT")
            failed = None
        except psycopg2.Error as error:
            failed = error.pgcode, error.diag.message_detail
        query(mine, "ROLLBACK")
        equal(f"deferred {name}: {what}", failed, ("40001", wanted))
    for mine in (mine, other, boss):
        mine.close()


def keys(name):
    """Checks of foreign keys, and FOR KEY SHARE, look at the key of a row alone."""
    boss = connect(DATABASE)
    query(boss, "DROP TABLE IF EXISTS leaf, tree CASCADE")
    create_table(boss, "tree", "id int PRIMARY KEY, n int, m int", protocol=name)
    create_table(boss, "leaf", "id int PRIMARY KEY, n int, tree int REFERENCES tree", protocol=name)
    query(boss, "INSERT INTO tree SELECT i, 0, 0 FROM generate_series(1, 20) i; ANALYZE tree")
    one, other, low = session(), session("off"), connect(DATABASE, options="-c lock_timeout=5s")
    tight = connect(DATABASE, options="-c lock_timeout=150ms")
    for number, (what, before, check_) in enumerate((
        ("INSERT", "SELECT 1", "INSERT INTO leaf VALUES ({0}, 0, {0})"),
        ("INSERT behind an addition", "UPDATE tree SET n = n + 1 WHERE id = {0}", "INSERT INTO leaf VALUES ({0}, 0, {0})"),
        ("FOR KEY SHARE", "UPDATE tree SET n = n + 1 WHERE id = {0}", "SELECT id, 5 FROM tree WHERE id = {0} FOR KEY SHARE"),
    ), 1):
        added = 1 if "UPDATE" in before else 0
        query(one, "BEGIN")
        query(one, before.format(number))
        equal(f"deferred {name}: {what}", code(one, check_.format(number)), "ok")
        if defers(name):
            for mine, how in ((other, "SERIALIZABLE"), (low, "READ COMMITTED")):
                equal(f"deferred {name}: {what}: an update of the parent at {how} goes on", code(mine, f"UPDATE tree SET n = n + 10, m = 1 WHERE id = {number}"), "ok")
            added += 20
        for taken in (f"DELETE FROM tree WHERE id = {number}", f"UPDATE tree SET id = 100 WHERE id = {number}"):
            equal(f"deferred {name}: {what}: the parent cannot go, {taken}", code(tight, taken), "55P03")
        equal(f"deferred {name}: {what}: once more", code(one, check_.format(number).replace(f"({number},", f"({number + 100},")), "ok")
        equal(f"deferred {name}: {what}: commits", code(one, "INSERT INTO leaf VALUES (1000, 0, NULL); DELETE FROM leaf WHERE id = 1000; COMMIT"), "ok")
        equal(f"deferred {name}: {what}: the sum", value(boss, f"SELECT n FROM tree WHERE id = {number}"), added)
    if defers(name):
        for what, look, change in (("a column", "SELECT n FROM tree WHERE id = 5 FOR KEY SHARE", "UPDATE tree SET n = n + 1 WHERE id = 5"),
                                   ("a condition", "SELECT 1 FROM tree WHERE id = 5 AND m = 0 FOR KEY SHARE", "UPDATE tree SET n = n + 1 WHERE id = 5"),
                                   ("a system column", "SELECT xmin FROM tree WHERE id = 5 FOR KEY SHARE", "UPDATE tree SET n = n + 1 WHERE id = 5"),
                                   ("the whole row", "SELECT tree FROM tree WHERE id = 5 FOR KEY SHARE", "UPDATE tree SET n = n + 1 WHERE id = 5"),
                                   ("no key but a range", "SELECT id FROM tree WHERE id BETWEEN 5 AND 5 FOR SHARE", "UPDATE tree SET n = n + 1 WHERE id = 5"),
                                   ("a row FOR SHARE", "SELECT id FROM tree WHERE id = 5 FOR SHARE", "UPDATE tree SET n = n + 1 WHERE id = 5")):
            query(one, "BEGIN")
            query(one, look)
            waits = code(tight, change)
            ends = code(one, "INSERT INTO leaf VALUES (1000, 0, NULL); DELETE FROM leaf WHERE id = 1000; COMMIT")
            query(one, "ROLLBACK")
            check(f"deferred {name}: FOR KEY SHARE that looks at {what} protects it", (waits, ends) in (("55P03", "ok"), ("ok", "40001")), (waits, ends))
    # What a savepoint has checked counts, although it is rolled back.
    for what, check_ in (("INSERT", "INSERT INTO leaf VALUES (7, 0, 7)"), ("FOR KEY SHARE", "SELECT id FROM tree WHERE id = 7 FOR KEY SHARE")):
        query(boss, "INSERT INTO tree VALUES (7, 0, 0) ON CONFLICT DO NOTHING")
        query(one, "BEGIN; SAVEPOINT s")
        query(one, check_)
        query(one, "ROLLBACK TO s")
        gone = code(tight, "DELETE FROM tree WHERE id = 7")
        ends = code(one, "INSERT INTO leaf VALUES (1001, 0, NULL); DELETE FROM leaf WHERE id = 1001; COMMIT")
        query(one, "ROLLBACK")
        check(f"deferred {name}: {what} that is rolled back was right", (gone, ends) in (("55P03", "ok"), ("ok", "40001")), (gone, ends))
    # Reads are of one moment: a parent that came later does not fit to an earlier read.
    query(boss, "UPDATE tree SET m = 0")
    query(one, "BEGIN; SELECT m FROM tree WHERE id = 8")
    came = code(tight, "BEGIN; INSERT INTO tree VALUES (50, 0, 0); UPDATE tree SET m = 8 WHERE id = 8; COMMIT")
    query(tight, "ROLLBACK")
    try:
        found = query(one, "SELECT id FROM tree WHERE id = 50 FOR KEY SHARE") if came == "ok" else []
    except psycopg2.Error as error:
        found = error.pgcode
    check(f"deferred {name}: a parent that came later does not fit to an earlier read", found in ([], "40001"), found)
    query(one, "ROLLBACK")
    for mine in (one, other, low, tight, boss):
        mine.close()


def orphans(name, sessions=5, each=40):
    """Children come with an addition to their parent, while parents go and move: each child has a
    parent, and each parent counts its children."""
    boss = connect(DATABASE)
    query(boss, "DROP TABLE IF EXISTS counted, counter CASCADE")
    create_table(boss, "counter", "id int PRIMARY KEY, place int UNIQUE, n int", protocol=name)
    create_table(boss, "counted", "id int PRIMARY KEY, n int, counter int REFERENCES counter", protocol=name)
    query(boss, "CREATE INDEX ON counted (counter); INSERT INTO counter SELECT i, i, 0 FROM generate_series(1, 4) i")
    problems = []

    def run(number):
        mine = session()
        dice = random.Random(number)
        place = 1000 * (number + 1)
        done = 0
        while done < each:
            row, place = dice.randint(1, 4), place + 1
            comes = [f"UPDATE counter SET n = n + 1 WHERE id = {row}", f"INSERT INTO counted VALUES ({place}, 0, {row})"]
            act = dice.random()
            if number > 0:
                dice.shuffle(comes)
                if act < 0.3:
                    undone = f"INSERT INTO counted VALUES ({place + 500}, 0, {row % 4 + 1})"
                    comes = ["SAVEPOINT s", undone, "ROLLBACK TO s", *comes]
                elif act < 0.5:
                    comes = ["SAVEPOINT s", comes[0], "SELECT sum(n) FROM counter", "ROLLBACK TO s", *comes]
            elif act < 0.5:
                comes = [f"UPDATE counter SET place = {place} WHERE id = {row}"]
            else:
                comes = [f"DELETE FROM counted WHERE counter = {row}", f"DELETE FROM counter WHERE id = {row}",
                         f"INSERT INTO counter VALUES ({row}, {place}, 0)"][:2 if act < 0.7 else 3]
                if act < 0.7:
                    comes += ["SAVEPOINT s", "SELECT 1", f"INSERT INTO counter VALUES ({row}, {place}, 0)"]
            try:
                query(mine, "BEGIN")
                for command in comes:
                    query(mine, command)
                query(mine, "COMMIT")
                done += 1
            except psycopg2.Error as error:
                query(mine, "ROLLBACK")
                if error.pgcode not in ("40001", "40P01"):
                    problems.append(str(error))
                    return
        mine.close()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(sessions)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    check(f"deferred {name}: parents that go meet no error", not problems, problems[:2])
    equal(f"deferred {name}: parents count their children", query(boss, """SELECT id, n, (SELECT count(*) FROM counted c WHERE c.counter = p.id)
        FROM counter p WHERE n <> (SELECT count(*) FROM counted c WHERE c.counter = p.id)"""), [])
    equal(f"deferred {name}: no child is without its parent",
          value(boss, "SELECT count(*) FROM counted c WHERE NOT EXISTS (SELECT FROM counter p WHERE p.id = c.counter)"), 0)
    boss.close()


def constraints(name):
    """Partitioned tables, constraints that are not valid, and triggers that do not fire."""
    boss = connect(DATABASE)
    query(boss, "DROP TABLE IF EXISTS branch, parted, root CASCADE")
    create_table(boss, "root", "id int PRIMARY KEY, n int, positive int", protocol=name)
    query(boss, "CREATE TABLE parted (id int PRIMARY KEY, n int, root int REFERENCES root) PARTITION BY RANGE (id)")
    for low in (0, 10):
        query(boss, f"CREATE TABLE parted{low} PARTITION OF parted FOR VALUES FROM ({low}) TO ({low + 10}) USING mixedcc WITH (mixedcc.protocol = '{name}')")
    create_table(boss, "branch", "id int PRIMARY KEY, n int, root int", protocol=name)
    query(boss, """INSERT INTO root SELECT i, 0, 0 FROM generate_series(1, 9) i; INSERT INTO parted SELECT i, 0, i % 9 + 1 FROM generate_series(1, 19) i;
        INSERT INTO branch SELECT i, 0, i FROM generate_series(1, 12) i;
        ALTER TABLE branch ADD CONSTRAINT branch_fk FOREIGN KEY (root) REFERENCES root NOT VALID;
        ALTER TABLE root ADD CONSTRAINT root_check CHECK (positive > 0) NOT VALID""")
    one, other = session(), session()
    for table in ("parted", "parted0", "parted10"):
        row = 15 if table == "parted10" else 5
        query(boss, "UPDATE parted SET n = 0; UPDATE root SET positive = 1, n = 0")
        query(one, "BEGIN")
        for command in (f"UPDATE {table} SET n = n + 1 WHERE id = {row}", "UPDATE root SET n = n + 1 WHERE id = 1",
                        f"UPDATE {table} SET n = n + 1 WHERE id = {row}", f"INSERT INTO parted VALUES ({row + 4 if row == 15 else 0}, 0, 1) ON CONFLICT DO NOTHING"):
            equal(f"deferred {name}: {table}, {command}", code(one, command), "ok")
        if table == "parted":
            equal(f"deferred {name}: {table}, to another partition", code(one, "UPDATE parted SET id = 16 WHERE id = 16; DELETE FROM parted10 WHERE id = 17; UPDATE parted SET id = 17 WHERE id = 5"), "ok")
            row = 17
        equal(f"deferred {name}: {table} shows own additions", value(one, f"SELECT n FROM parted WHERE id = {row}"), 2)
        equal(f"deferred {name}: {table} commits", code(one, "COMMIT"), "ok")
        equal(f"deferred {name}: {table} has the sum", query(boss, f"SELECT p.n, r.n FROM parted p, root r WHERE p.id = {row} AND r.id = 1"), [(2, 1)])
        query(boss, "UPDATE parted SET id = 5 WHERE id = 17 AND n = 2")
    # A parent that is partitioned.
    query(boss, "DROP TABLE IF EXISTS twig")
    create_table(boss, "twig", "id int PRIMARY KEY, n int, parted int REFERENCES parted", protocol=name)
    query(one, "BEGIN; UPDATE parted SET n = n + 1 WHERE id = 5; INSERT INTO twig VALUES (1, 0, 5); UPDATE twig SET n = n + 1 WHERE id = 1")
    equal(f"deferred {name}: a child of a partitioned table", code(one, "COMMIT"), "ok")
    equal(f"deferred {name}: a child of a partitioned table without a parent", code(one, "INSERT INTO twig VALUES (2, 0, 55)"), "23503")
    # Constraints that are not valid hold for new rows.
    query(boss, "ALTER TABLE root DROP CONSTRAINT root_check; UPDATE root SET positive = 0 WHERE id = 2; UPDATE root SET positive = 1 WHERE id = 3")
    query(boss, "ALTER TABLE root ADD CONSTRAINT root_check CHECK (positive > 0) NOT VALID")
    equal(f"deferred {name}: CHECK NOT VALID, broken before", code(one, "UPDATE root SET n = n + 1 WHERE id = 2"), "23514")
    equal(f"deferred {name}: CHECK NOT VALID, mended", code(one, "UPDATE root SET positive = positive + 1 WHERE id = 2"), "ok")
    query(one, "BEGIN")
    equal(f"deferred {name}: CHECK NOT VALID, holds", code(one, "UPDATE root SET positive = positive - 1 WHERE id = 3 AND true"), "23514")
    query(one, "ROLLBACK; BEGIN")
    equal(f"deferred {name}: CHECK NOT VALID, holds at first", code(one, "UPDATE root SET positive = positive + 1 WHERE id = 3"), "ok")
    if defers(name):
        query(boss, "UPDATE root SET positive = 5 WHERE id = 4")
        query(other, "BEGIN; UPDATE root SET positive = positive - 3 WHERE id = 4")
        query(boss, "UPDATE root SET positive = 2 WHERE id = 4")
        equal(f"deferred {name}: CHECK NOT VALID, broken at the end", code(other, "COMMIT"), "23514")
    equal(f"deferred {name}: CHECK NOT VALID, holds at the end", code(one, "COMMIT"), "ok")
    query(one, "BEGIN")
    for command, wanted in (("UPDATE branch SET n = n + 1 WHERE id = 11", "ok"), ("UPDATE root SET n = n + 1 WHERE id = 3", "ok"),
                            ("INSERT INTO branch VALUES (20, 0, 3)", "ok"), ("SAVEPOINT s", "ok"), ("INSERT INTO branch VALUES (21, 0, 99)", "23503"),
                            ("ROLLBACK TO s", "ok"), ("COMMIT", "ok")):
        equal(f"deferred {name}: FOREIGN KEY NOT VALID, {command}", code(one, command), wanted)
    equal(f"deferred {name}: FOREIGN KEY NOT VALID, the sums", query(boss, "SELECT b.n, r.n FROM branch b, root r WHERE b.id = 11 AND r.id = 3"), [(1, 1)])
    # Triggers that do not fire.
    query(boss, "DROP TABLE IF EXISTS fired")
    create_table(boss, "fired", "what text", protocol=name)
    query(boss, """CREATE OR REPLACE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN INSERT INTO fired VALUES (TG_OP || NEW.n); RETURN NEW; END';
        CREATE TRIGGER fire AFTER UPDATE ON branch FOR EACH ROW EXECUTE FUNCTION fire()""")
    for number, (what, before, after, wanted, fires) in enumerate((
        ("all triggers", "SELECT 1", "SELECT 1", "23503", True),
        ("session_replication_role = replica", "SET session_replication_role = replica", "RESET session_replication_role", "ok", False),
        ("DISABLE TRIGGER ALL", "ALTER TABLE branch DISABLE TRIGGER ALL; ALTER TABLE root DISABLE TRIGGER ALL",
         "ALTER TABLE branch ENABLE TRIGGER ALL; ALTER TABLE root ENABLE TRIGGER ALL", "ok", False),
        ("DISABLE TRIGGER USER", "ALTER TABLE branch DISABLE TRIGGER USER", "ALTER TABLE branch ENABLE TRIGGER USER", "23503", False),
        ("ENABLE REPLICA TRIGGER", "ALTER TABLE branch ENABLE REPLICA TRIGGER fire; SET session_replication_role = replica",
         "RESET session_replication_role; ALTER TABLE branch ENABLE TRIGGER fire", "ok", True),
        ("all triggers again", "SELECT 1", "SELECT 1", "23503", True),
    )):
        query(boss, "UPDATE root SET n = 0; TRUNCATE fired; DELETE FROM branch WHERE id >= 30")
        query(boss, "ALTER TABLE branch DISABLE TRIGGER ALL; UPDATE branch SET n = 0 WHERE id = 5; ALTER TABLE branch ENABLE TRIGGER ALL")
        query(one, before)
        query(one, "BEGIN; UPDATE branch SET n = n + 1 WHERE id = 5; UPDATE root SET n = n + 1 WHERE id = 5; SAVEPOINT s")
        equal(f"deferred {name}: {what}: a child without parent", code(one, f"INSERT INTO branch VALUES ({number + 30}, 0, 99)"), wanted)
        query(one, "ROLLBACK TO s")
        equal(f"deferred {name}: {what}: a child", code(one, f"INSERT INTO branch VALUES ({number + 40}, 0, 5)"), "ok")
        equal(f"deferred {name}: {what}: commits", code(one, "COMMIT"), "ok")
        equal(f"deferred {name}: {what}: the sums and what fired", (query(boss, "SELECT b.n, r.n FROM branch b, root r WHERE b.id = 5 AND r.id = 5"),
              value(boss, "SELECT count(*) FROM fired")), ([(1, 1)], int(fires)))
        query(one, after)
    query(boss, "DROP TABLE twig, branch, parted, root CASCADE")
    for mine in (one, other, boss):
        mine.close()


def told(name):
    """What the answer or the error of an UPDATE in a savepoint has told counts after a rollback."""
    mine, tight = session(), connect(DATABASE, options="-c lock_timeout=150ms")
    for what, n in (("answer", 0), ("error", 2147483647)):
        query(mine, f"UPDATE t SET n = {n} WHERE id = 1")
        query(mine, "BEGIN; SAVEPOINT s")
        code(mine, ADD)
        query(mine, "ROLLBACK TO s")
        changed = code(tight, "UPDATE t SET n = 5 WHERE id = 1")
        ended = code(mine, "INSERT INTO u VALUES (100, 1, 1); COMMIT")
        query(mine, "ROLLBACK")
        check(f"deferred {name}: an {what} in a savepoint counts", (changed, ended) in (("55P03", "ok"), ("ok", "40001")), (changed, ended))
        query(tight, "UPDATE t SET n = 0 WHERE id = 1; DELETE FROM u WHERE id = 100")
    query(mine, "BEGIN")
    query(mine, "UPDATE t SET n = n + 1 WHERE id = 9")
    gone = code(tight, "DELETE FROM t WHERE id = 9")
    found = code(mine, "SELECT id FROM t WHERE id = 9 FOR KEY SHARE")
    query(mine, "ROLLBACK")
    wanted = ("ok", "40001") if defers(name) else ("55P03", "ok")
    equal(f"deferred {name}: a row that is told to be there does not go unseen", (gone, found), wanted)
    query(tight, "INSERT INTO t (id, n) VALUES (9, 0) ON CONFLICT DO NOTHING")
    mine.close()
    tight.close()


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
        seen(protocol)
        told(protocol)
        answers(protocol)
        foreign_keys(protocol)
        if defers(protocol):
            moved(protocol)
        keys(protocol)
        orphans(protocol)
        constraints(protocol)
        parameters(protocol)
    boss.close()
    drop_database(DATABASE)


FAULTS = {"looks_beside_deferred": "deferred occ: an own addition is seen, sequential",
          "deferred_within": "deferred occ: undone",
          "undone_forgotten": "deferred occ: an addition of before the savepoint that was seen counts",
          "moves_not_followed": "deferred occ: an addition follows a change of an index",
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
