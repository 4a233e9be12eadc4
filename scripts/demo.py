"""The demonstration's rounds, table and crash:  demo.py SOCKET_DIR BIN_DIR SECONDS

scripts/demo calls it.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
from lib import protocols  # noqa: E402
from lib.runner import Job, Result, RunError, Server, run  # noqa: E402

HEAP_DATABASE = "demo_heap"
MIXEDCC_DATABASE = "demo"
ACCOUNT_PARTITIONS = 16
TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history", "hot")
# The mix: each account partition has one of the three in turn, every other table its own.
MIX = {"pgbench_branches": "partcc", "pgbench_tellers": "2pl", "pgbench_history": "occ", "hot": "partcc"}

# Retried errors are what some rounds are about; writing each to the log would be measured too.
QUIET = {"log_min_messages": "fatal"}

HOT_TABLE = "CREATE TABLE hot (k int PRIMARY KEY, v bigint NOT NULL);"
HOT_FUNCTION = """
INSERT INTO hot SELECT k, 0 FROM generate_series(1, 50) k;
CREATE FUNCTION hot_mix() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    row_key int;
    value bigint;
    total bigint := 0;
BEGIN
    FOR i IN 1 .. 10 LOOP
        row_key := 1 + floor(random() * 50);
        SELECT v INTO value FROM hot WHERE k = row_key;
        total := total + value;
        UPDATE hot SET v = value + 1 WHERE k = row_key;
    END LOOP;
    row_key := 1 + floor(random() * 100000);
    UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = row_key;
    RETURN total;
END $$;
"""
POINT_SCRIPT = """\\set aid random(1, 100000)
UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;
"""
SUMS = """SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(bbalance) FROM pgbench_branches),
    (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT coalesce(sum(delta), 0) FROM pgbench_history),
    (SELECT count(*) FROM pgbench_history), (SELECT sum(v) FROM hot)"""


@dataclasses.dataclass(frozen=True)
class Sums:
    accounts: int
    branches: int
    tellers: int
    history: int
    history_rows: int
    hot: int

    @classmethod
    def of(cls, server: Server, database: str) -> "Sums":
        return cls(*map(int, server.psql(database, SUMS).split("|")))

    def since(self, before: "Sums") -> "Sums":
        return Sums(*(now - then for now, then in
                      zip(dataclasses.astuple(self), dataclasses.astuple(before))))


@dataclasses.dataclass(frozen=True)
class Workload:
    title: str
    clients: int
    source: dict[str, str]  # builtin=... or script=...

    def is_right(self, gained: Sums, committed: int) -> bool:
        """No update lost, none twice: what the tables gained is what pgbench committed."""
        if "builtin" in self.source:
            balances = {gained.accounts, gained.branches, gained.tellers, gained.history}
            return len(balances) == 1 and gained.history_rows == committed
        if "hot" in self.source["script"]:
            return gained.hot == 10 * committed and gained.accounts == committed
        return gained.accounts == committed


def load(server: Server, database: str, mixedcc: bool) -> None:
    """pgbench's own tables and loader as they stand, and the hot table."""
    server.psql("postgres", f"DROP DATABASE IF EXISTS {database} WITH (FORCE)",
                {"client_min_messages": "warning"})
    server.psql("postgres", f"CREATE DATABASE {database}")
    settings = {"client_min_messages": "warning"}
    if mixedcc:
        server.psql(database, "CREATE EXTENSION mixedcc")
        settings |= {"default_table_access_method": "mixedcc",
                     "mixedcc.default_partitions": str(ACCOUNT_PARTITIONS)}
    command = [f"{server.bin_dir}/pgbench", "-i", "-q", "-s", "1", database]
    done = subprocess.run(command, env=server.environment(settings), capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        raise RunError(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
    # Fifty rows that everybody wants are one partition.
    settings |= {"mixedcc.default_partitions": "1"} if mixedcc else {}
    server.psql(database, HOT_TABLE, settings)
    server.psql(database, HOT_FUNCTION)
    server.psql(database, "VACUUM ANALYZE")


def set_protocols(server: Server, name: str) -> None:
    """Puts every partition of the demonstration's tables under a protocol, or the mix."""
    if name != "mix":
        calls = [f"SELECT mixedcc.set_protocol('{table}', '{name}');" for table in TABLES]
    else:
        calls = [f"SELECT mixedcc.set_protocol('{table}', '{protocol}');"
                 for table, protocol in MIX.items()]
        calls += [f"SELECT mixedcc.set_protocol('pgbench_accounts', '{protocols.ALL[p % len(protocols.ALL)]}', {p});"
                  for p in range(ACCOUNT_PARTITIONS)]
    server.psql(MIXEDCC_DATABASE, "\n".join(calls))


def play_round(server: Server, workload: Workload, engine: str, seconds: int) -> tuple[Result, bool]:
    database = HEAP_DATABASE if engine == "heap" else MIXEDCC_DATABASE
    if engine != "heap":
        set_protocols(server, engine)
    before = Sums.of(server, database)
    result = run(server, Job(database, seconds, clients=workload.clients, settings=QUIET, **workload.source))
    gained = Sums.of(server, database).since(before)
    return result, workload.is_right(gained, result.committed)


def control(server: Server, command: str) -> None:
    """Runs scripts/server, on the server's own directory."""
    home = str(pathlib.Path(server.socket_dir).parent)
    subprocess.run([str(pathlib.Path(__file__).resolve().parent / "server"), command], check=True,
                   env={**os.environ, "MIXEDCC_HOME": home}, stdin=subprocess.DEVNULL)


def crash(server: Server, seconds: int) -> bool:
    """Kills the server in the middle of transfers. Afterwards every transaction that was answered
    is there, and each of the others is there as a whole or not at all."""
    set_protocols(server, "mix")
    before = Sums.of(server, MIXEDCC_DATABASE)
    job = Job(MIXEDCC_DATABASE, 600, clients=8, builtin="tpcb-like")
    settings = {"default_transaction_isolation": job.isolation, "synchronous_commit": "on", **QUIET}
    with subprocess.Popen(job.command(server.bin_dir), env=server.environment(settings), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as pgbench:
        time.sleep(seconds)
        control(server, "kill9")
        output, _ = pgbench.communicate(timeout=60)
    answered = re.search(r"transactions actually processed: (\d+)", output)
    if not answered:
        raise RunError(f"pgbench says nothing of its transactions:\n{output}")
    control(server, "start")
    gained = Sums.of(server, MIXEDCC_DATABASE).since(before)
    balances = {gained.accounts, gained.branches, gained.tellers, gained.history}
    least, found = int(answered[1]), gained.history_rows
    right = len(balances) == 1 and 0 < least <= found <= least + job.clients
    print(f"kill -9 of the server in the middle of tpcb-like, 8 clients, synchronous_commit = on.\n"
          f"  answered: {least}, found after the restart: {found}, sums: {'right' if right else 'WRONG'}")
    return right


def table_line(name: str, result: Result, right: bool) -> str:
    if result.committed:
        per_commit = f"{result.cpu_us_per_transaction:>12,.0f} {result.retries_per_commit:>15.3f}"
    else:
        per_commit = f"{'-':>12} {'-':>15}"
    check = "right" if right else "WRONG"
    return (f"  {name:<17}{result.tps:>10,.0f} {per_commit} {result.failed:>7} "
            f"{result.latency_ms:>11.2f}   {check}")


def print_table(rows: list[tuple[Workload, str, Result, bool]]) -> None:
    print(f"\nAll at SERIALIZABLE, on permanent tables, with synchronous_commit = off.\n"
          f"  {'':<17}{'tps':>10} {'CPU us / tx':>12} {'retries / commit':>16} {'failed':>6} "
          f"{'latency ms':>11}   sums")
    title = None
    for workload, engine, result, right in rows:
        if workload.title != title:
            title = workload.title
            print(f"{title}, {workload.clients} clients")
        print(table_line(engine if engine == "heap" else f"mixedcc {engine}", result, right))
    print("CPU: of the server's processes. failed: still without a commit when the round ended.\n"
          "sums: the tables gained exactly what pgbench committed.")


def main() -> int:
    server = Server(socket_dir=sys.argv[1], bin_dir=sys.argv[2])
    seconds = int(sys.argv[3])
    with tempfile.TemporaryDirectory() as directory:
        point, hot = pathlib.Path(directory, "point.sql"), pathlib.Path(directory, "hot.sql")
        point.write_text(POINT_SCRIPT)
        hot.write_text("SELECT hot_mix();\n")
        workloads = (
            Workload("UPDATE of one of 100,000 accounts by key", 2, {"script": str(point)}),
            Workload("pgbench's tpcb-like, scale 1", 8, {"builtin": "tpcb-like"}),
            Workload("function: reads and updates 10 of 50 hot rows, random order", 8, {"script": str(hot)}),
        )
        print("Loading pgbench's tables into heap and into mixedcc ...", flush=True)
        load(server, HEAP_DATABASE, mixedcc=False)
        load(server, MIXEDCC_DATABASE, mixedcc=True)
        rounds = [(w, e) for w in workloads for e in ("heap", *protocols.ALL, "mix")]
        rows = []
        for number, (workload, engine) in enumerate(rounds, start=1):
            print(f"[{number:>2}/{len(rounds)}] {workload.title}: {engine} ...", end=" ", flush=True)
            result, right = play_round(server, workload, engine, seconds)
            print(f"{result.tps:,.0f} tps", flush=True)
            rows.append((workload, engine, result, right))
        print_table(rows)
        rights = [right for *_, right in rows] + [crash(server, seconds)]
    return 0 if all(rights) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RunError as error:
        sys.exit(f"\nerror: {error}")
