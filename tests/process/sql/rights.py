#!/usr/bin/python3
"""The rights to switch, pin and reset: the owner, members of mixedcc.admin_role and superusers have
them, and no others; and the rights of all users to see. Each role has a session of its own."""

import psycopg2

from lib.common import OURS, check, connect, drop_database, equal, main, make_database, ok, query, value, wait_until

DATABASE = "process_rights"
ROLES = ["rights_owner", "rights_admin", "rights_member", "rights_apart", "rights_other"]
DENIED = "42501"


def code(role, sql):
    """The SQLSTATE, or None."""
    try:
        query(SESSIONS[role], sql)
        return None
    except psycopg2.Error as error:
        return error.pgcode


def configure(role):
    """Sets mixedcc.admin_role, and waits until all sessions know."""
    query(BOSS, f"ALTER SYSTEM SET mixedcc.admin_role = '{role}'" if role else "ALTER SYSTEM RESET mixedcc.admin_role")
    query(BOSS, "SELECT pg_reload_conf()")
    known = wait_until(lambda: all(value(c, "SHOW mixedcc.admin_role") == role for c in [BOSS, *SESSIONS.values()]))
    check(f"rights: the sessions know that the role is {role or 'none'}", known)


def protocol(partition=0):
    return value(BOSS, "SELECT protocol || CASE WHEN pinned THEN ', pinned' ELSE '' END FROM mixedcc.partitions "
                       "WHERE \"table\" = 'hers.t'::regclass AND partition = %s", (partition,))


def commits():
    return value(BOSS, "SELECT sum(commits) FROM mixedcc.partitions WHERE \"table\" = 'hers.t'::regclass")


def use():
    """The table is used, so that there is something to reset."""
    query(SESSIONS["rights_owner"], "UPDATE hers.t SET v = v + 1")
    if commits() == 0:
        raise RuntimeError("nothing was counted")


def may(who, wanted, new):
    """What a role may do with the table; `new`: a protocol that it does not have."""
    before = protocol()
    use()
    for what, sql in (("set_protocol", f"SELECT mixedcc.set_protocol('hers.t', '{new}', 0)"), ("unpin", "SELECT mixedcc.unpin('hers.t', 0)"),
                      ("reset_stats", "SELECT mixedcc.reset_stats('hers.t')")):
        equal(f"rights, {who}: {what}", code(who, sql), None if wanted else DENIED)
        if what == "set_protocol":
            value(BOSS, "SELECT mixedcc.await_switches('hers.t')")
            equal(f"rights, {who}: and so the protocol", protocol(), f"{new}, pinned" if wanted else before)
    equal(f"rights, {who}: and so what was counted", commits() == 0, wanted)
    # Without a table: of those that the role controls.
    use()
    equal(f"rights, {who}: reset_stats of all", code(who, "SELECT mixedcc.reset_stats()"), None)
    equal(f"rights, {who}: resets these", commits() == 0, wanted)
    # Options and labels stay the owner's.
    for sql in ("ALTER TABLE hers.t SET (mixedcc.adaptive_confirm = 3)", "SECURITY LABEL FOR mixedcc ON TABLE hers.t IS 'partitions=2,adaptive=off'"):
        equal(f"rights, {who}: {sql.split()[0]}", code(who, sql), None if who == "rights_owner" else DENIED)


def test_control():
    may("rights_owner", True, "2pl")
    for role in ROLES[1:]:
        may(role, False, "occ")
    configure("rights_admin")
    may("rights_owner", True, "occ")
    may("rights_admin", True, "2pl")
    may("rights_member", True, "occ")
    may("rights_other", False, "2pl")
    may("rights_apart", False, "2pl")
    # A member that does not inherit the role's rights has them when it becomes the role.
    query(SESSIONS["rights_apart"], "SET ROLE rights_admin")
    may("rights_apart", True, "2pl")
    query(SESSIONS["rights_apart"], "RESET ROLE")
    equal("rights: the rows are nobody else's", {r: code(r, "SELECT * FROM hers.t") for r in ROLES[1:]}, dict.fromkeys(ROLES[1:], DENIED))
    equal("rights: an admin controls mixedcc tables only", code("rights_admin", "SELECT mixedcc.set_protocol('pg_class', 'occ')"), "42809")
    query(BOSS, "REVOKE rights_admin FROM rights_member")
    may("rights_member", False, "partcc")
    configure("rights_nobody")
    may("rights_admin", False, "partcc")
    may("rights_owner", True, "partcc")
    configure("")
    may("rights_admin", False, "occ")
    equal("rights: of the superuser", [query(BOSS, sql) is not None for sql in (
        "SELECT mixedcc.set_protocol('hers.t', 'occ')", "SELECT mixedcc.unpin('hers.t')", "SELECT mixedcc.reset_stats('hers.t')")], [True] * 3)


def test_all():
    """What shows names and counts is everybody's, keys and rows are not; what is for tests is the
    superuser's."""
    query(BOSS, "SELECT mixedcc.await_switches()")
    other = SESSIONS["rights_other"]
    for view in ("partitions", "partition_stats", "switches", "switch_history", "coordinator", "memory", "memory_nodes", "options", "advice", "bypass", "ranges"):
        equal(f"rights: everybody reads {view}", code("rights_other", f"SELECT * FROM mixedcc.{view}"), None)
    for view in ("partitions", "partition_stats"):
        n = value(other, f"SELECT count(*) FROM mixedcc.{view} WHERE \"table\" = %s::oid", (OID,))
        equal(f"rights: and sees all tables in {view}", n, 2)
    told = query(other, "SELECT item, name, note FROM mixedcc.explain_choice(%s::oid::regclass, 1)", (OID,))
    check("rights: everybody may ask why", ("state", "protocol", "occ") in told, told)
    equal("rights: and how large it is", value(other, "SELECT mixedcc.table_size(%s::oid::regclass) > 0", (OID,)), True)
    equal("rights: and wait", value(other, "SELECT mixedcc.await_switches()"), True)
    for sql in (f"SELECT mixedcc.primary_index({OID}::regclass)", f"SELECT mixedcc.check_primary_index({OID}::regclass)",
                f"SELECT mixedcc.declare_partition({OID}::regclass, 1)", "SELECT mixedcc.reset_bypass()", "SELECT mixedcc.set_stop_event('read', 'off')",
                "SET mixedcc.stop_events = on", "SET mixedcc.admin_role = 'rights_other'", "SET mixedcc.range_rows = 1"):
        check(f"rights: not {sql.split('(')[0]}", code("rights_other", sql) in (DENIED, "55P02"), code("rights_other", sql))


def set_up():
    global OID
    for role in ROLES:
        query(BOSS, f"DROP ROLE IF EXISTS {role}")
        query(BOSS, f"CREATE ROLE {role} LOGIN {'NOINHERIT' if role == 'rights_apart' else ''}")
    query(BOSS, "GRANT rights_admin TO rights_member, rights_apart")
    query(BOSS, "CREATE SCHEMA hers AUTHORIZATION rights_owner; GRANT USAGE ON SCHEMA hers TO PUBLIC")
    for role in ROLES:
        SESSIONS[role] = psycopg2.connect(dbname=DATABASE, user=role, application_name="process test")
        SESSIONS[role].autocommit = True
    query(SESSIONS["rights_owner"], "CREATE TABLE hers.t (id int PRIMARY KEY, v int) USING mixedcc WITH (mixedcc.partitions = 2, mixedcc.adaptive = off)")
    query(SESSIONS["rights_owner"], "INSERT INTO hers.t SELECT i, 0 FROM generate_series(1, 20) i")
    OID = value(BOSS, "SELECT 'hers.t'::regclass::oid")


def clean_up():
    for session in SESSIONS.values():
        session.close()
    query(BOSS, "ALTER SYSTEM RESET mixedcc.admin_role")
    query(BOSS, "SELECT pg_reload_conf()")
    BOSS.close()
    drop_database(DATABASE)
    boss = connect("postgres")
    for role in ROLES:
        query(boss, f"DROP ROLE IF EXISTS {role}")
    boss.close()


if __name__ == "__main__":
    if not OURS:
        ok("rights: heap has no protocols")
        raise SystemExit(0)
    SESSIONS, OID = {}, 0
    BOSS = make_database(DATABASE)
    main(set_up, test_control, test_all, clean_up)
