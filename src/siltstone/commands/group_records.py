"""The current records of ``__consumer_offsets``: the last committed one of each key, decoded.

::

    offsets    log start ───────── first open transaction, or high watermark ───── high watermark
    kept       the last record of each key, decoded │ read again by each call, without open transactions
               └ the next call reads only what is new

A console asks every few seconds, and the log of a busy broker has many records of few keys. So a server keeps
what it has read, within a bound; a partition that does not fit is read from its start each time. What is kept
of a log holds as long as no records below its end can have been removed or replaced: the log start offset is
the same, and so is the last batch (``latest_keys.Tail``). Of the records below its end a cleaning removes
only superseded ones; above it, it may remove a tombstone before it was read, so what is kept does not hold if
the cleaner checkpoint has passed its end.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from siltstone.base.records.columns import select
from siltstone.base.records.layout import TRANSACTIONAL_BIT
from siltstone.base.records.metadata import UndecodableMessageError
from siltstone.commands.latest_keys import Tail
from siltstone.compaction.latest import latest_records
from siltstone.log.coordinator_records import Fields, decode_assignment, decode_record
from siltstone.log.fetch import READ_COMMITTED
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadOnlyLog
from siltstone.log.reading import LogReader, PolledRecords, Record, records_of

KEPT_BYTES = 128 << 20
"""About how much memory the records take that a server keeps: 100,000 commits."""
_RECORD_BYTES, _BYTES_PER_ENCODED_BYTE = 400, 12
"""About how much memory a decoded record takes, and each byte of its key and value besides: as measured of
commits, and of groups with many members."""
_OLD_COMMIT, COMMIT, GROUP_METADATA = "0", "1", "2"
"""Types of keys: ``OffsetCommitKey`` in two versions, ``GroupMetadataKey`` (of a classic group)."""
REGULAR_EXPRESSION = "16"
"""``ConsumerGroupRegularExpressionKey``, of the consumer protocol (KIP-848)."""
STREAMS_GROUP_METADATA = "17"
"""Each streams group has this record (``StreamsGroupMetadataKey``, KIP-1071)."""
_FIRST_IGNORED_TYPE = 9
"""Types from here on, except ``REGULAR_EXPRESSION``, are of share and streams groups, or of later versions.
A coordinator, too, ignores types that it does not know."""


class CurrentRecord(NamedTuple):
    """The last record of a key. ``subkey``: what the key has besides the group and its type: the partition of
    a commit, a member id, a regular expression, or None. ``problem``: why it cannot be decoded (only the
    offset is known then). The ``value`` is shared: it may not be changed."""

    offset: int
    group_id: str = ""
    type: str = ""
    subkey: Any = None
    value: Fields = {}  # noqa: RUF012 (not changed)
    problem: str | None = None


@dataclass(slots=True, kw_only=True)
class _PartitionRecords:
    """The current records of a log from offset ``start`` to ``end`` (exclusive), by key, in the order of
    their offsets; ``memory_bytes``: about what they take."""

    start: int
    end: int
    tail: Tail
    memory_bytes: int = 0
    by_key: dict[bytes, tuple[CurrentRecord, int]] = field(default_factory=dict)

    def is_of(self, log: ReadOnlyLog) -> bool:
        """Are these records of this log, up to ``end``, and has no cleaning gone further, which may have
        removed a tombstone that was not read yet? Raises CorruptRecordError, OSError."""
        has_all_that_follows = log.first_dirty_offset <= self.end
        return has_all_that_follows and self.start == log.log_start_offset and self.tail.is_in(log)

    def advance(self, log: ReadOnlyLog, end: int) -> None:
        """Read on, up to the offset ``end``. Raises what ``LogReader.poll`` raises."""
        if end <= self.end:
            return
        # Before the first record there is nothing that a tombstone could remove.
        for polled in _last_of_keys(log, self.end, end, keep_tombstones=bool(self.by_key)):
            for record in records_of(polled):
                self._put(record)
        self.end, self.tail = end, Tail.of(log, end)

    def _put(self, record: Record) -> None:
        key, value = record.key or b"", record.value
        _, size = self.by_key.pop(key, (None, 0))
        self.memory_bytes -= size
        decoded = None if value is None else _decoded(record)
        if decoded is not None:
            size = _RECORD_BYTES + _BYTES_PER_ENCODED_BYTE * (len(key) + len(value or b""))
            self.by_key[key] = decoded, size
            self.memory_bytes += size

    def current(self, log: ReadOnlyLog) -> Sequence[CurrentRecord]:
        """All current records, up to the log's high watermark. Raises what ``LogReader.poll`` raises."""
        whole = self
        if self.end < log.high_watermark:  # what follows is not kept: a transaction may still end
            whole = replace(self, by_key={**self.by_key})
            whole.advance(log, log.high_watermark)
        return [record for record, _ in whole.by_key.values()]


class KeptRecords:
    """The current records of the partitions of one server, as they were read last. Thread-safe."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes, self._lock = kept_bytes, threading.Lock()
        self._kept = dict[str, _PartitionRecords]()

    def current(self, log: ReadOnlyLog) -> Sequence[CurrentRecord]:
        """The last committed record of each key of a log, up to the high watermark, in the order of their
        offsets, without tombstones. Raises what ``LogReader.poll`` raises."""
        with self._lock:  # a second request would read the same records
            name, start = str(log.directory), log.log_start_offset
            records = self._kept.pop(name, None)
            if records is None or not records.is_of(log):
                records = _PartitionRecords(start=start, end=start, tail=Tail(start, b""))
            records.advance(log, min((*log.open_transactions.values(), log.high_watermark)))
            if (
                records.memory_bytes + sum(other.memory_bytes for other in self._kept.values())
                <= self._kept_bytes
            ):
                self._kept[name] = records
            return records.current(log)


def _last_of_keys(
    log: ReadOnlyLog, start: int, end: int, *, keep_tombstones: bool
) -> Iterator[PolledRecords]:
    """The last committed record of each key between two offsets."""
    # Open transactions must not hide what others have committed after them, as a last stable offset would.
    view = log.view._replace(last_stable_offset=log.view.high_watermark)
    to_high_watermark = replace(log, view=view)
    # ``latest_records`` reads the log twice: for the last offset of each key, then for these records.
    first, second = (
        _without_open_transactions(
            LogReader(to_high_watermark, start, end=end, isolation=READ_COMMITTED), log.open_transactions
        )
        for _ in range(2)
    )
    return latest_records(first, second, keep_tombstones=keep_tombstones)


def _without_open_transactions(
    reader: Iterable[PolledRecords], open_transactions: Mapping[int, int]
) -> Iterator[PolledRecords]:
    """The records that the reader reads, except those of ``open_transactions`` (producer id → first
    offset of its transaction)."""
    for polled in reader:
        is_open = np.zeros(len(polled.batches), np.bool_)
        for producer_id, first_offset in open_transactions.items():
            is_open |= (polled.batches["producer_id"] == producer_id) & (
                polled.batches["base_offset"] >= first_offset
            )
        is_open &= (polled.batches["attributes"] & TRANSACTIONAL_BIT) != 0
        if not is_open.any():
            yield polled
            continue
        rows = np.flatnonzero(~is_open[polled.columns.batch])
        if len(rows):
            yield PolledRecords(columns=select(polled.columns, rows), batches=polled.batches)


def _decoded(record: Record) -> CurrentRecord | None:
    """The record, decoded as far as it can be; None for one of a type that is ignored."""
    encoded_key = record.key or b""
    # A key that is too short for a type is passed on, and reported as undecodable.
    type_number = int.from_bytes(encoded_key[:2], "big") if len(encoded_key) > 2 else 0
    if type_number >= _FIRST_IGNORED_TYPE and type_number != int(REGULAR_EXPRESSION):
        if type_number == int(STREAMS_GROUP_METADATA):
            return CurrentRecord(record.offset, _streams_group_id(encoded_key), STREAMS_GROUP_METADATA)
        return None
    try:
        return _of_group(record)
    except UndecodableMessageError as error:
        return CurrentRecord(record.offset, problem=str(error))


def _of_group(record: Record) -> CurrentRecord:
    """A record of a classic or a consumer group. Raises UndecodableMessageError."""
    row = decode_record("offsets", record.key, record.value)
    if "undecodable" in row:
        raise UndecodableMessageError(0, row["undecodable"])
    record_type, key = row["decodedKey"]["type"], row["decodedKey"]["data"]
    value = row["decodedValue"]["data"]
    # Members of other protocols, such as Kafka Connect's, have assignments of another format.
    if record_type == GROUP_METADATA and value["protocolType"] == "consumer":
        for member in value["members"] or ():
            member["assigned"] = decode_assignment(base64.b64decode(member["assignment"] or ""))
    subkey = key.get("memberId", key.get("regularExpression"))
    if record_type in (_OLD_COMMIT, COMMIT):
        record_type, subkey = COMMIT, TopicPartition(key["topic"] or "", key["partition"])
    group_id = key.get("group", key.get("groupId")) or ""
    return CurrentRecord(record.offset, group_id, record_type, subkey, value)


def _streams_group_id(key: bytes) -> str:
    """The group id in a ``StreamsGroupMetadataKey``, after its type: int16 size, bytes."""
    return key[4:].decode("utf-8", "backslashreplace")
