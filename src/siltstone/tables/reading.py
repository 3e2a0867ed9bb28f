"""A split → Arrow batches: the records of its pieces, in order, without a Python object a record.

::

    file ─ windows ─► batches ─ wanted ones ─► columns ─ wanted rows ─► Arrow, up to ``BATCH_ROWS`` rows

``decoded`` gives the columns themselves. Windows are read into one buffer again and again, so columns hold
until the next ones are asked for; Arrow's buffers are their own. What a query does not need is not decoded:
of ``offset`` and ``timestamp`` the front of each record, of a view of the last records these alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from siltstone.base import files
from siltstone.base.config import LONG_MAX
from siltstone.base.errors import CheckFailedError, OffsetOutOfRangeError, SourceChangedError
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.columns import KeyColumns, RecordColumns, TimeColumns, select
from siltstone.base.records.decode import (
    ChosenOffsets,
    decode_chosen_records,
    decode_record_times,
    decode_records,
)
from siltstone.base.records.inflate import pieces
from siltstone.base.records.layout import CONTROL_BIT, Directory, Flags, Int64
from siltstone.log.fetch import READ_COMMITTED
from siltstone.log.names import segment_file
from siltstone.log.segments import Window, windows
from siltstone.log.transactions import Aborted, TransactionScan
from siltstone.tables.arrow import TIME_COLUMNS, RecordSource, record_batches, rows_of, schema
from siltstone.tables.options import LOG, ReadOptions, Splitting
from siltstone.tables.splits import (
    FileSplit,
    OffsetRange,
    Split,
    between,
    open_again,
    readable_end,
    split_ranges,
    unpack_offsets,
    view_range,
)

WINDOW_BYTES = 2 << 20
BATCH_ROWS = 32_768
BATCH_BYTES = 8 << 20
"""An Arrow batch holds at most so many rows, and about so many bytes of records."""
Columns = TypeVar("Columns", KeyColumns, RecordColumns, TimeColumns)
Decoder = Callable[..., Columns]
"""One of the functions of ``base.records.decode`` that decode all records."""
Chunk = tuple[Columns, Directory, RecordSource]
"""Records, the batches that their ``batch`` counts in, and where they come from."""


def record_schema(options: ReadOptions) -> pa.Schema:
    """The columns of ``table=records``. Raises UsageError for unknown names."""
    return schema(
        options.columns,
        include_headers=options.include_headers,
        batch_metadata=options.batch_metadata,
        quarantine=options.quarantine,
    )


def read_records(split: Split, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The split's records as Arrow batches of ``record_schema``.

    Raises CorruptRecordError, OffsetOutOfRangeError where records were deleted since it was planned and
    ``failOnDataLoss`` holds, SourceChangedError where a view can no longer be what it was planned as.
    """
    wanted = record_schema(options)
    decoder: Decoder[Any] = decode_records
    if TIME_COLUMNS.issuperset(wanted.names):
        decoder = decode_record_times
    for piece in split.pieces:
        parts: Iterator[Chunk[Any]]
        if piece.retained is not None:
            parts = _retained(piece, unpack_offsets(piece.retained), options)
        else:
            parts = _shown(piece, decoded(piece, options, decoder))
        for columns, batches, source in parts:
            yield from record_batches(
                columns, batches, wanted, source, batch_bytes=BATCH_BYTES, most_rows=BATCH_ROWS
            )


def decoded(piece: FileSplit, options: ReadOptions, decoder: Decoder[Columns]) -> Iterator[Chunk[Columns]]:
    """The records of a piece that count, by one of the functions of ``base.records.decode``; never none at
    once.

    They hold until the next ones are asked for. ``retained`` and ``hidden`` are not applied.
    """
    scratch, limit = Scratch(), options.max_decompressed_message_bytes
    for part, window, source, mask in _windows(piece, options):
        wanted = window.batches[mask]
        for some in pieces(window.data, wanted):
            batches = wanted[some]
            columns = decoder(
                window.data, batches, scratch, limit=limit, path=source.path, origin=window.origin
            )
            first, behind = np.searchsorted(columns.offset, [part.start, part.end]).tolist()
            if behind - first < len(columns):
                columns = select(columns, slice(first, behind))
            if len(columns):
                yield columns, batches, source


def _shown(piece: FileSplit, parts: Iterator[Chunk[Columns]]) -> Iterator[Chunk[Columns]]:
    """All records but the hidden ones."""
    if piece.hidden is None:
        yield from parts
        return
    hidden = unpack_offsets(piece.hidden)
    for columns, batches, source in parts:
        shown = np.ones(len(columns), np.bool_)
        shown[rows_of(columns.offset, hidden)] = False
        if shown.any():
            yield select(columns, np.flatnonzero(shown)), batches, source


def _retained(piece: FileSplit, retained: Int64, options: ReadOptions) -> Iterator[Chunk[RecordColumns]]:
    """The retained offsets, all of them; no other record of a v2 batch is decoded."""
    scratch, met = Scratch(), 0
    try:
        for _, window, source, wanted in _windows(piece, options):
            for rows in _runs(window, wanted, retained):
                columns = _chosen(window, rows, retained, scratch, source.path, options)
                met += len(columns)
                if not options.keep_tombstones:
                    columns = select(columns, np.flatnonzero(columns.value_size >= 0))
                if len(columns):
                    yield columns, window.batches, source
    except CheckFailedError:
        raise _changed(piece, met, retained) from None
    if met != len(retained):
        raise _changed(piece, met, retained)


def _changed(piece: FileSplit, met: int, retained: Int64) -> SourceChangedError:
    return SourceChangedError(
        f"{piece.directory}: cleaned or cut since the query was planned: {met} of {len(retained)} "
        "records of the view are left; run the query again"
    )


def _runs(window: Window, wanted: Flags, retained: Int64) -> Iterator[Int64]:
    """Rows of wanted batches that may hold retained offsets, in runs of one kind, with offsets less than 2³²
    apart."""
    batches = window.batches
    modern, base = batches["magic"] == 2, batches["base_offset"]
    holds = np.searchsorted(retained, base) < np.searchsorted(retained, batches["last_offset"] + 1)
    # A message set's base offset is its last one: its records are read in any case.
    rows = np.flatnonzero(wanted & (holds | ~modern))
    if len(rows):
        far = (base[rows] - base[rows[0]]) >> 31
        edges = np.flatnonzero((np.diff(far) != 0) | (np.diff(modern[rows]) != 0)) + 1
        for run in np.split(rows, edges):
            yield from (run[part] for part in pieces(window.data, batches[run]))


def _chosen(
    window: Window, rows: Int64, retained: Int64, scratch: Scratch, path: str, options: ReadOptions
) -> RecordColumns:
    """The retained offsets among a run's records. Raises CheckFailedError for one that is passed and not
    there."""
    batches, origin, limit = window.batches, window.origin, options.max_decompressed_message_bytes
    if batches["magic"][rows[0]] != 2:
        columns = decode_records(window.data, batches[rows], scratch, limit=limit, path=path, origin=origin)
        some = select(columns, rows_of(columns.offset, retained)) if len(columns) else columns
        return dataclasses.replace(some, batch=rows[some.batch].astype(np.int32))
    mine = between(retained, int(batches["base_offset"][rows[0]]), int(batches["last_offset"][rows[-1]]) + 1)
    choice = ChosenOffsets(
        offsets=(mine - mine[0]).astype(np.uint32),
        base=int(mine[0]),
        met=0,
        all_from=np.full(len(rows), LONG_MAX),
    )
    chosen = decode_chosen_records(
        window.data, batches, rows, choice, scratch, limit=limit, path=path, origin=origin
    )
    return chosen.columns


_PieceWindow = tuple[FileSplit, Window, RecordSource, Flags]
"""Some bytes of a piece, and which of the window's batches have records for the caller."""


def _windows(piece: FileSplit, options: ReadOptions) -> Iterator[_PieceWindow]:
    """The piece's bytes, window by window.

    Raises CorruptFileError where a transaction index and the markers contradict each other, as far as this
    piece shows it.
    """
    for part, reader in open_pieces(piece, options):
        scan = None
        if options.isolation == READ_COMMITTED:
            scan = TransactionScan(Aborted.among(part.aborted, reader.path))
        size = part.end_position
        for window in windows(reader, start=part.position, size=size, window_size=WINDOW_BYTES):
            batches, wanted = window.batches, with_records(part, window.batches)
            # A piece may share bytes with others, but it knows of its own aborted transactions only.
            rows = np.flatnonzero(
                (batches["last_offset"] >= part.start) & (batches["base_offset"] < part.end)
            )
            if scan is not None and len(rows):
                wanted[rows] &= ~scan.aborted_among(
                    window.data, batches[rows], path=reader.path, origin=window.origin
                )
            yield part, window, RecordSource(part.where, reader.path, window.origin), wanted


def with_records(piece: FileSplit, batches: Directory) -> Flags:
    """Which batches may have records of the piece: no control batches, none without records."""
    is_set = batches["magic"] < 2
    wanted = ((batches["attributes"] & CONTROL_BIT) == 0) | is_set
    wanted &= batches["last_offset"] >= piece.start
    wanted &= (batches["base_offset"] < piece.end) | is_set
    wanted &= batches["count"] != 0
    return np.asarray(wanted)


def open_pieces(piece: FileSplit, options: ReadOptions) -> Iterator[tuple[FileSplit, files.Reader]]:
    """The piece with its open file; where that is another file now, what the log has of the same offsets.

    Raises OffsetOutOfRangeError, SourceChangedError.
    """
    reader = _open(piece)
    if reader is not None:
        with reader:
            yield piece, reader
    else:
        for part in _replanned(piece, options):
            yield from open_pieces(part, options)


def _open(piece: FileSplit) -> files.Reader | None:
    try:
        reader = files.Reader(Path(piece.directory) / segment_file(piece.base_offset, "log"))
    except FileNotFoundError:
        return None
    if piece.mark.is_of(reader.stat) and reader.stat.size >= piece.end_position:
        return reader
    reader.close()
    return None


def _replanned(piece: FileSplit, options: ReadOptions) -> Iterator[FileSplit]:
    """The same offsets by the directory as it is now."""
    if options.view != LOG or options.offsets.as_of is not None:
        raise SourceChangedError(
            f"{piece.directory}: changed since the query was planned, its view is gone; run the query again"
        )
    log = open_again(piece.directory, piece.where)
    start, end = log.log_start_offset, readable_end(log, options.isolation)
    if options.offsets.fail_on_data_loss and not start <= piece.start <= piece.end <= end:
        raise OffsetOutOfRangeError(
            f"{piece.where}: offsets {piece.start} to {piece.end} were planned, but the log has {start} to "
            f"{end} now; failOnDataLoss=false reads what there is"
        )
    wanted = OffsetRange(max(piece.start, start), min(piece.end, end))
    whole = dataclasses.replace(options, splitting=Splitting())
    for split in split_ranges([view_range(log, wanted)], whole):
        yield from split.pieces
