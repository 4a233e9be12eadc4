#!/usr/bin/python3
"""Early release of locks: a commit that waits for its standby lets others write its rows. These
wait at COMMIT, and what they read after the lock shows all that the commit has written. The
standby does not exist: a commit with `synchronous_commit = on` waits until it is canceled, or the
setting is gone."""

import itertools
import threading

import psycopg2

from lib import protocols
from lib.common import (check, connect, create_table, drop_database, equal, fail, main, make_database, must_come, query,
                        reload, set_protocol)

DATABASE = "process_early_release"
PATIENT = {name: settings for name, settings in protocols.variants().items() if name in map(protocols.patient, protocols.ALL)}
LEVELS = ("READ COMMITTED", "SERIALIZABLE")
BOSS = None
# What a commit waits for that others must end before: its name, where the version has names.
DEPENDENCY = None


class Session:
    """A session, whose last command may run in the background."""

    all = []

    def __init__(self, durability, release=True):
        Session.all.append(self)
        options = f"-c synchronous_commit={durability} -c mixedcc.early_release={'on' if release else 'off'}"
        self.connection = connect(DATABASE, options=f"{options} -c lock_timeout=10s -c mixedcc.freeze_readers=off")
        self.thread, self.result = None, None

    def __call__(self, sql):
        return query(self.connection, sql)

    def code(self, sql):
        """The SQLSTATE with which a statement fails."""
        try:
            return self(sql)
        except psycopg2.Error as error:
            return error.pgcode

    def start(self, sql, waits):
        """Runs a statement that waits for this event."""
        self.thread = threading.Thread(target=self.run, args=(sql,))
        self.thread.start()
        must_come(lambda: self.is_at(waits) or self.result is not None)

    def run(self, sql):
        try:
            self.result = self(sql) or []
        except psycopg2.Error as error:
            self.result = error.pgcode

    def is_at(self, event):
        pid = self.connection.info.backend_pid
        return query(BOSS, "SELECT coalesce(wait_event, '') ~ %s FROM pg_stat_activity WHERE pid = %s", (f"^({event})$", pid)) == [(True,)]

    def waits(self):
        self.thread.join(0.1)
        return self.thread.is_alive()

    def let_go(self):
        """Its COMMIT waits for its standby no longer."""
        self.connection.cancel()

    def end(self):
        self.thread.join(30)
        return self.result

    @staticmethod
    def close_all():
        while Session.all:
            Session.all.pop().connection.close()


def standby(name):
    query(BOSS, f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    reload(BOSS)


def hang(release=True):
    """A session that has changed rows 1 and 2 and locked row 3, and whose COMMIT waits."""
    one = Session("on", release)
    one("BEGIN")
    one("SELECT FROM rows WHERE id = 3 FOR UPDATE")
    one("UPDATE rows SET n = n + 1 WHERE id IN (1, 2)")
    one.start("COMMIT", "SyncRep")
    return one


def table(name):
    """A new table, whatever a test before has left."""
    Session.close_all()
    query(BOSS, "DROP TABLE IF EXISTS rows")
    create_table(BOSS, "rows", "id int PRIMARY KEY, n int", partitions=1, **PATIENT[name])
    query(BOSS, "INSERT INTO rows SELECT i, 0 FROM generate_series(1, 5) i")


def rows(session, which="1, 2"):
    return [n for n, in session(f"SELECT n FROM rows WHERE id IN ({which}) ORDER BY id")]


def others_write_the_row(name, level):
    """A chain of three writers, each of which waits for the one before at COMMIT only."""
    what = f"{name}, {level}"
    table(name)
    reader, first = Session("local"), hang()
    chain = [Session("local") for _ in range(2)]
    for number, one in enumerate(chain):
        one(f"BEGIN ISOLATION LEVEL {level}")
        equal(f"{what}: writer {number} builds on a commit that is not safe",
              one.code("UPDATE rows SET n = n + 1 WHERE id = 1 RETURNING n"), [(number + 2,)])
        one.start("COMMIT", DEPENDENCY)
    check(f"{what}: they wait at COMMIT", all(one.waits() for one in chain))
    equal(f"{what}: snapshots leave all of them out", rows(reader), [0, 0])
    first.let_go()
    equal(f"{what}: all commit", [one.end() for one in (first, *chain)], [[], [], []])
    equal(f"{what}: then they are seen", rows(reader), [3, 1])


def a_lock_shows_all_of_its_last_holder(name):
    """READ COMMITTED, after a row lock: the next statement waits, and shows what the holder before
    has written elsewhere. Locks of rows that it has not written stay."""
    table(name)
    first, one, locker = hang(), Session("local"), Session("local")
    one("BEGIN")
    equal(f"{name}: a row that was only locked stays locked", one.code("SELECT FROM rows WHERE id = 3 FOR UPDATE NOWAIT"), "55P03")
    one("ROLLBACK")
    locker("BEGIN")
    locker("SELECT n FROM rows WHERE id = 2 FOR UPDATE")
    locker.start("COMMIT", DEPENDENCY)
    check(f"{name}: a transaction that has only locked waits at COMMIT", locker.waits())
    locker.connection.cancel()
    equal(f"{name}: a cancel ends that wait", locker.end(), "57014")
    one("BEGIN")
    equal(f"{name}: one that was written can be locked", one("SELECT n FROM rows WHERE id = 1 FOR UPDATE"), [(1,)])
    one.start("SELECT n FROM rows WHERE id = 2", DEPENDENCY)
    check(f"{name}: the next statement waits", one.waits())
    first.let_go()
    equal(f"{name}: it shows all of the commit", one.end(), [(1,)])
    one("COMMIT")
    first.end()


def repeatable_read(name):
    """A transaction whose snapshot leaves the commit out cannot write the row, as if it had
    waited."""
    table(name)
    first, one = hang(), Session("local")
    one("BEGIN ISOLATION LEVEL REPEATABLE READ")
    equal(f"{name}: REPEATABLE READ does not write what it does not see",
          one.code("UPDATE rows SET n = n + 1 WHERE id = 1"), "40001")
    first.let_go()
    first.end()


def without_it(name):
    """The default: a writer waits for the row."""
    table(name)
    first, one = hang(release=False), Session("local")
    one("SET lock_timeout = '200ms'")
    equal(f"{name}: off: a writer waits for the row", one.code("UPDATE rows SET n = n + 1 WHERE id = 1"), "55P03")
    first.let_go()
    first.end()


def waiters_are_woken(name):
    """A writer that sleeps for the row goes on when the commit waits for its standby."""
    table(name)
    first, one = Session("on"), Session("local")
    first("BEGIN")
    first("UPDATE rows SET n = n + 1 WHERE id = 1")
    one.start("UPDATE rows SET n = n + 1 WHERE id = 1", "userlock")
    first.start("COMMIT", "SyncRep")
    must_come(lambda: one.is_at(DEPENDENCY))
    check(f"{name}: a waiter is woken up, and waits for the commit itself", one.waits() and first.waits())
    first.let_go()
    equal(f"{name}: both commit", [first.end(), one.end(), rows(first, "1")], [[], [], [2]])


def test_early_release():
    for name, level in itertools.product(PATIENT, LEVELS):
        others_write_the_row(name, level)
    for name in PATIENT:
        for test in (a_lock_shows_all_of_its_last_holder, repeatable_read, without_it, waiters_are_woken):
            test(name)


def test_switch_in_the_middle():
    """The protocol changes while commits wait."""
    for name, to in itertools.permutations(protocols.ALL, 2):
        table(protocols.patient(name))
        first, one = hang(), Session("local")
        set_protocol(BOSS, "rows", to, wait=False)
        one("BEGIN ISOLATION LEVEL SERIALIZABLE")
        equal(f"{name} to {to}: a writer builds on the commit", one.code("UPDATE rows SET n = n + 1 WHERE id = 1 RETURNING n"), [(2,)])
        one.start("COMMIT", DEPENDENCY)
        check(f"{name} to {to}: it waits at COMMIT", one.waits())
        first.let_go()
        equal(f"{name} to {to}: both commit", [first.end(), one.end(), rows(one)], [[], [], [2, 1]])


def test_standby_is_given_up():
    """The setting goes, and all commits that wait are done."""
    table("occ")
    first, one = hang(), Session("on")
    one.start("UPDATE rows SET n = n + 1 WHERE id = 1", "SyncRep")
    standby("")
    equal("without a standby both commit", [first.end(), one.end(), rows(one)], [[], [], [2, 1]])


def end():
    Session.close_all()
    query(BOSS, "ALTER SYSTEM RESET synchronous_standby_names")
    query(BOSS, "ALTER SYSTEM RESET mixedcc.time_marks")
    reload(BOSS)
    BOSS.close()
    drop_database(DATABASE)


try:
    BOSS = make_database(DATABASE)
    DEPENDENCY = "Extension" if BOSS.server_version < 170000 else "MixedccCommit(Dependency|End)"
    query(BOSS, "SET synchronous_commit = local")
    # Else a commit may take a transaction id, and keeps its locks.
    query(BOSS, "ALTER SYSTEM SET mixedcc.time_marks = -1")
    standby("none")
    main(test_early_release, test_switch_in_the_middle, test_standby_is_given_up, end)
except psycopg2.Error as problem:
    fail("set-up", problem)
    raise SystemExit(1)
