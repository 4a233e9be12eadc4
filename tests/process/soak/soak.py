#!/usr/bin/python3
"""A soak of permanent tables: load, and random deaths of the server and its processes, for as long
as asked. Each death is followed by a recovery, often by further deaths in it, and by the oracles.
Half of the deaths are losses of power.

    soak [--minutes 60] [--crashes 200] [--seed 1]

The load is that of the crash matrix (lib/transfers.py: transfers under all protocols in tables of
ours and of heap, savepoints, switches, VACUUM, checkpoints). Beside it a session changes
definitions, and one reads by snapshots for a second or two. It fails if there were fewer crashes
than asked, or any violation."""

import argparse
import collections
import multiprocessing
import os
import random
import signal
import sys
import time

import psycopg2

from lib import crash, matrix, transfers
from lib.common import check, connect, fail, failures, ok, query, value, wait_until
from lib.crash import SERVER, await_end, configure, has_postmaster, kill_group, postmaster

GENERATIONS = 3
PROCESSES = ("checkpointer", "mixedcc companion", "mixedcc coordinator", "background writer", "walwriter", "autovacuum launcher")


# --- a session that changes definitions ------------------------------------------------

def make_generations(connection):
    """Tables whose rows all are of their last generation, which a heap table has too."""
    query(connection, "SET client_min_messages = warning")
    query(connection, "CREATE TABLE generations (t int, seq int) USING heap")
    for t in range(GENERATIONS):
        query(connection, f"CREATE TABLE g{t} (id int PRIMARY KEY, v int, pad text) USING mixedcc")
        query(connection, f"INSERT INTO generations VALUES ({t}, 0)")


def rows_of(seq):
    return 20 + seq * 37 % 700


def fill(t, seq):
    return f"INSERT INTO g{t} SELECT i, {seq}, repeat('g', i % 300) FROM generate_series(1, {rows_of(seq)}) i"


def generation(t, seq, dice):
    """Statements of one transaction, after which all rows of the table are new."""
    columns = "(id int PRIMARY KEY, v int, pad text) USING mixedcc"
    ways = {
        "truncate": [f"TRUNCATE g{t}", fill(t, seq)],
        "create": [f"DROP TABLE g{t}", f"CREATE TABLE g{t} {columns}", fill(t, seq)],
        "filled": [f"DROP TABLE g{t}", f"CREATE TABLE g{t} {columns}", fill(t, seq), f"CREATE INDEX ON g{t} (v)"],
        "delete": [f"DELETE FROM g{t}", fill(t, seq)],
        "rewrite": [f"TRUNCATE g{t}", fill(t, seq), f"ALTER TABLE g{t} SET ACCESS METHOD heap",
                    f"ALTER TABLE g{t} SET ACCESS METHOD mixedcc"],
        "savepoint": [f"DELETE FROM g{t}", "SAVEPOINT s", f"TRUNCATE g{t}", fill(t, -1), "ROLLBACK TO s", fill(t, seq)],
    }
    return ways[dice.choice(list(ways))]


def define(database, seed, first, results):
    """Until the server is gone: new generations, and indexes of the accounts."""
    dice, seq, answered, problem = random.Random(f"{seed} define"), first, [0] * GENERATIONS, ""
    try:
        connection = connect(database, options="-c synchronous_commit=on -c lock_timeout=3s -c client_min_messages=warning")
        while True:
            time.sleep(dice.uniform(0, 0.1))
            try:
                if dice.random() < 0.4:
                    change_indexes(connection, dice)
                    continue
                t, seq = dice.randrange(GENERATIONS), seq + 1
                for statement in ["BEGIN", *generation(t, seq, dice), f"INSERT INTO generations VALUES ({t}, {seq})"]:
                    query(connection, statement)
                if dice.random() < 0.1:
                    query(connection, "ROLLBACK")
                    continue
                query(connection, "COMMIT")
                answered[t] = seq
                if dice.random() < 0.2:
                    query(connection, f"VACUUM g{t}")
            except psycopg2.Error as error:
                if connection.closed or error.pgcode not in ("55P03", "40P01", "40001", "0A000"):
                    raise
                query(connection, "ROLLBACK")
    except psycopg2.Error as error:
        problem = "" if error.pgcode in (None, "57P01", "57P02", "57P03") else f"define: {error!r}"
    results.put((seq, answered, problem))


def change_indexes(connection, dice):
    name = f"soak_{dice.randrange(3)}"
    if dice.random() < 0.5:
        return query(connection, f"DROP INDEX IF EXISTS {name}")
    table, column = dice.choice([*((account, "balance") for account in transfers.accounts()), ("queue", "v"), ("notes", "seq")])
    how = dice.choice(["", "CONCURRENTLY"])
    query(connection, f"DROP INDEX IF EXISTS {name}")
    return query(connection, f"CREATE INDEX {how} {name} ON {table} ({column})")


def judge_generations(connection, answered, problems):
    for t in range(GENERATIONS):
        seq = value(connection, f"SELECT max(seq) FROM generations WHERE t = {t}")
        found = query(connection, f"SELECT count(*), min(v), max(v), sum(length(pad)) FROM g{t}")[0]
        wanted = (rows_of(seq), seq, seq, sum(i % 300 for i in range(1, rows_of(seq) + 1))) if seq else (0, None, None, None)
        if found != wanted:
            problems.append(f"g{t}: found {found}, not {wanted}")
        if seq < answered[t]:
            problems.append(f"g{t}: generation {answered[t]} is lost, {seq} is found")
        query(connection, "SET enable_seqscan = off")
        if value(connection, f"SELECT count(*) FROM g{t} WHERE id > 0") != found[0]:
            problems.append(f"g{t}: its key does not agree with its rows")
        if value(connection, f"SELECT count(*) FROM g{t} WHERE v >= 0") != found[0]:
            problems.append(f"g{t}: its index does not agree with its rows")
        query(connection, "RESET enable_seqscan")
        query(connection, f"SELECT mixedcc.check_primary_index('g{t}')")


def judge_made_indexes(connection, problems):
    made = query(connection, """SELECT c.oid::regclass::text, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        WHERE c.relname ~ '^(soak_|g[0-9]_v)'""")
    for name, valid in made:
        try:
            # One that a crash has left half built.
            query(connection, f"SELECT bt_index_check('{name}', true)" if valid else f"DROP INDEX {name}")
        except psycopg2.Error as error:
            problems.append(f"{name}: {error}")


# --- a session that reads by snapshots ---------------------------------------------------

READERS = ("REPEATABLE READ", "SERIALIZABLE READ ONLY")


def report(database, seed, results):
    """Until the server is gone: transactions that read the accounts again and again."""
    dice, problem = random.Random(f"{seed} report"), ""
    try:
        connection = connect(database, options="-c lock_timeout=3s")
        while not problem:
            try:
                query(connection, f"BEGIN ISOLATION LEVEL {dice.choice(READERS)}")
                problem = read_again(connection, dice)
                query(connection, "COMMIT")
            except psycopg2.Error as error:
                if connection.closed or error.pgcode not in ("55P03", "40P01"):
                    raise
                query(connection, "ROLLBACK")
    except psycopg2.Error as error:
        problem = "" if error.pgcode in (None, "57P01", "57P02", "57P03") else f"report: {error!r}"
    results.put(problem)


def read_again(connection, dice):
    """What is wrong with the transaction's reads."""
    balances = {table: rows_by(connection, table, "") for table in transfers.accounts()}
    total = sum(balance for rows in balances.values() for _, balance in rows)
    if total != transfers.START * transfers.ACCOUNTS * len(balances):
        return f"report: a snapshot has {total} in all accounts"
    for _ in range(dice.randrange(1, 6)):
        time.sleep(dice.uniform(0, 0.4))
        table, way = dice.choice(list(balances)), dice.choice(["seqscan", "indexscan", ""])
        rows = rows_by(connection, table, way)
        if rows != balances[table]:
            return f"report: {table} was {balances[table]}, and is {rows} (without {way})"
    return ""


def rows_by(connection, table, way):
    """The accounts of a table, read without a way to read."""
    if way:
        query(connection, f"SET LOCAL enable_{way} = off")
    rows = sorted(query(connection, f"SELECT id, balance FROM {table} WHERE id > 0"))
    if way:
        query(connection, f"SET LOCAL enable_{way} = on")
    return rows


# --- deaths ------------------------------------------------------------------------

def death(dice):
    """A way to die."""
    return dice.choice([*matrix.BACKEND, *matrix.COMPANION, "backend", "backend", "group", "group", "group", "immediate", "fast",
                        *PROCESSES, *PROCESSES])


def kill_process(kind):
    connection = connect("postgres")
    where = "datname = %s AND state = 'active'" if kind == "backend" else "backend_type = %s"
    sql = f"SELECT pid FROM pg_stat_activity WHERE {where} ORDER BY random() LIMIT 1"
    found = wait_until(lambda: query(connection, sql, (matrix.DATABASE if kind == "backend" else kind,)), 5)
    pids = query(connection, sql, (matrix.DATABASE if kind == "backend" else kind,)) if found else []
    pid = postmaster()
    if not pids:
        return kill_group()
    os.kill(pids[0][0], signal.SIGKILL)
    return await_end(pid)


def die(how, dice):
    """The server runs under load; afterwards it is gone."""
    time.sleep(dice.uniform(0.3, 3.0))
    if how in matrix.BACKEND or how in matrix.COMPANION:
        if how in matrix.COMPANION:
            configure(mixedcc__kill_at=f"{how}:{dice.randrange(1, 4)}")
            crash.reload()
        if not matrix.until_killed(20):
            kill_group()
    elif how == "group":
        kill_group()
    elif how == "immediate":
        crash.immediate()
    elif how == "fast":
        pid = postmaster()
        os.kill(pid, signal.SIGINT)
        await_end(pid)
    else:
        kill_process(how)


def starts(dice, disk, counts):
    """Starts the server, with or without a loss of power, and perhaps kills it again."""
    configure()
    while dice.random() < 0.35:
        SERVER["disk"] = disk if dice.random() < 0.5 else None
        crash.kill_at_start(dice.uniform(0.05, 1.0))
        counts["in recovery"] += 1
    SERVER["disk"] = disk if dice.random() < 0.5 else None
    crash.start()
    SERVER["disk"] = disk


def cycle(soak, dice, n):
    """A load, a death, a recovery, a judgement."""
    how = death(dice)
    SERVER["pid"] = postmaster()
    definer = multiprocessing.Process(target=define, daemon=True, args=(matrix.DATABASE, n, soak.seq, soak.results))
    definer.start()
    reporter = multiprocessing.Process(target=report, daemon=True, args=(matrix.DATABASE, n, soak.reports))
    reporter.start()
    load = transfers.Load(matrix.DATABASE, soak.oracle, n, f"{how}:{dice.randrange(1, 6)}" if how in matrix.BACKEND else None)
    try:
        die(how, dice)
    finally:
        if has_postmaster() and crash.is_running(SERVER["pid"]):
            kill_group()
        soak.committed += load.end("soak")
        soak.seq, answered, problem = soak.results.get(timeout=120)
        wrong = soak.reports.get(timeout=120)
        for session in (definer, reporter):
            session.join(30)
    soak.answered = [max(pair) for pair in zip(soak.answered, answered)]
    problems = [p for p in (problem, wrong) if p]
    soak.counts[how] += 1
    starts(dice, soak.disk, soak.counts)
    connection = connect(matrix.DATABASE)
    print(f"  crash {n}: {how}", flush=True)
    good = soak.oracle.judge("soak: all is found", connection)
    judge_generations(connection, soak.answered, problems)
    judge_made_indexes(connection, problems)
    connection.close()
    return check("soak: definitions and indexes", not problems, "\n".join(problems)) and good


class Soak:
    def __init__(self, seed):
        self.oracle = matrix.set_up(power=f"soak {seed}")
        self.disk = SERVER["disk"]
        self.results, self.reports = multiprocessing.Queue(), multiprocessing.Queue()
        self.seq, self.answered, self.committed = 0, [0] * GENERATIONS, 0
        self.counts = collections.Counter()
        connection = connect(matrix.DATABASE)
        make_generations(connection)
        connection.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--crashes", type=int, default=200)
    parser.add_argument("--seed", default="1")
    options = parser.parse_args()
    print(f"  seed {options.seed}", flush=True)
    dice = random.Random(f"soak {options.seed}")
    soak, end = Soak(options.seed), time.monotonic() + 60 * options.minutes
    n = 0
    while time.monotonic() < end and not failures:
        n += 1
        try:
            cycle(soak, dice, f"{options.seed}.{n}")
        except Exception as error:
            fail("soak: a crash is survived", f"{n}: {error!r}")
    total = sum(soak.counts.values())
    print(f"  {total} crashes, {soak.disk.losses} losses of power ({soak.disk.changed} files changed, {soak.disk.lost} lost), "
          f"{soak.committed} answered commits, {soak.seq} changes of definitions: {dict(soak.counts)}", flush=True)
    if not failures:
        ok("soak: no violation")
        check("soak: as many crashes as asked", total >= options.crashes, total)
        matrix.tear_down()
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
