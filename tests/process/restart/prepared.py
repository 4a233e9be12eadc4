#!/usr/bin/python3
"""Prepared transactions over unlogged tables, a clean restart, a crash, and a server that prepares
none: the transaction can be finished afterwards, and the tables can be used."""

import os
import pathlib
import signal

import psycopg2

from lib.common import accepts, connect, create_table, drop_database, equal, main, make_database, must_come, query, server, value
from lib.prepared import run as attempt

DATABASE = "process_prepared_restart"


def boss():
    must_come(accepts, 120)
    return connect(DATABASE)


def prepared():
    """Tables of one row each, and a transaction that has changed one of them, and one of heap."""
    session = boss()
    query(session, "DROP TABLE IF EXISTS written, other, plain; CREATE TABLE plain (id int, v int) USING heap; INSERT INTO plain VALUES (1, 0)")
    for table in ("written", "other"):
        create_table(session, table, "id int PRIMARY KEY, v int", kind="UNLOGGED")
        query(session, f"INSERT INTO {table} VALUES (1, 0)")
    query(session, "BEGIN; UPDATE written SET v = 1; UPDATE plain SET v = 1; SELECT FROM other FOR UPDATE; PREPARE TRANSACTION 'p'")
    session.close()


def judge(name, end, other):
    session = boss()
    equal(f"{name}: the table that it has written is empty", query(session, "SELECT * FROM written"), [])
    equal(f"{name}: another table", query(session, "SELECT v FROM other"), other)
    equal(f"{name}: it is prepared", query(session, "SELECT gid FROM pg_prepared_xacts"), [("p",)])
    equal(f"{name}: it is finished", attempt(session, f"{end} PREPARED 'p'"), None)
    equal(f"{name}: its rows of heap", query(session, "SELECT v FROM plain"), [(1,)] if end == "COMMIT" else [(0,)])
    equal(f"{name}: a new row", attempt(session, "INSERT INTO written VALUES (1, 5) RETURNING v"), [(5,)])
    query(session, "BEGIN; UPDATE written SET v = 6; PREPARE TRANSACTION 'q'")
    query(session, "COMMIT PREPARED 'q'")
    equal(f"{name}: the next one", query(session, "SELECT v FROM written"), [(6,)])
    session.close()


def clean_restart():
    for end in ("COMMIT", "ROLLBACK"):
        prepared()
        server("stop")
        server("start")
        judge(f"prepared: a clean restart, {end}", end, [(0,)])


def finished_before():
    """A transaction that was finished is saved with its table."""
    prepared()
    session = boss()
    query(session, "COMMIT PREPARED 'p'")
    session.close()
    server("stop")
    server("start")
    session = boss()
    equal("prepared: finished before a restart", query(session, "SELECT v FROM written"), [(1,)])
    session.close()


def crash():
    for end in ("COMMIT", "ROLLBACK"):
        prepared()
        watcher, victim = boss(), boss()
        os.kill(value(victim, "SELECT pg_backend_pid()"), signal.SIGKILL)
        # The postmaster ends all sessions as soon as it has noticed.
        must_come(lambda: is_gone(watcher), 120)
        judge(f"prepared: a backend was killed, {end}", end, [])


def is_gone(session):
    try:
        query(session, "SELECT 1")
        return False
    except psycopg2.Error:
        return True


def none_allowed():
    session = boss()
    path = pathlib.Path(value(session, "SHOW data_directory")) / "postgresql.auto.conf"
    session.close()
    server("stop")
    path.write_text("max_prepared_transactions = 0\n")
    server("start")
    try:
        session = boss()
        query(session, "DROP TABLE IF EXISTS written")
        create_table(session, "written", "id int PRIMARY KEY, v int", kind="UNLOGGED")
        query(session, "INSERT INTO written VALUES (1, 0)")
        for _ in range(3):
            query(session, "BEGIN; UPDATE written SET v = 1")
            equal("prepared: none are allowed", attempt(session, "PREPARE TRANSACTION 'p'"), "55000")
        equal("prepared: the transaction was undone", attempt(session, "UPDATE written SET v = v + 2 RETURNING v"), [(2,)])
        session.close()
    finally:
        server("stop")
        path.write_text("")
        server("start")


make_database(DATABASE).close()
try:
    main(clean_restart, finished_before, crash, none_allowed)
finally:
    must_come(accepts, 120)
    drop_database(DATABASE)
