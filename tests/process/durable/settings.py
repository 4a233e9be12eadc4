#!/usr/bin/python3
"""Permanent tables under the settings of WAL: its three levels, data checksums, no full-page
writes, compression, pages compared at replay, few shared buffers. After changes, crashes and a
backup under load all rows are there, indexes agree, and PostgreSQL's own programs find no
damage."""

import threading

from lib import churn
from lib.clusters import Cluster, run
from lib.common import check, equal, main, query, value

SAFE = {"options": "-c synchronous_commit=on"}


def begin(*options, **settings):
    cluster = Cluster.new(*options, max_wal_size="4GB", **settings)
    cluster.start()
    connection = cluster.connect(**SAFE)
    query(connection, "CREATE EXTENSION mixedcc; CREATE EXTENSION amcheck")
    churn.make(connection)
    return cluster, connection


def crash(name, cluster, connection):
    """Crashes twice, the second time before the tables are used. Returns a new connection."""
    wanted = churn.digests(connection)
    connection.close()
    cluster.crash()
    cluster.start()
    cluster.crash()
    cluster.start()
    connection = cluster.connect(**SAFE)
    equal(f"{name}: the rows are there", churn.digests(connection), wanted)
    equal(f"{name}: indexes agree with the rows", churn.problems(connection), [])
    return connection


def new_storages(name, cluster, connection):
    """Storages that a transaction makes, and fills: with wal_level minimal they are not logged."""
    query(connection, "BEGIN; TRUNCATE plain; INSERT INTO plain SELECT i, i, 'filled' FROM generate_series(1, 4000) i; COMMIT")
    query(connection, "BEGIN; CREATE TABLE made (id int PRIMARY KEY, v int) USING mixedcc; INSERT INTO made SELECT i, i FROM generate_series(1, 5000) i; COMMIT")
    query(connection, "UPDATE made SET v = v + 1 WHERE id % 2 = 0")
    query(connection, "BEGIN; TRUNCATE quiet; INSERT INTO quiet VALUES (1, 1, 'undone'); ROLLBACK")
    wanted = value(connection, "SELECT (count(*), sum(v))::text FROM made")
    connection = crash(f"{name}, new storages", cluster, connection)
    equal(f"{name}, new storages: a new table", value(connection, "SELECT (count(*), sum(v))::text FROM made"), wanted)
    query(connection, "SELECT bt_index_check('made_pkey', true)")
    query(connection, "DROP TABLE made")
    return connection


def under(name, *options, **settings):
    cluster, connection = begin(*options, **settings)
    try:
        for turn in range(2):
            churn.change(connection, f"{name} {turn}", turns=25)
            connection = crash(f"{name}, {turn}", cluster, connection)
        connection = new_storages(name, cluster, connection)
        if settings.get("wal_level") != "minimal":
            connection = backup(name, cluster, connection)
        connection.close()
        cluster.control("stop", "-m", "fast")
        if "-k" in options:
            said = run("pg_checksums", "--check", "-D", cluster.data)
            check(f"{name}: all checksums are right", "Bad checksums:  0" in said, said)
    finally:
        cluster.remove()


def backup(name, cluster, connection):
    """A backup that is taken while rows change is what it says, and recovers."""
    other = cluster.connect(**SAFE)
    churner = threading.Thread(target=churn.change, args=(other, f"{name} beside", churn.TABLES, 60))
    churner.start()
    copy = Cluster.copy(source=cluster)
    churner.join()
    other.close()
    try:
        said = run("pg_verifybackup", copy.data)
        check(f"{name}: pg_verifybackup", "successfully verified" in said, said)
        copy.start()
        found = copy.connect(**SAFE)
        equal(f"{name}: indexes of a backup agree with its rows", churn.problems(found), [])
        rows = value(found, "SELECT count(*) FROM long")
        equal(f"{name}: a backup has the rows that do not come and go", rows, 12)
        found.close()
    finally:
        copy.remove()
    return crash(f"{name}, after a backup", cluster, connection)


def minimal():
    under("minimal", "-k", wal_level="minimal", max_wal_senders="0")


def logical():
    under("logical", "-k", wal_level="logical", wal_compression="on", wal_consistency_checking="all")


def no_full_pages():
    under("no full pages", full_page_writes="off", shared_buffers="1MB")


if __name__ == "__main__":
    main(minimal, logical, no_full_pages)
