-- SmallBank (Alomari et al. 2008, in H-Store's form). Money in cents.
-- == tables
CREATE UNLOGGED TABLE account (
    name   text PRIMARY KEY,
    custid int NOT NULL
) {{using_account}};
CREATE UNLOGGED TABLE savings (
    custid  int PRIMARY KEY,
    balance bigint NOT NULL
) {{using_savings}};
CREATE UNLOGGED TABLE checking (
    custid    int PRIMARY KEY,
    balance   bigint NOT NULL,
    penalties int NOT NULL
) {{using_checking}};
INSERT INTO account SELECT 'customer' || lpad(id::text, 8, '0'), id FROM generate_series(1, {{rows}}) AS id;
INSERT INTO savings SELECT id, 1000000 FROM generate_series(1, {{rows}}) AS id;
INSERT INTO checking SELECT id, 1000000, 0 FROM generate_series(1, {{rows}}) AS id;

-- == functions
CREATE FUNCTION account_name(id int) RETURNS text IMMUTABLE LANGUAGE sql AS
    $$ SELECT 'customer' || lpad(id::text, 8, '0') $$;

CREATE FUNCTION balance(customer int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    customer_name text := 'customer' || lpad(customer::text, 8, '0');
    id int;
    saved bigint;
    checked bigint;
BEGIN
    SELECT custid INTO id FROM account WHERE name = customer_name;
    SELECT s.balance INTO saved FROM savings s WHERE custid = id;
    SELECT c.balance INTO checked FROM checking c WHERE custid = id;
    RETURN saved + checked;
END $$;

CREATE FUNCTION deposit_checking(customer int, amount int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    customer_name text := 'customer' || lpad(customer::text, 8, '0');
    id int;
BEGIN
    SELECT custid INTO id FROM account WHERE name = customer_name;
    UPDATE checking SET balance = balance + amount WHERE custid = id;
END $$;

CREATE FUNCTION transact_savings(customer int, amount int) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    customer_name text := 'customer' || lpad(customer::text, 8, '0');
    id int;
    saved bigint;
BEGIN
    SELECT custid INTO id FROM account WHERE name = customer_name;
    SELECT s.balance INTO saved FROM savings s WHERE custid = id; --[!locks]
    SELECT s.balance INTO saved FROM savings s WHERE custid = id FOR UPDATE; --[locks]
    IF saved + amount < 0 THEN
        RETURN false;
    END IF;
    UPDATE savings SET balance = saved + amount WHERE custid = id;
    RETURN true;
END $$;

-- Everything of the first customer to the second one's checking account.
CREATE FUNCTION amalgamate(first int, second int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    first_name  text := 'customer' || lpad(first::text, 8, '0');
    second_name text := 'customer' || lpad(second::text, 8, '0');
    first_id int;
    second_id int;
    saved bigint;
    checked bigint;
BEGIN
    SELECT custid INTO first_id FROM account WHERE name = first_name;
    SELECT custid INTO second_id FROM account WHERE name = second_name;
    SELECT s.balance INTO saved FROM savings s WHERE custid = first_id; --[!locks]
    SELECT s.balance INTO saved FROM savings s WHERE custid = first_id FOR UPDATE; --[locks]
    PERFORM 1 FROM checking WHERE custid IN (first_id, second_id) ORDER BY custid FOR UPDATE; --[locks]
    SELECT c.balance INTO checked FROM checking c WHERE custid = first_id;
    UPDATE savings SET balance = 0 WHERE custid = first_id;
    UPDATE checking SET balance = 0 WHERE custid = first_id;
    UPDATE checking SET balance = balance + saved + checked WHERE custid = second_id;
END $$;

-- The penalty depends on both accounts: under snapshots alone this is where write skew comes from.
CREATE FUNCTION write_check(customer int, amount int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    customer_name text := 'customer' || lpad(customer::text, 8, '0');
    id int;
    saved bigint;
    checked bigint;
BEGIN
    SELECT custid INTO id FROM account WHERE name = customer_name;
    SELECT s.balance INTO saved FROM savings s WHERE custid = id; --[!locks]
    SELECT s.balance INTO saved FROM savings s WHERE custid = id FOR UPDATE; --[locks]
    SELECT c.balance INTO checked FROM checking c WHERE custid = id; --[!locks]
    SELECT c.balance INTO checked FROM checking c WHERE custid = id FOR UPDATE; --[locks]
    IF saved + checked < amount THEN
        UPDATE checking SET balance = checked - amount - {{penalty}}, penalties = penalties + 1 WHERE custid = id;
    ELSE
        UPDATE checking SET balance = checked - amount WHERE custid = id;
    END IF;
END $$;

CREATE FUNCTION send_payment(first int, second int, amount int) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    first_name  text := 'customer' || lpad(first::text, 8, '0');
    second_name text := 'customer' || lpad(second::text, 8, '0');
    first_id int;
    second_id int;
    checked bigint;
BEGIN
    SELECT custid INTO first_id FROM account WHERE name = first_name;
    SELECT custid INTO second_id FROM account WHERE name = second_name;
    PERFORM 1 FROM checking WHERE custid IN (first_id, second_id) ORDER BY custid FOR UPDATE; --[locks]
    SELECT c.balance INTO checked FROM checking c WHERE custid = first_id;
    IF checked < amount THEN
        RETURN false;
    END IF;
    UPDATE checking SET balance = checked - amount WHERE custid = first_id;
    UPDATE checking SET balance = balance + amount WHERE custid = second_id;
    RETURN true;
END $$;
