#!/usr/bin/python3
"""ALTER EXTENSION mixedcc UPDATE from each older version gives the same SQL objects as CREATE
EXTENSION does. Tables and their options stay, and the library has the C functions of both."""

import re

from lib.common import OURS, check, connect, drop_database, equal, main, ok, query, tool, value

UPDATED, FRESH = "process_upgrade", "process_upgrade_fresh"
C_FUNCTIONS = """SELECT p.oid FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
    WHERE l.lanname = 'c' AND d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'mixedcc')"""
OPTIONS = 'SELECT "table"::regclass::text, option, value FROM mixedcc.options ORDER BY 1, 2'
ROWS = "SELECT id, v FROM kept ORDER BY id"
# A script of objects, not one from a version to another, makes a version that can be installed.
VERSIONS = """SELECT version FROM pg_available_extension_versions WHERE name = 'mixedcc'
    ORDER BY string_to_array(version, '.')::int[]"""


def database(name):
    drop_database(name)
    boss = connect("postgres")
    query(boss, f"CREATE DATABASE {name} TEMPLATE template0")
    boss.close()
    return connect(name)


def objects(name):
    """The extension's objects by kind and name, as pg_dump writes them for pg_upgrade: with
    definitions, grants and comments, member by member. Left out: OIDs, which differ, and the order
    of lines, which tells their age."""
    text = tool("pg_dump", "--binary-upgrade", "--schema-only", name)
    found = {}
    for part in re.split(r"^(?=-- Name: )", text, flags=re.MULTILINE)[1:]:
        head, body = part.split("\n", 1)
        lines = [line.strip() for line in body.splitlines() if "binary_upgrade_set_" not in line and not line.startswith(("--", "\\"))]
        found[head.removeprefix("-- Name: ").split("; Owner:")[0]] = "\n".join(sorted(line for line in lines if line))
    return found


def difference(one, two):
    """The objects that are in one of them only, or are not the same."""
    return {name: (one.get(name), two.get(name)) for name in {*one, *two} if one.get(name) != two.get(name)}


def has_symbols(connection, version):
    """PostgreSQL's own check looks for each function's symbol in the library; a script of an
    extension runs without it."""
    oids = [oid for (oid,) in query(connection, C_FUNCTIONS)]
    missing = []
    for oid in oids:
        try:
            query(connection, "SELECT fmgr_c_validator(%s)", (oid,))
        except Exception as error:  # noqa: BLE001
            missing.append(str(error))
    check(f"upgrade: the library has the functions of {version}", len(oids) > 20 and not missing, (len(oids), missing))


def fill(connection):
    query(connection, """CREATE TABLE kept (id int PRIMARY KEY, v int) USING mixedcc
        WITH (mixedcc.partitions = 3, mixedcc.protocol = '2pl', mixedcc.waiting_policy = 'no_wait')""")
    query(connection, "CREATE TABLE ranged (id int PRIMARY KEY) USING mixedcc WITH (mixedcc.partition_method = 'range', mixedcc.bounds = '10, 20')")
    query(connection, "CREATE FUNCTION f(int) RETURNS int LANGUAGE sql AS 'SELECT $1'")
    query(connection, "SELECT mixedcc.annotate('f(int)', 'kept', '1')")
    query(connection, "INSERT INTO kept SELECT i, i * i FROM generate_series(1, 50) i")


def warnings(name):
    """What a new session is told when it first uses a table, and what at its second statement."""
    session, told = connect(name), []
    for _ in range(2):
        session.notices.clear()
        query(session, "SELECT count(*) FROM kept")
        told.append([line.strip() for notice in session.notices for line in notice.splitlines()])
    session.close()
    return told


def kept(connection):
    layout = query(connection, 'SELECT "table"::regclass::text, partition, protocol, rows FROM mixedcc.partitions ORDER BY 1, 2')
    labels = query(connection, "SELECT objoid::regprocedure::text, provider, label FROM pg_seclabel")
    return query(connection, OPTIONS), query(connection, ROWS), layout, labels


def test_update():
    fresh = database(FRESH)
    query(fresh, "CREATE EXTENSION mixedcc")
    newest = value(fresh, "SELECT extversion FROM pg_extension WHERE extname = 'mixedcc'")
    has_symbols(fresh, newest)
    wanted = objects(FRESH)
    check("upgrade: the dump has the extension's functions, views and grants",
          all(any(f"Type: {kind};" in name for name in wanted) for kind in ("FUNCTION", "VIEW", "ACL")), sorted(wanted)[:50])
    *released, last = [version for version, in query(fresh, VERSIONS)]
    equal("upgrade: CREATE EXTENSION takes the newest version", last, newest)
    check("upgrade: the first version can be installed", "0.1.0" in released, released)
    for version in released:
        updated = database(UPDATED)
        query(updated, f"CREATE EXTENSION mixedcc VERSION '{version}'")
        equal(f"upgrade: {version} can be installed", value(updated, "SELECT extversion FROM pg_extension WHERE extname = 'mixedcc'"), version)
        has_symbols(updated, version)
        fill(updated)
        before = kept(updated)
        equal(f"upgrade: a session is told once that the objects of {version} need an update", warnings(UPDATED),
              [[f"WARNING:  the SQL objects of mixedcc are of version {version}, its library is of version {newest}",
                "HINT:  Run ALTER EXTENSION mixedcc UPDATE in this database."], []])
        query(updated, "ALTER EXTENSION mixedcc UPDATE")
        equal("upgrade: after the update a session is told nothing", warnings(UPDATED), [[], []])
        query(updated, "BEGIN; UPDATE pg_extension SET extversion = '10.0.0' WHERE extname = 'mixedcc'; COMMIT")
        equal("upgrade: a session is told of a library that is too old", warnings(UPDATED)[0][1:],
              ["HINT:  Install the library of the newer version, and restart the server."])
        query(updated, f"UPDATE pg_extension SET extversion = '{newest}' WHERE extname = 'mixedcc'")
        equal(f"upgrade: {version} becomes the newest", value(updated, "SELECT extversion FROM pg_extension WHERE extname = 'mixedcc'"), newest)
        equal(f"upgrade: tables, rows, options and annotations of {version} stay", kept(updated), before)
        query(updated, "UPDATE kept SET v = v + 1 WHERE id = 1; ALTER TABLE kept SET (mixedcc.partitions = 2)")
        equal(f"upgrade: tables of {version} can be changed", query(updated, ROWS)[:2], [(1, 2), (2, 4)])
        query(updated, "DROP TABLE kept, ranged; DROP FUNCTION f(int)")
        equal(f"upgrade: objects of {version}, updated, are those of a new installation", difference(objects(UPDATED), wanted), {})
        updated.close()
    fresh.close()


def finish():
    drop_database(UPDATED)
    drop_database(FRESH)


if __name__ == "__main__":
    if not OURS:
        ok("upgrade: heap has no extension")
        raise SystemExit(0)
    main(test_update, finish)
