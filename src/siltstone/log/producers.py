"""Which producers a log knows, and what their transactions leave stable (``ProducerStateManager``).

``ProducerStates`` goes along with a log that is appended to: ``check`` says whether batches may be appended
and changes nothing, ``update`` takes in what was appended. ``load_producers`` and ``producer_state`` find the
same out from a directory: the newest sound ``.snapshot`` within the log, then every batch from its offset on;
without any snapshot the whole log is gone through.

A transaction is *open* from its first batch to its marker. It holds the last stable offset back until then,
and until the marker is below the high watermark.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from siltstone.base import files
from siltstone.base.errors import (
    CorruptFileError,
    CorruptRecordError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from siltstone.base.records.control import EndTransactionMarker, marker_of
from siltstone.base.records.layout import BATCH, CONTROL_BIT, TRANSACTIONAL_BIT, Bytes, Directory
from siltstone.log.names import SNAPSHOT, parse_segment_file, segment_file
from siltstone.log.segments import Segment, segment_holding, windows
from siltstone.log.snapshots import ProducerEntry, read_snapshot, write_snapshot
from siltstone.log.validation import Origin

# One producer's batches, epochs and transaction in a log (``ProducerStateEntry``, ``ProducerAppendInfo``).
#
# A producer numbers its records; a batch carries the first one's *sequence*, and the next batch goes on where
# it ends, from 2³¹-1 on at 0. So a batch that comes twice is known by its sequences, as long as it is one of
# the last five, and one that was lost leaves a gap. A new instance of the producer has a higher *epoch* and
# starts again at 0. What decides is in ``refuse_data`` and ``refuse_marker``; what follows from a batch that
# is in the log is in ``Producer``'s methods, which refuse nothing: that batch is history.

BATCHES_KEPT = 5
NO_EPOCH = NO_SEQUENCE = NO_OFFSET = -1
_SEQUENCE_MASK = (1 << 31) - 1
_NAMES = ("producer_id", "producer_epoch", "base_sequence", "base_offset", "last_offset", "max_timestamp")
_FIELDS = itemgetter(*((BATCH.names or ()).index(name) for name in _NAMES))
_ATTRIBUTES = (BATCH.names or ()).index("attributes")


class ProducerBatch(NamedTuple):
    """What a producer's state is made of: a batch directory's row without what does not matter here."""

    producer_id: int
    epoch: int
    first_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int
    transactional: bool
    control: bool

    @classmethod
    def of(cls, batches: Directory, row: int) -> ProducerBatch:
        """A batch directory's row: its fields at once, which is five times as fast as one by one."""
        fields = batches.item(row)
        attributes = fields[_ATTRIBUTES]
        flags = (attributes & TRANSACTIONAL_BIT) != 0, (attributes & CONTROL_BIT) != 0
        return cls._make((*_FIELDS(fields), *flags))

    @property
    def last_sequence(self) -> int:
        """The last record's sequence, -1 where the batch has none."""
        if self.first_sequence < 0:
            return NO_SEQUENCE
        return (self.first_sequence + self.last_offset - self.first_offset) & _SEQUENCE_MASK


class AppendedBatch(NamedTuple):
    """A batch as its producer's state remembers it."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        """The first record's sequence."""
        return (self.last_sequence - self.offset_delta) & _SEQUENCE_MASK


@dataclass(slots=True)
class Producer:
    """One producer; ``batches`` are its last five of this epoch, the newest last. -1: unknown, or none."""

    producer_id: int
    epoch: int = NO_EPOCH
    coordinator_epoch: int = NO_EPOCH
    timestamp_ms: int = -1
    open_transaction_offset: int = NO_OFFSET
    batches: deque[AppendedBatch] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))

    @classmethod
    def of(cls, entry: ProducerEntry) -> Producer:
        """From a snapshot, which knows of the last batch only."""
        producer = cls(
            entry.producer_id,
            entry.producer_epoch,
            entry.coordinator_epoch,
            entry.timestamp_ms,
            entry.open_transaction_offset,
        )
        if entry.last_offset >= 0:
            last = AppendedBatch(
                entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp_ms
            )
            producer.batches.append(last)
        return producer

    def entry(self) -> ProducerEntry:
        """As a snapshot has it."""
        last = self.batches[-1] if self.batches else AppendedBatch(NO_SEQUENCE, NO_OFFSET, 0, -1)
        return ProducerEntry(
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            last_sequence=last.last_sequence,
            last_offset=last.last_offset,
            offset_delta=last.offset_delta,
            timestamp_ms=self.timestamp_ms,
            coordinator_epoch=self.coordinator_epoch,
            open_transaction_offset=self.open_transaction_offset,
        )

    def copy(self) -> Producer:
        """Another one with the same state."""
        return Producer(
            self.producer_id,
            self.epoch,
            self.coordinator_epoch,
            self.timestamp_ms,
            self.open_transaction_offset,
            self.batches.copy(),
        )

    def find_duplicate(self, batch: ProducerBatch) -> AppendedBatch | None:
        """The batch that ``batch`` is again: one of the last five with its epoch and its sequences."""
        if batch.epoch != self.epoch or batch.control:
            return None
        last_sequence = batch.last_sequence
        for known in self.batches:
            if known.last_sequence == last_sequence and known.first_sequence == batch.first_sequence:
                return known
        return None

    def add_data(self, batch: ProducerBatch) -> bool:
        """A batch of records is in the log; returns whether it began a transaction."""
        self._enter(batch.epoch)
        delta = batch.last_offset - batch.first_offset
        self.batches.append(AppendedBatch(batch.last_sequence, batch.last_offset, delta, batch.timestamp_ms))
        self.timestamp_ms = batch.timestamp_ms
        if not batch.transactional or self.open_transaction_offset >= 0:
            return False
        self.open_transaction_offset = batch.first_offset
        return True

    def add_marker(self, batch: ProducerBatch, marker: EndTransactionMarker) -> int:
        """A marker is in the log; returns the first offset of the transaction that it ended, -1 for none."""
        self._enter(batch.epoch)
        first = self.open_transaction_offset
        self.coordinator_epoch = marker.coordinator_epoch
        self.timestamp_ms = batch.timestamp_ms
        self.open_transaction_offset = NO_OFFSET
        return first

    def _enter(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()


def refuse_data(producer: Producer, batch: ProducerBatch, *, fenced: bool, sequenced: bool) -> None:
    """Raise what Kafka raises for a batch of records that does not follow on the producer's state.

    ``fenced``: older epochs are refused. ``sequenced``: sequences have to fit. Both do not hold for what is
    replicated, the second not for what coordinators write.
    """
    if fenced:
        _refuse_old_epoch(producer, batch)
    if sequenced:
        _refuse_sequence(producer, batch)
    if producer.open_transaction_offset >= 0 and not batch.transactional:
        raise InvalidTransactionStateError(
            f"{_who(batch)}: a batch outside a transaction, while the one from offset "
            f"{producer.open_transaction_offset} on is open: commit or abort it first"
        )


def refuse_marker(producer: Producer, batch: ProducerBatch, marker: EndTransactionMarker | None) -> None:
    """Raise what Kafka raises for a marker of a producer or a coordinator that has been replaced.

    Without the ``marker`` itself the coordinator is not looked at.
    """
    _refuse_old_epoch(producer, batch)
    if marker is not None and marker.coordinator_epoch < producer.coordinator_epoch:
        raise TransactionCoordinatorFencedError(
            f"{_who(batch)}: a marker of coordinator epoch {marker.coordinator_epoch}, after one of "
            f"{producer.coordinator_epoch}: another coordinator has taken over"
        )


def _refuse_old_epoch(producer: Producer, batch: ProducerBatch) -> None:
    if batch.epoch < producer.epoch:
        raise InvalidProducerEpochError(
            f"{_who(batch)}: epoch {batch.epoch} is over, {producer.epoch} has been seen: "
            "begin with a new producer"
        )


def _refuse_sequence(producer: Producer, batch: ProducerBatch) -> None:
    if producer.epoch == NO_EPOCH:
        return  # its records may have expired: whatever it sends is taken
    if batch.epoch != producer.epoch:
        if batch.first_sequence != 0:
            raise OutOfOrderSequenceError(
                f"{_who(batch)}: epoch {batch.epoch} starts at sequence {batch.first_sequence}, not at 0"
            )
        return
    last = producer.batches[-1].last_sequence if producer.batches else NO_SEQUENCE
    if batch.first_sequence != (last + 1) & _SEQUENCE_MASK:
        raise OutOfOrderSequenceError(
            f"{_who(batch)}: sequence {batch.first_sequence} does not follow {last}: "
            "send what lies between, or begin with a new epoch"
        )


def _who(batch: ProducerBatch) -> str:
    return f"producer {batch.producer_id}"


def producer_rows(batches: Directory) -> list[int]:
    """Rows of the batches that have a producer id."""
    ids = batches["producer_id"]
    if len(ids) == 1:
        return [0] if ids.item() >= 0 else []
    found: list[int] = np.flatnonzero(ids >= 0).tolist()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """The batch is in the log already: where, and its timestamp (ms)."""

    first_offset: int
    last_offset: int
    timestamp_ms: int


class AbortedTxn(NamedTuple):
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

    def update(self, batches: Directory, data: Bytes, path: str = "") -> list[AbortedTxn]:
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

    def _end(self, batch: ProducerBatch, marker: EndTransactionMarker) -> AbortedTxn | None:
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
        return AbortedTxn(batch.producer_id, first, batch.first_offset, stable)

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


def _marker_to_append(data: Bytes | None, batches: Directory, row: int) -> EndTransactionMarker | None:
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


def _refuse(
    producer: Producer, batch: ProducerBatch, marker: EndTransactionMarker | None, origin: Origin
) -> None:
    replicated = origin is Origin.REPLICATION
    if not batch.control:
        refuse_data(producer, batch, fenced=not replicated, sequenced=origin is Origin.CLIENT)
    elif not replicated:
        refuse_marker(producer, batch, marker)


def _after(producer: Producer, batch: ProducerBatch, marker: EndTransactionMarker | None) -> Producer:
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
