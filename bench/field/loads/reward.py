"""The bulk reward of ROCC (section V.A, modified TPC-C): 10 % of the transactions scan customers of
a district for the best payer and reward that customer, with updates of customer, district and
warehouse; the others are Payments, 15 % of them by a customer of another warehouse.

Whether the rewarded customer was the top one when the reward was committed, only the protocols can
tell; that no money is lost, the sums do.
"""

from __future__ import annotations

from field.loads.base import PROCEDURE, Script, Workload, grown

PAYMENT, REWARD = 100, 500
PAY = """BEGIN;
UPDATE warehouse SET received = received + {p} WHERE id = :w;
UPDATE district SET received = received + {p} WHERE w_id = :w AND id = :d;
UPDATE shopper SET balance = balance - {p}, paid = paid + {p} WHERE w_id = :w AND d_id = :d AND id = :c;
END;
"""
REWARDING = """BEGIN;
SELECT id AS top FROM shopper WHERE w_id = :w AND d_id = :d AND id BETWEEN :c AND :c + {n} - 1 ORDER BY paid DESC, id LIMIT 1 \\gset
UPDATE warehouse SET rewarded = rewarded + {r} WHERE id = :w;
UPDATE district SET rewarded = rewarded + {r} WHERE w_id = :w AND id = :d;
UPDATE shopper SET balance = balance + {r}, rewards = rewards + 1 WHERE w_id = :w AND d_id = :d AND id = :top;
END;
"""


class Reward(Workload):
    name = "reward"
    title = "bulk reward: scans for the top shopper of a district beside payments"
    sql_file = "reward.sql"
    tables = ("warehouse", "district", "shopper")
    defaults = {"warehouses": 8, "shoppers": 3000, "length": 500, "bulk_percent": 10}
    data_parameters = ("warehouses", "shoppers")
    hybrid = {"warehouse": "2pl", "district": "2pl"}
    hybrid_text = "2pl for warehouses and districts, occ for the shoppers"
    state_sql = ("SELECT (SELECT sum(received) FROM warehouse) AS w_received, (SELECT sum(received) FROM district)"
                 " AS d_received, (SELECT sum(paid - (id * 7919) % 1000) FROM shopper) AS paid,"
                 " (SELECT sum(rewarded) FROM warehouse) AS w_rewarded, (SELECT sum(rewarded) FROM district)"
                 " AS d_rewarded, (SELECT sum(rewards) FROM shopper) AS rewards,"
                 " (SELECT sum(balance) FROM shopper) AS balance")

    def options(self, layout, table):
        key = {"warehouse": "id"}.get(table, "w_id")
        count = 1 if layout == "partcc" else self.warehouses
        return f"mixedcc.partitions = {count}, mixedcc.partition_by = '{key}'"

    def scripts(self, style):
        # Payments go by 15 % to a warehouse that is not the client's own.
        text = (f"\\set w CASE WHEN random(1, 100) <= {{remote}} THEN random(1, {self.warehouses})"
                f" ELSE :client_id % {self.warehouses} + 1 END\n\\set d random(1, 10)\n\\set c random(1, {{last}})\n")
        paying = text.format(remote=15, last=self.shoppers)
        rewarding = text.format(remote=0, last=self.shoppers - self.length + 1)
        if style == PROCEDURE:
            bodies = [f"SELECT pay(:w, :d, :c, {PAYMENT});\n", f"SELECT reward(:w, :d, :c, {self.length}, {REWARD});\n"]
        else:
            bodies = [PAY.format(p=PAYMENT), REWARDING.format(n=self.length, r=REWARD)]
        return [Script("pay", paying + bodies[0], 100 - self.bulk_percent),
                Script("reward", rewarding + bodies[1], self.bulk_percent)]

    def problems(self, before, after, committed):
        paid, rewarded = committed["pay"] * PAYMENT, committed["reward"] * REWARD
        found = []
        for name, by in (("w_received", paid), ("d_received", paid), ("paid", paid), ("w_rewarded", rewarded),
                         ("d_rewarded", rewarded), ("rewards", committed["reward"]), ("balance", rewarded - paid)):
            found += grown(before, after, name, by, "committed payments or rewards")
        return found
