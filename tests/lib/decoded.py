"""What logical decoding says, in a form in which two databases can be compared."""

import itertools
import re
import struct

from lib.common import query


def texts(connection, slot, **options):
    """The lines of an output plugin that writes text."""
    pairs = list(itertools.chain(*options.items()))
    marks = ", %s" * len(pairs)
    return [line for line, in query(connection, f"SELECT data FROM pg_logical_slot_get_changes(%s, NULL, NULL{marks})", (slot, *pairs))]


def in_words(lines):
    """test_decoding's lines without numbers of transactions."""
    return [re.sub(r"\b(TXN|txid) \d+|^(BEGIN|COMMIT) \d+$", r"\1\2", line) for line in lines]


class Message:
    """Bytes of pgoutput, read from the front."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size):
        self.at += size
        return self.data[self.at - size:self.at]

    def number(self, size):
        return int.from_bytes(self.take(size), "big")

    def text(self):
        end = self.data.index(0, self.at)
        found = self.data[self.at:end].decode()
        self.at = end + 1
        return found

    def tuple(self):
        row = []
        for _ in range(self.number(2)):
            kind = self.take(1).decode()
            row.append((kind, self.take(self.number(4)).decode() if kind in "tb" else None))
        return tuple(row)


# LSNs, times and numbers of the messages that begin or end a transaction, and: does a name follow?
ENDS = {"B": (20, False), "C": (25, False), "b": (28, True), "P": (29, True), "K": (29, False), "r": (37, True)}


def relation(message):
    """Name, identity and columns of a relation."""
    name = message.text() + "." + message.text()
    identity = message.take(1).decode()
    columns = [(message.number(1), message.text(), message.number(4), message.number(4)) for _ in range(message.number(2))]
    return name, (identity, columns)


def outputs(connection, slot, publication, version=3, **options):
    """pgoutput's messages, without numbers of transactions, positions, times and OIDs. A streamed
    transaction is shown at its end, as if it had not been streamed, without what was undone."""
    options = {"proto_version": str(version), "publication_names": publication, **options}
    pairs = list(itertools.chain(*options.items()))
    marks = ", %s" * len(pairs)
    rows = query(connection, f"SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL{marks})", (slot, *pairs))
    names, told, stream, streamed, found = {}, {}, None, {}, []
    for data, in rows:
        message = Message(bytes(data))
        kind = message.take(1).decode()
        if kind in ENDS:
            size, named = ENDS[kind]
            message.take(size)
            found.append((kind, message.text() if named else ""))
        elif kind == "S":
            stream = message.number(4)
            streamed.setdefault(stream, [])
        elif kind == "E":
            stream = None
        elif kind == "A":
            top, sub = message.number(4), message.number(4)
            streamed[top] = [] if top == sub else [each for each in streamed[top] if each[0] != sub]
        elif kind == "c":
            found += [("B", ""), *(each for _, each in streamed.pop(message.number(4))), ("C", "")]
        elif kind == "p":
            message.take(25)
            rows, name = streamed.pop(message.number(4)), message.text()
            found += [("b", name), *(each for _, each in rows), ("P", name)]
        else:
            xid = message.number(4) if stream else 0
            said = change(message, kind, names, told)
            if said and stream:
                streamed[stream].append((xid, said))
            elif said:
                found.append(said)
    return found


def change(message, kind, names, told):
    """A change of rows. `None`: something else."""
    if kind == "O":
        message.take(8)
        return kind, message.text()
    if kind == "T":
        count, flags = struct.unpack(">IB", message.take(5))
        return kind, flags, tuple(names[message.number(4)] for _ in range(count))
    if kind not in "RIUD":
        return None
    oid = message.number(4)
    if kind == "R":
        # It is told again whenever the catalogs may have changed.
        names[oid], columns = relation(message)
        told[oid] = columns
        return None
    parts = []
    while message.at < len(message.data):
        part = message.take(1).decode()
        parts.append((part, message.tuple()))
    return kind, names[oid], str(told[oid]), tuple(parts)
