"""A queue in a table: half of the transactions insert at its end, half delete its first row.

Everybody wants the same row. With explicit locks, rows that are locked are skipped, as applications
do it. The rows must be those before, and those inserted, less those deleted; the queue starts with
enough rows never to be empty.
"""

from __future__ import annotations

from field.loads.base import PROCEDURE, Script, Workload, grown


class Queue(Workload):
    name = "queue"
    title = "queue: inserted at one end, deleted at the other"
    sql_file = "queue.sql"
    tables = ("queue",)
    defaults = {"rows": 20_000}
    spread_options = {"queue": "mixedcc.partitions = 1"}
    hybrid = {"queue": "2pl"}
    hybrid_text = "2pl"
    hybrid_options = {"queue": "mixedcc.partitions = 1"}
    state_sql = "SELECT (SELECT count(*) FROM queue) AS waiting"

    def scripts(self, style):
        if style == PROCEDURE:
            return [Script("enqueue", "SELECT enqueue();\n"), Script("dequeue", "SELECT dequeue();\n")]
        return [Script("enqueue", "BEGIN;\nINSERT INTO queue VALUES (nextval('queue_id'), repeat('x', 100));\nEND;\n"),
                Script("dequeue", """BEGIN;
SELECT id AS first FROM queue ORDER BY id LIMIT 1 \\gset --[!locks]
SELECT id AS first FROM queue ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED \\gset --[locks]
DELETE FROM queue WHERE id = :first;
END;
""")]

    def problems(self, before, after, committed):
        if after["waiting"] == 0:
            return ["the queue ran empty: its length says nothing"]
        return grown(before, after, "waiting", committed["enqueue"] - committed["dequeue"], "inserted less deleted")
