#!/usr/bin/python3
"""VACUUM shows how far it has come in pg_stat_progress_vacuum, as on heap. A cursor of another
session holds a page of an index, so that VACUUM stands there. Cancelled, it leaves no entry, and
the next VACUUM does all."""

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

    def progress(self):
        """The row of the view as a dictionary; empty: there is none."""
        found = query(BOSS, "SELECT to_jsonb(p) FROM pg_stat_progress_vacuum p WHERE pid = %s", (self.pid,))
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


def run():
    global BOSS
    BOSS = make_database(DATABASE)
    try:
        main(vacuum, cancelled)
    finally:
        BOSS.close()
        drop_database(DATABASE)


if __name__ == "__main__":
    run()
