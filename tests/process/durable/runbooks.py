#!/usr/bin/python3
"""Executes docs/runbooks.md: each step of each runbook, in the order of the document, on servers of
its own. A test makes the trouble, the document's steps mend it, and the rows are compared. It fails
for a runbook without a test, for a step that no test executes, and for one that fails. What the
document says that users see is compared with what they see."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

import psycopg2

from lib.common import ROOT, check, equal, keep_long, main, must_come, query, value

DOCUMENT = "docs/runbooks.md"
ROWS = 3000
ALL = "SELECT count(*), sum(n), sum(length(t)) FROM stock"


def runbooks():
    """Title to steps (language, text)."""
    text = (ROOT / DOCUMENT).read_text(encoding="utf-8")
    found = {}
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        title, _, body = part.partition("\n")
        found[title] = re.findall(r"^```(\w+)\n(.*?)^```$", body, flags=re.M | re.S)
    return found


class Steps:
    """The steps of a runbook, which are executed in turn."""

    def __init__(self, title, steps, place):
        self.title, self.left, self.place, self.number = title, list(steps), place, 0

    def next(self, kind):
        if not self.left or self.left[0][0] != kind:
            raise RuntimeError(f"{self.title}: the step {self.number + 1} is not {kind}: {self.left[:1]}")
        self.number += 1
        return self.left.pop(0)[1]

    def sees(self, seen):
        """The next step is a text. Each of its lines begins a line that was seen. Newer versions of
        PostgreSQL put names of settings in quotation marks."""
        seen = seen.replace('"shared_preload_libraries"', "shared_preload_libraries")
        for line in self.next("text").splitlines():
            pattern = re.escape(line).replace('"N"', '".*"')
            pattern = re.sub(r"\bN\b", r"\\d+", pattern)
            check(f"{self.title}: {self.number}: what users see: {line[:50]}", re.search(pattern, seen), f"{pattern}\n{seen}")

    def sql(self):
        return self.run(["psql", "-X", "-v", "ON_ERROR_STOP=1", "-f", "-"], self.next("sql"))

    def sh(self):
        # A server that a step starts must not keep the pipe.
        return self.run(["bash", "-eu", "-s"], self.next("sh"))

    def run(self, command, text):
        with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
            done = subprocess.run(command, input=text, text=True, stdout=output, stderr=subprocess.STDOUT,
                                  env=self.place.environment(), timeout=120)
            output.seek(0)
            seen = output.read()
        check(f"{self.title}: the step {self.number} works", done.returncode == 0, f"{text}\n{seen}")
        return seen


class Place:
    """A directory with a server and, perhaps, a copy of it."""

    def __init__(self):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="mcr-", dir="/tmp"))
        self.data, self.log = self.home / "data", self.home / "log"
        for name in ("run", "run2", "keep"):
            (self.home / name).mkdir()
        self.tool("initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-N", "-k")
        self.set(unix_socket_directories=self.home / "run", listen_addresses="", shared_buffers="16MB", max_connections=20,
                 shared_preload_libraries="mixedcc", **{"mixedcc.memory": "64MB"},
                 wal_keep_size="512MB", autovacuum="off")
        self.control("start")
        boss = self.connect("postgres")
        query(boss, "CREATE DATABASE shop")
        boss.close()
        self.boss = self.connect()
        query(self.boss, "CREATE EXTENSION mixedcc")

    def environment(self):
        path = os.environ["PGBIN"] + os.pathsep + os.environ["PATH"]
        return {**{k: v for k, v in os.environ.items() if not k.startswith("PG")}, "PATH": path, "PGDATA": str(self.data),
                "PGHOST": str(self.home / "run"), "PGUSER": "postgres", "PGDATABASE": "shop", "PGLOG": str(self.log),
                "KEEP": str(self.home / "keep"), "COPY": str(self.home / "copy"), "COPYHOST": str(self.home / "run2")}

    def tool(self, *command, can_fail=False):
        command = [str(word) for word in command]
        with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
            done = subprocess.run(command, env=self.environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
            output.seek(0)
            seen = output.read()
        if done.returncode != 0 and not can_fail:
            raise RuntimeError(f"{command}: {seen}")
        return seen

    def control(self, *words, data=None, can_fail=False):
        data = data or self.data
        return self.tool("pg_ctl", "-D", data, "-l", self.log if data == self.data else data / "log", "-w", "-t", "60", *words, can_fail=can_fail)

    def set(self, **settings):
        with open(self.data / "postgresql.auto.conf", "a", encoding="ascii") as file:
            file.writelines(f"{name} = '{text}'\n" for name, text in settings.items())

    def connect(self, database="shop", host="run"):
        connection = psycopg2.connect(host=str(self.home / host), user="postgres", dbname=database)
        connection.autocommit = True
        return connection

    def again(self):
        """The server was restarted."""
        self.boss.close()
        self.boss = self.connect()

    def copy(self, *options):
        """A standby, which runs."""
        self.tool("pg_basebackup", "-D", self.home / "copy", "-c", "fast", "-R", *options)
        self.control("start", "-o", f"-k {self.home}/run2", data=self.home / "copy")

    def since(self, do):
        """What the server has logged since."""
        before = self.log.stat().st_size
        do()
        return self.log.read_text(encoding="utf-8")[before:]

    def make_stock(self, rows=ROWS, width=100):
        query(self.boss, "CREATE TABLE stock (id int PRIMARY KEY, n int, t text) USING mixedcc")
        keep_long(self.boss, "stock", "t")
        query(self.boss, f"INSERT INTO stock SELECT i, i, repeat('s', {width}) FROM generate_series(1, {rows}) i")
        query(self.boss, "UPDATE stock SET n = n + 1 WHERE id % 3 = 0")

    def error_of(self, sql):
        """As psql shows it."""
        return self.tool("psql", "-X", "-c", sql, can_fail=True)

    def remove(self):
        self.boss.close()
        for data in (self.home / "copy", self.data):
            if (data / "postmaster.pid").exists():
                self.control("stop", "-m", "immediate", data=data, can_fail=True)
        shutil.rmtree(self.home, ignore_errors=True)


# --- the runbooks ---------------------------------------------------------------

def region_full(place, steps):
    place.make_stock()
    query(place.boss, "CREATE UNLOGGED TABLE other (id int PRIMARY KEY, t text) USING mixedcc")
    reader = place.connect()
    query(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    query(reader, "SELECT count(*) FROM stock")
    query(place.boss, "DO $$ BEGIN FOR i IN 1..1500 LOOP UPDATE stock SET n = n WHERE id = 1; COMMIT; END LOOP; END $$")
    seen = ""
    for first in range(0, 1_000_000, 200):
        seen = place.error_of(f"INSERT INTO stock SELECT i, 1, repeat('x', 9000) FROM generate_series({first + 10_000}, {first + 10_199}) i")
        if "ERROR" in seen:
            break
    steps.sees(seen)
    before = query(place.boss, ALL)
    steps.sql()
    steps.sql()
    check("region full: the reader was ended", is_closed(reader))
    equal("region full: nothing is lost", query(place.boss, ALL), before)
    steps.sql()
    count = value(place.boss, "SELECT count(*) FROM stock")
    equal("region full: the batch is deleted", count, before[0][0] - 100)
    query(place.boss, "INSERT INTO stock SELECT i, 1, repeat('x', 9000) FROM generate_series(5001, 5050) i")
    steps.sql()
    before = query(place.boss, ALL)
    steps.sh()
    place.again()
    equal("region full: all is there after the restart", query(place.boss, ALL), before)
    query(place.boss, "INSERT INTO stock SELECT i, 1, repeat('x', 9000) FROM generate_series(6001, 6500) i")
    before = query(place.boss, ALL)
    place.boss.close()
    place.control("restart", "-m", "immediate")
    place.again()
    equal("region full: and after a crash", query(place.boss, ALL), before)


def kept(place, steps):
    query(place.boss, "ALTER SYSTEM SET max_prepared_transactions = 5")
    place.boss.close()
    place.control("restart")
    place.again()
    place.make_stock()
    for number, row in ((17, 1), (18, 2)):
        query(place.boss, f"BEGIN; SELECT FROM stock WHERE id = 3 FOR SHARE; UPDATE stock SET n = -{number} WHERE id = {row}; PREPARE TRANSACTION 'order {number}'")
    place.boss.close()
    place.control("restart", "-m", "immediate")
    place.again()
    steps.sees(place.error_of("SET lock_timeout = '100ms'; UPDATE stock SET n = n WHERE id = 4"))
    waits = threading.Thread(target=place.error_of, args=("UPDATE stock SET n = n WHERE id = 5",))
    waits.start()
    must_come(lambda: value(place.boss, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") == 1)
    seen = steps.sql()
    check("kept: the first step shows them", all(re.search(rf"order {number} .*\| stock", seen) for number in (17, 18)), seen)
    check("kept: and who waits", "UPDATE stock SET n = n WHERE id = 5" in seen, seen)
    steps.sql()
    waits.join()
    equal("kept: one is committed", query(place.boss, "SELECT n FROM stock WHERE id IN (1, 2) ORDER BY id"), [(-17,), (2,)])


def is_closed(connection):
    try:
        query(connection, "SELECT 1")
        return False
    except psycopg2.Error:
        return True


class Committer:
    """A psql that commits into stock, and waits for the standby."""

    def __init__(self, place, number):
        environment = {**place.environment(), "PGOPTIONS": "-c synchronous_commit=on"}
        sql = f"UPDATE stock SET n = -{number} WHERE id = {number}"
        self.process = subprocess.Popen(["psql", "-X", "-c", sql], env=environment, text=True, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.place = place
        must_come(self.waits)

    def waits(self):
        return value(self.place.boss, "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")

    def pid(self):
        return value(self.place.boss, "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")

    def end(self):
        return self.process.communicate(timeout=30)[0]


def standby(place, steps):
    query(place.boss, "SET synchronous_commit = local")
    place.make_stock()
    # Not by ALTER SYSTEM: the document's RESET is to bring it back.
    with open(place.data / "postgresql.conf", "a", encoding="ascii") as file:
        file.write("synchronous_standby_names = 'receiver'\n")
    query(place.boss, "SELECT pg_reload_conf()")
    receiver = None
    try:
        hangs = Committer(place, 7)
        equal("standby: readers do not see it, and do not wait", value(place.boss, "SELECT n FROM stock WHERE id = 7"), 7)
        seen = steps.sql()
        check("standby: the first step shows it", "UPDATE stock" in seen)
        check("standby: mixedcc.durability has its commit", re.search(rf"\b{hangs.pid()} \|.*\| SyncRep", seen), seen)
        steps.sql()
        check("standby: without a standby COMMIT returns", "UPDATE 1" in hangs.end())
        equal("standby: all see it", value(place.boss, "SELECT n FROM stock WHERE id = 7"), -7)
        query(place.boss, "ALTER SYSTEM RESET synchronous_standby_names")
        query(place.boss, "SELECT pg_reload_conf()")
        hangs = Committer(place, 8)
        steps.sql()
        steps.sees(hangs.end())
        receiver = subprocess.Popen(["pg_receivewal", "-D", str(place.home / "keep"), "--synchronous", "--no-loop", "-d", "application_name=receiver"],
                                    env=place.environment(), stdin=subprocess.DEVNULL)
        must_come(lambda: value(place.boss, "SELECT count(*) FROM pg_stat_replication") == 1)
        steps.sql()
        must_come(lambda: value(place.boss, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1)
        check("standby: it is synchronous again", re.search(r"receiver +\| sync", steps.sql()))
        query(place.boss, "SET synchronous_commit = on")
        query(place.boss, "UPDATE stock SET n = -9 WHERE id = 9")
        equal("standby: all rows", query(place.boss, "SELECT id, n FROM stock WHERE id IN (7, 8, 9) ORDER BY 1"), [(7, -7), (8, -8), (9, -9)])
    finally:
        if receiver:
            receiver.send_signal(signal.SIGTERM)
            receiver.wait(30)


def checkpoint_held(place, steps):
    place.make_stock(rows=50_000, width=400)
    query(place.boss, "CHECKPOINT")
    path = place.data / value(place.boss, "SELECT pg_relation_filepath('stock')")
    pid = value(place.boss, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'mixedcc companion'")
    # As a full disk: the companion can extend no file beyond the size of this one.
    place.tool("prlimit", "--pid", pid, f"--fsize={path.stat().st_size}:")
    query(place.boss, "UPDATE stock SET n = -id WHERE id % 3 = 0")
    before = query(place.boss, ALL)
    at = value(place.boss, "SELECT redo_lsn FROM pg_control_checkpoint()")
    checkpoint = threading.Thread(target=lambda: query(place.connect(), "CHECKPOINT"), daemon=True)

    def is_told():
        return "could not write images" in place.log.read_text(encoding="utf-8")

    checkpoint.start()
    must_come(is_told)
    must_come(lambda: "will try again" in place.log.read_text(encoding="utf-8"))
    steps.sees(place.log.read_text(encoding="utf-8"))
    check("checkpoint: the log says why", "could not write images" in steps.sh())
    must_come(lambda: value(place.boss, "SELECT activity = 'failed' FROM mixedcc.durability"))
    seen = steps.sql()
    check("checkpoint: the workers are shown", "mixedcc companion" in seen)
    check("checkpoint: mixedcc.durability says why it is held",
          # It tries once a second, and fails soon.
          re.search(r"(?:failed|imaging) +\| \d+:\S+ +\| \d+:\S+ +\| +1 \| +\d{5} \| +[1-9]", seen), seen)
    check("checkpoint: it is held", checkpoint.is_alive())
    place.tool("prlimit", "--pid", pid, "--fsize=unlimited:")
    seen = steps.sql()
    check("checkpoint: it is held no more", re.search(r"^ t +\| \d{4}-\S+ \S+ +\| +0$", seen, re.M), seen)
    checkpoint.join(30)
    check("checkpoint: it was released", value(place.boss, "SELECT redo_lsn > %s FROM pg_control_checkpoint()", (at,)))
    steps.sh()
    place.again()
    equal("checkpoint: all is there", query(place.boss, ALL), before)


def damaged_page(place, steps):
    place.make_stock()
    query(place.boss, "CHECKPOINT")
    place.copy()
    query(place.boss, "UPDATE stock SET n = n + 5 WHERE id < 100")
    before = query(place.boss, ALL)
    lsn = value(place.boss, "SELECT pg_current_wal_flush_lsn()")
    standby_ = place.connect(host="run2")
    must_come(lambda: value(standby_, "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (lsn,)))
    standby_.close()
    path = place.data / value(place.boss, "SELECT pg_relation_filepath('stock')")
    place.boss.close()
    # The sum of PostgreSQL is right again: only ours finds the damage.
    place.control("stop", "-m", "fast")
    place.tool("pg_checksums", "--disable", "-D", place.data)
    with open(path, "r+b") as file:
        file.seek(8192 + 4000)
        old = file.read(1)
        file.seek(8192 + 4000)
        file.write(bytes([old[0] ^ 255]))
    place.control("start")
    place.again()
    steps.sees(place.error_of("SELECT count(*) FROM stock"))
    steps.sh()
    kept = [p for p in (place.home / "keep" / "damaged").iterdir() if p.name == path.name]
    check("damaged: the file was kept", kept and kept[0].stat().st_size == path.stat().st_size, kept)
    steps.sh()
    steps.sh()
    check("damaged: the rows are counted", f"{before[0][0]}" in steps.sql())
    equal("damaged: they are all there", query(place.boss, ALL), before)


def not_loaded(place, steps):
    place.make_stock(rows=40_000, width=900)
    query(place.boss, "CREATE TABLE small AS SELECT i FROM generate_series(1, 100) i")
    query(place.boss, "CREATE TABLE little (id int PRIMARY KEY) USING mixedcc")
    query(place.boss, "INSERT INTO little SELECT generate_series(1, 100)")
    before = query(place.boss, ALL)
    query(place.boss, "ALTER SYSTEM SET mixedcc.memory = '24MB'")
    place.control("restart", "-m", "fast")
    place.again()
    steps.sees(place.error_of("SELECT count(*) FROM stock"))
    equal("not loaded: others work", value(place.boss, "SELECT count(*) FROM little"), 100)
    check("not loaded: the table is named", "stock" in steps.sql())
    steps.sql()
    steps.sh()
    place.again()
    check("not loaded: it can be used", str(before[0][0]) in steps.sql())
    equal("not loaded: all rows are there", query(place.boss, ALL), before)


def smaller_host(place, steps):
    place.make_stock(rows=40_000, width=900)
    query(place.boss, "CREATE TABLE little (id int PRIMARY KEY) USING mixedcc")
    query(place.boss, "INSERT INTO little SELECT generate_series(1, 100)")
    before = query(place.boss, ALL)
    steps.sh()
    copy = place.connect(host="run2")
    equal("smaller: tables that fit work", value(copy, "SELECT count(*) FROM little"), 100)
    check("smaller: the others are refused", "needs about" in place.tool("psql", "-X", "-h", place.home / "run2", "-c", "TABLE stock", can_fail=True))
    copy.close()
    steps.sh()
    copy = place.connect(host="run2")
    equal("smaller: all rows are there as heap", query(copy, ALL), before)
    equal("smaller: and those of others", value(copy, "SELECT count(*) FROM little"), 100)
    copy.close()


def without_library(place, steps):
    place.make_stock()
    before = query(place.boss, ALL)
    place.boss.close()
    place.control("stop", "-m", "immediate")
    place.set(shared_preload_libraries="")
    steps.sees(place.since(lambda: place.control("start", can_fail=True)))
    steps.sh()
    place.again()
    check("library: the rows are there", str(before[0][0]) in steps.sql())
    equal("library: all of them", query(place.boss, ALL), before)
    place.boss.close()
    place.control("stop", "-m", "fast")
    place.set(shared_preload_libraries="")
    place.control("start")
    place.again()
    steps.sees(place.error_of("SELECT count(*) FROM stock"))
    place.set(shared_preload_libraries="mixedcc")
    place.control("restart", "-m", "fast")
    place.again()
    equal("library: all is there again", query(place.boss, ALL), before)


def same_id(place, steps):
    place.make_stock()
    before = query(place.boss, ALL)
    source = place.home / "build"
    shutil.copytree(ROOT / "tests/process/durable/other_manager", source)
    place.tool("make", "-s", "-C", source, f"PG_CONFIG={os.environ['PGBIN']}/pg_config")
    place.boss.close()
    place.control("stop", "-m", "fast")
    place.set(shared_preload_libraries=f"{source}/other_manager, mixedcc")
    steps.sees(place.since(lambda: place.control("start", can_fail=True)))
    check("same id: the log names the other one", "other manager" in steps.sh())
    place.again()
    equal("same id: all is there", query(place.boss, ALL), before)


def rewind(place, steps):
    place.make_stock()
    place.copy()
    must_come(lambda: value(place.boss, "SELECT count(*) FROM pg_stat_replication") == 1)
    query(place.boss, "UPDATE stock SET n = n + 1")
    lsn = value(place.boss, "SELECT pg_current_wal_insert_lsn()")
    query(place.boss, "CHECKPOINT")
    copy = place.connect(host="run2")
    must_come(lambda: value(copy, "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (lsn,)))
    copy.close()
    # The old primary goes on alone: the copy hears no more of it.
    receiver = place.tool("psql", "-X", "-At", "-h", place.home / "run2", "-c", "SELECT pid FROM pg_stat_wal_receiver").strip()
    os.kill(int(receiver), signal.SIGSTOP)
    query(place.boss, "UPDATE stock SET n = 0 WHERE id < 1000")
    query(place.boss, "CHECKPOINT")
    place.boss.close()
    threading.Timer(2, os.kill, (int(receiver), signal.SIGCONT)).start()
    steps.sh()
    copy = place.connect(host="run2")
    query(copy, "UPDATE stock SET n = -n WHERE id > 2000")
    wanted = query(copy, ALL)
    lsn = value(copy, "SELECT pg_current_wal_flush_lsn()")
    place.again()
    must_come(lambda: value(place.boss, "SELECT count(*) FROM pg_stat_wal_receiver") == 1)
    check("rewind: it follows", re.search(r"t +\| streaming", steps.sql()))
    query(copy, "CHECKPOINT")
    must_come(lambda: value(place.boss, "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (lsn,)))
    copy.close()
    place.control("stop", "-m", "fast", data=place.home / "copy")
    place.control("promote")
    equal("rewind: promoted, it has what the new primary had", query(place.boss, ALL), wanted)


def in_wal(place, steps):
    query(place.boss, "CREATE TABLE plain (id int, t text) USING mixedcc")
    place.make_stock()
    query(place.boss, "CHECKPOINT")
    query(place.boss, "UPDATE stock SET n = 1 WHERE id = 1")
    query(place.boss, "INSERT INTO stock VALUES (-1, 0, '')")
    query(place.boss, "INSERT INTO plain VALUES (1, 'x')")
    check("wal: pg_waldump counts our records", "custom128" in steps.sh())
    seen = steps.sql()
    check("wal: pg_walinspect names them", all(name in seen for name in ("COMMIT", "XCOMMIT", "csn")), seen)


TESTS = {
    "The region is full": region_full,
    "A standby hangs": standby,
    "A checkpoint is held": checkpoint_held,
    "A page is damaged": damaged_page,
    "A table was not loaded": not_loaded,
    "A table waits for prepared transactions": kept,
    "Restore to a smaller host": smaller_host,
    "A host without the library": without_library,
    "Another extension has the same resource manager id": same_id,
    "pg_rewind": rewind,
    "Records in WAL": in_wal,
}


def test_of(title, steps):
    def test():
        place = Place()
        try:
            own = Steps(title, steps, place)
            TESTS[title](place, own)
            check(f"{title}: all steps were executed", not own.left, own.left)
        finally:
            place.remove()

    test.__name__ = title
    return test


def run():
    found = runbooks()
    equal("each runbook has a test, and each test a runbook", list(found), list(TESTS))
    wanted = sys.argv[1:]
    main(*[test_of(title, steps) for title, steps in found.items()
           if title in TESTS and (not wanted or any(word in title for word in wanted))])


if __name__ == "__main__":
    run()
