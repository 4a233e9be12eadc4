#!/usr/bin/python3
"""A row that many read and then write, each in a transaction of its own with statements one by one:
under mocc it becomes hot, and few fail. No update is lost."""

import threading

import psycopg2
from lib.common import check, connect, create_table, drop_database, equal, main, make_database, query, value

DATABASE = "process_heat"
SESSIONS, COMMITS = 6, 150
DONE = SESSIONS * COMMITS
FAILURES = ("40001", "40P01")


def transfer(session, table):
    """Reads two rows and writes what it has computed. False: it is to be repeated."""
    try:
        query(session, "BEGIN ISOLATION LEVEL SERIALIZABLE")
        a, b = (value(session, f"SELECT v FROM {table} WHERE id = {i}") for i in (1, 2))
        query(session, f"UPDATE {table} SET v = {a - 1} WHERE id = 1")
        query(session, f"UPDATE {table} SET v = {b + 1} WHERE id = 2")
        query(session, "COMMIT")
        return True
    except psycopg2.Error as error:
        query(session, "ROLLBACK")
        if error.pgcode not in FAILURES:
            raise
        return False


def race(table):
    """Failures for each commit."""
    failures, problems = [], []

    def run():
        session = connect(DATABASE)
        try:
            for _ in range(COMMITS):
                while not transfer(session, table):
                    failures.append(1)
        except Exception as error:  # pylint: disable=broad-except
            problems.append(error)
        finally:
            session.close()

    threads = [threading.Thread(target=run) for _ in range(SESSIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(f"{table}: no other error", problems, [])
    return len(failures) / DONE


def test_hot_rows():
    admin, rates = connect(DATABASE), {}
    for name in ("mocc", "occ"):
        table = f"t_{name}"
        create_table(admin, table, "id int PRIMARY KEY, v bigint", protocol=name)
        query(admin, f"INSERT INTO {table} SELECT i, 0 FROM generate_series(1, 100) i")
        rates[name] = race(table)
        equal(f"{name}: no update is lost", query(admin, f"SELECT v FROM {table} WHERE id IN (1, 2) ORDER BY id"), [(-DONE,), (DONE,)])
    check("mocc: few fail", rates["mocc"] < 0.1 and rates["mocc"] < rates["occ"] / 3, rates)
    admin.close()


if __name__ == "__main__":
    make_database(DATABASE).close()
    main(test_hot_rows, lambda: drop_database(DATABASE))
