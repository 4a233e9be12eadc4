#!/usr/bin/python3
"""Transactions at their seams: savepoints that undo DDL, loops of subtransactions, snapshots that
are imported or taken away, two-phase commit. Each test names what went wrong."""

import io
import threading
import time

import psycopg2

from lib.common import OURS, check, connect, create_table, drop_database, equal, main, make_database, must_come, query, set_protocol, value, waits_for_lock

DATABASE = "process_transactions"


def code(connection, sql):
    """The error's code, or None."""
    try:
        query(connection, sql)
        return None
    except psycopg2.Error as error:
        return error.pgcode


def undone_ddl():
    """A TRUNCATE of a new table hid older entries: the DROP was not undone, and rows were lost at
    COMMIT."""
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
    """A savepoint that was rolled back had touched a table; its lock was gone, and the table could
    be dropped and freed: at its end the transaction wrote into memory that others had by then."""
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
              query(other, "SELECT length(v), count(*) FROM heirs WHERE v !~ '[^a]' GROUP BY 1 ORDER BY 1"),
              [(length, 400) for length in (100, 700, 1500, 3000, 6000)])
        query(other, "DROP TABLE heirs")
        other.close()


def many_changes():
    """The room for what a transaction's end retires was given back before that: the server crashed
    at the COMMIT of changes of more than about a hundred tables."""
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


def undone_partitions():
    """A second change of a table's partitions overwrote those of the first map, which an abort put
    in use again: rows were in partitions that it did not have ("index out of bounds"), or in the
    wrong ones."""
    for before, first, second in [(2, 4, 16), (16, 4, 2), (5, 1, 3)]:
        create_table(BOSS, "mapped", "id int PRIMARY KEY, v int", protocol="partcc", partitions=before)
        query(BOSS, "INSERT INTO mapped SELECT g, 0 FROM generate_series(1, 300) g; DELETE FROM mapped WHERE id > 200")
        alter = "ALTER TABLE mapped SET (mixedcc.partitions = {})".format
        rows = "SELECT partition, rows FROM mixedcc.partitions WHERE \"table\" = 'mapped'::regclass ORDER BY 1"
        was = query(BOSS, rows)
        equal("transactions: partitions at first", (len(was), sum(n for _, n in was)), (before, 200))
        insert = "INSERT INTO mapped SELECT g, 0 FROM generate_series(1001, 1100) g"
        query(BOSS, f"BEGIN; {alter(first)}; {insert}; {alter(second)}; ROLLBACK")
        equal("transactions: partitions after a rollback", query(BOSS, rows), was)
        query(BOSS, f"BEGIN; SAVEPOINT s; {alter(first)}; {alter(second)}; {insert}; ROLLBACK TO s; "
                    "UPDATE mapped SET v = v + 1; COMMIT")
        query(BOSS, f"BEGIN; {alter(first)}; {insert}; SAVEPOINT s; {alter(second)}; {alter(before)}; ROLLBACK TO s; "
                    "DELETE FROM mapped WHERE id > 1000; COMMIT")
        equal("transactions: partitions after a rollback to a savepoint", len(query(BOSS, rows)), first)
        query(BOSS, "BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE mapped SET v = v + 1; COMMIT")
        query(BOSS, "VACUUM mapped")
        equal("transactions: rows of changed partitions", query(BOSS, "SELECT count(*), sum(v) FROM mapped"), [(200, 400)])
        equal("transactions: keys of changed partitions", sum(
            value(BOSS, f"SELECT v FROM mapped WHERE id = {i}") for i in range(1, 201)), 400)
        counted = query(BOSS, rows)
        query(BOSS, f"{alter(before)}; {alter(first)}")
        equal("transactions: every row is in its partition", query(BOSS, rows), counted)
        query(BOSS, "DROP TABLE mapped")


def freed_below_tombstones():
    """A condition that the key's intervals do not express was tested on the version below a
    tombstone, which was freed, and whose memory others had: the server crashed at a SELECT behind a
    DELETE."""
    create_table(BOSS, "tested", "a int, b text COLLATE \"C\", c int, v text, PRIMARY KEY (a, b, c)")
    create_table(BOSS, "heirs", "id int PRIMARY KEY, v bytea")
    query(BOSS, "INSERT INTO tested SELECT g, 'k' || g, g % 10, repeat('x', 100) FROM generate_series(1, 5000) g")
    session = connect(DATABASE)
    query(session, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM heirs")
    query(session, "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
    query(BOSS, "DELETE FROM tested WHERE a <= 4990")
    scan = "SELECT count(*) FROM tested WHERE a BETWEEN 1 AND 6000 AND c = 3"
    equal("transactions: a snapshot sees what was deleted since", value(session, scan), 500)
    query(session, "COMMIT")
    for i in range(60):
        query(BOSS, "INSERT INTO heirs SELECT g + %s, decode(repeat('ff', 170), 'hex') FROM generate_series(1, 200) g", (200 * i,))
    for protocol in "occ", "2pl":
        set_protocol(BOSS, "tested", protocol)
        for level in "READ COMMITTED", "SERIALIZABLE":
            for plan in "seqscan", "indexscan":
                query(session, f"BEGIN ISOLATION LEVEL {level}; SET LOCAL enable_{plan} = off; SET LOCAL enable_bitmapscan = off")
                equal(f"transactions: rows below tombstones, {protocol}, {level}, no {plan}", value(session, scan), 1)
                query(session, "COMMIT")
    session.close()


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
    """The pin of an idle READ COMMITTED session is ended by others; CREATE INDEX then left out rows
    that older snapshots see."""
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
    """READ ONLY was forgotten when the first query came after a SAVEPOINT: it waited for
    writers."""
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
    """SET TRANSACTION SNAPSHOT: the importer reads at the exporter's CSN, also after the exporter
    has ended."""
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


def loser_lets_the_winner_pass():
    """A session that repeated a transaction that lost a deadlock met the winner again, 68 times a
    commit with 64 sessions on hot rows. Now it waits before it begins, but not as long as a winner
    that does nothing."""
    create_table(BOSS, "duel", "id int PRIMARY KEY, v int", protocol="2pl")
    query(BOSS, "INSERT INTO duel SELECT g, 0 FROM generate_series(1, 3) g")
    loser, winner = connect(DATABASE), connect(DATABASE)
    for session, row in [(loser, 1), (winner, 2)]:
        query(session, f"SET statement_timeout = '20s'; BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE duel SET v = 1 WHERE id = {row}")
    got = []
    thread = threading.Thread(target=lambda: got.append(code(winner, "UPDATE duel SET v = 1 WHERE id = 1")))
    thread.start()
    must_come(lambda: waits_for_lock(BOSS, winner.info.backend_pid))
    equal("transactions: who completes a deadlock fails", code(loser, "UPDATE duel SET v = 1 WHERE id = 2"), "40P01")
    query(loser, "ROLLBACK")
    thread.join()
    equal("transactions: the other goes on", got, [None])
    began = time.monotonic()
    equal("transactions: the loser works beside an idle winner",
          code(loser, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT v FROM duel WHERE id = 3"), None)
    check("transactions: the loser lets the winner pass", time.monotonic() - began > 0.05, time.monotonic() - began)
    query(winner, "COMMIT")
    query(loser, "COMMIT")
    equal("transactions: the winner's rows", value(BOSS, "SELECT sum(v) FROM duel"), 2)
    loser.close()
    winner.close()


def failed_scan():
    """The scan of a cursor that had failed in a younger savepoint was asked how far it had come,
    when its table's entry in the session was freed."""
    create_table(BOSS, "failed", "id int PRIMARY KEY, v int", protocol="occ")
    query(BOSS, "INSERT INTO failed SELECT g * 10, g FROM generate_series(1, 10) g")
    for i in range(20):
        columns = ", ".join(f"c{n} int" for n in range(1 + i * 3))
        create_table(BOSS, f"next_{i}", columns)
    one = connect(DATABASE)
    query(one, "SET enable_seqscan = off; SET enable_bitmapscan = off")
    for way in ("on", "off"):
        query(one, f"SET mixedcc.enable_primary_scan = {way}")
        query(one, "BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO next_0 VALUES (1)")
        query(one, "DECLARE c CURSOR FOR SELECT 1 / (v - 5) FROM failed WHERE id > 0 ORDER BY id; FETCH 2 FROM c; SAVEPOINT s")
        got = [code(one, "FETCH ALL FROM c")]
        query(one, "ROLLBACK TO s")
        key = 15 if way == "on" else 25
        query(BOSS, f"ANALYZE failed; INSERT INTO failed VALUES ({key}, 0)")
        for i in range(20):
            query(one, f"SELECT count(*) FROM next_{i}")
        got.append(code(one, f"SELECT v FROM failed WHERE id = {key}") or code(one, "COMMIT"))
        equal(f"transactions: a scan that has failed is validated, enable_primary_scan {way}", got, ["22012", "40001"])
        query(one, "ROLLBACK")
    one.close()


def two_phase():
    """Every statement counted as a use of our tables; and a prepared transaction left its isolation
    to the next."""
    query(BOSS, "CREATE TABLE IF NOT EXISTS plain (id int) USING heap")
    create_table(BOSS, "prepared", "id int PRIMARY KEY, v int")
    query(BOSS, "INSERT INTO prepared VALUES (1, 0)")
    # Needs max_prepared_transactions, which scripts/server sets.
    session = connect(DATABASE)
    equal("transactions: PREPARE of a transaction of other tables",
          code(session, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT * FROM plain; PREPARE TRANSACTION 'mixedcc'"), None)
    query(BOSS, "ROLLBACK PREPARED 'mixedcc'")
    query(session, "BEGIN; SELECT v FROM prepared")
    query(BOSS, "UPDATE prepared SET v = 7")
    equal("transactions: READ COMMITTED after PREPARE", value(session, "SELECT v FROM prepared"), 7)
    query(session, "COMMIT")
    if OURS:
        query(session, "BEGIN; UPDATE prepared SET v = 8")
        equal("transactions: PREPARE of ours", code(session, "PREPARE TRANSACTION 'mixedcc'"), None)
        equal("transactions: the next one reads what was there before", value(session, "SELECT v FROM prepared"), 7)
        query(session, "ROLLBACK PREPARED 'mixedcc'")
    session.close()


BOSS = make_database(DATABASE)
try:
    main(undone_ddl, undone_storage, dropped_after_savepoint, many_changes, undone_partitions,
         freed_below_tombstones, loop_of_subtransactions, index_after_idleness, read_only_below_savepoint,
         copy_fixes_snapshot, imported_snapshots, two_phase, *([failed_scan, loser_lets_the_winner_pass] if OURS else []))
finally:
    BOSS.close()
    drop_database(DATABASE)
