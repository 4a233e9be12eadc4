-- Votes: a few counters that everybody adds to, and a row for each telephone that has voted.
-- == tables
CREATE UNLOGGED TABLE contestant (
    id    int PRIMARY KEY,
    name  text NOT NULL,
    votes bigint NOT NULL
) {{using_contestant}};
CREATE UNLOGGED TABLE phone (
    id    int PRIMARY KEY,
    votes int NOT NULL
) {{using_phone}};
INSERT INTO contestant SELECT id, 'contestant ' || id, 0 FROM generate_series(1, {{contestants}}) AS id;
INSERT INTO phone SELECT id, 0 FROM generate_series(1, {{rows}}) AS id;

-- == functions
CREATE FUNCTION vote(caller int, choice int, most int) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    so_far int;
BEGIN
    SELECT votes INTO so_far FROM phone WHERE id = caller; --[!locks]
    SELECT votes INTO so_far FROM phone WHERE id = caller FOR UPDATE; --[locks]
    IF so_far >= most THEN
        RETURN false;
    END IF;
    UPDATE phone SET votes = so_far + 1 WHERE id = caller;
    UPDATE contestant SET votes = votes + 1 WHERE id = choice;
    RETURN true;
END $$;
