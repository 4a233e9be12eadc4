"""Instructions of one backend, counted by the processor through perf stat.

For machines whose processor (or hypervisor) lets perf count instructions; many
virtual machines do not, and callgrind is the way there. Counts of user space
only, so that they compare with callgrind's.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time

from lib import runner

EVENT = "instructions:u"
PERF_START_SECONDS = 0.5


class PerfError(Exception):
    """perf cannot count instructions here."""


def require_support() -> None:
    """PerfError, with the reason, unless perf counts instructions on this machine."""
    try:
        done = subprocess.run(["perf", "stat", "-x", ",", "-e", EVENT, "true"],
                              capture_output=True, text=True, check=False)
    except FileNotFoundError as absent:
        raise PerfError("perf is not installed") from absent
    if done.returncode != 0 or parse_count(done.stderr) is None:
        raise PerfError(f"perf does not count {EVENT} on this machine: {done.stderr.strip()}")


def parse_count(perf_output: str) -> int | None:
    """The count in the output of `perf stat -x ,`; None if it is not supported."""
    found = re.search(rf"^(\d+),[^,]*,{re.escape(EVENT)}", perf_output, re.MULTILINE)
    return int(found.group(1)) if found else None


class Session:
    """One psql session that stays open, so that one backend can be watched."""

    def __init__(self, server: runner.Server, schema: str):
        self.process = subprocess.Popen(
            [f"{server.bin_dir}/psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", "postgres"],
            env=server.environment({"search_path": schema}), text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.backend = int(self.ask("SELECT pg_backend_pid();"))

    def ask(self, sql: str) -> str:
        """Runs SQL; what it printed before the mark that says it is done."""
        self.process.stdin.write(f"{sql}\n\\echo done\n")
        printed = []
        for line in self.process.stdout:
            if line == "done\n":
                return "".join(printed).strip()
            printed.append(line)
        raise PerfError(f"psql: {self.process.stderr.read().strip()}")

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def count_call(session: Session, call: str) -> int:
    """Instructions of the backend from before the CALL to after it."""
    perf = subprocess.Popen(["perf", "stat", "-x", ",", "-e", EVENT, "-p", str(session.backend)],
                            stderr=subprocess.PIPE, text=True)
    time.sleep(PERF_START_SECONDS)
    session.ask(call)
    perf.send_signal(signal.SIGINT)
    count = parse_count(perf.communicate()[1])
    if count is None:
        raise PerfError("perf stat gave no count")
    return count


def count_engine(server: runner.Server, set_up: str, schema: str,
                 loops: list[tuple[str, str, str]], warm_up: int,
                 passes: int) -> dict[tuple[str, str], float]:
    """{(isolation, loop): instructions per transaction}; a loop's call holds {passes}."""
    require_support()
    server.psql("postgres", set_up)
    found = {}
    for isolation, loop, call in loops:
        session = Session(server, schema)
        try:
            session.ask("VACUUM item;")
            session.ask(f"SET default_transaction_isolation = '{isolation}';")
            session.ask(f"CALL {call.format(passes=warm_up)};")
            found[isolation, loop] = count_call(session, f"CALL {call.format(passes=passes)};") / passes
        finally:
            session.close()
    return found
