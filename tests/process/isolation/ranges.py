#!/usr/bin/env python3
"""Predicates of SERIALIZABLE scans: what each kind of scan protects, and what not.

One session scans; another one writes and commits. If the write is within what was
scanned, the first one's commit must fail (or the write must wait for it, by the
protocol); if not, both must succeed at once. Each scan runs under every protocol,
before its index has ranges (the first scan makes them) and after, and with ranges of
few rows and of all rows.
"""

import random

import psycopg2

import lib.common as c

# Functions that are not inlined, so that they run SQL, and an operator class that compares by one.
FUNCTIONS = """
CREATE FUNCTION compare_ints(int, int) RETURNS int LANGUAGE sql IMMUTABLE AS
    'SELECT CASE WHEN $1 < $2 THEN -1 WHEN $1 > $2 THEN 1 ELSE 0 END';
CREATE OPERATOR CLASS by_function FOR TYPE int USING btree AS
    OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 compare_ints(int, int);
CREATE FUNCTION halves(int) RETURNS int LANGUAGE sql IMMUTABLE SECURITY DEFINER AS 'SELECT $1 / 2';
"""

SETUP = """
CREATE TABLE t (id int PRIMARY KEY, a int, b text COLLATE "C", d int NOT NULL, n numeric, v int, h int DEFAULT -1, g int) USING mixedcc WITH ({options});
INSERT INTO t SELECT i * 10, i % 7, 'k' || (i % 5), i, i / 2.0, 0, i, i FROM generate_series(1, 200) i;
CREATE INDEX t_ab ON t (a, b, id);
CREATE INDEX t_d_desc ON t (d DESC NULLS LAST);
CREATE INDEX t_n ON t (n);
CREATE INDEX t_lower ON t ((id / 100)) WHERE a <> 6;
CREATE INDEX t_hash ON t USING hash (h);
CREATE INDEX t_g ON t (g by_function);
CREATE INDEX t_halves ON t (halves(id));
INSERT INTO t VALUES (5000, NULL, 'kz', 5000, NULL, 0), (4990, 9, 'kz', 4990, 4990, 0);
CREATE TABLE u (id int PRIMARY KEY, t_id int REFERENCES t (id), w int) USING mixedcc WITH ({options});
INSERT INTO u SELECT i, 1600 + i * 10, 0 FROM generate_series(1, 20) i;
CREATE INDEX u_t ON u (t_id);
CREATE TABLE elsewhere (id int PRIMARY KEY, v int) USING mixedcc WITH ({options});
INSERT INTO elsewhere VALUES (1, 0);
ANALYZE t; ANALYZE u;
"""

# Where there is a primary index, its scan is cheaper than nbtree's.
NBTREE = "SET LOCAL mixedcc.enable_primary_scan = off; "
INDEX = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; "
BITMAP = "SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off; "
SEQ = "SET LOCAL enable_indexscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_indexonlyscan = off; "

INSERT = "INSERT INTO t VALUES ({0}, {1}, '{2}', {3}, {4}, 1)"


def ins(id, a=3, b="q", d=9000, n="9000"):
    return INSERT.format(id, a, b, d, n)


def upd(id):
    return f"UPDATE t SET v = v + 1 WHERE id = {id}"


def delete(id):
    return f"DELETE FROM t WHERE id = {id}"


OTHER_CURSOR = ("DECLARE y CURSOR FOR SELECT id FROM t WHERE id BETWEEN 500 AND 520 ORDER BY id; FETCH ALL FROM y; CLOSE x; CLOSE y")

# name, settings and statements of the scan, writes inside, writes outside. An update is inside only
# if the scan looks at the column that it changes.
CASES = [
    ("equality, present", INDEX + "SELECT v FROM t WHERE id = 50", [upd(50), delete(50)], [upd(60), ins(55)]),
    ("equality, absent", INDEX + "SELECT v FROM t WHERE id = 55", [ins(55)], [ins(56), ins(54), upd(50)]),
    ("BETWEEN", INDEX + "SELECT sum(v) FROM t WHERE id BETWEEN 100 AND 200",
     [upd(100), upd(200), ins(101), delete(150), "UPDATE t SET id = 155 WHERE id = 900", "UPDATE t SET id = 901 WHERE id = 150"],
     [upd(90), upd(210), ins(99), ins(201), "UPDATE t SET id = 905 WHERE id = 910"]),
    ("open bounds", INDEX + "SELECT sum(v) FROM t WHERE id > 100 AND id < 200",
     [upd(110), upd(190), ins(101), ins(199)], [upd(100), upd(200)]),
    ("open end", INDEX + "SELECT sum(v) FROM t WHERE id >= 1900", [ins(999999), upd(1900)], [upd(1890), ins(1899)]),
    ("cross-type bounds", INDEX + "SELECT sum(v) FROM t WHERE id > 100::bigint AND id <= 200::smallint",
     [upd(110), upd(200)], [upd(100), upd(210)]),
    ("contradiction", INDEX + "SELECT sum(v) FROM t WHERE id > 200 AND id < 100", [], [upd(150), ins(155)]),
    ("NULL argument", INDEX + "SELECT sum(v) FROM t WHERE id = NULL::int", [], [upd(150), ins(155)]),
    ("prefix of a multi-column index", INDEX + "SELECT sum(v) FROM t WHERE a = 4",
     [upd(40), ins(55, a=4)], [upd(50), ins(55, a=5), ins(56, a=3)]),
    ("prefix and range", INDEX + "SELECT sum(v) FROM t WHERE a = 4 AND b > 'k2' AND b <= 'k4'",
     [ins(55, a=4, b="k3"), ins(55, a=4, b="k4")], [ins(55, a=4, b="k2"), ins(56, a=4, b="k5"), ins(57, a=5, b="k3")]),
    ("row comparison", INDEX + "SELECT sum(v) FROM t WHERE (a, b) >= (4, 'k3') AND (a, b) < (5, 'k1')",
     [ins(55, a=4, b="k3"), ins(55, a=5, b="k0"), ins(55, a=4, b="z")], [ins(55, a=4, b="k2"), ins(56, a=5, b="k1")]),
    ("IN list", INDEX + "SELECT sum(v) FROM t WHERE id IN (100, 155, 300)",
     [upd(100), ins(155), delete(300)], [upd(200), ins(156)]),
    ("= ANY of a prefix", INDEX + "SELECT sum(v) FROM t WHERE a = ANY (ARRAY[4, 6]) AND b = 'k1'",
     [ins(55, a=6, b="k1"), ins(55, a=4, b="k1")], [ins(55, a=5, b="k1"), ins(56, a=6, b="k2")]),
    ("IS NULL", INDEX + "SELECT sum(v) FROM t WHERE a IS NULL", [upd(5000), ins(55, a="NULL")], [upd(50), ins(55, a=0)]),
    ("IS NOT NULL", INDEX + "SELECT sum(v) FROM t WHERE n IS NOT NULL AND n < 3", [upd(40), ins(55, n="1.5")],
     [upd(5000), ins(55, n="NULL"), ins(56, n="3")]),
    ("numeric, which has no byte order", INDEX + "SELECT sum(v) FROM t WHERE n > 10.0 AND n <= 20",
     [ins(55, n="10.25"), ins(55, n="20.000")], [ins(55, n="10.000"), ins(56, n="20.01")]),
    ("descending index", INDEX + "SELECT sum(v) FROM t WHERE d >= 10 AND d < 20", [ins(55, d=10), ins(55, d=19), upd(150)],
     [ins(55, d=20), ins(56, d=9), upd(90), upd(200)]),
    ("LIMIT", INDEX + "SELECT id, v FROM t WHERE id >= 100 ORDER BY id LIMIT 3",
     [ins(105), upd(120), ins(119)], [upd(130), ins(121), ins(95)]),
    ("LIMIT, backwards", INDEX + "SELECT id, v FROM t WHERE id <= 100 ORDER BY id DESC LIMIT 3",
     [ins(95), upd(80), ins(81)], [upd(70), ins(79), ins(101)]),
    ("min", INDEX + "SELECT min(id) FROM t WHERE id > 95", [ins(96), delete(100)], [ins(101), ins(95), upd(110)]),
    ("max", INDEX + "SELECT max(id) FROM t WHERE id < 95", [ins(94), delete(90)], [ins(89), ins(95), upd(80)]),
    ("max of all", INDEX + "SELECT max(id) FROM t", [ins(5001), delete(5000)], [ins(4999), upd(2000)]),
    ("LIMIT with duplicates", INDEX + "SELECT a FROM t WHERE a >= 2 ORDER BY a LIMIT 1",
     [ins(55, a=2, b="a"), delete(300)], [ins(55, a=3), ins(56, a=1)]),
    ("cursor, partly read", INDEX + "DECLARE x CURSOR FOR SELECT id, v FROM t WHERE id >= 100 ORDER BY id; FETCH 3 FROM x; CLOSE x",
     [ins(105), upd(120)], [upd(130), ins(121)]),
    ("cursor, still open at commit", INDEX + "DECLARE x CURSOR FOR SELECT id, v FROM t WHERE id >= 100 ORDER BY id; FETCH 3 FROM x",
     [ins(105), upd(120)], [upd(130), ins(121)]),
    ("scroll cursor, back and forth", INDEX + "DECLARE x SCROLL CURSOR FOR SELECT id, v FROM t WHERE id BETWEEN 100 AND 200 ORDER BY id; "
     "FETCH 5 FROM x; FETCH BACKWARD 3 FROM x; CLOSE x", [ins(105), upd(120)], [upd(90), upd(210)]),
    ("nested loop", INDEX + "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_memoize = off; "
     "SELECT sum(t.v + u.w) FROM u JOIN t ON t.id = u.t_id WHERE u.id BETWEEN 3 AND 5",
     [upd(1630), upd(1650), "UPDATE u SET w = 1 WHERE id = 4"], [upd(1620), upd(1660), "UPDATE u SET w = 1 WHERE id = 6"]),
    ("merge join", INDEX + "SET LOCAL enable_hashjoin = off; SET LOCAL enable_nestloop = off; "
     "SELECT sum(x.v) FROM t x JOIN t y ON x.id = y.id WHERE x.id BETWEEN 100 AND 140 AND y.id BETWEEN 100 AND 140",
     [upd(100), ins(135)], [upd(90), ins(145)]),
    ("bitmap", BITMAP + "SELECT sum(v) FROM t WHERE id BETWEEN 100 AND 200", [upd(100), ins(105), delete(200)], [upd(90), ins(205)]),
    ("bitmap OR", BITMAP + "SELECT sum(v) FROM t WHERE id BETWEEN 100 AND 120 OR id BETWEEN 300 AND 320",
     [upd(110), ins(305)], [upd(130), ins(205)]),
    ("index-only", INDEX + "SELECT count(*) FROM (SELECT id FROM t WHERE id BETWEEN 100 AND 200) s", [ins(105), delete(200)],
     [delete(90), ins(205)]),
    ("expression and partial index", INDEX + "SELECT sum(v) FROM t WHERE id / 100 = 3 AND a <> 6",
     [upd(310), ins(355), "UPDATE t SET a = 5 WHERE id = 340"], [upd(410), ins(401)]),
    ("partial index: rows outside of it", INDEX + "SELECT sum(v) FROM t WHERE id / 100 = 3 AND a <> 6", [], [ins(356, a=6), upd(340)]),
    ("sequential, no filter", SEQ + "SELECT sum(v) FROM t", [upd(50), ins(55), delete(2000)], []),
    ("sequential, filter on the key", SEQ + "SELECT sum(v) FROM t WHERE id BETWEEN 100 AND 200 AND v < 1000",
     [upd(150), ins(155)], [upd(90), ins(205)]),
    ("sequential, key equal to a constant", SEQ + "SELECT sum(v) FROM t WHERE id = 150", [upd(150)], [upd(90), ins(155)]),
    ("sequential, filter that could fail", SEQ + "SET LOCAL mixedcc.enable_bypass = off; SELECT sum(v) FROM t WHERE id = 150 AND 1000 / (v + 1) > 5", [upd(150), upd(90)], []),
    ("several scans, one transaction", INDEX + "SELECT sum(v) FROM t WHERE id BETWEEN 10 AND 20; SELECT sum(v) FROM t WHERE id BETWEEN 500 AND 520",
     [upd(20), upd(510)], [upd(30), upd(490)]),
    ("savepoint that is rolled back", INDEX + "SAVEPOINT s; SELECT sum(v) FROM t WHERE id BETWEEN 100 AND 200; ROLLBACK TO s",
     [upd(150), ins(155)], [upd(90)]),
    ("foreign key check", "INSERT INTO u VALUES (100, 150, 0)", [delete(150)], [upd(160)]),
    ("foreign key, from the other side", INDEX + "DELETE FROM t WHERE id = 1000", ["INSERT INTO u VALUES (101, 1000, 0)"],
     ["INSERT INTO u VALUES (102, 1010, 0)"]),
    ("ON CONFLICT DO NOTHING that found a row", "INSERT INTO t VALUES (150, 1, 'x', 1, 1, 1) ON CONFLICT DO NOTHING", [delete(150)],
     [upd(160), ins(155)]),
    ("failed unique check", "SAVEPOINT s; DO $$ BEGIN INSERT INTO t VALUES (150, 1, 'x', 1, 1, 1); EXCEPTION WHEN unique_violation THEN NULL; END $$",
     [delete(150)], [ins(155)]),
    ("UPDATE of a range", INDEX + "UPDATE t SET v = v + 1 WHERE id BETWEEN 100 AND 120", [ins(105), upd(110)], [ins(125), upd(90)]),
    ("scan and update of one table", INDEX + "SELECT sum(v) FROM t WHERE id BETWEEN 100 AND 200; UPDATE t SET v = 7 WHERE id BETWEEN 100 AND 200; "
     "INSERT INTO t VALUES (111, 1, 'x', 1, 1, 1)", [upd(110), ins(115)], [upd(90), ins(95)]),
    ("hash index", INDEX + "SELECT sum(v) FROM t WHERE h = 15",
     [upd(150), "INSERT INTO t (id, d, h) VALUES (55, 1, 15)"], [upd(160), "INSERT INTO t (id, d, h) VALUES (55, 1, 16)", ins(56)]),
    ("range_scan", "SELECT count(*) FROM mixedcc.range_scan(NULL::t, 100, 200)", [upd(100), ins(105), delete(200)], [upd(90), ins(205)]),
    ("range_scan, exclusive", "SELECT count(*) FROM mixedcc.range_scan(NULL::t, 100, 200, false, false)", [upd(110), ins(105)],
     [upd(100), upd(200)]),
    ("range_scan, limit", "SELECT count(*) FROM mixedcc.range_scan(NULL::t, 100, 200, max_rows => 3)", [upd(120), ins(105)],
     [upd(130), ins(125)]),
    ("range_scan, descending limit", "SELECT count(*) FROM mixedcc.range_scan(NULL::t, 100, 200, descending => true, max_rows => 3)",
     [upd(180), ins(195)], [upd(170), ins(175), ins(205)]),
    ("array behind an interval, LIMIT: several passes", INDEX + "SET LOCAL random_page_cost = 0; SET LOCAL cpu_tuple_cost = 10; SET LOCAL cpu_index_tuple_cost = 0; "
     "SELECT count(*) FROM (SELECT v FROM t WHERE a >= 2 AND a <= 6 AND b = ANY (ARRAY['k1', 'k3']) AND v + 0 = 0 LIMIT 32) s",
     [ins(55, a=6, b="k1")], [ins(55, a=7, b="k1")]),
    ("array, of which one value covers ranges", INDEX + "SELECT sum(v) FROM t WHERE a = ANY (ARRAY[6, 9])", [upd(4990), upd(60)],
     [upd(50)]),
    ("bitmap OR, of which one part covers ranges", BITMAP + "SELECT sum(v) FROM t WHERE id BETWEEN 305 AND 310 OR id BETWEEN 500 AND 900",
     [upd(310), upd(600)], [upd(320), upd(490)]),
    ("cursor of a savepoint that was released", INDEX + "SAVEPOINT a; DECLARE x CURSOR FOR SELECT id, v FROM t WHERE id BETWEEN 100 AND 200 ORDER BY id; "
     "FETCH 1 FROM x; RELEASE a; SAVEPOINT b; SELECT 1; ROLLBACK TO b; " + OTHER_CURSOR, [upd(100), ins(505)], [upd(110), upd(530)]),
    ("cursor that was read in a savepoint", INDEX + "DECLARE x CURSOR FOR SELECT id, v FROM t WHERE id BETWEEN 100 AND 200 ORDER BY id; SAVEPOINT b; "
     "FETCH 1 FROM x; ROLLBACK TO b; " + OTHER_CURSOR, [upd(100), ins(505)], [upd(110), upd(530)]),
    ("TID behind the end", "SELECT v FROM t WHERE ctid = '(1,1)'",
     ["INSERT INTO t (id, d) SELECT 6000 + i, i FROM generate_series(1, 60) i"], [upd(50)]),
    ("comparisons by a function in SQL", INDEX + "SELECT sum(v) FROM t WHERE g BETWEEN 5 AND 7", [upd(60)], [upd(100)]),
    ("LIMIT, expression by a function in SQL", INDEX + "SELECT v FROM t WHERE halves(id) >= 300 ORDER BY halves(id) LIMIT 2", [upd(600), upd(610)], [upd(630)]),
]

# Those that may scan the primary index, with nbtree in its place.
NBTREE_CASES = [(f"{name}, nbtree", NBTREE + scan, inside, outside) for name, scan, inside, outside in CASES if scan.startswith(INDEX)]

FAILURES = ("40001", "40P01", "55P03")


DATABASE = "mixedcc_ranges"


def run(conn, sql):
    """Returns how many rows the last statement has found or written."""
    with conn.cursor() as cur:
        cur.execute(sql)
        return cur.rowcount


def state(e):
    return getattr(e, "pgcode", None)


def conflict(level, scan, write):
    """Does the write conflict with the scan? Returns how, or None. The transaction that scans
    writes elsewhere: one that has only read commits where its reads were valid."""
    one, two = c.connect(DATABASE), c.connect(DATABASE)
    try:
        run(two, "SET lock_timeout = '150ms'; SET default_transaction_isolation = 'read committed'")
        run(one, f"BEGIN ISOLATION LEVEL {level}")
        run(one, scan)
        try:
            written = run(two, write)
        except psycopg2.Error as e:
            if state(e) not in FAILURES:
                raise
            return "waits"
        if written < 1:
            raise RuntimeError(f"no row is written by {write}")
        try:
            run(one, "UPDATE elsewhere SET v = v + 1 WHERE id = 1; COMMIT")
        except psycopg2.Error as e:
            if state(e) not in FAILURES:
                raise
            return "fails"
        return None
    finally:
        one.close()
        two.close()


def fresh(boss, options, rows):
    run(boss, f"DROP TABLE IF EXISTS u, t, elsewhere CASCADE; SET mixedcc.range_rows = {rows};" + SETUP.format(options=options))


def try_case(boss, options, rows, case, level="SERIALIZABLE", exact=True):
    name, scan, inside, outside = case
    for write in inside:
        fresh(boss, options, rows)
        how = conflict(level, f"SET LOCAL mixedcc.range_rows = {rows}; {scan}", write)
        c.check(f"{options}, {rows} rows a range, {name}: {write}", how is not None, "no conflict")
    for write in outside if exact else ():
        fresh(boss, options, rows)
        how = conflict(level, f"SET LOCAL mixedcc.range_rows = {rows}; {scan}", write)
        c.check(f"{options}, {rows} rows a range, {name}: not {write}", how is None, f"the scan {how}" if how else "")


def occ_small_ranges():
    for case in CASES:
        try_case(boss, "mixedcc.protocol = 'occ'", 10, case)


def the_scans_are_what_they_are_meant_to_be():
    fresh(boss, "mixedcc.protocol = 'occ'", 10)
    for settings, node in ((INDEX, "MixedccScan"), (NBTREE + INDEX, "Index Scan")):
        for condition in ("id = 50", "id BETWEEN 100 AND 200", "id IN (100, 155)"):
            with boss.cursor() as cur:
                cur.execute(f"BEGIN; {settings} EXPLAIN SELECT v FROM t WHERE {condition}")
                lines = cur.fetchall()
            run(boss, "ROLLBACK")
            c.check(f"{condition} is a {node}", node in lines[0][0], str(lines))


def nbtree():
    for case in NBTREE_CASES[::2]:
        try_case(boss, "mixedcc.protocol = 'occ'", 10, case)
    for case in NBTREE_CASES[1::2]:
        try_case(boss, "mixedcc.protocol = '2pl'", 10, case, exact=False)


def occ_one_range():
    for case in CASES[::3]:
        try_case(boss, "mixedcc.protocol = 'occ', mixedcc.partitions = 4", 1000, case)


def two_phase_locking():
    for case in CASES[1::3] + [q for q in CASES if "covers ranges" in q[0]]:
        try_case(boss, "mixedcc.protocol = '2pl'", 10, case)


def partition_locks():
    for case in CASES[2::3]:
        try_case(boss, "mixedcc.protocol = 'partcc', mixedcc.partitions = 2", 10, case, exact=False)


def range_scan_at_other_levels():
    for level in ("READ COMMITTED", "REPEATABLE READ"):
        for case in CASES:
            if case[0].startswith("range_scan"):
                try_case(boss, "mixedcc.protocol = 'occ'", 10, case, level=level)


SLEEP = """CREATE OR REPLACE PROCEDURE spin(n int) LANGUAGE plpgsql AS $$
BEGIN FOR i IN 1..n LOOP UPDATE t SET v = v + 1 WHERE id = 900; COMMIT; END LOOP; END $$"""


def asleep():
    with boss.cursor() as cur:
        cur.execute("SELECT bool_and(asleep) FROM mixedcc.ranges WHERE \"table\" = 't'::regclass")
        return cur.fetchone()[0]


def commits_until_asleep():
    run(boss, "CALL spin(1000)")
    return asleep()


def sleeping_ranges():
    scan = INDEX + "SELECT sum(v) FROM t WHERE id BETWEEN 100 AND 200"
    for write, fails in [(upd(150), True), (ins(155), True), (upd(300), False)]:
        fresh(boss, "mixedcc.protocol = 'occ'", 10)
        run(boss, SLEEP)
        boss.autocommit = True
        run(boss, "SET default_transaction_isolation = 'read committed'")
        run(boss, f"BEGIN ISOLATION LEVEL SERIALIZABLE; {scan}; COMMIT")
        c.check("ranges are awake after a scan", asleep() is False)
        c.check("asleep when no scan has come for some time", c.wait_until(commits_until_asleep, 120))
        how = conflict("SERIALIZABLE", scan, write)
        c.check(f"a scan that wakes ranges up: {write}", (how == "fails") == fails, str(how))


def snapshot_older_than_the_ranges():
    for old, fails in [(True, True), (False, False)]:
        fresh(boss, "mixedcc.protocol = 'occ'", 10)
        one, two = c.connect(DATABASE), c.connect(DATABASE)
        run(one, "BEGIN ISOLATION LEVEL REPEATABLE READ")
        if old:
            run(one, "SELECT v FROM t WHERE id = 990")
        run(two, ins(155))
        run(one, "SELECT * FROM mixedcc.range_scan(NULL::t, 100, 200); UPDATE t SET v = 0 WHERE id = 990")
        try:
            run(one, "COMMIT")
            failed = False
        except psycopg2.Error as e:
            if state(e) != "40001":
                raise
            failed = True
        c.check(f"REPEATABLE READ, range_scan, insert before it, snapshot older: {old}", failed == fails)
        one.close()
        two.close()


def boundaries_follow_writes():
    fresh(boss, "mixedcc.protocol = 'occ'", 10)
    run(boss, SLEEP)
    scan = f"BEGIN ISOLATION LEVEL SERIALIZABLE; {INDEX} SELECT sum(v) FROM t WHERE id BETWEEN 100 AND 200; COMMIT"
    run(boss, scan)
    alone = "SELECT count(*) FROM mixedcc.ranges WHERE index = 't_pkey'::regclass AND lower = '900' AND upper = '910'"
    with boss.cursor() as cur:
        cur.execute(alone)
        c.check("900 shares a range at first", cur.fetchone()[0] == 0)
        run(boss, "CALL spin(6000)")
        for _ in range(130):
            run(boss, scan)
        cur.execute(alone)
        found = cur.fetchone()[0]
        cur.execute("SELECT lower, upper, version FROM mixedcc.ranges WHERE index = 't_pkey'::regclass ORDER BY range")
        c.check("a hot row has a range of its own after some scans", found == 1, str(cur.fetchall()))


STRIPE, SESSIONS, ROUNDS = 100, 6, 20


def outside_of_all(method, options, seed):
    """Transactions that scan a stripe each and write into halves of stripes that none of them
    scans: which fail? None has to."""
    run(boss, "DROP TABLE IF EXISTS s")
    run(boss, f"CREATE TABLE s (id int PRIMARY KEY, v int) USING {method} {options}; INSERT INTO s SELECT i, 0 FROM generate_series(0, {STRIPE * SESSIONS}, 2) i; ANALYZE s")
    rng, failed = random.Random(seed), 0
    sessions = [c.connect(DATABASE) for _ in range(SESSIONS)]
    for one in sessions:
        run(one, "SET mixedcc.range_rows = 25; SET enable_seqscan = off; SET enable_bitmapscan = off; SET lock_timeout = '2s'")
        one.commit()
    for _ in range(ROUNDS):
        alive = list(range(SESSIONS))
        for i in alive:
            run(sessions[i], f"BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT sum(v) FROM s WHERE id BETWEEN {i * STRIPE} AND {i * STRIPE + 49}")
        keys = {i: (rng.randrange(SESSIONS) * STRIPE + 50 + 8 * i + rng.randrange(4) * 2, rng.random() < 0.5) for i in alive}
        writes = [f"UPDATE s SET v = v + 1 WHERE id = {key}" if update else f"DELETE FROM s WHERE id = {key + 1}; INSERT INTO s VALUES ({key + 1}, 0)"
                  for key, update in keys.values()]
        for step in [list(zip(alive, writes)), [(i, "COMMIT") for i in rng.sample(alive, SESSIONS)]]:
            for i, sql in step:
                try:
                    run(sessions[i], sql) if i in alive else None
                except psycopg2.Error as e:
                    if state(e) not in FAILURES:
                        raise
                    failed += 1
                    alive.remove(i)
                    run(sessions[i], "ROLLBACK")
    for one in sessions:
        one.close()
    run(boss, "DROP TABLE s")
    return failed


def precision_beside_heap():
    total, seeds = SESSIONS * ROUNDS, (1, 2, 3)
    heap = [outside_of_all("heap", "", seed) for seed in seeds]
    print(f"   heap's SSI: {heap} of {total} transactions fail, which wrote outside of all that was scanned")
    c.check("heap's SSI fails some of them (else the script shows nothing)", min(heap) > 0, str(heap))
    for options in ("mixedcc.protocol = 'occ'", "mixedcc.protocol = 'occ', mixedcc.partitions = 4", "mixedcc.protocol = '2pl'",
                    "mixedcc.protocol = '2pl', mixedcc.waiting_policy = 'no_wait'"):
        ours = [outside_of_all("mixedcc", f"WITH ({options})", seed) for seed in seeds]
        c.check(f"writes outside of all scans abort nobody, {options}", ours == [0] * len(seeds), str(ours))


if __name__ == "__main__":
    boss = c.make_database(DATABASE)
    run(boss, "SET client_min_messages = warning")
    run(boss, FUNCTIONS)
    c.main(the_scans_are_what_they_are_meant_to_be, occ_small_ranges, nbtree, occ_one_range, two_phase_locking, partition_locks,
           range_scan_at_other_levels, sleeping_ranges, snapshot_older_than_the_ranges, boundaries_follow_writes, precision_beside_heap)
