"""A crash at every step of a manager's life: topics made, changed and deleted, records appended and deleted.

The operations of one run are recorded. For each prefix of them, and several things that could be on disk
then, the directories are opened again: what they hold is what was acknowledged last, or that and the call
that was under way, whole; and a second start finds the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.log.checkpoints import read_topic_id
from siltstone.log.names import TopicPartition
from siltstone.runtime import topics as topic_registry
from siltstone.runtime.manager import LogManager
from tests.support.crash.disk import DROP, KEEP, Disk, Recording, Variant, recorded
from tests.support.log.managed import NOW, append, opened, values
from tests.support.thoroughness import boundaries, turn

pytestmark = pytest.mark.random

State = dict[str, object]
"""Topics with their settings, and of each partition: its start, its end, the records that can be read, and
whether its directory has its topic's id."""
VARIANTS: tuple[Variant, ...] = (KEEP, DROP, 1, 2, 3)
DIRECTORIES = ("a", "b")


def state_of(manager: LogManager) -> State:
    state: State = {name: dict(manager.topics.describe(name).config) for name in manager.topics.names()}
    for topic_partition in manager:
        log = manager[topic_partition]
        has_id = read_topic_id(log.directory) == manager.topics.describe(topic_partition.topic).topic_id
        state[str(topic_partition)] = (log.log_start_offset, log.log_end_offset, values(log), has_id)
    return state


@dataclass(kw_only=True)
class Run:
    """A recorded run: after each acknowledged call, how many operations there were, and the state."""

    recording: Recording
    root: Path
    acknowledged: list[tuple[int, State]] = field(default_factory=list)

    def around(self, count: int) -> list[State]:
        """The states that may be on disk after the first ``count`` operations."""
        returned = [number for number, (steps, _) in enumerate(self.acknowledged) if steps <= count]
        return [state for _, state in self.acknowledged[returned[-1] : returned[-1] + 2]]


def run(root: Path, calls: list[Callable[[LogManager], object]]) -> Run:
    directories = [root / directory for directory in DIRECTORIES]
    opened(*directories).close()
    with recorded(root) as recording:
        result = Run(recording=recording, root=root)
        with opened(*directories, clock=ManualClock(NOW)) as manager:
            result.acknowledged.append((0, state_of(manager)))
            for call in calls:
                call(manager)
                result.acknowledged.append((len(recording.steps), state_of(manager)))
    return result


def lost(undisturbed: Run, count: int, variant: Variant, alike: set[int]) -> str | None:
    """What is wrong with one image of the disk; None: nothing, or an equal image was checked before."""
    if not Disk(undisturbed.recording, count).build(variant, alike):
        return None
    directories = [undisturbed.root / directory for directory in DIRECTORIES]
    states = []
    for _ in range(2):
        manager = opened(*directories, clock=ManualClock(NOW))
        states.append(state_of(manager))
        refused = manager.refused or manager.offline
        manager.close()
        if refused:
            return f"{count} {variant}: {refused}"
    if states[0] != states[1]:
        return f"{count} {variant}: first {states[0]}, then {states[1]}"
    if states[0] not in undisturbed.around(count):
        return f"{count} {variant}: {states[0]}, not one of {undisturbed.around(count)}"
    return None


def all_lost(undisturbed: Run, *, every: int = 1) -> list[str]:
    alike: set[int] = set()
    counts = boundaries(len(undisturbed.recording.steps) + 1, every)
    tried = ((count, variant) for count in counts for variant in turn(count // every, VARIANTS))
    losses = (lost(undisturbed, count, variant, alike) for count, variant in tried)
    return [loss for loss in losses if loss is not None]


def synced(topic_partition: TopicPartition, count: int) -> Callable[[LogManager], object]:
    def call(manager: LogManager) -> None:
        append(manager[topic_partition], count)
        manager[topic_partition].flush()

    return call


EVENTS = TopicPartition("events", 0)


def test_changes_of_topics_are_whole_and_durable(tmp_path: Path) -> None:
    undisturbed = run(
        tmp_path / "data",
        [
            lambda manager: manager.topics.create("events", partitions=2, config={"retention.ms": "-1"}),
            lambda manager: manager.topics.alter("events", {"flush.ms": "1000"}),
            lambda manager: manager.topics.add_partitions("events", 3),
            lambda manager: manager.get_or_create(TopicPartition("other", 1)),
            lambda manager: manager.topics.delete("events"),
            lambda manager: manager.topics.create("events", partitions=1),
        ],
    )
    assert all_lost(undisturbed, every=2) == []


def test_partitions_that_are_created_together(tmp_path: Path) -> None:
    undisturbed = run(
        tmp_path / "data",
        [
            lambda manager: manager.topics.create("events", partitions=3),
            synced(TopicPartition("events", 2), 1),
        ],
    )
    assert all_lost(undisturbed) == []


def test_acknowledged_changes_of_records_are_durable(tmp_path: Path) -> None:
    undisturbed = run(
        tmp_path / "data",
        [
            lambda manager: manager.topics.create("events", config={"segment.bytes": "160"}),
            synced(EVENTS, 1),
            synced(EVENTS, 2),
            lambda manager: manager.delete_records(EVENTS, 2),
            synced(EVENTS, 1),
            lambda manager: manager.upkeep.delete_old_segments(),
            lambda manager: manager.upkeep.write_recovery_points(),
            lambda manager: manager.truncate_to(EVENTS, 3),
            synced(EVENTS, 2),
        ],
    )
    assert all_lost(undisturbed) == []


def test_a_topic_made_again_does_not_begin_where_the_old_one_ended(tmp_path: Path) -> None:
    undisturbed = run(
        tmp_path / "data",
        [
            lambda manager: manager.topics.create("events"),
            synced(EVENTS, 4),
            lambda manager: manager.delete_records(EVENTS, 3),
            lambda manager: manager.topics.delete("events"),
            lambda manager: manager.topics.create("events"),
            synced(EVENTS, 1),
        ],
    )
    assert all_lost(undisturbed) == []


@pytest.mark.long  # it tests the harness
@pytest.mark.parametrize("broken", ["registry", "log start", "sync", "sync together"])
def test_the_harness_finds_what_is_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    real_replace = files.replace

    def replace(path: Path, data: bytes) -> None:
        out = {"registry": topic_registry.TOPICS_FILE, "log start": "log-start-offset-checkpoint"}
        if Path(path).name != out.get(broken):
            real_replace(path, data)
        else:
            Path(path).unlink(missing_ok=True)
            with files.Writer(path) as writer:
                writer.write(data)

    if broken == "sync":
        monkeypatch.setattr("siltstone.log.segment.LiveSegment.sync", lambda segment: None)
    if broken == "sync together":
        monkeypatch.setattr(files, "sync_together", lambda paths: None)
    monkeypatch.setattr(files, "replace", replace)
    undisturbed = run(
        tmp_path / "data",
        [
            lambda manager: manager.topics.create("events"),
            synced(EVENTS, 4),
            lambda manager: manager.delete_records(EVENTS, 3),
        ],
    )
    monkeypatch.undo()
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    try:
        assert all_lost(undisturbed) != []
    except Exception as error:
        assert "siltstone" in type(error).__module__
