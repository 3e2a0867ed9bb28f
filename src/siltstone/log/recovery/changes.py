"""What recovery changes in a partition directory: carried out, or in a dry run only said.

Every change can be made again: a crash between any two of them leaves a directory that recovers to the same
log. The clean-shutdown marker and the checkpoints, which say that all of it is durable, are written by the
caller behind them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from siltstone import files
from siltstone.log.names import SEGMENT_KINDS, SNAPSHOT, segment_file


class Changes:
    """The changes to one partition directory; ``removed`` and ``truncated_bytes`` tell of them."""

    def __init__(self, directory: Path, names: dict[str, files.FileStat], *, dry_run: bool) -> None:
        self.directory = directory
        self.names = names
        self.dry_run = dry_run
        self.removed: list[str] = []
        self.truncated_bytes = 0
        self.any = False
        self._unsynced = False

    def remove(self, name: str) -> None:
        """Take a file away, where it is there."""
        if self.names.pop(name, None) is None:
            return
        self.removed.append(name)
        self.any = True
        if not self.dry_run:
            with contextlib.suppress(FileNotFoundError):
                files.unlink(self.directory / name)
            self._unsynced = True

    def remove_segments(self, bases: Sequence[int]) -> None:
        """Take segments away, the last one first; durable when it returns, whatever follows.

        What goes counts as truncated: a crash amid it must not leave a later segment without an earlier one.
        """
        for base in sorted(bases, reverse=True):
            log = self.names.get(segment_file(base, "log"))
            self.truncated_bytes += log.size if log is not None else 0
            for kind in (SNAPSHOT, *reversed(SEGMENT_KINDS)):
                self.remove(segment_file(base, kind))
            self.settle()

    def write(self, name: str, data: bytes) -> None:
        """Put ``data`` in the place of a file, durably; nothing is done where it has these bytes already."""
        if self._has(name, data):
            return
        self.any = True
        if self.dry_run:
            return
        path = self.directory / name
        known = self.names.get(name)
        if known is not None and known.size > len(data) and self._starts_with(path, data):
            cut(path, len(data))
        else:
            files.replace(path, data)
        self.names[name] = files.stat(path)

    def _has(self, name: str, data: bytes) -> bool:
        known = self.names.get(name)
        return (
            known is not None and known.size == len(data) and self._starts_with(self.directory / name, data)
        )

    def _starts_with(self, path: Path, data: bytes) -> bool:
        return not data or files.read_slice(path, 0, len(data)) == data

    def create(self, name: str) -> None:
        """A new, empty file; ``settle`` makes its name durable."""
        self.any = True
        if not self.dry_run:
            files.write_new(self.directory / name, b"")
            files.inherit_owner(self.directory / name)
            self.names[name] = files.stat(self.directory / name)
            self._unsynced = True

    def truncate_log(self, name: str, size: int) -> None:
        """Cut a segment's log off, durably."""
        before = self.names[name].size
        if size >= before:
            return
        self.truncated_bytes += before - size
        self.any = True
        if not self.dry_run:
            cut(self.directory / name, size)
            self.names[name] = files.stat(self.directory / name)

    def sync(self, name: str) -> None:
        """Make a file's contents durable: they were read, and may be in memory only."""
        if not self.dry_run:
            files.sync_file(self.directory / name)

    def settle(self) -> None:
        """Make the names that went durable."""
        if self._unsynced:
            files.sync_directory(self.directory)
            self._unsynced = False


def cut(path: Path, size: int) -> None:
    """Cut a file off at ``size`` bytes, durably. Raises OSError."""
    appender = files.Appender(path)
    try:
        appender.truncate(size)
    finally:
        appender.close()
