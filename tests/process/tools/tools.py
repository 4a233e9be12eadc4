#!/usr/bin/python3
"""What PostgreSQL's own tools meet in a database with mixedcc tables. The commands vacuumdb --full,
reindexdb and pg_amcheck go on with the other tables, and clusterdb takes all. amcheck compares
tables with their indexes while sessions write. The server's log tells of autovacuum and of waits
for rows as for heap."""

import os
import re
import subprocess
import threading
import time

import psycopg2

from lib.common import RETRY, check, connect, drop_database, equal, fail, main, make_database, query, seconds, value, wait_until

DATABASE = "tools_test"
HEAP = ("a_heap", "z_heap")
INDEXES = "SELECT indexrelid FROM pg_index WHERE indrelid = 'm'::regclass ORDER BY 1"


def run(name, *arguments):
    """A tool's exit status, and all that it says."""
    path = os.path.join(os.environ["PGBIN"], name)
    done = subprocess.run([path, *arguments, "-d", DATABASE], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def files(session, *names):
    return dict(query(session, "SELECT relname, relfilenode FROM pg_class WHERE relname = ANY (%s)", (list(names),)))


def maintenance():
    """Tables of other access methods before and behind ours in the tools' order are done, ours are
    vacuumed at least."""
    session = connect(DATABASE)
    names = [*HEAP, *(f"{t}_pkey" for t in HEAP)]
    indexes = names[len(HEAP):]
    cases = [(names, "vacuumdb", "--full"), (names, "vacuumdb", "--full", "--analyze"), (names, "vacuumdb", "-f", "-t", "m", "-t", "z_heap"),
             (indexes, "reindexdb"), (indexes, "reindexdb", "--concurrently"), (indexes, "reindexdb", "--concurrently", "-j", "2"),
             (indexes, "reindexdb", "--concurrently", "-S", "public"), (["z_heap_pkey"], "reindexdb", "--concurrently", "-t", "m", "-t", "z_heap"),
             (["z_heap", "was_sorted"], "clusterdb")]
    for wanted, *command in cases:
        what = "tools: " + " ".join(command)
        query(session, "INSERT INTO m SELECT i, i, i FROM generate_series(1000, 1100) i; DELETE FROM m WHERE k >= 1000")
        before = files(session, *wanted)
        status, said = run(*command)
        check(f"{what} succeeds", status == 0, said)
        after = files(session, *wanted)
        if "-t" in command:
            wanted = [n for n in wanted if not n.startswith("a_")]
        kept = [n for n in wanted if before[n] == after[n]]
        check(f"{what} writes the other tables anew", not kept, f"not {kept}\n{said}")
        if command[0] == "vacuumdb" or "--concurrently" in command:
            says = "leaves out" if command[0] == "reindexdb" else "is not supported for"
            check(f"{what} says what it does not do", says in said, said)
        if command[0] == "vacuumdb":
            # A process that held a snapshot at that moment keeps the rows: autovacuum, the
            # coordinator.
            gone = wait_until(lambda: value(session, "SELECT dead_rows FROM dead_rows") == 0 or run(*command)[0] != 0)
            check(f"{what} frees deleted rows", gone, said)
        equal(f"{what} leaves the rows", value(session, "SELECT count(*) FROM m"), 500)
    session.close()


def writes(stop, seed, failures):
    """Inserts, deletes, updates in place and by new keys, at all levels, with savepoints; rolled
    back now and then."""
    session = connect(DATABASE)
    levels = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
    n = 0
    while not stop.is_set():
        n += 1
        k = 2000 + (n * 7919 + seed * 104729) % 300
        try:
            query(session, f"BEGIN ISOLATION LEVEL {levels[n % 3]}")
            query(session, f"INSERT INTO m VALUES ({k}, {k}, {n}) ON CONFLICT (k) DO UPDATE SET w = m.w + 1")
            query(session, f"SAVEPOINT s; UPDATE m SET v = v + 1 WHERE k = {k}; UPDATE m SET w = w + 1 WHERE k BETWEEN {k - 3} AND {k + 3}")
            query(session, "ROLLBACK TO s" if n % 5 == 0 else f"DELETE FROM m WHERE k = {k - n % 9}")
            query(session, "ROLLBACK" if n % 11 == 0 else "COMMIT")
        except psycopg2.Error as e:
            query(session, "ROLLBACK")
            if e.pgcode not in RETRY:
                failures.append(str(e))
        if seed == 0 and n % 20 == 0:
            query(session, "VACUUM m")
    session.close()


def amcheck():
    session = connect(DATABASE)
    indexes = [row[0] for row in query(session, INDEXES)]
    stop, failures = threading.Event(), []
    writers = [threading.Thread(target=writes, args=(stop, i, failures)) for i in range(3)]
    for w in writers:
        w.start()
    checks = 0
    try:
        end = time.monotonic() + seconds(10)
        while time.monotonic() < end:
            for level in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE", "SERIALIZABLE READ ONLY"):
                # At once, after a read of the table, and after a write.
                for first in ("", "SELECT count(*) FROM m WHERE k < 10", "UPDATE m SET v = -v WHERE k = 1"):
                    if "ONLY" in level and first.startswith("UPDATE"):
                        continue
                    try:
                        query(session, f"BEGIN ISOLATION LEVEL {level}; {first}")
                        for index in indexes:
                            query(session, f"SELECT bt_index_check({index}, true)")
                            checks += 1
                    except psycopg2.Error as e:
                        if e.pgcode not in RETRY:
                            raise
                    finally:
                        query(session, "ROLLBACK")
        status, said = run("pg_amcheck", "--heapallindexed", "--index=m*")
        check("amcheck: pg_amcheck of our indexes", status == 0, said)
        status, said = run("pg_amcheck", "--heapallindexed")
        check("amcheck: pg_amcheck of the database", status == 0, said)
        status, said = run("pg_amcheck", "-v")
        check("amcheck: pg_amcheck checks other tables only", '"tools_test.public.z_heap"' in said and '.public.m' not in said, said)
        try:
            query(session, "SELECT verify_heapam('m')")
            fail("amcheck: verify_heapam refuses")
        except psycopg2.Error as e:
            equal("amcheck: verify_heapam refuses", (e.pgcode, "only heap AM is supported" in str(e)), ("0A000", True))
    except psycopg2.Error as e:
        fail("amcheck: beside writers", e)
    finally:
        stop.set()
        for w in writers:
            w.join()
    check("amcheck: there were checks", checks > 30, checks)
    check("amcheck: writers go on", not failures, failures[:3])
    session.close()


def amcheck_finds():
    """A row that an index lacks is found, at each level, while another session writes."""
    session, other = connect(DATABASE), connect(DATABASE)
    query(session, "UPDATE pg_index SET indisready = false WHERE indexrelid = 'm_v'::regclass; INSERT INTO m VALUES (-5, -5, 0); "
                   "UPDATE pg_index SET indisready = true WHERE indexrelid = 'm_v'::regclass")
    query(other, "BEGIN; UPDATE m SET w = 7 WHERE k = 6; INSERT INTO m VALUES (-7, -7, 0)")
    for level in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"):
        try:
            query(session, f"BEGIN ISOLATION LEVEL {level}; SELECT bt_index_check('m_v', true)")
            fail(f"amcheck: {level}: a row that an index lacks is found")
        except psycopg2.Error as e:
            check(f"amcheck: {level}: a row that an index lacks is found", "lacks matching index tuple" in str(e), e)
        query(session, "ROLLBACK")
    status, said = run("pg_amcheck", "--heapallindexed", "--index=m_v")
    check("amcheck: pg_amcheck finds it", status == 2 and "lacks matching index tuple" in said, said)
    query(other, "ROLLBACK")
    query(session, "DELETE FROM m WHERE k = -5")
    session.close()
    other.close()


class Log:
    """The server's log from here on."""

    def __init__(self, session):
        postmaster = value(session, "SELECT pg_read_file('postmaster.pid')").split()[0]
        self.path = os.readlink(f"/proc/{postmaster}/fd/2")
        self.start = os.path.getsize(self.path)

    def text(self):
        with open(self.path, encoding="utf-8", errors="replace") as file:
            file.seek(self.start)
            return file.read()

    def gets(self, pattern):
        return wait_until(lambda: re.search(pattern, self.text()))


def configure(session, **settings):
    for name, setting in settings.items():
        query(session, f"ALTER SYSTEM SET {name} = '{setting}'" if setting is not None else f"ALTER SYSTEM RESET {name}")
    query(session, "SELECT pg_reload_conf()")


def autovacuum_log():
    session = connect(DATABASE)
    log = Log(session)
    configure(session, autovacuum_naptime=1, log_autovacuum_min_duration=0)
    lines = (r"pages: 0 removed, \d+ remain, \d+ scanned \(100\.00% of total\)", r"tuples: 60 removed, 40 remain, \d+ are dead but not yet removable",
             r'index "{0}_pkey": pages: \d+ in total, \d+ newly deleted, \d+ currently deleted, \d+ reusable', r"avg read rate: .* MB/s, avg write rate: .* MB/s",
             r"buffer usage: \d+ hits, \d+ (?:misses|reads), \d+ dirtied", r"WAL usage: \d+ records, \d+ full page images, \d+ bytes", "system usage: CPU.*")
    for table in ("auto_heap", "auto_ours"):
        method = "heap" if table == "auto_heap" else "mixedcc"
        query(session, f"CREATE TABLE {table} (k int PRIMARY KEY) USING {method} "
                       "WITH (autovacuum_vacuum_threshold = 10, autovacuum_vacuum_scale_factor = 0)")
        query(session, f"INSERT INTO {table} SELECT generate_series(1, 100); DELETE FROM {table} WHERE k <= 60")
        # Heap's report has other lines in between: of transaction ids. Newer versions say more in
        # some.
        pattern = rf'automatic vacuum of table "{DATABASE}\.public\.{table}": index scans: \d\n' + "".join(f"(?:\t.*\n)*?\t{x.format(table)}(?:, .*)?\n" for x in lines)
        check(f"log: autovacuum of {method}", log.gets(pattern), log.text()[-3000:])
    query(session, "DROP TABLE auto_heap, auto_ours")
    configure(session, autovacuum_naptime=None, log_autovacuum_min_duration=None)
    session.close()


def lock_log():
    """The first and the second of a row's waiters, and a waiter for a partition."""
    session, holder = connect(DATABASE), connect(DATABASE)
    configure(session, log_lock_waits="on", deadlock_timeout="100ms")
    cases = [("heap", "READ COMMITTED", "updating tuple (0,7) in relation \"a_heap\"", "a_heap", None),
             ("row", "READ COMMITTED", "locking tuple (0,7) in relation \"m\"", "m", None),
             ("2pl", "SERIALIZABLE", "locking tuple (0,7) in relation \"m\"", "m", "2pl"),
             ("partcc", "SERIALIZABLE", "locking partition 0 of relation \"m\"", "m", "partcc")]
    for name, level, context, table, protocol in cases:
        if protocol:
            query(session, f"SELECT mixedcc.set_protocol('m', '{protocol}')")
            check(f"log: {name}: protocol", value(session, "SELECT mixedcc.await_switches('m'::regclass)"))
        log = Log(session)
        query(holder, f"BEGIN ISOLATION LEVEL {level}; UPDATE {table} SET v = 7 WHERE k = 7")
        waiters, threads = [connect(DATABASE) for _ in range(2)], []
        for w in waiters:
            def update(w=w):
                try:
                    query(w, f"BEGIN ISOLATION LEVEL {level}; UPDATE {table} SET v = 7 WHERE k = 7; ROLLBACK")
                except psycopg2.Error as e:
                    query(w, "ROLLBACK")
                    if e.pgcode not in RETRY:
                        fail(f"log: {name}", e)
            threads.append(threading.Thread(target=update))
            threads[-1].start()
        pids = [w.info.backend_pid for w in waiters]
        waits = [log.gets(rf"process {pid} still waiting for \w+ on .* after \d+\.\d+ ms\n.*DETAIL:  Process holding the lock: .*") for pid in pids]
        check(f"log: {name}: waits", all(waits), log.text())
        query(holder, "COMMIT")
        for t in threads:
            t.join()
        ends = [log.gets(rf"process {pid} acquired \w+ on .* after \d+\.\d+ ms\n") for pid in pids]
        check(f"log: {name}: their ends", all(ends), log.text())
        # Of heap the second waiter has none: its lock's name says which row.
        said = re.findall(r"CONTEXT:  while (.*)", log.text())
        check(f"log: {name}: what for", said and set(said) == {context} and len(said) >= (2 if name == "heap" else 4), log.text())
        for w in waiters:
            w.close()
    query(session, "SELECT mixedcc.unpin('m')")
    configure(session, log_lock_waits=None, deadlock_timeout=None)
    session.close()
    holder.close()


if __name__ == "__main__":
    boss = make_database(DATABASE)
    query(boss, "CREATE EXTENSION amcheck")
    for name in HEAP:
        query(boss, f"CREATE TABLE {name} (k int PRIMARY KEY, v int) USING heap; INSERT INTO {name} SELECT i, i FROM generate_series(1, 100) i")
    query(boss, "CLUSTER z_heap USING z_heap_pkey; CREATE TABLE m (k int PRIMARY KEY, v int, w int) USING mixedcc; CREATE INDEX m_v ON m (v); "
                "INSERT INTO m SELECT i, i, i FROM generate_series(1, 500) i; "
                "CREATE TABLE was_sorted (k int PRIMARY KEY) USING heap; CLUSTER was_sorted USING was_sorted_pkey; "
                "ALTER TABLE was_sorted SET ACCESS METHOD mixedcc; "
                "CREATE VIEW dead_rows AS SELECT sum(versions - rows)::int AS dead_rows FROM mixedcc.partitions WHERE \"table\" = 'm'::regclass")
    boss.close()
    try:
        main(maintenance, amcheck, amcheck_finds, autovacuum_log, lock_log)
    finally:
        drop_database(DATABASE)
