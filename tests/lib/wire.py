"""A client that speaks the extended protocol itself: libpq cannot ask for some rows of a portal."""

import os
import socket
import struct

# Fields of a message that clients use besides its text.
FIELDS = {"s": "schema", "t": "table", "c": "column", "d": "type", "n": "constraint", "H": "hint", "P": "at", "W": "context"}


class Client:
    def __init__(self, database, user=None, options=""):
        user = user or os.environ.get("PGUSER", "postgres")
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(f"{os.environ['PGHOST']}/.s.PGSQL.{os.environ.get('PGPORT', '5432')}")
        start = b"".join(part.encode() + b"\0" for part in
                         ("user", user, "database", database, "options", options)) + b"\0"
        self.socket.sendall(struct.pack("!ii", len(start) + 8, 196608) + start)
        self.until_ready()

    def _exactly(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise ConnectionError("the server has closed the connection")
            data += more
        return data

    def message(self):
        kind, size = struct.unpack("!ci", self._exactly(5))
        return kind.decode(), self._exactly(size - 4)

    def send(self, kind, body=b""):
        self.socket.sendall(kind.encode() + struct.pack("!i", len(body) + 4) + body)

    def until_ready(self):
        """What the server says: rows, tags, errors and warnings (code, text, detail; the other
        fields as one text)."""
        said = []
        while True:
            kind, body = self.message()
            if kind == "Z":
                return said
            if kind == "D":
                (count,), at, row = struct.unpack("!h", body[:2]), 2, []
                for _ in range(count):
                    (size,) = struct.unpack("!i", body[at:at + 4])
                    at += 4
                    row.append(None if size < 0 else body[at:at + size].decode())
                    at += max(size, 0)
                said.append(("row", *row))
            elif kind == "C":
                said.append(("tag", body[:-1].decode()))
            elif kind == "s":
                said.append(("suspended",))
            elif kind in "EN":
                fields = {part[:1].decode(): part[1:].decode() for part in body.split(b"\0") if part}
                said.append(("error" if kind == "E" else "notice", fields["C"], fields["M"], fields.get("D"),
                             "; ".join(f"{FIELDS[k]} {fields[k]}" for k in FIELDS if k in fields)))

    def simple(self, sql):
        self.send("Q", sql.encode() + b"\0")
        return self.until_ready()

    def prepare(self, name, sql):
        self.send("P", name.encode() + b"\0" + sql.encode() + b"\0" + struct.pack("!h", 0))
        self.send("S")
        return self.until_ready()

    def execute(self, name, values, limits=(0,), portal=""):
        """Binds and executes, once for each limit of rows."""
        body = portal.encode() + b"\0" + name.encode() + b"\0" + struct.pack("!hh", 0, len(values))
        for value in values:
            text = None if value is None else str(value).encode()
            body += struct.pack("!i", -1) if text is None else struct.pack("!i", len(text)) + text
        self.send("B", body + struct.pack("!h", 0))
        self.send("D", b"P" + portal.encode() + b"\0")
        for limit in limits:
            self.send("E", portal.encode() + b"\0" + struct.pack("!i", limit))
        self.send("S")
        return self.until_ready()

    def close(self):
        self.send("X")
        self.socket.close()
