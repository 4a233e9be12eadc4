#!/usr/bin/python3
"""What mixedcc.advice says, topic by topic, of loads that are made for it; that it can be run as it
stands; and that it is gone when it was followed."""

import re
import threading
import time

from process.switching import choice
from lib.common import OURS, check, connect, equal, main, make_database, ok, query, value, wait_until
from process.switching.choice import DATABASE, PATIENCE, SERIALIZABLE, Clients, clean_up, configure, fast, gets, leaf, model_file, reset, stays, table, why


def sample_all():
    """From now on every transaction is sampled, whatever was committed before."""
    reset()
    configure(sample_every="1", adaptive_interval="100ms")
    table(name="probe")

    def all_are():
        query(choice.BOSS, "SELECT mixedcc.reset_stats('probe')")
        for n in range(5):
            query(choice.BOSS, f"UPDATE probe SET v = v + 1 WHERE id = {n}")
        return value(choice.BOSS, "SELECT sum(sampled) FROM mixedcc.partition_stats WHERE \"table\" = 'probe'::regclass") == 5

    check("advice: all transactions are sampled", wait_until(all_are, PATIENCE))
    query(choice.BOSS, "DROP TABLE probe")
    configure(adaptive_interval="1s")


def advice_of(name):
    return dict(query(choice.BOSS, 'SELECT topic, advice FROM mixedcc.advice WHERE "table" = %s::regclass', (name,)))


def test_advice():
    """Transactions over several partitions: the advice names the columns to partition by."""
    sample_all()
    query(choice.BOSS, "DROP TABLE IF EXISTS o")
    query(choice.BOSS, "CREATE TABLE o (w int, i int, v int, PRIMARY KEY (w, i)) USING mixedcc WITH (mixedcc.partitions = 4)")
    query(choice.BOSS, "INSERT INTO o SELECT w, i, 0 FROM generate_series(1, 4) w, generate_series(1, 50) i")
    query(choice.BOSS, "SELECT mixedcc.reset_stats('o')")
    c = connect(DATABASE, options=SERIALIZABLE)
    for n in range(80):
        query(c, f"DO $$ BEGIN FOR k IN 1..6 LOOP PERFORM v FROM o WHERE w = {n % 4 + 1} AND i = k; END LOOP; END $$")
    c.close()
    advice = dict(query(choice.BOSS, "SELECT topic, advice FROM mixedcc.advice WHERE \"table\" = 'o'::regclass"))
    check("advice: advice on the partition key", "mixedcc.partition_by = 'w'" in advice.get("partition_by", ""), advice)
    check("advice: and on declarations", "mixedcc.annotate" in advice.get("annotate", ""), advice)
    query(choice.BOSS, "ALTER TABLE o SET (mixedcc.partition_by = 'w')")
    query(choice.BOSS, "SELECT mixedcc.reset_stats('o')")
    c = connect(DATABASE, options=SERIALIZABLE)
    for n in range(80):
        query(c, f"DO $$ BEGIN FOR k IN 1..6 LOOP PERFORM v FROM o WHERE w = {n % 4 + 1} AND i = k; END LOOP; END $$")
    c.close()
    advice = dict(query(choice.BOSS, "SELECT topic, advice FROM mixedcc.advice WHERE \"table\" = 'o'::regclass"))
    check("advice: followed, it is gone", "partition_by" not in advice and "annotate" not in advice, advice)


def test_advice_keys():
    """The columns that the rows of one transaction share are advised, whatever the table is
    partitioned by now."""
    sample_all()
    query(choice.BOSS, "DROP TABLE IF EXISTS k")
    query(choice.BOSS, "CREATE TABLE k (w int, d int, o int, v int, PRIMARY KEY (w, d, o)) USING mixedcc WITH (mixedcc.partitions = 16)")
    query(choice.BOSS, "INSERT INTO k SELECT w, d, o, 0 FROM generate_series(1, 4) w, generate_series(1, 5) d, generate_series(1, 6) o")
    c = connect(DATABASE, options=SERIALIZABLE)

    def run(statement):
        """Transactions of six statements; j in it counts them, {n} the transactions."""
        query(choice.BOSS, "SELECT mixedcc.reset_stats('k')")
        for n in range(40):
            query(c, f"DO $$ BEGIN FOR j IN 1..6 LOOP {statement.format(n=n)} END LOOP; END $$")
        return advice_of("k").get("partition_by", "")

    def shares():
        return query(choice.BOSS, "SELECT \"column\", sampled, round(common_share::numeric, 1)::float8 FROM mixedcc.key_stats WHERE \"table\" = 'k'::regclass ORDER BY place")

    across = "UPDATE k SET v = v + 1 WHERE w = {n} % 4 + 1 AND d = j % 5 + 1 AND o = j;"
    within = "PERFORM v FROM k WHERE w = {n} % 4 + 1 AND d = {n} % 5 + 1 AND o = j;"
    said = run(across)
    check("advice: what is shared across districts is advised", "mixedcc.partition_by = 'w'" in said, said)
    # The first transactions of a session may be left out.
    equal("advice: key_stats shows it", [(c, 30 <= n <= 40, share) for c, n, share in shares()], [("w", True, 1.0), ("d", True, 0.0), ("o", True, 0.0)])
    said = run(within)
    check("advice: what is shared within districts is advised", "mixedcc.partition_by = 'w, d'" in said, said)
    query(choice.BOSS, "ALTER TABLE k SET (mixedcc.partition_by = 'w, d')")
    equal("advice: a new map starts the statistics again", shares()[0][1], 0)
    said = run(within)
    equal("advice: followed, nothing is advised", said, "")
    said = run(across)
    check("advice: with a key that does not fit any more, another one is", "mixedcc.partition_by = 'w'" in said, said)
    said = run("PERFORM v FROM k WHERE w = 2 AND d = j % 5 + 1 AND o = j;")
    check("advice: a column of one value divides nothing", "no column of its key" in said, said)
    said = run("PERFORM v FROM k WHERE w = {n} % 4 + 1 AND d = 1 AND o = 1 AND j = 1;")
    equal("advice: nor is anything advised of transactions of one row", (said, shares()[0][1]), ("", 0))
    run("")
    for n in range(30):  # reads before ROLLBACK TO a savepoint count no more
        query(c, "BEGIN; SAVEPOINT s; SELECT v FROM k WHERE w = 1 AND d = 1 AND o = 1; ROLLBACK TO s; SELECT v FROM k WHERE w = 2 AND d = 1 AND o = 1; COMMIT")
    equal("advice: what a savepoint read is left out", shares()[0][1], 0)
    for n in range(5):  # the table changes in the transaction that has used it
        query(c, "BEGIN; SELECT sum(v) FROM k WHERE w = 1 AND d < 3; ALTER TABLE k ALTER v TYPE bigint; COMMIT; ALTER TABLE k ALTER v TYPE int")
    query(c, "BEGIN; SELECT v FROM k WHERE w = 1 AND d = 1; DROP TABLE k; COMMIT")
    c.close()
    ok("advice: nor of a table that is gone")
    table(name="one")
    query(choice.BOSS, "SELECT mixedcc.reset_stats('one')")
    c = connect(DATABASE, options=SERIALIZABLE)
    for n in range(40):
        query(c, f"DO $$ BEGIN FOR j IN 1..6 LOOP PERFORM v FROM one WHERE id = j + {n}; END LOOP; END $$")
    c.close()
    said = advice_of("one").get("partition_by", "")
    check("advice: a key of one column needs another one, or bounds", "no column of its key" in said and "range" in said, said)
    query(choice.BOSS, "DROP TABLE one")


def test_advice_functions():
    """Functions to annotate are named, with their arguments where these are called like the key."""
    sample_all()
    query(choice.BOSS, "DROP TABLE IF EXISTS f")
    query(choice.BOSS, "CREATE TABLE f (w_id int, i int, v int, PRIMARY KEY (w_id, i)) USING mixedcc WITH (mixedcc.partitions = 4, mixedcc.partition_by = w_id)")
    query(choice.BOSS, "INSERT INTO f SELECT w, i, 0 FROM generate_series(1, 4) w, generate_series(1, 50) i")
    query(choice.BOSS, """CREATE OR REPLACE FUNCTION two(i int, w bigint, other text) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN PERFORM v FROM f WHERE w_id = w AND f.i = 1; PERFORM v FROM f WHERE w_id = 5 - w AND f.i = 1; END $$;
        CREATE OR REPLACE FUNCTION nameless(int) RETURNS bigint LANGUAGE sql AS 'SELECT sum(v) FROM f WHERE i = $1';
        CREATE OR REPLACE FUNCTION stranger(w_id int) RETURNS int LANGUAGE sql AS 'SELECT w_id AS ff'""")
    query(choice.BOSS, "SELECT mixedcc.reset_stats('f')")
    c = connect(DATABASE, options=SERIALIZABLE)
    for n in range(40):
        query(c, f"SELECT two(1, {n % 4 + 1}, '')")
    said = advice_of("f").get("annotate", "")
    check("advice: a function is named", "SELECT mixedcc.annotate('public.two(integer,bigint,text)', 'public.f', 'w');" in said, said)
    check("advice: one without names is too", "nameless(integer) (no argument" in said and "stranger" not in said, said)
    query(choice.BOSS, re.search(r"SELECT mixedcc.annotate[^;]*", said).group())
    said = advice_of("f").get("annotate", "")
    check("advice: one that is annotated is not", "two(" not in said and "nameless" in said, said)
    c.close()
    query(choice.BOSS, "DROP FUNCTION two; DROP FUNCTION nameless; DROP FUNCTION stranger; DROP TABLE f")


def test_advice_protocols():
    """When partcc would pay, by the model; when partitions would; what keeps partcc out."""
    fast(model_file=model_file("partcc.json", leaf(0.0), leaf(0.9), leaf(0.9)))
    table(", mixedcc.candidates = 'occ, 2pl'")
    with Clients(writes=True):
        check("advice: partcc is advised by the model", wait_until(lambda: "59 % less under partcc" in advice_of("t").get("partcc", ""), PATIENCE), (advice_of("t"), why()))
        said = advice_of("t")["partcc"]
        check("advice: and why it is not chosen", "no candidate" in said and "2 of the 2 partitions" in said, said)
        query(choice.BOSS, "ALTER TABLE t RESET (mixedcc.candidates)")
        check("advice: where it is chosen it is not advised", gets("partcc") and wait_until(lambda: "partcc" not in advice_of("t"), PATIENCE), advice_of("t"))
        configure(model_file=model_file("occ.json", leaf(0.9), leaf(0.0), leaf(0.9)))
        check("advice: nor where the model is against it", gets("occ") and stays("occ", limit=0.5) and wait_until(lambda: "partcc" not in advice_of("t"), PATIENCE), advice_of("t"))
    table(", mixedcc.protocol = occ")
    sample_all()
    configure(adaptive_min_samples="1000000")
    query(choice.BOSS, "SELECT mixedcc.reset_stats('t')")
    one, two = (connect(DATABASE, options=SERIALIZABLE) for _ in range(2))
    for n in range(40):
        for c in (one, two):
            query(c, "UPDATE t SET v = v + 1 WHERE id = 7")
    # The coordinator has to have come by once, to say that it does not choose here.
    told = wait_until(lambda: "name a protocol" in advice_of("t").get("partcc", ""), PATIENCE)
    check("advice: without the model it is advised by conflicts", told and "has not looked" in advice_of("t")["partcc"], advice_of("t"))
    query(choice.BOSS, "DROP TABLE t")
    query(choice.BOSS, "CREATE TABLE t (id int PRIMARY KEY, v int) USING mixedcc; INSERT INTO t VALUES (7, 0)")
    query(choice.BOSS, "SELECT mixedcc.reset_stats('t')")
    for n in range(40):
        for c in (one, two):
            query(c, "UPDATE t SET v = v + 1 WHERE id = 7")
    said = advice_of("t")
    check("advice: several partitions are advised for one with conflicts", "mixedcc.partitions = 16" in said.get("partitions", ""), said)
    check("advice: where nothing is lost they save nothing", "saves at most 0 %" in said["partitions"], said)
    # A session locks a row that the other one writes. That one sleeps for half of the time of both,
    # or a bit less.
    query(one, "BEGIN")
    query(one, "SELECT v FROM t WHERE id = 7 FOR UPDATE")
    waits = threading.Thread(target=query, args=(two, "UPDATE t SET v = v + 1 WHERE id = 7"))
    waits.start()
    time.sleep(2)
    query(one, "COMMIT")
    waits.join()
    advised = advice_of("t").get("partitions", "")
    found = re.search(r"at most (\d+) %.*: (\d+) % went into attempts that failed.*slept for its locks in (\d+) %", advised)
    shares = [int(g) for g in found.groups()] if found else []
    check("advice: they save what is slept and lost at most", shares and shares[0] == min(100, shares[1] + shares[2]) and 20 <= shares[2], advised)
    check("advice: without a reason there is no advice on transactions", "transactions" not in said, said)
    query(choice.BOSS, "SELECT mixedcc.reset_stats('t')")
    for n in range(40):
        for c in (one, two):
            query(c, "BEGIN")
            query(c, "SELECT v FROM t WHERE id = 7")
            query(c, "UPDATE t SET v = v + 1 WHERE id = 7")
            query(c, "COMMIT")
    said = advice_of("t").get("transactions", "")
    check("advice: transactions that wait for their client are advised against", "100 % of the transactions wait" in said and "0 % write below" in said, said)
    one.close()
    two.close()


def test_advice_names():
    """What is advised can be run as it stands, whatever the names."""
    sample_all()
    query(choice.BOSS, 'DROP SCHEMA IF EXISTS "S 1" CASCADE; CREATE SCHEMA "S 1"; DROP TABLE IF EXISTS "O\'o"')
    for schema in ("public", '"S 1"'):
        query(choice.BOSS, f"""CREATE TABLE {schema}."O'o" ("W d" int, "W'x" int, i int, v int, PRIMARY KEY ("W d", "W'x", i))
            USING mixedcc WITH (mixedcc.partitions = 4)""")
        query(choice.BOSS, f"""INSERT INTO {schema}."O'o" SELECT w, w, i, 0 FROM generate_series(1, 4) w, generate_series(1, 50) i""")
    query(choice.BOSS, "SELECT mixedcc.reset_stats()")
    c = connect(DATABASE, options=SERIALIZABLE)
    for n in range(80):
        w = n % 4 + 1
        query(c, f"""DO $$ BEGIN FOR k IN 1..6 LOOP
            PERFORM v FROM "S 1"."O'o" WHERE "W d" = {w} AND "W'x" = {w} AND i = k;
            PERFORM v FROM "O'o" WHERE "W d" = {w} AND "W'x" = {w} AND i = 1; END LOOP; END $$""")
    c.close()
    rows = query(choice.BOSS, """SELECT topic, advice FROM mixedcc.advice WHERE "table" = '"S 1"."O''o"'::regclass""")
    advice = dict(rows)
    found = re.search(r"ALTER TABLE .*\)(?=\.$)", advice.get("partition_by", ""))
    check("advice: advice in a schema", found, advice)
    query(choice.BOSS, found.group())
    equal("advice: it sets the columns", value(choice.BOSS, """SELECT value FROM mixedcc.options WHERE "table" = '"S 1"."O''o"'::regclass
        AND option = 'partition_by'"""), '"W d"+"W\'x"')
    check("advice: other tables are told by their schemas", '"O\'o"' in advice.get("align", "") and '"S 1"' not in advice["align"], advice)
    query(choice.BOSS, 'DROP SCHEMA "S 1" CASCADE; DROP TABLE "O\'o"')


if __name__ == "__main__":
    if not OURS:
        ok("advice: heap has no protocols")
        raise SystemExit(0)
    choice.BOSS = make_database(DATABASE)
    main(test_advice, test_advice_keys, test_advice_functions, test_advice_protocols, test_advice_names, clean_up)
