#!/usr/bin/env python3
"""Indexes of access methods that are not PostgreSQL's own and insist on an MVCC snapshot, as
pgvector's are: scans in an order, by a condition and through bitmaps at every level, what protects
them at SERIALIZABLE, writes and VACUUM. Builds tests/process/isolation/index_am by PGXS; with
pgvector installed, its indexes too."""

import os
import pathlib
import shutil
import subprocess
import tempfile

import psycopg2

from lib import protocols
from lib.common import METHOD, OURS, RETRY, ROOT, check, connect, drop_database, equal, main, make_database, query, value

DATABASE = "mixedcc_index_methods"
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE", "SERIALIZABLE READ ONLY")
METHOD_SQL = """
CREATE FUNCTION insists_handler(internal) RETURNS index_am_handler AS '{library}' LANGUAGE C;
CREATE FUNCTION insists_distance(int, int) RETURNS float8 AS '{library}' LANGUAGE C IMMUTABLE STRICT;
CREATE OPERATOR <-> (FUNCTION = insists_distance, LEFTARG = int, RIGHTARG = int, COMMUTATOR = <->);
CREATE ACCESS METHOD insists TYPE INDEX HANDLER insists_handler;
CREATE OPERATOR CLASS int_insists DEFAULT FOR TYPE int USING insists AS
    OPERATOR 1 =, OPERATOR 2 <-> (int, int) FOR ORDER BY float_ops;
"""
NEAREST = "SELECT id FROM v ORDER BY e <-> 50 LIMIT 3"
EQUAL = "SELECT id FROM v WHERE e = 40"


def build():
    place = pathlib.Path(tempfile.mkdtemp(prefix="mixedcc-index-am-")) / "build"
    shutil.copytree(ROOT / "tests/process/isolation/index_am", place)
    config = os.path.join(os.environ["PGBIN"], "pg_config")
    done = subprocess.run(["make", "-s", "-C", str(place), f"PG_CONFIG={config}"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"tests/process/isolation/index_am cannot be built: {done.stdout}")
    return str(place / "insists")


def fresh(connection, protocol="occ"):
    options = f"WITH (mixedcc.partitions = 3, mixedcc.protocol = '{protocol}')" if OURS else ""
    query(connection, f"DROP TABLE IF EXISTS v; CREATE TABLE v (id int PRIMARY KEY, e int, n int DEFAULT 0) USING {METHOD} {options}")
    query(connection, "INSERT INTO v SELECT i, i * 10 FROM generate_series(1, 100) i; CREATE INDEX v_e ON v USING insists (e); ANALYZE v")


def session(level):
    """A session in a transaction whose plans use the index."""
    s = connect(DATABASE)
    query(s, "SET enable_seqscan = off; SET enable_sort = off; BEGIN ISOLATION LEVEL " + level)
    return s


def code(connection, sql):
    """The SQLSTATE of a statement, or its rows."""
    try:
        return query(connection, sql)
    except psycopg2.Error as e:
        return e.pgcode


def test_levels():
    admin = connect(DATABASE)
    for protocol in protocols.ALL if OURS else ("heap",):
        fresh(admin, protocol)
        for level in LEVELS:
            name = f"{protocol}, {level}:"
            s = session(level)
            plan = "\n".join(r[0] for r in query(s, "EXPLAIN " + NEAREST))
            check(f"{name} the plan has the index", "using v_e" in plan, plan)
            equal(f"{name} in order", sorted(code(s, NEAREST)), [(4,), (5,), (6,)])
            query(s, "SET enable_bitmapscan = off")
            equal(f"{name} by a condition", code(s, EQUAL), [(4,)])
            query(s, "SET enable_bitmapscan = on; SET enable_indexscan = off")
            plan = "\n".join(r[0] for r in query(s, "EXPLAIN " + EQUAL))
            check(f"{name} the plan has a bitmap", "Bitmap Index Scan on v_e" in plan, plan)
            equal(f"{name} by a bitmap", code(s, EQUAL), [(4,)])
            equal(f"{name} again", code(s, "SELECT count(*) FROM generate_series(1, 3) i, LATERAL (SELECT id FROM v WHERE e = i * 10) x"), [(3,)])
            if OURS:
                equal(f"{name} no predicate lock of PostgreSQL", value(admin, "SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock'"), 0)
            query(s, "COMMIT")
            s.close()
    admin.close()


def test_protection():
    """An insert that the scan would have met, and an update of a row that it has read, fail it or
    wait for it."""
    admin = connect(DATABASE)
    conflicts = {
        "insert": "INSERT INTO v VALUES (200, 51)",
        "moved": "UPDATE v SET e = 51 WHERE id = 90",
        "updated": "UPDATE v SET n = 1 WHERE id = 5",
        "deleted": "DELETE FROM v WHERE id = 5",
    }
    for protocol in protocols.ALL:
        for bitmap in (False, True):
            for name, change in conflicts.items():
                fresh(admin, protocol)
                scan = "SELECT id, n FROM v WHERE e IN (50, 51)" if bitmap else "SELECT id, n FROM v ORDER BY e <-> 50 LIMIT 3"
                a, b = session("SERIALIZABLE"), session("SERIALIZABLE")
                query(b, "SET lock_timeout = '200ms'")
                if bitmap:
                    query(a, "SET enable_indexscan = off")
                query(a, scan)
                done = [code(b, change), code(b, "COMMIT")]
                # The writer was first: then the reader, which writes as well, cannot commit.
                reader = [code(a, "UPDATE v SET n = n + 1 WHERE id = 33"), code(a, "COMMIT")]
                failed = [c for c in done + reader if isinstance(c, str)]
                check(f"{protocol}, {'bitmap' if bitmap else 'order'}, {name}: one of them fails",
                      failed and all(c in RETRY + ("55P03", "25P02") for c in failed), f"{done} {reader}")
                a.close(), b.close()
    admin.close()


def test_writes():
    admin = connect(DATABASE)
    fresh(admin)
    s = session("SERIALIZABLE")
    query(s, "INSERT INTO v VALUES (300, 50); DELETE FROM v WHERE id = 4; UPDATE v SET e = 50 WHERE id = 6")
    equal("own writes are seen", sorted(code(s, NEAREST)), [(5,), (6,), (300,)])
    equal("rows are locked", sorted(code(s, "SELECT id FROM v WHERE e = 50 FOR UPDATE")), [(5,), (6,), (300,)])
    equal("and updated", sorted(code(s, "UPDATE v SET n = 7 WHERE e = 50 RETURNING id")), [(5,), (6,), (300,)])
    query(s, "COMMIT")
    query(admin, "VACUUM v")
    for level in LEVELS:
        r = session(level)
        equal(f"{level}: after VACUUM", sorted(code(r, "SELECT id, n FROM v ORDER BY e <-> 50 LIMIT 3")), [(5, 7), (6, 7), (300, 7)])
        r.close()
    s.close(), admin.close()


def test_pgvector():
    admin = connect(DATABASE)
    if not value(admin, "SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'"):
        print("pgvector is not installed", flush=True)
        return
    query(admin, "CREATE EXTENSION vector")
    query(admin, f"CREATE TABLE p (id int PRIMARY KEY, e vector(3)) USING {METHOD}")
    query(admin, "INSERT INTO p SELECT i, array[i, i % 3, i % 7]::real[]::vector FROM generate_series(1, 1000) i")
    for method in ("ivfflat", "hnsw"):
        if not value(admin, f"SELECT count(*) FROM pg_am WHERE amname = '{method}'"):
            continue
        query(admin, f"CREATE INDEX p_{method} ON p USING {method} (e vector_l2_ops)")
        for level in LEVELS:
            s = session(level)
            equal(f"{method}, {level}", code(s, "SELECT id FROM p ORDER BY e <-> '[700,1,0]' LIMIT 1"), [(700,)])
            s.close()
        query(admin, f"DROP INDEX p_{method}")
    query(admin, "DROP TABLE p")
    admin.close()


def test_all():
    connection = make_database(DATABASE)
    query(connection, METHOD_SQL.format(library=build()))
    connection.close()
    test_levels()
    if OURS:
        test_protection()
    test_writes()
    test_pgvector()
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_all)
