"""Segments swapped in a log that is open: appends go on, old files wait, nothing is swapped by halves."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.errors import CorruptRecordError, SourceChangedError, StorageError
from siltstone.log import replacement
from siltstone.log.names import CLEANED, segment_file
from siltstone.log.partition import PartitionLog, open_partition
from siltstone.log.replacement import swap_leftovers
from tests.support.errors import raises_error
from tests.support.log import offset_values
from tests.support.log.driving import read_all


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    log = offset_values.opened(tmp_path, segment_bytes=600)
    offset_values.fill(log, 99)
    log.flush()
    return log


def names(log: PartitionLog, ending: str) -> list[str]:
    return sorted(path.name for path in log.directory.iterdir() if path.name.endswith(ending))


def test_old_files_wait_as_deleted_and_are_no_interrupted_swap(log: PartitionLog) -> None:
    bases = [segment.base_offset for segment in log.view.segments]
    offset_values.clean_two(log, 0)
    assert [segment.base_offset for segment in log.view.segments] == [bases[0], *bases[2:]]
    assert names(log, ".log.deleted") == [segment_file(base, "log", ".deleted") for base in bases[:2]]
    assert swap_leftovers(log.directory) == []
    log.close()
    again = open_partition(log.directory, log.config, had_clean_shutdown=True)
    assert names(again, ".deleted") == []
    assert {record.offset for record in read_all(again)} >= set(range(0, 99, 5))
    again.close()


def test_the_answer_names_the_files_to_unlink(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[list[Path]] = []
    replace = PartitionLog.replace
    monkeypatch.setattr(
        PartitionLog, "replace", lambda self, new, old: answers.append(replace(self, new, old))
    )
    offset_values.clean_two(log, 0)
    assert sorted(path.name for path in answers[0]) == names(log, ".deleted")
    assert answers[0]


def test_what_waited_of_an_earlier_swap_goes_before_the_next_one(log: PartitionLog) -> None:
    offset_values.clean_two(log, 2)
    waiting = names(log, ".log.deleted")
    offset_values.clean_two(log, 0)
    assert not set(waiting) & set(names(log, ".log.deleted"))


@pytest.mark.parametrize("way", ["swapped", "truncated", "started anew"])
def test_old_files_may_be_unlinked_by_the_one_whose_turn_it_is(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """After ``file.delete.delay.ms`` another thread unlinks what a swap has left, at any moment."""
    bases = [segment.base_offset for segment in log.view.segments]
    offset_values.clean_two(log, 2)
    unlink = files.unlink

    def second(path: Path) -> None:
        if str(path).endswith(".deleted"):
            unlink(path)  # the other thread was first
        unlink(path)

    monkeypatch.setattr(files, "unlink", second)
    if way == "swapped":
        offset_values.clean_two(log, 0)
    elif way == "truncated":
        log.truncate_to(bases[1])
    else:
        log.truncate_fully_and_start_at(2000)
    assert log.offline is None
    ends = {"swapped": 98, "truncated": bases[1] - 1, "started anew": None}
    assert max((record.offset for record in read_all(log)), default=None) == ends[way]


@pytest.mark.parametrize("way", ["truncated", "deleted", "started anew"])
def test_a_segment_that_was_swapped_in_under_a_second_name_can_go(log: PartitionLog, way: str) -> None:
    """Its ``.deleted`` is the same file, of which both names stay when one is renamed to the other."""
    bases = [segment.base_offset for segment in log.view.segments]
    at = bases[2]
    for kind in ("log", "index", "timeindex"):
        path = log.directory / segment_file(at, kind)
        os.link(path, log.directory / segment_file(at, kind, CLEANED))
    log.replace([at], [at])
    if way == "truncated":
        log.truncate_to(bases[1] + 3)
    elif way == "deleted":
        log.delete_records(bases[4])
        log.delete_oldest_segments(4)
    else:
        log.truncate_fully_and_start_at(2000)
    assert not (log.directory / segment_file(at, "log")).exists()
    log.close()
    again = open_partition(
        log.directory, log.config, had_clean_shutdown=True, log_start_offset=log.log_start_offset
    )
    assert at not in [segment.base_offset for segment in again.view.segments]
    assert names(again, ".deleted") == []
    again.close()


def test_appends_go_on_while_a_swap_syncs(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    syncing, appended = threading.Event(), threading.Event()
    sync = files.sync_directory

    def slow(path: Path) -> None:
        syncing.set()
        assert appended.wait(60), "an append waited for the swap"
        sync(path)

    monkeypatch.setattr(files, "sync_directory", slow)
    swapping = threading.Thread(target=lambda: offset_values.clean_two(log, 0), daemon=True)
    swapping.start()
    assert syncing.wait(60)
    end = log.log_end_offset
    offset_values.append(log)
    assert log.log_end_offset == end + 3
    appended.set()
    swapping.join(60)
    assert log.log_end_offset == end + 3
    assert read_all(log)[-1].offset == end + 2


def test_a_segment_that_does_not_read_back_is_dropped(log: PartitionLog) -> None:
    before = read_all(log)
    base, other = (segment.base_offset for segment in log.view.segments[:2])
    for kind in ("log", "index", "timeindex"):
        (log.directory / segment_file(base, kind, CLEANED)).write_bytes(b"\0" * 90)
    with pytest.raises(CorruptRecordError):
        log.replace([base], [base, other])
    assert names(log, ".swap") == names(log, ".cleaned") == names(log, ".deleted") == []
    assert read_all(log) == before
    offset_values.clean_two(log, 0)


@pytest.mark.parametrize("touched", [False, True])
def test_only_the_very_file_that_was_read_back_is_not_read_again(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch, touched: bool
) -> None:
    read: list[Path] = []
    check = replacement._verify_log
    monkeypatch.setattr(replacement, "_verify_log", lambda path: (read.append(path), check(path))[1])
    base = log.view.segments[0].base_offset
    for kind in ("log", "index", "timeindex"):
        new = log.directory / segment_file(base, kind, CLEANED)
        new.write_bytes((log.directory / segment_file(base, kind)).read_bytes())
    path, before = log.directory / segment_file(base, "log", CLEANED), read_all(log)
    known = {base: files.stat(path).identity}
    if touched:
        os.utime(path, ns=(5, 5))
    log.replace([base], [base], known)
    assert len(read) == touched
    assert read_all(log) == before


def test_a_changed_file_is_read_again_and_dropped(log: PartitionLog) -> None:
    before, base = read_all(log), log.view.segments[0].base_offset
    path = log.directory / segment_file(base, "log", CLEANED)
    data = (log.directory / segment_file(base, "log")).read_bytes()
    path.write_bytes(data)
    known = {base: files.stat(path).identity}
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptRecordError):
        log.replace([base], [base], known)
    assert read_all(log) == before


def test_segments_that_went_meanwhile_are_not_replaced(log: PartitionLog) -> None:
    base, other = (segment.base_offset for segment in log.view.segments[:2])
    log.delete_oldest_segments(1)
    with raises_error(SourceChangedError, path=log.directory, about=str([base, other])):
        log.replace([base], [base, other])
    active = log.view.segments[-1].base_offset
    with pytest.raises(SourceChangedError):
        log.replace([active], [active])


def test_a_disk_that_fails_amid_a_swap_takes_the_log_offline(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_all(log)

    def fail(path: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_directory", fail)
        with pytest.raises(StorageError):
            offset_values.clean_two(log, 0)
    assert log.offline is not None
    log.close()
    again = open_partition(log.directory, log.config)
    assert {record.offset for record in read_all(again)} >= {r.offset for r in before if r.offset % 5 == 0}
    again.close()
