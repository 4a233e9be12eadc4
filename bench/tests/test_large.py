"""bench/large: how it reads psql and /proc, options, and the table of results."""

import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.dont_write_bytecode = True

from lib import cluster, report, runner  # noqa: E402

LARGE = cluster.program("large")
ROLLUP = """55d0-7ffe ---p 00000000 00:00 0    [rollup]
Rss:               15000 kB
Pss:                5012 kB
Pss_Anon:           1800 kB
"""


class Large(unittest.TestCase):
    def test_times_are_no_rows_and_add_up(self):
        lines = ["1", "Time: 0.500 ms", "Time out", "Time: 1234.250 ms (00:01.234)"]
        self.assertEqual(LARGE.split_times(lines), (["1", "Time out"], 1234.75))
        self.assertEqual(LARGE.split_times([]), ([], 0))

    def test_a_plan_has_its_time(self):
        self.assertEqual(LARGE.planning_ms(["Seq Scan on t", "Planning Time: 0.125 ms"]), 0.125)
        with self.assertRaises(runner.RunError):
            LARGE.planning_ms(["Seq Scan on t"])

    def test_memory_by_name(self):
        self.assertEqual(LARGE.kilobytes(ROLLUP, "Pss"), 5012)
        self.assertEqual(LARGE.kilobytes(ROLLUP, "Pss_Anon"), 1800)
        with self.assertRaises(runner.RunError):
            LARGE.kilobytes(ROLLUP, "VmPTE")

    def test_memory_of_processes(self):
        self.assertGreater(LARGE.memory_of([os.getpid()])["VmPTE"], 0)
        with self.assertRaises(runner.RunError):
            LARGE.memory_of([2**22 + 1])  # no process has this number

    def test_options(self):
        given = LARGE.arguments(["--quick", "--sessions", "3,7", "sessions", "tables"])
        self.assertEqual((given.sessions, given.parts, given.tables), ([3, 7], ["sessions", "tables"], 300))
        self.assertNotIn("huge", LARGE.arguments([]).parts)  # it changes the machine

    def test_each_part_has_its_table(self):
        given = LARGE.arguments(["tables", "sessions"])
        with tempfile.NamedTemporaryFile() as file:
            rows = report.Rows(file.name, report.Context("commit", "hash", "machine", "postgres"))
            part = LARGE.Part("tables", rows, given)
            part.add("ms to make a table", "heap", 0.5)
            part.add("ms to make a table", "mixedcc", 1.25)
            part.add("bytes", "mixedcc", 9000)
            text = LARGE.summary(rows, given, ["tables", "--tables", "100"])
            rows.close()
        self.assertIn("`bench/large tables --tables 100`", text)
        self.assertIn("| ms to make a table | 0.5 | 1.25 |", text)
        self.assertIn("| bytes | - | 9,000 |", text)
        self.assertNotIn("## sessions", text)


if __name__ == "__main__":
    unittest.main()
