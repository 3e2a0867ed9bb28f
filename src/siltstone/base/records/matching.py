"""Finds rows of record columns by their bytes: those with an equal key, or whose span contains some bytes."""

from __future__ import annotations

import numpy as np

from siltstone.base.records.columns import KeyColumns
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import Bytes, Int32, Int64


@kernel
def _equal_spans(data: Bytes, start: Int32, size: Int32, wanted: Bytes, out: Int64) -> int:
    """Fill ``out`` with the rows whose span is ``wanted``; returns their number."""
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
def _longest_borders(needle: Bytes, out: Int32) -> None:
    """Fill ``out`` with the failure function of Knuth, Morris and Pratt: for each prefix of ``needle``, the
    size of the longest shorter prefix that is also its suffix."""
    size, out[0] = 0, 0
    for at in range(1, len(needle)):
        while size > 0 and needle[at] != needle[size]:
            size = out[size - 1]
        if needle[at] == needle[size]:
            size += 1
        out[at] = size


@kernel
def _spans_with(data: Bytes, start: Int32, size: Int32, needle: Bytes, borders: Int32, out: Int64) -> int:
    """Fill ``out`` with the rows in whose span ``needle`` (not empty) occurs; returns their number.

    The search of Knuth, Morris and Pratt: no byte of ``data`` is read twice, so a needle of 60 kB in a long
    run of one byte takes no longer than another."""
    count, length, first = 0, len(needle), needle[0]
    for row in range(len(start)):
        at, end, matched = start[row], start[row] + size[row], 0
        while at <= end - length + matched:  # as long as the rest of the needle has room
            if matched == 0:
                while at <= end - length and data[at] != first:
                    at += 1
                if at > end - length:
                    break
                matched = 1
            else:
                byte = data[at]
                while matched > 0 and byte != needle[matched]:
                    matched = borders[matched - 1]
                if byte == needle[matched]:
                    matched += 1
            at += 1
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
    wanted, borders = np.frombuffer(needle, np.uint8), np.empty(len(needle), np.int32)
    _longest_borders(wanted, borders)
    count = _spans_with(data, start, size, wanted, borders, out)
    return out[:count]
