-- Statements whose way to the tables is unusual.
SET client_min_messages = warning;
-- ON CONFLICT DO UPDATE must not meet a row twice, whether it has inserted or updated it.
CREATE TABLE st_twice (id int PRIMARY KEY, v text) USING mixedcc;
INSERT INTO st_twice VALUES (1, 'one');
INSERT INTO st_twice VALUES (1, 'a'), (1, 'b') ON CONFLICT (id) DO UPDATE SET v = excluded.v;
INSERT INTO st_twice VALUES (2, 'a'), (2, 'b') ON CONFLICT (id) DO UPDATE SET v = excluded.v;
INSERT INTO st_twice VALUES (1, 'a'), (2, 'b') ON CONFLICT (id) DO UPDATE SET v = excluded.v;
SELECT * FROM st_twice ORDER BY id;
-- EXPLAIN of a statement that makes a table.
EXPLAIN (COSTS OFF) CREATE TABLE st_none USING mixedcc AS SELECT * FROM generate_series(1, 3) AS i;
SELECT to_regclass('st_none');
SELECT * FROM run_plan('CREATE TABLE st_made USING mixedcc AS SELECT * FROM generate_series(1, 3) AS i');
SELECT amname, i FROM st_made, pg_class c JOIN pg_am ON pg_am.oid = relam WHERE c.oid = 'st_made'::regclass ORDER BY i;
-- The planner counts what the transaction itself has inserted and deleted.
CREATE FUNCTION st_rows() RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE plan json;
BEGIN
    EXECUTE 'EXPLAIN (FORMAT json) SELECT * FROM st_filled' INTO plan;
    RETURN (plan -> 0 -> 'Plan' ->> 'Plan Rows')::numeric;
END $$;
CREATE TABLE st_filled (i int) USING mixedcc;
BEGIN;
INSERT INTO st_filled SELECT generate_series(1, 20000);
ANALYZE st_filled;
SELECT round(st_rows(), -3);
COMMIT;
SELECT round(st_rows(), -3);
-- A small table that was never analyzed may grow.
CREATE TABLE st_small (id int PRIMARY KEY, v int) USING mixedcc;
INSERT INTO st_small VALUES (1, 1);
SET mixedcc.enable_primary_scan = off;
EXPLAIN (COSTS OFF) SELECT * FROM st_small WHERE id = 1;
RESET mixedcc.enable_primary_scan;
-- A partitioned table is as persistent as its partitions by default.
SET default_table_access_method = mixedcc;
CREATE TABLE st_parent (id int PRIMARY KEY);
CREATE TABLE st_parted (id int REFERENCES st_parent) PARTITION BY LIST (id);
CREATE TABLE st_parted1 PARTITION OF st_parted FOR VALUES IN (1);
INSERT INTO st_parent VALUES (1);
INSERT INTO st_parted VALUES (1);
DELETE FROM st_parent;
-- A TID beyond the table's end.
SELECT currtid2('st_small', '(5,1)');
DROP TABLE st_twice, st_made, st_filled, st_small, st_parent, st_parted;
DROP FUNCTION st_rows;
