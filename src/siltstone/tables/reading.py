"""A split → Arrow batches: the records of its pieces, in order, without a Python object a record.

::

    file ─ windows ─► batches ─ wanted ones ─► columns ─ wanted rows ─► Arrow, up to ``BATCH_ROWS`` rows

``decoded`` gives the columns themselves, for whoever makes something else of them. Windows are read into one
buffer again and again, so columns hold until the next ones are asked for; Arrow's buffers are their own. What
a query does not need is not decoded: of ``offset`` and ``timestamp`` the front of each record, of a view of
the last records these alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
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
from siltstone.log.reading import in_aborted
from siltstone.log.segments import Window, windows
from siltstone.log.transactions import Aborted, TransactionScan
from siltstone.tables.arrow import TIME_COLUMNS, record_batches, schema
from siltstone.tables.options import LOG, ReadOptions, Splitting
from siltstone.tables.splits import (
    FileSplit,
    OffsetRange,
    Split,
    aborted_among,
    between,
    open_again,
    readable_end,
    split_ranges,
    unpack_offsets,
)

WINDOW_BYTES = 2 << 20
BATCH_ROWS = 32_768
BATCH_BYTES = 8 << 20
"""An Arrow batch holds at most so many rows, and about so many bytes of records."""
Columns = TypeVar("Columns", KeyColumns, RecordColumns, TimeColumns)
Decoder = Callable[..., Columns]
"""One of the functions of ``base.records.decode`` that decode all records."""


def schema_of(options: ReadOptions) -> pa.Schema:
    """The table's columns. Raises UsageError for names that there are not."""
    return schema(options.columns, include_headers=options.include_headers)


def read_split(split: Split, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The split's records as Arrow batches of ``schema_of``.

    Raises CorruptRecordError, OffsetOutOfRangeError where records were deleted since it was planned and
    ``failOnDataLoss`` holds, SourceChangedError where a view can no longer be what it was planned as.
    """
    wanted = schema_of(options)
    only_times = TIME_COLUMNS.issuperset(wanted.names)
    for piece in split.pieces:
        found: Iterator[tuple[Any, Directory]]
        if piece.retained is not None:
            found = _only(piece, unpack_offsets(piece.retained), options)
        else:
            decoder: Decoder[Any] = decode_record_times if only_times else decode_records
            found = _shown(piece, decoded(piece, options, decoder))
        for columns, batches in found:
            yield from record_batches(
                columns, batches, wanted, piece.where, batch_bytes=BATCH_BYTES, most_rows=BATCH_ROWS
            )


def decoded(
    piece: FileSplit, options: ReadOptions, decoder: Decoder[Columns]
) -> Iterator[tuple[Columns, Directory]]:
    """The records of a piece that count, by one of the functions of ``base.records.decode``, and the batches
    that the columns' ``batch`` counts in; never none at once.

    They hold until the next ones are asked for. Of ``retained`` and ``hidden`` nothing is known here.
    """
    scratch, limit = Scratch(), options.max_decompressed_message_bytes
    for part, window, path, mask in _windows(piece, options):
        wanted = window.batches[mask]
        for some in pieces(window.data, wanted):
            batches = wanted[some]
            columns = decoder(window.data, batches, scratch, limit=limit, path=path, origin=window.origin)
            first, behind = np.searchsorted(columns.offset, [part.start, part.end]).tolist()
            if behind - first < len(columns):
                columns = select(columns, slice(first, behind))
            if len(columns):
                yield columns, batches


def _shown(
    piece: FileSplit, found: Iterator[tuple[Columns, Directory]]
) -> Iterator[tuple[Columns, Directory]]:
    """All records but the hidden ones."""
    if piece.hidden is None:
        yield from found
        return
    hidden = unpack_offsets(piece.hidden)
    for columns, batches in found:
        shown = np.ones(len(columns), np.bool_)
        shown[_rows_of(columns.offset, hidden)] = False
        if shown.any():
            yield select(columns, np.flatnonzero(shown)), batches


def _rows_of(present: Int64, offsets: Int64) -> Int64:
    """The rows of some ascending offsets among those ``present``, ascending too."""
    low, high = np.searchsorted(offsets, [present[0], present[-1] + 1]).tolist()
    rows = np.searchsorted(present, offsets[low:high])
    return np.asarray(rows[present[rows] == offsets[low:high]])


def _only(
    piece: FileSplit, retained: Int64, options: ReadOptions
) -> Iterator[tuple[RecordColumns, Directory]]:
    """The retained offsets, all of them; no other record of a v2 batch is decoded."""
    scratch, found = Scratch(), 0
    try:
        for _, window, path, wanted in _windows(piece, options):
            for rows in _runs(window, wanted, retained):
                columns = _chosen(window, rows, retained, scratch, path, options)
                found += len(columns)
                if not options.keep_tombstones:
                    columns = select(columns, np.flatnonzero(columns.value_size >= 0))
                if len(columns):
                    yield columns, window.batches
    except CheckFailedError:
        raise _changed(piece, found, retained) from None
    if found != len(retained):
        raise _changed(piece, found, retained)


def _changed(piece: FileSplit, found: int, retained: Int64) -> SourceChangedError:
    return SourceChangedError(
        f"{piece.directory}: cleaned or cut since the query was planned: {found} of {len(retained)} "
        "records of the view are left; run the query again"
    )


def _runs(window: Window, wanted: npt.NDArray[np.bool_], retained: Int64) -> Iterator[Int64]:
    """Rows of wanted batches that may hold retained offsets, in runs of one kind, with offsets less than 2³²
    apart."""
    batches = window.batches
    modern, base = batches["magic"] == 2, batches["base_offset"]
    holds = np.searchsorted(retained, base) < np.searchsorted(retained, batches["last_offset"] + 1)
    # A message set's base offset is its last one: it is gone through in any case.
    rows = np.flatnonzero(wanted & (holds | ~modern))
    if len(rows):
        far = (base[rows] - base[rows[0]]) >> 31
        edges = np.flatnonzero((np.diff(far) != 0) | (np.diff(modern[rows]) != 0)) + 1
        for run in np.split(rows, edges):
            yield from (run[part] for part in pieces(window.data, batches[run]))


def _chosen(
    window: Window, rows: Int64, retained: Int64, scratch: Scratch, path: str, options: ReadOptions
) -> RecordColumns:
    """The retained offsets among a run's records. Raises CheckFailedError where one is passed that is not
    there."""
    batches, origin, limit = window.batches, window.origin, options.max_decompressed_message_bytes
    if batches["magic"][rows[0]] != 2:
        columns = decode_records(window.data, batches[rows], scratch, limit=limit, path=path, origin=origin)
        some = select(columns, _rows_of(columns.offset, retained)) if len(columns) else columns
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


def _windows(piece: FileSplit, options: ReadOptions) -> Iterator[tuple[FileSplit, Window, str, Flags]]:
    """The piece's bytes, window by window, each with the piece that it is of, its file, and which batches
    have records for the caller.

    Raises CorruptFileError where a transaction index and the markers contradict each other, as far as this
    piece shows it.
    """
    reader = open_piece(piece)
    if reader is None:
        for part in pieces_now(piece, options):
            yield from _windows(part, options)
        return
    with reader:
        size = piece.end_position
        committed = options.isolation == READ_COMMITTED
        scan = TransactionScan(Aborted.among(piece.aborted, reader.path)) if committed else None
        for window in windows(reader, start=piece.position, size=size, window_size=WINDOW_BYTES):
            yield piece, window, reader.path, _wanted(piece, scan, window, reader.path)


def open_piece(piece: FileSplit) -> files.Reader | None:
    """Open the piece's file, None where it is another one now."""
    try:
        reader = files.Reader(Path(piece.directory) / segment_file(piece.file.base_offset, "log"))
    except FileNotFoundError:
        return None
    if piece.file.mark.is_of(reader.stat) and reader.stat.size >= piece.end_position:
        return reader
    reader.close()
    return None


def pieces_now(piece: FileSplit, options: ReadOptions) -> Iterator[FileSplit]:
    """The same offsets by the directory as it is now. Raises OffsetOutOfRangeError, SourceChangedError."""
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
    for split in split_ranges({piece.where: log}, {piece.where: wanted}, whole):
        yield from split.pieces


def _wanted(piece: FileSplit, scan: TransactionScan | None, window: Window, path: str) -> Flags:
    wanted, batches = _with_records(piece, window.batches), window.batches
    # A piece may share bytes with others, but it knows of its own aborted transactions only.
    rows = np.flatnonzero((batches["last_offset"] >= piece.start) & (batches["base_offset"] < piece.end))
    if scan is not None and len(rows):
        mine = batches[rows]
        wanted[rows] &= ~scan.aborted_among(window.data, mine, path=path, origin=window.origin)
    return wanted


def wanted_batches(piece: FileSplit, batches: Directory) -> Flags:
    """Which batches have records for the caller: no control batches, none of aborted transactions.

    By the indexes alone, for batches among which some may be damaged.
    """
    wanted = _with_records(piece, batches)
    if piece.aborted:
        first, last = int(batches["base_offset"][0]), int(batches["last_offset"][-1])
        wanted &= ~in_aborted(batches, aborted_among(piece.aborted, first, last + 1))
    return wanted


def _with_records(piece: FileSplit, batches: Directory) -> Flags:
    is_set = batches["magic"] < 2
    wanted = ((batches["attributes"] & CONTROL_BIT) == 0) | is_set
    wanted &= batches["last_offset"] >= piece.start
    wanted &= (batches["base_offset"] < piece.end) | is_set
    wanted &= batches["count"] != 0
    return np.asarray(wanted)
