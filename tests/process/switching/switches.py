#!/usr/bin/python3
"""Switches of partitions in the middle of transactions: each interleaving by itself, then
histories with switches of random partitions every few milliseconds, at every isolation
level, while sessions and the coordinator are terminated."""

import itertools
import os
import random
import signal
import threading
import time

import psycopg2

from process.isolation import history
from lib import protocols
from lib.common import OURS, check, connect, create_table, drop_database, equal, main, make_database, must_come, ok, query, reload, seconds, set_protocol, some_passes, value, wait_until, waits_for_lock
from lib.loads import Load

DATABASE = "process_switches"
PAIRS = list(itertools.permutations(protocols.ALL, 2))
LEVELS = ["SERIALIZABLE", "REPEATABLE READ", "READ COMMITTED"]
OPTIONS = "-c deadlock_timeout=20ms -c lock_timeout=400ms -c statement_timeout=10s"


def session():
    return connect(DATABASE, options=OPTIONS)


def fresh(protocol, table="t", kind=""):
    query(BOSS, f"DROP TABLE IF EXISTS {table}")
    create_table(BOSS, table, "id int PRIMARY KEY, v int", kind, partitions=2, protocol=protocol)
    query(BOSS, f"INSERT INTO {table} SELECT i, 0 FROM generate_series(1, 20) i")


def ask(protocol, table="t", partition=None):
    set_protocol(BOSS, table, protocol, partition, wait=False)


def states(table="t"):
    """Protocols in use, by partition."""
    return [p for (p,) in query(BOSS, "SELECT protocol FROM mixedcc.partitions WHERE \"table\" = %s::regclass ORDER BY partition", (table,))]


def steps(table="t"):
    return {s for (s,) in query(BOSS, "SELECT step FROM mixedcc.switches WHERE \"table\" = %s::regclass", (table,))}


def settled(table="t", limit=10):
    return value(BOSS, "SELECT mixedcc.await_switches(%s::regclass, %s * interval '1 s')", (table, limit))


def mix(old, new):
    """The protocols in use when a switch has made its first step."""
    return protocols.first_step(old, new)[0]


def first(old, new):
    """The name of that step."""
    return protocols.first_step(old, new)[1]


def holder(table, level="SERIALIZABLE"):
    """A session whose open transaction has written a row of the table."""
    one = session()
    query(one, f"BEGIN ISOLATION LEVEL {level}")
    query(one, f"UPDATE {table} SET v = v + 1 WHERE id = 20")
    return one


def attempt(connection, sql):
    """The SQLSTATE, or None."""
    try:
        query(connection, sql)
        return None
    except psycopg2.Error as error:
        return error.pgcode or "closed"


def skew(first, second, begin):
    """Each transaction reads one row and writes the other; how many commit, and the rows at the
    end."""
    states_of, threads = {}, []
    begin(first, "SELECT v FROM t WHERE id = 1")

    def run(name, connection, statements):
        for sql in statements:
            states_of[name] = attempt(connection, sql)
            if states_of[name]:
                attempt(connection, "ROLLBACK")
                return

    begin(second, "SELECT v FROM t WHERE id = 2")
    threads.append(threading.Thread(target=run, args=("first", first, ["UPDATE t SET v = 1 WHERE id = 2", "COMMIT"])))
    threads.append(threading.Thread(target=run, args=("second", second, ["UPDATE t SET v = 1 WHERE id = 1", "COMMIT"])))
    for thread, connection in zip(threads, (first, second)):
        thread.start()
        must_come(lambda: not thread.is_alive() or waits_for_lock(BOSS, connection.info.backend_pid))  # noqa: B023
    for thread in threads:
        thread.join()
    rows = value(BOSS, "SELECT sum(v) FROM t WHERE id IN (1, 2)")
    return sorted(map(str, states_of.values())), rows


def test_pairs():
    """A transaction from before the switch and one from its middle; one from the middle and one
    from its end."""
    problems = []
    for old, new in PAIRS:
        for middle in (False, True):
            fresh(old)
            first, second = session(), session()
            keep = holder("t")  # keeps the upgrade from ending
            query(first, "BEGIN ISOLATION LEVEL SERIALIZABLE")
            if not middle:
                query(first, "SELECT v FROM t WHERE id = 3")
            ask(new)
            must_come(lambda: states() == [mix(old, new)] * 2)

            def begin(connection, sql):
                if connection is second:
                    if middle:
                        query(keep, "COMMIT")
                        must_come(lambda: states() == [new] * 2)
                    query(second, "BEGIN ISOLATION LEVEL SERIALIZABLE")
                query(connection, sql)

            # Under partcc the second one waits for the first, and the first fails or goes on.
            try:
                outcome, rows = skew(first, second, begin)
                good = outcome.count("None") == rows <= 1
                if not good:
                    problems.append((old, new, middle, outcome, rows))
            except psycopg2.Error as error:
                if error.pgcode not in ("55P03", "40001", "40P01"):
                    problems.append((old, new, middle, str(error)))
            for connection in (first, second, keep):
                connection.close()
            if not settled() or states() != [new] * 2:
                problems.append((old, new, middle, "not settled", states()))
    equal("switches: no write skew across any step of any pair", problems, [])


def test_holders():
    """A transaction that does not end is shown, delays no other, and its end completes the
    switch."""
    for level in LEVELS:
        fresh("occ")
        keep = holder("t", level)
        ask("2pl")
        must_come(lambda: states() == ["occ+2pl"] * 2)
        pids = value(BOSS, "SELECT waits_for FROM mixedcc.switches LIMIT 1")
        equal(f"switches: the view names who holds the step up, {level}", pids, [keep.info.backend_pid])
        others = session()
        for i in range(1, 10):
            query(others, f"BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE t SET v = v + 1 WHERE id = {i}; COMMIT")
        equal(f"switches: others go on, {level}", (states(), steps()), (["occ+2pl"] * 2, {"upgrade"}))
        check(f"switches: nobody waits for them, {level}", not settled(limit=0.2))
        query(keep, "UPDATE t SET v = v + 1 WHERE id = 19; COMMIT")
        check(f"switches: its end completes them, {level}", settled() and states() == ["2pl"] * 2)
        equal(f"switches: nothing is lost, {level}", value(BOSS, "SELECT sum(v) FROM t"), 11)
        keep.close()
        others.close()
    readers = session()
    query(readers, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM t")
    ask("occ")
    check("switches: who only reads snapshots holds nothing up", settled())
    readers.close()


def test_savepoints():
    for old, new in PAIRS:
        fresh(old)
        one = session()
        query(one, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT v FROM t WHERE id = 1; SAVEPOINT s; UPDATE t SET v = 5 WHERE id = 1")
        ask(new)
        must_come(lambda: states() == [mix(old, new)] * 2)
        query(one, "UPDATE t SET v = 6 WHERE id = 2; ROLLBACK TO s; UPDATE t SET v = v + 1 WHERE id = 1; SAVEPOINT r; UPDATE t SET v = v + 1 WHERE id = 3; RELEASE r; COMMIT")
        rows = query(BOSS, "SELECT id, v FROM t WHERE v <> 0 ORDER BY id")
        equal(f"switches: savepoints, {old} to {new}", (settled(), states(), rows), (True, [new] * 2, [(1, 1), (3, 1)]))
        query(one, "UPDATE t SET v = 9")
        one.close()


def test_dying_backends():
    fresh("occ")
    keep = holder("t")
    ask("partcc")
    must_come(lambda: steps() == {"upgrade"})
    late = session()
    query(late, "BEGIN; UPDATE t SET v = 1 WHERE id = 1")
    query(BOSS, "SELECT pg_terminate_backend(%s)", (keep.info.backend_pid,))
    must_come(lambda: steps() == {"degrade"})
    pids = value(BOSS, "SELECT waits_for FROM mixedcc.switches LIMIT 1")
    equal("switches: a terminated session holds nothing up, one of the middle holds the second step", pids, [late.info.backend_pid])
    late.close()
    check("switches: a closed session neither", settled() and states() == ["partcc"] * 2)


def coordinator():
    return value(BOSS, "SELECT pid FROM mixedcc.coordinator")


def test_coordinator():
    """Terminated in each step: a new one goes on."""
    shown = query(BOSS, "SELECT pid, datname FROM pg_stat_activity WHERE backend_type = 'mixedcc coordinator'")
    equal("switches: the coordinator is in pg_stat_activity, in no database", shown, [(coordinator(), None)])
    for step, state in (("upgrade", "occ+2pl"), ("degrade", "2pl")):
        fresh("occ")
        keep = holder("t")
        ask("2pl")
        must_come(lambda: steps() == {"upgrade"})
        if step == "degrade":
            late = session()
            query(late, "BEGIN; UPDATE t SET v = 1 WHERE id = 1")
            query(keep, "COMMIT")
            keep.close()
            keep = late
            must_come(lambda: steps() == {"degrade"})
        old = coordinator()
        starts = value(BOSS, "SELECT starts FROM mixedcc.coordinator")
        query(BOSS, "SELECT pg_terminate_backend(%s)", (old,))
        check(f"switches: a new coordinator starts, {step}", wait_until(lambda: coordinator() not in (None, old)))
        equal(f"switches: it finds the step, {step}", (states(), steps()), ([state] * 2, {step}))
        equal(f"switches: starts are counted, {step}", value(BOSS, "SELECT starts FROM mixedcc.coordinator"), starts + 1)
        query(keep, "COMMIT")
        keep.close()
        check(f"switches: and completes it, {step}", settled() and states() == ["2pl"] * 2)
    os.kill(coordinator(), signal.SIGHUP)
    check("switches: SIGHUP does not end it", wait_until(lambda: coordinator() is not None))


def test_requests():
    """One switch at a time: later requests are queued, the last one counts; back to the old one at
    once."""
    fresh("occ")
    keep = holder("t")
    ask("2pl")
    must_come(lambda: steps() == {"upgrade"})
    ask("partcc")
    ask("partcc")
    equal("switches: a second request is queued", states(), ["occ+2pl"] * 2)
    wanted = query(BOSS, "SELECT DISTINCT old, new FROM mixedcc.switches")
    equal("switches: and shown", wanted, [("occ", "partcc")])
    ask("occ")
    check("switches: back to the old one does not wait", wait_until(lambda: states() == ["occ"] * 2) and steps() == {"degrade"})
    ask("partcc")
    query(keep, "COMMIT")
    keep.close()
    check("switches: the last request counts", settled() and states() == ["partcc"] * 2)
    last = query(BOSS, "SELECT old, new FROM mixedcc.switch_history WHERE partition = 0 ORDER BY number DESC LIMIT 2")
    equal("switches: the history tells", last, [("occ", "partcc"), ("occ", "occ")])
    one = session()
    query(one, "BEGIN; SELECT mixedcc.set_protocol('t', 'occ', 1); ROLLBACK")
    one.close()
    equal("switches: ROLLBACK does not undo a request", (settled(), states()), (True, ["partcc", "occ"]))
    equal("switches: requests pin", query(BOSS, "SELECT pinned FROM mixedcc.partitions"), [(True,)] * 2)
    query(BOSS, "SELECT mixedcc.unpin('t', 0)")
    equal("switches: unpin", query(BOSS, "SELECT pinned FROM mixedcc.partitions ORDER BY partition"), [(False,), (True,)])


def test_ddl():
    """DROP, TRUNCATE, ALTER and rewrites in the middle of a switch that another table's writer
    holds up."""
    changes = {
        "TRUNCATE t": ["2pl"] * 2,
        "ALTER TABLE t SET (mixedcc.partitions = 3)": ["2pl"] * 3,
        "ALTER TABLE t ALTER v TYPE bigint": ["2pl"] * 2,
        "ALTER TABLE t SET (mixedcc.protocol = 'partcc')": ["partcc"] * 2,
        "VACUUM t": ["2pl"] * 2,
    }
    for sql, wanted in changes.items():
        for outcome in ("COMMIT", "ROLLBACK"):
            if sql.startswith("VACUUM") and outcome == "ROLLBACK":
                continue
            fresh("occ")
            fresh("occ", "other")
            keep = holder("other")
            ask("2pl")
            must_come(lambda: steps() == {"upgrade"})
            one = session()
            query(one, sql if sql.startswith("VACUUM") else f"BEGIN; {sql}; {outcome}")
            one.close()
            query(keep, "UPDATE other SET v = 7 WHERE id = 1; COMMIT")
            keep.close()
            done = settled()
            equal(f"switches: {sql}, {outcome}", (done, states()), (True, wanted if outcome == "COMMIT" else ["2pl"] * 2))
            query(BOSS, "INSERT INTO t VALUES (100, 1); UPDATE t SET v = 2 WHERE id = 100; DROP TABLE other")
    fresh("occ")
    fresh("occ", "other")
    keep = holder("other")
    ask("2pl")
    must_come(lambda: steps() == {"upgrade"})
    query(BOSS, "DROP TABLE t")
    equal("switches: DROP ends them", value(BOSS, "SELECT count(*) FROM mixedcc.switches"), 0)
    query(keep, "COMMIT")
    keep.close()
    check("switches: the coordinator lives", wait_until(lambda: value(BOSS, "SELECT under_way FROM mixedcc.coordinator") == 0))


def test_alone():
    """A session that holds the table's lock switches at once, also for what the transaction has
    done before."""
    fresh("occ")
    one = session()
    query(one, "BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE t SET v = 1 WHERE id = 1; LOCK TABLE t; SELECT mixedcc.set_protocol('t', 'partcc')")
    query(one, "UPDATE t SET v = v + 1 WHERE id IN (1, 2)")
    equal("switches: at once with the table locked", states(), ["partcc"] * 2)
    query(one, "COMMIT")
    equal("switches: and nothing is lost", query(BOSS, "SELECT id, v FROM t WHERE v <> 0 ORDER BY id"), [(1, 2), (2, 1)])
    fresh("occ", "other")
    keep = holder("other")
    ask("2pl")
    must_come(lambda: steps() == {"upgrade"})
    for protocol in ("occ", "occ", "partcc"):
        query(one, f"BEGIN; LOCK TABLE t; SELECT mixedcc.set_protocol('t', '{protocol}'); COMMIT")
    query(keep, "COMMIT")
    keep.close()
    last = query(BOSS, "SELECT old, new, why FROM mixedcc.switch_history WHERE \"table\" = 't'::regclass AND partition = 0 ORDER BY number")
    equal("switches: what ends a switch at once is in the history", (states(), last),
          (["partcc"] * 2, [("occ", "partcc", "at once"), ("partcc", "occ", "at once"), ("occ", "partcc", "at once")]))
    query(BOSS, "DROP TABLE other")
    equal("switches: a transaction that holds its own switch up is told", attempt(one,
          "BEGIN; UPDATE t SET v = 1; SELECT mixedcc.set_protocol('t', 'occ'); SELECT pg_sleep(0.1); SELECT mixedcc.await_switches('t')"), "55000")
    query(one, "ROLLBACK")
    one.close()
    check("switches: until it ends", settled() and states() == ["occ"] * 2)


def test_stop_all():
    """The method that benchmarks compare with: no transaction begins until none runs."""
    fresh("occ")
    query(BOSS, "ALTER SYSTEM SET mixedcc.switch_method = 'stop_all'")
    reload(BOSS)
    try:
        keep = holder("t")
        ask("2pl")
        must_come(lambda: steps() == {"stop all"})
        other, outcome = session(), []
        thread = threading.Thread(target=lambda: outcome.append(attempt(other, "UPDATE t SET v = 3 WHERE id = 3")))
        thread.start()
        pid = other.info.backend_pid
        # It looks again and again, without a wait event.
        must_come(lambda: value(BOSS, "SELECT state FROM pg_stat_activity WHERE pid = %s", (pid,)) == "active")
        some_passes(BOSS, 5)
        equal("switches: stop_all stops", (outcome, states()), ([], ["occ"] * 2))
        query(keep, "UPDATE t SET v = 4 WHERE id = 4; COMMIT")
        thread.join(10)
        equal("switches: and goes on", (outcome, settled(), states()), ([None], True, ["2pl"] * 2))
        keep.close()
        other.close()
    finally:
        query(BOSS, "ALTER SYSTEM RESET mixedcc.switch_method")
        reload(BOSS)


def disturb(until, kill):
    """Switches random partitions every few milliseconds; terminates sessions and the
    coordinator."""
    boss, draw = connect(DATABASE), random.Random(5)
    next_session, next_coordinator = time.monotonic() + 0.2, time.monotonic() + 0.7
    while time.monotonic() < until:
        table, partition, protocol = draw.choice("ab"), draw.randrange(4), draw.choice(protocols.ALL)
        set_protocol(boss, table, protocol, partition, wait=False)
        time.sleep(draw.choice([0.001, 0.003, 0.006]))
        if kill and time.monotonic() > next_session:
            next_session += 0.2
            query(boss, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid() "
                        "AND application_name = 'process test' AND backend_start < now() - interval '100 ms' ORDER BY random() LIMIT 1", (DATABASE,))
        if kill and time.monotonic() > next_coordinator:
            next_coordinator += 1.7
            query(boss, "SELECT pg_terminate_backend(pid) FROM mixedcc.coordinator WHERE pid IS NOT NULL")
    boss.close()


def test_histories():
    """All levels, each waiting policy, with and without deaths."""
    loads = []
    for policy in ("wait", "wait_die", "no_wait"):
        loads.append((f"switches, {policy}", policy, Load(["a", "b"], ["a", "b"]), False))
    loads.append(("switches, all levels", "wait", Load(["a", "b"], ["a", "b"], levels=history.ALL_LEVELS), False))
    loads.append(("switches, long transactions", "wait", Load(["a", "b"], ["a", "b"], keys=40, length=14, levels=history.ALL_LEVELS), False))
    loads.append(("switches, terminated", "wait", Load(["a", "b"], ["a", "b"], levels=history.ALL_LEVELS, killed=True), True))
    BOSS.close()
    duration = seconds(16, long=48) / len(loads)
    for name, policy, load, kill in loads:
        connection = connect(DATABASE)
        settings = {"protocol": "occ", "waiting_policy": policy}
        history.make_tables(connection, settings, settings)
        first = value(connection, "SELECT coalesce(max(number), 0) FROM mixedcc.switch_history")
        connection.close()
        history.DATABASE = DATABASE
        connection = connect(DATABASE, options="-c application_name=judge")
        query(connection, "SET application_name = 'judge'")
        history.judge(name, load, connection, duration, lambda until: disturb(until, kill))
        check(f"{name}: no switch is left", value(connection, "SELECT mixedcc.await_switches(NULL, '20 s')"))
        made = value(connection, "SELECT max(number) FROM mixedcc.switch_history") - first
        check(f"{name}: switches are made", made >= 20 * duration / 4, f"{made} switches")
        pairs = value(connection, "SELECT count(DISTINCT (old, new)) FROM mixedcc.switch_history WHERE old <> new AND number > %s", (first,))
        equal(f"{name}: between all pairs", pairs, len(PAIRS))
        query(connection, "INSERT INTO a SELECT i, ARRAY[1] FROM generate_series(1000, 1020) i; UPDATE a SET l = l; UPDATE b SET l = l; DROP TABLE a, b")
        connection.close()


if __name__ == "__main__":
    if not OURS:
        ok("switches: heap has no protocols")
        raise SystemExit(0)
    BOSS = make_database(DATABASE)
    main(test_pairs, test_holders, test_savepoints, test_dying_backends, test_coordinator, test_requests, test_ddl,
         test_alone, test_stop_all, test_histories, lambda: drop_database(DATABASE))
