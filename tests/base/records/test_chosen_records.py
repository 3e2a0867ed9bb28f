"""Chosen records, and keys alone, are what decoding everything finds of them."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.errors import CheckFailedError
from siltstone.base.records.columns import KEY_COLUMNS, RecordColumns
from siltstone.base.records.decode import (
    ChosenOffsets,
    decode_chosen_records,
    decode_record_keys,
    decode_records,
)
from tests.support.errors import raises_error
from tests.support.records import twin
from tests.support.records.arrays import scanned

ALL = 1 << 62
POSITIONS = ("start", "key_start", "value_start", "headers_start")
COLUMNS = [field.name for field in fields(RecordColumns) if field.name != "data"]


@st.composite
def logs(draw: st.DrawFn, modern: bool) -> bytes:
    parts, offset = [], draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 5))):
        codec = draw(st.sampled_from((twin.NONE, twin.NONE, twin.ZSTD)))
        key = st.sampled_from((None, b"", b"key", b"k" * 70))
        if not modern:
            parts.append(twin.message(offset, draw(key), b"value", magic=1))
            offset += draw(st.integers(1, 3))
            continue
        deltas = sorted(draw(st.sets(st.integers(0, 200), max_size=6)))
        records = [twin.record(delta, delta * 7, draw(key), b"v" * delta) for delta in deltas]
        last = deltas[-1] if deltas else 0
        parts.append(twin.batch(records, base_offset=offset, last_delta=last, codec=codec))
        offset += last + draw(st.integers(1, 3))
    return b"".join(parts)


@settings(deadline=None)
@given(st.booleans().flatmap(logs), st.data())
def test_chosen_records_are_those_of_all(log: bytes, data: st.DataObject) -> None:
    window, batches = scanned(log)
    full = decode_records(window, batches)
    rows = np.array(sorted(data.draw(st.sets(st.sampled_from(range(len(batches)))))), np.int64)
    all_from = np.array([data.draw(st.sampled_from((0, 50, ALL))) for _ in rows], np.int64)
    limit = dict(zip(rows.tolist(), all_from.tolist(), strict=True))
    among = [row in limit for row in full.batch.tolist()]
    contested = [i for i, row in enumerate(full.batch.tolist()) if among[i] and full.offset[i] < limit[row]]
    chosen = data.draw(st.sets(st.sampled_from(contested))) if contested else set()
    before = data.draw(st.integers(0, 2))
    base = int(batches["base_offset"][0]) - before
    offsets = [*range(before), *(int(full.offset[i]) - base for i in sorted(chosen))]
    choice = ChosenOffsets(offsets=np.array(offsets, np.uint32), base=base, matched=before, all_from=all_from)
    decoded = decode_chosen_records(window, batches, rows, choice)
    stay = [i for i in range(len(full)) if among[i] and (i not in contested or i in chosen)]
    shared = decoded.columns.data is full.data
    for name in COLUMNS if shared else [name for name in COLUMNS if name not in POSITIONS]:
        assert getattr(decoded.columns, name).tolist() == getattr(full, name)[stay].tolist(), name
    for row, i in enumerate(stay):
        assert (decoded.columns.key(row), decoded.columns.value(row)) == (full.key(i), full.value(i))
    unchosen = [i for i in contested if i not in chosen]
    assert (decoded.matched, decoded.left_out) == (before + len(chosen), len(unchosen))
    assert decoded.keyless == sum(full.key(i) is None for i in unchosen)


@pytest.mark.parametrize(
    "log",
    [
        twin.batch([twin.record(0, 1, b"a", b""), twin.record(2, 1, b"b", b"")], last_delta=2),
        twin.message(0, b"a", b"", magic=1) + twin.message(2, b"b", b"", magic=1),
    ],
)
def test_a_chosen_offset_that_no_record_has_is_refused(log: bytes) -> None:
    window, batches = scanned(log)
    rows = np.arange(len(batches))
    choice = ChosenOffsets(
        offsets=np.array([0, 1, 2], np.uint32), base=0, matched=0, all_from=np.full(len(rows), ALL)
    )
    with raises_error(CheckFailedError, path="a.log", about="offset"):
        decode_chosen_records(window, batches, rows, choice, path="a.log")


def test_the_largest_offsets_are_told_apart() -> None:
    base = (1 << 63) - 4
    records = [twin.record(delta, 1, b"key", b"") for delta in range(3)]
    window, batches = scanned(twin.batch(records, base_offset=base, last_delta=2))
    choice = ChosenOffsets(
        offsets=np.array([1], np.uint32), base=base, matched=0, all_from=np.array([(1 << 63) - 1], np.int64)
    )
    decoded = decode_chosen_records(window, batches, np.array([0]), choice)
    assert (decoded.columns.offset.tolist(), decoded.matched, decoded.left_out) == ([base + 1], 1, 2)


def test_a_batch_may_have_only_its_last_record_chosen_by_its_offset() -> None:
    """The columns have room for a record that is at the bound itself."""
    records = [twin.record(delta, 1, b"key", b"") for delta in range(3)]
    window, batches = scanned(twin.batch(records, base_offset=10, last_delta=2))
    choice = ChosenOffsets(offsets=np.empty(0, np.uint32), base=10, matched=0, all_from=np.array([12]))
    decoded = decode_chosen_records(window, batches, np.array([0]), choice)
    assert (decoded.columns.offset.tolist(), decoded.matched, decoded.left_out) == ([12], 0, 2)


def test_all_messages_may_be_chosen_without_a_list() -> None:
    window, batches = scanned(twin.message(0, b"a", b"", magic=1) + twin.message(1, b"b", b"", magic=1))
    choice = ChosenOffsets(offsets=np.empty(0, np.uint32), base=0, matched=0, all_from=np.zeros(2, np.int64))
    decoded = decode_chosen_records(window, batches, np.arange(2), choice)
    assert (decoded.columns.offset.tolist(), decoded.matched, decoded.left_out) == ([0, 1], 0, 0)


@settings(deadline=None)
@given(st.booleans().flatmap(logs))
def test_keys_alone_are_those_of_all(log: bytes) -> None:
    window, batches = scanned(log)
    full, keys = decode_records(window, batches), decode_record_keys(window, batches)
    assert np.array_equal(full.data, keys.data)
    for name in KEY_COLUMNS:
        assert getattr(full, name).tolist() == getattr(keys, name).tolist(), name
