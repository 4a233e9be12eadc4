#!/usr/bin/python3
"""pg_prewarm on permanent tables: it loads the table, and reads pages of its file into shared
buffers. With `zero_damaged_pages` it leaves zeros there in place of a damaged page. A later load
looks at the disk, and refuses the table."""

import psycopg2

from lib.clusters import Cluster
from lib.common import check, equal, main, must_come, query, value

PAGE = 8192
FILL = "CREATE TABLE {} (k int PRIMARY KEY, t text) USING mixedcc; INSERT INTO {} SELECT i, repeat('x', 1000) FROM generate_series(1, {}) i"
DIGEST = "SELECT count(*), sum(k), sum(length(t)) FROM {}"


def error_of(connection, sql):
    try:
        return query(connection, sql)
    except psycopg2.Error as error:
        return error.pgcode


def damage(path, block):
    """A wrong header."""
    with open(path, "r+b") as file:
        file.seek(block * PAGE + 11)
        file.write(b"\xff" * 8)


def begin():
    cluster = Cluster.new(**{"mixedcc.memory": "128MB", "mixedcc.load_workers": 0, "max_wal_size": "2GB"})
    cluster.start()
    connection = cluster.connect()
    query(connection, "CREATE EXTENSION mixedcc; CREATE EXTENSION pg_prewarm")
    for table, rows in (("good", 5000), ("large", 35_000), ("damaged", 20_000)):
        query(connection, FILL.format(table, table, rows))
    query(connection, "ANALYZE damaged")  # Blocks of a table that is not in memory.
    return cluster, connection


def test_prewarm():
    cluster, connection = begin()
    try:
        wanted = query(connection, DIGEST.format("good"))
        path = f"{cluster.data}/{value(connection, 'SELECT pg_relation_filepath($$damaged$$)')}"
        connection.close()
        cluster.control("stop", "-m", "fast")
        cluster.start(**{"mixedcc.memory": "64MB"})
        connection = cluster.connect()
        check("prewarm: pages are read", value(connection, "SELECT pg_prewarm('good')") > 0)
        equal("prewarm: the table is loaded", value(connection, "SELECT mixedcc.load('good')"), False)
        equal("prewarm: its rows", query(connection, DIGEST.format("good")), wanted)
        query(connection, "SELECT mixedcc.load('large')")
        query(connection, "SET zero_damaged_pages = on")
        equal("prewarm: there is no room for another table", error_of(connection, "SELECT count(*) FROM damaged"), "53200")
        damage(path, 2)
        pages = value(connection, "SELECT pg_prewarm('damaged', 'buffer', 'main', 0, 5)")
        equal("prewarm: zeros are read for the damaged page", pages, 6)
        query(connection, "DROP TABLE large")
        query(connection, "VACUUM good")
        # The memory of a dropped table comes back when no other process looks at it any more.
        must_come(lambda: error_of(connection, "SELECT count(*) FROM damaged") != "53200")
        equal("prewarm: then there is room, and the page is found damaged", error_of(connection, DIGEST.format("damaged")), "XX001")
        connection.close()
    finally:
        cluster.remove()


if __name__ == "__main__":
    main(test_prewarm)
