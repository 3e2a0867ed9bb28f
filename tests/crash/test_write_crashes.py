"""A crash at every step of a job that writes to two partitions, and of the job that runs again after it.

The operations of one run are recorded, staging included. For each prefix of them, and several things that
could be on disk then: a reader finds all of the job's records or none, and when the job runs again with the
same id they are all there once. When another job runs instead, the crashed one is there whole
or not at all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.log.names import STAGED_WRITES
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.log.reading import LogReader
from siltstone.runtime.manager import LogManager
from siltstone.tables.commit import load_writes
from tests.support.cleaning.logs import one
from tests.support.crash.disk import DROP, KEEP, Disk, Recording, Variant, recorded
from tests.support.log.views import FixedLog
from tests.support.tables.writes import CLOCK, job, left_over, numbered, values
from tests.support.thoroughness import THOROUGH, boundaries, turn

pytestmark = pytest.mark.random

VARIANTS: tuple[Variant, ...] = (KEEP, DROP, 1)
BEFORE = numbered(1000, 4)


def write(root: Path, write_id: str = "job") -> None:
    """Two tasks of several batches for both partitions."""
    tasks = [[numbered(first, 12), numbered(first + 12, 12)] for first in (0, 24)]
    job(root, *tasks, topic="users", writeId=write_id, batchSize="300")


def readable(root: Path) -> list[list[bytes | None]]:
    return [values(root, "users", partition) for partition in range(2)]


def to_the_end(root: Path) -> list[list[bytes | None]]:
    """The values of both partitions to the log's end, beyond the high watermark."""
    with ReadOnlyLogs([root], clock=CLOCK) as logs:
        views = [logs["users", n].view for n in range(2)]
        whole = [FixedLog(view._replace(high_watermark=view.log_end_offset)) for view in views]
        return [[record.value for record in LogReader(log).records()] for log in whole]


@pytest.fixture
def run(tmp_path: Path) -> tuple[Recording, list[list[bytes | None]], list[list[bytes | None]]]:
    root = tmp_path / "logs"
    with LogManager.open([root], clock=CLOCK) as manager:
        manager.topics.create("users", 2)
    job(root, [BEFORE], topic="users")
    before = readable(root)
    with recorded(root) as recording:
        write(root)
    return recording, before, readable(root)


def test_a_job_that_runs_again_leaves_each_record_once(
    run: tuple[Recording, list[list[bytes | None]], list[list[bytes | None]]],
) -> None:
    recording, before, after = run
    assert all(len(after[n]) > len(before[n]) + 10 for n in range(2))
    half = 0
    for count in boundaries(len(recording.steps) + 1):
        for variant in turn(count, VARIANTS):
            Disk(recording, count).build(variant)
            # A reader goes by the high watermark that was written down: it sees nothing that is half there.
            assert readable(recording.root) in (before, after), (count, variant)
            half += to_the_end(recording.root) not in (before, after)
            write(recording.root)
            assert readable(recording.root) == after, (count, variant)
            assert [write_.is_done for write_ in load_writes(recording.root)] == [True], (count, variant)
    assert half > (2 if THOROUGH else 0)


def test_another_job_finds_the_crashed_one_whole_or_not_at_all(
    run: tuple[Recording, list[list[bytes | None]], list[list[bytes | None]]],
) -> None:
    recording, before, after = run
    outcomes = set()
    for count in boundaries(len(recording.steps) + 1):
        for variant in turn(count, VARIANTS):
            Disk(recording, count).build(variant)
            job(recording.root, [BEFORE], topic="users", writeId="other")
            more = [before, after]
            present = readable(recording.root)
            whole = [[first[n] + before[n] for n in range(2)] for first in more]
            assert present in whole, (count, variant)
            outcomes.add(whole.index(present))
    assert outcomes == {0, 1}


def append_by_a_broker(root: Path) -> None:
    """A record for each partition; a broker may run between a crash and the next job."""
    with LogManager.open([root], clock=CLOCK) as manager:
        for partition in range(2):
            manager["users", partition].append(one(0, None, "broker"))


def test_a_crash_while_a_crashed_job_is_finished_behind_other_records(
    run: tuple[Recording, list[list[bytes | None]], list[list[bytes | None]]],
) -> None:
    recording, _, after = run
    begun = next(
        number for number, step in enumerate(recording.steps) if step.operation[1].endswith("writes.json.tmp")
    )
    appends = [n for n, step in enumerate(recording.steps) if n > begun and step.operation[0] == "write"]
    Disk(recording, appends[len(appends) // 2]).build(KEEP)
    append_by_a_broker(recording.root)
    with recorded(recording.root) as second:
        job(recording.root, [numbered(2000, 1)], topic="users", writeId="other")
    for count in boundaries(len(second.steps) + 1):
        for variant in turn(count, VARIANTS):
            Disk(second, count).build(variant)
            append_by_a_broker(second.root)
            write(second.root)
            present = [value for partition in readable(second.root) for value in partition]
            assert [value for value in present if value not in (b"v2000", b"broker")] == after[0] + after[
                1
            ], count


def test_staging_is_over_when_the_job_is(
    run: tuple[Recording, list[list[bytes | None]], list[list[bytes | None]]],
) -> None:
    recording = run[0]
    assert any(STAGED_WRITES in step.operation[1] for step in recording.steps)
    assert left_over(recording.root) == []
