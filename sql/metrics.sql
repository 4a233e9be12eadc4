-- The view for exporters: names, types and labels stay as they are. Exporters, alerts and dashboards of users depend on them.
SELECT attname, format_type(atttypid, atttypmod) AS type FROM pg_attribute WHERE attrelid = 'mixedcc.metrics'::regclass AND attnum > 0 ORDER BY attnum;
CREATE SCHEMA "Metrics, of";
CREATE TABLE "Metrics, of"."a ""table""" (id int PRIMARY KEY, v int) USING mixedcc WITH (mixedcc.partitions = 4, mixedcc.protocol = 'occ');
INSERT INTO "Metrics, of"."a ""table""" SELECT i, i FROM generate_series(1, 100) i;
UPDATE "Metrics, of"."a ""table""" SET v = 0 WHERE id <= 10;
DELETE FROM "Metrics, of"."a ""table""" WHERE id > 90;
-- Those of tables: of this one.
CREATE VIEW metrics_shown AS SELECT *, concat_ws(', ', CASE WHEN datname IS NOT NULL THEN 'datname' END, CASE WHEN schemaname IS NOT NULL THEN 'schemaname' END,
        CASE WHEN relname IS NOT NULL THEN 'relname' END, CASE WHEN protocol IS NOT NULL THEN 'protocol' END, CASE WHEN reason IS NOT NULL THEN 'reason' END,
        CASE WHEN statement IS NOT NULL THEN 'statement' END) AS labels
    FROM mixedcc.metrics WHERE relname IS NULL OR relname = 'a "table"';
SELECT name, type, labels, count(*) > 0 AS "there" FROM metrics_shown GROUP BY name, type, labels ORDER BY name, labels;
-- What names promise.
SELECT name, type, value FROM mixedcc.metrics WHERE name !~ '^mixedcc_[a-z_]+$' OR (name ~ '_total$') <> (type = 'counter') OR type NOT IN ('counter', 'gauge')
    OR value IS NULL OR value < 0 OR help = '' OR datname <> current_database();
SELECT name, count(DISTINCT (type, help)) FROM mixedcc.metrics GROUP BY name HAVING count(DISTINCT (type, help)) <> 1;
-- One row for each set of labels.
SELECT name, datname, schemaname, relname, protocol, reason, statement FROM mixedcc.metrics GROUP BY 1, 2, 3, 4, 5, 6, 7 HAVING count(*) > 1;
-- Values are those of the other views.
SELECT name, protocol, value FROM metrics_shown WHERE relname IS NOT NULL AND schemaname = 'Metrics, of'
    AND name ~ '_(partitions|rows|versions|writes_total|aborts_total|waits_total)$' ORDER BY name;
SELECT name, value FROM metrics_shown WHERE name = 'mixedcc_table_commits_total' AND value <> (SELECT sum(commits) FROM mixedcc.partitions WHERE "table" = '"Metrics, of"."a ""table"""'::regclass);
SELECT (SELECT value FROM metrics_shown WHERE name = 'mixedcc_table_bytes') = mixedcc.table_size('"Metrics, of"."a ""table"""') AS bytes,
    (SELECT value FROM mixedcc.metrics WHERE name = 'mixedcc_memory_size_bytes') = (SELECT total_bytes FROM mixedcc.memory) AS size,
    (SELECT value FROM mixedcc.metrics WHERE name = 'mixedcc_coordinator_up') AS up;
SELECT mixedcc.set_protocol('"Metrics, of"."a ""table"""', '2pl', 1), mixedcc.await_switches();
SELECT name, protocol, value FROM metrics_shown WHERE name IN ('mixedcc_protocol_partitions', 'mixedcc_table_pinned_partitions') ORDER BY 1, 2;
-- The oldest snapshot.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM "Metrics, of"."a ""table""";
SELECT pid = pg_backend_pid() AS mine, commits < 1000 AS few FROM mixedcc.horizon;
COMMIT;
-- Nothing is locked, and a role without rights reads it too.
CREATE ROLE metrics_other;
SELECT '"Metrics, of"."a ""table"""'::regclass::oid AS oid \gset
BEGIN;
LOCK TABLE "Metrics, of"."a ""table""";
SET LOCAL ROLE metrics_other;
SELECT count(*) AS metrics FROM mixedcc.metrics WHERE relname = 'a "table"' AND schemaname = 'Metrics, of' AND name LIKE 'mixedcc\_table\_%';
SELECT count(*) AS locks FROM pg_locks WHERE relation = :oid AND pid = pg_backend_pid() AND mode <> 'AccessExclusiveLock';
COMMIT;
-- What the processes of mixedcc wait for has names from version 17 on.
CREATE PROCEDURE await_name(process text, name text) LANGUAGE plpgsql AS $$ BEGIN
    IF current_setting('server_version_num')::int < 170000 THEN name := 'Extension'; END IF;
    FOR i IN 1..6000 LOOP
        IF EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = process AND wait_event_type = 'Extension' AND wait_event = name) THEN
            RAISE INFO '% waits', process;
            RETURN;
        END IF;
        PERFORM pg_sleep(0.01);
        PERFORM pg_stat_clear_snapshot();
    END LOOP;
    RAISE EXCEPTION '% does not show %', process, name;
END $$;
CALL await_name('mixedcc coordinator', 'MixedccCoordinatorMain');
CALL await_name('mixedcc companion', 'MixedccCompanionMain');
DROP PROCEDURE await_name;
DROP VIEW metrics_shown;
SET client_min_messages = warning;
DROP SCHEMA "Metrics, of" CASCADE;
DROP ROLE metrics_other;
