"""Random lives of logs, cleaned in one go, spread and in waves: the same files, and what the oracle says.

The oracle (``tests/cleaner/oracle.py``) is held to Kafka's own cleaner in ``tests/golden/test_oracle.py``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.report import CLEANED, NOTHING_TO_DO, LogResult
from siltstone.compaction.work import InputSplit, LogWork, splits_by_task
from tests.support import in_memory
from tests.support.cleaning import judging, logs, oracle
from tests.support.cleaning.lives import Life, Living, Round, cut_at_every_batch, lives, splits_of_any_size
from tests.support.log.index_checks import check_indexes
from tests.support.thoroughness import examples


@pytest.fixture(autouse=True, scope="module")
def quick_disk() -> Iterator[None]:
    """Nothing here crashes: the disk need not be waited for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def live(life: Life, root: Path, *, cut: bool) -> None:
    """Every round of a life, cleaned in one go and spread from the same state. ``cut``: its groups are cut
    at every batch."""
    living = Living(root / "log", life)
    for number, round_ in enumerate(life.rounds):
        living.write(round_)
        expected = oracle.clean(living.partition, living.rules(round_))
        copy = root / f"copy-{number}"
        shutil.copytree(living.root, copy)
        before = logs.tree(living.root)
        result = clean(living, living.root, round_, InProcessEngine(), RunLimits())
        judge(living.partition, expected, result, before, living.rules(round_).log_start)
        limits = RunLimits(whole_log_bytes=0)
        if life.in_waves:
            config, now_ms = living.settings(round_), living.clock.now_ms()
            limits = logs.one_group_a_wave(copy, config, now_ms, times=2 if cut else 1)
        with pytest.MonkeyPatch.context() as patch:
            splits_of_any_size(patch)
            if cut:
                cut_at_every_batch(patch)
            else:
                patch.setattr(LogWork, "splits", property(cut_up))
            engine = InProcessEngine(
                life.buckets,
                min_clean_to_dirty_ratio=0 if life.buckets > 1 else 4,
                parallelism=8 if cut else 1,
            )
            spread = clean(living, copy, round_, engine, limits)
        assert (spread.status, spread.discarded) == (result.status, result.discarded)
        assert logs.tree(copy) == logs.tree(living.root)


def cut_up(work: LogWork) -> list[InputSplit]:
    """As many tasks would extract it."""
    runs = splits_by_task(work.segments, work.end, 7, may_cut=not work.has_message_sets)
    return [split for run in runs for split in run]


def clean(living: Living, root: Path, round_: Round, engine: InProcessEngine, limits: RunLimits) -> LogResult:
    return logs.run(
        root,
        config=living.settings(round_),
        now_ms=living.clock.now_ms(),
        engine=lambda: engine,
        limits=limits,
    )


def judge(
    partition: Path,
    expected: oracle.Expected,
    result: LogResult,
    before: dict[str, bytes],
    log_start: int,
) -> None:
    """What came out, and that nothing else moved but what lay below the log start."""
    assert result.status in (CLEANED, NOTHING_TO_DO), result
    after = logs.tree(partition.parent)
    bases = sorted(int(name[-24:-4]) for name in before if name.endswith(".log"))
    if result.status == NOTHING_TO_DO or not expected.segments:
        going = [f"{partition.name}/{base:020d}" for base in judging.below(log_start, bases)]
        assert bool(going) == (result.status == CLEANED)
        assert not any(
            segment.batches for base, segment in expected.segments.items() if base >= expected.first_dirty
        )
        assert {name: data for name, data in after.items() if "/" in name} == {
            name: data for name, data in before.items() if "/" in name and not name.startswith(tuple(going))
        }
        return
    judging.assert_cleaned(expected, partition, result, log_start)
    check_indexes(partition)
    active = f"{partition.name}/{expected.end:020}"
    assert _below(after, partition.name, active) == _below(before, partition.name, active)


def _below(files: dict[str, bytes], folder: str, minimum: str = "") -> dict[str, bytes]:
    """The files of a folder, from one on."""
    return {name: data for name, data in files.items() if name.startswith(folder) and name >= minimum}


@settings(
    max_examples=examples(410, of=32),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(lives())
def test_random_lives_of_logs(life: Life) -> None:
    with tempfile.TemporaryDirectory(dir=in_memory.FOLDER) as folder:
        live(life, Path(folder), cut=False)


@settings(
    max_examples=examples(200, of=32),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(lives())
def test_random_lives_of_logs_whose_groups_are_cut_at_every_batch(life: Life) -> None:
    with tempfile.TemporaryDirectory(dir=in_memory.FOLDER) as folder:
        live(life, Path(folder), cut=True)
