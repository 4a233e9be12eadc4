#!/usr/bin/python3
"""Roles that have the right MAINTAIN, or the rights of pg_maintain, and event triggers of REINDEX
(PostgreSQL 17): maintenance of mixedcc tables does for them what it does for the owner."""

import psycopg2

from lib.common import OURS, connect, drop_database, equal, main, make_database, ok, query, server, value

DATABASE = "mixedcc_maintainers"
FIRST = 170000
ROLES = {"maintainer": "GRANT MAINTAIN ON t TO maintainer", "maintainer_of_all": "GRANT pg_maintain TO maintainer_of_all",
         "stranger": "GRANT SELECT ON t TO stranger"}
LEFT_OUT = 'NOTICE:  REINDEX CONCURRENTLY leaves out primary key "t_pkey" of a mixedcc table'
DENIED = "42501"
# What a role says, with and without the right.
COMMANDS = {
    "CLUSTER t USING t_v": ([], DENIED),
    "CLUSTER": ([], ['WARNING:  permission denied to cluster "t", skipping it']),
    "REINDEX INDEX CONCURRENTLY t_v": ([], DENIED),
    "REINDEX INDEX CONCURRENTLY t_pkey": ([LEFT_OUT], DENIED),
    "REINDEX TABLE CONCURRENTLY t": ([LEFT_OUT], DENIED),
}
TRIGGERS = """CREATE FUNCTION starts() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'start of %', TG_TAG; END $$;
    CREATE FUNCTION ends() RETURNS event_trigger LANGUAGE plpgsql AS $$ DECLARE r record; BEGIN
        FOR r IN SELECT * FROM pg_event_trigger_ddl_commands() LOOP RAISE NOTICE 'end of %', r.object_identity; END LOOP;
        IF EXISTS (SELECT FROM t WHERE v = -1) THEN RAISE EXCEPTION 'no'; END IF; END $$;
    CREATE EVENT TRIGGER starts ON ddl_command_start EXECUTE FUNCTION starts();
    CREATE EVENT TRIGGER ends ON ddl_command_end EXECUTE FUNCTION ends()"""
START, END = "NOTICE:  start of REINDEX", "NOTICE:  end of public.t_v"


def said(connection, sql):
    """The first line of each message, or the code of the error."""
    del connection.notices[:]
    try:
        query(connection, sql)
    except psycopg2.Error as error:
        return error.pgcode
    return [notice.splitlines()[0] for notice in connection.notices]


def make_table(connection):
    query(connection, "DROP TABLE IF EXISTS t; CREATE TABLE t (id int PRIMARY KEY, v int) USING mixedcc")
    query(connection, "INSERT INTO t SELECT i, 1000 - i FROM generate_series(1, 999) i; CREATE INDEX t_v ON t (v)")
    query(connection, "ALTER TABLE t CLUSTER ON t_v")


def compare(connection, name):
    """All rows are there, in both indexes, and the key holds."""
    found = query(connection, "SELECT count(*), sum(id), sum(v), (SELECT v FROM t WHERE id = 7), (SELECT id FROM t WHERE v = 7) FROM t")
    equal(f"{name}: the rows", found, [(999, 499500, 499500, 993, 993)])
    equal(f"{name}: the key", said(connection, "INSERT INTO t VALUES (7, 7)"), "23505")
    query(connection, "SELECT bt_index_check('t_pkey', true), bt_index_check('t_v', true)")


def test_rights(connection):
    for role, grant in ROLES.items():
        make_table(connection)
        query(connection, f"CREATE ROLE {role}; {grant}")
        may = role != "stranger"
        for sql, (with_right, without) in COMMANDS.items():
            query(connection, f"SET ROLE {role}")
            equal(f"{role}: {sql}", said(connection, sql), with_right if may else without)
            query(connection, "RESET ROLE")
            if sql == "CLUSTER t USING t_v" and may:
                first = value(connection, "SELECT v FROM t LIMIT 1")
                equal(f"{role}: the rows are in the order of the index", first, 1)
            compare(connection, f"{role}: {sql}")
        query(connection, f"SET ROLE {role}")
        found = said(connection, "REINDEX SCHEMA CONCURRENTLY public")
        equal(f"{role}: REINDEX SCHEMA", found, [LEFT_OUT] if role == "maintainer_of_all" else DENIED)
        query(connection, "RESET ROLE")


def test_first_use(connection):
    """The rows of a permanent table are not in memory yet when it is clustered."""
    make_table(connection)
    query(connection, ROLES["maintainer"])
    connection.close()
    server("restart")
    connection = connect(DATABASE)
    query(connection, "SET ROLE maintainer")
    equal("CLUSTER is the first to use a table", said(connection, "CLUSTER t USING t_v"), [])
    query(connection, "RESET ROLE")
    compare(connection, "after the first use")
    return connection


def test_events(connection):
    make_table(connection)
    query(connection, TRIGGERS)
    for sql, wanted in (("REINDEX INDEX CONCURRENTLY t_v", [START, END]), ("REINDEX INDEX CONCURRENTLY t_pkey", [START, LEFT_OUT]),
                        ("REINDEX TABLE CONCURRENTLY t", [START, LEFT_OUT, END]), ("REINDEX SCHEMA CONCURRENTLY public", [START, LEFT_OUT, END])):
        equal(f"events of {sql}", said(connection, sql), wanted)
    equal("events of CLUSTER", said(connection, "CLUSTER t USING t_v"), [])
    query(connection, "UPDATE t SET v = -1 WHERE id = 999")
    equal("an event trigger fails", said(connection, "REINDEX TABLE CONCURRENTLY t"), "P0001")
    query(connection, "UPDATE t SET v = 1 WHERE id = 999")
    # What the failed command has collected is gone.
    equal("events after a failure", said(connection, "REINDEX TABLE CONCURRENTLY t"), [START, LEFT_OUT, END])
    query(connection, "DROP EVENT TRIGGER starts; DROP EVENT TRIGGER ends")
    compare(connection, "after REINDEX with event triggers")


def run():
    connection = make_database(DATABASE)
    if connection.server_version < FIRST:
        ok("MAINTAIN, and event triggers of REINDEX, begin with PostgreSQL 17")
        return
    query(connection, "CREATE EXTENSION amcheck")
    try:
        test_rights(connection)
        connection = test_first_use(connection)
        test_events(connection)
    finally:
        query(connection, "RESET ROLE")
        for role in ROLES:
            if value(connection, "SELECT count(*) FROM pg_roles WHERE rolname = %s", (role,)):
                query(connection, f"DROP OWNED BY {role}; DROP ROLE {role}")
    connection.close()


if __name__ == "__main__":
    if not OURS:
        ok("this test is about what only mixedcc does")
        raise SystemExit(0)
    main(run, lambda: drop_database(DATABASE))
