"""Random tables, predicates and clients that read by predicate.

The checker knows integer keys, and which of them a scan covers; SQL predicates are over columns of
any type. So a table has a finite domain of *points*: each point is one combination of the values of
all its indexed columns, and a key of the checker. A row is at one point; an UPDATE of a column that
some index holds moves it: a delete at one point and an insert at another. What a predicate covers is
then a set of points, and PostgreSQL itself says which: it evaluates the predicate on a heap table of
all points. The list in the row has the order of the writes at its point (see _history.py).

A read with a LIMIT covers the points that sort before the last row that came, and that row. Of points that
sort equal to it nothing is known, and min and max tell only which points have no row.
"""

import datetime
import itertools
import json
import random
import time

import psycopg2

from _common import METHOD, OURS, options, query
from _history import ALLOWED, ALLOWED_ABOVE_READ_COMMITTED, LEVELS, Client, Undo

VARIANTS = 3
DAY = datetime.date(2020, 1, 1)
EPOCH = 0.15  # seconds that the same few predicates stay hot


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
INDEXES = [
    "INDEX ON t (a, b DESC)",
    "INDEX ON t (a DESC, id)",
    "INDEX ON t (a DESC NULLS LAST)",
    "INDEX ON t (b NULLS FIRST, a DESC NULLS LAST)",
    "INDEX ON t (b DESC)",
    "INDEX ON t (d DESC NULLS FIRST)",
    "INDEX ON t (d, a)",
    "INDEX ON t (n)",
    "INDEX ON t (n DESC, d)",
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

    def __init__(self, rng, fixed=None):
        self.random = rng
        self.key_type = (fixed or {}).get("key") or rng.choice(list(KEYS))
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
        chosen = (fixed or {}).get("indexes")
        self.indexes = chosen if chosen is not None else rng.sample(INDEXES, rng.randrange(2, 6))
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
        query(connection, f"CREATE UNLOGGED TABLE t ({columns}, l bigint[], prev bigint[], prev_p int) USING {METHOD} {settings}")
        key = "id, id2" if self.multi else "id DESC" if self.key_type == "date" else "id"
        query(connection, f"CREATE UNIQUE INDEX ON t ({key})")
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
            found = query(connection, f"SELECT p, {rank}, {value} FROM dom WHERE {one.where}")
            one.ranks = {p: r for p, r, _ in found}
            one.rank_of_value = {v: r for _, r, v in found}
            if one.ranks or self.random.random() < 0.1:
                self.predicates.append(one)


class Predicate:
    """A read. `ranks`: the points that match it, and their places in its order."""

    def __init__(self, kind, where, order, limit, source=None):
        self.kind, self.where, self.order, self.limit, self.source = kind, where, order, limit, source
        self.ranks, self.rank_of_value = {}, {}

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
        points = sorted(self.ranks, key=lambda p: (self.ranks[p], p))
        draw = rng.random()
        return points[0] if draw < 0.25 else points[-1] if draw < 0.5 else rng.choice(points)


def runs(points):
    """Stretches of consecutive numbers."""
    for _, group in itertools.groupby(enumerate(sorted(points)), lambda pair: pair[1] - pair[0]):
        group = [p for _, p in group]
        yield group[0], group[-1]


def plan(seq, index, bitmap, sort):
    on = {"seqscan": seq, "indexscan": index, "indexonlyscan": index, "bitmapscan": bitmap, "sort": sort}
    return "".join(f"SET LOCAL enable_{name} = {'on' if flag else 'off'}; " for name, flag in on.items())


PLANS = {
    "any": plan(True, True, True, True),
    "index": plan(False, True, False, False),
    "bitmap": plan(False, False, True, True),
    "sequential": plan(True, False, False, True),
}
NESTED = "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_memoize = off; "


class Reader(Client):
    """A client of a Table. `seed`: the same for all clients of a round."""

    def __init__(self, database, number, load, path, table, seed, fault=None, patience=0.01):
        self.fault, self.patience = fault, patience
        super().__init__(database, number, load, path)
        self.table, self.seed, self.hot = table, seed, []
        self.random = random.Random(seed * 1000 + number)

    def connect(self):
        super().connect()
        if self.fault:
            self.cursor.execute(f"SET mixedcc.fault = '{self.fault}'")

    # --- reads ---

    def choose(self):
        """One of the few predicates that all clients use at this moment."""
        epoch = int(time.monotonic() / EPOCH)
        chosen = random.Random(self.seed * 1_000_003 + epoch).sample(self.table.predicates, 3)
        self.hot = [p for p in chosen if p.ranks]
        return self.random.choice(chosen)

    def note(self, predicate, rows, ended, at=None, statement=None):
        """Logs a read of a predicate that gave these rows."""
        strays = [p for p, _ in rows if p not in predicate.ranks]
        if strays:
            self.problems.append(f"{predicate.sql()} returned rows at {strays}, which do not match")
            return
        seen = [{"k": p, "list": l} for p, l in rows]
        events = []
        for low, high in runs(predicate.covered(rows, ended)):
            inside = [row for row in seen if low <= row["k"] <= high]
            events.append({"op": "scan", "t": "t", "low": low, "high": high, "rows": inside, "stmt": statement or self.statement})
        at = len(self.events) if at is None else at
        self.events[at:at] = events

    def repeated_read(self):
        """Reads by one predicate twice, perhaps by different plans: a phantom in between is seen."""
        one = self.choose()
        self.predicate_read(one)
        if self.random.random() < 0.3:
            self.write()
        else:
            time.sleep(self.random.random() * self.patience)
        if self.random.random() < 0.5:
            self.execute(self.settings())
        self.predicate_read(one)

    def predicate_read(self, one=None):
        one = one or self.choose()
        if one.kind == "all" and self.random.random() < 0.15 and self.level not in ("guarded", "read committed"):
            return self.cursor_read(one)
        if one.kind == "limit" and self.random.random() < 0.25 and self.level not in ("guarded", "read committed"):
            return self.cursor_read(one)
        self.has_guard |= one.kind == "guarded"
        rows = self.execute(one.sql())
        if one.kind in ("min", "max"):
            value = rows[0][0]
            if value is not None and value not in one.rank_of_value:
                self.problems.append(f"{one.sql()} returned {value}")
                return
            rank = one.rank_of_value[value] if value is not None else 1 << 30
            for low, high in runs({p for p, r in one.ranks.items() if r < rank}):
                self.log("scan", "t", low=low, high=high, rows=[])
            return
        self.note(one, rows, one.limit is None or len(rows) < one.limit)

    def cursor_read(self, one):
        """Reads some rows of a cursor, does something else, and perhaps reads on."""
        name = f"c{self.statement}"
        order = f" ORDER BY {one.order}" if one.order else ""
        wanted = one.limit or self.random.randrange(1, 6)
        self.execute(f"DECLARE {name} CURSOR FOR SELECT p, l FROM t WHERE {one.where}{order}")
        at, statement = len(self.events), self.statement
        rows = self.execute(f"FETCH {wanted} FROM {name}")
        ended = len(rows) < wanted
        if self.random.random() < 0.4:
            if self.level == "serializable":
                self.write()
            more = self.random.randrange(1, 4)
            if not ended:
                rows += self.execute(f"FETCH {more} FROM {name}")
                ended = len(rows) < wanted + more
        if self.random.random() < 0.5:
            self.execute(f"CLOSE {name}")
        if one.order or ended:
            self.note(one, rows, ended, at, statement)
        else:
            # In no order that is known: only what came.
            self.events[at:at] = [{"op": "scan", "t": "t", "low": p, "high": p, "rows": [{"k": p, "list": l}], "stmt": statement} for p, l in rows]

    # --- writes ---

    def target(self):
        """A point that a predicate of this moment covers, or its neighbour."""
        if not self.hot:
            self.choose()
        if not self.hot or self.random.random() < 0.2:
            return self.random.randrange(len(self.table.points))
        return self.random.choice(self.hot).edge(self.random)

    def siblings(self, point):
        """The points of the same key."""
        first = point - point % VARIANTS
        return range(first, first + VARIANTS)

    def absent(self, points):
        if self.level == "serializable":
            self.log("scan", "t", low=points[0], high=points[-1], rows=[])

    def update(self):
        point, append = self.target(), self.fresh()
        rows = self.execute(f"UPDATE t SET l = l || {append}::bigint WHERE {self.table.key(point)} RETURNING p, l")
        for p, l in rows:
            self.log("update", "t", k=p, append=append, saw=l)
        if not rows:
            self.absent(self.siblings(point))

    def insert(self):
        point, append = self.target(), self.fresh()
        values = ", ".join(self.table.values(point).values())
        if self.execute(f"INSERT INTO t VALUES ({values}, '{{{append}}}') ON CONFLICT DO NOTHING RETURNING p"):
            self.log("insert", "t", k=point, append=append)

    def delete(self):
        point = self.target()
        rows = self.execute(f"DELETE FROM t WHERE {self.table.key(point)} RETURNING p, l")
        for p, l in rows:
            self.log("delete", "t", k=p, saw=l)
        if not rows:
            self.absent(self.siblings(point))

    def move(self):
        """A row gets other values, at times another key: into what is read now, or out of it."""
        append = self.fresh()
        new = self.target()
        old = self.target() if self.random.random() < 0.3 else new
        if self.random.random() < 0.3:
            new = self.random.choice(self.siblings(new))
        assign = ", ".join(f"{c} = {v}" for c, v in self.table.values(new).items())
        rows = self.execute(f"UPDATE t SET {assign}, prev = l, prev_p = p, l = '{{{append}}}' WHERE {self.table.key(old)} AND p <> {new} RETURNING prev_p, prev")
        for p, l in rows:
            self.log("delete", "t", k=p, saw=l)
            self.log("insert", "t", k=new, append=append)
        if not rows:
            for p in self.siblings(old):
                if p != new:
                    self.absent([p])

    def predicate_write(self):
        """UPDATE or DELETE of all that matches."""
        one = self.choose()
        if one.kind != "all":
            return self.update()
        append = self.fresh()
        if self.random.random() < 0.75:
            rows = self.execute(f"UPDATE t SET l = l || {append}::bigint WHERE {one.where} RETURNING p, l")
            self.note(one, [(p, l[:-1]) for p, l in rows], True)
            for p, l in rows:
                self.log("update", "t", k=p, append=append, saw=l)
        else:
            rows = self.execute(f"DELETE FROM t WHERE {one.where} RETURNING p, l")
            self.note(one, rows, True)
            for p, l in rows:
                self.log("delete", "t", k=p, saw=l)

    def write(self):
        draw = self.random.random()
        if draw < 0.2:
            self.update()
        elif draw < 0.45:
            self.insert()
        elif draw < 0.78:
            self.move()
        elif draw < 0.96 or self.level != "serializable":
            self.delete()
        else:
            self.predicate_write()

    # --- transactions ---

    def savepoint(self):
        start = len(self.events)
        self.execute("SAVEPOINT s")
        keep = self.random.random() < 0.5
        try:
            for _ in range(self.random.randrange(1, 3)):
                self.operation(nested=True)
        except psycopg2.Error as error:
            if error.pgcode != "23505" or self.connection.closed:
                raise
            keep = False
        if keep:
            self.execute("RELEASE SAVEPOINT s")
            return
        self.execute("ROLLBACK TO SAVEPOINT s")
        for event in self.events[start:]:
            if event["op"] in ("insert", "update", "delete"):
                event["undone"] = True

    def operation(self, nested=False):
        draw = self.random.random()
        if self.level in ("serializable read only", "repeatable read"):
            self.predicate_read()
        elif self.level == "guarded":
            if draw < 0.5 and self.table.guards:
                one = self.random.choice(self.table.guards)
                self.hot = [one] if one.ranks else []
                rows = self.execute(one.sql())
                self.note(one, rows, one.limit is None or len(rows) < one.limit)
            else:
                self.write()
        elif draw < 0.5:
            self.predicate_read()
        elif draw < 0.92 or nested:
            self.write()
        else:
            self.savepoint()

    def settings(self):
        plan = PLANS[self.random.choices(list(PLANS), [1, 5, 2, 2])[0]]
        more = NESTED if self.random.random() < 0.5 else ""
        if OURS:
            more += f"SET LOCAL mixedcc.range_rows = {self.random.choice([1, 2, 5, 50])}; SET LOCAL mixedcc.range_list_size = 8; "
        return plan + more

    def begin(self):
        names = list(self.load.levels)
        self.level = self.random.choices(names, [self.load.levels[name] for name in names])[0]
        self.next_transaction += 1
        self.events, self.statement = [], 0
        level = "READ COMMITTED" if self.level == "guarded" else LEVELS[self.level]
        self.has_guard = self.level == "guarded"
        self.execute(f"BEGIN ISOLATION LEVEL {level}; {self.settings()}")

    def transaction(self):
        status, begin = "aborted", time.monotonic_ns()
        try:
            self.begin()
            if self.level == "serializable" and self.random.random() < 0.4:
                self.repeated_read()
            for _ in range(self.random.randrange(1, self.load.length)):
                self.operation()
            if self.random.random() < 0.05:
                raise Undo
            status = "unknown"
            self.execute("COMMIT")
            status = "committed"
            self.committed += 1
        except Undo:
            self.rollback()
        except psycopg2.Error as error:
            self.failed(error)
            status = "aborted" if error.pgcode else status
        # What range_scan reads holds at commit, at every level.
        level = "serializable" if self.level == "guarded" else self.level
        line = {"id": self.next_transaction, "client": self.number, "status": status, "level": level,
                "begin": begin, "commit": time.monotonic_ns(), "events": self.events}
        self.file.write(json.dumps(line) + "\n")

    def failed(self, error):
        weak = self.level == "read committed" and not self.has_guard
        allowed = ALLOWED if weak else ALLOWED_ABOVE_READ_COMMITTED
        if error.pgcode not in allowed:
            self.problems.append(f"{self.level}: {error.pgcode} {error}")
        if self.connection.closed:
            raise error
        self.rollback()


def stir(connection, table, rng, until):
    """Scans often, and wants few ranges and many in turn: the ranges of the indexes are made again."""
    few = False
    query(connection, "SET default_transaction_isolation = 'serializable'; SET enable_seqscan = off; SET enable_bitmapscan = off; "
          "SET enable_material = off; SET enable_memoize = off; SET mixedcc.range_list_size = 8")
    while time.monotonic() < until:
        few = not few
        column = rng.choice(["id", "id", "a", "b", "d", "n"])
        x = literal(table.pick(column))
        query(connection, f"SET mixedcc.range_rows = {50 if few else 1}")
        try:
            query(connection, f"SELECT count(*) FROM generate_series(1, 70) g, LATERAL (SELECT p FROM t WHERE {column} >= {x} AND {column} <= {x} AND p > -g OFFSET 0) s")
        except psycopg2.Error as error:
            if error.pgcode not in ALLOWED_ABOVE_READ_COMMITTED:
                raise
        time.sleep(rng.random() * 0.02)


def write_ends(connection, table, directory):
    """The rows before all transactions, and those after them as a last transaction."""
    with open(f"{directory}/0.jsonl", "w", encoding="ascii") as file:
        file.write(json.dumps({"initial": "t", "keys": table.initial}) + "\n")
    rows = [{"k": p, "list": l} for p, l in query(connection, "SELECT p, l FROM t")]
    now = time.monotonic_ns()
    line = {"id": 999_999_999, "client": 0, "status": "committed", "level": "repeatable read", "begin": now, "commit": now + 1,
            "last": True, "events": [{"op": "scan", "t": "t", "stmt": 1, "rows": rows}]}
    with open(f"{directory}/last.jsonl", "w", encoding="ascii") as file:
        file.write(json.dumps(line) + "\n")
