"""YCSB A to F with several operations a transaction, keys by Zipf's law.

    A  half updates            B  5 % updates             C  reads
    D  reads of what was inserted last, 5 % inserts       E  scans of 1 to 100 rows, 5 % inserts
    F  half read-modify-write: the client's code computes what is written

Hot keys are spread over the table, so that no page holds two of them: rank r becomes the key
CLASSES * permutation(r mod m) + r div m + 1, with m = rows / CLASSES. In a table of CLASSES
hash partitions each one holds m neighbouring ranks, the hottest first, which is what a hybrid uses.
"""

from __future__ import annotations

import math

from field.loads.base import PROCEDURE, Script, Workload, grown
from field.loads.zipf import Zipf

CLASSES = 100


def key_of(rank: str, rows: int) -> str:
    """The pgbench expression of the key that has a rank."""
    m = rows // CLASSES
    return f"{CLASSES} * permute(:{rank} % {m}, {m}, 42) + :{rank} / {m} + 1"


def spread(writes: int, length: int) -> list[bool]:
    """Which of the operations write: evenly among the others."""
    return [(i + 1) * writes // length > i * writes // length for i in range(length)]


def write_mix(length: int, share: float) -> list[tuple[int, int]]:
    """(writes of a transaction, weight): whole numbers whose mean is length * share."""
    mean = length * share
    low = math.floor(mean + 1e-9)
    high_weight = round((mean - low) * 100)
    mix = [(low, 100 - high_weight), (low + 1, high_weight)]
    return [(writes, weight) for writes, weight in mix if weight]


class Ycsb(Workload):
    sql_file = "ycsb.sql"
    tables = ("usertable",)
    function = "ycsb"
    hybrid_options = {"usertable": f"mixedcc.partitions = {CLASSES}, mixedcc.waiting_policy = wait_die"}
    hybrid = {"usertable": {1: "2pl"}}
    hybrid_text = "2pl (wait_die) for the hottest hundredth of the rows, occ for the others"
    state_sql = "SELECT count(*) AS rows_found, sum(value) AS updates, max(id) AS last FROM usertable"

    @staticmethod
    def kinds() -> list[type]:
        def kind(letter: str, base: type, title: str, writes: float, **more) -> type:
            defaults = {"rows": 100_000, "length": 16, "theta": 0.9, "writes": writes,
                        **more.pop("defaults", {})}
            return type(f"Ycsb{letter}", (base,),
                        {"name": f"ycsb_{letter.lower()}", "title": f"YCSB {letter}: {title}",
                         "defaults": defaults, **more})
        return [kind("A", Ycsb, "half reads, half updates", 0.5),
                kind("B", Ycsb, "95 % reads, 5 % updates", 0.05),
                kind("C", Ycsb, "reads", 0.0),
                kind("D", YcsbLatest, "95 % reads of the latest rows, 5 % inserts", 0.05,
                     data_parameters=("rows", "tail")),
                kind("E", YcsbScan, "95 % scans of 1 to 100 rows, 5 % inserts", 0.05,
                     defaults={"length": 4, "scan": 100}, data_parameters=("rows", "tail")),
                kind("F", Ycsb, "half reads, half read-modify-write", 0.5, function="ycsb_rmw")]

    def scripts(self, style: str) -> list[Script]:
        return [Script(f"{self.name}_{writes}", self.script(style, writes), weight)
                for writes, weight in write_mix(self.length, self.writes)]

    def script(self, style: str, writes: int) -> str:
        zipf = Zipf(self.rows, self.theta)
        writing = spread(writes, self.length)
        text = ""
        for i, writes_here in enumerate(writing):
            text += zipf.script("r")
            sign = "-1 * " if writes_here and style == PROCEDURE else ""
            text += f"\\set k{i} {sign}({key_of('r', self.rows)})\n"
        if style == PROCEDURE:
            keys = ", ".join(f":k{i}" for i in range(self.length))
            return text + f"SELECT {self.function}(ARRAY[{keys}]::int[]);\n"
        return text + self.interactive(writing)

    def interactive(self, writing: list[bool]) -> str:
        written = ", ".join(f":k{i}" for i, w in enumerate(writing) if w)
        text = "BEGIN;\n"
        if written:
            text += f"SELECT 1 FROM usertable WHERE id IN ({written}) ORDER BY id FOR UPDATE; --[locks]\n"
        for i, writes_here in enumerate(writing):
            read = f"SELECT value FROM usertable WHERE id = :k{i}"
            if not writes_here:
                text += f"{read};\n"
            elif self.function == "ycsb_rmw":
                text += f"{read} \\gset\nUPDATE usertable SET value = :value + 1 WHERE id = :k{i};\n"
            else:
                text += f"UPDATE usertable SET value = value + 1 WHERE id = :k{i};\n"
        return text + "END;\n"

    def problems(self, before, after, committed):
        updates = sum(count * int(name.rpartition("_")[2]) for name, count in committed.items())
        return (grown(before, after, "updates", updates, "updates of committed transactions")
                + grown(before, after, "rows_found", 0, "no inserts"))


class YcsbInserting(Ycsb):
    """New keys follow the last one; each client takes every clients-th of them."""

    defaults = {"tail": 1}

    def __init__(self, **parameters):
        self.defaults = {"tail": 1, **type(self).defaults}
        super().__init__(**parameters)

    def variables(self, before):
        return {"last": before["last"], "turn": 0}

    def new_id(self) -> str:
        return "\\set turn :turn + 1\n\\set new_id :last + :turn * {{clients}} + :client_id\n"

    def problems(self, before, after, committed):
        inserts = sum(count * int(name.rpartition("_")[2]) for name, count in committed.items())
        return (grown(before, after, "rows_found", inserts, "inserts of committed transactions")
                + grown(before, after, "updates", 0, "no updates"))

    def scripts(self, style):
        return [Script(f"{self.name}_{writes}", self.script(style, writes), weight)
                for writes, weight in write_mix(self.length, self.writes)]


class YcsbLatest(YcsbInserting):
    def script(self, style, writes):
        zipf = Zipf(self.rows, self.theta)
        reads = self.length - writes
        text = self.new_id() if writes else ""
        for i in range(reads):
            text += zipf.script("r") + f"\\set k{i} greatest(1, :last + :turn * {{{{clients}}}} - :r)\n"
        if style == PROCEDURE:
            keys = ", ".join(f":k{i}" for i in range(reads))
            return text + f"SELECT ycsb_insert(ARRAY[{keys}]::int[], {':new_id' if writes else '0'});\n"
        text += "BEGIN;\n" + "".join(f"SELECT value FROM usertable WHERE id = :k{i};\n" for i in range(reads))
        if writes:
            text += "INSERT INTO usertable VALUES (:new_id, 0, repeat('x', 100));\n"
        return text + "END;\n"


class YcsbScan(YcsbInserting):
    def script(self, style, writes):
        zipf = Zipf(self.rows, self.theta)
        scans = self.length - writes
        text = self.new_id() if writes else ""
        for i in range(scans):
            text += zipf.script("r")
            text += f"\\set k{i} {key_of('r', self.rows)}\n\\set n{i} random(1, {int(self.scan)})\n"
        if style == PROCEDURE:
            starts, lengths = (", ".join(f":{v}{i}" for i in range(scans)) for v in "kn")
            return text + (f"SELECT ycsb_scan(ARRAY[{starts}]::int[], ARRAY[{lengths}]::int[], "
                           f"{':new_id' if writes else '0'});\n")
        text += "BEGIN;\n" + "".join(
            f"SELECT sum(value) FROM (SELECT value FROM usertable WHERE id >= :k{i} ORDER BY id LIMIT :n{i}) AS r;\n"
            for i in range(scans))
        if writes:
            text += "INSERT INTO usertable VALUES (:new_id, 0, repeat('x', 100));\n"
        return text + "END;\n"


class YcsbPartitioned(Ycsb):
    """A's operations within one of some partitions, and a share of transactions over two."""

    name = "ycsb_partitioned"
    title = "YCSB A within one of some partitions, a share of transactions across two"
    defaults = {"rows": 100_000, "length": 16, "theta": 0.9, "writes": 0.5, "cross": 0.1, "partitions": 16}
    hybrid_text = "2pl for half of the partitions, occ for the others"

    def __init__(self, **parameters):
        super().__init__(**parameters)
        options = {"usertable": f"mixedcc.partitions = {self.partitions}"}
        self.spread_options, self.partcc_options, self.hybrid_options = options, options, {}
        self.hybrid = {"usertable": {p: "2pl" for p in range(self.partitions // 2)}}

    @property
    def data_key(self):
        # With as many partitions as the others' tables have, theirs.
        usual = self.partitions == self.defaults["partitions"]
        return super().data_key + (() if usual else (("partitions", self.partitions),))

    def scripts(self, style):
        crossing = round(self.cross * 100)
        writes = round(self.length * self.writes)
        mix = [(1, 100 - crossing), (2, crossing)]
        return [Script(f"ycsb_in{homes}_{writes}", self.script(style, writes, homes), weight)
                for homes, weight in mix if weight]

    def script(self, style, writes, homes=1):
        p = self.partitions
        m = self.rows // p
        zipf = Zipf(m, self.theta)
        writing = spread(writes, self.length)
        text = f"\\set first random(1, {p})\n"
        # Another partition, and in ascending order: partcc takes them so.
        text += (f"\\set other 1 + (:first - 1 + random(1, {p - 1})) % {p}\n\\set second greatest(:first, :other)\n"
                 "\\set first least(:first, :other)\n" if homes == 2 else "\\set second :first\n")
        for i, writes_here in enumerate(writing):
            home = "first" if i < self.length / 2 else "second"
            sign = "-1 * " if writes_here and style == PROCEDURE else ""
            text += zipf.script("r") + f"\\set k{i} {sign}({p} * permute(:r, {m}, 42) + :{home})\n"
        if style == PROCEDURE:
            keys = ", ".join(f":k{i}" for i in range(self.length))
            return text + f"SELECT ycsb_in(:first, :second, ARRAY[{keys}]::int[]);\n"
        declared = "SELECT mixedcc.declare_partition('usertable', :first::int), " \
                   "mixedcc.declare_partition('usertable', :second::int); --[partcc]\n"
        return text + self.interactive(writing).replace("BEGIN;\n", "BEGIN;\n" + declared, 1)
