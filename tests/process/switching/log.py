#!/usr/bin/python3
"""What the coordinator writes into the server's log: switches and decisions, at the levels that are
set, with the tables' names; settings that it cannot use."""

import re

from process.switching import choice
from lib import protocols
from lib.common import OURS, check, drop_database, equal, main, make_database, must_come, ok, query, value, wait_until
from lib.log import PATIENCE, ServerLog

DATABASE = "process_log"
SWITCHED = re.compile(r'(\w+):  mixedcc switched partition (\d+) of table "([^"]*)" from (\S+) to (\S+) \((.*)\)')
TIMES = re.compile(r"DETAIL:  It took \d+\.\d{3} ms, \d+\.\d{3} ms of it to upgrade\.")
DECIDED = re.compile(r'(\w+):  mixedcc switches partition (\d+) of table "([^"]*)" from (\S+) to (\S+) \((.*)\)')
REASONS = re.compile(r"DETAIL:  Predicted costs: " + ", ".join(rf"{name} \d+\.\d\d" for name in protocols.ALL) +
                     r"\. Features: read_share \d\.\d{3}, records ")


class Log(ServerLog):
    def __init__(self):
        super().__init__(BOSS)


def reload(**settings):
    """The coordinator uses them when it has gone through a pass that began after its reload."""
    choice.configure(**settings)
    for name, text in settings.items():
        must_come(lambda: value(BOSS, f"SHOW mixedcc.{name}") == text, PATIENCE)  # noqa: B023
    for _ in range(2):
        passes = value(BOSS, "SELECT passes FROM mixedcc.coordinator")
        must_come(lambda: value(BOSS, "SELECT passes FROM mixedcc.coordinator") > passes, PATIENCE)  # noqa: B023


def switch(protocol, table="t", partition=1):
    query(BOSS, "SELECT mixedcc.set_protocol(%s::regclass, %s, %s)", (table, protocol, partition))
    if not value(BOSS, "SELECT mixedcc.await_switches(%s::regclass)", (table,)):
        raise RuntimeError("the switch does not end")


def test_switches():
    choice.reset()
    choice.table(", mixedcc.adaptive = off")
    reload(log_switches="log")
    log = Log()
    switch("2pl")
    equal("log: a switch", log.gets(SWITCHED), [("LOG", "1", f"{DATABASE}.public.t", "occ", "2pl", "asked")])
    check("log: its times", TIMES.search(log.text()), log.text())
    log = Log()
    query(BOSS, 'CREATE SCHEMA "S 1"; ALTER TABLE t SET SCHEMA "S 1"; ALTER TABLE "S 1".t RENAME TO "T t"')
    switch("occ", '"S 1"."T t"', 0)
    switch("partcc", '"S 1"."T t"', 0)
    wait_until(lambda: log.all(SWITCHED), PATIENCE)
    equal("log: one to what it has is none, and a table has the name of now", log.all(SWITCHED),
          [("LOG", "0", f"{DATABASE}.S 1.T t", "occ", "partcc", "asked")])
    query(BOSS, 'TRUNCATE "S 1"."T t"')
    log = Log()
    switch("2pl", '"S 1"."T t"', 0)
    equal("log: also after TRUNCATE", log.gets(SWITCHED), [("LOG", "0", f"{DATABASE}.S 1.T t", "partcc", "2pl", "asked")])
    query(BOSS, 'DROP SCHEMA "S 1" CASCADE')


def test_levels():
    """A switch that is not logged now is not logged later."""
    choice.table(", mixedcc.adaptive = off")
    log = Log()
    for level in ("off", "debug1"):
        reload(log_switches=level)
        switch("2pl" if level == "off" else "occ")
    reload(log_switches="log")
    switch("partcc")
    equal("log: only at its level", [m[3:5] for m in log.gets(SWITCHED)], [("occ", "partcc")])
    query(BOSS, "ALTER SYSTEM SET log_min_messages = debug1")
    try:
        reload(log_switches="debug1")
        log = Log()
        switch("occ")
        equal("log: for developers", [m[0] for m in log.gets(SWITCHED)], ["DEBUG"])
    finally:
        query(BOSS, "ALTER SYSTEM RESET log_min_messages")
        choice.reset()


def test_decisions():
    """The load of writes makes the coordinator choose 2pl."""
    best = choice.model_file("log.json", choice.leaf(1.0), choice.split("read_share", 0.9, 1.0, -0.6), choice.leaf(0.2))
    for level in ("off", "log"):
        choice.fast(model_file=best, log_decisions=level, log_switches="log")
        choice.table()
        log = Log()
        with choice.Clients(writes=1):
            check("log: the coordinator switches", choice.gets("2pl"), choice.why())
        wait_until(lambda: len(log.all(SWITCHED)) >= 2, PATIENCE)  # noqa: B023
        why = "chosen: fits the load better"
        wanted = [(str(n), f"{DATABASE}.public.t", "occ", "2pl", why) for n in (0, 1)]
        equal("log: switches that it has chosen", sorted(m[1:] for m in log.all(SWITCHED))[:2], wanted)
        decided = log.all(DECIDED)
        if level == "off":
            equal("log: no decisions", decided, [])
        else:
            equal("log: decisions", sorted(decided)[:2], [("LOG", *m) for m in wanted])
            check("log: with reasons", REASONS.search(log.text()), log.text())


def test_settings():
    """What cannot be used is said, with the reason."""
    choice.reset()
    log = Log()
    reload(model_file="/nowhere/model.json")
    check("log: a model that cannot be read", log.gets(re.compile(r'WARNING:  mixedcc cannot use the model in "/nowhere/model\.json"; the model in use stays')), log.text())
    check("log: and why", log.gets(re.compile(r"DETAIL:  It cannot be read: ")), log.text())
    good = choice.model_file("good.json", choice.leaf(1.0), choice.leaf(0.0), choice.leaf(1.0))
    reload(model_file=good)
    check("log: one that can be", log.gets(re.compile(r'LOG:  mixedcc chooses by the model in ".*good\.json": good\.json')), log.text())
    reload(adaptive_candidates="occ, tea")
    check("log: a list of candidates", log.gets(re.compile(r'WARNING:  mixedcc\.adaptive_candidates is not a list of protocols: "occ, tea"')), log.text())


def clean_up():
    choice.reset()
    BOSS.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    if not OURS:
        ok("log: heap has no protocols")
        raise SystemExit(0)
    BOSS = make_database(DATABASE)
    choice.BOSS, choice.DATABASE = BOSS, DATABASE
    main(test_switches, test_levels, test_decisions, test_settings, clean_up)
