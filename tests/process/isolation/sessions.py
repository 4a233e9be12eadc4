#!/usr/bin/python3
"""Timeouts, cancels and lost clients at known points: nothing stays locked, and
the next transaction of the same session works."""

import os
import signal
import threading

import psycopg2

from lib import protocols
from lib.common import check, connect, create_table, drop_database, equal, main, make_database, query, server, value, wait_until

DATABASE = "process_sessions"
# A table for each protocol, and its options. Those that lock rows wait, as by default.
PROTOCOLS = {f"t_{name}": {"protocol": name} for name in protocols.ALL}
WORK = ("UPDATE {t} SET v = v + 1 WHERE id = 1; DELETE FROM {t} WHERE id = 2; UPDATE {t} SET id = 30 WHERE id = 3; "
        "INSERT INTO {t} VALUES (100, 0)")
CHANGES = "BEGIN ISOLATION LEVEL READ COMMITTED; " + WORK
READS = "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM {t} WHERE id BETWEEN 200 AND 300"
START = [(i, 0) for i in range(1, 11)]


def rows(connection, table):
    return query(connection, f"SELECT id, v FROM {table} ORDER BY id")


def check_free(name, table, wanted=START):
    """Another session can lock and change all rows at once."""
    other = connect(DATABASE, options="-c lock_timeout=5s -c statement_timeout=10s")
    try:
        locked = query(other, f"SELECT id, v FROM {table} ORDER BY id FOR UPDATE NOWAIT")
        equal(f"sessions: {name}: nothing stays, {table}", sorted(locked), wanted)
        query(other, f"INSERT INTO {table} VALUES (100, 1)")
        query(other, f"DELETE FROM {table} WHERE id = 100")
    finally:
        other.close()


def waits(boss, connection):
    return value(boss, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'", (connection.info.backend_pid,)) == 1


def blocked(boss, table, run, hold=CHANGES):
    """A holder, and a second session that waits for it in `run`."""
    holder = connect(DATABASE)
    query(holder, hold.format(t=table))
    waiter = connect(DATABASE)
    outcome = []

    def wait():
        try:
            query(waiter, run.format(t=table))
            outcome.append("done")
        except psycopg2.Error as error:
            outcome.append(error.pgcode)

    thread = threading.Thread(target=wait)
    thread.start()
    check(f"sessions: the second writer waits, {table}", wait_until(lambda: waits(boss, waiter), 10))
    return holder, waiter, thread, outcome


def test_cancelled_waits():
    """Cancel, lock_timeout and termination of a session that waits for a lock."""
    for table in PROTOCOLS:
        for name, ending, code in (
            ("cancel", "SELECT pg_cancel_backend({pid})", ["57014"]),
            ("terminate", "SELECT pg_terminate_backend({pid})", ["57P01", None]),
        ):
            holder, waiter, thread, outcome = blocked(BOSS, table, "UPDATE {t} SET v = v + 10 WHERE id = 1")
            query(BOSS, ending.format(pid=waiter.info.backend_pid))
            thread.join(10)
            check(f"sessions: {name} of a waiting session, {table}", outcome and outcome[0] in code, str(outcome))
            query(holder, "ROLLBACK")
            check_free(f"{name} of a waiting session", table)
        for setting, code in (("lock_timeout", "55P03"), ("statement_timeout", "57014")):
            holder, waiter, thread, outcome = blocked(BOSS, table, f"SET {setting} = '300ms'; UPDATE {{t}} SET v = 5 WHERE id = 1")
            thread.join(10)
            equal(f"sessions: {setting} of a waiting session, {table}", outcome, [code])
            query(holder, "ROLLBACK")
            check_free(setting, table)


def test_holder_ends():
    """The holder is terminated, or its client is gone: the waiter goes on."""
    for table in PROTOCOLS:
        for name in ("terminate", "close", "idle timeout"):
            holder, waiter, thread, outcome = blocked(BOSS, table, "UPDATE {t} SET v = v + 10 WHERE id = 1")
            if name == "terminate":
                query(BOSS, f"SELECT pg_terminate_backend({holder.info.backend_pid})")
            elif name == "close":
                holder.close()
            else:
                query(holder, "SET idle_in_transaction_session_timeout = '100ms'")
            thread.join(10)
            equal(f"sessions: the waiter goes on after {name} of the holder, {table}", outcome, ["done"])
            query(waiter, f"UPDATE {table} SET v = 0 WHERE id = 1")
            waiter.close()
            check_free(f"{name} of the holder", table)


def test_waits_for_what_was_read():
    """A writer waits for a reader of the keys that it writes, and either of the two ends."""
    write, table = "INSERT INTO {t} VALUES (250, 0)", f"t_{protocols.having('locks_ranges')[0]}"
    endings = (("cancel", "SELECT pg_cancel_backend({pid})", ["57014"]), ("terminate", "SELECT pg_terminate_backend({pid})", ["57P01", None]))
    for name, ending, code in endings:
        holder, waiter, thread, outcome = blocked(BOSS, table, write, READS)
        query(BOSS, ending.format(pid=waiter.info.backend_pid))
        thread.join(10)
        check(f"sessions: {name} of who waits for a reader", outcome and outcome[0] in code, str(outcome))
        query(holder, f"UPDATE {table} SET v = 0 WHERE id = 1; COMMIT")
        check_free(f"{name} of who waits for a reader", table)
    holder, waiter, thread, outcome = blocked(BOSS, table, "SET lock_timeout = '300ms'; " + write, READS)
    thread.join(10)
    equal("sessions: lock_timeout of who waits for a reader", outcome, ["55P03"])
    query(holder, "COMMIT")
    for name in ("commit", "rollback", "terminate", "close"):
        holder, waiter, thread, outcome = blocked(BOSS, table, write, READS)
        if name == "terminate":
            query(BOSS, f"SELECT pg_terminate_backend({holder.info.backend_pid})")
        elif name == "close":
            holder.close()
        else:
            query(holder, name)
        thread.join(10)
        equal(f"sessions: a writer goes on after {name} of the reader", outcome, ["done"])
        query(waiter, f"DELETE FROM {table} WHERE id = 250")
        waiter.close()
        check_free(f"{name} of a reader", table)


# What ends a transaction, and the SQLSTATE that it has to give.
ENDINGS = (("SELECT 1 / 0", "22012"), ("ROLLBACK", None), ("INSERT INTO {t} VALUES (5, 5)", "23505"),
           ("SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(5)", "57014"),
           ("SAVEPOINT s; DELETE FROM {t}; ROLLBACK TO s; SELECT 1 / 0", "22012"),
           ("DO 'BEGIN RAISE EXCEPTION $x$x$x$; END'", "P0001"))


def test_errors_everywhere():
    """An error after each kind of change, at each level; the session goes on."""
    for table in PROTOCOLS:
        connection = connect(DATABASE)
        codes = []
        for level in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"):
            for ending, _ in ENDINGS:
                # An error of these two fails the test: there would be nothing to undo.
                query(connection, f"BEGIN ISOLATION LEVEL {level}")
                query(connection, WORK.format(t=table))
                try:
                    query(connection, ending.format(t=table))
                    codes.append(None)
                except psycopg2.Error as error:
                    codes.append(error.pgcode)
                query(connection, "ROLLBACK")
        equal(f"sessions: each ending gives its error, {table}", codes, [code for _, code in ENDINGS] * 3)
        equal(f"sessions: errors leave the rows, {table}", rows(connection, table), START)
        connection.close()
        check_free("errors", table)


def client_that_dies(name, table, statements):
    """A child process that is killed in the middle of its transaction, when it has run all the
    statements."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            connection = connect(DATABASE)
            for statement in statements:
                query(connection, statement.format(t=table))
            os.write(tell, b"all done")
            signal.pause()
        except BaseException as error:
            os.write(tell, repr(error).encode())
        finally:
            os._exit(0)
    os.close(tell)
    text = os.read(told, 1000).decode()
    os.close(told)
    open_ones = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND state LIKE 'idle in%%'"
    equal(f"sessions: {name} comes to the middle of its transaction, {table}", (text, value(BOSS, open_ones, (DATABASE,))), ("all done", 1))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    gone = wait_until(lambda: value(BOSS, open_ones, (DATABASE,)) == 0)
    check(f"sessions: the session of {name} ends, {table}", gone)
    check_free(name, table)


def test_lost_clients():
    for table in PROTOCOLS:
        client_that_dies("a lost writer", table, ["BEGIN ISOLATION LEVEL SERIALIZABLE", WORK, "SELECT * FROM {t}"])
        client_that_dies("a lost reader", table, ["BEGIN", "DECLARE c CURSOR FOR SELECT * FROM {t}", "FETCH 1 FROM c", "SAVEPOINT s", WORK])
        client_that_dies("a lost truncater", table, ["BEGIN", "LOCK TABLE {t} IN ACCESS EXCLUSIVE MODE", "TRUNCATE {t}", "INSERT INTO {t} VALUES (5, 5)"])


def test_many_sessions():
    """Sessions come and go: no slot is used up."""
    for number in range(300):
        connection = connect(DATABASE)
        query(connection, f"BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE {list(PROTOCOLS)[number % len(PROTOCOLS)]} SET v = v WHERE id = 1")
        if number % 2:
            query(connection, "COMMIT")
        connection.close()
    for table in PROTOCOLS:
        check_free("300 sessions", table)


def test_shutdown_with_sessions():
    """A fast shutdown ends sessions in transactions; their changes are not kept."""
    holders = [connect(DATABASE) for _ in PROTOCOLS]
    for holder, table in zip(holders, PROTOCOLS):
        query(holder, "BEGIN ISOLATION LEVEL SERIALIZABLE; " + WORK.format(t=table))
    BOSS.close()
    server("restart")
    for table in PROTOCOLS:
        check_free("shutdown", table)
    drop_database(DATABASE)


if __name__ == "__main__":
    BOSS = make_database(DATABASE)
    for protocol_table, settings in PROTOCOLS.items():
        create_table(BOSS, protocol_table, "id int PRIMARY KEY, v int", partitions=1, **settings)
        query(BOSS, f"INSERT INTO {protocol_table} SELECT i, 0 FROM generate_series(1, 10) i")
    main(test_cancelled_waits, test_holder_ends, test_waits_for_what_was_read, test_errors_everywhere, test_lost_clients, test_many_sessions, test_shutdown_with_sessions)
