"""Opening a log directory: the lock, what is passed over, one broker's directories."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.errors import (
    CorruptFileError,
    DirectoryLockedError,
    DirectoryRefusedError,
    NotALogDirectoryError,
)
from siltstone.log import directory as log_directory
from siltstone.log.checkpoints import write_checkpoint
from siltstone.log.directory import LogDirectory, open_directories, require_one_broker
from siltstone.log.names import TopicPartition
from tests.support.cleaning import logs
from tests.support.cleaning.logs import one
from tests.support.errors import raises_error

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""
TRY = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(3)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    logs.write_log(tmp_path / "data", {0: [one(0, "a")]}, checkpoint=0)
    return tmp_path / "data"


@contextmanager
def held_by_another_process(lock: Path) -> Iterator[None]:
    lock.touch()
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        yield
        process.communicate()


def can_lock(lock: Path) -> bool:
    return subprocess.run([sys.executable, "-c", TRY, str(lock)], check=False).returncode == 0


def test_a_directory_that_another_process_has_locked_is_refused(root: Path) -> None:
    with held_by_another_process(root / ".lock"):
        with raises_error(
            DirectoryLockedError, path=root, about="process", advice="stop the broker"
        ) as raised:
            LogDirectory.open(root)
        holder = files.lock_holder(root / ".lock")
        assert holder not in (None, os.getpid()) and f"process {holder} holds" in raised.value.reason
        with raises_error(DirectoryLockedError, path=root):
            LogDirectory.open(root / "topic-0")
        LogDirectory.open(root, lock=False).close()
    LogDirectory.open(root).close()
    assert (root / ".lock").exists()


def test_the_lock_is_held_until_the_directory_is_closed(root: Path) -> None:
    (root / ".lock").touch()
    with LogDirectory.open(root) as directory:
        directory.checkpoints()
        directory.properties()
        directory.write_cleaner_checkpoint(TopicPartition("topic", 0), 5)
        assert not can_lock(root / ".lock")
    assert can_lock(root / ".lock")


@pytest.mark.skipif(sys.platform != "linux", reason="locks of an open file, with Linux's struct flock")
def test_a_holder_that_the_system_does_not_name_is_another_process(root: Path) -> None:
    """As from another container: ``F_GETLK`` has no process id for it, nor for a lock of an open file."""
    (root / ".lock").touch()
    with (root / ".lock").open("r+b") as file:
        whole_file = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, whole_file)
        with raises_error(DirectoryLockedError, path=root, about="another process holds .lock"):
            LogDirectory.open(root)


def test_partitions_are_listed_under_the_lock(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may create one between the first listing and the lock."""
    take_lock = LogDirectory._take_lock

    def lock_late(directory: LogDirectory) -> None:
        (root / "topic-1").mkdir()
        take_lock(directory)

    monkeypatch.setattr(LogDirectory, "_take_lock", lock_late)
    (root / "meta.properties").touch()
    with LogDirectory.open(root) as directory:
        assert sorted(directory.partitions) == [TopicPartition("topic", 0), TopicPartition("topic", 1)]


def test_a_directory_that_cannot_be_listed_under_its_lock_is_not_locked(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / ".lock").touch()
    find_partitions, failed = log_directory._find_partitions, list[Path]()

    def find_while_unlocked(path: Path, *known: object) -> object:
        if can_lock(root / ".lock"):
            return find_partitions(path)
        raise OSError(errno.EIO, "disk error", path)

    monkeypatch.setattr(log_directory, "_find_partitions", find_while_unlocked)
    assert open_directories([root], on_error=lambda path, _: failed.append(path)) == []
    assert failed == [root] and can_lock(root / ".lock")
    with pytest.raises(OSError, match="disk error"):
        LogDirectory.open(root)
    assert can_lock(root / ".lock")


def test_a_lock_file_that_was_made_is_removed_again(root: Path) -> None:
    with LogDirectory.open(root):
        assert (root / ".lock").exists()
    assert not (root / ".lock").exists()


def test_a_dry_run_makes_no_lock_file_and_takes_one_that_is_there(root: Path) -> None:
    (directory,) = open_directories([root], dry_run=True)
    with directory:
        assert not (root / ".lock").exists()
    (root / ".lock").touch()
    (directory,) = open_directories([root], dry_run=True)
    with directory:
        assert not can_lock(root / ".lock")


def test_a_run_locks_a_directory_without_a_lock_file(root: Path) -> None:
    (directory,) = open_directories([root])
    with directory:
        assert not can_lock(root / ".lock")


def test_other_directories_and_links_are_ignored_and_listed(root: Path, tmp_path: Path) -> None:
    for name in ("topic-1.9f-delete", "topic-2-stray", "topic-3.9f-future", "lost+found", "no_partition"):
        (root / name).mkdir()
    outside = logs.write_log(tmp_path / "outside", {0: [one(0, "a")]})
    (root / "linked-0").symlink_to(outside)
    (root / "file-0").write_text("a file with a partition's name")
    with LogDirectory.open(root) as directory:
        assert list(directory.partitions) == [TopicPartition("topic", 0)]
        reasons = {Path(each.path).name: each.reason for each in directory.passed_over}
    assert set(reasons) == {
        "topic-1.9f-delete",
        "topic-2-stray",
        "topic-3.9f-future",
        "lost+found",
        "no_partition",
        "linked-0",
    }
    assert reasons["linked-0"] == "a symbolic link"
    assert "-stray" in reasons["topic-2-stray"]


def test_a_partition_directory_locks_its_log_directory(root: Path) -> None:
    with LogDirectory.open(root / "topic-0") as directory:
        assert directory.is_partition_subset
        assert directory.path == root
        assert list(directory.partitions.values()) == [root / "topic-0"]
        assert not can_lock(root / ".lock")


@pytest.mark.parametrize("names", [("topic-0", ""), ("", "topic-0"), ("topic-0", "other-2", "topic-0")])
def test_paths_of_one_directory_are_one_directory(root: Path, names: tuple[str, ...]) -> None:
    (root / "other-2").mkdir(exist_ok=True)
    (root / "other-2" / f"{0:020}.log").touch()
    (directory,) = open_directories([root / name for name in names])
    with directory:
        assert directory.is_partition_subset == ("" not in names)
        found = {str(topic_partition) for topic_partition in directory.partitions}
        assert found >= {"topic-0", "other-2"} and not can_lock(root / ".lock")


def test_a_path_without_partitions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "other" / "release-1").mkdir(parents=True)
    for name in ("empty", "file", "other", "missing"):
        with raises_error(NotALogDirectoryError, path=tmp_path / name, advice="log.dirs"):
            LogDirectory.open(tmp_path / name)


def test_checkpoints_are_read_and_one_entry_is_written(root: Path) -> None:
    topic, other = TopicPartition("topic", 0), TopicPartition("other", 3)
    with LogDirectory.open(root) as directory:
        assert directory.checkpoints().cleaner == {topic: 0}
        assert directory.checkpoints().high_watermark == {topic: 1 << 40}
        assert directory.checkpoints().log_start == {}
        directory.write_cleaner_checkpoint(other, 9)
        assert directory.checkpoints().cleaner == {topic: 0, other: 9}
        directory.write_cleaner_checkpoint(topic, None)
        directory.write_cleaner_checkpoint(topic, None)
        assert directory.checkpoints().cleaner == {other: 9}
        assert not directory.had_clean_shutdown


def _opened(path: Path, properties: str, partition: str = "topic-0") -> LogDirectory:
    logs.write_log(path, {0: [one(0, "a")]})
    (path / "topic-0").rename(path / partition)
    (path / "meta.properties").write_text(properties)
    return LogDirectory.open(path, lock=False)


def test_directories_of_one_broker_are_accepted(tmp_path: Path) -> None:
    same = "cluster.id=a\nnode.id=1\ndirectory.id=x\n"
    first = _opened(tmp_path / "0", same)
    second = _opened(tmp_path / "1", "cluster.id=a\nnode.id=1\ndirectory.id=y\n", "topic-1")
    require_one_broker([first, second])


@pytest.mark.parametrize(
    ("properties", "partition", "reason"),
    [
        ("cluster.id=b\nnode.id=1\n", "topic-1", "cluster.id is a and b"),
        ("cluster.id=a\nnode.id=2\n", "topic-1", "node.id is 1 and 2"),
        ("cluster.id=a\nnode.id=1\n", "topic-0", "0/topic-0"),
    ],
)
def test_directories_of_different_brokers_are_refused(
    tmp_path: Path, properties: str, partition: str, reason: str
) -> None:
    first = _opened(tmp_path / "0", "cluster.id=a\nnode.id=1\n")
    second = _opened(tmp_path / "1", properties, partition)
    with raises_error(DirectoryRefusedError, about=reason):
        require_one_broker([first, second])


def test_a_partition_in_two_directories_is_refused_with_how_to_tell_them_apart(tmp_path: Path) -> None:
    """Kafka refuses it, too, unless one is of a deleted topic; which one to remove was not said."""
    properties = "cluster.id=a\nnode.id=1\n"
    both = [_opened(tmp_path / name, properties) for name in ("0", "1")]
    path = tmp_path / "1" / "topic-0"
    for advice in ("elsewhere", "topic_id in partition.metadata", "-stray", "the disk that failed"):
        with raises_error(DirectoryRefusedError, path=path, about="0/topic-0", advice=advice):
            require_one_broker(both)


def test_a_checkpoint_is_read_again_only_after_it_was_replaced(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run asks for each of its logs; read anew each time, many logs would cost their square."""
    topic, read = TopicPartition("topic", 0), list[Path]()
    real = log_directory.read_checkpoint
    monkeypatch.setattr(log_directory, "read_checkpoint", lambda path: read.append(path) or real(path))
    path = root / "cleaner-offset-checkpoint"
    with LogDirectory.open(root) as directory:
        for _ in range(3):
            assert directory.checkpoints().cleaner == {topic: 0}
        assert read.count(path) == 1
        write_checkpoint(path, {topic: 7})
        assert directory.checkpoints().cleaner == {topic: 7}
        before = directory.checkpoints().cleaner
        directory.write_cleaner_checkpoint(topic, 9)
        assert directory.checkpoints().cleaner == {topic: 9} and before == {topic: 7}
        path.unlink()
        assert directory.checkpoints().cleaner == {}
    unlocked = LogDirectory.open(root, lock=False)
    write_checkpoint(path, {topic: 3})
    read.clear()
    assert unlocked.checkpoints() == unlocked.checkpoints() and read.count(path) == 2


def test_a_directory_above_log_directories_names_them(root: Path) -> None:
    (root.parent / "other").mkdir()
    (root / "meta.properties").write_text("version=1\nnode.id=0\ncluster.id=x\n")
    with raises_error(
        NotALogDirectoryError, path=root.parent, about="no meta.properties", advice=str(root)
    ) as raised:
        LogDirectory.open(root.parent)
    assert "other" not in raised.value.advice


def test_a_damaged_cleaner_checkpoint_is_an_error_or_counts_as_empty(root: Path) -> None:
    topic, path, told = TopicPartition("topic", 0), root / "cleaner-offset-checkpoint", list[str]()
    path.write_bytes(b"nonsense")
    with LogDirectory.open(root) as directory:
        for act in (
            directory.checkpoints,
            directory.cleaner_checkpoint,
            lambda: directory.write_cleaner_checkpoint(topic, 5),
        ):
            with raises_error(CorruptFileError, path=path):
                act()
        assert path.read_bytes() == b"nonsense"
        directory.when_damaged = lambda error: told.append(str(error.path))
        assert directory.cleaner_checkpoint() == directory.checkpoints().cleaner == {}
        assert told == [str(path)], "once for each state of the file"
        directory.write_cleaner_checkpoint(topic, 5)
        assert directory.cleaner_checkpoint() == {topic: 5} and len(told) == 1
        (root / "recovery-point-offset-checkpoint").write_bytes(b"nonsense")
        with raises_error(CorruptFileError):
            directory.checkpoints()
        directory.remove_cleaner_entries([topic])
        assert directory.cleaner_checkpoint() == {}
