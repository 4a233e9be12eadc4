#!/usr/bin/python3
"""What sqlsmith generates for a database with mixedcc tables, as an ordinary role: the statement,
and aggregates over the whole rows of a query. The server does not crash, no statement hangs, and
none ends with an internal error that it does not have with heap tables. (That most of its
statements fail is the rule: it calls functions with any arguments.)

The heap tables are in a database of their own, and so are copies of what mixedcc's views show.

MIXEDCC_SEED is the first seed of sqlsmith; MIXEDCC_SECONDS how long the statements may take."""

import io
import os
import random
import re
import subprocess
import threading
import time

import psycopg2

from lib.tables import LEVELS, WAYS
from lib.common import accepts, check, connect, drop_database, equal, fail, main, make_database, query, seconds, value, wait_until

DATABASE, TWIN, ROLE = "mixedcc_smith", "mixedcc_smith_heap", "smith"
# Statements that sqlsmith makes at a time, with one seed.
BATCH = 400
# Statements that are run at least, without those that fail.
LEAST = 300
# A statement may take a second; one that does not look whether it should end takes longer.
HANGS = 20
# Tables with few and many columns: the planner's lists of more than five lie elsewhere in memory.
TABLES = {
    "one": ("id int PRIMARY KEY", "n"),
    "few": ("id int PRIMARY KEY, a int, b text", "n, n % 7, 'b' || n"),
    "many": ("id int PRIMARY KEY, a int, b text, c bigint, d date, e numeric, f boolean", "n, n % 9, 'b' || n, n, '2020-01-01', n, true"),
    "all_kinds": ("id bigint PRIMARY KEY, a int, b text, c timestamptz, d jsonb, e int[], f uuid, g interval, h real, i name",
                  "n, n % 9, 'b', '2020-01-01', '{}', '{1}', md5(n::text)::uuid, '1 s', n, 'i'"),
    "pair": ("x int, y int, z text, PRIMARY KEY (x, y)", "n / 10, n % 10, 'z' || n"),
    "child": ("id bigint PRIMARY KEY, parent int REFERENCES few, v text", "n, n, 'v'"),
}
VIEWS = """CREATE VIEW whole AS SELECT row_to_json(x)::jsonb AS r, x IS NULL AS n, x.id FROM (SELECT * FROM many ORDER BY id LIMIT 20) x;
CREATE VIEW system AS SELECT tableoid, ctid, xmin, id FROM few;
CREATE VIEW rows AS SELECT m AS r, m.id FROM many m"""


def make(name, method):
    make_database(name).close()
    boss = connect(name)
    for table, (columns, fill) in TABLES.items():
        query(boss, f"CREATE TABLE {table} ({columns}) USING {method}")
        query(boss, f"INSERT INTO {table} SELECT {fill} FROM generate_series(1, 3000) AS n")
    query(boss, f"CREATE INDEX ON many (a); {VIEWS}; ANALYZE; GRANT ALL ON ALL TABLES IN SCHEMA public TO {ROLE}")
    boss.close()


def views(connection):
    """The names of mixedcc's views and tables that the ordinary role may read."""
    found = query(connection, f"""SELECT relname FROM pg_class WHERE relnamespace = 'mixedcc'::regnamespace AND relkind IN ('r', 'v')
                                  AND has_table_privilege('{ROLE}', oid, 'SELECT')""")
    return [name for name, in found]


def copy_views():
    """Tables in the schema `copies` of the twin, with the rows of mixedcc's views."""
    ours, twin = connect(DATABASE), connect(TWIN)
    query(twin, "CREATE SCHEMA copies")
    for view in views(ours):
        query(twin, f"CREATE TABLE copies.{view} USING heap AS SELECT * FROM mixedcc.{view} WITH NO DATA")
        rows = io.StringIO()
        ours.cursor().copy_expert(f"COPY (SELECT * FROM mixedcc.{view}) TO STDOUT", rows)
        rows.seek(0)
        twin.cursor().copy_expert(f"COPY copies.{view} FROM STDIN", rows)
    query(twin, f"GRANT USAGE ON SCHEMA copies TO {ROLE}; GRANT SELECT ON ALL TABLES IN SCHEMA copies TO {ROLE}")
    ours.close()
    twin.close()


def statements(seed):
    """What sqlsmith makes with a seed."""
    target = f"host={os.environ['PGHOST']} port={os.environ.get('PGPORT', '5432')} dbname={DATABASE} user={os.environ['PGUSER']}"
    done = subprocess.run(["sqlsmith", f"--target={target}", f"--seed={seed}", f"--max-queries={BATCH}", "--exclude-catalog", "--dry-run"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, timeout=120)
    found = [s.strip() for s in re.split(r";\n(?=select|insert|update|delete|merge|with)", done.stdout)]
    if len(found) < BATCH / 2:
        raise RuntimeError(f"sqlsmith made {len(found)} statements: {done.stderr[-2000:]}")
    return [s.rstrip(";") for s in found]


def aggregates(sql):
    """Aggregates over the rows of a query, and, where its first column is nothing but one, over
    rows of many columns."""
    column = re.match(r"select\s+(\w+\.\w+) as c0\b", sql)
    wide = sql if column is None else "select " + "".join(f"{column[1]} as w{i}, " for i in range(6)) + sql.removeprefix("select")
    return [f"SELECT json_agg(x), count(x) FROM ({sql}) AS x", f"SELECT json_agg(x), count(x) FROM ({wide}) AS x",
            f"SELECT count(x), array_agg(x) FROM (SELECT * FROM ({sql}) AS y OFFSET 1) AS x"]


class Watch:
    """Ends the test if a statement does not end."""

    def __init__(self):
        self.sql, self.since = None, 0
        threading.Thread(target=self.look, daemon=True).start()

    def look(self):
        while True:
            time.sleep(0.5)
            sql, since = self.sql, self.since
            if sql is not None and time.monotonic() - since > HANGS:
                fail("sqlsmith: no statement hangs", sql)
                os._exit(1)

    def run(self, connection, sql):
        """The error, or None."""
        self.sql, self.since = sql, time.monotonic()
        try:
            query(connection, sql)
            return None
        except psycopg2.Error as error:
            return error
        finally:
            self.sql = None
            if not connection.closed:
                end(connection)


def end(connection):
    """Rolls back. A timeout that comes at the very end of a statement ends the next one."""
    try:
        connection.rollback()
    except psycopg2.errors.QueryCanceled:
        connection.rollback()


def session(database, way=""):
    connection = connect(database, options=f"-c role={ROLE} -c statement_timeout=1s -c mixedcc.mixed_serializable=allow -c client_min_messages=error {way}")
    connection.autocommit = False
    return connection


def is_ours(error, watch, sql):
    """Is an internal error one that heap tables do not have?"""
    if (error.diag.source_file or "").endswith(".rs"):
        return True
    twin = session(TWIN, "-c statement_timeout=10s")
    theirs = watch.run(twin, re.sub(r"\bmixedcc\.(\w+)(?= as )", r"copies.\1", sql))
    twin.close()
    return theirs is None or theirs.pgcode != error.pgcode


def nothing_breaks():
    r = random.Random(1)
    boss = connect(DATABASE)
    started = value(boss, "SELECT pg_postmaster_start_time()::text")
    seed, done, codes, internal, watch = int(os.environ.get("MIXEDCC_SEED", "1")), 0, {}, [], Watch()
    end = time.monotonic() + seconds(70)
    sessions = [session(DATABASE, way) for way in WAYS.values()]
    while time.monotonic() < end or done < LEAST:
        left = statements(seed)[::-1]
        while left and (time.monotonic() < end or done < LEAST):
            sql = left.pop()
            c = r.choice((sessions[0], sessions[0], *sessions))
            c.set_session(isolation_level=r.choice(LEVELS))
            error = watch.run(c, sql)
            if c.closed:
                fail("sqlsmith: the server does not crash", f"seed {seed}: {sql}\n{error}")
                return
            if error is None:
                done += 1
                left += aggregates(sql) if sql.startswith("select") else []
                continue
            codes[error.pgcode] = codes.get(error.pgcode, 0) + 1
            if error.pgcode.startswith("XX") and is_ours(error, watch, sql):
                internal.append(f"seed {seed}: {sql}\n{error.pgcode} {error} {error.diag.source_file}")
        seed += 1
    check("sqlsmith: no internal errors of mixedcc", not internal, f"{len(internal)}:\n" + "\n".join(internal[:3]))
    equal("sqlsmith: the server does not crash", value(boss, "SELECT pg_postmaster_start_time()::text"), started)
    check("sqlsmith: no row was lost", all(value(boss, f"SELECT count(*) FROM {t}") == 3000 for t in TABLES))
    check("sqlsmith: statements are run", done >= LEAST, done)
    print(f"  {done} statements were run, to seed {seed - 1}; errors: {codes}")


if __name__ == "__main__":
    maker = connect("postgres")
    query(maker, f"DROP DATABASE IF EXISTS {DATABASE}; ")
    query(maker, f"DROP DATABASE IF EXISTS {TWIN}")
    query(maker, f"DROP ROLE IF EXISTS {ROLE}")
    query(maker, f"CREATE ROLE {ROLE}")
    maker.close()
    make(DATABASE, "mixedcc")
    make(TWIN, "heap")
    copy_views()
    try:
        main(nothing_breaks)
    finally:
        wait_until(accepts, 60)  # after a crash
        drop_database(DATABASE)
        drop_database(TWIN)
