"""The suite's workloads, by name: loads.make("ycsb_a", rows=100_000)."""

from __future__ import annotations

from loads.base import Script, Workload
from loads.mocc import Mocc50, MoccScan
from loads.queue import Queue
from loads.reward import Reward
from loads.seats import Seats
from loads.smallbank import SmallBank
from loads.tpcc import Tpcc
from loads.votes import Votes
from loads.ycsb import Ycsb, YcsbPartitioned

__all__ = ["KINDS", "Script", "Workload", "make"]

KINDS = {kind.name: kind for kind in (Tpcc, SmallBank, *Ycsb.kinds(), YcsbPartitioned, Votes, Queue, Seats,
                                      Reward, Mocc50, MoccScan)}


def make(name: str, **parameters: float) -> Workload:
    return KINDS[name](**parameters)
