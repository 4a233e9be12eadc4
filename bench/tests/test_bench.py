"""Tests of what the benchmarks compute: python3 -m unittest discover -s bench"""

import importlib.machinery
import importlib.util
import math
import pathlib
import re
import sys
import tempfile
import unittest

BENCH_DIR = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BENCH_DIR))
sys.dont_write_bytecode = True

from lib import callgrind, perfcount, report  # noqa: E402
from statements import workloads  # noqa: E402

DUMP = """\
events: Ir
fn=(1) start
cfn=(2) work
calls=0 29
360 100

fn=(2)
0 30
+2 10
cfn=(3) help
calls=4 264
* 60

fn=(3)
5 60
totals: 100
"""


def program(name):
    """A program of this directory, as a module."""
    loader = importlib.machinery.SourceFileLoader(name, str(BENCH_DIR / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


class Callgrind(unittest.TestCase):
    def test_calls_are_not_own_cost(self):
        own, inclusive = callgrind.costs(DUMP)
        self.assertEqual(own, {"work": 40, "help": 60})
        self.assertEqual(inclusive, {"start": 100, "work": 100, "help": 60})

    def test_a_file_without_total_is_refused(self):
        with tempfile.NamedTemporaryFile() as empty, self.assertRaises(callgrind.DumpError):
            callgrind.total_of(empty.name)


class Perf(unittest.TestCase):
    def test_count(self):
        self.assertEqual(perfcount.parse_count("1234,,instructions:u,99,100.00,,\n"), 1234)

    def test_unsupported_event_is_no_count(self):
        self.assertIsNone(perfcount.parse_count("<not supported>,,instructions:u,0,100.00,,\n"))


class Ratios(unittest.TestCase):
    def test_of_the_rounds_both_ran(self):
        self.assertEqual(report.ratios({1: 4, 2: 6, 3: 1}, {1: 2, 2: 2}), [2, 3])

    def test_zeros(self):
        self.assertEqual(report.ratios({1: 5, 2: 0, 3: 0}, {1: 0, 2: 0, 3: 2}), [math.inf, 0])

    def test_a_round_without_commits_on_both_sides_says_nothing(self):
        self.assertEqual(report.ratios({1: math.inf}, {1: math.inf}), [])


class Goals(unittest.TestCase):
    def goal_line(self, measured, base, goal):
        context = report.Context("commit", "hash", "machine", "postgres")
        with tempfile.NamedTemporaryFile() as file:
            rows = report.Rows(file.name, context)
            for label, values in (("a", measured), ("b", base)):
                for round_number, value in enumerate(values, 1):
                    rows.add("test", label, round_number, {"tps": value})
            rows.close()
        return report.goal_table(rows, [("test", goal)])[-1]

    def test_median_decides(self):
        at_most = report.Goal("tps", "a", "b", at_most=1.0)
        self.assertIn("| 0.9 [0.5 to 3] | at most 1 | met |",
                      self.goal_line([0.5, 0.9, 3], [1, 1, 1], at_most))
        self.assertIn("| at most 1 | **missed** |",
                      self.goal_line([0.5, 1.1, 3], [1, 1, 1], at_most))

    def test_nothing_measured_is_not_met(self):
        at_least = report.Goal("tps", "a", "b", at_least=2)
        self.assertIn("not measured", self.goal_line([3], [], at_least))

    def test_each_goal_is_of_variants_that_run(self):
        for test in workloads.TESTS:
            labels = [variant.label for variant in test.variants]
            self.assertEqual(len(labels), len(set(labels)), test.name)
            for goal in test.goals:
                self.assertIn(goal.measured, labels)
                self.assertIn(goal.base, labels)

    def test_documents_have_the_goals_that_runs_print(self):
        document = (BENCH_DIR / "docs" / "statements.md").read_text(encoding="utf-8")
        by_run, by_count = document.split("## Instructions\n")
        by_count = by_count.split("\n*Without PostgreSQL's serializable isolation*")[0]
        goals = [(test.name, goal) for test in workloads.TESTS for goal in test.goals]
        goals += [(workloads.MEMORY_TEST, goal) for goal in workloads.MEMORY_GOALS]
        for text, column, known in ((by_run, 2, goals), (by_count, 1, workloads.instruction_goals())):
            rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")]
            self.assertGreater(len(rows), 12)
            for row in rows:
                name = row[0].split("`")[1]
                numbers = [g.at_most if g.at_most is not None else g.at_least for n, g in known if n == name]
                for number in filter(None, row[column].split("; ")):
                    with self.subTest(name=name, number=number):
                        self.assertTrue(any(math.isclose(float(number), goal, abs_tol=0.001) for goal in numbers))

    def test_each_script_exists(self):
        for test in workloads.TESTS:
            for variant in test.variants:
                self.assertTrue(pathlib.Path(variant.script_path).exists(), variant.script_path)
                self.assertIn(variant.script, workloads.ADDED_BY_SCRIPT)


class SingleUserSession(unittest.TestCase):
    def test_each_statement_is_one(self):
        instructions = program("instructions")
        for name in ("schema.sql", "functions.sql", "instructions.sql"):
            for part in instructions.statements_of(name, workloads.OCC, 1000):
                self.assertRegex(part, r"^(CREATE|INSERT) ")
                self.assertNotRegex(part.strip(), r"\n\s*\n")
                self.assertNotRegex(part, r":using|:rows")

    def test_options_of_a_protocol_reach_the_table(self):
        instructions = program("instructions")
        table = instructions.statements_of("schema.sql", workloads.PARTCC_ONE, 1000)[0]
        self.assertIn("USING mixedcc WITH (mixedcc.protocol = 'partcc', "
                      "mixedcc.partitions = '1')", table)

    def test_forms_of_payment_add_where_they_say(self):
        columns = program("columns")
        for form in columns.FORMS.split(","):
            for rests in (False, True):
                load = columns.Halves()
                load.form = form
                with self.subTest(form=form, rests=rests):
                    scripts = load.halves(rests)
                    payment = [line for line in scripts["payment"].splitlines() if line]
                    adds = [n for n, line in enumerate(payment) if line.startswith(("UPDATE warehouse", "UPDATE district"))]
                    self.assertEqual(len(adds), 0 if form == "rows" else 2)
                    if form == "late":
                        self.assertEqual([*adds, "END;"], [len(payment) - 3, len(payment) - 2, payment[-1]])
                    self.assertEqual("FROM warehouse_read" in scripts["new_order"], form in ("tax", "late"))
                    for table in re.findall(r"(?:FROM|UPDATE|INTO) (\w+_(?:read|sum))", "".join(scripts.values())):
                        self.assertIn(f"CREATE UNLOGGED TABLE {table} ", load.more_tables())
                    statements = re.findall(r"^(?:SELECT|UPDATE|INSERT)", scripts["payment"], re.MULTILINE)
                    slept = scripts["payment"].count("\\sleep") if rests else 0
                    self.assertEqual(slept, (len(statements) - (2 if form == "late" else 0)) * rests)


if __name__ == "__main__":
    unittest.main()
