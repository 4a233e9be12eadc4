#!/usr/bin/python3
"""Definitions of permanent tables: which commands make a table permanent or unlogged, and what each
leaves after a crash. Databases are copied and dropped while their tables are dirty. Dump and
restore, and ages of transaction ids."""

import os
import tempfile

import psycopg2

from lib.common import OURS, check, connect, drop_database, equal, main, make_database, query, server, tool, value

DATABASE = "process_definitions"
COPY = "process_definitions_copy"
METHOD = "mixedcc" if OURS else "heap"
SAFE = "-c synchronous_commit=on"


def error_of(connection, sql):
    try:
        query(connection, sql)
    except psycopg2.Error as error:
        return error.pgcode
    return None


def kind(connection, *names):
    rows = query(connection, "SELECT relname, relpersistence FROM pg_class WHERE relname = ANY (%s)", (list(names),))
    return "".join(dict(rows)[name] for name in names)


def content(connection, table):
    return query(connection, f"SELECT count(*), md5(string_agg(t::text, ',' ORDER BY t::text)) FROM {table} t")[0]


def by_index(connection, sql):
    query(connection, "SET enable_seqscan = off")
    rows = query(connection, sql)
    query(connection, "RESET enable_seqscan")
    return rows


def test_persistence():
    make_database(DATABASE).close()
    connection = connect(DATABASE, options=SAFE)
    query(connection, f"""CREATE TABLE t (id int PRIMARY KEY, v text, n int[]) USING {METHOD};
        CREATE UNLOGGED TABLE u (id int PRIMARY KEY) USING {METHOD};
        CREATE TABLE made USING {METHOD} AS SELECT i AS id FROM generate_series(1, 50) i;
        CREATE TABLE parent (id int, v int) PARTITION BY RANGE (id);
        CREATE TABLE child PARTITION OF parent FOR VALUES FROM (0) TO (100) USING {METHOD};
        CREATE TABLE h (id int PRIMARY KEY, v int) USING heap""")
    equal("definitions: permanent and unlogged tables", kind(connection, "t", "t_pkey", "u", "u_pkey", "made", "parent", "child"), "ppuuppp")
    query(connection, """INSERT INTO t SELECT i, 'v' || i, ARRAY[i % 10] FROM generate_series(1, 3000) i;
        CREATE INDEX t_v ON t (v); CREATE INDEX t_n ON t USING gin (n); CREATE INDEX t_h ON t USING hash (v);
        UPDATE t SET v = 'w' || id WHERE id % 3 = 0; DELETE FROM t WHERE id % 7 = 0;
        INSERT INTO parent SELECT i, i FROM generate_series(1, 90) i; INSERT INTO u VALUES (1);
        INSERT INTO h VALUES (1, 1), (2, 2)""")
    query(connection, f"ALTER TABLE h SET ACCESS METHOD {METHOD}")
    query(connection, "INSERT INTO h VALUES (3, 3); ALTER TABLE u SET LOGGED; INSERT INTO u VALUES (2)")
    query(connection, "ALTER TABLE made SET UNLOGGED; ALTER TABLE t ADD CHECK (id > 0); ALTER TABLE parent ALTER v TYPE bigint")
    equal("definitions: changes of persistence", kind(connection, "h", "h_pkey", "u", "u_pkey", "made"), "ppppu")
    if OURS:
        equal("definitions: another tablespace is refused", error_of(connection, "ALTER TABLE t SET TABLESPACE pg_global") in ("0A000", "22023", "42501"), True)
    before = {table: content(connection, table) for table in ("t", "u", "parent", "h")}
    connection.close()
    server("crash")
    connection = connect(DATABASE, options=SAFE)
    equal("definitions: rows after a crash", {table: content(connection, table) for table in before}, before)
    equal("definitions: an unlogged table is empty after a crash", content(connection, "made")[0], 0)
    for name, sql in (("key", "SELECT id FROM t WHERE id = 300"), ("btree", "SELECT id FROM t WHERE v = 'w300'"),
                      ("hash", "SELECT id FROM t WHERE v = 'w300' AND id > 0")):
        equal(f"definitions: the {name} index after a crash", by_index(connection, sql), [(300,)])
    wanted = value(connection, "SELECT count(*) FROM t WHERE n[1] = 4")
    equal("definitions: the gin index after a crash", by_index(connection, "SELECT count(*) FROM t WHERE n @> '{4}'"), [(wanted,)])
    equal("definitions: unique checks after a crash", error_of(connection, "INSERT INTO t VALUES (300, 'x', NULL)"), "23505")
    query(connection, "VACUUM t")
    query(connection, "INSERT INTO t SELECT i, 'new', ARRAY[4] FROM generate_series(10001, 10500) i")
    query(connection, "VACUUM ANALYZE t")
    equal("definitions: numbers are used again", by_index(connection, "SELECT count(*) FROM t WHERE v = 'new'"), [(500,)])
    connection.close()


def test_truncate_and_drop():
    connection = connect(DATABASE, options=SAFE)
    query(connection, f"CREATE TABLE a (id int PRIMARY KEY, v text) USING {METHOD}; CREATE TABLE b (id int) USING {METHOD}")
    query(connection, "INSERT INTO a SELECT i, 'a' FROM generate_series(1, 1000) i; INSERT INTO b SELECT generate_series(1, 1000)")
    query(connection, "CHECKPOINT; UPDATE a SET v = 'b'; UPDATE b SET id = -id")
    query(connection, "BEGIN; TRUNCATE a; INSERT INTO a VALUES (1, 'c'); TRUNCATE a; INSERT INTO a VALUES (2, 'd'); SAVEPOINT s; TRUNCATE a; ROLLBACK TO s; COMMIT")
    query(connection, "BEGIN; DROP TABLE b; ROLLBACK; INSERT INTO b VALUES (7); BEGIN; DROP TABLE t; CHECKPOINT; COMMIT")
    connection.close()
    server("crash")
    connection = connect(DATABASE, options=SAFE)
    equal("definitions: a table that was emptied", query(connection, "SELECT * FROM a"), [(2, "d")])
    equal("definitions: a DROP that was rolled back", query(connection, "SELECT count(*), sum(id) FROM b"), [(1001, 7 - 500500)])
    equal("definitions: a table that was dropped", value(connection, "SELECT to_regclass('t') IS NULL"), True)
    connection.close()


def test_databases():
    connection = connect(DATABASE, options=SAFE)
    query(connection, f"CREATE TABLE c (id int PRIMARY KEY, v int) USING {METHOD}; CREATE INDEX c_v ON c (v)")
    query(connection, "INSERT INTO c SELECT i, 0 FROM generate_series(1, 5000) i")
    boss = connect("postgres")
    for strategy in ("wal_log", "file_copy"):
        query(connection, "UPDATE c SET v = v + 1; DELETE FROM c WHERE id = v")
        wanted = content(connection, "c")
        busy = error_of(boss, f"CREATE DATABASE {COPY} TEMPLATE {DATABASE}") if strategy == "wal_log" else "55006"
        equal(f"definitions: a template that is in use, {strategy}", busy, "55006")
        connection.close()
        query(boss, f"CREATE DATABASE {COPY} TEMPLATE {DATABASE} STRATEGY {strategy}")
        copy = connect(COPY, options=SAFE)
        equal(f"definitions: a copied database has the rows, {strategy}", content(copy, "c"), wanted)
        equal(f"definitions: and indexes that fit, {strategy}", by_index(copy, "SELECT count(*) FROM c WHERE v >= 0"), [(wanted[0],)])
        query(copy, "UPDATE c SET v = -1; CHECKPOINT; UPDATE c SET v = -2 WHERE id > 10")
        wanted_copy = content(copy, "c")
        copy.close()
        if strategy == "wal_log":
            boss.close()
            server("crash")
            boss = connect("postgres")
            copy = connect(COPY, options=SAFE)
            equal("definitions: the copy after a crash", content(copy, "c"), wanted_copy)
            query(copy, "UPDATE c SET v = -3")
            if OURS:
                busy = error_of(boss, f"DROP DATABASE {COPY}")
                equal("definitions: a database that is in use is not dropped", busy, "55006")
                equal("definitions: and goes on", query(copy, "SELECT DISTINCT v FROM c"), [(-3,)])
        query(boss, f"DROP DATABASE {COPY} WITH (FORCE)")
        query(boss, "CHECKPOINT")
        connection = connect(DATABASE, options=SAFE)
        equal(f"definitions: the template is as before, {strategy}", content(connection, "c"), wanted)
    boss.close()
    connection.close()


def test_dump():
    connection = connect(DATABASE, options=SAFE)
    tables = ("a", "b", "c", "u", "parent", "made")
    before = {table: (kind(connection, table), content(connection, table)) for table in tables}
    with tempfile.NamedTemporaryFile(suffix=".sql") as file:
        os.chmod(file.name, 0o666)
        tool("pg_dump", "-f", file.name, DATABASE)
        make_database(COPY).close()
        tool("psql", "-Xq", "-f", file.name, COPY)
    copy = connect(COPY, options=SAFE)
    equal("definitions: dump and restore keep rows and persistence",
          {table: (kind(copy, table), content(copy, table)) for table in tables}, before)
    copy.close()
    connection.close()
    drop_database(COPY)


def test_ages():
    connection = connect(DATABASE, options=SAFE)
    query(connection, "CREATE TABLE w_heap (id int) USING heap")
    query(connection, """DO $$ BEGIN FOR i IN 1 .. 2000 LOOP
        BEGIN INSERT INTO w_heap VALUES (i); EXCEPTION WHEN OTHERS THEN NULL; END;
        END LOOP; UPDATE c SET v = 5; END $$""")
    age = "SELECT age(relfrozenxid) FROM pg_class WHERE relname = 'c'"
    old = value(connection, age)
    query(connection, "VACUUM (FREEZE) c")
    new = value(connection, age)
    check("definitions: VACUUM advances relfrozenxid", old > 1000 and new < 100, (old, new))
    wanted = content(connection, "c")
    connection.close()
    server("crash")
    connection = connect(DATABASE, options=SAFE)
    equal("definitions: the rows of before are there", content(connection, "c"), wanted)
    connection.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_persistence, test_truncate_and_drop, test_databases, test_dump, test_ages)
