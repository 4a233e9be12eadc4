"""Rows of results: kept as CSV while a benchmark runs, summed up as Markdown at its end."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import math
import os
import statistics

COLUMNS = ("git_commit", "configuration_hash", "machine", "postgres", "seed", "test", "engine",
           "protocol", "table", "isolation", "label", "clients", "round", "metric", "value",
           "workload", "style", "factor")
UNITS = {"tps": "transactions/s", "cpu_us": "server CPU, us per transaction",
         "retries_per_commit": "retries per commit", "failed": "failed",
         "instructions": "instructions per transaction", "bytes_loaded": "bytes after load",
         "bytes_updated": "bytes after the updates",
         "bytes_vacuumed": "bytes after the updates and VACUUM",
         "commits_per_cpu_s": "committed per server CPU second", "committed": "committed",
         "retried": "retried", "p50_ms": "p50, ms", "p95_ms": "p95, ms", "p99_ms": "p99, ms",
         "p999_ms": "p99.9, ms", "bytes": "bytes of tables and indexes",
         "readers": "without writes, committed", "readers_retried": "without writes, retried"}


@dataclasses.dataclass(frozen=True)
class Goal:
    """A ratio of two labels under one metric, and what it should be."""

    metric: str
    measured: str
    base: str
    at_most: float | None = None
    at_least: float | None = None

    def text(self) -> str:
        if self.at_most is not None:
            return f"at most {self.at_most:g}"
        return f"at least {self.at_least:g}"

    def is_met(self, ratio: float) -> bool:
        if self.at_most is not None:
            return ratio <= self.at_most
        return ratio >= self.at_least


@dataclasses.dataclass(frozen=True)
class Context:
    """What every row of one run carries."""

    git_commit: str
    configuration_hash: str
    machine: str
    postgres: str


class Rows:
    """Writes each row at once, so that a run that is broken off keeps what it measured."""

    def __init__(self, path: str, context: Context, resume: bool = False):
        """resume: goes on with the rows of a run of the same commit and configuration."""
        self.context = context
        self.values: dict[tuple[str, str, str], dict[int, float]] = {}
        if resume:
            _cut_off_half_a_line(path)
            before = Rows.read(path)
            if before.context != context:
                raise ValueError(f"{path} is of {before.context}, not of {context}")
            self.values = before.values
        self._file = open(path, "a" if resume else "w", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, COLUMNS)
        if not resume:
            self._writer.writeheader()

    @classmethod
    def read(cls, path: str) -> "Rows":
        """The rows of a run that has ended; nothing can be added."""
        rows = cls.__new__(cls)
        rows.values, rows.context = {}, Context("", "", "", "")
        with _reader(path) as file:
            for row in csv.DictReader(file):
                if row["factor"] is None:  # the last line, if the run was broken off in it
                    continue
                rows.context = Context(*(row[field.name] for field in dataclasses.fields(Context)))
                key = (row["test"], row["label"], row["metric"])
                rows.values.setdefault(key, {})[int(row["round"])] = float(row["value"])
        return rows

    def add(self, test: str, label: str, round_number: int, metrics: dict[str, float],
            **fields: object) -> None:
        for metric, value in metrics.items():
            self.values.setdefault((test, label, metric), {})[round_number] = value
            self._writer.writerow({**dataclasses.asdict(self.context), **fields, "test": test,
                                   "label": label, "round": round_number, "metric": metric,
                                   "value": f"{value:.10g}"})
        self._file.flush()

    def of(self, test: str, label: str, metric: str) -> dict[int, float]:
        return self.values.get((test, label, metric), {})

    def labels(self, test: str) -> list[str]:
        return list(dict.fromkeys(label for t, label, _ in self.values if t == test))

    def close(self) -> None:
        self._file.close()


def _reader(path: str):
    """Rows of a kept report are compressed: `rows.csv.gz` in place of `rows.csv`."""
    if os.path.exists(path):
        return open(path, newline="", encoding="utf-8")
    return gzip.open(path + ".gz", "rt", newline="", encoding="utf-8")


def _cut_off_half_a_line(path: str) -> None:
    with open(path, "rb+") as file:
        file.truncate(file.read().rfind(b"\n") + 1)


def ratios(measured: dict[int, float], base: dict[int, float]) -> list[float]:
    """Ratio of each round in which both ran. x/0 is infinite; 0/0 says nothing and is left out."""
    found = []
    for round_number in sorted(measured.keys() & base.keys()):
        over, under = measured[round_number], base[round_number]
        if under and not (math.isinf(over) and math.isinf(under)):
            found.append(over / under)
        elif over and not under:
            found.append(math.inf)
    return found


def number(value: float) -> str:
    """Four digits that matter, large numbers whole."""
    if math.isinf(value):
        return "none"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def median_and_spread(values: list[float]) -> str:
    if not values:
        return "-"
    if len(values) == 1:
        return number(values[0])
    return f"{number(statistics.median(values))} [{number(min(values))} to {number(max(values))}]"


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def metric_table(rows: Rows, test: str, metrics: list[str]) -> list[str]:
    body = [[label, *(median_and_spread(list(rows.of(test, label, metric).values()))
                      for metric in metrics)] for label in rows.labels(test)]
    return table(["", *(UNITS[metric] for metric in metrics)], body)


def goal_table(rows: Rows, goals: list[tuple[str, Goal]]) -> list[str]:
    """The measured ratios beside their goals; a ratio is the median of the rounds' ratios."""
    body = []
    for test, goal in goals:
        measured = rows.of(test, goal.measured, goal.metric)
        base = rows.of(test, goal.base, goal.metric)
        found = ratios(measured, base)
        if not measured or not base:
            verdict = "not measured"
        elif not found:
            verdict = "both zero"
        else:
            verdict = "met" if goal.is_met(statistics.median(found)) else "**missed**"
        body.append([test, UNITS[goal.metric], goal.measured, goal.base,
                     _ratio_text(found), goal.text(), verdict])
    return table(["test", "metric", "measured", "against", "ratio", "goal", ""], body)


def _ratio_text(found: list[float]) -> str:
    if not found:
        return "-"
    as_text = ["infinite" if math.isinf(r) else f"{r:.3g}" for r in
               (statistics.median(found), min(found), max(found))]
    return as_text[0] if len(found) == 1 else f"{as_text[0]} [{as_text[1]} to {as_text[2]}]"


def heading(title: str, context: Context, notes: list[str]) -> list[str]:
    lines = [f"# {title}", "",
             f"Commit {context.git_commit}, configuration {context.configuration_hash}, "
             f"{context.postgres}, {context.machine}."]
    return lines + [note for note in notes if note] + [""]


def failure_text(failures: list[str]) -> str:
    """What could not be measured, and why; nothing if all could."""
    if not failures:
        return ""
    return "\n".join(["", "## Failures", "", *("```\n" + f + "\n```" for f in failures)]) + "\n"
