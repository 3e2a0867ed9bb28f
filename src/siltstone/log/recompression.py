"""The topic's codec in place of the producer's (``compression.type``; ``LogValidator``'s way round).

A batch with the topic's codec stays as it is, and so does a control batch, which nobody compresses. Any other
one is made anew from its records: producer, sequence and flags are the old one's, the base timestamp is the
first record's.
"""

from __future__ import annotations

import numpy as np

from siltstone.records.build import BatchShape, Spans, build_batch
from siltstone.records.columns import RecordColumns
from siltstone.records.decode import decode_records
from siltstone.records.layout import (
    CODEC_MASK,
    CODECS,
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    Bytes,
    Directory,
)
from siltstone.records.scan import scan_batches


def recompress(data: Bytes, batches: Directory, compression_type: str) -> tuple[Bytes, Directory]:
    """``data`` and its ``batches`` under the topic's ``compression_type``; the same ones where they have it.

    The batches have been checked; base offset and leader epoch of a new one are the old one's.
    """
    codec = 0 if compression_type == "uncompressed" else CODECS.index(compression_type)
    attributes = batches["attributes"]
    others = ((attributes & CODEC_MASK) != codec) & ((attributes & CONTROL_BIT) == 0)
    if not others.any():
        return data, batches
    parts = []
    for row, (start, size) in enumerate(
        zip(batches["position"].tolist(), batches["size"].tolist(), strict=True)
    ):
        parts.append(_made_anew(data, batches, row, codec) if others[row] else data[start : start + size])
    joined = np.concatenate(parts)
    return joined, scan_batches(joined).batches


def _made_anew(data: Bytes, batches: Directory, row: int, codec: int) -> Bytes:
    old = batches[row]
    columns = decode_records(data, batches[row : row + 1])
    shape = BatchShape(
        base_offset=int(old["base_offset"]),
        leader_epoch=int(old["leader_epoch"]),
        codec=codec,
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
