"""A power cut at every step of a whole compaction: both phases, merging, the key index, commit, deletion.

``test_ledger_crashes`` has the store with a compactor made by hand; here the real one writes the files. After
each image the log is compacted to its end, for which the key indexes have to be what they were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from siltstone.base.clock import ManualClock
from siltstone.compaction.ledger.compactor import InProcessCompactionEngine, TwoPhaseCompactor
from siltstone.compaction.ledger.work import CompactionSettings
from siltstone.log.names import TopicPartition
from tests.support.cleaning.logs import NOW
from tests.support.crash.breaking import leave_out_syncs
from tests.support.crash.disk import DROP, KEEP, Disk, Variant
from tests.support.crash.ledgers import (
    TABLE,
    LogOnDisk,
    Recorded,
    Scenario,
    both,
    check_names,
    check_view,
    record,
    retain,
    start,
    table,
    view,
)
from tests.support.thoroughness import SEEDS, THOROUGH, boundaries, turn

pytestmark = pytest.mark.random

WHERE, END = TopicPartition("topic", 0), 16
SMALL = CompactionSettings(segment_bytes=300, index_interval=50)


@dataclass(frozen=True)
class NamedLogOnDisk(LogOnDisk):
    """A log on disk with a name, as a compactor needs it."""

    topic_partition: TopicPartition = WHERE


def compacting(mark: int, *, buckets: int = 1) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        compactor = TwoPhaseCompactor(
            InProcessCompactionEngine(buckets),
            clock=ManualClock(NOW),
            one_task_bytes=-1 if buckets > 1 else 1 << 20,
            settings=SMALL,
        )
        compactor.compact(NamedLogOnDisk(path / "topic-0", mark))

    return act


SCENARIOS = {
    "first": Scenario(compacting(12)),
    "spread": Scenario(compacting(12, buckets=2)),
    "second": Scenario(compacting(END), compacting(14)),
    "fold": Scenario(compacting(12), compacting(8)),
    "originals go after": Scenario(both(compacting(12), retain), compacting(8)),
}


def failures(scenario: Scenario, known: Recorded, variants: list[Variant], maximum: int = 1000) -> list[str]:
    """Build every image, read it, start, go on to the end; what failed, one line each, up to ``maximum``."""
    images: set[int] = set()
    messages = []
    root, steps = known.recording.root, known.recording.steps
    for count in boundaries(len(steps) + 1):
        disk = Disk(known.recording, count)
        for variant in turn(count, variants):
            mixed = variant * 1009 + count if isinstance(variant, int) else variant
            if len(messages) >= maximum or not disk.build(mixed, images):
                continue
            try:
                check_view(root, known)
                start(root)
                compacting(END)(root)
                check_names(root / "topic-0")
                assert table(view(root)) == TABLE
                assert len(view(root)) == len(TABLE), "one record a key"
            except Exception as error:
                what = steps[count].operation if count < len(steps) else "end"
                messages.append(f"{count} ({what}) {mixed}: {type(error).__name__}: {error}"[:400])
    return messages


@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_was_on_disk_by_then(tmp_path: Path, name: str) -> None:
    scenario = SCENARIOS[name]
    known = record(scenario, tmp_path / "log")
    assert known.before != known.after
    assert failures(scenario, known, [KEEP, DROP, *SEEDS]) == []


def test_what_is_done_is_durable(tmp_path: Path) -> None:
    known = record(SCENARIOS["second"], tmp_path / "log")
    disk = Disk(known.recording, len(known.recording.steps))
    for variant in (DROP, *range(20 if THOROUGH else 5)):
        disk.build(variant)
        assert view(known.recording.root) == known.after


BROKEN = {
    "new logs are not synced": lambda path: "run-" in path and path.endswith(".log"),
    "new indexes are not synced": lambda path: "run-" in path and path.endswith("index"),
    "key indexes are not synced": lambda path: path.endswith("/keys"),
    "names in a generation are not synced": lambda path: Path(path).name.startswith("generation-"),
}


@pytest.mark.long  # it tests the harness
@pytest.mark.parametrize("name", BROKEN)
def test_the_harness_notices_a_sync_that_is_missing(tmp_path: Path, name: str) -> None:
    scenario = SCENARIOS["first"]
    with pytest.MonkeyPatch.context() as patch:
        leave_out_syncs(patch, BROKEN[name])
        known = record(scenario, tmp_path / "log")
    assert failures(scenario, known, [DROP], maximum=1)
