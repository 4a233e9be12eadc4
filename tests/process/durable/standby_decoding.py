#!/usr/bin/python3
"""Logical decoding on a standby (PostgreSQL 16): under load it says what the primary's says. A
subscription to a standby gets all changes. A standby cannot show mixedcc tables by the snapshot of
a slot, so first copies are refused: they would miss rows that are not sent either."""

import random
import threading
import time

import psycopg2

from lib import churn, decoded
from lib.clusters import PORT, Cluster
from lib.common import check, equal, main, ok, query, seconds, value, wait_until

FIRST = 160000
SLOTS = {"max_replication_slots": "20", "max_wal_senders": "20"}
# What two transactions of before and after the load have written.
BEFORE, AFTER = -1, -2
REFUSED = "the snapshot of a replication slot of a standby does not cover mixedcc tables"
COLUMNS = "(id int PRIMARY KEY, v int, t text)"


class Load(threading.Thread):
    """Small transactions at random, of two levels, some of which are rolled back."""

    def __init__(self, cluster, seed):
        super().__init__(daemon=True)
        self.draw, self.stopped, self.done, self.error = random.Random(seed), False, 0, None
        self.connection = cluster.connect()
        query(self.connection, "SET mixedcc.mixed_serializable = allow")

    def statement(self):
        i = self.draw.randrange(1, 3000)
        return self.draw.choice([
            f"UPDATE keyed SET v = v + 1 WHERE id = {i}", f"DELETE FROM quiet WHERE id = {i}",
            f"INSERT INTO quiet VALUES ({i}, 1, 'x') ON CONFLICT (id) DO UPDATE SET v = quiet.v + 1",
            f"UPDATE long SET v = v + 1 WHERE id = {1 + i % 12}", f"INSERT INTO keyed VALUES ({self.draw.randrange(10**9)}, 5, 'new')"])

    def run(self):
        while not self.stopped:
            try:
                query(self.connection, "BEGIN ISOLATION LEVEL " + self.draw.choice(["READ COMMITTED", "SERIALIZABLE"]))
                for _ in range(self.draw.randrange(1, 4)):
                    query(self.connection, self.statement())
                query(self.connection, self.draw.choice(["COMMIT"] * 9 + ["ROLLBACK"]))
                self.done += 1
                if self.draw.random() < 0.005:
                    query(self.connection, "CHECKPOINT")
            except psycopg2.Error as error:
                query(self.connection, "ROLLBACK")
                if error.pgcode not in ("40001", "40P01", "23505"):
                    self.error = error
                    return


def make():
    primary = Cluster.new(wal_level="logical", **SLOTS)
    primary.start()
    connection = primary.connect()
    query(connection, "CREATE EXTENSION mixedcc; CREATE EXTENSION amcheck")
    churn.make(connection)
    churn.change(connection, "standby decoding")
    query(connection, "SELECT pg_create_physical_replication_slot('physical'); CREATE PUBLICATION p FOR TABLE keyed, long, quiet")
    connection.close()
    standby = Cluster.copy("-R", source=primary)
    standby.start(primary_slot_name="physical", hot_standby_feedback="on")
    return primary, standby


def while_told(primary, f):
    """`f` makes a slot on a standby: it waits until the primary tells which transactions run."""
    ended = threading.Event()

    def tell():
        connection = primary.connect()
        while not ended.wait(0.2):
            query(connection, "SELECT pg_log_standby_snapshot()")
        connection.close()

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        return f()
    finally:
        ended.set()
        teller.join()


def between_marks(connection, slot):
    """What a slot says from the first mark to the second."""
    lines = decoded.texts(connection, slot, **{"include-xids": "0", "skip-empty-xacts": "1"})
    found = [next((n for n, line in enumerate(lines) if f"id[integer]:{mark} " in line), None) for mark in (BEFORE, AFTER)]
    return lines[found[0]:found[1]] if None not in found else found


def subscriber(standby, copy):
    cluster = Cluster.new(**SLOTS)
    cluster.start()
    connection = cluster.connect()
    query(connection, "".join(f"CREATE TABLE {t} {COLUMNS} USING heap;" for t in ("keyed", "long", "quiet")))
    query(connection, f"CREATE SUBSCRIPTION s CONNECTION 'host={standby.home} port={PORT} user=postgres dbname=postgres' "
          f"PUBLICATION p WITH (copy_data = {copy})")
    connection.close()
    return cluster


def first_copies_are_refused(primary, standby):
    cluster = while_told(primary, lambda: subscriber(standby, "on"))
    try:
        said = while_told(primary, lambda: wait_until(lambda: REFUSED in cluster.log(), 60))
        check("a first copy from a standby is refused", said, cluster.log()[-2000:])
        equal("it has copied nothing", cluster.ask("SELECT count(*) FROM keyed") + cluster.ask("SELECT count(*) FROM quiet"), 0)
        connection = cluster.connect()
        query(connection, "ALTER SUBSCRIPTION s DISABLE")
        query(connection, "DROP SUBSCRIPTION s")
    finally:
        cluster.remove()


def exports_are_refused(primary, standby):
    """Sessions that import the snapshot of a slot, and the sender itself."""
    sender = standby.connect(replication="database")
    make_slot = "CREATE_REPLICATION_SLOT exported TEMPORARY LOGICAL test_decoding EXPORT_SNAPSHOT"

    def exported():
        with sender.cursor() as cursor:
            cursor.execute(make_slot)
            return cursor.fetchone()[2]

    name = while_told(primary, exported)
    session = standby.connect()
    try:
        query(session, f"BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '{name}'")
        found = query(session, "SELECT count(*) FROM keyed")
    except psycopg2.Error as error:
        found = error.pgcode
    equal("a slot's snapshot is not imported on a standby", found, "0A000")
    session.close()
    query(sender, "BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")
    while_told(primary, lambda: query(sender, "CREATE_REPLICATION_SLOT used TEMPORARY LOGICAL test_decoding USE_SNAPSHOT"))
    try:
        found = query(sender, "SELECT count(*) FROM keyed")
    except psycopg2.Error as error:
        found = error.diag.message_primary
    equal("nor used by its sender", found, REFUSED)
    query(sender, "ROLLBACK")
    equal("without a slot a sender reads", query(sender, "SELECT count(*) > 0 FROM keyed"), [(True,)])
    sender.close()


def changes(primary, standby):
    """The rows were copied while nothing was written. All later changes come from the standby."""
    connection, reader = primary.connect(), standby.connect()
    query(connection, "SELECT pg_create_logical_replication_slot('there', 'test_decoding')")
    while_told(primary, lambda: query(reader, "SELECT pg_create_logical_replication_slot('here', 'test_decoding')"))
    cluster = while_told(primary, lambda: subscriber(standby, "off"))
    try:
        copy = cluster.connect()
        with copy.cursor() as cursor:
            for table in ("keyed", "long", "quiet"):
                for row in query(connection, f"SELECT * FROM {table}"):
                    cursor.execute(f"INSERT INTO {table} VALUES (%s, %s, %s)", row)
        query(connection, f"INSERT INTO keyed VALUES ({BEFORE}, 0, 'mark')")
        loads = [Load(primary, seed) for seed in range(3)]
        for load in loads:
            load.start()
        time.sleep(seconds(8))
        for load in loads:
            load.stopped = True
            load.join(60)
        check("the load has run", all(load.done and not load.error for load in loads), [(load.done, load.error) for load in loads])
        query(connection, f"INSERT INTO keyed VALUES ({AFTER}, 0, 'mark')")
        end = value(connection, "SELECT pg_current_wal_flush_lsn()")
        check("the standby replays all", standby.replays(primary))
        there, here = between_marks(connection, "there"), between_marks(reader, "here")
        check("the primary has told of the load", len(there) > 100, there[:3])
        equal("decoding on the standby says the same", here, there)
        got = "SELECT bool_and(confirmed_flush_lsn >= %s) FROM pg_replication_slots WHERE slot_name = 's'"
        check("the subscriber has all", wait_until(lambda: standby.ask(got, (end,)), 60))
        tables = ("keyed", "long", "quiet")
        wanted = churn.digests(connection, tables)
        equal("its rows are those of the primary", churn.digests(copy, tables), wanted)
        equal("and so are those of the standby", churn.digests(reader, tables), wanted)
    finally:
        cluster.remove()


def run():
    primary, standby = make()
    try:
        if int(primary.ask("SHOW server_version_num")) < FIRST:
            ok("logical decoding on standbys begins with PostgreSQL 16")
            return
        first_copies_are_refused(primary, standby)
        exports_are_refused(primary, standby)
        changes(primary, standby)
    finally:
        standby.remove()
        primary.remove()


if __name__ == "__main__":
    main(run)
