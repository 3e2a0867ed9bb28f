"""Rows of record columns whose bytes match: an equal key, or bytes that occur in spans."""

from __future__ import annotations

import numpy as np

from siltstone.base.records.columns import KeyColumns
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import Bytes, Int32, Int64


@kernel
def _equal_spans(data: Bytes, start: Int32, size: Int32, wanted: Bytes, out: Int64) -> int:
    """Fill ``out`` with the rows whose span is ``wanted``; returns how many they are."""
    count, length = 0, len(wanted)
    for row in range(len(start)):
        # The last byte is compared first: most different keys differ in their size or in that byte.
        if size[row] != length:
            continue
        at = start[row]
        left = length
        while left > 0 and data[at + left - 1] == wanted[left - 1]:
            left -= 1
        if left == 0:
            out[count] = row
            count += 1
    return count


@kernel
def _spans_with(data: Bytes, start: Int32, size: Int32, needle: Bytes, out: Int64) -> int:
    """Fill ``out`` with the rows in whose span ``needle`` (not empty) occurs; returns how many they are."""
    count, length, first = 0, len(needle), needle[0]
    for row in range(len(start)):
        for at in range(start[row], start[row] + size[row] - length + 1):
            if data[at] != first:
                continue
            matched = 1
            while matched < length and data[at + matched] == needle[matched]:
                matched += 1
            if matched == length:
                out[count] = row
                count += 1
                break
    return count


def rows_with_key(columns: KeyColumns, key: bytes) -> Int64:
    """The rows whose key is ``key``, ascending."""
    out = np.empty(len(columns), np.int64)
    wanted = np.frombuffer(key, np.uint8)
    count = _equal_spans(columns.data, columns.key_start, columns.key_size, wanted, out)
    return out[:count]


def rows_containing(data: Bytes, start: Int32, size: Int32, needle: bytes) -> Int64:
    """The rows in whose span of ``data`` the ``needle`` occurs, ascending; a span of size -1 (null) has
    none."""
    assert needle
    out = np.empty(len(start), np.int64)
    count = _spans_with(data, start, size, np.frombuffer(needle, np.uint8), out)
    return out[:count]
