-- TPC-C: tables, loader, the five transactions as functions, and clause 3.3.2's conditions.
-- == tables
CREATE FUNCTION random_int(low int, high int) RETURNS int VOLATILE LANGUAGE sql AS
    $$ SELECT low + floor(random() * (high - low + 1))::int $$;
CREATE FUNCTION last_name(number int) RETURNS text IMMUTABLE STRICT LANGUAGE sql AS $$
    SELECT (string_to_array('BAR,OUGHT,ABLE,PRI,PRES,ESE,ANTI,CALLY,ATION,EING', ','))[number / 100 + 1]
        || (string_to_array('BAR,OUGHT,ABLE,PRI,PRES,ESE,ANTI,CALLY,ATION,EING', ','))[number / 10 % 10 + 1]
        || (string_to_array('BAR,OUGHT,ABLE,PRI,PRES,ESE,ANTI,CALLY,ATION,EING', ','))[number % 10 + 1] $$;
-- A filler of a random length; 'original' is in one of ten.
CREATE FUNCTION data_text(low int, high int) RETURNS text VOLATILE LANGUAGE sql AS $$
    SELECT CASE WHEN random() < 0.1 THEN 'original' ELSE '' END || repeat('d', random_int(low, high) - 8) $$;

CREATE UNLOGGED TABLE item (
    i_id int PRIMARY KEY, i_im_id int NOT NULL, i_name text NOT NULL, i_price numeric(5,2) NOT NULL, i_data text NOT NULL
) {{using_item}};
CREATE UNLOGGED TABLE warehouse (
    w_id int PRIMARY KEY, w_name text NOT NULL, w_street text NOT NULL, w_city text NOT NULL, w_state text NOT NULL,
    w_zip text NOT NULL, w_tax numeric(4,4) NOT NULL, w_ytd numeric(12,2) NOT NULL
) {{using_warehouse}};
CREATE UNLOGGED TABLE district (
    d_w_id int, d_id int, d_name text NOT NULL, d_street text NOT NULL, d_city text NOT NULL, d_state text NOT NULL,
    d_zip text NOT NULL, d_tax numeric(4,4) NOT NULL, d_ytd numeric(12,2) NOT NULL, d_next_o_id int NOT NULL,
    PRIMARY KEY (d_w_id, d_id)
) {{using_district}};
CREATE UNLOGGED TABLE customer (
    c_w_id int, c_d_id int, c_id int, c_first text NOT NULL, c_middle text NOT NULL, c_last text NOT NULL,
    c_street text NOT NULL, c_city text NOT NULL, c_state text NOT NULL, c_zip text NOT NULL, c_phone text NOT NULL,
    c_since timestamptz NOT NULL, c_credit text NOT NULL, c_credit_lim numeric(12,2) NOT NULL,
    c_discount numeric(4,4) NOT NULL, c_balance numeric(12,2) NOT NULL, c_ytd_payment numeric(12,2) NOT NULL,
    c_payment_cnt int NOT NULL, c_delivery_cnt int NOT NULL, c_data text NOT NULL,
    PRIMARY KEY (c_w_id, c_d_id, c_id)
) {{using_customer}};
CREATE UNLOGGED TABLE history (
    h_c_id int NOT NULL, h_c_d_id int NOT NULL, h_c_w_id int NOT NULL, h_d_id int NOT NULL, h_w_id int NOT NULL,
    h_date timestamptz NOT NULL, h_amount numeric(6,2) NOT NULL, h_data text NOT NULL
) {{using_history}};
CREATE UNLOGGED TABLE orders (
    o_w_id int, o_d_id int, o_id int, o_c_id int NOT NULL, o_entry_d timestamptz NOT NULL, o_carrier_id int,
    o_ol_cnt int NOT NULL, o_all_local boolean NOT NULL,
    PRIMARY KEY (o_w_id, o_d_id, o_id)
) {{using_orders}};
CREATE UNLOGGED TABLE new_order (
    no_w_id int, no_d_id int, no_o_id int,
    PRIMARY KEY (no_w_id, no_d_id, no_o_id)
) {{using_new_order}};
CREATE UNLOGGED TABLE order_line (
    ol_w_id int, ol_d_id int, ol_o_id int, ol_number int, ol_i_id int NOT NULL, ol_supply_w_id int NOT NULL,
    ol_delivery_d timestamptz, ol_quantity int NOT NULL, ol_amount numeric(6,2) NOT NULL, ol_dist_info text NOT NULL,
    PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number)
) {{using_order_line}};
CREATE UNLOGGED TABLE stock (
    s_w_id int, s_i_id int, s_quantity int NOT NULL, s_dist text NOT NULL, s_ytd int NOT NULL,
    s_order_cnt int NOT NULL, s_remote_cnt int NOT NULL, s_data text NOT NULL,
    PRIMARY KEY (s_w_id, s_i_id)
) {{using_stock}};

SELECT setseed(0.5);
INSERT INTO item SELECT i, random_int(1, 10000), 'item ' || i, random_int(100, 10000) / 100.0, data_text(26, 50)
    FROM generate_series(1, {{items}}) AS i;
INSERT INTO warehouse SELECT w, 'warehouse', 'street', 'city', 'ST', '123411111', random_int(0, 2000) / 10000.0,
    100.0 * {{customers}} FROM generate_series(1, {{warehouses}}) AS w;
INSERT INTO district SELECT w, d, 'district', 'street', 'city', 'ST', '123411111', random_int(0, 2000) / 10000.0,
    10.0 * {{customers}}, {{customers}} + 1
    FROM generate_series(1, {{warehouses}}) AS w, generate_series(1, 10) AS d;
-- The first thousand customers of a district have all thousand last names, the others NURand(255, 0, 999).
INSERT INTO customer SELECT w, d, c, 'first' || lpad(random_int(0, 99999)::text, 8, '0'), 'OE',
    last_name(CASE WHEN c <= 1000 THEN c - 1 ELSE ((random_int(0, 255) | random_int(0, 999)) + 123) % 1000 END),
    'street', 'city', 'ST', '123411111', '0123456789012345', now(), CASE WHEN random() < 0.1 THEN 'BC' ELSE 'GC' END,
    50000, random_int(0, 5000) / 10000.0, -10, 10, 1, 0, repeat('c', random_int(300, 500))
    FROM generate_series(1, {{warehouses}}) AS w, generate_series(1, 10) AS d, generate_series(1, {{customers}}) AS c;
INSERT INTO history SELECT c, d, w, d, w, now(), 10, 'history data'
    FROM generate_series(1, {{warehouses}}) AS w, generate_series(1, 10) AS d, generate_series(1, {{customers}}) AS c;
-- Each customer has one order; the last three tenths are not delivered.
INSERT INTO orders SELECT w, d, row_number() OVER (PARTITION BY w, d ORDER BY random()), c, now(), NULL, random_int(5, 15), true
    FROM generate_series(1, {{warehouses}}) AS w, generate_series(1, 10) AS d, generate_series(1, {{customers}}) AS c;
UPDATE orders SET o_carrier_id = random_int(1, 10) WHERE o_id <= {{delivered}};
INSERT INTO new_order SELECT o_w_id, o_d_id, o_id FROM orders WHERE o_id > {{delivered}};
INSERT INTO order_line SELECT o_w_id, o_d_id, o_id, l, random_int(1, {{items}}), o_w_id,
    CASE WHEN o_id <= {{delivered}} THEN o_entry_d END, 5,
    CASE WHEN o_id <= {{delivered}} THEN 0 ELSE random_int(1, 999999) / 100.0 END, repeat('i', 24)
    FROM orders, generate_series(1, o_ol_cnt) AS l;
INSERT INTO stock SELECT w, i, random_int(10, 100), repeat('s', 240), 0, 0, 0, data_text(26, 50)
    FROM generate_series(1, {{warehouses}}) AS w, generate_series(1, {{items}}) AS i;
CREATE INDEX customer_by_name ON customer (c_w_id, c_d_id, c_last, c_first);
CREATE INDEX orders_by_customer ON orders (o_w_id, o_d_id, o_c_id, o_id);

-- == functions
-- Clause 2.4.2. Null if an item does not exist: the client then rolls back.
CREATE FUNCTION new_order(w int, d int, c int, line_count int, items int[], supplies int[], quantities int[])
RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
    warehouse_tax numeric;
    district_tax  numeric;
    order_id      int;
    discount      numeric;
    customer_last text;
    credit        text;
    price         numeric;
    dist_info     text;
    total         numeric := 0;
    local_only    boolean := true;
BEGIN
    SELECT w_tax INTO warehouse_tax FROM warehouse WHERE w_id = w;
    UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = w AND d_id = d
        RETURNING d_tax, d_next_o_id - 1 INTO district_tax, order_id;
    SELECT c_discount, c_last, c_credit INTO discount, customer_last, credit
        FROM customer WHERE c_w_id = w AND c_d_id = d AND c_id = c;
    FOR i IN 1 .. line_count LOOP
        local_only := local_only AND supplies[i] = w;
    END LOOP;
    INSERT INTO orders VALUES (w, d, order_id, c, now(), NULL, line_count, local_only);
    INSERT INTO new_order VALUES (w, d, order_id);
    PERFORM 1 FROM stock WHERE (s_w_id, s_i_id) IN (SELECT s, i FROM unnest(supplies[:line_count], items[:line_count]) AS k(s, i)) ORDER BY s_w_id, s_i_id FOR UPDATE; --[locks]
    FOR i IN 1 .. line_count LOOP
        SELECT i_price INTO price FROM item WHERE i_id = items[i];
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        UPDATE stock SET
            s_quantity = s_quantity - quantities[i] + CASE WHEN s_quantity >= quantities[i] + 10 THEN 0 ELSE 91 END,
            s_ytd = s_ytd + quantities[i], s_order_cnt = s_order_cnt + 1,
            s_remote_cnt = s_remote_cnt + CASE WHEN supplies[i] = w THEN 0 ELSE 1 END
            WHERE s_w_id = supplies[i] AND s_i_id = items[i]
            RETURNING substr(s_dist, (d - 1) * 24 + 1, 24) INTO dist_info;
        INSERT INTO order_line VALUES
            (w, d, order_id, i, items[i], supplies[i], NULL, quantities[i], price * quantities[i], dist_info);
        total := total + price * quantities[i];
    END LOOP;
    RETURN total * (1 - discount) * (1 + warehouse_tax + district_tax);
END $$;

-- The customer in the middle of those with this last name, by first name (2.5.2.2).
CREATE FUNCTION customer_by_name(w int, d int, name_number int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    ids int[];
    name text := last_name(name_number);
BEGIN
    ids := ARRAY(SELECT c_id FROM customer WHERE c_w_id = w AND c_d_id = d AND c_last = name ORDER BY c_first);
    RETURN ids[(cardinality(ids) + 1) / 2];
END $$;

-- Clause 2.5.2. The customer by number, or by last name if c is null. Warehouse before district, as in
-- new_order: the other order would make the two deadlock wherever reads lock.
CREATE FUNCTION payment(w int, d int, customer_w int, customer_d int, c int, name_number int, amount numeric)
RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
    id int := coalesce(c, customer_by_name(customer_w, customer_d, name_number));
    warehouse_name text;
    district_name text;
    new_balance numeric;
    credit text;
BEGIN
    UPDATE warehouse SET w_ytd = w_ytd + amount WHERE w_id = w RETURNING w_name INTO warehouse_name;
    UPDATE district SET d_ytd = d_ytd + amount WHERE d_w_id = w AND d_id = d RETURNING d_name INTO district_name;
    UPDATE customer SET c_balance = c_balance - amount, c_ytd_payment = c_ytd_payment + amount,
            c_payment_cnt = c_payment_cnt + 1
        WHERE c_w_id = customer_w AND c_d_id = customer_d AND c_id = id
        RETURNING c_balance, c_credit INTO new_balance, credit;
    IF credit = 'BC' THEN
        UPDATE customer SET c_data = left(concat_ws(' ', id, customer_d, customer_w, d, w, amount, c_data), 500)
            WHERE c_w_id = customer_w AND c_d_id = customer_d AND c_id = id;
    END IF;
    INSERT INTO history VALUES (id, customer_d, customer_w, d, w, now(), amount, warehouse_name || '    ' || district_name);
    RETURN new_balance;
END $$;

-- Clause 2.6.2.
CREATE FUNCTION order_status(w int, d int, c int, name_number int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    id int := coalesce(c, customer_by_name(w, d, name_number));
    order_id int;
    lines bigint;
    balance numeric;
BEGIN
    SELECT c_balance INTO balance FROM customer WHERE c_w_id = w AND c_d_id = d AND c_id = id;
    SELECT o_id INTO order_id FROM orders WHERE o_w_id = w AND o_d_id = d AND o_c_id = id ORDER BY o_id DESC LIMIT 1;
    SELECT count(ol_amount) INTO lines FROM order_line WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = order_id;
    RETURN lines;
END $$;

-- Clause 2.7.4: the oldest order of each district, in one transaction; how many there were.
CREATE FUNCTION delivery(w int, carrier int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    order_id int;
    customer_id int;
    amount numeric;
    delivered int := 0;
BEGIN
    FOR d IN 1 .. 10 LOOP
        SELECT no_o_id INTO order_id FROM new_order WHERE no_w_id = w AND no_d_id = d ORDER BY no_o_id LIMIT 1; --[!locks]
        SELECT no_o_id INTO order_id FROM new_order WHERE no_w_id = w AND no_d_id = d ORDER BY no_o_id LIMIT 1 FOR UPDATE SKIP LOCKED; --[locks]
        CONTINUE WHEN NOT FOUND;
        DELETE FROM new_order WHERE no_w_id = w AND no_d_id = d AND no_o_id = order_id;
        UPDATE orders SET o_carrier_id = carrier WHERE o_w_id = w AND o_d_id = d AND o_id = order_id
            RETURNING o_c_id INTO customer_id;
        UPDATE order_line SET ol_delivery_d = now() WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = order_id;
        SELECT sum(ol_amount) INTO amount FROM order_line WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = order_id;
        UPDATE customer SET c_balance = c_balance + amount, c_delivery_cnt = c_delivery_cnt + 1
            WHERE c_w_id = w AND c_d_id = d AND c_id = customer_id;
        delivered := delivered + 1;
    END LOOP;
    RETURN delivered;
END $$;

-- Clause 2.8.2.
CREATE FUNCTION stock_level(w int, d int, threshold int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    next_id int;
    low bigint;
BEGIN
    SELECT d_next_o_id INTO next_id FROM district WHERE d_w_id = w AND d_id = d;
    SELECT count(DISTINCT s_i_id) INTO low FROM order_line JOIN stock ON s_w_id = ol_w_id AND s_i_id = ol_i_id
        WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id >= next_id - 20 AND ol_o_id < next_id AND s_quantity < threshold;
    RETURN low;
END $$;
{{annotations}}

-- == conditions
-- Each counts what breaks a condition of clause 3.3.2; 13 is about the stock, which no condition names.
SELECT 1 AS condition, count(*) FROM warehouse
    WHERE w_ytd <> (SELECT sum(d_ytd) FROM district WHERE d_w_id = w_id)
UNION ALL
SELECT 2, count(*) FROM district
    LEFT JOIN (SELECT o_w_id, o_d_id, max(o_id) AS last FROM orders GROUP BY 1, 2) AS o ON (o_w_id, o_d_id) = (d_w_id, d_id)
    LEFT JOIN (SELECT no_w_id, no_d_id, max(no_o_id) AS last FROM new_order GROUP BY 1, 2) AS n ON (no_w_id, no_d_id) = (d_w_id, d_id)
    WHERE d_next_o_id - 1 IS DISTINCT FROM o.last OR d_next_o_id - 1 <> n.last
UNION ALL
SELECT 3, count(*) FROM
    (SELECT 1 FROM new_order GROUP BY no_w_id, no_d_id HAVING max(no_o_id) - min(no_o_id) + 1 <> count(*)) AS x
UNION ALL
SELECT 4, count(*) FROM (SELECT o_w_id, o_d_id, sum(o_ol_cnt) AS wanted FROM orders GROUP BY 1, 2) AS o
    FULL JOIN (SELECT ol_w_id, ol_d_id, count(*) AS found FROM order_line GROUP BY 1, 2) AS l
    ON (ol_w_id, ol_d_id) = (o_w_id, o_d_id) WHERE wanted IS DISTINCT FROM found
UNION ALL
SELECT 5, count(*) FROM orders FULL JOIN new_order ON (no_w_id, no_d_id, no_o_id) = (o_w_id, o_d_id, o_id)
    WHERE o_id IS NULL OR (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL)
UNION ALL
SELECT 6, count(*) FROM orders
    FULL JOIN (SELECT ol_w_id, ol_d_id, ol_o_id, count(*) AS found FROM order_line GROUP BY 1, 2, 3) AS l
    ON (ol_w_id, ol_d_id, ol_o_id) = (o_w_id, o_d_id, o_id) WHERE o_ol_cnt IS DISTINCT FROM found
UNION ALL
SELECT 7, count(*) FROM order_line LEFT JOIN orders ON (o_w_id, o_d_id, o_id) = (ol_w_id, ol_d_id, ol_o_id)
    WHERE (ol_delivery_d IS NULL) <> (o_carrier_id IS NULL) OR o_id IS NULL
UNION ALL
SELECT 8, count(*) FROM warehouse
    LEFT JOIN (SELECT h_w_id, sum(h_amount) AS paid FROM history GROUP BY 1) AS h ON h_w_id = w_id
    WHERE w_ytd IS DISTINCT FROM paid
UNION ALL
SELECT 9, count(*) FROM district
    LEFT JOIN (SELECT h_w_id, h_d_id, sum(h_amount) AS paid FROM history GROUP BY 1, 2) AS h ON (h_w_id, h_d_id) = (d_w_id, d_id)
    WHERE d_ytd IS DISTINCT FROM paid
UNION ALL
SELECT 10 + 2 * n, count(*) FROM generate_series(0, 1) AS n, customer
    LEFT JOIN (SELECT o_w_id, o_d_id, o_c_id, sum(ol_amount) AS bought
        FROM orders JOIN order_line ON (ol_w_id, ol_d_id, ol_o_id) = (o_w_id, o_d_id, o_id)
        WHERE ol_delivery_d IS NOT NULL GROUP BY 1, 2, 3) AS b ON (o_w_id, o_d_id, o_c_id) = (c_w_id, c_d_id, c_id)
    LEFT JOIN (SELECT h_c_w_id, h_c_d_id, h_c_id, sum(h_amount) AS paid FROM history GROUP BY 1, 2, 3) AS p
    ON (h_c_w_id, h_c_d_id, h_c_id) = (c_w_id, c_d_id, c_id)
    WHERE CASE n WHEN 0 THEN c_balance <> coalesce(bought, 0) - coalesce(paid, 0)
                 ELSE c_balance + c_ytd_payment <> coalesce(bought, 0) END GROUP BY n
UNION ALL
SELECT 11, count(*) FROM district
    LEFT JOIN (SELECT o_w_id, o_d_id, count(*) AS all_orders, count(o_carrier_id) AS delivered FROM orders GROUP BY 1, 2) AS o
        ON (o_w_id, o_d_id) = (d_w_id, d_id)
    LEFT JOIN (SELECT no_w_id, no_d_id, count(*) AS waiting FROM new_order GROUP BY 1, 2) AS n ON (no_w_id, no_d_id) = (d_w_id, d_id)
    WHERE all_orders - coalesce(waiting, 0) <> delivered OR delivered < {{delivered}}
UNION ALL
SELECT 13, count(*) FROM stock
    LEFT JOIN (SELECT ol_supply_w_id, ol_i_id, sum(ol_quantity) AS sold, count(*) AS sales
        FROM order_line WHERE ol_o_id > {{customers}} GROUP BY 1, 2) AS l ON (ol_supply_w_id, ol_i_id) = (s_w_id, s_i_id)
    WHERE s_ytd <> coalesce(sold, 0) OR s_order_cnt <> coalesce(sales, 0)
