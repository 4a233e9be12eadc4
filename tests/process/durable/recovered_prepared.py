#!/usr/bin/python3
"""Tables that prepared transactions have written, after the server has died, stopped, or followed
another one: they can be used at once. Readers see the old rows, writers wait for the rows and keys
of the prepared transactions only, and the end publishes or undoes all of it."""

import random
import threading

from lib import protocols
from lib.clusters import Cluster
from lib.common import check, create_table, equal, keep_long, must_come, query, value
from lib.prepared import ENDS, attempt, begin, checkpoint_and_crash, crash, done, must_prepare, restart, run, run_all

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
LONG = "repeat(md5(({0})::text), 900)"  # a row in pieces
# An update in place, a delete, an insert, one of a key, one of an indexed column, what a savepoint
# undoes, and rows in pieces: an update of one, and a new one.
WRITES = """UPDATE {0} SET v = 1 WHERE id = 1; DELETE FROM {0} WHERE id = 2; INSERT INTO {0} VALUES (30, 1, 30, '');
    UPDATE {0} SET id = 40 WHERE id = 3; UPDATE {0} SET u = 50 WHERE id = 4;
    SAVEPOINT a; UPDATE {0} SET v = 7 WHERE id = 6; INSERT INTO {0} VALUES (60, 1, 60, ''); ROLLBACK TO a;
    UPDATE {0} SET t = """ + LONG.format(1) + """ WHERE id = 5; INSERT INTO {0} VALUES (31, 1, 31, """ + LONG.format(2) + ")"
TOUCHED = "(1, 2, 3, 4, 5, 6, 30, 31, 40, 60)"
OLD = [(1, 0, 1, 0), (2, 0, 2, 0), (3, 0, 3, 0), (4, 0, 4, 0), (5, 0, 5, 0), (6, 0, 6, 0)]
NEW = [(1, 1, 1, 0), (4, 0, 50, 0), (5, 0, 5, 28800), (6, 0, 6, 0), (30, 1, 30, 0), (31, 1, 31, 28800), (40, 0, 3, 0)]


def fresh(cluster, *names, protocol="occ", more="", unique="UNIQUE"):
    session = cluster.connect()
    for name in names:
        create_table(session, name, f"id int PRIMARY KEY, v int, u int {unique}, t text", protocol=protocol, partitions=4)
        keep_long(session, name, "t")
        query(session, f"INSERT INTO {name} SELECT g, 0, g, '' FROM generate_series(1, 20) g {more}")
    session.close()


SHOWN = "SELECT id, v, u, length(t) FROM {0} WHERE id IN " + TOUCHED + " ORDER BY id"


def rows(cluster, table, options=""):
    return attempt(cluster, SHOWN.format(table), "-c lock_timeout=150ms " + options)


def crash_twice(cluster):
    """The second end finds what the first load has written."""
    crash(cluster)
    for (table,) in done(cluster, "SELECT relname FROM pg_class JOIN pg_am a ON a.oid = relam AND amname = 'mixedcc'"):
        attempt(cluster, f"SELECT FROM {table}")
    crash(cluster)


DEATHS = {"a crash": crash, "a clean restart": restart, "two crashes": crash_twice, "a checkpoint and a crash": checkpoint_and_crash}


class Waiter:
    """Statements in a session of their own, which must wait."""

    def __init__(self, cluster, sql, options="-c lock_timeout=60s"):
        self.cluster, self.found = cluster, None
        self.session = cluster.connect(options=options)
        self.pid = value(self.session, "SELECT pg_backend_pid()")
        self.thread = threading.Thread(target=self.run, args=(sql,))
        self.thread.start()
        waits_now = "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        must_come(lambda: self.cluster.ask(waits_now, (self.pid,)) or not self.thread.is_alive(), 60)

    def run(self, sql):
        self.found = run(self.session, sql)

    def waits(self):
        return self.thread.is_alive()

    def result(self):
        self.thread.join()
        self.session.close()
        return self.found


def looks(cluster, name, table, waits_to_read):
    """What others see and may do while it is prepared."""
    for level in LEVELS:
        options = f"-c default_transaction_isolation={level.lower().replace(' ', chr(92) + ' ')}"
        wanted = "55P03" if level == "SERIALIZABLE" and waits_to_read else OLD
        equal(f"{name}: {level} sees the old rows", rows(cluster, table, options), wanted)
        equal(f"{name}: {level}, by the keys", rows(cluster, table, options + " -c enable_seqscan=off"), wanted)
    # Of the locks that it has had there, those of the range are not in the files.
    equal(f"{name}: a range with rows of its own only", attempt(cluster, f"SELECT id FROM {table} WHERE id BETWEEN 28 AND 35",
          "-c default_transaction_isolation=serializable -c enable_seqscan=off -c lock_timeout=150ms"), "55P03" if waits_to_read else [])
    equal(f"{name}: by the other index", attempt(cluster, f"SELECT id FROM {table} WHERE u IN (3, 4, 30, 50) ORDER BY 1"), [(3,), (4,)])
    equal(f"{name}: other rows", attempt(cluster, f"UPDATE {table} SET v = v + 1 WHERE id = 7 RETURNING v"), [(1,)])
    equal(f"{name}: other keys", attempt(cluster, f"INSERT INTO {table} VALUES (70, 0, 70, ''); DELETE FROM {table} WHERE id IN (8, 70); UPDATE {table} SET v = 0 WHERE id = 7"), None)
    for sql in ("UPDATE {0} SET v = 5 WHERE id = 1", "DELETE FROM {0} WHERE id = 2", "SELECT FROM {0} WHERE id = 3 FOR UPDATE", "UPDATE {0} SET v = 5 WHERE id = 4",
                "UPDATE {0} SET t = '' WHERE id = 5", "INSERT INTO {0} VALUES (30, 0, 99, '')", "INSERT INTO {0} VALUES (99, 0, 30, '')",
                "INSERT INTO {0} VALUES (40, 0, 99, '')", "INSERT INTO {0} VALUES (2, 0, 99, '')", "INSERT INTO {0} VALUES (99, 0, 2, '')"):
        equal(f"{name}: {sql} waits", attempt(cluster, sql.format(table)), "55P03")
    equal(f"{name}: FOR KEY SHARE of a row whose key stays", attempt(cluster, f"SELECT id FROM {table} WHERE id = 1 FOR KEY SHARE"), [(1,)])
    equal(f"{name}: NOWAIT", attempt(cluster, f"SELECT FROM {table} WHERE id = 1 FOR UPDATE NOWAIT"), "55P03")
    equal(f"{name}: SKIP LOCKED", attempt(cluster, f"SELECT id FROM {table} WHERE id IN (1, 9) FOR UPDATE SKIP LOCKED"), [(9,)])


def dozes(cluster, name, table):
    """Others may read the table, and do nothing else there."""
    for level in LEVELS:
        options = f"-c default_transaction_isolation={level.lower().replace(' ', chr(92) + ' ')}"
        equal(f"{name}: {level} sees the old rows", rows(cluster, table, options), OLD)
        equal(f"{name}: {level}, by the keys", rows(cluster, table, options + " -c enable_seqscan=off"), OLD)
        for sql in ("UPDATE {0} SET v = 5 WHERE id = 7", "INSERT INTO {0} VALUES (70, 0, 70, '')", "SELECT FROM {0} WHERE id = 7 FOR KEY SHARE",
                    "PREPARE u(int) AS UPDATE {0} SET v = 5 WHERE id = $1; EXECUTE u(7)"):
            equal(f"{name}: {level}: {sql} waits", attempt(cluster, sql.format(table), options + " -c lock_timeout=150ms"), "55P03")


def outcomes(cluster):
    """Each protocol, level, end and death."""
    for number, (death, die) in enumerate(DEATHS.items()):
        made = {}
        for protocol in protocols.ALL:
            for level in LEVELS[:2]:
                for end in ENDS:
                    table = f"t{number}_{len(made)}"
                    fresh(cluster, table, protocol=protocol)
                    must_prepare(cluster, table, WRITES.format(table), level)
                    made[table] = (f"recovered, {death}, {protocol}, {level}, {end}", end, protocol)
        die(cluster)
        for turn, (table, (name, end, protocol)) in enumerate(made.items()):
            if turn % 4 < 3 and protocol != "partcc":
                looks(cluster, name, table, protocol == "2pl")
            elif turn % 4 < 3:
                # The lock of a partition stands for those of any rows: others only read.
                dozes(cluster, name, table)
        done(cluster, "CHECKPOINT")
        for turn, (table, (name, end, protocol)) in enumerate(made.items()):
            if turn % 2 and protocol != "partcc":
                done(cluster, f"VACUUM {table}")
            done(cluster, f"{end} PREPARED '{table}'")
            judge(cluster, name, table, end)
        crash(cluster)
        for table, (name, end, _) in made.items():
            judge(cluster, f"{name}, after another crash", table, end)
            done(cluster, f"DROP TABLE {table}")


def judge(cluster, name, table, end):
    wanted = NEW if end == "COMMIT" else OLD
    equal(f"{name}: its rows", rows(cluster, table), wanted)
    equal(f"{name}: by the keys", rows(cluster, table, "-c enable_seqscan=off"), wanted)
    ids = [(3,), (4,)] if end == "ROLLBACK" else [(4,), (30,), (40,)]
    equal(f"{name}: by the other index", attempt(cluster, f"SET enable_seqscan = off; SELECT id FROM {table} WHERE u IN (3, 4, 30, 50) ORDER BY 1"),
          ids)
    for key, other, there in ((30, 99, end == "COMMIT"), (99, 30, end == "COMMIT"), (2, 99, end == "ROLLBACK"), (3, 99, end == "ROLLBACK"), (40, 99, end == "COMMIT"), (99, 4, end == "ROLLBACK")):
        equal(f"{name}: the keys {key}, {other}", attempt(cluster, f"BEGIN; INSERT INTO {table} VALUES ({key}, 0, {other}, '')"), "23505" if there else None)
    equal(f"{name}: nothing is locked", attempt(cluster, f"BEGIN; UPDATE {table} SET v = v; UPDATE {table} SET u = -u; DELETE FROM {table}"), None)


def halves(cluster):
    """A transaction that has used one of its tables before the end, and another one after it."""
    begins = ("ISOLATION LEVEL REPEATABLE READ", "ISOLATION LEVEL SERIALIZABLE", "ISOLATION LEVEL SERIALIZABLE READ ONLY")
    for end in ENDS:
        for number in range(len(begins)):
            names = [f"{half}{number}_{end}" for half in ("ha", "hb", "hc")]
            fresh(cluster, *names)
            must_prepare(cluster, f"h{number}_{end}", "; ".join(f"UPDATE {n} SET v = 1 WHERE id = 1; DELETE FROM {n} WHERE id = 2; INSERT INTO {n} VALUES (30, 1, 30, '')" for n in names))
    crash(cluster)
    for end in ENDS:
        wrote = end == "COMMIT"
        for number, level in enumerate(begins):
            a, b, c = (f"{half}{number}_{end}" for half in ("ha", "hb", "hc"))
            name = f"recovered: one half after the {end}, {level}"
            look = "SELECT id, v FROM {0} WHERE id IN (1, 2, 30) ORDER BY 1"
            session = cluster.connect()
            old, new = [(1, 0), (2, 0)], [(1, 1), (30, 1)]
            equal(f"{name}: before it", run(session, f"BEGIN {level}; {look.format(a)}"), old)
            done(cluster, f"{end} PREPARED 'h{number}_{end}'")
            found = run(session, look.format(b))
            check(f"{name}: the other half", found == old or level.endswith("SERIALIZABLE") and wrote and found == "40001", found)
            session.close()
            for table in (a, b, c):
                equal(f"{name}: then {table}", attempt(cluster, look.format(table)), new if wrote else old)
                equal(f"{name}: {table} is free", attempt(cluster, f"BEGIN; UPDATE {table} SET v = v; DELETE FROM {table}"), None)
    crash(cluster)
    for end in ENDS:
        for number in range(len(begins)):
            for half in ("ha", "hb", "hc"):
                equal(f"recovered: {half}{number}, {end}, after another crash", attempt(cluster, f"SELECT id FROM {half}{number}_{end} WHERE id IN (2, 30)"), [(30,) if end == "COMMIT" else (2,)])


def waiters(cluster):
    """Writers that have waited come to the right end."""
    statements = {
        "a row": ("UPDATE {0} SET v = v + 1 WHERE id = 1 RETURNING v", [(2,)], [(1,)]),
        "a row with another key of an index": ("UPDATE {0} SET v = v + 1 WHERE id = 4 RETURNING v, u", [(1, 50)], [(1, 4)]),
        # The files do not tell where it went.
        "a row with another primary key": ("UPDATE {0} SET v = v + 1 WHERE id = 3 RETURNING v", "40001", [(1,)]),
        "a long row": ("SELECT length(t) FROM {0} WHERE id = 5 FOR UPDATE", [(28800,)], [(0,)]),
        "a key": ("INSERT INTO {0} VALUES (30, 0, 99, '')", "23505", None),
        "a key of an index": ("INSERT INTO {0} VALUES (99, 0, 50, '')", "23505", None),
        "a key that goes": ("INSERT INTO {0} VALUES (2, 0, 98, '')", None, "23505"),
    }
    for protocol in protocols.ALL:
        for end in ENDS:
            table = f"w_{protocol}_{end}"
            fresh(cluster, table, f"{table}_d", protocol=protocol)
            must_prepare(cluster, table, f"{WRITES.format(table)}; DELETE FROM {table}_d WHERE id = 1")
            crash(cluster)
            all_of = {name: Waiter(cluster, sql.format(table)) for name, (sql, _, _) in statements.items()}
            gone = Waiter(cluster, f"UPDATE {table}_d SET v = 1 WHERE id = 1 RETURNING v")
            repeatable = Waiter(cluster, f"BEGIN ISOLATION LEVEL REPEATABLE READ; UPDATE {table}_d SET v = v + 1 WHERE id = 1; COMMIT")
            for name, one in all_of.items():
                check(f"recovered, {protocol}, {end}: {name}: it waits", one.waits(), one.found)
            if protocol != "partcc":
                equal(f"recovered, {protocol}: pg_blocking_pids", cluster.ask("SELECT pg_blocking_pids(%s)", (all_of["a row"].pid,)), [0])
            done(cluster, f"{end} PREPARED '{table}'")
            for name, one in all_of.items():
                wanted = statements[name][1 if end == "COMMIT" else 2]
                # Its snapshot comes after the wait for the table.
                wanted = [] if protocol == "partcc" and wanted == "40001" else wanted
                equal(f"recovered, {protocol}, {end}: {name}", one.result(), wanted)
            equal(f"recovered, {protocol}, {end}: a row that is deleted", gone.result(), [] if end == "COMMIT" else [(1,)])
            check(f"recovered, {protocol}, {end}: a row that is deleted, REPEATABLE READ", repeatable.result() in (("40001",) if end == "COMMIT" and protocol != "partcc" else (None, "40001")))


def churn(cluster):
    """Rounds and VACUUM use blocks again, but not those of pending entries."""
    for end in ENDS:
        table = f"churn_{end}"
        fresh(cluster, table)
        done(cluster, f"INSERT INTO {table} SELECT g, 0, g, repeat('x', 500) FROM generate_series(1001, 1400) g; CHECKPOINT")
        must_prepare(cluster, table, WRITES.format(table))
        done(cluster, "CHECKPOINT")
        for life in range(3):
            crash(cluster)
            for turn in range(8):
                done(cluster, f"UPDATE {table} SET v = v + 1 WHERE id > 1000 AND id % 2 = {turn % 2} OR id IN (7, 9, 11)")
                if turn % 3 == 2:
                    done(cluster, f"DELETE FROM {table} WHERE id > 2000")
                    done(cluster, f"INSERT INTO {table} SELECT g, 0, g, repeat('y', 900) FROM generate_series(2001, 2100) g")
                    done(cluster, f"VACUUM {table}")
                done(cluster, "CHECKPOINT")
            equal(f"recovered: beside rounds, life {life}, {end}", rows(cluster, table), OLD)
        crash(cluster)
        if end == "COMMIT":
            attempt(cluster, f"SELECT FROM {table}")
        done(cluster, f"{end} PREPARED '{table}'")
        judge(cluster, f"recovered: behind rounds, {end}", table, end)
        done(cluster, "CHECKPOINT")
        done(cluster, f"VACUUM (FREEZE) {table}")
        crash(cluster)
        judge(cluster, f"recovered: behind VACUUM (FREEZE), {end}", table, end)


def many(cluster):
    """Several of them in one table, with new ones beside, over more than one start."""
    fresh(cluster, "many")
    model, open_ones, rng, number = {i: 0 for i in range(1, 21)}, {}, random.Random(3), 0
    for life in range(4):
        for _ in range(12):
            busy = {i for work in open_ones.values() for i in work}
            free = [i for i in model if i not in busy]
            if rng.random() < 0.55 and len(free) > 4:
                number += 1
                work = {i: number for i in rng.sample(free, 2)}
                must_prepare(cluster, f"m{number}", "; ".join(f"UPDATE many SET v = {v} WHERE id = {i}" for i, v in work.items()), LEVELS[number % 2])
                open_ones[f"m{number}"] = work
            elif open_ones and rng.random() < 0.6:
                gid = rng.choice(sorted(open_ones))
                end = rng.choice(ENDS)
                done(cluster, f"{end} PREPARED '{gid}'")
                work = open_ones.pop(gid)
                model.update(work if end == "COMMIT" else {})
            elif free:
                number += 1
                at = rng.choice(free)
                equal(f"recovered, many: a row beside them, {number}", attempt(cluster, f"UPDATE many SET v = {number} WHERE id = {at}"), None)
                model[at] = number
            equal(f"recovered, many: at {number}, life {life}", dict(done(cluster, "SELECT id, v FROM many")), model)
        rng.choice(list(DEATHS.values()))(cluster)
        equal(f"recovered, many: life {life}", dict(done(cluster, "SELECT id, v FROM many")), model)
    for gid, work in open_ones.items():
        done(cluster, f"COMMIT PREPARED '{gid}'")
        model.update(work)
    equal("recovered, many: the end", dict(done(cluster, "SELECT id, v FROM many")), model)
    drop_all(cluster, "many")


def drop_all(cluster, *names):
    for name in names:
        done(cluster, f"DROP TABLE {name}")


def beside_the_load(cluster):
    """It ends while a table is being loaded."""
    for end in ENDS:
        for used in (False, True):
            name = f"recovered: {end} beside a load{', with another table in memory' if used else ''}"
            fresh(cluster, "la", "lb")
            must_prepare(cluster, "l", f"{WRITES.format('la')}; {WRITES.format('lb')}")
            crash(cluster)
            if used:
                equal(f"{name}: the first table", rows(cluster, "la"), OLD)
            loads = threading.Thread(target=attempt, args=(cluster, "SELECT FROM lb", "-c mixedcc.kill_at=load-held:1:1500"))
            loads.start()
            must_come(lambda: cluster.ask("SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'userlock' AND objsubid = 10"), 30)
            done(cluster, f"{end} PREPARED 'l'")
            loads.join()
            for table in ("la", "lb"):
                judge(cluster, f"{name}: {table}", table, end)
            crash(cluster)
            for table in ("la", "lb"):
                judge(cluster, f"{name}: {table}, after another crash", table, end)
            drop_all(cluster, "la", "lb")


def promoted(cluster):
    """A standby that is promoted."""
    fresh(cluster, "pa", "pb")
    standby = Cluster.copy("-R", source=cluster)
    try:
        standby.start()
        for end, table in zip(ENDS, ("pa", "pb")):
            must_prepare(cluster, table, WRITES.format(table))
        check("recovered: the standby replays", standby.replays(cluster))
        standby.control("promote")
        must_come(lambda: standby.ask("SELECT NOT pg_is_in_recovery()"), 60)
        for end, table in zip(ENDS, ("pa", "pb")):
            looks(standby, f"recovered, promoted, {end}", table, False)
            done(standby, f"{end} PREPARED '{table}'")
            judge(standby, f"recovered, promoted, {end}", table, end)
    finally:
        standby.remove()
    for table in ("pa", "pb"):
        done(cluster, f"ROLLBACK PREPARED '{table}'")


def few_slots():
    """One prepared transaction at a time. One of before the start has ended, its place has another
    one, and a table of it is loaded only then."""
    cluster = begin(max_prepared_transactions="1")
    try:
        for end in ENDS:
            fresh(cluster, "fa", "fb")
            must_prepare(cluster, "first", f"{WRITES.format('fa')}; {WRITES.format('fb')}")
            crash(cluster)
            equal(f"recovered, one slot, {end}: the first table", rows(cluster, "fa"), OLD)
            done(cluster, f"{end} PREPARED 'first'")
            must_prepare(cluster, "second", "UPDATE fa SET v = 9 WHERE id = 9")
            wanted = NEW if end == "COMMIT" else OLD
            equal(f"recovered, one slot, {end}: the second table", rows(cluster, "fb", "-c statement_timeout=10s"), wanted)
            done(cluster, "ROLLBACK PREPARED 'second'")
            for table in ("fa", "fb"):
                judge(cluster, f"recovered, one slot, {end}: {table}", table, end)
            crash(cluster)
            for table in ("fa", "fb"):
                judge(cluster, f"recovered, one slot, {end}: {table}, after another crash", table, end)
            drop_all(cluster, "fa", "fb")
    finally:
        cluster.remove()


def switched(cluster):
    """A protocol that locks partitions was asked for while two of them had rows of one."""
    for pinned in (True, False):
        done(cluster, "CREATE TABLE sw (id int PRIMARY KEY, v int) USING mixedcc WITH (mixedcc.partitions = 1, mixedcc.protocol = '2pl')")
        done(cluster, "INSERT INTO sw SELECT g, 0 FROM generate_series(1, 20) g")
        for number in (1, 2):
            must_prepare(cluster, f"sw{number}", f"UPDATE sw SET v = {number} WHERE id = {number}")
        done(cluster, "SELECT mixedcc.set_protocol('sw', 'partcc')" + ("" if pinned else "; SELECT mixedcc.unpin('sw')"))
        done(cluster, "CHECKPOINT")
        crash(cluster)
        name = f"recovered, a switch to partcc, {'pinned' if pinned else 'free'}"
        look = "SELECT id, v FROM sw WHERE id IN (1, 2, 7) ORDER BY 1"
        equal(f"{name}: the old rows", attempt(cluster, look, "-c statement_timeout=10s"), [(1, 0), (2, 0), (7, 0)])
        equal(f"{name}: another row", attempt(cluster, "UPDATE sw SET v = 7 WHERE id = 7"), None)
        equal(f"{name}: a row of one of them", attempt(cluster, "UPDATE sw SET v = 7 WHERE id = 1"), "55P03")
        done(cluster, "COMMIT PREPARED 'sw1'")
        done(cluster, "ROLLBACK PREPARED 'sw2'")
        equal(f"{name}: their ends", attempt(cluster, look), [(1, 1), (2, 0), (7, 7)])
        protocol = "SELECT protocol FROM mixedcc.partitions WHERE \"table\" = 'sw'::regclass"
        must_come(lambda: cluster.ask(protocol) == "partcc", 30)
        equal(f"{name}: and then", attempt(cluster, f"UPDATE sw SET v = 8 WHERE id IN (1, 2); {look}"), [(1, 8), (2, 8), (7, 7)])
        done(cluster, "DROP TABLE sw")


def little_memory():
    """Rows of a prepared transaction need room as others do; and no more after its end."""
    cluster = begin(**{"mixedcc.memory": "64MB"})
    try:
        for count, fits in ((20_000, True), (170_000, False)):
            fresh(cluster, "lm")
            must_prepare(cluster, "lm", f"SET LOCAL lock_timeout = '60s'; INSERT INTO lm SELECT g, 0, g, '' FROM generate_series(1001, {1000 + count}) g")
            crash(cluster)
            equal(f"recovered, little memory, {count} rows", attempt(cluster, "SELECT count(*) FROM lm"), [(20,)] if fits else "53200")
            done(cluster, "ROLLBACK PREPARED 'lm'")
            equal(f"recovered, little memory, {count} rows: after the end", attempt(cluster, "SELECT count(*) FROM lm"), [(20,)])
            done(cluster, "DROP TABLE lm")
    finally:
        cluster.remove()


TESTS = (halves, waiters, churn, many, switched, beside_the_load, promoted, outcomes)


FAULTS = {"end_forgotten": (halves, "recovered: one half after the COMMIT, ISOLATION LEVEL REPEATABLE READ: the other half"),
          "pending_homeless": (churn, "recovered: behind rounds, COMMIT: its rows"),
          "ranges_forgotten": (outcomes, "recovered, a crash, 2pl, READ COMMITTED, COMMIT: a range with rows of its own only")}


if __name__ == "__main__":
    run_all(TESTS, FAULTS, few_slots, little_memory, **{"mixedcc.stop_events": "on"})
