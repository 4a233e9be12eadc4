#!/usr/bin/python3
"""The executor bypass, the custom scan, and PostgreSQL's own nodes: the same random schemas and
statements give the same rows, tags, errors and tables at every isolation level; waits for others'
writes end alike; errors and cancels leave nothing; memory does not grow.

bypass.py [SEED]: one round of the random test."""

import itertools
import os
import random
import sys
import threading
import time

import psycopg2

from lib import protocols
from lib.tables import LEVELS, NAMES, OFF, ON, RIGHTS, SCAN, TYPES, WAYS, Schema
from lib.common import check, connect, drop_database, equal, fail, main, make_database, must_come, ok, query, seconds, value
from lib.wire import Client

DATABASE = "mixedcc_bypass"
def make(boss, r):
    schema = Schema(r)
    for name in WAYS:
        query(boss, f"DROP SCHEMA IF EXISTS schema_{name} CASCADE")
        query(boss, f"CREATE SCHEMA schema_{name}; GRANT ALL ON SCHEMA schema_{name} TO bypass_user, bypass_group; "
                    f"SET search_path = schema_{name}")
        query(boss, "CREATE TABLE p (id int PRIMARY KEY, n int DEFAULT 0) USING mixedcc; INSERT INTO p SELECT generate_series(-1, 4)")
        for sql in schema.setup:
            query(boss, sql)
    return schema


def by_all(clients, action):
    """The same by each client: what each gave, by its name."""
    return {name: action(client) for name, client in clients.items()}


def differ(given):
    """What the clients gave, if it is not the same; else None."""
    if all(g == given[OFF] for g in given.values()):
        return None
    return "\n".join(f"{NAMES[name]} {g}" for name, g in given.items())


def clean(said):
    """Names of schemas differ, and the order of several rows is free, and with it the order of
    triggers' notices."""
    for name in (ON, SCAN):
        said = [tuple(None if part is None else part.replace(f"schema_{name}", f"schema_{OFF}") for part in m) for m in said]
    rows = iter(sorted((m for m in said if m[0] == "row"), key=str))
    said = [next(rows) if m[0] == "row" else m for m in said]
    runs = [(kind, list(run)) for kind, run in itertools.groupby(said, key=lambda m: m[0])]
    return [m for kind, run in runs for m in (sorted(run, key=str) if kind == "notice" else run)]


def calls_of(make_it, calls):
    """What makes a statement and calls it, and what calls it again."""
    return (lambda c: [m for s in (make_it, *calls) for m in c.simple(s)]), (lambda c: [m for s in calls for m in c.simple(s)])


def one_statement(r, schema, number):
    """Something to do with a client: its text, a function of the client, and one that does it again
    (or None)."""
    used = []

    def parameter(column):
        if r.random() < 0.3:
            return schema.literal(column)
        used.append(column)
        return f"${len(used)}::{column[1]}" if r.random() < 0.5 else f"CAST(${len(used)} AS {column[1]})"

    way = r.choice(("simple", "prepared", "prepared", "execute", "plpgsql", "plpgsql", "exception"))
    if way == "simple":
        sql = schema.statement(schema.literal)
        return way + ": " + sql, lambda c: c.simple(sql), None
    sql = schema.statement(parameter)
    runs = [[None if r.random() < 0.05 else TYPES[c[1]](r) for c in used] for _ in range(r.randint(1, 8))]
    name = f"s{number}"
    if way == "prepared":
        limits = r.choice(((0,), (0,), (1, 1), (1, 0), (1, 1, 1)))
        portal = r.choice(("", "", "named"))
        def again(c):
            return [m for run in runs for m in c.execute(name, run, limits, portal)]
        return f"{way} {limits}: {sql} {runs}", lambda c: c.prepare(name, sql) or again(c), again
    quoted = [", ".join("NULL" if v is None else f"'{v}'" for v in run) for run in runs]
    if way == "execute":
        calls = [f"EXECUTE {name}" + (f"({q})" if q else "") for q in quoted]
        return f"{way}: {sql} {calls}", *calls_of(f"PREPARE {name} AS {sql}", calls)
    types = [c[1] for c in used]
    body = "GET DIAGNOSTICS n = ROW_COUNT; RETURN coalesce(x::text, 'nothing') || n::text || FOUND::text;"
    into = sql if sql.startswith("SELECT") or "RETURNING" in sql else ""
    stmt = sql.replace(" FROM ", " INTO x FROM ", 1) if sql.startswith("SELECT") else sql + (" INTO x" if into else "")
    if way == "exception":
        body = f"FOR i IN 1..2 LOOP BEGIN {stmt}; EXCEPTION WHEN unique_violation OR check_violation OR not_null_violation " \
               f"OR division_by_zero OR foreign_key_violation THEN RAISE NOTICE '% %', SQLSTATE, SQLERRM; END; END LOOP; {body}"
    else:
        body = f"{stmt}; {body}"
    make_it = f"CREATE FUNCTION f{number}({', '.join(types)}) RETURNS text LANGUAGE plpgsql SET search_path FROM CURRENT AS " \
              f"$f$ DECLARE x record; n bigint; BEGIN {body} END $f$"
    calls = [f"SELECT f{number}({q})" for q in quoted]
    return f"{way}: {make_it} {calls}", *calls_of(make_it, calls)


def round_of(seed):
    r = random.Random(seed)
    boss = connect(DATABASE)
    schema = make(boss, r)
    # Tables are small: else most plans would read and sort all of them.
    plans = r.choice(("", "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_sort=off"))
    clients = {name: Client(DATABASE, options=f"-c search_path=schema_{name} {way} {plans} -c client_min_messages=notice")
               for name, way in WAYS.items()}
    old = []  # statements that can be called again

    def simple(sql):
        return by_all(clients, lambda c: clean(c.simple(sql)))

    def same(what, given):
        found = differ(given)
        leaks = [m for m in given[ON] if m[0] == "notice" and "leak" in m[2]]
        if found or leaks:
            fail("random statements give the same with and without the bypass", f"seed {seed}\n{schema.setup}\n{what}\n{found or leaks}")
        return not (found or leaks)

    good = True
    for number in range(60):
        begin = r.random() < 0.4
        if begin:
            simple(f"BEGIN ISOLATION LEVEL {r.choice(LEVELS) + r.choice(('', '', '', ' READ ONLY'))}")
        role = r.random() < 0.2 and not begin
        if role:
            simple("SET ROLE bypass_user")
        if r.random() < 0.05 and not begin:
            text = r.choice(("ANALYZE t", "CREATE INDEX ON t (c0)", "ALTER TABLE t ALTER c0 SET STATISTICS 10", "VACUUM t",
                             "REINDEX TABLE t", "ALTER TABLE t ADD COLUMN IF NOT EXISTS more int DEFAULT 3"))
            good = same(text, simple(text)) and good
        if r.random() < 0.05 and not begin:
            query(boss, r.choice(RIGHTS))
        for step in range(r.randint(1, 5) if begin else 1):
            point = begin and r.random() < 0.3
            if point:
                simple("SAVEPOINT a")
            text, action, again = one_statement(r, schema, number * 10 + step)
            if old and r.random() < 0.25:
                text, action = r.choice(old)
            elif again:
                old.append((f"again: {text}", again))
            good = same(text, by_all(clients, lambda c: clean(action(c)))) and good
            if point:
                simple(r.choice(("ROLLBACK TO a", "RELEASE a")))
        if begin:
            end = r.choice(("COMMIT", "COMMIT", "ROLLBACK"))
            good = same(end, simple(end)) and good
        if role:
            simple("RESET ROLE")
        good = same(text, simple("SELECT * FROM t ORDER BY t::text COLLATE \"C\"")) and good
        if not good:
            break
    for client in clients.values():
        client.close()
    query(boss, "; ".join(sql for sql in RIGHTS if sql.startswith("GRANT")))
    boss.close()
    return good


def same_as_the_executor():
    seed = int(os.environ.get("MIXEDCC_SEED", "1"))
    end = time.monotonic() + seconds(30, long=90)
    rounds = 0
    boss = connect(DATABASE)
    query(boss, "SELECT mixedcc.reset_bypass()")
    while time.monotonic() < end or rounds < 12:  # enough of each kind on a slow machine too
        if not round_of(seed + rounds):
            return
        rounds += 1
    taken = dict(query(boss, "SELECT statement, statements FROM mixedcc.bypass WHERE statement IS NOT NULL"))
    check("random statements give the same with and without the bypass", all(n > 20 for n in taken.values()),
          f"too few took it: {taken}")
    print(f"  {rounds} schemas, {taken}")


FIRST = {
    "changes another column": "UPDATE t SET w = w + 10 WHERE id = 1",
    "changes it so that the condition fails": "UPDATE t SET v = 100 WHERE id = 1",
    "changes the key": "UPDATE t SET id = 7 WHERE id = 1",
    "changes the key and back": "UPDATE t SET id = 7 WHERE id = 1; UPDATE t SET id = 1 WHERE id = 7",
    "deletes it": "DELETE FROM t WHERE id = 1",
    "deletes it and inserts another": "DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (1, 50, 50)",
    "does nothing": "SELECT 1",
    "inserts the other": "INSERT INTO t VALUES (3, 9, 9)",
}
CHILD = "INSERT INTO child VALUES ($1) RETURNING *"  # its foreign key's check takes the bypass
SECOND = ("UPDATE t SET v = v + 1 WHERE id = $1 RETURNING id, v, w", "UPDATE t SET v = v + w WHERE id = $1 AND v < 50 RETURNING v",
          "DELETE FROM t WHERE id = $1 RETURNING *", "DELETE FROM t WHERE id = $1 AND v < 50 RETURNING *",
          "INSERT INTO t VALUES (3, $1, 1) RETURNING *", "SELECT * FROM t WHERE id = $1",
          "SELECT v + w AS n, * FROM t WHERE id = $1 FOR UPDATE", "SELECT * FROM t WHERE id = $1 AND v < 50 FOR SHARE",
          "SELECT v FROM t WHERE id = $1 FOR KEY SHARE", "SELECT v FROM t WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED",
          "SELECT * FROM t WHERE id >= $1 ORDER BY id LIMIT 1", "SELECT * FROM t WHERE id >= $1 AND v < 50 ORDER BY id LIMIT 1 FOR UPDATE",
          "SELECT sum(v) FROM (SELECT v FROM t WHERE id <= $1 ORDER BY id DESC LIMIT 2) AS s",
          "SELECT sum(v) FROM (SELECT v FROM t WHERE id >= $1 ORDER BY id FOR UPDATE) AS s",
          "UPDATE t SET v = v + 1 WHERE id <= $1 AND v < 50 RETURNING *", "DELETE FROM t WHERE id >= $1 AND v < 50 RETURNING *",
          "INSERT INTO t VALUES (4, $1, 1), (3, $1, 1) RETURNING *",
          CHILD)


def meeting(boss, way, protocol, level, first, end, second):
    """What `second` gives while `first` is not committed, and the table afterwards."""
    query(boss, "DROP TABLE IF EXISTS child, late, t")
    query(boss, "CREATE TABLE t (id int PRIMARY KEY, v int, w int) USING mixedcc "
                f"WITH (mixedcc.protocol = '{protocol}'); INSERT INTO t VALUES (1, 1, 1), (2, 2, 2)")
    if second == CHILD:
        query(boss, "CREATE TABLE child (id int REFERENCES t) USING mixedcc")
    one = Client(DATABASE)
    two = Client(DATABASE, options=f"{WAYS[way]} -c enable_seqscan=off -c enable_bitmapscan=off -c lock_timeout=20s")
    two.prepare("s", second)
    two.simple(f"BEGIN ISOLATION LEVEL {level}")
    if not (protocols.has(protocol, "locks_partitions") and level == "SERIALIZABLE"):
        two.simple("SELECT count(*) FROM t WHERE id = 2")  # would lock the partition
    one.simple("BEGIN")
    for sql in FIRST[first].split("; "):
        one.simple(sql)
    said = []
    worker = threading.Thread(target=lambda: said.extend(two.execute("s", (1,))))
    worker.start()
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    must_come(lambda: not worker.is_alive() or value(boss, waits) > 0)
    waited = worker.is_alive()
    one.simple(end)
    worker.join()
    said += two.simple("COMMIT")
    one.close()
    two.close()
    return waited, said, query(boss, "SELECT * FROM t ORDER BY 1")


def same_when_others_write():
    boss = connect(DATABASE)
    query(boss, "SET search_path = public")
    r = random.Random(5)
    cases = [(protocol, level, first, end, second) for protocol in protocols.ALL for level in LEVELS
             for first in FIRST for end in ("COMMIT", "ROLLBACK") for second in SECOND]
    some = r.sample(cases, int(os.environ.get("MIXEDCC_MEETINGS", "60")))
    # Where the newest version is looked at again (EvalPlanQual): all statements.
    firsts = ("changes another column", "changes it so that the condition fails", "changes the key and back")
    some += [(r.choice(protocols.without("locks_partitions")), "READ COMMITTED", first, "COMMIT", second) for first in firsts for second in SECOND]
    for case in some:
        found = differ({way: meeting(boss, way, *case) for way in WAYS})
        if found:
            fail(" ".join(case), found)
            return
    ok("statements that meet others' writes end alike")


def memory(connection):
    return value(connection, "SELECT sum(total_bytes)::bigint FROM pg_backend_memory_contexts")


def memory_does_not_grow():
    boss = connect(DATABASE)
    query(boss, "DROP TABLE IF EXISTS child, late, t")
    query(boss, "CREATE TABLE t (id int PRIMARY KEY, v int CHECK (v < 1000000000)) USING mixedcc; INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i; "
                "CREATE TABLE child (id int REFERENCES t, v int CHECK (v < 10)) USING mixedcc")
    loops = {
        "cached statements": "PERFORM v FROM t WHERE id = i % 100 + 1; UPDATE t SET v = v + 1 WHERE id = i % 100 + 1;"
                             "INSERT INTO t VALUES (i + 1000, 1); DELETE FROM t WHERE id = i + 1000;",
        "several rows": "INSERT INTO t VALUES (i + 1000, 1), (i + 1001, 2); UPDATE t SET v = v + 1 WHERE id >= i + 1000 AND id < i + 1002;"
                        "DELETE FROM t WHERE id > 500;",
        "foreign keys": "INSERT INTO child VALUES (i % 100 + 1), (1); BEGIN INSERT INTO child VALUES (-i); EXCEPTION WHEN foreign_key_violation THEN NULL; END;"
                        "IF i % 1000 = 0 THEN COMMIT; END IF;",
        "ranges": "PERFORM v FROM t WHERE id > i % 100 ORDER BY id LIMIT 5; PERFORM sum(v), max(v::numeric) FROM t WHERE id < 20;"
                  "PERFORM v FROM t WHERE id = i % 100 + 1 FOR UPDATE;",
        "errors in ranges": "BEGIN PERFORM 1 / (v - v) FROM t WHERE id > i % 100; EXCEPTION WHEN division_by_zero THEN NULL; END;",
        "errors": "BEGIN UPDATE t SET v = 1 / (v - v) WHERE id = i % 100 + 1; EXCEPTION WHEN division_by_zero THEN NULL; END;",
        "constraints": "BEGIN UPDATE t SET v = 2000000000 WHERE id = i % 100 + 1; EXCEPTION WHEN check_violation THEN NULL; END;",
        "statements that are planned each time": "EXECUTE 'UPDATE t SET v = v + 1 WHERE id = ' || i % 100 + 1;",
    }
    for name, body in loops.items():
        session = connect(DATABASE)
        commit = "" if "BEGIN" in body else "IF i % 1000 = 0 THEN COMMIT; END IF;"
        call = "DO $$ BEGIN FOR i IN 1..{} LOOP {} {} END LOOP; END $$"
        query(session, call.format(2000, body, commit))
        before = memory(session)
        query(session, call.format(25000, body, commit))
        after = memory(session)
        check(f"memory: {name}", after - before < 300000, f"{before} bytes before, {after} after")
        session.close()


def shapes():
    """Each statement that has to take the bypass does: by the view."""
    session = connect(DATABASE)
    query(session, "DROP TABLE IF EXISTS child, late, t; CREATE TABLE t (a int, b int, v int, PRIMARY KEY (a, b)) USING mixedcc; "
                   "CREATE TABLE child (a int, b int, FOREIGN KEY (a, b) REFERENCES t) USING mixedcc; "
                   "CREATE TABLE late (a int, b int, FOREIGN KEY (a, b) REFERENCES t DEFERRABLE INITIALLY DEFERRED) USING mixedcc; "
                   "INSERT INTO t SELECT i / 10, i % 10, i FROM generate_series(0, 999) i; ANALYZE t; DROP TABLE IF EXISTS alone; "
                   "CREATE TABLE alone (LIKE t INCLUDING INDEXES) USING mixedcc; INSERT INTO alone SELECT * FROM t; ANALYZE alone; "
                   "DROP TABLE IF EXISTS numbered; CREATE TABLE numbered (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n serial, at timestamptz DEFAULT now()) USING mixedcc")
    numbers = "PREPARE n(int, int, int[]) AS "
    wanted = {
        "SELECT v FROM t WHERE a = 1 AND b = 2": [(12,)],
        "SELECT v FROM t WHERE a = 1 AND b = 2 FOR UPDATE": [(12,)],
        "SELECT v FROM t WHERE a = 1 AND b = 2 FOR SHARE": [(12,)],
        "SELECT v FROM t WHERE a = 1 AND b = 2 FOR NO KEY UPDATE SKIP LOCKED": [(12,)],
        "SELECT v FROM t WHERE a = 1 ORDER BY b LIMIT 2": [(10,), (11,)],
        "SELECT v FROM t WHERE a = 1 ORDER BY b DESC LIMIT 2 OFFSET 1": [(18,), (17,)],
        "SELECT v FROM t WHERE a = 1 AND b > 7 ORDER BY a, b": [(18,), (19,)],
        "SELECT v FROM t WHERE a >= 98 AND v % 5 = 0 ORDER BY a, b LIMIT 3": [(980,), (985,), (990,)],
        "SELECT v FROM t WHERE a = 1 ORDER BY b LIMIT 1 FOR UPDATE": [(10,)],
        numbers + "SELECT v FROM t WHERE a = $1 ORDER BY b LIMIT $2; EXECUTE n(1, 2, NULL)": [(10,), (11,)],
        numbers + "SELECT v FROM t WHERE a = $3[1] AND b = $3[2]; EXECUTE n(1, 2, '{1,2}')": [(12,)],
        "SELECT count(*), sum(v), min(v::numeric) FROM t WHERE a = 1": [(10, 145, 10)],
        "SELECT coalesce(max(v), -1) FROM t WHERE a = 1 AND b = 2": [(12,)],
        "SELECT sum(v) FROM (SELECT v FROM t WHERE a >= 50 ORDER BY a, b LIMIT 3) AS s": [(1503,)],
        "INSERT INTO child VALUES (1, 2) RETURNING a": [(1,)],  # the check of its foreign key
    }
    for sql, rows in wanted.items():
        query(session, "SELECT mixedcc.reset_bypass()")
        equal(sql, query(session, sql), rows)
        taken = value(session, "SELECT sum(statements)::int FROM mixedcc.bypass WHERE statement = 'SELECT'")
        equal("it takes the bypass", taken, 1)
        query(session, "DEALLOCATE ALL")
    writes = {
        "INSERT INTO child VALUES (1, 3) RETURNING b": [(3,)],
        "INSERT INTO child VALUES (1, 4), (2, 4) RETURNING a": [(1,), (2,)],
        "BEGIN; INSERT INTO late VALUES (7, 7); INSERT INTO child VALUES (1, 5); COMMIT": None,
        "INSERT INTO t VALUES (200, 1, 1), (200, 2, 1 + 1) RETURNING v": [(1,), (2,)],
        numbers + "INSERT INTO t VALUES ($1, 1, $2), ($1, 2, $3[1]) RETURNING v; EXECUTE n(300, 5, '{6}')": [(5,), (6,)],
        "INSERT INTO numbered (at) VALUES (clock_timestamp()), (now()) RETURNING id, n": [(1, 1), (2, 2)],
        "INSERT INTO numbered DEFAULT VALUES RETURNING id": [(3,)],
        "UPDATE numbered SET n = nextval('numbered_n_seq') WHERE id = 2 RETURNING n": [(4,)],
        "UPDATE alone SET v = v + 1 WHERE a = 90 AND b > 7 RETURNING v": [(909,), (910,)],
        # Of a table with triggers of foreign keys.
        "UPDATE t SET v = v + 1 WHERE a = 90 AND b = 9 RETURNING b, v": [(9, 910)],
        "UPDATE t SET v = v + 1 WHERE a = 900 AND b = 9 RETURNING b, v": [],
        "DELETE FROM alone WHERE a = 91 AND b < 2 RETURNING v": [(910,), (911,)],
    }
    for sql, rows in writes.items():
        query(session, "SELECT mixedcc.reset_bypass()")
        if rows is None:
            query(session, sql)
        else:
            equal(sql, query(session, sql), rows)
        equal("only by the bypass", query(session, "SELECT reason FROM mixedcc.bypass WHERE reason IS NOT NULL AND statements > 0"), [])
        query(session, "DEALLOCATE ALL")
    own_rows(session)
    session.close()


def own_rows(session):
    """A row that the transaction has written before, of a table with triggers of foreign keys: the
    executor runs the statement, and it returns each row once."""
    query(session, "BEGIN; UPDATE t SET v = 1 WHERE a = 90 AND b = 8; PREPARE u AS UPDATE t SET v = v + 1 WHERE a = 90 AND b = $1 RETURNING v")
    query(session, "SELECT mixedcc.reset_bypass()")
    for n, sql in enumerate(("UPDATE t SET v = v + 1 WHERE a = 90 AND b = 8 RETURNING v", "EXECUTE u(8)")):
        equal(f"own row: {sql}", query(session, sql), [(2 + n,)])
    query(session, "DO $$ DECLARE r int; BEGIN UPDATE t SET v = v + 1 WHERE a = 90 AND b = 8 RETURNING v INTO STRICT r; ASSERT r = 4; END $$")
    equal("own row: another row", query(session, "EXECUTE u(7)"), [(908,)])
    equal("own row: the executor runs them", value(session, "SELECT statements::int FROM mixedcc.bypass WHERE reason = 'row'"), 3)
    query(session, "ROLLBACK")
    query(session, "DEALLOCATE ALL")


def neighbours():
    """Statements that differ from those of the bypass in one clause, which only the executor knows:
    it is not overlooked."""
    session = connect(DATABASE)
    query(session, "DROP TABLE IF EXISTS near CASCADE; CREATE TABLE near (a int, b int, v int, PRIMARY KEY (a, b)) USING mixedcc; "
                   "INSERT INTO near SELECT i / 10, i % 10, i FROM generate_series(0, 999) i; ANALYZE near; "
                   "CREATE VIEW checked AS SELECT * FROM near WHERE v >= 0 WITH CHECK OPTION; SET enable_seqscan = off; SET enable_sort = off")
    wanted = {
        "SELECT a FROM near WHERE a BETWEEN 1 AND 2 ORDER BY a FETCH FIRST 2 ROWS WITH TIES": [(1,)] * 10,
        "SELECT count(*) FILTER (WHERE v > 15), count(v) FILTER (WHERE b = 1) FROM near WHERE a = 1": [(4, 1)],
        "SELECT count(DISTINCT v), count(DISTINCT a) FROM near WHERE a = 1": [(10, 1)],
        "SELECT string_agg(v::text, ',' ORDER BY v DESC) FROM near WHERE a = 1 AND b < 3": [("12,11,10",)],
        "SELECT count(*), sum(v) FROM near WHERE a = 1 HAVING count(*) > 10": [],
        "SELECT sum(v) FROM (SELECT v FROM near WHERE a = 1 ORDER BY b LIMIT 3) AS s WHERE v > 10": [(23,)],
        "SELECT sum(v) FROM near WHERE a = 1 AND v % 5 = 0": [(25,)],
        "SELECT a, sum(v) FROM near WHERE a IN (1, 2) GROUP BY a ORDER BY a": [(1, 145), (2, 245)],
        "INSERT INTO near SELECT 400, 1, 1 WHERE current_date < '2000-01-01' RETURNING v": [],
        "INSERT INTO near SELECT * FROM (VALUES (401, 1, 1), (401, 2, 2)) AS n (a, b, v) WHERE b > 1 RETURNING v": [(2,)],
        "WITH w AS (DELETE FROM near WHERE a = 90 AND b = 1 RETURNING v) SELECT v FROM near WHERE a = 90 AND b = 1": [(901,)],
    }
    for sql, rows in wanted.items():
        equal(sql, query(session, sql), rows)
    for sql in ("INSERT INTO checked VALUES (402, 1, -1)", "INSERT INTO checked VALUES (403, 1, 1), (403, 2, -1)", "UPDATE checked SET v = -1 WHERE a = 1 AND b = 1",
                "UPDATE checked SET v = v - 15 WHERE a = 1"):
        try:
            fail(sql, query(session, sql + " RETURNING *"))
        except psycopg2.Error as error:
            equal(f"{sql}: WITH CHECK OPTION", error.pgcode, "44000")
    session.close()


def rights():
    """A statement that was run before is refused as soon as a right is gone, whatever took it
    away."""
    boss = connect(DATABASE)
    query(boss, "DROP TABLE IF EXISTS child, late, t; CREATE TABLE t (id int PRIMARY KEY, v text) USING mixedcc; INSERT INTO t VALUES (1, 'a'); "
                "GRANT SELECT ON t TO bypass_group; GRANT EXECUTE ON FUNCTION upper(text), max(text) TO PUBLIC")
    session = Client(DATABASE)
    for sql in ("SET ROLE bypass_user", "PREPARE a AS SELECT upper(v) FROM t WHERE id = 1", "PREPARE b AS SELECT max(v) FROM t WHERE id > 0",
                "PREPARE c AS SELECT v FROM t WHERE id = 1", "SET plan_cache_mode = force_generic_plan"):
        session.simple(sql)

    def said():
        return ["".join(m[1] or "" for m in session.simple(f"EXECUTE {name}") if m[0] != "tag") for name in "abc"]

    no = "42501"
    for change, wanted in (("SELECT 1", ["A", "a", "a"]), ("REVOKE bypass_group FROM bypass_user", [no, no, no]),
                           ("GRANT bypass_group TO bypass_user", ["A", "a", "a"]),
                           ("REVOKE EXECUTE ON FUNCTION upper(text) FROM PUBLIC", [no, "a", "a"]),
                           ("REVOKE EXECUTE ON FUNCTION max(text) FROM PUBLIC", [no, no, "a"]),
                           ("GRANT EXECUTE ON FUNCTION upper(text), max(text) TO PUBLIC", ["A", "a", "a"]),
                           ("REVOKE SELECT ON t FROM bypass_group", [no, no, no]), ("GRANT SELECT ON t TO PUBLIC", ["A", "a", "a"]),
                           ("ALTER TABLE t ENABLE ROW LEVEL SECURITY", ["", "", ""])):
        query(boss, change)
        equal(f"rights after {change}", said(), wanted)
    session.close()


def portals():
    """Some rows of a portal now and the others later, of a range."""
    boss = connect(DATABASE)
    query(boss, "DROP TABLE IF EXISTS child, late, t; CREATE TABLE t (id int PRIMARY KEY, v int) USING mixedcc; "
                "INSERT INTO t SELECT i, i FROM generate_series(1, 5) i; ANALYZE t")
    for name, way in WAYS.items():
        session = Client(DATABASE, options=f"{way} -c enable_seqscan=off -c enable_sort=off")
        session.prepare("s", "SELECT id FROM t WHERE id > $1 ORDER BY id")
        got = session.execute("s", ("1",), (1, 2, 1, 0))
        wanted = [("row", "2"), ("suspended",), ("row", "3"), ("row", "4"), ("suspended",), ("row", "5"), ("suspended",), ("tag", "SELECT 0")]
        equal(f"a portal of a range in parts, {name}", got, wanted)
        session.close()


def open_portals():
    """A portal that has begun and has not run keeps its table from being changed by its session:
    its row type would be another one."""
    boss = connect(DATABASE)
    query(boss, "DROP TABLE IF EXISTS child, late, t; CREATE TABLE t (id int PRIMARY KEY, v text) USING mixedcc; INSERT INTO t VALUES (1, '7')")
    changes = ("ALTER TABLE t ALTER v TYPE int USING length(v)", "ALTER TABLE t SET ACCESS METHOD heap", "TRUNCATE t", "DROP TABLE t")
    for name, way in WAYS.items():
        session = Client(DATABASE, options=f"{way} -c enable_seqscan=off")
        session.prepare("s", "SELECT v FROM t WHERE id = $1")
        for number, change in enumerate(changes):
            session.prepare(f"change {number}", change)
            session.simple("BEGIN")
            session.execute("s", ("1",), ())
            said = session.execute(f"change {number}", (), portal="other")
            equal(f"an open portal, {name}: {change}", [m[1] for m in said if m[0] == "error"], ["55006"])
            session.simple("ROLLBACK")
            session.simple("BEGIN")
            session.execute("s", ("1",), ())
            session.simple("COMMIT")
            session.simple("BEGIN")
            session.simple("SAVEPOINT s")
            session.execute("s", ("1",), ())
            session.execute("no such statement", ())
            session.simple("ROLLBACK TO s")
            equal(f"a portal that has gone, {name}: {change}", [m[0] for m in session.simple(change)], ["tag"])
            session.simple("ROLLBACK")
            equal(f"a portal runs after {change}, {name}", session.execute("s", ("1",)), [("row", "7"), ("tag", "SELECT 1")])
        session.close()


def predicates():
    """A SERIALIZABLE statement protects the same keys by the bypass as by the custom scan. That
    protects the same as a scan of nbtree, also where they end early or start again."""
    boss = connect(DATABASE)
    query(boss, "DROP TABLE IF EXISTS child, late, t; CREATE TABLE t (a int, b int, v int, PRIMARY KEY (a, b)) USING mixedcc "
                "WITH (mixedcc.partitions = 1); INSERT INTO t SELECT i / 10, i % 10, i FROM generate_series(0, 199) i; ANALYZE t")
    plans = "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_sort=off"
    clients = {name: Client(DATABASE, options=f"{WAYS[name]} {plans}") for name in WAYS}
    r = random.Random(int(os.environ.get("MIXEDCC_SEED", "7")))
    query(boss, "SELECT mixedcc.reset_bypass()")
    kinds = set()
    for n in range(260):
        parts = [f"a = {r.randint(-1, 20)}"] if r.random() < 0.6 else [f"a {r.choice(('<', '<=', '>', '>='))} {r.randint(-1, 20)}"]
        if r.random() < 0.5:
            parts.append(f"b {r.choice(('<', '<=', '>', '>=', '='))} {r.randint(-1, 10)}")
        if r.random() < 0.2:
            parts.append("v % 3 = 0")
        down = r.choice(("", " DESC"))
        sql = f"SELECT v FROM t WHERE {' AND '.join(parts)} ORDER BY a{down}, b{down}" + r.choice(("", " LIMIT 2", " LIMIT 1 OFFSET 3", " LIMIT 0"))
        if r.random() < 0.3:
            sql = f"SELECT count(*), sum(v) FROM ({sql}) AS s"
        if n >= 200:  # the scan starts again with other keys, and ends early again
            first = r.randint(-1, 17)
            sql = (f"SELECT count(v) FROM generate_series({first}, {first + 2}) AS x, LATERAL "
                   f"(SELECT v FROM t WHERE a = x AND b > {r.randint(-1, 9)} ORDER BY a{down}, b{down}{r.choice(('', ' LIMIT 2'))}) AS l")
        into = n < 200 and r.random() < 0.2
        if into:
            sql = "DO $$ DECLARE x bigint; BEGIN " + sql.replace(" FROM ", " INTO x FROM ", 1).replace("count(*), ", "") + "; END $$"
        found = {}
        for name, c in clients.items():
            said = c.simple("BEGIN ISOLATION LEVEL SERIALIZABLE") + c.simple(sql)
            seen = c.simple("SELECT index, lower, upper, ranges, covered FROM mixedcc.predicates ORDER BY 1, 2, 3, 4, 5")
            found[name] = said + seen
            c.simple("COMMIT")
            kinds.add(len([m for m in seen if m[0] == "row"]))
        if differ(found):
            fail(f"predicates of {sql}", differ(found))
            return
    taken = value(boss, "SELECT statements FROM mixedcc.bypass WHERE statement = 'SELECT'")
    check("the bypass protects what the scan protects", taken > 150 and kinds >= {0, 1}, (taken, kinds))
    for c in clients.values():
        c.close()


def partitions():
    """Under partcc a look-up that finds nothing locks the partition where the key would be,
    whatever reads."""
    boss = connect(DATABASE)
    query(boss, "DROP TABLE IF EXISTS child, late, t; CREATE TABLE t (id int PRIMARY KEY, v int) USING mixedcc "
                "WITH (mixedcc.partitions = 4, mixedcc.protocol = 'partcc')")
    writer = Client(DATABASE, options="-c statement_timeout=150 -c default_transaction_isolation=serializable")
    for name, way in WAYS.items():
        reader = Client(DATABASE, options=f"{way} -c enable_seqscan=off -c enable_bitmapscan=off -c default_transaction_isolation=serializable")
        said = []
        for key in range(1, 9):
            reader.simple("BEGIN")
            reader.simple(f"SELECT v FROM t WHERE id = {key}")
            said += [m[1] for m in writer.simple(f"INSERT INTO t VALUES ({key})")]
            reader.simple("ROLLBACK")
        equal(f"inserts of what was looked for wait, {name}", said, ["57014"] * 8)
        reader.close()
    writer.close()


def cancels():
    """A scan that returns no row, and so does not go back to its caller, can be cancelled."""
    boss = connect(DATABASE)
    query(boss, "DROP TABLE IF EXISTS child, late, t; CREATE TABLE t (id int PRIMARY KEY, v text) USING mixedcc; "
                "INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 20000) i; ANALYZE t")
    sql = "SELECT count(*) FROM t WHERE id > 0 AND md5(repeat(v, 200)) = 'x'"
    for name, way in WAYS.items():
        session = Client(DATABASE, options=f"{way} -c enable_seqscan=off -c enable_bitmapscan=off -c max_parallel_workers_per_gather=0")
        start = time.monotonic()
        session.simple(sql)
        whole = time.monotonic() - start
        session.simple(f"SET statement_timeout = {max(1, int(whole * 1000 / 20))}")
        tries = []
        while len(tries) < 5 and (not tries or tries[-1] >= whole / 2):  # another program may have the processor
            start = time.monotonic()
            said = session.simple(sql)
            tries.append(time.monotonic() - start)
        check(f"a scan is cancelled, {name}", said[0][1] == "57014" and tries[-1] < whole / 2, (said, tries, whole))
        session.close()


def nothing_is_left():
    """Errors and cancels in the middle leave no lock, slot, relation or snapshot behind."""
    boss = connect(DATABASE)
    query(boss, "DROP TABLE IF EXISTS child, late, t; CREATE TABLE t (id int PRIMARY KEY, v int) USING mixedcc; INSERT INTO t VALUES (1, 1), (2, 2)")
    holder = Client(DATABASE)
    session = Client(DATABASE, options="-c statement_timeout=200")
    said = []
    for name, sql in (("u", "UPDATE t SET v = v + 1 WHERE id = $1"), ("d", "DELETE FROM t WHERE id = $1"),
                      ("e", "UPDATE t SET v = 1 / (v - v) WHERE id = $1"), ("i", "INSERT INTO t VALUES ($1, 1)")):
        session.prepare(name, sql)
    holder.simple("BEGIN")
    holder.simple("UPDATE t SET v = 10 WHERE id = 1")
    for _ in range(3):
        for name in ("u", "d"):
            said += session.execute(name, (1,))
        said += session.execute("e", (2,))
        said += session.execute("i", (2,))
        for sql in ("BEGIN", "SAVEPOINT a"):
            said += session.simple(sql)
        said += session.execute("u", (1,))
        for sql in ("ROLLBACK TO a", "SELECT v FROM t WHERE id = 2", "COMMIT"):
            said += session.simple(sql)
    holder.simple("COMMIT")
    said += session.execute("u", (1,))
    codes = [m[1] for m in said if m[0] == "error"]
    equal("cancels and errors in the middle", codes, ["57014", "57014", "22012", "23505", "57014"] * 3)
    check("nothing leaks", not any(m[0] == "notice" for m in said), said)
    equal("the row after all", query(boss, "SELECT * FROM t ORDER BY 1"), [(1, 11), (2, 2)])
    equal("no lock is left", query(boss, "SELECT locktype, mode FROM pg_locks WHERE relation = 't'::regclass AND pid <> pg_backend_pid()"), [])
    holder.close()
    session.close()


def libraries():
    """auto_explain and pg_stat_statements, loaded after us, see the statements."""
    session = connect(DATABASE)
    query(session, "DROP TABLE IF EXISTS child, late, t; CREATE TABLE t (id int PRIMARY KEY, v int) USING mixedcc; INSERT INTO t VALUES (1, 1)")
    query(session, "SELECT mixedcc.reset_bypass(); LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; "
                   "SET auto_explain.log_nested_statements = on; SET client_min_messages = log; SET auto_explain.log_verbose = on")
    del session.notices[:]
    query(session, "SELECT v FROM t WHERE id = 1")
    query(session, "UPDATE t SET v = v + 1 WHERE id = 1 RETURNING v")
    query(session, "DELETE FROM t WHERE id = 2")
    query(session, "INSERT INTO t VALUES (2, 2)")
    query(session, "DO $$ DECLARE x int; BEGIN SELECT v INTO x FROM t WHERE id = 1; END $$")
    plans = [n for n in session.notices if "plan:" in n]
    check("auto_explain logs all statements", len(plans) >= 5, session.notices)
    for part in ("Update on", "Insert on", "Delete on", "Scan"):
        check(f"auto_explain shows {part}", any(part in n for n in plans), plans)
    taken = value(session, "SELECT sum(statements) FROM mixedcc.bypass WHERE statement IS NOT NULL")
    check("statements take the bypass under auto_explain", taken >= 5, taken)
    query(session, "SET auto_explain.log_analyze = on")
    query(session, "SELECT v FROM t WHERE id = 1")
    check("log_analyze goes to the executor",
          value(session, "SELECT statements FROM mixedcc.bypass WHERE reason = 'instrumented'") == 1)
    session.close()


def all_tests():
    boss = make_database(DATABASE)
    query(boss, "DROP ROLE IF EXISTS bypass_user, bypass_group; CREATE ROLE bypass_user; CREATE ROLE bypass_group; "
                "GRANT bypass_group TO bypass_user")
    query(boss, "CREATE FUNCTION public.tell() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE NOTICE '% %', TG_OP, coalesce(NEW::text, OLD::text); RETURN coalesce(NEW, OLD); END $$")
    boss.close()
    if len(sys.argv) > 1:
        main(lambda: round_of(int(sys.argv[1])))
    tests = (shapes, neighbours, rights, portals, open_portals, predicates, partitions, cancels, same_as_the_executor, same_when_others_write, nothing_is_left, libraries, memory_does_not_grow)
    try:
        main(*tests)
    finally:
        drop_database(DATABASE)
        boss = connect("postgres")
        query(boss, "DROP ROLE IF EXISTS bypass_user, bypass_group")


if __name__ == "__main__":
    all_tests()
