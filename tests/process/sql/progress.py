#!/usr/bin/python3
"""Long commands show how far they have come in PostgreSQL's views, as on heap. A cursor of another
session holds a page of an index, so that VACUUM stands there. Cancelled, it leaves no entry, and
the next VACUUM does all. CREATE INDEX and CLUSTER stand in a function of an index."""

import threading

import psycopg2

from lib.common import OURS, check, connect, drop_database, equal, main, make_database, must_come, query, value

DATABASE = "process_progress"
USING = "mixedcc" if OURS else "heap"
ROWS, DELETED = 5000, 1000


class Command(threading.Thread):
    """A command in a session of its own."""

    def __init__(self, sql):
        super().__init__()
        self.connection = connect(DATABASE)
        self.pid = self.connection.info.backend_pid
        self.sql = sql
        self.error = None
        self.start()

    def run(self):
        try:
            query(self.connection, self.sql)
        except psycopg2.Error as error:
            self.error = error.pgcode

    def progress(self, kind="vacuum"):
        """The row of the view as a dictionary; empty: there is none."""
        found = query(BOSS, f"SELECT to_jsonb(p) FROM pg_stat_progress_{kind} p WHERE pid = %s", (self.pid,))
        return found[0][0] if found else {}

    def stands_at_index(self):
        waits = query(BOSS, "SELECT wait_event FROM pg_stat_activity WHERE pid = %s", (self.pid,))
        return self.progress().get("phase") == "vacuuming indexes" and waits == [("BufferPin",)]


def make_table():
    """Unlogged: there an index scan keeps the page that it stands on."""
    query(BOSS, "DROP TABLE IF EXISTS t")
    query(BOSS, f"CREATE UNLOGGED TABLE t (id int PRIMARY KEY, v int) USING {USING}")
    query(BOSS, f"INSERT INTO t SELECT i, i FROM generate_series(1, {ROWS}) i")
    query(BOSS, "CREATE INDEX x ON t (v)")
    query(BOSS, f"DELETE FROM t WHERE id <= {DELETED}")
    # A snapshot of the next moment does not see the deleted rows, and keeps none of them.
    query(BOSS, f"CREATE TABLE IF NOT EXISTS other (id int) USING {USING}")
    query(BOSS, "VACUUM other")


def cursor():
    reader = connect(DATABASE, options="-c enable_seqscan=off -c enable_bitmapscan=off -c enable_sort=off")
    query(reader, "BEGIN")
    query(reader, f"DECLARE c CURSOR FOR SELECT id FROM t WHERE v > {ROWS // 2} ORDER BY v")
    equal("the cursor reads by the index", value(reader, "FETCH c"), ROWS // 2 + 1)
    return reader


def vacuum():
    make_table()
    reader = cursor()
    command = Command("VACUUM t")
    must_come(command.stands_at_index)
    p = command.progress()
    equal("VACUUM names its table", int(p["relid"]), value(BOSS, "SELECT 't'::regclass::oid::int8"))
    check("all blocks are scanned", p["heap_blks_scanned"] == p["heap_blks_total"] > 1, p)
    if OURS:
        equal("a block has 256 rows", p["heap_blks_total"], (ROWS + 255) // 256)
    equal("none is freed", (p["heap_blks_vacuumed"], p["index_vacuum_count"]), (0, 0))
    equal("dead rows are counted", p.get("num_dead_tuples", p.get("num_dead_item_ids")), DELETED)
    if "indexes_total" in p:
        equal("indexes are counted", p["indexes_total"], 2)
    query(reader, "COMMIT")
    command.join()
    equal("VACUUM goes on when the cursor is closed", command.error, None)
    equal("no entry is left", command.progress(), {})
    for connection in (reader, command.connection):
        connection.close()


def cancelled():
    make_table()
    reader = cursor()
    command = Command("VACUUM t")
    must_come(command.stands_at_index)
    query(BOSS, "SELECT pg_cancel_backend(%s)", (command.pid,))
    command.join()
    equal("a cancelled VACUUM fails", command.error, "57014")
    equal("it leaves no entry", command.progress(), {})
    query(reader, "COMMIT")
    query(BOSS, "VACUUM t")
    equal("the rows are those that were not deleted", value(BOSS, "SELECT count(*) FROM t"), ROWS - DELETED)
    equal("the next VACUUM has removed the entries", value(BOSS, "SELECT reltuples::int8 FROM pg_class WHERE relname = 'x'"),
          ROWS - DELETED)
    for connection in (reader, command.connection):
        connection.close()


def make_plain_table(kind):
    query(BOSS, f"DROP TABLE IF EXISTS t; CREATE {kind} TABLE t (id int PRIMARY KEY, v int) USING {USING}")
    query(BOSS, f"INSERT INTO t SELECT i, {ROWS} - i FROM generate_series(1, {ROWS}) i")
    query(BOSS, f"""CREATE OR REPLACE FUNCTION stands(v int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
        IF v = 1000 THEN PERFORM pg_advisory_xact_lock(1); END IF;
        RETURN v; END $$""")


def stand(sql):
    """The command, which stands at the row of v = 1000, and the session that holds it there."""
    holder = connect(DATABASE)
    query(holder, "SELECT pg_advisory_lock(1)")
    command = Command(sql)
    must_come(lambda: query(BOSS, "SELECT wait_event FROM pg_stat_activity WHERE pid = %s", (command.pid,)) == [("advisory",)])
    return command, holder


def goes_on(name, kind, command, holder):
    query(holder, "SELECT pg_advisory_unlock(1)")
    command.join()
    equal(f"{name}: it goes on", command.error, None)
    equal(f"{name}: no entry is left", command.progress(kind), {})
    for connection in (holder, command.connection):
        connection.close()


def create_index(kind):
    name = f"CREATE INDEX, {kind or 'permanent'}"
    make_plain_table(kind)
    command, holder = stand("CREATE INDEX x ON t (stands(v))")
    p = command.progress("create_index")
    equal(f"{name}: its table", int(p["relid"]), value(BOSS, "SELECT 't'::regclass::oid::int8"))
    equal(f"{name}: its phase", p["phase"], "building index: scanning table")
    check(f"{name}: four fifths of the blocks are read", 0.7 < p["blocks_done"] / p["blocks_total"] < 0.9, p)
    goes_on(name, "create_index", command, holder)


def cluster(kind):
    """It copies the rows, and builds the indexes then."""
    name = f"CLUSTER, {kind or 'permanent'}"
    make_plain_table(kind)
    query(BOSS, "CREATE INDEX y ON t (v)")
    query(BOSS, "CREATE INDEX x ON t (stands(v))")
    command, holder = stand("CLUSTER t USING y")
    p = command.progress("cluster")
    equal(f"{name}: its command", p["command"], "CLUSTER")
    equal(f"{name}: its phase", p["phase"], "rebuilding index")
    equal(f"{name}: the index that orders the rows", int(p["cluster_index_relid"]), value(BOSS, "SELECT 'y'::regclass::oid::int8"))
    equal(f"{name}: all rows were read", p["heap_tuples_scanned"], ROWS)
    equal(f"{name}: all rows were written", p["heap_tuples_written"], ROWS)
    goes_on(name, "cluster", command, holder)
    equal(f"{name}: the rows are in order", query(BOSS, "SELECT v FROM t LIMIT 3"), [(0,), (1,), (2,)])


def indexes():
    for kind in ("", "UNLOGGED"):
        create_index(kind)


def clusters():
    for kind in ("", "UNLOGGED"):
        cluster(kind)


def run():
    global BOSS
    BOSS = make_database(DATABASE)
    try:
        main(vacuum, cancelled, indexes, clusters)
    finally:
        BOSS.close()
        drop_database(DATABASE)


if __name__ == "__main__":
    run()
