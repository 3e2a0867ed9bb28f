"""Which producers a log knows, from its newest snapshot and the tail (``ProducerStateManager``).

The newest sound ``.snapshot`` is read, then every batch from its offset on. Without any snapshot the
whole log is gone through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from siltstone import files
from siltstone.errors import CorruptFileError
from siltstone.log.names import SNAPSHOT, parse_segment_file, segment_file
from siltstone.log.segments import Segment, segment_holding, windows
from siltstone.log.snapshots import ProducerEntry, read_snapshot
from siltstone.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT, Directory


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """Producers by id as of ``end_offset``, which is the log's end."""

    producers: dict[int, ProducerEntry]
    end_offset: int

    def alive(self, now_ms: int, expiration_ms: int) -> list[ProducerEntry]:
        """Those that are not expired, by producer id: silent for less than ``expiration_ms``, or with an
        open transaction."""
        kept = [
            entry
            for entry in self.producers.values()
            if entry.open_transaction_offset >= 0 or now_ms - entry.timestamp_ms < expiration_ms
        ]
        return sorted(kept, key=lambda entry: entry.producer_id)

    def first_open_transaction(self) -> int | None:
        """The least first offset of an open transaction, None when there is none."""
        return min(
            (e.open_transaction_offset for e in self.producers.values() if e.open_transaction_offset >= 0),
            default=None,
        )


def producer_state(directory: Path, segments: Sequence[Segment]) -> ProducerState:
    """The state at the log's end. Raises CorruptRecordError for a damaged tail, OSError."""
    start, entries = _newest_snapshot(directory)
    producers = {entry.producer_id: entry for entry in entries}
    end = max(start, segments[-1].base_offset)
    for segment in segments[max(segment_holding(list(segments), start), 0) :]:
        with files.Reader(segment.path) as reader:
            for window in windows(reader, verify=False):
                tail = window.batches[window.batches["base_offset"] >= start]
                end = max(end, int(window.batches["last_offset"][-1]) + 1)
                _update(producers, tail[tail["producer_id"] >= 0])
    return ProducerState(producers=producers, end_offset=end)


def _newest_snapshot(directory: Path) -> tuple[int, list[ProducerEntry]]:
    named = (parse_segment_file(entry.name) for entry in files.entries(directory))
    offsets = sorted(
        (n.base_offset for n in named if n and n.kind == SNAPSHOT and not n.suffix), reverse=True
    )
    for offset in offsets:
        path = directory / segment_file(offset, SNAPSHOT)
        try:
            return offset, read_snapshot(files.read_bytes(path), str(path))
        except CorruptFileError:
            continue
    return -1, []


def _update(producers: dict[int, ProducerEntry], tail: Directory) -> None:
    """Fold batches with producer ids in, in log order: one row a batch, few enough for plain Python."""
    control = (tail["attributes"] & CONTROL_BIT) != 0
    transactional = (tail["attributes"] & TRANSACTIONAL_BIT) != 0
    for row in range(len(tail)):
        batch = tail[row]
        known = producers.get(int(batch["producer_id"]))
        if control[row]:
            producers[int(batch["producer_id"])] = _after_marker(known, batch)
            continue
        began = (
            known.open_transaction_offset if known and known.producer_epoch == batch["producer_epoch"] else -1
        )
        first = int(batch["base_offset"]) if began < 0 else began
        producers[int(batch["producer_id"])] = ProducerEntry(
            producer_id=int(batch["producer_id"]),
            producer_epoch=int(batch["producer_epoch"]),
            last_sequence=_last_sequence(
                int(batch["base_sequence"]), int(batch["last_offset"] - batch["base_offset"])
            ),
            last_offset=int(batch["last_offset"]),
            offset_delta=int(batch["last_offset"] - batch["base_offset"]),
            timestamp_ms=int(batch["max_timestamp"]),
            coordinator_epoch=known.coordinator_epoch if known else -1,
            open_transaction_offset=first if transactional[row] else -1,
        )


def _last_sequence(base: int, delta: int) -> int:
    """Sequences wrap around at 2³¹ back to 0."""
    return (base + delta) % (1 << 31)


def _after_marker(known: ProducerEntry | None, batch: np.void) -> ProducerEntry:
    epoch, time = int(batch["producer_epoch"]), int(batch["max_timestamp"])
    if known is not None and known.producer_epoch == epoch:
        return replace(known, timestamp_ms=time, open_transaction_offset=-1)
    return ProducerEntry(
        producer_id=int(batch["producer_id"]),
        producer_epoch=epoch,
        last_sequence=-1,
        last_offset=-1,
        offset_delta=0,
        timestamp_ms=time,
        coordinator_epoch=-1,
        open_transaction_offset=-1,
    )
