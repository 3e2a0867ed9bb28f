"""Reads a split into Arrow batches: the records of its file splits, in order, without a Python object per
record.

::

    file ─ windows ─► batches of the file split ─ decode ─► columns ─ rows of the file split ─► Arrow batches

``decode`` returns the columns themselves. All windows share one buffer, so columns are valid until the
next ones are requested; Arrow's buffers are copies. A query decodes only what it needs: for ``offset`` and
``timestamp`` the first fields of each record, for ``view=latest`` the last record of each key. The second
half of the module reads damaged files (``badBatches=quarantine``).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
    SIZE_POSITION,
    BatchHeaders,
    Bytes,
    Flags,
    Int64,
)
from siltstone.base.records.scan import scan_headers
from siltstone.compaction.latest import matching_rows
from siltstone.log.fetch import READ_COMMITTED
from siltstone.log.names import segment_file
from siltstone.log.reading import in_aborted
from siltstone.log.segments import Window, windows
from siltstone.log.transactions import AbortedTransactions, TransactionScan
from siltstone.tables.arrow import (
    BAD_COLUMN,
    BATCH_BYTES,
    BATCH_COLUMN,
    COLUMNS_WITHOUT_RECORD_DATA,
    NO_DECODINGS,
    RecordSource,
    batch_structs,
    bytes_array,
    record_batches,
    schema,
)
from siltstone.tables.decoding import ColumnDecoding, compiled, decoded_schema
from siltstone.tables.options import LOG_VIEW, ReadOptions, RowFilter
from siltstone.tables.splits import (
    READ_WHAT_IS_LEFT,
    FileSplit,
    OffsetRange,
    TaskSplit,
    decode_offsets,
    offsets_in,
    overlapping_transactions,
    reopen_log,
    snapshot_range,
    split_ranges,
)

WINDOW_BYTES = 2 << 20
"""How much of a segment is read at a time."""
BATCH_ROWS = 32_768
"""The most rows of an Arrow batch."""
Columns = TypeVar("Columns", KeyColumns, RecordColumns, TimeColumns)
Decoder = Callable[..., Columns]
"""A function of ``base.records.decode`` that decodes all records of some batches."""
Chunk = tuple[Columns, BatchHeaders, RecordSource]
"""Records, the headers of their batches (``columns.batch`` has the row of each record's batch), their
source."""
_RUN_AGAIN = "run the query again"


def record_schema(options: ReadOptions) -> pa.Schema:
    """The schema of ``table=records``. Raises UsageError for unknown columns."""
    return decoded_schema(raw_schema(options), options.decoders)


def raw_schema(options: ReadOptions) -> pa.Schema:
    """The schema of ``table=records`` with keys and values as they are in the log: bytes."""
    return schema(
        options.columns,
        include_headers=options.include_headers,
        include_batch_metadata=options.include_batch_metadata,
        quarantine_bad_batches=options.quarantine_bad_batches,
    )


def read_records(split: TaskSplit, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The split's records as Arrow batches of ``record_schema``.

    Raises CorruptRecordError; OffsetOutOfRangeError if records were deleted since the query was planned and
    ``failOnDataLoss`` is set; SourceChangedError if a view was planned and its records are not all left;
    UndecodableValueError.
    """
    out_schema = record_schema(options)
    decodings = compiled(options.decoders, out_schema.names)
    decoder: Decoder[Any] = decode_records
    # Where no column and no filter needs keys or values, only the first fields of each record are decoded.
    if options.row_filter.keys is None and COLUMNS_WITHOUT_RECORD_DATA.issuperset(out_schema.names):
        decoder = decode_record_times
    for file_split in split.file_splits:
        if file_split.retained is not None:
            chunks: Iterator[Chunk[Any]] = _read_retained(
                file_split, decode_offsets(file_split.retained), options
            )
        else:
            chunks = _without_superseded(file_split, decode(file_split, options, decoder))
        for chunk in _filtered(chunks, options.row_filter):
            yield from _arrow_batches(chunk, out_schema, decodings)


def _filtered(chunks: Iterator[Chunk[Any]], row_filter: RowFilter) -> Iterator[Chunk[Any]]:
    """The records within the filter's times and with one of its keys. (File splits have its partitions and
    offsets only.)"""
    if row_filter.start_ms is None and row_filter.end_ms is None and row_filter.keys is None:
        yield from chunks
        return
    for columns, batches, source in chunks:
        is_chosen = np.ones(len(columns), np.bool_)
        if row_filter.start_ms is not None:
            is_chosen &= columns.timestamp >= row_filter.start_ms
        if row_filter.end_ms is not None:
            is_chosen &= columns.timestamp < row_filter.end_ms
        if row_filter.keys is not None:
            is_chosen &= has_one_of_keys(columns, row_filter.keys)
        if is_chosen.all():
            yield columns, batches, source
        elif is_chosen.any():
            yield select(columns, np.flatnonzero(is_chosen)), batches, source


def has_one_of_keys(columns: KeyColumns, keys: Sequence[bytes]) -> Flags:
    """Which records have one of these keys."""
    column = bytes_array(columns.data, columns.key_start, columns.key_size)
    return np.asarray(pc.is_in(column, pa.array(keys, pa.binary())))


def _arrow_batches(
    chunk: Chunk[Any], out_schema: pa.Schema, decodings: Mapping[str, ColumnDecoding] = NO_DECODINGS
) -> Iterator[pa.RecordBatch]:
    columns, batches, source = chunk
    return record_batches(
        columns,
        batches,
        out_schema,
        source,
        batch_bytes=BATCH_BYTES,
        rows_max=BATCH_ROWS,
        decodings=decodings,
    )


def decode(
    file_split: FileSplit, options: ReadOptions, decoder: Decoder[Columns]
) -> Iterator[Chunk[Columns]]:
    """The records in a file split's offsets, decoded by ``decoder``, without those of aborted transactions.

    A chunk has at least one record, and is valid until the next one is requested. The caller applies
    ``file_split.retained`` and ``file_split.superseded``.
    """
    scratch, limit = Scratch(), options.max_decompressed_message_bytes
    for part, window, source, is_read in _windows_of_file_split(file_split, options):
        batches_to_read = window.batches[is_read]
        for batch_slice in slices_within(window.data, batches_to_read):
            batches = batches_to_read[batch_slice]
            columns = decoder(
                window.data, batches, scratch, limit=limit, path=source.path, origin=window.origin
            )
            first, end = np.searchsorted(columns.offset, [part.start, part.end]).tolist()
            if end - first < len(columns):
                columns = select(columns, slice(first, end))
            if len(columns):
                yield columns, batches, source


def _without_superseded(file_split: FileSplit, chunks: Iterator[Chunk[Columns]]) -> Iterator[Chunk[Columns]]:
    """The records of the chunks, except those at ``file_split.superseded``."""
    superseded = (
        np.empty(0, np.int64) if file_split.superseded is None else decode_offsets(file_split.superseded)
    )
    for columns, batches, source in chunks:
        rows = matching_rows(columns.offset, superseded)
        if not len(rows):
            yield columns, batches, source
        elif len(rows) < len(columns):
            yield select(columns, np.delete(np.arange(len(columns)), rows)), batches, source


def _read_retained(
    file_split: FileSplit, retained: Int64, options: ReadOptions
) -> Iterator[Chunk[RecordColumns]]:
    """The records at the retained offsets. No other record of a v2 batch is decoded.

    Raises SourceChangedError unless every retained offset has its record."""
    scratch, count = Scratch(), 0
    try:
        for _, window, source, is_read in _windows_of_file_split(file_split, options):
            for rows in _rows_of_one_format(window, is_read, retained):
                columns = _decode_retained(window, rows, retained, scratch, source.path, options)
                count += len(columns)
                if not options.keep_tombstones:
                    columns = select(columns, np.flatnonzero(columns.value_size >= 0))
                if len(columns):
                    yield columns, window.batches, source
    except CheckFailedError:
        pass  # A retained offset has no record, so the counts differ: see below.
    if count != len(retained):
        raise SourceChangedError(
            "the log was cleaned or truncated since the query was planned: "
            f"{count} of {len(retained)} records of the view are left",
            path=file_split.directory,
            advice=_RUN_AGAIN,
        )


def _rows_of_one_format(window: Window, is_read: Flags, retained: Int64) -> Iterator[Int64]:
    """Rows of the window's batches that may have retained offsets, in groups that can be decoded at once.

    The batches of a group have one format (v2, or older), offsets less than 2³² apart, since
    ``ChosenOffsets`` has them as 32-bit numbers, and a size that ``slices_within`` allows."""
    batches = window.batches
    is_v2, base = batches["magic"] == 2, batches["base_offset"]
    has_retained = np.searchsorted(retained, base) < np.searchsorted(retained, batches["last_offset"] + 1)
    # A compressed message set (v0, v1) has its last offset in both fields, so it is always decoded.
    rows = np.flatnonzero(is_read & (has_retained | ~is_v2))
    if len(rows):
        # Batches of one block of 2³¹ offsets. A batch has less than 2³¹, so its last offset is below 2³²,
        # too.
        block = (base[rows] - base[rows[0]]) >> 31
        edges = np.flatnonzero((np.diff(block) != 0) | (np.diff(is_v2[rows]) != 0)) + 1
        for part in np.split(rows, edges):
            yield from (part[batch_slice] for batch_slice in slices_within(window.data, batches[part]))


def _decode_retained(
    window: Window, rows: Int64, retained: Int64, scratch: Scratch, path: str, options: ReadOptions
) -> RecordColumns:
    """The records at the retained offsets of these rows of the window's batches.

    Raises CheckFailedError if a retained offset has no record in a v2 batch."""
    batches, origin, limit = window.batches, window.origin, options.max_decompressed_message_bytes
    if batches["magic"][rows[0]] != 2:
        columns = decode_records(window.data, batches[rows], scratch, limit=limit, path=path, origin=origin)
        chosen_columns = select(columns, matching_rows(columns.offset, retained)) if len(columns) else columns
        # ``columns.batch`` has rows of ``batches[rows]``; the caller needs rows of all the window's batches.
        return dataclasses.replace(chosen_columns, batch=rows[chosen_columns.batch].astype(np.int32))
    offsets = offsets_in(
        retained, int(batches["base_offset"][rows[0]]), int(batches["last_offset"][rows[-1]]) + 1
    )
    chosen_offsets = ChosenOffsets(
        offsets=(offsets - offsets[0]).astype(np.uint32),
        base=int(offsets[0]),
        matched=0,  # ``offsets`` begins with those of these batches
        all_from=np.full(len(rows), LONG_MAX),  # in no batch are all records decoded
    )
    chosen = decode_chosen_records(
        window.data, batches, rows, chosen_offsets, scratch, limit=limit, path=path, origin=origin
    )
    return chosen.columns


_FileSplitWindow = tuple[FileSplit, Window, RecordSource, Flags]
"""A file split, a window of its bytes, where these come from, and for each batch of the window whether it is
read."""


def _windows_of_file_split(file_split: FileSplit, options: ReadOptions) -> Iterator[_FileSplitWindow]:
    """The file split's bytes, window by window; batches of aborted transactions are not read.

    Raises CorruptFileError if the transaction index and the markers of this file split contradict each other.
    """
    for part, reader in open_file_splits(file_split, options):
        scan = None
        if options.isolation == READ_COMMITTED:
            scan = TransactionScan(AbortedTransactions.from_transactions(part.aborted, reader.path))
        size = part.end_position
        for window in windows(reader, start=part.position, end=size, window_size=WINDOW_BYTES):
            batches, is_read = window.batches, may_have_records(part, window.batches)
            # ``aborted`` has only the transactions that overlap the file split's offsets, but its bytes may
            # have batches beyond them, which the scan must not see.
            rows = np.flatnonzero(
                (batches["last_offset"] >= part.start) & (batches["base_offset"] < part.end)
            )
            if scan is not None and len(rows):
                is_read[rows] &= ~scan.find_aborted(
                    window.data, batches[rows], path=reader.path, origin=window.origin
                )
            yield part, window, RecordSource(part.topic_partition, reader.path, window.origin), is_read


def may_have_records(file_split: FileSplit, batches: BatchHeaders) -> Flags:
    """Which batches may have records in the file split's offsets; control batches and empty ones have
    none."""
    # A message set (v0, v1) has no control bit, and a compressed one has its last offset as base offset, too.
    is_message_set = batches["magic"] < 2
    may_have = ((batches["attributes"] & CONTROL_BIT) == 0) | is_message_set
    may_have &= batches["last_offset"] >= file_split.start
    may_have &= (batches["base_offset"] < file_split.end) | is_message_set
    may_have &= batches["count"] != 0
    return np.asarray(may_have)


def open_file_splits(file_split: FileSplit, options: ReadOptions) -> Iterator[tuple[FileSplit, files.Reader]]:
    """The file split with its open file. If the file was replaced, the new file splits that have the same
    offsets.

    Raises OffsetOutOfRangeError, SourceChangedError.
    """
    reader = _open_if_same(file_split)
    if reader is not None:
        with reader:
            yield file_split, reader
    else:
        for part in _replanned(file_split, options):
            yield from open_file_splits(part, options)


def _open_if_same(file_split: FileSplit) -> files.Reader | None:
    """The file split's open file; None if the segment has another file now, or none."""
    try:
        reader = files.Reader(Path(file_split.directory) / segment_file(file_split.base_offset, "log"))
    except FileNotFoundError:
        return None
    if file_split.identity.matches(reader.stat) and reader.stat.size >= file_split.end_position:
        return reader
    reader.close()
    return None


def _replanned(file_split: FileSplit, options: ReadOptions) -> Iterator[FileSplit]:
    """New file splits for the same offsets, planned from the log as it is now."""
    if options.view != LOG_VIEW or options.as_of is not None:
        reason = "the log has changed since the query was planned, and the planned view is lost"
        raise SourceChangedError(reason, path=file_split.directory, advice=_RUN_AGAIN)
    log = reopen_log(file_split.directory, file_split.topic_partition)
    start, end = log.log_start_offset, log.view.readable_end(options.isolation)
    if options.fail_on_data_loss and not start <= file_split.start <= file_split.end <= end:
        raise OffsetOutOfRangeError(
            f"offsets {file_split.start} to {file_split.end} were planned, but the log has {start} to {end} "
            "now",
            path=str(file_split.topic_partition),
            advice=READ_WHAT_IS_LEFT,
        )
    remaining = OffsetRange(max(file_split.start, start), min(file_split.end, end))
    unbounded_options = dataclasses.replace(options, min_partitions=None, max_records_per_partition=None)
    for split in split_ranges([snapshot_range(log, remaining)], unbounded_options):
        yield from split.file_splits


# Damage as rows: ``badBatches=quarantine``.
#
# ::
#
#     badBatch    text: why a batch cannot be read; null for records. Its row has topic, partition, the offset
#                 at which the batch begins, and the fields of its header, as far as they are known
#
#     bytes of a segment      ┌ batch ┬ batch ┬ bad checksum ┬ batch ┬ no header ........ ┬ batch ┐
#     rows                     records  records  one bad row   records  one bad row         records
#                                                                       └ BatchSearch.find ─►┘
#
# A batch with a wrong checksum, or with records that cannot be decoded, is one bad row. Where no header can
# be read, the length of the batch is unknown: its row covers all bytes up to the next position at which a
# whole batch begins, with a matching checksum and a higher offset. Reading continues there. A bad batch is a
# row of the file split in whose offsets it begins, so each is reported once.
#
# The work is proportional to the bytes of the file split, whatever they are. After each damage windows begin
# small and double, so reading on costs no more than a multiple of what it finds. Bytes that only look like a
# header may claim any length: ``BatchSearch`` bounds the checksums that this costs, and a row says if
# positions were left unchecked.

OUT_OF_ORDER = "its offsets are not between those of the batch before it and the batch after it"
_SEARCH_BYTES = 4 << 20
"""The largest window in which batches are read, and searched for, in a damaged file."""
_FIRST_SEARCH_BYTES = 4 << 10
"""The first window after damage."""
_CHECKED_PER_BYTE = 16
"""The limit of all searches of a file split: checksums that find no batch cover at most this many times the
file split's bytes."""
_BATCH_BYTES_MAX = 1 << 30
"""Bytes that look like the header of a larger batch are not taken for one."""


def read_quarantine(split: TaskSplit, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The split's records, and a row for each bad batch, as Arrow batches of ``record_schema``.

    Raises as ``read_records``, but no CorruptRecordError.
    """
    out_schema = record_schema(options)
    for planned in split.file_splits:
        for file_split, reader in open_file_splits(planned, options):
            for part in _chunks_and_bad_batches(file_split, reader, options.max_decompressed_message_bytes):
                if not isinstance(part, BadBatch):
                    columns, batches, source = part
                    rows = _rows_of_file_split(file_split, columns, batches)
                    if len(rows):
                        yield from _arrow_batches((select(columns, rows), batches, source), out_schema)
                elif file_split.start <= part.offset < file_split.end:
                    yield _row_of_bad_batch(part, out_schema)


def _rows_of_file_split(file_split: FileSplit, columns: RecordColumns, batches: BatchHeaders) -> Int64:
    """The rows of the file split's records, without control records and those of aborted transactions.

    The transaction index alone says which transactions were aborted: a damaged batch may have been a marker,
    so reading the markers is not enough.
    """
    is_read = may_have_records(file_split, batches)
    if file_split.aborted:
        first, last = int(batches["base_offset"][0]), int(batches["last_offset"][-1])
        is_read &= ~in_aborted(batches, overlapping_transactions(file_split.aborted, first, last + 1))
    is_inside = (columns.offset >= file_split.start) & (columns.offset < file_split.end)
    return np.flatnonzero(is_read[columns.batch] & is_inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadBatch:
    """Bytes ``[position, position + size)`` of a file that cannot be read as a batch, and the reason.

    ``offset``: the first offset that the batch can have. ``header``: one row of ``BATCH``, whose position is
    that in the file; no row if there is no header.
    """

    source: RecordSource
    reason: str
    offset: int
    position: int
    size: int
    header: BatchHeaders


def _row_of_bad_batch(bad: BadBatch, out_schema: pa.Schema) -> pa.RecordBatch:
    """An Arrow batch with one row, which reports the bad batch."""
    values = {
        "topic": bad.source.topic_partition.topic,
        "partition": bad.source.topic_partition.partition,
        "offset": bad.offset,
        BAD_COLUMN: bad.reason,
        BATCH_COLUMN: {
            "file": bad.source.path,
            "position": bad.position,
            "size": min(bad.size, (1 << 31) - 1),  # the field is an int32
            "crcValid": False,
        },
    }
    arrays = {field.name: pa.array([values.get(field.name)], field.type) for field in out_schema}
    if BATCH_COLUMN in arrays and len(bad.header):
        is_valid = np.array([bad.reason != BAD_CHECKSUM])
        base_offset = bad.header["base_offset"].astype(np.int64)
        row_of_batch = np.zeros(1, np.int32)
        arrays[BATCH_COLUMN] = batch_structs(bad.header, is_valid, bad.source, row_of_batch, base_offset)
    return pa.RecordBatch.from_arrays(list(arrays.values()), schema=out_schema)


_Parts = Iterator[Chunk[RecordColumns] | BadBatch]
"""Chunks of sound batches with their records, and bad batches."""


def _chunks_and_bad_batches(file_split: FileSplit, reader: files.Reader, limit: int) -> _Parts:
    """The file split's bytes in order: chunks of sound batches with their records, and bad batches.

    ``limit``: the most bytes that one batch may decompress to. Columns are valid until the next are
    requested.
    """
    source, end = RecordSource(file_split.topic_partition, reader.path), file_split.end_position
    # ``offset`` is the least that the next batch may begin at. ``bad_checksum_at`` is the position of the
    # previous batch if its checksum is wrong, otherwise -1.
    position, offset, bad_checksum_at = file_split.position, file_split.start, -1
    window_size, search = _SEARCH_BYTES, BatchSearch(reader, file_split)
    while position < end:
        try:
            for window in windows(reader, start=position, end=end, window_size=window_size, verify=False):
                for part in _parts_of_window(source._replace(origin=window.origin), window, offset, limit):
                    bad_checksum_at = -1
                    if not isinstance(part, BadBatch):
                        offset = max(offset, int(part[1]["last_offset"][-1]) + 1)
                    elif part.reason == BAD_CHECKSUM:
                        bad_checksum_at = part.position
                    yield part
                position = window.origin + int(window.batches["position"][-1] + window.batches["size"][-1])
                if window_size < _SEARCH_BYTES:  # after damage: continue with windows of twice the size
                    window_size *= 2
                    break
            else:
                return
        except CorruptRecordError as error:
            # There is no header at ``error.position``. If the previous batch has a bad checksum, its length
            # may be wrong: the search then begins inside that batch, which has its bad row already.
            first = error.position if bad_checksum_at < 0 else bad_checksum_at
            position = search.find(first, error.position, offset)
            if bad_checksum_at < 0 or search.unchecked:
                yield BadBatch(
                    source=source,
                    reason=f"{error.reason}: {search.result(first, position)}",
                    offset=offset,
                    position=first,
                    size=position - first,
                    header=np.empty(0, BATCH),
                )
            window_size, bad_checksum_at = _FIRST_SEARCH_BYTES, -1


def _parts_of_window(source: RecordSource, window: Window, offset: int, limit: int) -> _Parts:
    """The window's batches in order: chunks of sound batches with their records, and each bad batch.

    ``offset``: the least that the first batch may begin at."""
    is_valid = checksums_hold(window.data, window.batches)
    is_sound = is_valid & ~_out_of_order(window.batches, is_valid, offset)
    first = 0
    for row in [*np.flatnonzero(~is_sound).tolist(), len(is_valid)]:
        if row > first:
            for part in slices_within(window.data, window.batches[first:row]):
                yield from _decoded_or_bad(source, window, first + part.start, first + part.stop, limit)
            offset = max(offset, int(window.batches["last_offset"][row - 1]) + 1)
        if row < len(is_valid):
            yield _bad_batch(source, window, row, OUT_OF_ORDER if is_valid[row] else BAD_CHECKSUM, offset)
        first = row + 1


def _out_of_order(batches: BatchHeaders, is_valid: Flags, offset: int) -> Flags:
    """Which batches have an impossible base offset: bool, one per batch. The checksum does not cover it.

    ``offset``: the least that the first batch may begin at."""
    base, last = batches["base_offset"], batches["last_offset"]
    is_wrong = np.zeros(len(batches), np.bool_)
    if int(base[0]) >= offset and (base[1:] > last[:-1]).all():
        return is_wrong
    # Two neighbours contradict each other, and only one of them is wrong. A batch that begins below the end
    # of the sound ones before it is wrong. So is a batch that reaches its successor, if the successor would
    # fit behind the sound ones before both.
    rows = np.flatnonzero(is_valid).tolist()
    for row, following in itertools.zip_longest(rows, rows[1:]):
        reaches = following is not None and offset <= base[following] <= last[row]
        is_wrong[row] = base[row] < offset or reaches
        offset = offset if is_wrong[row] else int(last[row]) + 1
    return is_wrong


def _decoded_or_bad(source: RecordSource, window: Window, start: int, end: int, limit: int) -> _Parts:
    """Decode batches ``[start, end)``, whose checksums hold; a batch that cannot be decoded is a bad batch.

    After a bad batch, the next attempt has one batch, and each further one twice as many as were decoded: so
    many bad batches do not make it decode the others again and again."""
    scratch, stop = Scratch(), end
    while start < end:
        batches = window.batches[start:stop]
        try:
            columns = decode_records(
                window.data, batches, scratch, limit=limit, path=source.path, origin=window.origin
            )
        except CorruptRecordError as error:
            # First decode the batches before the damaged one. In the next attempt it is the first: a bad
            # batch.
            row = np.searchsorted(batches["position"] + window.origin, error.position, side="right") - 1
            stop = start + max(int(row), 0)
            if stop == start:
                reason = error.reason + (f"; {error.advice}" if error.advice else "")
                yield _bad_batch(source, window, start, reason, int(batches["base_offset"][0]))
                start, stop = start + 1, min(start + 2, end)
        else:
            yield columns, batches, source
            start, stop = stop, min(stop + 2 * (stop - start), end)


def _bad_batch(source: RecordSource, window: Window, row: int, reason: str, offset: int) -> BadBatch:
    """A row of the window's batches as a bad batch. ``offset``: the least that it may begin at."""
    header = window.batches[row : row + 1].copy()
    header["position"] += window.origin
    base = int(header["base_offset"][0])
    next_base = window.batches["base_offset"][row + 1] if row + 1 < len(window.batches) else base + 1
    # The base offset in the header counts only if it fits between the batches before and after.
    is_possible = offset <= base < max(int(next_base), offset + 1)
    return BadBatch(
        source=source._replace(origin=0),
        reason=reason,
        offset=base if is_possible else offset,
        position=int(header["position"][0]),
        size=int(header["size"][0]),
        header=header,
    )


class BatchSearch:
    """Finds the next batch in a file split, where no header can be read.

    Bytes that look like a header can have any length in them, and only the checksum of that many bytes shows
    whether a batch begins there. ``_CHECKED_PER_BYTE`` limits what all searches of a file split check without
    finding a batch. Positions whose length is over what is left of this limit are not checked: ``unchecked``
    counts those of the last search.
    """

    def __init__(self, reader: files.Reader, file_split: FileSplit) -> None:
        self._reader, self._end = reader, file_split.end_position
        # Offsets are less than 2³¹ above the segment's base offset, except in an overflowed segment, which is
        # never the last one of its log (whose split has no end).
        self._offset_end = min(file_split.base_offset + (1 << 31), LONG_MAX)
        if file_split.end < LONG_MAX:
            self._offset_end = max(self._offset_end, file_split.end)
        self._bytes_left = _CHECKED_PER_BYTE * (file_split.end_position - file_split.position)
        self.unchecked = 0

    def find(self, start: int, damaged_at: int, offset: int) -> int:
        """The first position after ``start`` at which a whole v2 batch begins, with a matching checksum and a
        base offset of at least ``offset``; the end of the file split if there is none.

        There is no header at ``damaged_at``. If ``start`` is before it, a batch with a bad checksum begins at
        ``start`` and ends there: its bytes count as checked.
        """
        self.unchecked = 0
        position = (start if self._may_check(damaged_at - start) else damaged_at) + 1
        window_size = _FIRST_SEARCH_BYTES
        while position + BATCH_OVERHEAD <= self._end:
            data = np.empty(min(window_size, self._end - position), np.uint8)
            data = data[: self._reader.read_into(data, position)]
            if len(data) < BATCH_OVERHEAD:
                break
            for start_of_batch in self._possible_batches(data, self._end - position, offset).tolist():
                if self._is_batch(position + start_of_batch):
                    return position + int(start_of_batch)
            position += len(data) - BATCH_OVERHEAD + 1  # A header may begin in the last bytes of the window.
            window_size = min(2 * window_size, _SEARCH_BYTES)
        return self._end

    def result(self, start: int, end: int) -> str:
        """The outcome of the last search, for the reason of a bad row: bytes ``[start, end)`` hold no batch,
        or may hold one."""
        if not self.unchecked:
            return f"bytes {start} to {end} hold no batch"
        return (
            f"bytes {start} to {end} may hold a batch: the search reached its limit, checksums of "
            f"{_CHECKED_PER_BYTE} times the bytes of the file split (positions not checked: {self.unchecked})"
        )

    def _may_check(self, size: int) -> bool:
        """Take ``size`` from the bytes that may be checked, if that many are left."""
        if size > self._bytes_left:
            self.unchecked += 1
            return False
        self._bytes_left -= size
        return True

    def _possible_batches(self, data: Bytes, bytes_left: int, offset: int) -> Int64:
        """The positions in ``data`` at which the first fields of a batch header (v2) have possible values.

        ``data`` has at least a header's size; ``bytes_left``: bytes from its start to the end of the file
        split.

        ::

            base offset int64 | length int32 | leader epoch int32 | magic int8 = 2 | …      big-endian
        """
        magic = data[MAGIC_POSITION : len(data) - BATCH_OVERHEAD + MAGIC_POSITION + 1]
        positions: Int64 = np.flatnonzero(magic == 2)
        headers = np.lib.stride_tricks.sliding_window_view(data, LOG_OVERHEAD)[positions]
        base_offset = headers[:, :SIZE_POSITION].copy().view(">i8")[:, 0]
        length = headers[:, SIZE_POSITION:LOG_OVERHEAD].copy().view(">i4")[:, 0]
        size = length.astype(np.int64) + LOG_OVERHEAD
        fits = (size >= BATCH_OVERHEAD) & (size <= np.minimum(bytes_left - positions, _BATCH_BYTES_MAX))
        return positions[(base_offset >= offset) & (base_offset < self._offset_end) & fits]

    def _is_batch(self, position: int) -> bool:
        """Does a whole batch with a matching checksum begin at ``position``?"""
        header = np.frombuffer(self._reader.read(position, BATCH_OVERHEAD), np.uint8)
        batches = scan_headers(header, self._end - position).batches[:1]
        size = int(batches["size"][0]) if len(batches) else 0
        if not size or not self._may_check(size):
            return False
        data = np.frombuffer(self._reader.read(position, size), np.uint8)
        if len(data) < size or not checksums_hold(data, batches)[0]:
            return False
        self._bytes_left += size  # only what is no batch counts
        return True
