"""Random tables, predicates and clients that read by predicate.

The checker knows integer keys, and which of them a scan covers; SQL predicates are over columns of
any type. So a table has a finite domain of *points*: each point is one combination of the values of
all its indexed columns, and a key of the checker. A row is at one point; an UPDATE of a column that
some index holds moves it: a delete at one point and an insert at another. What a predicate covers
is then a set of points, and PostgreSQL itself says which: it evaluates the predicate on a heap
table of all points. The list in the row has the order of the writes at its point (see
lib/loads.py).

A read with a LIMIT covers the points that sort before the last row that came, and that row. Of
points that sort equal to it nothing is known, and min and max tell only which points have no row.
"""

import datetime
import itertools
import re

from lib.common import METHOD, OURS, options, query

VARIANTS = 3
DAY = datetime.date(2020, 1, 1)


def literal(v):
    if v is None:
        return "NULL"
    return f"DATE '{v}'" if isinstance(v, datetime.date) else f"'{v}'" if isinstance(v, str) else str(v)


# Type of the key and its values in order.
KEYS = {
    "int": lambda i: i * 10 - 30,
    "bigint": lambda i: (i - 3) * 10_000_000_000,
    'text COLLATE "C"': lambda i: f"{'abc'[i // 6]}{i % 6}",
    "numeric": lambda i: i / 2,
    "date": lambda i: DAY + datetime.timedelta(days=i),
    "multi": lambda i: i // 4,
}
# Columns in opposite directions.
MIXED = [
    "INDEX ON t (a, b DESC)",
    "INDEX ON t (b NULLS FIRST, a DESC NULLS LAST)",
    "INDEX ON t (n DESC, d)",
    "INDEX ON t (d DESC, b)",
    "INDEX ON t (b, n DESC)",
]
INDEXES = [
    "INDEX ON t (a DESC, id)",
    "INDEX ON t (a DESC NULLS LAST)",
    "INDEX ON t (b DESC)",
    "INDEX ON t (d DESC NULLS FIRST)",
    "INDEX ON t (d, a)",
    "INDEX ON t (n)",
    "INDEX ON t ((coalesce(a, -1) / 2))",
    "INDEX ON t (upper(b), d)",
    "INDEX ON t (a) WHERE b IS NOT NULL",
    "INDEX ON t (d) WHERE a > 2",
    "INDEX ON t USING hash (a)",
    "INDEX ON t USING hash (b)",
    "UNIQUE INDEX ON t (b, a, id)",
    "UNIQUE INDEX ON t (a DESC, id)",
    "INDEX ON t (a, id) INCLUDE (p, l)",
]


def leading(index):
    """The columns that an index begins with."""
    inside = index[index.index("(") + 1:index.rindex(") INCLUDE") if "INCLUDE" in index else index.rindex(")")]
    return [column.split()[0] for column in inside.split(", ")]


class Table:
    """A random table `t`, its points, and predicates on it."""

    def __init__(self, rng):
        self.random = rng
        self.key_type = rng.choice(list(KEYS))
        self.ids = 12
        self.multi = self.key_type == "multi"
        value = KEYS[self.key_type]
        self.points = []
        for i in range(self.ids):
            for _ in range(VARIANTS):
                row = {"id": value(i), "id2": "wxyz"[i % 4]}
                row["a"] = self.maybe(rng.randrange(6))
                row["b"] = self.maybe(rng.choice(["a0", "a1", "b0", "b1", "c"]))
                row["d"] = self.maybe(DAY + datetime.timedelta(days=rng.randrange(8)))
                row["n"] = self.maybe(rng.randrange(12) / 4)
                row["p"] = len(self.points)
                self.points.append(row)
        self.indexes = [rng.choice(MIXED)] + rng.sample(INDEXES, rng.randrange(1, 5))
        self.predicates = []

    def maybe(self, v):
        return None if self.random.random() < 0.2 else v

    def key(self, point):
        row = self.points[point]
        text = f"id = {literal(row['id'])}"
        return text + f" AND id2 = '{row['id2']}'" if self.multi else text

    def values(self, point):
        row = self.points[point]
        return {c: literal(row[c]) for c in ("id", "id2", "a", "b", "d", "n", "p")}

    def create(self, connection, partitions, full, **settings):
        kind = "int" if self.multi else self.key_type
        columns = f"id {kind} NOT NULL, id2 text COLLATE \"C\" NOT NULL, a int, b text COLLATE \"C\", d date, n numeric, p int NOT NULL"
        query(connection, "DROP TABLE IF EXISTS t, dom")
        query(connection, f"CREATE TABLE dom ({columns}) USING heap")
        rows = ", ".join("(" + ", ".join(self.values(p).values()) + ")" for p in range(len(self.points)))
        query(connection, f"INSERT INTO dom VALUES {rows}; ANALYZE dom")
        by = "id,id2" if self.multi else "id"
        settings = options(partitions=partitions, partition_by=by, **settings)
        kind = "UNLOGGED" if len(self.indexes) % 2 else ""
        query(connection, f"CREATE {kind} TABLE t ({columns}, l bigint[], prev bigint[], prev_p int) USING {METHOD} {settings}")
        # What has a PRIMARY KEY is read by the custom scan and by the bypass too, and so is what
        # has a unique key of columns that are NOT NULL. One that is descending is an index only.
        if self.key_type == "date":
            query(connection, "CREATE UNIQUE INDEX ON t (id DESC)")
        else:
            key = self.random.choice(("PRIMARY KEY", "PRIMARY KEY", "UNIQUE"))
            query(connection, f"ALTER TABLE t ADD {key} ({'id, id2' if self.multi else 'id'})")
        for index in self.indexes:
            query(connection, f"CREATE {index}")
        self.initial = []
        if full:
            for i in range(0, self.ids, self.random.choice([1, 2])):
                point = i * VARIANTS + self.random.randrange(VARIANTS)
                values = ", ".join(self.values(point).values())
                if query(connection, f"INSERT INTO t VALUES ({values}, '{{}}') ON CONFLICT DO NOTHING RETURNING p"):
                    self.initial.append(point)

    # --- predicates ---

    def pick(self, column):
        found = [row[column] for row in self.points if row[column] is not None]
        return self.random.choice(found)

    def comparison(self, column):
        """A condition on one column, with bounds that are values of rows."""
        rng = self.random
        x, y = sorted((self.pick(column), self.pick(column)))
        cast = "::bigint" if isinstance(x, int) and rng.random() < 0.3 else ""
        x, y = literal(x) + cast, literal(y) + cast
        several = ", ".join(literal(self.pick(column)) for _ in range(rng.randrange(2, 5)))
        forms = [f"{column} = {x}", f"{column} BETWEEN {x} AND {y}", f"{column} > {x} AND {column} < {y}", f"{column} > {x} AND {column} <= {y}",
                 f"{column} >= {x} AND {column} < {y}", f"{column} {rng.choice(['<', '<=', '>', '>='])} {x}", f"{column} IN ({several})",
                 f"{column} = ANY (ARRAY[{several}])"]
        if column in ("a", "b", "d", "n"):
            forms += [f"{column} IS NULL", f"{column} IS NOT NULL", f"{column} IS NULL"]
        if column == "b":
            forms += [f"b LIKE '{rng.choice('ab')}%'"] * 2
        if column == "id" and self.key_type.startswith("text"):
            forms += [f"id LIKE '{rng.choice('abc')}%'"] * 2
        return rng.choice(forms)

    def row_comparison(self, columns):
        rng = self.random
        row, other = rng.choice(self.points), rng.choice(self.points)
        value = lambda r, c: literal(r[c] if r[c] is not None else self.pick(c))
        text = lambda op, r: f"({', '.join(columns)}) {op} ({', '.join(value(r, c) for c in columns)})"
        first = text(rng.choice([">", ">="]), row)
        return first if rng.random() < 0.5 else first + " AND " + text(rng.choice(["<", "<="]), other)

    def by_index(self):
        """A condition on what one index begins with."""
        rng = self.random
        index = rng.choice(self.indexes)
        if "coalesce" in index:
            return f"coalesce(a, -1) / 2 {rng.choice(['=', '<', '>='])} {rng.randrange(3)}"
        if "upper" in index:
            return f"upper(b) = '{rng.choice(['A0', 'B1', 'C'])}'" + (" AND " + self.comparison("d") if rng.random() < 0.4 else "")
        if "WHERE b" in index:
            return "b IS NOT NULL AND " + self.comparison("a")
        if "WHERE a" in index:
            return "a > 2 AND " + self.comparison("d")
        if "hash" in index:
            column = leading(index)[0]
            return f"{column} = {literal(self.pick(column))}"
        columns = leading(index)
        draw = rng.random()
        if len(columns) == 1 or draw < 0.3:
            return self.comparison(columns[0])
        if draw < 0.6:
            return self.row_comparison(columns[:2])
        equal = f"{columns[0]} = {literal(self.pick(columns[0]))}" if rng.random() < 0.7 else f"{columns[0]} IS NULL"
        return f"{equal} AND {self.comparison(columns[1])}"

    def condition(self):
        rng = self.random
        if rng.random() < 0.55:
            return self.by_index()
        draw = rng.random()
        if draw < 0.35:
            return self.comparison("id")
        if draw < 0.6:
            return self.comparison(rng.choice("abdn"))
        if draw < 0.7:
            return self.comparison("a") + " AND " + self.comparison(rng.choice(["b", "id"]))
        if draw < 0.74:
            return self.comparison("b") + " AND " + self.comparison("a")
        if draw < 0.92:
            return self.row_comparison(rng.choice([("a", "b"), ("b", "a"), ("id", "id2"), ("d", "a"), ("a", "id")]))
        return f"({self.comparison('id')}) OR ({self.comparison('a')})"

    def order(self):
        rng = self.random
        suffix = lambda: rng.choice(["", " DESC", " NULLS FIRST", " DESC NULLS LAST"])
        return rng.choice(["id" + suffix(), "id" + suffix(), "a" + suffix(), "b" + suffix(), "d" + suffix(), "n" + suffix(), "a" + suffix() + ", b" + suffix(),
                           "id, id2" if self.multi else "id DESC", "id DESC, id2 DESC"])

    def guarded(self):
        """A range_scan by the key: its call, and what it covers."""
        rng = self.random
        row, other = sorted(rng.sample(self.points, 2), key=lambda r: r["p"])
        inclusive = rng.choice([True, False]), rng.choice([True, False])
        whole = self.multi and rng.random() < 0.5
        bound = lambda r: f"ROW({literal(r['id'])}, '{r['id2']}'::text)" if whole else literal(r["id"])
        column = "(id, id2)" if whole else "id"
        lo, hi = (None if rng.random() < 0.15 else bound(r) for r in (row, other))
        if not self.multi and self.key_type not in ("int", "date"):
            cast = self.key_type.split()[0]
            lo, hi = (b and f"{b}::{cast}" for b in (lo, hi))
        parts = [f"{column} >{'=' * inclusive[0]} {lo}"] * bool(lo) + [f"{column} <{'=' * inclusive[1]} {hi}"] * bool(hi)
        limit, descending = None, False
        if self.key_type != "date" and rng.random() < 0.5:
            limit, descending = rng.randrange(1, 4), rng.random() < 0.5
        order = ("id DESC, id2 DESC" if descending else "id, id2") if limit else None
        if self.key_type == "date":
            lo, hi, inclusive = hi, lo, inclusive[::-1]  # in the index's order
        call = f"mixedcc.range_scan(NULL::t, {lo or 'NULL'}, {hi or 'NULL'}, {inclusive[0]}, {inclusive[1]}, {descending}, {limit or 'NULL'})"
        return Predicate("guarded", " AND ".join(parts) or "true", order, limit, call)

    def predicate(self):
        rng = self.random
        draw = rng.random()
        if OURS and draw < 0.07:
            return self.guarded()
        if draw < 0.45:
            return Predicate("limit", self.condition() if rng.random() < 0.8 else "true", self.order(), rng.randrange(1, 5))
        if draw < 0.53:
            column = rng.choice(["id", "a", "b", "d", "n"])
            function = rng.choice(["min", "max"])
            order = column if function == "min" else f"{column} DESC"
            where = self.condition() if rng.random() < 0.5 else "true"
            return Predicate(function, f"({where}) AND {column} IS NOT NULL", order, None, column)
        if draw < 0.57:
            column = rng.choice(["id", "a", "b"])
            several = sorted({literal(self.pick(column)) for _ in range(3)})
            return Predicate("join", f"{column} IN ({', '.join(several)})", None, None, f"(VALUES ({'), ('.join(several)})) v (x) JOIN t ON {column} = x")
        return Predicate("all", self.condition() if rng.random() < 0.97 else "true", None, None)

    def make_predicates(self, connection, count):
        while len(self.predicates) < count:
            one = self.predicate()
            rank = f"dense_rank() OVER (ORDER BY {one.order})" if one.order else "0"
            value = f"({one.source})::text" if one.kind in ("min", "max") else "NULL"
            named = re.findall(r"\b(?:id2?|[abdn])\b", re.sub("'[^']*'", "", one.where))
            place = f"row_number() OVER (ORDER BY {one.order or ', '.join(dict.fromkeys(named)) or 'p'})"
            found = query(connection, f"SELECT p, {rank}, {value}, {place} FROM dom WHERE {one.where}")
            one.ranks = {p: r for p, r, _, _ in found}
            one.rank_of_value = {v: r for _, r, v, _ in found}
            one.points = [p for p, _, _, _ in sorted(found, key=lambda row: row[3])]
            if one.ranks or self.random.random() < 0.1:
                self.predicates.append(one)


class Predicate:
    """A read. `ranks`: the points that match it, and their places in its order; `points`: sorted by
    what it asks for."""

    def __init__(self, kind, where, order, limit, source=None):
        self.kind, self.where, self.order, self.limit, self.source = kind, where, order, limit, source
        self.ranks, self.rank_of_value, self.points = {}, {}, []

    def sql(self):
        tail = (f" ORDER BY {self.order}" if self.order else "") + (f" LIMIT {self.limit}" if self.limit else "")
        if self.kind in ("min", "max"):
            return f"SELECT {self.kind}({self.source})::text FROM t WHERE {self.where}"
        if self.kind == "guarded":
            return f"SELECT p, l FROM {self.source}"
        if self.kind == "join":
            return f"SELECT p, l FROM {self.source}"
        return f"SELECT p, l FROM t WHERE {self.where}{tail}"

    def covered(self, rows, ended):
        """The points of which the rows say all, and other points that they name."""
        if ended:
            return set(self.ranks)
        last = max((self.ranks[p] for p, _ in rows), default=0)
        return {p for p, r in self.ranks.items() if r < last} | {p for p, _ in rows}

    def edge(self, rng):
        """A point that matches; the first and last ones of the order more often."""
        few = max(1, len(self.points) // 4)
        draw = rng.random()
        return rng.choice(self.points[:few] if draw < 0.3 else self.points[-few:] if draw < 0.6 else self.points)


def runs(points):
    """Stretches of consecutive numbers."""
    for _, group in itertools.groupby(enumerate(sorted(points)), lambda pair: pair[1] - pair[0]):
        group = [p for _, p in group]
        yield group[0], group[-1]
