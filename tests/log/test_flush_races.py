"""A flush waits for the disk without the log's lock: what may happen to its segments meanwhile."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.base.errors import StorageError
from siltstone.log.partition import PartitionLog
from siltstone.log.segment import LiveSegment
from tests.support.cleaning.logs import NOW, WHERE
from tests.support.log import driving
from tests.support.log.model import Stored


def open_log(path: Path) -> PartitionLog:
    """Some segments that nobody has synced."""
    (path / str(WHERE)).mkdir()
    config = driving.log_config({"segment.bytes": 400})
    log = driving.open_log(path / str(WHERE), config, ManualClock(NOW), background=lambda task: None).log
    for _ in range(12):
        put(log)
    assert len(log.view.segments) > 2
    return log


def put(log: PartitionLog, *, sync: bool = False) -> None:
    log.append(driving.client_batch([Stored(0, b"key", b"value", NOW)]), sync=sync)


def amid(patch: pytest.MonkeyPatch, owner: type, act: Callable[[], object], *, after: bool) -> None:
    """Call ``act`` before or after the first sync of an ``owner``, as another thread would."""
    sync = owner.sync  # type: ignore[attr-defined]

    def once(self: object) -> None:
        patch.setattr(owner, "sync", sync)
        if not after:
            act()
        sync(self)
        if after:
            act()

    patch.setattr(owner, "sync", once)


@pytest.mark.parametrize("closes", [False, True])
def test_an_append_that_is_to_be_durable_fails_if_the_log_goes_offline_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    """Another thread's or another log's failed sync takes it offline: its files are closed, unsynced."""
    log = open_log(tmp_path)

    def go_offline() -> None:
        log._go_offline(OSError(errno.EIO, "the disk has failed"))
        if closes:
            log.close()

    if closes:
        amid(monkeypatch, LiveSegment, go_offline, after=False)
    else:
        flush = log.flush
        monkeypatch.setattr(PartitionLog, "flush", lambda self: (go_offline(), flush()))
    before = log.recovery_point
    with pytest.raises(StorageError, match="the disk has failed"):
        put(log, sync=True)
    assert log.recovery_point == before


def test_a_file_that_is_closed_during_its_sync_is_no_failure_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of a closed descriptor may be another file's by then."""
    appender, close = files.Appender(tmp_path / "file"), os.close
    appender.write(b"data")

    def closing(descriptor: int) -> None:
        close(descriptor)
        monkeypatch.setattr(os, "close", close)
        with pytest.raises(FileNotFoundError):
            appender.sync()

    monkeypatch.setattr(os, "close", closing)
    appender.close()
    assert os.close is close


def test_batches_appended_after_a_truncation_do_not_count_as_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)

    def cut_and_append() -> None:
        log.truncate_to(1)
        for _ in range(20):
            put(log)

    amid(monkeypatch, LiveSegment, cut_and_append, after=True)
    log.flush()
    assert log.recovery_point <= 1
    log.flush()
    assert log.recovery_point == log.log_end_offset == 21


def test_a_segment_that_is_truncated_during_a_flush_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    log.flush(including_active=False)
    put(log)
    base = log.view.segments[-1].base_offset
    amid(monkeypatch, files.Appender, lambda: log.truncate_to(base + 1), after=False)
    log.flush()
    assert log.offline is None
    assert [record.offset for record in driving.read_all(log)] == list(range(base + 1))


def test_a_flush_completes_though_an_older_segment_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    amid(monkeypatch, LiveSegment, lambda: log.delete_oldest_segments(1), after=False)
    put(log, sync=True)
    assert not log.view.segments[-1].is_unsynced
    assert log.recovery_point == log.log_end_offset
