-- Publications that need a replica identity for a command refuse it, whatever runs it.
CREATE TABLE identity_t (id int PRIMARY KEY, region text, v int) USING mixedcc;
INSERT INTO identity_t VALUES (1, 'eu', 1), (2, 'us', 2);
PREPARE set_region (int) AS UPDATE identity_t SET region = 'us' WHERE id = $1;
PREPARE set_v (int) AS UPDATE identity_t SET v = v + 1 WHERE id = $1;
PREPARE gone (int) AS DELETE FROM identity_t WHERE id = $1;
EXECUTE set_region (2);
EXECUTE set_v (2);
EXECUTE gone (3);
SELECT mixedcc.set(NULL::identity_t, 'v', 3, 2), mixedcc.add(NULL::identity_t, 'v', 1, 2), mixedcc.remove(NULL::identity_t, 3);
-- A row filter by a column that is not of the identity.
SET client_min_messages = error;
CREATE PUBLICATION identity_p FOR TABLE identity_t WHERE (region = 'eu');
RESET client_min_messages;
EXECUTE set_region (1);
EXECUTE set_v (1);
EXECUTE gone (1);
UPDATE identity_t SET v = 0 WHERE id = 1;
DELETE FROM identity_t WHERE id = 1;
SELECT mixedcc.set(NULL::identity_t, 'v', 0, 1);
SELECT mixedcc.add(NULL::identity_t, 'v', 1, 1);
SELECT mixedcc.put(ROW(1, 'us', 0)::identity_t);
SELECT mixedcc.remove(NULL::identity_t, 1);
INSERT INTO identity_t VALUES (3, 'us', 3);
SELECT * FROM identity_t WHERE id = 1 FOR UPDATE;
SELECT mixedcc.get(NULL::identity_t, 1);
-- A column list without the identity's columns.
ALTER PUBLICATION identity_p SET TABLE identity_t (region);
EXECUTE set_v (1);
SELECT mixedcc.remove(NULL::identity_t, 1);
-- No identity.
ALTER PUBLICATION identity_p SET TABLE identity_t;
EXECUTE set_v (1);
ALTER TABLE identity_t REPLICA IDENTITY NOTHING;
EXECUTE set_v (1);
EXECUTE gone (1);
SELECT mixedcc.add(NULL::identity_t, 'v', 1, 1);
SELECT mixedcc.remove(NULL::identity_t, 1);
-- A publication of inserts needs none.
ALTER PUBLICATION identity_p SET (publish = 'insert');
EXECUTE set_v (1);
SELECT mixedcc.add(NULL::identity_t, 'v', 1, 1);
ALTER PUBLICATION identity_p SET (publish = 'insert, update');
EXECUTE set_v (1);
EXECUTE gone (3);
SELECT mixedcc.remove(NULL::identity_t, 3);
DROP PUBLICATION identity_p;
EXECUTE set_region (1);
SELECT mixedcc.remove(NULL::identity_t, 2);
SELECT * FROM identity_t ORDER BY id;
DEALLOCATE ALL;
DROP TABLE identity_t;
