"""SEATS, the part that contends: seats of a few flights are looked for, reserved, changed and given
back.

SEATS's mix of these four (35 % of its transactions look for open seats, 20 % reserve, 15 % update,
10 % delete; the rest searches flights and customers and contends for nothing). After each run every
flight's seats and reservations add up, and so do every customer's reservations and money.
"""

from __future__ import annotations

from field.loads.base import PROCEDURE, Script, Workload, expect, grown

MIX = {"find_open_seats": 35, "new_reservation": 20, "update_reservation": 15, "delete_reservation": 10}
PROCEDURES = {"find_open_seats": "find_open_seats(:f)", "new_reservation": "new_reservation(:c, :f, :s)",
              "update_reservation": "update_reservation(:f, :s, :s2)",
              "delete_reservation": "delete_reservation(:f, :s)"}
# At REPEATABLE READ a change of the seats must be one of the flight: see seats.sql.
LOCK_FLIGHT = ("SELECT 1 FROM flight WHERE id = :f FOR UPDATE; --[locks]\n"
               "UPDATE flight SET seats_left = seats_left WHERE id = :f; --[rr]\n")
STATEMENTS = {
    "find_open_seats": "SELECT seats FROM flight WHERE id = :f;\n"
                       "SELECT seat FROM reservation WHERE flight = :f ORDER BY seat;\n",
    "new_reservation": LOCK_FLIGHT + """\
SELECT price, seats_left FROM flight WHERE id = :f \\gset
SELECT count(*) AS taken FROM reservation WHERE flight = :f AND seat = :s \\gset
\\if :taken = 0 AND :seats_left > 0
INSERT INTO reservation VALUES (:f, :s, :c, :price, 0);
UPDATE flight SET seats_left = :seats_left - 1 WHERE id = :f;
UPDATE customer SET balance = balance - :price, reservations = reservations + 1 WHERE id = :c;
\\endif
""",
    "update_reservation": LOCK_FLIGHT + """\
SELECT count(*) AS taken FROM reservation WHERE flight = :f AND seat = :s2 \\gset
\\if :taken = 0
UPDATE reservation SET seat = :s2, updates = updates + 1 WHERE flight = :f AND seat = :s;
\\endif
""",
    "delete_reservation": LOCK_FLIGHT + """\
SELECT coalesce(max(customer), 0) AS who FROM reservation WHERE flight = :f AND seat = :s \\gset
\\if :who > 0
DELETE FROM reservation WHERE flight = :f AND seat = :s RETURNING price AS price \\gset
UPDATE flight SET seats_left = seats_left + 1 WHERE id = :f;
UPDATE customer SET balance = balance + :price, reservations = reservations - 1 WHERE id = :who;
\\endif
""",
}


class Seats(Workload):
    name = "seats"
    title = "SEATS: reservations of the seats of a few flights"
    sql_file = "seats.sql"
    tables = ("flight", "customer", "reservation")
    defaults = {"rows": 100_000, "flights": 20, "seats": 150}
    data_parameters = ("rows", "flights", "seats")
    spread_options = {"flight": "mixedcc.partitions = 1",
                      "reservation": "mixedcc.partitions = 16, mixedcc.partition_by = 'flight'"}
    partcc_options = {}
    hybrid = {"flight": "2pl"}
    hybrid_text = "2pl for the flights, occ for the others"
    state_sql = ("SELECT (SELECT count(*) FROM flight) AS flights, (SELECT count(*) FROM customer) AS customers,"
                 " (SELECT count(*) FROM reservation) AS taken")

    def scripts(self, style):
        text = (f"\\set f random(1, {self.flights})\n\\set c random(1, {self.rows})\n"
                f"\\set s random(1, {self.seats})\n"
                f"\\set s2 1 + (:s - 1 + random(1, {self.seats - 1})) % {self.seats}\n")
        bodies = {name: f"SELECT {call};\n" for name, call in PROCEDURES.items()} if style == PROCEDURE else {
            name: f"BEGIN;\n{body}END;\n" for name, body in STATEMENTS.items()}
        return [Script(name, text + bodies[name], weight) for name, weight in MIX.items()]

    def problems(self, before, after, committed):
        found = grown(before, after, "flights", 0, "no inserts") + grown(before, after, "customers", 0, "no inserts")
        change = after["taken"] - before["taken"]
        if not -committed["delete_reservation"] <= change <= committed["new_reservation"]:
            found.append(f"{change} more reservations by {committed['new_reservation']} new ones "
                         f"and {committed['delete_reservation']} deleted ones")
        return found

    def further_problems(self, ask):
        flights, customers = ask("""SELECT (SELECT count(*) FROM flight AS f WHERE seats - seats_left <>
            (SELECT count(*) FROM reservation AS r WHERE r.flight = f.id)) AS flights,
            (SELECT count(*) FROM customer AS c LEFT JOIN (SELECT customer, count(*) AS n, sum(price) AS paid
             FROM reservation GROUP BY 1) AS r ON r.customer = c.id
             WHERE reservations <> coalesce(n, 0) OR balance <> 1000000 - coalesce(paid, 0)) AS customers""").split("|")
        return (expect("flights whose seats do not add up", int(flights), 0)
                + expect("customers whose reservations or money do not add up", int(customers), 0))
