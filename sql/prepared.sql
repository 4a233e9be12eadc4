-- Two-phase commit over unlogged tables.
CREATE UNLOGGED TABLE prep_t (id int PRIMARY KEY, v int, u int UNIQUE) USING mixedcc;
INSERT INTO prep_t VALUES (1, 0, 1), (2, 0, 2), (3, 0, 3);
BEGIN;
UPDATE prep_t SET v = 1 WHERE id = 1;
DELETE FROM prep_t WHERE id = 2;
SAVEPOINT s;
INSERT INTO prep_t VALUES (4, 1, 4);
RELEASE s;
SAVEPOINT s;
UPDATE prep_t SET v = 9 WHERE id = 3;
ROLLBACK TO s;
PREPARE TRANSACTION 'prep_1';
SELECT * FROM prep_t ORDER BY id;
SELECT FROM prep_t WHERE id = 1 FOR UPDATE NOWAIT;
SELECT id FROM prep_t ORDER BY id FOR UPDATE SKIP LOCKED;
UPDATE prep_t SET v = 3 WHERE id = 3;
COMMIT PREPARED 'prep_1';
SELECT * FROM prep_t ORDER BY id;
SELECT id FROM prep_t WHERE u = 4;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT sum(v) FROM prep_t;
DELETE FROM prep_t WHERE id = 4;
UPDATE prep_t SET id = 5 WHERE id = 1;
PREPARE TRANSACTION 'prep_2';
BEGIN ISOLATION LEVEL SERIALIZABLE; DECLARE c CURSOR FOR SELECT * FROM prep_t; FETCH c; PREPARE TRANSACTION 'prep_2';
SELECT * FROM prep_t ORDER BY id;
ROLLBACK PREPARED 'prep_2';
SELECT * FROM prep_t ORDER BY id;
-- A transaction that has only read.
BEGIN; SELECT count(*) FROM prep_t; PREPARE TRANSACTION 'prep_3'; COMMIT PREPARED 'prep_3';
BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM prep_t; PREPARE TRANSACTION 'prep_3'; ROLLBACK PREPARED 'prep_3';
-- Refused.
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY; SELECT count(*) FROM prep_t; PREPARE TRANSACTION 'prep_4';
BEGIN; ALTER TABLE prep_t SET (mixedcc.partitions = 2); ALTER TABLE prep_t SET (mixedcc.partitions = 3); PREPARE TRANSACTION 'prep_4';
SELECT * FROM prep_t ORDER BY id;
-- Changes of definitions.
BEGIN; TRUNCATE prep_t; INSERT INTO prep_t VALUES (9, 9, 9); PREPARE TRANSACTION 'prep_4'; ROLLBACK PREPARED 'prep_4';
BEGIN; CREATE INDEX prep_v ON prep_t (v); ALTER TABLE prep_t SET (mixedcc.partitions = 2); PREPARE TRANSACTION 'prep_4'; COMMIT PREPARED 'prep_4';
BEGIN; DROP TABLE prep_t; PREPARE TRANSACTION 'prep_4'; ROLLBACK PREPARED 'prep_4';
SELECT * FROM prep_t ORDER BY id;
BEGIN; TRUNCATE prep_t; INSERT INTO prep_t VALUES (9, 9, 9); PREPARE TRANSACTION 'prep_4'; COMMIT PREPARED 'prep_4';
SELECT * FROM prep_t WHERE v = 9;
SELECT count(*) FROM mixedcc.partitions WHERE "table" = 'prep_t'::regclass;
-- What it has read at SERIALIZABLE makes writers wait at their COMMIT: lock_timeout ends that.
CREATE TABLE prep_w (id int PRIMARY KEY) USING mixedcc;
BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT v FROM prep_t; INSERT INTO prep_w VALUES (1); PREPARE TRANSACTION 'prep_5';
SET lock_timeout = '100ms';
SET statement_timeout = '3s';
INSERT INTO prep_t VALUES (10, 10, 10);
BEGIN; UPDATE prep_t SET v = 10; COMMIT;
RESET statement_timeout;
RESET lock_timeout;
COMMIT PREPARED 'prep_5';
INSERT INTO prep_t VALUES (10, 10, 10);
SELECT * FROM prep_t ORDER BY id;
DROP TABLE prep_w;
SELECT gid FROM pg_prepared_xacts;
DROP TABLE prep_t;
