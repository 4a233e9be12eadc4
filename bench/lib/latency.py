"""Latency percentiles from pgbench's transaction logs."""

from __future__ import annotations

import array
import glob
import math
import os

PERCENTILES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99, "p999_ms": 0.999}


def read_logs(prefix: str) -> array.array:
    """Microseconds of each committed transaction, its retries included, sorted; removes the logs.

    A line is: client, number, microseconds, script, seconds, microseconds, retries. A transaction
    that was given up has a word in place of its time.
    """
    times = array.array("q")
    for path in glob.glob(glob.escape(prefix) + ".*"):
        with open(path, encoding="ascii") as log:
            for line in log:
                time = line.split(" ", 3)[2]
                if time.isdigit():
                    times.append(int(time))
        os.unlink(path)
    return array.array("q", sorted(times))


def retries_of(prefix: str, scripts: set[int]) -> tuple[int, int]:
    """Of the transactions of these scripts: how many have committed, and all retries. To be called
    before read_logs, which removes the logs."""
    committed = retries = 0
    for path in glob.glob(glob.escape(prefix) + ".*"):
        with open(path, encoding="ascii") as log:
            for line in log:
                _, _, time, script, *_, tries = line.split()
                if int(script) in scripts:
                    committed += time.isdigit()
                    retries += int(tries)
    return committed, retries


def read_logs_split(prefix: str, begin: float, end: float) -> tuple[array.array, array.array]:
    """As read_logs: transactions that ran at some time from `begin` to `end` (seconds since 1970),
    and the others."""
    inside, outside = array.array("q"), array.array("q")
    for path in glob.glob(glob.escape(prefix) + ".*"):
        with open(path, encoding="ascii") as log:
            for line in log:
                _, _, time, _, seconds, rest, *_ = line.split()
                if not time.isdigit():
                    continue
                ended = int(seconds) + int(rest) / 1e6
                at_that_time = ended >= begin and ended - int(time) / 1e6 <= end
                (inside if at_that_time else outside).append(int(time))
        os.unlink(path)
    return array.array("q", sorted(inside)), array.array("q", sorted(outside))


def percentile(times, share: float) -> float:
    """The nearest-rank percentile of sorted times, in milliseconds: no value is interpolated."""
    if not times:
        return math.inf
    return times[max(0, math.ceil(share * len(times)) - 1)] / 1000


def percentiles(times) -> dict[str, float]:
    return {name: percentile(times, share) for name, share in PERCENTILES.items()}
