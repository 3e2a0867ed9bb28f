"""Aborted transactions out of the log itself: how a ``.txnindex`` is built again (``TransactionIndex``).

A transaction of a producer runs from its first transactional batch to its marker (``records.control``). An
abort is an entry of the segment that
holds the marker: first offset, the marker's offset, and the last stable offset when it was written, which
is the first offset of the oldest transaction that was still open, or the offset after the marker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from siltstone import files
from siltstone.log.indexes import TRANSACTION_ENTRY
from siltstone.log.segments import Segment, Window, windows
from siltstone.log.snapshots import ProducerEntry
from siltstone.records.control import marker_of
from siltstone.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT


@dataclass(slots=True)
class OpenTransactions:
    """First offsets of open transactions by producer id, as of some offset of the log."""

    first_offsets: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, producers: Iterable[ProducerEntry]) -> OpenTransactions:
        """The state that a producer snapshot holds."""
        opened = {p.producer_id: p.open_transaction_offset for p in producers}
        return cls({producer: offset for producer, offset in opened.items() if offset >= 0})

    def finish(self, producer_id: int, marker_offset: int) -> tuple[int | None, int]:
        """End a producer's transaction: (its first offset, None without data; the last stable offset)."""
        first = self.first_offsets.pop(producer_id, None)
        return first, min(self.first_offsets.values(), default=marker_offset + 1)


def rebuild_transaction_index(segment: Segment, opened: OpenTransactions) -> bytes:
    """The segment's ``.txnindex``; ``opened`` is the state at its base offset, and at its end afterwards.

    Empty bytes where nothing was aborted. Raises CorruptRecordError, OSError.
    """
    entries: list[tuple[int, int, int, int, int]] = []
    with files.Reader(segment.path) as reader:
        for window in windows(reader):
            entries += _aborted(segment, window, opened)
    return np.array(entries, TRANSACTION_ENTRY).tobytes()


def _aborted(
    segment: Segment, window: Window, opened: OpenTransactions
) -> Iterator[tuple[int, int, int, int, int]]:
    attributes = window.batches["attributes"]
    for row in np.flatnonzero((attributes & (TRANSACTIONAL_BIT | CONTROL_BIT)) != 0).tolist():
        batch = window.batches[row]
        producer, base = int(batch["producer_id"]), int(batch["base_offset"])
        if not attributes[row] & CONTROL_BIT:
            opened.first_offsets.setdefault(producer, base)
            continue
        marker = marker_of(window.data, window.batches, row, segment.path, window.origin)
        if marker is not None:
            first, stable = opened.finish(producer, base)
            if not marker.commit and first is not None:
                yield 0, producer, first, base, stable
