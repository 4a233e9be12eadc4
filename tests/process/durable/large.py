#!/usr/bin/python3
"""A transaction of 100 MB of rows, of 1 GB in the long form. It commits, is rolled back, meets
crashes, and finds the memory full. Rows are there whole, or not at all."""

import os
import threading

import psycopg2

from lib.clusters import Cluster
from lib.common import check, equal, main, must_come, query, value

# Rows of 1000 bytes.
ROWS = 1_000_000 if os.environ.get("MIXEDCC_LONG") else 100_000
MB = ROWS // 1000
DIGEST = "SELECT count(*), sum(k), sum(v), sum(length(t)) FROM big"
USED = "SELECT used_bytes FROM mixedcc.memory_usage()"
FILL = "INSERT INTO big SELECT i, i % 7, repeat('x', 1000) FROM generate_series({}, {}) i"
LIMIT = "SET statement_timeout = '10min'"


def digest(connection):
    query(connection, "SELECT mixedcc.check_primary_index('big')")
    return query(connection, DIGEST)


def begin():
    # There is room for the rows twice, and not for three times.
    cluster = Cluster.new(**{"mixedcc.memory": f"{MB * 5 // 2 + 96}MB", "max_wal_size": "8GB", "mixedcc.stop_events": "on"})
    cluster.start()
    connection = cluster.connect()
    query(connection, "CREATE EXTENSION mixedcc; CREATE TABLE big (k bigint PRIMARY KEY, v int, t text) USING mixedcc")
    query(connection, "CREATE TABLE small (k int PRIMARY KEY) USING mixedcc; INSERT INTO small VALUES (1)")
    return cluster, connection


def again(cluster):
    cluster.crash()
    cluster.start()
    return cluster.connect()


def rolled_back(connection, wanted):
    before = value(connection, USED)
    query(connection, "BEGIN")
    query(connection, FILL.format(ROWS + 1, 2 * ROWS - 1))
    query(connection, "UPDATE big SET v = v + 1 WHERE k % 50 = 0; DELETE FROM big WHERE k % 50 = 1")
    query(connection, "ROLLBACK")
    equal("large: ROLLBACK leaves all as it was", digest(connection), wanted)
    query(connection, "VACUUM big")
    must_come(lambda: value(connection, USED) < before + (MB << 20) // 4)
    check("large: it gives the memory back", True)


def full(connection, wanted):
    query(connection, "BEGIN")
    query(connection, "UPDATE big SET v = -1 WHERE k <= 10; INSERT INTO small VALUES (2)")
    try:
        query(connection, FILL.format(ROWS + 1, 4 * ROWS))
        check("large: the memory becomes full within it", False)
    except psycopg2.Error as error:
        equal("large: the memory becomes full within it", error.pgcode, "53200")
    query(connection, "ROLLBACK")
    equal("large: then it loses nothing", digest(connection), wanted)
    query(connection, "INSERT INTO small VALUES (3)")


def killed(cluster, connection, event):
    """The server crashes when a commit comes to the event."""
    def write():
        session = cluster.connect()
        try:
            query(session, f"{LIMIT}; SET mixedcc.kill_at = '{event}'; BEGIN; {FILL.format(-ROWS, -1)}; COMMIT")
        except psycopg2.Error:
            return
        check(f"large: the commit comes to {event}", False)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    connection.close()
    return again(cluster)


def test_large():
    cluster, connection = begin()
    try:
        query(connection, f"BEGIN; {FILL.format(1, ROWS)}; COMMIT")
        wanted = [(ROWS, ROWS * (ROWS + 1) // 2, sum(i % 7 for i in range(1, ROWS + 1)), 1000 * ROWS)]
        connection.close()
        connection = again(cluster)
        equal("large: the answered commit is there after a crash", digest(connection), wanted)
        rolled_back(connection, wanted)
        full(connection, wanted)
        connection = killed(cluster, connection, "commit-built")
        equal("large: a crash before its record leaves nothing", digest(connection), wanted)
        equal("large: other commits are there", query(connection, "SELECT k FROM small ORDER BY k"), [(1,), (3,)])
        connection.close()
    finally:
        cluster.remove()


if __name__ == "__main__":
    main(test_large)
