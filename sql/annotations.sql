-- Functions and procedures that say which partitions they use.
\set VERBOSITY terse
CREATE TABLE an_acct (id int PRIMARY KEY, v int) USING mixedcc WITH (mixedcc.partitions = 8, mixedcc.protocol = 'partcc');
CREATE TABLE an_item (w int, i int, v int, PRIMARY KEY (w, i)) USING mixedcc
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
CREATE TABLE an_time (t timestamp, n numeric, w varchar(10), PRIMARY KEY (t, n, w)) USING mixedcc;
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
-- Who may call a function may use its annotation: rights on the table are the owner's affair. Nobody else may. Nothing runs
-- that the caller did not ask for: no cast of a user, and none that the statement does not come to.
\set VERBOSITY terse
CREATE ROLE an_user;
CREATE SCHEMA an_private;
CREATE TABLE an_private.secret (id int PRIMARY KEY, v int) USING mixedcc
    WITH (mixedcc.partitions = 4, mixedcc.protocol = 'partcc');
INSERT INTO an_private.secret VALUES (1, 10);
CREATE FUNCTION an_secret(k int) RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT v FROM an_private.secret WHERE id = k';
SELECT mixedcc.annotate('an_secret(int)', 'an_private.secret', 'k');
SET default_transaction_isolation = 'serializable';
REVOKE USAGE ON SCHEMA mixedcc FROM PUBLIC;
SET ROLE an_user;
SELECT an_secret(1);
SELECT an_secret(k) FROM (VALUES (1), (2)) v (k);
RESET ROLE;
GRANT USAGE ON SCHEMA mixedcc TO PUBLIC;
REVOKE EXECUTE ON FUNCTION an_secret FROM PUBLIC;
SET ROLE an_user;
SELECT an_secret(1);
SELECT mixedcc.declaring(1, 'an_secret(int)'::regprocedure, 0);
RESET ROLE;
CREATE TYPE an_mood AS ENUM ('sad', 'happy');
CREATE FUNCTION an_cast(int) RETURNS an_mood LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'a cast for %', $1; RETURN 'sad'; END $$;
CREATE CAST (int AS an_mood) WITH FUNCTION an_cast(int) AS IMPLICIT;
CREATE TABLE an_moods (m an_mood PRIMARY KEY) USING mixedcc WITH (mixedcc.partitions = 4, mixedcc.protocol = 'partcc');
CREATE FUNCTION an_feel(k int) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN k; END';
SELECT mixedcc.annotate('an_feel(int)', 'an_moods', 'k');
SECURITY LABEL FOR mixedcc ON FUNCTION an_feel IS 'partition(an_moods, k)';
SELECT an_feel(1), an_feel(k) FROM (VALUES (2), (3)) v (k);
-- An argument of one statement may wait for that of another: it outlives its statement.
CREATE TABLE an_pair (name text, w int, v int, PRIMARY KEY (name, w)) USING mixedcc
    WITH (mixedcc.partitions = 4, mixedcc.protocol = 'partcc');
CREATE FUNCTION an_two(name text, w int) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN length(name) + w; END';
SELECT mixedcc.annotate('an_two(text, int)', 'an_pair', 'name', 'w');
BEGIN;
SELECT length(mixedcc.declaring(repeat('x', 40000000), 'an_two(text, int)'::regprocedure, 0));
SELECT mixedcc.declaring(1, 'an_two(text, int)'::regprocedure, 1);
SELECT an_two(repeat('y', n), n) FROM generate_series(1, 3) n;
COMMIT;
-- Arguments of calls that fail in a savepoint go with it, and what is no argument of a partition is not kept.
BEGIN;
DO $$
BEGIN
    FOR i IN 1..100 LOOP
        BEGIN
            PERFORM an_two(repeat('x', 100000 + i), (1 / floor(random() / 2))::int);
        EXCEPTION WHEN division_by_zero THEN NULL;
        END;
    END LOOP;
END $$;
SELECT total_bytes < 5000000 AS few FROM pg_backend_memory_contexts WHERE name = 'TopTransactionContext';
SELECT sum(length(mixedcc.declaring(repeat('x', 100000 + n), 'an_two(text, int)'::regprocedure, 7))) FROM generate_series(1, 100) n;
SELECT total_bytes < 5000000 AS few FROM pg_backend_memory_contexts WHERE name = 'TopTransactionContext';
-- One of a savepoint that stays is still there for the call's other arguments.
SAVEPOINT s;
SELECT length(mixedcc.declaring(repeat('z', 10), 'an_two(text, int)'::regprocedure, 0));
RELEASE s;
SAVEPOINT s;
SELECT mixedcc.declaring(1, 'an_two(text, int)'::regprocedure, 1);
ROLLBACK TO s;
SELECT an_two(repeat('y', n), n) FROM generate_series(1, 3) n;
COMMIT;
DROP TABLE an_pair;
DROP FUNCTION an_two;
DROP TABLE an_moods;
DROP CAST (int AS an_mood);
DROP FUNCTION an_feel, an_cast, an_secret;
DROP TYPE an_mood;
DROP SCHEMA an_private CASCADE;
DROP ROLE an_user;
SET plan_cache_mode = force_generic_plan;
PREPARE an_case (bigint) AS SELECT CASE WHEN $1 < 100 THEN an_add($1::int, 0) END;
EXECUTE an_case (1);
EXECUTE an_case (5000000000);
RESET plan_cache_mode;
RESET default_transaction_isolation;
DEALLOCATE an_case;
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
