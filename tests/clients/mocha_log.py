#!/usr/bin/python3
"""Prints the outcomes in the output of mocha's reporter "spec":  mocha_log.py FILE

A test is named by the titles above it, by their indentation."""

import re
import sys

PASSED = re.compile(r"^( +)[✓√] (.*?)(?: \(\d+ms\))?$")
FAILED = re.compile(r"^( +)\d+\) (.*)$")
TITLE = re.compile(r"^( +)(\S.*)$")

titles = []
with open(sys.argv[1], encoding="utf-8", errors="replace") as file:
    for line in file:
        line = re.sub(r"\x1b\[[0-9;]*m", "", line.rstrip("\n"))
        if re.match(r"^ +\d+ (passing|failing)", line):
            titles = []
            continue
        for pattern, outcome in ((PASSED, "passed"), (FAILED, "failed"), (TITLE, None)):
            if match := pattern.match(line):
                while titles and titles[-1][0] >= len(match[1]):
                    titles.pop()
                if outcome:
                    print(" ".join([title for _, title in titles] + [match[2]]), outcome, sep="\t")
                else:
                    titles.append((len(match[1]), match[2]))
                break
