"""Siltstone as a data source of Spark, ``format("siltstone")``: Spark's interfaces over ``siltstone.tables``.

Spark finds ``SiltstoneSource`` by the top-level module ``pyspark_siltstone``. Spark plans a query in a Python
process beside the driver, ships the reader or writer to the tasks, and calls ``read`` or ``write`` there.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar

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

from siltstone.base.errors import SiltstoneError, UsageError
from siltstone.spark.internals import QUERY_ID
from siltstone.spark.tasks import freeze_imports, one_line_errors
from siltstone.tables.commit import StagedOutput
from siltstone.tables.following import MicroBatchStream, offsets_from_json, offsets_to_json
from siltstone.tables.options import RECORDS_TABLE, ReadOptions
from siltstone.tables.splits import NO_FILTERS, PushedFilters, TaskSplit
from siltstone.tables.table import plan, read_split, schema_of
from siltstone.tables.writing import WriteOptions, WritePlan, abort_plan, commit_plan, plan_write, stage_task

_METADATA_KEY = "siltstone"
"""The key, in the metadata of a schema's first column, of the options that a catalog table was created
with."""
_Class = TypeVar("_Class", bound=type)
_logger = logging.getLogger("siltstone")


def _with_one_line_errors(kind: _Class) -> _Class:
    """A class decorator: its public methods, which Spark calls, report errors in one line
    (``one_line_errors``)."""
    for name, method in list(vars(kind).items()):
        if not name.startswith("_") and inspect.isfunction(method):
            setattr(kind, name, one_line_errors()(method))
    return kind


@_with_one_line_errors
class SiltstoneSource(datasource.DataSource):
    """Log directories as tables; ``ReadOptions`` and ``WriteOptions`` list the options.

    Spark passes the location and options of a table in its catalog only when the table is created (in Spark
    4.3 a query of the table has none of them). A query has the schema that ``schema`` returned at that time,
    so the options are stored in the metadata of the schema.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "siltstone"

    def schema(self) -> StructType:
        """The schema of the requested columns; for records, that of Spark's Kafka source."""
        try:
            options = ReadOptions.of(self.options)
        except UsageError as error:
            # Spark does not say whether the schema is for a batch query or a stream. If the options fit
            # neither, the error is that of a batch query.
            try:
                options = ReadOptions.of(self.options, is_streaming=True)
            except UsageError:
                raise error from None
        schema = from_arrow_schema(schema_of(options))
        raw_options = _lower_names(self.options)
        if "location" in raw_options and schema.fields:  # Spark creates a table in its catalog
            schema.fields[0].metadata = {_METADATA_KEY: raw_options}
        return schema

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        """The reader of a batch query. Raises UsageError for a schema that is not the table's."""
        options = ReadOptions.of(self._with_catalog_options(schema))
        table_schema = from_arrow_schema(schema_of(options))
        if _columns(schema) != _columns(table_schema):
            raise UsageError(
                f"the schema of a log cannot be chosen: it is {table_schema.simpleString()}",
                advice="leave out schema(), and choose columns with the option 'columns'",
            )
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:
        """The reader of a ``readStream``. Raises UsageError."""
        return StreamReader(ReadOptions.of(self._with_catalog_options(schema), is_streaming=True))

    def _with_catalog_options(self, schema: StructType) -> dict[str, str]:
        """The options of a query: those that its catalog table was created with, and its own, which win."""
        of_table: dict[str, str] = schema.fields[0].metadata.get(_METADATA_KEY, {}) if schema.fields else {}
        return of_table | _lower_names(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:
        """The writer of a ``df.write``. Raises UsageError, DirectoryLockedError, and what opening a directory
        raises."""
        return BatchWriter(WriteOptions.of(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> datasource.DataSourceStreamWriter:
        """The writer of a ``df.writeStream``. Raises as ``writer`` does."""
        return StreamWriter(WriteOptions.of(self.options), schema, overwrite)


def _lower_names(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): text for name, text in options.items()}


def _columns(schema: StructType) -> list[tuple[str, DataType]]:
    return [(field.name, field.dataType) for field in schema.fields]


# Spark's filters become ``PushedFilters``. They only let a query read less: Spark applies all of them again.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def pushed_filters_of(filters: Sequence[Filter]) -> PushedFilters:
    """The topics, partitions, offsets and times to which all filters together restrict a query."""
    return functools.reduce(PushedFilters.__and__, map(_pushed_filter_of, filters), NO_FILTERS)


def _pushed_filter_of(condition: Filter) -> PushedFilters:
    """The restriction by one filter of Spark; none for a filter on other columns or of another kind."""
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
            # An upper bound on timestamps restricts no offsets: an old record may be anywhere in a log.
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
    """A ``pushFilters`` method that Spark also accepts if filter pushdown is off (the default).

    If ``spark.sql.python.filterPushdown.enabled`` is set, Spark calls ``pushFilters``. If not, Spark fails
    for a reader that overrides ``pushFilters``, that is, whose method has another ``__func__`` than the base
    class's, since filters that only the reader applies would be lost. This reader leaves all filters to
    Spark, so nothing is lost, and it pretends not to override the method.
    """

    __func__: Any = staticmethod(datasource.DataSourceReader.pushFilters)

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: Sequence[Filter]) -> Iterable[Filter]:
        self._reader.use_filters(filters)
        return filters


def _read(partition: InputPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    with one_line_errors():
        freeze_imports()
        yield from read_split(partition.value, options)


@_with_one_line_errors
class BatchReader(datasource.DataSourceReader):
    """Reads a table in a batch query. Filters restrict which splits it reads; Spark applies them all
    again."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self.pushed_filters = NO_FILTERS
        self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]

    def use_filters(self, filters: Sequence[Filter]) -> None:
        """Restrict the splits by the filters of the query. In another table than that of records the columns
        are others: ``topic`` and ``offset`` of ``consumerOffsets`` are those of a commit."""
        if self._options.table == RECORDS_TABLE:
            self.pushed_filters = pushed_filters_of(filters)

    def partitions(self) -> list[InputPartition]:
        """The splits of the table; an empty split if there is nothing to read, since Spark needs one."""
        splits = plan(self._options, self.pushed_filters) or [TaskSplit(file_splits=())]
        return [InputPartition(split) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one split."""
        return _read(partition, self._options)


@_with_one_line_errors
class StreamReader(datasource.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream: plans its micro-batches on the driver, in one process as long as the query runs, and
    reads their splits in tasks.

    Spark writes the offsets into the checkpoint before a micro-batch is read, so each record is read once by
    its offset (``siltstone.tables.following``).
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    @cached_property
    def _stream(self) -> MicroBatchStream:
        """Created at its first use, on the driver: tasks do not need it."""
        return MicroBatchStream(self._options)

    def initialOffset(self) -> dict[str, Any]:
        """Where a new stream starts."""
        return offsets_to_json(self._stream.initial_offsets())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch, within the limit."""
        maximum = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return offsets_to_json(self._stream.next_end(offsets_from_json(start), maximum))

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of each micro-batch, by the option ``maxOffsetsPerTrigger``."""
        maximum = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if maximum is None else ReadMaxRows(maximum)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the logs, for the progress of the query."""
        return offsets_to_json(self._stream.log_ends())

    def prepareForTriggerAvailableNow(self) -> None:
        """Let this run of the query end at the current ends of the logs; the next run reads later records."""
        self._stream.stop_at_current_ends()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The splits of a micro-batch."""
        return [
            InputPartition(split)
            for split in self._stream.splits(offsets_from_json(start), offsets_from_json(end))
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one split."""
        return _read(partition, self._options)


# Writing: tasks stage batches, the driver commits them. Spark sends a batch query's writer to its tasks and
# then to its commit. A stream's commit has another writer than its tasks, so all that it needs from them is
# in their messages.


@dataclass
class StagedMessage(WriterCommitMessage):
    """The report of one task to the driver; ``query_id``: the id of the stream, None for a batch
    query."""

    staged: StagedOutput
    query_id: str | None = None


Messages = list[WriterCommitMessage | None]


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise UsageError("a log cannot be overwritten", advice='write with mode("append")')


def _stage(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> StagedMessage:
    """In a task: stage its rows."""
    freeze_imports()
    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0
    query_id = context.getLocalProperty(QUERY_ID) if context is not None else None
    return StagedMessage(staged=stage_task(plan, batches, task=task), query_id=query_id)


def _staged_of(messages: Messages) -> list[StagedOutput]:
    """The batches that the successful tasks have staged; the others have no message."""
    return [message.staged for message in messages if isinstance(message, StagedMessage)]


def _abort(plan: WritePlan, staged: Iterable[StagedOutput] = ()) -> None:
    """On the driver: remove the staged files of a failed job. It does not raise, since Spark would report
    that error in place of the one that the job failed with; a later write removes what stays."""
    try:
        abort_plan(plan, staged)
    except (SiltstoneError, OSError) as error:
        _logger.warning(
            "a failed write leaves staged files in %s; a write removes them after a week (%s)",
            plan.log_directory,
            error,
        )


@_with_one_line_errors
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
        """On the driver: remove all that was staged, but for what a commit that failed half-way needs."""
        _abort(self._plan)


@_with_one_line_errors
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
        if any(output.record_count for output in staged):  # a task without rows may not know the stream's id
            write_id = self._write_id or next(filter(None, ids), None)
            if write_id is None:
                raise UsageError("the stream has no id", advice="set the option writeId")
            commit_plan(self._plan, staged, write_id=write_id, epoch=batchId)

    def abort(self, messages: Messages, batchId: int) -> None:
        """On the driver: remove what the tasks of this micro-batch have staged."""
        _abort(self._plan, _staged_of(messages))
