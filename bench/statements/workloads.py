"""What is measured: engines, tests, and the goals that the measured ratios stand beside."""

from __future__ import annotations

import dataclasses
import pathlib

from lib import protocols
from lib.cluster import DEFAULT_TIMEOUT, RC, SER, SHORT_TIMEOUT
from lib.report import Goal

DIRECTORY = pathlib.Path(__file__).resolve().parent
FILLER = 100  # bytes of each row's text
OWN_COST = 1.05  # at most: SERIALIZABLE to READ COMMITTED, of a transaction of 20 statements


# What a committed transaction of each script adds to sum(value): proves that it ran.
ADDED_BY_SCRIPT = {"update1": 1, "read20": 0, "read10_update10": 10, "hot_update": 1, "hot_row": 1,
                   "hot10_random": 10, "hot10_sorted": 10, "scan1000": 1, "disjoint": 1, "point": 0, "select_one": 0,
                   "insert1": 1, "insert100": 100}
# Rows that it adds.
INSERTED_BY_SCRIPT = {"insert1": 1, "insert100": 100}


@dataclasses.dataclass(frozen=True)
class Engine:
    """How the table is made. Its name is also the name of its schema's ending."""

    name: str
    protocol: str  # "" for heap
    options: tuple[tuple[str, str], ...] = ()
    is_permanent: bool = False

    @property
    def schema(self) -> str:
        return f"bench_{self.name}"

    @property
    def is_mixedcc(self) -> bool:
        return self.protocol != ""

    def with_partitions(self, count: int) -> Engine:
        """The same with so many partitions; heap has none."""
        if not self.is_mixedcc:
            return self
        return dataclasses.replace(self, options=tuple({**dict(self.options), "partitions": str(count)}.items()))

    def using(self) -> str:
        """The clause of CREATE TABLE."""
        if not self.is_mixedcc:
            options = ", ".join(f"{k} = {v}" for k, v in self.options)
            return "USING heap" + (f" WITH ({options})" if options else "")
        options = [("protocol", self.protocol), *self.options]
        return "USING mixedcc WITH (" + ", ".join(f"mixedcc.{k} = '{v}'" for k, v in options) + ")"

    def fill(self, text: str, row_count: int, filler: int = FILLER) -> str:
        """SQL of a file of `sql` for this engine."""
        words = {"using": self.using(), "persistence": "" if self.is_permanent else "UNLOGGED",
                 "rows": str(row_count), "filler": str(filler)}
        for name, word in words.items():
            text = text.replace(f":{name}", word)
        return text


HEAP = Engine("heap", "")
EACH = tuple(Engine(name, name, (("partitions", "16"), *protocols.waiting(name).items())) for name in protocols.ALL)
# Those that goals and workloads are about.
OCC, TWO_PL, PARTCC = (next(e for e in EACH if e.name == name) for name in ("occ", "2pl", "partcc"))
# A transaction of many keys takes partition locks as it meets the keys. In one
# partition it takes one, and so has no order to break: the layout a user of
# partcc would choose for a table whose transactions know no partition.
PARTCC_ONE = Engine("partcc_one", "partcc", (("partitions", "1"),))

# Tables that survive a crash. Heap as users who update it would have it: with room for new
# versions of a row on its page.
HEAP_LOGGED = Engine("heap_logged", "", (("fillfactor", "85"),), is_permanent=True)
PERMANENT = tuple(dataclasses.replace(engine, name=f"{engine.name}_permanent", is_permanent=True)
                  for engine in (OCC, TWO_PL, PARTCC_ONE))

ENGINES = {engine.name: engine
           for engine in (HEAP, *EACH, PARTCC_ONE, HEAP_LOGGED, *PERMANENT)}


@dataclasses.dataclass(frozen=True)
class Variant:
    """One thing that is run in every round of a test."""

    engine: Engine
    isolation: str
    script: str
    deadlock_timeout: str = SHORT_TIMEOUT

    @property
    def label(self) -> str:
        if self.script == "select_one":
            return "SELECT 1"
        ending = ", sorted keys" if self.script.endswith("_sorted") else ""
        if self.deadlock_timeout != SHORT_TIMEOUT:
            ending += f", deadlock_timeout {self.deadlock_timeout}"
        return f"{self.engine.name} {self.isolation}{ending}"

    @property
    def script_path(self) -> str:
        return str(DIRECTORY / "scripts" / f"{self.script}.pgbench")


@dataclasses.dataclass(frozen=True)
class Test:
    name: str
    title: str
    clients: int
    variants: tuple[Variant, ...]
    goals: tuple[Goal, ...]


def _update_by_key() -> Test:
    variants = [Variant(engine, RC, "update1") for engine in (HEAP, OCC, TWO_PL, PARTCC)]
    goals = [Goal("cpu_us", v.label, variants[0].label, at_most=0.20) for v in variants[1:]]
    return Test("update1", "single-row UPDATE by key, READ COMMITTED", 2,
                tuple(variants), tuple(goals))


def _point() -> Test:
    """What a look-up costs beside a statement that touches nothing."""
    nothing = Variant(HEAP, RC, "select_one")
    variants = [Variant(engine, RC, "point") for engine in (HEAP, OCC, TWO_PL, PARTCC)]
    goals = [Goal("cpu_us", v.label, nothing.label, at_most=1.05) for v in variants[1:]]
    return Test("point", "SELECT by key, READ COMMITTED", 2, (nothing, *variants), tuple(goals))


def _insert(script: str, title: str) -> Test:
    variants = [Variant(engine, RC, script) for engine in (HEAP, OCC, TWO_PL, PARTCC)]
    goals = [Goal("cpu_us", v.label, variants[0].label, at_most=0.8) for v in variants[1:]]
    return Test(script, f"INSERT of {title} into a table with a primary key, READ COMMITTED", 2,
                tuple(variants), tuple(goals))


def _function(script: str, title: str, cpu_goal: float) -> Test:
    """Each protocol at SERIALIZABLE against heap; heap's READ COMMITTED for the eye."""
    heap = Variant(HEAP, SER, script)
    protocols = [Variant(engine, SER, script) for engine in (OCC, TWO_PL, PARTCC_ONE)]
    goals = [Goal("cpu_us", v.label, heap.label, at_most=cpu_goal) for v in protocols]
    return Test(script, f"plpgsql, {title}, SERIALIZABLE", 2,
                (heap, Variant(HEAP, RC, script), *protocols), tuple(goals))


def _own_cost(script: str, title: str) -> Test:
    """SERIALIZABLE against READ COMMITTED; one client, so that none waits or fails."""
    variants, goals = [], []
    for engine in (OCC, TWO_PL, PARTCC_ONE):
        serializable, committed = Variant(engine, SER, script), Variant(engine, RC, script)
        variants += [serializable, committed]
        goals.append(Goal("cpu_us", serializable.label, committed.label, at_most=OWN_COST))
    return Test(f"own_cost_{script}", f"the protocols' own cost: plpgsql, {title}, "
                "SERIALIZABLE against READ COMMITTED", 1, tuple(variants), tuple(goals))


def _hot_update() -> Test:
    variants = [Variant(engine, SER, "hot_update") for engine in (HEAP, TWO_PL, PARTCC)]
    heap = variants[0].label
    goals = []
    for variant in variants[1:]:
        goals.append(Goal("retries_per_commit", variant.label, heap, at_most=1 / 20))
        goals.append(Goal("tps", variant.label, heap, at_least=1.3))
    variants.append(Variant(HEAP, SER, "hot_update", DEFAULT_TIMEOUT))
    return Test("hot_update", "UPDATE of one of 10 hot rows, 16 clients, SERIALIZABLE", 16,
                tuple(variants), tuple(goals))


def _hot_function() -> Test:
    heap, partcc = (Variant(e, SER, "hot10_random") for e in (HEAP, PARTCC_ONE))
    heap_sorted, partcc_sorted = (Variant(e, SER, "hot10_sorted") for e in (HEAP, PARTCC_ONE))
    heap_1s = Variant(HEAP, SER, "hot10_random", DEFAULT_TIMEOUT)
    # Heap finds each deadlock after deadlock_timeout: a user with such rows would shorten it.
    goals = (Goal("tps", partcc.label, heap.label, at_least=50),
             Goal("tps", partcc.label, heap_1s.label, at_least=500),
             Goal("tps", partcc.label, partcc_sorted.label, at_least=0.8),
             Goal("tps", partcc.label, heap_sorted.label, at_least=0.8))
    return Test("hot10", "plpgsql, 10 reads and updates of 50 hot rows in random order, "
                "16 clients, SERIALIZABLE", 16,
                (heap, heap_1s, partcc, heap_sorted, partcc_sorted), goals)


def _scan() -> Test:
    variants = [Variant(engine, SER, "scan1000") for engine in (HEAP, OCC, TWO_PL, PARTCC)]
    goals = [Goal("cpu_us", v.label, variants[0].label, at_most=1 / 3) for v in variants[1:]]
    return Test("scan1000", "scan of 1000 rows by key and an UPDATE elsewhere, SERIALIZABLE", 2,
                tuple(variants), tuple(goals))


def _disjoint() -> Test:
    """No transaction reads what another one writes: each retry is a false conflict."""
    variants = [Variant(engine, SER, "disjoint") for engine in (HEAP, OCC, TWO_PL)]
    goals = [Goal("retries_per_commit", v.label, variants[0].label, at_most=0) for v in variants[1:]]
    return Test("disjoint", "scan of 10 rows and an UPDATE beside them, 8 clients with rows of their own, SERIALIZABLE",
                8, tuple(variants), tuple(goals))


TESTS = (
    _update_by_key(),
    _point(),
    _insert("insert1", "one row"),
    _insert("insert100", "100 rows"),
    _function("read20", "20 reads", 0.22),
    _function("read10_update10", "10 reads and 10 updates", 0.15),
    _own_cost("read20", "20 reads"),
    _own_cost("read10_update10", "10 reads and 10 updates"),
    _hot_update(),
    _hot_function(),
    _scan(),
    _disjoint(),
)

# Memory: bytes of table and indexes, for these engines, at these moments.
MEMORY_TEST = "memory"
MEMORY_ENGINES = (HEAP, OCC, TWO_PL, PARTCC)
MEMORY_UPDATES_PER_ROW = 10
MEMORY_GOALS = tuple(Goal(metric, engine.name, HEAP.name, at_most=at_most)
                     for metric, at_most in (("bytes_loaded", 1.2), ("bytes_updated", 1.1))
                     for engine in MEMORY_ENGINES[1:])

# Instructions per transaction, on a single-user backend.
INSTRUCTION_ENGINES = (HEAP, OCC, TWO_PL, PARTCC_ONE)
INSTRUCTION_LOOPS = ("empty", "read1", "update1", "read20", "read10_update10", "scan1000", "native20",
                     "native10_10", "call20", "call10_10", "empty20", "empty10_10", "payment", "payment_sql",
                     "read_each20", "read_each100", "update_each20", "update_each100", "insert1", "insert20", "insert100",
                     "copy100")
INSERTING_LOOPS = ("insert1", "insert20", "insert100", "copy100")
# At most this share of heap's instructions at SERIALIZABLE: plain SQL, native access from plpgsql,
# one native call. bench/docs/goals.md says where we stand.
_INSTRUCTION_GOALS = {"read20": 0.22, "read10_update10": 0.15, "native20": 0.18, "native10_10": 0.14,
                      "call20": 0.05, "call10_10": 0.05,
                      "insert1": 0.8, "insert20": 0.8, "insert100": 0.45, "copy100": 0.59}


def instruction_files(engine: Engine) -> tuple[str, ...]:
    native = "native.sql" if engine.is_mixedcc else "native_heap.sql"
    return ("schema.sql", "functions.sql", "payment.sql", native, "instructions.sql")


def instruction_goals() -> list[tuple[str, Goal]]:
    """(loop, goal): against heap SERIALIZABLE, and SERIALIZABLE against READ COMMITTED."""
    goals = []
    for loop, at_most in _INSTRUCTION_GOALS.items():
        for engine in INSTRUCTION_ENGINES[1:]:
            serializable = f"{engine.name} {SER}"
            goals.append((loop, Goal("instructions", serializable, f"{HEAP.name} {SER}",
                                     at_most=at_most)))
            if loop not in INSERTING_LOOPS:  # there the second count has the larger table
                goals.append((loop, Goal("instructions", serializable, f"{engine.name} {RC}",
                                         at_most=OWN_COST)))
    return goals
