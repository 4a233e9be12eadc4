-- What is not supported says so with feature_not_supported (0A000), and changes nothing.
\set VERBOSITY sqlstate
CREATE TABLE un_t (id int PRIMARY KEY, v text) USING mixedcc;
INSERT INTO un_t VALUES (1, 'one'), (2, 'two');
-- Two-phase commit: what was used may be prepared.
BEGIN;
INSERT INTO un_t VALUES (3, 'three');
PREPARE TRANSACTION 'un_1';
ROLLBACK PREPARED 'un_1';
SELECT count(*) FROM un_t;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM un_t;
PREPARE TRANSACTION 'un_2';
ROLLBACK PREPARED 'un_2';
-- Whatever the use was, but for snapshots that were not recorded.
CREATE TABLE un_heap (id int) USING heap;
CREATE TABLE un_child (id int PRIMARY KEY, parent int REFERENCES un_t) USING mixedcc;
CREATE TABLE un_hash (id int PRIMARY KEY) USING mixedcc WITH (mixedcc.partitions = 4, mixedcc.protocol = 'partcc');
BEGIN; INSERT INTO un_heap VALUES (1); PREPARE TRANSACTION 'un_3'; COMMIT PREPARED 'un_3';
BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM un_heap; PREPARE TRANSACTION 'un_3'; COMMIT PREPARED 'un_3';
BEGIN; SELECT count(*) FROM un_hash WHERE id = 99; PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
BEGIN; SELECT count(*) FROM un_hash; PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM un_t WHERE v = 'none'; PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY; SELECT FROM un_t WHERE id = 1; PREPARE TRANSACTION 'un_3';
BEGIN; SAVEPOINT s; SELECT count(*) FROM un_t; ROLLBACK TO s; PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
BEGIN; SAVEPOINT s; INSERT INTO un_t VALUES (9, 'nine'); ROLLBACK TO s; PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
BEGIN; SAVEPOINT s; CREATE TABLE un_made (id int) USING mixedcc; ROLLBACK TO s; PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
BEGIN; SELECT mixedcc.get(NULL::un_t, 77); PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
BEGIN; SELECT mixedcc.add(NULL::un_hash, 'id', 0, 77); PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT mixedcc.declare_partition('un_hash', 1); PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
BEGIN; SELECT count(*) FROM mixedcc.range_scan(NULL::un_t, 70, 80) x; PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
BEGIN; SELECT FROM un_t WHERE id = 77 FOR KEY SHARE; PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
BEGIN; INSERT INTO un_child VALUES (1, 1); PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
BEGIN; DECLARE c CURSOR FOR SELECT * FROM un_t ORDER BY v; PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
BEGIN; DECLARE c CURSOR FOR SELECT * FROM un_t; FETCH c; CLOSE c; PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
BEGIN; CREATE INDEX un_index ON un_t (v); PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
BEGIN; COPY un_t TO STDOUT; PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
BEGIN; ANALYZE un_t; PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
BEGIN; TRUNCATE un_hash; PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
BEGIN; ALTER TABLE un_hash SET (mixedcc.partitions = 2); PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
BEGIN; INSERT INTO un_heap SELECT id FROM un_t; PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
BEGIN; INSERT INTO un_heap VALUES (2); PREPARE TRANSACTION 'un_3'; COMMIT PREPARED 'un_3';
SELECT count(*) FROM un_heap;
DROP TABLE un_heap, un_child, un_hash;
-- Temporary tables and materialized views.
CREATE TEMPORARY TABLE un_temp (id int) USING mixedcc;
CREATE TEMPORARY TABLE un_temp USING mixedcc AS SELECT 1 AS id;
CREATE MATERIALIZED VIEW un_mat USING mixedcc AS SELECT * FROM un_t;
SET default_table_access_method = mixedcc;
CREATE TEMPORARY TABLE un_temp (id int PRIMARY KEY);
INSERT INTO un_temp VALUES (1);
SELECT 1 AS id INTO TEMPORARY un_temp2;
CREATE MATERIALIZED VIEW un_mat AS SELECT * FROM un_t;
RESET default_table_access_method;
SELECT c.relname, a.amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam
    WHERE relname IN ('un_temp', 'un_temp2', 'un_mat') ORDER BY 1;
ALTER TABLE un_temp SET ACCESS METHOD mixedcc;
ALTER MATERIALIZED VIEW un_mat SET ACCESS METHOD mixedcc;
SELECT * FROM un_temp;
DROP MATERIALIZED VIEW un_mat;
CREATE TABLE un_heap (id int PRIMARY KEY) USING heap;
INSERT INTO un_heap VALUES (7);
-- Publications take mixedcc tables; PostgreSQL says that wal_level is not logical.
CREATE PUBLICATION un_p FOR TABLE un_t;
ALTER PUBLICATION un_p ADD TABLE un_heap;
ALTER PUBLICATION un_p SET (publish = 'insert');
ALTER PUBLICATION un_p DROP TABLE un_heap;
ALTER PUBLICATION un_p SET TABLE un_heap;
CREATE PUBLICATION un_schema FOR TABLES IN SCHEMA public;
CREATE PUBLICATION un_all FOR ALL TABLES;
DROP PUBLICATION un_p, un_schema, un_all;
SELECT count(*) FROM pg_index WHERE indrelid = 'un_t'::regclass;
-- A SERIALIZABLE transaction over both engines, by the setting; catalogs and temporary tables are exempt.
\set VERBOSITY terse
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM un_t;
SELECT count(*) FROM un_temp;
SELECT count(*) FROM pg_class WHERE relname = 'un_t';
COMMIT;
\set VERBOSITY sqlstate
SHOW mixedcc.mixed_serializable;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM un_t;
SELECT count(*) FROM un_heap;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO un_heap SELECT id FROM un_t; PREPARE TRANSACTION 'un_3';
-- A transaction id alone is no use of heap.
BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO un_t VALUES (9, 'nine'); CREATE TABLE un_made (id int); PREPARE TRANSACTION 'un_3'; ROLLBACK PREPARED 'un_3';
SET mixedcc.mixed_serializable = error;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM un_t;
SELECT count(*) FROM un_heap;
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM un_heap;
UPDATE un_t SET v = 'x' WHERE id = 1;
ROLLBACK;
SET mixedcc.mixed_serializable = allow;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM un_t;
SELECT count(*) FROM un_heap;
COMMIT;
RESET mixedcc.mixed_serializable;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM un_t;
SELECT count(*) FROM un_heap;
COMMIT;
SELECT * FROM un_t ORDER BY id;
-- A function that an index uses may not access our tables, whichever way its statement goes: here it looks a key up.
CREATE TABLE un_one (id int PRIMARY KEY, v int) USING mixedcc;
INSERT INTO un_one VALUES (1, 1);
CREATE FUNCTION un_compare(a int, b int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    one int;
BEGIN
    SELECT v INTO one FROM public.un_one WHERE id = 1;
    RETURN one * sign(a - b);
END $$;
CREATE OPERATOR CLASS un_by_function FOR TYPE int USING btree AS
    OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 un_compare(int, int);
CREATE TABLE un_keys (id int PRIMARY KEY, g int) USING mixedcc;
INSERT INTO un_keys SELECT i, i FROM generate_series(1, 10) i;
CREATE INDEX un_keys_g ON un_keys (g un_by_function);
SET enable_seqscan = off;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM un_keys WHERE g BETWEEN 3 AND 5;
ROLLBACK;
RESET enable_seqscan;
DROP TABLE un_keys, un_one;
DROP OPERATOR FAMILY un_by_function USING btree;
DROP FUNCTION un_compare;
DROP TABLE un_t, un_heap, un_temp, un_temp2;
\set VERBOSITY default
-- amcheck compares with the rows of the start of a statement, and DO is none.
CREATE EXTENSION amcheck;
CREATE TABLE un_checked (id int UNIQUE) USING mixedcc;
INSERT INTO un_checked SELECT generate_series(1, 10);
DO $$ DECLARE x text; BEGIN x := bt_index_check('un_checked_id_key', true); END $$;
DROP TABLE un_checked;
DROP EXTENSION amcheck;
