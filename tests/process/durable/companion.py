#!/usr/bin/python3
"""The companion as `mixedcc.durability` shows it, and the pace of its rounds: the round of a timed
checkpoint is spread over seconds, that of a checkpoint for which a process waits is not. A process
that asks for a checkpoint or a backup in the middle of a spread round, or drops the table, does not
wait for its pace. `companion --faults` needs a build with the feature `faults`."""

import contextlib
import io
import sys
import threading
import time

from lib.common import (check, connect, drop_database, equal, failures, main, make_database, must_come, query, reload, value,
                        wait_until)

DATABASE = "process_companion"
ROWS = 20_000


def begin():
    connection = make_database(DATABASE)
    # Autovacuum asks for rounds.
    query(connection, "CREATE TABLE paced (id int PRIMARY KEY, v int, t text) USING mixedcc WITH (autovacuum_enabled = off)")
    query(connection, f"INSERT INTO paced SELECT i, 0, repeat('p', 60) FROM generate_series(1, {ROWS}) i")
    query(connection, "CHECKPOINT")
    return connection


def shown(connection, *columns):
    return query(connection, f"SELECT {', '.join(columns)} FROM mixedcc.durability")[0]


# --- the view ---------------------------------------------------------------------

def test_view():
    connection = begin()
    query(connection, "SELECT mixedcc.reset_durability()")
    query(connection, "UPDATE paced SET v = 1 WHERE id <= 100")
    equal("companion: what is dirty", shown(connection, "dirty_tables", "dirty_rows", "shut"), (1, 100, None))
    before = value(connection, "SELECT clock_timestamp()")
    query(connection, "CHECKPOINT")
    must_come(lambda: shown(connection, "activity") == ("idle",))
    equal("companion: nothing is dirty after a checkpoint", shown(connection, "dirty_tables", "dirty_rows"), (0, 0))
    equal("companion: the round", shown(connection, "round_kind", "round_rows", "rounds", "rows", "errors"), ("checkpoint", 100, 1, 100, 0))
    began, ended, released, reset = shown(connection, "round_started_at", "round_ended_at", "released_at", "stats_reset")
    check("companion: its times", reset < before < began <= ended <= released, (reset, before, began, ended, released))
    pages, of_all, size, held = shown(connection, "round_pages", "pages", "round_wal_bytes", "held_since")
    check("companion: its pages and WAL", 1 < pages == of_all and 100 * 90 < size < pages * 8400 and held is None, (pages, of_all, size, held))
    equal("companion: its redo pointer", shown(connection, "round_redo")[0], value(connection, "SELECT redo_lsn::text FROM pg_control_checkpoint()"))
    query(connection, "SELECT mixedcc.reset_durability()")
    equal("companion: a reset", shown(connection, "rounds", "rows", "pages", "wal_bytes"), (0, 0, 0, 0))
    connection.close()


def test_round_of_one():
    """VACUUM has its own table imaged, and no others. What asks for all has all imaged."""
    connection = connect(DATABASE)
    query(connection, "CREATE TABLE other (id int, v int) USING mixedcc WITH (autovacuum_enabled = off)")
    query(connection, "INSERT INTO other SELECT i, 0 FROM generate_series(1, 500) i")
    query(connection, "CHECKPOINT")
    must_come(lambda: shown(connection, "activity") == ("idle",))
    query(connection, "UPDATE other SET v = 1")
    query(connection, "UPDATE paced SET v = 3 WHERE id <= 10")
    query(connection, "VACUUM paced")
    equal("companion: the round of a VACUUM", shown(connection, "round_kind", "round_rows", "dirty_rows"), ("asked", 10, 500))
    query(connection, "UPDATE paced SET v = 4 WHERE id <= 20")
    query(connection, "CHECKPOINT")
    must_come(lambda: shown(connection, "activity") == ("idle",))
    equal("companion: a checkpoint is of all tables", shown(connection, "round_rows", "dirty_rows"), (520, 0))
    query(connection, "UPDATE other SET v = 2")
    query(connection, "CREATE DATABASE process_companion_2")
    query(connection, "DROP DATABASE process_companion_2")
    query(connection, "VACUUM other")
    equal("companion: nothing is left", shown(connection, "dirty_rows"), (0,))
    query(connection, "DROP TABLE other")
    connection.close()


def test_commit():
    """A commit that is not done is shown."""
    connection = connect(DATABASE)
    equal("companion: no commit is waited for", shown(connection, "commit_pid"), (None,))
    thread = threading.Thread(target=commit_slowly, daemon=True)
    thread.start()
    looks = []

    def seen():
        looks.append(shown(connection, "commit_pid", "commit_since"))
        return looks[-1][0] is not None

    # One look shows both: the first commit of the other session is over in an instant.
    must_come(seen)
    pid, since = looks[-1]
    check("companion: the oldest commit", pid != connection.info.backend_pid and since is not None, (pid, since))
    thread.join(30)
    equal("companion: it is done", shown(connection, "commit_pid"), (None,))
    connection.close()


def commit_slowly():
    connection = connect(DATABASE, options="-c mixedcc.stop_events=on -c synchronous_commit=on")
    query(connection, "UPDATE paced SET v = 2 WHERE id = 7")  # If a time mark is due, this is it, and not the next one.
    query(connection, "SET mixedcc.hold_commits = 3000")
    query(connection, "UPDATE paced SET v = 3 WHERE id = 7")
    connection.close()


# --- the pace ---------------------------------------------------------------------

def settings(rate, timeout="30s"):
    boss = connect(DATABASE)
    query(boss, f"ALTER SYSTEM SET mixedcc.image_rate = {rate}")
    query(boss, f"ALTER SYSTEM SET checkpoint_timeout = '{timeout}'")
    reload(boss)
    boss.close()


def make_dirty(connection):
    query(connection, "UPDATE paced SET v = v + 1")
    equal("pace: all is dirty", shown(connection, "dirty_rows"), (ROWS,))


def await_pace(connection):
    def paced():
        # A timed checkpoint is skipped if nothing was logged since the record of the last one.
        query(connection, "SELECT pg_current_xact_id()")
        return shown(connection, "activity") == ("pacing",)

    must_come(paced, 40)


def await_pace_by_wal(connection):
    """As `await_pace`, of a checkpoint that the server begins because there is much WAL."""
    for _ in range(8):
        query(connection, "SELECT pg_current_xact_id()")
        query(connection, "SELECT pg_switch_wal()")
        if wait_until(lambda: shown(connection, "activity") == ("pacing",), 0.5):
            return
    raise RuntimeError("no checkpoint begins")


def test_spread():
    """2,000 rows a second are 10 s; half of the checkpoint's time is 13.5 s."""
    connection = connect(DATABASE)
    settings(2000)
    # The next timed checkpoint comes after 30 s.
    query(connection, "CHECKPOINT")
    make_dirty(connection)
    await_pace(connection)
    held = shown(connection, "held_since")[0]
    check("pace: a timed checkpoint is held", held is not None)
    started = time.monotonic()
    must_come(lambda: shown(connection, "held_since") == (None,), 60)
    took = time.monotonic() - started
    print(f"  held for {took:.1f} s", flush=True)
    check("pace: the round of a timed checkpoint is spread", 6 < took < 20, took)
    equal("pace: it is the round", shown(connection, "round_kind", "round_rows"), ("checkpoint", ROWS))
    connection.close()


def soon(what, f, limit=5.0):
    started = time.monotonic()
    f()
    took = time.monotonic() - started
    print(f"  {what}: {took:.2f} s", flush=True)
    check(f"pace: {what} is not held up", took < limit, took)


def test_waited_for():
    """At 100 rows a second the round takes half of the checkpoint's time, 13.5 s, unless a process
    waits."""
    connection, boss = connect(DATABASE), connect("postgres")
    query(boss, "ALTER SYSTEM SET max_wal_size = '64MB'")
    settings(100)
    make_dirty(connection)
    soon("CHECKPOINT", lambda: query(boss, "CHECKPOINT"))
    make_dirty(connection)
    await_pace_by_wal(connection)
    soon("CHECKPOINT in the middle", lambda: query(boss, "CHECKPOINT"))
    equal("pace: all is imaged", shown(connection, "dirty_rows"), (0,))
    make_dirty(connection)
    await_pace_by_wal(connection)
    soon("a fast backup in the middle", lambda: query(boss, "SELECT pg_backup_start('pace', true)"))
    query(boss, "SELECT pg_backup_stop(false)")
    make_dirty(connection)
    await_pace_by_wal(connection)
    soon("VACUUM FREEZE, which asks for a round,", lambda: query(connection, "VACUUM FREEZE paced"))
    make_dirty(connection)
    await_pace_by_wal(connection)
    soon("DROP TABLE in the middle", lambda: query(connection, "DROP TABLE paced"), 2.0)
    query(boss, "CHECKPOINT")
    boss.close()
    connection.close()


def set_stop(*settings):
    boss = connect(DATABASE)
    for name, to in settings:
        query(boss, f"ALTER SYSTEM SET mixedcc.{name} = '{to}'" if to else f"ALTER SYSTEM RESET mixedcc.{name}")
    reload(boss)
    boss.close()


def test_first_round():
    """The first round of a table looks at all of its records, in parts: DROP TABLE waits for one of
    these."""
    connection, other = connect(DATABASE), connect("postgres")
    query(connection, "CREATE TABLE many (id int) USING mixedcc WITH (autovacuum_enabled = off)")
    query(connection, "INSERT INTO many SELECT generate_series(1, 100000)")
    set_stop(("stop_events", "on"), ("kill_at", "round-space:0:200"))
    thread = threading.Thread(target=lambda: query(other, "CHECKPOINT"))
    thread.start()
    must_come(lambda: shown(connection, "activity") == ("imaging",))
    time.sleep(0.3)
    soon("DROP TABLE in a first round", lambda: query(connection, "DROP TABLE many"), 2.5)
    set_stop(("kill_at", ""), ("stop_events", ""))
    thread.join()
    connection.close()
    other.close()


def end():
    boss = connect(DATABASE)
    query(boss, "ALTER SYSTEM RESET mixedcc.image_rate")
    query(boss, "ALTER SYSTEM RESET checkpoint_timeout")
    query(boss, "ALTER SYSTEM RESET max_wal_size")
    reload(boss)
    boss.close()
    drop_database(DATABASE)


def test_fault():
    """A build with the feature `faults`: a companion that does not rest is found."""
    begin().close()
    boss = connect(DATABASE)
    query(boss, "ALTER SYSTEM SET mixedcc.fault = 'pace_forgotten'")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            test_spread()
        except RuntimeError:
            # No rest was seen. The timed checkpoint has come nevertheless, with its round.
            if shown(boss, "round_kind", "round_rows") == ("checkpoint", ROWS):
                failures.append("the round does not rest")
    query(boss, "ALTER SYSTEM RESET mixedcc.fault")
    found = bool(failures)
    failures.clear()
    check("found: pace_forgotten", found, said.getvalue())
    boss.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--faults"]:
        main(test_fault, end)
    main(test_view, test_round_of_one, test_commit, test_first_round, test_spread, test_waited_for, end)
