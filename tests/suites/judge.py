#!/usr/bin/python3
"""Which serialization failures of PostgreSQL's isolation suite had to be.

    judge.py HEAP_OUTPUT MIXEDCC_OUTPUT [--list]

For the specs that are modelled below: how many permutations have a serialization
failure on heap and on mixedcc, and what brute force says of those of mixedcc.
Each permutation is run on a model in which statements read the newest committed
rows, a READ ONLY transaction one snapshot, and everybody commits. Its outcome is

  no order      in no serial order do all transactions read what they have read
  commit order  there is such an order, but none in which those that have written
                stand in the order of their commits, which is mixedcc's order
  needless      there is one in commit order

`--list` names the permutations. Exit status 1 if mixedcc has needless failures.
"""

import itertools
import pathlib
import re
import sys

FAILURE = re.compile(r"ERROR: +could not serialize")


class Step:
    """A statement: `read` returns what the client sees, `write` changes the tables."""

    def __init__(self, read=None, write=None):
        self.read, self.write = read, write


def insert(table, rows):
    return Step(write=lambda db: db[table].extend(rows))


def receipt_report():
    def deposit(db):
        return db["ctl"][0]

    def wx2(db):
        db["ctl"] = [23]

    return {
        "tables": {"ctl": [22], "receipt": [(1, 22), (2, 22)]},
        "steps": {
            "rxwy1": Step(deposit, lambda db: db["receipt"].append((3, deposit(db)))),
            "wx2": Step(write=wx2),
            "rx3": Step(deposit),
            "ry3": Step(lambda db: sorted(r for r in db["receipt"] if r[1] == 22)),
        },
        "read_only": {"s3"},
    }


def two_ids():
    def wx1(db):
        db["d1"] = [n + 1 for n in db["d1"]]

    def rxwy2(db):
        db["d2"] = [db["d1"][0] + 1 for _ in db["d2"]]

    return {
        "tables": {"d1": [1], "d2": [1]},
        "steps": {
            "wx1": Step(lambda db: list(db["d1"]), wx1),
            "rxwy2": Step(lambda db: list(db["d1"]), rxwy2),
            "ry3": Step(lambda db: list(db["d2"])),
        },
    }


def predicate_gist():
    def total(keep):
        return Step(lambda db: sum(x for x in db["t"] if keep(x)))

    return {
        "tables": {"t": [10 * g for g in range(1, 1001)]},
        "steps": {
            "rxy1": total(lambda x: x < 2500),
            "wx1": insert("t", [500 * g for g in range(15, 21)]),
            "rxy3": total(lambda x: x > 6000),
            "wx3": insert("t", [500 * g for g in range(12, 19)]),
            "rxy2": total(lambda x: x > 7500),
            "wy2": insert("t", [500 * g for g in range(1, 6)]),
            "rxy4": total(lambda x: x < 1000),
            "wy4": insert("t", [50 * g for g in range(1, 21)]),
        },
    }


def predicate_gin():
    def count(n):
        return Step(lambda db: db["t"].count(n))

    return {
        "tables": {"t": [1] * 8192 + list(range(2, 801)), "o": []},
        "steps": {
            "ra1": Step(lambda db: 1 in db["t"]),  # LIMIT 1
            "rb1": count(2),
            "rc1": count(800),
            "rd1": count(2000),
            "wo1": insert("o", [1]),
            "ro2": Step(lambda db: len(db["o"])),
            "wa2": insert("t", [1]),
            "wb2": insert("t", [2]),
            "wc2": insert("t", [800]),
            "wd2": insert("t", [2000]),
        },
        "ignored": {"fu"},
    }


def lock_committed_update():
    def update(db):
        db["t"] = ["two"]

    # Advisory locks only order the steps; s1 is READ COMMITTED, so its reads do not count.
    return {
        "tables": {"t": ["one"]},
        "steps": {"s1u": Step(write=update), "s2l": Step(lambda db: list(db["t"]))},
        "ignored": {"s1b", "s2b1", "s2b2", "s2b3", "s1l", "s1hint", "s1ul"},
        "only": "s2b3",
    }


SPECS = {
    "receipt-report": receipt_report,
    "two-ids": two_ids,
    "predicate-gist": predicate_gist,
    "predicate-gin": predicate_gin,
    "lock-committed-update": lock_committed_update,
}


def session_of(spec, step):
    return "s" + step[1] if spec == "lock-committed-update" else "s" + step[-1]


def copy_of(db):
    return {name: list(rows) for name, rows in db.items()}


def permutations_of(path):
    """Steps and number of serialization failures of each permutation."""
    found = []
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith("starting permutation: "):
            found.append([line.split(": ")[1].split(), 0])
        elif FAILURE.match(line):
            found[-1][1] += 1
    return [(steps, failures) for steps, failures in found]


class Transaction:
    def __init__(self):
        self.steps, self.seen, self.bases, self.snapshot = [], [], [], None

    def writes(self):
        return any(s.write for s in self.steps)


def replay(transaction, db):
    """Runs it on `db`: does it see again what it has seen?"""
    same = True
    for step, seen in zip(transaction.steps, transaction.seen):
        same &= step.read is None or step.read(db) == seen
        if step.write:
            step.write(db)
    return same


def outcome(spec, model, steps):
    committed, transactions, order = copy_of(model["tables"]), {}, []
    for name in steps:
        who = session_of(spec, name)
        if name in model.get("ignored", ()):
            continue
        t = transactions.setdefault(who, Transaction())
        if name not in model["steps"]:  # a commit
            order.append(t)
            # What it has written becomes the newest; a statement writes from what it read.
            for step, base in zip(t.steps, t.bases):
                if step.write:
                    apply(step, base, committed)
            continue
        step = model["steps"][name]
        if t.snapshot is None:
            t.snapshot = copy_of(committed)
        base = copy_of(t.snapshot if who in model.get("read_only", ()) else committed)
        for earlier, there in zip(t.steps, t.bases):
            if earlier.write:
                apply(earlier, there, base)
        t.steps.append(step)
        t.bases.append(base)
        t.seen.append(step.read(base) if step.read else None)
    return judge(model, order, committed)


def apply(step, base, to):
    """Does to `to` what the statement did to the tables that it read."""
    after = copy_of(base)
    step.write(after)
    for name, rows in after.items():
        before = base[name]
        if rows[: len(before)] == before:
            to[name].extend(rows[len(before) :])
        else:
            to[name] = list(rows)


def judge(model, order, final):
    def is_serial(candidate):
        db = copy_of(model["tables"])
        return all(replay(t, db) for t in candidate) and {n: sorted(r) for n, r in db.items()} == {
            n: sorted(r) for n, r in final.items()
        }

    writers = [t for t in order if t.writes()]
    serial = [c for c in itertools.permutations(order) if is_serial(c)]
    if not serial:
        return "no order"
    in_order = any([t for t in c if t.writes()] == writers for c in serial)
    return "needless" if in_order else "commit order"


def main():
    heap, ours = (pathlib.Path(a) / "results" for a in sys.argv[1:3])
    kinds = ("no order", "commit order", "needless")
    print(f"{'spec':24}{'permutations':>13}{'heap':>6}{'mixedcc':>9}" + "".join(f"{k:>14}" for k in kinds))
    bad = 0
    for spec, make in SPECS.items():
        model, counts = make(), dict.fromkeys(kinds, 0)
        on_heap, on_ours = (permutations_of(d / (spec + ".out")) for d in (heap, ours))
        for steps, failures in on_ours:
            if failures:
                kind = outcome(spec, model, steps)
                counts[kind] += 1
                if "--list" in sys.argv:
                    print(f"    {kind:14}{' '.join(steps)}")
        failed = [sum(1 for p in all_ if p[1]) for all_ in (on_heap, on_ours)]
        print(f"{spec:24}{len(on_ours):13}{failed[0]:6}{failed[1]:9}" + "".join(f"{counts[k]:14}" for k in kinds))
        bad += counts["needless"]
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
