#!/usr/bin/python3
"""mixedcc's interface for C: what its calls do, against SQL; what they must not do; histories by
the checker; the examples of bench/native, also in Rust. Builds tests/process/native/probe and
bench/native by PGXS; MIXEDCC_INCLUDE: where mixedcc.h is, if it is not installed; RUST_EXAMPLES:
the library of bench/native/rust, built before."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time
import traceback

import psycopg2

from process.isolation import history
from lib import protocols
from lib.common import ROOT, check, connect, drop_database, equal, fail, main, make_database, own_memory, query, seconds, value
from lib.loads import Load

DATABASE = "process_native"
PROBES = """
CREATE FUNCTION probe_open(regclass, regtype[], text[], regtype[]) RETURNS void
CREATE FUNCTION probe_version(int, int, int) RETURNS boolean
CREATE FUNCTION probe_get(regclass, int) RETURNS bigint[]
CREATE FUNCTION probe_append(regclass, int, bigint, boolean DEFAULT false) RETURNS bigint[]
CREATE FUNCTION probe_set(regclass, int, bigint[]) RETURNS boolean
CREATE FUNCTION probe_insert(regclass, int, bigint[]) RETURNS void
CREATE FUNCTION probe_remove(regclass, int) RETURNS boolean
CREATE FUNCTION probe_scan(regclass, int, int, boolean DEFAULT false, boolean DEFAULT false, bigint DEFAULT 0, int DEFAULT 0, append bigint DEFAULT 0) RETURNS text
CREATE FUNCTION probe_subtransaction(regclass, int, bigint, boolean) RETURNS bigint[]
CREATE FUNCTION probe_nested(regclass, int, bigint, int) RETURNS boolean
CREATE FUNCTION probe_loop(regclass, int) RETURNS void
CREATE FUNCTION probe_change(regclass, int, int, bigint, text DEFAULT NULL) RETURNS boolean
CREATE FUNCTION probe_put(regclass, int, int, bigint) RETURNS boolean
CREATE FUNCTION probe_dirty(regclass) RETURNS bigint
CREATE FUNCTION probe_at_commit(text) RETURNS void
"""
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


def build(directory, library):
    """The library of a directory, as CREATE FUNCTION names it."""
    place = pathlib.Path(tempfile.mkdtemp(prefix="mixedcc-native-")) / "build"
    shutil.copytree(ROOT / directory, place)
    config = os.path.join(os.environ["PGBIN"], "pg_config")
    done = subprocess.run(["make", "-s", "-C", str(place), f"PG_CONFIG={config}"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{directory} cannot be built: {done.stdout}")
    return str(place / library)


def make_probes(connection, library):
    for line in PROBES.strip().splitlines():
        name = line.split("(")[0].split()[-1]
        query(connection, f"{line} AS '{library}', '{name}' LANGUAGE C VOLATILE")


def fresh_table(connection, more="", using="mixedcc"):
    query(connection, f"DROP TABLE IF EXISTS t; CREATE TABLE t (k int PRIMARY KEY, l bigint[] {more}) USING {using}")
    query(connection, "INSERT INTO t SELECT g, ARRAY[g] FROM generate_series(1, 9) g WHERE g <> 5")


def error(connection, sql, parameters=None):
    """The error's code, and its message."""
    try:
        return "no error", query(connection, sql, parameters)
    except psycopg2.Error as e:
        return e.pgcode, e.diag.message_primary


def rows(text):
    return [line for line in text.split("\n")[:-1]]


def calls(connection, name):
    """All calls once, and the table's rows then."""
    equal(f"{name}: get", value(connection, "SELECT probe_get('t', 3)"), [3])
    equal(f"{name}: get, absent", value(connection, "SELECT probe_get('t', 5)"), None)
    equal(f"{name}: modify", value(connection, "SELECT probe_append('t', 3, 30)"), [3, 30])
    equal(f"{name}: modify, absent", value(connection, "SELECT probe_append('t', 5, 30)"), None)
    value(connection, "SELECT probe_append('t', 4, 0)")
    equal(f"{name}: modify that leaves the row", value(connection, "SELECT probe_get('t', 4)"), [4])
    equal(f"{name}: update", query(connection, "SELECT probe_set('t', 2, '{7,8}'), probe_set('t', 5, '{7,8}')"), [(True, False)])
    query(connection, "SELECT probe_set('t', 6, NULL)")
    query(connection, "SELECT probe_insert('t', 20, '{1,2}'), probe_insert('t', 21, NULL)")
    equal(f"{name}: remove", query(connection, "SELECT probe_remove('t', 1), probe_remove('t', 5)"), [(True, False)])
    equal(f"{name}: the rows", query(connection, "SELECT k, l FROM t ORDER BY k"),
          [(2, [7, 8]), (3, [3, 30]), (4, [4]), (6, None), (7, [7]), (8, [8]), (9, [9]), (20, [1, 2]), (21, None)])
    scans = {
        "'t', 3, 8": ["3 {3,30}", "4 {4}", "6 -", "7 {7}", "8 {8}"],
        "'t', 3, 8, true": ["4 {4}", "6 -", "7 {7}"],
        "'t', NULL, 4, false, true": ["4 {4}", "3 {3,30}", "2 {7,8}"],
        "'t', 8, NULL, false, false, 2": ["8 {8}", "9 {9}"],
        "'t', NULL, NULL, false, true, 0, 2": ["21 -", "20 {1,2}"],
        "'t', 9, 8": [],
    }
    for arguments, wanted in scans.items():
        text = value(connection, f"SELECT probe_scan({arguments})")
        equal(f"{name}: scan {arguments}", rows(text), wanted)
        equal(f"{name}: scan {arguments}: count", text.split("\n")[-1], str(len(wanted)))
    text = value(connection, "SELECT probe_scan('t', 7, 9, append => 100)")
    equal(f"{name}: a scan whose visits change the rows sees them as they were", rows(text), ["7 {7}", "8 {8}", "9 {9}"])
    equal(f"{name}: they have changed", query(connection, "SELECT l FROM t WHERE k BETWEEN 7 AND 9 ORDER BY k"),
          [([7, 100],), ([8, 100],), ([9, 100],)])
    query(connection, "SELECT probe_nested('t', 2, 5, 3)")
    equal(f"{name}: a change within a change", query(connection, "SELECT l FROM t WHERE k IN (2, 3) ORDER BY k"),
          [([7, 8, 5],), ([3, 30, 5],)])


def test_calls():
    """Directly, and by statements (a CHECK constraint, a policy), at every level, in one
    transaction and in many."""
    connection = connect(DATABASE)
    for level in LEVELS:
        query(connection, f"SET default_transaction_isolation = '{level.lower()}'")
        fresh_table(connection)
        calls(connection, level)
        fresh_table(connection)
        query(connection, "BEGIN")
        calls(connection, f"{level}, one transaction")
        query(connection, "ROLLBACK")
        equal(f"{level}: rolled back", value(connection, "SELECT count(*) FROM t"), 8)
    query(connection, "RESET default_transaction_isolation")
    fresh_table(connection, ", CHECK (k < 1000)")
    calls(connection, "by statements")
    equal("by statements: CHECK", error(connection, "SELECT probe_insert('t', 1000, NULL)")[0], "23514")
    fresh_table(connection)
    query(connection, "CREATE ROLE probe_user; GRANT ALL ON t TO probe_user; ALTER TABLE t ENABLE ROW LEVEL SECURITY;"
                      "CREATE POLICY p ON t USING (k < 8); SET ROLE probe_user")
    equal("a policy: reads", query(connection, "SELECT probe_get('t', 7), probe_get('t', 8)"), [([7], None)])
    equal("a policy: scans", rows(value(connection, "SELECT probe_scan('t', 6, 9)")), ["6 {6}", "7 {7}"])
    equal("a policy: writes", query(connection, "SELECT probe_append('t', 7, 1), probe_append('t', 8, 1), probe_remove('t', 9)"),
          [([7, 1], None, False)])
    query(connection, "RESET ROLE; DROP TABLE t; DROP ROLE probe_user")
    connection.close()


def test_errors():
    connection = connect(DATABASE)
    fresh_table(connection)
    failing = {
        "a duplicate": ("SELECT probe_insert('t', 3, NULL)", "23505"),
        "NULL in the key": ("SELECT probe_insert('t', NULL, NULL)", "23502"),
        "a change within a change of the row": ("SELECT probe_nested('t', 3, 5, 3)", "27000"),
        "the caller's function": ("SELECT probe_append('t', 3, 1, true)", "P0001"),
        "another type of the key": ("SELECT probe_open('t', '{text}', '{l}', '{bigint[]}')", "42804"),
        "another type of a column": ("SELECT probe_open('t', '{int}', '{l}', '{text}')", "42804"),
        "a column that is not there": ("SELECT probe_open('t', '{int}', '{m}', '{text}')", "42703"),
        "a system column": ("SELECT probe_open('t', '{int}', '{ctid}', '{tid}')", "42703"),
        "another number of columns of the key": ("SELECT probe_open('t', '{int,int}', '{l}', '{bigint[]}')", "22023"),
        "a catalog": ("SELECT probe_open('pg_class', '{oid}', '{relname}', '{name}')", "42809"),
        "an index": ("SELECT probe_open('t_pkey', '{int}', '{}', '{}')", "42809"),
        "another major version": ("SELECT probe_version(2, 0, 0)", "55000"),
        "a version before the first": ("SELECT probe_version(0, 0, 0)", "55000"),
        "a struct that is too short": ("SELECT probe_version(1, 0, -8)", "55000"),
        "READ ONLY": ("BEGIN READ ONLY; SELECT probe_append('t', 3, 1)", "25006"),
    }
    for name, (sql, code) in failing.items():
        equal(f"error: {name}", error(connection, sql)[0], code)
        query(connection, "ROLLBACK")
        equal(f"error: {name}: nothing stays", query(connection, "SELECT l FROM t WHERE k = 3"), [([3],)])
    equal("newer versions are fine", value(connection, "SELECT probe_version(1, 7, 64)"), True)
    query(connection, "CREATE TABLE h (k int PRIMARY KEY, l bigint[]) USING heap; CREATE TABLE n (k int, l bigint[]) USING mixedcc")
    equal("error: heap", error(connection, "SELECT probe_get('h', 1)")[0], "42809")
    equal("error: no primary key", error(connection, "SELECT probe_get('n', 1)")[0], "55000")
    query(connection, "CREATE ROLE probe_user; SET ROLE probe_user")
    for call in ("probe_get('t', 3)", "probe_append('t', 3, 1)", "probe_remove('t', 3)", "probe_insert('t', 30, NULL)", "probe_scan('t', 3, 3)"):
        equal(f"error: rights for {call}", error(connection, f"SELECT {call}")[0], "42501")
    query(connection, "RESET ROLE; GRANT SELECT (k, l) ON t TO probe_user; SET ROLE probe_user")
    equal("rights on the columns", value(connection, "SELECT probe_get('t', 3)"), [3])
    equal("error: rights to write", error(connection, "SELECT probe_append('t', 3, 1)")[0], "42501")
    query(connection, "RESET ROLE; DROP OWNED BY probe_user; DROP ROLE probe_user; DROP TABLE h, n")
    connection.close()


def test_definitions():
    """Tables that stay open over changes of their definition."""
    connection = connect(DATABASE)
    fresh_table(connection)
    oid = value(connection, "SELECT 't'::regclass::oid")
    equal("a table", value(connection, "SELECT probe_get(%s, 3)", (oid,)), [3])
    query(connection, "BEGIN; ALTER TABLE t DROP COLUMN l")
    equal("a dropped column", error(connection, "SELECT probe_get(%s, 3)", (oid,))[0], "42703")
    query(connection, "ROLLBACK")
    equal("it is back", value(connection, "SELECT probe_get(%s, 3)", (oid,)), [3])
    query(connection, "ALTER TABLE t DROP COLUMN l; ALTER TABLE t ADD COLUMN m text DEFAULT 'm', ADD COLUMN l bigint[] DEFAULT '{9}'")
    equal("a column that came later", value(connection, "SELECT probe_get(%s, 3)", (oid,)), [9])
    equal("a column that came later changes", value(connection, "SELECT probe_append(%s, 3, 1)", (oid,)), [9, 1])
    query(connection, "SELECT probe_insert(%s, 40, '{4}')", (oid,))
    equal("defaults of other columns", query(connection, "SELECT m, l FROM t WHERE k = 40"), [("m", [4])])
    query(connection, "ALTER TABLE t DROP COLUMN m; CREATE DOMAIN five AS int DEFAULT 5; CREATE DOMAIN given AS int NOT NULL; ALTER TABLE t ADD COLUMN d five")
    query(connection, "SELECT probe_insert(%s, 41, '{4}')", (oid,))
    equal("the default of a column's domain", query(connection, "SELECT d, l FROM t WHERE k = 41"), [(5, [4])])
    query(connection, "DELETE FROM t; ALTER TABLE t DROP COLUMN d, ADD COLUMN d given")
    equal("a constraint of a column's domain", error(connection, "SELECT probe_insert(%s, 42, '{4}')", (oid,))[0], "23502")
    query(connection, "ALTER TABLE t DROP COLUMN d; DROP DOMAIN five, given")
    query(connection, "INSERT INTO t (k) VALUES (3), (4); UPDATE t SET l = '{9}'")
    query(connection, "ALTER TABLE t ALTER COLUMN k TYPE text")
    equal("another type of the key", error(connection, "SELECT probe_get(%s, 3)", (oid,))[0], "42804")
    query(connection, "ALTER TABLE t ALTER COLUMN k TYPE int USING k::int; ALTER TABLE t SET ACCESS METHOD heap")
    equal("another access method", error(connection, "SELECT probe_get(%s, 3)", (oid,))[0], "42809")
    query(connection, "ALTER TABLE t SET ACCESS METHOD mixedcc; CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS "
                      "$$ BEGIN NEW.l := '{0}'; RETURN NEW; END $$")
    equal("back again", value(connection, "SELECT probe_get(%s, 4)", (oid,)), [9])
    query(connection, "CREATE TRIGGER no BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION no()")
    query(connection, "SELECT probe_append(%s, 4, 1)", (oid,))
    equal("a new trigger runs", value(connection, "SELECT l FROM t WHERE k = 4"), [0])
    query(connection, "DROP TABLE t")
    equal("a dropped table", error(connection, "SELECT probe_get(%s, 3)", (oid,))[0], "42P01")
    query(connection, "CREATE DOMAIN small AS int CHECK (VALUE < 5); CREATE TABLE t (k int PRIMARY KEY, l bigint[], s small, v varchar(3))"
                      " USING mixedcc; DROP TABLE t; DROP DOMAIN small; DROP FUNCTION no")
    connection.close()


def test_refused_open():
    """A table that cannot be locked in time: what was opened for it is given back."""
    connection, other = connect(DATABASE), connect(DATABASE)
    fresh_table(connection)
    columns = "array_fill('l'::text, ARRAY[32]), array_fill('bigint[]'::regtype, ARRAY[32])"
    query(connection, f"SELECT probe_open('t', '{{int}}', {columns})")
    query(other, "BEGIN; LOCK TABLE t")
    block = f"""DO $$BEGIN
        SET LOCAL lock_timeout = 1;
        FOR i IN 1..{{}} LOOP
            BEGIN
                PERFORM probe_open('t', '{{{{int}}}}', {columns});
                RAISE 'the table was opened';
            EXCEPTION WHEN lock_not_available THEN NULL; END;
        END LOOP;
    END$$"""
    query(connection, block.format(100))
    before = own_memory(connection)
    query(connection, block.format(2000))
    more = own_memory(connection) - before
    check("an open that fails leaves no memory behind", more < 2 << 20, f"{more} bytes")
    other.close()
    query(connection, "DROP TABLE t")
    connection.close()


def test_foreign_keys():
    """An update of columns that no key has, in tables that refer to others and are referred to."""
    connection = connect(DATABASE)
    query(connection, "CREATE TABLE f (k int PRIMARY KEY, l bigint[], r int REFERENCES f DEFERRABLE INITIALLY DEFERRED) USING mixedcc;"
                      "INSERT INTO f VALUES (1, '{1}', 2), (2, '{2}', 1)")
    for level in LEVELS:
        query(connection, f"BEGIN ISOLATION LEVEL {level}")
        equal(f"foreign keys, {level}: a change", value(connection, "SELECT probe_append('f', 1, 5)"), [1, 5])
        equal(f"foreign keys, {level}: once more", value(connection, "SELECT probe_append('f', 1, 6)"), [1, 5, 6])
        query(connection, "ROLLBACK")
        # A row that the transaction has inserted is checked, though its key does not change.
        query(connection, f"BEGIN ISOLATION LEVEL {level}; INSERT INTO f VALUES (3, '{{3}}', 9); SELECT probe_append('f', 3, 5)")
        equal(f"foreign keys, {level}: a row that refers to nothing", error(connection, "COMMIT")[0], "23503")
        equal(f"foreign keys, {level}: a row that is referred to", error(connection, "SELECT probe_remove('f', 1)")[0], "23503")
    equal("foreign keys: nothing has changed", query(connection, "SELECT k, l, r FROM f ORDER BY k"), [(1, [1], 2), (2, [2], 1)])
    query(connection, "DROP TABLE f")
    connection.close()


def test_subtransactions():
    connection = connect(DATABASE)
    for level in LEVELS:
        fresh_table(connection)
        query(connection, f"BEGIN ISOLATION LEVEL {level}; SELECT probe_append('t', 3, 1)")
        equal(f"{level}: rolled back to", value(connection, "SELECT probe_subtransaction('t', 3, 2, false)"), [3, 1])
        equal(f"{level}: an error caught", value(connection, "SELECT probe_subtransaction('t', 3, 2, true)"), [3, 1])
        equal(f"{level}: goes on", value(connection, "SELECT probe_append('t', 3, 4)"), [3, 1, 4])
        query(connection, "SAVEPOINT s")
        equal(f"{level}: an error in a savepoint", error(connection, "SELECT probe_append('t', 4, 4, true)")[0], "P0001")
        query(connection, "ROLLBACK TO s; COMMIT")
        equal(f"{level}: committed", query(connection, "SELECT l FROM t WHERE k IN (3, 4) ORDER BY k"), [([3, 1, 4],), ([4],)])
        # No session keeps the table: this takes its exclusive lock, and would complain of uses in
        # this session.
        query(connection, "BEGIN; SELECT probe_subtransaction('t', 3, 2, true); ALTER TABLE t ADD COLUMN x int; ROLLBACK")
    connection.close()


def test_conflicts():
    """Two sessions, one row."""
    one, two = connect(DATABASE), connect(DATABASE)
    for level, outcome in (("READ COMMITTED", "no error"), ("REPEATABLE READ", "40001"), ("SERIALIZABLE", "40001")):
        fresh_table(one)
        query(two, f"BEGIN ISOLATION LEVEL {level}; SELECT probe_get('t', 3)")
        query(one, "SELECT probe_append('t', 3, 1)")
        code, result = error(two, "SELECT probe_append('t', 3, 2)")
        if code == "no error":
            equal(f"{level}: the newest row is changed", result, [([3, 1, 2],)])
            code, _ = error(two, "COMMIT")
        equal(f"{level}: a row that has changed", code, outcome)
        query(two, "ROLLBACK")
    fresh_table(one)
    query(one, "BEGIN; SELECT probe_append('t', 3, 1)")
    later = threading.Timer(0.3, lambda: query(one, "COMMIT"))
    later.start()
    equal("a writer is waited for", value(two, "SELECT probe_append('t', 3, 2)"), [3, 1, 2])
    later.join()
    # A phantom in a range that was scanned, and behind a key that was absent.
    for name, read in (("a range", "probe_scan('t', 4, 6)"), ("an absent key", "probe_get('t', 5)")):
        fresh_table(one)
        query(two, f"BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT {read}; SELECT probe_append('t', 9, 1)")
        query(one, "SELECT probe_insert('t', 5, NULL)")
        equal(f"a phantom: {name}", error(two, "COMMIT")[0], "40001")
        query(two, "ROLLBACK")
    one.close()
    two.close()


def test_interrupts():
    boss, one = connect(DATABASE), connect(DATABASE, options="-c statement_timeout=300ms")
    fresh_table(boss)
    equal("a timeout ends a loop", error(one, "SELECT probe_loop('t', 3)")[0], "57014")
    query(boss, "BEGIN; SELECT probe_append('t', 3, 1)")
    equal("a timeout ends a wait", error(one, "SELECT probe_append('t', 3, 1)")[0], "57014")
    query(boss, "COMMIT")
    equal("no lock is left", value(one, "SELECT probe_append('t', 3, 2)"), [3, 1, 2])
    equal("no lock is left in the table", value(boss, "SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass"), 0)
    boss.close()
    one.close()


def kept_plans(connection):
    """The texts of the statements that native calls keep plans of in this session."""
    rows = query(connection, "SELECT ident FROM pg_backend_memory_contexts WHERE name = 'CachedPlanSource' AND ident ~ ' ONLY '")
    return sorted(row[0] for row in rows)


def test_kept_plans():
    """A statement that calls stand for is prepared once; another definition makes it anew."""
    connection = connect(DATABASE)
    fresh_table(connection, ", CHECK (k < 100)")
    for i in range(8):
        query(connection, f"SELECT probe_set('t', 1, '{{{i}}}')")
    equal("one plan for eight calls", len(kept_plans(connection)), 1)
    equal("the last value", value(connection, "SELECT l FROM t WHERE k = 1"), [7])
    # Another definition: the trigger is new, and changes the written values.
    query(connection, "CREATE FUNCTION nine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.l := NEW.l || 9::bigint; RETURN NEW; END';"
                      "CREATE TRIGGER nine BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION nine()")
    query(connection, "SELECT probe_set('t', 1, '{8}')")
    equal("a kept plan sees a new trigger", value(connection, "SELECT l FROM t WHERE k = 1"), [8, 9])
    # Another table of the same name.
    query(connection, "ALTER TABLE t RENAME TO u; CREATE TABLE t (k int PRIMARY KEY CHECK (k < 50), l bigint[]) USING mixedcc; INSERT INTO t VALUES (1, '{}')")
    query(connection, "SELECT probe_set('t', 1, '{5}')")
    equal("another table of the name", query(connection, "SELECT l FROM t WHERE k = 1 UNION ALL SELECT l FROM u WHERE k = 1"), [([5],), ([8, 9],)])
    query(connection, "DROP TABLE t; ALTER TABLE u RENAME TO t; DROP TRIGGER nine ON t")
    # An error leaves the plan usable, and what runs it is counted down.
    equal("a failed statement", error(connection, "SELECT probe_insert('t', 1, '{1}')")[0], "23505")
    query(connection, "SELECT probe_insert('t', 50, '{1}')")
    # A trigger that makes the call that it came from runs one plan within itself.
    query(connection, "CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$"
                      "BEGIN IF OLD.k < 9 THEN PERFORM mixedcc.set(NULL::t, 'l', ARRAY[OLD.k + 1]::bigint[], OLD.k + 1); END IF; RETURN NEW; END $$;"
                      "CREATE TRIGGER again BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION again(); INSERT INTO t VALUES (5, '{}')")
    query(connection, "SELECT mixedcc.set(NULL::t, 'l', ARRAY[1]::bigint[], 1)")
    equal("calls within the same call", query(connection, "SELECT k, l FROM t WHERE k < 10 ORDER BY k"), [(k, [k]) for k in range(1, 10)])
    test_many_plans(connection)
    connection.close()


def test_many_plans(connection):
    """More statements than are kept: the oldest make room, also while an outer call runs its
    own."""
    names = [f"many_{i}" for i in range(70)]
    for name in names:
        query(connection, f"CREATE TABLE {name} (k int PRIMARY KEY CHECK (k > 0), v int) USING mixedcc; INSERT INTO {name} VALUES (1, 0)")
    query(connection, "CREATE FUNCTION all_others() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                      + " ".join(f"PERFORM mixedcc.add(NULL::{name}, 'v', 1, 1);" for name in names[1:])
                      + " RETURN NEW; END $$; CREATE TRIGGER all_others BEFORE UPDATE ON many_0 FOR EACH ROW EXECUTE FUNCTION all_others()")
    for _ in range(3):
        query(connection, "SELECT mixedcc.add(NULL::many_0, 'v', 1, 1)")
    equal("all rows were changed", [value(connection, f"SELECT v FROM {name}") for name in names], [3] * 70)
    equal("so many plans are kept", len(kept_plans(connection)), 64)
    query(connection, f"DROP TABLE {', '.join(names)}; DROP FUNCTION all_others")


class ByInterface(Load):
    """The operations of the histories through the interface."""

    interface = True


def test_histories():
    connection = connect(DATABASE)
    chosen = [(name, history.SINGLE[name], {"serializable": 9, "serializable read only": 1}) for name in history.SINGLE]
    chosen += [(f"all levels, {name}", history.SINGLE[name], history.ALL_LEVELS) for name in map(protocols.patient, protocols.ALL)]
    history.DATABASE = DATABASE
    for name, settings, levels in chosen:
        history.make_tables(connection, settings, settings)
        load = ByInterface(["a", "b"], ["a", "b"], levels=levels)
        history.judge(f"by the interface, {name}", load, connection, seconds(16) / len(chosen))
    connection.close()


def run_by(connection, protocol):
    """The table `item`, with small values, run by a protocol."""
    query(connection, "SELECT mixedcc.set_protocol('item', %s)", (protocol,))
    query(connection, "SELECT mixedcc.await_switches('item')")
    query(connection, "UPDATE item SET value = id % 7")


def rust_library():
    """The example in Rust. scripts/test builds it, because the server's user has no Rust."""
    library = os.environ.get("RUST_EXAMPLES")
    if not library:
        raise RuntimeError("RUST_EXAMPLES is not set: the library of bench/native/rust, without its suffix "
                           "(cargo build --release -p mixedcc-examples-rust)")
    return library


def make_examples(connection):
    """The functions of both examples, their tables, and the same in SQL."""
    for script, library in (("bench/native/mixedcc_examples.sql", build("bench/native", "mixedcc_examples")),
                            ("bench/native/rust/mixedcc_examples_rust.sql", rust_library())):
        query(connection, (ROOT / script).read_text(encoding="utf-8").replace(":'module'", f"'{library}'"))
    query(connection, "CREATE TABLE item (id int PRIMARY KEY, value int NOT NULL, filler text) USING mixedcc WITH (mixedcc.partitions = 3);"
                      "INSERT INTO item SELECT g, g % 7, 'x' FROM generate_series(1, 200) g")
    query(connection, (ROOT / "bench/statements/sql/functions.sql").read_text(encoding="utf-8"))


def test_rust():
    """Versions that the example in Rust refuses, and its panics: ERRORs that leave nothing
    locked."""
    connection, other = connect(DATABASE), connect(DATABASE, options="-c lock_timeout=2s")
    for arguments, code in (("1, 0, 0", "no error"), ("1, 7, 64", "no error"), ("2, 0, 0", "55000"), ("0, 0, 0", "55000"), ("1, 0, -8", "55000")):
        equal(f"rust: version {arguments}", error(connection, f"SELECT rust_version({arguments})")[0], code)
    equal("rust: which version", error(connection, "SELECT rust_version(2, 5, 0)")[1],
          "mixedcc has version 2.5 of its native interface, and version 1.0 is needed")
    equal("rust: a panic", error(connection, "SELECT rust_read20(1, 0)"), ("XX000", "panic: attempt to calculate the remainder with a divisor of zero"))
    for level in LEVELS:
        for protocol in protocols.ALL:
            name = f"rust: {level}, {protocol}"
            run_by(connection, protocol)
            # Some rows change before the function fails.
            query(connection, "UPDATE item SET value = 2147483647 WHERE id % 4 = 0")
            before = query(connection, "SELECT * FROM item ORDER BY id")
            query(connection, f"BEGIN ISOLATION LEVEL {level}; SAVEPOINT s")
            equal(f"{name}: a panic in a change", error(connection, "SELECT rust_read10_update10(77, 200)"), ("XX000", "panic: the value of an item is as large as it can be"))
            query(connection, "ROLLBACK TO s")
            equal(f"{name}: the transaction goes on", query(connection, "SELECT * FROM item ORDER BY id"), before)
            query(connection, "ROLLBACK; SELECT 1")
            equal(f"{name}: a panic in a transaction of its own", error(connection, "SELECT rust_read10_update10(77, 200)")[0], "XX000")
            query(other, "BEGIN; LOCK TABLE item; UPDATE item SET value = 0; ROLLBACK")
            equal(f"{name}: nothing is locked", value(other, "SELECT count(*) FROM pg_locks WHERE relation = 'item'::regclass"), 0)
    run_by(connection, "occ")
    connection.close()
    other.close()


def test_examples():
    connection = connect(DATABASE)
    make_examples(connection)
    for level in LEVELS:
        query(connection, f"SET default_transaction_isolation = '{level.lower()}'")
        for seed in (1, 77):
            reads = [value(connection, f"SELECT {call}(%s, 200)", (seed,)) for call in ("read20", "native_read20", "rust_read20")]
            equal(f"ycsb reads what SQL reads, {level}, {seed}", reads, reads[:1] * 3)
            states = []
            for call in ("read10_update10", "native_read10_update10", "rust_read10_update10"):
                query(connection, "BEGIN")
                states.append((value(connection, f"SELECT {call}(%s, 200)", (seed,)), query(connection, "SELECT * FROM item ORDER BY id")))
                query(connection, "ROLLBACK")
            equal(f"ycsb changes what SQL changes, {level}, {seed}", states, states[:1] * 3)
        states = []
        for call in ("payment_sql", "native_payment"):
            query(connection, "BEGIN")
            sums = [value(connection, f"SELECT round({call}(%s, 1, %s, %s, %s), 2)", (n, n % 3 + 1, n % 20 + 1, n + 0.129)) for n in range(1, 30)]
            states.append([sums] + [query(connection, f"SELECT * FROM {t} ORDER BY 1, 2, 3") for t in ("warehouse", "district", "customer", "history")])
            query(connection, "ROLLBACK")
        equal(f"payments pay what SQL pays, {level}", states[1], states[0])
    equal("a payment of nobody", error(connection, "SELECT native_payment(1, 1, 1, 999, 1)")[0], "P0002")
    equal("an amount that does not fit", error(connection, "SELECT native_payment(1, 1, 1, 1, 1e9)")[0], "22003")
    equal("a payment that failed left nothing", value(connection, "SELECT sum(w_ytd) FROM warehouse"), 600000)
    connection.close()


def test_dirty():
    """A dirty scan of a table without a key does not wait for inserts that have no transaction
    id."""
    boss, other = connect(DATABASE), connect(DATABASE)
    query(boss, "CREATE TABLE d (v int) USING mixedcc; INSERT INTO d SELECT generate_series(1, 3)")
    query(other, "BEGIN; INSERT INTO d VALUES (4)")
    equal("the insert has no transaction id", value(other, "SELECT pg_current_xact_id_if_assigned()"), None)
    ends = threading.Timer(5, lambda: query(other, "COMMIT"))
    ends.start()
    began = time.monotonic()
    equal("a dirty scan passes over it", value(boss, "SELECT probe_dirty('d')"), 3)
    check("and at once", time.monotonic() - began < 3, f"{time.monotonic() - began:.1f} s")
    ends.join()
    equal("then it is there", value(boss, "SELECT probe_dirty('d')"), 4)
    query(boss, "DROP TABLE d")
    boss.close(), other.close()


def test_commit_callbacks():
    """Other extensions' callbacks in a commit: what they write in front of ours is validated with
    the rest; behind it they may read snapshots, and write nothing."""
    boss = connect(DATABASE)
    fresh_table(boss)
    for level in LEVELS:
        connection = connect(DATABASE)
        query(connection, f"SET default_transaction_isolation = '{level.lower()}'")
        # The first call registers the callback. At SERIALIZABLE nothing has put ours in front of it
        # by the end.
        if level == "SERIALIZABLE":
            query(connection, "SELECT probe_at_commit('INSERT INTO t VALUES (100, NULL)')")
            equal(f"{level}: a callback in front of ours has written", value(boss, "SELECT count(*) FROM t WHERE k = 100"), 1)
            query(boss, "DELETE FROM t WHERE k = 100")
        before = query(boss, "SELECT * FROM t ORDER BY k")
        for sql in ("INSERT INTO t VALUES (100, NULL)", "UPDATE t SET l = NULL WHERE k = 1", "DELETE FROM t", "SELECT * FROM t FOR UPDATE"):
            for turn in (1, 2):
                query(connection, f"BEGIN; SELECT count(*) FROM t; SELECT probe_at_commit('{sql}')")
                code, message = error(connection, "COMMIT")
                equal(f"{level}: a callback behind ours may not: {sql} ({turn})", (code, str(message)[:33]), ("0A000", "mixedcc tables cannot be changed "))
        equal(f"{level}: nothing has changed", query(boss, "SELECT * FROM t ORDER BY k"), before)
        if level != "SERIALIZABLE":
            # What is logged of permanent tables is complete when ours has run.
            for kind, wanted in (("UNLOGGED", "no error"), ("LOGGED", "0A000")):
                query(boss, f"ALTER TABLE t SET {kind}")
                query(connection, "BEGIN; UPDATE t SET l = NULL WHERE k = 1; SELECT probe_at_commit('SELECT count(*) FROM t WHERE l IS NOT NULL')")
                equal(f"{level}: may it read a snapshot? {kind}", error(connection, "COMMIT")[0], wanted)
        connection.close()
    boss.close()


def test_prepare_callbacks():
    """Other extensions' callbacks in PREPARE TRANSACTION: behind ours they may not use our tables,
    as nothing would validate or keep what they do."""
    boss = connect(DATABASE)
    fresh_table(boss)
    before = query(boss, "SELECT * FROM t ORDER BY k")
    for level in LEVELS:
        connection = connect(DATABASE)
        query(connection, f"SET default_transaction_isolation = '{level.lower()}'")
        query(connection, "SELECT probe_at_commit('SELECT 1')")
        query(connection, "BEGIN; SELECT count(*) FROM t; COMMIT")  # puts our callback in front of the other
        for sql in ("INSERT INTO t VALUES (100, NULL)", "SELECT count(*) FROM t"):
            query(connection, f"BEGIN; SELECT probe_at_commit('{sql}')")
            code, message = error(connection, "PREPARE TRANSACTION 'behind'")
            equal(f"{level}: a callback behind ours may not, in PREPARE: {sql}", (code, str(message)[:46]), ("0A000", "mixedcc tables cannot be used while the transa"))
        query(connection, "UPDATE t SET l = l WHERE k = 1")  # and after that nothing is refused
        connection.close()
    equal("PREPARE: nothing has changed", query(boss, "SELECT * FROM t ORDER BY k"), before)
    equal("PREPARE: nothing is prepared", query(boss, "SELECT gid FROM pg_prepared_xacts WHERE gid = 'behind'"), [])
    boss.close()


def test_all():
    connection = make_database(DATABASE)
    make_probes(connection, build("tests/process/native/probe", "native_probe"))
    connection.close()
    # Each in its turn, and an exception in one is only its own.
    for test in (test_calls, test_errors, test_definitions, test_refused_open, test_foreign_keys, test_subtransactions, test_conflicts, test_interrupts, test_kept_plans, test_dirty, test_commit_callbacks, test_prepare_callbacks, test_histories, test_examples, test_rust):
        try:
            test()
        except Exception:
            fail(test.__name__, traceback.format_exc())
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_all)
