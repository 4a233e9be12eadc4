#!/usr/bin/python3
"""A commit that waits for its standby for long stops no other session. The standby is
pg_receivewal, which answers when it has flushed, and never tells that it has replayed: a commit
with `remote_apply` hangs, and others with `on` wait for their own records only. Beside the commit
that hangs others commit in each way, and READ COMMITTED sessions read the rows that it has changed.
Then the standby stops, too, and comes back. At the end a cancel, or a change of the settings, ends
the wait, and all rows are there. `hanging --faults` needs a build with the feature `faults`."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import psycopg2

from lib.common import (check, connect, drop_database, equal, fail, main, make_database, must_be_found, must_come,
                        query, reload, value)

DATABASE = "process_hanging"
LONG = bool(os.environ.get("MIXEDCC_LONG"))
# All commits beside one that hangs, of two kinds.
COMMITS = 1_000_000 if LONG else 60_000
ROWS = 100
# A quarter of what the versions take that these commits replace.
HELD_BYTES = COMMITS * 30
BOSS = None


def session(level="local"):
    return connect(DATABASE, options=f"-c synchronous_commit={level}")


class Standby:
    """A synchronous standby that answers when it has flushed."""

    def __init__(self):
        self.home = tempfile.mkdtemp(prefix="mch-", dir="/tmp")
        path = os.path.join(os.environ["PGBIN"], "pg_receivewal")
        self.process = subprocess.Popen([path, "-D", self.home, "--synchronous", "--no-loop", "-d", "application_name=receiver"],
                                        stdin=subprocess.DEVNULL)

    def is_synchronous(self):
        return value(BOSS, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def remove(self):
        self.go_on()
        self.process.terminate()
        self.process.wait(30)
        shutil.rmtree(self.home, ignore_errors=True)


class Hanging:
    """A session whose COMMIT waits for the standby to replay it."""

    def __init__(self, *statements):
        self.connection = session("remote_apply")
        self.done = False
        query(self.connection, "BEGIN")
        self.results = {statement: query(self.connection, statement) for statement in statements}
        self.thread = threading.Thread(target=self.commit)
        self.thread.start()
        must_come(self.waits)

    def commit(self):
        query(self.connection, "COMMIT")
        self.done = True

    def waits(self):
        return waits(self.connection)

    def end(self):
        self.thread.join(60)
        self.connection.close()


def waits(connection):
    sql = "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = %s"
    return value(BOSS, sql, (connection.info.backend_pid,)) is True


def commits(connection, statement, number):
    """So many transactions, each of which has a commit of its own."""
    query(connection, f"DO $$ BEGIN FOR i IN 1..{number} LOOP {statement}; COMMIT; END LOOP; END $$")


def used():
    return value(BOSS, "SELECT used_bytes FROM mixedcc.memory")


def make_tables():
    for name, persistence in (("plain", ""), ("unlogged", "UNLOGGED")):
        # Autovacuum would keep versions, for as long as it lasts.
        query(BOSS, f"CREATE {persistence} TABLE {name} (id int, n int, t text) USING mixedcc WITH (autovacuum_enabled = off)")
        query(BOSS, f"INSERT INTO {name} SELECT i, 0, repeat('x', 100) FROM generate_series(1, {ROWS}) i")
        query(BOSS, f"CREATE INDEX ON {name} (id)")
    query(BOSS, "CREATE TABLE heap (id int)")


# It exports a snapshot that has read a table.
EXPORT = ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM plain", "SELECT pg_export_snapshot()")
WAYS = {
    "without a transaction id": ("UPDATE plain SET n = n + 1 WHERE id <= 10", "DELETE FROM plain WHERE id = 11",
                                 "INSERT INTO plain VALUES (1000, 1, 'new')"),
    "with a transaction id": (*EXPORT, "INSERT INTO heap VALUES (1)", "UPDATE plain SET n = n + 1 WHERE id <= 10",
                              "DELETE FROM plain WHERE id = 11", "INSERT INTO plain VALUES (1000, 1, 'new')"),
    "of heap and an unlogged table": ("INSERT INTO heap VALUES (1)", "UPDATE unlogged SET n = n + 1 WHERE id <= 10",
                                      "DELETE FROM unlogged WHERE id = 11", "INSERT INTO unlogged VALUES (1000, 1, 'new')"),
}
SEEN = "SELECT count(*), count(*) FILTER (WHERE id = 11), count(*) FILTER (WHERE id = 1000), " \
       "sum(n) FILTER (WHERE id <= 10) FROM {}"


def fresh():
    for table in ("plain", "unlogged"):
        query(BOSS, f"DELETE FROM {table}")
        query(BOSS, f"INSERT INTO {table} SELECT i, 0, repeat('x', 100) FROM generate_series(1, {ROWS}) i")
        query(BOSS, f"VACUUM {table}")


def reads_beside(way, table):
    """Readers do not wait, and do not see it."""
    reader = session()
    query(reader, "SET statement_timeout = '5s'")
    wanted = [(ROWS, 1, 0, 0)]
    for level in ("READ COMMITTED", "REPEATABLE READ"):
        query(reader, f"BEGIN ISOLATION LEVEL {level}")
        began = time.monotonic()
        equal(f"{way}: {level} shows the state before it", query(reader, SEEN.format(table)), wanted)
        query(reader, "SET LOCAL enable_seqscan = off")
        equal(f"{way}: {level} does so by an index", query(reader, f"SELECT n FROM {table} WHERE id = 5"), [(0,)])
        query(reader, "COMMIT")
        check(f"{way}: {level} does not wait", time.monotonic() - began < 2, time.monotonic() - began)
    reader.close()


def serializable_beside(way, table):
    """SERIALIZABLE transactions of other rows commit. One that reads the row sees what is logged,
    and its COMMIT waits; a cancel ends the wait."""
    one = session()
    query(one, "SET enable_seqscan = off")
    query(one, "BEGIN ISOLATION LEVEL SERIALIZABLE")
    query(one, "SET LOCAL statement_timeout = '5s'")
    query(one, f"SELECT n FROM {table} WHERE id = 60")
    query(one, f"UPDATE {table} SET n = n WHERE id = 61")
    query(one, "COMMIT")
    query(one, "BEGIN ISOLATION LEVEL SERIALIZABLE")
    equal(f"{way}: SERIALIZABLE sees what is logged", query(one, f"SELECT n FROM {table} WHERE id = 5"), [(1,)])
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(code(one, "COMMIT")))
    thread.start()
    must_come(lambda: outcome or waits_for_another(one))
    one.cancel()
    thread.join(60)
    equal(f"{way}: its COMMIT waits", outcome, ["57014"])
    one.close()


def code(connection, sql):
    """The SQLSTATE; None: no error."""
    try:
        query(connection, sql)
        return None
    except psycopg2.Error as error:
        return error.pgcode


def waits_for_another(connection):
    """Does its COMMIT wait for one that it has read?"""
    sql = "SELECT wait_event ~ '^(Extension|MixedccCommit(Dependency|End))$' FROM pg_stat_activity WHERE pid = %s"
    return value(BOSS, sql, (connection.info.backend_pid,)) is True


def writes_beside(way, hanging):
    """Others commit, in each way; the memory of what they replace comes back."""
    before = used()
    for kind, level, table, number in (("unlogged", "on", "unlogged", COMMITS // 2), ("asynchronous", "off", "plain", COMMITS // 2),
                                       ("local", "local", "plain", 200), ("synchronous", "on", "plain", 50)):
        one = session(level)
        query(one, "SET statement_timeout = '500s'")
        commits(one, f"UPDATE {table} SET n = n + 1 WHERE id = 21 + i % 50", number)
        one.close()
        check(f"{way}: {number} {kind} commits beside it", not hanging.done and hanging.waits())
        reads = value(BOSS, f"SELECT sum(n) FROM {table} WHERE id BETWEEN 21 AND 70")
        check(f"{way}: they are seen, {kind}", reads >= number, reads)
    return used() - before


def imports_beside(way, hanging):
    """A snapshot that it has exported cannot be imported any more: what that sees may be freed."""
    if EXPORT[-1] not in hanging.results:
        return
    one = session()
    query(one, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    query(one, f"SET TRANSACTION SNAPSHOT '{hanging.results[EXPORT[-1]][0][0]}'")
    try:
        fail(f"{way}: its snapshot is not imported", query(one, "SELECT sum(n) FROM plain"))
    except psycopg2.Error as error:
        equal(f"{way}: its snapshot is not imported", error.pgcode, "0A000")
    one.close()


def standby_stops(way, standby):
    """Synchronous commits wait for the standby, and no others do."""
    standby.stop()
    synchronous = session("on")
    thread = threading.Thread(target=lambda: query(synchronous, "UPDATE plain SET n = -7 WHERE id = 90"))
    thread.start()
    must_come(lambda: waits(synchronous))
    for level, table in (("on", "unlogged"), ("off", "plain"), ("local", "plain")):
        one = session(level)
        query(one, "SET statement_timeout = '20s'")
        commits(one, f"UPDATE {table} SET n = n + 1 WHERE id = 91", 50)
        one.close()
    equal(f"{way}: a commit that waits for the stopped standby is left out", value(BOSS, "SELECT n FROM plain WHERE id = 90"), 0)
    check(f"{way}: it waits still", waits(synchronous))
    standby.go_on()
    thread.join(60)
    equal(f"{way}: it is answered when the standby is back", value(BOSS, "SELECT n FROM plain WHERE id = 90"), -7)
    synchronous.close()


def hangs(way, table, end):
    fresh()
    standby = Standby()
    try:
        query(BOSS, "ALTER SYSTEM SET synchronous_standby_names = 'receiver'")
        # Else a commit of those without a transaction id may take one.
        query(BOSS, "ALTER SYSTEM SET mixedcc.time_marks = -1")
        reload(BOSS)
        must_come(standby.is_synchronous)
        before = used()
        hanging = Hanging(*WAYS[way])
        reads_beside(way, table)
        serializable_beside(way, table)
        held = writes_beside(way, hanging)
        check(f"{way}: what the others replace is freed", held < HELD_BYTES, f"{held} bytes, limit {HELD_BYTES}")
        imports_beside(way, hanging)
        standby_stops(way, standby)
        reads_beside(f"{way}, later", table)
        check(f"{way}: it has hung all the time", not hanging.done and hanging.waits())
        end(hanging)
        hanging.end()
        check(f"{way}: it has committed", hanging.done)
        equal(f"{way}: then its rows are seen", query(BOSS, SEEN.format(table)), [(ROWS, 0, 1, 10)])
        query(BOSS, f"VACUUM {table}")  # Sessions that have ended have not freed what they have replaced.
        check(f"{way}: no memory is held back then", used() - before < HELD_BYTES, used() - before)
    finally:
        query(BOSS, "ALTER SYSTEM RESET synchronous_standby_names")
        query(BOSS, "ALTER SYSTEM RESET mixedcc.time_marks")
        reload(BOSS)
        standby.remove()


def cancel(hanging):
    hanging.connection.cancel()


def no_standby_any_more(_):
    query(BOSS, "ALTER SYSTEM RESET synchronous_standby_names")
    reload(BOSS)


def without_id():
    hangs("without a transaction id", "plain", cancel)


def with_id():
    hangs("with a transaction id", "plain", no_standby_any_more)


def mixed():
    hangs("of heap and an unlogged table", "unlogged", cancel)


def readers_go_on(name, changes, committer, waits_so):
    """A session has changed rows and commits, which waits before it is decided: readers show the
    state before, and do not wait."""
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(code(committer, "COMMIT")))
    thread.start()
    must_come(waits_so)
    reader = session()
    query(reader, "SET statement_timeout = '5s'")
    for table, where in changes:
        for level in ("READ COMMITTED", "REPEATABLE READ"):
            query(reader, f"BEGIN ISOLATION LEVEL {level}")
            equal(f"{name}: {level} shows the state before, {table}", shown(reader, f"SELECT n FROM {table} WHERE {where}"), 0)
            query(reader, "ROLLBACK")
        writer = session("local")
        query(writer, "SET statement_timeout = '5s'")
        equal(f"{name}: other rows are written, {table}", code(writer, f"UPDATE {table} SET n = n + 1 WHERE id = 60"), None)
        writer.close()
    reader.close()
    check(f"{name}: it waits still", not outcome)
    return thread, outcome


def shown(connection, sql):
    try:
        return value(connection, sql)
    except psycopg2.Error as error:
        return error.pgcode


def ends(name, changes, thread, outcome):
    thread.join(60)
    equal(f"{name}: it has committed", outcome, [None])
    for table, where in changes:
        equal(f"{name}: then its rows are seen, {table}", value(BOSS, f"SELECT n FROM {table} WHERE {where}"), 1)


def notifies():
    """A commit that hangs has the lock of NOTIFY, and others that notify wait for it."""
    fresh()
    standby = Standby()
    try:
        query(BOSS, "ALTER SYSTEM SET synchronous_standby_names = 'receiver'")
        query(BOSS, "ALTER SYSTEM SET mixedcc.time_marks = -1")
        reload(BOSS)
        must_come(standby.is_synchronous)
        standby.stop()
        holder = session("on")
        query(holder, "BEGIN; INSERT INTO heap VALUES (1); NOTIFY hanging")
        held = threading.Thread(target=lambda: query(holder, "COMMIT"))
        held.start()
        must_come(lambda: waits(holder))
        started = []
        for n, (level, statements) in enumerate((("off", "UPDATE plain SET n = 1 WHERE id = {}"), ("on", "UPDATE unlogged SET n = 1 WHERE id = {}"),
                                                 ("local", "UPDATE plain SET n = 1 WHERE id = {0}; UPDATE unlogged SET n = 1 WHERE id = {0}"))):
            name, one, row = f"it notifies, {level}", session(level), 5 + n
            query(one, f"SET statement_timeout = '90s'; BEGIN; {statements.format(row)}; SELECT pg_notify('hanging', '{n}')")
            waiting = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
            changes = [(table, f"id = {row}") for table in ("plain", "unlogged") if table in statements]
            began = readers_go_on(name, changes, one, lambda: value(BOSS, waiting, (one.info.backend_pid,)) is True)
            started.append((name, changes, *began))
        # The companion is not kept up: no commit that waits is in the middle of logging.
        checkpoint = session()
        query(checkpoint, "SET statement_timeout = '20s'")
        equal("it notifies: a checkpoint goes on", code(checkpoint, "CHECKPOINT"), None)
        checkpoint.close()
        standby.go_on()
        held.join(60)
        [ends(*one) for one in started]
        holder.close()
    finally:
        query(BOSS, "ALTER SYSTEM RESET synchronous_standby_names")
        query(BOSS, "ALTER SYSTEM RESET mixedcc.time_marks")
        reload(BOSS)
        standby.remove()


def foreign():
    """The remote part of a commit waits for a lock."""
    fresh()
    query(BOSS, """CREATE EXTENSION IF NOT EXISTS postgres_fdw; CREATE TABLE remote (n int);
        CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(77); RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER late AFTER INSERT ON remote DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()""")
    query(BOSS, f"CREATE SERVER here FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '{os.environ['PGHOST']}', dbname '{DATABASE}')")
    query(BOSS, "CREATE USER MAPPING FOR CURRENT_USER SERVER here; CREATE FOREIGN TABLE far (n int) SERVER here OPTIONS (table_name 'remote')")
    for level, table in (("off", "plain"), ("local", "unlogged")):
        name, holder, one = f"its remote part waits, {table}", session(), session(level)
        query(holder, "SELECT pg_advisory_lock(77)")
        query(one, f"BEGIN; UPDATE {table} SET n = 1 WHERE id = 5; INSERT INTO far VALUES (1)")
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 77 AND NOT granted"
        began = readers_go_on(name, [(table, "id = 5")], one, lambda: value(BOSS, waiting) == 1)
        checkpoint = session()
        query(checkpoint, "SET statement_timeout = '20s'")
        equal(f"{name}: a checkpoint goes on", code(checkpoint, "CHECKPOINT"), None)
        checkpoint.close()
        query(holder, "SELECT pg_advisory_unlock(77)")
        ends(name, [(table, "id = 5")], *began)
        [connection.close() for connection in (holder, one)]
    query(BOSS, "DROP EXTENSION postgres_fdw CASCADE; DROP TABLE remote; DROP FUNCTION late")


def run():
    global BOSS
    BOSS = make_database(DATABASE)
    BOSS.close()
    BOSS = session()
    make_tables()


def end():
    BOSS.close()
    drop_database(DATABASE)


def pin_is_found():
    """A build with the feature `faults`: a logged commit that keeps its pin holds memory back."""
    query(BOSS, "ALTER SYSTEM SET mixedcc.fault = 'pin_kept'")
    reload(BOSS)
    must_be_found("pin_kept", "with a transaction id: what the others replace is freed", with_id)
    query(BOSS, "ALTER SYSTEM RESET mixedcc.fault")
    reload(BOSS)


try:
    run()
    if sys.argv[1:2] == ["--faults"]:
        main(pin_is_found, end)
    main(without_id, with_id, mixed, notifies, foreign, end)
except psycopg2.Error as problem:
    fail("set-up", problem)
    raise SystemExit(1)
