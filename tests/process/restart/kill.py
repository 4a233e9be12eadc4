#!/usr/bin/python3
"""Bank transfers while sessions are terminated, cancelled, killed and timed out
at random points. All along, and afterwards: the sum of all accounts is the same,
indexes and table agree, no lock is left, the server did not restart."""

import multiprocessing
import os
import random
import signal
import time

import psycopg2

from lib.common import (RETRY, check, connect, create_table, drop_database, equal, main, make_database,
                     query, seconds, set_protocol, value, wait_until)

DATABASE = "process_kill"
ACCOUNTS = 40
TOTAL = ACCOUNTS * 100
WORKERS = 5
ENDED = ("57P01", "57014", "55P03", "25P03", "25P02", "08006", "08003", None)  # what killing and timeouts raise
TABLES = ("acct_occ", "acct_2pl", "acct_partcc", "acct_mix")


def make_tables(connection):
    for table in TABLES:
        protocol = "occ" if table == "acct_mix" else table[5:]
        create_table(connection, table, "id int PRIMARY KEY, branch int, balance int", partitions=4, protocol=protocol)
        query(connection, f"INSERT INTO {table} SELECT i, i % 5, 100 FROM generate_series(1, {ACCOUNTS}) i")
        query(connection, f"CREATE INDEX ON {table} (branch)")
    set_protocol(connection, "acct_mix", "2pl", 1)
    set_protocol(connection, "acct_mix", "partcc", 2)


class Gone(Exception):
    """READ COMMITTED met an account that another transaction is moving."""


def one_row(cursor, sql, parameters):
    cursor.execute(sql, parameters)
    if cursor.rowcount != 1:
        cursor.execute("ROLLBACK")
        raise Gone


def transfer(cursor, dice):
    source, target = dice.choice(TABLES), dice.choice(TABLES)
    a, b, amount = dice.randrange(1, ACCOUNTS + 1), dice.randrange(1, ACCOUNTS + 1), dice.randrange(1, 20)
    cursor.execute("BEGIN ISOLATION LEVEL " + dice.choice(["SERIALIZABLE", "SERIALIZABLE", "REPEATABLE READ", "READ COMMITTED"]))
    one_row(cursor, f"UPDATE {source} SET balance = balance - %s WHERE id = %s", (amount, a))
    if dice.random() < 0.3:
        cursor.execute("SAVEPOINT s")
        cursor.execute(f"DELETE FROM {target} WHERE id = %s", (b,))
        cursor.execute(f"UPDATE {source} SET branch = branch + 1")
        cursor.execute("ROLLBACK TO s")
    if dice.random() < 0.3:
        # A move: the account is deleted and comes back with another branch.
        one_row(cursor, f"DELETE FROM {target} WHERE id = %s RETURNING balance", (b,))
        balance = cursor.fetchone()[0]
        cursor.execute(f"INSERT INTO {target} VALUES (%s, %s, %s)", (b, dice.randrange(5), balance + amount))
    else:
        one_row(cursor, f"UPDATE {target} SET balance = balance + %s, branch = %s WHERE id = %s", (amount, dice.randrange(5), b))
    if dice.random() < 0.02:
        cursor.execute("SELECT pg_sleep(0.2)")
    cursor.execute("COMMIT")


def audit(cursor, dice):
    """The sum, in one statement at READ COMMITTED and over two in a snapshot or serial order."""
    level = dice.choice(["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE", "SERIALIZABLE READ ONLY"])
    cursor.execute("BEGIN ISOLATION LEVEL " + level)
    parts = [f"(SELECT sum(balance) FROM {t})" for t in TABLES]
    cursor.execute("SELECT " + " + ".join(parts))
    sums = [cursor.fetchone()[0]]
    if level != "READ COMMITTED":
        cursor.execute("SELECT " + " + ".join(reversed(parts)))
        sums.append(cursor.fetchone()[0])
    cursor.execute("COMMIT")
    if any(one != TOTAL * len(TABLES) for one in sums):
        raise AssertionError(f"{level}: sums {sums}, not {TOTAL * len(TABLES)}")


def worker(number, until, results, transfers):
    dice = random.Random(number * 31 + os.getpid())
    done, problems, connection = 0, [], None
    while time.monotonic() < until:
        try:
            if connection is None or connection.closed:
                connection = connect(DATABASE, options="-c deadlock_timeout=50ms -c statement_timeout=2s "
                                     "-c lock_timeout=1s -c idle_in_transaction_session_timeout=2s")
                cursor = connection.cursor()
            (audit if number == 0 else transfer)(cursor, dice)
            done += 1
            if number:
                transfers[number] += 1
        except psycopg2.Error as error:
            if error.pgcode not in RETRY and error.pgcode not in ENDED:
                problems.append(f"{error.pgcode} {error}")
            try:
                connection.cursor().execute("ROLLBACK")
            except psycopg2.Error:
                connection = None
        except Gone:
            pass
        except Exception as error:
            problems.append(repr(error))
            break
    results.put((number, done, problems[:3]))


def start(number, until, results, transfers):
    process = multiprocessing.Process(target=worker, args=(number, until, results, transfers), daemon=True)
    process.start()
    return process


def disturb(until, processes, results, transfers):
    """Kills backends, statements and clients at random moments; returns how many of each."""
    dice, counts = random.Random(4), {"terminate": 0, "cancel": 0, "client": 0}
    boss = connect("postgres")
    while time.monotonic() < until - 1:
        time.sleep(dice.uniform(0.005, 0.1))
        kind = dice.choice(list(counts))
        if kind == "client":
            victim = dice.randrange(1, WORKERS)
            os.kill(processes[victim].pid, signal.SIGKILL)
            processes[victim].join()
            processes[victim] = start(victim, until, results, transfers)
        else:
            function = {"terminate": "pg_terminate_backend", "cancel": "pg_cancel_backend"}[kind]
            # Of a session that is in the middle of a statement or a transaction.
            if not query(boss, f"SELECT {function}(pid) FROM pg_stat_activity WHERE datname = %s AND state <> 'idle' "
                               "AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1", (DATABASE,)):
                continue
        counts[kind] += 1
    boss.close()
    return counts


def check_tables(connection):
    query(connection, "CREATE EXTENSION amcheck")
    for table in TABLES:
        # Errors if they find something.
        query(connection, f"SELECT mixedcc.check_primary_index('{table}'), bt_index_parent_check('{table}_pkey', true, true), bt_index_parent_check('{table}_branch_idx', true, true)")
        rows = query(connection, f"SELECT id FROM {table} ORDER BY id FOR UPDATE NOWAIT")
        equal(f"kill: all rows of {table} are there and can be locked", [r[0] for r in rows], list(range(1, ACCOUNTS + 1)))
        query(connection, "SET enable_seqscan = off; SET enable_bitmapscan = off")
        by_index = query(connection, f"SELECT id, branch, balance FROM {table} WHERE id > 0 ORDER BY id")
        by_branch = query(connection, f"SELECT id, branch, balance FROM {table} WHERE branch >= 0 ORDER BY branch, id")
        query(connection, "RESET ALL; SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off")
        by_scan = query(connection, f"SELECT id, branch, balance FROM {table} ORDER BY id")
        query(connection, "RESET ALL")
        equal(f"kill: the indexes of {table} agree with it", (by_index, sorted(by_branch)), (by_scan, by_scan))
        query(connection, f"UPDATE {table} SET balance = balance + 0, branch = branch + 1")
        query(connection, f"VACUUM {table}")
        equal(f"kill: {table} can be written and vacuumed", value(connection, f"SELECT count(*) FROM {table}"), ACCOUNTS)
    parts = " + ".join(f"(SELECT sum(balance) FROM {t})" for t in TABLES)
    equal("kill: the sum is the same", value(connection, "SELECT " + parts), TOTAL * len(TABLES))


def test_kills():
    connection = make_database(DATABASE)
    make_tables(connection)
    started = value(connection, "SELECT pg_postmaster_start_time()")
    first_start = log_restarts(connection)
    connection.close()
    until = time.monotonic() + seconds(12, long=40)
    results, transfers = multiprocessing.Queue(), multiprocessing.RawArray("l", WORKERS)
    processes = {number: start(number, until, results, transfers) for number in range(WORKERS)}
    counts = disturb(until, processes, results, transfers)
    for process in processes.values():
        process.join(30)
    equal("kill: no worker ended by itself", {n: process.exitcode for n, process in processes.items()}, {n: 0 for n in processes})
    check("kill: there were enough kills of each kind", min(counts.values()) >= 5, counts)
    outcomes = []
    while not results.empty():
        outcomes.append(results.get())
    equal("kill: no unexpected error", [o for o in outcomes if o[2]], [])
    # Each worker's, but for the auditor's.
    check("kill: transfers go on", min(transfers[1:]) > 10, f"{list(transfers)} transfers, {counts}")
    check("kill: audits go on", any(o[0] == 0 and o[1] > 10 for o in outcomes), str(outcomes))
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
    connection = connect(DATABASE, options="-c lock_timeout=5s")
    check("kill: no session is left", wait_until(lambda: value(connection, others, (DATABASE,)) == 0),
          query(connection, "SELECT pid, state, wait_event, query FROM pg_stat_activity WHERE datname = %s", (DATABASE,)))
    check_tables(connection)
    equal("kill: no lock is left", query(connection, "SELECT * FROM pg_locks WHERE pid <> pg_backend_pid() AND locktype <> 'virtualxid'"), [])
    equal("kill: the server went on", (value(connection, "SELECT pg_postmaster_start_time()"), log_restarts(connection)), (started, first_start))
    connection.close()
    drop_database(DATABASE)


def log_restarts(connection):
    """Changes when the postmaster restarts its children after a crash."""
    return value(connection, "SELECT backend_start FROM pg_stat_activity WHERE backend_type = 'checkpointer'")


if __name__ == "__main__":
    main(test_kills)
