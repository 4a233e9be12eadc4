#!/usr/bin/python3
"""What an ERROR leaves behind: no memory, in whatever it jumps over. What functions of users may do
while the engine calls them. How bounds of scans compare values of such functions."""

import psycopg2

from lib.common import METHOD, OURS, check, connect, drop_database, equal, main, make_database, own_memory, peak_memory, query, value

DATABASE = "process_errors"
MB = 1 << 20

COMPARISONS = "".join(f"""
CREATE FUNCTION {{0}}_{name}({{0}}, {{0}}) RETURNS boolean LANGUAGE plpgsql IMMUTABLE STRICT LEAKPROOF AS 'BEGIN RETURN {{1}} {operator} {{2}}; END';
CREATE OPERATOR ~{operator}~ (LEFTARG = {{0}}, RIGHTARG = {{0}}, FUNCTION = {{0}}_{name}{more});""" for name, operator, more in (
    ("lt", "<", ""), ("le", "<=", ""), ("eq", "=", ", HASHES"), ("ge", ">=", ""), ("gt", ">", "")))
ORDER = "OPERATOR 1 ~<~, OPERATOR 2 ~<=~, OPERATOR 3 ~=~, OPERATOR 4 ~>=~, OPERATOR 5 ~>~"

# A type whose hash function fails for one value.
FRAIL = f"""
CREATE TYPE frail AS ENUM ('a', 'b', 'c', 'bad');
{COMPARISONS.format("frail", "$1::text", "$2::text")}
CREATE FUNCTION frail_cmp(frail, frail) RETURNS int LANGUAGE plpgsql IMMUTABLE STRICT AS 'BEGIN RETURN bttextcmp($1::text, $2::text); END';
CREATE FUNCTION frail_hash(frail) RETURNS int LANGUAGE plpgsql IMMUTABLE STRICT AS
    $$BEGIN RETURN hashtext($1::text); END$$;
CREATE FUNCTION frail_hash(frail, bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE STRICT AS
    $$BEGIN IF $1 OPERATOR(public.~=~) 'bad' THEN RAISE division_by_zero; END IF; RETURN hashtextextended($1::text, $2); END$$;
CREATE OPERATOR CLASS frail_ops DEFAULT FOR TYPE frail USING btree AS {ORDER}, FUNCTION 1 frail_cmp(frail, frail);
CREATE OPERATOR CLASS frail_hash_ops DEFAULT FOR TYPE frail USING hash AS
    OPERATOR 1 ~=~, FUNCTION 1 frail_hash(frail), FUNCTION 2 frail_hash(frail, bigint);
"""

# An order whose function does what a session tells it to, in the middle of the engine's calls.
MEDDLER = f"""
CREATE TYPE meddler AS (v int);
CREATE FUNCTION meddle() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    what text := current_setting('test.meddles', true); n int := coalesce(current_setting('test.after', true), '0')::int;
    c refcursor := 'c'; r record;
BEGIN
    IF what IS NULL OR what = '' THEN RETURN; END IF;
    IF n > 0 THEN PERFORM set_config('test.after', (n - 1)::text, false); RETURN; END IF;
    PERFORM set_config('test.meddles', '', false);
    CASE what
        WHEN 'fetch' THEN FETCH c INTO r;
        WHEN 'close' THEN CLOSE c;
        WHEN 'select' THEN PERFORM count(*) FROM other;
        WHEN 'by key' THEN PERFORM 1 FROM other WHERE id = 3;
        WHEN 'write' THEN UPDATE other SET id = -id WHERE id = 400;
        WHEN 'subtransaction' THEN
            BEGIN PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN NULL; END;
            BEGIN PERFORM count(*) FROM pg_class; EXCEPTION WHEN division_by_zero THEN NULL; END;
        WHEN 'caught' THEN
            BEGIN PERFORM count(*) FROM other; EXCEPTION WHEN feature_not_supported THEN NULL; END;
        WHEN 'caught fetch' THEN
            BEGIN FETCH c INTO r; EXCEPTION WHEN feature_not_supported THEN NULL; END;
        WHEN 'heap' THEN PERFORM count(*) FROM pg_class WHERE relname = 'other';
    END CASE;
END$$;
CREATE FUNCTION meddler_cmp(meddler, meddler) RETURNS int LANGUAGE plpgsql AS
    $$BEGIN PERFORM public.meddle(); RETURN sign($1.v - $2.v); END$$;
{COMPARISONS.format("meddler", "$1.v", "$2.v")}
CREATE OPERATOR CLASS meddler_ops DEFAULT FOR TYPE meddler USING btree AS {ORDER}, FUNCTION 1 meddler_cmp(meddler, meddler);
"""
REFUSED = "a function that an index uses must not access mixedcc tables"


def error(connection, sql):
    try:
        query(connection, sql)
        return None
    except psycopg2.Error as e:
        return e.pgcode


def grows(connection, sql, times):
    """By how many bytes the session grows in so many statements that fail, and their codes."""
    codes = {error(connection, sql) for _ in range(5)}
    before = own_memory(connection)
    codes |= {error(connection, sql) for _ in range(times)}
    return own_memory(connection) - before, codes


def test_native_arrays():
    connection = make_database(DATABASE)
    query(connection, f"CREATE TABLE t (id int PRIMARY KEY, n int) USING {METHOD}")
    query(connection, "INSERT INTO t VALUES (1, 2147483647)")
    keys = "(SELECT array_agg(1) FROM generate_series(1, 100000))"
    more, codes = grows(connection, f"SELECT mixedcc.add_each(NULL::t, 'n', {keys}, {keys})", 20)
    equal("an operator fails in add_each", codes, {"22003"})
    check("add_each leaves no memory behind", more < 20 * MB, f"{more} bytes")
    connection.close()


def test_native_by_statements():
    """Each key of a call has a statement of its own, whose texts and values do not stay."""
    connection = make_database(DATABASE)
    query(connection, f"""CREATE TABLE "T" (id numeric PRIMARY KEY, n int CHECK (n > -1)) USING {METHOD};
        ALTER TABLE "T" ENABLE ROW LEVEL SECURITY; ALTER TABLE "T" FORCE ROW LEVEL SECURITY;
        CREATE POLICY p ON "T" USING (n > -1); CREATE ROLE errors_reader; GRANT ALL ON "T" TO errors_reader""")
    query(connection, 'INSERT INTO "T" SELECT i, 0 FROM generate_series(1, 100) i')
    keys = "(SELECT array_agg(1 + i % 100) FROM generate_series(1, 50000) i)"
    calls = {"get_each": f'SELECT count(*) FROM mixedcc.get_each(NULL::"T", {keys})',
             "add_each": f"""SELECT mixedcc.add_each(NULL::"T", 'n', {keys}, {keys})"""}
    for name, call in calls.items():
        connection.close()
        connection = connect(DATABASE)
        query(connection, f"SET ROLE errors_reader; {call.replace('50000', '200')}; RESET ROLE")
        before = peak_memory(connection)
        query(connection, "SET ROLE errors_reader")
        equal(f"{name} by statements", value(connection, call), 50000)
        query(connection, "RESET ROLE")
        more = peak_memory(connection) - before
        check(f"{name} keeps nothing of each key", more < 20 * MB, f"{more} bytes")
    query(connection, "DROP OWNED BY errors_reader; DROP ROLE errors_reader")
    connection.close()


def test_index_scans():
    """Scans of the key's index that an ERROR leaves without an end, in one transaction."""
    connection = make_database(DATABASE)
    query(connection, f"CREATE TABLE t (id int PRIMARY KEY) USING {METHOD}; INSERT INTO t SELECT generate_series(1, 100)")
    query(connection, """CREATE FUNCTION fail_often(times int) RETURNS void LANGUAGE plpgsql AS $$BEGIN
        FOR i IN 1..times LOOP
            BEGIN PERFORM 1 / (id - 2) FROM t ORDER BY id; EXCEPTION WHEN division_by_zero THEN NULL; END;
        END LOOP;
    END$$""")
    query(connection, "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off")
    if OURS:
        query(connection, "SET mixedcc.enable_bypass = off; SET mixedcc.enable_primary_scan = off")
    query(connection, "BEGIN; SELECT fail_often(100)")
    before = own_memory(connection)
    query(connection, "SELECT fail_often(20000)")
    more = own_memory(connection) - before
    check("scans that fail leave no memory behind, in the transaction either", more < 10 * MB, f"{more} bytes")
    query(connection, "COMMIT; BEGIN; DECLARE c CURSOR FOR SELECT id FROM t ORDER BY id; SAVEPOINT s")
    rows = query(connection, "FETCH 2 FROM c")
    query(connection, "SAVEPOINT u; DECLARE d CURSOR FOR SELECT id FROM t ORDER BY id; FETCH 1 FROM d; ROLLBACK TO s; SELECT fail_often(3)")
    equal("a cursor goes on that was read in a savepoint", rows + query(connection, "FETCH 2 FROM c"), [(1,), (2,), (3,), (4,)])
    query(connection, "COMMIT")
    connection.close()


def test_hash_of_a_key():
    connection = make_database(DATABASE)
    query(connection, FRAIL)
    query(connection, f"CREATE TABLE t (f frail, id int, PRIMARY KEY (f, id)) USING {METHOD}"
                      " WITH (mixedcc.partitions = 4, mixedcc.partition_by = 'f')")
    query(connection, "INSERT INTO t SELECT 'a', i FROM generate_series(1, 50) i; ANALYZE t")
    query(connection, "SET default_transaction_isolation = serializable; SET enable_indexscan = off; SET enable_bitmapscan = off;"
                      " SET mixedcc.enable_bypass = off; SET mixedcc.enable_primary_scan = off")
    many = " AND ".join(f"id > {-i}" for i in range(200))
    more, codes = grows(connection, f"SELECT * FROM t WHERE f ~=~ 'bad' AND {many}", 500)
    equal("the function of a partition key fails", codes, {"22012"})
    check("a scan leaves no memory behind", more < 2 * MB, f"{more} bytes")
    equal("other rows are there", value(connection, "SELECT count(*) FROM t WHERE f ~=~ 'a'"), 50)
    equal("an insert fails", error(connection, "INSERT INTO t VALUES ('bad', 1)"), "22012")
    connection.close()


def test_repartitioning():
    connection = make_database(DATABASE)
    query(connection, FRAIL)
    query(connection, f"CREATE TABLE t (id int, f frail, PRIMARY KEY (id, f)) USING {METHOD}"
                      " WITH (mixedcc.partitions = 500, mixedcc.partition_by = 'id')")
    query(connection, "INSERT INTO t SELECT i, 'a' FROM generate_series(1, 50) i; INSERT INTO t VALUES (1000, 'bad')")
    fails = "ALTER TABLE t SET (mixedcc.partition_by = 'f')"
    used = "SELECT live_bytes FROM mixedcc.memory"
    codes = {error(connection, fails) for _ in range(3)}
    before = value(connection, used)
    codes |= {error(connection, fails) for _ in range(20)}
    equal("a table cannot be partitioned by a function that fails", codes, {"22012"})
    check("that leaves no shared memory behind", value(connection, used) - before < MB, value(connection, used) - before)
    query(connection, "BEGIN; ALTER TABLE t SET (mixedcc.partitions = 400)")
    equal("nor can one that was partitioned in the same transaction", error(connection, fails), "22012")
    query(connection, "ROLLBACK; DELETE FROM t")
    wrong = query(connection, "SELECT partition, rows FROM mixedcc.partitions WHERE \"table\" = 't'::regclass AND rows <> 0")
    equal("each row is in its partition still", wrong, [])
    connection.close()


def test_bounds_of_a_later_column():
    """Conditions on a column behind one whose values only its type's function compares."""
    connection = make_database(DATABASE)
    conditions = ("id > {0} AND id > {1}", "id >= {0} AND id > {1} AND id < {2} AND id <= {3}", "id IN ({0}, {2}, {1}, {2})",
                  "(id, v) > ({0}, 3) AND id > {1}", "id = ANY (ARRAY[{3}, {0}, {2}]) AND id IN ({2}, {1}, {3})")
    firsts = {"numeric": "{0} % 5", "int[]": "ARRAY[{0} % 5]", "text COLLATE \"und-x-icu\"": "'x' || {0} % 5"}
    seconds = {"int": "{0}", "bigint": "{0} * 1099511627776", "text COLLATE \"C\"": "repeat('z', {0})", "float8": "{0} / 7.0"}
    for first, first_value in firsts.items():
        for second, second_value in seconds.items():
            query(connection, f"CREATE TABLE t (f {first}, id {second}, v int, PRIMARY KEY (f, id)) USING {METHOD}")
            query(connection, f"INSERT INTO t SELECT {first_value.format('i')}, {second_value.format('i')}, i"
                              " FROM generate_series(1, 200) i; CREATE TABLE h AS TABLE t; ANALYZE t")
            query(connection, "SET enable_seqscan = off; SET default_transaction_isolation = serializable")
            found = []
            for condition in conditions:
                where = f"f = {first_value.format(7)} AND " + condition.format(*(second_value.format(i) for i in (7, 12, 52, 92)))
                try:
                    rows = [value(connection, f"SELECT array_agg(v ORDER BY v) FROM {table} WHERE {where}") for table in ("t", "h")]
                    found += [] if rows[0] == rows[1] else [(condition, rows)]
                except psycopg2.Error as e:
                    found.append((condition, str(e)))
            equal(f"bounds of {second} behind {first}", found, [])
            query(connection, "DROP TABLE t, h; RESET ALL")
    connection.close()


def test_parameter_without_value():
    """plpgsql's variables are looked at when a SERIALIZABLE scan starts."""
    connection = make_database(DATABASE)
    query(connection, f"CREATE TABLE t (id int PRIMARY KEY, n int) USING {METHOD}")
    many = " AND ".join(f"id > {-i}" for i in range(60))
    block = f"""DO $$
        DECLARE r record; k int;
        BEGIN
            SET LOCAL enable_indexscan = off; SET LOCAL enable_bitmapscan = off;
            SET LOCAL plan_cache_mode = force_generic_plan;
            FOR i IN 1..2 LOOP
                IF i = 1 THEN SELECT 1 AS id INTO r; ELSE r := NULL; END IF;
                SELECT count(*) INTO k FROM t WHERE {many} AND id = r.id;
            END LOOP;
        END$$"""
    query(connection, "SET default_transaction_isolation = serializable")
    if OURS:
        query(connection, "SET mixedcc.enable_bypass = off; SET mixedcc.enable_primary_scan = off")
    equal("a variable without a value, and no row", error(connection, block), None)
    query(connection, "INSERT INTO t VALUES (1, 1)")
    more, codes = grows(connection, block, 1000)
    equal("a variable without a value, and a row", codes, {"55000"})
    check("a filter leaves no memory behind", more < 2 * MB, f"{more} bytes")
    connection.close()


def meddle(connection, what, calls, statement):
    """Runs a statement with a cursor open, and has the order's function do something in one of its
    calls: the error. A transaction that met none commits."""
    query(connection, "BEGIN ISOLATION LEVEL SERIALIZABLE")
    query(connection, "DECLARE c CURSOR FOR SELECT * FROM other ORDER BY id; FETCH 2 FROM c")
    query(connection, f"SET test.after = {calls}; SET test.meddles = '{what}'")
    try:
        query(connection, statement)
        message = None
    except psycopg2.Error as e:
        message = e.diag.message_primary
    query(connection, "ROLLBACK; SET test.meddles = ''" if message else "SET test.meddles = ''; COMMIT")
    return message


def test_arguments_left_to_defaults():
    """Calls of an annotated function whose key is never complete leave nothing behind."""
    if not OURS:
        return
    connection = make_database(DATABASE)
    query(connection, f"CREATE TABLE t (a text, b int, PRIMARY KEY (a, b)) USING {METHOD} WITH (mixedcc.protocol = 'partcc')")
    query(connection, "CREATE FUNCTION f(a text, b int DEFAULT 1) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN b; END'")
    query(connection, "SELECT mixedcc.annotate('f(text,int)', 't', 'a', 'b'); SELECT f('a', 1)")
    calls = "SELECT count(f(repeat('x', 1000) || i)) FROM generate_series(1, %s) i"
    query(connection, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT f('a', 1); " + calls % 200)
    before = own_memory(connection)
    equal("calls whose keys are incomplete", value(connection, calls % 20000), 20000)
    check("they leave no memory behind", own_memory(connection) - before < 5 * MB)
    query(connection, "COMMIT; DROP FUNCTION f")
    connection.close()
    drop_database(DATABASE)


def test_functions_in_the_engine():
    connection = make_database(DATABASE)
    query(connection, MEDDLER)
    query(connection, f"CREATE TABLE other (id int PRIMARY KEY) USING {METHOD}; INSERT INTO other SELECT generate_series(1, 500)")
    query(connection, f"CREATE TABLE t (m meddler PRIMARY KEY, n int) USING {METHOD}")
    query(connection, "INSERT INTO t SELECT ROW(i)::meddler, i FROM generate_series(1, 500) i; ANALYZE t, other")
    query(connection, "SET enable_seqscan = off; SET enable_bitmapscan = off")
    if OURS:
        query(connection, "SET mixedcc.range_rows = 10")
    scan = "SELECT count(*) FROM t WHERE m ~>=~ ROW(490)::meddler"
    query(connection, f"BEGIN ISOLATION LEVEL SERIALIZABLE; {scan}; COMMIT")
    for what in ("fetch", "close", "select", "by key", "write", "subtransaction", "caught", "caught fetch", "heap"):
        messages = {meddle(connection, what, calls, scan) for calls in range(30)}
        # A subtransaction's abort releases the lock of the page that nbtree compares on, on heap
        # too.
        messages.discard("lock BufferContent is not held")
        refused = OURS and what in ("fetch", "close", "select", "by key", "write")
        equal(f"in the middle of a call of the engine: {what}", messages, {None, REFUSED} if refused else {None})
    query(connection, f"BEGIN ISOLATION LEVEL SERIALIZABLE; {scan}; UPDATE t SET n = 0 WHERE m ~=~ ROW(7)::meddler; COMMIT")
    equal("the session goes on", query(connection, "SELECT count(*), count(*) FILTER (WHERE n = 0) FROM t"), [(500, 1)])
    connection.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_native_arrays, test_native_by_statements, test_index_scans, test_hash_of_a_key, test_repartitioning, test_bounds_of_a_later_column, test_parameter_without_value, test_arguments_left_to_defaults, test_functions_in_the_engine)
