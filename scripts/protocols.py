#!/usr/bin/python3
"""The protocols, as the engine's source lists them, for tests, benchmarks and shell scripts.

    scripts/protocols.py                  prints their names, one a line
    scripts/protocols.py locks_partitions prints those that have a capability

In Python, `from lib import protocols`: tests/lib and bench/lib find this file.
"""

import pathlib
import re
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent / "engine/src/protocol"
# A line of the list in mod.rs: Name = bit, "name", "what it does", folder::Rules;
LINE = re.compile(r'^\s*(\w+) = (\d+), "([^"]+)", "[^"]*", (\w+)::\w+;$', re.MULTILINE)
CAPABILITY = re.compile(r"^\s*const ([A-Z_]+): bool = true;$", re.MULTILINE)


def _read():
    lines = LINE.findall((SOURCE / "mod.rs").read_text())
    if not lines or [int(bit) for _, bit, _, _ in lines] != list(range(len(lines))):
        raise RuntimeError(f"{SOURCE}/mod.rs has no list of protocols as this file expects it")
    return {name: (variant, folder) for variant, _, name, folder in lines}


def _capabilities(folder):
    return frozenset(word.lower() for word in CAPABILITY.findall((SOURCE / folder / "mod.rs").read_text()))


# Values of mixedcc.waiting_policy; the first is the default.
POLICIES = ("wait", "wait_die", "no_wait")
# Of each name: the variant of `Protocol`, and the folder.
RUST_NAMES = _read()
CAPABILITIES = {name: _capabilities(folder) for name, (_, folder) in RUST_NAMES.items()}
# All names, in the order of the engine's list.
ALL = tuple(CAPABILITIES)


def has(protocol, capability):
    """Has a protocol a capability of the engine's `Rules`, for instance locks_partitions?"""
    return capability in CAPABILITIES[protocol]


def only_validates(protocol):
    """Does it lock nothing before the commit, so that no transaction waits until then? Rows that
    are hot (locks_hot) are left out of account."""
    return not any(has(protocol, f"locks_{what}") for what in ("partitions", "reads", "writes", "ranges"))


def relies_alike(one, other):
    """Do both rely on nothing but what is compared at the commit? Then one replaces the other in a
    single step (`ProtocolSet::relies_alike`)."""
    return one != other and only_validates(one) and only_validates(other)


def first_step(old, new):
    """Of a switch: the protocols in use, and the step, as views show them."""
    if relies_alike(old, new):
        return new, "degrade"
    return "+".join(p for p in ALL if p in (old, new)), "upgrade"


def having(capability):
    """The protocols that have it."""
    return tuple(name for name in ALL if has(name, capability))


def without(capability):
    """Those that do not have it."""
    return tuple(name for name in ALL if not has(name, capability))


def policies(protocol):
    """The values of waiting_policy that make a difference; (None,): it locks no rows."""
    return POLICIES if has(protocol, "locks_writes") else (None,)


def patient(protocol):
    """The name in `variants` of a protocol by itself, or that under which its transactions wait."""
    return protocol if policies(protocol) == (None,) else f"{protocol}-{POLICIES[0]}"


def waiting(protocol, policy=POLICIES[0]):
    """The option for a waiting policy, if the protocol has any."""
    return {"waiting_policy": policy} if policies(protocol) != (None,) else {}


def variants():
    """Options of CREATE TABLE by name: each protocol, under each policy where it has any."""
    made = {}
    for name in ALL:
        for policy in policies(name):
            options = {"protocol": name, **waiting(name, policy)}
            made["-".join(filter(None, (name, policy))).replace("_", "-")] = options
    return made


if __name__ == "__main__":
    print(*(having(sys.argv[1]) if sys.argv[1:] else ALL), sep="\n")
