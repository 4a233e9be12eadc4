"""Processes that stand at points of durable tables until a test lets them go: `mixedcc.kill_at`."""

import os
import tempfile

from lib.common import must_come

# They last as long as the test, as a process may look for its file.
directories = []


class Point:
    """A point at which a process is to stand."""

    def __init__(self, event, number=1):
        directory = tempfile.TemporaryDirectory(prefix="mcs-", dir="/tmp")
        directories.append(directory)
        os.chmod(directory.name, 0o777)
        self.path = directory.name + "/point"
        # For the setting.
        self.setting = f"{event}:{number}:{self.path}"

    def stands(self):
        return os.path.exists(self.path + ".stands")

    def must_stand(self):
        must_come(self.stands)

    def go(self):
        open(self.path + ".goes", "w", encoding="ascii").close()
