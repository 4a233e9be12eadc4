"""Jobs: half of the transactions add one, half take the first free one, by SKIP LOCKED.

Taken jobs stay in the table, with another status. Each must have been taken once.
"""

from __future__ import annotations

from field.loads.base import INTERACTIVE, Script, Workload, grown


class Jobs(Workload):
    name = "jobs"
    title = "jobs: added, and taken with SKIP LOCKED"
    sql_file = "jobs.sql"
    styles = (INTERACTIVE,)
    tables = ("job",)
    defaults = {"rows": 20_000}
    spread_options = {"job": "mixedcc.partitions = 1"}
    hybrid_options = spread_options
    hybrid = {"job": "2pl"}
    hybrid_text = "2pl"
    state_sql = ("SELECT (SELECT count(*) FROM job) AS jobs, (SELECT count(*) FROM job WHERE status = 'done') AS done,"
                 " (SELECT sum(taken) FROM job) AS taken, (SELECT count(*) FROM job WHERE status = 'ready') AS waiting")

    def scripts(self, style):
        return [Script("add", "BEGIN;\nINSERT INTO job VALUES (nextval('job_id'), 'ready', 0, repeat('x', 100));\nEND;\n"),
                Script("take", """BEGIN;
SELECT id AS first FROM job WHERE status = 'ready' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED \\gset
UPDATE job SET status = 'done', taken = taken + 1 WHERE id = :first;
END;
""")]

    def problems(self, before, after, committed):
        if after["waiting"] == 0:
            return ["no job was left: the takers' figures say nothing"]
        return (grown(before, after, "jobs", committed["add"], "committed jobs")
                + grown(before, after, "done", committed["take"], "committed takes")
                + grown(before, after, "taken", committed["take"], "committed takes"))
