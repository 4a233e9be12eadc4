"""What the suite runs: points, each a workload with its parameters, style and number of clients."""

from __future__ import annotations

import dataclasses

from field import contenders, loads
from field.loads.base import INTERACTIVE, PROCEDURE, Workload

ALL = tuple(contender.name for contender in contenders.CONTENDERS)
BASE_CLIENTS = 8
# Heap at REPEATABLE READ and with the default deadlock_timeout: in the full mode only.
QUICK = tuple(name for name in ALL if name not in ("heap_rr", "heap_rc_1s", "heap_ser_1s"))
PER_CELL_SECONDS = 0.8  # VACUUM, checks and the start of pgbench, as a first guess


@dataclasses.dataclass(frozen=True)
class Point:
    workload: Workload
    style: str = PROCEDURE
    clients: int = BASE_CLIENTS
    rounds: int = 1
    seconds: int = 2
    factor: str = "base"  # what is varied here: base, clients, or a parameter's name
    contenders: tuple[str, ...] = ALL
    round_trip_us: int = 0  # a pause before each statement: the client and its network

    @property
    def name(self) -> str:
        more = "".join(f", {k}={v:g}" for k, v in sorted(self.workload.parameters.items()))
        more += f", round trips of {self.round_trip_us / 1000:g} ms" if self.round_trip_us else ""
        return f"{self.workload.name}, {self.style}, {self.clients} clients{more}"

    @property
    def value(self) -> float:
        """Of the factor."""
        return self.clients if self.factor in ("clients", "choice") else self.workload.values[self.factor]

    def cells(self) -> list[tuple[int, str]]:
        """(round, contender): odd rounds in one order, even ones in the other."""
        return [(r, c) for r in range(1, self.rounds + 1)
                for c in (self.contenders if r % 2 else reversed(self.contenders))]


@dataclasses.dataclass(frozen=True)
class Mode:
    name: str
    rounds: int
    seconds: int
    limit_minutes: int
    points: tuple[Point, ...]
    # Each contender runs a point's load so long, unmeasured, before its first measurement there.
    warm_up_seconds: int = 4

    def seconds_of(self, point: Point) -> float:
        """What the measurements of a point will take, warm-ups included."""
        return (len(point.cells()) * (point.seconds + PER_CELL_SECONDS)
                + len(point.contenders) * self.warm_up_seconds)


# Scaled-down TPC-C and the like: a quick run spends its time on running, not on loading.
QUICK_DATA = {"tpcc": {"items": 10_000, "customers": 300}}


def quick() -> Mode:
    rounds, seconds = 1, 2
    cells = [(name, PROCEDURE) for name in loads.KINDS]
    cells += [(name, INTERACTIVE) for name in ("smallbank", "votes", "tpcc")]
    points = [Point(loads.make(name, **QUICK_DATA.get(name, {})), style, rounds=rounds,
                    seconds=seconds, contenders=QUICK) for name, style in cells]
    return Mode("quick", rounds, seconds, 15, sorted_by_data(points), warm_up_seconds=2)


def sorted_by_data(points: list[Point]) -> tuple[Point, ...]:
    """Points on the same tables one after another, else in the order given."""
    order = {key: i for i, key in reversed(list(enumerate(point.workload.data_key for point in points)))}
    return tuple(sorted(points, key=lambda point: order[point.workload.data_key]))


# The factors of the full run leave out contenders whose curves say least there, and the largest
# data more: its tables are made anew for each layout.
FACTOR_CONTENDERS = ("heap_rc", "heap_ser", "occ", "2pl", contenders.ADAPTIVE)
PARTITIONED_CONTENDERS = ("heap_ser", "occ", "partcc", contenders.ADAPTIVE)
MOCC_CONTENDERS = ("heap_rc", "occ", "2pl", "mocc")
LARGE_CONTENDERS = ("heap_rc", "heap_ser", "occ", contenders.ADAPTIVE)
CLIENTS = (1, 4, 16, 64)
WITH_GOALS = ("tpcc", "smallbank", "ycsb_a", "ycsb_b", "ycsb_f", "votes")


def full() -> Mode:
    """All workloads, then one factor at a time; what is first matters most, if the time does not
    suffice."""
    rounds, seconds = 3, 3
    base = [Point(loads.make(name), style, rounds=rounds, seconds=seconds if judged else 2)
            for style, judged, names in (
                (PROCEDURE, True, WITH_GOALS),
                (PROCEDURE, False, tuple(name for name in loads.KINDS if name not in WITH_GOALS)),
                (INTERACTIVE, False, ("tpcc", "smallbank", "ycsb_a", "votes"))) for name in names]

    def varied(workload: str, factor: str, values: tuple, who: tuple[str, ...] = FACTOR_CONTENDERS, **fixed) -> list[Point]:
        def point(value):
            more = {"clients": value} if factor == "clients" else fixed
            parameters = {} if factor == "clients" else {factor: value}
            # Many sessions take a second or two until each has compiled its functions and planned
            # its statements.
            seconds = 5 if more.get("clients") == max(CLIENTS) else 2
            return Point(loads.make(workload, **parameters), rounds=2, seconds=seconds, factor=factor, contenders=who,
                         **more)
        return [point(value) for value in values]
    factors = [
        *(p for name in ("tpcc", "smallbank", "votes", "ycsb_a") for p in varied(name, "clients", CLIENTS)),
        *varied("ycsb_a", "length", (1, 4, 32, 64)),
        *varied("ycsb_a", "theta", (0, 0.5, 0.99, 1.2)),
        *varied("ycsb_a", "writes", (0.25, 1.0)),
        *varied("ycsb_partitioned", "cross", (0, 0.5, 1.0), PARTITIONED_CONTENDERS),
        *varied("ycsb_partitioned", "partitions", (2, 4, 64), PARTITIONED_CONTENDERS),
        *varied("tpcc", "warehouses", (1, 4)),
        # By statements, so that transactions overlap on few cores, too.
        *varied("mocc_50", "writes", (0, 0.2, 0.5, 0.8, 1.0), MOCC_CONTENDERS, style=INTERACTIVE, clients=16),
        *varied("ycsb_a", "rows", (1_000_000,)),
        *varied("ycsb_a", "rows", (10_000_000,), LARGE_CONTENDERS)]
    return Mode("full", rounds, seconds, 85, sorted_by_data([*base, *factors]))


CHOICE = ("heap_rc", "heap_rr", "heap_ser", *(c.name for c in contenders.PLAIN_CONTENDERS), contenders.ADAPTIVE)
CHOICE_LOADS = ("tpcc", "new_order_payment", "smallbank", "seats", "ycsb_a", "ycsb_f", "votes", "jobs", "bank",
                "read_mostly", "flash_sale")
# Clients and their round trips, in microseconds.
CHOICE_CLIENTS = ((8, 0), (16, 0), (64, 500))
CHOICE_DATA = {**QUICK_DATA, "new_order_payment": QUICK_DATA["tpcc"]}


def choice() -> Mode:
    """By statements, on default tables: is adaptive as good as the best that its user could pin?
    Five seconds from a cold start, then it counts. All points weigh the same."""
    rounds, seconds = 1, 3
    points = [Point(loads.make(name, **CHOICE_DATA.get(name, {})), INTERACTIVE, clients, rounds, seconds,
                    contenders=CHOICE, round_trip_us=round_trip, factor="choice")
              for name in CHOICE_LOADS for clients, round_trip in CHOICE_CLIENTS]
    return Mode("choice", rounds, seconds, 85, tuple(points), warm_up_seconds=5)


MODES = {"quick": quick, "full": full, "choice": choice}
