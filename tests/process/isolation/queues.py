#!/usr/bin/python3
"""Tables as queues: takers with FOR UPDATE SKIP LOCKED at SERIALIZABLE and READ COMMITTED. What a
taker skips fails neither taker, what it gets is as it was tested, and each job is taken once."""

import collections
import itertools
import random
import threading
import time

import psycopg2

from lib import protocols
from lib.common import OURS, RETRY, check, connect, create_table, drop_database, equal, main, make_database, must_come, query, seconds, set_protocol, value
from lib.tables import WAYS

DATABASE = "process_queues"
SETTINGS = {name: {"protocol": name} for name in protocols.ALL} if OURS else {"heap": {}}
# Sessions at one partition's lock take turns: a taker waits for the one before.
ROW_BY_ROW = [name for name in SETTINGS if not OURS or not protocols.has(name, "locks_partitions")]
SHAPES = {
    "head": ("SELECT id FROM {t} ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED", "DELETE FROM {t} WHERE id = %s"),
    "status": ("SELECT id FROM {t} WHERE status = 'ready' ORDER BY id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED", "UPDATE {t} SET status = 'done' WHERE id = %s"),
    "one statement": (None, "UPDATE {t} SET status = 'done' WHERE id = (SELECT id FROM {t} WHERE status = 'ready' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id"),
    "sorted": ("SELECT id FROM {t} WHERE status = 'ready' AND id < 1000000 ORDER BY n, id LIMIT 1 FOR UPDATE SKIP LOCKED", "DELETE FROM {t} WHERE id = %s"),
}


def make(name, **settings):
    query(BOSS, f"DROP TABLE IF EXISTS {name}, taken")
    create_table(BOSS, name, "id int PRIMARY KEY, status text, n int", partitions=1, **settings) if OURS else create_table(BOSS, name, "id int PRIMARY KEY, status text, n int")
    query(BOSS, f"CREATE INDEX ON {name} (status, id)")
    create_table(BOSS, "taken", "id int, taker int")


def take(session, shape, table):
    """The job that the session has taken, or None."""
    found, done = (sql and sql.format(t=table) for sql in SHAPES[shape])
    if found is None:
        rows = query(session, done)
        return rows[0][0] if rows else None
    rows = query(session, found)
    if rows:
        query(session, done, (rows[0][0],))
    return rows[0][0] if rows else None


# --- two sessions ----------------------------------------------------------------

def test_skipped_rows_do_not_count():
    """Two takers pass each other, each committed after the other has begun, and an enqueuer and a
    reader of the skipped job pass both."""
    for name, shape, way in itertools.product(ROW_BY_ROW, SHAPES, WAYS):
        if not OURS or shape == "sorted":
            continue  # heap at SERIALIZABLE and scans that are read to their end: rows in them count
        make("jobs", **SETTINGS[name])
        query(BOSS, "INSERT INTO jobs SELECT i, 'ready', 0 FROM generate_series(1, 10) i")
        one, two = (connect(DATABASE, options=f"{WAYS[way]} -c lock_timeout=5s -c enable_seqscan=off -c enable_bitmapscan=off") for _ in range(2))
        got = []
        try:
            for session in (one, two):
                query(session, "BEGIN ISOLATION LEVEL SERIALIZABLE")
            got += [take(one, shape, "jobs"), take(two, shape, "jobs")]
            query(BOSS, "INSERT INTO jobs VALUES (0, 'ready', 0), (100, 'ready', 0)")
            query(one, "COMMIT")
            query(two, "INSERT INTO taken VALUES (2, 2)")
            query(two, "COMMIT")
        except psycopg2.Error as error:
            got.append(error.pgcode or str(error))
        equal(f"queues: takers pass each other, {shape}, {way}, {name}", got, [1, 2])
        one.close()
        two.close()


def test_rows_are_tested_under_their_lock():
    """A job changes, or is deleted, after the scan has looked at it and before it is locked. READ
    COMMITTED follows one that moved, and tests it there."""
    query(BOSS, """CREATE FUNCTION held(id int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
        IF id = 1 AND current_setting('my.waits', true) = 'yes' THEN PERFORM pg_advisory_lock(1); PERFORM pg_advisory_unlock(1); END IF;
        RETURN true; END $$""")
    scans = {"status": "status = 'ready'", "key": "id > 0"}
    sql = "SELECT id, n FROM jobs WHERE {} AND n = 0 AND held(id) ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"
    changes = {"changed": ("UPDATE jobs SET n = 1 WHERE id = 1", [(2, 0)]), "deleted": ("DELETE FROM jobs WHERE id = 1", [(2, 0)]),
               "moved": ("UPDATE jobs SET status = 'done' WHERE id = 1", [(2, 0)]), "the same": ("SELECT 1", [(1, 0)])}
    for name, (what, (change, wanted)), scan, level in itertools.product(ROW_BY_ROW, changes.items(), scans, ("SERIALIZABLE", "READ COMMITTED")):
        if not OURS and level == "SERIALIZABLE":
            continue
        if (what, scan, level) == ("moved", "key", "READ COMMITTED"):
            wanted = [(1, 0)]
        make("jobs", **SETTINGS[name])
        query(BOSS, "INSERT INTO jobs SELECT i, 'ready', 0 FROM generate_series(1, 3) i")
        one = connect(DATABASE, options="-c lock_timeout=10s -c enable_seqscan=off -c enable_bitmapscan=off -c my.waits=yes")
        query(BOSS, "SELECT pg_advisory_lock(1)")
        got = []

        def run(one=one, got=got, sql=sql.format(scans[scan]), level=level):
            try:
                query(one, f"BEGIN ISOLATION LEVEL {level}")
                got.append(query(one, sql))
                query(one, "UPDATE jobs SET n = 2 WHERE id = %s", (got[0][0][0],))
                query(one, "COMMIT")
            except psycopg2.Error as error:
                got.append(error.pgcode or str(error))

        thread = threading.Thread(target=run)
        thread.start()
        must_come(lambda: value(BOSS, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == 1)
        query(BOSS, change)
        query(BOSS, "SELECT pg_advisory_unlock(1)")
        thread.join(20)
        equal(f"queues: a row that was {what} before its lock, by {scan}, {level}, {name}", got, [wanted])
        one.close()


# --- many sessions ---------------------------------------------------------------

class Load:
    """Enqueuers and takers of one table, by one shape, for some time, until some jobs are taken.

    Enqueuers rest while many jobs are ready, as users' do: a taker that reads the whole table at
    SERIALIZABLE fails whenever an enqueuer commits beside it, so takers need such rests.
    """

    TAKEN, READY, LIMIT = 5, 50, 30  # jobs, jobs, seconds

    def __init__(self, shape, level, limit, seed):
        self.shape, self.level, self.seed = shape, level, seed
        self.end = time.monotonic() + limit
        self.limit = self.end + self.LIMIT
        self.counts, self.mutex = collections.Counter(), threading.Lock()
        self.next = itertools.count(1)
        self.problems = []

    def count(self, what, how_many):
        with self.mutex:
            self.counts[what] += how_many

    def goes_on(self):
        now = time.monotonic()
        return now < self.end or (self.counts["taken"] < self.TAKEN and now < self.limit)

    def enqueue(self, number):
        session, r = connect(DATABASE), random.Random(self.seed + number)
        while self.goes_on():
            if self.counts["ready"] - self.counts["taken"] >= self.READY:
                time.sleep(0.01)
                continue
            job = next(self.next)
            try:
                query(session, f"BEGIN ISOLATION LEVEL {self.level}")
                query(session, "INSERT INTO jobs VALUES (%s, 'ready', %s)", (job, r.randrange(3)))
                undone = r.random() < 0.1
                query(session, "ROLLBACK" if undone else "COMMIT")
                self.count("ready", 0 if undone else 1)
            except psycopg2.Error as error:
                self.failed(session, error)
        session.close()

    def failed(self, session, error):
        if error.pgcode not in (*RETRY, "57014"):
            self.problems.append(str(error))
        self.count(error.pgcode, 1)
        query(session, "ROLLBACK")

    def take_one(self, session, number, r):
        query(session, f"BEGIN ISOLATION LEVEL {self.level}")
        if r.random() < 0.2:
            query(session, "SAVEPOINT s")
            take(session, self.shape, "jobs")
            query(session, "ROLLBACK TO s")
        jobs = {take(session, self.shape, "jobs") for _ in range(r.choice((1, 1, 2)))} - {None}
        for job in jobs:
            query(session, "INSERT INTO taken VALUES (%s, %s)", (job, number))
        undone = r.random() < 0.1
        query(session, "ROLLBACK" if undone else "COMMIT")
        self.count("taken", 0 if undone else len(jobs))

    def take(self, number):
        session, r = connect(DATABASE), random.Random(self.seed + number)
        while self.goes_on():
            try:
                self.take_one(session, number, r)
            except psycopg2.Error as error:
                self.failed(session, error)
        session.close()

    def disturb(self, number):
        """Cancels statements, and has the protocol switched."""
        session, r = connect(DATABASE), random.Random(self.seed + number)
        names = itertools.cycle(protocols.ALL)
        while self.goes_on():
            time.sleep(0.03)
            query(session, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = %s AND query LIKE 'SELECT id FROM jobs%%' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1", (DATABASE,))
            if OURS and self.switches and r.random() < 0.3:
                set_protocol(session, "jobs", next(names), wait=False)
        session.close()

    def run(self, switches):
        self.switches = switches
        work = [self.enqueue] * 2 + [self.take] * 4 + [self.disturb]
        threads = [threading.Thread(target=w, args=(n,)) for n, w in enumerate(work)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def judge(name, load, shape):
    left = {row[0] for row in query(BOSS, "SELECT id FROM jobs WHERE status = 'ready'")}
    done = {row[0] for row in query(BOSS, "SELECT id FROM jobs WHERE status = 'done'")}
    taken = [row[0] for row in query(BOSS, "SELECT id FROM taken")]
    twice = [job for job, n in collections.Counter(taken).items() if n > 1]
    bad = twice or left & set(taken) or (shape in ("status", "one statement") and done != set(taken)) or len(taken) != load.counts["taken"]
    check(f"queues: each job is taken once, {name}", not bad and not load.problems, (twice[:5], sorted(left & set(taken))[:5], sorted(done ^ set(taken))[:5], load.counts, load.problems[:2]))
    check(f"queues: jobs are taken, {name}", load.counts["taken"] >= load.TAKEN, load.counts)


def test_each_job_is_taken_once():
    cases = [(name, shape, level, False) for name, shape in itertools.product(SETTINGS, SHAPES) for level in ("SERIALIZABLE", "READ COMMITTED")]
    cases = [c for c in cases if c[2] == "SERIALIZABLE" or c[1] == "head"]
    if OURS:
        cases += [(protocols.ALL[0], shape, "SERIALIZABLE", True) for shape in ("head", "status")]
    each = seconds(8, 120) / len(cases)
    for seed, (name, shape, level, switches) in enumerate(cases):
        make("jobs", **SETTINGS[name])
        load = Load(shape, level, each, 100 * seed)
        load.run(switches)
        judge(f"{shape}, {level}, {'switches' if switches else name}", load, shape)


BOSS = make_database(DATABASE)
try:
    main(test_skipped_rows_do_not_count, test_rows_are_tested_under_their_lock, test_each_job_is_taken_once)
finally:
    BOSS.close()
    drop_database(DATABASE)
