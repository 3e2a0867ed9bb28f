"""The topic's codec in place of the producer's (``compression.type``; ``LogValidator``'s way round).

A batch with the topic's codec stays as it is, and so does a control batch, which nobody compresses. Any other
one is made anew from its records: producer, sequence and flags are the old one's, the base timestamp is the
first record's. The records keep their own times, also of a batch that claims log-append time.
"""

from __future__ import annotations

import numpy as np

from siltstone.config import LogConfig
from siltstone.records.build import BatchShape, Spans, build_batch
from siltstone.records.checksum import patch_checksums
from siltstone.records.codecs import compress
from siltstone.records.columns import RecordColumns
from siltstone.records.decode import decode_records
from siltstone.records.layout import (
    BATCH_OVERHEAD,
    CHECKED_FROM,
    CODEC_MASK,
    CODECS,
    CONTROL_BIT,
    LOG_OVERHEAD,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Bytes,
    Directory,
)
from siltstone.records.scan import scan_batches


def recompress(data: Bytes, batches: Directory, config: LogConfig) -> tuple[Bytes, Directory]:
    """``data`` and its ``batches`` under the topic's ``compression.type``; the same ones where they have it.

    The batches have been checked; base offset and leader epoch of a new one are the old one's.
    """
    codec, level = _codec(config)
    attributes = batches["attributes"]
    others = ((attributes & CODEC_MASK) != codec) & ((attributes & CONTROL_BIT) == 0)
    if not others.any():
        return data, batches
    parts, limit = [], config.max_decompressed_message_bytes
    for row, (start, size) in enumerate(
        zip(batches["position"].tolist(), batches["size"].tolist(), strict=True)
    ):
        if others[row]:
            parts.append(_compressed(_plain(data, batches, row, limit), codec, level))
        else:
            parts.append(data[start : start + size])
    joined = np.concatenate(parts)
    return joined, scan_batches(joined).batches


def _codec(config: LogConfig) -> tuple[int, int | None]:
    """The topic's codec and its level, None for the codec's own."""
    if config.compression_type == "uncompressed":
        return 0, None
    levels = {
        "gzip": None if config.compression_gzip_level < 0 else config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    return CODECS.index(config.compression_type), levels.get(config.compression_type)


def _compressed(batch: Bytes, codec: int, level: int | None) -> Bytes:
    """A plain batch, compressed, with the checksum that goes with it."""
    if not codec:
        return batch
    body = np.frombuffer(compress(codec, batch[BATCH_OVERHEAD:], level), np.uint8)
    whole = np.concatenate((batch[:BATCH_OVERHEAD], body))
    whole[8:12] = np.frombuffer((len(whole) - LOG_OVERHEAD).to_bytes(4, "big"), np.uint8)
    whole[CHECKED_FROM + 1] |= codec
    patch_checksums(whole, np.zeros(1, np.int64), np.array([len(whole)], np.int64))
    return whole


def _plain(data: Bytes, batches: Directory, row: int, limit: int) -> Bytes:
    """The batch made anew, not compressed."""
    old = batches[row]
    own_times = batches[row : row + 1].copy()
    own_times["attributes"] &= ~TIMESTAMP_TYPE_BIT
    columns = decode_records(data, own_times, limit=limit)
    shape = BatchShape(
        base_offset=int(old["base_offset"]),
        leader_epoch=int(old["leader_epoch"]),
        producer_id=int(old["producer_id"]),
        producer_epoch=int(old["producer_epoch"]),
        base_sequence=int(old["base_sequence"]),
        transactional=bool(old["attributes"] & TRANSACTIONAL_BIT),
    )
    return build_batch(
        shape,
        offset=columns.offset,
        timestamp=columns.timestamp,
        keys=Spans(data=columns.data, start=columns.key_start.astype(np.int64), size=columns.key_size),
        values=Spans(data=columns.data, start=columns.value_start.astype(np.int64), size=columns.value_size),
        headers=_headers(columns),
    )


def _headers(columns: RecordColumns) -> Spans:
    """Each record's headers as they are encoded, the count in front: what lies behind its value."""
    start = columns.value_start.astype(np.int64) + np.maximum(columns.value_size, 0)
    end = columns.start.astype(np.int64) + columns.size
    return Spans(data=columns.data, start=start, size=(end - start).astype(np.int32))
