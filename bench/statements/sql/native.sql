-- The functions of functions.sql by native access; SQL stands for them on heap (native_heap.sql).

CREATE FUNCTION native20(seed bigint, row_count int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
    key   int;
    total bigint := 0;
BEGIN
    FOR i IN 1..20 LOOP
        state := state * 48271 % 2147483647;
        key := (1 + state % row_count)::int;
        total := total + mixedcc.get_value(NULL::int, NULL::item, 'value', key);
    END LOOP;
    RETURN total;
END $$;

CREATE FUNCTION native10_10(seed bigint, row_count int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    state bigint := seed;
    key   int;
    done  boolean;
    total bigint := 0;
BEGIN
    FOR i IN 1..10 LOOP
        state := state * 48271 % 2147483647;
        key := (1 + state % row_count)::int;
        total := total + mixedcc.get_value(NULL::int, NULL::item, 'value', key);
        state := state * 48271 % 2147483647;
        key := (1 + state % row_count)::int;
        done := mixedcc.add(NULL::item, 'value', 1, key);
    END LOOP;
    RETURN total;
END $$;

-- The same as one call of another extension's function (bench/native).
CREATE FUNCTION call20(seed bigint, row_count int) RETURNS bigint
    AS ':module', 'mixedcc_example_read20' LANGUAGE C VOLATILE STRICT;

CREATE FUNCTION call10_10(seed bigint, row_count int) RETURNS bigint
    AS ':module', 'mixedcc_example_read10_update10' LANGUAGE C VOLATILE STRICT;

-- Of payment.sql, by one call.
CREATE FUNCTION payment(h_id bigint, w_id int, d_id int, c_id int, amount numeric) RETURNS numeric
    AS ':module', 'mixedcc_example_payment' LANGUAGE C VOLATILE STRICT;

-- Many keys in one call.
CREATE FUNCTION read_each(keys int[]) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT sum(value) FROM mixedcc.get_each(NULL::item, keys));
END $$;

CREATE FUNCTION update_each(keys int[], ones int[]) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN mixedcc.add_each(NULL::item, 'value', ones, keys);
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
