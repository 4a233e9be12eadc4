#!/usr/bin/python3
"""EXPLAIN in the formats for programs: what a parser reads has one element for each query, with its
plan, and what mixedcc adds is inside of it. Statements of one query and of several (rules), EXECUTE
and CREATE TABLE AS."""

import json
import re
import xml.etree.ElementTree as tree

from lib.common import check, connect, drop_database, equal, main, make_database, query

DATABASE = "explain_test"
SPACE = "{http://www.postgresql.org/2009/explain}"
TABLES = ("CREATE TABLE t (k int PRIMARY KEY, v int) USING mixedcc; INSERT INTO t SELECT i, i FROM generate_series(1, 50) i; "
          "CREATE TABLE u (k int PRIMARY KEY, v int) USING mixedcc; CREATE TABLE h (k int PRIMARY KEY, v int); "
          "CREATE VIEW w AS SELECT t.k, h.v FROM t JOIN h USING (k); "
          "CREATE RULE also AS ON INSERT TO t WHERE new.v = 3 DO ALSO (DELETE FROM u WHERE k = new.k; UPDATE u SET v = 0 WHERE k > 7); "  # (the DELETE becomes nothing)
          "CREATE RULE nothing AS ON DELETE TO u DO INSTEAD NOTHING")
# Statements, how many queries they are, of how many of these the tables are shown.
STATEMENTS = (
    ("SELECT * FROM t WHERE v BETWEEN 5 AND 7", 1, 1), ("SELECT * FROM t WHERE k = 7", 1, 1), ("SELECT count(*) FROM w", 1, 1),
    ("UPDATE t SET v = v + 1 WHERE k BETWEEN 3 AND 5", 1, 1), ("DELETE FROM t WHERE k = 7", 1, 1),
    ("SELECT 1", 1, 0), ("SELECT * FROM h", 1, 0),
    ("INSERT INTO t VALUES (60, 4)", 2, 2), ("DELETE FROM u", 0, 0), ("EXECUTE p(7)", 1, 0),
    ("CREATE TABLE made AS SELECT * FROM t WHERE k < 3", 1, 1), ("CREATE TABLE made AS EXECUTE p(3)", 1, 0),
    ("DECLARE c CURSOR FOR SELECT * FROM t", 1, 1),
)


def explained(session, options, statement):
    """The text, of a statement that is undone."""
    query(session, "BEGIN ISOLATION LEVEL SERIALIZABLE")
    try:
        with session.cursor() as cursor:
            cursor.execute(f"EXPLAIN ({options}) {statement}")
            return "\n".join(json.dumps(row[0]) if not isinstance(row[0], str) else row[0] for row in cursor.fetchall())
    finally:
        query(session, "ROLLBACK")


def of_json(text):
    """For each query: the names of its properties, and our tables."""
    return [(list(q), q.get("mixedcc Table", [])) for q in json.loads(text)]


def of_xml(text):
    root = tree.fromstring(text)
    if root.tag != SPACE + "explain" or any(q.tag != SPACE + "Query" for q in root):
        raise ValueError(f"not a list of queries: {text}")
    names = [[p.tag[len(SPACE):].replace("-", " ") for p in q] for q in root]
    return [(n, [i.text for i in q.findall(f"{SPACE}mixedcc-Table/{SPACE}Item")]) for n, q in zip(names, root)]


def of_yaml(text):
    """The part of YAML that EXPLAIN writes: a list of mappings, whose own keys are two columns
    behind the dash."""
    found = []
    for line in text.split("\n") if text else ():
        if line.startswith("- "):
            found.append(([], []))
        elif not line.startswith("  "):
            raise ValueError(f"not in the list: {line}")
        key = re.match(r"(?:- |  )([A-Za-z][^:]*):", line)
        if key:
            found[-1][0].append(key[1])
        item = re.match(r'    - "(.*)"$', line)
        if item and found[-1][0][-1] == "mixedcc Table":
            found[-1][1].append(item[1])
    return found


PARSERS = {"json": of_json, "xml": of_xml, "yaml": of_yaml}


def formats():
    session = connect(DATABASE, options="-c mixedcc.mixed_serializable=allow")
    query(session, "PREPARE p (int) AS SELECT * FROM t WHERE k = $1")
    for statement, queries, shown in STATEMENTS:
        for options in ("VERBOSE", "ANALYZE", "ANALYZE, VERBOSE, BUFFERS", "COSTS OFF"):
            if "ANALYZE" in options and statement.startswith("DECLARE"):
                continue
            what = f"explain: {options}: {statement}"
            seen = {}
            for name, parse in PARSERS.items():
                try:
                    seen[name] = parse(explained(session, f"{options}, FORMAT {name}", statement))
                except (ValueError, tree.ParseError) as e:
                    check(f"{what}: {name} can be parsed", False, e)
            equal(f"{what}: queries", {name: len(found) for name, found in seen.items()}, dict.fromkeys(PARSERS, queries))
            plans = [keys[0] for found in seen.values() for keys, _ in found]
            check(f"{what}: each begins with its plan", set(plans) <= {"Plan"}, plans)
            if "VERBOSE" in options:
                tables = {name: sum(bool(ours) for _, ours in found) for name, found in seen.items()}
                equal(f"{what}: tables are in their query", tables, dict.fromkeys(PARSERS, shown))
    session.close()


def predicates():
    """A statement that protects keys says so inside of its query, from SQL too."""
    session = connect(DATABASE)
    query(session, "CREATE FUNCTION plan_of(sql text) RETURNS json LANGUAGE plpgsql AS "
                   "$$ DECLARE r json; BEGIN EXECUTE 'EXPLAIN (ANALYZE, VERBOSE, FORMAT json) ' || sql INTO r; RETURN r; END $$")
    query(session, "BEGIN ISOLATION LEVEL SERIALIZABLE")
    plan = query(session, "SELECT plan_of('SELECT * FROM t WHERE k BETWEEN 5 AND 7')")[0][0]
    query(session, "ROLLBACK")
    equal("explain: one element", len(plan), 1)
    equal("explain: its tables", plan[0].get("mixedcc Table"), ["t: 1 partition, occ"])
    check("explain: what it protects", "from 5 to" in str(plan[0].get("mixedcc Protected Keys")), plan)
    session.close()


if __name__ == "__main__":
    boss = make_database(DATABASE)
    query(boss, TABLES)
    boss.close()
    try:
        main(formats, predicates)
    finally:
        drop_database(DATABASE)
