-- SET ACCESS METHOD both ways with rows that heap keeps in a TOAST table, in one statement. The same on heap.
SET client_min_messages = warning;
CREATE TABLE cv_p (id int PRIMARY KEY) USING mixedcc;
INSERT INTO cv_p VALUES (1), (2);
CREATE FUNCTION cv_big(seed int, n int) RETURNS text LANGUAGE sql IMMUTABLE AS
    $$ SELECT string_agg(md5((seed * 100000 + g)::text), '') FROM generate_series(1, n) g $$;
CREATE TABLE cv_t (k int PRIMARY KEY, p int REFERENCES cv_p, t text, s text) USING mixedcc;
CREATE INDEX cv_s ON cv_t (s);
INSERT INTO cv_t VALUES (1, 1, cv_big(1, 1000), 'a'), (2, 2, 'small', 'b'), (3, NULL, repeat('x', 3000000), 'c');
CREATE VIEW cv_look AS SELECT k, p, s, length(t), md5(t) = md5(CASE k WHEN 1 THEN cv_big(1, 1000) WHEN 2 THEN 'small' ELSE repeat('x', 3000000) END) AS same FROM cv_t;
ALTER TABLE cv_t SET ACCESS METHOD heap;
SELECT reltoastrelid <> 0 AS toast FROM pg_class WHERE relname = 'cv_t';
SELECT * FROM cv_look ORDER BY k;
SET enable_seqscan = off;
SELECT k FROM cv_t WHERE s = 'c';
RESET enable_seqscan;
INSERT INTO cv_t VALUES (4, 9, 'x', 'd');
UPDATE cv_t SET p = 1 WHERE k = 3;
INSERT INTO cv_t VALUES (5, 1, cv_big(5, 2000), 'e');
SELECT length(t), md5(t) = md5(cv_big(5, 2000)) AS same FROM cv_t WHERE k = 5;
DELETE FROM cv_t WHERE k = 5;
-- Back, and undone in a savepoint and in a transaction.
ALTER TABLE cv_t SET ACCESS METHOD mixedcc;
SELECT * FROM cv_look ORDER BY k;
BEGIN;
SAVEPOINT s;
ALTER TABLE cv_t SET ACCESS METHOD heap;
SELECT * FROM cv_look ORDER BY k;
INSERT INTO cv_t VALUES (6, 1, cv_big(6, 2000), 'f');
ROLLBACK TO s;
SELECT * FROM cv_look ORDER BY k;
UPDATE cv_t SET p = 2 WHERE k = 1;
COMMIT;
BEGIN;
ALTER TABLE cv_t SET ACCESS METHOD heap;
ALTER TABLE cv_t SET ACCESS METHOD mixedcc;
ALTER TABLE cv_t SET ACCESS METHOD heap;
SELECT * FROM cv_look ORDER BY k;
ROLLBACK;
SELECT * FROM cv_look ORDER BY k;
-- An ERROR in the middle.
ALTER TABLE cv_t SET ACCESS METHOD heap, ADD CONSTRAINT cv_fails CHECK (k < 3);
SELECT * FROM cv_look ORDER BY k;
ALTER TABLE cv_t ADD COLUMN u text DEFAULT 'u';
SELECT count(*) FROM cv_t WHERE u = 'u';
-- With other changes in the same statement.
DROP VIEW cv_look;
ALTER TABLE cv_t SET ACCESS METHOD heap, ALTER COLUMN k TYPE bigint, ADD COLUMN later text DEFAULT 'later', ALTER COLUMN s SET STORAGE external;
SELECT k, length(t), later FROM cv_t ORDER BY k;
ALTER TABLE cv_t SET ACCESS METHOD mixedcc, DROP COLUMN later;
SELECT k, length(t), s FROM cv_t ORDER BY k;
-- Unlogged in one statement, and back in one.
ALTER TABLE cv_t DROP CONSTRAINT cv_t_p_fkey;
ALTER TABLE cv_t SET ACCESS METHOD heap, SET UNLOGGED;
SELECT relpersistence, reltoastrelid <> 0 AS toast FROM pg_class WHERE relname = 'cv_t';
SELECT t.relpersistence FROM pg_class c JOIN pg_class t ON t.oid = c.reltoastrelid WHERE c.relname = 'cv_t';
SELECT k, length(t), s FROM cv_t ORDER BY k;
ALTER TABLE cv_t SET LOGGED, SET ACCESS METHOD mixedcc;
SELECT relpersistence FROM pg_class WHERE relname = 'cv_t';
SELECT k, length(t), s FROM cv_t ORDER BY k;
ALTER TABLE cv_t SET UNLOGGED, SET ACCESS METHOD heap;
SELECT relpersistence FROM pg_class WHERE relname = 'cv_t';
ALTER TABLE cv_t SET ACCESS METHOD mixedcc, SET LOGGED;
SELECT k, length(t), s FROM cv_t ORDER BY k;
-- An empty table has a TOAST table afterwards, one of narrow columns needs none.
DELETE FROM cv_t;
ALTER TABLE cv_t SET ACCESS METHOD heap;
SELECT reltoastrelid <> 0 AS toast FROM pg_class WHERE relname = 'cv_t';
INSERT INTO cv_t VALUES (1, 1, cv_big(1, 1000), 'a');
SELECT length(t) FROM cv_t;
ALTER TABLE cv_p SET ACCESS METHOD heap;
SELECT reltoastrelid <> 0 AS toast FROM pg_class WHERE relname = 'cv_p';
ALTER TABLE IF EXISTS cv_none SET ACCESS METHOD heap;
ALTER TABLE cv_t SET ACCESS METHOD cv_none;
-- Nothing is left behind.
DROP TABLE cv_t, cv_p;
DROP FUNCTION cv_big;
SELECT count(*) FROM pg_class c WHERE relkind = 't' AND NOT EXISTS (SELECT FROM pg_class t WHERE t.reltoastrelid = c.oid);
