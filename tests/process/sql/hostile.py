#!/usr/bin/python3
"""What a user may send without any right on our tables: it neither ends the server nor takes
rows of others away. (TIDs that a user makes up are in sql/system_columns.sql.)"""

import threading

import psycopg2

from lib.common import METHOD, OURS, check, connect, drop_database, equal, main, make_database, query, some_passes, value, wait_until, waits_for_lock

DATABASE, OTHER, NEW, ROLE = "process_hostile", "process_hostile_1", "process_hostile_2", "process_hostile_role"


def started(connection):
    return value(connection, "SELECT pg_postmaster_start_time()")


def outcome(connection, sql):
    """The SQLSTATE of an error, if there is one."""
    try:
        query(connection, sql)
        return None
    except psycopg2.Error as e:
        return e.pgcode


class Beside:
    """A statement in a thread of its own."""

    def __init__(self, connection, sql):
        self.connection, self.sql, self.got = connection, sql, "nothing"
        self.pid = connection.info.backend_pid
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        self.got = outcome(self.connection, self.sql)

    def end(self):
        self.thread.join(60)
        return self.got


def test_deep_expressions():
    """EXPLAIN looks for tables in the statement's tree: a deep one is an error at most."""
    connection = make_database(DATABASE)
    began = started(connection)
    query(connection, f"CREATE TABLE t (id int PRIMARY KEY, v int) USING {METHOD}; INSERT INTO t VALUES (1, 1)")
    for depth in (100, 1000, 2000, 2500, 3000, 4000, 6000):
        terms = "+".join(["v"] * depth)
        for how in ("", "(VERBOSE)", "(ANALYZE)"):
            got = outcome(connection, f"EXPLAIN {how} SELECT {terms} FROM t WHERE id = 1")
            check(f"hostile: EXPLAIN {how} of {depth} terms", got in (None, "54001"), got)
    equal("hostile: EXPLAIN (VERBOSE) of 1000 terms shows the plan", outcome(connection, f"EXPLAIN (VERBOSE) SELECT {'+'.join(['v'] * 1000)} FROM t"), None)
    equal("hostile: EXPLAIN has not ended the server", started(connection), began)
    connection.close()


def test_drop_index():
    """A user without the right to drop an index waits for no lock of its table."""
    connection, other = connect(DATABASE), connect(DATABASE)
    query(connection, f"CREATE TABLE dropped (id int PRIMARY KEY, v int NOT NULL) USING {METHOD}; CREATE UNIQUE INDEX dropped_v ON dropped (v)")
    query(connection, f"CREATE ROLE {ROLE}")
    query(other, f"SET ROLE {ROLE}")
    query(other, "SET lock_timeout = '3s'")
    query(connection, "BEGIN; LOCK TABLE dropped")
    for sql in ("DROP INDEX CONCURRENTLY dropped_v", "DROP INDEX dropped_v", "REINDEX INDEX dropped_v", "REINDEX INDEX CONCURRENTLY dropped_v"):
        equal(f"hostile: {sql} of another's table", outcome(other, sql), "42501")
    query(connection, f"ROLLBACK; DROP TABLE dropped")
    other.close()
    query(connection, f"DROP ROLE {ROLE}")
    connection.close()


def test_annotations():
    """The annotations of functions are read where a statement begins, and that may fail."""
    if not OURS:
        return
    connection, holder = connect(DATABASE), connect(DATABASE)
    began = started(connection)
    query(connection, """CREATE FUNCTION f(int) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN $1; END';
        CREATE PROCEDURE p() LANGUAGE plpgsql AS 'BEGIN END';
        SELECT mixedcc.annotate('f(int)', 't', '1')""")
    planned = connect(DATABASE)
    query(planned, "PREPARE q AS SELECT f(1)")
    for _ in range(7):
        query(planned, "EXECUTE q")
    query(connection, "CREATE FUNCTION g() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    query(holder, "BEGIN")
    query(holder, "LOCK TABLE pg_seclabel IN ACCESS EXCLUSIVE MODE")
    for name, session, sql in (("CALL", connect(DATABASE), "CALL p()"), ("a kept plan", planned, "EXECUTE q")):
        query(session, "SET statement_timeout = '300ms'")
        equal(f"hostile: annotations that cannot be read, {name}", outcome(session, sql), "57014")
        equal(f"hostile: and the session goes on, {name}", outcome(session, "SHOW lock_timeout"), None)
    query(holder, "ROLLBACK")
    equal("hostile: a call after that", outcome(planned, "EXECUTE q"), None)
    equal("hostile: annotations have not ended the server", started(connection), began)


def test_half_known_tables():
    """What a native call has found out of a table's definition counts only if that was all."""
    if not OURS:
        return
    connection, holder, session = connect(DATABASE), connect(DATABASE), connect(DATABASE)
    query(connection, """CREATE TABLE parent (id int PRIMARY KEY) USING mixedcc;
        CREATE TABLE child (id int PRIMARY KEY, parent_id int REFERENCES parent) USING mixedcc;
        INSERT INTO parent VALUES (1); INSERT INTO child VALUES (1, 1)""")
    query(holder, "BEGIN")
    query(holder, "LOCK TABLE pg_constraint IN ACCESS EXCLUSIVE MODE")
    query(session, "SET lock_timeout = '200ms'")
    equal("hostile: a definition that cannot be read", outcome(session, "SELECT mixedcc.set(NULL::child, 'parent_id', 1, 1)"), "55P03")
    query(holder, "ROLLBACK")
    equal("hostile: a native update against a foreign key", outcome(session, "SELECT mixedcc.set(NULL::child, 'parent_id', 999, 1)"), "23503")
    equal("hostile: and the row is as before", query(session, "SELECT parent_id FROM child"), [(1,)])


def test_prepared_beside_drop():
    """What only a savepoint has used that was rolled back may be gone by PREPARE TRANSACTION."""
    connection, session = connect(DATABASE), connect(DATABASE)
    began = started(connection)
    query(connection, f"CREATE TABLE kept (id int) USING {METHOD}")
    for n, (change, again) in enumerate((("DROP TABLE gone", ""), ("TRUNCATE gone", "; LOCK TABLE gone IN ACCESS SHARE MODE"), ("TRUNCATE gone", "; SELECT count(*) FROM gone"))):
        query(connection, f"DROP TABLE IF EXISTS gone; CREATE TABLE gone (id int PRIMARY KEY) USING {METHOD}; INSERT INTO gone SELECT generate_series(1, 1000)")
        query(session, "BEGIN; SAVEPOINT a; SELECT count(*) FROM gone; ROLLBACK TO a; INSERT INTO kept VALUES (1)")
        query(connection, change)
        if OURS:
            some_passes(connection, 4)
        # Others get the memory.
        query(connection, f"CREATE TABLE other{n} (id int PRIMARY KEY, w text) USING {METHOD}; INSERT INTO other{n} SELECT g, repeat('x', 900) FROM generate_series(1, 3000) g")
        query(session, f"SELECT 1{again}")
        equal(f"hostile: PREPARE after {change}{again}", outcome(session, "PREPARE TRANSACTION 'hostile'"), None)
        query(connection, "COMMIT PREPARED 'hostile'")
    equal("hostile: what was prepared is there", value(connection, "SELECT count(*) FROM kept"), 3)
    if OURS:
        query(session, "SET mixedcc.mixed_serializable = serializable")
        query(session, "BEGIN ISOLATION LEVEL SERIALIZABLE")
        query(session, "TRUNCATE kept")
        query(session, "INSERT INTO kept VALUES (7)")
        equal("hostile: a SERIALIZABLE TRUNCATE uses no foreign table", outcome(session, "COMMIT"), None)
    equal("hostile: PREPARE has not ended the server", started(connection), began)


def test_renamed_databases():
    """DROP DATABASE takes what it has locked, and not what the name meant when it was sent."""
    boss, watcher = connect("postgres"), connect("postgres")
    for name in (OTHER, NEW):
        query(boss, f"DROP DATABASE IF EXISTS {name}")
    query(boss, f"DROP ROLE IF EXISTS {ROLE}")
    query(boss, f"CREATE ROLE {ROLE} LOGIN")
    for who in ("postgres", ROLE):
        query(boss, f"CREATE DATABASE {OTHER}")
        session = connect(OTHER)
        if OURS:
            query(session, "CREATE EXTENSION mixedcc")
        query(session, f"CREATE UNLOGGED TABLE t (id int PRIMARY KEY, v int) USING {METHOD}; INSERT INTO t SELECT g, g FROM generate_series(1, 100) g")
        session.close()
        dropper = connect("postgres")
        query(dropper, f"SET ROLE {who}")
        query(boss, "BEGIN")
        query(boss, f"ALTER DATABASE {OTHER} RENAME TO {NEW}")
        beside = Beside(dropper, f"DROP DATABASE IF EXISTS {OTHER}")
        check(f"hostile: DROP DATABASE waits, {who}", wait_until(lambda beside=beside: waits_for_lock(watcher, beside.pid)))
        query(boss, "COMMIT")
        equal(f"hostile: DROP DATABASE of what is not there any more, {who}", beside.end(), None)
        session = connect(NEW)
        equal(f"hostile: the renamed database keeps its rows, {who}", query(session, "SELECT count(*), sum(v) FROM t"), [(100, 5050)])
        session.close()
        dropper.close()
        query(boss, f"DROP DATABASE {NEW}")
    query(boss, f"DROP ROLE {ROLE}")
    watcher.close()
    boss.close()


class All:
    """All notices: of a list psycopg2 keeps the last 50."""

    def __init__(self):
        self.notices = []

    def append(self, notice):
        self.notices.append(notice)


def told(connection, sql):
    """The SQLSTATE of an error, if there is one, and which tables the command passes over.
    (Versions up to 15 name other relations, too.)"""
    connection.notices = said = All()
    code = outcome(connection, sql)
    skipped = [n.split('"')[1] for n in said.notices if n.startswith("WARNING:  skipping ")]
    tables = query(connection, "SELECT relname FROM pg_class WHERE relkind IN ('r', 'm', 'p') AND relname = ANY (%s)", (skipped,))
    return code, sorted(set(skipped) & {name for name, in tables})


def test_locks_of_others():
    """VACUUM FULL waits for no table that its role may not vacuum."""
    boss = connect(DATABASE)
    query(boss, f"DROP ROLE IF EXISTS {ROLE}")
    query(boss, f"CREATE ROLE {ROLE}; CREATE SCHEMA his AUTHORIZATION {ROLE}")
    query(boss, f"""CREATE TABLE others (id int PRIMARY KEY) USING {METHOD}; CREATE TABLE others_heap (id int) USING heap;
        CREATE TABLE parted (id int) PARTITION BY LIST (id);
        CREATE TABLE part_ours PARTITION OF parted FOR VALUES IN (1) USING {METHOD};
        CREATE TABLE part_heap PARTITION OF parted FOR VALUES IN (2) USING heap;
        INSERT INTO others VALUES (1); INSERT INTO others_heap VALUES (1); INSERT INTO parted VALUES (1), (2)""")
    reader, user = connect(DATABASE), connect(DATABASE)
    query(reader, "BEGIN")
    for table in ("others", "others_heap", "parted", "pg_class", "pg_statistic", "pg_database"):
        query(reader, f"SELECT count(*) FROM {table}")
    query(user, f"SET lock_timeout = '2s'; SET ROLE {ROLE}")
    file = "SELECT pg_relation_filenode('his.heap')"
    for owner in ("of no table", "of tables"):
        if owner == "of tables":
            query(user, f"CREATE TABLE his.ours (id int PRIMARY KEY) USING {METHOD}; CREATE TABLE his.heap (id int) USING heap;"
                        "INSERT INTO his.ours VALUES (1); INSERT INTO his.heap VALUES (1)")
        code, plain = told(user, "VACUUM")
        check(f"hostile: VACUUM by an owner {owner}", code is None and {"others", "others_heap", "parted", "pg_class"} <= set(plain), (code, plain))
        for options in ("FULL", "FULL, ANALYZE"):
            before = value(user, file) if owner == "of tables" else None
            equal(f"hostile: VACUUM ({options}) by an owner {owner}", told(user, f"VACUUM ({options})"), (None, plain))
            if before:
                check(f"hostile: it has written {options} the owner's table anew", value(user, file) != before)
    query(reader, "COMMIT")
    query(boss, f"ALTER TABLE part_ours OWNER TO {ROLE}")
    query(reader, "BEGIN; SELECT count(*) FROM part_heap")
    # PostgreSQL itself locks partitions before it looks whose they are.
    if OURS:
        equal("hostile: VACUUM FULL of partitions of others", told(user, "VACUUM FULL parted"), (None, ["part_heap", "parted"]))
    query(reader, "COMMIT")
    # The database's owner may vacuum all but what is shared.
    query(boss, f"ALTER DATABASE {DATABASE} OWNER TO {ROLE}")
    query(reader, "BEGIN; SELECT count(*) FROM pg_database")
    code, skipped = told(user, "VACUUM FULL")
    check("hostile: VACUUM FULL by the database's owner", code is None and "pg_database" in skipped and "others" not in skipped, (code, skipped))
    for session in (reader, user):
        session.close()
    query(boss, f"ALTER DATABASE {DATABASE} OWNER TO postgres; DROP TABLE others, others_heap, parted; DROP OWNED BY {ROLE}; DROP ROLE {ROLE}")
    boss.close()


def end():
    drop_database(DATABASE)


main(test_deep_expressions, test_drop_index, test_annotations, test_half_known_tables, test_prepared_beside_drop,
     test_renamed_databases, test_locks_of_others, end)
