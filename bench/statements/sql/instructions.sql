-- Loops for bench/instructions: one transaction a pass, counted while CALL runs.
-- Another multiplier than in functions.sql: with the same one, each pass would draw
-- the keys of the pass before it again.

-- What a pass costs without a statement on the table.
CREATE PROCEDURE loop_empty(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
BEGIN
    FOR pass IN 1..passes LOOP
        state := state * 16807 % 2147483647;
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE loop_read1(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
    key   int;
BEGIN
    FOR pass IN 1..passes LOOP
        state := state * 16807 % 2147483647;
        key := (1 + state % row_count)::int;
        PERFORM value FROM item WHERE id = key;
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE loop_update1(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
    key   int;
BEGIN
    FOR pass IN 1..passes LOOP
        state := state * 16807 % 2147483647;
        key := (1 + state % row_count)::int;
        UPDATE item SET value = value + 1 WHERE id = key;
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE loop_read20(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
    total bigint;
BEGIN
    FOR pass IN 1..passes LOOP
        state := state * 16807 % 2147483647;
        total := read20(state, row_count);
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE loop_read10_update10(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
    total bigint;
BEGIN
    FOR pass IN 1..passes LOOP
        state := state * 16807 % 2147483647;
        total := read10_update10(state, row_count);
        COMMIT;
    END LOOP;
END $$;

-- As the script scan1000: 1000 rows by key, and an update elsewhere.
CREATE PROCEDURE loop_scan1000(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
    low   int;
    total bigint;
BEGIN
    FOR pass IN 1..passes LOOP
        state := state * 16807 % 2147483647;
        low := (1 + state % (row_count / 2 - 1000))::int;
        SELECT sum(value) INTO total FROM item WHERE id BETWEEN low AND low + 999;
        UPDATE item SET value = value + 1 WHERE id = row_count - low;
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE loop_native20(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
    total bigint;
BEGIN
    FOR pass IN 1..passes LOOP
        state := state * 16807 % 2147483647;
        total := native20(state, row_count);
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE loop_native10_10(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
    total bigint;
BEGIN
    FOR pass IN 1..passes LOOP
        state := state * 16807 % 2147483647;
        total := native10_10(state, row_count);
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE loop_call20(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
    total bigint;
BEGIN
    FOR pass IN 1..passes LOOP
        state := state * 16807 % 2147483647;
        total := call20(state, row_count);
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE loop_call10_10(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
    total bigint;
BEGIN
    FOR pass IN 1..passes LOOP
        state := state * 16807 % 2147483647;
        total := call10_10(state, row_count);
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE loop_empty20(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
    total bigint;
BEGIN
    FOR pass IN 1..passes LOOP
        state := state * 16807 % 2147483647;
        total := empty20(state, row_count);
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE loop_empty10_10(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
    total bigint;
BEGIN
    FOR pass IN 1..passes LOOP
        state := state * 16807 % 2147483647;
        total := empty10_10(state, row_count);
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE loop_payment(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
    last  bigint;
    total numeric;
BEGIN
    SELECT coalesce(max(h_id), 0) INTO last FROM history;
    FOR pass IN 1..passes LOOP
        state := state * 16807 % 2147483647;
        total := payment(last + pass, (1 + state % 4)::int, (1 + state / 4 % 10)::int, (1 + state / 40 % 100)::int, 12.34);
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE loop_payment_sql(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
    last  bigint;
    total numeric;
BEGIN
    SELECT coalesce(max(h_id), 0) INTO last FROM history;
    FOR pass IN 1..passes LOOP
        state := state * 16807 % 2147483647;
        total := payment_sql(last + pass, (1 + state % 4)::int, (1 + state / 4 % 10)::int, (1 + state / 40 % 100)::int, 12.34);
        COMMIT;
    END LOOP;
END $$;

-- The same keys in each pass, far from each other.
CREATE PROCEDURE loop_read_each20(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    keys  int[] := ARRAY(SELECT 1 + (i::bigint * 7919 % row_count)::int FROM generate_series(1, 20) i);
    ones  int[] := ARRAY(SELECT 1 FROM generate_series(1, 20));
    total bigint;
BEGIN
    FOR pass IN 1..passes LOOP
        total := read_each(keys);
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE loop_read_each100(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    keys  int[] := ARRAY(SELECT 1 + (i::bigint * 7919 % row_count)::int FROM generate_series(1, 100) i);
    ones  int[] := ARRAY(SELECT 1 FROM generate_series(1, 100));
    total bigint;
BEGIN
    FOR pass IN 1..passes LOOP
        total := read_each(keys);
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE loop_update_each20(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    keys  int[] := ARRAY(SELECT 1 + (i::bigint * 7919 % row_count)::int FROM generate_series(1, 20) i);
    ones  int[] := ARRAY(SELECT 1 FROM generate_series(1, 20));
    total bigint;
BEGIN
    FOR pass IN 1..passes LOOP
        total := update_each(keys, ones);
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE loop_update_each100(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    keys  int[] := ARRAY(SELECT 1 + (i::bigint * 7919 % row_count)::int FROM generate_series(1, 100) i);
    ones  int[] := ARRAY(SELECT 1 FROM generate_series(1, 100));
    total bigint;
BEGIN
    FOR pass IN 1..passes LOOP
        total := update_each(keys, ones);
        COMMIT;
    END LOOP;
END $$;

-- Rows are added behind the last one.
CREATE PROCEDURE loop_insert1(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    last int;
BEGIN
    SELECT max(id) INTO last FROM item;
    FOR pass IN 1..passes LOOP
        INSERT INTO item VALUES (last + pass, 1, 'a row of the loop');
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE loop_insert20(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    last int;
BEGIN
    SELECT max(id) INTO last FROM item;
    FOR pass IN 1..passes LOOP
        FOR i IN 1..20 LOOP
            last := last + 1;
            INSERT INTO item VALUES (last, 1, 'a row of the loop');
        END LOOP;
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE loop_insert100(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
DECLARE
    last int;
BEGIN
    SELECT max(id) INTO last FROM item;
    FOR pass IN 1..passes LOOP
        INSERT INTO item SELECT last + i, 1, 'a row of the loop' FROM generate_series(1, 100) AS i;
        last := last + 100;
        COMMIT;
    END LOOP;
END $$;

-- 100 rows from a file each, which copy_files.sql has made.
CREATE PROCEDURE loop_copy100(passes int, seed bigint, row_count int) LANGUAGE plpgsql AS $$
BEGIN
    FOR pass IN 1..passes LOOP
        EXECUTE 'COPY item FROM ''copy.' || pass || '''';
        COMMIT;
    END LOOP;
END $$;
