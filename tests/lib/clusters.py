"""Servers of a test's own, beside the test server: new ones, and copies of others."""

import os
import shutil
import subprocess
import tempfile

import psycopg2

from lib.common import at_failure, value, wait_until

AS_SERVER = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
PORT = "5432"


def run(name, *arguments, **keywords):
    """Runs one of PostgreSQL's programs as the servers' user; returns its output."""
    path = os.path.join(os.environ["PGBIN"], name)
    keywords = {"stdin": subprocess.DEVNULL, "cwd": "/tmp", **keywords}
    done = subprocess.run([*AS_SERVER, path, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, "PGAPPNAME": "copy", "HOME": "/tmp"}, **keywords)
    if done.returncode != 0:
        raise RuntimeError(f"{name} {' '.join(arguments)}: {done.stdout}")
    return done.stdout


class Cluster:
    """A server with a directory of its own, in which its sockets are too."""

    def __init__(self, database="postgres"):
        self.database = database
        self.home = tempfile.mkdtemp(prefix="mcb-", dir="/tmp")
        os.chmod(self.home, 0o777)
        self.data = self.home + "/data"
        at_failure.append(self.tell)

    @classmethod
    def new(cls, *options, **settings):
        """A cluster by initdb, that has not been started."""
        self = cls()
        run("initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "--locale=C", "-E", "UTF8", "--no-sync", *options)
        self.configure(shared_preload_libraries="mixedcc", listen_addresses="", fsync="off", port=PORT,
                       **{"wal_keep_size": "1GB", "mixedcc.memory": "64MB", **settings})
        return self

    @classmethod
    def copy(cls, *options, source=None, database="postgres"):
        """A base backup of another cluster, or of the test server."""
        self = cls(database)
        host = source.home if source else os.environ["PGHOST"]
        run("pg_basebackup", "-h", host, "-U", "postgres", "-D", self.data, "-X", "stream", "-c", "fast", *options)
        return self

    def configure(self, **settings):
        with open(self.data + "/postgresql.auto.conf", "a", encoding="ascii") as file:
            file.write(f"unix_socket_directories = '{self.home}'\n")
            file.writelines(f"{name} = '{text}'\n" for name, text in settings.items())

    def start(self, **settings):
        self.configure(**settings)
        self.control("start", "-o", f"-c unix_socket_directories={self.home}", "-l", self.home + "/log")

    def control(self, command, *more):
        path = os.path.join(os.environ["PGBIN"], "pg_ctl")
        subprocess.run([*AS_SERVER, path, "-D", self.data, "-w", "-t", "120", command, *more], check=True,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def crash(self):
        self.control("stop", "-m", "immediate")

    def connect(self, **keywords):
        connection = psycopg2.connect(host=self.home, port=PORT, user="postgres", **{"dbname": self.database, **keywords})
        connection.autocommit = True
        return connection

    def ask(self, sql, parameters=None):
        """The one value of a query."""
        connection = self.connect()
        try:
            return value(connection, sql, parameters)
        finally:
            connection.close()

    def recovered(self, limit=60):
        """Has recovery ended?"""
        return wait_until(lambda: not self.ask("SELECT pg_is_in_recovery()"), limit)

    def replays(self, source, limit=60):
        """Does it come to what the source has flushed?"""
        lsn = source.ask("SELECT pg_current_wal_flush_lsn()")
        return wait_until(lambda: self.ask("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (lsn,)), limit)

    def log(self):
        with open(self.home + "/log", encoding="utf-8", errors="replace") as file:
            return file.read()

    def tell(self):
        """Prints the end of its log, which may say why a test has failed."""
        if os.path.exists(self.home + "/log"):
            print(f"  the log of {self.home}:", *self.log().splitlines()[-30:], sep="\n    ")

    def remove(self):
        if self.tell in at_failure:
            at_failure.remove(self.tell)
        if os.path.exists(self.data + "/postmaster.pid"):
            self.crash()
        shutil.rmtree(self.home, ignore_errors=True)
