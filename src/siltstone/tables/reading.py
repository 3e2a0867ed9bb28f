"""A split → Arrow batches: the records of its pieces, in order, without a Python object a record.

::

    file ─ windows ─► batches ─ wanted ones ─► columns ─ wanted rows ─► Arrow, up to ``BATCH_ROWS`` rows

``piece_records`` gives the columns themselves, for whoever makes something else of them. Windows are read
into one buffer again and again, so columns hold until the next ones are asked for; Arrow's buffers are their
own.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from siltstone import files
from siltstone.arrow.batches import record_batch, schema
from siltstone.errors import OffsetOutOfRangeError, SourceChangedError
from siltstone.log.names import segment_file
from siltstone.log.reading import Polled, in_aborted, select
from siltstone.log.segments import Window, windows
from siltstone.records.codecs import Scratch
from siltstone.records.columns import RecordColumns
from siltstone.records.decode import decode_records
from siltstone.records.layout import CONTROL_BIT, Directory, Int64
from siltstone.tables.bounds import OffsetRange
from siltstone.tables.offsets import unpack_offsets
from siltstone.tables.opened import open_again, readable_end
from siltstone.tables.options import LOG, ReadOptions
from siltstone.tables.splits import Piece, SourceFile, Split, split_ranges

WINDOW_BYTES = 2 << 20
BATCH_ROWS = 16_384
BATCH_BYTES = 8 << 20
"""An Arrow batch holds at most so many rows, and about so many bytes of records."""


def schema_of(options: ReadOptions) -> pa.Schema:
    """The table's columns. Raises UsageError for names that there are not."""
    return schema(options.columns, include_headers=options.include_headers)


def read_split(split: Split, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The split's records as Arrow batches of ``schema_of``.

    Raises CorruptRecordError, OffsetOutOfRangeError where records were deleted since it was planned and
    ``failOnDataLoss`` holds, SourceChangedError where a view can no longer be what it was planned as.
    """
    wanted = schema_of(options)
    for piece in split.pieces:
        for polled in piece_records(piece, options):
            for part in _in_pieces(polled):
                yield record_batch(part, wanted, piece.where)


def piece_records(piece: Piece, options: ReadOptions) -> Iterator[Polled]:
    """The piece's records as columns, which hold until the next ones are asked for."""
    if piece.winners is not None:
        yield from _only(piece, unpack_offsets(piece.winners), options)
    elif piece.hidden is not None:
        yield from _without(piece, unpack_offsets(piece.hidden), options)
    else:
        yield from _records(piece, options)


def _only(piece: Piece, winners: Int64, options: ReadOptions) -> Iterator[Polled]:
    """The winners, all of them."""
    found = 0
    for polled in _records(piece, options):
        rows = rows_of(polled.columns, winners)
        found += len(rows)
        if not options.keep_tombstones:
            rows = rows[polled.columns.value_size[rows] >= 0]
        if len(rows):
            yield Polled(columns=select(polled.columns, rows), batches=polled.batches)
    if found != len(winners):
        raise SourceChangedError(
            f"{piece.directory}: cleaned or cut since the query was planned: {found} of {len(winners)} "
            "records of the view are left; run the query again"
        )


def _without(piece: Piece, hidden: Int64, options: ReadOptions) -> Iterator[Polled]:
    """All records but the hidden ones."""
    for polled in _records(piece, options):
        shown = np.ones(len(polled), np.bool_)
        shown[rows_of(polled.columns, hidden)] = False
        rows = np.flatnonzero(shown)
        if len(rows):
            yield Polled(columns=select(polled.columns, rows), batches=polled.batches)


def rows_of(columns: RecordColumns, offsets: Int64) -> Int64:
    """The rows with one of some ascending offsets."""
    first, last = columns.offset[0], columns.offset[-1]
    low, high = np.searchsorted(offsets, [first, last + 1]).tolist()
    rows = np.searchsorted(columns.offset, offsets[low:high])
    return np.asarray(rows[columns.offset[rows] == offsets[low:high]])


def _records(piece: Piece, options: ReadOptions) -> Iterator[Polled]:
    """All records of the piece that count."""
    reader = open_piece(piece)
    if reader is None:
        for part in pieces_now(piece, options):
            yield from _records(part, options)
        return
    scratch = Scratch()
    with reader:
        parts = windows(reader, start=piece.position, size=piece.end_position, window_size=WINDOW_BYTES)
        for window in parts:
            polled = _take(piece, window, reader.path, scratch)
            if polled is not None:
                yield polled


def open_piece(piece: Piece) -> files.Reader | None:
    """Open the piece's file, None where it is another one now."""
    try:
        reader = files.Reader(Path(piece.directory) / segment_file(piece.file.base_offset, "log"))
    except FileNotFoundError:
        return None
    found = reader.stat
    known = SourceFile(piece.file.base_offset, piece.file.size, found.inode, found.device)
    if known == piece.file and found.size >= piece.end_position:
        return reader
    reader.close()
    return None


def pieces_now(piece: Piece, options: ReadOptions) -> Iterator[Piece]:
    """The same offsets by the directory as it is now. Raises OffsetOutOfRangeError, SourceChangedError."""
    if options.view != LOG or options.as_of is not None:
        raise SourceChangedError(
            f"{piece.directory}: changed since the query was planned, its view is gone; run the query again"
        )
    log = open_again(piece.directory, piece.where)
    start, end = log.log_start_offset, readable_end(log, options.isolation)
    if options.fail_on_data_loss and not start <= piece.start <= piece.end <= end:
        raise OffsetOutOfRangeError(
            f"{piece.where}: offsets {piece.start} to {piece.end} were planned, but the log has {start} to "
            f"{end} now; failOnDataLoss=false reads what there is"
        )
    wanted = OffsetRange(max(piece.start, start), min(piece.end, end))
    whole = dataclasses.replace(options, min_partitions=None, max_records_per_partition=None)
    for split in split_ranges({piece.where: log}, {piece.where: wanted}, whole):
        yield from split.pieces


def _take(piece: Piece, window: Window, path: str, scratch: Scratch) -> Polled | None:
    """Decode what counts of a window."""
    batches = window.batches[wanted_batches(piece, window.batches)]
    if not len(batches):
        return None
    columns = decode_records(window.data, batches, scratch, path=path, origin=window.origin)
    offset = columns.offset
    if not len(offset):
        return None
    if offset[0] < piece.start or offset[-1] >= piece.end:
        first, behind = np.searchsorted(offset, [piece.start, piece.end]).tolist()
        columns = select(columns, slice(first, behind))
    return Polled(columns=columns, batches=batches) if len(columns) else None


def wanted_batches(piece: Piece, batches: Directory) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which batches have records for the caller: no control batches, none of aborted transactions."""
    is_set = batches["magic"] < 2
    wanted = ((batches["attributes"] & CONTROL_BIT) == 0) | is_set
    wanted &= batches["last_offset"] >= piece.start
    wanted &= (batches["base_offset"] < piece.end) | is_set
    wanted &= batches["count"] != 0
    if piece.aborted:
        first, last = int(batches["base_offset"][0]), int(batches["last_offset"][-1])
        near = tuple(
            each for each in piece.aborted if each.last_offset >= first and each.first_offset <= last
        )
        wanted &= ~in_aborted(batches, near)
    return np.asarray(wanted)


def _in_pieces(polled: Polled) -> Iterator[Polled]:
    """Runs of at most ``BATCH_ROWS`` records and of about ``BATCH_BYTES``."""
    count = len(polled)
    edges = set(range(0, count, BATCH_ROWS)) | {count}
    behind = np.cumsum(polled.columns.size, dtype=np.int64)
    if behind[-1] > BATCH_BYTES:
        edges |= set((np.flatnonzero(np.diff(behind // BATCH_BYTES)) + 1).tolist())
    ordered = sorted(edges)
    if len(ordered) == 2:
        yield polled
        return
    for first, last in itertools.pairwise(ordered):
        yield Polled(columns=select(polled.columns, slice(first, last)), batches=polled.batches)
