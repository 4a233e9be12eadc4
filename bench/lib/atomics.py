"""Atomic read-modify-write instructions in callgrind's dumps, by function and callers.

Each takes the cache line that it changes away from all other cores, so what many transactions
change is what limits them. A dump made with --dump-instr=yes says how often every instruction ran;
a disassembly says which are atomic: those with a lock prefix, and xchg with memory.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import re
import subprocess

_NAME = re.compile(r"\((\d+)\)(?: (.*))?")


@dataclasses.dataclass(frozen=True)
class Site:
    """Where atomic instructions ran: function'caller'caller's caller..., and what kind they are."""

    object: str  # file name of the program or library
    chain: str
    kind: str  # mnemonic without suffix: xadd, cmpxchg, xchg, ...


def kinds_of_text(disassembly: str) -> dict[int, str]:
    """{address: mnemonic} of the atomic instructions in objdump's output."""
    found = {}
    for line in disassembly.splitlines():
        match = re.match(r"^\s*([0-9a-f]+):\s+(lock\s+)?([a-z]+)\s*(.*)$", line)
        if not match:
            continue
        address, lock, mnemonic, operands = match.groups()
        if lock or (mnemonic.startswith("xchg") and "(" in operands):
            found[int(address, 16)] = re.sub(r"^(xadd|cmpxchg|xchg|inc|dec|add|sub|or|and|bts|btr)[a-z0-9]*$", r"\1", mnemonic)
    return found


def kinds_of(path: str) -> dict[int, str]:
    done = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True)
    return kinds_of_text(done.stdout)


def counts(dump: str, kinds: dict[str, dict[int, str]]) -> collections.Counter[Site]:
    """How often each site ran. kinds: {file name: {address: mnemonic}}.

    Names are written once and then by number; addresses relative to the line before, `*` for the
    same. The line after `calls=` is the cost of the callee, not of an instruction.
    """
    names: dict[str, dict[str, str]] = {"ob": {}, "fn": {}}
    found: collections.Counter[Site] = collections.Counter()
    current, address, is_call = {"ob": "", "fn": ""}, 0, False
    for line in dump.splitlines():
        key, equals, text = line.partition("=")
        if equals and key in ("ob", "fn", "cob", "cfn"):
            number, name = _NAME.match(text).groups()
            table = names[key[-2:]]
            if name is not None:
                table[number] = name
            if len(key) == 2:
                current[key] = table[number]
        elif key == "calls":
            is_call = True
        elif line[:1] in "0123456789+-*" and line:
            fields = line.split(" ")
            address = _moved(address, fields[0])
            file = current["ob"].rpartition("/")[2]
            kind = kinds.get(file, {}).get(address)
            if kind and not is_call:
                found[Site(file, current["fn"], kind)] += int(fields[-1])
            is_call = False
    return found


def _moved(before: int, text: str) -> int:
    if text == "*":
        return before
    if text[0] in "+-":
        return before + int(text[1:], 0) * (1 if text[0] == "+" else -1)
    return int(text, 0)


def of_file(path: str, kinds: dict[str, dict[int, str]]) -> collections.Counter[Site]:
    return counts(pathlib.Path(path).read_text(errors="replace"), kinds)
