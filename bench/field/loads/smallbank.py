"""SmallBank: six short transactions on the two accounts of a customer, looked up by name.

A quarter of the transactions goes to 100 hot customers, as in H-Store. Amounts are fixed for each
kind of transaction, so that the sum of all money tells whether any was lost: it grows by what the
committed deposits brought, less checks and their penalties, which the accounts count.
"""

from __future__ import annotations

from field.loads.base import PROCEDURE, Script, Workload, grown

CLASSES = 100
HOT = 100
DEPOSIT, TRANSACT, CHECK, PAYMENT, PENALTY = 130, 2020, 500, 500, 100
# H-Store's mix, in percent.
MIX = {"amalgamate": 15, "balance": 15, "deposit_checking": 15, "send_payment": 25,
       "transact_savings": 15, "write_check": 15}
CALLS = {"amalgamate": "amalgamate(:c1, :c2)", "balance": "balance(:c1)",
         "deposit_checking": f"deposit_checking(:c1, {DEPOSIT})",
         "send_payment": f"send_payment(:c1, :c2, {PAYMENT})",
         "transact_savings": f"transact_savings(:c1, {TRANSACT})",
         "write_check": f"write_check(:c1, {CHECK})"}

FIRST = "SELECT custid AS id1 FROM account WHERE name = account_name(:c1) \\gset\n"
SECOND = "SELECT custid AS id2 FROM account WHERE name = account_name(:c2) \\gset\n"
SAVED = "SELECT balance AS saved FROM savings WHERE custid = :id1{} \\gset"
CHECKED = "SELECT balance AS checked FROM checking WHERE custid = :id1{} \\gset"


def read(query: str) -> str:
    """A read of a row that is written later: locked where locks are explicit."""
    locked = query.format(" FOR UPDATE")
    return f"{query.format('')} --[!locks]\n{locked} --[locks]\n"


LOCK_BOTH = "SELECT 1 FROM checking WHERE custid IN (:id1, :id2) ORDER BY custid FOR UPDATE; --[locks]\n"
BODIES = {
    "balance": FIRST + SAVED.format("") + "\n" + CHECKED.format("") + "\n",
    "deposit_checking": FIRST + f"UPDATE checking SET balance = balance + {DEPOSIT} WHERE custid = :id1;\n",
    "transact_savings": FIRST + read(SAVED) +
        f"UPDATE savings SET balance = :saved + {TRANSACT} WHERE custid = :id1;\n",
    "amalgamate": FIRST + SECOND + read(SAVED) + LOCK_BOTH + CHECKED.format("") + "\n"
        "UPDATE savings SET balance = 0 WHERE custid = :id1;\n"
        "UPDATE checking SET balance = 0 WHERE custid = :id1;\n"
        "UPDATE checking SET balance = balance + :saved + :checked WHERE custid = :id2;\n",
    "write_check": FIRST + read(SAVED) + read(CHECKED) + f"""\\if :saved + :checked < {CHECK}
UPDATE checking SET balance = :checked - {CHECK + PENALTY}, penalties = penalties + 1 WHERE custid = :id1;
\\else
UPDATE checking SET balance = :checked - {CHECK} WHERE custid = :id1;
\\endif
""",
    "send_payment": FIRST + SECOND + LOCK_BOTH + CHECKED.format("") + f"""
\\if :checked >= {PAYMENT}
UPDATE checking SET balance = :checked - {PAYMENT} WHERE custid = :id1;
UPDATE checking SET balance = balance + {PAYMENT} WHERE custid = :id2;
\\endif
""",
}


class SmallBank(Workload):
    name = "smallbank"
    title = "SmallBank: six transactions, a quarter of them on 100 hot customers"
    sql_file = "smallbank.sql"
    tables = ("account", "savings", "checking")
    defaults = {"rows": 100_000, "hot_percent": 25}
    hybrid_options = {table: f"mixedcc.partitions = {CLASSES}" for table in ("savings", "checking")}
    hybrid = {table: {1: "2pl"} for table in ("savings", "checking")}
    hybrid_text = "2pl for the hundredth of the accounts that holds the hot ones, occ for the others"
    state_sql = ("SELECT (SELECT count(*) FROM savings) AS savings_rows, (SELECT count(*) FROM checking)"
                 " AS checking_rows, (SELECT sum(balance) FROM savings) + (SELECT sum(balance) FROM checking)"
                 " AS money, (SELECT sum(penalties) FROM checking) AS penalties")

    def sql_values(self):
        return {"penalty": PENALTY}

    def customers(self, two: bool) -> str:
        """Hot ones are CLASSES * 10 apart: none shares a heap page, all share a hash partition."""
        step = self.rows // HOT
        text = ("\\set hot random(1, 100)\n"
                f"\\set c1 CASE WHEN :hot <= {self.hot_percent} THEN 1 + {step} * random(0, {HOT - 1})"
                f" ELSE random(1, {self.rows}) END\n")
        if two:  # another one, of the same kind
            text += (f"\\set c2 CASE WHEN :hot <= {self.hot_percent}"
                     f" THEN 1 + (:c1 - 1 + {step} * random(1, {HOT - 1})) % {self.rows}"
                     f" ELSE 1 + (:c1 - 1 + random(1, {self.rows - 1})) % {self.rows} END\n")
        return text

    def scripts(self, style):
        found = []
        for name, weight in MIX.items():
            text = self.customers(":c2" in CALLS[name])
            body = f"SELECT {CALLS[name]};\n" if style == PROCEDURE else f"BEGIN;\n{BODIES[name]}END;\n"
            found.append(Script(name, text + body, weight))
        return found

    def problems(self, before, after, committed):
        penalties = after["penalties"] - before["penalties"]
        money = (DEPOSIT * committed["deposit_checking"] + TRANSACT * committed["transact_savings"]
                 - CHECK * committed["write_check"] - PENALTY * penalties)
        found = grown(before, after, "money", money, "deposits less checks and penalties")
        if not 0 <= penalties <= committed["write_check"]:
            found.append(f"{penalties} penalties for {committed['write_check']} checks")
        for table in ("savings_rows", "checking_rows"):
            found += grown(before, after, table, 0, "no inserts")
        return found
