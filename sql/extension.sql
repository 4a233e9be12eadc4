-- CREATE EXTENSION where somebody else has made the schema: no view of the extension uses what is there, and nothing but
-- its views is readable to all.
CREATE ROLE ex_other;
CREATE DATABASE ex_db TEMPLATE template0;
SELECT current_database() AS db \gset
\c ex_db
CREATE SCHEMA mixedcc AUTHORIZATION ex_other;
SET ROLE ex_other;
CREATE FUNCTION mixedcc.format(text, numeric, numeric) RETURNS text LANGUAGE sql AS $$ SELECT 'taken over' $$;
CREATE TABLE mixedcc.ex_private (v int);
RESET ROLE;
CREATE EXTENSION mixedcc;
SELECT count(*) FROM pg_depend WHERE refobjid = 'mixedcc.format(text, numeric, numeric)'::regprocedure AND classid = 'pg_rewrite'::regclass;
SELECT relname, has_table_privilege('public', oid, 'SELECT') AS readable FROM pg_class
    WHERE relnamespace = 'mixedcc'::regnamespace AND relkind IN ('r', 'v') ORDER BY 1;
\c :db
DROP DATABASE ex_db;
DROP ROLE ex_other;
