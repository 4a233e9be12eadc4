#!/usr/bin/python3
"""Stop events: a transaction fails, is cancelled, is terminated or panics at each
named point of its life. It appears whole or not at all, and nothing stays locked."""

import contextlib
import threading

import psycopg2

from lib.common import OURS, connect, create_table, drop_database, equal, main, make_database, must_come, ok, query, value, wait_until

DATABASE = "process_stops"
COMMIT_EVENTS = ("commit_lock", "commit_register", "commit_link", "commit_prepare", "commit_validate", "commit_decided")
EVENTS = COMMIT_EVENTS + ("lock_wait", "read", "write")
LEVELS = ("READ COMMITTED", "SERIALIZABLE")
# Reads of a snapshot come to no event.
CASES = [(event, level) for event in EVENTS for level in LEVELS if (event, level) != ("read", "READ COMMITTED")]
TABLES = {"occ": {"protocol": "occ"}, "partcc": {"protocol": "partcc"}, "twopl": {"protocol": "2pl"}}
KEY = 815
BEFORE = [(1, 0), (2, 0), (3, 0)]
AFTER = [(1, 1), (3, 1), (4, 1)]


def stop(connection, event, action):
    query(connection, "SELECT mixedcc.set_stop_event(%s, %s)", (event, action))


def work(table):
    return (f"SELECT * FROM {table} WHERE id = 1; UPDATE {table} SET v = v + 1 WHERE id IN (1, 3); "
            f"DELETE FROM {table} WHERE id = 2; INSERT INTO {table} VALUES (4, 1)")


def reset(table):
    query(BOSS, f"TRUNCATE {table}")
    query(BOSS, f"INSERT INTO {table} VALUES (1, 0), (2, 0), (3, 0)")


def session(event, action):
    connection = connect(DATABASE, options="-c mixedcc.stop_events=on -c client_min_messages=error -c lock_timeout=15s")
    stop(connection, event, action)
    return connection


@contextlib.contextmanager
def blocker(event, table):
    """For `lock_wait`: another transaction has a row that `work` writes, to the end of the
    block."""
    if event != "lock_wait":
        yield
        return
    other = connect(DATABASE)
    query(other, f"BEGIN; SELECT * FROM {table} WHERE id = 3 FOR UPDATE")
    try:
        yield
    finally:
        query(other, "ROLLBACK")
        other.close()


def run(connection, table, level):
    """The error's code, or None: it committed; or "lost" with the connection."""
    try:
        query(connection, "BEGIN ISOLATION LEVEL " + level)
        query(connection, work(table))
        query(connection, "COMMIT")
        return None
    except psycopg2.Error as error:
        if connection.closed:
            return "lost"
        query(connection, "ROLLBACK")
        return error.pgcode or "lost"


def check_outcome(name, table, outcome):
    """Whole or not at all, as the client was told; and free."""
    other = connect(DATABASE, options="-c lock_timeout=5s -c statement_timeout=10s")
    rows = sorted(query(other, f"SELECT id, v FROM {table} FOR UPDATE NOWAIT"))
    wanted = [AFTER] if outcome is None else [BEFORE] if outcome != "lost" else [BEFORE, AFTER]
    good = rows in wanted and sorted(query(other, f"SELECT id, v FROM {table} WHERE id > 0")) == rows
    query(other, f"UPDATE {table} SET v = v; INSERT INTO {table} VALUES (9, 9); DELETE FROM {table}")
    other.close()
    return good or f"{name}: outcome {outcome}, rows {rows}"


def test_errors():
    """An error at each event; the session goes on and can do the same again."""
    for table in TABLES:
        problems = []
        for event, level in CASES:
            reset(table)
            connection = session(event, "error")
            with blocker(event, table):
                outcome = run(connection, table, level)
            problems.append(check_outcome(f"{event}, {level}", table, outcome))
            problems.append(outcome is not None or f"{event}, {level}: not reached")
            reset(table)
            stop(connection, event, "off")
            problems.append(check_outcome(f"after {event}, {level}", table, run(connection, table, level)))
            connection.close()
        equal(f"stops: errors at each event, {table}", [p for p in problems if p is not True], [])


def test_panics():
    """A Rust panic is an error or ends the session, never the server."""
    started = value(BOSS, "SELECT pg_postmaster_start_time()")
    for table in TABLES:
        problems = []
        for event in EVENTS:
            reset(table)
            connection = session(event, "panic")
            with blocker(event, table):
                outcome = run(connection, table, "SERIALIZABLE")
            problems.append(check_outcome(f"panic at {event}", table, outcome))
            problems.append(outcome is not None or f"panic at {event}: not reached")
            connection.close()
        equal(f"stops: panics at each event, {table}", [p for p in problems if p is not True], [])
    equal("stops: the server went on", value(BOSS, "SELECT pg_postmaster_start_time()"), started)


def stopped(pid):
    """Does the process stand at an event?"""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND (wait_event_type, wait_event) = ('Lock', 'advisory')"
    return value(BOSS, waiting, (pid,)) == 1


def ended_at(event, table, level, ending):
    """Stops a session at the event, ends it, and tells what became of it; None: it did not stop."""
    reset(table)
    query(BOSS, "SELECT pg_advisory_lock(%s)", (KEY,))
    connection = session(event, f"wait {KEY}")
    pid = connection.info.backend_pid
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(run(connection, table, level)))
    with blocker(event, table):
        thread.start()
        reached = wait_until(lambda: stopped(pid) or outcome, 10) and not outcome
        if reached and ending:
            query(BOSS, f"SELECT {ending}(%s)", (pid,))
            wait_until(lambda: outcome, 3)
        query(BOSS, "SELECT pg_advisory_unlock_all()")
    thread.join(20)
    connection.close()
    must_come(lambda: value(BOSS, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", (pid,)) == 0)
    return reached, outcome[0] if outcome else "hangs"


def test_ended():
    """Cancelled, terminated, or released again, at each event."""
    for table in TABLES:
        for ending in ("pg_cancel_backend", "pg_terminate_backend", None):
            problems, missed = [], []
            for event, level in CASES:
                reached, outcome = ended_at(event, table, level, ending)
                missed += [] if reached else [(event, level)]
                problems.append(check_outcome(f"{event}, {level}", table, outcome))
            equal(f"stops: {ending or 'released'} at each event, {table}", [p for p in problems if p is not True], [])
            equal(f"stops: all events are reached, {ending or 'released'}, {table}", missed, [])


def test_readers():
    """Snapshot readers see all or nothing of a transaction that stands at any point of its
    commit."""
    for table in TABLES:
        problems = []
        for event in COMMIT_EVENTS:
            reset(table)
            query(BOSS, "SELECT pg_advisory_lock(%s)", (KEY,))
            writer = session(event, f"wait {KEY}")
            outcome, seen = [], []
            thread = threading.Thread(target=lambda: outcome.append(run(writer, table, "SERIALIZABLE")))
            thread.start()
            reached = wait_until(lambda: stopped(writer.info.backend_pid) or outcome, 10) and not outcome
            readers = [threading.Thread(target=read, args=(table, level, seen)) for level in
                       ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE READ ONLY")]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join(1)
            query(BOSS, "SELECT pg_advisory_unlock_all()")
            for reader in readers + [thread]:
                reader.join(20)
            writer.close()
            if not reached or outcome != [None] or len(seen) != 3 or any(rows not in (BEFORE, AFTER) for rows in seen):
                problems.append(f"{event}: reached {reached}, {outcome}, {seen}")
        equal(f"stops: readers see all or nothing, {table}", problems, [])


def read(table, level, seen):
    connection = connect(DATABASE)
    query(connection, "BEGIN ISOLATION LEVEL " + level)
    seen.append(sorted(query(connection, f"SELECT id, v FROM {table}")))
    connection.close()


if __name__ == "__main__":
    if not OURS:
        ok("stops: heap has no stop events")
        raise SystemExit(0)
    BOSS = make_database(DATABASE)
    for name, settings in TABLES.items():
        create_table(BOSS, name, "id int PRIMARY KEY, v int", partitions=2, **settings)
    main(test_errors, test_panics, test_ended, test_readers, lambda: (BOSS.close(), drop_database(DATABASE)))
