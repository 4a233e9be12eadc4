#!/usr/bin/python3
"""Native updates of columns of fixed width: at random, against UPDATE on heap; what a caller's function may do in the middle of
one; that none is lost. As native.py it builds tests/native and bench/native; RUST_EXAMPLES: the library of bench/native/rust."""

import os
import random
import threading
import time
import traceback

import psycopg2

import native
from _common import connect, drop_database, equal, fail, main, make_database, query, seconds, value
from native import LEVELS, error, make_examples, run_by

DATABASE = "process_native_updates"

# Columns a and b among others: definition, and what is done to the table when it has rows.
LAYOUTS = {
    "first": ("a int, b bigint", ""),
    "all NOT NULL": ("a int NOT NULL, b bigint NOT NULL, n text NOT NULL DEFAULT 'n'", ""),
    "behind a text": ("n text, a int, b bigint", ""),
    "aligned": ("x smallint, a int, c \"char\", b bigint, y boolean", ""),
    "a dropped column": ("gone text, a int, b bigint", "ALTER TABLE {0} DROP COLUMN gone"),
    "added later": ("n text", "ALTER TABLE {0} ADD COLUMN a int DEFAULT 7, ADD COLUMN b bigint DEFAULT 8"),
    "many": (", ".join(f"x{i} int" for i in range(9)) + ", a int, b bigint", ""),
    "partitioned by a": ("a int, b bigint", ""),
    "indexed": ("a int, b bigint", "CREATE INDEX ON {0} (b)"),
    "checked": ("a int CHECK (a < 1000000), b bigint", ""),
}


def number_tables(connection, name):
    """Twins of a layout, with NULLs: of ours (t), and of heap (h)."""
    columns, after = LAYOUTS[name]
    more = " WITH (mixedcc.partitions = 4, mixedcc.partition_by = 'a')" if name == "partitioned by a" else ""
    for table, using in (("t", "mixedcc" + more), ("h", "heap")):
        query(connection, f"DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (k int PRIMARY KEY, {columns}) USING {using}")
        query(connection, f"INSERT INTO {table} (k) SELECT g FROM generate_series(1, 12) g" if "NOT NULL" not in columns else
              f"INSERT INTO {table} (k, a, b) SELECT g, g, g FROM generate_series(1, 12) g")
        if after:
            query(connection, after.format(table))
        for column in ("a", "b", "n", "x", "y", "c", "x0", "x8"):
            if value(connection, "SELECT count(*) FROM pg_attribute WHERE attrelid = %s::regclass AND attname = %s", (table, column)):
                kind = {"n": "'text ' || k", "y": "k % 2 = 0", "c": "'c'"}.get(column, "k * 3")
                query(connection, f"UPDATE {table} SET {column} = {kind} WHERE k % 4 <> 0")


def number_call(random_, not_null):
    """A call, and the statement that does the same on the other table."""
    k = random_.choice(range(1, 14))
    a, b = (None if random_.random() < 0.15 else random_.randrange(-500, 500) for _ in range(2))
    if not_null and random_.random() < 0.9:
        a, b = a or 0, b or 0
    sums = ("CASE WHEN %s::int IS NULL THEN NULL ELSE coalesce(a, 0) + %s END",
            "CASE WHEN %s::bigint IS NULL THEN NULL ELSE coalesce(b, 0) + %s END")
    return random_.choice([
        (("SELECT probe_change('t', %s, %s, %s)", (k, a, b)),
         (f"UPDATE h SET a = {sums[0]}, b = {sums[1]} WHERE k = %s", (a, a, b, b, k))),
        (("SELECT probe_put('t', %s, %s, %s)", (k, a, b)), ("UPDATE h SET a = %s, b = %s WHERE k = %s", (a, b, k))),
        (("SELECT mixedcc.set(NULL::t, 'a', %s::int, %s)", (a, k)), ("UPDATE h SET a = %s WHERE k = %s", (a, k))),
        (("SELECT mixedcc.set(NULL::t, 'b', %s::bigint, %s)", (b, k)), ("UPDATE h SET b = %s WHERE k = %s", (b, k))),
        (("SELECT mixedcc.add(NULL::t, 'a', 2000000000, %s)", (k,)), ("UPDATE h SET a = a + 2000000000 WHERE k = %s", (k,))),
        (("SELECT mixedcc.add(NULL::t, 'a', %s, %s)", (a, k)), ("UPDATE h SET a = a + %s WHERE k = %s", (a, k))),
        (("SELECT mixedcc.add(NULL::t, 'b', %s, %s)", (b, k)), ("UPDATE h SET b = b + %s WHERE k = %s", (b, k))),
    ])


def outcome(connection, sql, parameters):
    """An error's code; else how many rows were changed."""
    with connection.cursor() as cursor:
        try:
            cursor.execute(sql, parameters)
            return int(cursor.fetchone()[0]) if cursor.description else cursor.rowcount
        except psycopg2.Error as e:
            return e.pgcode


def numbers_differ(ours, plain, random_, name, level):
    """A transaction of random changes on both tables, in a session each; what was different, if anything."""
    for c in (ours, plain):
        query(c, f"BEGIN ISOLATION LEVEL {level}")
    for _ in range(random_.randrange(1, 12)):
        calls = number_call(random_, "NOT NULL" in LAYOUTS[name][0])
        both = []
        for c, call in zip((ours, plain), calls):
            query(c, "SAVEPOINT s")
            both.append(outcome(c, *call))
        if both[0] != both[1]:
            return f"{calls[0]}: got {both[0]}, wanted {both[1]}"
        if isinstance(both[0], str) or random_.random() < 0.1:
            for c in (ours, plain):
                query(c, "ROLLBACK TO s")
    last = random_.choice(["COMMIT", "COMMIT", "ROLLBACK"])
    for c in (ours, plain):
        query(c, last)
    for rows in ("SELECT * FROM {} ORDER BY k", "SELECT k FROM {} WHERE b BETWEEN -100 AND 100 ORDER BY k"):
        query(ours, "SET enable_seqscan = off")
        both = [query(c, rows.format(table)) for c, table in ((ours, "t"), (plain, "h"))]
        if both[0] != both[1]:
            return f"{rows}: got {both[0]}, wanted {both[1]}"
    return None


def test_numbers():
    """Random changes of columns of fixed width, many in a transaction, against UPDATE on heap."""
    # SERIALIZABLE transactions use tables of one kind.
    ours, plain = connect(DATABASE), connect(DATABASE)
    seed = int(os.environ.get("MIXEDCC_SEED", time.time_ns() % 1000000))
    print(f"seed {seed}", flush=True)
    random_ = random.Random(seed)
    end, rounds = time.monotonic() + seconds(12), 0
    while time.monotonic() < end or rounds < len(LAYOUTS):
        name = list(LAYOUTS)[rounds % len(LAYOUTS)]
        rounds += 1
        number_tables(ours, name)
        for _ in range(8):
            level = random_.choice(LEVELS + ("SERIALIZABLE",) * 3)
            different = numbers_differ(ours, plain, random_, name, level)
            if different:
                fail(f"numbers, {name}, {level}, seed {seed}", different)
                return
    equal(f"numbers: {rounds} rounds of random changes", "as on heap", "as on heap")
    query(ours, "DROP TABLE t, h")
    ours.close()
    plain.close()


def test_middle():
    """What a caller's function does between the look at a row and its update."""
    connection = connect(DATABASE)
    done = {
        "another row": ("SELECT probe_change('t', 2, 5, 5)", "SELECT (a, b) = (7, 7) FROM t WHERE k = 2"),
        "a statement on another row": ("UPDATE t SET a = 50 WHERE k = 2", "SELECT a = 50 FROM t WHERE k = 2"),
        "another protocol": ("SELECT mixedcc.set_protocol('t', '2pl')", "SELECT true"),
    }
    for level in LEVELS:
        for name, (sql, check) in done.items():
            number_tables(connection, "first")
            query(connection, "UPDATE t SET a = k, b = k")
            query(connection, f"BEGIN ISOLATION LEVEL {level}; SELECT probe_change('t', 9, 1, 1)")
            equal(f"middle, {level}: {name}", error(connection, "SELECT probe_change('t', 3, 1, 1, %s)", (sql,)), ("no error", [(True,)]))
            query(connection, "COMMIT; SET enable_seqscan = off")
            equal(f"middle, {level}: {name}: both are done", (value(connection, check), query(connection, "SELECT k, b FROM t WHERE a = 4 ORDER BY k")),
                  (True, [(3, 4), (4, 4)]))
            query(connection, "RESET enable_seqscan")
    failing = {
        "an error": ("SELECT 1 / 0", "22012"),
        "an index on a table in use": ("CREATE INDEX ON t (a)", "55006"),
        "another type in a table in use": ("ALTER TABLE t ALTER COLUMN b TYPE int", "55006"),
        "READ ONLY from then on": ("SET LOCAL transaction_read_only = on", "25006"),
    }
    other = connect(DATABASE, options="-c lock_timeout=2s")
    for name, (sql, code) in failing.items():
        number_tables(connection, "first")
        query(connection, "UPDATE t SET a = k, b = k")
        query(connection, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT probe_change('t', 9, 1, 1); SAVEPOINT s")
        equal(f"middle: {name}", error(connection, "SELECT probe_change('t', 3, 1, 1, %s)", (sql,))[0], code)
        query(connection, "ROLLBACK TO s")
        equal(f"middle: {name}: goes on", value(connection, "SELECT probe_change('t', 4, 1, 1)"), True)
        query(other, "BEGIN; UPDATE t SET b = 30 WHERE k = 3; ROLLBACK") # it is not locked
        query(connection, "COMMIT")
        equal(f"middle: {name}: the rows", query(connection, "SELECT k, a, b FROM t WHERE k IN (3, 4, 9) ORDER BY k"), [(3, 3, 3), (4, 5, 5), (9, 10, 10)])
    number_tables(connection, "first")
    query(connection, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT probe_change('t', 9, 1, 1)")
    equal("middle: a row that stays", value(connection, "SELECT probe_change('t', 3, NULL, NULL, 'SELECT 1')"), True)
    # The row was read; another session replaces it; the commit sees that.
    query(other, "UPDATE t SET a = 1 WHERE k = 3")
    equal("middle: a row that stays was read", error(connection, "COMMIT")[0], "40001")
    query(connection, "CREATE TABLE f (k int PRIMARY KEY, a int, b bigint, r int REFERENCES f DEFERRABLE INITIALLY DEFERRED) USING mixedcc;"
                      "INSERT INTO f VALUES (1, 1, 1, 1)")
    query(connection, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT probe_change('f', 1, 1, 1); INSERT INTO f VALUES (3, 1, 1, 9); SELECT probe_change('f', 3, 1, 1)")
    equal("middle: a row that refers to nothing", error(connection, "COMMIT")[0], "23503")
    query(connection, "ROLLBACK; DROP TABLE f")
    connection.close()
    other.close()


def count_up(commits, until, library):
    """A session that adds ones by calls until a time: how many it has committed."""
    connection = connect(DATABASE)
    query(connection, "SET default_transaction_isolation = 'serializable'")
    n = 0
    while time.monotonic() < until:
        n += 1
        code, _ = error(connection, f"SELECT {library}_read10_update10(%s, 60)", (random.randrange(1, 2000000000),))
        if code == "no error":
            commits.append(10)
        elif code not in ("40001", "40P01"):
            commits.append(code)
            return


def test_counters():
    """No update is lost: many sessions add to few rows, while the protocols change."""
    connection = connect(DATABASE)
    for protocol in ("occ", "partcc", "2pl", "all in turn"):
        if protocol != "all in turn":
            run_by(connection, protocol)
        query(connection, "UPDATE item SET value = 0")
        commits, until = [], time.monotonic() + seconds(8) / 4
        sessions = [threading.Thread(target=count_up, args=(commits, until, ("native", "rust")[i % 2])) for i in range(4)]
        for s in sessions:
            s.start()
        while protocol == "all in turn" and time.monotonic() < until:
            for next_one in ("2pl", "occ", "partcc"):
                query(connection, "SELECT mixedcc.set_protocol('item', %s)", (next_one,))
                time.sleep(0.1)
        for s in sessions:
            s.join()
        strange = [c for c in commits if c != 10]
        equal(f"counters, {protocol}: {len(commits)} commits, no other errors", strange, [])
        equal(f"counters, {protocol}: their sum", value(connection, "SELECT sum(value) FROM item"), sum(c for c in commits if c == 10))
        if len(commits) < 20:
            fail(f"counters, {protocol}: too few commits", len(commits))
    run_by(connection, "occ")
    connection.close()


def test_all():
    connection = make_database(DATABASE)
    native.make_probes(connection, native.build("tests/native", "native_probe"))
    make_examples(connection)
    connection.close()
    # Each in its turn, and an exception in one is only its own.
    for test in (test_numbers, test_middle, test_counters):
        try:
            test()
        except Exception:
            fail(test.__name__, traceback.format_exc())
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_all)
