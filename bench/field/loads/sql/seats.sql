-- SEATS: the contended part, reservations of a flight's seats.
-- == tables
CREATE UNLOGGED TABLE flight (
    id         int PRIMARY KEY,
    seats      int NOT NULL,
    seats_left int NOT NULL,
    price      int NOT NULL
) {{using_flight}};
CREATE UNLOGGED TABLE customer (
    id           int PRIMARY KEY,
    balance      bigint NOT NULL,
    reservations int NOT NULL,
    note         text NOT NULL
) {{using_customer}};
CREATE UNLOGGED TABLE reservation (
    flight   int,
    seat     int,
    customer int NOT NULL,
    price    int NOT NULL,
    updates  int NOT NULL,
    PRIMARY KEY (flight, seat)
) {{using_reservation}};
INSERT INTO flight SELECT id, {{seats}}, {{seats}} - {{seats}} / 2, 100 + id % 50 FROM generate_series(1, {{flights}}) AS id;
INSERT INTO customer SELECT id, 1000000, 0, repeat('x', 50) FROM generate_series(1, {{rows}}) AS id;
-- Every other seat is taken.
INSERT INTO reservation SELECT f.id, s * 2, 1 + (f.id * 7919 + s * 104729) % {{rows}}, f.price, 0
    FROM flight AS f, generate_series(1, {{seats}} / 2) AS s;
UPDATE customer SET reservations = n, balance = balance - paid
    FROM (SELECT customer, count(*) AS n, sum(price) AS paid FROM reservation GROUP BY 1) AS r WHERE id = customer;

-- == functions
-- At REPEATABLE READ (tag rr) the flight is locked too: else a seat that was taken since the snapshot is a
-- unique violation, not a serialization failure.
-- The free seats of a flight, by looking at those taken.
CREATE FUNCTION find_open_seats(f int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    taken int[];
    all_seats int;
BEGIN
    SELECT seats INTO all_seats FROM flight WHERE id = f;
    taken := ARRAY(SELECT seat FROM reservation WHERE flight = f ORDER BY seat);
    RETURN all_seats - cardinality(taken);
END $$;

-- 1 if the seat was free, else 0.
CREATE FUNCTION new_reservation(c int, f int, s int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    fare int;
    remaining int;
BEGIN
    SELECT price, seats_left INTO fare, remaining FROM flight WHERE id = f; --[!locks rr]
    SELECT price, seats_left INTO fare, remaining FROM flight WHERE id = f FOR UPDATE; --[locks rr]
    IF remaining = 0 THEN
        RETURN 0;
    END IF;
    PERFORM 1 FROM reservation WHERE flight = f AND seat = s;
    IF FOUND THEN
        RETURN 0;
    END IF;
    INSERT INTO reservation VALUES (f, s, c, fare, 0);
    UPDATE flight SET seats_left = remaining - 1 WHERE id = f;
    UPDATE customer SET balance = balance - fare, reservations = reservations + 1 WHERE id = c;
    RETURN 1;
END $$;

CREATE FUNCTION delete_reservation(f int, s int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    fare int;
    who int;
BEGIN
    PERFORM 1 FROM flight WHERE id = f FOR UPDATE; --[locks rr]
    DELETE FROM reservation WHERE flight = f AND seat = s RETURNING customer, price INTO who, fare;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    UPDATE flight SET seats_left = seats_left + 1 WHERE id = f;
    UPDATE customer SET balance = balance + fare, reservations = reservations - 1 WHERE id = who;
    RETURN 1;
END $$;

-- Another seat of the same flight, if it is free.
CREATE FUNCTION update_reservation(f int, s int, wanted int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM flight WHERE id = f FOR UPDATE; --[locks]
    UPDATE flight SET seats_left = seats_left WHERE id = f; --[rr]
    PERFORM 1 FROM reservation WHERE flight = f AND seat = wanted;
    IF FOUND THEN
        RETURN 0;
    END IF;
    UPDATE reservation SET seat = wanted, updates = updates + 1 WHERE flight = f AND seat = s;
    RETURN 1;
END $$;
