"""That the benchmark of ranges computes what it says."""

import unittest
import xml.etree.ElementTree

from lib import plot
from engine import ranges_report


def count_row(method, scan, **values):
    row = {"test": "length", "theta": "0.7", "scan": str(scan), "ranges": "10", "list": "64", "workers": "40",
           "method": method, "commits": "10", "scans": "5", "records_reread": "0", "entries_compared": "0",
           "lists": "1", "validation_lines": "1", "register_lines": "1", "scan_lines": "9",
           "scans_per_mega_line": "100", "scan_aborts": "0", "false_aborts": "0", "wraps": "0",
           "point_aborts": "0", "given_up": "0"}
    return {**row, **{k: str(v) for k, v in values.items()}}


def time_row(test, method, round_number, us, scan=1500):
    return {"test": test, "theta": "0.7", "scan": str(scan), "method": method, "round": str(round_number),
            "commits": "9", "scans": "3", "scan_us": str(us), "transaction_us": str(us), "aborts": "0"}


class Goals(unittest.TestCase):
    def verdicts(self, counts, time):
        return {row[0]: row[3] for row in ranges_report.goals(counts, time)}

    def test_met_and_missed(self):
        counts = [count_row(m, s, scans_per_mega_line=rate) for m, s, rate in
                  [("rv", 10, 90), ("lrv", 10, 120), ("gwv", 10, 100), ("lrv", 3000, 1), ("gwv", 3000, 2)]]
        counts[2]["entries_compared"] = "100"
        time = [time_row("length", "rv", 0, 5), time_row("length", "lrv", 0, 10), time_row("length", "lrv_rescan", 0, 9),
                time_row("registration", "registered", 0, 11, 0), time_row("registration", "asleep", 0, 10, 0),
                time_row("registration", "unregistered", 0, 10, 0)]
        met = self.verdicts(counts, time)
        missed = [name for name, verdict in met.items() if verdict != "met"]
        self.assertEqual(missed, ["CPU of a 1500-key scan transaction, of LRV, repeated scan's",
                                  "CPU of point transactions, ranges awake, no scans, zipf 0.7"])
        counts[0].update(entries_compared="11", records_reread="1", false_aborts="1")
        met = self.verdicts(counts, time)
        for name in ("records that ranges re-read", "entries compared, of GWV's, zipf 0.7 (worst length)",
                     "false aborts of ranges, all lengths and skews"):
            self.assertEqual(met[name], "**missed**")

    def test_a_run_without_scans_is_summed_up(self):
        counts = [count_row(m, s, scans_per_mega_line=0) for m in ("rv", "lrv", "gwv") for s in (10, 3000)]
        time = [time_row("length", m, 0, 0) for m in ("rv", "lrv", "lrv_rescan")]
        self.assertIn("nan", ranges_report.summary(counts, time))

    def test_half_a_run_has_its_own_goals_only(self):
        counts = [count_row(m, s) for m in ("rv", "lrv", "gwv") for s in (10, 3000)]
        time = [time_row("length", m, 0, 1) for m in ("rv", "lrv", "lrv_rescan")]
        both = ranges_report.goals(counts, time)
        self.assertEqual(ranges_report.goals(counts, []) + ranges_report.goals([], time), both)
        self.assertTrue(ranges_report.figures(counts, []))

    def test_ratios_are_of_one_round(self):
        rows = [time_row("length", m, r, us) for m, r, us in
                [("rv", 0, 1), ("lrv", 0, 2), ("rv", 1, 10), ("lrv", 1, 40), ("rv", 2, 9), ("lrv", 2, 9)]]
        self.assertEqual(ranges_report.paired(rows, "rv", "lrv", "scan_us")[0], 0.5)


class Plots(unittest.TestCase):
    def test_plots_are_xml_and_within_their_frame(self):
        for lines in ({"a": [(1, 1), (1000, 5)]}, {"a": [(1, 0), (2, 0)], "b <&>": [(1, 3)]}, {}):
            root = xml.etree.ElementTree.fromstring(plot.svg(plot.Figure("t", "x", "y", lines)))
            circles = list(root.iter("{http://www.w3.org/2000/svg}circle"))
            self.assertEqual(len(circles), sum(len(points) for points in lines.values()))
            for circle in circles:
                self.assertTrue(plot.LEFT <= float(circle.get("cx")) <= plot.WIDTH - plot.RIGHT)
                self.assertTrue(plot.TOP <= float(circle.get("cy")) <= plot.HEIGHT - plot.BOTTOM)


if __name__ == "__main__":
    unittest.main()
