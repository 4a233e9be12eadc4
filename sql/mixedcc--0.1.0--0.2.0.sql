-- Changes the SQL objects of version 0.1.0 into those of 0.2.0.
-- Each commit that changes an SQL object changes it here too; a test compares the result with a
-- fresh installation.
\echo Use "ALTER EXTENSION mixedcc UPDATE TO '0.2.0'" to load this file. \quit
SET LOCAL search_path = pg_catalog, pg_temp;

COMMENT ON COLUMN mixedcc.ranges.asleep IS 'no scan has used the index for about 10 seconds, and writers register again only after the next scan has begun';
