"""1. Nothing beyond the high watermark."""

from pathlib import Path

import pytest

from siltstone import app
from siltstone.log.segments import list_segments
from tests.golden_sets import read_checkpoint, write_checkpoint
from tests.operator.staged import Staged, last_values, listing, log_bytes, no_engine, records, stage

REPLICATION = "replication-offset-checkpoint"


@pytest.fixture
def staged(golden: Path, tmp_path: Path) -> Staged:
    return stage(golden, "basic_zipf_ts", tmp_path / "data")


def set_high_watermark(staged: Staged, offset: int) -> None:
    write_checkpoint(staged.directory / REPLICATION, {(staged.where.topic, staged.where.partition): offset})


def test_a_log_without_an_entry_is_skipped_with_the_reason(staged: Staged) -> None:
    (staged.directory / REPLICATION).unlink()
    before = listing(staged.directory)
    result = staged.clean_one()
    assert result.status == "skipped"
    assert "replication-offset-checkpoint" in result.reason and "--high-watermark end" in result.reason
    assert listing(staged.directory) == before


def test_another_logs_entry_does_not_help(staged: Staged) -> None:
    write_checkpoint(staged.directory / REPLICATION, {("another", 0): 1000})
    assert staged.clean_one().status == "skipped"


def test_high_watermark_end_takes_the_logs_end(staged: Staged) -> None:
    (staged.directory / REPLICATION).unlink()
    result = staged.clean_one(high_watermark="end")
    assert result.status == "cleaned"
    assert result.cleaned_end_offset == list_segments(staged.partition)[-1].base_offset


@pytest.mark.parametrize("segment", [1, 3, 5])
@pytest.mark.parametrize("beyond", [0, 1, 7])
def test_truncated_to_the_high_watermark_no_committed_value_is_missing(
    staged: Staged, segment: int, beyond: int
) -> None:
    high_watermark = list_segments(staged.partition)[segment].base_offset + beyond
    set_high_watermark(staged, high_watermark)
    committed = last_values(staged.partition, below=high_watermark)
    tail = list(records(staged.partition))
    result = staged.clean_one()
    assert result.status == "cleaned"
    assert result.cleaned_end_offset is not None and result.cleaned_end_offset <= high_watermark
    assert last_values(staged.partition, below=high_watermark) == committed
    end = result.cleaned_end_offset
    assert [each for each in records(staged.partition) if each[0] >= end] == [
        each for each in tail if each[0] >= end
    ]
    for kept in list_segments(staged.partition):
        if kept.base_offset >= high_watermark:
            Path(kept.path).unlink()
    assert last_values(staged.partition, below=high_watermark) == committed


def test_nothing_is_cleaned_where_nothing_is_committed(staged: Staged) -> None:
    set_high_watermark(staged, 0)
    before = log_bytes(staged.partition)
    result = staged.clean_one(force=True)
    assert result.status == "nothing_to_do"
    assert log_bytes(staged.partition) == before


def test_the_engine_is_not_started_for_nothing(staged: Staged) -> None:
    (staged.directory / REPLICATION).unlink()
    assert app.clean(staged.request, engine=no_engine).results[0].status == "skipped"


def test_the_checkpoint_of_the_cleaner_stays_below_the_high_watermark(staged: Staged) -> None:
    set_high_watermark(staged, list_segments(staged.partition)[2].base_offset + 1)
    staged.clean_one()
    high_watermark = read_checkpoint(staged.directory / REPLICATION)[staged.case.topic, 0]
    assert (staged.checkpoint() or 0) <= high_watermark
