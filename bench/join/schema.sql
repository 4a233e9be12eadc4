-- Tables of a wholesaler, of the kind of TPC-H's. :using is the engine, :scale the number of customers.
SET client_min_messages = warning;
CREATE TABLE nations (id int PRIMARY KEY, name text, region int) :using;
CREATE TABLE suppliers (id int PRIMARY KEY, nation int, balance numeric) :using;
CREATE TABLE customers (id int PRIMARY KEY, nation int, segment text, balance numeric) :using;
CREATE TABLE parts (id int PRIMARY KEY, brand text, kind text, size int, price numeric) :using;
CREATE TABLE supplies (part int, supplier int, cost numeric, stock int, PRIMARY KEY (part, supplier)) :using;
CREATE TABLE orders (id int PRIMARY KEY, customer int, day date, state text, priority int, total numeric) :using;
CREATE TABLE items (order_id int, number int, part int, supplier int, quantity int, price numeric,
    discount numeric, shipped date, received date, returned bool, PRIMARY KEY (order_id, number)) :using;
INSERT INTO nations SELECT i, 'nation ' || i, i % 5 FROM generate_series(0, 24) i;
INSERT INTO suppliers SELECT i, i % 25, i * 7919 % 11000 - 1000 FROM generate_series(1, :scale / 15) i;
INSERT INTO customers SELECT i, i * 31 % 25, (ARRAY['build', 'drive', 'furnish', 'house', 'tool'])[1 + i * 17 % 5],
    i * 104729 % 11000 - 1000 FROM generate_series(1, :scale) i;
INSERT INTO parts SELECT i, 'brand ' || i % 25, 'kind ' || i * 13 % 150, 1 + i * 7 % 50, 900 + i % 1000
    FROM generate_series(1, :scale * 4 / 3) i;
INSERT INTO supplies SELECT i, 1 + (i + n * (:scale / 60 + 1)) % (:scale / 15), i * n % 1000 + 1, i * 3 % 9999
    FROM generate_series(1, :scale * 4 / 3) i, generate_series(0, 3) n;
-- A third of the customers have no orders, and some have many.
INSERT INTO orders SELECT i, 1 + (i::bigint * i % (:scale * 2 / 3))::int, date '2020-01-01' + i * 37 % 2400,
    CASE WHEN i * 37 % 2400 < 1200 THEN 'done' WHEN i % 20 = 0 THEN 'late' ELSE 'open' END, i % 5, 0
    FROM generate_series(1, :scale * 10) i;
INSERT INTO items SELECT o.id, n, 1 + (o.id * 7 + n * 7919) % (:scale * 4 / 3), 1 + (o.id * 3 + n * 101) % (:scale / 15),
    1 + (o.id + n) % 50, 900 + (o.id * n) % 9000, (o.id + n) % 11 / 100.0, o.day + 1 + (o.id * n) % 120,
    o.day + 2 + (o.id * n) % 150, o.day < '2023-06-01' AND o.id % 2 = 0
    FROM orders o, generate_series(1, 1 + o.id % 7) n;
CREATE INDEX ON orders (customer);
CREATE INDEX ON orders (day);
CREATE INDEX ON items (shipped);
CREATE INDEX ON items (part, supplier);
CREATE INDEX ON customers (nation);
VACUUM ANALYZE;
