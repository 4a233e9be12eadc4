"""The crash matrix of permanent tables: the server is killed at every stop event of the durable
code, by SIGKILL of a backend, of the postmaster, by an immediate shutdown, and twice in a row. An
oracle judges the tables afterwards:

* every commit that was answered is there, and whole;
* nothing is there of a transaction that was rolled back, and all or nothing of one whose answer
  was lost;
* each account has the balance that the committed transactions give it;
* every index agrees with a sequential scan.

With a disk (lib/power.py) the power is lost with each death."""

import os
import queue
import random
import signal
import threading
import time

import psycopg2

from lib import transfers
from lib.common import (OURS, check, connect, drop_database, equal, fail_by, is_lost, keep_long, make_database, must_come, premise, query,
                        seconds, server, value, wait_until)
from lib.crash import (SERVER, await_end, configure, fails_to_start, find_server, give_back, has_postmaster, immediate,
                       is_running, kill_at_start, kill_group, postmaster, reload, start)
from lib.power import SETTINGS, Disk
from lib.standing import Point
from lib.transfers import TABLES, Oracle, accounts, make_tables

DATABASE = "process_matrix"

# Where each event is met: by a backend in a transaction, by the companion, by the startup process,
# by the first use of a table after a crash, at a clean shutdown.
BACKEND = ["gate-entered", "commit-built", "xcommit-inserted", "xcommit-marked", "commit-inserted", "commit-bits",
           "commit-marked", "commit-settled", "commit-flushed", "commit-replicated", "commit-done", "reserve-inserted",
           "reserve-raised"]
COMPANION = ["round-begins", "round-table", "bit-cleared", "batch-full", "batch-inserted", "homes-moved", "round-meta",
             "round-logged", "round-released"]
CLOSING = ["closing-shut", "closing-waited", "closing-round"]
STARTUP = ["redo-record", "redo-page"]
FIRST_USE = ["absorb-page", "absorb-meta", "absorb-truncated", "load-block", "load-registered"]
# The third drop is that of the COMMIT.
DDL = ["bulk-page", "drop-marked", "drop-marked:3"]

# --- a case ----------------------------------------------------------------------

def begin(oracle, seed, kill_at=None):
    """Workers and a disturber, beside which the server is killed."""
    SERVER["pid"] = postmaster()
    SERVER["load"] = transfers.Load(DATABASE, oracle, seed, kill_at)


def end(name):
    """The server is gone: the oracle learns what each client has seen."""
    load, SERVER["load"] = SERVER["load"], None
    return load.end(name)


def judge(oracle, name):
    connection = connect(DATABASE)
    good = oracle.judge(name, connection)
    connection.close()
    return good


def after_crash(oracle, name, dice):
    """Recovers, now and then with another crash in the middle or behind, and judges."""
    configure()
    for _ in range(dice.choice([0, 0, 1, 2])):
        kind = dice.choice(["starting", "at once", "used", "checkpoint", "clean"])
        if kind == "starting":
            kill_at_start(dice.uniform(0.02, 0.4))
            continue
        start()
        if kind in ("used", "checkpoint"):
            connection = connect(DATABASE)
            for table in dice.sample([*accounts(), *TABLES], 2):
                query(connection, f"SELECT count(*) FROM {table}")
            if kind == "checkpoint":
                query(connection, "CHECKPOINT")
            connection.close()
        if kind == "clean":
            server("stop")
        else:
            kill_group()
    start()
    return judge(oracle, name)


def until_killed(limit):
    """Waits until the server has ended by the event."""
    return wait_until(lambda: not is_running(SERVER["pid"]), limit)


def case_backend(oracle, event, dice, seed):
    begin(oracle, seed, kill_at=f"{event}:{dice.randrange(1, 6)}")
    met = until_killed(40)
    if not met:
        kill_group()
    end(event)
    premise(f"{event}: the event is met", met)
    after_crash(oracle, f"{event}: all is found", dice)


def case_undecided(oracle, ending, dice, seed):
    """A checkpoint comes while commits under a transaction id are logged and undecided. They go on
    and are answered, or are cut off; then the server is killed."""
    held, points = {}, {}
    for kind, length in (("short", 20), ("long", 40_000), ("huge", 700_000)):
        connection = connect(DATABASE, options="-c synchronous_commit=on")
        query(connection, "CREATE TABLE IF NOT EXISTS undecided (kind text, seq int, v text) USING heap")
        query(connection, "CREATE TABLE IF NOT EXISTS pending (kind text PRIMARY KEY, seq int, v text) USING mixedcc")
        keep_long(connection, "pending", "v")
        query(connection, "INSERT INTO pending VALUES (%s, 0, '') ON CONFLICT DO NOTHING", (kind,))
        points[kind] = Point("xcommit-marked")
        query(connection, f"SET mixedcc.kill_at = '{points[kind].setting}'")
        held[kind] = (connection, length)
    before = dict(query(held["short"][0], "SELECT kind, seq FROM pending"))
    outcomes = queue.Queue()

    def commit(kind):
        connection, length = held[kind]
        try:
            query(connection, f"""BEGIN; INSERT INTO undecided VALUES ('{kind}', {before[kind] + 1}, '');
                UPDATE pending SET seq = seq + 1, v = repeat('{kind[0]}', {length}) WHERE kind = '{kind}'; COMMIT""")
            outcomes.put((kind, True))
        except psycopg2.Error:
            outcomes.put((kind, False))

    clients = [threading.Thread(target=commit, args=(kind,)) for kind in held]
    boss = connect("postgres")
    query(boss, "CHECKPOINT")  # from now on nothing is dirty
    for client in clients:
        client.start()
    for point in points.values():
        point.must_stand()
    query(boss, "CHECKPOINT")
    if ending == "answered":
        for point in points.values():
            point.go()
        for client in clients:
            client.join()
    kill_group()
    for client in clients:
        client.join()
    answered = dict(outcomes.get(timeout=5) for _ in held)
    premise(f"undecided, {ending}: as planned", set(answered.values()) == {ending == "answered"}, answered)
    after_crash(oracle, f"undecided, {ending}: all other tables are found", dice)
    connection = connect(DATABASE)
    found = {kind: (seq, v) for kind, seq, v in query(connection, "SELECT kind, seq, v FROM pending")}
    connection.close()
    for kind, (_, length) in held.items():
        seq, text = found[kind]
        good = seq == before[kind] + answered[kind] and text in ("", kind[0] * length)
        check(f"undecided, {ending}: the {kind} row", good, (seq, before[kind], answered[kind], len(text)))


def case_at_once(_oracle, event, _dice, _seed):
    """Nothing else runs. The server is killed as soon as a commit is answered: it was flushed. It
    has no transaction id, so PostgreSQL does not flush it."""
    configure(mixedcc__time_marks=-1)
    reload()
    for n in range(1, 4):
        connection = connect(DATABASE, options="-c synchronous_commit=on")
        if n == 1:
            query(connection, "DROP TABLE IF EXISTS latest")
            query(connection, "CREATE TABLE latest (n int) USING mixedcc; INSERT INTO latest VALUES (0)")
            query(connection, "CHECKPOINT")
            time.sleep(0.5)
        query(connection, "UPDATE latest SET n = n + 1")
        kill_group()
        start()
        connection = connect(DATABASE)
        equal(f"{event}: commit {n} is found", query(connection, "SELECT n FROM latest"), [(n,)])
        connection.close()


def case_companion(oracle, event, dice, seed):
    begin(oracle, seed)
    time.sleep(dice.uniform(0.5, 1.5))
    configure(mixedcc__kill_at=f"{event}:{dice.randrange(1, 4)}")
    reload()
    met = until_killed(40)
    if not met:
        kill_group()
    end(event)
    premise(f"{event}: the event is met", met)
    after_crash(oracle, f"{event}: all is found", dice)


def case_closing(oracle, event, dice, seed):
    begin(oracle, seed)
    time.sleep(dice.uniform(0.5, 1.0))
    configure(mixedcc__kill_at=event)
    reload()
    time.sleep(0.2)
    pid = postmaster()
    os.kill(pid, signal.SIGINT)
    await_end(pid)
    end(event)
    with open(SERVER["log"], "rb") as log:
        log.seek(SERVER.get("read", 0))
        text = log.read()
        SERVER["read"] = log.tell()
    premise(f"{event}: the event is met", b"terminated by signal 9" in text)
    after_crash(oracle, f"{event}: all is found", dice)


def case_startup(oracle, event, dice, seed):
    """The startup process is killed once or twice; then the server recovers."""
    begin(oracle, seed)
    time.sleep(dice.uniform(0.5, 1.5))
    kill_group()
    end(event)
    met = 0
    for _ in range(dice.choice([1, 2, 3])):
        configure(mixedcc__kill_at=f"{event}:{dice.choice([1, 2, 10, 50])}")
        met += fails_to_start()
        if has_postmaster():
            kill_group()
    SERVER["met"] = SERVER.get("met", 0) + met
    after_crash(oracle, f"{event}: all is found", dice)


def case_first_use(oracle, event, dice, seed):
    """The backend that uses a table first after a crash is killed."""
    begin(oracle, seed)
    time.sleep(dice.uniform(0.5, 1.5))
    kill_group()
    end(event)
    configure()
    met = False
    for _ in range(dice.choice([1, 2])):
        start()
        for table in [*accounts(), *TABLES]:
            connection = connect(DATABASE, options=f"-c mixedcc.kill_at={event}")
            try:
                query(connection, f"SELECT count(*) FROM {table}")
            except psycopg2.Error as error:
                if not is_lost(connection, error):
                    raise
                met = True
                break
            connection.close()
        if met:
            must_come(lambda: not has_postmaster(), 60)
        else:
            kill_group()
    premise(f"{event}: the event is met", met)
    after_crash(oracle, f"{event}: all is found", dice)


def case_plain(oracle, how, dice, seed):
    begin(oracle, seed)
    time.sleep(dice.uniform(0.3, 2.0))
    if how == "backend":
        connection = connect("postgres")
        active = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND state = 'active' ORDER BY random() LIMIT 1"
        must_come(lambda: query(connection, active, (DATABASE,)))
        pids = query(connection, active, (DATABASE,)) or query(connection, "SELECT pg_backend_pid()")
        pid = postmaster()
        os.kill(pids[0][0], signal.SIGKILL)
        await_end(pid)
    elif how == "group":
        kill_group()
    elif how == "immediate":
        immediate()
    else:
        pid = postmaster()
        os.kill(pid, signal.SIGINT)
        await_end(pid)
    committed = end(how)
    premise(f"{how}: transactions commit", committed > 5, committed)
    after_crash(oracle, f"{how}: all is found", dice)


# --- DDL -------------------------------------------------------------------------

def case_ddl(oracle, event, dice, seed):
    """A transaction makes, fills, empties and drops tables. It is killed, or ends before a
    crash."""
    connection = connect(DATABASE)
    query(connection, "SET synchronous_commit = on")
    method = "mixedcc" if OURS else "heap"
    query(connection, f"DROP TABLE IF EXISTS d0, d1, d2, d3; CREATE TABLE d0 (id int PRIMARY KEY, v text) USING {method};"
                      "INSERT INTO d0 SELECT i, 'old' FROM generate_series(1, 500) i; CREATE INDEX ON d0 (v)")
    step = f"""BEGIN;
        CREATE TABLE d1 (id int PRIMARY KEY, v text) USING {method};
        INSERT INTO d1 SELECT i, repeat('x', i % 100) FROM generate_series(1, 2000) i;
        SAVEPOINT a;
        CREATE TABLE d2 USING {method} AS SELECT * FROM d0;
        TRUNCATE d0;
        ROLLBACK TO a;
        CREATE TABLE d3 USING {method} AS SELECT * FROM d0;
        UPDATE d1 SET v = 'new' WHERE id <= 1000;
        DELETE FROM d1 WHERE id > 1900;
        TRUNCATE d0;
        INSERT INTO d0 VALUES (7, 'new');
        COMMIT"""
    if event:
        query(connection, f"SET mixedcc.kill_at = '{event}'")
    pid, answered = postmaster(), True
    try:
        query(connection, step)
        if event:
            query(connection, "DROP TABLE d3; CREATE TABLE d3 AS SELECT id FROM d1")
    except psycopg2.Error as error:
        if not is_lost(connection, error):
            raise
        answered = False
    if not answered:
        await_end(pid)
    else:
        kill_group()
    premise(f"{event or 'ddl'}: the event is met", answered == (not event))
    after_crash(oracle, f"{event or 'ddl'}: all other tables are found", dice)
    connection = connect(DATABASE)
    made = value(connection, "SELECT count(*) FROM pg_class WHERE relname IN ('d1', 'd3')")
    rows = query(connection, "SELECT count(*), min(v), count(*) FILTER (WHERE v = 'new') FROM d0")
    if made:
        got = query(connection, "SELECT (SELECT count(*) FROM d1), (SELECT count(*) FROM d1 WHERE v = 'new'), (SELECT count(*) FROM d3)")
        equal(f"{event or 'ddl'}: the tables are whole", (got, rows), ([(1900, 1000, 500)], [(1, "new", 1)]))
    else:
        equal(f"{event or 'ddl'}: nothing is left of it", (answered, rows), (False, [(500, "old", 0)]))
    query(connection, "INSERT INTO d0 VALUES (1000, 'after'); UPDATE d0 SET v = 'moved' WHERE id = 1000")
    query(connection, "SET enable_seqscan = off")
    equal(f"{event or 'ddl'}: it can be written", query(connection, "SELECT id FROM d0 WHERE v = 'moved'"), [(1000,)])
    connection.close()


# --- main ------------------------------------------------------------------------

def set_up(power=None, deaf=None):
    """Tables, an oracle, and with the seed `power` a disk. It ignores syncs of the table `deaf`."""
    connection = make_database(DATABASE)
    query(connection, "CREATE EXTENSION amcheck")
    find_server(connection, *(SETTINGS if power else ()))
    make_tables(connection)
    ignored = value(connection, "SELECT pg_relation_filepath(%s)", (deaf,)) if deaf else ""
    connection.close()
    server("stop")
    configure()
    SERVER["disk"] = Disk(SERVER["data"], power, ignored) if power else None
    start()
    oracle = Oracle()
    judge(oracle, "crashes: a clean restart keeps all")
    return oracle


def tear_down():
    """The server is up, and as it was before."""
    disk = SERVER.get("disk")
    if disk:
        print(f"  the disk: {disk.losses} losses of power changed {disk.changed} files and lost {disk.lost}", flush=True)
        server("stop")
        SERVER["disk"] = None
        disk.end()
    give_back()
    server("start")
    drop_database(DATABASE)


CASES = ([(case_plain, how) for how in ("group", "backend", "immediate", "fast")]
         + [(case_ddl, None)]
         + ([(case_backend, e) for e in BACKEND] + [(case_companion, e) for e in COMPANION]
            + [(case_closing, e) for e in CLOSING] + [(case_startup, e) for e in STARTUP]
            + [(case_at_once, "at once")] + [(case_undecided, how) for how in ("answered", "cut off")]
            + [(case_first_use, e) for e in FIRST_USE] + [(case_ddl, e) for e in DDL] if OURS else []))


def run_case(case, oracle, dice, seed):
    run, event = case
    try:
        run(oracle, event, dice, f"{seed} {event}")
    except Exception as error:  # the next case goes on with the same tables
        fail_by(error, str(event), repr(error))
        configure()
        if has_postmaster():
            kill_group()
        if SERVER.get("load"):
            end(event)
        start()


def run_all(seed, cases, power=None):
    """Each case once, and then any of them, as long as there is time."""
    dice = random.Random(f"crashes {seed}")
    oracle = set_up(power)
    from_then = time.monotonic()
    for case in cases:
        run_case(case, oracle, dice, seed)
    while time.monotonic() < from_then + seconds(0):
        run_case(dice.choice(CASES), oracle, dice, f"{seed} {time.monotonic()}")
    tear_down()
