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
CREATE ROLE an_user;
SET ROLE an_user;
SELECT mixedcc.annotate('an_add(int, int)', 'an_acct', 'account');
SELECT mixedcc.unannotate('an_add(int, int)');
RESET ROLE;
DROP ROLE an_user;
SELECT count(*) FROM mixedcc.annotations;
-- Removed, and gone with the function; a dropped table does not break calls.
SELECT mixedcc.unannotate('an_many(int, int)');
DROP PROCEDURE an_move;
SELECT * FROM mixedcc.annotations;
\set VERBOSITY terse
DROP TABLE an_acct, an_item;
SELECT an_add(1, 1);
DROP FUNCTION an_add;
DROP PROCEDURE an_many;
