"""Message sets to record batches: what is cleaned of magic 0 and 1 becomes magic 2.

Kafka 4 writes nothing but record batches; whatever it rebuilds of a message set becomes one::

    entry of magic 0 or 1, plain or compressed ──►  one batch with the entry's records
        base and last offset    of the first and the last record that stays
        codec, timestamp type   the entry's (magic 0: create time)
        base timestamp          the first record's, or the delete horizon with its attribute bit
        largest timestamp       of those that stay; magic 0 has -1 everywhere
        leader epoch, producer id and epoch, base sequence     -1

The cleaner hands in which records stay and which horizons to stamp. A converted record is hardly ever larger
than the message that it was, so room is known beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.build import Spans, compress_batches, encode_record, write_header, write_int
from siltstone.base.records.checksum import patch_checksums
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.columns import ColumnArrays, RecordColumns
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    LAST_OFFSET_DELTA_POSITION,
    TIMESTAMP_TYPE_BIT,
    Bytes,
    Directory,
    Flags,
    Int64,
    codec_of,
)

NO_HORIZON = -1
_OFFSET_DELTA_MAX = (1 << 31) - 1
RECORD_GROWTH = 6
"""Most bytes by which a converted record can outgrow its message (magic 0, its varints at their longest)."""
TOO_FAR_APART = "a message set's offsets are further apart than a batch can tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """Finished batches: ``data`` uint8, and a row a batch (int64).

    ``entry`` is the row of the message set entry that it was; sizes are whole batches' and fill ``data``.
    """

    data: Bytes
    entry: Int64
    last_offset: Int64
    max_timestamp: Int64
    size: Int64


@kernel
def _survey(
    first: int, behind: int, offset: Int64, timestamp: Int64, keep: Flags
) -> tuple[int, int, int, int, int]:
    """Of the records that stay: count, first and last row, first and largest timestamp."""
    count, first_row, last_row = 0, 0, 0
    first_time, last_time = -1, -1
    for row in range(first, behind):
        if not keep[row]:
            continue
        if count == 0:
            first_row = row
            first_time = timestamp[row]
            last_time = timestamp[row]
        count += 1
        last_row = row
        last_time = max(last_time, timestamp[row])
    return count, first_row, last_row, first_time, last_time


class _Batches(NamedTuple):
    """Where each entry's batch begins in the output, its size (0: nothing of it stays), and what it says:
    int64, a row an entry."""

    start: Int64
    size: Int64
    last_offset: Int64
    max_timestamp: Int64


@kernel
def _convert(
    entries: Directory,
    attributes: Int64,
    horizon: Int64,
    bounds: Int64,
    data: Bytes,
    columns: ColumnArrays,
    keep: Flags,
    keep_empty: Flags,
    out: Bytes,
    made: _Batches,
) -> int:
    """Write each entry's records as one batch, plain and without checksum; the row that cannot be, or -1.

    ``made`` is filled.
    """
    offset, timestamp, position = columns.offset, columns.timestamp, 0
    keys = Spans(data, columns.key_start, columns.key_size)
    values = Spans(data, columns.value_start, columns.value_size)
    headers = Spans(data, columns.headers_start, columns.header_count)  # messages have none
    for i in range(len(entries)):
        made.start[i] = position
        made.size[i] = 0
        count, first, last, base_time, largest = _survey(bounds[i], bounds[i + 1], offset, timestamp, keep)
        if count == 0:
            if keep_empty[i]:
                plain, largest = attributes[i] & ~CODEC_MASK, entries[i].max_timestamp
                write_header(out, position, BATCH_OVERHEAD, entries[i], plain, -1, largest, 0)
                made.last_offset[i] = entries[i].last_offset
                made.max_timestamp[i] = largest
                made.size[i] = BATCH_OVERHEAD
                position += BATCH_OVERHEAD
            continue
        base = offset[first]
        if offset[last] - base > _OFFSET_DELTA_MAX:
            return i
        if horizon[i] >= 0:
            base_time = horizon[i]
        end = position + BATCH_OVERHEAD
        for row in range(first, last + 1):
            if keep[row]:
                delta, time = offset[row] - base, timestamp[row] - base_time
                end = encode_record(row, delta, time, keys, values, headers, out, end)
        write_header(out, position, end - position, entries[i], attributes[i], base_time, largest, count)
        write_int(out, position, base, 8)
        write_int(out, position + LAST_OFFSET_DELTA_POSITION, offset[last] - base, 4)
        made.last_offset[i] = offset[last]
        made.max_timestamp[i] = largest
        made.size[i] = end - position
        position = end
    return -1


def convert_entries(
    entries: Directory,
    columns: RecordColumns,
    *,
    keep: Flags | None = None,
    horizon_ms: Int64 | None = None,
    keep_empty: Flags | None = None,
    path: str = "",
    origin: int = 0,
) -> Converted:
    """The records of message set ``entries`` (magic 0 and 1) as record batches, one for each with records.

    ``columns`` are the decoded records of exactly these entries, ``keep`` (bool, one a record) says which
    stay: all by default. ``horizon_ms`` (int64, one an entry) stamps a batch with its delete horizon,
    NO_HORIZON does not. ``keep_empty`` (bool, one an entry): a batch without records stands for the entry's
    offset where nothing of it stays; none by default. ``path`` and ``origin`` are for messages. Raises
    CorruptRecordError for an entry whose offsets are too far apart for a batch.
    """
    total = len(entries)
    assert not total or int(entries["magic"].max()) < 2, "record batches need no conversion"
    keep = np.ones(len(columns), np.bool_) if keep is None else keep
    horizon = np.full(total, NO_HORIZON, np.int64) if horizon_ms is None else horizon_ms
    room = BATCH_OVERHEAD * total + int((columns.size[keep].astype(np.int64) + RECORD_GROWTH).sum())
    out = np.empty(room, np.uint8)
    made = _Batches(*np.empty((4, total), np.int64))
    bad = _convert(
        entries,
        _attributes(entries, horizon),
        horizon,
        np.searchsorted(columns.batch, np.arange(total + 1)),
        columns.data,
        columns.arrays,
        keep,
        np.zeros(total, np.bool_) if keep_empty is None else keep_empty,
        out,
        made,
    )
    if bad >= 0:
        raise CorruptRecordError(path, origin + int(entries["position"][bad]), TOO_FAR_APART)
    codecs = np.where(made.size > BATCH_OVERHEAD, codec_of(entries), 0)
    data, _, sizes = _sealed(out[: int(made.size.sum())], made.start, made.size, codecs)
    rows = np.flatnonzero(sizes)
    return Converted(
        data=data,
        entry=rows,
        last_offset=made.last_offset[rows],
        max_timestamp=made.max_timestamp[rows],
        size=sizes[rows],
    )


def _attributes(entries: Directory, horizon: Int64) -> Int64:
    """The batches' attributes: of the entries' those that are known to magic 2, and the horizon's bit."""
    kept_bits = np.where(entries["magic"] == 0, CODEC_MASK, CODEC_MASK | TIMESTAMP_TYPE_BIT)
    found = (entries["attributes"] & kept_bits) | np.where(horizon >= 0, DELETE_HORIZON_BIT, 0)
    return found.astype(np.int64)


def _sealed(
    data: Bytes, starts: Int64, sizes: Int64, codecs: npt.NDArray[np.int16]
) -> tuple[Bytes, Int64, Int64]:
    """The batches compressed, where they are to be, and with their checksums: (bytes, starts, sizes)."""
    if codecs.any():
        data, starts, sizes = compress_batches(data, starts, sizes, codecs, Scratch(len(data) + 1))
    rows = sizes > 0
    patch_checksums(data, starts[rows], sizes[rows])
    return data, starts, sizes
