#!/usr/bin/python3
"""Loads of permanent tables after a start: by workers, by mixedcc.load, by their first use.
Sessions and workers are terminated in the middle, databases dropped and copied; a table does not
fit. `loaders --faults [FAULT...]` needs a build with the feature `faults`."""

import re
import sys
import threading

import psycopg2

from lib.clusters import Cluster
from lib.common import check, equal, main, must_be_found, must_come, query, value, wait_until

ROWS = 250_000
DIGEST = "SELECT count(*), sum(v), sum(length(t)) FROM {}"
WORKERS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type IN ('mixedcc loader', 'mixedcc load launcher')"
USED = "SELECT used_bytes FROM mixedcc.memory_usage()"


def begin():
    cluster = Cluster.new(**{"mixedcc.memory": "512MB", "max_wal_size": "4GB"})
    cluster.start()
    boss = cluster.connect()
    for database in ("one", "two"):
        query(boss, f"CREATE DATABASE {database}")
        connection = cluster.connect(dbname=database)
        query(connection, "CREATE EXTENSION mixedcc")
        query(connection, "CREATE TABLE big (k int PRIMARY KEY, v int, t text) USING mixedcc")
        query(connection, f"INSERT INTO big SELECT i, i % 7, repeat('x', 80) FROM generate_series(1, {ROWS}) i")
        query(connection, "CREATE TABLE small (k int PRIMARY KEY, v int, t text) USING mixedcc")
        query(connection, "INSERT INTO small SELECT i, i, 'small' FROM generate_series(1, 100) i")
        query(connection, "CREATE UNLOGGED TABLE volatile (k int PRIMARY KEY) USING mixedcc")
        connection.close()
    boss.close()
    return cluster


def again(cluster, **settings):
    """Crashes, and starts; a connection to the first database."""
    cluster.crash()
    cluster.start(**settings)
    return cluster.connect(dbname="one")


def at_rest(connection):
    """The loaders have come and gone. A table that is in memory is known to the server, and the
    small one is the last of its database."""
    known = "SELECT count(*) FROM mixedcc.partitions WHERE \"table\" = 'small'::regclass"
    must_come(lambda: value(connection, known) > 0)
    must_come(lambda: value(connection, WORKERS) == 0)


def digests(cluster):
    found = []
    for database in ("one", "two"):
        connection = cluster.connect(dbname=database)
        found += [query(connection, DIGEST.format(table)) for table in ("big", "small")]
        connection.close()
    return found


def loading(connection, pid=None):
    """A load of the big table that has come to its rows; its process."""
    found = query(connection, "SELECT pid FROM mixedcc.loads WHERE relid = 'big'::regclass AND database = 'one'"
                              " AND phase = 'loading rows' AND blocks_done > 0 AND (%s IS NULL OR pid = %s)", (pid, pid))
    return found[0][0] if found else None


# --- tests ------------------------------------------------------------------------

def by_workers(cluster, wanted):
    connection = again(cluster)
    at_rest(connection)
    for database in ("one", "two"):
        other = cluster.connect(dbname=database)
        loaded = [value(other, f"SELECT mixedcc.load('{table}')") for table in ("big", "small")]
        equal(f"loaders: all permanent tables of {database} are in memory before their first use", loaded, [False, False])
        other.close()
    equal("loaders: their rows", digests(cluster), wanted)
    query(connection, "SELECT mixedcc.check_primary_index('big')")
    connection.close()


def by_function(cluster, wanted):
    connection = again(cluster, **{"mixedcc.load_workers": 0})
    equal("loaders: mixedcc.load loads", value(connection, "SELECT mixedcc.load('big')"), True)
    equal("loaders: once", value(connection, "SELECT mixedcc.load('big')"), False)
    equal("loaders: an unlogged table has nothing to load", value(connection, "SELECT mixedcc.load('volatile')"), False)
    query(connection, "CREATE ROLE stranger")
    query(connection, "SET ROLE stranger")
    try:
        query(connection, "SELECT mixedcc.load('small')")
        check("loaders: mixedcc.load wants SELECT", False)
    except psycopg2.Error as error:
        equal("loaders: mixedcc.load wants SELECT", error.pgcode, "42501")
    query(connection, "RESET ROLE")
    query(connection, "DROP ROLE stranger")
    equal("loaders: the rows after mixedcc.load", digests(cluster), wanted)
    connection.close()


def terminated(cluster, wanted):
    """A process that loads is terminated in the middle: the memory comes back, and the next user
    loads."""
    connection = again(cluster, **{"mixedcc.load_workers": 0})
    before, full = value(connection, USED), None

    def load():
        victim = cluster.connect(dbname="one")
        try:
            query(victim, "SELECT count(*) FROM big")
        except psycopg2.Error:
            pass

    for how in ("pg_terminate_backend", "pg_cancel_backend"):
        hit = False
        for _ in range(20):
            thread = threading.Thread(target=load)
            thread.start()
            hit = wait_until(lambda: loading(connection), 5)
            pid = loading(connection)
            if pid:
                query(connection, f"SELECT {how}(%s)", (pid,))
            thread.join()
            if value(connection, "SELECT count(*) FROM mixedcc.loads") == 0 and (full := value(connection, USED)) < before + (8 << 20):
                break
            connection.close()
            connection = again(cluster)
        check(f"loaders: {how} of a session in a load gives its memory back", hit and full < before + (8 << 20), (hit, before, full))
    connection.close()
    connection = again(cluster, **{"mixedcc.load_workers": 2})
    hit = wait_until(lambda: loading(connection), 10)
    pid = loading(connection)
    if pid:
        query(connection, "SELECT pg_terminate_backend(%s)", (pid,))
    at_rest(connection)
    check("loaders: a worker can be terminated", hit, hit)
    equal("loaders: the rows are there afterwards", digests(cluster), wanted)
    connection.close()


def met(cluster, wanted):
    """Workers, sessions at their first use and `mixedcc.load` want the same table at once: one
    loads it, the others have its rows."""
    connection = again(cluster, **{"mixedcc.load_workers": 2})
    results = []

    def use(statement):
        try:
            session = cluster.connect(dbname="one")
            results.append(query(session, statement)[0])
            session.close()
        except psycopg2.Error as error:
            results.append(str(error))

    count, load = "SELECT count(*)::int FROM big", "SELECT mixedcc.load('big')"
    threads = [threading.Thread(target=use, args=(statement,)) for statement in (count, load) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    good = [result for result in results if result in ((ROWS,), (True,), (False,))]
    check("loaders: all that meet have the rows", len(good) == len(threads), results)
    at_rest(connection)
    query(connection, "SELECT mixedcc.check_primary_index('big')")
    equal("loaders: the rows of those who meet", digests(cluster), wanted)
    connection.close()


LOADERS = "FROM pg_stat_activity WHERE backend_type = 'mixedcc loader' AND datname"


def databases(cluster):
    """Commands that need a database alone, while workers load it: they do not end by themselves in
    the time that such a command waits for."""
    for what, database, command, undo in (
        ("copied", "one", "CREATE DATABASE copy TEMPLATE one STRATEGY file_copy", "DROP DATABASE copy"),
        ("renamed", "one", "ALTER DATABASE one RENAME TO uno", "ALTER DATABASE uno RENAME TO one"),
        ("dropped", "two", "DROP DATABASE two", None),
    ):
        cluster.crash()
        cluster.start(**{"mixedcc.stop_events": "on", "mixedcc.kill_at": "load-block:0:20"})
        connection = cluster.connect()

        def in_database():
            query(connection, f"SELECT pg_terminate_backend(pid) {LOADERS} <> %s", (database,))
            return query(connection, f"SELECT pid {LOADERS} = %s", (database,))

        must_come(in_database)
        try:
            query(connection, command)
            check(f"loaders: a database can be {what} while its tables are loaded", True)
        except psycopg2.Error as error:
            check(f"loaders: a database can be {what} while its tables are loaded", False, str(error))
        must_come(lambda: not query(connection, f"SELECT pg_terminate_backend(pid) {LOADERS} <> ''"))
        if undo:
            query(connection, undo)
        connection.close()


def too_large(cluster, wanted):
    connection = again(cluster, **{"mixedcc.memory": "32MB", "mixedcc.kill_at": ""})
    at_rest(connection)
    log = cluster.log()
    check("loaders: a table that does not fit is named in the log", 'mixedcc table "big" was not loaded: it needs about' in log, log[-600:])
    equal("loaders: the others are loaded", value(connection, "SELECT mixedcc.load('small')"), False)
    try:
        query(connection, "SELECT count(*) FROM big")
        check("loaders: its use is an error", False)
    except psycopg2.Error as error:
        equal("loaders: its use is an error", error.pgcode, "53200")
    connection.close()
    connection = again(cluster, **{"mixedcc.memory": "512MB"})
    equal("loaders: with more memory its rows are there", query(connection, DIGEST.format("big")), wanted[0])
    connection.close()


def refusals(connection, table, uses=2):
    """Uses of a table: the MB that the error says it needs, and those that are free."""
    found = []
    for _ in range(uses):
        try:
            query(connection, f"SELECT count(*) FROM {table}")
            found.append(None)
        except psycopg2.Error as error:
            numbers = re.search(r"needs about (\d+) MB .*, of which (\d+) MB are free", str(error), re.DOTALL)
            found.append(tuple(map(int, numbers.groups())) if numbers else str(error))
    return found


def wide(cluster, _):
    """Rows of 36 kB take 64 kB of memory each, those of 22 kB half of that."""
    connection = again(cluster, **{"mixedcc.memory": "512MB", "mixedcc.load_workers": 0})
    for table, length, rows in (("wide", 36_000, 1200), ("halves", 22_000, 2200)):
        query(connection, f"CREATE TABLE {table} (k int, t text) USING mixedcc")
        query(connection, f"ALTER TABLE {table} ALTER t SET STORAGE external")
        query(connection, f"INSERT INTO {table} SELECT i, repeat('x', {length}) FROM generate_series(1, {rows}) i")
    connection.close()
    connection = again(cluster, **{"mixedcc.memory": "64MB"})
    for table in ("wide", "halves"):
        found = refusals(connection, table)
        check(f"loaders: a table of wide rows that does not fit needs more than is free, {table}",
              all(isinstance(one, tuple) and one[0] > one[1] for one in found) and found[0] == found[1], found)
    connection.close()
    connection = again(cluster, **{"mixedcc.memory": "192MB"})
    for table, rows in (("wide", 1200), ("halves", 2200)):
        equal(f"loaders: with more memory it is loaded, {table}", value(connection, f"SELECT count(*) FROM {table}"), rows)
    query(connection, "DROP TABLE wide, halves")
    connection.close()


def fits_later(cluster, _):
    """A table did not fit beside versions that an old snapshot kept, in a session that is idle
    since. It is loaded when the snapshot has ended."""
    connection = again(cluster, **{"mixedcc.memory": "512MB", "mixedcc.load_workers": 0})
    for table, length in (("changed", 500), ("later", 1100)):
        query(connection, f"CREATE TABLE {table} (k int PRIMARY KEY, t text) USING mixedcc")
        query(connection, f"ALTER TABLE {table} ALTER t SET STORAGE external")
        query(connection, f"INSERT INTO {table} SELECT i, repeat('x', {length}) FROM generate_series(1, 20000) i")
    connection.close()
    connection = again(cluster, **{"mixedcc.memory": "64MB"})
    old, writer = cluster.connect(dbname="one"), cluster.connect(dbname="one")
    query(old, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    query(old, "SELECT count(*) FROM changed")
    for n in range(3):
        query(writer, f"UPDATE changed SET t = repeat('{n}', 500)")
    found = refusals(connection, "later", 1)
    check("loaders: a table does not fit beside what an old snapshot needs", None not in found, found)
    query(old, "COMMIT")
    found = refusals(connection, "later")
    equal("loaders: it is loaded when that is needed no more", found, [None, None])
    query(connection, "DROP TABLE changed, later")
    for session in (old, writer, connection):
        session.close()


# What owners of databases may set for their sessions: the database, and a setting.
OF_OWNERS = (("one", "role", "keeper"), ("two", "session_authorization", "keeper"), ("two", "default_transaction_read_only", "on"))
# From PostgreSQL 17 on. The first table of each takes longer.
TIMEOUTS = (("one", "transaction_timeout", "200ms"), ("two", "transaction_timeout", "200ms"))


def owners(cluster, _):
    """What owners of databases have set does not stop loaders."""
    connection = cluster.connect()
    query(connection, "CREATE ROLE keeper")
    settings = OF_OWNERS + (TIMEOUTS if connection.info.server_version >= 170000 else ())
    for database, name, text in settings:
        query(connection, f"ALTER DATABASE {database} SET {name} = '{text}'")
    connection.close()
    cluster.crash()
    cluster.start(**{"mixedcc.load_workers": 2, "mixedcc.stop_events": "on", "mixedcc.kill_at": "load-block:0:1"})
    boss = cluster.connect()
    wait_until(lambda: value(boss, WORKERS) > 0, 5)
    must_come(lambda: value(boss, WORKERS) == 0, 120)
    for database, name, _ in settings:
        query(boss, f"ALTER DATABASE {database} RESET {name}")
    for database in ("one", "two"):
        session = cluster.connect(dbname=database)
        loaded = [value(session, f"SELECT mixedcc.load('{table}')") for table in ("big", "small")]
        equal(f"loaders: what owners of databases set does not stop them, {database}", loaded, [False, False])
        session.close()
    query(boss, "DROP ROLE keeper")
    boss.close()
    cluster.configure(**{"mixedcc.kill_at": ""})


def test_loaders():
    cluster = begin()
    try:
        wanted = digests(cluster)
        by_workers(cluster, wanted)
        by_function(cluster, wanted)
        terminated(cluster, wanted)
        met(cluster, wanted)
        owners(cluster, wanted)
        databases(cluster)
        too_large(cluster, wanted)
        wide(cluster, wanted)
        fits_later(cluster, wanted)
    finally:
        cluster.remove()


FAULTS = {"made_left": (terminated, "loaders: pg_terminate_backend of a session in a load gives its memory back"),
          "loaded_twice": (met, "loaders: all that meet have the rows"),
          "large_is_empty": (too_large, "loaders: its use is an error")}


def test_faults():
    """A build with the feature `faults`: each is found by its check."""
    for fault in sys.argv[2:] or FAULTS:
        cluster = begin()
        try:
            wanted = digests(cluster)
            cluster.configure(**{"mixedcc.fault": fault})
            test, name = FAULTS[fault]
            must_be_found(fault, name, lambda test=test, cluster=cluster, wanted=wanted: test(cluster, wanted))
        finally:
            cluster.remove()


if __name__ == "__main__":
    main(test_faults if sys.argv[1:2] == ["--faults"] else test_loaders)
