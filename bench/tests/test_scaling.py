"""Tests of what bench/scaling computes."""

import collections
import pathlib
import sys
import unittest

BENCH_DIR = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BENCH_DIR))
sys.dont_write_bytecode = True

from lib import atomics  # noqa: E402
from engine import scaling_model  # noqa: E402

DISASSEMBLY = """
  401000:\tlock xadd %rax,(%rdx)
  401005:\txchg   %rax,(%rdx)
  401008:\txchg   %ax,%ax
  40100a:\tlock cmpxchg %rcx,(%rdi)
  401010:\tadd    %rax,(%rdx)
  401014:\tlock incq (%rdx)
"""
DUMP = """\
positions: instr line
events: Ir
ob=(1) /lib/mixedcc.so
fn=(1) take_csn'prepare
0x401000 10 7
+5 * 3
cfn=(2) inner
calls=5 0x401000
* * 900
fn=(2)
0x40100a 1 4
-5 +2 6
"""


class Atomics(unittest.TestCase):
    KINDS = atomics.kinds_of_text(DISASSEMBLY)

    def test_kinds(self):
        self.assertEqual(self.KINDS, {0x401000: "xadd", 0x401005: "xchg", 0x40100a: "cmpxchg", 0x401014: "inc"})

    def test_counts_without_the_cost_of_calls(self):
        site = lambda chain, kind: atomics.Site("mixedcc.so", chain, kind)  # noqa: E731
        self.assertEqual(dict(atomics.counts(DUMP, {"mixedcc.so": self.KINDS})), {
            site("take_csn'prepare", "xadd"): 7, site("take_csn'prepare", "xchg"): 3,
            site("inner", "cmpxchg"): 4, site("inner", "xchg"): 6})


class Objects(unittest.TestCase):
    def what(self, chain, kind="cmpxchg", file="postgres"):
        rule = scaling_model.classify(atomics.Site(file, chain, kind))
        return rule and rule.what

    def test_rules(self):
        self.assertEqual(self.what("e::txn::Txn::take_csn'prepare", "xadd", "mixedcc.so"), "clock")
        self.assertEqual(self.what("e::txn::Txn::take_csn'prepare", "xchg", "mixedcc.so"), "own slot: word, pin")
        self.assertEqual(self.what("0x1'LWLockAcquire'LockBuffer'_bt_getroot'_bt_search"), "index root page: content lock")
        self.assertEqual(self.what("LWLockRelease'0x1'ReadBufferExtended'ReadBuffer'_bt_getbuf'_bt_getroot"),
                         "buffer mapping lock of the root page")
        self.assertEqual(self.what("LWLockRelease'PreCommit_CheckForSerializationFailure'0x1"),
                         "SSI: SerializableXactHashLock")
        self.assertIsNone(self.what("nobody_knows"))

    def test_what_a_commit_counts_is_shared(self):
        behind = "'e::txn::commit::<impl e::txn::Txn>::publish'mixedcc::state::xact::publish"
        for site, wanted in (("e::txn::telemetry::Telemetry::count_committed", "statistics of partitions, striped by slot"),
                             ("e::partition::stats::Sampled::add", "statistics of partitions, samples"),
                             ("e::txn::Txn::reset", "own retire queue, magazines"),
                             ("e::txn::write_set::WriteSet::link", "rows: link, stamp"),
                             ("e::memory::arena::Arena::free_slow'e::retire::RetireQueue::drain_for", "memory: shared pages and lists"),
                             ("e::record::settle", "rows: link, stamp")):
            self.assertEqual(self.what(site + behind, "add", "mixedcc.so"), wanted)

    def test_what_an_insert_changes_is_named(self):
        for site, kind, wanted in (
                ("e::table::numbers::<impl e::table::Table>::fill'e::txn::write::<impl e::txn::Txn>::insert", "cmpxchg",
                 "table: its next record"),
                ("e::table::numbers::Run::give_back'e::txn::Txn::reset", "cmpxchg", "table: its next record"),
                ("e::index::insert::<impl e::index::Index>::put'x", "inc", "primary index: its number of entries"),
                ("e::index::word::VersionWord::latch'e::index::insert::<impl e::index::Index>::put", "cmpxchg",
                 "primary index: latches of leaves"),
                ("e::range::ring::List<E>::register'e::range::inserted::Inserts::register", "xadd",
                 "rings of inserts: tail"),
                ("e::range::ring::note_evicted'e::range::ring::List<E>::register", "cmpxchg", "rings of inserts: evicted"),
                ("e::range::ring::List<E>::register'e::range::inserted::Inserts::register", "xchg", "ranges: lists of writes"),
                ("e::record::Record::set_head'e::txn::write::<impl e::txn::Txn>::insert", "xchg", "rows: link, stamp")):
            self.assertEqual(self.what(site, kind, "mixedcc.so"), wanted)

    def test_changes_are_those_of_one_transaction(self):
        counts = collections.Counter({atomics.Site("mixedcc.so", "e::take_csn'prepare", "xadd"): 100,
                                      atomics.Site("mixedcc.so", "e::pin'e::take_csn'prepare", "xadd"): 100,
                                      atomics.Site("postgres", "nobody_knows", "xadd"): 50})
        found = {rule.what: n for rule, n in scaling_model.by_object(counts, 100).items()}
        self.assertEqual(found, {"clock": 1, "own slot: word, pin": 1, "other": 0.5})


class Model(unittest.TestCase):
    def test_one_core_never_waits(self):
        self.assertAlmostEqual(scaling_model.throughput(900, [60, 40], 1), 1e6)

    def test_many_cores_reach_the_lowest_limit(self):
        rate = scaling_model.throughput(10_000, [100, 50], 1000)
        self.assertAlmostEqual(rate, scaling_model.limit(100), delta=0.001 * rate)

    def test_two_cores_and_one_station_by_hand(self):
        # Mean value analysis: with 1 core the station holds 100 / 1000 of a customer on average.
        self.assertAlmostEqual(scaling_model.throughput(900, [100], 2), 2e9 / (900 + 100 * 1.1))

    def test_lines_and_transfers(self):
        rule = scaling_model.Rule("PostgreSQL", "", "mapping", "", "all", 128)
        stripes = scaling_model.Rule("mixedcc", "", "counters", "", "all", 8, each=True)
        own = scaling_model.Rule("mixedcc", "", "slot", "", scaling_model.OWN)
        machine = scaling_model.Machine(16, 50)
        self.assertEqual(scaling_model.stations({rule: 128, own: 9, stripes: 16}, machine, 4),
                         {"PostgreSQL: mapping": 50, "mixedcc: counters": 25})


if __name__ == "__main__":
    unittest.main()
