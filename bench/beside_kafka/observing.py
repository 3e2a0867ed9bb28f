"""What a process tree takes from outside: processor seconds, bytes written, memory and disk at their peak.

A thread looks ten times a second at the tree of processes and at the disk, less often where there are so many
files that looking takes long, and once a second for new processes.
What a process does between the last look and its end is not seen. Memory is the sum of the resident sets;
pages that forked workers share count in each of them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_EVERY_S = 0.1
_LOOKS_A_SEARCH = 10
_DISK_SHARE = 0.02
"""Of the time, for looking at the disk."""


@dataclass(slots=True, kw_only=True)
class Observed:
    """Seconds of the wall clock and of all processors; bytes."""

    wall: float = 0.0
    processor: float = 0.0
    written: int = 0
    memory: int = 0
    disk: int = 0


@contextlib.contextmanager
def observe(root: int | None, folders: Sequence[Path]) -> Iterator[Observed]:
    """What the tree below process ``root`` takes within the block, and what the folders grow by.

    ``root`` None: only the wall clock and the disk.
    """
    observed = Observed()
    observer = _Observer(root, folders, observed)
    began = time.perf_counter()
    observer.start()
    try:
        yield observed
    finally:
        observed.wall = observed.wall or time.perf_counter() - began
        observer.finish()


class _Observer(threading.Thread):
    def __init__(self, root: int | None, folders: Sequence[Path], observed: Observed) -> None:
        super().__init__(daemon=True)
        self._root = None if root is None else psutil.Process(root)
        self._folders, self._observed = folders, observed
        self._over = threading.Event()
        self._tree: dict[int, psutil.Process] = {}
        self._first: dict[int, tuple[float, int]] = {}
        self._last: dict[int, tuple[float, int]] = {}
        self._disk = disk_usage(folders)
        self._search(new=False)

    def run(self) -> None:
        looks, disk_due = 0, 0.0
        while not self._over.wait(_EVERY_S):
            looks += 1
            if looks % _LOOKS_A_SEARCH == 0:
                self._search(new=True)
            self._look()
            began = time.perf_counter()
            if began >= disk_due:
                self._look_at_disk()
                disk_due = began + (time.perf_counter() - began) / _DISK_SHARE

    def finish(self) -> None:
        """The last look, and the sums."""
        self._over.set()
        self.join()
        self._search(new=True)
        self._look()
        self._look_at_disk()
        for pid, (processor, written) in self._last.items():
            before = self._first.get(pid, (0.0, 0))
            self._observed.processor += processor - before[0]
            self._observed.written += written - before[1]

    def _search(self, *, new: bool) -> None:
        """Find the tree; what a new process has taken since its start counts."""
        if self._root is None:
            return
        with contextlib.suppress(psutil.Error):
            for process in [self._root, *self._root.children(recursive=True)]:
                if process.pid not in self._tree:
                    self._tree[process.pid] = process
                    self._first[process.pid] = (0.0, 0) if new else _taken(process)

    def _look_at_disk(self) -> None:
        self._observed.disk = max(self._observed.disk, disk_usage(self._folders) - self._disk)

    def _look(self) -> None:
        memory = 0
        for pid, process in list(self._tree.items()):
            try:
                self._last[pid] = _taken(process)
                memory += process.memory_info().rss
            except psutil.Error:
                del self._tree[pid]
        self._observed.memory = max(self._observed.memory, memory)


def _taken(process: psutil.Process) -> tuple[float, int]:
    with process.oneshot():
        times = process.cpu_times()
        return times.user + times.system, process.io_counters().write_bytes


def disk_usage(folders: Sequence[Path]) -> int:
    """Bytes that the files below the folders occupy, each inode once."""
    inodes: dict[tuple[int, int], int] = {}
    for folder in folders:
        for root, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    facts = os.lstat(os.path.join(root, name))
                    inodes[facts.st_dev, facts.st_ino] = facts.st_blocks * 512
    return sum(inodes.values())
