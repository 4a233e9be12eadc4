#!/usr/bin/python3
"""Statistics of partitions, exactly: every failure and every sleep is counted once, at its
partition, by its reason; what is made of samples is right when every transaction is one."""

import threading
import time

import psycopg2

from lib.common import OURS, check, connect, drop_database, equal, main, make_database, ok, query, reload, value, wait_until

DATABASE = "process_statistics"
SERIALIZABLE = "-c default_transaction_isolation=serializable -c enable_seqscan=off -c enable_bitmapscan=off -c deadlock_timeout=10s"
SLEEP = 0.2  # seconds that a sleep takes at least, where its length is looked at
CONFLICT, DEADLOCK, TIMEOUT, CANCEL = "40001", "40P01", "55P03", "57014"


def configure(**settings):
    for name, text in settings.items():
        query(BOSS, f"ALTER SYSTEM SET mixedcc.{name} = '{text}'")
    query(BOSS, "SELECT pg_reload_conf()")


def reset():
    for (name,) in query(BOSS, "SELECT name FROM pg_settings WHERE name LIKE 'mixedcc.%' AND context = 'sighup'"):
        query(BOSS, f"ALTER SYSTEM RESET {name}")
    query(BOSS, "SELECT pg_reload_conf()")


def table(protocol, policy="wait", partitions=1, columns="id int PRIMARY KEY, v int"):
    for s in SESSIONS:
        s.settle()
    query(BOSS, "DROP TABLE IF EXISTS t")
    query(BOSS, f"""CREATE TABLE t ({columns}) USING mixedcc WITH (mixedcc.protocol = '{protocol}',
        mixedcc.waiting_policy = '{policy}', mixedcc.partitions = {partitions})""")
    query(BOSS, "INSERT INTO t SELECT i, 0 FROM generate_series(1, 40) i")
    query(BOSS, "SELECT mixedcc.reset_stats('t')")


def of(name, partition=0):
    """A column of one of the two views, of a partition of the table."""
    return query(BOSS, f"""SELECT {name} FROM mixedcc.partitions p JOIN mixedcc.partition_stats s USING ("table", partition)
        WHERE "table" = 't'::regclass AND partition = {partition}""")[0][0]


def counts(partition=0):
    """Failures and sleeps by reason; both views must agree on them."""
    aborts, waits = of("p.aborts", partition), of("p.waits", partition)
    both = (of("s.aborts", partition), of("s.waits", partition))
    if both != (sum(aborts.values()), sum(waits.values())):
        raise RuntimeError(f"{both} in partition_stats, {aborts} and {waits} in partitions")
    return aborts, waits


class Session:
    def __init__(self):
        self.connection = connect(DATABASE, options=SERIALIZABLE)
        self.thread, self.outcome = None, None
        for _ in range(40):  # from the first transaction on that follows a sampled one, all are sampled
            self.settle()

    def settle(self):
        """Ends whatever goes on; its next transaction follows one that has not failed."""
        self.run("ROLLBACK")
        self.run("SELECT v FROM other WHERE id = 1")

    def run(self, *statements):
        """The SQLSTATE of the statement that failed; None: none did."""
        try:
            for s in statements:
                query(self.connection, s)
            return None
        except psycopg2.Error as e:
            return e.pgcode

    def begins(self, *statements, level="SERIALIZABLE"):
        must(None, self.run(f"BEGIN ISOLATION LEVEL {level}", *statements))

    def sleeps(self, *statements):
        """Runs statements that wait for a lock; returns when they do."""

        def run():
            self.outcome = self.run(*statements)

        self.thread = threading.Thread(target=run)
        self.thread.start()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        if not wait_until(lambda: value(BOSS, waits, (self.connection.info.backend_pid,)) == 1, 10):
            raise RuntimeError(f"{statements} did not wait: {self.outcome}")

    def wakes(self):
        """What became of the statements that waited."""
        self.thread.join(20)
        return self.outcome


def must(wanted, got):
    if got != wanted:
        raise RuntimeError(f"{got}, not {wanted}")


def update(key):
    return f"UPDATE t SET v = v + 1 WHERE id = {key}"


def read(key):
    return f"SELECT v FROM t WHERE id = {key}"


def fails(session, reason, statements, code, waits=None):
    """The last of the statements fails, with this reason counted once and nothing else."""
    must(None, session.run(*statements[:-1]))
    must(code, session.run(statements[-1]))
    equal(f"statistics: {reason} is counted once", counts(), ({reason: 1}, waits or {}))
    commits = of("commits")
    must(None, session.run("ROLLBACK"))
    equal(f"statistics: and not again at the rollback, {reason}", (counts()[0], of("commits")), ({reason: 1}, commits))


def test_optimistic_failures():
    table("occ")
    A.begins(read(1))
    must(None, B.run(update(1)))
    fails(A, "read_changed", (update(2), "COMMIT"), CONFLICT)
    table("occ")
    A.begins("SELECT count(*) FROM t WHERE id BETWEEN 100 AND 200")
    must(None, B.run("INSERT INTO t VALUES (150, 0)"))
    fails(A, "phantom", (update(2), "COMMIT"), CONFLICT)
    table("occ")
    A.begins(update(1))
    must(None, B.run(update(1)))
    fails(A, "write_conflict", ("COMMIT",), CONFLICT)
    table("occ")
    A.begins(read(2), level="REPEATABLE READ")
    must(None, B.run(update(1)))
    fails(A, "write_conflict", (update(1),), CONFLICT)
    table("occ")
    must(None, A.run("SET mixedcc.range_list_size = 8"))
    A.begins("SELECT count(*) FROM t WHERE id BETWEEN 100 AND 200")
    for key in range(1000, 1100):
        must(None, B.run(f"INSERT INTO t VALUES ({key}, 0)"))
    fails(A, "predicate_wrapped", (update(2), "COMMIT"), CONFLICT)


def test_locking_failures():
    table("2pl", "no_wait")
    A.begins(update(1))
    B.begins()
    fails(B, "lock_conflict", (update(1),), CONFLICT)
    table("2pl", "wait_die")
    A.begins(update(1))
    B.begins(update(2))
    fails(B, "wait_die", (update(1),), CONFLICT)
    table("2pl")
    for s in (A, B):
        s.begins(read(1))
    A.sleeps(update(1))
    fails(B, "upgrade_conflict", (update(1),), CONFLICT, {"row": 1})
    must(None, A.wakes())
    must(None, A.run("COMMIT"))
    table("partcc", partitions=2)
    first, second = keys()
    A.begins(update(first))
    B.begins(update(second))
    fails(B, "partition_order", (update(first),), CONFLICT)
    equal("statistics: nothing failed because of the other partition", counts(1), ({}, {}))


def test_deadlocks():
    """Found by the engine; by PostgreSQL's detector, with locks of savepoints; and by two
    transactions that lock a row below SERIALIZABLE."""
    table("2pl")
    A.begins(update(1))
    B.begins(update(2))
    A.sleeps(update(2))
    fails(B, "deadlock", (update(1),), DEADLOCK, {"row": 2})
    must(None, A.wakes())
    must(None, A.run("COMMIT"))
    equal("statistics: sampled, the victim's time is lost", (of("sampled"), 0 < of("lost_share") < 1), (1, True))
    for level in ("SERIALIZABLE", "READ COMMITTED"):
        table("2pl")
        for s, key in ((A, 1), (B, 2)):
            s.begins("SAVEPOINT s", update(key), level=level)
        must(None, B.run("RELEASE s", "SET LOCAL deadlock_timeout = '50ms'"))
        A.sleeps(update(2))
        fails(B, "deadlock", (update(1),), DEADLOCK, {"row": 2})
        must(None, A.wakes())
        must(None, A.run("COMMIT"))
    table("2pl")
    for s in (A, B):
        s.begins("SELECT v FROM t WHERE id = 1 FOR SHARE", level="READ COMMITTED")
    A.sleeps(update(1))
    fails(B, "deadlock", (update(1),), DEADLOCK, {"row": 1})
    must(None, A.wakes())


def test_given_up_waits():
    for level in ("SERIALIZABLE", "READ COMMITTED"):
        table("2pl")
        A.begins(update(1))
        B.begins(f"SET LOCAL lock_timeout = {int(1000 * SLEEP)}", level=level)
        fails(B, "wait_given_up", (update(1),), TIMEOUT, {"row": 1})
        check(f"statistics: the time until lock_timeout, {level}", 1000 * SLEEP <= of("wait_ms") < 10000, of("wait_ms"))
        B.begins(level=level)
        B.sleeps(update(1))
        query(BOSS, "SELECT pg_cancel_backend(%s)", (B.connection.info.backend_pid,))
        must(CANCEL, B.wakes())
        equal(f"statistics: a cancel is such a one, {level}", counts(), ({"wait_given_up": 2}, {"row": 2}))
        must(None, B.run("ROLLBACK"))
        # Caught in a savepoint, it is no failure of the transaction.
        B.begins("SET LOCAL lock_timeout = 10", update(2), "SAVEPOINT s", level=level)
        must(TIMEOUT, B.run(update(1)))
        must(None, B.run("ROLLBACK TO s", "COMMIT"))
        equal(f"statistics: caught, it is none, {level}", counts(), ({"wait_given_up": 2}, {"row": 3}))
    table("partcc")
    A.begins(update(1))
    B.begins("SET LOCAL lock_timeout = 10")
    fails(B, "wait_given_up", (update(1),), TIMEOUT, {"partition": 1})


def slept(kind, waiter, statement, holder):
    """The statement sleeps once, for this, until the holder ends."""
    waiter.sleeps(statement)
    time.sleep(SLEEP)
    must(None, holder.run("COMMIT"))
    must(None, waiter.wakes())
    must(None, waiter.run("COMMIT"))
    equal(f"statistics: a sleep for: {kind}", counts(), ({}, {kind: 1}))
    check(f"statistics: its length, {kind}", 1000 * SLEEP <= of("wait_ms") < 10000, of("wait_ms"))


def test_sleeps():
    for protocol, level in (("2pl", "SERIALIZABLE"), ("occ", "READ COMMITTED")):
        table(protocol)
        A.begins(update(1), level=level)
        B.begins(level=level)
        slept("row", B, update(1), A)
    table("2pl")
    must(None, A.run("SET mixedcc.range_rows = 5", "DELETE FROM t WHERE id = 20"))
    A.begins("SELECT count(*) FROM t WHERE id BETWEEN 3 AND 37")
    B.begins()
    slept("range", B, "INSERT INTO t VALUES (20, 0)", A)
    table("2pl")
    A.begins("SELECT count(*) FROM t WHERE id BETWEEN 100 AND 200")
    B.begins()
    slept("reader", B, "INSERT INTO t VALUES (150, 0)", A)
    table("partcc")
    A.begins(update(1))
    B.begins()
    slept("partition", B, read(2), A)


def test_retries():
    """The transaction behind one that failed because of others is a retry, and no other one is."""
    table("occ")
    A.begins(read(1))
    must(None, B.run(update(1)))
    must(CONFLICT, A.run(update(2), "COMMIT"))
    for _ in range(3):
        must(None, A.run(update(2)))
    equal("statistics: one of B's and three of A's, one a retry", (of("sampled"), of("retry_share")), (4, 0.25))
    A.begins(update(2))
    must("22012", A.run("SELECT 1 / 0"))
    must(None, A.run("ROLLBACK", update(2)))
    equal("statistics: an error of its own makes none", (of("sampled"), of("retry_share")), (5, 0.2))
    table("2pl")
    A.begins(update(1))
    B.begins("SET LOCAL lock_timeout = 10")
    must(TIMEOUT, B.run(update(1)))
    must(None, B.run("ROLLBACK", update(2), update(2)))
    equal("statistics: a wait that was given up makes one", (of("sampled"), of("retry_share")), (2, 0.5))


def keys():
    """Of two rows, the first one in partition 0, the second one in partition 1."""
    found = {}
    for key in range(1, 41):
        before = [of("reads", p) for p in (0, 1)]
        must(None, B.run(read(key)))
        after = [of("reads", p) for p in (0, 1)]
        found.setdefault(int(after[1] > before[1]), key)
        if len(found) == 2:
            query(BOSS, "SELECT mixedcc.reset_stats('t')")
            return found[0], found[1]
    raise RuntimeError("all rows are in one partition")


def test_shapes():
    """Transactions over one and two partitions, of one and two statements, at two levels."""
    table("occ", partitions=2)
    first, second = keys()
    A.begins(update(first), update(second))
    must(None, A.run("COMMIT"))
    partners = [of("partners", p) for p in (0, 1)]
    equal("statistics: partitions that are used together", partners, [[{"table": "t", "partition": p, "transactions": 1}] for p in (1, 0)])
    must(None, A.run(read(first)))
    B.begins(update(first), level="READ COMMITTED")
    must(None, B.run("COMMIT"))
    must(None, B.run(read(first)))
    columns = "commits, reads, writes, sampled, read_share, records, multi_share, partitions, round_trips, idle_share, serializable_share, weak_writer_share"
    names = [f"{'p' if n in ('commits', 'reads', 'writes') else 's'}.{n}" for n in columns.split(", ")]
    shape = [[of(n, p) for n in names] for p in (0, 1)]
    equal("statistics: of a partition with four transactions", dict(zip(columns.split(", "), shape[0])),
          {"commits": 4, "reads": 4, "writes": 2, "sampled": 4, "read_share": 4 / 6, "records": 1.5, "multi_share": 0.25, "partitions": 1.25,
           "round_trips": 1.25, "idle_share": 0.25, "serializable_share": 0.75, "weak_writer_share": 0.25})
    equal("statistics: of one with one", dict(zip(columns.split(", "), shape[1])),
          {"commits": 1, "reads": 1, "writes": 1, "sampled": 1, "read_share": 0.5, "records": 2.0, "multi_share": 1.0, "partitions": 2.0,
           "round_trips": 2.0, "idle_share": 1.0, "serializable_share": 1.0, "weak_writer_share": 0.0})
    check("statistics: times", all(0 < of(n) < 10000 for n in ("duration_ms", "cpu_ms")), [of("duration_ms"), of("cpu_ms")])
    query(BOSS, "SELECT mixedcc.reset_stats('t')")
    equal("statistics: reset_stats", [(counts(p), of("commits", p), of("sampled", p), of("partners", p)) for p in (0, 1)], [(({}, {}), 0, 0, [])] * 2)


def test_conflicts():
    """Accesses that meet another session's marks: all of the second session's are conflicts, if one
    of the two writes."""
    for first, second, rate in ((update(1), update(1), 0.5), (read(1), read(1), 0.0), (update(1), update(2), 0.0), (update(1), read(1), None)):
        table("occ")
        for s, statement in ((A, first), (B, second)):
            must(None, s.run(statement))
        got = of("conflict_rate")
        if rate is None:
            check(f"statistics: conflicts of {first} and {second}", 0 < got < 0.5, got)
        else:
            equal(f"statistics: conflicts of {first} and {second}", got, rate)


def prepare():
    """Every transaction is a sample, and marks stay: the coordinator has looked at the setting, and
    looks no more."""
    reset()
    configure(adaptive="off", sample_every="1", adaptive_interval="100ms")
    query(BOSS, "CREATE TABLE other (id int PRIMARY KEY, v int) USING mixedcc")
    query(BOSS, "INSERT INTO other VALUES (1, 0)")
    passes = value(BOSS, "SELECT passes FROM mixedcc.coordinator")
    if not wait_until(lambda: value(BOSS, "SELECT passes FROM mixedcc.coordinator") > passes + 5):
        raise RuntimeError("the coordinator does not run")
    configure(adaptive_interval="3600000")
    reload(BOSS)


if __name__ == "__main__":
    if not OURS:
        ok("statistics: heap has none")
        raise SystemExit(0)
    BOSS = make_database(DATABASE)
    try:
        prepare()
        A, B = SESSIONS = Session(), Session()
        main(test_optimistic_failures, test_locking_failures, test_deadlocks, test_given_up_waits, test_sleeps, test_retries, test_shapes,
             test_conflicts)
    finally:
        reset()
        for session in SESSIONS:
            session.connection.close()
        BOSS.close()
        drop_database(DATABASE)
