"""The suite's workloads, by name: loads.make("ycsb_a", rows=100_000)."""

from __future__ import annotations

from field.loads.bank import Bank
from field.loads.base import Script, Workload
from field.loads.flash_sale import FlashSale
from field.loads.jobs import Jobs
from field.loads.mocc import Mocc50, MoccScan
from field.loads.new_order_payment import NewOrderPayment
from field.loads.queue import Queue
from field.loads.read_mostly import ReadMostly
from field.loads.reward import Reward
from field.loads.seats import Seats
from field.loads.smallbank import SmallBank
from field.loads.tpcc import Tpcc
from field.loads.votes import Votes
from field.loads.ycsb import Ycsb, YcsbPartitioned

__all__ = ["ALL_KINDS", "CHOICE_KINDS", "KINDS", "Script", "Workload", "make"]

KINDS = {kind.name: kind for kind in (Tpcc, SmallBank, *Ycsb.kinds(), YcsbPartitioned, Votes, Queue, Seats,
                                      Reward, Mocc50, MoccScan)}
# By statements, on default tables: the mode `choice` has these beside some of the others.
CHOICE_KINDS = {kind.name: kind for kind in (NewOrderPayment, Bank, ReadMostly, FlashSale, Jobs)}
ALL_KINDS = {**KINDS, **CHOICE_KINDS}


def make(name: str, **parameters: float) -> Workload:
    return ALL_KINDS[name](**parameters)
