-- Unique indexes whose columns are NOT NULL: the engine has their entries, of up to four in a table.
-- `state` shows which index it is, whether each file is without entries, and that rows and entries
-- agree.
CREATE FUNCTION un_state("table" regclass) RETURNS TABLE (index text, hollow boolean, usable boolean, rows bigint) LANGUAGE plpgsql AS $$
BEGIN
    FOR index, hollow IN SELECT indexrelid::regclass, pg_relation_size(indexrelid) = 16384 FROM pg_index WHERE indrelid = "table" ORDER BY 1 LOOP
        SELECT p.usable INTO usable FROM mixedcc.primary_index("table") p WHERE p.index::text = un_state.index;
        rows := CASE WHEN usable THEN mixedcc.check_primary_index("table") END;
        RETURN NEXT;
    END LOOP;
END $$;
-- Every way finds a row, and none finds one too many.
CREATE FUNCTION un_ways("table" regclass, condition text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE w text; n text;
BEGIN
    FOREACH w IN ARRAY ARRAY['seq', 'custom', 'index', 'indexonly', 'bitmap'] LOOP
        PERFORM set_config('enable_seqscan', (w = 'seq')::text, true);
        PERFORM set_config('enable_indexscan', (w IN ('index', 'indexonly', 'custom'))::text, true);
        PERFORM set_config('enable_indexonlyscan', (w = 'indexonly')::text, true);
        PERFORM set_config('enable_bitmapscan', (w = 'bitmap')::text, true);
        PERFORM set_config('mixedcc.enable_primary_scan', (w = 'custom')::text, true);
        EXECUTE format('SELECT count(*) || '' '' || coalesce(sum(a), 0) FROM %s WHERE %s', "table", condition) INTO n;
        RETURN NEXT n;
    END LOOP;
    PERFORM set_config('enable_seqscan', 'on', true), set_config('enable_indexscan', 'on', true), set_config('enable_indexonlyscan', 'on', true),
        set_config('enable_bitmapscan', 'on', true), set_config('mixedcc.enable_primary_scan', 'on', true);
END $$;
CREATE TABLE un_t (a int NOT NULL UNIQUE, b text COLLATE "C", c int NOT NULL, v int) USING mixedcc;
INSERT INTO un_t SELECT i, 'b' || i, -i, 0 FROM generate_series(1, 2000) i;
SELECT * FROM un_state('un_t');
SELECT DISTINCT un_ways('un_t', 'a = 17');
SELECT DISTINCT un_ways('un_t', 'a BETWEEN 100 AND 150 OR a IN (3, 5, 70000)');
SELECT DISTINCT un_ways('un_t', 'a IS NULL');
EXPLAIN (COSTS OFF) SELECT * FROM un_t WHERE a = 17;
-- Duplicates.
INSERT INTO un_t VALUES (5, 'x', 5);
INSERT INTO un_t SELECT 3000, 'x', i FROM generate_series(1, 2) i;
INSERT INTO un_t VALUES (NULL, 'x', 5);
UPDATE un_t SET a = 6 WHERE a = 5;
UPDATE un_t SET a = a + 2000 WHERE a > 1990;
UPDATE un_t SET a = a - 2000 WHERE a > 2000;
INSERT INTO un_t VALUES (5, 'x', 5), (6, 'x', 5), (2001, 'x', -2001) ON CONFLICT DO NOTHING;
INSERT INTO un_t VALUES (5, 'x', 5), (2002, 'x', -2002) ON CONFLICT (a) DO UPDATE SET v = excluded.c RETURNING a, v;
DELETE FROM un_t WHERE a > 2000;
BEGIN; DELETE FROM un_t WHERE a = 6; INSERT INTO un_t VALUES (6, 'x', -6); SAVEPOINT s; INSERT INTO un_t VALUES (6, 'y', -6); ROLLBACK TO s; COMMIT;
SELECT b FROM un_t WHERE a = 6;
SELECT * FROM un_state('un_t');
-- The bypass; native functions are for a PRIMARY KEY alone.
PREPARE un_get(int) AS SELECT a, c FROM un_t WHERE a = $1;
EXECUTE un_get(7);
EXPLAIN (COSTS OFF) EXECUTE un_get(7);
SELECT mixedcc.get(NULL::un_t, 7);
-- Another one is in memory, too; DROP INDEX takes its entries away.
CREATE UNIQUE INDEX un_t_c ON un_t (c);
SELECT * FROM un_state('un_t');
INSERT INTO un_t VALUES (2001, 'x', -5);
BEGIN;
ALTER TABLE un_t DROP CONSTRAINT un_t_a_key;
INSERT INTO un_t VALUES (5, 'x', 5);
SELECT count(*) FROM un_t WHERE a = 5;
SELECT * FROM un_state('un_t');
SAVEPOINT s;
REINDEX TABLE un_t;
SELECT * FROM un_state('un_t');
INSERT INTO un_t VALUES (5, 'x', -5);
ROLLBACK TO s;
INSERT INTO un_t VALUES (5, 'x', -5);
ROLLBACK;
SELECT * FROM un_state('un_t');
INSERT INTO un_t VALUES (5, 'x', 5);
ALTER TABLE un_t DROP CONSTRAINT un_t_a_key;
SELECT count(*) FROM mixedcc.primary_index('un_t');
INSERT INTO un_t VALUES (5, 'twice', 5);
CREATE UNIQUE INDEX un_t_a ON un_t (a);
REINDEX INDEX un_t_c;
SELECT * FROM un_state('un_t');
CREATE UNIQUE INDEX un_t_a ON un_t (a);
DROP INDEX un_t_c;
SELECT count(*) FROM mixedcc.primary_index('un_t');
CREATE UNIQUE INDEX un_t_a ON un_t (a);
DELETE FROM un_t WHERE b = 'twice';
CREATE UNIQUE INDEX un_t_a ON un_t (a);
SELECT * FROM un_state('un_t');
INSERT INTO un_t VALUES (5, 'x', 5);
-- A dropped one leaves nothing for the next one of the same column.
BEGIN; DROP INDEX un_t_a; INSERT INTO un_t VALUES (5, 'twice', 5); SAVEPOINT s; CREATE UNIQUE INDEX un_t_a2 ON un_t (a); ROLLBACK TO s;
DELETE FROM un_t WHERE b = 'twice'; CREATE UNIQUE INDEX un_t_a2 ON un_t (a); INSERT INTO un_t VALUES (5, 'x', 5); ROLLBACK;
INSERT INTO un_t VALUES (5, 'x', 5);
SELECT * FROM un_state('un_t');
DROP INDEX CONCURRENTLY un_t_a;
SELECT count(*) FROM mixedcc.primary_index('un_t');
CREATE UNIQUE INDEX CONCURRENTLY un_t_a ON un_t (a);
SELECT * FROM un_state('un_t');
REINDEX INDEX CONCURRENTLY un_t_a;
REINDEX INDEX un_t_a;
REINDEX INDEX CONCURRENTLY un_t_a;
REINDEX TABLE CONCURRENTLY un_t;
SELECT * FROM un_state('un_t');
-- NOT NULL goes: the index gets entries, and a row with NULL is there.
BEGIN;
ALTER TABLE un_t ALTER a DROP NOT NULL;
INSERT INTO un_t VALUES (NULL, 'null', 0), (NULL, 'null', 0), (2001, 'x', 0);
SAVEPOINT s; INSERT INTO un_t VALUES (2001, 'x', 0); ROLLBACK TO s;
SELECT DISTINCT un_ways('un_t', 'a IS NULL OR a = 2001');
SELECT * FROM un_state('un_t');
ROLLBACK;
SELECT * FROM un_state('un_t');
INSERT INTO un_t VALUES (NULL, 'null', 0);
INSERT INTO un_t VALUES (5, 'x', 0);
ALTER TABLE un_t ALTER a DROP NOT NULL;
INSERT INTO un_t VALUES (NULL, 'null', 0), (NULL, 'null', 0), (2001, 'x', 0);
INSERT INTO un_t VALUES (2001, 'x', 0);
SELECT DISTINCT un_ways('un_t', 'a IS NULL OR a = 2001');
REINDEX TABLE un_t;
SELECT * FROM un_state('un_t');
ALTER TABLE un_t ALTER a SET NOT NULL;
DELETE FROM un_t WHERE a IS NULL OR a > 2000;
ALTER TABLE un_t ALTER a SET NOT NULL;
INSERT INTO un_t VALUES (5, 'x', 0);
SELECT * FROM un_state('un_t');
BEGIN; REINDEX INDEX un_t_a; INSERT INTO un_t VALUES (2001, 'x', 0); SELECT * FROM un_state('un_t'); ROLLBACK;
INSERT INTO un_t VALUES (2001, 'x', 0);
REINDEX TABLE un_t;
SELECT * FROM un_state('un_t');
INSERT INTO un_t VALUES (2001, 'x', 0);
-- A PRIMARY KEY comes beside them.
BEGIN;
ALTER TABLE un_t ADD PRIMARY KEY (c, a);
SELECT * FROM un_state('un_t');
SAVEPOINT s; INSERT INTO un_t VALUES (2001, 'x', 1); ROLLBACK TO s;
SAVEPOINT s; INSERT INTO un_t VALUES (7, 'x', -7); ROLLBACK TO s;
INSERT INTO un_t VALUES (2002, 'x', 0);
SELECT mixedcc.get(NULL::un_t, 0, 2002);
ROLLBACK;
SELECT * FROM un_state('un_t');
INSERT INTO un_t VALUES (2001, 'x', 1);
ALTER TABLE un_t ADD PRIMARY KEY (c, a);
REINDEX TABLE un_t;
SELECT * FROM un_state('un_t');
INSERT INTO un_t VALUES (2001, 'x', 1);
INSERT INTO un_t VALUES (2001, 'x', 0);
ALTER TABLE un_t DROP CONSTRAINT un_t_pkey;
SELECT * FROM un_state('un_t');
REINDEX TABLE un_t;
-- A PRIMARY KEY of the index itself, and of an inexact type.
BEGIN; ALTER TABLE un_t ADD PRIMARY KEY USING INDEX un_t_a; INSERT INTO un_t VALUES (2003, 'x', 0); SELECT * FROM un_state('un_t'); INSERT INTO un_t VALUES (2003, 'x', 0); ROLLBACK;
ALTER TABLE un_t ADD n numeric NOT NULL DEFAULT random()::numeric;
BEGIN; ALTER TABLE un_t ADD PRIMARY KEY (n); SELECT * FROM un_state('un_t'); INSERT INTO un_t VALUES (5, 'x', 0); ROLLBACK;
SELECT * FROM un_state('un_t');
-- A constraint of the index that is checked later.
BEGIN; ALTER TABLE un_t ADD CONSTRAINT un_t_x UNIQUE USING INDEX un_t_a DEFERRABLE INITIALLY DEFERRED; INSERT INTO un_t VALUES (5, 'twice', 0);
DELETE FROM un_t WHERE b = 'twice'; SET CONSTRAINTS ALL IMMEDIATE; SELECT * FROM un_state('un_t'); INSERT INTO un_t VALUES (5, 'x', 0); ROLLBACK;
BEGIN; ALTER TABLE un_t ADD PRIMARY KEY USING INDEX un_t_a DEFERRABLE; SELECT * FROM un_state('un_t'); INSERT INTO un_t VALUES (5, 'x', 0); ROLLBACK;
SELECT * FROM un_state('un_t');
-- TRUNCATE, rewrites, types, other access methods.
BEGIN; TRUNCATE un_t; INSERT INTO un_t SELECT i, 'new', 0 FROM generate_series(1, 10) i; SELECT * FROM un_state('un_t');
SAVEPOINT s; INSERT INTO un_t VALUES (5, 'x', 0); ROLLBACK TO s; TRUNCATE un_t; INSERT INTO un_t VALUES (5, 'x', 0); ROLLBACK;
ALTER TABLE un_t ALTER a TYPE bigint;
SELECT * FROM un_state('un_t');
INSERT INTO un_t VALUES (5, 'x', 0);
ALTER TABLE un_t ALTER a TYPE numeric;
SELECT * FROM un_state('un_t');
INSERT INTO un_t VALUES (5.0, 'x', 0);
ALTER TABLE un_t ALTER a TYPE int;
SELECT * FROM un_state('un_t');
ALTER TABLE un_t SET UNLOGGED;
INSERT INTO un_t VALUES (5, 'x', 0);
SELECT * FROM un_state('un_t');
ALTER TABLE un_t SET LOGGED;
CLUSTER un_t USING un_t_a;
INSERT INTO un_t VALUES (5, 'x', 0);
SELECT * FROM un_state('un_t');
BEGIN; ALTER TABLE un_t SET ACCESS METHOD heap; INSERT INTO un_t VALUES (3000, 'x', 0); SAVEPOINT s; INSERT INTO un_t VALUES (5, 'x', 0); ROLLBACK TO s;
ALTER TABLE un_t SET ACCESS METHOD mixedcc; SELECT * FROM un_state('un_t'); INSERT INTO un_t VALUES (3000, 'x', 0); ROLLBACK;
SELECT * FROM un_state('un_t');
-- The file of a varchar's index is kept when the length changes.
CREATE TABLE un_v (a int, k varchar(10) COLLATE "C" NOT NULL UNIQUE) USING mixedcc;
INSERT INTO un_v SELECT i, 'k' || i FROM generate_series(1, 2000) i;
ALTER TABLE un_v ALTER k TYPE varchar(20);
SELECT * FROM un_state('un_v');
INSERT INTO un_v VALUES (0, 'k7');
SELECT DISTINCT un_ways('un_v', 'k = ''k7''');
ALTER TABLE un_v RENAME k TO key; ALTER INDEX un_v_k_key RENAME TO un_v_key; ALTER TABLE un_v RENAME TO un_w;
INSERT INTO un_w VALUES (0, 'k7');
-- Which unique indexes may have it.
CREATE TABLE un_k (a int NOT NULL, b int NOT NULL, n int, t text COLLATE "en-x-icu" NOT NULL, d text COLLATE "C" NOT NULL) USING mixedcc;
INSERT INTO un_k SELECT i, i, i, i, i FROM generate_series(1, 2000) i;
CREATE FUNCTION un_try(what text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE h boolean;
BEGIN
    EXECUTE 'CREATE UNIQUE INDEX un_try ON un_k ' || what;
    h := pg_relation_size('un_try') = 16384;
    DROP INDEX un_try;
    RETURN h;
END $$;
SELECT what, un_try(what) FROM unnest(ARRAY['(a)', '(a, b)', '(d)', '(a, d, b)', '(n)', '(a, n)', '(t)', '(a DESC)', '(a NULLS FIRST)', '(d text_pattern_ops)',
    '(a, a)', '((a + 1))', '(a) WHERE b > 0', '(a) INCLUDE (b)', '(d COLLATE "POSIX")', '(a) NULLS NOT DISTINCT', '(a) WITH (fillfactor = 50)']) what;
-- Foreign keys that point to it, partitions, LIKE, inheritance.
CREATE TABLE un_f (r int REFERENCES un_t (a) ON UPDATE CASCADE) USING mixedcc;
INSERT INTO un_f VALUES (5), (9999);
INSERT INTO un_f VALUES (5);
UPDATE un_t SET a = 5000 WHERE a = 5;
SELECT * FROM un_f;
DELETE FROM un_t WHERE a = 5000;
CREATE TABLE un_like (LIKE un_t INCLUDING ALL) USING mixedcc;
INSERT INTO un_like SELECT i, 'x', 0 FROM generate_series(1, 2000) i;
INSERT INTO un_like VALUES (1, 'x', 0);
SELECT * FROM un_state('un_like');
CREATE TABLE un_p (a int NOT NULL, b text, c int NOT NULL, v int, n numeric DEFAULT 0, UNIQUE (a)) PARTITION BY RANGE (a);
CREATE TABLE un_p1 PARTITION OF un_p FOR VALUES FROM (100000) TO (200000) USING mixedcc;
INSERT INTO un_p SELECT i, 'x', i FROM generate_series(100001, 102000) i;
INSERT INTO un_p VALUES (100005, 'x', 0);
SELECT * FROM un_state('un_p1');
CREATE TABLE un_p2 (LIKE un_p) USING mixedcc;
INSERT INTO un_p2 SELECT i, 'x', i FROM generate_series(1, 2000) i;
CREATE UNIQUE INDEX un_p2_c ON un_p2 (c);
ALTER TABLE un_p ATTACH PARTITION un_p2 FOR VALUES FROM (1) TO (10000);
SELECT * FROM un_state('un_p2');
ALTER TABLE un_p DETACH PARTITION un_p1;
INSERT INTO un_p1 VALUES (100005, 'x', 0);
SELECT * FROM un_state('un_p1');
CREATE TABLE un_q (a int NOT NULL, PRIMARY KEY (a)) PARTITION BY RANGE (a);
CREATE TABLE un_q1 (a int NOT NULL) USING mixedcc;
INSERT INTO un_q1 SELECT i FROM generate_series(1, 2000) i;
CREATE UNIQUE INDEX un_q1_u ON un_q1 (a);
ALTER TABLE un_q ATTACH PARTITION un_q1 FOR VALUES FROM (1) TO (10000);
INSERT INTO un_q VALUES (5);
CREATE INDEX ON un_q1 (a);
ALTER TABLE un_p DROP CONSTRAINT un_p_a_key;
SELECT * FROM un_state('un_p2');
-- In a transaction that is rolled back in parts.
BEGIN;
CREATE TABLE un_x (a int NOT NULL) USING mixedcc;
INSERT INTO un_x SELECT i FROM generate_series(1, 2000) i;
SAVEPOINT s; CREATE UNIQUE INDEX un_x_a ON un_x (a); INSERT INTO un_x VALUES (2001); ROLLBACK TO s;
INSERT INTO un_x VALUES (1);
SAVEPOINT s; CREATE UNIQUE INDEX un_x_a ON un_x (a); ROLLBACK TO s;
DELETE FROM un_x WHERE a = 1;
CREATE UNIQUE INDEX un_x_a ON un_x (a);
SAVEPOINT s; DROP INDEX un_x_a; INSERT INTO un_x VALUES (7); ROLLBACK TO s;
SAVEPOINT s; INSERT INTO un_x VALUES (7); ROLLBACK TO s;
SAVEPOINT s; ALTER TABLE un_x ALTER a DROP NOT NULL; INSERT INTO un_x VALUES (NULL), (NULL); ROLLBACK TO s;
SAVEPOINT s; ALTER TABLE un_x ADD PRIMARY KEY (a); INSERT INTO un_x VALUES (1); ROLLBACK TO s;
INSERT INTO un_x VALUES (1);
SAVEPOINT s; INSERT INTO un_x VALUES (1); ROLLBACK TO s;
COMMIT;
SELECT * FROM un_state('un_x');
-- A row that goes in the transaction that has made its index has no entry there.
BEGIN;
CREATE TABLE un_y (a int NOT NULL, b int NOT NULL) USING mixedcc;
INSERT INTO un_y SELECT i, i FROM generate_series(1, 10) i;
CREATE UNIQUE INDEX un_y_a ON un_y (a);
DELETE FROM un_y WHERE a < 6;
CREATE UNIQUE INDEX un_y_b ON un_y (b);
DELETE FROM un_y WHERE a = 6;
COMMIT;
VACUUM un_y;
SELECT index, entries FROM mixedcc.primary_index('un_y');
INSERT INTO un_y SELECT i, i FROM generate_series(101, 110) i;
SELECT * FROM un_y WHERE a < 7;
SELECT * FROM un_y WHERE b < 7;
SELECT * FROM un_state('un_y');
-- Columns go, and types with them.
CREATE DOMAIN un_d AS int;
ALTER TABLE un_x ADD d un_d NOT NULL DEFAULT 0;
UPDATE un_x SET d = a;
CREATE UNIQUE INDEX un_x_d ON un_x (d, a);
DROP INDEX un_x_a;
REINDEX TABLE un_x;
SELECT * FROM un_state('un_x');
DROP DOMAIN un_d CASCADE;
SELECT count(*) FROM mixedcc.primary_index('un_x');
INSERT INTO un_x VALUES (1);
CREATE UNIQUE INDEX ON un_x (a);
-- The entries of a dropped index go also if an event trigger runs commands, one of which fails.
CREATE TABLE un_e (a int NOT NULL, b int) USING mixedcc;
CREATE UNIQUE INDEX un_e_a ON un_e (a);
INSERT INTO un_e SELECT i, i FROM generate_series(1, 2000) i;
CREATE FUNCTION un_event() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE 'SET LOCAL work_mem = 1024';
    BEGIN
        EXECUTE 'DROP INDEX un_no_such';
    EXCEPTION WHEN undefined_object THEN
        EXECUTE 'SET LOCAL work_mem = 2048';
    END;
END $$;
BEGIN;
CREATE EVENT TRIGGER un_event ON ddl_command_end WHEN TAG IN ('DROP INDEX') EXECUTE FUNCTION un_event();
DROP INDEX un_e_a;
SELECT count(*) FROM mixedcc.primary_index('un_e');
INSERT INTO un_e VALUES (5, 0);
ROLLBACK;
SELECT * FROM un_state('un_e');
INSERT INTO un_e VALUES (5, 0);
-- So they do if the command is one of an event trigger, or of a function that goes on behind an error.
CREATE OR REPLACE FUNCTION un_event() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'DROP INDEX un_e_a'; EXECUTE 'SET LOCAL work_mem = 1024'; END $$;
BEGIN;
CREATE EVENT TRIGGER un_event ON ddl_command_end WHEN TAG IN ('CREATE TYPE') EXECUTE FUNCTION un_event();
CREATE TYPE un_type AS (a int);
SELECT count(*) FROM mixedcc.primary_index('un_e');
ROLLBACK;
DO $$
BEGIN
    BEGIN EXECUTE 'DROP INDEX un_no_such'; EXCEPTION WHEN undefined_object THEN NULL; END;
    EXECUTE 'DROP INDEX un_e_a';
    RAISE NOTICE '% left', (SELECT count(*) FROM mixedcc.primary_index('un_e'));
END $$;
DROP FUNCTION un_event;
-- A type gets another operator class by default: an index goes on with its own.
CREATE TABLE un_o (k varchar(10) COLLATE "C" NOT NULL, a int) USING mixedcc;
CREATE UNIQUE INDEX un_o_k ON un_o (k);
INSERT INTO un_o SELECT 'k' || i, i FROM generate_series(1, 2000) i;
BEGIN;
CREATE OPERATOR FAMILY un_family USING btree;
CREATE OPERATOR CLASS un_class DEFAULT FOR TYPE varchar USING btree FAMILY un_family AS
    OPERATOR 1 < (text, text), OPERATOR 2 <= (text, text), OPERATOR 3 = (text, text), OPERATOR 4 >= (text, text), OPERATOR 5 > (text, text),
    FUNCTION 1 (varchar, varchar) bttextcmp(text, text);
ALTER TABLE un_o ALTER a SET STATISTICS 5;
SELECT * FROM un_state('un_o');
INSERT INTO un_o VALUES ('k2001', 2001);
SELECT DISTINCT un_ways('un_o', 'k = ''k7''');
SELECT DISTINCT un_ways('un_o', 'k > ''k5'' AND k < ''k51''');
SAVEPOINT s; INSERT INTO un_o VALUES ('k7', 0); ROLLBACK TO s;
REINDEX INDEX un_o_k;
SELECT * FROM un_state('un_o');
SAVEPOINT s; INSERT INTO un_o VALUES ('k7', 0); ROLLBACK TO s;
SAVEPOINT s; TRUNCATE un_o; INSERT INTO un_o VALUES ('k7', 0); SELECT * FROM un_state('un_o'); INSERT INTO un_o VALUES ('k7', 0); ROLLBACK TO s;
-- A new index does not get it.
DROP INDEX un_o_k; CREATE UNIQUE INDEX un_o_k ON un_o (k text_ops);
SELECT * FROM un_state('un_o');
ROLLBACK;
SELECT * FROM un_state('un_o');
-- NULLs of which NOT NULL in the same command tells later: they are no duplicates.
CREATE TABLE un_n (a int, b int) USING mixedcc;
INSERT INTO un_n VALUES (NULL, 1), (NULL, 2), (1, 3);
ALTER TABLE un_n ALTER a SET NOT NULL, ADD UNIQUE (a);
ALTER TABLE un_n ALTER a SET NOT NULL, ADD UNIQUE NULLS NOT DISTINCT (a);
INSERT INTO un_n VALUES (1, 4);
ALTER TABLE un_n ALTER a SET NOT NULL, ADD UNIQUE (a);
-- Five keys: four are in memory, whichever come first. One that goes leaves its place to the next that is built.
CREATE TABLE un_m (a int NOT NULL, b int NOT NULL, c int NOT NULL, d int NOT NULL, e int NOT NULL) USING mixedcc;
INSERT INTO un_m SELECT i, i, i, i, i FROM generate_series(1, 2000) i;
CREATE UNIQUE INDEX un_m_b ON un_m (b);
ALTER TABLE un_m ADD PRIMARY KEY (a);
CREATE UNIQUE INDEX un_m_c ON un_m (c);
CREATE UNIQUE INDEX un_m_d ON un_m (d);
CREATE UNIQUE INDEX un_m_e ON un_m (e);
SELECT * FROM un_state('un_m');
INSERT INTO un_m VALUES (2001, 2001, 2001, 2001, 5);
INSERT INTO un_m VALUES (2001, 2001, 2001, 5, 2001);
EXPLAIN (COSTS OFF) SELECT * FROM un_m WHERE a = 5;
EXPLAIN (COSTS OFF) SELECT * FROM un_m WHERE d = 5;
EXPLAIN (COSTS OFF) SELECT * FROM un_m WHERE c BETWEEN 5 AND 7 ORDER BY c DESC;
EXPLAIN (COSTS OFF) SELECT * FROM un_m WHERE e = 5;
PREPARE un_m_get(int) AS SELECT a FROM un_m WHERE d = $1;
EXECUTE un_m_get(7);
EXPLAIN (COSTS OFF) EXECUTE un_m_get(7);
UPDATE un_m SET e = -e WHERE c = 7 RETURNING *;
DELETE FROM un_m WHERE b = 7 RETURNING a, e;
SET client_min_messages = warning; CREATE EXTENSION IF NOT EXISTS amcheck; RESET client_min_messages;
SELECT bt_index_check(i, true) FROM unnest(ARRAY['un_m_pkey', 'un_m_b', 'un_m_c', 'un_m_d', 'un_m_e']::regclass[]) i;
BEGIN;
DROP INDEX un_m_c;
SELECT * FROM un_state('un_m');
REINDEX INDEX un_m_e;
SELECT * FROM un_state('un_m');
INSERT INTO un_m VALUES (2001, 2001, 5, 2001, 2001);
SAVEPOINT s; INSERT INTO un_m VALUES (2002, 2002, 5, 2002, 2001); ROLLBACK TO s;
DELETE FROM un_m WHERE a = 2001;
CREATE UNIQUE INDEX un_m_c ON un_m (c);
SELECT * FROM un_state('un_m');
ROLLBACK;
SELECT * FROM un_state('un_m');
INSERT INTO un_m VALUES (2001, 2001, 5, 2001, 2001);
-- The PRIMARY KEY comes and goes beside four others.
ALTER TABLE un_m DROP CONSTRAINT un_m_pkey;
REINDEX TABLE un_m;
SELECT * FROM un_state('un_m');
ALTER TABLE un_m ADD PRIMARY KEY (a);
SELECT * FROM un_state('un_m');
INSERT INTO un_m VALUES (5, 2001, 2001, 2001, 2001);
SELECT mixedcc.get(NULL::un_m, 5);
EXPLAIN (COSTS OFF) SELECT * FROM un_m WHERE a = 5;
DROP INDEX un_m_b;
SELECT * FROM un_state('un_m');
BEGIN; DROP INDEX un_m_c; SELECT * FROM un_state('un_m'); ROLLBACK;
REINDEX TABLE un_m;
SELECT * FROM un_state('un_m');
SELECT mixedcc.get(NULL::un_m, 5);
INSERT INTO un_m VALUES (5, 5, 2001, 2001, 2001);
-- One of several stays a PRIMARY KEY with other columns beside it, of which nbtree has the entries.
ALTER TABLE un_m DROP CONSTRAINT un_m_pkey, ADD PRIMARY KEY (a) INCLUDE (b);
SELECT * FROM un_state('un_m');
INSERT INTO un_m VALUES (5, 5, 2001, 2001, 2001);
INSERT INTO un_m VALUES (2001, 5, 5, 2001, 2001) ON CONFLICT DO NOTHING;
INSERT INTO un_m VALUES (2001, 5, 2001, 2001, 2001);
DELETE FROM un_m WHERE a = 2001;
SELECT * FROM un_state('un_m');
-- What a rewrite, TRUNCATE, another access method and the way back do.
ALTER TABLE un_m ALTER d TYPE bigint;
SELECT * FROM un_state('un_m');
BEGIN; TRUNCATE un_m; INSERT INTO un_m SELECT i, i, i, i, i FROM generate_series(1, 500) i; SELECT * FROM un_state('un_m');
SAVEPOINT s; INSERT INTO un_m VALUES (501, 501, 501, 1, 501); ROLLBACK TO s; SAVEPOINT s; INSERT INTO un_m VALUES (501, 501, 1, 501, 501); ROLLBACK TO s; ROLLBACK;
SELECT * FROM un_state('un_m');
ALTER TABLE un_m SET ACCESS METHOD heap;
ALTER TABLE un_m SET ACCESS METHOD mixedcc;
SELECT * FROM un_state('un_m');
ALTER TABLE un_m SET UNLOGGED;
SELECT * FROM un_state('un_m');
INSERT INTO un_m VALUES (2001, 5, 5, 2001, 2001);
INSERT INTO un_m VALUES (2001, 5, 2001, 5, 2001);
INSERT INTO un_m VALUES (2001, 5, 2001, 2001, 5);
-- What a canceled DROP INDEX CONCURRENTLY leaves: REINDEX brings the index back, and the same command ends it.
CREATE TABLE un_c (a int PRIMARY KEY, b int NOT NULL UNIQUE) USING mixedcc;
INSERT INTO un_c VALUES (1, 1);
UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'un_c_b_key'::regclass;
ANALYZE un_c;
INSERT INTO un_c VALUES (2, 1);
INSERT INTO un_c VALUES (2, 2);
REINDEX INDEX un_c_b_key;
SELECT * FROM un_state('un_c');
INSERT INTO un_c VALUES (3, 2);
ALTER TABLE un_c DROP CONSTRAINT un_c_b_key;
CREATE UNIQUE INDEX un_c_b ON un_c (b);
UPDATE pg_index SET indisvalid = false, indisready = false, indislive = false WHERE indexrelid = 'un_c_b'::regclass;
ANALYZE un_c;
SELECT count(*) FROM mixedcc.primary_index('un_c');
DROP INDEX CONCURRENTLY un_c_b;
SELECT count(*) FROM mixedcc.primary_index('un_c');
INSERT INTO un_c VALUES (3, 2);
SELECT * FROM un_c ORDER BY a;
DROP TABLE un_c;
-- An event trigger inserts a key again, between the change of the definition and the end of the command.
CREATE TABLE un_v (a int NOT NULL, b int) USING mixedcc;
INSERT INTO un_v VALUES (1, 1), (2, 2);
CREATE FUNCTION un_again() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO un_v VALUES (1, 9); END $$;
CREATE EVENT TRIGGER un_again ON ddl_command_end WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION un_again();
BEGIN;
CREATE UNIQUE INDEX un_v_a ON un_v (a);
ALTER TABLE un_v ADD PRIMARY KEY USING INDEX un_v_a;
ROLLBACK;
DROP EVENT TRIGGER un_again;
DROP FUNCTION un_again;
DROP TABLE un_v;
-- More columns than an index in memory can have: nbtree has the entries.
SELECT format('CREATE TABLE un_h (%s, PRIMARY KEY (%s)) USING mixedcc', string_agg(format('c%s int NOT NULL DEFAULT 0', i), ', '),
    string_agg('c' || i, ', ')) FROM generate_series(1, 32) i \gexec
SELECT format('CREATE UNIQUE INDEX un_h_%s ON un_h (%s)', n, string_agg('c' || i, ', '))
    FROM unnest(ARRAY[30, 31, 32]) n, generate_series(1, n) i GROUP BY n ORDER BY n \gexec
SELECT * FROM un_state('un_h');
INSERT INTO un_h VALUES (1), (2);
INSERT INTO un_h VALUES (3), (2);
TRUNCATE un_h;
INSERT INTO un_h SELECT i FROM generate_series(1, 500) i;
REINDEX TABLE un_h;
SELECT * FROM un_state('un_h');
INSERT INTO un_h VALUES (2);
SELECT c1 FROM un_h WHERE c1 = 2 AND c31 = 0;
DROP TABLE un_h;
DROP TABLE un_t, un_w, un_k, un_f, un_like, un_p, un_p1, un_q, un_x, un_y, un_e, un_o, un_n, un_m;
DROP FUNCTION un_state, un_ways, un_try;
