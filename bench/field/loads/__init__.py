"""The suite's workloads, by name: loads.make("ycsb_a", rows=100_000)."""

from __future__ import annotations

from field.loads.base import Script, Workload
from field.loads.mocc import Mocc50, MoccScan
from field.loads.queue import Queue
from field.loads.reward import Reward
from field.loads.seats import Seats
from field.loads.smallbank import SmallBank
from field.loads.tpcc import Tpcc
from field.loads.votes import Votes
from field.loads.ycsb import Ycsb, YcsbPartitioned

__all__ = ["KINDS", "Script", "Workload", "make"]

KINDS = {kind.name: kind for kind in (Tpcc, SmallBank, *Ycsb.kinds(), YcsbPartitioned, Votes, Queue, Seats,
                                      Reward, Mocc50, MoccScan)}


def make(name: str, **parameters: float) -> Workload:
    return KINDS[name](**parameters)
