-- Jobs: added at one end, taken at the other.
-- == tables
CREATE SEQUENCE job_id START {{rows}};
SELECT nextval('job_id');
CREATE UNLOGGED TABLE job (
    id      bigint PRIMARY KEY,
    status  text NOT NULL,
    taken   int NOT NULL,
    payload text NOT NULL
) {{using_job}};
INSERT INTO job SELECT id, 'ready', 0, repeat('x', 100) FROM generate_series(1, {{rows}}) AS id;
CREATE INDEX ON job (status, id);

-- == functions
