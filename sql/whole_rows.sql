-- Whole rows, system columns and other columns that are no plain ones, above every shape of a subquery.
SET client_min_messages = warning;
SET extra_float_digits = 0;
CREATE TABLE wr_t (id int PRIMARY KEY, a int, b text, gone int, c int, d int DEFAULT 6, e int) USING mixedcc;
CREATE TABLE wr_one (id int PRIMARY KEY) USING mixedcc;
CREATE TABLE wr_pair (x int, y int, z text, PRIMARY KEY (x, y)) USING mixedcc;
ALTER TABLE wr_t DROP COLUMN gone;
INSERT INTO wr_t SELECT n, n % 7, 'b' || n, n, 6, 8 FROM generate_series(1, 2500) AS n;
ALTER TABLE wr_t ADD COLUMN late int DEFAULT 5;
INSERT INTO wr_pair SELECT n / 10, n % 10, 'z' || n FROM generate_series(1, 2500) AS n;
INSERT INTO wr_one SELECT generate_series(1, 2500);
ANALYZE wr_t, wr_pair, wr_one;
-- Aggregates over the row of a subquery.
SELECT json_agg(x) FROM (SELECT * FROM wr_t ORDER BY id LIMIT 2) x;
SELECT json_agg(x) FROM (SELECT * FROM wr_t WHERE id = 3) x;
SELECT json_agg(x) FROM (SELECT * FROM wr_t ORDER BY id OFFSET 2498) x;
SELECT json_agg(x), count(x), count(*) FROM (SELECT * FROM wr_t WHERE id BETWEEN 7 AND 9 ORDER BY id) x;
SELECT json_agg(row_to_json(x)) FROM (SELECT id, b FROM wr_t ORDER BY id DESC LIMIT 2 OFFSET 1) x;
SELECT array_agg(x) FROM (SELECT id, a FROM wr_t ORDER BY id LIMIT 3) x;
SELECT count(x), max(x.id) FROM (SELECT * FROM wr_t ORDER BY id LIMIT 2) x;
SELECT count(x.*), min(x.id) FROM (SELECT id FROM wr_t WHERE id > 2 ORDER BY id LIMIT 2 FOR UPDATE) x;
SELECT jsonb_agg(x) FROM (SELECT t, t.id FROM wr_t t ORDER BY id LIMIT 1) x;
SELECT json_agg(x.t) FROM (SELECT t FROM wr_t t ORDER BY id LIMIT 2) x;
SELECT json_agg(x) FROM (SELECT * FROM wr_pair WHERE x = 3 ORDER BY x, y LIMIT 2) x;
SELECT max(x.y), json_agg(x) FROM (SELECT * FROM wr_pair ORDER BY x, y LIMIT 2) x;
SELECT json_agg(x) FROM (SELECT * FROM wr_one ORDER BY id LIMIT 2) x;
-- Of the table itself.
SELECT count(t), count(t.*), json_agg(t) FROM wr_t t WHERE id = 4;
SELECT json_agg(t) FROM wr_t t WHERE id BETWEEN 5 AND 6;
SELECT max(t::text) FROM wr_t t WHERE id < 3;
SELECT count(DISTINCT tableoid), max(tableoid::regclass::text) FROM wr_t WHERE id BETWEEN 5 AND 10;
SELECT max(x.tableoid::regclass::text) FROM (SELECT tableoid, id FROM wr_t ORDER BY id LIMIT 3) x;
SELECT count(x.ctid), count(x.xmin) FROM (SELECT ctid, xmin, id FROM wr_t ORDER BY id LIMIT 3) x;
SELECT t, t.id FROM wr_t t WHERE id = 8;
SELECT t FROM wr_t t ORDER BY id LIMIT 2 OFFSET 3;
SELECT row_to_json(t), tableoid::regclass FROM wr_t t WHERE id = 8;
-- Rows that are compared, NULL or not.
SELECT count(*) FROM wr_t t WHERE t IS NOT NULL;
SELECT id FROM wr_t t WHERE t = ROW(2, 2, 'b2', 2, 6, 8, 5)::wr_t AND id = 2;
SELECT id FROM wr_t t WHERE t = (SELECT u FROM wr_t u WHERE id = 9);
SELECT count(*) FROM wr_pair p WHERE (x, y) > (248, 3) AND p IS DISTINCT FROM NULL;
SELECT json_agg(x) FROM (SELECT * FROM wr_pair WHERE (x, y) >= (249, 8) ORDER BY x, y LIMIT 3) x;
-- Joins, LATERAL, CTEs, set operations, windows.
SELECT t.id, l.r FROM wr_t t, LATERAL (SELECT json_agg(p) AS r FROM (SELECT * FROM wr_pair WHERE x = t.id ORDER BY y LIMIT 2) p) l WHERE t.id < 3 ORDER BY 1;
SELECT (SELECT json_agg(x) FROM (SELECT * FROM wr_t WHERE id >= o.id ORDER BY id LIMIT 1) x) FROM wr_t o WHERE id IN (11, 12) ORDER BY id;
WITH w AS MATERIALIZED (SELECT * FROM wr_t ORDER BY id LIMIT 2) SELECT json_agg(w) FROM w;
WITH w AS (SELECT * FROM wr_t ORDER BY id LIMIT 2) SELECT count(w), json_agg(w) FROM w;
SELECT json_agg(x) FROM (SELECT id FROM wr_t WHERE id < 3 UNION ALL SELECT x FROM wr_pair WHERE x = 7 AND y = 1) x;
SELECT json_agg(x) FROM (SELECT id, row_number() OVER (ORDER BY id DESC) AS n, lag(t) OVER (ORDER BY id) AS l FROM wr_t t WHERE id < 3 ORDER BY id) x;
-- Writes that return whole rows.
INSERT INTO wr_t VALUES (3001, 1, 'new', 2, 6, 8) RETURNING wr_t, row_to_json(wr_t), tableoid::regclass;
UPDATE wr_t SET a = 9 WHERE id = 3001 RETURNING wr_t, wr_t.*, wr_t IS NULL;
WITH d AS (DELETE FROM wr_t t WHERE id = 3001 RETURNING t) SELECT json_agg(d) FROM d;
WITH u AS (UPDATE wr_t SET a = a + 1 WHERE id BETWEEN 20 AND 22 RETURNING *) SELECT json_agg(u ORDER BY id) FROM u;
MERGE INTO wr_t t USING (SELECT p FROM wr_pair p WHERE x = 1) s ON t.id = (s.p).y + 100 WHEN MATCHED THEN UPDATE SET b = s.p::text;
SELECT json_agg(x) FROM (SELECT id, b FROM wr_t WHERE id > 107 ORDER BY id LIMIT 3) x;
-- Plans that are kept.
SET plan_cache_mode = force_generic_plan;
PREPARE wr_p (int, int) AS SELECT json_agg(x) FROM (SELECT * FROM wr_t WHERE id >= $1 ORDER BY id LIMIT $2) x;
EXECUTE wr_p (1, 2);
EXECUTE wr_p (2499, 5);
EXECUTE wr_p (1, 0);
EXECUTE wr_p (NULL, 1);
PREPARE wr_q (int) AS SELECT t, tableoid::regclass FROM wr_t t WHERE id = $1;
EXECUTE wr_q (1);
EXECUTE wr_q (0);
DEALLOCATE ALL;
RESET plan_cache_mode;
DROP TABLE wr_t, wr_pair, wr_one;
