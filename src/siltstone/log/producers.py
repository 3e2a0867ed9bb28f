"""Which producers a log knows, and what their transactions leave stable (``ProducerStateManager``).

``ProducerStates`` goes along with a log that is appended to: ``check`` says whether batches may be appended
and changes nothing, ``update`` takes in what was appended. ``load_producers`` and ``producer_state`` find the
same out from a directory: the newest sound ``.snapshot`` within the log, then every batch from its offset on;
without any snapshot the whole log is gone through.

A transaction is *open* from its first batch to its marker. It holds the last stable offset back until then,
and until the marker is below the high watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from siltstone import files
from siltstone.errors import CorruptFileError, CorruptRecordError, InvalidRecordError
from siltstone.log.names import SNAPSHOT, parse_segment_file, segment_file
from siltstone.log.segments import Segment, segment_holding, windows
from siltstone.log.sequences import (
    Producer,
    ProducerBatch,
    producer_rows,
    refuse_data,
    refuse_marker,
)
from siltstone.log.snapshots import ProducerEntry, read_snapshot, write_snapshot
from siltstone.log.validation import Origin
from siltstone.records.control import Marker, marker_of
from siltstone.records.layout import Bytes, Directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """The batch is in the log already: where, and its timestamp (ms)."""

    first_offset: int
    last_offset: int
    timestamp_ms: int


class AbortedTransaction(NamedTuple):
    """An entry of a ``.txnindex``; ``last_offset`` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class ProducerStates:
    """The producers of one log as of ``map_end_offset``. Not safe for several threads at once."""

    def __init__(self) -> None:
        self.map_end_offset = 0
        self._producers: dict[int, Producer] = {}
        self._open: dict[int, int] = {}  # first offset: producer id
        self._ended: dict[int, int] = {}  # first offset: marker's offset, not below the high watermark yet

    @classmethod
    def load(cls, entries: Iterable[ProducerEntry], end_offset: int = 0) -> ProducerStates:
        """The state that a snapshot taken at ``end_offset`` holds."""
        states = cls()
        states.map_end_offset = end_offset
        for entry in entries:
            states._producers[entry.producer_id] = Producer.of(entry)
            if entry.open_transaction_offset >= 0:
                states._open[entry.open_transaction_offset] = entry.producer_id
        return states

    def __len__(self) -> int:
        return len(self._producers)

    def entries(self) -> list[ProducerEntry]:
        """The producers as a snapshot has them, by producer id."""
        return [self._producers[producer_id].entry() for producer_id in sorted(self._producers)]

    def snapshot(self) -> bytes:
        """The bytes of a ``.snapshot`` at ``map_end_offset``: Kafka's, its producers by id."""
        return write_snapshot(self.entries())

    def check(
        self, batches: Directory, data: Bytes | None = None, *, origin: Origin, now_ms: int = 0
    ) -> Duplicate | None:
        """May ``batches`` be appended? Changes nothing.

        ``data`` is what they are rows of: without it a marker's coordinator epoch is not looked at. Returns
        where the batch is when a client sends one of its last five again. ``now_ms`` plays no part: a
        producer is known until ``expire`` says otherwise. Raises OutOfOrderSequenceError,
        InvalidProducerEpochError, InvalidTransactionStateError, TransactionCoordinatorFencedError; and
        InvalidRecordError for a marker that makes no sense.
        """
        rows = producer_rows(batches)
        if not rows:
            return None
        after: dict[int, Producer] = {}
        for row in rows:
            batch = ProducerBatch.of(batches, row)
            producer = after.get(batch.producer_id) or self._known(batch.producer_id)
            again = producer.find_duplicate(batch) if origin is Origin.CLIENT else None
            if again is not None:
                first = again.last_offset - again.offset_delta
                return Duplicate(
                    first_offset=first, last_offset=again.last_offset, timestamp_ms=again.timestamp_ms
                )
            if batch.control and not int(batches["count"][row]):
                continue  # cleaning has emptied it
            marker = _marker_to_append(data, batches, row) if batch.control else None
            _refuse(producer, batch, marker, origin)
            if row != rows[-1]:
                after[batch.producer_id] = _after(producer, batch, marker)
        return None

    def _known(self, producer_id: int) -> Producer:
        return self._producers.get(producer_id) or Producer(producer_id)

    def update(self, batches: Directory, data: Bytes, path: str = "") -> list[AbortedTransaction]:
        """Take in ``batches`` of ``data``, which are in the log now; the transactions that they aborted.

        Refuses nothing that is history, but raises CorruptRecordError for a marker that makes no sense.
        """
        aborted = []
        for row in producer_rows(batches):
            batch = ProducerBatch.of(batches, row)
            if not batch.control:
                self._add_data(batch)
                continue
            marker = marker_of(data, batches, row, path)
            if marker is not None:
                ended = self._end(batch, marker)
                if ended is not None and not marker.commit:
                    aborted.append(ended)
        if len(batches):
            self.map_end_offset = batches["last_offset"].item(-1) + 1
        return aborted

    def _add_data(self, batch: ProducerBatch) -> None:
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            producer = self._producers[batch.producer_id] = Producer(batch.producer_id)
        if producer.add_data(batch):
            self._open[batch.first_offset] = batch.producer_id

    def _end(self, batch: ProducerBatch, marker: Marker) -> AbortedTransaction | None:
        """A marker ends a transaction: its entry as if it was aborted, None where none was open."""
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            producer = self._producers[batch.producer_id] = Producer(batch.producer_id)
        first = producer.add_marker(batch, marker)
        if first < 0:
            return None
        self._open.pop(first, None)
        self._ended[first] = batch.first_offset
        stable = min(self._open, default=batch.last_offset + 1)
        return AbortedTransaction(batch.producer_id, first, batch.first_offset, stable)

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest transaction starts that is open, or whose marker may still be lost."""
        if not self._open and not self._ended:
            return None
        return min(min(self._open, default=1 << 63), min(self._ended, default=1 << 63))

    def last_stable_offset(self, high_watermark: int, log_start_offset: int = 0) -> int:
        """Up to where readers of committed records may read: not below the log start, whatever is open.

        Ended transactions whose marker is below the high watermark, which never goes back, are done with.
        """
        if self._ended:
            self._ended = {first: end for first, end in self._ended.items() if end >= high_watermark}
        unstable = self.first_unstable_offset
        return high_watermark if unstable is None else min(high_watermark, max(unstable, log_start_offset))

    def first_open_transaction(self) -> int | None:
        """The least first offset of an open transaction, None when there is none."""
        return min(self._open, default=None)

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that were silent for ``expiration_ms`` and have nothing open; how many."""
        gone = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.open_transaction_offset < 0 and now_ms - producer.timestamp_ms >= expiration_ms
        ]
        for producer_id in gone:
            del self._producers[producer_id]
        return len(gone)

    def clear(self, end_offset: int = 0) -> None:
        """Forget everybody: the log holds nothing below ``end_offset``, and ends there."""
        self._producers.clear()
        self._open.clear()
        self._ended.clear()
        self.map_end_offset = end_offset


def _marker_to_append(data: Bytes | None, batches: Directory, row: int) -> Marker | None:
    if data is None:
        return None
    try:
        marker = marker_of(data, batches, row)
    except CorruptRecordError as error:
        raise InvalidRecordError(f"batch at byte {error.position}: {error.reason}") from None
    if marker is None:
        position = int(batches["position"][row])
        raise InvalidRecordError(f"batch at byte {position}: a producer's control record that is no marker")
    return marker


def _refuse(producer: Producer, batch: ProducerBatch, marker: Marker | None, origin: Origin) -> None:
    replicated = origin is Origin.REPLICATION
    if not batch.control:
        refuse_data(producer, batch, fenced=not replicated, sequenced=origin is Origin.CLIENT)
    elif not replicated:
        refuse_marker(producer, batch, marker)


def _after(producer: Producer, batch: ProducerBatch, marker: Marker | None) -> Producer:
    """A copy of ``producer`` as it will be once ``batch`` is appended."""
    copy = producer.copy()
    if marker is not None:
        copy.add_marker(batch, marker)
    elif not batch.control:
        copy.add_data(batch)
    return copy


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
    states = load_producers(directory, segments)
    end = max(states.map_end_offset, segments[-1].base_offset)
    return ProducerState(producers={entry.producer_id: entry for entry in states.entries()}, end_offset=end)


def load_producers(
    directory: Path, segments: Sequence[Segment], end_offset: int = (1 << 63) - 1
) -> ProducerStates:
    """The state at ``end_offset``, or at the log's end. Raises CorruptRecordError, OSError.

    From the newest snapshot that can be of this log: not beyond ``end_offset`` or the log's end, not below
    its first segment, and sound. One that leaves a transaction out is not told from a right one: whoever
    reads the batches has to see to that. Nobody is expired.
    """
    for start, entries in _snapshots(directory, segments, end_offset):
        states = _gone_on_from(start, entries, segments, end_offset)
        if states is not None:
            return states
    states = _gone_on_from(-1, [], segments, end_offset)
    assert states is not None
    return states


def _gone_on_from(
    start: int, entries: Iterable[ProducerEntry], segments: Sequence[Segment], end_offset: int
) -> ProducerStates | None:
    """From the snapshot at ``start`` on; None when the log ends below it."""
    states, end = ProducerStates.load(entries, max(start, 0)), segments[-1].base_offset if segments else 0
    for segment in segments[max(segment_holding(list(segments), start), 0) :]:
        if segment.base_offset >= end_offset:
            break
        with files.Reader(segment.path) as reader:
            for window in windows(reader, verify=False):
                bases = window.batches["base_offset"]
                end = max(end, int(window.batches["last_offset"][-1]) + 1)
                tail = (bases >= start) & (bases < end_offset)
                batches = window.batches if tail.all() else window.batches[np.flatnonzero(tail)]
                states.update(batches, window.data, segment.path)
    return states if start <= end else None


def _snapshots(
    directory: Path, segments: Sequence[Segment], end_offset: int
) -> Iterator[tuple[int, list[ProducerEntry]]]:
    """(offset, producers) of the snapshots that make sense, the newest first."""
    least = segments[0].base_offset if segments else 0
    named = (parse_segment_file(entry.name) for entry in files.entries(directory))
    offsets = (n.base_offset for n in named if n and n.kind == SNAPSHOT and not n.suffix)
    for offset in sorted((each for each in offsets if least <= each <= end_offset), reverse=True):
        path = directory / segment_file(offset, SNAPSHOT)
        try:
            yield offset, read_snapshot(files.read_bytes(path), str(path), offset)
        except CorruptFileError:
            continue
