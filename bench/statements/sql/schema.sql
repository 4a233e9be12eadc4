-- The table of every test. :using is replaced by the access method's clause, e.g.
-- USING heap, or USING mixedcc WITH (mixedcc.protocol = 'occ'); :persistence by
-- UNLOGGED or nothing; :rows and :filler by numbers.
CREATE :persistence TABLE item (
    id     int PRIMARY KEY,
    value  int  NOT NULL,
    filler text NOT NULL
) :using;

INSERT INTO item SELECT id, 0, repeat('x', :filler) FROM generate_series(1, :rows) AS id;
