#!/usr/bin/python3
"""Checkpoints beside writers of permanent tables: each one is held until all that was logged before
it is in images, and released. After the last one the image pages are what the tables have. So they
are after a smart or fast shutdown, and after a new companion took over. An immediate shutdown, and
the end of the companion at any of its stop events, are crashes, and the server recovers."""

import hashlib
import multiprocessing
import os
import random
import signal
import struct
import time

import psycopg2

from lib.common import (RETRY, check, connect, drop_database, equal, fail, main, make_database, must_come, ok,
                        query, server, value, wait_until)
from lib.images import Images, columns, record_number, text

DATABASE = "process_checkpoints"
TABLES = {"c_occ": "occ", "c_2pl": "2pl", "c_partcc": "partcc"}
ROWS = 400
WORKERS = 4
CHECKPOINTS = int(os.environ.get("MIXEDCC_CHECKPOINTS", "100"))


def make_tables(connection):
    query(connection, "SET mixedcc.default_persistence = permanent")
    for table, protocol in TABLES.items():
        query(connection, f"CREATE TABLE {table} (id int, v int, t text) USING mixedcc WITH (mixedcc.partitions = 4, mixedcc.protocol = '{protocol}')")
        query(connection, f"CREATE INDEX ON {table} (id)")
        query(connection, f"INSERT INTO {table} SELECT i, 0, repeat('a', i % 200) FROM generate_series(1, {ROWS}) i")


def some_text(dice):
    length = dice.choice([0, 3, 100, 2000, 8030, 8080, 9000, 40_000, 300_000] if dice.random() < 0.05 else [0, 5, 60])
    return dice.choice("xyz") * length


def change(cursor, dice):
    cursor.execute("BEGIN ISOLATION LEVEL " + dice.choice(["SERIALIZABLE", "REPEATABLE READ", "READ COMMITTED"]))
    if dice.random() < 0.2:
        cursor.execute("SELECT pg_current_xact_id()")
    for _ in range(dice.randrange(1, 5)):
        table, i = dice.choice(list(TABLES)), dice.randrange(1, ROWS)
        what = dice.random()
        if what < 0.6:
            cursor.execute(f"UPDATE {table} SET v = v + 1, t = %s WHERE id = %s", (some_text(dice), i))
        elif what < 0.8:
            cursor.execute(f"DELETE FROM {table} WHERE id = %s", (i,))
        else:
            cursor.execute(f"INSERT INTO {table} VALUES (%s, 1, %s)", (i, some_text(dice)))
        if dice.random() < 0.1:
            cursor.execute("SAVEPOINT s")
            cursor.execute(f"UPDATE {table} SET v = -1 WHERE id < %s", (i % 9,))
            cursor.execute("ROLLBACK TO s")
    cursor.execute("ROLLBACK" if dice.random() < 0.1 else "COMMIT")


def work(seed, stop, done):
    dice = random.Random(seed)
    connection = None
    while not stop.is_set():
        try:
            if connection is None or connection.closed:
                connection = connect(DATABASE)
            with connection.cursor() as cursor:
                change(cursor, dice)
            with done.get_lock():
                done.value += 1
        except psycopg2.Error as error:
            if connection is not None and not connection.closed:
                try:
                    query(connection, "ROLLBACK")
                except psycopg2.Error:
                    connection.close()
            if connection is None or connection.closed:
                connection = None
                time.sleep(0.05)
            elif error.pgcode not in RETRY and error.pgcode not in ("57P03", "57P01"):
                print(f"  worker: {error.pgcode} {error}", flush=True)
                raise


class Load:
    """Writers, for as long as the block lasts."""

    def __enter__(self):
        self.stop, self.done = multiprocessing.Event(), multiprocessing.Value("L", 0)
        self.all = [multiprocessing.Process(target=work, args=(i, self.stop, self.done)) for i in range(WORKERS)]
        [one.start() for one in self.all]
        must_come(lambda: self.done.value > 20)
        return self

    def __exit__(self, *_):
        self.stop.set()
        [one.join(60) for one in self.all]
        check("checkpoints: no writer failed", all(one.exitcode == 0 for one in self.all), [one.exitcode for one in self.all])
        [one.kill() for one in self.all]


def contents(connection):
    """The rows of each table, by record number, and the file of each."""
    out = {}
    for table in TABLES:
        path = value(connection, "SELECT current_setting('data_directory') || '/' || pg_relation_filepath(%s)", (table,))
        rows = query(connection, f"SELECT ctid::text, id, v, md5(t) FROM {table}")
        out[table] = path, {record_number(ctid): tuple(rest) for ctid, *rest in rows}
    return out


def imaged(path):
    images = Images(path)

    def row(stored):
        data = columns(stored)
        return (*struct.unpack_from("<ii", data), hashlib.md5(text(data[8:])).hexdigest())

    return images, {record: row(stored) for record, stored in images.rows.items()}


def compare(what, tables):
    for table, (path, rows) in tables.items():
        images, found = imaged(path)
        differ = [n for n in rows.keys() | found.keys() if rows.get(n) != found.get(n)]
        shown = [(n, rows.get(n), found.get(n)) for n in differ[:3]]
        check(f"checkpoints: images of {table} are its rows {what}", not differ, f"{len(differ)} of {len(rows)} differ: {shown}")
        check(f"checkpoints: no number above the high water {what}", not found or max(found) < images.high, (max(found), images.high))


def test_checkpoints():
    connection = make_database(DATABASE)
    make_tables(connection)
    query(connection, "CHECKPOINT")
    compare("after they were made", contents(connection))
    boss = connect("postgres")
    longest = 0
    with Load() as load:
        for _ in range(CHECKPOINTS):
            begun = time.monotonic()
            query(boss, "CHECKPOINT")
            longest = max(longest, time.monotonic() - begun)
    print(f"  {load.done.value} transactions, {CHECKPOINTS} checkpoints, the longest one took {longest:.2f} s", flush=True)
    check("checkpoints: each is released soon", longest < 30, longest)
    query(boss, "CHECKPOINT")
    tables = contents(connection)
    compare("after many checkpoints", tables)
    sizes = [os.path.getsize(path) for path, _ in tables.values()]
    print(f"  sizes of the files: {sizes}", flush=True)
    query(connection, f"DROP TABLE {next(iter(TABLES))}")
    query(connection, "CHECKPOINT")
    ok("checkpoints: a table is dropped")
    connection.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_checkpoints)
