#!/usr/bin/python3
"""Groups of transactions: what names them, and which fails or waits for which."""

import threading

import psycopg2

from lib.common import check, connect, drop_database, equal, main, make_database, must_come, query, set_protocol, value, waits_for_lock

DATABASE = "process_groups"
ALL = "SELECT name, other, \"table\"::text, kind, failures, waits FROM mixedcc.group_conflicts ORDER BY 1 NULLS FIRST, 2, 3, 4"


def session(**settings):
    connection = connect(DATABASE)
    for name, setting in settings.items():
        query(connection, f"SET {name} = '{setting}'")
    return connection


def fresh(protocol):
    query(BOSS, "SELECT mixedcc.reset_groups()")
    set_protocol(BOSS, "t", protocol)


def threaded(connection, sql):
    thread = threading.Thread(target=query, args=(connection, sql), daemon=True)
    thread.start()
    return thread


def fails(connection):
    try:
        query(connection, "COMMIT")
    except psycopg2.errors.SerializationFailure:
        query(connection, "ROLLBACK")
        return True
    return False


def test_failures():
    """One has read, or writes, what another group has written meanwhile."""
    for statement, kind in (("SELECT v FROM t WHERE id = 1", "rw"), ("UPDATE t SET v = 0 WHERE id = 1", "ww")):
        fresh("occ")
        one, two = session(**{"mixedcc.transaction_group": "auditors"}), session(**{"mixedcc.transaction_group": "payments"})
        query(one, "BEGIN ISOLATION LEVEL SERIALIZABLE")
        query(one, statement)
        query(two, "UPDATE t SET v = v + 1 WHERE id = 1")
        query(one, "UPDATE t SET v = v + 1 WHERE id = 2")
        check(f"groups: {kind}: it fails", fails(one))
        equal(f"groups: {kind}: whose fault it was", query(BOSS, ALL), [("auditors", "payments", "t", kind, 1, 0)])
        equal(f"groups: {kind}: ends", query(BOSS, "SELECT * FROM mixedcc.groups ORDER BY 1"), [("auditors", 0, 1), ("payments", 1, 0)])
        one.close()
        two.close()


def test_repeatable_read():
    fresh("occ")
    one, two = session(**{"mixedcc.transaction_group": "auditors"}), session(**{"mixedcc.transaction_group": "payments"})
    query(one, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    query(one, "SELECT v FROM t WHERE id = 1")
    query(two, "UPDATE t SET v = v + 1 WHERE id = 1")
    try:
        query(one, "UPDATE t SET v = v + 1 WHERE id = 1")
    except psycopg2.errors.SerializationFailure:
        query(one, "ROLLBACK")
    equal("groups: REPEATABLE READ", query(BOSS, ALL), [("auditors", "payments", "t", "ww", 1, 0)])
    one.close()
    two.close()


def test_waits():
    for protocol, level, kind in (("2pl", "SERIALIZABLE", "ww"), ("2pl", "READ COMMITTED", "ww"), ("partcc", "SERIALIZABLE", "partition")):
        fresh(protocol)
        one, two = session(**{"mixedcc.transaction_group": "payments"}), session(**{"mixedcc.transaction_group": "transfers"})
        query(one, f"BEGIN ISOLATION LEVEL {level}")
        query(one, "UPDATE t SET v = v + 1 WHERE id = 1")
        query(two, f"BEGIN ISOLATION LEVEL {level}")
        waiter = two.info.backend_pid
        two_async = threaded(two, "UPDATE t SET v = v + 1 WHERE id = 1")
        must_come(lambda pid=waiter: waits_for_lock(BOSS, pid))
        query(one, "COMMIT")
        two_async.join()
        query(two, "COMMIT")
        equal(f"groups: {protocol}, {level}: a wait", query(BOSS, ALL), [("transfers", "payments", "t", kind, 0, 1)])
        check(f"groups: {protocol}, {level}: its time", value(BOSS, "SELECT min(wait_ms) FROM mixedcc.group_conflicts") > 0)
        one.close()
        two.close()


def names():
    return [name for (name,) in query(BOSS, "SELECT name FROM mixedcc.groups WHERE commits > 0 ORDER BY 1")]


def test_names():
    """What names a transaction, and what comes before what."""
    query(BOSS, "SECURITY LABEL FOR mixedcc ON FUNCTION pay(int) IS 'group(payment)'")
    query(BOSS, "SECURITY LABEL FOR mixedcc ON PROCEDURE pay_often(int) IS 'group(\"Often paid\")'")
    cases = (
        ("nothing", {}, "UPDATE t SET v = v + 1 WHERE id = 1", []),
        ("a setting", {"mixedcc.transaction_group": "x"}, "UPDATE t SET v = v + 1 WHERE id = 1", ["x"]),
        ("a label", {}, "SELECT pay(1)", ["payment"]),
        ("a label, as a table", {}, "SELECT * FROM pay(1)", ["payment"]),
        ("a label in a block", {}, "DO $$ BEGIN PERFORM pay(1); END $$", ["payment"]),
        ("a procedure that commits", {}, "CALL pay_often(3)", ["Often paid"]),
        ("a setting before a label", {"mixedcc.transaction_group": "x"}, "SELECT pay(1)", ["x"]),
        ("an application", {"mixedcc.group_by": "application_name", "application_name": "shop"}, "UPDATE t SET v = v + 1 WHERE id = 1", ["shop"]),
        ("a label before an application", {"mixedcc.group_by": "application_name", "application_name": "shop"}, "SELECT pay(1)", ["payment"]),
        ("an application without a name", {"mixedcc.group_by": "application_name", "application_name": ""}, "UPDATE t SET v = v + 1 WHERE id = 1", []),
    )
    for what, settings, sql, wanted in cases:
        for level in ("serializable", "read committed"):
            fresh("occ")
            connection = session(default_transaction_isolation=level, **settings)
            query(connection, sql)
            equal(f"groups: named by {what}, {level}", names(), wanted)
            connection.close()
    fresh("occ")
    connection = session()
    query(connection, "CALL pay_often(3)")
    equal("groups: commits inside of a procedure", query(BOSS, "SELECT name, commits FROM mixedcc.groups"), [("Often paid", 3)])
    query(connection, "BEGIN")
    query(connection, "SET LOCAL mixedcc.transaction_group = 'local'")
    query(connection, "UPDATE t SET v = v + 1 WHERE id = 1")
    query(connection, "COMMIT")
    query(connection, "UPDATE t SET v = v + 1 WHERE id = 1")
    equal("groups: SET LOCAL", query(BOSS, "SELECT name, commits FROM mixedcc.groups ORDER BY 1"), [("Often paid", 3), ("local", 1)])
    connection.close()


def test_statements():
    """Statements have identifiers; the same with another constant has the same."""
    fresh("occ")
    connection = session(**{"mixedcc.group_by": "statement", "compute_query_id": "on"})
    for key in (1, 2, 3):
        query(connection, f"UPDATE t SET v = v + 1 WHERE id = {key}")
    query(connection, "DELETE FROM t WHERE id = 3")
    found = query(BOSS, "SELECT commits FROM mixedcc.groups ORDER BY 1")
    equal("groups: statements", found, [(1,), (3,)])
    text = value(connection, "SELECT string_agg(name, ',') FROM mixedcc.groups")
    check("groups: their names are numbers", all(n.lstrip("-").isdigit() for n in text.split(",")), text)
    connection.close()


def test_too_many():
    fresh("occ")
    connection = session()
    for n in range(64):
        query(connection, f"SET mixedcc.transaction_group = 'g{n}'")
        query(connection, "UPDATE t SET v = v + 1 WHERE id = 1")
    equal("groups: no more than 62", value(BOSS, "SELECT count(*) FROM mixedcc.groups"), 62)
    warned = [notice for notice in connection.notices if "no more than 62 groups" in notice]
    equal("groups: one warning", len(warned), 1)
    query(BOSS, "SELECT mixedcc.reset_groups()")
    query(connection, "UPDATE t SET v = v + 1 WHERE id = 1")
    equal("groups: after a reset", names(), ["g63"])
    connection.close()


def test_rights():
    """Names may be names of applications, which pg_stat_activity shows to some only."""
    fresh("occ")
    connection = session(**{"mixedcc.transaction_group": "secret"})
    query(connection, "UPDATE t SET v = v + 1 WHERE id = 1")
    for role, wanted in (("pg_signal_backend", 0), ("pg_monitor", 1)):
        query(connection, f"SET ROLE {role}")
        equal(f"groups: seen by {role}", value(connection, "SELECT count(*) FROM mixedcc.group_rows()"), wanted)
    connection.close()


def test_labels():
    for label, wanted in (("group()", "22023"), ("group(a); group(b)", "22023"), ("groups(a)", "22023"), ("group(a)", None), ("group(a); partition(t, n)", None)):
        try:
            query(BOSS, f"SECURITY LABEL FOR mixedcc ON FUNCTION pay(int) IS '{label}'")
            got = None
        except psycopg2.Error as error:
            got = error.pgcode
        equal(f"groups: label {label}", got, wanted)
    query(BOSS, "SELECT mixedcc.unannotate('pay(int)')")
    query(BOSS, "SECURITY LABEL FOR mixedcc ON FUNCTION pay(int) IS 'group(payment)'")
    query(BOSS, "SELECT mixedcc.annotate('pay(int)', 't', 'n')")
    equal("groups: an annotation keeps the group", value(BOSS, "SELECT label FROM pg_seclabels WHERE objoid = 'pay(int)'::regprocedure"), "partition(public.t, n); group(payment)")


def test_advice():
    fresh("occ")
    one, two = session(**{"mixedcc.transaction_group": "auditors"}), session(**{"mixedcc.transaction_group": "payments"})
    for _ in range(20):
        query(one, "BEGIN ISOLATION LEVEL SERIALIZABLE")
        query(one, "SELECT v FROM t WHERE id = 1")
        query(two, "UPDATE t SET v = v + 1 WHERE id = 1")
        query(one, "UPDATE t SET v = v + 1 WHERE id = 2")
        fails(one)
    said = value(BOSS, "SELECT advice FROM mixedcc.advice WHERE topic = 'groups'")
    check("groups: advice", said and said.startswith("Transactions of group auditors have failed 20 times"), said)
    one.close()
    two.close()


def finish():
    BOSS.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    BOSS = make_database(DATABASE)
    query(BOSS, "CREATE UNLOGGED TABLE t (id int PRIMARY KEY, v int) USING mixedcc")
    query(BOSS, "INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i")
    query(BOSS, "CREATE FUNCTION pay(n int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN UPDATE t SET v = v + 1 WHERE id = n; RETURN n; END $$")
    query(BOSS, """CREATE PROCEDURE pay_often(n int) LANGUAGE plpgsql AS $$ BEGIN
        FOR i IN 1..n LOOP UPDATE t SET v = v + 1 WHERE id = i; COMMIT; END LOOP; END $$""")
    main(test_failures, test_repeatable_read, test_waits, test_names, test_statements, test_too_many, test_rights, test_labels, test_advice, finish)
