-- Large values are compressed in their rows as heap does it, and are the same values everywhere.
SET client_min_messages = warning;
SELECT CASE WHEN 'lz4' = ANY (enumvals) THEN 'lz4' ELSE 'pglz' END AS other FROM pg_settings WHERE name = 'default_toast_compression' \gset
-- Text that no method compresses.
CREATE FUNCTION lv_noise(seed int, n int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT left(string_agg(translate(encode(sha512((seed || ' ' || i)::bytea), 'base64'), E'\n=', ''), '' ORDER BY i), n)
    FROM generate_series(1, n / 84 + 1) i $$;
-- Like JSON.
CREATE FUNCTION lv_json(seed int, n int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT left(string_agg(format('{"id": %s, "name": "customer %s", "active": true, "balance": %s}', i, seed, i * seed), ', ' ORDER BY i), n)
    FROM generate_series(1, n / 40 + 1) i $$;
-- Each kind of storage in the one method and in the other, on heap and here.
CREATE PROCEDURE lv_make(method text, other text) LANGUAGE plpgsql AS $$ BEGIN
    EXECUTE format('CREATE TABLE lv_%s (id int PRIMARY KEY, n int, extended text, packed text COMPRESSION pglz, other text COMPRESSION %s,
        main text, plain text, extern text) USING %1$s', method, other);
    EXECUTE format('ALTER TABLE lv_%s ALTER main SET STORAGE main, ALTER plain SET STORAGE plain, ALTER extern SET STORAGE external', method);
    EXECUTE format('INSERT INTO lv_%s (id, n, extended) VALUES (1, 0, lv_json(1, 1000000)), (2, 0, lv_noise(2, 1000000)), (3, 0, ''short'')', method);
    EXECUTE format('INSERT INTO lv_%s (id, n, packed) VALUES (4, 0, lv_json(4, 4000)), (5, 0, lv_noise(5, 4000)), (6, 0, lv_json(6, 1900))', method);
    EXECUTE format('INSERT INTO lv_%s (id, n, other) VALUES (7, 0, lv_json(7, 1000000)), (8, 0, lv_noise(8, 4000))', method);
    EXECUTE format('INSERT INTO lv_%s (id, n, main) VALUES (9, 0, lv_json(9, 5000)), (10, 0, lv_noise(10, 5000))', method);
    EXECUTE format('INSERT INTO lv_%s (id, n, plain) VALUES (11, 0, lv_json(11, 5000))', method);
    EXECUTE format('INSERT INTO lv_%s (id, n, extern) VALUES (12, 0, lv_json(12, 500000))', method);
    -- Two values, of which the larger one is enough; a row that is so long because of what is not compressed.
    EXECUTE format('INSERT INTO lv_%s (id, n, extended, packed) VALUES (13, 0, lv_json(13, 1500), lv_json(13, 1900))', method);
    EXECUTE format('INSERT INTO lv_%s (id, n, plain, packed) VALUES (14, 0, lv_json(14, 3000), lv_json(14, 300))', method);
END $$;
CALL lv_make('heap', :'other');
CALL lv_make('mixedcc', :'other');
CREATE VIEW lv_compared AS SELECT id, m = h AS same,
    (SELECT array_agg(pg_column_compression(v) IS NOT DISTINCT FROM pg_column_compression(w) AND md5(v) IS NOT DISTINCT FROM md5(w) ORDER BY o)
        FROM (VALUES (1, m.extended, h.extended), (2, m.packed, h.packed), (3, m.other, h.other), (4, m.main, h.main), (5, m.plain, h.plain),
            (6, m.extern, h.extern)) c (o, v, w)) AS as_heap
    FROM lv_mixedcc m FULL JOIN lv_heap h USING (id);
SELECT * FROM lv_compared ORDER BY id;
SELECT id, length(v) AS length, pg_column_compression(v) IS NOT NULL AS compressed, pg_column_size(v) * 100 / length(v) < 50 AS small
    FROM lv_mixedcc, LATERAL coalesce(extended, packed, other, main, plain, extern) v ORDER BY id;
SELECT DISTINCT pg_column_compression(extended), pg_column_compression(packed), pg_column_compression(other) = :'other' AS other FROM lv_mixedcc ORDER BY 1, 2, 3;
-- An update of another column takes a value over as it is, also if new ones would be compressed in another way, or not at all.
ALTER TABLE lv_mixedcc ALTER extended SET COMPRESSION :other, ALTER packed SET STORAGE external, ALTER extern SET STORAGE extended;
ALTER TABLE lv_heap ALTER extended SET COMPRESSION :other, ALTER packed SET STORAGE external, ALTER extern SET STORAGE extended;
CREATE TABLE lv_before AS SELECT id, pg_column_size(extended) AS a, pg_column_size(packed) AS b, pg_column_size(other) AS c, pg_column_size(main) AS d,
    pg_column_size(plain) AS e, pg_column_size(extern) AS f FROM lv_mixedcc;
UPDATE lv_mixedcc SET n = n + 1;
UPDATE lv_heap SET n = n + 1;
UPDATE lv_mixedcc SET n = n + 1 WHERE id = 1;
UPDATE lv_mixedcc SET id = id WHERE id = 7;
DO $$ BEGIN FOR i IN 1..14 LOOP UPDATE lv_mixedcc SET n = n + 1 WHERE id = i; END LOOP; END $$;
SELECT id, as_heap FROM lv_compared WHERE NOT true = ALL (as_heap);
SELECT count(*) AS kept FROM lv_before o JOIN lv_mixedcc m ON o = ROW(m.id, pg_column_size(extended), pg_column_size(packed), pg_column_size(other),
    pg_column_size(main), pg_column_size(plain), pg_column_size(extern))::lv_before;
-- New values follow the new options.
UPDATE lv_mixedcc SET extended = lv_json(1, 5000), packed = lv_json(2, 5000), extern = lv_json(3, 5000) WHERE id = 3
    RETURNING pg_column_compression(extended) = :'other' AS extended, pg_column_compression(packed) AS packed, pg_column_compression(extern) AS extern;
SELECT pg_column_compression(extended) = :'other' AS extended, pg_column_compression(packed) AS packed, pg_column_compression(extern) AS extern
    FROM lv_mixedcc WHERE id = 3;
-- A row that becomes long has values compressed that were not; a short one does not. The limit is the table's.
CREATE TABLE lv_target (id int PRIMARY KEY, a text, b text) USING mixedcc WITH (toast_tuple_target = 500);
INSERT INTO lv_target VALUES (1, lv_json(1, 1000), 'x'), (2, lv_json(2, 1000), lv_json(2, 1100));
UPDATE lv_target SET b = lv_json(1, 1200) WHERE id = 1;
SELECT id, pg_column_compression(a) AS a, pg_column_compression(b) AS b FROM lv_target ORDER BY id;
ALTER TABLE lv_target SET (toast_tuple_target = 4000);
INSERT INTO lv_target VALUES (3, lv_json(3, 1000), lv_json(3, 2500)), (4, lv_json(4, 1000), lv_json(4, 3500));
SELECT id, pg_column_compression(a) AS a, pg_column_compression(b) AS b FROM lv_target WHERE id > 2 ORDER BY id;
DROP TABLE lv_target;
-- What comes compressed stays so; what heap has elsewhere comes into the row.
CREATE TABLE lv_copy USING mixedcc AS SELECT * FROM lv_heap;
SELECT count(*) FROM lv_copy c JOIN lv_heap h USING (id) WHERE c = h AND pg_column_compression(c.extended) IS NOT DISTINCT FROM pg_column_compression(h.extended)
    AND pg_column_compression(c.other) IS NOT DISTINCT FROM pg_column_compression(h.other) AND pg_column_compression(c.main) IS NOT DISTINCT FROM pg_column_compression(h.main);
-- To heap and back.
CREATE TABLE lv_shown AS SELECT id, pg_column_compression(extended) AS a, pg_column_compression(packed) AS b, pg_column_compression(other) AS c,
    pg_column_compression(main) AS d, md5(m::text) AS of FROM lv_mixedcc m;
ALTER TABLE lv_mixedcc SET ACCESS METHOD heap;
ALTER TABLE lv_mixedcc SET ACCESS METHOD mixedcc;
SELECT count(*) AS kept FROM lv_shown s JOIN lv_mixedcc m ON s = ROW(m.id, pg_column_compression(extended), pg_column_compression(packed),
    pg_column_compression(other), pg_column_compression(main), md5(m::text))::lv_shown;
CREATE TABLE lv_other USING heap AS SELECT * FROM lv_mixedcc;
SELECT count(*) FROM lv_other o JOIN lv_mixedcc m ON o = m;
DROP TABLE lv_copy, lv_other, lv_shown, lv_before;
-- Values whose storage is changed stay as they are, also if they are written again, until a rewrite.
CREATE TABLE lv_late (id int PRIMARY KEY, n int, v text) USING mixedcc;
ALTER TABLE lv_late ALTER v SET STORAGE external;
INSERT INTO lv_late SELECT i, 0, lv_json(i, 5000) FROM generate_series(1, 3) i;
ALTER TABLE lv_late ALTER v SET STORAGE extended;
UPDATE lv_late SET n = 1 WHERE id = 1;
UPDATE lv_late SET v = v || '' WHERE id = 2;
UPDATE lv_late SET v = v || '!' WHERE id = 3;
SELECT id, length(v), pg_column_compression(v) FROM lv_late ORDER BY id;
CLUSTER lv_late USING lv_late_pkey;
SELECT id, length(v), pg_column_compression(v), v LIKE lv_json(id, 5000) || '%' AS same FROM lv_late ORDER BY id;
DROP TABLE lv_late;
-- Keys: in the primary index, by their bytes and by a collation; in B-trees and hash indexes; of expressions.
CREATE PROCEDURE lv_keys(collation_ text, key text) LANGUAGE plpgsql AS $$
DECLARE v text := lv_json(5, 20000); found int; refused int := 0;
BEGIN
    EXECUTE format('CREATE TABLE lv_key (v text COLLATE %I, n int, other text) USING mixedcc', collation_);
    EXECUTE format(key);
    INSERT INTO lv_key SELECT lv_json(i, 20000), i, lv_json(i, 3000) FROM generate_series(1, 20) i;
    FOR way IN 1..2 LOOP
        BEGIN
            -- A value that is compressed already, and one that is not.
            IF way = 1 THEN INSERT INTO lv_key SELECT v.v, 0 FROM lv_key v WHERE n = 5; ELSE INSERT INTO lv_key VALUES (v, 0); END IF;
        EXCEPTION WHEN unique_violation OR exclusion_violation THEN refused := refused + 1;
        END;
    END LOOP;
    INSERT INTO lv_key VALUES (v, 0) ON CONFLICT DO NOTHING;
    UPDATE lv_key SET n = n + 100 WHERE lv_key.v = lv_json(5, 20000);
    UPDATE lv_key SET v = lv_json(7, 20000), n = n + 1000 WHERE n = 7;
    UPDATE lv_key k SET v = k.v || 'x' WHERE n = 8;
    DELETE FROM lv_key WHERE lv_key.v = lv_json(9, 20000);
    INSERT INTO lv_key VALUES (lv_json(9, 20000), 9);
    SET LOCAL enable_seqscan = off;
    SELECT sum(k.n) INTO found FROM generate_series(1, 21) i JOIN lv_key k ON k.v = lv_json(i, 20000);
    RAISE WARNING '% refused, sum % of %, first %, last %, groups %', refused, found, (SELECT sum(n) FROM lv_key), (SELECT left(min(k.v), 30) FROM lv_key k),
        (SELECT length(max(k.v)) FROM lv_key k), (SELECT count(DISTINCT k.v) FROM lv_key k);
    DROP TABLE lv_key;
END $$;
SET client_min_messages = notice;
CALL lv_keys('C', 'ALTER TABLE lv_key ADD PRIMARY KEY (v)');
CALL lv_keys('ucs_basic', 'ALTER TABLE lv_key ADD PRIMARY KEY (v) WITH (fillfactor = 80)');
CALL lv_keys('default', 'ALTER TABLE lv_key ADD PRIMARY KEY (v)');
CALL lv_keys('C', 'CREATE UNIQUE INDEX ON lv_key (v)');
CALL lv_keys('default', 'CREATE UNIQUE INDEX ON lv_key (v)');
CALL lv_keys('C', 'CREATE UNIQUE INDEX ON lv_key (md5(v))');
CALL lv_keys('C', 'ALTER TABLE lv_key ADD EXCLUDE USING hash (v WITH =)');
SET client_min_messages = warning;
-- SERIALIZABLE: ranges of such keys, and their partitions.
CREATE TABLE lv_part (v text PRIMARY KEY, n int) USING mixedcc WITH (mixedcc.partitions = 4, mixedcc.partition_by = 'v');
INSERT INTO lv_part SELECT lv_json(i, 3000 * i), i FROM generate_series(1, 20) i;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT n FROM lv_part WHERE v = lv_json(17, 51000);
SELECT count(*), sum(n) FROM lv_part WHERE v >= lv_json(1, 3000);
UPDATE lv_part SET n = n + 1 WHERE v = lv_json(3, 9000) RETURNING n, length(v);
UPDATE lv_part SET v = v || '!' WHERE v = lv_json(4, 12000) RETURNING n, length(v), v = lv_json(4, 12000) || '!' AS right;
DELETE FROM lv_part WHERE v = lv_json(5, 15000) RETURNING n, pg_column_compression(v);
INSERT INTO lv_part VALUES (lv_json(3, 9000), 100) ON CONFLICT (v) DO UPDATE SET n = lv_part.n + excluded.n RETURNING n, length(v);
COMMIT;
SELECT count(*) FROM lv_part p WHERE EXISTS (SELECT FROM lv_part q WHERE q.v = p.v);
ALTER TABLE lv_part SET (mixedcc.partitions = 3);
SELECT count(*), sum(n) FROM lv_part WHERE v IN (SELECT lv_json(i, 3000 * i) FROM generate_series(1, 20) i);
CREATE TABLE lv_range (v text COLLATE "C", n int) USING mixedcc WITH (mixedcc.partition_by = 'v', mixedcc.partition_method = 'range', mixedcc.bounds = 'b, c');
INSERT INTO lv_range SELECT chr(96 + i % 4 + 1) || lv_json(i, 9000), i FROM generate_series(0, 11) i;
SELECT partition, rows FROM mixedcc.partitions WHERE "table" = 'lv_range'::regclass ORDER BY 1;
DROP TABLE lv_part, lv_range;
-- Triggers, RETURNING, rows as a whole, ON CONFLICT, MERGE, foreign keys.
CREATE TABLE lv_log (what text, old text, new text, same boolean);
CREATE FUNCTION lv_watch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO lv_log VALUES (TG_WHEN || ' ' || TG_OP, md5(OLD.v), md5(NEW.v), OLD.v = NEW.v);
    IF TG_WHEN = 'BEFORE' THEN IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; NEW.b := NEW.b + 1; END IF;
    RETURN NEW;
END $$;
CREATE TABLE lv_t (id int PRIMARY KEY, v text, b int DEFAULT 0, hash text GENERATED ALWAYS AS (md5(v)) STORED, CHECK (length(v) < 60000)) USING mixedcc;
CREATE TRIGGER before BEFORE INSERT OR UPDATE OR DELETE ON lv_t FOR EACH ROW EXECUTE FUNCTION lv_watch();
CREATE TRIGGER after AFTER INSERT OR UPDATE OR DELETE ON lv_t FOR EACH ROW EXECUTE FUNCTION lv_watch();
INSERT INTO lv_t (id, v) VALUES (1, lv_json(1, 50000)), (2, lv_noise(2, 50000)) RETURNING id, length(v), hash = md5(v) AS hashed, b;
UPDATE lv_t SET b = 10 WHERE id = 1 RETURNING length(v), hash = md5(lv_json(1, 50000)) AS hashed, b, pg_column_compression(v);
UPDATE lv_t SET v = v || '!' RETURNING id, right(v, 2), hash = md5(v) AS hashed, lv_t = lv_t AS itself;
INSERT INTO lv_t (id, v) VALUES (1, lv_json(3, 50000)) ON CONFLICT (id) DO UPDATE SET v = excluded.v, b = length(lv_t.v) RETURNING b, hash = md5(lv_json(3, 50000)) AS hashed;
MERGE INTO lv_t USING (VALUES (1, 'x'), (7, lv_json(7, 40000))) n (id, v) ON lv_t.id = n.id
    WHEN MATCHED THEN UPDATE SET v = left(lv_t.v, 40000) || n.v WHEN NOT MATCHED THEN INSERT (id, v) VALUES (n.id, n.v);
UPDATE lv_t SET v = repeat(v, 2) WHERE id = 7;
DELETE FROM lv_t WHERE id = 2 RETURNING v = lv_noise(2, 50000) || '!' AS right, (lv_t).id, md5(lv_t::text) = md5(ROW(id, v, b, hash)::lv_t::text) AS whole;
SELECT what, old = lag(new) OVER () AS follows, old IS NULL AS inserted, same FROM lv_log;
SELECT id, length(v), hash = md5(v) AS hashed, pg_column_compression(v) FROM lv_t ORDER BY id;
-- Aggregates, sorts and joins of them.
INSERT INTO lv_t (id, v) SELECT i, lv_json(i % 3, 20000) FROM generate_series(10, 30) i;
SELECT count(DISTINCT v), min(length(v)), left(max(v), 5), md5(string_agg(v, '' ORDER BY id)) = (SELECT md5(string_agg(lv_json(i % 3, 20000), '' ORDER BY i))
    FROM generate_series(10, 30) i) AS right FROM lv_t WHERE id >= 10;
SELECT md5(v) = md5(lv_json(min(id) % 3, 20000)) AS right, count(*) FROM lv_t WHERE id >= 10 GROUP BY v ORDER BY min(id);
SELECT count(*) FROM lv_t a JOIN lv_t b USING (v) WHERE a.id >= 10;
SELECT max(v) = (SELECT max(lv_json(i, 20000)) FROM generate_series(0, 2) i) AS right FROM lv_t WHERE id BETWEEN 10 AND 30;
-- A parent's large key.
CREATE TABLE lv_parent (v text PRIMARY KEY, n int) USING mixedcc;
CREATE TABLE lv_child (v text REFERENCES lv_parent ON UPDATE CASCADE ON DELETE CASCADE, n int) USING mixedcc;
INSERT INTO lv_parent SELECT lv_json(i, 40000), i FROM generate_series(1, 5) i;
INSERT INTO lv_child SELECT lv_json(i % 5 + 1, 40000), i FROM generate_series(1, 20) i;
INSERT INTO lv_child VALUES ('none');
UPDATE lv_parent SET n = 0 WHERE v = lv_json(1, 40000);
UPDATE lv_parent SET v = lv_json(2, 40000) WHERE n = 2;
UPDATE lv_parent SET v = 'new' WHERE n = 3;
DELETE FROM lv_parent WHERE v = lv_json(4, 40000);
SELECT length(c.v), count(*) FROM lv_child c JOIN lv_parent p USING (v) GROUP BY c.v ORDER BY 1, 2;
DROP TABLE lv_child, lv_parent, lv_t, lv_log;
DROP FUNCTION lv_watch;
-- Their memory is that of what is stored, and a savepoint gives it back.
CREATE TABLE lv_bytes (id int PRIMARY KEY, n int, v text) USING mixedcc;
INSERT INTO lv_bytes SELECT i, 0, repeat('x', 100000) FROM generate_series(1, 100) i;
SELECT sum(bytes) < 400000 AS small FROM mixedcc.partitions WHERE "table" = 'lv_bytes'::regclass;
BEGIN;
SAVEPOINT s;
UPDATE lv_bytes SET v = lv_json(id, 200000);
ROLLBACK TO s;
SELECT count(*), count(DISTINCT md5(v)) FROM lv_bytes WHERE length(v) = 100000;
UPDATE lv_bytes SET n = 1;
COMMIT;
SELECT count(*), min(pg_column_compression(v)), max(pg_column_size(v)) < 2000 AS small FROM lv_bytes WHERE n = 1;
DROP TABLE lv_bytes;
-- Values of other types: arrays, JSON, composites, domains, bytea, ranges.
CREATE TYPE lv_pair AS (a text, b int[]);
CREATE DOMAIN lv_domain AS text CHECK (length(VALUE) > 3);
CREATE TABLE lv_types (id int PRIMARY KEY, a int[], j jsonb, p lv_pair, d lv_domain, b bytea, t tsvector, m int4multirange) USING mixedcc;
INSERT INTO lv_types SELECT 1, array_agg(i), jsonb_object_agg('key ' || i, repeat('v', 20)), ROW(lv_json(1, 9000), array_agg(i % 3))::lv_pair, lv_json(2, 9000),
    decode(repeat('00ff', 9000), 'hex'), to_tsvector('simple', string_agg('word' || i, ' ')), range_agg(int4range(2 * i, 2 * i + 1)) FROM generate_series(1, 2000) i;
SELECT count(*) FROM lv_types, LATERAL (VALUES (pg_column_compression(a)), (pg_column_compression(j)), (pg_column_compression(p)), (pg_column_compression(d)),
    (pg_column_compression(b)), (pg_column_compression(m))) c (v) WHERE v = 'pglz';
UPDATE lv_types SET id = 2;
SELECT a[1999], j ->> 'key 77' = repeat('v', 20) AS j, length((p).a), (p).b[5], right(d, 3), get_byte(b, 17999), length(t), m @> 4000 AS m FROM lv_types
    WHERE a @> ARRAY[7] AND j ? 'key 1' AND (p).b = a || '{}' IS FALSE AND d LIKE '{"id"%' AND t @@ 'word5';
CREATE INDEX ON lv_types USING gin (a);
CREATE INDEX ON lv_types USING gin (j);
CREATE INDEX ON lv_types USING gist (t);
CREATE INDEX ON lv_types USING brin (d);
SET enable_seqscan = off;
SELECT id FROM lv_types WHERE a @> ARRAY[7, 1999];
SELECT id FROM lv_types WHERE j @> jsonb_build_object('key 3', repeat('v', 20));
SELECT id FROM lv_types WHERE t @@ 'word1'::tsquery;
SELECT id FROM lv_types WHERE d >= '{';
RESET enable_seqscan;
DROP TABLE lv_types;
DROP TYPE lv_pair;
DROP DOMAIN lv_domain;
-- An addition of the same transaction makes the row so large that another value is compressed, which
-- is the same value.
CREATE TABLE lv_added (id int PRIMARY KEY, doc text, log text) USING mixedcc;
INSERT INTO lv_added VALUES (1, repeat('abc ', 400), lv_noise(1, 300));
SET mixedcc.defer_additions = on;
BEGIN ISOLATION LEVEL SERIALIZABLE;
UPDATE lv_added SET log = log || lv_noise(2, 150) WHERE id = 1 RETURNING length(doc);
UPDATE lv_added SET log = log || 'x' WHERE id = 1 RETURNING length(doc);
COMMIT;
RESET mixedcc.defer_additions;
SELECT length(doc), pg_column_compression(doc), length(log) FROM lv_added;
DROP TABLE lv_added;
DROP VIEW lv_compared;
DROP TABLE lv_heap, lv_mixedcc;
DROP PROCEDURE lv_make, lv_keys;
DROP FUNCTION lv_noise, lv_json;

-- Keys that are too long for an index tuple: index-only scans, and the planner's look at an end.
CREATE TABLE lv_long (k bytea PRIMARY KEY, n int) USING mixedcc;
INSERT INTO lv_long SELECT int4send(i), i FROM generate_series(1, 1000) i;
ANALYZE lv_long;
INSERT INTO lv_long SELECT '\xff'::bytea || string_agg(sha512((i + j)::text::bytea), ''::bytea), j
    FROM generate_series(1, 150) i, generate_series(1, 3) j GROUP BY j;
SELECT count(*) FROM lv_long WHERE k > '\xfe';
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET mixedcc.enable_primary_scan = off;
SET mixedcc.enable_bypass = off;
EXPLAIN (COSTS OFF) SELECT md5(k), length(k) FROM lv_long WHERE k > '\x000003e7' ORDER BY k;
SELECT length(k), md5(k) = md5((SELECT k FROM lv_long o WHERE o.k = t.k AND o.n > 0)) AS same
    FROM lv_long t WHERE k > '\x000003e6' ORDER BY k;
RESET enable_seqscan;
RESET enable_bitmapscan;
RESET mixedcc.enable_primary_scan;
RESET mixedcc.enable_bypass;
DROP TABLE lv_long;
