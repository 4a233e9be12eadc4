#!/usr/bin/python3
"""Writes the specs of Adya's anomalies after Martin Kleppmann's Hermitage, one
for each isolation level and each protocol or pair of protocols.

    tests/isolation/generate.py            write specs/hermitage-*.spec
    tests/isolation/generate.py --check    fail if the files differ

Below SERIALIZABLE the interleavings are Hermitage's and the output is heap's.
At SERIALIZABLE a protocol may make the second transaction wait at any step, and
the tester hangs on a step of a session that waits; so a session does the steps
after its first possible wait in one go ("all"), or its order is derived: see
`order_of`. What must hold in the end is what `check` prints.
"""

import pathlib
import sys

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


def statement(word):
    """The SQL of one word; u1=11 sets row 1 to 11."""
    if "=" in word:
        row, value = word[1:].split("=")
        return f"UPDATE test SET value = {value} WHERE id = {row};"
    return SQL[word] + ";"


def identifier(session, words):
    return "s" + session + "_" + words.replace(";", "_").replace("=", "_")


def order_of(steps, first_locks_all):
    """The interleaving. A protocol that locks the table at first touch makes
    the second session wait in its first step: then 1 ends before 2 goes on."""
    parsed = [tuple(step.split(":")) for step in steps.split()]
    if not first_locks_all:
        return parsed
    queue = {s: [p for p in parsed if p[0] == s] for s in dict.fromkeys(p[0] for p in parsed)}
    order = [queue[s].pop(0) for s in queue]
    for session in queue:
        order += queue[session]
    return order


def table(protocols, leaves):
    """One table, or one leaf for each row, so that a partition lock is a row's."""
    protocol = "SET mixedcc.default_protocol = '{}';"
    if not leaves:
        return [protocol.format(protocols[0]),
                "CREATE UNLOGGED TABLE test (id int PRIMARY KEY, value int) USING mixedcc;"]
    lines = ["CREATE TABLE test (id int PRIMARY KEY, value int) PARTITION BY LIST (id);"]
    for i in range(1, 5):
        lines.append(protocol.format(protocols[(i - 1) % len(protocols)]))
        lines.append(f"CREATE UNLOGGED TABLE test_{i} PARTITION OF test FOR VALUES IN ({i}) USING mixedcc;")
    return lines


def spec(level, protocols, policy, leaves):
    serializable = level == "ser"
    lines = ["# Written by generate.py: Hermitage's anomalies at " + LEVELS[level] + ", "
             + ", ".join(protocols) + (f" ({policy})" if policy else "") + ".", "setup", "{"]
    lines += ["    SET mixedcc.default_partitions = 1;"]
    if policy:
        lines.append(f"    SET mixedcc.waiting_policy = '{policy}';")
    lines += ["    " + line for line in table(protocols, leaves)]
    lines += ["    INSERT INTO test VALUES (1, 10), (2, 20);", "}", "teardown { DROP TABLE test; }", ""]
    orders, steps = [], {"1": {}, "2": {}, "3": {}}
    for name, holds, weak, strong in ANOMALIES:
        text = strong if serializable else weak
        if text is None:
            continue
        order = order_of(text, serializable and protocols == ["partcc"])
        for session, words in order:
            steps[session][identifier(session, words)] = " ".join(statement(w) for w in words.split(";"))
        orders.append((f"# {name}: {holds}.", [identifier(s, w) for s, w in order]))
    for session, named in steps.items():
        lines.append(f"session s{session}")
        timeouts = f"SET deadlock_timeout = '{'100ms' if session == '2' else '10s'}'; SET lock_timeout = '20s'; SET client_min_messages = error; COMMIT;"
        policy_set = f" SET mixedcc.waiting_policy = '{policy}';" if policy else ""
        lines.append(f"setup {{ {timeouts}{policy_set} BEGIN ISOLATION LEVEL {LEVELS[level]}; }}")
        lines += [f"step {name} {{ {sql} }}" for name, sql in sorted(named.items())]
        lines += ["teardown { ROLLBACK; }", ""]
    lines += ["session check", "step check { SELECT * FROM test ORDER BY id; }", ""]
    for comment, names in orders:
        lines += [comment, "permutation " + " ".join(names) + " check"]
    return "\n".join(lines) + "\n"


def files():
    """File name to content."""
    made = {}
    for level in ("rc", "rr"):
        made[f"hermitage-{level}-occ"] = spec(level, ["occ"], None, False)
        made[f"hermitage-{level}-2pl"] = spec(level, ["2pl"], "wait", False)
        made[f"hermitage-{level}-2pl-no-wait"] = spec(level, ["2pl"], "no_wait", False)
        made[f"hermitage-{level}-partcc"] = spec(level, ["partcc"], None, True)
        made[f"hermitage-{level}-mix"] = spec(level, ["partcc", "occ", "2pl"], "wait", True)
    made["hermitage-ser-occ"] = spec("ser", ["occ"], None, False)
    made["hermitage-ser-partcc"] = spec("ser", ["partcc"], None, False)
    for policy in ("wait", "wait_die", "no_wait"):
        made["hermitage-ser-2pl-" + policy.replace("_", "-")] = spec("ser", ["2pl"], policy, False)
    kinds = ["partcc", "occ", "2pl"]
    for first in kinds:
        for second in kinds:
            if first != second:
                made[f"hermitage-ser-{first}-{second}"] = spec("ser", [first, second], "wait", True)
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
