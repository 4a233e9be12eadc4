#!/usr/bin/python3
"""Random queries over tables of some thousands of rows, in three ways (executor bypass, custom
scan, PostgreSQL's own nodes), and on heap tables with the same rows: the same rows, tags and
SQLSTATEs, no internal error, and the server stays up.

plans.py [SEED]: one round. MIXEDCC_SEED is the first of the rounds; MIXEDCC_SECONDS how long they
may take."""

import os
import random
import sys
import time

from lib import protocols
from lib.tables import LEVELS, WAYS
from lib.common import accepts, check, connect, drop_database, fail, main, make_database, ok, query, seconds, value, wait_until
from lib.queries import INT, TEXT, Queries, native
from lib.wire import Client

DATABASE = "mixedcc_fuzz"
ROWS = 2500
HEAP = "heap"
STATEMENTS = 120
# Statements of a round that are run whatever the time.
LEAST = 40
# How long a statement may take on heap, and elsewhere: those that take longer are not compared.
LONGEST = {HEAP: "400ms", "ours": "20s"}


def table(r, name, columns):
    """Statements that make a table of so many columns and fill it; its columns and its key."""
    kinds = [(f"c{i}", INT if i in (0, 1) or r.random() < 0.55 else TEXT) for i in range(columns)]
    key = [kinds[0][0]] if columns < 3 or r.random() < 0.6 else [kinds[0][0], r.choice([c for c, kind in kinds[1:] if kind == INT])]
    key = key if r.random() < 0.7 else key[::-1]
    gone = r.random() < 0.3
    late = r.random() < 0.3
    parts = [f"{c} {kind}" for c, kind in kinds]
    parts.insert(r.randint(0, len(parts)), "gone text") if gone else None
    fills = [f"n" if c == kinds[0][0] else (f"n % {r.choice((1, 10, 700))}" if kind == INT else f"'{c}' || n % {r.choice((3, 5000))}") if c in key or r.random() < 0.7
             else f"nullif(n % 4, 0){'' if kind == INT else '::text'}" for c, kind in kinds]
    sql = [f"CREATE TABLE {name} ({', '.join(parts)}, PRIMARY KEY ({', '.join(key)})) USING %(method)s"]
    sql.append(f"INSERT INTO {name} ({', '.join(c for c, _ in kinds)}) SELECT {', '.join(fills)} FROM generate_series(1, {ROWS}) AS n")
    if gone:
        sql.append(f"ALTER TABLE {name} DROP COLUMN gone")
    if late:
        sql.append(f"ALTER TABLE {name} ADD COLUMN late int DEFAULT 4")
        kinds.append(("late", INT))
    if columns > 2 and r.random() < 0.4:
        sql.append(f"CREATE INDEX ON {name} ({r.choice([c for c, kind in kinds if kind == INT])})")
    if r.random() < 0.4:
        # Of the key: by_key's queries may use it, and its predicate implies a condition of theirs.
        sql.append(f"CREATE INDEX ON {name} ({', '.join(key)}) WHERE {[c for c, kind in kinds if kind == INT][-1]} >= 3")
    sql.append(f"ANALYZE {name}")
    return sql, kinds, key


def make(boss, r):
    tables = []
    query(boss, "DROP SCHEMA IF EXISTS ours, heap CASCADE; CREATE SCHEMA ours; CREATE SCHEMA heap")
    for i in range(3):
        # Lists of five columns and more lie elsewhere in memory than shorter ones.
        sql, columns, key = table(r, f"t{i}", r.choice((1, 2, 3, 4, 5, 6, 7, 12)))
        query(boss, "SET search_path = ours")
        options = f"mixedcc WITH (mixedcc.partitions = {r.choice((1, 1, 4))}, mixedcc.protocol = '{r.choice(protocols.ALL)}')"
        for s in sql:
            query(boss, s % {"method": options} if "%(method)s" in s else s)
        query(boss, "SET search_path = heap")
        for s in sql:
            query(boss, s % {"method": "heap"} if "%(method)s" in s else s)
        tables.append((f"t{i}", columns, key))
    return tables


def clean(said):
    """Rows in any order; of errors the SQLSTATE."""
    rows = sorted((m for m in said if m[0] == "row"), key=str)
    return rows, [m for m in said if m[0] == "tag"], [m[1] for m in said if m[0] == "error"]


def run_as(r, sql, number):
    """How a statement is run: a function of a client and the statement's text."""
    way = r.choice(("simple", "simple", "extended", "generic", "plpgsql", "cursor"))
    if way == "extended":
        limits = r.choice(((0,), (2, 0)))
        return way, lambda c, sql: c.prepare(f"s{number}", sql) + c.execute(f"s{number}", (), limits, "portal")
    if way == "generic":
        def generic(c, sql):
            runs = ["SET plan_cache_mode = force_generic_plan", f"PREPARE g{number} AS {sql}", f"EXECUTE g{number}", f"EXECUTE g{number}", "RESET plan_cache_mode"]
            return [m for s in runs for m in c.simple(s)]
        return way, generic
    if way == "plpgsql" and sql.startswith(("SELECT", "WITH")):
        return way, lambda c, sql: c.simple(f"DO $do$ DECLARE x record; BEGIN FOR x IN {sql} LOOP RAISE NOTICE '%', x; END LOOP; END $do$")
    if way == "cursor" and sql.startswith("SELECT") and " FOR " not in sql:
        def cursor(c, sql):
            runs = [f"DECLARE k{number} SCROLL CURSOR FOR {sql}", f"FETCH 2 FROM k{number}", f"FETCH ALL FROM k{number}", f"FETCH BACKWARD 3 FROM k{number}"]
            return [m for s in runs for m in c.simple(s)]
        return way, cursor
    return "simple", lambda c, sql: c.simple(sql)


def contents(tables):
    """What says all that is in the tables."""
    return "; ".join(f"SELECT count(*), sum(hashtext(x::text)::bigint) FROM {name} AS x" for name, _, _ in tables)


class Broken(Exception):
    """The server has closed a connection."""


def round_of(seed, end=0.0):
    """Whether all clients gave the same; how many statements gave rows, an error, and took too
    long."""
    r = random.Random(seed)
    boss = connect(DATABASE)
    tables = make(boss, r)
    boss.close()
    plans = r.choice(("", "", "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_sort=off",
                      "-c mixedcc.enable_primary_scan=off -c enable_seqscan=off -c enable_bitmapscan=off", "-c enable_hashjoin=off -c enable_mergejoin=off"))
    common = f"{plans} -c mixedcc.mixed_serializable=allow -c client_min_messages=notice"
    options = {HEAP: f"-c search_path=heap -c statement_timeout={LONGEST[HEAP]}"}
    options.update({name: f"-c search_path=ours -c statement_timeout={LONGEST['ours']} {way}" for name, way in WAYS.items()})
    clients = {name: Client(DATABASE, options=f"{text} {common}") for name, text in options.items()}
    queries = Queries(r, tables, ROWS)
    good, counts = True, [0, 0, 0]
    for number in range(STATEMENTS):
        if end and time.monotonic() > end and number >= LEAST:
            break
        level = r.choice(LEVELS)
        write = r.random() < 0.25
        sql = queries.write() if write else queries.select()
        way, action = run_as(r, sql, number)
        given = {}
        for name, client in clients.items():
            try:
                client.simple(f"BEGIN ISOLATION LEVEL {level}")
                said = action(client, native(sql, name != HEAP))
                if write and not any(m[0] == "error" for m in said):
                    said += client.simple(contents(tables))
                client.simple("ROLLBACK")
                client.simple("DEALLOCATE ALL")
            except (ConnectionError, OSError) as error:
                fail("random queries: the server is there", f"seed {seed}, {name}, {way}, {level}: {sql}\n{error}")
                raise Broken from None
            given[name] = clean(said) + (sorted(m[2] for m in said if m[0] == "notice"),)
            if "57014" in given[name][2]:
                break
        if any("57014" in g[2] for g in given.values()):
            counts[2] += 1
            continue
        internal = [f"{name}: {g[2]}" for name, g in given.items() if any(code.startswith("XX") for code in g[2])]
        if internal or any(g != given[HEAP] for g in given.values()):
            texts = "\n".join(f"{name:9}{str(g)[:600]}" for name, g in given.items())
            fail("random queries give the same with and without mixedcc", f"seed {seed}: {tables}\n{way}, {level}: {sql}\n{texts}")
            good = False
            break
        counts[1 if given[HEAP][2] else 0] += 1
    for client in clients.values():
        client.close()
    return good, counts


def same_as_heap():
    first = int(os.environ.get("MIXEDCC_SEED", "1000"))
    end, rounds, counts = time.monotonic() + seconds(70), 0, [0, 0, 0]
    boss = connect(DATABASE)
    started = value(boss, "SELECT pg_postmaster_start_time()::text")
    boss.close()
    try:
        while time.monotonic() < end or rounds < 3:  # enough on a slow machine too
            good, n = round_of(first + rounds, end)
            counts = [a + b for a, b in zip(counts, n)]
            rounds += 1
            if not good:
                return
    except Broken:
        return
    ok("random queries give the same with and without mixedcc")
    gave = f"{counts[0]} gave rows, {counts[1]} an error, {counts[2]} took too long"
    check("random queries are nearly all valid", counts[1] + counts[2] <= counts[0] / 5, gave)
    boss = connect(DATABASE)
    check("random queries: the server never restarted", value(boss, "SELECT pg_postmaster_start_time()::text") == started)
    taken = dict(query(boss, "SELECT coalesce(statement, reason), statements FROM mixedcc.bypass"))
    boss.close()
    check("random queries take the bypass, too", taken["SELECT"] >= 10, taken)
    print(f"  {rounds} rounds: {gave}; {taken}")


if __name__ == "__main__":
    make_database(DATABASE).close()
    try:
        if len(sys.argv) > 1:
            check("one round", round_of(int(sys.argv[1]))[0])
        else:
            main(same_as_heap)
    finally:
        wait_until(accepts, 60)  # after a crash
        drop_database(DATABASE)
