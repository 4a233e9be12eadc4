-- YCSB: one table of rows with a counter; the sum of the counters tells the updates.
-- == tables
CREATE UNLOGGED TABLE usertable (
    id     int PRIMARY KEY,
    value  int  NOT NULL,
    filler text NOT NULL
) {{using_usertable}};
INSERT INTO usertable SELECT id, 0, repeat('x', 100) FROM generate_series(1, {{rows}}) AS id;

-- == functions
-- Operations in order: a positive key is read, a negative one is updated.
CREATE FUNCTION ycsb(ops int[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    op    int;
    found_value int;
    total bigint := 0;
BEGIN
    PERFORM 1 FROM usertable WHERE id = ANY (ARRAY(SELECT -o FROM unnest(ops) o WHERE o < 0)) ORDER BY id FOR UPDATE; --[locks]
    FOREACH op IN ARRAY ops LOOP
        IF op > 0 THEN
            SELECT value INTO found_value FROM usertable WHERE id = op;
            total := total + found_value;
        ELSE
            UPDATE usertable SET value = value + 1 WHERE id = -op;
        END IF;
    END LOOP;
    RETURN total;
END $$;

-- The same, but an update writes what the function has read before.
CREATE FUNCTION ycsb_rmw(ops int[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    op    int;
    found_value int;
    total bigint := 0;
BEGIN
    PERFORM 1 FROM usertable WHERE id = ANY (ARRAY(SELECT -o FROM unnest(ops) o WHERE o < 0)) ORDER BY id FOR UPDATE; --[locks]
    FOREACH op IN ARRAY ops LOOP
        SELECT value INTO found_value FROM usertable WHERE id = abs(op);
        total := total + found_value;
        IF op < 0 THEN
            UPDATE usertable SET value = found_value + 1 WHERE id = -op;
        END IF;
    END LOOP;
    RETURN total;
END $$;

-- Reads, and one insert unless new_id is 0.
CREATE FUNCTION ycsb_insert(ops int[], new_id int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    op    int;
    found_value int;
    total bigint := 0;
BEGIN
    FOREACH op IN ARRAY ops LOOP
        SELECT value INTO found_value FROM usertable WHERE id = op;
        total := total + coalesce(found_value, 0);
    END LOOP;
    IF new_id <> 0 THEN
        INSERT INTO usertable VALUES (new_id, 0, repeat('x', 100));
    END IF;
    RETURN total;
END $$;

-- Scans of so many rows from each start, and one insert unless new_id is 0.
CREATE FUNCTION ycsb_scan(starts int[], lengths int[], new_id int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    found_sum bigint;
    total bigint := 0;
BEGIN
    FOR i IN 1 .. cardinality(starts) LOOP
        SELECT sum(value) INTO found_sum
            FROM (SELECT value FROM usertable WHERE id >= starts[i] ORDER BY id LIMIT lengths[i]) AS r;
        total := total + coalesce(found_sum, 0);
    END LOOP;
    IF new_id <> 0 THEN
        INSERT INTO usertable VALUES (new_id, 0, repeat('x', 100));
    END IF;
    RETURN total;
END $$;

-- Keys of the partitions of `first` and `second` only.
CREATE FUNCTION ycsb_in(first int, second int, ops int[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    op    int;
    found_value int;
    total bigint := 0;
BEGIN
    PERFORM 1 FROM usertable WHERE id = ANY (ARRAY(SELECT -o FROM unnest(ops) o WHERE o < 0)) ORDER BY id FOR UPDATE; --[locks]
    FOREACH op IN ARRAY ops LOOP
        IF op > 0 THEN
            SELECT value INTO found_value FROM usertable WHERE id = op;
            total := total + found_value;
        ELSE
            UPDATE usertable SET value = value + 1 WHERE id = -op;
        END IF;
    END LOOP;
    RETURN total;
END $$;
SELECT mixedcc.annotate('ycsb_in(int, int, int[])'::regprocedure, 'usertable', 'first'); --[annotated]
SELECT mixedcc.annotate('ycsb_in(int, int, int[])'::regprocedure, 'usertable', 'second'); --[annotated]
