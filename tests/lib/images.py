"""The image pages of a permanent table, read from its file: what a start would find if there were
no journal and no WAL. A checkpoint flushes them, so they are read after one."""

import struct

PAGE = 8192
HEAD = 24
SPECIAL = PAGE - 56
IMAGE, META = b"MCMI", b"MCMB"
ROW, TOMB, FRAG, PEND = 1, 2, 0x40, 0x80


def pages(path):
    with open(path, "rb") as file:
        block = 0
        while page := file.read(PAGE):
            if any(page[SPECIAL:]):
                yield block, page
            block += 1


def entries_of(page):
    at, lower = HEAD, struct.unpack_from("<H", page, 12)[0]
    while at < lower:
        word, record, length = struct.unpack_from("<QIH", page, at)
        kind, csn = word >> 56, word & (1 << 56) - 1
        begin = at + 16
        xid, offset, total = None, 0, length
        if kind & PEND:
            xid = struct.unpack_from("<Q", page, begin)[0]
            begin += 8
        if kind & FRAG:
            offset, total = struct.unpack_from("<II", page, begin)
            begin += 8
        yield csn, kind & 0x3F, record, xid, offset, total, page[begin:begin + length]
        at = (begin + length + 7) // 8 * 8


class Images:
    """The rows of the file, by record number, and the meta page."""

    def __init__(self, path):
        self.rows, self.pending, self.blocks, self.high = {}, 0, 0, None
        pieces, best = {}, {}
        for block, page in pages(path):
            self.blocks += 1
            if struct.unpack_from("<I", page, SPECIAL + 4)[0] != block:
                raise ValueError(f"block {block} names another block")
            if page[SPECIAL:SPECIAL + 4] == META:
                self.redo, self.high = struct.unpack_from("<Q", page, HEAD + 8)[0], struct.unpack_from("<I", page, HEAD + 48)[0]
                continue
            for csn, kind, record, xid, offset, total, payload in entries_of(page):
                if xid is not None:
                    self.pending += 1
                    continue
                pieces.setdefault((record, csn), {})[offset] = payload
                best[record] = max(best.get(record, (0, 0, 0)), (csn, kind, total))
        for record, (csn, kind, total) in best.items():
            if kind == ROW:
                row = b"".join(part for _, part in sorted(pieces[record, csn].items()))
                if len(row) != total:
                    raise ValueError(f"record {record}: {len(row)} bytes of {total}")
                self.rows[record] = row


def columns(row):
    """The data of a stored row behind its header, which has neither xmax, cid nor ctid."""
    return row[row[8] - 14:]


def text(data):
    """A text that begins here and is neither compressed nor stored elsewhere."""
    if data[0] & 1:
        return data[1:data[0] >> 1]
    return data[4:struct.unpack_from("<I", data)[0] >> 2]


def record_number(ctid):
    block, offset = ctid.strip("()").split(",")
    return int(block) * 256 + int(offset) - 1
