-- MOCC's tables: fifty records that everybody wants, and a large one to scan.
-- == tables
CREATE UNLOGGED TABLE hot (id int PRIMARY KEY, value bigint NOT NULL) {{using_hot}};
CREATE UNLOGGED TABLE large (id int PRIMARY KEY, value bigint NOT NULL, filler text NOT NULL) {{using_large}};
INSERT INTO hot SELECT id, 0 FROM generate_series(1, {{hot}}) AS id;
INSERT INTO large SELECT id, 0, repeat('x', 100) FROM generate_series(1, {{rows}}) AS id;

-- == functions
-- A negative key is read and written, a positive one read.
CREATE FUNCTION hot_records(ops int[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    op    int;
    found_value bigint;
    total bigint := 0;
BEGIN
    PERFORM 1 FROM hot WHERE id = ANY (ARRAY(SELECT -o FROM unnest(ops) o WHERE o < 0)) ORDER BY id FOR UPDATE; --[locks]
    FOREACH op IN ARRAY ops LOOP
        SELECT value INTO found_value FROM hot WHERE id = abs(op);
        total := total + found_value;
        IF op < 0 THEN
            UPDATE hot SET value = found_value + 1 WHERE id = -op;
        END IF;
    END LOOP;
    RETURN total;
END $$;

-- Reads a hot record, scans the large table, and writes the record.
CREATE FUNCTION long_scan(first int, length int, hot_id int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    total bigint;
    found_value bigint;
BEGIN
    SELECT value INTO found_value FROM hot WHERE id = hot_id; --[!locks]
    SELECT value INTO found_value FROM hot WHERE id = hot_id FOR UPDATE; --[locks]
    SELECT sum(value) INTO total FROM large WHERE id BETWEEN first AND first + length - 1;
    UPDATE hot SET value = found_value + 1 WHERE id = hot_id;
    RETURN total;
END $$;
