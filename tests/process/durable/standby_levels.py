#!/usr/bin/python3
"""SERIALIZABLE on a standby, beyond what durable/standby asks: such a transaction has no parallel
workers, and after a promotion none of its ways to a row goes on."""

import psycopg2

from lib.clusters import Cluster
from lib.common import drop_database, equal, main, make_database, must_come, query, value

DATABASE = "process_standby_levels"
ROWS = 1000
# Workers cost nothing, so that each plan that may have some has them.
WORKERS = "; ".join(("SET parallel_setup_cost = 0", "SET parallel_tuple_cost = 0", "SET min_parallel_table_scan_size = 0",
                     "SET min_parallel_index_scan_size = 0", "SET max_parallel_workers_per_gather = 2"))


def launched(connection, statement):
    """How many workers a statement had."""
    plan = value(connection, f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON) {statement}")
    nodes, found = [plan[0]["Plan"]], 0
    while nodes:
        node = nodes.pop()
        found += node.get("Workers Launched", 0)
        nodes += node.get("Plans", [])
    return found


def test_workers(standby):
    """They would not know what their transaction has been asked for."""
    connection = standby.connect()
    query(connection, WORKERS)
    catalog = "SELECT count(*) FROM pg_class"
    for begin, some in (("BEGIN ISOLATION LEVEL REPEATABLE READ", True), ("BEGIN ISOLATION LEVEL SERIALIZABLE", False),
                        ("BEGIN; SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", False)):
        query(connection, begin)
        equal(f"levels: workers after {begin}", launched(connection, catalog) > 0, some)
        query(connection, "COMMIT")
    query(connection, "SET default_transaction_isolation = serializable")
    equal("levels: workers by default", launched(connection, catalog), 0)
    connection.close()


# Ways to rows: by a plan that was made before, and by calls without a table's name.
PREPARED = {
    "bypass": "PREPARE asked (int) AS SELECT v FROM levels WHERE id = $1",
    "scan": "PREPARE asked (int) AS SELECT count(*) FROM levels a JOIN levels b USING (v) WHERE a.id = $1",
    "call": "PREPARE asked (int) AS SELECT mixedcc.get_value(NULL::int, NULL::levels, 'v', $1)",
    "write": "PREPARE asked (int) AS UPDATE levels SET v = 0 WHERE id = $1",
}


def code_of(connection, sql):
    try:
        query(connection, sql)
        return None
    except psycopg2.Error as error:
        return error.pgcode


def taken(standby):
    """Statements that took the bypass so far."""
    return standby.ask("SELECT coalesce(sum(statements), 0)::int FROM mixedcc.bypass WHERE statement IS NOT NULL")


def test_promotion(standby):
    sessions = {}
    for way, statement in PREPARED.items():
        session = sessions[way] = standby.connect()
        query(session, "SET plan_cache_mode = force_generic_plan")
        query(session, statement)
        if way != "write":
            before = taken(standby)
            equal(f"levels: {way}: works on the standby", len(query(session, "EXECUTE asked (1)")), 1)
            equal(f"levels: {way}: takes the bypass", taken(standby) - before, int(way == "bypass"))
        query(session, "BEGIN ISOLATION LEVEL SERIALIZABLE")
    standby.control("promote")
    must_come(lambda: not standby.ask("SELECT pg_is_in_recovery()"), 60)
    for way, session in sessions.items():
        equal(f"levels: {way}: does not go on after the promotion", code_of(session, "EXECUTE asked (1)"), "40001")
        query(session, "ROLLBACK")
        query(session, "BEGIN ISOLATION LEVEL SERIALIZABLE")
        equal(f"levels: {way}: the next one does", code_of(session, "EXECUTE asked (2)"), None)
        query(session, "ROLLBACK")
        session.close()
    equal("levels: nothing is changed", standby.ask("SELECT sum(v) FROM levels"), ROWS)


def test_all():
    primary = make_database(DATABASE)
    query(primary, "CREATE TABLE levels (id int PRIMARY KEY, v int NOT NULL) USING mixedcc")
    query(primary, f"INSERT INTO levels SELECT i, 1 FROM generate_series(1, {ROWS}) i")
    standby = Cluster.copy("-R", database=DATABASE)
    try:
        standby.start(hot_standby="on")
        must_come(lambda: standby.ask("SELECT count(*) FROM levels") == ROWS, 60)
        test_workers(standby)
        test_promotion(standby)
    finally:
        standby.remove()
        primary.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_all)
