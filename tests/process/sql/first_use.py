#!/usr/bin/python3
"""Tables whose rows were not loaded after a clean restart, or came with a template
database: index files are there and rows are not. Whatever uses such a table first,
and however that ends, table and indexes are empty, agree, and work."""

import concurrent.futures
import io
import pathlib

from lib.common import METHOD, OURS, connect, drop_database, equal, main, make_database, query, server, value

DATABASE = "process_first_use"
COPY = "process_first_use_copy"
COLUMNS = "id int PRIMARY KEY, g int, u int UNIQUE, a int[], p point, v text, r int4range"
ROWS = "SELECT i, (i * {0}) % 10, i * {0}, ARRAY[i % 7, (i * {0}) % 11], point(i % 20, (i * {0}) % 20), 'v' || (i * {0}) % 13, int4range(i, i + {0}) FROM generate_series(1, {1}) i"
INDEXES = {
    "hash": ("USING hash (g)", "g = 3"),
    "gin": ("USING gin (a)", "a @> ARRAY[2]"),
    "gist": ("USING gist (p)", "p <@ box '((0,0),(7,7))'"),
    "spgist": ("USING spgist (v text_ops)", "v = 'v5'"),
    "brin": ("USING brin (g)", "g BETWEEN 2 AND 4"),
    "partial": ("(g) WHERE id % 2 = 0", "g < 4 AND id % 2 = 0"),
    "expression": ("((id + g))", "id + g < 100"),
    "range": ("USING gist (r)", "r && int4range(10, 20)"),
}
ALWAYS = {"pkey": "id BETWEEN 5 AND 60", "u_key": "u < 300"}

# What uses the table first. A list of statements; those after "ROLLBACK" see it again.
FIRST = {
    "select": ["SELECT count(*) FROM {t}"],
    "by_key": ["SET enable_seqscan = off; SELECT v FROM {t} WHERE id = 77", "RESET enable_seqscan"],
    "read_only": ["BEGIN READ ONLY; SELECT * FROM {t} WHERE u = 21; COMMIT"],
    "serializable": ["BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM {t} WHERE g = 1; COMMIT"],
    "cursor": ["BEGIN; DECLARE c SCROLL CURSOR FOR SELECT * FROM {t} ORDER BY id; FETCH 5 FROM c; COMMIT"],
    "insert": ["INSERT INTO {t} (id, g, u) VALUES (1, 1, 7)", "DELETE FROM {t}"],
    "insert_rolled_back": ["BEGIN; INSERT INTO {t} (id, g, u) VALUES (1, 1, 7); ROLLBACK"],
    "on_conflict": ["INSERT INTO {t} (id, u) VALUES (3, 9) ON CONFLICT (u) DO UPDATE SET g = 0", "DELETE FROM {t}"],
    "update": ["UPDATE {t} SET g = 5 WHERE id = 5"],
    "delete": ["DELETE FROM {t} WHERE g = 5"],
    "for_update": ["BEGIN; SELECT * FROM {t} WHERE id < 5 FOR UPDATE; COMMIT"],
    "savepoint": ["BEGIN; SAVEPOINT s; SELECT count(*) FROM {t}; ROLLBACK TO s; COMMIT"],
    "lock_only": ["BEGIN; LOCK TABLE {t}; SELECT 1 FROM {t}; ROLLBACK"],
    "truncate": ["TRUNCATE {t}"],
    "truncate_rolled_back": ["BEGIN; TRUNCATE {t}; ROLLBACK"],
    "reindex": ["REINDEX TABLE {t}"],
    "reindex_rolled_back": ["BEGIN; REINDEX INDEX {t}_pkey; REINDEX INDEX {t}_gin; ROLLBACK"],
    "reindex_savepoint": ["BEGIN; SAVEPOINT s; REINDEX INDEX {t}_hash; ROLLBACK TO s; SELECT count(*) FROM {t}; COMMIT"],
    "drop_index_rolled_back": ["BEGIN; DROP INDEX {t}_partial, {t}_hash; SELECT count(*) FROM {t}; ROLLBACK"],
    "create_index": ["CREATE INDEX {t}_more ON {t} (v, g)"],
    "create_gin": ["CREATE INDEX {t}_more ON {t} USING gin (a)"],
    "create_index_rolled_back": ["BEGIN; CREATE INDEX {t}_more ON {t} USING gist (p); ROLLBACK"],
    "rewrite": ["ALTER TABLE {t} ADD COLUMN z float DEFAULT random()"],
    "rewrite_rolled_back": ["BEGIN; ALTER TABLE {t} ALTER COLUMN u TYPE bigint; ROLLBACK"],
    "new_key_rolled_back": ["BEGIN; ALTER TABLE {t} DROP CONSTRAINT {t}_pkey; ALTER TABLE {t} ADD PRIMARY KEY (u); ROLLBACK"],
    "drop_rolled_back": ["BEGIN; DROP TABLE {t}; ROLLBACK"],
    "vacuum": ["VACUUM {t}"],
    "analyze": ["ANALYZE {t}"],
    "function": ["DO $$BEGIN PERFORM 1 FROM {t} WHERE id = 3; RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END$$"],
}


def indexes(table):
    conditions = {f"{table}_{name}": condition for name, (_, condition) in INDEXES.items()}
    return conditions | {f"{table}_{name}": condition for name, condition in ALWAYS.items()}


def fill(connection, table, factor, rows):
    query(connection, f"INSERT INTO {table} (id, g, u, a, p, v, r) {ROWS.format(factor, rows)}")


def make(connection, table):
    with_clause = "WITH (mixedcc.partitions = 3, mixedcc.protocol = '2pl')" if OURS else ""
    query(connection, f"CREATE UNLOGGED TABLE {table} ({COLUMNS}) USING {METHOD} {with_clause}")
    fill(connection, table, 3, 2000)
    for name, (definition, _) in INDEXES.items():
        query(connection, f"CREATE INDEX {table}_{name} ON {table} {definition}")


def by_index(connection, table, index, condition):
    """The ids that a condition finds through an index; None if the index is not used."""
    sql = f"SELECT id FROM {table} WHERE {condition}"
    query(connection, "SET enable_seqscan = off")
    plan = "\n".join(row[0] for row in query(connection, f"EXPLAIN {sql}"))
    rows = sorted(query(connection, sql))
    query(connection, "RESET enable_seqscan")
    return rows if f" {index} " in plan or f" {index}\n" in plan + "\n" else None


def others_dropped(connection, table, index):
    """Drops every other index, so that the planner has no choice; the caller rolls back."""
    keys = {f"{table}_pkey", f"{table}_u_key"}
    names = [row[0] for row in query(connection, "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = %s::regclass", (table,))]
    for name in names:
        if name == index:
            continue
        query(connection, f"ALTER TABLE {table} DROP CONSTRAINT {name}" if name in keys else f"DROP INDEX {name}")


def check_works(connection, table, what):
    """The table is empty; new rows on the old TIDs, with other keys, are found by each index."""
    equal(f"first use: empty {what}", value(connection, f"SELECT count(*) FROM {table}"), 0)
    wrong = [i for i, c in indexes(table).items() if by_index(connection, table, i, c)]
    equal(f"first use: indexes are empty {what}", wrong, [])
    fill(connection, table, 7, 1500)
    wrong = []
    for index, condition in indexes(table).items():
        wanted = sorted(query(connection, f"SELECT id FROM {table} WHERE {condition}"))
        query(connection, "BEGIN")
        others_dropped(connection, table, index)
        got = by_index(connection, table, index, condition)
        query(connection, "ROLLBACK")
        if got != wanted or not wanted:
            wrong.append((index, got if got is None else len(got), len(wanted)))
    equal(f"first use: indexes agree with the table {what}", wrong, [])
    query(connection, f"UPDATE {table} SET g = g + 1, u = -u WHERE id % 3 = 0; DELETE FROM {table} WHERE id % 4 = 0")
    query(connection, f"VACUUM {table}")


def lose_rows():
    """A clean restart after a shutdown that could save no rows, nor say in the tables' files where
    they are."""
    connection = connect("postgres")
    directory = pathlib.Path(value(connection, "SHOW data_directory"))
    connection.close()
    server("stop")
    if OURS:
        (directory / "mixedcc.rows").unlink()
        for file in directory.glob("base/*/*"):
            if file.stat().st_size == 8192 and b"mixedcc: rows in" in file.read_bytes()[:100]:
                file.write_bytes(b"")
    server("start")


def warnings(connection, table):
    return [n for n in connection.notices if n.startswith("WARNING") and f'"{table}"' in n]


def test_first_uses():
    connection = make_database(DATABASE)
    for name in FIRST:
        make(connection, f"t_{name}")
    connection.close()
    lose_rows()
    for name, statements in FIRST.items():
        table = f"t_{name}"
        connection = connect(DATABASE)
        if not OURS:
            query(connection, f"DELETE FROM {table}")
        for statement in statements:
            query(connection, statement.format(t=table))
        check_works(connection, table, f"after {name}")
        if OURS:
            equal(f"first use: one warning by {name}", len(warnings(connection, table)), 1)
            layout = query(connection, 'SELECT count(*), min(protocol), max(protocol) FROM mixedcc.partitions WHERE "table" = %s::regclass', (table,))
            equal(f"first use: partitions and protocols as declared after {name}", layout, [(3, "2pl", "2pl")])
        connection.close()


def test_copy_first():
    connection = make_database(DATABASE)
    make(connection, "t")
    connection.close()
    lose_rows()
    connection = connect(DATABASE)
    if not OURS:
        query(connection, "DELETE FROM t")
    with connection.cursor() as cursor:
        cursor.copy_expert("COPY t (id, g, u) FROM STDIN", io.StringIO("1\t2\t3\n4\t5\t6\n"))
    equal("first use: COPY's rows are there", query(connection, "SELECT id, g, u FROM t ORDER BY id"), [(1, 2, 3), (4, 5, 6)])
    query(connection, "DELETE FROM t")
    check_works(connection, "t", "after COPY")
    connection.close()


def test_summarize_first():
    """brin_summarize_new_values holds pages of the index when it comes to the table."""
    connection = make_database(DATABASE)
    make(connection, "t")
    connection.close()
    lose_rows()
    connection = connect(DATABASE)
    query(connection, "SELECT brin_summarize_new_values('t_brin')")
    if not OURS:
        query(connection, "DELETE FROM t")
    check_works(connection, "t", "after summarizing")
    query(connection, "SELECT brin_summarize_new_values('t_brin')")
    connection.close()


def one_of_many(number):
    connection = connect(DATABASE)
    query(connection, f"INSERT INTO t (id, u, g) VALUES ({number}, {number}, {number})")
    rows = by_index(connection, "t", "t_pkey", f"id = {number}")
    count = len(warnings(connection, "t"))
    connection.close()
    return rows, count


def test_at_the_same_time():
    connection = make_database(DATABASE)
    make(connection, "t")
    connection.close()
    for _ in range(3):
        lose_rows()
        if not OURS:
            connection = connect(DATABASE)
            query(connection, "DELETE FROM t")
            connection.close()
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            outcomes = list(pool.map(one_of_many, range(1, 13)))
        equal("first use: each of many sessions finds its row", [rows for rows, _ in outcomes], [[(i,)] for i in range(1, 13)])
        if OURS:
            equal("first use: one of many sessions is warned", sum(count for _, count in outcomes), 1)
        connection = connect(DATABASE)
        equal("first use: there are no other rows", value(connection, "SELECT count(*) FROM t"), 12)
        connection.close()


def test_template():
    connection = make_database(DATABASE)
    make(connection, "t")
    before = query(connection, "SELECT ctid::text, xmin::text, id FROM t ORDER BY id")
    connection.close()
    for strategy in ("wal_log", "file_copy"):
        boss = connect("postgres")
        query(boss, f"DROP DATABASE IF EXISTS {COPY}")
        query(boss, f"CREATE DATABASE {COPY} TEMPLATE {DATABASE} STRATEGY {strategy}")
        boss.close()
        connection = connect(COPY)
        if not OURS:
            query(connection, "DELETE FROM t")
        check_works(connection, "t", f"in a copy by {strategy}")
        if OURS:
            equal(f"first use: a copy by {strategy} says that it is empty", len(warnings(connection, "t")), 1)
        connection.close()
    connection = connect(DATABASE)
    equal("first use: the template keeps its rows", query(connection, "SELECT ctid::text, xmin::text, id FROM t ORDER BY id"), before)
    connection.close()
    drop_database(COPY)
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_first_uses, test_copy_first, test_summarize_first, test_at_the_same_time, test_template)
