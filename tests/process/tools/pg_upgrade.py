#!/usr/bin/python3
"""pg_upgrade, to the same version: the rows stay in the old cluster's file, are refused until that
is copied, and then are all there. Clusters of its own beside the server's."""

import os
import pathlib
import shutil
import subprocess
import tempfile

import psycopg2

from lib.common import check, equal, main, query, tool, value, wait_until

PORT = "6543"
ROOT = pathlib.Path(tempfile.mkdtemp(prefix="mixedcc-upgrade-", dir=pathlib.Path(os.environ["PGHOST"]).parent))
OLD, NEW = ROOT / "old", ROOT / "new"
BIN = os.environ["PGBIN"]


def make(directory):
    tool("initdb", "-D", directory, "-A", "trust", "-U", "postgres", "--locale=C.UTF-8", "-E", "UTF8", "--no-sync", "-k")
    with open(directory / "postgresql.conf", "a", encoding="utf-8") as file:
        file.write(f"unix_socket_directories = '{ROOT}'\nlisten_addresses = ''\nport = {PORT}\nfsync = off\n"
                   "shared_preload_libraries = 'mixedcc'\nmixedcc.memory = '64MB'\n")


def ctl(directory, command):
    subprocess.run([os.path.join(BIN, "pg_ctl"), "-D", directory, "-w", "-l", ROOT / "log", command],
                   check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def connect():
    connection = psycopg2.connect(host=str(ROOT), port=PORT, user="postgres", dbname="postgres")
    connection.autocommit = True
    return connection


def upgrade(*arguments):
    return tool("pg_upgrade", "-b", BIN, "-B", BIN, "-d", str(OLD), "-D", str(NEW), "-s", str(ROOT), "-U", "postgres", *arguments, cwd=ROOT)


def contents():
    connection = connect()
    try:
        return query(connection, "SELECT ctid::text, id, v FROM m ORDER BY id")
    finally:
        connection.close()


def test_upgrade():
    make(OLD)
    make(NEW)
    ctl(OLD, "start")
    connection = connect()
    query(connection, "CREATE EXTENSION mixedcc; CREATE EXTENSION amcheck; CREATE TABLE h AS SELECT 1 AS a")
    query(connection, "CREATE UNLOGGED TABLE m (id int PRIMARY KEY, v text) USING mixedcc WITH (mixedcc.partitions = 4)")
    query(connection, "INSERT INTO m SELECT i, 'v' || i FROM generate_series(1, 3000) i; DELETE FROM m WHERE id % 7 = 0")
    query(connection, "CREATE INDEX m_v ON m (v); CREATE UNLOGGED TABLE empty (id int) USING mixedcc")
    connection.close()
    before = contents()
    ctl(OLD, "stop")
    check("pg_upgrade: checksums fit while the rows are saved", "Bad checksums:  0" in tool("pg_checksums", "--check", "-D", str(OLD)))
    upgrade("--check")
    ctl(OLD, "start")
    equal("pg_upgrade: --check leaves the rows alone", contents(), before)
    ctl(OLD, "stop")
    upgrade()
    check("pg_upgrade: the rows are in the old cluster's file", (OLD / "mixedcc.rows").exists())
    ctl(NEW, "start")
    connection = connect()
    equal("pg_upgrade: heap tables are there", value(connection, "SELECT count(*) FROM h"), 1)
    try:
        query(connection, "SELECT * FROM m")
        check("pg_upgrade: a table without its rows is refused", False)
    except psycopg2.Error as error:
        check("pg_upgrade: a table without its rows is refused", error.pgcode == "55000" and "after pg_upgrade" in error.diag.message_hint, error)
    connection.close()
    ctl(NEW, "stop")
    shutil.copy(OLD / "mixedcc.rows", NEW / "mixedcc.rows")
    ctl(NEW, "start")
    equal("pg_upgrade: with the file all rows are there", contents(), before)
    connection = connect()
    equal("pg_upgrade: partitions too", value(connection, "SELECT count(*) FROM mixedcc.partitions WHERE \"table\" = 'm'::regclass"), 4)
    query(connection, "SELECT mixedcc.check_primary_index('m'), bt_index_parent_check('m_pkey', true), bt_index_parent_check('m_v', true)")
    query(connection, "INSERT INTO m VALUES (7, 'new'); UPDATE m SET v = 'changed' WHERE id = 1; ANALYZE")
    connection.close()
    check("pg_upgrade: the file is used once", wait_until(lambda: not (NEW / "mixedcc.rows").exists()))
    before = contents()
    ctl(NEW, "stop")
    ctl(NEW, "start")
    equal("pg_upgrade: and after a restart", contents(), before)
    ctl(NEW, "stop")
    shutil.rmtree(ROOT)


if __name__ == "__main__":
    main(test_upgrade)
