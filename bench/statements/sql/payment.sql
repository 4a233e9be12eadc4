-- TPC-C's payment (clause 2.5), by the customer's number: 4 warehouses, 10 districts each, 100 customers each.

CREATE :persistence TABLE warehouse (w_id int PRIMARY KEY, w_name varchar(10), w_ytd numeric(12, 2)) :using;
CREATE :persistence TABLE district (d_w_id int, d_id int, d_name varchar(10), d_ytd numeric(12, 2), PRIMARY KEY (d_w_id, d_id)) :using;
CREATE :persistence TABLE customer (c_w_id int, c_d_id int, c_id int, c_last varchar(16), c_balance numeric(12, 2), c_ytd_payment numeric(12, 2),
    c_payment_cnt int, PRIMARY KEY (c_w_id, c_d_id, c_id)) :using;
CREATE :persistence TABLE history (h_id bigint PRIMARY KEY, h_c_id int, h_c_d_id int, h_c_w_id int, h_d_id int, h_w_id int, h_amount numeric(6, 2),
    h_data varchar(24)) :using;
INSERT INTO warehouse SELECT w, 'house ' || w, 300000 FROM generate_series(1, 4) w;
INSERT INTO district SELECT w, d, 'part ' || d, 30000 FROM generate_series(1, 4) w, generate_series(1, 10) d;
INSERT INTO customer SELECT w, d, c, 'name ' || c, -10, 10, 1 FROM generate_series(1, 4) w, generate_series(1, 10) d, generate_series(1, 100) c;

CREATE FUNCTION payment_sql(h_id bigint, w int, d int, c int, amount numeric) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
    house varchar;
    part varchar;
    balance numeric;
BEGIN
    UPDATE warehouse SET w_ytd = w_ytd + amount WHERE w_id = w RETURNING w_name INTO STRICT house;
    UPDATE district SET d_ytd = d_ytd + amount WHERE d_w_id = w AND d_id = d RETURNING d_name INTO STRICT part;
    UPDATE customer SET c_balance = c_balance - amount, c_ytd_payment = c_ytd_payment + amount, c_payment_cnt = c_payment_cnt + 1
        WHERE c_w_id = w AND c_d_id = d AND c_id = c RETURNING c_balance INTO STRICT balance;
    INSERT INTO history VALUES (h_id, c, d, w, d, w, amount, house || '    ' || part);
    RETURN balance;
END $$;
