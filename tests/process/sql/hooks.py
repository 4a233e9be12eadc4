#!/usr/bin/python3
"""Other extensions' executor hooks, loaded before and after mixedcc: pg_stat_statements counts the
same calls and rows with the bypass as with the executor and with heap, auto_explain logs the same
statements. A library that audits statements, as pgaudit does (tests/process/sql/hook_probe), sees
each as often as with heap. Uses clusters of its own, and builds that library by PGXS."""

import collections
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import psycopg2

from lib.common import ROOT, SERVER_CTL, check, equal, main, query, value

TABLES = ("CREATE TABLE t (a int, b int, v int CHECK (v > -100), PRIMARY KEY (a, b)) USING mixedcc; "
          "CREATE TABLE child (a int, b int, FOREIGN KEY (a, b) REFERENCES t) USING mixedcc; "
          "INSERT INTO t SELECT i / 10, i % 10, i FROM generate_series(0, 99) i; ANALYZE t")
# Statements as a client, a prepared statement and a function send them: rows found, none, several,
# and errors.
STATEMENTS = (
    "SELECT v FROM t WHERE a = 1 AND b = 2", "SELECT v FROM t WHERE a = 1 AND b = 200", "SELECT v FROM t WHERE a = 3 ORDER BY b LIMIT 4",
    "SELECT v FROM t WHERE a = 3 ORDER BY b DESC", "SELECT sum(v) FROM t WHERE a = 4", "SELECT v FROM t WHERE a = 1 AND b = 2 FOR UPDATE",
    "UPDATE t SET v = v + 1 WHERE a = 1 AND b = 2", "UPDATE t SET v = v + 1 WHERE a = 1 AND b = 200 RETURNING v",
    "UPDATE t SET v = v + 1 WHERE a = 2 AND b = 2 RETURNING v", "DELETE FROM t WHERE a = 9 AND b = 9", "DELETE FROM t WHERE a = 9 AND b = 9",
    "INSERT INTO t VALUES (9, 9, 1) RETURNING v", "INSERT INTO t VALUES (9, 9, 1)", "UPDATE t SET v = -200 WHERE a = 1 AND b = 2",
    "INSERT INTO child VALUES (2, 3)", "INSERT INTO t SELECT 100, i, i FROM generate_series(1, 5) i", "DELETE FROM t WHERE a = 100",
    "SELECT count(*) FROM t WHERE v = 3", "SELECT t.v FROM t JOIN child USING (a, b)", "TRUNCATE child",
    "DECLARE c CURSOR WITH HOLD FOR SELECT v FROM t WHERE a = 1 AND b = 2", "FETCH c", "CLOSE c",
    "INSERT INTO t VALUES (7, 7, 1) ON CONFLICT (a, b) DO UPDATE SET v = 2", "PREPARE p(int) AS SELECT v FROM t WHERE a = $1 AND b = 5", "EXECUTE p(5)", "EXECUTE p(6)",
    "EXECUTE p(600)", "DEALLOCATE p",
    "DO $$ DECLARE x int; BEGIN FOR i IN 0..19 LOOP SELECT v INTO x FROM t WHERE a = i AND b = 1; "
    "SELECT v INTO x FROM t WHERE a = i ORDER BY b LIMIT 2; UPDATE t SET v = v + 1 WHERE a = i AND b = 1; END LOOP; END $$",
)


class Cluster:
    """A server with these libraries, in their order."""

    def __init__(self, preload):
        self.home = tempfile.mkdtemp(prefix="mcc-", dir="/tmp") + "/c"
        self.environment = {**os.environ, "MIXEDCC_HOME": self.home, "MIXEDCC_PRELOAD": preload}
        self.control("start")

    def control(self, command):
        subprocess.run([SERVER_CTL, command], env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)

    def connect(self):
        connection = psycopg2.connect(host=self.home + "/sockets", port=5432, user="postgres", dbname="postgres")
        connection.autocommit = True
        return connection

    def remove(self):
        self.control("stop")
        shutil.rmtree(os.path.dirname(self.home))


# The error of each statement that is to have one, for heap too.
ERRORS = {"INSERT INTO t VALUES (9, 9, 1)": "23505", "UPDATE t SET v = -200 WHERE a = 1 AND b = 2": "23514"}


def run_one(session, sql, again=False):
    """Statements that run for the second time may meet the rows of the first."""
    code = None
    try:
        query(session, sql)
    except psycopg2.Error as error:
        code = error.pgcode
    if code != ERRORS.get(sql) and not again:
        raise RuntimeError(f"{sql}: {code}")


def run_all(session):
    for sql in STATEMENTS:
        run_one(session, sql)


def counted(session, bypass, method="mixedcc"):
    """What pg_stat_statements says of the statements: text, calls, rows."""
    query(session, f"DROP TABLE IF EXISTS child, t; {TABLES.replace('mixedcc', method)}; SET mixedcc.enable_bypass = {bypass}; "
                   "SET pg_stat_statements.track = 'all'; SELECT pg_stat_statements_reset(); SELECT mixedcc.reset_bypass()")
    run_all(session)
    found = query(session, "SELECT query, calls, rows, total_exec_time > 0 FROM pg_stat_statements WHERE query ~ '(t|child|\"t\"|x)' "
                           "AND query !~ '(pg_stat|mixedcc|^SET |TABLE)' ORDER BY query COLLATE \"C\", 2, 3")
    return found, value(session, "SELECT sum(statements)::int FROM mixedcc.bypass WHERE statement IS NOT NULL")


def logged(session, bypass, method="mixedcc"):
    """Queries that auto_explain has logged, and how often, with the first line of the plan."""
    query(session, f"DROP TABLE IF EXISTS child, t; {TABLES.replace('mixedcc', method)}; SET mixedcc.enable_bypass = {bypass}; "
                   "SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on; SET client_min_messages = log")
    notices = session.notices = collections.deque()  # a list would keep the last fifty
    run_all(session)
    query(session, "RESET client_min_messages; RESET auto_explain.log_min_duration")
    plans = (re.search(r"plan:\n(?:DETAIL:\s*)?Query Text: (.*)\n(.*?)  ?\(cost", n) for n in notices)
    return collections.Counter(p.groups() for p in plans if p)


def with_libraries(preload, sees):
    """`sees`: do the libraries see statements of the bypass? Else it must be off."""
    cluster = Cluster(preload)
    try:
        session = cluster.connect()
        query(session, "CREATE EXTENSION mixedcc; CREATE EXTENSION pg_stat_statements")
        (by_bypass, taken), (by_executor, none) = counted(session, "on"), counted(session, "off")
        equal(f"{preload}: calls and rows are counted alike", by_bypass, by_executor)
        check(f"{preload}: all statements are there", len(by_executor) >= 17 and all(r[3] for r in by_executor), by_executor)
        equal(f"{preload}: calls and rows are heap's", by_executor, counted(session, "off", "heap")[0])
        equal(f"{preload}: nothing takes the bypass while it is off", none, 0)
        if sees:
            check(f"{preload}: the bypass runs", taken > 50, taken)  # how many depends on the version
        else:
            equal(f"{preload}: the bypass is off", taken, 0)
        plans, wanted = logged(session, "on"), logged(session, "off")
        equal(f"{preload}: auto_explain logs the same", plans, wanted)
        calls = [collections.Counter({text: n for (text, _), n in p.items()}) for p in (wanted, logged(session, "off", "heap"))]
        equal(f"{preload}: auto_explain logs what it logs of heap", *calls)
        check(f"{preload}: it logs all", sum(wanted.values()) > 70, wanted)
        session.close()
    finally:
        cluster.remove()


def build_probe():
    """The library, as a setting names it."""
    place = pathlib.Path(tempfile.mkdtemp(prefix="mixedcc-hooks-")) / "build"
    shutil.copytree(ROOT / "tests/process/sql/hook_probe", place)
    config = os.path.join(os.environ["PGBIN"], "pg_config")
    done = subprocess.run(["make", "-s", "-C", str(place), f"PG_CONFIG={config}"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"tests/process/sql/hook_probe cannot be built: {done.stdout}")
    return place / "hook_probe"


def seen(session, method):
    """How many starts and checks of rights each statement is, the second time too."""
    query(session, f"DROP TABLE IF EXISTS child, t; {TABLES.replace('mixedcc', method)}")
    found = []
    for i, sql in enumerate(2 * STATEMENTS):
        before = query(session, "SELECT probe_starts(), probe_checks()")[0]
        run_one(session, sql, again=i >= len(STATEMENTS))
        after = query(session, "SELECT probe_starts(), probe_checks()")[0]
        found.append((sql, after[0] - before[0] - 1, after[1] - before[1]))
    return found


def audited():
    """Loaded before mixedcc and after it: each statement is seen once."""
    library = build_probe()
    try:
        for preload in (f"mixedcc,{library}", f"{library},mixedcc"):
            name = preload.replace(str(library.parent) + "/", "")
            cluster = Cluster(preload)
            try:
                session = cluster.connect()
                query(session, "CREATE EXTENSION mixedcc")
                for f in ("probe_starts", "probe_checks"):
                    query(session, f"CREATE FUNCTION {f}() RETURNS int AS '{library}', '{f}' LANGUAGE C")
                of_heap, of_ours = seen(session, "heap"), seen(session, "mixedcc")
                for heap, ours in zip(of_heap, of_ours):
                    equal(f"{name}: starts and checks of {ours[0][:60]}", ours[1:], heap[1:])
                check(f"{name}: something was seen", sum(s[2] for s in of_heap) > 100, of_heap)
                query(session, "SET mixedcc.enable_bypass = off")
                equal(f"{name}: the same without the bypass", [s[1:] for s in seen(session, "mixedcc")], [s[1:] for s in of_heap])
                session.close()
            finally:
                cluster.remove()
    finally:
        shutil.rmtree(library.parent.parent)


def loaded_after():
    with_libraries("mixedcc,pg_stat_statements,auto_explain", True)


def loaded_before():
    with_libraries("pg_stat_statements,auto_explain,mixedcc", False)


def one_before():
    with_libraries("auto_explain,mixedcc,pg_stat_statements", False)


if __name__ == "__main__":
    main(audited, loaded_after, loaded_before, one_before)
