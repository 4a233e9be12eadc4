#!/usr/bin/python3
"""Switches of partitions with the coordinator, or a transaction, standing at a stop event: for each
ordered pair of protocols, at each event, both steps; released, or terminated there so that the next
coordinator has to go on. After each: transactions across it are serializable, the step waits for
those of before, the switch is complete and in the history once, no row is lost and no lock is left.
Then DDL that is open while the steps are made."""

import threading
import time

import psycopg2

from process.isolation import stops
from process.switching import switches
from lib import protocols
from lib.common import OURS, connect, drop_database, equal, main, make_database, must_come, ok, query, some_passes, value, wait_until
from process.isolation.stops import COMMIT_EVENTS, KEY, stop, stopped
from process.switching.switches import PAIRS, ask, attempt, coordinator, first, fresh, holder, mix, session, settled, skew, states, steps

DATABASE = "process_switch_stops"
STEP_EVENTS = ("switch_begin", "switch_epoch", "switch_stored", "switch_announced")
CASES = [(event, step) for step in ("upgrade", "degrade") for event in STEP_EVENTS] + \
        [("switch_finish", "end"), ("switch_finished", "end")]
ENDED = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"


def third(old, new):
    return next(p for p in protocols.ALL if p not in (old, new))


def stand(event):
    """A process that comes to the event stands there until `let_go`. For a session: see
    `stops.session`."""
    query(BOSS, "SELECT pg_advisory_lock(%s)", (KEY,))
    if event in [e for e, _ in CASES]:
        stop(BOSS, event, f"wait {KEY}")


def let_go():
    for event, _ in CASES:
        stop(BOSS, event, "off")
    query(BOSS, "SELECT pg_advisory_unlock_all()")
    must_come(lambda: not stopped(coordinator()))
    time.sleep(0.01)  # it looks again


def stands():
    """Waits for the coordinator to stand."""
    return wait_until(lambda: stopped(coordinator()))


def next_coordinator(ending):
    """Lets the coordinator go, or ends it and lets the next one begin; true: one runs."""
    old = coordinator()
    if ending == "terminated":
        query(BOSS, "SELECT pg_terminate_backend(%s)", (old,))
        must_come(lambda: value(BOSS, ENDED, (old,)) == 0)
        let_go()
    elif ending == "released":
        let_go()
    return wait_until(lambda: coordinator() is not None and (coordinator() == old) == (ending == "released"))


def begun(*statements):
    """A session whose serializable transaction has made the statements."""
    one = session()
    query(one, "SET lock_timeout = '100ms'")
    query(one, "BEGIN ISOLATION LEVEL SERIALIZABLE")
    for sql in statements:
        query(one, sql)
    return one


def history(table="t"):
    return sorted(query(BOSS, "SELECT partition, old, new FROM mixedcc.switch_history WHERE \"table\" = %s::regclass "
                              "AND why = 'asked' AND asked_by = current_user", (table,)))


def switched(old, new, partitions=2):
    return [(n, old, new) for n in range(partitions)]


def free(table="t"):
    """No lock is left, in PostgreSQL's table or in rows; a word that tells which, or None."""
    left = "SELECT count(*) FROM pg_locks WHERE pid <> pg_backend_pid() AND locktype IN ('advisory', 'relation', 'userlock', 'transactionid')"
    if not wait_until(lambda: value(BOSS, left) == 0):
        return query(BOSS, "SELECT pid, locktype, mode, granted FROM pg_locks WHERE pid <> pg_backend_pid()")
    return attempt(BOSS, f"BEGIN; SELECT 1 FROM {table} FOR UPDATE NOWAIT; COMMIT") and "rows locked"


def settle(name, old, new, wanted_history=None):
    """The errors at the end: a list of the values found, and of those that should be."""
    found = [settled(), states(), history(), value(BOSS, "SELECT count(*) FROM t"), free()]
    wanted = [True, [new] * 2, switched(old, new) if wanted_history is None else wanted_history, 20, None]
    return [(name, f, w) for f, w in zip(found, wanted) if f != w]


def across(step, ending, event, old, new):
    """One case: a transaction of before the step, one that begins while the coordinator stands, one
    that begins after."""
    name, problems = f"{old} to {new}", []
    if step == "degrade" and first(old, new) == step:
        return []  # it is the only step
    fresh(old)
    keep = before = None
    if step == "degrade":
        keep = holder("other")  # keeps the upgrade from ending
        ask(new)
        must_come(lambda: steps() == {"upgrade"})
    if step != "end":
        # Under partcc it would lock what the others read.
        follows = "SELECT v FROM t WHERE id = 3" if "partcc" not in (old, new) else "SELECT v FROM other WHERE id = 1"
        before = begun(follows)
    stand(event)
    if keep:
        query(keep, "COMMIT")
        keep.close()
    else:
        ask(new)
    if not stands():
        let_go()
        return [(name, "not reached", states(), steps())]
    if settled(limit=0):
        problems.append((name, "settled before the switch is in the history", history()))
    one, second = begun("SELECT v FROM t WHERE id = 1"), session()
    query(second, "SET lock_timeout = '100ms'")
    if not next_coordinator(ending):
        problems.append((name, "no coordinator"))
    wanted = {"upgrade": ([mix(old, new)] * 2, {first(old, new)}), "degrade": ([new] * 2, {"degrade"}), "end": ([new] * 2, set())}[step]
    if (event, step, ending) == ("switch_epoch", "degrade", "terminated"):
        # The upgrade is announced again, and waits for the transactions that were there.
        wanted = ([mix(old, new), new], {"upgrade", "degrade"})
    wait_until(lambda: (states(), steps()) == wanted)
    some_passes(BOSS, 3)
    if (states(), steps()) != wanted:
        problems.append((name, "with who was there before", states(), steps()))

    def begin(connection, sql):
        if connection is second:
            query(second, "BEGIN ISOLATION LEVEL SERIALIZABLE")
            query(second, sql)

    try:
        outcome, rows = skew(one, second, begin)
        if not outcome.count("None") == rows <= 1:
            problems.append((name, "skew", outcome, rows))
    except psycopg2.Error as error:
        if error.pgcode not in ("55P03", "40001", "40P01"):
            problems.append((name, str(error)))
    one.close()
    second.close()
    if before:
        # It touches the partition after the step.
        outcome = attempt(before, "UPDATE t SET v = v + 1 WHERE id = 20") or attempt(before, "COMMIT")
        before.close()
        if outcome not in (None, "40001") or value(BOSS, "SELECT v FROM t WHERE id = 20") != (outcome is None):
            problems.append((name, "who was there before", outcome))
    return problems + settle(name, old, new)


def killed_in(event, step):
    """Pairs in which a coordinator is terminated: the next one takes a second to start. Each event
    has all six in its two steps, but for those where one leaves what it leaves at another event
    too."""
    if event in ("switch_begin", "switch_announced", "switch_finish"):
        return PAIRS[2 if step == "upgrade" else 3:][:1]
    return PAIRS if step == "end" else PAIRS[step == "degrade"::2]


def test_steps():
    for ending in ("released", "terminated"):
        for event, step in CASES:
            pairs = killed_in(event, step) if ending == "terminated" else PAIRS
            problems = [p for old, new in pairs for p in across(step, ending, event, old, new)]
            equal(f"switch stops: {ending} at {event}, {step}", problems, [])


def test_errors():
    """An ERROR or a panic ends the coordinator once, and the next one goes on."""
    started = value(BOSS, "SELECT pg_postmaster_start_time()")
    for (event, step), action, (old, new) in zip(CASES[1::2], ("error", "panic") * 3, PAIRS):
        fresh(old)
        starts = value(BOSS, "SELECT starts FROM mixedcc.coordinator")
        stop(BOSS, event, action)
        ask(new)
        problems = settle("at the end", old, new)
        if value(BOSS, "SELECT starts FROM mixedcc.coordinator") != starts + 1:
            problems.append("it did not end")
        equal(f"switch stops: {action} at {event}, {step}, {old} to {new}", problems, [])
        if action == "panic":
            break
    equal("switch stops: the server went on", value(BOSS, "SELECT pg_postmaster_start_time()"), started)


def test_undone():
    """While the coordinator stands in the upgrade, the old protocol is asked for: it, or the next
    one, goes back at once. Partitions that it had not come to never switch."""
    for event, ending in (("switch_stored", "terminated"), ("switch_epoch", "terminated"), ("switch_stored", "released"),
                          ("switch_announced", "released")):
        problems = []
        for old, new in PAIRS if ending == "released" else PAIRS[::2] if event == "switch_stored" else PAIRS[:1]:
            name = f"{old} to {new}"
            fresh(old)
            before = holder("t")
            stand(event)
            ask(new)
            problems += [] if stands() else [(name, "not reached")]
            ask(old)
            next_coordinator(ending)
            # Before the set is stored nothing has been done; a request that comes then, even from
            # there, finds it so.
            begun_switch = event != "switch_epoch"
            wanted = ([old] * 2, {"degrade"} if begun_switch else set())
            if not wait_until(lambda: (states(), steps()) == wanted):
                problems.append((name, states(), steps()))
            query(before, "UPDATE t SET v = v + 1 WHERE id = 20; COMMIT")
            before.close()
            problems += settle(name, old, old, [(0, old, old)] if begun_switch else [])
            if value(BOSS, "SELECT v FROM t WHERE id = 20") != 2:
                problems.append((name, "lost"))
        equal(f"switch stops: undone, {ending} at {event}", problems, [])


def test_requests():
    """While the coordinator is about to complete the switch, another protocol is asked for, or put
    in use by a session that has the table locked: neither is lost."""
    for event in ("switch_finish", "switch_finished"):
        for alone in (False, True):
            problems = []
            for old, new in PAIRS:
                name, last = f"{old} to {new}", third(old, new)
                fresh(old)
                stand(event)
                ask(new)
                problems += [] if stands() else [(name, "not reached")]
                if alone:
                    query(BOSS, f"BEGIN; LOCK TABLE t; SELECT mixedcc.set_protocol('t', '{last}'); COMMIT")
                    # Partition 0 was about to end (or has ended), partition 1 is over without.
                    completed = event == "switch_finished"
                    wanted = [(0, old, new)] if completed else []
                else:
                    ask(last)
                    wanted = sorted(switched(old, new) + switched(new, last))
                let_go()
                problems += settle(name, old, last, wanted)
                if alone:
                    at_once = query(BOSS, "SELECT partition, old, new FROM mixedcc.switch_history WHERE \"table\" = 't'::regclass "
                                          "AND why = 'at once' ORDER BY 1")
                    # What ends a switch counts from its old protocol.
                    problems += [] if at_once == [(0, new if completed else old, last), (1, old, last)] else [(name, "at once", at_once)]
            equal(f"switch stops: {'put' if alone else 'asked'} at {event}", problems, [])


def writer(event, outcome):
    """A session that comes to the event in its commit; its thread."""
    one = stops.session(event, f"wait {KEY}")

    def run():
        outcome.append(attempt(one, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT v FROM t WHERE id = 1; "
                                    "UPDATE t SET v = v + 1 WHERE id IN (2, 3)") or attempt(one, "COMMIT"))

    thread = threading.Thread(target=run)
    thread.start()
    return one, thread


def test_commits():
    """A transaction stands at each event of its commit while the step is made, which waits for it;
    it goes on, or is terminated there."""
    for event in COMMIT_EVENTS:
        for ending in ("released", "terminated"):
            problems = []
            for old, new in PAIRS:
                name, outcome = f"{old} to {new}", []
                fresh(old)
                stand(event)
                one, thread = writer(event, outcome)
                pid = one.info.backend_pid
                reached = wait_until(lambda: stopped(pid))
                ask(new)
                must_come(lambda: states() == [mix(old, new)] * 2)
                # The view names the holders when the step is announced, behind its first moment.
                holders = "SELECT DISTINCT step, waits_for FROM mixedcc.switches"
                waited = [(first(old, new), [pid])]
                wait_until(lambda: query(BOSS, holders) == waited)  # noqa: B023
                held = query(BOSS, holders)
                if not reached or held != waited:
                    problems.append((name, reached, held))
                if ending == "terminated":
                    query(BOSS, "SELECT pg_terminate_backend(%s)", (pid,))
                    must_come(lambda: outcome)
                let_go()
                thread.join(10)
                rows = query(BOSS, "SELECT id, v FROM t WHERE v <> 0 ORDER BY id")
                expected = [(2, 1), (3, 1)] if outcome == [None] else []
                if rows != expected or (outcome == [None]) != (ending == "released"):
                    problems.append((name, outcome, rows))
                one.close()
                problems += settle(name, old, new)
            equal(f"switch stops: commit {ending} at {event}", problems, [])


# What it makes of the table (protocol, partitions), if it commits; `third`: the one that is not
# part of the switch.
CHANGES = {
    "TRUNCATE t": ("new", 2),
    "ALTER TABLE t SET (mixedcc.partitions = 3)": ("new", 3),
    "ALTER TABLE t ALTER v TYPE bigint": ("new", 2),
    "ALTER TABLE t SET (mixedcc.protocol = '{third}')": ("third", 2),
    "DROP TABLE t": None,
}


def names(old, new):
    return {"old": old, "new": new, "third": third(old, new)}


def in_step(step, old, new):
    """Tables `t`, in the middle of a switch, and `other`, where two transactions hold the steps
    up."""
    fresh(old)
    one = begun("SELECT v FROM other WHERE id = 1")
    ask(new)
    must_come(lambda: steps() == {first(old, new)})
    second = begun("SELECT v FROM other WHERE id = 2")
    if step == "degrade":
        one.close()
        must_come(lambda: steps() == {"degrade"})
    return one, second


def no_switch():
    return wait_until(lambda: value(BOSS, "SELECT under_way FROM mixedcc.coordinator") == 0)


def changed(sql, outcome, old, new):
    """The protocols of the partitions and the number of rows at the end; None: there is no
    table."""
    made = CHANGES[sql]
    if outcome == "ROLLBACK":
        return [new] * 2, 20
    return made and ([names(old, new)[made[0]]] * made[1], 0 if sql.startswith("TRUNCATE") else 20)


def test_ddl():
    """DDL that begins in each step and is open while the steps are completed; then it commits or
    rolls back."""
    for sql in CHANGES:
        for outcome in ("COMMIT", "ROLLBACK"):
            for step in ("upgrade", "degrade"):
                problems = []
                for old, new in PAIRS:
                    only = first(old, new) == "degrade"
                    if only and step == "degrade":
                        continue  # it is the only step
                    keep, second = in_step(step, old, new)
                    one = session()
                    query(one, "BEGIN; " + sql.format(**names(old, new)))
                    keep.close()
                    second.close()
                    if "TYPE" in sql and step == "upgrade" and not only:
                        # A rewrite writes rows, so its transaction is one that the last step waits
                        # for.
                        held = "SELECT DISTINCT step, waits_for FROM mixedcc.switches"
                        pid = one.info.backend_pid
                        done = wait_until(lambda: query(BOSS, held) == [("degrade", [pid])])
                    else:
                        done = no_switch()
                    problems += [] if done else [(old, new, "stuck", steps())]
                    query(one, outcome)
                    one.close()
                    wanted = changed(sql, outcome, old, new)
                    if not wanted:
                        left = value(BOSS, "SELECT count(*) FROM mixedcc.switches"), value(BOSS, "SELECT to_regclass('t')"), no_switch()
                        problems += [] if left == (0, None, True) else [(old, new, left)]
                        continue
                    found = settled(), (states(), value(BOSS, "SELECT count(*) FROM t")), free()
                    if found != (True, wanted, None) or outcome == "ROLLBACK" and history() != switched(old, new):
                        problems.append((old, new, found, history()))
                    query(BOSS, "INSERT INTO t VALUES (100, 1); UPDATE t SET v = 2 WHERE id = 100")
                equal(f"switch stops: {sql} open in {step}, {outcome}", problems, [])


def test_requests_in_ddl():
    """set_protocol while DDL is open: another session waits for its end; its own puts the protocol
    in use at once, in what the DDL has made, and ROLLBACK brings back what was before."""
    for sql in list(CHANGES)[:4]:
        for outcome in ("COMMIT", "ROLLBACK"):
            problems = []
            for old, new in PAIRS:
                statement, made = sql.format(**names(old, new)), CHANGES[sql]
                partitions = made[1] if outcome == "COMMIT" else 2
                fresh(old)
                one, other, answer = session(), session(), []
                query(other, "SET lock_timeout = '5s'")
                query(one, "BEGIN; " + statement)
                request = f"SELECT mixedcc.set_protocol('t', '{new}')"
                thread = threading.Thread(target=lambda: answer.append(attempt(other, request)))
                thread.start()
                waits = "SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted"
                if not wait_until(lambda: value(BOSS, waits, (other.info.backend_pid,)) == 1):
                    problems.append((old, new, "does not wait"))
                query(one, outcome)
                thread.join(10)
                found = answer, settled(), states(), free()
                problems += [] if found == ([None], True, [new] * partitions, None) else [(old, new, found)]
                fresh(old)
                query(one, f"BEGIN; {statement}; {request}")
                query(one, outcome)
                found = settled(), states(), free()
                wanted = [new if outcome == "COMMIT" else old] * partitions
                problems += [] if found == (True, wanted, None) else [(old, new, "own", found)]
                one.close()
                other.close()
            equal(f"switch stops: set_protocol in {sql}, {outcome}", problems, [])
    problems = []
    for (old, new), outcome in zip(PAIRS, ("COMMIT", "ROLLBACK") * 3):
        fresh(old)
        one = session()
        query(one, "BEGIN; CREATE INDEX ON t (v)")
        ask(new)  # does not wait
        must_come(lambda: states() != [old] * 2)
        query(one, outcome)
        one.close()
        query(BOSS, "UPDATE t SET v = id WHERE v = 0")
        problems += settle(f"{old} to {new}", old, new)
    equal("switch stops: set_protocol in CREATE INDEX", problems, [])


def start():
    global BOSS
    BOSS = connect(DATABASE, options="-c mixedcc.stop_events=on -c lock_timeout=5s -c client_min_messages=error")
    stops.BOSS = switches.BOSS = BOSS


def finish():
    BOSS.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    if not OURS:
        ok("switch stops: heap has no protocols")
        raise SystemExit(0)
    stops.DATABASE = switches.DATABASE = DATABASE
    make_database(DATABASE).close()
    start()
    fresh("occ", "other")
    main(test_steps, test_errors, test_undone, test_requests, test_commits, test_ddl, test_requests_in_ddl, finish)
