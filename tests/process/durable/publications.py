#!/usr/bin/python3
"""Publications of permanent mixedcc tables, and subscriptions into them: first copies under load,
crashes of both servers, streamed and prepared transactions. In the end both servers have the same
rows. A copy shows exactly what a heap table shows by the same snapshot."""

import argparse
import contextlib
import random
import threading
import time

import psycopg2
import psycopg2.errors

from lib import clusters
from lib.common import RETRY, check, equal, main, must_be_found, query, seconds, value, wait_until

SETTINGS = {"wal_level": "logical", "max_prepared_transactions": "20", "max_replication_slots": "20", "max_wal_senders": "20",
            "wal_retrieve_retry_interval": "200ms", "logical_decoding_work_mem": "64kB", "wal_receiver_timeout": "10s",
            "max_sync_workers_per_subscription": "2"}
ROWS = 300
SESSIONS = 3


def new_server(method):
    """PostgreSQL 18.6 tells subscribers of the abort of subtransactions of which they have heard
    nothing, where an aborted transaction is larger than this memory (ReorderBufferTruncateTXN).
    That ends the subscriber, also with heap on both sides."""
    has_fault = "(PostgreSQL) 18" in clusters.run("postgres", "--version")
    settings = {**SETTINGS, "logical_decoding_work_mem": "64MB"} if has_fault else SETTINGS
    cluster = clusters.Cluster.new(**settings, default_table_access_method="heap")
    cluster.start()
    cluster.ask("CREATE EXTENSION mixedcc; SELECT 1")
    boss = cluster.connect()
    query(boss, f"ALTER DATABASE postgres SET default_table_access_method = {method}")
    boss.close()
    return cluster


TABLES = """
CREATE TABLE keyed (id int PRIMARY KEY, v int, s text);
ALTER TABLE keyed ALTER s SET STORAGE EXTERNAL;
CREATE TABLE bag (n int, s text);
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE indexed (id int NOT NULL, k text NOT NULL, v int);
CREATE UNIQUE INDEX indexed_k ON indexed (k);
ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_k;
CREATE TABLE filtered (id int PRIMARY KEY, v int, hidden text);
"""
NAMES = ("keyed", "bag", "indexed")


class Load:
    """Sessions that write as long as they are told to. Those of a server that has crashed go on
    when it is back."""

    def __init__(self, cluster, seed, sessions=SESSIONS, both=False):
        self.cluster, self.both, self.stops = cluster, both, threading.Event()
        self.errors, self.done = [], 0
        self.threads = [threading.Thread(target=self.run, args=(random.Random(seed * 100 + n), n)) for n in range(sessions)]
        for thread in self.threads:
            thread.start()

    def stop(self):
        self.stops.set()
        for thread in self.threads:
            thread.join()
        if self.errors:
            raise RuntimeError(f"the load has failed: {self.errors[0]!r}")
        return self.done

    def run(self, draw, number):
        session, count = None, 0
        while not self.stops.is_set():
            count += 1
            try:
                if session is None:
                    session = self.cluster.connect()
                self.transaction(session, draw, f"{number}-{count}-{time.time_ns()}")
                self.done += 1
            except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
                if error.pgcode in (*RETRY, "57P03", "55P03"):
                    with contextlib.suppress(psycopg2.Error):
                        query(session, "ROLLBACK")
                    continue
                session = None
                time.sleep(0.1)
            except psycopg2.Error as error:
                if error.pgcode is None:
                    session = None  # the server has crashed
                elif error.pgcode in (*RETRY, "23505", "25P02", "42704"):
                    with contextlib.suppress(psycopg2.Error):
                        query(session, "ROLLBACK")
                else:
                    self.errors.append(error)
                    return
        if session:
            session.close()

    def one_of(self, draw, count, number):
        """A number below `count`. The same statement on ours and on heap may see another commit
        between, and then they differ for good. So each session has its own rows there."""
        return draw.randrange(number, count, SESSIONS) if self.both else draw.randrange(count)

    def statement(self, draw, number):
        key, v = 1 + self.one_of(draw, ROWS, number), self.one_of(draw, 1000, number)
        found = draw.choice((
            f"UPDATE keyed SET v = v + 1 WHERE id = {key}",
            f"UPDATE keyed SET s = repeat('{v}', {draw.randint(1, 60)}) WHERE id = {key}",
            f"DELETE FROM keyed WHERE id = {key}",
            f"INSERT INTO keyed VALUES ({key}, {v}, 'new') ON CONFLICT (id) DO UPDATE SET v = excluded.v",
            f"UPDATE keyed SET id = {1 + self.one_of(draw, ROWS, number)} WHERE id = {key}",
            f"INSERT INTO bag VALUES ({v}, 'bag'), ({v}, 'bag')",
            f"INSERT INTO bag SELECT {v}, 'many' FROM generate_series(1, 3)",
            f"DELETE FROM bag WHERE n = {v}",
            f"INSERT INTO indexed VALUES ({v}, '{key}', 1) ON CONFLICT DO NOTHING",
            f"UPDATE indexed SET k = '{1 + self.one_of(draw, ROWS, number)}' WHERE k = '{key}'",
            f"UPDATE indexed SET v = v + 1 WHERE k = '{key}'",
            f"DELETE FROM indexed WHERE k = '{key}'",
            f"INSERT INTO filtered VALUES ({key}, {v}, 'h') ON CONFLICT (id) DO UPDATE SET v = {v}, hidden = 'i'",
        ))
        return "; ".join(found.replace(name, f"{name}_heap", 1) if copy else found
                         for name in (*NAMES, "filtered") if f" {name} " in found for copy in ((False, True) if self.both else (False,)))

    def transaction(self, session, draw, name):
        number = int(name.split("-")[0])
        if draw.random() < 0.4 and not self.both:
            query(session, self.statement(draw, number))
            return
        levels = ("READ COMMITTED", "REPEATABLE READ") if self.both else ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
        query(session, f"BEGIN ISOLATION LEVEL {draw.choice(levels)}; SET LOCAL lock_timeout = '2s'")
        run = []
        for _ in range(draw.randint(1, 5)):
            if draw.random() < 0.2:
                run.append(f"SAVEPOINT s; {self.statement(draw, number)}; {draw.choice(('ROLLBACK TO s', 'RELEASE s'))}")
            run.append(self.statement(draw, number))
        for sql in run:
            query(session, sql)
        large = draw.random() < 0.05 and not self.both
        if large:
            query(session, "INSERT INTO indexed SELECT i, 'large' || i, 0 FROM generate_series(1, 800) i ON CONFLICT DO NOTHING;"
                  " DELETE FROM indexed WHERE k LIKE 'large%' AND id % 7 > 0")
        end = draw.random()
        # A subscriber finds a row without a key by its values, and waits for a prepared one that is
        # equal: for ever, if its end comes later. And heap's waits for the key of a row that a
        # prepared transaction has inserted and deleted; ours does not (limits.md).
        if end < 0.2 and len(run) == 1 and not large and " bag " not in run[0]:
            query(session, f"PREPARE TRANSACTION '{name}'")
            time.sleep(draw.random() / 50)
            query(session, f"{draw.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))} PREPARED '{name}'")
        else:
            query(session, "ROLLBACK" if end < 0.3 else "COMMIT")


def end_prepared(cluster):
    """What a crash has left."""
    session = cluster.connect()
    for gid, in query(session, "SELECT gid FROM pg_prepared_xacts WHERE gid NOT LIKE 'pg_gid%'"):
        # Its session may be there, and end it.
        with contextlib.suppress(psycopg2.errors.UndefinedObject, psycopg2.errors.ObjectInUse, psycopg2.errors.ObjectNotInPrerequisiteState):
            query(session, f"COMMIT PREPARED '{gid}'")
    session.close()


def rows_of(cluster, table, columns="*", where="true"):
    session = cluster.connect()
    try:
        return query(session, f"SELECT {columns} FROM {table} WHERE {where} ORDER BY 1, 2")
    finally:
        session.close()


def is_ready(subscriber):
    return subscriber.ask("SELECT count(*) > 0 AND bool_and(srsubstate = 'r') FROM pg_subscription_rel")


def has_all(publisher, subscriber):
    """Waits until the subscriber has applied all that the publisher has committed."""
    lsn = publisher.ask("SELECT pg_current_wal_insert_lsn()")
    sent = "SELECT bool_and(confirmed_flush_lsn >= %s::pg_lsn) FROM pg_replication_slots WHERE slot_type = 'logical'"
    return wait_until(lambda: is_ready(subscriber) and publisher.ask(sent, (lsn,)), 120)


def compare(name, publisher, subscriber):
    if not check(f"{name}: the subscriber has applied all", has_all(publisher, subscriber), subscriber.log()[-3000:]):
        return
    for table in NAMES:
        equal(f"{name}: {table} is the same", rows_of(subscriber, table), rows_of(publisher, table))
    equal(f"{name}: filtered rows and columns", rows_of(subscriber, "filtered", "id, v"), rows_of(publisher, "filtered", "id, v", "id > 100"))
    for cluster in (publisher, subscriber):
        session = cluster.connect()
        for (index,) in query(session, "SELECT indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid"
                              " WHERE c.relname = ANY(%s) AND relam = (SELECT oid FROM pg_am WHERE amname = 'mixedcc')", ([*NAMES],)):
            query(session, "SET enable_seqscan = off")
            table = value(session, "SELECT indrelid::regclass::text FROM pg_index WHERE indexrelid = %s::regclass", (index,))
            counts = [value(session, f"SET enable_seqscan = {way}; SET enable_indexscan = {other}; SELECT count(*) FROM {table}")
                      for way, other in (("on", "off"), ("off", "on"))]
            equal(f"{name}: {index} has all rows", counts[1], counts[0])
        session.close()


def subscription(publisher, subscriber, two_phase):
    session = subscriber.connect()
    query(session, f"""CREATE SUBSCRIPTION s CONNECTION 'host={publisher.home} port={clusters.PORT} user=postgres dbname=postgres'
        PUBLICATION p WITH (streaming = on, two_phase = {two_phase})""")
    session.close()


def set_up(publisher_method, subscriber_method):
    publisher, subscriber = new_server(publisher_method), new_server(subscriber_method)
    for cluster in (publisher, subscriber):
        session = cluster.connect()
        query(session, TABLES)
        session.close()
    session = publisher.connect()
    query(session, f"""INSERT INTO keyed SELECT i, 0, 'first' FROM generate_series(1, {ROWS}, 2) i;
        INSERT INTO bag SELECT i, 'first' FROM generate_series(1, 50) i;
        INSERT INTO indexed SELECT i, i::text, 0 FROM generate_series(1, {ROWS}, 3) i;
        INSERT INTO filtered SELECT i, 0, 'h' FROM generate_series(1, {ROWS}, 3) i;
        CREATE PUBLICATION p FOR TABLE keyed, bag, indexed, filtered (id, v) WHERE (id > 100)""")
    session.close()
    return publisher, subscriber


def between(publisher_method, subscriber_method, seed):
    """A subscription that begins under load. Both servers crash meanwhile."""
    name = f"{publisher_method} to {subscriber_method}"
    publisher, subscriber = set_up(publisher_method, subscriber_method)
    try:
        load = Load(publisher, seed)
        time.sleep(0.5)
        subscription(publisher, subscriber, "on")
        check(f"{name}: the first copies end", wait_until(lambda: is_ready(subscriber), 90), subscriber.log()[-3000:])
        for turn in range(2):
            time.sleep(1)
            subscriber.crash()
            time.sleep(0.5)
            subscriber.start()
            time.sleep(1)
            publisher.crash()
            publisher.start()
            end_prepared(publisher)
        time.sleep(1)
        check(f"{name}: the load has run", load.stop() > 100)
        end_prepared(publisher)
        compare(name, publisher, subscriber)
    finally:
        load.stops.set()
        subscriber.remove()
        publisher.remove()


def is_blocked(subscriber):
    """Does a worker wait for another session?"""
    return subscriber.ask("""SELECT bool_or(cardinality(pg_blocking_pids(pid)) > 0) FROM pg_stat_activity
        WHERE backend_type LIKE 'logical replication%'""")


def applied():
    """What a subscriber's triggers and its own sessions have of changes that are applied there: the
    same as with heap."""
    publisher, subscriber = set_up("heap", "mixedcc")
    try:
        subscription(publisher, subscriber, "off")
        check("applied: the first copies end", wait_until(lambda: is_ready(subscriber), 90), subscriber.log()[-3000:])
        session, own = publisher.connect(), subscriber.connect()
        query(own, """CREATE TABLE log (at serial, what text) USING heap;
            CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN INSERT INTO public.log (what) VALUES ((OLD.id, OLD.v)::text || ' ' || (NEW.id, NEW.v)::text); RETURN NULL; END $$;
            CREATE TRIGGER note AFTER UPDATE ON keyed FOR EACH ROW EXECUTE FUNCTION note();
            ALTER TABLE keyed ENABLE ALWAYS TRIGGER note""")
        query(session, "INSERT INTO keyed VALUES (1000, 0, ''); UPDATE keyed SET v = 1 WHERE id = 1000")
        query(session, """BEGIN; UPDATE keyed SET v = 2 WHERE id = 1000; UPDATE keyed SET v = 3 WHERE id = 1000;
            UPDATE keyed SET id = 1001 WHERE id = 1000; UPDATE keyed SET v = 4 WHERE id = 1001; COMMIT""")
        check("applied: all comes", has_all(publisher, subscriber), subscriber.log()[-3000:])
        equal("applied: AFTER triggers get the row before and after each change",
              [what for (what,) in query(own, "SELECT what FROM log ORDER BY at")],
              [f"({id},{v}) ({new},{w})" for id, v, new, w in ((1000, 0, 1000, 1), (1000, 1, 1000, 2), (1000, 2, 1000, 3), (1000, 3, 1001, 3), (1001, 3, 1001, 4))])
        # The subscriber changes a row that the worker has found by all its columns, and waits for.
        query(session, "INSERT INTO bag VALUES (1000, 'x'), (1001, 'x'), (1002, 'x')")
        check("applied: the rows come", has_all(publisher, subscriber), subscriber.log()[-3000:])
        for statement in ("UPDATE bag SET s = 'y' WHERE n = 1000", "DELETE FROM bag WHERE n = 1001"):
            n = statement[-4:]
            query(own, f"BEGIN; UPDATE bag SET n = n + 1000 WHERE n = {n}")
            query(session, statement)
            check(f"applied: the worker waits, {statement}", wait_until(lambda: is_blocked(subscriber), 30))
            query(own, "COMMIT")
        query(session, "UPDATE bag SET s = 'z' WHERE n = 1002")
        check("applied: the worker goes on", has_all(publisher, subscriber), subscriber.log()[-3000:])
        equal("applied: rows that the subscriber has changed are no more those that are meant",
              query(own, "SELECT * FROM bag WHERE n >= 1000 ORDER BY n"), [(1002, "z"), (2000, "x"), (2001, "x")])
    finally:
        subscriber.remove()
        publisher.remove()


def first_copies(turns):
    """Subscriptions are made again and again under load."""
    publisher, subscriber = set_up("mixedcc", "mixedcc")
    load = None
    try:
        for turn in range(turns):
            load = Load(publisher, turn)
            time.sleep(0.3)
            subscription(publisher, subscriber, "off")
            ready = wait_until(lambda: is_ready(subscriber), 60)
            load.stop()
            check(f"copy {turn}: it ends under load", ready, subscriber.log()[-3000:])
            compare(f"copy {turn}", publisher, subscriber)
            session = subscriber.connect()
            query(session, "DROP SUBSCRIPTION s")
            query(session, "TRUNCATE keyed, bag, indexed, filtered")
            session.close()
    finally:
        load.stops.set()
        subscriber.remove()
        publisher.remove()


def two_phases():
    """A subscription with two_phase prepares in mixedcc tables, and goes on to apply other
    transactions, also when the subscriber was started again. In the end both have the same rows."""
    publisher, subscriber = set_up("mixedcc", "mixedcc")
    try:
        session = publisher.connect()
        subscription(publisher, subscriber, "on")
        check("a subscription with two_phase copies", wait_until(lambda: is_ready(subscriber), 60), subscriber.log()[-2000:])
        wait_until(lambda: subscriber.ask("SELECT subtwophasestate = 'e' FROM pg_subscription"), 30)
        prepared = lambda: subscriber.ask("SELECT count(*) FROM pg_prepared_xacts")
        for number, end in enumerate(("COMMIT", "ROLLBACK") * 2):
            name = f"two phases, {number}, {end}"
            for gid in ("x", "y"):
                key = 40 * number + (1 if gid == "x" else 21)
                query(session, f"""BEGIN; UPDATE keyed SET v = v + 7, s = '{gid}' WHERE id = {key}; DELETE FROM keyed WHERE id = {key + 2};
                    INSERT INTO keyed VALUES ({key + 1}, 9, repeat('{gid}', 20000)); UPDATE keyed SET id = {key + 3} WHERE id = {key + 4};
                    UPDATE indexed SET k = 'n{key}' WHERE k = (SELECT k FROM indexed WHERE id > {key} AND k ~ '^[0-9]' ORDER BY id LIMIT 1);
                    DELETE FROM bag WHERE n = {key % 50 + 1}; INSERT INTO bag VALUES ({key}, '{gid}'); PREPARE TRANSACTION '{gid}'""")
            check(f"{name}: both are prepared", wait_until(lambda: prepared() == 2, 30), subscriber.log()[-2000:])
            for life in range(2):
                query(session, f"UPDATE keyed SET s = 'life {life}' WHERE id = 299; UPDATE indexed SET v = {1 + life + 2 * number} WHERE id = 298; INSERT INTO bag VALUES (1000, '{number} {life}')")
                seen = lambda: subscriber.ask(f"SELECT count(*) FROM bag WHERE s = '{number} {life}'") == 1
                check(f"{name}: others are applied, life {life}", wait_until(seen, 30), subscriber.log()[-2000:])
                if life == 0:
                    if number % 2:
                        subscriber.control("stop", "-m", "fast")
                    else:
                        subscriber.crash()
                    subscriber.start()
            equal(f"{name}: prepared as before", prepared(), 2)
            query(session, f"{end} PREPARED 'x'")
            check(f"{name}: the first one ends", wait_until(lambda: prepared() == 1, 30), subscriber.log()[-2000:])
            query(session, "COMMIT PREPARED 'y'")
            check(f"{name}: both end", wait_until(lambda: prepared() == 0, 30), subscriber.log()[-2000:])
            compare(name, publisher, subscriber)
        session.close()
    finally:
        subscriber.remove()
        publisher.remove()


def two_phases_refused():
    """What a subscription cannot prepare: its worker would wait for itself."""
    publisher, subscriber = set_up("heap", "mixedcc")
    try:
        session = subscriber.connect()
        query(session, "ALTER TABLE bag SET (mixedcc.protocol = 'partcc')")
        session.close()
        subscription(publisher, subscriber, "on")
        check("a subscription with two_phase copies", wait_until(lambda: is_ready(subscriber), 60), subscriber.log()[-2000:])
        wait_until(lambda: subscriber.ask("SELECT subtwophasestate = 'e' FROM pg_subscription"), 30)
        session = publisher.connect()
        query(session, "BEGIN; INSERT INTO bag VALUES (-1, 'prepared'); PREPARE TRANSACTION 'x'")
        message = "a subscription cannot prepare a transaction that keeps more of a mixedcc table than the rows that it has written"
        check("it cannot prepare", wait_until(lambda: message in subscriber.log(), 30), subscriber.log()[-2000:])
        query(session, "ROLLBACK PREPARED 'x'")
        session.close()
    finally:
        subscriber.remove()
        publisher.remove()


def sender(cluster):
    """A WAL sender's session, which takes commands of replication and SQL."""
    return cluster.connect(replication="database")


def by_snapshot(session):
    """What the tables have by the snapshot of the session: of ours, and of heap."""
    return [[query(session, f"SELECT * FROM {table}{of} ORDER BY 1, 2") for table in NAMES] for of in ("", "_heap")]


BEGIN = "BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ"


def exported(copy):
    """The name of the snapshot that a new slot exports. It lasts until the next command."""
    with copy.cursor() as cursor:
        cursor.execute("CREATE_REPLICATION_SLOT c TEMPORARY LOGICAL test_decoding EXPORT_SNAPSHOT")
        return cursor.fetchone()[2]


def importing(cluster, name):
    """A session that has imported a snapshot."""
    session = cluster.connect()
    query(session, f"{BEGIN}; SET TRANSACTION SNAPSHOT '{name}'")
    return session


def differences(*seen):
    """Some rows that are not the same everywhere: of each table, and which looks have them."""
    for table, name in enumerate(NAMES):
        rows = [set(each[table]) for each in seen]
        for row in list(set.union(*rows) - set.intersection(*rows))[:3]:
            yield name, row, [row in each for each in rows]


def by_two(publisher, copy, draw):
    """What two sessions see that import the snapshot of a slot, one of them later."""
    name = exported(copy)
    pause = draw.choice((0, 0.01, 0.1, 0.3))
    time.sleep(pause)
    first = importing(publisher, name)
    ours, heap = by_snapshot(first)
    time.sleep(pause)
    second = importing(publisher, name)
    query(copy, "DROP_REPLICATION_SLOT c")  # the snapshot is gone with the next command
    time.sleep(pause)
    again = [*by_snapshot(first), *by_snapshot(second)]
    for session in (first, second):
        session.close()
    return ours, heap, again


def snapshots(turns):
    """Each transaction writes the same into a table of ours and into one of heap. By the snapshot
    of a new slot they have the same rows."""
    publisher = new_server("mixedcc")
    load = None
    try:
        session = publisher.connect()
        query(session, TABLES)
        for table in (*NAMES, "filtered"):
            query(session, f"CREATE TABLE {table}_heap (LIKE {table} INCLUDING INDEXES) USING heap")
        query(session, f"INSERT INTO keyed SELECT i, 0, 'first' FROM generate_series(1, {ROWS}) i; INSERT INTO keyed_heap SELECT * FROM keyed")
        load = Load(publisher, 7, both=True)
        draw, differ, longest = random.Random(5), [], 0
        copy = sender(publisher)
        for turn in range(turns):
            if turn % 2:
                ours, heap, again = by_two(publisher, copy, draw)
                if ours != heap or again != [ours, heap, ours, heap]:
                    differ.append(("exported", turn, *differences(ours, heap, *again)))
                continue
            query(copy, BEGIN)
            query(copy, "CREATE_REPLICATION_SLOT c TEMPORARY LOGICAL test_decoding USE_SNAPSHOT")
            time.sleep(draw.choice((0, 0.01, 0.1, 0.3)))
            ours, heap = by_snapshot(copy)
            time.sleep(draw.choice((0, 0.1)))
            again = by_snapshot(copy)
            query(copy, "COMMIT")
            query(copy, "DROP_REPLICATION_SLOT c")
            if ours != heap or again != [ours, heap]:
                differ.append((turn, *differences(ours, heap, *again)))
            longest = max(longest, len(ours[1]))
        load.stop()
        equal("copies have what heap has by the snapshot of a slot", differ, [])
        check("there were rows", longest > 0)
        copy.close()
        session.close()
    finally:
        if load:
            load.stops.set()
        publisher.remove()


def moments():
    """Single cases of a snapshot that is older than its first use."""
    publisher = new_server("mixedcc")
    try:
        session, other, copy = publisher.connect(), publisher.connect(), sender(publisher)
        query(session, "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i")
        query(session, "CREATE TABLE later (id int)")
        query(copy, BEGIN)
        query(copy, "CREATE_REPLICATION_SLOT c TEMPORARY LOGICAL test_decoding USE_SNAPSHOT")
        query(session, "UPDATE t SET v = 1 WHERE id = 1; DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (30, 1); UPDATE t SET id = 31 WHERE id = 3")
        query(other, "BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE t SET v = 2 WHERE id = 4; PREPARE TRANSACTION 'a'")
        query(other, "COMMIT PREPARED 'a'")
        query(session, "DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (1, 9)")
        for _ in range(2):
            query(session, "VACUUM t")
        query(session, "BEGIN; TRUNCATE later; INSERT INTO later VALUES (1); COMMIT")
        seen = [(i, 0) for i in range(1, 21)]
        equal("a copy leaves out what has committed after its slot", query(copy, "SELECT * FROM t ORDER BY id"), seen)
        equal("by the key, too", query(copy, "SELECT v FROM t WHERE id = 1"), [(0,)])
        equal("and what was deleted", query(copy, "SELECT v FROM t WHERE id = 2"), [(0,)])
        try:
            found = query(copy, "SELECT * FROM later")
            check("a table that was rewritten since is refused", False, found)
        except psycopg2.errors.ObjectNotInPrerequisiteState:
            check("a table that was rewritten since is refused", True)
        query(copy, "ROLLBACK")  # the error has ended the slot
        query(copy, "BEGIN; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        query(copy, "CREATE_REPLICATION_SLOT c TEMPORARY LOGICAL test_decoding USE_SNAPSHOT")
        try:
            query(copy, "SELECT * FROM t")
            check("a snapshot that was not expected is refused", False)
        except psycopg2.errors.FeatureNotSupported:
            check("a snapshot that was not expected is refused", True)
        query(copy, "ROLLBACK")  # the error has ended the slot
        # Its pin has ended: a sender that does nothing keeps nothing.
        query(copy, BEGIN)
        query(copy, "SELECT count(*) FROM t")
        query(copy, "COMMIT")
        equal("a copy that has ended keeps nothing", query(session, "SELECT count(*) FROM mixedcc.snapshots WHERE pid <> pg_backend_pid() AND NOT pid = ANY (ARRAY(SELECT pid FROM pg_stat_activity WHERE backend_type = 'mixedcc companion'))"), [(0,)])
        for each in (session, other, copy):
            each.close()
    finally:
        publisher.remove()


def held(session):
    """Commits since the moment that the companion keeps."""
    return query(session, "SELECT commits FROM mixedcc.snapshots JOIN pg_stat_activity USING (pid) WHERE backend_type = 'mixedcc companion'")[0][0]


def exports():
    """Single cases of snapshots that slots export."""
    publisher = new_server("mixedcc")
    try:
        session, other, third, copy = publisher.connect(), publisher.connect(), publisher.connect(), sender(publisher)
        query(session, "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i")
        query(session, "CREATE INDEX ON t (v); CREATE TABLE later (id int)")
        # Three commits that the slot's snapshot shows as running: one waits, and one is prepared.
        query(other, "BEGIN; UPDATE t SET v = 3 WHERE id = 5; PREPARE TRANSACTION 'before'")
        query(third, "BEGIN; SELECT txid_current(); UPDATE t SET v = 4 WHERE id = 6")
        found = []
        thread = threading.Thread(target=lambda: found.append(exported(copy)))
        thread.start()
        making = "SELECT count(*) FROM pg_replication_slots WHERE confirmed_flush_lsn IS NULL"
        check("the slot waits for a transaction", wait_until(lambda: value(session, making) == 1, 10))
        time.sleep(0.3)
        query(session, "UPDATE t SET v = 7 WHERE id = 7")  # while it is made, and before its start
        for n in range(60):
            query(session, f"UPDATE t SET v = {n} WHERE id = 20")
            time.sleep(0.005)
        check("the moment stays while a slot is made", held(session) >= 60, held(session))
        query(third, "COMMIT")
        query(other, "COMMIT PREPARED 'before'")
        thread.join(60)
        name = found[0]
        query(session, "UPDATE t SET v = 1 WHERE id = 1; DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (30, 1); UPDATE t SET id = 31 WHERE id = 3")
        query(other, "BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE t SET v = 2 WHERE id = 4; PREPARE TRANSACTION 'a'")
        query(other, "COMMIT PREPARED 'a'")
        query(session, "BEGIN; TRUNCATE later; INSERT INTO later VALUES (1); COMMIT")
        time.sleep(0.3)
        query(session, "VACUUM t")
        seen = {i: 0 for i in range(1, 21)} | {5: 3, 6: 4, 7: 7, 20: 59}
        # One that is exported again is not known, as its own clock is later than what it keeps.
        first = importing(publisher, name)
        query(first, "SELECT count(*) FROM t")
        second = importing(publisher, value(first, "SELECT pg_export_snapshot()"))
        check("an import cannot be exported", refused(lambda: query(second, "SELECT * FROM t"), psycopg2.errors.FeatureNotSupported))
        second.close()
        first.close()
        # The session has used the table before, and knows it.
        query(session, "SELECT * FROM later")
        query(session, f"{BEGIN}; SET TRANSACTION SNAPSHOT '{name}'")
        check("a table that was rewritten since is refused where it is known",
              refused(lambda: query(session, "SELECT * FROM later"), psycopg2.errors.ObjectNotInPrerequisiteState))
        query(session, "ROLLBACK")
        # A WAL sender that has imported an old snapshot exports it.
        third_sender = sender(publisher)
        query(other, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM pg_class LIMIT 1")
        old = value(other, "SELECT pg_export_snapshot()")
        time.sleep(0.2)
        query(third_sender, f"{BEGIN}; SET TRANSACTION SNAPSHOT '{old}'")
        again = importing(publisher, value(third_sender, "SELECT pg_export_snapshot()"))
        check("nor one that a WAL sender has imported", refused(lambda: query(again, "SELECT * FROM t"), psycopg2.errors.FeatureNotSupported))
        query(other, "ROLLBACK")
        for each in (third_sender, again):
            each.close()
        reader = importing(publisher, name)
        equal("an import has what had committed at the slot's start", dict(query(reader, "SELECT * FROM t")), seen)
        dump = clusters.run("pg_dump", "-h", publisher.home, "-U", "postgres", f"--snapshot={name}", "--data-only", "-t", "t", "postgres")
        rows = [line.split("\t") for line in dump.splitlines() if line[:1].isdigit()]
        equal("pg_dump has it by that snapshot", {int(id): int(v) for id, v in rows}, seen)
        reader_writes(publisher, name)
        query(copy, "DROP_REPLICATION_SLOT c")
        time.sleep(0.3)
        for n in range(60):
            query(session, f"UPDATE t SET v = {n} WHERE id = 1")
        query(session, "VACUUM t")
        equal("it keeps that when the slot has gone", dict(query(reader, "SELECT * FROM t")), seen)
        equal("by the key, too", query(reader, "SELECT v FROM t WHERE id = 2"), [(0,)])
        query(reader, "SET enable_seqscan = off; SET enable_bitmapscan = off")
        equal("and by another index", query(reader, "SELECT count(*) FROM t WHERE v = 0"), [(16,)])
        expect = psycopg2.errors.ObjectNotInPrerequisiteState
        check("a table that was rewritten since is refused", refused(lambda: query(reader, "SELECT * FROM later"), expect))
        reader.close()
        check("the moment moves again", wait_until(lambda: held(session) < 60, 10))
        late = publisher.connect()
        # Up to version 16 the first of these, then the second.
        gone = (psycopg2.errors.InvalidParameterValue, psycopg2.errors.UndefinedObject)
        check("a snapshot that has gone cannot be imported", refused(lambda: query(late, f"{BEGIN}; SET TRANSACTION SNAPSHOT '{name}'"), gone))
        for each in (session, other, third, late, copy):
            each.close()
    finally:
        publisher.remove()


def reader_writes(publisher, name):
    """A session that has imported a snapshot overwrites nothing that it does not see."""
    session = publisher.connect()
    for sql in ("UPDATE t SET v = 5 WHERE id = 1", "DELETE FROM t WHERE id = 2", "UPDATE t SET v = 5 WHERE id = 4"):
        query(session, f"BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '{name}'")
        check(f"an import cannot do: {sql}", refused(lambda sql=sql: query(session, sql), psycopg2.errors.SerializationFailure))
        query(session, "ROLLBACK")
    query(session, f"BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '{name}'")
    query(session, "UPDATE t SET v = v + 1 WHERE id = 8")
    equal("what has not changed since it can write", query(session, "SELECT v FROM t WHERE id = 8"), [(1,)])
    query(session, "ROLLBACK")
    session.close()


def refused(f, error):
    try:
        f()
        return False
    except error:
        return True


def faults():
    """Each of these faults must be found."""
    start = clusters.Cluster.start

    fault = "copies_too_much"

    def with_fault(cluster, **settings):
        start(cluster, **{"mixedcc.fault": fault, **settings})
    clusters.Cluster.start = with_fault
    try:
        must_be_found(fault, "a copy leaves out what has committed after its slot", moments)
        must_be_found(f"{fault}, under load", "copies have what heap has by the snapshot of a slot", lambda: snapshots(20))
        fault = "anchor_drags"
        must_be_found(fault, "an import has what had committed at the slot's start", exports)
    finally:
        clusters.Cluster.start = start


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--turns", type=int, default=int(seconds(30)))
    parser.add_argument("--only")
    arguments = parser.parse_args()
    tests = {
        "moments": moments,
        "exports": exports,
        "snapshots": lambda: snapshots(arguments.turns),
        "applied": applied,
        "two_phases": two_phases,
        "two_phases_refused": two_phases_refused,
        "copies": lambda: first_copies(2 + arguments.turns // 10),
        "both": lambda: between("mixedcc", "mixedcc", 1),
        "to_heap": lambda: between("mixedcc", "heap", 2),
        "from_heap": lambda: between("heap", "mixedcc", 3),
    }
    chosen = [tests[arguments.only]] if arguments.only else list(tests.values())
    main(*([faults] if arguments.faults else chosen))
