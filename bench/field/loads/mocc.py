"""MOCC's two contended workloads.

    mocc_50    ten accesses to fifty records, half of them read-modify-write, uniform (its section 5.4)
    mocc_scan  one of the fifty is read, a thousand records of a large table are scanned, and the one is
               written (its section 5.6)
"""

from __future__ import annotations

from field.loads.base import PROCEDURE, Script, Workload, grown
from field.loads.ycsb import spread, write_mix


class Mocc(Workload):
    sql_file = "mocc.sql"
    tables = ("hot", "large")
    data_parameters = ("rows", "hot")
    spread_options = {"hot": "mixedcc.partitions = 1"}
    hybrid_options = {"hot": "mixedcc.partitions = 1, mixedcc.waiting_policy = wait_die"}
    hybrid = {"hot": "2pl"}
    hybrid_text = "2pl (wait_die) for the fifty records, occ for the large table"
    state_sql = ("SELECT (SELECT sum(value) FROM hot) AS updates, (SELECT count(*) FROM hot) AS hot_rows,"
                 " (SELECT count(*) FROM large) AS large_rows")

    def problems(self, before, after, committed):
        updates = sum(count * int(name.rpartition("_")[2]) for name, count in committed.items())
        return (grown(before, after, "updates", updates, "updates of committed transactions")
                + grown(before, after, "hot_rows", 0, "no inserts") + grown(before, after, "large_rows", 0, "no inserts"))


class Mocc50(Mocc):
    name = "mocc_50"
    title = "MOCC's fifty records: ten accesses, half of them read-modify-write"
    defaults = {"rows": 100_000, "hot": 50, "length": 10, "writes": 0.5}

    def scripts(self, style):
        return [Script(f"hot_{writes}", self.script(style, writes), weight)
                for writes, weight in write_mix(self.length, self.writes)]

    def script(self, style, writes):
        writing = spread(writes, self.length)
        if style == PROCEDURE:
            text = "".join(f"\\set k{i} {'-1 * ' if w else ''}random(1, {self.hot})\n" for i, w in enumerate(writing))
            return text + "SELECT hot_records(ARRAY[" + ", ".join(f":k{i}" for i in range(self.length)) + "]::int[]);\n"
        text = "".join(f"\\set k{i} random(1, {self.hot})\n" for i in range(self.length)) + "BEGIN;\n"
        written = ", ".join(f":k{i}" for i, w in enumerate(writing) if w)
        text += f"SELECT 1 FROM hot WHERE id IN ({written}) ORDER BY id FOR UPDATE; --[locks]\n" if written else ""
        for i, writes_here in enumerate(writing):
            text += f"SELECT value FROM hot WHERE id = :k{i} \\gset\n"
            text += f"UPDATE hot SET value = :value + 1 WHERE id = :k{i};\n" if writes_here else ""
        return text + "END;\n"


class MoccScan(Mocc):
    name = "mocc_scan"
    title = "MOCC's long scan: one of fifty records read and written, a thousand others scanned between"
    defaults = {"rows": 100_000, "hot": 50, "length": 1000}

    def scripts(self, style):
        text = f"\\set first random(1, {self.rows - self.length + 1})\n\\set hot random(1, {self.hot})\n"
        if style == PROCEDURE:
            return [Script("scan_1", text + f"SELECT long_scan(:first, {self.length}, :hot);\n")]
        return [Script("scan_1", text + f"""BEGIN;
SELECT value FROM hot WHERE id = :hot \\gset --[!locks]
SELECT value FROM hot WHERE id = :hot FOR UPDATE \\gset --[locks]
SELECT sum(value) FROM large WHERE id BETWEEN :first AND :first + {self.length} - 1;
UPDATE hot SET value = :value + 1 WHERE id = :hot;
END;
""")]
