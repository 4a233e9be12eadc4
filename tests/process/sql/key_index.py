#!/usr/bin/python3
"""The index of a PRIMARY KEY, or of a UNIQUE key that is NOT NULL, whose entries the engine keeps:
no two rows get one key, whatever sessions do at the same time and however they end; rows and index
agree after restarts, a crash and logical replication; amcheck finds a sound file, and compares the
engine's entries with the rows. The argument --faults runs its first uses with a deliberate fault of
a test build, which they must find."""

import pathlib
import random
import struct
import sys
import threading
import time

import psycopg2

from lib.common import RETRY, check, connect, create_table, drop_database, equal, fail, main, make_database, must_be_found, must_come, ok, query, seconds, server, tool, value

DATABASE = "process_key_index"
SOURCE = "process_key_index_source"
KEYS = 12
SESSIONS = 6
FAULT = ""
# Kinds of keys; their indexes have the same names.
PRIMARY, UNIQUE = "CONSTRAINT {0}_pkey PRIMARY KEY", "NOT NULL CONSTRAINT {0}_pkey UNIQUE"


class Session(threading.Thread):
    """Inserts, deletes and moves keys of a small range; counts what it has committed by key."""

    def __init__(self, number, until):
        super().__init__()
        self.dice, self.until = random.Random(number), until
        self.balance = [0] * KEYS
        self.counts = {}
        self.wrong = []

    def run(self):
        self.connection = connect(DATABASE)
        query(self.connection, "SET deadlock_timeout = '50ms'; SET mixedcc.enable_bypass = " + self.dice.choice(("on", "off")))
        while time.monotonic() < self.until:
            level = self.dice.choice(("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"))
            try:
                self.transaction(level)
                result = "done"
            except psycopg2.Error as e:
                result = e.pgcode
                query(self.connection, "ROLLBACK")
                if e.pgcode not in RETRY + ("23505",):
                    self.wrong.append(str(e))
            self.counts[result] = self.counts.get(result, 0) + 1
        self.connection.close()

    def transaction(self, level):
        changes = [0] * KEYS
        query(self.connection, f"BEGIN ISOLATION LEVEL {level}")
        for _ in range(self.dice.randint(1, 4)):
            nested = self.dice.random() < 0.4
            before = list(changes)
            if nested:
                query(self.connection, "SAVEPOINT s")
            try:
                self.step(changes)
                if nested and self.dice.random() < 0.3:
                    query(self.connection, "ROLLBACK TO s")
                    changes = before
            except psycopg2.Error as e:
                if not nested or e.pgcode != "23505":
                    raise
                query(self.connection, "ROLLBACK TO s")
                changes = before
        if self.dice.random() < 0.2:
            query(self.connection, "ROLLBACK")
            return
        query(self.connection, "COMMIT")
        self.balance = [b + c for b, c in zip(self.balance, changes)]

    def step(self, changes):
        key, other = self.dice.randrange(KEYS), self.dice.randrange(KEYS)
        what = self.dice.choice(("insert", "insert", "nothing", "update", "several", "delete", "delete", "move", "touch"))
        if what == "insert":
            query(self.connection, "INSERT INTO k VALUES (%s, 0)", (key,))
            changes[key] += 1
        elif what == "nothing":
            changes[key] += len(query(self.connection, "INSERT INTO k VALUES (%s, 1) ON CONFLICT DO NOTHING RETURNING id", (key,)))
        elif what == "update":
            # xmax is 0 if it was an insert.
            row = query(self.connection, "INSERT INTO k VALUES (%s, 2) ON CONFLICT (id) DO UPDATE SET v = k.v + 1 RETURNING xmax = 0", (key,))
            changes[key] += row[0][0]
        elif what == "several":
            keys = sorted({key, other}, reverse=self.dice.random() < 0.5)
            query(self.connection, "INSERT INTO k SELECT unnest(%s), 3", (keys,))
            for k in keys:
                changes[k] += 1
        elif what == "delete":
            changes[key] -= len(query(self.connection, "DELETE FROM k WHERE id = %s RETURNING id", (key,)))
        elif what == "move":
            moved = len(query(self.connection, "UPDATE k SET id = %s WHERE id = %s RETURNING id", (other, key)))
            changes[key] -= moved
            changes[other] += moved
        else:
            query(self.connection, "UPDATE k SET v = v + 1 WHERE id = %s", (key,))


def rows_and_index_agree(connection, table, what):
    by = {}
    for way in ("seq", "index", "bitmap"):
        query(connection, "BEGIN; " + "; ".join(f"SET LOCAL enable_{w}scan = {'on' if w == way else 'off'}" for w in ("seq", "index", "bitmap"))
              + "; SET LOCAL enable_indexonlyscan = off; SET LOCAL mixedcc.enable_bypass = off; SET LOCAL mixedcc.enable_primary_scan = off")
        by[way] = sorted(query(connection, f"SELECT id, v FROM {table} WHERE id > -1000000"))
        query(connection, "COMMIT")
    check(f"{what}: all ways find the same rows", by["seq"] == by["index"] == by["bitmap"], by)
    equal(f"{what}: the primary index agrees with the rows", value(connection, f"SELECT mixedcc.check_primary_index('{table}')"), len(by["seq"]))
    return by["seq"]


def key_of(kind, table, more="v int"):
    return f"id int {kind.format(table)}, {more}"


def same_keys(kind):
    """By the counts of all sessions each key was inserted as often as deleted, or once more."""
    boss = connect(DATABASE)
    for protocol in ("occ", "2pl", "partcc"):
        query(boss, "DROP TABLE IF EXISTS k")
        create_table(boss, "k", key_of(kind, "k"), protocol=protocol)
        query(boss, "CREATE INDEX ON k (v)")  # so that an update of v moves the row
        sessions = [Session(n, time.monotonic() + seconds(6)) for n in range(SESSIONS)]
        for s in sessions:
            s.start()
        while any(s.is_alive() for s in sessions):
            query(boss, "VACUUM k")
            time.sleep(0.1)
        for s in sessions:
            s.join()
        wrong = [w for s in sessions for w in s.wrong]
        check(f"same keys, {protocol}: no error but conflicts", not wrong, wrong[:3])
        counts = {}
        for s in sessions:
            for result, n in s.counts.items():
                counts[result] = counts.get(result, 0) + n
        check(f"same keys, {protocol}: commits and duplicates", counts.get("done", 0) > 50 and counts.get("23505", 0) > 5, counts)
        wanted = [k for k in range(KEYS) for _ in range(sum(s.balance[k] for s in sessions))]
        rows = rows_and_index_agree(boss, "k", f"same keys, {protocol}")
        equal(f"same keys, {protocol}: each key is there as often as was committed", [k for k, _ in rows], wanted)
    boss.close()


def refused(connection, sql):
    try:
        query(connection, sql)
    except psycopg2.Error as e:
        return e.pgcode, e.diag.constraint_name, str(e)
    return None


def duplicate_is_refused(connection, what):
    equal(f"{what}: a duplicate is refused", refused(connection, "INSERT INTO r SELECT min(id), 0 FROM r")[:2], ("23505", "r_pkey"))


def first_use(boss, what, command, end, before):
    """Restarts the server. The command is the first use of the table, and may be undone."""
    boss.close()
    server("restart")
    boss = connect(DATABASE, options="-c synchronous_commit=on" + (f" -c mixedcc.fault={FAULT}" if FAULT else ""))
    query(boss, f"BEGIN; {command}; {end}")
    if not equal(f"first use, {what}: {command}, {end}: a row comes and goes", refused(boss, "INSERT INTO r VALUES (-1, 0); DELETE FROM r WHERE id = -1"), None):
        return boss
    equal(f"first use, {what}: {command}, {end}", rows_and_index_agree(boss, "r", f"first use, {what}, {command}"), before)
    duplicate_is_refused(boss, f"first use, {what}, {command}")
    return boss


def restarts(key):
    for kind, what in (("UNLOGGED", "unlogged"), ("", "permanent")):
        boss = connect(DATABASE, options="-c synchronous_commit=on")
        query(boss, "DROP TABLE IF EXISTS r")
        create_table(boss, "r", key_of(key, "r"), kind)
        query(boss, "INSERT INTO r SELECT i, i FROM generate_series(1, 1000) i; DELETE FROM r WHERE id % 7 = 0")
        equal(f"file, {what}: it does not grow with the rows", value(boss, "SELECT pg_relation_size('r_pkey')"), 16384)
        before = rows_and_index_agree(boss, "r", f"before restarts, {what}")
        boss.close()
        server("restart")
        boss = connect(DATABASE, options="-c synchronous_commit=on")
        equal(f"clean restart, {what}: the rows", rows_and_index_agree(boss, "r", f"clean restart, {what}"), before)
        duplicate_is_refused(boss, f"clean restart, {what}")
        query(boss, "INSERT INTO r VALUES (7, 7)")
        query(boss, "BEGIN; TRUNCATE r; INSERT INTO r VALUES (1, 1)")
        boss.close()
        server("crash")
        boss = connect(DATABASE)
        query(boss, "INSERT INTO r VALUES (1001, 1), (1002, 2)")
        wanted = ([] if kind else sorted(before + [(7, 7)])) + [(1001, 1), (1002, 2)]
        equal(f"crash, {what}: the rows", rows_and_index_agree(boss, "r", f"crash, {what}"), wanted)
        duplicate_is_refused(boss, f"crash, {what}")
        equal(f"crash, {what}: the file", value(boss, "SELECT pg_relation_size('r_pkey')"), 16384)
        before = rows_and_index_agree(boss, "r", f"before first uses, {what}")
        # The first use of the table is a command that is about to give the index another file, or
        # to drop it.
        commands = ["REINDEX INDEX r_pkey", "REINDEX TABLE r", "ALTER TABLE r DROP CONSTRAINT r_pkey; SELECT count(*) FROM r", "TRUNCATE r; INSERT INTO r VALUES (1, 1)"]
        for command in commands + (["ALTER TABLE r ADD PRIMARY KEY (id, v)", "ALTER TABLE r ALTER id DROP NOT NULL"] if key == UNIQUE else []):
            for end in ("ROLLBACK", "COMMIT") if command.startswith("REINDEX") else ("ROLLBACK",):
                boss = first_use(boss, what, command, end, before)
        # The same where an unlogged table begins empty.
        # Without the checkpoints a crash may lose the record of a ROLLBACK, and PostgreSQL then
        # does not start, on heap either (docs/limits.md).
        query(boss, "CHECKPOINT")
        for command in ("ALTER TABLE r ADD PRIMARY KEY (id, v)", "ALTER TABLE r ALTER id DROP NOT NULL") if key == UNIQUE else ():
            boss.close()
            server("crash")
            boss = connect(DATABASE, options="-c synchronous_commit=on")
            query(boss, f"BEGIN; {command}; ROLLBACK; CHECKPOINT")
            query(boss, "INSERT INTO r VALUES (-1, 0); DELETE FROM r WHERE id = -1")
            after = f"first use after a crash, {what}, {command}"
            equal(after, rows_and_index_agree(boss, "r", after), [] if kind else before)
            query(boss, "INSERT INTO r VALUES (1001, 1) ON CONFLICT DO NOTHING")
            duplicate_is_refused(boss, after)
        boss.close()
        server("crash")
        boss = connect(DATABASE)
        query(boss, "REINDEX SCHEMA public")
        equal(f"first use, {what}: after a crash", rows_and_index_agree(boss, "r", f"first use, {what}, a schema"), [] if kind else before)
        query(boss, "INSERT INTO r VALUES (1001, 1) ON CONFLICT DO NOTHING")
        duplicate_is_refused(boss, f"first use, {what}, a schema")
        boss.close()


def amcheck(kind):
    """The file is that of a sound index without entries after all that writes it. The rows are
    compared with the primary index, beside inserts, moves and deletes of others too."""
    boss = connect(DATABASE)
    query(boss, "CREATE EXTENSION IF NOT EXISTS amcheck; DROP TABLE IF EXISTS k2")
    for command in ("SELECT 1", "REINDEX TABLE r", "TRUNCATE r; INSERT INTO r VALUES (1, 1)", "BEGIN; TRUNCATE r; TRUNCATE r; INSERT INTO r VALUES (1, 1); COMMIT",
                    "VACUUM ANALYZE r"):
        query(boss, command)
        query(boss, "INSERT INTO r VALUES (-1, 0); DELETE FROM r WHERE id = -1")
        sound(boss, f"amcheck after {command}")
    for restart in ("restart", "crash"):
        boss.close()
        server(restart)
        boss = connect(DATABASE)
        sound(boss, f"amcheck at once after {restart}")
    create_table(boss, "k2", key_of(kind, "k2"))
    until = time.monotonic() + seconds(6)
    writers = [threading.Thread(target=moves, args=(n, until)) for n in range(3)]
    for w in writers:
        w.start()
    checks = 0
    while any(w.is_alive() for w in writers):
        query(boss, "SELECT bt_index_check('k2_pkey', true), mixedcc.check_primary_index('k2')")
        if checks % 10 == 0:
            query(boss, "VACUUM k2")
        checks += 1
    check("amcheck: beside writers", checks > 20, checks)
    boss.close()


def moves(number, until):
    """Few keys, so that numbers of records are given to other keys all the time."""
    dice, session = random.Random(number), connect(DATABASE)
    while time.monotonic() < until:
        key, other = dice.sample(range(40), 2)
        sql = dice.choice((f"INSERT INTO k2 VALUES ({key}, 0) ON CONFLICT DO NOTHING", f"DELETE FROM k2 WHERE id = {key}",
                           f"UPDATE k2 SET id = {other} WHERE id = {key}", f"DELETE FROM k2 WHERE id = {key}; INSERT INTO k2 VALUES ({key}, 1)"))
        try:
            query(session, f"BEGIN; {sql}; {dice.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))}")
        except psycopg2.Error:
            query(session, "ROLLBACK")
    session.close()


def sound(connection, what):
    """These raise errors if they find something."""
    try:
        query(connection, "SELECT bt_index_check('r_pkey'), bt_index_check('r_pkey', true), bt_index_parent_check('r_pkey', true, true)")
        ok(what)
    except psycopg2.Error as e:
        fail(what, e)


def files_of_first_builds(kind):
    """Their root is a zero page: nbtree fails, amcheck too, and the first use mends the file. They
    made unlogged tables."""
    boss = connect(DATABASE)
    query(boss, "DROP TABLE r")
    create_table(boss, "r", key_of(kind, "r"), "UNLOGGED")
    query(boss, "INSERT INTO r VALUES (1, 1) ON CONFLICT DO NOTHING")
    before = query(boss, "SELECT * FROM r ORDER BY id")
    directory = pathlib.Path(value(boss, "SHOW data_directory"))
    file = directory / value(boss, "SELECT pg_relation_filepath('r_pkey')")
    checksums = value(boss, "SHOW data_checksums")
    boss.close()
    server("stop")
    if checksums == "on":  # which the pages below would not have
        tool("pg_checksums", "--disable", "-D", directory)
    for path in (file, file.with_name(file.name + "_init")):
        page = bytearray(path.read_bytes()[:8192])
        equal(f"first builds: the fork has two blocks now, {path.name[-5:] == '_init'}", path.stat().st_size, 16384)
        struct.pack_into("=4I", page, 24 + 8, 1, 2, 1, 2)  # root, its level, fast root, its level
        path.write_bytes(bytes(page) + bytes(8192))
    server("start")
    for crashed in (False, True):
        boss = connect(DATABASE)
        error = refused(boss, "SELECT bt_index_check('r_pkey')")
        check(f"first builds: amcheck fails, crashed {crashed}", error is not None and "unexpected zero page at block 1" in error[2], error)
        equal(f"first builds: the rows, crashed {crashed}", query(boss, "SELECT * FROM r WHERE id >= 0 ORDER BY id"), before)
        sound(boss, f"first builds: amcheck after the first use, crashed {crashed}")
        query(boss, "INSERT INTO r VALUES (1, 1) ON CONFLICT DO NOTHING")
        duplicate_is_refused(boss, f"first builds, crashed {crashed}")
        boss.close()
        if not crashed:
            before = []
            server("crash")
    boss = connect(DATABASE)
    query(boss, "REINDEX TABLE r")
    boss.close()
    server("crash")
    boss = connect(DATABASE)
    sound(boss, "first builds: after REINDEX and a crash")
    boss.close()


def replication(kind):
    """The apply worker finds rows by the key."""
    boss = connect("postgres")
    query(boss, "ALTER SYSTEM SET wal_level = logical")
    server("restart")
    boss = make_database(SOURCE)
    query(boss, f"CREATE TABLE a ({key_of(kind, 'a')}); CREATE PUBLICATION p FOR TABLE a")
    identity = "ALTER TABLE a REPLICA IDENTITY USING INDEX a_pkey"
    query(boss, identity)
    query(boss, "SELECT pg_create_logical_replication_slot('key_index', 'pgoutput')")
    target = connect(DATABASE)
    query(target, "DROP TABLE IF EXISTS a")
    create_table(target, "a", key_of(kind, "a"))
    query(target, identity)
    info = boss.info
    query(target, f"CREATE SUBSCRIPTION s CONNECTION 'dbname={SOURCE} host={info.host} port={info.port} user={info.user}' "
                  "PUBLICATION p WITH (create_slot = false, slot_name = 'key_index', copy_data = false)")
    query(boss, "INSERT INTO a SELECT i, i FROM generate_series(1, 500) i")
    query(boss, "UPDATE a SET v = -v WHERE id % 2 = 0; DELETE FROM a WHERE id % 5 = 0; UPDATE a SET id = id + 1000 WHERE id % 3 = 0")
    query(boss, "INSERT INTO a VALUES (5, 55), (9999, 0)")
    wanted = sorted(query(boss, "SELECT * FROM a"))
    try:
        must_come(lambda: value(target, "SELECT count(*) FROM a WHERE id = 9999") == 1)
        equal("replication: the rows", rows_and_index_agree(target, "a", "replication"), wanted)
    finally:
        query(target, "ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE)")
        query(target, "DROP SUBSCRIPTION s")
        must_come(lambda: not value(boss, "SELECT active FROM pg_replication_slots WHERE slot_name = 'key_index'"))
        query(boss, "SELECT pg_drop_replication_slot('key_index')")
        target.close()
        boss.close()
        drop_database(SOURCE)
        boss = connect("postgres")
        query(boss, "ALTER SYSTEM RESET wal_level")
        boss.close()
        server("restart")


# What is done to a table with the unique key `d_pkey` while sessions change its rows.
CHANGES = (
    "ALTER TABLE d ALTER id DROP NOT NULL", "ALTER TABLE d ALTER id SET NOT NULL", "REINDEX TABLE d", "REINDEX TABLE d", "REINDEX INDEX d_pkey",
    "REINDEX INDEX CONCURRENTLY d_pkey", "REINDEX TABLE CONCURRENTLY d", "DROP INDEX d_pkey", "DROP INDEX CONCURRENTLY d_pkey",
    "CREATE UNIQUE INDEX d_pkey ON d (id)", "CREATE UNIQUE INDEX d_pkey ON d (id)", "CREATE UNIQUE INDEX CONCURRENTLY d_pkey ON d (id)",
    "CREATE UNIQUE INDEX d_other ON d (id, v)", "DROP INDEX d_other", "DROP INDEX CONCURRENTLY d_other", "ALTER TABLE d ADD CONSTRAINT d_p PRIMARY KEY (id)",
    "ALTER TABLE d DROP CONSTRAINT d_p", "ALTER TABLE d ADD CONSTRAINT d_p PRIMARY KEY USING INDEX d_pkey", "ALTER TABLE d ALTER id TYPE bigint",
    "ALTER TABLE d ALTER id TYPE int", "ALTER TABLE d SET UNLOGGED", "ALTER TABLE d SET LOGGED", "CLUSTER d USING d_pkey", "VACUUM d",
    "DELETE FROM d a USING d b WHERE a.id = b.id AND a.ctid < b.ctid",
)
# There is no such index or constraint, or there is one, or an invalid one, as it happens.
MISSED = ("0A000", "42704", "42P01", "42P07", "42P16", "42P10", "42809", "55000")


class Other(threading.Thread):
    """Changes rows, beside changes of the definition, until it is told to end."""

    def __init__(self, number, end):
        super().__init__(daemon=True)
        self.dice, self.end, self.wrong, self.done = random.Random(number), end, [], 0

    def run(self):
        session = connect(DATABASE)
        query(session, "SET deadlock_timeout = '50ms'; SET mixedcc.enable_bypass = " + self.dice.choice(("on", "off")))
        while not self.end.is_set():
            key, other = self.dice.sample(range(30), 2)
            sql = self.dice.choice((
                f"INSERT INTO d VALUES ({key}, 0)", f"INSERT INTO d VALUES ({key}, 0), ({other}, 1)", f"DELETE FROM d WHERE id = {key}",
                f"UPDATE d SET id = {other} WHERE id = {key}", f"UPDATE d SET v = v + 1 WHERE id = {key}", f"SELECT * FROM d WHERE id = {key}",
                f"SELECT * FROM d WHERE id > {key} ORDER BY id LIMIT 3", f"INSERT INTO d VALUES ({key}, 0) ON CONFLICT (id) DO NOTHING"))
            try:
                query(session, f"BEGIN; {sql}; {self.dice.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))}")
                self.done += 1
            except psycopg2.Error as e:
                query(session, "ROLLBACK")
                if e.pgcode not in RETRY + ("23505", "42P10"):
                    self.wrong.append(f"{sql}: {e.pgcode} {e}")
        session.close()


def definitions():
    """Whatever comes to the table: no index that is valid has two rows of one key, each way finds
    each row, and no session meets the file of a hollow index."""
    dice = random.Random(5)
    for persistence in ("", "UNLOGGED"):
        boss = connect(DATABASE, options="-c synchronous_commit=on")
        query(boss, "SET deadlock_timeout = '50ms'; DROP TABLE IF EXISTS d")
        create_table(boss, "d", "id int NOT NULL, v int", persistence)
        query(boss, "CREATE UNIQUE INDEX d_pkey ON d (id)")
        counts, hollow = {}, 0
        for round in range(3):
            end = threading.Event()
            others = [Other(round * 10 + n, end) for n in range(3)]
            for o in others:
                o.start()
            for _ in range(40):
                some = [dice.choice(CHANGES)]
                if dice.random() < 0.4:  # several in a transaction, which may be rolled back in parts
                    some = ["BEGIN"] + [dice.choice(CHANGES) for _ in range(2)] + dice.choice(([], ["SAVEPOINT s", dice.choice(CHANGES), "ROLLBACK TO s"])) + [dice.choice(("COMMIT", "ROLLBACK"))]
                for sql in some:
                    try:
                        query(boss, sql)
                        result = "done"
                    except psycopg2.Error as e:
                        result = e.pgcode
                        query(boss, "ROLLBACK")
                        check(f"definitions, {sql}: an error that may be", result in RETRY + MISSED + ("23505", "23502", "25001"), e)
                    counts[(sql, result)] = counts.get((sql, result), 0) + 1
                    if result != "done":
                        break
                hollow += one_row_of_each_key(boss, dice)
            must_come(lambda: all(o.done > 5 for o in others))
            end.set()
            for o in others:
                o.join()
            wrong = [w for o in others for w in o.wrong]
            check("definitions: no error but conflicts", not wrong, wrong[:3])
            query(boss, "CHECKPOINT")  # as in `restarts`
            refused(boss, dice.choice(("SELECT 1", "BEGIN; ALTER TABLE d ALTER id DROP NOT NULL", "BEGIN; DROP INDEX IF EXISTS d_other", "BEGIN; REINDEX TABLE d")))
            boss.close()
            server(dice.choice(("crash", "restart")))
            boss = connect(DATABASE, options="-c synchronous_commit=on")
            query(boss, "SET deadlock_timeout = '50ms'")
            one_row_of_each_key(boss, dice)
        done = {sql for (sql, result) in counts if result == "done"}
        check("definitions: most changes were made", len(done) > 15, sorted(done))
        check("definitions: the index was hollow at times", hollow > 10, hollow)
        boss.close()


def builds_beside_readers():
    """A command that waits for a reader does not keep it from writing. It does not wait for one
    where no index can be hollow, nor at the end of CONCURRENTLY."""
    boss, reader = connect(DATABASE), connect(DATABASE)
    for connection in (boss, reader):
        query(connection, "SET deadlock_timeout = '50ms'; SET lock_timeout = '20s'")
    query(boss, "DROP TABLE IF EXISTS b")
    create_table(boss, "b", "id int NOT NULL, amount numeric NOT NULL, v int NOT NULL")
    query(boss, "INSERT INTO b SELECT i, i, i FROM generate_series(1, 10) i")
    query(reader, "BEGIN; SELECT count(*) FROM b")
    failed = []
    build = threading.Thread(target=lambda: failed.append(refused(boss, "CREATE UNIQUE INDEX b_id ON b (id)")))
    build.start()
    must_come(lambda: value(reader, f"SELECT count(*) FROM pg_locks WHERE pid = {boss.info.backend_pid} AND NOT granted") == 1)
    equal("a build beside a reader: it may write", refused(reader, "INSERT INTO b VALUES (11, 11, 11); COMMIT"), None)
    build.join(30)
    equal("a build beside a reader: it ends", failed, [None])
    query(reader, "BEGIN; SELECT count(*) FROM b")
    query(boss, "SET lock_timeout = '2s'")
    for command in ("CREATE UNIQUE INDEX b_amount ON b (amount)", "CREATE UNIQUE INDEX b_down ON b (v DESC)"):
        equal(f"beside a reader: {command}", refused(boss, command), None)
    check("beside a reader: a second key waits", (refused(boss, "CREATE UNIQUE INDEX b_v ON b (v)") or "none")[0] == "55P03")
    query(reader, "COMMIT")
    for command in ("CREATE UNIQUE INDEX b_v ON b (v)", "CREATE UNIQUE INDEX b_3 ON b (v, id)", "CREATE UNIQUE INDEX b_4 ON b (id, v)"):
        query(boss, command)
    query(reader, "BEGIN; SELECT count(*) FROM b")
    equal("beside a reader: a fifth key does not wait", refused(boss, "CREATE UNIQUE INDEX b_5 ON b (id, v)"), None)
    query(reader, "COMMIT; BEGIN; SELECT count(*) FROM b")
    drop = threading.Thread(target=lambda: failed.append(refused(boss, "DROP INDEX CONCURRENTLY b_v")))
    drop.start()
    must_come(lambda: value(reader, f"SELECT count(*) FROM pg_locks WHERE pid = {boss.info.backend_pid} AND NOT granted") == 1)
    query(reader, "COMMIT")
    drop.join(30)
    query(boss, "DROP TABLE b")
    equal("DROP INDEX CONCURRENTLY of another index", failed, [None, None])
    # The partitioned table is locked before its partitions, as a writer locks them.
    part = "PARTITION OF p FOR VALUES IN"
    query(boss, "CREATE TABLE p (id int NOT NULL, part int NOT NULL) PARTITION BY LIST (part)")
    query(boss, f"CREATE TABLE p1 {part} (1) USING mixedcc; CREATE TABLE p2 {part} (2) USING mixedcc")
    query(reader, "BEGIN; SELECT count(*) FROM p2")
    build = threading.Thread(target=lambda: failed.append(refused(boss, "CREATE UNIQUE INDEX ON p (id, part)")))
    build.start()
    must_come(lambda: value(reader, f"SELECT count(*) FROM pg_locks WHERE pid = {boss.info.backend_pid} AND NOT granted") == 1)
    other = connect(DATABASE, options="-c deadlock_timeout=50ms -c lock_timeout=20s")
    write = threading.Thread(target=lambda: failed.append(refused(other, "INSERT INTO p VALUES (1, 1)")))
    write.start()
    must_come(lambda: value(reader, f"SELECT count(*) FROM pg_locks WHERE pid = {other.info.backend_pid} AND NOT granted") == 1)
    query(reader, "COMMIT")
    build.join(30)
    write.join(30)
    equal("a build of partitions beside a reader and a writer", failed, [None, None, None, None])
    query(boss, "DROP TABLE p")
    for connection in (boss, reader, other):
        connection.close()


def one_row_of_each_key(boss, dice):
    """Is a unique index hollow?"""
    query(boss, "BEGIN; LOCK TABLE d IN SHARE MODE")
    rows = sorted(query(boss, "SET LOCAL enable_indexscan = off; SET LOCAL enable_bitmapscan = off; SELECT id, v FROM d"), key=str)
    query(boss, "SET LOCAL enable_seqscan = off")
    for settings in ("SET LOCAL enable_indexscan = on; SET LOCAL mixedcc.enable_primary_scan = on", "SET LOCAL mixedcc.enable_primary_scan = off",
                     "SET LOCAL enable_indexscan = off; SET LOCAL enable_bitmapscan = on"):
        query(boss, settings)
        found = sorted(query(boss, "SELECT id, v FROM d WHERE id > -10 OR id IS NULL"), key=str)
        check("definitions: each way finds each row", found == rows, (found, rows))
        keys = dice.sample(range(30), 4)
        found = [r for key in keys for r in query(boss, f"SELECT id, v FROM d WHERE id = {key}")]
        check("definitions: by the key, too", sorted(found) == sorted(r for r in rows if r[0] in keys), (keys, found, rows))
    unique = value(boss, "SELECT count(*) FROM pg_index WHERE indrelid = 'd'::regclass AND indisunique AND indisvalid AND indnkeyatts = 1")
    keys = [key for key, _ in rows]
    check("definitions: no two rows of one key", not unique or len(set(keys)) == len(keys), rows)
    query(boss, "SELECT mixedcc.check_primary_index('d')")
    used = value(boss, "SELECT count(*) FROM mixedcc.primary_index('d') p JOIN pg_index i ON i.indexrelid = p.index WHERE NOT i.indisprimary")
    query(boss, "COMMIT")
    return used


def test():
    make_database(DATABASE).close()
    for kind in (PRIMARY, UNIQUE):
        for part in (same_keys, restarts, amcheck, files_of_first_builds, replication):
            try:
                part(kind)
            except psycopg2.Error as e:
                fail(f"{part.__name__}, {kind}", e)
    for part in (builds_beside_readers, definitions):
        try:
            part()
        except psycopg2.Error as e:
            fail(part.__name__, e)
    drop_database(DATABASE)


def test_faults():
    """A load in a command that gives the index a new file, and is undone."""
    global FAULT
    boss = make_database(DATABASE)
    if value(boss, "SELECT current_setting('mixedcc.fault', true)") is None:
        check("key index: the build has no deliberate faults", False)
        return
    query(boss, "ALTER SYSTEM SET mixedcc.load_workers = 0")
    create_table(boss, "r", key_of(UNIQUE, "r"))
    query(boss, "INSERT INTO r SELECT i, i FROM generate_series(1, 1000) i")
    before = rows_and_index_agree(boss, "r", "faults")
    FAULT = "files_of_now"
    name = "first use, permanent: REINDEX INDEX r_pkey, ROLLBACK: a row comes and goes"
    must_be_found(FAULT, name, lambda: first_use(boss, "permanent", "REINDEX INDEX r_pkey", "ROLLBACK", before).close())
    FAULT = ""
    boss = connect("postgres")
    query(boss, "ALTER SYSTEM RESET mixedcc.load_workers")
    boss.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_faults if "--faults" in sys.argv else test)
