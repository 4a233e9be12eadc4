#!/usr/bin/python3
"""Prepared transactions that change the definition of tables that were there before: they are
dropped, truncated, rewritten, get indexes, or another primary key. Between PREPARE and the end come
checkpoints, crashes and restarts. Then all of the change is there, or nothing, and later writes are
kept, too."""

import os
import sys
import threading
import time

import psycopg2

from lib.clusters import Cluster
from lib.common import check, equal, main, must_be_found, must_come, query, value, waits_for_lock

LIMIT = 120.0
# Each change with each way, else with one or two.
LONG = bool(os.environ.get("MIXEDCC_LONG"))
ENDS = ("COMMIT", "ROLLBACK")
# What is made anew for each case; `v` was changed since the last checkpoint.
TABLE = """DROP TABLE IF EXISTS t, new; CREATE {kind} TABLE t (id int{key}, v int, u int NOT NULL) USING mixedcc WITH (mixedcc.partitions = {partitions});
    INSERT INTO t SELECT g, 0, -g FROM generate_series(1, 300) g; CHECKPOINT; UPDATE t SET v = 1 WHERE id > 10; DELETE FROM t WHERE id = 20"""
ALL = [(299, 289, 45130)]
EMPTY = [(0, None, None)]
GONE = "42P01"
# Name, primary key before, transaction, and what the table has after its COMMIT.
CASES = (
    ("DROP", True, "DROP TABLE t", GONE),
    ("own rows, DROP", True, "UPDATE t SET v = 9; DROP TABLE t", GONE),
    ("TRUNCATE", True, "TRUNCATE t", EMPTY),
    ("own rows, TRUNCATE, rows", True, "DELETE FROM t WHERE id < 5; TRUNCATE t; INSERT INTO t VALUES (1, 2, 3), (2, 2, 4)", [(2, 4, 3)]),
    ("TRUNCATE twice", True, "TRUNCATE t; INSERT INTO t VALUES (1, 2, 3); TRUNCATE t; INSERT INTO t VALUES (7, 7, 7)", [(1, 7, 7)]),
    ("TRUNCATE rolled back", True, "SAVEPOINT a; TRUNCATE t; INSERT INTO t VALUES (1, 2, 3); ROLLBACK TO a; UPDATE t SET v = 2 WHERE id = 1", [(299, 291, 45130)]),
    ("another type", True, "ALTER TABLE t ALTER id TYPE bigint; INSERT INTO t VALUES (1000, 1, 1)", [(300, 290, 46130)]),
    ("SET UNLOGGED", True, "ALTER TABLE t SET UNLOGGED", None),
    ("SET ACCESS METHOD", True, "ALTER TABLE t SET ACCESS METHOD heap; INSERT INTO t VALUES (1000, 1, 1)", [(300, 290, 46130)]),
    ("SET TABLESPACE", True, "ALTER TABLE t SET TABLESPACE elsewhere; INSERT INTO t VALUES (1000, 1, 1)", [(300, 290, 46130)]),
    ("CLUSTER", True, "CREATE INDEX i ON t (u); CLUSTER t USING i; DELETE FROM t WHERE id = 300", [(298, 288, 44830)]),
    ("ADD PRIMARY KEY", False, "INSERT INTO t VALUES (1000, 1, 1); ALTER TABLE t ADD PRIMARY KEY (id); INSERT INTO t VALUES (1001, 1, 2)", [(301, 291, 47131)]),
    ("DROP PRIMARY KEY", True, "INSERT INTO t VALUES (1000, 1, 1); ALTER TABLE t DROP CONSTRAINT t_pkey; INSERT INTO t VALUES (1001, 1, 2)", [(301, 291, 47131)]),
    ("another PRIMARY KEY", 1, "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (u); INSERT INTO t VALUES (1, 1, 1)", [(300, 290, 45131)]),
    ("other partitions", True, "INSERT INTO t VALUES (1000, 1, 1); ALTER TABLE t SET (mixedcc.partitions = 5); INSERT INTO t VALUES (1001, 1, 2)", [(301, 291, 47131)]),
    ("other partitions in a savepoint that is rolled back", True, "SAVEPOINT a; ALTER TABLE t SET (mixedcc.partitions = 5); ROLLBACK TO a; INSERT INTO t VALUES (1000, 1, 1)", [(300, 290, 46130)]),
    ("two protocols", True, "ALTER TABLE t SET (mixedcc.protocol = '2pl'); INSERT INTO t VALUES (1000, 1, 1); ALTER TABLE t SET (mixedcc.protocol = 'partcc')", [(300, 290, 46130)]),
    ("made, of two protocols", True, "CREATE TABLE new (id int PRIMARY KEY) USING mixedcc; ALTER TABLE new SET (mixedcc.protocol = '2pl'); INSERT INTO new VALUES (2); ALTER TABLE new SET (mixedcc.protocol = 'partcc'); DELETE FROM t WHERE id = 300", [(298, 288, 44830)]),
    ("CREATE INDEX", True, "UPDATE t SET v = 2 WHERE id = 1; CREATE INDEX i ON t (v); INSERT INTO t VALUES (1000, 1, 1)", [(300, 292, 46130)]),
    ("CREATE UNIQUE INDEX", True, "CREATE UNIQUE INDEX i ON t (u); DELETE FROM t WHERE id = 300", [(298, 288, 44830)]),
    ("DROP INDEX, CREATE INDEX", False, "CREATE INDEX i ON t (v); DROP INDEX i; CREATE INDEX i ON t (id)", ALL),
    ("REINDEX", True, "CREATE INDEX i ON t (v); REINDEX TABLE t; DELETE FROM t WHERE id = 300", [(298, 288, 44830)]),
    ("CREATE UNIQUE INDEX, hollow", False, "INSERT INTO t VALUES (1000, 1, 1); CREATE UNIQUE INDEX i ON t (u); INSERT INTO t VALUES (1001, 1, 2)", [(301, 291, 47131)]),
    ("DROP of the unique key", "unique", "INSERT INTO t VALUES (1000, 1, 1); ALTER TABLE t DROP CONSTRAINT t_pkey; INSERT INTO t VALUES (1001, 1, 2)", [(301, 291, 47131)]),
    ("DROP NOT NULL of the unique key", "unique", "INSERT INTO t VALUES (1000, 1, 1); ALTER TABLE t ALTER id DROP NOT NULL; INSERT INTO t VALUES (1001, 1, 2)", [(301, 291, 47131)]),
    ("a PRIMARY KEY beside the unique key", "unique", "INSERT INTO t VALUES (1000, 1, 1); ALTER TABLE t ADD PRIMARY KEY (u); INSERT INTO t VALUES (1001, 1, 2)", [(301, 291, 47131)]),
    ("REINDEX of the unique key", "unique", "REINDEX TABLE t; DELETE FROM t WHERE id = 300", [(298, 288, 44830)]),
    ("made and dropped", True, "CREATE TABLE new (id int PRIMARY KEY) USING mixedcc; INSERT INTO new VALUES (1); DROP TABLE new; UPDATE t SET v = 2 WHERE id = 1", [(299, 291, 45130)]),
    ("made, truncated, filled", True, "CREATE TABLE new (id int PRIMARY KEY) USING mixedcc; INSERT INTO new VALUES (1); TRUNCATE new; TRUNCATE new; INSERT INTO new VALUES (2); DELETE FROM t WHERE id = 300", [(298, 288, 44830)]),
    ("made in a savepoint that is rolled back", True, "SAVEPOINT a; CREATE TABLE new (id int PRIMARY KEY) USING mixedcc; INSERT INTO new VALUES (1); ROLLBACK TO a; UPDATE t SET v = 2 WHERE id = 1", [(299, 291, 45130)]),
)
NEW = {"made, truncated, filled": [(2,)], "made, of two protocols": [(2,)]}


def begin(**settings):
    """A server of the test's own."""
    cluster = Cluster.new(max_prepared_transactions="20", autovacuum="off", allow_in_place_tablespaces="on",
                          **{"mixedcc.stop_events": "on", "mixedcc.memory": "256MB", **settings})
    cluster.start()
    cluster.ask("CREATE EXTENSION mixedcc; CREATE EXTENSION amcheck; SELECT 1")
    session = cluster.connect()
    query(session, "CREATE TABLESPACE elsewhere LOCATION ''")
    session.close()
    return cluster


def attempt(session, sql):
    """What came of statements: their rows, or the SQLSTATE."""
    try:
        return query(session, sql)
    except psycopg2.Error as error:
        return error.pgcode


def make(session, key, kind=""):
    """`key`: with a primary key; 1: and one partition, so that another key changes no map.
    "unique": a unique key in its place."""
    partitions = 1 if key == 1 and key is not True else 2
    # One by one: a transaction that has made the table would write it as a whole.
    declared = " NOT NULL CONSTRAINT t_pkey UNIQUE" if key == "unique" else " PRIMARY KEY" if key else ""
    for statement in TABLE.format(kind=kind, key=declared, partitions=partitions).split(";"):
        query(session, statement)


def prepare(cluster, work):
    session = cluster.connect()
    query(session, f"BEGIN; {work}")
    result = attempt(session, "PREPARE TRANSACTION 'p'")
    session.close()
    return result


def found(session):
    """The rows of the table, and that each way to them finds the same."""
    rows = attempt(session, "SELECT count(*), sum(v), sum(id) FROM t")
    if rows != GONE:
        query(session, "SET enable_seqscan = off")
        for column in ("id", "v", "u"):
            by = attempt(session, f"SELECT count(*), sum(v), sum(id) FROM t WHERE {column} BETWEEN -5000 AND 5000")
            check(f"by {column}: {by}", by == rows)
        query(session, "RESET enable_seqscan")
    return rows


def crash(cluster):
    cluster.crash()
    cluster.start()


def checkpoint(cluster):
    session = cluster.connect()
    query(session, "CHECKPOINT")
    session.close()


def checkpoint_and_crash(cluster):
    checkpoint(cluster)
    crash(cluster)


def restart(cluster):
    cluster.control("stop", "-m", "fast")
    cluster.start()


WAYS = {"nothing": lambda cluster: None, "a checkpoint": checkpoint, "a crash": crash, "a checkpoint and a crash": checkpoint_and_crash, "a restart": restart}


def cases(cluster):
    for number, (what, key, work, after) in enumerate(CASES):
        for end in ENDS:
            ways = list(WAYS) if LONG else [list(WAYS)[(number + 2 * (end == "COMMIT")) % len(WAYS)]]
            # The finish makes the change in memory only if the server goes on.
            for way in dict.fromkeys((*ways, "nothing") if end == "COMMIT" else ways):
                one(cluster, f"prepared, {what}, {way}, {end}", key, work, WAYS[way], end, after if end == "COMMIT" else ALL)
                equal(f"prepared, {what}, {way}, {end}: the new table", attempt(session := cluster.connect(), "SELECT id FROM new"),
                      NEW.get(what, GONE) if end == "COMMIT" else GONE)
                session.close()


def protocols_of(session, table):
    return query(session, f"""SELECT DISTINCT protocol FROM mixedcc.partitions WHERE "table" = '{table}'::regclass""")


def one(cluster, name, key, work, way, end, after):
    session = cluster.connect()
    make(session, key)
    session.close()
    equal(f"{name}: PREPARE", prepare(cluster, work), None)
    way(cluster)
    session = cluster.connect()
    query(session, f"{end} PREPARED 'p'")
    after = after if after is not None else EMPTY if "crash" in name or "restart" in name else ALL
    equal(f"{name}: the rows", found(session), after)
    if "two protocols" in name:
        table = "new" if "made" in name else "t"
        if end == "COMMIT":
            query(session, f"SELECT count(*) FROM {table}")
            equal(f"{name}: the last protocol", protocols_of(session, table), [("partcc",)])
        elif table == "t":
            equal(f"{name}: the first protocol", protocols_of(session, table), [("occ",)])
    if after != GONE:
        query(session, "INSERT INTO t VALUES (2000, 5, 2000)")
        query(session, "CHECKPOINT")
        query(session, "INSERT INTO t VALUES (2001, 5, 2001)")
    session.close()
    crash(cluster)
    session = cluster.connect()
    if "UNLOGGED" in name and end == "COMMIT":
        after = EMPTY
    elif after != GONE:
        after = [(after[0][0] + 2, (after[0][1] or 0) + 10, (after[0][2] or 0) + 4001)]
    equal(f"{name}: the rows after one more crash", found(session), after)
    session.close()


def unlogged(cluster):
    """The same while the server runs. A clean restart empties a table that it may drop, as one that
    it has written."""
    for what, key, work, after in (case for case in CASES if case[0] in ("DROP", "own rows, TRUNCATE, rows", "another PRIMARY KEY", "CREATE INDEX")):
        for end in ENDS:
            for way in ("nothing", "a restart"):
                name = f"prepared, unlogged, {what}, {way}, {end}"
                session = cluster.connect()
                make(session, key, "UNLOGGED")
                session.close()
                equal(f"{name}: PREPARE", prepare(cluster, work), None)
                WAYS[way](cluster)
                session = cluster.connect()
                query(session, f"{end} PREPARED 'p'")
                wanted = after if end == "COMMIT" else ALL
                equal(f"{name}: the rows", found(session), EMPTY if way == "a restart" and wanted != GONE else wanted)
                query(session, "DROP TABLE IF EXISTS t")
                session.close()


def dirty(cluster):
    """Rows that were changed before PREPARE are behind the next checkpoint, although no round may
    write to the files any more."""
    for work in ("DROP TABLE t", "TRUNCATE t"):
        session = cluster.connect()
        make(session, True)
        equal(f"prepared, dirty, {work}: PREPARE", prepare(cluster, work), None)
        query(session, "CHECKPOINT")
        query(session, "CHECKPOINT")
        session.close()
        crash(cluster)
        session = cluster.connect()
        query(session, "ROLLBACK PREPARED 'p'")
        equal(f"prepared, dirty, {work}: its rows", found(session), ALL)
        session.close()


def beside_a_round(cluster):
    """The same where a round has taken the table's flag, and has not written all of it."""
    found, rows = [], 100_000
    for turn in range(4):
        session, other = cluster.connect(), cluster.connect()
        make(session, True)
        query(session, f"INSERT INTO t SELECT g, 0, -g FROM generate_series(1000, {rows + 999}) g")
        query(session, "CHECKPOINT")
        query(session, "UPDATE t SET v = 1 WHERE id >= 1000")
        checkpoint = threading.Thread(target=attempt, args=(other, "CHECKPOINT"))
        checkpoint.start()
        time.sleep(0.01 * 3 ** turn)
        equal(f"prepared, beside a round, {turn}: PREPARE", prepare(cluster, "TRUNCATE t"), None)
        checkpoint.join()
        session.close()
        other.close()
        crash(cluster)
        session = cluster.connect()
        query(session, "ROLLBACK PREPARED 'p'")
        found.append(attempt(session, "SELECT count(*), sum(v) FROM t WHERE id >= 1000"))
        session.close()
    equal("prepared, beside a round: its rows", found, [[(rows, rows)]] * len(found))


def beside_the_finish(cluster):
    """A session has waited for the table in the middle of a statement, by way of the table of which
    it is a partition. It goes on as soon as PostgreSQL has decided, and another process makes or
    undoes the change of the engine later."""
    for key, work in ((1, "ALTER TABLE t DROP CONSTRAINT t_pkey"), (1, "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (u)"), (1, "TRUNCATE t"), (False, "TRUNCATE t")):
        for end in ENDS:
            beside(cluster, f"prepared, beside the finish{', no key' if not key else ''}, {work}, {end}", key, work, end)


def beside(cluster, name, key, work, end):
    session = cluster.connect()
    make(session, key)
    query(session, "CREATE TABLE whole (LIKE t) PARTITION BY RANGE (id)")
    query(session, "ALTER TABLE whole ATTACH PARTITION t FOR VALUES FROM (MINVALUE) TO (MAXVALUE)")
    waiter, watcher = cluster.connect(), cluster.connect()
    query(waiter, "DELETE FROM whole WHERE id = 300")
    equal(f"{name}: PREPARE", prepare(cluster, work), None)
    # Its snapshot is from before: it takes none later. And it knows the table.
    query(waiter, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM other")
    writes = threading.Thread(target=attempt, args=(waiter, "INSERT INTO whole VALUES (1000, 1, 1000); COMMIT"))
    writes.start()
    must_come(lambda: waits_for_lock(watcher, waiter.info.backend_pid), LIMIT)
    slow = cluster.connect(options="-c mixedcc.kill_at=prepared-taken:1:1500")
    ends = threading.Thread(target=query, args=(slow, f"{end} PREPARED 'p'"))
    ends.start()
    for thread in (writes, ends):
        thread.join()
    after = [(1, 1, 1000)] if work == "TRUNCATE t" and end == "COMMIT" else [(299, 289, 45830)]
    equal(f"{name}: the rows", found(session), after)
    query(session, "SET enable_seqscan = off")
    equal(f"{name}: by the key", query(session, "SELECT id FROM t WHERE id = 1000"), [(1000,)])
    for one_session in (session, waiter, watcher, slow):
        one_session.close()
    crash(cluster)
    session = cluster.connect()
    equal(f"{name}: the rows after a crash", found(session), after)
    query(session, "DROP TABLE whole")
    session.close()


def many(cluster):
    """Each of a hundred tables gets an index in memory, or loses it, in one transaction."""
    session = cluster.connect()
    query(session, "CREATE TABLE many (id int, v int) PARTITION BY RANGE (id)")
    for n in range(100):
        query(session, f"CREATE TABLE many_{n} PARTITION OF many FOR VALUES FROM ({n}) TO ({n + 1}) USING mixedcc WITH (mixedcc.partitions = 1)")
    query(session, "INSERT INTO many SELECT g, 0 FROM generate_series(0, 99) g")
    add, drop = "ALTER TABLE many ADD PRIMARY KEY (id)", "ALTER TABLE many DROP CONSTRAINT many_pkey"
    for work, end in ((add, "ROLLBACK"), (add, "COMMIT"), (drop, "ROLLBACK"), (drop, "COMMIT")):
        name = f"prepared, 100 tables, {work.split()[3]}, {end}"
        equal(f"{name}: PREPARE", prepare(cluster, work), None)
        equal(f"{name}: the server goes on", attempt(session, f"{end} PREPARED 'p'"), None)
        equal(f"{name}: the rows", query(session, "SELECT count(*), sum(id) FROM many WHERE id >= 0"), [(100, 4950)])
        has = (work == add) == (end == "COMMIT")
        equal(f"{name}: the key", attempt(session, "INSERT INTO many VALUES (7, 7)"), "23505" if has else None)
        query(session, "DELETE FROM many WHERE v = 7")
    query(session, "DROP TABLE many")
    session.close()


def failures(cluster):
    """PREPARE that does not come to its end leaves all as it was."""
    session = cluster.connect()
    for _, key, work, _ in CASES:
        make(session, key)
        query(session, "CREATE TABLE IF NOT EXISTS other (id int PRIMARY KEY) USING mixedcc")
        other = cluster.connect()
        query(other, "BEGIN; INSERT INTO other VALUES (1); PREPARE TRANSACTION 'p'")
        equal(f"prepared, a GID in use, {work}: PREPARE", prepare(cluster, work), "42710")
        query(other, "ROLLBACK PREPARED 'p'")
        other.close()
        equal(f"prepared, a GID in use, {work}: the rows", found(session), ALL)
        query(session, "INSERT INTO t VALUES (1000, 1, 1)")
        query(session, "CHECKPOINT")
    session.close()
    crash(cluster)
    session = cluster.connect()
    equal("prepared, a GID in use: the rows after a crash", found(session), [(300, 290, 46130)])
    equal("prepared, partitions: refused", prepare(cluster, "ALTER TABLE t SET (mixedcc.partitions = 4); ALTER TABLE t SET (mixedcc.partitions = 3)"), "0A000")
    equal("prepared, partitions: the rows", found(session), [(300, 290, 46130)])
    session.close()


def memory(cluster):
    """Nothing of tables that went stays in memory, but for what its slot keeps until it is used
    again, or the memory is full."""
    session = cluster.connect()
    query(session, "DROP TABLE IF EXISTS t, new")
    after = []
    for _ in range(3):
        for work in ("DROP TABLE t", "TRUNCATE t", "ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t ALTER v TYPE bigint"):
            for end in ENDS:
                make(session, True)
                query(session, "INSERT INTO t SELECT g, 1, g FROM generate_series(1000, 30000) g")
                equal(f"prepared, memory, {work}: PREPARE", prepare(cluster, work), None)
                query(session, f"{end} PREPARED 'p'")
                query(session, "DROP TABLE IF EXISTS t")
        after.append(value(session, "SELECT live_bytes FROM mixedcc.memory"))
    # Each of the 16 tables of the last two rounds has more than 3 MB.
    must_come(lambda: value(session, "SELECT live_bytes FROM mixedcc.memory") < min(after[0], 3_000_000) + 3_000_000, LIMIT)
    session.close()


# What only makes an index: name, index before, transaction, and whether the table can be read
# until its end.
INDEXES = (
    ("CREATE INDEX", None, "CREATE INDEX {0}_i ON {0} (v)", True),
    ("CREATE INDEX, hash", None, "CREATE INDEX {0}_i ON {0} USING hash (v)", True),
    ("CREATE INDEX, a savepoint", None, "CREATE INDEX {0}_i ON {0} (v); SAVEPOINT a; INSERT INTO {0} VALUES (1001, 1, 1001); ROLLBACK TO a", True),
    ("CREATE INDEX beside a row of another table", None, "CREATE INDEX {0}_i ON {0} (v); DELETE FROM other WHERE id = 77; INSERT INTO other VALUES (77)", False),
    ("CREATE INDEX beside a key", "ALTER TABLE {0} ADD PRIMARY KEY (id)", "CREATE INDEX {0}_i ON {0} (v)", True),
    ("CREATE UNIQUE INDEX, hollow", None, "CREATE UNIQUE INDEX {0}_i ON {0} (u)", False),
    ("ADD UNIQUE", None, "ALTER TABLE {0} ADD UNIQUE (v)", False),
    ("ADD UNIQUE, hollow", None, "ALTER TABLE {0} ADD UNIQUE (u)", False),
    ("REINDEX INDEX", "CREATE INDEX {0}_i ON {0} (v)", "REINDEX INDEX {0}_i", False),
    ("REINDEX TABLE", "CREATE INDEX {0}_i ON {0} (v)", "REINDEX TABLE {0}", False),
)
LOOKS = {"sequential": "enable_indexscan = off; SET enable_bitmapscan = off", "by the index": "enable_seqscan = off; SET enable_bitmapscan = off",
         "by a bitmap": "enable_seqscan = off; SET enable_indexscan = off"}


def number_of(session, table, first, last):
    """The rows with each fifth of these values, by each of the columns, looked up one by one."""
    return [value(session, f"SELECT count(*) FROM generate_series({first}, {last}, 5) k, LATERAL (SELECT FROM {table} WHERE {column} = k OFFSET 0) x") for column in ("v", "u")]


def all_agree(name, session, table, parts):
    """Each way to the rows finds so many of them, and amcheck no difference."""
    for look, settings in LOOKS.items():
        query(session, f"SET {settings}")
        found = [number_of(session, table, first, last) for first, last, _ in parts]
        query(session, "RESET enable_seqscan; RESET enable_indexscan; RESET enable_bitmapscan")
        equal(f"{name}, {look}", found, [[count // 5] * 2 for _, _, count in parts])
    trees = query(session, f"""SELECT c.oid FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = relam
        WHERE indrelid = '{table}'::regclass AND amname = 'btree'""")
    for (index,) in trees:
        equal(f"{name}, amcheck", attempt(session, f"SELECT FROM bt_index_check({index}, true)"), None)


def make_numbered(session, table, kind, before=None):
    query(session, f"DROP TABLE IF EXISTS {table}")
    query(session, f"CREATE {kind} TABLE {table} (id int, v int, u int NOT NULL) USING mixedcc")
    if before:
        query(session, before.format(table))
    query(session, f"INSERT INTO {table} SELECT g, g, g FROM generate_series(1, 300) g")


def prepare_as(name, cluster, table, work):
    session = cluster.connect()
    query(session, f"BEGIN; {work.format(table)}")
    equal(f"{name}: PREPARE", attempt(session, f"PREPARE TRANSACTION '{table}'"), None)
    session.close()


def alone(cluster):
    """Transactions that have only made an index, which has entries of rows that were deleted
    before, as an older snapshot saw them. The table is loaded between the restart and the end."""
    for turn, way in enumerate(("a crash", "a checkpoint and a crash", "a restart")):
        session, old, all_cases = cluster.connect(), cluster.connect(), []
        for number, (what, before, work, is_read) in enumerate(INDEXES):
            end, table = ENDS[(number + turn) % 2], f"alone{number}"
            make_numbered(session, table, "", before)
            all_cases.append((f"prepared, alone, {what}, {way}, {end}", table, work, end, is_read))
        query(old, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM other")
        for name, table, work, _, _ in all_cases:
            query(session, f"DELETE FROM {table} WHERE id <= 100")
            prepare_as(name, cluster, table, work)
        for one_session in (session, old):
            one_session.close()
        WAYS[way](cluster)
        session = cluster.connect(options="-c lock_timeout=150ms")
        for name, table, _, end, is_read in all_cases:
            end_alone(name, session, table, end, is_read)
            query(session, f"DROP TABLE {table}")
        session.close()


def end_alone(name, session, table, end, is_read):
    equal(f"{name}: it is read", attempt(session, f"SELECT count(*) FROM {table}"), [(200,)] if is_read else "55P03")
    for write in (f"INSERT INTO {table} VALUES (1, 1, 1)", f"VACUUM {table}"):
        equal(f"{name}: {write} waits", attempt(session, write), "55P03")
    query(session, f"{end} PREPARED '{table}'")
    query(session, f"INSERT INTO {table} SELECT g, g, g FROM generate_series(1001, 1100) g")
    all_agree(f"{name}: new rows", session, table, ((1, 100, 0), (101, 300, 200), (1001, 1100, 100)))
    for first in (2001, 3001):
        query(session, f"DELETE FROM {table} WHERE id BETWEEN {first - 1000} AND {first - 901}")
        query(session, f"VACUUM {table}")
        query(session, f"INSERT INTO {table} SELECT g, g, g FROM generate_series({first}, {first + 99}) g")
        all_agree(f"{name}: their numbers again, {first}", session, table,
                  ((1, 100, 0), (101, 300, 200), (first - 1000, first - 901, 0), (first, first + 99, 100)))


def alone_unlogged(cluster):
    """The same of unlogged tables. If one starts empty, an index that is not seen yet must be
    emptied, too: the first use comes after the end. After a crash PostgreSQL has emptied it."""
    waits, empty, full = "55P03", [(0,)], [(300,)]
    for turn, way in enumerate(("a restart", "a crash")):
        session, all_cases = cluster.connect(), []
        for what, work, after in (("CREATE INDEX", "CREATE INDEX {0}_i ON {0} (v)", (full, empty)),
                                  ("CREATE INDEX and a row", "CREATE INDEX {0}_i ON {0} (v); INSERT INTO {0} VALUES (1001, 1, 1)", (waits, empty)),
                                  ("CREATE UNIQUE INDEX, hollow, and another", "CREATE UNIQUE INDEX {0}_i ON {0} (u); CREATE INDEX {0}_j ON {0} (v)", (waits, waits))):
            for end in ENDS:
                name, table = f"prepared, alone, unlogged, {what}, {way}, {end}", f"alone{len(all_cases)}"
                make_numbered(session, table, "UNLOGGED")
                prepare_as(name, cluster, table, work)
                all_cases.append((name, table, end, after[turn]))
        session.close()
        WAYS[way](cluster)
        session = cluster.connect(options="-c lock_timeout=150ms")
        for name, table, end, wanted in all_cases:
            equal(f"{name}: it is read", attempt(session, f"SELECT count(*) FROM {table}"), wanted)
            query(session, f"{end} PREPARED '{table}'")
            query(session, f"INSERT INTO {table} SELECT g, g, g FROM generate_series(1001, 1100) g")
            all_agree(f"{name}: new rows", session, table, ((1, 300, 300 if wanted == full else 0), (1001, 1100, 100)))
            query(session, f"DROP TABLE {table}")
        session.close()


TESTS = (cases, alone, alone_unlogged, unlogged, dirty, beside_a_round, failures, beside_the_finish, many, memory)


def test_definitions():
    cluster = begin()
    try:
        cluster.ask("CREATE TABLE other (id int PRIMARY KEY) USING mixedcc; SELECT 1")
        for test in (t for t in TESTS if not sys.argv[1:] or t.__name__ in sys.argv[1:]):
            test(cluster)
    finally:
        cluster.remove()


FAULTS = {"leaves_dirty": (dirty, "prepared, dirty, DROP TABLE t: its rows"),
          "makers_forgotten": (alone, "prepared, alone, CREATE INDEX, a crash, COMMIT: new rows, by the index"),
          "kept_ignored": (beside_the_finish, "prepared, beside the finish, no key, TRUNCATE t, ROLLBACK: the rows after a crash")}


def test_faults():
    """A build with the feature `faults`: each is found by its check."""
    for fault in sys.argv[2:] or FAULTS:
        cluster = begin(**{"mixedcc.fault": fault})
        try:
            cluster.ask("CREATE TABLE other (id int PRIMARY KEY) USING mixedcc; SELECT 1")
            test, name = FAULTS[fault]
            must_be_found(fault, name, lambda test=test, cluster=cluster: test(cluster))
        finally:
            cluster.remove()


if __name__ == "__main__":
    main(test_faults if sys.argv[1:2] == ["--faults"] else test_definitions)
