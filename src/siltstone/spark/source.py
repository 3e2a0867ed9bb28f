"""Siltstone as a data source of Spark, ``format("siltstone")``: Spark's names for ``siltstone.tables``.

Spark finds ``SiltstoneSource`` by the top-level module ``pyspark_siltstone``. It plans a query in a process
beside the driver, ships the reader or writer, and calls ``read`` and ``write`` in the tasks.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import Filter, InputPartition, WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import DataType, StructType

from siltstone.base.errors import UsageError
from siltstone.spark.internals import QUERY_ID
from siltstone.spark.tasks import freeze_imports
from siltstone.tables.commit import StagedOutput, discard_staged
from siltstone.tables.following import Follower, offsets_from_json, offsets_to_json
from siltstone.tables.options import ReadOptions
from siltstone.tables.splits import NO_FILTERS, PushedFilters, TaskSplit
from siltstone.tables.table import plan, read_split, schema_of
from siltstone.tables.writing import WriteOptions, WritePlan, abort_plan, commit_plan, plan_write, stage_task

_METADATA_KEY = "siltstone"


class SiltstoneSource(datasource.DataSource):
    """Log directories as tables; ``ReadOptions`` and ``WriteOptions`` list the options.

    A table in Spark's catalog brings its location and options only when it is made (Spark 4.3: a query of it
    comes with none of them). A query does bring the schema that we gave then: its metadata keeps them.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "siltstone"

    def schema(self) -> StructType:
        """The schema of Spark's Kafka source, of the columns asked for."""
        try:
            options = ReadOptions.of(self.options)
        except UsageError as error:
            # Spark does not say what a schema is for; the error that counts is that of a batch query.
            try:
                options = ReadOptions.of(self.options, is_streaming=True)
            except UsageError:
                raise error from None
        schema = from_arrow_schema(schema_of(options))
        raw_options = _lower_names(self.options)
        if "location" in raw_options and schema.fields:
            schema.fields[0].metadata = {_METADATA_KEY: raw_options}
        return schema

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        """For a batch query. Raises UsageError for a schema that is not the table's."""
        options = ReadOptions.of(self._with_catalog_options(schema))
        own = from_arrow_schema(schema_of(options))
        if _columns(schema) != _columns(own):
            raise UsageError(
                f"the schema of a log cannot be chosen: it is {own.simpleString()}",
                advice="leave out schema(), and choose columns with the option 'columns'",
            )
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:
        """For ``readStream``."""
        return StreamReader(ReadOptions.of(self._with_catalog_options(schema), is_streaming=True))

    def _with_catalog_options(self, schema: StructType) -> dict[str, str]:
        """The query's options over those that its table was made with."""
        kept: dict[str, str] = schema.fields[0].metadata.get(_METADATA_KEY, {}) if schema.fields else {}
        return kept | _lower_names(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:
        """For ``df.write``. Raises UsageError, DirectoryLockedError, what opening a directory raises."""
        return BatchWriter(WriteOptions.of(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> datasource.DataSourceStreamWriter:
        """For ``df.writeStream``. Raises as ``writer`` does."""
        return StreamWriter(WriteOptions.of(self.options), schema, overwrite)


def _lower_names(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): text for name, text in options.items()}


def _columns(schema: StructType) -> list[tuple[str, DataType]]:
    return [(field.name, field.dataType) for field in schema.fields]


# Spark's filters as a ``PushedFilters``: they only make a query read less, Spark applies all of them again.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def pushed_filters_of(filters: Sequence[Filter]) -> PushedFilters:
    """What all filters together leave; those that do not bound where a row may be are passed over."""
    return functools.reduce(PushedFilters.__and__, map(_pushed_filter_of, filters), NO_FILTERS)


def _pushed_filter_of(condition: Filter) -> PushedFilters:
    value: Any = getattr(condition, "value", None)
    match ".".join(getattr(condition, "attribute", ())).lower(), condition:
        case "topic", datasource.EqualTo() | datasource.EqualNullSafe():
            return PushedFilters(topics=frozenset([value]))
        case "topic", datasource.In():
            return PushedFilters(topics=frozenset(value))
        case "partition", datasource.EqualTo() | datasource.EqualNullSafe():
            return PushedFilters(partitions=frozenset([value]))
        case "partition", datasource.In():
            return PushedFilters(partitions=frozenset(value))
        case "offset", datasource.In() if numbers := [item for item in value if isinstance(item, int)]:
            return PushedFilters(start_offset=min(numbers), end_offset=max(numbers) + 1)
        case "offset", _ if isinstance(value, int):
            return _pushed_offsets_of(condition, value)
        case (
            "timestamp",
            datasource.GreaterThan()
            | datasource.GreaterThanOrEqual()
            | datasource.EqualTo()
            | datasource.EqualNullSafe(),
        ) if isinstance(value, datetime) and value.tzinfo is not None:
            # Only a lower bound helps: a log may hold early records anywhere.
            return PushedFilters(from_timestamp_ms=(value - _EPOCH) // timedelta(milliseconds=1))
    return NO_FILTERS


def _pushed_offsets_of(condition: Filter, value: int) -> PushedFilters:
    match condition:
        case datasource.EqualTo() | datasource.EqualNullSafe():
            return PushedFilters(start_offset=value, end_offset=value + 1)
        case datasource.GreaterThan():
            return PushedFilters(start_offset=value + 1)
        case datasource.GreaterThanOrEqual():
            return PushedFilters(start_offset=value)
        case datasource.LessThan():
            return PushedFilters(end_offset=value)
        case datasource.LessThanOrEqual():
            return PushedFilters(end_offset=value + 1)
    return NO_FILTERS


class _PushFilters:
    """``pushFilters`` that Spark does not refuse where pushing filters is off (the default).

    Spark plans a query in one of two ways. With ``spark.sql.python.filterPushdown.enabled`` it calls
    ``pushFilters``. Without, it fails when the method is not the one of the base class, judged by its
    ``__func__``: this one shows that, since to leave filters to Spark is all that it does in any case.
    """

    __func__: Any = staticmethod(datasource.DataSourceReader.pushFilters)

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: Sequence[Filter]) -> Iterable[Filter]:
        self._reader.pushed_filters = pushed_filters_of(filters)
        return filters


def _read(partition: InputPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    freeze_imports()
    return read_split(partition.value, options)


class BatchReader(datasource.DataSourceReader):
    """Reads a table. Filters are used to read less and are all left for Spark to apply."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self.pushed_filters = NO_FILTERS
        self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]

    def partitions(self) -> list[InputPartition]:
        """One a split; a split without pieces where there is nothing to read."""
        splits = plan(self._options, self.pushed_filters) or [TaskSplit(pieces=())]
        return [InputPartition(split) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one split."""
        return _read(partition, self._options)


class StreamReader(datasource.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream: offsets and splits on the driver, in one process as long as the query runs.

    Spark writes the offsets into the checkpoint before a micro-batch is read, so each record is read once by
    its offset (``siltstone.tables.following``).
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    @cached_property
    def _follower(self) -> Follower:
        """Made where it is needed: not in the tasks."""
        return Follower(self._options)

    def initialOffset(self) -> dict[str, Any]:
        """Where a new stream starts."""
        return offsets_to_json(self._follower.initial_offsets())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch, within the limit."""
        maximum = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return offsets_to_json(self._follower.next_end(offsets_from_json(start), maximum))

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxOffsetsPerTrigger``."""
        maximum = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if maximum is None else ReadMaxRows(maximum)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The logs' ends, for the query's progress."""
        return offsets_to_json(self._follower.log_ends())

    def prepareForTriggerAvailableNow(self) -> None:
        """Leave what is appended from now on to the next run."""
        self._follower.stop_at_current_ends()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One a split."""
        return [
            InputPartition(split)
            for split in self._follower.splits(offsets_from_json(start), offsets_from_json(end))
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one split."""
        return _read(partition, self._options)


# Writing: tasks stage batches, the driver commits. Spark ships the writer to the tasks and to the commit; for
# a stream's commit it makes another one, which knows only what the tasks' messages say.


@dataclass
class StagedMessage(WriterCommitMessage):
    """What one task reports to the driver; ``query_id``: of a stream."""

    staged: StagedOutput
    query_id: str | None = None


Messages = list[WriterCommitMessage | None]


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise UsageError("a log cannot be overwritten", advice='write with mode("append")')


def _stage(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> StagedMessage:
    freeze_imports()
    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0
    query_id = context.getLocalProperty(QUERY_ID) if context is not None else None
    return StagedMessage(staged=stage_task(plan, batches, task=task), query_id=query_id)


def _staged_of(messages: Messages) -> list[StagedOutput]:
    """What the tasks that ended have staged."""
    return [message.staged for message in messages if isinstance(message, StagedMessage)]


class BatchWriter(datasource.DataSourceArrowWriter):
    """Writes one job's rows."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        _refuse_overwrite(overwrite)
        self._plan = plan_write(options, schema.fieldNames())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: stage its rows."""
        return _stage(self._plan, iterator)

    def commit(self, messages: Messages) -> None:
        """On the driver: append all that was staged, once."""
        commit_plan(self._plan, _staged_of(messages))

    def abort(self, messages: Messages) -> None:
        """On the driver: remove all that was staged."""
        abort_plan(self._plan)


class StreamWriter(datasource.DataSourceStreamArrowWriter):
    """Writes a stream's micro-batches, each once by the stream's id (or ``writeId``) and its number."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        _refuse_overwrite(overwrite)
        self._write_id = options.write_id
        self._plan = plan_write(options, schema.fieldNames(), is_streaming=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: stage its rows."""
        return _stage(self._plan, iterator)

    def commit(self, messages: Messages, batchId: int) -> None:
        """On the driver: append all that was staged of this micro-batch, once."""
        ids = (message.query_id for message in messages if isinstance(message, StagedMessage))
        staged = _staged_of(messages)
        if any(file.record_count for file in staged):
            write_id = self._write_id or next(filter(None, ids), None)
            if write_id is None:
                raise UsageError("the stream has no id", advice="set the option writeId")
            commit_plan(self._plan, staged, write_id=write_id, epoch=batchId)

    def abort(self, messages: Messages, batchId: int) -> None:
        """On the driver: remove what the tasks of this micro-batch have staged."""
        with contextlib.suppress(OSError):
            discard_staged(_staged_of(messages))
