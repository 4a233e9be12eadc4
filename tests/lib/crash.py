"""The server of a test that kills it: its settings, the ways in which it dies, and its starts. With
a disk (lib/power.py) the power is lost before each start."""

import os
import signal
import subprocess
import time

from lib.common import OURS, SERVER_CTL, must_come, server, value

SERVER = {}


def find_server(connection, *settings):
    """Notes where the server is, and the settings that the test has in place of the user's."""
    SERVER["data"] = os.path.realpath(value(connection, "SHOW data_directory"))
    SERVER["auto"] = SERVER["data"] + "/postgresql.auto.conf"
    SERVER["log"] = os.path.dirname(SERVER["data"]) + "/server.log"
    directory, port = value(connection, "SHOW unix_socket_directories"), value(connection, "SHOW port")
    SERVER["socket"] = f"{directory}/.s.PGSQL.{port}"
    with open(SERVER["auto"], encoding="ascii") as file:
        SERVER["original"] = file.readlines()
    SERVER["base"] = SERVER["original"][:]
    SERVER["base"] += ["restart_after_crash = off\n", "checkpoint_timeout = 30s\n", "max_wal_size = 64MB\n",
                       "shared_buffers = 16MB\n", "full_page_writes = on\n", *(f"{line}\n" for line in settings)]
    SERVER["base"] += ["mixedcc.stop_events = on\n"] if OURS else []


def configure(**settings):
    """Settings of the test, in place of earlier ones. The server need not run."""
    lines = [f"{name.replace('__', '.')} = '{text}'\n" for name, text in settings.items()]
    with open(SERVER["auto"], "w", encoding="ascii") as file:
        file.writelines(SERVER["base"] + lines)


def give_back():
    """The server has the settings that it had before the test."""
    with open(SERVER["auto"], "w", encoding="ascii") as file:
        file.writelines(SERVER["original"])
    if has_postmaster():
        reload()


def reload():
    os.kill(postmaster(), signal.SIGHUP)


# --- its processes ---------------------------------------------------------------

def postmaster():
    with open(SERVER["data"] + "/postmaster.pid", encoding="ascii") as file:
        return int(file.readline())


def has_postmaster():
    return os.path.exists(SERVER["data"] + "/postmaster.pid")


def state(pid):
    """The letter of a process's state; a zombie has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def is_running(pid):
    return state(pid) != "Z"


def is_stopped(pid):
    return state(pid) == "T"


def children(pid):
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += [int(name)] if parent == pid else []
    return found


def await_end(pid, limit=60.0):
    """Waits until the postmaster has ended by itself, as it does after a crash of a child."""
    must_come(lambda: not is_running(pid), limit)


# --- how it dies -----------------------------------------------------------------

def kill_group():
    """SIGKILL to the postmaster and all its children at once."""
    pid = postmaster()
    os.kill(pid, signal.SIGSTOP)
    must_come(lambda: not is_running(pid) or is_stopped(pid))  # it forks no more
    all_of_them = [*children(pid), pid]
    for one in all_of_them:
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            pass
    # One that is in a write would end it in the files of the next server.
    for one in all_of_them:
        await_end(one)
    for name in (SERVER["data"] + "/postmaster.pid", SERVER["socket"] + ".lock"):
        if os.path.exists(name):
            os.remove(name)


def immediate():
    pid = postmaster()
    os.kill(pid, signal.SIGQUIT)
    await_end(pid)


# --- how it starts ---------------------------------------------------------------

def lose_power():
    """Without a server. The disk, if there is one, has lost unsynced writes."""
    if SERVER.get("disk"):
        SERVER["disk"].lose()


def start():
    lose_power()
    server("start")


def kill_at_start(delay):
    """Kills the server so many seconds after its start, in recovery or behind it."""
    lose_power()
    starter = subprocess.Popen([SERVER_CTL, "start"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    must_come(has_postmaster)
    time.sleep(delay)
    kill_group()
    starter.wait()


def fails_to_start():
    """Is the startup process killed?"""
    try:
        start()
    except subprocess.CalledProcessError:
        return True
    return False
