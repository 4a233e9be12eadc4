#!/usr/bin/python3
"""Tables with several unique keys in memory. Sessions insert, delete and move rows by each key,
while indexes come and go. The server crashes, a standby follows and is promoted, transactions are
prepared, a subscription applies the changes. No two rows have one key, and each way to a row finds
it."""

import os
import random
import sys
import threading
import time

import psycopg2

from lib.clusters import Cluster
from lib.common import check, equal, main, must_be_found, must_come, query, seconds, value, wait_until

LIMIT = 60.0
AGAIN = ("40001", "40P01", "55P03", "57P03", "57014", "55006")
# Each column is the key of an index of its own, in the order of the OIDs. The fifth has nbtree's.
KEYS = ("b", "id", "c", "d", "e")
TABLE = ("CREATE TABLE k (id int NOT NULL, b int NOT NULL UNIQUE, c text COLLATE \"C\" NOT NULL, d bigint NOT NULL, e int NOT NULL, v int) USING mixedcc",
         "ALTER TABLE k ADD PRIMARY KEY (id)", "CREATE UNIQUE INDEX k_c ON k (c)", "CREATE UNIQUE INDEX k_d ON k (d, b)", "CREATE UNIQUE INDEX k_e ON k (e)")
ROWS = 400
SPACE = 800
ROW = "{0}, {1}, 'k{2}', {3}, {4}, {5}"


def attempt(session, sql):
    """What came of a statement: None, or the SQLSTATE."""
    try:
        query(session, sql)
        return None
    except psycopg2.Error as error:
        return error.pgcode or "gone"


def make(cluster, kind=""):
    session = cluster.connect()
    query(session, "DROP TABLE IF EXISTS k")
    for statement in TABLE:
        query(session, statement.replace("CREATE TABLE", f"CREATE {kind} TABLE"))
    query(session, f"INSERT INTO k SELECT g, g, 'k' || g, g, g, 0 FROM generate_series(1, {ROWS}) g")
    session.close()


class Writer(threading.Thread):
    """Changes rows at random until it is stopped."""

    def __init__(self, cluster, number, fails=()):
        super().__init__()
        self.cluster, self.random, self.fails = cluster, random.Random(number), (*AGAIN, "23505", *fails)
        self.stopped, self.done, self.error, self.codes = False, 0, None, {}

    def n(self):
        return self.random.randrange(1, SPACE)

    def row(self):
        return ROW.format(self.n(), self.n(), self.n(), self.n(), self.n(), self.n())

    def statement(self):
        r, n, m = self.random, self.n(), self.n()
        where = r.choice([f"id = {n}", f"b = {n}", f"c = 'k{n}'", f"e = {n}", f"id BETWEEN {n} AND {n + 3}"])
        return r.choice([
            f"INSERT INTO k VALUES ({self.row()})",
            f"INSERT INTO k VALUES ({self.row()}), ({self.row()}) ON CONFLICT DO NOTHING",
            f"INSERT INTO k VALUES ({self.row()}) ON CONFLICT (id) DO UPDATE SET v = k.v + 1",
            f"INSERT INTO k VALUES ({self.row()}) ON CONFLICT (b) DO UPDATE SET c = 'k' || {self.n()}",
            f"INSERT INTO k VALUES ({self.row()}) ON CONFLICT (c) DO UPDATE SET id = {self.n()}, e = {self.n()}",
            f"DELETE FROM k WHERE {where}", f"DELETE FROM k WHERE {where}",
            f"UPDATE k SET v = v + 1 WHERE {where}",
            f"UPDATE k SET id = {self.n()} WHERE {where}", f"UPDATE k SET b = {self.n()} WHERE {where}",
            f"UPDATE k SET b = {self.n()} WHERE id = {m}; UPDATE k SET c = 'k' || {self.n()} WHERE id = {m}",
            f"UPDATE k SET c = 'k' || {self.n()} WHERE {where}", f"UPDATE k SET d = {self.n()}, e = {self.n()} WHERE {where}",
        ])

    def transaction(self, session):
        r = self.random
        query(session, f"BEGIN ISOLATION LEVEL {r.choice(('READ COMMITTED', 'READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE'))}")
        for _ in range(r.randrange(1, 4)):
            query(session, "SAVEPOINT s")
            code = attempt(session, self.statement())
            self.codes[code] = self.codes.get(code, 0) + 1
            if code is not None and code not in self.fails:
                raise RuntimeError(f"{code}")
            if code is not None or r.random() < 0.1:
                query(session, "ROLLBACK TO s")
        query(session, r.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK")))

    def run(self):
        session = self.cluster.connect(options="-c deadlock_timeout=10ms -c lock_timeout=5s")
        try:
            while not self.stopped:
                try:
                    self.transaction(session)
                    self.done += 1
                except psycopg2.Error as error:
                    if error.pgcode not in self.fails:
                        raise
                    query(session, "ROLLBACK")
        except Exception as error:
            self.error = error
        finally:
            session.close()


def beside_writers(name, cluster, work, number=4, fails=()):
    writers = [Writer(cluster, n, fails) for n in range(number)]
    for writer in writers:
        writer.start()
    try:
        work()
    finally:
        for writer in writers:
            writer.stopped = True
        for writer in writers:
            writer.join()
    check(f"{name}: writers see no error of their own", all(w.error is None for w in writers), [repr(w.error) for w in writers])
    check(f"{name}: writers write, and meet duplicates", all(w.done for w in writers) and any(w.codes.get("23505") for w in writers), [w.codes for w in writers])


def rows(session):
    return query(session, "SELECT id, b, c, d, e, v FROM k ORDER BY id, b")


CONDITIONS = {"id": "id > 0", "b": "b > 0", "c": "c > ''", "d": "d > 0", "e": "e > 0"}


def unique_keys(session):
    """Those of which there is an index now."""
    columns = query(session, """SELECT array_agg(attname ORDER BY attnum)::text[] FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
        WHERE indrelid = 'k'::regclass AND indisunique AND indisvalid GROUP BY indexrelid""")
    return [key for key in KEYS if ([key],) in columns or key == "d" and (["b", "d"],) in columns]


def agree(name, session):
    """No key is there twice, and every way finds the same rows."""
    query(session, "SET enable_seqscan = on; SET enable_indexscan = off; SET enable_bitmapscan = off; SET mixedcc.enable_primary_scan = off")
    wanted, keys = rows(session), unique_keys(session)
    for key in keys:
        columns = "d, b" if key == "d" else key
        equal(f"{name}: no two rows have one {key}", query(session, f"SELECT {columns} FROM k GROUP BY {columns} HAVING count(*) > 1"), [])
    query(session, "SET enable_seqscan = off; SET enable_indexscan = on; RESET mixedcc.enable_primary_scan")
    for key, condition in CONDITIONS.items():
        equal(f"{name}: the rows by {key}", sorted(query(session, f"SELECT id, b, c, d, e, v FROM k WHERE {condition}")), wanted)
        column = "id, b, c, d, e".split(", ").index(key)
        for row in wanted[:: max(1, len(wanted) // 50)] if key in keys else ():
            found = query(session, f"SELECT id, b, c, d, e, v FROM k WHERE {key} = %s" + (" AND b = %s" if key == "d" else ""),
                          (row[column], row[1]) if key == "d" else (row[column],))
            if found != [row]:
                equal(f"{name}: one row by {key}", found, [row])
    query(session, "RESET enable_seqscan; RESET enable_indexscan; RESET enable_bitmapscan")
    equal(f"{name}: the indexes in memory agree with the rows", attempt(session, "SELECT mixedcc.check_primary_index('k')"), None)
    return wanted


def in_memory(session, table="k"):
    return sorted(index for index, in query(session, f"SELECT index::text FROM mixedcc.primary_index('{table}')"))


ALL_IN_MEMORY = ["k_b_key", "k_c", "k_d", "k_pkey"]


def duplicates(name, session):
    """Each key refuses the key of a row that is there; all of it is undone."""
    row = query(session, "SELECT id, b, c, d, e FROM k LIMIT 1")[0]
    new = [SPACE * 2, SPACE * 2, "'new'", SPACE * 2, SPACE * 2]
    names = ("k_pkey", "k_b_key", "k_c", "k_d", "k_e")
    for at, index in enumerate(names):
        values = list(new)
        values[at] = f"'{row[at]}'" if at == 2 else row[at]
        if at == 3:
            continue  # of two columns, of which one has a key of its own
        try:
            query(session, f"INSERT INTO k VALUES ({', '.join(map(str, values))}, 0)")
            got = None
        except psycopg2.errors.UniqueViolation as error:
            got = error.diag.constraint_name
        equal(f"{name}: a duplicate in {index}", got, index)
    equal(f"{name}: a new row", attempt(session, f"BEGIN; INSERT INTO k VALUES ({', '.join(map(str, new))}, 0); ROLLBACK"), None)


def crashes(cluster):
    for kind in ("", "UNLOGGED"):
        make(cluster, kind)
        for number, way in enumerate(("crash", "restart", "checkpoint, crash")):
            name = f"several keys, {kind.lower() or 'permanent'}, {way}"
            beside_writers(name, cluster, lambda: time.sleep(seconds(1.5)))
            session = cluster.connect()
            agree(f"{name}: before", session)
            # Numbers are used again.
            query(session, "VACUUM k")
            beside_writers(f"{name}, VACUUM", cluster, lambda: time.sleep(seconds(0.7)))
            before = agree(f"{name}: after VACUUM", session)
            equal(f"{name}: in memory", in_memory(session), ALL_IN_MEMORY)
            if "checkpoint" in way:
                query(session, "CHECKPOINT")
            session.close()
            if "crash" in way:
                cluster.crash()
                cluster.start()
            else:
                cluster.control("stop", "-m", "fast")
                cluster.start()
            session = cluster.connect()
            query(session, "SELECT count(*) FROM k")
            equal(f"{name}: in memory again", in_memory(session), ALL_IN_MEMORY)
            after = agree(f"{name}: after", session)
            equal(f"{name}: the rows", after, [] if kind and "crash" in way else before)
            if after:
                duplicates(name, session)
            else:
                query(session, f"INSERT INTO k SELECT g, g, 'k' || g, g, g, 0 FROM generate_series(1, {ROWS}) g")
            session.close()


# --- definitions -------------------------------------------------------------------

DEFINITIONS = (
    "DROP INDEX k_c", "CREATE UNIQUE INDEX k_c ON k (c)", "REINDEX INDEX k_d", "REINDEX TABLE k", "DROP INDEX k_d; CREATE UNIQUE INDEX k_d ON k (d, b)",
    "ALTER TABLE k DROP CONSTRAINT k_b_key", "ALTER TABLE k ADD UNIQUE (b)", "ALTER TABLE k ALTER c DROP NOT NULL", "ALTER TABLE k ALTER c SET NOT NULL", "REINDEX INDEX k_c",
    "ALTER TABLE k DROP CONSTRAINT k_pkey; ALTER TABLE k ADD PRIMARY KEY (id)", "ALTER TABLE k ALTER d TYPE int", "ALTER TABLE k ALTER d TYPE bigint",
    "CREATE INDEX CONCURRENTLY k_v ON k (v)", "DROP INDEX CONCURRENTLY k_v", "DROP INDEX CONCURRENTLY k_c", "CREATE UNIQUE INDEX CONCURRENTLY k_c ON k (c)",
    "REINDEX TABLE CONCURRENTLY k", "DROP INDEX CONCURRENTLY k_e", "CREATE UNIQUE INDEX k_e ON k (e)", "VACUUM k",
    "BEGIN; DROP INDEX k_e; CREATE UNIQUE INDEX k_f ON k (e, id); ROLLBACK",
    "BEGIN; SAVEPOINT a; ALTER TABLE k DROP CONSTRAINT k_b_key; ROLLBACK TO a; DROP INDEX k_c; CREATE UNIQUE INDEX k_c ON k (c); COMMIT",
    "REINDEX INDEX k_c", "BEGIN; TRUNCATE k; ROLLBACK",
)


def define(boss, sql, limit=LIMIT):
    """A command beside writers. What the time without an index has brought goes before it comes."""
    end = time.monotonic() + limit
    code = None
    while time.monotonic() < end:
        for statement in sql.split("; "):
            code = attempt(boss, statement)
            if code:
                break
        if code is None:
            return None
        attempt(boss, "ROLLBACK")
        if sql.startswith("CREATE") and "CONCURRENTLY" in sql:
            attempt(boss, f"DROP INDEX IF EXISTS {sql.split(' ON ')[0].split()[-1]}")
        if code == "42704":  # the first of two commands was done
            sql = sql.split("; ")[-1]
        elif code in ("23505", "23502"):
            sql = sql.replace("CONCURRENTLY ", "")
            alone = [f"DELETE FROM k WHERE {c} IN (SELECT {c} FROM k GROUP BY 1 HAVING count(*) > 1)" for c in ("id", "b", "c", "e")]
            sql = "; ".join(["BEGIN", "LOCK TABLE k", *alone, "DELETE FROM k WHERE c IS NULL", sql.split("; ")[-1], "COMMIT"])
        elif code not in AGAIN:
            return code
    return code


def definitions(cluster):
    """Indexes come and go beside writers."""
    make(cluster)

    def work():
        boss = cluster.connect(options="-c deadlock_timeout=1s -c lock_timeout=10s")
        for sql in DEFINITIONS:
            time.sleep(seconds(0.1))
            equal(f"several keys, beside writers: {sql}", define(boss, sql), None)
            if not sql.startswith("BEGIN"):
                equal(f"several keys, beside writers, {sql}: no damage", attempt(boss, "SELECT mixedcc.check_primary_index('k')"), None)
        boss.close()

    beside_writers("several keys, definitions", cluster, work, fails=("42P10",))  # no arbiter
    session = cluster.connect()
    agree("several keys, definitions", session)
    equal("several keys, definitions: four are in memory", len(in_memory(session)), 4)
    before = rows(session)
    session.close()
    cluster.crash()
    cluster.start()
    session = cluster.connect()
    equal("several keys, definitions: the rows after a crash", agree("several keys, definitions, a crash", session), before)
    duplicates("several keys, definitions", session)
    session.close()


# --- standby -----------------------------------------------------------------------

def compare_standby(name, primary, standby):
    must_come(lambda: standby.replays(primary), LIMIT)
    at_home, away = primary.connect(), standby.connect()
    wanted = agree(f"{name}: the primary", at_home)
    must_come(lambda: rows(away) == wanted, LIMIT)
    equal(f"{name}: the standby", agree(f"{name}: the standby", away), wanted)
    equal(f"{name}: in memory there", in_memory(away), in_memory(at_home))
    at_home.close()
    away.close()


def read_standby(standby, stops, errors):
    """Snapshots of a standby: each way finds the same."""
    session = standby.connect()
    while not stops.is_set():
        try:
            query(session, "BEGIN ISOLATION LEVEL REPEATABLE READ")
            wanted = rows(session)
            query(session, "SET LOCAL enable_seqscan = off")
            for key, condition in CONDITIONS.items():
                found = sorted(query(session, f"SELECT id, b, c, d, e, v FROM k WHERE {condition}"))
                if found != wanted:
                    errors.append((key, [r for r in found if r not in wanted][:3], [r for r in wanted if r not in found][:3]))
            query(session, "COMMIT")
        except psycopg2.Error as error:
            if error.pgcode not in AGAIN:
                errors.append(repr(error))
                return
            attempt(session, "ROLLBACK")
    session.close()


def standbys(primary):
    make(primary)
    standby = Cluster.copy("-R", source=primary)
    try:
        standby.start(hot_standby="on")
        stops, errors = threading.Event(), []
        reader = threading.Thread(target=read_standby, args=(standby, stops, errors))
        reader.start()
        beside_writers("several keys, standby", primary, lambda: time.sleep(seconds(3)))
        stops.set()
        reader.join()
        equal("several keys, standby: each snapshot has the same rows by each key", errors, [])
        compare_standby("several keys, standby", primary, standby)
        for sql in ("DROP INDEX k_c", "CREATE UNIQUE INDEX k_c ON k (c)", "ALTER TABLE k DROP CONSTRAINT k_b_key", "REINDEX TABLE k", "ALTER TABLE k ADD UNIQUE (b)"):
            boss = primary.connect()
            equal(f"several keys, standby: {sql}", define(boss, sql), None)
            boss.close()
            compare_standby(f"several keys, standby, {sql}", primary, standby)
            beside_writers(f"several keys, standby, {sql}", primary, lambda: time.sleep(seconds(0.5)), fails=("42P10",))
            compare_standby(f"several keys, standby, {sql}, more", primary, standby)
        standby.control("restart", "-m", "fast", "-o", f"-c unix_socket_directories={standby.home}", "-l", standby.home + "/log")
        compare_standby("several keys, standby, restarted", primary, standby)
        session = primary.connect()
        query(session, "BEGIN; INSERT INTO k VALUES (5001, 5001, 'k5001', 5001, 5001, 0); DELETE FROM k WHERE id = (SELECT min(id) FROM k); PREPARE TRANSACTION 'p'")
        session.close()
        must_come(lambda: standby.replays(primary), LIMIT)
        standby.control("promote")
        must_come(standby.recovered, LIMIT)
        session = standby.connect(options="-c lock_timeout=500ms")
        equal("several keys, promoted: the key of a prepared row waits", attempt(session, "INSERT INTO k VALUES (5002, 5002, 'k5001', 5002, 5002, 0)"), "55P03")
        query(session, "COMMIT PREPARED 'p'")
        agree("several keys, promoted", session)
        for key in ("5001, 5002, 'k5002', 5002, 5002", "5002, 5001, 'k5002', 5002, 5002", "5002, 5002, 'k5001', 5002, 5002"):
            equal(f"several keys, promoted: a duplicate ({key})", attempt(session, f"INSERT INTO k VALUES ({key}, 0)"), "23505")
        duplicates("several keys, promoted", session)
        session.close()
        beside_writers("several keys, promoted", standby, lambda: time.sleep(seconds(1)), fails=("42P10",))
        session = standby.connect()
        agree("several keys, promoted, more", session)
        session.close()
        attempt(primary.connect(), "ROLLBACK PREPARED 'p'")
    finally:
        standby.remove()


# --- prepared ----------------------------------------------------------------------

WORK = ("INSERT INTO k VALUES (1001, 1001, 'k1001', 1001, 1001, 0)", "UPDATE k SET id = 1002 WHERE id = 2", "UPDATE k SET b = 1003 WHERE id = 3", "UPDATE k SET c = 'k1004' WHERE id = 4",
        "UPDATE k SET e = 1005, d = 1005 WHERE id = 5", "DELETE FROM k WHERE id = 6", "DELETE FROM k WHERE id = 7", "INSERT INTO k VALUES (7, 1007, 'k7', 1007, 1007, 7)",
        "UPDATE k SET b = 1009 WHERE id = 9", "UPDATE k SET id = 1009, c = 'k1009' WHERE id = 9",
        "SAVEPOINT a", "INSERT INTO k VALUES (1008, 1008, 'k1008', 1008, 1008, 0)", "ROLLBACK TO a")
# Keys that are free after COMMIT and after ROLLBACK, and that somebody has in between.
FREE = {"COMMIT": ("2, 2001, 'k2001', 2001, 2001", "2002, 3, 'k2002', 2002, 2002", "2003, 2003, 'k4', 2003, 2003", "6, 6, 'k6', 6, 6",
                   "9, 2009, 'k2009', 2009, 2009", "2010, 9, 'k2010', 2010, 2010", "2011, 2011, 'k9', 2011, 2011"),
        "ROLLBACK": ("1001, 1001, 'k1001', 1001, 1001", "1002, 2004, 'k2004', 2004, 2004", "2005, 1003, 'k2005', 2005, 2005", "2006, 2006, 'k1004', 2006, 2006",
                     "1009, 2012, 'k2012', 2012, 2012", "2013, 1009, 'k2013', 2013, 2013")}


def prepared(cluster):
    ways = {"nothing": lambda: None, "a crash": lambda: (cluster.crash(), cluster.start()), "a restart": lambda: (cluster.control("stop", "-m", "fast"), cluster.start()),
            "a checkpoint and a crash": lambda: (cluster.ask("CHECKPOINT; SELECT 1"), cluster.crash(), cluster.start())}
    for way, f in ways.items():
        for end in FREE:
            name = f"several keys, prepared, {way}, {end}"
            make(cluster)
            session = cluster.connect()
            query(session, "BEGIN")
            for statement in WORK:
                query(session, statement)
            query(session, "PREPARE TRANSACTION 'p'")
            session.close()
            f()
            session = cluster.connect(options="-c lock_timeout=300ms")
            for keys in FREE.values():
                for key in keys:
                    equal(f"{name}: ({key}) waits", attempt(session, f"INSERT INTO k VALUES ({key}, 0)"), "55P03")
            equal(f"{name}: another row does not", attempt(session, "INSERT INTO k VALUES (3000, 3000, 'k3000', 3000, 3000, 0)"), None)
            query(session, f"{end} PREPARED 'p'")
            agree(name, session)
            for other, keys in FREE.items():
                for key in keys:
                    equal(f"{name}: ({key}) afterwards", attempt(session, f"INSERT INTO k VALUES ({key}, 0)"), None if other == end else "23505")
            duplicates(name, session)
            before = agree(f"{name}, more", session)
            session.close()
            cluster.crash()
            cluster.start()
            session = cluster.connect()
            equal(f"{name}: the rows after one more crash", agree(f"{name}, one more crash", session), before)
            session.close()


# --- subscriptions -----------------------------------------------------------------

def subscriptions(publisher):
    subscriber = Cluster.new(wal_level="logical", **{"mixedcc.memory": "128MB"})
    try:
        subscriber.start()
        subscriber.ask("CREATE EXTENSION mixedcc; SELECT 1")
        make(publisher)
        make(subscriber)
        for cluster in (publisher, subscriber):
            session = cluster.connect()
            query(session, "ALTER TABLE k DROP CONSTRAINT k_pkey")
            query(session, "ALTER TABLE k REPLICA IDENTITY USING INDEX k_d")
            session.close()
        subscriber.ask("DELETE FROM k; SELECT 1")
        publisher.ask("CREATE PUBLICATION p FOR TABLE k; SELECT 1")
        session = subscriber.connect()
        query(session, f"CREATE SUBSCRIPTION s CONNECTION 'host={publisher.home} port=5432 user=postgres dbname=postgres' PUBLICATION p")
        must_come(lambda: value(session, "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'") == 0, LIMIT)
        beside_writers("several keys, subscription", publisher, lambda: time.sleep(seconds(2)), number=2, fails=("42P10",))
        source = publisher.connect()
        wanted = rows(source)
        come = wait_until(lambda: rows(session) == wanted, LIMIT)
        check("several keys, subscription: the rows come", come, subscriber.log()[-2000:])
        equal("several keys, subscription", agree("several keys, subscription", session), wanted)
        query(session, "DROP SUBSCRIPTION s")
        query(source, "DROP PUBLICATION p")
        source.close()
        session.close()
    finally:
        subscriber.remove()


TESTS = (crashes, definitions, prepared, standbys, subscriptions)


def begin(**settings):
    cluster = Cluster.new(max_prepared_transactions="10", autovacuum="off", wal_level="logical", max_standby_streaming_delay="2s",
                          **{"mixedcc.memory": "128MB", **settings})
    cluster.start()
    cluster.ask("CREATE EXTENSION mixedcc; SELECT 1")
    return cluster


def test_unique_keys():
    cluster = begin()
    try:
        only = os.environ.get("UNIQUE_KEYS_PARTS", "").split()
        for test in TESTS:
            if not only or test.__name__ in only:
                test(cluster)
    finally:
        cluster.remove()


VACUUMED = "several keys, permanent, crash: after VACUUM: the indexes in memory agree with the rows"
FAULTS = {"one_tomb_key": (crashes, VACUUMED), "sweeps_one_index": (crashes, VACUUMED), "undoes_one_entry": (crashes, VACUUMED),
          "one_index_loaded": (crashes, "several keys, permanent, crash: after: the rows by c"),
          "one_key_held": (prepared, "several keys, prepared, a crash, COMMIT: (2006, 2006, 'k1004', 2006, 2006) waits"),
          "one_key_followed": (standbys, "several keys, standby: each snapshot has the same rows by each key")}


def test_faults():
    """A build with the feature `faults`: each is found by its check."""
    for fault in sys.argv[2:] or FAULTS:
        cluster = begin(**{"mixedcc.fault": fault})
        try:
            test, name = FAULTS[fault]
            must_be_found(fault, name, lambda test=test, cluster=cluster: test(cluster))
        finally:
            cluster.remove()


if __name__ == "__main__":
    main(test_faults if sys.argv[1:2] == ["--faults"] else test_unique_keys)
