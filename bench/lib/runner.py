"""Runs one pgbench job on a server and measures it: throughput, latency,
retries, failures, and the server's CPU time (not pgbench's).

    server = Server(socket_dir="/tmp/mixedcc-root/sockets")
    job = Job(database="demo", builtin="tpcb-like", clients=8, seconds=6)
    result = run(server, job)
    print(result.tps, result.cpu_us_per_transaction)

The server is any PostgreSQL of this machine that listens on a Unix socket; no
setting of it is changed. Needs only Python's standard library and pgbench.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import time

CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# pgbench ends its last transactions after the duration, so it gets this long.
GRACE_SECONDS = 120
BACKEND_EXIT_SECONDS = 5


class RunError(Exception):
    """pgbench or psql failed; the text holds the end of its messages."""


@dataclasses.dataclass(frozen=True)
class Server:
    """A running server, found by its socket directory."""

    socket_dir: str
    port: int = 5432
    user: str = "postgres"
    bin_dir: str = "/usr/lib/postgresql/15/bin"

    def environment(self, settings: dict[str, str] | None = None) -> dict[str, str]:
        """The libpq environment of a client, with session settings."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
        env.update(PGHOST=self.socket_dir, PGPORT=str(self.port), PGUSER=self.user)
        if settings:
            escape = lambda value: str(value).replace("\\", "\\\\").replace(" ", "\\ ")
            env["PGOPTIONS"] = " ".join(f"-c {k}={escape(v)}" for k, v in settings.items())
        return env

    def psql(self, database: str, sql: str, settings: dict[str, str] | None = None) -> str:
        """Runs SQL and returns its unaligned rows; an SQL error is a RunError."""
        command = [f"{self.bin_dir}/psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", database]
        done = subprocess.run(command, input=sql, env=self.environment(settings),
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RunError(f"psql on {database}: {done.stderr.strip()[-2000:]}")
        return done.stdout.strip()

    def postmaster_pid(self) -> int:
        lock_file = pathlib.Path(self.socket_dir, f".s.PGSQL.{self.port}.lock")
        return int(lock_file.read_text().split()[0])

    def cpu_seconds(self) -> float:
        """User and system time of the postmaster and all its processes, ended ones too.

        The postmaster's own line holds the time of the children it has reaped; a
        difference of two calls is right when the same children run at both, and
        none is reaped between the looks at its line and the postmaster's.
        """
        postmaster = self.postmaster_pid()
        while True:
            reaped = _stat_fields(postmaster)[13:15]
            ticks = sum(_cpu_ticks(pid) for pid in [postmaster, *_children(postmaster)])
            if _stat_fields(postmaster)[13:15] == reaped:
                return ticks / CLOCK_TICKS_PER_SECOND

    def wait_for_clients_to_leave(self, database: str) -> None:
        """Waits until the backends of a finished pgbench are gone, so that their time is reaped.

        Looks at the process titles: a query would cost the server the time that is measured.
        """
        deadline = time.monotonic() + BACKEND_EXIT_SECONDS
        title = f" {database} [local]".encode()
        postmaster = self.postmaster_pid()
        while (any(title in _process_title(pid) for pid in _children(postmaster))
               and time.monotonic() < deadline):
            time.sleep(0.02)


@dataclasses.dataclass(frozen=True)
class Job:
    """One pgbench run of `builtin`, of `script` (the path of a file), or of `scripts`: (path,
    weight) each, of which every transaction draws one."""

    database: str
    seconds: int
    builtin: str | None = None
    script: str | None = None
    clients: int = 2
    threads: int = 1
    isolation: str = "serializable"
    query_mode: str = "prepared"
    max_tries: int = 0  # 0: until it commits
    scale: int | None = None
    seed: int | None = None
    variables: dict[str, object] = dataclasses.field(default_factory=dict)
    settings: dict[str, str] = dataclasses.field(default_factory=dict)
    scripts: tuple[tuple[str, int], ...] = ()
    rate: int | None = None  # transactions a second; none: as many as it can
    log_prefix: str | None = None  # pgbench writes a line for each transaction to files named so

    def command(self, bin_dir: str) -> list[str]:
        if (self.builtin is not None) + (self.script is not None) + bool(self.scripts) != 1:
            raise ValueError("a job has either a builtin or a script or scripts")
        source = ["-b", self.builtin] if self.builtin else ["-f", str(self.script)]
        if self.scripts:
            source = [word for path, weight in self.scripts for word in ("-f", f"{path}@{weight}")]
        command = [f"{bin_dir}/pgbench", "-n", *source, "-M", self.query_mode,
                   "-c", str(self.clients), "-j", str(self.threads), "-T", str(self.seconds),
                   f"--max-tries={self.max_tries}", "--failures-detailed"]
        if self.scale is not None:
            command += ["-s", str(self.scale)]
        if self.seed is not None:
            command += [f"--random-seed={self.seed}"]
        if self.rate is not None:
            command += [f"--rate={self.rate}"]
        if self.log_prefix is not None:
            command += ["--log", f"--log-prefix={self.log_prefix}"]
        for name, value in self.variables.items():
            command += ["-D", f"{name}={value}"]
        return [*command, self.database]


@dataclasses.dataclass(frozen=True)
class Result:
    """What pgbench and the process table said about one job."""

    committed: int
    failed: int  # given up after max_tries, or with no time left for another try
    retries: int  # tries beyond the first, summed over all transactions
    tps: float
    latency_ms: float  # average, tries included
    server_cpu_seconds: float
    wall_seconds: float
    committed_by_script: tuple[int, ...]  # in the order of the job's scripts

    @property
    def cpu_us_per_transaction(self) -> float:
        return self.server_cpu_seconds / self.committed * 1e6 if self.committed else float("inf")

    @property
    def retries_per_commit(self) -> float:
        return self.retries / self.committed if self.committed else float("inf")

    def as_dict(self) -> dict[str, float]:
        row = dataclasses.asdict(self)
        # JSON has no infinity: a run without a commit has no figure per commit.
        for name in ("cpu_us_per_transaction", "retries_per_commit"):
            row[name] = getattr(self, name) if self.committed else None
        return row


def run(server: Server, job: Job) -> Result:
    """Runs the job to its end; anything but concurrency errors is a RunError."""
    settings = {"default_transaction_isolation": job.isolation, **job.settings}
    cpu_before = server.cpu_seconds()
    start = time.monotonic()
    output = _pgbench(job.command(server.bin_dir), server.environment(settings),
                      job.seconds + GRACE_SECONDS)
    wall_seconds = time.monotonic() - start
    server.wait_for_clients_to_leave(job.database)
    cpu_used = server.cpu_seconds() - cpu_before
    committed = _number(r"transactions actually processed: (\d+)", output, int)
    return Result(
        committed=committed,
        failed=_number(r"number of failed transactions: (\d+)", output, int),
        retries=_number(r"total number of retries: (\d+)", output, int, missing=0),
        tps=_number(r"tps = ([\d.]+)", output, float, missing=0.0),
        latency_ms=_number(r"latency average = ([\d.]+) ms", output, float, missing=0.0),
        server_cpu_seconds=cpu_used,
        wall_seconds=wall_seconds,
        committed_by_script=_by_script(output, job, committed),
    )


def _by_script(output: str, job: Job, committed: int) -> tuple[int, ...]:
    """pgbench counts for each script only if it has several; the counts must add up."""
    if len(job.scripts) < 2:
        return (committed,)
    found = tuple(map(int, re.findall(r"^ - (\d+) transactions \(", output, re.MULTILINE)))
    if len(found) != len(job.scripts) or sum(found) != committed:
        raise RunError(f"pgbench's counts for each script do not add up to {committed}: {found}")
    return found


def _pgbench(command: list[str], env: dict[str, str], timeout_seconds: int) -> str:
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=timeout_seconds, check=False)
    except subprocess.TimeoutExpired as late:
        raise RunError(f"pgbench did not end in {timeout_seconds} s: {' '.join(command)}") from late
    # An aborted client leaves the rest running; the figures would be of fewer clients.
    if done.returncode != 0 or "aborted in command" in done.stderr:
        raise RunError(f"{' '.join(command)}:\n{done.stderr.strip()[-2000:]}")
    return done.stdout


def _number(pattern, text, kind, missing=None):
    found = re.search(pattern, text)
    if found:
        return kind(found.group(1))
    if missing is None:
        raise RunError(f"pgbench's output has no {pattern!r}:\n{text[-2000:]}")
    return missing


def _stat_fields(pid: int) -> list[str]:
    # The command's name may hold spaces and brackets: fields count from after it.
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _cpu_ticks(pid: int) -> int:
    """utime + stime + cutime + cstime; 0 for a process that has gone."""
    try:
        return sum(int(field) for field in _stat_fields(pid)[11:15])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _process_title(pid: int) -> bytes:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _children(parent: int) -> list[int]:
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if int(_stat_fields(int(entry.name))[1]) == parent:
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def main() -> int:
    """One job from the command line, its result as JSON: runner.py SOCKET_DIR field=value ..."""
    if len(sys.argv) < 3:
        print("usage: runner.py SOCKET_DIR database=NAME seconds=N (builtin=NAME | script=FILE)"
              " [clients=N] [isolation=LEVEL] ...", file=sys.stderr)
        return 2
    types = {field.name: field.type for field in dataclasses.fields(Job)}
    fields = dict(argument.split("=", 1) for argument in sys.argv[2:])
    values = {k: int(v) if "int" in types[k] else v for k, v in fields.items()}
    print(json.dumps(run(Server(sys.argv[1]), Job(**values)).as_dict(), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
