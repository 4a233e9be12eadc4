-- All objects are made by their full names. What is not named so is PostgreSQL's: the schema may have been there before, with
-- functions of its owner.
SET LOCAL search_path = pg_catalog, pg_temp;

COMMENT ON SCHEMA mixedcc IS 'mixedcc: tables whose partitions are each run by the concurrency-control protocol that fits their load';

CREATE FUNCTION mixedcc.handler(internal) RETURNS table_am_handler
    AS 'MODULE_PATHNAME', 'mixedcc_handler' LANGUAGE C STRICT;
COMMENT ON FUNCTION mixedcc.handler(internal) IS 'handler of the access method mixedcc';

CREATE ACCESS METHOD mixedcc TYPE TABLE HANDLER mixedcc.handler;
COMMENT ON ACCESS METHOD mixedcc IS 'in-memory tables with mixed concurrency control, serializable; the view mixedcc.table_options has the options of tables';

GRANT USAGE ON SCHEMA mixedcc TO PUBLIC;
