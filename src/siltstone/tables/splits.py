"""Plans which offsets of which logs a query reads, cut into splits for its tasks.

::

    logs ─ offset_ranges ─► OffsetRange of each log ─ one a segment ─► FilePiece ─ cut, packed ─► TaskSplit

A ``FilePiece`` is a range of offsets of one partition in one segment's file, with the identity of the file; a
``TaskSplit`` is what one task reads: a piece of a large log, or many small ones. Both are plain and
picklable. A task reads a piece from its file if that is still the same file; otherwise it looks its offsets
up in the log as it is then, since a broker may have rolled, cleaned or deleted segments meanwhile.

Large segments are cut into pieces of about the same size, at batches that the offset index leads to; the
limit of records counts offsets and cuts at any. A cut inside a batch gives that batch to both pieces, and
each task reads its own offsets of it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from siltstone.base import files
from siltstone.base.config import LONG_MAX
from siltstone.base.errors import CorruptRecordError, OffsetOutOfRangeError, UsageError
from siltstone.base.records.layout import Int64
from siltstone.log.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_COMMITTED, LogView
from siltstone.log.indexes import AbortedTransaction
from siltstone.log.lookup import BatchPosition, position_of_offset
from siltstone.log.names import CLUSTER_METADATA, TopicPartition
from siltstone.log.read_only import ReadOnlyLog, ReadOnlyLogs
from siltstone.log.segment import LiveSegment
from siltstone.tables.options import LATEST_VIEW, OffsetLimit, ReadOptions

# Many offsets in few bytes, sent to the task with a piece: the retained offsets of a view, or the superseded
# ones of a ledger.
#
# ::
#
#     base int64 | width 1 byte | payload      little-endian
#     width 4 or 8: the offsets less the base, in so many bytes each; 0: one bit for each offset from the base

_HEAD = struct.Struct("<qB")
_BITS = 0


def encode_offsets(offsets: Int64) -> bytes:
    """Ascending offsets (int64) as bytes, in the smallest of the three widths."""
    if not len(offsets):
        return _HEAD.pack(0, _BITS)
    base = int(offsets[0])
    relative = offsets - base
    span = int(relative[-1]) + 1
    if span <= 32 * len(offsets):
        bits = np.zeros(span, np.bool_)
        bits[relative] = True
        return _HEAD.pack(base, _BITS) + np.packbits(bits, bitorder="little").tobytes()
    width = 4 if span <= 1 << 32 else 8
    return _HEAD.pack(base, width) + relative.astype(f"<u{width}").tobytes()


def decode_offsets(encoded: bytes) -> Int64:
    """The offsets that ``encode_offsets`` encoded, ascending int64."""
    base, width = _HEAD.unpack_from(encoded)
    if width == _BITS:
        bits = np.unpackbits(np.frombuffer(encoded, np.uint8, offset=_HEAD.size), bitorder="little")
        return np.asarray(np.flatnonzero(bits) + base, np.int64)
    payload = np.frombuffer(encoded, f"<u{width}", offset=_HEAD.size)
    return np.asarray(payload.astype(np.int64) + base)


def between(offsets: Int64, start: int, end: int) -> Int64:
    """The ascending ``offsets`` that are in ``[start, end)``."""
    low, high = np.searchsorted(offsets, [start, end]).tolist()
    return offsets[low:high]


# The logs of a table, opened without a lock and without changing a byte.

Value = TypeVar("Value", str, int)
Logs = Mapping[TopicPartition, ReadOnlyLog]


def open_logs(options: ReadOptions) -> dict[TopicPartition, ReadOnlyLog]:
    """The selected logs of the options' directories. Raises what ``ReadOnlyLogs`` raises, and
    UnknownTopicError."""
    with ReadOnlyLogs(options.paths) as logs:
        return {
            topic_partition: logs[topic_partition] for topic_partition in selected_partitions(logs, options)
        }


def partition_directories(options: ReadOptions) -> dict[TopicPartition, Path]:
    """The selected partitions' directories; their logs are not opened. Raises as ``open_logs``."""
    with ReadOnlyLogs(options.paths) as logs:
        return {
            topic_partition: logs.directory_of(topic_partition)
            for topic_partition in selected_partitions(logs, options)
        }


def selected_partitions(logs: ReadOnlyLogs, options: ReadOptions) -> list[TopicPartition]:
    """The selected partitions of the directories; the broker's metadata only if it is named, or alone.

    Raises UnknownTopicError.
    """
    named = options.selection.assign is not None or options.selection.subscribe is not None
    present = [
        topic_partition
        for topic_partition in logs
        if named or topic_partition.topic != CLUSTER_METADATA or len(logs) == 1
    ]
    return options.selection.of(present)


def reopen_log(directory: Path | str, topic_partition: TopicPartition) -> ReadOnlyLog:
    """One partition's log as it is now, from its own directory."""
    with ReadOnlyLogs([directory]) as logs:
        return logs[topic_partition]


def readable_end(log: ReadOnlyLog, isolation: str) -> int:
    """The offset at which readers of this isolation end: the last stable offset, or the high watermark."""
    return log.view.last_stable_offset if isolation == READ_COMMITTED else log.view.high_watermark


# The options' limits become offsets as in Spark's Kafka source (``KafkaOffsetReader``).
#
# A limit by partition must name every selected partition and no other. With ``failOnDataLoss`` an offset that
# is no longer in the log, or not yet, is an error. Gaps that cleaning left are none.

READ_WHAT_IS_LEFT = "set failOnDataLoss=false to read the records that are there"


class OffsetRange(NamedTuple):
    """Offsets ``[start, end)`` of one partition."""

    start: int
    end: int


def offset_ranges(logs: Logs, options: ReadOptions) -> dict[TopicPartition, OffsetRange]:
    """The offsets to read of each log. Raises UsageError, OffsetOutOfRangeError."""
    limits = ((options.starting, "starting"), (options.ending, "ending"), (options.as_of, "asOf"))
    for limit, name in limits:
        _require_exact_partitions(limit, logs, name)
    ranges = {}
    for topic_partition, log in logs.items():
        start = _start_offset(log, options)
        end = _offset_at(log, options.ending or OffsetLimit(every=LATEST_TIMESTAMP), options)
        if options.as_of is not None:
            end = _as_of(log, options.as_of, options)
        elif end is None:
            end = readable_end(log, options.isolation)
        ranges[topic_partition] = OffsetRange(start, max(start, end))
    return ranges


def _require_exact_partitions(limit: OffsetLimit | None, logs: Logs, name: str) -> None:
    if limit is None or limit.every is not None or set(limit.by_partition) == set(logs):
        return
    missing = ", ".join(map(str, sorted(set(logs) - set(limit.by_partition))))
    too_many = ", ".join(map(str, sorted(set(limit.by_partition) - set(logs))))
    raise UsageError(
        f"option {name}: it does not name the partitions that are read"
        + (f"; missing: {missing}" if missing else "")
        + (f"; not read: {too_many}" if too_many else ""),
        advice="name every partition that is read and no other, with -2 for its earliest offset and -1 for "
        "its latest",
    )


def _start_offset(log: ReadOnlyLog, options: ReadOptions) -> int:
    starting = options.starting or OffsetLimit(every=EARLIEST_TIMESTAMP)
    start = _offset_at(log, starting, options)
    if start is not None:
        return start
    if options.latest_without_match:
        return readable_end(log, options.isolation)
    raise UsageError(
        f"no record has a timestamp of {starting.of(log.topic_partition)} ms or later",
        path=str(log.topic_partition),
        advice="set startingOffsetsByTimestampStrategy=latest to start at the end of the log",
    )


def _offset_at(log: ReadOnlyLog, limit: OffsetLimit, options: ReadOptions) -> int | None:
    """The offset of the log that a limit stands for; None for a time after its last record."""
    first, end = log.log_start_offset, readable_end(log, options.isolation)
    offset = limit.of(log.topic_partition)
    if limit.is_time:
        place = log.offset_for_time(offset)
        return None if place is None else min(max(place.offset, first), end)
    if offset in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP):
        return first if offset == EARLIEST_TIMESTAMP else end
    if options.fail_on_data_loss and not first <= offset <= end:
        raise OffsetOutOfRangeError(
            f"offset {offset} is outside {first} to {end}: its records were deleted, or do not exist yet",
            path=str(log.topic_partition),
            advice=READ_WHAT_IS_LEFT,
        )
    return min(max(offset, first), end)


def _as_of(log: ReadOnlyLog, limit: OffsetLimit, options: ReadOptions) -> int:
    """The end of the log as it was: after an offset, or before the first record that is later than a time."""
    end, last = readable_end(log, options.isolation), limit.of(log.topic_partition)
    if limit.is_time:
        place = log.offset_for_time(last + 1)
        end = end if place is None else min(place.offset, end)
    else:
        end = min(last + 1, end)
    if options.fail_on_data_loss:
        _refuse_unknown_past(log, end, options)
    return end


def _refuse_unknown_past(log: ReadOnlyLog, end: int, options: ReadOptions) -> None:
    """Raises OffsetOutOfRangeError for a past state of which records may have been deleted or cleaned."""
    reason, cleaned = None, log.first_dirty_offset
    if end < log.log_start_offset:
        reason = f"all records below offset {log.log_start_offset} were deleted since"
    elif options.view == LATEST_VIEW and end < cleaned:
        reason = f"the log was cleaned up to {cleaned} since, and values that were the latest are discarded"
    if reason is not None:
        raise OffsetOutOfRangeError(
            f"its state as of offset {end - 1} is not known: {reason}",
            path=str(log.topic_partition),
            advice=READ_WHAT_IS_LEFT,
        )


OPEN_COST_BYTES = 4 << 20
"""The cost of opening a file, in bytes that a task could have read in that time: smaller pieces share a task
(``spark.sql.files.openCostInBytes``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePiece:
    """Offsets ``[start, end)`` of a partition, in bytes ``[position, end_position)`` of one segment's file.

    ``identity`` tells on any machine whether it is still the same file. ``size``: the bytes that the piece
    counts for, less than these if a limit of records cut it. ``aborted``: transactions whose records are not
    read. ``retained``: None, or the offsets to read; ``superseded``: None, or the offsets not to read
    (``encode_offsets``).
    """

    topic_partition: TopicPartition
    directory: str
    base_offset: int
    identity: files.FileIdentity
    start: int
    end: int
    position: int
    end_position: int
    size: int
    aborted: tuple[AbortedTransaction, ...] = ()
    retained: bytes | None = None
    superseded: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRange:
    """Offsets of a partition that are read from one view of a directory, without the ``superseded`` ones."""

    topic_partition: TopicPartition
    directory: str
    view: LogView
    wanted: OffsetRange
    superseded: Int64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSplit:
    """The input of one task: pieces, read one after another; or, for a table that is read from whole files
    (``tables.file_tables``), the ``paths``, each with its partition (None: a file of the log directory)."""

    pieces: tuple[FilePiece, ...] = ()
    paths: tuple[tuple[str, TopicPartition | None], ...] = ()


def snapshot_range(log: ReadOnlyLog, wanted: OffsetRange) -> SnapshotRange:
    """Offsets of a log as they are read from its own directory."""
    return SnapshotRange(
        topic_partition=log.topic_partition, directory=str(log.directory), view=log.view, wanted=wanted
    )


def split_ranges(ranges: Iterable[SnapshotRange], options: ReadOptions) -> list[TaskSplit]:
    """Cut offset ranges into splits, as ``options`` say, in their order; none for empty ranges."""
    whole = [pair for source in ranges for pair in _by_segment(source, options.isolation)]
    target = _target_bytes([piece for _, piece in whole], options)
    cut = [(segment, part) for segment, piece in whole for part in _by_bytes(segment, piece, target)]
    max_offsets = options.max_records_per_partition
    if max_offsets is not None:
        cut = [(segment, part) for segment, piece in cut for part in _by_offsets(segment, piece, max_offsets)]
    groups = _bin_pack([piece for _, piece in cut], target, max_offsets)
    splits_min = options.min_partitions or 1
    if len(groups) < splits_min:
        groups = [[piece] for piece in _halved(cut, splits_min)]
    return [TaskSplit(pieces=tuple(map(_with_own_aborted, group))) for group in groups]


def _with_own_aborted(piece: FilePiece) -> FilePiece:
    own = overlapping_transactions(piece.aborted, piece.start, piece.end)
    return piece if len(own) == len(piece.aborted) else replace(piece, aborted=own)


def _target_bytes(pieces: list[FilePiece], options: ReadOptions) -> int:
    """Bytes of a split by Spark's rule for files (``FilePartition.maxSplitBytes``), for the cores of this
    machine unless ``minPartitions`` is set."""
    total = sum(piece.size for piece in pieces)
    if options.min_partitions is not None:
        return max(1, min(options.max_partition_bytes, total // options.min_partitions))
    bytes_per_core = (total + OPEN_COST_BYTES * len(pieces)) // (os.cpu_count() or 1)
    return max(1, min(options.max_partition_bytes, max(OPEN_COST_BYTES, bytes_per_core)))


def _by_segment(source: SnapshotRange, isolation: str) -> Iterator[tuple[LiveSegment, FilePiece]]:
    """One piece for each segment that has some of the offsets."""
    view, wanted = source.view, source.wanted
    aborted = aborted_transactions(view, wanted) if isolation == READ_COMMITTED else ()
    for number, segment in enumerate(view.segments):
        next_base = _next_base_offset(view, number)
        start, end = max(wanted.start, segment.base_offset), min(wanted.end, next_base)
        size = view.size_of(number)
        if start >= end or not size:
            continue
        first = segment.find_batch(start, size)
        if first is None or _is_above(first, end):
            continue
        end_position = size if end == next_base else _end_position(segment.find_batch(end, size), end, size)
        if end_position <= first.position:
            continue
        is_last = number == len(view.segments) - 1
        superseded = source.superseded
        piece = FilePiece(
            topic_partition=source.topic_partition,
            directory=source.directory,
            base_offset=segment.base_offset,
            identity=files.FileIdentity.of(segment.reader.stat, may_grow=is_last),
            start=start,
            end=end,
            position=first.position,
            end_position=end_position,
            size=end_position - first.position,
            aborted=aborted,
            superseded=None if superseded is None else encode_offsets(between(superseded, start, end)),
        )
        yield segment, piece


def _next_base_offset(view: LogView, number: int) -> int:
    """The base offset of the next segment; the log's end after the last segment."""
    return view.segments[number + 1].base_offset if number + 1 < len(view.segments) else view.log_end_offset


def _is_above(place: BatchPosition, end: int) -> bool:
    """Are all offsets of a batch at or above ``end``?

    The header of a compressed message set (v0, v1) has the offset of its last message in both fields, and its
    first message may be below ``end``. So a batch whose two offsets are equal counts as not above: if it is a
    batch of one record, the task reads it and discards that record by its offset.
    """
    return place.base_offset >= end and place.base_offset != place.last_offset


def _end_position(place: BatchPosition | None, end: int, end_of_bytes: int) -> int:
    """The byte after the last batch with offsets below ``end``, by the batch (``find_batch``) at ``end``."""
    if place is None:
        return end_of_bytes
    return place.position if _is_above(place, end) else place.position + place.size


def aborted_transactions(view: LogView, wanted: OffsetRange) -> tuple[AbortedTransaction, ...]:
    """All aborted transactions with records in the range: one may end in a later segment."""
    aborted: list[AbortedTransaction] = []
    for number, segment in enumerate(view.segments):
        # The last stable offset ascends: later entries have no record below that of an earlier one.
        if aborted and aborted[-1].last_stable_offset >= wanted.end:
            break
        if _next_base_offset(view, number) > wanted.start:
            aborted += segment.aborted()
    return overlapping_transactions(tuple(aborted), wanted.start, wanted.end)


def overlapping_transactions(
    aborted: tuple[AbortedTransaction, ...], start: int, end: int
) -> tuple[AbortedTransaction, ...]:
    """The transactions that may have records in ``[start, end)``."""
    return tuple(txn for txn in aborted if txn.last_offset >= start and txn.first_offset < end)


def _by_bytes(segment: LiveSegment, piece: FilePiece, target: int) -> Iterator[FilePiece]:
    """A segment's piece in parts of about ``target`` bytes.

    The offset index leads from a position to an offset near it. Without an index, evenly spaced offsets are
    taken for evenly spaced positions.
    """
    whole, count = piece, -(-piece.size // target)
    for number in range(1, count):
        if len(segment.offset_index):
            # An entry has the last offset of what was appended at its position.
            entry = segment.offset_index.first_at_position(whole.position + whole.size * number // count)
            offset = whole.end if entry is None else segment.base_offset + entry[0] + 1
        else:
            offset = whole.start + (whole.end - whole.start) * number // count
        if piece.start < offset < piece.end:
            head, tail = _cut_at(segment, piece, offset)
            if tail.position > piece.position:
                yield head
                piece = tail
    yield piece


def _by_offsets(segment: LiveSegment, piece: FilePiece, offsets_max: int) -> Iterator[FilePiece]:
    """A piece in parts of at most ``offsets_max`` offsets."""
    while piece.end - piece.start > offsets_max:
        size = piece.size * offsets_max // (piece.end - piece.start)
        head, tail = _cut_at(segment, piece, piece.start + offsets_max)
        yield replace(head, size=size)
        piece = replace(tail, size=piece.size - size)
    yield piece


def _cut_at(segment: LiveSegment, piece: FilePiece, offset: int) -> tuple[FilePiece, FilePiece]:
    """Two pieces: offsets below ``offset``, and from it on; a batch with both is in the bytes of both.

    Where the batch at ``offset`` cannot be found, both have all bytes: the index is wrong or a batch is
    damaged, which the task that reads it reports.
    """
    end_position, position = piece.end_position, piece.position
    try:
        if len(segment.offset_index):
            place = segment.find_batch(offset, piece.end_position)
        else:  # from the piece's start, so that cuts one after another read each header once
            place = position_of_offset(segment.reader, offset, start=position, end=end_position)
        end_position = _end_position(place, offset, piece.end_position)
        position = piece.end_position if place is None else max(position, place.position)
    except CorruptRecordError:
        pass
    head = replace(piece, end=offset, end_position=end_position, size=end_position - piece.position)
    tail = replace(piece, start=offset, position=position, size=piece.end_position - position)
    return head, tail


def _bin_pack(pieces: Iterable[FilePiece], target: int, max_offsets: int | None) -> list[list[FilePiece]]:
    """Neighbouring pieces in groups of at most ``target`` bytes, a group for each split."""
    groups: list[list[FilePiece]] = []
    size = records = 0
    for piece in pieces:
        span = piece.end - piece.start
        if groups and size + piece.size <= target and (max_offsets is None or records + span <= max_offsets):
            groups[-1].append(piece)
        else:
            groups.append([piece])
            size = records = 0
        size, records = size + piece.size + OPEN_COST_BYTES, records + span
    return groups


def _halved(cut: list[tuple[LiveSegment, FilePiece]], splits_min: int) -> list[FilePiece]:
    """The pieces; the one with the most offsets is halved until there are ``splits_min``, or each has one
    offset."""
    cut = list(cut)
    while cut and len(cut) < splits_min:
        number, (segment, piece) = max(enumerate(cut), key=lambda item: item[1][1].end - item[1][1].start)
        span = piece.end - piece.start
        if span < 2:
            break
        cut[number : number + 1] = [(segment, part) for part in _by_offsets(segment, piece, -(-span // 2))]
    return [piece for _, piece in cut]


# The filters of a query that restrict which offsets are read. Spark applies all filters to the rows again.


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedFilters:
    """Rows of these topics and partitions (None: any), with offsets ``[low, high)`` and timestamps from
    ``from_ms`` on; all rows by default."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    low: int = 0
    high: int = LONG_MAX
    from_ms: int = -1

    def __and__(self, other: PushedFilters) -> PushedFilters:
        """The rows that pass both."""
        return PushedFilters(
            topics=_intersection(self.topics, other.topics),
            partitions=_intersection(self.partitions, other.partitions),
            low=max(self.low, other.low),
            high=min(self.high, other.high),
            from_ms=max(self.from_ms, other.from_ms),
        )

    def select(self, logs: Logs) -> Logs:
        """The logs that can have such rows."""
        return {
            topic_partition: log
            for topic_partition, log in logs.items()
            if (self.topics is None or topic_partition.topic in self.topics)
            and (self.partitions is None or topic_partition.partition in self.partitions)
        }

    def restrict(self, wanted: OffsetRange, log: ReadOnlyLog) -> OffsetRange:
        """The part of a log's range that can have such rows."""
        start, end = max(wanted.start, self.low), min(wanted.end, self.high)
        if self.from_ms >= 0 and start < end:
            # The first record with such a timestamp: every one below it is earlier, in whatever order the
            # timestamps are. An upper bound would not hold, since early records may be anywhere.
            place = log.offset_for_time(self.from_ms)
            start = end if place is None else max(start, place.offset)
        return OffsetRange(start, max(start, end))


def _intersection(one: frozenset[Value] | None, other: frozenset[Value] | None) -> frozenset[Value] | None:
    return other if one is None else one if other is None else one & other


NO_FILTERS = PushedFilters()
