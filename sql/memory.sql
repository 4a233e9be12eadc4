-- What fails gives back its shared memory. Alone: it looks at what is used.
SET client_min_messages = warning;
-- A function of a type of the partition key that fails keeps no memory of the rows.
CREATE TYPE me_mood AS ENUM ('good', 'bad');
CREATE FUNCTION me_equal(me_mood, me_mood) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT $1::text = $2::text';
CREATE OPERATOR = (FUNCTION = me_equal, LEFTARG = me_mood, RIGHTARG = me_mood, HASHES);
CREATE FUNCTION me_hash(me_mood) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
CREATE FUNCTION me_hash(me_mood, bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS
    $$ BEGIN IF $1::text = 'bad' THEN RAISE 'in a bad mood'; END IF; RETURN 1; END $$;
CREATE OPERATOR CLASS me_moods DEFAULT FOR TYPE me_mood USING hash AS
    OPERATOR 1 =, FUNCTION 1 me_hash(me_mood), FUNCTION 2 me_hash(me_mood, bigint);
CREATE TABLE me_moody (id int, mood me_mood, v text) USING mixedcc WITH (mixedcc.partitions = 4, mixedcc.partition_by = 'mood');
ALTER TABLE me_moody ALTER v SET STORAGE EXTERNAL;
INSERT INTO me_moody VALUES (1, 'good', repeat('x', 8000));
CREATE FUNCTION me_fails(statement text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE before bigint; failed int := 0;
BEGIN
    SELECT live_bytes INTO before FROM mixedcc.memory;
    FOR i IN 1..200 LOOP
        BEGIN
            EXECUTE statement;
        EXCEPTION WHEN raise_exception THEN
            failed := failed + 1;
        END;
    END LOOP;
    RETURN failed = 200 AND (SELECT live_bytes FROM mixedcc.memory) - before < 400000;
END $$;
SELECT me_fails($$INSERT INTO me_moody VALUES (2, 'bad', repeat('x', 8000))$$) AS insert,
    me_fails($$UPDATE me_moody SET mood = 'bad'$$) AS update;
SELECT id, mood, length(v) FROM me_moody;
DROP TABLE me_moody;
DROP FUNCTION me_fails;
DROP TYPE me_mood CASCADE;
-- Shared memory by memory node.
SELECT node, total_bytes > 0 AS has_memory, used_bytes + free_bytes <= total_bytes AS adds_up FROM mixedcc.memory_nodes;
SELECT sum(n.total_bytes) <= m.total_bytes AS of_all FROM mixedcc.memory_nodes n, mixedcc.memory m GROUP BY m.total_bytes;
-- A table that a rule makes a view (up to version 15) gives its memory back, and the view needs no mixedcc.
CREATE PROCEDURE me_views(times int) LANGUAGE plpgsql AS $$ BEGIN
    FOR i IN 1..times LOOP
        DROP VIEW IF EXISTS me_view;
        CREATE TABLE me_view (id int) USING mixedcc WITH (mixedcc.partitions = 2, mixedcc.partition_by = 'id');
        INSERT INTO me_view SELECT * FROM generate_series(1, 2000);
        COMMIT;
        DELETE FROM me_view;
        COMMIT;
        IF current_setting('server_version_num')::int < 160000 THEN
            CREATE RULE "_RETURN" AS ON SELECT TO me_view DO INSTEAD SELECT 1 AS id;
        ELSE
            DROP TABLE me_view;
            CREATE VIEW me_view AS SELECT 1 AS id;
        END IF;
        COMMIT;
    END LOOP;
END $$;
CALL me_views(1);
SELECT live_bytes AS before FROM mixedcc.memory \gset
CALL me_views(60);
SELECT live_bytes - :before < 6000000 AS is_back FROM mixedcc.memory;
SELECT count(*) FROM pg_depend WHERE objid = 'me_view'::regclass AND refclassid = 'pg_am'::regclass;
SELECT count(*) FROM pg_seclabels WHERE objoid = 'me_view'::regclass;
DROP VIEW me_view;
DROP PROCEDURE me_views;
