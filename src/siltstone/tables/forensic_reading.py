"""A split read with what its batches say: the slower, closer look of ``forensics``.

Rows and columns are those of ``reading``, and behind them what was asked for. A bad batch is a row of the
piece in whose offsets it begins.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from siltstone import files
from siltstone.arrow.batches import record_batch, schema
from siltstone.config import LONG_MAX
from siltstone.errors import CorruptFileError
from siltstone.log.fetch import READ_COMMITTED, AbortedTransaction
from siltstone.log.names import TopicPartition
from siltstone.log.reading import Polled
from siltstone.log.segments import list_segments
from siltstone.log.service.read_only import ReadOnlyLog
from siltstone.records.columns import select
from siltstone.tables.bounds import OffsetRange, find_ranges
from siltstone.tables.forensics import (
    BAD_COLUMN,
    BATCH_COLUMN,
    BATCH_FIELDS,
    Judged,
    batch_array,
    batch_rows,
    judged_batches,
    with_forensics,
)
from siltstone.tables.opened import open_again, open_directories, readable_end
from siltstone.tables.options import ReadOptions
from siltstone.tables.reading import BATCH_ROWS, open_piece, pieces_now, wanted_batches
from siltstone.tables.splits import Piece, SourceFile, Split

_logger = logging.getLogger("siltstone")


def is_close(options: ReadOptions) -> bool:
    """Is a closer look asked for?"""
    return options.batch_metadata or options.quarantine


def close_schema(options: ReadOptions) -> pa.Schema:
    """The table's columns with those of the closer look. Raises UsageError."""
    plain = schema(options.columns, include_headers=options.include_headers)
    return with_forensics(plain, batch=options.batch_metadata, quarantine=options.quarantine)


def plan_closely(options: ReadOptions) -> list[Split]:
    """For ``badBatches=quarantine``: every segment's whole file, since a damaged log seems to end there.

    A split a segment. What is above the last stable offset or the high watermark is left out, where that is
    not the log's end. A log that is too damaged to be opened is read whole, if no offsets are asked for:
    aborted transactions are not told then. Raises as ``planning.plan``.
    """
    directories, logs = open_directories(options), {}
    for where, directory in directories.items():
        try:
            logs[where] = open_again(directory, where)
        except CorruptFileError as error:
            if options.starting is not None or options.ending is not None:
                raise
            _logger.warning("%s: cannot be opened (%s): its files are read as they are", directory, error)
    ranges = find_ranges(logs, options)
    found = []
    for where, directory in directories.items():
        limits = OffsetRange(0, LONG_MAX)
        aborted: tuple[AbortedTransaction, ...] = ()
        if where in logs:
            limits, aborted = _limits(logs[where], ranges[where], options), _aborted(logs[where], options)
        pieces = _whole_files(where, directory, limits, aborted)
        found += [Split(pieces=(piece,)) for piece in pieces]
    return found


def _limits(log: ReadOnlyLog, wanted: OffsetRange, options: ReadOptions) -> OffsetRange:
    is_open = options.ending is None and readable_end(log, options.isolation) == log.log_end_offset
    return OffsetRange(wanted.start, LONG_MAX if is_open else wanted.end)


def _aborted(log: ReadOnlyLog, options: ReadOptions) -> tuple[AbortedTransaction, ...]:
    return tuple(
        AbortedTransaction(producer_id, first, last)
        for segment in (log.view.segments if options.isolation == READ_COMMITTED else ())
        for producer_id, first, last, _ in segment.aborted()
    )


def _whole_files(
    where: TopicPartition, directory: Path, limits: OffsetRange, aborted: tuple[AbortedTransaction, ...]
) -> Iterator[Piece]:
    segments = list_segments(directory)
    for segment, following in itertools.zip_longest(segments, segments[1:]):
        behind = LONG_MAX if following is None else following.base_offset
        start, end = max(limits.start, segment.base_offset), min(limits.end, behind)
        if start < end and segment.size:
            yield Piece(
                where=where,
                directory=str(directory),
                file=SourceFile(
                    segment.base_offset,
                    segment.size,
                    files.FileMark(segment.inode, segment.size, segment.modified_ns, following is None),
                ),
                start=start,
                end=end,
                position=0,
                end_position=segment.size,
                size=segment.size,
                aborted=aborted,
            )


def read_closely(split: Split, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The split's records, and its bad batches, as Arrow batches of ``close_schema``.

    Raises CorruptRecordError unless ``badBatches=quarantine``, else as ``reading.read_split``.
    """
    for piece in split.pieces:
        yield from _read_piece(piece, options)


def _read_piece(piece: Piece, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    reader = open_piece(piece)
    if reader is None:
        for part in pieces_now(piece, options):
            yield from _read_piece(part, options)
        return
    with reader:
        found = judged_batches(
            reader,
            piece.position,
            piece.end_position,
            piece.start,
            quarantine=options.quarantine,
            batch_limit=options.max_decompressed_message_bytes,
        )
        for judged in found:
            if judged.columns is not None:
                yield from _records(piece, judged, reader.path, options)
            elif piece.start <= judged.offset < piece.end:
                yield _bad(piece.where, judged, reader.path, options)


def _records(piece: Piece, judged: Judged, path: str, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    assert judged.columns is not None
    columns, batches = judged.columns, judged.batches
    counts = wanted_batches(piece, batches)[columns.batch]
    counts &= (columns.offset >= piece.start) & (columns.offset < piece.end)
    rows = np.flatnonzero(counts)
    plain = schema(options.columns, include_headers=options.include_headers)
    wanted = close_schema(options)
    for first in range(0, len(rows), BATCH_ROWS):
        some = select(columns, rows[first : first + BATCH_ROWS])
        made = record_batch(Polled(columns=some, batches=batches), plain, piece.where)
        arrays = list(made.columns)
        if options.batch_metadata:
            arrays.append(batch_array(batches, judged.valid, path, some))
        if options.quarantine:
            arrays.append(pa.nulls(len(some), pa.string()))
        yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _bad(where: TopicPartition, judged: Judged, path: str, options: ReadOptions) -> pa.RecordBatch:
    """One row: the reason instead of the records."""
    known = {"topic": where.topic, "partition": where.partition, "offset": judged.offset}
    wanted = close_schema(options)
    arrays = []
    for field in wanted:
        if field.name == BATCH_COLUMN:
            arrays.append(_header_of(judged, path))
        else:
            value = judged.reason if field.name == BAD_COLUMN else known.get(field.name)
            arrays.append(pa.array([value], field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _header_of(judged: Judged, path: str) -> pa.Array:
    if len(judged.batches):
        first = judged.batches["base_offset"].astype(np.int64)
        return batch_rows(judged.batches, judged.valid, path, np.zeros(1, np.int32), first)
    place = {"file": path, "position": judged.position, "size": min(judged.size, (1 << 31) - 1)}
    return pa.array([{**place, "crcValid": False}], BATCH_FIELDS)
