#!/usr/bin/python3
"""Prints the outcomes in JUnit's XML files, a line "TEST <tab> OUTCOME" each:  junit.py FILE..."""

import sys
import xml.etree.ElementTree as ET

KINDS = {"failure": "failed", "error": "error", "skipped": "skipped"}


def outcome(case):
    for child in case:
        if child.tag in KINDS:
            text = " ".join((child.get("message") or child.text or "").split())
            return f"{KINDS[child.tag]}: {text[:300]}" if child.tag != "skipped" else "skipped"
    return "passed"


for path in sys.argv[1:]:
    for case in ET.parse(path).iter("testcase"):
        name = f'{case.get("classname", "")}.{case.get("name")}'
        print(name.replace("\t", " ").replace("\n", " "), outcome(case).replace("\t", " "), sep="\t")
