"""A crash at every step of a split and the cleaning after it: the next run ends as if nothing had been."""

from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.base.config import LogConfig
from siltstone.compaction.report import CLEANED, NOTHING_TO_DO
from siltstone.log.recovery.partition import recover_partition
from siltstone.log.replacement import finish_replacement, swap_leftovers
from tests.log.test_overflow import WIDE, wide_log
from tests.support.cleaning import logs
from tests.support.crash.disk import DROP, KEEP, Disk, Recording, crash_after, recorded
from tests.support.thoroughness import THOROUGH, boundaries

pytestmark = pytest.mark.random

LIVE = {f"k{number % 4}".encode(): offset for number, offset in enumerate(WIDE)}


def clean(path: Path) -> None:
    result = logs.run(path)
    assert result.status in (CLEANED, NOTHING_TO_DO), result


def check(path: Path) -> None:
    """A start finishes or drops what was begun: each key's last record is there, once, in order."""
    partition = path / "topic-0"
    finish_replacement(partition)
    assert swap_leftovers(partition) == []
    last_offsets: dict[bytes, int] = {}
    following = 0
    for data in logs.logs_of(partition).values():
        for record in logs.records_in(data):
            assert record.offset >= following and record.key is not None
            last_offsets[record.key], following = record.offset, record.offset + 1
    assert last_offsets.items() >= LIVE.items()


def outcome(path: Path) -> dict[str, bytes]:
    """What a finished run leaves of the log, but for indexes, which a crash may take."""
    return {name: data for name, data in logs.tree(path / "topic-0").items() if "index" not in name}


def undisturbed(path: Path) -> tuple[Recording, dict[str, bytes]]:
    wide_log(path)
    with recorded(path) as recording:
        clean(path)
    check(path)
    return recording, outcome(path)


def test_every_operation_may_be_the_last(tmp_path: Path) -> None:
    recording, ended = undisturbed(tmp_path / "undisturbed")
    crashes = 0
    for count in boundaries(len(recording.steps), 2):
        path = tmp_path / str(count)
        wide_log(path)
        if not crash_after(count, lambda path=path: clean(path)):
            break
        crashes += 1
        check(path)
        clean(path)
        check(path)
        assert outcome(path) == ended, count
    assert crashes > (15 if THOROUGH else 6)


def test_whatever_was_on_disk_by_then(tmp_path: Path) -> None:
    recording, ended = undisturbed(tmp_path / "undisturbed")
    images: set[int] = set()
    built = 0
    for count in boundaries(len(recording.steps) + 1, 2):
        disk = Disk(recording, count)
        for variant in (DROP, KEEP, *(seed * 1009 + count for seed in range(3))):
            if disk.build(variant, images):
                built += 1
                check(recording.root)
                clean(recording.root)
                check(recording.root)
                assert outcome(recording.root) == ended, (count, variant)
    assert built > (15 if THOROUGH else 6)


def start(path: Path) -> None:
    recover_partition(
        path / "topic-0",
        had_clean_shutdown=False,
        recovery_point=0,
        log_start_offset=0,
        config=LogConfig(),
        now_ms=logs.NOW,
    )


def all_offsets(path: Path) -> list[int]:
    segments = logs.logs_of(path / "topic-0").values()
    return [record.offset for data in segments for record in logs.records_in(data)]


def test_a_start_that_splits_may_be_stopped_anywhere(tmp_path: Path) -> None:
    first = tmp_path / "undisturbed"
    wide_log(first)
    with recorded(first) as recording:
        start(first)
    ended, expected = outcome(first), all_offsets(first)
    assert len(ended) > len(WIDE) // 2 and expected[: len(WIDE)] == WIDE
    images: set[int] = set()
    built = 0
    for count in boundaries(len(recording.steps) + 1, 2):
        disk = Disk(recording, count)
        for variant in (DROP, KEEP, *(seed * 1009 + count for seed in range(3))):
            if disk.build(variant, images):
                built += 1
                start(recording.root)
                assert all_offsets(recording.root) == expected, (count, variant)
                assert outcome(recording.root) == ended, (count, variant)
    assert built > (15 if THOROUGH else 6)
