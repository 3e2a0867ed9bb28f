"""One record's fields, by address: what decoders, checks and whoever else walks through records share.

A record of magic 2, varints zigzag-encoded::

    size varint | attributes 1 | timestamp delta varlong | offset delta varint
    | key size varint, key | value size varint, value | header count varint
    | per header: key size varint, key, value size varint, value          (size -1: null)

The functions become part of the kernels that call them. They check every size, and say what is wrong by its
place in ``DECODE_REASON``.
"""

from __future__ import annotations

from siltstone.records.kernel import inlined, kernel
from siltstone.records.varint import next_varint, next_varlong

DECODE_REASON = (
    "",
    "a record's size is not possible",
    "a record's fields go on beyond its end, or end before it",
    "an over-long or cut varint",
    "a negative size that is not null's",
    "offsets in the batch do not ascend, or pass its last offset",
    "bytes left over behind the last record",
)


@inlined
def span_at(at: int, end: int) -> tuple[int, int, int]:
    """A sized field at address ``at``: (its start, its size, reason); start is -1 on trouble."""
    size, at = next_varint(at, end)
    if at < 0:
        return -1, 0, 3
    if size < -1:
        return -1, 0, 4
    if size > end - at:
        return -1, 0, 2
    return at, size, 0


@kernel
def _skip_headers(at: int, end: int, count: int) -> tuple[int, int]:
    """The address behind ``count`` headers and 0, or -1 and a reason."""
    for _ in range(count):
        start, size, reason = span_at(at, end)
        if start < 0 or size < 0:
            return -1, reason if start < 0 else 4
        start, size, reason = span_at(start + size, end)
        if start < 0:
            return -1, reason
        at = start + max(size, 0)
    return at, 0


@inlined
def record_head(at: int, batch_end: int) -> tuple[int, int, int, int, int]:
    """A record up to its key: (address of the key, of the end, timestamp delta, offset delta, reason)."""
    body, at = next_varint(at, batch_end)
    if at < 0:
        return 0, 0, 0, 0, 3
    if body < 6 or body > batch_end - at:
        return 0, 0, 0, 0, 1
    end = at + body
    timestamp_delta, at = next_varlong(at + 1, end)
    if at < 0:
        return 0, 0, 0, 0, 3
    offset_delta, at = next_varint(at, end)
    return at, end, timestamp_delta, offset_delta, 3 if at < 0 else 0


@inlined
def record_fields(at: int, end: int) -> tuple[int, int, int, int, int, int, int]:
    """A record from its key on: spans of key and value, its first header, how many, reason."""
    key, key_size, reason = span_at(at, end)
    if key < 0:
        return 0, 0, 0, 0, 0, 0, reason
    value, value_size, reason = span_at(key + max(key_size, 0), end)
    if value < 0:
        return 0, 0, 0, 0, 0, 0, reason
    headers, first = next_varint(value + max(value_size, 0), end)
    if first < 0 or headers < 0:
        return 0, 0, 0, 0, 0, 0, 3 if first < 0 else 4
    at = first
    if headers > 0:
        at, reason = _skip_headers(first, end, headers)
        if at < 0:
            return 0, 0, 0, 0, 0, 0, reason
    return key, key_size, value, value_size, first, headers, 0 if at == end else 2
