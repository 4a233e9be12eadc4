-- The executor bypass: which statements take it, and why others do not.
SET client_min_messages = warning;
CREATE FUNCTION by_took(sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    before jsonb;
    after jsonb;
BEGIN
    SELECT jsonb_object_agg(coalesce(statement, reason), statements) INTO before FROM mixedcc.bypass;
    BEGIN
        EXECUTE sql;
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING '%: %', SQLSTATE, SQLERRM;
    END;
    SELECT jsonb_object_agg(coalesce(statement, reason), statements) INTO after FROM mixedcc.bypass;
    RETURN (SELECT string_agg(key || CASE WHEN n > 1 THEN ' ' || n ELSE '' END, ', ' ORDER BY key)
            FROM (SELECT key, value::int - (before ->> key)::int AS n FROM jsonb_each_text(after)) AS d WHERE n <> 0);
END $$;
CREATE TABLE by_t (a int, b text, v int CHECK (v < 1000), w numeric NOT NULL DEFAULT 1, i int, PRIMARY KEY (a, b)) USING mixedcc;
CREATE INDEX ON by_t (i);
INSERT INTO by_t SELECT n, 'x', n, n, n FROM generate_series(1, 5) AS n;
-- Those that take it.
SELECT by_took('SELECT * FROM by_t WHERE a = 1 AND b = ''x''');
SELECT by_took('SELECT v + 1, upper(b) FROM by_t WHERE ''x'' = b AND a = 1::bigint AND v > 0 LIMIT 1');
SELECT by_took('UPDATE by_t SET v = v + 1, w = w * 2 WHERE a = 1 AND b = ''x'' RETURNING v');
SELECT by_took('INSERT INTO by_t VALUES (10, ''x'', 1, 1, 1) RETURNING a');
SELECT by_took('DELETE FROM by_t WHERE a = 10 AND b = ''x'' RETURNING a');
SELECT by_took('UPDATE by_t SET v = 1000 WHERE a = 1 AND b = ''x''');
SELECT by_took('UPDATE by_t SET w = NULL WHERE a = 1 AND b = ''x''');
SELECT by_took('INSERT INTO by_t VALUES (1, ''x'', 1, 1, 1)');
-- A parameter that is NULL or of another type.
PREPARE by_s (bigint) AS SELECT v FROM by_t WHERE a = $1 AND b = 'x';
SET plan_cache_mode = force_generic_plan;
SELECT by_took('EXECUTE by_s (2)'), by_took('EXECUTE by_s (NULL)'), by_took('EXECUTE by_s (99999999999)');
RESET plan_cache_mode;
-- Those that do not, by reason.
SET mixedcc.enable_bypass = off;
SELECT by_took('SELECT * FROM by_t WHERE a = 1 AND b = ''x''');
RESET mixedcc.enable_bypass;
SELECT by_took('EXPLAIN (ANALYZE) SELECT * FROM by_t WHERE a = 1 AND b = ''x''');
SELECT by_took('DO ''DECLARE c CURSOR FOR SELECT v FROM by_t WHERE a = 1 AND b = $x$x$x$; r int; BEGIN OPEN c; FETCH c INTO r; END''');
BEGIN READ ONLY;
SELECT by_took('UPDATE by_t SET v = 1 WHERE a = 1 AND b = ''x''');
COMMIT;
SELECT by_took('SELECT count(*) FROM by_t WHERE a = 1 AND b = ''x''');
SELECT by_took('SELECT * FROM by_t WHERE a = 1 AND b = ''x'' FOR UPDATE');
SELECT by_took('INSERT INTO by_t VALUES (11, ''x''), (12, ''x'')');
SELECT by_took('SELECT * FROM by_t WHERE a = 1');
SELECT by_took('SELECT * FROM by_t WHERE a > 1 AND b = ''x''');
SELECT by_took('SELECT ctid FROM by_t WHERE a = 1 AND b = ''x''');
SELECT by_took('SELECT random() FROM by_t WHERE a = 1 AND b = ''x''');
SELECT by_took('SELECT by_t FROM by_t WHERE a = 1 AND b = ''x''');
SELECT by_took('INSERT INTO by_t VALUES (1, ''x'') ON CONFLICT DO NOTHING');
SELECT by_took('UPDATE by_t SET i = 1 WHERE a = 1 AND b = ''x''');
SELECT by_took('UPDATE by_t SET a = 1 WHERE a = 1 AND b = ''x''');
-- Rights are those of the moment.
CREATE ROLE by_user;
GRANT SELECT ON by_t TO by_user;
PREPARE by_p AS SELECT v FROM by_t WHERE a = 2 AND b = 'x';
EXECUTE by_p;
SET ROLE by_user;
EXECUTE by_p;
RESET ROLE;
REVOKE SELECT ON by_t FROM by_user;
SET ROLE by_user;
EXECUTE by_p;
SELECT by_took('SELECT v FROM by_t WHERE a = 2 AND b = ''x''');
RESET ROLE;
-- Changes of the table are seen at once by statements that were prepared before.
PREPARE by_u AS UPDATE by_t SET v = v + 1 WHERE a = 2 AND b = 'x';
SELECT by_took('EXECUTE by_u');
CREATE FUNCTION by_tell() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE WARNING ''trigger''; RETURN NEW; END';
CREATE TRIGGER by_trig BEFORE UPDATE ON by_t FOR EACH ROW EXECUTE FUNCTION by_tell();
SELECT by_took('EXECUTE by_u');
DROP TRIGGER by_trig ON by_t;
SELECT by_took('EXECUTE by_u');
ALTER TABLE by_t ADD CONSTRAINT by_c CHECK (v < 4) NOT VALID;
SELECT by_took('EXECUTE by_u');
ALTER TABLE by_t DROP CONSTRAINT by_c;
CREATE INDEX by_v ON by_t (v);
SELECT by_took('EXECUTE by_u');
DROP INDEX by_v;
ALTER TABLE by_t ENABLE ROW LEVEL SECURITY;
SELECT by_took('EXECUTE by_u');
ALTER TABLE by_t DISABLE ROW LEVEL SECURITY;
ALTER TABLE by_t ADD COLUMN g int GENERATED ALWAYS AS (v * 2) STORED;
SELECT by_took('EXECUTE by_u');
ALTER TABLE by_t DROP COLUMN g;
SELECT by_took('EXECUTE by_u'), by_took('INSERT INTO by_t (a, b) VALUES (20, ''x'')');
ALTER TABLE by_t ALTER v TYPE bigint;
SELECT by_took('EXECUTE by_u'), by_took('SELECT v FROM by_t WHERE a = 20 AND b = ''x''');
SELECT v FROM by_t WHERE a = 2 AND b = 'x';
-- Partitions: reads of one take it.
CREATE TABLE by_part (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE by_part1 PARTITION OF by_part FOR VALUES FROM (0) TO (10) USING mixedcc;
CREATE TABLE by_part2 PARTITION OF by_part FOR VALUES FROM (10) TO (20) USING mixedcc;
SELECT by_took('INSERT INTO by_part VALUES (1, 1)');
SELECT by_took('SELECT v FROM by_part WHERE id = 1');
SELECT by_took('UPDATE by_part SET v = 2 WHERE id = 1');
SELECT by_took('UPDATE by_part1 SET v = 2 WHERE id = 1');
-- Foreign keys: an update of other columns has nothing to check, but for rows that the transaction wrote itself.
CREATE TABLE by_parent (id int PRIMARY KEY, v int) USING mixedcc;
CREATE TABLE by_child (id int PRIMARY KEY, p int REFERENCES by_parent, v int) USING mixedcc;
INSERT INTO by_parent VALUES (1, 1);
SELECT by_took('INSERT INTO by_child VALUES (1, 1, 1)');
SELECT by_took('UPDATE by_child SET v = 2 WHERE id = 1');
SELECT by_took('UPDATE by_child SET p = 2 WHERE id = 1');
SELECT by_took('UPDATE by_parent SET v = 2 WHERE id = 1');
SELECT by_took('DELETE FROM by_parent WHERE id = 1');
BEGIN;
SELECT by_took('UPDATE by_child SET v = 3 WHERE id = 1'), by_took('UPDATE by_child SET v = 4 WHERE id = 1');
COMMIT;
SELECT by_took('DELETE FROM by_child WHERE id = 1');
-- Tables without an index in memory use nbtree.
CREATE TABLE by_n (id numeric PRIMARY KEY, v int) USING mixedcc;
SELECT by_took('INSERT INTO by_n VALUES (1.0, 1)'), by_took('UPDATE by_n SET v = 2 WHERE id = 1');
SELECT * FROM by_n WHERE id = 1.00;
-- What an INSERT knows of the indexes holds until one of them changes: each row must be in all indexes of its time.
CREATE TABLE by_i (id int PRIMARY KEY, v int, w text) USING mixedcc;
PREPARE by_add (int) AS INSERT INTO by_i VALUES ($1, $1, 'w' || $1);
SET plan_cache_mode = force_generic_plan;
CREATE FUNCTION by_in(condition text) RETURNS bigint LANGUAGE plpgsql SET enable_seqscan = off SET mixedcc.enable_primary_scan = off AS $$
DECLARE n bigint;
BEGIN
    EXECUTE 'SELECT count(*) FROM by_i WHERE ' || condition INTO n;
    RETURN n;
END $$;
SELECT by_took('EXECUTE by_add (1)'), by_took('EXECUTE by_add (1)'), by_took('EXECUTE by_add (2)');
BEGIN;
EXECUTE by_add (3);
SELECT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'by_i_pkey'::regclass AND mode LIKE 'Row%';
CREATE INDEX by_v ON by_i (v);
EXECUTE by_add (4);
ALTER INDEX by_v SET (fillfactor = 50);
EXECUTE by_add (5);
ALTER INDEX by_i_pkey SET (fillfactor = 50);
EXECUTE by_add (6);
REINDEX TABLE by_i;
EXECUTE by_add (7);
COMMIT;
SELECT by_in('id > 0'), by_in('v > 0');
DROP INDEX by_v;
EXECUTE by_add (8);
-- In a subtransaction, whose locks end with it.
BEGIN;
SAVEPOINT s;
EXECUTE by_add (9);
ROLLBACK TO s;
EXECUTE by_add (9);
SAVEPOINT s;
EXECUTE by_add (9);
ROLLBACK TO s;
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'by_i_pkey'::regclass AND mode LIKE 'Row%';
EXECUTE by_add (10);
ROLLBACK TO s;
EXECUTE by_add (11);
COMMIT;
BEGIN;
SAVEPOINT s;
EXECUTE by_add (12);
ROLLBACK TO s;
CREATE UNIQUE INDEX by_w ON by_i (w, v);
EXECUTE by_add (12);
ROLLBACK TO s;
EXECUTE by_add (12);
COMMIT;
-- Indexes that only the executor knows how to fill.
CREATE INDEX by_e ON by_i ((v * 2)) WHERE v > 10;
SELECT by_took('EXECUTE by_add (13)');
SELECT by_in('v * 2 = 26 AND v > 10'), by_in('id = 13');
DROP INDEX by_e;
ALTER TABLE by_i ADD CONSTRAINT by_x UNIQUE (v) DEFERRABLE INITIALLY DEFERRED;
SELECT by_took('EXECUTE by_add (14)');
DO $$ BEGIN EXECUTE 'INSERT INTO by_i VALUES (15, 14, NULL)'; SET CONSTRAINTS by_x IMMEDIATE; EXCEPTION WHEN unique_violation THEN RAISE WARNING '%', SQLERRM; END $$;
SELECT by_in('id > 0'), by_in('v > 0');
RESET plan_cache_mode;
-- Aggregates of columns, which are read without a slot: with NULLs, of several types, of columns that came later.
CREATE TABLE by_a (id int PRIMARY KEY, s smallint, t text, b bigint, n numeric, f float8, c "char", k bool) USING mixedcc;
INSERT INTO by_a SELECT i, CASE WHEN i % 5 > 0 THEN -i END, CASE WHEN i % 3 > 0 THEN repeat('t', i) END, -i * 10000000000, i / 4.0, -i / 8.0, 'c', i % 2 = 0
    FROM generate_series(1, 200) AS i;
ALTER TABLE by_a ADD COLUMN later int DEFAULT 7, ADD COLUMN none int;
UPDATE by_a SET later = -1 WHERE id = 100;
DELETE FROM by_a WHERE id IN (60, 61, 150);
SELECT by_took('SELECT sum(s), max(t), sum(b), avg(n), min(f), bool_or(k), count(s), count(*) FROM by_a WHERE id BETWEEN 5 AND 190');
SELECT sum(s), length(max(t)), sum(b), avg(n), min(f), bool_or(k), count(s), count(*), sum(later), sum(none), sum(id)
    FROM by_a WHERE id BETWEEN 5 AND 190;
SET mixedcc.enable_bypass = off;
SELECT sum(s), length(max(t)), sum(b), avg(n), min(f), bool_or(k), count(s), count(*), sum(later), sum(none), sum(id)
    FROM by_a WHERE id BETWEEN 5 AND 190;
RESET mixedcc.enable_bypass;
ALTER TABLE by_a DROP COLUMN t;
SELECT sum(b), sum(later), max(f) FROM by_a WHERE id > 5;
-- Rows of this transaction, and those that it deleted.
BEGIN ISOLATION LEVEL SERIALIZABLE;
DELETE FROM by_a WHERE id = 7;
UPDATE by_a SET b = 1 WHERE id = 8;
INSERT INTO by_a VALUES (300, 1);
SELECT sum(b), sum(id), count(*) FROM by_a WHERE id > 5;
ROLLBACK;
SET ROLE by_user;
SELECT mixedcc.reset_bypass();
RESET ROLE;
DROP OWNED BY by_user;
DROP ROLE by_user;
DROP FUNCTION by_in;
DROP TABLE by_t, by_part, by_child, by_parent, by_n, by_i, by_a;
-- Ranges whose bounds and limits are parameters keep one plan, where nothing else depends on them.
CREATE TABLE by_g (a int PRIMARY KEY, v int, i int) USING mixedcc;
INSERT INTO by_g SELECT n, n, n FROM generate_series(1, 5000) AS n;
ANALYZE by_g;
PREPARE g_page (int, int) AS SELECT sum(v) FROM (SELECT v FROM by_g WHERE a >= $1 ORDER BY a LIMIT $2) AS s;
PREPARE g_between (int, int) AS SELECT v FROM by_g WHERE a BETWEEN $1 AND $2;
PREPARE g_update (int, int) AS UPDATE by_g SET v = v + 1 WHERE a > $1 AND a < $2;
PREPARE g_constant (int) AS SELECT v FROM by_g WHERE a >= $1 AND i > 3;
PREPARE g_rest (int, int) AS SELECT v FROM by_g WHERE a >= $1 AND ($2 = 0 OR i = $2) ORDER BY a LIMIT 2;
CREATE FUNCTION by_plans() RETURNS TABLE (name text, generic bigint, custom bigint) LANGUAGE plpgsql AS $$
DECLARE
    s text;
BEGIN
    FOR n IN 1 .. 8 LOOP
        FOREACH s IN ARRAY '{g_page (4990; 20),g_between (1; 3),g_update (5; 8),g_constant (4990),g_rest (3; 0)}'::text[] LOOP
            EXECUTE 'EXECUTE ' || translate(s, ';', ',');
        END LOOP;
    END LOOP;
    RETURN QUERY SELECT p.name, p.generic_plans, p.custom_plans FROM pg_prepared_statements AS p WHERE p.name LIKE 'g\_%' ORDER BY 1;
END $$;
SELECT * FROM by_plans();
EXECUTE g_page (4999, 3);
EXECUTE g_between (5, 7);
CREATE INDEX ON by_g (i);
SELECT * FROM by_plans() WHERE name = 'g_constant';
SET plan_cache_mode = force_custom_plan;
SELECT * FROM by_plans() WHERE name = 'g_page';
RESET plan_cache_mode;
-- An INSERT has no scan, whatever it costs.
SET cpu_operator_cost = 0;
INSERT INTO by_g VALUES (6001, 1, 1);
INSERT INTO by_g VALUES (6002, 1, 1), (6003, 1, 1);
RESET cpu_operator_cost;
SET cpu_tuple_cost = 100;
INSERT INTO by_g VALUES (6004, 1, 1), (6005, 1, 1);
PREPARE g_insert (int) AS INSERT INTO by_g VALUES ($1, 1, 1);
EXECUTE g_insert (6006);
RESET cpu_tuple_cost;
SELECT count(*) FROM by_g WHERE a > 6000;
DEALLOCATE ALL;
DROP FUNCTION by_plans();
DROP TABLE by_g;
-- The planner leaves out a condition that the predicate of its index implies, and the bypass looks the row up by its key.
CREATE TABLE by_part (id int PRIMARY KEY, active bool, n int) USING mixedcc;
INSERT INTO by_part VALUES (1, false, 1), (2, true, 2), (3, true, 3);
CREATE INDEX by_part_active ON by_part (id) WHERE active;
CREATE INDEX by_part_both ON by_part (id, n) WHERE active AND n > 2;
SET enable_seqscan = off;
SET mixedcc.enable_primary_scan = off;
EXPLAIN (COSTS off) SELECT * FROM by_part WHERE id = 1 AND active;
SELECT * FROM by_part WHERE id = 1 AND active;
SELECT * FROM by_part WHERE id = 2 AND active;
SELECT id FROM by_part WHERE id = 1 AND active;
SELECT id, n FROM by_part WHERE id = 2 AND active AND n > 2;
SELECT id, n FROM by_part WHERE id = 3 AND active AND n > 2;
UPDATE by_part SET n = 9 WHERE id = 1 AND active;
DELETE FROM by_part WHERE id = 1 AND active;
SET enable_indexscan = off;
SELECT * FROM by_part WHERE id = 1 AND active;
SELECT * FROM by_part WHERE id = 3 AND active AND n > 2;
RESET enable_indexscan;
RESET enable_seqscan;
RESET mixedcc.enable_primary_scan;
-- A key without an index in memory.
CREATE TABLE by_collated (id text COLLATE "und-x-icu" PRIMARY KEY, active bool) USING mixedcc;
INSERT INTO by_collated VALUES ('a', false), ('b', true);
CREATE INDEX ON by_collated (id) WHERE active;
SET enable_seqscan = off;
SELECT * FROM by_collated WHERE id = 'a' AND active;
SELECT * FROM by_collated WHERE id = 'b' AND active;
-- The predicate comes before conditions that fail for other rows.
CREATE TABLE by_cast (id text COLLATE "und-x-icu" PRIMARY KEY, kind text, val text) USING mixedcc;
INSERT INTO by_cast VALUES ('a', 'text', 'abc'), ('b', 'number', '7');
CREATE INDEX ON by_cast (id) WHERE kind = 'number';
SELECT * FROM by_cast WHERE id = 'a' AND kind = 'number' AND val::int > 5;
SELECT * FROM by_cast WHERE id = 'b' AND kind = 'number' AND val::int > 5;
UPDATE by_cast SET val = 8 WHERE id = 'a' AND kind = 'number' AND val::int > 5;
RESET enable_seqscan;
DROP TABLE by_part, by_collated, by_cast;
-- What a function keeps between calls: after an error, and after the change of a row type.
CREATE TYPE by_pair AS (a int, b int);
CREATE TABLE by_json (id int PRIMARY KEY, j jsonb) USING mixedcc;
INSERT INTO by_json VALUES (1, '{"a": 1, "b": 1000000}');
PREPARE no_row AS SELECT jsonb_populate_record(NULL::int[], j) FROM by_json WHERE id = 1;
EXECUTE no_row;
EXECUTE no_row;
DO $$ BEGIN FOR i IN 1..3 LOOP
    BEGIN
        PERFORM jsonb_populate_record(NULL::int[], j) FROM by_json WHERE id = 1;
    EXCEPTION WHEN datatype_mismatch THEN RAISE NOTICE '%', SQLERRM;
    END;
END LOOP; END $$;
PREPARE a_row AS SELECT jsonb_populate_record(NULL::by_pair, j) FROM by_json WHERE id = 1;
EXECUTE a_row;
ALTER TYPE by_pair ALTER ATTRIBUTE b TYPE text;
EXECUTE a_row;
ALTER TYPE by_pair ADD ATTRIBUTE c int;
EXECUTE a_row;
DEALLOCATE ALL;
DROP TABLE by_json;
DROP TYPE by_pair;

-- Functions of types that users made may call anything: the executor runs them. Operators of enums
-- are built in, and so is what a domain alone is based on.
CREATE TYPE by_mood AS ENUM ('sad', 'ok');
CREATE FUNCTION by_json(by_mood) RETURNS json LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'a cast'; RETURN '1'; END $$;
CREATE CAST (by_mood AS json) WITH FUNCTION by_json(by_mood);
CREATE FUNCTION by_small(int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'a check'; RETURN $1 < 5; END $$;
CREATE DOMAIN by_few AS int CHECK (by_small(VALUE));
CREATE TABLE by_types (id int PRIMARY KEY, m by_mood, f by_few, s text, r text) USING mixedcc;
INSERT INTO by_types VALUES (1, 'ok', 1, '{1,2}', 'ok');
SELECT by_took('SELECT to_jsonb(m) FROM by_types WHERE id = 1');
SELECT by_took('SELECT s::by_few[] FROM by_types WHERE id = 1');
SELECT by_took('SELECT array_position(ARRAY[m], ''ok'') FROM by_types WHERE id = 1');
SELECT by_took('SELECT greatest(m, ''sad'') FROM by_types WHERE id = 1');
SELECT by_took('SELECT ARRAY[m] = ARRAY[m] FROM by_types WHERE id = 1');
SELECT by_took('SELECT m::text, m > ''sad'', m = ANY ((''{'' || r || ''}'')::by_mood[]), r::by_mood, f + 1, to_jsonb(f) FROM by_types WHERE id = 1');
DROP TABLE by_types;
DROP CAST (by_mood AS json);
DROP FUNCTION by_json;
DROP TYPE by_mood;
DROP DOMAIN by_few;
DROP FUNCTION by_small;
-- Deferred additions: a CHECK that calls a user's function is tested in the statement, and what is added is computed once.
CREATE SCHEMA by_app;
SET search_path = by_app, public;
CREATE FUNCTION by_lim() RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 0';
CREATE FUNCTION by_ok(int) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT $1 >= by_lim()';
CREATE TABLE by_acc (id int PRIMARY KEY, b int CHECK (by_app.by_ok(b)), x bigint) USING mixedcc;
INSERT INTO by_acc VALUES (1, 10, 0);
CREATE FUNCTION by_take(i int, n int) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = by_app
    AS 'BEGIN UPDATE by_acc SET b = b - n WHERE id = i; END';
CREATE SEQUENCE by_draws;
RESET search_path;
SET mixedcc.defer_additions = on;
BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT by_app.by_take(1, 8); COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT by_app.by_take(1, 8); COMMIT;
ALTER TABLE by_app.by_acc DROP CONSTRAINT by_acc_b_check;
BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE by_app.by_acc SET x = x + nextval('by_app.by_draws') WHERE id = 1; COMMIT;
SELECT *, (SELECT last_value FROM by_app.by_draws) FROM by_app.by_acc;
RESET mixedcc.defer_additions;
SET client_min_messages = warning;
DROP SCHEMA by_app CASCADE;
RESET client_min_messages;
-- Aggregates that the planner folds away leave one row.
CREATE TABLE by_unit (id int PRIMARY KEY) USING mixedcc;
CREATE TABLE by_folded (id int PRIMARY KEY, x int, unit int) USING mixedcc;
INSERT INTO by_folded SELECT i, i, i FROM generate_series(1, 3) i;
SELECT CASE WHEN false THEN count(*) ELSE 1 END FROM (SELECT x FROM by_folded WHERE id < 10 ORDER BY id LIMIT 5) s;
SELECT CASE WHEN false THEN sum(f.x) ELSE 0 END FROM by_folded f LEFT JOIN by_unit u ON u.id = f.unit WHERE f.id = 5;
WITH c AS (SELECT 1) SELECT coalesce(1, count(*)) FROM by_folded WHERE id = -1;
SELECT CASE WHEN false THEN count(*) ELSE 1 END FROM (SELECT x FROM by_folded WHERE id = 1 FOR UPDATE) s;
-- A CHECK is not computed for no row.
CREATE FUNCTION by_raises(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''called''; END';
ALTER TABLE by_folded ADD CHECK (x > by_raises(1)) NOT VALID;
UPDATE by_folded SET x = 1 WHERE id = -1;
DROP TABLE by_folded, by_unit;
DROP FUNCTION by_raises;
