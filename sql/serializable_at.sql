-- mixedcc.serializable_at: REPEATABLE READ transactions are serializable on mixedcc tables, and
-- PostgreSQL's own SERIALIZABLE is not used.
CREATE TABLE sa_t (id int PRIMARY KEY, v int) USING mixedcc;
CREATE TABLE sa_heap (id int PRIMARY KEY, v int);
INSERT INTO sa_t VALUES (1, 10), (2, 20);
INSERT INTO sa_heap VALUES (1, 10), (2, 20);
SHOW mixedcc.serializable_at;
SET mixedcc.serializable_at = 'read committed';
SET mixedcc.serializable_at = 'repeatable read';
-- PostgreSQL keeps no predicate lock for the transaction.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM sa_t ORDER BY id;
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'SIReadLock';
UPDATE sa_t SET v = v + 1 WHERE id = 1;
COMMIT;
-- Tables of another access method alone are used at REPEATABLE READ.
BEGIN ISOLATION LEVEL REPEATABLE READ;
UPDATE sa_heap SET v = v + 1 WHERE id = 1;
SELECT sum(v) FROM sa_heap;
COMMIT;
-- Both kinds in one transaction that may write are refused, in either order.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT sum(v) FROM sa_heap;
UPDATE sa_t SET v = v + 1 WHERE id = 1;
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
UPDATE sa_t SET v = v + 1 WHERE id = 1;
INSERT INTO sa_heap VALUES (3, 30);
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT sum(v) FROM sa_t;
COPY sa_heap TO stdout;
ROLLBACK;
-- mixedcc.mixed_serializable decides, as at SERIALIZABLE.
SET mixedcc.mixed_serializable = warning;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT sum(v) FROM sa_heap;
UPDATE sa_t SET v = v + 1 WHERE id = 1;
COMMIT;
RESET mixedcc.mixed_serializable;
-- READ ONLY transactions, such as those of pg_dump, may read both.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT sum(v) FROM sa_heap;
SELECT sum(v) FROM sa_t;
COMMIT;
-- READ COMMITTED stays as it is.
BEGIN;
SELECT sum(v) FROM sa_heap;
UPDATE sa_t SET v = v + 1 WHERE id = 1;
COMMIT;
-- A transaction keeps the setting that its first statement has found.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SAVEPOINT s;
SET mixedcc.serializable_at = serializable;
SELECT sum(v) FROM sa_t;
ROLLBACK TO s;
SHOW mixedcc.serializable_at;
SELECT sum(v) FROM sa_heap;
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT sum(v) FROM sa_t;
SET LOCAL mixedcc.serializable_at = serializable;
SELECT sum(v) FROM sa_heap;
ROLLBACK;
-- A procedure's transactions look at it anew.
CREATE PROCEDURE sa_both() LANGUAGE plpgsql AS $$
BEGIN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
    UPDATE sa_t SET v = v + 1 WHERE id = 2;
    SET mixedcc.serializable_at = serializable;
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
    UPDATE sa_t SET v = v + 1 WHERE id = 2;
    UPDATE sa_heap SET v = v + 1 WHERE id = 2;
END $$;
CALL sa_both();
SELECT * FROM sa_t ORDER BY id;
SELECT * FROM sa_heap ORDER BY id;
RESET mixedcc.serializable_at;
DROP PROCEDURE sa_both();
DROP TABLE sa_t, sa_heap;
