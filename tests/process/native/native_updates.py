#!/usr/bin/python3
"""Native updates of columns of fixed width: at random, against UPDATE on heap; what a caller's
function may do in the middle of one; that none is lost. As native.py it builds
tests/process/native/probe and bench/native; RUST_EXAMPLES: the library of bench/native/rust."""

import os
import random
import threading
import time
import traceback

import psycopg2

from process.native import native
from lib import protocols
from lib.common import (check, connect, drop_database, equal, fail, main, make_database, must_come, ok, query, seconds,
                        set_protocol, value)
from process.native.native import LEVELS, error, make_examples, run_by

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
    "generated": ("a int, b bigint, g bigint GENERATED ALWAYS AS (b * 2) STORED", ""),
    "indexed expression": ("a int, b bigint", "CREATE INDEX ON {0} ((b + 1))"),
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
    ] + 2 * [
        # Many calls at one place: most by a look.
        (("SELECT count(*) FROM generate_series(%s, %s) g WHERE mixedcc.add(NULL::t, 'b', %s, g)", (k, k + 9, b)),
         ("UPDATE h SET b = b + %s WHERE k BETWEEN %s AND %s", (b, k, k + 9))),
        (("SELECT count(*) FROM generate_series(%s, %s) g WHERE mixedcc.set(NULL::t, 'a', %s::int, g)", (k, k + 9, a)),
         ("UPDATE h SET a = %s WHERE k BETWEEN %s AND %s", (a, k, k + 9))),
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
    """A transaction of random changes on both tables, in a session each; what was different, if
    anything. Half of the transactions have no savepoints, as their rollback forgets that the table
    is locked, and the next call is none by a look; then an error ends them."""
    savepoints = random_.random() < 0.5
    for c in (ours, plain):
        query(c, f"BEGIN ISOLATION LEVEL {level}")
    for _ in range(random_.randrange(1, 12)):
        calls = number_call(random_, "NOT NULL" in LAYOUTS[name][0])
        both = []
        for c, call in zip((ours, plain), calls):
            if savepoints:
                query(c, "SAVEPOINT s")
            both.append(outcome(c, *call))
        if both[0] != both[1]:
            return f"{calls[0]}: got {both[0]}, wanted {both[1]}"
        if isinstance(both[0], str) and not savepoints:
            break
        if savepoints and (isinstance(both[0], str) or random_.random() < 0.1):
            for c in (ours, plain):
                query(c, "ROLLBACK TO s")
        different = rows_differ(ours, plain, random_.randrange(1, 13)) if random_.random() < 0.5 else None
        if different:
            return f"after {calls[0]}: {different}"
    last = random_.choice(["COMMIT", "COMMIT", "ROLLBACK"])
    for c in (ours, plain):
        query(c, last)
    return rows_differ(ours, plain)


def rows_differ(ours, plain, k=None):
    """Rows that are not the same, if any (not ORDER BY k where an index of b is meant: that is
    planned by the key); with a key, that row only (by a look, so that no index gets ranges)."""
    query(ours, "SET enable_seqscan = off")
    ways = ("SELECT * FROM {} ORDER BY k", "SELECT array_agg(k ORDER BY k) FROM {} WHERE b BETWEEN -100 AND 100") if k is None else (f"SELECT * FROM {{}} WHERE k = {k}",)
    for rows in ways:
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
                fail("numbers: random changes give what UPDATE gives on heap", f"{name}, {level}, seed {seed}\n{different}")
                return
    ok("numbers: random changes give what UPDATE gives on heap")
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
    test_written_in_the_middle(connection)
    test_beside_deferred(connection)
    query(connection, "CREATE TABLE f (k int PRIMARY KEY, a int, b bigint, r int REFERENCES f DEFERRABLE INITIALLY DEFERRED) USING mixedcc;"
                      "INSERT INTO f VALUES (1, 1, 1, 1)")
    query(connection, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT probe_change('f', 1, 1, 1); INSERT INTO f VALUES (3, 1, 1, 9); SELECT probe_change('f', 3, 1, 1)")
    equal("middle: a row that refers to nothing", error(connection, "COMMIT")[0], "23503")
    query(connection, "ROLLBACK; DROP TABLE f")
    connection.close()
    other.close()


def test_written_in_the_middle(connection):
    """A caller's function that writes the row it was asked to change: an error, as of UPDATE,
    directly and by statements, unless it is undone or the row is to stay."""
    writes = {
        "UPDATE": "UPDATE t SET a = 50 WHERE k = 3",
        "two of them": "UPDATE t SET a = 50 WHERE k = 3; UPDATE t SET a = 60 WHERE k = 3",
        "DELETE": "DELETE FROM t WHERE k = 3",
        "another row with its key": "DELETE FROM t WHERE k = 3; INSERT INTO t (k, a, b) VALUES (3, 50, 50)",
        "another key": "UPDATE t SET k = 100 WHERE k = 3",
        "a native call": "SELECT mixedcc.set(NULL::t, 'a', 50, 3)",
        "the same call": "SELECT probe_change('t', 3, 1, 1)",
        "a savepoint that stays": "DO $$ BEGIN BEGIN UPDATE t SET a = 50 WHERE k = 3; EXCEPTION WHEN OTHERS THEN NULL; END; END $$",
    }
    undone = "DO $$ BEGIN UPDATE t SET a = 50 WHERE k = 3; RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END $$"
    for layout in ("first", "generated"):
        for level in LEVELS:
            for earlier in ("", "; UPDATE t SET a = 30 WHERE k = 3"):
                name = f"written in the middle, {layout}, {level}{', again' if earlier else ''}"
                number_tables(connection, layout)
                query(connection, "UPDATE t SET a = k, b = k")
                begin = f"BEGIN ISOLATION LEVEL {level}; SELECT probe_change('t', 9, 1, 1){earlier}; SAVEPOINT s"
                for what, sql in writes.items():
                    query(connection, begin)
                    equal(f"{name}: {what}", error(connection, "SELECT probe_change('t', 3, 1, 1, %s)", (sql,))[0], "27000")
                    query(connection, "ROLLBACK")
                query(connection, begin)
                equal(f"{name}: undone", error(connection, "SELECT probe_change('t', 3, 1, 1, %s)", (undone,)), ("no error", [(True,)]))
                equal(f"{name}: the row stays", error(connection, "SELECT probe_change('t', 4, NULL, NULL, 'UPDATE t SET a = 40 WHERE k = 4')"), ("no error", [(True,)]))
                query(connection, "COMMIT")
                equal(f"{name}: the rows", query(connection, "SELECT k, a, b FROM t WHERE k IN (3, 4, 9) ORDER BY k"),
                      [(3, 31 if earlier else 4, 4), (4, 40, 4), (9, 10, 10)])


def test_beside_deferred(connection):
    """A caller's function whose statements are deferred, and additions that wait for the call."""
    number_tables(connection, "first")
    query(connection, "UPDATE t SET a = k, b = k; SET mixedcc.defer_additions = on")
    add = "UPDATE t SET b = b + 10 WHERE k = {}"
    for before in ("SELECT 1", add.format(3), add.format(4), "UPDATE t SET b = 3 WHERE k = 3"):
        query(connection, f"BEGIN ISOLATION LEVEL SERIALIZABLE; {before}; SAVEPOINT s")
        name = f"beside a deferred addition, {before}"
        equal(f"{name}: of the same row", error(connection, "SELECT probe_change('t', 3, 1, 1, %s)", (add.format(3),))[0], "27000")
        query(connection, "ROLLBACK TO s")
        undone = f"DO $$ BEGIN {add.format(3)}; RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END $$"
        equal(f"{name}: one that is undone", error(connection, "SELECT probe_change('t', 3, 1, 1, %s)", (undone,)), ("no error", [(True,)]))
        equal(f"{name}: of another row", error(connection, "SELECT probe_change('t', 3, 1, 1, %s)", (add.format(9),)), ("no error", [(True,)]))
        equal(f"{name}: a row that stays", error(connection, "SELECT probe_change('t', 4, NULL, NULL, %s)", (add.format(4),)), ("no error", [(True,)]))
        query(connection, "COMMIT")
        more = {add.format(3): (10, 0), add.format(4): (0, 10)}.get(before, (0, 0))
        equal(f"{name}: the rows", query(connection, "SELECT k, a, b FROM t WHERE k IN (3, 4, 9) ORDER BY k"),
              [(3, 5, 5 + more[0]), (4, 4, 14 + more[1]), (9, 9, 19)])
        query(connection, "UPDATE t SET a = k, b = k")
    query(connection, "RESET mixedcc.defer_additions")


def look_tables(connection, columns="a int, b bigint", more=""):
    """A table of 40 rows with k = a = b, without NULLs, of which this session knows that it may
    update them by a look."""
    query(connection, "DROP TABLE IF EXISTS t CASCADE")
    query(connection, f"CREATE TABLE t (k int PRIMARY KEY, {columns}) USING mixedcc")
    query(connection, "INSERT INTO t (k, a, b) SELECT g, g, g FROM generate_series(1, 40) g")
    query(connection, more or "SELECT 1")
    query(connection, "BEGIN ISOLATION LEVEL SERIALIZABLE")
    put(connection, "a", 1, 40)
    put(connection, "a", 1, 39)
    query(connection, "COMMIT")


def put(connection, column, new, k):
    """One call of `set`: the error, or true."""
    return outcome(connection, f"SELECT mixedcc.set(NULL::t, '{column}', %s::{'int' if column == 'a' else 'bigint'}, %s)", (new, k))


def test_looks():
    """Updates by a look: SERIALIZABLE, the table open for writing, the row not written before in
    the transaction, no NULLs."""
    connection, other = connect(DATABASE), connect(DATABASE, options="-c lock_timeout=2s")
    for c in (connection, other):
        query(c, "SET default_transaction_isolation = 'serializable'; SET enable_seqscan = off")

    look_tables(connection, more="CREATE INDEX t_b ON t (b)")
    query(connection, "BEGIN")
    for k in range(1, 9):
        put(connection, "a", 5, k)
        put(connection, "b", 1000 + k, k + 10)
    # Not by an order of k, which is planned by the key (from PostgreSQL 16 on in aggregates, too).
    by_b = "SELECT array_agg(k ORDER BY k + 0) FROM t WHERE b > 1000"
    plan = str(query(connection, f"EXPLAIN (COSTS off) {by_b}"))
    in_between = value(connection, by_b)
    query(connection, "COMMIT")
    check("looks: it is read by the index", "t_b" in plan, plan)
    equal("looks: an indexed column, its own transaction", in_between, [k + 10 for k in range(1, 9)])
    equal("looks: an indexed column, afterwards", value(connection, by_b), [k + 10 for k in range(1, 9)])
    look_tables(connection, more="CREATE INDEX t_b ON t (b)")
    equal("looks: an indexed column, in one statement", value(connection,
          "SELECT count(*) FROM generate_series(1, 30) g WHERE mixedcc.add(NULL::t, 'b', 5000, g)"), 30)
    equal("looks: an indexed column, found by it", value(connection, by_b), list(range(1, 31)))

    look_tables(connection)
    query(connection, "BEGIN")
    seen = []
    for k in range(1, 9):
        put(connection, "a", 100 + k, k)
        seen.append((value(connection, f"SELECT a FROM t WHERE k = {k}"), put(connection, "a", 200 + k, k), value(connection, f"SELECT a FROM t WHERE k = {k}")))
    query(connection, "COMMIT")
    equal("looks: a SELECT between two calls", seen, [(100 + k, 1, 200 + k) for k in range(1, 9)])
    equal("looks: rows afterwards", query(connection, "SELECT a FROM t WHERE k < 9 ORDER BY k"), [(200 + k,) for k in range(1, 9)])

    query(connection, "DROP TABLE IF EXISTS p CASCADE; CREATE TABLE p (k int PRIMARY KEY) USING mixedcc; INSERT INTO p SELECT generate_series(1, 40)")
    look_tables(connection, "a int REFERENCES p, b bigint")
    query(connection, "BEGIN")
    put(connection, "b", 5, 3)
    equal("looks: a foreign key's column", (put(connection, "a", 7, 4), put(connection, "a", 99, 5)), (1, "23503"))
    query(connection, "ROLLBACK")
    equal("looks: a foreign key's column, in one statement",
          error(connection, "SELECT count(*) FROM generate_series(1, 30) g WHERE mixedcc.set(NULL::t, 'a', 100 + g, g)")[0], "23503")

    for name, columns, call, code in (("CHECK", "a int CHECK (a < 1000), b bigint", ("a", 1000), "23514"), ("NOT NULL", "a int NOT NULL, b bigint", ("a", None), "23502")):
        look_tables(connection, columns)
        query(connection, "BEGIN")
        equal(f"looks: {name}", (put(connection, "a", 7, 4), put(connection, "b", 7, 5), put(connection, *call, 6)), (1, 1, code))
        query(connection, "ROLLBACK")
    look_tables(connection, "a int, b bigint, g bigint GENERATED ALWAYS AS (b * 2) STORED")
    query(connection, "BEGIN")
    for k in range(1, 9):
        put(connection, "b", 100 + k, k)
    query(connection, "COMMIT")
    equal("looks: a generated column", query(connection, "SELECT g FROM t WHERE k < 9 ORDER BY k"), [(200 + 2 * k,) for k in range(1, 9)])

    for name, sql, column in (("a column that goes", "ALTER TABLE t DROP COLUMN x", "b"), ("a column that comes", "ALTER TABLE t ADD COLUMN y int DEFAULT 3", "b"),
                              ("another type", "ALTER TABLE t ALTER COLUMN a TYPE bigint", "b"), ("an index that comes", "CREATE INDEX ON t (b)", "b"),
                              ("a CHECK that comes", "ALTER TABLE t ADD CHECK (b < 10000)", "b")):
        look_tables(connection, "x int DEFAULT 1, a int, b bigint")
        query(other, sql)
        query(connection, "BEGIN")
        for k in range(1, 9):
            put(connection, column, 2000 + k, k)
        last = put(connection, column, 20000, 9)
        query(connection, "ROLLBACK" if isinstance(last, str) else "COMMIT")
        equal(f"looks: {name}", last, "23514" if "CHECK" in name else 1)
        equal(f"looks: {name}: the rows", value(connection, "SELECT array_agg((k, b) ORDER BY k)::text FROM t WHERE b > 2000"),
              None if "CHECK" in name else "{" + ",".join(f'"({k},{b})"' for k, b in [(k, 2000 + k) for k in range(1, 9)] + [(9, 20000)]) + "}")

    for protocol in protocols.ALL:
        look_tables(connection)
        set_protocol(connection, "t", protocol)
        query(connection, "BEGIN")
        value(connection, "SELECT a FROM t WHERE k = 1") # fixes the rows that are read, but for 2pl
        put(connection, "a", 5, 2)
        code = error(other, "UPDATE t SET b = 70 WHERE k = 7")[0]
        got = put(connection, "b", 80, 7)
        end = error(connection, "COMMIT")[0]
        query(connection, "ROLLBACK")
        b = value(connection, "SELECT b FROM t WHERE k = 7")
        # The other session's row was not read before: only a lock of the partition is in its way.
        met = "55P03" if protocols.has(protocol, "locks_partitions") else "no error"
        equal(f"looks, {protocol}: an update by another session before the call", (code, got, end, b), (met, 1, "no error", 80))
        query(connection, "BEGIN")
        put(connection, "a", 5, 2)
        got = []
        call = threading.Thread(target=lambda: got.append(outcome(connection, "SELECT probe_change('t', 8, 1, 1, 'SELECT pg_sleep(0.5)')", ())))
        call.start()
        sleeps = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'"
        must_come(lambda: value(other, sleeps, (connection.info.backend_pid,)) == 1)
        code = error(other, "UPDATE t SET b = 70 WHERE k = 8")[0]
        call.join()
        end = error(connection, "COMMIT")[0]
        query(connection, "ROLLBACK")
        b = value(connection, "SELECT b FROM t WHERE k = 8")
        check(f"looks, {protocol}: an update by another session in the middle of a call",
              ((got, end) == ([1], "no error")) + (code == "no error") == 1 and b == (70 if code == "no error" else 9), (code, got, end, b))

    # Precision: a reader of keys below 4 is not failed by a write of key 30, if the write tells
    # its key.
    look_tables(connection)
    failed = 0
    for i in range(10):
        query(other, "BEGIN")
        query(other, "SELECT * FROM t WHERE k BETWEEN 1 AND 3")
        query(connection, "BEGIN")
        put(connection, "a", i, 29)
        put(connection, "a", i, 30)
        query(connection, "COMMIT")
        failed += error(other, "UPDATE t SET b = b + 1 WHERE k = 2; COMMIT")[0] != "no error"
        query(other, "ROLLBACK")
    equal("looks: readers of other keys that failed", failed, 0)
    query(connection, "DROP TABLE t, p")
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
    for protocol in (*protocols.ALL, "all in turn"):
        if protocol != "all in turn":
            run_by(connection, protocol)
        query(connection, "UPDATE item SET value = 0")
        commits, until = [], time.monotonic() + seconds(8) / 4
        sessions = [threading.Thread(target=count_up, args=(commits, until, ("native", "rust")[i % 2])) for i in range(4)]
        for s in sessions:
            s.start()
        while protocol == "all in turn" and time.monotonic() < until:
            for next_one in protocols.ALL:
                query(connection, "SELECT mixedcc.set_protocol('item', %s)", (next_one,))
                time.sleep(0.1)
        for s in sessions:
            s.join()
        strange = [c for c in commits if c != 10]
        equal(f"counters, {protocol}: no other errors", strange, [])
        equal(f"counters, {protocol}: their sum", value(connection, "SELECT sum(value) FROM item"), sum(c for c in commits if c == 10))
        check(f"counters, {protocol}: sessions commit", len(commits) >= 20, len(commits))
    run_by(connection, "occ")
    connection.close()


def test_all():
    connection = make_database(DATABASE)
    native.make_probes(connection, native.build("tests/process/native/probe", "native_probe"))
    make_examples(connection)
    connection.close()
    # Each in its turn, and an exception in one is only its own.
    for test in (test_looks, test_numbers, test_middle, test_counters):
        try:
            test()
        except Exception:
            fail(test.__name__, traceback.format_exc())
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_all)
