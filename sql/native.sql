-- Native access by the primary key.
CREATE TABLE na_acc (id int PRIMARY KEY, owner text NOT NULL DEFAULT 'nobody', bal bigint NOT NULL DEFAULT 0, note text) USING mixedcc
    WITH (mixedcc.partitions = 4);
INSERT INTO na_acc SELECT g, 'o' || g, 100 * g, NULL FROM generate_series(1, 10) g;

SELECT mixedcc.get(NULL::na_acc, 3);
SELECT (mixedcc.get(NULL::na_acc, 3::bigint)).bal, (mixedcc.get(NULL::na_acc, '4')).owner, mixedcc.get(NULL::na_acc, 3.0) IS NOT DISTINCT FROM mixedcc.get(NULL::na_acc, 3) AS numeric_key;
SELECT mixedcc.get(NULL::na_acc, 99) IS NULL AS absent, mixedcc.get(NULL::na_acc, NULL::int) IS NULL AS null_key;
SELECT mixedcc.set(NULL::na_acc, 'note', 'hello'::text, 3), mixedcc.set(NULL::na_acc, 'note', 'literal', 4), mixedcc.set(NULL::na_acc, 'bal', 7, 5), mixedcc.set(NULL::na_acc, 'bal', 7, 99);
SELECT mixedcc.set(NULL::na_acc, 'note', NULL::text, 3);
SELECT mixedcc.add(NULL::na_acc, 'bal', 5::bigint, 3), mixedcc.add(NULL::na_acc, 'bal', 5, 3), mixedcc.add(NULL::na_acc, 'bal', 1.5, 3), mixedcc.add(NULL::na_acc, 'bal', 5::bigint, 99);
SELECT mixedcc.remove(NULL::na_acc, 10), mixedcc.remove(NULL::na_acc, 10);
SELECT mixedcc.put(ROW(6, 'six', 66, 'put')::na_acc), mixedcc.put(ROW(99, 'six', 66, 'put')::na_acc);
SELECT mixedcc.insert(ROW(11, 'new', 1, NULL)::na_acc);
SELECT * FROM na_acc ORDER BY id;

-- Each call sees what the calls before it have done, in one statement too.
SELECT sum(mixedcc.add(NULL::na_acc, 'bal', 1::bigint, 1)::int) FROM generate_series(1, 5);
SELECT bal FROM na_acc WHERE id = 1;
SELECT i, (mixedcc.get(NULL::na_acc, 2)).bal, mixedcc.add(NULL::na_acc, 'bal', 1::bigint, 2) FROM generate_series(1, 3) i;

-- A rule that says INSTEAD NOTHING counts as long as it is there.
SELECT mixedcc.insert(ROW(12, 'rule', 1, NULL)::na_acc);
CREATE RULE na_rule AS ON DELETE TO na_acc DO INSTEAD NOTHING;
SELECT mixedcc.remove(NULL::na_acc, 12), mixedcc.remove(NULL::na_acc, 12);
DROP RULE na_rule ON na_acc;
ALTER TABLE na_acc ADD CONSTRAINT na_check CHECK (bal >= 0);
SELECT mixedcc.remove(NULL::na_acc, 12), mixedcc.remove(NULL::na_acc, 12);
ALTER TABLE na_acc DROP CONSTRAINT na_check;

-- A statement compares keys as the key's index does, whatever operators the search path has.
CREATE SCHEMA na_first;
CREATE FUNCTION na_first.yes(int, int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true';
CREATE OPERATOR na_first.= (FUNCTION = na_first.yes, LEFTARG = int, RIGHTARG = int);
ALTER TABLE na_acc ADD CONSTRAINT na_check CHECK (bal >= 0);
BEGIN;
SET LOCAL search_path = na_first, pg_catalog, public;
SELECT mixedcc.set(NULL::na_acc, 'note', 'one'::text, 2), mixedcc.put(ROW(3, 'o3', 312, 'put')::na_acc), mixedcc.remove(NULL::na_acc, 4);
SELECT count(*), count(*) FILTER (WHERE note = 'one') AS one, count(*) FILTER (WHERE note = 'put') AS put FROM na_acc;
ROLLBACK;
ALTER TABLE na_acc DROP CONSTRAINT na_check;
DROP OPERATOR na_first.= (int, int);
DROP FUNCTION na_first.yes;
DROP SCHEMA na_first;

-- Rows of a domain fulfil its constraints.
CREATE DOMAIN na_rich AS na_acc CHECK ((VALUE).bal >= 300);
CREATE DOMAIN na_any AS na_acc NOT NULL;
SELECT mixedcc.get(NULL::na_rich, 3), mixedcc.get(NULL::na_rich, 99) IS NULL AS absent;
SELECT mixedcc.get(NULL::na_rich, 1);
SELECT count(*) FROM mixedcc.get_each(NULL::na_rich, ARRAY[3, 4]);
SELECT count(*) FROM mixedcc.get_each(NULL::na_rich, ARRAY[3, 1]);
SELECT count(*) FROM mixedcc.range_scan(NULL::na_rich, 3, 4);
SELECT count(*) FROM mixedcc.range_scan(NULL::na_rich, 1, 4);
SELECT mixedcc.get(mixedcc.get(NULL::na_acc, 3)::na_any, 1) IS NULL AS absent;
SELECT mixedcc.get(mixedcc.get(NULL::na_acc, 3)::na_any, 99);
SELECT mixedcc.put(ROW(3, 'o3', 299, 'poor')::na_rich);
SELECT mixedcc.put(ROW(3, 'o3', 310, 'rich')::na_rich), mixedcc.get_value(NULL::bigint, NULL::na_rich, 'bal', 1);
ALTER DOMAIN na_rich ADD CHECK ((VALUE).bal >= 900);
SELECT mixedcc.get(NULL::na_rich, 3);
DROP DOMAIN na_rich, na_any;

-- Batches.
SELECT * FROM mixedcc.get_each(NULL::na_acc, ARRAY[5, 1, 99, NULL, 5]);
SELECT mixedcc.add_each(NULL::na_acc, 'bal', ARRAY[1, 2, 3]::bigint[], ARRAY[7, 7, 99]), mixedcc.add_each(NULL::na_acc, 'bal', NULL::bigint[], '{}'::int[]);
SELECT bal FROM na_acc WHERE id = 7;

-- In plpgsql they are simple expressions.
CREATE FUNCTION na_move(a int, b int, amount bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE r na_acc; done boolean;
BEGIN
    r := mixedcc.get(NULL::na_acc, a);
    IF r.bal < amount THEN RETURN false; END IF;
    done := mixedcc.add(NULL::na_acc, 'bal', -amount, a);
    done := mixedcc.add(NULL::na_acc, 'bal', amount, b);
    RETURN (mixedcc.get(NULL::na_acc, a)).bal = r.bal - amount;
END $$;
SELECT na_move(8, 9, 300), na_move(8, 9, 5000);
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT na_move(9, 8, 300);
SAVEPOINT s;
SELECT mixedcc.remove(NULL::na_acc, 9), mixedcc.get(NULL::na_acc, 9);
ROLLBACK TO s;
SELECT mixedcc.get(NULL::na_acc, 9);
COMMIT;
SELECT id, bal FROM na_acc WHERE id IN (8, 9) ORDER BY id;

-- What a statement would do besides is done: triggers, constraints, generated columns, other indexes, partial rights, policies.
CREATE TABLE na_full (a int, b text, v int CHECK (v >= 0), twice int GENERATED ALWAYS AS (v * 2) STORED, n numeric(6, 2), u int UNIQUE, PRIMARY KEY (a, b)) USING mixedcc;
CREATE FUNCTION na_log() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE '% % -> %', TG_OP, OLD, NEW; RETURN coalesce(NEW, OLD); END $$;
CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON na_full FOR EACH ROW EXECUTE FUNCTION na_log();
SELECT mixedcc.insert(ROW(1, 'x', 5, NULL, 1.239, 1)::na_full);
SELECT mixedcc.insert(ROW(2, 'y', 5, NULL, 1, 2)::na_full);
SELECT mixedcc.add(NULL::na_full, 'v', 2, 1, 'x'), mixedcc.set(NULL::na_full, 'n', 2.999, 1, 'x'), mixedcc.set(NULL::na_full, 'u', 3, 1, 'x');
SELECT mixedcc.add(NULL::na_full, 'v', -100, 1, 'x');
SELECT mixedcc.set(NULL::na_full, 'u', 2, 1, 'x');
SELECT mixedcc.set(NULL::na_full, 'twice', 2, 1, 'x');
SELECT mixedcc.remove(NULL::na_full, 2, 'y'), mixedcc.get(NULL::na_full, 1, 'x');
ALTER TABLE na_acc ADD COLUMN later int NOT NULL DEFAULT 42;
SELECT mixedcc.get(NULL::na_acc, 1), (mixedcc.get(NULL::na_acc, 1)).later, mixedcc.add(NULL::na_acc, 'later', 1, 1), (mixedcc.get(NULL::na_acc, 1)).later AS after;
ALTER TABLE na_acc RENAME COLUMN later TO sooner;
SELECT mixedcc.add(NULL::na_acc, 'sooner', 1, 1), mixedcc.get(NULL::na_acc, 1);

CREATE ROLE na_user;
SELECT mixedcc.get(NULL::na_acc, 1) IS DISTINCT FROM NULL AS owner_sees;
GRANT SELECT (id, bal), UPDATE (bal) ON na_acc TO na_user;
SET ROLE na_user;
SELECT mixedcc.get(NULL::na_acc, 1);
SELECT mixedcc.add(NULL::na_acc, 'bal', 1::bigint, 1);
SELECT mixedcc.set(NULL::na_acc, 'note', 'x'::text, 1);
SELECT mixedcc.remove(NULL::na_acc, 1);
SELECT mixedcc.insert(ROW(50, 'new', 1, NULL, 1)::na_acc);
RESET ROLE;
GRANT ALL ON na_acc TO na_user;
ALTER TABLE na_acc ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON na_acc USING (id < 3);
SET ROLE na_user;
SELECT mixedcc.get(NULL::na_acc, 2) IS DISTINCT FROM NULL AS allowed, mixedcc.get(NULL::na_acc, 3) IS NULL AS hidden, mixedcc.add(NULL::na_acc, 'bal', 1::bigint, 3) AS changed;
RESET ROLE;
ALTER TABLE na_acc DISABLE ROW LEVEL SECURITY;

-- Errors.
BEGIN READ ONLY;
SELECT mixedcc.add(NULL::na_acc, 'bal', 1::bigint, 1);
ROLLBACK;
CREATE TABLE na_heap (id int PRIMARY KEY) USING heap;
CREATE TABLE na_nokey (id int) USING mixedcc;
SELECT mixedcc.get(NULL::na_heap, 1);
SELECT mixedcc.get(NULL::na_nokey, 1);
SELECT mixedcc.get(1, 1);
SELECT mixedcc.get(NULL::na_full, 1);
SELECT mixedcc.get(NULL::na_full, 1, 'x', 2);
SELECT mixedcc.get(NULL::na_acc, VARIADIC ARRAY[1]);
SELECT mixedcc.get(NULL::na_acc, 'one');
SELECT mixedcc.set(NULL::na_acc, 'nothing', 1, 1);
SELECT mixedcc.set(NULL::na_acc, NULL, 1, 1);
SELECT mixedcc.set(NULL::na_acc, 'owner', NULL::text, 1);
SELECT mixedcc.add(NULL::na_acc, 'bal', 9223372036854775807, 1);
SELECT mixedcc.add(NULL::na_acc, 'bal', 'x'::text, 1);
SELECT mixedcc.add_each(NULL::na_acc, 'bal', ARRAY[1, 2], ARRAY[1]);
SELECT mixedcc.add_each(NULL::na_acc, 'bal', 1, ARRAY[1]);
SELECT mixedcc.put(NULL::na_acc);
SELECT mixedcc.insert(NULL::na_acc);


-- A column alone.
SELECT mixedcc.get_value(NULL::bigint, NULL::na_acc, 'bal', 2) > 0 AS bal, mixedcc.get_value(NULL::text, NULL::na_acc, 'owner', 2) AS owner,
    mixedcc.get_value(NULL::text, NULL::na_acc, 'note', 2) IS NULL AS none, mixedcc.get_value(NULL::int, NULL::na_acc, 'sooner', 99) IS NULL AS absent,
    mixedcc.get_value(NULL::int, NULL::na_full, 'twice', 1, 'x') AS of_two_keys, mixedcc.get_value(NULL::numeric, NULL::na_full, 'n', 1, 'x') AS n;
SELECT mixedcc.get_value(NULL::int, NULL::na_acc, 'bal', 2);
SELECT mixedcc.get_value(NULL::int, NULL::na_acc, 'nothing', 2);
SELECT mixedcc.get_value(NULL::int, NULL::na_heap, 'id', 2);
SELECT mixedcc.get_value(NULL::int, 1, 'id', 2);

-- What was found about a table holds until it changes: within a transaction, a savepoint, by another role.
CREATE TABLE na_kept (id int PRIMARY KEY, v int, w text) USING mixedcc;
INSERT INTO na_kept VALUES (1, 10, 'one'), (2, 20, 'two');
CREATE FUNCTION na_try(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE r text;
BEGIN EXECUTE statement INTO r; RETURN r; EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE || ' ' || SQLERRM; END $$;
CREATE FUNCTION na_get(k int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN mixedcc.get_value(NULL::int, NULL::na_kept, 'v', k); END $$;
CREATE FUNCTION na_add(k int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN mixedcc.add(NULL::na_kept, 'v', 1, k); END $$;
BEGIN;
SAVEPOINT a;
SELECT na_get(1), na_add(1);
ROLLBACK TO a;
SELECT mode FROM pg_locks WHERE relation = 'na_kept'::regclass AND pid = pg_backend_pid();
SELECT na_get(1), na_add(1);
SELECT mode FROM pg_locks WHERE relation = 'na_kept'::regclass AND pid = pg_backend_pid() ORDER BY mode;
COMMIT;
BEGIN;
SELECT na_get(1);
ALTER TABLE na_kept DROP COLUMN v;
SELECT na_try('SELECT na_get(1)');
ALTER TABLE na_kept ADD COLUMN v int DEFAULT 77;
SELECT na_get(1), na_add(1), na_get(1);
ROLLBACK;
SELECT na_get(1), na_add(1), na_get(1);
GRANT SELECT, UPDATE ON na_kept TO na_user;
SET ROLE na_user;
BEGIN;
SELECT na_get(1), na_add(1), na_get(1);
RESET ROLE;
REVOKE UPDATE ON na_kept FROM na_user;
SET ROLE na_user;
SELECT na_get(1), na_try('SELECT na_add(1)');
RESET ROLE;
REVOKE SELECT ON na_kept FROM na_user;
SET ROLE na_user;
SELECT na_try('SELECT na_get(1)');
RESET ROLE;
CREATE ROLE na_group;
GRANT SELECT ON na_kept TO na_group;
GRANT na_group TO na_user;
SET ROLE na_user;
SELECT na_get(1);
RESET ROLE;
REVOKE na_group FROM na_user;
SET ROLE na_user;
SELECT na_try('SELECT na_get(1)');
ROLLBACK;
RESET ROLE;
BEGIN;
SELECT na_add(2);
CREATE FUNCTION na_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE '%', NEW; RETURN NEW; END $$;
CREATE TRIGGER t BEFORE UPDATE ON na_kept FOR EACH ROW EXECUTE FUNCTION na_note();
SELECT na_add(2);
ROLLBACK;
SELECT na_add(2);
BEGIN;
ALTER TABLE na_kept RENAME TO na_moved;
CREATE TABLE na_kept (id int PRIMARY KEY, v int) USING mixedcc;
SELECT na_get(1) AS of_the_same_name, mixedcc.get(NULL::na_moved, 1);
DROP TABLE na_kept;
SELECT na_try('SELECT na_get(1)');
ROLLBACK;
SELECT na_get(1);
TRUNCATE na_kept;
SELECT na_get(1) IS NULL AS empty;
DROP FUNCTION na_try, na_get, na_add;
DROP TABLE na_kept;

-- Foreign keys: an update of other columns is done directly; what they check is checked.
CREATE TABLE na_parent (id int PRIMARY KEY, v int NOT NULL) USING mixedcc;
CREATE TABLE na_child (id int PRIMARY KEY, parent int REFERENCES na_parent ON DELETE CASCADE DEFERRABLE, v int) USING mixedcc;
INSERT INTO na_parent VALUES (1, 10), (2, 20);
INSERT INTO na_child VALUES (1, 1, 10), (2, 2, 20);
SELECT mixedcc.add(NULL::na_parent, 'v', 1, 1), mixedcc.add(NULL::na_child, 'v', 1, 1), mixedcc.set(NULL::na_child, 'parent', 2, 1);
SELECT mixedcc.set(NULL::na_child, 'parent', 3, 1);
SELECT mixedcc.set(NULL::na_parent, 'id', 3, 2);
SELECT mixedcc.insert(ROW(3, 9, 0)::na_child);
SELECT mixedcc.insert(ROW(9, 0)::na_parent), mixedcc.insert(ROW(3, 9, 0)::na_child);
BEGIN;
SET CONSTRAINTS ALL DEFERRED;
SELECT mixedcc.insert(ROW(4, 99, 0)::na_child), mixedcc.add(NULL::na_child, 'v', 5, 4), mixedcc.add(NULL::na_child, 'v', 5, 4);
COMMIT;
BEGIN;
SET CONSTRAINTS ALL DEFERRED;
SELECT mixedcc.set(NULL::na_child, 'parent', 98, 1), mixedcc.add(NULL::na_child, 'v', 5, 1);
COMMIT;
SELECT mixedcc.remove(NULL::na_parent, 2), mixedcc.remove(NULL::na_child, 3);
SELECT * FROM na_parent ORDER BY id;
SELECT * FROM na_child ORDER BY id;
DROP TABLE na_child, na_parent;

-- Rules; columns that nobody may set.
CREATE TABLE na_rules (id int PRIMARY KEY, seq int GENERATED ALWAYS AS IDENTITY, v int) USING mixedcc;
INSERT INTO na_rules (id, v) VALUES (1, 10), (2, 20);
SELECT mixedcc.set(NULL::na_rules, 'seq', 7, 1);
CREATE RULE na_update AS ON UPDATE TO na_rules WHERE NEW.v < 0 DO INSTEAD NOTHING;
CREATE RULE na_delete AS ON DELETE TO na_rules DO INSTEAD NOTHING;
SELECT mixedcc.set(NULL::na_rules, 'v', -1, 1), mixedcc.add(NULL::na_rules, 'v', 1, 2), mixedcc.remove(NULL::na_rules, 1);
SELECT * FROM na_rules ORDER BY id;
DROP RULE na_update ON na_rules;
DROP RULE na_delete ON na_rules;
SELECT mixedcc.set(NULL::na_rules, 'v', -1, 1), mixedcc.remove(NULL::na_rules, 2);
SELECT * FROM na_rules ORDER BY id;
DROP TABLE na_rules;

-- The whole row where a column has a name that our statement could use; literals as a condition reads them.
CREATE TABLE na_names (id numeric(5, 2) PRIMARY KEY, mixedcc_row bigint, mixedcc_row_0 bigint, v varchar(3)) USING mixedcc;
INSERT INTO na_names VALUES (1.23, 5, 6, 'abc');
SELECT mixedcc.get(NULL::na_names, 1.23), (mixedcc.get(NULL::na_names, 1.23)).mixedcc_row;
SELECT * FROM mixedcc.get_each(NULL::na_names, ARRAY[1.23]);
SELECT mixedcc.get(NULL::na_names, '1.23') IS NOT NULL AS found, mixedcc.get(NULL::na_names, '1.234') IS NULL AS not_rounded;
SELECT mixedcc.set(NULL::na_names, 'v', 'ab   ', '1.23'), mixedcc.set(NULL::na_names, 'v', 'a', '1.234');
SELECT mixedcc.set(NULL::na_names, 'v', 'abcd', '1.23');
SELECT * FROM mixedcc.range_scan(NULL::na_names, '1.231', NULL);
SELECT id, v FROM mixedcc.range_scan(NULL::na_names, '1.229', 2);
DROP TABLE na_names;

-- A cursor that began before the table got another definition.
CREATE TABLE na_defined (id int PRIMARY KEY, v bigint) USING mixedcc;
INSERT INTO na_defined VALUES (1, 10);
BEGIN;
DECLARE na_each CURSOR FOR SELECT * FROM mixedcc.get_each(NULL::na_defined, ARRAY[1]);
DECLARE na_range CURSOR FOR SELECT * FROM mixedcc.range_scan(NULL::na_defined);
DECLARE na_one CURSOR FOR SELECT * FROM mixedcc.get(NULL::na_defined, 1);
ALTER TABLE na_defined ALTER COLUMN v TYPE text;
SAVEPOINT s;
FETCH na_each;
ROLLBACK TO s;
FETCH na_range;
ROLLBACK TO s;
FETCH na_one;
ROLLBACK;
DROP TABLE na_defined;

-- Rows that guesses lead to are those that a scan finds, whatever the key is made of, and whatever has become of its rows.
CREATE TABLE na_guess (pad text, a int, n int, b bigint, c smallint, v bigint, PRIMARY KEY (b, a, c)) USING mixedcc;
CREATE TABLE na_one (v bigint, id int PRIMARY KEY) USING mixedcc;
CREATE FUNCTION na_guessed(OUT same boolean, OUT same_one boolean, OUT total numeric, OUT total_one numeric) LANGUAGE plpgsql AS $$
DECLARE
    by_guess numeric := 0;
    one      numeric := 0;
BEGIN
    FOR b IN -22..22 LOOP
        FOR a IN -2..9 LOOP
            by_guess := by_guess + coalesce(mixedcc.get_value(NULL::bigint, NULL::na_guess, 'v', b, a, 0), 0)
                + coalesce(mixedcc.get_value(NULL::bigint, NULL::na_guess, 'v', b::bigint, a, 1::smallint), 0);
        END LOOP;
    END LOOP;
    FOR id IN -310..710 LOOP
        one := one + coalesce(mixedcc.get_value(NULL::bigint, NULL::na_one, 'v', id), 0);
    END LOOP;
    SELECT sum(v) INTO total FROM na_guess;
    SELECT sum(v) INTO total_one FROM na_one;
    same := by_guess = total;
    same_one := one = total_one;
END $$;
INSERT INTO na_guess SELECT CASE b % 3 WHEN 0 THEN NULL ELSE repeat('x', b) END, a, NULLIF(a, 3), b, c, b * 1000 + a * 10 + c
FROM generate_series(-20, 20) AS b, generate_series(0, 7) AS a, generate_series(0, 1) AS c;
INSERT INTO na_one SELECT id * 11, id FROM generate_series(-300, 500) AS id;
SELECT * FROM na_guessed();
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT * FROM na_guessed();
SELECT * FROM na_guessed();
COMMIT;
-- Keys go, some come back with other rows, some move.
DELETE FROM na_guess WHERE b % 3 = 0;
INSERT INTO na_guess SELECT 'y', a, 1, b, 0, 7 FROM generate_series(-18, 18, 6) AS b, generate_series(1, 7) AS a;
DELETE FROM na_one WHERE id % 3 = 0;
INSERT INTO na_one SELECT id * 13, id FROM generate_series(-300, 500, 6) AS id;
UPDATE na_one SET id = id + 200 WHERE id > 450;
SELECT * FROM na_guessed();
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT * FROM na_guessed();
DELETE FROM na_one WHERE id BETWEEN 1 AND 50;
SELECT mixedcc.insert(ROW(id * 17, id)::na_one) FROM generate_series(20, 30) AS id;
SELECT mixedcc.add(NULL::na_one, 'v', 5, 100);
SELECT * FROM na_guessed();
SAVEPOINT s;
DELETE FROM na_one WHERE id BETWEEN 20 AND 25;
UPDATE na_guess SET v = v + 1 WHERE b > 0;
UPDATE na_guess SET a = a + 2 WHERE b < -10 AND a = 7;
SELECT * FROM na_guessed();
ROLLBACK TO s;
SELECT * FROM na_guessed();
COMMIT;
SELECT * FROM na_guessed();
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM na_guessed();
COMMIT;
-- Numbers of records are used again, columns are added, the key and the storage are others.
VACUUM na_guess, na_one;
INSERT INTO na_one SELECT id * 19, id FROM generate_series(-310, 710) AS id ON CONFLICT DO NOTHING;
ALTER TABLE na_guess ADD COLUMN w int DEFAULT 9;
INSERT INTO na_guess SELECT 'z', a, NULL, b, c, 3, 1 FROM generate_series(21, 22) AS b, generate_series(-2, 9) AS a, generate_series(0, 1) AS c;
SELECT * FROM na_guessed();
ALTER TABLE na_one DROP CONSTRAINT na_one_pkey, ALTER COLUMN id TYPE bigint, ADD PRIMARY KEY (id);
SELECT * FROM na_guessed();
BEGIN;
TRUNCATE na_one;
INSERT INTO na_one SELECT 1, id FROM generate_series(1, 100) AS id;
SELECT * FROM na_guessed();
ROLLBACK;
SELECT * FROM na_guessed();
TRUNCATE na_one;
INSERT INTO na_one SELECT -id, id FROM generate_series(600, 1, -2) AS id;
SELECT * FROM na_guessed();
DROP FUNCTION na_guessed;
DROP TABLE na_guess, na_one;

-- Keys of one hint: of 20000000 and 351160282 the hints are the same, and so on. Under each protocol a look-up finds its own row, or none.
CREATE TABLE na_hint (k int PRIMARY KEY, v int) USING mixedcc;
CREATE FUNCTION na_hinted() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    seen text := '';
    n int;
    i int;
BEGIN
    FOREACH i IN ARRAY '{20000000,351160282,20000001,351160283,20000002,2124226201}'::int[] LOOP
        SELECT v INTO n FROM na_hint WHERE k = i;
        seen := concat_ws(' ', seen, coalesce(n, 0), coalesce(mixedcc.get_value(NULL::int, NULL::na_hint, 'v', i), 0));
        UPDATE na_hint SET v = v + 1 WHERE k = i;
        seen := concat_ws(' ', seen, CASE WHEN FOUND THEN 'u' ELSE '-' END, CASE WHEN mixedcc.add(NULL::na_hint, 'v', 1, i) THEN 'a' ELSE '-' END);
    END LOOP;
    RETURN seen;
END $$;
CREATE PROCEDURE na_hint_each(switches text[]) LANGUAGE plpgsql AS $$
DECLARE
    protocol text;
    first    text;
    other    text;
BEGIN
    FOREACH protocol IN ARRAY switches LOOP
        PERFORM mixedcc.set_protocol('na_hint', protocol);
        PERFORM mixedcc.await_switches();
        COMMIT;
        DELETE FROM na_hint;
        INSERT INTO na_hint VALUES (20000000, 10), (351160283, 20), (20000002, 30);
        COMMIT;
        SET TRANSACTION ISOLATION LEVEL SERIALIZABLE;
        first := na_hinted();
        COMMIT;
        INSERT INTO na_hint VALUES (351160282, 40), (20000001, 50), (2124226201, 60);
        DELETE FROM na_hint WHERE k IN (20000000, 20000002);
        COMMIT;
        SET TRANSACTION ISOLATION LEVEL SERIALIZABLE;
        other := na_hinted();
        COMMIT;
        RAISE NOTICE '%: % | %', protocol, first, other;
    END LOOP;
END $$;
CALL na_hint_each('{occ,2pl,mocc,2pl,partcc}');
DROP PROCEDURE na_hint_each;
DROP FUNCTION na_hinted;
DROP TABLE na_hint;

DROP FUNCTION na_move, na_log CASCADE;
DROP TABLE na_acc, na_full, na_heap, na_nokey;
DROP ROLE na_user;
-- A table that is dropped and made again is another one: plans that name its row type are made anew.
CREATE TABLE na_again (k int PRIMARY KEY, v int) USING mixedcc;
INSERT INTO na_again VALUES (1, 1);
CREATE FUNCTION na_read(i int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN (mixedcc.get(NULL::na_again, i)).v; END $$;
CREATE FUNCTION na_count() RETURNS bigint LANGUAGE plpgsql AS
    $$ BEGIN RETURN (SELECT count(*) FROM mixedcc.range_scan(NULL::na_again, 0, 9) x); END $$;
PREPARE na_get AS SELECT (mixedcc.get(NULL::na_again, 1)).v;
PREPARE na_never AS SELECT (mixedcc.get(NULL::na_again, 1)).v;
SELECT na_read(1), na_count();
EXECUTE na_get;
DROP TABLE na_again;
SELECT na_read(1);
CREATE TABLE na_again (k int PRIMARY KEY, w text, v int) USING mixedcc;
INSERT INTO na_again VALUES (1, 'w', 2), (2, 'w', 3);
SELECT na_read(1), na_count();
EXECUTE na_get;
EXECUTE na_never;
BEGIN;
DROP TABLE na_again;
CREATE TABLE na_again (v int, k int PRIMARY KEY) USING mixedcc;
INSERT INTO na_again VALUES (7, 1);
SELECT na_read(1), na_count();
EXECUTE na_get;
ROLLBACK;
SELECT na_read(1), na_count();
EXECUTE na_get;
ALTER TABLE na_again RENAME TO na_other;
CREATE TABLE na_again (k int PRIMARY KEY, v int) USING mixedcc;
INSERT INTO na_again VALUES (1, 11);
SELECT na_read(1), na_count();
EXECUTE na_get;
DEALLOCATE na_get; DEALLOCATE na_never;
DROP TABLE na_again, na_other;
DROP FUNCTION na_read, na_count;
-- A key that is deferrable is no key for native access, and says so.
CREATE TABLE na_deferrable (k int PRIMARY KEY DEFERRABLE, v int) USING mixedcc;
SELECT mixedcc.get(NULL::na_deferrable, 1);
SELECT mixedcc.add(NULL::na_deferrable, 'v', 1, 1);
DROP TABLE na_deferrable;
-- The rights to the functions of an addition count, as in an UPDATE.
CREATE TABLE na_rights (k int PRIMARY KEY, v int) USING mixedcc;
INSERT INTO na_rights VALUES (1, 1);
CREATE ROLE na_user;
GRANT SELECT, UPDATE ON na_rights TO na_user;
BEGIN;
REVOKE EXECUTE ON FUNCTION int4pl(int, int) FROM PUBLIC;
SET LOCAL ROLE na_user;
SELECT mixedcc.add(NULL::na_rights, 'v', 1, 1);
ROLLBACK;
BEGIN;
SET LOCAL ROLE na_user;
SELECT mixedcc.add(NULL::na_rights, 'v', 1, 1);
COMMIT;
DROP TABLE na_rights;
DROP ROLE na_user;
