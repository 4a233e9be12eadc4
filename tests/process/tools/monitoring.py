#!/usr/bin/python3
"""The files in monitoring/: their queries give all of mixedcc.metrics, under the same names. Where
MONITORING_TOOLS names a folder with prometheus-postgres-exporter, prometheus and promtool, these
run with the files: the exporter shows each metric, the alert rules pass their tests, and each query
of the dashboard has a result."""

import contextlib
import json
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request

import psycopg2
import yaml

from lib.common import OURS, ROOT, check, connect, drop_database, equal, main, make_database, must_come, ok, query, value, wait_until, waits_for_lock

DATABASE = "process_monitoring"
FILES = ROOT / "monitoring"
TOOLS = os.environ.get("MONITORING_TOOLS")
LABELS = ("datname", "schemaname", "relname", "protocol", "reason", "statement")
# These change from look to look.
MOVING = re.compile(r"_(age_seconds|passes_total|commits|switch_seconds)$|^mixedcc_(statements|memory|cluster|durability)_")
PATIENCE = 60.0


def shown():
    """The view: (name, labels) with type, help and value."""
    rows = query(BOSS, f"SELECT name, {', '.join(LABELS)}, type, help, value FROM mixedcc.metrics")
    return {(r[0], frozenset((k, v) for k, v in zip(LABELS, r[1:7]) if v is not None)): r[7:] for r in rows}


def still(metrics):
    """Those that do not change by themselves: values by name and labels."""
    return {key: found[-1] for key, found in metrics.items() if not MOVING.search(key[0])}


def load():
    """A table with a commit, an abort and a wait, so that each metric has a row."""
    query(BOSS, "CREATE TABLE t (id int PRIMARY KEY, v int) USING mixedcc WITH (mixedcc.partitions = 4, mixedcc.protocol = 'occ', "
                "autovacuum_enabled = off)")
    query(BOSS, "INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i")
    reader = connect(DATABASE, isolation="SERIALIZABLE")
    query(reader, "SELECT v FROM t WHERE id = 1")
    query(BOSS, "UPDATE t SET v = 1 WHERE id = 1")
    try:
        query(reader, "UPDATE t SET v = 2 WHERE id = 1")
        reader.commit()
        raise RuntimeError("the reader did not fail")
    except psycopg2.errors.SerializationFailure:
        reader.rollback()
    reader.close()
    holder = connect(DATABASE, isolation="READ COMMITTED")
    query(holder, "UPDATE t SET v = 3 WHERE id = 2")
    waiter = connect(DATABASE)
    pid = value(waiter, "SELECT pg_backend_pid()")
    thread = threading.Thread(target=query, args=(waiter, "UPDATE t SET v = 4 WHERE id = 2"))
    thread.start()
    must_come(lambda: waits_for_lock(BOSS, pid))
    holder.commit()
    thread.join()
    holder.close()
    waiter.close()


def queries():
    return yaml.safe_load((FILES / "postgres_exporter.yaml").read_text(encoding="utf-8"))


def test_queries():
    """As the exporter reads them: a metric is named by the query and the column."""
    found = {}
    for group, rule in queries().items():
        usage = {column: what for entry in rule["metrics"] for column, what in entry.items()}
        with BOSS.cursor() as cursor:
            cursor.execute(rule["query"])
            columns = [c.name for c in cursor.description]
            rows = cursor.fetchall()
        equal(f"monitoring: columns of {group}", sorted(columns), sorted(usage))
        cluster = rule.get("master", False)
        check(f"monitoring: {group} has rows", rows)
        for row in rows:
            of = dict(zip(columns, row))
            labels = frozenset((c, v) for c, v in of.items() if usage[c]["usage"] == "LABEL" and v is not None)
            if ("datname" in dict(labels)) == cluster:
                check(f"monitoring: {group} is of the cluster or of a database", False, labels)
            for column, what in usage.items():
                if what["usage"] != "LABEL":
                    found[f"{group}_{column}", labels] = (what["usage"].lower(), what["description"], of[column])
    wanted = shown()
    equal("monitoring: the queries give each metric", sorted({n for n, _ in found}), sorted({n for n, _ in wanted}))
    equal("monitoring: with their types and words", {k: v[:2] for k, v in found.items()}, {k: v[:2] for k, v in wanted.items()})
    equal("monitoring: with their values", still(found), still(wanted))


def test_names():
    """Alerts and dashboard name metrics and labels that there are."""
    known = {n for n, _ in shown()}
    used = {"alerts": set(), "grafana": set()}
    for rule in rules():
        used["alerts"] |= set(re.findall(r"mixedcc_\w+", rule["expr"]))
    for expression in expressions():
        used["grafana"] |= set(re.findall(r"mixedcc_\w+", expression))
    for file, names in used.items():
        equal(f"monitoring: names in {file}", names - known, set())
    tests = (FILES / "alerts_test.yaml").read_text(encoding="utf-8")
    equal("monitoring: each alert has a test", [r["alert"] for r in rules() if f'"{r["alert"]}"' not in tests], [])


def rules():
    alerts = yaml.safe_load((FILES / "alerts.yaml").read_text(encoding="utf-8"))
    return [rule for group in alerts["groups"] for rule in group["rules"]]


def expressions():
    """Of the dashboard."""
    board = json.loads((FILES / "grafana.json").read_text(encoding="utf-8"))
    return [t["expr"] for panel in board["panels"] for t in panel.get("targets", [])]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def fetch(url):
    """The text, or nothing."""
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.read().decode()
    except (urllib.error.URLError, OSError):
        return None


@contextlib.contextmanager
def program(name, *arguments, **environment):
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([f"{TOOLS}/{name}", *arguments], stdout=log, stderr=log, env={**os.environ, **environment})
        try:
            yield
        except Exception:
            log.seek(0)
            print(log.read().decode(errors="replace")[-3000:])
            raise
        finally:
            process.terminate()
            process.wait()


def exposed(text):
    """What the exporter shows of ours."""
    types = dict(re.findall(r"^# TYPE (mixedcc_\w+) (\w+)$", text, re.MULTILINE))
    words = dict(re.findall(r"^# HELP (mixedcc_\w+) (.*)$", text, re.MULTILINE))
    found = {}
    for name, labels, number in re.findall(r"^(mixedcc_\w+)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE):
        pairs = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)
        found[name, frozenset((k, v) for k, v in pairs if k != "server" and v)] = (types[name], words[name], float(number))
    return found


def exporter(port):
    source = f"postgresql://{os.environ['PGUSER']}@:{os.environ['PGPORT']}/{DATABASE}?host={urllib.parse.quote(os.environ['PGHOST'], safe='')}&sslmode=disable"
    return program("prometheus-postgres-exporter", f"--web.listen-address=127.0.0.1:{port}", "--disable-default-metrics", "--disable-settings-metrics",
                   f"--extend.query-path={FILES}/postgres_exporter.yaml", DATA_SOURCE_NAME=source)


def promtool(name, *arguments, **keywords):
    done = subprocess.run([f"{TOOLS}/promtool", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **keywords)
    check(f"monitoring: promtool {name}", done.returncode == 0, done.stdout)


def test_exporter():
    port = free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    with exporter(port):
        must_come(lambda: "mixedcc_" in (fetch(url) or ""), PATIENCE)
        text = fetch(url)
        found, wanted = exposed(text), shown()
        equal("monitoring: the exporter shows each metric with its labels", sorted((n, sorted(l)) for n, l in found), sorted((n, sorted(l)) for n, l in wanted))
        equal("monitoring: their types and words", {k: v[:2] for k, v in found.items()}, {k: v[:2] for k, v in wanted.items()})
        equal("monitoring: their values", still(found), still(wanted))
        check("monitoring: the exporter met no error", re.search(r"^pg_exporter_last_scrape_error\S* 0$", text, re.MULTILINE),
              re.findall(r"^pg_exporter_.*", text, re.MULTILINE))
        ours = "".join(line + "\n" for line in text.splitlines() if re.match(r"(# \w+ )?mixedcc_", line))
        promtool("finds no fault with names", "check", "metrics", input=ours)


def test_rules():
    promtool("reads the rules", "check", "rules", str(FILES / "alerts.yaml"))
    promtool("runs their tests", "test", "rules", str(FILES / "alerts_test.yaml"))


def ask(port, path, **parameters):
    """Prometheus's API: the data of an answer."""
    text = fetch(f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
    answer = json.loads(text) if text else {}
    return answer.get("data") if answer.get("status") == "success" else None


def test_prometheus():
    """Prometheus scrapes the exporter, evaluates the rules, and answers what the dashboard asks."""
    source, port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as home:
        config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}, "rule_files": [str(FILES / "alerts.yaml")],
                  "scrape_configs": [{"job_name": "mixedcc", "static_configs": [{"targets": [f"127.0.0.1:{source}"]}]}]}
        pathlib.Path(home, "prometheus.yml").write_text(yaml.dump(config), encoding="utf-8")
        with exporter(source), program("prometheus", f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/data", f"--web.listen-address=127.0.0.1:{port}"):
            must_come(lambda: (ask(port, "query", query="count_over_time(mixedcc_table_rows[1m]) >= 5") or {}).get("result"), PATIENCE)
            for expression in expressions():
                asked = expression.replace("$datname", ".*").replace("$relname", ".*").replace("$__rate_interval", "1m")
                check(f"monitoring: the dashboard's {expression}", (ask(port, "query", query=asked) or {}).get("result"))
            health = lambda: [r for g in (ask(port, "rules") or {"groups": []})["groups"] for r in g["rules"]]  # noqa: E731
            wait_until(lambda: health() and all(r["health"] == "ok" for r in health()), PATIENCE)
            equal("monitoring: all rules can be evaluated", {r["name"]: r["health"] for r in health()}, {r["alert"]: "ok" for r in rules()})
            equal("monitoring: no alert fires", [r["name"] for r in health() if r["state"] == "firing"], [])


def test_busy():
    """A table is being altered, and is dropped: the exporter waits for no lock."""
    other = connect(DATABASE, isolation="READ COMMITTED")
    query(other, "LOCK TABLE t")
    query(BOSS, "SET statement_timeout = '5 s'")
    for group, rule in queries().items():
        check(f"monitoring: {group} does not wait", query(BOSS, rule["query"]))
    other.rollback()
    other.close()


def clean_up():
    BOSS.close()
    drop_database(DATABASE)


if __name__ == "__main__":
    if not OURS:
        ok("monitoring: heap has no metrics")
        raise SystemExit(0)
    BOSS = make_database(DATABASE)
    load()
    if not TOOLS:
        print("NOT RUN: the exporter and Prometheus, because MONITORING_TOOLS names none", flush=True)
    main(test_queries, test_names, *([test_exporter, test_rules, test_prometheus] if TOOLS else []), test_busy, clean_up)
