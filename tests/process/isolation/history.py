#!/usr/bin/python3
"""Several processes run random transactions on tables under each protocol, each
ordered pair of protocols and mixes of levels; the history checker judges what
they saw. CHECK_HISTORY names the checker (default: the engine's build)."""

import collections
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time

from lib import protocols
from lib.common import OURS, ROOT, check, create_table, drop_database, equal, main, make_database, query, seconds, set_protocol
from lib.loads import LATEST, Client, Load, check_load, check_ways, reset_ways, write_last

DATABASE = "process_history"
CLIENTS = 5
PARTITIONS = max(4, len(protocols.ALL))
SINGLE = protocols.variants()
PAIRED = {name: SINGLE[protocols.patient(name)] for name in protocols.ALL}
ALL_LEVELS = {"serializable": 5, "serializable read only": 1, "repeatable read": 2, "read committed": 2}


def checker():
    places = [os.environ.get("CHECK_HISTORY")]
    for target in (os.environ.get("CARGO_TARGET_DIR"), str(ROOT / "target"), os.path.expanduser("~/.cache/mixedcc/target")):
        if target:
            places += [f"{target}/release/check-history", f"{target}/debug/check-history"]
    places.append(shutil.which("check-history"))
    for place in places:
        if place and os.access(place, os.X_OK):
            return place
    sys.exit("FAIL history: check-history not found: build the engine or set CHECK_HISTORY")


def client(number, load, path, until, results):
    done, problems = collections.Counter(), []
    try:
        one = Client(DATABASE, number, load, path)
        done, problems = one.done, one.problems
        one.run(until)
    except Exception as error:
        problems.append(repr(error))
    results.put((done, problems))


def make_tables(connection, first, second, kind=""):
    """Two tables of some partitions and a secondary index."""
    query(connection, "DROP TABLE IF EXISTS a, b")
    for table, settings in (("a", first), ("b", second)):
        create_table(connection, table, "k int PRIMARY KEY, l bigint[]", kind, partitions=PARTITIONS, **settings)


def run_clients(load, directory, duration):
    until = time.monotonic() + duration
    results = multiprocessing.Queue()
    processes = [
        multiprocessing.Process(target=client, args=(number, load, f"{directory}/{number}.jsonl", until, results))
        for number in range(1, CLIENTS + 1)
    ]
    for process in processes:
        process.start()
    outcomes = [results.get(timeout=duration + LATEST + 90) for _ in processes]
    for process in processes:
        process.join()
    return [done for done, _ in outcomes], [p for _, problems in outcomes for p in problems]


def judge(name, load, connection, duration, meanwhile=None):
    """`meanwhile` runs beside the clients; it is called with the time at which it has to end."""
    with tempfile.TemporaryDirectory() as directory:
        beside = multiprocessing.Process(target=meanwhile, args=(time.monotonic() + duration,)) if meanwhile else None
        if beside:
            beside.start()
        done_by_clients, problems = run_clients(load, directory, duration)
        if beside:
            beside.join()
            check(f"history {name}: what ran beside it ended well", beside.exitcode == 0)
        write_last(connection, ["a", "b"], f"{directory}/last.jsonl")
        files = sorted(os.path.join(directory, file) for file in os.listdir(directory))
        # Heap's SSI keeps neither real-time nor session order.
        arguments = [CHECKER, "--real-time" if OURS else "--no-session", *files]
        if "repeatable read" in load.levels:
            # A snapshot leaves out commits with a transaction id, of time marks, for an instant.
            arguments.insert(1, "--no-prefix")
        done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        equal(f"history {name}: no unexpected error", problems[:5], [])
        check_load(f"history {name}", load, done_by_clients, Client.kinds)
        if not check(f"history {name}: correct", done.returncode == 0, done.stdout[:2500] + done.stdout[-200:]) and os.environ.get("MIXEDCC_KEEP"):
            shutil.copytree(directory, tempfile.mkdtemp(prefix="history-") + "/" + name)


def configurations():
    """Name, tables' settings, load."""
    both = Load(["a", "b"], ["a", "b"])
    for name, settings in SINGLE.items():
        yield name, settings, settings, both
    for first in PAIRED:
        for second in PAIRED:
            if first != second:
                # Reads mostly the first, writes mostly the second.
                yield f"{first}, {second}", PAIRED[first], PAIRED[second], Load(["a", "a", "b"], ["a", "b", "b"])
    yield "hot rows, occ", SINGLE["occ"], SINGLE["occ"], Load(["a"], ["a"], keys=3)
    if not OURS:
        return  # SSI does not see READ COMMITTED and REPEATABLE READ writers
    for name in map(protocols.patient, protocols.ALL):
        yield f"all levels, {name}", SINGLE[name], SINGLE[name], Load(["a", "b"], ["a", "b"], levels=ALL_LEVELS)
    for name in map(protocols.patient, protocols.ALL):
        load = Load(["a", "b"], ["a", "b"])
        load.at_repeatable_read = True
        yield f"serializable at repeatable read, {name}", SINGLE[name], SINGLE[name], load
    for name in map(protocols.patient, protocols.ALL):
        load = Load(["a", "b"], ["a", "b"], levels=ALL_LEVELS)
        load.prepares = 0.5
        yield f"prepared, {name}", SINGLE[name], SINGLE[name], load
    first = PAIRED[protocols.ALL[0]]
    yield "all levels, partitions of all protocols", first, first, Load(["a", "b"], ["a", "b"], levels=ALL_LEVELS)


def test_histories():
    connection = make_database(DATABASE)
    wanted = sys.argv[1:]
    chosen = [c for c in configurations() if not wanted or c[0] in wanted]
    duration = seconds(24, long=90) / len(chosen)
    reset_ways(connection)
    for name, first, second, load in chosen:
        make_tables(connection, first, second, "UNLOGGED" if load.prepares else "")
        if "partitions of all" in name:
            for table in ("a", "b"):
                for partition, protocol in enumerate(protocols.ALL[:PARTITIONS]):
                    set_protocol(connection, table, protocol, partition)
        judge(name, load, connection, duration)
    if not wanted:
        check_ways("history", connection)
    connection.close()
    drop_database(DATABASE)


CHECKER = checker()

if __name__ == "__main__":
    main(test_histories)
