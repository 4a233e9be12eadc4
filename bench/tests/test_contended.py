"""bench/contended sums up its runs as it says."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.dont_write_bytecode = True

from lib import cluster  # noqa: E402

CONTENDED = cluster.program("contended")


def row(mode, round_, writes, commits, attempts, cpu="0.4"):
    return {"mode": mode, "round": str(round_), "writes": str(writes), "seconds": "0.5", "commits": str(commits), "attempts": str(attempts),
            "cpu_s": cpu}


class Contended(unittest.TestCase):
    def test_rates(self):
        self.assertEqual(CONTENDED.rates(row("occ", 0, 5, 1000, 1500)), (2000, 0.5, 400))

    def test_an_attempt_that_is_not_over_is_no_abort(self):
        self.assertEqual(CONTENDED.rates(row("occ", 0, 5, 11, 10))[1], 0)

    def test_no_commit_at_all(self):
        self.assertEqual(CONTENDED.rates(row("occ", 0, 5, 0, 10)), (0, 10, 400_000))

    def test_the_median_of_the_rounds_counts(self):
        rows = [row("occ", n, 5, commits, commits + 100) for n, commits in enumerate((100, 300, 900))]
        tps, aborts, _ = CONTENDED.by_mode(rows)["occ"][5]
        self.assertEqual((tps, aborts), (600, 100 / 300))

    def test_modes_and_writes_are_told_apart(self):
        rows = [row("mocc:3/ordered", 0, 10, 50, 60), row("occ", 0, 0, 100, 100), row("occ", 0, 10, 10, 20)]
        table = CONTENDED.summary(rows)
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
        self.assertIn(["`occ`", "200", "20"], cells)
        self.assertIn(["`mocc:3/ordered`", "-", "100"], cells)
        self.assertIn(["`occ`", "0.000", "1.000"], cells)
        self.assertIn("mocc:3/ordered", CONTENDED.plots(rows)["aborts"])


if __name__ == "__main__":
    unittest.main()
