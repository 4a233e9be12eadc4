#!/usr/bin/python3
"""Histories over a mixedcc table and a heap table, with mixedcc.mixed_serializable = serializable:
SERIALIZABLE transactions, READ ONLY too, use both tables or one of them, and READ COMMITTED writes
the mixedcc table beside them. The history checker takes the rows of both alike.

--number N: goes on until so many transactions over both tables have committed, in histories of a
minute. --faults: in a build with deliberate faults a rule that is
taken out must be missed."""

import sys

from lib import protocols
from lib.common import OURS, check, create_table, drop_database, main, make_database, must_be_found, query, reload, seconds
from lib.histories import judge
from lib.loads import Load

DATABASE = "process_mixtures"
LEVELS = {"serializable": 8, "serializable read only": 2, "read committed": 1}
SINGLE = protocols.variants()
# Faults that random transactions find within seconds. `mixed` finds each by an interleaving.
FAULTS = ("mixed_missed", "mixed_torn")


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


def over_both(done):
    return done["both tables, serializable"] + done["both tables, serializable read only"]


def test_mixtures():
    connection = make_database(DATABASE)
    wanted = int(sys.argv[2]) if sys.argv[1:2] == ["--number"] else 0
    chosen, number, committed = list(configurations()), 0, 0
    duration = 60 if wanted else seconds(24, long=180) / len(chosen)
    while number < len(chosen) or committed < wanted:
        done = judge_one(connection, number, chosen[number % len(chosen)], duration)
        check("mixed: transactions over both tables commit, READ ONLY too",
              done["both tables, serializable"] >= 5 and done["both tables, serializable read only"] >= 1, dict(done))
        committed += over_both(done)
        number += 1
        print(f"{committed} transactions over both tables, {done['commits']} of {done['transactions']} commit, "
              f"READ ONLY {done['both tables, serializable read only']}", flush=True)
    connection.close()
    drop_database(DATABASE)


def test_faults():
    connection = make_database(DATABASE)
    for fault in FAULTS:
        query(connection, f"ALTER SYSTEM SET mixedcc.fault = '{fault}'")
        reload(connection)
        configuration = next(configurations())
        must_be_found(fault, f"history mixed {configuration[0]}: correct", lambda c=configuration: judge_one(connection, 0, c, 15))
        query(connection, "ALTER SYSTEM RESET mixedcc.fault")
        reload(connection)
    connection.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_faults if sys.argv[1:2] == ["--faults"] else test_mixtures)
