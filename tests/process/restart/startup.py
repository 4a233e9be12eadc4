#!/usr/bin/python3
"""Bad ways to start: not preloaded, a region too small, or larger than the machine's memory. Each
says so and harms nothing. Huge pages are as many as PostgreSQL says. Uses clusters of its own,
beside the server that the other tests use."""

import os
import re
import shutil
import subprocess
import tempfile

import psycopg2

from lib.common import OURS, SERVER_CTL, check, main, ok, query, tool


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


def machine_mb():
    with open("/proc/meminfo", encoding="ascii") as file:
        return int(re.search(r"MemTotal: *(\d+)", file.read())[1]) // 1024


def test_large_regions():
    """A region that the machine's memory cannot hold: a WARNING, whether the system lets the server
    start or not."""
    cluster = Cluster(MIXEDCC_PRELOAD="mixedcc")
    warning = re.compile(r"WARNING:  mixedcc\.memory and shared_buffers are more than the memory that there is\n.*"
                         r"DETAIL:  mixedcc\.memory is (\d+) MB, shared_buffers (\d+) MB, and the (machine|control group \(.*\)) has (\d+) MB\.\n.*HINT:  Decrease")

    def log():
        with open(cluster.home + "/server.log", encoding="utf-8") as file:
            return file.read()

    try:
        cluster.control("start")
        cluster.control("stop")
        check("startup: a region that fits is not warned of", not warning.search(log()), log())
        wanted = machine_mb() + 1024
        cluster.configure(f"mixedcc.memory = '{wanted}MB'")
        cluster.control("start")
        told = warning.search(log())
        check("startup: a region larger than the machine's memory is warned of", told and int(told[1]) == wanted and int(told[4]) < wanted, log())
        cluster.control("stop")
        cluster.configure("mixedcc.memory = '64MB'")
        check("startup: and can be made smaller", cluster.control("start").returncode == 0, log())
    finally:
        cluster.remove()


def huge_pages():
    """Of the default size, that the system has: all, free. A server has its pages from its start,
    and takes them when it uses them: meanwhile the system calls them free, and reserved."""
    with open("/proc/meminfo", encoding="ascii") as file:
        text = file.read()
    total, free, reserved = (int(re.search(rf"HugePages_{kind}: *(\d+)", text)[1]) for kind in ("Total", "Free", "Rsvd"))
    return [total, free - reserved]


def test_huge_pages():
    """docs/operations.md: how many there must be, and that the region is in them."""
    cluster = Cluster(MIXEDCC_PRELOAD="mixedcc")
    try:
        cluster.control("start")
        cluster.control("stop")
        cluster.configure("mixedcc.memory = '64MB'\nshared_buffers = '16MB'\nhuge_pages = on")
        command = ["postgres", "-D", cluster.home + "/data", "-C", "shared_memory_size_in_huge_pages"]
        number = int(tool(*command).split()[0])
        if number == -1:
            print("NOT RUN: this system has no huge pages", flush=True)
            return
        check("startup: PostgreSQL counts the region's huge pages", 40 < number < 100, number)
        free = huge_pages()[1]
        started = cluster.control("start")
        if free >= number:
            check("startup: the region is in huge pages", started.returncode == 0 and huge_pages()[1] < free, started.stdout)
        else:
            check("startup: huge_pages = on needs them", started.returncode != 0 and "HINT:" in started.stdout, started.stdout)
            cluster.configure("huge_pages = try")
            check("startup: huge_pages = try does not", cluster.control("start").returncode == 0)
    finally:
        cluster.remove()


if __name__ == "__main__":
    if not OURS:
        ok("startup: heap needs nothing")
        raise SystemExit(0)
    main(test_not_preloaded, test_small_regions, test_large_regions, test_huge_pages)
