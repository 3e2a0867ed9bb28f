"""The reader of a stream: offsets and splits on the driver, in one process as long as the query runs.

``read`` runs in the tasks, for each micro-batch. Spark writes the offsets into the checkpoint before a batch
is read, so each is read once by offset (``siltstone.tables.following``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from siltstone.spark.source.batch import SplitPartition
from siltstone.spark.tasks import pass_over_imports
from siltstone.tables.following import Follower, as_data, of_data
from siltstone.tables.options import ReadOptions
from siltstone.tables.table import read_table


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
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The logs' ends, for the query's progress."""
        return as_data(self._follower.ends())

    def prepareForTriggerAvailableNow(self) -> None:
        """Whatever comes from now on is left for the next run."""
        self._follower.stop_at_ends()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One a split."""
        return [SplitPartition(each) for each in self._follower.splits(of_data(start), of_data(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one split."""
        pass_over_imports()
        return read_table(partition.value, self._options)
