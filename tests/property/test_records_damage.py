"""A valid log with something wrong in it: the same records come out, or a named refusal, nothing else."""

from __future__ import annotations

import functools
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.checksum import first_bad_checksum
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.decode import decode_records
from siltstone.base.records.layout import Bytes
from siltstone.base.records.scan import ScanEnd, scan_batches
from tests.support.records import twin
from tests.support.records.arrays import array, complete_headers, records_of
from tests.support.thoroughness import examples, share

LIMIT = 1 << 16
ROOM_MAX = 4 << 20
"""Most bytes that the arrays of one attempt may take: columns, batch headers and scratch together."""


@functools.cache
def valid_log() -> bytes:
    """One entry of each kind: magic 0 and 1 plain and in their codecs, magic 2 in all."""
    parts, offset = [], 0
    for magic in (0, 1):
        for codec in (twin.NONE, twin.GZIP, twin.SNAPPY, twin.LZ4):
            if codec == twin.NONE:
                parts.append(twin.message(offset + 2, b"key", b"value", magic=magic))
            else:
                stored = range(3) if magic else range(offset, offset + 3)
                inner = b"".join(twin.message(at, b"k", b"inner" * 3, magic=magic) for at in stored)
                parts.append(twin.wrapper(offset + 2, inner, codec, magic=magic))
            offset += 3
    for codec in range(5):
        records = [
            twin.record(0, 0, b"key", b"value" * 4, [(b"h", b"x"), (b"null", None)]),
            twin.record(1, 300, None, b"v"),
            twin.record(2, -300, b"k", None),
        ]
        parts.append(twin.batch(records, base_offset=offset, codec=codec))
        offset += 3
    return b"".join(parts)


@functools.cache
def entries() -> tuple[twin.Batch, ...]:
    return tuple(twin.decode_log(valid_log()))


@functools.cache
def scratch() -> Scratch:
    return Scratch(16)


def right_rows(window: Bytes) -> tuple[list[list[twin.Record]], bool]:
    """Records by entry up to the first that is refused, and whether anything was.

    What stands behind the first wrong checksum is decoded too: it must be refused or succeed.
    """
    scan = scan_batches(window)
    bad = first_bad_checksum(window, scan.batches)
    decoded: list[list[twin.Record]] = []
    trusted, refused = len(scan.batches) if bad is None else bad, False
    for row in range(len(scan.batches)):
        batches = scan.batches[row : row + 1]
        try:
            columns = decode_records(window, batches, scratch(), limit=LIMIT)
        except CorruptRecordError as error:
            assert error.position == batches["position"][0], error
            refused = refused or row < trusted
        else:
            complete_headers(batches, columns)
            records = records_of(columns)
            if row < trusted and not refused:
                decoded.append(records)
    return decoded, refused or bad is not None or scan.outcome != ScanEnd.CLEAN


def test_the_undamaged_log_is_decoded() -> None:
    decoded, refused = right_rows(array(valid_log()))
    assert not refused
    assert [tuple(rows) for rows in decoded] == [entry.records for entry in entries()]


def entry_at(position: int) -> int:
    """Which entry a byte belongs to."""
    return max(row for row, entry in enumerate(entries()) if entry.position <= position)


@pytest.mark.random
@pytest.mark.parametrize("mask", [0x01, 0x80])
def test_every_changed_byte_is_refused_unless_no_checksum_covers_it(mask: int) -> None:
    for position in share(range(len(valid_log())), 9):
        window = array(valid_log())
        window[position] ^= mask
        decoded, refused = right_rows(window)
        row = entry_at(position)
        inside = position - entries()[row].position
        expected = [list(entry.records) for entry in entries()]
        assert decoded[:row] == expected[:row], position
        if inside < 8 and not refused:  # an offset: not covered by any checksum
            assert [[replace(record, offset=0) for record in rows] for rows in decoded] == [
                [replace(record, offset=0) for record in rows] for rows in expected
            ], position
        elif 12 <= inside < 16 and entries()[row].magic == 2:  # the leader epoch is not covered either
            assert (decoded, refused) == (expected, False), position
        else:
            assert refused, position
            assert decoded == expected[:row], position


def test_a_log_cut_anywhere_is_scanned_up_to_the_cut() -> None:
    whole = array(valid_log())
    ends = [entry.position + entry.size for entry in entries()]
    for cut in range(len(whole)):
        scan = scan_batches(whole[:cut])
        assert len(scan.batches) == sum(end <= cut for end in ends)
        assert scan.outcome == (ScanEnd.CLEAN if cut in (0, *ends) else ScanEnd.TRUNCATED)
        assert scan.end == max([0, *(end for end in ends if end <= cut)])


@pytest.mark.random
def test_a_missing_byte_is_refused() -> None:
    for position in share(range(0, len(valid_log()), 2), 5):
        log = bytearray(valid_log())
        del log[position]
        decoded, refused = right_rows(array(bytes(log)))
        row = entry_at(position)
        assert refused or decoded != [list(entry.records) for entry in entries()]
        assert [tuple(rows) for rows in decoded[:row]] == [entry.records for entry in entries()[:row]]


POSITIONS = st.integers(0, len(valid_log()))


@settings(max_examples=examples(250), deadline=None, print_blob=True)
@given(start=POSITIONS, size=st.integers(1, 600), fill=st.sampled_from([0, 0xFF]))
def test_zeros_or_ones_leave_the_batches_before_them_readable(start: int, size: int, fill: int) -> None:
    window = array(valid_log())
    window[start : start + size] = fill
    decoded, _ = right_rows(window)
    row = entry_at(start)
    assert [tuple(rows) for rows in decoded[:row]] == [entry.records for entry in entries()[:row]]


@settings(max_examples=examples(250), deadline=None, print_blob=True)
@given(changes=st.lists(st.tuples(POSITIONS, st.binary(min_size=1, max_size=9)), min_size=1, max_size=6))
def test_overwritten_places_leave_the_batches_before_them_readable(changes: list[tuple[int, bytes]]) -> None:
    log = bytearray(valid_log())
    for position, content in changes:
        log[position : position + len(content)] = content[: len(log) - position]
    decoded, _ = right_rows(array(bytes(log)))
    row = entry_at(min(position for position, _ in changes))
    assert [tuple(rows) for rows in decoded[:row]] == [entry.records for entry in entries()[:row]]


@settings(max_examples=examples(250), deadline=None, print_blob=True)
@given(
    kind=st.integers(0, 4),
    inside=st.integers(0, 300),
    content=st.binary(min_size=1, max_size=6),
    magic=st.integers(0, 2),
)
def test_damage_under_a_right_checksum_is_refused_or_decoded(
    kind: int, inside: int, content: bytes, magic: int
) -> None:
    """Records damaged before they were compressed and summed: only the decoder stands in the way."""
    if magic == 2:
        encoded = bytearray(
            b"".join(twin.record(at, at, b"key", b"value", [(b"h", b"x")]) for at in range(12))
        )
    else:
        encoded = bytearray(b"".join(twin.message(at, b"key", b"value", magic=magic) for at in range(7)))
    at = inside % len(encoded)
    encoded[at : at + len(content)] = content[: len(encoded) - at]
    body = twin.compress(kind, bytes(encoded), magic)
    if magic == 2:
        log = twin.batch([], body=body, count=12, last_delta=11, codec=kind)
    else:
        log = twin.message(6, None, body, magic=magic, attributes=kind)
    right_rows(array(log))


@pytest.mark.random
def test_no_damage_makes_a_large_allocation() -> None:
    whole = array(valid_log())
    right_rows(whole)
    tracemalloc.start()
    try:
        for position in share(range(0, len(whole), 7), 9):
            for value in (0x7F, 0xFF):
                window = whole.copy()
                window[position] = value
                tracemalloc.reset_peak()
                right_rows(window)
                assert tracemalloc.get_traced_memory()[1] < ROOM_MAX, position
    finally:
        tracemalloc.stop()
