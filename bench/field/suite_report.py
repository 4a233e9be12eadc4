"""The suite's summary (Markdown) and plots (SVG), from its rows."""

from __future__ import annotations

import pathlib
import statistics

from field import choice_report, contenders, plan
from lib import plot, protocols, report
from field.loads.base import INTERACTIVE, PROCEDURE
from lib.report import Goal

METRICS = ["tps", "commits_per_cpu_s", "committed", "retried", "failed", "retries_per_commit",
           "readers", "readers_retried", "p50_ms", "p95_ms", "p99_ms", "p999_ms", "bytes"]
HEAP_SER, HEAP_RC, HEAP_SER_1S = "heap_ser", "heap_rc", "heap_ser_1s"

# Of adaptive mixedcc against heap: (workload, metric, against, bound).
_PER_CPU, _RETRIES = "commits_per_cpu_s", "retries_per_commit"
GOALS = [("tpcc", Goal(_PER_CPU, "", HEAP_SER, at_least=2)),
         ("tpcc", Goal(_RETRIES, "", HEAP_SER, at_most=0.1)),
         ("smallbank", Goal(_PER_CPU, "", HEAP_SER, at_least=2)),
         *((f"ycsb_{letter}", Goal(_PER_CPU, "", HEAP_SER, at_least=2.5)) for letter in "abf"),
         ("votes", Goal(_RETRIES, "", HEAP_SER, at_most=0.2)),
         ("votes", Goal("tps", "", HEAP_SER, at_least=1.5)),
         *((name, Goal(_PER_CPU, "", HEAP_RC, at_least=1))
           for name in ("tpcc", "smallbank", "ycsb_a", "ycsb_b", "ycsb_f", "votes"))]


def median(rows: report.Rows, point: plan.Point, who: str, metric: str) -> float | None:
    values = rows.of(point.name, who, metric)
    return statistics.median(values.values()) if values else None


def ratio(rows: report.Rows, point: plan.Point, who: str, metric: str, base: str) -> float | None:
    """To another contender: the median of the rounds' ratios. Tables and plots both show this."""
    found = report.ratios(rows.of(point.name, who, metric), rows.of(point.name, base, metric))
    return statistics.median(found) if found else None


def base_points(mode: plan.Mode, style: str) -> list[plan.Point]:
    return [point for point in mode.points if point.factor == "base" and point.style == style]


def missed(rows: report.Rows, mode: plan.Mode) -> list[tuple[str, str]]:
    """(workload, contender) to be profiled: adaptive where it misses a goal, and what it was
    compared with."""
    found = []
    names = {point.name: point.workload.name for point in base_points(mode, PROCEDURE)}
    for test, goal in goals_of(mode, contenders.ADAPTIVE):
        ratios = report.ratios(rows.of(test, goal.measured, goal.metric),
                               rows.of(test, goal.base, goal.metric))
        if ratios and not goal.is_met(statistics.median(ratios)):
            found += [(names[test], goal.measured), (names[test], goal.base)]
    return list(dict.fromkeys(found))


def profile_section(output: pathlib.Path) -> list[str]:
    """What `bench/profile --missed` has left there."""
    texts = sorted(output.glob("profile-*.txt"))
    if not texts:
        return []
    lines = ["## Profiles of missed goals", ""]
    for path in texts:
        first, *rest = path.read_text(encoding="utf-8").splitlines()
        top = [line for line in rest if "%" in line][:15]
        flame = path.with_suffix(".svg")
        lines += [f"{first}" + (f" ([flame graph]({flame.name}))" if flame.exists() else ""), "", "```", *top, "```", ""]
    return lines


def goals_of(mode: plan.Mode, who: str) -> list[tuple[str, Goal]]:
    points = {point.workload.name: point.name for point in base_points(mode, PROCEDURE)}
    return [(points[workload], Goal(goal.metric, who, goal.base, goal.at_most, goal.at_least))
            for workload, goal in GOALS if workload in points]


def ratio_table(rows: report.Rows, points: list[plan.Point], metric: str, base: str) -> list[str]:
    """Each contender's ratio to the base."""
    body = []
    for point in points:
        found = [ratio(rows, point, who, metric, base) for who in plan.ALL]
        body.append([point.workload.name, *("-" if r is None else f"{r:.2f}" for r in found)])
    return report.table(["", *plan.ALL], body)


def data_text(point: plan.Point) -> str:
    values = ", ".join(f"{k} {v:,g}" for k, v in point.workload.values.items())
    hybrid = point.workload.hybrid_text
    return f"{point.workload.title}. {values}. Hybrid: {hybrid}."


def point_section(rows: report.Rows, point: plan.Point) -> list[str]:
    if not rows.labels(point.name):
        return []
    return ["", f"### {point.name}", "", data_text(point), "",
            *report.metric_table(rows, point.name, METRICS)]


def factor_groups(mode: plan.Mode) -> dict[tuple[str, str, str], list[plan.Point]]:
    """(workload, style, factor): its points; the base point, whose value is one of them, is among
    them."""
    groups: dict[tuple[str, str, str], list[plan.Point]] = {}
    for point in mode.points:
        if point.factor not in ("base", "choice"):
            groups.setdefault((point.workload.name, point.style, point.factor), []).append(point)
    for (workload, style, factor), points in groups.items():
        for base in base_points(mode, style):
            if base.workload.name == workload and all(base.name != p.name for p in points):
                value = base.clients if factor == "clients" else base.workload.values[factor]
                points.append(plan.dataclasses.replace(base, factor=factor))
        points.sort(key=lambda p: p.value)
    return groups


def factor_plots(rows: report.Rows, mode: plan.Mode) -> dict[str, str]:
    """File name: SVG, one for each factor and metric."""
    found = {}
    for (workload, style, factor), points in factor_groups(mode).items():
        for metric in ("tps", "commits_per_cpu_s", "retries_per_commit", "p99_ms"):
            lines = {}
            for who in plan.ALL:
                if sum(who in point.contenders for point in points) < 2:
                    continue  # measured at the base point alone: no curve
                line = [(point.value, median(rows, point, who, metric)) for point in points]
                line = [(x, y) for x, y in line if y is not None and y != float("inf")]
                if line:
                    lines[who] = line
            if lines:
                title = f"{workload} ({style}), by {factor}"
                found[f"{workload}-{style}-{factor}-{metric}.svg"] = plot.svg(
                    plot.Figure(title, factor, report.UNITS[metric], lines))
    return found


def base_plots(rows: report.Rows, mode: plan.Mode) -> dict[str, str]:
    found = {}
    for style in (PROCEDURE, INTERACTIVE):
        for metric in ("commits_per_cpu_s", "tps"):
            groups = {}
            for point in base_points(mode, style):
                bars = {who: value for who in plan.ALL
                        if (value := ratio(rows, point, who, metric, HEAP_SER)) is not None}
                if bars:
                    groups[point.workload.name] = bars
            if groups:
                found[f"all-{style}-{metric}.svg"] = plot.bars(
                    f"{report.UNITS[metric]}, heap SERIALIZABLE = 1 ({style})", groups, plan.ALL)
    return found


def write(output: pathlib.Path, rows: report.Rows, mode: plan.Mode, notes: list[str],
          failures: list[str]) -> str:
    """Writes summary.md and the plots; returns the summary's text."""
    figures = {**base_plots(rows, mode), **factor_plots(rows, mode)}
    for name, svg in figures.items():
        (output / name).write_text(svg, encoding="utf-8")
    text = "\n".join(summary(rows, mode, notes, figures, profile_section(output))) + "\n" + report.failure_text(failures)
    (output / "summary.md").write_text(text, encoding="utf-8")
    return text


def summary(rows, mode, notes, figures, profiles) -> list[str]:
    lines = report.heading(f"mixedcc against heap: {mode.name} run", rows.context, [
        f"{mode.rounds} interleaved rounds of {mode.seconds} s for each measurement, except where a table's "
        "heading says otherwise; median [smallest to largest]. All in one server, so all with the same settings: "
        "no durability on either side, shared_buffers 4 GB, mixedcc.memory 8 GB, no autovacuum, VACUUM before each "
        "measurement. `deadlock_timeout` is 10 ms, but where a contender's name says 1 s; goals are judged by the "
        f"10 ms. Each contender runs each load for {mode.warm_up_seconds} s, unmeasured, before its first "
        "measurement. Retries until the commit (pgbench's --max-tries=0), which latencies include.", *notes,
        "**One round: no spread, and two seconds are short. Read it as a look, not as a figure to quote.**"
        if mode.rounds == 1 else ""])
    with_rows = {label for _, label, _ in rows.values}
    lines += ["## Contenders", "", *report.table(["", ""], [
        [c.name, c.title] for c in contenders.BY_NAME.values() if c in contenders.CONTENDERS or c.name in with_rows]), ""]
    if mode.name == "choice":
        lines += choice_report.sections(rows, mode) + ["## All figures", ""]
        for point in mode.points:
            lines += point_section(rows, point)
        return lines
    for who in (contenders.ADAPTIVE, "hybrid", *protocols.ALL):
        if who in with_rows:
            lines += [f"## Goals, {who}" + ("" if who == contenders.ADAPTIVE else " (the goals are adaptive's)"), "",
                      *report.goal_table(rows, goals_of(mode, who)), ""]
    lines += profiles
    for style in (PROCEDURE, INTERACTIVE):
        points = base_points(mode, style)
        for metric in ("commits_per_cpu_s", "tps"):
            if points:
                lines += [f"## {report.UNITS[metric]}, heap SERIALIZABLE = 1, {style}", "",
                          *ratio_table(rows, points, metric, HEAP_SER), ""]
                name = f"all-{style}-{metric}.svg"
                lines += [f"![{metric}]({name})", ""] if name in figures else []
            if HEAP_SER_1S in with_rows and points:
                lines += ["The same with heap's `deadlock_timeout` of 1 s (PostgreSQL's default) = 1:", "",
                          *ratio_table(rows, points, metric, HEAP_SER_1S), ""]
    lines += ["## All figures", ""]
    for name in figures:
        if not name.startswith("all-"):
            lines.append(f"![{name}]({name})")
    for point in mode.points:
        lines += point_section(rows, point)
    return lines
