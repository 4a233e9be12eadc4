"""What limits throughput with more cores: which shared lines a transaction changes, and a queueing
model.

A line that all transactions change is a station that serves one core at a time; a core that does
nothing but run transactions is a customer, its own work the time between its visits. Mean value
analysis of this closed network gives the throughput for any number of cores. What the model leaves
out is in scaling.md.
"""

from __future__ import annotations

import collections
import dataclasses
import re

from lib import atomics

OWN, ROW, OTHER = "own", "row", "other"  # scopes that are no station


@dataclasses.dataclass(frozen=True)
class Rule:
    """Sites whose chain matches change this object. lines: over how many lines its changes
    spread, in a table or, if each, in each partition."""

    part: str  # mixedcc or PostgreSQL
    phase: str
    what: str
    pattern: str
    scope: str = "all"  # "all" transactions use the same lines; own: this process's; row: a row's or page's
    lines: int = 1
    kind: str = ""
    each: bool = False

    def spread(self, partitions: int) -> int:
        """The number of lines in a table with so many partitions."""
        return self.lines * (partitions if self.each else 1)


_M, _P = "mixedcc", "PostgreSQL"
# The first rule that matches counts. A chain is function'caller'caller's caller'...
RULES = (
    Rule(_M, "commit", "clock", r"^[^']*take_csn", kind="xadd"),
    Rule(_M, "commit", "own slot: word, pin", "take_csn", OWN),
    Rule(_M, "begin", "own slot: word, pin, epoch",
         r"(Txn::begin|xact::start|Txn::(start_)?follow|Engine::pin|Engine::snapshot|Txn::renew)", OWN),
    # A partition has eight stripes of counters; samples have none.
    Rule(_M, "commit", "statistics of partitions, samples", r"^[^']*(stats::Sampled::|Telemetry::mark_access)", each=True),
    Rule(_M, "commit", "statistics of partitions, striped by slot", r"^[^']*(txn::telemetry::|partition::stats::)", "all", 8, each=True),
    Rule(_M, "reclaim", "memory: shared pages and lists", r"^[^']*memory::arena", "all"),
    # The end of a transaction gives its locks up; under `partcc` these are of partitions.
    Rule(_M, "lock", "row locks", r"^[^']*(peek_or_lock|Txn::reset')", ROW, kind="cmpxchg"),
    Rule(_M, "reclaim", "own retire queue, magazines", r"^[^']*(Txn::reset|RetireQueue)", OWN),
    # A ring's three counters have a line each.
    Rule(_M, "commit", "rings of inserts: tail", r"^[^']*List<E>::register'[^']*Inserts::register", kind="xadd", each=True),
    Rule(_M, "commit", "rings of inserts: finished", r"^[^']*ring::finish", kind="inc", each=True),
    Rule(_M, "commit", "rings of inserts: evicted", r"^[^']*ring::note_evicted", kind="cmpxchg", each=True),
    Rule(_M, "commit", "ranges: lists of writes", r"^[^']*(Ring|range::|register)", ROW),
    Rule(_M, "insert", "table: its next record", r"^[^']*(Table>?::(take_record|fill|take_back)|Run::give_back|table::numbers::)", kind="cmpxchg"),
    # Eight stripes, by slot.
    Rule(_M, "insert", "primary index: its number of entries", r"^[^']*Index>::(put|insert_key|split)", "all", 8, "xadd|inc|add"),
    Rule(_M, "insert", "primary index: latches of leaves", r"^[^']*(VersionWord|KeyLeaves)::", ROW),
    Rule(_M, "begin", "own slot: word, pin, epoch", r"^[^']*shared::pins::", OWN),
    Rule(_M, "commit", "rows: link, stamp", r"^[^']*(Record::set_head|txn::write::[^']*Txn>::insert|table::numbers::[^']*take_record)'", ROW),
    Rule(_M, "lock", "partition lock", r"(lock_partition|Partition.*lock|partition::.*lock|PartitionLock)", "all"),
    Rule(_M, "lock", "row locks", r"LockWord|lock_record|LockHead|lock::", ROW),
    Rule(_M, "commit", "rows: link, stamp", r"WriteSet::link|txn::commit::.*::link|txn::commit::.*::publish'|settle", ROW),
    Rule(_M, "reclaim", "memory: shared pages and lists", r"^[^']*(Region|SlabClass|memory::(region|slab|pages|directory))", "all"),
    Rule(_M, "reclaim", "own retire queue, magazines", r"RetireQueue|magazine|collect|Txn::reset", OWN),
    Rule(_M, "validate", "validation", r"validate", ROW),
    Rule(_P, "execute", "buffer mapping lock of the root page", r"LWLock.*ReadBufferExtended.*_bt_getroot", "all"),
    Rule(_P, "execute", "index root page: pin", r"(ReadBuffer|ReleaseBuffer|ReleaseAndReadBuffer).*_bt_getroot|^0x[0-9a-f]+'ReleaseAndReadBuffer'_bt_relandgetbuf", "all"),
    Rule(_P, "execute", "index root page: content lock", r"LockBuffer'_bt_getroot|LWLockRelease'LockBuffer'_bt_relandgetbuf", "all"),
    Rule(_P, "execute", "buffer mapping locks", r"LWLock.*ReadBufferExtended", "all", 128),
    Rule(_P, "execute", "pages: pins and content locks", r"(Buffer|_bt_|heap_)", ROW),
    # Which lock was taken callgrind cannot tell. By predicate.c, about half of these changes are of
    # the one named; the others are of SerializableFinishedListLock, SerializablePredicateListLock,
    # or a partition's lock.
    Rule(_P, "serializable", "SSI: SerializableXactHashLock", r"LWLock.*'(PreCommit_CheckForSerializationFailure|"
         r"ReleasePredicateLocks|GetSerializableTransactionSnapshot|RegisterPredicateLockingXid|CheckForSerializableConflict(In|Out))", "all", 2),
    Rule(_P, "serializable", "SSI: SerializablePredicateListLock", r"LWLock.*Predicate", "all", 2),
    Rule(_P, "serializable", "SSI: tables of predicate locks", r"Predicate|Serializ", "all", 32),
    Rule(_P, "snapshot", "ProcArrayLock", r"GetSnapshotData|ProcArrayEndTransaction|ProcArrayGroup|GlobalVis", "all"),
    Rule(_P, "commit", "XidGenLock", r"GetNewTransactionId", "all"),
    Rule(_P, "commit", "transaction status (SLRU)", r"TransactionIdGetStatus|SimpleLru|TransactionIdSetTreeStatus|Async|SubTrans|MultiXact", "all"),
    Rule(_P, "commit", "WAL insertion", r"XLog|WAL", "all", 8),
    Rule(_P, "lock", "own fast-path locks", r"VirtualXact|LockRelationOid|FastPath|ProcReleaseLocks|LockReleaseAll", OWN),
    Rule(_P, "lock", "lock table's partitions", r"LockAcquire|LockRelease", "all", 16),
    Rule(_P, "messages", "invalidations", r"AcceptInvalidationMessages|SIGetDataEntries|SendSharedInval", "all"),
)


# Several rules may say of what object a change is: the first one has its scope.
OBJECTS: dict[tuple[str, str], Rule] = {}
for _rule in RULES:
    OBJECTS.setdefault((_rule.part, _rule.what), _rule)


def classify(site: atomics.Site) -> Rule | None:
    for rule in RULES:
        in_mixedcc = site.object == "mixedcc.so"
        if in_mixedcc == (rule.part == _M) and re.search(rule.pattern, site.chain) \
                and (not rule.kind or re.fullmatch(rule.kind, site.kind)):
            return OBJECTS[rule.part, rule.what]
    return None


def by_object(counts: collections.Counter, transactions: int) -> dict[Rule, float]:
    """Changes of each object by one transaction; what no rule knows is under `other`."""
    found: dict[Rule, float] = {}
    for site, count in counts.items():
        part = _M if site.object == "mixedcc.so" else _P
        rule = classify(site) or Rule(part, "", "other", "", OTHER)
        found[rule] = found.get(rule, 0) + count / transactions
    return found


@dataclasses.dataclass(frozen=True)
class Machine:
    """What moving a line to another core takes; the assumptions of a size."""

    cores: int
    transfer_ns: float


# Cores of one socket, of a socket of chiplets, and of two sockets or more. Not measured here: two
# cores cannot show it. They are of the order of published figures for such machines.
MACHINES = (Machine(16, 50), Machine(64, 100), Machine(256, 200))


def stations(objects: dict[Rule, float], machine: Machine, partitions: int) -> dict[str, float]:
    """{object: ns of its hottest line for one transaction on tables with so many partitions}."""
    found: dict[str, float] = collections.defaultdict(float)
    for rule, changes in objects.items():
        if rule.scope == "all":
            found[f"{rule.part}: {rule.what}"] += changes / rule.spread(partitions) * machine.transfer_ns
    return dict(found)


def limit(demand_ns: float) -> float:
    """Transactions a second that a station can serve."""
    return 1e9 / demand_ns if demand_ns else float("inf")


def throughput(work_ns: float, demands: list[float], cores: int) -> float:
    """Transactions a second of so many cores, by mean value analysis."""
    waiting = [0.0] * len(demands)
    rate = 0.0
    for n in range(1, cores + 1):
        times = [d * (1 + q) for d, q in zip(demands, waiting)]
        rate = n / (work_ns + sum(times))
        waiting = [rate * t for t in times]
    return rate * 1e9
