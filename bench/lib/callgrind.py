"""Reads callgrind's dumps: the total, and the cost by function.

callgrind_annotate of valgrind 3.19 takes the cost of calls that were entered before counting began
("calls=0") for cost of the caller itself. So main's start-up function seems to use everything;
hence a reader of our own.
"""

from __future__ import annotations

import collections
import pathlib
import re

_FUNCTION = re.compile(r"^(c?)fn=\((\d+)\)(?: (.*))?$")
_COST = re.compile(r"^[+\-*\d]\S* (\d+)$")


class DumpError(Exception):
    """A file is no callgrind dump of one event."""


def total_of(path: str) -> int:
    found = re.search(r"^totals: (\d+)", pathlib.Path(path).read_text(errors="replace"), re.MULTILINE)
    if not found:
        raise DumpError(f"no total in {path}")
    return int(found.group(1))


def costs(text: str) -> tuple[collections.Counter[str], collections.Counter[str]]:
    """(self, inclusive) cost by function name.

    The inclusive cost of a function that calls itself, directly or not, counts
    its inner calls again, and may exceed the total.
    """
    names: dict[str, str] = {}
    own: collections.Counter[str] = collections.Counter()
    inclusive: collections.Counter[str] = collections.Counter()
    current, next_is_call = "", False
    for line in text.splitlines():
        function = _FUNCTION.match(line)
        if function:
            is_callee, number, name = function.groups()
            if name is not None:
                names[number] = name
            if not is_callee:
                current = names[number]
        elif line.startswith("calls="):
            next_is_call = True
        elif current and (cost := _COST.match(line)):
            inclusive[current] += int(cost.group(1))
            if not next_is_call:
                own[current] += int(cost.group(1))
            next_is_call = False
    return own, inclusive


def profile(path: str, transactions: int, shown: int = 60) -> str:
    """The costliest functions, per transaction."""
    own, inclusive = costs(pathlib.Path(path).read_text(errors="replace"))
    total = total_of(path)
    lines = []
    for title, costliest in (("self", own), ("inclusive", inclusive)):
        lines.append(f"== {title}: instructions per transaction, share, function")
        lines += [f"{cost / transactions:12,.0f} {100 * cost / total:6.2f} %  {name}"
                  for name, cost in costliest.most_common(shown)]
    return "\n".join(lines) + "\n"
