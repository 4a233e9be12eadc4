#!/usr/bin/python3
"""pg_dump and pg_restore: plain, of one table, directory format with several jobs;
rows, keys, partitions and protocols come back. A template's copy has the rows of permanent
tables."""

import os
import shutil
import tempfile

from lib.common import METHOD, OURS, check, connect, create_table, drop_database, equal, main, make_database, query, tool, value

DATABASE = "process_dump"
COPY = "process_dump_copy"
TABLES = ("d_occ", "d_2pl", "d_child", "d_large")


def fill(connection):
    create_table(connection, "d_occ", "w int, id int, v text, PRIMARY KEY (w, id)", partitions=3, partition_by="w", protocol="occ")
    create_table(connection, "d_2pl", "id int PRIMARY KEY, v text", partitions=4, protocol="2pl", waiting_policy="wait_die",
                 adaptive_min_gain="12.5", adaptive_interval="5s", candidates="occ, 2pl")
    create_table(connection, "d_child", "id int PRIMARY KEY, p int REFERENCES d_2pl, g int GENERATED ALWAYS AS (p * 2) STORED", protocol="partcc")
    create_table(connection, "d_large", "id serial, v text, j jsonb")
    query(connection, "INSERT INTO d_occ SELECT i % 6, i, 'v' || i FROM generate_series(1, 2000) i")
    query(connection, "INSERT INTO d_2pl SELECT i, 'p' || i FROM generate_series(1, 500) i")
    query(connection, "INSERT INTO d_child SELECT i, i FROM generate_series(1, 500) i")
    query(connection, "INSERT INTO d_large (v, j) SELECT repeat(i::text, 100000), '{\"a\": 1}' FROM generate_series(1, 5) i")
    query(connection, "UPDATE d_occ SET v = v || '!' WHERE id % 2 = 0; DELETE FROM d_child WHERE id % 10 = 0")
    query(connection, "CREATE INDEX ON d_occ (v); CREATE INDEX ON d_large USING gin (j)")
    query(connection, "CREATE VIEW d_view AS SELECT w, count(*) FROM d_occ GROUP BY w")
    if OURS:
        # What ALTER TABLE sets goes with the table; set_protocol is for the running server.
        query(connection, "ALTER TABLE d_2pl SET (mixedcc.protocol = 'occ')")


def state(connection, tables=TABLES):
    return {t: value(connection, f"SELECT md5(string_agg(t::text, ',' ORDER BY t::text)) || count(*) FROM {t} t") for t in tables}


def layout(connection, tables=TABLES):
    if not OURS:
        return None
    parts = query(connection, """SELECT "table"::regclass::text, partition, protocol, rows FROM mixedcc.partitions
        WHERE "table"::regclass::text = ANY (%s) ORDER BY 1, 2""", (list(tables),))
    return parts + query(connection, """SELECT "table"::text, option, value FROM mixedcc.options
        WHERE "table"::text = ANY (%s) ORDER BY 1, 2""", (list(tables),))


def check_copy(name, wanted, wanted_layout, tables=TABLES):
    connection = connect(COPY)
    equal(f"dump: {name} brings the rows back", state(connection, tables), {t: wanted[t] for t in tables})
    methods = query(connection, "SELECT DISTINCT amname FROM pg_class JOIN pg_am a ON a.oid = relam WHERE relname = ANY (%s)", (list(tables),))
    equal(f"dump: {name} keeps the access method", methods, [(METHOD,)])
    if OURS:
        equal(f"dump: {name} keeps partitions and protocols", layout(connection, tables), [r for r in wanted_layout if r[0] in tables])
    if "d_2pl" in tables:
        query(connection, "SET enable_seqscan = off")
        equal(f"dump: {name} rebuilds the keys", value(connection, "SELECT v FROM d_2pl WHERE id = 77"), "p77")
    connection.close()


def test_dumps():
    connection = make_database(DATABASE)
    fill(connection)
    wanted, wanted_layout = state(connection), layout(connection)
    connection.close()
    directory = tempfile.mkdtemp()
    try:
        tool("pg_dump", "-f", f"{directory}/plain.sql", DATABASE)
        connect_to_empty(extension=False)
        tool("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", COPY, "-f", f"{directory}/plain.sql")
        check_copy("a plain dump", wanted, wanted_layout)
        tool("pg_dump", "-t", "d_occ", "-f", f"{directory}/one.sql", DATABASE)
        connect_to_empty(extension=OURS)
        tool("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", COPY, "-f", f"{directory}/one.sql")
        check_copy("a dump of one table", wanted, wanted_layout, ("d_occ",))
        tool("pg_dump", "-Fd", "-j", "3", "-f", f"{directory}/jobs", DATABASE)
        connect_to_empty(extension=False)
        tool("pg_restore", "-j", "3", "-d", COPY, f"{directory}/jobs")
        check_copy("a dump and restore with several jobs", wanted, wanted_layout)
        check_deferrable(wanted, wanted_layout, directory)
        check_snapshots(wanted)
    finally:
        shutil.rmtree(directory)


def connect_to_empty(extension):
    drop_database(COPY)
    boss = connect("postgres")
    query(boss, f"CREATE DATABASE {COPY} TEMPLATE template0")
    boss.close()
    if extension:
        connection = connect(COPY)
        query(connection, "CREATE EXTENSION mixedcc")
        connection.close()


def check_deferrable(wanted, wanted_layout, directory):
    """--serializable-deferrable: of tables of ours alone as any dump; with heap beside them as
    mixedcc.mixed_serializable says."""
    dump = ("pg_dump", "--serializable-deferrable", "-f", f"{directory}/deferrable.sql", DATABASE)
    tool(*dump)
    connect_to_empty(extension=False)
    tool("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", COPY, "-f", f"{directory}/deferrable.sql")
    check_copy("a serializable deferrable dump", wanted, wanted_layout)
    if not OURS:
        return
    connection = connect(DATABASE)
    query(connection, "CREATE TABLE d_heap USING heap AS SELECT 1 AS i")
    try:
        tool(*dump, env={**os.environ, "PGOPTIONS": "-c mixedcc.mixed_serializable=error"})
        refused = ""
    except RuntimeError as e:
        refused = str(e)
    check("dump: a serializable deferrable dump of both kinds is refused", "mixed_serializable" in refused, refused)
    for setting in ("allow", "serializable"):
        tool(*dump, env={**os.environ, "PGOPTIONS": f"-c mixedcc.mixed_serializable={setting}"})
        connect_to_empty(extension=False)
        tool("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", COPY, "-f", f"{directory}/deferrable.sql")
        check_copy(f"a serializable deferrable dump of both kinds, {setting}", wanted, wanted_layout)
    query(connection, "DROP TABLE d_heap")
    connection.close()


def check_snapshots(wanted):
    """An exported snapshot shows the same rows, whatever commits in between."""
    exporter = connect(DATABASE)
    query(exporter, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    name = value(exporter, "SELECT pg_export_snapshot()")
    writer = connect(DATABASE)
    query(writer, "UPDATE d_2pl SET v = 'later'; DELETE FROM d_occ WHERE id < 1000")
    importer = connect(DATABASE)
    query(importer, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    query(importer, f"SET TRANSACTION SNAPSHOT '{name}'")
    equal("dump: an imported snapshot is the exporter's", state(importer), state(exporter))
    equal("dump: the exporter's snapshot stands", state(exporter), wanted)
    for connection in (exporter, importer, writer):
        connection.close()


def test_template():
    """A copy of a database has mixedcc tables, with their rows if they are permanent, and their
    memory goes with it."""
    if not OURS:
        return
    drop_database(COPY)
    connection = connect(DATABASE)
    create_table(connection, "d_unlogged", "id int PRIMARY KEY, v text", "UNLOGGED")
    query(connection, "INSERT INTO d_unlogged VALUES (77, 'lost')")
    wanted = state(connection)
    connection.close()
    boss = connect("postgres")
    query(boss, f"CREATE DATABASE {COPY} TEMPLATE {DATABASE}")
    connection = connect(COPY)
    equal("dump: permanent tables of a copied database have the rows", state(connection), wanted)
    equal("dump: unlogged ones are empty", value(connection, "SELECT count(*) FROM d_unlogged"), 0)
    check("dump: a copied database says that they are", any("WARNING" in n and "d_unlogged" in n for n in connection.notices), str(connection.notices))
    query(connection, "SET enable_seqscan = off")
    for table in ("d_2pl", "d_unlogged"):
        query(connection, f"INSERT INTO {table} VALUES (1077, 'p77'); INSERT INTO {table} VALUES (1078, 'x')")
        equal(f"dump: {table} of a copied database can be used", query(connection, f"SELECT v FROM {table} WHERE id >= 1077 ORDER BY id"), [("p77",), ("x",)])
    connection.close()
    original = connect(DATABASE)
    equal("dump: the template keeps its rows", value(original, "SELECT count(*) FROM d_2pl"), 500)
    original.close()
    query(boss, f"ALTER DATABASE {COPY} RENAME TO {COPY}_renamed")
    query(boss, f"DROP DATABASE {COPY}_renamed")
    boss.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_dumps, test_template)
