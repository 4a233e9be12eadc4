"""Votes (after Voter, and its telephone-number limit): hot counters.

Each transaction looks whether the telephone may still vote, counts its vote, and adds one to one of
a few contestants. The votes of the contestants, those of the telephones and the commits are equal.
"""

from __future__ import annotations

from field.loads.base import PROCEDURE, Script, Workload, expect, grown

MOST = 1_000_000  # votes a telephone: no caller comes so far, and the check is made all the same


class Votes(Workload):
    name = "votes"
    title = "votes: hot counters"
    sql_file = "votes.sql"
    tables = ("contestant", "phone")
    defaults = {"rows": 100_000, "contestants": 10}
    data_parameters = ("rows", "contestants")
    spread_options = {"contestant": "mixedcc.partitions = 1"}
    hybrid = {"contestant": "2pl"}
    hybrid_text = "2pl for the contestants, occ for the telephones"
    state_sql = ("SELECT (SELECT sum(votes) FROM contestant) AS counted, (SELECT sum(votes) FROM phone) AS cast_votes,"
                 " (SELECT count(*) FROM contestant) AS contestants, (SELECT count(*) FROM phone) AS phones")

    def scripts(self, style):
        text = f"\\set phone random(1, {self.rows})\n\\set choice random(1, {self.contestants})\n"
        if style == PROCEDURE:
            return [Script("vote", text + f"SELECT vote(:phone, :choice, {MOST});\n")]
        return [Script("vote", text + f"""BEGIN;
SELECT votes AS so_far FROM phone WHERE id = :phone \\gset --[!locks]
SELECT votes AS so_far FROM phone WHERE id = :phone FOR UPDATE \\gset --[locks]
\\if :so_far < {MOST}
UPDATE phone SET votes = :so_far + 1 WHERE id = :phone;
UPDATE contestant SET votes = votes + 1 WHERE id = :choice;
\\endif
END;
""")]

    def problems(self, before, after, committed):
        found = grown(before, after, "counted", committed["vote"], "committed votes")
        found += expect("votes of telephones and of contestants differ by",
                        after["cast_votes"] - after["counted"], 0)
        for table in ("contestants", "phones"):
            found += grown(before, after, table, 0, "no inserts")
        return found
