"""Producer states while a log is recovered: from the newest sound snapshot, and the batches behind it.

Kafka's ``ProducerStateManager`` as far as a start needs it. A snapshot that does not read is taken away and
the one before it is used; without any, the log is gone through from its start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from siltstone import files
from siltstone.errors import CorruptFileError, CorruptRecordError
from siltstone.log.names import SNAPSHOT, segment_file
from siltstone.log.producers import ProducerStates
from siltstone.log.recovery.changes import Changes
from siltstone.log.segments import Segment, windows
from siltstone.log.snapshots import ProducerEntry, read_snapshot
from siltstone.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT, Bytes, Directory, Int64

AbortedEntry = tuple[int, int, int, int, int]
"""A row of a ``.txnindex``: version, producer id, first, last and last stable offset."""


def fold(states: ProducerStates, batches: Directory, data: Bytes) -> list[AbortedEntry]:
    """Take batches of ``data`` into ``states``, as far as they matter; the transactions that they aborted.

    Raises CorruptRecordError for a marker that makes no sense.
    """
    rows = rows_that_matter(batches)
    mattering = batches if len(rows) == len(batches) else batches[rows]
    return [(0, *aborted) for aborted in states.update(mattering, data)]


def rows_that_matter(batches: Directory) -> Int64:
    """Rows that change a producer's state: of a run of one producer's like batches the first and the last.

    What lies between them is overwritten by the last, and opens no transaction that the first did not.
    Ascending; markers are all among them.
    """
    rows = np.flatnonzero(batches["producer_id"] >= 0)
    if len(rows) < 3:
        return rows
    producers = batches["producer_id"][rows]
    order = np.argsort(producers, kind="stable")
    producers, sorted_rows = producers[order], rows[order]
    flags = batches["attributes"][sorted_rows] & (CONTROL_BIT | TRANSACTIONAL_BIT)
    starts = np.empty(len(rows) + 1, bool)
    starts[0] = starts[-1] = True
    starts[1:-1] = (
        (producers[1:] != producers[:-1])
        | (flags[1:] != flags[:-1])
        | ((flags[1:] & CONTROL_BIT) != 0)
        | (np.diff(batches["producer_epoch"][sorted_rows]) != 0)
    )
    return np.sort(sorted_rows[starts[:-1] | starts[1:]])


class ProducerHistory:
    """The states at offsets of one log. ``snapshots`` are the offsets that have a snapshot file."""

    def __init__(
        self, changes: Changes, snapshots: Iterable[int], *, log_start: int, now_ms: int, expiration_ms: int
    ) -> None:
        self.snapshots = set(snapshots)
        self._changes = changes
        self._log_start = log_start
        self._now_ms = now_ms
        self._expiration_ms = expiration_ms

    def newest(self, upto: int) -> tuple[int, ProducerStates]:
        """The newest sound snapshot's offset, at most ``upto``, and its state.

        (log start, nobody) without one.
        """
        for offset in sorted((each for each in self.snapshots if each <= upto), reverse=True):
            if offset < self._log_start:
                break
            path = f"{self._changes.directory}/{segment_file(offset, SNAPSHOT)}"
            try:
                entries = read_snapshot(files.read_bytes(path), path, offset)
            except CorruptFileError:
                self.remove(offset)
                continue
            return offset, ProducerStates.load(entry for entry in entries if not self._is_expired(entry))
        return self._log_start, ProducerStates()

    def _is_expired(self, entry: ProducerEntry) -> bool:
        silent_ms = self._now_ms - entry.timestamp_ms
        return entry.open_transaction_offset < 0 and silent_ms >= self._expiration_ms

    def at(self, offset: int, segments: Sequence[Segment], take: Iterable[int] = ()) -> ProducerStates:
        """The state as of ``offset``; snapshots are taken on the way at the bases in ``take``.

        Raises OSError. Checksums are not looked at: what lies below is taken as it is, as far as it reads.
        """
        start, states = self.newest(offset)
        wanted = set(take)
        for number, segment in enumerate(segments):
            following = segments[number + 1].base_offset if number + 1 < len(segments) else None
            if segment.base_offset >= offset or start >= offset or (following or start + 1) <= start:
                continue
            if segment.base_offset in wanted and segment.base_offset > start:
                self.take(segment.base_offset, states)
            self._read(segment, start, offset, states)
        return states

    def _read(self, segment: Segment, start: int, end: int, states: ProducerStates) -> None:
        with files.Reader(segment.path) as reader:
            try:
                for window in windows(reader, verify=False):
                    bases = window.batches["base_offset"]
                    # A batch in which the log starts counts whole, as where a broker reads from its start.
                    mine = (window.batches["last_offset"] >= start) & (bases < end)
                    fold(states, window.batches[mine], window.data)
                    if int(bases[-1]) >= end:
                        return
            except CorruptRecordError:
                return

    def take(self, offset: int, states: ProducerStates) -> None:
        """Write a snapshot, durably; none at the log's start, where nobody is known."""
        if offset > self._log_start or (offset == self._log_start and len(states)):
            self._changes.write(segment_file(offset, SNAPSHOT), states.snapshot())
            self.snapshots.add(offset)

    def remove(self, offset: int) -> None:
        """Take a snapshot away."""
        self.snapshots.discard(offset)
        self._changes.remove(segment_file(offset, SNAPSHOT))

    def tidy(self, bases: set[int], end_offset: int) -> None:
        """Take away what no start will read: outside the log, or of no segment unless it is the newest."""
        strays = self.snapshots - bases
        newest = max((offset for offset in strays if offset <= end_offset), default=-1)
        for offset in sorted(self.snapshots):
            outside = offset < self._log_start or offset > end_offset
            stray = offset in strays and not (offset == newest and offset > max(bases))
            if outside or stray:
                self.remove(offset)
