-- What native.sql is compared with: the same in SQL.

CREATE FUNCTION native20(seed bigint, row_count int) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN read20(seed, row_count);
END $$;

CREATE FUNCTION native10_10(seed bigint, row_count int) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN read10_update10(seed, row_count);
END $$;

CREATE FUNCTION call20(seed bigint, row_count int) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN read20(seed, row_count);
END $$;

CREATE FUNCTION call10_10(seed bigint, row_count int) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN read10_update10(seed, row_count);
END $$;

CREATE FUNCTION payment(h_id bigint, w_id int, d_id int, c_id int, amount numeric) RETURNS numeric LANGUAGE plpgsql AS $$
BEGIN
    RETURN payment_sql(h_id, w_id, d_id, c_id, amount);
END $$;

CREATE FUNCTION read_each(keys int[]) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT sum(value) FROM item WHERE id = ANY (keys));
END $$;

CREATE FUNCTION update_each(keys int[], ones int[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    n bigint;
BEGIN
    UPDATE item SET value = value + 1 WHERE id = ANY (keys);
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
END $$;

-- The loops of native20 and native10_10 with functions that do nothing: what plpgsql costs in them.
CREATE FUNCTION nothing("type" anyelement, "row" "any", "column" name, VARIADIC key "any") RETURNS anyelement
    AS ':module', 'mixedcc_example_nothing' LANGUAGE C VOLATILE;

CREATE FUNCTION empty20(seed bigint, row_count int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
    key   int;
    total bigint := 0;
BEGIN
    FOR i IN 1..20 LOOP
        state := state * 48271 % 2147483647;
        key := (1 + state % row_count)::int;
        total := total + nothing(NULL::int, NULL::item, 'value', key);
    END LOOP;
    RETURN total;
END $$;

CREATE FUNCTION empty10_10(seed bigint, row_count int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
    key   int;
    done  boolean;
    total bigint := 0;
BEGIN
    FOR i IN 1..10 LOOP
        state := state * 48271 % 2147483647;
        key := (1 + state % row_count)::int;
        total := total + nothing(NULL::int, NULL::item, 'value', key);
        state := state * 48271 % 2147483647;
        key := (1 + state % row_count)::int;
        done := nothing(NULL::boolean, NULL::item, 'value', 1, key);
    END LOOP;
    RETURN total;
END $$;
