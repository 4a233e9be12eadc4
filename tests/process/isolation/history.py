#!/usr/bin/python3
"""Several processes run random transactions on tables under each protocol, each
ordered pair of protocols and mixes of levels; the history checker judges what
they saw."""

import sys

from lib import protocols
from lib.common import OURS, create_table, drop_database, main, make_database, query, seconds, set_protocol
from lib.histories import judge
from lib.loads import Load, check_ways, reset_ways

DATABASE = "process_history"
PARTITIONS = max(4, len(protocols.ALL))
SINGLE = protocols.variants()
PAIRED = {name: SINGLE[protocols.patient(name)] for name in protocols.ALL}
ALL_LEVELS = {"serializable": 5, "serializable read only": 1, "repeatable read": 2, "read committed": 2}


def make_tables(connection, first, second, kind=""):
    """Two tables of some partitions and a secondary index."""
    query(connection, "DROP TABLE IF EXISTS a, b")
    for table, settings in (("a", first), ("b", second)):
        create_table(connection, table, "k int PRIMARY KEY, l bigint[]", kind, partitions=PARTITIONS, **settings)


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
    for name in map(protocols.patient, protocols.ALL):
        load = Load(["a", "b"], ["a", "b"], levels=ALL_LEVELS)
        load.defers, load.prepares = True, 0.2
        yield f"deferred, {name}", SINGLE[name], SINGLE[name], load
    first = PAIRED[protocols.ALL[0]]
    yield "all levels, partitions of all protocols", first, first, Load(["a", "b"], ["a", "b"], levels=ALL_LEVELS)


def test_histories():
    connection = make_database(DATABASE)
    wanted = sys.argv[1:]
    chosen = [c for c in configurations() if not wanted or c[0] in wanted]
    duration = seconds(24, long=90) / len(chosen)
    reset_ways(connection)
    for name, first, second, load in chosen:
        make_tables(connection, first, second)
        if "partitions of all" in name:
            for table in ("a", "b"):
                for partition, protocol in enumerate(protocols.ALL[:PARTITIONS]):
                    set_protocol(connection, table, protocol, partition)
        judge(name, load, connection, duration)
    if not wanted:
        check_ways("history", connection)
    connection.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_histories)
