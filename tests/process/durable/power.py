#!/usr/bin/python3
"""Cases of the crash matrix (lib/matrix.py) in which the power is lost with each death of the
server: all unsynced writes are gone, or a random part of them (lib/power.py). Faults must be found:
a server that syncs nothing, and a disk that ignores the syncs of a table.

A checkpoint that begins while a hollow index is built keeps the index.

`power SEED EVENT...` runs the named events only. `power --faults [NAME...]` needs a build with the
feature `faults`; each fault must be found."""

import contextlib
import io
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import psycopg2

from lib import crash, matrix, power
from lib.clusters import Cluster
from lib.common import check, connect, equal, failures, fail, ok, query, server, value, wait_until

# The short form: each part of the durable code that writes files.
SHORT = ("group", "immediate", "fast", "at once", "answered", "cut off", "commit-inserted", "commit-flushed", "xcommit-marked",
         "batch-inserted", "round-meta", "round-logged", "round-released", "closing-round", "redo-page",
         "absorb-meta", "absorb-truncated", "bulk-page", "None")
# Faults, the cases that meet them, and how they are made: by a setting, by a table whose syncs the
# disk ignores, or by the build.
FAULTS = {"fsync is off": (("group", "at once"), {"settings": {"fsync": "off"}}),
          "the disk ignores syncs of a table": (("round-released", "group"), {"deaf": "acct0"})}
OF_BUILD = {"flush_left_out": ("at once", "group"), "images_not_dirty": ("round-released", "group"),
            "journal_not_dirty": ("checkpoint",)}
# With these, files of PostgreSQL itself are lost, so that the server often does not start. Without
# them it starts in all cases above.
ENDS_STARTS = ("fsync is off",)
# Rounds of these cases in which a fault must show.
TRIES = 12

def case_checkpoint(oracle, name, dice, seed):
    """Rows are replayed, and a checkpoint comes before the tables are used."""
    matrix.begin(oracle, seed)
    time.sleep(dice.uniform(0.5, 1.5))
    crash.kill_group()
    matrix.end(name)
    crash.start()
    connection = connect("postgres")
    query(connection, "CHECKPOINT")
    connection.close()
    crash.kill_group()
    matrix.after_crash(oracle, f"{name}: all is found", dice)


CASES = [*matrix.CASES, (case_checkpoint, "checkpoint")]


def cases(wanted):
    return [case for case in CASES if str(case[1]) in wanted]


def set_up(name, seed, settings, deaf):
    oracle = matrix.set_up(power=f"{name} {seed}", deaf=deaf)
    crash.SERVER["base"] += [f"{key} = '{text}'\n" for key, text in settings.items()]
    crash.configure()
    crash.reload()
    return oracle


def finds(oracle, name, dice, events, seed):
    """Runs the cases until something fails. Has a check of the tables failed?"""
    before = len(failures)
    try:
        for case in cases(events):
            if len(failures) == before:
                matrix.run_case(case, oracle, dice, seed)
    except (RuntimeError, subprocess.SubprocessError) as error:
        fail(name, repr(error))
        if name in ENDS_STARTS and isinstance(error, subprocess.CalledProcessError) and error.cmd[-1] == "start":
            return True
    # A check has a name behind the case's.
    return any(": " in failure and "no unexpected error" not in failure for failure in failures[before:])


def must_be_found(name, seed, events, settings=None, deaf=None):
    """A check of one of the cases fails with this fault. Another error finds nothing: the next
    round has a new cluster."""
    dice = random.Random(f"{name} {seed}")
    rounds, found, said, oracle = 0, False, io.StringIO(), None
    while rounds < TRIES and not found:
        rounds += 1
        oracle = oracle or set_up(name, seed, settings or {}, deaf)
        known = len(failures)
        with contextlib.redirect_stdout(said):
            found = finds(oracle, name, dice, events, f"{seed} {rounds}")
        if len(failures) > known:
            del failures[known:]
            abandon()
            oracle = None
    if oracle:
        abandon()
    (ok if found else fail)(f"found: {name}")
    lines = [line for line in said.getvalue().splitlines() if not line.startswith("ok ")]
    print(f"  in round {rounds}:", *lines[:2], "...", *lines[-4:], sep="\n    ", flush=True)


def test_library():
    """The library keeps all that was written before a sync, also of a file that grows meanwhile.
    It forgot blocks once, and a table seemed to have lost pages that were synced."""
    for n in range(5):
        with tempfile.TemporaryDirectory() as home:
            lost = power.syncs_beside_writes(home)
        if lost:
            return fail("the library keeps what is written beside syncs", f"round {n}: not kept, from {lost[0]}: {len(lost)}")
    ok("the library keeps what is written beside syncs")


def code_of(connection, sql):
    try:
        query(connection, sql)
    except psycopg2.Error as error:
        return error.pgcode
    return None


def test_checkpoint_in_build():
    """The mark of a hollow index is in the WAL, and not in its file yet, when a checkpoint begins.
    Replay begins behind the record then, so the file must be synced."""
    name = "a checkpoint within the build of a hollow index"
    cluster = Cluster.new(autovacuum="off", checkpoint_timeout="1h")
    disk = power.Disk(cluster.data, 1)
    try:
        cluster.start(fsync="on")
        connection, builder = cluster.connect(), cluster.connect()
        query(connection, "CREATE EXTENSION mixedcc")
        pause, paused = f"{disk.home}/pause", f"{disk.home}/paused"
        open(pause, "w", encoding="ascii").close()
        build = threading.Thread(target=query, args=(builder, "CREATE TABLE built (id int PRIMARY KEY) USING mixedcc"))
        build.start()
        met = wait_until(lambda: os.path.exists(paused))
        query(connection, "CHECKPOINT")
        os.remove(pause)
        build.join()
        check(f"{name}: they meet", met)
        query(connection, "INSERT INTO built VALUES (1)")
        for one in (connection, builder):
            one.close()
        cluster.crash()
        disk.lose(keeps=False)
        cluster.start()
        connection = cluster.connect()
        equal(f"{name}: the key is checked", code_of(connection, "INSERT INTO built VALUES (1)"), "23505")
        equal(f"{name}: the index is sound", value(connection, "SELECT mixedcc.check_primary_index('built')"), 1)
        connection.close()
    finally:
        cluster.remove()
        disk.end()


def abandon():
    """The data are broken: the next start makes a new cluster."""
    if crash.has_postmaster():
        crash.kill_group()
    crash.SERVER.pop("disk").end()
    shutil.rmtree(crash.SERVER["data"])
    server("start")


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--faults"]:
        for name in arguments[1:] or OF_BUILD:
            must_be_found(name, 1, OF_BUILD[name], settings={"mixedcc.fault": name})
    elif arguments[:1] == ["--controls"]:
        for name, (events, how) in FAULTS.items():
            must_be_found(name, 1, events, **how)
    else:
        seed = arguments[0] if arguments else os.environ.get("MIXEDCC_SEED", "1")
        wanted = arguments[1:] or (SHORT if "MIXEDCC_LONG" not in os.environ else [str(case[1]) for case in CASES])
        test_library()
        test_checkpoint_in_build()
        matrix.run_all(seed, cases(wanted), power=seed)
        if not arguments:
            for name, (events, how) in FAULTS.items():
                must_be_found(name, seed, events, **how)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
