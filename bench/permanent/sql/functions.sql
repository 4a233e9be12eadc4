-- One update for each transaction, for what one transaction logs. `scattered` meets each
-- row once in each pass, far from the row before; `drawn` draws the rows.

CREATE PROCEDURE scattered(row_count int, passes int) LANGUAGE plpgsql AS $$
DECLARE
    -- A prime: without a common factor with any number of rows that is no multiple of it.
    step bigint := 1000003;
BEGIN
    FOR pass IN 1..passes LOOP
        FOR i IN 1..row_count LOOP
            UPDATE item SET value = value + 1 WHERE id = (1 + i * step % row_count)::int;
            COMMIT;
        END LOOP;
    END LOOP;
END $$;

CREATE PROCEDURE drawn(row_count int, updates int) LANGUAGE plpgsql AS $$
DECLARE
    state bigint := 4711;
BEGIN
    FOR i IN 1..updates LOOP
        state := state * 16807 % 2147483647;
        UPDATE item SET value = value + 1 WHERE id = (1 + state % row_count)::int;
        COMMIT;
    END LOOP;
END $$;

-- Each row once, a hundred rows to a transaction: WAL for the replay.
CREATE PROCEDURE in_hundreds(row_count int) LANGUAGE plpgsql AS $$
BEGIN
    FOR low IN 1..row_count BY 100 LOOP
        UPDATE item SET value = value + 1 WHERE id BETWEEN low AND low + 99;
        COMMIT;
    END LOOP;
END $$;
