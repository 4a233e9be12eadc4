-- Savepoints, nested; exception blocks; what a rollback takes back.
CREATE TABLE sp_t (id int PRIMARY KEY, v int) USING mixedcc;
INSERT INTO sp_t SELECT i, 0 FROM generate_series(1, 5) i;
BEGIN;
UPDATE sp_t SET v = 1 WHERE id = 1;
SAVEPOINT a;
UPDATE sp_t SET v = 2 WHERE id = 1;
INSERT INTO sp_t VALUES (6, 6);
DELETE FROM sp_t WHERE id = 2;
SAVEPOINT b;
UPDATE sp_t SET v = 3 WHERE id = 1;
UPDATE sp_t SET id = 30 WHERE id = 3;
DELETE FROM sp_t WHERE id = 6;
SELECT * FROM sp_t ORDER BY id;
ROLLBACK TO b;
SELECT * FROM sp_t ORDER BY id;
UPDATE sp_t SET v = 33 WHERE id = 3;
ROLLBACK TO b;
SELECT * FROM sp_t ORDER BY id;
RELEASE b;
SAVEPOINT c;
INSERT INTO sp_t VALUES (2, 22);
RELEASE c;
SELECT * FROM sp_t ORDER BY id;
ROLLBACK TO a;
SELECT * FROM sp_t ORDER BY id;
INSERT INTO sp_t VALUES (6, 66);
COMMIT;
SELECT * FROM sp_t ORDER BY id;
-- A released savepoint's changes go with the outer rollback.
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
UPDATE sp_t SET v = 100;
RELEASE b;
ROLLBACK TO a;
SELECT max(v) FROM sp_t;
UPDATE sp_t SET v = 200 WHERE id = 1;
RELEASE a;
ROLLBACK;
SELECT max(v) FROM sp_t;
-- Errors inside savepoints.
BEGIN;
INSERT INTO sp_t VALUES (7, 7);
SAVEPOINT a;
INSERT INTO sp_t VALUES (7, 8);
SELECT 1;
ROLLBACK TO a;
INSERT INTO sp_t VALUES (8, 8);
COMMIT;
SELECT * FROM sp_t WHERE id > 6 ORDER BY id;
-- Exception blocks.
CREATE FUNCTION sp_try(k int) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    UPDATE sp_t SET v = v + 1 WHERE id = 1;
    BEGIN
        UPDATE sp_t SET v = v + 10 WHERE id = 1;
        INSERT INTO sp_t VALUES (k, 0);
        RETURN 'inserted';
    EXCEPTION WHEN unique_violation THEN
        RETURN 'duplicate, v = ' || (SELECT v FROM sp_t WHERE id = 1);
    END;
END $$;
SELECT sp_try(1);
SELECT sp_try(9);
SELECT sp_try(9);
SELECT v FROM sp_t WHERE id = 1;
DO $$
DECLARE n int := 0;
BEGIN
    FOR i IN 1..500 LOOP
        BEGIN
            UPDATE sp_t SET v = v + 1 WHERE id = 1;
            IF i % 2 = 0 THEN RAISE EXCEPTION 'no'; END IF;
            n := n + 1;
        EXCEPTION WHEN raise_exception THEN NULL;
        END;
    END LOOP;
    RAISE NOTICE '%', n;
END $$;
SELECT v FROM sp_t WHERE id = 1;
-- Deep nesting, rolled back in one go and in steps.
BEGIN;
CREATE FUNCTION sp_deep(n int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE sp_t SET v = n WHERE id = 2;
    IF n > 0 THEN
        BEGIN
            PERFORM sp_deep(n - 1);
            IF n % 3 = 0 THEN RAISE EXCEPTION 'undo'; END IF;
        EXCEPTION WHEN raise_exception THEN NULL;
        END;
    END IF;
END $$;
SELECT sp_deep(50);
SELECT v FROM sp_t WHERE id = 2;
SELECT sp_deep(49);
SELECT v FROM sp_t WHERE id = 2;
COMMIT;
SELECT v FROM sp_t WHERE id = 2;
-- Cursors and savepoints.
BEGIN;
DECLARE before CURSOR FOR SELECT id, v FROM sp_t WHERE id < 4 ORDER BY id;
SAVEPOINT a;
UPDATE sp_t SET v = -1 WHERE id < 4;
DECLARE inside CURSOR FOR SELECT id, v FROM sp_t WHERE id < 4 ORDER BY id;
FETCH 1 FROM inside;
FETCH 1 FROM before;
ROLLBACK TO a;
FETCH 1 FROM before;
FETCH 1 FROM inside;
ROLLBACK;
-- Locks of a rolled-back savepoint, then a change of the same row.
BEGIN;
SAVEPOINT a;
SELECT v FROM sp_t WHERE id = 3 FOR UPDATE;
ROLLBACK TO a;
UPDATE sp_t SET v = 3 WHERE id = 3;
DELETE FROM sp_t WHERE id = 3;
SAVEPOINT b;
INSERT INTO sp_t VALUES (3, 333);
ROLLBACK TO b;
SELECT count(*) FROM sp_t WHERE id = 3;
COMMIT;
SELECT count(*) FROM sp_t WHERE id = 3;
-- Procedures that commit.
CREATE PROCEDURE sp_batches(n int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..n LOOP
        INSERT INTO sp_t VALUES (1000 + i, i);
        IF i % 2 = 0 THEN ROLLBACK; ELSE COMMIT; END IF;
    END LOOP;
END $$;
CALL sp_batches(5);
SELECT * FROM sp_t WHERE id > 1000 ORDER BY id;
BEGIN;
UPDATE sp_t SET v = 5;
COMMIT AND CHAIN;
UPDATE sp_t SET v = 6;
ROLLBACK;
SELECT DISTINCT v FROM sp_t;
-- NOTIFY, also where each error would end the session.
SET exit_on_error = on;
BEGIN;
UPDATE sp_t SET v = 7;
NOTIFY sp_nobody;
COMMIT;
RESET exit_on_error;
SELECT DISTINCT v FROM sp_t;
DROP PROCEDURE sp_batches;
DROP FUNCTION sp_try, sp_deep;
DROP TABLE sp_t;
