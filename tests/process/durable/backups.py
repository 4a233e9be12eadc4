#!/usr/bin/python3
"""Copies of a server with permanent tables, taken under load: a base backup that recovers, a
standby that is promoted, when all is quiet and beside load, and recovery to a named point and to an
LSN. The oracle judges each of them."""

import copy
import random
import time

import psycopg2

from lib import transfers
from lib.clusters import Cluster, run
from lib.common import check, drop_database, equal, main, make_database, must_come, query, value, wait_until

DATABASE = "process_backups"


def judge(server, oracle, name):
    connection = server.connect()
    good = oracle.judge(name, connection)
    connection.close()
    return good


class Shared:
    """What the tests have in common."""

    oracle = transfers.Oracle()


def copy_server(*options):
    return Cluster.copy(*options, database=DATABASE)


def boss():
    connection = psycopg2.connect(dbname=DATABASE, application_name="boss")
    connection.autocommit = True
    return connection


def run_for(seconds, seed, during=None):
    """Sessions transfer for so long; then all is quiet, and the oracle knows what they did."""
    load = transfers.Load(DATABASE, Shared.oracle, seed)
    time.sleep(seconds)
    result = during() if during else None
    time.sleep(seconds)
    connection = boss()
    others = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'process test'"""
    query(connection, others)
    committed = load.end(seed)
    check(f"backups: transactions commit, {seed}", committed > 20, committed)
    connection.close()
    return result


def test_backup():
    """A backup that was taken under load is a state between its begin and its end."""
    before = {}

    def take():
        before["oracle"] = marks()
        return copy_server()

    backup = run_for(1.0, "backup", take)
    try:
        said = run("pg_verifybackup", backup.data)
        check("backups: pg_verifybackup", "successfully verified" in said, said)
        backup.start()
        connection = backup.connect()
        there = marks_of(connection)
        connection.close()
        check("backups: all commits of before are in a backup", before["oracle"] <= there, len(before["oracle"] - there))
        judge_part(backup, "backups: a backup is whole")
    finally:
        backup.remove()


def marks():
    connection = boss()
    rows = marks_of(connection)
    connection.close()
    return rows


def marks_of(connection):
    rows = " UNION ALL ".join(f"SELECT worker, seq FROM {table} WHERE worker <> 3" for table in transfers.NOTES)
    return {tuple(row) for row in query(connection, rows)}


def judge_part(server, name):
    """Of a state in the middle: all that follows from its rows holds, and nothing more is known."""
    oracle = copy.deepcopy(Shared.oracle)
    for w in range(transfers.WORKERS):
        # Each answered commit may be there or not.
        oracle.doubtful[w] |= oracle.answered[w]
        oracle.answered[w] = set()
    return judge(server, oracle, name)


def replayed(standby, lsn):
    connection = standby.connect()
    done = value(connection, "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (lsn,))
    connection.close()
    return done


def test_standby():
    """A standby replays under load, is restarted, promoted, written, and crashes."""
    standby = run_for(1.0, "standby", lambda: copy_server("-R"))
    try:
        standby.start(hot_standby="on")
        run_for(1.0, "standby 2", lambda: restart(standby))
        connection = boss()
        lsn = value(connection, "SELECT pg_current_wal_insert_lsn()")
        query(connection, "CHECKPOINT")
        connection.close()
        must_come(lambda: replayed(standby, lsn), 60)
        connection = boss()
        rows = marks_of(connection)
        query(connection, "UPDATE large SET seq = seq")  # Then the primary tells what may be shown.
        connection.close()
        connection = standby.connect()
        check("backups: a standby reads", wait_until(lambda: marks_of(connection) == rows, 60))
        connection.close()
        cascade(standby)
        standby.control("promote")
        judge(standby, copy.deepcopy(Shared.oracle), "backups: a promoted standby has all")
        connection = standby.connect()
        query(connection, "SET synchronous_commit = on; UPDATE acct0 SET branch = 77; CREATE INDEX after ON acct0 (branch); INSERT INTO marks VALUES (3, -1, 1, 2, 0, 'acct0,acct0,')")
        connection.close()
        standby.control("restart", "-m", "immediate")
        connection = standby.connect()
        equal("backups: it can be written, and crash", query(connection, "SELECT (SELECT count(*) FROM acct0 WHERE branch = 77), (SELECT amount FROM marks WHERE seq = -1)"),
              [(transfers.ACCOUNTS, 0)])
        connection.close()
    finally:
        standby.remove()


def cascade(standby):
    """A base backup of the standby follows it, and is promoted."""
    second = Cluster.copy("-R", source=standby, database=DATABASE)
    try:
        second.start(hot_standby="on")
        second.control("promote")
        judge(second, copy.deepcopy(Shared.oracle), "backups: a backup of a standby, which follows it and is promoted, has all")
    finally:
        second.remove()


def restart(standby):
    standby.control("restart", "-m", "immediate")
    time.sleep(0.5)
    standby.control("restart", "-m", "fast")


def test_promoted_beside_load():
    """A standby is promoted at any moment, in the middle of its replay. It has a state between the
    backup's and the last one, also after a crash."""
    before = {}

    def promote():
        before["marks"] = marks()
        standby = copy_server("-R")
        standby.start(hot_standby="on")
        time.sleep(random.uniform(0.0, 0.5))
        standby.control("promote")
        return standby

    standby = run_for(0.3, "promoted", promote)
    try:
        for way in ("is whole", "is whole after a crash"):
            judge_part(standby, f"backups: a standby that is promoted beside load {way}")
            connection = standby.connect()
            there = marks_of(connection)
            connection.close()
            check(f"backups: it has all commits of before, {way}", before["marks"] <= there, len(before["marks"] - there))
            standby.control("restart", "-m", "immediate")
    finally:
        standby.remove()


def test_points():
    """Recovery ends at a named point, at an LSN, and behind a transaction id, with exactly the
    commits before."""
    run_for(0.5, "points")
    one, two, three = copy_server("-R"), copy_server("-R"), copy_server("-R")
    try:
        run_for(0.5, "points 2")
        known = copy.deepcopy(Shared.oracle)
        connection = boss()
        query(connection, "SELECT pg_create_restore_point('here')")
        lsn = value(connection, "SELECT pg_current_wal_flush_lsn()")
        query(connection, "BEGIN; CREATE TABLE last (id int) USING heap")
        xid = value(connection, "SELECT pg_current_xact_id()")
        query(connection, "COMMIT")
        run_for(0.5, "points 3")
        query(connection, "SELECT pg_switch_wal()")
        connection.close()
        for server, name, settings in ((one, "name", {"recovery_target_name": "here"}), (two, "LSN", {"recovery_target_lsn": lsn}),
                                       (three, "transaction id", {"recovery_target_xid": xid})):
            server.start(recovery_target_action="promote", **settings)
            connection = server.connect()
            must_come(lambda: not value(connection, "SELECT pg_is_in_recovery()"), 60)
            connection.close()
            judge(server, copy.deepcopy(known), f"backups: recovery to a point by its {name}")
    finally:
        for server in (one, two, three):
            server.remove()


def test_all():
    connection = make_database(DATABASE)
    query(connection, "CREATE EXTENSION amcheck")
    query(connection, "ALTER SYSTEM SET wal_keep_size = '2GB'")
    query(connection, "SELECT pg_reload_conf()")
    transfers.make_tables(connection)
    connection.close()
    for test in (test_backup, test_standby, test_promoted_beside_load, test_points):
        test()
    connection = boss()
    Shared.oracle.judge("backups: the server itself", connection)
    query(connection, "ALTER SYSTEM RESET wal_keep_size")
    connection.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_all)
