-- A queue: rows are inserted at one end and deleted at the other.
-- == tables
CREATE SEQUENCE queue_id START {{rows}} INCREMENT 1;
SELECT nextval('queue_id');
CREATE UNLOGGED TABLE queue (
    id      bigint PRIMARY KEY,
    payload text NOT NULL
) {{using_queue}};
INSERT INTO queue SELECT id, repeat('x', 100) FROM generate_series(1, {{rows}}) AS id;

-- == functions
CREATE FUNCTION enqueue() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    new_id bigint := nextval('queue_id');
BEGIN
    INSERT INTO queue VALUES (new_id, repeat('x', 100));
    RETURN new_id;
END $$;

CREATE FUNCTION dequeue() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    first bigint;
BEGIN
    SELECT id INTO first FROM queue ORDER BY id LIMIT 1; --[!locks]
    SELECT id INTO first FROM queue ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED; --[locks]
    DELETE FROM queue WHERE id = first;
    RETURN first;
END $$;
