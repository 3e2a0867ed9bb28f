"""Message sets to record batches: how what magic 0 and 1 left behind is served and cleaned as magic 2.

Kafka 4 writes nothing but record batches; whatever it rebuilds of a message set becomes one::

    entry of magic 0 or 1, plain or compressed ──►  one batch with the entry's records
        base and last offset    of the first and the last record that stays
        codec, timestamp type   the entry's (magic 0: create time)
        base timestamp          the first record's, or the delete horizon with its attribute bit
        largest timestamp       of those that stay; magic 0 has -1 everywhere
        leader epoch, producer id and epoch, base sequence     -1

``up_convert`` does this for a stretch of log that is served to a reader who knows magic 2 only.
``convert_entries`` is the piece beneath: the cleaner hands in which records stay and which horizons to stamp.
A converted record is hardly ever larger than the message that it was, so room is known beforehand.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.build import compress_batches, encode_record, write_header, write_int
from siltstone.base.records.checksum import patch_checksums
from siltstone.base.records.codecs import DEFAULT_LIMIT, Scratch
from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.decode import decode_records
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    TIMESTAMP_TYPE_BIT,
    Bytes,
    Directory,
    Flags,
    Int32,
    Int64,
    codec_of,
)
from siltstone.base.records.pieces import pieces

NO_HORIZON = -1
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


@kernel
def _convert(
    entries: Directory,
    attributes: Int64,
    horizon: Int64,
    bounds: Int64,
    data: Bytes,
    offset: Int64,
    timestamp: Int64,
    key_start: Int32,
    key_size: Int32,
    value_start: Int32,
    value_size: Int32,
    keep: Flags,
    keep_empty: Flags,
    out: Bytes,
    starts: Int64,
    sizes: Int64,
    last_offset: Int64,
    max_timestamp: Int64,
) -> int:
    """Write each entry's records as one batch, plain and without checksum; the row that cannot be, or -1.

    The last four are filled an entry (size 0: nothing of it stays).
    """
    position = 0
    for i in range(len(entries)):
        starts[i] = position
        sizes[i] = 0
        count, first, last, base_time, largest = _survey(bounds[i], bounds[i + 1], offset, timestamp, keep)
        if count == 0:
            if keep_empty[i]:
                write_header(
                    out, position, 61, entries[i], attributes[i] & ~7, -1, entries[i].max_timestamp, 0
                )
                last_offset[i] = entries[i].last_offset
                max_timestamp[i] = entries[i].max_timestamp
                sizes[i] = 61
                position += 61
            continue
        base = offset[first]
        if offset[last] - base > 0x7FFFFFFF:
            return i
        if horizon[i] >= 0:
            base_time = horizon[i]
        end = position + 61
        for row in range(first, last + 1):
            if keep[row]:
                end = encode_record(
                    offset[row] - base,
                    timestamp[row] - base_time,
                    data,
                    key_start[row],
                    key_size[row],
                    data,
                    value_start[row],
                    value_size[row],
                    data,
                    0,
                    0,
                    out,
                    end,
                )
        write_header(out, position, end - position, entries[i], attributes[i], base_time, largest, count)
        write_int(out, position, base, 8)
        write_int(out, position + 23, offset[last] - base, 4)
        last_offset[i] = offset[last]
        max_timestamp[i] = largest
        sizes[i] = end - position
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
    starts, sizes, last_offset, max_timestamp = np.empty((4, total), np.int64)
    spans = (columns.key_start, columns.key_size, columns.value_start, columns.value_size)
    arguments: list[Any] = [
        *(entries, _attributes(entries, horizon), horizon),
        np.searchsorted(columns.batch, np.arange(total + 1)),
        *(columns.data, columns.offset, columns.timestamp, *spans, keep),
        np.zeros(total, np.bool_) if keep_empty is None else keep_empty,
        *(out, starts, sizes, last_offset, max_timestamp),
    ]
    bad = _convert(*arguments)
    if bad >= 0:
        raise CorruptRecordError(path, origin + int(entries["position"][bad]), TOO_FAR_APART)
    codecs = np.where(sizes > BATCH_OVERHEAD, codec_of(entries), 0)
    data, starts, sizes = _sealed(out[: int(sizes.sum())], starts, sizes, codecs)
    rows = np.flatnonzero(sizes)
    return Converted(
        data=data,
        entry=rows,
        last_offset=last_offset[rows],
        max_timestamp=max_timestamp[rows],
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


def up_convert(
    window: Bytes,
    batches: Directory,
    scratch: Scratch | None = None,
    *,
    limit: int = DEFAULT_LIMIT,
    path: str = "",
    origin: int = 0,
) -> Bytes:
    """``batches`` (neighbouring rows of a scan over ``window``, any magic) as record batches: uint8.

    Record batches stay as they are; without message sets the result is a slice of ``window`` itself.
    Checksums of what is converted are the caller's to have checked. ``scratch`` and ``limit`` are
    ``decode_records``'s; ``path`` and ``origin`` are for messages. Raises CorruptRecordError.
    """
    modern = batches["magic"] == 2
    edges = [0, *(np.flatnonzero(np.diff(modern)) + 1).tolist(), len(batches)]
    parts: list[Bytes] = []
    for first, behind in itertools.pairwise(edges):
        run = batches[first:behind]
        if not len(run) or modern[first]:
            parts.append(_stretch(window, run))
            continue
        for part in pieces(window, run):
            columns = decode_records(window, run[part], scratch, limit=limit, path=path, origin=origin)
            parts.append(convert_entries(run[part], columns, path=path, origin=origin).data)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _stretch(window: Bytes, run: Directory) -> Bytes:
    """The bytes of neighbouring batches."""
    if not len(run):
        return window[:0]
    start = int(run["position"][0])
    end = int(run["position"][-1]) + int(run["size"][-1])
    assert end - start == int(run["size"].sum(dtype=np.int64)), "the batches are no neighbours"
    return window[start:end]
