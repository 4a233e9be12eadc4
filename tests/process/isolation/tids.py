#!/usr/bin/python3
"""Fetches by TID at SERIALIZABLE, of rows that are not there yet.

A transaction looks for a row by its TID, and finds none. Before it has protected the place, another
one inserts a row there, changes a second table and commits. The first one must not see the change
without the row. The argument --faults runs it with each deliberate fault of a test build, which it
must find.
"""

import sys
import threading

from lib.common import OURS, check, connect, drop_database, main, make_database, must_be_found, must_come, options, premise, query, value
from lib.standing import Point

DATABASE = "process_tids"
FAULT = ""
# In a table with one row: behind its last record, in its block and in the next one.
PLACES = ("(0,2)", "(1,1)")


class Reader:
    """A transaction in a thread of its own."""

    def __init__(self, tid):
        self.connection = connect(DATABASE)
        if FAULT:
            query(self.connection, f"SET mixedcc.fault = '{FAULT}'")
        self.point = Point("tid-looked")
        query(self.connection, f"SET mixedcc.stop_events = on; SET mixedcc.kill_at = '{self.point.setting}'")
        query(self.connection, "BEGIN ISOLATION LEVEL SERIALIZABLE")
        self.rows = None
        self.thread = threading.Thread(target=self.look, args=(tid,))
        self.thread.start()

    def look(self, tid):
        self.rows = value(self.connection, f"SELECT count(*) FROM t WHERE ctid = '{tid}'")

    def end(self):
        """Whether it has committed, and what it has seen."""
        self.thread.join(60)
        seen = (self.rows, value(self.connection, "SELECT v FROM other"))
        query(self.connection, "COMMIT")
        self.connection.close()
        return seen


def make(admin):
    query(admin, "DROP TABLE IF EXISTS t, other")
    query(admin, f"CREATE TABLE t (v int) USING mixedcc {options(protocol='occ')}")
    query(admin, f"CREATE TABLE other (v int) USING mixedcc {options(protocol='occ')}")
    query(admin, "INSERT INTO t VALUES (0); INSERT INTO other VALUES (0)")


def test_a_row_that_comes_is_seen_with_what_came_with_it():
    admin = make_database(DATABASE)
    for tid, inserted in zip(PLACES, (1, 256)):
        make(admin)
        reader = Reader(tid)
        must_come(lambda: reader.point.stands() or not reader.thread.is_alive())
        premise(f"tids: the look for {tid} stands", reader.point.stands())
        query(admin, f"BEGIN; INSERT INTO t SELECT generate_series(1, {inserted}); UPDATE other SET v = 1; COMMIT")
        premise(f"tids: the row came to {tid}", value(admin, f"SELECT count(*) FROM t WHERE ctid = '{tid}'") == 1)
        reader.point.go()
        seen = reader.end()
        check(f"tids: {tid}: no change is seen without the row", seen != (0, 1), seen)
    admin.close()


def test_faults():
    global FAULT
    with connect("postgres") as boss:
        built = value(boss, "SELECT current_setting('mixedcc.fault', true)")
    if not OURS or built is None:
        check("tids: the build has no deliberate faults", False)
        return
    FAULT = "tid_looked_once"
    for tid in PLACES:
        must_be_found(FAULT, f"tids: {tid}: no change is seen without the row", test_a_row_that_comes_is_seen_with_what_came_with_it)


def finish():
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_faults if "--faults" in sys.argv else test_a_row_that_comes_is_seen_with_what_came_with_it, finish)
