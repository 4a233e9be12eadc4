"""That the benchmark of scaling out computes what it says."""

import random
import unittest

from lib import cluster

try:
    scale_out = cluster.program("scale-out")
except SystemExit as why:
    raise unittest.SkipTest(str(why)) from why


class Lines(unittest.TestCase):
    def line(self, load, ours, heaps, retries=(0, 0)):
        found = {"mixedcc": [(cpu, retries[0]) for cpu in ours], "heap": [(cpu, retries[1]) for cpu in heaps]}
        return dict(zip(scale_out.HEADER, scale_out.line(load, 2, found, [6, 6])))

    def test_the_ratio_is_the_median_of_rounds(self):
        row = self.line("tenant", [40, 50, 90], [100, 100, 100])
        self.assertTrue(row["ratio"].startswith("0.5 ["), row)
        self.assertEqual(row[""], "met")
        self.assertEqual(self.line("tenant", [51, 60, 40], [100, 100, 100])[""], "missed")

    def test_retries_are_part_of_the_goal_over_several_workers(self):
        self.assertEqual(self.line("cross", [90], [100], retries=(0.2, 0.1))[""], "missed")
        self.assertEqual(self.line("cross", [90], [100], retries=(0.1, 0.1))[""], "met")


class Statements(unittest.TestCase):
    def test_what_a_transaction_adds(self):
        for load in scale_out.GOALS:
            pairs = [(1, "t_x_7")] if load == "shard" else [(1, 2)]
            texts, adds = scale_out.statements(load, "t_x", random.Random(1), pairs)
            updates = sum(text.startswith("UPDATE") for text in texts)
            self.assertEqual(adds, updates or 10, load)

    def test_keys_of_a_transaction_differ(self):
        texts, _ = scale_out.statements("tenant", "t_x", random.Random(3), [])
        self.assertEqual(len({text.rsplit(" ", 1)[1] for text in texts}), 4)


if __name__ == "__main__":
    unittest.main()
