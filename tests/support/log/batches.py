"""Batches as clients send them, and batches that no client should send."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from crc32c import crc32c

from siltstone.base.records.layout import CHECKSUM_START, CRC_POSITION, Bytes
from tests.support.cleaning.logs import Rec, batch
from tests.support.records import twin

TIME = 1_700_000_000_000


def sent(count: int = 1, *, first_time: int = TIME, **shape: object) -> Bytes:
    """A client's batch of ``count`` records with keys, one millisecond apart, its base offset 0."""
    records = [
        Rec(offset=i, key=b"key %d" % i, value=b"v" * (10 + i % 7), timestamp=first_time + i)
        for i in range(count)
    ]
    return array(batch(records, **shape))


def of_records(records: Sequence[Rec], **shape: object) -> Bytes:
    """A batch of these records."""
    return array(batch(records, **shape))


def array(data: bytes) -> Bytes:
    """The caller's writable buffer."""
    return np.frombuffer(bytearray(data), np.uint8)


def edited(data: Bytes, position: int, value: int, size: int, *, sealed: bool = True) -> Bytes:
    """A copy with another integer at ``position``; ``sealed`` with the checksum that goes with it."""
    changed = bytearray(data.tobytes())
    changed[position : position + size] = value.to_bytes(size, "big", signed=value < 0)
    if sealed:
        changed[CRC_POSITION:CHECKSUM_START] = crc32c(bytes(changed[CHECKSUM_START:])).to_bytes(4, "big")
    return array(bytes(changed))


def of_body(body: bytes, count: int = 1, codec: int = 0) -> Bytes:
    """A batch around record bytes that need make no sense."""
    data = sent(1).tobytes()[:61] + (twin.compress(codec, body) if codec else body)
    whole = edited(array(data), 8, len(data) - 12, 4)
    whole = edited(edited(whole, 23, count - 1, 4), 57, count, 4)
    return edited(whole, 21, codec, 2)


def record(
    *, size: bytes | None = None, key: bytes | None = None, tail: bytes = b"", delta: bytes = b"\0"
) -> bytes:
    """One record's bytes, its fields as given: ``size``, offset ``delta`` and ``key`` (size included)."""
    body = b"\0\0" + delta + (twin.varint(1) + b"k" if key is None else key) + twin.varint(1) + b"v"
    body += b"\0" + tail
    return (twin.varint(len(body)) if size is None else size) + body
