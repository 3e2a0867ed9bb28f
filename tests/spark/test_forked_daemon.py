"""The daemon that is forked from a command's process: Java's process hands over to it, or takes its place."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from siltstone.spark import forked_daemon

TIMEOUT_S = 60
COMMAND = """
import os, sys, threading
os.environ["OPENBLAS_NUM_THREADS"] = "1"
from siltstone.base import interruption
from siltstone.spark import forked_daemon
{before}
with open(sys.argv[2], "w") as opened:
    forked_daemon.fork(sys.argv[1])
    print("forked" if forked_daemon._kept_open else "not forked", flush=True)
    sys.stdin.read()
"""
INSTALL = "interruption.InterruptHandler().install()"
THREAD = "threading.Thread(target=threading.Event().wait, daemon=True).start()"


class Command:
    """A command's process, which forks a daemon and then waits for the end of its input."""

    def __init__(self, folder: Path, before: str) -> None:
        self.socket, self.open_file = folder / "daemon", folder / "open file"
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND.format(before=before), str(self.socket), str(self.open_file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout.readline().strip()

    def forks(self) -> list[int]:
        """Its child processes."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def end(self) -> None:
        self.process.communicate(timeout=TIMEOUT_S)


def stand_in(command: Command, tmp_path: Path, worker: str = forked_daemon.WORKER) -> subprocess.Popen[bytes]:
    """Start what Java starts."""
    return subprocess.Popen(
        [sys.executable, "-m", forked_daemon.__name__, worker],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, forked_daemon.VARIABLE: str(command.socket), "OF_JAVA": "1"},
    )


def port_of(process: subprocess.Popen[bytes]) -> int:
    """The port that the daemon tells Java."""
    assert process.stdout is not None
    (port,) = struct.unpack("!i", process.stdout.read(4))
    return int(port)


def listens(pid: int) -> bool:
    """Has the process a socket that listens on a port of the loopback interface?"""
    inodes = {os.readlink(path)[8:-1] for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(line[3] == "0A" and line[9] in inodes for line in lines)


def in_time(condition: Callable[[], bool]) -> bool:
    """Does a condition hold within a minute?"""
    deadline = time.monotonic() + TIMEOUT_S
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds


def comes_to_listen(pid: int) -> bool:
    """Does a process listen, within a minute? While others open and close sockets, a read of the kernel's
    list can miss one that is there."""
    return in_time(lambda: listens(pid))


def comes_to_end(pid: int) -> bool:
    """Has a process ended, within a minute?"""

    def has_ended() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except FileNotFoundError:
            return True

    return in_time(has_ended)


def test_the_fork_is_the_daemon(tmp_path: Path) -> None:
    command = Command(tmp_path, INSTALL)
    (fork,) = command.forks()
    java = stand_in(command, tmp_path)
    assert 0 < port_of(java) < 1 << 16
    assert comes_to_listen(fork) and not listens(java.pid)
    assert os.getpgid(fork) == fork
    assert Path(f"/proc/{fork}/cwd").readlink() == tmp_path
    files = {os.readlink(path) for path in Path(f"/proc/{fork}/fd").iterdir() if path.is_symlink()}
    assert str(command.open_file) not in files
    command.end()  # as it does before Java, which then closes the pipes
    assert java.poll() is None
    java.communicate(timeout=TIMEOUT_S)
    assert java.returncode == 0 and comes_to_end(fork)


@pytest.mark.long
def test_the_fork_ends_with_its_command(tmp_path: Path) -> None:
    command = Command(tmp_path, INSTALL)
    (fork,) = command.forks()
    command.process.kill()
    command.end()
    assert comes_to_end(fork)


@pytest.mark.long
@pytest.mark.parametrize("lost", ["never there", "before", "other worker"])
def test_javas_process_takes_its_place(tmp_path: Path, lost: str) -> None:
    command = Command(tmp_path, INSTALL if lost != "never there" else "")
    worker = "pyspark.sql.worker.plan_data_source_read" if lost == "other worker" else forked_daemon.WORKER
    if lost == "before":
        (fork,) = command.forks()
        os.kill(fork, signal.SIGKILL)
    java = stand_in(command, tmp_path, worker)
    assert 0 < port_of(java) < 1 << 16 and comes_to_listen(java.pid)
    java.communicate(timeout=TIMEOUT_S)
    command.end()


@pytest.mark.long
@pytest.mark.parametrize(("before", "output"), [("", "not forked"), (f"{INSTALL}\n{THREAD}", "not forked")])
def test_only_a_command_without_other_threads_is_forked(tmp_path: Path, before: str, output: str) -> None:
    command = Command(tmp_path, before)
    assert (command.output, command.forks()) == (output, [])
    command.end()


@pytest.mark.long
def test_a_signal_still_interrupts_the_command_afterwards(tmp_path: Path) -> None:
    command = Command(tmp_path, INSTALL)
    (fork,) = command.forks()
    command.process.send_signal(signal.SIGTERM)
    command.process.communicate(timeout=TIMEOUT_S)
    # As after a KeyboardInterrupt: the handler is there.
    assert command.process.returncode == -signal.SIGINT and comes_to_end(fork)
