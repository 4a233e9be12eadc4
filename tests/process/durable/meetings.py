#!/usr/bin/python3
"""Commits, rounds, checkpoints and drops that meet at a chosen moment: a process sleeps at a stop
event, and another one goes past it. Then the server is killed. Each test would lose or make
something with a fault of the engine that is named with it.

`meetings NAME...` runs some tests. `meetings --faults [FAULT...]` needs a build with the feature
`faults`; each fault must be found by its test."""

import contextlib
import io
import os
import sys
import threading
import time
import traceback

from lib import common, crash
from lib.common import check, drop_database, equal, fail, failures, make_database, ok, query, server, value

DATABASE = "process_meetings"


def connect(event=None):
    """A session whose commits are flushed. It sleeps at the event, if there is one."""
    connection = common.connect(DATABASE, options="-c synchronous_commit=on "
                                                  "-c client_min_messages=warning")
    if event:
        query(connection, f"SET mixedcc.kill_at = '{event}'")
    return connection


class Beside(threading.Thread):
    """A statement in a session of its own."""

    def __init__(self, sql, event=None):
        super().__init__(daemon=True)
        self.connection, self.sql, self.error = connect(event), sql, None
        self.start()

    def run(self):
        try:
            query(self.connection, self.sql)
        except Exception as error:
            self.error = error
        self.connection.close()

    def end(self):
        self.join(60)
        if self.is_alive() or self.error:
            raise RuntimeError(f"{self.sql}: {self.error or 'does not end'}")


def companion_sleeps(event):
    crash.configure(mixedcc__kill_at=event, **SERVER_SETTINGS, **FAULT)
    crash.reload()
    time.sleep(0.5)


# No round but those of the test, no flush but those of commits and checkpoints, and commits without
# a transaction id.
SERVER_SETTINGS = {"mixedcc.time_marks": "-1", "checkpoint_timeout": "1h", "wal_writer_delay": "10s", "autovacuum": "off"}


def begin(connection):
    """A table whose only row is in images, and another one."""
    query(connection, "DROP TABLE IF EXISTS r, other")
    query(connection, "CREATE TABLE r (n int, v text) USING mixedcc; INSERT INTO r VALUES (0, '')")
    query(connection, "CREATE TABLE other (n int, v text) USING mixedcc; INSERT INTO other SELECT i, '' FROM generate_series(1, 100) i")
    query(connection, "CHECKPOINT")


def crash_and(connection):
    connection.close()
    crash.kill_group()
    crash.configure(**SERVER_SETTINGS, **FAULT)
    crash.start()
    return connect()


FAULT = {}


def test_release():
    """A round is made that a VACUUM has asked for. A checkpoint begins behind it, and is released
    only after another round (`releases_blindly`)."""
    connection = connect()
    begin(connection)
    # It sleeps between the round and the release, and behind each release.
    companion_sleeps("round-logged:1:2000,round-released:0:1000")
    asked = Beside("VACUUM other")
    time.sleep(2)
    check("release: the round is under way", asked.is_alive())
    query(connection, "UPDATE r SET n = 1")
    query(connection, "CHECKPOINT")
    connection = crash_and(connection)
    asked.join(5)
    equal("release: the commit before the checkpoint is found", query(connection, "SELECT n FROM r"), [(1,)])
    connection.close()


def test_windows():
    """The redo pointer is fixed while a commit is between its record and its mark
    (`windows_not_awaited`, `window_opens_late`)."""
    connection = connect()
    begin(connection)
    commit = Beside("UPDATE r SET n = 1", "commit-inserted:1:2000")
    time.sleep(0.7)
    begun = time.monotonic()
    query(connection, "CHECKPOINT")
    waited = time.monotonic() - begun
    commit.end()
    connection = crash_and(connection)
    equal("windows: the commit is found", query(connection, "SELECT n FROM r"), [(1,)])
    check("windows: the checkpoint has waited for it", waited > 0.3, waited)
    connection.close()


def test_marks():
    """A round takes a bit while its commit is between mark and bits (`bits_before_mark`)."""
    connection = connect()
    begin(connection)
    companion_sleeps("round-begins:1:1500")
    first = Beside("CHECKPOINT")
    time.sleep(0.5)
    commit = Beside("UPDATE r SET n = 1", "commit-marked:1:2500")
    first.end()
    commit.end()
    query(connection, "CHECKPOINT")
    connection = crash_and(connection)
    equal("marks: the commit is found", query(connection, "SELECT n FROM r"), [(1,)])
    connection.close()


def test_bits():
    """A row changes again while its image is on its way into WAL (`bit_cleared_after_look`)."""
    connection = connect()
    begin(connection)
    query(connection, "UPDATE r SET n = 1")
    companion_sleeps("batch-full:1:1500")
    first = Beside("CHECKPOINT")
    time.sleep(0.6)
    query(connection, "UPDATE r SET n = 2")
    check("bits: the round is under way", first.is_alive())
    first.end()
    query(connection, "CHECKPOINT")
    connection = crash_and(connection)
    equal("bits: the second change is found", query(connection, "SELECT n FROM r"), [(2,)])
    connection.close()


def test_flags():
    """A row changes again after a round has gone past it, and before the round's end
    (`flag_cleared_last`)."""
    connection = connect()
    begin(connection)
    query(connection, "INSERT INTO r SELECT i, '' FROM generate_series(1, 300) i")
    query(connection, "CHECKPOINT")
    query(connection, "UPDATE r SET v = 'a' WHERE n IN (0, 300)")
    companion_sleeps("bit-cleared:2:1500")
    first = Beside("CHECKPOINT")
    time.sleep(0.6)
    query(connection, "UPDATE r SET v = 'b' WHERE n = 0")
    check("flags: the round is under way", first.is_alive())
    first.end()
    query(connection, "CHECKPOINT")
    connection = crash_and(connection)
    equal("flags: the second change is found", query(connection, "SELECT v FROM r WHERE n = 0"), [("b",)])
    connection.close()


def test_files():
    """The image of a table is inserted behind the commit that drops it (`redo_makes_files`)."""
    connection = connect()
    begin(connection)
    path = value(connection, "SELECT current_setting('data_directory') || '/' || pg_relation_filepath('r')")
    query(connection, "UPDATE r SET n = 1")
    companion_sleeps("batch-full:1:2000")
    first = Beside("CHECKPOINT")
    time.sleep(0.6)
    query(connection, "DROP TABLE r")
    first.end()
    query(connection, "INSERT INTO other VALUES (101, '')")
    connection = crash_and(connection)
    equal("files: other tables are there", value(connection, "SELECT count(*) FROM other"), 101)
    check("files: recovery has not made the file again", not os.path.exists(path) and not os.path.exists(path + "_fsm"))
    connection.close()


TESTS = {"release": test_release, "windows": test_windows, "marks": test_marks, "bits": test_bits, "flags": test_flags, "files": test_files}
FAULTS = {"releases_blindly": "release", "windows_not_awaited": "windows", "window_opens_late": "windows",
          "bits_before_mark": "marks", "bit_cleared_after_look": "bits", "flag_cleared_last": "flags",
          "redo_makes_files": "files"}
# A fault may need some tries.
TRIES = 5


def run(name):
    try:
        crash.configure(**SERVER_SETTINGS, **FAULT)
        crash.reload()
        time.sleep(0.5)
        TESTS[name]()
    except Exception:
        fail(name, traceback.format_exc())
        if crash.has_postmaster():
            crash.kill_group()
        crash.configure(**SERVER_SETTINGS, **FAULT)
        crash.start()


def must_be_found(fault):
    """The server stays, with the fault off; its tables are made anew."""
    FAULT["mixedcc.fault"] = fault
    known, said, tries = len(failures), io.StringIO(), 0
    with contextlib.redirect_stdout(said):
        while tries < TRIES and len(failures) == known:
            tries += 1
            run(FAULTS[fault])
    found = len(failures) > known
    del failures[known:]
    FAULT.clear()
    (ok if found else fail)(f"found: {fault}")
    lines = [line for line in said.getvalue().splitlines() if not line.startswith("ok ")]
    print(f"  in try {tries}:", *lines[:4], sep="\n    ", flush=True)


def main():
    connection = make_database(DATABASE)
    crash.find_server(connection)
    connection.close()
    server("stop")
    crash.configure(**SERVER_SETTINGS)
    crash.start()
    if sys.argv[1:2] == ["--faults"]:
        for fault in sys.argv[2:] or FAULTS:
            must_be_found(fault)
    else:
        for name in sys.argv[1:] or TESTS:
            run(name)
    server("stop")
    crash.give_back()
    server("start")
    drop_database(DATABASE)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
