"""Clients that run random transactions and write down what they saw.

The rows are lists: a write appends an id of its own, a read sees the whole list,
so the order of all writes of a row can be told from the reads. The format is
that of the history checker, see its README.
"""

import collections
import json
import random
import time

import psycopg2

from lib.tables import WAYS
from lib.common import OURS, TERMINATED, check, connect, is_lost, query

LEVELS = {
    "serializable": "SERIALIZABLE",
    "serializable read only": "SERIALIZABLE READ ONLY",
    "repeatable read": "REPEATABLE READ",
    "read committed": "READ COMMITTED",
}
# A session that is terminated, or whose server dies, in COMMIT does not learn its outcome.
# What may end a transaction of any level that writes, and what only some may meet.
ALLOWED = {"40P01", "23505"}
ALLOWED_ABOVE_READ_COMMITTED = ALLOWED | {"40001"}
READ_ONLY = "serializable read only"
# A client goes on until it has committed so many transactions, and one of each level and with each
# kind of operation; but not for longer than so many seconds beyond its time. All clients together
# must have committed so many of each level and kind.
COMMITS_OF_A_CLIENT, LATEST, COMMITS_OF_A_KIND = 20, 20.0, 5


def allowed_errors(level, mixed=False):
    """SQLSTATEs with which a transaction may end. SERIALIZABLE READ ONLY reads a state of the
    serial order, without locks and without validation: nothing ends it, if heap takes no part."""
    if level == READ_ONLY and OURS and not mixed:
        return set()
    return ALLOWED if level == "read committed" else ALLOWED_ABOVE_READ_COMMITTED


def check_load(name, load, done, kinds):
    """Has the load been what it was meant to be? `done`: of each client, what it has counted."""
    total = sum(done, collections.Counter())
    few = {kind: total[kind] for kind in (*load.levels, *kinds) if total[kind] < COMMITS_OF_A_KIND}
    idle = [n for n, one in enumerate(done) if one["commits"] < COMMITS_OF_A_CLIENT]
    check(f"{name}: each client, each level and each kind of operation commits", not few and not idle, (few, idle, dict(total)))
    check(f"{name}: not nearly all transactions fail", total["commits"] * 5 >= total["transactions"], dict(total))


def reset_ways(connection):
    """From now on statements are counted by how they run."""
    if OURS:
        query(connection, "SELECT mixedcc.reset_bypass()")


def check_ways(name, connection):
    """Have statements of each kind been run by the bypass, and others not for its setting
    (WAYS)?"""
    if OURS:
        taken = dict(query(connection, "SELECT coalesce(statement, reason), statements FROM mixedcc.bypass"))
        check(f"{name}: statements run by the bypass, and others not for its setting",
              all(taken[kind] > 10 for kind in ("SELECT", "UPDATE", "DELETE", "setting")), taken)


class Load:
    """What a client does: tables with their weights, keys, levels with their weights."""

    # Do all operations that can go by mixedcc's interface for C do so? (tests/process/native/probe)
    interface = False

    # Another one gives other transactions.
    seed = 0

    # The share of the transactions that are prepared, and finished after that.
    prepares = 0.0

    # Is table b one of heap? SERIALIZABLE transactions use one of the tables, or both, and those of
    # other levels, which heap's isolation does not see, use a.
    mixed = False

    # Do SERIALIZABLE transactions run at REPEATABLE READ, by mixedcc.serializable_at?
    at_repeatable_read = False

    # May additions of SERIALIZABLE transactions wait, by mixedcc.defer_additions?
    defers = False

    def __init__(self, read_tables, write_tables, keys=12, levels=None, length=6, killed=False):
        self.read_tables = read_tables
        self.write_tables = write_tables
        self.keys = keys
        self.levels = levels or {"serializable": 9, "serializable read only": 1}
        self.length = length
        # Sessions are terminated now and then.
        self.killed = killed


class Undo(Exception):
    """The transaction is rolled back on purpose."""


class Client:
    # The kinds of operations that it makes, as its history names them.
    kinds = ("read", "scan", "insert", "update", "delete")
    # Of a transaction that is prepared: what the client is about to do; and what became of it, if
    # that was found out after an error.
    step = settled = None

    def __init__(self, database, number, load, path):
        self.database = database
        self.number = number
        self.load = load
        self.connect()
        self.file = open(path, "w", encoding="ascii")
        self.random = random.Random(number * 7919 + 104729 * load.seed)
        self.next_append = number * 1_000_000
        self.next_transaction = number * 1_000_000
        self.problems = []
        self.done = collections.Counter()
        self.events = []
        self.statement = 0

    def connect(self):
        # Sessions of all three ways meet each other.
        way = list(WAYS.values())[self.number % len(WAYS)] if OURS else ""
        settings = f"-c deadlock_timeout=20ms -c lock_timeout=20s -c statement_timeout=30s {way}"
        if self.load.mixed:
            settings += " -c mixedcc.mixed_serializable=serializable -c enable_seqscan=off"
        if self.load.at_repeatable_read:
            settings += " -c mixedcc.serializable_at=repeatable\\ read"
        if self.load.defers:
            settings += " -c mixedcc.defer_additions=on"
        self.connection = connect(self.database, options=settings)
        self.cursor = self.connection.cursor()

    def execute(self, sql, *parameters):
        self.statement += 1
        self.cursor.execute(sql, parameters or None)
        return self.cursor.fetchall() if self.cursor.description else []

    def log(self, op, table, **what):
        if op in ("read", "scan"):
            what["stmt"] = self.statement
        else:
            what["at"] = time.monotonic_ns()
        self.events.append({"op": op, "t": table, **what})

    def fresh(self):
        self.next_append += 1
        return self.next_append

    def key(self):
        """Some keys are hotter than others."""
        return min(self.random.randrange(self.load.keys), self.random.randrange(self.load.keys))

    # --- operations ---

    def table_from(self, tables):
        """One of the tables that the transaction uses."""
        return self.random.choice([t for t in tables if t in self.tables] or sorted(self.tables))

    def read(self):
        table, key = self.table_from(self.load.read_tables), self.key()
        if self.native(table):
            seen = self.get(table, key)
            rows = [] if seen is None else [(seen,)]
        else:
            rows = self.execute(f"SELECT l FROM {table} WHERE k = %s", key)
        self.log("read", table, k=key, **({"list": rows[0][0]} if rows else {"absent": True}))

    def native(self, table):
        """Some operations go by native access. Its changes are made of what a read before has seen,
        which READ COMMITTED does not protect."""
        if self.load.mixed and table == "b":
            return False
        return self.load.interface or OURS and self.random.random() < 0.3

    def get(self, table, key):
        if self.load.interface:
            return self.execute("SELECT probe_get(%s::regclass, %s)", table, key)[0][0]
        return self.execute(f"SELECT (mixedcc.get(NULL::{table}, %s)).l", key)[0][0]

    def native_update(self, table, key, append):
        seen = self.get(table, key)
        if seen is None:
            return self.log("read", table, k=key, absent=True)
        self.log("read", table, k=key, list=seen)
        new = seen + [append]
        done = self.execute(f"SELECT mixedcc.set(NULL::{table}, 'l', %s::bigint[], %s)", new, key)[0][0]
        assert done, "a row that was read is gone"
        self.log("update", table, k=key, append=append, saw=new)

    def native_delete(self, table, key):
        seen = self.get(table, key)
        remove = f"probe_remove('{table}'" if self.load.interface else f"mixedcc.remove(NULL::{table}"
        done = self.execute(f"SELECT {remove}, %s)", key)[0][0]
        assert done == (seen is not None), "what was read has changed"
        if done:
            self.log("read", table, k=key, list=seen)
            self.log("delete", table, k=key, saw=seen)
        else:
            self.log("read", table, k=key, absent=True)

    def lock(self):
        table, key = self.table_from(self.load.read_tables), self.key()
        mode = self.random.choice(["UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"])
        rows = self.execute(f"SELECT l FROM {table} WHERE k = %s FOR {mode}", key)
        if rows:
            self.log("read", table, k=key, list=rows[0][0], locked=True)

    def scan(self):
        table, low = self.table_from(self.load.read_tables), self.key()
        high = low + self.random.randrange(4)
        if self.load.interface:
            backward = self.random.random() < 0.5
            text = self.execute("SELECT probe_scan(%s::regclass, %s, %s, false, %s)", table, low, high, backward)[0][0]
            seen = [line.split(" ") for line in text.split("\n")[:-1]]
            rows = [{"k": int(k), "list": json.loads(l.replace("{", "[").replace("}", "]"))} for k, l in seen]
            return self.log("scan", table, low=low, high=high, rows=rows)
        rows = self.execute(f"SELECT k, l FROM {table} WHERE k BETWEEN %s AND %s", low, high)
        self.log("scan", table, low=low, high=high, rows=[{"k": k, "list": seen} for k, seen in rows])

    def scan_all(self):
        table = self.table_from(self.load.read_tables)
        rows = self.execute(f"SELECT k, l FROM {table}")
        self.log("scan", table, rows=[{"k": k, "list": seen} for k, seen in rows])

    def update(self):
        table, key, append = self.table_from(self.load.write_tables), self.key(), self.fresh()
        if self.load.interface:
            seen = self.execute("SELECT probe_append(%s::regclass, %s, %s)", table, key, append)[0][0]
            if seen is None:
                return self.absent(table, key)
            return self.log("update", table, k=key, append=append, saw=seen)
        if self.load.defers and self.random.random() < 0.6:
            self.execute(f"UPDATE {table} SET l = l || %s::bigint WHERE k = %s", append, key)
            if self.cursor.rowcount:
                return self.log("update", table, k=key, append=append)
            return self.absent(table, key)
        if self.level != "read committed" and self.native(table):
            return self.native_update(table, key, append)
        rows = self.execute(f"UPDATE {table} SET l = l || %s::bigint WHERE k = %s RETURNING l", append, key)
        if rows:
            self.log("update", table, k=key, append=append, saw=rows[0][0])
        else:
            self.absent(table, key)

    def absent(self, table, key):
        # At READ COMMITTED the row may have come after the snapshot, or gone during a wait.
        if self.level != "read committed":
            self.log("read", table, k=key, absent=True)

    def insert_key(self):
        # At REPEATABLE READ an INSERT may replace a row that was deleted after the snapshot,
        # which then sees both, on heap too: such transactions insert rows that never were.
        return 1_000_000_000 + self.next_append if self.level == "repeatable read" else self.key()

    def insert(self):
        table, append = self.table_from(self.load.write_tables), self.fresh()
        key = self.insert_key()
        if self.load.interface:
            self.execute("SELECT probe_insert(%s::regclass, %s, ARRAY[%s::bigint])", table, key, append)
            return self.log("insert", table, k=key, append=append)
        rows = self.execute(f"INSERT INTO {table} VALUES (%s, ARRAY[%s::bigint]) ON CONFLICT DO NOTHING RETURNING k", key, append)
        if rows:
            self.log("insert", table, k=key, append=append)

    def upsert(self):
        table, append = self.table_from(self.load.write_tables), self.fresh()
        key = self.insert_key()
        rows = self.execute(
            f"INSERT INTO {table} AS t VALUES (%s, ARRAY[%s::bigint]) ON CONFLICT (k) DO UPDATE SET l = t.l || %s::bigint RETURNING l",
            key, append, append)
        if len(rows[0][0]) == 1:
            self.log("insert", table, k=key, append=append)
        else:
            self.log("update", table, k=key, append=append, saw=rows[0][0])

    def delete(self):
        table, key = self.table_from(self.load.write_tables), self.key()
        if self.level == "serializable" and self.native(table):
            return self.native_delete(table, key)
        rows = self.execute(f"DELETE FROM {table} WHERE k = %s RETURNING l", key)
        if rows:
            self.log("delete", table, k=key, saw=rows[0][0])
        else:
            self.absent(table, key)

    def savepoint(self):
        """Operations inside a savepoint, rolled back or kept."""
        start = len(self.events)
        self.execute("SAVEPOINT s")
        for _ in range(self.random.randrange(1, 3)):
            self.operation(nested=True)
        if self.random.random() < 0.5:
            self.execute("ROLLBACK TO SAVEPOINT s")
            for event in self.events[start:]:
                if event["op"] in ("insert", "update", "delete"):
                    event["undone"] = True
        else:
            self.execute("RELEASE SAVEPOINT s")

    def operation(self, nested=False):
        draw = self.random.random()
        if self.level == READ_ONLY:
            [self.read, self.scan, self.scan_all][min(int(draw * 4), 2)]()
        elif draw < 0.34:
            self.read()
        elif draw < 0.44:
            self.scan()
        elif draw < 0.47:
            self.scan_all()
        elif draw < 0.50:
            self.lock()
        elif draw < 0.72:
            self.update()
        elif draw < 0.80:
            self.upsert()
        elif draw < 0.87:
            self.insert()
        elif draw < 0.93 or nested:
            self.delete()
        else:
            self.savepoint()

    # --- transactions ---

    def choose_tables(self):
        """The tables that the transaction uses."""
        both = {*self.load.read_tables, *self.load.write_tables}
        if not self.load.mixed:
            return both
        if not self.level.startswith("serializable"):
            return {"a"}
        return self.random.choices([both, {"a"}, {"b"}], [3, 1, 1])[0]

    def transaction(self):
        names = list(self.load.levels)
        self.level = self.random.choices(names, [self.load.levels[name] for name in names])[0]
        self.next_transaction += 1
        self.events, self.statement = [], 0
        self.tables = self.choose_tables()
        self.done["transactions"] += 1
        self.step = self.settled = None
        begin, ending = time.monotonic_ns(), None
        status = "aborted"
        try:
            level = LEVELS[self.level]
            if self.load.at_repeatable_read:
                level = level.replace("SERIALIZABLE", "REPEATABLE READ")
            self.execute("BEGIN ISOLATION LEVEL " + level)
            for _ in range(self.random.randrange(1, self.load.length)):
                self.operation()
            if self.random.random() < 0.05:
                raise Undo
            status, ending = "unknown", time.monotonic_ns()
            self.commit()
            status = "committed"
            self.count()
        except Undo:
            status = "aborted"
            self.rollback()
        except psycopg2.Error as error:
            self.failed(error)
            if self.settled:
                status = self.settled
            elif error.pgcode and not (status == "unknown" and error.pgcode in TERMINATED):
                status = "aborted"
        line = {"id": self.next_transaction, "client": self.number, "status": status, "level": self.level,
                "begin": begin, "commit": time.monotonic_ns(), **({"ending": ending} if ending else {}), "events": self.events}
        self.file.write(json.dumps(line) + "\n")

    def commit(self):
        if self.level == READ_ONLY or self.random.random() >= self.load.prepares:
            self.execute("COMMIT")
            return
        name = self.gid()
        undo = self.random.random() < 0.2
        self.step = "PREPARE"
        self.execute(f"PREPARE TRANSACTION '{name}'")
        self.step = "ROLLBACK" if undo else "COMMIT"
        time.sleep(self.random.random() * 0.01)
        try:
            self.execute(f"{self.step} PREPARED '{name}'")
        except psycopg2.Error as error:
            if not (self.load.killed and is_lost(self.connection, error)):
                self.problems.append(f"what was prepared could not be finished: {error}")
            raise
        self.step = None
        self.done["undone" if undo else "prepared"] += 1
        if undo:
            raise Undo

    def gid(self):
        """The name of what it prepares."""
        return f"{self.database}-{self.number}"

    def count(self):
        """The transaction has committed."""
        self.done["commits"] += 1
        self.done[self.level] += 1
        if len({event["t"] for event in self.events}) > 1:
            self.done[f"both tables, {self.level}"] += 1
        self.done.update({event["op"] for event in self.events if not event.get("undone")})

    def failed(self, error):
        self.done[error.pgcode] += 1
        if self.load.killed and self.connection.closed:
            self.connect()
            return
        # A writer that meets the guard of a prepared transaction fails at any level.
        guarded = error.pgcode == "40001" and self.load.prepares > 0
        if error.pgcode not in allowed_errors(self.level, self.load.mixed) and not guarded:
            self.problems.append(f"{self.level}: {error.pgcode} {error}")
        if self.connection.closed:
            raise error
        self.rollback()

    def rollback(self):
        try:
            self.cursor.execute("ROLLBACK")
        except psycopg2.Error as error:
            if not (self.load.killed and is_lost(self.connection, error)):
                raise
            self.connect()

    def enough(self):
        return self.done["commits"] >= COMMITS_OF_A_CLIENT and all(self.done[kind] for kind in (*self.load.levels, *self.kinds))

    def run(self, until):
        while len(self.problems) < 5:
            now = time.monotonic()
            if now > until + LATEST or now > until and self.enough():
                break
            self.transaction()
        self.file.close()
        self.connection.close()


def write_last(connection, tables, path):
    """The final state, as a transaction after all others."""
    events = []
    with connection.cursor() as cursor:
        for number, table in enumerate(tables):
            cursor.execute(f"SELECT k, l FROM {table}")
            rows = [{"k": k, "list": seen} for k, seen in cursor.fetchall()]
            events.append({"op": "scan", "t": table, "stmt": number, "rows": rows})
    now = time.monotonic_ns()
    line = {"id": 999_999_999, "client": 0, "status": "committed", "level": "repeatable read",
            "begin": now, "commit": now + 1, "last": True, "events": events}
    with open(path, "w", encoding="ascii") as file:
        file.write(json.dumps(line) + "\n")
