#!/usr/bin/python3
"""Writes the specs of Adya's anomalies after Martin Kleppmann's Hermitage, one for each isolation
level and each protocol or pair of protocols. Also writes the specs of predicates at SERIALIZABLE
(phantoms-*), and of exclusion constraints (exclusion-*).

    tests/isolation/generate.py            write the specs
    tests/isolation/generate.py --check    fail if the files differ

Below SERIALIZABLE the interleavings are Hermitage's and the output is heap's.
At SERIALIZABLE a protocol may make the second transaction wait at any step, and
the tester hangs on a step of a session that waits; so a session does the steps
after its first possible wait in one go ("u1=12;u2=22;c"), or the order is derived:
see `order_of`. What must hold in the end is what `check` prints.
"""

import itertools
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True

from lib import protocols as known  # noqa: E402

SPECS = pathlib.Path(__file__).parent / "specs"
LEVELS = {"rc": "READ COMMITTED", "rr": "REPEATABLE READ", "ser": "SERIALIZABLE"}

# name, what must hold, steps below SERIALIZABLE, steps at SERIALIZABLE.
# A step is "session:statement"; the statement's names are expanded by SQL.
ANOMALIES = [
    ("G0", "both rows from the same writer",
     "1:u1=11 2:u1=12 1:u2=21 1:c 1:all 2:u2=22 2:c",
     "1:u1=11 2:u1=12;u2=22;c 1:u2=21 1:c"),
    ("G1a", "2 never reads 101",
     "1:u1=101 2:all 1:r 2:all 2:c",
     "1:u1=101 2:all;c 1:r"),
    ("G1b", "2 never reads 101",
     "1:u1=101 2:all 1:u1=11 1:c 2:all 2:c",
     "1:u1=101 2:all;c 1:u1=11 1:c"),
    ("G1c", "not both read the other's write, nor neither at SERIALIZABLE",
     "1:u1=11 2:u2=22 1:s2 2:s1 1:c 2:c",
     "1:u1=11 2:u2=22 1:s2 2:s1 1:c 2:c"),
    ("OTV", "3 never sees one write of 1 or 2 vanish",
     "1:u1=11 1:u2=19 2:u1=12 1:c 3:s1 2:u2=18 3:s2 2:c 3:s2 3:s1 3:c",
     "1:u1=11 1:u2=19 2:u1=12;u2=18;c 3:s1;s2;s2;s1;c 1:c"),
    ("PMP", "1 does not see row 3 after it saw that there is none, from REPEATABLE READ on",
     "1:p30 2:i3 2:c 1:p3 1:c",
     "1:p30 2:i3;c 1:p3 1:c"),
    ("PMP-write", "the predicate of 2's DELETE holds for what it deletes",
     "1:add10 2:del20 1:c 2:all 2:c",
     "1:add10 2:del20;all;c 1:c"),
    ("P4", "no lost update, from REPEATABLE READ on",
     "1:s1 2:s1 1:u1=11 2:u1=12 1:c 2:c",
     "1:s1 2:s1 1:u1=11 2:u1=12 1:c 2:c"),
    ("G-single", "1 sees 10 and 20, or 12 and 18, from REPEATABLE READ on",
     "1:s1 2:s1 2:s2 2:u1=12 2:u2=18 2:c 1:s2 1:c",
     "1:s1 2:all;u1=12;u2=18;c 1:s2 1:c"),
    ("G-single-predicate", "1 does not see row 1 leave one predicate for the other, from REPEATABLE READ on",
     "1:p5 2:to12 2:c 1:p3 1:c",
     "1:p5 2:to12;c 1:p3 1:c"),
    ("G-single-write-1", "1 deletes nothing that 2 changed, from REPEATABLE READ on",
     "1:s1 2:all 2:u1=12 2:u2=18 2:c 1:del20 1:r",
     "1:s1 2:all;u1=12;u2=18;c 1:del20 1:c"),
    ("G-single-write-2", "1 deletes nothing that 2 changed",
     "1:s1 2:all 2:u1=12 1:del20 2:u2=18 1:r 2:c",
     None),
    ("G2-item", "one of the two fails, at SERIALIZABLE",
     "1:all 2:all 1:u1=11 2:u2=21 1:c 2:c",
     "1:all 2:all 1:u1=11 2:u2=21 1:c 2:c"),
    ("G2", "one of the two fails, at SERIALIZABLE",
     "1:p3 2:p3 1:i3 2:i4 1:c 2:c",
     "1:p3 2:p3 1:i3 2:i4 1:c 2:c"),
    ("G2-two-edges", "if 3 saw 25, 1 fails, at SERIALIZABLE",
     "1:all 2:add5 2:c 3:all 3:c 1:u1=0 1:c",
     "1:all 2:add5;c 3:all;c 1:u1=0 1:c"),
]

SQL = {
    "c": "COMMIT", "r": "ROLLBACK",
    "all": "SELECT * FROM test ORDER BY id",
    "s1": "SELECT * FROM test WHERE id = 1", "s2": "SELECT * FROM test WHERE id = 2",
    "p30": "SELECT * FROM test WHERE value = 30 ORDER BY id",
    "p3": "SELECT * FROM test WHERE value % 3 = 0 ORDER BY id",
    "p5": "SELECT * FROM test WHERE value % 5 = 0 ORDER BY id",
    "i3": "INSERT INTO test VALUES (3, 30)", "i4": "INSERT INTO test VALUES (4, 42)",
    "add10": "UPDATE test SET value = value + 10",
    "add5": "UPDATE test SET value = value + 5 WHERE id = 2",
    "del20": "DELETE FROM test WHERE value = 20",
    "to12": "UPDATE test SET value = 12 WHERE value = 10",
}


# At SERIALIZABLE: 1 reads a predicate and writes row 1; 2 reads row 1 and writes
# into the predicate. Not both may commit. And, against a READ COMMITTED writer that
# does both writes: 1 sees both or none. name: (1's read, 2's write)
PHANTOMS = {
    "range-insert": ("SELECT id FROM test WHERE g BETWEEN 5 AND 9", "INSERT INTO test VALUES (6, 6, 0)"),
    "range-move-in": ("SELECT id FROM test WHERE g BETWEEN 5 AND 9", "UPDATE test SET g = 6 WHERE id = 2"),
    "range-move-out": ("SELECT id FROM test WHERE g = 2", "UPDATE test SET g = 50 WHERE id = 2"),
    "range-delete": ("SELECT count(*) FROM test WHERE g = 2", "DELETE FROM test WHERE id = 2"),
    "range-update": ("SELECT sum(v) FROM test WHERE g = 2", "UPDATE test SET v = 9 WHERE id = 2"),
    "open-range": ("SELECT max(g) FROM test", "INSERT INTO test VALUES (9, 99, 0)"),
    "null": ("SELECT count(*) FROM test WHERE g IS NULL", "INSERT INTO test VALUES (7, NULL, 0)"),
    "limit": ("SELECT g FROM test ORDER BY g LIMIT 1", "INSERT INTO test VALUES (8, 0, 0)"),
    "limit-backward": ("SELECT g FROM test WHERE g < 90 ORDER BY g DESC LIMIT 1", "INSERT INTO test VALUES (8, 80, 0)"),
    "limit-duplicate": ("SELECT g FROM test WHERE g >= 2 ORDER BY g LIMIT 1", "DELETE FROM test WHERE id = 2"),
    "absent-key": ("SELECT v FROM test WHERE id = 10", "INSERT INTO test VALUES (10, 10, 0)"),
    "moved-key": ("SELECT v FROM test WHERE id = 10", "UPDATE test SET id = 10 WHERE id = 2"),
    "any-array": ("SELECT count(*) FROM test WHERE id = ANY (ARRAY[20, 21, 22])", "INSERT INTO test VALUES (21, 21, 0)"),
    "join": ("SELECT count(*) FROM test a JOIN test b ON b.g = a.id + 10", "INSERT INTO test VALUES (11, 11, 0)"),
    "whole-table": ("SELECT count(*) FROM test", "INSERT INTO test VALUES (6, 6, 0)"),
    "conflict": ("INSERT INTO test VALUES (2, 0, 0) ON CONFLICT DO NOTHING", "DELETE FROM test WHERE id = 2"),
    "missed-update": ("UPDATE test SET v = 5 WHERE id = 10", "INSERT INTO test VALUES (10, 10, 0)"),
    "savepoint": ("SAVEPOINT s; SELECT count(*) FROM test WHERE g = 2; ROLLBACK TO s", "DELETE FROM test WHERE id = 2"),
    "exception": ("DO $$ BEGIN PERFORM 1 / (count(*) - 1) FROM test WHERE g = 2; EXCEPTION WHEN division_by_zero THEN NULL; END $$",
                  "DELETE FROM test WHERE id = 2"),
    "cursor": ("DECLARE c CURSOR FOR SELECT id, v FROM test WHERE g > 1 ORDER BY g; FETCH 1 FROM c", "UPDATE test SET v = 9 WHERE id = 2"),
}


def statement(word):
    """The SQL of one word; u1=11 sets row 1 to 11."""
    if "=" in word:
        row, value = word[1:].split("=")
        return f"UPDATE test SET value = {value} WHERE id = {row};"
    return SQL[word] + ";"


def identifier(session, words):
    return "s" + session + "_" + words.replace(";", "_").replace("=", "_")


def permutation(order):
    """The steps' names. If two sessions wait for each other, the victim (2) is reported first."""
    names = [identifier(s, w) for s, w in order]
    if [s for s, _ in order[-4:-2]] == ["1", "2"] and {order[-1], order[-2]} == {("1", "c"), ("2", "c")}:
        names[-4] += f"({names[-3]})"
    return names


def rows_of(words):
    """The rows (1, 2) that a step's first statement touches; all, if it scans."""
    first = words.split(";")[0]
    return {first[1]} if first[0] in "su" and first[1] in "12" else {"1", "2"}


def locks_partitions(protocol):
    return known.has(protocol, "locks_partitions")


def waits(protocol):
    """May a transaction wait for another before its COMMIT?"""
    return not known.only_validates(protocol)


def order_of(name, steps, protocols):
    """The interleaving at SERIALIZABLE, so that no step comes for a session that waits.

    If 2's first step waits for a partition that 1 locked, 1 ends before 2 goes on.
    Else, where both commit at the end, a session that may wait for the other's
    rows until then is the second to commit."""
    parsed = [tuple(step.split(":")) for step in steps.split()]
    queue = {s: [words for t, words in parsed if t == s] for s in dict.fromkeys(p[0] for p in parsed)}
    met = rows_of(queue["1"][0]) & rows_of(queue["2"][0])
    owners = [protocols[(int(row) - 1) % len(protocols)] for row in met] if len(protocols) > 1 else protocols
    if any(map(locks_partitions, owners)):
        order = [(s, words.pop(0)) for s, words in queue.items()]
        return order + [(s, word) for s, words in queue.items() for word in words]
    first_waits = waits(protocols[-1]) if name == "G1c" else known.has(protocols[0], "locks_reads")
    if parsed[-2:] == [("1", "c"), ("2", "c")] and len(protocols) > 1 and first_waits:
        parsed[-2:] = reversed(parsed[-2:])
    return parsed


# For each kind of scan: the scan, a write within what it reads, and one just beside it.
INDEX = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; "
BITMAP = "SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off; "
SEQUENTIAL = "SET LOCAL enable_indexscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_indexonlyscan = off; "
PRECISION = {
    "equal": (INDEX + "SELECT v FROM test WHERE id = 35", "INSERT INTO test VALUES (35, 9, 'x', 0)", "INSERT INTO test VALUES (36, 9, 'x', 0)"),
    "between": (INDEX + "SELECT sum(v) FROM test WHERE id BETWEEN 30 AND 50", "UPDATE test SET v = 1 WHERE id = 50", "UPDATE test SET v = 1 WHERE id = 60"),
    "open": (INDEX + "SELECT sum(v) FROM test WHERE id > 30 AND id < 50", "INSERT INTO test VALUES (31, 9, 'x', 0)", "DELETE FROM test WHERE id = 30"),
    "prefix": (INDEX + "SELECT sum(v) FROM test WHERE g = 2", "INSERT INTO test VALUES (35, 2, 'z', 0)", "INSERT INTO test VALUES (35, 3, 'a', 0)"),
    "prefix-range": (INDEX + "SELECT sum(v) FROM test WHERE g = 2 AND t > 'b'", "INSERT INTO test VALUES (35, 2, 'c', 0)", "INSERT INTO test VALUES (35, 2, 'b', 0)"),
    "row": (INDEX + "SELECT sum(v) FROM test WHERE (g, t) >= (2, 'b') AND (g, t) < (3, 'b')", "INSERT INTO test VALUES (35, 3, 'a', 0)", "INSERT INTO test VALUES (35, 3, 'b', 0)"),
    "in": (INDEX + "SELECT sum(v) FROM test WHERE id IN (20, 35, 60)", "INSERT INTO test VALUES (35, 9, 'x', 0)", "UPDATE test SET v = 1 WHERE id = 30"),
    "null": (INDEX + "SELECT sum(v) FROM test WHERE g IS NULL", "INSERT INTO test VALUES (35, NULL, 'x', 0)", "INSERT INTO test VALUES (35, 3, 'x', 0)"),
    "limit": (INDEX + "SELECT id FROM test WHERE id >= 20 ORDER BY id LIMIT 2", "INSERT INTO test VALUES (25, 9, 'x', 0)", "INSERT INTO test VALUES (35, 9, 'x', 0)"),
    "limit-desc": (INDEX + "SELECT id FROM test WHERE id <= 50 ORDER BY id DESC LIMIT 2", "DELETE FROM test WHERE id = 40", "DELETE FROM test WHERE id = 30"),
    "min": (INDEX + "SELECT min(id) FROM test WHERE id > 25", "INSERT INTO test VALUES (26, 9, 'x', 0)", "INSERT INTO test VALUES (31, 9, 'x', 0)"),
    "cursor": (INDEX + "DECLARE x CURSOR FOR SELECT id, v FROM test ORDER BY id; FETCH 2 FROM x", "UPDATE test SET v = 1 WHERE id = 20", "UPDATE test SET v = 1 WHERE id = 30"),
    "bitmap": (BITMAP + "SELECT sum(v) FROM test WHERE id < 30 OR id > 50", "INSERT INTO test VALUES (55, 9, 'x', 0)", "UPDATE test SET v = 1 WHERE id = 40"),
    "sequential": (SEQUENTIAL + "SELECT sum(v) FROM test WHERE id BETWEEN 30 AND 50", "UPDATE test SET id = 35 WHERE id = 70", "UPDATE test SET v = 1 WHERE id = 60"),
    "join": (INDEX + "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SELECT sum(b.v) FROM test a JOIN test b ON b.id = a.id + 20 WHERE a.id <= 20",
             "UPDATE test SET v = 1 WHERE id = 40", "UPDATE test SET v = 1 WHERE id = 50"),
    "expression": (INDEX + "SELECT sum(v) FROM test WHERE id / 20 = 2 AND t <> 'z'", "INSERT INTO test VALUES (45, 9, 'x', 0)", "INSERT INTO test VALUES (45, 9, 'z', 0)"),
    "range-scan": ("SELECT count(*) FROM mixedcc.range_scan(NULL::test, 30, 50, upper_inclusive => false)", "DELETE FROM test WHERE id = 40", "DELETE FROM test WHERE id = 50"),
}


def table(protocols, leaves):
    """One table, or one leaf for each row, so that a partition lock is a row's."""
    protocol = "SET mixedcc.default_protocol = '{}';"
    if not leaves:
        return [protocol.format(protocols[0]),
                "CREATE TABLE test (id int PRIMARY KEY, value int) USING mixedcc;"]
    lines = ["CREATE TABLE test (id int PRIMARY KEY, value int) PARTITION BY LIST (id);"]
    for i in range(1, 5):
        lines.append(protocol.format(protocols[(i - 1) % len(protocols)]))
        lines.append(f"CREATE TABLE test_{i} PARTITION OF test FOR VALUES IN ({i}) USING mixedcc;")
    return lines


def head(what, protocols, policy, lines):
    """The comment and the setup of a spec."""
    title = f"# Written by generate.py: {what}, " + ", ".join(protocols) + (f" ({policy})" if policy else "") + "."
    settings = ["SET mixedcc.default_partitions = 1;"]
    if policy:
        settings.append(f"SET mixedcc.waiting_policy = '{policy}';")
    return [title, "setup", "{"] + ["    " + line for line in settings + lines] + ["}", "teardown { DROP TABLE test; }", ""]


def session(name, level, steps, more="", first=""):
    """A session in a transaction; the second is the one that finds deadlocks."""
    deadlock = "100ms" if name == "s2" else "10s"
    settings = f"SET deadlock_timeout = '{deadlock}'; SET lock_timeout = '20s'; SET client_min_messages = error;{more}"
    lines = [f"session {name}", f"setup {{ {settings} COMMIT; BEGIN ISOLATION LEVEL {level};{first} }}"]
    return lines + [f"step {step} {{ {sql} }}" for step, sql in sorted(steps.items())] + ["teardown { ROLLBACK; }", ""]


def last(orders):
    """The session that shows the outcome, and the permutations with their comments."""
    lines = ["session check", "step check { SELECT * FROM test ORDER BY id; }", ""]
    for comment, names in orders:
        lines += [comment, "permutation " + " ".join(names) + " check"]
    return "\n".join(lines) + "\n"


def spec(level, protocols, policy, leaves):
    serializable = level == "ser"
    rows = "INSERT INTO test VALUES (1, 10), (2, 20);"
    lines = head("Hermitage's anomalies at " + LEVELS[level], protocols, policy, table(protocols, leaves) + [rows])
    orders, steps = [], {"1": {}, "2": {}, "3": {}}
    for name, holds, weak, strong in ANOMALIES:
        text = strong if serializable else weak
        # Two sessions that wait for the same lock go on in any order: nothing to compare.
        if text is None or (serializable and name == "G2-two-edges" and (len(protocols) > 1 or waits(protocols[0]))):
            continue
        order = order_of(name, text, protocols) if serializable else [tuple(step.split(":")) for step in text.split()]
        for number, words in order:
            steps[number][identifier(number, words)] = " ".join(statement(w) for w in words.split(";"))
        orders.append((f"# {name}: {holds}.", permutation(order) if serializable else [identifier(s, w) for s, w in order]))
    more = " SET enable_seqscan = off;" if serializable else ""
    if policy == "wait_die":
        # A session that lost keeps its age until it commits something: not into the next
        # permutation.
        more += " DO 'BEGIN PERFORM FROM test; END';"
    for number, named in steps.items():
        lines += session("s" + number, LEVELS[level], named, more)
    return "\n".join(lines) + "\n" + last(orders)


def phantoms(protocols, policy):
    """Two tests of each predicate, see PHANTOMS."""
    ddl = [f"SET mixedcc.default_protocol = '{protocols[0]}';",
           "CREATE TABLE test (id int PRIMARY KEY, g int, v int) USING mixedcc;",
           "CREATE INDEX test_g ON test (g);",
           "INSERT INTO test VALUES (1, 1, 0), (2, 2, 0), (3, NULL, 0);"]
    lines = head("predicates at SERIALIZABLE", protocols, policy, ddl)
    first = {"row1": "SELECT v FROM test WHERE id = 1;", "write1": "UPDATE test SET v = 1 WHERE id = 1;", "c1": "COMMIT;"}
    second = {"row2": "SELECT v FROM test WHERE id = 1;", "c2": "COMMIT;"}
    third, orders = {}, []
    for name, (read, write) in PHANTOMS.items():
        word = name.replace("-", "_")
        first["r_" + word], second["w_" + word] = read + ";", write + ";"
        third["rc_" + word] = write + "; UPDATE test SET v = 7 WHERE id = 1; COMMIT;"
        if locks_partitions(protocols[0]):
            skew = ["r_" + word, "row2", "write1", "c1", "w_" + word, "c2"]
        else:
            # Where reads lock, 1 waits for 2's read of row 1, or 2 finds a deadlock.
            skew = ["r_" + word, "row2", f"write1(w_{word})", "w_" + word] + (["c2", "c1"] if known.has(protocols[0], "locks_reads") else ["c1", "c2"])
        orders.append((f"# {name}: not both commit; 1 sees both of a READ COMMITTED writer's changes or none.", skew))
        orders.append(("#", ["r_" + word, "rc_" + word, "row1", "c1"]))
    # A reader that froze would not show what it protects.
    plans = " SET enable_seqscan = off; SET mixedcc.freeze_readers = off;"
    lines += session("s1", "SERIALIZABLE", first, plans) + session("s2", "SERIALIZABLE", second, plans)
    lines += session("s3", "READ COMMITTED", third, plans)
    return "\n".join(lines) + "\n" + last(orders)


def precision(protocol):
    """Each kind of scan, a write within it and one beside it, in ranges of two rows."""
    ddl = [f"SET mixedcc.default_protocol = '{protocol}';",
           'CREATE TABLE test (id int PRIMARY KEY, g int, t text COLLATE "C", v int) USING mixedcc;',
           "CREATE INDEX test_g ON test (g, t);",
           "CREATE INDEX test_e ON test ((id / 20)) WHERE t <> 'z';",
           "INSERT INTO test VALUES (10, 1, 'a', 0), (20, 2, 'a', 0), (30, 2, 'b', 0), (40, 3, 'a', 0), (50, 3, 'b', 0), (60, NULL, 'a', 0), (70, 5, 'c', 0);"]
    lines = head("what scans protect, and what not", [protocol], None, ddl)
    one, three, orders = {"c1": "COMMIT;"}, {}, []
    for name, (read, inside, outside) in PRECISION.items():
        word = name.replace("-", "_")
        one["r_" + word], three["in_" + word], three["out_" + word] = read + ";", inside + ";", outside + ";"
        orders.append((f"# {name}: a write within it is a conflict, one beside it is none.", ["r_" + word, "in_" + word, "c1"]))
        orders.append(("#", ["r_" + word, "out_" + word, "c1"]))
    small = " SET mixedcc.range_rows = 2;"
    # A transaction with a transaction id is validated at its commit also if it has written nothing
    # here.
    xid = " DO $$ BEGIN PERFORM pg_current_xact_id(); END $$;"
    lines += session("s1", "SERIALIZABLE", one, small, xid)
    lines += ["session s3", "setup { SET client_min_messages = error; }"]
    lines += [f"step {step} {{ {sql} }}" for step, sql in sorted(three.items())] + [""]
    return "\n".join(lines) + "\n" + last(orders)


def exclusion(level, protocols, policy):
    """An exclusion constraint waits for the writer of a row that conflicts, and fails or goes on by
    how that one ends. Below SERIALIZABLE without a key or triggers: writers have a transaction id
    to wait for because of this constraint alone."""
    strong = level == "ser"
    key, deferrable = (" PRIMARY KEY", " DEFERRABLE INITIALLY IMMEDIATE") if strong else ("", "")
    ddl = [f"SET mixedcc.default_protocol = '{protocols[0]}';",
           f"CREATE TABLE test (id int{key}, during int4range,",
           f"    EXCLUDE USING gist (during WITH &&){deferrable}) USING mixedcc;",
           "INSERT INTO test VALUES (1, '[10,20)'), (2, '[30,40)');"]
    lines = head("exclusion constraints at " + LEVELS[level], protocols, policy, ddl)
    first = {"ins1": "INSERT INTO test VALUES (5, '[50,60)');", "del1": "DELETE FROM test WHERE id = 1;",
             "move1": "UPDATE test SET during = '[50,60)' WHERE id = 1;", "c1": "COMMIT;", "r1": "ROLLBACK;"}
    second = {"new2": "INSERT INTO test VALUES (6, '[55,70)');", "old2": "INSERT INTO test VALUES (7, '[15,18)');",
              "move2": "UPDATE test SET during = '[55,70)' WHERE id = 2;", "free2": "INSERT INTO test VALUES (8, '[80,90)');",
              "c2": "COMMIT;"}
    orders = []
    for one, two in (("ins1", "new2"), ("ins1", "move2"), ("move1", "new2"), ("move1", "old2"), ("del1", "old2")):
        goes_on = {"c1": (one, two) in (("move1", "old2"), ("del1", "old2"))}
        goes_on["r1"] = not goes_on["c1"]
        for end in ("c1", "r1"):
            orders.append((f"# 2 waits for 1, and {'goes on' if goes_on[end] else 'fails'}.", [one, two, end, "c2"]))
    if not locks_partitions(protocols[0]):
        orders.append(("# What does not conflict does not wait.", ["ins1", "free2", "c2", "c1"]))
    if strong:
        second["defer2"] = "SET CONSTRAINTS ALL DEFERRED;"
        orders.append(("# A deferred constraint waits at COMMIT.", ["ins1", "defer2", "new2", "c2", "c1"]))
        orders.append(("#", ["ins1", "defer2", "new2", "c2", "r1"]))
    lines += session("s1", LEVELS[level], first) + session("s2", LEVELS[level], second)
    return "\n".join(lines) + "\n" + last(orders)


def files():
    """File name to content."""
    made = {}

    def add(name, protocol, make, policies):
        """A spec for each policy; the name of the default policy is left out."""
        for policy in policies if known.policies(protocol) != (None,) else (None,):
            named = () if policy in (None, "wait") else (policy.replace("_", "-"),)
            made["-".join((name, protocol, *named))] = make(policy)

    every = list(known.ALL)
    for p in every:
        for level in ("rc", "rr"):
            add(f"hermitage-{level}", p, lambda policy: spec(level, [p], policy, locks_partitions(p)), ("wait", "no_wait"))
        for policy in known.policies(p):
            made["-".join(filter(None, ("hermitage-ser", p, policy))).replace("_", "-")] = spec("ser", [p], policy, False)
        add("phantoms", p, lambda policy: phantoms([p], policy), ("wait", "no_wait"))
        for level in ("rc",) if locks_partitions(p) else ("rc", "ser"):
            add(f"exclusion-{level}", p, lambda policy: exclusion(level, [p], policy), ("wait",))
        if not locks_partitions(p):
            made[f"precision-{p}"] = precision(p)
    for level in ("rc", "rr"):
        made[f"hermitage-{level}-mix"] = spec(level, every, "wait", True)
    for pair in itertools.permutations(every, 2):
        made["hermitage-ser-" + "-".join(pair)] = spec("ser", list(pair), "wait", True)
    return made


def main():
    wrong = []
    for name, content in files().items():
        path = SPECS / (name + ".spec")
        if "--check" in sys.argv:
            if not path.exists() or path.read_text() != content:
                wrong.append(name)
        else:
            path.write_text(content)
    if wrong:
        sys.exit("not as generate.py writes them: " + " ".join(wrong))


if __name__ == "__main__":
    main()
