#!/usr/bin/python3
"""Prints the outcomes in the verbose output of Python's unittest:  unittest_log.py FILE"""

import re
import sys

LINE = re.compile(r"^(\w+ \([\w.]+\))(?:.*?)? \.\.\. (?:.*?)(ok|FAIL|ERROR|skipped|expected failure|unexpected success)\b")
# The first line of a test's description may follow on a line of its own.
NAME = re.compile(r"^(\w+ \([\w.]+\))$")
END = re.compile(r" \.\.\. (?:.*?)(ok|FAIL|ERROR|skipped|expected failure|unexpected success)\b")
WORDS = {"ok": "passed", "FAIL": "failed", "ERROR": "error"}

name = None
with open(sys.argv[1], encoding="utf-8", errors="replace") as file:
    for line in file:
        line = line.rstrip("\n")
        if match := LINE.match(line):
            print(match[1], WORDS.get(match[2], match[2]), sep="\t")
            name = None
        elif NAME.match(line):
            name = line
        elif name and (match := END.search(line)):
            print(name, WORDS.get(match[1], match[1]), sep="\t")
            name = None
