#!/usr/bin/python3
"""Look-ups by key at SERIALIZABLE that look at some columns of a row, beside updates of others.

One session looks a row up; another one writes it and commits. If it has changed what the first one
looked at, the first one's commit must fail. If not, both must succeed. Each look runs in every way
to a row, under each protocol that validates what it has read. Under `2pl` it runs in tables that
know of no changes of the columns: there most looks lock the key of the row alone, and so are
validated. The argument --faults runs it with each deliberate fault of a test build, which it must
find.
"""

import collections
import contextlib
import functools
import itertools
import sys
import threading
import time

import psycopg2

from lib import protocols
from lib.common import OURS, RETRY, check, connect, drop_database, equal, main, make_database, must_be_found, options, query, reload, set_protocol, value
from lib.tables import WAYS

DATABASE = "process_looks"
PROTOCOLS = [name for name in protocols.ALL if protocols.only_validates(name)]
WIDE = ", ".join(f"c{i} int DEFAULT 0" for i in range(1, 41))

SETUP = """
CREATE TABLE w (id int PRIMARY KEY, tax int, ytd int, name text, code int UNIQUE, doc text, g int GENERATED ALWAYS AS (ytd * 2) STORED)
    USING mixedcc {options};
INSERT INTO w SELECT i, i, 0, 'n', i, repeat(md5(i::text), 300) FROM generate_series(1, {rows}) i;
ALTER TABLE w ADD COLUMN late int DEFAULT 7, ADD COLUMN gone int; ALTER TABLE w DROP COLUMN gone;
CREATE TABLE elsewhere (id int PRIMARY KEY, v int) USING mixedcc {options};
INSERT INTO elsewhere SELECT i, 0 FROM generate_series(0, {rows}) i;
CREATE TABLE child (id int PRIMARY KEY, w_id int REFERENCES w (id)) USING mixedcc {options};
CREATE TABLE wide (id int PRIMARY KEY, {wide}) USING mixedcc {options};
INSERT INTO wide (id) SELECT generate_series(1, {rows});
CREATE FUNCTION also() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.tax := NEW.tax + 1; RETURN NEW; END $$;
CREATE TRIGGER also BEFORE UPDATE ON w FOR EACH ROW WHEN (NEW.name = 'trigger') EXECUTE FUNCTION also();
CREATE VIEW taxes AS SELECT id, tax FROM w;
CREATE VIEW sums AS SELECT id, ytd AS sum FROM w;
CREATE VIEW barrier WITH (security_barrier) AS SELECT id, tax FROM w WHERE ytd >= 0;
CREATE FUNCTION tax_of(int) RETURNS int LANGUAGE plpgsql AS $$ DECLARE r int; BEGIN SELECT tax INTO r FROM w WHERE id = $1; RETURN r; END $$;
CREATE FUNCTION sum_of(int) RETURNS int LANGUAGE plpgsql AS $$ DECLARE r w%ROWTYPE; BEGIN SELECT * INTO r FROM w WHERE id = $1; RETURN r.tax; END $$;
CREATE TABLE secret (id int PRIMARY KEY, tax int, ytd int, owner int) USING mixedcc {options};
INSERT INTO secret SELECT i, 1, 0, 1 FROM generate_series(1, {rows}) i;
ALTER TABLE secret ENABLE ROW LEVEL SECURITY;
CREATE POLICY of_owner ON secret USING (owner = 1);
GRANT ALL ON secret, elsewhere TO process_looks_user;
ALTER TABLE w ADD COLUMN pad int DEFAULT 0; ALTER TABLE secret ADD COLUMN pad int DEFAULT 0;
ALTER TABLE elsewhere ADD COLUMN pad int DEFAULT 0;
ANALYZE w; ANALYZE elsewhere; ANALYZE child; ANALYZE wide; ANALYZE secret;
"""
# Updates of columns at which nothing looks, in a row that has no case.
PADS = {"w": "pad", "secret": "pad", "elsewhere": "pad", "wide": "c10"}
ROWS = 200
# For mixedcc.column_period, in seconds.
PERIOD = 0.02

SUM = "UPDATE w SET ytd = ytd + 1 WHERE id = {n}"
NAME = "UPDATE w SET name = 'x' WHERE id = {n}"
TAX = "UPDATE w SET tax = tax + 1 WHERE id = {n}"
# An index-only scan looks at whole rows.
INDEX = "SET LOCAL enable_indexonlyscan = off; "
AS_USER = "SET LOCAL ROLE process_looks_user; "
# What looks at the row; what leaves that as it was; what changes it.
CASES = [
    ("a column", "SELECT tax FROM w WHERE id = {n}", [SUM, "UPDATE w SET name = 'x', doc = 'y' WHERE id = {n}"], [TAX, "DELETE FROM w WHERE id = {n}"]),
    ("the column that changes", "SELECT ytd FROM w WHERE id = {n}", [TAX], [SUM]),
    ("in an expression", "SELECT tax + ytd FROM w WHERE id = {n}", [NAME], [SUM, TAX]),
    ("in a condition", "SELECT tax FROM w WHERE id = {n} AND ytd >= 0", [NAME], [SUM]),
    ("a condition that is not met", "SELECT tax FROM w WHERE id = {n} AND ytd > 1000", [NAME], [SUM]),
    ("all columns", "SELECT * FROM w WHERE id = {n}", [], [SUM, TAX]),
    ("the whole row", "SELECT w FROM w WHERE id = {n}", [], [SUM]),
    ("the row as a value", "SELECT row_to_json(w) FROM w WHERE id = {n}", [], [SUM]),
    ("xmin", "SELECT xmin FROM w WHERE id = {n}", [], [SUM]),
    ("ctid", "SELECT ctid, tax FROM w WHERE id = {n}", [], [SUM]),
    ("existence", INDEX + "SELECT 1 FROM w WHERE id = {n}", [SUM, TAX], ["DELETE FROM w WHERE id = {n}", "UPDATE w SET id = id + 1000 WHERE id = {n}"]),
    ("a count", INDEX + "SELECT count(*) FROM w WHERE id = {n}", [SUM], ["DELETE FROM w WHERE id = {n}"]),
    ("a sum", "SELECT sum(tax) FROM w WHERE id = {n}", [SUM], [TAX]),
    ("a row lock", "SELECT tax FROM w WHERE id = {n} FOR KEY SHARE", [], [SUM]),
    ("an update", "UPDATE w SET name = 'z' WHERE id = {n}", [], [SUM]),
    ("an update that passes the row over", "UPDATE w SET name = 'z' WHERE id = {n} AND ytd > 1000", [], [SUM]),
    ("an update that returns", "UPDATE w SET name = 'z' WHERE id = {n} RETURNING tax", [], [SUM, TAX]),
    ("an update from another row", "UPDATE elsewhere SET v = w.tax FROM w WHERE w.id = {n} AND elsewhere.id = {n}", [], [TAX]),
    ("returning another row", "DELETE FROM elsewhere USING w WHERE w.id = {n} AND elsewhere.id = {n} RETURNING w.ytd", [], [SUM]),
    ("a generated column", "SELECT g FROM w WHERE id = {n}", [TAX], [SUM]),
    ("a late column", "SELECT late FROM w WHERE id = {n}", [SUM], ["UPDATE w SET late = 8 WHERE id = {n}"]),
    ("a long value", "SELECT length(doc) FROM w WHERE id = {n}", [SUM, "UPDATE w SET name = repeat('x', 9000) WHERE id = {n}"],
     ["UPDATE w SET doc = repeat('x', 9000) WHERE id = {n}"]),
    ("another unique key", "SELECT tax FROM w WHERE code = {n}", [SUM], [TAX, "UPDATE w SET code = code + 1000 WHERE id = {n}"]),
    ("a view", "SELECT tax FROM taxes WHERE id = {n}", [SUM], [TAX]),
    ("a view with another name", "SELECT sum FROM sums WHERE id = {n}", [TAX], [SUM]),
    ("a barrier", "SELECT tax FROM barrier WHERE id = {n}", [NAME], [SUM, TAX]),
    ("a policy", AS_USER + "SELECT tax FROM secret WHERE id = {n}", ["UPDATE secret SET ytd = ytd + 1 WHERE id = {n}"],
     ["UPDATE secret SET tax = tax + 1 WHERE id = {n}", "UPDATE secret SET owner = 2 WHERE id = {n}"]),
    ("a trigger of the writer", "SELECT tax FROM w WHERE id = {n}", [NAME], ["UPDATE w SET name = 'trigger' WHERE id = {n}"]),
    ("a subselect", "SELECT tax, (SELECT v FROM elsewhere e WHERE e.id = w.ytd) FROM w WHERE id = {n}", [], [SUM, TAX]),
    ("a join", "SELECT w.tax, e.v FROM elsewhere e JOIN w ON w.id = e.id WHERE e.id = {n}", [], [TAX]),
    ("two statements", "SELECT tax FROM w WHERE id = {n}; SELECT ytd FROM w WHERE id = {n}", [NAME], [SUM, TAX]),
    ("a savepoint", "SAVEPOINT s; SELECT tax FROM w WHERE id = {n}; ROLLBACK TO s", [SUM], [TAX]),
    ("a function", "SELECT tax_of({n})", [SUM], [TAX]),
    ("a function that reads the row", "SELECT sum_of({n})", [], [SUM]),
    ("a prepared statement", "PREPARE p(int) AS SELECT tax FROM w WHERE id = $1; EXECUTE p({n}); DEALLOCATE p", [SUM], [TAX]),
    ("a cursor", "DECLARE c CURSOR FOR SELECT tax FROM w WHERE id = {n}; FETCH 1 FROM c", [SUM], [TAX]),
    ("a foreign key check", "INSERT INTO child VALUES ({n}, {n})", [], ["DELETE FROM w WHERE id = {n}"]),
    ("writers of several statements", "SELECT tax FROM w WHERE id = {n}",
     [f"BEGIN; {SUM}; {NAME}; COMMIT", f"BEGIN; {SUM}; SAVEPOINT s; {TAX}; ROLLBACK TO s; COMMIT"],
     [f"BEGIN; {TAX}; {SUM}; COMMIT", f"BEGIN; {SUM}; {TAX}; COMMIT", f"BEGIN; {SUM}; SAVEPOINT s; {TAX}; RELEASE s; COMMIT"]),
    ("writers at READ COMMITTED", "SELECT tax FROM w WHERE id = {n}", [f"BEGIN ISOLATION LEVEL READ COMMITTED; {SUM}; COMMIT"],
     [f"BEGIN ISOLATION LEVEL READ COMMITTED; {TAX}; COMMIT"]),
    ("ON CONFLICT", "SELECT tax FROM w WHERE id = {n}", ["INSERT INTO w (id) VALUES ({n}) ON CONFLICT (id) DO UPDATE SET ytd = 9"],
     ["INSERT INTO w (id) VALUES ({n}) ON CONFLICT (id) DO UPDATE SET tax = 9"]),
    ("a wide row by key", "SELECT c1 FROM wide WHERE id = {n}", ["UPDATE wide SET c2 = c2 + 1 WHERE id = {n}", "UPDATE wide SET c40 = c40 + 1 WHERE id = {n}"], ["UPDATE wide SET c1 = c1 + 1 WHERE id = {n}"]),
]

# An outcome: the writer would have to wait for the first session.
WAITS = "the writer waits"


@functools.cache
def connections():
    make_database(DATABASE)
    boss = connect(DATABASE)
    query(boss, "DROP ROLE IF EXISTS process_looks_user; CREATE ROLE process_looks_user")
    return boss, connect(DATABASE, options="-c lock_timeout=300ms")


def make(protocol):
    """Each case has a row of its own."""
    boss, _ = connections()
    query(boss, "DROP SCHEMA public CASCADE; CREATE SCHEMA public; GRANT ALL ON SCHEMA public TO public")
    query(boss, SETUP.format(options=options(protocol=protocol, partitions=1), wide=WIDE, rows=ROWS))


def end(session, prepares=False):
    """The other row makes the transaction one that writes, which is validated at its commit."""
    try:
        query(session, "RESET ROLE; UPDATE elsewhere SET v = v + 1 WHERE id = 0")
        query(session, "PREPARE TRANSACTION 'looks'" if prepares else "COMMIT")
        if prepares:
            query(session, "COMMIT PREPARED 'looks'")
        return "ok"
    except psycopg2.Error as error:
        query(session, "ROLLBACK")
        return error.pgcode


def beside(session, look, write, meanwhile=None, prepares=False):
    """How the session ends that looks, beside this write."""
    _, writer = connections()
    query(session, "BEGIN ISOLATION LEVEL SERIALIZABLE")
    try:
        query(session, look)
    except psycopg2.Error:
        query(session, "ROLLBACK")
        raise
    if meanwhile:
        meanwhile()
    try:
        query(writer, write)
    except psycopg2.errors.LockNotAvailable:
        query(writer, "ROLLBACK")
        query(session, "ROLLBACK")
        return WAITS
    return end(session, prepares)


def session_of(way):
    connections()
    return connect(DATABASE, options=f"{WAYS[way]} -c lock_timeout=5s -c enable_seqscan=off -c enable_bitmapscan=off "
                   "-c enable_hashjoin=off -c enable_mergejoin=off -c plan_cache_mode=force_generic_plan")


def test_looks():
    for protocol, way in itertools.product(PROTOCOLS, WAYS):
        wrong, n = [], 0
        make(protocol)
        session = session_of(way)
        for name, look, fine, conflicts in CASES:
            for write, wanted in [(w, ("ok",)) for w in fine] + [(w, (*RETRY, WAITS)) for w in conflicts]:
                n += 1
                got = beside(session, look.replace("{n}", str(n)), write.replace("{n}", str(n)))
                if got not in wanted:
                    wrong.append(f"{name}: {write}: {got}")
        session.close()
        check(f"looks, {protocol}, {way}: a commit fails if, and only if, what was looked at has changed", not wrong, "\n".join(wrong))


@contextlib.contextmanager
def pads():
    """Tables know that updates change the pads, and forget soon that they have changed more."""
    boss, _ = connections()
    query(boss, f"ALTER SYSTEM SET mixedcc.column_period = '{int(PERIOD * 1000)}ms'")
    reload(boss)
    stop = threading.Event()

    def pad():
        with contextlib.closing(connect(DATABASE)) as mine:
            while not stop.wait(PERIOD / 4):
                for table, column in PADS.items():
                    query(mine, f"UPDATE {table} SET {column} = {column} + 1 WHERE id = {ROWS}")
    thread = threading.Thread(target=pad)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        query(boss, "ALTER SYSTEM RESET mixedcc.column_period")
        reload(boss)


def test_looks_that_lock_keys():
    """What was looked at does not change before the transaction is over, or fails it. As a rule the
    lock of a key lets the writer in."""
    for protocol, way in itertools.product(protocols.having("locks_reads"), WAYS):
        wrong, ends, n = [], collections.Counter(), 0
        make(protocol)
        session = session_of(way)
        with pads():
            for name, look, fine, conflicts in CASES:
                for write, wanted in [(w, ("ok", WAITS)) for w in fine] + [(w, (*RETRY, WAITS)) for w in conflicts]:
                    n += 1
                    time.sleep(4 * PERIOD)
                    got = beside(session, look.replace("{n}", str(n)), write.replace("{n}", str(n)))
                    ends[got] += 1
                    if got not in wanted:
                        wrong.append(f"{name}: {write}: {got}")
                    # After a failure looks lock rows, until a commit.
                    query(session, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT v FROM elsewhere WHERE id = 1; COMMIT")
        session.close()
        check(f"looks, {protocol}, {way}: what was looked at stays, or a commit fails", not wrong, "\n".join(wrong))
        check(f"looks, {protocol}, {way}: writers go on beside looks", ends["ok"] > 20 and ends["40001"] > 20, ends)


def test_a_remembered_look_counts_over_a_switch():
    """Also under a protocol that validates nothing, as `2pl`."""
    boss, _ = connections()
    for other in protocols.ALL:
        if other == PROTOCOLS[0]:
            continue
        got = []
        for write in (SUM, TAX):
            make(PROTOCOLS[0])
            session = session_of("on" if "on" in WAYS else next(iter(WAYS)))
            got.append(beside(session, "SELECT tax FROM w WHERE id = 1", write.replace("{n}", "1"), lambda: set_protocol(boss, "w", other, wait=False)) == "ok")
            session.close()
        equal(f"looks, a switch to {other}", got, [True, False])


def test_a_prepared_transaction_is_validated():
    got = []
    for protocol, write in itertools.product(PROTOCOLS, (SUM, TAX)):
        make(protocol)
        session = session_of(next(iter(WAYS)))
        got.append(beside(session, "SELECT tax FROM w WHERE id = 1", write.replace("{n}", "1"), prepares=True) == "ok")
        session.close()
    equal("looks, PREPARE TRANSACTION", got, [True, False] * len(PROTOCOLS))


def test_no_addition_is_lost():
    """What a session writes after its look is made of the newest version."""
    boss, _ = connections()
    for protocol, way in itertools.product(PROTOCOLS, WAYS):
        session = session_of(way)
        for name, write in (("by key", "UPDATE w SET name = 'z' WHERE id = 1"), ("at the cursor", "UPDATE w SET name = 'z' WHERE CURRENT OF c")):
            make(protocol)
            query(session, "BEGIN ISOLATION LEVEL SERIALIZABLE; DECLARE c CURSOR FOR SELECT tax FROM w WHERE id = 1; FETCH 1 FROM c")
            query(connections()[1], SUM.replace("{n}", "1"))
            query(session, write)
            got = end(session), query(boss, "SELECT ytd, name FROM w WHERE id = 1")
            equal(f"looks, {protocol}, {way}: nothing is lost by a write {name}", got, ("ok", [(1, "z")]))
        session.close()


def test_faults():
    if not OURS or value(connections()[0], "SELECT current_setting('mixedcc.fault', true)") is None:
        check("looks: the build has no deliberate faults", False)
        return
    for fault in ("written_by_column", "whole_row_forgotten", "list_forgotten", "conditions_forgotten", "sets_forgotten"):
        for session in connections():
            query(session, f"SET mixedcc.fault = '{fault}'")
        faulty = functools.partial(with_fault, fault)
        name = next(iter(WAYS))
        must_be_found(fault, f"looks, {PROTOCOLS[0]}, {name}: a commit fails if, and only if, what was looked at has changed", faulty)
    for session in connections():
        query(session, "RESET mixedcc.fault")


def with_fault(fault):
    WAYS[next(iter(WAYS))] += f" -c mixedcc.fault={fault}"
    test_looks()


def finish():
    for connection in connections():
        connection.close()
    drop_database(DATABASE)
    with connect("postgres") as boss:
        boss.autocommit = True
        query(boss, "DROP ROLE IF EXISTS process_looks_user")


if __name__ == "__main__":
    if "--faults" in sys.argv:
        main(test_faults, finish)
    else:
        main(test_looks, test_looks_that_lock_keys, test_a_remembered_look_counts_over_a_switch, test_a_prepared_transaction_is_validated, test_no_addition_is_lost, finish)
