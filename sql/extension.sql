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

-- With mixedcc as the default access method, tables that an extension's script makes are heap's and permanent. The script is
-- that of an extension without tables, to whose commands an event trigger adds some.
CREATE DATABASE ex_db TEMPLATE template0;
\c ex_db
CREATE EXTENSION mixedcc;
SET client_min_messages = warning;
CREATE FUNCTION ex_tables() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
    CREATE TABLE ex_plain (id int PRIMARY KEY);
    CREATE TABLE ex_as AS SELECT 1 AS id;
    CREATE TABLE ex_parts (id int) PARTITION BY LIST (id);
    CREATE TABLE ex_part PARTITION OF ex_parts DEFAULT;
    CREATE MATERIALIZED VIEW ex_mat AS SELECT 1 AS id;
    CREATE TABLE ex_using (id int) USING mixedcc;
END $$;
CREATE VIEW ex_made AS SELECT c.relname, c.relkind, c.relpersistence, a.amname, d.refobjid IS NOT NULL AS of_extension
    FROM pg_class c LEFT JOIN pg_am a ON a.oid = c.relam
    LEFT JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
    WHERE c.relname ~ '^ex_' AND c.relkind IN ('r', 'p', 'm') ORDER BY 1;
CREATE EVENT TRIGGER ex_tables ON ddl_command_end WHEN TAG IN ('CREATE DOMAIN') EXECUTE FUNCTION ex_tables();
SET default_table_access_method = mixedcc;
CREATE EXTENSION lo;
SELECT * FROM ex_made;
DROP EXTENSION lo CASCADE;
SET mixedcc.extension_tables = 'default';
CREATE EXTENSION lo;
SELECT * FROM ex_made;
-- An option of ours does not make a table ours.
DROP EXTENSION lo CASCADE;
RESET mixedcc.extension_tables;
CREATE OR REPLACE FUNCTION ex_tables() RETURNS event_trigger LANGUAGE plpgsql AS
    $$ BEGIN CREATE TABLE ex_options (id int PRIMARY KEY) WITH (mixedcc.partitions = 4); END $$;
\set SHOW_CONTEXT never
CREATE EXTENSION lo;
\set SHOW_CONTEXT errors
-- What is made later is what the setting of PostgreSQL says.
DROP EVENT TRIGGER ex_tables;
CREATE TABLE ex_later (id int);
SELECT * FROM ex_made;
\c :db
DROP DATABASE ex_db;
