-- COPY in and out, and errors in the middle.
CREATE TABLE cp_t (id int PRIMARY KEY, a text, b int CHECK (b < 100)) USING mixedcc;
COPY cp_t FROM stdin;
1	one	1
2	\N	2
3	tab\there	3
\.
COPY cp_t (id, a) FROM stdin (FORMAT csv, HEADER);
id,a
4,"quoted, ""x"""
5,
\.
COPY cp_t FROM stdin WHERE b > 5;
6	skipped	1
7	kept	7
\.
COPY cp_t TO stdout;
COPY (SELECT id, a FROM cp_t WHERE b IS NOT NULL ORDER BY id DESC) TO stdout (FORMAT csv, FORCE_QUOTE *);
-- Each of these fails as a whole.
COPY cp_t FROM stdin;
10	ten	10
11	eleven	eleven
\.
COPY cp_t FROM stdin;
12	twelve	12
13	thirteen	1300
\.
COPY cp_t FROM stdin;
14	fourteen	14
1	duplicate	15
16	sixteen	16
\.
COPY cp_t FROM stdin;
17	x
\.
SELECT * FROM cp_t ORDER BY id;
-- An error inside a savepoint; the COPY before it stays.
BEGIN;
COPY cp_t FROM stdin;
20	twenty	20
\.
SAVEPOINT s;
COPY cp_t FROM stdin;
21	twenty one	21
20	again	20
\.
ROLLBACK TO s;
COPY cp_t FROM stdin;
21	second try	21
\.
COMMIT;
SELECT * FROM cp_t WHERE id >= 20 ORDER BY id;
-- COPY FREEZE into a table of this transaction; COPY TO sees the transaction's own rows.
BEGIN;
TRUNCATE cp_t;
COPY cp_t FROM stdin (FREEZE);
1	frozen	1
\.
COPY cp_t TO stdout;
ROLLBACK;
SELECT count(*) FROM cp_t;
BEGIN;
DELETE FROM cp_t WHERE id > 1;
UPDATE cp_t SET a = 'mine';
COPY cp_t TO stdout;
ROLLBACK;
-- Many rows, with triggers, into an index of each kind, and binary both ways.
CREATE INDEX ON cp_t USING hash (a);
CREATE FUNCTION cp_trigger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.a := coalesce(NEW.a, '') || '/t'; RETURN NEW; END $$;
CREATE TRIGGER cp_before BEFORE INSERT ON cp_t FOR EACH ROW EXECUTE FUNCTION cp_trigger();
COPY cp_t FROM PROGRAM 'seq 1001 6000 | sed "s/$/\trow\t5/"';
SELECT count(*), count(*) FILTER (WHERE a = 'row/t') FROM cp_t;
DROP TRIGGER cp_before ON cp_t;
CREATE TABLE cp_back (LIKE cp_t) USING mixedcc;
SELECT '/tmp/mixedcc_copy_' || pg_backend_pid() || '.bin' AS file \gset
COPY cp_t TO :'file' (FORMAT binary);
COPY cp_back FROM :'file' (FORMAT binary);
COPY (SELECT 1 WHERE false) TO PROGRAM 'rm -f /tmp/mixedcc_copy_*.bin';
SELECT count(*) FROM (SELECT * FROM cp_t EXCEPT ALL SELECT * FROM cp_back) d;
SELECT count(*) FROM (SELECT * FROM cp_back EXCEPT ALL SELECT * FROM cp_t) d;
-- Without an index, with a large row among small ones.
COPY cp_back (id, a) FROM PROGRAM 'printf "7001\t"; head -c 1048576 /dev/zero | tr "\0" z; echo; printf "7002\tsmall\n"';
SELECT id, length(a) FROM cp_back WHERE id > 7000 ORDER BY id;
DROP TABLE cp_t, cp_back;
DROP FUNCTION cp_trigger;
