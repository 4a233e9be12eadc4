"""A bank: transfers between a hundred accounts, and auditors that add all of them up.

A transfer reads both balances and writes what it has computed from them, as applications do. So it
must not lose an update, and an auditor must see all money. With explicit locks a transfer locks
both rows first, in the order of the keys.
"""

from __future__ import annotations

from field.loads.base import INTERACTIVE, Script, Workload, grown


class Bank(Workload):
    name = "bank"
    title = "bank: transfers between 100 accounts, and auditors"
    sql_file = "bank.sql"
    styles = (INTERACTIVE,)
    tables = ("account",)
    defaults = {"rows": 100, "audits": 5}
    spread_options = {"account": "mixedcc.partitions = 1"}
    hybrid_options = spread_options
    hybrid = {"account": "2pl"}
    hybrid_text = "2pl"
    state_sql = "SELECT (SELECT sum(balance) FROM account) AS money, (SELECT sum(moves) FROM account) AS moves"

    def scripts(self, style):
        transfer = f"""\\set a random(1, {self.rows})
\\set b 1 + (:a - 1 + random(1, {self.rows - 1})) % {self.rows}
BEGIN;
SELECT 1 FROM account WHERE id IN (:a, :b) ORDER BY id FOR UPDATE; --[locks]
SELECT balance AS x, moves FROM account WHERE id = :a \\gset
SELECT balance AS y FROM account WHERE id = :b \\gset
UPDATE account SET balance = :x::bigint - 1, moves = :moves::bigint + 1 WHERE id = :a;
UPDATE account SET balance = :y::bigint + 1 WHERE id = :b;
END;
"""
        audit = "BEGIN;\nSELECT sum(balance) AS money FROM account;\nEND;\n"
        return [Script("transfer", transfer, 100 - self.audits), Script("audit", audit, self.audits)]

    def problems(self, before, after, committed):
        return (grown(before, after, "money", 0, "transfers")
                + grown(before, after, "moves", committed["transfer"], "committed transfers"))
