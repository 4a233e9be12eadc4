#!/usr/bin/python3
"""Row locks under each protocol and waiting policy, and while a switch between two protocols is
under way: which modes conflict (PostgreSQL's table), which waiters go on, SKIP LOCKED, and
deadlocks over partitions of two protocols."""

import itertools
import threading

import psycopg2

from lib import protocols
from lib.common import OURS, check, connect, create_table, drop_database, equal, main, make_database, query, set_protocol, value, wait_until

DATABASE = "process_row_locks"
MODES = ("KEY SHARE", "SHARE", "NO KEY UPDATE", "UPDATE")
# PostgreSQL's documentation, "Conflicting Row-Level Locks": the modes that each one conflicts with.
CONFLICTS = {"KEY SHARE": MODES[3:], "SHARE": MODES[2:], "NO KEY UPDATE": MODES[1:], "UPDATE": MODES}
# What a transaction may hold: the statement, and the mode that it is as strong as.
HELD = {f"FOR {mode}": ("SELECT v FROM {t} WHERE id = 1 FOR " + mode, mode) for mode in MODES}
HELD["an update"] = ("UPDATE {t} SET v = v + 1 WHERE id = 1", "NO KEY UPDATE")
HELD["an update of the key"] = ("UPDATE {t} SET id = 100 WHERE id = 1", "UPDATE")
HELD["a delete"] = ("DELETE FROM {t} WHERE id = 1", "UPDATE")
SINGLE = {name.replace("-", "_"): settings for name, settings in protocols.variants().items()}
MIXED = list(itertools.combinations(protocols.ALL, 2))
WEAK = ("READ COMMITTED", "REPEATABLE READ")
# A writer or locker below SERIALIZABLE locks the whole partition too, so that more is refused than
# PostgreSQL's table says, and SKIP LOCKED skips all of its rows.
PARTITION_LOCKS = protocols.having("locks_partitions")
BLOCKED = "SELECT pg_blocking_pids(%s) = ARRAY[%s]"
FAILURES = ("40001", "40P01", "55P03")


def attempt(connection, sql):
    """What came of a statement: its rows, or the SQLSTATE; "waited" where it slept too long."""
    try:
        return query(connection, sql)
    except psycopg2.Error as error:
        return "waited" if "lock timeout" in str(error) else error.pgcode


class Pair:
    """Two sessions in transactions of a level."""

    def __init__(self, level, settings="-c lock_timeout=20s -c deadlock_timeout=50ms"):
        self.one, self.two = connect(DATABASE, options=settings), connect(DATABASE, options=settings)
        self.level = level

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.one.close()
        self.two.close()

    def begin(self):
        for session in (self.one, self.two):
            query(session, f"BEGIN ISOLATION LEVEL {self.level}")

    def end(self):
        for session in (self.one, self.two):
            query(session, "ROLLBACK")


def is_exact(name):
    """Does a conflict of two row locks depend on PostgreSQL's table alone?"""
    return not any(protocol in name for protocol in PARTITION_LOCKS)


def is_lazy(name):
    """Does a protocol, or do both of a switch, lock what it writes at COMMIT only?"""
    return all(p in protocols.ALL and protocols.only_validates(p) for p in name.split(" to "))


def modes_that_conflict(table, level, name):
    """NOWAIT: what is refused though it does not conflict, or granted though it does."""
    wrong = []
    exact = level in WEAK and is_exact(name)
    with Pair(level, "-c lock_timeout=500ms") as pair:
        for held, mode in itertools.product(HELD, MODES):
            if (level, held) == ("SERIALIZABLE", "an update") and is_lazy(name):
                continue  # no row is locked before COMMIT, which validates
            pair.begin()
            sql, strength = HELD[held]
            query(pair.one, sql.format(t=table))
            got = attempt(pair.two, f"SELECT v FROM {table} WHERE id = 1 FOR {mode} NOWAIT")
            conflicts = mode in CONFLICTS[strength]
            refused = got in FAILURES
            # SERIALIZABLE may refuse more, by its protocol, but grants nothing that conflicts.
            good = refused == conflicts if exact else refused or not conflicts
            if not good or not refused and got != [(0,)] or is_exact(name) and refused and got != "55P03":
                wrong.append((held, mode, got))
            pair.end()
    return wrong


def who_waits(table):
    """Each mode that conflicts waits for the holder, and goes on after COMMIT and after
    ROLLBACK."""
    wrong = []
    with Pair("READ COMMITTED") as pair:
        pids = pair.two.info.backend_pid, pair.one.info.backend_pid
        for held, ending in itertools.product([f"FOR {mode}" for mode in MODES] + ["an update"], ("COMMIT", "ROLLBACK")):
            sql, strength = HELD[held]
            for mode in CONFLICTS[strength]:
                pair.begin()
                query(pair.one, sql.format(t=table))
                got = []
                thread = threading.Thread(target=lambda: got.append(attempt(pair.two, f"SELECT v FROM {table} WHERE id = 1 FOR {mode}")))  # noqa: B023
                thread.start()
                waits = wait_until(lambda: value(BOSS, BLOCKED, pids), 10)
                early = list(got)
                query(pair.one, ending)
                thread.join(20)
                wanted = [[(int(held == "an update" and ending == "COMMIT"),)]]
                if not waits or early or got != wanted:
                    wrong.append((held, mode, ending, waits, early, got))
                query(pair.two, f"UPDATE {table} SET v = 0 WHERE id = 1; COMMIT" if mode != "KEY SHARE" else "ROLLBACK")
                query(BOSS, f"UPDATE {table} SET v = 0 WHERE id = 1")
    return wrong


def who_is_skipped(table, name):
    wrong = []
    exact = is_exact(name)
    with Pair("READ COMMITTED") as pair:
        for held, mode in itertools.product(HELD, MODES):
            pair.begin()
            sql, strength = HELD[held]
            query(pair.one, sql.format(t=table))
            got = attempt(pair.two, f"SELECT id FROM {table} ORDER BY id FOR {mode} SKIP LOCKED")
            if got != ([] if not exact else [(2,)] if mode in CONFLICTS[strength] else [(1,), (2,)]):
                wrong.append((held, mode, got))
            pair.end()
    return wrong


def skipped_by_key(table, name):
    """SERIALIZABLE transactions skip a row that they look up by its key, and get a free one, in
    each way to run the statement."""
    wrong = []
    ways = ("mixedcc.enable_bypass = on", "mixedcc.enable_bypass = off", "mixedcc.enable_bypass = off; SET mixedcc.enable_primary_scan = off; SET enable_seqscan = off")
    with Pair("SERIALIZABLE", "-c lock_timeout=500ms") as pair:
        for way, held, mode in itertools.product(ways, HELD, MODES[2:]):
            if held == "an update" and is_lazy(name):
                continue  # no row is locked before COMMIT, which validates
            query(pair.two, f"SET {way}")
            pair.begin()
            sql, strength = HELD[held]
            query(pair.one, sql.format(t=table))
            got = [attempt(pair.two, f"SELECT id FROM {table} WHERE id = {row} FOR {mode} SKIP LOCKED") for row in (1, 2, 3)]
            # By its protocol it may skip more: FOR KEY SHARE has read the row, too.
            skipped = [[]] if mode in CONFLICTS[strength] else [[], [(1,)]]
            if got[0] not in skipped or got[1:] != [[(2,)], []]:
                wrong.append((way, held, mode, got))
            pair.end()
    return wrong


def look_at(table, name):
    for level in (*WEAK, "SERIALIZABLE"):
        equal(f"row locks: which modes conflict, {level}, {name}", modes_that_conflict(table, level, name), [])
    equal(f"row locks: who waits and goes on, {name}", who_waits(table), [])
    equal(f"row locks: SKIP LOCKED, {name}", who_is_skipped(table, name), [])
    if OURS and is_exact(name):
        equal(f"row locks: SKIP LOCKED by key, {name}", skipped_by_key(table, name), [])


def make(table, **settings):
    create_table(BOSS, table, "id int PRIMARY KEY, v int", partitions=1, **settings)
    query(BOSS, f"INSERT INTO {table} VALUES (1, 0), (2, 0)")


def test_each_protocol():
    for name, settings in SINGLE.items():
        table = f"t_{name}"
        make(table, **settings)
        look_at(table, name)


def test_failed_cursor():
    """A cursor with NOWAIT fails in a savepoint that is younger. Behind that it cannot be used,
    closed or not. Later statements wait again."""
    make("waits", protocol="2pl", waiting_policy="wait")
    with Pair("SERIALIZABLE", "-c lock_timeout=100ms") as pair:
        for way, close in itertools.product(("on", "off"), ("", "; CLOSE c")):
            query(pair.two, f"SET mixedcc.enable_bypass = {way}")
            pair.begin()
            query(pair.one, "UPDATE waits SET v = 1 WHERE id = 1")
            got = []
            for _ in range(10):
                query(pair.two, "SAVEPOINT s; DECLARE c CURSOR FOR SELECT v FROM waits WHERE id = 1 FOR UPDATE NOWAIT")
                query(pair.two, "SAVEPOINT f")
                got.append(attempt(pair.two, "FETCH c"))
                query(pair.two, "ROLLBACK TO f")
                got.append(attempt(pair.two, "FETCH c"))
                query(pair.two, f"ROLLBACK TO f{close}")
                got.append(attempt(pair.two, "SELECT v FROM waits WHERE id = 1"))
                query(pair.two, "ROLLBACK TO s")
            equal(f"row locks: statements behind a failed cursor with NOWAIT wait, bypass {way}{close}", got, ["55P03", "55000", "waited"] * 10)
            # One that was open before the savepoint goes on behind an error of another statement.
            query(pair.two, "DECLARE c CURSOR FOR SELECT v FROM waits WHERE id = 2 FOR UPDATE; SAVEPOINT f")
            failed = attempt(pair.two, "SELECT v FROM waits WHERE id = 1 FOR UPDATE NOWAIT")
            query(pair.two, "ROLLBACK TO f")
            equal(f"row locks: another cursor goes on behind it, bypass {way}{close}", (failed, attempt(pair.two, "FETCH c")), ("55P03", [(0,)]))
            pair.end()


def test_switches():
    """As long as a transaction of before is there, both protocols are followed, or the new one if
    both rely on the same."""
    for old, new in MIXED:
        followed, _ = protocols.first_step(old, new)
        query(BOSS, "DROP TABLE IF EXISTS mixed, other")
        make("mixed", protocol=old)
        make("other", protocol=old)
        keep = connect(DATABASE)
        query(keep, "BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE other SET v = 1 WHERE id = 1")
        set_protocol(BOSS, "mixed", new, wait=False)
        under_way = "SELECT protocol FROM mixedcc.partitions WHERE \"table\" = 'mixed'::regclass"
        check(f"row locks: a switch is under way, {old} to {new}", wait_until(lambda: value(BOSS, under_way) == followed, 10), value(BOSS, under_way))  # noqa: B023
        look_at("mixed", f"{old} to {new}")
        equal(f"row locks: it still is, {old} to {new}", value(BOSS, under_way), followed)
        query(keep, "ROLLBACK")
        keep.close()


def test_deadlocks():
    """Two transactions take a lock each, in tables of two protocols; one waits for the other's, and
    then the other for its: one of them fails."""
    for level in (*WEAK, "SERIALIZABLE"):
        wrong = []
        for first, second in itertools.product(SINGLE, SINGLE):
            if first == second and first in PARTITION_LOCKS:
                continue  # one lock
            with Pair(level) as pair:
                pair.begin()
                asked = [f"SELECT v FROM t_{first} WHERE id = 1 FOR UPDATE", f"SELECT v FROM t_{second} WHERE id = 2 FOR UPDATE"]
                for session, sql in zip((pair.one, pair.two), asked):
                    query(session, sql)
                got = {}

                def run(name, session, sql):
                    got[name] = attempt(session, sql)
                    attempt(session, "ROLLBACK")

                threads = [threading.Thread(target=run, args=(0, pair.one, asked[1])), threading.Thread(target=run, args=(1, pair.two, asked[0]))]
                threads[0].start()
                waits = wait_until(lambda: got or value(BOSS, BLOCKED, (pair.one.info.backend_pid, pair.two.info.backend_pid)), 10)  # noqa: B023
                threads[1].start()
                for thread in threads:
                    thread.join(30)
                failed = [code for code in got.values() if not isinstance(code, list)]
                wanted = ("40P01",) if level in WEAK else ("40P01", "40001")
                if not waits or len(got) != 2 or not 1 <= len(failed) <= (1 if level in WEAK else 2) or not set(failed) <= set(wanted):
                    wrong.append((first, second, got))
        equal(f"row locks: deadlocks over two protocols, {level}", wrong, [])


BOSS = make_database(DATABASE)
try:
    if not OURS:
        SINGLE = {"occ": {}}
    main(test_each_protocol, *([test_failed_cursor, test_switches] if OURS else []), test_deadlocks)
finally:
    BOSS.close()
    drop_database(DATABASE)
