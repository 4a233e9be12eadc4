#!/usr/bin/python3
"""Transactions that only read by their snapshot rest between their statements and between the rows
of their scans, and then keep few versions. Meanwhile others update each row so often that freed
memory is used again at once. Whatever the executor has at hand when its transaction rests must be
what the snapshot sees: open cursors, both sides of joins, functions that have returned one row of
many, tuples of sorts and aggregates, rows of other tables. Each statement is run again and again in
one snapshot, and must find what it found in rows that were read at the snapshot's begin. The
argument --faults runs it with transactions that keep nothing while they rest."""

import functools
import random
import sys
import threading
import time

import psycopg2

from lib import protocols
from lib.common import check, connect, create_table, drop_database, equal, main, make_database, must_be_found, query, seconds, value

DATABASE = "process_resting"
ROWS = 300
LEVELS = ("REPEATABLE READ", "REPEATABLE READ, READ ONLY", "SERIALIZABLE, READ ONLY")
# What a row's text must be, by its other columns: a row that is made of two versions breaks this.
TEXT = "repeat(chr((97 + (v + id) % 26)::int), (20 + (v * 7 + id) % 60)::int)"


def text(number, v):
    return chr(97 + (v + number) % 26) * (20 + (v * 7 + number) % 60)


def total(rows):
    return sum(v for _, v, _ in rows)


def by_group(rows):
    out = {}
    for number, v, _ in rows:
        out[number % 7] = out.get(number % 7, 0) + v
    return sorted(out.items())


def some(rows, low, high):
    return [row for row in rows if low <= row[0] <= high]


# Settings for the statement's plan, the statement, and what it must find.
STATEMENTS = (
    ("", "SELECT sum(v) FROM {t}", lambda rows: [(total(rows),)]),
    ("", "SELECT id, v, pad FROM {t} ORDER BY id", lambda rows: rows),
    ("enable_seqscan", "SELECT id, v, pad FROM {t} WHERE id BETWEEN 20 AND 180 ORDER BY id", lambda rows: some(rows, 20, 180)),
    ("enable_seqscan", "SELECT id, v, pad FROM {t} WHERE id BETWEEN 20 AND 180 ORDER BY id DESC", lambda rows: some(rows, 20, 180)[::-1]),
    ("enable_seqscan,enable_indexscan", "SELECT sum(v) FROM {t} WHERE k < 3", lambda rows: [(sum(v for n, v, _ in rows if n % 7 < 3),)]),
    ("", "SELECT k, sum(v) FROM {t} GROUP BY k ORDER BY k", by_group),
    ("enable_hashagg", "SELECT k, sum(v) FROM {t} GROUP BY k ORDER BY k", by_group),
    ("enable_hashjoin,enable_mergejoin", "SELECT a.id, b.v, a.pad FROM {t} a JOIN {t} b USING (id) ORDER BY a.id", lambda rows: rows),
    ("enable_hashjoin,enable_nestloop", "SELECT a.id, b.v, a.pad FROM {t} a JOIN {t} b ON a.id = b.id ORDER BY a.id", lambda rows: rows),
    ("enable_nestloop,enable_mergejoin", "SELECT a.id, a.v, b.pad FROM {t} a JOIN {t} b ON a.id = b.id ORDER BY a.id", lambda rows: rows),
    ("", "SELECT a.id, (SELECT v FROM {t} b WHERE b.id = a.id), a.pad FROM {t} a ORDER BY 1", lambda rows: rows),
    ("", "SELECT a.id, l.v, l.pad FROM {t} a, LATERAL (SELECT v, pad FROM {t} b WHERE b.id = a.id OFFSET 0) l ORDER BY 1", lambda rows: rows),
    ("", "SELECT id, v, pad FROM (SELECT *, lag(pad) OVER (ORDER BY id) FROM {t}) w ORDER BY id", lambda rows: rows),
    ("", "SELECT id, v, min(pad) FROM {t} GROUP BY id, v ORDER BY id", lambda rows: rows),
    ("", "SELECT s.id, s.v, s.pad FROM of_{t}() s ORDER BY 1", lambda rows: rows),
    ("", "SELECT a.id, f.v, f.pad FROM {t} a, one_of_{t}(a.id) f ORDER BY 1", lambda rows: rows),
    ("", "SELECT (r).id, (r).v, (r).pad FROM (SELECT each_of_{t}() AS r) x ORDER BY 1", lambda rows: rows),
    ("", "SELECT id, v, pad FROM {t} ORDER BY random() LIMIT 1000", None),
    ("", "SELECT id, v, pad FROM {t} WHERE id IN (SELECT id FROM {t} WHERE v >= 0) ORDER BY pad, id", None),
    ("", "SELECT id, v, pad FROM {t} TABLESAMPLE BERNOULLI (100) ORDER BY id", lambda rows: rows),
    ("", "WITH w AS MATERIALIZED (SELECT * FROM {t}) SELECT w.id, w.v, t.pad FROM w JOIN {t} t USING (id) ORDER BY 1", lambda rows: rows),
)
# No row comes back: a difference is an ERROR. Each statement of the block is a run of its own.
BLOCK = """DO $$ DECLARE r {t}; s {t}; c CURSOR FOR SELECT * FROM {t} ORDER BY id; n int := 0; BEGIN
    OPEN c;
    LOOP
        FETCH c INTO r; EXIT WHEN NOT FOUND;
        SELECT * INTO s FROM {t} WHERE id = r.id;
        IF s IS DISTINCT FROM r THEN RAISE EXCEPTION '% is not %', s, r; END IF;
        n := n + 1;
    END LOOP;
    CLOSE c;
    IF n <> (SELECT count(*) FROM {t}) THEN RAISE EXCEPTION '% rows', n; END IF;
END $$"""
CURSORS = ("SELECT id, v, pad FROM {t}", "SELECT id, v, pad FROM {t} WHERE id > 0 ORDER BY id", "SELECT a.id, b.v, a.pad FROM {t} a JOIN {t} b USING (id)",
           "SELECT id, v, pad FROM {t} ORDER BY pad, id", "SELECT (of_{t}()).*")

FUNCTIONS = """
    CREATE FUNCTION of_{t}() RETURNS TABLE (id int, v bigint, pad text) LANGUAGE plpgsql STABLE AS $$
    DECLARE r record; s record;
    BEGIN
        FOR r IN SELECT t.id, t.v FROM {t} t LOOP
            SELECT t.pad INTO s FROM {t} t WHERE t.id = r.id;
            RETURN QUERY SELECT r.id, r.v, s.pad;
        END LOOP;
    END $$;
    CREATE FUNCTION one_of_{t}(n int) RETURNS {t} LANGUAGE plpgsql STABLE AS $$
    DECLARE c CURSOR FOR SELECT * FROM {t} WHERE id = n; r {t};
    BEGIN
        OPEN c; FETCH c INTO r; CLOSE c;
        RETURN r;
    EXCEPTION WHEN division_by_zero THEN RETURN NULL;
    END $$;
    CREATE FUNCTION each_of_{t}() RETURNS SETOF {t} LANGUAGE sql VOLATILE AS 'SELECT * FROM {t}'
"""


def make(admin, name, protocol, kind):
    create_table(admin, name, "id int PRIMARY KEY, k int, v bigint, pad text", kind, partitions=3, protocol=protocol)
    query(admin, f"INSERT INTO {name} SELECT id, id % 7, 0, {TEXT.replace('v', '0')} FROM generate_series(1, {ROWS}) id")
    query(admin, f"CREATE INDEX ON {name} (k); ANALYZE {name}")
    query(admin, FUNCTIONS.format(t=name))


def write(name, until, seed, done):
    """Updates of rows, and rows that are deleted and inserted again with what they had."""
    session, dice = connect(DATABASE), random.Random(seed)
    while time.time() < until or not done:
        row = dice.randint(1, ROWS)
        try:
            if dice.random() < 0.05:
                query(session, f"WITH d AS (DELETE FROM {name} WHERE id = {row} RETURNING *) SELECT 1 FROM d; "
                               f"INSERT INTO {name} SELECT id, id % 7, 0, {TEXT.replace('v', '0')} FROM (SELECT {row} AS id) r ON CONFLICT DO NOTHING")
            else:
                query(session, f"DO $$ BEGIN FOR i IN 1..40 LOOP UPDATE {name} SET v = v + 1, pad = {TEXT.replace('v', '(v + 1)')} "
                               f"WHERE id = 1 + ({row} + i * 7) % {ROWS}; COMMIT; END LOOP; END $$")
            done.append(40)
        except psycopg2.Error as error:
            if error.pgcode not in ("40001", "40P01"):
                raise
    session.close()


def same(name, what, found, wanted, problems):
    if found != wanted:
        differ = [(f, w) for f, w in zip(found, wanted) if f != w][:2]
        problems.append((name, what, len(found), len(wanted), differ))


def fetched(session, name, statement, dice, rows, problems):
    """A cursor, of which parts are read between other statements."""
    query(session, f"DECLARE parts NO SCROLL CURSOR FOR {statement.format(t=name)}")
    found = []
    while True:
        part = query(session, f"FETCH {dice.randint(1, 90)} FROM parts")
        if not part:
            break
        found += part
        if dice.random() < 0.3:
            same(name, "beside a cursor", query(session, f"SELECT sum(v) FROM {name}"), [(total(rows),)], problems)
        time.sleep(dice.random() / 200)
    query(session, "CLOSE parts")
    same(name, statement, sorted(found), rows, problems)


def read(name, until, seed, problems, done, options):
    session, dice = connect(DATABASE, options=options), random.Random(seed)
    while (time.time() < until or len(done) < 20) and not problems:
        query(session, f"BEGIN ISOLATION LEVEL {dice.choice(LEVELS)}")
        rows = query(session, f"SELECT id, v, pad FROM {name} ORDER BY id")
        problems += [(name, "broken at its begin", n, v, pad) for n, v, pad in rows if pad != text(n, v)]
        for _ in range(dice.randint(1, 12)):
            kind = dice.random()
            if kind < 0.1:
                query(session, BLOCK.format(t=name))
            elif kind < 0.3:
                fetched(session, name, dice.choice(CURSORS), dice, rows, problems)
            else:
                off, statement, wanted = dice.choice(STATEMENTS)
                for setting in filter(None, off.split(",")):
                    query(session, f"SET LOCAL {setting} = off")
                if dice.random() < 0.2:
                    query(session, "SAVEPOINT s")
                found = query(session, statement.format(t=name))
                same(name, statement, found if wanted else sorted(found), wanted(rows) if wanted else rows, problems)
                query(session, "RESET ALL")
            done.append(1)
            time.sleep(dice.random() / 100)
        query(session, "COMMIT")
    session.close()


def guarded(problems, f, *arguments):
    try:
        f(*arguments)
    except (RuntimeError, psycopg2.Error) as error:
        problems.append((f.__name__, repr(error)))


KINDS = [(p, kind) for p in protocols.ALL for kind in ("", "UNLOGGED")]


def test_reads(kinds=KINDS, options=""):
    admin = connect(DATABASE)
    for name, (protocol, kind) in enumerate(kinds):
        make(admin, f"r{name}", protocol, kind)
    for name, (protocol, kind) in enumerate(kinds):
        until, problems, writes, reads = time.time() + seconds(3, 20), [], [], []
        threads = [threading.Thread(target=guarded, args=(problems, write, f"r{name}", until, seed, writes)) for seed in range(2)]
        threads += [threading.Thread(target=guarded, args=(problems, read, f"r{name}", until, seed, problems, reads, options)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        what = f"{protocol}, {kind or 'permanent'}"
        equal(f"{what}: each statement finds its snapshot's rows", problems[:3], [])
    equal("no row is made of two versions", value(admin, " + ".join(f"(SELECT count(*) FROM r{n} WHERE pad <> {TEXT})" for n in range(len(kinds))).join(("SELECT ", ""))), 0)
    admin.close()


def test_faults():
    boss = connect("postgres")
    if value(boss, "SELECT current_setting('mixedcc.fault', true)") is None:
        check("resting: the build has no deliberate faults", False)
        return
    boss.close()
    with_fault = functools.partial(test_reads, [("occ", "UNLOGGED")], "-c mixedcc.fault=rests_forgetfully")
    must_be_found("rests_forgetfully", "occ, UNLOGGED: each statement finds its snapshot's rows", with_fault)


if __name__ == "__main__":
    make_database(DATABASE).close()
    main(test_faults if "--faults" in sys.argv else test_reads, lambda: drop_database(DATABASE))
