-- Which commands make tables permanent or unlogged, with their indexes and sequences.
CREATE FUNCTION pe_kinds(prefix text) RETURNS TABLE (relname name, relkind "char", relpersistence "char") LANGUAGE sql AS
    $$ SELECT c.relname, c.relkind, c.relpersistence FROM pg_class c WHERE c.relname ~ ('^' || prefix) ORDER BY 1 $$;
CREATE TABLE pe_t (id serial PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY, v text UNIQUE) USING mixedcc;
CREATE UNLOGGED TABLE pe_u (id serial PRIMARY KEY, v text UNIQUE) USING mixedcc;
SELECT * FROM pe_kinds('pe_[tu]');
INSERT INTO pe_t (v) SELECT 't' || i FROM generate_series(1, 300) i;
INSERT INTO pe_u (v) SELECT 'u' || i FROM generate_series(1, 300) i;
-- Both directions; sequences and indexes follow.
ALTER TABLE pe_t SET UNLOGGED;
ALTER TABLE pe_u SET LOGGED;
SELECT * FROM pe_kinds('pe_[tu]');
ALTER TABLE pe_u SET LOGGED;
INSERT INTO pe_t (v) VALUES ('next') RETURNING *;
INSERT INTO pe_u (v) VALUES ('next') RETURNING *;
INSERT INTO pe_u (v) VALUES ('next');
BEGIN;
ALTER TABLE pe_t SET LOGGED;
UPDATE pe_t SET v = v || '!' WHERE id < 4;
ROLLBACK;
SELECT * FROM pe_kinds('pe_t');
ALTER TABLE pe_t SET LOGGED, ADD COLUMN later int DEFAULT 7, ALTER COLUMN n TYPE bigint;
ALTER TABLE pe_u SET UNLOGGED;
SELECT * FROM pe_kinds('pe_[tu]');
SELECT count(*), sum(id), sum(n), sum(later), min(v), max(v) FROM pe_t;
SELECT count(*), sum(id), min(v), max(v) FROM pe_u;
-- A change of the access method keeps the persistence; both can change at once.
ALTER TABLE pe_t SET ACCESS METHOD heap;
ALTER TABLE pe_u SET ACCESS METHOD heap;
SELECT * FROM pe_kinds('pe_[tu]');
ALTER TABLE pe_t SET ACCESS METHOD mixedcc, SET UNLOGGED;
ALTER TABLE pe_u SET LOGGED, SET ACCESS METHOD mixedcc;
SELECT * FROM pe_kinds('pe_[tu]');
ALTER TABLE pe_t SET ACCESS METHOD heap, SET LOGGED;
ALTER TABLE pe_t SET ACCESS METHOD mixedcc;
ALTER TABLE pe_u SET ACCESS METHOD heap, SET UNLOGGED;
ALTER TABLE pe_u SET ACCESS METHOD mixedcc;
SELECT * FROM pe_kinds('pe_[tu]');
SELECT count(*), sum(id), sum(n), sum(later), min(v), max(v) FROM pe_t;
SELECT count(*), sum(id), min(v), max(v) FROM pe_u;
-- Foreign keys: what a permanent table refers to is permanent, of whichever access method.
CREATE TABLE pe_h (id int PRIMARY KEY, t int REFERENCES pe_t) USING heap;
CREATE TABLE pe_child (id int PRIMARY KEY, h int REFERENCES pe_h, t int REFERENCES pe_t ON DELETE CASCADE) USING mixedcc;
CREATE TABLE pe_refused (u int REFERENCES pe_u) USING mixedcc;
CREATE TABLE pe_refused (u int REFERENCES pe_u) USING heap;
CREATE UNLOGGED TABLE pe_scratch (t int REFERENCES pe_t, u int REFERENCES pe_u) USING mixedcc;
\set VERBOSITY sqlstate
ALTER TABLE pe_t SET UNLOGGED;
\set VERBOSITY default
ALTER TABLE pe_scratch SET LOGGED;
INSERT INTO pe_h SELECT i, i FROM generate_series(1, 10) i;
INSERT INTO pe_child SELECT i, i, i FROM generate_series(1, 10) i;
INSERT INTO pe_child VALUES (11, 11, 1);
INSERT INTO pe_child VALUES (11, 1, 1000);
DELETE FROM pe_t WHERE id = 1;
DELETE FROM pe_h WHERE id = 1;
DROP TABLE pe_scratch, pe_child, pe_h;
-- Partitioned tables, inheritance, and tables that queries make.
CREATE TABLE pe_parent (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE pe_parent1 PARTITION OF pe_parent FOR VALUES FROM (0) TO (10) USING mixedcc;
CREATE TABLE pe_parent2 PARTITION OF pe_parent FOR VALUES FROM (10) TO (20) USING heap;
CREATE UNLOGGED TABLE pe_parent3 PARTITION OF pe_parent FOR VALUES FROM (20) TO (30) USING mixedcc;
INSERT INTO pe_parent SELECT i, 0 FROM generate_series(0, 29) i;
DELETE FROM pe_parent WHERE id IN (10, 15, 20);
UPDATE pe_parent SET id = id + 10 WHERE id IN (0, 5);
UPDATE pe_parent SET id = 20 WHERE id = 1;
UPDATE pe_parent SET v = 1;
SELECT tableoid::regclass, count(*), sum(id), sum(v) FROM pe_parent GROUP BY 1 ORDER BY 1;
CREATE TABLE pe_of (id int PRIMARY KEY, parent int REFERENCES pe_parent) USING mixedcc;
INSERT INTO pe_of VALUES (1, 25), (2, 3);
INSERT INTO pe_of VALUES (3, 100);
CREATE TABLE pe_heir (more int) INHERITS (pe_t) USING mixedcc;
CREATE TABLE pe_as USING mixedcc AS SELECT id, v FROM pe_u;
CREATE UNLOGGED TABLE pe_as_u USING mixedcc AS SELECT id, v FROM pe_u;
CREATE TABLE pe_none USING mixedcc AS SELECT id, v FROM pe_u WITH NO DATA;
SET default_table_access_method = mixedcc;
SELECT id, v INTO pe_into FROM pe_t;
SELECT id, v INTO UNLOGGED pe_into_u FROM pe_t;
CREATE TEMPORARY TABLE pe_temp (id int PRIMARY KEY);
CREATE TABLE pe_like (LIKE pe_u INCLUDING ALL);
RESET default_table_access_method;
SELECT * FROM pe_kinds('pe_(parent|of|heir|as|none|into|temp|like)');
SELECT (SELECT count(*) FROM pe_as), (SELECT count(*) FROM pe_as_u), (SELECT count(*) FROM pe_into), (SELECT count(*) FROM pe_into_u);
DROP TABLE pe_of, pe_parent, pe_heir, pe_as, pe_as_u, pe_none, pe_into, pe_into_u, pe_temp, pe_like, pe_t, pe_u;
DROP FUNCTION pe_kinds;
