#!/usr/bin/python3
"""Histories over a primary and its standby. Clients of the primary write at SERIALIZABLE, under
each protocol and with switches, and some of what they do is prepared. Clients of the standby read
at SERIALIZABLE. The checker judges all of them as one history: there is one serial order of all. A
snapshot of the standby may be old, so transactions there have no place in real time; those of one
session come in their order.

`standby_histories NAME...` runs some configurations. `standby_histories --faults` needs a build
with the feature `faults`: the checker must reject a history with each of them. CHECK_HISTORY names
the checker."""

import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

import psycopg2

from lib import protocols
from lib.clusters import Cluster
from lib.common import (check, connect, drop_database, main, make_database, must_be_found, must_come, options, query,
                        seconds, set_protocol, value)
from lib.loads import READ_ONLY, Client, Load, write_last

DATABASE = "process_standby_histories"
WRITERS, READERS = 3, 2
LEVELS = {"serializable": 6, READ_ONLY: 1}
# How long a snapshot of the standby may wait, s.
PATIENCE = 60.0
# So many commits of each client are a history, and so long it may try, s.
ENOUGH, LONGEST = 10, 60.0
# A table was read anew after the snapshot; replay has ended the session, or waits; and it is not
# known yet what may be shown.
AGAIN = {"40001", "57014", "57P01", "57P03", "55006", None}


class Untimed:
    """A file of transactions without their times."""

    def __init__(self, file):
        self.file = file

    def write(self, line):
        kept = {name: what for name, what in json.loads(line).items() if name not in ("begin", "commit")}
        self.file.write(json.dumps(kept) + "\n")

    def close(self):
        self.file.close()


class Reader(Client):
    """A client of the standby."""

    def __init__(self, standby, *more):
        self.standby = standby
        super().__init__(*more)
        self.file = Untimed(self.file)

    def connect(self):
        self.connection = self.standby.connect(options="-c statement_timeout=30s")
        self.cursor = self.connection.cursor()

    def operation(self, nested=False):
        # Meanwhile the primary may tell the standby more, and other sessions look at it.
        time.sleep(self.random.choice((0, 0, 0, 0.06)))
        super().operation(nested)

    def failed(self, error):
        self.done["again"] += 1
        if error.pgcode not in AGAIN:
            self.problems.append(f"on the standby: {error.pgcode} {error}")
        if self.connection.closed:
            return self.connect()
        self.rollback()


def client(standby, number, load, path, stop, results):
    problems, done = [], {}
    until = time.monotonic() + LONGEST
    try:
        make = (lambda *more: Reader(standby, *more)) if number > WRITERS else Client
        one = make(DATABASE, number, load, path)
        # On a slow machine until there are some.
        while (not stop.is_set() or one.done["commits"] <= ENOUGH and time.monotonic() < until) and len(one.problems) < 5:
            one.transaction()
        one.file.close()
        problems, done = one.problems, dict(one.done)
    except Exception:
        problems = [traceback.format_exc()]
    results.put((number, done, problems))


def make_tables(connection, first, second):
    query(connection, "DROP TABLE IF EXISTS a, b")
    for table, settings in (("a", first), ("b", second)):
        query(connection, f"CREATE TABLE {table} (k int PRIMARY KEY, l bigint[]) USING mixedcc {options(partitions=4, **settings)}")
    query(connection, "CREATE INDEX ON b (k)")


def disturb(dice, until, switches):
    """Rounds, VACUUM, and other protocols."""
    boss = connect(DATABASE)
    while time.monotonic() < until:
        time.sleep(dice.uniform(0.1, 0.5))
        query(boss, dice.choice(("CHECKPOINT", "VACUUM a", "VACUUM b", "SELECT 1")))
        if switches:
            set_protocol(boss, dice.choice("ab"), dice.choice(protocols.ALL), wait=False)
    boss.close()


def run_clients(standby, directory, duration, dice, switches):
    writes = Load(["a", "b"], ["a", "b"], levels=LEVELS)
    writes.prepares = 0.3
    reads = Load(["a", "b"], ["a", "b"], levels={READ_ONLY: 1})
    results, stop = multiprocessing.Queue(), multiprocessing.Event()
    all_clients = [(n, writes if n <= WRITERS else reads) for n in range(1, WRITERS + READERS + 1)]
    processes = [multiprocessing.Process(target=client, daemon=True, args=(standby, n, load, f"{directory}/{n}.jsonl", stop, results))
                 for n, load in all_clients]
    for one in processes:
        one.start()
    disturb(dice, time.monotonic() + duration, switches)
    stop.set()
    outcomes = [results.get(timeout=LONGEST + PATIENCE) for _ in processes]
    for one in processes:
        one.join(30)
    return outcomes


def judge(standby, name, first, second, duration, switches):
    connection = connect(DATABASE)
    make_tables(connection, first, second)
    n = value(connection, "UPDATE told SET n = n + 1 RETURNING n")
    must_come(lambda: standby.ask("SELECT n FROM told") >= n, PATIENCE)
    directory = tempfile.mkdtemp(prefix="mixedcc-history-")
    outcomes = run_clients(standby, directory, duration, random.Random(name), switches)
    write_last(connection, ["a", "b"], f"{directory}/last.jsonl")
    connection.close()
    files = sorted(f"{directory}/{file}" for file in os.listdir(directory))
    done = subprocess.run([os.environ["CHECK_HISTORY"], "--real-time", *files], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    problems = [problem for _, _, some in outcomes for problem in some]
    check(f"standby histories {name}: no unexpected error", not problems, "\n".join(problems[:3]))
    commits = {number: counts.get("commits", 0) for number, counts, _ in outcomes}
    check(f"standby histories {name}: each client commits", min(commits.values()) > ENOUGH, commits)
    print(f"   {name}: {commits}, again {sum(counts.get('again', 0) for _, counts, _ in outcomes)}", flush=True)
    if check(f"standby histories {name}: one serial order", done.returncode == 0, done.stdout[:2500] + done.stdout[-200:]):
        shutil.rmtree(directory)
    else:
        print(f"  kept: {directory}", flush=True)


def configurations():
    """Name, the tables' settings, and whether protocols change."""
    settings = protocols.variants()
    single = {name: settings[protocols.patient(name)] for name in protocols.ALL}
    for name in protocols.ALL:
        yield name, single[name], single[name], False
    yield "switches", single[protocols.ALL[0]], single[protocols.ALL[-1]], True


# What is wrong with a snapshot of the standby.
FAULTS = ("stable_too_large", "counts_at_prepare")


def begin():
    connection = make_database(DATABASE)
    query(connection, "ALTER SYSTEM SET wal_keep_size = '2GB'")
    query(connection, "SELECT pg_reload_conf()")
    query(connection, "CREATE TABLE told (n int) USING mixedcc; INSERT INTO told VALUES (0)")
    connection.close()
    standby = Cluster.copy("-R", database=DATABASE)
    standby.start(hot_standby="on")
    return standby


def test_histories():
    standby = begin()
    chosen = [one for one in configurations() if not sys.argv[1:] or one[0] in sys.argv[1:]]
    try:
        for name, first, second, switches in chosen:
            judge(standby, name, first, second, seconds(24, long=120) / len(chosen), switches)
    finally:
        standby.remove()
    drop_database(DATABASE)


def set_fault(fault):
    connection = connect("postgres")
    for setting, text in (("fault", f"'{fault}'"), ("standby_interval", "1")):
        query(connection, f"ALTER SYSTEM SET mixedcc.{setting} = {text}" if fault else f"ALTER SYSTEM RESET mixedcc.{setting}")
    query(connection, "SELECT pg_reload_conf()")
    connection.close()
    time.sleep(0.5)


def test_faults():
    """In a build with faults: the checker rejects a history with each of them."""
    # What is told is flushed at once, so that it comes to the standby before commits that are under
    # way.
    name, first, second, switches = next(one for one in configurations() if one[0] == "occ")
    for fault in sys.argv[2:] or FAULTS:
        set_fault(fault)
        standby = begin()
        try:
            must_be_found(fault, f"standby histories {name}: one serial order",
                          lambda: judge(standby, name, first, second, 12, switches))
        finally:
            set_fault(None)
            standby.remove()


if __name__ == "__main__":
    main(test_faults if sys.argv[1:2] == ["--faults"] else test_histories)
