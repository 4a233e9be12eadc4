-- A rate that all transactions read, and items that they change.
-- == tables
CREATE UNLOGGED TABLE rate (id int PRIMARY KEY, value bigint NOT NULL) {{using_rate}};
CREATE UNLOGGED TABLE item (
    id      int PRIMARY KEY,
    value   bigint NOT NULL,
    changes bigint NOT NULL
) {{using_item}};
INSERT INTO rate VALUES (1, 0);
INSERT INTO item SELECT id, 0, 0 FROM generate_series(1, {{rows}}) AS id;

-- == functions
