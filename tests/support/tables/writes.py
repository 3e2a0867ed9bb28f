"""Writing in tests: rows as Arrow batches, the steps of a job, and the records of a log after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from siltstone.base.clock import ManualClock
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.log.reading import LogReader, Record
from siltstone.tables.commit import StagedOutput, Write
from siltstone.tables.writing import WriteOptions, WritePlan, commit_plan, plan_write, stage_task

NOW = 1_800_000_000_000
CLOCK = ManualClock(NOW)
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "partition": pa.int32(),
    "topic": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}


def rows(*records: dict[str, Any]) -> pa.RecordBatch:
    """An Arrow batch with the columns that the first record names."""
    names = list(records[0])
    return pa.RecordBatch.from_pylist(
        list(records), schema=pa.schema([(name, TYPES[name]) for name in names])
    )


def numbered(first: int, count: int, **more: Any) -> pa.RecordBatch:
    return rows(*[{"key": b"k%d" % n, "value": b"v%d" % n, **more} for n in range(first, first + count)])


def planned(path: Path, names: Sequence[str] = ("key", "value"), **options: str) -> WritePlan:
    return plan_write(WriteOptions.of({"path": str(path), **options}), names, clock=CLOCK)


def staged(plan: WritePlan, *tasks: Sequence[pa.RecordBatch]) -> list[StagedOutput]:
    return [stage_task(plan, batches, task=number, clock=CLOCK) for number, batches in enumerate(tasks)]


def job(path: Path, *tasks: Sequence[pa.RecordBatch], **options: str) -> Write:
    """A whole job, each argument one task's batches."""
    plan = planned(path, tasks[0][0].schema.names, **options)
    return commit_plan(plan, staged(plan, *tasks), clock=CLOCK)


def records(path: Path, topic: str, partition: int = 0) -> list[Record]:
    with ReadOnlyLogs([path], clock=CLOCK) as logs:
        return list(LogReader(logs[TopicPartition(topic, partition)]).records())


def values(path: Path, topic: str, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in records(path, topic, partition)]


def left_over(path: Path) -> list[str]:
    """The staged files and folders of writes, which a commit or an abort removes."""
    return sorted(str(entry.relative_to(path)) for entry in path.rglob(".siltstone-writes*"))
