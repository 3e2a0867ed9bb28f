"""What the files of a partition directory have to be; whoever relies on them refuses anything else."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.errors import CorruptFileError, NotALogDirectoryError, UnsafeFileError
from siltstone.log.checkpoints import read_topic_id
from siltstone.log.directory import LogDirectory, partition_files, refuse_unsafe_files
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.log.replacement import finish_replacement
from siltstone.log.segments import find_segment, list_segments
from tests.support.cleaning import logs
from tests.support.cleaning.logs import one
from tests.support.errors import raises_error
from tests.support.operator.staged import is_root

LOG = f"{4:020d}.log"
NAMES = [
    LOG,
    f"{4:020d}.index",
    f"{4:020d}.timeindex",
    f"{4:020d}.txnindex",
    f"{4:020d}.snapshot",
    f"{4:020d}.log.cleaned",
    f"{4:020d}.log.swap",
    f"{4:020d}.log.deleted",
    f"{4:020d}.snapshot.deleted",
    "leader-epoch-checkpoint",
    "leader-epoch-checkpoint.tmp",
    "partition.metadata",
    "quorum-state",
    "quorum-state.tmp",
    f"{4:020d}-{1:010d}.checkpoint",
    f"{4:020d}-{1:010d}.checkpoint.deleted",
    f"{4:020d}-{1:010d}-5577006791947779410.checkpoint.part",
]
FOLDERS = [".siltstone", ".compacted", ".siltstone-writes"]


def _link(path: Path) -> None:
    target = path.parent.parent / "target"
    target.write_bytes(path.read_bytes() if path.is_file() else b"")
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _broken_link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("nowhere")


def _of_kind(kind: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.unlink(missing_ok=True)
        os.mknod(path, kind | 0o600)

    return make


def _directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


KINDS: dict[str, Callable[[Path], None]] = {
    "symbolic link": _link,
    "a symbolic link": _broken_link,
    "FIFO": _of_kind(stat.S_IFIFO),
    "socket": _of_kind(stat.S_IFSOCK),
    "directory": _directory,
}


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    segments = {0: [one(0, "a")], 4: [one(4, "b")], 8: [one(8, "c")]}
    return logs.write_log(tmp_path / "data", segments)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_an_entry_with_a_name_of_kafkas_must_be_a_regular_file(partition: Path, name: str, kind: str) -> None:
    KINDS[kind](partition / name)
    for refused in (
        lambda: list_segments(partition),
        lambda: partition_files(partition),
        lambda: refuse_unsafe_files(partition),
        lambda: finish_replacement(partition),
    ):
        with pytest.raises(UnsafeFileError) as caught:
            refused()
        assert str(partition / name) in str(caught.value) and kind in str(caught.value)


@pytest.mark.parametrize("kind", ["symbolic link", "FIFO", "regular file"])
@pytest.mark.parametrize("name", FOLDERS)
def test_an_entry_with_a_name_of_siltstones_must_be_a_directory(
    partition: Path, name: str, kind: str
) -> None:
    (KINDS | {"regular file": Path.touch})[kind](partition / name)
    with raises_error(UnsafeFileError, path=partition / name, about=f"a {kind}, but must be a directory"):
        list_segments(partition)


def test_other_names_and_hard_links_are_allowed(partition: Path, tmp_path: Path) -> None:
    before = list_segments(partition, require_owner=True)
    os.link(partition / LOG, tmp_path / "second name")
    for number, make in enumerate(KINDS.values()):
        make(partition / f"note-{number}")
    for name in FOLDERS:
        (partition / name).mkdir()
    assert list_segments(partition, require_owner=True) == before
    assert "note-0" not in partition_files(partition)


@pytest.mark.skipif(not is_root(), reason="needs root")
@pytest.mark.parametrize("name", [LOG, "partition.metadata", ".siltstone"])
def test_a_change_of_a_log_requires_that_its_files_belong_to_the_directorys_owner(
    partition: Path, name: str
) -> None:
    (partition / name).mkdir() if name in FOLDERS else (partition / name).touch()
    os.chown(partition / name, 12345, -1)
    assert len(list_segments(partition)) == 3
    with raises_error(UnsafeFileError, path=partition / name, about="user 12345", advice="chown 0"):
        list_segments(partition, require_owner=True)
    (partition / "strange").touch()
    for path in (partition, *partition.iterdir()):
        if path.name != "strange":
            os.chown(path, 12345, -1)
    assert len(list_segments(partition, require_owner=True)) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_one_segment_is_found_without_listing_the_directory(partition: Path, kind: str) -> None:
    KINDS[kind](partition / f"{4:020d}.index")
    with pytest.raises(UnsafeFileError):
        find_segment(partition, 4)
    assert find_segment(partition, 0).size
    with pytest.raises(FileNotFoundError):
        find_segment(partition, 5)


def test_a_directory_whose_segments_are_all_links_is_still_a_partition(tmp_path: Path) -> None:
    """Were the directory skipped, a log would be missing from the list without an error."""
    partition = logs.write_log(tmp_path / "data", {0: [one(0, "a")]})
    for mark in (tmp_path / "data").glob("*[!0]"):
        mark.unlink()
    _link(partition / f"{0:020d}.log")
    with LogDirectory.open(partition, lock=False) as directory:
        assert list(directory.partitions.values()) == [partition]
    with LogDirectory.open(tmp_path / "data", lock=False) as directory:
        assert list(directory.partitions.values()) == [partition]
    (partition / f"{0:020d}.log").unlink()
    with pytest.raises(NotALogDirectoryError):
        LogDirectory.open(tmp_path / "data", lock=False)


@pytest.mark.parametrize("kind", ["FIFO", "socket", "directory"])
def test_a_topic_id_that_is_no_regular_file_is_refused(partition: Path, kind: str) -> None:
    KINDS[kind](partition / "partition.metadata")
    with raises_error(CorruptFileError, path=partition / "partition.metadata", about="regular file"):
        read_topic_id(partition)


def test_only_deleted_files_may_vanish_during_a_listing(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker unlinks what it renamed to .deleted at any time; any other name that goes is a change."""
    going = partition / f"{0:020d}.log.deleted"
    real = os.scandir

    class Scan:
        def __init__(self, path: Path) -> None:
            self.entries = list(real(path))

        def __enter__(self) -> list[os.DirEntry[str]]:
            going.unlink()
            return self.entries

        def __exit__(self, *error: object) -> None:
            pass

    going.touch()
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", Scan)
        assert len(list_segments(partition)) == 3
    going = partition / LOG
    monkeypatch.setattr(os, "scandir", Scan)
    with pytest.raises(FileNotFoundError):
        list_segments(partition)


def test_every_file_has_its_kind(tmp_path: Path) -> None:
    for number, make in enumerate(KINDS.values()):
        make(tmp_path / str(number))
    entries = files.list_all(tmp_path)
    kinds = [entries[str(number)].kind for number in range(len(KINDS))]
    assert kinds == ["symbolic link", "symbolic link", "FIFO", "socket", "directory"]


@pytest.mark.skipif(not is_root(), reason="needs root")
def test_reading_does_not_require_that_files_belong_to_the_directorys_owner(
    partition: Path, tmp_path: Path
) -> None:
    os.chown(partition / LOG, 12345, -1)
    assert len(ReadOnlyLogs([partition]).get(TopicPartition("topic", 0)).view.segments) == 3
