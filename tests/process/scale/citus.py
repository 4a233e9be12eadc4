#!/usr/bin/python3
"""mixedcc tables as shards of Citus, a coordinator and two workers: what docs/scaling-out.md
promises. Without an installation of Citus it says so, and checks nothing."""

import random
import sys
import threading

import psycopg2

from lib import citus
from lib.common import RETRY, check, equal, main, must_come, premise, query, value

TENANTS = 40
# Each table is permanent in one form and unlogged in the other.
KINDS = {"kept": "", "fast": "UNLOGGED"}
cluster = None


def attempt(connection, sql):
    """The error's SQLSTATE, or None."""
    try:
        query(connection, sql)
    except psycopg2.Error as error:
        return error.pgcode
    return None


def on_shards(table, sql):
    """A command for each shard, whose name stands at %s: its results."""
    found = query(cluster.boss, "SELECT success, result FROM run_command_on_shards(%s, %s)", (table, sql))
    bad = [result for success, result in found if not success]
    if bad:
        raise RuntimeError(f"{sql}: {bad}")
    return [result for _, result in found]


def methods(table):
    return set(on_shards(table, "SELECT amname FROM pg_class c JOIN pg_am m ON m.oid = relam WHERE c.oid = '%s'::regclass"))


def to_method(table, method):
    """The recipe: the shards, and the coordinator's own table, from which new shards are made."""
    on_shards(table, f"ALTER TABLE %s SET ACCESS METHOD {method}")
    query(cluster.boss, f"""SET citus.enable_ddl_propagation = off;
        ALTER TABLE {table} SET ACCESS METHOD {method}; RESET citus.enable_ddl_propagation""")


def distribute(table, kind):
    query(cluster.boss, f"CREATE {kind} TABLE {table} (tenant int, id int, v int NOT NULL, PRIMARY KEY (tenant, id)) USING heap")
    query(cluster.boss, f"SELECT create_distributed_table('{table}', 'tenant', colocate_with => 'none')")
    to_method(table, "mixedcc")


def total(table):
    return query(cluster.boss, f"SELECT count(*), sum(v) FROM {table}")[0]


def bypassed(node):
    """Statements that the bypass has taken there, and those that it has left to Citus's hooks."""
    session = node.connect()
    found = query(session, """SELECT coalesce(sum(statements) FILTER (WHERE reason IS NULL), 0)::int,
        coalesce(sum(statements) FILTER (WHERE reason = 'hooks'), 0)::int FROM mixedcc.bypass""")[0]
    session.close()
    return found


def set_up():
    global cluster
    cluster = citus.CitusCluster(2)
    for table, kind in KINDS.items():
        distribute(table, kind)
        # One tenant a statement: no shard but its own takes part.
        for tenant in range(TENANTS):
            query(cluster.boss, f"INSERT INTO {table} VALUES ({tenant}, 1, 100)")
        equal(f"citus: {table}: the shards are mixedcc's", methods(table), {"mixedcc"})
        equal(f"citus: {table}: rows", total(table), (TENANTS, 100 * TENANTS))
        homes = {cluster.home_of(table, tenant)[0].home for tenant in range(TENANTS)}
        premise(f"citus: {table}: both workers have tenants", len(homes) == 2)


def tenant_transactions():
    """A tenant's transaction on its worker takes the bypass, by way of the coordinator and of the
    other worker."""
    for table in KINDS:
        for via in (cluster.coordinator, cluster.workers[0], cluster.workers[1]):
            home, _ = cluster.home_of(table, 7)
            before, rows = bypassed(home), total(table)
            session = via.connect()
            session.autocommit = False
            session.set_session(isolation_level="SERIALIZABLE")
            query(session, f"UPDATE {table} SET v = v + 1 WHERE tenant = 7 AND id = 1")
            got = query(session, f"SELECT v FROM {table} WHERE tenant = 7 AND id = 1")
            session.commit()
            query(session, f"UPDATE {table} SET v = v - 1 WHERE tenant = 7 AND id = 1")
            session.commit()
            after = bypassed(home)
            session.close()
            name = f"citus: {table}, by {'the coordinator' if via is cluster.coordinator else 'a worker'}"
            check(f"{name}: it reads what it has written", len(got) == 1 and got[0][0] > 100, got)
            equal(f"{name}: statements of the bypass", after[0] - before[0], 3)
            equal(f"{name}: none is left to hooks", after[1], before[1])
            equal(f"{name}: the rows", total(table), rows)


def counted_tenants():
    """Statements that Citus counts for a tenant are not taken from its hooks."""
    home, _ = cluster.home_of("kept", 7)
    for node in cluster.nodes:
        session = node.connect()
        query(session, "ALTER SYSTEM SET citus.stat_tenants_track = 'all'")
        query(session, "SELECT pg_reload_conf()")
        session.close()
    must_come(lambda: all(node.ask("SHOW citus.stat_tenants_track") == "all" for node in cluster.nodes))
    before = bypassed(home)
    session = cluster.coordinator.connect()
    for _ in range(5):
        query(session, "UPDATE kept SET v = v WHERE tenant = 7 AND id = 1")
    session.close()
    after = bypassed(home)
    seen = home.ask("SELECT coalesce(sum(query_count_in_this_period), 0) FROM citus_stat_tenants_local WHERE tenant_attribute = '7'")
    for node in cluster.nodes:
        session = node.connect()
        query(session, "ALTER SYSTEM RESET citus.stat_tenants_track")
        query(session, "SELECT pg_reload_conf()")
        session.close()
    must_come(lambda: all(node.ask("SHOW citus.stat_tenants_track") == "none" for node in cluster.nodes))
    equal("citus: counted statements go to its hooks", (after[0] - before[0], after[1] - before[1]), (0, 5))
    equal("citus: it has counted them", int(seen), 5)


def plans():
    text = "\n".join(line for line, in query(cluster.boss, "EXPLAIN (COSTS off) SELECT v FROM kept WHERE tenant = 7 AND id = 1"))
    check("citus: EXPLAIN shows the custom scan of the shard", "MixedccScan" in text and "Citus Adaptive" in text, text)
    got = query(cluster.boss, "SELECT a.v + b.v FROM kept a JOIN kept b USING (tenant, id) WHERE tenant = 3")
    equal("citus: a join of a tenant's rows", got, [(200,)])
    equal("citus: a join over all shards", value(cluster.boss, "SELECT count(*) FROM kept a JOIN kept b USING (tenant, id)"), TENANTS)


def writes_of_several_shards():
    """They are prepared on each worker: all of it happens, or nothing."""
    for table, kind in KINDS.items():
        before = total(table)
        code = attempt(cluster.boss, f"UPDATE {table} SET v = v + 1")
        equal(f"citus: {table}: a write of all shards", (code, total(table)), (None, (before[0], before[1] + TENANTS)))
        query(cluster.boss, f"UPDATE {table} SET v = v - 1")
        with cluster.boss.cursor() as cursor:
            cursor.execute(f"COPY {table} FROM PROGRAM 'seq -f \"%g,2,0\" 0 {TENANTS - 1}' CSV")
        equal(f"citus: {table}: COPY into all shards", total(table), (2 * TENANTS, before[1]))
        query(cluster.boss, f"DELETE FROM {table} WHERE id = 2")
        transfers(table)
        for node in cluster.workers:
            must_come(lambda node=node: node.ask("SELECT count(*) FROM pg_prepared_xacts") == 0)


def transfers(table):
    """Between tenants of both workers, by four clients: some fail, and no money is lost."""
    before, made = total(table), []

    def client(seed):
        draw, session = random.Random(seed), cluster.coordinator.connect()
        query(session, "SET default_transaction_isolation = 'serializable'")
        query(session, "SET lock_timeout = '2s'")
        for _ in range(40):
            a, b = draw.sample(range(TENANTS), 2)
            try:
                query(session, "BEGIN")
                query(session, f"UPDATE {table} SET v = v - 1 WHERE tenant = {a} AND id = 1")
                query(session, f"UPDATE {table} SET v = v + 1 WHERE tenant = {b} AND id = 1")
                query(session, "COMMIT")
                made.append(None)
            except psycopg2.Error as error:
                # Citus says so of a PREPARE that has failed, on heap too.
                retry = "could not commit transaction for shard" in str(error)
                made.append("40001" if retry else error.pgcode)
                query(session, "ROLLBACK")
        session.close()

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    others = {code for code in made if code not in (None, "55P03", *RETRY)}
    check(f"citus: {table}: transfers over both workers commit", made.count(None) > 20 and not others, others)
    equal(f"citus: {table}: no transfer is done in part", total(table), before)


def moves():
    for table in KINDS:
        before = total(table)
        home, shard = cluster.home_of(table, 7)
        other = next(node for node in cluster.workers if node is not home)
        number = int(shard.rsplit("_", 1)[1])
        move = "SELECT citus_move_shard_placement({}, '{}', 5432, '{}', 5432, '{}')"
        equal(f"citus: {table}: a shard moves", attempt(cluster.boss, move.format(number, home.home, other.home, "block_writes")), None)
        equal(f"citus: {table}: it is there", cluster.home_of(table, 7)[0].home, other.home)
        equal(f"citus: {table}: and is mixedcc's", (methods(table), total(table)), ({"mixedcc"}, before))
        query(cluster.boss, "CALL citus_cleanup_orphaned_resources()")
        logical = attempt(cluster.boss, move.format(number, other.home, home.home, "force_logical"))
        # Unlogged tables cannot be published.
        equal(f"citus: {table}: a move by logical replication", logical, {"kept": None, "fast": "22023"}[table])
        equal(f"citus: {table}: nothing is lost by it", (methods(table), total(table)), ({"mixedcc"}, before))
        query(cluster.boss, f"SELECT isolate_tenant_to_new_shard('{table}', 9, shard_transfer_mode := 'block_writes')")
        equal(f"citus: {table}: a tenant has its own shard", (methods(table), total(table)), ({"mixedcc"}, before))
        query(cluster.boss, "SELECT rebalance_table_shards(shard_transfer_mode := 'block_writes')")
        equal(f"citus: {table}: rebalanced", (methods(table), total(table)), ({"mixedcc"}, before))
        query(cluster.boss, f"UPDATE {table} SET v = v + 1 WHERE tenant = 9")
        query(cluster.boss, f"UPDATE {table} SET v = v - 1 WHERE tenant = 9")


def moves_under_load():
    """By logical replication, which Citus takes by default: transfers go on while shards move, and
    while a tenant gets a shard of its own. A log of each row's changes says what there must be."""
    query(cluster.boss, "CREATE TABLE busy (tenant int, id int, v int NOT NULL, PRIMARY KEY (tenant, id)) USING mixedcc")
    query(cluster.boss, "SELECT create_distributed_table('busy', 'tenant', colocate_with => 'none')")
    query(cluster.boss, f"INSERT INTO busy SELECT i % {TENANTS}, i, 0 FROM generate_series(0, 1999) i")
    over, errors, made = threading.Event(), [], {}

    def client(seed):
        draw, session, mine = random.Random(seed), cluster.coordinator.connect(), {}
        query(session, "SET lock_timeout = '5s'")
        while not over.is_set():
            tenant, id = draw.randrange(TENANTS), 10000 * (seed + 1) + draw.randrange(300)
            there, delete = (tenant, id) in mine, draw.random() < 0.2
            if there:
                sql = f"DELETE FROM busy WHERE tenant = {tenant} AND id = {id}" if delete else f"UPDATE busy SET v = v + 1 WHERE tenant = {tenant} AND id = {id}"
            else:
                sql = f"INSERT INTO busy VALUES ({tenant}, {id}, 0)"
            code = attempt(session, sql)
            if code is None and there and delete:
                del mine[tenant, id]
            elif code is None:
                mine[tenant, id] = mine[tenant, id] + 1 if there else 0
            elif code not in ("55P03", *RETRY):
                errors.append(code)
        made.update(mine)
        session.close()

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(4):
            home, shard = cluster.home_of("busy", 7)
            other = next(node for node in cluster.workers if node is not home)
            move = f"SELECT citus_move_shard_placement({shard.rsplit('_', 1)[1]}, '{home.home}', 5432, '{other.home}', 5432)"
            equal(f"citus: a shard moves under load, {turn}", attempt(cluster.boss, move), None)
            equal(f"citus: it is there, {turn}", cluster.home_of("busy", 7)[0].home, other.home)
        # By logical replication a split under updates hangs, on heap too: the subscriber misses
        # the replica identity (Citus 13.2.2, PostgreSQL 15.20).
        split = "SELECT isolate_tenant_to_new_shard('busy', 9, shard_transfer_mode := 'block_writes')"
        equal("citus: a tenant gets a shard under load", attempt(cluster.boss, split), None)
        equal("citus: rebalanced under load", attempt(cluster.boss, "SELECT rebalance_table_shards('busy')"), None)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    equal("citus: statements meanwhile", errors, [])
    check("citus: there were many", len(made) > 100, len(made))
    rows = {(tenant, id): v for tenant, id, v in query(cluster.boss, "SELECT * FROM busy WHERE id >= 10000")}
    equal("citus: no change is lost, and none comes twice", rows, made)
    equal("citus: nor are the rows that nothing changes", total("busy"), (2000 + len(made), sum(made.values())))
    equal("citus: busy is mixedcc's", methods("busy"), {"mixedcc"})
    query(cluster.boss, "DROP TABLE busy")


def options():
    """Options and protocols, shard by shard; and a view over the cluster."""
    on_shards("kept", "ALTER TABLE %s SET (mixedcc.partitions = 2)")
    parts = on_shards("kept", "SELECT count(*) FROM mixedcc.partitions WHERE \"table\" = '%s'::regclass")
    equal("citus: an option reaches each shard", set(parts), {"2"})
    query(cluster.boss, """SET citus.enable_ddl_propagation = off;
        ALTER TABLE kept SET (mixedcc.partitions = 2); RESET citus.enable_ddl_propagation""")
    home, shard = cluster.home_of("kept", 7)
    other = next(node for node in cluster.workers if node is not home)
    query(cluster.boss, "SELECT citus_move_shard_placement(%s, %s, 5432, %s, 5432, 'block_writes')",
          (int(shard.rsplit("_", 1)[1]), home.home, other.home))
    equal("citus: a shard that moves keeps it", other.ask(f"SELECT count(*) FROM mixedcc.partitions WHERE \"table\" = '{shard}'::regclass"), 2)
    on_shards("kept", "SELECT mixedcc.set_protocol('%s', '2pl')")
    must_come(lambda: set(on_shards("kept", "SELECT min(protocol) || max(protocol) FROM mixedcc.partitions WHERE \"table\" = '%s'::regclass")) == {"2pl2pl"})
    on_shards("kept", "SELECT mixedcc.unpin('%s')")
    found = cluster.everywhere("SELECT json_agg(json_build_array(\"table\", partition, protocol)) FROM mixedcc.partitions")
    check("citus: protocols of the whole cluster", len(found) == 2 and all("2pl" in text for text in found.values()), found)
    passes = cluster.everywhere("SELECT passes FROM mixedcc.coordinator")
    check("citus: a coordinator of protocols on each worker", all(int(text) > 0 for text in passes.values()), passes)


def direct():
    """Citus prepares the CREATE of the shards: it may distribute a mixedcc table as it is."""
    query(cluster.boss, "CREATE TABLE direct (tenant int, id int, v int NOT NULL, PRIMARY KEY (tenant, id)) USING mixedcc WITH (mixedcc.partitions = 2)")
    query(cluster.boss, "SELECT create_distributed_table('direct', 'tenant', colocate_with => 'none')")
    query(cluster.boss, "SET default_table_access_method = mixedcc")
    query(cluster.boss, "CREATE TABLE by_default (tenant int, id int, v int NOT NULL, PRIMARY KEY (tenant, id))")
    query(cluster.boss, "INSERT INTO by_default SELECT i, i, 100 FROM generate_series(1, 500) i")
    query(cluster.boss, "SELECT create_distributed_table('by_default', 'tenant', colocate_with => 'none')")
    query(cluster.boss, "RESET default_table_access_method")
    query(cluster.boss, "INSERT INTO direct SELECT i, i, 100 FROM generate_series(1, 500) i")
    for table in ("direct", "by_default"):
        equal(f"citus: {table}: its shards are mixedcc's", methods(table), {"mixedcc"})
        equal(f"citus: {table}: rows", total(table), (500, 50000))
        code = attempt(cluster.boss, f"INSERT INTO {table} VALUES (7, 7, 1)")
        equal(f"citus: {table}: the key is checked", code, "23505")
    counts = set(on_shards("direct", "SELECT count(*) FROM mixedcc.partitions WHERE \"table\" = '%s'::regclass"))
    equal("citus: direct: options reach the shards", counts, {"2"})
    query(cluster.boss, "CREATE TABLE known_too (id int PRIMARY KEY, v int) USING mixedcc")
    query(cluster.boss, "SELECT create_reference_table('known_too')")
    query(cluster.boss, "INSERT INTO known_too SELECT i, i FROM generate_series(1, 100) i; UPDATE known_too SET v = v + 1")
    equal("citus: a reference table", value(cluster.boss, "SELECT sum(k.v) FROM direct d JOIN known_too k USING (id)"), 5150)
    query(cluster.boss, "DELETE FROM known_too")
    for node in cluster.workers:
        node.crash()
        node.start()
    for table in ("direct", "by_default"):
        equal(f"citus: {table}: rows after a crash of the workers", total(table), (500, 50000))
        query(cluster.boss, f"UPDATE {table} SET v = v + 1")
        equal(f"citus: {table}: a write of all shards", total(table), (500, 50500))


def definitions():
    """Citus prepares changes of definitions on all shards: they work, also over crashes."""
    kept = total("kept")
    for sql, after in (("CREATE INDEX by_v ON kept (v)", kept), ("ALTER TABLE kept ADD w int", kept), ("ALTER TABLE kept ALTER v TYPE bigint", kept),
                       ("TRUNCATE kept", (0, None))):
        code = attempt(cluster.boss, sql)
        equal(f"citus: {sql}", (code, total("kept")), (None, after))
        for node in cluster.workers:
            node.crash()
            node.start()
        equal(f"citus: {sql}: after a crash of the workers", total("kept"), after)
    query(cluster.boss, "INSERT INTO kept (tenant, id, v) SELECT 1 + i % 20, i, 5 FROM generate_series(1, 100) i")
    equal("citus: rows after TRUNCATE", total("kept"), (100, 500))
    for table in KINDS:
        query(cluster.boss, f"DROP TABLE {table}")
        query(cluster.boss, "CALL citus_cleanup_orphaned_resources()")  # what moves have left
        for node in cluster.workers:
            left = node.ask("SELECT count(*) FROM pg_class WHERE relname ~ %s", (f"^{table}_[0-9]+$",))
            equal(f"citus: DROP TABLE {table}: no shard is left", left, 0)


def references():
    query(cluster.boss, "CREATE TABLE known (id int PRIMARY KEY, v int) USING heap")
    query(cluster.boss, "SELECT create_reference_table('known')")
    query(cluster.boss, "INSERT INTO known VALUES (1, 5)")
    found = query(cluster.boss, "SELECT success, result FROM run_command_on_placements('known', 'ALTER TABLE %s SET ACCESS METHOD mixedcc')")
    equal("citus: a reference table's placements", {success for success, _ in found}, {True})
    equal("citus: a join with it", value(cluster.boss, "SELECT k.v FROM kept JOIN known k ON k.id = kept.id WHERE tenant = 7"), 5)
    code = attempt(cluster.boss, "UPDATE known SET v = 6")
    equal("citus: a write of it is prepared", (code, value(cluster.boss, "SELECT v FROM known")), (None, 6))
    query(cluster.boss, "SELECT run_command_on_placements('known', 'ALTER TABLE %s SET ACCESS METHOD heap')")
    query(cluster.boss, "DROP TABLE known")


why = citus.missing()
if why:
    print(f"skipped: {why}", flush=True)
    sys.exit(0)
try:
    main(set_up, tenant_transactions, counted_tenants, plans, writes_of_several_shards, references, moves, moves_under_load, options, direct, definitions)
finally:
    if cluster:
        cluster.remove()
