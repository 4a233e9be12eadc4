#!/usr/bin/python3
"""Compares the results of one of PostgreSQL's suites on heap and on mixedcc.

    compare.py HEAP_OUTPUT MIXEDCC_OUTPUT [TEST...]

Without TEST: a line for each test that differs, with what kind of difference it
is; with TEST: the differences themselves. Exit status 1 if mixedcc raised an error
that heap does not raise, or the server crashed.
"""

import difflib
import pathlib
import re
import sys

# What is said by design: tables are unlogged.
DROPPED = re.compile(r"(NOTICE:  .*mixedcc|(DETAIL|HINT):  .*(unlogged|mixedcc))", re.IGNORECASE)
REPLACED = [
    (re.compile(r"^( *)Unlogged table \""), r'\1Table "'),
    (re.compile(r"\bmixedcc\b"), "heap"),
]
CRASH = re.compile(r"server closed the connection|terminated by signal|panicked at|PANIC: |TRAP: ")
PLAN = re.compile(r"^\s*(->|(Seq|Index|Bitmap|Index Only|Parallel|Sort|Hash|Merge|Nested|Gather|Filter|Recheck|Heap Fetches|.*Cond:|.*cost=))")


def lines_of(path):
    lines = []
    for line in path.read_text(errors="replace").splitlines():
        if DROPPED.match(line):
            continue
        for pattern, text in REPLACED:
            line = pattern.sub(text, line)
        # Column headings follow the title's width, which "Unlogged" changes.
        lines.append(re.sub(r"-{2,}", "--", re.sub(r" +", " ", line)).strip())
    return lines


def difference(heap, ours):
    return [line for line in difflib.unified_diff(heap, ours, "heap", "mixedcc", lineterm="", n=2)]


def kind_of(heap, ours, changed):
    """A word for the difference, the worst that applies."""
    text = "\n".join(changed)
    if CRASH.search(text):
        return "crash"
    errors = [line for line in changed if line.startswith("+ERROR") or line.startswith("+FATAL")]
    if errors:
        return f"{len(errors)} errors"
    if sorted(heap) == sorted(ours):
        return "order"
    if all(PLAN.match(line[1:]) for line in changed):
        return "plan"
    return "text"


def compare(heap_dir, ours_dir):
    bad = 0
    names = sorted(path.stem for path in (heap_dir / "results").glob("*.out"))
    same = []
    for name in names:
        ours_path = ours_dir / "results" / (name + ".out")
        if not ours_path.exists():
            print(f"{name:32} missing")
            bad += 1
            continue
        heap, ours = lines_of(heap_dir / "results" / (name + ".out")), lines_of(ours_path)
        changed = [line for line in difference(heap, ours)[2:] if line[0] in "+-"]
        if not changed:
            same.append(name)
            continue
        kind = kind_of(heap, ours, changed)
        bad += kind == "crash" or kind.endswith("errors")
        print(f"{name:32} {kind:12} {len(changed)} lines")
    log = ours_dir / "server.log"
    crashes = [line for line in log.read_text(errors="replace").splitlines() if CRASH.search(line)] if log.exists() else []
    for line in crashes[:20]:
        print("server log:", line)
    print(f"{len(same)} of {len(names)} tests are the same, {bad} raise errors that heap does not raise, {len(crashes)} crashes")
    return 1 if bad or crashes else 0


def main():
    heap_dir, ours_dir = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    if len(sys.argv) == 3:
        sys.exit(compare(heap_dir, ours_dir))
    for name in sys.argv[3:]:
        print("\n".join(difference(*(lines_of(d / "results" / (name + ".out")) for d in (heap_dir, ours_dir)))))


if __name__ == "__main__":
    main()
