-- System columns: what RETURNING and readers show, by all ways of statements. The same on heap.
CREATE TABLE sc_t (id int PRIMARY KEY, v int, w text) USING mixedcc;
CREATE INDEX sc_w ON sc_t (w);
-- An insert has xmax 0, ON CONFLICT's update another one.
INSERT INTO sc_t VALUES (1, 1, 'a') ON CONFLICT (id) DO UPDATE SET v = sc_t.v + 1 RETURNING (xmax = 0) AS inserted, v;
INSERT INTO sc_t VALUES (1, 1, 'a') ON CONFLICT (id) DO UPDATE SET v = sc_t.v + 1 RETURNING (xmax = 0) AS inserted, v;
INSERT INTO sc_t VALUES (1, 1, 'b') ON CONFLICT (id) DO UPDATE SET v = sc_t.v + 1, w = excluded.w RETURNING (xmax = 0) AS inserted, v;
INSERT INTO sc_t VALUES (2, 1, 'a'), (1, 1, 'a') ON CONFLICT (id) DO UPDATE SET v = sc_t.v + 1 RETURNING id, (xmax = 0) AS inserted, v;
INSERT INTO sc_t VALUES (3, 1, 'a'), (4, 1, 'a') RETURNING xmax, cmin::text::int < 10 AS cmin, tableoid = 'sc_t'::regclass AS tableoid;
INSERT INTO sc_t SELECT g, g, 'x' FROM generate_series(5, 20) g RETURNING xmax, xmin::text::bigint >= 3 AS xmin;
BEGIN;
INSERT INTO sc_t VALUES (30, 1, 'a') ON CONFLICT (id) DO UPDATE SET v = 2 RETURNING (xmax = 0) AS inserted;
INSERT INTO sc_t VALUES (30, 1, 'a') ON CONFLICT (id) DO UPDATE SET v = 2 RETURNING (xmax = 0) AS inserted;
ROLLBACK;
INSERT INTO sc_t VALUES (40, 1, 'a'), (40, 1, 'a') ON CONFLICT (id) DO UPDATE SET v = 2;
BEGIN ISOLATION LEVEL REPEATABLE READ;
INSERT INTO sc_t VALUES (40, 1, 'a'), (40, 2, 'a') ON CONFLICT (id) DO NOTHING RETURNING id, v;
INSERT INTO sc_t VALUES (1, 1, 'a') ON CONFLICT (id) DO NOTHING RETURNING id, v;
ROLLBACK;
-- A version token: what RETURNING shows before COMMIT is what readers see after it, in place, moved, by key and not.
SELECT xmin AS token FROM sc_t WHERE id = 1 \gset
UPDATE sc_t SET v = v + 1 WHERE id = 1 AND xmin = :'token' RETURNING xmin AS token, xmax, ctid IS NOT NULL AS ctid \gset
SELECT :'xmax' = '0' AS xmax, :'ctid' AS ctid;
SELECT count(*) FROM sc_t WHERE id = 1 AND xmin = :'token';
UPDATE sc_t SET w = 'moved' WHERE id = 1 AND xmin = :'token' RETURNING xmin AS token \gset
SELECT count(*) FROM sc_t WHERE id = 1 AND xmin = :'token';
UPDATE sc_t SET v = v + 1 WHERE id = 1 AND xmin = :'token' RETURNING v;
UPDATE sc_t SET v = v + 1 WHERE id = 1 AND xmin = :'token' RETURNING v;
UPDATE sc_t SET v = v + 1 WHERE w = 'moved' RETURNING xmin AS token \gset
SELECT count(*) FROM sc_t WHERE id = 1 AND xmin = :'token';
INSERT INTO sc_t VALUES (50, 1, 'a') RETURNING xmin AS token \gset
SELECT count(*) FROM sc_t WHERE id = 50 AND xmin = :'token';
UPDATE sc_t SET v = 2 WHERE id = 50;
SELECT count(*) FROM sc_t WHERE id = 50 AND xmin = :'token';
-- In one transaction, with a savepoint, and at all levels.
BEGIN;
INSERT INTO sc_t VALUES (51, 1, 'a') RETURNING xmin AS first \gset
UPDATE sc_t SET v = 2 WHERE id = 51 AND xmin = :'first' RETURNING xmin AS token \gset
SELECT :'first' = :'token' AS same;
SAVEPOINT s;
UPDATE sc_t SET v = 3 WHERE id = 51 AND xmin = :'token' RETURNING xmin AS undone \gset
ROLLBACK TO s;
SELECT v, xmin::text = :'token' AS same FROM sc_t WHERE id = 51;
UPDATE sc_t SET v = 4 WHERE id = 51 AND xmin = :'token' RETURNING v, xmin AS token, xmin::text = :'undone' AS undone \gset
SELECT :v, :'undone' AS undone;
COMMIT;
SELECT count(*) FROM sc_t WHERE id = 51 AND xmin = :'token';
BEGIN ISOLATION LEVEL SERIALIZABLE;
UPDATE sc_t SET v = 5 WHERE id = 51 RETURNING xmin AS token \gset
SELECT count(*) FROM sc_t WHERE id = 51 AND xmin = :'token';
COMMIT;
SELECT count(*) FROM sc_t WHERE id = 51 AND xmin = :'token';
-- Prepared statements, cursors, a procedure.
PREPARE sc_up(int, xid) AS UPDATE sc_t SET v = v + 1 WHERE id = $1 AND xmin = $2 RETURNING xmin;
EXECUTE sc_up(51, :'token') \gset
EXECUTE sc_up(51, :'token');
SELECT count(*) FROM sc_t WHERE id = 51 AND xmin = :'xmin';
DO $$ DECLARE a xid; b xid; n int;
BEGIN
    FOR i IN 1..5 LOOP
        UPDATE sc_t SET v = v + 1 WHERE id = 51 RETURNING xmin INTO a;
        COMMIT;
        SELECT xmin INTO b FROM sc_t WHERE id = 51;
        IF a <> b THEN RAISE 'a token has changed: % %', a, b; END IF;
    END LOOP;
END $$;
-- Commands are counted.
BEGIN;
INSERT INTO sc_t VALUES (60, 1, 'a') RETURNING cmin AS one, cmax = cmin AS same \gset
INSERT INTO sc_t VALUES (61, 1, 'a') RETURNING cmin AS two \gset
SELECT :'two'::int > :'one'::int AS later, :'same' AS same;
SELECT xmax, cmin::text = :'one' AS cmin FROM sc_t WHERE id = 60;
ROLLBACK;
-- A row that was locked before.
BEGIN;
SELECT id, xmax FROM sc_t WHERE id = 3 FOR UPDATE;
UPDATE sc_t SET v = 9 WHERE id = 3 RETURNING xmax <> 0 AS was_locked;
ROLLBACK;
-- DELETE shows the version that goes.
SELECT xmin AS token FROM sc_t WHERE id = 51 \gset
DELETE FROM sc_t WHERE id = 51 AND xmin = :'token' RETURNING id, xmin::text = :'token' AS same, tableoid = 'sc_t'::regclass AS tableoid;
BEGIN;
INSERT INTO sc_t VALUES (52, 1, 'a') RETURNING xmin AS token \gset
DELETE FROM sc_t WHERE id = 52 RETURNING xmin::text = :'token' AS same;
COMMIT;
-- Triggers: rows that a BEFORE trigger returns, and what AFTER triggers see.
CREATE TABLE sc_log (what text, xmin_is_new boolean, xmax_is_0 boolean);
CREATE FUNCTION sc_before() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.v := NEW.v + 100; RETURN NEW; END $$;
CREATE FUNCTION sc_after() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO sc_log SELECT TG_OP, NEW.xmin = t.xmin, NEW.xmax = 0 FROM sc_t t WHERE t.id = NEW.id;
    RETURN NULL;
END $$;
CREATE TRIGGER sc_before BEFORE INSERT OR UPDATE ON sc_t FOR EACH ROW EXECUTE FUNCTION sc_before();
INSERT INTO sc_t VALUES (70, 1, 'a') RETURNING v, xmin AS token, xmax = 0 AS inserted \gset
SELECT :v, :'inserted' AS inserted, count(*) FROM sc_t WHERE id = 70 AND xmin = :'token';
UPDATE sc_t SET v = 2 WHERE id = 70 RETURNING v, xmin AS token \gset
SELECT :v, count(*) FROM sc_t WHERE id = 70 AND xmin = :'token';
INSERT INTO sc_t VALUES (70, 1, 'a') ON CONFLICT (id) DO UPDATE SET v = 3 RETURNING v, (xmax = 0) AS inserted, xmin AS token \gset
SELECT :v, :'inserted' AS inserted, count(*) FROM sc_t WHERE id = 70 AND xmin = :'token';
DROP TRIGGER sc_before ON sc_t;
CREATE TRIGGER sc_after AFTER INSERT OR UPDATE ON sc_t FOR EACH ROW EXECUTE FUNCTION sc_after();
INSERT INTO sc_t VALUES (71, 1, 'a') RETURNING xmin AS token \gset
UPDATE sc_t SET v = 2 WHERE id = 71 AND xmin = :'token' RETURNING xmin AS token \gset
SELECT count(*) FROM sc_t WHERE id = 71 AND xmin = :'token';
SELECT * FROM sc_log ORDER BY what;
DROP TRIGGER sc_after ON sc_t;
-- MERGE and COPY.
MERGE INTO sc_t t USING (VALUES (70, 5), (80, 6)) s(id, v) ON t.id = s.id
    WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.v, 'm');
COPY sc_t FROM stdin;
90	1	c
91	2	c
\.
SELECT id, xmin::text::bigint >= 3 AS xmin, xmax, cmin::text::bigint < 100 AS cmin FROM sc_t WHERE id IN (80, 90, 91) ORDER BY id;
SELECT count(DISTINCT xmin::text) FROM sc_t WHERE id IN (90, 91);
-- Foreign keys ask whether the old row is this transaction's: if so, the check of its insert does not count.
CREATE TABLE sc_p (id int PRIMARY KEY) USING mixedcc;
CREATE TABLE sc_c (id int PRIMARY KEY, p int REFERENCES sc_p DEFERRABLE INITIALLY DEFERRED, v int) USING mixedcc;
BEGIN;
INSERT INTO sc_c VALUES (1, 77, 1);
UPDATE sc_c SET v = 2 WHERE id = 1;
COMMIT;
BEGIN;
INSERT INTO sc_c VALUES (1, 77, 1);
UPDATE sc_c SET v = 2 WHERE id = 1;
UPDATE sc_c SET id = 2 WHERE id = 1;
COMMIT;
BEGIN;
INSERT INTO sc_c VALUES (1, 77, 1);
UPDATE sc_c SET v = 2 WHERE id = 1 RETURNING v, xmax;
INSERT INTO sc_p VALUES (77);
COMMIT;
SELECT * FROM sc_c;
-- A partitioned table, and a view.
CREATE TABLE sc_part (id int, v int, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE sc_part1 PARTITION OF sc_part FOR VALUES FROM (0) TO (10) USING mixedcc;
CREATE TABLE sc_part2 PARTITION OF sc_part FOR VALUES FROM (10) TO (20) USING mixedcc;
INSERT INTO sc_part VALUES (1, 1), (11, 1) RETURNING tableoid::regclass, xmax;
INSERT INTO sc_part VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET v = 2 RETURNING tableoid::regclass, (xmax = 0) AS inserted;
UPDATE sc_part SET id = 12 WHERE id = 1 RETURNING tableoid::regclass, xmax;
CREATE VIEW sc_view AS SELECT * FROM sc_t;
INSERT INTO sc_view VALUES (95, 1, 'a') ON CONFLICT (id) DO UPDATE SET v = 2 RETURNING id, v;
INSERT INTO sc_view VALUES (95, 1, 'a') ON CONFLICT (id) DO UPDATE SET v = 2 RETURNING id, v;
DROP VIEW sc_view;
-- A rewrite gives new ones, and they hold.
ALTER TABLE sc_t ALTER v TYPE bigint;
SELECT bool_and(xmin::text::bigint >= 3 AND xmax = 0) FROM sc_t;
DROP TABLE sc_t, sc_log, sc_c, sc_p, sc_part;
DROP FUNCTION sc_before, sc_after;
-- A user may make a TID up: it names no write of another table, and nothing that a snapshot does not show.
CREATE TABLE sc_a (k bigint PRIMARY KEY, v bigint) USING mixedcc;
CREATE TABLE sc_b (k int PRIMARY KEY, x text, y text) USING mixedcc;
CREATE FUNCTION sc_made_up() RETURNS tid[] IMMUTABLE LANGUAGE sql AS
    $$SELECT array_agg(format('(%s,%s)', 2147483648 + b, o)::tid) FROM generate_series(0, 2) b, generate_series(1, 20) o$$;
INSERT INTO sc_a VALUES (7, 70), (8, 80);
INSERT INTO sc_b VALUES (1, 'x', 'y');
SET enable_seqscan = off;
EXPLAIN (COSTS OFF) SELECT v FROM sc_a WHERE ctid = ANY ('{"(1,1)", "(1,2)"}');
BEGIN;
INSERT INTO sc_a VALUES (1, -1);
UPDATE sc_a SET v = 71 WHERE k = 7;
UPDATE sc_a SET v = 72 WHERE k = 7;
DELETE FROM sc_a WHERE k = 8;
SELECT * FROM sc_b WHERE ctid = '(2147483648,2)' OR ctid = ANY (sc_made_up());
UPDATE sc_b SET x = 'q' WHERE ctid = ANY (sc_made_up()) RETURNING *;
DELETE FROM sc_b WHERE ctid = '(2147483648,1)' RETURNING *;
SELECT * FROM sc_b WHERE ctid = ANY (sc_made_up()) FOR UPDATE;
SAVEPOINT s;
SELECT currtid2('sc_b', '(2147483648,2)'::tid);
ROLLBACK TO s;
-- Of its own table a row once, as it is now. (Heap finds none.)
SELECT count(*) = count(DISTINCT k) AS once, coalesce(bool_and((k, v) IN ((1, -1), (7, 72))), true) AS as_now FROM sc_a WHERE ctid = ANY (sc_made_up());
SAVEPOINT s;
INSERT INTO sc_a VALUES (2, -2);
ROLLBACK TO s;
SELECT count(*) = count(DISTINCT k) AS once, coalesce(bool_and((k, v) IN ((1, -1), (7, 72))), true) AS as_now FROM sc_a WHERE ctid = ANY (sc_made_up());
COMMIT;
SELECT * FROM sc_a WHERE ctid = ANY (sc_made_up());
SELECT * FROM sc_a ORDER BY k;
SELECT * FROM sc_b;
-- RETURNING of a row with triggers shows such a TID, by which the transaction finds the row.
CREATE FUNCTION sc_after() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER sc_after AFTER UPDATE ON sc_a FOR EACH ROW EXECUTE FUNCTION sc_after();
BEGIN;
UPDATE sc_a SET v = 73 WHERE k = 7 RETURNING ctid AS returned \gset
SELECT * FROM sc_a WHERE ctid = :'returned';
UPDATE sc_a SET v = v + 1 WHERE ctid = :'returned' RETURNING k, v;
COMMIT;
RESET enable_seqscan;
DROP TABLE sc_a, sc_b;
DROP FUNCTION sc_made_up(), sc_after();
