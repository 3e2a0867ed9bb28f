"""Planning: what is to be read, cut into pieces that tasks read on their own.

A ``Piece`` is a run of offsets of one partition, with the files that hold them as they were found; a
``Split`` is what one task reads: a piece of a large log, or many small ones. Both are plain and picklable.
A piece is read from its files if they are still those, and by its offsets anew if not: a broker may have
rolled, cleaned or deleted meanwhile.

Large segments are cut at batches that the offset index knows, into pieces of about the same size.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from siltstone import files
from siltstone.errors import CorruptRecordError
from siltstone.log.fetch import READ_COMMITTED, AbortedTransaction, LogView
from siltstone.log.live_segment import LiveSegment
from siltstone.log.lookup import batch_headers
from siltstone.log.names import TopicPartition
from siltstone.log.service.read_only import ReadOnlyLog
from siltstone.records.layout import Int64
from siltstone.tables.bounds import OffsetRange
from siltstone.tables.offsets import between, pack_offsets
from siltstone.tables.options import ReadOptions

OPEN_COST = 4 << 20
"""What a task costs, in bytes that it could have read meanwhile: smaller pieces are put together."""
_LARGEST_RELATIVE = (1 << 31) - 1


class SourceFile(NamedTuple):
    """A segment's log as it was found: ``size`` in bytes is what of it may be read, ``mark`` what it is known
    by on every machine."""

    base_offset: int
    size: int
    mark: files.FileMark


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Offsets ``[start, end)`` of a partition, in bytes ``[position, end_position)`` of one segment's file.

    ``size``: the bytes that count for this piece, where two share a batch. ``aborted``: the transactions
    whose records do not count. ``winners``: None, or which records stay; ``hidden``: None, or which do not
    (``pack_offsets``).
    """

    where: TopicPartition
    directory: str
    file: SourceFile
    start: int
    end: int
    position: int
    end_position: int
    size: int
    aborted: tuple[AbortedTransaction, ...] = ()
    winners: bytes | None = None
    hidden: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Offsets of a partition that are read from one view of a directory, without the ``hidden`` ones."""

    where: TopicPartition
    directory: str
    view: LogView
    wanted: OffsetRange
    hidden: Int64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What one task reads, piece after piece."""

    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Bytes that are about to be read."""
        return sum(piece.size for piece in self.pieces)


def split_ranges(
    logs: Mapping[TopicPartition, ReadOnlyLog],
    ranges: Mapping[TopicPartition, OffsetRange],
    options: ReadOptions,
) -> list[Split]:
    """Cut offset ranges into splits of about ``options.max_partition_bytes``, at least ``min_partitions``.

    In order of partition and offset. Empty ranges give nothing.
    """
    return split_sources(
        [
            Source(
                where=where, directory=str(logs[where].directory), view=logs[where].view, wanted=ranges[where]
            )
            for where in sorted(ranges)
        ],
        options,
    )


def split_sources(sources: Iterable[Source], options: ReadOptions) -> list[Split]:
    """As ``split_ranges``, in the order of the sources."""
    whole = [(each, piece) for each in sources for piece in _by_segment(each, options.isolation)]
    target = _target([piece for _, piece in whole], options)
    cut = [part for source, piece in whole for part in _cut(source.view, piece, target)]
    if options.max_records_per_partition is not None:
        cut = [part for piece in cut for part in _by_records(piece, options.max_records_per_partition)]
    splits = _packed(cut, target, options)
    wanted = options.min_partitions or 1
    return splits if len(splits) >= wanted else _divided(cut, wanted)


def _target(pieces: list[Piece], options: ReadOptions) -> int:
    """Bytes of a split: Spark's rule for files, with the cores of this machine where nothing is asked for."""
    total = sum(piece.size for piece in pieces)
    if options.min_partitions is not None:
        return max(1, min(options.max_partition_bytes, total // options.min_partitions))
    each = (total + OPEN_COST * len(pieces)) // (os.cpu_count() or 1)
    return max(1, min(options.max_partition_bytes, max(OPEN_COST, each)))


def _by_segment(source: Source, isolation: str) -> Iterator[Piece]:
    """A piece for every segment that holds some of the offsets."""
    view, wanted = source.view, source.wanted
    aborted = _aborted(view, wanted) if isolation == READ_COMMITTED else ()
    for number, segment in enumerate(view.segments):
        behind = _base_behind(view, number)
        start, end = max(wanted.start, segment.base_offset), min(wanted.end, behind)
        size = view.size_of(number)
        if start >= end or not size:
            continue
        first = segment.place_of(start, size)
        if first is None or (first.base_offset >= end and first.base_offset != first.last_offset):
            continue
        end_position = size if end == behind else _end_position(segment, end, size)
        if end_position <= first.position:
            continue
        yield Piece(
            where=source.where,
            directory=source.directory,
            file=_source(segment, size, is_last=number == len(view.segments) - 1),
            start=start,
            end=end,
            position=first.position,
            end_position=end_position,
            size=end_position - first.position,
            aborted=tuple(each for each in aborted if each.last_offset >= start and each.first_offset < end),
            hidden=None if source.hidden is None else pack_offsets(between(source.hidden, start, end)),
        )


def _base_behind(view: LogView, number: int) -> int:
    """The offset at which the next segment begins, the log's end behind the last one."""
    return view.segments[number + 1].base_offset if number + 1 < len(view.segments) else view.log_end_offset


def _end_position(segment: LiveSegment, end: int, size: int) -> int:
    """The byte behind the last batch with offsets below ``end``."""
    place = segment.place_of(end, size)
    if place is None:
        return size
    # A message set's offset is its last one: its first may be below.
    is_above = place.base_offset >= end and place.base_offset != place.last_offset
    return place.position if is_above else place.position + place.size


def _source(segment: LiveSegment, size: int, *, is_last: bool) -> SourceFile:
    mark = files.FileMark.of(segment.reader.stat, may_grow=is_last)
    return SourceFile(segment.base_offset, size, mark)


def _aborted(view: LogView, wanted: OffsetRange) -> tuple[AbortedTransaction, ...]:
    """All aborted transactions with records in the range: one may end in a later segment."""
    found = []
    for number, segment in enumerate(view.segments):
        if _base_behind(view, number) > wanted.start:
            for producer_id, first, last, stable in segment.aborted():
                if last >= wanted.start and first < wanted.end:
                    found.append(AbortedTransaction(producer_id, first, last))
                if stable >= wanted.end:
                    return tuple(found)
    return tuple(found)


def _cut(view: LogView, piece: Piece, target: int) -> Iterator[Piece]:
    """A segment's piece in parts of about ``target`` bytes, at batches."""
    count = -(-piece.size // target)
    (segment,) = (each for each in view.segments if each.base_offset == piece.file.base_offset)
    wanted = np.linspace(piece.position, piece.end_position, count, endpoint=False).astype(np.int64)[1:]
    for offset, position in _places_behind(segment, piece, wanted.tolist()):
        if not piece.start < offset < piece.end or not piece.position < position < piece.end_position:
            continue
        head, piece = _cut_at(piece, offset, position, position)
        yield head
    yield piece


def _places_behind(segment: LiveSegment, piece: Piece, wanted: list[int]) -> Iterator[tuple[int, int]]:
    """(offset, position) of a batch's end near each of the positions."""
    if not wanted:
        return
    if not len(segment.offset_index):
        yield from _places_by_headers(segment, piece, wanted)
        return
    for position in wanted:
        entry = segment.offset_index.first_at(position)
        if entry is None or not 0 <= entry[1] < piece.end_position:
            continue
        try:
            header = next(batch_headers(segment.reader, start=entry[1], end=piece.end_position))[0]
        except CorruptRecordError:
            continue  # the index is wrong, or the log: who reads it will say so
        if header["base_offset"] <= segment.base_offset + entry[0]:
            yield int(header["last_offset"]) + 1, int(header["position"] + header["size"])


def _places_by_headers(segment: LiveSegment, piece: Piece, wanted: list[int]) -> Iterator[tuple[int, int]]:
    """Without an index the headers are gone through once."""
    waiting = iter(wanted)
    position = next(waiting)
    headers = batch_headers(segment.reader, start=piece.position, end=piece.end_position, first_read=1 << 20)
    for batches in headers:
        ends = batches["position"].astype(np.int64) + batches["size"]
        row = int(np.searchsorted(ends, position))
        while row < len(ends):
            yield int(batches["last_offset"][row]) + 1, int(ends[row])
            following = next((each for each in waiting if each > ends[row]), None)
            if following is None:
                return
            position = following
            row = int(np.searchsorted(ends, position))


def _cut_at(piece: Piece, offset: int, position: int, end_position: int) -> tuple[Piece, Piece]:
    """Two pieces: offsets below and from ``offset`` on; the bytes may overlap in a batch."""
    head = dataclasses.replace(
        piece, end=offset, end_position=end_position, size=end_position - piece.position
    )
    tail = dataclasses.replace(piece, start=offset, position=position, size=piece.end_position - position)
    return _with_own_aborted(head), _with_own_aborted(tail)


def _with_own_aborted(piece: Piece) -> Piece:
    if not piece.aborted:
        return piece
    own = tuple(
        each for each in piece.aborted if each.last_offset >= piece.start and each.first_offset < piece.end
    )
    return dataclasses.replace(piece, aborted=own)


def _by_records(piece: Piece, most: int) -> Iterator[Piece]:
    """Parts of at most ``most`` offsets; the batches at their edges are read by both."""
    while piece.end - piece.start > most:
        share = piece.size * most // (piece.end - piece.start)
        head, tail = _cut_at(piece, piece.start + most, piece.position, piece.end_position)
        yield dataclasses.replace(head, size=share)
        piece = dataclasses.replace(tail, size=piece.size - share)
    yield piece


def _packed(pieces: Iterable[Piece], target: int, options: ReadOptions) -> list[Split]:
    """Pieces next to each other in one split as long as it stays within ``target``."""
    most = options.max_records_per_partition
    splits: list[list[Piece]] = []
    size = records = 0
    for piece in pieces:
        span = piece.end - piece.start
        if splits and size + piece.size <= target and (most is None or records + span <= most):
            splits[-1].append(piece)
        else:
            splits.append([piece])
            size = records = 0
        size, records = size + piece.size + OPEN_COST, records + span
    return [Split(pieces=tuple(each)) for each in splits]


def _divided(cut: list[Piece], wanted: int) -> list[Split]:
    """A split a piece, those with the most offsets halved until there are as many as wanted, or one offset
    each."""
    pieces = list(cut)
    while pieces and len(pieces) < wanted:
        number = max(range(len(pieces)), key=lambda each: pieces[each].end - pieces[each].start)
        piece = pieces[number]
        if piece.end - piece.start < 2:
            break
        pieces[number : number + 1] = _by_records(piece, -(-(piece.end - piece.start) // 2))
    return [Split(pieces=(piece,)) for piece in pieces]
