#!/usr/bin/env python3
"""Commits that are held before they are done, as those of permanent tables are until they are
flushed and replicated. READ COMMITTED and REPEATABLE READ leave them out. SERIALIZABLE transactions
read them, and end after them. VACUUM, index builds and exported snapshots know of them."""

import threading
import time

import psycopg2

from lib import protocols
from lib.common import METHOD, check, connect, drop_database, equal, main, make_database, query, value

DATABASE = "mixedcc_held_commits"
HOLD = 1.2


def fresh(admin, protocol):
    query(admin, f"DROP TABLE IF EXISTS t; CREATE UNLOGGED TABLE t (id int PRIMARY KEY, n int) USING {METHOD} "
                 f"WITH (mixedcc.partitions = 2, mixedcc.protocol = '{protocol}')")
    query(admin, "INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i")


class Held:
    """A session whose commit is under way, held for some time."""

    def __init__(self, statements, seconds=HOLD):
        self.connection = connect(DATABASE)
        query(self.connection, f"SET mixedcc.stop_events = on; SET mixedcc.hold_commits = {int(seconds * 1000)}")
        query(self.connection, "BEGIN ISOLATION LEVEL SERIALIZABLE")
        for s in statements:
            query(self.connection, s)
        self.thread = threading.Thread(target=lambda: query(self.connection, "COMMIT"))
        self.begun = time.monotonic()
        self.thread.start()
        time.sleep(0.2)

    def end(self):
        self.thread.join()
        self.connection.close()

    def is_open(self):
        return self.thread.is_alive()


def session(level):
    s = connect(DATABASE)
    query(s, "BEGIN ISOLATION LEVEL " + level)
    return s


def test_levels():
    admin = connect(DATABASE)
    for protocol in protocols.ALL:
        fresh(admin, protocol)
        for level in ("READ COMMITTED", "REPEATABLE READ"):
            held = Held(["UPDATE t SET n = 1 WHERE id = 1", "DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (30, 0)"])
            s = session(level)
            seen = "SELECT (SELECT n FROM t WHERE id = 1), (SELECT count(*) FROM t), (SELECT sum(n) FROM t WHERE id < 5)"
            first = query(s, seen)
            check(f"{protocol}, {level}: it was held then", held.is_open())
            equal(f"{protocol}, {level}: what is not done is left out", first, [(0, 20, 0)])
            held.end()
            rest = [(1, 20, 1)] if level == "READ COMMITTED" else [(0, 20, 0)]
            equal(f"{protocol}, {level}: afterwards", query(s, seen), rest)
            query(s, "COMMIT")
            s.close()
            equal(f"{protocol}, {level}: then all see it", query(admin, seen), [(1, 20, 1)])
            fresh(admin, protocol)
    admin.close()


def test_serializable():
    admin = connect(DATABASE)
    for level in ("SERIALIZABLE", "SERIALIZABLE READ ONLY"):
        fresh(admin, "occ")
        held = Held(["INSERT INTO t VALUES (30, 7)"])
        s = session(level)
        equal(f"{level} reads what is logged", query(s, "SELECT n FROM t WHERE id = 30"), [(7,)])
        check(f"{level}: it was held then", held.is_open())
        query(s, "COMMIT")
        check(f"{level}: COMMIT comes after it", time.monotonic() - held.begun >= HOLD - 0.1)
        held.end()
        held = Held(["INSERT INTO t VALUES (31, 7)"])
        query(s, "BEGIN ISOLATION LEVEL " + level)
        query(s, "SELECT n FROM t WHERE id = 5")
        query(s, "COMMIT")
        check(f"{level}: a transaction that has not read it does not wait", held.is_open())
        held.end()
        s.close()
    fresh(admin, "occ")
    held = Held(["INSERT INTO t VALUES (30, 7)"])
    writer = session("SERIALIZABLE")
    query(writer, "INSERT INTO t SELECT id + 10, n FROM t WHERE id = 30")
    done = threading.Thread(target=lambda: query(writer, "COMMIT"))
    done.start()
    time.sleep(0.2)
    reader = session("REPEATABLE READ")
    equal("a commit that has read it is left out with it", value(reader, "SELECT count(*) FROM t WHERE id >= 30"), 0)
    check("it was held then", held.is_open())
    held.end()
    done.join()
    equal("one snapshot stays as it is", value(reader, "SELECT count(*) FROM t WHERE id >= 30"), 0)
    equal("and both are there", value(admin, "SELECT sum(n) FROM t WHERE id >= 30"), 14)
    for s in (writer, reader, admin):
        s.close()


def test_cancel():
    admin = connect(DATABASE)
    fresh(admin, "occ")
    held = Held(["INSERT INTO t VALUES (30, 7)"], seconds=3)
    s = session("SERIALIZABLE READ ONLY")
    query(s, "SELECT n FROM t WHERE id = 30")
    pid = s.info.backend_pid
    later = threading.Timer(0.3, lambda: query(admin, f"SELECT pg_cancel_backend({pid})"))
    later.start()
    try:
        query(s, "COMMIT")
        code = None
    except psycopg2.Error as e:
        code = e.pgcode
    later.join()
    equal("a reader that waits at COMMIT can be cancelled", code, "57014")
    check("it was held then", held.is_open())
    held.end()
    s.close()
    admin.close()


def test_old_snapshots():
    """What a snapshot leaves out stays for it, whatever comes afterwards."""
    admin = connect(DATABASE)
    fresh(admin, "occ")
    held = Held(["UPDATE t SET n = 1", "DELETE FROM t WHERE id <= 10"])
    old = session("REPEATABLE READ")
    equal("the old rows", query(old, "SELECT count(*), sum(n) FROM t"), [(20, 0)])
    name = value(old, "SELECT pg_export_snapshot()")
    check("it was held then", held.is_open())
    held.end()
    for i in range(20):
        query(admin, f"UPDATE t SET n = n + 1 WHERE id > 10; INSERT INTO t VALUES ({100 + i}, 0); DELETE FROM t WHERE id = {100 + i}")
    query(admin, "VACUUM t")
    query(admin, "CREATE INDEX t_n ON t (n)")
    query(admin, "INSERT INTO t SELECT i, 9 FROM generate_series(200, 300) i")
    equal("they are there behind VACUUM", query(old, "SELECT count(*), sum(n) FROM t"), [(20, 0)])
    equal("by the key", query(old, "SELECT n FROM t WHERE id = 3"), [(0,)])
    query(old, "SET enable_seqscan = off")
    equal("by a range of the key", query(old, "SELECT count(*) FROM t WHERE id BETWEEN 2 AND 12"), [(11,)])
    equal("by an index that was made since", query(old, "SELECT count(*) FROM t WHERE n = 0"), [(20,)])
    importer = session("REPEATABLE READ")
    query(importer, f"SET TRANSACTION SNAPSHOT '{name}'")
    equal("an importer", query(importer, "SELECT count(*), sum(n) FROM t"), [(20, 0)])
    importer.close()
    query(old, "COMMIT")
    old.close()
    admin.close()


def test_cursors():
    """A cursor keeps the list of its statement, others take theirs meanwhile."""
    admin = connect(DATABASE)
    fresh(admin, "occ")
    held = Held(["UPDATE t SET n = 1"])
    s = session("READ COMMITTED")
    query(s, "DECLARE c CURSOR FOR SELECT n FROM t")
    equal("before", query(s, "FETCH 2 FROM c"), [(0,), (0,)])
    second = Held(["UPDATE t SET n = 2 WHERE id = 100", "INSERT INTO t VALUES (60, 60)"])
    for _ in range(50):
        equal("others", value(s, "SELECT count(*) FROM t WHERE id = 60"), 0)
    held.end()
    second.end()
    equal("now", value(s, "SELECT count(*) FROM t WHERE n = 1"), 20)
    query(admin, "UPDATE t SET n = 5")
    query(admin, "VACUUM t")
    equal("the cursor goes on", query(s, "FETCH ALL FROM c"), [(0,)] * 18)
    query(s, "COMMIT")
    s.close()
    admin.close()


def run():
    make_database(DATABASE).close()
    test_levels()
    test_serializable()
    test_cancel()
    test_old_snapshots()
    test_cursors()
    drop_database(DATABASE)


if __name__ == "__main__":
    main(run)
