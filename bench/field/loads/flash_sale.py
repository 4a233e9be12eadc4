"""A flash sale: all customers buy one of a few offers, and each purchase is recorded.

The stock of the offers and the sales must add up.
"""

from __future__ import annotations

from field.loads.base import INTERACTIVE, Script, Workload, expect, grown


class FlashSale(Workload):
    name = "flash_sale"
    title = "flash sale: a few offers that all customers buy"
    sql_file = "flash_sale.sql"
    styles = (INTERACTIVE,)
    tables = ("offer", "customer", "sale")
    defaults = {"rows": 100_000, "offers": 5}
    data_parameters = ("rows", "offers")
    spread_options = {"offer": "mixedcc.partitions = 1"}
    hybrid_options = spread_options
    hybrid = {"offer": "2pl"}
    hybrid_text = "2pl for the offers, occ for customers and sales"
    state_sql = ("SELECT (SELECT sum(sold) FROM offer) AS sold, (SELECT count(*) FROM sale) AS sales,"
                 " (SELECT sum(bought) FROM customer) AS bought")

    def scripts(self, style):
        return [Script("buy", f"""\\set offer random(1, {self.offers})
\\set customer random(1, {self.rows})
BEGIN;
SELECT price FROM offer WHERE id = :offer \\gset
UPDATE offer SET sold = sold + 1 WHERE id = :offer AND sold < stock;
UPDATE customer SET bought = bought + 1 WHERE id = :customer;
INSERT INTO sale VALUES (nextval('sale_id'), :offer, :customer, :price);
END;
""")]

    def problems(self, before, after, committed):
        found = grown(before, after, "sold", committed["buy"], "committed purchases")
        found += expect("sales", after["sales"], after["sold"])
        return found + expect("purchases of customers", after["bought"], after["sold"])
