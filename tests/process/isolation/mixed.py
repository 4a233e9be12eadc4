#!/usr/bin/python3
"""SERIALIZABLE transactions over mixedcc tables and heap tables, with mixedcc.mixed_serializable =
serializable. Interleavings of which each rule must prevent one; what is refused; sessions that are
cancelled or terminated while they commit. Histories of both kinds of tables are in `mixtures`.

--faults: in a build with deliberate faults each rule is taken out, and must be missed."""

import os
import sys
import threading
import time

import psycopg2

from lib import protocols
from lib.common import (RETRY, check, connect, create_table, drop_database, equal, main, make_database, must_be_found, must_come,
                        premise, query, reload, value, waits_for_lock)
from lib.standing import Point

DATABASE = "process_mixed"
FAULT = ""
# The turn of a mixed commit: see src/README.md, locks.
TURN = "SELECT count(*) FROM pg_locks WHERE locktype = 'userlock' AND objsubid = 12 AND granted"


def tables(admin, protocol="occ", kind=""):
    query(admin, "DROP TABLE IF EXISTS m, h")
    create_table(admin, "m", "k int PRIMARY KEY, v int", kind, protocol=protocol)
    query(admin, "CREATE TABLE h (k int PRIMARY KEY, v int) USING heap")
    for t in ("m", "h"):
        query(admin, f"INSERT INTO {t} SELECT i, 0 FROM generate_series(1, 20) i")
    # Rows of their own pages, so that SSI sees each by itself.
    query(admin, "ANALYZE h")


class Session:
    """A session. Errors of serialization are remembered, not raised."""

    def __init__(self, begin="SERIALIZABLE", settings=""):
        options = f"-c mixedcc.mixed_serializable=serializable -c enable_seqscan=off -c deadlock_timeout=50ms {settings}"
        self.connection = connect(DATABASE, options=options)
        if FAULT:
            query(self.connection, f"SET mixedcc.fault = '{FAULT}'")
        self.pid = self.connection.info.backend_pid
        self.error = self.thread = None
        if begin:
            query(self.connection, "BEGIN ISOLATION LEVEL " + begin)

    def run(self, sql):
        if self.error:
            return None
        try:
            return query(self.connection, sql)
        except psycopg2.Error as error:
            self.error = error.pgcode or "lost"
            return None

    def get(self, table, key):
        rows = self.run(f"SELECT v FROM {table} WHERE k = {key}")
        return rows and rows[0][0]

    def put(self, table, key, v=1):
        self.run(f"UPDATE {table} SET v = {v} WHERE k = {key}")

    def commit(self):
        """True: it has committed."""
        if self.error:
            if not self.connection.closed:
                query(self.connection, "ROLLBACK")
            return False
        self.run("COMMIT")
        return self.error is None

    def start_commit(self):
        self.thread = threading.Thread(target=self.run, args=("COMMIT",))
        self.thread.start()

    def stop_at(self, event, key):
        """Its commit stands at this event, until `key` is free."""
        query(self.connection, f"SET mixedcc.stop_events = on; SELECT mixedcc.set_stop_event('{event}', 'wait {key}')")

    def end(self):
        if self.thread:
            self.thread.join()
        self.connection.close()


class Held:
    """An advisory lock of the administrator's, at which a session stands."""

    def __init__(self, admin, key=77):
        self.admin, self.key = admin, key
        query(admin, f"SELECT pg_advisory_lock({key})")

    def free(self):
        query(self.admin, f"SELECT pg_advisory_unlock({self.key})")


def end(*sessions):
    for s in sessions:
        s.end()


# --- each rule -------------------------------------------------------------------

def read_is_replaced(admin, protocol="occ", kind=""):
    """R1: B does not see A in heap, and sees it in ours."""
    tables(admin, protocol, kind)
    a, b = Session(), Session()
    before = b.get("h", 1)
    a.put("h", 1)
    a.put("m", 1)
    premise("R1: A commits", a.commit())
    after = b.get("m", 1)
    b.put("h", 2)
    b.put("m", 2)
    done = b.commit()
    check("R1: who misses a commit in heap does not see it in ours", not (done and before == 0 and after == 1), (before, after))
    end(a, b)


def ends_in_turn(admin):
    """R2: heap shows mixed commits in the order of their CSNs. A reads a row of ours that B
    replaces, so A is before B; T sees B in heap and not A."""
    tables(admin)
    held = Held(admin)
    a, b = Session(), Session()
    a.stop_at("commit_decided", held.key)
    a.get("m", 1)
    a.put("m", 3)
    a.put("h", 1)
    b.put("h", 2)
    a.start_commit()
    must_come(lambda: waits_for_lock(admin, a.pid))
    b.put("m", 1)
    b.start_commit()
    if FAULT == "mixed_together":
        b.thread.join()
    else:
        must_come(lambda: waits_for_lock(admin, b.pid))
    t = Session()
    seen = t.get("h", 1), t.get("h", 2)
    t.commit()
    held.free()
    end(a, b, t)
    check("R2: heap shows mixed commits in their order", not (seen == (0, 1) and not a.error and not b.error), (seen, a.error, b.error))
    equal("R2: both commit", (a.error, b.error), (None, None))


def sees_both_parts(admin):
    """R3: M has its CSN, and heap does not show it yet. V would see it in ours alone."""
    tables(admin)
    held = Held(admin)
    m, v = Session(), Session("SERIALIZABLE READ ONLY")
    m.stop_at("commit_decided", held.key)
    m.put("h", 1)
    m.put("m", 1)
    m.start_commit()
    must_come(lambda: waits_for_lock(admin, m.pid))
    in_heap = v.get("h", 1)
    held.free()
    m.thread.join()
    in_ours = v.get("m", 1)
    done = v.commit()
    check("R3: a reader sees both parts of a commit or none", not (done and in_heap != in_ours), (in_heap, in_ours))
    end(m, v)


def no_path_by_heap(admin):
    """R3 again: M has read what T replaces, after M's test. V sees T, and M in ours not: M is
    before T, T before V, and V before M."""
    tables(admin)
    held = Held(admin)
    m, t, v = Session(), Session(), Session("SERIALIZABLE READ ONLY")
    m.stop_at("commit_decided", held.key)
    m.get("h", 2)
    t.get("h", 9)
    m.put("h", 1)
    m.put("m", 1)
    m.start_commit()
    must_come(lambda: waits_for_lock(admin, m.pid))
    t.put("h", 2)
    premise("R3: T commits", t.commit())
    seen = v.get("h", 2)
    held.free()
    m.thread.join()
    ours = v.get("m", 1)
    done = v.commit()
    check("R3: nor what came after a commit, without it", not (done and seen == 1 and m.error is None), (seen, ours, m.error))
    end(m, t, v)


def readers_do_not_cross(admin):
    """R3: V takes its snapshot of heap before a commit there, and that of ours later than W. W sees
    the commit in heap, and does not see what came in ours between the two."""
    tables(admin)
    query(admin, "CREATE OR REPLACE FUNCTION waits(bigint) RETURNS void LANGUAGE internal IMMUTABLE AS 'pg_advisory_xact_lock_int8'")
    held = Held(admin)
    v, w = Session("SERIALIZABLE READ ONLY"), Session("SERIALIZABLE READ ONLY")
    seen_by_v = []
    # The planner calls the function: the snapshot of heap is there, and that of ours is not.
    beside = threading.Thread(target=lambda: seen_by_v.append(v.run(f"SELECT v FROM h WHERE k = 1 AND waits({held.key}) IS NOT NULL")))
    beside.start()
    must_come(lambda: waits_for_lock(admin, v.pid))
    query(admin, "UPDATE h SET v = 1 WHERE k = 1")
    by_w = w.get("h", 1), w.get("m", 1)
    premise("R3: W commits", w.commit())
    query(admin, "UPDATE m SET v = 1 WHERE k = 1")
    held.free()
    beside.join()
    by_v = seen_by_v[0] and seen_by_v[0][0][0], v.get("m", 1)
    done = v.commit()
    check("R3: two readers see commits of both kinds in one order", not (done and by_w == (1, 0) and by_v == (0, 1)), (by_w, by_v))
    end(v, w)


def readers_of_heap_count(admin):
    """M writes in ours alone, but SSI must take it for a writer: M reads what T replaces, T reads
    what B replaces, and M sees B in ours."""
    tables(admin)
    m, t, b = Session(), Session(), Session()
    m.get("h", 1)
    t.get("h", 2)
    b.put("h", 2)
    b.put("m", 2)
    premise("readers of heap: B commits", b.commit())
    seen = m.get("m", 2)
    m.put("m", 9)
    first = m.commit()
    t.put("h", 1)
    last = t.commit()
    check("readers of heap: they are part of SSI's structures", not (seen == 1 and first and last), (seen, first, last))
    end(m, t, b)


def commits_are_marked_in_order(admin):
    """R4: heap shows T3 before T5, and SSI marks T5 first. T5 has missed T3, and R has seen it. R
    misses T5, so R is before T5, T5 before T3, and T3 before R. All is heap."""
    for begin in ("SERIALIZABLE READ ONLY", "SERIALIZABLE"):
        tables(admin)
        t3, t5, r = Session(), Session(), Session(begin)
        t5.get("h", 2)
        t3.put("h", 2)
        point = Point("commit-shown")
        query(t3.connection, f"SET mixedcc.stop_events = on; SET mixedcc.kill_at = '{point.setting}'")
        t3.start_commit()
        point.must_stand()
        seen = r.get("h", 2)
        t5.put("h", 4)
        t5.start_commit()
        must_come(lambda: value(admin, "SELECT v FROM h WHERE k = 4") == 1)
        if FAULT:
            t5.thread.join()
        point.go()
        t3.thread.join()
        t5.thread.join()
        missed = r.get("h", 4)
        if begin == "SERIALIZABLE":
            r.put("h", 9)
        done = r.commit()
        check("R4: heap's commits are marked in the order in which it shows them", not (done and (seen, missed) == (1, 0)), (begin, seen, missed))
        equal("R4: both writers commit", (t3.error, t5.error), (None, None))
        end(t3, t5, r)


def the_wait_for_a_mark_can_be_canceled(admin):
    """A commit has been shown, and waits for the mark of another one: a cancel ends the wait."""
    tables(admin)
    t3, t5 = Session(), Session()
    t5.get("h", 2)
    t3.put("h", 2)
    point = Point("commit-shown")
    query(t3.connection, f"SET mixedcc.stop_events = on; SET mixedcc.kill_at = '{point.setting}'")
    t3.start_commit()
    point.must_stand()
    t5.put("h", 4)
    t5.start_commit()
    must_come(lambda: value(admin, "SELECT v FROM h WHERE k = 4") == 1)
    premise("R4: the commit waits", t5.thread.is_alive())
    query(admin, f"SELECT pg_cancel_backend({t5.pid})")
    t5.thread.join(30)
    check("R4: a cancel ends the wait", not t5.thread.is_alive())
    check("R4: it says so", any("not marked as committed" in notice for notice in t5.connection.notices), t5.connection.notices)
    point.go()
    t3.thread.join()
    equal("R4: both have committed", (t3.error, t5.error), (None, None))
    end(t3, t5)


RULES = {
    "mixed_missed": ("R1: who misses a commit in heap does not see it in ours", read_is_replaced),
    "mixed_together": ("R2: heap shows mixed commits in their order", ends_in_turn),
    "mixed_torn": ("R3: a reader sees both parts of a commit or none", sees_both_parts),
    "mixed_crossed": ("R3: two readers see commits of both kinds in one order", readers_do_not_cross),
    "mixed_unmarked": ("R4: heap's commits are marked in the order in which it shows them", commits_are_marked_in_order),
    "mixed_reader": ("readers of heap: they are part of SSI's structures", readers_of_heap_count),
}


def test_rules():
    admin = connect(DATABASE)
    for protocol in protocols.ALL:
        for kind in ("", "UNLOGGED"):
            read_is_replaced(admin, protocol, kind)
    for _, rule in RULES.values():
        rule(admin)
    no_path_by_heap(admin)
    the_wait_for_a_mark_can_be_canceled(admin)
    admin.close()


def test_faults():
    global FAULT
    admin = connect(DATABASE)
    for FAULT, (name, rule) in RULES.items():
        must_be_found(FAULT, name, lambda rule=rule: rule(admin))
    FAULT = "mixed_torn"
    must_be_found(FAULT + ", by a path", "R3: nor what came after a commit, without it", lambda: no_path_by_heap(admin))
    FAULT = ""
    admin.close()


# --- which tables it has used ----------------------------------------------------

# Ways of a change that names no table of ours, or of heap: rows go to a partition, or C code and
# utilities write.
WRITES_OURS = {
    "a row that is routed": "INSERT INTO parts VALUES (1)",
    "a row that an UPDATE moves": "UPDATE parts SET k = 1 WHERE k = 101",
    "COPY": "COPY parts FROM PROGRAM 'echo 1'",
    "TRUNCATE": "TRUNCATE in_ours",
    "TRUNCATE of the parent": "TRUNCATE parts",
    "CREATE TABLE AS": "CREATE TABLE made USING mixedcc AS SELECT 1",
}
WRITES_HEAP = {
    "a row that is routed": "INSERT INTO parts VALUES (102)",
    "COPY": "COPY parts FROM PROGRAM 'echo 102'",
    "TRUNCATE": "TRUNCATE in_heap",
    "CREATE TABLE AS": "CREATE TABLE made AS SELECT 1",
}
NEITHER = {
    "rows with a unique key": "INSERT INTO m VALUES (99, 0); DELETE FROM m WHERE k = 98",
    "a row that is routed to ours": "INSERT INTO parts VALUES (1)",
    "a transaction id": "SELECT pg_current_xact_id()",
    "definitions": "CREATE TABLE made (k int)",
    "nextval": "SELECT nextval('numbers') FROM generate_series(1, 40)",
    "EXPLAIN of heap": "EXPLAIN UPDATE h SET v = 1",
}


def make_parts(admin):
    query(admin, "DROP TABLE IF EXISTS parts; DROP SEQUENCE IF EXISTS numbers; CREATE SEQUENCE numbers")
    query(admin, "CREATE TABLE parts (k int) PARTITION BY RANGE (k)")
    query(admin, "CREATE TABLE in_ours PARTITION OF parts FOR VALUES FROM (0) TO (100) USING mixedcc")
    query(admin, "CREATE TABLE in_heap PARTITION OF parts FOR VALUES FROM (100) TO (200) USING heap")
    query(admin, "INSERT INTO parts VALUES (2), (101)")


def test_kinds():
    admin = connect(DATABASE)
    for name, sql in WRITES_OURS.items():
        tables(admin)
        make_parts(admin)
        a, b = Session(), Session()
        a.get("h", 1)
        b.run("SELECT count(*) FROM in_ours")
        b.put("h", 1)
        premise("kinds: B commits", b.commit())
        if "moves" in name:
            a.run("SELECT count(*) FROM h WHERE k = 3")
        a.run(sql)
        committed = a.commit()
        # CREATE TABLE AS conflicts by what A has read of h alone; but it counts.
        check(f"kinds: {name} counts as a use of ours", not committed and a.error == "40001", a.error)
        end(a, b)
    for name, sql in WRITES_HEAP.items():
        tables(admin)
        make_parts(admin)
        refused(f"PREPARE after {name} in heap", "SERIALIZABLE", "UPDATE m SET v = 1 WHERE k = 1", sql, "PREPARE TRANSACTION 'mixed'")
    for name, sql in NEITHER.items():
        tables(admin)
        make_parts(admin)
        s = Session()
        s.run("UPDATE m SET v = 1 WHERE k = 1")
        s.run(sql)
        s.run("PREPARE TRANSACTION 'mixed'")
        equal(f"kinds: {name}: no use of heap", s.error, None)
        query(admin, "ROLLBACK PREPARED 'mixed'")
        end(s)
    query(admin, "ALTER SYSTEM SET track_counts = off")
    reload(admin)
    tables(admin)
    refused("PREPARE after an INSERT that is not counted", "SERIALIZABLE", "INSERT INTO m VALUES (99, 0)", "PREPARE TRANSACTION 'mixed'")
    query(admin, "ALTER SYSTEM RESET track_counts")
    reload(admin)
    query(admin, "DROP TABLE parts; DROP SEQUENCE numbers")
    admin.close()


def torn_by_workers(admin, workers, look):
    """R3: M has its CSN, and heap does not show it when V takes its snapshots. V sees M in ours."""
    held = Held(admin)
    m, v = Session(), Session("SERIALIZABLE READ ONLY", workers)
    m.stop_at("commit_decided", held.key)
    m.put("h", 1)
    m.put("m", 1)
    m.start_commit()
    must_come(lambda: waits_for_lock(admin, m.pid))
    v.run(look)
    held.free()
    m.thread.join()
    in_ours = v.get("m", 1)
    check("workers: who is no cut fails at its commit", not v.commit() and v.error == "40001", (v.error, in_ours))
    end(m, v)


def test_workers():
    """A function in a parallel worker reads heap; the statement names neither kind, or ours."""
    admin = connect(DATABASE)
    tables(admin)
    query(admin, "CREATE OR REPLACE FUNCTION peeks_at(oid) RETURNS bigint LANGUAGE plpgsql PARALLEL SAFE AS 'BEGIN RETURN (SELECT max(v) FROM h); END'")
    workers = ("-c parallel_setup_cost=0 -c parallel_tuple_cost=0 -c min_parallel_table_scan_size=0 -c max_parallel_workers_per_gather=2 "
               "-c parallel_leader_participation=off -c enable_seqscan=on -c enable_indexscan=off -c enable_indexonlyscan=off -c enable_bitmapscan=off")
    look = "SELECT max(peeks_at(oid)) FROM pg_class"
    for begin in ("SERIALIZABLE", "SERIALIZABLE READ ONLY"):
        a, b = Session(begin, workers), Session()
        premise("workers: the plan has them", "Gather" in str(query(a.connection, "EXPLAIN " + look)))
        before = a.run("SELECT sum(v) FROM m")
        if begin == "SERIALIZABLE READ ONLY":
            premise("workers: and this one", "Gather" in str(query(a.connection, "EXPLAIN SELECT max(peeks_at(k::oid)) FROM m")))
            a.run("SELECT max(peeks_at(k::oid)) FROM m")
        if begin == "SERIALIZABLE":
            a.run(look)
            b.get("m", 1)
            b.put("h", 1)
            premise("workers: B commits", b.commit())
            a.put("m", 1)
            check("workers: who misses a commit in heap fails", not a.commit() and a.error == "40001", (a.error, before))
        else:
            a.run(look)
            check("workers: a cut commits", a.commit(), a.error)
            torn_by_workers(admin, workers, look)
        end(a, b)
    admin.close()


def test_prepared_beside():
    """A transaction over heap that has only been prepared is no commit that others miss."""
    admin = connect(DATABASE)
    tables(admin)
    p, m = Session(), Session()
    m.get("h", 1)
    p.put("h", 1)
    p.run("PREPARE TRANSACTION 'beside'")
    m.put("m", 1)
    check("prepared: a mixed transaction commits beside it", m.commit(), (m.error, p.error))
    late = Session()
    before = late.get("h", 1)
    query(admin, "COMMIT PREPARED 'beside'")
    late.put("m", 2)
    check("prepared: and not after it has missed its commit", not late.commit() and late.error == "40001", (late.error, before))
    end(p, m, late)
    admin.close()


# --- what SSI has forgotten ------------------------------------------------------

def test_summarised():
    """SSI has room for ten transactions a connection. While M runs, those that have committed stay;
    the oldest are summarised when there is no room."""
    admin = connect(DATABASE)
    room = 10 * (int(value(admin, "SHOW max_connections")) + int(value(admin, "SHOW max_prepared_transactions")))
    for late in (False, True):
        tables(admin)
        m, a = Session(), Session()
        before = m.get("h", 2 if late else 1)
        a.put("h", 1)
        a.put("m", 1)
        premise("summarised: A commits", a.commit())
        many = Session(begin="")
        query(many.connection, "SET default_transaction_isolation = 'serializable'; PREPARE more AS UPDATE h SET v = v + 1 WHERE k = 20")
        for _ in range(room + 100):
            query(many.connection, "EXECUTE more")
        before = m.get("h", 1) if late else before
        after = m.get("m", 1)
        m.put("m", 2)
        done = m.commit()
        check("summarised: who misses a commit in heap does not see it in ours", not (done and before == 0 and after == 1), (late, before, after))
        end(m, a, many)
    admin.close()


# --- what commits ----------------------------------------------------------------

def test_commits():
    admin = connect(DATABASE)
    for kind in ("", "UNLOGGED"):
        for synchronous in ("on", "off"):
            tables(admin, kind=kind)
            settings = f"-c synchronous_commit={synchronous}"
            for number, begin in enumerate(("SERIALIZABLE", "SERIALIZABLE READ ONLY", "SERIALIZABLE READ ONLY DEFERRABLE")):
                s = Session(begin, settings)
                seen = s.get("h", 1), s.get("m", 1)
                if begin == "SERIALIZABLE":
                    s.put("h", 1)
                    s.put("m", 1)
                name = f"commits: {begin}, {kind or 'logged'}, synchronous_commit {synchronous}"
                check(name, s.commit() and seen == ((1, 1) if number else (0, 0)), (s.error, seen))
                end(s)
    # In any order, with savepoints, by COPY, cursors, functions, and as one statement.
    tables(admin)
    s = Session()
    s.put("m", 1)
    s.run("SAVEPOINT a")
    s.put("h", 1)
    s.run("ROLLBACK TO a")
    s.run("DECLARE c CURSOR FOR SELECT m.v FROM m JOIN h USING (k) ORDER BY k")
    s.run("FETCH 1 FROM c")
    s.run("INSERT INTO h SELECT k + 100, v FROM m")
    s.run("WITH moved AS (DELETE FROM h WHERE k = 5 RETURNING *) INSERT INTO m SELECT k + 100, v FROM moved")
    check("commits: statements over both", s.commit(), s.error)
    equal("commits: what they leave", query(admin, "SELECT (SELECT count(*) FROM m), (SELECT count(*) FROM h)"), [(21, 39)])
    equal("commits: no turn is left", value(admin, TURN), 0)
    end(s)
    # It may become READ ONLY: it counts as one that writes.
    s = Session()
    for sql in ("SELECT v FROM h WHERE k = 1", "SET TRANSACTION READ ONLY", "SELECT v FROM m WHERE k = 1"):
        s.run(sql)
    check("commits: READ ONLY after the first query", s.commit(), s.error)
    end(s)
    # Transactions over one kind take no turn.
    held = Held(admin)
    one, other = Session(), Session()
    one.stop_at("commit_decided", held.key)
    one.put("h", 1)
    one.put("m", 1)
    one.start_commit()
    must_come(lambda: waits_for_lock(admin, one.pid))
    for table in ("m", "h"):
        query(other.connection, f"COMMIT; BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE {table} SET v = 2 WHERE k = 7")
        check(f"commits: a transaction over {table} alone does not wait for a mixed one", other.commit(), other.error)
        query(other.connection, "BEGIN ISOLATION LEVEL SERIALIZABLE")
    held.free()
    one.thread.join()
    check("commits: then the mixed one does", one.error is None, one.error)
    end(one, other)
    admin.close()


# --- ends in the middle ----------------------------------------------------------

def test_ends():
    admin = connect(DATABASE)
    for event in ("commit_lock", "commit_register", "commit_validate", "commit_decided"):
        tables(admin)
        s = Session()
        query(s.connection, f"SET mixedcc.stop_events = on; SELECT mixedcc.set_stop_event('{event}', 'error')")
        s.put("m", 1)
        s.put("h", 1)
        check(f"ends: an error at {event}", not s.commit() and s.error not in RETRY, s.error)
        equal(f"ends: after an error at {event} no turn is left, and no change", (value(admin, TURN), query(admin, "SELECT sum(v) FROM m UNION ALL SELECT sum(v) FROM h")),
              (0, [(0,), (0,)]))
        end(s)
    for how, code in (("pg_cancel_backend", "57014"), ("pg_terminate_backend", "57P01"), (None, "55P03")):
        tables(admin)
        held = Held(admin)
        first, second = Session(), Session(settings="" if how else "-c lock_timeout=300ms")
        first.stop_at("commit_decided", held.key)
        for number, s in enumerate((first, second), 1):
            s.put("m", number)
            s.put("h", number)
        first.start_commit()
        must_come(lambda: waits_for_lock(admin, first.pid))
        second.start_commit()
        if how:
            must_come(lambda: waits_for_lock(admin, second.pid))
            query(admin, f"SELECT {how}({second.pid})")
        second.thread.join()
        # A session that is terminated in COMMIT may lose its connection first.
        check(f"ends: {how or 'lock_timeout'} while it waits for its turn", second.error == code or how == "pg_terminate_backend" and second.error == "lost", second.error)
        held.free()
        first.thread.join()
        equal(f"ends: {how or 'lock_timeout'}: the other one commits", (first.error, query(admin, "SELECT sum(v) FROM m UNION ALL SELECT sum(v) FROM h")),
              (None, [(1,), (1,)]))
        if not second.connection.closed:
            query(second.connection, "ROLLBACK")
        must_come(lambda: value(admin, TURN) == 0)
        end(first, second)
    admin.close()


# --- refusals --------------------------------------------------------------------

def refused(name, begin, *statements):
    s = Session(begin)
    for sql in statements:
        s.run(sql)
    done = s.commit()
    check(f"refused: {name}", not done and s.error == "0A000", s.error)
    end(s)


def test_refusals():
    admin = connect(DATABASE)
    tables(admin, kind="UNLOGGED")
    both = "SELECT count(*) FROM m JOIN h USING (k)"
    refused("PREPARE TRANSACTION", "SERIALIZABLE", "UPDATE m SET v = 1 WHERE k = 1; UPDATE h SET v = 1 WHERE k = 1", "PREPARE TRANSACTION 'mixed'")
    refused("PREPARE TRANSACTION after DDL", "SERIALIZABLE", "UPDATE m SET v = 1 WHERE k = 1; CREATE TABLE made AS SELECT 1", "PREPARE TRANSACTION 'mixed'")
    refused("the first query in a READ ONLY savepoint", "SERIALIZABLE", "SAVEPOINT a; SET TRANSACTION READ ONLY", "SELECT v FROM h WHERE k = 1", "ROLLBACK TO a", both)
    refused("the setting after the first query", "SERIALIZABLE READ ONLY", "SET mixedcc.mixed_serializable = allow", "SELECT v FROM h WHERE k = 1",
            "SET mixedcc.mixed_serializable = serializable", both)
    refused("REPEATABLE READ that is serializable on ours", "REPEATABLE READ", "SET mixedcc.serializable_at = 'repeatable read'", "UPDATE m SET v = 1 WHERE k = 1", both)
    host, port = os.environ["PGHOST"], os.environ["PGPORT"]
    query(admin, f"CREATE EXTENSION postgres_fdw; CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '{host}', port '{port}', dbname '{DATABASE}')")
    query(admin, "CREATE USER MAPPING FOR CURRENT_USER SERVER far; CREATE FOREIGN TABLE f (k int) SERVER far OPTIONS (table_name 'm')")
    refused("a foreign table", "SERIALIZABLE", both, "SELECT count(*) FROM f")
    refused("a foreign table before", "SERIALIZABLE", "SELECT count(*) FROM f", both)
    make_parts(admin)
    query(admin, "CREATE FOREIGN TABLE far_part PARTITION OF parts FOR VALUES FROM (200) TO (300) SERVER far OPTIONS (table_name 'h')")
    refused("a foreign partition, to which a row is routed", "SERIALIZABLE", both, "INSERT INTO parts VALUES (201)")
    refused("a foreign partition of a COPY", "SERIALIZABLE", both, "COPY parts FROM PROGRAM 'echo 201'")
    query(admin, "DROP TABLE parts")
    exporter = Session("SERIALIZABLE READ ONLY")
    snapshot = exporter.run("SELECT count(*) FROM m") and exporter.run("SELECT pg_export_snapshot()")[0][0]
    refused("an imported snapshot", "SERIALIZABLE READ ONLY", f"SET TRANSACTION SNAPSHOT '{snapshot}'", both)
    end(exporter)
    query(admin, "DROP EXTENSION postgres_fdw CASCADE")
    admin.close()


def run():
    make_database(DATABASE).close()
    if sys.argv[1:2] == ["--faults"]:
        test_faults()
    else:
        for test in (test_rules, test_kinds, test_workers, test_prepared_beside, test_commits, test_ends, test_refusals, test_summarised):
            test()
    drop_database(DATABASE)


if __name__ == "__main__":
    main(run)
