#!/usr/bin/python3
"""Prepared transactions over permanent tables, and a server that dies, stops, or follows another
one: what was prepared stays so, with its rows, row locks and guards, until it is finished."""

import random
import threading

import psycopg2

from lib import protocols
from lib.clusters import Cluster
from lib.common import check, create_table, equal, keep_long, must_come, premise, query, value, wait_until
from lib.prepared import ENDS, attempt, checkpoint_and_crash, crash, done, must_prepare, prepare, restart, run_all

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
WRITES = "UPDATE {0} SET v = 1 WHERE id = 1; DELETE FROM {0} WHERE id = 2; INSERT INTO {0} VALUES (30, 1, 30)"
OLD, NEW = [(1, 0), (2, 0)], [(1, 1), (30, 1)]
LONG = "repeat(md5(({0})::text), 900)"  # a row in pieces


def fresh(cluster, *names, protocol="occ", kind=""):
    session = cluster.connect()
    for name in names:
        create_table(session, name, "id int PRIMARY KEY, v int, u int UNIQUE", kind=kind, protocol=protocol, partitions=4)
        query(session, f"INSERT INTO {name} SELECT g, 0, g FROM generate_series(1, 20) g")
    session.close()


def rows(cluster, table):
    return done(cluster, f"SELECT id, v FROM {table} WHERE id IN (1, 2, 30) ORDER BY id")


def crash_twice(cluster):
    crash(cluster)
    crash(cluster)


def waits(cluster, sql):
    """Does a statement wait until its lock_timeout?"""
    return attempt(cluster, sql) == "55P03"


def outcomes(cluster):
    """Each protocol, level, end and death; the table is used before it is finished, or after."""
    deaths = {"a crash": crash, "a clean restart": restart, "two crashes": crash_twice, "a checkpoint and a crash": checkpoint_and_crash}
    for number, (death, die) in enumerate(deaths.items()):
        made = {}
        for protocol in protocols.ALL:
            for level in LEVELS:
                for end in ENDS:
                    table = f"t{number}_{len(made)}"
                    fresh(cluster, table, protocol=protocol)
                    must_prepare(cluster, table, WRITES.format(table), level)
                    # It has locked partitions, or read them.
                    dozes = level == "SERIALIZABLE" or protocol == "partcc"
                    made[table] = (f"in doubt, {death}, {protocol}, {level}, {end}", end, dozes)
        die(cluster)
        equal(f"in doubt, {death}: all are prepared", done(cluster, "SELECT count(*) FROM pg_prepared_xacts"), [(len(made),)])
        for turn, (table, (name, end, dozes)) in enumerate(made.items()):
            if turn % 3:
                # `recovered_prepared` has more of these.
                equal(f"{name}: a reader sees the old rows", rows(cluster, table), OLD)
                check(f"{name}: a writer of a row waits", waits(cluster, f"UPDATE {table} SET v = 5 WHERE id = 1"))
                equal(f"{name}: does a writer of another row wait?", waits(cluster, f"UPDATE {table} SET v = 0 WHERE id = 7"), dozes)
            done(cluster, f"{end} PREPARED '{table}'")
            equal(f"{name}: its rows", rows(cluster, table), NEW if end == "COMMIT" else OLD)
            equal(f"{name}: by the other index", done(cluster, f"SELECT id FROM {table} WHERE u = 30"), [(30,)] if end == "COMMIT" else [])
            equal(f"{name}: its keys", attempt(cluster, f"INSERT INTO {table} VALUES (30, 2, 31)"), "23505" if end == "COMMIT" else None)
            equal(f"{name}: nothing is locked", attempt(cluster, f"UPDATE {table} SET v = v + 10 WHERE id IN (1, 3) RETURNING id"), [(1,), (3,)])
        crash(cluster)
        for table, (name, end, _) in made.items():
            equal(f"{name}: its rows after another crash", rows(cluster, table), [(1, 11), (30, 1)] if end == "COMMIT" else [(1, 10), (2, 0), (30, 2)])


def finished_before(cluster):
    """COMMIT PREPARED in the life of the server that has prepared, and then each death."""
    for number, die in enumerate((crash, restart, checkpoint_and_crash)):
        for end in ENDS:
            for early in (True, False):
                table = f"f{number}_{end}_{early}"
                fresh(cluster, table)
                must_prepare(cluster, table, WRITES.format(table), "SERIALIZABLE")
                if early:
                    done(cluster, "CHECKPOINT")
                equal(f"in doubt: {table}: others see the old rows", rows(cluster, table), OLD)
                done(cluster, f"{end} PREPARED '{table}'")
                wanted = NEW if end == "COMMIT" else OLD
                equal(f"in doubt: {table}: finished at once", rows(cluster, table), wanted)
                die(cluster)
                equal(f"in doubt: {table}: finished, and the server died", rows(cluster, table), wanted)


# What waits gets 57014: NOWAIT has the code of a lock_timeout.
PATIENT = "-c lock_timeout=0 -c statement_timeout=2s"


def dozing(cluster, death):
    """NOWAIT and SKIP LOCKED do not wait for the end of what keeps unknown rows of a table. One
    that keeps such of one table keeps only what it has written of another."""
    for lock in ("UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"):
        select = f"SELECT id FROM guarded WHERE id IN (1, 9) FOR {lock}"
        equal(f"in doubt, {death}: it dozes, {lock} NOWAIT", attempt(cluster, select + " NOWAIT", PATIENT), "55P03")
        for level in LEVELS:
            skips = f"BEGIN ISOLATION LEVEL {level}; {select} SKIP LOCKED"
            equal(f"in doubt, {death}: it dozes, {level}, {lock} SKIP LOCKED", attempt(cluster, skips, PATIENT), [])
        check(f"in doubt, {death}: it dozes, {lock}", waits(cluster, select))
    for policy in ("NOWAIT", "SKIP LOCKED", ""):
        equal(f"in doubt, {death}: it dozes, no row to lock, {policy}", attempt(cluster, f"SELECT id FROM guarded WHERE id = 99 FOR UPDATE {policy}", PATIENT), [])
    check(f"in doubt, {death}: a range that was read", waits(cluster, "UPDATE ranged SET v = 1 WHERE id = 3"))
    equal(f"in doubt, {death}: beside a range that was read", attempt(cluster, "UPDATE beside SET v = 0 WHERE id = 2 RETURNING id", PATIENT), [(2,)])
    check(f"in doubt, {death}: beside a range that was read, its row", waits(cluster, "UPDATE beside SET v = 2 WHERE id = 1"))


def locks(cluster):
    """Row locks without a write, foreign keys, and guards."""
    fresh(cluster, "parent", "shared", "guarded", "seen", "written", "twofold", "ranged", "beside")
    session = cluster.connect()
    create_table(session, "child", "id int PRIMARY KEY, p int REFERENCES parent")
    create_table(session, "of_both", "id int PRIMARY KEY, p int REFERENCES twofold")
    session.close()
    must_prepare(cluster, "rows and keys", "UPDATE twofold SET v = 1 WHERE id = 1; INSERT INTO of_both VALUES (1, 3)")
    must_prepare(cluster, "key", "INSERT INTO child VALUES (1, 3)")
    must_prepare(cluster, "share", "SAVEPOINT s; SELECT FROM shared WHERE id = 1 FOR SHARE; RELEASE s; SELECT v FROM seen")
    must_prepare(cluster, "guard", "SAVEPOINT s; SELECT v FROM guarded WHERE id = 1; ROLLBACK TO s; UPDATE written SET v = 1 WHERE id = 1", "SERIALIZABLE")
    must_prepare(cluster, "range", "SELECT count(*) FROM mixedcc.range_scan(NULL::ranged, 3, 4); UPDATE beside SET v = 1 WHERE id = 1")
    for death, die in (("a crash", crash), ("a clean restart", restart)):
        die(cluster)
        dozing(cluster, death)
        for sql in ("DELETE FROM parent WHERE id = 3", "SELECT FROM parent WHERE id = 3 FOR UPDATE", "UPDATE parent SET id = 99 WHERE id = 3",
                    "INSERT INTO parent VALUES (3, 0, 99) ON CONFLICT (id) DO UPDATE SET id = 99"):
            check(f"in doubt, {death}: a key that a foreign key names: {sql}", waits(cluster, sql))
        for sql in ("UPDATE parent SET v = v + 1 WHERE id = 3", "INSERT INTO parent VALUES (70, 0, 70)", "SELECT FROM parent WHERE id = 4 FOR NO KEY UPDATE",
                    "INSERT INTO child VALUES (2, 3)", "DELETE FROM child WHERE id = 2"):
            check(f"in doubt, {death}: what leaves the key: {sql}", attempt(cluster, f"BEGIN; {sql}; ROLLBACK") is None)
        check(f"in doubt, {death}: a row that is locked FOR SHARE", waits(cluster, "UPDATE shared SET v = 1 WHERE id = 1"))
        check(f"in doubt, {death}: what a SERIALIZABLE transaction has read", waits(cluster, "UPDATE guarded SET v = 1 WHERE id = 1"))
        equal(f"in doubt, {death}: what READ COMMITTED has read", attempt(cluster, "UPDATE seen SET v = v + 1 WHERE id = 1 RETURNING id"), [(1,)])
        equal(f"in doubt, {death}: a key, NOWAIT", attempt(cluster, "SELECT FROM parent WHERE id = 3 FOR UPDATE NOWAIT"), "55P03")
        equal(f"in doubt, {death}: a key, SKIP LOCKED", attempt(cluster, "SELECT id FROM parent WHERE id IN (3, 4) FOR UPDATE SKIP LOCKED"), [])
        for sql in ("UPDATE twofold SET v = 2 WHERE id = 1", "DELETE FROM twofold WHERE id = 3"):
            check(f"in doubt, {death}: rows and keys of one table: {sql}", waits(cluster, sql))
        equal(f"in doubt, {death}: the rest of it", attempt(cluster, "UPDATE twofold SET v = 0 WHERE id = 3 RETURNING v"), [(0,)])
        for sql in ("MERGE INTO guarded g USING (VALUES (70)) s (id) ON g.id = s.id WHEN NOT MATCHED THEN INSERT VALUES (s.id, 0, 70)",
                    "MERGE INTO guarded g USING (VALUES (1)) s (id) ON g.id = s.id WHEN MATCHED THEN DELETE",
                    "WITH d AS (DELETE FROM guarded WHERE id = 9 RETURNING id) SELECT * FROM d",
                    "BEGIN; DECLARE c CURSOR FOR SELECT * FROM guarded; FETCH c; UPDATE guarded SET v = 1 WHERE CURRENT OF c",
                    "INSERT INTO guarded VALUES (70, 0, 70)", "DELETE FROM guarded WHERE id = 9", "SELECT FROM guarded WHERE id = 9 FOR KEY SHARE",
                    "COPY guarded (id) FROM PROGRAM 'echo 70'", "TRUNCATE guarded", "INSERT INTO guarded VALUES (1, 0, 1) ON CONFLICT (id) DO UPDATE SET v = 1"):
            check(f"in doubt, {death}: {sql}", waits(cluster, sql))
        for level in LEVELS:
            options = f"-c default_transaction_isolation={level.lower().replace(' ', chr(92) + ' ')}"
            equal(f"in doubt, {death}: {level} reads it", attempt(cluster, "SELECT count(*), sum(v) FROM guarded", options), [(20, 0)])
        equal(f"in doubt, {death}: VACUUM", attempt(cluster, "VACUUM written"), None)
    done(cluster, "COMMIT PREPARED 'key'")
    equal("in doubt: other keys, after it", attempt(cluster, "BEGIN; DELETE FROM parent WHERE id = 4; ROLLBACK"), None)
    equal("in doubt: the foreign key, after it", attempt(cluster, "DELETE FROM parent WHERE id = 3"), "23503")
    equal("in doubt: the child, after it", done(cluster, "SELECT * FROM child"), [(1, 3)])
    done(cluster, "COMMIT PREPARED 'rows and keys'")
    equal("in doubt: rows and keys, after it", (attempt(cluster, "SELECT v FROM twofold WHERE id = 1"), attempt(cluster, "DELETE FROM twofold WHERE id = 3"),
          attempt(cluster, "DELETE FROM twofold WHERE id = 4 RETURNING id")), ([(1,)], "23503", [(4,)]))
    done(cluster, "ROLLBACK PREPARED 'share'")
    equal("in doubt: FOR SHARE, after it", attempt(cluster, "UPDATE shared SET v = 1 WHERE id = 1 RETURNING v"), [(1,)])
    done(cluster, "COMMIT PREPARED 'range'")
    done(cluster, "COMMIT PREPARED 'guard'")
    for policy in ("NOWAIT", "SKIP LOCKED"):
        equal(f"in doubt: the guard, after it, {policy}", attempt(cluster, f"SELECT id FROM guarded WHERE id IN (1, 9) FOR UPDATE {policy}"), [(1,), (9,)])
    equal("in doubt: the guard, after it", attempt(cluster, "UPDATE guarded SET v = 1 WHERE id = 1 RETURNING v"), [(1,)])
    equal("in doubt: the row beside the guard", done(cluster, "SELECT v FROM written WHERE id = 1"), [(1,)])


def waiters(cluster):
    """Readers do not wait. Writers that wait go on when it is finished, and see all of it."""
    for end in ENDS:
        table = f"w_{end}"
        fresh(cluster, table)
        must_prepare(cluster, "w", WRITES.format(table), "SERIALIZABLE")
        crash(cluster)
        writer = Waiter(cluster, f"UPDATE {table} SET v = v + 1 WHERE id = 1 RETURNING v")
        repeatable = Waiter(cluster, f"BEGIN ISOLATION LEVEL REPEATABLE READ; UPDATE {table} SET v = v + 1 WHERE id = 1; COMMIT")
        for one in (writer, repeatable):
            one.must_wait()
        equal(f"in doubt: a reader beside writers that wait, {end}", rows(cluster, table), OLD)
        done(cluster, f"{end} PREPARED 'w'")
        wrote = end == "COMMIT"
        found = repeatable.result()
        check(f"in doubt: a REPEATABLE READ writer that has waited, {end}", found in (None, "40001"), found)
        base = 1 if wrote else 0
        check(f"in doubt: a writer that has waited, {end}", writer.result() in [[(base + n,)] for n in range(1, 2 if found else 3)])
        equal(f"in doubt: both writers, {end}", rows(cluster, table)[0], (1, base + (1 if found else 2)))
        equal(f"in doubt: a reader after all, {end}", rows(cluster, table)[1:], (NEW if wrote else OLD)[1:])


class Waiter:
    """Statements in a session of their own, which may wait."""

    def __init__(self, cluster, sql):
        self.cluster, self.found = cluster, None
        self.session = cluster.connect(options="-c lock_timeout=60s")
        self.pid = value(self.session, "SELECT pg_backend_pid()")
        self.thread = threading.Thread(target=self.run, args=(sql,))
        self.thread.start()

    def run(self, sql):
        try:
            self.found = query(self.session, sql)
        except psycopg2.Error as error:
            self.found = error.pgcode

    def must_wait(self):
        waits_now = "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        must_come(lambda: self.cluster.ask(waits_now, (self.pid,)), 60)

    def result(self):
        self.thread.join()
        self.session.close()
        return self.found


def skew(cluster):
    """What it has read at SERIALIZABLE stays so behind a crash: a transaction that has missed what
    it has written does not change that and commit, if it commits."""
    for protocol in protocols.ALL:
        for end in ENDS:
            read, wrote = f"read_{protocol}_{end}", f"wrote_{protocol}_{end}"
            fresh(cluster, read, wrote, protocol=protocol)
            must_prepare(cluster, "p", f"SELECT v FROM {read} WHERE id = 1; UPDATE {wrote} SET v = 1 WHERE id = 1; INSERT INTO {wrote} VALUES (30, 1, 30)", "SERIALIZABLE")
            crash(cluster)
            others = [Waiter(cluster, f"BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT {look} FROM {wrote}; {change}; COMMIT")
                      for look, change in (("v", f"UPDATE {read} SET v = 1 WHERE id = 1"), ("count(*)", f"DELETE FROM {read} WHERE id = 9"),
                                           ("sum(v)", f"INSERT INTO {read} VALUES (40, 1, 40)"))]
            for one in others:
                one.must_wait()
            done(cluster, f"{end} PREPARED 'p'")
            found = [one.result() for one in others]
            changed = done(cluster, f"SELECT count(*) FROM {read} WHERE v = 1 OR id = 40"), done(cluster, f"SELECT count(*) FROM {read} WHERE id = 9")
            # Where they lock what they read, they have waited before they looked.
            may = (None, "40001") if end == "ROLLBACK" or protocol == "2pl" else ("40001",)
            check(f"in doubt, {protocol}, {end}: no write skew", all(one in may for one in found), (found, changed))


def undone(cluster):
    """PREPARE that logs and then fails: nothing of it counts, whatever happens."""
    fresh(cluster, "u")
    must_prepare(cluster, "used", "UPDATE u SET v = 3 WHERE id = 3")
    equal("in doubt: a GID in use", prepare(cluster, "used", WRITES.format("u")), "42710")
    equal("in doubt: its rows are undone", rows(cluster, "u"), OLD)
    equal("in doubt: its rows are free", attempt(cluster, "UPDATE u SET v = 0 WHERE id = 1 RETURNING id"), [(1,)])
    done(cluster, "CHECKPOINT")
    equal("in doubt: a GID in use, again", prepare(cluster, "used", WRITES.format("u")), "42710")
    crash(cluster)
    done(cluster, "COMMIT PREPARED 'used'")
    equal("in doubt: undone, after a crash", rows(cluster, "u"), OLD)
    equal("in doubt: the one that has the GID", done(cluster, "SELECT v FROM u WHERE id = 3"), [(3,)])
    must_prepare(cluster, "s", "SAVEPOINT a; UPDATE u SET v = 1 WHERE id = 1; SAVEPOINT b; DELETE FROM u WHERE id = 2; ROLLBACK TO b;"
                          "UPDATE u SET v = 4 WHERE id = 1; INSERT INTO u VALUES (30, 0, 30); DELETE FROM u WHERE id = 30; RELEASE a")
    crash(cluster)
    done(cluster, "COMMIT PREPARED 's'")
    equal("in doubt: savepoints", rows(cluster, "u"), [(1, 4), (2, 0)])
    cluster.control("stop", "-m", "fast")
    cluster.start(max_prepared_transactions="0")
    for _ in range(3):
        equal("in doubt: none are allowed", prepare(cluster, "p", WRITES.format("u")), "55000")
        equal("in doubt: none are allowed, and its rows are free", attempt(cluster, "UPDATE u SET v = 4 WHERE id = 1 RETURNING v"), [(4,)])
    crash(cluster)
    equal("in doubt: none were allowed", rows(cluster, "u"), [(1, 4), (2, 0)])
    cluster.control("stop", "-m", "fast")
    cluster.start(max_prepared_transactions="40")


def long_rows(cluster):
    """Rows in pieces, several times imaged as pending ones."""
    for end in ENDS:
        table = f"long_{end}"
        session = cluster.connect()
        create_table(session, table, "id int PRIMARY KEY, v text")
        keep_long(session, table, "v")
        query(session, f"INSERT INTO {table} SELECT g, {LONG.format('g')} FROM generate_series(1, 4) g")
        session.close()
        must_prepare(cluster, "long", f"UPDATE {table} SET v = {LONG.format('id + 10')} WHERE id < 3; INSERT INTO {table} SELECT 9, {LONG.format('9')}")
        for die in (checkpoint_and_crash, crash, restart):
            die(cluster)
        done(cluster, f"{end} PREPARED 'long'")
        wrote = end == "COMMIT"
        wanted = [(1, 11 if wrote else 1), (2, 12 if wrote else 2), (3, 3), (4, 4)] + ([(9, 9)] if wrote else [])
        found = done(cluster, f"SELECT t.id, n FROM {table} t JOIN generate_series(1, 20) n ON v = {LONG.format('n')} ORDER BY 1")
        equal(f"in doubt: long rows, {end}", found, wanted)
        equal(f"in doubt: the number of long rows, {end}", done(cluster, f"SELECT count(*) FROM {table}"), [(len(wanted),)])


def vacuum(cluster):
    """VACUUM gives the commit log up behind a transaction that was prepared, imaged and finished.
    Then a crash: its rows are not looked up any more."""
    for end in ENDS:
        table = f"v_{end}"
        fresh(cluster, table)
        done(cluster, "CHECKPOINT")
        must_prepare(cluster, "v", WRITES.format(table))
        done(cluster, "CHECKPOINT")  # images have the pending entries
        xid = int(cluster.ask("SELECT transaction::text FROM pg_prepared_xacts WHERE gid = 'v'"))
        done(cluster, f"VACUUM (FREEZE) {table}")
        horizon = f"SELECT relfrozenxid::text FROM pg_class WHERE relname = lower('{table}')"
        check(f"in doubt: VACUUM keeps the id of a prepared transaction, {end}", int(cluster.ask(horizon)) <= xid)
        session = cluster.connect()
        query(session, f"SELECT FROM {table}")  # from now on the session has the fault, if there is one
        query(session, f"{end} PREPARED 'v'")
        session.close()
        for _ in range(3):
            cluster.ask("SELECT pg_current_xact_id()::text")
        done(cluster, f"VACUUM (FREEZE) {table}")
        done(cluster, "CHECKPOINT")  # what VACUUM has told the catalog outlives the crash
        crash(cluster)
        premise(f"in doubt: VACUUM passes it, {end}", int(cluster.ask(horizon)) > xid)
        equal(f"in doubt: its rows behind VACUUM and a crash, {end}", rows(cluster, table), NEW if end == "COMMIT" else OLD)


def switches(cluster):
    """A switch of protocols, and early ends, beside an abandoned one."""
    fresh(cluster, "switched", protocol="2pl")
    must_prepare(cluster, "p", WRITES.format("switched"), "SERIALIZABLE")
    done(cluster, "SELECT mixedcc.set_protocol('switched'::regclass, 'occ')")
    crash(cluster)
    equal("in doubt: a switch can be asked for", len(done(cluster, "SELECT mixedcc.set_protocol('switched'::regclass, 'partcc')")), 1)
    equal("in doubt: the rows before a switch", rows(cluster, "switched"), OLD)
    check("in doubt: the switch waits", waits(cluster, "UPDATE switched SET v = 1 WHERE id = 9"))
    done(cluster, "COMMIT PREPARED 'p'")
    equal("in doubt: the rows behind a switch", rows(cluster, "switched"), NEW)
    done(cluster, "SELECT mixedcc.set_protocol('switched'::regclass, 'partcc'), mixedcc.await_switches('switched'::regclass)")
    equal("in doubt: the rows behind another switch", rows(cluster, "switched"), NEW)


def gate(cluster):
    """A PREPARE that waits for a row does not keep the companion from closing the gate."""
    fresh(cluster, "gated")
    holder = cluster.connect()
    query(holder, "BEGIN; UPDATE gated SET v = 1 WHERE id = 1")
    other = Waiter(cluster, "BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE gated SET v = 2 WHERE id = 1; PREPARE TRANSACTION 'g'")
    other.must_wait()
    companion = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'mixedcc companion'"
    before = cluster.ask(companion)
    cluster.ask("SELECT pg_terminate_backend(%s)", (before,))
    came = wait_until(lambda: done(cluster, companion) not in ([], [(before,)]), 20)
    check("in doubt: the companion ends and comes again beside a PREPARE that waits", came)
    other.must_wait()
    query(holder, "ROLLBACK")
    equal("in doubt: the PREPARE that has waited", other.result(), None)
    done(cluster, "COMMIT PREPARED 'g'")
    equal("in doubt: its row", rows(cluster, "gated"), [(1, 2), (2, 0)])
    holder.close()


def loaders(cluster):
    """Loaders pass over a table that sleeps, and load the others. Autovacuum does not wait."""
    fresh(cluster, "kept_one", "free_one", "defined")
    must_prepare(cluster, "p", f"{WRITES.format('kept_one')}; CREATE INDEX ON defined (v)", "SERIALIZABLE")
    cluster.crash()
    cluster.start(**{"mixedcc.load_workers": "2", "autovacuum": "on", "autovacuum_naptime": "1", "autovacuum_vacuum_threshold": "0",
                     "autovacuum_vacuum_insert_threshold": "0", "autovacuum_analyze_threshold": "0", "log_min_messages": "log"})
    must_come(lambda: cluster.ask("SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type LIKE 'mixedcc load%'"), 60)
    check("in doubt: no loader failed", "mixedcc could not load" not in cluster.log(), cluster.log()[-2000:])
    kept = """SELECT classid::regclass::text, objsubid FROM pg_locks JOIN pg_database d ON d.oid = database
        WHERE locktype = 'userlock' AND datname = current_database() ORDER BY 2"""
    equal("in doubt: pg_locks says which table is kept", done(cluster, kept), [("defined", 13), ("kept_one", 16)])
    check("in doubt: a table that sleeps", waits(cluster, "SELECT * FROM defined"))
    equal("in doubt: readers of one that is kept", rows(cluster, "kept_one"), OLD)
    check("in doubt: writers of one that is kept", waits(cluster, "UPDATE kept_one SET v = 1 WHERE id = 9"))
    equal("in doubt: another one does not", attempt(cluster, "SELECT count(*) FROM free_one"), [(20,)])
    equal("in doubt: no process waits for it", done(cluster, "SELECT backend_type FROM pg_stat_activity WHERE wait_event_type = 'Lock'"), [])
    done(cluster, "COMMIT PREPARED 'p'")
    equal("in doubt: the table that was kept", rows(cluster, "kept_one"), NEW)
    restart_with = {"mixedcc.load_workers": "0", "autovacuum": "off", "log_min_messages": "warning"}
    cluster.control("stop", "-m", "fast")
    cluster.start(**restart_with)


def copies(cluster):
    """A standby that is promoted, and recovery to a point between PREPARE and its end."""
    fresh(cluster, "a", "b", "c")
    standby, point = Cluster.copy("-R", source=cluster), Cluster.copy("-R", source=cluster)
    try:
        for server in (standby, point):
            server.configure(fsync="off", hot_standby="on", max_prepared_transactions="40")
        standby.start()
        must_prepare(cluster, "a", WRITES.format("a"), "SERIALIZABLE")
        done(cluster, "CHECKPOINT")
        must_prepare(cluster, "b", WRITES.format("b"))
        must_prepare(cluster, "c", WRITES.format("c"))
        done(cluster, "COMMIT PREPARED 'c'")
        done(cluster, "SELECT pg_create_restore_point('here')")
        must_come(lambda: standby.replays(cluster), 60)
        standby.control("restart", "-m", "fast", "-o", f"-c unix_socket_directories={standby.home}", "-l", standby.home + "/log")
        must_come(lambda: standby.replays(cluster), 60)
        equal("in doubt: a standby shows what was before", rows(standby, "a"), OLD)
        standby.control("promote")
        must_come(standby.recovered, 60)
        judge_copy("a promoted standby", standby)
        done(cluster, "COMMIT PREPARED 'a'")
        done(cluster, "SELECT pg_switch_wal()")
        point.start(recovery_target_action="promote", recovery_target_name="here")
        must_come(point.recovered, 60)
        judge_copy("recovery to a point", point)
    finally:
        standby.remove()
        point.remove()
    done(cluster, "ROLLBACK PREPARED 'b'")
    equal("in doubt: the primary goes on", [rows(cluster, table) for table in "abc"], [NEW, OLD, NEW])


def judge_copy(name, server):
    equal(f"in doubt: {name}: what was committed", rows(server, "c"), NEW)
    equal(f"in doubt: {name}: a reader sees the old rows", rows(server, "a"), OLD)
    check(f"in doubt: {name}: a writer waits", waits(server, "UPDATE a SET v = 1 WHERE id = 9"))
    done(server, "COMMIT PREPARED 'a'")
    equal(f"in doubt: {name}: committed", rows(server, "a"), NEW)
    crash(server)
    done(server, "ROLLBACK PREPARED 'b'")
    equal(f"in doubt: {name}: rolled back", rows(server, "b"), OLD)
    equal(f"in doubt: {name}: committed, after a crash", rows(server, "a"), NEW)


def random_life(cluster, seed=7):
    """Transactions that are prepared, finished, and survive deaths, against a model."""
    rng = random.Random(seed)
    tables = [f"r{n}" for n in range(4)]
    for table, protocol in zip(tables, ("partcc", "occ", "2pl", "occ")):
        fresh(cluster, table, protocol=protocol)
    model, open_ones, number = {(t, i): 0 for t in tables for i in range(1, 21)}, {}, 0
    keepers = set()  # Those of before the last death that keep the table of `partcc` from writers.
    for _ in range(160):
        deed = rng.choices(("prepare", "finish", "plain", "checkpoint", "vacuum", "die"), (30, 22, 30, 5, 4, 9))[0]
        busy = {place for work in open_ones.values() for place in work}
        kept = {"r0"} if keepers & set(open_ones) else set()
        free = [place for place in model if place not in busy and place[0] not in kept]
        if deed in ("prepare", "plain") and free:
            number += 1
            work = {place: number for place in rng.sample(free, min(len(free), rng.randint(1, 4)))}
            sql = "; ".join(f"UPDATE {t} SET v = {v} WHERE id = {i}" for (t, i), v in work.items())
            end = "COMMIT" if deed == "plain" else f"PREPARE TRANSACTION 'r{number}'"
            came = attempt(cluster, f"BEGIN ISOLATION LEVEL {rng.choice(LEVELS[:2])}; {sql}; {end}")
            if came == "55P03" and busy and "r0" in {t for t, _ in work}:
                continue  # this protocol locks whole partitions
            if came is not None:
                equal(f"in doubt: a random life: {sql}; {end}", came, None)
                return
            if deed == "plain":
                model.update(work)
            else:
                open_ones[f"r{number}"] = work
        elif deed == "finish" and open_ones:
            gid = rng.choice(sorted(open_ones))
            end = rng.choice(ENDS)
            done(cluster, f"{end} PREPARED '{gid}'")
            work = open_ones.pop(gid)
            if end == "COMMIT":
                model.update(work)
        elif deed == "checkpoint":
            done(cluster, "CHECKPOINT")
        elif deed == "vacuum":
            for table in tables:
                done(cluster, f"VACUUM (FREEZE) {table}")
        elif deed == "die":
            keepers = {gid for gid, work in open_ones.items() if any(t == "r0" for t, _ in work)}
            rng.choice((crash, restart, crash_twice))(cluster)
            equal(f"in doubt: a random life: prepared at {number}", {g for (g,) in done(cluster, "SELECT gid FROM pg_prepared_xacts")}, set(open_ones))
        for table in rng.sample(tables, 1):
            found = {(table, i): v for i, v in done(cluster, f"SELECT id, v FROM {table}")}
            if found != {place: v for place, v in model.items() if place[0] == table}:
                equal(f"in doubt: a random life: {table} at {number}", found, {place: v for place, v in model.items() if place[0] == table})
                return
    for gid in open_ones:
        done(cluster, f"ROLLBACK PREPARED '{gid}'")
    crash(cluster)
    found = {(t, i): v for t in tables for i, v in done(cluster, f"SELECT id, v FROM {t}")}
    equal("in doubt: the end of a random life", found, model)


TESTS = (outcomes, finished_before, locks, waiters, skew, undone, long_rows, vacuum, switches, gate, loaders, copies, random_life)


FAULTS = {"prepared_stays_pending": (vacuum, "in doubt: its rows behind VACUUM and a crash, COMMIT"),
          "prepared_window_early": (gate, "in doubt: the companion ends and comes again beside a PREPARE that waits"),
          "not_asleep": (locks, "in doubt, a crash: what a SERIALIZABLE transaction has read"),
          "dozing_forgotten": (locks, "in doubt, a clean restart: INSERT INTO guarded VALUES (70, 0, 70)"),
          "keys_forgotten": (locks, "in doubt, a crash: a key that a foreign key names: UPDATE parent SET id = 99 WHERE id = 3")}


if __name__ == "__main__":
    run_all(TESTS, FAULTS)
