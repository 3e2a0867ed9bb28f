"""Builds record batches: new ones from columns (Kafka's ``MemoryRecordsBuilder``), and headers of cleaned
batches.

``build_batch`` makes one whole batch from keys, values and headers. ``encode_records`` writes only the
records. ``compaction.rewrite`` copies the records of a cleaned batch; it calls ``write_header`` for the 61
bytes before them. ``compress_batches`` compresses finished batches. Checksums are written last
(``checksum.patch_checksums``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from siltstone.base.records import layout
from siltstone.base.records.checksum import patch_checksums
from siltstone.base.records.codecs import Scratch, compress, compress_all
from siltstone.base.records.kernel import inline_kernel, kernel
from siltstone.base.records.layout import Bytes, Int32, Int64
from siltstone.base.records.varint import varint_size, write_varint

MAX_RECORD_OVERHEAD = 60
"""An upper bound of the bytes of a record besides its key, value and headers: five varints of up to ten
bytes, the attributes byte, and a byte for the header count of a record without headers."""
MAX_REENCODING_GROWTH = 16
"""Most bytes by which a record can grow when it is encoded again with another base timestamp: its timestamp
delta, and the record's size in front of it, may take more bytes."""
_MAX_VARINT_SIZE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatchHeader:
    """The header fields of a new batch that do not follow from its records (see ``layout``).

    ``log_append``: the batch has log-append time, else create time. ``delete_horizon_ms``: the delete
    horizon, stored in place of the base timestamp (attribute bit 6), or None. ``level``: the compression
    level, None for the codec's default.
    """

    base_offset: int = 0
    leader_epoch: int = 0
    codec: int = 0
    log_append: bool = False
    producer_id: int = layout.NO_PRODUCER_ID
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False
    control: bool = False
    delete_horizon_ms: int | None = None
    level: int | None = None

    @property
    def attributes(self) -> int:
        """The 16 attribute bits."""
        return (
            self.codec
            | (layout.TIMESTAMP_TYPE_BIT if self.log_append else 0)
            | (layout.TRANSACTIONAL_BIT if self.transactional else 0)
            | (layout.CONTROL_BIT if self.control else 0)
            | (layout.DELETE_HORIZON_BIT if self.delete_horizon_ms is not None else 0)
        )


class Spans(NamedTuple):
    """Byte strings within ``data`` (uint8): the ``start`` (int64 or int32) and the ``size`` (int32, -1 for
    null) of each string."""

    data: Bytes
    start: Int64 | Int32
    size: Int32

    @classmethod
    def of(cls, values: Sequence[bytes | None]) -> Spans:
        """Pack Python byte strings."""
        size = np.array([-1 if value is None else len(value) for value in values], np.int32)
        lengths = np.maximum(size, 0).astype(np.int64)
        data = np.frombuffer(b"".join(value or b"" for value in values), np.uint8)
        return cls(data=data, start=np.cumsum(lengths) - lengths, size=size)


@kernel
def copy_bytes(data: Bytes, start: int, size: int, out: Bytes, position: int) -> int:
    """Copy ``size`` bytes of ``data`` from ``start`` to ``position`` in ``out``, none for a negative size;
    returns the end in ``out``. ``data`` and ``out`` must not share memory.

    Unsigned indexes let LLVM copy 32 bytes at once.
    """
    source, target = np.uint64(start), np.uint64(position)
    for i in range(np.uint64(max(size, 0))):
        out[target + i] = data[source + i]
    return position + max(size, 0)


@inline_kernel
def write_span(spans: Spans, row: int, out: Bytes, position: int) -> int:
    """Write the size and the bytes of span ``row`` into ``out`` at ``position``; returns the end."""
    position = write_varint(out, position, spans.size[row])
    return copy_bytes(spans.data, spans.start[row], spans.size[row], out, position)


@inline_kernel
def encode_record(
    row: int,
    offset_delta: int,
    timestamp_delta: int,
    keys: Spans,
    values: Spans,
    headers: Spans,
    out: Bytes,
    position: int,
) -> int:
    """Write the record ``row`` of the spans into ``out`` at ``position``; returns the end."""
    key_size, value_size, headers_size = keys.size[row], values.size[row], headers.size[row]
    # The record's size comes first, so the sizes of all fields are added up before any is written.
    body_size = 1 + varint_size(timestamp_delta) + varint_size(offset_delta)
    body_size += varint_size(key_size) + max(key_size, 0) + varint_size(value_size) + max(value_size, 0)
    body_size += max(headers_size, 1)
    position = write_varint(out, position, body_size)
    out[position] = 0  # the attributes, which Kafka does not use
    position = write_varint(out, position + 1, timestamp_delta)
    position = write_varint(out, position, offset_delta)
    position = write_span(keys, row, out, position)
    position = write_span(values, row, out, position)
    if headers_size <= 0:
        out[position] = 0  # the header count
        return position + 1
    return copy_bytes(headers.data, headers.start[row], headers_size, out, position)


@kernel
def encode_records(
    offset_delta: Int64,
    timestamp_delta: Int64,
    keys: Spans,
    values: Spans,
    headers: Spans,
    out: Bytes,
    position: int,
) -> int:
    """Write records into ``out`` from ``position``; returns the end.

    A span of ``headers`` holds the encoded headers of a record, with their count in front; size 0 means none.
    """
    for row in range(len(offset_delta)):
        position = encode_record(
            row, offset_delta[row], timestamp_delta[row], keys, values, headers, out, position
        )
    return position


@kernel
def write_int(out: Bytes, position: int, value: int, size: int) -> None:
    """Write ``value`` big-endian in ``size`` bytes."""
    for i in range(size):
        out[position + i] = (value >> (8 * (size - 1 - i))) & 0xFF


@kernel
def write_header(
    out: Bytes,
    position: int,
    size: int,
    source: Any,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    count: int,
) -> None:
    """Write the header of a cleaned batch of ``size`` bytes. Cleaning keeps the other fields, which are those
    of ``source``: a row of ``BATCH``, or a named tuple with these fields. The CRC is left 0."""
    write_int(out, position, source.base_offset, 8)
    write_int(out, position + layout.SIZE_POSITION, size - layout.LOG_OVERHEAD, 4)
    write_int(out, position + layout.LEADER_EPOCH_POSITION, source.leader_epoch, 4)
    out[position + layout.MAGIC_POSITION] = 2
    write_int(out, position + layout.CRC_POSITION, 0, 4)
    write_int(out, position + layout.ATTRIBUTES_POSITION, attributes, 2)
    write_int(out, position + layout.LAST_OFFSET_DELTA_POSITION, source.last_offset - source.base_offset, 4)
    write_int(out, position + layout.BASE_TIMESTAMP_POSITION, base_timestamp, 8)
    write_int(out, position + layout.MAX_TIMESTAMP_POSITION, max_timestamp, 8)
    write_int(out, position + layout.PRODUCER_ID_POSITION, source.producer_id, 8)
    write_int(out, position + layout.PRODUCER_EPOCH_POSITION, source.producer_epoch, 2)
    write_int(out, position + layout.BASE_SEQUENCE_POSITION, source.base_sequence, 4)
    write_int(out, position + layout.COUNT_POSITION, count, 4)


def encode_headers(headers: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    """Encode one record's headers, preceded by their count; empty bytes for none."""
    if not headers:
        return b""
    parts = Spans.of([part for header in headers for part in header])
    out = np.empty(_MAX_VARINT_SIZE * (1 + len(parts.size)) + len(parts.data), np.uint8)
    return out[: _encode_headers(parts, out)].tobytes()


@kernel
def _encode_headers(parts: Spans, out: Bytes) -> int:
    position = write_varint(out, 0, len(parts.size) // 2)
    for row in range(len(parts.size)):
        position = write_span(parts, row, out, position)
    return position


def build_batch(
    header: NewBatchHeader,
    *,
    offset: Int64,
    timestamp: Int64,
    keys: Spans,
    values: Spans,
    headers: Spans | None = None,
    last_offset: int | None = None,
) -> Bytes:
    """Build one whole v2 batch, checksum included: uint8.

    ``offset`` and ``timestamp`` (ms) are int64, one a record, offsets ascending from
    ``header.base_offset`` on; ``headers`` are spans of ``encode_headers`` bytes. ``last_offset`` defaults
    to the last record's. With log-append time the largest timestamp is every record's.
    """
    count = len(offset)
    header_spans = headers or Spans(
        np.zeros(1, np.uint8), np.zeros(count, np.int64), np.zeros(count, np.int32)
    )
    max_timestamp = int(timestamp.max()) if count else -1
    times = np.full(count, max_timestamp) if header.log_append else timestamp
    base_timestamp = header.delete_horizon_ms
    if base_timestamp is None:
        base_timestamp = int(times[0]) if count else -1
    content_size = sum(int(np.maximum(part.size, 0).sum()) for part in (keys, values, header_spans))
    records = np.empty(content_size + MAX_RECORD_OVERHEAD * count, np.uint8)
    end = encode_records(
        offset - header.base_offset, times - base_timestamp, keys, values, header_spans, records, 0
    )
    last_offset = int(offset[-1]) if last_offset is None else last_offset
    return assemble_batch(header, records[:end], last_offset, base_timestamp, max_timestamp, count)


def assemble_batch(
    header: NewBatchHeader,
    records: Bytes,
    last_offset: int,
    base_timestamp: int,
    max_timestamp: int,
    count: int,
) -> Bytes:
    """Build one batch from encoded records (uint8): compress them with the header's codec, write header and
    checksum."""
    if header.codec and count:
        records = np.frombuffer(compress(header.codec, records, header.level), np.uint8)
    size = layout.BATCH_OVERHEAD + len(records)
    batch = np.empty(size, np.uint8)
    encoded_header = layout.HEADER.pack(
        header.base_offset,
        size - layout.LOG_OVERHEAD,
        header.leader_epoch,
        2,  # magic
        0,  # checksum
        header.attributes,
        last_offset - header.base_offset,
        base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        count,
    )
    batch[: layout.BATCH_OVERHEAD] = np.frombuffer(encoded_header, np.uint8)
    batch[layout.BATCH_OVERHEAD :] = records
    patch_checksums(batch, np.zeros(1, np.int64), np.array([size], np.int64))
    return batch


def compress_batches(
    data: Bytes, starts: Int64, sizes: Int64, codecs: npt.NDArray[np.int16], out: Scratch
) -> tuple[Bytes, Int64, Int64]:
    """Compress the records of v2 batches, each with its codec: (data, starts, sizes).

    The records in ``data`` are not compressed, but the attributes in their headers name the codec already.
    Sizes are written into the headers here, checksums are not.

    ``starts`` and ``sizes`` (int64) say where the batches are in ``data``; a size of 0 is no batch. A batch
    with codec 0 is copied. The returned data are the bytes of ``out``, whose earlier contents are lost.
    """
    view, spans = data.data, list(zip(starts.tolist(), sizes.tolist(), strict=True))
    compressed_bodies: list[Any] = [None] * len(spans)
    for codec in np.unique(codecs[codecs > 0]).tolist():
        rows = np.flatnonzero((codecs == codec) & (sizes > 0)).tolist()
        records = [view[spans[row][0] + layout.BATCH_OVERHEAD : sum(spans[row])] for row in rows]
        for row, body in zip(rows, compress_all(codec, records), strict=True):
            compressed_bodies[row] = body
    # Two parts a batch: its header and its compressed records, or the whole batch and nothing.
    parts: list[Any] = []
    for (start, size), body in zip(spans, compressed_bodies, strict=True):
        parts.append(view[start : start + (size if body is None else layout.BATCH_OVERHEAD)])
        parts.append(body or b"")
    out.clear()
    out.append(b"".join(parts))
    part_sizes = np.array([len(part) for part in parts], np.int64)
    new_sizes = part_sizes[::2] + part_sizes[1::2]
    new_starts = np.cumsum(new_sizes) - new_sizes
    # Write the new size into each header: its four bytes end at ``LOG_OVERHEAD``.
    is_batch = new_sizes > 0
    lengths = (new_sizes[is_batch] - layout.LOG_OVERHEAD).astype(">i4").view(np.uint8).reshape(-1, 4)
    out.array()[new_starts[is_batch, None] + np.arange(layout.SIZE_POSITION, layout.LOG_OVERHEAD)] = lengths
    return out.array(), new_starts, new_sizes
