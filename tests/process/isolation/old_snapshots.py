#!/usr/bin/python3
"""mixedcc.old_snapshot_timeout: snapshots that keep old versions for too long are taken from
clients, and no others: not without writers, not of a commit that waits for a standby, not of
READ COMMITTED sessions between their statements."""

import os
import pathlib
import threading
import time

import psycopg2

from lib.common import check, connect, drop_database, equal, main, make_database, must_come, query, reload, value, wait_until

DATABASE = "process_old_snapshots"
TIMEOUT = 400  # ms
SNAPSHOT = "BEGIN ISOLATION LEVEL {}; SELECT sum(v) FROM t"


def log():
    return pathlib.Path(os.environ["PGDATA"]).parent.joinpath("server.log").read_text()


def set_timeout(ms):
    query(BOSS, f"ALTER SYSTEM SET mixedcc.old_snapshot_timeout = {ms}")
    reload(BOSS)


class Writer(threading.Thread):
    """Commits updates for as long as the block lasts."""

    def __init__(self):
        super().__init__(daemon=True)
        self.going = True

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.going = False
        self.join()

    def run(self):
        connection = connect(DATABASE)
        while self.going:
            query(connection, "UPDATE t SET v = v + 1 WHERE id = 1")
            time.sleep(0.002)
        connection.close()


def outcome(connection, sql):
    try:
        query(connection, sql)
        return None
    except psycopg2.Error as error:
        return error.pgcode or "gone"


def test_idle():
    """A session that is idle in its transaction is terminated, and memory comes back."""
    for level in ("REPEATABLE READ", "SERIALIZABLE READ ONLY"):
        connection = connect(DATABASE)
        query(connection, SNAPSHOT.format(level))
        pid = connection.info.backend_pid
        with Writer():
            gone = wait_until(lambda: value(BOSS, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", (pid,)) == 0, 60)
            check(f"old: a session that is idle at {level} is terminated", gone)
            must_come(lambda: value(BOSS, "SELECT count(*) FROM mixedcc.horizon WHERE commits > 1000") == 0)
        check(f"old: it learns so, {level}", outcome(connection, "SELECT 1") in ("57P01", "gone"))
        check(f"old: the log says why, {level}", wait_until(lambda: f"mixedcc terminated the session of process {pid}, whose snapshot is too old" in log(), 30))


def test_statement():
    """A statement is canceled, and its session goes on."""
    connection = connect(DATABASE)
    query(connection, SNAPSHOT.format("REPEATABLE READ"))
    with Writer():
        equal("old: a statement is canceled", outcome(connection, "SELECT pg_sleep(100)"), "57014")
    query(connection, "ROLLBACK")
    equal("old: its session goes on", outcome(connection, "SELECT 1"), None)
    connection.close()


def test_left_alone():
    """A client that keeps no versions is left alone, however old its snapshot is."""
    idle, committed = connect(DATABASE), connect(DATABASE)
    query(idle, SNAPSHOT.format("REPEATABLE READ"))
    query(committed, SNAPSHOT.format("READ COMMITTED"))
    marks = log().count("whose snapshot is too old")
    # The coordinator must have looked: some of its passes, of 100 ms each at most.
    passes = "SELECT passes FROM mixedcc.coordinator"
    first = value(BOSS, passes)
    must_come(lambda: value(BOSS, passes) > first + 3 * TIMEOUT / 100)
    equal("old: an old snapshot beside nobody who writes", outcome(idle, "SELECT sum(v) FROM t"), None)
    with Writer():
        first = value(BOSS, passes)
        must_come(lambda: value(BOSS, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", (idle.info.backend_pid,)) == 0, 60)
        must_come(lambda: value(BOSS, passes) > first + 3 * TIMEOUT / 100)
        equal("old: READ COMMITTED between its statements", outcome(committed, "SELECT 1; COMMIT"), None)
    equal("old: nobody else was told", log().count("whose snapshot is too old") - marks, 1)
    committed.close()


def test_standby():
    """A commit that waits for a standby is let wait: its client would take it for safe."""
    connection = connect(DATABASE, options="-c synchronous_commit=on")
    query(connection, "CREATE TABLE heap (id int)")
    query(BOSS, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    reload(BOSS)
    query(connection, SNAPSHOT.format("REPEATABLE READ") + "; INSERT INTO heap VALUES (1)")
    pid, passes, said = connection.info.backend_pid, "SELECT passes FROM mixedcc.coordinator", []
    thread = threading.Thread(target=lambda: said.append((outcome(connection, "COMMIT"), list(connection.notices))))
    thread.start()
    waits = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
    must_come(lambda: value(BOSS, waits, (pid,)) == 1)
    with Writer():
        first = value(BOSS, passes)
        must_come(lambda: value(BOSS, passes) > first + 3 * TIMEOUT / 100)
        equal("old: a commit waits for its standby", value(BOSS, waits, (pid,)), 1)
    query(BOSS, "ALTER SYSTEM RESET synchronous_standby_names")
    reload(BOSS)
    thread.join()
    equal("old: it ends without a warning", said, [(None, [])])
    connection.close()


def test_off():
    """By default snapshots live as long as they like."""
    query(BOSS, "ALTER SYSTEM RESET mixedcc.old_snapshot_timeout")
    reload(BOSS)
    connection = connect(DATABASE)
    query(connection, SNAPSHOT.format("REPEATABLE READ"))
    with Writer():
        time.sleep(3 * TIMEOUT / 1000)
        equal("old: off by default", outcome(connection, "SELECT sum(v) FROM t"), None)
    connection.close()
    set_timeout(TIMEOUT)


def finish():
    query(BOSS, "ALTER SYSTEM RESET mixedcc.old_snapshot_timeout")
    query(BOSS, "ALTER SYSTEM RESET autovacuum")
    reload(BOSS)
    BOSS.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    BOSS = make_database(DATABASE)
    query(BOSS, "CREATE UNLOGGED TABLE t (id int PRIMARY KEY, v int) USING mixedcc")
    query(BOSS, "INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i")
    query(BOSS, "ALTER SYSTEM SET autovacuum = off")  # which moves the clock
    set_timeout(TIMEOUT)
    main(test_idle, test_statement, test_left_alone, test_standby, test_off, finish)
