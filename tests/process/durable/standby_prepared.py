#!/usr/bin/python3
"""Prepared transactions of a primary, and snapshots of its standby. Each snapshot shows all of a
transaction or none of it, in all tables, over restarts of either server, and the standby's time
goes on. Row n has the same value in each table, as each transaction changes it in all of them."""

import contextlib
import os
import random
import sys
import threading
import time
from itertools import count

import psycopg2

from lib.clusters import Cluster
from lib.common import check, equal, main, must_be_found, must_come, premise, query, seconds, value, wait_until
from lib.standing import Point

TABLES = ("p", "q", "r")
ROWS = 40
# A table cannot be loaded yet, or not for this snapshot; replay has ended the session, or waits.
AGAIN = ("40001", "55006", "57014", "57P01", "57P02", "57P03", "55P03", None)
# A look at a table waits so long for what is prepared.
IMPATIENT = "-c lock_timeout=3s -c statement_timeout=20s"


class Pair:
    """A primary, and its standby."""

    def __init__(self, fault=None):
        more = {"mixedcc.fault": fault} if fault else {}
        self.primary = Cluster.new(max_prepared_transactions=300, autovacuum="off", wal_keep_size="1GB", checkpoint_timeout="1h",
                                   max_standby_streaming_delay="500ms", **{"mixedcc.load_workers": "0"}, **more)
        self.primary.start()
        self.done("CREATE EXTENSION mixedcc; CREATE TABLE told (n int) USING mixedcc; INSERT INTO told VALUES (0)")
        self.standby = Cluster.copy("-R", source=self.primary)
        self.standby.start(hot_standby="on")
        self.names = (f"x{n}" for n in count())

    def remove(self):
        self.standby.remove()
        self.primary.remove()

    def done(self, *commands):
        """Runs commands on the primary."""
        connection = self.primary.connect(options="-c lock_timeout=30s")
        try:
            [query(connection, command) for command in commands]
        finally:
            connection.close()

    def fresh(self):
        """All tables anew."""
        self.done("DROP TABLE IF EXISTS " + ", ".join(TABLES))
        for name in TABLES:
            self.done(f"CREATE TABLE {name} (id int PRIMARY KEY, v int, pad text) USING mixedcc; CREATE INDEX ON {name} (v)",
                      f"ALTER TABLE {name} ALTER pad SET STORAGE EXTERNAL",
                      f"INSERT INTO {name} SELECT g, 0, 'x' FROM generate_series(1, {ROWS}) g")
        self.told()

    def prepare(self, sql, tables=TABLES):
        """Prepares a transaction that does so to each table. Returns its name."""
        name = next(self.names)
        self.done("BEGIN; " + "; ".join(sql.format(t) for t in tables) + f"; PREPARE TRANSACTION '{name}'")
        return name

    def crash(self):
        self.primary.crash()
        self.primary.start()

    def restart_standby(self, mode="fast"):
        self.standby.control("restart", "-m", mode, "-o", f"-c unix_socket_directories={self.standby.home}", "-l", self.standby.home + "/log")

    def told(self):
        """A commit of the primary that the standby shows."""
        n = self.primary.ask("UPDATE told SET n = n + 1 RETURNING n")
        must_come(lambda: self.look("SELECT n FROM told") == [(n,)], 60)

    def look(self, sql):
        """The answer of the standby, or the code of its error."""
        try:
            connection = self.standby.connect(options=IMPATIENT)
        except psycopg2.Error as error:
            return error.pgcode
        try:
            return query(connection, sql)
        except psycopg2.Error as error:
            return error.pgcode
        finally:
            connection.close()


def ask(connection, sql):
    try:
        return query(connection, sql)
    except psycopg2.Error as error:
        return error.pgcode


V = "SELECT sum(v), count(*) FROM {0} WHERE id <= 3"
OLD, NEW = [(0, 3)], [(2, 2)]
CHANGE = "UPDATE {0} SET v = 1 WHERE id < 3; DELETE FROM {0} WHERE id = 3; INSERT INTO {0} VALUES (1000, 5, repeat('n', 9000))"


@contextlib.contextmanager
def held(pair):
    """Meanwhile a commit waits for a standby that is missing: what is stable stays below it."""
    sets = lambda text: pair.done(f"ALTER SYSTEM SET synchronous_standby_names = '{text}'", "SELECT pg_reload_conf()")
    sets("missing")
    must_come(lambda: pair.primary.ask("SHOW synchronous_standby_names") == "missing")
    commit = "BEGIN; SELECT pg_current_xact_id(); UPDATE told SET n = n; COMMIT"
    try:
        for _ in range(100):  # The checkpointer has to take notice.
            thread = threading.Thread(target=lambda: pair.done(commit))
            thread.start()
            thread.join(0.3)
            if thread.is_alive():
                break
        must_come(lambda: pair.primary.ask("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == 1)
        yield
    finally:
        sets("")
        thread.join(60)


def half(pair):
    """The primary has restarted, and has one of the tables in memory. A snapshot that shows that
    without the transaction never shows another one with it."""
    pair.fresh()
    name = pair.prepare(CHANGE)
    pair.crash()
    pair.done("SELECT * FROM q")
    pair.told()
    old = pair.standby.connect(options=IMPATIENT)
    query(old, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    equal("prepared: before its end, a table that the primary has used", ask(old, V.format("q")), OLD)
    pair.told()
    equal("prepared: the standby's time goes on", pair.look(V.format("q")), OLD)
    equal("prepared: a table that the primary has not used cannot be loaded yet", pair.look(V.format("p")), "55006")
    with held(pair):
        pair.done("SET synchronous_commit = local", f"COMMIT PREPARED '{name}'")
        must_come(lambda: pair.standby.replays(pair.primary), 30)
        found = ask(old, V.format("p"))
        check("prepared: not half of it after a restart of the primary", found == "55006", found)
        old.close()
        equal("prepared: nor by a new snapshot", [pair.look(V.format(t)) for t in "qp"], [OLD, "55006"])
    must_come(lambda: pair.look(V.format("q")) == NEW, 30)
    for table in TABLES:
        equal(f"prepared: all of it after its end, {table}", pair.look(V.format(table)), NEW)
    pair.done("SELECT * FROM p")
    pair.told()
    for table in TABLES:
        equal(f"prepared: and when the primary has loaded another one, {table}", pair.look(V.format(table)), NEW)


def quiet(pair):
    """It ends without a table of it in memory on the primary, and no commit follows."""
    for end, wanted in (("COMMIT", NEW), ("ROLLBACK", OLD)):
        pair.fresh()
        name = pair.prepare(CHANGE)
        pair.crash()
        pair.told()
        equal(f"prepared: nothing of it is loaded before, {end}", pair.look(V.format("p")), "55006")
        pair.done(f"{end} PREPARED '{name}'")
        came = wait_until(lambda: pair.look(V.format("p")) == wanted, 10)
        check(f"prepared: its end is told without a commit, {end}", came, pair.look(V.format("p")))
        for table in TABLES:
            equal(f"prepared: and in the other tables, {end}, {table}", pair.look(V.format(table)), wanted)


def defining(pair):
    """One that has truncated a table: its file is seen as soon as its commit is replayed. After a
    restart of the primary no other table of it is shown before its end."""
    pair.fresh()
    name = next(pair.names)
    pair.done("BEGIN; TRUNCATE p; " + CHANGE.format("q") + f"; PREPARE TRANSACTION '{name}'")
    pair.crash()
    pair.done("SELECT * FROM q")
    pair.told()
    equal("prepared, TRUNCATE: its rows cannot be loaded yet", pair.look(V.format("q")), "55006")
    equal("prepared, TRUNCATE: others can", pair.look(V.format("r")), OLD)
    pair.done(f"COMMIT PREPARED '{name}'")
    must_come(lambda: pair.look(V.format("q")) == NEW, 30)
    equal("prepared, TRUNCATE: after its end", pair.look("SELECT count(*) FROM p"), [(0,)])


def next_commit(pair):
    """It ends without a table of it in memory on the primary. The next commit changes a row of it
    before standbys are told of the end. A standby waits for that to load the table."""
    pair.fresh()
    name = pair.prepare(CHANGE)
    pair.told()  # The CSNs of the next life go on above those of its rows.
    pair.crash()
    look = "SELECT v, pad FROM p WHERE id = 1"
    interval = lambda text: pair.done(f"ALTER SYSTEM {text}", "SELECT pg_reload_conf()")
    interval("SET mixedcc.standby_interval = '500ms'")
    try:
        pair.told()
        pair.told()
        thread = threading.Thread(target=lambda: pair.look(look))
        thread.start()
        time.sleep(0.1)
        pair.done(f"COMMIT PREPARED '{name}'", "UPDATE p SET pad = 'next' WHERE id = 1")
        thread.join()
        came = wait_until(lambda: pair.look(look) == [(1, "next")], 15)
        check("prepared: the commit after its end is not lost", came, pair.look(look))
    finally:
        interval("RESET mixedcc.standby_interval")


# Above 1 MiB, so that a record ends in the middle of it.
LONG = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 50000) n)"


def between(pair):
    """A standby loads a table between two records of a transaction, which prepares after that."""
    pair.fresh()
    point = Point("xcommit-marked")
    slow = pair.primary.connect(options=f"-c mixedcc.stop_events=on -c mixedcc.kill_at={point.setting}")
    change = f"BEGIN; UPDATE p SET pad = {LONG} WHERE id = 1; INSERT INTO p VALUES (1000, 5, {LONG}); PREPARE TRANSACTION 'between'"
    begun = pair.primary.ask("SELECT pg_current_wal_insert_lsn()")
    thread = threading.Thread(target=lambda: query(slow, change))
    thread.start()
    point.must_stand()
    premise("a part of it is logged", pair.primary.ask("SELECT pg_current_wal_insert_lsn() - %s > 1000000", (begun,)))
    pair.done("SELECT pg_current_xact_id()")  # all before it is sent
    must_come(lambda: pair.standby.replays(pair.primary), 30)
    look = "SELECT count(*), sum(length(pad)), max(md5(pad)) FROM p"
    before = pair.look(look)
    equal("prepared, between its records: nothing of it is seen", before[0][:2], (ROWS, ROWS))
    point.go()
    thread.join()
    slow.close()
    pair.told()
    equal("prepared, between its records: nor when it is prepared", pair.look(look), before)
    pair.done("COMMIT PREPARED 'between'")
    pair.told()
    equal("prepared, between its records: all of it after its end", pair.look(look), query(pair.primary.connect(), look))


def over_full(pair):
    """So many are open that what is stable stays. One that ends lets nothing new be told. A standby
    that starts is told what was stable last."""
    pair.fresh()
    pair.done("CREATE TABLE filled (id int) USING mixedcc")
    pair.told()
    names = [pair.prepare("INSERT INTO {0} VALUES (1)", ["filled"]) for _ in range(265)]
    pair.done(f"COMMIT PREPARED '{names.pop()}'", "CHECKPOINT", "SELECT pg_current_xact_id()")
    must_come(lambda: pair.standby.replays(pair.primary), 30)
    pair.look("CHECKPOINT")
    pair.restart_standby()
    came = wait_until(lambda: pair.look("SELECT count(*) FROM r") == [(ROWS,)], 30)
    check("prepared, over full: a standby that starts shows what was told last", came, pair.look("SELECT count(*) FROM r"))
    pair.done(*(f"ROLLBACK PREPARED '{name}'" for name in names))
    pair.told()
    equal("prepared, over full: it goes on", pair.look("SELECT count(*) FROM filled"), [(1,)])
    pair.done("DROP TABLE filled")


def many(pair):
    """More of them than a table remembers, and, over a restart, than are told by their names."""
    pair.fresh()
    look = "SELECT array_agg(v ORDER BY id) FROM {0}"
    names = [pair.prepare(f"UPDATE {{0}} SET v = {n} WHERE id = {n}") for n in range(1, ROWS + 1)]
    pair.done("CHECKPOINT")
    pair.told()
    none = pair.look(look.format("p"))
    equal("prepared, many: none is shown", none, [([0] * ROWS,)])
    connection = pair.standby.connect()
    for n, name in enumerate(names[: ROWS // 2], 1):
        pair.done(f"COMMIT PREPARED '{name}'")
        pair.told()
        wanted = list(range(1, n + 1)) + [0] * (ROWS - n)
        if not all(ask(connection, look.format(t)) == [(wanted,)] for t in TABLES):
            check("prepared, many: each is shown at its end", False, (n, [ask(connection, look.format(t)) for t in TABLES]))
    check("prepared, many: they are shown one by one", True)
    connection.close()
    more = 130
    pair.done(*(f"CREATE TABLE {name} (id int) USING {am}" for name, am in
                (("more", "mixedcc"), ("no_more", "mixedcc"), ("nor_more", "mixedcc"), ("heaped", "heap"))))
    others = [pair.prepare(f"INSERT INTO {{0}} VALUES ({n})", ["more"]) for n in range(more)]
    pair.crash()
    pair.told()
    equal("prepared, too many: other tables are shown", pair.look("SELECT count(*) FROM no_more"), [(0,)])
    equal("prepared, too many: their rows cannot be loaded yet", pair.look("SELECT count(*) FROM more"), "55006")
    pair.done("BEGIN; SELECT pg_current_xact_id(); INSERT INTO no_more VALUES (1); INSERT INTO nor_more VALUES (1); COMMIT")
    pair.told()
    equal("prepared, too many: a commit of this life is shown", pair.look("SELECT count(*) FROM no_more"), [(1,)])
    heaped = pair.prepare("INSERT INTO {0} VALUES (1)", ["heaped"])
    pair.told()
    equal("prepared, too many: all of it", pair.look("SELECT count(*) FROM nor_more"), [(1,)])
    pair.done(f"COMMIT PREPARED '{heaped}'")
    pair.done(*(f"COMMIT PREPARED '{name}'" for name in others[: more // 2]))
    pair.done("SELECT * FROM more")
    pair.told()
    equal("prepared, fewer: they can when the primary has loaded the table", pair.look("SELECT count(*) FROM more"), [(more // 2,)])
    pair.done(*(f"COMMIT PREPARED '{name}'" for name in others[more // 2:] + names[ROWS // 2:]))
    pair.told()
    equal("prepared, many: all are shown", pair.look("SELECT count(*) FROM more"), [(more,)])
    equal("prepared, many: all are shown in p", pair.look(look.format("p")), [(list(range(1, ROWS + 1)),)])
    pair.done("DROP TABLE more, no_more, nor_more, heaped")


def overlapping(pair):
    """Commits with transaction ids overlap all the time, and prepared transactions commit in
    between. The standby's time goes on, and VACUUM on the primary frees rows."""
    pair.fresh()
    pair.done("CREATE EXTENSION IF NOT EXISTS pageinspect",
              "CREATE TABLE busy (id int PRIMARY KEY, n int) USING mixedcc; INSERT INTO busy VALUES (0, 0), (1, 0)",
              "CREATE TABLE freed (id int PRIMARY KEY, v int) USING mixedcc; CREATE INDEX freed_v ON freed (v)",
              "INSERT INTO freed SELECT i, i FROM generate_series(1, 200) i")
    pair.told()
    shown = lambda: pair.look("SELECT n FROM busy WHERE id = 0")
    equal("prepared, overlapping commits: before them", shown(), [(0,)])
    over, ended = threading.Event(), []

    def commits(n):
        time.sleep(n * 0.2)
        connection = pair.primary.connect(options="-c mixedcc.stop_events=on -c mixedcc.kill_at=xcommit-marked:0:400")
        while not over.is_set():
            query(connection, f"BEGIN; SELECT pg_current_xact_id(); UPDATE busy SET n = n + 1 WHERE id = {n}; COMMIT")
        connection.close()

    def prepares():
        while not over.is_set():
            n = len(ended) + 1
            pair.done(f"COMMIT PREPARED '{pair.prepare(f'UPDATE {{0}} SET v = {n} WHERE id <= 5')}'")
            ended.append(n)

    def differ():
        """Do tables differ in one snapshot of the standby?"""
        connection = pair.standby.connect(options=IMPATIENT)
        try:
            query(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ")
            rows = [query(connection, f"SELECT v FROM {t} WHERE id = 5") for t in TABLES]
            return rows if rows[1:] != rows[:-1] else None
        except psycopg2.Error as error:
            return None if error.pgcode in AGAIN else error
        finally:
            connection.close()

    threads = [threading.Thread(target=commits, args=(n,)) for n in range(2)] + [threading.Thread(target=prepares)]
    [thread.start() for thread in threads]
    try:
        time.sleep(2)
        first, wrong = shown(), []

        def goes_on():
            wrong.append(differ())
            now = shown()
            return all(isinstance(n, list) for n in (first, now)) and now[0][0] > first[0][0] + 3

        came = wait_until(goes_on, 20)
        check("prepared, overlapping commits: the standby's time goes on", came, (first, shown()))
        if not came:
            return  # What follows waits for it.
        wrong += [differ() for _ in range(20)]
        check("prepared, overlapping commits: all of each or none", not any(wrong), wrong)
        pair.done("DELETE FROM freed WHERE id <= 100")
        entries = "SELECT live_items + dead_items FROM bt_page_stats('freed_v', 1)"
        came = wait_until(lambda: pair.done("VACUUM freed") or pair.primary.ask(entries) == 100, 20)
        check("prepared, overlapping commits: VACUUM frees", came, pair.primary.ask(entries))
        premise("prepared transactions have committed", wait_until(lambda: len(ended) > 20))
    finally:
        over.set()
        [thread.join() for thread in threads]
    pair.done("DROP TABLE busy, freed")


def too_large(pair):
    """After a restart of the primary a load fails, because it has less memory. It has written a
    page, with CSNs of before the restart. The standby has memory, and loads the table."""
    def restart(server, memory):
        server.control("stop", "-m", "fast")
        server.start(**{"mixedcc.memory": memory})

    restart(pair.primary, "256MB")
    restart(pair.standby, "256MB")
    pair.fresh()
    pair.done("CREATE TABLE large (id int PRIMARY KEY, pad text) USING mixedcc", "CHECKPOINT")
    pair.done(*["UPDATE r SET v = v WHERE id = 1"] * 3000)
    pair.done("INSERT INTO large SELECT i, repeat('x', 300) FROM generate_series(1, 200000) i")
    name = pair.prepare("UPDATE {0} SET pad = 'new' WHERE id = 1", ["large"])
    # CSNs begin anew: nothing is replayed.
    restart(pair.primary, "64MB")
    pair.told()
    pair.done(f"COMMIT PREPARED '{name}'")
    equal("prepared, too large: the primary cannot load it", attempt(pair, "SELECT count(*) FROM large"), "53200")
    pair.told()
    look = "SELECT count(*), sum(length(pad)) FROM large"
    came = wait_until(lambda: pair.look(look) == [(200000, 200000 * 300 - 297)], 10)
    check("prepared, too large: the standby loads it", came, pair.look(look))
    pair.done("DROP TABLE large")


def attempt(pair, sql):
    """The answer of the primary, or the code of its error."""
    connection = pair.primary.connect()
    try:
        return ask(connection, sql)
    finally:
        connection.close()


# --- at random -------------------------------------------------------------------

class Reader:
    """A session of the standby that looks at one table after another by one snapshot."""

    def __init__(self, pair, dice):
        self.pair, self.dice, self.connection, self.seen, self.wrong, self.looks = pair, dice, None, {}, None, 0

    def end(self):
        if self.connection:
            self.connection.close()
        self.connection, self.seen = None, {}

    def look(self):
        try:
            if not self.connection:
                self.connection = self.pair.standby.connect(options="-c statement_timeout=2s -c lock_timeout=1s")
                query(self.connection, "BEGIN ISOLATION LEVEL REPEATABLE READ")
            table = self.dice.choice(TABLES)
            way = self.dice.choice(("SET LOCAL enable_seqscan = on", "SET LOCAL enable_seqscan = off"))
            rows = query(self.connection, f"{way}; SELECT id, v FROM {table} WHERE v >= 0 ORDER BY id")
        except psycopg2.Error as error:
            if error.pgcode not in AGAIN:
                self.wrong = f"{error.pgcode} {error}"
            return self.end()
        self.looks += 1
        self.seen[table] = rows
        for other, found in self.seen.items():
            if found != rows:
                self.wrong = f"{table} and {other} differ: {sorted(set(rows) ^ set(found))[:10]}"
        if len(self.seen) == len(TABLES) and self.dice.random() < 0.3:
            self.end()


class Chance:
    """Does to the servers what a die says."""

    def __init__(self, pair, seed):
        self.pair, self.dice, self.next, self.open = pair, random.Random(seed), count(1), {}
        self.readers = [Reader(pair, self.dice) for _ in range(5)]
        self.log = []

    def change(self):
        """A statement for each table, with a value of its own, of a row that is free."""
        free = [n for n in range(1, ROWS + 1) if n not in self.open.values()]
        row, v = self.dice.choice(free), next(self.next)
        return row, self.dice.choice((
            f"UPDATE {{0}} SET v = {v} WHERE id = {row}",
            f"UPDATE {{0}} SET v = {v}, pad = repeat('q', 9000) WHERE id = {row}",
            f"DELETE FROM {{0}} WHERE id = {row}; INSERT INTO {{0}} VALUES ({row}, {v}, 'again')",
            f"DELETE FROM {{0}} WHERE id = {row}",
            f"INSERT INTO {{0}} VALUES ({row}, {v}, 'x') ON CONFLICT (id) DO UPDATE SET v = {v}",
            f"SAVEPOINT s; UPDATE {{0}} SET v = -7 WHERE id = {row}; ROLLBACK TO s; UPDATE {{0}} SET v = {v} WHERE id = {row}"))

    def step(self):
        way = self.dice.random()
        if way < 0.25 and len(self.open) < ROWS // 2:
            row, sql = self.change()
            self.open[self.pair.prepare(sql)] = row
            what = f"prepare {row}"
        elif way < 0.5 and self.open:
            name = self.dice.choice(sorted(self.open))
            what = f"{'COMMIT' if self.dice.random() < 0.7 else 'ROLLBACK'} PREPARED '{name}'"
            self.pair.done(what)
            del self.open[name]
        elif way < 0.6:
            row, sql = self.change()
            what = f"commit {row}"
            self.pair.done("BEGIN; " + "; ".join(sql.format(t) for t in TABLES) + "; COMMIT")
        elif way < 0.7:
            what = self.dice.choice(("CHECKPOINT", *(f"VACUUM {t}" for t in TABLES)))
            self.pair.done(what)
        elif way < 0.8:
            what = f"SELECT * FROM {self.dice.choice(TABLES)}"
            self.pair.done(what)
        elif way < 0.85:
            what = "told"
            self.pair.done("UPDATE told SET n = n + 1")
        elif way < 0.87:
            what = "crash"
            self.pair.crash()
        elif way < 0.89:
            what = "restart of the standby"
            self.pair.restart_standby(self.dice.choice(("fast", "immediate")))
        else:
            what = "rest"
            time.sleep(self.dice.choice((0.02, 0.1, 0.2)))
        self.log.append(what)
        for reader in self.dice.sample(self.readers, self.dice.randrange(1, 5)):
            reader.look()

    def wrong(self):
        return [reader.wrong for reader in self.readers if reader.wrong]


def at_random(pair, seed=None, duration=None):
    pair.fresh()
    seed = seed or int(os.environ.get("MIXEDCC_SEED", time.time()))
    chance, until = Chance(pair, seed), time.monotonic() + (duration or seconds(25, long=300))
    while time.monotonic() < until and not chance.wrong():
        chance.step()
    [reader.end() for reader in chance.readers]
    check("prepared: each snapshot has all of a transaction or none", not chance.wrong(), (seed, chance.wrong(), chance.log[-60:]))
    looks = sum(reader.looks for reader in chance.readers)
    print(f"   {len(chance.log)} steps, {looks} looks", flush=True)
    premise("there was something to see", chance.wrong() or looks > 10)
    pair.done(*(f"COMMIT PREPARED '{name}'" for name in sorted(chance.open)))
    for table in TABLES:
        pair.done(f"SELECT * FROM {table}")
    pair.told()
    shown = {table: pair.look(f"SELECT id, v, pad FROM {table} ORDER BY id") for table in TABLES}
    there = query(pair.primary.connect(), "SELECT id, v, pad FROM p ORDER BY id")
    check("prepared: it shows what the primary shows at the end", all(rows == there for rows in shown.values()), seed)


TESTS = (half, quiet, defining, next_commit, between, over_full, many, overlapping, too_large, at_random)
# What is wrong, the check that finds it, and its test.
FAULTS = {"old_counts": ("prepared: not half of it after a restart of the primary", half),
          "list_kept": ("prepared: its end is told without a commit, COMMIT", quiet),
          "load_keeps_clock": ("prepared: the commit after its end is not lost", next_commit),
          "pieces_forgotten": ("prepared, between its records: all of it after its end", between),
          "ends_forgotten": ("prepared, overlapping commits: the standby's time goes on", overlapping),
          "definers_told": ("prepared, TRUNCATE: its rows cannot be loaded yet", defining)}


def test_all():
    chosen = [t for t in TESTS if not sys.argv[1:] or t.__name__ in sys.argv[1:]]
    pair = Pair()
    try:
        for test in chosen:
            test(pair)
    finally:
        pair.remove()


def test_faults():
    """In a build with faults: each of them is found."""
    for fault in sys.argv[2:] or FAULTS:
        check_name, test = FAULTS[fault]
        pair = Pair(fault)
        try:
            must_be_found(fault, check_name, lambda: test(pair))
        finally:
            pair.remove()


if __name__ == "__main__":
    main(test_faults if sys.argv[1:2] == ["--faults"] else test_all)
