-- Tables of every type; large values; dropped, generated and default columns.
CREATE TYPE ct_mood AS ENUM ('sad', 'ok', 'happy');
CREATE TYPE ct_pair AS (x int, y text);
CREATE DOMAIN ct_even AS int CHECK (VALUE % 2 = 0);
CREATE TABLE ct_types (
    id int PRIMARY KEY, b bool, c "char", i2 int2, i8 int8, f4 float4, f8 float8,
    n numeric(20, 5), m money, t text, v varchar(10), ch char(5), nm name, ba bytea,
    d date, tm time, tz timetz, ts timestamp, tsz timestamptz, iv interval,
    u uuid, ip inet, ci cidr, mac macaddr, bi bit(3), vb bit varying,
    js json, jb jsonb, x xml, tv tsvector, tq tsquery, p point, bx box, pl polygon,
    ia int[], ta text[][], r int4range, mr int8multirange, e ct_mood, pr ct_pair,
    dm ct_even, ls pg_lsn, o oid, rc regclass
) USING mixedcc;
INSERT INTO ct_types VALUES (
    1, true, 'z', -7, 9007199254740993, 1.5, -2.25, 12345.67891, '12.34', 'text', 'varchar', 'ch', 'name', '\xdeadbeef',
    '2024-02-29', '12:34:56.789', '12:34:56+02', '2024-02-29 12:34:56', '2024-02-29 12:34:56+00', '1 year 2 days 03:04',
    'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '192.168.0.1/24', '10.0.0.0/8', '08:00:2b:01:02:03', B'101', B'11001',
    '{"a": [1, 2]}', '{"b": {"c": null}}', '<a>b</a>', 'a:1 cat:2', 'a & !b', '(1,2)', '(3,4),(1,2)', '((0,0),(1,1),(2,0))',
    '{1,NULL,3}', '{{a,b},{c,d}}', '[1,10)', '{[1,3),[5,7)}', 'happy', '(4,four)',
    8, '16/B374D848', 12, 'pg_class');
INSERT INTO ct_types (id) VALUES (2);
\x on
SET timezone TO 'UTC';
SELECT * FROM ct_types ORDER BY id;
\x off
UPDATE ct_types SET e = 'sad', ia[2] = 2, pr.y = 'vier', jb = jb || '{"d": 1}' WHERE id = 1;
SELECT id, e, ia, pr, (pr).y, jb, b IS NULL AS nul FROM ct_types ORDER BY id;
UPDATE ct_types a SET t = b.t, e = b.e, pr = b.pr, r = b.r FROM ct_types b WHERE a.id = 2 AND b.id = 1;
SELECT id, t, e, pr, r FROM ct_types ORDER BY id;
INSERT INTO ct_types (id, dm) VALUES (3, 3);
INSERT INTO ct_types (id, v) VALUES (3, 'more than ten');
SELECT count(*) FROM ct_types;

-- Wide rows: many columns, all NULL but the last.
DO $$ BEGIN EXECUTE 'CREATE TABLE ct_wide (' ||
    (SELECT string_agg('c' || i || ' int', ',') FROM generate_series(1, 1000) i) || ') USING mixedcc'; END $$;
INSERT INTO ct_wide (c1000) VALUES (1), (2);
UPDATE ct_wide SET c1 = c1000 * 10;
SELECT c1, c2, c999, c1000 FROM ct_wide ORDER BY c1;
-- A table without a column, and a row of nothing.
CREATE TABLE ct_nothing () USING mixedcc;
INSERT INTO ct_nothing DEFAULT VALUES;
INSERT INTO ct_nothing DEFAULT VALUES;
SELECT count(*) FROM ct_nothing;

-- Large values, that compress and that do not.
CREATE TABLE ct_large (id int PRIMARY KEY, plain text, extern text, b bytea) USING mixedcc;
ALTER TABLE ct_large ALTER extern SET STORAGE EXTERNAL;
INSERT INTO ct_large VALUES (1, repeat('abcdefgh', 131072), repeat('x', 1048576), decode(repeat('00ff', 500000), 'hex'));
INSERT INTO ct_large SELECT 2, string_agg(md5(i::text), ''), 'small', NULL FROM generate_series(1, 32768) i;
SELECT id, length(plain), md5(plain), length(extern), md5(extern), length(b) FROM ct_large ORDER BY id;
UPDATE ct_large SET extern = extern || 'y' WHERE id = 1;
UPDATE ct_large SET id = 3, plain = upper(plain) WHERE id = 2;
SELECT id, length(plain), left(plain, 8), length(extern), right(extern, 2), substr(plain, 1000000, 4) FROM ct_large ORDER BY id;
-- Values that come from TOAST tables of other tables.
CREATE TABLE ct_heap_large AS SELECT 1 AS id, string_agg(md5(i::text), '') AS v FROM generate_series(1, 4000) i;
CREATE TABLE ct_copied USING mixedcc AS SELECT * FROM ct_heap_large;
DROP TABLE ct_heap_large;
SELECT id, length(v), md5(v) FROM ct_copied;
CREATE TABLE ct_heap_copy USING heap AS SELECT * FROM ct_copied;
DROP TABLE ct_copied;
SELECT id, length(v), md5(v) FROM ct_heap_copy;
DROP TABLE ct_heap_copy;
DELETE FROM ct_large;
SELECT count(*) FROM ct_large;

-- Defaults, identity, generated and dropped columns.
CREATE TABLE ct_columns (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int DEFAULT 7, gone text, s serial,
    twice int GENERATED ALWAYS AS (a * 2) STORED, note text NOT NULL DEFAULT 'none', CHECK (a < 100)
) USING mixedcc;
INSERT INTO ct_columns (gone) VALUES ('x'), ('y');
INSERT INTO ct_columns (a, note) VALUES (9, DEFAULT), (DEFAULT, 'n') RETURNING *;
ALTER TABLE ct_columns DROP COLUMN gone;
INSERT INTO ct_columns (a) VALUES (20) RETURNING id, twice;
WITH u AS (UPDATE ct_columns SET a = a + 1 WHERE id <> 2 RETURNING *) SELECT * FROM u ORDER BY id;
INSERT INTO ct_columns (a) VALUES (100);
INSERT INTO ct_columns (note) VALUES (NULL);
INSERT INTO ct_columns (id) VALUES (1);
INSERT INTO ct_columns (twice) VALUES (1);
INSERT INTO ct_columns (id, a) OVERRIDING SYSTEM VALUE VALUES (1, 0);
UPDATE ct_columns SET a = 1000 WHERE id = 2;
SELECT * FROM ct_columns ORDER BY id;
SELECT tableoid::regclass, count(*) FROM ct_columns GROUP BY 1;

-- Inheritance.
CREATE TABLE ct_parent (id int, a text) USING mixedcc;
CREATE TABLE ct_child (extra int) INHERITS (ct_parent) USING mixedcc;
CREATE TABLE ct_child_heap (more int) INHERITS (ct_parent) USING heap;
INSERT INTO ct_parent VALUES (1, 'parent');
INSERT INTO ct_child VALUES (2, 'child', 20);
INSERT INTO ct_child_heap VALUES (3, 'heap', 30);
UPDATE ct_parent SET a = upper(a);
SELECT tableoid::regclass, * FROM ct_parent ORDER BY id;
SELECT * FROM ONLY ct_parent;
DELETE FROM ct_parent WHERE id = 2 RETURNING *;
SELECT * FROM ct_child;
CREATE TABLE ct_like (LIKE ct_columns INCLUDING ALL) USING mixedcc;
INSERT INTO ct_like (a) VALUES (3) RETURNING id, a, twice, note;
DROP TABLE ct_like, ct_parent, ct_child, ct_child_heap, ct_columns, ct_large, ct_nothing, ct_wide, ct_types;
DROP TYPE ct_mood, ct_pair, ct_even;
