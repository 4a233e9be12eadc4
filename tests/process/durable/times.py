#!/usr/bin/python3
"""Times of commits into permanent tables: recovery to a point in time under load and after idle
hours, the delay of a standby, and the time of what it has replayed last. What the marks of time
cost in transaction ids and WAL, and that an idle server writes none."""

import threading
import time

import psycopg2

from lib.clusters import Cluster
from lib.common import check, connect, drop_database, equal, main, make_database, query, reload, value, wal_since

DATABASE = "process_times"
SAFE = "-c synchronous_commit=on"
EVERY = 1.0


def set_marks(connection, ms):
    query(connection, f"ALTER SYSTEM SET mixedcc.time_marks = {ms}")
    reload(connection)


class Writer(threading.Thread):
    """Inserts rows, and notes for each when its commit was begun and answered."""

    def __init__(self, first):
        super().__init__(daemon=True)
        self.first, self.rows, self.error = first, [], None
        self.stopping = threading.Event()
        self.start()

    def run(self):
        try:
            connection = connect(DATABASE, options=SAFE)
            number = self.first
            while not self.stopping.is_set():
                begun = time.time()
                query(connection, f"INSERT INTO plain VALUES ({number})")
                self.rows.append((number, begun, time.time()))
                number += 1
                time.sleep(0.004)
            connection.close()
        except psycopg2.Error as error:
            self.error = error

    def end(self):
        self.stopping.set()
        self.join(30)
        check("times: the writers meet no error", self.error is None, self.error)
        return self.rows


def load(seconds, first):
    writers = [Writer(first + n * 100_000) for n in range(3)]
    time.sleep(seconds)
    return [row for writer in writers for row in writer.end()]


def recover(copy, target):
    """The rows of a copy that is recovered to this time."""
    copy.start(recovery_target_time=time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(target)) + f"{target % 1:.6f}"[1:] + "+00",
               recovery_target_action="promote")
    copy.recovered()
    connection = copy.connect()
    rows = {n for n, in query(connection, "SELECT id FROM plain")}
    query(connection, "SELECT bt_index_check('plain_id', true)")
    connection.close()
    return rows


def judge(name, copy, rows, target, within):
    try:
        found = recover(copy, target)
    finally:
        copy.remove()
    lost = sorted(n for n, _, answered in rows if answered < target and n not in found)
    late = sorted((begun - target, n) for n, begun, _ in rows if begun > target + within and n in found)
    check(f"times: {name}: all commits of before are there", not lost, f"{len(lost)}: {lost[:5]}")
    check(f"times: {name}: no commit of after is there", not late, f"{len(late)}: {late[-5:]}")
    known = {n for n, _, _ in rows}
    check(f"times: {name}: it has rows of before, and not all", 0 < len(found & known) < len(known), len(found & known))


def test_points_in_time():
    """A time in an idle hour is exact; one under load is exact to the setting."""
    connection = connect(DATABASE, options=SAFE)
    copies = [Cluster.copy("-R", database=DATABASE) for _ in range(3)]
    rows = load(1.5, 1)
    idle_from = time.time()
    time.sleep(3 * EVERY)
    idle_to = time.time()
    # The accident: one commit after the idle time, and others at once after it.
    rows += load(2.5, 1_000_000)
    under_load = idle_to + 1.2
    time.sleep(1.2 * EVERY)
    set_marks(connection, 0)
    exact_rows = load(0.6, 2_000_000)
    exact = sum(row[1] for row in exact_rows) / len(exact_rows)
    set_marks(connection, int(EVERY * 1000))
    query(connection, "SELECT pg_current_xact_id()")
    query(connection, "SELECT pg_switch_wal()")
    connection.close()
    rows += exact_rows
    judge("in an idle time", copies[0], rows, (idle_from + idle_to) / 2, 0)
    judge("under load", copies[1], rows, under_load, EVERY)
    judge("each commit with its time", copies[2], rows, exact, 0)


def kinds(connection, since):
    """How many records of commits, of ours and of PostgreSQL, since then."""
    query(connection, "SELECT pg_switch_wal()")
    return dict(query(connection, """SELECT resource_manager || ' ' || record_type, count(*)
        FROM {}
        WHERE resource_manager IN ('mixedcc', 'Transaction') AND record_type LIKE '%%COMMIT' GROUP BY 1""".format(wal_since(connection)), (since,)))


def test_cost():
    """Two transaction ids for each interval under load, and nothing on an idle server."""
    connection = connect(DATABASE, options=SAFE)
    query(connection, "ALTER SYSTEM SET autovacuum = off")  # whose commits are not those of a time
    reload(connection)
    since = value(connection, "SELECT pg_current_wal_insert_lsn()")
    began = time.time()
    rows = load(3.0, 10_000_000)
    intervals = (time.time() - began) / EVERY
    got = kinds(connection, since)
    marks = got.get("mixedcc XCOMMIT", 0)
    equal("times: each commit logs one record", marks + got.get("mixedcc COMMIT", 0), len(rows))
    check("times: some of them have the time", intervals - 1 <= marks <= 2 * intervals + 6, f"{marks} in {intervals}: {got}")
    query(connection, "CHECKPOINT")
    since = value(connection, "SELECT pg_current_wal_insert_lsn()")
    time.sleep(3 * EVERY)
    equal("times: an idle server logs no times", kinds(connection, since), {})
    set_marks(connection, -1)
    since = value(connection, "SELECT pg_current_wal_insert_lsn()")
    rows = load(1.5, 20_000_000)
    equal("times: with -1 no commit has a time", kinds(connection, since), {"mixedcc COMMIT": len(rows)})
    query(connection, "ALTER SYSTEM RESET autovacuum")
    set_marks(connection, int(EVERY * 1000))
    connection.close()


def test_mixed():
    """Commits that log nothing of ours are times, too: they do not ask others for more."""
    connection = connect(DATABASE, options=SAFE)
    query(connection, "CREATE TABLE heap (id int)")
    query(connection, "CREATE UNLOGGED TABLE fleeting (id int) USING mixedcc")
    since, began, rounds = value(connection, "SELECT pg_current_wal_insert_lsn()"), time.time(), 100
    for number in range(rounds):
        query(connection, f"BEGIN; INSERT INTO heap VALUES ({number}); INSERT INTO fleeting VALUES ({number}); COMMIT")
        query(connection, "UPDATE plain SET v = v WHERE id = 1")
    intervals = (time.time() - began) / EVERY
    marks = kinds(connection, since).get("mixedcc XCOMMIT", 0)
    check("times: commits of heap tables count", marks <= 2 * intervals + 3, f"{marks} in {rounds} and {intervals}")
    query(connection, "DROP TABLE heap, fleeting")
    connection.close()


def test_standby():
    """A standby with a delay waits for commits, and says what it has replayed last."""
    boss = connect(DATABASE, options=SAFE)
    standby, delayed = Cluster.copy("-R", database=DATABASE), Cluster.copy("-R", database=DATABASE)
    try:
        standby.start(hot_standby="on")
        delayed.start(hot_standby="on", recovery_min_apply_delay="4s")
        load(1.5, 30_000_000)
        age = standby.ask("SELECT extract(epoch FROM now() - pg_last_xact_replay_timestamp())")
        check("times: a standby says when its last commit was", 0 <= age < EVERY + 0.5, age)
        time.sleep(1.2 * EVERY)
        query(boss, "INSERT INTO plain VALUES (-1)")
        lsn, begun = value(boss, "SELECT pg_current_wal_insert_lsn()"), time.time()
        replayed = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        while not standby.ask(replayed, (lsn,)) and time.time() < begun + 10:
            time.sleep(0.05)
        check("times: a standby has a commit at once", standby.ask(replayed, (lsn,)) and time.time() < begun + 2)
        time.sleep(max(0, begun + 3.0 - time.time()))
        check("times: a delayed one has it not", not delayed.ask(replayed, (lsn,)))
        while not delayed.ask(replayed, (lsn,)) and time.time() < begun + 20:
            time.sleep(0.05)
        took = time.time() - begun
        check("times: it has it after the delay", 3.5 < took < 15, took)
    finally:
        standby.remove()
        delayed.remove()
    boss.close()


def test_all():
    connection = make_database(DATABASE)
    query(connection, "CREATE EXTENSION pg_walinspect; CREATE EXTENSION amcheck")
    query(connection, "ALTER SYSTEM SET wal_keep_size = '2GB'")
    set_marks(connection, int(EVERY * 1000))
    query(connection, "CREATE TABLE plain (id int, v text DEFAULT 'x') USING mixedcc")
    query(connection, "CREATE INDEX plain_id ON plain (id)")
    for test in (test_points_in_time, test_cost, test_mixed, test_standby):
        test()
    query(connection, "ALTER SYSTEM RESET wal_keep_size")
    query(connection, "ALTER SYSTEM RESET mixedcc.time_marks")
    reload(connection)
    connection.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_all)
