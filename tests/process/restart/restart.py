#!/usr/bin/python3
"""A clean restart keeps rows, TIDs, xmin, protocols and partitions. After a crash, or when the
saved rows cannot be used, table and indexes are empty and usable. The first use gives a WARNING,
also when several sessions use them first at the same time."""

import concurrent.futures
import os
import shutil
import signal

import psycopg2

from lib.common import OURS, check, connect, create_table, drop_database, equal, keep_long, main, make_database, must_come, query, server, set_protocol, tool, value, wait_until

DATABASE = "process_restart"
TABLES = {
    "r_occ": {"protocol": "occ", "partitions": 4},
    "r_2pl": {"protocol": "2pl", "partitions": 3, "adaptive_confirm": 7, "adaptive_interval": "10s", "adaptive_min_gain": 12.5},
    "r_partcc": {"protocol": "partcc", "partitions": 2},
    "r_default": {},
}
COLUMNS = "id int PRIMARY KEY, g int, v text"


def fill(connection):
    for table, settings in TABLES.items():
        create_table(connection, table, COLUMNS, "UNLOGGED", **settings)
        keep_long(connection, table, "v")
        query(connection, f"INSERT INTO {table} SELECT i, i % 10, 'v' || i FROM generate_series(1, 3000) i")
        query(connection, f"CREATE INDEX {table}_g ON {table} (g)")
        query(connection, f"UPDATE {table} SET v = v || '+' WHERE id % 3 = 0")
        query(connection, f"UPDATE {table} SET id = id + 10000, g = 11 WHERE id % 7 = 0")
        query(connection, f"DELETE FROM {table} WHERE id % 5 = 0")
        query(connection, f"INSERT INTO {table} VALUES (-1, NULL, repeat('large', 100000))")
        query(connection, f"ALTER TABLE {table} ADD COLUMN late int DEFAULT 7, DROP COLUMN g")
        query(connection, f"ALTER TABLE {table} ADD COLUMN g int")
        query(connection, f"UPDATE {table} SET g = id % 4")
        query(connection, f"CREATE INDEX {table}_g ON {table} (g)")
        # Index entries without a row: no insert may take their TIDs.
        query(connection, f"BEGIN; INSERT INTO {table} (id, g) SELECT i, 3 FROM generate_series(50001, 50400) i; ROLLBACK")
        query(connection, f"DELETE FROM {table} WHERE id % 11 = 0")
    create_table(connection, "r_empty", COLUMNS, "UNLOGGED")
    create_table(connection, "r_dropped", COLUMNS, "UNLOGGED")
    query(connection, "INSERT INTO r_dropped SELECT i, i, 'd' FROM generate_series(1, 1000) i; DROP TABLE r_dropped")
    set_protocol(connection, "r_occ", "2pl", 2)


def contents(connection, table):
    return query(connection, f"SELECT ctid::text, xmin::text, id, v, late, g FROM {table} ORDER BY id")


def layout(connection):
    if not OURS:
        return None
    parts = query(connection, 'SELECT "table"::regclass::text, partition, protocol, rows FROM mixedcc.partitions ORDER BY 1, 2')
    return parts + query(connection, """SELECT p."table"::regclass::text, e.name, e.value, e.note FROM mixedcc.partitions p,
        mixedcc.explain_choice(p."table", p.partition) e WHERE p.partition = 0 AND e.item = 'setting' ORDER BY 1, 2""")


def state(connection):
    return {table: contents(connection, table) for table in TABLES}


def check_indexes(connection, what):
    query(connection, "SET enable_seqscan = off; SET enable_bitmapscan = off")
    by_index = {t: query(connection, f"SELECT id, g FROM {t} WHERE g >= -9 OR g IS NULL ORDER BY id") for t in TABLES}
    by_key = {t: query(connection, f"SELECT id, g FROM {t} WHERE id > -10 ORDER BY id") for t in TABLES}
    query(connection, "RESET enable_seqscan; RESET enable_bitmapscan; SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off")
    by_scan = {t: query(connection, f"SELECT id, g FROM {t} ORDER BY id") for t in TABLES}
    query(connection, "RESET ALL")
    equal(f"restart: the indexes of g agree {what}", by_index, by_scan)
    equal(f"restart: the keys agree {what}", by_key, by_scan)
    if OURS:
        for table in TABLES:
            state = query(connection, "SELECT usable, mixedcc.check_primary_index(%s) FROM mixedcc.primary_index(%s)", (table, table))
            equal(f"restart: the primary index of {table} is there and agrees {what}", state, [(True, len(by_scan[table]))])


def test_clean():
    connection = make_database(DATABASE)
    fill(connection)
    before, layout_before = state(connection), layout(connection)
    connection.close()
    server("restart")
    connection = connect(DATABASE)
    after = state(connection)
    for table in TABLES:
        equal(f"restart: {table} is as before, TIDs too", after[table], before[table])
    equal("restart: partitions and protocols are as before", layout(connection), layout_before)
    check_indexes(connection, "after a clean restart")
    equal("restart: an empty table is empty", value(connection, "SELECT count(*) FROM r_empty"), 0)
    for table in TABLES:
        query(connection, f"INSERT INTO {table} (id, g) SELECT i, 1 FROM generate_series(60001, 62000) i")
        tids = value(connection, f"SELECT count(DISTINCT ctid) = count(*) FROM {table}")
        check(f"restart: new rows of {table} have TIDs of their own", tids)
    check_indexes(connection, "after inserts that follow a restart")
    # Changes after the restart, also of rows that were loaded.
    for table in TABLES:
        query(connection, f"UPDATE {table} SET v = 'new' WHERE id = 1; UPDATE {table} SET id = 90000 WHERE id = 2")
        query(connection, f"DELETE FROM {table} WHERE id = 3; INSERT INTO {table} (id) VALUES (3), (90001)")
        query(connection, f"VACUUM {table}")
    before = state(connection)
    connection.close()
    server("restart")
    connection = connect(DATABASE)
    equal("restart: changes after the first restart survive the second", state(connection), before)
    check_indexes(connection, "after a second restart")
    connection.close()


def test_restart_in_a_transaction():
    """What had not committed at shutdown is not there; a session's end is clean."""
    connection = connect(DATABASE)
    before = state(connection)
    query(connection, "BEGIN; UPDATE r_occ SET v = 'lost'; DELETE FROM r_2pl; INSERT INTO r_partcc (id) VALUES (123456)")
    server("restart")
    connection = connect(DATABASE)
    equal("restart: uncommitted changes are gone", state(connection), before)
    connection.close()


def first_use(number):
    connection = connect(DATABASE)
    table = "r_occ"
    counts = [value(connection, f"SELECT count(*) FROM {table}")]
    query(connection, f"INSERT INTO {table} (id, v) VALUES (%s, 'after')", (number,))
    counts.append(value(connection, f"SELECT count(*) FROM {table} WHERE id = %s", (number,)))
    warnings = [notice for notice in connection.notices if "WARNING" in notice]
    connection.close()
    return counts, warnings


def check_empty(what):
    """Several sessions meet the emptied tables at the same time."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(first_use, range(1, 9)))
    connection = connect(DATABASE)
    equal(f"restart: each session sees its row {what}", [counts[1] for counts, _ in outcomes], [1] * 8)
    check(f"restart: no old row is seen {what}", all(counts[0] <= 8 for counts, _ in outcomes), str(outcomes))
    if OURS:
        check(f"restart: somebody is warned {what}", any(warnings for _, warnings in outcomes), str(outcomes))
    rows = query(connection, "SELECT id, v FROM r_occ ORDER BY id")
    equal(f"restart: the table holds the new rows only {what}", rows, [(i, "after") for i in range(1, 9)])
    for table in TABLES:
        if OURS:
            state = query(connection, "SELECT usable, mixedcc.check_primary_index(%s) FROM mixedcc.primary_index(%s)", (table, table))
            equal(f"restart: {table} has a primary index {what}", state, [(True, 8 if table == "r_occ" else 0)])
        if table != "r_occ":
            equal(f"restart: {table} is empty {what}", value(connection, f"SELECT count(*) FROM {table}"), 0)
            query(connection, f"INSERT INTO {table} (id, g, v) SELECT i, 7, 'again' FROM generate_series(1, 500) i")
            query(connection, f"UPDATE {table} SET g = id % 3, id = id + 1000 WHERE id % 2 = 0")
    check_indexes(connection, what)
    connection.close()


def test_crash():
    server("crash")
    check_empty("after kill -9 of the server")
    connection = connect(DATABASE)
    before = state(connection)
    connection.close()
    server("restart")
    connection = connect(DATABASE)
    equal("restart: a clean restart after a crash keeps rows", state(connection), before)
    connection.close()


def kill_process(pid):
    """SIGKILL to one process of the server: the postmaster restarts the others."""
    boss = connect("postgres")
    os.kill(pid, signal.SIGKILL)

    def runs(connection):
        try:
            query(connection or connect("postgres"), "SELECT 1")
            return True
        except psycopg2.Error:
            return False

    # The postmaster ends all sessions first.
    must_come(lambda: not runs(boss))
    must_come(lambda: runs(None), 60)


def test_backend_crash():
    victim = connect(DATABASE)
    query(victim, "BEGIN; UPDATE r_2pl SET v = 'x'")
    kill_process(victim.info.backend_pid)
    check_empty("after kill -9 of a backend")


def refill():
    """Rows in all tables, whatever has become of them; returns what they hold."""
    connection = connect(DATABASE)
    for table in TABLES:
        query(connection, f"TRUNCATE {table}")
        query(connection, f"INSERT INTO {table} (id, g, v) SELECT i, i % 5, 'again' FROM generate_series(1, 3000) i")
    rows = state(connection)
    connection.close()
    return rows


def saved_file():
    connection = connect("postgres")
    directory = value(connection, "SHOW data_directory")
    connection.close()
    return os.path.join(directory, "mixedcc.rows")


def check_lost_or_whole(before, what):
    """Each table is as it was; or empty with a warning, or refused because its rows are in a file,
    and usable after TRUNCATE. Returns how many are empty, and how many are refused."""
    connection = connect(DATABASE)
    empty = refused = 0
    for table, rows in before.items():
        try:
            now = contents(connection, table)
        except psycopg2.Error as error:
            equal(f"restart: {table} is refused {what}", error.pgcode, "55000")
            query(connection, f"TRUNCATE {table}")
            refused += 1
        else:
            if now == rows:
                continue
            equal(f"restart: {table} is empty or whole {what}", now, [])
            check(f"restart: {table} warns {what}", any("WARNING" in n and f'"{table}"' in n for n in connection.notices))
            empty += 1
        query(connection, f"INSERT INTO {table} (id, g) SELECT i, i % 3 FROM generate_series(1, 400) i")
    check_indexes(connection, what)
    connection.close()
    return empty, refused


def test_damaged_file():
    """One wrong byte at several places, a file that is cut off, and none at all."""
    path = saved_file()
    for part in (0.0, 0.001, 0.4, 0.9, "cut", "none"):
        before = refill()
        server("stop")
        size = os.path.getsize(path)
        with open(path, "r+b") as file:
            if isinstance(part, float):
                file.seek(int(size * part) + 9)
                byte = file.read(1)[0]
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte ^ 16]))
            elif part == "cut":
                file.truncate(size - 1)
        if part == "none":
            os.unlink(path)
        server("start")
        check("restart: a saved file is used once", wait_until(lambda: not os.path.exists(path)))
        empty, refused = check_lost_or_whole(before, f"after damage at {part}")
        check(f"restart: damage at {part} is noticed", empty == 0 and (refused > 0 or part == "cut"), (empty, refused))


def test_file_of_another_shutdown():
    path = saved_file()
    refill()
    server("stop")
    shutil.copy(path, path + ".old")
    server("start")
    before = refill()
    server("stop")
    os.replace(path + ".old", path)
    server("start")
    lost = check_lost_or_whole(before, "with an older file")
    equal("restart: an older file is not used", lost, (0, len(TABLES)))


def test_immediate_shutdown():
    before = refill()
    path = saved_file()
    tool("pg_ctl", "-D", os.path.dirname(path), "-m", "immediate", "-w", "stop")
    check("restart: an immediate shutdown saves nothing", not os.path.exists(path))
    server("start")
    equal("restart: all tables are empty after an immediate shutdown", check_lost_or_whole(before, "after an immediate shutdown"), (len(TABLES), 0))


def test_crash_after_rollback():
    """A crash right after the rollback of what made files, whose records are on disk and whose
    abort would not be: the server starts. (On unlogged heap tables it may not.)"""
    for number, (begin, end) in enumerate((("BEGIN", "ROLLBACK"), ("BEGIN; SAVEPOINT s", "ROLLBACK TO s"))):
        connection = connect(DATABASE)
        query(connection, begin)
        query(connection, "TRUNCATE r_occ")
        other = connect(DATABASE)
        query(other, "SET synchronous_commit = on")
        query(other, f"CREATE TABLE r_flush_{number} USING heap AS SELECT 1")
        query(connection, end)
        server("crash")
        connection = connect(DATABASE)
        equal(f"restart: the server starts after a crash behind {end}", value(connection, "SELECT count(*) FROM r_occ"), 0)
        connection.close()


def test_crash_after_load():
    """The saved rows are used once: a crash right after a clean start shows none of them."""
    server("restart")
    server("crash")
    check_empty("after a crash that followed a clean start")
    drop_database(DATABASE)


if __name__ == "__main__":
    tests = [test_clean, test_restart_in_a_transaction, test_crash, test_backend_crash]
    if OURS:
        tests += [test_damaged_file, test_file_of_another_shutdown, test_immediate_shutdown, test_crash_after_rollback]
    main(*tests, test_crash_after_load)
