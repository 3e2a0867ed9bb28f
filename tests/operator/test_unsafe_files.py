"""A log with a link, a FIFO or another user's file in the place of one of its own is refused by name.

Nothing of it is changed, and the other logs of the run are done. (9 and 2 of what an operator must be able to
trust: one bad log never stops the others, and links are not followed.)
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from siltstone.base.errors import DirectoryRefusedError, UnsafeFileError
from siltstone.commands import clean as app
from siltstone.commands import review
from siltstone.commands.directories import BrokerDirectories
from siltstone.commands.offsets import describe_log_dirs
from siltstone.compaction.report import LogResult, failures
from siltstone.log.checkpoints import read_checkpoint
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.log.segments import list_segments
from siltstone.runtime.manager import LogManager
from siltstone.tables.options import ReadOptions
from siltstone.tables.table import plan
from tests.support.operator.staged import Listing, in_process, is_root, listing, no_leftovers, stage_several

SETS = ["basic", "tombstones", "codec_zstd"]
BAD = "tombstones"
OTHER_USER = "another user's file"


def link(path: Path) -> None:
    """The file is elsewhere, with its bytes, and a link in its place."""
    target = path.parent.parent.parent / path.name
    path.rename(target)
    path.symlink_to(target)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path) -> None:
    """/dev/null where one may be made, else a socket."""
    path.unlink()
    if is_root():
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    else:
        os.mknod(path, stat.S_IFSOCK | 0o600)


def owned_by_another(path: Path) -> None:
    os.chown(path, 12345, 23456)


SPOILED: dict[str, Callable[[Path], None]] = {
    "link": link,
    "FIFO": fifo,
    "device": device,
    OTHER_USER: pytest.param(owned_by_another, marks=pytest.mark.skipif(not is_root(), reason="needs root")),
}
Several = tuple[Path, app.CleanRequest]


@pytest.fixture
def several(golden: Path, tmp_path: Path) -> Several:
    return stage_several(golden, SETS, tmp_path)


@pytest.fixture(params=SPOILED.values(), ids=SPOILED.keys())
def spoiled(several: Several, request: pytest.FixtureRequest) -> tuple[Several, Path]:
    """The logs, one of them with a closed segment that is none; that segment's log."""
    path = Path(list_segments(several[0] / f"{BAD}-0")[1].path)
    request.param(path)
    return several, path


def by_topic(request: app.CleanRequest) -> dict[str, LogResult]:
    return {result.topic: result for result in app.clean(request, engine=in_process).results}


def assert_only_the_bad_log_failed(results: dict[str, LogResult], path: Path) -> None:
    assert {topic: result.status for topic, result in results.items()} == {
        topic: "failed" if topic == BAD else "cleaned" for topic in SETS
    }
    assert failures(list(results.values())) == [results[BAD]]
    assert str(path) in results[BAD].reason


def files_of(directory: Path) -> tuple[Listing, list[tuple[str, int, int]]]:
    """Everything below a directory, links and the like by what they are."""
    names = [(str(path), path.lstat().st_mode, path.lstat().st_ino) for path in sorted(directory.rglob("*"))]
    return listing(directory), names


def test_in_place_only_the_log_of_the_unsafe_file_fails(spoiled: tuple[Several, Path]) -> None:
    (directory, request), path = spoiled
    before = files_of(directory / f"{BAD}-0")
    assert_only_the_bad_log_failed(by_topic(request), path)
    assert files_of(directory / f"{BAD}-0") == before
    no_leftovers(directory)


def test_a_dry_run_and_explain_fail_only_the_log_of_the_unsafe_file(spoiled: tuple[Several, Path]) -> None:
    (directory, request), path = spoiled
    before = files_of(directory)
    assert_only_the_bad_log_failed(by_topic(replace(request, in_place=False, dry_run=True)), path)
    explain_request = review.ExplainRequest(
        directories=[directory], config_file=request.config_file, now_ms=request.now_ms, no_spark=True
    )
    logs = {log.topic: log for log in review.explain(explain_request).logs}
    assert {log.topic: log.status for log in logs.values()} == {
        topic: "failed" if topic == BAD else "would_clean" for topic in SETS
    }
    assert str(path) in logs[BAD].reason
    assert files_of(directory) == before


@pytest.mark.parametrize("topics", [[], ["basic"]])
def test_a_copy_is_without_the_unsafe_log_and_says_so(
    spoiled: tuple[Several, Path], tmp_path: Path, topics: list[str]
) -> None:
    """Whether or not the log was meant to be cleaned: a copy with a hole must not pass for the whole."""
    (directory, request), path = spoiled
    before = files_of(directory)
    results = by_topic(replace(request, in_place=False, out=tmp_path / "new", topics=topics))
    assert results[BAD].status == "failed" and str(path) in results[BAD].reason
    assert "left out of the copy" in results[BAD].reason
    assert results["basic"].status == "cleaned"
    assert {path.name for path in (tmp_path / "new").glob("*-0")} == {"basic-0", "codec_zstd-0"}
    checkpoint = read_checkpoint(tmp_path / "new" / "cleaner-offset-checkpoint")
    assert TopicPartition("basic", 0) in checkpoint and TopicPartition(BAD, 0) not in checkpoint
    assert files_of(directory) == before


def test_other_things_that_cannot_be_copied_are_left_out_and_named(several: Several, tmp_path: Path) -> None:
    directory, request = several
    os.mkfifo(directory / "pipe")
    deleted = directory / "old-0.0123456789abcdef0123456789abcdef-delete"
    deleted.mkdir()
    (deleted / f"{0:020d}.log").symlink_to("/dev/zero")
    copy_request = replace(request, in_place=False, out=tmp_path / "new")
    outcome = app.clean(copy_request, engine=in_process)
    reasons = {
        Path(passed_over.path).name: passed_over.reason
        for passed_over in outcome.passed_over
        if "left out" in passed_over.reason
    }
    assert set(reasons) == {"pipe", deleted.name} and not failures(outcome.results)
    assert {path.name for path in (tmp_path / "new").iterdir()}.isdisjoint(reasons)


def test_in_place_a_log_that_was_not_chosen_is_not_checked(spoiled: tuple[Several, Path]) -> None:
    (_, request), _ = spoiled
    only = "basic:cleanup.policy=compact"
    assert request.config_file is not None
    lines = request.config_file.read_text().splitlines()
    request.config_file.write_text("\n".join([only, *(x for x in lines if x.startswith("basic:"))]))
    results = by_topic(request)
    assert {topic: result.status for topic, result in results.items()} == {
        "basic": "cleaned",
        BAD: "skipped",
        "codec_zstd": "skipped",
    }


def test_recover_refuses_the_log_and_recovers_the_others(spoiled: tuple[Several, Path]) -> None:
    (directory, _), path = spoiled
    before = files_of(directory / f"{BAD}-0")
    (recovery,) = app.recover([directory], check=True)
    status = {log.topic_partition.topic: log.status for log in recovery.logs}
    assert status.pop(BAD) == "refused" and set(status.values()) <= {"recovered", "nothing_to_do"}
    (reason,) = (log.reason for log in recovery.logs if log.topic_partition.topic == BAD)
    assert str(path) in reason and recovery.offline is None and recovery.needs_attention
    assert files_of(directory / f"{BAD}-0") == before
    assert not (directory / ".kafka_cleanshutdown").exists()


def test_a_start_serves_the_logs_without_an_unsafe_file(spoiled: tuple[Several, Path]) -> None:
    (directory, _), path = spoiled
    before = files_of(directory / f"{BAD}-0")
    with LogManager.open([directory]) as manager:
        assert {topic_partition.topic for topic_partition in manager} == set(SETS) - {BAD}
        (served,) = manager.directories
        assert str(path) in served.refused[TopicPartition(BAD, 0)]
    assert files_of(directory / f"{BAD}-0") == before


def test_a_reader_never_skips_a_segment(spoiled: tuple[Several, Path]) -> None:
    (directory, _), path = spoiled
    bad, fine = TopicPartition(BAD, 0), TopicPartition("basic", 0)
    with ReadOnlyLogs([directory]) as logs:
        assert logs[fine].log_end_offset
        if path.is_file() and not path.is_symlink():  # whoever only reads does not ask whose a file is
            assert len(logs[bad].view.segments) > 2
            return
        with pytest.raises(UnsafeFileError, match=path.name):
            logs[bad]
    for options in (
        {},
        {"view": "latest"},
        {"table": "batches"},
        {"table": "offsetIndex"},
        {"badBatches": "quarantine"},
    ):
        with pytest.raises(UnsafeFileError, match=path.name):
            plan(ReadOptions.of({"path": str(directory), "subscribe": BAD, **options}))
        assert plan(ReadOptions.of({"path": str(directory), "subscribe": "basic", **options}))
    place = BrokerDirectories(paths=(directory,))
    with pytest.raises(UnsafeFileError, match=path.name):
        place.snapshot().log(bad)
    assert path.name in describe_log_dirs(place)["brokers"][0]["logDirs"][0]["error"]


def test_verify_reports_an_unsafe_file_on_either_side(golden: Path, tmp_path: Path) -> None:
    directory, request = stage_several(golden, SETS, tmp_path)
    app.clean(replace(request, in_place=False, out=tmp_path / "new"), engine=in_process)
    verify_request = review.VerifyRequest(
        before=directory,
        after=tmp_path / "new",
        config_file=request.config_file,
        now_ms=request.now_ms,
        no_spark=True,
    )
    assert not any(log.problems for log in review.verify(verify_request).logs)
    for side in (directory, tmp_path / "new"):
        path = Path(list_segments(side / f"{BAD}-0")[-1].path)
        link(path)
        problems = {log.topic: dict(log.found) for log in review.verify(verify_request).logs}
        assert problems == {topic: {"unsafe_file": 1} if topic == BAD else {} for topic in SETS}
        path.unlink()
        (tmp_path / path.name).rename(path)


def test_undo_refuses_an_unsafe_file(golden: Path, tmp_path: Path) -> None:
    directory, request = stage_several(golden, [BAD], tmp_path)
    outcome = app.clean(replace(request, keep_originals=tmp_path / "keep"), engine=in_process)
    assert outcome.kept is not None and outcome.results[0].status == "cleaned"
    path = Path(list_segments(directory / f"{BAD}-0")[0].path)
    link(path)
    before = files_of(directory)
    with pytest.raises(DirectoryRefusedError, match=path.name):
        app.undo(outcome.kept)
    assert files_of(directory) == before


def test_leftovers_of_a_swap_are_checked_before_they_are_used(several: Several) -> None:
    directory, request = several
    first = Path(list_segments(directory / f"{BAD}-0")[0].path)
    for kind in ("log", "index", "timeindex"):
        (directory / "outside").mkdir(exist_ok=True)
        outside = directory / "outside" / f"{first.stem}.{kind}"
        outside.write_bytes(first.with_suffix(f".{kind}").read_bytes())
        first.with_suffix(f".{kind}.swap").symlink_to(outside)
    before = files_of(directory / f"{BAD}-0")
    assert_only_the_bad_log_failed(by_topic(request), Path(f"{first.with_suffix('')}"))
    assert files_of(directory / f"{BAD}-0") == before


@pytest.mark.parametrize("name", [".siltstone", ".compacted"])
def test_a_folder_of_siltstones_that_is_a_link_is_refused(
    several: Several, tmp_path: Path, name: str
) -> None:
    directory, request = several
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("not ours")
    (directory / f"{BAD}-0" / name).symlink_to(tmp_path / "precious")
    assert_only_the_bad_log_failed(by_topic(request), directory / f"{BAD}-0" / name)
    assert (tmp_path / "precious" / "file").read_text() == "not ours"
