#!/usr/bin/python3
"""Property test of what SERIALIZABLE transactions read by predicate: random tables, indexes, plans,
predicates and writes in several processes, under every protocol and mix; the history checker judges
them.

    predicates.py                     all rounds
    predicates.py SEED [NAME]         one round again, of a configuration
    predicates.py --faults [NAME...]  rounds with each deliberate fault of a test build until the
    checker finds it (see tests/README.md)
"""

import collections
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

from lib import protocols
from lib.common import OURS, check, connect, drop_database, equal, main, make_database, query, seconds, set_protocol, value
from lib.histories import checker
from lib.loads import LATEST, Load, check_load, check_ways, reset_ways
from lib.predicates import Table, literal
from lib.readers import PLANS, Reader, stir, write_ends
from process.isolation.history import SINGLE

DATABASE = "process_predicates"
CLIENTS = 7
PATIENT = 2  # of them: their transactions take long
PREDICATES = 50
LEVELS = {"serializable": 16, "serializable read only": 1, "repeatable read": 1, "read committed": 3, "guarded": 2}
ROUNDS = list(SINGLE) + ["mixed", "switched", "growing"] * 2 + ["occ", "occ"]
# Faults of a test build (src/pg/faults.rs), of all kinds, and the seconds in which each is to be
# found.
FAULTS = ["no_validation", "index_forgotten", "limit_too_little", "upper_bound", "descending_bounds", "nulls_left_out", "null_marker", "first_of_array",
          "row_comparison", "entry_reused", "no_mediation"]
LIMIT = 60


def client(number, load, path, table, seed, fault, patience, until, results):
    done, problems = collections.Counter(), []
    try:
        one = Reader(DATABASE, number, load, path, table, seed, fault, patience)
        done, problems = one.done, one.problems
        one.run(until)
    except Exception as error:
        problems.append(repr(error))
    results.put((done, problems))


def switch(partitions, seed, until):
    """Asks for other protocols of random partitions all the time."""
    rng = random.Random(seed)
    connection = connect(DATABASE)
    while time.monotonic() < until:
        set_protocol(connection, "t", rng.choice(protocols.ALL), rng.randrange(partitions), wait=False)
        time.sleep(rng.random() * 0.06)
    connection.close()


def stirrer(table, seed, until):
    connection = connect(DATABASE, options="-c deadlock_timeout=20ms")
    stir(connection, table, random.Random(seed), until)
    connection.close()


def prepare(connection, name, seed):
    rng = random.Random(seed)
    table = Table(rng)
    partitions = max(4, len(protocols.ALL)) if name == "mixed" else rng.choice([1, 2, 3, 4])
    settings = SINGLE[name] if name in SINGLE else SINGLE[rng.choice(list(SINGLE))]
    table.create(connection, partitions, name != "growing", **settings)
    if name == "mixed":
        mixture = rng.sample(protocols.ALL, len(protocols.ALL))
        mixture += [rng.choice(protocols.ALL) for _ in range(partitions - len(mixture))]
        for partition, protocol in enumerate(mixture):
            set_protocol(connection, "t", protocol, partition)
    table.waits = name in ("mixed", "switched") or not protocols.only_validates(settings["protocol"])
    table.coarse = seed % 2 == 0  # one range for an index, and it stays
    table.make_predicates(connection, PREDICATES)
    table.guards = [p for p in table.predicates if p.kind == "guarded"]
    table.scanned = scans_primary(connection, table)
    return table, partitions


def scans_primary(connection, table):
    """Is a range of the key read by the custom scan, by the plans that ask for it?"""
    lowest = literal(table.points[0]["id"])
    plan = query(connection, f"BEGIN; {PLANS['primary']}EXPLAIN SELECT p, l FROM t WHERE id >= {lowest}")
    query(connection, "ROLLBACK")
    return any("MixedccScan" in line for line, in plan)


def run(connection, name, seed, duration, fault=None):
    """One round; returns the table, the load, what each client has counted, problems and the
    checker's verdict."""
    table, partitions = prepare(connection, name, seed)
    with tempfile.TemporaryDirectory() as directory:
        until = time.monotonic() + duration
        results = multiprocessing.Queue()
        load = Load(["t"], ["t"], levels=LEVELS if OURS else {"serializable": 1}, length=5)
        # Where readers lock, a slow reader holds the others up.
        patience = [0.01] * (CLIENTS - PATIENT) + [0.03 if table.waits else 0.3] * PATIENT
        processes = [
            multiprocessing.Process(target=client, args=(number, load, f"{directory}/{number}.jsonl", table, seed, fault, patience[number - 1], until, results))
            for number in range(1, CLIENTS + 1)
        ]
        if name == "switched" and OURS:
            processes.append(multiprocessing.Process(target=switch, args=(partitions, seed, until)))
        if OURS and not table.coarse:
            processes.append(multiprocessing.Process(target=stirrer, args=(table, seed, until)))
        for process in processes:
            process.start()
        outcomes = [results.get(timeout=duration + LATEST + 90) for _ in range(CLIENTS)]
        for process in processes:
            process.join()
        beside = [process.exitcode for process in processes[CLIENTS:]]
        write_ends(connection, table, directory)
        files = sorted(os.path.join(directory, file) for file in os.listdir(directory))
        # Heap's SSI keeps neither real-time nor session order.
        arguments = [CHECKER, "--limit", "3", "--real-time" if OURS else "--no-session", *files]
        if OURS:
            # A snapshot leaves out commits with a transaction id, of time marks, for an instant.
            arguments.insert(1, "--no-prefix")
        done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0 and os.environ.get("MIXEDCC_KEEP"):
            shutil.copytree(directory, tempfile.mkdtemp(prefix="predicates-") + f"/{name}-{seed}")
    problems = [p for _, found in outcomes for p in found]
    problems += [f"what ran beside the clients ended with {beside}"] if any(beside) else []
    return table, load, [counts for counts, _ in outcomes], problems, done


def judge(connection, name, seed, duration):
    label = f"predicates {name}"  # without the seed: a check is the same with another one
    table, load, counts, problems, done = run(connection, name, seed, duration)
    about = f"seed {seed}, key {table.key_type}, {table.indexes}\n"
    equal(f"{label}: no unexpected error", (seed, problems[:5]), (seed, []))
    check_load(label, load, counts, Reader.kinds)
    check(f"{label}: correct", done.returncode == 0, about + done.stdout[:3000] + done.stdout[-200:])
    if os.environ.get("MIXEDCC_VERBOSE"):
        print(f"   {dict(sum(counts, collections.Counter()))}, {done.stdout.splitlines()[-1]}")
    return table


def find(connection, fault, first):
    """Rounds with a fault until one is rejected."""
    begin, seed = time.monotonic(), first
    while time.monotonic() - begin < LIMIT:
        _, _, _, problems, done = run(connection, "occ", seed, 3, fault)
        if problems:
            equal(f"fault {fault}: no unexpected error", (seed, problems[:3]), (seed, []))
        if done.returncode == 1:
            took = time.monotonic() - begin
            kinds = sorted({line.split(":")[0] for line in done.stdout.splitlines() if ": transactions [" in line})
            print(f"   after {took:.0f} s, {seed - first + 1} rounds: {', '.join(kinds)}")
            return check(f"fault {fault}: found", True)
        seed += 1
    return check(f"fault {fault}: found", False, f"not in {seed - first} rounds")


def test_faults():
    connection = make_database(DATABASE)
    first = int(os.environ.get("MIXEDCC_SEED", time.time()))
    for fault in sys.argv[2:] or FAULTS:
        find(connection, fault, first)
    connection.close()
    drop_database(DATABASE)


def test_rounds():
    connection = make_database(DATABASE)
    wanted = sys.argv[1:]
    if wanted:
        rounds = [(wanted[1] if len(wanted) > 1 else "occ", int(wanted[0]))]
    else:
        first = int(os.environ.get("MIXEDCC_SEED", time.time()))
        rounds = [(name, first + number) for number, name in enumerate(ROUNDS)]
        check("predicates: the build has no deliberate faults", value(connection, "SELECT current_setting('mixedcc.fault', true)") is None)
    duration = seconds(30, long=90) / len(ROUNDS)
    reset_ways(connection)
    tables = [judge(connection, name, seed, duration) for name, seed in rounds]
    if OURS and not wanted:
        # Two tables in three have a PRIMARY KEY that the primary index serves.
        check("predicates: tables are read by the custom scan", sum(table.scanned for table in tables) >= 2, len(tables))
        check_ways("predicates", connection)
    connection.close()
    drop_database(DATABASE)


CHECKER = checker()

if __name__ == "__main__":
    main(test_faults if "--faults" in sys.argv else test_rounds)
