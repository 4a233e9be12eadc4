#!/usr/bin/python3
"""Another extension takes a transaction id when mixedcc has validated, as Citus does, and logs
something. The commit waits for a synchronous standby, and the server crashes. If PostgreSQL's
commit log then says that the transaction has committed, its rows are there. The other library is
loaded before ours, and after it, and by a session."""

import os
import subprocess
import sys
import threading

import psycopg2

from lib.clusters import Cluster
from lib.common import check, equal, fail, main, must_be_found, must_come, query, value


class Other:
    library = None


def build():
    source = os.path.dirname(os.path.abspath(__file__)) + "/late_id/late_id.c"
    Other.library = os.path.abspath(os.environ["PGDATA"] + "/../late_id.so")
    include = subprocess.check_output([os.environ["PGBIN"] + "/pg_config", "--includedir-server"], text=True).strip()
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", f"-I{include}", "-o", Other.library, source], check=True)
    os.chmod(Other.library, 0o755)


LIBRARIES = {"loaded before ours": "{}, mixedcc", "loaded after ours": "mixedcc, {}", "loaded by the session": "mixedcc"}
# What COMMIT has changed, and a question about it.
CHANGES = {"an update in place": ("UPDATE plain SET n = n + 1 WHERE id = 5", "SELECT n FROM plain WHERE id = 5"),
           "a large update": ("UPDATE plain SET n = n + 1, w = repeat('y', 2000)", "SELECT min(n) FROM plain"),
           "a row of a table without a key": ("INSERT INTO bare VALUES (1)", "SELECT count(*) FROM bare")}


def commit(connection, sql, outcome):
    try:
        query(connection, sql)
        query(connection, "COMMIT")
        outcome.append("committed")
    except psycopg2.Error as error:
        outcome.append(error.pgcode)


def crashes(way):
    cluster = Cluster.new(**{"mixedcc.time_marks": "-1"})
    try:
        cluster.configure(shared_preload_libraries=LIBRARIES[way].format(Other.library))
        if os.environ.get("LATE_ID_FAULT"):
            cluster.configure(**{"mixedcc.fault": os.environ["LATE_ID_FAULT"]})
        cluster.start()
        boss = cluster.connect()
        query(boss, "CREATE EXTENSION mixedcc; CREATE TABLE plain (id int PRIMARY KEY, n int, w text) USING mixedcc")
        query(boss, "ALTER TABLE plain ALTER w SET STORAGE external; CREATE TABLE bare (n int) USING mixedcc")
        query(boss, "INSERT INTO plain SELECT i, 0, '' FROM generate_series(1, 1000) i")
        for what, (sql, question) in CHANGES.items():
            before, late = value(boss, question), cluster.connect()
            query(late, f"LOAD '{Other.library}'; SET enable_seqscan = off")
            query(boss, "ALTER SYSTEM SET synchronous_standby_names = 'missing'")
            query(boss, "SELECT pg_reload_conf()")
            must_come(lambda: value(late, "SHOW synchronous_standby_names") == "missing")
            query(late, "BEGIN; SET LOCAL late_id.enabled = true")
            xid, outcome = value(boss, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"), []
            thread = threading.Thread(target=commit, args=(late, sql, outcome))
            thread.start()
            waits = "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = %s"
            must_come(lambda: value(boss, waits, (late.info.backend_pid,)) is True)
            own = "SELECT backend_xid::text::bigint FROM pg_stat_activity WHERE pid = %s"
            equal(f"late ids: {way}, {what}: it has an id", value(boss, own, (late.info.backend_pid,)), xid)
            cluster.crash()
            thread.join(60)
            cluster.configure(synchronous_standby_names="")
            cluster.control("start", "-l", cluster.home + "/log")
            boss = cluster.connect()
            equal(f"late ids: {way}, {what}: it was not answered", outcome, [None])
            committed = value(boss, f"SELECT pg_xact_status('{xid}'::xid8)") == "committed"
            check(f"late ids: {way}, {what}: PostgreSQL has decided to commit", committed)
            equal(f"late ids: {way}, {what}: so its rows are there", value(boss, question), before + 1)
        boss.close()
    finally:
        cluster.remove()


def before():
    crashes("loaded before ours")


def after():
    crashes("loaded after ours")


def by_session():
    crashes("loaded by the session")


def fault_is_found():
    """A build with the feature `faults`."""
    os.environ["LATE_ID_FAULT"] = "later_forgotten"
    must_be_found("later_forgotten", "late ids: loaded after ours, an update in place: so its rows are there", after)


try:
    build()
    if sys.argv[1:2] == ["--faults"]:
        main(fault_is_found)
    main(before, after, by_session)
except (psycopg2.Error, subprocess.CalledProcessError) as problem:
    fail("set-up", problem)
    raise SystemExit(1)
