"""The benchmarks of the choice of protocols and of switches compute what they say."""

import argparse
import contextlib
import io
import json
import pathlib
import random
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.dont_write_bytecode = True

from lib import cluster  # noqa: E402

SWITCHES = cluster.program("switches")
CHOICE = cluster.program("choice")
SERVER = cluster.program("choice-server")
TRAIN = cluster.program("../engine/model/train")


class Out(list):
    """A csv.writer that keeps its rows."""

    def writerow(self, row):
        self.append(row)


def rows(tenths):
    """Rows of one switch: (time, commits)."""
    return [{"at_s": at, "seconds": "0.1", "commits": str(n), "attempts": str(2 * n), "cpu_s": "0.1"} for at, n in tenths]


class Train(unittest.TestCase):
    SPLIT = [{"feature": "b", "at": 1.5, "below": 1, "above": 2}, {"log_cost": 0.25, "runs": 3}, {"log_cost": -1, "runs": 4}]
    LEAF = [{"log_cost": 0.5, "runs": 7}]

    def test_trees_are_added(self):
        trees = [self.LEAF, self.SPLIT, self.SPLIT]
        self.assertEqual(TRAIN.predict(trees, ["a", "b"], [9, 1.5]), 1.0)
        self.assertEqual(TRAIN.predict(trees, ["a", "b"], [0, 1.6]), -1.5)

    def test_what_is_written_is_what_was_fitted(self):
        trees = {p: [self.LEAF, self.SPLIT] for p in TRAIN.PROTOCOLS}
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "model.json")
            TRAIN.write(trees, "a \"test\"", path)
            found = json.loads(path.read_text(encoding="ascii"))
        self.assertEqual(found, {"format": 2, "about": "a \"test\"", "like": TRAIN.LIKE, "trees": trees})

    def test_a_choice_within_three_percent_of_the_best_is_right(self):
        def workload(costs):
            return [{"protocol": p, "commits": "500", "cost_us": str(c), "a": "1"} for p, c in costs.items()]

        trees = {p: [[{"log_cost": n}]] for n, p in enumerate(TRAIN.PROTOCOLS)}  # always partcc
        loads = [workload({"partcc": c, "occ": 100, "2pl": 200}) for c in (90, 102, 104, 150)]
        found = TRAIN.judge(trees, loads, ["a"])
        self.assertEqual((found["workloads"], found["choices"], found["accuracy"]), (4, 12, 0.5))
        self.assertAlmostEqual(found["mean_loss"], (0 + 0.02 + 0.04 + 0.5) / 4)

    def test_the_partitions_of_a_load_have_one_choice(self):
        def runs(protocol, cost, values):
            return [{"protocol": protocol, "commits": "500", "cost_us": cost, "partition": name, "a": str(a)} for name, a in values.items()]

        # The first protocol would be the best by one partition alone, the second by both.
        one, two, *others = TRAIN.PROTOCOLS
        split = lambda below, above: [[{"feature": "a", "at": 1.5, "below": 1, "above": 2}, {"log_cost": below}, {"log_cost": above}]]
        trees = {one: split(-0.1, 0.3), two: split(0, 0), **{p: [[{"log_cost": 1}]] for p in others}}
        costs = {one: "200", two: "100", **{p: "300" for p in others}}
        load = [run for p, cost in costs.items() for run in runs(p, cost, {"stock0": 1, "orders0": 2})]
        self.assertEqual(TRAIN.judge(trees, [load], ["a"])["accuracy"], 1)
        alone = [run for p, cost in costs.items() for run in runs(p, cost, {"stock0": 1})]
        self.assertEqual(TRAIN.judge(trees, [alone], ["a"])["accuracy"], 0)


class Switches(unittest.TestCase):
    # Two tenths before, a long transaction of two tenths, two to settle, two after it.
    TENTHS = [("-0.2", 100), ("-0.1", 300), ("0.0", 90), ("0.1", 110), ("0.2", 7), ("0.3", 8), ("0.4", 400), ("0.5", 600)]

    def test_parts(self):
        before, during, after = SWITCHES.parts(rows(self.TENTHS), 0.2)
        self.assertAlmostEqual(before.tps, 2000)
        self.assertAlmostEqual(during.tps, 1000)
        self.assertAlmostEqual(after.tps, 5000)
        self.assertEqual(during.work(), "1000 us, 2.00")

    def test_protocols_alone_are_medians_of_all_switches(self):
        at = lambda old, new, n: (("engine", "1", "mediated", old, new, 0.2), rows([("-0.1", n), ("0.4", 2 * n)]))
        single = SWITCHES.alone(dict([at("occ", "2pl", 100), at("2pl", "occ", 200), at("occ", "partcc", 300)]))
        self.assertEqual(single["engine", "1", "occ"], 3000)  # of 1000, 4000, 3000
        self.assertEqual(single["engine", "1", "2pl"], 2000)  # of 2000, 2000

    def test_transactions_fall_into_the_tenths_of_their_switch(self):
        out = Out()
        switches = [(100.0, "mediated", "occ", "2pl", 0.2), (200.0, "stop_all", "2pl", "occ", 0.2)]
        # Before everything; in the first tenth of each; after the request; after the last tenth.
        log = [(99.0, 1), (99.91, 1), (100.01, 3), (100.05, 1), (150.0, 1), (199.95, 2), (200.31, 1)]
        SWITCHES.tenths(switches, iter(log), 5, 0.1, out)
        self.assertEqual(len(out), 8)
        self.assertEqual([r[8] for r in out], [1, 2, 0, 0, 1, 0, 0, 0])
        self.assertEqual([r[9] for r in out], [1, 4, 0, 0, 2, 0, 0, 0])
        self.assertEqual([r[6] for r in out[:4]], ["-0.1", "0.0", "0.1", "0.2"])
        self.assertEqual(out[4][:6], ["server", 5, "stop_all", "2pl", "occ", 0.2])

    def test_pgbench_log(self):
        with tempfile.TemporaryDirectory() as directory:
            pathlib.Path(directory, "log.1").write_text("0 1 500 0 1700000000 250000 2\n0 2 failed 0 1700000000 260000 9\n0 3 40", encoding="ascii")
            self.assertEqual(list(SWITCHES.log_of(directory)), [(1700000000.25, 3)])

    def test_stop_all_only_where_asked(self):
        given = type("Given", (), {"stop_all": [0.5]})
        self.assertEqual(SWITCHES.methods_of(given, 0.5, "occ", "2pl"), ("mediated", "stop_all"))
        self.assertEqual(SWITCHES.methods_of(given, 1.0, "occ", "2pl"), ("mediated",))
        self.assertEqual(SWITCHES.methods_of(given, 0.5, "occ", "occ"), ("mediated",))


class Choice(unittest.TestCase):
    def run_of(self, modes):
        """A run of two phases of four intervals each; commits of each interval by mode, a second
        each."""
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "varied-1.csv")
            lines = ["seed,mode,interval,phase,seconds,commits,attempts,cpu_s,asked,protocols"]
            for mode, commits in modes.items():
                lines += [f"1,{mode},{n},{n // 4},1,{c},{c},0.5,0,{mode}" for n, c in enumerate(commits)]
            path.write_text("\n".join(lines) + "\n", encoding="ascii")
            with contextlib.redirect_stdout(io.StringIO()) as said:
                run = CHOICE.summary(path)
            self.assertIn("varied-1.csv", said.getvalue())
            self.assertTrue(path.with_suffix(".svg").read_text(encoding="utf-8").startswith("<svg"))
            return run

    def test_relative_to_the_best_fixed(self):
        run = self.run_of({"occ": [100] * 4 + [200] * 4, "2pl": [300] * 8, "adaptive": [10] * 3 + [150] + [10] * 3 + [330]})
        whole, each, intervals, phases = run.to_best("adaptive")
        self.assertAlmostEqual(whole, (30 + 150 + 30 + 330) / 8 / 300)
        self.assertAlmostEqual(each, whole, msg="all use half a CPU")
        self.assertEqual(run.learned, [3, 7], "the fourth of each phase")
        self.assertEqual([round(x, 3) for x in intervals], [0.5, 1.1])
        self.assertEqual([round(x, 3) for x in phases], [0.5, 1.1])
        worst, middle = run.to_worst("adaptive")
        self.assertEqual([round(x, 3) for x in worst], [1.5, 1.65])
        self.assertEqual([round(x, 3) for x in middle], [0.75, 1.32])

    def test_nothing_committed_is_no_divisor(self):
        worst, _ = self.run_of({"occ": [100] * 8, "2pl": [0] * 8, "adaptive": [50] * 8}).to_worst("adaptive")
        self.assertEqual(worst, [50, 50])

    def test_switches_are_those_of_a_mode(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "half-1.csv")
            path.write_text("seed,mode,interval,phase,seconds,commits,attempts,cpu_s,asked,protocols\n"
                            + "".join(f"1,{m},{n},0,1,9,9,0.5,{asked},x\n" for m, asked in (("occ", 0), ("adaptive", 2), ("wrong", 3)) for n in range(2)),
                            encoding="ascii")
            with contextlib.redirect_stdout(io.StringIO()) as said:
                CHOICE.summary(path)
        self.assertEqual([line.strip() for line in said.getvalue().splitlines() if "switches" in line], ["switches of adaptive: 4", "switches of wrong: 6"])

    def test_a_wrong_model_has_two_protocols_swapped(self):
        for trees in ({"occ": [{"log_cost": 1}], "2pl": [{"log_cost": 2}], "partcc": [{"log_cost": 3}]},
                      {"occ": [[{"log_cost": 1}], []], "2pl": [[{"log_cost": 2}]], "partcc": [[{"log_cost": 3}]]}):
            wrong = json.loads(CHOICE.made_wrong(json.dumps({"format": 7, "about": "Right.", "trees": trees}), ["occ", "partcc"]))
            self.assertEqual(wrong["trees"], {"occ": trees["partcc"], "2pl": trees["2pl"], "partcc": trees["occ"]})
            self.assertEqual((wrong["format"], wrong["about"]), (7, "Right. Wrong on purpose: occ and partcc have each other's trees."))
        for names in (["occ"], ["occ", "occ"], ["occ", "tea"], ["occ", "2pl", "partcc"]):
            with self.assertRaisesRegex(ValueError, "can be swapped"):
                CHOICE.made_wrong(json.dumps({"trees": trees}), names)

    def test_models_and_modes_go_to_the_program(self):
        given = lambda **more: argparse.Namespace(**{"model": None, "wrong": None, "modes": "occ,adaptive", **more})
        with tempfile.TemporaryDirectory() as directory:
            self.assertEqual(CHOICE.model_arguments(given(), directory), ["--modes", "occ,adaptive"])
            mine = pathlib.Path(directory, "mine.json")
            mine.write_text(json.dumps({"trees": {"occ": 1, "2pl": 2}}), encoding="utf-8")
            wrong = str(pathlib.Path(directory, "wrong.json"))
            self.assertEqual(CHOICE.model_arguments(given(model=mine, wrong="occ,2pl"), directory),
                             ["--model", str(mine), "--wrong", wrong, "--modes", "occ,adaptive,wrong"])
            self.assertEqual(json.loads(pathlib.Path(wrong).read_text(encoding="utf-8"))["trees"], {"occ": 2, "2pl": 1})
            # Of the built-in model, at a place of its own among the modes.
            self.assertEqual(CHOICE.model_arguments(given(wrong="occ,partcc", modes="wrong,occ"), directory), ["--wrong", wrong, "--modes", "wrong,occ"])
            right, wrong = (json.loads(pathlib.Path(p).read_text(encoding="utf-8"))["trees"] for p in (CHOICE.MODEL, wrong))
            self.assertEqual((wrong["occ"], wrong["partcc"], wrong["2pl"]), (right["partcc"], right["occ"], right["2pl"]))

    def test_spread(self):
        self.assertEqual(CHOICE.spread([0.5, 1.0, 0.9]), "median 0.90, lowest 0.50, below 0.85 in 1 of 3")


class Server(unittest.TestCase):
    def test_lines_of_the_log(self):
        self.assertEqual(SERVER.Bench.end("0 1 500 0 1700000000 250000 2"), (1700000000.25, 3))
        self.assertIsNone(SERVER.Bench.end("0 1 failed 0 1700000000 250000 2"))

    def test_remote_transactions_only_where_the_phase_wants_them(self):
        one = SERVER.VariedTpcc(crossed=2, cross=60.0)
        self.assertIn(":w <= 2 AND random(1, 100) <= 60 ", one.other_warehouse(15))
        self.assertIn("random(1, 100) <= 4 ", one.other_warehouse(1))

    def test_the_hybrid_locks_the_hottest_keys_of_each_partition(self):
        one = SERVER.VariedYcsb(theta=0.99, length=15)
        self.assertIn("bounds = '257'", one.options("hybrid", "usertable"))
        self.assertNotIn("bounds", one.options("partcc", "usertable"))
        # Rank 15 of the last partition is the last key below the bound, rank 16 of the first one
        # the first above it.
        self.assertRegex(one.script("procedure", 3), r"\\set k0 (-1 \* )?\(16 \* :r \+ :first\)\n")
        self.assertEqual(SERVER.pins(one.protocols("hybrid")), "SELECT mixedcc.set_protocol('usertable', 'occ');SELECT mixedcc.set_protocol('usertable', '2pl', 0);")
        self.assertEqual(SERVER.pins(one.protocols("partcc")), "SELECT mixedcc.set_protocol('usertable', 'partcc');")

    def test_phases_are_those_of_the_seed(self):
        first, second = ([SERVER.tpcc_phase(random.Random(7), False).mix for _ in range(2)])
        self.assertEqual(first, second)
        self.assertEqual(SERVER.tpcc_phase(random.Random(7), True).crossed, 0)
        first, second = (SERVER.smallbank_phase(random.Random(7), False) for _ in range(2))
        self.assertEqual((first.mix, first.hot_percent), (second.mix, second.hot_percent))

    def test_money_of_smallbank_counts_penalties(self):
        one = SERVER.smallbank_phase(random.Random(1), True)
        self.assertEqual({s.name: s.weight for s in one.scripts("procedure")}, SERVER.smallbank.MIX)
        state = one.state(lambda _: '{"savings_rows": 1, "checking_rows": 1, "money": 700, "penalties": 3}')
        self.assertEqual(state, {"money": 1000})
        self.assertEqual(one.written({"deposit_checking": 2, "transact_savings": 0, "write_check": 1}), {"money": -240})


if __name__ == "__main__":
    unittest.main()
