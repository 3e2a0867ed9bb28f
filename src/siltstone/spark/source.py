"""``spark.read.format("siltstone")``: the class that Spark instantiates with a query's options.

A table in Spark's catalog brings its location and options only when it is made (Spark 4.3: a query of it
comes with none of them). What a query does bring is the schema that we gave then: its metadata keeps them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession, datasource
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
from siltstone.spark.tasks import pass_over_imports
from siltstone.tables.commit import StagedFile, discard_staged
from siltstone.tables.following import Follower, as_data, of_data
from siltstone.tables.options import ReadOptions
from siltstone.tables.splits import EVERYTHING, Predicate, Split
from siltstone.tables.table import plan_table, read_table, table_schema
from siltstone.tables.writing import WriteOptions, WritePlan, abort_plan, commit_plan, plan_write, stage_task

# The reader of a batch query: ``partitions`` plans in a process of its own, ``read`` runs in the tasks.

# Spark's filters as a ``Predicate``: only to read less, Spark filters what it gets once more.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def predicate_of(filters: Sequence[datasource.Filter]) -> Predicate:
    """The predicate of all filters; filters that do not restrict splits are ignored."""
    return functools.reduce(Predicate.__and__, map(_left_by, filters), EVERYTHING)


def _left_by(condition: datasource.Filter) -> Predicate:
    attribute: tuple[str, ...] = getattr(condition, "attribute", ())
    name = attribute[0].lower() if len(attribute) == 1 else ""
    values = _values(condition)
    if name == "topic":
        return Predicate(topics=values)
    if name == "partition":
        return Predicate(partitions=values)
    if name == "timestamp":
        return _from(condition)
    return _between(condition, values) if name == "offset" else EVERYTHING


def _values(condition: datasource.Filter) -> frozenset[Any] | None:
    """The values that the condition allows, None if it allows no list of values."""
    if isinstance(condition, datasource.EqualTo | datasource.EqualNullSafe):
        return frozenset([condition.value])
    return frozenset(condition.value) if isinstance(condition, datasource.In) else None


def _between(condition: datasource.Filter, values: frozenset[Any] | None) -> Predicate:
    if values is not None:
        numbers = [value for value in values if isinstance(value, int)]
        return Predicate(low=min(numbers), high=max(numbers) + 1) if numbers else EVERYTHING
    value = getattr(condition, "value", None)
    if isinstance(value, int):
        if isinstance(condition, datasource.GreaterThan | datasource.GreaterThanOrEqual):
            return Predicate(low=value + isinstance(condition, datasource.GreaterThan))
        if isinstance(condition, datasource.LessThan | datasource.LessThanOrEqual):
            return Predicate(high=value + isinstance(condition, datasource.LessThanOrEqual))
    return EVERYTHING


def _from(condition: datasource.Filter) -> Predicate:
    """A lower bound of times. An upper bound is ignored: a log may hold early records anywhere."""
    if isinstance(
        condition,
        datasource.GreaterThan
        | datasource.GreaterThanOrEqual
        | datasource.EqualTo
        | datasource.EqualNullSafe,
    ):
        value = condition.value
        if isinstance(value, datetime) and value.tzinfo is not None:
            return Predicate(from_ms=(value - _EPOCH) // timedelta(milliseconds=1))
    return EVERYTHING


class BatchReader(datasource.DataSourceReader):
    """Reads a table. Filters are used to read less and are all left for Spark to apply."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._predicate = EVERYTHING
        self.pushFilters = _Pushing(self)  # type: ignore[method-assign]

    def _push(self, filters: Sequence[datasource.Filter]) -> Iterable[datasource.Filter]:
        self._predicate = predicate_of(filters)
        return filters

    def partitions(self) -> list[datasource.InputPartition]:
        """One a split; a split without pieces where there is nothing to read."""
        splits = plan_table(self._options, self._predicate) or [Split(pieces=())]
        return [datasource.InputPartition(split) for split in splits]

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one split."""
        pass_over_imports()
        return read_table(partition.value, self._options)


class _Pushing:
    """``pushFilters`` that Spark does not refuse where pushing filters is off (the default).

    Spark plans a query in one of two ways. With ``spark.sql.python.filterPushdown.enabled`` it calls
    ``pushFilters``. Without, it fails when the method is not the one of the base class, judged by its
    ``__func__``: this one shows that, since to leave filters to Spark is all that it does in any case.
    """

    __func__: Any = staticmethod(datasource.DataSourceReader.pushFilters)

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: Sequence[datasource.Filter]) -> Iterable[datasource.Filter]:
        return self._reader._push(filters)


# The reader of a stream: offsets and splits on the driver, in one process as long as the query runs.
#
# ``read`` runs in the tasks, for each micro-batch. Spark writes the offsets into the checkpoint before a
# batch is read, so each is read once by offset (``siltstone.tables.following``).


class StreamReader(datasource.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the chosen partitions."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    @cached_property
    def _follower(self) -> Follower:
        """Made on the driver, when it is first used."""
        return Follower(self._options)

    def initialOffset(self) -> dict[str, Any]:
        """Where a new stream starts."""
        return as_data(self._follower.initial())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch, within the limit."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return as_data(self._follower.latest(of_data(start), most))

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxOffsetsPerTrigger``."""
        most = self._options.triggers.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The logs' ends, for the query's progress."""
        return as_data(self._follower.ends())

    def prepareForTriggerAvailableNow(self) -> None:
        """Whatever comes from now on is left for the next run."""
        self._follower.stop_at_ends()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[datasource.InputPartition]:
        """One a split."""
        return [
            datasource.InputPartition(split) for split in self._follower.splits(of_data(start), of_data(end))
        ]

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one split."""
        pass_over_imports()
        return read_table(partition.value, self._options)


# ``df.write`` and ``df.writeStream`` with ``format("siltstone")``: tasks stage batches, the driver commits.
#
# Spark makes a writer in a process beside the driver and ships it to the tasks and the commit; of a stream
# it makes another one for the commit, which goes by what the tasks tell: their messages.


@dataclass
class StagedMessage(datasource.WriterCommitMessage):
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


def _staged_of(messages: Sequence[datasource.WriterCommitMessage | None]) -> list[StagedFile]:
    """The staged files of the tasks that have ended."""
    return [message.staged for message in messages if isinstance(message, StagedMessage)]


class BatchWriter(datasource.DataSourceArrowWriter):
    """Writes one job's rows."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        _refuse_overwrite(overwrite)
        self._plan = plan_write(options, schema.fieldNames())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> datasource.WriterCommitMessage:
        """In a task: stage its rows."""
        return _stage(self._plan, iterator)

    def commit(self, messages: list[datasource.WriterCommitMessage | None]) -> None:
        """On the driver: append all that was staged, once."""
        commit_plan(self._plan, _staged_of(messages))

    def abort(self, messages: list[datasource.WriterCommitMessage | None]) -> None:
        """On the driver: remove all that was staged."""
        abort_plan(self._plan, _staged_of(messages))


class StreamWriter(datasource.DataSourceStreamArrowWriter):
    """Writes a stream's micro-batches, each once by the stream's id (or ``writeId``) and its number."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        self._options, self._names = options, tuple(schema.fieldNames())
        _refuse_overwrite(overwrite)
        self._plan = plan_write(options, self._names, streaming=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> datasource.WriterCommitMessage:
        """In a task: stage its rows."""
        return _stage(self._plan, iterator)

    def commit(self, messages: list[datasource.WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: append all that was staged of this batch, once."""
        staged_messages = [message for message in messages if isinstance(message, StagedMessage)]
        query_id = next((message.query_id for message in staged_messages if message.query_id), None)
        staged = _staged_of(messages)
        if any(message.records for message in staged):
            write_id = self._options.write_id or query_id
            if write_id is None:
                raise UsageError("the stream has no id: give the option writeId")
            commit_plan(self._plan, staged, write_id=write_id, epoch=batchId)

    def abort(self, messages: list[datasource.WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: remove what the tasks of this batch have staged."""
        with contextlib.suppress(OSError):
            discard_staged(_staged_of(messages))


_METADATA = "siltstone"


def _keeping(schema: StructType, options: Mapping[str, str]) -> StructType:
    """A catalog table's schema (a ``location`` tells) with its options in the first field's metadata."""
    lowered = {name.lower(): text for name, text in options.items()}
    if "location" in lowered and schema.fields:
        schema.fields[0].metadata = {_METADATA: lowered}
    return schema


def _kept(schema: StructType, options: Mapping[str, str]) -> dict[str, str]:
    """A query's options over those that its table was made with."""
    kept: dict[str, str] = schema.fields[0].metadata.get(_METADATA, {}) if schema.fields else {}
    return {**kept, **{name.lower(): text for name, text in options.items()}}


def _columns(schema: StructType) -> list[tuple[str, DataType]]:
    return [(field.name, field.dataType) for field in schema.fields]


class SiltstoneSource(datasource.DataSource):
    """Log directories as tables; ``ReadOptions`` says what may be asked for."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "siltstone"

    def schema(self) -> StructType:
        """Spark's Kafka source's, of the columns asked for.

        Spark does not say what a schema is for; the error that counts is that of a batch query.
        """
        try:
            options = ReadOptions.of(self.options)
        except UsageError as error:
            try:
                options = ReadOptions.of(self.options, streaming=True)
            except UsageError:
                raise error from None
        return _keeping(from_arrow_schema(table_schema(options)), self.options)

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        """For a batch query. Raises UsageError for another schema than the table's."""
        options = ReadOptions.of(_kept(schema, self.options))
        own = from_arrow_schema(table_schema(options))
        if _columns(schema) != _columns(own):
            raise UsageError(
                f"the schema of a log is its own: {own.simpleString()}; leave it out, and choose by 'columns'"
            )
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:
        """For ``readStream``."""
        return StreamReader(ReadOptions.of(_kept(schema, self.options), streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:
        """For ``df.write``. Raises UsageError, DirectoryLockedError, what looking at a directory raises."""
        return BatchWriter(WriteOptions.of(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> datasource.DataSourceStreamWriter:
        """For ``df.writeStream``. Raises as ``writer`` does."""
        return StreamWriter(WriteOptions.of(self.options), schema, overwrite)


# ``siltstone.read``: a log as a DataFrame, with Python's values as options.


def read(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None = None,
    *,
    as_of: int | str | datetime | None = None,
    **options: Any,
) -> DataFrame:
    """The table of a log directory, or of one partition's: ``st.read(spark, "/backup/kafka", "users")``.

    ``topic``: one, or several separated by commas; all where not told. ``as_of``: an offset (int), or a time
    (ISO text or datetime, UTC where it has no zone). The other options are the data source's by their own
    names or as Python writes them (``min_partitions``), with Python's values: ``True``, ``["key", "value"]``,
    ``{"users": {"0": 5}}``. Wrong ones are Spark's AnalysisException with Siltstone's words in it.
    """
    texts = {
        re.sub(r"_([a-z])", lambda found: found[1].upper(), name): _text(value)
        for name, value in options.items()
        if value is not None
    }
    if topic is not None:
        texts["subscribe"] = topic
    if as_of is not None:
        texts["asOfOffset" if isinstance(as_of, int) else "asOfTimestamp"] = _text(as_of)
    return spark.read.format("siltstone").options(**texts).load(os.fspath(path))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
