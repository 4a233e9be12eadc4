"""Permanent tables of several kinds, changes of them that follow from a seed, and digests of their
rows. Clusters that should be equal have equal digests, and indexes that agree with the rows."""

import random

from lib.common import query

TABLES = ("keyed", "plain", "long", "quiet")
INDEXES = ("keyed_pkey", "keyed_v", "plain_id", "long_pkey", "quiet_pkey", "quiet_v")
# Above it a row takes several pages.
LONG = 9_000


def make(connection):
    query(connection, "SET synchronous_commit = on")
    query(connection, """
        CREATE TABLE keyed (id int PRIMARY KEY, v int, t text) USING mixedcc WITH (mixedcc.partitions = 3);
        CREATE INDEX keyed_v ON keyed (v);
        CREATE TABLE plain (id int, v int, t text) USING mixedcc;
        CREATE INDEX plain_id ON plain (id);
        CREATE TABLE long (id int PRIMARY KEY, v int, t text) USING mixedcc;
        ALTER TABLE long ALTER t SET STORAGE EXTERNAL;
        CREATE TABLE quiet (id int PRIMARY KEY, v int, t text) USING mixedcc;
        CREATE INDEX quiet_v ON quiet (v);
        CREATE TABLE beside (id int, v int) USING heap""")
    for table in ("keyed", "plain", "quiet"):
        query(connection, f"INSERT INTO {table} SELECT i, i % 100, repeat('x', i % 90) FROM generate_series(1, 3000) i")
    query(connection, f"INSERT INTO long SELECT i, i, repeat(chr(64 + i), {LONG} + i * 500) FROM generate_series(1, 12) i")


def change(connection, seed, tables=TABLES, turns=40):
    """Changes rows, with and without transaction ids, and checkpoints now and then."""
    dice = random.Random(seed)
    query(connection, "SET synchronous_commit = on")
    for turn in range(turns):
        table = dice.choice([t for t in tables if t != "long"])
        where = f"id % 37 = {dice.randrange(37)}"
        kind = dice.randrange(6)
        if kind < 2:
            query(connection, f"UPDATE {table} SET v = v + 1, t = t || '{dice.randrange(10)}' WHERE {where}")
        elif kind == 2:
            query(connection, f"DELETE FROM {table} WHERE {where} AND v % 3 = 0")
        elif kind == 3:
            first = 10_000 + dice.randrange(1_000_000_000)
            query(connection, f"INSERT INTO {table} SELECT {first} + i, i, 'new' FROM generate_series(1, 50) i")
        elif kind == 4 and "long" in tables:
            query(connection, f"UPDATE long SET v = v + 1, t = t || 'more' WHERE id = {dice.randrange(1, 13)}")
        else:
            query(connection, "BEGIN")
            query(connection, f"INSERT INTO beside VALUES ({turn}, {dice.randrange(1000)})")
            query(connection, f"UPDATE {table} SET v = -v WHERE {where}")
            query(connection, dice.choice(["COMMIT", "COMMIT", "ROLLBACK"]))
        if dice.random() < 0.08:
            query(connection, "CHECKPOINT")
        if dice.random() < 0.05:
            query(connection, f"VACUUM {table}")


def digests(connection, tables=(*TABLES, "beside")):
    return {table: query(connection, f"SELECT count(*), md5(string_agg(t::text, ',' ORDER BY t::text)) FROM {table} t")[0]
            for table in tables}


def problems(connection, tables=TABLES):
    """What of the indexes does not agree with the rows."""
    found = []
    for index in [name for name in INDEXES if name.split("_")[0] in tables]:
        try:
            query(connection, f"SELECT bt_index_check('{index}', true)")
        except Exception as error:
            found.append(f"{index}: {error}")
    for table in tables:
        column = "v" if table in ("keyed", "quiet") else "id"
        query(connection, "SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off")
        by_rows = query(connection, f"SELECT count(*), sum(hashtext(t::text)::bigint) FROM {table} t WHERE {column} > -2000000000")
        query(connection, "RESET ALL; SET enable_seqscan = off; SET enable_bitmapscan = off")
        by_index = query(connection, f"SELECT count(*), sum(hashtext(t::text)::bigint) FROM {table} t WHERE {column} > -2000000000")
        query(connection, "RESET ALL")
        if by_rows != by_index:
            found.append(f"{table}: by index {by_index}, by rows {by_rows}")
    return found
