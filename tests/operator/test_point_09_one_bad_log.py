"""9. One bad log never stops the others."""

import errno
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.commands import clean as app
from siltstone.compaction import staging
from siltstone.compaction.report import LogResult, failures
from siltstone.log.segments import list_segments
from tests.support.operator.staged import in_process, listing, no_leftovers, stage_several

SETS = ["basic", "tombstones", "codec_zstd", "jcodec_none"]
BAD = "tombstones"


@pytest.fixture
def several(golden: Path, tmp_path: Path) -> tuple[Path, app.CleanRequest]:
    return stage_several(golden, SETS, tmp_path)


def by_topic(request: app.CleanRequest) -> dict[str, LogResult]:
    return {result.topic: result for result in app.clean(request, engine=in_process).results}


def the_only_failure(results: dict[str, LogResult], status: str) -> LogResult:
    """The others are cleaned; the bad one's result."""
    assert {topic: result.status for topic, result in results.items()} == {
        topic: status if topic == BAD else "cleaned" for topic in SETS
    }
    assert failures(list(results.values())) == [results[BAD]]
    return results[BAD]


@pytest.mark.parametrize("segment", [0, 1, 2])
def test_a_flipped_bit_makes_only_its_log_uncleanable(
    several: tuple[Path, app.CleanRequest], segment: int
) -> None:
    directory, request = several
    path = Path(list_segments(directory / f"{BAD}-0")[segment].path)
    data = bytearray(path.read_bytes())
    first = 12 + int.from_bytes(data[8:12], "big")
    data[first + 70] ^= 0x01
    path.write_bytes(data)
    before = listing(directory / f"{BAD}-0")
    result = the_only_failure(by_topic(request), "uncleanable")
    assert str(path) in result.reason
    assert f"byte {first}:" in result.reason and "checksum" in result.reason
    assert listing(directory / f"{BAD}-0") == before
    no_leftovers(directory)


@pytest.mark.parametrize("damage", ["cut", "zeroed", "noise"])
def test_a_torn_closed_segment_makes_only_its_log_uncleanable(
    several: tuple[Path, app.CleanRequest], damage: str
) -> None:
    directory, request = several
    path = Path(list_segments(directory / f"{BAD}-0")[1].path)
    data = path.read_bytes()
    tail = {"cut": b"", "zeroed": bytes(200), "noise": bytes(range(256))[56:]}[damage]
    path.write_bytes(data[:-200] + tail)
    before = listing(directory / f"{BAD}-0")
    result = the_only_failure(by_topic(request), "uncleanable")
    assert str(path) in result.reason and "byte " in result.reason
    assert listing(directory / f"{BAD}-0") == before


def test_a_corrupt_file_stops_only_its_log(several: tuple[Path, app.CleanRequest]) -> None:
    directory, request = several
    (directory / f"{BAD}-0" / "partition.metadata").write_text("version: 9\n")
    assert "partition.metadata" in the_only_failure(by_topic(request), "uncleanable").reason


@pytest.mark.parametrize(
    ("verb", "suffix"), [("create", ".log"), ("write", ".index"), ("rename", ".cleaned"), ("fsync", ".log")]
)
def test_a_disk_error_fails_only_its_log(
    several: tuple[Path, app.CleanRequest], verb: str, suffix: str
) -> None:
    _, request = several

    def watch(operation: files.Operation) -> None:
        if operation[0] == verb and f"{BAD}-0" in operation[1] and operation[1].endswith(suffix):
            raise OSError(errno.EIO, "Input/output error", operation[1])

    with files.observe(watch):
        result = the_only_failure(by_topic(request), "failed")
    assert "Input/output error" in result.reason


def test_an_unreadable_log_does_not_stop_the_others(
    several: tuple[Path, app.CleanRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is for a user who is not root: opening one file is not permitted."""
    directory, request = several
    unreadable = list_segments(directory / f"{BAD}-0")[1].path
    opened = files.Reader.__init__

    def refusing(self: files.Reader, path: str) -> None:
        if str(path) == unreadable:
            raise PermissionError(errno.EACCES, "Permission denied", unreadable)
        opened(self, path)

    monkeypatch.setattr(files.Reader, "__init__", refusing)
    before = listing(directory / f"{BAD}-0")
    result = the_only_failure(by_topic(request), "failed")
    assert result.reason == f"{unreadable}: Permission denied"
    assert listing(directory / f"{BAD}-0") == before


def test_a_bug_in_a_task_fails_only_its_log(
    several: tuple[Path, app.CleanRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrite_batches = staging._RangeRewrite.rewrite_batches

    def failing(self: staging._RangeRewrite, sink: staging._SegmentWriter) -> bytes:
        if self._work.name == f"{BAD}-0":
            raise ZeroDivisionError("a bug")
        return rewrite_batches(self, sink)

    monkeypatch.setattr(staging._RangeRewrite, "rewrite_batches", failing)
    assert "ZeroDivisionError" in the_only_failure(by_topic(request=several[1]), "failed").reason


def test_a_staging_folder_that_cannot_be_created_fails_only_its_log(
    several: tuple[Path, app.CleanRequest],
) -> None:
    _, request = several

    def watch(operation: files.Operation) -> None:
        if operation[0] == "mkdir" and f"{BAD}-0" in operation[1]:
            raise PermissionError(errno.EACCES, "Permission denied", operation[1])

    with files.observe(watch):
        result = the_only_failure(by_topic(request), "failed")
    assert "Permission denied" in result.reason
