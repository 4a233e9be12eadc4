-- The engine's primary index: when a table has one, and that it follows the rows.
CREATE SCHEMA pk; SET search_path = pk, public;
-- What there is: the key that it serves; and a comparison with the rows.
CREATE FUNCTION state(t regclass) RETURNS text LANGUAGE sql AS $$
    SELECT coalesce((SELECT format('%s %s', index, mixedcc.check_primary_index(t)) FROM mixedcc.primary_index(t)), 'none') $$;
CREATE FUNCTION usable(t regclass) RETURNS boolean LANGUAGE sql AS $$ SELECT usable FROM mixedcc.primary_index(t) $$;

-- Keys with exact bytes have one, others do not.
CREATE TABLE ints (a int2, b int8, PRIMARY KEY (b, a)) USING mixedcc;
CREATE TABLE texts (t text COLLATE "C" PRIMARY KEY) USING mixedcc;
CREATE TABLE mixed (d date, f float8, u uuid, o oid, n name, c char(3) COLLATE "C", ts timestamptz, x bytea, ok boolean,
    PRIMARY KEY (d, f, u, o, n, c, ts, x, ok)) USING mixedcc;
CREATE TABLE numerics (n numeric PRIMARY KEY) USING mixedcc;
CREATE TABLE collated (t text COLLATE "en-x-icu" PRIMARY KEY) USING mixedcc;
CREATE TABLE arrays (a int[] PRIMARY KEY) USING mixedcc;
CREATE TABLE late (a int PRIMARY KEY DEFERRABLE) USING mixedcc;
CREATE TABLE uniques (a int NOT NULL UNIQUE) USING mixedcc;
SELECT t, state(t::regclass) FROM unnest('{ints,texts,mixed,numerics,collated,arrays,late,uniques}'::text[]) t;
INSERT INTO mixed SELECT '2000-01-01', i * -0.5, md5(i::text)::uuid, i, 'n' || i, i % 9, now(), '\x00ff00'::bytea || i::text::bytea, i % 2 = 0
    FROM generate_series(-50, 50) i;
INSERT INTO mixed VALUES ('-infinity', 'NaN', md5('')::uuid, 0, '', '', 'infinity', '', true), ('4713-01-01 BC', '-0', md5('')::uuid, 0, '', '', '-infinity', '\x00', true);
SELECT state('mixed');

-- Inserts, moves, deletes, rollbacks.
CREATE TABLE t (id int PRIMARY KEY, v text) USING mixedcc;
INSERT INTO t SELECT i, 'v' FROM generate_series(1, 300) i;
UPDATE t SET v = 'w' WHERE id <= 10;
UPDATE t SET id = id + 1000 WHERE id BETWEEN 11 AND 20;
DELETE FROM t WHERE id BETWEEN 21 AND 30;
SELECT mixedcc.check_primary_index('t');
BEGIN;
INSERT INTO t VALUES (2001), (2002);
SAVEPOINT s;
INSERT INTO t VALUES (2003);
UPDATE t SET id = 2004 WHERE id = 2001;
SELECT mixedcc.check_primary_index('t');
ROLLBACK TO s;
SELECT mixedcc.check_primary_index('t');
ROLLBACK;
SELECT mixedcc.check_primary_index('t');
INSERT INTO t VALUES (1), (9001) ON CONFLICT DO NOTHING;
INSERT INTO t VALUES (1, 'x'), (9002, 'x') ON CONFLICT (id) DO UPDATE SET v = excluded.v, id = 9003;
INSERT INTO t VALUES (5), (5);
COPY t FROM stdin;
7001	copied
7002	copied
\.
SELECT mixedcc.check_primary_index('t'), count(*) FROM t;
SELECT entries >= 294 AS entries, usable FROM mixedcc.primary_index('t');
VACUUM t;

-- Changes of the key.
ALTER TABLE t DROP CONSTRAINT t_pkey;
SELECT state('t');
UPDATE t SET id = id + 100000 WHERE id <= 50;
INSERT INTO t VALUES (100001, 'not unique any more');
BEGIN;
DELETE FROM t WHERE v = 'not unique any more';
ALTER TABLE t ADD PRIMARY KEY (id);
-- Not used before the commit, and then when older snapshots are gone.
SELECT state('t'), usable('t');
COMMIT;
SELECT state('t');
DO $$ BEGIN FOR i IN 1..500 LOOP EXIT WHEN pk.usable('pk.t'); PERFORM pg_sleep(0.01); COMMIT; END LOOP; END $$;
SELECT usable('t');
BEGIN;
ALTER TABLE t DROP CONSTRAINT t_pkey;
INSERT INTO t VALUES (100001, 'again'), (-7, 'new');
UPDATE t SET id = 5 WHERE id = 100002;
SELECT state('t');
ROLLBACK;
SELECT state('t'), count(*) FROM t WHERE id IN (100001, 100002);
-- Another key in the same command, undone with a savepoint and for good.
BEGIN;
INSERT INTO t VALUES (-1, 'before');
SAVEPOINT s;
ALTER TABLE t DROP CONSTRAINT t_pkey, ALTER v SET NOT NULL;
ROLLBACK TO s;
UPDATE t SET v = id::text;
SAVEPOINT s2;
ALTER TABLE t DROP CONSTRAINT t_pkey, ALTER v TYPE text COLLATE "C", ADD PRIMARY KEY (v, id);
INSERT INTO t VALUES (-2, 'after');
SELECT state('t');
ROLLBACK TO s2;
SELECT state('t');
ROLLBACK;
SELECT state('t');
-- The key changes several times in one transaction, and some of that is undone: the last one that stays counts.
CREATE TABLE twice (a int PRIMARY KEY, b int NOT NULL) USING mixedcc;
INSERT INTO twice SELECT i, -i FROM generate_series(1, 200) i;
DELETE FROM twice WHERE a > 190;
BEGIN;
INSERT INTO twice VALUES (300, -300), (301, -301);
ALTER TABLE twice DROP CONSTRAINT twice_pkey;
DELETE FROM twice WHERE a <= 10;
ALTER TABLE twice ADD PRIMARY KEY (b);
SELECT state('twice');
SAVEPOINT s;
ALTER TABLE twice DROP CONSTRAINT twice_pkey, ADD PRIMARY KEY (b, a);
INSERT INTO twice VALUES (400, -400);
DELETE FROM twice WHERE a = 301;
SELECT state('twice');
ROLLBACK TO s;
SELECT state('twice');
DELETE FROM twice WHERE a = 300;
SAVEPOINT s;
ALTER TABLE twice DROP CONSTRAINT twice_pkey, ADD PRIMARY KEY (a, b);
RELEASE s;
SELECT state('twice');
COMMIT;
SELECT state('twice');
VACUUM twice;
INSERT INTO twice SELECT i, 0 FROM generate_series(-20, 10) i;
SELECT state('twice'), count(*), sum(a) FROM twice WHERE a BETWEEN -3 AND 12;
BEGIN;
INSERT INTO twice VALUES (500, 0);
ALTER TABLE twice DROP CONSTRAINT twice_pkey, ADD PRIMARY KEY (b, a);
ALTER TABLE twice DROP CONSTRAINT twice_pkey;
INSERT INTO twice VALUES (501, 0);
ROLLBACK;
SELECT state('twice');
VACUUM twice;
INSERT INTO twice SELECT i, 0 FROM generate_series(600, 640) i;
SELECT state('twice'), count(*) FROM twice WHERE a > 400;
UPDATE t SET v = id::text;
CREATE TABLE t2 (LIKE t INCLUDING ALL) USING mixedcc;
INSERT INTO t2 SELECT * FROM t;
SELECT state('t2');
ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id);
SELECT state('t');
ALTER TABLE t DROP CONSTRAINT t_pkey;
CREATE UNIQUE INDEX t_u ON t (id DESC);
ALTER TABLE t ADD CONSTRAINT t_key PRIMARY KEY USING INDEX t_u;
ALTER TABLE t ADD CONSTRAINT t_key PRIMARY KEY (id);
SELECT state('t');
-- Rewrites, TRUNCATE, REINDEX, types.
ALTER TABLE t ALTER id TYPE int8;
SELECT state('t');
ALTER TABLE t ALTER id TYPE numeric;
SELECT state('t');
ALTER TABLE t ALTER id TYPE int4;
SELECT state('t');
REINDEX TABLE t;
BEGIN; TRUNCATE t; INSERT INTO t VALUES (1, 'one'); SELECT state('t'); ROLLBACK;
SELECT state('t');
BEGIN; CREATE TABLE made (a int PRIMARY KEY) USING mixedcc; INSERT INTO made VALUES (1), (2); TRUNCATE made; INSERT INTO made VALUES (3); SELECT state('made'); COMMIT;
SELECT state('made');
TRUNCATE t;
INSERT INTO t SELECT i, i FROM generate_series(1, 10) i;
SELECT state('t');
ALTER TABLE t SET ACCESS METHOD heap;
ALTER TABLE t SET ACCESS METHOD mixedcc;
SELECT state('t');
ALTER TABLE t DROP COLUMN id;
SELECT state('t');
INSERT INTO t VALUES ('ten');
SELECT count(*) FROM t;
-- Of another partition map.
CREATE TABLE p (a int, b int, v int, PRIMARY KEY (a, b)) USING mixedcc WITH (mixedcc.partitions = 4);
INSERT INTO p SELECT i % 10, i, 0 FROM generate_series(1, 100) i;
ALTER TABLE p SET (mixedcc.partitions = 2);
SELECT state('p');
-- Declarative partitions.
CREATE TABLE parts (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100) USING mixedcc;
CREATE TABLE parts_2 (id int NOT NULL, v int) USING mixedcc;
INSERT INTO parts SELECT i FROM generate_series(0, 99) i;
INSERT INTO parts_2 SELECT i FROM generate_series(100, 150) i;
ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (100) TO (200);
UPDATE parts SET id = id + 90 WHERE id BETWEEN 80 AND 99 AND id > 60;
SELECT state('parts_1'), state('parts_2');
ALTER TABLE parts DROP CONSTRAINT parts_pkey;
SELECT state('parts_1'), state('parts_2');
ALTER TABLE parts ADD PRIMARY KEY (id);
SELECT state('parts_1'), state('parts_2');
-- Many rows of several partitions by one statement, in savepoints too; what the partitions count.
CREATE TABLE many (id int PRIMARY KEY, v text) USING mixedcc WITH (mixedcc.partitions = 8);
INSERT INTO many SELECT i, 'first' FROM generate_series(1, 2000) i;
BEGIN;
INSERT INTO many SELECT i, 'second' FROM generate_series(2001, 3000) i;
SAVEPOINT s;
INSERT INTO many SELECT i, 'never' FROM generate_series(3001, 4000) i;
UPDATE many SET v = 'changed' WHERE id BETWEEN 2991 AND 3010;
DELETE FROM many WHERE id BETWEEN 2981 AND 3005;
ROLLBACK TO s;
DELETE FROM many WHERE id BETWEEN 2951 AND 2960 OR id <= 40;
INSERT INTO many SELECT i, repeat('third', 100) FROM generate_series(2960, 2951, -1) i;
UPDATE many SET v = v || '!' WHERE id BETWEEN 2941 AND 2955;
COMMIT;
SELECT state('many'), count(*), count(DISTINCT id) FROM many;
SELECT partition, rows, (SELECT count(*) FROM many WHERE id % 8 = partition) AS really FROM mixedcc.partitions WHERE "table" = 'many'::regclass ORDER BY partition;
-- No page of the key's index is read for a row.
CREATE FUNCTION pages(i regclass) RETURNS bigint LANGUAGE sql AS $$
    SELECT idx_blks_hit + idx_blks_read FROM pg_statio_user_indexes WHERE indexrelid = i $$;
SELECT pg_stat_force_next_flush();
SELECT pages('many_pkey') AS before \gset
INSERT INTO many SELECT i FROM generate_series(4001, 6000) i;
INSERT INTO many SELECT i FROM generate_series(0, -1999, -1) i;
SELECT pg_stat_force_next_flush();
SELECT pages('many_pkey') - :before < 100 AS none;
SELECT state('many'), count(*) FROM many;
-- amcheck finds a sound file, and compares the primary index with the rows: of now, and our own.
CREATE EXTENSION amcheck;
SELECT count(*) > 9 AS many FROM (SELECT bt_index_check(i.indexrelid, true), bt_index_parent_check(i.indexrelid, true, true)
    FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid WHERE x.relnamespace = 'pk'::regnamespace AND x.relkind = 'i' AND i.indisprimary OFFSET 0) q;
BEGIN ISOLATION LEVEL SERIALIZABLE;
DELETE FROM many WHERE id = 1001;
INSERT INTO many VALUES (1001), (9001);
UPDATE many SET id = 9002 WHERE id = 1002;
SAVEPOINT s;
INSERT INTO many VALUES (9003);
DELETE FROM many WHERE id > 1100;
ROLLBACK TO s;
SELECT bt_index_check('many_pkey', true);
DO $$ DECLARE x text; BEGIN x := bt_index_check('many_pkey', true); END $$;
ROLLBACK;
-- Keys that are read otherwise than they were written: the difference is found.
CREATE TABLE shifted (a int8, id int PRIMARY KEY) USING mixedcc;
INSERT INTO shifted SELECT 0, i FROM generate_series(1, 5) i;
UPDATE pg_attribute SET attlen = 4, attalign = 'i' WHERE attrelid = 'shifted'::regclass AND attname = 'a';
SELECT bt_index_check('shifted_pkey');
SELECT bt_index_check('shifted_pkey', true);
SELECT bt_index_parent_check('shifted_pkey', true);
SELECT mixedcc.check_primary_index('shifted');
UPDATE pg_attribute SET attlen = 8, attalign = 'd' WHERE attrelid = 'shifted'::regclass AND attname = 'a';
SELECT bt_index_check('shifted_pkey', true), mixedcc.check_primary_index('shifted');
-- nbtree itself, if a session took the index for an ordinary one: an error, and never an answer.
UPDATE pg_index SET indisprimary = false WHERE indexrelid = 'shifted_pkey'::regclass;
\c -
SET search_path = pk, public;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SELECT * FROM shifted WHERE id = 3;
SELECT id FROM shifted ORDER BY id;
SELECT id FROM shifted ORDER BY id DESC LIMIT 1;
SELECT * FROM shifted WHERE id IN (2, 4) ORDER BY id DESC;
SELECT min(id), max(id) FROM shifted;
SELECT count(*) FROM shifted WHERE id IS NOT NULL;
DELETE FROM shifted WHERE id = 3;
SET enable_bitmapscan = on;
SET enable_indexscan = off;
SELECT a FROM shifted WHERE id < 3;
RESET enable_indexscan;
RESET enable_seqscan;
INSERT INTO shifted VALUES (0, 77);
INSERT INTO shifted VALUES (0, 1) ON CONFLICT DO NOTHING;
INSERT INTO shifted VALUES (0, 1) ON CONFLICT (id) DO UPDATE SET a = 1;
INSERT INTO shifted SELECT 0, i FROM generate_series(1, 3) i;
UPDATE shifted SET id = id + 10 WHERE a = 0;
SELECT bt_index_check('shifted_pkey');
SELECT bt_index_check('shifted_pkey', true);
UPDATE pg_index SET indisprimary = true WHERE indexrelid = 'shifted_pkey'::regclass;
\c -
SET search_path = pk, public;
INSERT INTO shifted VALUES (0, 1);
SELECT * FROM shifted ORDER BY id;
SELECT bt_index_check('shifted_pkey', true), mixedcc.check_primary_index('shifted');
-- Not for everybody.
CREATE ROLE pk_nobody;
SET ROLE pk_nobody;
SELECT mixedcc.check_primary_index('pk.p');
RESET ROLE;
DROP ROLE pk_nobody;
SET client_min_messages = warning;
DROP SCHEMA pk CASCADE;
