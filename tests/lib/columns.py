"""Clients (lib.loads) whose tables have two lists in a row. Each list is an item of the history.

Column c of table t is the table `t.c` of the history. Updates in place change mostly one of the
columns at a time, and now and then the other one: so tables learn columns that do not change, and
what they have learned becomes wrong (`mixedcc.column_period`)."""

import json
import time

from lib.common import query
from lib.loads import Client

COLUMNS = ("l", "m")
# The columns take turns; s. Another column than the one whose turn it is has this share of updates.
TURN, OTHER = 0.6, 0.01
# For mixedcc.column_period.
PERIOD = "50ms"


class ColumnClient(Client):
    """Inserts and deletes change both columns. A read looks at both, or at one of them: mostly the
    one that does not change."""

    def turn(self):
        return COLUMNS[int(time.monotonic() / TURN) % 2]

    def other(self, column):
        return COLUMNS[1 - COLUMNS.index(column)]

    def column(self, share):
        column = self.turn()
        return self.other(column) if self.random.random() < share else column

    def note(self, op, table, column, **what):
        self.log(op, f"{table}.{column}", **what)

    def absent_row(self, table, key, columns=COLUMNS):
        for column in columns:
            self.note("read", table, column, k=key, absent=True)

    def looked(self):
        """The columns at which a read looks."""
        return COLUMNS if self.random.random() < 0.15 else (self.column(0.8),)

    def read(self):
        table, key, columns = self.table_from(self.load.read_tables), self.key(), self.looked()
        if len(columns) == 2 and self.native(table):
            seen = self.execute(f"SELECT r.l, r.m FROM mixedcc.get(NULL::{table}, %s) r WHERE r.k IS NOT NULL", key)
        else:
            seen = self.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE k = %s", key)
        self.noted(table, key, columns, seen)

    def noted(self, table, key, columns, rows, **more):
        if not rows:
            return self.absent_row(table, key, columns)
        for column, seen in zip(columns, rows[0]):
            self.note("read", table, column, k=key, list=seen, **more)

    def lock(self):
        table, key, columns = self.table_from(self.load.read_tables), self.key(), self.looked()
        mode = self.random.choice(["UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"])
        rows = self.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE k = %s FOR {mode}", key)
        if rows:
            self.noted(table, key, columns, rows, locked=True)

    def scan(self):
        table, low, column = self.table_from(self.load.read_tables), self.key(), self.column(0.5)
        high = low + self.random.randrange(4)
        rows = self.execute(f"SELECT k, {column} FROM {table} WHERE k BETWEEN %s AND %s", low, high)
        self.note("scan", table, column, low=low, high=high, rows=[{"k": k, "list": seen} for k, seen in rows])

    def scan_all(self):
        table = self.table_from(self.load.read_tables)
        rows = self.execute(f"SELECT k, l, m FROM {table}")
        for n, column in enumerate(COLUMNS, 1):
            self.note("scan", table, column, rows=[{"k": row[0], "list": row[n]} for row in rows])

    def update(self):
        table, key, column, append = self.table_from(self.load.write_tables), self.key(), self.column(OTHER), self.fresh()
        rows = self.execute(f"UPDATE {table} SET {column} = {column} || %s::bigint WHERE k = %s RETURNING {column}", append, key)
        if rows:
            self.note("update", table, column, k=key, append=append, saw=rows[0][0])
        elif self.level != "read committed":
            self.absent_row(table, key)

    def insert(self):
        table, appends = self.table_from(self.load.write_tables), (self.fresh(), self.fresh())
        key = self.insert_key()
        rows = self.execute(f"INSERT INTO {table} VALUES (%s, ARRAY[%s::bigint], ARRAY[%s::bigint]) ON CONFLICT DO NOTHING RETURNING k", key, *appends)
        if rows:
            for column, append in zip(COLUMNS, appends):
                self.note("insert", table, column, k=key, append=append)

    upsert = insert

    def delete(self):
        table, key = self.table_from(self.load.write_tables), self.key()
        rows = self.execute(f"DELETE FROM {table} WHERE k = %s RETURNING l, m", key)
        if rows:
            for column, seen in zip(COLUMNS, rows[0]):
                self.note("delete", table, column, k=key, saw=seen)
        elif self.level != "read committed":
            self.absent_row(table, key)

    def operation(self, nested=False):
        # Mostly reads of single rows and updates: deletes keep looks away.
        draw = self.random.random()
        if self.level == "serializable" and draw < 0.6:
            return self.read() if draw < 0.35 else self.update()
        super().operation(nested)


def write_last(connection, tables, path):
    """The final state, as a transaction after all others."""
    events = []
    for number, table in enumerate(tables):
        rows = query(connection, f"SELECT k, l, m FROM {table}")
        for n, column in enumerate(COLUMNS, 1):
            events.append({"op": "scan", "t": f"{table}.{column}", "stmt": number, "rows": [{"k": row[0], "list": row[n]} for row in rows]})
    now = time.monotonic_ns()
    line = {"id": 999_999_999, "client": 0, "status": "committed", "level": "repeatable read",
            "begin": now, "commit": now + 1, "last": True, "events": events}
    with open(path, "w", encoding="ascii") as file:
        file.write(json.dumps(line) + "\n")
