"""Tests of the suite's own code that need no server."""

import gzip
import math
import pathlib
import re
import random
import sys
import tempfile
import unittest
import unittest.mock

BENCH_DIR = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BENCH_DIR))
sys.dont_write_bytecode = True

from lib import cluster, flame, latency, plot, report, runner  # noqa: E402
from field import choice_report, contenders, loads, plan, suite_report  # noqa: E402
from field.pauses import with_round_trips  # noqa: E402
from field.loads.base import STYLES, Script, TemplateError, render  # noqa: E402
from field.loads.ycsb import spread, write_mix  # noqa: E402
from field.loads.zipf import Zipf  # noqa: E402


class ZipfRanks(unittest.TestCase):
    def probabilities(self, zipf):
        """What the formula gives each rank: bisection for the smallest u of each."""
        starts = []
        for rank in range(zipf.n):
            low, high = 0.0, 1.0
            for _ in range(60):
                middle = (low + high) / 2
                low, high = (middle, high) if zipf.rank(middle) < rank else (low, middle)
            starts.append(high if rank else 0.0)
        return [b - a for a, b in zip(starts, [*starts[1:], 1.0])]

    def test_each_rank_has_its_probability(self):
        for theta in (0.0, 0.5, 0.9, 0.99, 1.2):
            zipf = Zipf(500, theta)
            weights = [k ** -theta for k in range(1, zipf.n + 1)]
            total = math.fsum(weights)
            for rank, (found, weight) in enumerate(zip(self.probabilities(zipf), weights)):
                self.assertAlmostEqual(found * total / weight, 1, delta=0.015, msg=f"theta {theta}, rank {rank}")

    def test_frequencies_of_draws(self):
        zipf, draws, rng = Zipf(100_000, 0.9), 200_000, random.Random(1)
        counts = [0] * zipf.n
        for _ in range(draws):
            counts[zipf.rank(rng.random())] += 1
        total = math.fsum(k ** -0.9 for k in range(1, zipf.n + 1))
        for rank in (0, 1, 2, 5, 10):
            wanted = draws * (rank + 1) ** -0.9 / total
            self.assertAlmostEqual(counts[rank], wanted, delta=5 * math.sqrt(wanted) + 0.015 * wanted)

    def test_ends_of_the_range(self):
        for theta in (0.0, 0.9, 1.2):
            zipf = Zipf(1000, theta)
            self.assertEqual(zipf.rank(1e-16), 0)
            self.assertEqual(zipf.rank(1 - 1e-16), 999)

    def test_one_is_refused(self):
        with self.assertRaises(ValueError):
            Zipf(10, 1)


class Templates(unittest.TestCase):
    TEXT = "a --[heap]\nb --[locks partcc]\nc --[!locks]\nd {{n}}\n"

    def test_lines_of_tags(self):
        self.assertEqual(render(self.TEXT, frozenset(["heap", "locks"]), {"n": 1}), "a\nb\nd 1\n")
        self.assertEqual(render(self.TEXT, frozenset(["partcc"]), {"n": 1}), "b\nc\nd 1\n")

    def test_a_value_that_nobody_gives_is_an_error(self):
        with self.assertRaises(TemplateError):
            render("{{x}}", frozenset(), {})


class RoundTrips(unittest.TestCase):
    def test_each_statement_but_begin_has_a_pause(self):
        script = "\\set a 1\nBEGIN;\nSELECT 1 AS x \\gset\n\\if :x\nSELECT\n  2;\n\\endif\nEND;\n"
        self.assertEqual(
            with_round_trips(script, 500),
            "\\set a 1\nBEGIN;\n\\sleep 500 us\nSELECT 1 AS x \\gset\n\\if :x\n\\sleep 500 us\nSELECT\n  2;\n"
            "\\endif\n\\sleep 500 us\nEND;\n")

    def test_all_scripts_of_the_choice_have_pauses_in_whole_statements(self):
        for name in plan.CHOICE_LOADS:
            for who in map(contenders.BY_NAME.get, plan.CHOICE):
                for script in loads.make(name).rendered_scripts("interactive", who.tags, 8):
                    lines = with_round_trips(script.text, 500).splitlines()
                    for before, line in zip(lines, lines[1:]):
                        if before.startswith("\\sleep"):
                            self.assertRegex(line, r"^(SELECT|UPDATE|INSERT|DELETE|END|ROLLBACK)", f"{name}: {line}")


class Choice(unittest.TestCase):
    """The verdicts of the mode `choice`, on figures that are made up."""

    def rows(self, figures):
        rows = report.Rows(str(pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "rows.csv"),
                           report.Context("commit", "hash", "machine", "postgres"))
        self.addCleanup(rows.close)
        self.point = plan.choice().points[0]
        for who, (tps, retries) in figures.items():
            rows.add(self.point.name, who, 1, {"tps": tps, "commits_per_cpu_s": tps, "p99_ms": 1, "retries_per_commit": retries})
        return rows

    def test_the_best_is_a_fixed_protocol_or_the_hybrid(self):
        rows = self.rows({"adaptive": (90, 0), "occ_plain": (50, 1), "hybrid_plain": (100, 0), "rc_plain": (120, 0),
                          "heap_rc": (60, 0), "heap_ser": (30, 2)})
        self.assertEqual(choice_report.best(rows, self.point, "tps"), ("hybrid_plain", 100))
        self.assertEqual(choice_report.to_best(rows, [self.point], "tps"), {self.point.name: 0.9})
        found = {row[0]: row[3] for row in choice_report.goals(rows, [self.point])}
        self.assertEqual(found["adaptive to the best fixed protocol or hybrid, tps: share of points with 0.95"], "**no**")
        self.assertEqual(found["adaptive to heap READ COMMITTED with row locks, tps"], "yes")
        self.assertEqual(found["adaptive to mixedcc at READ COMMITTED with row locks, tps"], "**no**")
        self.assertEqual(found["retries to heap SERIALIZABLE's, points with conflicts"], "yes")
        self.assertEqual(found["adaptive to `2pl`, p99"], "-")

    def test_the_points_are_those_that_were_written_down(self):
        mode = plan.choice()
        self.assertEqual(len(mode.points), 33)
        self.assertEqual({p.clients for p in mode.points if p.round_trip_us}, {64})
        self.assertTrue(all(p.contenders == plan.CHOICE for p in mode.points))


class Workloads(unittest.TestCase):
    def test_every_text_is_complete_for_every_contender(self):
        with_locks = set()
        for name in loads.ALL_KINDS:
            workload = loads.make(name)
            for who in contenders.BY_NAME.values():
                texts = [workload.tables_sql(who.layout), workload.functions_sql(who.tags)]
                for style in workload.styles:
                    texts += [s.text for s in workload.rendered_scripts(style, who.tags, 8)]
                for text in texts:
                    self.assertNotRegex(text, r"--\[|\{\{|\}\}", f"{name}, {who.name}")
                    if not who.is_mixedcc:
                        self.assertNotIn("mixedcc", text, f"{name}, {who.name}")
                if who.locks or (name, who.name) == ("seats", "heap_rr"):
                    with_locks |= {name for text in texts if re.search(r"FOR (UPDATE|SHARE)", text)}
                    continue
                for text in texts:
                    # What SKIP LOCKED skips is part of the load itself.
                    text = text.replace("FOR UPDATE SKIP LOCKED", "") if name == "jobs" else text
                    self.assertNotRegex(text, r"FOR (UPDATE|SHARE)", f"{name}, {who.name}: unwanted locks")
        self.assertLessEqual({"tpcc", "smallbank"}, with_locks)

    def test_protocols_are_of_tables_that_exist(self):
        for name in loads.ALL_KINDS:
            workload = loads.make(name)
            for protocol in ("occ", "2pl", "partcc", "hybrid"):
                self.assertEqual(set(workload.protocols(protocol)), set(workload.tables))
            self.assertLessEqual(set(workload.hybrid), set(workload.tables))
            self.assertTrue(workload.hybrid_text, name)

    def test_an_unknown_parameter_is_refused(self):
        with self.assertRaises(TemplateError):
            loads.make("votes", colour=1)

    def test_mean_of_writes(self):
        for length, share in ((16, 0.5), (16, 0.05), (4, 0.05), (1, 0.5), (64, 0.95), (16, 0)):
            mix = write_mix(length, share)
            self.assertAlmostEqual(sum(w * weight for w, weight in mix) / sum(weight for _, weight in mix),
                                   length * share, delta=0.01)
            for writes, _ in mix:
                self.assertEqual(sum(spread(writes, length)), writes)

    def test_a_lost_update_is_a_wrong_result(self):
        votes = loads.make("votes")
        before = {"counted": 10, "cast_votes": 10, "contestants": 10, "phones": 5}
        after = {"counted": 15, "cast_votes": 15, "contestants": 10, "phones": 5}
        self.assertEqual(votes.problems(before, after, {"vote": 5}), [])
        self.assertTrue(votes.problems(before, after, {"vote": 6}))
        self.assertTrue(votes.problems(before, {**after, "cast_votes": 14}, {"vote": 5}))

    def test_a_job_that_is_taken_twice_is_a_wrong_result(self):
        jobs = loads.make("jobs")
        before = {"jobs": 10, "done": 0, "taken": 0, "waiting": 10}
        after = {"jobs": 12, "done": 3, "taken": 3, "waiting": 9}
        self.assertEqual(jobs.problems(before, after, {"add": 2, "take": 3}), [])
        self.assertTrue(jobs.problems(before, {**after, "done": 2}, {"add": 2, "take": 3}))
        self.assertTrue(jobs.problems(before, {**after, "waiting": 0}, {"add": 2, "take": 3}))

    def test_money_and_sales_that_do_not_add_up(self):
        bank, sale = loads.make("bank"), loads.make("flash_sale")
        before = {"money": 100, "moves": 0}
        self.assertEqual(bank.problems(before, {"money": 100, "moves": 4}, {"transfer": 4}), [])
        self.assertTrue(bank.problems(before, {"money": 99, "moves": 4}, {"transfer": 4}))
        before = {"sold": 1, "sales": 1, "bought": 1}
        self.assertEqual(sale.problems(before, {"sold": 3, "sales": 3, "bought": 3}, {"buy": 2}), [])
        self.assertTrue(sale.problems(before, {"sold": 3, "sales": 2, "bought": 3}, {"buy": 2}))

    def test_smallbank_money(self):
        bank = loads.make("smallbank")
        committed = {"amalgamate": 3, "balance": 5, "deposit_checking": 2, "send_payment": 4,
                     "transact_savings": 1, "write_check": 2}
        before = {"savings_rows": 1, "checking_rows": 1, "money": 0, "penalties": 0}
        after = {**before, "money": 2 * 130 + 2020 - 2 * 500 - 100, "penalties": 1}
        self.assertEqual(bank.problems(before, after, committed), [])
        self.assertTrue(bank.problems(before, {**after, "money": after["money"] - 130}, committed))
        self.assertTrue(bank.problems(before, {**after, "penalties": 3, "money": after["money"] - 200}, committed))

    def test_partitions_of_ycsb_are_those_of_its_tables(self):
        usual, few = loads.make("ycsb_partitioned"), loads.make("ycsb_partitioned", partitions=4)
        self.assertEqual(usual.data_key, loads.make("ycsb_a").data_key)
        self.assertNotEqual(few.data_key, usual.data_key)
        for layout in ("spread", "partcc", "hybrid"):
            self.assertEqual(few.options(layout, "usertable"), "mixedcc.partitions = 4")
        self.assertEqual(few.protocols("hybrid"), {"usertable": {0: "2pl", 1: "2pl"}})
        self.assertIn("random(1, 4)", few.script("procedure", 8))

    def test_ycsb_counts_the_updates_of_each_script(self):
        ycsb = loads.make("ycsb_b")
        before, after = {"updates": 7, "rows_found": 9}, {"updates": 10, "rows_found": 9}
        self.assertEqual(ycsb.problems(before, after, {"ycsb_b_0": 4, "ycsb_b_1": 3}), [])
        self.assertTrue(ycsb.problems(before, after, {"ycsb_b_0": 4, "ycsb_b_1": 4}))


class Logged(unittest.TestCase):
    def test_only_the_persistence_and_heaps_room_differ(self):
        for name, kind in loads.KINDS.items():
            workload = kind()
            for layout in (None, "spread"):
                unlogged, logged = (workload.tables_sql(layout, way) for way in (False, True))
                self.assertNotIn("UNLOGGED", logged, name)
                made = len(re.findall("CREATE TABLE", logged))
                self.assertEqual(len(re.findall("CREATE UNLOGGED TABLE", unlogged)), made, name)
                room = logged.count(" WITH (fillfactor = 85)")
                self.assertEqual(room, made if layout is None else 0, name)
                back = logged.replace("CREATE TABLE", "CREATE UNLOGGED TABLE")
                self.assertEqual(back.replace(" WITH (fillfactor = 85)", ""), unlogged, name)


class Latency(unittest.TestCase):
    def test_logs_of_all_threads_without_what_failed(self):
        with tempfile.TemporaryDirectory() as directory:
            prefix = f"{directory}/latency"
            pathlib.Path(f"{prefix}.77").write_text("0 1 3000 0 1700000000 5 0\n0 2 failed 0 1700000000 9 3\n")
            pathlib.Path(f"{prefix}.77.1").write_text("1 1 1000 0 1700000000 5 2\n")
            self.assertEqual(latency.retries_of(prefix, {0}), (2, 5))
            self.assertEqual(latency.retries_of(prefix, {1}), (0, 0))
            self.assertEqual(list(latency.read_logs(prefix)), [1000, 3000])
            self.assertEqual(list(pathlib.Path(directory).iterdir()), [])

    def test_scripts_without_writes(self):
        reads = "BEGIN;\nSELECT sum(balance) FROM account;\nEND;\n"
        self.assertTrue(Script("audit", reads).only_reads)
        for statement in ("UPDATE t SET v = 1;", "select 1 from t for share;", "SELECT 1 FROM t FOR NO KEY UPDATE;", "CALL f();"):
            self.assertFalse(Script("other", reads + statement).only_reads, statement)

    def test_nearest_rank(self):
        times = list(range(1000, 1_001_000, 1000))
        self.assertEqual([latency.percentile(times, s) for s in (0.5, 0.95, 0.99, 0.999, 1)],
                         [500, 950, 990, 999, 1000])
        self.assertEqual(latency.percentile([7000], 0.999), 7)
        self.assertEqual(latency.percentile([], 0.5), math.inf)


class Configuration(unittest.TestCase):
    def test_the_hash_covers_every_file_that_decides_what_runs(self):
        covered = {path for pattern in cluster.MEASURED_FILES for path in BENCH_DIR.glob(pattern)}
        for pattern in ("field/**/*.py", "field/**/*.sql", "statements/**/*.sql", "statements/**/*.pgbench",
                        "field/contenders.py", "statements/workloads.py"):
            paths = set(BENCH_DIR.glob(pattern))
            self.assertTrue(paths, pattern)
            self.assertLessEqual(paths, covered)

    def test_another_workload_is_another_configuration(self):
        with tempfile.TemporaryDirectory() as directory:
            copy = pathlib.Path(directory, "field", "loads")
            copy.mkdir(parents=True)
            (copy / "votes.py").write_text("a = 1\n")
            with unittest.mock.patch.object(cluster, "BENCH_DIR", pathlib.Path(directory)):
                before = cluster.configuration_hash({})
                (copy / "votes.py").write_text("a = 2\n")
                self.assertNotEqual(cluster.configuration_hash({}), before)

    def test_adaptive_runs_on_tables_without_options_or_annotations(self):
        who = contenders.BY_NAME[contenders.ADAPTIVE]
        for name in loads.KINDS:
            workload = loads.make(name)
            self.assertNotIn("mixedcc.", workload.tables_sql(who.layout), name)
            self.assertNotIn("annotate", workload.functions_sql(who.tags), name)


class FlameGraphs(unittest.TestCase):
    FOLDED = "server;main;mixedcc_read 3\nserver;main;heap_fetch 1\n"

    def test_counts_are_of_all_inside(self):
        root = flame.tree(self.FOLDED)
        self.assertEqual(root.count, 4)
        self.assertEqual(root.inner["server"].inner["main"].inner["heap_fetch"].count, 1)
        self.assertEqual(flame.depth(root), 3)

    def test_widths_are_shares(self):
        svg = flame.svg(self.FOLDED, "a < b")
        self.assertIn("mixedcc_read: 3 samples, 75.0 %", svg)
        self.assertIn(f'width="{flame.WIDTH * 3 / 4:.1f}"', svg)
        self.assertIn("a &lt; b", svg)


class EngineAccess(unittest.TestCase):
    def test_the_median_decides(self):
        way = {"layout": "occ", "index": "array", "announced": "yes", "pages": "2M", "threads": "1"}
        rows = [{**way, "commits": "10", "aborts": "1", "deadlocks": "2", "ns_per_access": ns} for ns in ("100", "110", "500")]
        other = {**rows[0], "threads": "2", "ns_per_access": "130"}
        table = "\n".join(cluster.program("access").summary([*rows, other]))
        self.assertIn("| occ | array | yes | 2M | 1 | 110 [100 to 500] | at most 120 | met | 100000 | 200000 |", table)
        self.assertIn("| occ | array | yes | 2M | 2 | 130 |  |  | 100000 | 200000 |", table)


class ScriptCounts(unittest.TestCase):
    JOB = runner.Job(database="d", seconds=1, scripts=(("/a", 1), ("/b", 3)))
    OUTPUT = "SQL script 1: /a\n - 10 transactions (25.0% of total, tps = 1)\n" \
             "SQL script 2: /b\n - 30 transactions (75.0% of total, tps = 3)\n"

    def test_counts(self):
        self.assertEqual(runner._by_script(self.OUTPUT, self.JOB, 40), (10, 30))

    def test_counts_that_do_not_add_up_are_refused(self):
        with self.assertRaises(runner.RunError):
            runner._by_script(self.OUTPUT, self.JOB, 41)

    def test_command(self):
        command = " ".join(self.JOB.command("/bin"))
        self.assertIn("-f /a@1 -f /b@3", command)


class Plans(unittest.TestCase):
    def test_points_have_names_of_their_own_and_fit_the_time(self):
        for make in plan.MODES.values():
            mode = make()
            names = [point.name for point in mode.points]
            self.assertEqual(len(names), len(set(names)))
            seconds = sum(mode.seconds_of(p) for p in mode.points)
            self.assertLess(seconds, mode.limit_minutes * 60, mode.name)

    def test_rounds_alternate(self):
        point = plan.Point(loads.make("votes"), rounds=2, contenders=("occ", "2pl"))
        self.assertEqual(point.cells(), [(1, "occ"), (1, "2pl"), (2, "2pl"), (2, "occ")])


class Results(unittest.TestCase):
    CONTEXT = report.Context("commit", "hash", "machine", "postgres")

    def test_resumed_rows_are_those_before_and_those_after(self):
        with tempfile.TemporaryDirectory() as directory:
            path = f"{directory}/rows.csv"
            rows = report.Rows(path, self.CONTEXT)
            rows.add("t", "occ", 1, {"tps": 5}, factor="base")
            rows.close()
            with open(path, "a", encoding="utf-8") as file:
                file.write("commit,hash,mach")  # what an end in the middle of a row leaves
            again = report.Rows(path, self.CONTEXT, resume=True)
            again.add("t", "occ", 2, {"tps": 6}, factor="base")
            again.close()
            self.assertEqual(report.Rows.read(path).of("t", "occ", "tps"), {1: 5, 2: 6})
            pathlib.Path(path + ".gz").write_bytes(gzip.compress(pathlib.Path(path).read_bytes()))
            compressed = f"{directory}/other"
            pathlib.Path(path + ".gz").rename(compressed + ".gz")
            self.assertEqual(report.Rows.read(compressed).of("t", "occ", "tps"), {1: 5, 2: 6})
            with self.assertRaises(ValueError):
                report.Rows(path, report.Context("other", "hash", "machine", "postgres"), resume=True)

    def test_summary_has_goals_plots_and_failures(self):
        with tempfile.TemporaryDirectory() as directory:
            rows = report.Rows(f"{directory}/rows.csv", self.CONTEXT)
            point = plan.Point(loads.make("votes"))
            for who, tps, retries in (("heap_ser", 100, 0.5), ("heap_rc", 90, 0), ("adaptive", 160, 0.01)):
                rows.add(point.name, who, 1, {"tps": tps, "retries_per_commit": retries, "commits_per_cpu_s": tps})
            mode = plan.Mode("quick", 1, 2, 10, (point,))
            text = suite_report.write(pathlib.Path(directory), rows, mode, ["a note"], ["what failed"])
            rows.close()
            self.assertRegex(text, r"adaptive \| heap_ser \| 1\.6 \| at least 1\.5 \| met")
            self.assertRegex(text, r"adaptive \| heap_ser \| 0\.02 \| at most 0\.2 \| met")
            self.assertIn("what failed", text)
            self.assertIn("a note", text)
            self.assertIn("1.60", pathlib.Path(directory, "all-procedure-tps.svg").read_text())

    def test_plots_show_the_statistic_of_the_tables(self):
        with tempfile.TemporaryDirectory() as directory:
            rows = report.Rows(f"{directory}/rows.csv", self.CONTEXT)
            point = plan.Point(loads.make("votes"), rounds=3)
            # The median of the rounds' ratios is 2; the ratio of the medians would be 3.
            for number, (base, value) in enumerate(((100, 200), (10, 300), (200, 400)), 1):
                rows.add(point.name, "heap_ser", number, {"tps": base})
                rows.add(point.name, "occ", number, {"tps": value})
            mode = plan.Mode("full", 3, 2, 10, (point,))
            suite_report.write(pathlib.Path(directory), rows, mode, [], [])
            rows.close()
            self.assertIn("2.00", pathlib.Path(directory, "all-procedure-tps.svg").read_text())
            table = suite_report.ratio_table(rows, [point], "tps", "heap_ser")
            self.assertIn("| 2.00 |", "\n".join(table))

    def test_a_bar_is_as_long_as_its_value(self):
        svg = plot.bars("t", {"g": {"a": 2.0, "b": 1.0}}, ("a", "b"))
        self.assertIn('width="520.0"', svg)
        self.assertIn('width="260.0"', svg)


if __name__ == "__main__":
    unittest.main()
