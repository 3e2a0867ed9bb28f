"""Statistics of records and keys against plain loops and a dict, however the log is divided."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from siltstone.base.config import LONG_MAX
from siltstone.base.records.decode import decode_records
from siltstone.compaction import keys as collecting
from siltstone.compaction.keys import COUNTED_WORDS, EntryBlob, KeyCollector
from siltstone.compaction.report import CLEANING_REASONS
from siltstone.compaction.statistics import (
    DELETE_HORIZONS_MAX,
    KEPT_BY_LEDGER,
    NOT_STAMPED,
    Bins,
    KeyCount,
    LogStatistics,
    StatisticsOptions,
    TombstoneRules,
    add_sums,
    bin_of,
    count_records,
    largest_rows,
    merge_counted_bucket,
)
from tests.support.cleaning import logs
from tests.support.cleaning.logs import Rec
from tests.support.key_entries import WORDS
from tests.support.records.arrays import scanned
from tests.support.thoroughness import few

LONG_MIN = -LONG_MAX - 1
BINS = Bins(start_ms=0, width_ms=100, bin_count=7)
RULES = TombstoneRules(now_ms=500, tombstones_from=LONG_MAX, keeps_legacy=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Records, whether their transaction was aborted, and their batch's delete horizon (ms, None without)."""

    records: list[Rec]
    is_aborted: bool = False
    horizon: int | None = None


def random_batches(rng: random.Random, count: int = 40) -> list[Batch]:
    batches, offset = [], 0
    for _ in range(count):
        records = []
        for _ in range(rng.randrange(1, 9)):
            key = rng.choice([None, *(b"key-%d" % number * (1 + number % 3) for number in range(25))])
            value = rng.choice([None, b"x" * rng.randrange(40)])
            records.append(Rec(offset=offset, key=key, value=value, timestamp=rng.randrange(-50, 900)))
            offset += rng.randrange(1, 4)
        horizon = rng.choice([None, None, 100, 500, 501, 9000])
        batches.append(Batch(records=records, is_aborted=rng.random() < 0.1, horizon=horizon))
    return batches


def counted(
    parts: Sequence[Sequence[Batch]], *, first_dirty: int, buckets: int, capacity: int, top: int = 5
) -> tuple[LogStatistics, list[int]]:
    """The statistics, and the retained offsets; each part is collected as by a task of its own."""
    statistics, blobs = LogStatistics(), list[EntryBlob]()
    for part in parts:
        collector = KeyCollector(
            hash_key=WORDS, first_dirty=first_dirty, buckets=buckets, capacity=capacity, bins=BINS.bin_count
        )
        for batch in part:
            stamped = {} if batch.horizon is None else {"delete_horizon_ms": batch.horizon}
            data, headers = scanned(logs.batch(batch.records, **stamped))
            columns = decode_records(data, headers)
            aborted = np.array([batch.is_aborted])
            marks = count_records(statistics, BINS, headers, columns, aborted, RULES)
            eligible = (columns.key_size >= 0) & (not batch.is_aborted)
            blobs += [blob.copied() for blob in collector.add(columns, eligible, marks)]
        blobs += [blob.copied() for blob in collector.finish()]
        add_sums(statistics.superseded, range(BINS.bin_count), collector.superseded)
    random.Random(1).shuffle(blobs)
    retained: list[int] = []
    for bucket in range(buckets):
        options = StatisticsOptions(bins=BINS, top=top)
        of_bucket = [blob for blob in blobs if blob.bucket == bucket]
        merged, of_keys = merge_counted_bucket(of_bucket, bucket, buckets, options)
        statistics.add(of_keys)
        retained += merged.offsets.tolist()
        assert merged.dirty_keys == of_keys.counts["dirty_keys"]
    return statistics, sorted(retained)


def place(time_ms: int, bins: Bins = BINS) -> int:
    return min(max((time_ms - bins.start_ms) // bins.width_ms, 0), bins.bin_count - 1)


def expected_statistics(
    batches: Sequence[Batch], first_dirty: int, top: int = 5
) -> tuple[LogStatistics, list[int]]:
    """The same by a dict of keys, and a loop over records."""
    sizes = {}
    for batch in batches:
        stamped = {} if batch.horizon is None else {"delete_horizon_ms": batch.horizon}
        columns = decode_records(*scanned(logs.batch(batch.records, **stamped)))
        sizes |= dict(zip(columns.offset.tolist(), columns.size.tolist(), strict=True))
    statistics, keys, retained = (
        LogStatistics(),
        defaultdict[bytes, list[tuple[Rec, bool]]](list),
        list[int](),
    )
    written, discarded, superseded = Counter[int](), Counter[int](), Counter[int]()
    waiting, waiting_sizes = Counter[int](), Counter[int]()

    def go(reason: str, size: int) -> None:
        statistics.discarded[reason] += 1
        statistics.discarded_sizes[reason] += size

    for batch in batches:
        may_go = batch.horizon is not None and batch.horizon <= RULES.now_ms
        for record in batch.records:
            size = sizes[record.offset]
            statistics.counts["records"] += 1
            statistics.sizes["records"] += size
            written[place(record.timestamp)] += size
            if batch.is_aborted or record.key is None:
                go("aborted" if batch.is_aborted else "keyless", size)
                discarded[place(record.timestamp)] += size
                continue
            keys[record.key].append((record, may_go and record.value is None))
            if record.value is None:
                statistics.counts["tombstones"] += 1
                statistics.sizes["tombstones"] += size
                if not may_go:
                    waiting[NOT_STAMPED if batch.horizon is None else batch.horizon] += 1
                    waiting_sizes[NOT_STAMPED if batch.horizon is None else batch.horizon] += size
    for key, records in keys.items():
        is_dirty = records[-1][0].offset >= first_dirty
        statistics.counts["keys"] += 1
        statistics.counts["dirty_keys"] += is_dirty
        step = (len(records) - 1).bit_length()
        statistics.frequencies[step] = statistics.frequencies.get(step, 0) + 1
        for number, (record, may_go) in enumerate(records):
            if is_dirty and number < len(records) - 1:
                go("superseded", sizes[record.offset])
                superseded[place(records[number + 1][0].timestamp)] += sizes[record.offset]
                continue
            retained.append(record.offset)
            if may_go:
                go("tombstones", sizes[record.offset])
        total, last = sum(sizes[record.offset] for record, _ in records), records[-1][0].offset
        statistics.hottest.append(
            KeyCount(
                records=len(records),
                bytes=total,
                superseded=(len(records) - 1) * is_dirty,
                superseded_bytes=(total - sizes[last]) * is_dirty,
                last_offset=last,
            )
        )
        assert key
    statistics.written, statistics.discarded_written, statistics.superseded = (
        +written,
        +discarded,
        +superseded,
    )
    statistics.waiting, statistics.waiting_sizes = waiting, waiting_sizes
    statistics.hottest = statistics.hottest_keys(top)
    return statistics, sorted(retained)


def comparable(statistics: LogStatistics, top: int = 5) -> dict[str, object]:
    statistics.hottest = statistics.hottest_keys(top)
    return dict(msgspec.to_builtins(statistics))


@pytest.mark.parametrize("seed", few(((seed,) for seed in range(6)), 0, 1))
def test_records_and_keys_are_counted_as_a_dict_counts_them(seed: int) -> None:
    batches = random_batches(random.Random(seed))
    for first_dirty in (0, 150, 10_000):
        expected, retained = expected_statistics(batches, first_dirty)
        for buckets, capacity, parts in ((1, 1 << 20, 1), (1, 13, 1), (3, 40, 2), (5, 1, 4)):
            step = -(-len(batches) // parts)
            divided = [batches[start : start + step] for start in range(0, len(batches), step)]
            statistics, offsets = counted(
                divided, first_dirty=first_dirty, buckets=buckets, capacity=capacity
            )
            assert offsets == retained, (first_dirty, buckets, capacity)
            assert comparable(statistics) == comparable(expected), (first_dirty, buckets, capacity)


def test_an_entry_is_sent_when_its_sums_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [
        Batch(records=[Rec(offset=10 * number + i, key=b"key", timestamp=i) for i in range(10)])
        for number in range(8)
    ]
    two_batches = 2 * len(logs.batch(batches[0].records))
    for limit, full in (("COUNTED_RECORDS_MAX", 20), ("COUNTED_BYTES_MAX", two_batches)):
        with monkeypatch.context() as patched:
            patched.setattr(collecting, limit, full)
            collector = KeyCollector(
                hash_key=WORDS, first_dirty=0, buckets=1, capacity=1 << 20, bins=BINS.bin_count
            )
            sent, blobs = LogStatistics(), list[EntryBlob]()
            for batch in batches:
                data, headers = scanned(logs.batch(batch.records))
                columns = decode_records(data, headers)
                marks = count_records(sent, BINS, headers, columns, None, RULES)
                blobs += [blob.copied() for blob in collector.add(columns, columns.key_size >= 0, marks)]
            assert {blob.entries.shape for blob in blobs} == {(1, COUNTED_WORDS)}
            assert [int(blob.entries[0, 3] >> np.uint64(35)) for blob in blobs] == [20, 20, 20], limit
            expected, retained = expected_statistics(batches, 0)
            statistics, offsets = counted([batches], first_dirty=0, buckets=1, capacity=1 << 20)
            assert (comparable(statistics), offsets) == (comparable(expected), retained)


def test_tombstones_that_a_ledger_needs_are_counted_apart_and_horizons_are_bounded() -> None:
    statistics = LogStatistics()

    def add(horizon: int, tombstones_from: int = LONG_MAX) -> None:
        data = logs.batch([Rec(offset=7, key=b"key", value=None)], delete_horizon_ms=horizon)
        window, headers = scanned(data)
        rules = TombstoneRules(now_ms=500, tombstones_from=tombstones_from, keeps_legacy=True)
        count_records(statistics, BINS, headers, decode_records(window, headers), None, rules)

    add(100, tombstones_from=7)
    add(100, tombstones_from=8)
    assert statistics.waiting == {KEPT_BY_LEDGER: 1}
    for horizon in range(1000, 1000 + 10 * (DELETE_HORIZONS_MAX - 1), 10):
        add(horizon)
    add(1014)  # there is no place for another one: with the nearest
    assert len(statistics.waiting) == DELETE_HORIZONS_MAX
    assert (statistics.waiting[1010], statistics.counts["tombstones"]) == (2, DELETE_HORIZONS_MAX + 2)


def test_parts_add_up_whatever_their_order_and_are_sent_as_json() -> None:
    batches = random_batches(random.Random(7))
    whole, _ = counted([batches], first_dirty=50, buckets=4, capacity=100)
    sent = msgspec.json.decode(msgspec.json.encode(whole), type=LogStatistics)
    assert sent == whole
    sent.add(LogStatistics())
    assert sent == whole
    assert set(whole.discarded) == set(CLEANING_REASONS)


def test_a_bucket_without_entries_has_statistics() -> None:
    merged, statistics = merge_counted_bucket([], 0, 1, StatisticsOptions(bins=BINS, top=3))
    assert (statistics.counts["keys"], statistics.hottest, statistics.superseded, len(merged.offsets)) == (
        0,
        [],
        {},
        0,
    )


@pytest.mark.parametrize("top", [0, 1, 2, 5, 9, 100])
def test_the_largest_rows_are_those_of_a_sort(top: int) -> None:
    rng = np.random.default_rng(top)
    measures = [rng.integers(0, most, 60) for most in (3, 4, 1000)]
    expected = sorted(range(60), key=lambda row: tuple(-int(measure[row]) for measure in measures))[:top]
    assert sorted(largest_rows(measures, top).tolist()) == sorted(expected)


@pytest.mark.parametrize(
    "bins",
    [
        Bins(start_ms=1, width_ms=100, bin_count=3),
        Bins(start_ms=-5, width_ms=100, bin_count=3),
        Bins(start_ms=0, width_ms=-(-LONG_MAX // 60), bin_count=60),
        Bins(start_ms=LONG_MIN, width_ms=1 << 58, bin_count=60),
        Bins(start_ms=LONG_MAX - 5, width_ms=1, bin_count=60),
        Bins(start_ms=7, width_ms=3, bin_count=1),
    ],
)
def test_bins_cover_times_that_are_too_far_apart(bins: Bins) -> None:
    """What is outside counts in the first or the last bin, also where the difference takes 65 bits. The times
    up to the first and the last one that are returned are in the same bin."""
    times = [LONG_MIN, LONG_MIN + 1, -6, -5, -1, 0, 1, 99, 100, 101, 200, 300, 301, LONG_MAX - 5, LONG_MAX]
    for time_ms in [*times, *(time + bins.width_ms // 2 for time in times if abs(time) < 1000)]:
        number, first, last = bin_of(time_ms, bins)
        assert number == place(time_ms, bins), time_ms
        assert LONG_MIN <= first <= time_ms <= last <= LONG_MAX
        assert place(first, bins) == place(last, bins) == number, time_ms
