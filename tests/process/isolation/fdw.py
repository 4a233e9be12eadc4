#!/usr/bin/python3
"""Transactions over mixedcc tables and tables of postgres_fdw, on a server that is this one: what
fails in our validation leaves the remote part undone, whenever the wrapper has registered its
callbacks. The remote tables are in another database, once heap's and once ours."""

import os
import threading

import psycopg2

from lib.common import OURS, RETRY, check, connect, create_table, drop_database, equal, main, make_database, query, server, value, wait_until

LOCAL, REMOTE = "process_fdw", "process_fdw_remote"
LOCK = 4711
# Where the session that loses lets the other one write.
MEET = f"SELECT pg_advisory_xact_lock_shared({LOCK})"
READ = "SELECT v FROM f_read WHERE id = 1"
WRITE = "UPDATE f_write SET v = v + 1 WHERE id = 1"
KINDS = ("heap", "ours")


def remote(kind):
    return f"UPDATE f_{kind} SET v = v + 1 WHERE id = 1"


def set_up():
    far = make_database(REMOTE)
    query(far, "CREATE TABLE f_heap (id int PRIMARY KEY, v int) USING heap; INSERT INTO f_heap VALUES (1, 0)")
    create_table(far, "f_ours", "id int PRIMARY KEY, v int")
    query(far, "INSERT INTO f_ours VALUES (1, 0)")
    query(far, "CREATE TABLE f_log (v int) USING heap; CREATE TABLE f_many (v int) USING heap")
    far.close()
    near = make_database(LOCAL)
    query(near, "CREATE EXTENSION postgres_fdw")
    query(near, f"""CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw
        OPTIONS (host '{os.environ["PGHOST"]}', port '{os.environ["PGPORT"]}', dbname '{REMOTE}')""")
    query(near, f"CREATE USER MAPPING FOR CURRENT_USER SERVER far OPTIONS (user '{os.environ['PGUSER']}')")
    for kind in KINDS:
        query(near, f"CREATE FOREIGN TABLE f_{kind} (id int, v int) SERVER far")
    query(near, """CREATE FOREIGN TABLE f_log (v int) SERVER far;
        CREATE FOREIGN TABLE f_many (v int) SERVER far;
        CREATE TABLE f_parts (v int) PARTITION BY LIST (v);
        CREATE FOREIGN TABLE f_part PARTITION OF f_parts FOR VALUES IN (1) SERVER far OPTIONS (table_name 'f_log')""")
    for table in ("f_read", "f_write"):
        create_table(near, table, "id int PRIMARY KEY, v int", protocol="occ")
        query(near, f"INSERT INTO {table} VALUES (1, 0)")
    query(near, """CREATE PROCEDURE f_work(kind text) LANGUAGE plpgsql AS $$ DECLARE n int; BEGIN
        SELECT v INTO n FROM f_read WHERE id = 1;
        UPDATE f_write SET v = v + 1 WHERE id = 1;
        EXECUTE format('UPDATE f_%s SET v = v + 1 WHERE id = 1', kind);
        PERFORM pg_advisory_xact_lock_shared(4711);
        COMMIT;
        END $$""")
    # Writes the remote table when the transaction commits.
    query(near, """CREATE FUNCTION f_later() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN UPDATE f_heap SET v = v + 1 WHERE id = 1; RETURN NULL; END $$""")
    create_table(near, "f_trigger", "id int PRIMARY KEY, v int", protocol="occ")
    query(near, "INSERT INTO f_trigger VALUES (1, 0)")
    query(near, """CREATE CONSTRAINT TRIGGER f_later AFTER UPDATE ON f_trigger INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION f_later()""")
    near.close()


def values(kind):
    near, far = connect(LOCAL), connect(REMOTE)
    found = value(near, "SELECT v FROM f_write"), value(far, f"SELECT coalesce(sum(v), 0) FROM f_{kind}")
    near.close()
    far.close()
    return found


def run(connection, statements, outcome):
    """Each statement is sent by itself; what is a list, as one query of several statements."""
    try:
        for statement in statements:
            query(connection, statement)
    except psycopg2.Error as error:
        outcome.append(error.pgcode)
        if not connection.closed:
            query(connection, "ROLLBACK")
    else:
        outcome.append(None)


def race(name, kind, statements, first=(), adds=(1, 1), fails=True):
    """One session loses against another that writes what it has read; then the same without the
    other. `adds`: what the transaction adds to the local and to the remote table. `fails`: the
    conflict makes it fail."""
    boss, rival = connect(LOCAL), connect(LOCAL)
    for conflict in (True, False):
        before = values(kind)
        loser = connect(LOCAL)
        query(loser, "SET default_transaction_isolation = 'serializable'")
        for statement in first:
            query(loser, statement)
        query(boss, f"SELECT pg_advisory_lock({LOCK})")
        outcome = []
        thread = threading.Thread(target=run, args=(loser, statements, outcome))
        thread.start()
        waits = f"SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid = {loser.info.backend_pid}"
        met = wait_until(lambda: value(boss, waits))
        if conflict:
            query(rival, "UPDATE f_read SET v = v + 1 WHERE id = 1")
        query(boss, f"SELECT pg_advisory_unlock({LOCK})")
        thread.join(60)
        loser.close()
        what = f"fdw: {name}, remote table {kind}"
        check(f"{what}: the sessions meet", met and not thread.is_alive())
        after = values(kind)
        if conflict and fails:
            check(f"{what}: the local part fails", outcome and outcome[0] in RETRY, outcome)
            equal(f"{what}: then the remote part is undone", after, before)
        else:
            with_conflict = "with the conflict, too," if conflict else "without a conflict"
            equal(f"{what}: {with_conflict} it commits", outcome, [None])
            equal(f"{what}: {with_conflict} so does the remote part", after, (before[0] + adds[0], before[1] + adds[1]))
    boss.close()
    rival.close()


def orders(what, first=()):
    for kind in KINDS:
        far = remote(kind)
        race(f"remote part first{what}", kind, ["BEGIN", far, READ, WRITE, MEET, "COMMIT"], first)
        race(f"remote part in the middle{what}", kind, ["BEGIN", READ, far, WRITE, MEET, "COMMIT"], first)
        race(f"remote part last{what}", kind, ["BEGIN", READ, WRITE, MEET, far, "COMMIT"], first)


def test_orders():
    set_up()
    orders("")


def test_earlier_connection():
    orders(", wrapper used before", first=["SELECT * FROM f_heap"])
    orders(", wrapper loaded before", first=["LOAD 'postgres_fdw'"])
    orders(", wrapper used between our tables", first=[READ, "SELECT * FROM f_heap", READ])


def test_savepoints():
    for kind in KINDS:
        far = remote(kind)
        race("remote part in a savepoint", kind, ["BEGIN", READ, WRITE, "SAVEPOINT a", far, "RELEASE a", MEET, "COMMIT"])
        race("savepoint left open", kind, ["BEGIN", READ, WRITE, "SAVEPOINT a", far, "SAVEPOINT b", MEET, "COMMIT"])
        race("first remote part undone", kind,
             ["BEGIN", READ, WRITE, "SAVEPOINT a", far, "ROLLBACK TO a", far, MEET, "COMMIT"])
        race("our part in a savepoint", kind, ["BEGIN", far, "SAVEPOINT a", READ, WRITE, "RELEASE a", MEET, "COMMIT"])


def test_ends():
    """All the ways in which a transaction comes to its commit."""
    for kind in KINDS:
        far = remote(kind)
        race("several statements as one query", kind, ["; ".join((READ, WRITE, MEET, far))])
        race("a block", kind, [f"DO $$ BEGIN PERFORM v FROM f_read WHERE id = 1; {WRITE}; {MEET.replace('SELECT', 'PERFORM')}; {far}; END $$"])
        race("a procedure that commits", kind, [f"CALL f_work('{kind}')"])
        race("a cursor on the remote table", kind,
             ["BEGIN", READ, WRITE, MEET, f"DECLARE c CURSOR FOR SELECT v FROM f_{kind}", "FETCH c", far, "COMMIT"])
        race("COMMIT AND CHAIN", kind, ["BEGIN", READ, WRITE, MEET, far, "COMMIT AND CHAIN", "ROLLBACK"])
        race("PREPARE and EXECUTE", kind, [f"PREPARE f AS {far}", "BEGIN", READ, WRITE, MEET, "EXECUTE f", "COMMIT"])
    race("a deferred trigger", "heap", ["BEGIN", READ, WRITE, "UPDATE f_trigger SET v = v + 1 WHERE id = 1", MEET, "COMMIT"])


def test_no_local_write():
    """A reader that writes nothing of ours commits where its reads are valid. With a foreign table
    it must not: what it has read has to be right when the remote part commits."""
    race("reads of ours alone", "heap", ["BEGIN", READ, MEET, "COMMIT"], adds=(0, 0), fails=False)
    near = connect(LOCAL)
    query(near, """CREATE FUNCTION f_remote(kind text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        EXECUTE format('UPDATE f_%s SET v = v + 1 WHERE id = 1', kind); END $$""")
    near.close()
    for kind in KINDS:
        far, read = remote(kind), f"SELECT v FROM f_{kind}"
        for name, work in (
                ("no local write", [READ, far, MEET]),
                ("no local write, remote part first", [far, READ, MEET]),
                ("no local write, remote part last", [READ, MEET, far]),
                ("no local write, remote part in a savepoint", [READ, "SAVEPOINT a", far, "RELEASE a", MEET]),
                ("no local write, remote part in a function", [READ, f"SELECT f_remote('{kind}')", MEET])):
            race(name, kind, ["BEGIN", *work, "COMMIT"], adds=(0, 1))
    for name, far in (("COPY", "COPY f_log FROM PROGRAM 'echo 1'"), ("a foreign partition", "INSERT INTO f_parts VALUES (1)"),
                      ("COPY into a foreign partition", "COPY f_parts FROM PROGRAM 'echo 1'")):
        race(f"no local write, {name}", "log", ["BEGIN", READ, far, MEET, "COMMIT"], adds=(0, 1))
    far = connect(REMOTE)
    query(far, "INSERT INTO f_many VALUES (-5)")
    far.close()
    race("no local write, TRUNCATE", "many", ["BEGIN", READ, "TRUNCATE f_many", MEET, "COMMIT"], adds=(0, 5))
    for kind in KINDS:
        far, read = remote(kind), f"SELECT v FROM f_{kind}"
        race("remote reads", kind, ["BEGIN", READ, read, MEET, "COMMIT"], adds=(0, 0))
        race("remote reads first", kind, ["BEGIN", read, READ, MEET, "COMMIT"], adds=(0, 0))
        race("remote part undone", kind, ["BEGIN", READ, "SAVEPOINT a", far, "ROLLBACK TO a", MEET, "COMMIT"], adds=(0, 0))


def preload(libraries):
    boss = connect("postgres")
    query(boss, f"ALTER SYSTEM SET shared_preload_libraries = {libraries}")
    boss.close()
    server("restart")


def test_preloaded():
    for libraries in ("postgres_fdw, mixedcc", "mixedcc, postgres_fdw"):
        preload(libraries)
        orders(f", preloaded: {libraries}")
    boss = connect("postgres")
    query(boss, "ALTER SYSTEM RESET shared_preload_libraries")
    boss.close()
    server("restart")


def test_same_rows():
    """The remote part reads a row of ours that the local part writes: no wait without an end."""
    near = connect(LOCAL)
    query(near, """CREATE SERVER self FOREIGN DATA WRAPPER postgres_fdw
        OPTIONS (host '%s', port '%s', dbname '%s')""" % (os.environ["PGHOST"], os.environ["PGPORT"], LOCAL))
    query(near, f"CREATE USER MAPPING FOR CURRENT_USER SERVER self OPTIONS (user '{os.environ['PGUSER']}')")
    query(near, "CREATE FOREIGN TABLE f_self (id int, v int) SERVER self OPTIONS (table_name 'f_write')")
    create_table(near, "f_other", "id int PRIMARY KEY, v int", protocol="occ")
    query(near, "INSERT INTO f_other VALUES (1, 0)")
    query(near, "CREATE FOREIGN TABLE f_self_other (id int, v int) SERVER self OPTIONS (table_name 'f_other')")
    query(near, "SET default_transaction_isolation = 'serializable'")
    outcome = []
    work = ["BEGIN", "SELECT v FROM f_self WHERE id = 1", "UPDATE f_self_other SET v = v + 1 WHERE id = 1", WRITE, "COMMIT"]
    before = query(near, "SELECT v FROM f_write UNION ALL SELECT v FROM f_other")
    thread = threading.Thread(target=run, args=(near, work, outcome))
    thread.start()
    thread.join(60)
    boss = connect(LOCAL)
    if thread.is_alive():
        # COMMIT has no timeout.
        query(boss, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'postgres_fdw'")
    thread.join()
    check("fdw: a remote part that has read what the local part writes fails", outcome[0] in RETRY, outcome)
    equal("fdw: and so do both", query(boss, "SELECT v FROM f_write UNION ALL SELECT v FROM f_other"), before)
    boss.close()
    near.close()
    for database in (LOCAL, REMOTE):
        drop_database(database)


if __name__ == "__main__":
    tests = [test_orders]
    if OURS:
        tests += [test_earlier_connection, test_savepoints, test_ends, test_no_local_write, test_preloaded]
    main(*tests, test_same_rows)
