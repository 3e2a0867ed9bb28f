"""Reads a split into Arrow batches: the records of its pieces, in order, without a Python object a record.

::

    file ─ windows ─► batches ─ wanted ones ─► columns ─ wanted rows ─► Arrow, up to ``BATCH_ROWS`` rows

``decoded`` gives the columns themselves. All windows use one buffer, so columns hold until the next ones are
asked for; Arrow's buffers are copies. A query decodes what it needs: for ``offset`` and ``timestamp`` the
front of each record, for ``view=latest`` the retained records alone. The second half reads damaged files.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from siltstone.base import files
from siltstone.base.config import LONG_MAX
from siltstone.base.errors import (
    CheckFailedError,
    CorruptRecordError,
    OffsetOutOfRangeError,
    SourceChangedError,
)
from siltstone.base.records.checksum import BAD_CHECKSUM, checksums_hold
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.columns import KeyColumns, RecordColumns, TimeColumns, select
from siltstone.base.records.decode import (
    ChosenOffsets,
    decode_chosen_records,
    decode_record_times,
    decode_records,
)
from siltstone.base.records.decompression import slices_within
from siltstone.base.records.layout import (
    BATCH,
    BATCH_OVERHEAD,
    CONTROL_BIT,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    BatchHeaders,
    Bytes,
    Flags,
    Int64,
)
from siltstone.base.records.scan import scan_batches
from siltstone.log.fetch import READ_COMMITTED
from siltstone.log.names import segment_file
from siltstone.log.reading import in_aborted
from siltstone.log.segments import Window, windows
from siltstone.log.transactions import Aborted, TransactionScan
from siltstone.tables.arrow import (
    BAD_COLUMN,
    BATCH_COLUMN,
    TIME_COLUMNS,
    RecordSource,
    batch_structs,
    record_batches,
    rows_of,
    schema,
)
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
    view_range,
)

WINDOW_BYTES = 2 << 20
BATCH_ROWS = 32_768
BATCH_BYTES = 8 << 20
"""An Arrow batch holds at most so many rows, and about so many bytes of records."""
Columns = TypeVar("Columns", KeyColumns, RecordColumns, TimeColumns)
Decoder = Callable[..., Columns]
"""One of the functions of ``base.records.decode`` that decode all records."""
Chunk = tuple[Columns, BatchHeaders, RecordSource]
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
    """The records in a piece's offsets, of no aborted transaction, by one of the functions of
    ``base.records.decode``; at least one a chunk.

    They hold until the next ones are asked for. ``retained`` and ``hidden`` are not applied.
    """
    scratch, limit = Scratch(), options.max_decompressed_message_bytes
    for part, window, source, mask in _windows(piece, options):
        wanted = window.batches[mask]
        for some in slices_within(window.data, wanted):
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
            yield from (run[part] for part in slices_within(window.data, batches[run]))


def _chosen(
    window: Window, rows: Int64, retained: Int64, scratch: Scratch, path: str, options: ReadOptions
) -> RecordColumns:
    """The retained offsets among a run's records. Raises CheckFailedError for one that has no
    record."""
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
        for window in windows(reader, start=part.position, end=size, window_size=WINDOW_BYTES):
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


def with_records(piece: FileSplit, batches: BatchHeaders) -> Flags:
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
            f"{piece.directory}: changed since the query was planned, its view is lost; run the query again"
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


# Damage as rows: ``badBatches=quarantine``.
#
# ::
#
#     badBatch    text: why a batch cannot be read; null for records. Its row has topic, partition, the offset
#                 at which the batch begins, and the fields of its header, as far as they are known
#
# A batch whose checksum does not match, or whose records cannot be decoded, is one such row. Where not even
# its length is possible, the row covers all bytes up to the next position at which a whole batch with its
# checksum and a higher offset begins. Reading continues there. A bad batch is a row of the piece in whose
# offsets it begins.

OUT_OF_ORDER = "its offsets are not above those before it and below those behind it"
_SEARCH_BYTES = 4 << 20
_LARGEST_BATCH = 1 << 30


def read_quarantine(split: Split, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The split's records, and a row for each bad batch, as Arrow batches of ``record_schema``.

    Raises as ``read_records``, but no CorruptRecordError.
    """
    wanted = record_schema(options)
    for whole in split.pieces:
        for piece, reader in open_pieces(whole, options):
            for part in _sound_and_bad(piece, reader, options.max_decompressed_message_bytes):
                if not isinstance(part, BadBatch):
                    columns, batches, source = part
                    rows = _wanted_rows(piece, columns, batches)
                    if len(rows):
                        yield from record_batches(
                            select(columns, rows),
                            batches,
                            wanted,
                            source,
                            batch_bytes=BATCH_BYTES,
                            most_rows=BATCH_ROWS,
                        )
                elif piece.start <= part.offset < piece.end:
                    yield _bad_row(part, wanted)


def _wanted_rows(piece: FileSplit, columns: RecordColumns, batches: BatchHeaders) -> Int64:
    """The rows of the piece's records, without control records and those of aborted transactions. These are
    known by the indexes alone, since a damaged batch may have been a marker."""
    wanted = with_records(piece, batches)
    if piece.aborted:
        first, last = int(batches["base_offset"][0]), int(batches["last_offset"][-1])
        wanted &= ~in_aborted(batches, aborted_among(piece.aborted, first, last + 1))
    inside = (columns.offset >= piece.start) & (columns.offset < piece.end)
    return np.flatnonzero(wanted[columns.batch] & inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadBatch:
    """Bytes ``[position, position + size)`` of a file that cannot be read as a batch, and why.

    ``offset``: at which the batch begins, as far as that is known. ``header``: one row, its position in the
    file; none where there is not even a header.
    """

    source: RecordSource
    reason: str
    offset: int
    position: int
    size: int
    header: BatchHeaders


def _bad_row(bad: BadBatch, wanted: pa.Schema) -> pa.RecordBatch:
    values = {
        "topic": bad.source.where.topic,
        "partition": bad.source.where.partition,
        "offset": bad.offset,
        BAD_COLUMN: bad.reason,
        BATCH_COLUMN: {
            "file": bad.source.path,
            "position": bad.position,
            "size": min(bad.size, (1 << 31) - 1),
            "crcValid": False,
        },
    }
    arrays = {field.name: pa.array([values.get(field.name)], field.type) for field in wanted}
    if BATCH_COLUMN in arrays and len(bad.header):
        holds = np.array([bad.reason != BAD_CHECKSUM])
        first = bad.header["base_offset"].astype(np.int64)
        arrays[BATCH_COLUMN] = batch_structs(bad.header, holds, bad.source, np.zeros(1, np.int32), first)
    return pa.RecordBatch.from_arrays(list(arrays.values()), schema=wanted)


_Parts = Iterator[Chunk[RecordColumns] | BadBatch]


def _sound_and_bad(piece: FileSplit, reader: files.Reader, limit: int) -> _Parts:
    """Everything in the piece's bytes, in order: runs of sound batches with their records, and bad batches.

    ``limit``: what one batch may decompress to, in bytes. Columns hold until the next ones are asked for.
    """
    source, end = RecordSource(piece.where, reader.path), piece.end_position
    # ``offset``: above all that was read. ``doubtful``: the position of the last batch if its checksum is
    # bad.
    position, offset, doubtful = piece.position, piece.start, -1
    while position < end:
        try:
            for window in windows(reader, start=position, end=end, window_size=_SEARCH_BYTES, verify=False):
                for part in _judged(source._replace(origin=window.origin), window, offset, limit):
                    doubtful = -1
                    if not isinstance(part, BadBatch):
                        offset = max(offset, int(part[1]["last_offset"][-1]) + 1)
                    elif part.reason == BAD_CHECKSUM:
                        doubtful = part.position
                    yield part
            return
        except CorruptRecordError as error:
            # No header at ``error.position``. Behind a bad checksum the bad batch's length may be what is
            # wrong: then the search begins inside of that batch, which has its row already.
            start = error.position if doubtful < 0 else doubtful
            position = next_batch(reader, start + 1, end, offset)
            if doubtful < 0:
                yield BadBatch(
                    source=source,
                    reason=f"{error.reason}: bytes {error.position} to {position} hold no batch",
                    offset=offset,
                    position=error.position,
                    size=position - error.position,
                    header=np.empty(0, BATCH),
                )
            doubtful = -1


def _judged(source: RecordSource, window: Window, offset: int, limit: int) -> _Parts:
    """The window's batches: runs of sound ones, and each bad one by itself."""
    valid = checksums_hold(window.data, window.batches)
    sound = valid & ~_out_of_order(window.batches, valid, offset)
    first = 0
    for bad in [*np.flatnonzero(~sound).tolist(), len(valid)]:
        if bad > first:
            for part in slices_within(window.data, window.batches[first:bad]):
                yield from _decoded_or_bad(source, window, first + part.start, first + part.stop, limit)
            offset = max(offset, int(window.batches["last_offset"][bad - 1]) + 1)
        if bad < len(valid):
            yield _bad(source, window, bad, OUT_OF_ORDER if valid[bad] else BAD_CHECKSUM, offset)
        first = bad + 1


def _out_of_order(batches: BatchHeaders, valid: Flags, offset: int) -> Flags:
    """Batches with an impossible base offset, which no checksum covers. bool, one a batch."""
    base, last = batches["base_offset"], batches["last_offset"]
    wrong = np.zeros(len(batches), np.bool_)
    if int(base[0]) >= offset and (base[1:] > last[:-1]).all():
        return wrong
    # One flipped bit makes one batch wrong: the one that is below its predecessor, or the one that reaches
    # its successor, if that one fits the batches before.
    rows = np.flatnonzero(valid).tolist()
    for row, following in itertools.zip_longest(rows, rows[1:]):
        reaches = following is not None and offset <= base[following] <= last[row]
        wrong[row] = base[row] < offset or reaches
        offset = offset if wrong[row] else int(last[row]) + 1
    return wrong


def _decoded_or_bad(source: RecordSource, window: Window, start: int, end: int, limit: int) -> _Parts:
    """Batches ``[start, end)`` with sound headers, decoded; one that cannot be decoded is bad by itself."""
    scratch, stop = Scratch(), end
    while start < end:
        batches = window.batches[start:stop]
        try:
            columns = decode_records(
                window.data, batches, scratch, limit=limit, path=source.path, origin=window.origin
            )
        except CorruptRecordError as error:
            # Decode those before it first. Then it is the first one, and bad.
            row = np.searchsorted(batches["position"] + window.origin, error.position, side="right") - 1
            stop = start + max(int(row), 0)
            if stop == start:
                yield _bad(source, window, start, error.reason, int(batches["base_offset"][0]))
                start, stop = start + 1, end
        else:
            yield columns, batches, source
            start, stop = stop, end


def _bad(source: RecordSource, window: Window, row: int, reason: str, offset: int) -> BadBatch:
    header = window.batches[row : row + 1].copy()
    header["position"] += window.origin
    base = int(header["base_offset"][0])
    behind = window.batches["base_offset"][row + 1] if row + 1 < len(window.batches) else base + 1
    return BadBatch(
        source=source._replace(origin=0),
        reason=reason,
        offset=base if offset <= base < max(int(behind), offset + 1) else offset,
        position=int(header["position"][0]),
        size=int(header["size"][0]),
        header=header,
    )


def next_batch(reader: files.Reader, start: int, end: int, offset: int) -> int:
    """The next byte from ``start`` on at which a whole batch (v2) with its checksum begins; else ``end``.

    Its offset is at least ``offset``.
    """
    position = start
    while position + BATCH_OVERHEAD <= end:
        data = np.empty(min(_SEARCH_BYTES, end - position), np.uint8)
        data = data[: reader.read_into(data, position)]
        if len(data) < BATCH_OVERHEAD:
            break
        for at in _candidates(data, end - position, offset).tolist():
            if _is_batch(reader, position + at, end):
                return position + int(at)
        position += len(data) - BATCH_OVERHEAD + 1
    return end


def _candidates(data: Bytes, room: int, offset: int) -> Int64:
    """The positions of headers that make sense, in ``data`` of at least a header's size."""
    magic = data[MAGIC_POSITION : len(data) - BATCH_OVERHEAD + MAGIC_POSITION + 1]
    at: Int64 = np.flatnonzero(magic == 2)
    heads = np.lib.stride_tricks.sliding_window_view(data, LOG_OVERHEAD)[at]
    base = heads[:, :8].copy().view(">i8")[:, 0]
    size = heads[:, 8:LOG_OVERHEAD].copy().view(">i4")[:, 0].astype(np.int64) + LOG_OVERHEAD
    fits = (size >= BATCH_OVERHEAD) & (size <= np.minimum(room - at, _LARGEST_BATCH))
    return at[(base >= offset) & fits]


def _is_batch(reader: files.Reader, position: int, end: int) -> bool:
    head = reader.read(position, LOG_OVERHEAD)
    size = int.from_bytes(head[8:12], "big") + LOG_OVERHEAD
    data = np.frombuffer(reader.read(position, min(size, end - position)), np.uint8)
    batches = scan_batches(data).batches
    return (
        len(batches) > 0 and int(batches["size"][0]) == len(data) and bool(checksums_hold(data, batches)[0])
    )
