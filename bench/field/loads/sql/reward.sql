-- Bulk reward (ROCC): payments beside the reward of a district's top shopper, found by a scan.
-- == tables
CREATE UNLOGGED TABLE warehouse (id int PRIMARY KEY, received bigint NOT NULL, rewarded bigint NOT NULL) {{using_warehouse}};
CREATE UNLOGGED TABLE district (
    w_id int, id int, received bigint NOT NULL, rewarded bigint NOT NULL, PRIMARY KEY (w_id, id)
) {{using_district}};
CREATE UNLOGGED TABLE shopper (
    w_id int, d_id int, id int, balance bigint NOT NULL, paid bigint NOT NULL, rewards int NOT NULL, filler text NOT NULL,
    PRIMARY KEY (w_id, d_id, id)
) {{using_shopper}};
INSERT INTO warehouse SELECT w, 0, 0 FROM generate_series(1, {{warehouses}}) AS w;
INSERT INTO district SELECT w, d, 0, 0 FROM generate_series(1, {{warehouses}}) AS w, generate_series(1, 10) AS d;
INSERT INTO shopper SELECT w, d, c, 0, (c * 7919) % 1000, 0, repeat('x', 300)
    FROM generate_series(1, {{warehouses}}) AS w, generate_series(1, 10) AS d, generate_series(1, {{shoppers}}) AS c;

-- == functions
CREATE FUNCTION pay(w int, d int, c int, amount int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE warehouse SET received = received + amount WHERE id = w;
    UPDATE district SET received = received + amount WHERE w_id = w AND id = d;
    UPDATE shopper SET balance = balance - amount, paid = paid + amount WHERE w_id = w AND d_id = d AND id = c;
END $$;

-- The shopper among `length` of a district who has paid most gets the reward.
CREATE FUNCTION reward(w int, d int, first int, length int, amount int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    top int;
BEGIN
    SELECT id INTO top FROM shopper WHERE w_id = w AND d_id = d AND id BETWEEN first AND first + length - 1
        ORDER BY paid DESC, shopper.id LIMIT 1;
    UPDATE warehouse SET rewarded = rewarded + amount WHERE id = w;
    UPDATE district SET rewarded = rewarded + amount WHERE w_id = w AND id = d;
    UPDATE shopper SET balance = balance + amount, rewards = rewards + 1 WHERE w_id = w AND d_id = d AND id = top;
    RETURN top;
END $$;
