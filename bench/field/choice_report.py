"""What the mode `choice` says: is adaptive as good as the best that its user could have pinned?"""

from __future__ import annotations

import math
import statistics

from field import contenders, plan
from lib import report

PER_CPU, TPS, RETRIES, P99 = "commits_per_cpu_s", "tps", "retries_per_commit", "p99_ms"
LEAST_RETRIES = 0.001  # fewer count as so many: a ratio to none says nothing
FIXED = tuple(c.name for c in contenders.PLAIN_CONTENDERS if c.isolation == contenders.SER)
OLD_BEST = "2pl" + contenders.PLAIN  # version 0.1.0's best single protocol


def value(rows: report.Rows, point: plan.Point, who: str, metric: str) -> float | None:
    found = list(rows.of(point.name, who, metric).values())
    if not found:
        return None
    middle = statistics.median(found)
    return max(middle, LEAST_RETRIES) if metric == RETRIES else middle


def best(rows, point, metric) -> tuple[str, float] | None:
    """The fixed protocol or hybrid with the highest value."""
    found = {who: v for who in FIXED if (v := value(rows, point, who, metric)) is not None}
    return max(found.items(), key=lambda item: item[1]) if found else None


def ratios(rows, points, metric, base: str, who: str = contenders.ADAPTIVE) -> list[float]:
    pairs = [(value(rows, p, who, metric), value(rows, p, base, metric)) for p in points]
    return [a / b for a, b in pairs if a is not None and b and not math.isinf(a) and not math.isinf(b)]


def to_best(rows, points, metric) -> dict[str, float]:
    found = {}
    for point in points:
        own, other = value(rows, point, contenders.ADAPTIVE, metric), best(rows, point, metric)
        if own is not None and other and other[1]:
            found[point.name] = own / other[1]
    return found


def mean(found: list[float]) -> float | None:
    return statistics.geometric_mean(found) if found and min(found) > 0 else None


def goals(rows, points) -> list[list[str]]:
    """[what, goal, found, is it met]."""
    near = to_best(rows, points, TPS)
    share = sum(r >= 0.95 for r in near.values()) / len(near) if near else None
    to_rc = ratios(rows, points, TPS, "heap_rc")
    contended = [p for p in points if (value(rows, p, "heap_ser", RETRIES) or 0) > 0.1]
    table = [
        ("adaptive to the best fixed protocol or hybrid, tps: share of points with 0.95", share, 0.95, True),
        ("adaptive to `2pl`, per CPU second", mean(ratios(rows, points, PER_CPU, OLD_BEST)), 1.5, True),
        ("adaptive to `2pl`, p99", mean(ratios(rows, points, P99, OLD_BEST)), 0.5, False),
        ("adaptive to heap READ COMMITTED with row locks, tps", mean(to_rc), 1.2, True),
        ("the same, per CPU second", mean(ratios(rows, points, PER_CPU, "heap_rc")), 1.5, True),
        ("the same, tps at the worst point", min(to_rc, default=None), 0.9, True),
        ("adaptive to mixedcc at READ COMMITTED with row locks, tps", mean(ratios(rows, points, TPS, "rc_plain")), 0.8, True),
        ("retries to heap SERIALIZABLE's, points with conflicts", mean(ratios(rows, contended, RETRIES, "heap_ser")), 0.01, False),
    ]
    return [[what, f"{'at least' if least else 'at most'} {goal:g}", "-" if found is None else f"{found:.3g}",
             "-" if found is None else "yes" if (found >= goal) == least or found == goal else "**no**"]
            for what, found, goal, least in table]


def sections(rows: report.Rows, mode: plan.Mode) -> list[str]:
    points = [p for p in mode.points if rows.labels(p.name)]
    body = []
    for point in points:
        cells = []
        for metric in (TPS, PER_CPU):
            near, other = to_best(rows, [point], metric), best(rows, point, metric)
            cells.append(f"{near[point.name]:.2f} of {other[0].removesuffix(contenders.PLAIN)}" if near else "-")
        retries = value(rows, point, contenders.ADAPTIVE, RETRIES)
        cells += [f"{r[0]:.2f}" if (r := ratios(rows, [point], TPS, base)) else "-" for base in ("heap_rc", "rc_plain")]
        body.append([point.name, *cells, "-" if retries is None else f"{retries:.3g}"])
    return ["## Is adaptive as good as the best?", "",
            f"Geometric means over the points, all of one weight. Retries below {LEAST_RETRIES} count as {LEAST_RETRIES}; "
            "points with conflicts are those where heap SERIALIZABLE has more than 0.1 retries a commit. "
            "Hybrid: the protocol of each table by hand.", "",
            *report.table(["what", "goal", "found", "met"], goals(rows, points)), "",
            *report.table(["point", "tps to the best", "per CPU second to the best", "tps to heap READ COMMITTED",
                           "tps to mixedcc READ COMMITTED", "retries"], body), ""]
