"""``bootstrap.checkpoint``, byte by byte: its control records are those of a snapshot."""

from __future__ import annotations

import numpy as np

from siltstone.base.records.scan import scan_batches
from siltstone.log.bootstrap import bootstrap_checkpoint

HEADER_SIZE = 61
"""Bytes of a batch before its records."""


def test_a_bootstrap_file_begins_and_ends_like_a_snapshot() -> None:
    """Keys are int16 0 and the type; values begin with version 0."""
    data = bootstrap_checkpoint([b"first", b"second"], now_ms=7)
    batches = scan_batches(np.frombuffer(data, np.uint8)).batches
    assert batches["base_offset"].tolist() == [0, 1, 3]
    assert [bool(bits & 0x20) for bits in batches["attributes"].tolist()] == [True, False, True]
    positions = batches["position"].tolist()
    header, footer = data[HEADER_SIZE : positions[1]], data[positions[2] + HEADER_SIZE :]
    # A record is: length, attributes, two deltas; key and value, each behind its length; no header. All
    # numbers are zigzag varints of one byte.
    assert header == bytes([21 * 2, 0, 0, 0, 4 * 2]) + b"\0\0\0\3" + bytes([11 * 2]) + bytes(11) + b"\0"
    assert footer == bytes([13 * 2, 0, 0, 0, 4 * 2]) + b"\0\0\0\4" + bytes([3 * 2]) + bytes(3) + b"\0"
