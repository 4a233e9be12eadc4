#!/usr/bin/python3
"""Reads on a standby. Writers change tables on the primary in all ways. Readers on the standby
check that each snapshot is a state of the primary: sums hold, and transactions are there in their
serial order, without a gap."""

import multiprocessing
import os
import random
import sys
import threading
import time

import psycopg2

from lib.clusters import Cluster
from lib.common import (check, connect, drop_database, equal, keep_long, main, make_database, must_be_found, must_come,
                        premise, query, value, wait_until)

DATABASE = "process_standby"
ACCOUNTS, START, WRITERS = 200, 1000, 3
PROTOCOLS = ("occ", "2pl", "partcc")
# Errors after which a client tries again.
AGAIN = ("40001", "40P01", "55P03", "57P03", "55006", "57014")


def make_tables(connection):
    for n, protocol in enumerate(PROTOCOLS):
        query(connection, f"CREATE TABLE acct{n} (id int PRIMARY KEY, branch int, amount int, pad text) USING mixedcc "
                          f"WITH (mixedcc.partitions = '3', mixedcc.protocol = '{protocol}')")
        keep_long(connection, f"acct{n}", "pad")
        query(connection, f"INSERT INTO acct{n} SELECT i, i % 7, {START}, 'x' FROM generate_series(1, {ACCOUNTS}) i")
    # The first has no index but its key: its numbers are used again without VACUUM.
    query(connection, "CREATE INDEX ON acct1 (branch); CREATE INDEX ON acct2 USING hash (branch)")
    # Transaction n adds row n to one table, and counts in two others.
    query(connection, "CREATE TABLE counted (n int) USING mixedcc; INSERT INTO counted VALUES (0)")
    query(connection, "CREATE TABLE again (id int PRIMARY KEY, n int) USING mixedcc; INSERT INTO again VALUES (1, 0)")
    query(connection, "CREATE TABLE steps (n int PRIMARY KEY, w int) USING mixedcc")


# --- writers ---------------------------------------------------------------------

def transfer(cursor, rng):
    a, b = rng.randrange(len(PROTOCOLS)), rng.randrange(len(PROTOCOLS))
    x, y, amount = rng.randint(1, ACCOUNTS), rng.randint(1, ACCOUNTS), rng.randint(1, 9)
    length = rng.choice((0, 1, 10, 100, 100, 9000 if rng.random() < 0.05 else 5))
    cursor.execute(f"UPDATE acct{a} SET amount = amount - %s, pad = repeat('p', %s) WHERE id = %s", (amount, length, x))
    if cursor.rowcount != 1:
        return
    cursor.execute(f"UPDATE acct{b} SET amount = amount + %s WHERE id = %s", (amount, y))
    if cursor.rowcount != 1:
        cursor.execute(f"UPDATE acct{a} SET amount = amount + %s WHERE id = %s", (amount, x))


def move(cursor, rng):
    """A row gets another branch, another key, or is deleted and comes again."""
    n, x = rng.randrange(len(PROTOCOLS)), rng.randint(1, ACCOUNTS)
    kind = rng.random()
    if kind < 0.4:
        cursor.execute(f"UPDATE acct{n} SET branch = %s WHERE id = %s", (rng.randrange(7), x))
    elif kind < 0.7:
        y = ACCOUNTS + rng.randint(1, 50)
        cursor.execute(f"UPDATE acct{n} SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM acct{n} WHERE id = %s)", (y, x, y))
        cursor.execute(f"UPDATE acct{n} SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM acct{n} WHERE id = %s)", (x, y, x))
    else:
        cursor.execute(f"DELETE FROM acct{n} WHERE id = %s RETURNING branch, amount", (x,))
        row = cursor.fetchone()
        if row:
            y = rng.choice((x, x, ACCOUNTS + 100 + rng.randint(1, 50)))
            cursor.execute(f"SELECT count(*) FROM acct{n} WHERE id = %s", (y,))
            y = x if cursor.fetchone()[0] else y
            cursor.execute(f"INSERT INTO acct{n} VALUES (%s, %s, %s, 'again')", (y, row[0], row[1]))


def step(cursor, writer):
    cursor.execute("UPDATE counted SET n = n + 1 RETURNING n")
    n = cursor.fetchone()[0]
    cursor.execute("UPDATE again SET n = n + 1 WHERE id = 1")
    cursor.execute("INSERT INTO steps VALUES (%s, %s)", (n, writer))


def end(cursor, rng, name):
    """COMMIT in one of its ways."""
    way = rng.random()
    if way < 0.2:
        cursor.execute(f"PREPARE TRANSACTION '{name}'")
        time.sleep(rng.choice((0, 0, 0, 0.02, 0.1, 0.5)))
        cursor.execute(f"{'COMMIT' if rng.random() < 0.7 else 'ROLLBACK'} PREPARED '{name}'")
        return
    if way < 0.3:
        cursor.execute("SELECT pg_current_xact_id()")
    cursor.execute("ROLLBACK" if way > 0.95 else "COMMIT")


class Until:
    """A process goes on until it is told to stop. If it has done too little by then to be judged,
    it goes on for a while: other processes may have had the processors."""

    def __init__(self, stop, least):
        self.stop, self.least, self.end = stop, least, None

    def goes_on(self, done):
        if not self.stop.is_set():
            return True
        self.end = self.end or time.monotonic() + 20
        return done < self.least and time.monotonic() < self.end


def write(number, seed, stop, counts, prepares):
    rng = random.Random(seed)
    connection = connect(DATABASE)
    done, until = 0, Until(stop, 20)
    while until.goes_on(done):
        cursor = connection.cursor()
        try:
            cursor.execute("BEGIN ISOLATION LEVEL " + rng.choice(("READ COMMITTED", "SERIALIZABLE", "SERIALIZABLE")))
            cursor.execute(f"SET LOCAL synchronous_commit = {rng.choice(('on', 'off', 'local'))}; SET LOCAL lock_timeout = 2000")
            for _ in range(rng.randint(1, 3)):
                rng.choice((transfer, transfer, move))(cursor, rng)
            if rng.random() < 0.3:
                cursor.execute("SAVEPOINT s")
                transfer(cursor, rng)
                cursor.execute("ROLLBACK TO SAVEPOINT s")
            if rng.random() < 0.5:
                step(cursor, number)
            if prepares and rng.random() < 0.5:
                end(cursor, rng, f"standby {number}")
            else:
                cursor.execute("COMMIT")
            done += 1
        except psycopg2.Error as error:
            if error.pgcode not in (*AGAIN, "23505"):
                return counts.put(("wrong", f"a writer: {error.pgcode} {error}"))
            query(connection, "ROLLBACK")
    counts.put(("written", done))


def disturb(seed, stop, counts):
    rng = random.Random(seed)
    connection = connect(DATABASE)
    done = 0
    while not stop.is_set():
        command = rng.choice(("CHECKPOINT", "VACUUM acct1", "VACUUM acct2", "VACUUM acct0", "VACUUM steps"))
        query(connection, command)
        done += 1
        time.sleep(rng.uniform(0.05, 0.3))
    counts.put(("disturbed", done))


# --- readers ---------------------------------------------------------------------

SUMS = "SELECT " + " + ".join(f"(SELECT sum(amount) FROM acct{n})" for n in range(len(PROTOCOLS)))
STEPS = """SELECT (SELECT n FROM counted), (SELECT n FROM again WHERE id = 1),
    (SELECT count(*) FROM steps), (SELECT coalesce(max(n), 0) FROM steps)"""


class Wrong(Exception):
    """A snapshot that is no state of the primary."""


def must_be(what, got, wanted):
    if got != wanted:
        raise Wrong(f"{what}: {got} and not {wanted}")


def look_at_all(connection, rng, last):
    """Looks at the whole state by one statement each."""
    must_be("sum", value(connection, SUMS), START * ACCOUNTS * len(PROTOCOLS))
    counted, again, steps, newest = query(connection, STEPS)[0]
    must_be("steps", (again, steps, newest), (counted,) * 3)
    if counted < last:
        raise Wrong(f"steps go back from {last} to {counted}")
    return counted


def look_by_indexes(connection, rng):
    """In one snapshot a table has the same rows by each way."""
    n = rng.randrange(len(PROTOCOLS))
    rows = sorted(query(connection, f"SELECT id, branch, amount FROM acct{n}"))
    query(connection, "SET LOCAL enable_seqscan = off")
    for row in rng.sample(rows, 20):
        must_be(f"acct{n} by key", query(connection, f"SELECT id, branch, amount FROM acct{n} WHERE id = %s", (row[0],)), [row])
    ids = {row[0] for row in rows}
    for key in rng.sample(range(1, ACCOUNTS + 200), 20):
        if key not in ids:
            must_be(f"acct{n} by a key that is not there", query(connection, f"SELECT id FROM acct{n} WHERE id = %s", (key,)), [])
    branch = rng.randrange(7)
    found = sorted(query(connection, f"SELECT id, branch, amount FROM acct{n} WHERE branch = %s", (branch,)))
    must_be(f"acct{n} by branch", found, [row for row in rows if row[1] == branch])
    query(connection, "SET LOCAL enable_seqscan = on")


def roll_back(connection):
    """A conflict with replay ends a session that is idle in a transaction."""
    try:
        query(connection, "ROLLBACK")
    except psycopg2.Error:
        connection.close()


def read(standby, seed, stop, counts):
    rng = random.Random(seed)
    connection = None
    done, again, last, wrong, until = 0, 0, 0, None, Until(stop, 4)
    while until.goes_on(done) and not wrong:
        try:
            connection = connection or standby.connect()
            if rng.random() < 0.5:
                last = look_at_all(connection, rng, last)
            else:
                query(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ")
                seen = look_at_all(connection, rng, 0)
                for _ in range(rng.randint(1, 4)):
                    time.sleep(rng.choice((0, 0, 0.05, 0.3)))
                    look_by_indexes(connection, rng)
                    must_be("the same snapshot", look_at_all(connection, rng, 0), seen)
                query(connection, "COMMIT")
                last = max(last, seen)
            done += 1
        except Wrong as error:
            wrong = str(error)
        except psycopg2.Error as error:
            again += 1
            if connection is None or connection.closed or error.pgcode in (None, "57P01", "57P02", "57P03"):
                connection = None  # The server restarts, or has ended the session.
                time.sleep(0.05)
            elif error.pgcode in AGAIN:
                roll_back(connection)
            else:
                wrong = f"{error.pgcode} {error}"
    counts.put(("wrong", wrong) if wrong else ("read", (done, again)))


# --- tests -----------------------------------------------------------------------

def run_beside(standby, seconds, seed, readers=2, prepares=True, during=None):
    """Writers, readers and disturbances for so long. Returns what they have counted."""
    stop, counts = multiprocessing.Event(), multiprocessing.Queue()
    jobs = [(write, (n, seed * 100 + n, stop, counts, prepares)) for n in range(WRITERS)]
    jobs += [(read, (standby, seed * 100 + 50 + n, stop, counts)) for n in range(readers)] + [(disturb, (seed, stop, counts))]
    processes = [multiprocessing.Process(target=f, args=args) for f, args in jobs]
    [p.start() for p in processes]
    end_at = time.time() + seconds
    if during:
        during()
    while time.time() < end_at and all(p.is_alive() for p in processes):
        time.sleep(0.1)
    stop.set()
    found = [counts.get(timeout=60) for _ in processes]
    [p.join() for p in processes]
    return found


def judge(name, found):
    wrong = [what for kind, what in found if kind == "wrong"]
    check(f"standby: snapshots are states of the primary, {name}", not wrong, wrong)
    written = sum(n for kind, n in found if kind == "written")
    reads = [what for kind, what in found if kind == "read"]
    done, again = sum(r[0] for r in reads), sum(r[1] for r in reads)
    print(f"   {name}: {written} transactions, {done} reads, {again} tried again", flush=True)
    check(f"standby: there was something to see, {name}", wrong or written > 50 and done > 5, (written, done, again))


def boss():
    return connect(DATABASE)


def state(connection):
    """All rows, by sequential scans, by keys, and by secondary indexes."""
    all_rows = []
    for setting in ("SET enable_seqscan = on; SET enable_indexscan = off; SET enable_bitmapscan = off",
                    "SET enable_seqscan = off; SET enable_indexscan = on", "SET enable_indexscan = off; SET enable_bitmapscan = on"):
        query(connection, setting)
        for n in range(len(PROTOCOLS)):
            all_rows.append(sorted(query(connection, f"SELECT id, branch, amount, pad FROM acct{n} WHERE id > 0")))
            all_rows.append([sorted(query(connection, f"SELECT id, pad FROM acct{n} WHERE branch = {b}")) for b in range(7)])
    query(connection, "RESET enable_seqscan; RESET enable_indexscan; RESET enable_bitmapscan")
    return all_rows, query(connection, STEPS), sorted(query(connection, "SELECT * FROM steps"))


def catches_up(standby, primary):
    """Does it show what the primary shows?"""
    n = value(primary, "UPDATE counted SET n = n + 1 RETURNING n")
    query(primary, "UPDATE again SET n = n + 1")
    query(primary, f"INSERT INTO steps VALUES ({n}, -1)")
    must_come(lambda: try_ask(standby, "SELECT max(n) FROM steps") == n, 60)


def compare(standby, name):
    primary = boss()
    catches_up(standby, primary)
    connection = standby.connect()
    for _ in range(20):  # without a delay, replay may cancel any look, or end the session
        try:
            shown = state(connection)
            break
        except psycopg2.Error as error:
            shown = error
            if connection.closed:
                connection = standby.connect()
            elif error.pgcode != "40001":
                break
    equal(f"standby: it shows what the primary shows, {name}", shown, state(primary))
    connection.close()
    primary.close()


class Servers:
    standby = None


def test_load(seconds=8):
    judge("under load", run_beside(Servers.standby, seconds, 1))
    compare(Servers.standby, "after load")


def test_quiet():
    """Commits one by one, each after the standby has shown all of before."""
    primary = boss()
    for _ in range(6):
        catches_up(Servers.standby, primary)
        time.sleep(0.3)
        must_come(lambda: Servers.standby.ask(STEPS) is not None, 10)
    wanted = query(primary, STEPS)
    connection = Servers.standby.connect()
    equal("standby: no commit is passed over", query(connection, STEPS), wanted)
    connection.close()
    primary.close()


def test_restart():
    """The standby is restarted, and crashes, beside load."""
    def during():
        for mode in ("fast", "immediate"):
            time.sleep(1.5)
            Servers.standby.control("restart", "-m", mode)
    judge("beside restarts", run_beside(Servers.standby, 5, 2, during=during))
    compare(Servers.standby, "after restarts")


def test_killed_reader():
    """A reader of the standby is killed: all of its sessions end, and it goes on."""
    connection = Servers.standby.connect()
    pid = value(connection, "SELECT pg_backend_pid()")
    value(connection, SUMS)
    os.kill(pid, 9)
    must_come(lambda: try_ask(Servers.standby, "SELECT count(*) FROM steps") is not None, 60)
    compare(Servers.standby, "after a kill")


def try_ask(server, sql):
    try:
        return server.ask(sql)
    except psycopg2.Error:
        return None


def prepare_changes(primary, name):
    """Prepares all kinds of changes of acct0 and acct2, and changes acct1 after that. Returns the
    rows that it deletes: a table, an id and an amount."""
    found = [(table, query(primary, f"SELECT id, amount FROM {table} WHERE id > 4 ORDER BY id LIMIT 1")[0]) for table in ("acct0", "acct2")]
    deleted = [(table, *row) for table, row in found]
    deletes = "; ".join(f"DELETE FROM {table} WHERE id = {key}" for table, key, _ in deleted)
    query(primary, f"""BEGIN; UPDATE acct0 SET pad = 'prepared' WHERE id <= 3; UPDATE acct0 SET pad = repeat('q', 20000) WHERE id = 4;
        UPDATE acct2 SET branch = 6 - branch WHERE id <= 5; {deletes};
        INSERT INTO acct0 VALUES (901, 1, 0, 'new'); INSERT INTO acct2 VALUES (902, 2, 0, repeat('n', 9000));
        PREPARE TRANSACTION '{name}'""")
    query(primary, "UPDATE acct1 SET pad = 'later' WHERE id = 1")
    return deleted


def test_prepared():
    """The time of the standby goes on beside a prepared transaction, which is seen at its end, as a
    whole: also if images have its rows, and if a table is loaded meanwhile."""
    primary = boss()
    catches_up(Servers.standby, primary)
    turns = [("COMMIT", way) for way in ("told", "imaged", "loaded", "imaged and loaded")]
    turns += [("ROLLBACK", "imaged"), ("ROLLBACK", "loaded")]
    for end, way in turns:
        connection, old = Servers.standby.connect(), Servers.standby.connect()
        deleted = prepare_changes(primary, "standby")
        if "imaged" in way:
            query(primary, "CHECKPOINT")
        if "loaded" in way:
            query(primary, "CHECKPOINT" if "imaged" in way else "SELECT pg_switch_wal()")
            Servers.standby.control("restart", "-m", "fast")
            connection, old = Servers.standby.connect(), Servers.standby.connect()
        compare(Servers.standby, f"a prepared transaction is not seen, {end}, {way}")
        query(old, "BEGIN ISOLATION LEVEL REPEATABLE READ")
        before = state(old)
        query(primary, f"{end} PREPARED 'standby'")
        query(primary, "UPDATE acct0 SET pad = 'after' WHERE id = 1")
        compare(Servers.standby, f"it is seen at its end, {end}, {way}")
        try:
            equal(f"standby: an old snapshot does not see its end, {end}, {way}", state(old), before)
        except psycopg2.Error as error:
            check(f"standby: an old snapshot does not see its end, {end}, {way}", error.pgcode == "40001", error)
        query(primary, "DELETE FROM acct0 WHERE id = 901; DELETE FROM acct2 WHERE id = 902")
        for table, key, amount in deleted if end == "COMMIT" else ():
            query(primary, f"INSERT INTO {table} VALUES ({key}, {key % 7}, {amount}, 'x')")
        connection.close()
        old.close()
    primary.close()
    compare(Servers.standby, "after prepared transactions")


def test_frozen():
    """A standby has passed over the rows of a prepared transaction. It looks again when that has
    committed, and VACUUM has given its id up: images have the rows, but the horizon of the journal
    is below them."""
    primary = boss()
    for how in ("same session", "new session"):
        query(primary, "CHECKPOINT")
        name, connection = f"'frozen {how}'", Servers.standby.connect()
        query(primary, f"BEGIN; UPDATE acct0 SET pad = {name} WHERE id <= 3; UPDATE acct2 SET pad = {name} WHERE id <= 3; PREPARE TRANSACTION 'standby'")
        catches_up(Servers.standby, primary)
        look = f"SELECT (SELECT count(*) FROM acct0 WHERE pad = {name}), (SELECT count(*) FROM acct2 WHERE pad = {name})"
        equal(f"standby: the rows are passed over, {how}", query(connection, look), [(0, 0)])
        xid = value(primary, "SELECT transaction::text::bigint FROM pg_prepared_xacts")
        query(primary, "COMMIT PREPARED 'standby'")

        def is_given_up():
            for table in ("acct0", "acct2"):
                query(primary, f"VACUUM {table}")
            return value(primary, f"SELECT min(relfrozenxid::text::bigint) > {xid} FROM pg_class WHERE relname IN ('acct0', 'acct2')")
        must_come(is_given_up, 60)
        wanted = query(primary, look)
        catches_up(Servers.standby, primary)
        if how == "new session":
            connection.close()
            connection = Servers.standby.connect()
        equal(f"standby: rows whose id was given up are seen, {how}", query(connection, look), wanted)
        connection.close()
    primary.close()


def test_old_snapshot(delay="30s"):
    """An old snapshot keeps its rows while their numbers are used again, or is cancelled."""
    primary, connection = boss(), Servers.standby.connect()
    for table in ("acct0", "acct1"):
        catches_up(Servers.standby, primary)
        query(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ")
        look = f"SELECT id, branch, amount, pad FROM {table} WHERE branch = %s"
        rows = [row for b in range(7) for row in sorted(query(connection, look, (b,)))]
        for _ in range(3):
            query(primary, f"CREATE TEMP TABLE kept AS SELECT * FROM {table}; DELETE FROM {table}")
            time.sleep(0.2)  # no other process may still hold back what VACUUM removes
            query(primary, f"VACUUM {table}")
            query(primary, f"INSERT INTO {table} SELECT 1000 - id, 6 - branch, amount, pad FROM kept ORDER BY random()")
            query(primary, f"DELETE FROM {table}")
            time.sleep(0.2)  # no other process may still hold back what VACUUM removes
            query(primary, f"VACUUM {table}")
            query(primary, f"INSERT INTO {table} SELECT * FROM kept ORDER BY random(); DROP TABLE kept")
            if table == "acct0":  # Others apply, and so use the numbers again.
                try_ask(Servers.standby, f"SET statement_timeout = 500; SELECT count(*) FROM {table}")
        try:
            query(connection, "SET LOCAL enable_seqscan = off")
            again = [row for b in range(7) for row in sorted(query(connection, look, (b,)))]
            keys = [query(connection, f"SELECT id, branch, amount, pad FROM {table} WHERE id = %s", (row[0],)) for row in rows]
            equal(f"standby: an old snapshot keeps the rows of {table}", (again, keys), (rows, [[row] for row in rows]))
            query(connection, "COMMIT")
        except psycopg2.Error as error:
            may = table == "acct0" or delay == "0"
            cancelled = may and (error.pgcode == "40001" or connection.closed)
            check(f"standby: an old snapshot keeps the rows of {table}", cancelled, error)
            connection.close()
            connection = Servers.standby.connect()
    connection.close()
    primary.close()
    compare(Servers.standby, f"after old snapshots, {delay}")


def test_conflicts():
    """Replay waits for no old snapshot: each is cancelled."""
    Servers.standby.configure(max_standby_streaming_delay="0")
    Servers.standby.control("reload")
    time.sleep(0.5)
    test_old_snapshot("0")
    judge("without delay", run_beside(Servers.standby, 4, 4))
    Servers.standby.configure(max_standby_streaming_delay="30s")
    Servers.standby.control("reload")


# How a table leaves the memory of the primary, and how index entries of its deleted rows go.
UNLOADS = (("CREATE DATABASE", "VACUUM"), ("CREATE DATABASE that fails", "VACUUM"), ("CREATE DATABASE", "marks, btree"), ("CREATE DATABASE", "marks, hash"))


def test_unloaded():
    """An old snapshot keeps its rows if the primary has loaded their table again since they were
    deleted, and has no versions of them any more."""
    primary, name = boss(), f"{DATABASE}_left"
    for leaves, goes in UNLOADS:
        query(primary, f"CREATE DATABASE {name}")
        other = connect(name)
        query(other, "CREATE EXTENSION mixedcc; CREATE TABLE t (id int, u int, b int) USING mixedcc")
        query(other, "INSERT INTO t SELECT i, 10 * i, 1 FROM generate_series(1, 1000) i")
        query(other, f"CREATE INDEX ON t {'USING hash (b)' if goes == 'marks, hash' else '(u)'}")
        catches_up(Servers.standby, primary)
        reader, look = Servers.standby.connect(dbname=name), f"SELECT id FROM t WHERE {'b = 1' if goes == 'marks, hash' else 'u BETWEEN 0 AND 10000'}"
        query(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ; SET LOCAL enable_seqscan = off")
        wanted = sorted(query(reader, look))
        premise(f"{leaves}, {goes}: its rows", len(wanted) == 1000)
        query(other, "DELETE FROM t WHERE id <= 300")
        other.close()
        if leaves == "CREATE DATABASE":
            query(primary, f"CREATE DATABASE {name}_copy TEMPLATE {name}")
        else:
            equal("standby: CREATE DATABASE fails", code_of(primary, f"CREATE DATABASE {name}_copy TEMPLATE {name} OWNER nobody_there"), "42704")
        other = connect(name)
        premise(f"{leaves}, {goes}: the table was not in memory", value(other, "SELECT mixedcc.load('t')"))
        time.sleep(0.5)  # no other process may still hold back what goes
        if goes == "VACUUM":
            query(other, "VACUUM t")
        else:
            query(other, "SET enable_seqscan = off; SET enable_bitmapscan = off")
            for _ in range(2):
                premise(f"{leaves}, {goes}: rows of the primary", len(query(other, look)) == 700)
            query(other, "INSERT INTO t SELECT 1000 + i, 5 * i + 1, 1 FROM generate_series(1, 600) i")
        replayed = value(primary, "SELECT pg_current_wal_insert_lsn()")
        query(primary, "SET synchronous_commit = on; SELECT pg_current_xact_id()")
        # Replay waits for the snapshot, or goes on.
        wait_until(lambda: Servers.standby.ask("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (replayed,)), 3)
        equal(f"standby: an old snapshot keeps its rows, {leaves}, {goes}", sorted(query(reader, look)), wanted)
        reader.close()
        catches_up(Servers.standby, primary)
        reader = Servers.standby.connect(dbname=name, options="-c enable_seqscan=off")
        equal(f"standby: the next one has those of the primary, {leaves}, {goes}", sorted(query(reader, look)), sorted(query(other, look)))
        for session in (reader, other):
            session.close()
        for database in (f"{name}_copy", name):
            query(primary, f"DROP DATABASE IF EXISTS {database}")
    primary.close()


def test_refused():
    connection = Servers.standby.connect()
    for sql, codes in (("INSERT INTO counted VALUES (1)", ("25006",)), ("SELECT * FROM counted FOR UPDATE", ("25006",)),
                       ("SELECT mixedcc.set_protocol('counted', '2pl')", ("25006",)), ("SELECT mixedcc.unpin('counted')", ("25006",))):
        try:
            query(connection, sql)
            check(f"standby: refused: {sql}", False)
        except psycopg2.Error as error:
            check(f"standby: refused: {sql}", error.pgcode in codes, f"{error.pgcode} {error}")
    connection.close()


SERIALIZABLE = (  # Ways to ask for it: in a session, and at the begin of each transaction.
    ("", "BEGIN ISOLATION LEVEL SERIALIZABLE"), ("", "START TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY"),
    ("", "BEGIN; SET TRANSACTION ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE"), ("", "BEGIN; SET LOCAL transaction_isolation = 'Serializable'"),
    ("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE", "BEGIN"),
    ("SET default_transaction_isolation = serializable", "BEGIN"), ("SELECT set_config('default_transaction_isolation', 'serializable', false)", "BEGIN"),
    ("SET default_transaction_isolation = serializable", "BEGIN; COMMIT AND CHAIN"), ("", "BEGIN ISOLATION LEVEL SERIALIZABLE; COMMIT AND CHAIN"),
    ("SET default_transaction_isolation = serializable; SHOW ALL", "BEGIN; SHOW default_transaction_isolation"))


def code_of(connection, sql):
    try:
        query(connection, sql)
        return None
    except psycopg2.Error as error:
        query(connection, "ROLLBACK")
        return error.pgcode


def test_serializable():
    """SERIALIZABLE over tables of ours has one snapshot, and no other tables."""
    primary = boss()
    query(primary, "CREATE TABLE heaped (n int); CREATE MATERIALIZED VIEW heaped_view AS SELECT 1")
    query(primary, "CREATE FUNCTION of_heap() RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RETURN count(*) FROM heaped; END'")
    catches_up(Servers.standby, primary)
    look = "SELECT n FROM counted"
    for session, begin in SERIALIZABLE:
        name = f"{session} {begin}"
        connection = Servers.standby.connect()
        for sql in filter(None, session.split("; ")):
            query(connection, sql)

        def start():
            for sql in begin.split("; "):
                query(connection, sql)
        start()
        equal(f"standby: {name}: its level", query(connection, "SHOW transaction_isolation"), [("serializable",)])
        before = query(connection, look)
        catches_up(Servers.standby, primary)
        equal(f"standby: {name}: one snapshot", query(connection, look), before)
        query(connection, "COMMIT")
        check(f"standby: {name}: the next has another", query(connection, look) != before)
        for refused in ("SELECT * FROM heaped", "SELECT * FROM counted, heaped_view", "SELECT of_heap()", "COPY heaped TO '/dev/null'"):
            start()
            equal(f"standby: {name}: refused: {refused}", code_of(connection, refused), "0A000")
        for allowed in ("SELECT count(*) FROM pg_class", "EXPLAIN SELECT * FROM heaped", "SELECT * FROM heaped"):
            query(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ" if allowed == "SELECT * FROM heaped" else "BEGIN")
            equal(f"standby: {name}: not refused: {allowed}", code_of(connection, allowed), None)
            query(connection, "COMMIT")
        if session:
            equal(f"standby: {name}: the default", query(connection, "SHOW default_transaction_isolation"), [("serializable",)])
            equal(f"standby: {name}: without BEGIN", code_of(connection, "SELECT * FROM heaped"), "0A000")
            equal(f"standby: {name}: and ours", code_of(connection, look), None)
            query(connection, "SET default_transaction_isolation = 'repeatable read'")
        equal(f"standby: {name}: after that", code_of(connection, "SELECT * FROM heaped"), None)
        connection.close()
    connection = Servers.standby.connect()
    query(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    query(connection, "SELECT * FROM heaped")
    equal("standby: too late for SERIALIZABLE", code_of(connection, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"), "25001")
    query(connection, "BEGIN; SAVEPOINT s")
    equal("standby: no SERIALIZABLE in a savepoint", code_of(connection, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"), "25001")
    query(connection, "BEGIN ISOLATION LEVEL SERIALIZABLE; DECLARE c CURSOR FOR SELECT n FROM counted")
    query(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    equal("standby: it stays SERIALIZABLE", code_of(connection, "SELECT * FROM heaped"), "0A000")
    connection.close()
    query(primary, "ALTER ROLE postgres SET default_transaction_isolation = serializable")
    try:
        catches_up(Servers.standby, primary)
        connection = Servers.standby.connect()
        equal("standby: the default of a role", (code_of(connection, look), code_of(connection, "SELECT * FROM heaped")), (None, "0A000"))
        connection.close()
    finally:
        query(primary, "ALTER ROLE postgres RESET default_transaction_isolation")
    query(primary, "DROP FUNCTION of_heap; DROP MATERIALIZED VIEW heaped_view; DROP TABLE heaped")
    primary.close()


# What sets the default, from this value, in a transaction; and the value after that.
DEFAULTS = (("repeatable read", "BEGIN; SET default_transaction_isolation = serializable; ROLLBACK", "repeatable read"),
            ("repeatable read", "BEGIN; SET LOCAL default_transaction_isolation = serializable; COMMIT", "repeatable read"),
            ("serializable", "BEGIN; SET LOCAL default_transaction_isolation = 'repeatable read'; ROLLBACK", "serializable"),
            ("serializable", "BEGIN; SET LOCAL default_transaction_isolation = 'read committed'; COMMIT", "serializable"),
            ("serializable", "SELECT set_config('default_transaction_isolation', 'read committed', true)", "serializable"),
            ("serializable", "BEGIN; SAVEPOINT s; SET default_transaction_isolation = 'repeatable read'; ROLLBACK TO s; COMMIT", "serializable"),
            ("serializable", "SELECT set_config('default_transaction_isolation', 'repeatable read', false)", "repeatable read"),
            ("serializable", "SELECT set_config('default_transaction_isolation', 'read committed', false)", "read committed"),
            ("serializable", "RESET ALL", "read committed"))


def test_defaults():
    """The next transaction has the default that the setting has."""
    standby, primary = Servers.standby, boss()
    query(primary, "CREATE TABLE heaped_too (n int)")
    catches_up(standby, primary)
    read = "SELECT * FROM heaped_too"

    def has(name, connection, default):
        refused = "0A000" if default == "serializable" else None
        shown = (value(connection, "SHOW default_transaction_isolation"), value(connection, "SELECT current_setting('default_transaction_isolation')"))
        equal(f"standby: {name}: the setting", shown, (default, default))
        equal(f"standby: {name}: ours are read", code_of(connection, "SELECT n FROM counted"), None)
        equal(f"standby: {name}: others", [code_of(connection, read) for _ in range(2)], [refused, refused])
    for default, sql, after in DEFAULTS:
        connection = standby.connect()
        query(connection, f"SET default_transaction_isolation = '{default}'")
        for one in sql.split("; "):
            query(connection, one)
        has(f"{default}, {sql}", connection, after)
        connection.close()
    connection, admin = standby.connect(), standby.connect()
    query(connection, "SET default_transaction_isolation = 'repeatable read'")
    query(connection, "BEGIN; SET default_transaction_isolation = serializable")
    equal("standby: a default is not of the running transaction", code_of(connection, read), None)
    query(connection, "ROLLBACK; RESET default_transaction_isolation")
    for default in ("serializable", "repeatable read", "serializable", "read committed"):
        query(admin, f"ALTER SYSTEM SET default_transaction_isolation = '{default}'")
        query(admin, "SELECT pg_reload_conf()")
        must_come(lambda: value(connection, "SHOW default_transaction_isolation") == default, 10)
        has(f"reload to {default}", connection, default)
    query(admin, "ALTER SYSTEM RESET default_transaction_isolation")
    query(admin, "SELECT pg_reload_conf()")
    query(primary, "DROP TABLE heaped_too")
    [session.close() for session in (connection, admin, primary)]


def test_definitions():
    """Tables are made, truncated, rewritten, moved and dropped; keys come and go."""
    primary = boss()
    ask = lambda sql: Servers.standby.ask(sql)

    def shows(name, sql, wanted):
        catches_up(Servers.standby, primary)
        equal(f"standby: {name}", ask(sql), wanted)
    query(primary, "CREATE TABLE made (id int PRIMARY KEY, v text) USING mixedcc; INSERT INTO made SELECT i, 'v' FROM generate_series(1, 500) i")
    shows("a new table", "SELECT count(*) FROM made", 500)
    query(primary, "TRUNCATE made")
    shows("a truncated table", "SELECT count(*) FROM made", 0)
    query(primary, "INSERT INTO made VALUES (1, 'one'); ALTER TABLE made ALTER v TYPE varchar(10)")
    shows("a rewritten table", "SELECT v FROM made WHERE id = 1", "one")
    query(primary, "ALTER TABLE made DROP CONSTRAINT made_pkey")
    query(primary, "INSERT INTO made VALUES (7, 'x')")
    shows("a table without its key", "SELECT count(*) FROM made WHERE id IN (1, 7)", 2)
    query(primary, "ALTER TABLE made ADD PRIMARY KEY (v, id)")
    shows("another key", "SELECT id FROM made WHERE v = 'x' AND id = 7", 7)
    query(primary, "DROP TABLE made; CREATE TABLE made (a int) USING mixedcc; INSERT INTO made VALUES (3)")
    shows("a table of the same name", "SELECT a FROM made", 3)
    query(primary, "DROP TABLE made")
    query(primary, """CREATE ROLE standby_owner; CREATE SCHEMA hers AUTHORIZATION standby_owner; SET ROLE standby_owner;
        CREATE FUNCTION hers.watch(int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
            IF current_user <> 'standby_owner' THEN RAISE 'it runs as %', current_user; END IF; RETURN true; END $$;
        CREATE DOMAIN hers.watched AS int CHECK (hers.watch(VALUE));
        CREATE TABLE hers.made (id int PRIMARY KEY, k hers.watched[]) USING mixedcc WITH (mixedcc.partition_by = 'k', mixedcc.bounds = '"{1}"');
        INSERT INTO hers.made VALUES (1), (2); RESET ROLE""")
    shows("a table whose owner's code the load runs", "SELECT count(*) FROM hers.made", 2)
    query(primary, "INSERT INTO hers.made VALUES (3)")
    shows("a table with code of its owner, changed", "SELECT count(*) FROM hers.made", 3)
    query(primary, "DROP OWNED BY standby_owner; DROP ROLE standby_owner")
    query(primary, "CREATE TYPE mood AS ENUM ('a', 'b'); CREATE TABLE made (id int PRIMARY KEY, k mood) USING mixedcc WITH (mixedcc.partition_by = 'k', mixedcc.bounds = 'b')")
    query(primary, "INSERT INTO made VALUES (1, 'a'), (2, 'b'); ALTER TYPE mood RENAME VALUE 'b' TO 'bee'")
    shows("a table whose options do not fit any more", "SELECT count(*) FROM made", 2)
    query(primary, "INSERT INTO made VALUES (3, 'bee')")
    shows("such a table, changed", "SELECT count(*) FROM made WHERE k = 'bee'", 2)
    query(primary, "DROP TABLE made; DROP TYPE mood")
    primary.close()


def test_dropped_database():
    """The tables of a dropped database leave the memory of the standby with a later load."""
    name, primary = f"{DATABASE}_dropped", boss()
    live = lambda: Servers.standby.ask("SELECT live_bytes FROM mixedcc.memory")
    query(primary, f"CREATE DATABASE {name}")
    other = connect(name)
    query(other, "CREATE EXTENSION mixedcc; CREATE TABLE big (id int PRIMARY KEY, w text) USING mixedcc")
    query(other, "ALTER TABLE big ALTER w SET STORAGE external")
    query(other, "INSERT INTO big SELECT i, repeat('x', 1000) FROM generate_series(1, 10000) i")
    other.close()
    catches_up(Servers.standby, primary)
    before = live()
    reader = Servers.standby.connect(dbname=name)
    equal("standby: a table of another database", value(reader, "SELECT count(*) FROM big"), 10_000)
    reader.close()
    check("standby: it is in the memory", live() > before + 8_000_000, (before, live()))
    query(primary, f"DROP DATABASE {name}")
    query(primary, "DROP TABLE IF EXISTS late; CREATE TABLE late (id int, n int) USING mixedcc; INSERT INTO late VALUES (1, 1)")
    catches_up(Servers.standby, primary)
    equal("standby: another table is loaded", Servers.standby.ask("SELECT n FROM late"), 1)
    must_come(lambda: catches_up(Servers.standby, primary) is None and live() < before + 4_000_000, 60)
    primary.close()


def test_loaded_later():
    """A snapshot from before a table was loaded does not see its newer rows."""
    primary, connection = boss(), Servers.standby.connect()
    query(primary, "DROP TABLE IF EXISTS late; CREATE TABLE late (id int, n int) USING mixedcc; INSERT INTO late VALUES (1, 1)")
    catches_up(Servers.standby, primary)
    query(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    query(connection, "SELECT count(*) FROM steps")
    query(primary, "UPDATE late SET n = 2")
    catches_up(Servers.standby, primary)
    equal("standby: another session loads the table", Servers.standby.ask("SELECT n FROM late"), 2)
    try:
        equal("standby: a snapshot from before does not see it", query(connection, "SELECT n FROM late"), [(1,)])
    except psycopg2.Error as error:
        check("standby: a snapshot from before does not see it", error.pgcode == "40001", error)
    connection.close()
    primary.close()


ROWS_CUT = "SELECT id, length(v), md5(v) FROM cut ORDER BY id"
# Above 1 MiB, so that a record ends in the middle of it.
LONG = "(SELECT string_agg(md5(n::text || '{0}'), '') FROM generate_series(1, 50000) n)"


def test_cut():
    """A standby reads files between two records of a commit, both with pieces of one row: when it
    loads the table, and when it has to read all of them again."""
    primary = boss()
    query(primary, "CREATE TABLE cut (id int PRIMARY KEY, v text) USING mixedcc")
    keep_long(primary, "cut", "v")
    query(primary, "INSERT INTO cut VALUES (1, 'old'), (2, 'old')")
    catches_up(Servers.standby, primary)
    for name in ("a load", "files read again"):
        change = f"BEGIN; UPDATE cut SET v = {LONG.format(name)} WHERE id = 1; INSERT INTO cut SELECT max(id) + 1, {LONG.format('new')} FROM cut; COMMIT"
        slow = connect(DATABASE, options="-c mixedcc.stop_events=on -c mixedcc.kill_at=xcommit-marked:1:3000")
        begun = value(primary, "SELECT pg_current_wal_insert_lsn()")
        thread = threading.Thread(target=lambda: query(slow, change))
        thread.start()
        must_come(lambda: value(primary, "SELECT pg_current_wal_insert_lsn() - %s > 1000000", (begun,)), 10)
        catches_up_in_part(Servers.standby, primary)
        premise(f"the commit is under way, {name}", thread.is_alive())
        premise(f"the standby reads, {name}", Servers.standby.ask("SELECT count(*) FROM cut") >= 2)
        thread.join()
        slow.close()
        catches_up(Servers.standby, primary)
        connection = Servers.standby.connect()
        equal(f"standby: a row in two records is there, {name}", query(connection, ROWS_CUT), query(primary, ROWS_CUT))
        connection.close()
        # The journal that the standby knows goes into images.
        query(primary, "UPDATE cut SET v = 'again' WHERE id = 2")
        query(primary, "CHECKPOINT")
        query(primary, "CHECKPOINT")
    query(primary, "DROP TABLE cut")
    primary.close()


def catches_up_in_part(standby, primary):
    """The standby has replayed all of WAL up to here, also of commits that are under way."""
    lsn = value(primary, "SELECT pg_current_wal_insert_lsn()")
    query(primary, "SET synchronous_commit = on; SELECT pg_current_xact_id()")  # all before it is sent
    must_come(lambda: standby.ask("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (lsn,)), 60)


def test_cascade():
    """A standby of the standby shows the same."""
    second = Cluster.copy("-R", source=Servers.standby, database=DATABASE)
    try:
        second.start(hot_standby="on")
        judge("on a cascading standby", run_beside(second, 4, 7))
        compare(second, "on a cascading standby")
    finally:
        second.remove()


def test_small_memory():
    """A table that does not fit into the memory of a standby is refused; replay goes on."""
    primary = boss()
    query(primary, "CREATE TABLE large (id int, v text) USING mixedcc")
    query(primary, "INSERT INTO large SELECT i, repeat('y', 900) FROM generate_series(1, 100000) i")
    small = Cluster.copy("-R", database=DATABASE)
    try:
        small.start(hot_standby="on", **{"mixedcc.memory": "64MB"})
        catches_up(small, primary)
        for _ in range(2):
            try:
                check("standby: a table that is too large is refused", False, small.ask("SELECT count(*) FROM large"))
            except psycopg2.Error as error:
                check("standby: a table that is too large is refused", error.pgcode == "53200", error)
        query(primary, "UPDATE large SET v = 'short' WHERE id <= 1000")
        compare(small, "with a small memory")
        small.control("promote")
        must_come(lambda: not small.ask("SELECT pg_is_in_recovery()"), 60)
        small.configure(**{"mixedcc.memory": "300MB"})
        small.control("restart", "-m", "immediate")
        equal("standby: it has the large table after its promotion", small.ask("SELECT count(*) FROM large"), 100000)
    finally:
        small.remove()
    query(primary, "DROP TABLE large")
    primary.close()


def test_cursor():
    """A cursor keeps its snapshot beside later statements, which have newer ones."""
    primary, connection = boss(), Servers.standby.connect()
    catches_up(Servers.standby, primary)
    rows = [row[0] for row in query(primary, "SELECT amount FROM acct0 ORDER BY id")]
    query(connection, "BEGIN; DECLARE c CURSOR FOR SELECT amount FROM acct0 ORDER BY id")
    first = [row[0] for row in query(connection, "FETCH 5 FROM c")]
    query(primary, "UPDATE acct0 SET amount = amount + 1; UPDATE acct1 SET amount = amount - 1")
    catches_up(Servers.standby, primary)
    del connection.notices[:]
    equal("standby: a statement beside a cursor sees more", value(connection, "SELECT sum(amount) FROM acct0"), sum(rows) + len(rows))
    equal("standby: a cursor keeps its snapshot", first + [row[0] for row in query(connection, "FETCH ALL FROM c")], rows)
    query(connection, "COMMIT")
    equal("standby: nothing is left of it", connection.notices, [])
    query(primary, "UPDATE acct0 SET amount = amount - 1; UPDATE acct1 SET amount = amount + 1")
    connection.close()
    primary.close()


def test_applied():
    """With remote_apply the next statement on the standby sees a commit, with and without a
    transaction id. `mixedcc.standby` says where the standby is."""
    primary, connection = boss(), Servers.standby.connect()
    query(primary, "CREATE TABLE mine (n int) USING mixedcc")
    query(primary, "INSERT INTO mine VALUES (0)")
    catches_up(Servers.standby, primary)
    query(primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
    query(primary, "SELECT pg_reload_conf()")
    try:
        must_come(lambda: value(primary, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1, 60)
        query(primary, "SET synchronous_commit = remote_apply")
        seen = []
        for n in range(1, 61):
            with_id = "SELECT pg_current_xact_id();" if n % 2 else ""
            query(primary, f"BEGIN; {with_id} UPDATE mine SET n = {n}; COMMIT")
            seen.append(value(connection, "SELECT n FROM mine"))
        equal("standby: the next statement sees a commit at remote_apply", seen, list(range(1, 61)))
        shown = query(connection, "SELECT csn > 0, lsn <= pg_last_wal_replay_lsn(), replayed_at > now() - interval '1 minute', bytes_behind >= 0, tables > 0 FROM mixedcc.standby")
        equal("standby: the view shows it", shown, [(True,) * 5])
        equal("standby: and nothing on a primary", query(primary, "SELECT * FROM mixedcc.standby"), [])
    finally:
        query(primary, "ALTER SYSTEM RESET synchronous_standby_names")
        query(primary, "SELECT pg_reload_conf()")
        connection.close()
        query(primary, "DROP TABLE mine")
        primary.close()


def test_decided_late():
    """A prepared transaction has committed, and one of before it waits for its standbys: a table
    that follows only then shows neither of them."""
    primary, waits, other = boss(), boss(), boss()
    catches_up(Servers.standby, primary)
    query(waits, "SET synchronous_commit = on")
    look = "SELECT count(*) FROM acct0 WHERE pad = 'late'"
    both = f"SELECT ({look}), (SELECT count(*) FROM acct1 WHERE pad = 'first')"
    connection = Servers.standby.connect()
    equal("standby: the tables are loaded", query(connection, both), [(0, 0)])
    query(primary, "BEGIN; UPDATE acct0 SET pad = 'late' WHERE id <= 3; PREPARE TRANSACTION 'standby'")
    catches_up(Servers.standby, primary)
    query(primary, "ALTER SYSTEM SET synchronous_standby_names = 'missing'")
    query(primary, "SELECT pg_reload_conf()")
    commits = "BEGIN; SELECT pg_current_xact_id(); UPDATE acct1 SET pad = '{}' WHERE id = 1; COMMIT"
    waiting = f"SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid = {waits.info.backend_pid}"
    thread = None
    try:
        for _ in range(100):  # the checkpointer has to take notice
            thread = threading.Thread(target=lambda: query(waits, commits.format("first")))
            thread.start()
            thread.join(0.3)
            if thread.is_alive():
                break
            query(primary, "SET synchronous_commit = local; " + commits.format("not yet"))
            time.sleep(0.1)
        must_come(lambda: value(primary, waiting) == 1, 30)
        query(other, "SET synchronous_commit = local")
        query(other, "COMMIT PREPARED 'standby'")
        lsn = value(other, "SELECT pg_current_wal_flush_lsn()")
        must_come(lambda: Servers.standby.ask("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (lsn,)), 30)
        equal("standby: it is not seen without those of before it", query(connection, both), [(0, 0)])
    finally:
        query(primary, "ALTER SYSTEM RESET synchronous_standby_names")
        query(primary, "SELECT pg_reload_conf()")
        thread.join(60)
    compare(Servers.standby, "after one that was decided late")
    equal("standby: and then it is seen", Servers.standby.ask(look), 3)
    [session.close() for session in (primary, waits, other, connection)]


def test_interval():
    """mixedcc.standby_interval says how often standbys are told what they may show."""
    primary = boss()

    def set_interval(setting):
        query(primary, f"ALTER SYSTEM {setting}")
        query(primary, "SELECT pg_reload_conf()")
    query(primary, "CREATE TABLE slow (n int) USING mixedcc")
    query(primary, "INSERT INTO slow VALUES (0)")
    catches_up(Servers.standby, primary)
    session = Servers.standby.connect()

    def typical():
        """The time, in ms, until a commit is shown that comes when the one before has been."""
        times = []
        for _ in range(9):
            n = value(primary, "UPDATE slow SET n = n + 1 RETURNING n")
            begun = time.monotonic()
            while value(session, "SELECT n FROM slow") != n and time.monotonic() < begun + 10:
                time.sleep(0.001)
            times.append((time.monotonic() - begun) * 1000)
        check("standby: commits are shown", max(times) < 10_000, times)
        return sorted(times)[len(times) // 2]
    try:
        typical()
        set_interval("SET mixedcc.standby_interval = '500ms'")
        time.sleep(1)
        # A checkpoint, too, tells what may be shown, but not most of the times.
        slow = typical()
        set_interval("SET mixedcc.standby_interval = '5ms'")
        time.sleep(1)
        fast = typical()
        print(f"   a commit is shown after {slow:.0f} ms at 500 ms, {fast:.0f} ms at 5 ms", flush=True)
        check("standby: the interval counts", slow > 200 and fast < slow, (slow, fast))
    finally:
        set_interval("RESET mixedcc.standby_interval")
        query(primary, "DROP TABLE slow")
        [one.close() for one in (primary, session)]


def test_held_back():
    """A prepared transaction does not hold back what is stable, nor what VACUUM on the primary
    frees. One that has changed definitions holds it back: the standby shows nothing older than what
    VACUUM has freed, and goes on when the transaction has ended."""
    primary, other = boss(), boss()
    query(primary, "CREATE TABLE held (n int); CREATE TABLE freed (id int PRIMARY KEY, v int) USING mixedcc; CREATE INDEX ON freed (v)")
    query(primary, "CREATE TABLE changed (id int) USING mixedcc; INSERT INTO changed VALUES (1)")
    by_index = "SET enable_seqscan = off; SELECT count(*) FROM freed WHERE v > 0"
    counts = lambda: (Servers.standby.ask("SELECT count(*) FROM freed"), Servers.standby.ask(by_index))
    for sql, holds in (("SELECT 1", False), ("TRUNCATE changed; INSERT INTO changed VALUES (2)", True)):
        query(primary, "DELETE FROM freed; INSERT INTO freed SELECT i, i FROM generate_series(1, 1000) i")
        catches_up(Servers.standby, primary)
        equal(f"standby: before a prepared transaction, {holds}", Servers.standby.ask("SELECT count(*) FROM freed"), 1000)
        query(other, f"BEGIN; INSERT INTO acct0 VALUES (-5, 1, 0, ''); {sql}; PREPARE TRANSACTION 'held'")
        query(primary, "DELETE FROM freed WHERE id <= 500")
        for _ in range(3):
            time.sleep(0.3)
            query(primary, "VACUUM freed")
        query(primary, "INSERT INTO freed SELECT i, i FROM generate_series(2001, 2400) i")
        if holds:
            def refused():
                query(primary, "VACUUM freed")  # no other process may still hold back what it removes
                sql = "SET statement_timeout = '3s'; SELECT count(*) FROM freed WHERE v > 0"
                return try_code(Servers.standby, sql) in ("57014", "57P03", "40001")
            must_come(refused, 60)
            check("standby: held back: nothing older is shown", True)
        else:
            catches_up(Servers.standby, primary)
            equal("standby: a prepared transaction does not hold it back", counts(), (900, 900))
        query(other, "COMMIT PREPARED 'held'")
        catches_up(Servers.standby, primary)
        equal(f"standby: and after that, {holds}", counts(), (900, 900))
        query(primary, "DELETE FROM acct0 WHERE id = -5")
    equal("standby: a table that was truncated", Servers.standby.ask("SELECT id FROM changed"), 2)
    query(primary, "DROP TABLE held, freed, changed")
    primary.close()
    other.close()


def try_code(server, sql):
    try:
        server.ask(sql)
        return None
    except psycopg2.Error as error:
        return error.pgcode


def test_primary_restart():
    """The primary crashes: its CSNs begin anew."""
    from lib.common import server
    judge("before a restart of the primary", run_beside(Servers.standby, 2, 5))
    server("crash")
    server("start")
    must_come(lambda: try_connect() is not None, 60)
    must_come(lambda: try_ask(Servers.standby, "SELECT count(*) FROM steps") is not None, 60)
    judge("after a restart of the primary", run_beside(Servers.standby, 4, 6))
    compare(Servers.standby, "after a restart of the primary")


def test_prepared_over_restart():
    """The primary restarts beside prepared transactions, and uses some of their tables before their
    ends: no snapshot of the standby shows one too early, and later ones show all of it."""
    from lib.common import server
    for number, (end, how) in enumerate((end, how) for end in ("COMMIT", "ROLLBACK") for how in ("used", "one used", "unused")):
        name = f"{end}, {how}"
        primary = boss()
        catches_up(Servers.standby, primary)
        query(primary, f"""BEGIN; UPDATE acct0 SET pad = 'prepared' WHERE id <= 3; UPDATE acct0 SET pad = repeat('q', 20000) WHERE id = 4;
            UPDATE acct1 SET branch = 6 - branch WHERE id <= 5; INSERT INTO acct0 VALUES (901, 1, 0, 'new');
            INSERT INTO acct1 VALUES (902, 2, 0, repeat('n', 9000)); PREPARE TRANSACTION 'over {number}'""")
        before = state(primary)[0]
        primary.close()
        server("crash")
        server("start")
        must_come(lambda: try_connect() is not None, 60)
        primary = boss()
        if how != "unused":
            query(primary, "UPDATE acct0 SET amount = amount WHERE id = 7")
        if how == "used":
            equal(f"standby: the primary shows what was before, {name}", state(primary)[0], before)
            compare(Servers.standby, f"beside a prepared transaction of before the start, {name}")
        old = Servers.standby.connect()
        try:
            query(old, "BEGIN ISOLATION LEVEL REPEATABLE READ")
            value(old, "SELECT max(n) FROM steps")
            query(primary, f"{end} PREPARED 'over {number}'")
            equal(f"standby: a snapshot of before the end shows what was before, {name}", state(old)[0], before)
        except psycopg2.Error as error:
            check(f"standby: a snapshot of before the end shows what was before, {name}", error.pgcode in AGAIN, error)
            old.close()
            primary.close()
            primary = boss()
            if value(primary, "SELECT count(*) FROM pg_prepared_xacts"):
                query(primary, f"{end} PREPARED 'over {number}'")
        old.close()
        compare(Servers.standby, f"after the end of a prepared transaction of before the start, {name}")
        query(primary, "DELETE FROM acct0 WHERE id = 901; DELETE FROM acct1 WHERE id = 902")
        primary.close()


def try_connect():
    try:
        return connect(DATABASE)
    except psycopg2.Error:
        return None


def test_promotion():
    """The standby is promoted under readers. One with a snapshot fails: VACUUM would let index
    entries go that it needs, and numbers of rows are used again."""
    connection, cursor, asked, default, command, live, failed = (Servers.standby.connect() for _ in range(7))
    query(cursor, "SET enable_seqscan = off")
    query(cursor, "BEGIN; DECLARE c CURSOR FOR SELECT id FROM acct1 WHERE branch < 7")
    query(cursor, "FETCH 5 FROM c")
    query(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    rows = query(connection, "SELECT * FROM acct1 ORDER BY id")
    for session in (asked, command, live):
        query(session, "BEGIN ISOLATION LEVEL SERIALIZABLE")
    for session in (default, failed):
        query(session, "SET default_transaction_isolation = serializable")
    query(failed, "BEGIN")
    primary = boss()
    query(primary, "UPDATE acct1 SET amount = amount + 1 WHERE id = 1; UPDATE acct1 SET amount = amount - 1 WHERE id = 2")
    wanted = state(primary)
    query(primary, "SET synchronous_commit = on")
    query(primary, "SELECT pg_logical_emit_message(true, '', '')")  # is in WAL, so all before it is on disk, and is sent
    lsn = value(primary, "SELECT pg_current_wal_flush_lsn()")
    primary.close()
    must_come(lambda: Servers.standby.ask("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (lsn,)), 60)
    Servers.standby.control("promote")
    for name, session, sql in (("a reader", connection, "SELECT * FROM acct1"), ("a cursor", cursor, "FETCH 5 FROM c")):
        try:
            check(f"standby: {name} ends with the promotion", False, query(session, sql))
        except psycopg2.Error as error:
            check(f"standby: {name} ends with the promotion", error.pgcode == "40001" or session.closed, error)
        session.close()
    connection = Servers.standby.connect()
    must_come(lambda: not value(connection, "SELECT pg_is_in_recovery()"), 60)
    query(command, "SET TRANSACTION READ WRITE")
    equal("standby: nor does a command", code_of(command, "LOCK TABLE acct0"), "40001")
    query(command, "ROLLBACK")  # If it has got the lock, the others wait.
    try:
        check("standby: nor one that has failed", False, query(failed, "SELECT 1 FROM acct0 WHERE id = 1"))
    except psycopg2.Error as error:
        equal("standby: nor one that has failed", error.pgcode, "40001")
    for session in (live, failed):
        query(session, "ROLLBACK AND CHAIN")
        equal("standby: nor after ROLLBACK AND CHAIN", code_of(session, "SELECT 1 FROM acct0 WHERE id = 1"), "40001")
    codes = [code_of(session, "SELECT 1 FROM acct0 WHERE id = 1") for session in (asked, default)]
    equal("standby: SERIALIZABLE does not go on after the promotion", codes, ["40001", "40001"])
    query(default, "BEGIN")
    equal("standby: the next one is SERIALIZABLE", query(default, "SHOW transaction_isolation"), [("serializable",)])
    [session.close() for session in (asked, default, command, live, failed)]
    equal("standby: a promoted one has all", state(connection), wanted)
    query(connection, "SET synchronous_commit = on")
    query(connection, "UPDATE acct0 SET pad = 'after'")
    equal("standby: and can be written", value(connection, "SELECT count(*) FROM acct0 WHERE pad = 'after'"), len(wanted[0][0]))
    connection.close()
    Servers.standby.control("restart", "-m", "immediate")
    equal("standby: and crash", Servers.standby.ask("SELECT count(*) FROM acct0 WHERE pad = 'after'"), len(wanted[0][0]))


TESTS = (test_load, test_quiet, test_refused, test_serializable, test_defaults, test_definitions, test_prepared, test_frozen, test_dropped_database, test_loaded_later, test_cut, test_cursor,
         test_old_snapshot, test_unloaded, test_conflicts, test_cascade, test_applied, test_decided_late, test_interval, test_held_back, test_small_memory, test_restart, test_killed_reader,
         test_primary_restart, test_prepared_over_restart, test_promotion)

STATES = "standby: snapshots are states of the primary, under load"
# What is wrong, the check that finds it, and its test.
FAULTS = (("stable_too_large", "standby: no commit is passed over", test_quiet),
          ("stable_at_prepared", "standby: it shows what the primary shows, a prepared transaction is not seen, COMMIT, told", test_prepared),
          ("passed_forgotten", "standby: it shows what the primary shows, it is seen at its end, COMMIT, imaged and loaded", test_prepared),
          ("open_given_up", "standby: rows whose id was given up are seen, new session", test_frozen),
          ("open_counts", "standby: it is not seen without those of before it", test_decided_late),
          ("counts_at_prepare", "standby: an old snapshot does not see its end, COMMIT, told", test_prepared),
          ("asked_forgotten", "standby: SERIALIZABLE does not go on after the promotion", test_promotion),
          ("readers_stay", "standby: a cursor ends with the promotion", test_promotion),
          ("pieces_forgotten", "standby: a row in two records is there, a load", test_cut),
          ("page_skipped", STATES, test_load), ("low_forgotten", "standby: a snapshot from before does not see it", test_loaded_later),
          ("horizon_left_out", "standby: an old snapshot keeps the rows of acct1", test_old_snapshot),
          ("unload_forgotten", "standby: an old snapshot keeps its rows, CREATE DATABASE, VACUUM", test_unloaded),
          ("unload_forgotten", "standby: an old snapshot keeps its rows, CREATE DATABASE, marks, hash", test_unloaded))


def make_standby():
    Servers.standby = Cluster.copy("-R", database=DATABASE)
    Servers.standby.start(hot_standby="on")


def set_fault(fault):
    connection = connect("postgres")
    query(connection, f"ALTER SYSTEM SET mixedcc.fault = '{fault}'" if fault else "ALTER SYSTEM RESET mixedcc.fault")
    query(connection, "SELECT pg_reload_conf()")
    connection.close()
    time.sleep(0.5)


def test_faults(names):
    """In a build with faults: each of them is found."""
    for fault, check_name, test in FAULTS:
        if not names or fault in names:
            connection = make_database(DATABASE)
            make_tables(connection)
            connection.close()
            set_fault(fault)
            make_standby()
            try:
                must_be_found(fault, check_name, test)
            finally:
                set_fault(None)
                Servers.standby.remove()
                connection = connect("postgres")
                for (gid,) in query(connection, "SELECT gid FROM pg_prepared_xacts"):
                    with_database = boss()
                    query(with_database, f"ROLLBACK PREPARED '{gid}'")
                    with_database.close()
                # A test that has failed may have left sessions.
                query(connection, f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{DATABASE}'")
                connection.close()


def test_all():
    connection = make_database(DATABASE)
    query(connection, "ALTER SYSTEM SET wal_keep_size = '2GB'")
    query(connection, "SELECT pg_reload_conf()")
    make_tables(connection)
    connection.close()
    make_standby()
    try:
        chosen = [t for t in TESTS if not sys.argv[1:] or t.__name__ in sys.argv[1:]]
        for test in chosen:
            test()
    finally:
        Servers.standby.remove()
    drop_database(DATABASE)


if __name__ == "__main__":
    if "--faults" in sys.argv:
        main(lambda: test_faults([name for name in sys.argv[1:] if name != "--faults"]))
    main(test_all)
