"""The reader of a batch query: ``partitions`` plans in a process of its own, ``read`` runs in the tasks."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from siltstone.spark.tasks import pass_over_imports
from siltstone.tables.following import Follower, as_data, of_data
from siltstone.tables.options import ReadOptions
from siltstone.tables.splits import EVERYTHING, Predicate, Split
from siltstone.tables.table import plan_table, read_table

# Spark's filters as a ``Predicate``: only to read less, Spark filters what it gets once more.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def predicate_of(filters: Sequence[Filter]) -> Predicate:
    """What all filters together leave; those that say nothing about where a row lies are passed over."""
    return functools.reduce(Predicate.__and__, map(_left_by, filters), EVERYTHING)


def _left_by(each: Filter) -> Predicate:
    attribute: tuple[str, ...] = getattr(each, "attribute", ())
    name = attribute[0].lower() if len(attribute) == 1 else ""
    values = _values(each)
    if name == "topic":
        return Predicate(topics=values)
    if name == "partition":
        return Predicate(partitions=values)
    if name == "timestamp":
        return _from(each)
    return _between(each, values) if name == "offset" else EVERYTHING


def _values(each: Filter) -> frozenset[Any] | None:
    """The values that a column can have then, None where that is no list."""
    if isinstance(each, EqualTo | EqualNullSafe):
        return frozenset([each.value])
    return frozenset(each.value) if isinstance(each, In) else None


def _between(each: Filter, values: frozenset[Any] | None) -> Predicate:
    if values is not None:
        numbers = [value for value in values if isinstance(value, int)]
        return Predicate(low=min(numbers), high=max(numbers) + 1) if numbers else EVERYTHING
    value = getattr(each, "value", None)
    if isinstance(value, int):
        if isinstance(each, GreaterThan | GreaterThanOrEqual):
            return Predicate(low=value + isinstance(each, GreaterThan))
        if isinstance(each, LessThan | LessThanOrEqual):
            return Predicate(high=value + isinstance(each, LessThanOrEqual))
    return EVERYTHING


def _from(each: Filter) -> Predicate:
    """Only times from which on: a log may hold early records anywhere."""
    if isinstance(each, GreaterThan | GreaterThanOrEqual | EqualTo | EqualNullSafe):
        value = each.value
        if isinstance(value, datetime) and value.tzinfo is not None:
            return Predicate(from_ms=(value - _EPOCH) // timedelta(milliseconds=1))
    return EVERYTHING


class BatchReader(DataSourceReader):
    """Reads a table. Filters are used to read less and are all left for Spark to apply."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._predicate = EVERYTHING
        self.pushFilters = _Pushing(self)  # type: ignore[method-assign]

    def _push(self, filters: Sequence[Filter]) -> Iterable[Filter]:
        self._predicate = predicate_of(filters)
        return filters

    def partitions(self) -> list[InputPartition]:
        """One a split; a split without pieces where there is nothing to read."""
        splits = plan_table(self._options, self._predicate) or [Split(pieces=())]
        return [InputPartition(split) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one split."""
        pass_over_imports()
        return read_table(partition.value, self._options)


class _Pushing:
    """``pushFilters`` that Spark does not refuse where pushing filters is off (the default).

    Spark plans a query in one of two ways. With ``spark.sql.python.filterPushdown.enabled`` it calls
    ``pushFilters``. Without, it fails when the method is not the one of the base class, judged by its
    ``__func__``: this one shows that, since to leave filters to Spark is all that it does in any case.
    """

    __func__: Any = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: Sequence[Filter]) -> Iterable[Filter]:
        return self._reader._push(filters)


# The reader of a stream: offsets and splits on the driver, in one process as long as the query runs.
#
# ``read`` runs in the tasks, for each micro-batch. Spark writes the offsets into the checkpoint before a
# batch is read, so each is read once by offset (``siltstone.tables.following``).


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the chosen partitions."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    @cached_property
    def _follower(self) -> Follower:
        """Made where it is needed: not in the tasks."""
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

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One a split."""
        return [InputPartition(each) for each in self._follower.splits(of_data(start), of_data(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one split."""
        pass_over_imports()
        return read_table(partition.value, self._options)
