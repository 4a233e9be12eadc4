-- Cursors: scrolling, WITH HOLD, WHERE CURRENT OF; what they see of later changes.
CREATE TABLE cu_t (id int PRIMARY KEY, v text) USING mixedcc;
INSERT INTO cu_t SELECT i, 'v' || i FROM generate_series(1, 10) i;
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT * FROM cu_t ORDER BY id;
FETCH 2 FROM c;
FETCH LAST FROM c;
FETCH PRIOR FROM c;
FETCH ABSOLUTE 3 FROM c;
FETCH RELATIVE -2 FROM c;
FETCH BACKWARD 1 FROM c;
MOVE FORWARD ALL IN c;
FETCH BACKWARD 2 FROM c;
-- Insensitive to changes after its opening.
UPDATE cu_t SET v = 'changed';
DELETE FROM cu_t WHERE id = 1;
INSERT INTO cu_t VALUES (0, 'new');
FETCH FIRST FROM c;
FETCH ABSOLUTE 2 FROM c;
SELECT * FROM cu_t WHERE id < 3 ORDER BY id;
ROLLBACK;
-- The same through an index, backward, and a sequential scan.
SET enable_seqscan = off;
SET enable_sort = off;
BEGIN;
DECLARE i SCROLL CURSOR FOR SELECT id FROM cu_t WHERE id BETWEEN 3 AND 8 ORDER BY id;
FETCH 3 FROM i;
FETCH BACKWARD 2 FROM i;
FETCH LAST FROM i;
FETCH BACKWARD 2 FROM i;
DELETE FROM cu_t WHERE id = 5;
MOVE ABSOLUTE 0 IN i;
FETCH ALL FROM i;
ROLLBACK;
RESET enable_seqscan;
RESET enable_sort;
BEGIN;
DECLARE s SCROLL CURSOR FOR SELECT id FROM cu_t WHERE id IN (1, 2, 3);
FETCH ALL FROM s;
FETCH BACKWARD ALL FROM s;
COMMIT;
-- WITH HOLD lives past the transaction, with what it saw.
BEGIN;
UPDATE cu_t SET v = 'held' WHERE id = 2;
DECLARE h SCROLL CURSOR WITH HOLD FOR SELECT * FROM cu_t WHERE id < 5 ORDER BY id;
FETCH 1 FROM h;
UPDATE cu_t SET v = 'later' WHERE id = 3;
COMMIT;
UPDATE cu_t SET v = 'much later';
FETCH 2 FROM h;
FETCH BACKWARD ALL FROM h;
CLOSE h;
-- WHERE CURRENT OF.
BEGIN;
DECLARE w CURSOR FOR SELECT * FROM cu_t ORDER BY id FOR UPDATE;
FETCH 2 FROM w;
UPDATE cu_t SET v = 'current' WHERE CURRENT OF w;
FETCH 1 FROM w;
DELETE FROM cu_t WHERE CURRENT OF w RETURNING id;
DELETE FROM cu_t WHERE CURRENT OF w RETURNING id;
FETCH 1 FROM w;
UPDATE cu_t SET id = 40 WHERE CURRENT OF w RETURNING *;
SELECT * FROM cu_t WHERE id IN (2, 3, 4, 40) ORDER BY id;
COMMIT;
BEGIN;
DECLARE w CURSOR FOR SELECT * FROM cu_t WHERE id = 5;
UPDATE cu_t SET v = 'x' WHERE CURRENT OF w;
ROLLBACK;
BEGIN;
DECLARE w CURSOR FOR SELECT * FROM cu_t WHERE id = 5;
FETCH w;
UPDATE cu_t SET v = 'once' WHERE CURRENT OF w;
UPDATE cu_t SET v = v || ', twice' WHERE CURRENT OF w;
SELECT * FROM cu_t WHERE id = 5;
COMMIT;
-- A plpgsql loop that changes what it reads.
DO $$
DECLARE r record; n int := 0;
BEGIN
    FOR r IN SELECT * FROM cu_t LOOP
        UPDATE cu_t SET id = id + 100 WHERE id = r.id;
        INSERT INTO cu_t VALUES (r.id + 1000, 'copy');
        n := n + 1;
    END LOOP;
    RAISE NOTICE '%', n;
END $$;
SELECT count(*), min(id), max(id) FROM cu_t;
DO $$
DECLARE c CURSOR FOR SELECT * FROM cu_t WHERE v = 'copy' FOR UPDATE; n int := 0;
BEGIN
    c := 'c'; -- its name, which PostgreSQL 18 would make up
    FOR r IN c LOOP
        DELETE FROM cu_t WHERE CURRENT OF c;
        n := n + 1;
        IF n % 4 = 0 THEN COMMIT; END IF;
    END LOOP;
    RAISE NOTICE '%', n;
END $$;
SELECT count(*) FROM cu_t;
-- Repeatable read: the cursor and the transaction share a snapshot.
BEGIN ISOLATION LEVEL REPEATABLE READ;
DECLARE r CURSOR FOR SELECT count(*) FROM cu_t;
DELETE FROM cu_t;
FETCH r;
SELECT count(*) FROM cu_t;
ROLLBACK;
-- A cursor goes with the savepoint that it was opened in.
BEGIN;
SAVEPOINT a;
DECLARE gone CURSOR FOR SELECT * FROM cu_t;
ROLLBACK TO a;
FETCH gone;
ROLLBACK;
DROP TABLE cu_t;
