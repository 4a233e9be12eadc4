"""Random queries for plans.py: what other programs generate and people rarely write. Rows in every
shape, columns that are none (the whole row, ctid, tableoid), above every kind of source. Every
query has one right result: LIMIT and OFFSET have an order without ties, and aggregates of several
rows an order too, or none that matters."""

import re

INT, TEXT, ROW = "int", "text", "row"


def native(sql, ours):
    """A query with native calls in it, or with the statements that they stand for: {get table
    column=value, ...}."""
    def replace(m):
        table, pairs = m[1], [part.split("=", 1) for part in m[2].split("; ")]
        if ours:
            return f"mixedcc.get(NULL::{table}, {', '.join(v for _, v in pairs)})"
        return f"(SELECT yy FROM {table} AS yy WHERE {' AND '.join(f'yy.{c} = {v}' for c, v in pairs)})"
    return re.sub(r"\{get (\w+) ([^{}]*)\}", replace, sql)


class Source:
    """Something in FROM: its text with the alias, the alias, columns (name, type), and columns that
    identify a row."""

    def __init__(self, text, alias, columns, key, table=None):
        self.text, self.alias, self.columns, self.key, self.table = text, alias, columns, key, table

    def of(self, kind):
        return [f"{self.alias}.{name}" for name, t in self.columns if t == kind]


class Queries:
    def __init__(self, r, tables, rows):
        """`tables`: name, columns (name, type), key. `rows`: how many each has."""
        self.r, self.tables, self.rows, self.n = r, tables, rows, 0

    def alias(self):
        self.n += 1
        return f"x{self.n}"

    def number(self):
        r = self.r
        return r.choice((r.randint(-2, 12), r.randint(0, self.rows), self.rows - r.randint(0, 5)))

    # Sources.

    def table(self):
        name, columns, key = self.r.choice(self.tables)
        alias = self.alias()
        return Source(f"{name} AS {alias}", alias, columns, key, name)

    def source(self, depth, outer=()):
        if depth <= 0 or self.r.random() < 0.35:
            return self.table()
        kind = self.r.choice((self.rows_of_table, self.rows_of_table, self.whole_rows, self.ordered, self.union, self.window, self.values, self.renamed))
        return kind(depth, outer)

    def around(self, query, columns, key):
        alias = self.alias()
        return Source(f"({query}) AS {alias}", alias, columns, key)

    def limit(self):
        r = self.r
        return r.choice(("", "", f" LIMIT {r.choice((0, 1, 2, 3, 7))}", f" LIMIT {r.randint(1, 4)} OFFSET {r.choice((0, 1, 5))}",
                         f" OFFSET {self.rows - r.randint(0, 4)}", " LIMIT 3", " LIMIT NULL"))

    def some(self, order):
        """Mostly some rows, not all."""
        return order if " LIMIT " in order or " OFFSET " in order or self.r.random() < 0.1 else order + f" LIMIT {self.r.randint(4, 40)}"

    def order(self, source, limit=True):
        way = self.r.choice(("", "", " DESC"))
        text = " ORDER BY " + ", ".join(f"{source.alias}.{k}{way}" for k in source.key)
        return text + (self.limit() if limit else "")

    def rows_of_table(self, depth, outer):
        """SELECT * with an order and a limit: what the bypass looks at."""
        t = self.table()
        where = self.r.choice(("", self.where(t, 0, outer), self.range(t), self.range(t)))
        lock = self.r.choice((" FOR UPDATE", " FOR KEY SHARE")) if self.r.random() < 0.08 and not outer else ""
        return self.around(f"SELECT * FROM {t.text}{where}{self.order(t)}{lock}", t.columns, t.key)

    def whole_rows(self, depth, outer):
        t = self.source(depth - 1, outer)
        columns = [(k, kind) for k, kind in t.columns if k in t.key]
        names = ", ".join(f"{t.alias}.{k}" for k, _ in columns)
        return self.around(f"SELECT {t.alias} AS r, {names} FROM {t.text}{self.where(t, depth - 1, outer)}{self.order(t)}", [("r", ROW), *columns], t.key)

    def ordered(self, depth, outer):
        t = self.source(depth - 1, outer)
        columns = [(f"e{i}", self.r.choice((INT, TEXT))) for i in range(self.r.randint(0, 7))]
        keys = [(k, kind) for k, kind in t.columns if k in t.key]
        parts = [f"{self.expression(kind, [t, *outer], depth - 1)} AS {name}" for name, kind in columns] + [f"{t.alias}.{k} AS {k}" for k, _ in keys]
        return self.around(f"SELECT {', '.join(parts)} FROM {t.text}{self.where(t, depth - 1, outer)}{self.order(t)}", columns + keys, t.key)

    def union(self, depth, outer):
        way = self.r.choice(("UNION ALL", "UNION", "EXCEPT", "INTERSECT"))
        parts = []
        for _ in range(2):
            t = self.table()
            first = t.of(INT)[0]
            parts.append(f"(SELECT {first} AS a, {self.expression(TEXT, [t], 0)} AS b FROM {t.text} WHERE {first} < {self.r.randint(1, 12)} ORDER BY {', '.join(f'{t.alias}.{k}' for k in t.key)})")
        inner = self.alias()
        return self.around(f"SELECT row_number() OVER (ORDER BY {inner}.a, {inner}.b COLLATE \"C\") AS no, {inner}.* FROM ({parts[0]} {way} {parts[1]}) AS {inner}",
                           [("no", INT), ("a", INT), ("b", TEXT)], ["no"])

    def window(self, depth, outer):
        t = self.table()
        over = f"OVER (ORDER BY {', '.join(f'{t.alias}.{k}' for k in t.key)})"
        what = self.r.choice((f"lag({t.alias}) {over} AS r", f"first_value({t.alias}) {over} AS r", f"lead({t.alias}, 2) {over} AS r"))
        keys = [(k, kind) for k, kind in t.columns if k in t.key]
        names = ", ".join(f"{t.alias}.{k}" for k, _ in keys)
        return self.around(f"SELECT {what}, {names}, row_number() {over} AS no FROM {t.text}{self.where(t, 0, outer)}{self.order(t)}", [("r", ROW), *keys, ("no", INT)], t.key)

    def values(self, depth, outer):
        alias = self.alias()
        rows = ", ".join(f"({i}, 'v{i % 3}')" for i in range(self.r.randint(1, 5)))
        return Source(f"(VALUES {rows}) AS {alias}(k, w)", alias, [("k", INT), ("w", TEXT)], ["k"])

    def renamed(self, depth, outer):
        """A table under other names of its columns."""
        t = self.table()
        alias = self.alias()
        columns = [(f"n{i}", kind) for i, (_, kind) in enumerate(t.columns)]
        key = [columns[[c for c, _ in t.columns].index(k)][0] for k in t.key]
        return Source(f"{t.table} AS {alias}({', '.join(c for c, _ in columns)})", alias, columns, key)

    # Expressions.

    def expression(self, kind, scope, depth):
        return {INT: self.integer, TEXT: self.text, ROW: self.row}[kind](scope, depth)

    def integer(self, scope, depth):
        r = self.r
        s = r.choice(scope)
        own = s.of(INT) or ["1"]
        c = r.choice(own)
        choices = [c, c, str(self.number()), f"{c} + 1", f"coalesce({c}, 0) - 2", f"CASE WHEN {self.condition(scope, 0)} THEN {c} ELSE 0 END", f"({s.alias} IS NULL)::int", f"num_nulls({s.alias}, {c})"]
        if s.table:
            choices += [f"({s.alias}.ctid IS NULL)::int", f"(({s.alias}).{c.split('.')[1]})"]
        if depth > 0:
            inner = self.source(depth - 1, tuple(scope))
            choices += [f"(SELECT count({inner.alias}) FROM {inner.text})", f"(SELECT max({r.choice(inner.of(INT) or ['1'])}) FROM {inner.text}{self.where(inner, 0, scope)})"]
        return r.choice(choices)

    def text(self, scope, depth):
        r = self.r
        s = r.choice(scope)
        own = s.of(TEXT)
        choices = [f"{s.alias}::text", f"row_to_json({s.alias})::text", f"to_jsonb({s.alias})::text", f"ROW({s.alias}, {r.choice(s.of(INT) or ['1'])})::text", f"({s.alias}).{r.choice(s.columns)[0]}::text"]
        choices += [r.choice(own), f"upper({r.choice(own)})", f"{r.choice(own)} || 'x'"] if own else []
        name, columns, key = r.choice(self.tables)
        if all(dict(columns)[k] == INT for k in key):
            c = r.choice(s.of(INT) or ["1"])
            call = "{get " + name + " " + "; ".join(f"{k}={r.choice((c, str(self.number())))}" for k in key) + "}"
            choices += [f"{call}::text", f"({call} IS NULL)::text", f"({call}).{r.choice(columns)[0]}::text"]
        if s.table:
            choices += [f"{s.alias}.tableoid::regclass::text", f"pg_typeof({s.alias}.xmin)::text", f"{s.alias}.*::text"]
        if depth > 0:
            inner = self.source(depth - 1, tuple(scope))
            choices += [f"(SELECT {self.json(inner)}::text FROM {inner.text}{self.where(inner, 0, scope)})"] * 2
        return r.choice(choices)

    def row(self, scope, depth):
        return self.r.choice(scope).alias

    def json(self, s):
        """An aggregate of a source's rows."""
        order = ", ".join(f"{s.alias}.{k}" for k in s.key)
        own = self.r.choice([f"{s.alias}.{name}" for name, _ in s.columns])
        return self.r.choice((f"json_agg({s.alias} ORDER BY {order})", f"array_agg({s.alias}::text ORDER BY {order})", f"jsonb_agg({own} ORDER BY {order})",
                              f"count({s.alias})", f"max({s.alias}::text COLLATE \"C\")", f"count(DISTINCT {own}::text)", f"string_agg({own}::text, ',' ORDER BY {order})"))

    def aggregate(self, s, ordered):
        """The same; `ordered`: the rows come in order."""
        if ordered and self.r.random() < 0.75:
            own = self.r.choice([f"{s.alias}.{name}" for name, _ in s.columns])
            return self.r.choice((f"json_agg({s.alias})", f"json_agg({s.alias})", f"array_agg({s.alias})::text", f"jsonb_agg({own})", f"json_agg(row_to_json({s.alias}))",
                                  f"count({s.alias}), min({own}::text COLLATE \"C\")", f"array_agg({s.alias}.*)::text", f"count({own}), max({own}::text COLLATE \"C\")", f"json_object_agg({s.alias}.{s.key[0]}, {s.alias})"))
        return self.json(s)

    def condition(self, scope, depth):
        r = self.r
        s = r.choice(scope)
        ints = s.of(INT)
        c = r.choice(ints) if ints else "1"
        choices = [f"{c} {r.choice(('=', '<', '>=', '<>'))} {self.number()}", f"{c} BETWEEN {self.number()} AND {self.number()}", f"{c} IN ({self.number()}, {self.number()}, 7)",
                   f"{c} = ANY (ARRAY[{self.number()}, NULL, {self.number()}])", f"{s.alias} IS NOT NULL", f"NOT ({s.alias} IS NULL)", f"{s.alias}::text <> ''"]
        if len(ints) > 1:
            choices += [f"({ints[0]}, {ints[1]}) {r.choice(('<', '>', '>=', '<='))} ({self.number()}, {self.number()})", f"({ints[1]}, {ints[0]}) IS DISTINCT FROM (1, NULL)"]
        if s.table:
            choices += [f"{s.alias}.tableoid = '{s.table}'::regclass", f"{s.alias}.ctid IS NOT NULL", f"{s.alias} IS DISTINCT FROM NULL"]
        if depth > 0:
            inner = self.table()
            i = r.choice(inner.of(INT))
            choices += [f"EXISTS (SELECT 1 FROM {inner.text} WHERE {i} = {c})", f"{c} IN (SELECT {i} FROM {inner.text}{self.order(inner)})",
                        f"{c} >= ALL (SELECT {i} FROM {inner.text} WHERE {i} < {r.randint(0, 5)})"]
        return r.choice(choices)

    def range(self, t):
        """A condition on the first column of the key, or nothing else than the key."""
        c = f"{t.alias}.{t.key[0]}"
        return " WHERE " + self.r.choice((f"{c} >= {self.number()}", f"{c} < {self.number()}", f"{c} BETWEEN 3 AND {self.r.randint(2, 9)}", f"{c} = {self.number()}"))

    def where(self, s, depth, outer=()):
        scope = [s, *outer] if self.r.random() < 0.3 else [s]
        parts = [self.condition(scope, depth) for _ in range(self.r.choice((0, 1, 1, 1, 2)))]
        return " WHERE " + self.r.choice((" AND ", " AND ", " OR ")).join(parts) if parts else ""

    # Statements.

    def select(self):
        return self.r.choice((self.aggregated, self.aggregated, self.aggregated, self.plain, self.plain, self.plain, self.plain, self.listed, self.joined, self.lateral, self.grouped, self.with_queries, self.by_key))()

    def aggregated(self):
        depth = self.r.choice((1, 1, 2))
        t = self.source(depth) if self.r.random() < 0.3 else self.rows_of_table(1, ())
        ordered = " ORDER BY " in t.text and not t.table
        parts = ", ".join(self.aggregate(t, ordered) for _ in range(self.r.choice((1, 1, 2))))
        return f"SELECT {parts} FROM {t.text}"

    def listed(self):
        t = self.source(2)
        parts = [self.expression(self.r.choice((INT, TEXT, TEXT, ROW)), [t], 1) for _ in range(self.r.randint(1, 3))]
        return f"SELECT {', '.join(parts)} FROM {t.text}{self.where(t, 1)}{self.some(self.order(t))}"

    def plain(self):
        """What the bypass takes, and whole rows and system columns beside it."""
        t = self.table()
        names = [f"{t.alias}.{name}" for name, _ in t.columns]
        if self.r.random() < 0.4:
            parts = [self.r.choice(("count(*)", f"max({self.r.choice(t.of(INT))})", f"sum({self.r.choice(t.of(INT))})", f"count({self.r.choice(names)})", f"count({t.alias})"))
                     for _ in range(self.r.randint(1, 3))]
            inner = f"(SELECT * FROM {t.text}{self.range(t)}{self.order(t)}) AS {t.alias}" if self.r.random() < 0.6 else t.text + self.range(t)
            return f"SELECT {', '.join(parts)} FROM {inner}"
        parts = self.r.sample(names, self.r.randint(1, len(names))) + self.r.choice(([], [], [], [t.alias], [f"{t.alias}.tableoid::regclass"]))
        return f"SELECT {', '.join(parts)} FROM {t.text}{self.range(t)}{self.some(self.order(t))}"

    def by_key(self):
        t = self.table()
        parts = [self.expression(self.r.choice((INT, TEXT, ROW)), [t], 0) for _ in range(self.r.randint(1, 3))] + self.r.choice(([], [f"{t.alias}.*"]))
        where = " AND ".join(f"{t.alias}.{k} = {self.number() if kind == INT else repr('k1')}" for k, kind in t.columns if k in t.key)
        where += self.r.choice(("", f" AND {t.of(INT)[-1]} >= 3"))
        if self.r.random() < 0.5:
            parts = self.r.sample([f"{t.alias}.{name}" for name, _ in t.columns], self.r.randint(1, len(t.columns)))
        return f"SELECT {', '.join(parts)} FROM {t.text} WHERE {where}"

    def joined(self):
        a, b = self.source(1), self.table()
        way = self.r.choice(("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
        on = f"{self.r.choice(a.of(INT) or ['1'])} = {self.r.choice(b.of(INT))}"
        if way != "FULL JOIN" and self.r.random() < 0.3:
            on += f" AND {self.condition([b], 0)}"
        both = f"{a.text} {way} {b.text} ON {on}"
        parts = [self.expression(self.r.choice((INT, TEXT)), [a, b], 0) for _ in range(2)]
        return f"SELECT count(*), max(v::text COLLATE \"C\"), min(w::text COLLATE \"C\"), count(rb) FROM (SELECT {parts[0]} AS v, {parts[1]} AS w, {b.alias} AS rb FROM {both}) AS j"

    def lateral(self):
        a = self.table()
        i = self.rows_of_table(1, (a,)) if self.r.random() < 0.7 else self.source(1, (a,))
        first = a.of(INT)[0]
        return (f"SELECT {first}, l.* FROM {a.text}, LATERAL (SELECT {self.json(i)} AS v, {self.expression(TEXT, [a], 0)} AS w FROM {i.text}{self.where(i, 0, (a,))}) AS l "
                f"WHERE {first} BETWEEN 3 AND {self.r.randint(2, 8)} ORDER BY {', '.join(f'{a.alias}.{k}' for k in a.key)}")

    def grouped(self):
        t = self.source(1)
        c = self.r.choice(t.of(INT) or ["1 + 0"])
        return f"SELECT {c} % 5 AS g, {self.json(t)}, {self.json(t)} FROM {t.text}{self.where(t, 0)} GROUP BY 1 {self.r.choice(('', f'HAVING count({t.alias}) > 3 '))}ORDER BY 1"

    def with_queries(self):
        t = self.source(1)
        name = self.alias()
        how = self.r.choice(("", "MATERIALIZED ", "NOT MATERIALIZED "))
        body = f"SELECT * FROM {t.text}{self.where(t, 0)}{self.order(t)}"
        s = Source(name, name, t.columns, t.key)
        return f"WITH {name} AS {how}({body}) SELECT {self.json(s)}, count({name}), count(*) FROM {name}"

    def write(self):
        """INSERT, UPDATE, DELETE or MERGE; what it returns has an order."""
        r = self.r
        kind = r.choice(("insert", "update", "update", "delete", "merge"))
        name, columns, key = r.choice(self.tables)
        alias = self.alias()
        t = Source(name, alias, columns, key, name)
        k = next(c for c in key if dict(columns)[c] == INT)
        returned = r.choice((alias, f"{alias}.*", f"row_to_json({alias})", f"{alias}, {alias}.{k}", f"{alias}.tableoid::regclass, ({alias}).{k}", f"{alias} IS NULL, {alias}::text"))
        ints = [c for c, kind in columns if kind == INT and c not in key]
        where = r.choice((f"{alias}.{k} = {self.number()}", f"{alias}.{k} BETWEEN 5 AND {r.randint(4, 12)}", f"{alias}.{k} IN (SELECT {k} FROM {name} ORDER BY {', '.join(key)} LIMIT 3)",
                          f"{alias} IS NOT NULL AND {alias}.{k} < 9"))
        simple = r.random() < 0.4
        if simple:
            # What the bypass takes, but for what it returns.
            where = " AND ".join(f"{alias}.{c} = {r.randint(1, 9)}" if dict(columns)[c] == INT else f"{alias}.{c} = 'k1'" for c in key)
            returned = r.choice((returned, f"{alias}.{k}", ", ".join(f"{alias}.{c}" for c, _ in columns)))
        if kind == "insert":
            source = self.rows_of_table(1, ()) if r.random() < 0.3 and not simple else None
            if source is not None and ints and source.of(INT):
                body = f"INSERT INTO {name} AS {alias} ({', '.join(key)}) SELECT DISTINCT {', '.join(f'90000 + {source.of(INT)[0]}' if dict(columns)[c] == INT else repr('new') for c in key)} FROM {source.text}"
            else:
                body = f"INSERT INTO {name} AS {alias} ({', '.join(key)}) VALUES ({', '.join(str(r.choice((95000, 3))) if dict(columns)[c] == INT else repr('k1') for c in key)})"
            body += r.choice(("", " ON CONFLICT DO NOTHING"))
        elif kind == "update":
            sets = r.choice([f"{c} = {self.integer([t], 1)}" if not simple else f"{c} = {alias}.{c} + 1" for c in ints] or [f"{k} = {k} + 50000"])
            body = f"UPDATE {name} AS {alias} SET {sets} WHERE {where}"
        elif kind == "delete":
            body = f"DELETE FROM {name} AS {alias} WHERE {where}"
        else:
            s = self.rows_of_table(1, ())
            on = f"{alias}.{k} = {s.of(INT)[0]}"
            sets = r.choice([f"{c} = {self.integer([s], 0)}" for c in ints] or [f"{k} = {alias}.{k} + 50000"])
            return f"MERGE INTO {name} AS {alias} USING {s.text} ON {on} WHEN MATCHED AND {alias}.{k} % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET {sets}"
        if simple and r.random() < 0.3:
            return body
        if simple or r.random() < 0.5:
            return f"{body} RETURNING {returned}"
        return f"WITH w AS ({body} RETURNING {alias} AS r, {alias}.{k} AS k) SELECT json_agg(w ORDER BY k, r::text COLLATE \"C\"), count(w) FROM w"
