"""Clients that read by the predicates of a random table (see lib/predicates.py) and write into what
they cover."""

import json
import random
import time

import psycopg2

from lib.common import OURS, query
from lib.loads import ALLOWED_ABOVE_READ_COMMITTED, LEVELS, Client, Undo, allowed_errors
from lib.predicates import VARIANTS, literal, runs

EPOCH = 0.15  # seconds that the same few predicates stay hot


def plan(seq, index, bitmap, sort, primary=False):
    """Settings that leave the planner these kinds of scans. `primary`: of the primary index, in
    place of nbtree's."""
    mine = f"SET LOCAL mixedcc.enable_primary_scan = {'on' if primary else 'off'}; " if OURS else ""
    on = {"seqscan": seq, "indexscan": index, "indexonlyscan": index, "bitmapscan": bitmap, "sort": sort}
    return mine + "".join(f"SET LOCAL enable_{name} = {'on' if flag else 'off'}; " for name, flag in on.items())


PLANS = {
    "any": plan(True, True, True, True, True),
    "index": plan(False, True, False, False),
    "primary": plan(False, True, False, False, True),
    "bitmap": plan(False, False, True, True),
    "sequential": plan(True, False, False, True),
}
NESTED = "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_memoize = off; "


class Reader(Client):
    """A client of a Table. `seed`: the same for all clients of a round."""

    kinds = ("scan", "insert", "update", "delete")

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
        """Reads by one predicate twice, perhaps by different plans: a phantom in between is
        seen."""
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
        """A row gets other values, at times another key: into the rows that are read now, or out of
        them."""
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
        plan = PLANS[self.random.choices(list(PLANS), [1, 4, 4, 2, 2])[0]]
        more = NESTED if self.random.random() < 0.5 else ""
        if OURS:
            more += f"SET LOCAL mixedcc.range_rows = {50 if self.table.coarse else self.random.choice([1, 2, 5, 50])}; SET LOCAL mixedcc.range_list_size = 8; "
        return plan + more

    def begin(self):
        names = list(self.load.levels)
        self.level = self.random.choices(names, [self.load.levels[name] for name in names])[0]
        self.next_transaction += 1
        self.events, self.statement = [], 0
        self.done["transactions"] += 1
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
            self.count()
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
        self.done[error.pgcode] += 1
        # What range_scan has read is validated at every level.
        allowed = ALLOWED_ABOVE_READ_COMMITTED if self.has_guard else allowed_errors(self.level)
        if error.pgcode not in allowed:
            self.problems.append(f"{self.level}: {error.pgcode} {error}")
        if self.connection.closed:
            raise error
        self.rollback()


def stir(connection, table, rng, until):
    """Scans often, and wants few ranges and many in turn: the ranges of the indexes are made
    again."""
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
        time.sleep(rng.random() * (0.15 if table.waits else 0.02))


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
