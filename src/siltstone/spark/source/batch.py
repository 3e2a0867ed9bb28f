"""The reader of a batch query: ``partitions`` plans in a process of its own, ``read`` runs in the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from siltstone.spark.source.filters import predicate_of
from siltstone.spark.tasks import pass_over_imports
from siltstone.tables.options import ReadOptions
from siltstone.tables.predicate import EVERYTHING
from siltstone.tables.splits import Split
from siltstone.tables.table import AnySplit, plan_table, read_table


class SplitPartition(InputPartition):
    """A split as Spark ships it."""

    def __init__(self, split: AnySplit) -> None:
        super().__init__(split)


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
        return [SplitPartition(split) for split in splits]

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
