#!/usr/bin/python3
"""Logical decoding: the same random statements run in a database of heap tables and in one of
permanent mixedcc tables, and test_decoding, pgoutput and wal2json say the same of both."""

import argparse
import io
import os
import random

import psycopg2

from lib import clusters, decoded
from lib.common import check, equal, main, must_be_found, query, value, wait_until

METHODS = ("heap", "mixedcc")
PREPARED = 10
# A row of this size is in pieces everywhere.
WIDE = 1 << 20
KEYS = 12
# A folder with output plugins of other packages: wal2json.
PLUGINS = os.environ.get("OUTPUT_PLUGINS")

TABLES = """
CREATE TABLE plain (id int PRIMARY KEY, v int, s text);
CREATE TABLE whole (id int PRIMARY KEY, v int, s text);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE keyless (a int, b text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE by_index (a int, k text NOT NULL, v int, u int NOT NULL);
CREATE UNIQUE INDEX by_index_key ON by_index (k, u);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_key;
CREATE TABLE nothing (id int PRIMARY KEY, v int, s text);
ALTER TABLE nothing REPLICA IDENTITY NOTHING;
CREATE TABLE keyed_pair (b int, v int, s text, a bigint, PRIMARY KEY (a, b));
CREATE TABLE parent (id int PRIMARY KEY, v int);
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent ON UPDATE CASCADE ON DELETE CASCADE, v int);
CREATE TABLE parts (id int, place int, v int, PRIMARY KEY (place, id)) PARTITION BY LIST (place);
CREATE TABLE parts_0 PARTITION OF parts FOR VALUES IN (0);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1);
CREATE TABLE changed (id serial PRIMARY KEY, what text);
CREATE TABLE watched (id int PRIMARY KEY, v int, s text);
CREATE FUNCTION before() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
    NEW.s := coalesce(NEW.s, '') || '!'; RETURN NEW; END $$;
CREATE FUNCTION after() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO changed (what) VALUES (TG_OP || coalesce(NEW.id, OLD.id)); RETURN NULL; END $$;
CREATE TRIGGER b BEFORE INSERT OR UPDATE OR DELETE ON watched FOR EACH ROW EXECUTE FUNCTION before();
CREATE TRIGGER a AFTER INSERT OR UPDATE OR DELETE ON watched FOR EACH ROW EXECUTE FUNCTION after();
CREATE TABLE wide (id int PRIMARY KEY, v int, s text);
ALTER TABLE wide ALTER s SET STORAGE EXTERNAL;
CREATE TABLE packed (id int PRIMARY KEY, v int, s text, t text);
ALTER TABLE packed REPLICA IDENTITY FULL;
CREATE TABLE packed_key (k text PRIMARY KEY, v int);
CREATE TABLE made (id int PRIMARY KEY, v int, twice int GENERATED ALWAYS AS (v * 2) STORED, s text DEFAULT 'x');
"""

# With rows of NULLs, of one column, of a row type; and names of columns that were dropped.
SIMPLE = ("plain", "whole", "nothing", "watched", "made")


class Draw(random.Random):
    """Statements, drawn at random, for heap and mixedcc alike."""

    def text(self):
        return self.choice(("NULL", "''", "'a'", f"'{self.randint(0, 99)}'", f"repeat('{self.choice('xyz')}', {self.randint(1, 900)})"))

    def insert(self, table):
        end = self.choice(("", "", " ON CONFLICT DO NOTHING", " ON CONFLICT (id) DO UPDATE SET v = excluded.v + 1",
                           " ON CONFLICT (id) DO UPDATE SET v = 7 WHERE excluded.v > 50 RETURNING v"))
        return f"INSERT INTO {table} (id, v, s) VALUES ({self.randint(1, KEYS)}, {self.randint(0, 99)}, {self.text()}){end}"

    def write(self, table):
        key = self.randint(1, KEYS)
        return self.choice((
            f"UPDATE {table} SET v = v + {self.randint(0, 3)} WHERE id = {key}",
            f"UPDATE {table} SET v = {self.randint(0, 99)}, s = {self.text()} WHERE id = {key}",
            f"UPDATE {table} SET id = {self.randint(1, KEYS)} WHERE id = {key}",
            f"UPDATE {table} SET id = id WHERE id = {key}",
            f"DELETE FROM {table} WHERE id = {key}",
            self.insert(table), self.insert(table), self.insert(table),
        ))

    def many(self):
        first = self.randint(100, 1000000)
        return self.choice((
            f"INSERT INTO plain SELECT i, i % 7, 'many' FROM generate_series({first}, {first + 30}) i",
            "COPY",
            f"DO $$ DECLARE i int; BEGIN FOR i IN SELECT id FROM plain WHERE id > {KEYS} ORDER BY id LIMIT 20 LOOP"
            " UPDATE plain SET v = v + 1 WHERE id = i; END LOOP; END $$",
            f"DO $$ DECLARE i int; BEGIN FOR i IN SELECT id FROM plain WHERE id > {KEYS} ORDER BY id LIMIT 20 LOOP"
            " DELETE FROM plain WHERE id = i; END LOOP; END $$",
            f"MERGE INTO plain t USING (VALUES ({self.randint(1, KEYS)}, {self.randint(0, 99)})) n (id, v) ON t.id = n.id"
            " WHEN MATCHED AND n.v < 20 THEN DELETE WHEN MATCHED THEN UPDATE SET v = n.v"
            " WHEN NOT MATCHED THEN INSERT VALUES (n.id, n.v, 'merged')",
        ))

    def other(self):
        key, place = self.randint(1, KEYS), self.randint(0, 1)
        return self.choice((
            f"INSERT INTO keyless VALUES ({key}, {self.text()})",
            f"DELETE FROM keyless WHERE a = {key}",
            f"UPDATE keyless SET b = {self.text()} WHERE a = {key}",
            f"INSERT INTO by_index VALUES ({self.randint(0, 9)}, '{key}', {self.randint(0, 9)}, {place}) ON CONFLICT DO NOTHING",
            f"UPDATE by_index SET v = v + 1 WHERE k = '{key}' AND u = {place}",
            f"UPDATE by_index SET k = '{self.randint(1, KEYS)}' WHERE k = '{key}' AND u = {place}",
            f"DELETE FROM by_index WHERE k = '{key}' AND u = {place}",
            f"INSERT INTO keyed_pair VALUES ({place}, 1, {self.text()}, {key}) ON CONFLICT (a, b) DO UPDATE SET v = keyed_pair.v + 1",
            f"UPDATE keyed_pair SET b = 1 - b WHERE a = {key} AND b = {place}",
            f"DELETE FROM keyed_pair WHERE a = {key}  AND b = {place}",
            f"INSERT INTO parent VALUES ({key}, 1) ON CONFLICT DO NOTHING",
            f"INSERT INTO child VALUES ({key}, {self.randint(1, KEYS)}, 1)",
            f"UPDATE parent SET id = {self.randint(1, KEYS)} WHERE id = {key}",
            f"DELETE FROM parent WHERE id = {key}",
            f"INSERT INTO parts VALUES ({key}, {place}, 1)",
            f"UPDATE parts SET place = 1 - place WHERE id = {key} AND place = {place}",
            f"UPDATE parts SET v = v + 1 WHERE id = {key} AND place = {place}",
            f"DELETE FROM parts WHERE id = {key} AND place = {place}",
            f"INSERT INTO wide VALUES ({key}, 1, repeat('{key}', {WIDE})) ON CONFLICT (id) DO UPDATE SET s = repeat('u', 1000)",
            f"UPDATE wide SET id = {self.randint(1, KEYS)}, s = repeat('w', {WIDE}) WHERE id = {key}",
            f"DELETE FROM wide WHERE id = {key}",
            f"INSERT INTO packed VALUES ({key}, 1, repeat('{key}', 20000), repeat('t', 9000)) ON CONFLICT (id) DO UPDATE SET s = repeat('u', 5000)",
            f"UPDATE packed SET v = v + 1, id = {self.randint(1, KEYS)} WHERE id = {key}",
            f"UPDATE packed SET s = {self.text()} WHERE id = {key}",
            f"UPDATE packed SET t = s || 'more' WHERE id = {key}",
            f"DELETE FROM packed WHERE id = {key}",
            f"INSERT INTO packed_key VALUES (repeat('{key}', 9000), 1) ON CONFLICT (k) DO UPDATE SET v = packed_key.v + 1",
            f"UPDATE packed_key SET k = k WHERE k = repeat('{key}', 9000)",
            f"UPDATE packed_key SET k = repeat('{self.randint(1, KEYS)}', 9000) WHERE k = repeat('{key}', 9000)",
            f"UPDATE packed_key SET v = v + 1 WHERE k = repeat('{key}', 9000)",
            f"DELETE FROM packed_key WHERE k = repeat('{key}', 9000)",
        ))

    def native(self):
        """The same change: by SQL, and by a function."""
        key, v = self.randint(1, KEYS), self.randint(0, 99)
        table = self.choice(("plain", "whole", "nothing"))
        return self.choice((
            (f"UPDATE {table} SET v = v + {v} WHERE id = {key}", f"SELECT mixedcc.add(NULL::{table}, 'v', {v}, {key})"),
            (f"UPDATE {table} SET v = {v} WHERE id = {key}", f"SELECT mixedcc.set(NULL::{table}, 'v', {v}, {key})"),
            (f"DELETE FROM {table} WHERE id = {key}", f"SELECT mixedcc.remove(NULL::{table}, {key})"),
            (f"INSERT INTO {table} VALUES ({key}, {v}, 'native')", f"SELECT mixedcc.insert(ROW({key}, {v}, 'native')::{table})"),
            (f"UPDATE {table} SET v = {v}, s = 'put' WHERE id = {key}", f"SELECT mixedcc.put(ROW({key}, {v}, 'put')::{table})"),
        ))

    def definition(self):
        return self.choice((
            "TRUNCATE keyless", "TRUNCATE plain, whole", "TRUNCATE parent CASCADE", "TRUNCATE changed RESTART IDENTITY",
            f"ALTER TABLE made ADD COLUMN c{self.randint(0, 10**9)} int DEFAULT 5",
            "ALTER TABLE made ALTER COLUMN s TYPE varchar",
            "ALTER TABLE made ALTER COLUMN v TYPE bigint, ALTER COLUMN v TYPE bigint",
            "VACUUM FULL plain", "CLUSTER whole USING whole_pkey", "ALTER TABLE by_index REPLICA IDENTITY FULL",
            "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_key", "ALTER TABLE whole REPLICA IDENTITY DEFAULT",
            "ALTER TABLE whole REPLICA IDENTITY FULL", "DROP TABLE IF EXISTS fresh",
            "CREATE TABLE IF NOT EXISTS fresh AS SELECT i AS id, 'new' AS s FROM generate_series(1, 5) i",
        ))

    def statement(self):
        """One for heap, and one for mixedcc."""
        kind = self.random()
        if kind < 0.05:
            return (self.definition(),) * 2
        if kind < 0.15:
            return (self.many(),) * 2
        if kind < 0.3:
            return self.native()
        if kind < 0.6:
            return (self.other(),) * 2
        return (self.write(self.choice(SIMPLE)),) * 2


class Sides:
    """A database of each method, with one session in each, and its slots."""

    def __init__(self, cluster, name):
        self.sessions, self.name = [], name
        boss = cluster.connect()
        for method in METHODS:
            query(boss, f"CREATE DATABASE {name}_{method}")
            session = cluster.connect(dbname=f"{name}_{method}")
            if method == "mixedcc":
                query(session, "CREATE EXTENSION mixedcc")
            query(session, f"SET default_table_access_method = {method}")
            query(session, TABLES)
            self.sessions.append(session)
        boss.close()

    def slot(self, name, plugin, two_phase=False):
        for method, session in zip(METHODS, self.sessions):
            query(session, "SELECT pg_create_logical_replication_slot(%s, %s, false, %s)", (f"{self.name}_{name}_{method}", plugin, two_phase))

    def run(self, heap, ours=None):
        """Runs a statement on both sides. They end alike. True: it has."""
        ends = []
        for session, sql in zip(self.sessions, (heap, ours or heap)):
            try:
                if sql == "COPY":
                    with session.cursor() as cursor:
                        start = 2000000 + 100 * self.copies
                        rows = "".join(f"{i}\t1\tcopied\n" for i in range(start, start + 20))
                        cursor.copy_expert("COPY plain FROM STDIN", io.StringIO(rows))
                else:
                    query(session, sql)
                ends.append("")
            except psycopg2.Error as error:
                ends.append(error.pgcode)
        self.copies += heap == "COPY"
        if ends[0] != ends[1]:
            raise RuntimeError(f"{heap} ends with {ends[0]!r} on heap, with {ends[1]!r} on mixedcc")
        return not ends[0]

    copies = 0

    def do(self, heap, ours=None):
        """Runs a statement that succeeds on both sides."""
        for session, sql in zip(self.sessions, (heap, ours or heap)):
            query(session, sql)

    def compare(self, name, slot, get):
        found = [get(session, f"{self.name}_{slot}_{method}") for method, session in zip(METHODS, self.sessions)]
        return equal(name, found[1], found[0]) and found[1]

    def close(self):
        for session in self.sessions:
            session.close()


def transaction(sides, draw, number):
    """A transaction of random statements, with savepoints, that ends in any way."""
    level = draw.choice(("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"))
    sides.run(f"BEGIN ISOLATION LEVEL {level}")
    if draw.random() < 0.3:
        sides.do("SELECT 1", "SET LOCAL mixedcc.enable_bypass = off")
    depth, defines = 0, False
    for _ in range(draw.randint(1, 9)):
        heap, ours = draw.statement()
        if heap.startswith("VACUUM"):
            continue
        defines |= heap.startswith(("ALTER", "TRUNCATE", "DROP", "CREATE", "CLUSTER"))
        if draw.random() < 0.3:
            depth += 1
            sides.run(f"SAVEPOINT s{depth}")
        if not sides.run(heap, ours):
            if not depth:
                sides.run("ROLLBACK")
                return
            sides.run(f"ROLLBACK TO s{depth}")
        elif depth and draw.random() < 0.2:
            sides.run(f"{draw.choice(('ROLLBACK TO', 'RELEASE'))} s{depth}")
            depth -= 1
    end = draw.random()
    if end < 0.15:
        sides.run("ROLLBACK")
    elif end < 0.35 and not defines:
        names = f"p{number}"
        if sides.run(*(f"PREPARE TRANSACTION '{names}_{method}'" for method in METHODS)):
            word = draw.choice(("COMMIT", "COMMIT", "ROLLBACK"))
            sides.run(*(f"{word} PREPARED '{names}_{method}'" for method in METHODS))
    else:
        sides.run("COMMIT")


def sorted_cascades(lines):
    """The rows of one cascade come in the order of their places, which is another one in heap."""
    kept, run = [], []
    for line in [*lines, ""]:
        if run and not (line.startswith("table public.child:") and line.split(":")[1] == run[0].split(":")[1]):
            kept += sorted(run)
            run = []
        if line.startswith("table public.child:"):
            run.append(line)
        elif line:
            kept.append(line)
    return kept


def no_prepared(lines):
    """Names of prepared transactions are of a side."""
    return [line.replace("_heap'", "'").replace("_mixedcc'", "'") for line in lines]


def by_test_decoding(connection, slot, **options):
    return sorted_cascades(no_prepared(decoded.in_words(decoded.texts(connection, slot, **{"skip-empty-xacts": "1", **options}))))


def random_statements(cluster, seed, transactions):
    """Random transactions are decoded alike."""
    draw, sides = Draw(seed), Sides(cluster, "random")
    try:
        sides.slot("text", "test_decoding")
        sides.slot("phases", "test_decoding", two_phase=True)
        sides.slot("rewrites", "test_decoding")
        if PLUGINS:
            sides.slot("json", "wal2json")
        for number in range(transactions):
            if draw.random() < 0.25:
                sides.run(*draw.statement())
            else:
                transaction(sides, draw, number)
        lines = sides.compare(f"test_decoding, seed {seed}", "text", by_test_decoding)
        words = " ".join(lines or [])
        check("all kinds of changes are among them", all(f"{kind}:" in words for kind in ("INSERT", "UPDATE", "DELETE", "TRUNCATE"))
              and "old-key:" in words and "(no-tuple-data)" in words, words[:3000])
        sides.compare("test_decoding of both phases", "phases", by_test_decoding)
        sides.compare("test_decoding with tables that are rewritten", "rewrites", lambda *of: by_test_decoding(*of, **{"include-rewrites": "1"}))
        if PLUGINS:
            sides.compare("wal2json", "json", lambda *of: sorted_json(decoded.texts(*of, **{"format-version": "2", "include-pk": "1"})))
    finally:
        sides.close()


def sorted_json(lines):
    """Without empty transactions, which one side may have, and with cascades in one order."""
    kept, run = [], []
    for line in [*lines, ""]:
        if '"table":"child"' in line and (not run or line[:20] == run[0][:20]):
            run.append(line)
            continue
        kept += [*sorted(run), line]
        run = []
        if [each[:13] for each in kept[-2:]] == ['{"action":"B"', '{"action":"C"']:
            del kept[-2:]
    return kept


def publications(cluster):
    """pgoutput: row filters, column lists, origins of rows, truncations, and large transactions
    that are streamed."""
    sides = Sides(cluster, "outputs")
    try:
        sides.do("""CREATE PUBLICATION everything FOR ALL TABLES;
            CREATE PUBLICATION parted FOR TABLE plain (id, v) WHERE (id > 3), whole WHERE (v > 40), keyed_pair (a, b), parts;
            CREATE PUBLICATION rooted FOR TABLE parts WITH (publish_via_partition_root);
            CREATE PUBLICATION inserts FOR TABLES IN SCHEMA public WITH (publish = 'insert')""")
        for publication in ("everything", "parted", "rooted", "inserts"):
            sides.slot(publication, "pgoutput")
        sides.slot("streamed", "pgoutput")
        sides.slot("phased", "pgoutput", two_phase=True)
        for n in range(1, 8):
            sides.do(f"INSERT INTO plain VALUES ({n}, {n * 10}, 's')")
            sides.do(f"INSERT INTO whole VALUES ({n}, {n * 10}, 's')")
            sides.do(f"INSERT INTO keyed_pair VALUES ({n}, 1, 's', 5)")
            sides.do(f"INSERT INTO parts VALUES ({n}, {n % 2}, 1)")
        for statement in ("UPDATE plain SET id = id - 6 WHERE id = 6", "UPDATE plain SET id = id + 10 WHERE id = 2",
                          "UPDATE whole SET v = 100 - v WHERE id IN (1)", "UPDATE whole SET v = 10 WHERE id = 7",
                          "UPDATE keyed_pair SET s = 'unseen' WHERE b = 3", "UPDATE parts SET place = 1 - place WHERE id = 1",
                          "DELETE FROM whole WHERE id = 7", "DELETE FROM plain WHERE id = 4", "TRUNCATE plain, parts",
                          "INSERT INTO wide VALUES (1, 1, repeat('x', 1048576))", "DELETE FROM wide"):
            sides.do(statement)
        # Three of a size that is streamed: committed, with a part undone, and undone as a whole.
        big = "INSERT INTO plain SELECT i, i, repeat('y', 100) FROM generate_series({0}, {0} + 1500) i"
        sides.do(f"BEGIN; {big.format(1000)}; SAVEPOINT a; {big.format(5000)}; ROLLBACK TO a; {big.format(9000)}; COMMIT")
        sides.do(f"BEGIN; {big.format(20000)}; ROLLBACK")
        sides.do(*(f"BEGIN; {big.format(30000)}; PREPARE TRANSACTION 'large_{method}'" for method in METHODS))
        sides.do(*(f"COMMIT PREPARED 'large_{method}'" for method in METHODS))
        for publication in ("everything", "parted", "rooted", "inserts"):
            got = sides.compare(f"pgoutput, publication {publication}", publication, lambda *of, p=publication: decoded.outputs(*of, p))
            check(f"publication {publication} has sent rows", got and sum(m[0] == "I" for m in got) > 3)
        for session in sides.sessions:
            query(session, "SET logical_decoding_work_mem = '64kB'")
        rows = lambda *of, **options: names_of_both(decoded.outputs(*of, "everything", streaming="on", **options))
        sides.compare("pgoutput, streamed", "streamed", rows)
        sides.compare("pgoutput, in two phases and streamed", "phased", lambda *of: rows(*of, two_phase="on"))
        equal("something was streamed", [query(session, "SELECT stream_txns > 1 FROM pg_stat_replication_slots WHERE slot_name LIKE 'outputs_streamed_' || %s", (method,))
                                          for method, session in zip(METHODS, sides.sessions)], [[(True,)]] * 2)
    finally:
        sides.close()


def names_of_both(messages):
    return [tuple(part.replace("_heap", "").replace("_mixedcc", "") if isinstance(part, str) else part for part in m) for m in messages]


def other_databases(cluster):
    """A slot has the changes of its database alone, whatever names and numbers others have."""
    sides = Sides(cluster, "beside")
    try:
        sides.slot("a", "test_decoding")
        other = cluster.connect(dbname="random_mixedcc")
        # PostgreSQL forgets such a transaction at its end. A large one is streamed before that.
        query(other, "INSERT INTO keyless SELECT i, 'of another database' FROM generate_series(1, 3000) i")
        other.close()
        sides.do("INSERT INTO keyless VALUES (1, 'own')")
        for session in sides.sessions:
            query(session, "SET logical_decoding_work_mem = '64kB'")
        try:
            got = sides.compare("changes of another database are not among them", "a", lambda *of: by_test_decoding(*of, **{"stream-changes": "1"}))
            check("changes of the own database are", got and any("'own'" in line for line in got), got)
        except psycopg2.Error as error:
            check("changes of another database are not among them", False, error)
    finally:
        sides.close()


def origins(cluster):
    """A change that was replayed has the origin of its session."""
    sides = Sides(cluster, "origins")
    try:
        sides.slot("local", "test_decoding")
        sides.slot("all", "test_decoding")
        for session in sides.sessions:
            query(session, "SELECT pg_replication_origin_create('o' || current_database())")
            query(session, "INSERT INTO plain VALUES (1, 1, 'local')")
            query(session, "SELECT pg_replication_origin_session_setup('o' || current_database())")
            query(session, "INSERT INTO plain VALUES (2, 1, 'replayed')")
            query(session, "UPDATE plain SET v = 2 WHERE id = 2")
            query(session, "SELECT pg_replication_origin_session_reset()")
        got = sides.compare("only local changes", "local", lambda *of: by_test_decoding(*of, **{"only-local": "1"}))
        check("the local one is there", got and len([line for line in got if "INSERT" in line]) == 1, got)
        got = sides.compare("changes of all origins", "all", by_test_decoding)
        check("the others are there", got and len(got) > 6, got)
    finally:
        sides.close()


def restart(cluster):
    """A slot goes on where it was, after a crash in the middle of a transaction."""
    sides = Sides(cluster, "restart")
    sides.slot("a", "test_decoding")
    sides.do("INSERT INTO plain VALUES (1, 1, 'before'); UPDATE plain SET v = 2")
    others = [cluster.connect(dbname=f"restart_{method}") for method in METHODS]
    for other in others:
        query(other, "BEGIN; INSERT INTO plain VALUES (2, 1, 'lost')")
    sides.do(*(f"BEGIN; UPDATE whole SET v = 1; INSERT INTO whole VALUES (1, 1, 'prepared'); PREPARE TRANSACTION 'r_{method}'" for method in METHODS))
    cluster.crash()
    for session in (*others, *sides.sessions):
        session.close()
    cluster.start()
    sides.sessions = [cluster.connect(dbname=f"restart_{method}") for method in METHODS]
    sides.do(*(f"COMMIT PREPARED 'r_{method}'" for method in METHODS))
    sides.do("DELETE FROM plain WHERE id = 1")
    got = sides.compare("decoding after a crash", "a", by_test_decoding)
    check("it has all that was committed", got and "lost" not in str(got) and "prepared" in str(got) and "DELETE" in str(got), got)
    sides.close()


def serializable(cluster):
    """Transactions of mixedcc tables alone do not become mixed ones by the ids that they take."""
    session = cluster.connect(dbname="random_mixedcc")
    query(session, "SET mixedcc.mixed_serializable = 'serializable'")
    query(session, "BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO keyless VALUES (77, 'own id')")
    held = value(session, "SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
    check("a transaction has an id from its first change on", held)
    query(session, "COMMIT")
    session.close()


def allow_plugins(cluster):
    """Newer minor versions of PostgreSQL load known output plugins only."""
    boss = cluster.connect()
    found = query(boss, "SELECT setting FROM pg_settings WHERE name = 'output_plugin_libraries'")
    for setting, in found:
        names = {name.strip() for name in setting.split(",")} | {"wal2json", "test_decoding", "pgoutput"}
        query(boss, f"ALTER SYSTEM SET output_plugin_libraries = {', '.join(sorted(names - {''}))}")
        query(boss, "SELECT pg_reload_conf()")
    boss.close()
    wait_until(lambda: not found or "wal2json" in cluster.ask("SHOW output_plugin_libraries"), 20)


def with_server(*tests):
    cluster = clusters.Cluster.new(wal_level="logical", max_prepared_transactions=str(PREPARED), max_replication_slots="40",
                                   logical_decoding_work_mem="64MB", dynamic_library_path=f"$libdir:{PLUGINS or '/nonexistent'}")
    try:
        cluster.start()
        allow_plugins(cluster)
        for test in tests:
            test(cluster)
    finally:
        cluster.remove()


def all_tests(seed, transactions):
    with_server(lambda c: random_statements(c, seed, transactions), publications, other_databases, origins, serializable, restart)


def faults():
    """Each of these faults must be found."""
    def broken(name, failing, *tests):
        def test():
            def run(cluster):
                cluster.configure(**{"mixedcc.fault": name})
                cluster.ask("SELECT pg_reload_conf()")
                for each in tests:
                    each(cluster)
            with_server(run)
        must_be_found(name, failing, test)
    broken("old_key_left_out", "test_decoding, seed 1", lambda c: random_statements(c, 1, 60))
    broken("decodes_all", "changes of another database are not among them", lambda c: random_statements(c, 1, 2), other_databases)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--transactions", type=int, default=250)
    arguments = parser.parse_args()
    main(*([faults] if arguments.faults else [lambda: all_tests(arguments.seed, arguments.transactions)]))
