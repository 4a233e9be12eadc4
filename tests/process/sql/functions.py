#!/usr/bin/python3
"""Every function of the schema mixedcc, found in the catalog, called with hostile arguments: OIDs
that stand for nothing or for something else than the function wants, NULLs, rows of every kind of
relation, names that do not parse. By a superuser and by a role without rights, and while the
objects are dropped. No call crashes the server or ends with an internal error; unknown OIDs and
NULLs have their own SQLSTATEs; a role without rights keeps no lock."""

import random
import threading
import time

import psycopg2

from lib.common import OURS, check, connect, drop_database, equal, main, make_database, ok, query, seconds, value

DATABASE = "process_functions"
STRANGER = "functions_stranger"
# Calls of one function by one role, at most.
MOST = 250
UNDEFINED_TABLE, UNDEFINED_FUNCTION, NULL_VALUE = "42P01", "42883", "22004"
# Functions whose unknown OID is no error: hints are text about what there is, and the plans'
# wrapper returns its argument.
LENIENT = ("annotation_hints", "declaring")

SET_UP = f"""
CREATE ROLE {STRANGER} LOGIN;
CREATE SCHEMA f;
GRANT USAGE, CREATE ON SCHEMA f TO {STRANGER};
CREATE TABLE f.ours (a int PRIMARY KEY, b text, c int) USING mixedcc WITH (mixedcc.partitions = 4);
INSERT INTO f.ours SELECT n, 'x', n FROM generate_series(1, 100) AS n;
CREATE TABLE f.two (a int, b text, PRIMARY KEY (a, b)) USING mixedcc;
CREATE TABLE f.no_key (a int, b text) USING mixedcc;
CREATE TABLE f.deferred (a int PRIMARY KEY DEFERRABLE, b int) USING mixedcc;
CREATE TABLE f.no_columns () USING mixedcc;
CREATE TABLE f.heap (a int PRIMARY KEY, b text, c int);
CREATE TABLE f.parted (a int PRIMARY KEY, b text) PARTITION BY RANGE (a);
CREATE TABLE f.part PARTITION OF f.parted FOR VALUES FROM (0) TO (10) USING mixedcc;
CREATE SEQUENCE f.sequence;
CREATE VIEW f.view AS SELECT * FROM f.ours;
CREATE MATERIALIZED VIEW f.mat USING heap AS SELECT 1 AS a;
CREATE TYPE f.composite AS (a int, b text);
CREATE DOMAIN f.over AS f.ours;
CREATE FOREIGN DATA WRAPPER functions_fdw;
CREATE SERVER functions_server FOREIGN DATA WRAPPER functions_fdw;
CREATE FOREIGN TABLE f.foreign_table (a int) SERVER functions_server;
CREATE FUNCTION f.fun(a int) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION f.no_arguments() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE PROCEDURE f.proc(a int) LANGUAGE sql AS '';
CREATE AGGREGATE f.agg(int) (SFUNC = int4pl, STYPE = int);
CREATE TABLE f.gone (a int PRIMARY KEY) USING mixedcc;
CREATE FUNCTION f.gone(a int) RETURNS int LANGUAGE sql AS 'SELECT 1';
"""
TABLES = ["f.ours", "f.two", "f.no_key", "f.deferred", "f.no_columns", "f.heap", "f.parted", "f.part", "f.ours_pkey", "f.heap_pkey", "f.parted_pkey",
          "f.sequence", "f.view", "f.mat", "f.composite", "f.foreign_table", "pg_class", "pg_class_oid_index", "pg_stat_activity"]
ROWS = ["f.ours", "f.two", "f.no_key", "f.deferred", "f.no_columns", "f.heap", "f.parted", "f.part", "f.view", "f.mat", "f.composite", "f.over",
        "f.foreign_table", "pg_class", "record", "int", "text", "int[]", "f.ours[]"]
ROUTINES = ["f.fun(int)", "f.no_arguments()", "f.proc(int)", "f.agg(int)", "now()", "mixedcc.unannotate(regprocedure)"]
UNKNOWN = ["0", "1", "4294967295"]


class Values:
    """SQL of arguments by type: a good one first."""

    def __init__(self, boss, routine):
        toast = value(boss, "SELECT reltoastrelid FROM pg_class WHERE oid = 'f.heap'::regclass")
        gone = [value(boss, "SELECT 'f.gone'::regclass::oid"), value(boss, "SELECT 'f.gone'::regproc::oid")]
        query(boss, "DROP TABLE f.gone; DROP FUNCTION f.gone")
        self.unknown = {"regclass": [f"{o}::oid::regclass" for o in (*UNKNOWN, gone[0])],
                        "regprocedure": [f"{o}::oid::regprocedure" for o in (*UNKNOWN, gone[1])]}
        tables = [f"'{t}'::regclass" for t in TABLES] + [f"{toast}::oid::regclass"] + self.unknown["regclass"]
        routines = [f"'{r}'::regprocedure" for r in [routine, *ROUTINES]] + self.unknown["regprocedure"]
        rows = [f"NULL::{t}" for t in ROWS] + ["ROW(1, 'x', 2)::f.ours", "ROW(1, 2)", "'literal'", "1", "ROW()"]
        texts = ["'occ'", "''", "'garbage((,'", "'partition(f.ours, 1)'", "'partitions=4,'", "repeat('x', 5000)"]
        self.of = {
            "regclass": tables, "regprocedure": routines, "oid": [r + "::oid" for r in routines] + [t + "::oid" for t in tables],
            "anyelement": rows, "text": texts, "name": ["'c'::name", "''::name", "'ctid'::name", "'a'::name"], "integer": ["0", "-1", "2147483647", "-2147483648"],
            "bigint": ["1", "-1", "9223372036854775807"], "boolean": ["true", "false"], "internal": ["NULL"],
            "double precision": ["0", "-1", "'NaN'", "'Infinity'", "1e300"], "interval": ["'0'", "'-1 s'", "'1000 years'"],
            "timestamp with time zone": ["now()", "'-infinity'", "'infinity'", "'1900-01-01'", "'2000-01-01'", "'290000-01-01'"],
            "text[]": ["ARRAY['a']", "ARRAY[]::text[]", "ARRAY[NULL, 'a']", "ARRAY[['a'], ['b']]"],
            "anyarray": ["ARRAY[1, 2]", "ARRAY[NULL]::int[]", "'{}'::int[]", "ARRAY['a']", "ARRAY[[1], [2]]", "ARRAY[NULL::f.ours]"],
            '"any"': ["1", "'x'", "NULL::int", "ROW(1, 2)", "NULL::f.ours", "1.5", "ARRAY[1]", "now()", "NULL::record"],
        }


def functions(boss):
    """Name, argument types, is the last one variadic, STRICT, language."""
    rows = query(boss, """SELECT proname, ARRAY(SELECT pg_catalog.format_type(t, NULL) FROM unnest(proargtypes::oid[]) WITH ORDINALITY AS u(t, n) ORDER BY n),
        provariadic <> 0, proisstrict, lanname, p.oid::regprocedure::text FROM pg_proc p JOIN pg_language l ON l.oid = prolang
        WHERE pronamespace = 'mixedcc'::regnamespace ORDER BY p.oid::regprocedure::text""")
    return rows


def calls(values, types, variadic, rng):
    """Lists of arguments: all good, one of them anything, all NULL, and any combination."""
    given = [values.of[t] + ["NULL"] for t in types]
    if not given:
        return [[]]
    found = [[g[0] for g in given], ["NULL"] * len(given)]
    for i, g in enumerate(given):
        found += [[*found[0][:i], v, *found[0][i + 1:]] for v in g]
    for _ in range(MOST):
        found.append([rng.choice(g) for g in given])
    if variadic:
        # None, or several, in place of the last one.
        last = given[-1]
        found = [f if rng.random() < 0.5 else f[:-1] + [rng.choice(last) for _ in range(rng.choice([0, 2, 3, 40]))] for f in found]
        if types[-1] == "text[]":
            found = [f[:-1] + ["VARIADIC " + f[-1]] if len(f) == len(given) else [*f[:len(given) - 1], "'a'", "NULL"] for f in found]
    return found[:MOST]


def call(name, arguments, types=(), variadic=False):
    """The text of a call."""
    arguments = list(arguments)
    if variadic and types[-1] == "text[]":
        arguments[-1] = "VARIADIC " + arguments[-1]
    return f"SELECT * FROM mixedcc.{name}({', '.join(arguments)})"


def state(connection, sql):
    """SQLSTATE and message; None, None."""
    try:
        query(connection, sql)
        return None, None
    except psycopg2.Error as error:
        if connection.closed:
            raise
        return error.pgcode, str(error)


def is_internal(code):
    """An internal error, a crash, or (57014) no end."""
    return code is not None and (code.startswith("XX") or code in ("57014", "57P01", "57P02", "57P03"))


def call_all(boss, role, routine):
    """A role calls everything."""
    values = VALUES[role]
    connection = SESSIONS[role]
    rng = random.Random(f"{role}")
    done = 0
    for name, types, variadic, strict, language, signature in functions(boss):
        known = all(t in values.of for t in types)
        if not known:
            check(f"functions, {role}: {signature}", False, "this test has no values for its arguments")
            continue
        bad = []
        for arguments in calls(values, types, variadic, rng):
            sql = call(name, arguments)
            code, message = state(connection, sql)
            if is_internal(code):
                bad.append(f"{sql}\n{code} {message}")
            done += 1
        check(f"functions, {role}: {signature}", not bad, f"{len(bad)} calls:\n" + "\n".join(bad[:3]))
    check(f"functions, {role}: were called", done > 500, done)


def test_by_superuser():
    call_all(SESSIONS["boss"], "boss", "f.fun(int)")


def test_by_stranger():
    call_all(SESSIONS["boss"], "stranger", "f.mine(int)")


def test_codes():
    """What an unknown OID, or a NULL, is told."""
    boss, values = SESSIONS["boss"], VALUES["boss"]
    codes = {"regclass": UNDEFINED_TABLE, "regprocedure": UNDEFINED_FUNCTION}
    for name, types, variadic, strict, language, signature in functions(boss):
        if name in LENIENT or language == "internal":
            continue
        good = [values.of[t][0] for t in types]
        for i, t in enumerate(types):
            if t not in codes:
                continue
            got = {state(boss, call(name, [*good[:i], v, *good[i + 1:]], types, variadic))[0] for v in values.unknown[t]}
            equal(f"functions, unknown {t}: {signature}", got, {codes[t]})
            if not strict and name not in ("reset_stats", "await_switches", "await_switches_ms"):
                got = state(boss, call(name, [*good[:i], "NULL", *good[i + 1:]], types, variadic))[0]
                equal(f"functions, null {t}: {signature}", got, NULL_VALUE)
    for sql in ("set_protocol(NULL, 'occ')", "set_protocol('f.ours', NULL)", "unpin(NULL)", "await_switches_ms('f.ours', NULL)", "await_switches('f.ours', NULL)",
                "declare_partition(NULL, 1)", "insert(NULL::f.ours)", "put(NULL::f.ours)", "annotate('f.fun(int)', 'f.ours', VARIADIC ARRAY[NULL])"):
        equal(f"functions, null: {sql}", state(boss, f"SELECT mixedcc.{sql}")[0], NULL_VALUE)


def test_no_lock_for_strangers():
    """A user without a right on a table locks it with no function, however long the transaction
    is."""
    boss, stranger = SESSIONS["boss"], connect(DATABASE, options=f"-c role={STRANGER}")
    stranger.autocommit = False
    values = VALUES["stranger"]
    pid = value(stranger, "SELECT pg_backend_pid()")
    stranger.rollback()
    called = 0
    for name, types, variadic, _, _, signature in functions(boss):
        if not {"regclass", "anyelement", '"any"'} & set(types) or name == "declaring":
            continue
        # Native access: the row of a table of another, and a key that is NULL, so that no row is
        # looked for.
        rows = {"anyelement": "NULL::f.ours", '"any"': "NULL::int"}
        arguments = [rows.get(t) or values.of[t][0] for t in types]
        if name == "get_value":
            arguments[:2] = ["NULL::int", "NULL::f.ours"]
        if "regprocedure" in types:
            arguments[types.index("regprocedure")] = "'f.mine(int)'::regprocedure"
        code = None
        try:
            query(stranger, call(name, arguments, types, variadic))
        except psycopg2.Error as error:
            code = error.pgcode
        locks = query(boss, "SELECT mode FROM pg_locks WHERE pid = %s AND relation = 'f.ours'::regclass AND granted", (pid,))
        check(f"functions, no lock for strangers: {signature}", locks == [], f"{code}: {locks}")
        called += code is None
        stranger.rollback()
    check("functions, no lock for strangers: some answer", called >= 2, called)
    stranger.close()


def test_dropped_meanwhile():
    """A session drops and makes tables and functions, others call with the OIDs that they have just
    had."""
    boss, end = SESSIONS["boss"], time.monotonic() + seconds(4)
    failures, done = [], [0, 0]

    def drop():
        c = connect(DATABASE)
        while time.monotonic() < end:
            query(c, "CREATE TABLE f.now (a int PRIMARY KEY, b text, c int) USING mixedcc; CREATE FUNCTION f.now(a int) RETURNS int LANGUAGE sql AS 'SELECT 1'")
            query(c, "DROP TABLE f.now")  # one lock at a time: the others take both
            query(c, "DROP FUNCTION f.now")
            done[1] += 1
        c.close()

    def use(seed):
        rng = random.Random(seed)
        c = connect(DATABASE)
        every = [f for f in functions(c) if {"regclass", "regprocedure", "oid"} & set(f[1])]
        while time.monotonic() < end:
            name, types, variadic, _, _, _ = rng.choice(every)
            table = query(c, "SELECT oid FROM pg_class WHERE relname = 'now' AND relkind = 'r'")
            routine = query(c, "SELECT oid FROM pg_proc WHERE proname = 'now' AND pronamespace = 'f'::regnamespace")
            if not table or not routine:
                continue
            now = {"regclass": f"{table[0][0]}::oid::regclass", "regprocedure": f"{routine[0][0]}::oid::regprocedure", "oid": f"{routine[0][0]}::oid"}
            good = [now.get(t) or VALUES["boss"].of[t][0] for t in types]
            sql = call(name, good, types, variadic)
            code, message = state(c, sql)
            if is_internal(code):
                failures.append(f"{sql}\n{code} {message}")
            done[0] += 1

    threads = [threading.Thread(target=drop), *(threading.Thread(target=use, args=(i,)) for i in range(2))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check("functions, dropped meanwhile: no internal error", not failures, "\n".join(failures[:3]))
    check("functions, dropped meanwhile: were called", done[0] > 50 and done[1] > 10, done)
    equal("functions, dropped meanwhile: the server is there", value(boss, "SELECT 1"), 1)


def test_labels():
    """An unchecked security label: calls that do not need it run, and so do those that repair
    it."""
    boss = SESSIONS["boss"]
    other = connect(DATABASE, isolation="serializable")
    query(boss, "INSERT INTO pg_seclabel VALUES ('f.no_arguments()'::regprocedure, 'pg_proc'::regclass, 0, 'mixedcc', 'garbage((,')")
    query(boss, "SELECT mixedcc.annotate('f.fun(int)', 'f.ours', 'a')")
    for who, c in (("the same session", boss), ("another", other)):
        for sql in ("SELECT count(*) FROM f.ours", "SELECT f.no_arguments()", "SELECT f.fun(1)", "CALL f.proc(1)", "UPDATE f.ours SET c = 1 WHERE a = 1"):
            equal(f"functions, a wrong label, {who}: {sql}", state(c, sql)[0], None)
    equal("functions, a wrong label: annotations", query(boss, "SELECT function::text FROM mixedcc.annotations"), [("f.fun(integer)",)])
    equal("functions, a wrong label: unannotate", state(boss, "SELECT mixedcc.unannotate('f.no_arguments()')")[0], None)
    query(boss, "INSERT INTO pg_seclabel VALUES ('f.no_arguments()'::regprocedure, 'pg_proc'::regclass, 0, 'mixedcc', 'garbage((,')")
    equal("functions, a wrong label: DELETE", state(boss, "DELETE FROM pg_seclabel WHERE label = 'garbage((,'")[0], None)
    equal("functions, a wrong label: is away", value(boss, "SELECT count(*) FROM pg_seclabel WHERE label = 'garbage((,'"), 0)
    other.close()


def test_nothing_was_lost():
    equal("functions: the server never restarted", value(SESSIONS["boss"], "SELECT pg_postmaster_start_time()::text"), STARTED)
    equal("functions: no row was lost", value(connect(DATABASE), "SELECT count(*) FROM f.kept"), 100)


if not OURS:
    ok("functions: has nothing to test on heap")
    main()
make_database(DATABASE)
SESSIONS = {"boss": connect(DATABASE)}
query(SESSIONS["boss"], f"DROP ROLE IF EXISTS {STRANGER}")
query(SESSIONS["boss"], SET_UP)
query(SESSIONS["boss"], "CREATE TABLE f.kept USING mixedcc AS SELECT generate_series(1, 100) AS n")
SESSIONS["stranger"] = connect(DATABASE, options=f"-c role={STRANGER}")
for session in SESSIONS.values():
    query(session, "SET statement_timeout = '10 s'; SET lock_timeout = '5 s'")
query(SESSIONS["stranger"], "CREATE FUNCTION f.mine(a int) RETURNS int LANGUAGE sql AS 'SELECT 1'")
VALUES = {"boss": Values(SESSIONS["boss"], "f.fun(int)")}
VALUES["stranger"] = VALUES["boss"]
STARTED = value(SESSIONS["boss"], "SELECT pg_postmaster_start_time()::text")
try:
    main(test_codes, test_no_lock_for_strangers, test_labels, test_by_superuser, test_by_stranger, test_dropped_meanwhile, test_nothing_was_lost)
finally:
    for session in SESSIONS.values():
        session.close()
    drop_database(DATABASE)
