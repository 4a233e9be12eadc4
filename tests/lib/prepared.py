"""Prepared transactions on servers of a test's own."""

import sys

import psycopg2

from lib.clusters import Cluster
from lib.common import main, must_be_found, query

ENDS = ("COMMIT", "ROLLBACK")


def begin(**settings):
    """A server of the test's own."""
    cluster = Cluster.new(**{"max_prepared_transactions": "40", "autovacuum": "off", "mixedcc.load_workers": "0",
                             "mixedcc.memory": "256MB", **settings})
    cluster.start()
    cluster.ask("CREATE EXTENSION mixedcc; SELECT 1")
    return cluster


def run(session, sql):
    """What came of statements: the rows, or the SQLSTATE."""
    try:
        return query(session, sql)
    except psycopg2.Error as error:
        return error.pgcode


def attempt(cluster, sql, options="-c lock_timeout=150ms"):
    """The same in a session of their own."""
    session = cluster.connect(options=options)
    try:
        return run(session, sql)
    finally:
        session.close()


def done(cluster, sql):
    """The same for statements that must succeed."""
    session = cluster.connect(options="-c lock_timeout=20s")
    try:
        return query(session, sql)
    finally:
        session.close()


def prepare(cluster, gid, sql, level="READ COMMITTED"):
    return attempt(cluster, f"BEGIN ISOLATION LEVEL {level}; {sql}; PREPARE TRANSACTION '{gid}'")


def must_prepare(*arguments):
    result = prepare(*arguments)
    if result is not None:
        raise RuntimeError(f"not prepared: {arguments[1:]}: {result}")


def restart(cluster):
    cluster.control("stop", "-m", "fast")
    cluster.start()


def crash(cluster):
    cluster.crash()
    cluster.start()


def checkpoint_and_crash(cluster):
    done(cluster, "CHECKPOINT")
    crash(cluster)


def run_all(tests, faults, *others, **settings):
    """The tests, each with the server, and others; with --faults, in a build with that feature, a
    test and its check that finds each fault."""
    def all_tests():
        cluster = begin(**settings)
        try:
            for test in tests:
                test(cluster)
        finally:
            cluster.remove()
        for test in others:
            test()

    def all_faults():
        for fault in sys.argv[2:] or faults:
            cluster = begin(**settings, **{"mixedcc.fault": fault})
            try:
                test, name = faults[fault]
                must_be_found(fault, name, lambda test=test, cluster=cluster: test(cluster))
            finally:
                cluster.remove()

    main(all_faults if sys.argv[1:2] == ["--faults"] else all_tests)
