"""A log that is cleaned in waves of one group, runs of it that stop half-way, and what they leave."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from siltstone.base.interruption import CriticalSection
from siltstone.compaction.engine import Engine, InProcessEngine
from siltstone.compaction.inplace.cleaner import Cleaner, RunLimits
from siltstone.compaction.inplace.destination import Destination, InPlace
from siltstone.compaction.inplace.planning import LogState, PlanOptions
from siltstone.compaction.report import LogResult
from siltstone.compaction.staging import GroupReport, LogReport, RetainedFile
from siltstone.compaction.work import Group, LogWork
from siltstone.log.checkpoints import read_checkpoint
from siltstone.log.directory import LogDirectory
from siltstone.log.names import TopicPartition
from tests.support.cleaning import logs
from tests.support.cleaning.logs import DAY, NOW, Rec
from tests.support.golden_sets import write_checkpoint

WAVES = RunLimits(whole_log_bytes=0, wave_bytes=1)
CONFIG = {"segment.bytes": 1, "delete.retention.ms": DAY}
GROUPS = 5
STAGING = Path("topic-0") / ".siltstone"


def write(path: Path, *, checkpoint: int | None = None, single: bool = False) -> Path:
    """Five groups of one segment: each loses records, the second all of them; one has a tombstone.
    ``single``: each record is a batch."""
    rows = [
        [("a", "1"), ("b", "1"), ("only here", "1")],
        [("c", "1"), ("a", "2")],
        [("b", "2"), ("d", "1"), ("gone", None)],
        [("c", "2"), ("d", "2"), ("e", "1")],
        [("e", "2"), ("a", "3"), ("e", "3")],
        [("b", "3")],
    ]
    segments: dict[int, list[bytes]] = {}
    base = 0
    for row in rows:
        records = [
            Rec(offset=base + i, key=key.encode(), value=None if value is None else value.encode())
            for i, (key, value) in enumerate(row)
        ]
        segments[base] = [logs.batch([record]) for record in records] if single else [logs.batch(records)]
        base += len(row)
    return logs.write_log(path, segments, checkpoint=checkpoint)


class Counting(InProcessEngine):
    """Counts extractions and rewritten groups; ``stop`` is raised when that many groups were rewritten."""

    def __init__(self, after: int = 1 << 30, stop: BaseException | None = None, parallelism: int = 1) -> None:
        super().__init__(3, parallelism=parallelism)
        self.after, self.stop = after, stop
        self.gathered, self.rewritten = 0, 0

    def write_retained_offsets(self, work: LogWork, waves: Sequence[Sequence[Group]]) -> LogReport:
        self.gathered += 1
        return super().write_retained_offsets(work, waves)

    def rewrite(self, work: LogWork, retained: Sequence[RetainedFile]) -> list[GroupReport]:
        if self.rewritten >= self.after and self.stop is not None:
            raise self.stop
        self.rewritten += len({file.group_range.group for file in retained})
        return super().rewrite(work, retained)


def run(
    path: Path,
    *,
    engine: InProcessEngine | None = None,
    name: str = "2-again",
    config: Mapping[str, object] | None = None,
    now_ms: int = NOW,
    **choices: bool,
) -> LogResult:
    """Clean in waves."""
    used = engine or Counting()
    return logs.run(
        path,
        config={**CONFIG, **(config or {})},
        engine=lambda: used,
        destination=InPlace(name),
        limits=WAVES,
        now_ms=now_ms,
        **choices,
    )


def write_logs(path: Path, count: int) -> None:
    """A directory of so many such logs."""
    write(path)
    for number in range(1, count):
        shutil.copytree(path / "topic-0", path / f"topic-{number}")
    write_checkpoint(
        path / "replication-offset-checkpoint", {("topic", number): 1 << 40 for number in range(count)}
    )


def run_all(
    path: Path,
    engine: Engine,
    destination: Destination | None = None,
    limits: RunLimits = WAVES,
    *,
    critical: CriticalSection = contextlib.nullcontext,
    results: list[LogResult] | None = None,
) -> list[LogResult]:
    """Clean all logs of a directory; ``results`` gets the results also after an interrupt."""
    with LogDirectory.open(path) as directory:
        states = [
            LogState(
                topic_partition=topic_partition,
                path=partition,
                directory=directory,
                config=logs.settings(CONFIG),
            )
            for topic_partition, partition in directory.partitions.items()
        ]
        cleaner = Cleaner(lambda: engine, destination or InPlace("run"), limits, critical=critical)
        try:
            return cleaner.run(states, PlanOptions(now_ms=NOW, force=True, drop_keyless=True))
        finally:
            if results is not None:
                results += cleaner.results


def interrupt(path: Path, after: int, stop: BaseException | None = None) -> None:
    """A run that ends when some groups are swapped in."""
    stop = stop or KeyboardInterrupt()
    try:
        run(path, engine=Counting(after, stop), name="1-first")
    except BaseException as error:
        assert error is stop
    assert not (path / STAGING).exists()


def leave_files(path: Path) -> None:
    """What runs that died, of this version or of one that had a journal, leave: none of it is true."""
    folder = path / STAGING / "1-first"
    (path / STAGING / "0-before" / "deep").mkdir(parents=True)
    (path / STAGING / "a-file").touch()
    folder.mkdir()
    (folder / "journal.json").write_bytes(b'{"version":2,"sha256":"00","log":{"end":1,"checked":[]}}')
    for base in (0, 3, 5, 8, 11):
        (folder / f"{base:020d}.0.retained").write_bytes(b"")
        (folder / f"{base:020d}.0.log").write_bytes(b"half a file")
        (folder / f"{base:020d}.0.piece").write_bytes(b"half a piece")


def outcome(path: Path) -> tuple[dict[int, bytes], dict[TopicPartition, int], bool]:
    """What a finished run leaves: logs, checkpoint, and no folder."""
    has_staging = (path / STAGING).exists()
    return logs.logs_of(path / "topic-0"), read_checkpoint(path / "cleaner-offset-checkpoint"), has_staging
