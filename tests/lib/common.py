"""What the process tests share: connections, the server's control, reports.

Environment: PGHOST, PGPORT, PGUSER and PGBIN name the server; MIXEDCC_SERVER_CTL
is a command with the arguments start, stop, restart, kill9, crash (default:
scripts/server); MIXEDCC_SECONDS is the time that a timed part may take;
MIXEDCC_METHOD=heap runs what heap can do too, to test the tests.
"""

import contextlib
import io
import multiprocessing
import os
import pathlib
import subprocess
import sys
import time
import traceback

import psycopg2
import psycopg2.errors
import psycopg2.extensions

METHOD = os.environ.get("MIXEDCC_METHOD", "mixedcc")
OURS = METHOD == "mixedcc"
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SERVER_CTL = os.environ.get("MIXEDCC_SERVER_CTL", str(ROOT / "scripts" / "server"))
RETRY = ("40001", "40P01")
# The session ends, or the server.
TERMINATED = ("57P01", "57P02")

# Processes that tests start have what the tests' modules have at that moment. Newer versions of
# Python start them from nothing otherwise.
multiprocessing.set_start_method("fork")

failures = []
# Functions that print what helps to understand why a test has failed.
at_failure = []


def ok(name):
    print(f"ok {name}", flush=True)


def fail(name, detail=""):
    failures.append(name)
    print(f"FAIL {name}", flush=True)
    if detail:
        print("  " + str(detail).strip().replace("\n", "\n  "), flush=True)


def check(name, condition, detail=""):
    if condition:
        ok(name)
    else:
        fail(name, detail)
    return condition


def premise(name, condition, detail=""):
    """What the test has brought about, without which its checks say nothing."""
    if not condition:
        raise RuntimeError(f"not so: {name} {detail}")
    ok(name)


def fail_by(error, name, detail):
    """A test ends with an error. Only a damaged table is what one of its checks would have found,
    and has a name as a check has."""
    damaged = isinstance(error, (psycopg2.errors.DataCorrupted, psycopg2.errors.IndexCorrupted))
    fail(f"{name}: no table is damaged" if damaged else name, detail)


def must_be_found(fault, check_name, test):
    """This check of the test fails with the fault, which is on. Another error finds nothing."""
    said, known, failed = io.StringIO(), len(failures), []
    with contextlib.redirect_stdout(said):
        try:
            test()
        except (RuntimeError, psycopg2.Error) as error:
            print(repr(error))
        finally:
            failed = failures[known:]
            del failures[known:]
    check(f"found: {fault}", check_name in failed, said.getvalue())


def equal(name, got, wanted):
    """Long values are shown from shortly before their first difference."""
    if got == wanted:
        ok(name)
        return True
    got, wanted = str(got), str(wanted)
    same = len(os.path.commonprefix([got, wanted]))
    start = max(0, same - 300)
    fail(name, f"got    {got[start:start + 1000]}\nwanted {wanted[start:start + 1000]}")
    return False


def main(*tests):
    """Runs each test; an exception fails it and the next one goes on."""
    for test in tests:
        try:
            test()
        except Exception:
            fail(test.__name__, traceback.format_exc())
            for tell in at_failure:
                tell()
    sys.exit(1 if failures else 0)


def server(command):
    subprocess.run([SERVER_CTL, command], check=True, stdin=subprocess.DEVNULL)


def tool(name, *arguments, **keywords):
    """Runs one of PostgreSQL's programs; returns its output."""
    path = os.path.join(os.environ["PGBIN"], name)
    done = subprocess.run([path, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **keywords)
    if done.returncode != 0:
        raise RuntimeError(f"{name} {' '.join(arguments)}: {done.stderr}")
    return done.stdout + done.stderr


def connect(database, isolation=None, options=""):
    connection = psycopg2.connect(dbname=database, options=options, application_name="process test")
    if isolation is None:
        connection.autocommit = True
    else:
        connection.set_session(isolation_level=isolation)
    return connection


def query(connection, sql, parameters=None):
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else None


def value(connection, sql, parameters=None):
    return query(connection, sql, parameters)[0][0]


def wal_since(connection):
    """What stands behind FROM for pg_walinspect's records since an LSN, its parameter."""
    if connection.server_version >= 160000:
        return "pg_get_wal_records_info(%s, 'FFFFFFFF/FFFFFFFF')"
    return "pg_get_wal_records_info_till_end_of_wal(%s)"


def make_database(name):
    """An empty database with the access method; returns a connection to it."""
    boss = connect("postgres")
    query(boss, f"DROP DATABASE IF EXISTS {name}")
    query(boss, f"CREATE DATABASE {name} TEMPLATE template0")
    boss.close()
    connection = connect(name)
    if OURS:
        query(connection, "CREATE EXTENSION mixedcc")
    return connection


def accepts():
    """Does the server accept connections?"""
    try:
        connect("postgres").close()
        return True
    except psycopg2.Error:
        return False


def is_lost(connection, error):
    """Has the server, or the session, ended under the statement that failed? psycopg2's class does
    not tell: it is OperationalError, InterfaceError or DatabaseError, as the end was noticed."""
    return bool(connection.closed) or error.pgcode in (None, *TERMINATED)


def drop_database(name):
    boss = connect("postgres")
    query(boss, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    boss.close()


def options(**settings):
    """WITH (...) of a table; nothing for heap."""
    if not OURS or not settings:
        return ""
    return "WITH (" + ", ".join(f"mixedcc.{key} = '{text}'" for key, text in settings.items()) + ")"


def create_table(connection, name, columns, kind="", **settings):
    query(connection, f"CREATE {kind} TABLE {name} ({columns}) USING {METHOD} {options(**settings)}")


def keep_long(connection, table, *columns):
    """Values of these columns are not compressed, so that long rows stay long."""
    for column in columns:
        query(connection, f"ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE EXTERNAL")


def set_protocol(connection, table, protocol, partition=None, wait=True):
    if not OURS:
        return
    if partition is None:
        query(connection, "SELECT mixedcc.set_protocol(%s::regclass, %s)", (table, protocol))
    else:
        query(connection, "SELECT mixedcc.set_protocol(%s::regclass, %s, %s)", (table, protocol, partition))
    if wait and not value(connection, "SELECT mixedcc.await_switches(%s::regclass)", (table,)):
        raise RuntimeError(f"the switch of {table} to {protocol} does not end")


def own_memory(connection):
    """Bytes of the session's process that it shares with no other one."""
    return status_of(connection, "RssAnon")


def peak_memory(connection):
    """The most bytes that the session's process has had, and of shared memory those it used."""
    return status_of(connection, "VmHWM")


def status_of(connection, what):
    status = value(connection, "SELECT pg_read_file('/proc/self/status')")
    line = next(line for line in status.splitlines() if line.startswith(f"{what}:"))
    return int(line.split()[1]) << 10


def seconds(default, long=None):
    """The length of a timed part. `long`: with MIXEDCC_LONG."""
    if long is not None and os.environ.get("MIXEDCC_LONG"):
        default = long
    return float(os.environ.get("MIXEDCC_SECONDS", default))


def wait_until(condition, limit=30.0):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def must_come(condition, limit=30.0):
    """Waits for what the rest of the test builds on, and ends the test if it does not come."""
    if not wait_until(condition, limit):
        raise RuntimeError(f"did not come within {limit} s")


def reload(connection):
    """Has the server read its settings again. When this returns, the postmaster has told all
    processes, and the coordinator has made a whole pass since."""
    def loaded():
        new = connect(connection.info.dbname)
        at = value(new, "SELECT pg_conf_load_time()")
        new.close()
        return at

    before = loaded()
    query(connection, "SELECT pg_reload_conf()")
    must_come(lambda: loaded() > before)
    if OURS:
        some_passes(connection)


def some_passes(connection, number=2):
    """Waits until the coordinator has made so many passes: the first may have begun before. A new
    coordinator counts anew."""
    begun = made = 0

    def enough():
        nonlocal begun, made
        now = value(connection, "SELECT passes FROM mixedcc.coordinator") or 0
        made += now - begun if now >= begun else now
        begun = now
        return made >= number

    enough()
    made = 0
    must_come(enough)


def waits_for_lock(connection, pid):
    return value(connection, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'", (pid,)) == 1
