"""Converts message sets (magic 0 and 1) into record batches (magic 2) when they are rewritten.

Kafka 4 writes only record batches: a message set entry that it rebuilds becomes one::

    entry of magic 0 or 1, plain or compressed ──►  one batch with the entry's records
        base and last offset    of the first and the last retained record
        codec, timestamp type   the entry's (magic 0: create time)
        base timestamp          the first record's, or the delete horizon with its attribute bit
        largest timestamp       of the retained records; magic 0 has -1 everywhere
        leader epoch, producer id and epoch, base sequence     -1

The cleaner passes which records it retains and which delete horizons to set. A converted record outgrows its
message by ``MAX_CONVERSION_GROWTH`` bytes at most, so the output is allocated once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from siltstone.base.records import layout
from siltstone.base.records.build import Spans, compress_batches, encode_record, write_header, write_int
from siltstone.base.records.checksum import patch_checksums
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.columns import ColumnArrays, RecordColumns, select
from siltstone.base.records.decompression import corrupt_batch
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import BatchHeaders, Bytes, Flags, Int64, codec_of

NO_HORIZON = -1
_OFFSET_DELTA_MAX = (1 << 31) - 1
MAX_CONVERSION_GROWTH = 6
"""Most bytes by which a converted record can outgrow its message (magic 0, its varints at their longest)."""
TOO_FAR_APART = "a message set's offsets are too far apart for one batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedBatches:
    """Finished batches: ``data`` uint8, and a row a batch (int64).

    ``entry`` is the row of the message set entry that it was; sizes are whole batches' and fill ``data``.
    """

    data: Bytes
    entry: Int64
    last_offset: Int64
    max_timestamp: Int64
    size: Int64


class _Batches(NamedTuple):
    """Where each entry's batch begins in the output, its size (0: none of it is retained), its last offset
    and its largest timestamp: int64, a row an entry."""

    start: Int64
    size: Int64
    last_offset: Int64
    max_timestamp: Int64


@kernel
def _convert(
    entries: BatchHeaders,
    attributes: Int64,
    horizon: Int64,
    bounds: Int64,
    data: Bytes,
    columns: ColumnArrays,
    keep_empty: Flags,
    out: Bytes,
    made: _Batches,
) -> int:
    """Write each entry's records, ``columns[bounds[i]:bounds[i + 1]]``, as one batch, plain and without
    checksum, and fill ``made``; returns -1, or the row whose offsets do not fit into a batch.
    """
    offset, timestamp, position = columns.offset, columns.timestamp, 0
    keys = Spans(data, columns.key_start, columns.key_size)
    values = Spans(data, columns.value_start, columns.value_size)
    headers = Spans(data, columns.headers_start, columns.header_count)  # messages have none
    for i in range(len(entries)):
        first, end = bounds[i], bounds[i + 1]
        made.start[i], made.size[i] = position, 0
        if first == end and not keep_empty[i]:
            continue
        # A batch without records keeps the entry's offset.
        base, last, largest = entries[i].base_offset, entries[i].last_offset, entries[i].max_timestamp
        base_time, bits = -1, attributes[i] & ~layout.CODEC_MASK
        if first < end:
            base, last, largest = offset[first], offset[end - 1], timestamp[first]
            base_time, bits = horizon[i] if horizon[i] >= 0 else timestamp[first], attributes[i]
        if last - base > _OFFSET_DELTA_MAX:
            return i
        next_position = position + layout.BATCH_OVERHEAD
        for row in range(first, end):
            delta, time = offset[row] - base, timestamp[row] - base_time
            next_position = encode_record(row, delta, time, keys, values, headers, out, next_position)
            largest = max(largest, timestamp[row])
        size = next_position - position
        write_header(out, position, size, entries[i], bits, base_time, largest, end - first)
        # ``write_header`` took the entry's offsets; a wrapper's are both its last message's.
        write_int(out, position, base, 8)
        write_int(out, position + layout.LAST_OFFSET_DELTA_POSITION, last - base, 4)
        made.last_offset[i], made.max_timestamp[i], made.size[i] = last, largest, size
        position = next_position
    return -1


def convert_entries(
    entries: BatchHeaders,
    columns: RecordColumns,
    *,
    keep: Flags,
    horizon_ms: Int64,
    keep_empty: Flags,
    path: str,
    origin: int,
) -> ConvertedBatches:
    """Convert message set ``entries`` (magic 0 and 1) into record batches, one for each with records.

    ``columns`` are the decoded records of exactly these entries; ``keep`` (bool, one a record) says which
    stay. ``horizon_ms`` (int64, one an entry) is its delete horizon, or NO_HORIZON. ``keep_empty`` (bool,
    one an entry): an entry of which none stays becomes a batch without records. The window begins at
    ``origin`` in ``path``. Raises CorruptRecordError for offsets too far apart for a batch.
    """
    total = len(entries)
    assert not total or int(entries["magic"].max()) < 2, "record batches need no conversion"
    records = select(columns, keep)
    records_size = int((records.size.astype(np.int64) + MAX_CONVERSION_GROWTH).sum())
    out = np.empty(layout.BATCH_OVERHEAD * total + records_size, np.uint8)
    made = _Batches(*np.empty((4, total), np.int64))
    bad = _convert(
        entries,
        _attributes(entries, horizon_ms),
        horizon_ms,
        np.searchsorted(records.batch, np.arange(total + 1)),
        records.data,
        records.arrays,
        keep_empty,
        out,
        made,
    )
    if bad >= 0:
        raise corrupt_batch(entries, bad, TOO_FAR_APART, path, origin)
    codecs = np.where(made.size > layout.BATCH_OVERHEAD, codec_of(entries), 0)
    data, starts, sizes = out[: int(made.size.sum())], made.start, made.size
    if codecs.any():
        data, starts, sizes = compress_batches(data, starts, sizes, codecs, Scratch(len(data) + 1))
    rows = np.flatnonzero(sizes)
    patch_checksums(data, starts[rows], sizes[rows])
    return ConvertedBatches(
        data=data,
        entry=rows,
        last_offset=made.last_offset[rows],
        max_timestamp=made.max_timestamp[rows],
        size=sizes[rows],
    )


def _attributes(entries: BatchHeaders, horizon: Int64) -> Int64:
    """The batches' attributes: of the entries' those that are known to magic 2, and the horizon's bit."""
    known = np.where(entries["magic"] == 0, layout.CODEC_MASK, layout.CODEC_MASK | layout.TIMESTAMP_TYPE_BIT)
    attributes = (entries["attributes"] & known) | np.where(horizon >= 0, layout.DELETE_HORIZON_BIT, 0)
    return attributes.astype(np.int64)
