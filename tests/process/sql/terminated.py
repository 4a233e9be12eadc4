#!/usr/bin/python3
"""Sessions that are terminated in the middle of a command that makes something in memory, or that
changes a table in place: the process ends there, and nothing unwinds. What others use is as it was,
and the memory comes back. `terminated --faults` needs a build with the feature `faults`."""

import os
import sys
import threading

import psycopg2

from lib.clusters import Cluster
from lib.common import check, equal, main, must_be_found, must_come, premise, query, value

ROWS = 5000
LARGE = 30_000
TIMES = 4
MB = 1 << 20
USED = "SELECT used_bytes FROM mixedcc.memory_usage()"
STOPS = "-c mixedcc.stop_events=on -c mixedcc.kill_at={}:{}:{}"


def begin(**settings):
    cluster = Cluster.new(**{"mixedcc.memory": "512MB", "max_prepared_transactions": 2, "mixedcc.load_workers": 0, **settings})
    cluster.start()
    boss = cluster.connect()
    query(boss, "CREATE EXTENSION mixedcc")
    query(boss, "CREATE TABLE v (id int PRIMARY KEY) USING mixedcc")
    return cluster, boss


def stopped(cluster, boss, event, nth, statements, how="pg_terminate_backend"):
    """A session stands at the event when it passes it for the nth time, and is terminated or
    cancelled there. The connection, and the error; `None`: it has not come there."""
    path = f"{cluster.home}/stop"
    victim = cluster.connect(options=STOPS.format(event, nth, path))
    pid, found = victim.info.backend_pid, []

    def run():
        for statement in statements:
            try:
                query(victim, statement)
            except psycopg2.Error as error:
                return found.append(error)
        return found.append(None)

    thread = threading.Thread(target=run)
    thread.start()
    must_come(lambda: found or os.path.exists(path + ".stands"))
    if os.path.exists(path + ".stands"):
        query(boss, f"SELECT {how}(%s)", (pid,))
        with open(path + ".goes", "w", encoding="ascii"):
            pass
    thread.join()
    for name in (".stands", ".goes"):
        if os.path.exists(path + name):
            os.unlink(path + name)
    if how == "pg_terminate_backend":
        victim.close()
        must_come(lambda: value(boss, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", (pid,)) == 0)
    return victim, found[0]


def ended(cluster, error):
    """Was the session terminated, and not the server? psycopg2 does not always have the code."""
    return error is not None and error.pgcode in (None, "57P01") and "terminated by signal" not in cluster.log()


# --- a second change of a table's partitions --------------------------------------

CHANGES = {
    "more partitions": ("BEGIN", "ALTER TABLE {0} SET (mixedcc.partitions = 8)",
                        "ALTER TABLE {0} SET (mixedcc.partitions = 16)"),
    "savepoint": ("BEGIN", "ALTER TABLE {0} SET (mixedcc.partitions = 8)", "SAVEPOINT s",
                  "ALTER TABLE {0} SET (mixedcc.partitions = 16)"),
    "another key": ("BEGIN", "ALTER TABLE {0} DROP CONSTRAINT {0}_pkey", "ALTER TABLE {0} ADD PRIMARY KEY (v, id)"),
}


def make(boss, table, kind):
    query(boss, f"CREATE {kind} TABLE {table} (id int PRIMARY KEY, v int) USING mixedcc WITH (mixedcc.partitions = 3)")
    query(boss, f"INSERT INTO {table} SELECT i, i % 7 FROM generate_series(1, {ROWS}) i")


def look(cluster, table):
    """What SERIALIZABLE statements find: all rows, and those of single keys by scans of their
    partition."""
    session = cluster.connect()
    try:
        query(session, "SET default_transaction_isolation = 'serializable'")
        found = [query(session, f"SELECT count(*), sum(v) FROM {table}"),
                 query(session, f"SELECT sum(rows)::int FROM mixedcc.partitions WHERE \"table\" = '{table}'::regclass")]
        query(session, "SET enable_indexscan = off; SET enable_bitmapscan = off; SET mixedcc.enable_bypass = off")
        found += [value(session, f"SELECT count(*) FROM {table} WHERE id = {n}") for n in range(1, ROWS, ROWS // 20)]
        query(session, f"UPDATE {table} SET v = v WHERE id % 3 = 0")
        return found
    except psycopg2.Error as error:
        return [repr(error)]
    finally:
        session.close()


def changed_twice(cluster, boss):
    tables = {}
    for kind in ("UNLOGGED", ""):
        for what, statements in CHANGES.items():
            table = f"t{len(tables)}"
            make(boss, table, kind)
            make(boss, f"{table}_next", "UNLOGGED")
            tables[table] = f"terminated: {kind.lower() or 'permanent'}, {what}"
            wanted = look(cluster, table)
            _, error = stopped(cluster, boss, "repartition-row", 8, [s.format(table) for s in statements])
            premise(f"{tables[table]}: it is terminated", ended(cluster, error), repr(error))
            equal(f"{tables[table]}: the rows are in their partitions", look(cluster, table), wanted)
    boss.close()
    cluster.control("stop", "-m", "fast")
    cluster.start()
    for table, name in tables.items():
        equal(f"{name}: also behind a restart", look(cluster, table), wanted)
        equal(f"{name}: and the next table in the file", look(cluster, f"{table}_next"), wanted)
    return cluster.connect()


# --- a change that fails in a savepoint -------------------------------------------

def cancelled_in_savepoint(cluster, boss):
    """What the transaction has read before stays protected."""
    for protocol in ("occ", "2pl", "mocc"):
        name = f"terminated: {protocol}, a change of partitions that is cancelled in a savepoint"
        query(boss, "DROP TABLE IF EXISTS a, b")
        query(boss, f"""CREATE TABLE a (id int PRIMARY KEY, v int) USING mixedcc WITH (mixedcc.protocol = '{protocol}');
            CREATE TABLE b (id int PRIMARY KEY, v int) USING mixedcc WITH (mixedcc.protocol = '{protocol}');
            INSERT INTO a SELECT i, i FROM generate_series(1, {ROWS}) i""")
        victim, error = stopped(cluster, boss, "repartition-row", 2, (
            "BEGIN ISOLATION LEVEL SERIALIZABLE", "SELECT count(*) FROM a WHERE v < 0", "SAVEPOINT s",
            "ALTER TABLE a SET (mixedcc.partitions = 8)"), "pg_cancel_backend")
        premise(f"{name}", error and error.pgcode == "57014", repr(error))
        other = cluster.connect()
        done = []
        for session, statements in (
            (victim, ["ROLLBACK TO s"]),
            (other, ["SET lock_timeout = '500ms'", "BEGIN ISOLATION LEVEL SERIALIZABLE", "SELECT count(*) FROM b",
                     "INSERT INTO a VALUES (0, -1)", "COMMIT"]),
            (victim, ["INSERT INTO b VALUES (1, 0)", "COMMIT"])):
            try:
                for statement in statements:
                    query(session, statement)
                done.append(True)
            except psycopg2.Error as error:
                done.append(error.pgcode)
        check(f"{name}: not both commit", done[1:] != [True, True], done)
        other.close()
        victim.close()


# --- memory -----------------------------------------------------------------------

def leaves_nothing(cluster, boss, name, event, nth, statements, most):
    """The command is terminated again and again. The first time counts for nothing: it also
    takes the memory that a process keeps for its next use."""
    used = []
    for _ in range(TIMES + 1):
        _, error = stopped(cluster, boss, event, nth, statements)
        if not ended(cluster, error):
            raise RuntimeError(f"{name} was not terminated: {error!r}")
        query(boss, "VACUUM v")  # frees what waits in all sessions' lists
        used.append(value(boss, USED))
    check(f"terminated: {name}: the memory comes back", used[-1] - used[0] < most, used)


def in_memory(boss):
    """The indexes of the table in memory, and how many entries each has."""
    return query(boss, "SELECT index::text, entries FROM mixedcc.primary_index('m') ORDER BY 1")


def memory(cluster, boss):
    query(boss, "SET allow_in_place_tablespaces = on")
    query(boss, "CREATE TABLESPACE elsewhere LOCATION ''")
    for kind in ("UNLOGGED", ""):
        of = kind.lower() or "permanent"
        query(boss, "DROP TABLE IF EXISTS m")
        query(boss, f"CREATE {kind} TABLE m (k text NOT NULL, n int NOT NULL) USING mixedcc")
        query(boss, f"INSERT INTO m SELECT lpad(i::text, 600, 'k'), i FROM generate_series(1, {LARGE}) i")
        moved = ("ALTER TABLE m SET TABLESPACE elsewhere",)
        leaves_nothing(cluster, boss, f"{of}, SET TABLESPACE", "move-row", 29, moved, 4 * MB)
        keyed = ("ALTER TABLE m ADD PRIMARY KEY (k)",)
        leaves_nothing(cluster, boss, f"{of}, ADD PRIMARY KEY", "primary-row", 29, keyed, 4 * MB)
        unique = ("CREATE UNIQUE INDEX m_k ON m (k)",)
        leaves_nothing(cluster, boss, f"{of}, CREATE UNIQUE INDEX", "primary-row", 29, unique, 4 * MB)
        query(boss, unique[0])
        leaves_nothing(cluster, boss, f"{of}, SET TABLESPACE with an index", "move-row", 29, moved, 4 * MB)
        truncated = ("BEGIN", "TRUNCATE m", f"INSERT INTO m SELECT lpad(i::text, 600, 'k'), i FROM generate_series(1, {LARGE}) i",
                     "DROP INDEX m_k", unique[0])
        leaves_nothing(cluster, boss, f"{of}, an index of new rows", "primary-row", 29, truncated, 4 * MB)
        several = ("BEGIN", "DROP INDEX m_k", unique[0], "CREATE UNIQUE INDEX m_kn ON m (k, n)")
        leaves_nothing(cluster, boss, f"{of}, the second of two indexes", "primary-row", 30 + 29, several, 4 * MB)
        equal(f"terminated: {of}: the index from before is there again", in_memory(boss), [("m_k", LARGE)])
        equal(f"terminated: {of}: and its rows", value(boss, "SELECT mixedcc.check_primary_index('m')"), LARGE)
        query(boss, several[3])
        leaves_nothing(cluster, boss, f"{of}, SET TABLESPACE with two indexes", "fill-row", 30 + 29, moved, 4 * MB)
        equal(f"terminated: {of}: both indexes are as they were", in_memory(boss), [("m_k", LARGE), ("m_kn", LARGE)])
        equal(f"terminated: {of}: so are their rows", value(boss, "SELECT mixedcc.check_primary_index('m')"), LARGE)
        query(boss, "DROP INDEX m_k, m_kn; ALTER TABLE m ADD PRIMARY KEY (k)")
        divided = ("ALTER TABLE m SET (mixedcc.partitions = 2000)",)
        leaves_nothing(cluster, boss, f"{of}, other partitions", "repartition-row", 2, divided, 2 * MB)
        equal(f"terminated: {of}: its rows", query(boss, "SELECT count(*), sum(n) FROM m"),
              [(LARGE, LARGE * (LARGE + 1) // 2)])


def held_rows(cluster, boss):
    """Rows of a prepared transaction come into memory with their table, and go with it."""
    query(boss, "DROP TABLE IF EXISTS m")
    query(boss, "CREATE TABLE m (k int PRIMARY KEY, u int NOT NULL UNIQUE, t text) USING mixedcc")
    query(boss, "ALTER TABLE m ALTER COLUMN t SET STORAGE PLAIN")
    query(boss, f"INSERT INTO m SELECT i, -i, repeat('x', 500) FROM generate_series(1, {LARGE // 2}) i")
    query(boss, "BEGIN")
    query(boss, f"UPDATE m SET t = repeat('y', 500), u = CASE WHEN k % 2 = 0 THEN u ELSE u - {LARGE} END")
    query(boss, "PREPARE TRANSACTION 'held'")
    boss.close()
    cluster.crash()
    cluster.start()
    boss = cluster.connect()
    leaves_nothing(cluster, boss, "a load of rows of a prepared transaction", "load-primary", 1, ("SELECT count(*) FROM m",), 4 * MB)
    leaves_nothing(cluster, boss, "the same, in the second of its indexes", "fill-row", 22 + 8, ("SELECT count(*) FROM m",), 4 * MB)
    equal("terminated: the rows as they were", query(boss, "SELECT count(*), min(t) FROM m"), [(LARGE // 2, "x" * 500)])
    query(boss, "ROLLBACK PREPARED 'held'")
    return boss


def test_terminated():
    cluster, boss = begin()
    try:
        boss = changed_twice(cluster, boss)
        cancelled_in_savepoint(cluster, boss)
        memory(cluster, boss)
        held_rows(cluster, boss)
    finally:
        cluster.remove()


def damaged(cluster, boss):
    """Of a file with damaged tables the others are loaded."""
    make(boss, "intact", "UNLOGGED")
    wanted = look(cluster, "intact")
    changed_twice(cluster, boss).close()
    code = None
    try:
        cluster.ask("SELECT count(*) FROM t0")
    except psycopg2.Error as error:
        code = error.pgcode
    # They have come back before, or the file is not one with damaged tables.
    found.append((code, look(cluster, "intact") == wanted, look(cluster, "t0_next") == wanted,
                  "a row is in a partition that does not exist" in cluster.log()))


found = []
FAULTS = {"parts_forgotten": (damaged, "terminated: unlogged, more partitions: the rows are in their partitions"),
          "made_left": (memory, "terminated: unlogged, SET TABLESPACE: the memory comes back")}


def test_faults():
    """A build with the feature `faults`: each is found by its check."""
    for fault in sys.argv[2:] or FAULTS:
        cluster, boss = begin(**{"mixedcc.fault": fault})
        try:
            test, name = FAULTS[fault]
            must_be_found(fault, name, lambda test=test, cluster=cluster, boss=boss: test(cluster, boss))
        finally:
            cluster.remove()
    equal("terminated: a damaged table is refused, and the others of its file are there", found,
          [("55000", True, True, True)] * len(found))


if __name__ == "__main__":
    main(test_faults if sys.argv[1:2] == ["--faults"] else test_terminated)
