#!/usr/bin/python3
"""Prepared transactions over permanent tables, and what ends the server meanwhile: a crash, a clean
restart, promotion of a standby, recovery to a point. Tables of which they have locked other rows
than they have written, or that they have read at SERIALIZABLE, can be read until they are finished,
others can be used; then all of it is there, or nothing."""

import threading

import psycopg2

from lib import clusters, protocols
from lib.common import check, connect, drop_database, equal, keep_long, main, make_database, must_come, options, query, server, value, waits_for_lock
from lib.prepared import run as attempt

DATABASE = "process_durable_prepared"
LIMIT = 120.0
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
ENDS = ("COMMIT", "ROLLBACK")
# More than a page: in pieces.
LONG = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 600) i)"
WORK = f"""UPDATE written SET v = 1 WHERE id = 1; DELETE FROM written WHERE id = 2;
    SAVEPOINT a; UPDATE written SET v = 7 WHERE id = 3; ROLLBACK TO a;
    INSERT INTO written VALUES (30, 1, 30, {LONG}); UPDATE written SET t = {LONG} WHERE id = 4;
    INSERT INTO child VALUES (1, 1); SELECT FROM locked WHERE id = 1 FOR SHARE; SELECT sum(v) FROM looked"""
# Others may write here after the start of the server, unless it was read at SERIALIZABLE.
WRITTEN = ("written", "child")
# Others may read here. Of the parent the foreign key keeps a row's key.
LOCKED = ("locked",)
ROWS = {"written": 20, "child": 0, "parent": 20, "locked": 20, "looked": 20, "apart": 20}


def boss(node=None):
    must_come(lambda: accepts(node), LIMIT)
    return connection_to(node)


def connection_to(node, more=""):
    return node.connect(options=more) if node else connect(DATABASE, options=f"-c synchronous_commit=on {more}")


def accepts(node):
    try:
        connection_to(node).close()
        return True
    except psycopg2.Error:
        return False


class Waiter:
    """A statement that another session runs, and that must wait."""

    def __init__(self, sql, node=None):
        self.session, self.result, self.watcher = connection_to(node), None, connection_to(node)
        self.thread = threading.Thread(target=self.run, args=(sql,))
        self.thread.start()
        must_come(lambda: waits_for_lock(self.watcher, self.session.info.backend_pid), LIMIT)

    def run(self, sql):
        self.result = attempt(self.session, sql)

    def end(self):
        self.thread.join()
        self.session.close()
        self.watcher.close()
        return self.result


def tables(session, protocol):
    query(session, "DROP TABLE IF EXISTS written, child, parent, locked, looked, apart")
    settings = options(partitions=4, protocol=protocol)
    query(session, f"CREATE TABLE written (id int PRIMARY KEY, v int, u int UNIQUE, t text) USING mixedcc {settings}")
    keep_long(session, "written", "t")
    query(session, "INSERT INTO written SELECT g, 0, g, '' FROM generate_series(1, 20) g")
    for name in ("parent", "locked", "looked", "apart"):
        query(session, f"CREATE TABLE {name} (id int PRIMARY KEY, v int) USING mixedcc {settings}")
        query(session, f"INSERT INTO {name} SELECT g, 0 FROM generate_series(1, 20) g")
    query(session, f"CREATE TABLE child (id int PRIMARY KEY, of int REFERENCES parent) USING mixedcc {settings}")


def prepare(work=WORK, level="READ COMMITTED", gid="p", node=None):
    session = connection_to(node)
    query(session, f"BEGIN ISOLATION LEVEL {level}; {work}")
    result = attempt(session, f"PREPARE TRANSACTION '{gid}'")
    session.close()
    return result


def rows(session):
    found = query(session, "SELECT id, v, length(t) FROM written WHERE id IN (1, 2, 3, 4, 30) ORDER BY id")
    return found, query(session, "SELECT id FROM written WHERE u = 30"), value(session, "SELECT count(*) FROM written"), value(session, "SELECT count(*) FROM child")


BEFORE = ([(1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 0, 0)], [], 20, 0)
AFTER = ([(1, 1, 0), (3, 0, 0), (4, 0, 19200), (30, 1, 19200)], [(30,)], 20, 1)


def kept(name, level, node=None):
    """What it keeps of the tables that it has used, and that the rest can be used."""
    session = boss(node)
    equal(f"{name}: it is prepared", query(session, "SELECT gid FROM pg_prepared_xacts"), [("p",)])
    query(session, "SET lock_timeout = '100ms'")
    dozing = (*LOCKED, *WRITTEN, "looked", "parent") if level == "SERIALIZABLE" or partcc(session) else LOCKED
    for table, count in ROWS.items():
        equal(f"{name}: {table} can be read", attempt(session, f"SELECT count(*) FROM {table}"), [(count,)])
    if "written" not in dozing:
        equal(f"{name}: other rows can be written", attempt(session, "UPDATE written SET v = v WHERE id = 9"), None)
    for table in set(dozing) - ({"looked"} if level != "SERIALIZABLE" else set()):
        locks_rows = [f"SELECT FROM {table} FOR KEY SHARE"] if ROWS[table] else []
        for sql in (f"UPDATE {table} SET id = id", f"DELETE FROM {table} WHERE id = 15", *locks_rows):
            equal(f"{name}: {sql} waits", attempt(session, sql), "55P03")
    if "parent" not in dozing:
        equal(f"{name}: what leaves the parent's keys", attempt(session, "UPDATE parent SET v = 0 WHERE id IN (1, 2); INSERT INTO child VALUES (2, 1); DELETE FROM child WHERE id = 2"), None)
    equal(f"{name}: the parent's key waits", attempt(session, "DELETE FROM parent WHERE id = 1"), "55P03")
    for table in {"apart", "looked"} - set(dozing):
        equal(f"{name}: {table} can be used", attempt(session, f"UPDATE {table} SET v = 0"), None)
    equal(f"{name}: another can be prepared", prepare("UPDATE apart SET v = 5 WHERE id = 5", level, "q", node), None)
    query(session, "COMMIT PREPARED 'q'")
    equal(f"{name}: and is finished", value(session, "SELECT v FROM apart WHERE id = 5"), 5)
    session.close()


def partcc(session):
    return value(session, "SELECT 'mixedcc.protocol=partcc' = ANY (reloptions) FROM pg_class WHERE relname = 'written'")


def finish(name, end, node=None):
    """It is finished: sessions that have waited go on, and see all of it or nothing."""
    session = boss(node)
    waiters = [Waiter("UPDATE written SET v = v + 10 WHERE id = 1 RETURNING v", node), Waiter("SELECT v FROM locked WHERE id = 1 FOR UPDATE", node)]
    query(session, f"{end} PREPARED 'p'")
    done = end == "COMMIT"
    equal(f"{name}, {end}: who has waited goes on", [one.end() for one in waiters], [[(11 if done else 10,)], [(0,)]])
    query(session, "UPDATE written SET v = v - 10 WHERE id = 1")
    judge(f"{name}, {end}", session, done)
    equal(f"{name}, {end}: nothing is locked", attempt(session, "UPDATE written SET u = -u; UPDATE written SET u = -u; DELETE FROM parent WHERE id = 2; UPDATE looked SET v = 0"), None)
    session.close()


def judge(name, session, done):
    equal(f"{name}: the rows", rows(session), AFTER if done else BEFORE)
    query(session, "SET enable_seqscan = off")
    equal(f"{name}: by the key", rows(session), AFTER if done else BEFORE)
    query(session, "RESET enable_seqscan")
    equal(f"{name}: the key is checked", attempt(session, "INSERT INTO written VALUES (31, 0, 30, '')"), "23505" if done else None)
    query(session, "DELETE FROM written WHERE id = 31")
    equal(f"{name}: the foreign key is checked", attempt(session, "DELETE FROM parent WHERE id = 1; INSERT INTO parent VALUES (1, 0)"), "23503" if done else None)


def crash():
    server("crash")


def clean():
    server("stop")
    server("start")


def checkpoint_and_crash():
    session = boss()
    # A round writes images with pending entries.
    query(session, "CHECKPOINT")
    session.close()
    server("crash")


def twice():
    """The second end finds what the first start has not touched."""
    clean()
    server("crash")


WAYS = {"a crash": crash, "a clean restart": clean, "a checkpoint and a crash": checkpoint_and_crash, "a restart and a crash": twice}


def each_way():
    """Each end of the server. `in_doubt` has more protocols and levels."""
    combinations = [(p, level, way, end) for p in range(len(protocols.ALL)) for level in range(len(LEVELS))
                    for way in range(len(WAYS)) for end in range(len(ENDS)) if level == way % 3 and p == (way + 1) % 3 and end == way % 2]
    for p, level, way, end in combinations:
        ended(protocols.ALL[p], LEVELS[level], list(WAYS)[way], ENDS[end])


def ended(protocol, level, way, end):
    name = f"prepared, permanent: {protocol}, {level}, {way}"
    session = boss()
    tables(session, protocol)
    query(session, "CHECKPOINT")
    session.close()
    equal(f"{name}: PREPARE", prepare(level=level), None)
    WAYS[way]()
    kept(name, level)
    finish(name, end)
    server("crash")
    session = boss()
    judge(f"{name}, {end}: after one more crash", session, end == "COMMIT")
    session.close()


def before_the_end():
    """One that was finished, and whose rows others have changed, before the server ends."""
    for end in ENDS:
        for image in (False, True):
            name = f"prepared, permanent: {end} before a crash{', with images' if image else ''}"
            session = boss()
            tables(session, "occ")
            prepare()
            if image:
                query(session, "CHECKPOINT")
            xid = value(session, "SELECT transaction FROM pg_prepared_xacts")
            query(session, f"{end} PREPARED 'p'")
            query(session, "UPDATE written SET v = 70 WHERE id IN (1, 5)")
            if image:
                # From now on the commit log need not know the outcome.
                query(session, "VACUUM (FREEZE) written")
                check(f"{name}: frozen", value(session, "SELECT age(relfrozenxid) < age(%s::text::xid) FROM pg_class WHERE relname = 'written'", (xid,)))
            session.close()
            server("crash")
            session = boss()
            equal(f"{name}: later changes", query(session, "SELECT v FROM written WHERE id IN (1, 5)"), [(70,), (70,)])
            query(session, f"UPDATE written SET v = {1 if end == 'COMMIT' else 0} WHERE id = 1")
            judge(name, session, end == "COMMIT")
            session.close()


def made():
    """Tables that it has made: their files stay or go with it."""
    work = f"""CREATE TABLE made (id int PRIMARY KEY, v int, t text) USING mixedcc WITH (mixedcc.partitions = 3);
        INSERT INTO made SELECT g, g, CASE WHEN g = 7 THEN {LONG} ELSE '' END FROM generate_series(1, 2000) g; CREATE INDEX ON made (v); DELETE FROM made WHERE id > 1000;
        CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY) USING mixedcc; INSERT INTO fleeting VALUES (1)"""
    all_rows = ([(1000, 500500, 19200)], [(11,)], [(11,)])

    def found(session):
        query(session, "SET enable_seqscan = off")
        return (query(session, "SELECT count(*), sum(v), sum(length(t)) FROM made"), query(session, "SELECT count(*) FROM made WHERE v BETWEEN 5 AND 15"),
                query(session, "SELECT count(*) FROM made WHERE id BETWEEN 5 AND 15"))

    for end in ENDS:
        for way in (*WAYS, None):
            name = f"prepared, permanent: a table made, {way}, {end}"
            session = boss()
            equal(f"{name}: PREPARE", prepare(work), None)
            session.close()
            if way:
                WAYS[way]()
            session = boss()
            equal(f"{name}: others do not see it", attempt(session, "SELECT FROM made"), "42P01")
            query(session, f"{end} PREPARED 'p'")
            if end == "ROLLBACK":
                equal(f"{name}: it is not there", (attempt(session, "SELECT FROM made"), attempt(session, "SELECT FROM fleeting")), ("42P01", "42P01"))
            else:
                equal(f"{name}: its rows", found(session), all_rows)
                equal(f"{name}: the unlogged one", query(session, "SELECT count(*) FROM fleeting"), [(0 if way else 1,)])
                query(session, "UPDATE made SET v = v + 1")
            session.close()
            server("crash")
            session = boss()
            if end == "COMMIT":
                equal(f"{name}: its rows after one more crash", query(session, "SELECT count(*), sum(v) FROM made"), [(1000, 501500)])
                equal(f"{name}: the key is checked", attempt(session, "INSERT INTO made VALUES (1)"), "23505")
                query(session, "DROP TABLE made, fleeting")
            equal(f"{name}: the name is free", attempt(session, "CREATE TABLE made (id int PRIMARY KEY) USING mixedcc"), None)
            query(session, "DROP TABLE made")
            session.close()


def commands():
    """What must wait for the transaction, and what need not."""
    session = boss()
    tables(session, "occ")
    query(session, "ALTER TABLE written SET (autovacuum_vacuum_threshold = 0)")
    prepare(level="SERIALIZABLE")
    session.close()
    server("crash")
    session = boss()
    query(session, "SET lock_timeout = '100ms'")
    for sql in ("TRUNCATE written", "DROP TABLE written", "CREATE INDEX ON written (v)", "ALTER TABLE written ADD x int DEFAULT 3",
                "ALTER TABLE written SET UNLOGGED", "COPY locked (id) FROM PROGRAM 'echo 99'"):
        equal(f"prepared, permanent: {sql} waits", attempt(session, sql), "55P03")
    for sql in ("VACUUM written", "VACUUM (FREEZE) looked", "ANALYZE written", "CREATE INDEX ON locked (v)", "COPY written TO '/dev/null'"):
        equal(f"prepared, permanent: {sql}", attempt(session, sql), None)
    for sql in ("SELECT count(*) >= 0 FROM written TABLESAMPLE SYSTEM (50)", "SELECT count(*) = 1 FROM mixedcc.set_protocol('written', '2pl')",
                "SELECT count(*) >= 0 FROM mixedcc.partitions", "SELECT pg_table_size('written') >= 0",
                "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'userlock' AND pid IS NULL"):
        equal(f"prepared, permanent: {sql}", attempt(session, sql), [(True,)])
    query(session, "RESET lock_timeout")
    query(session, "ROLLBACK PREPARED 'p'")
    judge("prepared, permanent: after the commands", session, False)
    session.close()


def failures():
    """PREPARE that does not come to its end: nothing of it counts, now or after a crash."""
    session = boss()
    tables(session, "occ")
    prepare("UPDATE apart SET v = 1 WHERE id = 1")
    equal("prepared, permanent: a GID in use", prepare(), "42710")
    equal("prepared, permanent: nothing is there", rows(session), BEFORE)
    equal("prepared, permanent: nothing is locked", attempt(session, "UPDATE written SET v = 0; UPDATE locked SET v = 0; DELETE FROM parent"), None)
    query(session, "INSERT INTO parent VALUES (1, 0)")
    query(session, "CHECKPOINT")
    session.close()
    server("crash")
    session = boss()
    equal("prepared, permanent: nothing is there after a crash", rows(session), BEFORE)
    query(session, "ROLLBACK PREPARED 'p'")
    session.close()


def many():
    """Many of them, also over the same tables; a large one."""
    session = boss()
    tables(session, "2pl")
    most = int(value(session, "SHOW max_prepared_transactions"))
    for number in range(most - 1):
        equal(f"prepared, permanent: number {number}", prepare(f"SELECT FROM written WHERE id = 20 FOR KEY SHARE; UPDATE written SET v = 1 WHERE id = {number + 1}", gid=f"p{number}"), None)
    large = "INSERT INTO apart SELECT g, 1 FROM generate_series(100, 20000) g"
    equal("prepared, permanent: a large one", prepare(large, gid="large"), None)
    session.close()
    server("crash")
    session = boss()
    equal("prepared, permanent: all are there", value(session, "SELECT count(*) FROM pg_prepared_xacts"), most)
    waiter = Waiter("DELETE FROM written WHERE id = 20 RETURNING v")
    for number in range(most - 1):
        check("prepared, permanent: the key is kept until the last one", waiter.thread.is_alive())
        query(session, f"{ENDS[number % 2]} PREPARED 'p{number}'")
    equal("prepared, permanent: who has waited for all of them", waiter.end(), [(0,)])
    equal("prepared, permanent: half of them", query(session, "SELECT count(*), sum(v) FROM written"), [(19, most // 2)])
    query(session, "COMMIT PREPARED 'large'")
    equal("prepared, permanent: the large one", value(session, "SELECT count(*) FROM apart"), 20 + 19901)
    session.close()


def beside_the_finish():
    """A process ends a decided transaction, and is slow. Others wait for it: they see its rows, and
    what they write in a table that it has made is logged."""
    node = clusters.Cluster.new(max_prepared_transactions="10", **{"mixedcc.stop_events": "on"})
    try:
        node.start()
        node.ask("CREATE EXTENSION mixedcc; SELECT 1")
        for event in ("prepared-taken", "prepared-published"):
            session = node.connect()
            tables(session, "occ")
            query(session, "DROP TABLE IF EXISTS made")
            work = "UPDATE written SET v = 1 WHERE id = 1; CREATE TABLE made (id int PRIMARY KEY) USING mixedcc"
            equal(f"prepared, {event}: PREPARE", prepare(work, node=node), None)
            other = node.connect()
            equal(f"prepared, {event}: before", query(other, "SELECT v FROM written WHERE id = 1"), [(0,)])
            slow = node.connect(options=f"-c mixedcc.kill_at={event}:1:1500")
            ends = threading.Thread(target=query, args=(slow, "COMMIT PREPARED 'p'"))
            ends.start()
            must_come(lambda: node.ask("SELECT count(*) FROM pg_prepared_xacts") == 0, LIMIT)
            equal(f"prepared, {event}: another sees the row", query(other, "SELECT v FROM written WHERE id = 1"), [(1,)])
            query(other, "INSERT INTO made VALUES (7)")
            ends.join()
            for one in (session, other, slow):
                one.close()
            node.crash()
            node.start()
            equal(f"prepared, {event}: after a crash", (node.ask("SELECT v FROM written WHERE id = 1"), node.ask("SELECT max(id) FROM made")), (1, 7))
    finally:
        node.remove()


def made_beside_the_finish():
    """The same for a session whose first look is at the table that was made."""
    node = clusters.Cluster.new(max_prepared_transactions="10", **{"mixedcc.stop_events": "on"})
    try:
        node.start()
        node.ask("CREATE EXTENSION mixedcc; SELECT 1")
        equal("prepared, made: PREPARE", prepare("CREATE TABLE made (id int PRIMARY KEY) USING mixedcc", node=node), None)
        slow = node.connect(options="-c mixedcc.kill_at=prepared-published:1:1500")
        ends = threading.Thread(target=query, args=(slow, "COMMIT PREPARED 'p'"))
        ends.start()
        other = node.connect()
        must_come(lambda: attempt(other, "INSERT INTO made VALUES (7)") is None, LIMIT)
        ends.join()
        node.crash()
        node.start()
        equal("prepared, made: what another has written is logged", node.ask("SELECT max(id) FROM made"), 7)
        other.close()
        slow.close()
    finally:
        node.remove()


def copies():
    """A standby that is promoted, and recovery to a point before the end."""
    primary = clusters.Cluster.new(max_prepared_transactions="10", wal_keep_size="256MB")
    copied = []
    try:
        primary.start()
        primary.ask("CREATE EXTENSION mixedcc; SELECT 1")
        session = primary.connect()
        tables(session, "occ")
        copied += [clusters.Cluster.copy("-R", source=primary), clusters.Cluster.copy(source=primary)]
        standby, point = copied
        standby.start()
        equal("prepared, permanent: PREPARE on a primary", prepare(level="SERIALIZABLE", node=primary), None)
        lsn = value(session, "SELECT pg_current_wal_flush_lsn()")
        check("prepared, permanent: the standby replays", standby.replays(primary))
        standby.control("promote")
        kept("prepared, permanent: promoted", "SERIALIZABLE", standby)
        finish("prepared, permanent: promoted", "COMMIT", standby)
        query(session, "COMMIT PREPARED 'p'")
        judge("prepared, permanent: the primary", session, True)
        query(session, "SELECT pg_switch_wal()")
        session.close()
        with open(point.data + "/recovery.signal", "w", encoding="ascii"):
            pass
        point.start(restore_command=f"cp {primary.data}/pg_wal/%f %p", recovery_target_lsn=lsn, recovery_target_action="promote")
        check("prepared, permanent: recovery ends", point.recovered())
        kept("prepared, permanent: recovery to a point", "SERIALIZABLE", point)
        finish("prepared, permanent: recovery to a point", "ROLLBACK", point)
    finally:
        for one in (*copied, primary):
            one.remove()


make_database(DATABASE).close()
try:
    main(each_way, before_the_end, made, commands, failures, many, beside_the_finish, made_beside_the_finish, copies)
finally:
    drop_database(DATABASE)
