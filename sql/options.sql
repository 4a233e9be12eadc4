-- Partitions and protocols of a table: good and bad options, and where they are kept.
\set VERBOSITY sqlstate
CREATE TABLE op_t (w int, id int, v text, PRIMARY KEY (w, id)) USING mixedcc
    WITH (mixedcc.partitions = 4, mixedcc.partition_by = 'w', mixedcc.protocol = 'occ', fillfactor = 90);
SELECT partition, protocol FROM mixedcc.partitions WHERE "table" = 'op_t'::regclass ORDER BY partition;
SELECT provider, label FROM pg_seclabels WHERE objoid = 'op_t'::regclass;
SELECT reloptions FROM pg_class WHERE oid = 'op_t'::regclass;
INSERT INTO op_t SELECT i % 8, i, 'x' FROM generate_series(1, 100) i;
UPDATE op_t SET w = w + 1 WHERE id < 50;
UPDATE op_t SET v = 'moved' WHERE w = 8;
SELECT count(*), sum(w), count(*) FILTER (WHERE v = 'moved') FROM op_t;
SELECT sum(rows) FROM mixedcc.partitions WHERE "table" = 'op_t'::regclass;
-- Changed later, with rows in it.
ALTER TABLE op_t SET (mixedcc.protocol = '2pl', mixedcc.waiting_policy = 'wait_die');
SELECT partition, protocol FROM mixedcc.partitions WHERE "table" = 'op_t'::regclass ORDER BY partition;
ALTER TABLE op_t SET (mixedcc.partitions = 2, mixedcc.partition_by = 'w, id');
SELECT count(*), sum(w) FROM op_t;
SELECT count(DISTINCT partition), sum(rows) FROM mixedcc.partitions WHERE "table" = 'op_t'::regclass;
ALTER TABLE op_t RESET (mixedcc.protocol);
SELECT partition, protocol FROM mixedcc.partitions WHERE "table" = 'op_t'::regclass ORDER BY partition;
BEGIN;
ALTER TABLE op_t SET (mixedcc.protocol = 'occ');
ROLLBACK;
SELECT DISTINCT protocol FROM mixedcc.partitions WHERE "table" = 'op_t'::regclass;
SECURITY LABEL FOR mixedcc ON TABLE op_t IS 'partitions=3,partition_by=id,protocol=occ';
SELECT partition, protocol FROM mixedcc.partitions WHERE "table" = 'op_t'::regclass ORDER BY partition;
SELECT count(*), sum(w) FROM op_t;
-- By range of the key.
CREATE TABLE op_range (id int PRIMARY KEY, v text) USING mixedcc
    WITH (mixedcc.partition_method = 'range', mixedcc.bounds = '30, 60, 1050');
INSERT INTO op_range SELECT i, 'r' FROM generate_series(1, 100) i;
UPDATE op_range SET id = 101 - id + 1000;
SELECT count(*), min(id), max(id) FROM op_range;
SELECT partition, rows FROM mixedcc.partitions WHERE "table" = 'op_range'::regclass ORDER BY partition;
SELECT * FROM mixedcc.options WHERE "table" = 'op_range'::regclass ORDER BY option;
-- What \d+ does not show: all options, with defaults. varbit cannot be hashed.
CREATE TABLE op_bare (id int, bits varbit, v text, PRIMARY KEY (id, bits, v)) USING mixedcc;
SELECT * FROM mixedcc.table_options WHERE "table" IN ('op_bare'::regclass) ORDER BY option;
SELECT "table", option, value, source FROM mixedcc.table_options WHERE "table" IN ('op_t'::regclass, 'op_range'::regclass) AND setting IS NULL ORDER BY 1, 2;
SELECT option, value, source FROM mixedcc.table_options WHERE "table" = 'op_t'::regclass AND option = 'adaptive';
SELECT obj_description(oid, 'pg_am') FROM pg_am WHERE amname = 'mixedcc';
-- The names of options are those that the library has.
SELECT count(*), count(DISTINCT option) FROM mixedcc.table_options WHERE "table" = 'op_bare'::regclass;
ALTER TABLE op_bare SET (mixedcc.nothing = 1);
DO $$
DECLARE o record; given text;
BEGIN
    FOR o IN SELECT * FROM mixedcc.table_options WHERE "table" = 'op_bare'::regclass AND option <> 'bounds' LOOP
        given := coalesce(o.value, 'occ,2pl');
        EXECUTE format('ALTER TABLE op_bare SET (mixedcc.%I = %L)', o.option, replace(given, '+', ','));
        IF NOT EXISTS (SELECT FROM mixedcc.table_options t WHERE t."table" = o."table" AND t.option = o.option AND t.source = 'option') THEN
            RAISE 'option % is not shown', o.option;
        END IF;
        EXECUTE format('ALTER TABLE op_bare RESET (mixedcc.%I)', o.option);
    END LOOP;
END $$;
SELECT count(*) FROM mixedcc.table_options WHERE "table" = 'op_bare'::regclass AND source = 'option';
DROP TABLE op_bare;
-- One partition until there is a key; a key makes them.
CREATE TABLE op_late (id int, v int) USING mixedcc WITH (mixedcc.partitions = 4);
INSERT INTO op_late SELECT i, i FROM generate_series(1, 50) i;
SELECT count(*) FROM mixedcc.partitions WHERE "table" = 'op_late'::regclass;
ALTER TABLE op_late ADD PRIMARY KEY (id);
SELECT count(*), sum(rows) FROM mixedcc.partitions WHERE "table" = 'op_late'::regclass;
UPDATE op_late SET id = id + 100;
SELECT count(*), sum(id) FROM op_late;
-- Protocols by call.
SELECT mixedcc.set_protocol('op_late', 'occ');
SELECT mixedcc.set_protocol('op_late', 'partcc', 2);
SELECT mixedcc.set_protocol('op_late', '2pl', 0);
SELECT mixedcc.await_switches('op_late');
SELECT partition, protocol FROM mixedcc.partitions WHERE "table" = 'op_late'::regclass ORDER BY partition;
-- Bad values change nothing.
CREATE TABLE op_bad (id int PRIMARY KEY) USING mixedcc WITH (mixedcc.partitions = 0);
CREATE TABLE op_bad (id int PRIMARY KEY) USING mixedcc WITH (mixedcc.partitions = -1);
CREATE TABLE op_bad (id int PRIMARY KEY) USING mixedcc WITH (mixedcc.partitions = 1000000000);
CREATE TABLE op_bad (id int PRIMARY KEY) USING mixedcc WITH (mixedcc.partitions = 'many');
CREATE TABLE op_bad (id int PRIMARY KEY) USING mixedcc WITH (mixedcc.protocol = 'none');
CREATE TABLE op_bad (id int PRIMARY KEY) USING mixedcc WITH (mixedcc.waiting_policy = 'hope');
CREATE TABLE op_bad (id int PRIMARY KEY) USING mixedcc WITH (mixedcc.partition_by = 'nowhere');
CREATE TABLE op_bad (id int PRIMARY KEY) USING mixedcc WITH (mixedcc.partition_by = '');
CREATE TABLE op_bad (id int PRIMARY KEY) USING mixedcc WITH (mixedcc.partition_method = 'guess');
CREATE TABLE op_bad (id int PRIMARY KEY, j json) USING mixedcc WITH (mixedcc.partition_by = 'j');
CREATE TABLE op_bad (id int PRIMARY KEY, p point) USING mixedcc WITH (mixedcc.partition_by = 'p', mixedcc.partition_method = 'range');
CREATE TABLE op_bad (id int PRIMARY KEY) USING mixedcc WITH (mixedcc.partition_method = 'range');
CREATE TABLE op_bad (id int PRIMARY KEY) USING mixedcc WITH (mixedcc.partition_method = 'range', mixedcc.bounds = '10, 5');
CREATE TABLE op_bad (id int PRIMARY KEY) USING mixedcc WITH (mixedcc.partition_method = 'range', mixedcc.bounds = 'x');
CREATE TABLE op_bad (id int PRIMARY KEY) USING mixedcc WITH (mixedcc.unknown = 1);
CREATE TABLE op_bad (id int PRIMARY KEY) USING heap WITH (mixedcc.partitions = 2);
SELECT count(*) FROM pg_class WHERE relname = 'op_bad';
ALTER TABLE op_late SET (mixedcc.protocol = 'none');
ALTER TABLE op_late SET (mixedcc.unknown = 1);
SECURITY LABEL FOR mixedcc ON TABLE op_late IS 'rubbish';
SECURITY LABEL FOR mixedcc ON TABLE op_late IS 'protocol=none';
SECURITY LABEL FOR mixedcc ON COLUMN op_late.id IS 'protocol=occ';
SELECT mixedcc.set_protocol('op_late', 'none');
SELECT mixedcc.set_protocol('op_late', 'occ', 99);
SELECT mixedcc.set_protocol('op_late', 'occ', -1);
SELECT mixedcc.set_protocol('op_late', NULL);
SELECT mixedcc.set_protocol('pg_class', 'occ');
SELECT mixedcc.table_size('pg_class');
SET mixedcc.default_protocol = 'none';
SET mixedcc.memory = 1;
SELECT partition, protocol FROM mixedcc.partitions WHERE "table" = 'op_late'::regclass ORDER BY partition;
SELECT count(*), sum(id) FROM op_late;
-- Only the owner changes them; others see no rows of tables that they may not read.
CREATE ROLE op_user;
SET ROLE op_user;
SELECT mixedcc.set_protocol('op_late', 'occ');
SECURITY LABEL FOR mixedcc ON TABLE op_late IS 'protocol=occ';
ALTER TABLE op_late SET (mixedcc.protocol = 'occ');
RESET ROLE;
DROP ROLE op_user;
-- Defaults from settings.
SET mixedcc.default_protocol = '2pl';
SET mixedcc.default_partitions = 3;
CREATE TABLE op_default (id int PRIMARY KEY) USING mixedcc;
RESET mixedcc.default_protocol;
RESET mixedcc.default_partitions;
SELECT partition, protocol FROM mixedcc.partitions WHERE "table" = 'op_default'::regclass ORDER BY partition;
SELECT mixedcc.table_size('op_t') > 0 AS sized;
DROP TABLE op_t, op_range, op_late, op_default;
SELECT count(*) FROM mixedcc.partitions;
-- Tables that are made of a composite type follow what becomes of the type.
CREATE TYPE op_row AS (id int, w int, v int);
CREATE TABLE op_typed OF op_row (PRIMARY KEY (id)) USING mixedcc WITH (mixedcc.partitions = 4, mixedcc.partition_by = 'w', mixedcc.protocol = '2pl');
INSERT INTO op_typed SELECT i, i, i FROM generate_series(1, 10) i;
ALTER TYPE op_row ALTER ATTRIBUTE v TYPE bigint CASCADE;
SELECT count(*), sum(rows), min(protocol) FROM mixedcc.partitions WHERE "table" = 'op_typed'::regclass;
SELECT index, entries FROM mixedcc.primary_index('op_typed');
ALTER TYPE op_row RENAME ATTRIBUTE w TO warehouse CASCADE;
SELECT option, value FROM mixedcc.options WHERE "table" = 'op_typed'::regclass ORDER BY 1;
ALTER TABLE op_typed SET (mixedcc.partitions = 8);
SELECT count(*), sum(rows), min(protocol) FROM mixedcc.partitions WHERE "table" = 'op_typed'::regclass;
DROP TABLE op_typed;
DROP TYPE op_row;
CREATE FOREIGN DATA WRAPPER op_wrapper;
CREATE SERVER op_server FOREIGN DATA WRAPPER op_wrapper;
CREATE FOREIGN TABLE op_foreign (id int, w int, v int) SERVER op_server;
CREATE TABLE op_child (PRIMARY KEY (id)) INHERITS (op_foreign) USING mixedcc WITH (mixedcc.partitions = 4, mixedcc.partition_by = 'w');
ALTER FOREIGN TABLE op_foreign ALTER COLUMN v TYPE bigint;
ALTER FOREIGN TABLE op_foreign RENAME COLUMN w TO warehouse;
SELECT count(*) FROM mixedcc.partitions WHERE "table" = 'op_child'::regclass;
SELECT value FROM mixedcc.options WHERE "table" = 'op_child'::regclass AND option = 'partition_by';
DROP FOREIGN DATA WRAPPER op_wrapper CASCADE;
-- A table is not changed while a statement of the session reads it, or has triggers to run for it.
CREATE TABLE op_used (id int PRIMARY KEY, a int) USING mixedcc WITH (mixedcc.partitions = 2, mixedcc.partition_by = 'a');
INSERT INTO op_used SELECT i, 5 FROM generate_series(1, 10) i;
BEGIN ISOLATION LEVEL SERIALIZABLE;
DECLARE c CURSOR FOR SELECT id FROM op_used WHERE a = 5;
FETCH 1 FROM c;
SAVEPOINT s;
ALTER TABLE op_used SET (mixedcc.partitions = 3);
ROLLBACK TO s;
ALTER TABLE op_used SET (mixedcc.adaptive_confirm = 7);
ROLLBACK TO s;
SECURITY LABEL FOR mixedcc ON TABLE op_used IS 'partitions=1';
ROLLBACK TO s;
FETCH ALL FROM c;
CLOSE c;
ALTER TABLE op_used SET (mixedcc.partitions = 3);
SELECT count(*) FROM op_used WHERE a = 5;
COMMIT;
CREATE FUNCTION op_change(n int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN
    EXECUTE format('ALTER TABLE op_used SET (mixedcc.partitions = %s)', n);
    RETURN n;
END $$;
SELECT op_change(id) FROM op_used;
CREATE CONSTRAINT TRIGGER op_later AFTER UPDATE ON op_used DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
BEGIN;
UPDATE op_used SET a = 6 WHERE id = 1;
ALTER TABLE op_used SET (mixedcc.partitions = 4);
ROLLBACK;
SELECT count(*), sum(rows) FROM mixedcc.partitions WHERE "table" = 'op_used'::regclass;
DROP TABLE op_used;
DROP FUNCTION op_change;
-- The type of the key changes: its bounds are made anew.
CREATE TABLE op_type (id int PRIMARY KEY, v text) USING mixedcc WITH (mixedcc.partition_method = 'range', mixedcc.bounds = '30, 60');
INSERT INTO op_type SELECT i, i FROM generate_series(1, 90) i;
ALTER TABLE op_type ALTER id TYPE bigint;
SELECT partition, rows FROM mixedcc.partitions WHERE "table" = 'op_type'::regclass ORDER BY 1;
ALTER TABLE op_type ALTER id TYPE text;
SELECT partition, rows FROM mixedcc.partitions WHERE "table" = 'op_type'::regclass ORDER BY 1;
ALTER TABLE op_type ALTER id TYPE varchar;
ALTER TABLE op_type ALTER id TYPE int USING id::int;
SELECT partition, rows FROM mixedcc.partitions WHERE "table" = 'op_type'::regclass ORDER BY 1;
SELECT count(*), min(id), max(id) FROM op_type;
CREATE DOMAIN op_small AS int2;
ALTER TABLE op_type ALTER id TYPE op_small;
ALTER TABLE op_type ALTER id TYPE timestamp USING 'epoch'::timestamp + id * interval '1 s';
SELECT partition, rows FROM mixedcc.partitions WHERE "table" = 'op_type'::regclass ORDER BY 1;
DROP TABLE op_type;
DROP DOMAIN op_small;
CREATE TABLE op_type (id int, v text, PRIMARY KEY (id, v)) USING mixedcc WITH (mixedcc.partitions = 3);
INSERT INTO op_type SELECT i, i FROM generate_series(1, 90) i;
ALTER TABLE op_type ALTER id TYPE text;
ALTER TABLE op_type ALTER id TYPE numeric USING id::numeric, ALTER v TYPE int USING v::int;
SELECT count(*), sum(rows) FROM mixedcc.partitions WHERE "table" = 'op_type'::regclass;
SELECT * FROM op_type WHERE id = 7 AND v = 7;
DROP TABLE op_type;
-- How the coordinator chooses, in place of the cluster's settings.
CREATE TABLE op_choice (id int PRIMARY KEY, v int) USING mixedcc WITH (mixedcc.partitions = 2,
    mixedcc.adaptive_interval = '2 min', mixedcc.adaptive_min_gain = 12.5, mixedcc.adaptive_max_loss = 0, mixedcc.adaptive_confirm = 3,
    mixedcc.adaptive_min_samples = 100, mixedcc.adaptive_forget = '1h', mixedcc.partcc_max_share = 1.5);
SELECT option, value FROM mixedcc.options WHERE "table" = 'op_choice'::regclass;
SELECT name, value, note FROM mixedcc.explain_choice('op_choice', 1) WHERE item = 'setting';
ALTER TABLE op_choice RESET (mixedcc.adaptive_interval, mixedcc.adaptive_forget, mixedcc.partcc_max_share), SET (mixedcc.adaptive_confirm = 1);
BEGIN;
ALTER TABLE op_choice SET (mixedcc.adaptive_confirm = 1000, mixedcc.partitions = 5);
SELECT value FROM mixedcc.explain_choice('op_choice', 4) WHERE name = 'adaptive_confirm';
ROLLBACK;
INSERT INTO op_choice VALUES (1, 1);
TRUNCATE op_choice;
SELECT name, value, note FROM mixedcc.explain_choice('op_choice') WHERE item = 'setting';
ALTER TABLE op_choice SET (mixedcc.adaptive_interval = 1);
SELECT value, note FROM mixedcc.explain_choice('op_choice') WHERE name = 'adaptive_interval';
ALTER TABLE op_choice SET (mixedcc.adaptive_min_gain = -1);
ALTER TABLE op_choice SET (mixedcc.adaptive_max_loss = 1001);
ALTER TABLE op_choice SET (mixedcc.adaptive_confirm = 0);
ALTER TABLE op_choice SET (mixedcc.adaptive_min_samples = 'some');
ALTER TABLE op_choice SET (mixedcc.adaptive_forget = '');
ALTER TABLE op_choice SET (mixedcc.partcc_max_share = 101);
SECURITY LABEL FOR mixedcc ON TABLE op_choice IS 'adaptive_min_gain=nan';
SECURITY LABEL FOR mixedcc ON TABLE op_choice IS 'partitions=2,adaptive_interval=1500';
SELECT name, value, note FROM mixedcc.explain_choice('op_choice') WHERE item = 'setting';
DROP TABLE op_choice;
-- Code of the table's owner, such as a CHECK of a domain that a bound meets, gets the rights of no
-- other user of the table, and sees no search_path but a safe one.
CREATE ROLE op_owner;
CREATE SCHEMA op_hers AUTHORIZATION op_owner;
SET ROLE op_owner;
CREATE FUNCTION op_hers.watch(int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
    IF current_user <> 'op_owner' OR current_setting('search_path') <> 'pg_catalog, pg_temp' THEN
        RAISE 'the owner''s code runs as %, with %', current_user, current_setting('search_path');
    END IF;
    RETURN true;
END $$;
CREATE DOMAIN op_hers.watched AS int CHECK (op_hers.watch(VALUE));
CREATE TABLE op_hers.t (id int PRIMARY KEY, k op_hers.watched[]) USING mixedcc
    WITH (mixedcc.partition_by = 'k', mixedcc.bounds = '"{1}"');
INSERT INTO op_hers.t SELECT i FROM generate_series(1, 10) i;
RESET ROLE;
CLUSTER op_hers.t USING t_pkey;
CLUSTER op_hers.t;
REINDEX TABLE op_hers.t;
VACUUM ANALYZE op_hers.t;
ALTER TABLE op_hers.t ADD v int;
ALTER TABLE op_hers.t ALTER v TYPE bigint;
ALTER TABLE op_hers.t SET (mixedcc.bounds = '"{1}", "{2}"');
SECURITY LABEL FOR mixedcc ON TABLE op_hers.t IS 'partition_by=k,bounds="{1}"+"{2}"+"{3}"';
SELECT count(*), sum(rows) FROM mixedcc.partitions WHERE "table" = 'op_hers.t'::regclass;
TRUNCATE op_hers.t;
SELECT current_user = session_user AS same_user, current_setting('search_path') AS path;
DROP SCHEMA op_hers CASCADE;
DROP ROLE op_owner;
-- The attributes of a composite type may change, so it is in no partition key.
CREATE TYPE op_pair AS (a int, b int);
CREATE DOMAIN op_pairs AS op_pair[];
CREATE TYPE op_range AS RANGE (subtype = op_pair);
CREATE TABLE op_hash (id int PRIMARY KEY, k op_pair) USING mixedcc WITH (mixedcc.partitions = 4, mixedcc.partition_by = 'k');
CREATE TABLE op_list (id int PRIMARY KEY, k op_pairs) USING mixedcc WITH (mixedcc.partitions = 4, mixedcc.partition_by = 'k');
CREATE TABLE op_span (id int PRIMARY KEY, k op_range) USING mixedcc WITH (mixedcc.partitions = 4, mixedcc.partition_by = 'k');
CREATE TABLE op_order (id int PRIMARY KEY, k op_pair) USING mixedcc WITH (mixedcc.partition_by = 'k', mixedcc.bounds = '"(3,0)", "(6,0)"');
CREATE TABLE op_key (k op_pair, id int, PRIMARY KEY (k, id)) USING mixedcc WITH (mixedcc.partitions = 4);
INSERT INTO op_key SELECT ROW(i, i)::op_pair, i FROM generate_series(1, 9) i;
ALTER TYPE op_pair ADD ATTRIBUTE c int;
SELECT count(*) FROM op_key WHERE id = 3;
DROP TABLE op_key;
DROP TYPE op_range;
DROP DOMAIN op_pairs;
DROP TYPE op_pair;
-- Commands that know nothing of options may change the types of a key, or drop its columns. A table
-- whose options do not fit it any more has one partition.
CREATE TYPE op_mood AS ENUM ('a', 'b', 'c');
CREATE TABLE op_bound (id int PRIMARY KEY, k op_mood) USING mixedcc WITH (mixedcc.partition_by = 'k', mixedcc.bounds = 'b');
CREATE TABLE op_gone (id int PRIMARY KEY, k op_mood) USING mixedcc WITH (mixedcc.partitions = 4, mixedcc.partition_by = 'k');
CREATE TABLE op_index (id int PRIMARY KEY, k op_mood) USING mixedcc WITH (mixedcc.partitions = 4, mixedcc.partition_by = 'k');
CREATE INDEX ON op_index (k);
INSERT INTO op_bound SELECT i, 'b' FROM generate_series(1, 9) i;
INSERT INTO op_gone SELECT i, 'b' FROM generate_series(1, 9) i;
INSERT INTO op_index SELECT i, 'b' FROM generate_series(1, 9) i;
CREATE VIEW op_counts AS SELECT "table", count(*), sum(rows) FROM mixedcc.partitions GROUP BY 1 ORDER BY 1;
ALTER TYPE op_mood RENAME VALUE 'b' TO 'bee';
ALTER TABLE op_bound ADD v int;
SELECT count, sum FROM op_counts WHERE "table" = 'op_bound'::regclass;
ALTER TABLE op_bound SET (mixedcc.bounds = 'bee');
SELECT count, sum FROM op_counts WHERE "table" = 'op_bound'::regclass;
ALTER TYPE op_mood RENAME VALUE 'bee' TO 'b';
TRUNCATE op_bound;
SELECT count, sum FROM op_counts WHERE "table" = 'op_bound'::regclass;
-- ALTER TABLE itself does not break its table's options.
ALTER TABLE op_gone DROP COLUMN k;
ALTER TABLE op_gone ALTER k TYPE json USING NULL;
BEGIN;
DROP TYPE op_mood CASCADE;
SELECT * FROM op_counts WHERE "table" IN ('op_bound'::regclass, 'op_gone'::regclass, 'op_index'::regclass);
ROLLBACK;
SELECT * FROM op_counts WHERE "table" IN ('op_bound'::regclass, 'op_gone'::regclass, 'op_index'::regclass);
DROP TYPE op_mood CASCADE;
INSERT INTO op_gone VALUES (10);
ALTER TABLE op_gone ADD v int;
SELECT * FROM op_counts WHERE "table" IN ('op_bound'::regclass, 'op_gone'::regclass, 'op_index'::regclass);
ALTER TABLE op_gone RESET (mixedcc.partition_by);
ALTER TABLE op_index SET (mixedcc.partition_by = 'id', mixedcc.partitions = 2);
SELECT * FROM op_counts WHERE "table" IN ('op_bound'::regclass, 'op_gone'::regclass, 'op_index'::regclass);
DROP VIEW op_counts;
DROP TABLE op_bound, op_gone, op_index;
-- A command that sets nothing but options of ours is a command all the same: to READ ONLY
-- transactions, to open scans of the table, and to event triggers.
CREATE TABLE op_read (id int PRIMARY KEY) USING mixedcc;
CREATE FUNCTION op_uses(id int) RETURNS int LANGUAGE sql AS 'SELECT $1';
INSERT INTO op_read SELECT generate_series(1, 10);
BEGIN READ ONLY;
ALTER TABLE op_read SET (mixedcc.partitions = 4);
ROLLBACK;
BEGIN READ ONLY;
ALTER TABLE op_read RESET (mixedcc.partitions);
ROLLBACK;
BEGIN READ ONLY;
SELECT mixedcc.annotate('op_uses(int)', 'op_read', 'id');
ROLLBACK;
SELECT mixedcc.annotate('op_uses(int)', 'op_read', 'id');
BEGIN READ ONLY;
SELECT mixedcc.unannotate('op_uses(int)');
ROLLBACK;
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM op_read;
FETCH 1 FROM c;
ALTER TABLE op_read SET (mixedcc.partitions = 4);
ROLLBACK;
-- Sessions beside this one have no such setting.
CREATE FUNCTION op_told() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
    IF current_setting('op.tells', true) = 'yes' THEN
        RAISE WARNING 'told' USING ERRCODE = CASE TG_EVENT WHEN 'ddl_command_start' THEN '01001' ELSE '01002' END;
    END IF;
END $$;
CREATE EVENT TRIGGER op_start ON ddl_command_start WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION op_told();
CREATE EVENT TRIGGER op_end ON ddl_command_end WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION op_told();
SET op.tells = yes;
ALTER TABLE op_read SET (mixedcc.partitions = 4);
RESET op.tells;
DROP EVENT TRIGGER op_start;
DROP EVENT TRIGGER op_end;
SELECT count(*), sum(rows) FROM mixedcc.partitions WHERE "table" = 'op_read'::regclass;
DROP FUNCTION op_told, op_uses;
DROP TABLE op_read;
