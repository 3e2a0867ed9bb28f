"""Which logs go through one task each, and which are spread."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.inplace import cleaner
from siltstone.compaction.inplace.cleaner import Cleaner, RunLimits
from siltstone.compaction.inplace.destination import InPlace
from siltstone.compaction.inplace.planning import LogState, PlanOptions
from siltstone.compaction.report import CLEANED
from siltstone.compaction.staging import LogReport
from siltstone.compaction.work import LogWork
from siltstone.log.checkpoints import write_checkpoint
from siltstone.log.directory import LogDirectory
from siltstone.log.names import TopicPartition
from tests.support.cleaning import logs
from tests.support.cleaning.logs import one

SIZE = 10 * len(one(0, "key"))
"""Bytes of a log's closed segment."""
SIXTEENTH = -(-SIZE // 16)


class Remembering(InProcessEngine):
    """Remembers which way each log went."""

    parallelism = 2

    def __init__(self, parallelism: int) -> None:
        super().__init__()
        self.parallelism = parallelism
        self.whole: list[str] = []
        self.spread: list[str] = []
        self.jobs: list[int] = []

    def clean_whole(self, works: Sequence[LogWork]) -> Iterator[LogReport]:
        self.whole += [work.name for work in works]
        self.jobs.append(len(works))
        return super().clean_whole(works)

    def clean_distributed(self, work: LogWork) -> LogReport:
        self.spread.append(work.name)
        return super().clean_distributed(work)


def clean(root: Path, count: int, whole_log_bytes: int, parallelism: int = 2) -> Remembering:
    """So many logs of ``SIZE`` bytes."""
    engine = Remembering(parallelism)
    first = logs.write_log(root, {0: [one(offset, "key") for offset in range(10)], 10: [one(10, "key")]})
    for number in range(1, count):
        shutil.copytree(first, root / f"topic-{number}")
    ends = {TopicPartition("topic", number): 11 for number in range(count)}
    write_checkpoint(root / "replication-offset-checkpoint", ends)
    with LogDirectory.open(root) as directory:
        states = [
            LogState(
                topic_partition=topic_partition, path=path, directory=directory, config=logs.settings({})
            )
            for topic_partition, path in directory.partitions.items()
        ]
        run = Cleaner(lambda: engine, InPlace("run"), RunLimits(whole_log_bytes=whole_log_bytes))
        results = run.run(states, PlanOptions(now_ms=logs.NOW, force=True))
    assert [result.status for result in results] == [CLEANED] * count
    return engine


@pytest.mark.parametrize(
    ("count", "whole_log_bytes", "whole"),
    [
        pytest.param(1, SIZE, True, id="small"),
        pytest.param(1, SIZE - 1, False, id="one larger log takes all workers"),
        pytest.param(2, SIZE - 1, True, id="enough of them for all workers"),
        pytest.param(2, SIZE // 4, True, id="four times as large"),
        pytest.param(2, SIZE // 4 - 1, False, id="too large"),
        pytest.param(3, 0, False, id="never whole"),
    ],
)
def test_larger_logs_go_whole_where_all_workers_have_one(
    tmp_path: Path, count: int, whole_log_bytes: int, whole: bool
) -> None:
    engine = clean(tmp_path, count, whole_log_bytes)
    assert (len(engine.whole), len(engine.spread)) == ((count, 0) if whole else (0, count))


@pytest.mark.parametrize(
    ("count", "parallelism", "whole_log_bytes", "jobs"),
    [
        pytest.param(4, 4, SIXTEENTH, [4], id="many workers and as many logs"),
        pytest.param(9, 4, SIXTEENTH, [4, 4, 1], id="several jobs, so that an interrupt costs one"),
        pytest.param(4, 4, SIXTEENTH - 1, [], id="too large"),
        pytest.param(3, 4, SIXTEENTH, [], id="too few of them"),
        pytest.param(4, 3, SIXTEENTH, [], id="too few workers"),
        pytest.param(9, 4, SIZE // 4, [9], id="four times as large, in one job as before"),
    ],
)
def test_with_many_workers_even_larger_logs_go_whole(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    parallelism: int,
    whole_log_bytes: int,
    jobs: list[int],
) -> None:
    """Four workers are many here, and a job has one log for each."""
    monkeypatch.setattr(cleaner, "_MANY_WORKERS", 4)
    monkeypatch.setattr(cleaner, "_LOGS_PER_WORKER", 1)
    engine = clean(tmp_path, count, whole_log_bytes, parallelism)
    assert engine.jobs == jobs and len(engine.spread) == (0 if jobs else count)
