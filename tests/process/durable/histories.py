#!/usr/bin/python3
"""Histories through crashes: random transactions on permanent tables, under each protocol and each
ordered pair, at all levels, while the server is killed and the power is lost. Clients go on when it
is up again. Some transactions are prepared, and outlive the server. The checker judges the whole
history: each answered commit is there, a commit without an answer is there as a whole or not at
all, and all that is there is serializable, also across the crashes. In the configurations `columns`
each column is an item, and tables learn which ones do not change.

`histories NAME...` runs some configurations. `histories --fault NAME` needs a build with the
feature `faults`: the checker must reject a history with this fault. CHECK_HISTORY names the
checker."""

import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

import psycopg2

from lib import columns, crash, protocols
from lib.common import check, connect, drop_database, fail, failures, make_database, ok, options, query, seconds, server
from lib.crash import SERVER
from lib.loads import Client, Load, write_last
from lib.power import SETTINGS, Disk

DATABASE = "process_durable_histories"
CLIENTS = 5
CRASHES = 3
LEVELS = {"serializable": 5, "serializable read only": 1, "repeatable read": 2, "read committed": 2}
# The server restarts, or has just died.
GONE = {"57P01", "57P02", "57P03", None}
# How long a client waits for the server, s.
PATIENCE = 90.0
# Of each client: prepared transactions that outlived the server.
SURVIVED = []


class Survivor(Client):
    """A client that outlives the server. So does what it has prepared."""

    # So many prepared transactions outlived the server.
    survived = 0

    def connect(self):
        end = time.monotonic() + PATIENCE
        while True:
            try:
                super().connect()
                self.cursor.execute("SET synchronous_commit = on")
                self.cursor.execute(f"SET mixedcc.early_release = {'on' if self.number % 2 else 'off'}")
                self.finish_prepared()
                return
            except psycopg2.Error as error:
                if error.pgcode not in GONE or time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def finish_prepared(self):
        """What the server's end has left of this client: it commits or not, and all of it. If there
        is nothing, it was not prepared, or finished as the client wanted."""
        if self.step is None:
            return
        self.cursor.execute("SELECT FROM pg_prepared_xacts WHERE gid = %s", (self.gid(),))
        if self.cursor.fetchone() is not None:
            self.step = "COMMIT" if self.number % 2 else "ROLLBACK"
            self.cursor.execute(f"{self.step} PREPARED '{self.gid()}'")
            self.survived += 1
        self.settled, self.step = "committed" if self.step == "COMMIT" else "aborted", None

    def failed(self, error):
        # After a crash the gate is shut until the companion has come.
        if self.connection.closed or error.pgcode in GONE:
            self.connection.close()
        super().failed(error)


class ColumnSurvivor(Survivor, columns.ColumnClient):
    """The same, with two columns."""


def client(kind, number, load, path, stop, results):
    problems, commits, survived = [], 0, 0
    try:
        one = kind(DATABASE, number, load, path)
        while not stop.is_set() and len(one.problems) < 5:
            one.transaction()
        one.file.close()
        problems, commits, survived = one.problems, one.done["commits"], one.survived
    except Exception:
        problems = [traceback.format_exc()]
    results.put((commits, problems, survived))


def make_tables(connection, first, second, more):
    query(connection, "DROP TABLE IF EXISTS a, b")
    for table, settings in (("a", first), ("b", second)):
        query(connection, f"CREATE TABLE {table} (k int PRIMARY KEY, l bigint[]{more}) USING mixedcc {options(partitions=4, **settings)}")
    query(connection, "CREATE INDEX ON b (k)")


def crashes(dice, duration):
    """Kills the server some times. After the last crash the clients go on for a while."""
    for _ in range(CRASHES):
        time.sleep(duration / (CRASHES + 1) * dice.uniform(0.5, 1.5))
        if dice.random() < 0.3:
            crash.immediate()
        else:
            crash.kill_group()
        crash.start()
        if dice.random() < 0.5:
            boss = connect("postgres")
            query(boss, "CHECKPOINT")
            boss.close()
    time.sleep(duration / (CRASHES + 1))


def judge(name, first, second, load, duration, dice):
    by_column = name.startswith("columns")
    kind, last = (ColumnSurvivor, columns.write_last) if by_column else (Survivor, write_last)
    connection = connect(DATABASE)
    make_tables(connection, first, second, ", m bigint[]" if by_column else "")
    connection.close()
    directory = tempfile.mkdtemp(prefix="mixedcc-history-")
    results, stop = multiprocessing.Queue(), multiprocessing.Event()
    clients = [multiprocessing.Process(target=client, daemon=True, args=(kind, n, load, f"{directory}/{n}.jsonl", stop, results))
               for n in range(1, CLIENTS + 1)]
    for one in clients:
        one.start()
    crashes(dice, duration)
    stop.set()
    outcomes = [results.get(timeout=PATIENCE + 30) for _ in clients]
    for one in clients:
        one.join(30)
    connection = connect(DATABASE)
    last(connection, ["a", "b"], f"{directory}/last.jsonl")
    connection.close()
    files = sorted(f"{directory}/{file}" for file in os.listdir(directory))
    # Snapshots leave out commits that are not done, so they need not be prefixes of the serial
    # order.
    arguments = [os.environ["CHECK_HISTORY"], "--real-time", "--no-prefix", *files]
    done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    problems = [problem for _, some, _ in outcomes for problem in some]
    SURVIVED.extend(survived for _, _, survived in outcomes)
    check(f"histories {name}: no unexpected error", not problems, "\n".join(problems[:3]))
    commits = [commits for commits, _, _ in outcomes]
    check(f"histories {name}: each client commits", min(commits) > 10, commits)
    if check(f"histories {name}: correct", done.returncode == 0, done.stdout[:2500] + done.stdout[-200:]):
        shutil.rmtree(directory)
        return True
    print(f"  kept: {directory}", flush=True)
    return False


def configurations():
    """Name, the tables' settings."""
    settings = protocols.variants()
    single = {name: settings[protocols.patient(name)] for name in protocols.ALL}
    for name in protocols.ALL:
        yield name, single[name], single[name]
    for first in protocols.ALL:
        for second in protocols.ALL:
            if first != second:
                yield f"{first}, {second}", single[first], single[second]
    for name in protocols.having("locks_reads"):
        yield f"columns, {name}", single[name], single[name]


def begin(seed, *more):
    connection = make_database(DATABASE)
    crash.find_server(connection, *SETTINGS, f"mixedcc.column_period = '{columns.PERIOD}'", *more)
    connection.close()
    server("stop")
    crash.configure()
    SERVER["disk"] = Disk(SERVER["data"], f"histories {seed}")
    crash.start()


def end():
    server("stop")
    SERVER.pop("disk").end()
    crash.give_back()
    server("start")
    drop_database(DATABASE)


def main():
    fault = sys.argv[2] if sys.argv[1:2] == ["--fault"] else None
    wanted = [protocols.ALL[0]] if fault else sys.argv[1:]
    chosen = [one for one in configurations() if not wanted or one[0] in wanted]
    load = Load(["a", "b"], ["a", "b"], levels=LEVELS, killed=True)
    load.prepares = 0.0 if fault else 0.3
    begin(1, *([f"mixedcc.fault = '{fault}'", "mixedcc.time_marks = -1"] if fault else []))
    for name, first, second in chosen:
        try:
            judge(name, first, second, load, seconds(28, long=90) / len(chosen), random.Random(f"histories {name}"))
        except Exception:
            fail(f"histories {name}", traceback.format_exc())
            break
    if not wanted:
        check("histories: prepared transactions outlive the server", sum(SURVIVED) > 2, sum(SURVIVED))
        print(f"  prepared transactions that outlived the server: {sum(SURVIVED)}", flush=True)
    if not failures or fault:
        end()
    if fault:
        ok(f"found: {fault}") if f"histories {wanted[0]}: correct" in failures else fail(f"found: {fault}")
        sys.exit(0)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
