-- For loop_copy100: files of 100 rows each, with keys behind the last one, in the data directory.
DO $$
DECLARE
    last int;
BEGIN
    SELECT max(id) INTO last FROM item;
    FOR pass IN 1..:passes LOOP
        EXECUTE format('COPY (SELECT %s + i, 1, ''a row of the loop'' FROM generate_series(1, 100) AS i) TO %L',
                       last + 100 * (pass - 1), current_setting('data_directory') || '/copy.' || pass);
    END LOOP;
END $$;
