"""Tests of the suite on a private server with heap tables: what it does when a result is wrong."""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

BENCH_DIR = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BENCH_DIR))
sys.dont_write_bytecode = True

from lib import cluster, report, runner  # noqa: E402
from field import contenders, loads, plan  # noqa: E402
from field.loads.base import STYLES  # noqa: E402
from field.loads.zipf import Zipf  # noqa: E402


# Small tables, so that the tests are short.
SMALL = {"tpcc": {"items": 1000, "customers": 100}, "new_order_payment": {"items": 1000, "customers": 100},
         "reward": {"shoppers": 600}, "queue": {}, "jobs": {}, "bank": {},
         "mocc_scan": {"rows": 2000}}
# What makes a table forget every tenth update, as an engine with a bug would.
FORGET = """CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN IF random() < 0.1 THEN RETURN NULL; END IF; RETURN NEW; END $$;
    CREATE TRIGGER forget BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION forget()"""


# What breaks each condition of TPC-C, and nothing else if it can be helped.
BREAKS = {
    1: "UPDATE district SET d_ytd = d_ytd + 1 WHERE d_id = 1 AND d_w_id = 1",
    2: "UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_id = 1 AND d_w_id = 1",
    3: "DELETE FROM new_order WHERE no_o_id = (SELECT max(no_o_id) - 3 FROM new_order) AND no_d_id = 1 AND no_w_id = 1",
    4: "UPDATE orders SET o_ol_cnt = o_ol_cnt + 1 WHERE o_id = 1 AND o_d_id = 1 AND o_w_id = 1",
    5: "UPDATE orders SET o_carrier_id = NULL WHERE o_id = 1 AND o_d_id = 1 AND o_w_id = 1",
    6: "DELETE FROM order_line WHERE ol_o_id = 5 AND ol_d_id = 1 AND ol_w_id = 1 AND ol_number = 1",
    7: "UPDATE order_line SET ol_delivery_d = NULL WHERE ol_o_id = 5 AND ol_d_id = 1 AND ol_w_id = 1 AND ol_number = 1",
    8: "UPDATE warehouse SET w_ytd = w_ytd - 1 WHERE w_id = 2",
    9: "UPDATE history SET h_d_id = 2 WHERE h_d_id = 1 AND h_c_id = 1",
    10: "UPDATE customer SET c_balance = c_balance + 1 WHERE c_id = 3 AND c_d_id = 3 AND c_w_id = 1",
    11: "UPDATE orders SET o_carrier_id = NULL WHERE o_id < 30 AND o_d_id = 4 AND o_w_id = 2",
    12: "UPDATE customer SET c_ytd_payment = c_ytd_payment + 1 WHERE c_id = 3 AND c_d_id = 3 AND c_w_id = 1",
    13: "UPDATE stock SET s_ytd = s_ytd + 1 WHERE s_i_id = 7 AND s_w_id = 1",
}


def small(name):
    return loads.make(name, **SMALL.get(name, {"rows": 1000}))


class OnAServer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.program = cluster.program("suite")
        cls.private = cls.enterClassContext(cluster.private_cluster(
            None, cluster.settings(False, {"shared_buffers": "64MB", "max_connections": "20"})))
        cls.server = cls.private.start()
        cls.directory = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))

    def setUp(self):
        context = report.Context("commit", "hash", "machine", "postgres")
        self.rows = report.Rows(str(self.directory / "rows.csv"), context)
        self.addCleanup(self.rows.close)
        self.suite = self.program.Suite(self.server, self.rows, self.directory, 1)

    def point(self, workload, **more):
        return plan.Point(workload, **{"clients": 2, "seconds": 1, "contenders": ("heap_ser",), **more})

    def run_plan(self, point):
        mode = plan.Mode("test", 1, 1, 5, (point,))
        self.program.run_plan(self.suite, mode, self.program.Progress(mode, 300))

    def test_each_workload_runs_and_is_right(self):
        for name in loads.ALL_KINDS:
            workload = small(name)
            for style in workload.styles:
                with self.subTest(workload=name, style=style):
                    who = contenders.BY_NAME["heap_rc" if style == STYLES[0] else "heap_ser"]
                    metrics = self.suite.run_cell(self.point(workload, style=style), who, 1)
                    self.assertGreater(metrics["committed"], 0)
                    self.assertLessEqual(metrics["p50_ms"], metrics["p999_ms"])

    def test_pgbench_computes_the_ranks_that_python_does(self):
        zipf = Zipf(100_000, 0.9)
        shares = [1e-9, 0.01, 0.04, 0.08, 0.1, 0.2, 0.37, 0.5, 0.71, 0.9, 0.99999, 1 - 1e-12]
        text = "".join(re.sub(r"^\\set r_x .*", lambda _: f"\\set r_x {u * zipf.total!r}", zipf.script("r"))
                       + f"INSERT INTO ranks VALUES ({i}, :r);\n" for i, u in enumerate(shares))
        script = self.directory / "ranks.pgbench"
        script.write_text(text)
        self.server.psql("postgres", "CREATE TABLE ranks (i int, r int)")
        subprocess.run([f"{self.server.bin_dir}/pgbench", "-n", "-t", "1", "-f", str(script), "postgres"],
                       env=self.server.environment(), check=True, capture_output=True)
        found = self.server.psql("postgres", "SELECT string_agg(r::text, ',' ORDER BY i) FROM ranks")
        self.assertEqual([int(r) for r in found.split(",")], [zipf.rank(u) for u in shares])

    def test_seats_at_repeatable_read_has_no_unique_violations(self):
        for style in STYLES:
            point = self.point(loads.make("seats", rows=100, flights=1, seats=8), style=style, clients=6)
            metrics = self.suite.run_cell(point, contenders.BY_NAME["heap_rr"], 1)
            self.assertGreater(metrics["committed"], 0)

    def test_a_lost_update_fails_the_run(self):
        point = self.point(small("votes"))
        self.suite.load(point.workload, contenders.BY_NAME["heap_ser"])
        self.server.psql("postgres", FORGET.format(table="contestant"), {"search_path": "data_heap"})
        self.run_plan(point)
        self.assertEqual(self.rows.labels(point.name), [])
        self.assertEqual(len(self.suite.failures), 1)
        self.assertRegex(self.suite.failures[0], "wrong result: .*counted has grown by")

    def test_each_condition_of_tpcc_sees_broken_data(self):
        tpcc, who = small("tpcc"), contenders.BY_NAME["heap_ser"]
        self.suite.load(tpcc, who)  # and it is right before
        for condition, sql in BREAKS.items():
            with self.subTest(condition=condition):
                # In a transaction that is rolled back, so that the next one meets right data.
                found = tpcc.further_problems(lambda text, sql=sql: self.suite.sql(
                    tpcc, who, f"BEGIN; {sql}; {text}; ROLLBACK;"))
                self.assertTrue([p for p in found if p.startswith(f"condition {condition}:")], found)

    def test_what_follows_a_failure_runs_on_new_tables(self):
        point = self.point(small("votes"))
        self.suite.load(point.workload, contenders.BY_NAME["heap_ser"])
        self.server.psql("postgres", FORGET.format(table="contestant"), {"search_path": "data_heap"})
        self.run_plan(point)
        self.run_plan(self.point(small("votes"), contenders=("heap_rc",)))
        self.assertEqual(self.rows.labels(point.name), ["heap_rc"])

    def test_each_contender_runs_the_load_once_before_it_is_measured(self):
        self.suite.warm_up_seconds = 1
        point, who = self.point(small("votes"), rounds=2), contenders.BY_NAME["heap_ser"]
        votes = lambda: int(self.suite.sql(point.workload, who, "SELECT sum(votes) FROM contestant"))  # noqa: E731
        self.suite.load(point.workload, who)
        before, unmeasured = votes(), []
        for round_number in (1, 2):
            committed = self.suite.run_cell(point, who, round_number)["committed"]
            unmeasured.append(votes() - before - committed)
            before = votes()
        self.assertGreater(unmeasured[0], 0)
        self.assertEqual(unmeasured[1], 0)

    def test_the_deadlock_timeout_is_the_contenders(self):
        workload = small("votes")
        for name, timeout in (("heap_ser", "10ms"), ("heap_ser_1s", "1s")):
            job, _ = self.suite.job(self.point(workload), contenders.BY_NAME[name], 1, {})
            shown = self.server.psql("postgres", "SHOW deadlock_timeout", job.settings)
            self.assertEqual(shown, timeout)

    def test_no_time_left_is_said(self):
        point = self.point(small("votes"))
        mode = plan.Mode("test", 1, 1, 0, (point,))
        self.program.run_plan(self.suite, mode, self.program.Progress(mode, 0))
        self.assertIn("the time limit", self.suite.failures[0])


if __name__ == "__main__":
    unittest.main()
