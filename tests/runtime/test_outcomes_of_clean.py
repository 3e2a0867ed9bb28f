"""What `siltstone clean --in-place` records of its outcome: the list of uncleanable logs, and the history."""

from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.base.errors import EngineError
from siltstone.commands import clean as app
from siltstone.compaction.engine import Engine
from siltstone.compaction.inplace.planning import LogState
from siltstone.compaction.report import CLEANINGS_FILE, LogResult, read_cleanings
from siltstone.compaction.savings import read_savings
from siltstone.log.directory import LogDirectory
from siltstone.log.names import TopicPartition
from siltstone.log.segments import list_segments
from siltstone.runtime.served_directory import UNCLEANABLE_FILE, mark_uncleanable, read_uncleanable
from siltstone.runtime.topics import NO_TOPICS, TOPICS_FILE
from tests.support.cleaning.logs import one, write_log
from tests.support.golden_sets import write_checkpoint
from tests.support.operator.staged import in_process, listing, stage_several

NOW = 1_800_000_000_000
GOOD, BAD = "basic", "tombstones"
BAD_0 = TopicPartition(BAD, 0)


@pytest.fixture
def good_and_bad(golden: Path, tmp_path: Path) -> tuple[Path, app.CleanRequest]:
    """A directory that Siltstone has served, with one log that is sound, and one with a flipped bit."""
    directory, request = stage_several(golden, [GOOD, BAD], tmp_path)
    flip(directory)
    (directory / CLEANINGS_FILE).touch()
    return directory, request


def flip(directory: Path) -> None:
    path = Path(list_segments(directory / f"{BAD}-0")[0].path)
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)


def clean(request: app.CleanRequest, at: int = NOW, **changes: object) -> dict[str, LogResult]:
    changed_request = dataclasses.replace(request, **changes)  # type: ignore[arg-type]
    return {
        result.topic: result
        for result in app.clean(changed_request, engine=in_process, clock=ManualClock(at)).results
    }


def test_an_uncleanable_log_is_listed_with_the_reason(good_and_bad: tuple[Path, app.CleanRequest]) -> None:
    directory, request = good_and_bad
    results = clean(request)
    assert results[BAD].status == "uncleanable" and not results[BAD].notes
    (topic_partition, entry), *others = read_uncleanable(directory).items()
    assert (topic_partition, entry.reason, entry.since_ms, others) == (BAD_0, results[BAD].reason, NOW, [])


def test_a_listed_log_is_tried_again_and_its_result_says_so(
    good_and_bad: tuple[Path, app.CleanRequest],
) -> None:
    directory, request = good_and_bad
    clean(request)
    again = clean(request, NOW + 5)[BAD]
    assert again.status == "uncleanable"
    assert any("listed as uncleanable since 2027-01-15 08:00:00Z" in note for note in again.notes)
    assert read_uncleanable(directory)[BAD_0].since_ms == NOW


def test_a_log_that_was_cleaned_leaves_the_list(good_and_bad: tuple[Path, app.CleanRequest]) -> None:
    directory, request = good_and_bad
    clean(request)
    flip(directory)
    mark_uncleanable(directory, TopicPartition("other", 0), "why", NOW)
    result = clean(request)[BAD]
    assert result.status == "cleaned" and "removed from the list of uncleanable logs" in result.notes
    assert list(read_uncleanable(directory)) == [TopicPartition("other", 0)]


def test_results_are_in_the_history_as_the_embedded_cleaners_are(
    good_and_bad: tuple[Path, app.CleanRequest],
) -> None:
    directory, request = good_and_bad
    results = clean(request)
    history = {cleaning.result.topic: cleaning for cleaning in read_cleanings(directory)}
    assert {topic: (cleaning.began_ms, cleaning.result.status) for topic, cleaning in history.items()} == {
        GOOD: (NOW, "cleaned"),
        BAD: (NOW, "uncleanable"),
    }
    assert history[GOOD].result.discarded == results[GOOD].discarded
    assert history[GOOD].result.bytes_after == results[GOOD].bytes_after < results[GOOD].bytes_before
    (saving,) = read_savings(directory)
    assert (saving.topic, saving.records_removed) == (GOOD, results[GOOD].discarded.total())
    size = (directory / CLEANINGS_FILE).stat().st_size
    assert clean(request, NOW + 1)[GOOD].status == "nothing_to_do"
    assert [cleaning.result.topic for cleaning in read_cleanings(directory)[2:]] == [BAD]
    assert size < (directory / CLEANINGS_FILE).stat().st_size


@pytest.mark.parametrize("moment", [".deleted", "cleaner-offset-checkpoint"])
def test_what_an_interrupt_left_swapped_is_in_the_history_with_its_originals(
    good_and_bad: tuple[Path, app.CleanRequest], tmp_path: Path, moment: str
) -> None:
    """Ctrl-C within a swap, or while the checkpoint moves: ``erase`` must know where the originals are."""
    directory, request = good_and_bad

    def interrupt(operation: files.Operation) -> None:
        if operation[0] == "rename" and operation[2].endswith(moment):
            signal.raise_signal(signal.SIGINT)

    with files.observe(interrupt), pytest.raises(KeyboardInterrupt):
        clean(request, keep_originals=tmp_path / "keep")
    (run,) = (tmp_path / "keep").iterdir()
    history = {cleaning.result.topic: cleaning for cleaning in read_cleanings(directory)}
    assert history[GOOD].kept_originals == str(run / f"{GOOD}-0")
    assert history[GOOD].result.status == "skipped" and "interrupted" in history[GOOD].result.reason
    assert history[GOOD].result.bytes_after < history[GOOD].result.bytes_before


@pytest.mark.parametrize("error", [EngineError("Java is missing"), RuntimeError("a bug")])
def test_what_was_done_before_a_run_ended_with_an_error_is_recorded(
    good_and_bad: tuple[Path, app.CleanRequest], tmp_path: Path, error: Exception
) -> None:
    """Retention is applied to a log that needs no cleaning before an engine is asked for."""
    directory, request = good_and_bad
    segments = {at: [one(at, "a")] for at in range(3)}
    written = write_log(tmp_path / "other", segments, modified_ms=dict.fromkeys(segments, 1000))
    written.rename(directory / "topic-0")
    write_checkpoint(directory / "cleaner-offset-checkpoint", {("topic", 0): 2})
    assert request.config_file is not None
    with request.config_file.open("a") as file:
        file.write("\ntopic:cleanup.policy=compact,delete\ntopic:retention.ms=1\n")
    changed_request = dataclasses.replace(
        request, high_watermark="end", keep_originals=tmp_path / "keep", report=tmp_path / "report.json"
    )

    def failing(*_: object) -> Engine:
        raise error

    with pytest.raises(type(error)):
        app.clean(changed_request, engine=failing, clock=ManualClock(NOW))
    history = {cleaning.result.topic: cleaning for cleaning in read_cleanings(directory)}
    assert history["topic"].result.discarded.expired == 2
    assert history["topic"].kept_originals is not None
    report = json.loads(changed_request.report.read_text()) if changed_request.report else {}
    assert report["error"] == str(error)
    assert [(log["topic"], log["status"]) for log in report["logs"]] == [("topic", "cleaned")]


def test_a_run_that_kept_originals_is_in_the_history_even_if_it_removed_nothing(
    good_and_bad: tuple[Path, app.CleanRequest], tmp_path: Path
) -> None:
    directory, request = good_and_bad
    originals = tmp_path / "keep" / "run" / f"{GOOD}-0"
    originals.mkdir(parents=True)
    changed_request = dataclasses.replace(request, keep_originals=tmp_path / "keep")
    with LogDirectory.open(directory, lock=False) as opened:
        state = LogState(
            topic_partition=TopicPartition(GOOD, 0),
            path=directory / f"{GOOD}-0",
            directory=opened,
            config=None,
        )
        result = LogResult(topic=GOOD, partition=0, directory=str(state.path), status="skipped")
        app.record_outcome(changed_request, [state], [result], NOW, "run")
    assert [cleaning.kept_originals for cleaning in read_cleanings(directory)] == [str(originals)]


@pytest.mark.parametrize("changed", ["dry_run", "out"])
def test_a_dry_run_and_a_copy_read_the_list_and_change_nothing(
    good_and_bad: tuple[Path, app.CleanRequest], tmp_path: Path, changed: str
) -> None:
    directory, request = good_and_bad
    mark_uncleanable(directory, BAD_0, "why", NOW)
    before = listing(directory)
    changes = {"dry_run": True} if changed == "dry_run" else {"in_place": False, "out": tmp_path / "copy"}
    result = clean(request, **changes)[BAD]
    assert any("listed as uncleanable" in note and "why" in note for note in result.notes)
    assert listing(directory) == before


def test_a_brokers_directory_gets_no_files_of_siltstone(good_and_bad: tuple[Path, app.CleanRequest]) -> None:
    directory, request = good_and_bad
    (directory / CLEANINGS_FILE).unlink()
    assert clean(request)[BAD].status == "uncleanable"
    assert [path.name for path in directory.iterdir() if path.name.startswith("siltstone")] == []


@pytest.mark.parametrize("name", [TOPICS_FILE, UNCLEANABLE_FILE])
def test_any_file_of_siltstones_tells_that_it_serves_the_directory(
    good_and_bad: tuple[Path, app.CleanRequest], name: str
) -> None:
    directory, request = good_and_bad
    (directory / CLEANINGS_FILE).unlink()
    (directory / name).write_bytes(NO_TOPICS.encode() if name == TOPICS_FILE else b"{}")
    clean(request)
    assert list(read_uncleanable(directory)) == [BAD_0]
    assert len(read_cleanings(directory)) == 2


def test_a_full_disk_loses_the_list_and_the_history_but_no_cleaning(
    good_and_bad: tuple[Path, app.CleanRequest], caplog: pytest.LogCaptureFixture
) -> None:
    directory, request = good_and_bad

    def refuse(operation: files.Operation) -> None:
        if any(name in operation[1] for name in (UNCLEANABLE_FILE, CLEANINGS_FILE)):
            raise OSError(28, "No space left on device", operation[1])

    with files.observe(refuse):
        results = clean(request)
    assert (results[GOOD].status, results[BAD].status) == ("cleaned", "uncleanable")
    assert "list of uncleanable logs cannot be written" in caplog.text
    assert "the history of cleanings could not be written" in caplog.text
    assert not (directory / UNCLEANABLE_FILE).exists()


def test_a_damaged_list_does_not_stop_a_cleaning(
    good_and_bad: tuple[Path, app.CleanRequest], caplog: pytest.LogCaptureFixture
) -> None:
    directory, request = good_and_bad
    (directory / UNCLEANABLE_FILE).write_text("{")
    assert clean(request)[GOOD].status == "cleaned"
    assert "cannot be read" in caplog.text
    assert list(read_uncleanable(directory)) == [BAD_0]


@pytest.mark.parametrize(
    "since", [str((1 << 63) - 1), "-" + "9" * 30, "1e400", "NaN", "0"], ids=lambda text: text[:5]
)
def test_a_list_with_impossible_times_does_not_cost_a_run_its_results(
    good_and_bad: tuple[Path, app.CleanRequest], since: str
) -> None:
    directory, request = good_and_bad
    row = f'{{"topic": "{GOOD}", "partition": 0, "since_ms": {since}, "reason": "a forged one"}}'
    (directory / UNCLEANABLE_FILE).write_text(f'{{"version": 1, "partitions": [{row}]}}')
    line = f'{{"topic": "{GOOD}", "partition": 0, "removed": {{}}, "began_ms": {since}}}\n'
    (directory / CLEANINGS_FILE).write_text(line)
    assert clean(request)[GOOD].status == "cleaned"
    assert read_cleanings(directory)[-1].result.status == "uncleanable"
