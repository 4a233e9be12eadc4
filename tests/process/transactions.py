#!/usr/bin/python3
"""Transactions at their seams: savepoints that undo DDL, loops of subtransactions, snapshots that are
imported or taken away, two-phase commit. Each test names what went wrong."""

import io

import psycopg2

from _common import OURS, check, connect, create_table, drop_database, equal, main, make_database, query, value

DATABASE = "process_transactions"


def code(connection, sql):
    """The error's code, or None."""
    try:
        query(connection, sql)
        return None
    except psycopg2.Error as error:
        return error.pgcode


def undone_ddl():
    """A TRUNCATE of a new table hid older entries: the DROP was not undone, and rows were lost at COMMIT."""
    create_table(BOSS, "ddl", "id int PRIMARY KEY")
    query(BOSS, "INSERT INTO ddl SELECT generate_series(1, 10)")
    query(BOSS, "BEGIN; SAVEPOINT s; DROP TABLE ddl")
    create_table(BOSS, "fresh", "id int")
    query(BOSS, "INSERT INTO fresh VALUES (1); TRUNCATE fresh; ROLLBACK TO s; COMMIT")
    equal("transactions: a DROP that is undone keeps the rows", value(BOSS, "SELECT count(*) FROM ddl"), 10)


def undone_storage():
    """Locks and counters in a table that a savepoint has undone were written to freed memory."""
    create_table(BOSS, "storage", "id int PRIMARY KEY, v int", protocol="partcc")
    query(BOSS, "INSERT INTO storage SELECT g, 0 FROM generate_series(1, 100) g")
    other = connect(DATABASE)
    for _ in range(10):
        query(BOSS, "BEGIN; SAVEPOINT s; TRUNCATE storage; INSERT INTO storage SELECT g, 1 FROM generate_series(1, 50) g; ROLLBACK TO s")
        # The session is idle without a snapshot: others may free what it could have reached.
        create_table(other, "reuse", "id int PRIMARY KEY, v int")
        query(other, "INSERT INTO reuse SELECT g, 0 FROM generate_series(1, 1000) g")
        query(other, "UPDATE reuse SET v = v + 1")
        query(other, "VACUUM reuse")
        query(BOSS, "COMMIT")
        equal("transactions: others' rows stay", value(other, "SELECT count(*) FROM reuse WHERE v = 1"), 1000)
        query(other, "DROP TABLE reuse")
    equal("transactions: a TRUNCATE that is undone", value(BOSS, "SELECT count(*) FROM storage WHERE v = 0"), 100)
    other.close()


def dropped_after_savepoint():
    """A savepoint that was rolled back had touched a table; its lock was gone, and the table could be dropped and
    freed: at its end the transaction wrote into memory that others had by then."""
    for protocol, sql in [("occ", "SELECT count(*) FROM gone"), ("partcc", "UPDATE gone SET v = 1 WHERE id = 1")]:
        create_table(BOSS, "gone", "id int PRIMARY KEY, v int", protocol=protocol)
        query(BOSS, "INSERT INTO gone SELECT g, 0 FROM generate_series(1, 100) g")
        other = connect(DATABASE)
        query(BOSS, "BEGIN; SAVEPOINT s; " + sql + "; ROLLBACK TO s")
        query(other, "DROP TABLE gone")
        create_table(other, "heirs", "id int PRIMARY KEY, v text")
        for length in (100, 700, 1500, 3000, 6000):
            query(other, f"INSERT INTO heirs SELECT g + {length} * 10000, repeat('a', {length}) FROM generate_series(1, 400) g")
        query(BOSS, "COMMIT")
        equal(f"transactions: rows of others after a savepoint's table was dropped, {protocol}",
              value(other, "SELECT count(*) FROM heirs WHERE v ~ '[^a]'"), 0)
        query(other, "DROP TABLE heirs")
        other.close()


def many_changes():
    """The room for what a transaction's end retires was given back before that: the server crashed at the COMMIT of
    changes of more than about a hundred tables."""
    n = 150
    for i in range(n):
        create_table(BOSS, f"many{i}", "id int PRIMARY KEY, v int")
    for end in "ROLLBACK", "COMMIT":
        query(BOSS, "BEGIN")
        query(BOSS, "INSERT INTO many0 SELECT g, 0 FROM generate_series(1, 1000) g")
        for i in range(n):
            query(BOSS, f"ALTER TABLE many{i} SET (mixedcc.partitions = 4); ALTER TABLE many{i} DROP CONSTRAINT many{i}_pkey")
        query(BOSS, end)
        equal(f"transactions: {n} tables changed, {end}", value(BOSS, "SELECT count(*) FROM many0"), 1000 * (end == "COMMIT"))
    for i in range(n):
        query(BOSS, f"DROP TABLE many{i}")


def loop_of_subtransactions():
    """Each subtransaction kept a heavyweight lock to the end: 53200 after some ten thousand."""
    create_table(BOSS, "loop", "id int PRIMARY KEY, v int")
    query(BOSS, "INSERT INTO loop SELECT g, 0 FROM generate_series(1, 20000) g")
    query(BOSS, "BEGIN")
    query(BOSS, "DO $$ BEGIN FOR i IN 1..20000 LOOP BEGIN UPDATE loop SET v = 1 WHERE id = i; "
                "EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$")
    held = value(BOSS, "SELECT count(*) FROM pg_locks WHERE locktype = 'userlock' AND pid = pg_backend_pid()")
    equal("transactions: subtransactions that ended hold no heavyweight lock", held, 0)
    query(BOSS, "COMMIT")
    equal("transactions: rows of a loop of subtransactions", value(BOSS, "SELECT sum(v) FROM loop"), 20000)


def index_after_idleness():
    """The pin of an idle READ COMMITTED session is ended by others; CREATE INDEX then left out rows that
    older snapshots see."""
    create_table(BOSS, "idle", "id int PRIMARY KEY, x int")
    query(BOSS, "INSERT INTO idle SELECT g, g FROM generate_series(1, 1000) g")
    create_table(BOSS, "bystander", "id int")
    reader, builder = connect(DATABASE), connect(DATABASE)
    query(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM idle")
    query(BOSS, "DELETE FROM idle WHERE x = 500")
    query(builder, "BEGIN")
    query(builder, "SELECT 1 FROM idle LIMIT 1")
    query(BOSS, "VACUUM bystander")
    query(builder, "CREATE INDEX idle_x ON idle (x)")
    query(builder, "COMMIT")
    query(reader, "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
    equal("transactions: an old snapshot sees through a new index", query(reader, "SELECT * FROM idle WHERE x = 500"), [(500, 500)])
    reader.close()
    builder.close()


def read_only_below_savepoint():
    """READ ONLY was forgotten when the first query came after a SAVEPOINT: it waited for writers."""
    create_table(BOSS, "readonly", "id int PRIMARY KEY, v int", protocol="2pl")
    query(BOSS, "INSERT INTO readonly VALUES (1, 0)")
    reader = connect(DATABASE, options="-c lock_timeout=5s")
    query(BOSS, "BEGIN; UPDATE readonly SET v = 1")
    query(reader, "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY; SAVEPOINT s")
    equal("transactions: READ ONLY after a savepoint waits for nobody", code(reader, "SELECT * FROM readonly"), None)
    query(BOSS, "COMMIT")
    reader.close()


def copy_fixes_snapshot():
    """COPY, which starts no executor, left the snapshot of REPEATABLE READ open for our tables."""
    query(BOSS, "CREATE TABLE plain (id int) USING heap")
    create_table(BOSS, "copied", "id int")
    reader = connect(DATABASE)
    query(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    with reader.cursor() as cursor:
        cursor.copy_expert("COPY plain TO STDOUT", io.StringIO())
    query(BOSS, "INSERT INTO copied VALUES (1)")
    equal("transactions: COPY fixes the snapshot", value(reader, "SELECT count(*) FROM copied"), 0)
    reader.close()


def imported_snapshots():
    """SET TRANSACTION SNAPSHOT: the importer reads at the exporter's CSN, also after the exporter has ended."""
    create_table(BOSS, "imported", "id int PRIMARY KEY, v int")
    query(BOSS, "INSERT INTO imported VALUES (1, 0)")
    exporter, importer = connect(DATABASE), connect(DATABASE)
    same = "SERIALIZABLE READ ONLY"
    for exports, imports in (("REPEATABLE READ", "REPEATABLE READ"), (same, same), (same, "REPEATABLE READ")):
        query(exporter, f"BEGIN ISOLATION LEVEL {exports}")
        snapshot = value(exporter, "SELECT pg_export_snapshot()")
        before = value(BOSS, "SELECT v FROM imported")
        query(BOSS, "UPDATE imported SET v = v + 1")
        query(BOSS, "VACUUM imported")
        query(importer, f"BEGIN ISOLATION LEVEL {imports}")
        query(importer, f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        name = f"transactions: {imports} imports from {exports}"
        equal(name, value(importer, "SELECT v FROM imported"), before)
        query(exporter, "COMMIT")
        for _ in range(200):
            query(BOSS, "UPDATE imported SET v = v + 1")
        query(BOSS, "VACUUM imported")
        equal(f"{name}, which has ended", value(importer, "SELECT v FROM imported"), before)
        query(importer, "COMMIT")
    equal("transactions: reads after an import", value(importer, "SELECT v FROM imported"), value(BOSS, "SELECT v FROM imported"))
    if OURS:
        foreign_snapshots(exporter, importer)
    exporter.close()
    importer.close()


def foreign_snapshots(exporter, importer):
    """Snapshots without a CSN that could be adopted are for other tables only."""
    for exports, imports in (("READ COMMITTED", "REPEATABLE READ"), ("SERIALIZABLE", "SERIALIZABLE")):
        query(exporter, f"BEGIN ISOLATION LEVEL {exports}")
        snapshot = value(exporter, "SELECT pg_export_snapshot()")
        query(importer, f"BEGIN ISOLATION LEVEL {imports}")
        query(importer, f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        name = f"transactions: {imports} imports from {exports}"
        equal(f"{name}: other tables", code(importer, "SELECT * FROM pg_am"), None)
        equal(f"{name}: ours", code(importer, "SELECT v FROM imported"), "0A000")
        query(importer, "ROLLBACK")
        query(exporter, "ROLLBACK")
    equal("transactions: that is forgotten", code(importer, "SELECT v FROM imported"), None)


def two_phase():
    """Every statement counted as a use of our tables; and a prepared transaction left its isolation to the next."""
    query(BOSS, "CREATE TABLE IF NOT EXISTS plain (id int) USING heap")
    create_table(BOSS, "prepared", "id int PRIMARY KEY, v int")
    query(BOSS, "INSERT INTO prepared VALUES (1, 0)")
    # 55000: the server allows no prepared transactions.
    session = connect(DATABASE)
    outcome = code(session, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT * FROM plain; PREPARE TRANSACTION 'mixedcc'")
    check("transactions: PREPARE of a transaction of other tables", outcome in (None, "55000"), outcome)
    query(session, "ROLLBACK" if outcome else "ROLLBACK PREPARED 'mixedcc'")
    query(session, "BEGIN; SELECT v FROM prepared")
    query(BOSS, "UPDATE prepared SET v = 7")
    equal("transactions: READ COMMITTED after PREPARE", value(session, "SELECT v FROM prepared"), 7)
    query(session, "COMMIT")
    if OURS:
        query(session, "BEGIN; UPDATE prepared SET v = 8")
        equal("transactions: PREPARE of ours", code(session, "PREPARE TRANSACTION 'mixedcc'"), "0A000")
        query(session, "ROLLBACK")
    session.close()


BOSS = make_database(DATABASE)
try:
    main(undone_ddl, undone_storage, dropped_after_savepoint, many_changes, loop_of_subtransactions,
         index_after_idleness, read_only_below_savepoint, copy_fixes_snapshot, imported_snapshots, two_phase)
finally:
    BOSS.close()
    drop_database(DATABASE)
