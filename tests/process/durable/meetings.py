#!/usr/bin/python3
"""Commits, rounds, checkpoints and drops that meet at a chosen moment: a process stands at a stop
event, and another one goes past it. Then the server is killed. Each test would lose or make
something with a fault of the engine that is named with it.

`meetings NAME...` runs some tests. `meetings --faults [FAULT...]` needs a build with the feature
`faults`; each fault must be found by its test."""

import contextlib
import io
import os
import signal
import sys
import threading
import time
import traceback

from lib import common, crash
from lib.common import (check, drop_database, equal, fail, failures, make_database, ok, premise, query, server,
                        value)
from lib.standing import Point

DATABASE = "process_meetings"


def connect(event=None):
    """A session whose commits are flushed. It stands at the event, if there is one."""
    connection = common.connect(DATABASE, options="-c synchronous_commit=on "
                                                  "-c client_min_messages=warning")
    if event:
        query(connection, f"SET mixedcc.kill_at = '{event.setting}'")
    return connection


class Beside(threading.Thread):
    """A statement in a session of its own."""

    def __init__(self, sql, event=None):
        super().__init__(daemon=True)
        self.connection, self.sql, self.error, self.rows = connect(event), sql, None, None
        self.start()
        if event:
            event.must_stand()

    def run(self):
        try:
            self.rows = query(self.connection, self.sql)
        except Exception as error:
            self.error = error
        self.connection.close()

    def end(self):
        self.join(60)
        if self.is_alive() or self.error:
            raise RuntimeError(f"{self.sql}: {self.error or 'does not end'}")
        return self.rows

    def soon_waits(self):
        """What it waits for is to begin, and it does not end before that."""
        self.join(0.7)
        return self.is_alive()


def companion_stands(event, number=1, more=""):
    """The companion is to stand there."""
    point = Point(event, number)
    crash.configure(mixedcc__kill_at=point.setting + more, **SERVER_SETTINGS, **FAULT)
    reload()
    return point


def reload():
    """The postmaster has read the settings, and has told all processes."""
    def loaded():
        connection = common.connect("postgres")
        at = value(connection, "SELECT pg_conf_load_time()")
        connection.close()
        return at

    before = loaded()
    crash.reload()
    common.must_come(lambda: loaded() > before)
    time.sleep(0.1)


# No round but those of the test, no flush but those of commits and checkpoints, and commits without
# a transaction id.
SERVER_SETTINGS = {"mixedcc.time_marks": "-1", "checkpoint_timeout": "1h", "wal_writer_delay": "10s", "autovacuum": "off"}


def begin(connection):
    """A table whose only row is in images, and another one."""
    query(connection, "DROP TABLE IF EXISTS r, other; CREATE TABLE IF NOT EXISTS beside (n int) USING heap")
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
    # It stands between the round and the release, and sleeps behind each release.
    point = companion_stands("round-logged", more=",round-released:0:1000")
    asked = Beside("VACUUM other")
    point.must_stand()
    query(connection, "UPDATE r SET n = 1")
    checkpoint = Beside("CHECKPOINT")
    checkpoint.soon_waits()
    point.go()
    checkpoint.end()
    connection = crash_and(connection)
    asked.join(5)
    equal("release: the commit before the checkpoint is found", query(connection, "SELECT n FROM r"), [(1,)])
    connection.close()


def test_windows():
    """The redo pointer is fixed while a commit is between its record and its mark
    (`windows_not_awaited`, `window_opens_late`)."""
    connection = connect()
    begin(connection)
    point = Point("commit-inserted")
    commit = Beside("UPDATE r SET n = 1", point)
    checkpoint = Beside("CHECKPOINT")
    waits = checkpoint.soon_waits()
    point.go()
    checkpoint.end()
    commit.end()
    connection = crash_and(connection)
    equal("windows: the commit is found", query(connection, "SELECT n FROM r"), [(1,)])
    check("windows: the checkpoint has waited for it", waits)
    connection.close()


def test_halves():
    """A statement over heap and mixedcc has PostgreSQL's snapshot with a commit, and sees it as not
    done. It is done before the statement asks for its id (`half_shown`)."""
    connection = connect()
    begin(connection)
    query(connection, "TRUNCATE beside; INSERT INTO beside VALUES (0)")
    bits, listed = Point("commit-bits"), Point("snapshot-listed")
    commit = Beside("BEGIN; UPDATE beside SET n = 1; UPDATE r SET n = 1; COMMIT", bits)
    reader = Beside("SELECT (SELECT n FROM beside), (SELECT n FROM r)", listed)
    bits.go()
    commit.end()
    listed.go()
    equal("halves: both of a commit are seen", reader.end(), [(1, 1)])
    connection.close()


def test_marks():
    """A round takes a bit while its commit is between mark and bits (`bits_before_mark`)."""
    connection = connect()
    begin(connection)
    begins, marked = companion_stands("round-begins"), Point("commit-marked")
    first = Beside("CHECKPOINT")
    begins.must_stand()
    commit = Beside("UPDATE r SET n = 1", marked)
    begins.go()
    first.soon_waits()
    marked.go()
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
    point = companion_stands("batch-full")
    first = Beside("CHECKPOINT")
    point.must_stand()
    query(connection, "UPDATE r SET n = 2")
    point.go()
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
    point = companion_stands("bit-cleared", 2)
    first = Beside("CHECKPOINT")
    point.must_stand()
    query(connection, "UPDATE r SET v = 'b' WHERE n = 0")
    point.go()
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
    point = companion_stands("batch-full")
    first = Beside("CHECKPOINT")
    point.must_stand()
    drop = Beside("DROP TABLE r")
    drop.soon_waits()
    point.go()
    drop.end()
    first.end()
    query(connection, "INSERT INTO other VALUES (101, '')")
    connection = crash_and(connection)
    equal("files: other tables are there", value(connection, "SELECT count(*) FROM other"), 101)
    check("files: recovery has not made the file again", not os.path.exists(path) and not os.path.exists(path + "_fsm"))
    connection.close()


def test_bits_in_window():
    """The redo pointer is fixed while a commit is between its mark and the bits
    (`window_closes_early`)."""
    connection = connect()
    begin(connection)
    point = Point("commit-bits")
    commit = Beside("UPDATE r SET n = 1", point)
    checkpoint = Beside("CHECKPOINT")
    checkpoint.soon_waits()
    point.go()
    checkpoint.end()
    commit.end()
    connection = crash_and(connection)
    equal("bits in window: the commit is found", query(connection, "SELECT n FROM r"), [(1,)])
    connection.close()


def test_hold():
    """The companion stands when a checkpoint begins (`no_hold`)."""
    connection = connect()
    begin(connection)
    point = companion_stands("round-begins")
    query(connection, "UPDATE r SET n = 1")
    checkpoint = Beside("CHECKPOINT")
    if checkpoint.soon_waits():
        point.must_stand()
        point.go()
    checkpoint.end()
    connection = crash_and(connection)
    equal("hold: the commit before the checkpoint is found", query(connection, "SELECT n FROM r"), [(1,)])
    connection.close()


def test_once():
    """The checkpointer fixes its redo pointer, and looks which processes hold it only after the
    round. A line for the server's log that cannot be written stops it in between
    (`releases_once`)."""
    crash.configure(**SERVER_SETTINGS, **FAULT, logging_collector="on", log_checkpoints="on")
    server("stop")
    crash.start()
    connection = connect()
    begin(connection)
    query(connection, "UPDATE r SET n = 1")
    collector = process("logger")
    os.kill(collector, signal.SIGSTOP)
    # Lines that are shorter than the checkpointer's fill the pipe to the log's collector. With the
    # statement they would be longer, and leave room for its line.
    Beside("SET log_error_verbosity = terse; SET log_min_error_statement = panic;"
           "DO $$ BEGIN FOR i IN 1..5000 LOOP RAISE LOG 'x'; END LOOP; END $$")
    time.sleep(0.5)
    first = Beside("CHECKPOINT")
    time.sleep(1)
    # A checkpoint that stands at its last line has looked long ago: it is in the control file.
    over = "SELECT redo_lsn < round_redo AND dirty_rows = 0 FROM pg_control_checkpoint(), mixedcc.durability"
    premise("once: the round is over before the look", common.wait_until(lambda: value(connection, over)) and first.is_alive())
    os.kill(collector, signal.SIGCONT)
    first.join(10)
    check("once: the checkpoint ends", not first.is_alive())
    connection = crash_and(connection)
    equal("once: the commit is found", query(connection, "SELECT n FROM r"), [(1,)])
    connection.close()


def process(title):
    """The child of the postmaster with this title."""
    for pid in crash.children(crash.postmaster()):
        with open(f"/proc/{pid}/cmdline", encoding="ascii") as file:
            if title in file.read():
                return pid
    raise RuntimeError(f"there is no {title}")


def test_pending():
    """A checkpoint comes while a commit under a transaction id is logged and undecided
    (`pending_left_out`)."""
    connection = connect()
    begin(connection)
    point = Point("xcommit-marked")
    commit = Beside("BEGIN; INSERT INTO beside VALUES (1); UPDATE r SET n = 1; COMMIT", point)
    query(connection, "CHECKPOINT")
    point.go()
    commit.end()
    connection = crash_and(connection)
    equal("pending: the commit is found", query(connection, "SELECT n FROM r"), [(1,)])
    connection.close()


def test_split():
    """A checkpoint comes between the records of a commit that has several: its redo pointer is
    behind the first one, whose rows are in images only. Then the commit is whole, or it is cut off
    (`pending_left_out`)."""
    for ending in ("answered", "cut off"):
        connection = connect()
        begin(connection)
        before = value(connection, "SELECT pg_current_wal_insert_lsn()")
        point = Point("xcommit-marked")
        commit = Beside("BEGIN; INSERT INTO beside VALUES (1); UPDATE r SET n = 1;"
                        "INSERT INTO r SELECT i, repeat('s', 1000) FROM generate_series(2, 3000) i; COMMIT", point)
        query(connection, "CHECKPOINT")
        size = value(connection, "SELECT redo_lsn - %s::pg_lsn FROM pg_control_checkpoint()", (before,))
        premise(f"split, {ending}: the checkpoint begins between two of its records", 1_000_000 < size < 2_000_000, size)
        if ending == "answered":
            point.go()
            commit.end()
        connection = crash_and(connection)
        commit.join(10)
        equal(f"split: {ending}", query(connection, "SELECT count(*), min(n), sum(length(v)) FROM r"),
              [(3000, 1, 2_999_000)] if ending == "answered" else [(1, 0, 0)])
        connection.close()


def test_freed():
    """The number of a deleted row is used again, by a transaction that is in images when it fails.
    Then the block of the row's tombstone is used again, and that of the row is not
    (`freed_forgotten`)."""
    connection = connect()
    query(connection, "DROP TABLE IF EXISTS f, g")
    query(connection, "CREATE TABLE f (id int, v text) USING mixedcc; CREATE TABLE g (a int) USING heap; INSERT INTO g VALUES (1)")
    query(connection, "INSERT INTO f SELECT i, 'first' FROM generate_series(1, 60) i")
    query(connection, "CHECKPOINT")
    query(connection, "DELETE FROM f WHERE id = 30")
    query(connection, "CHECKPOINT")
    query(connection, "VACUUM f")
    # Write skew: each of two reads what the other one writes. The first one is logged, and has to
    # fail when the second one has committed.
    point = Point("xcommit-marked")
    doomed = Beside("SET mixedcc.mixed_serializable = allow; BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM g; INSERT INTO g VALUES (2);"
                    "INSERT INTO f VALUES (1000, 'doomed'); COMMIT", point)
    query(connection, "CHECKPOINT")
    query(connection, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM g; INSERT INTO g VALUES (3); COMMIT")
    point.go()
    doomed.join(60)
    premise("freed: the transaction fails after it is logged", getattr(doomed.error, "pgcode", None) == "40001")
    for n in range(6):
        query(connection, f"UPDATE f SET v = 'later {n}' WHERE id <= 3")
        query(connection, "CHECKPOINT")
    connection = crash_and(connection)
    equal("freed: the deleted row stays deleted", query(connection, "SELECT * FROM f WHERE id IN (30, 1000)"), [])
    equal("freed: all others are there", value(connection, "SELECT count(*) FROM f"), 59)
    connection.close()


def test_reserved():
    """The WAL of index entries is on disk when their transaction is cut off. Their rows' numbers
    are not used again (`reserve_left_out`)."""
    connection = connect()
    begin(connection)
    query(connection, "CREATE INDEX ON r (n)")
    query(connection, "CHECKPOINT")
    cut = connect()
    query(cut, "BEGIN; INSERT INTO r SELECT 100000 + i, '' FROM generate_series(1, 2000) i")
    query(connection, "INSERT INTO beside VALUES (1)")
    connection = crash_and(connection)
    query(connection, "INSERT INTO r SELECT i, '' FROM generate_series(1, 2000) i")
    query(connection, "SET enable_seqscan = off")
    equal("reserved: no entry leads to another row", query(connection, "SELECT n FROM r WHERE n > 90000 LIMIT 3"), [])
    connection.close()


def test_journal():
    """What a first recovery has replayed is there after a second one, and after a checkpoint in
    between (`journal_forgotten`)."""
    connection = connect()
    begin(connection)
    query(connection, "UPDATE r SET n = 1")
    connection = crash_and(connection)
    query(connection, "CHECKPOINT; UPDATE other SET n = 0 WHERE n = 1")
    connection = crash_and(connection)
    equal("journal: both commits are found", query(connection, "SELECT (SELECT n FROM r), (SELECT min(n) FROM other)"), [(1, 0)])
    connection.close()


def test_chain():
    """A row of many pages is imaged twice at one CSN: pending, and decided. A part of the first
    chain of blocks is used again, but not its first piece, when a crash comes. Then the home of the
    row must be a whole chain, of which no block is used again (`chain_forgotten`)."""
    connection = connect()
    query(connection, "CREATE TABLE IF NOT EXISTS beside (n int) USING heap")
    sizes = (2, 8, 14)
    for size in sizes:
        query(connection, f"DROP TABLE IF EXISTS long{size}; CREATE TABLE long{size} (n int, v text) USING mixedcc;"
                          f"ALTER TABLE long{size} ALTER v SET STORAGE EXTERNAL;"
                          f"INSERT INTO long{size} SELECT i, repeat('a', 400) FROM generate_series(1, 2000) i")
        query(connection, f"INSERT INTO long{size} VALUES (0, 'short')")
    query(connection, "CHECKPOINT")
    changes = "; ".join(f"UPDATE long{size} SET v = repeat('b', 130000) WHERE n = 0" for size in sizes)
    point = Point("xcommit-marked")
    commit = Beside(f"BEGIN; INSERT INTO beside VALUES (1); {changes}; COMMIT", point)
    query(connection, "CHECKPOINT")
    point.go()
    commit.end()
    query(connection, "CHECKPOINT")
    for turn in range(3):
        for size in sizes:
            # About so many pages in the first turn.
            rows = 18 * size if turn == 0 else 300
            query(connection, f"UPDATE long{size} SET v = repeat('c', {400 + turn}) WHERE n BETWEEN 1 AND {rows}")
        query(connection, "CHECKPOINT")
        connection = crash_and(connection)
        for size in sizes:
            equal(f"chain: the row of many pages is whole, {size}, {turn}",
                  query(connection, f"SELECT length(v), md5(v) = md5(repeat('b', 130000)) FROM long{size} WHERE n = 0"), [(130000, True)])
            equal(f"chain: the others are there, {size}, {turn}", value(connection, f"SELECT count(*) FROM long{size}"), 2001)
    connection.close()


def test_dead():
    """An index scan meets entries of rows whose deletion is not flushed (`dead_unflushed`). Their
    marks would get to the disk without WAL."""
    connection, boss = connect(), connect()
    begin(connection)
    query(connection, "CREATE EXTENSION IF NOT EXISTS pageinspect; CREATE INDEX other_n ON other (n); INSERT INTO beside VALUES (1)")
    query(connection, "SET enable_seqscan = off; SET enable_bitmapscan = off; SET mixedcc.enable_bypass = off; SET jit = off; SET synchronous_commit = off")

    def marked(first):
        for _ in range(2):
            query(connection, f"SELECT v FROM other WHERE n BETWEEN {first} AND {first + 9}")
        return value(connection, "SELECT count(*) FROM bt_page_items('other_n', 1) WHERE dead")

    for first in range(1, 100, 10):
        before = marked(first)
        query(connection, f"DELETE FROM other WHERE n BETWEEN {first} AND {first + 9}")
        lsn = value(boss, "SELECT pg_current_wal_insert_lsn()")
        # The deletion is soon below all floors.
        query(connection, "DO $$ BEGIN FOR i IN 1..400 LOOP UPDATE r SET n = i; COMMIT; END LOOP; END $$")
        after = marked(first)
        if not value(boss, "SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", (lsn,)):
            break
    else:
        raise RuntimeError("each deletion is flushed at once")
    equal("dead: no entry is marked before the flush", after, before)
    query(boss, "INSERT INTO beside VALUES (1)")
    check("dead: they are marked after the flush", common.wait_until(lambda: marked(first) == before + 10, 10))
    boss.close()
    connection.close()


def test_lazy():
    """Asynchronous commits are on disk within 50 ms and three times `wal_writer_delay`
    (`lazy_forgotten`)."""
    crash.configure(**{**SERVER_SETTINGS, "wal_writer_delay": "200ms"}, **FAULT)
    reload()
    time.sleep(0.5)
    connection, boss, times = connect(), connect(), []
    begin(connection)
    query(connection, "SET synchronous_commit = off")
    for n in range(1, 8):
        time.sleep(0.03 * n)
        query(connection, f"UPDATE r SET n = {n}")
        at, begun = value(boss, "SELECT pg_current_wal_insert_lsn()"), time.monotonic()
        common.wait_until(lambda: value(boss, "SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", (at,)), 3)
        times.append(time.monotonic() - begun)
    print(f"  lazy: {' '.join(f'{t:.2f}' for t in times)} s", flush=True)
    # The machine may be busy now and then.
    check("lazy: commits are on disk soon", sorted(times)[4] < 0.05 + 3 * 0.2 and max(times) < 3, times)
    boss.close()
    connection = crash_and(connection)
    equal("lazy: the last commit is found", query(connection, "SELECT n FROM r"), [(7,)])
    connection.close()


TESTS = {"release": test_release, "windows": test_windows, "marks": test_marks, "bits": test_bits, "flags": test_flags,
         "files": test_files, "bits in window": test_bits_in_window, "hold": test_hold, "once": test_once,
         "pending": test_pending, "split": test_split, "freed": test_freed, "reserved": test_reserved, "journal": test_journal, "chain": test_chain, "dead": test_dead,
         "lazy": test_lazy, "halves": test_halves}
FAULTS = {"releases_blindly": "release", "windows_not_awaited": "windows", "window_opens_late": "windows",
          "bits_before_mark": "marks", "bit_cleared_after_look": "bits", "flag_cleared_last": "flags",
          "redo_makes_files": "files", "window_closes_early": "bits in window", "no_hold": "hold", "releases_once": "once",
          "pending_left_out": "pending, split", "freed_forgotten": "freed", "reserve_left_out": "reserved",
          "journal_forgotten": "journal", "chain_forgotten": "chain",
          "dead_unflushed": "dead", "lazy_forgotten": "lazy", "half_shown": "halves"}
# The companion has to begin with them.
FROM_START = ("no_hold",)
# A fault may need some tries.
TRIES = 5


def run(name):
    try:
        crash.configure(**SERVER_SETTINGS, **FAULT)
        if FAULT.get("mixedcc.fault") in FROM_START:
            crash.kill_group()
            crash.start()
        else:
            reload()
            time.sleep(0.5)
        TESTS[name]()
    except Exception as error:
        common.fail_by(error, name, traceback.format_exc())
        if crash.has_postmaster():
            crash.kill_group()
        crash.configure(**SERVER_SETTINGS, **FAULT)
        crash.start()


def must_be_found(fault, test):
    """One of the test's checks fails with the fault. Another error of the test finds nothing. The
    server stays, with the fault off; its tables are made anew."""
    FAULT["mixedcc.fault"] = fault
    known, said, tries, found = len(failures), io.StringIO(), 0, False
    with contextlib.redirect_stdout(said):
        while tries < TRIES and not found:
            tries += 1
            run(test)
            found = any(name.startswith(f"{test}:") for name in failures[known:])
    del failures[known:]
    FAULT.clear()
    if fault in FROM_START:  # a companion that has begun with it does not go on without it
        crash.kill_group()
        crash.configure(**SERVER_SETTINGS)
        crash.start()
    (ok if found else fail)(f"found: {fault}, by {test}")
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
            for test in FAULTS[fault].split(", "):
                must_be_found(fault, test)
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
