"""bench/testbeds reads what the programs print, and compares what is alike."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.dont_write_bytecode = True

from lib import cluster  # noqa: E402

TESTBEDS = cluster.program("testbeds")
ACCESS = cluster.program("access")


class Testbeds(unittest.TestCase):
    def test_the_counts_of_ccbench(self):
        text = "#FLAGS_extime:\t\t1\nabort_counts_:\t12\ncommit_counts_:\t345\nabort_rate:\t0.03\nthroughput[tps]:\t345\n"
        self.assertEqual(TESTBEDS.parse_ccbench(text), (345, 12))

    def test_the_processors_of_the_last_seconds(self):
        # 3 s of loading with two threads, then a second with one that has 0.5 of a processor.
        samples = [(t / 10, min(t, 30) * 0.2 + max(t - 30, 0) * 0.05) for t in range(41)]
        self.assertAlmostEqual(TESTBEDS.share(samples, 4.0, 1), 0.5)

    def test_contenders_take_turns_by_name(self):
        self.assertEqual(TESTBEDS.contenders(["no", "yes"])[:5], ["ccbench silo", "ccbench mocc", "ccbench ss2pl", "occ", "mocc"])
        self.assertEqual(len(set(TESTBEDS.contenders(["no", "yes"]))), 9)

    def test_summary(self):
        rows = [{"load": "A", "skew": "0", "threads": threads, "contender": "occ", "ns_per_access": ns, "commits": 1000, "aborts": aborts}
                for threads in ("1", "2") for ns, aborts in ((100.4, 0), (300.0, int(threads) - 1), (200.0, 0))]
        text = TESTBEDS.summary(rows)
        self.assertTrue(any(line.startswith("| occ | 200 |") for line in text), text)
        self.assertTrue(any(line.startswith("| occ | 200 (333) |") for line in text), text)


class Access(unittest.TestCase):
    ROW = {"layout": "occ", "index": "tree", "announced": "no", "pages": "4K", "threads": "1", "round": "1", "commits": "1000", "aborts": "2",
           "deadlocks": "0", "ns_per_access": "130", "tps": "1"}

    def test_goals_are_of_the_load_that_they_are_for(self):
        self.assertIn("**missed**", "".join(ACCESS.summary([self.ROW], {"occ": 120})))
        self.assertNotIn("missed", "".join(ACCESS.summary([self.ROW], {})))


if __name__ == "__main__":
    unittest.main()
