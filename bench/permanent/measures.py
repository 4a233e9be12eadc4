"""The measurements of bench/durable. Each adds its rows; one that fails is noted and left out."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import glob
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from lib import cluster, latency, report, runner
from permanent import plan
from statements import workloads

DATABASE = "postgres"
CHECKPOINT_RATE, CHECKPOINT_CLIENTS = 1000, 4
# checkpoint_timeout where a checkpoint is spread, in seconds.
SPREAD_OVER = 30
START_SECONDS = 1800


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class OutOfTime(Exception):
    """The whole run has had its minutes."""


class Measures:
    """Where results go, and what is to be measured."""

    def __init__(self, rows: report.Rows, given: argparse.Namespace, settings: dict[str, str]):
        self.rows, self.given, self.settings = rows, given, settings
        self.sizes: plan.Sizes = given.sizes
        self.failures: list[str] = []

    @contextlib.contextmanager
    def attempt(self, what: str):
        """One measurement that fails is reported and left out; the others go on."""
        try:
            yield
        except (runner.RunError, cluster.ClusterError, ValueError, subprocess.TimeoutExpired) as failure:
            self.failures.append(f"{what}: {failure}")
            say(self.failures[-1])

    def add(self, test: str, label: str, number: int, metrics: dict[str, float],
            engine: workloads.Engine, **more: object) -> None:
        self.rows.add(test, label, number, metrics, engine=engine.name, protocol=engine.protocol,
                      table=engine.using(), **more)
        figures = " ".join(f"{name} {report.number(value)}" for name, value in metrics.items())
        say(f"{test:20} round {number}  {label:28} {figures}")

    def wants(self, *tests: str) -> bool:
        return any(test in self.given.only for test in tests)

    @contextlib.contextmanager
    def server(self, **changed: str):
        """A new server: (cluster, server)."""
        settings = {**self.settings, **changed}
        with cluster.private_cluster(self.given.directory, settings) as private:
            server = private.start()
            server.psql(DATABASE, "CREATE EXTENSION mixedcc")
            yield private, server

    def run(self) -> None:
        with self.attempt("loads"):
            self.loads()
        if self.wants(plan.INSTRUCTIONS):
            self.instructions()
        for wal in plan.WAL:
            if self.wants(wal.name):
                with self.attempt(wal.name):
                    self.wal(wal)
        if self.wants(plan.DECODING):
            with self.attempt(plan.DECODING):
                self.decoding()
        if self.wants(plan.MEMORY):
            with self.attempt(plan.MEMORY):
                self.memory()
        if self.wants(plan.LATENCY):
            with self.attempt(plan.LATENCY):
                self.latency(plan.LATENCY)
        if self.wants(plan.REPLAY):
            for engine in plan.LOGGED:
                with self.attempt(f"{plan.REPLAY}, {engine.name}"):
                    self.replay(engine)
        if self.wants(plan.SPREAD):
            with self.attempt(plan.SPREAD):
                self.latency(plan.SPREAD)

    # What scripts cost.

    def loads(self) -> None:
        loads = [load for load in (*plan.CPU_LOADS, *plan.COMMIT_LOADS) if self.wants(load.name)]
        if not loads:
            return
        with self.server() as (_, server):
            for engine in plan.ALL:
                make(server, engine, self.sizes.rows)
            for load in loads:
                for number in range(1, self.sizes.rounds + 1):
                    for engine in load.engines[::1 if number % 2 else -1]:
                        with self.attempt(f"{load.name}, {engine.name}"):
                            self.load(server, load, engine, number)

    def load(self, server: runner.Server, load: plan.Load, engine: workloads.Engine, number: int) -> None:
        sql(server, engine, "VACUUM item")
        before = total(server, engine, self.sizes.rows)
        server.psql(DATABASE, "CHECKPOINT")
        result = runner.run(server, runner.Job(
            database=DATABASE, seconds=self.sizes.seconds, clients=load.clients,
            script=str(workloads.DIRECTORY / "scripts" / f"{load.script}.pgbench"),
            isolation=load.isolation, seed=self.given.seed + number,
            variables={"rows": self.sizes.rows},
            settings={"search_path": engine.schema, **load.settings}))
        cpu = server.cpu_seconds()
        server.psql(DATABASE, "CHECKPOINT")
        cpu = server.cpu_seconds() - cpu + result.server_cpu_seconds
        added = total(server, engine, self.sizes.rows) - before
        if added != result.committed * workloads.ADDED_BY_SCRIPT[load.script]:
            raise runner.RunError(f"wrong result: {result.committed} transactions added {added}")
        self.add(load.name, engine.name, number,
                 {"tps": result.tps, "cpu_us": result.cpu_us_per_transaction,
                  "cpu_us_checkpoint": cpu / max(result.committed, 1) * 1e6},
                 engine, clients=load.clients, isolation=load.isolation)

    def instructions(self) -> None:
        program = cluster.program("instructions")
        given = argparse.Namespace(only=["update1"], isolations=[plan.RC], rows=5000, aging=0,
                                   filler=plan.FILLER, passes=self.sizes.passes, keep=False,
                                   output=self.given.output)
        settings = {**self.settings, **plan.OFF}
        found = {}
        for engine in plan.ALL:
            with self.attempt(f"{plan.INSTRUCTIONS}, {engine.name}"):
                with cluster.private_cluster(self.given.directory, settings) as private:
                    count = program.count_on_server(private, engine, given)
                found[engine.name] = count[plan.RC, "update1"]
                self.add(plan.INSTRUCTIONS, engine.name, 1,
                         {"instructions": found[engine.name]}, engine)
        if plan.PERMANENT.name in found and plan.UNLOGGED.name in found:
            added = found[plan.PERMANENT.name] - found[plan.UNLOGGED.name]
            self.add(plan.INSTRUCTIONS, plan.PERMANENT.name, 1, {"added": added}, plan.PERMANENT)

    def wal(self, wal: plan.Wal) -> None:
        row_count = self.sizes.wal_rows
        updates = int(row_count * wal.share)
        call = wal.call.format(rows=row_count, updates=updates)
        with self.server() as (_, server):
            for engine in plan.LOGGED:
                make(server, engine, row_count)
                before = total(server, engine, row_count)
                server.psql(DATABASE, "CHECKPOINT")
                begin = server.psql(DATABASE, "SELECT pg_current_wal_insert_lsn()")
                sql(server, engine, f"SET synchronous_commit = off; CALL {call}")
                server.psql(DATABASE, "CHECKPOINT")
                size = float(server.psql(DATABASE, f"SELECT pg_current_wal_insert_lsn() - '{begin}'"))
                if total(server, engine, row_count) - before != updates:
                    raise runner.RunError(f"{engine.name} has lost updates")
                self.add(wal.name, engine.name, 1, {"wal_bytes": size / updates}, engine)

    def decoding(self) -> None:
        row_count = self.sizes.wal_rows
        with self.server(**plan.LOGICAL) as (_, server):
            server.psql(DATABASE, "CREATE PUBLICATION all_tables FOR ALL TABLES")
            for engine in plan.LOGGED:
                make(server, engine, row_count)
            for number in range(1, self.sizes.rounds + 1):
                for engine in plan.LOGGED[::1 if number % 2 else -1]:
                    with self.attempt(f"{plan.DECODING}, {engine.name}"):
                        self.add(plan.DECODING, engine.name, number,
                                 decoded(server, engine, row_count), engine)

    # Memory, checkpoints, recovery.

    def memory(self) -> None:
        row_count = self.sizes.dirty_rows
        live = {}
        for engine in (plan.UNLOGGED, plan.PERMANENT):
            with self.server() as (_, server):
                before = live_bytes(server)
                make(server, engine, row_count)
                server.psql(DATABASE, "CHECKPOINT")
                live[engine.name] = (live_bytes(server) - before) / row_count
                self.add(plan.MEMORY, engine.name, 1, {"bytes": live[engine.name]}, engine)
        more = live[plan.PERMANENT.name] - live[plan.UNLOGGED.name]
        self.add(plan.MEMORY, plan.PERMANENT.name, 1, {"bytes_more": more}, plan.PERMANENT)

    def latency(self, test: str) -> None:
        """`test`: plan.LATENCY or plan.SPREAD."""
        timeout = f"{SPREAD_OVER}s" if test == plan.SPREAD else "1h"
        with self.server(checkpoint_timeout=timeout) as (private, server):
            for engine in plan.LOGGED:
                make(server, engine, self.sizes.dirty_rows)
            for number in range(1, min(self.sizes.rounds, 3) + 1):
                for engine in plan.LOGGED:
                    self.one_checkpoint(private, server, engine, number, test)

    def one_checkpoint(self, private: cluster.Cluster, server: runner.Server,
                       engine: workloads.Engine, number: int, test: str) -> None:
        """A checkpoint with all rows dirty, in the middle of updates at a fixed rate."""
        spread = test == plan.SPREAD
        server.psql(DATABASE, "CHECKPOINT")
        sql(server, engine, "UPDATE item SET value = value + 1")
        prefix = os.path.join(private.root, "latency")
        span: list[float] = []

        def checkpoint() -> None:
            time.sleep(self.sizes.seconds / 2)
            span.append(time.time())
            # The start of a backup that is not fast waits for a spread checkpoint.
            server.psql(DATABASE, "SELECT pg_backup_start('bench', false)" if spread else "CHECKPOINT")
            span.append(time.time())

        thread = threading.Thread(target=checkpoint, daemon=True)
        thread.start()
        runner.run(server, runner.Job(
            database=DATABASE, clients=CHECKPOINT_CLIENTS,
            seconds=3 * self.sizes.seconds + (SPREAD_OVER if spread else 0),
            script=str(workloads.DIRECTORY / "scripts" / "update1.pgbench"), isolation=plan.RC,
            rate=CHECKPOINT_RATE, variables={"rows": self.sizes.dirty_rows}, log_prefix=prefix,
            settings={"search_path": engine.schema, **plan.OFF}))
        thread.join()
        if len(span) < 2:
            raise runner.RunError("the checkpoint has failed")
        inside, outside = latency.read_logs_split(prefix, *span)
        for label, times in ((plan.INSIDE, inside), (plan.OUTSIDE, outside)):
            metrics = {"p99_ms": latency.percentile(times, 0.99), "committed": len(times)}
            if label == plan.INSIDE:
                metrics["checkpoint_s"] = span[1] - span[0]
            self.add(test, f"{engine.name} {label}", number, metrics, engine,
                     clients=CHECKPOINT_CLIENTS)

    def replay(self, engine: workloads.Engine) -> None:
        """Two tables, each row updated once after a checkpoint; a crash; replay; a load of both."""
        row_count = self.sizes.replay_rows // 2
        memory = max(1024, self.sizes.replay_rows * plan.BYTES_FOR_A_ROW >> 20)
        tables = [dataclasses.replace(engine, name=f"{engine.name}_{i}") for i in (1, 2)]
        with self.server(**{"mixedcc.memory": str(memory), "log_min_messages": "log"}) as (private, server):
            for table in tables:
                make(server, table, row_count)
            server.psql(DATABASE, "CHECKPOINT")
            at_once([lambda t=t: sql(server, t, "SET synchronous_commit = off;"
                                     f"CALL in_hundreds({row_count})") for t in tables])
            # Asynchronous commits are on disk before a synchronous one is.
            server.psql(DATABASE, "CREATE TABLE last_commit ()")
            files = [sql(server, t, "SELECT pg_relation_filepath('item')") for t in tables]
            private.crash()
            begin = time.monotonic()
            server = private.start(START_SECONDS)
            metrics = {"start_s": time.monotonic() - begin, "replay_s": replay_seconds(private.log)}
            if engine.is_mixedcc:
                size = sum(file_bytes(os.path.join(private.data, file)) for file in files)
                begin = time.monotonic()
                at_once([lambda t=t: sql(server, t, "SELECT FROM item WHERE id = 1") for t in tables])
                seconds = (time.monotonic() - begin) * len(tables)
                metrics.update(load_mb_s=size / 1e6 / seconds, load_rows_s=2 * row_count / seconds)
            for table in tables:
                if total(server, table, row_count) != row_count:
                    raise runner.RunError(f"{table.schema} has not the rows that were committed")
            self.add(plan.REPLAY, engine.name, 1, metrics, engine)


def make(server: runner.Server, engine: workloads.Engine, row_count: int) -> None:
    """The engine's schema, with its table and functions."""
    server.psql(DATABASE, f'CREATE SCHEMA "{engine.schema}"')
    places = (workloads.DIRECTORY / "sql" / "schema.sql", workloads.DIRECTORY / "sql" / "functions.sql",
              plan.DIRECTORY / "sql" / "functions.sql")
    for place in places:
        sql(server, engine, engine.fill(place.read_text(encoding="utf-8"), row_count, plan.FILLER))
    sql(server, engine, "VACUUM (ANALYZE) item")


def sql(server: runner.Server, engine: workloads.Engine, text: str) -> str:
    return server.psql(DATABASE, text, {"search_path": engine.schema})


def total(server: runner.Server, engine: workloads.Engine, row_count: int) -> int:
    """The sum of the values; an error unless all rows are there."""
    count, value = sql(server, engine, "SELECT count(*), sum(value) FROM item").split("|")
    if int(count) != row_count:
        raise runner.RunError(f"{count} rows in {engine.schema} of {row_count}")
    return int(value)


def decoded(server: runner.Server, engine: workloads.Engine, row_count: int) -> dict[str, float]:
    """One update of each row, a transaction each, and what the plugins make of their WAL."""
    sql(server, engine, "VACUUM item")
    server.psql(DATABASE, "CHECKPOINT")
    for plugin in plan.PLUGINS:
        server.psql(DATABASE, f"SELECT pg_create_logical_replication_slot('{plugin}', '{plugin}')")
    try:
        begin = server.psql(DATABASE, "SELECT pg_current_wal_insert_lsn()")
        metrics = {"cpu_us": cpu_us(
            server, row_count,
            lambda: sql(server, engine, f"SET synchronous_commit = off; CALL scattered({row_count}, 1)"))}
        size = float(server.psql(DATABASE, f"SELECT pg_current_wal_insert_lsn() - '{begin}'"))
        metrics["wal_bytes"] = size / row_count
        # Slots read what is flushed.
        server.psql(DATABASE, "CHECKPOINT")
        for plugin, changes in plan.PLUGINS.items():
            lines: list[str] = []
            one = cpu_us(server, row_count, lambda: lines.append(server.psql(
                DATABASE, f"SELECT count(*) FROM {changes.format(slot=plugin)}")))
            if int(lines[0]) < plan.LINES_OF_A_CHANGE * row_count:
                raise runner.RunError(f"{plugin} has said {lines[0]} lines of {row_count} changes")
            metrics.update({f"{plugin}_us": one, f"{plugin}_rate": 1e6 / one})
        return metrics
    finally:
        for plugin in plan.PLUGINS:
            server.psql(DATABASE, f"SELECT pg_drop_replication_slot('{plugin}')")


def cpu_us(server: runner.Server, count: int, action: Callable[[], object]) -> float:
    """Server CPU of an action, in microseconds, for each of `count`."""
    server.wait_for_clients_to_leave(DATABASE)
    begin = server.cpu_seconds()
    action()
    server.wait_for_clients_to_leave(DATABASE)
    return (server.cpu_seconds() - begin) / count * 1e6


def live_bytes(server: runner.Server) -> int:
    """Of objects. The region hands out pages of 2 MB, which would hide a few bytes a row."""
    return int(server.psql(DATABASE, "SELECT live_bytes FROM mixedcc.memory"))


def file_bytes(path: str) -> int:
    """Of all forks and segments of a relation."""
    return sum(os.path.getsize(name) for pattern in ("", ".*", "_*")
               for name in glob.glob(glob.escape(path) + pattern))


def replay_seconds(log: str) -> float:
    """Of the last replay in a server's log."""
    text = pathlib.Path(log).read_text(errors="replace")
    found = re.findall(r"redo done at .* elapsed: ([\d.]+) s", text)
    if not found:
        raise runner.RunError(f"no replay in the server's log:\n{text[-2000:]}")
    return float(found[-1])


def at_once(actions: list) -> None:
    """Runs them at the same time; the first error, if any, is raised at the end."""
    with concurrent.futures.ThreadPoolExecutor(len(actions)) as pool:
        for done in [pool.submit(action) for action in actions]:
            done.result()
