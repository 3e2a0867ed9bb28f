"""Survivors of many batches in few: each record as it was, and batches that end where they must."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.errors import CheckFailedError, CorruptRecordError
from siltstone.base.records.scan import scan_batches
from siltstone.compaction.ledger.staging import BATCH_BYTES, Coalescer
from siltstone.compaction.rewrite import CleanedBatches
from tests.support.cleaning.logs import Rec, batch
from tests.support.cleaning.naive import Batch, batches_of
from tests.support.ledger.oracle import Seen, seen_in
from tests.support.records import twin
from tests.support.records.arrays import array

FAR = 1 << 33


def run(
    windows: Sequence[bytes], listed: Sequence[int], *, keep_listed: bool = True, limit: int = BATCH_BYTES
) -> tuple[list[Batch], Coalescer]:
    """What comes of some windows, decoded by the twin; the rows beside the bytes must be the batches'."""
    coalescer = Coalescer(np.array(listed, np.int64), keep_listed=keep_listed, limit=limit)
    found: list[Batch] = []
    for window in windows:
        data = array(window)
        chosen = coalescer.may_retain(scan_batches(data).batches)
        for part in (chosen[chosen["magic"] == 2], chosen[chosen["magic"] < 2]):
            taken = coalescer.coalesce(data, part)
            found += [] if taken is None else _decoded(taken)
    found += _decoded(coalescer.finish())
    return found, coalescer


def _decoded(taken: CleanedBatches) -> list[Batch]:
    found = batches_of(taken.data.tobytes())
    assert taken.size.tolist() == [len(each.raw or b"") for each in found]
    assert taken.last_offset.tolist() == [each.last_offset for each in found]
    assert taken.max_timestamp.tolist() == [each.max_timestamp for each in found]
    return found


def seen(batches: Sequence[Batch]) -> list[Seen]:
    return [record for each in batches for record in seen_in(each)]


def recs(*offsets: int, time: int = 50, value: bytes = b"value") -> list[Rec]:
    return [
        Rec(offset=offset, key=b"%d" % offset, value=value, timestamp=time + offset % 7) for offset in offsets
    ]


@st.composite
def windows_of(draw: st.DrawFn) -> tuple[list[bytes], list[int]]:
    """A few windows of batches of many kinds, and all offsets in them."""
    windows, offsets, offset = [], list[int](), 0
    for _ in range(draw(st.integers(1, 3))):
        window = b""
        for _ in range(draw(st.integers(1, 5))):
            steps = draw(st.lists(st.sampled_from([1, 1, 1, 5, 300]), min_size=1, max_size=6))
            mine = [offset := offset + step for step in steps]
            records = [
                Rec(
                    offset=each,
                    key=draw(st.sampled_from([None, b"", b"k" * 70])),
                    value=draw(st.sampled_from([None, b"", b"v" * 200])),
                    timestamp=draw(st.sampled_from([-1, 0, 7, 1 << 45])),
                    headers=draw(st.sampled_from([(), ((b"h", None), (b"", b"x"))])),
                )
                for each in mine
            ]
            window += batch(
                records,
                base_offset=mine[0] - draw(st.integers(0, min(1, mine[0]))),
                last_offset=mine[-1] + draw(st.sampled_from([0, 0, 2])),
                leader_epoch=draw(st.sampled_from([0, 0, 3])),
                codec=draw(st.sampled_from([0, 0, 0, 1, 2, 3, 4])),
                log_append=draw(st.sampled_from([False, False, True])),
                producer_id=draw(st.sampled_from([-1, 9])),
                delete_horizon_ms=draw(st.sampled_from([None, None, 77])),
            )
            offsets += mine
            offset = mine[-1] + 2
        windows.append(window)
    return windows, offsets


@settings(deadline=None)
@given(windows_of(), st.sampled_from([100, 600, BATCH_BYTES]), st.booleans(), st.randoms())
def test_retained_records_are_unchanged(
    drawn: tuple[list[bytes], list[int]], limit: int, keep_listed: bool, random: object
) -> None:
    windows, offsets = drawn
    listed = [offset for offset in offsets if random.random() < 0.5]  # type: ignore[attr-defined]
    found, coalescer = run(windows, listed, keep_listed=keep_listed, limit=limit)
    sources = [each for window in windows for each in batches_of(window)]
    stays = [each for each in seen(sources) if (each.offset in listed) is keep_listed]
    assert seen(found) == stays
    assert sum(map(len, coalescer.offsets)) == len(stays) and coalescer.matched == len(listed)
    assert np.concatenate([np.empty(0), *coalescer.offsets]).tolist() == [
        retained.offset for retained in stays
    ]
    codecs = {record.offset: source.attributes & 7 for source in sources for record in source.records}
    for each in found:
        assert {codecs[record.offset] for record in each.records} == {each.attributes & 7}
        if keep_listed:
            assert each.producer_id == -1 and each.horizon is None
            assert each.base_offset == each.records[0].offset


def test_retained_records_of_many_batches_become_one_batch() -> None:
    window = b"".join(batch(recs(*range(start, start + 10)), producer_id=5) for start in range(0, 1000, 10))
    (found,), _ = run([window], range(3, 1000, 10))
    assert (found.base_offset, found.last_offset, found.count) == (3, 993, 100)
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (-1, -1, -1)
    assert found.max_timestamp == 56


def test_a_batch_ends_when_it_is_full() -> None:
    window = b"".join(batch(recs(each, value=b"v" * 1000)) for each in range(1000))
    found, _ = run([window], range(1000))
    assert len(found) == 8 and all(len(each.raw or b"") <= BATCH_BYTES for each in found)
    large, _ = run([batch(recs(0)) + batch(recs(1, value=b"v" * 3_000_000)) + batch(recs(2))], range(3))
    assert [each.count for each in large] == [1, 1, 1]


def test_a_record_joins_a_batch_that_it_fills_to_the_limit() -> None:
    window = batch(recs(0)) + batch(recs(1))
    (both,), _ = run([window], range(2))
    # The limit is compared before the record's size, attributes and two deltas, a byte each, are written.
    fitting = len(both.raw or b"") - 4
    assert [len(run([window], range(2), limit=limit)[0]) for limit in (fitting, fitting - 1)] == [1, 2]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"codec": 0}, {"codec": 4}),
        ({"leader_epoch": 1}, {"leader_epoch": 2}),
        ({"log_append": False}, {"log_append": True}),
    ],
)
def test_a_batch_ends_where_its_source_is_of_another_kind(
    one: dict[str, object], other: dict[str, object]
) -> None:
    kinds = [one, one, other, other, one]
    window = b"".join(batch(recs(each, time=50 - each), **kind) for each, kind in enumerate(kinds))
    found, _ = run([window], range(5))
    assert [each.last_offset for each in found] == [1, 3, 4]


def test_log_append_times_that_differ_do_not_mix() -> None:
    window = b"".join(
        batch([Rec(offset=each, key=b"k", timestamp=each // 2)], log_append=True) for each in range(5)
    )
    found, _ = run([window], range(5))
    assert [(each.last_offset, each.max_timestamp) for each in found] == [(1, 0), (3, 1), (4, 2)]


def test_offsets_too_far_apart_for_one_batch_are_in_two() -> None:
    window = batch(recs(0)) + batch(recs(FAR)) + batch(recs(FAR + 1))
    found, _ = run([window], [0, FAR, FAR + 1])
    assert [each.base_offset for each in found] == [0, FAR]


def test_a_large_batch_that_stays_whole_is_copied_as_it_is() -> None:
    values = [np.random.default_rng(each).bytes(2000) for each in range(100)]
    large = batch([Rec(offset=i, key=b"k", value=value) for i, value in enumerate(values)], codec=4)
    window = large + batch(recs(200, 201), codec=4)
    found, _ = run([window], [201], keep_listed=False)
    assert found[0].raw == large and [each.last_offset for each in found] == [99, 200]


def test_message_sets_become_batches() -> None:
    old = [
        twin.message(0, b"a", b"1", magic=0),
        twin.message(1, b"b", b"2", magic=1, timestamp=70),
        twin.wrapper(
            4,
            b"".join(twin.message(i, b"k%d" % i, b"v", magic=1, timestamp=80 + i) for i in range(3)),
            twin.SNAPPY,
            magic=1,
            timestamp=82,
        ),
    ]
    found, coalescer = run([b"".join(old)], [1, 2, 4])
    assert [(each.offset, each.key, each.timestamp) for each in seen(found)] == [
        (1, b"b", 70),
        (2, b"k0", 80),
        (4, b"k2", 82),
    ]
    assert coalescer.matched == 3 and all(each.magic == 2 for each in found)


@pytest.mark.parametrize("keep_listed", [True, False])
@pytest.mark.parametrize("listed", [[1], [0, 3], [9]])
def test_a_listed_offset_without_a_record_is_an_error(listed: list[int], keep_listed: bool) -> None:
    with pytest.raises(CheckFailedError):
        run([batch(recs(0, 2)) + batch(recs(4))], listed, keep_listed=keep_listed)


def test_malformed_records_are_refused() -> None:
    data = array(batch(recs(0, 1)))
    data[61] = 0x7E
    coalescer = Coalescer(np.array([0, 1], np.int64))
    with pytest.raises(CorruptRecordError):
        coalescer.coalesce(data, scan_batches(data).batches)
