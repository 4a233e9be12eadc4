#!/usr/bin/python3
"""Incremental backups (PostgreSQL 17) under load: chains of them are combined, and the server that
starts from them has all rows. The load writes each row into a mixedcc and a heap table."""

import random
import re
import shutil
import subprocess
import threading

import psycopg2

from lib import churn
from lib.clusters import AS_SERVER, PORT, Cluster, run
from lib.common import check, equal, main, ok, query, value

FIRST = 17
CHAIN = 4
# Between two backups, what makes a table's file new, shorter or longer.
BETWEEN = [
    "TRUNCATE plain; INSERT INTO plain SELECT i, i, 'x' FROM generate_series(1, 500) i",
    "VACUUM keyed",
    "ALTER TABLE quiet ALTER v TYPE bigint; ALTER TABLE quiet ALTER v TYPE int",
    "INSERT INTO long SELECT 1000000 + i, i, repeat('q', 20000) FROM generate_series(1, 30) i",
]


class Load(threading.Thread):
    """Writes rows of its own into both tables, in one transaction each time."""

    def __init__(self, cluster, number):
        super().__init__(daemon=True)
        self.draw, self.number, self.stopped, self.error = random.Random(number), number, False, None
        self.connection = cluster.connect()

    def statement(self):
        i, v = self.number * 10000 + self.draw.randrange(2000), self.draw.randrange(10**6)
        return self.draw.choice([
            f"INSERT INTO {{}} VALUES ({i}, {v}, repeat('x', {v % 3000})) ON CONFLICT (id) DO UPDATE SET v = {v}",
            f"UPDATE {{}} SET v = {v} WHERE id BETWEEN {i} AND {i + 5}", f"DELETE FROM {{}} WHERE id = {i}"])

    def run(self):
        try:
            while not self.stopped:
                sql = self.statement()
                end = self.draw.choice(["COMMIT"] * 5 + ["ROLLBACK"])
                query(self.connection, f"BEGIN; {sql.format('twin')}; {sql.format('twin_heap')}; {end}")
        except psycopg2.Error as error:
            self.error = error


def twins(connection):
    return [query(connection, f"SELECT count(*), md5(string_agg(t::text, ',' ORDER BY id)) FROM {t} t") for t in ("twin", "twin_heap")]


def back_up(source, chain):
    """The next backup of a chain, which is full if it is the first."""
    cluster = Cluster()
    more = ["-i", chain[-1].data + "/backup_manifest"] if chain else []
    run("pg_basebackup", "-h", source.home, "-U", "postgres", "-D", cluster.data, "-c", "fast", *more)
    chain.append(cluster)


def combined(chain):
    cluster = Cluster()
    run("pg_combinebackup", *[backup.data for backup in chain], "-o", cluster.data)
    run("pg_verifybackup", cluster.data)
    cluster.configure(port=PORT, summarize_wal="off")
    cluster.start()
    return cluster


def judge(name, cluster, wanted):
    connection = cluster.connect()
    equal(f"{name}: the rows are there", churn.digests(connection), wanted)
    ours, heap = twins(connection)
    equal(f"{name}: what was written into both kinds is in both, or in none", ours, heap)
    equal(f"{name}: indexes agree with the rows", churn.problems(connection), [])
    query(connection, "SELECT bt_index_check('twin_pkey', true)")
    churn.change(connection, name, turns=10)
    wanted = churn.digests(connection)
    connection.close()
    cluster.crash()
    cluster.start()
    connection = cluster.connect()
    equal(f"{name}: and after changes and a crash", churn.digests(connection), wanted)
    connection.close()


def size(path):
    return int(subprocess.run([*AS_SERVER, "du", "-sk", path + "/base"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()[0])


def run_chain(source):
    connection = source.connect()
    query(connection, "CREATE EXTENSION mixedcc; CREATE EXTENSION amcheck")
    churn.make(connection)
    for name, method in (("twin", "mixedcc"), ("twin_heap", "heap")):
        query(connection, f"CREATE TABLE {name} (id int PRIMARY KEY, v int, s text) USING {method}")
    loads = [Load(source, number) for number in range(2)]
    for load in loads:
        load.start()
    chain = []
    try:
        back_up(source, chain)
        for turn in range(CHAIN):
            churn.change(connection, f"incremental {turn}", turns=15)
            query(connection, BETWEEN[turn])
            query(connection, "CHECKPOINT")
            churn.change(connection, f"after {turn}", turns=5)
            wanted = churn.digests(connection)
            back_up(source, chain)
            cluster = combined(chain)
            try:
                judge(f"{turn + 1} incremental backups", cluster, wanted)
            finally:
                cluster.remove()
        check("an incremental backup is smaller than a full one", size(chain[-1].data) < size(chain[0].data))
    finally:
        for load in loads:
            load.stopped = True
            load.join(60)
        for backup in chain:
            shutil.rmtree(backup.home, ignore_errors=True)
    check("the load has run", not any(load.error for load in loads), [load.error for load in loads])
    check("rows of the load are there", value(connection, "SELECT count(*) FROM twin") > 100)


def test_incremental():
    if version() < FIRST:
        ok("incremental backups begin with PostgreSQL 17")
        return
    source = Cluster.new(summarize_wal="on")
    try:
        source.start()
        run_chain(source)
    finally:
        source.remove()


def version():
    return int(re.search(r"\d+", run("postgres", "--version")).group())


if __name__ == "__main__":
    main(test_incremental)
