#!/usr/bin/python3
"""The memory of a standby. No VACUUM comes there, and no coordinator: what sessions have replaced
while they have followed the primary is freed by other sessions, also if theirs are idle, or have
ended. A table that does not fit is refused before its load takes memory from others."""

import sys
import threading
import time

import psycopg2

from lib.clusters import Cluster
from lib.common import (check, connect, drop_database, equal, fail, main, make_database, must_be_found, must_come,
                        query, server, value)

DATABASE = "process_standby_memory"
ROWS = 20_000
KEYED = 280_000
MB = 1 << 20


class Servers:
    primary = standby = None


def change(table="piled", length=500):
    """All rows of a table are replaced."""
    query(Servers.primary, f"UPDATE {table} SET n = n + 1, w = repeat('x', {length})")


def code_of(connection, sql):
    try:
        query(connection, sql)
        return None
    except psycopg2.Error as error:
        return error.pgcode


def rows_or_code(connection, sql):
    try:
        return query(connection, sql)
    except psycopg2.Error as error:
        return error.pgcode


def shows(connection, table="piled"):
    """The session shows what the primary has. The SQLSTATE if it cannot."""
    wanted = value(Servers.primary, f"SELECT sum(n) FROM {table}")
    code = None

    def is_there():
        nonlocal code
        try:
            return value(connection, f"SELECT sum(n) FROM {table}") == wanted
        except psycopg2.Error as error:
            code = error.pgcode
            return True
    must_come(is_there, 60)
    return code


def used():
    return Servers.standby.ask("SELECT used_bytes FROM mixedcc.memory")


def test_sessions_end():
    """Each session follows once, and ends."""
    codes = []
    for _ in range(14):
        change()
        connection = Servers.standby.connect()
        codes.append(shows(connection))
        connection.close()
    equal("standby memory: sessions that end leave nothing behind", set(codes), {None})
    check("standby memory: and little memory is in use", used() < 40 * MB, used())


def test_sessions_idle():
    """Each of some sessions follows once in a while, and is idle between."""
    sessions = [Servers.standby.connect() for _ in range(7)]
    codes, peak = [], 0
    for turn in range(14):
        change()
        codes.append(shows(sessions[turn % len(sessions)]))
        peak = max(peak, used())
    equal("standby memory: what idle sessions have replaced is freed by others", set(codes), {None})
    check("standby memory: and little memory is in use, beside them", peak < 50 * MB, peak)
    [session.close() for session in sessions]


def test_old_snapshot_ends():
    """What an old snapshot has kept is freed when a later look at the table finds no memory."""
    old, one = Servers.standby.connect(), Servers.standby.connect()
    query(old, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    query(old, "SELECT count(*) FROM piled")
    codes = []
    for _ in range(2):
        change()
        codes.append(shows(one))
    equal("standby memory: an old snapshot keeps what it needs", set(codes), {None})
    query(old, "COMMIT")
    change(length=1100)
    equal("standby memory: then all of it is freed, if need be", shows(one), None)
    change()
    equal("standby memory: and again", shows(one), None)
    [session.close() for session in (old, one)]


def replays():
    """The standby has replayed what the primary has written up to now."""
    query(Servers.primary, "SELECT pg_current_xact_id()")  # all before it is on disk, and is sent
    lsn = value(Servers.primary, "SELECT pg_current_wal_insert_lsn()")
    must_come(lambda: Servers.standby.ask("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (lsn,)), 60)


def peak_of(connection):
    """The address space that the session's process has had at most."""
    with open(f"/proc/{connection.info.backend_pid}/status", encoding="ascii") as file:
        sizes = [line.split()[1] for line in file if line.startswith("VmPeak:")]
    return int(sizes[0]) * 1024


def make_filled(table, rows, length):
    query(Servers.primary, f"CREATE TABLE {table} (id int PRIMARY KEY, n int, w text) USING mixedcc")
    query(Servers.primary, f"ALTER TABLE {table} ALTER w SET STORAGE external")
    query(Servers.primary, f"INSERT INTO {table} SELECT i, 1, repeat('f', {length}) FROM generate_series(1, {rows}) i")


def test_files_read_again():
    """Images have taken the place of a journal that a session has not read: it reads all files
    again. The rows that have changed go into the table, and not into its own memory."""
    make_filled("images", 25_000, 500)
    one = Servers.standby.connect()
    must_come(lambda: code_of(one, "SELECT 1 FROM images LIMIT 1") != "42P01", 60)
    equal("standby memory: a table is loaded", shows(one, "images"), None)
    before = peak_of(one)
    change("images")
    for _ in range(2):
        query(Servers.primary, "CHECKPOINT")
        query(Servers.primary, "UPDATE images SET n = n + 1 WHERE id = 1")
    replays()
    equal("standby memory: files are read again", shows(one, "images"), None)
    grown = peak_of(one) - before
    check("standby memory: and what has changed is not kept twice", grown < 6 * MB, grown)
    one.close()
    query(Servers.primary, "DROP TABLE images")


SEVERAL = ("first", "second", "third")
ALL = "SELECT " + " + ".join(f"(SELECT sum(n) FROM {table})" for table in SEVERAL)
OF_ALL = [(39_000,)]


def load_several():
    """A session of the standby whose tables are all in memory, and take more than a third of it."""
    for table in SEVERAL:
        query(Servers.primary, f"DROP TABLE IF EXISTS {table}")
        make_filled(table, 13_000, 1000)
    replays()
    Servers.standby.control("restart", "-m", "fast")
    one = Servers.standby.connect()
    must_come(lambda: code_of(one, ALL) is None, 60)
    return one


def test_primary_restarts():
    """Tables of before a restart of the primary leave the memory before the first of a statement
    over several is loaded anew."""
    one = load_several()
    Servers.primary.close()
    server("crash")
    server("start")
    Servers.primary = connect(DATABASE)
    query(Servers.primary, "SET synchronous_commit = on; UPDATE small SET n = n + 1 WHERE id = 1")
    replays()
    codes = []

    def is_answered():
        codes.append(code_of(one, ALL))
        return codes[-1] is None
    must_come(is_answered, 90)
    check("standby memory: several tables are loaded anew when the primary has restarted", "53200" not in codes, codes)
    equal("standby memory: and have their rows", query(one, ALL), OF_ALL)
    one.close()


def test_snapshots_below_the_clock():
    """What is freed leaves snapshots as they are, also those that are older than the last look."""
    query(Servers.primary, "CREATE TABLE keyed (a int, b int, c int, PRIMARY KEY (a, b, c)) USING mixedcc")
    query(Servers.primary, "INSERT INTO keyed SELECT 1, i, i % 7 FROM generate_series(1, 200) i")
    for n in range(6):
        query(Servers.primary, f"CREATE TABLE beside_{n} (id int PRIMARY KEY, n int) USING mixedcc")
        query(Servers.primary, f"INSERT INTO beside_{n} SELECT i, 0 FROM generate_series(1, 100) i")
    one, old = Servers.standby.connect(), Servers.standby.connect()
    look = "SELECT count(*), sum(b) FROM keyed WHERE a = 1 AND c < 5"
    for n in range(6):
        shows(one, f"beside_{n}")
    query(old, look)
    for n in range(6):
        query(Servers.primary, f"UPDATE beside_{n} SET n = 1")
    must_come(lambda: value(one, "SELECT sum(n) FROM beside_5") == 100, 60)
    for n in range(5):
        value(one, f"SELECT sum(n) FROM beside_{n}")
    query(old, "SET enable_seqscan = off; BEGIN ISOLATION LEVEL REPEATABLE READ")
    before = query(old, look)
    for b in range(1, 11):
        query(Servers.primary, f"DELETE FROM keyed WHERE b = {b}")
    must_come(lambda: value(one, "SELECT count(*) FROM keyed") == 190, 60)
    equal("standby memory: a snapshot keeps its rows", query(old, look), before)
    query(old, "COMMIT")
    equal("standby memory: and the next one has none of them", query(old, look),
          query(Servers.primary, look))
    [session.close() for session in (old, one)]


def test_table_too_large():
    """Others follow beside loads of a table that does not fit. It is loaded when it does."""
    query(Servers.primary, "CREATE TABLE large (id int, n int, w text) USING mixedcc")
    query(Servers.primary, "ALTER TABLE large ALTER w SET STORAGE external")
    query(Servers.primary, "INSERT INTO large SELECT i, 1, repeat('y', 900) FROM generate_series(1, 100000) i")
    query(Servers.primary, "CHECKPOINT")
    loader, look, one = [Servers.standby.connect() for _ in range(3)]
    change()
    shows(one)
    before, peak, codes, loads, stop = used(), 0, [], [], threading.Event()

    def load():
        while not stop.is_set():
            loads.append(code_of(loader, "SELECT count(*) FROM large"))
    thread = threading.Thread(target=load)
    thread.start()
    end_at = time.monotonic() + 4
    while time.monotonic() < end_at or len(loads) < 3:
        peak = max(peak, value(look, "SELECT used_bytes FROM mixedcc.memory"))
    change("small")
    codes.append(shows(one, "small"))
    stop.set()
    thread.join(120)
    equal("standby memory: a table that is too large is refused", set(loads), {"53200"})
    check("standby memory: its loads take no memory from others", peak < before + 8 * MB, (before, peak))
    equal("standby memory: others follow meanwhile", set(codes), {None})
    missing = "SELECT missing_bytes FROM mixedcc.table_rows() WHERE \"table\" = 'large'::regclass"
    check("standby memory: what it needs is shown", value(look, missing) > 90 * MB, query(look, missing))
    query(Servers.primary, "DELETE FROM large WHERE id > 10000")

    def is_loaded():
        query(Servers.primary, "CHECKPOINT")  # images have the rows no more
        return code_of(loader, "SELECT 1 FROM large LIMIT 1") is None
    must_come(is_loaded, 60)
    equal("standby memory: it is there when it has become small", shows(loader, "large"), None)
    [session.close() for session in (loader, look, one)]


def test_table_of_keys():
    """A table with four keys in memory does not fit. With one of them it does, although its files
    are the same."""
    query(Servers.primary, "CREATE TABLE four_keys (id int PRIMARY KEY, a int NOT NULL UNIQUE, b int NOT NULL UNIQUE, c int NOT NULL UNIQUE) USING mixedcc")
    query(Servers.primary, f"INSERT INTO four_keys SELECT i, i, i, i FROM generate_series(1, {KEYED}) i")
    query(Servers.primary, "CHECKPOINT")
    one = Servers.standby.connect()
    must_come(lambda: code_of(one, "SELECT 1 FROM four_keys LIMIT 1") not in ("42P01", None), 60)
    before = used()
    equal("standby memory: a table with many keys is refused", code_of(one, "SELECT 1 FROM four_keys LIMIT 1"), "53200")
    check("standby memory: its load takes no memory, either", used() < before + 8 * MB, (before, used()))
    query(Servers.primary, "ALTER TABLE four_keys " + ", ".join(f"DROP CONSTRAINT four_keys_{column}_key" for column in "abc"))
    must_come(lambda: code_of(one, "SELECT 1 FROM four_keys LIMIT 1") is None, 60)
    equal("standby memory: it is there when it has one key", query(one, "SELECT count(*), sum(c) FROM four_keys"),
          [(KEYED, KEYED * (KEYED + 1) // 2)])
    query(Servers.primary, "DROP TABLE four_keys")
    one.close()


def test_promotion():
    """A promoted standby forgets that it had no room for a table: its journal was not absorbed."""
    query(Servers.primary, "INSERT INTO large SELECT i, 1, repeat('y', 900) FROM generate_series(200001, 300000) i")
    connection = load_several()
    must_come(lambda: code_of(connection, "SELECT count(*) FROM large") == "53200", 60)
    connection.close()
    Servers.standby.control("promote")
    must_come(lambda: not Servers.standby.ask("SELECT pg_is_in_recovery()"), 60)
    connection = Servers.standby.connect()
    equal("standby memory: several tables are loaded anew after it", rows_or_code(connection, ALL), OF_ALL)
    equal("standby memory: it does not fit after the promotion, either", code_of(connection, "SELECT count(*) FROM large"), "53200")
    query(connection, "VACUUM small")
    connection.close()
    Servers.standby.configure(**{"mixedcc.memory": "300MB"})
    Servers.standby.control("restart", "-m", "fast")
    equal("standby memory: its rows are safe", Servers.standby.ask("SELECT sum(n) FROM large"), 110_000)


TESTS = (test_snapshots_below_the_clock, test_sessions_end, test_sessions_idle, test_old_snapshot_ends, test_files_read_again,
         test_table_of_keys, test_table_too_large, test_primary_restarts, test_promotion)
FAULTS = (("applied_piles_up", "standby memory: and little memory is in use, beside them", test_sessions_idle),
          ("load_fills_memory", "standby memory: its loads take no memory from others", test_table_too_large))


def begin():
    Servers.primary = make_database(DATABASE)
    query(Servers.primary, "SET synchronous_commit = on")
    for name, rows in (("piled", ROWS), ("small", 100)):
        query(Servers.primary, f"CREATE TABLE {name} (id int PRIMARY KEY, n int, w text) USING mixedcc")
        query(Servers.primary, f"ALTER TABLE {name} ALTER w SET STORAGE external")
        query(Servers.primary, f"INSERT INTO {name} SELECT i, 0, repeat('x', 500) FROM generate_series(1, {rows}) i")
    Servers.standby = Cluster.copy("-R", database=DATABASE)
    Servers.standby.start(hot_standby="on", **{"mixedcc.memory": "64MB"})


def end():
    Servers.standby.remove()
    Servers.primary.close()
    drop_database(DATABASE)


def test_faults():
    """In a build with faults: each of them is found."""
    for fault, check_name, test in FAULTS:
        Servers.standby.configure(**{"mixedcc.fault": fault})
        Servers.standby.control("restart", "-m", "fast")
        must_be_found(fault, check_name, test)


try:
    begin()
    if sys.argv[1:2] == ["--faults"]:
        main(test_faults, end)
    main(*TESTS, end)
except psycopg2.Error as problem:
    fail("set-up", problem)
    raise SystemExit(1)
