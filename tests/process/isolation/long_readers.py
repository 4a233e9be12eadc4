#!/usr/bin/python3
"""A snapshot that is held open while others update few rows very often: it reads what it has read
before, and views name its process and how much waits for it. When it ends the next snapshot is
named, and at last the versions are freed."""

from lib import protocols
from lib.common import check, connect, create_table, drop_database, equal, main, make_database, query, value, wait_until

DATABASE = "process_long_readers"
ROWS = 10
COMMITS = 2000
SUM = "SELECT sum(v), count(*) FROM {t}"


def update(writer, table, times):
    """So many commits, each of another row than the one before."""
    query(writer, f"""DO $$ BEGIN FOR i IN 1..{times} LOOP UPDATE {table} SET v = v + 1 WHERE id = 1 + i % {ROWS}; COMMIT; END LOOP; END $$""")


def pid(session):
    return session.info.backend_pid


def reader(isolation, table):
    session = connect(DATABASE)
    query(session, f"BEGIN ISOLATION LEVEL {isolation}")
    return session, query(session, SUM.format(t=table))


def waiting(admin):
    return value(admin, "SELECT versions FROM mixedcc.horizon")


def test_views():
    admin, writer = connect(DATABASE), connect(DATABASE)
    for name in protocols.ALL:
        table = f"t_{name}"
        create_table(admin, table, "id int PRIMARY KEY, v int", protocol=name)
        query(admin, f"INSERT INTO {table} SELECT i, 0 FROM generate_series(1, {ROWS}) i")
        old, seen = reader("REPEATABLE READ", table)
        update(writer, table, COMMITS)
        newer, newer_seen = reader("REPEATABLE READ", table)
        update(writer, table, COMMITS // 2)
        equal(f"{name}: what both snapshots see", (seen, newer_seen), ([(0, ROWS)], [(COMMITS, ROWS)]))
        horizon = query(admin, "SELECT pid, commits, versions FROM mixedcc.horizon")[0]
        equal(f"{name}: who keeps old versions", horizon[0], pid(old))
        check(f"{name}: how many", horizon[1] >= COMMITS * 3 // 2 and horizon[2] >= COMMITS * 3 // 2, horizon)
        others = dict(query(admin, "SELECT pid, commits FROM mixedcc.snapshots"))
        check(f"{name}: both snapshots are shown", others.get(pid(old), 0) >= COMMITS * 3 // 2 and COMMITS // 2 <= others.get(pid(newer), 0) < COMMITS, others)
        equal(f"{name}: both see the same again", [query(s, SUM.format(t=table)) for s in (old, newer)], [seen, newer_seen])
        query(old, "COMMIT")
        equal(f"{name}: then the next one keeps them", value(admin, "SELECT pid FROM mixedcc.horizon"), pid(newer))
        query(newer, "COMMIT")

        def fewer():
            update(writer, table, 50)
            return waiting(admin) < COMMITS // 2
        check(f"{name}: when both have ended the versions are freed", wait_until(fewer, 60), waiting(admin))
        equal(f"{name}: their processes are not shown", [p for p in (pid(old), pid(newer)) if p in dict(query(admin, "SELECT pid, commits FROM mixedcc.snapshots"))], [])
        old.close()
        newer.close()
    admin.close()
    writer.close()


if __name__ == "__main__":
    make_database(DATABASE).close()
    main(test_views, lambda: drop_database(DATABASE))
