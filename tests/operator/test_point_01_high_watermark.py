"""1. Nothing beyond the high watermark."""

from pathlib import Path

import pytest

from siltstone.commands import clean as app
from siltstone.compaction.report import LogResult
from siltstone.log.segments import list_segments
from tests.support.cleaning import logs
from tests.support.golden_sets import read_checkpoint, write_checkpoint
from tests.support.operator.staged import (
    Staged,
    in_process,
    last_values,
    listing,
    log_bytes,
    no_engine,
    records,
    stage,
)

REPLICATION = "replication-offset-checkpoint"


@pytest.fixture
def staged(golden: Path, tmp_path: Path) -> Staged:
    return stage(golden, "basic_zipf_ts", tmp_path / "data")


def set_high_watermark(staged: Staged, offset: int) -> None:
    write_checkpoint(
        staged.directory / REPLICATION,
        {(staged.topic_partition.topic, staged.topic_partition.partition): offset},
    )


def test_a_log_without_an_entry_is_skipped_with_the_reason(staged: Staged) -> None:
    (staged.directory / REPLICATION).unlink()
    before = listing(staged.directory)
    result = staged.clean_one()
    assert result.status == "skipped"
    assert "replication-offset-checkpoint" in result.reason and "--high-watermark end" in result.reason
    assert listing(staged.directory) == before


def test_the_entry_of_another_log_does_not_count(staged: Staged) -> None:
    write_checkpoint(staged.directory / REPLICATION, {("another", 0): 1000})
    assert staged.clean_one().status == "skipped"


def test_high_watermark_end_takes_the_logs_end(staged: Staged) -> None:
    (staged.directory / REPLICATION).unlink()
    result = staged.clean_one(high_watermark="end")
    assert result.status == "cleaned"
    assert result.cleaned_end_offset == list_segments(staged.partition)[-1].base_offset


@pytest.mark.parametrize("flag", [None, "end"])
@pytest.mark.parametrize("segment", [1, 3, 5])
@pytest.mark.parametrize("beyond", [0, 1, 7])
def test_truncated_to_the_high_watermark_no_committed_value_is_missing(
    staged: Staged, segment: int, beyond: int, flag: str | None
) -> None:
    """``end`` is said of logs without an entry, and changes nothing where there is one."""
    high_watermark = list_segments(staged.partition)[segment].base_offset + beyond
    set_high_watermark(staged, high_watermark)
    committed = last_values(staged.partition, below=high_watermark)
    tail = list(records(staged.partition))
    result = staged.clean_one(high_watermark=flag)
    assert result.status == "cleaned"
    assert result.cleaned_end_offset is not None and result.cleaned_end_offset <= high_watermark
    assert last_values(staged.partition, below=high_watermark) == committed
    end = result.cleaned_end_offset
    assert [record for record in records(staged.partition) if record[0] >= end] == [
        record for record in tail if record[0] >= end
    ]
    for cleaned_segment in list_segments(staged.partition):
        if cleaned_segment.base_offset >= high_watermark:
            Path(cleaned_segment.path).unlink()
    assert last_values(staged.partition, below=high_watermark) == committed


def test_nothing_is_cleaned_where_nothing_is_committed(staged: Staged) -> None:
    set_high_watermark(staged, 0)
    before = log_bytes(staged.partition)
    result = staged.clean_one(force=True)
    assert result.status == "nothing_to_do"
    assert log_bytes(staged.partition) == before


def test_no_engine_is_started_if_nothing_may_be_cleaned(staged: Staged) -> None:
    (staged.directory / REPLICATION).unlink()
    assert app.clean(staged.request, engine=no_engine).results[0].status == "skipped"


def test_the_checkpoint_of_the_cleaner_stays_below_the_high_watermark(staged: Staged) -> None:
    set_high_watermark(staged, list_segments(staged.partition)[2].base_offset + 1)
    staged.clean_one()
    high_watermark = read_checkpoint(staged.directory / REPLICATION)[staged.case.topic, 0]
    assert (staged.checkpoint() or 0) <= high_watermark


def clean_two_logs(directory: Path, *more: str, **changes: object) -> dict[str, LogResult]:
    """`clean --high-watermark end` of all topics of a directory, the policy and ``more`` by hand."""
    (directory / ".kafka_cleanshutdown").touch()
    config = directory.parent / "topics.config"
    settings = ("cleanup.policy=compact", "min.cleanable.dirty.ratio=0.0", *more)
    config.write_text("".join(f"{topic}:{setting}\n" for topic in ("topic", "other") for setting in settings))
    request = app.CleanRequest(
        directories=[directory],
        config_file=config,
        now_ms=logs.NOW,
        high_watermark="end",
        **{"in_place": True, **changes},  # type: ignore[arg-type]
    )
    return {result.topic: result for result in app.clean(request, engine=in_process).results}


def test_the_flag_concerns_only_logs_without_an_entry(tmp_path: Path) -> None:
    """One run over both kinds: with an entry of 2 what lies at 2 supersedes nothing."""
    segments = {
        0: [logs.one(0, "a", "committed"), logs.one(1, "b")],
        2: [logs.one(2, "a", "not replicated")],
        3: [logs.one(3, "c")],
    }
    directory = tmp_path / "data"
    partition = logs.write_log(directory, segments, high_watermark=2)
    logs.write_log(tmp_path / "apart", segments)
    other = directory / "other-0"
    (tmp_path / "apart" / "topic-0").rename(other)
    results = clean_two_logs(directory)
    assert logs.offsets(partition) == [0, 1, 2, 3]
    assert results["topic"].cleaned_end_offset == 2
    assert logs.offsets(other) == [1, 2, 3]
    assert results["other"].cleaned_end_offset == 3


@pytest.mark.parametrize("entry", [-5, 0])
def test_a_high_watermark_of_0_holds_back_everything(tmp_path: Path, entry: int) -> None:
    segments = {0: [logs.one(0, "a"), logs.one(1, "a")], 2: [logs.one(2, "a")]}
    partition = logs.write_log(tmp_path / "data", segments, high_watermark=entry)
    before = listing(partition)
    results = clean_two_logs(tmp_path / "data", force=True)
    assert results["topic"].status == "nothing_to_do"
    assert listing(partition) == before


@pytest.mark.parametrize("way", ["in place", "out"])
def test_an_expired_log_keeps_its_active_segment_and_its_end(tmp_path: Path, way: str) -> None:
    segments = {0: [logs.one(0, "a")], 2: [logs.one(2, "b")], 4: [logs.one(4, "c"), logs.one(5, "d")]}
    partition = logs.write_log(tmp_path / "data", segments, high_watermark=None)
    destination = {} if way == "in place" else {"in_place": False, "out": tmp_path / "new"}
    before = listing(partition)
    results = clean_two_logs(
        tmp_path / "data",
        "cleanup.policy=compact,delete",
        "retention.bytes=0",
        "retention.ms=0",
        **destination,
    )
    assert results["topic"].status == "cleaned" and results["topic"].segments_after == 1
    after = partition if way == "in place" else tmp_path / "new" / partition.name
    assert listing(after) == {name: facts for name, facts in before.items() if name.startswith(f"{4:020d}")}
    assert logs.offsets(after) == [4, 5]
    if way == "out":
        assert listing(partition) == before
