"""tests/clients/compare.py finds each kind of difference between two servers."""

import contextlib
import importlib.util
import io
import os
import tempfile
import unittest

PATH = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "clients", "compare.py")
spec = importlib.util.spec_from_file_location("clients_compare", PATH)
compare = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compare)


class Compare(unittest.TestCase):
    def verdict(self, rules="", **changed):
        """The exit status and the output for a suite whose second run differs by these files."""
        same = {"outcomes": "a\tpassed\nb\tfailed: at 12:00\n", "status": "0\n", "crashes": "", "files/x": "1\n2\n3\n"}
        with tempfile.TemporaryDirectory() as home:
            for method, files in (("heap", same), ("mixedcc", {**same, **changed})):
                for name, text in files.items():
                    path = f"{home}/suite/{method}/{name}"
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    with open(path, "w", encoding="utf-8") as file:
                        file.write(text)
            with open(home + "/rules", "w", encoding="utf-8") as file:
                file.write(rules)
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                status = compare.main(home, home + "/rules", "suite")
            return status, output.getvalue()

    def test_the_same(self):
        self.assertEqual(self.verdict()[0], 0)

    def test_why_a_test_fails_on_both_may_differ(self):
        self.assertEqual(self.verdict(outcomes="a\tpassed\nb\tfailed: at 13:00\n")[0], 0)

    def test_another_outcome(self):
        self.assertEqual(self.verdict(outcomes="a\tfailed: x\nb\tfailed: at 12:00\n")[0], 1)

    def test_a_test_that_did_not_run(self):
        self.assertEqual(self.verdict(outcomes="a\tpassed\n")[0], 1)

    def test_another_line_of_a_file(self):
        self.assertEqual(self.verdict(**{"files/x": "1\n2\n4\n"})[0], 1)

    def test_another_exit_status(self):
        self.assertEqual(self.verdict(status="124\n")[0], 1)

    def test_a_crash(self):
        self.assertEqual(self.verdict(crashes="server process was terminated by signal 11\n")[0], 1)

    def test_a_rule_explains_its_test_and_no_other(self):
        broken = "a\tfailed: PREPARE\nb\tfailed: at 12:00\n"
        status, output = self.verdict("suite a limits.md#Refusals PREPARE\n", outcomes=broken)
        self.assertEqual(status, 0)
        self.assertIn("0 suites the same, 1 explained, 0 unexplained", output)
        for rule in ("suite b limits.md PREPARE", "suite a limits.md else", "other a limits.md PREPARE"):
            self.assertEqual(self.verdict(rule + "\n", outcomes=broken)[0], 1)


if __name__ == "__main__":
    unittest.main()
