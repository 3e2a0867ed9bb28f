"""6. Disk space is checked first and bounded, and a full disk leaves every log whole."""

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.errors import DirectoryRefusedError
from siltstone.commands import clean as app
from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.staging import GroupReport, RetainedFile
from siltstone.compaction.work import LogWork
from tests.support.operator.staged import (
    Staged,
    in_process,
    last_values,
    listing,
    log_bytes,
    no_engine,
    no_leftovers,
    room_in_waves,
    stage,
    stage_several,
)
from tests.support.thoroughness import few, share

NEEDS_SPACE = ("create", "write", "mkdir", "link")
CHECKPOINT_TMP = "cleaner-offset-checkpoint.tmp"
"""What an interrupted replacement of the checkpoint leaves, as Kafka's own does; the next one clears it."""


def operations(do: Callable[[], object]) -> list[files.Operation]:
    recorded: list[files.Operation] = []
    with files.observe(recorded.append):
        do()
    return recorded


class FullDisk:
    """From the given operation on, nothing that needs space works any more."""

    def __init__(self, after: int) -> None:
        self.remaining = after
        self.hit = ""

    def __call__(self, operation: files.Operation) -> None:
        if operation[0] in NEEDS_SPACE:
            self.remaining -= 1
            if self.remaining < 0:
                self.hit = self.hit or operation[1]
                raise OSError(errno.ENOSPC, "No space left on device", operation[1])


def count_of_space(golden: Path, folder: Path, **changes: object) -> tuple[int, bytes]:
    """How many operations of a whole run need space; the log's bytes after it."""
    uninterrupted = stage(golden, "basic", folder)
    recorded = operations(lambda: uninterrupted.clean_one(**changes))
    return sum(verb in NEEDS_SPACE for verb, _, _ in recorded), log_bytes(uninterrupted.partition)


@pytest.mark.random
@pytest.mark.parametrize("max_extra_bytes", [None, room_in_waves(25_000, offsets=445)])
def test_a_full_disk_at_any_moment_leaves_the_log_whole(
    golden: Path, tmp_path: Path, max_extra_bytes: int | None
) -> None:
    count, cleaned = count_of_space(golden, tmp_path / "whole", max_extra_bytes=max_extra_bytes)
    assert count > 20
    for at in share(range(0, count, 1 if max_extra_bytes is None else 3), 3):
        staged = stage(golden, "basic", tmp_path / f"full-{at}")
        values = last_values(staged.partition)
        disk = FullDisk(at)
        with files.observe(disk):
            result = staged.clean_one(max_extra_bytes=max_extra_bytes)
        assert disk.hit
        assert result.status == "failed", (at, result.status)
        assert "No space left" in result.reason and "\n" not in result.reason
        assert staged.checkpoint() is None
        assert last_values(staged.partition) == values
        no_leftovers(staged.directory, CHECKPOINT_TMP)
        assert staged.clean_one().status == "cleaned"
        assert log_bytes(staged.partition) == cleaned


@pytest.mark.random
def test_a_full_disk_while_copying_leaves_no_copy(golden: Path, tmp_path: Path) -> None:
    whole = stage(golden, "basic", tmp_path / "whole")
    recorded = operations(lambda: whole.clean_one(in_place=False, out=tmp_path / "copy"))
    count = sum(verb in NEEDS_SPACE for verb, _, _ in recorded)
    staged = stage(golden, "basic", tmp_path / "data")
    before = listing(staged.directory)
    beside = {path.name for path in tmp_path.iterdir()}
    for at in share(range(0, count, 3), 3):
        with files.observe(FullDisk(at)), pytest.raises(OSError, match="No space left"):
            staged.clean(in_place=False, out=tmp_path / "new")
        assert {path.name for path in tmp_path.iterdir()} == beside
    assert listing(staged.directory) == before


@pytest.mark.random
def test_a_full_disk_while_originals_are_kept_leaves_the_log_whole(golden: Path, tmp_path: Path) -> None:
    (tmp_path / "keep-whole").mkdir()
    count, cleaned = count_of_space(golden, tmp_path / "whole", keep_originals=tmp_path / "keep-whole")
    for at in share(range(1, count, 5), 3):
        staged = stage(golden, "basic", tmp_path / f"full-{at}")
        values = last_values(staged.partition)
        keep = tmp_path / f"keep-{at}"
        keep.mkdir()
        with files.observe(FullDisk(at)):
            assert staged.clean_one(keep_originals=keep).status == "failed"
        assert last_values(staged.partition) == values
        no_leftovers(staged.directory, CHECKPOINT_TMP)
        assert staged.clean_one().status == "cleaned"
        no_leftovers(staged.directory)
        assert log_bytes(staged.partition) == cleaned


class CountingWaves(InProcessEngine):
    def __init__(self) -> None:
        super().__init__()
        self.waves = 0

    def rewrite(self, work: LogWork, retained: Sequence[RetainedFile]) -> list[GroupReport]:
        self.waves += 1
        return super().rewrite(work, retained)


def bytes_on_disk(directory: Path) -> int:
    """Bytes of all files below a directory, each file once however many names it has."""
    sizes = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                facts = os.stat(f"{folder}/{name}")
                sizes[facts.st_ino] = facts.st_size
    return sum(sizes.values())


@pytest.mark.parametrize("new_files", few([(14_000,), (20_000,), (29_000,), (48_000,)], 0, 3))
def test_the_extra_bytes_stay_below_what_is_allowed(golden: Path, tmp_path: Path, new_files: int) -> None:
    allowed = room_in_waves(new_files, offsets=724)
    staged = stage(golden, "compact_then_delete_ms2", tmp_path / "data")
    engine, start, peak = CountingWaves(), bytes_on_disk(staged.directory), 0

    def watch(operation: files.Operation) -> None:
        nonlocal peak
        peak = max(peak, bytes_on_disk(staged.directory) - start)

    with files.observe(watch):
        (result,) = app.clean(
            staged.asking(max_extra_bytes=allowed, force=True), engine=lambda request, progress: engine
        ).results
    assert result.status == "cleaned"
    assert engine.waves > 1
    assert 0 < peak <= allowed
    whole = stage(golden, "compact_then_delete_ms2", tmp_path / "whole")
    whole.clean_one(force=True)
    assert log_bytes(staged.partition) == log_bytes(whole.partition)


def test_several_small_logs_together_stay_below_what_is_allowed(golden: Path, tmp_path: Path) -> None:
    """Logs that would fit one by one, but not all in one job."""
    directory, request = stage_several(golden, ["basic", "tombstones", "codec_lz4", "jcodec_none"], tmp_path)
    start, peak = bytes_on_disk(directory), 0

    def watch(operation: files.Operation) -> None:
        nonlocal peak
        peak = max(peak, bytes_on_disk(directory) - start)

    with files.observe(watch):
        results = app.clean(replace(request, max_extra_bytes=75_000), engine=in_process).results
    assert {result.status for result in results} == {"cleaned"}
    assert 0 < peak <= 75_000


def test_too_little_space_is_refused_before_anything_is_written(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "grouping", tmp_path / "data")
    before = listing(staged.directory)
    recorded: list[files.Operation] = []
    with files.observe(recorded.append):
        (result,) = app.clean(staged.asking(max_extra_bytes=5_000), engine=no_engine).results
    assert result.status == "failed"
    assert "--max-extra-bytes" in result.reason and "5000" in result.reason
    assert recorded == []
    assert listing(staged.directory) == before


@pytest.mark.parametrize(
    ("space", "word"),
    [
        (files.FreeSpace(free_bytes=8_000, free_inodes=None), "bytes"),
        (files.FreeSpace(free_bytes=1 << 40, free_inodes=3), "inodes"),
    ],
)
def test_free_space_and_inodes_are_checked_first(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, space: files.FreeSpace, word: str
) -> None:
    staged = stage(golden, "grouping", tmp_path / "data")
    before = listing(staged.directory)
    monkeypatch.setattr(files, "free_space", lambda path: space)
    (result,) = app.clean(staged.request, engine=no_engine).results
    assert result.status == "failed" and word in result.reason
    failure, partition = result.to_json()["failure"], result.directory
    assert isinstance(failure, dict)
    assert (failure["code"], failure["path"], failure["position"]) == ("DIRECTORY_REFUSED", partition, None)
    assert result.reason.startswith(f"{partition}: needs up to")
    assert failure["advice"].startswith("free some") and result.reason.endswith(failure["advice"])
    assert listing(staged.directory) == before


def test_a_copy_that_would_not_fit_is_refused(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged: Staged = stage(golden, "grouping", tmp_path / "data")
    monkeypatch.setattr(files, "free_space", lambda path: files.FreeSpace(free_bytes=8_000, free_inodes=None))
    with pytest.raises(DirectoryRefusedError, match="8000 are free"):
        app.clean(staged.asking(in_place=False, out=tmp_path / "new"), engine=no_engine)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("changes", [{}, {"in_place": False}, {"keep_originals": Path("keep")}])
def test_a_dry_run_says_that_the_run_would_be_refused(
    golden: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    """``--dry-run --max-extra-bytes`` means a run in place, whether that is said or not."""
    changes = {**changes, **({"keep_originals": tmp_path / "keep"} if "keep_originals" in changes else {})}
    staged = stage(golden, "grouping", tmp_path / "data")
    before = listing(staged.directory)
    request = staged.asking(max_extra_bytes=5_000, dry_run=True, **changes)
    (planned,) = app.clean(request, engine=no_engine).results
    assert listing(staged.directory) == before and not (tmp_path / "keep").exists()
    (refused,) = app.clean(replace(request, in_place=True, dry_run=False), engine=no_engine).results
    assert planned.reason.replace("the run would be refused: ", "") == refused.reason != planned.reason
    assert planned.status == refused.status == "failed" and "5000 are allowed" in planned.reason


def test_a_dry_run_of_a_log_that_would_go_in_waves_counts_the_same(golden: Path, tmp_path: Path) -> None:
    allowed = room_in_waves(14_000, offsets=724)
    staged = stage(golden, "compact_then_delete_ms2", tmp_path / "data")
    planned = staged.clean_one(max_extra_bytes=allowed, force=True, dry_run=True)
    cleaned = staged.clean_one(max_extra_bytes=allowed, force=True)
    assert (planned.status, planned.counts, planned.bytes_after) == (
        "cleaned",
        cleaned.counts,
        cleaned.bytes_after,
    )


def test_a_dry_run_counts_the_space_of_kept_originals(golden: Path, tmp_path: Path) -> None:
    names = ["basic", "tombstones", "codec_lz4", "jcodec_none"]
    _, request = stage_several(golden, names, tmp_path)
    request = replace(request, keep_originals=tmp_path / "keep", max_extra_bytes=60_000)
    statuses = [
        {
            str(result.topic_partition): result.status
            for result in app.clean(variant, engine=in_process).results
        }
        for variant in (replace(request, dry_run=True), request)
    ]
    assert statuses[0] == statuses[1] and set(statuses[0].values()) == {"cleaned", "failed"}


def test_a_dry_run_of_a_copy_checks_its_space(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = stage(golden, "grouping", tmp_path / "data")
    monkeypatch.setattr(files, "free_space", lambda path: files.FreeSpace(free_bytes=8_000, free_inodes=None))
    with pytest.raises(DirectoryRefusedError, match="8000 are free"):
        app.clean(staged.asking(in_place=False, out=tmp_path / "new", dry_run=True), engine=no_engine)
    # Without a destination there is no space to compare with.
    assert staged.clean_one(in_place=False, dry_run=True).status == "cleaned"
