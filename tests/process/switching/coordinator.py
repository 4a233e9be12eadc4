#!/usr/bin/python3
"""The coordinator as a process: one for all databases, its heartbeat, its row in pg_stat_activity,
its end at shutdown. Restarts with switches under way and pinned partitions; SIGKILL of it and of a
session in its commit."""

import os
import signal
import threading

from process.switching import choice
from process.restart import restart
from process.isolation import stops
from process.switching import switch_stops
from process.switching import switches
from lib.common import OURS, check, connect, create_table, drop_database, equal, main, make_database, must_come, ok, query, server, set_protocol, value, wait_until
from process.switching.choice import configure, leaf, model_file
from process.isolation.stops import stopped
from process.switching.switch_stops import let_go, settle, stand, stands, writer
from process.switching.switches import ask, coordinator, fresh, holder, mix, settled, states, steps

DATABASE, SECOND = "process_coordinator", "process_coordinator_2"
ACTIVITY = "SELECT state, query FROM pg_stat_activity WHERE backend_type = 'mixedcc coordinator'"
HISTORY = "SELECT \"table\"::text, partition, old, new FROM mixedcc.switch_history WHERE why = %s ORDER BY number"


def start(database=DATABASE):
    """What other files' helpers do, they do in this database."""
    global BOSS
    if BOSS is not None:
        BOSS.close()
    BOSS = connect(database, options="-c mixedcc.stop_events=on -c lock_timeout=5s -c synchronous_commit=on -c client_min_messages=error")
    for module in (choice, stops, switch_stops, switches):
        module.BOSS, module.DATABASE = BOSS, database


def begin_again():
    server("restart")
    start()
    check("coordinator: one runs after a restart", wait_until(coordinator, 10))


def test_heartbeat():
    check("coordinator: one runs", wait_until(coordinator, 10))
    check("coordinator: it is idle from the beginning", wait_until(lambda: query(BOSS, ACTIVITY) == [("idle", "")]), query(BOSS, ACTIVITY))
    last, passes = query(BOSS, "SELECT last_pass_at, passes FROM mixedcc.coordinator")[0]
    later = "SELECT last_pass_at > %s AND passes > %s AND last_pass_at <= now() AND last_pass_at >= started_at FROM mixedcc.coordinator"
    check("coordinator: its heart beats with nothing to do", wait_until(lambda: value(BOSS, later, (last, passes))))


def test_databases():
    """Switches in two databases at the same time, held up by one transaction of the second."""
    other = connect(SECOND)
    create_table(other, "u", "id int PRIMARY KEY, v int", partitions=3, protocol="partcc")
    query(other, "INSERT INTO u VALUES (1, 0)")
    fresh("occ")
    keep = connect(SECOND)
    query(keep, "BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE u SET v = 1 WHERE id = 1")
    set_protocol(BOSS, "t", "2pl", 1, wait=False)
    must_come(lambda: states() == ["occ", "occ+2pl"])
    check("coordinator: one switch is shown", wait_until(lambda: query(BOSS, ACTIVITY) == [("active", "switching 1 partition")]), query(BOSS, ACTIVITY))
    set_protocol(other, "u", "occ", wait=False)
    three = "SELECT DISTINCT protocol FROM mixedcc.partitions"
    must_come(lambda: query(other, three) == [("partcc+occ",)])
    check("coordinator: all switches are counted", wait_until(lambda: query(BOSS, ACTIVITY) == [("active", "switching 4 partitions")]), query(BOSS, ACTIVITY))
    equal("coordinator: also in its view", [value(c, "SELECT under_way FROM mixedcc.coordinator") for c in (BOSS, other)], [4, 4])
    shown = 'SELECT "table"::regclass::text, partition, protocol, waits_for FROM mixedcc.switches ORDER BY 2'
    holders = [keep.info.backend_pid]
    equal("coordinator: who holds it up is in another database", query(BOSS, shown), [("t", 1, "occ+2pl", holders)])
    equal("coordinator: each database sees its own", query(other, shown), [("u", n, "partcc+occ", holders) for n in range(3)])
    query(keep, "COMMIT")
    keep.close()
    done = [value(c, "SELECT mixedcc.await_switches()") for c in (BOSS, other)], states(), query(other, three)
    equal("coordinator: both are completed", done, ([True, True], ["occ", "2pl"], [("occ",)]))
    equal("coordinator: histories are apart", (query(BOSS, HISTORY, ("asked",)), sorted(query(other, HISTORY, ("asked",)))),
          ([("t", 1, "occ", "2pl")], [("u", n, "partcc", "occ") for n in range(3)]))
    check("coordinator: it is idle again", wait_until(lambda: query(BOSS, ACTIVITY) == [("idle", "")]), query(BOSS, ACTIVITY))
    query(BOSS, "DROP TABLE t")
    query(other, "DROP TABLE u")
    other.close()


def test_choices():
    """It chooses protocols in both databases."""
    choice.fast(model_file=model_file("two.json", leaf(1.0), leaf(0.9), leaf(-1.0)), adaptive_confirm="1")
    going, seen, threads = [True], {}, []

    def load(connection):
        while going[0]:
            query(connection, "UPDATE a SET v = v + 1 WHERE id = 1")

    for database in (DATABASE, SECOND):
        one = connect(database)
        create_table(one, "a", "id int PRIMARY KEY, v int")
        query(one, "INSERT INTO a VALUES (1, 0)")
        one.close()
        threads.append(threading.Thread(target=load, args=(connect(database),)))
        threads[-1].start()
    wanted = [("a", 0, "occ", "2pl")]
    try:
        for database in (DATABASE, SECOND):
            one = connect(database)
            wait_until(lambda: query(one, HISTORY, ("chosen: fits the load better",)) == wanted)
            seen[database] = query(one, HISTORY, ("chosen: fits the load better",))
            one.close()
    finally:
        going[0] = False
        for thread in threads:
            thread.join()
        choice.reset()
    equal("coordinator: it chooses in both databases", seen, {DATABASE: wanted, SECOND: wanted})


def log_file():
    """The server's: its standard error."""
    path = os.path.join(value(BOSS, "SHOW data_directory"), "postmaster.pid")
    with open(path) as file:
        return os.readlink(f"/proc/{int(file.readline())}/fd/2")


def test_restart():
    """With a switch under way and partitions pinned: the protocols that were wanted, and the pins,
    of an unlogged table are there again."""
    configure(log_switches="log")
    query(BOSS, "ALTER SYSTEM SET log_line_prefix = '%m [%p] '")
    query(BOSS, "SELECT pg_reload_conf()")
    fresh("occ", kind="UNLOGGED")
    create_table(BOSS, "free", "id int PRIMARY KEY", "UNLOGGED", partitions=2, protocol="occ")
    set_protocol(BOSS, "t", "partcc", 0)
    keep = holder("t")
    set_protocol(BOSS, "t", "2pl", 1, wait=False)
    check("coordinator: a switch is under way at shutdown", wait_until(lambda: states() == ["partcc", "occ+2pl"]), states())
    pid, log = coordinator(), log_file()
    with open(log, errors="replace") as file:
        file.seek(0, os.SEEK_END)
        begin_again()
        lines = file.read().splitlines()
    keep.close()
    kept = 'SELECT "table"::text, partition, protocol, pinned FROM mixedcc.partitions WHERE "table"::text IN (\'t\', \'free\') ORDER BY 1 DESC, 2'
    equal("coordinator: protocols and pins survive a restart", query(BOSS, kept),
          [("t", 0, "partcc", True), ("t", 1, "2pl", True), ("free", 0, "occ", False), ("free", 1, "occ", False)])
    equal("coordinator: no switch does", (steps(), value(BOSS, "SELECT count(*) FROM mixedcc.switch_history")), (set(), 0))
    ended = [line for line in lines if f"[{pid}]" in line and any(word in line for word in ("FATAL", "ERROR", "PANIC", "WARNING"))]
    equal("coordinator: it ends at shutdown without a word", ended, [])
    check("coordinator: the log is the right one", any("shut down" in line for line in lines), lines[:20])
    equal("coordinator: rows are there", value(BOSS, "SELECT count(*) FROM t"), 20)
    ask("occ")
    equal("coordinator: switches go on", (settled(), states()), (True, ["occ"] * 2))
    # A coordinator that stands at an event ends with the server too.
    stand("switch_stored")
    ask("2pl")
    check("coordinator: it stands", stands())
    begin_again()
    equal("coordinator: a shutdown does not wait for a step", (settled(), states()), (True, ["2pl"] * 2))
    query(BOSS, "ALTER SYSTEM RESET log_line_prefix")
    choice.reset()


def crashed(name, old, new):
    """After a crash: the table is empty, with the option's protocol, and nothing of the switch is
    left."""
    start()
    check(f"coordinator: {name}, one runs again", wait_until(coordinator, 10))
    found = value(BOSS, "SELECT count(*) FROM t"), states(), steps(), value(BOSS, "SELECT count(*) FROM mixedcc.switch_history")
    equal(f"coordinator: {name}, tables begin empty and settled", found, (0, [old] * 2, set(), 0))
    equal(f"coordinator: {name}, starts are counted anew", value(BOSS, "SELECT starts FROM mixedcc.coordinator"), 1)
    query(BOSS, "INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i")
    ask(new)
    equal(f"coordinator: {name}, switches go on", settle("", old, new), [])


def test_killed():
    """SIGKILL in the middle of a switch restarts the server: of the coordinator, of a session in
    its commit."""
    fresh("occ", kind="UNLOGGED")
    keep = holder("t")
    ask("2pl")
    must_come(lambda: steps() == {"upgrade"})
    restart.kill_process(coordinator())
    keep.close()
    crashed("killed", "occ", "2pl")
    for event, (old, new) in (("commit_link", ("occ", "2pl")), ("commit_decided", ("2pl", "partcc"))):
        outcome = []
        fresh(old, kind="UNLOGGED")
        stand(event)
        one, thread = writer(event, outcome)
        reached = wait_until(lambda: stopped(one.info.backend_pid))
        ask(new)
        in_middle = wait_until(lambda: states() == [mix(old, new)] * 2)
        restart.kill_process(one.info.backend_pid)
        thread.join(10)
        check(f"coordinator: a session in its commit, {event}", reached and in_middle and outcome != [None], (reached, in_middle, outcome))
        crashed(f"session killed at {event}", old, new)


def test_reload():
    """SIGHUP while it stands at an event does not end it."""
    fresh("occ", kind="UNLOGGED")
    stand("switch_stored")
    ask("2pl")
    old = coordinator()
    check("coordinator: it stands before SIGHUP", stands())
    os.kill(old, signal.SIGHUP)
    let_go()
    equal("coordinator: SIGHUP at an event", (settled(), states(), coordinator()), (True, ["2pl"] * 2, old))


def finish():
    BOSS.close()
    drop_database(DATABASE)
    drop_database(SECOND)


BOSS = None
if __name__ == "__main__":
    if not OURS:
        ok("coordinator: heap has none")
        raise SystemExit(0)
    for name in (DATABASE, SECOND):
        make_database(name).close()
    start()
    main(test_heartbeat, test_databases, test_choices, test_reload, test_restart, test_killed, finish)
