-- Workload functions. They name the table without its schema: search_path chooses
-- the configuration, so that heap and every protocol run the same text.
-- Keys come from Lehmer's generator (state * 48271 mod 2^31 - 1), started by the
-- caller's seed: random over the table, and the same on every access method.

-- 20 point reads.
CREATE FUNCTION read20(seed bigint, row_count int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
    key   int;
    found_value int;
    total bigint := 0;
BEGIN
    FOR i IN 1..20 LOOP
        state := state * 48271 % 2147483647;
        key := (1 + state % row_count)::int;
        SELECT value INTO found_value FROM item WHERE id = key;
        total := total + found_value;
    END LOOP;
    RETURN total;
END $$;

-- 10 point reads and 10 updates of other rows.
CREATE FUNCTION read10_update10(seed bigint, row_count int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
    key   int;
    found_value int;
    total bigint := 0;
BEGIN
    FOR i IN 1..10 LOOP
        state := state * 48271 % 2147483647;
        key := (1 + state % row_count)::int;
        SELECT value INTO found_value FROM item WHERE id = key;
        total := total + found_value;
        state := state * 48271 % 2147483647;
        key := (1 + state % row_count)::int;
        UPDATE item SET value = value + 1 WHERE id = key;
    END LOOP;
    RETURN total;
END $$;

-- Reads and updates 10 of `hot` rows (a row may come twice), in random order or in
-- the order of the keys. Both ways sort once, so that only the order differs.
CREATE FUNCTION hot10(seed bigint, hot int, in_key_order boolean) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
    keys  int[]  := '{}';
    key   int;
    found_value int;
    total bigint := 0;
BEGIN
    FOR i IN 1..10 LOOP
        state := state * 48271 % 2147483647;
        keys[i] := (1 + state % hot)::int;
    END LOOP;
    keys := ARRAY(SELECT drawn.key FROM unnest(keys) WITH ORDINALITY AS drawn (key, position)
                  ORDER BY CASE WHEN in_key_order THEN drawn.key ELSE drawn.position END);
    FOREACH key IN ARRAY keys LOOP
        SELECT value INTO found_value FROM item WHERE id = key;
        UPDATE item SET value = value + 1 WHERE id = key;
        total := total + found_value;
    END LOOP;
    RETURN total;
END $$;

-- Every row once by its key, in an order that jumps through the table; 100 rows a
-- transaction. For the memory test.
CREATE PROCEDURE update_each_row(row_count int) LANGUAGE plpgsql AS $$
DECLARE
    key int;
BEGIN
    FOR i IN 0..row_count - 1 LOOP
        key := 1 + (i::bigint * 48271 % row_count)::int;
        UPDATE item SET value = value + 1 WHERE id = key;
        IF i % 100 = 99 THEN
            COMMIT;
        END IF;
    END LOOP;
    COMMIT;
END $$;
