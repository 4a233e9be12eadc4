"""What bench/durable measures, in which sizes, and the goals."""

from __future__ import annotations

import dataclasses
import pathlib
import statistics

from lib import report
from lib.cluster import RC, SER
from statements import workloads

DIRECTORY = pathlib.Path(__file__).resolve().parent
HEAP, UNLOGGED, PERMANENT = workloads.HEAP_LOGGED, workloads.OCC, workloads.PERMANENT[0]
ALL = (HEAP, PERMANENT, UNLOGGED)
LOGGED = (HEAP, PERMANENT)
# As a server is run that must lose nothing.
SETTINGS = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
            "max_wal_size": "16GB", "shared_buffers": "1GB", "mixedcc.memory": "4096",
            "deadlock_timeout": "10ms",
            # Sessions load the tables, so that a load is measured from its beginning.
            "mixedcc.load_workers": "0"}
# Rows of 100 bytes: 24 of the tuple's head, two numbers, and a text with a byte of its own.
FILLER = 67
OFF = {"synchronous_commit": "off"}
EARLY = {"mixedcc.early_release": "on"}
# The region needs so many bytes for a row, while each row has two versions.
BYTES_FOR_A_ROW = 600


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is measured. `minutes` is the end, come what may."""

    rounds: int
    seconds: int
    rows: int
    wal_rows: int
    dirty_rows: int
    replay_rows: int
    passes: int
    minutes: int


FULL = Sizes(rounds=5, seconds=8, rows=100_000, wal_rows=100_000, dirty_rows=1_000_000,
             replay_rows=10_000_000, passes=500, minutes=75)
QUICK = Sizes(rounds=2, seconds=2, rows=50_000, wal_rows=20_000, dirty_rows=200_000,
              replay_rows=400_000, passes=200, minutes=8)


@dataclasses.dataclass(frozen=True)
class Load:
    """A script that runs on each engine in turn."""

    name: str
    title: str
    script: str
    clients: int
    isolation: str
    engines: tuple[workloads.Engine, ...]
    settings: dict[str, str]


CPU_LOADS = (
    Load("update_1", "UPDATE by key, 1 client", "update1", 1, RC, ALL, OFF),
    Load("update_8", "UPDATE by key, 8 clients", "update1", 8, RC, ALL, OFF),
    Load("read10_update10", "10 reads and 10 updates, SERIALIZABLE", "read10_update10", 2, SER, ALL, OFF),
    Load("read20", "20 reads, SERIALIZABLE", "read20", 2, SER, ALL, OFF),
)
COMMIT_LOADS = (
    Load("commits_1", "commits with fsync, 1 client", "update1", 1, RC, LOGGED, {}),
    Load("commits_8", "commits with fsync, 8 clients", "update1", 8, RC, LOGGED, {}),
    Load("commits_16", "commits with fsync, 16 clients", "update1", 16, RC, LOGGED, {}),
    Load("commits_hot", "commits with fsync, 8 clients, one row", "hot_row", 8, RC, LOGGED, {}),
    Load("commits_hot_early", "the same, early release", "hot_row", 8, RC, LOGGED, EARLY),
)


@dataclasses.dataclass(frozen=True)
class Wal:
    """A procedure whose WAL is counted from one checkpoint to the end of the next one."""

    name: str
    title: str
    call: str
    share: float  # updates to rows


WAL = (
    Wal("wal_1_percent", "1 % of the rows, drawn", "drawn({rows}, {updates})", 0.01),
    Wal("wal_each_once", "every row once", "scattered({rows}, 1)", 1),
    Wal("wal_each_ten_times", "every row ten times", "scattered({rows}, 10)", 10),
)
INSTRUCTIONS, LATENCY, MEMORY, REPLAY = "instructions", "checkpoint", "memory", "replay"
# With `wal_level` logical: what an update costs, and what it costs to decode it, by plugin.
DECODING = "decoding"
LOGICAL = {"wal_level": "logical"}
PLUGINS = {
    "test_decoding": "pg_logical_slot_peek_changes('{slot}', NULL, NULL, 'include-xids', 'off')",
    "pgoutput": "pg_logical_slot_peek_binary_changes('{slot}', NULL, NULL, 'proto_version', '1',"
                " 'publication_names', 'all_tables')",
}
# Of a change that the plugins say: a line each for BEGIN, the change and COMMIT; pgoutput adds one
# that describes the table, once.
LINES_OF_A_CHANGE = 3
# The checkpoint is spread over some time, as those are that come by checkpoint_timeout.
SPREAD = "checkpoint_spread"
INSIDE, OUTSIDE = "in it", "outside"


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table: a value, or its ratio to that of another label, and its goal."""

    test: str
    what: str
    metric: str
    measured: str
    base: str = ""  # none: the value itself
    at_most: float | None = None
    at_least: float | None = None  # neither: for the eye

    def values(self, rows: report.Rows) -> list[float]:
        measured = rows.of(self.test, self.measured, self.metric)
        if not self.base:
            return list(measured.values())
        return report.ratios(measured, rows.of(self.test, self.base, self.metric))

    def verdict(self, rows: report.Rows) -> str:
        values = self.values(rows)
        if not values:
            return "not measured"
        if self.at_most is None and self.at_least is None:
            return ""
        value = statistics.median(values)
        met = value <= self.at_most if self.at_most is not None else value >= self.at_least
        return "met" if met else "**missed**"

    def goal(self) -> str:
        if self.at_most is not None:
            return f"at most {self.at_most:g}"
        return f"at least {self.at_least:g}" if self.at_least is not None else ""

    def cells(self, rows: report.Rows) -> list[str]:
        return [self.what, self.metric, self.measured, self.base or "-",
                report.median_and_spread(self.values(rows)), self.goal(), self.verdict(rows)]


def _cpu(load: Load, at_most: float | None, base: workloads.Engine = HEAP) -> Row:
    return Row(load.name, load.title, "cpu_us", PERMANENT.name, base.name, at_most=at_most)


def _rows() -> list[Row]:
    update_1, update_8, both, reads = CPU_LOADS
    found = [_cpu(update_1, 0.35), _cpu(update_8, 0.35), _cpu(both, 0.25), _cpu(reads, 1.05, UNLOGGED)]
    for load in CPU_LOADS:
        found.append(Row(load.name, load.title, "cpu_us", UNLOGGED.name, HEAP.name))
    for load in CPU_LOADS[:3]:
        found.append(Row(load.name, f"{load.title}, and a checkpoint after it", "cpu_us_checkpoint",
                         PERMANENT.name, HEAP.name))
    found.append(Row(INSTRUCTIONS, "instructions of durability", "added", PERMANENT.name, at_most=1300))
    for load, goal in zip(COMMIT_LOADS, (1.0, 1.3, 1.0, 1.5, 4.0)):
        found.append(Row(load.name, load.title, "tps", PERMANENT.name, HEAP.name, at_least=goal))
    for wal, goal in zip(WAL, (0.10, 0.9, 0.95)):
        found.append(Row(wal.name, f"WAL of an update: {wal.title}", "wal_bytes", PERMANENT.name,
                         HEAP.name, at_most=goal))
    for test, what in ((SPREAD, "a spread checkpoint"), (LATENCY, "a CHECKPOINT")):
        for engine, goal in ((PERMANENT, 1.5), (HEAP, None)):
            found.append(Row(test, f"latency of updates in {what}", "p99_ms",
                             f"{engine.name} {INSIDE}", f"{engine.name} {OUTSIDE}", at_most=goal))
    found.append(Row(REPLAY, "replay", "replay_s", PERMANENT.name, HEAP.name, at_most=1.0))
    found.append(Row(REPLAY, "start, with replay", "start_s", PERMANENT.name, HEAP.name))
    found.append(Row(REPLAY, "load, MB/s a loader", "load_mb_s", PERMANENT.name, at_least=200))
    found.append(Row(DECODING, "update with wal_level logical", "cpu_us", PERMANENT.name, HEAP.name))
    found.append(Row(DECODING, "its WAL", "wal_bytes", PERMANENT.name, HEAP.name))
    for plugin in PLUGINS:
        found.append(Row(DECODING, f"decoding of it by {plugin}", f"{plugin}_us", PERMANENT.name,
                         HEAP.name))
        found.append(Row(DECODING, "the same, changes a second of CPU", f"{plugin}_rate", PERMANENT.name))
    found.append(Row(MEMORY, "memory of a permanent row, beyond an unlogged one", "bytes_more",
                     PERMANENT.name, at_most=6))
    return found


ROWS = tuple(_rows())
TESTS = tuple(dict.fromkeys(row.test for row in ROWS))


def table(rows: report.Rows, tests: list[str]) -> list[str]:
    """The one table: each line of these tests with its goal and verdict."""
    header = ["what", "metric", "measured", "against", "value", "goal", ""]
    return report.table(header, [row.cells(rows) for row in ROWS if row.test in tests])
