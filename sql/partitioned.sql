-- Declarative partitioning with mixedcc and heap leaves.
CREATE TABLE pa_t (id int, part text, v int, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE pa_a PARTITION OF pa_t FOR VALUES IN ('a') USING mixedcc;
CREATE TABLE pa_b PARTITION OF pa_t FOR VALUES IN ('b') USING mixedcc;
CREATE TABLE pa_h PARTITION OF pa_t FOR VALUES IN ('h') USING heap;
CREATE TABLE pa_rest PARTITION OF pa_t DEFAULT USING mixedcc;
INSERT INTO pa_t SELECT i, (ARRAY['a', 'b', 'h', 'z'])[i % 4 + 1], i FROM generate_series(1, 20) i;
SELECT tableoid::regclass, count(*), sum(v) FROM pa_t GROUP BY tableoid ORDER BY tableoid::regclass::text COLLATE "C";
UPDATE pa_t SET v = v * 2 WHERE id < 5;
-- Row movement, within mixedcc, to and from heap.
UPDATE pa_t SET part = 'b' WHERE part = 'a' AND id = 4 RETURNING tableoid::regclass, *;
UPDATE pa_t SET part = 'h' WHERE part = 'a' AND id = 8 RETURNING tableoid::regclass, *;
UPDATE pa_t SET part = 'a' WHERE part = 'h' AND id = 2 RETURNING tableoid::regclass, *;
UPDATE pa_t SET part = 'b' WHERE part = 'b' AND id = 1 RETURNING tableoid::regclass, *;
BEGIN;
UPDATE pa_t SET part = 'a';
SELECT tableoid::regclass, count(*) FROM pa_t GROUP BY 1;
SAVEPOINT s;
UPDATE pa_t SET part = 'z';
ROLLBACK TO s;
UPDATE pa_t SET v = v + 1;
SELECT tableoid::regclass, count(*), sum(v) FROM pa_t GROUP BY 1;
ROLLBACK;
SELECT tableoid::regclass, count(*), sum(v) FROM pa_t GROUP BY tableoid ORDER BY tableoid::regclass::text COLLATE "C";
INSERT INTO pa_t VALUES (4, 'b', 0) ON CONFLICT (id, part) DO UPDATE SET v = -pa_t.v RETURNING *;
INSERT INTO pa_t VALUES (4, 'b', 0);
UPDATE pa_a SET part = 'b' WHERE id = 12;
DELETE FROM pa_t WHERE part = 'b' AND id < 6;
COPY pa_t FROM stdin;
101	a	1
102	h	2
103	q	3
\.
SELECT * FROM pa_t WHERE id > 100 ORDER BY id;
MERGE INTO pa_t t USING (VALUES (101, 'a'), (104, 'b')) s (k, p) ON t.id = s.k AND t.part = s.p
    WHEN MATCHED THEN UPDATE SET part = 'z' WHEN NOT MATCHED THEN INSERT VALUES (k, p, 9);
SELECT tableoid::regclass, * FROM pa_t WHERE id > 100 ORDER BY id;
-- Pruning, joins and ordered append.
SET enable_partitionwise_join = on;
SELECT count(*) FROM pa_t x JOIN pa_t y USING (id, part);
RESET enable_partitionwise_join;
SELECT id FROM pa_t WHERE part IN ('a', 'z') ORDER BY id LIMIT 4;
-- Triggers on the parent, foreign keys from and to leaves, indexes of the parent.
CREATE INDEX pa_v ON pa_t (v);
CREATE FUNCTION pa_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE NOTICE '% % % -> %', TG_TABLE_NAME, TG_OP, to_jsonb(OLD), to_jsonb(NEW); RETURN NULL; END $$;
CREATE TRIGGER pa_note AFTER INSERT OR UPDATE OR DELETE ON pa_t FOR EACH ROW EXECUTE FUNCTION pa_note();
UPDATE pa_t SET part = 'a', v = 1000 WHERE id = 103;
UPDATE pa_t SET v = 1001 WHERE id = 103;
DELETE FROM pa_t WHERE id = 103;
DROP TRIGGER pa_note ON pa_t;
CREATE TABLE pa_child (id int, part text, FOREIGN KEY (id, part) REFERENCES pa_t ON UPDATE CASCADE ON DELETE CASCADE) USING mixedcc;
INSERT INTO pa_child VALUES (102, 'h'), (104, 'b');
INSERT INTO pa_child VALUES (104, 'h');
UPDATE pa_t SET part = 'a' WHERE id = 102;
DELETE FROM pa_t WHERE id = 104;
SELECT * FROM pa_child;
-- Attach and detach, truncate and drop.
CREATE TABLE pa_c (id int, part text NOT NULL, v int) USING mixedcc;
INSERT INTO pa_c VALUES (1000, 'c', 1);
\set VERBOSITY sqlstate
ALTER TABLE pa_t ATTACH PARTITION pa_c FOR VALUES IN ('c');
\set VERBOSITY default
DELETE FROM pa_c;
INSERT INTO pa_c VALUES (1000, 'c', 1);
ALTER TABLE pa_c ALTER id SET NOT NULL;
ALTER TABLE pa_t ATTACH PARTITION pa_c FOR VALUES IN ('c');
UPDATE pa_t SET v = 2 WHERE part = 'c';
ALTER TABLE pa_t DETACH PARTITION pa_c;
UPDATE pa_c SET v = v + 1;
SELECT * FROM pa_c;
SELECT count(*) FROM pa_t WHERE part = 'c';
DROP TABLE pa_child;
TRUNCATE pa_t;
SELECT count(*) FROM pa_t;
-- Hash and range, two levels, leaves by the default access method.
SET default_table_access_method = mixedcc;
CREATE TABLE pa_2 (a int, b int, v text) PARTITION BY RANGE (a);
CREATE TABLE pa_2low PARTITION OF pa_2 FOR VALUES FROM (MINVALUE) TO (100) PARTITION BY HASH (b);
CREATE TABLE pa_2low0 PARTITION OF pa_2low FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE pa_2low1 PARTITION OF pa_2low FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE pa_2high PARTITION OF pa_2 FOR VALUES FROM (100) TO (MAXVALUE);
RESET default_table_access_method;
INSERT INTO pa_2 SELECT i, i % 10, 'x' FROM generate_series(1, 200) i;
UPDATE pa_2 SET a = 201 - a, b = b + 1;
SELECT tableoid::regclass, count(*), sum(a), sum(b) FROM pa_2 GROUP BY tableoid ORDER BY tableoid::regclass::text COLLATE "C";
SELECT c.relname, a.amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE relname LIKE 'pa\_2%' ORDER BY 1;
DROP TABLE pa_2, pa_c, pa_t;
DROP FUNCTION pa_note;
