-- Switches of protocols in one session: requests, pins, history, rights; statistics of partitions.
CREATE TABLE sw_t (id int PRIMARY KEY, v int) USING mixedcc WITH (mixedcc.partitions = 3);
INSERT INTO sw_t SELECT i, 0 FROM generate_series(1, 30) i;
SELECT partition, protocol, pinned FROM mixedcc.partitions WHERE "table" = 'sw_t'::regclass ORDER BY partition;
SELECT mixedcc.set_protocol('sw_t', '2pl');
SELECT mixedcc.await_switches('sw_t');
SELECT mixedcc.set_protocol('sw_t', 'partcc', 1), mixedcc.await_switches();
SELECT partition, protocol, pinned FROM mixedcc.partitions WHERE "table" = 'sw_t'::regclass ORDER BY partition;
SELECT mixedcc.unpin('sw_t', 1);
SELECT partition, protocol, pinned FROM mixedcc.partitions WHERE "table" = 'sw_t'::regclass ORDER BY partition;
SELECT mixedcc.unpin('sw_t');
SELECT count(*) FROM mixedcc.partitions WHERE "table" = 'sw_t'::regclass AND pinned;
-- To what a partition has already: nothing to do, but it is pinned.
SELECT mixedcc.set_protocol('sw_t', 'partcc', 1), mixedcc.await_switches();
SELECT partition, old, new, why, asked_by = current_user AS by_me, began_at <= ended_at AS ordered, upgrade_ms >= 0 AND degrade_ms >= 0 AS timed
    FROM mixedcc.switch_history WHERE "table" = 'sw_t'::regclass ORDER BY number;
SELECT * FROM mixedcc.switches;
-- In the middle of a transaction: its own end completes it, whatever its outcome.
BEGIN ISOLATION LEVEL SERIALIZABLE;
UPDATE sw_t SET v = 1 WHERE id = 1;
SELECT mixedcc.set_protocol('sw_t', 'occ');
UPDATE sw_t SET v = v + 1 WHERE id IN (1, 2, 3);
ROLLBACK;
SELECT mixedcc.await_switches('sw_t');
SELECT DISTINCT protocol FROM mixedcc.partitions WHERE "table" = 'sw_t'::regclass;
SELECT sum(v) FROM sw_t;
-- With the table locked: at once.
BEGIN;
LOCK TABLE sw_t;
SELECT mixedcc.set_protocol('sw_t', '2pl', 0);
SELECT protocol FROM mixedcc.partitions WHERE "table" = 'sw_t'::regclass AND partition = 0;
ROLLBACK;
SELECT protocol FROM mixedcc.partitions WHERE "table" = 'sw_t'::regclass AND partition = 0;
-- New storage and new maps have the protocols, and the pins.
TRUNCATE sw_t;
SELECT partition, protocol, pinned FROM mixedcc.partitions WHERE "table" = 'sw_t'::regclass ORDER BY partition;
-- Errors and rights.
SELECT mixedcc.set_protocol('sw_t', 'none');
SELECT mixedcc.set_protocol('sw_t', 'occ', 3);
SELECT mixedcc.unpin('sw_t', -1);
SELECT mixedcc.unpin('pg_class');
SELECT mixedcc.await_switches('sw_t', '-1 s');
CREATE ROLE sw_user;
SET ROLE sw_user;
SELECT mixedcc.set_protocol('sw_t', 'occ');
SELECT mixedcc.unpin('sw_t');
SELECT count(*) FROM mixedcc.switches;
SELECT count(*) > 0 AS shown FROM mixedcc.switch_history;
SELECT pid IS NOT NULL AS runs, passes > 0 AS passes, under_way FROM mixedcc.coordinator;
RESET ROLE;
DROP ROLE sw_user;
-- Statistics: a sample of the transactions.
INSERT INTO sw_t SELECT i, 0 FROM generate_series(1, 30) i;
SELECT mixedcc.reset_stats('sw_t');
SELECT DISTINCT sampled, aborts, waits, wait_ms, partners FROM mixedcc.partition_stats WHERE "table" = 'sw_t'::regclass;
CREATE PROCEDURE sw_run() LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..2000 LOOP
        UPDATE sw_t SET v = v + 1 WHERE id = 1 + i % 30;
        PERFORM v FROM sw_t WHERE id = 1 + i % 30;
        COMMIT;
    END LOOP;
END $$;
CALL sw_run();
SELECT partition, sampled > 10 AS sampled, round(read_share::numeric, 1) AS read_share, multi_share, partitions, conflict_rate, serializable_share,
    weak_writer_share, duration_ms < 1000 AS duration, round_trips, idle_share, retry_share, aborts, waits
    FROM mixedcc.partition_stats WHERE "table" = 'sw_t'::regclass ORDER BY partition;
-- The history keeps the names of tables that were dropped.
SELECT DISTINCT "table", name FROM mixedcc.switch_history WHERE name LIKE '%.public.sw_t' ORDER BY 1;
DROP TABLE sw_t;
SELECT DISTINCT "table", split_part(name, '.', 2) AS schema, split_part(name, '.', 3) AS name, split_part(name, '.', 1) = current_database() AS here
    FROM mixedcc.switch_history WHERE name LIKE '%.public.sw_t';
DROP PROCEDURE sw_run;

-- A table that is written anew keeps its protocols and pins.
CREATE TABLE anew (id int PRIMARY KEY, v int) USING mixedcc WITH (mixedcc.partitions = 3, mixedcc.protocol = occ);
INSERT INTO anew SELECT i, i FROM generate_series(1, 100) i;
BEGIN;
LOCK TABLE anew;
SELECT mixedcc.set_protocol('anew', '2pl', 1), mixedcc.set_protocol('anew', 'occ', 2);
COMMIT;
CREATE FUNCTION rules(t regclass) RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(protocol || CASE WHEN pinned THEN ' pinned' ELSE '' END, ', ' ORDER BY partition)
    FROM mixedcc.partitions WHERE "table" = t $$;
SELECT rules('anew');
ALTER TABLE anew ALTER v TYPE bigint;
SELECT rules('anew');
ALTER TABLE anew SET UNLOGGED;
SELECT rules('anew');
ALTER TABLE anew SET LOGGED, ADD COLUMN w float DEFAULT random();
SELECT rules('anew');
TRUNCATE anew;
SELECT rules('anew');
INSERT INTO anew SELECT i, i FROM generate_series(1, 100) i;
-- A rewrite that is rolled back leaves all as it was; in it, the protocol can be changed.
BEGIN;
ALTER TABLE anew ALTER v TYPE int;
SELECT mixedcc.set_protocol('anew', 'partcc', 1);
SAVEPOINT s;
ALTER TABLE anew ALTER v TYPE text;
SELECT rules('anew');
ROLLBACK TO s;
SELECT rules('anew'), sum(v) FROM anew;
ROLLBACK;
SELECT rules('anew'), sum(v) FROM anew;
-- Partitions of another number get what all of them had in common.
ALTER TABLE anew ALTER v TYPE int, SET (mixedcc.partitions = 2);
SELECT rules('anew');
BEGIN;
LOCK TABLE anew;
SELECT mixedcc.set_protocol('anew', '2pl');
COMMIT;
ALTER TABLE anew ALTER v TYPE bigint, SET (mixedcc.partitions = 4);
SELECT rules('anew');
-- The protocol that the same command sets counts more.
ALTER TABLE anew ALTER v TYPE int, SET (mixedcc.protocol = partcc);
SELECT rules('anew');
-- Tables of a type, and heirs, are written anew with it, and another access method has no pins.
CREATE TYPE anew_type AS (id int, v int);
CREATE TABLE anew_typed OF anew_type (PRIMARY KEY (id)) USING mixedcc WITH (mixedcc.partitions = 2);
CREATE TABLE anew_heir () INHERITS (anew) USING mixedcc;
BEGIN;
LOCK TABLE anew_typed, anew_heir;
SELECT mixedcc.set_protocol('anew_typed', 'partcc', 1), mixedcc.set_protocol('anew_heir', '2pl');
COMMIT;
ALTER TYPE anew_type ALTER ATTRIBUTE v TYPE bigint CASCADE;
ALTER TABLE anew ALTER v TYPE bigint;
SELECT rules('anew'), rules('anew_typed'), rules('anew_heir');
ALTER TABLE anew_typed SET ACCESS METHOD heap;
ALTER TABLE anew_typed SET ACCESS METHOD mixedcc;
SELECT rules('anew_typed');
DROP TABLE anew_typed, anew_heir, anew;
DROP TYPE anew_type;
DROP FUNCTION rules;
-- Functions in SQL call no operators that the search_path of the caller has.
CREATE SCHEMA sw_other;
CREATE TABLE sw_path (id int PRIMARY KEY, v int) USING mixedcc;
CREATE FUNCTION sw_other.uses(id int) RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM sw_path WHERE sw_path.id = $1';
CREATE FUNCTION sw_other.times(float8, int) RETURNS float8 LANGUAGE plpgsql AS $$ BEGIN RAISE 'an operator of another schema'; END $$;
CREATE FUNCTION sw_other.equals(oid, regclass) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE 'an operator of another schema'; END $$;
CREATE OPERATOR sw_other.* (FUNCTION = sw_other.times, LEFTARG = float8, RIGHTARG = int);
CREATE OPERATOR sw_other.= (FUNCTION = sw_other.equals, LEFTARG = oid, RIGHTARG = regclass);
CREATE FUNCTION sw_other.uses(id bigint) RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM sw_path WHERE sw_path.id = $1';
SET search_path = public, sw_other;
SELECT mixedcc.await_switches();
SELECT mixedcc.annotation_hints('sw_path', ARRAY['id']);
RESET search_path;
DROP SCHEMA sw_other CASCADE;
DROP TABLE sw_path;
