"""A command on a terminal of its own, interrupted at a stage; what came of it, and what it left running."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.golden_sets import REPOSITORY

SCRIPT = Path(__file__).with_name("interrupted_command.py")
REACHED_SECONDS, ENDED_SECONDS = 120, 60
CTRL_C = b"\x03"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """How a command ended: ``seconds`` from the signal to its end, ``left_seconds`` from there until the last
    process of its session was gone."""

    status: int
    seconds: float
    left_seconds: float
    output: str


class _Terminal:
    """A pseudo-terminal, read so that nobody waits for it."""

    def __init__(self) -> None:
        self.ours, self.theirs = pty.openpty()
        self.output = b""

    def read(self, seconds: float) -> None:
        poll = select.poll()  # ``select`` takes no file number from 1024 on
        poll.register(self.ours, select.POLLIN | select.POLLHUP)
        if poll.poll(1000 * seconds):
            try:
                self.output += os.read(self.ours, 1 << 16)
            except OSError:  # nobody is at the other end
                time.sleep(seconds)

    def until(self, is_done: Callable[[], bool], seconds: float) -> float:
        """How long it took; AssertionError with what was said where it takes too long."""
        began = time.monotonic()
        while not is_done():
            self.read(0.02)
            assert time.monotonic() - began < seconds, self.output.decode(errors="replace")[-3000:]
        return time.monotonic() - began


def _session_of(leader: int) -> list[psutil.Process]:
    """The processes of a session that still run."""
    processes = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == leader and (process := psutil.Process(pid)).status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return processes


def interrupt(
    stage: str,
    command: Sequence[str],
    folder: Path,
    send: Sequence[signal.Signals] = (signal.SIGINT,),
    *,
    later: float = 0.0,
    environment: Mapping[str, str] | None = None,
) -> Interrupted:
    """Run ``siltstone COMMAND`` up to a stage (``interrupted_command``), and send it signals: SIGINT as
    Ctrl-C does, to all in the foreground; others to the process. ``later``: seconds behind the stage."""
    folder.mkdir(parents=True, exist_ok=True)
    marker, terminal = folder / "reached", _Terminal()

    def as_a_shell_starts_commands() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), stage, str(marker), *command],
        stdin=terminal.theirs,
        stdout=terminal.theirs,
        stderr=terminal.theirs,
        start_new_session=True,
        preexec_fn=as_a_shell_starts_commands,  # noqa: PLW1509
        env={**os.environ, "PYTHONPATH": path, **(environment or {})},
    )
    os.close(terminal.theirs)
    try:
        terminal.until(lambda: marker.exists() or process.poll() is not None, REACHED_SECONDS)
        assert process.poll() is None, terminal.output.decode(errors="replace")[-3000:]
        time.sleep(later)
        began = time.monotonic()
        for number in send:
            if number == signal.SIGINT:
                os.write(terminal.ours, CTRL_C)
            else:
                process.send_signal(number)
        terminal.until(lambda: process.poll() is not None, ENDED_SECONDS)
        seconds = time.monotonic() - began
        left_seconds = terminal.until(lambda: not _session_of(process.pid), ENDED_SECONDS)
        terminal.read(0)
    finally:
        for orphan in _session_of(process.pid):
            orphan.kill()
        process.wait()
        os.close(terminal.ours)
    output = terminal.output.decode(errors="replace")
    return Interrupted(status=process.returncode, seconds=seconds, left_seconds=left_seconds, output=output)
