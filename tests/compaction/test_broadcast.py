"""The broadcast join: keys of the clean section are looked up in a map of the dirty ones, group by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.base.records.control import end_transaction_marker
from siltstone.base.records.scan import scan_batches
from siltstone.compaction import broadcast, engine
from siltstone.compaction.engine import InProcessEngine, warm_up_work
from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.keys import EntryBlob
from siltstone.compaction.report import CLEANED, SKIPPED, LogResult
from siltstone.compaction.work import LogWork
from siltstone.log.names import segment_file
from siltstone.log.segments import list_segments
from tests.support.cleaning import logs
from tests.support.cleaning.clean_and_dirty import write_clean_and_dirty
from tests.support.cleaning.logs import one
from tests.support.failures import assert_failed

SPREAD = RunLimits(whole_log_bytes=0)


def clean(path: Path, *, min_clean_to_dirty_ratio: float, **choices: bool) -> LogResult:
    return logs.run(
        path,
        config={"segment.bytes": 900},
        limits=SPREAD,
        engine=lambda: InProcessEngine(2, min_clean_to_dirty_ratio=min_clean_to_dirty_ratio),
        **choices,
    )


def test_a_broadcast_join_leaves_what_a_shuffle_join_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = {name: write_clean_and_dirty(tmp_path / name) for name in ("looked up", "shuffled")}
    used: list[LogWork] = []
    real = broadcast.dirty_entries
    monkeypatch.setattr(
        broadcast, "dirty_entries", lambda work, *more: used.append(work) or real(work, *more)
    )
    results = [
        clean(path.parent, min_clean_to_dirty_ratio=99 * number) for number, path in enumerate(pairs.values())
    ]
    assert len(used) == 1
    for result in results:
        result.seconds, result.directory = 0.0, ""
    assert results[0] == results[1] and results[0].status == CLEANED
    assert results[0].distinct_dirty_keys == 5 and results[0].discarded.superseded == 4
    trees = [logs.tree(path) for path in pairs.values()]
    assert trees[0] == trees[1]


def test_a_small_log_is_looked_up_in_its_one_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = {"looked up": 0, "shuffled": 99}
    used: list[LogWork] = []
    real = broadcast.dirty_entries
    monkeypatch.setattr(
        broadcast, "dirty_entries", lambda work, *more: used.append(work) or real(work, *more)
    )
    real_choice, results = broadcast.should_broadcast, []
    for name, share in shares.items():
        monkeypatch.setattr(
            broadcast, "should_broadcast", lambda work, _, share=share: real_choice(work, share)
        )
        path = write_clean_and_dirty(tmp_path / name)
        results.append(logs.run(path.parent, config={"segment.bytes": 900}, engine=InProcessEngine))
    assert len(used) == 1
    for result in results:
        result.seconds, result.directory = 0.0, ""
    assert results[0] == results[1] and results[0].status == CLEANED
    trees = [logs.tree(path) for path in sorted(tmp_path.glob("*/*")) if path.is_dir()]
    assert len(trees) == 2 and trees[0] == trees[1]


def test_records_without_a_key_that_must_stay_skip_the_log(tmp_path: Path) -> None:
    partition = write_clean_and_dirty(tmp_path, [one(27, None)])
    before = logs.tree(partition)
    result = clean(tmp_path, min_clean_to_dirty_ratio=0, drop_keyless=False)
    assert result.status == SKIPPED and "without a key" in result.reason
    assert logs.tree(partition) == before


def test_a_log_with_transactions_takes_the_shuffle_join(tmp_path: Path) -> None:
    """Some groups were rewritten when the transaction is met: nothing of them is left."""
    partition = write_clean_and_dirty(tmp_path)
    shape = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    marker = end_transaction_marker(
        is_commit=True, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=logs.RECORD_TIME
    )
    marker[:8] = np.frombuffer((11).to_bytes(8, "big"), np.uint8)
    logs.write_segment(partition, 10, one(10, "b10", **shape) + marker.tobytes())
    result = clean(tmp_path, min_clean_to_dirty_ratio=0)
    assert result.status == CLEANED and not (partition / ".siltstone").exists()


def test_a_key_of_the_map_whose_last_record_is_not_read_fails_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = write_clean_and_dirty(tmp_path)
    before = logs.tree(partition)
    real = broadcast.OffsetMap.of

    def with_another(blobs: Sequence[EntryBlob]) -> broadcast.OffsetMap:
        entries = real(blobs).entries
        return broadcast.OffsetMap(np.concatenate([entries, np.array([[5, 5, 30 << 1]], np.uint64)]))

    monkeypatch.setattr(broadcast.OffsetMap, "of", with_another)
    result = clean(tmp_path, min_clean_to_dirty_ratio=0)
    assert_failed(result, "CHECK_FAILED", path="topic-0", about="6 keys, but the last records of only 5")
    assert logs.tree(partition) == before


def test_a_dirty_record_whose_key_is_not_in_the_map_fails_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_clean_and_dirty(tmp_path)
    real = broadcast.OffsetMap.of
    monkeypatch.setattr(broadcast.OffsetMap, "of", lambda blobs: real(blobs[:0]))
    result = clean(tmp_path, min_clean_to_dirty_ratio=0)
    assert_failed(result, "CHECK_FAILED", path="topic-0", about="offset map")


@pytest.mark.parametrize(
    ("first_dirty", "memory", "share", "expected"),
    [(100, 1 << 20, 1.5, True), (0, 1 << 20, 1.5, False), (100, 1000, 1.5, False), (100, 1 << 20, 4, False)],
)
def test_a_broadcast_join_is_chosen_for_a_small_dirty_section_that_fits_the_memory(
    tmp_path: Path, first_dirty: int, memory: int, share: float, expected: bool
) -> None:
    partition = logs.write_log(
        tmp_path, {base: [one(base + i, f"k{i}") for i in range(50)] for base in range(0, 150, 10)[::5]}
    )
    work = warm_up_work(partition, "log")
    work = replace(
        work,
        segments=tuple(list_segments(partition)),
        first_dirty=first_dirty,
        end=150,
        limits=replace(work.limits, memory_bytes=memory),
    )
    assert broadcast.should_broadcast(work, share) is expected


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 1000)), max_size=60),
    st.lists(st.integers(0, 40), max_size=40),
)
def test_the_offset_map_looks_up_as_a_dict_does(dirty: list[tuple[int, int]], queried: list[int]) -> None:
    """Hashes that differ in one half only, too."""

    def words(key: int) -> tuple[int, int]:
        return key % 7, key // 7

    entries = np.array(
        [(words(key)[0], words(key)[1] << 32 | offset) for key, offset in dirty], np.uint64
    ).reshape(-1, 2)
    cut = len(entries) // 2
    blobs = [
        EntryBlob(bucket=0, is_dirty=True, base_offset=1 << 40, entries=part)
        for part in (entries[:cut], entries[cut:])
    ]
    offset_map = broadcast.OffsetMap.of(blobs)
    expected: dict[tuple[int, int], int] = {}
    for key, offset in dirty:
        expected[words(key)] = max(expected.get(words(key), 0), (1 << 40) + offset)
    assert {(int(a), int(b)): int(o) >> 1 for a, b, o in offset_map.entries} == expected
    low, high = (np.array([words(key)[half] for key in queried], np.uint64) for half in (0, 1))
    offset = np.array([expected.get(words(key), 0) - key % 2 for key in queried], np.int64)
    keep, met, missing = offset_map.look_up(low, high, offset, 1 << 62)
    stays = [words(key) not in expected or key % 2 == 0 for key in queried]
    assert keep.tolist() == stays and missing == 0
    assert met == sum(words(key) in expected and key % 2 == 0 for key in queried)
    assert offset_map.look_up(low, high, offset, -1)[2] == sum(words(key) not in expected for key in queried)


def test_keys_of_all_bits_in_a_large_map_are_found_and_no_others() -> None:
    """Most that are not there are told by the bits, some get as far as the table."""
    dice = np.random.default_rng(4)
    hashes = dice.integers(0, 1 << 64, (60_000, 2), np.uint64)
    low, high = hashes.T.copy()
    entries = np.stack((low, (high << np.uint64(32)) | np.arange(60_000, dtype=np.uint64)), 1)[:20_000]
    offset_map = broadcast.OffsetMap.of([EntryBlob(bucket=0, is_dirty=True, base_offset=0, entries=entries)])
    offset = np.arange(60_000)
    offset[:10_000] -= 1
    keep, met, missing = offset_map.look_up(low, high, offset, 50_000)
    assert keep.tolist() == [not i < 10_000 for i in range(60_000)]
    assert (met, missing) == (10_000, 10_000)
    assert offset_map.look_up(low, high, offset, 1 << 62)[2] == 0


def test_the_warm_up_joins_a_segment_that_begins_at_its_base_offset(tmp_path: Path) -> None:
    work = engine._broadcast_join_work(tmp_path / "log")
    for group in work.groups:
        data = np.frombuffer(
            (tmp_path / "log" / segment_file(group.base_offset, "log")).read_bytes(), np.uint8
        )
        assert int(scan_batches(data).batches["base_offset"][0]) == group.base_offset < group.end_offset
