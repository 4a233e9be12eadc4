#!/usr/bin/python3
"""Values of permanent tables that are compressed in their rows: after crashes, checkpoints and
restarts they have the same bytes. Dumps, COPY and subscriptions have the same values. With
MIXEDCC_METHOD=heap the same on heap, where long ones are out of line."""

import os
import tempfile
import time

import psycopg2

from lib import common
from lib.common import METHOD, OURS, check, drop_database, equal, main, query, server, tool, value

DATABASE, COPY = "process_large_values", "process_large_copy"
# Text that no method compresses, and text like JSON.
FUNCTIONS = r"""
CREATE FUNCTION noise(seed int, n int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT left(string_agg(translate(encode(sha512((seed || ' ' || i)::bytea), 'base64'), E'\n=', ''), '' ORDER BY i), n)
    FROM generate_series(1, n / 84 + 1) i $$;
CREATE FUNCTION json(seed int, n int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT left(string_agg(format('{"id": %s, "name": "customer %s", "balance": %s}', i, seed, i * seed), ', ' ORDER BY i), n)
    FROM generate_series(1, n / 40 + 1) i $$;
"""
COLUMNS = ("extended", "other", "main", "extern")
CONTENT = ("SELECT id, n, " + ", ".join(f"md5({c}), pg_column_compression({c}), pg_column_size({c})" for c in COLUMNS)
           + " FROM large ORDER BY id")
VALUES = "SELECT id, n, " + ", ".join(f"md5({c})" for c in COLUMNS) + " FROM large ORDER BY id"


def connect(database=DATABASE):
    return common.connect(database, options="-c synchronous_commit=on")


def make(database):
    common.make_database(database).close()
    connection = connect(database)
    query(connection, FUNCTIONS)
    methods = value(connection, "SELECT enumvals FROM pg_settings WHERE name = 'default_toast_compression'")
    other = "lz4" if "lz4" in methods else "pglz"
    query(connection, f"""CREATE TABLE large (id int PRIMARY KEY, n int, extended text, other text COMPRESSION {other}, main text, extern text)
        USING {METHOD}; ALTER TABLE large ALTER main SET STORAGE main, ALTER extern SET STORAGE external""")
    return connection


def fill(connection):
    query(connection, """INSERT INTO large (id, n, extended) VALUES (1, 0, json(1, 1000000)), (2, 0, noise(2, 300000)), (3, 0, 'short');
        INSERT INTO large (id, n, other) VALUES (4, 0, json(4, 1000000)), (5, 0, noise(5, 4000));
        INSERT INTO large (id, n, main) VALUES (6, 0, json(6, 50000)); INSERT INTO large (id, n, extern) VALUES (7, 0, json(7, 50000));
        INSERT INTO large SELECT i, 0, json(i, 3000), json(i, 4000), json(i, 5000), 'x' FROM generate_series(10, 60) i""")


def crashes():
    """Each kind of value, over each kind of end, beside updates of other columns and savepoints."""
    connection = make(DATABASE)
    fill(connection)
    query(connection, "CREATE INDEX ON large (md5(extended)); CREATE INDEX ON large (other) WHERE id > 50")
    before = query(connection, CONTENT)
    if OURS:
        equal("what is compressed, of one column", [row[3] for row in before[:3]], ["pglz", None, None])
        check("what is compressed, of another one", before[3][6] in ("lz4", "pglz") and before[4][6] is None, before[3:5])
        bytes_ = value(connection, "SELECT sum(bytes)::int FROM mixedcc.partitions WHERE \"table\" = 'large'::regclass")
        check("their memory is that of what is stored", bytes_ < 1500000, bytes_)
    for turn, way in enumerate(("crash", "checkpoint", "restart", "crash")):
        wanted = query(connection, CONTENT)
        if way == "checkpoint":
            query(connection, "CHECKPOINT")
        connection.close()
        server("restart" if way == "restart" else "crash")
        connection = connect()
        equal(f"turn {turn}, {way}: values, methods and bytes", query(connection, CONTENT), wanted)
        equal(f"turn {turn}, {way}: by the index of an expression",
              query(connection, "SET enable_seqscan = off; SELECT id FROM large WHERE md5(extended) = md5(json(1, 1000000))"), [(1,)])
        equal(f"turn {turn}, {way}: by an index of the values", query(connection, "SELECT id FROM large WHERE other = json(55, 4000) AND id > 50"), [(55,)])
        # Other columns are taken over as they are.
        query(connection, "UPDATE large SET n = n + 1")
        equal(f"turn {turn}, {way}: after an update of another column", query(connection, CONTENT), [(row[0], row[1] + 1, *row[2:]) for row in wanted])
        query(connection, f"""BEGIN; UPDATE large SET extended = json({turn}, 20000) WHERE id = 20; SAVEPOINT s;
            UPDATE large SET main = noise(2, 9000), extern = 'y' WHERE id BETWEEN 20 AND 30; ROLLBACK TO s;
            INSERT INTO large (id, n, extended) VALUES ({100 + turn}, 0, json({turn}, 500000)); DELETE FROM large WHERE id = {40 + turn}; COMMIT""")
        query(connection, "BEGIN; UPDATE large SET other = json(9, 90000), main = extended WHERE id <= 50; ROLLBACK")
        equal(f"turn {turn}, {way}: a change of some", query(connection, f"SELECT id FROM large WHERE extended IN (json({turn}, 20000), json({turn}, 500000)) ORDER BY 1"),
              [(20,), (100 + turn,)])
    connection.close()


def copies():
    """A dump that is restored, with and without --inserts, and COPY by text and binary."""
    connection = connect()
    wanted, shown = query(connection, VALUES), query(connection, CONTENT)
    with tempfile.TemporaryDirectory() as directory:
        for options in ((), ("--inserts", "--rows-per-insert=7")):
            path = f"{directory}/dump.sql"
            tool("pg_dump", "-f", path, *options, DATABASE)
            drop_database(COPY)
            boss = common.connect("postgres")
            query(boss, f"CREATE DATABASE {COPY} TEMPLATE template0")
            boss.close()
            tool("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", COPY, "-f", path)
            copy = connect(COPY)
            equal(f"a restored dump {options}", query(copy, VALUES), wanted)
            size = "SELECT pg_column_compression(other), pg_column_size(other) FROM large WHERE id = 4"
            equal(f"a restored dump is compressed {options}", query(copy, size), query(connection, size))
            copy.close()
        copy = connect(COPY)
        for form in ("text", "binary"):
            path = os.path.join(directory, form)
            with open(path, "w+b") as file, connection.cursor() as from_, copy.cursor() as to:
                from_.copy_expert(f"COPY large TO STDOUT WITH (FORMAT {form})", file)
                file.seek(0)
                query(copy, "TRUNCATE large")
                to.copy_expert(f"COPY large FROM STDIN WITH (FORMAT {form})", file)
            equal(f"COPY as {form}", query(copy, VALUES), wanted)
            equal(f"COPY as {form}: compressed as before", query(copy, CONTENT), shown)
        copy.close()
    drop_database(COPY)
    connection.close()


def prepared():
    """PREPARE TRANSACTION over such rows, and a crash before its end."""
    connection = connect()
    if value(connection, "SELECT current_setting('max_prepared_transactions')::int") == 0:
        connection.close()
        return
    query(connection, "BEGIN; UPDATE large SET extended = json(77, 300000), n = -1 WHERE id IN (1, 2); UPDATE large SET n = -1 WHERE id = 4; PREPARE TRANSACTION 'large'")
    sizes = query(connection, "SELECT pg_column_size(other) FROM large WHERE id = 4")
    connection.close()
    server("crash")
    connection = connect()
    query(connection, "COMMIT PREPARED 'large'")
    equal("a prepared change of such rows", query(connection, "SELECT id FROM large WHERE extended = json(77, 300000) AND n = -1 ORDER BY 1"), [(1,), (2,)])
    equal("a prepared update of another column", query(connection, "SELECT pg_column_size(other) FROM large WHERE id = 4 AND n = -1"), sizes)
    connection.close()


def too_large():
    """A row that PostgreSQL could not copy is refused, and nothing is lost."""
    connection = connect()
    wanted = query(connection, VALUES)
    query(connection, "ALTER TABLE large ALTER extended SET STORAGE external, ALTER main SET STORAGE external; INSERT INTO large (id) VALUES (1000)")
    error = None
    try:
        for column in ("extended", "main", "extern"):
            query(connection, f"UPDATE large SET {column} = repeat('x', 400000000) WHERE id = 1000")
    except psycopg2.Error as e:
        error = e
    query(connection, "DELETE FROM large WHERE id = 1000")
    if OURS:
        # Where the region is smaller than the row it is full before. The executor may need a copy
        # of the row, which PostgreSQL refuses to make.
        check("a row above 1 GB is refused", error is not None and error.pgcode in ("53200", "54000", "XX000"), error)
    equal("nothing is lost", query(connection, VALUES), wanted)
    connection.close()


def cancelled():
    """A timeout ends the compression of a row between two of its values."""
    connection = connect()
    columns = [f"c{i}" for i in range(32)]
    query(connection, f"CREATE TABLE wide ({', '.join(c + ' text COMPRESSION pglz' for c in columns)}) USING {METHOD}")
    query(connection, "CREATE TABLE source USING heap AS SELECT json(1, 4000000) AS v")
    insert = f"INSERT INTO wide SELECT {', '.join('v || ' + str(i) for i in range(len(columns)))} FROM source"

    def run(settings):
        begun, code = time.monotonic(), None
        try:
            query(connection, f"BEGIN; {settings}; {insert}")
        except psycopg2.Error as error:
            code = error.pgcode
        query(connection, "ROLLBACK")
        return time.monotonic() - begun, code

    whole, code = run("SELECT 1")
    equal("compression: a wide row", code, None)
    part, code = run(f"SET LOCAL statement_timeout = {int(whole * 300)}")
    check("compression: a timeout ends it", code == "57014" and part < whole * 0.7, (whole, part, code))
    query(connection, "DROP TABLE wide, source")
    connection.close()


def end():
    drop_database(DATABASE)


main(crashes, copies, prepared, *([cancelled, too_large] if OURS else []), end)
