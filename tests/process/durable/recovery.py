#!/usr/bin/python3
"""Recovery of permanent tables after crashes. Pages are damaged, and journal pages are torn in the
middle of a recovery. A table does not fit into memory. There are several crashes in a row, long
rows, transactions that a crash has cut off, and numbers that index entries may still name."""

import os

import psycopg2

from lib import common
from lib.common import check, drop_database, equal, main, query, server, value, wait_until

DATABASE = "process_recovery"
PAGE = 8192


def connect(isolation=None):
    """The test server does not wait for the flush of commits; these sessions do."""
    return common.connect(DATABASE, isolation, options="-c synchronous_commit=on")


def make_database():
    common.make_database(DATABASE).close()
    return connect()


def make(connection, table, rows=2000, columns="id int PRIMARY KEY, v int, t text"):
    query(connection, f"DROP TABLE IF EXISTS {table}")
    query(connection, f"CREATE TABLE {table} ({columns}) USING mixedcc")
    common.keep_long(connection, table, "t")
    query(connection, f"INSERT INTO {table} SELECT i, i, repeat('x', i % 90) FROM generate_series(1, {rows}) i")


def content(connection, table):
    return query(connection, f"SELECT count(*), sum(v), sum(length(t)), sum(hashtext(t)::bigint) FROM {table}")[0]


def file_of(connection, table, fork=""):
    path = query(connection, "SELECT current_setting('data_directory'), pg_relation_filepath(%s)", (table,))[0]
    return os.path.join(*path) + fork


def error_of(connection, sql):
    """SQLSTATE and message of the error that a statement must raise."""
    try:
        query(connection, sql)
    except psycopg2.Error as error:
        return error.pgcode, error.diag.message_primary
    return None, "no error"


def damage(path, block, at):
    with open(path, "r+b") as file:
        file.seek(block * PAGE + at)
        old = file.read(1)
        file.seek(block * PAGE + at)
        file.write(bytes([old[0] ^ 0x55]))


def crashes_in_a_row():
    """What was committed is there after each of several crashes, with changes between them."""
    connection = make_database()
    make(connection, "a")
    query(connection, "CREATE INDEX a_v ON a (v)")
    query(connection, "CHECKPOINT")
    for turn in range(4):
        query(connection, f"UPDATE a SET v = v + 1 WHERE id % 4 = {turn}")
        query(connection, f"DELETE FROM a WHERE id % 50 = {turn}")
        query(connection, f"INSERT INTO a SELECT 10000 + {turn} * 100 + i, i, 'new' FROM generate_series(1, 30) i")
        wanted = content(connection, "a")
        connection.close()
        server("crash")
        if turn % 2:
            server("crash")  # before the table is used
        connection = connect()
        equal(f"turn {turn}: the rows", content(connection, "a"), wanted)
        count = value(connection, "SELECT count(*) FROM a WHERE v >= 0")
        query(connection, "SET enable_seqscan = off")
        equal(f"turn {turn}: by the index", value(connection, "SELECT count(*) FROM a WHERE v >= 0"), count)
        equal(f"turn {turn}: by the key", value(connection, "SELECT count(*) FROM a WHERE id >= 0"), count)
        query(connection, "RESET enable_seqscan")
        if turn == 2:
            query(connection, "VACUUM a")
    connection.close()


def long_rows():
    """Rows of several pages survive crashes, in the journal and in images."""
    connection = make_database()
    make(connection, "l", 0)
    query(connection, "INSERT INTO l SELECT i, i, repeat(chr(64 + i), i * 9000) FROM generate_series(1, 30) i")
    for turn in range(3):
        query(connection, f"UPDATE l SET t = t || 'more' WHERE id % 3 = {turn}")
        if turn == 1:
            query(connection, "CHECKPOINT")
        query(connection, f"UPDATE l SET v = v + 1 WHERE id % 5 = {turn}")
        wanted = content(connection, "l")
        connection.close()
        server("crash")
        connection = connect()
        equal(f"turn {turn}: long rows", content(connection, "l"), wanted)
    connection.close()


def cut_off():
    """Of a transaction that a crash cuts off nothing is left, with and without a transaction id."""
    connection = make_database()
    make(connection, "a")
    wanted = content(connection, "a")
    for xid in (False, True):
        open_one = connect(isolation=psycopg2.extensions.ISOLATION_LEVEL_READ_COMMITTED)
        if xid:
            query(open_one, "SELECT pg_current_xact_id()")
        query(open_one, "UPDATE a SET v = 0")
        query(open_one, "INSERT INTO a VALUES (99999, 1, 'lost')")
        query(connection, "CHECKPOINT")
        connection.close()
        server("crash")
        open_one.close()
        connection = connect()
        equal(f"nothing is left of it, xid: {xid}", content(connection, "a"), wanted)
        query(connection, "INSERT INTO a VALUES (99999, 1, 'there')")
        query(connection, "DELETE FROM a WHERE id = 99999")
    connection.close()


def freed_numbers():
    """Numbers of deleted rows are used again, and no index entry leads to a wrong row."""
    connection = make_database()
    make(connection, "a")
    query(connection, "CREATE INDEX a_v ON a (v)")
    for turn in range(3):
        query(connection, f"DELETE FROM a WHERE id % 3 = {turn}")
        query(connection, "VACUUM a")
        query(connection, f"INSERT INTO a SELECT 5000 * {turn + 1} + i, -i, 'again' FROM generate_series(1, 300) i")
        if turn == 1:
            query(connection, "VACUUM (FREEZE) a")
        wanted = content(connection, "a")
        connection.close()
        server("crash")
        connection = connect()
        query(connection, "SET enable_seqscan = off")
        sums = query(connection, "SELECT count(*), sum(v) FROM a WHERE v < 0")
        query(connection, "RESET enable_seqscan")
        query(connection, "SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off")
        equal(f"turn {turn}: index and scan agree", sums, query(connection, "SELECT count(*), sum(v) FROM a WHERE v < 0"))
        query(connection, "RESET ALL")
        equal(f"turn {turn}: the rows", content(connection, "a"), wanted)
    connection.close()


def damaged_pages():
    """A table with a damaged page is refused, and other tables work. Nothing is overwritten."""
    connection = make_database()
    make(connection, "good")
    for name, block, at in [("meta", 0, 30), ("header", 1, 11), ("image", 1, 4000), ("end", 2, PAGE - 20)]:
        make(connection, "bad")
        path = file_of(connection, "bad")
        connection.close()
        server("stop")
        damage(path, block, at)
        server("start")
        connection = connect()
        with open(path, "rb") as file:
            before = file.read()
        # A load that took a block of zeros for a new one would find older rows.
        query(connection, "SET zero_damaged_pages = on")
        for _ in range(2):
            code, message = error_of(connection, "SELECT count(*) FROM bad")
            # PostgreSQL finds a wrong header or checksum of its own first.
            refused = "is damaged" in message or "invalid page in block" in message
            check(f"{name}: refused", code == "XX001" and refused, f"{code}: {message}")
        code, _ = error_of(connection, "INSERT INTO bad VALUES (-1, 1, '')")
        equal(f"{name}: no insert", code, "XX001")
        code, _ = error_of(connection, "VACUUM bad")
        equal(f"{name}: no VACUUM", code, "XX001")
        equal(f"{name}: others work", value(connection, "SELECT count(*) FROM good"), 2000)
        query(connection, "CHECKPOINT")
        with open(path, "rb") as file:
            check(f"{name}: nothing is overwritten", file.read() == before)
        query(connection, "TRUNCATE bad")
        equal(f"{name}: TRUNCATE gives the rows up", value(connection, "SELECT count(*) FROM bad"), 0)
    connection.close()


def damaged_in_use():
    """Pages that are damaged while their rows are in memory stop no checkpoint."""
    connection = make_database()
    query(connection, "ALTER SYSTEM SET shared_buffers = '1MB'")
    connection.close()
    server("restart")
    connection = connect()
    make(connection, "t", 20)
    make(connection, "s", 3000)
    query(connection, "UPDATE t SET t = repeat('x', 100000)")
    query(connection, "CHECKPOINT")
    # Other pages take the place of theirs in shared buffers.
    query(connection, "CREATE TABLE other AS SELECT i, repeat('x', 500) FROM generate_series(1, 20000) i")
    query(connection, "CHECKPOINT")
    query(connection, "SELECT count(*) FROM other")
    path = file_of(connection, "t")
    for block in range(3, os.path.getsize(path) // PAGE, 7):
        damage(path, block, 500)
    query(connection, "SET statement_timeout = '30s'")
    query(connection, "UPDATE t SET v = v + 1 WHERE id < 10")
    query(connection, "CHECKPOINT")
    query(connection, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'mixedcc companion'")
    query(connection, "UPDATE t SET v = v + 1 WHERE id = 1")
    query(connection, "CHECKPOINT")
    path = file_of(connection, "s")
    for block in range(1, os.path.getsize(path) // PAGE):
        damage(path, block, 500)
    query(connection, "SELECT count(*) FROM other")
    query(connection, "DELETE FROM s WHERE id % 10 > 0")
    query(connection, "CHECKPOINT")
    query(connection, "DELETE FROM s")
    query(connection, "CHECKPOINT")
    equal("all rows are there", value(connection, "SELECT count(*) FROM t"), 20)
    query(connection, "ALTER SYSTEM RESET shared_buffers")
    connection.close()
    server("restart")
    connection = connect()
    query(connection, "DROP TABLE t, s, other")
    connection.close()


def damaged_journal():
    """A journal page that is damaged after the recovery is found."""
    connection = make_database()
    make(connection, "a")
    query(connection, "CHECKPOINT")
    query(connection, "UPDATE a SET v = v + 1")
    path = file_of(connection, "a")
    connection.close()
    server("crash")
    server("stop")
    check("there is a journal", os.path.getsize(path + "_fsm") > 0)
    damage(path + "_fsm", 0, 5000)
    server("start")
    connection = connect()
    code, message = error_of(connection, "SELECT count(*) FROM a")
    check("refused", code == "XX001" and "journal" in message, f"{code}: {message}")
    check("the journal stays", os.path.getsize(path + "_fsm") > 0)
    query(connection, "DROP TABLE a")
    connection.close()


def torn_journal():
    """A journal page that a crash has torn in the middle of a recovery is written again."""
    connection = make_database()
    make(connection, "a")
    query(connection, "CHECKPOINT")
    query(connection, "UPDATE a SET v = v + 1")
    wanted = content(connection, "a")
    path = file_of(connection, "a")
    control = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(path))), "global", "pg_control")
    connection.close()
    server("kill9")
    with open(control, "rb") as file:
        before = file.read()
    server("start")
    server("kill9")
    # As if the recovery had been cut off before its end, while it wrote its pages.
    with open(control, "wb") as file:
        file.write(before)
    if os.path.getsize(path + "_fsm") >= 2 * PAGE:
        damage(path + "_fsm", 0, 3000)
        with open(path + "_fsm", "r+b") as file:
            file.seek(PAGE + 4096)
            file.write(bytes(4096))
    server("start")
    connection = connect()
    equal("the rows", content(connection, "a"), wanted)
    connection.close()


def sizes(connection):
    """The catalogs' figures of the large table."""
    sql = """SELECT relpages, reltuples, (SELECT count(*) FROM pg_stats WHERE tablename = relname)
        FROM pg_class WHERE relname = 'large'"""
    return query(connection, sql)


def small_memory():
    """A table that does not fit is refused with a clear error, and nothing of it is lost."""
    connection = make_database()
    make(connection, "small")
    make(connection, "large", 0)
    query(connection, "INSERT INTO large SELECT i, i, repeat('y', 900) FROM generate_series(1, 80000) i")
    query(connection, "UPDATE large SET v = v + 1 WHERE id % 2 = 0")
    query(connection, "ANALYZE large")
    size = sizes(connection)
    wanted = content(connection, "large")
    query(connection, "ALTER SYSTEM SET mixedcc.memory = '64MB'")
    connection.close()
    server("crash")
    connection = connect()
    for _ in range(2):
        code, message = error_of(connection, "SELECT count(*) FROM large")
        check("refused", code == "53200" and "needs about" in message, f"{code}: {message}")
    equal("others work", value(connection, "SELECT count(*) FROM small"), 2000)
    query(connection, "VACUUM large")
    del connection.notices[:]
    query(connection, "ANALYZE")
    check("ANALYZE warns", any("ANALYZE passes over mixedcc table" in n for n in connection.notices), connection.notices)
    equal("ANALYZE keeps what it knows of it", sizes(connection), size)
    equal("ANALYZE goes on", value(connection, "SELECT reltuples FROM pg_class WHERE relname = 'small'"), 2000)
    query(connection, "CHECKPOINT")
    query(connection, "ALTER SYSTEM RESET mixedcc.memory")
    connection.close()
    server("crash")
    connection = connect()
    equal("the rows are there with more memory", content(connection, "large"), wanted)
    connection.close()


def analyzed_first():
    """The first use of a table after a crash is ANALYZE."""
    connection = make_database()
    make(connection, "t")
    connection.close()
    server("crash")
    connection = connect()
    query(connection, "ANALYZE t")
    equal("ANALYZE finds the rows", value(connection, "SELECT reltuples FROM pg_class WHERE relname = 't'"), 2000)
    equal("and their values", value(connection, "SELECT count(*) FROM pg_stats WHERE tablename = 't'"), 3)
    connection.close()


def definitions_first():
    """The first use of a table after a crash is a change of its definition."""
    connection = make_database()
    changes = {"dropped": "DROP CONSTRAINT dropped_pkey", "typed": "ALTER COLUMN id TYPE bigint",
               "gone": "DROP COLUMN id", "added": "ADD COLUMN w int DEFAULT 7"}
    for table in changes:
        make(connection, table)
    connection.close()
    for ending in ("ROLLBACK", "COMMIT"):
        server("crash")
        connection = connect()
        for table, change in changes.items():
            query(connection, "BEGIN")
            query(connection, f"ALTER TABLE {table} {change}")
            query(connection, f"UPDATE {table} SET v = v + 1 WHERE v <= 10")
            query(connection, ending)
        connection.close()
        server("crash")
        connection = connect()
        for table in changes:
            wanted = (2000, 2001000 + (10 if ending == "COMMIT" else 0))
            equal(f"{table}: {ending}", query(connection, f"SELECT count(*), sum(v) FROM {table}")[0], wanted)
        if ending == "ROLLBACK":
            for table in changes:
                equal(f"{table}: by the key", value(connection, f"SELECT v FROM {table} WHERE id = 77"), 77)
        connection.close()


def key_metapages():
    """nbtree finds no empty index where the engine has the key, from the end of its build on."""
    connection = make_database()
    query(connection, "CREATE EXTENSION pageinspect; CREATE EXTENSION amcheck")
    builds = {"made": "CREATE TABLE m (id int PRIMARY KEY, v int) USING mixedcc",
              "truncated": "TRUNCATE m",
              "built again": "REINDEX INDEX m_pkey",
              "built beside": "REINDEX INDEX CONCURRENTLY m_pkey",
              "added": "ALTER TABLE m DROP CONSTRAINT m_pkey, ADD PRIMARY KEY (id)",
              "rewritten": "ALTER TABLE m ALTER COLUMN v TYPE bigint"}
    for name, build in builds.items():
        query(connection, build)
        for when in ("after its build", "after a crash"):
            other = connect()  # It uses the index alone.
            equal(f"the index is {name}: its metapage {when}",
                  query(other, "SELECT root, level, fastroot, fastlevel FROM bt_metap('m_pkey')"), [(1, 0, 1, 2)])
            other.close()
            if when == "after its build":
                connection.close()
                server("crash")
                connection = connect()
        query(connection, "SELECT bt_index_check('m_pkey', true)")
        query(connection, "INSERT INTO m SELECT coalesce(max(id), 0) + 1, 1 FROM m")
    equal("all rows are there", value(connection, "SELECT count(*) FROM m"), len(builds) - 1)
    connection.close()


def swept():
    """Autovacuum removes the index entries of rows that a crash has cut off."""
    connection = make_database()
    query(connection, "CREATE EXTENSION pageinspect")
    query(connection, "CREATE TABLE s (id int PRIMARY KEY, v int) USING mixedcc WITH (autovacuum_enabled = off)")
    query(connection, "CREATE INDEX s_v ON s (v)")
    query(connection, "INSERT INTO s VALUES (0, 0)")
    query(connection, "CHECKPOINT")
    other = connect()
    query(other, "BEGIN")
    query(other, "INSERT INTO s SELECT i, i FROM generate_series(1, 200) i")
    query(connection, "UPDATE s SET v = 1")
    other.close()
    connection.close()
    server("crash")
    connection = connect()
    query(connection, "ALTER SYSTEM SET autovacuum_naptime = 1")
    query(connection, "SELECT pg_reload_conf()")
    entries = "SELECT live_items + dead_items FROM bt_page_stats('s_v', 1)"
    check("swept: the crash leaves entries", value(connection, entries) > 200, value(connection, entries))
    equal("swept: the row", query(connection, "SELECT id, v FROM s"), [(0, 1)])
    query(connection, "ALTER TABLE s SET (autovacuum_enabled = on)")
    check("swept: autovacuum comes", wait_until(lambda: value(connection, entries) < 3), value(connection, entries))
    query(connection, "ALTER SYSTEM RESET autovacuum_naptime")
    query(connection, "SELECT pg_reload_conf()")
    connection.close()


def protocols_kept():
    """Protocols of partitions, and pins, outlive crashes and shutdowns; not if the options have
    changed since."""
    rules = "SELECT partition, protocol, pinned FROM mixedcc.partitions WHERE \"table\" = 'kept'::regclass ORDER BY 1"
    connection = make_database()

    def again(way):
        connection.close()
        server(way)
        new = connect()
        query(new, "SELECT mixedcc.load('kept')")
        return new

    query(connection, "CREATE TABLE kept (id int PRIMARY KEY) USING mixedcc WITH (mixedcc.partitions = 4, mixedcc.protocol = occ)")
    query(connection, "INSERT INTO kept SELECT generate_series(1, 100)")
    for partition, protocol in ((1, "2pl"), (2, "partcc"), (3, "occ")):
        query(connection, f"SELECT mixedcc.set_protocol('kept', '{protocol}', {partition})")
    query(connection, "SELECT mixedcc.await_switches('kept')")
    wanted = query(connection, rules)
    equal("kept: the protocols", [row[1:] for row in wanted], [("occ", False), ("2pl", True), ("partcc", True), ("occ", True)])
    query(connection, "CHECKPOINT")
    for way in ("crash", "restart"):
        connection = again(way)
        equal(f"kept: over a {way}", query(connection, rules), wanted)
    query(connection, "SELECT mixedcc.unpin('kept', 3)")
    query(connection, "UPDATE kept SET id = -id WHERE id < 50")
    connection = again("restart")
    equal("kept: what has changed since", query(connection, rules), [*wanted[:3], (3, "occ", False)])
    for change in ("ALTER id TYPE bigint", "SET UNLOGGED", "SET LOGGED"):
        query(connection, f"ALTER TABLE kept {change}")
        equal(f"kept: over {change}", query(connection, rules), [*wanted[:3], (3, "occ", False)])
    connection = again("crash")
    equal("kept: over a crash after the rewrite", query(connection, rules), [*wanted[:3], (3, "occ", False)])
    query(connection, "ALTER TABLE kept SET (mixedcc.protocol = '2pl')")
    connection = again("crash")
    equal("kept: other options count more", {row[1:] for row in query(connection, rules)}, {("2pl", False)})
    query(connection, "DROP TABLE kept")
    connection.close()


def end():
    drop_database(DATABASE)


main(crashes_in_a_row, long_rows, cut_off, freed_numbers, damaged_pages, damaged_in_use, damaged_journal, torn_journal,
     small_memory, analyzed_first, definitions_first, key_metapages, swept, protocols_kept, end)
