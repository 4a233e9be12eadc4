-- A bank: accounts between which money is moved.
-- == tables
CREATE UNLOGGED TABLE account (
    id      int PRIMARY KEY,
    balance bigint NOT NULL,
    moves   bigint NOT NULL
) {{using_account}};
INSERT INTO account SELECT id, 1000, 0 FROM generate_series(1, {{rows}}) AS id;

-- == functions
