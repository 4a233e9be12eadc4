"""Random scripts of a few sessions for isolation/differential: the tables, the statements, and the
order of the steps. Everything follows from the seed.

Rows come in an order that both access methods have: by an index whose columns make a key, as
sequential and bitmap scans are off. So statements that write several rows lock them in one order.
Indexes of other columns have the key as an expression: a condition on the key cannot use them.
"""

import random
import re

# Nothing of a table's definition names an access method: the default of the session is taken.
# Of each table: what makes it, what fills it, and tables that it needs.
TABLES = {
    "t": ("""CREATE TABLE t (id int PRIMARY KEY, k int NOT NULL, u int UNIQUE, v int CHECK (v < 60), s text NOT NULL DEFAULT '',
        g int GENERATED ALWAYS AS (v * 2) STORED);
        CREATE INDEX ON t (k, (id + 0))""",
          "INSERT INTO t (id, k, u, v) SELECT i, i % 3, nullif(i, 6) * 10, i % 4 FROM generate_series(1, 6) i", ()),
    "q": ("CREATE TABLE q (id int PRIMARY KEY, k int, v int); CREATE INDEX ON q (k, (id + 0))",
          "INSERT INTO q SELECT i, i % 3, i FROM generate_series(1, 5) i", ()),
    "lg": ("CREATE TABLE lg (what text, a int, b int)", "", ()),
    "pr": ("""CREATE TABLE pr (id int, k int, v int, PRIMARY KEY (id, k)) PARTITION BY RANGE (k);
        CREATE TABLE pr1 PARTITION OF pr FOR VALUES FROM (MINVALUE) TO (3);
        CREATE TABLE pr2 PARTITION OF pr FOR VALUES FROM (3) TO (100)""",
           "INSERT INTO pr SELECT i, i, i % 3 FROM generate_series(1, 5) i", ()),
    "ph": ("""CREATE TABLE ph (id int PRIMARY KEY, v int) PARTITION BY HASH (id);
        CREATE TABLE ph1 PARTITION OF ph FOR VALUES WITH (MODULUS 2, REMAINDER 0);
        CREATE TABLE ph2 PARTITION OF ph FOR VALUES WITH (MODULUS 2, REMAINDER 1)""",
           "INSERT INTO ph SELECT i, i % 3 FROM generate_series(1, 5) i", ()),
    "fp": ("CREATE TABLE fp (id int PRIMARY KEY, v int, w int UNIQUE)",
           "INSERT INTO fp SELECT i, i % 3, i FROM generate_series(1, 6) i", ()),
    "fr": ("CREATE TABLE fr (id int PRIMARY KEY, pid int REFERENCES fp, v int); CREATE INDEX ON fr (pid, (id + 0))",
           "INSERT INTO fr VALUES (1, 1, 0), (2, NULL, 0)", ("fp",)),
    "fc": ("""CREATE TABLE fc (id int PRIMARY KEY, pid int REFERENCES fp ON UPDATE CASCADE ON DELETE CASCADE, v int);
        CREATE INDEX ON fc (pid, (id + 0))""",
           "INSERT INTO fc VALUES (1, 2, 0), (2, 2, 1), (3, 3, 0)", ("fp",)),
    "fn": ("""CREATE TABLE fn (id int PRIMARY KEY, pid int REFERENCES fp ON UPDATE SET NULL ON DELETE SET NULL, v int);
        CREATE INDEX ON fn (pid, (id + 0))""",
           "INSERT INTO fn VALUES (1, 3, 0), (2, 4, 0)", ("fp",)),
    "fd": ("""CREATE TABLE fd (id int PRIMARY KEY, pid int REFERENCES fp DEFERRABLE INITIALLY DEFERRED, v int);
        CREATE INDEX ON fd (pid, (id + 0))""",
           "INSERT INTO fd VALUES (1, 5, 0), (2, 4, 0)", ("fp",)),
    # Triggers. tb: writes another table and NEW. tl: locks its own row. tn: leaves rows out.
    "tb": ("""CREATE TABLE tb (id int PRIMARY KEY, v int, s text NOT NULL DEFAULT '');
        CREATE TABLE tbh (id int REFERENCES tb ON DELETE CASCADE, v int); CREATE INDEX ON tbh (id, v);
        CREATE FUNCTION tb_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF TG_OP = 'DELETE' THEN INSERT INTO lg VALUES ('tb', OLD.id, OLD.v); RETURN OLD; END IF;
            IF TG_OP = 'UPDATE' THEN INSERT INTO tbh VALUES (OLD.id, OLD.v); END IF;
            NEW.s := NEW.s || 'x'; RETURN NEW; END $$;
        CREATE TRIGGER b BEFORE INSERT OR UPDATE OR DELETE ON tb FOR EACH ROW EXECUTE FUNCTION tb_row()""",
           "INSERT INTO tb SELECT i, i % 3 FROM generate_series(1, 4) i", ("lg",)),
    "tl": ("""CREATE TABLE tl (id int PRIMARY KEY, v int);
        CREATE FUNCTION tl_row() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE x int; BEGIN
            SELECT v INTO x FROM tl WHERE id = OLD.id FOR UPDATE; INSERT INTO lg VALUES ('tl', OLD.v, x);
            RETURN coalesce(NEW, OLD); END $$;
        CREATE TRIGGER b BEFORE UPDATE OR DELETE ON tl FOR EACH ROW EXECUTE FUNCTION tl_row()""",
           "INSERT INTO tl SELECT i, i % 3 FROM generate_series(1, 4) i", ("lg",)),
    "tn": ("""CREATE TABLE tn (id int PRIMARY KEY, v int);
        CREATE FUNCTION tn_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF OLD.v % 3 = 0 THEN RETURN NULL; END IF; RETURN coalesce(NEW, OLD); END $$;
        CREATE TRIGGER b BEFORE UPDATE OR DELETE ON tn FOR EACH ROW EXECUTE FUNCTION tn_row()""",
           "INSERT INTO tn SELECT i, i % 4 FROM generate_series(1, 5) i", ("lg",)),
    # ta: AFTER triggers that add to a counter. tt: transition tables. ts: writes its own row.
    "ta": ("""CREATE TABLE ta (id int PRIMARY KEY, v int); CREATE TABLE tac (id int PRIMARY KEY, n int);
        CREATE FUNCTION ta_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            UPDATE tac SET n = n + coalesce(NEW.v, 0) - coalesce(OLD.v, 0) WHERE id = 1;
            INSERT INTO lg VALUES (TG_OP, OLD.v, NEW.v); RETURN NULL; END $$;
        CREATE TRIGGER a AFTER INSERT OR UPDATE OR DELETE ON ta FOR EACH ROW EXECUTE FUNCTION ta_row();
        CREATE TRIGGER w AFTER UPDATE OF v ON ta FOR EACH ROW WHEN (OLD.v IS DISTINCT FROM NEW.v) EXECUTE FUNCTION ta_row()""",
           "INSERT INTO ta SELECT i, i % 3 FROM generate_series(1, 4) i; INSERT INTO tac VALUES (1, 0)", ("lg",)),
    "tt": ("""CREATE TABLE tt (id int PRIMARY KEY, v int);
        CREATE FUNCTION tt_update() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO lg SELECT 'tt', o.v, n.v FROM o JOIN n USING (id); RETURN NULL; END $$;
        CREATE FUNCTION tt_delete() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO lg SELECT 'tt gone', sum(v), count(*) FROM o; RETURN NULL; END $$;
        CREATE TRIGGER u AFTER UPDATE ON tt REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION tt_update();
        CREATE TRIGGER d AFTER DELETE ON tt REFERENCING OLD TABLE AS o FOR EACH STATEMENT EXECUTE FUNCTION tt_delete()""",
           "INSERT INTO tt SELECT i, i % 3 FROM generate_series(1, 4) i", ("lg",)),
    "ts": ("""CREATE TABLE ts (id int PRIMARY KEY, v int, n int NOT NULL DEFAULT 0);
        CREATE FUNCTION ts_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF pg_trigger_depth() = 1 AND OLD.v = 2 THEN UPDATE ts SET n = n + 1 WHERE id = OLD.id; END IF;
            IF pg_trigger_depth() = 1 THEN UPDATE ts SET n = n + 1 WHERE id = OLD.id % 4 + 1; END IF;
            RETURN coalesce(NEW, OLD); END $$;
        CREATE TRIGGER b BEFORE UPDATE OF v OR DELETE ON ts FOR EACH ROW EXECUTE FUNCTION ts_row()""",
           "INSERT INTO ts SELECT i, i % 4 FROM generate_series(1, 4) i", ()),
    "vc": ("CREATE VIEW vc AS SELECT id, k, v FROM t WHERE v < 3 WITH CHECK OPTION", "", ("t",)),
    "vj": ("""CREATE VIEW vj AS SELECT t.id, t.v, q.v AS w FROM t JOIN q USING (id);
        CREATE FUNCTION vj_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            UPDATE t SET v = NEW.v WHERE id = OLD.id AND v = OLD.v; IF NOT FOUND THEN RETURN NULL; END IF;
            UPDATE q SET v = NEW.w WHERE id = OLD.id; RETURN NEW; END $$;
        CREATE TRIGGER i INSTEAD OF UPDATE ON vj FOR EACH ROW EXECUTE FUNCTION vj_row()""", "", ("t", "q")),
    "ru": ("""CREATE TABLE ru (id int PRIMARY KEY, v int);
        CREATE RULE also AS ON UPDATE TO ru DO ALSO INSERT INTO lg VALUES ('ru', OLD.v, NEW.v);
        CREATE RULE instead AS ON DELETE TO ru DO INSTEAD UPDATE ru SET v = -1 WHERE id = OLD.id""",
           "INSERT INTO ru SELECT i, i % 3 FROM generate_series(1, 4) i", ("lg",)),
    "rl": ("""CREATE TABLE rl (id int PRIMARY KEY, v int);
        ALTER TABLE rl ENABLE ROW LEVEL SECURITY;
        CREATE POLICY s ON rl USING (v < 3) WITH CHECK (v < 4);
        CREATE POLICY o ON rl AS RESTRICTIVE FOR UPDATE USING (EXISTS (SELECT FROM q WHERE q.id = rl.id AND q.v > 1));
        GRANT ALL ON rl TO differential_user; GRANT SELECT ON q TO differential_user""",
           "INSERT INTO rl SELECT i, i % 3 FROM generate_series(1, 5) i", ("q",)),
    "dq": ("CREATE TABLE dq (id int PRIMARY KEY, n int UNIQUE DEFERRABLE INITIALLY IMMEDIATE, v int)",
           "INSERT INTO dq SELECT i, i, 0 FROM generate_series(1, 4) i", ()),
    "dp": ("CREATE TABLE dp (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v int)",
           "INSERT INTO dp SELECT i, i % 3 FROM generate_series(1, 4) i", ()),
    "uu": ("""CREATE TABLE uu (id int PRIMARY KEY, a int NOT NULL UNIQUE, b int, v int);
        CREATE UNIQUE INDEX ON uu (b) WHERE v > 0""",
           "INSERT INTO uu SELECT i, i, i, i % 3 FROM generate_series(1, 5) i", ()),
    "nu": ("CREATE TABLE nu (id int NOT NULL UNIQUE, v int)", "INSERT INTO nu SELECT i, i % 3 FROM generate_series(1, 5) i", ()),
    "nn": ("CREATE TABLE nn (id int, v int)", "INSERT INTO nn SELECT i, i % 3 FROM generate_series(1, 4) i", ()),
    "cc": ("CREATE TABLE cc (a int, b text, v int, PRIMARY KEY (a, b))",
           "INSERT INTO cc SELECT i / 2, chr(97 + i % 2), i FROM generate_series(0, 5) i", ()),
}
# Tables that the definition of another one makes.
WITHIN = {"tb": ("tbh",), "ta": ("tac",)}
# A write of a parent looks at its children.
CHILDREN = ("fr", "fc", "fn", "fd")
VIEWS = ("vc", "vj")
FUNCTIONS = """CREATE FUNCTION upsert(i int, x int) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO t (id, k, v) VALUES (i, 0, x); RETURN 'inserted';
    EXCEPTION WHEN unique_violation THEN UPDATE t SET v = v + x WHERE id = i; RETURN 'updated ' || FOUND; END $$;
CREATE FUNCTION undone(i int, x int) RETURNS text LANGUAGE plpgsql AS $$ DECLARE y int; BEGIN
        UPDATE t SET v = v + x WHERE id = i RETURNING v INTO y; PERFORM 1 / (y % 2); RETURN 'kept ' || y;
    EXCEPTION WHEN division_by_zero THEN RETURN 'undone'; END $$;
CREATE FUNCTION patient(i int) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
        PERFORM FROM t WHERE id = i FOR UPDATE NOWAIT; UPDATE t SET s = s || 'p' WHERE id = i; RETURN 'got';
    EXCEPTION WHEN lock_not_available THEN RETURN 'held'; WHEN serialization_failure THEN RETURN 'failed'; END $$;
CREATE FUNCTION loop_over(x int) RETURNS int LANGUAGE plpgsql AS $$ DECLARE r record; n int := 0; BEGIN
        FOR r IN SELECT id, v FROM t WHERE id > 0 ORDER BY id FOR UPDATE LOOP
            IF r.v = x THEN UPDATE t SET v = r.v + 1 WHERE id = r.id; n := n + 1; END IF; END LOOP; RETURN n; END $$;
CREATE FUNCTION walk(x int) RETURNS int LANGUAGE plpgsql AS $$ DECLARE c CURSOR FOR SELECT * FROM t WHERE id > 2 ORDER BY id FOR UPDATE; n int := 0; BEGIN
        FOR r IN c LOOP UPDATE t SET v = v + x WHERE CURRENT OF c; n := n + r.v; END LOOP; RETURN n; END $$;
CREATE FUNCTION bump(i int) RETURNS int LANGUAGE plpgsql AS $$ DECLARE y int; BEGIN
        UPDATE q SET v = v + 1 WHERE id = i RETURNING v INTO y; RETURN y; END $$;
CREATE FUNCTION peek(i int) RETURNS int STABLE LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT v FROM q WHERE id = i); END $$;
CREATE FUNCTION peek_new(i int) RETURNS int VOLATILE LANGUAGE sql AS $$ SELECT v FROM q WHERE id = i $$"""
FUNCTION_NAMES = re.findall(r"FUNCTION (\w+)", FUNCTIONS)
PREPARED = {
    "up": "(int, int) AS UPDATE t SET v = v + $2 WHERE id = $1 RETURNING id, v, g",
    "us": "(int, int) AS UPDATE t SET v = $2 WHERE id = $1",
    "uw": "(int, int) AS UPDATE t SET v = v + 1 WHERE id = $1 AND v = $2 RETURNING *",
    "dl": "(int, int) AS DELETE FROM t WHERE id = $1 AND k <> $2 RETURNING *",
    "se": "(int, int) AS SELECT v, s FROM t WHERE id = $1",
    "sf": "(int, int) AS SELECT v, s FROM t WHERE id = $1 FOR UPDATE",
    "sn": "(int, int) AS SELECT v, s FROM t WHERE id = $1 FOR NO KEY UPDATE NOWAIT",
    "sk": "(int, int) AS SELECT v FROM t WHERE id = $1 FOR SHARE SKIP LOCKED",
    "rg": "(int, int) AS SELECT sum(v), count(*) FROM t WHERE id BETWEEN $1 AND $2",
    "oc": "(int, int) AS INSERT INTO t (id, k, v) VALUES ($1, 1, $2) ON CONFLICT (id) DO UPDATE SET v = t.v + excluded.v RETURNING id, v",
    "qu": "(int, int) AS UPDATE q SET v = v + $2 WHERE id = $1 RETURNING *",
    "qi": "(int, int) AS INSERT INTO q VALUES ($1 + 20, 1, $2)",
}
# Keys that no row has at first. An INSERT takes one of them as a rule: those that meet an update
# differ by documented rules (see differential.documented).
FREE = (7, 8, 9, 11)
JOINS = ("nestloop", "hashjoin", "mergejoin")
WAYS = {"bypass": (), "scan": ("mixedcc.enable_bypass = off",),
        "executor": ("mixedcc.enable_bypass = off", "mixedcc.enable_primary_scan = off")}
LEVELS = ("READ COMMITTED", "REPEATABLE READ")
MODES = ("UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE")


def needed(words):
    """The tables that some words name, and those that these need, in the order of TABLES."""
    todo, found = [w for w in words if w in TABLES], set()
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += TABLES[name][2] + (CHILDREN if name == "fp" else ())
    return [name for name in TABLES if name in found]


class Script:
    """Settings of each session, and steps: (session, statement)."""

    def __init__(self, seed):
        self.seed = seed
        r = self.r = random.Random(seed)
        self.level = r.choice(("rc", "rc", "rc", "rr", "mixed", "mixed"))
        self.world = r.random()
        self.way = r.choice(tuple(WAYS))
        # Updates of an indexed column and FOR KEY SHARE wait for each other here and not on heap
        # (docs/limits.md, "Foreign keys"): a script has the ones or the others.
        self.moves = r.random() < 0.5
        self.modes = MODES[:3] if self.moves else MODES
        # No TRUNCATE in most scripts, as all others wait for it.
        self.truncates = r.random() < 0.04
        self.prepares = r.random() < 0.12
        join = r.choice(JOINS)
        self.settings = [f"enable_{j} = off" for j in JOINS if j != join] + list(WAYS[self.way])
        self.hot = r.sample(range(1, 7), 2)
        if r.random() < 0.5:
            self.settings.append("plan_cache_mode = force_generic_plan")
        themes = [self.plain, self.plain, self.joins, self.joins, self.ctes, self.merges, self.conflicts, self.partitioned, self.foreign,
                  self.foreign, self.triggers, self.triggers, self.views, self.policies, self.deferred, self.unique, self.functions,
                  self.executed, self.others, self.subplans]
        self.themes = r.sample(themes, r.choice((1, 1, 2, 3))) + [self.plain] * r.choice((0, 0, 1))
        self.triggered = r.choice(("tb", "tl", "tn", "ta", "tt", "ts"))
        self.role = False
        self.uses_prepared = False
        self.cursors = 0
        sessions = r.choice((2, 2, 2, 3))
        self.steps = self.interleave([self.session(n) for n in range(1, sessions + 1)])
        self.sessions = sessions

    # -- order

    def interleave(self, lists):
        """Short runs of one session: a conflict needs another's open transaction."""
        r, steps, lists = self.r, [], {n + 1: list(steps) for n, steps in enumerate(lists)}
        while lists:
            n = r.choice(sorted(lists))
            for _ in range(r.choice((1, 1, 2))):
                if lists[n]:
                    steps.append((n, lists[n].pop(0)))
            if not lists[n]:
                del lists[n]
        return steps

    def session(self, n):
        steps = []
        for _ in range(self.r.choice((1, 1, 2))):
            steps += self.transaction(n)
        return steps

    def transaction(self, n):
        r = self.r
        if r.random() < 0.15:
            return [self.statement()]
        level = {"rc": LEVELS[0], "rr": LEVELS[1]}.get(self.level) or r.choice(LEVELS)
        steps = [f"BEGIN ISOLATION LEVEL {level}"]
        saved = []
        for _ in range(r.choice((1, 2, 2, 3))):
            steps.append(self.statement())
            chance = r.random()
            if chance < 0.12:
                saved.append(f"p{len(saved)}")
                steps += [f"SAVEPOINT {saved[-1]}", self.statement()]
            if saved and r.random() < 0.5:
                steps.append(f"{r.choice(('ROLLBACK TO', 'ROLLBACK TO', 'RELEASE'))} {saved[-1]}")
                if steps[-1].startswith("RELEASE"):
                    saved.pop()
            if chance > 0.95:
                steps += self.cursor()
        if self.prepares and r.random() < 0.6:
            return steps + [f"PREPARE TRANSACTION '{{gid}}{n}'", f"{r.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))} PREPARED '{{gid}}{n}'"]
        return steps + [r.choice(("COMMIT", "COMMIT", "COMMIT", "COMMIT", "ROLLBACK"))]

    def cursor(self):
        r = self.r
        self.cursors += 1
        c = f"c{self.cursors}"
        kind = r.choice(("update", "update", "scroll", "hold"))
        if kind == "update":
            steps = [f"DECLARE {c} CURSOR FOR SELECT id, v FROM t WHERE id > {r.randint(0, 3)} ORDER BY id FOR {r.choice(self.modes[:2])}",
                     f"FETCH {r.choice((1, 2))} FROM {c}"]
            steps.append(r.choice((f"UPDATE t SET {self.change()} WHERE CURRENT OF {c} RETURNING id, v", f"DELETE FROM t WHERE CURRENT OF {c} RETURNING id")))
            return steps + [f"FETCH NEXT FROM {c}"]
        if kind == "hold":
            return [f"DECLARE {c} CURSOR WITH HOLD FOR SELECT id, v FROM t WHERE id > 1 ORDER BY id", self.statement(), f"FETCH ALL FROM {c}"]
        return [f"DECLARE {c} SCROLL CURSOR FOR SELECT id, v FROM t WHERE id > 0 ORDER BY id", f"FETCH 2 FROM {c}", self.statement(),
                f"FETCH PRIOR FROM {c}", f"FETCH ALL FROM {c}"]

    def statement(self):
        if self.truncates and self.r.random() < 0.15:
            return f"TRUNCATE {self.r.choice(('t', 'q', 't, q'))}"
        return self.r.choice(self.themes)()

    # -- pieces

    def key(self):
        return self.r.choice((*self.hot, *self.hot, *self.hot, 1, 2, 3, 4, 5, 6))

    def number(self):
        return self.r.randint(0, 4)

    def condition(self, a="t", columns="kv"):
        """Which rows of a table with the columns id, v and perhaps k."""
        r, k, n = self.r, self.key(), self.number()
        shapes = [f"{a}.id = {k}"] * 5 + [
            f"{a}.id IN ({k}, {self.key()})", f"{a}.id BETWEEN {k} AND {k + 2}", f"{a}.id + 0 = {k}", f"{a}.id > 0 AND {a}.v = {n}",
            f"{a}.id > {k} AND {a}.v < {n}", f"{a}.id = {k} AND {a}.v = {n}", f"{a}.id = {k} AND {a}.v <> {n}", f"{a}.id > 0 AND {a}.v IS NULL",
            f"{a}.id = ANY ('{{{k},{self.key()}}}')", f"{a}.id = {k} OR {a}.id = {self.key()}", f"{a}.id < {k}",
            f"{a}.id IN (SELECT id FROM q WHERE id > 0 AND v > {n})", f"{a}.id = (SELECT max(id) FROM q WHERE id < {k + 1})",
            f"{a}.id > 0 AND EXISTS (SELECT FROM q WHERE q.id = {a}.id AND q.v = {a}.v)", f"{a}.id = {k} AND {a}.v = (SELECT v FROM q WHERE id = {self.key()})",
            f"{a}.id > 0 AND {a}.v = (SELECT max(v) - 1 FROM q WHERE id > 0)"]
        if "k" in columns:
            shapes += [f"{a}.k = {n % 3}", f"{a}.k = {n % 3} AND {a}.v > 0", f"({a}.id, {a}.k) > (3, 0) AND {a}.id > 0"]
        return r.choice(shapes)

    def change(self, a="t", kind="t"):
        r, n = self.r, self.number()
        shapes = ["v = v + 1", "v = v + 1", f"v = v + {n}", f"v = {n}", "v = v", "v = NULL"]
        if kind == "t":
            shapes += ["s = s || 'x'", f"v = {n}, s = s || v", f"v = (SELECT max(v) FROM q WHERE id > {n})", f"u = {r.choice((10, 20, 70, 80))}", "u = NULL",
                       "u = u", f"id = {r.choice((*FREE, *FREE, self.key()))}", "id = id + 10", "id = id", f"(v, s) = (SELECT v, 'q' || id FROM q WHERE id = {n})"]
            if self.moves:
                shapes += [f"k = {n % 3}", "k = k + 1", "k = k + 1, v = v + 1", "k = k"]
        if kind == "q" and self.moves:
            shapes += ["k = k + 1", f"id = {r.choice(FREE)}"]
        return r.choice(shapes)

    def returning(self, a="*"):
        return self.r.choice(("", f" RETURNING {a}", f" RETURNING {a}"))

    def wait(self):
        return self.r.choice(("", "", "", " NOWAIT", " SKIP LOCKED"))

    # -- themes

    def plain(self):
        r = self.r
        a, kind = r.choice((("t", "t"), ("t", "t"), ("t", "t"), ("q", "q")))
        return r.choice((
            lambda: f"UPDATE {a} SET {self.change(a, kind)} WHERE {self.condition(a)}{self.returning()}",
            lambda: f"UPDATE {a} SET {self.change(a, kind)} WHERE {self.condition(a)}{self.returning()}",
            lambda: f"UPDATE {a} SET v = v + 1 WHERE id = {self.key()}{self.returning()}",
            lambda: f"DELETE FROM {a} WHERE {self.condition(a)}{self.returning()}",
            lambda: self.select(a),
            lambda: self.select(a),
            lambda: f"SELECT * FROM {a} WHERE {self.condition(a)} ORDER BY id",
            lambda: f"INSERT INTO {a} (id, k, v) VALUES ({r.choice(FREE)}, {self.number() % 3}, {self.number()}){self.returning()}",
            lambda: f"INSERT INTO {a} (id, k, v) SELECT id + {r.choice((6, 10))}, k, v FROM q WHERE id < {self.key()}",
        ))()

    def select(self, a="t"):
        r, mode = self.r, self.r.choice(self.modes)
        tail = f"FOR {mode}{self.wait()}"
        return r.choice((
            f"SELECT id, v FROM {a} WHERE {self.condition(a)} ORDER BY id {tail}",
            f"SELECT id, v FROM {a} WHERE {self.condition(a)} ORDER BY id {tail}",
            f"SELECT * FROM {a} WHERE id = {self.key()} {tail}",
            f"SELECT id FROM {a} WHERE id > 0 ORDER BY id LIMIT {r.choice((1, 2))} FOR UPDATE SKIP LOCKED",
            f"SELECT id, v FROM {a} WHERE id > 0 AND v > {self.number()} ORDER BY v, id LIMIT 2 {tail}",
            f"SELECT count(*), sum(v) FROM (SELECT * FROM {a} WHERE {self.condition(a)} ORDER BY id {tail}) x",
            f"SELECT v, count(*) FROM (SELECT * FROM {a} WHERE id > 0 ORDER BY id {tail}) x GROUP BY v HAVING count(*) > 1",
            f"SELECT id, v, (SELECT max(v) FROM q WHERE id > 0) FROM {a} WHERE id = {self.key()} {tail}",
        ))

    def joins(self):
        r, k, n = self.r, self.key(), self.number()
        mode = f"FOR {r.choice(self.modes)}"
        return r.choice((
            f"UPDATE t SET v = t.v + q.v FROM q WHERE t.id > 0 AND q.id > 0 AND t.id = q.id AND q.v > {n} RETURNING t.id, t.v, q.*",
            f"UPDATE t SET v = t.v + q.v FROM q WHERE t.id > 0 AND q.id > 0 AND q.k = t.k AND t.id = {k}",
            f"UPDATE t SET v = q.v FROM q WHERE t.id > 0 AND q.id > 0 AND q.v = t.v RETURNING t.id, t.v",
            f"UPDATE t SET v = t.v + 1 FROM q WHERE q.id = {k} AND t.id = q.v RETURNING t.*",
            f"UPDATE t SET {self.change()} FROM q q2 WHERE t.id > 0 AND q2.id > 0 AND t.id = q2.id AND t.v < {n + 2}".replace("v = v +", "v = t.v +").replace("v = v", "v = t.v"),
            f"UPDATE t SET v = t.v + b.v FROM t b WHERE t.id = {k} AND b.id = {self.key()} RETURNING t.*, b.v",
            f"UPDATE t SET v = t.v + 1 FROM t b WHERE t.id > 0 AND b.id > 0 AND t.v = b.v AND b.id = {k} RETURNING t.id, b.id",
            f"UPDATE q SET v = q.v + t.v FROM t LEFT JOIN t t2 ON t2.id = t.v WHERE q.id = {k} AND t.id = q.id RETURNING q.*, t2.id",
            f"DELETE FROM t USING q WHERE t.id > 0 AND q.id > 0 AND t.id = q.id AND q.v = {n} RETURNING t.id, q.v",
            f"DELETE FROM t USING q WHERE t.id > 0 AND q.id > 0 AND t.k = q.k AND t.v = {n}",
            f"DELETE FROM t USING t b WHERE t.id > 0 AND b.id > 0 AND t.v = b.v AND t.id > b.id RETURNING t.id, b.id",
            f"SELECT t.id, t.v, q.v FROM t JOIN q ON q.id = t.id WHERE t.id > 0 AND q.id > 0 AND t.id <= {k} ORDER BY t.id {mode}",
            f"SELECT t.id, t.v, q.v FROM t JOIN q ON q.id = t.id WHERE t.id > 0 AND q.id > 0 AND q.v > {n} ORDER BY t.id {mode} OF t{self.wait()}",
            f"SELECT t.id, q.id, q.v FROM t LEFT JOIN q ON q.id = t.v WHERE t.id > 0 ORDER BY t.id, q.id {mode} OF t",
            f"SELECT a.id, a.v, b.v FROM t a JOIN t b ON a.id = b.v WHERE a.id > 0 AND b.id > 0 ORDER BY a.id, b.id {mode}",
            f"UPDATE t SET v = x.m FROM (SELECT k, max(v) AS m FROM q WHERE id > 0 GROUP BY k) x WHERE t.id > 0 AND x.k = t.k AND t.id < {k} RETURNING t.*",
            f"UPDATE t SET v = t.v + l.v FROM (SELECT id, v FROM q WHERE id > 0 ORDER BY id FOR UPDATE) l WHERE t.id = l.id AND t.id = {k} RETURNING t.id, t.v",
        ))

    def ctes(self):
        r, k, n = self.r, self.key(), self.number()
        mode = r.choice(self.modes)
        lock = r.choice((f"SELECT id, v FROM t WHERE {self.condition()} ORDER BY id FOR {mode}{self.wait()}",
                         f"SELECT id, v FROM t WHERE id = {k} FOR {mode}", f"SELECT id, v FROM q WHERE id = {k} FOR UPDATE",
                         f"SELECT id, v FROM t WHERE id > 0 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"))
        once = r.choice(("", "MATERIALIZED "))
        return r.choice((
            f"WITH l AS {once}({lock}) UPDATE t SET v = t.v + 1 FROM l WHERE t.id > 0 AND t.id = l.id RETURNING t.id, t.v, l.v",
            f"WITH l AS {once}({lock}) UPDATE t SET v = l.v + 1 FROM l WHERE t.id > 0 AND t.id = l.id",
            f"WITH l AS {once}({lock}) DELETE FROM t USING l WHERE t.id > 0 AND t.id = l.id AND t.v < {n} RETURNING t.id",
            f"UPDATE t SET v = v + 1 WHERE id = (SELECT id FROM t WHERE id > 0 AND v >= {n} ORDER BY id LIMIT 1 FOR UPDATE{self.wait()}) RETURNING id, v",
            f"UPDATE t SET v = v + 1 WHERE id IN (SELECT id FROM t WHERE id > 0 AND v = {n} ORDER BY id FOR UPDATE) RETURNING id, v",
            f"DELETE FROM t WHERE id = (SELECT id FROM t WHERE id > 0 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id, v",
            f"WITH w AS (UPDATE t SET v = v + 1 WHERE {self.condition()} RETURNING id, v) UPDATE q SET v = w.v FROM w WHERE q.id > 0 AND q.id = w.id RETURNING q.*",
            f"WITH w AS (UPDATE q SET v = v + 1 WHERE id = {k} RETURNING id, v) SELECT w.*, t.v FROM w JOIN t ON t.id = w.id",
            f"WITH w AS (DELETE FROM t WHERE {self.condition()} RETURNING id, v) INSERT INTO lg SELECT 'gone', id, v FROM w",
            f"WITH w AS (DELETE FROM q WHERE id = {k} RETURNING id, k, v) INSERT INTO t (id, k, v) SELECT id + 10, coalesce(k, 0), v FROM w RETURNING id, v",
            f"WITH w AS (UPDATE t SET v = v + 1 WHERE id = {k} RETURNING id, v) UPDATE t SET v = t.v + 10 FROM w WHERE t.id > 0 AND t.id = w.id RETURNING t.id, t.v",
            f"WITH w AS (INSERT INTO q VALUES ({r.choice(FREE)}, 0, {n}) ON CONFLICT (id) DO UPDATE SET v = q.v + 1 RETURNING *) SELECT * FROM w",
        ))

    def merges(self):
        r, k, n = self.r, self.key(), self.number()
        source = r.choice((f"(SELECT {k} AS id, {n} AS v)", "(SELECT id, v FROM q WHERE id > 0)", f"(VALUES ({k}, {n}), ({r.choice(FREE)}, 1))",
                           f"(SELECT id, v FROM q WHERE id = {k} FOR UPDATE)", f"(SELECT id, v FROM t WHERE id = {k} FOR UPDATE)"))
        clauses = r.sample((f"WHEN MATCHED AND t.v = {n} THEN DELETE", f"WHEN MATCHED AND t.v < {n} THEN UPDATE SET v = t.v + s.v", "WHEN MATCHED AND s.v > t.v THEN DO NOTHING",
                            f"WHEN MATCHED AND t.s = '' THEN UPDATE SET s = 'm', v = t.v + 1", f"WHEN MATCHED AND t.id = {k} THEN UPDATE SET {self.change()}"
                            .replace("v = v", "v = t.v").replace("s = s", "s = t.s").replace("id = id", "id = t.id").replace("u = u", "u = t.u").replace("k = k", "k = t.k")
                            .replace("|| v", "|| t.v")), r.choice((1, 2, 3)))
        clauses += r.choice(([], ["WHEN MATCHED THEN UPDATE SET v = t.v + 1"], ["WHEN MATCHED THEN DELETE"], ["WHEN MATCHED THEN DO NOTHING"]))
        clauses += r.choice(([], ["WHEN NOT MATCHED THEN INSERT (id, k, v) VALUES (s.id, 0, s.v)"], [f"WHEN NOT MATCHED AND s.v > {n} THEN INSERT (id, k, v) VALUES (s.id, 0, s.v)"],
                             ["WHEN NOT MATCHED THEN DO NOTHING"]))
        return f"MERGE INTO t USING {source} s (id, v) ON t.id > 0 AND t.id = s.id{r.choice(('', '', f' AND t.v < {n + 1}'))} " + " ".join(clauses)

    def conflicts(self):
        r, n = self.r, self.number()
        k = r.choice((self.key(), self.key(), *FREE))
        into = f"INSERT INTO t (id, k, u, v) VALUES ({k}, 0, {r.choice(('NULL', 'NULL', 70, 10))}, {n})"
        return r.choice((
            f"{into} ON CONFLICT (id) DO UPDATE SET v = t.v + excluded.v + 1 RETURNING *",
            f"{into} ON CONFLICT (id) DO UPDATE SET v = t.v + 1 WHERE t.v < {n} RETURNING *",
            f"{into} ON CONFLICT (id) DO UPDATE SET id = t.id + 10, s = 'moved' RETURNING *",
            f"{into} ON CONFLICT (u) DO UPDATE SET v = excluded.v, s = t.s || 'u' RETURNING *",
            f"{into} ON CONFLICT DO NOTHING RETURNING *",
            f"{into} ON CONFLICT (id) DO NOTHING",
            f"INSERT INTO t (id, k, v) SELECT id, 0, v FROM q WHERE id BETWEEN {k - 1} AND {k} ON CONFLICT (id) DO UPDATE SET v = t.v + (SELECT max(v) FROM q WHERE id > 0) RETURNING id, v",
            f"INSERT INTO q (id, k, v) VALUES ({k}, 1, {n}) ON CONFLICT (id) DO UPDATE SET v = q.v + 1 RETURNING *",
            f"UPDATE t SET v = v + 1 WHERE id = {self.key()} RETURNING *",
            f"DELETE FROM t WHERE id = {self.key()} RETURNING *",
        ))

    def partitioned(self):
        r, k, n = self.r, self.key(), self.number()
        p = r.choice(("pr", "pr", "ph"))
        if p == "ph":
            return r.choice((
                f"UPDATE ph SET v = v + 1 WHERE id = {k} RETURNING *", f"UPDATE ph SET id = {r.choice(FREE)} WHERE id = {k} RETURNING *",
                f"UPDATE ph SET id = id + 1 WHERE id = {k} RETURNING *", f"DELETE FROM ph WHERE id = {k} RETURNING *",
                f"SELECT * FROM ph WHERE id = {k} FOR {r.choice(self.modes)}{self.wait()}",
                f"INSERT INTO ph VALUES ({r.choice((k, *FREE))}, {n}) ON CONFLICT (id) DO UPDATE SET v = ph.v + 1 RETURNING *",
                f"UPDATE ph SET v = ph.v + q.v FROM q WHERE q.id = {k} AND ph.id = q.id RETURNING ph.*",
                f"SELECT * FROM ph WHERE id > 0 ORDER BY id",
                f"UPDATE ph SET id = id + 10 WHERE id = {k} AND v = {n}"))
        return r.choice((
            f"UPDATE pr SET v = v + 1 WHERE id = {k} RETURNING *", f"UPDATE pr SET k = {r.choice((1, 2, 4, 5))} WHERE id = {k} RETURNING *",
            f"UPDATE pr SET k = k + 2, v = v + 1 WHERE id = {k}", f"UPDATE pr SET v = v + 1 WHERE id = {k} AND k = {n + 1} RETURNING *",
            f"DELETE FROM pr WHERE id = {k} RETURNING *", f"SELECT * FROM pr WHERE id = {k} ORDER BY id FOR {r.choice(self.modes)}{self.wait()}",
            f"DELETE FROM pr WHERE id = {k} AND v > {n % 3}", f"MERGE INTO pr USING (SELECT {k} AS id) s ON pr.id = s.id WHEN MATCHED AND pr.v = {n} THEN UPDATE SET k = 4, v = 9 WHEN MATCHED THEN UPDATE SET v = pr.v + 1",
            f"MERGE INTO pr USING (SELECT {k} AS id) s ON pr.id = s.id WHEN MATCHED AND pr.v > {n} THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (s.id + 10, 1, 0)",
            f"INSERT INTO pr VALUES ({r.choice(FREE)}, {r.choice((1, 4))}, {n}) ON CONFLICT (id, k) DO UPDATE SET v = pr.v + 1 RETURNING *",
            f"UPDATE pr SET v = pr.v + q.v FROM q WHERE q.id = {k} AND pr.id = q.id RETURNING pr.*", f"SELECT * FROM pr WHERE id > 0 ORDER BY id, k"))

    def foreign(self):
        r, k, n = self.r, self.key(), self.number()
        child = r.choice(CHILDREN)
        return r.choice((
            f"INSERT INTO {child} VALUES ({r.choice(FREE)}, {k}, {n}){self.returning()}", f"INSERT INTO {child} VALUES ({r.choice(FREE)}, {k}, {n})",
            f"UPDATE {child} SET pid = {r.choice((k, k, 'NULL', 7))} WHERE id = {k % 3 + 1}", f"UPDATE {child} SET v = v + 1 WHERE id = {k % 3 + 1}",
            f"DELETE FROM {child} WHERE id = {k % 3 + 1} RETURNING *", f"UPDATE fp SET v = v + 1 WHERE id = {k} RETURNING *",
            f"UPDATE fp SET v = v + 1 WHERE id > 0 AND v = {n}", f"UPDATE fp SET id = {r.choice(FREE)} WHERE id = {k}", f"UPDATE fp SET id = id WHERE id = {k}",
            f"DELETE FROM fp WHERE id = {k} RETURNING *", f"DELETE FROM fp WHERE id = {k}", f"INSERT INTO fp VALUES ({r.choice(FREE)}, 0, NULL)",
            f"SELECT * FROM fp WHERE id = {k} FOR {r.choice(MODES)}{self.wait()}", f"SELECT * FROM {child} WHERE id > 0 ORDER BY id FOR {r.choice(MODES[:2])}",
            f"SELECT p.id, p.v, c.id, c.v FROM fp p JOIN {child} c ON c.pid = p.id WHERE p.id > 0 AND c.id > 0 ORDER BY 1, 3",
            "SET CONSTRAINTS ALL IMMEDIATE", f"INSERT INTO fp VALUES ({k}, 0, NULL) ON CONFLICT (id) DO UPDATE SET v = fp.v + 10"))

    def triggers(self):
        r, k, n = self.r, self.r.choice((1, 1, 2, 3)), self.number()
        a = self.triggered
        return r.choice((
            f"UPDATE {a} SET v = v + 1 WHERE id = {k} RETURNING *", f"UPDATE {a} SET v = v + 1 WHERE id = {k}", f"UPDATE {a} SET v = v + 10 WHERE id IN ({k}, {k + 1}) RETURNING *",
            f"UPDATE {a} SET v = {n} WHERE {self.condition(a, 'v')}", f"UPDATE {a} SET id = {r.choice(FREE)} WHERE id = {k}", f"DELETE FROM {a} WHERE id = {k} RETURNING *",
            f"DELETE FROM {a} WHERE {self.condition(a, 'v')}", f"SELECT * FROM {a} WHERE id = {k} FOR {r.choice(self.modes)}{self.wait()}",
            f"INSERT INTO {a} VALUES ({r.choice(FREE)}, {n})", f"INSERT INTO {a} VALUES ({k}, {n}) ON CONFLICT (id) DO UPDATE SET v = {a}.v + 10 RETURNING *",
            f"MERGE INTO {a} USING (SELECT {k} AS id) s ON {a}.id = s.id WHEN MATCHED AND v = {n} THEN UPDATE SET v = v + 100 WHEN MATCHED THEN UPDATE SET v = v + 10",
            f"MERGE INTO {a} USING (SELECT {k} AS id) s ON {a}.id = s.id WHEN MATCHED AND v > {n} THEN DELETE WHEN MATCHED THEN UPDATE SET v = v + 10",
            f"UPDATE {a} SET v = {a}.v + q.v FROM q WHERE q.id = {k} AND {a}.id = q.id RETURNING {a}.*",
            f"WITH l AS (SELECT id FROM {a} WHERE id = {k} FOR UPDATE) UPDATE {a} SET v = {a}.v + 1 FROM l WHERE {a}.id = l.id RETURNING {a}.*",
            f"SELECT * FROM {a} WHERE id > 0 ORDER BY id"))

    def views(self):
        r, k, n = self.r, self.key(), self.number()
        return r.choice((
            f"UPDATE vc SET v = v + 1 WHERE id = {k} RETURNING *", f"UPDATE vc SET v = {n} WHERE id = {k}", f"DELETE FROM vc WHERE id = {k} RETURNING *",
            f"SELECT * FROM vc WHERE id = {k} FOR {r.choice(self.modes)}{self.wait()}", f"INSERT INTO vc VALUES ({r.choice(FREE)}, 0, {n})",
            f"UPDATE vj SET v = v + 1, w = w + 1 WHERE id = {k} RETURNING *", f"UPDATE vj SET w = {n} WHERE id = {k} AND v < 3",
            f"UPDATE ru SET v = v + 1 WHERE id = {k} RETURNING *", f"UPDATE ru SET v = v + 1 WHERE id > 0 AND v = {n}", f"DELETE FROM ru WHERE id = {k}",
            f"UPDATE t SET v = v + 1 WHERE id = {k}", f"SELECT * FROM ru WHERE id = {k} FOR UPDATE", f"SELECT * FROM vj WHERE id > 0 ORDER BY id"))

    def policies(self):
        r, k, n = self.r, self.key(), self.number()
        return r.choice((
            "SET ROLE differential_user", "SET ROLE differential_user", "RESET ROLE",
            f"UPDATE rl SET v = v + 1 WHERE id = {k} RETURNING *", f"UPDATE rl SET v = {n} WHERE id = {k}", f"DELETE FROM rl WHERE id = {k} RETURNING *",
            f"SELECT * FROM rl WHERE id = {k} FOR UPDATE{self.wait()}", f"SELECT * FROM rl WHERE id > 0 ORDER BY id", f"INSERT INTO rl VALUES ({r.choice(FREE)}, {n})",
            f"INSERT INTO rl VALUES ({k}, {n}) ON CONFLICT (id) DO UPDATE SET v = rl.v + 1 RETURNING *", f"UPDATE rl SET v = v + 1 WHERE id > 0 AND v = {n}"))

    def deferred(self):
        r, k, n = self.r, self.key(), self.number()
        return r.choice((
            f"UPDATE dq SET n = n + 1 WHERE id > 0", f"UPDATE dq SET n = {r.choice((k, 9))} WHERE id = {k} RETURNING *", f"UPDATE dq SET v = v + 1 WHERE id = {k}",
            "SET CONSTRAINTS ALL DEFERRED", "SET CONSTRAINTS ALL IMMEDIATE", f"INSERT INTO dq VALUES ({r.choice(FREE)}, {r.choice((k, 8, 9))}, 0)", f"DELETE FROM dq WHERE id = {k} RETURNING *",
            f"UPDATE dp SET id = id + 1 WHERE id = {k}", f"UPDATE dp SET v = v + 1 WHERE id = {k} RETURNING *", f"INSERT INTO dp VALUES ({r.choice((k, *FREE))}, 0)",
            f"DELETE FROM dp WHERE id = {k}", f"SELECT * FROM dp WHERE id = {k} FOR UPDATE"))

    def unique(self):
        r, k, n = self.r, self.key(), self.number()
        return r.choice((
            f"UPDATE uu SET a = {r.choice((7, 8))} WHERE id = {k} RETURNING *", f"UPDATE uu SET b = {r.choice((7, 'NULL', 'b'))}, v = v + 1 WHERE id = {k}",
            f"UPDATE uu SET v = {n} WHERE id = {k} RETURNING *", f"DELETE FROM uu WHERE a = {k} RETURNING *", f"UPDATE uu SET v = v + 1 WHERE a = {k} RETURNING *",
            f"INSERT INTO uu VALUES ({r.choice(FREE)}, {r.choice((k, 7, 8))}, {r.choice((7, 'NULL'))}, {n})",
            f"INSERT INTO uu VALUES ({r.choice(FREE)}, {r.choice((k, 7, 8))}, NULL, {n}) ON CONFLICT (a) DO UPDATE SET v = uu.v + 1 RETURNING *",
            f"INSERT INTO uu VALUES ({r.choice((k, *FREE))}, {r.choice((7, 8))}, NULL, {n}) ON CONFLICT DO NOTHING RETURNING *",
            f"SELECT * FROM uu WHERE a = {k} FOR {r.choice(self.modes)}{self.wait()}", f"UPDATE nu SET v = v + 1 WHERE id = {k} RETURNING *", f"DELETE FROM nu WHERE id = {k}",
            f"UPDATE nu SET id = {r.choice(FREE)} WHERE id = {k} RETURNING *", f"INSERT INTO nu VALUES ({r.choice(FREE)}, {n}) ON CONFLICT (id) DO UPDATE SET v = nu.v + 1 RETURNING *",
            f"SELECT * FROM nu WHERE id = {k} FOR UPDATE{self.wait()}"))

    def functions(self):
        r, k, n = self.r, self.key(), self.number()
        return r.choice((
            f"SELECT upsert({r.choice((*FREE, 7, 8))}, {n})", f"SELECT undone({k}, {n})", f"SELECT patient({k})", f"SELECT loop_over({n})", f"SELECT walk({n})",
            f"SELECT id, bump(id) FROM t WHERE id IN ({k}, {self.key()}) ORDER BY id FOR UPDATE", f"UPDATE t SET v = peek(id) WHERE id = {k} RETURNING *",
            f"UPDATE t SET v = peek_new(id) + v WHERE id = {k} RETURNING *", f"UPDATE t SET v = v + 1 WHERE id > 0 AND v = peek({k})", f"UPDATE t SET v = bump(id) WHERE id = {k} RETURNING id, v",
            f"DO $$ BEGIN UPDATE t SET v = v + 1 WHERE id = {k}; IF NOT FOUND THEN INSERT INTO lg VALUES ('none', {k}, 0); END IF; END $$",
            f"UPDATE q SET v = v + 1 WHERE id = {k}", f"DELETE FROM t WHERE id = {k} AND peek_new(id) > {n} RETURNING *"))

    def executed(self):
        self.uses_prepared = True
        r = self.r
        name = r.choice(tuple(PREPARED))
        first = r.choice(FREE) if name == "oc" and r.random() < 0.5 else self.key()
        return f"EXECUTE {name}({first}, {self.number()})"

    def subplans(self):
        """Sub-selects in places where EvalPlanQual computes them again."""
        r, k, n = self.r, self.key(), self.number()
        return r.choice((
            f"UPDATE t SET v = (SELECT q.v FROM q WHERE q.id = t.id) WHERE id = {k} RETURNING *", f"UPDATE t SET v = v + (SELECT count(*) FROM t b WHERE b.v = t.v AND b.id > 0) WHERE id = {k} RETURNING *",
            f"UPDATE t SET v = v + 1 WHERE id > 0 AND v = (SELECT min(b.v) FROM t b WHERE b.id > 0) RETURNING id, v", f"UPDATE t SET v = v + 1 WHERE id = {k} AND v < ALL (SELECT v + 2 FROM q WHERE id > {n})",
            f"DELETE FROM t WHERE id > 0 AND NOT EXISTS (SELECT FROM q WHERE q.id = t.id AND q.v > t.v) RETURNING id", f"DELETE FROM t WHERE id > 0 AND id NOT IN (SELECT v FROM q WHERE id > 0) AND v > {n} RETURNING id",
            f"UPDATE t SET s = (SELECT string_agg(b.v::text, ',' ORDER BY b.id) FROM t b WHERE b.id > 0) WHERE id = {k} RETURNING s", f"SELECT id, (SELECT q.v FROM q WHERE q.id = t.v) FROM t WHERE id = {k} FOR UPDATE",
            f"WITH m AS MATERIALIZED (SELECT max(v) AS m FROM q WHERE id > 0) UPDATE t SET v = (SELECT m FROM m) WHERE id = {k} AND v <= (SELECT m FROM m) RETURNING id, v",
            f"UPDATE t SET v = CASE WHEN v > {n} THEN (SELECT q.k FROM q WHERE q.id = {k}) ELSE v + 1 END WHERE id = {k} RETURNING *",
            f"UPDATE q SET v = v + 1 WHERE id = {k} RETURNING *, (SELECT t.v FROM t WHERE t.id = q.id)"))

    def others(self):
        r, k, n = self.r, self.key(), self.number()
        b = r.choice(("a", "b"))
        return r.choice((
            f"UPDATE cc SET v = v + 1 WHERE a = {n % 3} AND b = '{b}' RETURNING *", f"UPDATE cc SET v = v + 1 WHERE a = {n % 3} RETURNING *", f"DELETE FROM cc WHERE a = {n % 3} AND b = '{b}' RETURNING *",
            f"UPDATE cc SET b = 'c' WHERE a = {n % 3} AND b = '{b}'", f"INSERT INTO cc VALUES ({n % 3}, 'd', 0) ON CONFLICT (a, b) DO UPDATE SET v = cc.v + 1 RETURNING *",
            f"SELECT * FROM cc WHERE a = {n % 3} ORDER BY a, b FOR {r.choice(self.modes)}{self.wait()}", f"UPDATE nn SET v = v + 1 WHERE id = {k} RETURNING *", f"DELETE FROM nn WHERE id = {k}",
            f"INSERT INTO nn VALUES (7, {n})", f"SELECT * FROM nn WHERE id = {k} FOR UPDATE{self.wait()}", f"UPDATE nn SET id = 7 WHERE id = {k} RETURNING *", f"SELECT count(*), sum(v) FROM nn"))
