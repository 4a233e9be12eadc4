"""A private cluster for benchmarks: made, started and removed by the benchmark itself.

Fixed settings, so that two runs compare: no durability for either side, no
autovacuum (bench/run calls VACUUM between rounds, outside the measurement), no
JIT, no parallel plans, one checkpoint at the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import os
import pathlib
import platform
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile

from lib.runner import Server

BENCH_DIR = pathlib.Path(__file__).resolve().parent.parent
BIN_DIR = os.environ.get("PG_BINDIR", "/usr/lib/postgresql/15/bin")
RC, RR, SER = "read committed", "repeatable read", "serializable"
# Heap finds a deadlock after this time. A user with hot rows would lower it, so goals are judged
# by the short one; PostgreSQL's default is measured beside it.
SHORT_TIMEOUT, DEFAULT_TIMEOUT = "10ms", "1s"
SERVER_USER = "postgres"  # of the operating system when root starts us; of the database always

SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "512MB",
    "max_connections": "60",
    # Of PostgreSQL's default of 64 heap at SERIALIZABLE runs out now and then, also with two
    # clients.
    "max_pred_locks_per_transaction": "1024",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "logging_collector": "off",
    # Aborts are what some tests are about: writing them to a log is not.
    "log_min_messages": "fatal",
    "log_min_error_statement": "panic",
}
MIXEDCC_SETTINGS = {"shared_preload_libraries": "mixedcc", "mixedcc.memory": "2048"}


# What decides what a measurement runs: the configuration's hash covers it.
MEASURED_FILES = ("statements/**/*.sql", "statements/**/*.pgbench", "statements/*.py",
                  "field/**/*.py", "field/**/*.sql", "permanent/**/*.py", "permanent/**/*.sql")


class ClusterError(Exception):
    """The private cluster could not be made, started or asked."""


def settings(with_mixedcc: bool, changed: dict[str, str]) -> dict[str, str]:
    return {**SETTINGS, **(MIXEDCC_SETTINGS if with_mixedcc else {}), **changed}


def library_path() -> pathlib.Path:
    pg_config = os.path.join(BIN_DIR, "pg_config")
    library_dir = subprocess.check_output([pg_config, "--pkglibdir"], text=True).strip()
    return pathlib.Path(library_dir, "mixedcc.so")


def mixedcc_is_installed() -> bool:
    return library_path().exists()


def program(name: str):
    """A program of this directory, as a module."""
    loader = importlib.machinery.SourceFileLoader(name, str(BENCH_DIR / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def as_server_user() -> dict[str, object]:
    """Arguments of subprocess.run for a user that PostgreSQL accepts: it refuses root."""
    if os.geteuid() != 0:
        return {}
    return {"user": SERVER_USER, "group": pwd.getpwnam(SERVER_USER).pw_gid, "extra_groups": []}


def end_cleanly_on_sigterm() -> None:
    """SIGTERM leaves no server behind: it unwinds, as an interrupt from the keyboard does."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def environment() -> dict[str, str]:
    """Without PG* and without RUST_BACKTRACE, which would put backtraces into errors."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
    kept.pop("RUST_BACKTRACE", None)
    return kept


def give_to_server_user(path: str) -> None:
    if os.geteuid() == 0:
        owner = pwd.getpwnam(SERVER_USER)
        os.chown(path, owner.pw_uid, owner.pw_gid)


def _checked(command: list[str], what: str) -> str:
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False,
                          cwd="/", **as_server_user())
    if done.returncode != 0:
        raise ClusterError(f"{what}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


class Cluster:
    """Data directory, socket directory and log in one private directory."""

    def __init__(self, parent: str | None, server_settings: dict[str, str]):
        self.settings = server_settings
        self.root = tempfile.mkdtemp(prefix="mixedcc-bench-", dir=parent)
        give_to_server_user(self.root)
        self.data = os.path.join(self.root, "data")
        self.log = os.path.join(self.root, "server.log")
        self.running = False

    def init(self) -> None:
        _checked([f"{BIN_DIR}/initdb", "-D", self.data, "-U", SERVER_USER, "-A", "trust",
                  "--no-sync", "-E", "UTF8", "--locale=C"], "initdb")
        lines = [f"{name} = '{value}'\n" for name, value in self.settings.items()]
        with open(os.path.join(self.data, "postgresql.conf"), "a", encoding="utf-8") as conf:
            conf.writelines([*lines, f"unix_socket_directories = '{self.root}'\n"])

    def start(self, seconds: int = 60) -> Server:
        """seconds: so long it may take."""
        try:
            _checked([f"{BIN_DIR}/pg_ctl", "-D", self.data, "-l", self.log, "-w", "-t",
                      str(seconds), "start"], "starting the server")
        except ClusterError as failure:
            raise ClusterError(f"{failure}\n{self.end_of_log()}") from failure
        self.running = True
        return Server(socket_dir=self.root, user=SERVER_USER, bin_dir=BIN_DIR)

    def stop(self) -> None:
        if self.running:
            self.running = False
            _checked([f"{BIN_DIR}/pg_ctl", "-D", self.data, "-m", "fast", "-w", "stop"], "stopping")

    def crash(self) -> None:
        """The server ends without a checkpoint: its next start replays WAL."""
        self.running = False
        _checked([f"{BIN_DIR}/pg_ctl", "-D", self.data, "-m", "immediate", "-w", "stop"],
                 "crashing the server")

    def end_of_log(self) -> str:
        try:
            return pathlib.Path(self.log).read_text(errors="replace")[-2000:]
        except FileNotFoundError:
            return ""

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


@contextlib.contextmanager
def private_cluster(parent: str | None, server_settings: dict[str, str]):
    """A new cluster that is not started; stopped and removed at the end, whatever happens."""
    cluster = Cluster(parent, server_settings)
    try:
        cluster.init()
        yield cluster
    finally:
        try:
            cluster.stop()
        finally:
            cluster.remove()


def configuration_hash(server_settings: dict[str, str], *more: str) -> str:
    """Names what was run: settings, SQL, scripts, tests, and the caller's own parameters."""
    digest = hashlib.sha256()
    for name in sorted(server_settings):
        digest.update(f"{name}={server_settings[name]}\n".encode())
    for pattern in MEASURED_FILES:
        for path in sorted(BENCH_DIR.glob(pattern)):
            digest.update(str(path.relative_to(BENCH_DIR)).encode() + path.read_bytes())
    for text in more:
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()[:12]


def git_commit() -> str:
    """The commit measured, with a mark if files differ from it."""
    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(BENCH_DIR), *arguments], capture_output=True,
                              text=True, check=False).stdout.strip()
    commit = git("rev-parse", "--short=12", "HEAD") or "unknown"
    return commit + ("-dirty" if git("status", "--porcelain", "--untracked-files=no") else "")


def machine() -> str:
    """Processor, number of cores and kernel; no host name."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return f"{model} x {os.cpu_count()} {platform.system()} {platform.release()}"


def postgres_version() -> str:
    return subprocess.check_output([f"{BIN_DIR}/postgres", "--version"], text=True).strip()
