"""TPC-C, complete but for its terminals: no keying and thinking times, a client goes on at once.

Five transactions in the standard mix, with by-name look-ups. The client rolls 1 % of the New-Orders
back for an item that does not exist. Of the lines, 1 % are from a remote warehouse; of the
payments, 15 % are by a remote customer. Each client has a home warehouse. `customers` of a district
(3000) and `items` (100,000) can be fewer, for short runs; the orders loaded are as many as the
customers.
"""

from __future__ import annotations

from field.loads.base import PROCEDURE, Script, Workload, expect, grown

MAX_LINES = 15
# Standard mix in hundredths of a percent; 1 % of New-Order is the script that rolls back.
MIX = {"new_order": 4455, "new_order_rolled_back": 45, "payment": 4300, "order_status": 400,
       "delivery": 400, "stock_level": 400}
C_CUSTOMER, C_ITEM, C_NAME = 259, 7911, 123  # clause 2.1.6's constants of NURand
BY_WAREHOUSE = {"warehouse": "w_id", "district": "d_w_id", "customer": "c_w_id", "history": "h_w_id",
                "orders": "o_w_id", "new_order": "no_w_id", "order_line": "ol_w_id", "stock": "s_w_id"}


def nurand(a: int, low: int, high: int, c: int) -> str:
    """Clause 2.1.6, as a pgbench expression."""
    return f"((random(0, {a}) | random({low}, {high})) + {c}) % {high - low + 1} + {low}"


class Tpcc(Workload):
    name = "tpcc"
    title = "TPC-C"
    sql_file = "tpcc.sql"
    tables = ("item", *BY_WAREHOUSE)
    defaults = {"warehouses": 2, "items": 100_000, "customers": 3000}
    data_parameters = ("warehouses", "items", "customers")
    hybrid = {"warehouse": "2pl", "district": "2pl"}
    hybrid_text = "2pl for warehouses and districts, occ for the others"
    state_sql = """SELECT (SELECT count(*) FROM orders) AS orders, (SELECT sum(d_next_o_id) FROM district) AS next_ids,
        (SELECT count(*) FROM history) AS payments, (SELECT sum(o_ol_cnt) FROM orders) AS lines,
        (SELECT count(*) FROM order_line) AS order_lines, (SELECT sum(c_payment_cnt) FROM customer) AS payment_counts,
        (SELECT sum(c_delivery_cnt) FROM customer) AS deliveries, (SELECT count(o_carrier_id) FROM orders) AS delivered"""

    def options(self, layout, table):
        if table not in BY_WAREHOUSE:
            return "mixedcc.partitions = 1"
        return f"mixedcc.partitions = {self.warehouses}, mixedcc.partition_by = '{BY_WAREHOUSE[table]}'"

    def sql_values(self):
        return {"delivered": self.customers * 7 // 10, "annotations": self.annotations()}

    @staticmethod
    def annotations() -> str:
        """All transactions but the remote ones stay in the partitions of their first argument."""
        kinds = {"new_order(int, int, int, int, int[], int[], int[])":
                 ("warehouse", "district", "customer", "stock", "orders", "new_order", "order_line"),
                 "payment(int, int, int, int, int, int, numeric)": ("warehouse", "district", "history"),
                 "order_status(int, int, int, int)": ("customer", "orders", "order_line"),
                 "delivery(int, int)": ("new_order", "orders", "order_line", "customer"),
                 "stock_level(int, int, int)": ("district", "order_line", "stock")}
        calls = [f"SELECT mixedcc.annotate('{function}'::regprocedure, '{table}', 'w'); --[annotated]"
                 for function, tables in kinds.items() for table in tables]
        calls.append("SELECT mixedcc.annotate('payment(int, int, int, int, int, int, numeric)'::regprocedure, "
                     "'customer', 'customer_w'); --[annotated]")
        return "\n".join(calls)

    # Scripts.

    def home(self) -> str:
        return f"\\set w :client_id % {self.warehouses} + 1\n\\set d random(1, 10)\n"

    def other_warehouse(self, percent: int, then: str = "w") -> str:
        if self.warehouses == 1:
            return f":{then}"
        return (f"CASE WHEN random(1, 100) <= {percent} THEN "
                f"(:w - 1 + random(1, {self.warehouses - 1})) % {self.warehouses} + 1 ELSE :{then} END")

    def customer(self) -> str:
        return f"\\set c {nurand(1023, 1, self.customers, C_CUSTOMER)}\n"

    def name_number(self) -> str:
        most = min(999, self.customers - 1)  # names of a small district's customers
        return f"\\set name {nurand(255, 0, most, C_NAME)}\n"

    def lines(self, with_missing_item: bool) -> str:
        text = "\\set lines random(5, 15)\n"
        for i in range(1, MAX_LINES + 1):
            text += f"\\set i{i} {nurand(8191, 1, self.items, C_ITEM)}\n"
            text += f"\\set s{i} {self.other_warehouse(1)}\n\\set q{i} random(1, 10)\n"
        if with_missing_item:
            text += "".join(f"\\set i{i} CASE WHEN :lines = {i} THEN {self.items + 1} ELSE :i{i} END\n"
                            for i in range(5, MAX_LINES + 1))
        return text

    def scripts(self, style):
        bodies = self.procedures() if style == PROCEDURE else self.statements()
        return [Script(name, self.set_up(name) + bodies[name], weight) for name, weight in MIX.items()]

    def set_up(self, name: str) -> str:
        text = self.home()
        if name.startswith("new_order"):
            return text + self.customer() + self.lines(name == "new_order_rolled_back")
        if name == "payment":
            # 60 % by last name; 15 % of another warehouse's customer.
            return (text + self.customer() + self.name_number() + "\\set by_name random(1, 100) <= 60\n"
                    f"\\set cw {self.other_warehouse(15)}\n"
                    "\\set cd CASE WHEN :cw = :w THEN :d ELSE random(1, 10) END\n\\set amount random(100, 500000)\n")
        if name == "order_status":
            return text + self.customer() + self.name_number() + "\\set by_name random(1, 100) <= 60\n"
        if name == "delivery":
            return text + "\\set carrier random(1, 10)\n"
        return text + "\\set threshold random(10, 20)\n"

    def procedures(self) -> dict[str, str]:
        arrays = ", ".join("ARRAY[" + ", ".join(f":{v}{i}" for i in range(1, MAX_LINES + 1)) + "]::int[]" for v in "isq")
        order = f"SELECT new_order(:w, :d, :c, :lines, {arrays});\n"
        return {
            "new_order": order,
            "new_order_rolled_back": f"BEGIN;\n{order}ROLLBACK;\n",
            "payment": "\\if :by_name\nSELECT payment(:w, :d, :cw, :cd, NULL, :name, :amount::int / 100.0);\n\\else\n"
                       "SELECT payment(:w, :d, :cw, :cd, :c, NULL, :amount::int / 100.0);\n\\endif\n",
            "order_status": "\\if :by_name\nSELECT order_status(:w, :d, NULL, :name);\n\\else\n"
                            "SELECT order_status(:w, :d, :c, NULL);\n\\endif\n",
            "delivery": "SELECT delivery(:w, :carrier);\n",
            "stock_level": "SELECT stock_level(:w, :d, :threshold);\n"}

    @staticmethod
    def declared(*tables: str) -> str:
        return ("SELECT " + ", ".join(f"mixedcc.declare_partition('{table}', :w::int)" for table in tables)
                + "; --[partcc]\n")

    def statements(self) -> dict[str, str]:
        return {"new_order": "BEGIN;\n" + self.order_statements() + "END;\n",
                "new_order_rolled_back": "BEGIN;\n" + self.order_statements() + "ROLLBACK;\n",
                "payment": "BEGIN;\n" + PAYMENT + "END;\n", "order_status": "BEGIN;\n" + ORDER_STATUS + "END;\n",
                "delivery": "BEGIN;\n" + self.declared("new_order", "orders", "order_line", "customer")
                            + "".join(DELIVERY.format(d=d) for d in range(1, 11)) + "END;\n",
                "stock_level": "BEGIN;\n" + STOCK_LEVEL + "END;\n"}

    def order_statements(self) -> str:
        text = self.declared("warehouse", "district", "customer", "stock", "orders", "new_order", "order_line")
        text += ORDER_HEAD.format(local=" AND ".join(f"(:lines::int < {i} OR :s{i}::int = :w::int)" for i in range(1, MAX_LINES + 1)))
        pairs = ", ".join(f"(:s{i}, :i{i})" for i in range(1, MAX_LINES + 1))
        text += f"SELECT count(*) FROM (SELECT 1 FROM stock WHERE (s_w_id, s_i_id) IN ({pairs}) ORDER BY s_w_id, s_i_id FOR UPDATE) AS s; --[locks]\n"
        for i in range(1, MAX_LINES + 1):
            line = ORDER_LINE.format(i=i)
            text += line if i <= 5 else f"\\if :lines >= {i}\n{line}\\endif\n"
        return text

    # Checks.

    def problems(self, before, after, committed):
        orders = committed["new_order"]
        found = grown(before, after, "orders", orders, "committed New-Orders, less those rolled back")
        found += grown(before, after, "next_ids", orders, "the same")
        found += grown(before, after, "payments", committed["payment"], "committed Payments")
        found += grown(before, after, "payment_counts", committed["payment"], "committed Payments")
        found += expect("order lines", after["order_lines"], after["lines"])
        delivered = after["delivered"] - before["delivered"]
        found += grown(before, after, "deliveries", delivered, "orders that got a carrier")
        if delivered > 10 * committed["delivery"]:
            found.append(f"{delivered} orders delivered by {committed['delivery']} Deliveries")
        return found

    def further_problems(self, ask):
        lines = ask(self.section("conditions")).splitlines()
        counts = dict(map(int, line.split("|")) for line in lines)
        return [f"condition {number}: {count} rows break it" for number, count in sorted(counts.items()) if count]


ORDER_HEAD = """SELECT w_tax AS w_tax FROM warehouse WHERE w_id = :w \\gset
UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = :w AND d_id = :d RETURNING d_tax AS d_tax, d_next_o_id - 1 AS o_id \\gset
SELECT c_discount AS discount FROM customer WHERE c_w_id = :w AND c_d_id = :d AND c_id = :c \\gset
INSERT INTO orders VALUES (:w, :d, :o_id, :c, now(), NULL, :lines, {local});
INSERT INTO new_order VALUES (:w, :d, :o_id);
"""
# A missing item gives no row: price becomes null, and the script that has one rolls back without
# it.
ORDER_LINE = """SELECT coalesce(max(i_price), -1) AS price FROM item WHERE i_id = :i{i} \\gset
\\if :price > 0
UPDATE stock SET s_quantity = s_quantity - :q{i}::int + CASE WHEN s_quantity >= :q{i}::int + 10 THEN 0 ELSE 91 END, s_ytd = s_ytd + :q{i}, s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + CASE WHEN :s{i}::int = :w::int THEN 0 ELSE 1 END WHERE s_w_id = :s{i} AND s_i_id = :i{i} RETURNING s_quantity;
INSERT INTO order_line VALUES (:w, :d, :o_id, {i}, :i{i}, :s{i}, NULL, :q{i}, :price::numeric * :q{i}::int, repeat('i', 24));
\\endif
"""
BY_NAME = """\\if :by_name
SELECT ids[(cardinality(ids) + 1) / 2] AS c FROM (SELECT ARRAY(SELECT c_id FROM customer WHERE c_w_id = {w} AND c_d_id = {d} AND c_last = last_name(:name) ORDER BY c_first) AS ids) AS x \\gset
\\endif
"""
PAYMENT = Tpcc.declared("warehouse", "district", "history") + BY_NAME.format(w=":cw", d=":cd") + """\
UPDATE warehouse SET w_ytd = w_ytd + :amount::int / 100.0 WHERE w_id = :w RETURNING w_name;
UPDATE district SET d_ytd = d_ytd + :amount::int / 100.0 WHERE d_w_id = :w AND d_id = :d RETURNING d_name;
UPDATE customer SET c_balance = c_balance - :amount::int / 100.0, c_ytd_payment = c_ytd_payment + :amount::int / 100.0, c_payment_cnt = c_payment_cnt + 1 WHERE c_w_id = :cw AND c_d_id = :cd AND c_id = :c RETURNING (c_credit = 'BC')::int AS bad \\gset
\\if :bad
UPDATE customer SET c_data = left(concat_ws(' ', c_id, c_d_id, c_w_id, :d::int, :w::int, :amount::int, c_data), 500) WHERE c_w_id = :cw AND c_d_id = :cd AND c_id = :c;
\\endif
INSERT INTO history VALUES (:c, :cd, :cw, :d, :w, now(), :amount::int / 100.0, 'warehouse    district');
"""
ORDER_STATUS = Tpcc.declared("customer", "orders", "order_line") + BY_NAME.format(w=":w", d=":d") + """\
SELECT c_balance FROM customer WHERE c_w_id = :w AND c_d_id = :d AND c_id = :c;
SELECT coalesce(max(o_id), 0) AS o_id FROM (SELECT o_id FROM orders WHERE o_w_id = :w AND o_d_id = :d AND o_c_id = :c ORDER BY o_id DESC LIMIT 1) AS o \\gset
SELECT ol_i_id, ol_amount FROM order_line WHERE ol_w_id = :w AND ol_d_id = :d AND ol_o_id = :o_id;
"""
DELIVERY = """SELECT coalesce(max(no_o_id), 0) AS o_id FROM (SELECT no_o_id FROM new_order WHERE no_w_id = :w AND no_d_id = {d} ORDER BY no_o_id LIMIT 1) AS n \\gset --[!locks]
SELECT coalesce(max(no_o_id), 0) AS o_id FROM (SELECT no_o_id FROM new_order WHERE no_w_id = :w AND no_d_id = {d} ORDER BY no_o_id LIMIT 1 FOR UPDATE SKIP LOCKED) AS n \\gset --[locks]
\\if :o_id > 0
DELETE FROM new_order WHERE no_w_id = :w AND no_d_id = {d} AND no_o_id = :o_id;
UPDATE orders SET o_carrier_id = :carrier WHERE o_w_id = :w AND o_d_id = {d} AND o_id = :o_id RETURNING o_c_id AS c \\gset
UPDATE order_line SET ol_delivery_d = now() WHERE ol_w_id = :w AND ol_d_id = {d} AND ol_o_id = :o_id;
SELECT sum(ol_amount) AS total FROM order_line WHERE ol_w_id = :w AND ol_d_id = {d} AND ol_o_id = :o_id \\gset
UPDATE customer SET c_balance = c_balance + :total::numeric, c_delivery_cnt = c_delivery_cnt + 1 WHERE c_w_id = :w AND c_d_id = {d} AND c_id = :c;
\\endif
"""
STOCK_LEVEL = Tpcc.declared("district", "order_line", "stock") + """\
SELECT d_next_o_id AS next_id FROM district WHERE d_w_id = :w AND d_id = :d \\gset
SELECT count(DISTINCT s_i_id) FROM order_line JOIN stock ON s_w_id = ol_w_id AND s_i_id = ol_i_id WHERE ol_w_id = :w AND ol_d_id = :d AND ol_o_id >= :next_id::int - 20 AND ol_o_id < :next_id AND s_quantity < :threshold;
"""
