#!/usr/bin/python3
"""Parallel statements over mixedcc tables: workers read what the statement's snapshot sees, by
sequential, index and bitmap scans, beside transfers, inserts, deletes, switches and VACUUM, at each
level that has snapshots. Statements that may have no workers run in the leader. Workers and leaders
may be terminated. Indexes that workers have built have all rows."""

import json
import multiprocessing
import random
import time

import psycopg2

from lib import protocols
from lib.common import RETRY, check, connect, create_table, drop_database, equal, main, make_database, must_come, query, seconds, value, wait_until

DATABASE = "process_parallel"
ROWS = 20_000
# The scans that workers share, and what makes the planner choose them.
SCANS = {"Seq Scan": ("enable_indexscan", "enable_bitmapscan"),
         "Index Scan": ("enable_seqscan", "enable_bitmapscan", "enable_indexonlyscan"),
         "Index Only Scan": ("enable_seqscan", "enable_bitmapscan"),
         "Bitmap Heap Scan": ("enable_seqscan", "enable_indexscan", "enable_indexonlyscan")}
FREE = ("parallel_setup_cost=0", "parallel_tuple_cost=0", "min_parallel_table_scan_size=0",
        "min_parallel_index_scan_size=0", "max_parallel_workers_per_gather=2")
WAYS = " ".join(f"-c {setting}" for setting in (*FREE, *(f"{way}=off" for way in SCANS["Seq Scan"])))
BUILDS = "-c min_parallel_table_scan_size=0 -c max_parallel_maintenance_workers=2 -c maintenance_work_mem=128MB -c client_min_messages=debug1"
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE READ ONLY")
SUM = "SELECT count(*), sum(v), sum(length(t)) FROM pl"
WANTED = (ROWS, ROWS * 100, ROWS * 40)
BY_INDEX = f"{SUM} WHERE v > -1000000"


def make_tables(connection):
    create_table(connection, "pl", "k int PRIMARY KEY, v int, t text", partitions=len(protocols.ALL) + 1)
    query(connection, f"INSERT INTO pl SELECT i, 100, repeat('x', 40) FROM generate_series(1, {ROWS}) i")
    query(connection, "CREATE TABLE hp (k int PRIMARY KEY, v int)")
    query(connection, f"INSERT INTO hp SELECT i, 100 FROM generate_series(1, {ROWS}) i")
    query(connection, "CREATE INDEX pl_v ON pl (v)")
    query(connection, "ANALYZE pl, hp")


def choose(connection, scan):
    """Lets the planner have this scan only, until the transaction ends."""
    for way in sorted({way for ways in SCANS.values() for way in ways}):
        query(connection, f"SET LOCAL {way} = {'off' if way in SCANS[scan] else 'on'}")


def nodes(plan):
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def run_nodes(connection, statement):
    """Of the plan, after the statement has run by it."""
    plan = value(connection, f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}")
    return list(nodes((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]))


def launched(connection, statement):
    """How many workers the statement had; None: its plan has none."""
    found = [n["Workers Launched"] for n in run_nodes(connection, statement) if n["Node Type"].startswith("Gather")]
    return found[0] if found else None


def shared(connection, statement):
    """The scans that its workers shared."""
    return {n["Node Type"] for n in run_nodes(connection, statement) if n["Parallel Aware"] and "Scan" in n["Node Type"]}


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


def test_scans():
    """Each kind of scan that workers share gives each row once."""
    connection = connect(DATABASE, options=WAYS)
    other = connect(DATABASE)
    for level in LEVELS:
        for scan in SCANS:
            sql = "SELECT count(*), sum(v) FROM pl WHERE v > -1000000" if scan == "Index Only Scan" else BY_INDEX
            wanted = WANTED[:2] if scan == "Index Only Scan" else WANTED
            begin(connection, level)
            choose(connection, scan)
            equal(f"parallel: workers share a {scan} at {level}", shared(connection, sql), {scan})
            equal(f"parallel: and it has them at {level}, {scan}", launched(connection, sql), 2)
            equal(f"parallel: each row once by a {scan} at {level}", query(connection, sql), [wanted])
            if level != "READ COMMITTED":
                query(other, "UPDATE pl SET v = v + 1; DELETE FROM pl WHERE k % 2 = 0")
                equal(f"parallel: as of the snapshot, by a {scan} at {level}", query(connection, sql), [wanted])
                query(other, "DELETE FROM pl")
                query(other, f"INSERT INTO pl SELECT i, 100, repeat('x', 40) FROM generate_series(1, {ROWS}) i")
    begin(connection, "READ COMMITTED")
    choose(connection, "Index Scan")
    joined = "SELECT count(*), sum(a.v) FROM pl a JOIN hp b ON a.k = b.k WHERE a.v > -1000000"
    equal("parallel: a join of an index scan", query(connection, joined), [(ROWS, ROWS * 100)])
    check("parallel: which workers share", "Index Scan" in shared(connection, joined))
    query(connection, "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off")
    equal("parallel: a nested loop", query(connection, joined), [(ROWS, ROWS * 100)])
    query(connection, "SET LOCAL enable_seqscan = off")
    by_key = f"SELECT count(*), sum(v) FROM pl WHERE k BETWEEN 1 AND {ROWS}"
    equal("parallel: rows by the primary key", query(connection, by_key), [(ROWS, ROWS * 100)])
    query(connection, "SET LOCAL mixedcc.enable_primary_scan = off")
    equal("parallel: by PostgreSQL's index scan of it", query(connection, by_key), [(ROWS, ROWS * 100)])
    query(connection, "SET LOCAL enable_bitmapscan = on; SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off")
    equal("parallel: by a bitmap of it", query(connection, by_key), [(ROWS, ROWS * 100)])
    check("parallel: which workers read", "Bitmap Heap Scan" in shared(connection, by_key))
    query(other, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT FROM hp LIMIT 1")  # else it notes nothing of readers
    begin(connection, "SERIALIZABLE READ ONLY")
    choose(connection, "Index Scan")
    query(connection, BY_INDEX)
    equal("parallel: PostgreSQL notes no read of the index", query(connection, "SELECT * FROM pg_locks WHERE mode = 'SIReadLock' AND relation = 'pl_v'::regclass"), [])
    query(connection, "ROLLBACK")
    other.close()
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
        scan = draw.choice(["Seq Scan", "Index Scan", "Bitmap Heap Scan"])
        choose(connection, scan)
        first = query(connection, BY_INDEX)
        all_rows = "SELECT md5(string_agg(k || ':' || v, ',' ORDER BY k)) FROM pl WHERE v > -1000000"
        by_key = query(connection, all_rows)
        query(connection, "SET LOCAL max_parallel_workers_per_gather = 0")
        choose(connection, "Seq Scan")
        one_snapshot = value(connection, "SHOW transaction_isolation") != "read committed"
        alone = query(connection, all_rows)
        if first != [WANTED] or one_snapshot and by_key != alone:
            wrong.append((scan, first))
        query(connection, "COMMIT")
        done += 1
    results.put(("reader", wrong[:3] or done))


def switch(number, until, results):
    """Gives partitions other protocols."""
    connection, draw, done = connect(DATABASE), random.Random(number), 0
    while time.monotonic() < until:
        partition = draw.randrange(len(protocols.ALL) + 1)
        query(connection, "SELECT mixedcc.set_protocol('pl', %s, %s)", (draw.choice(protocols.ALL), partition))
        done += 1
        time.sleep(0.05)
    results.put(("switcher", done))


def build(number, until, results):
    """Builds indexes with workers, one with writers beside it, and compares them with the rows."""
    connection, done = connect(DATABASE, options=BUILDS), 0
    connection.autocommit = True
    while time.monotonic() < until:
        for how, index in (("", "beside_1"), ("CONCURRENTLY", "beside_2")):
            try:
                query(connection, f"CREATE INDEX {how} {index} ON pl (v, k)")
                query(connection, f"BEGIN; LOCK TABLE pl IN SHARE MODE; SELECT bt_index_parent_check('{index}', true); COMMIT")
                query(connection, f"REINDEX INDEX {how} {index}")
                query(connection, f"BEGIN; LOCK TABLE pl IN SHARE MODE; SELECT bt_index_parent_check('{index}', true); COMMIT")
                done += 1
            except psycopg2.Error as error:
                if error.pgcode not in RETRY:
                    results.put(("builder", f"{how} {error!r}"))
                    return
                query(connection, "ROLLBACK")
            query(connection, f"DROP INDEX IF EXISTS {index}")
    if not any("request for" in notice for notice in connection.notices):
        done = "no build had workers"
    results.put(("builder", done))


def test_beside_writers():
    until = time.monotonic() + seconds(8)
    results = multiprocessing.Queue()
    roles = [(write, 1), (write, 2), (write, 3), (read, 4), (read, 5), (switch, 6), (build, 7)]
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


# --- index builds -----------------------------------------------------------------------

def builds_with_workers(connection, statement):
    """How many workers the statement asked for."""
    connection.notices.clear()
    query(connection, statement)
    asked = [notice.split("request for ")[1].split()[0] for notice in connection.notices if "request for " in notice]
    return [int(n) for n in asked]


def check_index(connection, name, rows=True):
    """`rows`: also that the index has all rows of the table."""
    query(connection, f"SELECT bt_index_parent_check('{name}', {rows})")


def test_builds():
    connection = connect(DATABASE, options=BUILDS)
    query(connection, "CREATE EXTENSION IF NOT EXISTS amcheck")
    query(connection, "DROP TABLE IF EXISTS pb")
    query(connection, "CREATE TABLE pb (k int PRIMARY KEY, v int, u int, t text, w text) USING mixedcc")
    query(connection, f"INSERT INTO pb SELECT i, i % 97, i, 'x' || i FROM generate_series(1, {ROWS}) i")
    for name, definition in (
        ("plain", "INDEX i_plain ON pb (v)"), ("unique", "UNIQUE INDEX i_unique ON pb (u DESC)"),
        ("partial", "INDEX i_partial ON pb (t) WHERE v < 50"), ("expression", "INDEX i_expression ON pb ((v * 2 + k))"),
        ("concurrent", "INDEX CONCURRENTLY i_concurrent ON pb (t, v)"),
    ):
        equal(f"parallel: workers build a {name} index", builds_with_workers(connection, f"CREATE {definition}"), [2])
        check_index(connection, f"i_{name}")
    asked = builds_with_workers(connection, "REINDEX TABLE pb")
    stored = value(connection, "SELECT pg_relation_size('pb_pkey')")
    check("parallel: no row is stored for the primary key", stored <= 4 * 8192, stored)
    equal("parallel: workers for each index of REINDEX TABLE", asked, [2] * 6)
    for name in ("plain", "unique", "partial", "expression", "concurrent"):
        check_index(connection, f"i_{name}")
    query(connection, "SELECT bt_index_parent_check('pb_pkey', true)")
    equal("parallel: the key still finds its rows", query(connection, "SELECT count(*) FROM pb WHERE k = ANY (ARRAY[1, 2, 77])"), [(3,)])
    check_builds_refused(connection)
    check_builds_of_old_rows(connection)
    query(connection, "DROP TABLE pb")
    connection.close()


def check_builds_refused(connection):
    """Builds that have no workers, or fail."""
    query(connection, "BEGIN; UPDATE pb SET v = v + 1 WHERE k = 1")
    equal("parallel: no worker builds after a change", builds_with_workers(connection, "CREATE INDEX i_own ON pb (v)"), [])
    query(connection, "COMMIT")
    check_index(connection, "i_own")
    query(connection, "BEGIN ISOLATION LEVEL SERIALIZABLE")
    equal("parallel: no worker builds at SERIALIZABLE", builds_with_workers(connection, "CREATE INDEX i_serial ON pb (v)"), [])
    query(connection, "COMMIT")
    check_index(connection, "i_serial")
    for level in ("READ COMMITTED", "REPEATABLE READ"):
        query(connection, f"BEGIN ISOLATION LEVEL {level}")
        query(connection, "SAVEPOINT s")
        try:
            query(connection, "CREATE UNIQUE INDEX i_twice ON pb (v)")
            check("parallel: workers find two rows with one key", False, "no error")
        except psycopg2.Error as error:
            equal(f"parallel: workers find two rows with one key at {level}", error.pgcode, "23505")
        query(connection, "ROLLBACK TO s")
        equal(f"parallel: workers build after that at {level}", builds_with_workers(connection, "CREATE INDEX i_after ON pb (u)"), [2])
        # An index that an older snapshot may not use cannot be compared at REPEATABLE READ. It is
        # one if a row was deleted, or has moved, by the last commit before the oldest snapshot.
        check_index(connection, "i_after", rows=level == "READ COMMITTED")
        query(connection, "UPDATE pb SET u = u WHERE k = 1")
        query(connection, "ROLLBACK")


def check_builds_of_old_rows(connection):
    """An older snapshot finds the rows that it sees, whatever index was built since."""
    old, wanted = connect(DATABASE), [(ROWS // 10, (ROWS // 10) * 20)]
    query(connection, f"INSERT INTO pb SELECT i, 20, i, 'x', 'old' FROM generate_series({ROWS + 1}, {ROWS + ROWS // 10}) i")
    query(old, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    sql = "SELECT count(*), sum(v) FROM pb WHERE w = 'old'"
    equal("parallel: an old snapshot's rows", query(old, sql), wanted)
    query(connection, "DELETE FROM pb WHERE w = 'old' AND k % 2 = 0")
    query(connection, "UPDATE pb SET w = 'new' WHERE w = 'old'")
    equal("parallel: workers build beside it", builds_with_workers(connection, "CREATE INDEX i_old ON pb (w)"), [2])
    query(old, "SET LOCAL enable_seqscan = off")
    equal("parallel: the old snapshot's rows by the new index or none", query(old, sql), wanted)
    query(old, "COMMIT")
    query(old, "SET enable_seqscan = off")
    equal("parallel: the rows of now", query(old, "SELECT count(*) FROM pb WHERE w = 'old'"), [(0,)])
    equal("parallel: the new rows", query(old, "SELECT count(*) FROM pb WHERE w = 'new'"), [(ROWS // 20,)])
    old.close()


# --- terminated -----------------------------------------------------------------------

SLOW = {"scan": "SELECT count(*), sum(length(pg_sleep(0.001)::text)) FROM pl",
        "index scan": "SELECT count(*), sum(length(pg_sleep(0.001)::text)) FROM pl WHERE v > -1000000",
        "build": "CREATE INDEX slow ON pl (slowly(k))"}


def slow(what, results):
    connection = connect(DATABASE, options=f"{WAYS} {BUILDS}")
    try:
        query(connection, "BEGIN")
        choose(connection, "Index Scan" if what == "index scan" else "Seq Scan")
        query(connection, SLOW[what])
        query(connection, "COMMIT")
        results.put("00000")
    except psycopg2.Error as error:
        results.put(error.pgcode or "57P01")  # the connection is closed


def test_terminated():
    connection = connect(DATABASE)
    workers = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'parallel worker' LIMIT 1"
    leaders = "SELECT leader_pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'parallel worker' LIMIT 1"
    query(connection, "CREATE FUNCTION slowly(int) RETURNS int LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS "
                      "'BEGIN PERFORM pg_sleep(0.001); RETURN $1; END'")
    for kind in SLOW:
        for what, victim, function, state in (
            ("a worker", workers, "pg_terminate_backend", "57P01"),
            ("a leader", leaders, "pg_terminate_backend", "57P01"),
            ("a leader's statement", leaders, "pg_cancel_backend", "57014"),
        ):
            must_come(lambda: not query(connection, workers))  # of the leader before
            results = multiprocessing.Queue()
            process = multiprocessing.Process(target=slow, args=(kind, results))
            process.start()
            must_come(lambda: query(connection, victim))
            time.sleep(0.05)
            query(connection, f"SELECT {function}(({victim}))")
            equal(f"parallel: {what} of a {kind} is ended", results.get(timeout=30), state)
            process.join()
    must_come(lambda: not query(connection, workers))
    # Autovacuum may hold some for a moment.
    holders = "SELECT pid FROM mixedcc.horizon WHERE pid <> pg_backend_pid()"
    wait_until(lambda: not query(connection, holders))
    equal("parallel: no process of a statement that ended holds rows back", query(connection, holders), [])
    own = connect(DATABASE, options=WAYS)
    equal("parallel: workers afterwards", launched(own, SUM), 2)
    equal("parallel: all rows are there", query(own, SUM), [WANTED])
    equal("parallel: workers share an index scan afterwards", query(own, BY_INDEX), [WANTED])
    own.close()
    connection.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_which, test_scans, test_functions, test_builds, test_beside_writers, test_terminated)
