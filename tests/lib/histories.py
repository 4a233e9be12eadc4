"""Histories: clients run random transactions (`lib.loads`), and the history checker judges what
they saw. CHECK_HISTORY names the checker (default: the engine's build)."""

import collections
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time

from lib.common import OURS, ROOT, check, equal
from lib.loads import LATEST, Client, check_load, write_last

CLIENTS = 5


def program(name, variable):
    """The path of a program of the build, or what the variable names."""
    places = [os.environ.get(variable)]
    for target in (os.environ.get("CARGO_TARGET_DIR"), str(ROOT / "target"), os.path.expanduser("~/.cache/mixedcc/target")):
        if target:
            places += [f"{target}/release/{name}", f"{target}/debug/{name}"]
    places.append(shutil.which(name))
    for place in places:
        if place and os.access(place, os.X_OK):
            return place
    sys.exit(f"FAIL history: {name} not found: build it or set {variable}")


def checker():
    return program("check-history", "CHECK_HISTORY")


def client(kind, database, number, load, path, until, results):
    done, problems = collections.Counter(), []
    try:
        one = kind(database, number, load, path)
        done, problems = one.done, one.problems
        one.run(until)
    except Exception as error:
        problems.append(repr(error))
    results.put((done, problems))


def run_clients(kind, database, load, directory, duration):
    until = time.monotonic() + duration
    results = multiprocessing.Queue()
    processes = [
        multiprocessing.Process(target=client, args=(kind, database, number, load, f"{directory}/{number}.jsonl", until, results))
        for number in range(1, CLIENTS + 1)
    ]
    for process in processes:
        process.start()
    outcomes = [results.get(timeout=duration + LATEST + 90) for _ in processes]
    for process in processes:
        process.join()
    return [done for done, _ in outcomes], [p for _, problems in outcomes for p in problems]


def judge(name, load, connection, duration, meanwhile=None, kind=Client, last=write_last):
    """Runs the load on tables a and b of the connection's database. `meanwhile` runs
    beside the clients; it is called with the time at which it has to end. `kind`: the clients;
    `last` writes down the final state."""
    with tempfile.TemporaryDirectory() as directory:
        beside = multiprocessing.Process(target=meanwhile, args=(time.monotonic() + duration,)) if meanwhile else None
        if beside:
            beside.start()
        done_by_clients, problems = run_clients(kind, connection.info.dbname, load, directory, duration)
        if beside:
            beside.join()
            check(f"history {name}: what ran beside it ended well", beside.exitcode == 0)
        last(connection, ["a", "b"], f"{directory}/last.jsonl")
        files = sorted(os.path.join(directory, file) for file in os.listdir(directory))
        # Heap's SSI keeps neither real-time nor session order.
        arguments = [CHECKER, "--real-time" if OURS and not load.mixed else "--no-session", *files]
        if load.mixed or "repeatable read" in load.levels:
            # A snapshot leaves out commits with a transaction id, of time marks, for an instant,
            # and those that wait for their flush.
            arguments.insert(1, "--no-prefix")
        done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        equal(f"history {name}: no unexpected error", problems[:5], [])
        check_load(f"history {name}", load, done_by_clients, kind.kinds)
        if not check(f"history {name}: correct", done.returncode == 0, done.stdout[:2500] + done.stdout[-200:]) and os.environ.get("MIXEDCC_KEEP"):
            shutil.copytree(directory, tempfile.mkdtemp(prefix="history-") + "/" + name)
        return sum(done_by_clients, collections.Counter())


CHECKER = checker()
