#!/usr/bin/python3
"""docs/security.md: each function and view of the schema mixedcc, as the catalog has them, is used
by each kind of role; the document's table says what comes out. No view, function or message shows
the key of a row to a user who may not read it. Native calls obey row-level security.

    security --table    prints the document's table, as it is on this server"""

import re
import sys

import psycopg2

from lib.common import OURS, ROOT, check, connect, drop_database, equal, main, make_database, ok, query, reload, value

DATABASE = "process_security"
DENIED, UNSUPPORTED = "42501", "0A000"
# The columns of the table.
ROLES = ["stranger", "reader", "owner", "admin", "monitor", "superuser"]
# Of a row that only its owner may read.
SECRET = "secret-9d1f"
# A proper call of each function. Those that are left out have no arguments.
CALLS = {
    "add": "add(NULL::sec.t, 'v', 1, 'k1')", "add_each": "add_each(NULL::sec.t, 'v', ARRAY[1], ARRAY['k1'])", "annotate": "annotate('sec.f(text)', 'sec.t', 'a')",
    "annotation_hints": "annotation_hints('sec.t', ARRAY['k'])", "can_hash": "can_hash(23)", "annotation_items": "annotation_items('partition(sec.t, 1)')",
    "await_switches": "await_switches('sec.t')", "await_switches_ms": "await_switches_ms('sec.t', 1000)", "check_primary_index": "check_primary_index('sec.t')",
    "declare_partition": "declare_partition('sec.t', 'k1')", "declaring": "declaring(1, 0, 1)", "estimate": "estimate('sec.h')", "explain_choice": "explain_choice('sec.t', 0)",
    "get": "get(NULL::sec.t, 'k1')", "get_each": "get_each(NULL::sec.t, ARRAY['k1'])", "get_value": "get_value(NULL::int, NULL::sec.t, 'v', 'k1')",
    "insert": "insert(ROW('k0', 1)::sec.t)", "label_items": "label_items('partitions=2')", "load": "load('sec.t')", "primary_index": "primary_index('sec.t')",
    "put": "put(ROW('k1', 2)::sec.t)", "range_scan": "range_scan(NULL::sec.t, 'k1')", "remove": "remove(NULL::sec.t, 'k1')", "report": "report()", "reset_stats": "reset_stats('sec.t')",
    "set": "set(NULL::sec.t, 'v', 2, 'k1')", "set_protocol": "set_protocol('sec.t', 'occ', 0)", "set_stop_event": "set_stop_event('read', 'off')",
    "table_size": "table_size('sec.t')", "version_bytes": "version_bytes(100)", "unannotate": "unannotate('sec.f(text)')", "unpin": "unpin('sec.t', 0)",
}
# PostgreSQL lets no user call it.
INTERNAL = "handler(internal)"


def code(role, sql):
    """The SQLSTATE, or None; whatever is done is rolled back."""
    session = SESSIONS[role]
    try:
        query(session, "BEGIN")
        query(session, sql)
        return None
    except psycopg2.Error as error:
        return error.pgcode
    finally:
        query(session, "ROLLBACK")


def objects():
    """Functions by signature, and views, with the statement that uses them."""
    functions = query(BOSS, """SELECT p.proname, pronargs, p.proname || '(' || coalesce((SELECT string_agg(format_type(t, NULL), ', ' ORDER BY n) FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY u(t, n)), '') || ')'
        FROM pg_proc p WHERE pronamespace = 'mixedcc'::regnamespace ORDER BY 3""")
    found = {}
    for name, arguments, signature in functions:
        if signature != INTERNAL:
            call = CALLS.get(name) or (f"{name}()" if arguments == 0 else None)
            found[signature] = call and f"SELECT * FROM mixedcc.{call}"
    views = query(BOSS, "SELECT relname FROM pg_class WHERE relnamespace = 'mixedcc'::regnamespace AND relkind IN ('v', 'r', 'm') ORDER BY 1")
    found.update({view: f"SELECT * FROM mixedcc.{view}" for (view,) in views})
    return found


def answer(role, sql):
    """yes, no, or what else came."""
    got = code(role, sql)
    return {None: "yes", DENIED: "no"}.get(got, got)


def table():
    """What comes out: object: an answer for each role."""
    return {name: [answer(role, sql) if sql else "?" for role in ROLES] for name, sql in objects().items()}


def documented():
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| (.*) \|$", text, re.MULTILINE)
    return {name: cells.split(" | ") for name, cells in rows if len(cells.split(" | ")) == len(ROLES)}


def test_table():
    got, wanted = table(), documented()
    equal("security: the document has each function and view, and no other", sorted(wanted), sorted(got))
    for name, answers in got.items():
        equal(f"security: {name}", dict(zip(ROLES, answers)), dict(zip(ROLES, wanted.get(name, []))))


def test_grants():
    """Functions that PUBLIC may not call are those that the document denies to owners of tables,
    too."""
    revoked = query(BOSS, """SELECT proname FROM pg_proc WHERE pronamespace = 'mixedcc'::regnamespace AND NOT has_function_privilege('public', oid, 'EXECUTE') ORDER BY 1""")
    equal("security: functions that are not for PUBLIC", [n for (n,) in revoked], ["report", "reset_bypass", "reset_durability", "reset_groups", "set_stop_event"])
    for name in ("reset_bypass", "set_stop_event"):
        query(BOSS, f"GRANT EXECUTE ON FUNCTION mixedcc.{name} TO sec_stranger")
    query(BOSS, "GRANT SET ON PARAMETER mixedcc.stop_events TO sec_stranger")
    equal("security: nor does a grant help", [answer("stranger", f"SELECT mixedcc.{c}") for c in ("reset_bypass()", CALLS["set_stop_event"])], ["no", "no"])
    query(BOSS, "REVOKE SET ON PARAMETER mixedcc.stop_events FROM sec_stranger")
    for name in ("reset_bypass", "set_stop_event"):
        query(BOSS, f"REVOKE EXECUTE ON FUNCTION mixedcc.{name} FROM sec_stranger")
    writable = query(BOSS, """SELECT relname FROM pg_class WHERE relnamespace = 'mixedcc'::regnamespace
        AND has_table_privilege('public', oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')""")
    equal("security: PUBLIC writes nothing", writable, [])
    equal("security: no function is a SECURITY DEFINER", query(BOSS, "SELECT proname FROM pg_proc WHERE pronamespace = 'mixedcc'::regnamespace AND prosecdef"), [])
    query(BOSS, "REVOKE SELECT ON mixedcc.partitions FROM PUBLIC")
    equal("security: a view can be taken from PUBLIC", answer("stranger", "SELECT * FROM mixedcc.partitions"), "no")
    query(BOSS, "GRANT SELECT ON mixedcc.partitions TO PUBLIC")


def everything(role):
    """All that a role gets out of functions and views that it may use, messages included."""
    session, found = SESSIONS[role], {}
    for name, sql in objects().items():
        try:
            query(session, "BEGIN ISOLATION LEVEL SERIALIZABLE")
            found[name] = str(query(session, sql)) + str(session.notices)
        except psycopg2.Error as error:
            found[name] = f"{error} {error.diag.message_detail} {error.diag.context}"
        query(session, "ROLLBACK")
    return found


def test_keys():
    """The key of a row is shown to users who may read it."""
    def shows(role):
        return sorted(name for name, text in everything(role).items() if SECRET in text)

    with_keys = {"range_rows()", "ranges", "range_scan(anyelement, \"any\", \"any\", boolean, boolean, boolean, bigint)"}
    check("security: keys are shown to the owner", {"ranges", "range_rows()"} <= set(shows("owner")), shows("owner"))
    check("security: and to readers, by these alone", {"ranges"} <= set(shows("reader")) <= with_keys, shows("reader"))
    for role in ("stranger", "admin", "monitor"):
        equal(f"security: and not to {role}", shows(role), [])
    # Under a policy a reader sees none either.
    query(BOSS, "ALTER TABLE sec.t ENABLE ROW LEVEL SECURITY; CREATE POLICY hides ON sec.t USING (k NOT LIKE 'secret%')")
    equal("security: nor to a reader whose policy hides the row", shows("reader"), [])
    session = SESSIONS["reader"]
    query(session, "BEGIN ISOLATION LEVEL SERIALIZABLE")
    query(session, "SELECT k FROM sec.t WHERE k > 'k' ORDER BY k LIMIT 1")
    query(session, "SET LOCAL enable_seqscan = off")
    query(session, "SELECT k FROM sec.t WHERE k > 'l' ORDER BY k")
    check("security: nor by what the own transaction protects", SECRET not in str(query(session, "SELECT * FROM mixedcc.predicates")))
    plan = str(query(session, "EXPLAIN (ANALYZE, VERBOSE) SELECT k FROM sec.t WHERE k > 'l' ORDER BY k LIMIT 1"))
    check("security: nor by EXPLAIN", SECRET not in plan, plan)
    query(session, "ROLLBACK")
    query(BOSS, "DROP POLICY hides ON sec.t; ALTER TABLE sec.t DISABLE ROW LEVEL SECURITY")


def test_messages():
    """What fails names no key to a user who may not read it."""
    query(BOSS, "GRANT INSERT, UPDATE (v) ON sec.t TO sec_stranger")
    session, told = SESSIONS["stranger"], []
    for sql in ("INSERT INTO sec.t SELECT 'secret' || '-9d1f', 1", "UPDATE sec.t SET v = NULL", "UPDATE sec.t SET v = -1"):
        try:
            query(session, sql)
            told.append("no error")
        except psycopg2.Error as error:
            told.append(f"{error.pgcode}: {error} {error.diag.message_detail} {error.diag.context}")
    equal("security: the statements fail", [t[:5] for t in told], ["23505", "23502", "23514"])
    equal("security: and name no key", [t for t in told if SECRET in t], [])
    query(BOSS, "REVOKE INSERT, UPDATE (v) ON sec.t FROM sec_stranger")


PAIRS = [
    # A native call, and the statement that it stands for; over the visible and the hidden row.
    ("SELECT mixedcc.get(NULL::sec.p, {k})", "SELECT (SELECT p FROM sec.p WHERE id = {k})"),
    ("SELECT mixedcc.get_value(NULL::int, NULL::sec.p, 'v', {k})", "SELECT (SELECT v FROM sec.p WHERE id = {k})"),
    ("SELECT mixedcc.set(NULL::sec.p, 'v', 7, {k})", "UPDATE sec.p SET v = 7 WHERE id = {k} RETURNING true"),
    ("SELECT mixedcc.add(NULL::sec.p, 'v', 7, {k})", "UPDATE sec.p SET v = v + 7 WHERE id = {k} RETURNING true"),
    ("SELECT mixedcc.put(ROW({k}, 'me', 9)::sec.p)", "UPDATE sec.p SET who = 'me', v = 9 WHERE id = {k} RETURNING true"),
    ("SELECT mixedcc.put(ROW({k}, 'other', 9)::sec.p)", "UPDATE sec.p SET who = 'other', v = 9 WHERE id = {k} RETURNING true"),
    ("SELECT mixedcc.remove(NULL::sec.p, {k})", "DELETE FROM sec.p WHERE id = {k} RETURNING true"),
    ("SELECT mixedcc.insert(ROW(100 + {k}, 'me', 1)::sec.p)", "INSERT INTO sec.p VALUES (100 + {k}, 'me', 1) RETURNING NULL"),
    ("SELECT mixedcc.insert(ROW(100 + {k}, 'other', 1)::sec.p)", "INSERT INTO sec.p VALUES (100 + {k}, 'other', 1) RETURNING NULL"),
    ("SELECT count(*) FROM mixedcc.get_each(NULL::sec.p, ARRAY[{k}, 3])", "SELECT count(*) FROM sec.p WHERE id IN ({k}, 3)"),
    ("SELECT mixedcc.add_each(NULL::sec.p, 'v', ARRAY[1, 1], ARRAY[{k}, 3])",
     "WITH u AS (UPDATE sec.p SET v = v + 1 WHERE id IN ({k}, 3) RETURNING 1) SELECT count(*) FROM u"),
]


def outcome(session, sql):
    """What a statement gives and leaves, as the role sees it; or its SQLSTATE. Rolled back."""
    try:
        query(session, "BEGIN")
        # A call says false where its statement returns no row.
        rows = [r for r in query(session, sql) if r != (False,)]
        return rows, query(session, "SELECT * FROM sec.p ORDER BY id")
    except psycopg2.Error as error:
        return error.pgcode
    finally:
        query(session, "ROLLBACK")


def compare(name, session):
    """Each native call does as its statement."""
    differ = []
    for native, statement in PAIRS:
        for key in (1, 2):
            got, wanted = (outcome(session, sql.format(k=key)) for sql in (native, statement))
            if got != wanted:
                differ.append((native.format(k=key), got, wanted))
    check(f"security, policies: {name}", not differ, "\n".join(map(str, differ)))


def test_policies():
    """Native calls under row-level security, also where it is switched on after they were used."""
    query(BOSS, "CREATE TABLE sec.p (id int PRIMARY KEY, who text, v int) USING mixedcc")
    query(BOSS, "INSERT INTO sec.p VALUES (1, 'me', 1), (2, 'other', 2), (3, 'me', 3)")
    query(BOSS, "ALTER TABLE sec.p OWNER TO sec_owner; GRANT SELECT, INSERT, UPDATE, DELETE ON sec.p TO sec_reader")
    query(BOSS, "CREATE POLICY mine ON sec.p USING (who = 'me')")
    reader, owner = SESSIONS["reader"], SESSIONS["owner"]
    get = "SELECT mixedcc.get_value(NULL::int, NULL::sec.p, 'v', 2)"
    # At SERIALIZABLE, where reads and updates by a look are kept ready.
    query(reader, "SET default_transaction_isolation = 'serializable'")
    equal("security, policies: without them", value(reader, get), 2)
    compare("none is in force", reader)
    query(BOSS, "ALTER TABLE sec.p ENABLE ROW LEVEL SECURITY")
    for level in ("SERIALIZABLE", "READ COMMITTED", "REPEATABLE READ"):
        query(reader, f"SET default_transaction_isolation = '{level}'")
        equal(f"security, policies: the row is hidden at {level}", value(reader, get), None)
        compare(f"for a reader at {level}", reader)
    query(reader, "RESET default_transaction_isolation")
    compare("not for the owner", owner)
    equal("security, policies: the owner sees it", value(owner, get), 2)
    query(BOSS, "ALTER TABLE sec.p FORCE ROW LEVEL SECURITY")
    equal("security, policies: not if they are forced", value(owner, get), None)
    compare("forced for the owner", owner)
    query(BOSS, "ALTER TABLE sec.p NO FORCE ROW LEVEL SECURITY")
    query(BOSS, "ALTER ROLE sec_reader BYPASSRLS")
    compare("not for a role with BYPASSRLS", reader)
    equal("security, policies: such a role sees it", value(reader, get), 2)
    query(BOSS, "ALTER ROLE sec_reader NOBYPASSRLS")
    equal("security, policies: it is one no more", value(reader, get), None)
    query(reader, "SET row_security = off")
    compare("row_security = off", reader)
    equal("security, policies: which refuses", code("reader", get), DENIED)
    query(reader, "RESET row_security")
    equal("security, policies: range_scan refuses", code("reader", "SELECT mixedcc.range_scan(NULL::sec.p, 1)"), UNSUPPORTED)
    equal("security, policies: and not for the owner", len(query(owner, "SELECT mixedcc.range_scan(NULL::sec.p, 1)")), 3)
    # In plpgsql, whose plans are kept, by a change of the role and within one transaction.
    query(BOSS, "CREATE FUNCTION sec.read(k int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN mixedcc.get_value(NULL::int, NULL::sec.p, 'v', k); END $$")
    query(BOSS, "GRANT sec_reader TO sec_owner")
    query(owner, "BEGIN")
    seen = [value(owner, "SELECT sec.read(2)")]
    for role in ("sec_reader", "sec_owner"):
        query(owner, f"SET LOCAL ROLE {role}")
        seen.append(value(owner, "SELECT sec.read(2)"))
    query(owner, "ROLLBACK")
    equal("security, policies: by the role that calls", seen, [2, None, 2])
    query(BOSS, "CREATE FUNCTION sec.read_as_owner(k int) RETURNS int LANGUAGE sql SECURITY DEFINER AS $$ SELECT mixedcc.get_value(NULL::int, NULL::sec.p, 'v', k) $$")
    query(BOSS, "ALTER FUNCTION sec.read_as_owner OWNER TO sec_owner")
    equal("security, policies: a SECURITY DEFINER function is its owner", value(reader, "SELECT sec.read_as_owner(2)"), 2)
    query(BOSS, "DROP POLICY mine ON sec.p")
    equal("security, policies: without a policy nothing is seen", value(reader, "SELECT mixedcc.get_value(NULL::int, NULL::sec.p, 'v', 1)"), None)
    compare("without a policy", reader)


def set_up():
    for role in ROLES[:-1]:
        query(BOSS, f"DROP ROLE IF EXISTS sec_{role}")
        query(BOSS, f"CREATE ROLE sec_{role} LOGIN")
    query(BOSS, "GRANT pg_monitor TO sec_monitor")
    query(BOSS, "ALTER SYSTEM SET mixedcc.admin_role = 'sec_admin'")
    reload(BOSS)
    # Bounds of ranges are keys of rows.
    query(BOSS, f"ALTER DATABASE {DATABASE} SET mixedcc.range_rows = 1")
    query(BOSS, "CREATE SCHEMA sec; GRANT USAGE ON SCHEMA sec TO PUBLIC; GRANT CREATE ON SCHEMA sec TO sec_owner")
    for role in ROLES[:-1]:
        SESSIONS[role] = psycopg2.connect(dbname=DATABASE, user=f"sec_{role}", application_name="process test")
        SESSIONS[role].autocommit = True
    SESSIONS["superuser"] = connect(DATABASE, options="-c mixedcc.stop_events=on")
    owner = SESSIONS["owner"]
    query(owner, """CREATE TABLE sec.t (k text COLLATE "C" PRIMARY KEY, v int NOT NULL CHECK (v >= 0)) USING mixedcc
        WITH (mixedcc.partitions = 2, mixedcc.adaptive = off)""")
    query(owner, f"INSERT INTO sec.t SELECT 'k' || i, i FROM generate_series(1, 3) i UNION ALL SELECT '{SECRET}', 0 UNION ALL SELECT '{SECRET}' || i, 0 FROM generate_series(1, 9) i")
    query(owner, "CREATE TABLE sec.h (id int PRIMARY KEY) USING heap; GRANT SELECT ON sec.t, sec.h TO sec_reader")
    query(owner, "CREATE FUNCTION sec.f(a text) RETURNS int LANGUAGE sql AS 'SELECT 1'")
    boss = connect(DATABASE, isolation="SERIALIZABLE", options="-c enable_seqscan=off")
    query(boss, "SELECT k, v FROM sec.t WHERE k > 'k1' ORDER BY k LIMIT 2")
    boss.commit()
    boss.close()


def clean_up():
    for session in SESSIONS.values():
        session.close()
    query(BOSS, "ALTER SYSTEM RESET mixedcc.admin_role")
    query(BOSS, "SELECT pg_reload_conf()")
    BOSS.close()
    drop_database(DATABASE)
    boss = connect("postgres")
    for role in ROLES[:-1]:
        query(boss, f"DROP ROLE IF EXISTS sec_{role}")
    boss.close()


if __name__ == "__main__":
    if not OURS:
        ok("security: heap has no functions")
        raise SystemExit(0)
    SESSIONS = {}
    BOSS = make_database(DATABASE)
    if "--table" in sys.argv:
        set_up()
        for object_, cells in table().items():
            print(f"| `{object_}` | {' | '.join(cells)} |")
        main(clean_up)
    main(set_up, test_table, test_grants, test_keys, test_messages, test_policies, clean_up)
