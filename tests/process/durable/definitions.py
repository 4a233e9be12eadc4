#!/usr/bin/python3
"""Definitions of permanent tables: which commands make a table permanent or unlogged, and what each
leaves after a crash. Databases are copied and dropped while their tables are dirty. Dump and
restore, and ages of transaction ids."""

import os
import tempfile

import psycopg2

from lib.common import OURS, accepts, check, connect, drop_database, equal, is_lost, main, make_database, must_come, query, server, tool, value

DATABASE = "process_definitions"
COPY = "process_definitions_copy"
METHOD = "mixedcc" if OURS else "heap"
SAFE = "-c synchronous_commit=on"


def error_of(connection, sql):
    try:
        query(connection, sql)
    except psycopg2.Error as error:
        return error.pgcode
    return "none"


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
    query(connection, "ALTER TABLE made SET UNLOGGED; ALTER TABLE t ADD CHECK (id > 0); ALTER TABLE parent ALTER v TYPE bigint; CLUSTER t USING t_v")
    equal("definitions: changes of persistence", kind(connection, "h", "h_pkey", "u", "u_pkey", "made"), "ppppu")
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


def test_own_template():
    """A session copies its own database, and goes on with its tables."""
    connection = connect(DATABASE, options=SAFE)
    # Without a key: nothing but the table itself could tell the session that it is another one.
    query(connection, f"CREATE TABLE own (id int, v int) USING {METHOD}; INSERT INTO own SELECT i, i FROM generate_series(1, 100) i")
    must_come(lambda: value(connection, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()") == 1)
    query(connection, f"CREATE DATABASE {COPY} TEMPLATE {DATABASE}")
    query(connection, "INSERT INTO own VALUES (101, 101)")
    other = connect(DATABASE, options=SAFE)
    query(other, "INSERT INTO own VALUES (102, 102)")
    equal("definitions: a template's own session and another one have one table", query(connection, "SELECT count(*) FROM own"), [(102,)])
    equal("definitions: and so has the other one", query(other, "SELECT count(*) FROM own"), [(102,)])
    connection.close()
    other.close()
    server("crash")
    connection = connect(DATABASE, options=SAFE)
    equal("definitions: after a crash all rows are there", query(connection, "SELECT count(*) FROM own"), [(102,)])
    query(connection, "DROP TABLE own")
    connection.close()
    boss = connect("postgres")
    query(boss, f"DROP DATABASE {COPY}")
    boss.close()


def refusal(connection, sql):
    """Code and first line of a command's error."""
    try:
        query(connection, sql)
    except psycopg2.Error as error:
        return error.pgcode, str(error).splitlines()[0]
    return "none"


def test_refused():
    """What PostgreSQL refuses before it looks for sessions ends none, and leaves tables in
    memory."""
    boss = connect("postgres")
    query(boss, "ALTER SYSTEM SET wal_level = logical")
    boss.close()
    server("restart")
    boss = connect("postgres")
    query(boss, "SET allow_in_place_tablespaces = on")
    query(boss, "CREATE TABLESPACE space2 LOCATION ''")
    query(boss, "CREATE ROLE mover CREATEDB; GRANT mover TO current_user")
    make_database(COPY).close()
    query(boss, f"ALTER DATABASE {COPY} OWNER TO mover")
    user = connect(COPY, options=SAFE)
    query(user, f"CREATE TABLE r (id int PRIMARY KEY) USING {METHOD}; INSERT INTO r VALUES (1)")
    query(user, f"CREATE UNLOGGED TABLE u (id int PRIMARY KEY) USING {METHOD}; INSERT INTO u VALUES (1)")
    drop, move = f"DROP DATABASE {COPY} WITH (FORCE)", f"ALTER DATABASE {COPY} SET TABLESPACE"
    subscribe = "CREATE SUBSCRIPTION s CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false)"
    unsubscribe = "ALTER SUBSCRIPTION s SET (slot_name = NONE); DROP SUBSCRIPTION s"
    # A temporary slot is active as long as its session is there.
    slot = "SELECT pg_create_logical_replication_slot('active', 'pgoutput', true)"
    no_slot = "SELECT pg_drop_replication_slot('active')"
    nothing = "SELECT 1"
    cases = (
        ("a move to where there is no tablespace", nothing, f"{move} missing", nothing, ("42704", 'tablespace "missing" does not exist')),
        ("a move to pg_global", nothing, f"{move} pg_global", nothing,
         ("42501", "permission denied for tablespace pg_global")),
        ("a move without the right", nothing, f"{move} space2", nothing, ("42501", "permission denied for tablespace space2")),
        ("a move to where it is", nothing, f"{move} pg_default", nothing, "none"),
        ("a copy whose name is taken", nothing, f"CREATE DATABASE {DATABASE} TEMPLATE {COPY}", nothing,
         ("42P04", f'database "{DATABASE}" already exists')),
        ("a copy to where there is no tablespace", nothing, f"CREATE DATABASE other TEMPLATE {COPY} TABLESPACE missing", nothing,
         ("42704", 'tablespace "missing" does not exist')),
        ("a copy without the right", nothing, f"CREATE DATABASE other TEMPLATE {COPY} TABLESPACE space2", nothing,
         ("42501", "permission denied for tablespace space2")),
        ("DROP of a template", f"ALTER DATABASE {COPY} IS_TEMPLATE true", drop, f"ALTER DATABASE {COPY} IS_TEMPLATE false",
         ("42809", "cannot drop a template database")),
        ("DROP with a subscription", subscribe, drop, unsubscribe,
         ("55006", f'database "{COPY}" is being used by logical replication subscription')),
        ("DROP with an active slot", slot, drop, no_slot,
         ("55006", f'database "{COPY}" is used by an active logical replication slot')),
    )
    # As of the boss's session, whose role stays.
    read_only = (drop, f"{move} space2", f"{move} pg_default", f"CREATE DATABASE other TEMPLATE {COPY}")
    try:
        query(boss, "SET default_transaction_read_only = on")
        for sql in read_only:
            equal(f"definitions: read only, {sql}", refusal(boss, sql), ("25006", f"cannot execute {' '.join(sql.split()[:2])} in a read-only transaction"))
            equal(f"definitions: read only, {sql}: it ends no session", error_of(user, "SELECT count(*) FROM r, u"), "none")
        query(boss, "RESET default_transaction_read_only")
        for what, before, sql, after, wanted in cases:
            for prepare in before.split("; "):
                query(user, prepare)
            if wanted != "none" and not sql.startswith("DROP"):
                query(boss, "SET ROLE mover")
            equal(f"definitions: {what}", refusal(boss, sql), wanted)
            query(boss, "RESET ROLE")
            equal(f"definitions: {what} ends no session", error_of(user, "SELECT count(*) FROM r, u"), "none")
            if user.closed:
                user = connect(COPY, options=SAFE)
            for undo in after.split("; "):
                query(user, undo)
        # No session is connected that would keep the tables in memory.
        user.close()
        must_come(lambda: value(boss, "SELECT count(*) FROM pg_stat_activity WHERE datname = %s", (COPY,)) == 0)
        for sql in (f"{move} missing", f"CREATE DATABASE {DATABASE} TEMPLATE {COPY}"):
            refusal(boss, sql)
        query(boss, f"ALTER DATABASE {COPY} IS_TEMPLATE true")
        refusal(boss, f"DROP DATABASE {COPY}")
        query(boss, f"ALTER DATABASE {COPY} IS_TEMPLATE false")
        user = connect(COPY, options=SAFE)
        if OURS:
            equal("definitions: the table has stayed in memory", value(user, "SELECT mixedcc.load('r')"), False)
        user.close()
    finally:
        query(boss, "RESET ROLE")
        query(boss, "UPDATE pg_database SET datistemplate = false WHERE datname = %s", (COPY,))
        query(boss, f"DROP DATABASE IF EXISTS {COPY} WITH (FORCE)")
        query(boss, "DROP ROLE mover")
        query(boss, "DROP TABLESPACE space2")
        query(boss, "ALTER SYSTEM RESET wal_level")
        boss.close()
        server("restart")


def place(connection, table):
    return value(connection, f"SELECT coalesce(spcname, 'pg_default') FROM pg_class c LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace WHERE c.oid = '{table}'::regclass")


def moved_state(connection):
    """Rows with their TIDs, and what each index finds."""
    indexes = {"key": "id BETWEEN 100 AND 200", "btree": "v = 'w300'", "gin": "n @> '{4}'"}
    return {t: (query(connection, f"SELECT ctid::text, * FROM {t} ORDER BY id"),
                {name: by_index(connection, f"SELECT id FROM {t} WHERE {where} ORDER BY id") for name, where in indexes.items()})
            for t in ("mp", "mu")}


def make_moved(connection):
    for table, word in (("mp", ""), ("mu", "UNLOGGED")):
        query(connection, f"""DROP TABLE IF EXISTS {table}; CREATE {word} TABLE {table} (id int PRIMARY KEY, v text, n int[]) USING {METHOD};
            INSERT INTO {table} SELECT i, 'v' || i, ARRAY[i % 10] FROM generate_series(1, 3000) i;
            CREATE INDEX ON {table} (v); CREATE INDEX ON {table} USING gin (n);
            UPDATE {table} SET v = 'w' || id WHERE id % 3 = 0; DELETE FROM {table} WHERE id % 7 = 0;
            ALTER TABLE {table} ALTER v SET STORAGE EXTERNAL; INSERT INTO {table} VALUES (-1, repeat('large', 5000), NULL)""")


def test_tablespaces():
    boss = connect("postgres")
    query(boss, "SET allow_in_place_tablespaces = on")
    query(boss, "CREATE TABLESPACE space1 LOCATION ''")
    boss.close()
    connection = connect(DATABASE, options=SAFE)
    make_moved(connection)
    query(connection, "BEGIN; LOCK TABLE mp; SELECT mixedcc.set_protocol('mp', '2pl'); COMMIT")
    before = moved_state(connection)
    old = connect(DATABASE, options=SAFE)
    query(old, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    for table in ("mp", "mu"):
        query(connection, f"BEGIN; ALTER TABLE {table} SET TABLESPACE space1; DELETE FROM {table} WHERE id < 50; ROLLBACK")
        query(connection, f"BEGIN; SAVEPOINT s; ALTER TABLE {table} SET TABLESPACE space1; ROLLBACK TO s; COMMIT")
    equal("definitions: a move that was rolled back", moved_state(connection), before)
    equal("definitions: the table stays where it was", place(connection, "mp"), "pg_default")
    file = value(connection, "SELECT pg_relation_filepath('mp')")
    for table in ("mp", "mu"):
        query(connection, f"ALTER TABLE {table} SET TABLESPACE space1; ALTER INDEX {table}_pkey SET TABLESPACE space1")
    equal("definitions: rows, TIDs and indexes after SET TABLESPACE", moved_state(connection), before)
    pins = query(connection, "SELECT DISTINCT protocol, pinned FROM mixedcc.partitions WHERE \"table\" = 'mp'::regclass")
    equal("definitions: pins after SET TABLESPACE", pins, [("2pl", True)])
    equal("definitions: tables and indexes are there", [place(connection, t) for t in ("mp", "mp_pkey", "mu", "mu_pkey")], ["space1"] * 4)
    query(old, "COMMIT")
    old.close()
    query(connection, "CHECKPOINT")
    equal("definitions: the old file is gone", value(connection, f"SELECT pg_stat_file('{file}', true) IS NULL"), True)
    query(connection, "INSERT INTO mp SELECT i, 'fresh', NULL FROM generate_series(5001, 5500) i")
    equal("definitions: no new row has the number of a dead index entry", by_index(connection, "SELECT id FROM mp WHERE v IN ('v7', 'v14', 'w21')"), [])
    query(connection, "VACUUM mp")
    query(connection, "INSERT INTO mp SELECT i, 'new', NULL FROM generate_series(10001, 10500) i; UPDATE mp SET v = 'moved' WHERE id < 20")
    before = moved_state(connection)
    connection.close()
    server("crash")
    connection = connect(DATABASE, options=SAFE)
    after = moved_state(connection)
    equal("definitions: a moved table after a crash", after["mp"], before["mp"])
    equal("definitions: a moved unlogged table is empty after a crash", after["mu"][0], [])
    # Changes of the same transaction move too.
    query(connection, """BEGIN; UPDATE mp SET v = 'own' WHERE id BETWEEN 30 AND 40; DELETE FROM mp WHERE id = 41; INSERT INTO mp VALUES (20000, 'own', NULL);
        SAVEPOINT a; UPDATE mp SET v = 'undone'; ROLLBACK TO a; ALTER TABLE mp SET TABLESPACE pg_default;
        SAVEPOINT b; DELETE FROM mp; ROLLBACK TO b; UPDATE mp SET v = 'later' WHERE id = 30; INSERT INTO mp VALUES (20001, 'later', NULL); COMMIT""")
    before = moved_state(connection)["mp"]
    rows = {row[1]: row[2] for row in before[0]}
    equal("definitions: changes before and after a move", (rows.get(30), rows.get(31), 41 in rows, rows.get(20000), rows.get(20001)),
          ("later", "own", False, "own", "later"))
    connection.close()
    server("crash")
    connection = connect(DATABASE, options=SAFE)
    equal("definitions: and after a crash", moved_state(connection)["mp"], before)
    query(connection, "ALTER TABLE mp SET TABLESPACE space1; ALTER TABLE ALL IN TABLESPACE space1 SET TABLESPACE pg_default; ALTER INDEX ALL IN TABLESPACE space1 SET TABLESPACE pg_default")
    equal("definitions: ALL IN TABLESPACE", [place(connection, t) for t in ("mp", "mp_pkey", "mu", "mu_pkey")], ["pg_default"] * 4)
    query(connection, "ALTER TABLE mp ADD COLUMN later int DEFAULT 7, SET TABLESPACE space1; ALTER TABLE mp DROP COLUMN later")
    equal("definitions: a rewrite moves too", (place(connection, "mp"), len(moved_state(connection)["mp"][0])), ("space1", len(before[0])))
    connection.close()
    if OURS:
        crash_in_a_move()


def crash_in_a_move():
    connection = connect(DATABASE, options=SAFE)
    before = moved_state(connection)["mp"]
    connection.close()
    for event in ("bulk-page:1", "bulk-page:2"):
        witness = connect("postgres")
        victim = connect(DATABASE, options=SAFE + f" -c mixedcc.stop_events=on -c mixedcc.kill_at={event}")
        try:
            query(victim, "ALTER TABLE mp SET TABLESPACE pg_default")
        except psycopg2.Error as error:
            check(f"definitions: only the crash ends the move, {event}", is_lost(victim, error))
            victim.close()
        # The postmaster ends all sessions before it accepts connections again.
        must_come(lambda: error_of(witness, "SELECT 1") != "none")
        must_come(accepts, 60)
        connection = connect(DATABASE, options=SAFE)
        equal(f"definitions: a crash in a move leaves the table where it was, {event}",
              (place(connection, "mp"), moved_state(connection)["mp"] == before), ("space1", True))
        connection.close()


def test_move_of_a_database():
    boss = connect("postgres")
    connection = connect(DATABASE, options=SAFE)
    query(connection, "DROP TABLE IF EXISTS mu, u, made; UPDATE mp SET v = 'dirty' WHERE id % 2 = 0")
    query(connection, f"CREATE UNLOGGED TABLE hinders (id int) USING {METHOD}")
    moved_before = query(connection, "SELECT ctid::text, * FROM mp ORDER BY id")
    connection.close()
    if OURS:
        equal("definitions: a database with an unlogged table is not moved", error_of(boss, f"ALTER DATABASE {DATABASE} SET TABLESPACE space1"), "0A000")
    connection = connect(DATABASE, options=SAFE)
    query(connection, "DROP TABLE hinders")
    equal("definitions: nor one that is in use", error_of(boss, f"ALTER DATABASE {DATABASE} SET TABLESPACE space1"), "55006")
    # PostgreSQL's rule: no table of the database may be in the tablespace that it moves to.
    query(connection, "ALTER TABLE mp SET TABLESPACE pg_default")
    before = {t: content(connection, t) for t in ("mp", "a", "b", "c")}
    connection.close()
    query(boss, f"ALTER DATABASE {DATABASE} SET TABLESPACE space1")
    for what in ("after the move", "after a crash behind it"):
        connection = connect(DATABASE, options=SAFE)
        equal(f"definitions: tables of a moved database, {what}", {t: content(connection, t) for t in before}, before)
        equal(f"definitions: TIDs of a moved database, {what}", query(connection, "SELECT ctid::text, * FROM mp ORDER BY id"), moved_before)
        equal(f"definitions: its indexes, {what}", by_index(connection, "SELECT id FROM mp WHERE id BETWEEN 30 AND 32 ORDER BY id"), [(30,), (31,), (32,)])
        connection.close()
        boss.close()
        server("crash")
        boss = connect("postgres")
    connection = connect(DATABASE, options=SAFE)
    query(connection, "UPDATE mp SET v = 'there'; INSERT INTO mp VALUES (30000, 'there', NULL)")
    wanted = content(connection, "mp")
    connection.close()
    query(boss, f"ALTER DATABASE {DATABASE} SET TABLESPACE pg_default")
    boss.close()
    server("crash")
    connection = connect(DATABASE, options=SAFE)
    equal("definitions: and back again", content(connection, "mp"), wanted)
    connection.close()
    boss = connect("postgres")
    query(boss, "DROP TABLESPACE space1")
    boss.close()


def test_sizes():
    """Bytes of files: those of a permanent table grow when its rows are imaged."""
    connection = connect(DATABASE, options=SAFE)
    query(connection, f"CREATE TABLE sized (id int PRIMARY KEY, v text) USING {METHOD}; CREATE INDEX ON sized (v)")
    query(connection, "INSERT INTO sized SELECT i, repeat('x', 100) || i FROM generate_series(1, 10000) i")
    query(connection, "CHECKPOINT")
    table, total, relation = query(connection, "SELECT pg_table_size('sized'), pg_total_relation_size('sized'), pg_relation_size('sized')")[0]
    check("definitions: pg_table_size has the bytes of the rows", 1_100_000 < table < 3_000_000 and relation <= table, (relation, table))
    check("definitions: pg_total_relation_size those of the indexes too", table + 1_100_000 < total < table + 4_000_000, (table, total))
    shown = tool("psql", "-XAt", "-c", "\\dt+ sized", DATABASE)
    check("definitions: \\dt+ shows them", f"|{value(connection, 'SELECT pg_size_pretty(pg_table_size(%s))', ('sized',))}|" in shown and "permanent" in shown, shown)
    query(connection, "TRUNCATE sized")
    check("definitions: they go with TRUNCATE", value(connection, "SELECT pg_table_size('sized')") < 100_000)
    connection.close()


def test_dump():
    connection = connect(DATABASE, options=SAFE)
    tables = ("a", "b", "c", "mp", "parent", "made")
    query(connection, f"CREATE UNLOGGED TABLE made USING {METHOD} AS SELECT 1 AS id")
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


# Uses of a table by a superuser, each of which may be its first one.
FIRST = ("SELECT pg_relation_size('{}')", "SELECT count(*) FROM {}", "ANALYZE {}", "VACUUM {}", "CLUSTER {0} USING {0}_pkey",
         "REINDEX TABLE {}", "ALTER TABLE {} ADD v int", "TRUNCATE {}", "EXPLAIN SELECT FROM {}")


def test_owner():
    """A load runs code of the table's owner with the rights of the owner alone: here a CHECK of a
    domain, where a bound is read. The code finds no functions by the search_path of the user."""
    connection = connect(DATABASE, options=SAFE)
    partitioned = "WITH (mixedcc.partition_by = 'k', mixedcc.bounds = '\"{1}\"')" if OURS else ""
    query(connection, "CREATE ROLE definitions_owner; CREATE SCHEMA hers AUTHORIZATION definitions_owner; SET ROLE definitions_owner")
    query(connection, """CREATE FUNCTION hers.watch(int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
        IF current_user <> 'definitions_owner' OR current_setting('search_path') <> 'pg_catalog, pg_temp' THEN
            RAISE 'it runs as %, with %', current_user, current_setting('search_path'); END IF;
        RETURN true; END $$;
        CREATE DOMAIN hers.watched AS int CHECK (hers.watch(VALUE))""")
    for kind in ("", "UNLOGGED "):
        for i in range(len(FIRST)):
            table = f"hers.t{i}{kind[:1]}"
            query(connection, f"CREATE {kind}TABLE {table} (id int PRIMARY KEY, k hers.watched[]) USING {METHOD} {partitioned}; INSERT INTO {table} VALUES (1)")
    if OURS:
        # The statements below load the tables, and no loader before them.
        query(connection, "RESET ROLE")
        query(connection, "ALTER SYSTEM SET mixedcc.load_workers = 0")
    connection.close()
    server("crash")
    connection = connect(DATABASE, options=SAFE)
    query(connection, "SET search_path = hers, public")
    for kind in ("", "U"):
        for i, sql in enumerate(FIRST):
            equal(f"definitions: code of the owner runs as the owner, {sql} {kind}", error_of(connection, sql.format(f"t{i}{kind}")), "none")
    # An error of the CHECK would be no error of the statement: the table would get one partition.
    misfits = [notice for notice in connection.notices if "gets one partition" in notice]
    equal("definitions: the CHECK has raised no error", misfits, [])
    if OURS:
        query(connection, "ALTER SYSTEM RESET mixedcc.load_workers")
    equal("definitions: the superuser is one after that", query(connection, "SELECT current_user, current_setting('search_path')"), [("postgres", "hers, public")])
    query(connection, "DROP OWNED BY definitions_owner; DROP ROLE definitions_owner")
    connection.close()


# What changes the type of the partition key, or drops its column, and the options of before.
MISFITS = {
    "renamed": ("mood", "mixedcc.bounds = 'b'", "ALTER TYPE mood RENAME VALUE 'b' TO 'bee'"),
    "dropped": ("lost", "mixedcc.partitions = 4", "DROP TYPE lost CASCADE"),
}


def test_misfits():
    """Rows of a table whose options do not fit it any more are reachable after a crash: the table
    has one partition, and a warning says so."""
    connection = connect(DATABASE, options=SAFE)
    query(connection, "CREATE TYPE mood AS ENUM ('a', 'b'); CREATE TYPE lost AS ENUM ('a')")
    for name, (kind_of, options_of, _) in MISFITS.items():
        partitioned = f"WITH (mixedcc.partition_by = 'k', {options_of})" if OURS else ""
        query(connection, f"CREATE TABLE {name} (id int PRIMARY KEY, k {kind_of}) USING {METHOD} {partitioned}")
        query(connection, f"INSERT INTO {name} SELECT generate_series(1, 100)")
    for _, _, sql in MISFITS.values():
        query(connection, sql)
    connection.close()
    server("crash")
    for name in MISFITS:
        connection = connect(DATABASE, options=SAFE)
        equal(f"definitions: misfit, {name}: its size", error_of(connection, f"SELECT pg_relation_size('{name}')"), "none")
        equal(f"definitions: misfit, {name}: the rows", query(connection, f"SELECT count(*), sum(id) FROM {name}"), [(100, 5050)])
        said = any("gets one partition" in notice for notice in connection.notices)
        equal(f"definitions: misfit, {name}: the warning", said, OURS)
        query(connection, f"INSERT INTO {name} (id) VALUES (101); DELETE FROM {name} WHERE id = 7")
        if OURS:
            partitions = f"SELECT count(*) FROM mixedcc.partitions WHERE \"table\" = '{name}'::regclass"
            equal(f"definitions: misfit, {name}: its partitions", value(connection, partitions), 1)
            query(connection, f"ALTER TABLE {name} RESET (mixedcc.partition_by, mixedcc.bounds), SET (mixedcc.partitions = 3)")
            equal(f"definitions: misfit, {name}: with other options", value(connection, partitions), 3)
        equal(f"definitions: misfit, {name}: the rows at last", query(connection, f"SELECT count(*), sum(id) FROM {name}"), [(100, 5050 + 101 - 7)])
        connection.close()
    connection = connect(DATABASE, options=SAFE)
    query(connection, "DROP TABLE renamed, dropped; DROP TYPE mood")
    connection.close()


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
    main(test_persistence, test_truncate_and_drop, test_databases, test_own_template, test_refused, test_tablespaces, test_move_of_a_database, test_sizes, test_dump, test_owner, test_misfits, test_ages)
