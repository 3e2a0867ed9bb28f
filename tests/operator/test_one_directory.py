"""A log directory is one, by whatever paths and however often it is named: one lock, one owner, one state.

(3 of what an operator must be able to trust, as far as links and names go.)
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import siltstone as st
from siltstone.base import files
from siltstone.base.errors import (
    DirectoryLockedError,
    DirectoryRefusedError,
    NotALogDirectoryError,
    SiltstoneError,
    UsageError,
)
from siltstone.commands import clean as app
from siltstone.commands import review
from siltstone.commands.directories import BrokerDirectories
from siltstone.log import directory as log_directory
from siltstone.log.checkpoints import read_checkpoint
from siltstone.log.directory import LogDirectory, open_directories, require_one_broker
from siltstone.log.names import CLEANER_CHECKPOINT, TopicPartition
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.runtime.manager import LogManager
from siltstone.tables.options import ReadOptions
from siltstone.tables.table import plan
from siltstone.tables.writing import WriteOptions, plan_write
from tests.support.cleaning import logs
from tests.support.cleaning.logs import NOW, one
from tests.support.golden_sets import write_checkpoint
from tests.support.operator.staged import in_process, listing, no_engine

PARTITIONS = 24
OTHER = TopicPartition("another", 7)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A stopped broker's directory with many partitions of one topic."""
    path = tmp_path / "data"
    first = logs.write_log(path, {0: [one(0, "a"), one(1, "a")], 2: [one(2, "b")]}, high_watermark=None)
    for number in range(1, PARTITIONS):
        shutil.copytree(first, path / f"topic-{number}")
    everyone = {("topic", number): 3 for number in range(PARTITIONS)}
    write_checkpoint(path / "replication-offset-checkpoint", everyone)
    write_checkpoint(path / CLEANER_CHECKPOINT, {(OTHER.topic, OTHER.partition): 41})
    (path / ".kafka_cleanshutdown").touch()
    (path / ".lock").touch()
    return path


@pytest.fixture
def linked(directory: Path, tmp_path: Path) -> Path:
    """A link to a partition, beside nothing that tells of its directory."""
    (tmp_path / "links").mkdir()
    path = tmp_path / "links" / "topic-0"
    path.symlink_to(directory / "topic-0")
    return path


def asking(*directories: Path, **changes: Any) -> app.CleanRequest:
    config = ["cleanup.policy=compact", "min.cleanable.dirty.ratio=0"]
    request = app.CleanRequest(
        directories=directories, in_place=True, topics=["topic"], config=config, now_ms=NOW
    )
    return replace(request, **changes)


# Several partitions of one directory


def test_partitions_that_are_named_one_by_one_lose_no_entry(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints of several swaps are written at one time; each write must see all the others'."""
    real, together = log_directory.write_checkpoint, threading.Barrier(2)

    def slowly(path: Path, offsets: dict[TopicPartition, int]) -> None:
        """Two owners of the file would both wait here, each with the entries that it has read before."""
        try:
            together.wait(0.02)
        except threading.BrokenBarrierError:
            together.reset()
        real(path, offsets)

    monkeypatch.setattr(log_directory, "write_checkpoint", slowly)
    named = [directory / f"topic-{number}" for number in range(PARTITIONS)]
    outcome = app.clean(asking(*named), engine=in_process)
    assert [result.status for result in outcome.results] == ["cleaned"] * PARTITIONS
    checkpoint = read_checkpoint(directory / CLEANER_CHECKPOINT)
    assert checkpoint == {OTHER: 41} | {TopicPartition("topic", number): 2 for number in range(PARTITIONS)}


def test_partitions_of_one_directory_are_opened_as_one_directory(directory: Path, linked: Path) -> None:
    named = [directory / "topic-3", linked, directory / "topic-3", directory / ".." / "data" / "topic-1"]
    (opened,) = open_directories(named)
    with opened:
        assert opened.path == directory and opened.is_partition_subset
        assert {topic_partition.partition for topic_partition in opened.partitions} == {0, 1, 3}
        assert files.is_locked(directory / ".lock")
        with pytest.raises(DirectoryLockedError):
            open_directories([directory])
    assert not files.is_locked(directory / ".lock")


def test_a_directory_named_beside_its_partition_is_opened_whole(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "again").symlink_to(directory)
    for named in ([directory / "topic-3", directory], [tmp_path / "again", directory / "topic-3", directory]):
        (opened,) = open_directories(named, lock=False)
        assert not opened.is_partition_subset and len(opened.partitions) == PARTITIONS
        require_one_broker([opened])


def test_no_directory_is_locked_when_one_of_several_is_locked_already(
    directory: Path, tmp_path: Path
) -> None:
    other = logs.write_log(tmp_path / "other", {0: [one(0, "a")]}).parent
    with LogDirectory.open(directory):
        with pytest.raises(DirectoryLockedError):
            open_directories([other, directory])
        assert not files.is_locked(other / ".lock")
    with pytest.raises(NotALogDirectoryError):
        open_directories([other, directory, tmp_path / "none"])
    with LogDirectory.open(other), LogDirectory.open(directory):
        pass


def test_recovery_opens_the_directory_of_partitions_named_one_by_one_once(
    directory: Path, linked: Path
) -> None:
    (recovery,) = app.recover([directory / "topic-3", linked, directory / "topic-5"])
    assert recovery.path == directory and [log.topic_partition.partition for log in recovery.logs] == [
        0,
        3,
        5,
    ]
    recovered = read_checkpoint(directory / "recovery-point-offset-checkpoint")
    assert {topic_partition.partition: offset for topic_partition, offset in recovered.items()} == {
        0: 3,
        3: 3,
        5: 3,
    }


def test_a_directory_that_cannot_be_opened_does_not_stop_the_others(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = logs.write_log(tmp_path / "other", {0: [one(0, "a")]}).parent
    (other / "topic-0").rename(other / "more-0")
    real, reported = LogDirectory._take_lock, list[Path]()

    def refusing(opened: LogDirectory) -> None:
        if opened.path == directory:
            raise OSError(5, "Input/output error")
        real(opened)

    monkeypatch.setattr(LogDirectory, "_take_lock", refusing)
    with pytest.raises(OSError):
        open_directories([other, directory])
    (opened,) = open_directories([other, directory], on_error=lambda path, error: reported.append(path))
    with opened:
        assert opened.path == other and reported == [directory]


def test_only_one_of_many_threads_gets_a_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the system all threads of a process are one owner: it would let each of them in."""
    real, together = fcntl.lockf, threading.Barrier(2)

    def late(*arguments: int) -> None:
        """A thread that saw the lock free before another thread took it waits here as well."""
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.05)
        real(*arguments)

    monkeypatch.setattr(fcntl, "lockf", late)
    for is_new in (False, True):
        if is_new:
            (directory / ".lock").unlink()
        start, got, refused = threading.Barrier(8), list[LogDirectory](), list[str]()

        def take() -> None:
            start.wait()  # noqa: B023 - joined below
            try:
                got.append(LogDirectory.open(directory))  # noqa: B023
            except DirectoryLockedError as error:
                refused.append(str(error))  # noqa: B023

        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(got) == 1 and len(refused) == 7
        got[0].close()


# Links


def test_a_link_to_a_partition_respects_the_lock_of_its_directory(directory: Path, linked: Path) -> None:
    before = listing(directory)
    named = asking(linked, topics=())
    with LogDirectory.open(directory):
        for refused in (
            lambda: app.clean(named, engine=no_engine),
            lambda: app.recover([linked]),
            lambda: st.Log(linked),
            lambda: plan_write(WriteOptions(path=str(linked)), ["value"]),
            lambda: open_directories([linked]),
        ):
            with pytest.raises(DirectoryLockedError):
                refused()
    assert listing(directory) == before
    (directory / ".kafka_cleanshutdown").unlink()
    with pytest.raises(DirectoryRefusedError, match="not stopped cleanly"):
        app.clean(named, engine=no_engine)
    (directory / ".kafka_cleanshutdown").touch()
    (result,) = app.clean(named, engine=in_process).results
    assert result.status == "cleaned" and result.directory == str(directory / "topic-0")
    assert read_checkpoint(directory / CLEANER_CHECKPOINT) == {OTHER: 41, TopicPartition("topic", 0): 2}
    assert [path.name for path in linked.parent.iterdir()] == ["topic-0"]


def test_a_link_of_another_name_is_the_partition_that_it_leads_to(directory: Path, linked: Path) -> None:
    other = linked.with_name("elsewhere-9")
    other.symlink_to(directory / "topic-4")
    (opened,) = open_directories([other], lock=False)
    assert list(opened.partitions) == [TopicPartition("topic", 4)]
    with st.Log(other) as log:
        assert log.topic_partition == TopicPartition("topic", 4)
        with pytest.raises(DirectoryLockedError):
            st.Log(directory / "topic-5")


def test_a_path_through_a_link_is_the_directory_that_it_leads_to(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "again").symlink_to(directory)
    with LogDirectory.open(directory), pytest.raises(DirectoryLockedError):
        app.clean(asking(tmp_path / "again" / "topic-0", topics=()), engine=no_engine)
    with ReadOnlyLogs([tmp_path / "again" / "topic-0", directory / "topic-0"]) as opened:
        assert len(opened) == 1


def test_a_read_through_a_link_ends_at_the_directorys_high_watermark(directory: Path, linked: Path) -> None:
    """The high watermark is in the directory's checkpoint, of which there is none beside the link."""
    write_checkpoint(directory / "replication-offset-checkpoint", {("topic", 0): 1})
    with ReadOnlyLogs([linked]) as opened:
        assert opened["topic", 0].view.high_watermark == 1
    (split,) = plan(ReadOptions.of({"path": str(linked)}))
    assert [file_split.end for file_split in split.file_splits] == [1]


def test_a_link_among_a_brokers_partitions_is_not_followed_either_way(
    directory: Path, tmp_path: Path
) -> None:
    """A broker on the directory follows it, under the directory's lock; what it leads to has another one, or
    none."""
    moved = tmp_path / "big" / "topic-0"
    moved.parent.mkdir()
    (directory / "topic-0").rename(moved)
    (directory / "topic-0").symlink_to(moved)
    before = listing(moved)
    for refused in (
        lambda: app.clean(asking(directory / "topic-0", topics=()), engine=no_engine),
        lambda: app.recover([directory / "topic-0"]),
        lambda: st.Log(directory / "topic-0"),
        lambda: ReadOnlyLogs([directory / "topic-0"]),
        lambda: plan_write(WriteOptions(path=str(directory / "topic-0")), ["value"]),
    ):
        with pytest.raises(NotALogDirectoryError, match="a symbolic link among the partitions"):
            refused()
    assert listing(moved) == before and list(moved.parent.iterdir()) == [moved]


# The same directory twice


def test_a_directory_that_is_named_twice_is_cleaned_once(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "again").symlink_to(directory)
    outcome = app.clean(asking(directory, tmp_path / "again", directory), engine=in_process)
    assert [result.status for result in outcome.results] == ["cleaned"] * PARTITIONS


def test_reading_commands_see_a_directory_of_two_names_once(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "again").symlink_to(directory)
    both = (directory, tmp_path / "again")
    assert BrokerDirectories(paths=both).snapshot().topic("topic").partitions == tuple(range(PARTITIONS))
    request = review.ExplainRequest(
        directories=both, topics=["topic"], config=["cleanup.policy=compact"], no_spark=True
    )
    assert len(review.explain(request).logs) == PARTITIONS
    with pytest.raises(UsageError, match="name a copy"):
        review.verify(
            review.VerifyRequest(before=directory, after=tmp_path / "again" / "topic-0", no_spark=True)
        )


def test_a_manager_refuses_two_names_of_one_directory(directory: Path, tmp_path: Path) -> None:
    """As a broker is, by log.dirs."""
    (tmp_path / "again").symlink_to(directory)
    for twice in ([directory, directory], [directory, tmp_path / "again"], [tmp_path / "again", directory]):
        with pytest.raises(DirectoryRefusedError, match="is the same log directory"):
            LogManager.open(twice)
        assert not files.is_locked(directory / ".lock")
    with LogManager.open([tmp_path / "again"]) as manager:
        assert manager.directories[0].path == directory
        with pytest.raises(DirectoryLockedError):
            LogManager.open([directory])


def _places(monkeypatch: pytest.MonkeyPatch, alike: Callable[[Path], Path]) -> None:
    """As if some paths were other mounts of what ``alike`` says."""
    real = files.stat

    def stat(path: Path, *, follow: bool = True) -> files.FileStat:
        return real(alike(Path(path)), follow=follow)

    monkeypatch.setattr(files, "stat", stat)


def test_a_second_mount_is_the_same_directory(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = tmp_path / "mount"
    shutil.copytree(directory, mount)
    _places(monkeypatch, lambda path: directory if path == mount else path)
    (opened,) = open_directories([directory / "topic-0", mount / "topic-1"], lock=False)
    assert set(opened.partitions.values()) == {directory / "topic-0", directory / "topic-1"}
    with pytest.raises(UsageError, match="--out"):
        app.clean(asking(directory, in_place=False, out=mount / "new"), engine=no_engine)


def test_one_partition_under_two_names_is_refused(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = tmp_path / "mount" / "other-0"
    shutil.copytree(directory / "topic-0", mount)
    _places(monkeypatch, lambda path: directory / "topic-0" if path == mount else path)
    with pytest.raises(SiltstoneError, match="the same directory as"):
        app.clean(asking(directory, mount, topics=(), force=True), engine=no_engine)


def test_an_undo_follows_recorded_paths_through_links(directory: Path, tmp_path: Path) -> None:
    """What a run kept names its partitions by the paths that it was given in those days."""
    before = listing(directory / "topic-0")
    named = [directory / "topic-0", directory / "topic-1"]
    outcome = app.clean(asking(*named, topics=(), keep_originals=tmp_path / "keep"), engine=in_process)
    assert outcome.kept is not None and len(outcome.results) == 2
    (tmp_path / "again").symlink_to(directory)
    undo_file = outcome.kept / "topic-0" / "undo.json"
    undo_file.write_text(undo_file.read_text().replace(str(directory), str(tmp_path / "again")))
    app.undo(outcome.kept)
    assert listing(directory / "topic-0") == before
    assert read_checkpoint(directory / CLEANER_CHECKPOINT) == {OTHER: 41}
