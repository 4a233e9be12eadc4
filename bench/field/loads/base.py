"""What every workload of the suite is: tables, functions, scripts, and the check of its results."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re

SQL_DIR = pathlib.Path(__file__).resolve().parent / "sql"
PROCEDURE, INTERACTIVE = "procedure", "interactive"
STYLES = (PROCEDURE, INTERACTIVE)

# Room for new versions of a row on its page, as users who update it would have it.
LOGGED_HEAP = "fillfactor = 85"

_TAG = re.compile(r"\s*--\[(!?)([a-z0-9 ]+)\]\s*$")


class TemplateError(Exception):
    """A template names a value that was not given."""


# What makes a script one that writes or locks.
WRITES = re.compile(r"\b(insert|update|delete|merge|truncate|copy|call|share)\b", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Script:
    """A pgbench script; a transaction is drawn among a workload's scripts by weight."""

    name: str
    text: str
    weight: int = 1

    @property
    def only_reads(self) -> bool:
        """Does a transaction write and lock nothing, but for what functions do that it calls?"""
        return not WRITES.search(self.text)


def render(text: str, tags: frozenset[str], values: dict[str, object]) -> str:
    """Keeps the lines whose ending `--[tag other]` names one of the tags, drops those of other
    tags (`--[!tag]`: the other way round), and puts values for `{{name}}`."""
    def value_of(found: re.Match) -> str:
        if found.group(1) not in values:
            raise TemplateError(f"nothing is given for {found.group(0)}")
        return str(values[found.group(1)])
    lines = []
    for line in re.sub(r"\{\{([a-z0-9_]+)\}\}", value_of, text).splitlines():
        tag = _TAG.search(line)
        if tag:
            if bool(tags & set(tag.group(2).split())) == (tag.group(1) == "!"):
                continue
            line = line[:tag.start()]
        lines.append(line)
    return "\n".join(lines) + "\n"


class Workload:
    """A kind of load with its parameters. `parameters` are those that differ from the defaults;
    `data_parameters` names those that change the tables."""

    name = ""
    title = ""
    defaults: dict[str, float] = {}
    data_parameters: tuple[str, ...] = ("rows",)
    tables: tuple[str, ...] = ()
    sql_file = ""
    styles: tuple[str, ...] = STYLES
    # Table: options of the layouts that differ from `spread` (16 hash partitions of the key).
    # One partition keeps partcc from meeting partitions out of order; a workload that declares
    # its partitions says so here.
    partcc_options: dict[str, str] = {}
    hybrid_options: dict[str, str] = {}
    spread_options: dict[str, str] = {}
    # Hybrid: the partitions that are not under occ. Table: a protocol, or {partition: protocol}.
    hybrid: dict[str, object] = {}
    hybrid_text = ""

    def __init__(self, **parameters: float):
        unknown = parameters.keys() - self.defaults.keys()
        if unknown:
            raise TemplateError(f"{self.name} has no parameter {', '.join(sorted(unknown))}")
        self.parameters = {k: v for k, v in parameters.items() if v != self.defaults[k]}
        self.values = {**self.defaults, **parameters}

    def __getattr__(self, name: str):
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def data_key(self) -> tuple:
        """Workloads with the same key use the same tables."""
        return (self.sql_file, *((k, self.values[k]) for k in self.data_parameters))

    # Layouts and protocols.

    def options(self, layout: str, table: str) -> str:
        """The options of CREATE TABLE for a layout: spread, partcc or hybrid."""
        spread = self.spread_options.get(table, "mixedcc.partitions = 16")
        if layout == "partcc":
            return self.partcc_options.get(table, "mixedcc.partitions = 1")
        if layout == "hybrid":
            return self.hybrid_options.get(table, spread)
        return spread

    def protocols(self, protocol: str) -> dict[str, object]:
        """Table: the protocol of all its partitions, or of some by number (the others: occ)."""
        if protocol == "hybrid":
            return {table: self.hybrid.get(table, "occ") for table in self.tables}
        return {table: protocol for table in self.tables}

    # SQL.

    def _sections(self) -> dict[str, str]:
        """The parts of the SQL file: `-- == tables`, `-- == functions`, and others it names."""
        text = (SQL_DIR / self.sql_file).read_text(encoding="utf-8")
        parts = re.split(r"^-- == ([a-z]+)$", text, flags=re.MULTILINE)
        return dict(zip(parts[1::2], parts[2::2]))

    def section(self, name: str, tags: frozenset[str] = frozenset(), **more: object) -> str:
        return render(self._sections()[name], tags, {**self.values, **self.sql_values(), **more})

    def sql_values(self) -> dict[str, object]:
        """Further values for the SQL file."""
        return {}

    def tables_sql(self, layout: str | None, logged: bool = False) -> str:
        """layout None: heap. logged: tables that survive a crash."""
        using = {f"using_{table}": self._using(layout, table, logged) for table in self.tables}
        tag = "heap" if layout is None else "mixedcc"
        text = self.section("tables", frozenset([tag]), **using)
        return text.replace("CREATE UNLOGGED TABLE", "CREATE TABLE") if logged else text

    def table_options(self, layout: str | None, table: str) -> str:
        """None: heap; "default": a plain mixedcc table, to which its user gave no option."""
        return "" if layout in (None, "default") else self.options(layout, table)

    def _using(self, layout: str | None, table: str, logged: bool) -> str:
        options = self.table_options(layout, table)
        if logged and layout is None:
            options = LOGGED_HEAP
        method = "heap" if layout is None else "mixedcc"
        return f"USING {method}" + (f" WITH ({options})" if options else "")

    def functions_sql(self, tags: frozenset[str]) -> str:
        return self.section("functions", tags)

    # Running and checking.

    def scripts(self, style: str) -> list[Script]:
        raise NotImplementedError

    def rendered_scripts(self, style: str, tags: frozenset[str], clients: int) -> list[Script]:
        values = {**self.values, **self.sql_values(), "clients": clients}
        return [dataclasses.replace(s, text=render(s.text, tags, values)) for s in self.scripts(style)]

    # One SELECT of whole numbers; `problems` speaks of its columns.
    state_sql = ""

    def state(self, ask) -> dict[str, int]:
        """ask(sql) answers with unaligned text."""
        found = json.loads(ask(f"SELECT row_to_json(s) FROM ({self.state_sql}) AS s"))
        return {name: int(value or 0) for name, value in found.items()}

    def variables(self, before: dict[str, int]) -> dict[str, object]:
        """pgbench's -D variables, from the state before the run."""
        return {}

    def problems(self, before: dict[str, int], after: dict[str, int], committed: dict[str, int]) -> list[str]:
        """What is wrong after a run in which each script committed so often; [] if all is right."""
        raise NotImplementedError

    def further_problems(self, ask) -> list[str]:
        """Conditions on the tables alone."""
        return []


def expect(what: str, found: int, wanted: int) -> list[str]:
    return [] if found == wanted else [f"{what}: {found}, not {wanted}"]


def grown(before: dict[str, int], after: dict[str, int], name: str, by: int, why: str) -> list[str]:
    """A column of the state must have grown by what was committed."""
    return expect(f"{name} has grown by ({why})", after[name] - before[name], by)
