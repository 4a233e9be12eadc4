#!/usr/bin/python3
"""Ages of transaction ids: the query by which PostgreSQL's documentation has wraparound watched
shows no alarm for mixedcc tables, VACUUM and autovacuum advance their horizons, and they hold no
database back."""

from lib.common import check, connect, create_table, drop_database, equal, main, make_database, query, server, value, wait_until

DATABASE = "process_wraparound"
WATCH = """SELECT max(greatest(age(c.relfrozenxid), age(t.relfrozenxid))) FROM pg_class c
    LEFT JOIN pg_class t ON c.reltoastrelid = t.oid WHERE c.relkind IN ('r', 'm')"""
# PostgreSQL takes no less for autovacuum_freeze_max_age.
MOST = 100_000


def horizons(connection, table):
    return query(connection, "SELECT age(relfrozenxid), mxid_age(relminmxid) FROM pg_class WHERE oid = %s::regclass", (table,))[0]


def consume(connection, n):
    """Each subtransaction that writes takes a transaction id."""
    query(connection, f"""DO $$ BEGIN FOR i IN 1 .. {n} LOOP
        BEGIN INSERT INTO w_heap VALUES (i); EXCEPTION WHEN OTHERS THEN NULL; END;
        END LOOP; TRUNCATE w_heap; END $$""")


def test_ages():
    connection = make_database(DATABASE)
    query(connection, "CREATE UNLOGGED TABLE w_heap (id int) USING heap")
    create_table(connection, "w", "id int PRIMARY KEY, v text", "UNLOGGED")
    create_table(connection, "w_as", "id int")
    query(connection, "ALTER TABLE w_as ALTER id TYPE bigint; TRUNCATE w_as")
    for table in ("w", "w_as"):
        xids, multis = horizons(connection, table)
        check(f"wraparound: {table} has an age when it is made", xids < 1000 and multis < 1000, (xids, multis))
    check("wraparound: no alarm", value(connection, WATCH) < 1_000_000)
    query(connection, "INSERT INTO w SELECT i, 'w' FROM generate_series(1, 1000) i")
    consume(connection, 2000)
    old = horizons(connection, "w")[0]
    query(connection, "VACUUM w, w_as")
    new = horizons(connection, "w")[0]
    check("wraparound: VACUUM advances it", old >= 2000 and new < 100, (old, new))
    query(connection, "VACUUM FREEZE")
    ages = query(connection, "SELECT age(datfrozenxid), mxid_age(datminmxid) FROM pg_database WHERE datname = current_database()")[0]
    check("wraparound: the database is not held back", ages[0] < 1000 and ages[1] < 1000, ages)
    connection.close()


def test_tables_of_before():
    """Version 0.1.0 made unlogged tables, without horizons."""
    connection = connect(DATABASE)
    query(connection, "UPDATE pg_class SET relfrozenxid = '0', relminmxid = '0' WHERE oid = 'w'::regclass")
    equal("wraparound: a table of 0.1.0", horizons(connection, "w")[0], 2147483647)
    query(connection, "VACUUM w")
    check("wraparound: VACUUM gives it horizons", max(horizons(connection, "w")) < 1000, horizons(connection, "w"))
    connection.close()


def test_autovacuum():
    """It comes to old tables by itself, and to one whose rows are not in memory."""
    connection = connect(DATABASE)
    query(connection, "CREATE UNLOGGED TABLE w_large (id int PRIMARY KEY, v text) USING mixedcc")
    query(connection, "INSERT INTO w_large SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) i")
    for setting in (f"autovacuum_freeze_max_age = {MOST}", "autovacuum_naptime = '1s'", "mixedcc.memory = '16MB'"):
        query(connection, f"ALTER SYSTEM SET {setting}")
    connection.close()
    server("restart")
    connection = connect(DATABASE)
    tables = ("w", "w_as", "w_large")
    consume(connection, MOST + 1000)
    check("wraparound: tables are old", all(horizons(connection, t)[0] > MOST for t in tables))
    query(connection, "SELECT txid_current()")
    young = lambda: all(horizons(connection, t)[0] < MOST for t in tables)  # noqa: E731
    check("wraparound: autovacuum advances their horizons", wait_until(young, 60), [horizons(connection, t) for t in tables])
    age = "SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()"
    check("wraparound: and their database's", wait_until(lambda: value(connection, age) < MOST, 60), value(connection, age))
    for setting in ("autovacuum_freeze_max_age", "autovacuum_naptime", "mixedcc.memory"):
        query(connection, f"ALTER SYSTEM RESET {setting}")
    connection.close()
    server("restart")
    connection = connect(DATABASE)
    equal("wraparound: rows are as before", value(connection, "SELECT count(*) FROM w_large"), 20000)
    connection.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_ages, test_tables_of_before, test_autovacuum)
