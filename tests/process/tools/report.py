#!/usr/bin/python3
"""mixedcc.report: what its page shows, to whom, and that the history outlives a restart and what a
crash leaves in its files. Chromium renders the page, light and dark, if it is installed.
"""

import glob
import html.parser
import importlib.util
import os
import shutil
import subprocess
import tempfile

import psycopg2

from lib.common import (check, connect, drop_database, equal, main, make_database, must_come, query,
                        reload, server, set_protocol, value)

DATABASE = "process_report"
BOSS = None
VOID = {"meta", "rect", "line", "path"}


class Reader(html.parser.HTMLParser):
    """Text by tag, attributes, and whether each element ends where it should."""

    def __init__(self, page):
        super().__init__()
        self.open, self.wrong, self.texts, self.tags, self.attributes = [], [], [], {}, []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes += attributes
        if tag not in ("meta", "line", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes += attributes

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        self.texts.append(data)


def files():
    return sorted(glob.glob(os.path.join(value(BOSS, "SHOW data_directory"), "mixedcc_history", "*")))


def lines():
    return sum(1 for path in files() for line in open(path, encoding="utf-8") if line.strip())


def load():
    """Commits, failures, sleeps and a switch."""
    query(BOSS, 'CREATE UNLOGGED TABLE "a<b>" (id int PRIMARY KEY, v int) USING mixedcc '
                "WITH (mixedcc.partitions = '4', mixedcc.adaptive = 'off')")
    query(BOSS, 'INSERT INTO "a<b>" SELECT i, 0 FROM generate_series(1, 200) i')
    for i in range(300):
        query(BOSS, f'UPDATE "a<b>" SET v = v + 1 WHERE id = {i % 100 + 1}')
    one, other = connect(DATABASE), connect(DATABASE)
    for connection in (one, other):
        query(connection, 'BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT v FROM "a<b>" WHERE id = 1')
    query(one, 'UPDATE "a<b>" SET v = v + 1 WHERE id = 1; COMMIT')
    try:
        query(other, 'UPDATE "a<b>" SET v = v + 1 WHERE id = 1; COMMIT')
    except psycopg2.errors.SerializationFailure:
        pass
    one.close()
    other.close()
    set_protocol(BOSS, '"a<b>"', "2pl", 1)


def report(connection=None, arguments=""):
    return value(connection or BOSS, f"SELECT mixedcc.report({arguments})")


HOUR = "now() - interval '1 hour'"


def shows_the_load():
    load()
    before = lines()
    must_come(lambda: lines() >= before + 2)
    page = report(arguments=HOUR)
    reader = Reader(page)
    text = " ".join(reader.texts)
    equal("page: each element ends where it should", (reader.wrong, reader.open), ([], []))
    equal("page: it has all charts", reader.tags.get("figure"), 5)
    check("page: it needs no network and no script", "://" not in page and "script" not in reader.tags
          and not any(name in ("src", "href") for name, _ in reader.attributes))
    check("page: the table and its partitions", "a<b>" in text and "<b>" not in page.replace("<body>", ""), text[:2000])
    check("page: the switch", "asked" in text and "2pl" in text)
    check("page: the failure and its reason", "read changed" in text or "write conflict" in text, text[:2000])
    check("page: durability", "companion of the checkpointer" in text and "last complete round" in text, text[-3000:])
    check("page: it has bars", reader.tags.get("rect", 0) > 4)
    return page


def other_times():
    page = report(arguments="'2000-02-01', '2000-02-02'")
    check("other times: the page says that there is no history", "The history has nothing of this time" in page)
    for arguments, state in (("now(), now()", "22023"), ("'infinity', now()", "22023")):
        try:
            report(arguments=arguments)
            got = None
        except psycopg2.Error as error:
            got = error.pgcode
        equal(f"other times: report({arguments}) is refused", got, state)
    for arguments in ("'-infinity', 'infinity'", "'1900-01-01'", f"{HOUR}, 'infinity'"):
        check(f"other times: report({arguments})", report(arguments=arguments).endswith("</html>\n"))


def rights():
    query(BOSS, "DROP ROLE IF EXISTS report_monitor, report_stranger")
    query(BOSS, "CREATE ROLE report_monitor IN ROLE pg_monitor; CREATE ROLE report_stranger")
    try:
        for role, wanted in (("report_monitor", "page"), ("report_stranger", "42501")):
            query(BOSS, f"SET ROLE {role}")
            try:
                got = "page" if report().endswith("</html>\n") else "other"
            except psycopg2.Error as error:
                got = error.pgcode
            query(BOSS, "RESET ROLE")
            equal(f"rights: {role}", got, wanted)
    finally:
        query(BOSS, "DROP ROLE report_monitor, report_stranger")


def outlives_restarts():
    """And a torn line, an odd file, a file that is old."""
    global BOSS
    before = lines()
    newest = files()[-1]
    with open(newest, "a", encoding="utf-8") as file:
        file.write('\n{"end": 8')
    directory = os.path.dirname(newest)
    old = os.path.join(directory, "day-100.jsonl")
    for path in (old, os.path.join(directory, "other")):
        shutil.copy(newest, path)
        shutil.copystat(newest, path)
        os.chown(path, os.stat(newest).st_uid, os.stat(newest).st_gid)
    server("restart")
    BOSS = connect(DATABASE)
    must_come(lambda: lines() > before + 3 and not os.path.exists(old))
    check("restart: an old file is deleted, another is left alone", os.path.exists(os.path.join(directory, "other")))
    os.remove(os.path.join(directory, "other"))
    text = report(arguments=HOUR)
    check("restart: the history is still there", "2pl" in text and "a&lt;b&gt;" in text)


def encodings():
    """A database that is not UTF8, and names that are not ASCII."""
    query(BOSS, "DROP DATABASE IF EXISTS process_report_latin")
    query(BOSS, "CREATE DATABASE process_report_latin ENCODING LATIN1 LOCALE 'C' TEMPLATE template0")
    latin = connect("process_report_latin")
    query(latin, "CREATE EXTENSION mixedcc")
    query(latin, 'CREATE TABLE "tä" (id int PRIMARY KEY) USING mixedcc WITH (mixedcc.partitions = 2); INSERT INTO "tä" VALUES (1)')
    before = lines()
    must_come(lambda: lines() > before + 1)
    page = report(latin, HOUR)
    check("LATIN1: the table's name in its options", "<td>tä</td>" in page or "<td>&quot;tä&quot;</td>" in page)
    check("LATIN1: the history has it as the server's log has it", "public.t\\xe4" in page)
    latin.close()
    drop_database("process_report_latin")


def off():
    query(BOSS, "ALTER SYSTEM SET mixedcc.history_interval = 0")
    reload(BOSS)
    before = lines()
    query(BOSS, 'UPDATE "a<b>" SET v = 0')
    query(BOSS, "SELECT pg_sleep(2.5)")
    equal("off: no line is added", lines(), before)


def browser():
    """Pixels of the page in Chromium: paper and ink as the style sheet says, light and dark."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if not found or not importlib.util.find_spec("PIL"):
        print("# The page is not rendered: that needs Debian's packages chromium and python3-pil")
        return
    page = report(arguments=HOUR)
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "report.html")
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)
        for mode, paper in (("light", (255, 255, 255)), ("dark", (20, 24, 31))):
            image = os.path.join(directory, f"{mode}.png")
            flags = ["--blink-settings=preferredColorScheme=0"] if mode == "dark" else ["--blink-settings=preferredColorScheme=1"]
            subprocess.run([found, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *flags,
                            f"--user-data-dir={directory}/profile", f"--screenshot={image}", "--window-size=1100,2400",
                            "file://" + path], check=True, timeout=120, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            kept = os.environ.get("MIXEDCC_SCREENSHOTS")
            if kept:
                shutil.copy(image, os.path.join(kept, f"report-{mode}.png"))
            colours = pixels(image)
            equal(f"browser: {mode}: the paper", colours[0], paper)
            check(f"browser: {mode}: text, lines and bars", len(colours) > 20, len(colours))


def pixels(path):
    """The colours of an image, the most frequent first."""
    from PIL import Image
    with Image.open(path) as image:
        found = image.convert("RGB").getcolors(1 << 24)
    return [colour for _, colour in sorted(found, reverse=True)]


def run():
    global BOSS
    BOSS = make_database(DATABASE)
    query(BOSS, "ALTER SYSTEM SET mixedcc.history_interval = 1")
    reload(BOSS)
    try:
        main(shows_the_load, other_times, rights, outlives_restarts, encodings, browser, off)
    finally:
        query(BOSS, "ALTER SYSTEM RESET mixedcc.history_interval")
        reload(BOSS)
        BOSS.close()
        drop_database(DATABASE)


if __name__ == "__main__":
    run()
