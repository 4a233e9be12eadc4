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
