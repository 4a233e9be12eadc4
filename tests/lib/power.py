"""A loss of power. SIGKILL leaves the kernel's cache, so a missing fsync does no harm after it.
Here the server runs with a library that keeps a copy of all synced writes
(process/durable/power_loss). When the power is lost, the data directory becomes this copy, with
none or a random part of the later writes."""

import os
import pathlib
import random
import shutil
import subprocess
import sys

SECTOR = 512
# Settings without which nothing is synced, and those under which the test server runs faster.
SETTINGS = ("fsync = on", "synchronous_commit = on")


class Disk:
    """The disk below a data directory. The server is down while its methods run."""

    def __init__(self, data, seed, deaf=""):
        self.data, self.dice = data, random.Random(f"power {seed}")
        self.home = os.path.dirname(data) + "/disk"
        shutil.rmtree(self.home, ignore_errors=True)
        os.makedirs(self.home)
        os.environ.update(LD_PRELOAD=build(self.home), POWER_DATA=data, POWER_DISK=self.home, POWER_DEAF=deaf or "/none/")
        self.losses = self.changed = self.lost = 0
        self.sync()

    def end(self):
        """The next start is without it."""
        for name in ("LD_PRELOAD", "POWER_DATA", "POWER_DISK", "POWER_DEAF"):
            os.environ.pop(name, None)
        shutil.rmtree(self.home, ignore_errors=True)

    def sync(self):
        """The disk has all that is there now."""
        for name in ("files", "notes", "tree"):
            shutil.rmtree(f"{self.home}/{name}", ignore_errors=True)
            os.makedirs(f"{self.home}/{name}")
        for folder, folders, files in os.walk(self.data):
            there = self.home + "/tree" + folder[len(self.data):]
            for name in folders:
                os.mkdir(f"{there}/{name}")
            for name in files:
                path = f"{folder}/{name}"
                copy = f"{self.home}/files/{os.stat(path).st_ino}"
                if not os.path.exists(copy):
                    shutil.copyfile(path, copy)
                os.link(copy, f"{there}/{name}")

    # --- the power is lost -----------------------------------------------------------

    def lose(self, keeps=None):
        """The data directory becomes what the disk has. A third of the losses drops all unsynced
        writes. The others keep, of some directories, the new names, and of some files all, or
        a random part of the sectors. `keeps` says which it is to be."""
        keeps = self.dice.random() > 0.33 if keeps is None else keeps
        self.losses += 1
        by_copy = {os.stat(f"{self.home}/files/{n}").st_ino: int(n) for n in os.listdir(self.home + "/files")}
        live = self.live_files()
        wanted = self.wanted(keeps, by_copy, live)
        contents = {path: self.content(keeps, path, *where, live) for path, where in wanted.items()}
        for path in [path for path in live.values() if path not in contents and not is_ours(path)]:
            self.lost += 1
            os.remove(path)
        for path, new in contents.items():
            if new is not None:
                self.changed += 1
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                replace(path, new)
        for folder, _, _ in os.walk(self.home + "/tree"):
            os.makedirs(self.data + folder[len(self.home + "/tree"):], mode=0o700, exist_ok=True)
        self.sync()

    def live_files(self):
        """The files of the data directory, by their inodes."""
        found = {}
        for folder, _, files in os.walk(self.data):
            for name in files:
                found[os.stat(f"{folder}/{name}").st_ino] = f"{folder}/{name}"
        return found

    def wanted(self, keeps, by_copy, live):
        """The files that are left: by path, where the disk has them and which inode they had."""
        names = {}
        tree = self.home + "/tree"
        for folder, _, files in os.walk(tree):
            for name in files:
                copy = f"{folder}/{name}"
                names[self.data + copy[len(tree):]] = (copy, by_copy.get(os.stat(copy).st_ino))
        if keeps:
            # All new names of a directory, or none.
            for folder in {os.path.dirname(path) for path in [*names, *live.values()]}:
                if self.dice.random() < 0.5 or not os.path.isdir(folder):
                    continue
                names = {path: where for path, where in names.items() if os.path.dirname(path) != folder}
                for inode, path in live.items():
                    if os.path.dirname(path) == folder:
                        copy = f"{self.home}/files/{inode}"
                        names[path] = (copy if os.path.exists(copy) else None, inode)
        return {path: where for path, where in names.items() if not is_ours(path)}

    def content(self, keeps, path, copy, inode, live):
        """What a file has afterwards; None: what is there now."""
        here = live.get(inode)
        old, new = read(copy) if copy else b"", read(here) if here else None
        if new is None:
            return old
        kind = "old"
        if keeps:
            # A file of which nothing was ever synced is none whose parts matter.
            kind = self.dice.choice(["old", "new", "mixed", "mixed"] if copy else ["old", "new"])
        after = mixed(old, new, self.dice) if kind == "mixed" and old != new else old if kind == "old" else new
        return None if path == here and after == new else after


def build(home):
    source = pathlib.Path(__file__).resolve().parent.parent / "process/durable/power_loss/power_loss.c"
    library = home + "/power_loss.so"
    subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, str(source), "-ldl"], check=True)
    return library


# A process writes a file, so that it grows, and others sync it meanwhile.
GROWS = """
import os, sys
path, kind = sys.argv[1:]
file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
if kind == "write":
    for n in range(4000):
        os.pwrite(file, bytes([1 + n % 255]) * 3000, n * 3000)
else:
    while os.fstat(file).st_size < 4000 * 3000:
        os.fsync(file)
    os.fsync(file)
"""


def syncs_beside_writes(home):
    """The parts of a file that a sync did not keep, although each write was done before it."""
    data, disk = home + "/data", home + "/disk"
    for name in (data, disk, *(f"{disk}/{name}" for name in ("files", "notes", "tree"))):
        os.mkdir(name)
    environment = os.environ | dict(LD_PRELOAD=build(disk), POWER_DATA=data, POWER_DISK=disk, POWER_DEAF="/none/")
    path = data + "/grows"
    command = [sys.executable, "-c", GROWS, path]
    children = [subprocess.Popen([*command, kind], env=environment) for kind in ("sync", "sync", "write")]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    subprocess.run([*command, "sync"], env=environment, check=True, timeout=60)
    live, kept = read(path), read(disk + "/tree/grows")
    return [at for at in range(0, len(live), SECTOR) if live[at:at + SECTOR] != kept[at:at + SECTOR]]


def is_ours(path):
    """The test writes it, or the start needs it no more."""
    return path.endswith(("/postgresql.auto.conf", "/postmaster.pid"))


def read(path):
    with open(path, "rb") as file:
        return file.read()


def replace(path, content):
    """The owner and the rights stay, if there is such a file."""
    fresh = not os.path.exists(path)
    with open(path, "wb") as file:
        file.write(content)
    if fresh:
        os.chmod(path, 0o600)


def mixed(old, new, dice):
    """Some sectors of a file as they were synced, and some as they were written since."""
    size = dice.choice([len(old), len(new)])
    out = bytearray(old[:size].ljust(size, b"\0"))
    part = dice.choice([0.1, 0.5, 0.9])
    for block in range(0, size, 1 << 16):
        if out[block:block + (1 << 16)] == new[block:block + (1 << 16)]:
            continue
        for at in range(block, min(block + (1 << 16), size), SECTOR):
            if dice.random() < part:
                written = new[at:at + SECTOR]
                out[at:at + len(written)] = written
    return bytes(out)
