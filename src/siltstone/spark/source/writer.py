"""``df.write`` and ``df.writeStream`` with ``format("siltstone")``: tasks stage batches, the driver commits.

Spark makes a writer in a process beside the driver and ships it to the tasks and the commit; of a stream
it makes another one for the commit, which goes by what the tasks tell: their messages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from siltstone.base.errors import UsageError
from siltstone.spark.internals import QUERY_ID
from siltstone.spark.tasks import pass_over_imports
from siltstone.tables.commit import StagedFile, discard_staged
from siltstone.tables.writing import WriteOptions, WritePlan, abort_plan, commit_plan, plan_write, stage_task


@dataclass
class StagedMessage(WriterCommitMessage):
    """What one task tells the driver; ``query_id``: of a stream."""

    staged: StagedFile
    query_id: str | None = None


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise UsageError('a log is only appended to: write with mode("append")')


def _stage(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> StagedMessage:
    pass_over_imports()
    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0
    query_id = context.getLocalProperty(QUERY_ID) if context is not None else None
    return StagedMessage(staged=stage_task(plan, batches, task=task), query_id=query_id)


def _staged_of(messages: Sequence[WriterCommitMessage | None]) -> list[StagedFile]:
    """What the tasks that ended have told."""
    return [each.staged for each in messages if isinstance(each, StagedMessage)]


class BatchWriter(DataSourceArrowWriter):
    """Writes one job's rows."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        _refuse_overwrite(overwrite)
        self._plan = plan_write(options, schema.fieldNames())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: stage its rows."""
        return _stage(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: append all that was staged, once."""
        commit_plan(self._plan, _staged_of(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: nothing of it stays."""
        abort_plan(self._plan, _staged_of(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream's micro-batches, each once by the stream's id (or ``writeId``) and its number."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        self._options, self._names = options, tuple(schema.fieldNames())
        _refuse_overwrite(overwrite)
        self._plan = plan_write(options, self._names, streaming=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: stage its rows."""
        return _stage(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: append all that was staged of this batch, once."""
        told = [each for each in messages if isinstance(each, StagedMessage)]
        query_id = next((each.query_id for each in told if each.query_id), None)
        staged = _staged_of(messages)
        if any(each.records for each in staged):
            write_id = self._options.write_id or query_id
            if write_id is None:
                raise UsageError("the stream has no id: give the option writeId")
            commit_plan(self._plan, staged, write_id=write_id, epoch=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: what the tasks of this batch have told of goes."""
        with contextlib.suppress(OSError):
            discard_staged(_staged_of(messages))
