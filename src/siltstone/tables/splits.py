"""Plans which offsets of which logs a query reads, cut into splits for its tasks.

::

    logs ─ offset_ranges ─► OffsetRange of each log ─ by segment ─► FileSplit ─ cut, grouped ─► TaskSplit

A ``FileSplit`` is a range of offsets of one partition in one segment's file, with the identity of the file. A
``TaskSplit`` is what one task reads: a file split of a large log, or many small ones. Both are plain and
picklable. A task reads a file split from its file if that is still the same file. If it is not, the task
looks the offsets up in the log as it is then: a broker may have rolled, cleaned or deleted segments
meanwhile.

Large segments are cut into file splits of about the same size, at batches that the offset index points to.
``maxRecordsPerPartition`` counts offsets, and may cut within a batch. Both file splits then have that batch
in their bytes, and each task keeps only the records in its own offsets.
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
from siltstone.base.errors import CorruptRecordError, OffsetOutOfRangeError, UnknownTopicError, UsageError
from siltstone.base.records.layout import CODEC_MASK, MAGIC_POSITION, Int64
from siltstone.log.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_COMMITTED, LogView
from siltstone.log.indexes import LARGEST_RELATIVE_OFFSET, AbortedTransaction
from siltstone.log.lookup import BatchPosition, position_of_offset
from siltstone.log.names import CLUSTER_METADATA, TopicPartition
from siltstone.log.read_only import ReadOnlyLog, ReadOnlyLogs
from siltstone.log.segment import LiveSegment
from siltstone.tables.options import LATEST_VIEW, OffsetLimit, ReadOptions, RowFilter

# Many offsets in few bytes, sent to a task with its file split: those to read (``retained``), or those not to
# read (``superseded``).
#
# ::
#
#     base int64 | width 1 byte | payload      little-endian
#     width 4 or 8: each offset minus base, in this many bytes; 0: a bitmap of the offsets from base on

_HEADER = struct.Struct("<qB")
_BITMAP_WIDTH = 0


def encode_offsets(offsets: Int64) -> bytes:
    """Ascending offsets (int64) as bytes, in the format that takes the fewest of the three."""
    if not len(offsets):
        return _HEADER.pack(0, _BITMAP_WIDTH)
    base = int(offsets[0])
    relative = offsets - base
    span = int(relative[-1]) + 1
    if span <= 32 * len(offsets):  # the bitmap is no larger than 4 bytes an offset
        bits = np.zeros(span, np.bool_)
        bits[relative] = True
        return _HEADER.pack(base, _BITMAP_WIDTH) + np.packbits(bits, bitorder="little").tobytes()
    width = 4 if span <= 1 << 32 else 8
    return _HEADER.pack(base, width) + relative.astype(f"<u{width}").tobytes()


def decode_offsets(encoded: bytes) -> Int64:
    """The offsets that ``encode_offsets`` encoded, ascending int64."""
    base, width = _HEADER.unpack_from(encoded)
    if width == _BITMAP_WIDTH:
        bits = np.unpackbits(np.frombuffer(encoded, np.uint8, offset=_HEADER.size), bitorder="little")
        return np.asarray(np.flatnonzero(bits) + base, np.int64)
    payload = np.frombuffer(encoded, f"<u{width}", offset=_HEADER.size)
    return np.asarray(payload.astype(np.int64) + base)


def offsets_in(offsets: Int64, start: int, end: int) -> Int64:
    """The ascending ``offsets`` that are in ``[start, end)``."""
    low, high = np.searchsorted(offsets, [start, end]).tolist()
    return offsets[low:high]


# The logs of a table, opened without a lock and without changing a byte.

Logs = Mapping[TopicPartition, ReadOnlyLog]


def open_logs(options: ReadOptions) -> dict[TopicPartition, ReadOnlyLog]:
    """The selected logs of ``options.paths``. Raises UnknownTopicError, and what ``ReadOnlyLogs`` raises."""
    with ReadOnlyLogs(options.directories) as logs:
        return {
            topic_partition: logs[topic_partition] for topic_partition in selected_partitions(logs, options)
        }


def partition_directories(options: ReadOptions) -> dict[TopicPartition, Path]:
    """The selected partitions' directories; their logs are not opened. Raises as ``open_logs``."""
    with ReadOnlyLogs(options.directories) as logs:
        return {
            topic_partition: logs.directory_of(topic_partition)
            for topic_partition in selected_partitions(logs, options)
        }


def selected_partitions(logs: ReadOnlyLogs, options: ReadOptions) -> list[TopicPartition]:
    """The selected partitions of the directories that ``row_filter`` lets through. Raises UnknownTopicError.

    ``__cluster_metadata`` is selected only by name, or if the directory has no other partition.
    """
    is_named = options.selection.assign is not None or options.selection.subscribe is not None
    present = [
        topic_partition
        for topic_partition in logs
        if is_named or topic_partition.topic != CLUSTER_METADATA or len(logs) == 1
    ]
    selected = options.selection.select_from(present)
    numbers = options.row_filter.partitions
    if numbers is None:
        return selected
    missing = sorted(numbers - {topic_partition.partition for topic_partition in selected})
    if missing:
        raise UnknownTopicError(
            f"no selected topic has partition {', '.join(map(str, missing))}",
            path=", ".join(options.paths),
            advice="siltstone topics --describe shows what there is",
        )
    return [topic_partition for topic_partition in selected if topic_partition.partition in numbers]


def reopen_log(directory: Path | str, topic_partition: TopicPartition) -> ReadOnlyLog:
    """One partition's log as it is now, from its own directory."""
    with ReadOnlyLogs([directory]) as logs:
        return logs[topic_partition]


# Offset limits (``OffsetLimit``) become offsets of each log, as in Spark's ``KafkaOffsetReader``.
#
# A limit by partition must name every selected partition and no other. With ``failOnDataLoss`` an offset that
# is no longer in the log, or not yet, is an error. A gap that a cleaning left is not an error.

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
        end = _offset_of_limit(log, options.ending or OffsetLimit(every_partition=LATEST_TIMESTAMP), options)
        if options.as_of is not None:
            end = _end_as_of(log, options.as_of, options)
        elif end is None:  # no record is as late as the ending time
            end = log.view.readable_end(options.isolation)
        ranges[topic_partition] = OffsetRange(start, max(start, end))
    return ranges


def _require_exact_partitions(limit: OffsetLimit | None, logs: Logs, name: str) -> None:
    """Raises UsageError if a limit by partition does not name exactly the partitions of ``logs``. ``name``:
    the option's."""
    if limit is None or limit.every_partition is not None or set(limit.by_partition) == set(logs):
        return
    missing = ", ".join(map(str, sorted(set(logs) - set(limit.by_partition))))
    too_many = ", ".join(map(str, sorted(set(limit.by_partition) - set(logs))))
    # Only startingOffsets and endingOffsets take -2 and -1: the other options by partition refuse them.
    earliest_and_latest = ", with -2 for its earliest offset and -1 for its latest"
    raise UsageError(
        f"option {name}: it does not name the partitions that are read"
        + (f"; missing: {missing}" if missing else "")
        + (f"; not read: {too_many}" if too_many else ""),
        advice="name every partition that is read and no other"
        + ("" if limit.is_time or name == "asOf" else earliest_and_latest),
    )


def _start_offset(log: ReadOnlyLog, options: ReadOptions) -> int:
    """The first offset to read of a log. Raises UsageError, OffsetOutOfRangeError."""
    starting = options.starting or OffsetLimit(every_partition=EARLIEST_TIMESTAMP)
    start = _offset_of_limit(log, starting, options)
    if start is not None:
        return start
    if options.latest_if_no_match:
        return log.view.readable_end(options.isolation)
    raise UsageError(
        f"no record has a timestamp of {starting.value_for(log.topic_partition)} ms or later",
        path=str(log.topic_partition),
        advice="set startingOffsetsByTimestampStrategy=latest to start at the end of the log",
    )


def _offset_of_limit(log: ReadOnlyLog, limit: OffsetLimit, options: ReadOptions) -> int | None:
    """The log's offset for a limit: the offset itself, or the first record at or after a time (None without
    such a record)."""
    first, end = log.log_start_offset, log.view.readable_end(options.isolation)
    value = limit.value_for(log.topic_partition)
    if limit.is_time:
        record = log.offset_for_time(value)
        return None if record is None else min(max(record.offset, first), end)
    if value in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP):
        return first if value == EARLIEST_TIMESTAMP else end
    if options.fail_on_data_loss and not first <= value <= end:
        raise OffsetOutOfRangeError(
            f"offset {value} is outside {first} to {end}: its records were deleted, or do not exist yet",
            path=str(log.topic_partition),
            advice=READ_WHAT_IS_LEFT,
        )
    return min(max(value, first), end)


def _end_as_of(log: ReadOnlyLog, limit: OffsetLimit, options: ReadOptions) -> int:
    """The end of the log as of an offset (the one after it), or as of a time (the first later record)."""
    end, last = log.view.readable_end(options.isolation), limit.value_for(log.topic_partition)
    if limit.is_time:
        record = log.offset_for_time(last + 1)
        end = end if record is None else min(record.offset, end)
    else:
        end = min(last + 1, end)
    if options.fail_on_data_loss:
        _refuse_unknown_past(log, end, options)
    return end


def _refuse_unknown_past(log: ReadOnlyLog, end: int, options: ReadOptions) -> None:
    """Raises OffsetOutOfRangeError if records below ``end`` may have been deleted or cleaned since."""
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
"""The cost of opening a file, as the bytes that a task could have read in that time. Small file splits
therefore share a task (``spark.sql.files.openCostInBytes``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSplit:
    """Offsets ``[start, end)`` of a partition, in bytes ``[position, end_position)`` of one segment's file.

    ``identity`` tells on any machine whether it is still the same file. ``size``: an estimate of the bytes of
    its own offsets, which balances splits: file splits that share a batch share its bytes. ``aborted``:
    transactions whose records are not read. ``retained``: the only offsets to read, None for all;
    ``superseded``: offsets not to read, None for none (both by ``encode_offsets``).
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
    """Offsets of a partition, to read from the segments of ``log_view``, except the ``superseded`` ones."""

    topic_partition: TopicPartition
    directory: str
    log_view: LogView
    offsets: OffsetRange
    superseded: Int64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSplit:
    """The input of one task: file splits, read one after another. A table of whole files
    (``tables.file_tables``) has ``paths`` instead, each with its partition (None: a file of the log
    directory)."""

    file_splits: tuple[FileSplit, ...] = ()
    paths: tuple[tuple[str, TopicPartition | None], ...] = ()


def snapshot_range(log: ReadOnlyLog, offsets: OffsetRange) -> SnapshotRange:
    """Offsets of a log, to read from the segments that it has now."""
    return SnapshotRange(
        topic_partition=log.topic_partition, directory=str(log.directory), log_view=log.view, offsets=offsets
    )


def split_ranges(
    ranges: Iterable[SnapshotRange], options: ReadOptions, parallelism: int | None = None
) -> list[TaskSplit]:
    """Cut offset ranges into splits within the bounds of ``options``; no split for an empty range.

    ``parallelism``: how many tasks run at the same time, by default the cores of this machine."""
    # With each file split its segment, whose offset index says where to cut.
    whole = [pair for log_range in ranges for pair in _cut_by_segment(log_range, options.isolation)]
    split_bytes = _split_bytes(
        [file_split for _, file_split in whole], options, parallelism or os.cpu_count() or 1
    )
    cut = [
        (segment, part)
        for segment, file_split in whole
        for part in _cut_by_bytes(segment, file_split, split_bytes)
    ]
    limit = options.max_records_per_partition
    if limit is not None:
        cut = [
            (segment, part)
            for segment, file_split in cut
            for part in _cut_by_offsets(segment, file_split, limit)
        ]
    groups = _group_neighbours([file_split for _, file_split in cut], split_bytes, limit)
    minimum_splits = options.min_partitions or 1
    if len(groups) < minimum_splits:
        groups = [[file_split] for file_split in _halve_largest(cut, minimum_splits)]
    return [TaskSplit(file_splits=tuple(map(_with_overlapping_transactions, group))) for group in groups]


def _with_overlapping_transactions(file_split: FileSplit) -> FileSplit:
    """The file split with only those aborted transactions that may have records in its own offsets."""
    overlapping = overlapping_transactions(file_split.aborted, file_split.start, file_split.end)
    return (
        file_split
        if len(overlapping) == len(file_split.aborted)
        else replace(file_split, aborted=overlapping)
    )


def _split_bytes(file_splits: list[FileSplit], options: ReadOptions, parallelism: int) -> int:
    """The size of a split in bytes, by Spark's rule for files (``FilePartition.maxSplitBytes``): about one
    split for each worker, or ``minPartitions`` splits if that is set."""
    total = sum(file_split.size for file_split in file_splits)
    if options.min_partitions is not None:
        return max(1, min(options.max_partition_bytes, total // options.min_partitions))
    bytes_per_worker = (total + OPEN_COST_BYTES * len(file_splits)) // parallelism
    return max(1, min(options.max_partition_bytes, max(OPEN_COST_BYTES, bytes_per_worker)))


def _cut_by_segment(log_range: SnapshotRange, isolation: str) -> Iterator[tuple[LiveSegment, FileSplit]]:
    """One file split for each segment that has some of the offsets."""
    log_view, offset_range = log_range.log_view, log_range.offsets
    aborted = aborted_transactions(log_view, offset_range) if isolation == READ_COMMITTED else ()
    for index, segment in enumerate(log_view.segments):
        next_base = _next_base_offset(log_view, index)
        start, end = max(offset_range.start, segment.base_offset), min(offset_range.end, next_base)
        size = log_view.size_of(index)
        if start >= end or not size:
            continue
        first = segment.find_batch(start, size)
        if first is None or _is_above(first, end):
            continue
        end_position = size if end == next_base else _end_position(segment.find_batch(end, size), end, size)
        if end_position <= first.position:
            continue
        is_last = index == len(log_view.segments) - 1
        superseded = log_range.superseded
        file_split = FileSplit(
            topic_partition=log_range.topic_partition,
            directory=log_range.directory,
            base_offset=segment.base_offset,
            identity=files.FileIdentity.of(segment.reader.stat, may_grow=is_last),
            start=start,
            end=end,
            position=first.position,
            end_position=end_position,
            size=end_position - first.position,
            aborted=aborted,
            superseded=None if superseded is None else encode_offsets(offsets_in(superseded, start, end)),
        )
        yield segment, file_split


def _next_base_offset(view: LogView, index: int) -> int:
    """The base offset of the next segment; the log's end after the last segment."""
    return view.segments[index + 1].base_offset if index + 1 < len(view.segments) else view.log_end_offset


def _is_above(batch: BatchPosition, end: int) -> bool:
    """Are all offsets of a batch at or above ``end``?

    The header of a compressed message set (v0, v1) has the offset of its last message in both fields, and its
    first message may be below ``end``. So a batch whose two offsets are equal counts as not above: if it is a
    batch of one record, the task reads it and discards that record by its offset.
    """
    return batch.base_offset >= end and batch.base_offset != batch.last_offset


def _end_position(batch: BatchPosition | None, end: int, end_of_bytes: int) -> int:
    """The byte after the last batch with offsets below ``end``.

    ``batch``: what ``find_batch(end)`` found: the first batch whose last offset is at or above ``end``."""
    if batch is None:
        return end_of_bytes
    return batch.position if _is_above(batch, end) else batch.position + batch.size


def aborted_transactions(log_view: LogView, offset_range: OffsetRange) -> tuple[AbortedTransaction, ...]:
    """All aborted transactions with records in the range. Later segments are read, too: the entry of a
    transaction is in the index of the segment where it ended."""
    aborted: list[AbortedTransaction] = []
    for index, segment in enumerate(log_view.segments):
        # Every transaction that ended later begins at or above this last stable offset, so beyond the range.
        if aborted and aborted[-1].last_stable_offset >= offset_range.end:
            break
        if _next_base_offset(log_view, index) > offset_range.start:
            aborted += segment.aborted()
    return overlapping_transactions(tuple(aborted), offset_range.start, offset_range.end)


def overlapping_transactions(
    aborted: tuple[AbortedTransaction, ...], start: int, end: int
) -> tuple[AbortedTransaction, ...]:
    """The transactions that may have records in ``[start, end)``."""
    return tuple(entry for entry in aborted if entry.last_offset >= start and entry.first_offset < end)


def _cut_by_bytes(segment: LiveSegment, file_split: FileSplit, split_bytes: int) -> Iterator[FileSplit]:
    """A segment's file split in parts of about ``split_bytes`` bytes.

    The offset index gives an offset near a position. Without an index, the parts have the same number of
    offsets.
    """
    whole, count = file_split, -(-file_split.size // split_bytes)
    for index in range(1, count):
        if len(segment.offset_index):
            # An entry is (relative offset, position): the last offset of the append at that position.
            entry = segment.offset_index.first_at_position(whole.position + whole.size * index // count)
            offset = whole.end if entry is None else segment.base_offset + entry[0] + 1
        else:
            offset = whole.start + (whole.end - whole.start) * index // count
        if file_split.start < offset < file_split.end:
            try:
                head, tail = _cut_at(segment, file_split, offset)
            except CorruptRecordError:  # the task that reads the batch reports the damage
                continue
            if tail.position > file_split.position:
                yield head
                file_split = tail
    yield file_split


def _cut_by_offsets(segment: LiveSegment, file_split: FileSplit, offsets_max: int) -> Iterator[FileSplit]:
    """A file split in parts of at most ``offsets_max`` offsets, without parts that have no batch.

    Where a cut meets a damaged batch, both sides keep all bytes, since the task that reads the batch reports
    the damage. There the next part has twice as many offsets: without the positions of batches nothing shows
    how long a gap is, and the number of cuts must not grow with it. A batch is cut into no more parts than it
    has bytes, whatever its header claims (up to 2³¹ offsets): after that many, the rest of it is one part.
    """
    step, cuts_in_batch = offsets_max, 0
    while (span := file_split.end - file_split.start) > step:
        offset, size = file_split.start + step, file_split.size * step // span
        try:
            head, tail = _cut_at(segment, file_split, offset)
            is_in_first_batch = head.position == tail.position < head.end_position
            step, cuts_in_batch = offsets_max, cuts_in_batch + 1 if is_in_first_batch else 0
        except CorruptRecordError:
            head, tail = replace(file_split, end=offset), replace(file_split, start=offset)
            step, cuts_in_batch = 2 * step, 0
        head_bytes = head.end_position - head.position
        if head_bytes:
            yield replace(head, size=size)
        file_split = replace(tail, size=file_split.size - size)
        if cuts_in_batch >= head_bytes > 0:  # ``head_bytes`` is then the size of the batch
            first = position_of_offset(
                segment.reader, file_split.start, start=file_split.position, end=file_split.end_position
            )
            assert first is not None
            step = max(step, first.last_offset + 1 - file_split.start)
    if file_split.start < file_split.end and file_split.position < file_split.end_position:
        yield file_split


def _cut_at(segment: LiveSegment, file_split: FileSplit, offset: int) -> tuple[FileSplit, FileSplit]:
    """Two file splits: the offsets below ``offset``, and those from the first one at or above it that a batch
    can have. A batch with offsets of both is in the bytes of both. The second file split is empty if there is
    no such batch.

    Raises CorruptRecordError if the search for ``offset`` meets a damaged batch.
    """
    position, end = file_split.position, file_split.end_position
    if len(segment.offset_index):
        batch = segment.find_batch(offset, end)
    else:  # The search begins at the file split, so that cuts one after another read each header once.
        batch = position_of_offset(segment.reader, offset, start=position, end=end)
    end_position = _end_position(batch, offset, end)
    head = replace(file_split, end=offset, end_position=end_position, size=end_position - position)
    if batch is None:
        return head, replace(file_split, start=file_split.end, position=end, size=0)
    start = min(max(offset, _first_offset(segment, batch)), file_split.end)
    position = max(position, batch.position)
    return head, replace(file_split, start=start, position=position, size=end - position)


def _first_offset(segment: LiveSegment, batch: BatchPosition) -> int:
    """The lowest offset that a record of the batch can have."""
    if batch.base_offset == batch.last_offset:
        magic, attributes = segment.reader.read(batch.position + MAGIC_POSITION, 2)
        if magic < 2 and attributes & CODEC_MASK:  # a message set, whose header has only its last offset
            return batch.last_offset - LARGEST_RELATIVE_OFFSET
    return batch.base_offset


def _group_neighbours(
    file_splits: Iterable[FileSplit], split_bytes: int, limit: int | None
) -> list[list[FileSplit]]:
    """Neighbouring file splits in groups of at most ``split_bytes`` bytes and ``limit`` offsets (None: any
    number); each group becomes a task split."""
    groups: list[list[FileSplit]] = []
    size = offsets = 0
    for file_split in file_splits:
        span = file_split.end - file_split.start
        if groups and size + file_split.size <= split_bytes and (limit is None or offsets + span <= limit):
            groups[-1].append(file_split)
        else:
            groups.append([file_split])
            size = offsets = 0
        size, offsets = size + file_split.size + OPEN_COST_BYTES, offsets + span
    return groups


def _halve_largest(cut: list[tuple[LiveSegment, FileSplit]], minimum_splits: int) -> list[FileSplit]:
    """Halve the file split with the most offsets until there are ``minimum_splits``, or each file split has
    one offset; returns all file splits."""
    cut = list(cut)
    while cut and len(cut) < minimum_splits:
        index, (segment, file_split) = max(enumerate(cut), key=lambda item: item[1][1].end - item[1][1].start)
        span = file_split.end - file_split.start
        if span < 2:
            break
        cut[index : index + 1] = [
            (segment, part) for part in _cut_by_offsets(segment, file_split, -(-span // 2))
        ]
    return [file_split for _, file_split in cut]


# The filters of a query that restrict which offsets are read. Spark applies all filters to the rows again.


Value = TypeVar("Value", str, int)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedFilters:
    """Rows of these topics and partitions (None: any), with offsets ``[start_offset, end_offset)`` and
    timestamps from ``from_timestamp_ms`` on (-1: any)."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    start_offset: int = 0
    end_offset: int = LONG_MAX
    from_timestamp_ms: int = -1

    def __and__(self, other: PushedFilters) -> PushedFilters:
        """The rows that pass both."""
        return PushedFilters(
            topics=_intersection(self.topics, other.topics),
            partitions=_intersection(self.partitions, other.partitions),
            start_offset=max(self.start_offset, other.start_offset),
            end_offset=min(self.end_offset, other.end_offset),
            from_timestamp_ms=max(self.from_timestamp_ms, other.from_timestamp_ms),
        )

    @classmethod
    def of(cls, row_filter: RowFilter) -> PushedFilters:
        """The restrictions of a filter of records. (Its partitions are chosen before:
        ``selected_partitions``.)"""
        return cls(
            start_offset=row_filter.start_offset or 0,
            end_offset=LONG_MAX if row_filter.end_offset is None else row_filter.end_offset,
            from_timestamp_ms=-1 if row_filter.start_ms is None else row_filter.start_ms,
        )

    def select(self, logs: Logs) -> Logs:
        """The logs that may have rows that pass the filters."""
        return {
            topic_partition: log
            for topic_partition, log in logs.items()
            if (self.topics is None or topic_partition.topic in self.topics)
            and (self.partitions is None or topic_partition.partition in self.partitions)
        }

    def restrict(self, offset_range: OffsetRange, log: ReadOnlyLog) -> OffsetRange:
        """The part of a log's range that may have rows that pass the filters."""
        start, end = max(offset_range.start, self.start_offset), min(offset_range.end, self.end_offset)
        if self.from_timestamp_ms >= 0 and start < end:
            # Every record below the first one that is late enough is too early, in whatever order timestamps
            # are. A latest time would bound no offsets: an early record may follow late ones.
            record = log.offset_for_time(self.from_timestamp_ms)
            start = end if record is None else max(start, record.offset)
        return OffsetRange(start, max(start, end))


def _intersection(one: frozenset[Value] | None, other: frozenset[Value] | None) -> frozenset[Value] | None:
    return other if one is None else one if other is None else one & other


NO_FILTERS = PushedFilters()
