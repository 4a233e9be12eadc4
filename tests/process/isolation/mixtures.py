#!/usr/bin/python3
"""Histories over a mixedcc table and a heap table, with mixedcc.mixed_serializable = serializable:
SERIALIZABLE transactions, READ ONLY too, use both tables or one of them, and READ COMMITTED writes
the mixedcc table beside them. The history checker takes the rows of both alike.

Half of the time clients in Python send one statement at a time (`lib.histories`); in the other half
a program sends several (`lib.mixed`), cancels sessions, and switches protocols in the middle.

--number N: by the program, until so many transactions over both tables have committed.
--minutes N: by the program, for so long. --history N: transactions over both tables in a history.
--faults [NAME...]: in a build with deliberate faults a rule that is taken out must be missed."""

import argparse
import contextlib
import io
import itertools
import time

from lib import mixed, protocols
from lib.common import OURS, check, create_table, drop_database, failures, main, make_database, query, reload, seconds
from lib.histories import judge
from lib.loads import Load

DATABASE = "process_mixtures"
LEVELS = {"serializable": 8, "serializable read only": 2, "read committed": 1}
SINGLE = protocols.variants()
# Faults that the program finds within seconds. `mixed` finds each by an interleaving.
FAULTS = ("mixed_missed", "mixed_torn", "mixed_together")
# Transactions over both tables in one history of the program, and the longest time for them.
HISTORY, LONGEST = 50_000, 30


def mixed_load(keys=12):
    load = Load(["a", "b"], ["a", "b"], keys=keys, levels=LEVELS)
    load.mixed = OURS
    return load


def make_tables(connection, settings, kind):
    query(connection, "DROP TABLE IF EXISTS a, b")
    create_table(connection, "a", "k int PRIMARY KEY, l bigint[]", kind, **settings)
    query(connection, "CREATE TABLE b (k int PRIMARY KEY, l bigint[]) USING heap")


def configurations():
    """Name, settings of the mixedcc table, its kind, commits that wait for their flush, load."""
    for number, (name, settings) in enumerate(SINGLE.items()):
        kind = "UNLOGGED" if number % 2 else ""
        yield f"{name}, {kind.lower() or 'logged'}", {"partitions": 4, **settings}, kind, "off", mixed_load()
    for name in map(protocols.patient, protocols.ALL):
        yield f"{name}, synchronous", {"partitions": 4, **SINGLE[name]}, "", "on", mixed_load()
    name = protocols.patient(protocols.ALL[0])
    yield f"{name}, hot rows", SINGLE[name], "", "off", mixed_load(keys=3)


def judge_one(connection, number, configuration, duration):
    name, settings, kind, synchronous, load = configuration
    query(connection, f"ALTER DATABASE {DATABASE} SET synchronous_commit = '{synchronous}'")
    make_tables(connection, settings, kind)
    load.seed = number
    return judge(f"mixed {name}", load, connection, duration)


def test_clients():
    connection = make_database(DATABASE)
    chosen = list(configurations())
    duration = seconds(12, long=180) / len(chosen)
    begun, both = time.monotonic(), 0
    for number, configuration in enumerate(chosen):
        done = judge_one(connection, number, configuration, duration)
        check("mixed: transactions over both tables commit, READ ONLY too",
              done["both tables, serializable"] >= 5 and done["both tables, serializable read only"] >= 1, dict(done))
        both += done["both tables, serializable"] + done["both tables, serializable read only"]
    print(f"{both} transactions over both tables in {time.monotonic() - begun:.0f} s")
    connection.close()


def test_program():
    connection = make_database(DATABASE)
    begun = time.monotonic()
    if ARGUMENTS.minutes:
        end = begun + 60 * ARGUMENTS.minutes
        sums = mixed.run(connection, ARGUMENTS.history, LONGEST, lambda both, histories: time.monotonic() < end, seed=ARGUMENTS.seed)
    elif ARGUMENTS.number:
        sums = mixed.run(connection, ARGUMENTS.history, LONGEST, lambda both, histories: both < ARGUMENTS.number, seed=ARGUMENTS.seed)
    else:
        sums = mixed.run(connection, ARGUMENTS.history, seconds(12, long=180) / len(mixed.kinds()), seed=ARGUMENTS.seed)
    took = time.monotonic() - begun
    # A DEFERRABLE transaction waits for its snapshot of heap, which mostly misses a mixed commit by
    # then: few of them can use both tables (R3).
    check("mixed: cancels, DEFERRABLE transactions and switches are among them",
          sums["57014"] and sums["serializable read only deferrable"] and sums["switches"] > 10, dict(sums))
    print(f"{sums['over both']} transactions over both tables in {took:.0f} s, {sums['over both'] / took:.0f} a second, "
          f"{sums['commits'] / took:.0f} of all kinds; {sums['anomalies']} of {sums['histories']} histories are not correct; DEFERRABLE: "
          f"{sums['serializable read only deferrable']} commit, {sums['both tables, serializable read only deferrable']} of them over both")
    mixed.tell(sums)
    connection.close()


def count_to_fault(connection, fault, longest):
    """Histories of several kinds until one is not correct: how many transactions does that take?"""
    chosen, both, begun, correct = [kind for kind in mixed.kinds() if kind.synchronous == "off"], 0, time.monotonic(), True
    known = len(failures)
    for number, kind in enumerate(itertools.cycle(chosen)):
        if not correct or time.monotonic() - begun > longest:
            break
        with contextlib.redirect_stdout(io.StringIO()):
            history = mixed.History(connection, kind, min(ARGUMENTS.history, 5_000), 10, ARGUMENTS.seed + number)
            _, _, verdict = history.judged()
            correct = "REJECTED" not in verdict
        both += history.both
    del failures[known:]
    print(f"{fault}: {'not ' if correct else ''}within {both} transactions over both tables, in {time.monotonic() - begun:.0f} s", flush=True)
    return not correct


def set_fault(connection, fault):
    query(connection, f"ALTER SYSTEM SET mixedcc.fault = '{fault}'" if fault else "ALTER SYSTEM RESET mixedcc.fault")
    reload(connection)


def test_faults():
    mixed.kept = False
    connection = make_database(DATABASE)
    for fault in ARGUMENTS.faults or FAULTS:
        set_fault(connection, fault)
        check(f"found: {fault}", count_to_fault(connection, fault, ARGUMENTS.longest))
    set_fault(connection, "")
    connection.close()


def end():
    drop_database(DATABASE)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--history", type=int, default=HISTORY)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=120, help="with --faults: the longest time for each, in seconds")
    parser.add_argument("--faults", nargs="*")
    ARGUMENTS = parser.parse_args()
    if ARGUMENTS.faults is not None:
        main(test_faults, end)
    elif ARGUMENTS.number or ARGUMENTS.minutes:
        main(test_program, end)
    elif OURS:
        main(test_clients, test_program, end)
    else:
        main(test_clients, end)
