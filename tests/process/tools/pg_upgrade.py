#!/usr/bin/python3
"""pg_upgrade, to the same version and from an older one. The rows stay in the old cluster's file,
are refused until that is copied, and then are all there. Clusters of its own beside the server's.

OLD_PGBIN has the programs of an older version, if there is one (scripts/in-version)."""

import os
import pathlib
import shutil
import subprocess
import tempfile

import psycopg2

from lib.common import check, equal, main, ok, query, value, wait_until

PORT = "6543"
ROOT = pathlib.Path(tempfile.mkdtemp(prefix="mixedcc-upgrade-", dir=pathlib.Path(os.environ["PGHOST"]).parent))
OLD, NEW = ROOT / "old", ROOT / "new"
BIN = os.environ["PGBIN"]
OLD_BIN = os.environ.get("OLD_PGBIN")
# A later minor version notes when columns were made, as 15.20 does. pg_upgrade to one that does not
# know this, as 18.6, restores no table then, not of heap either.
FORGET = "SET allow_system_table_mods = on; UPDATE pg_attribute SET attoptions = NULL WHERE attoptions::text LIKE '{pg_attver=%'"
# With its PRIMARY KEY `k` has more unique keys than are in memory. pg_dump restores them in the
# order of their names.
KEYS = ["a", "b", "c", "d", "e"]
DEFINITION = "CREATE UNLOGGED TABLE k (id int PRIMARY KEY, " + ", ".join(f"{c} int NOT NULL UNIQUE" for c in KEYS) + ") USING mixedcc"


def run(programs, name, *arguments):
    done = subprocess.run([os.path.join(programs, name), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    if done.returncode != 0:
        raise RuntimeError(f"{name} {' '.join(map(str, arguments))}: {done.stdout}")
    return done.stdout


def make(programs, directory):
    run(programs, "initdb", "-D", directory, "-A", "trust", "-U", "postgres", "--locale=C.UTF-8", "-E", "UTF8", "--no-sync", "-k")
    with open(directory / "postgresql.conf", "a", encoding="utf-8") as file:
        file.write(f"unix_socket_directories = '{ROOT}'\nlisten_addresses = ''\nport = {PORT}\nfsync = off\n"
                   "shared_preload_libraries = 'mixedcc'\nmixedcc.memory = '64MB'\n")


def ctl(programs, directory, *command):
    subprocess.run([os.path.join(programs, "pg_ctl"), "-D", directory, "-w", "-l", ROOT / "log", *command],
                   check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def connect(database="postgres"):
    connection = psycopg2.connect(host=str(ROOT), port=PORT, user="postgres", dbname=database)
    connection.autocommit = True
    return connection


def contents():
    connection = connect()
    try:
        return [query(connection, f"SELECT ctid::text, t.* FROM {t} t ORDER BY id") for t in ("m", "k")]
    finally:
        connection.close()


def fails(statement, *codes, database="postgres"):
    """Does a statement fail with one of these errors? Returns the error."""
    connection = connect(database)
    try:
        query(connection, statement)
        return None
    except psycopg2.Error as error:
        return error if error.pgcode in codes else None
    finally:
        connection.close()


def insert(first, database="postgres"):
    """A row of `k`, and one for each of its keys that has the key of that one. Which are let in?"""
    connection = connect(database)
    query(connection, "INSERT INTO k VALUES (%s, %s, %s, %s, %s, %s)", tuple(range(first, first + 6)))
    connection.close()
    rows = [[first + i if i == key else first + 10 * key + i + 10 for i in range(6)] for key in range(6)]
    return [key for key, row in zip(["id", *KEYS], rows) if not fails(f"INSERT INTO k VALUES ({', '.join(map(str, row))})", "23505", database=database)]


def upgrade(name, old_programs):
    try:
        upgrade_between(name, old_programs)
    finally:
        for programs, directory in ((old_programs, OLD), (BIN, NEW)):
            if (directory / "postmaster.pid").exists():
                ctl(programs, directory, "stop", "-m", "immediate")
            shutil.rmtree(directory, ignore_errors=True)


def upgrade_between(name, old_programs):
    make(old_programs, OLD)
    make(BIN, NEW)
    arguments = ["-b", old_programs, "-B", BIN, "-d", str(OLD), "-D", str(NEW), "-s", str(ROOT), "-U", "postgres"]
    ctl(old_programs, OLD, "start")
    connection = connect()
    query(connection, "CREATE EXTENSION mixedcc; CREATE EXTENSION amcheck; CREATE TABLE h AS SELECT 1 AS a")
    query(connection, "CREATE UNLOGGED TABLE m (id int PRIMARY KEY, v text) USING mixedcc WITH (mixedcc.partitions = 4)")
    query(connection, "INSERT INTO m SELECT i, 'v' || i FROM generate_series(1, 3000) i; DELETE FROM m WHERE id % 7 = 0")
    query(connection, "CREATE INDEX m_v ON m (v); CREATE UNLOGGED TABLE empty (id int) USING mixedcc")
    query(connection, f"{DEFINITION}; INSERT INTO k SELECT i, i, i, i, i, i FROM generate_series(1, 1000) i")
    if old_programs != BIN:
        query(connection, FORGET)
    connection.close()
    before = contents()
    ctl(old_programs, OLD, "stop")
    check(f"{name}: checksums fit while the rows are saved", "Bad checksums:  0" in run(old_programs, "pg_checksums", "--check", "-D", OLD))
    run(BIN, "pg_upgrade", *arguments, "--check")
    ctl(old_programs, OLD, "start")
    equal(f"{name}: --check leaves the rows alone", contents(), before)
    ctl(old_programs, OLD, "stop")
    run(BIN, "pg_upgrade", *arguments)
    check(f"{name}: the rows are in the old cluster's file", (OLD / "mixedcc.rows").exists())
    ctl(BIN, NEW, "start")
    connection = connect()
    equal(f"{name}: heap tables are there", value(connection, "SELECT count(*) FROM h"), 1)
    connection.close()
    error = fails("SELECT * FROM m", "55000")
    check(f"{name}: a table without its rows is refused", error and "after pg_upgrade" in error.diag.message_hint, error)
    ctl(BIN, NEW, "stop")
    shutil.copy(OLD / "mixedcc.rows", NEW / "mixedcc.rows")
    ctl(BIN, NEW, "start")
    equal(f"{name}: with the file all rows are there", contents(), before)
    connection = connect()
    equal(f"{name}: partitions too", value(connection, "SELECT count(*) FROM mixedcc.partitions WHERE \"table\" = 'm'::regclass"), 4)
    query(connection, "SELECT mixedcc.check_primary_index('m'), bt_index_parent_check('m_pkey', true), bt_index_parent_check('m_v', true)")
    query(connection, "INSERT INTO m VALUES (7, 'new'); UPDATE m SET v = 'changed' WHERE id = 1; ANALYZE")
    connection.close()
    check(f"{name}: the file is used once", wait_until(lambda: not (NEW / "mixedcc.rows").exists()))
    equal(f"{name}: each of more keys than are in memory is checked", insert(2000), [])
    connection = connect("template1")
    query(connection, "CREATE DATABASE copied TEMPLATE postgres")
    connection.close()
    equal(f"{name}: each key is checked in a copy of the database", insert(2000, "copied"), [])
    before = contents()
    ctl(BIN, NEW, "stop")
    ctl(BIN, NEW, "start")
    equal(f"{name}: and after a restart", contents(), before)
    equal(f"{name}: each key is checked after a restart", insert(3000), [])
    ctl(BIN, NEW, "restart", "-m", "immediate")
    equal(f"{name}: a crash empties the tables", contents(), [[], []])
    equal(f"{name}: each key is checked after a crash", insert(2000), [])
    ctl(BIN, NEW, "stop")
    ctl(BIN, NEW, "start")
    equal(f"{name}: each key is checked after that", insert(3000), [])
    ctl(BIN, NEW, "stop")


def same_version():
    upgrade("pg_upgrade", BIN)


def older_version():
    name = "pg_upgrade from an older version"
    if not OLD_BIN:
        ok(f"{name}: there is none")
    elif not os.path.exists(run(OLD_BIN, "pg_config", "--pkglibdir").strip() + "/mixedcc.so"):
        ok(f"{name}: it has no mixedcc")
    else:
        upgrade(name, OLD_BIN)


def end():
    shutil.rmtree(ROOT)


if __name__ == "__main__":
    main(same_version, older_version, end)
