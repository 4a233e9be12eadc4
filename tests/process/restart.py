#!/usr/bin/python3
"""A clean restart keeps rows, TIDs, protocols and partitions; after a crash table
and indexes are empty and usable, with a WARNING at first use, also when several
sessions use them first at the same time."""

import concurrent.futures
import os
import signal
import time

import psycopg2

from _common import OURS, check, connect, create_table, drop_database, equal, main, make_database, query, server, set_protocol, value

DATABASE = "process_restart"
TABLES = {
    "r_occ": {"protocol": "occ", "partitions": 4},
    "r_2pl": {"protocol": "2pl", "partitions": 3},
    "r_partcc": {"protocol": "partcc", "partitions": 2},
    "r_default": {},
}
COLUMNS = "id int PRIMARY KEY, g int, v text"


def fill(connection):
    for table, settings in TABLES.items():
        create_table(connection, table, COLUMNS, **settings)
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
    create_table(connection, "r_empty", COLUMNS)
    create_table(connection, "r_dropped", COLUMNS)
    query(connection, "INSERT INTO r_dropped SELECT i, i, 'd' FROM generate_series(1, 1000) i; DROP TABLE r_dropped")
    set_protocol(connection, "r_occ", "2pl", 2)


def contents(connection, table):
    return query(connection, f"SELECT ctid::text, id, v, late, g FROM {table} ORDER BY id")


def layout(connection):
    if not OURS:
        return None
    return query(connection, 'SELECT "table"::regclass::text, partition, protocol, rows FROM mixedcc.partitions ORDER BY 1, 2')


def state(connection):
    return {table: contents(connection, table) for table in TABLES}


def check_indexes(connection, what):
    query(connection, "SET enable_seqscan = off; SET enable_bitmapscan = off")
    by_index = {t: query(connection, f"SELECT id, g FROM {t} WHERE g >= -9 OR g IS NULL ORDER BY id") for t in TABLES}
    by_key = {t: query(connection, f"SELECT id, g FROM {t} WHERE id > -10 ORDER BY id") for t in TABLES}
    query(connection, "RESET enable_seqscan; RESET enable_bitmapscan")
    equal(f"restart: indexes agree {what}", by_index, by_key)


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


def backend_killed():
    """SIGKILL to one backend: the postmaster restarts the others."""
    victim = connect(DATABASE)
    query(victim, "BEGIN; UPDATE r_2pl SET v = 'x'")
    boss = connect("postgres")
    os.kill(victim.info.backend_pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            boss.close()
            time.sleep(0.2)
            boss = connect("postgres")
            if value(boss, "SELECT NOT pg_is_in_recovery()"):
                boss.close()
                return
        except psycopg2.OperationalError:
            pass
    raise RuntimeError("the server did not come back")


def test_backend_crash():
    backend_killed()
    check_empty("after kill -9 of a backend")


def test_crash_after_load():
    """The saved rows are used once: a crash right after a clean start shows none of them."""
    server("restart")
    server("crash")
    check_empty("after a crash that followed a clean start")
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_clean, test_restart_in_a_transaction, test_crash, test_backend_crash, test_crash_after_load)
