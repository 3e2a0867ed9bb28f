"""Plans a read: which offsets of which logs, cut into pieces that tasks read on their own.

A ``FileSplit`` is a run of offsets of one partition in one segment's file, with a mark that identifies the
file; a ``Split`` is what one task reads: a piece of a large log, or many small ones. Both are plain and
picklable. A task reads a piece from its file if that is still the same; else it finds the piece's offsets in
the log as it is then, since a broker may have rolled, cleaned or deleted meanwhile.

Large segments are cut at batches that are found through the offset index (without one, by reading headers),
into pieces of about the same size; the limit of records cuts between any two offsets.
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
from siltstone.log.fetch import READ_COMMITTED, LogView
from siltstone.log.indexes import AbortedTransaction
from siltstone.log.lookup import batch_headers
from siltstone.log.names import CLUSTER_METADATA, TopicPartition
from siltstone.log.read_only import ReadOnlyLog, ReadOnlyLogs
from siltstone.log.segment import LiveSegment
from siltstone.tables.options import EARLIEST, LATEST, LATEST_VIEW, OffsetLimit, ReadOptions

# Many offsets in few bytes, sent to the task with a piece: the retained offsets of a view, or the hidden ones
# of a ledger.
#
# ::
#
#     base int64 | kind 1 byte | payload       little-endian
#     kind 0: the offsets less the base as uint32; kind 1: as int64; kind 2: a bit for each from the base on

_HEAD = struct.Struct("<qB")
_U32, _I64, _BITS = 0, 1, 2


def pack_offsets(offsets: Int64) -> bytes:
    """Ascending offsets (int64) in whichever form is smallest."""
    if not len(offsets):
        return _HEAD.pack(0, _U32)
    base = int(offsets[0])
    relative = offsets - base
    span = int(relative[-1]) + 1
    if span <= 32 * len(offsets):
        bits = np.zeros(span, np.bool_)
        bits[relative] = True
        return _HEAD.pack(base, _BITS) + np.packbits(bits, bitorder="little").tobytes()
    if span <= 1 << 32:
        return _HEAD.pack(base, _U32) + relative.astype("<u4").tobytes()
    return _HEAD.pack(base, _I64) + relative.astype("<i8").tobytes()


def unpack_offsets(packed: bytes) -> Int64:
    """What ``pack_offsets`` packed, ascending int64."""
    base, kind = _HEAD.unpack_from(packed)
    if kind == _BITS:
        bits = np.unpackbits(np.frombuffer(packed, np.uint8, offset=_HEAD.size), bitorder="little")
        return np.asarray(np.flatnonzero(bits) + base, np.int64)
    payload = np.frombuffer(packed, "<u4" if kind == _U32 else "<i8", offset=_HEAD.size)
    return np.asarray(payload.astype(np.int64) + base)


def between(offsets: Int64, start: int, end: int) -> Int64:
    """The ascending ``offsets`` that are in ``[start, end)``."""
    low, high = np.searchsorted(offsets, [start, end]).tolist()
    return offsets[low:high]


# The logs that a table is over: opened without a lock and without changing a byte.

Value = TypeVar("Value", str, int)
Logs = Mapping[TopicPartition, ReadOnlyLog]


def open_logs(options: ReadOptions) -> dict[TopicPartition, ReadOnlyLog]:
    """The chosen partitions of the options' directories; those of a broker's own metadata only by name.

    Raises what ``ReadOnlyLogs`` raises, and UnknownTopicError.
    """
    with ReadOnlyLogs(options.paths) as logs:
        return {where: logs[where] for where in chosen_of(logs, options)}


def open_directories(options: ReadOptions) -> dict[TopicPartition, Path]:
    """The chosen partitions' directories; their logs are not opened. Raises as ``open_logs``."""
    with ReadOnlyLogs(options.paths) as logs:
        return {where: logs.directory_of(where) for where in chosen_of(logs, options)}


def chosen_of(logs: ReadOnlyLogs, options: ReadOptions) -> list[TopicPartition]:
    """The chosen partitions of the directories. Raises UnknownTopicError."""
    named = options.selection.assign is not None or options.selection.subscribe is not None
    present = [where for where in logs if named or where.topic != CLUSTER_METADATA or len(logs) == 1]
    return options.selection.of(present)


def open_again(directory: Path | str, where: TopicPartition) -> ReadOnlyLog:
    """One partition as it is now, from its own directory."""
    with ReadOnlyLogs([directory]) as logs:
        return logs[where]


def readable_end(log: ReadOnlyLog, isolation: str) -> int:
    """The end of what may be read: the last stable offset, or the high watermark."""
    return log.view.last_stable_offset if isolation == READ_COMMITTED else log.view.high_watermark


# From limits to offsets, as Spark's Kafka source does it (``KafkaOffsetReader``).
#
# A limit by partition has to name every chosen partition and no other. With ``failOnDataLoss`` an offset that
# is no longer in the log, or not yet, is an error. Gaps that cleaning left are not.


class OffsetRange(NamedTuple):
    """Offsets ``[start, end)`` of one partition."""

    start: int
    end: int


def find_ranges(logs: Logs, options: ReadOptions) -> dict[TopicPartition, OffsetRange]:
    """The offsets to read of each log. Raises UsageError, OffsetOutOfRangeError."""
    limits = options.offsets
    for limit, name in ((limits.starting, "starting"), (limits.ending, "ending"), (limits.as_of, "asOf")):
        _refuse_others(limit, logs, name)
    ranges = {}
    for where, log in logs.items():
        start = _start_offset(log, options)
        end = _offset_at(log, limits.ending or OffsetLimit(every=LATEST), options)
        if limits.as_of is not None:
            end = _as_of(log, limits.as_of, options)
        elif end is None:
            end = readable_end(log, options.isolation)
        ranges[where] = OffsetRange(start, max(start, end))
    return ranges


def _refuse_others(limit: OffsetLimit | None, logs: Logs, name: str) -> None:
    if limit is None or limit.every is not None or set(limit.by_partition) == set(logs):
        return
    missing = ", ".join(map(str, sorted(set(logs) - set(limit.by_partition))))
    too_many = ", ".join(map(str, sorted(set(limit.by_partition) - set(logs))))
    raise UsageError(
        f"{name} offsets must name every partition that is read, and no other"
        + (f"; missing: {missing} (-2 is the earliest, -1 the latest)" if missing else "")
        + (f"; not read: {too_many}" if too_many else "")
    )


def _start_offset(log: ReadOnlyLog, options: ReadOptions) -> int:
    starting = options.offsets.starting or OffsetLimit(every=EARLIEST)
    start = _offset_at(log, starting, options)
    if start is not None:
        return start
    if options.offsets.latest_without_match:
        return readable_end(log, options.isolation)
    raise UsageError(
        f"{log.where}: no record at or after {starting.of(log.where)} ms; "
        "startingOffsetsByTimestampStrategy=latest starts at the end then"
    )


def _offset_at(log: ReadOnlyLog, limit: OffsetLimit, options: ReadOptions) -> int | None:
    """The offset that a limit stands for, one that the log has; None for a time after its last record."""
    first, end = log.log_start_offset, readable_end(log, options.isolation)
    offset = limit.of(log.where)
    if limit.is_time:
        place = log.offset_for_time(offset)
        return None if place is None else min(max(place.offset, first), end)
    if offset in (EARLIEST, LATEST):
        return first if offset == EARLIEST else end
    if options.offsets.fail_on_data_loss and not first <= offset <= end:
        raise OffsetOutOfRangeError(
            f"{log.where}: offset {offset} is outside {first} to {end}: deleted, or not there yet; "
            "failOnDataLoss=false reads what there is"
        )
    return min(max(offset, first), end)


def _as_of(log: ReadOnlyLog, limit: OffsetLimit, options: ReadOptions) -> int:
    """The end of the log as it was: behind an offset, or before the first record that is later."""
    end, last = readable_end(log, options.isolation), limit.of(log.where)
    if limit.is_time:
        place = log.offset_for_time(last + 1)
        end = end if place is None else min(place.offset, end)
    else:
        end = min(last + 1, end)
    if options.offsets.fail_on_data_loss:
        _refuse_unknown_past(log, end, options)
    return end


def _refuse_unknown_past(log: ReadOnlyLog, end: int, options: ReadOptions) -> None:
    """Refuse a past state of which records may have been deleted or cleaned since."""
    if end < log.log_start_offset:
        raise OffsetOutOfRangeError(
            f"{log.where}: as of offset {end - 1}, but all before {log.log_start_offset} was deleted; "
            "failOnDataLoss=false reads what there is"
        )
    cleaned = log.first_dirty_offset
    if options.view == LATEST_VIEW and end < cleaned:
        raise OffsetOutOfRangeError(
            f"{log.where}: as of offset {end - 1}, but the log is cleaned up to {cleaned}: values that were "
            "the latest then may be discarded; failOnDataLoss=false reads what there is"
        )


OPEN_COST = 4 << 20
"""The cost of a task, in bytes that it could have read in its time: smaller pieces share a task (Spark's
``files.openCostInBytes``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSplit:
    """Offsets ``[start, end)`` of a partition, in bytes ``[position, end_position)`` of one segment's file.

    ``mark`` identifies the file on every machine. ``size``: the piece's share of these bytes, where two
    pieces read one batch. ``aborted``: transactions whose records are not read. ``retained``: None, or the
    offsets to read; ``hidden``: None, or the offsets not to read (``pack_offsets``).
    """

    where: TopicPartition
    directory: str
    base_offset: int
    mark: files.FileMark
    start: int
    end: int
    position: int
    end_position: int
    size: int
    aborted: tuple[AbortedTransaction, ...] = ()
    retained: bytes | None = None
    hidden: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRange:
    """Offsets of a partition that are read from one view of a directory, without the ``hidden`` ones."""

    where: TopicPartition
    directory: str
    view: LogView
    wanted: OffsetRange
    hidden: Int64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What one task reads, piece after piece; of a table of files, ``paths``: files, each with its partition,
    None for a file of the log directory."""

    pieces: tuple[FileSplit, ...] = ()
    paths: tuple[tuple[str, TopicPartition | None], ...] = ()


def view_range(log: ReadOnlyLog, wanted: OffsetRange) -> ViewRange:
    """Offsets of a log as they are read from its own directory."""
    return ViewRange(where=log.where, directory=str(log.directory), view=log.view, wanted=wanted)


def split_ranges(ranges: Iterable[ViewRange], options: ReadOptions) -> list[Split]:
    """Cut offset ranges into splits, as ``options.splitting`` says, in their order.

    Empty ranges give nothing.
    """
    whole = [pair for source in ranges for pair in _by_segment(source, options.isolation)]
    target = _target([piece for _, piece in whole], options)
    cut = [part for segment, piece in whole for part in _cut(segment, piece, target)]
    most = options.splitting.max_records_per_partition
    if most is not None:
        cut = [part for piece in cut for part in _by_records(piece, most)]
    groups = _packed(cut, target, most)
    wanted = options.splitting.min_partitions or 1
    if len(groups) < wanted:
        groups = [[piece] for piece in _divided(cut, wanted)]
    return [Split(pieces=tuple(map(_with_own_aborted, group))) for group in groups]


def _with_own_aborted(piece: FileSplit) -> FileSplit:
    own = aborted_among(piece.aborted, piece.start, piece.end)
    return piece if len(own) == len(piece.aborted) else replace(piece, aborted=own)


def _target(pieces: list[FileSplit], options: ReadOptions) -> int:
    """Bytes of a split: Spark's rule for files (``maxSplitBytes``), by the cores of this machine by
    default."""
    total = sum(piece.size for piece in pieces)
    splitting = options.splitting
    if splitting.min_partitions is not None:
        return max(1, min(splitting.max_partition_bytes, total // splitting.min_partitions))
    for_a_core = (total + OPEN_COST * len(pieces)) // (os.cpu_count() or 1)
    return max(1, min(splitting.max_partition_bytes, max(OPEN_COST, for_a_core)))


def _by_segment(source: ViewRange, isolation: str) -> Iterator[tuple[LiveSegment, FileSplit]]:
    """A piece for every segment that holds some of the offsets."""
    view, wanted = source.view, source.wanted
    aborted = aborted_of(view, wanted) if isolation == READ_COMMITTED else ()
    for number, segment in enumerate(view.segments):
        behind = _base_behind(view, number)
        start, end = max(wanted.start, segment.base_offset), min(wanted.end, behind)
        size = view.size_of(number)
        if start >= end or not size:
            continue
        first = segment.find_batch(start, size)
        # A message set's offset is its last one: its first may be below ``end``.
        if first is None or (first.base_offset >= end and first.base_offset != first.last_offset):
            continue
        end_position = size if end == behind else _end_position(segment, end, size)
        if end_position <= first.position:
            continue
        is_last = number == len(view.segments) - 1
        piece = FileSplit(
            where=source.where,
            directory=source.directory,
            base_offset=segment.base_offset,
            mark=files.FileMark.of(segment.reader.stat, may_grow=is_last),
            start=start,
            end=end,
            position=first.position,
            end_position=end_position,
            size=end_position - first.position,
            aborted=aborted,
            hidden=None if source.hidden is None else pack_offsets(between(source.hidden, start, end)),
        )
        yield segment, piece


def _base_behind(view: LogView, number: int) -> int:
    """The offset at which the next segment begins, the log's end behind the last one."""
    return view.segments[number + 1].base_offset if number + 1 < len(view.segments) else view.log_end_offset


def _end_position(segment: LiveSegment, end: int, size: int) -> int:
    """The byte behind the last batch with offsets below ``end``."""
    place = segment.find_batch(end, size)
    if place is None:
        return size
    # A message set may begin below, as above.
    is_above = place.base_offset >= end and place.base_offset != place.last_offset
    return place.position if is_above else place.position + place.size


def aborted_of(view: LogView, wanted: OffsetRange) -> tuple[AbortedTransaction, ...]:
    """All aborted transactions with records in the range: one may end in a later segment."""
    aborted = []
    for number, segment in enumerate(view.segments):
        if _base_behind(view, number) > wanted.start:
            for producer_id, first, last, stable in segment.aborted():
                aborted.append(AbortedTransaction(producer_id, first, last, stable))
                if stable >= wanted.end:
                    return aborted_among(tuple(aborted), wanted.start, wanted.end)
    return aborted_among(tuple(aborted), wanted.start, wanted.end)


def _cut(segment: LiveSegment, piece: FileSplit, target: int) -> Iterator[FileSplit]:
    """A segment's piece in parts of about ``target`` bytes, at batches."""
    count = -(-piece.size // target)
    wanted = np.linspace(piece.position, piece.end_position, count, endpoint=False).astype(np.int64)[1:]
    for offset, position in _batch_ends(segment, piece, wanted):
        if piece.start < offset < piece.end and piece.position < position < piece.end_position:
            head, piece = _cut_at(piece, offset, position, position)
            yield head
    yield piece


def _batch_ends(segment: LiveSegment, piece: FileSplit, wanted: Int64) -> Iterator[tuple[int, int]]:
    """(offset, position) behind a batch near each of the positions."""
    if len(segment.offset_index):
        for position in wanted.tolist():
            entry = segment.offset_index.first_at(position)
            if entry is None or not 0 <= entry[1] < piece.end_position:
                continue
            try:
                header = next(batch_headers(segment.reader, start=entry[1], end=piece.end_position))[0]
            except CorruptRecordError:
                continue  # the index is wrong, or the log: the task that reads it reports that
            # An entry names the last offset of what was appended at its position: no batch begins above it.
            if header["base_offset"] <= segment.base_offset + entry[0]:
                yield int(header["last_offset"]) + 1, int(header["position"] + header["size"])
    elif len(wanted):
        # Without an index the headers are read once.
        headers = batch_headers(
            segment.reader, start=piece.position, end=piece.end_position, first_read=1 << 20
        )
        for batches in headers:
            ends = batches["position"].astype(np.int64) + batches["size"]
            for row in np.unique(np.searchsorted(ends, wanted[wanted <= ends[-1]])).tolist():
                yield int(batches["last_offset"][row]) + 1, int(ends[row])
            wanted = wanted[wanted > ends[-1]]
            if not len(wanted):
                return


def _cut_at(piece: FileSplit, offset: int, position: int, end_position: int) -> tuple[FileSplit, FileSplit]:
    """Two pieces: offsets below and from ``offset`` on; the bytes may overlap in a batch."""
    head = replace(piece, end=offset, end_position=end_position, size=end_position - piece.position)
    tail = replace(piece, start=offset, position=position, size=piece.end_position - position)
    return head, tail


def aborted_among(
    aborted: tuple[AbortedTransaction, ...], start: int, end: int
) -> tuple[AbortedTransaction, ...]:
    """The transactions that may have records in ``[start, end)``."""
    return tuple(txn for txn in aborted if txn.last_offset >= start and txn.first_offset < end)


def _by_records(piece: FileSplit, most: int) -> Iterator[FileSplit]:
    """Parts of at most ``most`` offsets. Each has the piece's bytes; its task skips the others' batches."""
    while piece.end - piece.start > most:
        share = piece.size * most // (piece.end - piece.start)
        head, tail = _cut_at(piece, piece.start + most, piece.position, piece.end_position)
        yield replace(head, size=share)
        piece = replace(tail, size=piece.size - share)
    yield piece


def _packed(pieces: Iterable[FileSplit], target: int, most: int | None) -> list[list[FileSplit]]:
    """Neighbouring pieces together, a group for a split, as long as it stays within ``target``."""
    splits: list[list[FileSplit]] = []
    size = records = 0
    for piece in pieces:
        span = piece.end - piece.start
        if splits and size + piece.size <= target and (most is None or records + span <= most):
            splits[-1].append(piece)
        else:
            splits.append([piece])
            size = records = 0
        size, records = size + piece.size + OPEN_COST, records + span
    return splits


def _divided(cut: list[FileSplit], wanted: int) -> list[FileSplit]:
    """The pieces, those with the most offsets halved until there are as many as wanted, or each has one
    offset."""
    pieces = list(cut)
    while pieces and len(pieces) < wanted:
        number = max(range(len(pieces)), key=lambda at: pieces[at].end - pieces[at].start)
        piece = pieces[number]
        if piece.end - piece.start < 2:
            break
        pieces[number : number + 1] = _by_records(piece, -(-(piece.end - piece.start) // 2))
    return pieces


# What a query's filters leave of a table: an upper bound, to read less. Spark filters the rows again.


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """Rows whose topic and partition are among some (None: any), offsets ``[low, high)``, times from
    ``from_ms`` on."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    low: int = 0
    high: int = LONG_MAX
    from_ms: int = -1

    def __and__(self, other: Predicate) -> Predicate:
        """What both leave."""
        return Predicate(
            topics=_both(self.topics, other.topics),
            partitions=_both(self.partitions, other.partitions),
            low=max(self.low, other.low),
            high=min(self.high, other.high),
            from_ms=max(self.from_ms, other.from_ms),
        )

    def chosen(self, logs: Logs) -> Logs:
        """The logs that can have such rows."""
        return {
            where: log
            for where, log in logs.items()
            if (self.topics is None or where.topic in self.topics)
            and (self.partitions is None or where.partition in self.partitions)
        }

    def narrowed(self, wanted: OffsetRange, log: ReadOnlyLog) -> OffsetRange:
        """What of a log's range can have such rows: times by its time index."""
        start, end = max(wanted.start, self.low), min(wanted.end, self.high)
        if self.from_ms >= 0 and start < end:
            place = log.offset_for_time(self.from_ms)
            start = end if place is None else max(start, place.offset)
        return OffsetRange(start, max(start, end))


def _both(one: frozenset[Value] | None, other: frozenset[Value] | None) -> frozenset[Value] | None:
    return other if one is None else one if other is None else one & other


EVERYTHING = Predicate()
