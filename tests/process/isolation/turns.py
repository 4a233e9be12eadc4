#!/usr/bin/python3
"""A session that waits for a row under 2pl gets its turn: sessions that come later stay behind it,
at most until it gives up. They pass where it waits for them, in the engine or in PostgreSQL's lock
manager."""

import threading

import psycopg2

from lib.common import check, connect, create_table, drop_database, equal, main, make_database, query, value, wait_until

DATABASE = "process_turns"
BEGIN = "BEGIN ISOLATION LEVEL SERIALIZABLE; "
READ = "SELECT v FROM t WHERE id = 1"
WRITE = "UPDATE t SET v = v + 1 WHERE id = 1"


class Session:
    """A connection, and a statement that may have to wait."""

    def __init__(self, options=""):
        self.connection = connect(DATABASE, options=options)
        self.pid = self.connection.info.backend_pid
        self.thread = None
        self.result = None

    def run(self, sql):
        return query(self.connection, sql)

    def start(self, sql):
        def work():
            try:
                self.result = query(self.connection, sql)
            except psycopg2.Error as error:
                self.result = error.pgcode or "lost"

        self.thread = threading.Thread(target=work)
        self.thread.start()

    def is_waiting(self):
        waits = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        return self.thread.is_alive() and value(BOSS, waits, (self.pid,)) == 1

    def end(self):
        self.thread.join(30)
        return "waits" if self.thread.is_alive() else self.result

    def close(self):
        if not self.connection.closed:
            self.connection.close()


def is_marked():
    """Would somebody who reads row 1 have to stay behind a waiter?"""
    try:
        query(PROBE, "SELECT 1 FROM t WHERE id = 1 FOR SHARE NOWAIT")
        return False
    except psycopg2.errors.LockNotAvailable:
        return True


class Scene:
    """`holder` has read row 1, `writer` waits for it, in vain for a second time, and `newcomer`
    comes."""

    def __init__(self, before="SELECT 1", options=""):
        early, self.holder, self.writer = Session(), Session(), Session()
        self.newcomer = Session(options)
        early.run(BEGIN + READ)
        self.holder.run(BEGIN + READ)
        self.newcomer.run(BEGIN + before)
        self.writer.start(WRITE)
        self.good = wait_until(self.writer.is_waiting) and not is_marked()
        early.run("COMMIT")
        early.close()
        self.good = self.good and wait_until(is_marked)
        self.newcomer.start(READ)

    def newcomer_waits(self):
        self.good = self.good and wait_until(self.newcomer.is_waiting)
        return self.good

    def close(self):
        for session in (self.newcomer, self.holder, self.writer):
            session.close()
        equal("nothing stays locked", wait_until(lambda: not is_marked()), True)


def order():
    scene = Scene()
    check("a newcomer waits behind the writer", scene.newcomer_waits())
    before = value(PROBE, READ)
    scene.holder.run("COMMIT")
    equal("the writer has its turn", scene.writer.end(), None)
    equal("the newcomer reads what it wrote", scene.newcomer.end(), [(before + 1,)])
    scene.newcomer.run("COMMIT")
    scene.close()


def giving_up():
    for how in ("pg_cancel_backend", "pg_terminate_backend"):
        scene = Scene()
        check(f"{how}: a newcomer waits", scene.newcomer_waits())
        query(BOSS, f"SELECT {how}(%s)", (scene.writer.pid,))
        check(f"{how}: the newcomer goes on beside the holder", isinstance(scene.newcomer.end(), list))
        scene.writer.end()
        scene.newcomer.run("COMMIT")
        scene.holder.run("COMMIT")
        scene.close()


def timeouts():
    scene = Scene(options="-c lock_timeout=300ms")
    equal("lock_timeout ends a newcomer's wait", scene.newcomer.end(), "55P03")
    scene.close()
    scene = Scene(options="-c statement_timeout=300ms")
    equal("statement_timeout too", scene.newcomer.end(), "57014")
    scene.close()
    scene = Scene()
    scene.newcomer_waits()
    query(BOSS, "SELECT pg_cancel_backend(%s)", (scene.newcomer.pid,))
    equal("and a cancel", scene.newcomer.end(), "57014")
    scene.close()


def circles():
    """The holder waits for the newcomer, which stays behind the writer, which waits for the holder:
    none fails."""
    wanted = {
        "a row": ("UPDATE t SET v = v + 1 WHERE id = 2", "UPDATE t SET v = v + 1 WHERE id = 2"),
        "a savepoint's row": ("SAVEPOINT s; UPDATE t SET v = v + 1 WHERE id = 2", "UPDATE t SET v = v + 1 WHERE id = 2"),
        "an advisory lock": ("SELECT pg_advisory_xact_lock(5)", "SELECT pg_advisory_xact_lock(5)"),
        "a table": ("LOCK TABLE other", "LOCK TABLE other IN ACCESS SHARE MODE"),
    }
    for name, (has, wants) in wanted.items():
        scene = Scene(before=has, options="-c deadlock_timeout=300ms")
        check(f"{name}: the newcomer waits", scene.newcomer_waits())
        scene.holder.start(wants)
        check(f"{name}: the newcomer passes", isinstance(scene.newcomer.end(), list), scene.newcomer.result)
        scene.newcomer.run("COMMIT")
        check(f"{name}: the holder goes on", scene.holder.end() != "waits" and not isinstance(scene.holder.result, str),
              scene.holder.result)
        scene.holder.run("COMMIT")
        equal(f"{name}: the writer has its turn", scene.writer.end(), None)
        scene.close()


def stream():
    """Two sessions hold a row in turns: each has it, or waits for it, before the other one
    commits."""
    rounds = 30
    for level, lock in (("SERIALIZABLE", READ), ("READ COMMITTED", READ + " FOR SHARE")):
        holder, other, writer = Session(), Session(), Session()
        hold = f"BEGIN ISOLATION LEVEL {level}; {lock}"
        holder.run(hold)
        writer.start(WRITE)
        good, needed = wait_until(writer.is_waiting), 0
        while writer.thread.is_alive() and needed < rounds:
            needed += 1
            other.start(hold)
            good = good and wait_until(lambda: not other.thread.is_alive() or other.is_waiting())
            holder.run("COMMIT")
            other.end()
            holder, other = other, holder
            writer.thread.join(0.1)
        check(f"{level}: a writer is not starved", good and needed <= 4, f"{needed} rounds")
        holder.run("COMMIT")
        equal(f"{level}: it has its turn", writer.end(), None)
        for session in (holder, other, writer):
            session.close()


BOSS = make_database(DATABASE)
create_table(BOSS, "t", "id int PRIMARY KEY, v int", protocol="2pl", waiting_policy="wait")
query(BOSS, "INSERT INTO t SELECT i, 0 FROM generate_series(1, 3) i; CREATE TABLE other (i int)")
PROBE = connect(DATABASE)
try:
    main(order, giving_up, timeouts, circles, stream)
finally:
    BOSS.close()
    PROBE.close()
    drop_database(DATABASE)
