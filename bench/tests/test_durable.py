"""Tests of what bench/durable and the permanent contenders compute; they need no server."""

import argparse
import pathlib
import re
import sys
import tempfile
import unittest
import unittest.mock

BENCH_DIR = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BENCH_DIR))
sys.dont_write_bytecode = True

from lib import cluster, latency, report, runner  # noqa: E402
from permanent import measures, plan  # noqa: E402
from statements import workloads  # noqa: E402

CONTEXT = report.Context("commit", "configuration", "machine", "postgres")


def rows_of(directory, *values):
    """Rows of (test, label, round, metric, value)."""
    rows = report.Rows(str(pathlib.Path(directory, "rows.csv")), CONTEXT)
    for test, label, number, metric, value in values:
        rows.add(test, label, number, {metric: value})
    return rows


class Contenders(unittest.TestCase):
    def test_each_is_made_with_its_persistence(self):
        schema = (workloads.DIRECTORY / "sql" / "schema.sql").read_text(encoding="utf-8")
        for engine in workloads.ENGINES.values():
            text = engine.fill(schema, 1000)
            self.assertEqual("CREATE UNLOGGED TABLE" in text, not engine.is_permanent, engine.name)
            self.assertNotRegex(text, r"(?m)^[^-].*:(using|persistence|rows|filler)", engine.name)
        self.assertIn("USING heap WITH (fillfactor = 85)", plan.HEAP.fill(schema, 1000))
        self.assertIn("USING mixedcc WITH (mixedcc.protocol = 'occ'", plan.PERMANENT.fill(schema, 1000))

    def test_a_permanent_table_differs_from_the_unlogged_one_in_nothing_else(self):
        self.assertEqual(plan.PERMANENT.using(), plan.UNLOGGED.using())

    def test_single_user_backends_do_not_count_permanent_tables(self):
        instructions = cluster.program("instructions")
        for words, refused in ((["--engines", "occ_permanent"], True), (["--engines", "heap_logged"], False),
                               (["--engines", "occ_permanent", "--server"], False)):
            with unittest.mock.patch("sys.argv", ["instructions", *words]), \
                    unittest.mock.patch("sys.stderr"):
                if refused:
                    self.assertRaises(SystemExit, instructions.arguments)
                else:
                    instructions.arguments()


class Table(unittest.TestCase):
    def test_values_ratios_and_verdicts(self):
        ratio = plan.Row("t", "what", "tps", "new", "old", at_least=1.5)
        value = plan.Row("t", "what", "added", "new", at_most=1300)
        eye = plan.Row("t", "what", "tps", "new", "old")
        with tempfile.TemporaryDirectory() as directory:
            rows = rows_of(directory, ("t", "new", 1, "tps", 30), ("t", "old", 1, "tps", 10),
                           ("t", "new", 2, "tps", 10), ("t", "old", 2, "tps", 10),
                           ("t", "new", 3, "tps", 20), ("t", "old", 3, "tps", 10),
                           ("t", "new", 1, "added", 1301))
            self.assertEqual(ratio.values(rows), [3, 1, 2])
            self.assertEqual(ratio.verdict(rows), "met")
            self.assertEqual(value.values(rows), [1301])
            self.assertEqual(value.verdict(rows), "**missed**")
            self.assertEqual(eye.verdict(rows), "")
            self.assertEqual(plan.Row("t", "what", "bytes", "new", at_most=6).verdict(rows), "not measured")
            rows.close()

    def test_each_row_has_a_measurement(self):
        known = {load.name for load in (*plan.CPU_LOADS, *plan.COMMIT_LOADS)} | {w.name for w in plan.WAL}
        known |= {plan.INSTRUCTIONS, plan.LATENCY, plan.SPREAD, plan.MEMORY, plan.REPLAY, plan.DECODING}
        self.assertEqual(set(plan.TESTS), known)

    def test_the_goals_of_the_table(self):
        goals = {(row.test, row.metric): row.at_most or row.at_least for row in plan.ROWS
                 if row.at_most or row.at_least}
        expected = {("update_1", "cpu_us"): 0.35, ("instructions", "added"): 1300,
                    ("commits_hot", "tps"): 1.5, ("commits_hot_early", "tps"): 4.0, ("wal_1_percent", "wal_bytes"): 0.10,
                    ("checkpoint", "p99_ms"): 1.5, ("checkpoint_spread", "p99_ms"): 1.5, ("replay", "load_mb_s"): 200,
                    ("memory", "bytes_more"): 6}
        for key, goal in expected.items():
            self.assertEqual(goals[key], goal, key)

    def test_scripts_exist_and_say_what_they_add(self):
        for load in (*plan.CPU_LOADS, *plan.COMMIT_LOADS):
            self.assertTrue((workloads.DIRECTORY / "scripts" / f"{load.script}.pgbench").exists())
            self.assertIn(load.script, workloads.ADDED_BY_SCRIPT)


class Arguments(unittest.TestCase):
    def parsed(self, *words):
        with unittest.mock.patch("sys.argv", ["durable", *words]):
            return cluster.program("durable").arguments()

    def test_quick_has_an_end_and_sizes_can_be_given(self):
        self.assertEqual(self.parsed("--quick").sizes, plan.QUICK)
        self.assertLessEqual(plan.QUICK.minutes, 8)
        self.assertEqual(self.parsed("--replay-rows", "7").sizes.replay_rows, 7)
        self.assertEqual(self.parsed().only, list(plan.TESTS))


class Measures(unittest.TestCase):
    def test_times_during_a_checkpoint_are_apart(self):
        with tempfile.TemporaryDirectory() as directory:
            prefix = str(pathlib.Path(directory, "log"))
            # Client, number, microseconds, script, end in seconds and microseconds, lag, retries.
            pathlib.Path(prefix + ".1").write_text(
                "0 1 1000 0 99 999999 0 0\n"  # ended before
                "0 2 2000000 0 101 0 0 0\n"   # began before, ended in it
                "0 3 3000 0 104 0 0 0\n"
                "0 4 failed 0 104 0 0 0\n"
                "0 5 9000000 0 114 0 0 0\n"   # began in it
                "0 6 4000 0 115 0 0 0\n", encoding="ascii")
            inside, outside = latency.read_logs_split(prefix, 100, 110)
            self.assertEqual(list(inside), [3000, 2000000, 9000000])
            self.assertEqual(list(outside), [1000, 4000])
            self.assertEqual(list(pathlib.Path(directory).iterdir()), [])

    def test_bytes_of_all_forks_and_segments(self):
        with tempfile.TemporaryDirectory() as directory:
            for name, size in (("16384", 8), ("16384.1", 4), ("16384_fsm", 2), ("163840", 99)):
                pathlib.Path(directory, name).write_bytes(b"x" * size)
            self.assertEqual(measures.file_bytes(str(pathlib.Path(directory, "16384"))), 14)

    def test_the_last_replay_counts(self):
        with tempfile.NamedTemporaryFile("w", suffix=".log") as log:
            with self.assertRaises(runner.RunError):
                measures.replay_seconds(log.name)
            for seconds in ("9.00", "1.25"):
                log.write(f"LOG:  redo done at 0/1 system usage: CPU: user: 1 s, elapsed: {seconds} s\n")
            log.flush()
            self.assertEqual(measures.replay_seconds(log.name), 1.25)

    def test_a_failure_is_noted_and_the_end_of_time_is_not_caught(self):
        given = argparse.Namespace(sizes=plan.QUICK, only=[])
        all_of_it = measures.Measures(None, given, {})
        with unittest.mock.patch("sys.stderr"), all_of_it.attempt("this"):
            raise runner.RunError("broken")
        self.assertEqual(all_of_it.failures, ["this: broken"])
        with self.assertRaises(measures.OutOfTime), all_of_it.attempt("that"):
            raise measures.OutOfTime()

    def test_the_rate_reaches_pgbench(self):
        job = runner.Job(database="d", seconds=1, builtin="select-only", rate=1000)
        self.assertIn("--rate=1000", job.command("/bin"))
        self.assertFalse([word for word in runner.Job(database="d", seconds=1, builtin="b").command("/bin")
                          if re.match("--rate", word)])


if __name__ == "__main__":
    unittest.main()
