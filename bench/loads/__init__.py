"""The suite's workloads, by name: loads.make("ycsb_a", rows=100_000)."""

from __future__ import annotations

from loads.base import Script, Workload
from loads.votes import Votes
from loads.smallbank import SmallBank
from loads.ycsb import Ycsb, YcsbPartitioned

__all__ = ["KINDS", "Script", "Workload", "make"]

KINDS = {kind.name: kind for kind in (*Ycsb.kinds(), YcsbPartitioned, SmallBank, Votes)}


def make(name: str, **parameters: float) -> Workload:
    return KINDS[name](**parameters)
