#!/usr/bin/python3
"""The coordinator chooses protocols while the load changes: a small model decides by reads and
writes, so that each step can be foreseen; pins, options, candidates, rules, a model that cannot be
used, a coordinator that is terminated; a model made wrong on purpose; how soon it follows a load,
and that noise does not make it flap; then a history with the coordinator switching by itself."""

import json
import os
import pathlib
import random
import re
import signal
import tempfile
import threading
import time

from process.isolation import history
from lib.common import OURS, check, connect, drop_database, equal, main, make_database, must_come, ok, query, seconds, server, some_passes, value, wait_until
from lib.loads import Load

DATABASE = "process_choice"
SERIALIZABLE = "-c default_transaction_isolation=serializable -c deadlock_timeout=50ms -c enable_seqscan=off"
PATIENCE = 30.0  # intervals last 0.1 s
FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="mixedcc-choice."))


def leaf(cost):
    return [{"log_cost": cost}]


def split(feature, at, below, above):
    return [{"feature": feature, "at": at, "below": 1, "above": 2}, {"log_cost": below}, {"log_cost": above}]


def model_file(name, partcc, occ, two, **like):
    """A model that the server can read. It does not know a protocol whose tree is None. `like`:
    protocols that have the costs of others."""
    path = FOLDER / name
    trees = {"partcc": partcc, "occ": occ, "2pl": two}
    known = {protocol: tree for protocol, tree in trees.items() if tree}
    path.write_text(json.dumps({"format": 1, "about": name, "trees": known, "like": like}))
    FOLDER.chmod(0o755)
    path.chmod(0o644)
    return str(path)


def configure(**settings):
    for name, text in settings.items():
        query(BOSS, f"ALTER SYSTEM SET mixedcc.{name} = '{text}'")
    query(BOSS, "SELECT pg_reload_conf()")


def reset():
    for (name,) in query(BOSS, "SELECT name FROM pg_settings WHERE name LIKE 'mixedcc.%' AND context = 'sighup'"):
        query(BOSS, f"ALTER SYSTEM RESET {name}")
    query(BOSS, "SELECT pg_reload_conf()")


def table(options="", name="t"):
    """Unlogged: what was learned is saved with the rows of such tables only."""
    query(BOSS, f"DROP TABLE IF EXISTS {name}")
    query(BOSS, f"CREATE UNLOGGED TABLE {name} (id int PRIMARY KEY, v int) USING mixedcc WITH (mixedcc.partitions = 2{options})")
    query(BOSS, f"INSERT INTO {name} SELECT i, 0 FROM generate_series(0, 199) i")


def protocols(name="t"):
    return [p for (p,) in query(BOSS, "SELECT protocol FROM mixedcc.partitions WHERE \"table\" = %s::regclass ORDER BY partition", (name,))]


class Clients:
    """Sessions that read or write rows until they are stopped; `writes`, the share of writers, may
    change meanwhile. `apart`: each has rows of its own. `idle`: a transaction has two statements.
    They use the first `rows` rows."""

    def __init__(self, writes, isolation="serializable", name="t", n=3, apart=False, idle=False, rows=198):
        self.writes, self.isolation, self.name, self.apart, self.idle = writes, isolation, name, apart, idle
        self.rows = rows
        self.turns = [0] * n
        self.going, self.problems, self.added = True, [], 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(n)]

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.going = False
        for t in self.threads:
            t.join()

    def run(self, i):
        try:
            c = connect(DATABASE, options=SERIALIZABLE.replace("serializable", self.isolation.replace(" ", "\\ ")))
            n, dice = i, random.Random(i)
            while self.going:
                n = (n + (3 if self.apart else 7)) % self.rows
                self.turns[i] += 1
                try:
                    if self.idle:
                        query(c, "BEGIN")
                        query(c, f"SELECT v FROM {self.name} WHERE id = {n}")
                    if dice.random() < self.writes:
                        query(c, f"UPDATE {self.name} SET v = v + 1 WHERE id = {n}")
                        self.ends(c)
                        with self.lock:
                            self.added += 1
                    else:
                        query(c, f"SELECT v FROM {self.name} WHERE id = {n}")
                        self.ends(c)
                except Exception as e:  # noqa: BLE001
                    if getattr(e, "pgcode", None) not in ("40001", "40P01"):
                        raise
                    if self.idle:
                        query(c, "ROLLBACK")
            c.close()
        except Exception as e:  # noqa: BLE001
            self.problems.append(str(e))


    def ends(self, c):
        if self.idle:
            query(c, "COMMIT")

    def become(self, writes):
        """When all sessions have gone over to another share of writers."""
        self.writes, before = writes, list(self.turns)
        # The first turn after this may have looked before.
        must_come(lambda: all(now > then + 1 for now, then in zip(self.turns, before)), PATIENCE)


def gets(wanted, name="t"):
    return wait_until(lambda: protocols(name) == [wanted] * 2, PATIENCE)


def stays(wanted, name="t", limit=2.0):
    if wait_until(lambda: protocols(name) != [wanted] * 2, limit):
        return False
    # A coordinator that looks at nothing shows nothing.
    some_passes(BOSS, 3)
    return protocols(name) == [wanted] * 2


def why(partition=0, name="t"):
    rows = query(BOSS, "SELECT item, name, value, note FROM mixedcc.explain_choice(%s::regclass, %s)", (name, partition))
    return {(item, n): (v, note) for item, n, v, note in rows}


def history_of(name="t"):
    return query(BOSS, "SELECT old, new, why, asked_by FROM mixedcc.switch_history WHERE \"table\" = %s::regclass AND partition = 0 ORDER BY number", (name,))


def fast(**settings):
    """Intervals of 0.1 s, and a model that only the clearest measurements overrule: others load the
    machine too."""
    reset()
    defaults = {"adaptive_interval": "100ms", "sample_every": "1", "adaptive_min_samples": "5", "adaptive_max_loss": "900", "adaptive_min_gain": "60"}
    configure(**{**defaults, **settings})


def test_changes():
    """Reads want occ, writes want 2pl: the coordinator follows the load, and tells why."""
    fast(model_file=model_file("reads.json", leaf(1.0), split("read_share", 0.9, 1.0, -0.6), leaf(0.2)))
    table()
    with Clients(writes=False) as clients:
        check("choice: reads keep occ", wait_until(lambda: ("cost", "occ") in why(), PATIENCE) and stays("occ", limit=1))
        clients.writes = True
        check("choice: writes get 2pl", gets("2pl"), why())
        clients.writes = False
        check("choice: reads get occ again", gets("occ"), why())
        told = why()
        equal("choice: explain_choice has all features", sum(item == "feature" for item, _ in told), 17)
        own = [told["load", n][0] for n in ("own_lost_share", "own_slept_share")]
        check("choice: explain_choice shows what is lost for its own sake", all(0 <= share <= 1 for share in own), told)
        check("choice: explain_choice names the protocol in use", "in use" in told["cost", "occ"][1], told)
        check("choice: explain_choice shows the gain", ("state", "gain") in told, told)

    def old():
        told = why()
        return told["state", "figures"][0] > 1.5 and told["state", "decision"][0] < 1 and "too few" in told["state", "decision"][1]

    check("choice: figures of a load that has gone are told to be old", wait_until(old, PATIENCE), why())
    equal("choice: no session had another error", clients.problems, [])
    equal("choice: nothing is lost", value(BOSS, "SELECT sum(v) FROM t"), clients.added)
    rows = history_of()
    equal("choice: the history says who and why", rows[:2],
          [("occ", "2pl", "chosen: fits the load better", "coordinator"), ("2pl", "occ", "chosen: fits the load better", "coordinator")])


def decisions_until(switched, limit=PATIENCE):
    """Times of the coordinator's decisions about partition 0 for which it had enough transactions,
    as far as they were seen, and what `switched` returns as soon as that is true. Fewer are seen
    than there were if this process is slow."""
    at, end = [], time.monotonic() + limit
    while time.monotonic() < end:
        done = switched()
        when, text = query(BOSS, "SELECT extract(epoch FROM clock_timestamp())::float8 - value, note FROM mixedcc.explain_choice('t'::regclass, 0) "
                                 "WHERE item = 'state' AND name = 'decision'")[0]
        # Intervals last 0.1 s at least; the two clocks are read a moment apart.
        if "too few" not in text and (not at or when - at[-1] > 0.05):
            at.append(when)
        if done:
            return at, done
        time.sleep(0.01)
    return at, None


def test_reaction():
    """A change of the load is followed within three intervals, counted in intervals as the
    coordinator made them."""
    fast(model_file=model_file("reads.json", leaf(1.0), split("read_share", 0.9, 1.0, -0.6), leaf(0.2)))
    # Each load once a table: the model is an invention, and what a table's switches teach overrules
    # it.
    for _ in range(2):
        table()
        with Clients(writes=False) as clients:
            check("choice: a load to begin with", wait_until(lambda: ("cost", "occ") in why(), PATIENCE) and stays("occ", limit=1))
            for writes, wanted in ((True, "2pl"), (False, "occ")):
                number = value(BOSS, "SELECT coalesce(max(number), -1) FROM mixedcc.switch_history")
                clients.become(writes)
                began = value(BOSS, "SELECT extract(epoch FROM clock_timestamp())::float8")
                asked = "SELECT extract(epoch FROM min(asked_at))::float8 FROM mixedcc.switch_history WHERE \"table\" = 't'::regclass " \
                        f"AND partition = 0 AND number > {number} AND new = '{wanted}'"
                at, when = decisions_until(lambda: value(BOSS, asked))  # noqa: B023
                check(f"choice: {wanted} is asked for", when, why())
                seen = [t for t in at if began < t <= (when or 0) + 0.05]
                # The first one has transactions of before in it. Intervals last 0.1 s at least, so
                # that there are few in a short time; in a longer one they must have been seen.
                few = when is not None and when - began <= 0.3
                check("choice: within three intervals", few or 1 <= len(seen) <= 4, (began, at, when, history_of()))
                some_passes(BOSS, 5)
        equal("choice: nobody had an error meanwhile", clients.problems, [])


def most_switches(lengths, confirm=2):
    """Switches to and fro that are possible if a load looks the same for so many intervals running,
    each time: each that is reversed doubles how long the next one must look better."""
    n = 0
    for left in lengths:
        while left >= confirm << (n + 1) // 2:
            left -= confirm << (n + 1) // 2
            n += 1
    return n


def test_flapping():
    """A load on the edge of two leaves, and one that swings around it faster than the coordinator
    learns to wait."""
    # The model calls 2pl the better one where a transaction in 0.4 or more writes.
    on_the_edge = split("read_share", 1 / 1.4, 1.0, -0.6)
    for name, shares in (("edge", [0.4]), ("swings", [0.18, 0.67])):
        fast(model_file=model_file("edge.json", leaf(1.0), on_the_edge, leaf(0.2)))
        table()
        seen, lengths = set(), []
        with Clients(writes=shares[0], apart=True) as clients:
            must_come(lambda: ("cost", "occ") in why(), PATIENCE)
            before, passes = len(history_of()), value(BOSS, "SELECT passes FROM mixedcc.coordinator")
            end = time.monotonic() + seconds(12)
            while time.monotonic() < end:
                began = time.monotonic()
                clients.writes = shares[len(lengths) % len(shares)]
                time.sleep(0.5 if len(shares) > 1 else 6)
                seen.add(why()["feature", "read_share"][0] > 1 / 1.4)
                # As long as it really was: this process may have slept longer. Intervals last 0.1 s
                # at least.
                lengths.append((time.monotonic() - began) / 0.1 + 1)
            passes = value(BOSS, "SELECT passes FROM mixedcc.coordinator") - passes
        made = len(history_of()) - before
        check(f"choice, {name}: intervals", passes >= 20, passes)
        check(f"choice, {name}: the model says now this, now that", len(seen) == 2 or len(shares) == 1, (seen, why()))
        # A load that is far off for an instant may look like none before.
        check(f"choice, {name}: it does not flap", made <= most_switches(lengths) + 2, (made, most_switches(lengths), lengths, history_of()))
        equal(f"choice, {name}: no session had an error", clients.problems, [])


def test_left_alone():
    """Pins, options, settings and rules."""
    fast(model_file=model_file("partcc.json", leaf(0.0), leaf(0.9), leaf(0.9)))
    table(", mixedcc.protocol = occ")
    with Clients(writes=True):
        check("choice: a table that names its protocol keeps it", stays("occ"))
        equal("choice: and says so", why()["state", "adaptive"][1], "no: the table's options say so, or name a protocol")
        query(BOSS, "ALTER TABLE t SET (mixedcc.adaptive = on)")
        check("choice: unless it is adaptive too", gets("partcc"), why())
        query(BOSS, "SELECT mixedcc.set_protocol('t', '2pl')")
        check("choice: a pin", gets("2pl") and stays("2pl"))
        equal("choice: is shown", why()["state", "adaptive"][1], "no: the partition is pinned")

        def judged():
            told = why()
            return told["state", "figures"][0] < 1 and told["state", "decision"][1] == "pinned" and "best" in told["cost", "partcc"][1] \
                and re.fullmatch(r"percent, of partcc over 2pl; needs 60\.0", told["state", "gain"][1])

        check("choice: what would be chosen is told all the same", wait_until(judged, PATIENCE), why())
        query(BOSS, "SELECT mixedcc.unpin('t')")
        check("choice: and given back", gets("partcc"), why())
        query(BOSS, "ALTER TABLE t SET (mixedcc.candidates = 'occ, 2pl')")
        check("choice: candidates of the table", wait_until(lambda: "partcc" not in protocols(), PATIENCE), why())
        equal("choice: are an option", query(BOSS, "SELECT value FROM mixedcc.options WHERE \"table\" = 't'::regclass AND option = 'candidates'"), [("occ+2pl",)])
        query(BOSS, "ALTER TABLE t RESET (mixedcc.candidates)")
        check("choice: and can be reset", gets("partcc"), why())
        configure(adaptive_candidates="2pl,occ")
        check("choice: candidates of the cluster", wait_until(lambda: "partcc" not in protocols(), PATIENCE), why())
        configure(adaptive_candidates="tea", adaptive="off")
        query(BOSS, "ALTER TABLE t RESET (mixedcc.adaptive); ALTER TABLE t RESET (mixedcc.protocol)")
        query(BOSS, "SELECT mixedcc.set_protocol('t', '2pl'), mixedcc.unpin('t')")
        check("choice: off for all", gets("2pl") and stays("2pl"))
        configure(adaptive="on")
        check("choice: a wrong list of candidates: all", gets("partcc"), why())


def looks(name, limit):
    """How often the coordinator has looked at a table, as far as this process was quick enough to
    see it."""
    seen, end = [], time.monotonic() + limit
    while time.monotonic() < end:
        when = value(BOSS, "SELECT extract(epoch FROM clock_timestamp())::float8 - value FROM mixedcc.explain_choice(%s::regclass) "
                           "WHERE item = 'state' AND name = 'decision'", (name,))
        # The two clocks are read a moment apart.
        if when is not None and (not seen or when - seen[-1] > 0.05):
            seen.append(when)
        time.sleep(0.02)
    return len(seen)


def test_table_settings():
    """Thresholds and interval of a table; those of others stay the cluster's."""
    fast(model_file=model_file("reads.json", leaf(1.0), split("read_share", 0.9, 1.0, -0.6), leaf(0.2)))
    table()
    table(", mixedcc.adaptive_min_gain = 900", name="u")
    table(", mixedcc.adaptive_interval = '1s'", name="w")
    with Clients(writes=1, n=2), Clients(writes=1, n=2, name="u"):
        check("choice: the cluster's margin", gets("2pl"), why())
        check("choice: a table's own margin", stays("occ", name="u", limit=1), why(name="u"))
        equal("choice: is shown", why(name="u")["setting", "adaptive_min_gain"], (900, "the table's option"))
        equal("choice: beside the cluster's", why()["setting", "adaptive_min_gain"], (60, "mixedcc.adaptive_min_gain"))
        query(BOSS, "ALTER TABLE u RESET (mixedcc.adaptive_min_gain)")
        check("choice: and can be reset", gets("2pl", name="u"), why(name="u"))
    equal("choice: a table's own interval is shown", why(name="w")["setting", "adaptive_interval"],
          (1000, "the table's option: every 10 intervals of the cluster"))
    with Clients(writes=1, n=1), Clients(writes=1, n=1, name="w"):
        many, few = looks("t", 4), looks("w", 4)
        check("choice: and counts", few <= 5 < many and looks("w", 4) >= 1, (many, few))
    at_rest = looks("t", 3)
    check("choice: a table without transactions is left alone", at_rest <= 3, at_rest)
    query(BOSS, "DROP TABLE u, w")


def test_rules():
    """No partcc where READ COMMITTED writers, or transactions that wait for their client between
    statements, are frequent, whatever the model says."""
    fast(model_file=model_file("partcc.json", leaf(0.0), leaf(0.9), leaf(0.9)))
    table()
    with Clients(writes=True, isolation="read committed"):
        check("choice: weak writers are seen", wait_until(lambda: why().get(("load", "weak_writer_share"), (0,))[0] > 0.5, PATIENCE), why())
        check("choice: no partcc for them", stays("occ"))
        check("choice: explained", "excluded by a rule" in why()["cost", "partcc"][1], why())
    table()
    with Clients(writes=True, idle=True, apart=True) as clients:
        check("choice: idle transactions are seen", wait_until(lambda: why().get(("load", "idle_share"), (0,))[0] > 0.5, PATIENCE), why())
        # The rows were inserted by one.
        check("choice: and are no weak writers", wait_until(lambda: why()["load", "weak_writer_share"][0] == 0, PATIENCE), why())
        # Another protocol may be tried.
        check("choice: no partcc for who waits for its client", not wait_until(lambda: any("partcc" in p for p in protocols()), 2.0), (history_of(), why()))
        check("choice: that is explained too", "excluded by a rule" in why()["cost", "partcc"][1], why())
        configure(partcc_max_share="100")
        check("choice: but where the setting allows it", gets("partcc"), (history_of(), why()))
        configure(partcc_max_share="5")
        check("choice: and no longer, not", wait_until(lambda: "partcc" not in protocols(), PATIENCE), (history_of(), why()))
    equal("choice: nobody who was idle had an error", clients.problems, [])


def test_bad_models():
    """A file that cannot be used changes nothing."""
    good = model_file("partcc.json", leaf(0.0), leaf(0.9), leaf(0.9))
    fast(model_file=good)
    table()
    bad = FOLDER / "bad.json"
    bad.write_text('{"format": 1, "trees": {}}')
    bad.chmod(0o644)
    coordinator = value(BOSS, "SELECT pid FROM mixedcc.coordinator")
    with Clients(writes=True):
        check("choice: a model from a file", gets("partcc"), why())
        for path in (str(bad), str(FOLDER / "absent.json")):
            configure(model_file=path)
            check("choice: one that cannot be used changes nothing", stays("partcc", limit=0.6), (history_of(), why()))
    equal("choice: and ends nobody", value(BOSS, "SELECT pid FROM mixedcc.coordinator"), coordinator)


def test_unknown_protocol():
    """A protocol that the model does not know can be pinned, and is never chosen."""
    fast(model_file=model_file("unknown.json", leaf(0.9), leaf(0.0), None))
    table()
    with Clients(writes=True):
        query(BOSS, "SELECT mixedcc.set_protocol('t', '2pl')")
        check("choice: a protocol that the model does not know, pinned", gets("2pl") and stays("2pl"))

        def told():
            cost, note = why().get(("cost", "2pl"), (0, ""))
            return cost is None and "the model does not know it" in note and why()["state", "gain"][0] is None

        check("choice: is told to be unknown", wait_until(told, PATIENCE), why())
        query(BOSS, "SELECT mixedcc.unpin('t')")
        check("choice: is left without its pin", gets("occ"), why())
        check("choice: and does not come back", stays("occ"), (history_of(), why()))


def test_tried():
    """A protocol that the model cannot tell from another one is tried where attempts fail, and only
    there; it stays, and says why."""
    fast(model_file=model_file("like.json", leaf(0.9), leaf(0.0), leaf(0.9), mocc="occ"), adaptive_candidates="occ, mocc")
    table()
    with Clients(writes=True, apart=True) as clients:
        check("choice: where nothing fails nothing is tried", wait_until(lambda: ("cost", "mocc") in why(), PATIENCE) and stays("occ"), (history_of(), why()))
        cost, note = why()["cost", "mocc"]
        check("choice: but its cost is told, and whose it is", cost == why()["cost", "occ"][0] and "tried where attempts fail" in note, why())
    query(BOSS, "ALTER TABLE t SET (mixedcc.partitions = 1)")
    with Clients(writes=True, idle=True, n=8, rows=3) as hot:
        check("choice: where attempts fail it is tried", wait_until(lambda: protocols() == ["mocc"], PATIENCE), (history_of(), why()))
        equal("choice: for that reason", history_of()[-1], ("occ", "mocc", "tried: much work was lost", "coordinator"))
        learned = ("learned", "occ to mocc")
        check("choice: it is verified", wait_until(lambda: learned in why(), PATIENCE), (history_of(), why()))
        made = len(history_of())
        some_passes(BOSS, 20)
        equal("choice: and stays", (protocols(), len(history_of())), (["mocc"], made))
    equal("choice: no session had another error", (clients.problems, hot.problems), ([], []))
    equal("choice: and no update is lost", value(BOSS, "SELECT sum(v) FROM t"), clients.added + hot.added)


def test_changed_models():
    """A file that has changed is read again at a reload; in the middle of being written it changes
    nothing."""
    path = model_file("changed.json", leaf(0.0), leaf(0.9), leaf(0.9))
    fast(model_file=path, adaptive_forget="1")
    table()
    with Clients(writes=True):
        check("choice: a model from a file that will change", gets("partcc"), why())
        model_file("changed.json", leaf(0.9), leaf(0.9), leaf(0.0))
        check("choice: a changed file waits for a reload", stays("partcc", limit=1.0), (history_of(), why()))
        configure()
        check("choice: and is read then", gets("2pl"), (history_of(), why()))
        text = pathlib.Path(path).read_text()
        pathlib.Path(path).write_text(text[:len(text) // 2])
        configure()
        check("choice: one that is not complete changes nothing", stays("2pl", limit=1.0), (history_of(), why()))
        model_file("changed.json", leaf(0.0), leaf(0.9), leaf(0.9))
        configure()
        check("choice: but when it is, it is read", gets("partcc"), (history_of(), why()))
        pathlib.Path(path).unlink()
        configure()
        check("choice: the model of a file that is gone stays", stays("partcc", limit=1.0), (history_of(), why()))


def test_deaths():
    """The coordinator is terminated again and again: the next one goes on choosing, and knows what
    was learned."""
    fast(model_file=model_file("reads.json", leaf(1.0), split("read_share", 0.9, 1.0, -0.6), leaf(0.2)))
    table()
    with Clients(writes=True) as clients:
        for writes, wanted in ((True, "2pl"), (False, "occ"), (True, "2pl")):
            clients.writes = writes
            old = value(BOSS, "SELECT pid FROM mixedcc.coordinator")
            if old is not None:
                os.kill(old, signal.SIGTERM)
            check("choice: a new coordinator chooses", gets(wanted), why())
    equal("choice: nothing is lost over their deaths", (clients.problems, value(BOSS, "SELECT sum(v) FROM t")), ([], clients.added))


def test_wrong_model():
    """The model calls partcc the best for sessions that hold a lock across a sleep: verification
    overrules it."""
    reset()
    configure(adaptive_interval="300ms", sample_every="1", adaptive_min_samples="5",
              model_file=model_file("wrong.json", leaf(0.0), leaf(0.5), leaf(1.0)), adaptive_candidates="occ,partcc")
    table()
    query(BOSS, """CREATE OR REPLACE FUNCTION slow(n int) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN PERFORM v FROM t WHERE id = n; PERFORM pg_sleep(0.01); UPDATE t SET v = v + 1 WHERE id = n; END $$""")
    going = [True]

    def run(i):
        c = connect(DATABASE, options=SERIALIZABLE)
        while going[0]:
            query(c, "SELECT slow(%s)", (i,))
        c.close()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    try:
        # Eight sessions with a row each: under occ side by side, under partcc one after another.
        back = "SELECT count(*) FROM mixedcc.switch_history WHERE \"table\" = 't'::regclass AND why LIKE 'taken back%'"
        check("choice: a wrong model is overruled", wait_until(lambda: value(BOSS, back) >= 2, 2 * PATIENCE), (history_of(), why()))
        check("choice: the old protocol is back", gets("occ"), why())
        check("choice: and stays", stays("occ", limit=4), (history_of(), why()))
        check("choice: what was learned is shown", any(item == "learned" for item, _ in why()), why())
    finally:
        going[0] = False
        for t in threads:
            t.join()


def test_restart():
    """What was learned outlives a shutdown, with the table that it is about."""
    reset()
    before = query(BOSS, "SELECT name, value FROM mixedcc.explain_choice('t'::regclass, 0) WHERE item = 'learned' ORDER BY 1, 2")
    check("choice: there is something to keep", before)
    restart()
    after = query(BOSS, "SELECT name, value FROM mixedcc.explain_choice('t'::regclass, 0) WHERE item = 'learned' ORDER BY 1, 2")
    equal("choice: lessons outlive a restart", after, before)


def restart():
    global BOSS
    BOSS.close()
    server("restart")
    BOSS = connect(DATABASE)


def test_history():
    """Histories at all levels while the coordinator switches by itself: the model changes its mind
    all the time."""
    fast(adaptive_confirm="1", adaptive_min_gain="1", partcc_max_share="100", adaptive_forget="1")
    BOSS.close()
    duration = seconds(15, long=48) / 3
    for name, load in (("choice, serializable", Load(["a", "b"], ["a", "b"])),
                       ("choice, all levels", Load(["a", "b"], ["a", "b"], levels=history.ALL_LEVELS)),
                       ("choice, terminated", Load(["a", "b"], ["a", "b"], levels=history.ALL_LEVELS, killed=True))):
        connection = connect(DATABASE)
        history.make_tables(connection, {"waiting_policy": "wait"}, {"waiting_policy": "wait"})
        first = value(connection, "SELECT coalesce(max(number), 0) FROM mixedcc.switch_history")
        connection.close()
        history.DATABASE = DATABASE
        connection = connect(DATABASE)
        query(connection, "SET application_name = 'judge'")
        history.judge(name, load, connection, duration, lambda until: disturb(until, load.killed))
        check(f"{name}: no switch is left", value(connection, "SELECT mixedcc.await_switches(NULL, '20 s')"))
        made = value(connection, "SELECT count(*) FROM mixedcc.switch_history WHERE asked_by = 'coordinator' AND number > %s", (first,))
        check(f"{name}: the coordinator switched", made > 0, f"{made} switches")
        query(connection, "DROP TABLE a, b")
        connection.close()


def disturb(until, kill):
    """Models that contradict each other; with `kill`, sessions and coordinators are terminated."""
    boss = connect(DATABASE)
    query(boss, "SET application_name = 'judge'")
    best = [model_file(f"{i}.json", *(leaf(0.0 if i == j else 0.9) for j in range(3))) for i in range(3)]
    n = 0
    while time.monotonic() < until:
        time.sleep(0.4)
        n += 1
        query(boss, f"ALTER SYSTEM SET mixedcc.model_file = '{best[n % 3]}'")
        query(boss, "SELECT pg_reload_conf()")
        if kill:
            query(boss, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid() "
                        "AND application_name = 'process test' AND backend_start < now() - interval '100 ms' ORDER BY random() LIMIT 1", (DATABASE,))
            query(boss, "SELECT pg_terminate_backend(pid) FROM mixedcc.coordinator WHERE pid IS NOT NULL AND random() < 0.2")
    boss.close()


def clean_up():
    global BOSS
    BOSS = connect("postgres")
    reset()
    drop_database(DATABASE)


if __name__ == "__main__":
    if not OURS:
        ok("choice: heap has no protocols")
        raise SystemExit(0)
    BOSS = make_database(DATABASE)
    main(test_changes, test_reaction, test_flapping, test_left_alone, test_table_settings, test_rules, test_bad_models, test_unknown_protocol, test_tried, test_changed_models, test_deaths, test_wrong_model, test_restart, test_history, clean_up)
