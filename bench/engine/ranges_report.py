"""What `bench/ranges` found: figures, and a summary with each goal beside the measured value."""

from __future__ import annotations

import statistics

from lib.plot import Figure
from lib.report import number, table

Row = dict[str, str]
METHODS = ("rv", "lrv", "lrv_rescan", "gwv", "mvrcc")
NAMES = {"rv": "ranges", "lrv": "LRV", "lrv_rescan": "LRV, repeated scan", "gwv": "GWV", "mvrcc": "MVRCC"}


def select(rows: list[Row], **wanted: object) -> list[Row]:
    return [r for r in rows if all(r[k] == str(v) for k, v in wanted.items())]


def line(rows: list[Row], x: str, y: str) -> list[tuple[float, float]]:
    return sorted((float(r[x]), float(r[y])) for r in rows)


def median(rows: list[Row], column: str) -> float:
    values = [float(r[column]) for r in rows]
    return statistics.median(values) if values else float("nan")


def by_method(rows: list[Row], x: str, y: str) -> dict[str, list[tuple[float, float]]]:
    found = {NAMES[m]: line(select(rows, method=m), x, y) for m in METHODS}
    return {name: points for name, points in found.items() if points}


def figures(counts: list[Row], time: list[Row]) -> dict[str, Figure]:
    low = select(counts, test="length", theta=0.7)
    found = {
        "throughput_by_length": Figure("40 workers, zipf 0.7", "keys of a scan", "scans per million lines",
                                       by_method(low, "scan", "scans_per_mega_line")),
        "validation_by_length": Figure("40 workers, zipf 0.7", "keys of a scan", "lines of validation",
                                       by_method(low, "scan", "validation_lines")),
        "tpcc": Figure("TPC-C, 40 workers", "customers scanned", "scans per million lines",
                       by_method(select(counts, test="tpcc"), "scan", "scans_per_mega_line")),
    }
    for scan in ("10", "100"):
        rows = [*select(counts, test="workers", scan=scan), *select(low, scan=scan)]
        found[f"throughput_by_workers_{scan}"] = Figure(f"scans of {scan} keys, zipf 0.7", "workers",
                                                        "scans per million lines",
                                                        by_method(rows, "workers", "scans_per_mega_line"))
    rows = [*select(counts, test="tpcc_workers"), *select(counts, test="tpcc", scan=3000)]
    found["tpcc_by_workers"] = Figure("TPC-C, 3,000 customers scanned", "workers, and warehouses", "scans per million lines",
                                      by_method(rows, "workers", "scans_per_mega_line"))
    granularity = select(counts, test="granularity")
    found["granularity"] = Figure("40 workers", "ranges", "scans per million lines", {
        f"{scan} keys, zipf {theta}": line(select(granularity, scan=scan, theta=theta), "ranges", "scans_per_mega_line")
        for theta, scan in dict.fromkeys((r["theta"], r["scan"]) for r in granularity)})
    lists = select(counts, test="list_size")
    found["list_size"] = Figure("40 workers, scans of 100 keys", "registrations of a list", "wrapped predicates",
                                {f"zipf {theta}": line(select(lists, theta=theta), "list", "wraps")
                                 for theta in dict.fromkeys(r["theta"] for r in lists)})
    lengths = dict.fromkeys(r["scan"] for r in select(time, test="length"))
    found["time_by_length"] = Figure("2 threads, zipf 0.7", "keys of a scan", "CPU of a scan transaction, us", {
        NAMES[m]: sorted((float(s), median(select(time, test="length", method=m, scan=s), "scan_us")) for s in lengths)
        for m in METHODS if select(time, test="length", method=m)})
    return found


def verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def paired(rows: list[Row], over: str, under: str, column: str) -> tuple[float, str]:
    """Median of the rounds' ratios, and their spread."""
    found = []
    for r in select(rows, method=over):
        base = select(rows, method=under, round=r["round"])
        found += [quotient(float(r[column]), float(b[column])) for b in base]
    middle = statistics.median(found) if found else float("nan")
    return middle, f"{middle:.2f} [{min(found, default=0):.2f} to {max(found, default=0):.2f}]"


def quotient(a: float, b: float) -> float:
    """a / b, and not a number where nothing was measured."""
    return a / b if b else float("nan")


def goals(counts: list[Row], time: list[Row]) -> list[list[str]]:
    """Those of the halves that were run."""
    return [*(counted_goals(counts) if counts else []), *(time_goals(time) if time else [])]


def counted_goals(counts: list[Row]) -> list[list[str]]:
    length = select(counts, test="length")
    out = []
    reread = sum(float(r["records_reread"]) for r in select(counts, method="rv"))
    out.append(["records that ranges re-read", number(reread), "0", verdict(reread == 0)])
    for theta in dict.fromkeys(r["theta"] for r in length):
        pairs = [(float(r["entries_compared"]), float(g["entries_compared"]))
                 for r in select(length, method="rv", theta=theta)
                 for g in select(length, method="gwv", theta=theta, scan=r["scan"])]
        worst = max((a / b for a, b in pairs if b), default=float("nan"))
        out.append([f"entries compared, of GWV's, zipf {theta} (worst length)", f"{worst:.3f}", "0.1", verdict(worst <= 0.1)])
    false = sum(int(r["false_aborts"]) for r in select(length, method="rv"))
    out.append(["false aborts of ranges, all lengths and skews", str(false), "0", verdict(false == 0)])

    def rate(method: str, scan: int, theta: object = 0.7) -> float:
        return median(select(length, method=method, scan=scan, theta=theta), "scans_per_mega_line")

    out.append(["scans of 10 keys: LRV's rate to GWV's", f"{quotient(rate('lrv', 10), rate('gwv', 10)):.2f}", "above 1",
                verdict(rate("lrv", 10) > rate("gwv", 10))])
    out.append(["scans of 10 keys: LRV's rate to the ranges'", f"{quotient(rate('lrv', 10), rate('rv', 10)):.2f}", "above 1",
                verdict(rate("lrv", 10) > rate("rv", 10))])
    out.append(["scans of 3000 keys: GWV's rate to LRV's", f"{quotient(rate('gwv', 3000), rate('lrv', 3000)):.2f}", "above 1",
                verdict(rate("gwv", 3000) > rate("lrv", 3000))])
    return out


def time_goals(time: list[Row]) -> list[list[str]]:
    out = []
    for base in ("lrv_rescan", "lrv"):
        ratio, text = paired(select(time, test="length", scan=1500), "rv", base, "scan_us")
        out.append([f"CPU of a 1500-key scan transaction, of {NAMES[base]}'s", text, "0.5", verdict(ratio <= 0.5)])
    for theta in dict.fromkeys(r["theta"] for r in select(time, test="registration")):
        rows = select(time, test="registration", theta=theta)
        for method, what in (("asleep", "ranges that no scan uses (asleep)"), ("registered", "ranges awake, no scans")):
            ratio, text = paired(rows, method, "unregistered", "transaction_us")
            out.append([f"CPU of point transactions, {what}, zipf {theta}", text, "1.05", verdict(ratio <= 1.05)])
    return out


def length_table(counts: list[Row], test: str, theta: str) -> list[str]:
    rows = select(counts, test=test, theta=theta)
    body = [[r["scan"], NAMES[r["method"]], number(float(r["records_reread"])), number(float(r["entries_compared"])),
             number(float(r["validation_lines"])), number(float(r["register_lines"])),
             number(float(r["scans_per_mega_line"])), r["scan_aborts"], r["false_aborts"], r["commits"]] for r in rows]
    return table(["scan", "method", "records re-read", "entries compared", "lines of validation",
                  "lines of registration", "scans per 10^6 lines", "aborts by scans", "of these false", "commits"], body)


def summary(counts: list[Row], time: list[Row]) -> str:
    out = ["# Logical ranges against other validations", "",
           *table(["", "measured", "goal", ""], goals(counts, time)), "", "## Counted at 40 logical workers", ""]
    for theta in dict.fromkeys(r["theta"] for r in select(counts, test="length")):
        out += [f"### Hybrid YCSB, zipf {theta}", "", *length_table(counts, "length", theta), ""]
    out += ["### Modified TPC-C, 40 warehouses", "", *length_table(counts, "tpcc", "0"), "", "## Two threads", ""]
    lengths = dict.fromkeys(r["scan"] for r in select(time, test="length"))
    body = [[s, *(number(median(select(time, test="length", scan=s, method=m), "scan_us")) for m in METHODS[:4])]
            for s in lengths]
    out += table(["scan", *(f"{NAMES[m]}, us" for m in METHODS[:4])], body)
    return "\n".join(out) + "\n"
