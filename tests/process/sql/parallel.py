#!/usr/bin/python3
"""Parallel statements over mixedcc tables: workers read what the statement's snapshot sees, beside
transfers, inserts, deletes and VACUUM, at each level that has snapshots. Statements that may have
no workers run in the leader. Workers and leaders may be terminated."""

import json
import multiprocessing
import random
import time

import psycopg2

from lib import protocols
from lib.common import RETRY, check, connect, create_table, drop_database, equal, main, make_database, must_come, query, seconds, value

DATABASE = "process_parallel"
ROWS = 20_000
WAYS = " ".join(f"-c {setting}" for setting in (
    "parallel_setup_cost=0", "parallel_tuple_cost=0", "min_parallel_table_scan_size=0",
    "max_parallel_workers_per_gather=2", "enable_indexscan=off", "enable_bitmapscan=off"))
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE READ ONLY")
SUM = "SELECT count(*), sum(v), sum(length(t)) FROM pl"
WANTED = (ROWS, ROWS * 100, ROWS * 40)


def make_tables(connection):
    create_table(connection, "pl", "k int PRIMARY KEY, v int, t text", partitions=len(protocols.ALL) + 1)
    query(connection, f"INSERT INTO pl SELECT i, 100, repeat('x', 40) FROM generate_series(1, {ROWS}) i")
    query(connection, "CREATE TABLE hp (k int PRIMARY KEY, v int)")
    query(connection, f"INSERT INTO hp SELECT i, 100 FROM generate_series(1, {ROWS}) i")
    query(connection, "ANALYZE pl, hp")


def nodes(plan):
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def launched(connection, statement):
    """How many workers the statement had; None: its plan has none."""
    plan = value(connection, f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}")
    plan = json.loads(plan) if isinstance(plan, str) else plan
    found = [node["Workers Launched"] for node in nodes(plan[0]["Plan"]) if node["Node Type"] == "Gather"]
    return found[0] if found else None


# --- which statements have workers ------------------------------------------------

def begin(connection, level):
    query(connection, "ROLLBACK")
    query(connection, f"BEGIN ISOLATION LEVEL {level}")


def test_which():
    connection = make_database(DATABASE)
    make_tables(connection)
    connection.close()
    connection = connect(DATABASE, options=WAYS)
    for level in LEVELS:
        begin(connection, level)
        equal(f"parallel: workers at {level}", launched(connection, SUM), 2)
        equal(f"parallel: the rows at {level}", query(connection, SUM), [WANTED])
    begin(connection, "SERIALIZABLE")
    equal("parallel: no worker at SERIALIZABLE", launched(connection, SUM), None)
    query(connection, "COMMIT")
    query(connection, f"PREPARE total AS {SUM}")
    query(connection, "SET plan_cache_mode = force_generic_plan")
    equal("parallel: workers of a kept plan", launched(connection, "EXECUTE total"), 2)
    begin(connection, "SERIALIZABLE")
    equal("parallel: none if it runs at SERIALIZABLE", launched(connection, "EXECUTE total"), 0)
    begin(connection, "READ COMMITTED")
    query(connection, "UPDATE pl SET v = v + 1 WHERE k = 1")
    equal("parallel: none after a change of the transaction's own", launched(connection, SUM), 0)
    equal("parallel: which the leader sees", query(connection, SUM), [(ROWS, ROWS * 100 + 1, ROWS * 40)])
    equal("parallel: statements over heap have workers then", launched(connection, "SELECT sum(v) FROM hp"), 2)
    begin(connection, "READ COMMITTED")
    query(connection, "SAVEPOINT s")
    query(connection, "INSERT INTO pl VALUES (0, 0, '')")
    query(connection, "ROLLBACK TO s")
    equal("parallel: workers after a savepoint that took the change back", launched(connection, SUM), 2)
    begin(connection, "READ COMMITTED")
    query(connection, "CREATE TABLE made USING mixedcc AS SELECT v, count(*) AS n FROM pl GROUP BY v")
    equal("parallel: CREATE TABLE AS", query(connection, "SELECT * FROM made"), [(100, ROWS)])
    query(connection, "ROLLBACK")
    query(connection, "SET mixedcc.serializable_at = 'repeatable read'")
    begin(connection, "REPEATABLE READ")
    equal("parallel: none where REPEATABLE READ is serializable", launched(connection, SUM), None)
    connection.close()


def test_functions():
    connection = connect(DATABASE, options=WAYS)
    body = "BEGIN RETURN (SELECT v FROM pl WHERE k = $1); END"
    query(connection, f"CREATE FUNCTION look(int) RETURNS int LANGUAGE plpgsql STABLE PARALLEL SAFE AS '{body}'")
    query(connection, f"CREATE FUNCTION look_anew(int) RETURNS int LANGUAGE plpgsql VOLATILE PARALLEL SAFE AS '{body}'")
    query(connection, "CREATE FUNCTION change(int) RETURNS int LANGUAGE plpgsql PARALLEL SAFE AS "
                      "'BEGIN UPDATE pl SET v = v WHERE k = $1; RETURN 0; END'")
    query(connection, "SET parallel_leader_participation = off")
    for level in LEVELS:
        for function in ("look", "look_anew"):
            begin(connection, level)
            got = query(connection, f"SELECT sum({function}(k)), count(*) FROM hp WHERE k % 100 = 0")
            equal(f"parallel: workers call {function} at {level}", got, [(ROWS, ROWS // 100)])
    begin(connection, "READ COMMITTED")
    query(connection, "UPDATE pl SET v = v WHERE k = 1")
    for what, statement, state in (
        ("a worker does not use the tables after a change", "SELECT sum(look(k)) FROM hp", "0A000"),
        ("a worker changes no row", "SELECT sum(change(k)) FROM hp", "25000"),
    ):
        try:
            query(connection, statement)
            check(f"parallel: {what}", False, "no error")
        except psycopg2.Error as error:
            equal(f"parallel: {what}", error.pgcode, state)
        begin(connection, "READ COMMITTED")
    connection.close()


# --- beside writers -----------------------------------------------------------------

def write(number, until, results):
    """Moves amounts between rows, deletes some, and inserts them again."""
    connection, draw, done = connect(DATABASE, options="-c synchronous_commit=local"), random.Random(number), 0
    while time.monotonic() < until:
        a, b = draw.sample(range(1, ROWS + 1), 2)
        try:
            query(connection, "BEGIN ISOLATION LEVEL " + draw.choice(("SERIALIZABLE", "READ COMMITTED")))
            moved = query(connection, "UPDATE pl SET v = v - 7 WHERE k = %s RETURNING v", (a,))
            moved += query(connection, "UPDATE pl SET v = v + 7 WHERE k = %s RETURNING v", (b,))
            if draw.random() < 0.3:
                again = query(connection, "DELETE FROM pl WHERE k = %s RETURNING k, v, t", (b,))
                query(connection, "INSERT INTO pl VALUES (%s, %s, %s)", again[0])
            query(connection, "COMMIT" if len(moved) == 2 else "ROLLBACK")
            done += 1
        except (psycopg2.Error, IndexError) as error:
            if not isinstance(error, IndexError) and error.pgcode not in RETRY:
                results.put(("writer", repr(error)))
                return
            query(connection, "ROLLBACK")
    results.put(("writer", done))


def read(number, until, results):
    connection, draw, done, wrong = connect(DATABASE, options=WAYS), random.Random(number), 0, []
    while time.monotonic() < until:
        query(connection, "BEGIN ISOLATION LEVEL " + draw.choice(LEVELS))
        first = query(connection, SUM)
        by_key = query(connection, "SELECT md5(string_agg(k || ':' || v, ',' ORDER BY k)) FROM pl")
        query(connection, "SET LOCAL max_parallel_workers_per_gather = 0")
        one_snapshot = value(connection, "SHOW transaction_isolation") != "read committed"
        alone = query(connection, "SELECT md5(string_agg(k || ':' || v, ',' ORDER BY k)) FROM pl")
        if first != [WANTED] or one_snapshot and by_key != alone:
            wrong.append(first)
        query(connection, "COMMIT")
        done += 1
    results.put(("reader", wrong[:3] or done))


def test_beside_writers():
    until = time.monotonic() + seconds(6)
    results = multiprocessing.Queue()
    roles = [(write, 1), (write, 2), (write, 3), (read, 4), (read, 5)]
    processes = [multiprocessing.Process(target=role, args=(number, until, results)) for role, number in roles]
    for process in processes:
        process.start()
    connection = connect(DATABASE)
    while time.monotonic() < until:
        query(connection, "VACUUM pl")
        time.sleep(0.1)
    outcomes = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    check("parallel: readers see all of each transaction, or nothing", all(isinstance(o, int) and o for _, o in outcomes), outcomes)
    connection.close()


# --- terminated -----------------------------------------------------------------------

def slow(results):
    connection = connect(DATABASE, options=WAYS)
    try:
        query(connection, "SELECT count(*), sum(length(pg_sleep(0.001)::text)) FROM pl")
        results.put("00000")
    except psycopg2.Error as error:
        results.put(error.pgcode or "57P01")  # the connection is closed


def test_terminated():
    connection = connect(DATABASE)
    workers = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'parallel worker' LIMIT 1"
    leaders = "SELECT leader_pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'parallel worker' LIMIT 1"
    for what, victim, function, state in (
        ("a worker", workers, "pg_terminate_backend", "57P01"),
        ("a leader", leaders, "pg_terminate_backend", "57P01"),
        ("a leader's statement", leaders, "pg_cancel_backend", "57014"),
    ):
        must_come(lambda: not query(connection, workers))  # of the leader before
        results = multiprocessing.Queue()
        process = multiprocessing.Process(target=slow, args=(results,))
        process.start()
        must_come(lambda: query(connection, victim))
        query(connection, f"SELECT {function}(({victim}))")
        equal(f"parallel: {what} is ended", results.get(timeout=30), state)
        process.join()
    must_come(lambda: not query(connection, workers))
    equal("parallel: no process of a statement that ended holds rows back", query(connection, "SELECT pid FROM mixedcc.horizon WHERE pid <> pg_backend_pid()"), [])
    own = connect(DATABASE, options=WAYS)
    equal("parallel: workers afterwards", launched(own, SUM), 2)
    equal("parallel: all rows are there", query(own, SUM), [WANTED])
    own.close()
    connection.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_which, test_functions, test_beside_writers, test_terminated)
