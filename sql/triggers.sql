-- Triggers of every kind, and the rows that they are given.
CREATE TABLE tr_t (id int PRIMARY KEY, v text, n int DEFAULT 0) USING mixedcc;
CREATE TABLE tr_log (seq serial, what text) USING mixedcc;
CREATE FUNCTION tr_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO tr_log (what) VALUES (concat_ws(' ', TG_ARGV[0], TG_WHEN, TG_OP, TG_LEVEL,
        CASE WHEN TG_LEVEL = 'ROW' AND TG_OP <> 'INSERT' THEN 'old=' || OLD::text END,
        CASE WHEN TG_LEVEL = 'ROW' AND TG_OP <> 'DELETE' THEN 'new=' || NEW::text END));
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE FUNCTION tr_show() RETURNS SETOF text LANGUAGE sql AS $$
    WITH d AS (DELETE FROM tr_log RETURNING *) SELECT what FROM d ORDER BY seq $$;
CREATE TRIGGER b_row BEFORE INSERT OR UPDATE OR DELETE ON tr_t FOR EACH ROW EXECUTE FUNCTION tr_note();
CREATE TRIGGER a_row AFTER INSERT OR UPDATE OR DELETE ON tr_t FOR EACH ROW EXECUTE FUNCTION tr_note();
CREATE TRIGGER b_stmt BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON tr_t EXECUTE FUNCTION tr_note();
CREATE TRIGGER a_stmt AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tr_t EXECUTE FUNCTION tr_note();
INSERT INTO tr_t VALUES (1, 'a'), (2, 'b');
UPDATE tr_t SET v = 'A' WHERE id = 1;
UPDATE tr_t SET id = 20 WHERE id = 2;
DELETE FROM tr_t WHERE id = 20 RETURNING *;
INSERT INTO tr_t VALUES (1, 'c') ON CONFLICT (id) DO UPDATE SET v = excluded.v || tr_t.v;
SELECT tr_show();
-- Several changes of one row in one transaction: each event keeps its own rows.
BEGIN;
INSERT INTO tr_t VALUES (3, 'three');
UPDATE tr_t SET v = v || '+' WHERE id = 3;
UPDATE tr_t SET v = v || '+' WHERE id = 3;
SAVEPOINT s;
UPDATE tr_t SET v = 'rolled back' WHERE id = 3;
ROLLBACK TO s;
UPDATE tr_t SET id = 4 WHERE id = 3;
UPDATE tr_t SET v = v || '+' WHERE id = 4;
DELETE FROM tr_t WHERE id = 4;
COMMIT;
SELECT tr_show();
MERGE INTO tr_t USING (VALUES (1, 'm'), (5, 'n')) s (k, x) ON id = k
    WHEN MATCHED THEN UPDATE SET v = x WHEN NOT MATCHED THEN INSERT VALUES (k, x);
TRUNCATE tr_t;
SELECT tr_show();
DROP TRIGGER b_row ON tr_t;
DROP TRIGGER a_row ON tr_t;
DROP TRIGGER b_stmt ON tr_t;
DROP TRIGGER a_stmt ON tr_t;

-- BEFORE triggers that change, skip, or update the row themselves.
CREATE FUNCTION tr_before() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.v = 'skip' THEN RETURN NULL; END IF;
    IF NEW.v = 'move' THEN NEW.id := NEW.id + 1000; END IF;
    IF NEW.v = 'self' THEN UPDATE tr_t SET v = 'by trigger' WHERE id = NEW.id; END IF;
    NEW.n := NEW.n + 1;
    RETURN NEW;
END $$;
CREATE TRIGGER tr_before BEFORE INSERT OR UPDATE ON tr_t FOR EACH ROW EXECUTE FUNCTION tr_before();
INSERT INTO tr_t VALUES (1, 'one'), (2, 'skip'), (3, 'three') RETURNING *;
UPDATE tr_t SET v = 'skip' WHERE id = 1 RETURNING *;
UPDATE tr_t SET v = 'move' WHERE id = 1 RETURNING *;
UPDATE tr_t SET v = 'self' WHERE id = 3;
SELECT * FROM tr_t ORDER BY id;
-- WHEN conditions and column lists.
CREATE TRIGGER tr_when AFTER UPDATE OF v ON tr_t FOR EACH ROW WHEN (OLD.v IS DISTINCT FROM NEW.v) EXECUTE FUNCTION tr_note('when');
UPDATE tr_t SET n = 50 WHERE id = 3;
UPDATE tr_t SET v = v WHERE id = 3;
UPDATE tr_t SET v = 'now' WHERE id = 3;
SELECT tr_show();
DROP TRIGGER tr_when ON tr_t;
DROP TRIGGER tr_before ON tr_t;

-- An AFTER trigger that changes the same table, and one that fails.
CREATE FUNCTION tr_down() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.n > 0 THEN UPDATE tr_t SET n = NEW.n - 1 WHERE id = NEW.id; END IF;
    IF NEW.n < 0 THEN RAISE EXCEPTION 'negative: %', NEW; END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER tr_down AFTER INSERT OR UPDATE ON tr_t FOR EACH ROW EXECUTE FUNCTION tr_down();
CREATE TRIGGER tr_z AFTER INSERT OR UPDATE ON tr_t FOR EACH ROW EXECUTE FUNCTION tr_note();
TRUNCATE tr_t;
INSERT INTO tr_t VALUES (1, 'x', 3);
SELECT * FROM tr_t;
SELECT tr_show();
UPDATE tr_t SET n = -1;
SELECT * FROM tr_t;
DROP TRIGGER tr_down ON tr_t;
DROP TRIGGER tr_z ON tr_t;

-- Transition tables.
CREATE FUNCTION tr_tables() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE o text; n text;
BEGIN
    IF TG_OP <> 'INSERT' THEN SELECT string_agg(t::text, ' ' ORDER BY id) INTO o FROM olds t; END IF;
    IF TG_OP <> 'DELETE' THEN SELECT string_agg(t::text, ' ' ORDER BY id) INTO n FROM news t; END IF;
    INSERT INTO tr_log (what) VALUES (concat_ws(' ', TG_OP, 'old:', o, 'new:', n));
    RETURN NULL;
END $$;
CREATE TRIGGER t_ins AFTER INSERT ON tr_t REFERENCING NEW TABLE AS news EXECUTE FUNCTION tr_tables();
CREATE TRIGGER t_upd AFTER UPDATE ON tr_t REFERENCING OLD TABLE AS olds NEW TABLE AS news EXECUTE FUNCTION tr_tables();
CREATE TRIGGER t_del AFTER DELETE ON tr_t REFERENCING OLD TABLE AS olds EXECUTE FUNCTION tr_tables();
TRUNCATE tr_t;
BEGIN;
INSERT INTO tr_t VALUES (1, 'a'), (2, 'b');
UPDATE tr_t SET v = v || v;
UPDATE tr_t SET id = id + 10, n = 1;
INSERT INTO tr_t VALUES (11, 'up'), (13, 'ins') ON CONFLICT (id) DO UPDATE SET v = excluded.v;
DELETE FROM tr_t WHERE id > 11;
COMMIT;
SELECT tr_show();
COPY tr_t FROM stdin;
7	copied	7
\.
SELECT tr_show();
DROP TRIGGER t_ins ON tr_t;
DROP TRIGGER t_upd ON tr_t;
DROP TRIGGER t_del ON tr_t;

-- Deferred constraint triggers, with large rows, fired at the end or at SET CONSTRAINTS.
TRUNCATE tr_t;
CREATE CONSTRAINT TRIGGER tr_late AFTER INSERT OR UPDATE OR DELETE ON tr_t DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION tr_note('late');
BEGIN;
INSERT INTO tr_t VALUES (1, 'a');
UPDATE tr_t SET v = 'b';
UPDATE tr_t SET v = 'c';
UPDATE tr_t SET id = 2;
SAVEPOINT s;
UPDATE tr_t SET v = 'gone';
ROLLBACK TO s;
SELECT tr_show();
SET CONSTRAINTS ALL IMMEDIATE;
SELECT tr_show();
SET CONSTRAINTS ALL DEFERRED;
UPDATE tr_t SET v = 'd';
DELETE FROM tr_t;
COMMIT;
SELECT tr_show();
BEGIN;
INSERT INTO tr_t SELECT i, repeat('x', 100000) FROM generate_series(1, 20) i;
UPDATE tr_t SET v = v || 'y';
COMMIT;
SELECT count(*), sum(length(what)) FROM tr_log;
TRUNCATE tr_log;
CREATE FUNCTION tr_check() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT sum(n) FROM tr_t) <> 0 THEN RAISE EXCEPTION 'the sum is not zero'; END IF;
    RETURN NULL;
END $$;
DROP TRIGGER tr_late ON tr_t;
CREATE CONSTRAINT TRIGGER tr_sum AFTER INSERT OR UPDATE OR DELETE ON tr_t DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION tr_check();
BEGIN;
UPDATE tr_t SET n = 5 WHERE id = 1;
UPDATE tr_t SET n = -5 WHERE id = 2;
COMMIT;
BEGIN;
UPDATE tr_t SET n = 6 WHERE id = 1;
COMMIT;
SELECT id, n FROM tr_t WHERE n <> 0 ORDER BY id;
-- INSTEAD OF triggers over a view, and event order with statement triggers disabled.
CREATE VIEW tr_view AS SELECT id, v FROM tr_t WHERE id < 3;
CREATE FUNCTION tr_instead() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN UPDATE tr_t SET v = NEW.v WHERE id = OLD.id; RETURN NEW; END $$;
CREATE TRIGGER tr_instead INSTEAD OF UPDATE ON tr_view FOR EACH ROW EXECUTE FUNCTION tr_instead();
UPDATE tr_view SET v = 'through the view' WHERE id = 1 RETURNING *;
ALTER TABLE tr_t DISABLE TRIGGER ALL;
UPDATE tr_t SET n = 1;
SELECT id, n, left(v, 20) AS v FROM tr_t WHERE id < 3 ORDER BY id;
DROP VIEW tr_view;

-- A row that moves to another key and is updated again: each event keeps its own rows, also where
-- only updates have events.
CREATE TABLE tr_m (id int PRIMARY KEY, v int) USING mixedcc;
INSERT INTO tr_m VALUES (1, 0), (5, 0);
CREATE FUNCTION tr_touch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN UPDATE tr_m SET v = v + 1 WHERE id = NEW.id; RETURN NULL; END $$;
CREATE TRIGGER a_touch AFTER UPDATE ON tr_m FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION tr_touch();
CREATE TRIGGER b_audit AFTER UPDATE ON tr_m FOR EACH ROW EXECUTE FUNCTION tr_note('audit');
TRUNCATE tr_log;
UPDATE tr_m SET id = 2 WHERE id = 1;
UPDATE tr_m SET v = 7 WHERE id = 2;
SELECT tr_show();
DROP TRIGGER a_touch ON tr_m;
DROP TRIGGER b_audit ON tr_m;
CREATE CONSTRAINT TRIGGER tr_late AFTER UPDATE ON tr_m DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION tr_note('late');
BEGIN;
UPDATE tr_m SET id = 3 WHERE id = 2;
UPDATE tr_m SET v = 9 WHERE id = 3;
UPDATE tr_m SET id = 4, v = 10 WHERE id = 3;
UPDATE tr_m SET v = v + 1;
UPDATE tr_m SET v = v + 1 WHERE id = 4;
DELETE FROM tr_m WHERE id = 4;
COMMIT;
SELECT tr_show();
-- A statement meets a row twice, and another command has written it between.
DROP TRIGGER tr_late ON tr_m;
TRUNCATE tr_m;
INSERT INTO tr_m VALUES (1, 0), (2, 0);
CREATE FUNCTION tr_other() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN UPDATE tr_m SET v = v + 100 WHERE id = 1; RETURN NEW; END $$;
CREATE TRIGGER tr_other BEFORE UPDATE ON tr_m FOR EACH ROW WHEN (OLD.id = 2 AND pg_trigger_depth() = 0)
    EXECUTE FUNCTION tr_other();
SET enable_mergejoin = off;
SET enable_hashjoin = off;
UPDATE tr_m SET v = v + 1 FROM (VALUES (1), (2), (1)) p (k) WHERE id = k;
SELECT * FROM tr_m ORDER BY id;
DELETE FROM tr_m USING (VALUES (1), (2), (1)) p (k) WHERE id = k;
INSERT INTO tr_m VALUES (1, 0), (2, 0);
DROP TRIGGER tr_other ON tr_m;
MERGE INTO tr_m USING (VALUES (1), (2), (1)) s (k) ON id = k WHEN MATCHED AND v = 0 THEN UPDATE SET v = 1;
MERGE INTO tr_m USING (VALUES (1), (2), (1)) s (k) ON id = k WHEN MATCHED AND v = 1 THEN DELETE
    WHEN MATCHED THEN UPDATE SET v = 1;
SELECT * FROM tr_m ORDER BY id;
-- So it is where ON CONFLICT has met the row before, as the transaction, or one before, had written it.
CREATE FUNCTION tr_same() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER tr_same BEFORE UPDATE ON tr_m FOR EACH ROW EXECUTE FUNCTION tr_same();
BEGIN ISOLATION LEVEL REPEATABLE READ;
UPDATE tr_m SET v = 10 WHERE id = 1;
INSERT INTO tr_m VALUES (1, 0) ON CONFLICT DO NOTHING;
UPDATE tr_m SET v = v + 1 FROM (VALUES (1), (1)) p (k) WHERE id = k;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SAVEPOINT s;
UPDATE tr_m SET v = 20 WHERE id = 1;
INSERT INTO tr_m VALUES (1, 0) ON CONFLICT DO NOTHING;
ROLLBACK TO s;
UPDATE tr_m SET v = v + 1 FROM (VALUES (1), (1)) p (k) WHERE id = k;
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
UPDATE tr_m SET v = v + 10 WHERE id = 1;
INSERT INTO tr_m VALUES (1, 0) ON CONFLICT DO NOTHING;
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
UPDATE tr_m SET v = v + 1 FROM (VALUES (1), (1)) p (k) WHERE id = k;
SELECT * FROM tr_m ORDER BY id;
INSERT INTO tr_m VALUES (1, 0), (1, 0) ON CONFLICT (id) DO UPDATE SET v = 30;
ROLLBACK;
RESET enable_mergejoin;
RESET enable_hashjoin;
DROP TABLE tr_m;
DROP FUNCTION tr_touch, tr_other, tr_same;
DROP TABLE tr_t, tr_log;
DROP FUNCTION tr_note, tr_show, tr_before, tr_down, tr_tables, tr_check, tr_instead;
