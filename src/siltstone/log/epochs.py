"""Which leader wrote what: ``leader-epoch-checkpoint`` (Kafka's ``LeaderEpochFileCache``, KIP-101).

A text file like the offset checkpoints: a line ``0`` (version), a line with the number of entries, then
``epoch start_offset`` a line. Both ascend strictly; an epoch lasts to the next one's start, the latest one to
the log's end. A change replaces the file before the call returns, so what is in memory is what is on disk.
"""

from __future__ import annotations

import bisect
from pathlib import Path

from siltstone.base import files
from siltstone.base.errors import CorruptFileError
from siltstone.log.names import LEADER_EPOCH_CHECKPOINT

NO_EPOCH, NO_OFFSET = -1, -1
_MOST_EPOCH, _MOST_OFFSET, _MOST_DIGITS = (1 << 31) - 1, (1 << 63) - 1, 19


class LeaderEpochs:
    """The epochs of one partition by ascending start. Every change is durable when it returns."""

    def __init__(self, directory: Path) -> None:
        """From the partition's file; without one there are no epochs. Raises CorruptFileError, OSError."""
        self._path = directory / LEADER_EPOCH_CHECKPOINT
        try:
            self._entries = _parse(files.read_bytes(self._path), str(self._path))
        except FileNotFoundError:
            self._entries = []

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset), ascending."""
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> int | None:
        """The newest epoch, None where there is none."""
        return self._entries[-1][0] if self._entries else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Epoch ``epoch`` starts at ``start_offset``; returns whether that is news.

        Entries that could not be followed by this one go. Neither number is negative. Raises OSError.
        """
        assert epoch >= 0 and start_offset >= 0, (epoch, start_offset)
        if self._entries and self._entries[-1][0] == epoch and self._entries[-1][1] <= start_offset:
            return False
        kept = [entry for entry in self._entries if entry[0] < epoch and entry[1] < start_offset]
        self._replace([*kept, (epoch, start_offset)])
        return True

    def epoch_at(self, offset: int) -> int | None:
        """The epoch that ``offset`` was written in, None for one before the first known start."""
        row = bisect.bisect_right(self._entries, offset, key=lambda entry: entry[1]) - 1
        return self._entries[row][0] if row >= 0 else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch at or below ``epoch``, and the offset at which it ended.

        The latest epoch ends at ``log_end_offset``. (-1, -1) for -1 and for one that is above all that are
        known; one that is below them all ended where the first of them starts.
        """
        if epoch == NO_EPOCH or not self._entries or epoch > self._entries[-1][0]:
            return NO_EPOCH, NO_OFFSET
        if epoch == self._entries[-1][0]:
            return epoch, log_end_offset
        higher = bisect.bisect_right(self._entries, epoch, key=lambda entry: entry[0])
        end = self._entries[higher][1]
        return (epoch, end) if higher == 0 else (self._entries[higher - 1][0], end)

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that start at or above ``end_offset``, the log's new end. Raises OSError."""
        self._replace([entry for entry in self._entries if entry[1] < end_offset])

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that ended at or below ``start_offset``, the log's new start.

        The one that covers it stays, and starts there from now on. Raises OSError.
        """
        passed = [entry for entry in self._entries if entry[1] <= start_offset]
        covering = [(passed[-1][0], start_offset)] if passed else []
        self._replace(covering + self._entries[len(passed) :])

    def _replace(self, entries: list[tuple[int, int]]) -> None:
        if entries == self._entries:
            return
        rows = [f"{epoch} {start_offset}" for epoch, start_offset in entries]
        files.replace(self._path, "\n".join(["0", str(len(rows)), *rows, ""]).encode())
        self._entries = entries


def _parse(raw: bytes, path: str) -> list[tuple[int, int]]:
    """The file's entries; CorruptFileError for anything but a whole, sound file."""
    lines = raw.split(b"\n")
    if lines[0].strip() != b"0":
        raise CorruptFileError(path, 0, "no leader epoch checkpoint of version 0")
    rows = [line.split() for line in lines[2:] if line.strip()]
    position = len(lines[0]) + 1
    if len(lines) < 2 or lines[1].strip() != b"%d" % len(rows):
        raise CorruptFileError(path, position, f"the entry count does not match {len(rows)} entries")
    entries: list[tuple[int, int]] = []
    for row in rows:
        if len(row) != 2 or not all(field.isdigit() and len(field) <= _MOST_DIGITS for field in row):
            raise CorruptFileError(path, position, f"no 'epoch start_offset': {b' '.join(row)!r}")
        epoch, start_offset = int(row[0]), int(row[1])
        if epoch > _MOST_EPOCH or start_offset > _MOST_OFFSET:
            raise CorruptFileError(path, position, "a number that is too large")
        if entries and (epoch <= entries[-1][0] or start_offset <= entries[-1][1]):
            raise CorruptFileError(path, position, "epochs do not ascend")
        entries.append((epoch, start_offset))
    return entries
