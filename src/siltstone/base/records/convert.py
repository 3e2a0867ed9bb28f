"""Converts message sets (magic 0 and 1) into record batches (magic 2) when they are rewritten.

Kafka 4 writes only record batches, so a message set entry becomes a record batch when the cleaner rewrites
it::

    entry of magic 0 or 1, plain or compressed ──►  one batch with the entry's records
        base and last offset    of the first and the last retained record
        codec, timestamp type   the entry's (magic 0: create time)
        base timestamp          the first record's, or the delete horizon with its attribute bit
        largest timestamp       of the retained records; -1 for magic 0, which has no timestamps
        leader epoch, producer id and epoch, base sequence     -1

The cleaner passes which records it retains and which delete horizons it sets. The output is allocated once,
since a converted record is at most ``MAX_CONVERSION_GROWTH`` bytes larger than its message.
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
"""The entry gets no delete horizon."""
_MAX_OFFSET_DELTA = (1 << 31) - 1
MAX_CONVERSION_GROWTH = 6
"""Most bytes by which a record can be larger than its message: that of magic 0 with the longest varints."""
TOO_FAR_APART = "a message set's offsets are too far apart for one batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedBatches:
    """The new batches: their bytes one after another (``data``, uint8), and columns with one row a batch
    (int64).

    ``entry``: the row of the message set entry that became the batch. ``size``: bytes of the whole batch.
    """

    data: Bytes
    entry: Int64
    last_offset: Int64
    max_timestamp: Int64
    size: Int64


class _BuiltBatches(NamedTuple):
    """The batch of each entry (int64, one row an entry): its start in the output, its size (0: the entry
    becomes no batch), its last offset and its largest timestamp."""

    start: Int64
    size: Int64
    last_offset: Int64
    max_timestamp: Int64


@kernel
def _write_batches(
    entries: BatchHeaders,
    attributes: Int64,
    delete_horizons: Int64,
    record_bounds: Int64,
    data: Bytes,
    columns: ColumnArrays,
    keeps_empty: Flags,
    out: Bytes,
    built: _BuiltBatches,
) -> int:
    """Write the records of every entry, ``columns[record_bounds[i]:record_bounds[i + 1]]``, as one batch
    without compression and checksum, and fill ``built``; returns -1, or the row of the entry whose offsets do
    not fit into a batch.
    """
    offset, timestamp, position = columns.offset, columns.timestamp, 0
    keys = Spans(data, columns.key_start, columns.key_size)
    values = Spans(data, columns.value_start, columns.value_size)
    headers = Spans(data, columns.headers_start, columns.header_count)  # messages have none
    for i in range(len(entries)):
        first, end = record_bounds[i], record_bounds[i + 1]
        built.start[i], built.size[i] = position, 0
        if first == end and not keeps_empty[i]:
            continue
        # A batch without records keeps the entry's offset.
        entry, base_timestamp, batch_attributes = entries[i], -1, attributes[i] & ~layout.CODEC_MASK
        base_offset, last_offset, max_timestamp = entry.base_offset, entry.last_offset, entry.max_timestamp
        if first < end:
            base_offset, last_offset, max_timestamp = offset[first], offset[end - 1], timestamp[first]
            base_timestamp = delete_horizons[i] if delete_horizons[i] >= 0 else timestamp[first]
            batch_attributes = attributes[i]
        if last_offset - base_offset > _MAX_OFFSET_DELTA:
            return i
        next_position = position + layout.BATCH_OVERHEAD
        for row in range(first, end):
            offset_delta, timestamp_delta = offset[row] - base_offset, timestamp[row] - base_timestamp
            next_position = encode_record(
                row, offset_delta, timestamp_delta, keys, values, headers, out, next_position
            )
            max_timestamp = max(max_timestamp, timestamp[row])
        size = next_position - position
        write_header(out, position, size, entry, batch_attributes, base_timestamp, max_timestamp, end - first)
        # ``write_header`` wrote the entry's offsets. Those of a compressed entry are both its last message's.
        write_int(out, position, base_offset, 8)
        write_int(out, position + layout.LAST_OFFSET_DELTA_POSITION, last_offset - base_offset, 4)
        built.last_offset[i], built.max_timestamp[i], built.size[i] = last_offset, max_timestamp, size
        position = next_position
    return -1


def convert_entries(
    entries: BatchHeaders,
    columns: RecordColumns,
    *,
    is_retained: Flags,
    horizon_ms: Int64,
    keeps_empty: Flags,
    path: str,
    origin: int,
) -> ConvertedBatches:
    """Convert message set ``entries`` (magic 0 and 1) into record batches, one for each with records.

    ``columns`` are the decoded records of exactly these entries, ``is_retained`` (bool, one a record) says
    which of them are retained. ``horizon_ms`` (int64, one an entry) are delete horizons or NO_HORIZON.
    ``keeps_empty`` (bool, one an entry): if no record is retained, the entry becomes a batch without records:
    the last one of a cleaned range does, so that its offset stays. The entries' positions count from byte
    ``origin`` of the file ``path``. Raises CorruptRecordError for offsets too far apart for one batch.
    """
    total = len(entries)
    assert not total or int(entries["magic"].max()) < 2, "record batches need no conversion"
    records = select(columns, is_retained)
    records_size = int((records.size.astype(np.int64) + MAX_CONVERSION_GROWTH).sum())
    out = np.empty(layout.BATCH_OVERHEAD * total + records_size, np.uint8)
    built = _BuiltBatches(*np.empty((4, total), np.int64))
    bad_row = _write_batches(
        entries,
        _attributes(entries, horizon_ms),
        horizon_ms,
        np.searchsorted(records.batch, np.arange(total + 1)),
        records.data,
        records.arrays,
        keeps_empty,
        out,
        built,
    )
    if bad_row >= 0:
        raise corrupt_batch(entries, bad_row, TOO_FAR_APART, path, origin)
    codecs = np.where(built.size > layout.BATCH_OVERHEAD, codec_of(entries), 0)
    data, starts, sizes = out[: int(built.size.sum())], built.start, built.size
    if codecs.any():
        data, starts, sizes = compress_batches(data, starts, sizes, codecs, Scratch(len(data) + 1))
    rows = np.flatnonzero(sizes)
    patch_checksums(data, starts[rows], sizes[rows])
    return ConvertedBatches(
        data=data,
        entry=rows,
        last_offset=built.last_offset[rows],
        max_timestamp=built.max_timestamp[rows],
        size=sizes[rows],
    )


def _attributes(entries: BatchHeaders, delete_horizons: Int64) -> Int64:
    """The attributes of the batches: codec and timestamp type of the entries, and the delete horizon's
    bit."""
    kept = np.where(entries["magic"] == 0, layout.CODEC_MASK, layout.CODEC_MASK | layout.TIMESTAMP_TYPE_BIT)
    attributes = (entries["attributes"] & kept) | np.where(delete_horizons >= 0, layout.DELETE_HORIZON_BIT, 0)
    return attributes.astype(np.int64)
