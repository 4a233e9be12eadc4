#!/usr/bin/python3
"""Files that cannot grow, as on a full disk: a segment of WAL, at a commit; the journal, in
recovery; images, while a session waits for them, or makes them of a journal. The server ends, but
in the last two cases. When there is room again, all answered commits are there. `checkpoints` has
more of the companion's files."""

import os
import subprocess
import sys
import threading
import time
import traceback

import psycopg2

from lib import common, crash
from lib.clusters import AS_SERVER
from lib.common import check, drop_database, equal, fail, failures, make_database, query, server, value

DATABASE = "process_full"


def connect():
    return common.connect(DATABASE, options="-c synchronous_commit=on")


def limited(size, *arguments):
    """Runs prlimit as the server's user: files do not grow beyond this."""
    command = [*AS_SERVER, "prlimit", f"--fsize={size}:", *arguments]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/")


def fails_to_start(size):
    control = os.path.join(os.environ["PGBIN"], "pg_ctl")
    try:
        limited(size, control, "-D", crash.SERVER["data"], "-l", log_file(), "-w", "start")
    except subprocess.CalledProcessError:
        return True
    return False


def log_since(position):
    with open(log_file(), encoding="utf-8", errors="replace") as log:
        log.seek(position)
        return log.read()


def log_file():
    return crash.SERVER["log"]


def indexes_agree(name, connection, table):
    query(connection, f"SELECT bt_index_check('{table}_pkey', true)")
    both = [value(connection, f"SELECT count(*) FROM {table} WHERE id >= 0")]
    query(connection, "SET enable_seqscan = off")
    both.append(value(connection, f"SELECT count(*) FROM {table} WHERE id >= 0"))
    query(connection, "RESET enable_seqscan")
    check(f"{name}: index and scan agree", both[0] == both[1], both)


def test_wal():
    """A segment of WAL cannot be made or filled."""
    connection = connect()
    query(connection, "CREATE TABLE w (id int PRIMARY KEY, v text) USING mixedcc")
    common.keep_long(connection, "w", "v")
    query(connection, "SELECT pg_switch_wal()")
    query(connection, "CHECKPOINT")
    position = os.path.getsize(log_file())
    limited((16 << 20) - 8192, "--pid", str(crash.postmaster()))
    writer, answered, ended = connect(), -1, None
    try:
        for n in range(4000):
            query(writer, "INSERT INTO w VALUES (%s, repeat('w', 60000))", (n,))
            answered = n
    except psycopg2.Error as error:
        ended = error
    check("wal: the server ends by itself", ended is not None and writer.closed, ended)
    common.must_come(lambda: not crash.has_postmaster(), 60)
    said = log_since(position)
    check("wal: it says why", "PANIC" in said and "File too large" in said, said[-500:])
    crash.start()
    connection = connect()
    found, most = query(connection, "SELECT count(*), max(id) FROM w WHERE length(v) = 60000")[0]
    check("wal: answered commits are there", answered > 10 and found == most + 1 and most - answered in (0, 1), (answered, found, most))
    indexes_agree("wal", connection, "w")
    query(connection, "DROP TABLE w")
    connection.close()


def test_round():
    """The images of a table cannot grow, while a session waits for them: it is not tried all the
    time, and goes on when there is room."""
    connection, waiter = connect(), connect()
    query(connection, "CREATE TABLE r (id int PRIMARY KEY, v text) USING mixedcc")
    query(connection, "CHECKPOINT")
    companion, errors = query(connection, "SELECT pid, errors FROM mixedcc.durability")[0]
    limited(20 << 20, "--pid", str(companion))  # more than a segment of WAL
    query(connection, "INSERT INTO r SELECT i, repeat('r', 900) FROM generate_series(1, 26000) i")
    vacuum = threading.Thread(target=query, args=(waiter, "VACUUM r"))
    vacuum.start()
    failed = lambda: value(connection, "SELECT errors FROM mixedcc.durability") - errors
    begun = time.monotonic()
    common.must_come(lambda: failed() > 2)
    tried, took = failed(), time.monotonic() - begun
    check("round: it is tried once a second", tried <= took + 2, (tried, took))
    check("round: the session waits", vacuum.is_alive())
    limited("unlimited", "--pid", str(companion))
    vacuum.join(20)
    check("round: the session goes on", not vacuum.is_alive())
    equal("round: nothing is dirty", value(connection, "SELECT dirty_rows FROM mixedcc.durability"), 0)
    query(connection, "DROP TABLE r")
    connection.close()
    waiter.close()


def test_journal():
    """The journal cannot grow in recovery."""
    connection = connect()
    query(connection, "CREATE TABLE j (id int PRIMARY KEY, v text) USING mixedcc")
    query(connection, "INSERT INTO j SELECT i, '' FROM generate_series(1, 20000) i")
    query(connection, "CHECKPOINT")
    query(connection, "UPDATE j SET v = repeat('j', 300)")
    connection.close()
    crash.kill_group()
    for turn in range(2):
        position = os.path.getsize(log_file())
        failed = fails_to_start(3 << 20)
        said = log_since(position)
        check(f"journal: recovery ends, {turn}", failed and "FATAL" in said and "extend" in said, said[-500:])
    crash.start()
    connection = connect()
    equal("journal: all rows are there", query(connection, "SELECT count(*), sum(length(v)) FROM j"), [(20000, 6000000)])
    indexes_agree("journal", connection, "j")
    connection.close()


def test_absorption():
    """The images of a journal cannot grow, at the first use of its table. The session's next try
    needs no more room than one that succeeds at once."""
    connection = connect()
    query(connection, "CREATE TABLE a (id int PRIMARY KEY, v text) USING mixedcc")
    common.keep_long(connection, "a", "v")
    query(connection, "CHECKPOINT")
    query(connection, "INSERT INTO a SELECT i, repeat('a', 1500) FROM generate_series(1, 30000) i")  # 48 MB of pages
    path = os.path.join(crash.SERVER["data"], value(connection, "SELECT pg_relation_filepath('a')"))
    connection.close()
    crash.kill_group()
    crash.start()
    connection, size = connect(), 0
    for limit in (24, 30):
        limited(limit << 20, "--pid", str(connection.info.backend_pid))
        try:
            query(connection, "SELECT count(*) FROM a")
            check(f"absorption: it fails at {limit} MB", False)
        except psycopg2.Error as error:
            check(f"absorption: it fails at {limit} MB", "extend" in str(error), str(error))
        before, size = size, os.path.getsize(path)
        check(f"absorption: what has room is written, at {limit} MB", size >= (limit - 1) << 20, (before, size))
    limited(60 << 20, "--pid", str(connection.info.backend_pid))
    equal("absorption: all rows are there", query(connection, "SELECT count(*), sum(length(v)) FROM a"), [(30000, 45000000)])
    check("absorption: its images are there once", os.path.getsize(path) < 60 << 20, os.path.getsize(path))
    indexes_agree("absorption", connection, "a")
    connection.close()
    crash.kill_group()
    crash.start()
    connection = connect()
    equal("absorption: also behind a crash", query(connection, "SELECT count(*), sum(length(v)) FROM a"), [(30000, 45000000)])
    query(connection, "DROP TABLE a")
    connection.close()


def main():
    connection = make_database(DATABASE)
    query(connection, "CREATE EXTENSION amcheck")
    crash.find_server(connection, "autovacuum = off", "min_wal_size = 32MB")
    connection.close()
    server("stop")
    crash.configure()
    crash.start()
    for test in (test_wal, test_round, test_journal, test_absorption):
        try:
            test()
        except Exception:
            fail(test.__name__, traceback.format_exc())
            if crash.has_postmaster():
                crash.kill_group()
            crash.start()
    server("stop")
    crash.give_back()
    server("start")
    drop_database(DATABASE)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
