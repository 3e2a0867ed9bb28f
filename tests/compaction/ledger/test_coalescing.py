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
    batches: list[Batch] = []
    for window in windows:
        data = array(window)
        chosen = coalescer.may_retain(scan_batches(data).batches)
        for part in (chosen[chosen["magic"] == 2], chosen[chosen["magic"] < 2]):
            coalesced = coalescer.coalesce(data, part)
            batches += [] if coalesced is None else _decoded(coalesced)
    batches += _decoded(coalescer.finish())
    return batches, coalescer


def _decoded(coalesced: CleanedBatches) -> list[Batch]:
    batches = batches_of(coalesced.data.tobytes())
    assert coalesced.size.tolist() == [len(decoded.raw or b"") for decoded in batches]
    assert coalesced.last_offset.tolist() == [decoded.last_offset for decoded in batches]
    assert coalesced.max_timestamp.tolist() == [decoded.max_timestamp for decoded in batches]
    return batches


def records_of(batches: Sequence[Batch]) -> list[Seen]:
    return [record for decoded in batches for record in seen_in(decoded)]


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
            batch_offsets = [offset := offset + step for step in steps]
            records = [
                Rec(
                    offset=record_offset,
                    key=draw(st.sampled_from([None, b"", b"k" * 70])),
                    value=draw(st.sampled_from([None, b"", b"v" * 200])),
                    timestamp=draw(st.sampled_from([-1, 0, 7, 1 << 45])),
                    headers=draw(st.sampled_from([(), ((b"h", None), (b"", b"x"))])),
                )
                for record_offset in batch_offsets
            ]
            window += batch(
                records,
                base_offset=batch_offsets[0] - draw(st.integers(0, min(1, batch_offsets[0]))),
                last_offset=batch_offsets[-1] + draw(st.sampled_from([0, 0, 2])),
                leader_epoch=draw(st.sampled_from([0, 0, 3])),
                codec=draw(st.sampled_from([0, 0, 0, 1, 2, 3, 4])),
                log_append=draw(st.sampled_from([False, False, True])),
                producer_id=draw(st.sampled_from([-1, 9])),
                delete_horizon_ms=draw(st.sampled_from([None, None, 77])),
            )
            offsets += batch_offsets
            offset = batch_offsets[-1] + 2
        windows.append(window)
    return windows, offsets


@settings(deadline=None)
@given(windows_of(), st.sampled_from([100, 600, BATCH_BYTES]), st.booleans(), st.randoms())
def test_retained_records_are_unchanged(
    drawn: tuple[list[bytes], list[int]], limit: int, keep_listed: bool, random: object
) -> None:
    windows, offsets = drawn
    listed = [offset for offset in offsets if random.random() < 0.5]  # type: ignore[attr-defined]
    batches, coalescer = run(windows, listed, keep_listed=keep_listed, limit=limit)
    sources = [source for window in windows for source in batches_of(window)]
    stays = [record for record in records_of(sources) if (record.offset in listed) is keep_listed]
    assert records_of(batches) == stays
    assert sum(map(len, coalescer.offsets)) == len(stays) and coalescer.matched == len(listed)
    assert np.concatenate([np.empty(0), *coalescer.offsets]).tolist() == [
        retained.offset for retained in stays
    ]
    codecs = {record.offset: source.attributes & 7 for source in sources for record in source.records}
    for decoded in batches:
        assert {codecs[record.offset] for record in decoded.records} == {decoded.attributes & 7}
        if keep_listed:
            assert decoded.producer_id == -1 and decoded.horizon is None
            assert decoded.base_offset == decoded.records[0].offset


def test_retained_records_of_many_batches_become_one_batch() -> None:
    window = b"".join(batch(recs(*range(start, start + 10)), producer_id=5) for start in range(0, 1000, 10))
    (coalesced,), _ = run([window], range(3, 1000, 10))
    assert (coalesced.base_offset, coalesced.last_offset, coalesced.count) == (3, 993, 100)
    assert (coalesced.producer_id, coalesced.producer_epoch, coalesced.base_sequence) == (-1, -1, -1)
    assert coalesced.max_timestamp == 56


def test_a_batch_ends_when_it_is_full() -> None:
    window = b"".join(batch(recs(offset, value=b"v" * 1000)) for offset in range(1000))
    batches, _ = run([window], range(1000))
    assert len(batches) == 8 and all(len(decoded.raw or b"") <= BATCH_BYTES for decoded in batches)
    large, _ = run([batch(recs(0)) + batch(recs(1, value=b"v" * 3_000_000)) + batch(recs(2))], range(3))
    assert [decoded.count for decoded in large] == [1, 1, 1]


def test_a_record_joins_a_batch_that_it_fills_to_the_limit() -> None:
    window = batch(recs(0)) + batch(recs(1))
    (joined,), _ = run([window], range(2))
    # The limit is compared before the record's size, attributes and two deltas, a byte each, are written.
    fitting = len(joined.raw or b"") - 4
    assert [len(run([window], range(2), limit=limit)[0]) for limit in (fitting, fitting - 1)] == [1, 2]


@pytest.mark.parametrize(
    ("options", "other_options"),
    [
        ({"codec": 0}, {"codec": 4}),
        ({"leader_epoch": 1}, {"leader_epoch": 2}),
        ({"log_append": False}, {"log_append": True}),
    ],
)
def test_a_batch_ends_where_its_source_is_of_another_kind(
    options: dict[str, object], other_options: dict[str, object]
) -> None:
    kinds = [options, options, other_options, other_options, options]
    window = b"".join(batch(recs(offset, time=50 - offset), **kind) for offset, kind in enumerate(kinds))
    batches, _ = run([window], range(5))
    assert [decoded.last_offset for decoded in batches] == [1, 3, 4]


def test_log_append_times_that_differ_do_not_mix() -> None:
    window = b"".join(
        batch([Rec(offset=offset, key=b"k", timestamp=offset // 2)], log_append=True) for offset in range(5)
    )
    batches, _ = run([window], range(5))
    assert [(decoded.last_offset, decoded.max_timestamp) for decoded in batches] == [(1, 0), (3, 1), (4, 2)]


def test_offsets_too_far_apart_for_one_batch_are_in_two() -> None:
    window = batch(recs(0)) + batch(recs(FAR)) + batch(recs(FAR + 1))
    batches, _ = run([window], [0, FAR, FAR + 1])
    assert [decoded.base_offset for decoded in batches] == [0, FAR]


def test_a_large_batch_that_stays_whole_is_copied_as_it_is() -> None:
    values = [np.random.default_rng(seed).bytes(2000) for seed in range(100)]
    large = batch([Rec(offset=i, key=b"k", value=value) for i, value in enumerate(values)], codec=4)
    window = large + batch(recs(200, 201), codec=4)
    batches, _ = run([window], [201], keep_listed=False)
    assert batches[0].raw == large and [decoded.last_offset for decoded in batches] == [99, 200]


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
    batches, coalescer = run([b"".join(old)], [1, 2, 4])
    assert [(record.offset, record.key, record.timestamp) for record in records_of(batches)] == [
        (1, b"b", 70),
        (2, b"k0", 80),
        (4, b"k2", 82),
    ]
    assert coalescer.matched == 3 and all(decoded.magic == 2 for decoded in batches)


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
