#!/usr/bin/python3
"""A snapshot that is held open while others update few rows very often: it reads what it has read
before, and views name its process and how much waits for it. When it ends the next snapshot is
named, and at last the versions are freed.

A transaction that only reads by its snapshot keeps a version of each row, and not one for each
update: between its statements, between the parts of a cursor, exported to another one, after an
ERROR in a savepoint. One that has written, or is SERIALIZABLE, keeps all."""

from lib import protocols
from lib.common import check, connect, create_table, drop_database, equal, main, make_database, query, value, wait_until

DATABASE = "process_long_readers"
ROWS = 10
COMMITS = 2000
SUM = "SELECT sum(v), count(*) FROM {t}"
# Versions that wait besides one of each row and snapshot: those of each session's last commits.
YOUNG = 250


def update(writer, table, times):
    """So many commits, each of another row than the one before."""
    query(writer, f"""DO $$ BEGIN FOR i IN 1..{times} LOOP UPDATE {table} SET v = v + 1 WHERE id = 1 + i % {ROWS}; COMMIT; END LOOP; END $$""")


def leave_alone(admin, table):
    """Autovacuum would keep versions of it, too, for as long as it lasts."""
    query(admin, f"ALTER TABLE {table} SET (autovacuum_enabled = off)")


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
        leave_alone(admin, table)
        query(admin, f"INSERT INTO {table} SELECT i, 0 FROM generate_series(1, {ROWS}) i")
        old, seen = reader("REPEATABLE READ", table)
        update(writer, table, COMMITS)
        newer, newer_seen = reader("REPEATABLE READ", table)
        update(writer, table, COMMITS // 2)
        equal(f"{name}: what both snapshots see", (seen, newer_seen), ([(0, ROWS)], [(COMMITS, ROWS)]))
        horizon = query(admin, "SELECT pid, commits, versions FROM mixedcc.horizon")[0]
        equal(f"{name}: who keeps old versions", horizon[0], pid(old))
        check(f"{name}: since when", horizon[1] >= COMMITS * 3 // 2, horizon)
        check(f"{name}: how many", 2 * ROWS - 1 <= horizon[2] <= 2 * ROWS + YOUNG, horizon)
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


def rows(session, table):
    return query(session, f"SELECT id, v FROM {table} ORDER BY id")


def begin(isolation):
    session = connect(DATABASE)
    query(session, f"BEGIN ISOLATION LEVEL {isolation}")
    return session


def keeps_few(what, admin, writer, table, snapshots=1):
    update(writer, table, COMMITS)
    check(f"{what}: few versions wait", waiting(admin) <= snapshots * ROWS + YOUNG, waiting(admin))


def keeps_all(what, admin, writer, table):
    before = waiting(admin)
    update(writer, table, COMMITS)
    check(f"{what}: all versions wait", waiting(admin) >= before + COMMITS - YOUNG, (before, waiting(admin)))


def is_freed(what, admin, writer, table):
    def few():
        update(writer, table, 200)
        return waiting(admin) <= YOUNG
    check(f"{what}: at its end the versions are freed", wait_until(few, 60), waiting(admin))


def test_readers():
    admin, writer = connect(DATABASE), connect(DATABASE)
    create_table(admin, "r", "id int PRIMARY KEY, v int", protocol="occ")
    leave_alone(admin, "r")
    query(admin, f"INSERT INTO r SELECT i, 0 FROM generate_series(1, {ROWS}) i")
    query(admin, "CREATE FUNCTION sum_of_r() RETURNS bigint LANGUAGE plpgsql STABLE AS $$ BEGIN RETURN (SELECT sum(v) FROM r); END $$")

    # A condition that an index scan tests on each key, and that fails.
    query(admin, """CREATE FUNCTION below(int, uuid) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN 1 / 0; END';
        CREATE FUNCTION compare(int, uuid) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT -1';
        CREATE OPERATOR < (LEFTARG = int, RIGHTARG = uuid, FUNCTION = below);
        ALTER OPERATOR FAMILY integer_ops USING btree ADD OPERATOR 1 < (int, uuid), FUNCTION 1 (int, uuid) compare""")

    for isolation in ("REPEATABLE READ", "REPEATABLE READ, READ ONLY", "SERIALIZABLE, READ ONLY"):
        old = begin(isolation)
        seen = rows(old, "r")
        for statement in (f"SELECT * FROM r WHERE id = {ROWS // 2}", "SELECT sum_of_r()", "SELECT a.v FROM r a JOIN r b USING (id)",
                          "SELECT id FROM r WHERE id > 3 ORDER BY id DESC LIMIT 2", "COPY r TO STDOUT"):
            if statement.startswith("COPY"):
                with old.cursor() as c:
                    c.copy_expert(statement, open("/dev/null", "w", encoding="utf-8"))
            else:
                query(old, statement)
            keeps_few(f"{isolation}, after {statement}", admin, writer, "r")
            equal(f"{isolation}, after {statement}: what it sees", rows(old, "r"), seen)
        query(old, "COMMIT")
        is_freed(isolation, admin, writer, "r")
        old.close()

    old = begin("REPEATABLE READ")
    seen = rows(old, "r")
    query(old, "DECLARE forward CURSOR FOR SELECT id, v FROM r")
    query(old, "DECLARE by_key CURSOR FOR SELECT id, v FROM r WHERE id >= 1 ORDER BY id")
    found, by_key = [], []
    for _ in range(ROWS // 2):
        found += query(old, "FETCH 2 FROM forward")
        by_key += query(old, "FETCH 2 FROM by_key")
        keeps_few("between parts of cursors", admin, writer, "r")
    equal("what cursors see", (sorted(found), by_key), (seen, seen))
    query(old, "SAVEPOINT s")
    try:
        query(old, "SELECT 1 / (v - v) FROM r")
        check("an ERROR", False, "there was none")
    except Exception:  # the message is psycopg2's
        query(old, "ROLLBACK TO s")
    equal("after an ERROR", rows(old, "r"), seen)
    keeps_few("after an ERROR in a savepoint", admin, writer, "r")
    query(old, "SET enable_seqscan = off; SAVEPOINT f")
    try:
        query(old, "SELECT * FROM r WHERE id < '00000000-0000-0000-0000-000000000000'::uuid")
        check("an ERROR of a condition", False, "there was none")
    except Exception as error:  # the message is psycopg2's
        check("an ERROR of a condition", "division by zero" in str(error), error)
        query(old, "ROLLBACK TO f")
    equal("after an ERROR of a condition on a key", rows(old, "r"), seen)
    keeps_few("after an ERROR of a condition on a key", admin, writer, "r")
    query(old, "RELEASE s; RESET enable_seqscan")

    importer = begin("REPEATABLE READ")
    query(importer, f"SET TRANSACTION SNAPSHOT '{value(old, 'SELECT pg_export_snapshot()')}'")
    equal("what an importer sees", rows(importer, "r"), seen)
    keeps_few("beside an importer", admin, writer, "r")
    query(old, "COMMIT")
    keeps_few("beside an importer alone", admin, writer, "r")
    equal("what the importer sees then", rows(importer, "r"), seen)
    query(importer, "COMMIT")
    is_freed("an importer", admin, writer, "r")

    # Snapshots of several moments, of which some in the middle end.
    many = []
    for _ in range(6):
        session = begin("REPEATABLE READ")
        many.append((session, rows(session, "r")))
        keeps_few(f"{len(many)} snapshots", admin, writer, "r", len(many))
    for i in (3, 1):
        query(many.pop(i)[0], "COMMIT")
    keeps_few("some have ended", admin, writer, "r", len(many))
    for session, seen in many:
        equal("what each of them sees", rows(session, "r"), seen)
        query(session, "COMMIT")
    is_freed("several", admin, writer, "r")

    # An index that is built meanwhile, and rows that are moved and deleted.
    old = begin("REPEATABLE READ")
    seen = rows(old, "r")
    update(writer, "r", COMMITS)
    query(writer, "CREATE INDEX by_v ON r (v)")
    query(writer, "UPDATE r SET id = id + 1000 WHERE id <= 3")
    query(writer, "DELETE FROM r WHERE id = 4")
    query(writer, "INSERT INTO r VALUES (1, 1), (2, 1), (3, 1), (4, 1)")
    keeps_few("beside other writes", admin, writer, "r", 2)
    query(old, "SET enable_seqscan = off")
    equal("what it sees beside other writes", rows(old, "r"), seen)
    equal("by the new index", sorted(query(old, "SELECT id, v FROM r WHERE v >= 0")), seen)
    query(old, "COMMIT")
    query(writer, "DROP INDEX by_v")
    is_freed("other writes", admin, writer, "r")

    # A reader that has done more keeps what is replaced from then on.
    for what, isolation, statement in (
            ("it has locked a row", "REPEATABLE READ", "SELECT * FROM r WHERE id = 1000 + 1 FOR SHARE"),
            ("it has written", "REPEATABLE READ", "INSERT INTO r VALUES (-1, 0)"),
            ("it is SERIALIZABLE", "SERIALIZABLE", "SELECT 1"),
            ("it is not to rest", "REPEATABLE READ", "SET mixedcc.prune_versions = off")):
        old = begin(isolation)
        seen = [row for row in rows(old, "r") if row[0] > 0]
        query(old, statement)
        keeps_all(what, admin, writer, "r")
        equal(f"{what}: what it sees", [row for row in rows(old, "r") if row[0] > 0], seen)
        query(old, "ROLLBACK")
        is_freed(what, admin, writer, "r")
    admin.close()
    writer.close()


def test_all():
    test_views()
    test_readers()


if __name__ == "__main__":
    make_database(DATABASE).close()
    main(test_all, lambda: drop_database(DATABASE))
