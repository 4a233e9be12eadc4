-- Rows of a small table come in the order in which they were inserted, also where they take the places of rows that are gone,
-- after VACUUM. No ORDER BY on purpose: programs rely on it with heap.
CREATE TABLE ro (id int PRIMARY KEY, v int) USING mixedcc;
CREATE FUNCTION ro_rows() RETURNS text LANGUAGE sql AS $$ SELECT string_agg(id::text, ' ') FROM ro $$;
-- All rows go, and come again.
INSERT INTO ro SELECT i, i FROM generate_series(1, 10) i;
SELECT ro_rows();
DELETE FROM ro;
VACUUM ro;
INSERT INTO ro SELECT i, i FROM generate_series(1, 12) i;
SELECT ro_rows();
-- Twice in a row, with fewer.
DELETE FROM ro;
VACUUM ro;
INSERT INTO ro SELECT i, i FROM generate_series(1, 4) i;
SELECT ro_rows();
DELETE FROM ro;
VACUUM ro;
INSERT INTO ro SELECT i, i FROM generate_series(1, 14) i;
SELECT ro_rows();
-- Some go, by two VACUUMs; the later one has the lower places.
DELETE FROM ro WHERE id IN (9, 11, 13);
VACUUM ro;
DELETE FROM ro WHERE id IN (2, 4, 10);
VACUUM ro;
INSERT INTO ro SELECT i, i FROM generate_series(101, 108) i;
SELECT ro_rows();
-- Some of the places are taken between them.
DELETE FROM ro WHERE id IN (3, 5, 7);
VACUUM ro;
INSERT INTO ro VALUES (201, 0);
DELETE FROM ro WHERE id IN (1, 12);
VACUUM ro;
INSERT INTO ro SELECT i, i FROM generate_series(202, 206) i;
SELECT ro_rows();
-- Inserts that were undone, once and again, and by a savepoint.
BEGIN;
INSERT INTO ro SELECT i, i FROM generate_series(301, 305) i;
ROLLBACK;
VACUUM ro;
INSERT INTO ro SELECT i, i FROM generate_series(301, 305) i;
SELECT ro_rows();
BEGIN;
SAVEPOINT s;
INSERT INTO ro SELECT i, i FROM generate_series(401, 403) i;
ROLLBACK TO s;
INSERT INTO ro SELECT i, i FROM generate_series(404, 405) i;
ROLLBACK;
INSERT INTO ro VALUES (500, 0);
VACUUM ro;
INSERT INTO ro SELECT i, i FROM generate_series(501, 507) i;
SELECT ro_rows();
-- COPY, and rows without an index.
CREATE TABLE ro_copy (v int) USING mixedcc;
COPY ro_copy FROM stdin;
1
2
3
4
\.
DELETE FROM ro_copy;
VACUUM ro_copy;
COPY ro_copy FROM stdin;
5
6
7
8
9
\.
SELECT v FROM ro_copy;
DROP TABLE ro, ro_copy;
DROP FUNCTION ro_rows;
