#!/usr/bin/python3
"""What a clean shutdown has saved is not lost: too little memory at a start, a start without the
library, files that cannot be used or are something else, kills while rows are saved or loaded, a
full disk. A table whose rows are in a file is an ERROR where it is used, not an empty table."""

import contextlib
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import time

import psycopg2

from lib import crash
from lib.common import check, connect, create_table, drop_database, equal, fail, main, make_database, must_come, query, server, tool, value, wait_until

DATABASE = "process_saved"
SMALL, LARGE, LAST = "s_small", "s_large", "s_last"
TABLES = (SMALL, LARGE, LAST)
LITTLE = "16MB"
PATH = {}


def file(name=""):
    return PATH["data"] / f"mixedcc.rows{name}"


def files():
    return sorted(p.name for p in PATH["data"].iterdir() if p.name.startswith("mixedcc."))


def unused():
    return [name for name in files() if ".unused." in name]


def configure(*lines):
    """Settings of the next start; those of scripts/lib.sh count where they are not named."""
    (PATH["data"] / "postgresql.auto.conf").write_text("".join(f"{line}\n" for line in lines))


def log_since(start):
    with open(PATH["log"], encoding="utf-8", errors="replace") as log:
        log.seek(start)
        return log.read()


def log_end():
    return os.path.getsize(PATH["log"])


def restart(*lines):
    server("stop")
    configure(*lines)
    server("start")


def fill(table, rows, width):
    query(CONNECTION(), f"TRUNCATE {table} CASCADE; INSERT INTO {table} SELECT i, i % 100, repeat('x', {width}) FROM generate_series(1, {rows}) i")


_session = []


def CONNECTION():
    """A session of the server that runs now."""
    if _session:
        try:
            value(_session[0], "SELECT 1")
            return _session[0]
        except psycopg2.Error:
            _session.clear()
    _session.append(connect(DATABASE))
    return _session[0]


def contents(table):
    return query(CONNECTION(), f"SELECT ctid::text, id, g, md5(v) FROM {table} ORDER BY id")


def agrees(table, what):
    c = CONNECTION()
    query(c, "SET enable_seqscan = off")
    by_index = value(c, f"SELECT count(*) FROM {table} WHERE g >= 0")
    query(c, "RESET enable_seqscan; SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off")
    by_scan = value(c, f"SELECT count(*) FROM {table} WHERE g >= 0")
    query(c, "RESET ALL")
    equal(f"saved: the index of {table} agrees {what}", by_index, by_scan)
    check(f"saved: so does its primary index {what}", value(c, "SELECT mixedcc.check_primary_index(%s)", (table,)) >= by_scan)


def error_of(sql):
    c = CONNECTION()
    try:
        query(c, sql)
    except psycopg2.Error as error:
        return error
    return None


def is_refused(table, what, code=None):
    """A use is an ERROR; returns its hint."""
    error = error_of(f"SELECT count(*) FROM {table}")
    refused = error is not None and "not in memory" in str(error) and table in str(error)
    check(f"saved: {table} is refused {what}", refused and code in (None, error.pgcode), error)
    return error.diag.message_hint if error else ""


def same(before, what, tables=TABLES):
    for table in tables:
        try:
            equal(f"saved: {table} is as before {what}", contents(table), before[table])
            agrees(table, what)
        except psycopg2.Error as error:
            fail(f"saved: {table} is as before {what}", error)


def state(tables=TABLES):
    return {table: contents(table) for table in tables}


def is_emptied(table, what):
    c = CONNECTION()
    del c.notices[:]
    equal(f"saved: {table} is empty {what}", value(c, f"SELECT count(*) FROM {table}"), 0)
    check(f"saved: {table} warns {what}", any("WARNING" in n and table in n for n in c.notices), c.notices)


def refill():
    for table, rows, width in ((SMALL, 2000, 10), (LARGE, 20000, 1000), (LAST, 1000, 10)):
        fill(table, rows, width)
    return state()


def test_set_up():
    boss = make_database(DATABASE)
    PATH["data"] = pathlib.Path(value(boss, "SHOW data_directory"))
    postmaster = (PATH["data"] / "postmaster.pid").read_text().split()[0]
    PATH["log"] = os.readlink(f"/proc/{postmaster}/fd/2")
    boss.close()
    for table in TABLES:
        create_table(CONNECTION(), table, "id int PRIMARY KEY, g int, v text", "UNLOGGED", partitions=2)
        query(CONNECTION(), f"CREATE INDEX {table}_g ON {table} (g)")
    query(CONNECTION(), f"CREATE UNLOGGED TABLE s_child (id int REFERENCES {LARGE}) USING heap")
    refill()


USES = [
    f"SELECT * FROM {LARGE} WHERE id = 1", f"SELECT count(*) FROM {LARGE}", f"INSERT INTO {LARGE} VALUES (-1)",
    f"UPDATE {LARGE} SET v = 'y'", f"DELETE FROM {LARGE} WHERE id = 1", f"CREATE INDEX ON {LARGE} (v)",
    f"COPY {LARGE} TO '/dev/null'", f"ANALYZE {LARGE}", f"REINDEX TABLE {LARGE}", f"EXPLAIN SELECT * FROM {LARGE}",
    "INSERT INTO s_child VALUES (1)", f"ALTER TABLE {LARGE} ALTER g TYPE bigint", f"SELECT * FROM {LARGE} FOR UPDATE",
    f"ALTER TABLE {LARGE} SET ACCESS METHOD heap", f"SELECT mixedcc.set_protocol('{LARGE}', '2pl')",
    f"ALTER TABLE {LARGE} SET (mixedcc.partitions = 4)", f"MERGE INTO {LARGE} USING (SELECT 1 AS i) s ON id = i WHEN MATCHED THEN DELETE",
    f"BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT * FROM {LARGE} WHERE id = 1",
]


def test_too_little_memory():
    before = refill()
    for turn in ("once", "twice"):
        what = f"with too little memory {turn}"
        restart(f"mixedcc.memory = '{LITTLE}'")
        same(before, what, (SMALL, LAST))
        hint = is_refused(LARGE, what, "53200")
        for use in USES:
            error = error_of(use)
            query(CONNECTION(), "ROLLBACK")
            check(f"saved: {what}: {use}", error is not None and error.pgcode == "53200", error)
        del CONNECTION().notices[:]
        query(CONNECTION(), "VACUUM")
        check(f"saved: VACUUM passes over it {what}", any("WARNING" in n and LARGE in n for n in CONNECTION().notices))
        check(f"saved: the file is kept {what}", wait_until(lambda: files() == ["mixedcc.rows.kept.1"]), files())
        query(CONNECTION(), f"UPDATE {SMALL} SET v = '{turn}' WHERE id % 2 = 0; DELETE FROM {LAST} WHERE id % 10 = 7")
        before.update(state((SMALL, LAST)))
    wanted = re.search(r"Set mixedcc.memory to (\d+) MB", hint or "")
    if not check("saved: the hint says how much memory", wanted, hint):
        return
    restart(f"mixedcc.memory = '{wanted[1]}MB'")
    same(before, f"with the {wanted[1]} MB of the hint")
    check("saved: no file is left", wait_until(lambda: files() == []), files())
    restart()
    same(before, "after another restart")


def test_given_up():
    """TRUNCATE and DROP of a table that is not there."""
    before = refill()
    fill(LAST, 20000, 1000)
    restart(f"mixedcc.memory = '{LITTLE}'")
    for table in (LARGE, LAST):
        is_refused(table, "before it is given up")
    query(CONNECTION(), f"BEGIN; TRUNCATE {LARGE} CASCADE")
    equal("saved: it is empty after TRUNCATE", value(CONNECTION(), f"SELECT count(*) FROM {LARGE}"), 0)
    query(CONNECTION(), "ROLLBACK")
    is_refused(LARGE, "after TRUNCATE was rolled back")
    query(CONNECTION(), f"BEGIN; SAVEPOINT a; TRUNCATE {LARGE} CASCADE; ROLLBACK TO a; COMMIT")
    is_refused(LARGE, "after a savepoint with TRUNCATE was rolled back")
    query(CONNECTION(), f"BEGIN; DROP TABLE {LAST}; ROLLBACK")
    is_refused(LAST, "after DROP was rolled back")
    query(CONNECTION(), f"TRUNCATE {LARGE} CASCADE")
    equal("saved: partitions are as before after TRUNCATE", value(CONNECTION(), f"SELECT count(*) FROM mixedcc.partitions WHERE \"table\" = '{LARGE}'::regclass"), 2)
    query(CONNECTION(), f"INSERT INTO {LARGE} SELECT i, i, 'new' FROM generate_series(1, 100) i; DROP TABLE {LAST}")
    before[LARGE] = contents(LARGE)
    agrees(LARGE, "after TRUNCATE")
    restart()
    same(before, "after TRUNCATE and DROP of what was not there", (SMALL, LARGE))
    check("saved: given up rows leave no file", wait_until(lambda: files() == []), files())
    create_table(CONNECTION(), LAST, "id int PRIMARY KEY, g int, v text", "UNLOGGED", partitions=2)
    query(CONNECTION(), f"CREATE INDEX {LAST}_g ON {LAST} (g)")


def test_other_databases():
    """DROP DATABASE, a copy, and ALTER DATABASE, of one with a table that is not there."""
    other = make_database("process_saved_other")
    create_table(other, "o", "id int PRIMARY KEY, v text", "UNLOGGED")
    query(other, "INSERT INTO o SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) i")
    other.close()
    before = refill()
    restart(f"mixedcc.memory = '{LITTLE}'")
    query(CONNECTION(), "SET allow_in_place_tablespaces = on")
    query(CONNECTION(), "CREATE TABLESPACE process_saved_space LOCATION ''")
    error = error_of("ALTER DATABASE process_saved_other SET TABLESPACE process_saved_space")
    check("saved: a database with such a table is not moved", error is not None and error.pgcode == "0A000", error)
    query(CONNECTION(), "DROP TABLESPACE process_saved_space")
    query(CONNECTION(), "CREATE DATABASE process_saved_copy TEMPLATE process_saved_other")
    copy = connect("process_saved_copy")
    equal("saved: a copy of it is empty", value(copy, "SELECT count(*) FROM o"), 0)
    check("saved: and says so", any("WARNING" in n for n in copy.notices), copy.notices)
    copy.close()
    for name in ("process_saved_copy", "process_saved_other"):
        query(CONNECTION(), f"DROP DATABASE {name}")
    restart()
    same(before, "after others were dropped")
    check("saved: a dropped database leaves no file", wait_until(lambda: files() == []), files())


def test_crash_with_absent():
    refill()
    restart(f"mixedcc.memory = '{LITTLE}'")
    is_refused(LARGE, "before a crash")
    server("kill9")
    configure()
    start = log_end()
    server("start")
    is_emptied(LARGE, "after a crash, as others are")
    is_emptied(SMALL, "after a crash")
    equal("saved: its file is kept", unused(), ["mixedcc.rows.unused.1"])
    check("saved: and named", "mixedcc.rows.unused.1" in log_since(start))
    file(".unused.1").unlink()


def test_without_library():
    """Twice, and other changes meanwhile."""
    before = refill()
    for turn in (1, 2):
        restart("shared_preload_libraries = ''")
        error = error_of(f"SELECT count(*) FROM {SMALL}")
        check(f"saved: nothing can be read without the library ({turn})", error is not None, error)
        query(CONNECTION(), f"CREATE TABLE s_heap_{turn} USING heap AS SELECT 1; CHECKPOINT")
        equal(f"saved: the file stays ({turn})", files(), ["mixedcc.rows"])
    restart()
    same(before, "after two starts without the library")
    check("saved: then it is deleted", wait_until(lambda: files() == []), files())
    query(CONNECTION(), f"UPDATE {SMALL} SET v = 'changed'")
    before = state()
    restart()
    same(before, "after changes and another restart")


def test_crash_without_library():
    refill()
    restart("shared_preload_libraries = ''")
    server("kill9")
    server("start")
    start = log_end()
    restart()
    for table in TABLES:
        is_emptied(table, "after a crash without the library")
    equal("saved: the file is kept", unused(), ["mixedcc.rows.unused.1"])
    check("saved: and named in the log", "mixedcc.rows.unused.1" in log_since(start))
    file(".unused.1").unlink()


def test_start_that_fails():
    """The rows are loaded, and then the start fails: the next one loads them again."""
    before = refill()
    hba = PATH["data"] / "pg_hba.conf"
    right = hba.read_text()
    for without in (False, True):
        if without:
            restart("shared_preload_libraries = ''")
        server("stop")
        configure()
        hba.write_text("nonsense\n")
        for turn in (1, 2):
            start = log_end()
            failed = subprocess.run([os.path.join(os.environ["PGBIN"], "pg_ctl"), "-D", PATH["data"], "-w", "-l", PATH["log"], "start"],
                                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
            check(f"saved: a start fails after it has loaded rows ({turn})", failed and "mixedcc loaded" in log_since(start), log_since(start))
        hba.write_text(right)
        server("start")
        same(before, "after starts that failed" + (", the first without the library" if without else ""))


def test_file_put_back():
    """The file is away, or an older one in its place; then the right one again."""
    refill()
    server("stop")
    shutil.copy(file(), file(".older"))
    server("start")
    query(CONNECTION(), f"UPDATE {SMALL} SET v = 'newer'")
    before = state()
    server("stop")
    file().rename(file(".right"))
    server("start")
    for table in TABLES:
        is_refused(table, "without its file", "55000")
    server("stop")
    file(".older").rename(file())
    server("start")
    for table in TABLES:
        is_refused(table, "with an older file", "55000")
    equal("saved: an older file is kept", unused(), ["mixedcc.rows.unused.1"])
    file(".unused.1").unlink()
    query(CONNECTION(), f"TRUNCATE {LAST}; INSERT INTO {LAST} VALUES (1, 1, 'after')")
    before[LAST] = contents(LAST)
    server("stop")
    file().rename(file(".kept.3"))
    file(".right").rename(file())
    server("start")
    same(before, "with the right file again")
    equal("saved: what it had of a table that was truncated meanwhile is kept", unused(), ["mixedcc.rows.unused.1"])
    file(".unused.1").unlink()


def make_odd(path, kind):
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "link" else "nowhere")


def remove(path):
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_odd_files():
    """A FIFO, a directory, a symbolic link, in place of the files."""
    before = refill()
    for kind in ("fifo", "directory", "link", "dangling link"):
        for name in ("", ".tmp"):
            server("stop")
            file().rename(file(".right"))
            if name:
                file(".right").rename(file())
            make_odd(file(name), kind)
            start = log_end()
            server("start")
            what = f"with a {kind} as mixedcc.rows{name}"
            check(f"saved: the log says so {what}", "not a regular file" in log_since(start), log_since(start))
            equal(f"saved: it is renamed {what}", unused(), ["mixedcc.rows.unused.1"])
            remove(file(".unused.1"))
            if not name:
                is_refused(SMALL, what, "55000")
                server("stop")
                file(".right").rename(file())
                server("start")
            same(before, what)
            # And while the server runs.
            must_come(lambda: files() == [])
            make_odd(file(name), kind)
            server("stop")
            equal(f"saved: rows are saved in spite of it {what}", files(), ["mixedcc.rows", "mixedcc.rows.unused.1"])
            remove(file(".unused.1"))
            server("start")
            same(before, f"after a shutdown {what}")
            must_come(lambda: files() == [])


def test_damage():
    """Tables in front of it are loaded, the others refused, and the file is kept."""
    before = refill()
    server("stop")
    size = file().stat().st_size
    with open(file(), "r+b") as damaged:
        damaged.seek(size // 2)
        byte = damaged.read(1)[0]
        damaged.seek(-1, os.SEEK_CUR)
        damaged.write(bytes([byte ^ 1]))
    server("start")
    refused = 0
    for table in TABLES:
        if error_of(f"SELECT count(*) FROM {table}"):
            is_refused(table, "after damage", "55000")
            refused += 1
        else:
            same(before, "in front of the damage", (table,))
    check("saved: damage is noticed", refused > 0)
    equal("saved: a damaged file is kept", unused(), ["mixedcc.rows.unused.1"])
    file(".unused.1").unlink()
    server("stop")
    server("start")
    is_refused(LARGE, "after damage, and another restart", "55000")


def test_no_stamps():
    """As version 0.1.0 has saved them: the file is that of this shutdown, and no table is
    stamped."""
    before = refill()
    paths = [PATH["data"] / value(CONNECTION(), f"SELECT pg_relation_filepath('{table}')") for table in TABLES]
    for little in (False, True):
        server("stop")
        for path in paths:
            check("saved: a table has a stamp", path.stat().st_size == 8192)
            path.write_bytes(b"")
        configure(*([f"mixedcc.memory = '{LITTLE}'"] if little else []))
        server("start")
        if little:
            is_refused(LARGE, "without a stamp", "53200")
            restart()
        same(before, "without stamps" + (", after a start with too little memory" if little else ""))


def postmaster():
    return int((PATH["data"] / "postmaster.pid").read_text().split()[0])


def control_state():
    return re.search(r"cluster state:\s+(.*)", tool("pg_controldata", "-D", PATH["data"]))[1]


def kill_postmaster(pid):
    """SIGKILL, as scripts/server does it. Its children end by themselves: one may open the server
    for business meanwhile, in the control file."""
    children = []
    with contextlib.suppress(ProcessLookupError):  # all is saved, and it has ended
        os.kill(pid, signal.SIGSTOP)
        must_come(lambda: crash.is_stopped(pid) or not crash.is_running(pid))  # it forks no more
        children = crash.children(pid)
        os.kill(pid, signal.SIGKILL)
    for one in (*children, pid):
        crash.await_end(one)
    for left in (PATH["data"] / "postmaster.pid", pathlib.Path(os.environ["PGHOST"]) / f".s.PGSQL.{os.environ['PGPORT']}.lock"):
        left.unlink(missing_ok=True)


def test_kill_while_saving():
    for turn in range(4):
        before = refill()
        must_come(lambda: files() == [])
        pid = postmaster()
        os.kill(pid, signal.SIGINT)
        end = time.monotonic() + 60
        while not file(".tmp").exists() and not file().exists():
            if time.monotonic() > end:
                raise RuntimeError("no rows are saved")
        time.sleep(turn * 0.006)
        kill_postmaster(pid)
        saved, state_then = file().exists(), control_state()
        server("start")
        equal(f"saved: the shutdown was complete ({turn})", state_then, "shut down")
        for table in TABLES:
            found = contents(table)
            if saved or found:
                same(before, f"after a kill while rows were saved ({turn})", (table,))
        check(f"saved: what was being saved is gone or named ({turn})", wait_until(lambda: set(files()) <= {"mixedcc.rows.unused.1"}), files())
        file(".unused.1").unlink(missing_ok=True)


def test_kill_while_loading():
    early = late = 0
    for turn in range(8):
        before = refill()
        server("stop")
        start = log_end()
        ctl = subprocess.Popen([os.path.join(os.environ["PGBIN"], "pg_ctl"), "-D", PATH["data"], "-W", "-l", PATH["log"], "start"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        ctl.wait()
        must_come(lambda: (PATH["data"] / "postmaster.pid").exists())
        if turn % 2:
            must_come(lambda: "mixedcc loaded" in log_since(start))
            if turn == 7:
                must_come(lambda: control_state() != "shut down")
        else:
            time.sleep(turn * 0.01)
        kill_postmaster(postmaster())
        if control_state() == "shut down":
            early += 1
            server("start")
            same(before, f"after a kill while rows were loaded ({turn})")
        else:
            late += 1
            server("start")
            for table in TABLES:
                is_emptied(table, f"after a kill when rows were loaded ({turn})")
        for name in unused():
            file(name.removeprefix("mixedcc.rows")).unlink()
    check("saved: some kills came before the server had opened", early > 0, (early, late))
    check("saved: some kills came when it had", late > 0, (early, late))


def test_full_disk():
    """Nothing can be saved; what an earlier shutdown has saved, and is not loaded, stays."""
    refill()
    fill(LARGE, 60000, 1000)
    large = contents(LARGE)
    restart("mixedcc.memory = '48MB'")
    is_refused(LARGE, "before the disk is full")
    fill(LAST, 25000, 1000)
    start = log_end()
    most = 18 << 20
    resource.prlimit(postmaster(), resource.RLIMIT_FSIZE, (most, most))
    restart()
    check("saved: the log says that the disk was full", "could not save the rows" in log_since(start), log_since(start))
    is_emptied(SMALL, "after a shutdown on a full disk")
    is_emptied(LAST, "after a shutdown on a full disk")
    equal("saved: a table that was not loaded is as before", contents(LARGE), large)
    agrees(LARGE, "after a full disk")
    before = refill()
    restart()
    same(before, "after a restart that follows")
    for name in unused():
        file(name.removeprefix("mixedcc.rows")).unlink()


def test_end():
    configure()
    drop_database(DATABASE)


if __name__ == "__main__":
    main(test_set_up, test_too_little_memory, test_given_up, test_other_databases, test_crash_with_absent, test_without_library,
         test_crash_without_library, test_start_that_fails, test_file_put_back, test_odd_files, test_damage, test_no_stamps,
         test_kill_while_saving, test_kill_while_loading, test_full_disk, test_end)
