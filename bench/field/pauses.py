"""Round trips: a pause before each statement of a pgbench script, while locks are held."""

from __future__ import annotations

import re

_ENDS = re.compile(r"(;|\\gset)\s*$")


def with_round_trips(script: str, microseconds: int) -> str:
    """A \\sleep before each statement but BEGIN. A statement may have several lines."""
    lines, inside = [], False
    for line in script.splitlines():
        if not inside and line.strip() and not line.startswith(("\\", "--", "BEGIN")):
            lines.append(f"\\sleep {microseconds} us")
        lines.append(line)
        if not line.startswith(("\\", "--")) or inside:
            inside = bool(line.strip()) and not _ENDS.search(line)
    return "\n".join(lines) + "\n"
