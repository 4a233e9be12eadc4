#!/usr/bin/python3
"""When the shared region becomes full: warnings. When it is: error 53200 with a hint, the
transaction rolls back, nothing is lost. Space comes back after DELETE and VACUUM, TRUNCATE, DROP
TABLE and DROP DATABASE. It also comes back after a reader that held old versions has ended."""

import random
import re

import psycopg2

from lib.common import OURS, check, connect, create_table, drop_database, equal, main, make_database, must_come, ok, query, value, wait_until
from lib.log import ServerLog

DATABASE = "process_memory"
ROW = 200_000
BATCH = 100
TEXT = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=ROW))


def insert(connection, table, first):
    query(connection, f"INSERT INTO {table} SELECT i, %s FROM generate_series(%s, %s) i", (TEXT, first, first + BATCH - 1))


def fill(connection, table):
    """Inserts until the error; returns the number of rows and the error."""
    rows = 0
    while rows < 200_000:
        try:
            insert(connection, table, rows)
        except psycopg2.Error as error:
            return rows, error
        rows += BATCH
    raise RuntimeError("the region did not become full")


def check_full(connection, table, rows, error):
    equal("memory: the error is out_of_memory", error.pgcode, "53200")
    check("memory: the error has a hint", error.diag.message_hint, str(error))
    equal("memory: committed rows are there", value(connection, f"SELECT count(*) FROM {table}"), rows)
    equal("memory: they are whole", value(connection, f"SELECT count(*) FROM {table} WHERE v = %s", (TEXT,)), rows)
    check("memory: a row can still be read by key", query(connection, f"SELECT id FROM {table} WHERE id = 5") == [(5,)])


def check_refill(connection, table, rows, what):
    again, error = fill(connection, table)
    equal(f"memory: full again after {what}, with the same error", error.pgcode, "53200")
    check(f"memory: space comes back after {what}", again >= rows * 0.85, f"{again} rows of {rows}")


def make(connection, table):
    create_table(connection, table, "id int PRIMARY KEY, v text", "UNLOGGED", protocol="occ")


def warnings(connection):
    return query(connection, "SELECT percent, left_at IS NULL, used_bytes >= total_bytes * percent / 100 FROM mixedcc.memory_warnings ORDER BY number")


def check_warnings(connection):
    """The coordinator tells the log and a view, once for each threshold that is passed."""
    log, pattern = ServerLog(connection), re.compile(r"WARNING:  mixedcc tables use more than (\d+) % of mixedcc\.memory")
    used = "SELECT used_bytes::float8 / (used_bytes + free_bytes) FROM mixedcc.memory"
    equal("memory: no warnings at first", warnings(connection), [])
    first = 0
    for share, wanted in ((0.82, [80]), (0.87, [80]), (0.96, [80, 95])):
        while value(connection, used) < share:
            insert(connection, "m", first)
            first += BATCH
        passes = value(connection, "SELECT passes FROM mixedcc.coordinator")
        must_come(lambda: value(connection, "SELECT passes FROM mixedcc.coordinator") > passes + 1)  # noqa: B023
        equal(f"memory: warnings at {share:.0%}", warnings(connection), [(percent, True, True) for percent in wanted])
        equal(f"memory: in the log at {share:.0%}", log.all(pattern), [(str(percent),) for percent in wanted])
    check("memory: warnings have a detail and a hint", re.search(r"DETAIL:  \d+ MB of \d+ MB are in use.*\n.*HINT:  .*which is \d+ MB", log.text()), log.text())
    query(connection, "TRUNCATE m")
    must_come(lambda: not any(above for _, above, _ in warnings(connection)))
    equal("memory: both are left", warnings(connection), [(80, False, True), (95, False, True)])
    equal("memory: that is no other warning", len(log.all(pattern)), 2)


def test_full():
    if not OURS:
        ok("memory: heap has no region")
        return
    connection = make_database(DATABASE)
    make(connection, "m")
    make(connection, "other")
    query(connection, "INSERT INTO other VALUES (1, 'small')")
    check_warnings(connection)
    rows, error = fill(connection, "m")
    check_full(connection, "m", rows, error)
    query(connection, "DELETE FROM m WHERE id % 2 = 0")
    query(connection, "VACUUM m")
    check("memory: deletes work when it is full", value(connection, "SELECT count(*) FROM m") == rows // 2)
    for first in range(1_000_000, 1_000_000 + int(rows * 0.4), BATCH):
        insert(connection, "m", first)
    ok("memory: VACUUM makes room for new rows")
    query(connection, "TRUNCATE m")
    check_refill(connection, "m", rows, "TRUNCATE")
    query(connection, "DELETE FROM m")
    query(connection, "VACUUM m")
    check_refill(connection, "m", rows, "DELETE and VACUUM")
    query(connection, "DROP TABLE m")
    make(connection, "m")
    check_refill(connection, "m", rows, "DROP TABLE")
    equal("memory: other tables are untouched", query(connection, "SELECT * FROM other"), [(1, "small")])
    vacuum_at_once(connection)
    rollback(connection, rows)
    versions(connection, rows)
    connection.close()
    drop_database(DATABASE)
    connection = make_database(DATABASE)
    make(connection, "m")
    check_refill(connection, "m", rows, "DROP DATABASE")
    connection.close()
    drop_database(DATABASE)


def vacuum_at_once(connection):
    """VACUUM frees what the last commit before it has deleted. Another process may hold a snapshot
    for a moment."""
    create_table(connection, "small", "id int PRIMARY KEY", "UNLOGGED", protocol="occ")
    def removed():
        query(connection, "INSERT INTO small SELECT generate_series(1, 100); DELETE FROM small")
        connection.notices.clear()
        query(connection, "VACUUM (VERBOSE) small")
        return any("tuples: 100 removed" in notice for notice in connection.notices)
    check("memory: VACUUM frees what was deleted just before", wait_until(removed), str(connection.notices))
    query(connection, "DROP TABLE small")


def rollback(connection, rows):
    """A transaction that fills the region and rolls back, also to a savepoint, gives all back."""
    query(connection, "TRUNCATE m")
    query(connection, "BEGIN")
    for first in range(0, int(rows * 0.8), BATCH):
        insert(connection, "m", first)
    query(connection, "ROLLBACK")
    query(connection, "BEGIN; SAVEPOINT s")
    for first in range(0, int(rows * 0.8), BATCH):
        insert(connection, "m", first)
    query(connection, "ROLLBACK TO s")
    query(connection, "INSERT INTO m VALUES (1, 'kept'); COMMIT")
    equal("memory: a rollback in a full region keeps the rest", query(connection, "SELECT id, v FROM m"), [(1, "kept")])
    query(connection, "TRUNCATE m")
    check_refill(connection, "m", rows, "ROLLBACK")


def versions(connection, rows):
    """Old versions go when no snapshot can see them, and stay while one can."""
    query(connection, "TRUNCATE m")
    insert(connection, "m", 0)
    rounds = int(rows / BATCH * 1.5)
    for _ in range(rounds):
        query(connection, "UPDATE m SET v = v")
    ok("memory: updates reuse the space of old versions")
    reader = connect(DATABASE, options="-c mixedcc.prune_versions=off")
    query(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    before = value(reader, "SELECT md5(string_agg(id || v, '' ORDER BY id)) FROM m")
    error, number = None, 0
    while error is None and number < rounds:
        try:
            query(connection, "UPDATE m SET v = %s || v", (str(number),))
            number += 1
        except psycopg2.Error as caught:
            error = caught
    check("memory: the versions that a long reader keeps do not fit: out_of_memory", error is not None and error.pgcode == "53200", str(error))
    check("memory: some of them did", number > 1, number)
    equal("memory: the long reader still sees its rows", value(reader, "SELECT md5(string_agg(id || v, '' ORDER BY id)) FROM m"), before)
    query(reader, "COMMIT")
    reader.close()
    for _ in range(rounds):
        query(connection, "UPDATE m SET v = v")
    ok("memory: space comes back after the long reader")
    pruned_versions(connection, rounds)


def pruned_versions(connection, rounds):
    """Beside a reader that keeps one version of each row as many updates fit as without one."""
    reader = connect(DATABASE)
    query(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    before = value(reader, "SELECT md5(string_agg(id || v, '' ORDER BY id)) FROM m")
    for _ in range(rounds):
        query(connection, "UPDATE m SET v = v")
    equal("memory: a long reader beside updates that prune sees its rows",
          value(reader, "SELECT md5(string_agg(id || v, '' ORDER BY id)) FROM m"), before)
    query(reader, "COMMIT")
    reader.close()


if __name__ == "__main__":
    main(test_full)
