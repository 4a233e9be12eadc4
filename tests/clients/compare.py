#!/usr/bin/python3
"""Compares what suites did on heap and on mixedcc:  compare.py RESULTS EXPLAINED SUITE...

A difference is a test with another outcome, or a hunk of lines of a file that a test has written.
A rule of EXPLAINED accounts for it: suite, pattern of the test, place in the documents, pattern of
the difference, separated by blanks. The exit status is 1 if a difference has no rule, if a suite
ended otherwise than on heap or without outcomes, or if a server crashed."""

import difflib
import os
import re
import sys


def rules(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                suite, test, place, pattern = line.rstrip("\n").split(None, 3)
                yield suite, re.compile(test), place, re.compile(pattern)


def read(path):
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def outcomes(directory):
    """Test to outcome; of a test that runs twice, both."""
    found = {}
    for line in read(directory + "/outcomes").splitlines():
        test, _, outcome = line.partition("\t")
        found.setdefault(test, []).append(outcome)
    return found


def of_outcomes(heap, mixedcc):
    for test in sorted(heap.keys() | mixedcc.keys()):
        one, other = heap.get(test, ["not run"]), mixedcc.get(test, ["not run"])
        # Why a test fails on both is not compared: messages have addresses and times.
        if [outcome.split(":")[0] for outcome in one] != [outcome.split(":")[0] for outcome in other]:
            yield test, f"heap: {'; '.join(one)}\nmixedcc: {'; '.join(other)}"


def of_files(heap, mixedcc):
    names = set()
    for directory in (heap, mixedcc):
        if os.path.isdir(directory):
            names.update(os.listdir(directory))
    for name in sorted(names):
        hunk = []
        one, other = (read(f"{directory}/{name}").splitlines() for directory in (heap, mixedcc))
        for line in difflib.unified_diff(one, other, lineterm="", n=1):
            if line.startswith(("---", "+++")):
                continue
            if line.startswith("@@"):
                if hunk:
                    yield name, "\n".join(hunk)
                hunk = []
            hunk.append(line)
        if hunk:
            yield name, "\n".join(hunk)


def of_suite(directory):
    heap, mixedcc = directory + "/heap", directory + "/mixedcc"
    if not outcomes(heap):
        yield "outcomes", "the suite had none on heap"
    if read(heap + "/status") != read(mixedcc + "/status"):
        yield "status", f"heap: {read(heap + '/status')}mixedcc: {read(mixedcc + '/status')}"
    for method in ("heap", "mixedcc"):
        crashes = read(f"{directory}/{method}/crashes")
        if crashes:
            yield "crashes", f"{method}: {crashes}"
    yield from of_outcomes(outcomes(heap), outcomes(mixedcc))
    yield from of_files(heap + "/files", mixedcc + "/files")


def account(suite, test, text, table):
    for name, tests, place, pattern in table:
        if name == suite and tests.fullmatch(test) and pattern.search(text):
            return place
    return None


def main(results, explained, *suites):
    table = list(rules(explained))
    same = explained_suites = unexplained_suites = 0
    for suite in suites:
        directory = f"{results}/{suite}"
        if os.path.exists(directory + "/left_out"):
            print(f"{suite}: NOT RUN")
            continue
        places, unexplained = {}, []
        for test, text in of_suite(directory):
            place = account(suite, test, text, table)
            if place:
                places[place] = places.get(place, 0) + 1
            else:
                unexplained.append((test, text))
        tests = outcomes(directory + "/heap")
        failed = sum(outcome[0].startswith(("failed", "error")) for outcome in tests.values())
        print(f"{suite}: {len(tests)} tests ({failed} fail on heap), {sum(places.values())} explained "
              f"differences, {len(unexplained)} unexplained")
        for place, count in sorted(places.items()):
            print(f"    {count:4} {place}")
        for test, text in unexplained:
            print(f"  UNEXPLAINED {test}\n      " + text[:1500].replace("\n", "\n      "))
        same += not places and not unexplained
        explained_suites += bool(places) and not unexplained
        unexplained_suites += bool(unexplained)
    print(f"{same} suites the same, {explained_suites} explained, {unexplained_suites} unexplained")
    return int(unexplained_suites > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
