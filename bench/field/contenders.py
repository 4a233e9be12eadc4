"""What is compared: heap at three levels, and mixedcc under each protocol, a hybrid and
adaptive."""

from __future__ import annotations

import dataclasses

from lib import protocols
from lib.cluster import DEFAULT_TIMEOUT, RC, RR, SER, SHORT_TIMEOUT

ADAPTIVE = "adaptive"


@dataclasses.dataclass(frozen=True)
class Contender:
    name: str
    title: str
    isolation: str
    layout: str | None  # of the tables; None: heap
    protocol: str = ""
    locks: bool = False  # explicit row locks, as an application below SERIALIZABLE has to take them
    deadlock_timeout: str = SHORT_TIMEOUT

    @property
    def tags(self) -> frozenset[str]:
        """Which lines of the workloads' SQL and scripts are for it (loads.base.render)."""
        if self.layout == "default":  # without options and annotations
            return frozenset({"mixedcc", "locks"} if self.locks else {"mixedcc"})
        tags = {"mixedcc", self.protocol} if self.layout else {"heap"}
        if self.protocol in protocols.having("locks_partitions"):
            tags.add("annotated")
        if self.locks:
            tags.add("locks")
        if self.isolation == RR:
            tags.add("rr")
        return frozenset(tags)

    @property
    def is_mixedcc(self) -> bool:
        return self.layout is not None


CONTENDERS = (
    Contender("heap_rc", "heap, READ COMMITTED, explicit row locks", RC, None, locks=True),
    Contender("heap_rr", "heap, REPEATABLE READ", RR, None),
    Contender("heap_ser", "heap, SERIALIZABLE", SER, None),
    Contender("heap_rc_1s", "heap, READ COMMITTED, explicit row locks, deadlock_timeout 1 s", RC, None,
              locks=True, deadlock_timeout=DEFAULT_TIMEOUT),
    Contender("heap_ser_1s", "heap, SERIALIZABLE, deadlock_timeout 1 s", SER, None,
              deadlock_timeout=DEFAULT_TIMEOUT),
    *(Contender(name, f"mixedcc, {name}, SERIALIZABLE", SER, "spread", name)
      for name in protocols.without("locks_partitions")),
    *(Contender(name, f"mixedcc, {name}, SERIALIZABLE", SER, "partcc", name)
      for name in protocols.having("locks_partitions")),
    Contender("hybrid", "mixedcc, a hybrid by hand, SERIALIZABLE", SER, "hybrid", "hybrid"),
    Contender(ADAPTIVE, "mixedcc, adaptive on plain tables, SERIALIZABLE", SER, "default", ADAPTIVE),
)
# What the mode `choice` compares adaptive with: the same tables, without options, under a protocol
# that is pinned.
PLAIN = "_plain"
PLAIN_CONTENDERS = (
    Contender("rc_plain", "mixedcc, READ COMMITTED, explicit row locks, plain tables", RC, "default",
              "occ", locks=True),
    *(Contender(name + PLAIN, f"mixedcc, {name} on plain tables, SERIALIZABLE", SER, "default", name)
      for name in (*protocols.ALL, "hybrid")),
)
BY_NAME = {contender.name: contender for contender in (*CONTENDERS, *PLAIN_CONTENDERS)}
