#!/usr/bin/python3
"""Virtual generated columns (PostgreSQL 18) are computed on every path to a row, as on heap: by the
bypass, by the executor, by native access, in constraints, triggers and RETURNING."""

import psycopg2

from lib.common import OURS, connect, drop_database, equal, main, make_database, ok, query, value

DATABASE = "mixedcc_virtual"
FIRST = 180000
TABLES = """CREATE TABLE {0} (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2), b text NOT NULL DEFAULT 'b',
        joined text GENERATED ALWAYS AS (b || b), CHECK (twice < 1000)) USING {1};
    CREATE TABLE seen_{0} (n serial, what text);
    CREATE FUNCTION look_{0}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO seen_{0} (what) VALUES (TG_WHEN || TG_OP || OLD.twice || NEW.twice || NEW.joined); RETURN NEW; END $$;
    INSERT INTO {0} (id, a) SELECT i, i FROM generate_series(1, 20) i"""
TRIGGERS = """CREATE TRIGGER before BEFORE UPDATE ON {0} FOR EACH ROW EXECUTE FUNCTION look_{0}();
    CREATE TRIGGER after AFTER UPDATE ON {0} FOR EACH ROW EXECUTE FUNCTION look_{0}()"""
# Each runs on both tables, in this order.
STATEMENTS = """SELECT * FROM {0} WHERE id = 3
SELECT twice, joined FROM {0} WHERE id = 3 FOR UPDATE
SELECT {0} FROM {0} WHERE id = 4
SELECT sum(twice), count(joined) FROM {0}
SELECT sum(twice) FROM {0} WHERE id BETWEEN 3 AND 9
INSERT INTO {0} (id, a) VALUES (21, 21) RETURNING *
INSERT INTO {0} (id, a) VALUES (22, 500)
INSERT INTO {0} (id, a, twice) VALUES (23, 1, 2)
UPDATE {0} SET a = a + 1 WHERE id = 3 RETURNING twice, joined
UPDATE {0} SET b = 'c' WHERE id = 3 RETURNING {0}
UPDATE {0} SET a = twice WHERE id = 5
UPDATE {0} SET a = 600 WHERE id = 5
UPDATE {0} SET a = a WHERE twice = 10
DELETE FROM {0} WHERE id = 6 RETURNING twice
INSERT INTO {0} (id, a) VALUES (3, 0) ON CONFLICT (id) DO UPDATE SET a = {0}.twice + excluded.a RETURNING twice, joined
MERGE INTO {0} USING (VALUES (3, 1), (30, 1)) v (id, a) ON {0}.id = v.id WHEN MATCHED THEN UPDATE SET a = twice + 1 WHEN NOT MATCHED THEN INSERT (id, a) VALUES (v.id, v.a)
SELECT * FROM {0} ORDER BY id
ALTER TABLE {0} ADD COLUMN thrice int GENERATED ALWAYS AS (a * 3)
SELECT thrice, twice FROM {0} WHERE id = 7
ALTER TABLE {0} ALTER COLUMN a TYPE bigint
ALTER TABLE {0} ALTER COLUMN thrice SET EXPRESSION AS (a * 4)
SELECT thrice, twice FROM {0} WHERE id = 7
SELECT * FROM {0} ORDER BY id
SELECT what FROM seen_{0} ORDER BY n""".splitlines()


def said(connection, sql, name):
    try:
        return str(query(connection, sql.format(name))).replace(name, "t")
    except psycopg2.Error as error:
        return error.pgcode


def test_statements(connection):
    for level in ("read committed", "serializable"):
        for triggers in ("", TRIGGERS):
            for name, method in (("ours_t", "mixedcc"), ("heap_t", "heap")):
                query(connection, f"DROP TABLE IF EXISTS {name}, seen_{name}; DROP FUNCTION IF EXISTS look_{name}")
                query(connection, TABLES.format(name, method) + ";" + triggers.format(name))
            kind = level + (", triggers" if triggers else "")
            query(connection, f"SET default_transaction_isolation = '{level}'; SET mixedcc.mixed_serializable = allow")
            for way in ("on", "off"):
                query(connection, f"SET mixedcc.enable_bypass = {way}")
                for sql in STATEMENTS if way == "on" else STATEMENTS[:5]:
                    found = {name: said(connection, sql, name) for name in ("ours_t", "heap_t")}
                    equal(f"{kind}, bypass {way}: {sql.format('t')[:60]}", found["ours_t"], found["heap_t"])


def test_native(connection):
    query(connection, "DROP TABLE IF EXISTS ours_t, seen_ours_t; DROP FUNCTION IF EXISTS look_ours_t")
    query(connection, TABLES.format("ours_t", "mixedcc"))
    row = value(connection, "SELECT t::text FROM ours_t t WHERE id = 4")
    equal("get", value(connection, "SELECT mixedcc.get(NULL::ours_t, 4)::text"), row)
    equal("get_value", value(connection, "SELECT mixedcc.get_value(NULL::int, NULL::ours_t, 'twice', 4)"), 8)
    query(connection, "SELECT mixedcc.set(NULL::ours_t, 'a', 9, 4)")
    equal("set", value(connection, "SELECT twice FROM ours_t WHERE id = 4"), 18)
    try:
        found = value(connection, "SELECT mixedcc.set(NULL::ours_t, 'a', 900, 4)")
    except psycopg2.Error as error:
        found = error.pgcode
    equal("set keeps the CHECK constraint", found, "23514")
    try:
        found = query(connection, "SELECT * FROM mixedcc.range_scan(NULL::ours_t, 1, 5)")
    except psycopg2.Error as error:
        found = error.pgcode
    equal("range_scan refuses", found, "0A000")


def run():
    make_database(DATABASE)
    connection = connect(DATABASE)
    connection.autocommit = True
    if connection.server_version < FIRST:
        ok("virtual generated columns begin with PostgreSQL 18")
        return
    test_statements(connection)
    test_native(connection)
    connection.close()


if __name__ == "__main__":
    if not OURS:
        ok("this test compares with heap by itself")
        raise SystemExit(0)
    main(run, lambda: drop_database(DATABASE))
