"""A crash at every step of cleaning a log with transactions across its groups: nothing aborted is seen.

``test_swap_crashes`` looks at the steps themselves. Here segments have ``.txnindex`` files and snapshots, and
transactions lie in several groups, some of which are swapped and some not when the crash comes: committed
readers must see the same then, and the next run does what the oracle says of the log as the crash left it.
"""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.report import CLEANED, NOTHING_TO_DO, LogResult
from siltstone.log.replacement import finish_replacement, swap_leftovers
from tests.support.cleaning import judging, logs, oracle
from tests.support.cleaning.lives import Living
from tests.support.cleaning.open_transactions import ROUND, committed, table, write
from tests.support.crash.breaking import BROKEN_SWAPS
from tests.support.crash.disk import DROP, KEEP, Disk, Variant, crash_after, recorded
from tests.support.thoroughness import SEEDS, THOROUGH, boundaries, examples, turn

pytestmark = pytest.mark.random


def clean(living: Living, limits: RunLimits | None = None) -> LogResult:
    """The run that is crashed, and the one after it, held to the oracle."""
    expected = oracle.clean(living.partition, living.rules(ROUND))
    now_ms = living.clock.now_ms()
    result = logs.run(living.root, config=living.settings(ROUND), now_ms=now_ms, limits=limits)
    assert result.status in (CLEANED, NOTHING_TO_DO), result
    assert bool(expected.segments) == (result.status == CLEANED)
    if expected.segments:
        judging.assert_cleaned(expected, living.partition, result)
    return result


def check_names(partition: Path) -> None:
    """No leftovers, and no index without its log."""
    assert swap_leftovers(partition) == []
    bases = {path.stem for path in partition.glob("*.log")}
    assert {path.stem for path in partition.glob("*.txnindex")} <= bases
    assert {path.stem for path in partition.glob("*.timeindex")} == bases


def copy_of(living: Living, path: Path) -> Living:
    """A copy of the log."""
    shutil.copytree(living.root, path)
    other = copy.copy(living)
    other.root, other.partition = path, path / living.partition.name
    return other


class Undisturbed:
    """A run that nothing disturbs: its operations, what was seen before it, and what is left after it."""

    def __init__(self, path: Path, *, in_waves: bool = False) -> None:
        self.living, self._in_waves = write(path), in_waves
        self.limits = self.limits_of(self.living)
        self.table = table(self.living.partition)
        with recorded(path) as self.recording:
            clean(self.living, self.limits)
        self.remaining = committed(self.living.partition)

    def limits_of(self, living: Living) -> RunLimits:
        """As little room as its groups need; those that were swapped become larger groups of the next run."""
        if not self._in_waves:
            return RunLimits()
        return logs.one_group_a_wave(living.root, living.settings(ROUND), living.clock.now_ms())

    def start_and_check(self, living: Living, *, again: bool) -> None:
        """A start after a crash, what a reader sees then, and (``again``) after the next run."""
        finish_replacement(living.partition)
        check_names(living.partition)
        assert table(living.partition) == self.table
        if again:
            clean(living, self.limits_of(living))
            check_names(living.partition)
            assert committed(living.partition) == self.remaining


def test_the_log_has_several_groups_and_aborts_across_them(tmp_path: Path) -> None:
    """Groups, an aborted transaction over several of them, entries that are carried over."""
    living = write(tmp_path / "log")
    expected = oracle.clean(living.partition, living.rules(ROUND))
    starts = [*expected.segments, expected.end]
    entries = [entry for new in expected.segments.values() for entry in new.aborted]
    assert len(expected.segments) >= 4 and len(entries) >= 3
    assert any(entry.first_offset < start <= entry.last_offset for entry in entries for start in starts)
    assert sum(len(new.sources) > 1 for new in expected.segments.values()) >= 2


@pytest.mark.parametrize("in_waves", [False, True])
def test_every_operation_may_be_the_last(tmp_path: Path, in_waves: bool) -> None:
    undisturbed = Undisturbed(tmp_path / "undisturbed", in_waves=in_waves)
    fresh = write(tmp_path / "fresh")
    crashes = 0
    for count in boundaries(len(undisturbed.recording.steps), 7 if in_waves else 3):
        living = copy_of(fresh, tmp_path / str(count))
        if not crash_after(count, lambda living=living: clean(living, undisturbed.limits)):
            break
        crashes += 1
        undisturbed.start_and_check(living, again=count % 2 == 0)
        shutil.rmtree(living.root)
    assert crashes > (15 if THOROUGH else 1)


def test_a_second_crash_during_the_recovery(tmp_path: Path) -> None:
    undisturbed = Undisturbed(tmp_path / "undisturbed")
    total, rng = len(undisturbed.recording.steps), random.Random(12)
    for number in range(examples(20)):
        living = write(tmp_path / str(number))
        crash_after(rng.randrange(total), lambda living=living: clean(living))
        crash_after(rng.randrange(20), lambda living=living: finish_replacement(living.partition))
        finish_replacement(living.partition)
        crash_after(rng.randrange(total), lambda living=living: clean(living))
        undisturbed.start_and_check(living, again=True)


def failures(undisturbed: Undisturbed, variants: list[Variant], *, again: bool = True) -> Iterator[str]:
    """Every image that may be on disk: what is wrong on it, one line each."""
    images, recording = set[int](), undisturbed.recording
    for count in boundaries(len(recording.steps) + 1):
        disk = Disk(recording, count)
        for variant in turn(count, variants):
            mixed = variant * 1009 + count if isinstance(variant, int) else variant
            if not disk.build(mixed, images):
                continue
            try:
                undisturbed.start_and_check(undisturbed.living, again=again and count % 3 == 0)
            except Exception as error:
                yield f"{count} {mixed}: {type(error).__name__}: {error}"[:400]


def test_whatever_was_on_disk_by_then(tmp_path: Path) -> None:
    assert list(failures(Undisturbed(tmp_path / "log"), [KEEP, DROP, *SEEDS])) == []


def test_a_reader_without_the_indexes_would_see_aborted_records(tmp_path: Path) -> None:
    """The harness would find it: what is read hangs on ``.txnindex`` files, and new ones are made."""
    living = write(tmp_path / "log")
    before = table(living.partition)
    for path in living.partition.glob("*.txnindex"):
        path.unlink()
    assert table(living.partition) != before


@pytest.mark.long  # it tests the harness
@pytest.mark.parametrize("name", ["no fsync of new files", "no directory sync"])
def test_the_harness_finds_what_is_taken_out(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        BROKEN_SWAPS[name](patch)
        undisturbed = Undisturbed(tmp_path / "log")
    assert any(failures(undisturbed, [KEEP, DROP, *SEEDS], again=False))
