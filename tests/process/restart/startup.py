#!/usr/bin/python3
"""Bad ways to start: not preloaded, a region too small; each says so and harms nothing.
Uses clusters of its own, beside the server that the other tests use."""

import os
import shutil
import subprocess
import tempfile

import psycopg2

from lib.common import OURS, SERVER_CTL, check, main, ok, query


class Cluster:
    def __init__(self, **environment):
        self.home = tempfile.mkdtemp(prefix="mcc-", dir="/tmp") + "/c"
        self.environment = {**os.environ, "MIXEDCC_HOME": self.home, **environment}

    def control(self, command):
        return subprocess.run([SERVER_CTL, command], env=self.environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def connect(self):
        connection = psycopg2.connect(host=self.home + "/sockets", port=5432, user="postgres", dbname="postgres")
        connection.autocommit = True
        return connection

    def configure(self, text):
        with open(self.home + "/data/postgresql.auto.conf", "a", encoding="ascii") as file:
            file.write(text + "\n")

    def remove(self):
        self.control("stop")
        shutil.rmtree(os.path.dirname(self.home))


def error_of(connection, sql):
    try:
        query(connection, sql)
    except psycopg2.Error as error:
        return error
    return None


def test_not_preloaded():
    cluster = Cluster(MIXEDCC_PRELOAD="")
    try:
        cluster.control("start")
        connection = cluster.connect()
        error = error_of(connection, "CREATE EXTENSION mixedcc") or error_of(connection, "CREATE UNLOGGED TABLE t (a int) USING mixedcc")
        check("startup: without preloading there is an error", error is not None)
        told = error is not None and "shared_preload_libraries" in str(error) + str(error.diag.message_hint)
        check("startup: it names shared_preload_libraries", told, str(error))
        connection = cluster.connect()
        query(connection, "CREATE TABLE heap_table (a int); INSERT INTO heap_table VALUES (1)")
        ok("startup: heap works without preloading")
    finally:
        cluster.remove()


def test_small_regions():
    cluster = Cluster(MIXEDCC_PRELOAD="mixedcc")
    try:
        cluster.control("start")
        cluster.control("stop")
        cluster.configure("mixedcc.memory = '1MB'")
        started = cluster.control("start")
        with open(cluster.home + "/server.log", encoding="utf-8") as log:
            told = [line for line in log if "mixedcc.memory" in line]
        # PostgreSQL's way with a value out of range: the default, and a warning.
        check("startup: a region too small is told", told, started.stdout)
        cluster.control("stop")
        cluster.configure("mixedcc.memory = '8MB'")
        started = cluster.control("start")
        check("startup: the smallest region starts", started.returncode == 0, started.stdout)
        connection = cluster.connect()
        query(connection, "CREATE EXTENSION mixedcc; CREATE UNLOGGED TABLE t (id int PRIMARY KEY, v text) USING mixedcc")
        query(connection, "INSERT INTO t SELECT i, 'x' FROM generate_series(1, 100) i")
        check("startup: and holds a table", query(connection, "SELECT count(*) FROM t") == [(100,)])
    finally:
        cluster.remove()


if __name__ == "__main__":
    if not OURS:
        ok("startup: heap needs nothing")
        raise SystemExit(0)
    main(test_not_preloaded, test_small_regions)
