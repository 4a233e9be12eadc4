#!/usr/bin/python3
"""Compares the results of one of PostgreSQL's suites on heap and on mixedcc.

    compare.py HEAP_OUTPUT MIXEDCC_OUTPUT [TEST...]

Without TEST: a line for each test that differs, with what kind of difference it
is; with TEST: the differences themselves. Plans and the order of rows, which
PostgreSQL does not promise, count only if nothing else differs. Exit status 1 if
mixedcc raised an error that is not explained, or the server crashed.
"""

import difflib
import pathlib
import re
import sys

REPLACED = [
    (re.compile(r"could not serialize access due to (read/write dependencies among|concurrent) transactions"), "could not serialize"),
]
# Errors that README.md explains: refused features and what follows from the refusal in the same
# test; serialization failures that only one of SSI and mixedcc raises, or raises elsewhere.
REFUSED = re.compile(
    r"does not support|do not support|cannot PREPARE a transaction|cannot cluster partitioned table|"
    r"cannot add relation|"
    r"syntax error at or near \"[:-]\""  # a TOAST table's name put into a statement, where there is none
)
FOLLOWS = re.compile(
    r"does not exist|is not a view|current transaction is aborted|division by zero|already exists|"
    r"cannot be dropped because some objects depend|is not empty|is not part of the publication|is already member of publication"
)
SERIALIZATION = re.compile(r"could not serialize|child row exists")
CRASH = re.compile(r"server closed the connection|terminated by signal|panicked at|PANIC: |TRAP: ")
# A rule below a heading, where psql echoes comments too, of which many are "--" only; in
# isolationtester's output.
RULE = re.compile(r"---|-*(\+-*)+")
SHORT_RULE = re.compile(r"-+(\+-*)*")
ROW_COUNT = re.compile(r"\(\d+ rows?\)")
MESSAGE = re.compile(r"(s\d+: )?NOTICE: ")


def normal(line):
    """Column headings follow the width of what is below them."""
    return re.sub(r"-{3,}", "---", re.sub(r" +", " ", line)).strip()


def lines_of(path):
    lines = []
    for line in path.read_text(errors="replace").splitlines():
        for pattern, text in REPLACED:
            line = pattern.sub(text, line)
        lines.append(normal(line))
    return lines


def difference(heap, ours):
    return list(difflib.unified_diff(heap, ours, "heap", "mixedcc", lineterm="", n=2))


def changed_lines(heap, ours):
    return [line for line in difference(heap, ours)[2:] if line[0] in "+-"]


def canonical(lines):
    """Without plans; rows of each result, and messages in a row, sorted."""
    rule = SHORT_RULE if lines[0].startswith("Parsed test spec") else RULE
    out, at = [], 0
    while at < len(lines):
        line = lines[at]
        if rule.fullmatch(line) and out:
            end = next((i for i in range(at, len(lines)) if ROW_COUNT.fullmatch(lines[i])), at)
            if out[-1] == "QUERY PLAN":
                out.pop()
            else:
                out += [line] + sorted(lines[at + 1 : end + 1])
            at = end + 1
        elif MESSAGE.match(line):
            end = next((i for i in range(at, len(lines)) if not MESSAGE.match(lines[i])), len(lines))
            out += sorted(lines[at:end])
            at = end
        else:
            out.append(line)
            at += 1
    return out


def kind_of(heap, ours):
    """A word for the difference, the worst that applies, and its lines."""
    changed = changed_lines(canonical(heap), canonical(ours))
    known = set(heap)
    errors = [line for line in changed if line.startswith(("+ERROR", "+FATAL")) and line[1:] not in known]
    if CRASH.search("\n".join(changed)):
        return "crash", changed
    rest = [line for line in errors if not SERIALIZATION.search(line)]
    if errors and not rest:
        return "serialization", changed
    refused = [line for line in rest if REFUSED.search(line)]
    if [line for line in rest if line not in refused and not (refused and FOLLOWS.search(line))]:
        return "errors", changed
    if rest:
        return "refused", changed
    return ("text", changed) if changed else ("plan or order", changed_lines(heap, ours))


def results(directory):
    return {path.stem: lines_of(path) for path in sorted((directory / "results").glob("*.out"))}


def compare(heap_dir, ours_dir):
    bad = same = 0
    all_heap, all_ours = results(heap_dir), results(ours_dir)
    for name, heap in all_heap.items():
        ours = all_ours.get(name, ["FATAL: no result"])
        if heap == ours:
            same += 1
            continue
        kind, changed = kind_of(heap, ours)
        bad += kind in ("crash", "errors")
        print(f"{name:32} {kind:15} {len(changed)} lines")
    log = ours_dir / "server.log"
    crashes = [line for line in log.read_text(errors="replace").splitlines() if CRASH.search(line)] if log.exists() else []
    for line in crashes[:20]:
        print("server log:", line)
    print(f"{same} of {len(all_heap)} tests are the same, {bad} raise errors that are not explained, {len(crashes)} crashes")
    return 1 if bad or crashes else 0


def main():
    heap_dir, ours_dir = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    if len(sys.argv) == 3:
        sys.exit(compare(heap_dir, ours_dir))
    for name in sys.argv[3:]:
        heap, ours = (lines_of(d / "results" / (name + ".out")) for d in (heap_dir, ours_dir))
        plain = kind_of(heap, ours)[0] == "plan or order"
        print("\n".join(difference(heap, ours) if plain else difference(canonical(heap), canonical(ours))))



if __name__ == "__main__":
    main()
