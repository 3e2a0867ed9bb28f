"""Arrow batches that are ready, by a data source of Python's and by ``mapInArrow``: Spark's own part.

No table of ours can be faster than the same way here: nothing is read, nothing decoded, one batch of each
kind of column is made once and given again and again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from siltstone.spark.tasks import freeze_imports, task_numbers
from siltstone.tables.arrow import schema

ROWS = 32_768
KEY_BYTES, VALUE_BYTES = 16, 98


class ReadyBatches(DataSource):
    """Options: ``rows`` in all, ``tasks``, ``columns`` as of the ``siltstone`` source."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "ready"

    def _schema(self) -> pa.Schema:
        columns = self.options.get("columns")
        return schema(columns.split(",") if columns else None)

    def schema(self) -> StructType:
        """As the ``siltstone`` source has it."""
        return from_arrow_schema(self._schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Gives ``rows`` rows."""
        return _Reader(int(self.options["rows"]), int(self.options["tasks"]), self._schema())


class _Reader(DataSourceReader):
    def __init__(self, rows: int, tasks: int, arrow_schema: pa.Schema) -> None:
        self._rows, self._tasks, self._schema = rows, tasks, arrow_schema

    def partitions(self) -> list[InputPartition]:
        """Each has a task's rows."""
        rows, more = divmod(self._rows, self._tasks)
        return [InputPartition(rows + (number < more)) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The same batch, and at last a part of it."""
        return _batches(self._schema, partition.value)


def ready_by_map(spark: SparkSession, rows: int, columns: str | None) -> DataFrame:
    """The same rows by ``mapInArrow``, a task a core."""
    tasks = spark.sparkContext.defaultParallelism
    arrow_schema = schema(columns.split(",") if columns else None)
    task = functools.partial(_ready_task, arrow_schema, rows, tasks)
    return spark.range(0, tasks, 1, tasks).mapInArrow(task, from_arrow_schema(arrow_schema))


def _ready_task(
    arrow_schema: pa.Schema, rows: int, tasks: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for number in task_numbers(batches):
        yield from _batches(arrow_schema, rows * (number + 1) // tasks - rows * number // tasks)


def _batches(arrow_schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
    freeze_imports()
    batch, remaining = _batch(arrow_schema), rows
    while remaining:
        count = min(remaining, ROWS)
        yield batch.slice(0, count)
        remaining -= count


def _batch(arrow_schema: pa.Schema) -> pa.RecordBatch:
    """``ROWS`` rows like the benchmark's log's."""
    numbers = np.arange(ROWS)
    columns = {
        "key": _bytes(KEY_BYTES),
        "value": _bytes(VALUE_BYTES),
        "topic": pa.repeat(pa.scalar("bench"), ROWS),
        "partition": pa.array(np.zeros(ROWS, np.int32)),
        "offset": pa.array(numbers),
        "timestamp": pa.array(numbers * 1000).cast(pa.timestamp("us", tz="UTC")),
        "timestampType": pa.array(np.zeros(ROWS, np.int32)),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in arrow_schema.names], schema=arrow_schema)


def _bytes(size: int) -> pa.Array:
    data = np.random.default_rng(size).integers(0, 256, ROWS * size, np.uint8)
    offsets = np.arange(0, ROWS * size + 1, size, np.int32)
    return pa.Array.from_buffers(pa.binary(), ROWS, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
