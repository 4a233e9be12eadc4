#!/usr/bin/python3
"""Keys of one hint: each way to a row finds that of its own key, or none, under each protocol. The
argument --faults runs it with the deliberate fault of a test build that takes a hinted row without
a look at its key."""

import sys

import psycopg2

from lib import protocols
from lib.common import check, create_table, drop_database, equal, main, make_database, must_be_found, query, value

DATABASE = "process_hints"
FAULT = ""
# The hints of each two are the same.
PAIRS = ((20000000, 351160282), (20000001, 351160283), (20000002, 2124226201))
WAYS = ("SELECT v FROM h WHERE k = {}", "SELECT mixedcc.get_value(NULL::int, NULL::h, 'v', {})", "UPDATE h SET v = v + 1 WHERE k = {} RETURNING v",
        "SELECT mixedcc.add(NULL::h, 'v', 1, {})", "SELECT v FROM h WHERE k = {} FOR UPDATE")


def found(connection, key):
    return [query(connection, way.format(key)) for way in WAYS]


def wanted(v):
    if v is None:
        return [[], [(None,)], [], [(False,)], []]
    return [[(v,)], [(v,)], [(v + 1,)], [(True,)], [(v + 2,)]]


def test_each_key_finds_its_own_row():
    boss = make_database(DATABASE)
    for protocol in protocols.ALL:
        query(boss, "DROP TABLE IF EXISTS h")
        create_table(boss, "h", "k int PRIMARY KEY, v int", protocol=protocol)
        there = {first: n * 10 for n, (first, _) in enumerate(PAIRS, 1)}
        query(boss, "INSERT INTO h VALUES " + ", ".join(map(str, there.items())))
        for turn, keys in (("at first", there), ("after others came", {second: n * 100 for n, (_, second) in enumerate(PAIRS, 1)})):
            if keys is not there:
                query(boss, "INSERT INTO h VALUES " + ", ".join(map(str, keys.items())))
                query(boss, "DELETE FROM h WHERE k = ANY (%s)", (list(there),))
            if FAULT:
                query(boss, f"SET mixedcc.fault = '{FAULT}'")
            query(boss, "BEGIN ISOLATION LEVEL SERIALIZABLE")
            try:
                got = {key: found(boss, key) for pair in PAIRS for key in pair}
                query(boss, "COMMIT")
            except psycopg2.Error as error:
                got = str(error)
                query(boss, "ROLLBACK")
            equal(f"hints: each key finds its own row, {turn}, {protocol}", got, {key: wanted(keys.get(key)) for pair in PAIRS for key in pair})
            query(boss, "RESET mixedcc.fault" if FAULT else "SELECT 1")
    boss.close()


def test_faults():
    global FAULT
    boss = make_database(DATABASE)
    built = value(boss, "SELECT current_setting('mixedcc.fault', true)")
    boss.close()
    if built is None:
        check("hints: the build has no deliberate faults", False)
        return
    FAULT = "guess_unproved"
    for protocol in ("occ", "2pl", "mocc"):
        must_be_found(FAULT, f"hints: each key finds its own row, after others came, {protocol}", test_each_key_finds_its_own_row)


def finish():
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_faults if "--faults" in sys.argv else test_each_key_finds_its_own_row, finish)
