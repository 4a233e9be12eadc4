#!/usr/bin/python3
"""One partitioned table over two servers, by postgres_fdw, and a coordinator that commits in two
phases (docs/scaling-out.md). Coordinators die at each point; transfers are done as a whole or not
at all, and an audit that prepares on both servers sees one moment of both."""

import contextlib
import multiprocessing
import os
import random

import psycopg2

from lib import clusters
from lib.common import RETRY, check, equal, main, query, seconds, value, wait_until

ACCOUNTS = 8  # on each server
START = 1000
# Behind each step of a commit in two phases a coordinator may die.
POINTS = ("the writes", "the first PREPARE", "the second PREPARE", "the decision", "the first COMMIT PREPARED", "the second COMMIT PREPARED")
nodes = []


def set_up():
    for _ in range(2):
        nodes.append(clusters.Cluster.new(max_prepared_transactions="40"))
        nodes[-1].start()
        nodes[-1].ask("CREATE EXTENSION mixedcc; SELECT 1")
    front = nodes[0].connect()
    query(front, "CREATE EXTENSION postgres_fdw; CREATE TABLE decision (gid text PRIMARY KEY) USING heap")
    query(front, f"CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '{nodes[1].home}', port '{clusters.PORT}', dbname 'postgres')")
    query(front, "CREATE USER MAPPING FOR CURRENT_USER SERVER far OPTIONS (user 'postgres')")
    front.close()


def make_table(kind):
    """The partition of each server is a mixedcc table; the first server has the whole."""
    front, far = (node.connect() for node in nodes)
    query(front, "DROP TABLE IF EXISTS account")
    query(far, "DROP TABLE IF EXISTS account_1")
    query(far, f"CREATE {kind} TABLE account_1 (node int, id int, v int NOT NULL, PRIMARY KEY (node, id)) USING mixedcc")
    query(front, f"""CREATE TABLE account (node int, id int, v int NOT NULL) PARTITION BY LIST (node);
        CREATE {kind} TABLE account_0 PARTITION OF account (PRIMARY KEY (node, id)) FOR VALUES IN (0) USING mixedcc;
        CREATE FOREIGN TABLE account_1 PARTITION OF account FOR VALUES IN (1) SERVER far""")
    query(front, f"INSERT INTO account SELECT n, i, {START} FROM generate_series(0, 1) n, generate_series(1, {ACCOUNTS}) i")
    query(front, "DELETE FROM decision")
    front.close()
    far.close()


def whole():
    """Rows and sum through the partitioned table."""
    front = nodes[0].connect()
    found = query(front, "SELECT count(*), sum(v) FROM account")[0]
    front.close()
    return found


def prepared_now():
    return [node.ask("SELECT count(*) FROM pg_prepared_xacts") for node in nodes]


class Coordinator:
    """A transaction over both servers. `die`: behind this point it ends as by SIGKILL."""

    def __init__(self, gid, die=None):
        self.gid, self.die = gid, die
        self.sessions = [node.connect() for node in nodes]

    def reached(self, point):
        if point == self.die:
            os._exit(9)

    def run(self, works):
        """A statement for each server. Returns what they read, or None if it must run again."""
        try:
            found = []
            for session, work in zip(self.sessions, works):
                query(session, "BEGIN ISOLATION LEVEL SERIALIZABLE; SET LOCAL lock_timeout = '1s'")
                found.append(query(session, work))
            self.reached("the writes")
            for session, point in zip(self.sessions, POINTS[1:3]):
                query(session, f"PREPARE TRANSACTION '{self.gid}'")
                self.reached(point)
        except psycopg2.Error as error:
            if error.pgcode not in (*RETRY, "55P03"):
                raise
            self.undo()
            return None
        # From here on it is committed: a recovery that finds it prepared commits it.
        query(self.sessions[0], "INSERT INTO decision VALUES (%s)", (self.gid,))
        self.reached("the decision")
        for session, point in zip(self.sessions, POINTS[4:]):
            query(session, f"COMMIT PREPARED '{self.gid}'")
            self.reached(point)
        query(self.sessions[0], "DELETE FROM decision WHERE gid = %s", (self.gid,))
        return found

    def undo(self):
        for session in self.sessions:
            query(session, "ROLLBACK")
            with contextlib.suppress(psycopg2.errors.UndefinedObject):
                query(session, f"ROLLBACK PREPARED '{self.gid}'")

    def close(self):
        for session in self.sessions:
            session.close()


def recover():
    """Ends what dead coordinators have left: committed if it was decided, else undone. A name has
    its coordinator's process in it."""
    front = nodes[0].connect()
    for node in nodes:
        session = node.connect()
        for gid, in query(session, "SELECT gid FROM pg_prepared_xacts"):
            if not os.path.exists(f"/proc/{gid.split('-')[0]}"):
                end = "COMMIT" if query(front, "SELECT 1 FROM decision WHERE gid = %s", (gid,)) else "ROLLBACK"
                query(session, f"{end} PREPARED '{gid}'")
        session.close()
    front.close()


def transfer(draw, gid, die=None):
    amount = draw.randint(1, 9) * draw.choice((1, -1))
    coordinator = Coordinator(gid, die)
    done = coordinator.run([f"UPDATE account_{n} SET v = v + {amount * (1 - 2 * n)} WHERE node = {n} AND id = {draw.randint(1, ACCOUNTS)}"
                            for n in range(2)])
    coordinator.close()
    return done


def in_process(work, *arguments):
    process = multiprocessing.Process(target=work, args=arguments)
    process.start()
    return process


def alone(die):
    transfer(random.Random(1), f"{os.getpid()}-1", die)


def each_point(kind):
    for point in POINTS:
        name = f"two phases, {kind or 'permanent'}: dead behind {point}"
        before = [nodes[n].ask(f"SELECT sum(v) FROM account_{n}") for n in range(2)]
        process = in_process(alone, point)
        process.join()
        equal(f"{name}: it died", process.exitcode, 9)
        # The servers notice that their clients have gone.
        wait_until(lambda: all(node.ask("SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'") == 0 for node in nodes))
        left = {"the writes": [0, 0], "the first PREPARE": [1, 0], "the second PREPARE": [1, 1], "the decision": [1, 1],
                "the first COMMIT PREPARED": [0, 1], "the second COMMIT PREPARED": [0, 0]}[point]
        equal(f"{name}: what is left", prepared_now(), left)
        if not kind:
            for node in nodes:
                node.crash()
                node.start()
            equal(f"{name}: what is left after a crash", prepared_now(), left)
        recover()
        after = [nodes[n].ask(f"SELECT sum(v) FROM account_{n}") for n in range(2)]
        decided = POINTS.index(point) >= POINTS.index("the decision")
        check(f"{name}: {'committed' if decided else 'undone'}", (after != before) == decided and sum(after) == sum(before), (before, after))
        equal(f"{name}: nothing is prepared any more", prepared_now(), [0, 0])
        equal(f"{name}: through the partitioned table", whole(), (2 * ACCOUNTS, 2 * ACCOUNTS * START))


def client(seed, rounds, results):
    """Transfers; now and then a process dies within one."""
    draw, done = random.Random(seed), 0
    for number in range(rounds):
        done += transfer(draw, f"{os.getpid()}-{seed}-{number}") is not None
    results.put(("transfers", done))
    alone_point = draw.choice(POINTS)
    results.close()
    results.join_thread()
    transfer(draw, f"{os.getpid()}-{seed}-last", alone_point)


def auditor(seed, rounds, results):
    """Sums of both servers, of one moment: it prepares its reads, too."""
    sums, failed = set(), 0
    for number in range(rounds):
        coordinator = Coordinator(f"{os.getpid()}-{seed}-{number}")
        found = coordinator.run([f"SELECT sum(v) FROM account_{n}" for n in range(2)])
        coordinator.close()
        if found is None:
            failed += 1
        else:
            sums.add(sum(part[0][0] for part in found))
    results.put(("audit", (sums, rounds - failed)))


def together(kind):
    name = f"two phases, {kind or 'permanent'}"
    results = multiprocessing.Queue()
    rounds = int(10 * seconds(4))
    clients = [in_process(client, seed, rounds, results) for seed in range(3)]
    audits = [in_process(auditor, 9, 2 * rounds, results)]
    while any(process.is_alive() for process in (*clients, *audits)):
        recover()
        clients[0].join(0.1)
    recover()
    got = [results.get(timeout=10) for _ in range(4)]
    made = sum(count for what, count in got if what == "transfers")
    sums, audited = next(found for what, found in got if what == "audit")
    check(f"{name}: transfers commit beside each other", made > rounds // 2, made)
    check(f"{name}: audits commit beside them", audited > 0, audited)
    equal(f"{name}: each audit sees one moment of both servers", sums, {2 * ACCOUNTS * START})
    equal(f"{name}: no transfer is done in part", whole(), (2 * ACCOUNTS, 2 * ACCOUNTS * START))
    equal(f"{name}: nothing is left prepared", prepared_now(), [0, 0])


def unlogged():
    make_table("UNLOGGED")
    each_point("UNLOGGED")
    together("UNLOGGED")


def permanent():
    """The same with permanent tables; the servers crash, too, before the recovery."""
    make_table("")
    each_point("")
    together("")


try:
    main(set_up, unlogged, permanent)
finally:
    for server in nodes:
        server.remove()
