#!/usr/bin/python3
"""What commits into permanent tables log: their records as pg_walinspect describes them, with and
without a transaction id, with savepoints, at each level of synchronous_commit; commits while the
gate is shut; reservations of record numbers."""

import os
import re
import threading
import time

import psycopg2

from lib.common import (check, connect, drop_database, equal, fail, keep_long, main, make_database, must_come,
                        query, reload, server, value, wait_until, wal_since)
from lib.standing import Point

DATABASE = "process_durable_log"
SAFE = "-c synchronous_commit=on"
BOSS = None


def session(options=""):
    return connect(DATABASE, options=f"{SAFE} {options}")


def position():
    return value(BOSS, "SELECT pg_current_wal_insert_lsn()")


def storage(table):
    """As records name it: tablespace, database, filenode."""
    return value(BOSS, """
        SELECT format('%%s/%%s/%%s', CASE reltablespace WHEN 0 THEN dattablespace ELSE reltablespace END, d.oid,
                      pg_relation_filenode(c.oid))
        FROM pg_class c, pg_database d WHERE c.oid = %s::regclass AND datname = current_database()""", (table,))


def records_on_disk(since, types):
    """(type, description) of our records since then. The companion's are left out."""
    rows = query(BOSS, """
        SELECT record_type, description FROM {}
        WHERE resource_manager = 'mixedcc'""".format(wal_since(BOSS)), (since,))
    return [row for row in rows if row[0] in types]


def records(since, types=("COMMIT", "XCOMMIT")):
    query(BOSS, "INSERT INTO heap VALUES (0)")  # its commit flushes all
    return records_on_disk(since, types)


def logged(do, types=("COMMIT", "XCOMMIT")):
    since = position()
    do()
    return records(since, types)


def items(description):
    """What the items of a record are: (kind, record number, table's place, bytes)."""
    found = re.findall(r"(ROW|TOMB|row|tombstone|tomb) (\d+) of table (\d+) \((\d+) bytes", description)
    return [(kind.lower()[:4], int(number), int(table), int(size)) for kind, number, table, size in found]


def transaction(connection, *statements, level="READ COMMITTED"):
    query(connection, f"BEGIN ISOLATION LEVEL {level}")
    for statement in statements:
        query(connection, statement)
    query(connection, "COMMIT")


def make_tables():
    query(BOSS, "CREATE EXTENSION pg_walinspect")
    # Writes of it need no transaction id.
    query(BOSS, "CREATE TABLE plain (id int, v text) USING mixedcc")
    keep_long(BOSS, "plain", "v")
    query(BOSS, "CREATE INDEX ON plain (id)")
    # Unique checks wait by one.
    query(BOSS, "CREATE TABLE checked (id int UNIQUE, v text) USING mixedcc")
    query(BOSS, "CREATE TABLE keyed (id int PRIMARY KEY, v text) USING mixedcc")
    query(BOSS, "CREATE UNLOGGED TABLE beside (id int PRIMARY KEY, v text) USING mixedcc")
    query(BOSS, "CREATE TABLE heap (id int)")


def descriptions():
    session_ = session()
    found = logged(lambda: query(session_, "INSERT INTO plain VALUES (1, 'one')"))
    equal("an insert without unique index logs one COMMIT", [kind for kind, _ in found], ["COMMIT"])
    text = found[0][1]
    check("it names the storage", storage("plain") in text, text)
    check("it has no transaction id", "xid" not in text, text)
    inserted = items(text)
    check("it has one row", len(inserted) == 1 and "; 1 items:" in text and inserted[0][0] == "row", text)

    found = logged(lambda: query(session_, "UPDATE plain SET v = 'two' WHERE id = 1"))
    updated = items(found[0][1])
    equal("an update in place logs the same record", [i[1] for i in updated], [i[1] for i in inserted])
    found = logged(lambda: query(session_, "DELETE FROM plain WHERE id = 1"))
    deleted = items(found[0][1])
    equal("a delete logs a tombstone of it", [(i[0], i[1], i[3]) for i in deleted], [("tomb", inserted[0][1], 0)])
    session_.close()


def what_is_not_logged():
    session_ = session()
    equal("a transaction of an unlogged table logs nothing",
          logged(lambda: query(session_, "INSERT INTO beside VALUES (1, 'x')")), [])
    equal("a transaction that reads logs nothing", logged(lambda: query(session_, "TABLE plain")), [])

    def rolls_back():
        query(session_, "BEGIN")
        query(session_, "INSERT INTO plain VALUES (100, 'x')")
        query(session_, "ROLLBACK")

    equal("a rollback logs nothing", logged(rolls_back), [])
    equal("a row that came and went is not logged", logged(lambda: transaction(
        session_, "INSERT INTO plain VALUES (101, 'x')", "DELETE FROM plain WHERE id = 101")), [])
    found = logged(lambda: transaction(
        session_, "INSERT INTO plain VALUES (102, 'x')", "INSERT INTO beside VALUES (102, 'x')"))
    equal("of a mixed transaction the permanent part is logged", [len(items(text)) for _, text in found], [1])
    for what, statements, wanted in (
            ("an unlogged row first", ("INSERT INTO beside VALUES (103, 'x')", "INSERT INTO plain VALUES (103, 'x')"), [1]),
            ("unlogged rows around", ("INSERT INTO beside VALUES (104, 'x')", "INSERT INTO plain VALUES (104, 'x')", "DELETE FROM beside WHERE id = 102"), [1]),
            ("the permanent row undone", ("INSERT INTO beside VALUES (105, 'x')", "SAVEPOINT s", "INSERT INTO plain VALUES (105, 'x')", "ROLLBACK TO s"), []),
            ("the unlogged row undone", ("INSERT INTO plain VALUES (106, 'x')", "SAVEPOINT s", "INSERT INTO beside VALUES (106, 'x')", "ROLLBACK TO s"), [1])):
        for level in ("READ COMMITTED", "SERIALIZABLE"):
            found = logged(lambda: transaction(session_, *statements, level=level))
            equal(f"of a mixed transaction the permanent part is logged, {level}: {what}", [len(items(text)) for _, text in found], wanted)
            query(session_, "DELETE FROM beside WHERE id > 102; DELETE FROM plain WHERE id > 102")
    session_.close()


def savepoints():
    session_ = session()
    for level in ("READ COMMITTED", "SERIALIZABLE"):
        query(session_, "DELETE FROM plain")
        found = logged(lambda: transaction(
            session_, "INSERT INTO plain VALUES (1, 'a')", "SAVEPOINT s", "INSERT INTO plain VALUES (2, 'b')",
            "UPDATE plain SET v = 'c' WHERE id = 1", "ROLLBACK TO s", "SAVEPOINT t", "INSERT INTO plain VALUES (3, 'd')",
            "RELEASE t", "UPDATE plain SET v = 'longer' WHERE id = 3", level=level))
        equal(f"{level}: only what savepoints left is logged, once", [len(items(text)) for _, text in found], [2])
    session_.close()


def with_xid():
    session_ = session()
    for name, statements in (
            ("an insert with a unique index", ("INSERT INTO checked VALUES (1, 'x')",)),
            ("an insert with a primary key", ("INSERT INTO keyed VALUES (1, 'x')",)),
            ("a transaction that changed heap", ("INSERT INTO heap VALUES (1)", "INSERT INTO plain VALUES (200, 'x')")),
            ("a transaction whose savepoint changed heap", (
                "SAVEPOINT s", "INSERT INTO heap VALUES (1)", "ROLLBACK TO s", "INSERT INTO plain VALUES (201, 'x')"))):
        xid = []

        def run():
            query(session_, "BEGIN")
            for statement in statements:
                query(session_, statement)
            xid.append(value(session_, "SELECT txid_current()"))
            query(session_, "COMMIT")

        found = logged(run)
        equal(f"{name} logs one XCOMMIT", [kind for kind, _ in found], ["XCOMMIT"])
        top = xid[0]
        check(f"{name}: it names the transaction id", f"xid {top >> 32}:{top & 0xffffffff};" in found[0][1], found)

    def fails():
        query(session_, "BEGIN")
        query(session_, "INSERT INTO checked VALUES (2, 'x')")
        query(session_, "ROLLBACK")

    equal("a rollback with an id logs nothing of ours", logged(fails), [])
    session_.close()


def large():
    session_ = session()
    found = logged(lambda: query(
        session_, "INSERT INTO plain SELECT i, repeat('x', 1000) FROM generate_series(1000, 3999) i"))
    kinds = {kind for kind, _ in found}
    total = sum(int(re.search(r"; (\d+) items", text)[1]) for _, text in found)
    check("more than 1 MB logs several XCOMMIT records", kinds == {"XCOMMIT"} and len(found) in (3, 4), len(found))
    equal("all rows are in them", total, 3000)
    equal("they have one CSN", len({re.search(r"csn (\d+)", text)[1] for _, text in found}), 1)
    found = logged(lambda: query(session_, "INSERT INTO plain VALUES (5000, repeat(md5('1'), 1000))"))
    pieces = re.findall(r"\((\d+) bytes at (\d+) of (\d+)\)", found[0][1])
    check("a long row is logged in pieces", len(pieces) == 4 and len(found) == 1, found)
    query(session_, "DELETE FROM plain")
    session_.close()


def reservations():
    session_ = session()
    query(session_, "CREATE TABLE fresh (id int, v int) USING mixedcc")
    query(session_, "CREATE INDEX ON fresh (v)")
    rows = "INSERT INTO fresh SELECT i, i FROM generate_series(1, {}) i"
    found = logged(lambda: query(session_, rows.format(1)), ("RESERVE", "COMMIT", "XCOMMIT"))
    equal("numbers are reserved before the commit", [kind for kind, _ in found], ["RESERVE", "COMMIT"])
    check("the reservation names the storage", storage("fresh") in found[0][1], found)
    equal("the next insert finds them reserved",
          logged(lambda: query(session_, rows.format(100)), ("RESERVE",)), [])
    found = logged(lambda: query(session_, rows.format(2000)), ("RESERVE",))
    check("many inserts need few reservations", 0 < len(found) < 10, found)
    found = logged(lambda: transaction(
        session_, "CREATE TABLE made (id int, v int) USING mixedcc", "INSERT INTO made SELECT i, i FROM generate_series(1, 500) i"),
        ("RESERVE", "COMMIT", "XCOMMIT"))
    equal("a storage's own maker reserves and logs nothing", found, [])
    session_.close()


def commits_ahead(session_, number):
    """So many of these commits answered before their records were flushed."""
    ahead = 0
    for _ in range(number):
        since = position()
        query(session_, "INSERT INTO plain VALUES (1, 'x')")
        flushed = value(session_, "SELECT pg_current_wal_flush_lsn()")
        query(BOSS, "INSERT INTO heap VALUES (0)")
        ahead += value(BOSS, """
            SELECT max(end_lsn) > %s::pg_lsn FROM {}
            WHERE resource_manager = 'mixedcc' AND record_type = 'COMMIT'""".format(wal_since(BOSS)), (flushed, since))
    query(session_, "DELETE FROM plain")
    return ahead


def flushed_since(since):
    """Our commits that are on disk. It is an error to ask when nothing is that came since then."""
    try:
        return records_on_disk(since, ("COMMIT",))
    except psycopg2.Error:
        return []


def levels():
    """COMMIT answers after the flush, unless it need not."""
    for level in ("local", "remote_write", "on", "remote_apply"):
        session_ = session(f"-c synchronous_commit={level}")
        equal(f"{level}: COMMIT answers after the flush", commits_ahead(session_, 20), 0)
        session_.close()
    session_ = session("-c synchronous_commit=off")
    check("off: COMMIT answers before the flush", wait_until(lambda: commits_ahead(session_, 1)))
    since = position()
    query(session_, "INSERT INTO plain VALUES (1, 'off')")
    check("off: the WAL writer flushes before long", wait_until(lambda: flushed_since(since)))
    query(session_, "DELETE FROM plain")
    session_.close()


def set_standbys(names):
    query(BOSS, f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    reload(BOSS)


def run_in_thread(connection, sql):
    result = {}

    def run():
        try:
            query(connection, sql)
            result["state"] = "done"
        except psycopg2.Error as error:
            result["state"] = error.pgcode
        result["at"] = time.monotonic()

    thread = threading.Thread(target=run)
    thread.start()
    return thread, result


def waits_for(connection, event):
    return value(BOSS, "SELECT wait_event FROM pg_stat_activity WHERE pid = %s", (connection.info.backend_pid,)) == event


def standbys():
    """A synchronous standby that does not come: COMMIT waits, snapshots do not show the row, a
    cancel ends it."""
    set_standbys("nobody")
    try:
        for way, table in (("without id", "plain"), ("with id", "checked")):
            session_ = session("-c synchronous_commit=on")
            thread, result = run_in_thread(session_, f"INSERT INTO {table} VALUES (777, 'waits')")
            must_come(lambda: waits_for(session_, "SyncRep"))
            equal(f"{way}: snapshots leave out a commit that waits",
                  value(BOSS, f"SELECT count(*) FROM {table} WHERE id = 777"), 0)
            other = session("-c synchronous_commit=local")
            query(other, "INSERT INTO plain VALUES (778, 'goes on')")
            equal(f"{way}: a commit that waits for no standby goes on",
                  value(BOSS, "SELECT count(*) FROM plain WHERE id = 778"), 1)
            query(other, "DELETE FROM plain WHERE id = 778")
            other.close()
            session_.cancel()
            thread.join(30)
            equal(f"{way}: a cancel ends the wait with a warning", result.get("state"), "done")
            check(f"{way}: the warning is PostgreSQL's",
                  any("canceling wait for synchronous replication" in notice for notice in session_.notices), session_.notices)
            equal(f"{way}: it has committed", value(BOSS, f"SELECT count(*) FROM {table} WHERE id = 777"), 1)
            session_.close()
    finally:
        set_standbys("")
    query(BOSS, "DELETE FROM plain")


def companion():
    return value(BOSS, "SELECT max(pid) FROM pg_stat_activity WHERE backend_type LIKE 'mixedcc companion%%'")


def shut_gate(seconds):
    """The companion ends, and lingers with the gate shut. Returns its process id when a commit has
    waited."""
    query(BOSS, "ALTER SYSTEM SET mixedcc.stop_events = on")
    query(BOSS, f"ALTER SYSTEM SET mixedcc.kill_at = 'closing-waited:1:{seconds * 1000}'")
    reload(BOSS)
    pid = companion()
    probe = session()

    def waits():
        thread, result = run_in_thread(probe, "INSERT INTO plain VALUES (-1, 'probe')")
        thread.join(0.5)
        probe.cancel()
        thread.join()
        return result["state"] == "57014"

    query(BOSS, "SELECT pg_terminate_backend(%s)", (pid,))
    must_come(waits)
    probe.close()
    return pid


def open_gate():
    for name in ("stop_events", "kill_at"):
        query(BOSS, f"ALTER SYSTEM RESET mixedcc.{name}")
    reload(BOSS)


def state(connection):
    return query(BOSS, "SELECT state, wait_event FROM pg_stat_activity WHERE pid = %s", (connection.info.backend_pid,))[0]


def refused(stop=""):
    """A session whose COMMIT PostgreSQL will refuse when our record is in WAL: another one has
    committed first."""
    first = session()
    loser = session("-c mixedcc.mixed_serializable=allow " + stop)
    query(BOSS, "UPDATE pair SET v = 0")
    for one in (first, loser):
        query(one, "BEGIN ISOLATION LEVEL SERIALIZABLE")
        query(one, "SELECT sum(v) FROM pair")
    for one, other in ((first, 1), (loser, 2)):
        query(one, "UPDATE pair SET v = 1 WHERE id = %s", (other,))
    query(loser, "INSERT INTO checked VALUES (2, 'undone')")
    query(loser, "UPDATE checked SET v = 'undone' WHERE id = 1")
    query(first, "COMMIT")
    first.close()
    return loser


def undone_after_logging():
    """Rows of a commit that was refused after its record never come back, from images or WAL."""
    query(BOSS, "CREATE TABLE pair (id int PRIMARY KEY, v int)")
    query(BOSS, "INSERT INTO pair VALUES (1, 0), (2, 0)")
    query(BOSS, "DELETE FROM checked")
    query(BOSS, "INSERT INTO checked VALUES (1, 'before')")
    point = Point("xcommit-marked")
    loser = refused(f"-c mixedcc.stop_events=on -c mixedcc.kill_at={point.setting}")
    since = position()
    thread, result = run_in_thread(loser, "COMMIT")
    point.must_stand()
    equal("an undecided commit is logged", [kind for kind, _ in records(since)], ["XCOMMIT"])
    query(BOSS, "CHECKPOINT")
    equal("an undecided commit shows nothing", query(BOSS, "SELECT v FROM checked"), [("before",)])
    point.go()
    thread.join(30)
    equal("PostgreSQL refuses the commit after its record", result.get("state"), "40001")
    equal("it is undone", query(BOSS, "SELECT v FROM checked"), [("before",)])
    query(loser, "SET mixedcc.kill_at = ''")
    found = logged(lambda: query(loser, "INSERT INTO plain VALUES (5, 'next')"))
    equal("the session's next commit is an ordinary one", [kind for kind, _ in found], ["COMMIT"])
    crash()
    equal("it is undone after a crash, when images had it", query(BOSS, "SELECT v FROM checked"), [("before",)])
    equal("what was committed after it is there", value(BOSS, "SELECT count(*) FROM plain WHERE id = 5"), 1)
    thread, result = run_in_thread(refused(), "COMMIT")
    thread.join(30)
    equal("PostgreSQL refuses another commit", result.get("state"), "40001")
    crash()
    equal("it is undone after a crash, when WAL had it", query(BOSS, "SELECT v FROM checked"), [("before",)])
    query(BOSS, "DELETE FROM plain")


def crash():
    global BOSS
    BOSS.close()
    server("crash")
    BOSS = session()


def gate():
    sessions = [session() for _ in range(4)]
    _, cancelled, terminated, other = sessions
    old = shut_gate(8)
    thread, result = run_in_thread(other, "INSERT INTO beside SELECT 4711, count(*) FROM plain")
    thread.join(3)
    check("reads, and commits of unlogged tables, do not wait at the gate", result.get("state") == "done", result)
    threads = [run_in_thread(s, f"INSERT INTO plain VALUES ({i}, 'gate')") for i, s in enumerate(sessions[:3])]
    must_come(lambda: all(state(s)[0] == "active" for s in sessions[:3]))
    time.sleep(0.5)
    check("commits wait at the gate", all(result == {} for _, result in threads), threads)
    cancelled.cancel()
    query(BOSS, "SELECT pg_terminate_backend(%s)", (terminated.info.backend_pid,))
    for thread, _ in threads[1:]:
        thread.join(5)
    equal("a cancel at the gate is an error", threads[1][1].get("state"), "57014")
    check("so is a termination", threads[2][1].get("state") in ("57P01", None) and "at" in threads[2][1], threads[2])
    threads[0][0].join(30)
    equal("the commit goes on when the gate is open", threads[0][1].get("state"), "done")
    equal("only it has committed", query(BOSS, "SELECT id FROM plain WHERE id >= 0"), [(0,)])
    check("the companion came back", wait_until(lambda: companion() not in (None, old)))
    open_gate()
    for one in sessions:
        one.close()


def gate_timeout():
    session_ = session()
    shut_gate(40)
    began = time.monotonic()
    try:
        query(session_, "INSERT INTO plain VALUES (9, 'late')")
        fail("a commit waits at the gate for 30 s at most", "it committed")
    except psycopg2.Error as error:
        waited = time.monotonic() - began
        check("a commit waits at the gate for 30 s at most", error.pgcode == "57P03" and 25 < waited < 39, (error, waited))
    equal("it has not committed", value(BOSS, "SELECT count(*) FROM plain WHERE id = 9"), 0)
    check("the session goes on", wait_until(lambda: accepts_writes(session_), 40))
    open_gate()
    session_.close()


def accepts_writes(connection):
    try:
        query(connection, "INSERT INTO plain VALUES (10, 'later')")
        return True
    except psycopg2.Error:
        return False


def run():
    global BOSS
    BOSS = make_database(DATABASE)
    BOSS.close()
    BOSS = session()
    # Else some commits take a transaction id for the time in its record.
    query(BOSS, "ALTER SYSTEM SET mixedcc.time_marks = -1")
    reload(BOSS)
    make_tables()


def end():
    query(BOSS, "ALTER SYSTEM RESET mixedcc.time_marks")
    reload(BOSS)
    BOSS.close()
    drop_database(DATABASE)


try:
    run()
    TESTS = [descriptions, what_is_not_logged, savepoints, with_xid, large, reservations, levels, standbys, undone_after_logging,
             gate]
    if os.environ.get("MIXEDCC_LONG"):
        TESTS.append(gate_timeout)
    TESTS.append(end)
    main(*TESTS)
except psycopg2.Error as problem:
    fail("set-up", problem)
    raise SystemExit(1)
