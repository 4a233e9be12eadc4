#!/usr/bin/python3
"""Clusters with permanent tables that other programs work on: pg_upgrade, by link, copy and swap,
with journals that are not absorbed; a single-user server; and a commit log that is truncated far
behind the transactions of pending entries."""

import os
import re
import subprocess

from lib import churn
from lib.clusters import AS_SERVER, PORT, Cluster, run
from lib.common import check, equal, main, ok, query, value

SAFE = {"options": "-c synchronous_commit=on"}
# Transactions in a file of the commit log, and its bytes.
OF_A_FILE = 32768 * 32
BYTES_OF_A_FILE = OF_A_FILE // 4


def make(*options, **settings):
    cluster = Cluster.new(*options, **settings)
    cluster.start()
    connection = cluster.connect(**SAFE)
    query(connection, "CREATE EXTENSION mixedcc; CREATE EXTENSION amcheck")
    churn.make(connection)
    churn.change(connection, "upgrade")
    return cluster, connection


def end(connection, cluster):
    """Leaves journals of all tables behind, that no process has absorbed. Returns the rows."""
    query(connection, "CHECKPOINT")
    churn.change(connection, "end", turns=12)
    query(connection, "UPDATE quiet SET v = v + 1 WHERE id % 4 = 0; UPDATE keyed SET v = v + 1 WHERE id % 3 = 0")
    wanted = churn.digests(connection)
    connection.close()
    cluster.crash()
    cluster.start()
    cluster.control("stop", "-m", "fast")
    return wanted


# --- pg_upgrade --------------------------------------------------------------------

def upgrade(name, *how):
    old, connection = make()
    new = Cluster.new()
    try:
        wanted = end(connection, old)
        journals = [f for _, _, files in os.walk(old.data + "/base") for f in files if f.endswith("_fsm")]
        check(f"{name}: there are journals", journals)
        run("pg_upgrade", "-b", os.environ["PGBIN"], "-B", os.environ["PGBIN"], "-d", old.data, "-D", new.data,
            "-s", new.home, "-U", "postgres", "-p", PORT, "-P", PORT, *how, cwd=new.home)
        new.start()
        connection = new.connect(**SAFE)
        kinds = "SELECT count(*) FROM pg_class WHERE relname = ANY (%s) AND relpersistence = 'p'"
        equal(f"{name}: the tables are permanent", value(connection, kinds, (list(churn.TABLES),)), len(churn.TABLES))
        query(connection, "VACUUM quiet")
        equal(f"{name}: the rows are there", churn.digests(connection), wanted)
        equal(f"{name}: indexes agree with the rows", churn.problems(connection), [])
        churn.change(connection, "after", turns=20)
        wanted = churn.digests(connection)
        connection.close()
        new.control("restart", "-m", "immediate")
        connection = new.connect(**SAFE)
        equal(f"{name}: and after changes and a crash", churn.digests(connection), wanted)
        connection.close()
    finally:
        old.remove()
        new.remove()


def upgrade_by_copy():
    upgrade("pg_upgrade --copy", *copy_option())


def upgrade_by_link():
    upgrade("pg_upgrade --link", "--link")


def upgrade_by_swap():
    """From version 18 on: the directories of the old cluster become those of the new one."""
    if "--swap " in run("pg_upgrade", "--help"):
        upgrade("pg_upgrade --swap", "--swap")
    else:
        ok("pg_upgrade --swap begins with PostgreSQL 18")


def copy_option():
    """The option has a name from version 17 on; before, it is the default."""
    return ["--copy"] if "--copy " in run("pg_upgrade", "--help") else []


# --- a single-user server ----------------------------------------------------------

def single(cluster, *commands):
    """What a single-user server says to these commands."""
    path = os.path.join(os.environ["PGBIN"], "postgres")
    done = subprocess.run([*AS_SERVER, path, "--single", "-j", "-D", cluster.data, "postgres"], cwd="/tmp", text=True,
                          input=";\n\n".join(commands) + ";\n\n", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=120)
    return done.returncode, done.stdout


def single_user():
    """It recovers, reads, vacuums, and changes heap tables. A change of a permanent table fails."""
    cluster, connection = make()
    try:
        query(connection, "CHECKPOINT")
        churn.change(connection, "single", turns=15)
        wanted = churn.digests(connection)
        connection.close()
        cluster.crash()
        status, said = single(cluster, "SELECT count(*) AS keyed, sum(v) AS sum FROM keyed", "VACUUM quiet", "VACUUM plain",
                              "INSERT INTO beside VALUES (-1, -1)", "UPDATE quiet SET v = 0 WHERE id = 1",
                              "INSERT INTO plain VALUES (-1, -1, 'never')", "SELECT count(*) AS beside FROM beside")
        equal("single user: it ends", status, 0)
        equal("single user: it reads a permanent table", re.findall(r'keyed = "(\d+)"', said), [str(wanted["keyed"][0])])
        equal("single user: two changes fail", said.count("ERROR:"), 2)
        equal("single user: they fail at COMMIT, with the reason", said.count("permanent mixedcc tables cannot be changed now"), 2)
        equal("single user: heap is changed", re.findall(r'beside = "(\d+)"', said), [str(wanted["beside"][0] + 1)])
        status, said = single(cluster, "SELECT count(*) AS quiet FROM quiet", "DELETE FROM beside WHERE id = -1")
        equal("single user: and again, after a clean end", re.findall(r'quiet = "(\d+)"', said), [str(wanted["quiet"][0])])
        cluster.start()
        connection = cluster.connect(**SAFE)
        equal("single user: nothing is lost", churn.digests(connection), wanted)
        equal("single user: indexes agree with the rows", churn.problems(connection), [])
        churn.change(connection, "single end", turns=10)
        wanted = churn.digests(connection)
        connection.close()
        cluster.control("restart", "-m", "immediate")
        connection = cluster.connect(**SAFE)
        equal("single user: the server goes on as before", churn.digests(connection), wanted)
        connection.close()
    finally:
        cluster.remove()


def single_user_prepared():
    """COMMIT PREPARED in a single-user server, of a table that it has loaded, then VACUUM."""
    cluster, connection = make(max_prepared_transactions="5")
    try:
        query(connection, "CREATE TABLE kept (id int PRIMARY KEY, v int) USING mixedcc")
        query(connection, "INSERT INTO kept SELECT g, 0 FROM generate_series(1, 100) g")
        query(connection, "CHECKPOINT")
        for name, rows in (("committed", "1 AND 10"), ("undone", "11 AND 20")):
            query(connection, f"BEGIN; UPDATE kept SET v = 1 WHERE id BETWEEN {rows}; DELETE FROM kept WHERE id = {len(name)} + 90;"
                              f" INSERT INTO kept VALUES ({len(name)} + 1000, 1)")
            query(connection, f"PREPARE TRANSACTION '{name}'")
        connection.close()
        cluster.crash()
        status, said = single(cluster, "SELECT count(*) FROM kept", "VACUUM kept", "COMMIT PREPARED 'committed'", "ROLLBACK PREPARED 'undone'",
                              "VACUUM kept", "VACUUM FREEZE kept", "SELECT count(*) AS kept, sum(v) AS sum FROM kept")
        equal("single user, prepared: it ends", status, 0)
        equal("single user, prepared: all succeeds", re.findall("ERROR:.*", said), [])
        equal("single user, prepared: it reads the rows", re.findall(r'kept = "(\d+)"', said), ["100"])
        cluster.start()
        connection = cluster.connect(**SAFE)
        rows = "SELECT count(*), sum(v), count(*) FILTER (WHERE id BETWEEN 1 AND 10 AND v = 1), min(id) FILTER (WHERE id > 100) FROM kept"
        equal("single user, prepared: nothing is lost", query(connection, rows), [(100, 11, 10, 1009)])
        query(connection, "VACUUM kept")
        connection.close()
        cluster.control("restart", "-m", "immediate")
        connection = cluster.connect(**SAFE)
        equal("single user, prepared: nor after another VACUUM and a crash", query(connection, rows), [(100, 11, 10, 1009)])
        connection.close()
    finally:
        cluster.remove()


# --- the commit log ----------------------------------------------------------------

def files_of_clog(cluster):
    return sorted(os.listdir(cluster.data + "/pg_xact"))


def go_on(cluster, files):
    """As if so many files of the commit log had been filled since: the server is stopped."""
    next_id = int(re.search(r"NextXID: +\d+:(\d+)", run("pg_controldata", "-D", cluster.data)).group(1))
    target = (next_id // OF_A_FILE + files) * OF_A_FILE + 1000
    run("pg_resetwal", "-D", cluster.data, "-x", str(target))
    for number in range(next_id // OF_A_FILE + 1, target // OF_A_FILE + 1):
        path = f"{cluster.data}/pg_xact/{number:04X}"
        subprocess.run([*AS_SERVER, "dd", "if=/dev/zero", f"of={path}", f"bs={BYTES_OF_A_FILE}", "count=1"], check=True,
                       stderr=subprocess.DEVNULL)


def vacuum_all(cluster, tables):
    """Freezes all tables of all databases, but for ours that are not named."""
    connection = cluster.connect(**SAFE)
    query(connection, "UPDATE pg_database SET datallowconn = true")
    ours = [name for name, in query(connection, "SELECT relname FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE amname = 'mixedcc'")]
    others = [name for name, in query(connection, """
        SELECT c.oid::regclass::text FROM pg_class c WHERE relkind IN ('r', 'm', 't') AND relname <> ALL (%s)""", (ours,))]
    for name in [*others, *tables]:
        query(connection, f"VACUUM (FREEZE) {name}")
    connection.close()
    for database in ("template0", "template1"):
        connection = cluster.connect(dbname=database)
        query(connection, "VACUUM (FREEZE)")
        connection.close()
    connection = cluster.connect()
    query(connection, "CHECKPOINT")
    connection.close()


def commit_log():
    """The commit log stays as long as an unloaded table needs it, and no longer."""
    cluster, connection = make(autovacuum="off")
    try:
        # Pending entries in all tables: some commit, and some do not.
        undecided = cluster.connect(**SAFE)
        query(undecided, "BEGIN; INSERT INTO beside VALUES (7, 7); UPDATE plain SET v = 77 WHERE id = 7")
        query(connection, "BEGIN; INSERT INTO beside VALUES (8, 8); UPDATE quiet SET v = 88; UPDATE keyed SET v = 88 WHERE id < 500; COMMIT")
        query(connection, "INSERT INTO keyed SELECT i, 5, 'five' FROM generate_series(100000, 100200) i")
        wanted = end(connection, cluster)
        undecided.close()
        go_on(cluster, 3)
        cluster.start()
        connection = cluster.connect(**SAFE)
        query(connection, "INSERT INTO beside VALUES (9, 9)")
        query(connection, "DELETE FROM beside WHERE id = 9")
        connection.close()
        vacuum_all(cluster, [])
        check("commit log: tables that are not loaded keep it", "0000" in files_of_clog(cluster), files_of_clog(cluster))
        cluster.crash()
        cluster.start()
        vacuum_all(cluster, churn.TABLES)
        check("commit log: VACUUM of all tables lets it go", "0000" not in files_of_clog(cluster), files_of_clog(cluster))
        cluster.crash()
        cluster.start()
        connection = cluster.connect(**SAFE)
        equal("commit log: the rows are there", churn.digests(connection), wanted)
        equal("commit log: indexes agree with the rows", churn.problems(connection), [])
        connection.close()
    finally:
        cluster.remove()


if __name__ == "__main__":
    main(upgrade_by_copy, upgrade_by_link, upgrade_by_swap, single_user, single_user_prepared, commit_log)
