"""One row that every transaction reads and few change: a rate, a price list, a setting.

A transaction reads the rate and a row of its own choice, and changes another one. One in twenty
changes the rate. Applications at READ COMMITTED do not lock such a row, so explicit locks have no
part in this load: heap at READ COMMITTED uses rates that are out of date when it commits.
"""

from __future__ import annotations

from field.loads.base import INTERACTIVE, Script, Workload, grown


class ReadMostly(Workload):
    name = "read_mostly"
    title = "read mostly: a row that all read and one in twenty transactions changes"
    sql_file = "read_mostly.sql"
    styles = (INTERACTIVE,)
    tables = ("rate", "item")
    defaults = {"rows": 100_000, "changes": 5}
    spread_options = {"rate": "mixedcc.partitions = 1"}
    hybrid_options = spread_options
    hybrid = {"rate": "2pl"}
    hybrid_text = "2pl for the rate, occ for the items"
    state_sql = ("SELECT (SELECT sum(value) FROM rate) AS rates, (SELECT sum(changes) FROM item) AS changes,"
                 " (SELECT count(*) FROM item) AS items")

    def scripts(self, style):
        use = f"""\\set k random(1, {self.rows})
\\set m random(1, {self.rows})
BEGIN;
SELECT value AS rate FROM rate WHERE id = 1 \\gset
SELECT value FROM item WHERE id = :k;
UPDATE item SET value = :rate::bigint, changes = changes + 1 WHERE id = :m;
END;
"""
        change = "BEGIN;\nUPDATE rate SET value = value + 1 WHERE id = 1;\nEND;\n"
        return [Script("use", use, 100 - self.changes), Script("change", change, self.changes)]

    def problems(self, before, after, committed):
        return (grown(before, after, "rates", committed["change"], "committed changes of the rate")
                + grown(before, after, "changes", committed["use"], "committed transactions")
                + grown(before, after, "items", 0, "no inserts"))
