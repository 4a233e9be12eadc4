#!/usr/bin/python3
"""Accounts for each statement whose result differs between heap and mixedcc.

    statements.py SOURCE HEAP_OUTPUT MIXEDCC_OUTPUT [--list CLASS] [TEST...]

SOURCE is the folder of the suite in PostgreSQL's source. A statement is what psql echoes, or a step
of a permutation, with the output behind it. Each that differs gets the first class that fits:

  crash          the server has closed the connection
  limit          a message of the table in docs/limits.md; which one is in brackets
  follows        an error, or another result, behind such a message in the same test
  plan           an EXPLAIN, or what depends on a plan
  row order      the same lines in another order
  serialization  a serialization failure on one side
  explained      a rule of explained.txt, which names a place in the documents
  message        only notices, warnings, details, hints and places in functions differ
  unexplained    anything else

Exit status 1 if a statement is unexplained or crashed. `--list` shows the statements of a class
with their differences.
"""

import argparse
import collections
import difflib
import pathlib
import re
import sys

import compare

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = pathlib.Path(__file__).with_name("explained.txt")
MINOR = re.compile(r"(s\d+: )?(NOTICE|WARNING|INFO|DETAIL|HINT|CONTEXT|LINE \d+|LOG):|\s*\^$|PL/pgSQL function|SQL statement")
PLAN = re.compile(r"\bexplain|QUERY PLAN", re.IGNORECASE)
END = re.compile(r";\s*(--.*)?$")
STEP = re.compile(r"(starting permutation:|step \w+:)")


def limits():
    """(pattern, message) of each row of the table in docs/limits.md."""
    text = (ROOT / "docs/limits.md").read_text().split("\n## Refusals\n", 1)[1].split("\n## ", 1)[0]
    messages = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    return [(re.compile(".*".join(map(re.escape, m.split("…")))), m) for m in messages]


def rules():
    """Lines: test, place in the documents, pattern; separated by several spaces."""
    out = []
    for line in RULES.read_text().splitlines():
        if line.startswith("#"):
            continue
        test, place, pattern = re.split(" {2,}", line, maxsplit=2)
        file, _, title = place.partition("#")
        text = (ROOT / "docs" / file).read_text()
        if f"**{title.replace('_', ' ')}.**" not in text and f"\n## {title}\n" not in text:
            sys.exit(f"{RULES.name}: docs/{file} has no paragraph {title!r}")
        out.append((re.compile(test), place, re.compile(pattern, re.IGNORECASE)))
    return out


def script(path):
    """The lines that psql echoes, and more: those that it does not echo are passed over."""
    if not path.exists():
        return None
    return [line for line in map(compare.normal, path.read_text(errors="replace").splitlines()) if line]


def by_echo(lines, script):
    """[(statement, output)] of psql's output. A line of the script that does not come any more,
    as data of COPY, is no statement."""
    last = {line: at for at, line in enumerate(lines)}
    out, statement, result, at = [], [], [], 0
    for number, line in enumerate(lines):
        while at < len(script) and last.get(script[at], -1) < number:
            at += 1
        if at < len(script) and line == script[at]:
            at += 1
            if result or (statement and END.search(statement[-1])):
                out.append(("\n".join(statement), result))
                statement, result = [], []
            statement.append(line)
        elif line or result:
            result.append(line)
    return out + [("\n".join(statement), result)]


def by_step(lines):
    """[(statement, output)] of isolationtester's output."""
    out = [("", [])]
    for line in lines:
        if STEP.match(line):
            out.append((line, []))
        else:
            out[-1][1].append(line)
    return out


def pairs(heap, ours):
    """Statements with both results; one that only one side has comes with None."""
    names = [[s for s, _ in side] for side in (heap, ours)]
    for kind, a, b, c, d in difflib.SequenceMatcher(None, *names, autojunk=False).get_opcodes():
        if kind == "equal":
            yield from ((s, x, y) for (s, x), (_, y) in zip(heap[a:b], ours[c:d]))
        else:
            yield from ((s, x, None) for s, x in heap[a:b])
            yield from ((s, None, y) for s, y in ours[c:d])


class Judge:
    def __init__(self):
        self.limits, self.rules = limits(), rules()

    def limit(self, text):
        return next((m for pattern, m in self.limits if pattern.search(text)), None)

    def judge(self, test, statement, heap, ours, behind):
        """The class of a difference, and what it refers to. `behind`: a limit that the test met."""
        changed = [line[1:] for line in compare.changed_lines(heap or [], ours or [])]
        text = "\n".join(changed)
        if compare.CRASH.search(text):
            return "crash", ""
        if found := self.limit(text):
            return "limit", found
        if PLAN.search(statement + "\n".join(heap or [])):
            return "plan", ""
        if heap is not None and ours is not None and sorted(heap) == sorted(ours):
            return "row order", ""
        if compare.SERIALIZATION.search(text):
            return "serialization", ""
        for name, place, pattern in self.rules:
            if name.fullmatch(test) and pattern.search(statement + "\n" + text):
                return "explained", place
        if all(MINOR.match(line) or not line for line in changed):
            return "message", ""
        if behind and (compare.FOLLOWS.search(text) or heap is None or ours is None):
            return "follows", behind
        return "unexplained", ""


def account(source, heap_dir, ours_dir, tests):
    """(test, class, reference, statement, difference) of each statement that differs."""
    judge = Judge()
    ours_of = compare.results(ours_dir)
    for test, heap in compare.results(heap_dir).items():
        ours = ours_of.get(test, [])
        if heap == ours or (tests and test not in tests):
            continue
        echoed = script(source / "sql" / f"{test}.sql")
        split = by_step if echoed is None else lambda lines, echoed=echoed: by_echo(lines, echoed)
        behind = None
        for statement, x, y in pairs(split(heap), split(ours)):
            if x == y:
                continue
            kind, place = judge.judge(test, statement, x, y, behind)
            behind = place if kind == "limit" else behind
            yield test, kind, place, statement, compare.changed_lines(x or [], y or [])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("heap", type=pathlib.Path)
    parser.add_argument("mixedcc", type=pathlib.Path)
    parser.add_argument("--list", metavar="CLASS")
    parser.add_argument("tests", nargs="*")
    given = parser.parse_intermixed_args()
    counts, tests_of = collections.Counter(), collections.defaultdict(set)
    for test, kind, place, statement, changed in account(given.source, given.heap, given.mixedcc, given.tests):
        key = f"{kind} [{place}]" if place else kind
        counts[key] += 1
        tests_of[key].add(test)
        if kind == given.list:
            print(f"== {test} {place}\n{statement}", *changed, sep="\n")
    for key, number in sorted(counts.items()):
        names = sorted(tests_of[key])
        print(f"{number:5} {key}: {' '.join(names[:6])}{' ...' if len(names) > 6 else ''}")
    bad = sum(n for key, n in counts.items() if key in ("unexplained", "crash"))
    print(f"{sum(counts.values())} statements differ, {bad} are not accounted for")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
