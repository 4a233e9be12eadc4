#!/usr/bin/python3
"""RETURNING of OLD and NEW, and constraints that are not enforced or not validated (PostgreSQL 18):
each statement does on every path to a row what it does on heap."""

import psycopg2

from lib.common import OURS, connect, drop_database, equal, main, make_database, ok, query

DATABASE = "mixedcc_old_and_new"
FIRST = 180000
TABLES = """DROP TABLE IF EXISTS {0};
    CREATE TABLE {0} (id int PRIMARY KEY, v int, s text, CONSTRAINT c CHECK (10 / v > 100) NOT ENFORCED) USING {1};
    INSERT INTO {0} SELECT i, i, 's' || i FROM generate_series(1, 20) i"""
# Each runs on both tables, in this order.
STATEMENTS = """UPDATE {0} SET v = v + 1 WHERE id = 1 RETURNING old.v, new.v
UPDATE {0} SET v = v + 1 WHERE id = 1 RETURNING v, old.v + new.v
UPDATE {0} SET v = v + 1 WHERE id = 1 RETURNING old, new, old.*, new.*
UPDATE {0} SET v = v + 1 WHERE id = 1 RETURNING WITH (OLD AS before, NEW AS after) before.v, after.v, {0}.v
UPDATE {0} SET v = v + 1 WHERE id = 99 RETURNING old.v, new.v
UPDATE {0} SET v = v + 1 WHERE id BETWEEN 2 AND 4 RETURNING id, old.v, new.v
UPDATE {0} SET id = 30 WHERE id = 2 RETURNING old.id, new.id
INSERT INTO {0} VALUES (21, 21, 'n') RETURNING old.v, new.v
INSERT INTO {0} VALUES (22, 22, 'n'), (23, 23, 'n') RETURNING new.v, old IS NULL
INSERT INTO {0} VALUES (3, 3, 'n') ON CONFLICT (id) DO UPDATE SET v = excluded.v RETURNING old.v, new.v
DELETE FROM {0} WHERE id = 5 RETURNING old.v, new.v
DELETE FROM {0} WHERE id = 6 RETURNING v, new IS NULL, old.s
DELETE FROM {0} WHERE id BETWEEN 7 AND 8 RETURNING old.v, new.v
MERGE INTO {0} USING (VALUES (3, 1), (40, 1)) n (id, v) ON {0}.id = n.id WHEN MATCHED THEN UPDATE SET v = n.v WHEN NOT MATCHED THEN INSERT (id, v) VALUES (n.id, n.v) RETURNING old.v, new.v
INSERT INTO {0} VALUES (50, 0, 'checked by nobody')
UPDATE {0} SET v = 0 WHERE id = 10
SELECT * FROM {0} ORDER BY id""".splitlines()


def said(connection, sql, name):
    try:
        return str(query(connection, sql.format(name))).replace(name, "t")
    except psycopg2.Error as error:
        return error.pgcode


def test_statements(connection):
    for level in ("read committed", "serializable"):
        query(connection, f"SET default_transaction_isolation = '{level}'; SET mixedcc.mixed_serializable = allow")
        for way in ("on", "off"):
            query(connection, f"SET mixedcc.enable_bypass = {way}")
            for name, method in (("ours_t", "mixedcc"), ("heap_t", "heap")):
                query(connection, TABLES.format(name, method))
            for sql in STATEMENTS:
                found = {name: said(connection, sql, name) for name in ("ours_t", "heap_t")}
                equal(f"{level}, bypass {way}: {sql.format('t')[:70]}", found["ours_t"], found["heap_t"])


def test_native(connection):
    """A row with NULL in a column whose NOT NULL was not validated: no update keeps it."""
    query(connection, TABLES.format("ours_t", "mixedcc"))
    query(connection, "UPDATE ours_t SET s = NULL WHERE id = 1; ALTER TABLE ours_t ADD CONSTRAINT n NOT NULL s NOT VALID")
    for call, wanted in (("mixedcc.set(NULL::ours_t, 'v', 5, 1)", "23502"), ("mixedcc.add(NULL::ours_t, 'v', 5, 1)", "23502"),
                         ("mixedcc.set(NULL::ours_t, 'v', 5, 2)", "[(True,)]"), ("mixedcc.set(NULL::ours_t, 's', 'not null', 1)", "[(True,)]"),
                         ("mixedcc.add(NULL::ours_t, 'v', 5, 1)", "[(True,)]")):
        equal(f"a column that is not validated: {call}", said(connection, f"SELECT {call}", "ours_t"), wanted)


def run():
    make_database(DATABASE)
    connection = connect(DATABASE)
    connection.autocommit = True
    if connection.server_version < FIRST:
        ok("OLD and NEW in RETURNING begin with PostgreSQL 18")
        return
    test_statements(connection)
    test_native(connection)
    connection.close()


if __name__ == "__main__":
    if not OURS:
        ok("this test compares with heap by itself")
        raise SystemExit(0)
    main(run, lambda: drop_database(DATABASE))
