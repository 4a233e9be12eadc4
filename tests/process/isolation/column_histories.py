#!/usr/bin/python3
"""Histories in which each column is an item, while tables learn which columns do not change, in
short periods (mixedcc.column_period): random transactions under each protocol, and on tables of
`2pl` and of another one. The checker judges them. --faults: in a build with deliberate faults a
look that is not remembered must be missed."""

import sys

from lib import protocols
from lib.columns import PERIOD, ColumnClient, write_last
from lib.common import OURS, create_table, drop_database, main, make_database, must_be_found, query, reload, seconds
from lib.histories import judge
from lib.loads import Load

DATABASE = "process_column_histories"
LEVELS = {"serializable": 12, "serializable read only": 1, "repeatable read": 1, "read committed": 1}
SINGLE = protocols.variants()


def make(connection, first, second, kind=""):
    query(connection, "DROP TABLE IF EXISTS a, b")
    for table, settings in (("a", first), ("b", second)):
        create_table(connection, table, "k int PRIMARY KEY, l bigint[], m bigint[]", kind, partitions=1, **settings)


def load(keys=8, levels=None):
    return Load(["a", "b"], ["a", "b"], keys=keys, levels=levels)


def configurations():
    """Name, the tables' settings, load."""
    levels = LEVELS if OURS else None
    for name, settings in SINGLE.items():
        yield name, settings, settings, load(levels=levels)
    for locking in protocols.having("locks_reads"):
        locks = SINGLE[protocols.patient(locking)]
        for name in protocols.without("locks_reads"):
            yield f"{locking}, {name}", locks, SINGLE[protocols.patient(name)], load(levels=levels)
        prepared = load(levels=levels)
        prepared.prepares = 0.3
        yield f"prepared, {locking}", locks, locks, prepared
        yield f"hot rows, {locking}", locks, locks, load(keys=3)


def begin():
    connection = make_database(DATABASE)
    if OURS:
        query(connection, f"ALTER SYSTEM SET mixedcc.column_period = '{PERIOD}'")
        reload(connection)
    return connection


def judge_one(connection, configuration, duration):
    name, first, second, one = configuration
    make(connection, first, second)
    return judge(f"columns {name}", one, connection, duration, kind=ColumnClient, last=write_last)


def test_histories():
    connection = begin()
    wanted = [a for a in sys.argv[1:] if not a.startswith("--")]
    chosen = [c for c in configurations() if not wanted or c[0] in wanted]
    for configuration in chosen:
        done = judge_one(connection, configuration, seconds(24, long=180) / len(chosen))
        print(f"  {configuration[0]}: {done['commits']} of {done['transactions']} commit", flush=True)
    connection.close()
    drop_database(DATABASE)


def test_faults():
    connection = begin()
    fault = "key_look_forgotten"
    query(connection, f"ALTER SYSTEM SET mixedcc.fault = '{fault}'")
    reload(connection)
    configuration = next(c for c in configurations() if c[0].startswith("hot rows"))
    must_be_found(fault, f"history columns {configuration[0]}: correct", lambda: judge_one(connection, configuration, 20))
    query(connection, "ALTER SYSTEM RESET mixedcc.fault")
    connection.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_faults if "--faults" in sys.argv else test_histories)
