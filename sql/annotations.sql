-- Functions and procedures that say which partitions they use.
\set VERBOSITY terse
CREATE UNLOGGED TABLE an_acct (id int PRIMARY KEY, v int) USING mixedcc WITH (mixedcc.partitions = 8, mixedcc.protocol = 'partcc');
CREATE UNLOGGED TABLE an_item (w int, i int, v int, PRIMARY KEY (w, i)) USING mixedcc
    WITH (mixedcc.partitions = 4, mixedcc.partition_by = 'w', mixedcc.protocol = 'partcc');
INSERT INTO an_acct SELECT i, 100 FROM generate_series(1, 20) i;
INSERT INTO an_item SELECT i % 4, i, 0 FROM generate_series(1, 20) i;
CREATE FUNCTION an_add(account int, amount int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    UPDATE an_acct SET v = v + amount WHERE id = account;
    RETURN (SELECT v FROM an_acct WHERE id = account);
END $$;
CREATE PROCEDURE an_move(source int, target int, amount int) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM an_add(source, -amount);
    PERFORM an_add(target, amount);
END $$;
CREATE PROCEDURE an_many(first int, last int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN first..last LOOP
        UPDATE an_acct SET v = v + 1 WHERE id = i;
        COMMIT;
    END LOOP;
END $$;
SELECT mixedcc.annotate('an_add(int, int)', 'an_acct', 'account');
SELECT mixedcc.annotate('an_move(int, int, int)', 'an_acct', 'source');
SELECT mixedcc.annotate('an_move(int, int, int)', 'an_acct', '2');
SELECT mixedcc.annotate('an_many(int, int)', 'an_acct', 'first');
SELECT * FROM mixedcc.annotations ORDER BY function::text, arguments;
SET default_transaction_isolation = 'serializable';
-- Constants, parameters, columns, nested calls, COMMIT inside.
SELECT an_add(1, 5);
PREPARE an_p (int) AS SELECT an_add($1, 5);
EXECUTE an_p (2);
SELECT id, an_add(id, 1) FROM an_acct WHERE id IN (3, 4) ORDER BY id;
CALL an_move(1, 2, 10);
CALL an_many(5, 8);
DO $$ BEGIN CALL an_move(9, 10, 1); CALL an_move(10, 9, 1); END $$;
SELECT id, v FROM an_acct WHERE v <> 100 ORDER BY id;
-- Within a transaction, and at other levels.
BEGIN;
SELECT an_add(1, 0);
ROLLBACK;
RESET default_transaction_isolation;
SELECT an_add(1, 1);
-- Bad annotations.
\set VERBOSITY sqlstate
SELECT mixedcc.annotate('an_add(int, int)', 'an_acct', 'nothing');
SELECT mixedcc.annotate('an_add(int, int)', 'an_acct', '3');
SELECT mixedcc.annotate('an_add(int, int)', 'pg_class', 'account');
SELECT mixedcc.annotate('an_missing(int)', 'an_acct', 'account');
SELECT mixedcc.annotate('an_add(int, int)', 'an_acct', 'account', NULL);
CREATE ROLE an_user;
SET ROLE an_user;
SELECT mixedcc.annotate('an_add(int, int)', 'an_acct', 'account');
SELECT mixedcc.unannotate('an_add(int, int)');
RESET ROLE;
DROP ROLE an_user;
SELECT count(*) FROM mixedcc.annotations;
-- Arguments that cannot be the key: their number, their types. A label, which pg_dump may restore, is a
-- warning. A table without a key takes any.
\set VERBOSITY terse
CREATE FUNCTION an_types(small int2, big int8, num numeric, words text, day date, anything anyelement) RETURNS int
    LANGUAGE sql AS 'SELECT 1';
\set an_types 'an_types(int2, int8, numeric, text, date, anyelement)'
SELECT mixedcc.annotate('an_add(int, int)', 'an_acct', 'account', 'amount');
SELECT mixedcc.annotate('an_add(int, int)', 'an_item', 'account', 'amount');
SELECT mixedcc.annotate(:'an_types', 'an_acct', 'num');
SELECT mixedcc.annotate(:'an_types', 'an_acct', 'words');
SELECT mixedcc.annotate(:'an_types', 'an_acct', 'small');
SELECT mixedcc.annotate(:'an_types', 'an_acct', '2');
SELECT mixedcc.annotate(:'an_types', 'an_acct', 'anything');
CREATE UNLOGGED TABLE an_time (t timestamp, n numeric, w varchar(10), PRIMARY KEY (t, n, w)) USING mixedcc;
SELECT mixedcc.annotate(:'an_types', 'an_time', 'day', 'big', 'words');
SELECT mixedcc.annotate(:'an_types', 'an_time', 'day', 'day', 'words');
SECURITY LABEL FOR mixedcc ON FUNCTION an_types IS 'partition(an_time, 1)';
SECURITY LABEL FOR mixedcc ON FUNCTION an_types IS 'partition(an_time, 7)';
ALTER TABLE an_time DROP CONSTRAINT an_time_pkey;
SELECT mixedcc.annotate(:'an_types', 'an_time', 'words');
SELECT arguments FROM mixedcc.annotations WHERE function = 'an_types'::regproc ORDER BY 1;
DROP FUNCTION an_types;
DROP TABLE an_time;
\set VERBOSITY sqlstate
-- Removed, and gone with the function; a dropped table does not break calls.
SELECT mixedcc.unannotate('an_many(int, int)');
DROP PROCEDURE an_move;
SELECT * FROM mixedcc.annotations;
\set VERBOSITY terse
DROP TABLE an_acct, an_item;
SELECT an_add(1, 1);
DROP FUNCTION an_add;
DROP PROCEDURE an_many;
