"""The producers of a log, their snapshots, and the last stable offset (Kafka's ``ProducerStateManager``).

``ProducerStates`` has the producers of an open log. ``check`` refuses batches that may not be appended
(``ProducerAppendInfo``); ``update`` applies batches that were appended. ``load_producers`` builds the same
states from a directory (``UnifiedLog.rebuildProducerState``): from the newest valid ``.snapshot`` in the log
and the batches after it, or without a snapshot from the whole log.

A transaction is *open* from its first batch to its marker. The last stable offset stays at or below the
transaction's first offset until the marker is below the high watermark.

A snapshot is a file ``BASE.snapshot``, all its integers big-endian::

    version int16, 1 | CRC32C of what follows uint32 | number of entries uint32 | entries of 46 bytes
    entry    producer id int64 | epoch int16 | last sequence int32 | last offset int64
             | offset delta int32 | timestamp int64 | coordinator epoch int32
             | first offset of its open transaction int64 (-1: none)

The offset delta is the last offset minus the first offset of the producer's last batch. The cleaner reads the
last offset of each producer from a snapshot. It retains the batch with that offset, even without records,
until the producer expires: otherwise the producer's last sequence would be lost.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from siltstone.base import files
from siltstone.base.config import LONG_MAX
from siltstone.base.errors import (
    CorruptFileError,
    CorruptRecordError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from siltstone.base.records.control import EndTransactionMarker, read_batch_marker
from siltstone.base.records.layout import BATCH, CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeaders, Bytes
from siltstone.log.indexes import AbortedTransaction
from siltstone.log.names import SNAPSHOT, parse_segment_file, segment_file
from siltstone.log.segments import Segment, floor_segment_index, windows
from siltstone.log.validation import Origin, at_position

# One producer's batches, epochs and transaction in a log (``ProducerStateEntry``, ``ProducerAppendInfo``).
#
# A producer numbers its records. A batch has the number of its first record, its *sequence*; after 2³¹-1 the
# numbers begin again at 0. So the log recognises a batch that is sent twice, if it is one of the producer's
# last five, and it notices a gap, where a batch was lost. A new instance of the producer has a higher *epoch*
# and begins again at 0. ``_refuse_batch`` checks a batch before the append. The methods of ``Producer`` apply
# a batch that is in the log, so they refuse nothing.

_BATCHES_RETAINED = 5
"""Kafka's ``ProducerStateEntry.NUM_BATCHES_TO_RETAIN``."""
NO_EPOCH = NO_SEQUENCE = NO_OFFSET = -1
_SEQUENCE_MASK = (1 << 31) - 1
"""Sequences are 31 bits wide: ``& _SEQUENCE_MASK`` makes 0 follow after 2³¹-1."""
_HEADER = struct.Struct(">hII")
_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_VERSION = 1
_CHECKSUM_POSITION, _CHECKED_FROM = 2, 6  # bytes
_FIELDS = ("producer_id", "producer_epoch", "base_sequence", "base_offset", "last_offset", "max_timestamp")
"""The first fields of ``ProducerBatch``, in its order, by their names in the batch headers."""
_pick_fields = itemgetter(*((BATCH.names or ()).index(name) for name in _FIELDS))
_ATTRIBUTES_INDEX = (BATCH.names or ()).index("attributes")


class ProducerEntry(NamedTuple):
    """One producer in a snapshot, its fields in the order of the file.

    ``last_offset`` and ``last_sequence`` are of its last batch, -1 when it has no batch; ``offset_delta`` is
    that batch's last offset minus its first. ``open_transaction_offset``: -1 without an open transaction.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    open_transaction_offset: int


def read_snapshot(data: bytes, path: str = "", offset: int | None = None) -> list[ProducerEntry]:
    """Decode a snapshot file's bytes. ``offset``: the offset in the file's name, if it is to be checked.

    Raises CorruptFileError for a corrupt file. With ``offset`` also for an entry with an offset at or above
    it, and for a producer id that is negative or repeated.
    """
    if len(data) < _HEADER.size:
        raise CorruptFileError(path, 0, f"the snapshot is shorter than its header of {_HEADER.size} bytes")
    version, checksum, count = _HEADER.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise CorruptFileError(path, 0, f"unknown snapshot version {version}")
    if crc32c(data[_CHECKED_FROM:]) != checksum:
        raise CorruptFileError(path, _CHECKSUM_POSITION, "the snapshot's checksum does not match")
    if len(data) != _HEADER.size + count * _ENTRY.size:
        raise CorruptFileError(path, _CHECKED_FROM, f"the snapshot's size is not that of {count} producers")
    entries = [ProducerEntry._make(fields) for fields in _ENTRY.iter_unpack(data[_HEADER.size :])]
    if offset is None:
        return entries
    producer_ids: set[int] = set()
    for number, entry in enumerate(entries):
        position, producer_id = _HEADER.size + number * _ENTRY.size, entry.producer_id
        if producer_id < 0 or producer_id in producer_ids:
            raise CorruptFileError(path, position, f"producer id {producer_id} is negative or repeated")
        producer_ids.add(producer_id)
        for value in (entry.last_offset, entry.open_transaction_offset):
            if not -1 <= value < offset:
                reason = f"producer {producer_id} has offset {value} in a snapshot taken at offset {offset}"
                raise CorruptFileError(path, position, reason)
    return entries


def write_snapshot(producers: Iterable[ProducerEntry]) -> bytes:
    """Encode a snapshot file's bytes."""
    rows = [_ENTRY.pack(*producer) for producer in producers]
    body = len(rows).to_bytes(4, "big") + b"".join(rows)
    return _SNAPSHOT_VERSION.to_bytes(2, "big") + crc32c(body).to_bytes(4, "big") + body


class ProducerBatch(NamedTuple):
    """The fields of a batch that change a producer's state (Kafka's ``BatchMetadata``).

    ``first_sequence``: -1 where the batch has none. ``timestamp_ms``: the largest of its records.
    """

    producer_id: int
    epoch: int
    first_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int
    is_transactional: bool
    is_control: bool

    @classmethod
    def of(cls, batches: BatchHeaders, row: int) -> ProducerBatch:
        """The batch in a row of ``batches``."""
        fields = batches.item(row)  # five times faster than to read the fields one by one
        attributes = fields[_ATTRIBUTES_INDEX]
        flags = (attributes & TRANSACTIONAL_BIT) != 0, (attributes & CONTROL_BIT) != 0
        return cls._make((*_pick_fields(fields), *flags))

    @property
    def last_sequence(self) -> int:
        """The last record's sequence, -1 where the batch has none."""
        if self.first_sequence < 0:
            return NO_SEQUENCE
        return (self.first_sequence + self.last_offset - self.first_offset) & _SEQUENCE_MASK


@dataclass(slots=True)
class Producer:
    """The state of one producer (Kafka's ``ProducerStateEntry``); -1 stands for unknown, or none.

    ``batches``: its last five batches with this epoch, the newest last. ``open_transaction_offset``: the
    first offset of its open transaction.
    """

    producer_id: int
    epoch: int = NO_EPOCH
    coordinator_epoch: int = NO_EPOCH
    timestamp_ms: int = -1
    open_transaction_offset: int = NO_OFFSET
    batches: deque[ProducerBatch] = field(default_factory=lambda: deque(maxlen=_BATCHES_RETAINED))

    @classmethod
    def from_entry(cls, entry: ProducerEntry) -> Producer:
        """The producer in a snapshot, which has only the last of its batches."""
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, open_offset = entry
        producer = cls(producer_id, epoch, coordinator_epoch, timestamp, open_offset)
        if offset >= 0:
            first = NO_SEQUENCE if sequence < 0 else (sequence - delta) & _SEQUENCE_MASK
            last = ProducerBatch(producer_id, epoch, first, offset - delta, offset, timestamp, False, False)
            producer.batches.append(last)
        return producer

    def to_entry(self) -> ProducerEntry:
        """The producer's entry in a snapshot."""
        last = self.batches[-1] if self.batches else None
        return ProducerEntry(
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            last_sequence=last.last_sequence if last else NO_SEQUENCE,
            last_offset=last.last_offset if last else NO_OFFSET,
            offset_delta=last.last_offset - last.first_offset if last else 0,
            timestamp_ms=self.timestamp_ms,
            coordinator_epoch=self.coordinator_epoch,
            open_transaction_offset=self.open_transaction_offset,
        )

    def find_duplicate(self, batch: ProducerBatch) -> ProducerBatch | None:
        """The batch among the last five that has the epoch and the sequences of ``batch``, or None."""
        if batch.epoch != self.epoch or batch.is_control or batch.first_sequence < 0:
            return None
        last_sequence = batch.last_sequence
        for stored in self.batches:
            if stored.first_sequence == batch.first_sequence and stored.last_sequence == last_sequence:
                return stored
        return None

    def add_data(self, batch: ProducerBatch) -> bool:
        """Apply a batch of records that is in the log; returns whether it began a transaction."""
        self._set_epoch(batch.epoch)
        self.batches.append(batch)
        self.timestamp_ms = batch.timestamp_ms
        if not batch.is_transactional or self.open_transaction_offset >= 0:
            return False
        self.open_transaction_offset = batch.first_offset
        return True

    def add_marker(self, batch: ProducerBatch, marker: EndTransactionMarker) -> int:
        """Apply a marker that is in the log; returns the first offset of its transaction, -1 without one."""
        self._set_epoch(batch.epoch)
        first_offset = self.open_transaction_offset
        self.coordinator_epoch = marker.coordinator_epoch
        self.timestamp_ms = batch.timestamp_ms
        self.open_transaction_offset = NO_OFFSET
        return first_offset

    def _set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()


def is_expired(producer: Producer | ProducerEntry, now_ms: int, expiration_ms: int) -> bool:
    """Has the producer appended nothing for ``expiration_ms``, and has it no open transaction?"""
    return producer.open_transaction_offset < 0 and now_ms - producer.timestamp_ms >= expiration_ms


def _refuse_batch(
    producer: Producer, batch: ProducerBatch, marker: EndTransactionMarker | None, origin: Origin
) -> None:
    """Raise Kafka's error for a batch that may not be appended (Kafka's ``ProducerAppendInfo``).

    ``marker``: that of a control batch, None for a batch of records. Only a client's sequences are checked,
    since coordinators write none. A replica accepts what its leader has accepted, except for a batch outside
    of the producer's open transaction.
    """
    name = f"producer {batch.producer_id}"
    is_replicated = origin is Origin.REPLICATION
    # ``checkProducerEpoch``: a newer instance of the producer fences the older ones.
    if batch.epoch < producer.epoch and not is_replicated:
        raise InvalidProducerEpochError(
            f"the epoch {batch.epoch} of {name} is smaller than its last seen epoch {producer.epoch}",
            advice="start a new instance of the producer",
        )
    if marker is not None:
        # ``checkCoordinatorEpoch``: a newer transaction coordinator fences the older ones.
        if marker.coordinator_epoch < producer.coordinator_epoch and not is_replicated:
            raise TransactionCoordinatorFencedError(
                f"the coordinator epoch {marker.coordinator_epoch} in a marker of {name} is smaller than "
                f"the last seen one {producer.coordinator_epoch}",
                advice="let the coordinator that has taken over end the transaction",
            )
        return
    # ``checkSequence``: a producer without an epoch is new or has expired, so it may begin at any sequence.
    if origin is Origin.CLIENT and producer.epoch != NO_EPOCH:
        is_same_epoch = batch.epoch == producer.epoch
        last = producer.batches[-1].last_sequence if is_same_epoch and producer.batches else NO_SEQUENCE
        expected = (last + 1) & _SEQUENCE_MASK
        if batch.first_sequence != expected:
            raise OutOfOrderSequenceError(
                f"the sequence {batch.first_sequence} of {name} at epoch {batch.epoch} is not {expected}, "
                "the next one",
                advice="send the missing batches first, or start a new instance of the producer",
            )
    if producer.open_transaction_offset >= 0 and not batch.is_transactional:
        raise InvalidTransactionStateError(
            f"{name} sent a batch outside of its transaction, which is open from offset "
            f"{producer.open_transaction_offset}",
            advice="commit or abort the transaction first",
        )


class ProducerStates:
    """The producers of one log, after all batches below ``end_offset``. Not thread-safe."""

    __slots__ = ("_open_transactions", "_producers", "_unreplicated", "end_offset")

    def __init__(self, end_offset: int = 0, entries: Iterable[ProducerEntry] = ()) -> None:
        """The states in a snapshot at ``end_offset`` with these ``entries``."""
        self.end_offset = end_offset
        self._producers: dict[int, Producer] = {}
        # Producer ids by the transaction's first offset (Kafka's ``ongoingTxns``).
        self._open_transactions: dict[int, int] = {}
        # Ended transactions whose marker is not below the high watermark yet: the marker's offset by the
        # transaction's first offset (Kafka's ``unreplicatedTxns``).
        self._unreplicated: dict[int, int] = {}
        for entry in entries:
            self._producers[entry.producer_id] = Producer.from_entry(entry)
            if entry.open_transaction_offset >= 0:
                self._open_transactions[entry.open_transaction_offset] = entry.producer_id

    def entries(self) -> list[ProducerEntry]:
        """The entries of a snapshot, by producer id."""
        return [self._producers[producer_id].to_entry() for producer_id in sorted(self._producers)]

    def largest_id(self, below: int) -> int:
        """The largest producer id under ``below``, -1 without one."""
        return max((producer_id for producer_id in self._producers if producer_id < below), default=-1)

    def active(self, now_ms: int, expiration_ms: int) -> list[ProducerEntry]:
        """The producers that have not expired, by producer id (Kafka's ``activeProducers``)."""
        return [entry for entry in self.entries() if not is_expired(entry, now_ms, expiration_ms)]

    def snapshot(self) -> bytes:
        """The bytes of a ``.snapshot`` at ``end_offset``."""
        return write_snapshot(self.entries())

    def check(self, batches: BatchHeaders, data: Bytes, *, origin: Origin) -> ProducerBatch | None:
        """Check that ``batches``, whose bytes are ``data``, may be appended. Changes nothing.

        If a client sends one of its last five batches again, returns the stored batch. An expired producer
        counts until ``expire`` removes it. Raises OutOfOrderSequenceError, InvalidProducerEpochError,
        InvalidTransactionStateError, TransactionCoordinatorFencedError; and InvalidRecordError for an invalid
        marker.
        """
        rows = _producer_rows(batches)
        copies: dict[int, Producer] = {}
        for row in rows:
            batch = ProducerBatch.of(batches, row)
            producer_id = batch.producer_id
            producer = copies.get(producer_id) or self._producers.get(producer_id) or Producer(producer_id)
            duplicate = producer.find_duplicate(batch) if origin is Origin.CLIENT else None
            if duplicate is not None:
                return duplicate  # no batch follows it: a client sends one
            if batch.is_control and not int(batches["count"][row]):
                continue  # cleaning has emptied it
            marker = _marker_of_append(data, batches, row) if batch.is_control else None
            _refuse_batch(producer, batch, marker, origin)
            if row == rows[-1]:
                break
            # The following batches are checked against a copy of the producer to which this one is applied:
            # ``check`` changes nothing, since nothing is in the log yet.
            copy = copies[producer_id] = replace(producer, batches=producer.batches.copy())
            if marker is not None:
                copy.add_marker(batch, marker)
            else:
                copy.add_data(batch)
        return None

    def update(self, batches: BatchHeaders, data: Bytes, path: str = "") -> list[AbortedTransaction]:
        """Apply ``batches``, which are in the log, with the bytes ``data``; returns the aborted transactions.

        Refuses no batch. Raises CorruptRecordError for a damaged marker.
        """
        aborted = []
        for row in _producer_rows(batches):
            batch = ProducerBatch.of(batches, row)
            marker = read_batch_marker(data, batches, row, path) if batch.is_control else None
            if batch.is_control and marker is None:
                continue  # another control record, or a marker that cleaning has emptied
            producer = self._producers.get(batch.producer_id)
            if producer is None:
                producer = self._producers[batch.producer_id] = Producer(batch.producer_id)
            if marker is None:
                if producer.add_data(batch):
                    self._open_transactions[batch.first_offset] = batch.producer_id
                continue
            first_offset = producer.add_marker(batch, marker)
            if first_offset < 0:
                continue
            self._open_transactions.pop(first_offset, None)
            self._unreplicated[first_offset] = batch.first_offset
            if not marker.is_commit:
                # The last stable offset after this marker: in ``fetch._aborted_transactions`` it ends the
                # search for aborted transactions.
                stable = min(self._open_transactions, default=batch.last_offset + 1)
                entry = AbortedTransaction(batch.producer_id, first_offset, batch.first_offset, stable)
                aborted.append(entry)
        if len(batches):
            self.end_offset = batches["last_offset"].item(-1) + 1
        return aborted

    def last_stable_offset(self, high_watermark: int, log_start_offset: int = 0) -> int:
        """The offset below which ``read_committed`` readers may read (Kafka's ``lastStableOffset``).

        The result is not below the log start offset. This call forgets the ended transactions whose marker is
        below ``high_watermark`` (``onHighWatermarkUpdated``), so no later call may pass a lower high
        watermark.
        """
        # A marker at or above the high watermark may still be truncated: its transaction would be open again.
        if ended := self._unreplicated:
            self._unreplicated = {first: end for first, end in ended.items() if end >= high_watermark}
        # The first offset of the earliest transaction that is open, or whose marker is not replicated yet.
        unstable = min((*self._open_transactions, *self._unreplicated), default=high_watermark)
        return min(high_watermark, max(unstable, log_start_offset))

    def first_open_transaction(self) -> int | None:
        """The first offset of the earliest open transaction, None without one."""
        return min(self._open_transactions, default=None)

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Remove the expired producers; returns their number (Kafka's ``removeExpiredProducers``)."""
        producers = self._producers.values()
        expired = [
            producer.producer_id for producer in producers if is_expired(producer, now_ms, expiration_ms)
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)


def _producer_rows(batches: BatchHeaders) -> list[int]:
    """The rows of the batches that have a producer id, ascending."""
    ids = batches["producer_id"]
    if len(ids) == 1:
        return [0] if ids.item() >= 0 else []
    rows: list[int] = np.flatnonzero(ids >= 0).tolist()
    return rows


def _marker_of_append(data: Bytes, batches: BatchHeaders, row: int) -> EndTransactionMarker:
    """The marker in a control batch that is to be appended. Raises InvalidRecordError if it has none."""
    try:
        marker = read_batch_marker(data, batches, row)
    except CorruptRecordError as error:
        raise at_position(InvalidRecordError(error.reason), error.position) from None
    if marker is None:
        refused = InvalidRecordError("a control record with a producer id is not a transaction marker")
        raise at_position(refused, int(batches["position"][row]))
    return marker


def newest_snapshots(
    directory: Path, offsets: Iterable[int]
) -> Iterator[tuple[int, list[ProducerEntry] | None]]:
    """Read the snapshots at ``offsets``, the newest first: (offset, its producers; None if it is corrupt).

    Raises OSError.
    """
    for offset in sorted(offsets, reverse=True):
        path = directory / segment_file(offset, SNAPSHOT)
        try:
            yield offset, read_snapshot(files.read_bytes(path), str(path), offset)
        except CorruptFileError:
            yield offset, None


def replay(
    states: ProducerStates,
    segment: Segment,
    start: int,
    end: int,
    apply: Callable[[ProducerStates, BatchHeaders, Bytes, str], object] = ProducerStates.update,
) -> int:
    """Apply a segment's batches with offsets in [``start``, ``end``) to ``states``.

    ``apply``: what applies them, with the parameters of ``ProducerStates.update``. Returns the offset after
    the last batch that was read, or the base offset of a segment without batches. A batch that has the offset
    ``start`` is applied as a whole, as in Kafka. Raises CorruptRecordError, OSError.
    """
    next_offset = segment.base_offset
    with files.Reader(segment.path) as reader:
        for window in windows(reader, verify=False):
            batches = window.batches
            next_offset = int(batches["last_offset"][-1]) + 1
            chosen = (batches["last_offset"] >= start) & (batches["base_offset"] < end)
            apply(states, batches if chosen.all() else batches[chosen], window.data, segment.path)
            if int(batches["base_offset"][-1]) >= end:
                break
    return next_offset


def load_producers(
    directory: Path,
    segments: Sequence[Segment],
    end_offset: int = LONG_MAX,
    *,
    listed: Iterable[str] | None = None,
    up_to_damage: bool = False,
) -> ProducerStates:
    """The states at ``end_offset``, or at the log's end. ``listed``: the names of the directory's files, if
    the caller has just listed them. ``up_to_damage``: apply a damaged segment's batches up to the damage;
    without it, damage raises CorruptRecordError. Raises OSError.

    Starts from the newest valid snapshot that belongs to this log: not above ``end_offset`` or the log's end,
    not below the first segment. A snapshot that lacks an open transaction looks valid, so callers that read
    the batches must check that (``transactions.refuse_unexpected_markers``). Expired producers stay.
    """
    first_base = segments[0].base_offset if segments else 0
    names = (entry.name for entry in files.entries(directory)) if listed is None else listed
    parsed = map(parse_segment_file, [name for name in names if name.endswith(SNAPSHOT)])
    offsets = (name.base_offset for name in parsed if name and name.kind == SNAPSHOT and not name.suffix)
    in_log = [offset for offset in offsets if first_base <= offset <= end_offset]
    if not in_log and end_offset <= first_base:
        return ProducerStates(end_offset if segments else 0)  # no batch is below the end
    # Without any snapshot of this log: from offset 0 on, with no producers.
    for offset, entries in itertools.chain(newest_snapshots(directory, in_log), [(0, [])]):
        if entries is None:  # a corrupt snapshot
            continue
        states, read_end = ProducerStates(offset, entries), 0
        for segment in segments[max(floor_segment_index(list(segments), offset), 0) :]:
            if segment.base_offset < end_offset:
                with contextlib.suppress(CorruptRecordError) if up_to_damage else contextlib.nullcontext():
                    read_end = max(read_end, replay(states, segment, offset, end_offset))
        # The log ends at the active segment's base offset or above, even if no batch is there.
        last_base = segments[-1].base_offset if segments else 0
        states.end_offset = max(states.end_offset, min(last_base, end_offset))
        # A snapshot above the log's end is not of this log: try the one before it.
        if offset <= max(read_end, last_base):
            break
    return states
