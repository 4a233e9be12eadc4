#!/usr/bin/python3
"""PREPARE TRANSACTION over permanent and unlogged tables, under each protocol and isolation level:
what others see and wait for until it is finished from another session, and what becomes of it."""

import itertools
import threading

import psycopg2

from lib import protocols
from lib.common import check, connect, create_table, drop_database, equal, main, make_database, must_come, query, set_protocol, value, waits_for_lock

DATABASE = "process_prepared"
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
ENDS = ("COMMIT", "ROLLBACK")
KINDS = ("", "UNLOGGED")


def attempt(connection, sql):
    """What came of a statement: its rows, or the SQLSTATE."""
    try:
        return query(connection, sql)
    except psycopg2.Error as error:
        return error.pgcode


class Other:
    """A statement that another session runs, and that may wait."""

    def __init__(self, sql, options="-c lock_timeout=120s"):
        self.session, self.result = connect(DATABASE, options=options), None
        self.pid = value(self.session, "SELECT pg_backend_pid()")
        self.thread = threading.Thread(target=self.run, args=(sql,))
        self.thread.start()

    def run(self, sql):
        self.result = attempt(self.session, sql)

    def must_wait(self):
        must_come(lambda: waits_for_lock(BOSS, self.pid), BOSS_LIMIT)

    def end(self):
        self.thread.join()
        self.session.close()
        return self.result


def prepare(sql, gid="p", level="READ COMMITTED"):
    """Prepares a transaction in a session that ends."""
    session = connect(DATABASE)
    query(session, f"BEGIN ISOLATION LEVEL {level}; {sql}")
    result = attempt(session, f"PREPARE TRANSACTION '{gid}'")
    session.close()
    return result


def fresh(protocol, kind="", name="t"):
    query(BOSS, f"DROP TABLE IF EXISTS {name}")
    create_table(BOSS, name, "id int PRIMARY KEY, v int, u int UNIQUE", kind, protocol=protocol, partitions=4)
    query(BOSS, f"INSERT INTO {name} SELECT g, 0, g FROM generate_series(1, 20) g")


def rows(connection, table="t"):
    return query(connection, f"SELECT id, v FROM {table} WHERE id IN (1, 2, 30) ORDER BY id")


def outcomes():
    """Each protocol, level and end: what others see before and after, and the waits of writers."""
    writes = "UPDATE t SET v = 1 WHERE id = 1; DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (30, 1, 30)"
    for kind, protocol, level in itertools.product(KINDS, protocols.ALL, LEVELS):
        for end in ENDS:
            name = f"prepared, {kind or 'permanent'}, {protocol}, {level}, {end}"
            fresh(protocol, kind)
            equal(f"{name}: PREPARE", prepare(writes, level=level), None)
            equal(f"{name}: others see the old rows", rows(BOSS), [(1, 0), (2, 0)])
            waits = Other("UPDATE t SET v = v + 10 WHERE id = 1 RETURNING v")
            waits.must_wait()
            equal(f"{name}: NOWAIT", attempt(BOSS, "SELECT FROM t WHERE id = 1 FOR UPDATE NOWAIT"), "55P03")
            query(BOSS, f"{end} PREPARED 'p'")
            done = end == "COMMIT"
            equal(f"{name}: the waiter goes on", waits.end(), [(11 if done else 10,)])
            equal(f"{name}: the rows after it", rows(BOSS), [(1, 11), (30, 1)] if done else [(1, 10), (2, 0)])
            equal(f"{name}: by the index", query(BOSS, "SELECT id FROM t WHERE u = 30"), [(30,)] if done else [])
            equal(f"{name}: nothing is locked", attempt(BOSS, "UPDATE t SET v = 0"), None)


def keys():
    """Keys that a prepared transaction has inserted: others wait, as for a running one."""
    for protocol in protocols.ALL:
        for end, got in zip(ENDS, ("23505", None)):
            for column, row in (("id", "(30, 2, 31)"), ("u", "(31, 2, 30)")):
                fresh(protocol)
                prepare("INSERT INTO t VALUES (30, 1, 30)")
                waits = Other(f"INSERT INTO t VALUES {row}")
                waits.must_wait()
                query(BOSS, f"{end} PREPARED 'p'")
                equal(f"prepared, {protocol}: the key of {column} after {end}", waits.end(), got)


def row_locks():
    """Locks that were taken without a write, and in a savepoint."""
    for protocol in protocols.ALL:
        for mode, refused in (("FOR UPDATE", True), ("FOR SHARE", False)):
            fresh(protocol)
            prepare(f"SELECT FROM t WHERE id = 1 {mode}; SAVEPOINT s; SELECT FROM t WHERE id = 2 {mode}; RELEASE s;"
                    "SAVEPOINT s; SELECT FROM t WHERE id = 3 FOR UPDATE; UPDATE t SET v = 9 WHERE id = 4; ROLLBACK TO s")
            for row in (1, 2):
                exact = protocols.having("locks_partitions")
                if refused or protocol not in exact:
                    shared = attempt(BOSS, f"SELECT id FROM t WHERE id = {row} FOR SHARE NOWAIT")
                    equal(f"prepared, {protocol}: {mode} of row {row}, and FOR SHARE", shared, "55P03" if refused else [(row,)])
            waits = Other("UPDATE t SET v = 1 WHERE id = 2 RETURNING v")
            waits.must_wait()
            query(BOSS, "COMMIT PREPARED 'p'")
            equal(f"prepared, {protocol}: {mode} in a savepoint", waits.end(), [(1,)])
            equal(f"prepared, {protocol}: what was rolled back", query(BOSS, "SELECT v FROM t WHERE id IN (3, 4)"), [(0,), (0,)])


def savepoints():
    for protocol in protocols.ALL:
        for end, wanted in zip(ENDS, ([(1, 3), (2, 0)], [(1, 0), (2, 0)])):
            fresh(protocol)
            prepare("SAVEPOINT a; UPDATE t SET v = 1 WHERE id = 1; SAVEPOINT b; DELETE FROM t WHERE id = 2; ROLLBACK TO b;"
                    "UPDATE t SET v = 3 WHERE id = 1; RELEASE a")
            query(BOSS, f"{end} PREPARED 'p'")
            equal(f"prepared, {protocol}: savepoints, {end}", rows(BOSS), wanted)


def serializable():
    """40001 comes at PREPARE, and never at COMMIT PREPARED: writers of what it has read wait."""
    for protocol in protocols.ALL:
        fresh(protocol)
        if protocols.only_validates(protocol):
            session = connect(DATABASE)
            query(session, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT v FROM t WHERE id = 1; UPDATE t SET v = 1 WHERE id = 2")
            query(BOSS, "UPDATE t SET v = 5 WHERE id = 1")
            equal(f"prepared, {protocol}: a conflict at PREPARE", attempt(session, "PREPARE TRANSACTION 'p'"), "40001")
            equal(f"prepared, {protocol}: nothing is prepared", query(BOSS, "SELECT gid FROM pg_prepared_xacts"), [])
            session.close()
            equal(f"prepared, {protocol}: nothing has stayed", attempt(BOSS, "UPDATE t SET v = 0"), None)
        prepare("SELECT v FROM t WHERE id = 1; UPDATE t SET v = 1 WHERE id = 2", level="SERIALIZABLE")
        writer = Other("UPDATE t SET v = 7 WHERE id = 1")
        must_come(lambda: value(BOSS, f"SELECT wait_event_type IN ('Lock', 'Extension') FROM pg_stat_activity WHERE pid = {writer.pid}"), BOSS_LIMIT)
        equal(f"prepared, {protocol}: a writer of what it has read waits", value(BOSS, "SELECT v FROM t WHERE id = 1"), 0)
        query(BOSS, "COMMIT PREPARED 'p'")
        equal(f"prepared, {protocol}: the writer goes on", writer.end(), None)
        equal(f"prepared, {protocol}: both have written", query(BOSS, "SELECT v FROM t WHERE id IN (1, 2) ORDER BY id"), [(7,), (1,)])


def goes_on():
    """A session that has prepared goes on in another slot, and prepares again."""
    for protocol in protocols.ALL:
        fresh(protocol)
        session = connect(DATABASE)
        query(session, "BEGIN; UPDATE t SET v = 4 WHERE id = 1; PREPARE TRANSACTION 'p'")
        # The session goes on in another slot.
        query(session, "UPDATE t SET v = 6 WHERE id = 2")
        equal(f"prepared, {protocol}: its session reads the old row", rows(session), [(1, 0), (2, 6)])
        query(session, "BEGIN; UPDATE t SET v = 5 WHERE id = 3; PREPARE TRANSACTION 'q'")
        query(BOSS, "ROLLBACK PREPARED 'q'")
        query(session, "COMMIT PREPARED 'p'")
        equal(f"prepared, {protocol}: its session finishes it", rows(session), [(1, 4), (2, 6)])
        equal(f"prepared, {protocol}: two of a session", value(session, "SELECT v FROM t WHERE id = 3"), 0)
        session.close()


def all_or_nothing():
    """Rows of heap and of mixedcc in one prepared transaction: no snapshot shows a part."""
    query(BOSS, "DROP TABLE IF EXISTS plain; CREATE TABLE plain (id int PRIMARY KEY, v int) USING heap; INSERT INTO plain VALUES (1, 0)")
    fresh("occ")
    for turn in range(1, 51):
        prepare(f"UPDATE plain SET v = {turn} WHERE id = 1; UPDATE t SET v = {turn} WHERE id = 1")
        both = "SELECT p.v, t.v FROM plain p, t WHERE p.id = 1 AND t.id = 1"
        before = query(BOSS, both)
        readers = [Other(both) for _ in range(2)]
        query(BOSS, "COMMIT PREPARED 'p'")
        seen = [reader.end()[0] for reader in readers]
        if before != [(turn - 1, turn - 1)] or query(BOSS, both) != [(turn, turn)] or any(heap > ours for heap, ours in seen):
            equal(f"prepared: heap and mixedcc, turn {turn}", (before, seen), "all or nothing")
    check("prepared: heap and mixedcc, all or nothing", True)


def commands():
    """A switch, VACUUM, TRUNCATE, DROP and ALTER beside an idle prepared transaction."""
    fresh("occ")
    prepare("UPDATE t SET v = 1 WHERE id = 1", level="SERIALIZABLE")
    set_protocol(BOSS, "t", "2pl", wait=False)
    equal("prepared: VACUUM beside it", attempt(BOSS, "VACUUM t"), None)
    equal("prepared: reads in a switch", rows(BOSS), [(1, 0), (2, 0)])
    query(BOSS, "COMMIT PREPARED 'p'")
    check("prepared: the switch ends", value(BOSS, "SELECT mixedcc.await_switches('t'::regclass)"))
    equal("prepared: the row after a switch", rows(BOSS), [(1, 1), (2, 0)])
    for sql in ("ALTER TABLE t SET (mixedcc.partitions = 2)", "CREATE INDEX ON t (v)", "TRUNCATE t", "DROP TABLE t"):
        for end in ENDS:
            fresh("2pl")
            prepare("UPDATE t SET v = 1 WHERE id = 1; INSERT INTO t VALUES (30, 1, 30)", level="SERIALIZABLE")
            waits = Other(sql)
            waits.must_wait()
            query(BOSS, f"{end} PREPARED 'p'")
            equal(f"prepared: {sql}, {end}", waits.end(), None)
            if sql[0] in "AC":
                equal(f"prepared: the rows after {sql}, {end}", rows(BOSS), [(1, 1), (2, 0), (30, 1)] if end == "COMMIT" else [(1, 0), (2, 0)])


def failures():
    """PREPARE that does not come to its end gives back all that it has taken."""
    for turn in range(15):  # more than there are spare slots
        fresh("occ") if turn == 0 else None
        prepare("UPDATE t SET v = 1 WHERE id = 1", "used")
        equal(f"prepared: a GID in use ({turn})", prepare("UPDATE t SET v = 1 WHERE id = 2", "used"), "42710")
        equal(f"prepared: the row is free ({turn})", attempt(BOSS, "UPDATE t SET v = 0 WHERE id = 2"), None)
        query(BOSS, "ROLLBACK PREPARED 'used'")
    most = int(value(BOSS, "SHOW max_prepared_transactions"))
    for number in range(most):
        equal(f"prepared: number {number}", prepare(f"UPDATE t SET v = 1 WHERE id = {number + 1}", f"p{number}"), None)
    equal("prepared: too many", prepare("UPDATE t SET v = 1 WHERE id = 19", "more"), "53200")
    for number in range(most):
        query(BOSS, f"{ENDS[number % 2]} PREPARED 'p{number}'")
    equal("prepared: half of them", value(BOSS, "SELECT sum(v) FROM t"), (most + 1) // 2)
    # A wait in PREPARE: what it writes is guarded by another prepared transaction.
    fresh("occ")
    prepare("SELECT v FROM t WHERE id = 1; UPDATE t SET v = 1 WHERE id = 2", level="SERIALIZABLE")
    session = connect(DATABASE, options="-c statement_timeout=200ms")
    query(session, "BEGIN; UPDATE t SET v = 1 WHERE id = 1")
    check("prepared: a wait in PREPARE ends", attempt(session, "PREPARE TRANSACTION 'late'") in ("57014", "40001"))
    query(BOSS, "COMMIT PREPARED 'p'")
    equal("prepared: nothing of the late one is left", attempt(BOSS, "UPDATE t SET v = 0 WHERE id = 1"), None)
    session.close()


def made():
    """Tables that a prepared transaction has made, with rows and indexes."""
    work = """CREATE {0} TABLE made (id int PRIMARY KEY, v int, u int) USING mixedcc WITH (mixedcc.partitions = 4);
        INSERT INTO made SELECT g, g, g FROM generate_series(1, 500) g; CREATE INDEX ON made (v); ALTER TABLE made ADD UNIQUE (u);
        DELETE FROM made WHERE id > 450; UPDATE made SET v = -v WHERE id <= 10; UPDATE t SET v = 1 WHERE id = 1"""
    for kind, level, end in itertools.product(KINDS, LEVELS, ENDS):
        name = f"prepared: {kind or 'permanent'} table made, {level}, {end}"
        fresh("occ", kind)
        equal(f"{name}: PREPARE", prepare(work.format(kind), level=level), None)
        equal(f"{name}: others do not see it", attempt(BOSS, "SELECT FROM made"), "42P01")
        query(BOSS, f"{end} PREPARED 'p'")
        done = end == "COMMIT"
        equal(f"{name}: another's row", value(BOSS, "SELECT v FROM t WHERE id = 1"), int(done))
        if done:
            equal(f"{name}: its rows", query(BOSS, "SELECT count(*), sum(v), sum(u) FROM made"), [(450, 101475 - 110, 101475)])
            query(BOSS, "SET enable_seqscan = off")
            equal(f"{name}: by its indexes", [attempt(BOSS, f"SELECT count(*) FROM made WHERE {c} BETWEEN 1 AND 20") for c in "id v u".split()], [[(20,)], [(10,)], [(20,)]])
            query(BOSS, "RESET enable_seqscan")
            equal(f"{name}: keys", [attempt(BOSS, f"INSERT INTO made VALUES ({k}, 0, {u})") for k, u in ((1, 900), (900, 1), (451, 451))], ["23505", "23505", None])
            set_protocol(BOSS, "made", "2pl")
            equal(f"{name}: it can be changed", attempt(BOSS, "UPDATE made SET v = 0"), None)
            query(BOSS, "DROP TABLE made")
        equal(f"{name}: the name is free", attempt(BOSS, work.format(kind)), None)
        query(BOSS, "DROP TABLE made")


def refusals():
    fresh("occ")
    for sql in ("TRUNCATE t", "CREATE INDEX ON t (v)", "CREATE TABLE made (id int) USING mixedcc; DROP TABLE made",
                "SAVEPOINT s; CREATE TABLE made (id int) USING mixedcc; ROLLBACK TO s", "ALTER TABLE t SET (mixedcc.partitions = 2)"):
        equal(f"prepared: {sql}", prepare(sql), None)
        query(BOSS, "ROLLBACK PREPARED 'p'")
        equal(f"prepared: {sql}: rolled back", rows(BOSS), [(1, 0), (2, 0)])
    twice = "ALTER TABLE t SET (mixedcc.partitions = 2); ALTER TABLE t SET (mixedcc.partitions = 3)"
    equal(f"prepared: refused: {twice}", prepare(twice), "0A000")
    equal("prepared: refused: READ ONLY", prepare("SELECT * FROM t", level="SERIALIZABLE READ ONLY"), "0A000")
    equal("prepared: reads alone", prepare("SELECT * FROM t", level="SERIALIZABLE"), None)
    query(BOSS, "COMMIT PREPARED 'p'")


BOSS_LIMIT = 120.0
BOSS = make_database(DATABASE)
try:
    main(outcomes, keys, row_locks, savepoints, serializable, goes_on, all_or_nothing, commands, failures, made, refusals)
finally:
    for (gid,) in query(BOSS, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
        query(BOSS, f"ROLLBACK PREPARED '{gid}'")
    BOSS.close()
    drop_database(DATABASE)
