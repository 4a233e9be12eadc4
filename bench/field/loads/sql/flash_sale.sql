-- A flash sale: a few offers, their customers, and what was sold.
-- == tables
CREATE SEQUENCE sale_id;
CREATE UNLOGGED TABLE offer (
    id    int PRIMARY KEY,
    price int NOT NULL,
    stock bigint NOT NULL,
    sold  bigint NOT NULL
) {{using_offer}};
CREATE UNLOGGED TABLE customer (id int PRIMARY KEY, bought bigint NOT NULL) {{using_customer}};
CREATE UNLOGGED TABLE sale (
    id       bigint PRIMARY KEY,
    offer    int NOT NULL,
    customer int NOT NULL,
    price    int NOT NULL
) {{using_sale}};
INSERT INTO offer SELECT id, 10, 1000000000, 0 FROM generate_series(1, {{offers}}) AS id;
INSERT INTO customer SELECT id, 0 FROM generate_series(1, {{rows}}) AS id;

-- == functions
