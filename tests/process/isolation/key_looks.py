#!/usr/bin/python3
"""Looks under `2pl` at columns that updates do not change: they lock the row's key alone, and are
validated. In a new table all columns count as changing, so looks there lock their rows. Then a
history of transactions that look at columns and write others is judged by sums that each of them
must find."""

import random
import threading
import time

import psycopg2

from lib.common import check, connect, create_table, drop_database, equal, main, make_database, must_come, ok, query, reload, seconds, value

DATABASE = "process_key_looks"
PERIOD = 0.1
WAITS = "55P03"


def session(options=""):
    return connect(DATABASE, options=f"-c lock_timeout=150ms -c default_transaction_isolation=serializable {options}")


def outcome(connection, sql):
    try:
        query(connection, sql)
        return "ok"
    except psycopg2.Error as error:
        return error.pgcode


def set_period(boss, period):
    query(boss, f"ALTER SYSTEM SET mixedcc.column_period = '{period}'")
    reload(boss)


class Payments:
    """Updates of a column of row 2, which the tests leave alone: so each period knows of some."""

    def __init__(self, column="ytd"):
        self.column, self.stop = column, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        mine = connect(DATABASE)
        while not self.stop.is_set():
            query(mine, f"UPDATE w SET {self.column} = {self.column} + 1 WHERE id = 2")
            time.sleep(PERIOD / 10)
        mine.close()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def make(boss):
    query(boss, "DROP TABLE IF EXISTS w, o")
    create_table(boss, "w", "id int PRIMARY KEY, tax int, ytd int, name text", protocol="2pl", partitions=1)
    create_table(boss, "o", "id int PRIMARY KEY, tax int", protocol="2pl", partitions=1)
    query(boss, "INSERT INTO w SELECT i, 7, 0, 'n' FROM generate_series(1, 4) i")


def beside(look, write, ends="INSERT INTO o VALUES (1, 1)"):
    """One transaction looks; another one writes and commits; the first one ends."""
    first, second = session(), session()
    query(first, "BEGIN")
    query(first, look)
    written = outcome(second, write)
    ended = outcome(first, ends) if ends else "ok"
    ended = outcome(first, "COMMIT") if ended == "ok" else ended
    outcome(first, "ROLLBACK")
    query(first, "DELETE FROM o")
    first.close()
    second.close()
    return written, ended


LOOK = "SELECT tax FROM w WHERE id = 1"
SUM = "UPDATE w SET ytd = ytd + 1 WHERE id = 1"
TAX = "UPDATE w SET tax = tax + 1 WHERE id = 1"


def knows():
    """A look at tax lets a payment in."""
    return beside(LOOK, SUM) == ("ok", "ok")


def learn(boss):
    """Short periods, until looks at tax let payments in; then longer ones, in which nothing is
    forgotten for a second at least."""
    def known():
        set_period(boss, f"{int(PERIOD * 1000)}ms")
        must_come(knows)
        set_period(boss, "1h")
        time.sleep(3 * PERIOD)  # the last short one ends
        return knows()
    must_come(known, 60)


def test_looks():
    boss = connect(DATABASE)
    set_period(boss, "1h")
    make(boss)
    equal("a new table's looks lock their rows", [beside(LOOK, SUM), beside(LOOK, TAX)], [(WAITS, "ok")] * 2)
    with Payments():
        learn(boss)
        ok("then updates of other columns pass")
        for ends, wanted in (("INSERT INTO o VALUES (1, 1)", "40001"), (None, "ok")):
            learn(boss)
            got = beside(LOOK, TAX, ends)
            equal(f"a column that was looked at is changed, {'and more is written' if ends else 'and nothing is written'}", got, ("ok", wanted))
            got = beside(LOOK, TAX, ends)
            equal("it changes by now, so the next look locks its row", got, (WAITS, "ok"))
        learn(boss)
        for name, look, write in (("a deletion", LOOK, "DELETE FROM w WHERE id = 1"), ("another key", LOOK, "UPDATE w SET id = 9 WHERE id = 1"),
                                  ("a look at the whole row", "SELECT * FROM w WHERE id = 1", SUM), ("a look to write", LOOK + " FOR SHARE", SUM),
                                  ("a look at what changes", "SELECT ytd FROM w WHERE id = 1", SUM)):
            equal(f"waits: {name}", beside(look, write), (WAITS, "ok"))
        equal("a savepoint's look is remembered", beside(f"SAVEPOINT s; {LOOK}; RELEASE s", TAX), ("ok", "40001"))
        learn(boss)
        equal("so is one that was taken back", beside(f"SAVEPOINT s; {LOOK}; ROLLBACK TO s", TAX)[0], "ok")
        learn(boss)
        one, two = session(), session()
        query(one, f"BEGIN; {LOOK}")
        query(two, f"BEGIN; {LOOK}")
        got = outcome(one, SUM)
        query(one, "ROLLBACK")
        query(two, "ROLLBACK")
        equal("a write passes beside another's look", got, "ok")
        equal("who has looked and then written has told: the next look locks its row", beside(LOOK, SUM), (WAITS, "ok"))
        learn(boss)
        writer = session()
        query(writer, f"BEGIN; SELECT name FROM w WHERE id = 1; {SUM}; COMMIT")
        writer.close()
        got = beside("SELECT name FROM w WHERE id = 1", SUM), beside(LOOK, SUM)
        equal("one at another column by the same key does not", got, ((WAITS, "ok"), ("ok", "ok")))
        query(boss, "TRUNCATE w")
        query(boss, "INSERT INTO w SELECT i, 7, 0, 'n' FROM generate_series(1, 4) i")
        equal("TRUNCATE forgets", beside(LOOK, SUM), (WAITS, "ok"))
        learn(boss)
        set_period(boss, "0")
        must_come(lambda: beside(LOOK, SUM) == (WAITS, "ok"))
        ok("a period of 0: looks lock their rows")
    boss.close()


def test_default():
    """Without a setting a new table knows after some seconds, and forgets later and later."""
    boss = connect(DATABASE)
    query(boss, "ALTER SYSTEM RESET mixedcc.column_period")
    reload(boss)
    equal("the default", value(boss, "SHOW mixedcc.column_period"), "1min")
    make(boss)
    before = time.monotonic()
    with Payments():
        must_come(knows)
        check("a new table knows after two periods", time.monotonic() - before < 5)
        # The next periods last 2 s and 4 s.
        time.sleep(2)
        query(boss, "UPDATE w SET tax = tax + 1 WHERE id = 4")
        changed = time.monotonic()
        equal("what changes is known at once", beside(LOOK, SUM), (WAITS, "ok"))
        time.sleep(2.5)
        equal("and for longer than two first periods", beside(LOOK, SUM), (WAITS, "ok"))
        must_come(knows)
        check("but not for ever", 3 < time.monotonic() - changed < 20, time.monotonic() - changed)
    boss.close()


def orders(until, seed, problems, done):
    """Reads a tax and a rate that only change together, and writes them down."""
    mine, dice = connect(DATABASE, options="-c default_transaction_isolation=serializable"), random.Random(seed)
    number = seed * 1_000_000
    while time.time() < until or not done:
        number += 1
        row = dice.randint(1, 3)
        try:
            query(mine, "BEGIN")
            tax = value(mine, f"SELECT tax FROM p WHERE id = {row}")
            time.sleep(dice.random() / 500)
            rate = value(mine, f"SELECT rate FROM p WHERE id = {row}")
            query(mine, f"INSERT INTO ordered VALUES ({number}, {tax}, {rate})")
            if dice.random() < 0.2:
                query(mine, f"UPDATE p SET ytd = ytd + 1 WHERE id = {row}")
            query(mine, "COMMIT")
            done.append(1)
        except psycopg2.Error as error:
            query(mine, "ROLLBACK")
            if error.pgcode not in ("40001", "40P01"):
                problems.append(error.pgcode)
                break
    mine.close()


def payments(until, seed, problems, done):
    mine, dice = connect(DATABASE, options="-c default_transaction_isolation=serializable"), random.Random(seed)
    while time.time() < until or not done:
        row = dice.randint(1, 3)
        try:
            if dice.random() < 0.03:
                query(mine, f"BEGIN; UPDATE p SET tax = tax + 1 WHERE id = {row}; UPDATE p SET rate = rate + 1 WHERE id = {row}; COMMIT")
            else:
                query(mine, f"UPDATE p SET ytd = ytd + 1 WHERE id = {row}")
                done.append(row)
        except psycopg2.Error as error:
            query(mine, "ROLLBACK")
            if error.pgcode not in ("40001", "40P01"):
                problems.append(error.pgcode)
                break
    mine.close()


def test_history():
    boss = connect(DATABASE)
    set_period(boss, f"{int(PERIOD * 1000)}ms")
    create_table(boss, "p", "id int PRIMARY KEY, tax int, rate int, ytd int", protocol="2pl", partitions=1)
    create_table(boss, "ordered", "id int PRIMARY KEY, tax int, rate int", protocol="2pl", partitions=1)
    query(boss, "INSERT INTO p SELECT i, 0, 0, 0 FROM generate_series(1, 3) i")
    until, problems, done, paid = time.time() + seconds(6, 30), [], [], []
    threads = [threading.Thread(target=orders, args=(until, seed, problems, done)) for seed in range(3)]
    threads += [threading.Thread(target=payments, args=(until, seed, problems, paid)) for seed in range(3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal("no other error", problems, [])
    equal("each order has a tax and a rate of one moment", value(boss, "SELECT count(*) FROM ordered WHERE tax <> rate"), 0)
    equal("all orders are there", value(boss, "SELECT count(*) FROM ordered"), len(done))
    check("no payment is lost", value(boss, "SELECT sum(ytd) FROM p") >= len(paid), len(paid))
    ok(f"{len(done)} orders beside {len(paid)} payments")
    boss.close()


if __name__ == "__main__":
    make_database(DATABASE).close()
    main(test_looks, test_default, test_history, lambda: drop_database(DATABASE))
