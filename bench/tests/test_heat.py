"""bench/heat sums up phases as it says."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.dont_write_bytecode = True

from lib import cluster  # noqa: E402

HEAT = cluster.program("heat")


def line(mode, round_, bucket, commits, attempts):
    """Four lines a phase of 0.5 s each; writes in every other phase."""
    phase = bucket // 4
    return {"mode": mode, "round": str(round_), "bucket": str(bucket), "phase": str(phase), "writes": str(phase % 2), "seconds": "0.5",
            "commits": str(commits), "attempts": str(attempts)}


# Two phases: reads at 100 a line; writes with 30, 20, 10 and 0 aborts to 50 commits.
ONE = [line("mocc:3", 0, n, 100, 100) for n in range(4)] + [line("mocc:3", 0, 4 + n, 50, 80 - 10 * n) for n in range(4)]


class Heat(unittest.TestCase):
    def test_parts_of_phases(self):
        parts = HEAT.parts(ONE)
        self.assertEqual([r["bucket"] for r in parts["reads"]], ["0", "1", "2", "3"])
        self.assertEqual([r["bucket"] for r in parts["writes"]], ["4", "5", "6", "7"])
        self.assertEqual([r["bucket"] for r in parts["first"]], ["4"])
        self.assertEqual([r["bucket"] for r in parts["late"]], ["6", "7"])

    def test_rates(self):
        of = HEAT.by_mode(ONE)["mocc:3"]
        self.assertEqual(of["reads"], (200, 0))
        self.assertEqual(of["writes"], (100, 60 / 260))
        self.assertEqual(of["first"], (100, 30 / 80))
        self.assertEqual(of["late"], (100, 10 / 110))

    def test_the_median_of_the_rounds_counts(self):
        rounds = [dict(r, round=str(n), commits=str(int(r["commits"]) * factor), attempts=str(int(r["attempts"]) * factor))
                  for n, factor in enumerate((1, 2, 9)) for r in ONE]
        self.assertEqual(HEAT.by_mode(rounds)["mocc:3"]["reads"][0], 400)

    def test_attempts_that_are_not_over_are_no_aborts(self):
        self.assertEqual(HEAT.rates([line("occ", 0, 0, 11, 10)]), (22, 0))

    def test_modes_by_threshold(self):
        rows = [dict(r, mode=mode) for mode in ("mocc:20", "occ", "mocc:3", "2pl") for r in ONE]
        self.assertEqual([text.split("|")[1].strip() for text in HEAT.summary(rows)[2:]], ["2pl", "occ", "mocc:3", "mocc:20"])
        self.assertIn("mocc:20", HEAT.plot(rows))


if __name__ == "__main__":
    unittest.main()
