#!/usr/bin/env python3
"""Databases that are not UTF8: names of tables, columns and arguments in options, annotations and
native access, keys and what is shown of them. LATIN1, SQL_ASCII, EUC_JP, and UTF8 with the same
statements."""

from lib.common import connect, drop_database, equal, main, query, value, wait_until

DATABASE, OTHER = "mixedcc_encodings", "mixedcc_encodings_2"
# Names in characters that each encoding has: LATIN1's, and Japanese ones. In SQL_ASCII they are the
# bytes of UTF8.
LATIN = ("tä", "kä", "vö", "Ñame")
JAPANESE = ("表", "鍵", "値", "名前")
CASES = (("LATIN1", LATIN, "UTF8"), ("SQL_ASCII", LATIN, "SQL_ASCII"), ("EUC_JP", JAPANESE, "UTF8"),
         ("UTF8", LATIN, "UTF8"), ("UTF8", JAPANESE, "UTF8"))


def make(encoding, client):
    boss = connect("postgres")
    query(boss, f"DROP DATABASE IF EXISTS {DATABASE}")
    query(boss, f"CREATE DATABASE {DATABASE} TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'")
    boss.close()
    connection = connect(DATABASE)
    query(connection, "CREATE EXTENSION mixedcc")
    # With UTF8 the server converts; in SQL_ASCII it takes the bytes.
    connection.set_client_encoding(client)
    return connection


def drop_other(connection, case, name):
    """DROP DATABASE takes the tables of a database of such a name out of memory."""
    query(connection, f"CREATE DATABASE {OTHER} TEMPLATE template0")
    other = connect(OTHER)
    query(other, "CREATE EXTENSION mixedcc; CREATE UNLOGGED TABLE t (id int PRIMARY KEY) USING mixedcc")
    query(other, "INSERT INTO t SELECT generate_series(1, 20000)")
    other.close()
    query(connection, f'ALTER DATABASE {OTHER} RENAME TO "{name}"')
    live = "SELECT live_bytes FROM mixedcc.memory"
    before = value(connection, live)
    query(connection, f'DROP DATABASE "{name}"')
    freed = wait_until(lambda: before - value(connection, live) > 1 << 19, 5)
    equal(f"{case} DROP DATABASE", freed, True)


def partner(connection, t, v):
    """Is a table shown as one that is used together with a partition, once transactions are
    sampled?"""
    query(connection, f"""BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT sum("{v}") FROM "{t}"; COMMIT""")
    shown = f"""FROM mixedcc.partition_stats, jsonb_array_elements(partners) q WHERE q->>'table' = '"{t}"'::regclass::text"""
    return value(connection, f"SELECT count(*) > 0 {shown}")


def run(encoding, names, client):
    t, k, v, name = names
    case = f"{encoding}, {t}:"
    # What psycopg2 sends and gets to a SQL_ASCII client is ASCII: these names are then bytes of
    # UTF8, one character each.
    if client == "SQL_ASCII":
        t, k, v, name = (n.encode().decode("latin-1") for n in names)
    c = make(encoding, "LATIN1" if client == "SQL_ASCII" else client)
    query(c, f"""CREATE TABLE "{t}" ("{k}" text COLLATE "C" PRIMARY KEY, "{v}" int, "{name}" varchar(10)) USING mixedcc
        WITH (mixedcc.partitions = 3)""")
    query(c, f"""INSERT INTO "{t}" VALUES ('{name}', 1, '{v}'), ('a', 2, 'b')""")
    equal(f"{case} get", value(c, f"""SELECT mixedcc.get(NULL::"{t}", '{name}'::text)::text"""), f"({name},1,{v})")
    equal(f"{case} get_value", value(c, f"""SELECT mixedcc.get_value(NULL::int, NULL::"{t}", '{v}', '{name}'::text)"""), 1)
    equal(f"{case} set", value(c, f"""SELECT mixedcc.set(NULL::"{t}", '{name}', '{t}'::text, '{name}'::text)"""), True)
    equal(f"{case} put", value(c, f"""SELECT mixedcc.put(ROW('{name}', 3, '{k}')::"{t}")"""), True)
    query(c, f"""SELECT mixedcc.insert(ROW('{k}', 4, NULL)::"{t}")""")
    equal(f"{case} rows", query(c, f"""SELECT * FROM "{t}" WHERE "{v}" > 2 ORDER BY "{v}" """), [(name, 3, k), (k, 4, None)])
    equal(f"{case} partners", wait_until(lambda: partner(c, t, v), 20), True)
    query(c, f"""ALTER TABLE "{t}" SET (mixedcc.partition_by = '"{k}"', mixedcc.partitions = 5)""")
    query(c, f"""ALTER TABLE "{t}" RENAME COLUMN "{k}" TO "{k}2" """)
    equal(f"{case} options", query(c, f"""SELECT option, value FROM mixedcc.options WHERE option = 'partition_by'"""),
          [("partition_by", f'"{k}2"')])
    query(c, f"""ALTER TABLE "{t}" RESET (mixedcc.partitions)""")
    query(c, f"""ALTER TABLE "{t}" SET (mixedcc.partition_method = 'range', mixedcc.bounds = '"b","{name}"', mixedcc.partition_by = '"{k}2"')""")
    rows = query(c, f"""SELECT rows FROM mixedcc.partitions WHERE "table" = '"{t}"'::regclass ORDER BY partition""")
    equal(f"{case} bounds", sum(r[0] for r in rows), 3)
    query(c, f"""CREATE FUNCTION "{name}"("{v}" text) RETURNS int LANGUAGE sql AS 'SELECT 1'""")
    query(c, f"""SELECT mixedcc.annotate('"{name}"(text)', '"{t}"', '{v}')""")
    equal(f"{case} annotations", query(c, "SELECT arguments FROM mixedcc.annotations"), [(f'"{v}"',)])
    query(c, f"""SELECT "{name}"('{name}')""")
    query(c, f"""BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM "{t}" WHERE "{k}2" >= '{name}'""")
    equal(f"{case} predicates", value(c, f"""SELECT count(*) FROM mixedcc.predicates WHERE lower LIKE '%{name}%'"""), 1)
    plan = "\n".join(r[0] for r in query(c, f"""EXPLAIN (ANALYZE, VERBOSE) SELECT * FROM "{t}" WHERE "{k}2" = '{name}'"""))
    equal(f"{case} EXPLAIN", (t in plan, name in plan), (True, True))
    query(c, "COMMIT")
    # An error is one, whatever it shows of the names.
    for sql in (f"""ALTER TABLE "{t}" SET (mixedcc.partition_by = '"{v}{v}"')""", f"""SELECT mixedcc.set(NULL::"{t}", '{v}{v}', 1, 'a'::text)""",
                f"""SELECT mixedcc.annotate('"{name}"(text)', '"{t}"', '{k}')"""):
        try:
            query(c, sql)
            equal(f"{case} {sql}", "done", "an error")
        except Exception as e:
            equal(f"{case} error", getattr(e, "pgcode", None) in ("42703", "42P02"), True)
    query(c, f"""SELECT mixedcc.unannotate('"{name}"(text)'); DROP TABLE "{t}" """)
    drop_other(c, case, t)
    c.close()


def sample(every):
    boss = connect("postgres")
    query(boss, f"ALTER SYSTEM SET mixedcc.sample_every = {every}" if every else "ALTER SYSTEM RESET mixedcc.sample_every")
    query(boss, "SELECT pg_reload_conf()")
    boss.close()


def test_all():
    sample(1)
    for encoding, names, client in CASES:
        run(encoding, names, client)
    sample(None)
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_all)
