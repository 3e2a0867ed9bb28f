"""An explanation tells what the cleaning then does, and counts as a dict would."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from siltstone.base import files
from siltstone.base.errors import UsageError
from siltstone.commands import review
from siltstone.compaction import engine as engines
from siltstone.compaction import explain as explaining
from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.explain import MASKED_KEY, WOULD_CLEAN, key_text
from siltstone.compaction.inplace.planning import POLICY_UNKNOWN
from siltstone.compaction.statistics import Bins, LogStatistics
from tests.support.cleaning import logs
from tests.support.command_line import tree
from tests.support.explaining import explain_all, explain_one, explain_request, records_by_key
from tests.support.golden_sets import write_checkpoint
from tests.support.operator.staged import Staged, stage
from tests.support.records import twin

ROUNDS = [
    ("basic", 0),
    ("tombstones", 1),
    ("txn", 0),
    ("txn", 2),
    ("keyless", 0),
    ("mixed", 0),
    ("mixed_logappend", 0),
    ("idempotent", 1),
    ("min_lag", 0),
]


@pytest.fixture
def staged(golden: Path, tmp_path: Path) -> Staged:
    return stage(golden, "tombstones", tmp_path / "logs", 1)


@pytest.mark.parametrize(("name", "number"), ROUNDS)
def test_what_is_explained_is_what_cleaning_does(
    golden: Path, tmp_path: Path, name: str, number: int
) -> None:
    staged = stage(golden, name, tmp_path / "logs", number)
    before = tree(staged.directory)
    log = explain_one(staged, drop_keyless=True)
    assert tree(staged.directory) == before, "explaining changed something"
    result = staged.clean_one(drop_keyless=True)
    assert (log.status, result.status) == (WOULD_CLEAN, "cleaned")
    assert log.outcome.removed == {name: getattr(result.discarded, name) for name in log.outcome.removed}
    assert sum(log.outcome.removed.values()) > 0
    assert (log.bytes_before, log.bytes_after) == (result.bytes_before, result.bytes_after)
    assert log.keys.distinct_dirty_keys == result.distinct_dirty_keys
    assert (len(log.outcome.groups), log.range.first_dirty_offset) == (
        result.groups,
        result.first_dirty_offset,
    )
    assert log.range.first_uncleanable_offset == staged.checkpoint()
    assert sum(group.records_after for group in log.outcome.groups) == log.outcome.records["after"]


@pytest.mark.parametrize("name", ["basic", "tombstones"])
def test_keys_are_counted_as_a_dict_would(golden: Path, tmp_path: Path, name: str) -> None:
    staged = stage(golden, name, tmp_path / "logs")
    log = explain_one(staged, show_keys=True, top=1000)
    assert log.range.first_uncleanable_offset is not None
    keys = records_by_key(staged.partition, log.range.first_uncleanable_offset)
    assert log.keys.distinct_keys == len(keys)
    assert {hottest_key.key: hottest_key.records for hottest_key in log.keys.hottest_keys} == {
        key.decode(): len(records) for key, records in keys.items()
    }
    sizes = {
        hottest_key.key: (hottest_key.bytes, hottest_key.superseded_bytes, hottest_key.last_offset)
        for hottest_key in log.keys.hottest_keys
    }
    for key, records in keys.items():
        total_bytes = sum(record.size for record in records)
        superseded_bytes = total_bytes - records[-1].size
        assert sizes[key.decode()] == (total_bytes, superseded_bytes, records[-1].offset)
    counts = [hottest_key.records for hottest_key in log.keys.hottest_keys]
    assert counts == sorted(counts, reverse=True)
    for step in log.keys.keys_by_records:
        expected = sum(step.records_from <= len(records) <= step.records_to for records in keys.values())
        assert step.keys == expected
    assert log.outcome.removed_bytes["superseded"] == sum(
        record.size for records in keys.values() for record in records[:-1]
    )


def test_bytes_become_reclaimable_when_the_next_record_of_the_key_is_written(staged: Staged) -> None:
    log = explain_one(staged)
    written = [moment.written_bytes for moment in log.outcome.reclaimable]
    free = [moment.reclaimable_bytes for moment in log.outcome.reclaimable]
    assert written == sorted(written) and free == sorted(free)
    assert all(a <= b for a, b in zip(free, written, strict=True))
    assert free[-1] == sum(log.outcome.removed_bytes.values())
    assert written[-1] == free[-1] + log.outcome.kept_bytes
    assert log.range.first_uncleanable_offset is not None and log.range.first_dirty_offset is not None
    keys = records_by_key(staged.partition, log.range.first_uncleanable_offset)
    middle = log.outcome.reclaimable[len(free) // 2]
    superseded = sum(
        record.size
        for records in keys.values()
        if records[-1].offset >= log.range.first_dirty_offset
        for record, later in itertools.pairwise(records)
        if later.timestamp <= middle.at_ms
    )
    assert middle.reclaimable_bytes == superseded > 0


def test_a_moment_is_the_last_millisecond_of_its_bin() -> None:
    moments = explaining.moments(Bins(start_ms=100, width_ms=20, bin_count=3), LogStatistics(written={1: 7}))
    assert [(moment.at_ms, moment.written_bytes) for moment in moments] == [(119, 0), (139, 7), (159, 7)]


@pytest.mark.parametrize(("buckets", "held_bytes"), [(1, 1 << 30), (7, 1 << 30), (7, 2000), (5, 1)])
def test_buckets_and_memory_change_nothing(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buckets: int, held_bytes: int
) -> None:
    """With little memory for entries the log is read again for the buckets that were left out."""
    staged = stage(golden, "basic", tmp_path / "logs")
    at_once = explain_all(staged)
    monkeypatch.setattr(explaining, "WHOLE_LOG_BYTES", 0)
    monkeypatch.setattr(engines, "HELD_ENTRY_BYTES_MAX", held_bytes)
    engine = InProcessEngine(buckets)
    apart = review.explain(explain_request(staged), engine=lambda: engine)
    assert apart.to_json() == at_once.to_json()


@pytest.mark.parametrize("count", [1, 2])
def test_the_bytes_of_removed_markers_are_reported(tmp_path: Path, count: int) -> None:
    """Nothing of their transactions is left, and their delete horizons have passed."""
    key, value = struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 0)
    markers = [
        logs.batch(
            [logs.Rec(offset=offset, key=key, value=value)],
            transactional=True,
            control=True,
            producer_id=offset,
            producer_epoch=0,
            delete_horizon_ms=logs.NOW - 1,
        )
        for offset in range(count)
    ]
    logs.write_log(tmp_path, {0: [*markers, logs.one(count, "a")], 10: [logs.one(10, "z")]})
    request = review.ExplainRequest(
        directories=[tmp_path],
        topics=[logs.WHERE.topic],
        config=[f"{key}={value}" for key, value in logs.CONFIG.items()],
        now_ms=logs.NOW,
        no_spark=True,
    )
    (log,) = review.explain(request).logs
    (record,) = next(twin.decode_log(markers[0])).records
    assert log.outcome.removed["markers"] == count
    assert log.outcome.removed_bytes["markers"] == count * record.size


def test_a_log_is_read_no_more_often_than_in_a_dry_run(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "basic", tmp_path / "logs")
    size = explain_one(staged).bytes_before

    def bytes_read(action: Callable[[], object]) -> int:
        before = files.bytes_read()
        action()
        return files.bytes_read() - before

    dry = bytes_read(lambda: staged.clean_one(dry_run=True))
    assert dry >= 2 * size
    assert bytes_read(lambda: explain_one(staged, top=0)) < dry + size // 2


@pytest.mark.parametrize("damage", ["missing", "within a batch", "at a later batch", "at the end"])
def test_hot_keys_are_found_without_the_index(staged: Staged, damage: str) -> None:
    with_index = explain_one(staged, show_keys=True, top=1000)
    for index in staged.partition.glob("*.index"):
        log = index.with_suffix(".log").read_bytes()
        last = max(batch.position for batch in twin.decode_log(log))
        positions = {"within a batch": 1, "at a later batch": last, "at the end": len(log)}
        if damage == "missing":
            index.unlink()
        else:
            index.write_bytes(bytes(4) + positions[damage].to_bytes(4, "big"))
    without_index = explain_one(staged, show_keys=True, top=1000)
    assert without_index.keys.hottest_keys == with_index.keys.hottest_keys
    assert len({key.key for key in without_index.keys.hottest_keys}) == without_index.keys.distinct_keys


def test_kafkas_map_says_how_many_passes_it_would_need(staged: Staged) -> None:
    config = [*staged.request.config, "log.cleaner.dedupe.buffer.size=1048577"]
    log = explain_one(staged, config=config)
    assert log.keys.kafka is not None and log.keys.distinct_dirty_keys is not None
    assert (log.keys.kafka.map_keys, log.keys.kafka.passes) == (39321, 1)
    assert log.keys.kafka.buffer_bytes_for_one_pass >= log.keys.distinct_dirty_keys * 24 / 0.9


def test_a_log_that_is_not_eligible_is_explained_too(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "idempotent", tmp_path / "logs", 1)
    config = [line for line in staged.request.config if not line.startswith("min.cleanable")]
    config.append("min.cleanable.dirty.ratio=0.99")
    log = explain_one(staged, config=config)
    assert log.status == "not_eligible" and "min.cleanable.dirty.ratio=0.99" in log.reason
    assert log.range.min_dirty_ratio == 0.99 and log.outcome.removed["superseded"] > 0
    assert explain_one(staged, config=config, force=True).status == WOULD_CLEAN


def test_passed_horizons_make_an_idle_log_due(staged: Staged) -> None:
    config = [line for line in staged.request.config if not line.startswith("min.cleanable")]
    log = explain_one(staged, config=[*config, "min.cleanable.dirty.ratio=0.9"])
    assert log.status == WOULD_CLEAN and any("delete horizons" in note for note in log.notes)


def test_what_bounds_the_range_is_named(staged: Staged) -> None:
    bounds = {bound.name: bound.offset for bound in explain_one(staged).range.bounds}
    assert bounds == {"active segment": 573, "high watermark": 581}
    assert {bound.name for bound in explain_one(staged, high_watermark="end").range.bounds} == {*bounds}
    (staged.directory / "replication-offset-checkpoint").unlink()
    assert [bound.name for bound in explain_one(staged, high_watermark="end").range.bounds] == [
        "active segment"
    ]


def test_a_high_watermark_in_the_checkpoint_bounds_the_range_despite_high_watermark_end(
    staged: Staged,
) -> None:
    topic_partition = (staged.topic_partition.topic, staged.topic_partition.partition)
    write_checkpoint(staged.directory / "replication-offset-checkpoint", {topic_partition: 300})
    (staged.directory / "cleaner-offset-checkpoint").unlink()
    log = explain_one(staged, high_watermark="end")
    assert log.range.first_uncleanable_offset is not None and log.range.first_uncleanable_offset <= 300


def test_a_log_without_a_policy_is_skipped(staged: Staged) -> None:
    log = explain_one(staged, config=(), topics=())
    assert (log.status, log.reason, log.is_explained) == ("skipped", POLICY_UNKNOWN, False)
    document = log.to_json()
    assert not any(document[name] for name in ("bytes_after", "records_after", "removed_bytes", "kept_bytes"))


@pytest.mark.parametrize("name", ["compact_then_delete_ms2", "basic"])
def test_records_and_bytes_are_of_the_whole_log_and_retention_is_counted_apart(
    golden: Path, tmp_path: Path, name: str
) -> None:
    staged = stage(golden, name, tmp_path / "logs")
    log = explain_one(staged, force=True)
    result = staged.clean_one(force=True)
    assert (log.status, result.status) == (WOULD_CLEAN, "cleaned")
    assert log.outcome.expired.records == result.discarded.expired
    assert (log.outcome.expired.segments > 0) == (result.discarded.expired > 0) == (name != "basic")
    assert (log.outcome.records_before, log.outcome.records_after) == (
        result.records_before,
        result.records_after,
    )
    assert log.outcome.records_before is not None
    assert log.outcome.records_before > log.outcome.records["total"], "the active segment counts, too"
    assert log.bytes_after == result.bytes_after
    assert [note for note in result.notes if note.startswith("retention: ")] == log.notes


def test_retention_of_a_log_that_needs_no_cleaning_is_explained(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "compact_then_delete_ms2", tmp_path / "logs")
    staged.clean(now_ms=1, config=[*staged.request.config, "retention.ms=-1", "retention.bytes=-1"])
    log = explain_one(staged)
    result = staged.clean_one()
    assert (log.status, log.reason, log.is_explained) == (WOULD_CLEAN, "", False)
    assert (result.status, log.notes) == ("cleaned", result.notes)
    assert log.notes[0].startswith("not compacted: ")
    expired = log.outcome.expired
    assert (expired.records, log.outcome.removed) == (result.discarded.expired, {})
    assert 0 < expired.bytes == log.bytes_before - (log.bytes_after or 0)
    assert (log.outcome.records_before, log.outcome.records_after) == (
        result.records_before,
        result.records_after,
    )


def test_what_a_brokers_retention_would_delete_is_shown_of_a_log_that_only_deletes(staged: Staged) -> None:
    config = ["cleanup.policy=delete", "retention.ms=-1", "retention.bytes=1"]
    log = explain_one(staged, config=config)
    assert (log.status, log.reason, log.bytes_after) == ("skipped", "cleanup.policy=delete", None)
    assert 0 < log.outcome.expired.bytes < log.bytes_before
    assert log.outcome.expired.records and log.outcome.expired.segments == log.segments - 1
    (note,) = log.notes
    assert note.startswith("retention: ") and note.endswith("; clean leaves it to the broker")
    assert staged.clean_one(config=config).bytes_after == log.bytes_before
    tiered = explain_one(staged, config=[*config, "remote.storage.enable=true"])
    assert tiered.outcome.expired.segments == 0
    (staged.directory / "replication-offset-checkpoint").unlink()
    uncommitted = explain_one(staged, config=config)
    assert uncommitted.outcome.expired.segments == 0


def test_keyless_records_have_to_be_allowed(golden: Path, tmp_path: Path) -> None:
    log = explain_one(stage(golden, "keyless", tmp_path / "logs"))
    assert log.status == "skipped" and "--drop-keyless" in log.reason
    assert log.outcome.removed["keyless"] == log.outcome.records["keyless"] == 202


def test_keys_are_masked_unless_they_are_asked_for(staged: Staged) -> None:
    assert {hottest_key.key for hottest_key in explain_one(staged).keys.hottest_keys} == {MASKED_KEY}
    assert "key-00" not in json.dumps(explain_all(staged).to_json())
    assert all(
        hottest_key.key.startswith("key-")
        for hottest_key in explain_one(staged, show_keys=True).keys.hottest_keys
    )


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"k" * 64, "k" * 64),
        (b"k" * 65, "k" * 64 + "…"),
        (b"\xff" * 64, "0x" + "ff" * 64),
        (b"\xff" * 65, "0x" + "ff" * 64 + "…"),
    ],
    ids=["64 letters", "65 letters", "64 bytes", "65 bytes"],
)
def test_only_a_key_that_is_longer_than_what_is_shown_of_it_has_an_ellipsis(key: bytes, text: str) -> None:
    assert key_text("topic-0", key) == text


def test_a_damaged_log_does_not_stop_the_others(staged: Staged) -> None:
    log = min(staged.partition.glob("*.log"))
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    explained = explain_one(staged)
    assert explained.status == "uncleanable" and "checksum does not match" in explained.reason


def test_a_directory_that_was_not_stopped_is_explained_with_a_note(staged: Staged) -> None:
    (staged.directory / ".kafka_cleanshutdown").unlink()
    report = explain_all(staged)
    assert report.logs[0].status == WOULD_CLEAN
    assert any("no .kafka_cleanshutdown" in note for note in report.notes)


@pytest.mark.parametrize("changes", [{"high_watermark": "start"}, {"top": -1}, {"topics": ["nothing"]}])
def test_impossible_options_are_refused(staged: Staged, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        explain_one(staged, **changes)
