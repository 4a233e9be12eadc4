"""bench/joins: shapes of plans, regret, queries with names."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.dont_write_bytecode = True

from lib import cluster  # noqa: E402

JOINS = cluster.program("joins")


def node(kind, alias="", plans=(), **more):
    return {"Node Type": kind, "Alias": alias, "Plans": list(plans), **more}


class Joins(unittest.TestCase):
    def test_shapes(self):
        ours = node("Nested Loop", plans=[node("Custom Scan", "a", **{"Custom Plan Provider": "MixedccScan"}), node("Index Only Scan", "b")])
        heap = node("Nested Loop", plans=[node("Index Scan", "a"), node("Index Scan", "b")])
        self.assertEqual(JOINS.shape(ours), JOINS.shape(heap))
        self.assertEqual(JOINS.shape(heap), "Nested Loop (Index Scan a, Index Scan b)")
        bitmap = node("Bitmap Heap Scan", "a", [node("Bitmap Index Scan")])
        self.assertNotEqual(JOINS.shape(bitmap), JOINS.shape(node("Seq Scan", "a")))

    def test_regret(self):
        """The best of the plans counts, but not what has the plan that was chosen anyhow."""
        found = {"": (9.0, "a"), "hashjoin": (3.0, "b"), "sort": (1.0, "a"), "seqscan": (12.0, "c")}

        class Fake(JOINS.Measurement):
            def __init__(self):
                pass

            def explained(self, engine, sql, settings):
                left_out = next((name.removeprefix("enable_") for name in settings), "")
                return found.get(left_out, (10.0, "d"))

        self.assertEqual(Fake().regret("heap", ""), (9.0, 3.0, "a", "hashjoin"))

    def test_queries(self):
        queries = JOINS.queries()
        self.assertEqual(len(queries), 18)
        for name, sql in queries.items():
            self.assertTrue(sql.startswith("SELECT ") and ";" not in sql and "--" not in sql, name)


if __name__ == "__main__":
    unittest.main()
