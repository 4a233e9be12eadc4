"""Histories over a mixedcc table and a heap table, by the program `run-histories`
(`tests/histories`): its sessions send several statements at a time, and it judges what they saw
itself, while the next history runs. RUN_HISTORIES names the program (default: the build's)."""

import collections
import json
import os
import subprocess
import tempfile

from lib import protocols
from lib.common import check, create_table, equal, query, set_protocol
from lib.histories import program
from lib.tables import OFF, ON, SCAN, WAYS

PROGRAM = program("run-histories", "RUN_HISTORIES")
SESSIONS = 10
SETTINGS = ("-c deadlock_timeout=10ms -c lock_timeout=20s -c statement_timeout=30s -c enable_seqscan=off "
            "-c mixedcc.mixed_serializable=serializable")
SINGLE = protocols.variants()
LEVELS = ("serializable", "serializable read only", "read committed")
BOTH = ("both tables, serializable", "both tables, serializable read only", "both tables, serializable read only deferrable")
KINDS = ("read", "scan", "insert", "update", "delete")
PARTITIONS = max(4, len(protocols.ALL))
# Is a history with anomalies kept? One that finds a deliberate fault need not be.
kept = True

# `options`: of the program. `switches`: the protocols of partitions change in the middle.
Kind = collections.namedtuple("Kind", "name settings storage synchronous options")


def kinds():
    """What the histories are made of: tables under each protocol and policy, logged or not; commits
    that wait for their flush; hot rows; protocols that change; partitions of all protocols."""
    made = []
    for number, (name, settings) in enumerate(SINGLE.items()):
        made.append(Kind(name, settings, "UNLOGGED" if number % 2 else "", "off", {}))
    for number, policy in enumerate(protocols.POLICIES):
        settings = {"protocol": protocols.ALL[number], "waiting_policy": policy}
        options = {"switches": 8, "protocols": ",".join(protocols.ALL)}
        made.append(Kind(f"switches, {policy.replace('_', '-')}", settings, "" if number % 2 else "UNLOGGED", "off", options))
    made.append(Kind("partitions of all protocols", None, "", "off", {}))
    made.append(Kind("hot rows", SINGLE[protocols.patient(protocols.ALL[0])], "", "off", {"keys": 3}))
    made.append(Kind("many keys", SINGLE[protocols.patient(protocols.ALL[-1])], "UNLOGGED", "off", {"keys": 40}))
    for name in map(protocols.patient, protocols.ALL):
        made.append(Kind(f"{name}, synchronous", SINGLE[name], "", "on", {}))
    return made


def make_tables(connection, kind):
    query(connection, f"ALTER DATABASE {connection.info.dbname} SET synchronous_commit = '{kind.synchronous}'")
    query(connection, "DROP TABLE IF EXISTS a, b")
    settings = kind.settings or SINGLE[protocols.patient(protocols.ALL[0])]
    create_table(connection, "a", "k int PRIMARY KEY, l bigint[]", kind.storage, partitions=PARTITIONS, **settings)
    if not kind.settings:
        for partition, protocol in enumerate(protocols.ALL[:PARTITIONS]):
            set_protocol(connection, "a", protocol, partition)
    query(connection, "CREATE TABLE b (k int PRIMARY KEY, l bigint[]) USING heap")


class History:
    """One history, from its tables on. After `__init__` its load has ended; `judged` waits for the
    verdict."""

    def __init__(self, connection, kind, number, seconds, seed):
        self.name = f"mixed {kind.name}"
        make_tables(connection, kind)
        self.keep = os.path.join(tempfile.mkdtemp(prefix="mixed-"), "history.jsonl")
        # Half of the sessions take the bypass, which is the default.
        ways = [WAYS[way] for way in (ON, SCAN, ON, OFF)]
        options = {"database": connection.info.dbname, "number": number, "seconds": max(1, round(seconds)), "seed": seed, "cancels": 20,
                   "partitions": PARTITIONS, **({"keep": self.keep} if kept else {}), **kind.options}
        command = [PROGRAM, *(word for name, text in options.items() for word in (f"--{name}", str(text)))]
        for session in range(SESSIONS):
            command += ["--session", f"{SETTINGS} {ways[session % len(ways)]}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("{"):
            raise RuntimeError(f"{self.name}: {line}{self.process.stdout.read()}")
        load = json.loads(line)
        self.done = sum(map(collections.Counter, load["clients"]), collections.Counter())
        self.done["cancels"], self.done["switches"] = load["canceled"], load["switched"]
        self.both = sum(self.done[what] for what in BOTH)
        self.seconds = load["seconds"]
        equal(f"history {self.name}: no unexpected error", load["problems"][:5], [])
        few = {what: self.done[what] for what in (*LEVELS, *KINDS, *BOTH[:2]) if self.done[what] < 5}
        idle = [client for client in load["clients"] if client.get("commits", 0) < 20]
        check(f"history {self.name}: each client, each level and each kind of operation commits", not few and not idle, (few, idle, dict(self.done)))
        check(f"history {self.name}: not nearly all transactions fail", self.done["commits"] * 5 >= self.done["transactions"], dict(self.done))

    def judged(self):
        said, _ = self.process.communicate()
        line, _, verdict = said.partition("\n")
        correct = check(f"history {self.name}: correct", self.process.returncode == 0, said[:2500] + said[-400:])
        if correct or not kept:
            os.rmdir(os.path.dirname(self.keep))
        facts = json.loads(line) if line.startswith("{") else {"overlap": collections.Counter(), "judged in": 0.0}
        return correct, facts, verdict


def run(connection, number, seconds, wanted=lambda both, histories: False, chosen=None, seed=0):
    """Runs a history of each kind, and then others while `wanted` says so; each until `number`
    transactions over both tables have committed, or for so many seconds. Returns the sums."""
    chosen = chosen or kinds()
    sums, before, histories = collections.Counter(), None, 0

    def add(history):
        correct, facts, verdict = history.judged()
        sums.update(history.done)
        sums.update({f"overlap {what}": count for what, count in facts["overlap"].items()})
        sums["judged in"] += facts["judged in"]
        sums["over both"] += history.both
        sums["seconds"] += history.seconds
        sums["anomalies"] += not correct
        print(f"{sums['over both']} transactions over both tables; {history.name}: {history.both} in {history.seconds:.1f} s, judged in {facts['judged in']:.1f} s, "
              f"{history.done['commits']} of {history.done['transactions']} commit; {verdict.splitlines()[-1] if verdict else 'no verdict'}", flush=True)

    while histories < len(chosen) or wanted(sums["over both"] + (before.both if before else 0), histories):
        history = History(connection, chosen[histories % len(chosen)], number, seconds, seed + histories)
        if before:
            add(before)
        before, histories = history, histories + 1
    add(before)
    sums["histories"] = histories
    return sums


def tell(sums):
    """The figures of a run."""
    of = collections.Counter({what.removeprefix("overlap "): count for what, count in sums.items() if what.startswith("overlap ")})
    committed, both, all_of_them = max(1, of["committed"]), max(1, of["both"]), max(1, sums["transactions"])
    print(f"beside each committed transaction: {of['beside'] / committed:.2f} committed ones, {of['conflicting'] / committed:.2f} in conflict with it; "
          f"of those over both tables {of['both_conflicting'] / both:.3f} have a conflict in each; "
          f"40001: {sums['40001'] / all_of_them:.3f}, 40P01: {sums['40P01'] / all_of_them:.4f}, cancelled: {sums['57014'] / all_of_them:.4f}", flush=True)
