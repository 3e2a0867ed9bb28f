"""Damage as rows: ``badBatches=quarantine``.

::

    badBatch    text: why a batch cannot be read; null for records. Its row has topic, partition, the offset
                at which the batch begins, and what its header says, as far as that can be told

A batch whose checksum does not hold, or whose records make no sense, is one such row. Where not even its
length makes sense, the row covers all bytes up to the next position at which a whole batch with its checksum
and a higher offset begins. Reading goes on behind it. A bad batch is a row of the piece in whose offsets it
begins; the other rows are those of ``reading``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from siltstone.base import files
from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.checksum import checksums_hold
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.columns import RecordColumns, select
from siltstone.base.records.decode import decode_records
from siltstone.base.records.inflate import pieces
from siltstone.base.records.layout import (
    BATCH,
    BATCH_OVERHEAD,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    Bytes,
    Directory,
    Flags,
    Int64,
)
from siltstone.base.records.scan import scan_batches
from siltstone.log.dump import BAD_CHECKSUM
from siltstone.log.reading import in_aborted
from siltstone.log.segments import Window, windows
from siltstone.tables.arrow import (
    BAD_COLUMN,
    BATCH_COLUMN,
    RecordSource,
    batch_structs,
    record_batches,
)
from siltstone.tables.options import ReadOptions
from siltstone.tables.reading import (
    BATCH_BYTES,
    BATCH_ROWS,
    Chunk,
    open_pieces,
    record_schema,
    with_records,
)
from siltstone.tables.splits import FileSplit, Split, aborted_among

OUT_OF_ORDER = "its offsets are not above those before it and below those behind it"
_SEARCH_BYTES = 4 << 20
_LARGEST_BATCH = 1 << 30


def read_quarantine(split: Split, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The split's records, and a row for each bad batch, as Arrow batches of ``record_schema``.

    Raises as ``reading.read_records``, but no CorruptRecordError.
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


def _wanted_rows(piece: FileSplit, columns: RecordColumns, batches: Directory) -> Int64:
    """Records of the piece that are no control records and, by the indexes alone, of no aborted transaction:
    a damaged batch may have been a marker."""
    wanted = with_records(piece, batches)
    if piece.aborted:
        first, last = int(batches["base_offset"][0]), int(batches["last_offset"][-1])
        wanted &= ~in_aborted(batches, aborted_among(piece.aborted, first, last + 1))
    inside = (columns.offset >= piece.start) & (columns.offset < piece.end)
    return np.flatnonzero(wanted[columns.batch] & inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadBatch:
    """Bytes of a file that cannot be read as a batch, and why.

    ``offset``: where the batch begins, as far as that can be told. ``header``: one row, its position in the
    file; none where not even a header is there. ``position``, ``size``: which bytes.
    """

    source: RecordSource
    reason: str
    offset: int
    position: int
    size: int
    header: Directory


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
    position, offset, doubtful = piece.position, piece.start, -1
    while position < end:
        try:
            for window in windows(reader, start=position, size=end, window_size=_SEARCH_BYTES, verify=False):
                for part in _judged(source._replace(origin=window.origin), window, offset, limit):
                    doubtful = -1
                    if not isinstance(part, BadBatch):
                        offset = max(offset, int(part[1]["last_offset"][-1]) + 1)
                    elif part.reason == BAD_CHECKSUM:
                        doubtful = part.position
                    yield part
            return
        except CorruptRecordError as error:
            # Behind a bad checksum it may be the length that is bad: the search begins inside of that batch,
            # which was reported already.
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
            for part in pieces(window.data, window.batches[first:bad]):
                yield from _decoded(source, window, first + part.start, first + part.stop, limit)
            offset = max(offset, int(window.batches["last_offset"][bad - 1]) + 1)
        if bad < len(valid):
            yield _bad(source, window, bad, OUT_OF_ORDER if valid[bad] else BAD_CHECKSUM, offset)
        first = bad + 1


def _out_of_order(batches: Directory, valid: Flags, offset: int) -> Flags:
    """Batches with an offset that cannot be: no checksum covers it. bool, one a batch."""
    base, last = batches["base_offset"], batches["last_offset"]
    wrong = np.zeros(len(batches), np.bool_)
    if int(base[0]) >= offset and (base[1:] > last[:-1]).all():
        return wrong
    rows = np.flatnonzero(valid).tolist()
    for row, following in itertools.zip_longest(rows, rows[1:]):
        reaches = following is not None and offset <= base[following] <= last[row]
        wrong[row] = base[row] < offset or reaches
        offset = offset if wrong[row] else int(last[row]) + 1
    return wrong


def _decoded(source: RecordSource, window: Window, start: int, end: int, limit: int) -> _Parts:
    """Sound batches ``[start, end)`` decoded; where one cannot be, those before it and behind it are."""
    scratch, stop = Scratch(), end
    while start < end:
        batches = window.batches[start:stop]
        try:
            columns = decode_records(
                window.data, batches, scratch, limit=limit, path=source.path, origin=window.origin
            )
        except CorruptRecordError as error:
            # Decode those before it first; it is the first one then.
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
