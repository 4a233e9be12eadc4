#!/usr/bin/python3
"""Storages that commits of a primary make, on a standby: TRUNCATE, rewrites, loads into new files,
new tables. A snapshot shows all of such a commit, or none of it, or the table cannot be used by it.
And tables of a database that was copied from another one, whose rows are of before a restart. And
loads beside images that are replayed, and a table that is given up while a session waits."""

import collections
import random
import sys
import threading
import time

import psycopg2

from lib.clusters import Cluster
from lib.common import check, equal, fail, main, must_be_found, must_come, premise, query, seconds, value, wait_until
from lib.standing import Point

ROWS = 100
# What a transaction does to a table, and whether it changes another one, too.
WAYS = (("TRUNCATE", "TRUNCATE changed", True),
        ("TRUNCATE alone", "TRUNCATE changed", False),
        ("a load", "TRUNCATE changed; INSERT INTO changed SELECT i, 1 FROM generate_series(1, 50) i", True),
        ("a rewrite", "ALTER TABLE changed ALTER v TYPE bigint", True),
        ("a new table", "DROP TABLE changed; CREATE TABLE changed (id int PRIMARY KEY, v int) USING mixedcc", True))
ENDS = ("COMMIT", "COMMIT, CHECKPOINT", "COMMIT PREPARED")
LOOK = "SELECT (SELECT n FROM beside), (SELECT count(*) FROM changed), (SELECT max(v) FROM changed)"
REFUSED = ("40001", "55006")
UPDATES = 3000
NAPS = (0, 0.01, 0.05, 0.1)


class Servers:
    primary = standby = boss = None


def shown_to(connection, sql):
    """The rows, or the SQLSTATE of an error."""
    try:
        return query(connection, sql)
    except psycopg2.Error as error:
        if not connection.closed:
            query(connection, "ROLLBACK")
        return error.pgcode


def ask(sql):
    """The same of a new session of the standby."""
    connection = Servers.standby.connect()
    try:
        return shown_to(connection, sql)
    finally:
        connection.close()


def begin_anew():
    """The table is as in the begin, and the standby shows that."""
    query(Servers.boss, "DROP TABLE IF EXISTS changed")
    query(Servers.boss, "CREATE TABLE changed (id int PRIMARY KEY, v int) USING mixedcc")
    query(Servers.boss, f"INSERT INTO changed SELECT i, 0 FROM generate_series(1, {ROWS}) i")
    return come()


def come():
    """The standby comes to what the primary shows."""
    mark = value(Servers.boss, "UPDATE marks SET n = n + 1 RETURNING n")
    must_come(lambda: ask("SELECT n FROM marks") == [(mark,)], 60)
    return query(Servers.boss, LOOK)


def change(connection, way, end):
    _, sql, both = way
    beside = "UPDATE beside SET n = n + 1;" if both else ""
    if end == "COMMIT PREPARED":
        query(connection, f"BEGIN; {sql}; {beside} PREPARE TRANSACTION 'storages'")
        time.sleep(0.2)
        query(connection, "COMMIT PREPARED 'storages'")
        return
    query(connection, f"BEGIN; {sql}; {beside} COMMIT")
    if end == "COMMIT, CHECKPOINT":
        query(connection, "CHECKPOINT")


def test_old_snapshots():
    """A snapshot is older than the commit, and its transaction first uses the table after that:
    the table was loaded by another session, or is loaded for it."""
    for way in WAYS:
        for end in ENDS:
            for loaded in (True, False):
                name = f"{way[0]}, {end}, {'loaded by another one' if loaded else 'not loaded'}"
                begin_anew()
                old = Servers.standby.connect()
                query(old, "BEGIN ISOLATION LEVEL REPEATABLE READ")
                before = value(old, "SELECT n FROM beside")
                change(Servers.boss, way, end)
                wanted = come()
                if loaded:
                    equal(f"standby storages: a new snapshot shows it: {name}", ask(LOOK), wanted)
                if end != "COMMIT, CHECKPOINT":  # then versions may be missing of the other one, too
                    equal(f"standby storages: the old one shows other tables: {name}", query(old, "SELECT n FROM beside"), [(before,)])
                equal(f"standby storages: and cannot use this one: {name}", shown_to(old, "SELECT count(*) FROM changed"), "40001")
                old.close()
                equal(f"standby storages: the next one can: {name}", ask(LOOK), wanted)


def wait_for_standbys(name):
    query(Servers.boss, f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    query(Servers.boss, "SELECT pg_reload_conf()")
    must_come(lambda: value(Servers.boss, "SHOW synchronous_standby_names") == name)


def test_waiting_commit():
    """The commit waits for another standby: this one has replayed it, and does not show it yet."""
    node = "SELECT pg_relation_filenode('changed')"
    for way in WAYS:
        begin_anew()
        old = ask(node)
        wait_for_standbys("missing")
        committer = Servers.primary.connect()
        query(committer, "SET synchronous_commit = on")
        thread = threading.Thread(target=change, args=(committer, way, "COMMIT"))
        thread.start()
        try:
            must_come(lambda: ask(node) not in (old, "42P01"), 60)
            time.sleep(0.3)  # what is shown goes up to the commit
            found = ask(LOOK)
            # Without changes of others nothing follows from a commit of this alone.
            alone = not way[2] and found == query(Servers.boss, "SELECT n, 0::bigint, NULL::int FROM beside")
            check(f"standby storages: a snapshot shows no part of a commit that waits: {way[0]}", found in REFUSED or alone, found)
        finally:
            wait_for_standbys("")
            thread.join(60)
            committer.close()
        wanted = come()
        equal(f"standby storages: it is shown when it waits no more: {way[0]}", ask(LOOK), wanted)


# --- at random -------------------------------------------------------------------

def state(n):
    """What the tables have after step n: the table is empty, or has rows with the step."""
    return (n, 0, None) if n % 3 == 0 else (n, n % 50 + 1, n)


def write(stop, done):
    rng = random.Random(1)
    connection = Servers.primary.connect()
    n = 0
    while not stop.is_set():
        n += 1
        _, rows, _ = state(n)
        insert = f"INSERT INTO changed SELECT i, {n} FROM generate_series(1, {rows}) i"
        first = rng.choice(("TRUNCATE changed", "DROP TABLE changed; CREATE TABLE changed (id int PRIMARY KEY, v int) USING mixedcc",
                            f"DELETE FROM changed; ALTER TABLE changed ALTER v TYPE {'bigint' if n % 2 else 'int'}"))
        parts = [first, insert, f"UPDATE beside SET n = {n}"]
        if not first.startswith("D"):
            parts = parts[::-1] if rng.random() < 0.3 and rows == 0 else parts
        query(connection, "BEGIN; SET LOCAL synchronous_commit = " + rng.choice(("on", "off")) + "; " + "; ".join(parts))
        if rng.random() < 0.2:
            query(connection, "PREPARE TRANSACTION 'random'")
            time.sleep(rng.choice(NAPS))
            query(connection, "COMMIT PREPARED 'random'")
        else:
            query(connection, "COMMIT")
        if rng.random() < 0.1:
            query(connection, "CHECKPOINT")
        time.sleep(rng.choice(NAPS))
    connection.close()
    done.append(n)


def read(seed, stop, done, seen):
    """One statement has all, or each table is read by one of a transaction."""
    rng = random.Random(seed)
    connection = Servers.standby.connect()
    good, again, wrong = 0, collections.Counter(), []
    while not stop.is_set() and not wrong:
        if connection.closed:
            connection = Servers.standby.connect()
        alone = rng.random() < 0.5
        try:
            if alone:
                found = query(connection, LOOK)[0]
            else:
                query(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ")
                n = value(connection, "SELECT n FROM beside")
                time.sleep(rng.choice(NAPS))
                found = (n, *query(connection, "SELECT count(*), max(v) FROM changed")[0])
                query(connection, "COMMIT")
            good += 1
            seen.append(seed)
            if found != state(found[0]):
                wrong.append(found)
        except psycopg2.Error as error:
            again["statement" if alone else "transaction", error.pgcode] += 1
            # A conflict with replay ends a statement, or the session. A table may just be gone.
            if error.pgcode not in (*REFUSED, "42P01", "XX000", "57P01", "40P01", None):
                wrong.append(str(error))
            if not connection.closed:
                try:
                    query(connection, "ROLLBACK")
                except psycopg2.Error:
                    connection.close()
    connection.close()
    done.append((good, again, wrong))


def test_random():
    """Commits of all kinds, one after the other, and readers beside them."""
    begin_anew()
    query(Servers.boss, "TRUNCATE changed; UPDATE beside SET n = 0")
    come()
    stop, written, done, seen = threading.Event(), [], [], []
    threads = [threading.Thread(target=write, args=(stop, written))]
    threads += [threading.Thread(target=read, args=(seed, stop, done, seen)) for seed in range(3)]
    [thread.start() for thread in threads]
    time.sleep(seconds(10, 120))
    # Readers wait for locks that replay takes: longer on a busy machine. Replay cancels them after
    # 30 s.
    wait_until(lambda: len(seen) > 10, 15)
    stop.set()
    [thread.join(120) for thread in threads]
    good, again = sum(one[0] for one in done), sum((one[1] for one in done), collections.Counter())
    print(f"   {written} commits, {good} reads; tried again: {dict(again)}", flush=True)
    equal("standby storages: snapshots are states of the primary", [one for one in done if one[2]], [])
    check("standby storages: there was something to see", written and written[0] > 30 and good > 10, (written, done))


# --- copied databases ------------------------------------------------------------

def told():
    return Servers.standby.ask("SELECT csn FROM mixedcc.standby")


def test_copied_databases():
    """The template's table was not used since the start of the primary: its rows have larger CSNs
    than all of what the standby shows."""
    query(Servers.boss, "CREATE DATABASE pattern")
    connection = Servers.primary.connect(dbname="pattern")
    query(connection, "CREATE EXTENSION mixedcc; CREATE TABLE t (id int PRIMARY KEY, n int) USING mixedcc")
    query(connection, "INSERT INTO t SELECT i, 0 FROM generate_series(1, 1000) i")
    come()
    query(Servers.boss, "CHECKPOINT")  # only this table will have been written under the last CSNs
    enough = told() + UPDATES
    for _ in range(UPDATES):
        query(connection, "UPDATE t SET n = n + 1 WHERE id = 1")
    look = "SELECT count(*), sum(n) FROM t"
    wanted = query(connection, look)
    connection.close()
    must_come(lambda: told() >= enough, 60)
    Servers.boss.close()
    Servers.primary.control("restart", "-m", "fast")
    Servers.boss = Servers.primary.connect()
    names = {strategy: f"copied_{strategy}" for strategy in ("wal_log", "file_copy")}
    for strategy, name in names.items():
        query(Servers.boss, f"CREATE DATABASE {name} TEMPLATE pattern STRATEGY {strategy}")
    come()
    premise("standby storages: the standby shows less than the rows of copied databases", told() < enough, (told(), enough))
    readers = {strategy: Servers.standby.connect(dbname=name) for strategy, name in names.items()}
    for strategy, reader in readers.items():
        equal(f"standby storages: a table of a copied database, {strategy}", shown_to(reader, look), wanted)
    for strategy, reader in readers.items():
        one = Servers.primary.connect(dbname=names[strategy])
        query(one, "UPDATE t SET n = n + 1 WHERE id = 2")
        one.close()
        count, total = wanted[0]
        must_come(lambda: shown_to(reader, look) != wanted, 60)
        equal(f"standby storages: it follows, {strategy}", shown_to(reader, look), [(count, total + 1)])
        reader.close()


# --- loads beside replay ---------------------------------------------------------

# Rows move to other numbers, with their keys. Each part commits.
MOVES = (("an update", ("UPDATE moved SET v = v + 1",)),
         ("a deletion and an insert", ("DELETE FROM moved", "INSERT INTO moved SELECT i, 1, i, repeat('n', 900) FROM generate_series(21, 40) i")))
MOVED = "SELECT count(*), count(DISTINCT id), sum(v), min(length(w)) FROM moved"


def set_point(setting):
    """Where processes of the standby stand that have no setting of their own."""
    Servers.standby.configure(**{"mixedcc.stop_events": "on", "mixedcc.kill_at": setting})
    Servers.standby.control("reload")
    time.sleep(0.5)


def test_moved_while_loaded():
    """Rows move while a session loads their table. Images of the new rows are restored before the
    load ends, those of the deletions of the old ones after it."""
    for name, parts in MOVES:
        query(Servers.boss, "DROP TABLE IF EXISTS moved; CREATE TABLE moved (id int PRIMARY KEY, v int, u int NOT NULL UNIQUE, w text) USING mixedcc")
        query(Servers.boss, "CREATE INDEX ON moved (v); ALTER TABLE moved ALTER w SET STORAGE external")
        query(Servers.boss, "INSERT INTO moved SELECT i, 0, i, repeat('o', 900) FROM generate_series(1, 40) i")
        query(Servers.boss, "DELETE FROM moved WHERE id <= 20")
        time.sleep(0.3)  # no other process may still hold back what VACUUM removes
        query(Servers.boss, "VACUUM moved")  # so the new rows get smaller numbers, whose images come first
        come()
        query(Servers.boss, "CHECKPOINT")
        premise(f"standby storages: all is replayed, {name}", Servers.standby.replays(Servers.primary))
        restored, read = Point("redo-page", 0), Point("load-journal")
        set_point(restored.setting)
        loader, found = Servers.standby.connect(options=f"-c mixedcc.kill_at={read.setting}"), []
        thread = threading.Thread(target=lambda: found.append(shown_to(loader, MOVED)))
        thread.start()
        try:
            read.must_stand()
            for sql in parts:
                query(Servers.boss, sql)
            query(Servers.boss, "CHECKPOINT")
            restored.must_stand()
            read.go()
            time.sleep(1)  # it reads what was restored, and waits for what it may show
        finally:
            restored.go()
            read.go()
            thread.join(60)
            set_point("")
        wanted = query(Servers.boss, MOVED)
        equal(f"standby storages: rows that move while they are loaded: {name}", found, [wanted])
        query(loader, "SET enable_seqscan = off; SET enable_bitmapscan = off")
        for column in ("id", "u"):
            rows = [value(loader, f"SELECT v FROM moved WHERE {column} = {key}") for key in range(21, 41)]
            equal(f"standby storages: and are found by {column}: {name}", rows, [1] * 20)
        query(Servers.boss, "UPDATE moved SET v = v + 1; UPDATE moved SET v = v + 1")
        come()
        equal(f"standby storages: and when they move again: {name}", query(loader, MOVED), query(Servers.boss, MOVED))
        loader.close()


def test_given_up_while_used():
    """A session is about to use a table. The primary restarts, and another session frees it."""
    query(Servers.boss, "DROP TABLE IF EXISTS used; CREATE TABLE used (id int PRIMARY KEY, w text) USING mixedcc")
    query(Servers.boss, "INSERT INTO used SELECT i, repeat('u', 200) FROM generate_series(1, 1000) i")
    come()
    point = Point("standby-shown")
    session, found = Servers.standby.connect(options=f"-c mixedcc.stop_events=on -c mixedcc.kill_at={point.setting}"), []
    wanted, look = [(1000, 200_000)], "SELECT count(*), sum(length(w)) FROM used"
    query(session, "SELECT 1")
    equal("standby storages: a table in memory", ask(look), wanted)
    thread = threading.Thread(target=lambda: found.extend(shown_to(session, look) for _ in range(9)))
    thread.start()
    try:
        point.must_stand()
        Servers.boss.close()
        Servers.primary.control("restart", "-m", "fast")
        Servers.boss = Servers.primary.connect()
        come()
        for n in range(200):  # other tables take the memory
            query(Servers.boss, "UPDATE beside SET n = n")
        come()
    finally:
        point.go()
        thread.join(120)
    good = [one for one in found if one in (wanted, "40001")]
    check("standby storages: a table that was given up is not read", found == good and wanted in found, found)
    session.close()


TESTS = (test_old_snapshots, test_waiting_commit, test_random, test_moved_while_loaded, test_given_up_while_used,
         test_copied_databases)
# What is wrong, the check that finds it, and its test.
FAULTS = (("birth_forgotten", "standby storages: and cannot use this one: TRUNCATE, COMMIT, not loaded", test_old_snapshots),
          ("birth_early", "standby storages: a snapshot shows no part of a commit that waits: a load", test_waiting_commit),
          ("birth_lost", "standby storages: and cannot use this one: TRUNCATE, COMMIT, CHECKPOINT, not loaded", test_old_snapshots),
          ("copied_is_new", "standby storages: a table of a copied database, wal_log", test_copied_databases))


def begin():
    settings = {"max_prepared_transactions": "4", "wal_keep_size": "1GB", "mixedcc.load_workers": "0", "autovacuum": "off"}
    Servers.primary = Cluster.new(**settings)
    Servers.primary.start()
    Servers.boss = Servers.primary.connect()
    query(Servers.boss, "CREATE EXTENSION mixedcc")
    for table in ("beside", "marks"):
        query(Servers.boss, f"CREATE TABLE {table} (n int) USING mixedcc; INSERT INTO {table} VALUES (0)")
    Servers.standby = Cluster.copy("-R", source=Servers.primary)
    Servers.standby.start(hot_standby="on")
    begin_anew()


def end():
    if Servers.standby:
        Servers.standby.remove()
    Servers.primary.remove()


def test_faults():
    """In a build with faults: each of them is found."""
    for fault, check_name, test in FAULTS:
        begin()
        for server in (Servers.primary, Servers.standby):
            server.configure(**{"mixedcc.fault": fault})
            server.control("restart", "-m", "fast")
        Servers.boss = Servers.primary.connect()
        try:
            must_be_found(fault, check_name, test)
        finally:
            end()


if sys.argv[1:2] == ["--faults"]:
    main(test_faults)
try:
    begin()
    chosen = [test for test in TESTS if not sys.argv[1:] or test.__name__ in sys.argv[1:]]
    main(*chosen, end)
except psycopg2.Error as problem:
    fail("set-up", problem)
    end()
    raise SystemExit(1)
