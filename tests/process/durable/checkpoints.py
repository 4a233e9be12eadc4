#!/usr/bin/python3
"""Checkpoints beside writers of permanent tables: each one is held until all that was logged before
it is in images, and released. After the last one the image pages are what the tables have. So they
are after a smart or fast shutdown, and after a new companion took over. A round for which the disk
has no room holds its checkpoint, and stops no session. A checkpoint that is held outlives neither
its companion nor the postmaster."""

import hashlib
import multiprocessing
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time

import psycopg2

from lib.common import (RETRY, accepts, check, connect, drop_database, equal, keep_long, main, make_database, must_come, ok, query, server,
                        value, wait_until)
from lib.images import Images, columns, record_number, text

DATABASE = "process_checkpoints"
TABLES = {"c_occ": "occ", "c_2pl": "2pl", "c_partcc": "partcc"}
ROWS = 400
WORKERS = 4
CHECKPOINTS = int(os.environ.get("MIXEDCC_CHECKPOINTS", "100"))


def make_tables(connection):
    for table, protocol in TABLES.items():
        query(connection, f"CREATE TABLE {table} (id int, v int, t text) USING mixedcc WITH (mixedcc.partitions = 4, mixedcc.protocol = '{protocol}')")
        keep_long(connection, table, "t")  # as `imaged` reads it
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
    # Other tests may have left it off.
    query(connection, "ALTER SYSTEM SET restart_after_crash = on")
    query(connection, "SELECT pg_reload_conf()")
    make_tables(connection)
    query(connection, "CHECKPOINT")
    compare("after they were made", contents(connection))
    boss = connect("postgres")
    longest = 0
    with Load() as load:
        for n in range(CHECKPOINTS):
            if n % 5 == 4:
                query(connection, f"VACUUM {list(TABLES)[n // 5 % len(TABLES)]}")
            begun = time.monotonic()
            query(boss, "CHECKPOINT")
            longest = max(longest, time.monotonic() - begun)
            time.sleep(0.02)
    print(f"  {load.done.value} transactions, {CHECKPOINTS} checkpoints, the longest one took {longest:.2f} s", flush=True)
    check("checkpoints: each is released soon", longest < 30, longest)
    for table in TABLES:
        query(connection, f"VACUUM {table}")
    query(boss, "CHECKPOINT")
    tables = contents(connection)
    compare("after many checkpoints", tables)
    sizes = [os.path.getsize(path) for path, _ in tables.values()]
    print(f"  sizes of the files: {sizes}", flush=True)
    boss.close()
    connection.close()


def test_cleaning():
    """A table of which a part changes between checkpoints: its file stays small, and what is copied
    survives a crash."""
    connection = connect(DATABASE, options="-c synchronous_commit=on")
    query(connection, "CREATE TABLE cold USING mixedcc AS SELECT i AS id, 0 AS v, repeat('c', 100) AS t FROM generate_series(1, 20000) i")
    query(connection, "CHECKPOINT")
    path = value(connection, "SELECT current_setting('data_directory') || '/' || pg_relation_filepath('cold')")
    first, largest = os.path.getsize(path), 0
    for n in range(40):
        query(connection, "UPDATE cold SET v = v + 1 WHERE (id * 7919 + %s * 104729) %% 17 = 0", (n,))
        query(connection, "DELETE FROM cold WHERE id %% 400 = %s", (n,))
        query(connection, "CHECKPOINT")
        largest = max(largest, os.path.getsize(path))
    print(f"  the file: {first} bytes at first, {largest} at most", flush=True)
    check("cleaning: the file stays small", largest < 3 * first, (first, largest))

    def rows():
        return {record_number(ctid): (i, v) for ctid, i, v in query(connection, "SELECT ctid::text, id, v FROM cold")}

    before = rows()
    found = {n: struct.unpack_from("<ii", columns(row)) for n, row in Images(path).rows.items()}
    check("cleaning: the images have all", before == found, (len(before), len(found)))
    os.kill(companion(), signal.SIGKILL)
    must_come(lambda: not accepts() or connection.closed or lost(connection), 60)
    must_come(accepts, 60)
    connection = connect(DATABASE)
    check("cleaning: all is there after a crash", rows() == before)
    connection.close()


def lost(connection):
    try:
        query(connection, "SELECT 1")
        return False
    except psycopg2.Error:
        return True


# --- the companion ends -----------------------------------------------------------

COMPANION = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'mixedcc companion'"


def companion():
    connection, found = connect("postgres"), []
    must_come(lambda: found.extend(query(connection, COMPANION)) or found)
    connection.close()
    return found[0][0]


def is_another(before):
    """Does another one run? After SIGKILL the server may accept a session, and end it at once, as
    the postmaster may not have noticed yet."""
    try:
        return companion() != before
    except psycopg2.Error:
        return False


def test_companion():
    """A new companion takes over, after a clean end and after a crash."""
    with Load() as load:
        before, connection = companion(), connect("postgres")
        for _ in range(20):
            query(connection, "SELECT pg_cancel_backend(%s)", (before,))
            time.sleep(0.02)
        query(connection, "CHECKPOINT")
        connection.close()
        equal("companion: it has nothing that can be canceled", companion(), before)
        for how in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            before, done = companion(), load.done.value
            os.kill(before, how)
            must_come(lambda: is_another(before), 60)
            must_come(lambda: load.done.value > done + 20, 60)
            ok(f"companion: another one goes on after signal {how}")
    connection = connect(DATABASE)
    tables = contents(connection)
    query(connection, "CHECKPOINT")
    compare("after companions have ended", tables)
    connection.close()


def build_late_select():
    source = os.path.dirname(os.path.abspath(__file__)) + "/late_select/late_select.c"
    library = os.environ["PGDATA"] + "/../late_select.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, source, "-ldl"], check=True)
    return os.path.abspath(library)


def test_late_look():
    """A postmaster that is told of the companion's end just before its `select` sleeps for up to a
    minute (PostgreSQL 15). A commit that waits makes it look."""
    flag = os.path.abspath(os.environ["PGDATA"] + "/../late_select")
    os.environ.update(LD_PRELOAD=build_late_select(), LATE_SELECT=flag)
    server("restart")
    del os.environ["LD_PRELOAD"], os.environ["LATE_SELECT"]
    before, connection = companion(), connect(DATABASE)
    with open(flag, "w", encoding="ascii"):
        connect(DATABASE).close()  # wakes the postmaster: its next `select` is a late one
    os.kill(before, signal.SIGTERM)
    must_come(lambda: not os.path.exists(f"/proc/{before}"))
    began = time.monotonic()
    query(connection, "INSERT INTO c_occ VALUES (-1, 0, '')")
    check("late look: a commit waits for a new companion", time.monotonic() - began < 8)
    os.remove(flag)
    connection.close()
    server("restart")


# --- shutdowns --------------------------------------------------------------------

def count_up(number, stop, answered):
    """Counts a row of its own up, and says how far it was told that it is."""
    while not stop.is_set():
        try:
            connection = connect(DATABASE, options="-c synchronous_commit=on")
            n = value(connection, "SELECT v FROM counters WHERE id = %s", (number,))
            if n < answered[number]:
                print(f"  counter {number}: {n} after {answered[number]}", flush=True)
                os._exit(1)
            while not stop.is_set():
                query(connection, "UPDATE counters SET v = %s WHERE id = %s", (n + 1, number))
                n += 1
                answered[number] = n
        except psycopg2.Error:
            time.sleep(0.02)


def control(mode):
    data = os.environ["PGDATA"]
    as_owner(os.path.join(os.environ["PGBIN"], "pg_ctl"), "-D", data, "-m", mode, "-w", "-t", "60", "stop")


def as_owner(*command):
    """Runs a command as the server's user."""
    if os.getuid() == 0:
        command = ["runuser", "-u", "postgres", "--", *command]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")


def test_shutdowns():
    connection = connect(DATABASE)
    query(connection, "CREATE TABLE counters (id int PRIMARY KEY, v int) USING mixedcc")
    query(connection, f"INSERT INTO counters SELECT i, 0 FROM generate_series(0, {WORKERS - 1}) i")
    path = value(connection, "SELECT current_setting('data_directory') || '/' || pg_relation_filepath('counters')")
    connection.close()
    stop, answered = multiprocessing.Event(), multiprocessing.Array("l", WORKERS)
    workers = [multiprocessing.Process(target=count_up, args=(i, stop, answered)) for i in range(WORKERS)]
    [one.start() for one in workers]
    for mode in ("fast", "immediate", "fast", "smart"):
        before = list(answered)
        must_come(lambda: all(now > then + 10 for now, then in zip(answered, before)), 60)
        if mode == "smart":
            stop.set()  # a smart shutdown waits for sessions
        control(mode)
        time.sleep(0.2)
        told = list(answered)
        if mode != "immediate":
            images = Images(path)
            found = dict(struct.unpack_from("<ii", columns(row)) for row in images.rows.values())
            good = all(told[i] <= found[i] <= told[i] + 1 for i in range(WORKERS))
            check(f"shutdown: {mode}: the images have all commits", good, (told, found))
            check(f"shutdown: {mode}: no entry is undecided", not images.pending, images.pending)
        server("start")
    [one.join(60) for one in workers]
    check("shutdown: no commit is lost", [one.exitcode for one in workers] == [0] * WORKERS)
    connection = connect(DATABASE)
    found = dict(query(connection, "SELECT id, v FROM counters"))
    check("shutdown: all commits are found", all(answered[i] <= found[i] <= answered[i] + 1 for i in range(WORKERS)), (list(answered), found))
    compare("after shutdowns", contents(connection))
    connection.close()


# --- no room on the disk ----------------------------------------------------------

class Checkpoint(threading.Thread):
    """A checkpoint, or another command, that a session waits for."""

    def __init__(self, database="postgres", command="CHECKPOINT"):
        super().__init__(daemon=True)
        self.database, self.command = database, command
        self.start()

    def run(self):
        try:
            connection = connect(self.database)
            query(connection, self.command)
            connection.close()
        except psycopg2.Error:
            pass


def make_full(connection):
    """The companion cannot extend the file of the table `room`, whose next round needs it. The file
    is larger than a segment of WAL, which the companion may have to write."""
    query(connection, "SET synchronous_commit = on; DROP TABLE IF EXISTS room")
    query(connection, "CREATE TABLE room USING mixedcc AS SELECT i AS id, 0 AS v, repeat('r', 400) AS t FROM generate_series(1, 50000) i")
    query(connection, "CHECKPOINT")
    path = value(connection, "SELECT current_setting('data_directory') || '/' || pg_relation_filepath('room')")
    size = os.path.getsize(path)
    check("full: the file is larger than a segment", size > 17 << 20, size)
    pid = companion()
    as_owner("prlimit", "--pid", str(pid), f"--fsize={size}:")
    query(connection, "UPDATE room SET v = id WHERE id % 3 = 0")
    return pid, path


def test_full():
    connection = connect(DATABASE)
    pid, path = make_full(connection)
    checkpoint = Checkpoint()
    time.sleep(2.5)
    check("full: the checkpoint is held", checkpoint.is_alive())
    query(connection, "UPDATE room SET v = -id WHERE id = 7; INSERT INTO room VALUES (-1, -1, ''); DELETE FROM room WHERE id = 9")
    ok("full: commits go on")
    as_owner("prlimit", "--pid", str(pid), "--fsize=unlimited:")
    checkpoint.join(30)
    check("full: it is released when there is room", not checkpoint.is_alive() and companion() == pid)
    query(connection, "CHECKPOINT")
    rows = {record_number(ctid): (i, v) for ctid, i, v in query(connection, "SELECT ctid::text, id, v FROM room")}
    found = {n: struct.unpack_from("<ii", columns(row)) for n, row in Images(path).rows.items()}
    check("full: the images have all", rows == found, (len(rows), len(found)))
    connection.close()


def test_postmaster():
    """The postmaster is killed while a checkpoint is held: all processes end, and the next start
    recovers."""
    connection = connect(DATABASE)
    make_full(connection)
    Checkpoint()
    Checkpoint(DATABASE, "VACUUM room")  # which waits for a round
    time.sleep(1.5)
    with open(os.environ["PGDATA"] + "/postmaster.pid", encoding="ascii") as file:
        postmaster = int(file.readline())
    names = subprocess.run(["ps", "-o", "pid=", "--ppid", str(postmaster)], stdout=subprocess.PIPE, text=True, check=True)
    children = [int(word) for word in names.stdout.split()]
    os.kill(postmaster, signal.SIGKILL)
    connection.close()
    left = lambda: [pid for pid in children if os.path.exists(f"/proc/{pid}/exe")]
    check("postmaster: no process stays", wait_until(lambda: not left(), 30), left())
    # A dead postmaster that no parent has asked for counts as a running one.
    os.remove(os.environ["PGDATA"] + "/postmaster.pid")
    os.remove(f"{os.environ['PGHOST']}/.s.PGSQL.{os.environ['PGPORT']}.lock")
    server("start")
    connection = connect(DATABASE)
    found = query(connection, "SELECT count(*), count(*) FILTER (WHERE v = id) FROM room")
    check("postmaster: all rows are there", found == [(50000, 50000 // 3)], found)
    compare("after the postmaster was killed", contents(connection) if not query(connection, "CHECKPOINT") else {})
    query(connection, "ALTER SYSTEM RESET restart_after_crash")
    connection.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    tests = [test_checkpoints, test_cleaning, test_companion, test_late_look, test_shutdowns, test_full, test_postmaster]
    wanted = sys.argv[1:]
    main(*[test for test in tests if not wanted or test.__name__ in wanted or test == tests[0]])
