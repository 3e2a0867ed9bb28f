"""Look mode on directories in which something is forged or half done: one row is bad, the others stay."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.commands.catalogue import Catalogue, PartitionRow
from siltstone.commands.policies import LogOptions
from siltstone.commands.served import Served, ServeOptions
from siltstone.commands.watch import Watch
from siltstone.log import names
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.names import TopicPartition
from tests.support.ledger.driving import compact
from tests.support.ledger.oracle import Model
from tests.support.ledger.serving import USERS, compacted, put, serving
from tests.support.log.managed import NOW, opened
from tests.support.operator.staged import is_root

LOGS = {
    "tiered-0": {"cleanup.policy": "compact", "remote.storage.enable": "true"},
    "plain-0": {"cleanup.policy": "delete"},
    "users-0": {"cleanup.policy": "compact"},
}
COMPACTED = ("tiered-0", "users-0")
ACTIVE = f"{2:020d}.log"
OTHER_USER = 12345


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three logs of three segments, the last one empty, whose directories are settled."""
    root = tmp_path / "logs"
    with opened(root) as manager:
        for name, settings in LOGS.items():
            topic = name.partition("-")[0]
            manager.topics.create(topic, 1, {k: v for k, v in settings.items() if "remote" not in k})
            for number in range(2):
                manager.send(topic, b"x" * 100, key=b"%d" % number, partition=0)
                manager[topic, 0].roll()
            if "remote.storage.enable" in settings:
                manager.topics.alter(topic, {"remote.storage.enable": "true"})
    return root


def looked(root: Path, change: Callable[[], object] = lambda: None) -> tuple[Catalogue, Catalogue]:
    """The catalogues of one look before a change, and of one after it. A look changes nothing."""
    with Served(ServeOptions(paths=(root,), is_look=True), ManualClock(NOW)) as served:
        first = served.cataloguer.refresh()
        change()
        before = _state(root)
        second = served.cataloguer.refresh()
        assert _state(root) == before
    assert first.error is None and second.error is None
    return first, second


def _state(root: Path) -> list[tuple[str, int, int, int]]:
    """Every name below, with inode, size and time."""
    paths = sorted([root, *root.rglob("*")])
    status = [(path, path.lstat()) for path in paths]
    return [(str(path), facts.st_ino, facts.st_size, facts.st_mtime_ns) for path, facts in status]


def row(catalogue: Catalogue, name: str) -> PartitionRow:
    topic, _, number = name.rpartition("-")
    return catalogue.partition_of(TopicPartition(topic, int(number)))


def _link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def _fifo(path: Path) -> None:
    path.unlink()
    os.mknod(path, stat.S_IFIFO | 0o600)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("forge", [_link, _fifo, _directory])
def test_what_is_no_regular_file_is_not_read_and_does_not_count(
    root: Path, forge: Callable[[Path], None]
) -> None:
    first, second = looked(root, lambda: [forge(root / name / f"{1:020d}.log") for name in LOGS])
    for name in LOGS:
        before, after = row(first, name), row(second, name)
        assert before.segments == 3
        assert before.watched.state == ("due" if name == "users-0" else "skipped")
        assert after.watched.state == ("unreadable" if name in COMPACTED else "skipped")
        assert ("but must be a regular file" in after.watched.reason) == (name in COMPACTED)
        assert (after.segments, after.bytes) == (2, before.bytes // 2)


@pytest.mark.parametrize("folder", [".siltstone", ".compacted", ".siltstone-writes"])
def test_a_link_in_place_of_a_folder_of_ours_is_not_followed(root: Path, folder: str) -> None:
    first, second = looked(root, lambda: [(root / name / folder).symlink_to("/") for name in LOGS])
    for name in LOGS:
        before, after = row(first, name), row(second, name)
        assert after.watched.state == ("unreadable" if name in COMPACTED else "skipped")
        assert ("but must be a directory" in after.watched.reason) == (name in COMPACTED)
        assert (after.segments, after.bytes) == (before.segments, before.bytes)


@pytest.mark.skipif(not is_root(), reason="only root can give files away")
def test_a_file_of_another_user_is_reported_in_compacted_logs(root: Path) -> None:
    for name in LOGS:
        os.chown(root / name / ACTIVE, OTHER_USER, -1)
    catalogue, _ = looked(root)
    for name in LOGS:
        watched = row(catalogue, name).watched
        assert watched.state == ("unreadable" if name in COMPACTED else "skipped")
        assert (f"belongs to user {OTHER_USER}" in watched.reason) == (name in COMPACTED)
        assert row(catalogue, name).segments == 3


@pytest.mark.parametrize("order", ["offset", "time"])
def test_a_ledger_bounds_what_may_be_cleaned_if_it_is_ordered_by_time(root: Path, order: str) -> None:
    with opened(root) as manager:
        log = manager["users", 0]
        for number in range(2):
            manager.send("users", b"x" * 100, key=b"%d" % number, partition=0)
            log.roll()
        log.delete_records(1)
        compact(log, Model(by_time=order == "time"))
        manager.send("users", b"x" * 100, key=b"new", partition=0)
        log.roll()
    ledger = LedgerStore(root / "users-0").current()
    assert ledger is not None and ledger.horizon == 4
    first, _ = looked(root)
    snapshot = row(first, "users-0").watched.snapshot
    assert snapshot is not None and snapshot.range.end == (4 if order == "time" else 5)


@pytest.fixture
def in_use(root: Path) -> Iterator[Path]:
    """The directories while a process has them open."""
    with opened(root):
        yield root


def test_a_swap_in_a_directory_in_use_is_reported_whatever_the_policy(in_use: Path) -> None:
    paths = [in_use / name / f"{ACTIVE}.swap" for name in LOGS]
    _, second = looked(in_use, lambda: [path.write_bytes(b"") for path in paths])
    for name in LOGS:
        watched = row(second, name).watched
        assert watched.state == "cleaning" and watched.reason.startswith("segments are being swapped")


def test_a_cleaning_that_stages_files_in_a_directory_in_use_is_reported(in_use: Path) -> None:
    staging = in_use / "users-0" / ".siltstone"
    _, second = looked(in_use, lambda: (staging / "run-1").mkdir(parents=True))
    assert row(second, "users-0").watched.state == "cleaning"
    assert "run-1" in row(second, "users-0").watched.reason


def test_a_look_lists_a_log_once_and_asks_each_file_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed_paths, stat_paths = list[str](), list[str]()
    list_all, stat_of = files.list_all, files.stat

    def counted_list(path: Path, **options: object) -> object:
        listed_paths.append(str(path))
        return list_all(path, **options)  # type: ignore[arg-type]

    def counted_stat(path: Path | str, **options: object) -> object:
        stat_paths.append(str(path))
        return stat_of(path, **options)  # type: ignore[arg-type]

    watch = Watch([root], LogOptions(), ManualClock(NOW), for_catalogue=True)
    monkeypatch.setattr(files, "list_all", counted_list)
    monkeypatch.setattr(files, "stat", counted_stat)
    assert len(watch.snapshot().logs) == len(LOGS)
    for path in (str(root / "plain-0"), str(root / "users-0")):
        assert listed_paths.count(path) == 1
        assert [stat_path for stat_path in stat_paths if stat_path.startswith(path)] == [path]


def test_the_names_are_listed_again_if_and_only_if_one_has_changed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, entries = list[str](), files.entries

    def counted(path: Path | int) -> object:
        listed.append(str(path))
        return entries(path)

    watch = Watch([root], LogOptions(), ManualClock(NOW), for_catalogue=True)
    monkeypatch.setattr(files, "entries", counted)
    for number, change in enumerate((None, None, "made", "renamed", None)):
        listed.clear()
        if change == "made":
            (root / "users-1").mkdir()
        elif change == "renamed":
            (root / "users-1").rename(root / "others-7")
        if change is not None:
            os.utime(root, ns=(0, number))  # the file system's clock may not have moved since
        names = [str(log.topic_partition) for log in watch.snapshot().logs]
        assert (str(root) in listed) == (change is not None)
        assert names == sorted([*LOGS, *{2: ["users-1"], 3: ["others-7"], 4: ["others-7"]}.get(number, [])])


def test_names_are_listed_again_while_the_directory_has_just_been_changed(root: Path) -> None:
    os.utime(root, ns=(0, NOW * 1_000_000))
    watch = Watch([root], LogOptions(), ManualClock(NOW), for_catalogue=True)
    watch.snapshot()
    (root / "users-1").mkdir()
    os.utime(root, ns=(0, NOW * 1_000_000))  # a change within the same tick of the clock
    assert len(watch.snapshot().logs) == len(LOGS) + 1


def test_a_log_is_read_again_when_a_compaction_has_moved_the_horizon_that_bounds_it(tmp_path: Path) -> None:
    """A ledger by time holds back what lies above its horizon; to move that changes no file of the log."""
    topic = {"cleanup.policy": "compact", "siltstone.compaction.order": "time"}
    with serving(tmp_path, topic=topic) as (manager, compactions):
        log = manager[USERS]

        def fill() -> None:
            for value in range(4):
                put(log, ("a", str(value)))
                log.roll()
            manager.flush()

        fill()
        compacted(compactions)
        fill()
        watch = Watch([tmp_path], LogOptions(), ManualClock(NOW), for_catalogue=True)
        ends = list[int]()
        for folder in (log.directory / names.COMPACTED, log.directory):
            os.utime(folder, ns=(0, 0))
        for _ in range(2):
            (watched,) = watch.snapshot().logs
            assert watched.snapshot is not None
            ends.append(watched.snapshot.range.end)
        compacted(compactions)
        os.utime(log.directory, ns=(0, 0))
        (watched,) = watch.snapshot().logs
        assert watched.snapshot is not None
        assert (ends, watched.snapshot.range.end) == ([4, 4], 8)
