"""What the server writes into its log."""

import os

from lib.common import value, wait_until

PATIENCE = 20.0


class ServerLog:
    """The server's log from here on: what its postmaster writes errors to."""

    def __init__(self, connection):
        postmaster = value(connection, "SELECT pg_read_file('postmaster.pid')").split()[0]
        self.path = os.readlink(f"/proc/{postmaster}/fd/2")
        self.start = os.path.getsize(self.path)

    def text(self):
        with open(self.path, encoding="utf-8", errors="replace") as file:
            file.seek(self.start)
            return file.read()

    def all(self, pattern):
        """The groups of each match."""
        return [m.groups() for m in pattern.finditer(self.text())]

    def gets(self, pattern):
        """The same, when there is one."""
        wait_until(lambda: pattern.search(self.text()), PATIENCE)
        return self.all(pattern)
