"""The rows that tasks exchange, and send to the driver: few and large ones.

A row carries a packed array (entries and offsets: at most 32 MiB), a report as JSON, or nothing where it
only makes a bucket or a group reach its task. An array's ``count`` is checked on arrival: one that lost or
gained a byte on its way fails its task. Nothing of the cleaner is imported here.
"""

from __future__ import annotations

import json
import typing
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

_SCALARS = (
    ("log", pa.int32()),
    ("target", pa.int32()),
    ("kind", pa.string()),
    ("base_offset", pa.int64()),
    ("count", pa.int64()),
    ("report", pa.string()),
)
ARROW_SCHEMA = pa.schema([*_SCALARS, ("blob", pa.binary())])
SCHEMA = from_arrow_schema(ARROW_SCHEMA)
"""Spark's type; a text would be parsed for each stage."""
BLOB_BYTES_MAX = 32 << 20
"""The largest blob of offsets in one row."""
ENTRIES, DIRTY, CLEAN = "entries", "dirty", "clean"
RETAINED, SUPERSEDED = "retained", "superseded"
SUMMARY, CARRIED = "summary", "carried"
TRIGGER = "trigger"
"""A row that makes a task of the next stage do its work even without other rows."""
EXTRACTED, MERGED, JOINED, REPORT = "extracted", "merged", "joined", "report"
ALL = -1
"""The target of a row for every task of the next stage."""
FAILED = "failed"
"""The kind of a row of a worker that aborted."""
Report = TypeVar("Report")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: ``target`` is the bucket, group or list of groups that it goes to (task ``target`` modulo the
    number of tasks; ``ALL``: each task), ``log`` the number of its log, in a job of several."""

    target: int
    kind: str = ""
    base_offset: int = 0
    count: int = 0
    blob: bytes | memoryview = b""
    report: str = ""
    log: int = 0

    def batch(self) -> pa.RecordBatch:
        """The row as an Arrow batch with one row; the blob is not copied."""
        blob = pa.py_buffer(self.blob)
        offsets = pa.py_buffer(np.array([0, blob.size], np.int32))
        columns = [pa.array([getattr(self, name)], kind) for name, kind in _SCALARS]
        columns.append(pa.Array.from_buffers(pa.binary(), 1, [None, offsets, blob]))
        return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)

    def array(self, dtype: npt.DTypeLike, words: int = 1) -> npt.NDArray[Any]:
        """The blob's array again, [count] or [count, words]; it holds as long as the batch does.

        Raises ValueError when its size is not its count's.
        """
        values = np.frombuffer(self.blob, dtype)
        if len(values) != self.count * words:
            raise ValueError(f"{self.count} {self.kind} rows were sent, {len(values) / words:g} arrived")
        return values if words == 1 else values.reshape(-1, words)


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """The rows of Arrow batches; blobs are views that keep a batch's memory."""
    for batch in batches:
        for i in range(batch.num_rows):
            values = {name: batch.column(name)[i].as_py() for name, _ in _SCALARS}
            yield Row(**values, blob=memoryview(batch.column("blob")[i].as_buffer()))


def array_row(kind: str, target: int, array: npt.NDArray[Any], *, base_offset: int = 0, log: int = 0) -> Row:
    """An array as a row; ``count`` is its length. It is not copied."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return Row(target=target, kind=kind, base_offset=base_offset, count=len(array), blob=data, log=log)


def array_rows(kind: str, target: int, array: npt.NDArray[Any]) -> Iterator[Row]:
    """An array of one dimension as rows of ``BLOB_BYTES_MAX`` at most; none for an empty one."""
    step = BLOB_BYTES_MAX // array.itemsize
    for start in range(0, len(array), step):
        yield array_row(kind, target, array[start : start + step])


def report_row(kind: str, report: Any, target: int = 0, *, log: int = 0) -> Row:
    """A row with a report, which is a dataclass or a dictionary, as JSON.

    ``json`` writes it, since msgspec's encoder raises for a path that is not UTF-8.
    """
    return Row(target=target, kind=kind, report=json.dumps(msgspec.to_builtins(report)), log=log)


def report_of(row: Row, kind: type[Report]) -> Report:
    """The row's report. Raises msgspec.ValidationError if it is of another type."""
    return msgspec.convert(json.loads(row.report), kind, dec_hook=_counter, str_keys=True)


def _counter(kind: type, counts: Any) -> Any:
    """A ``Counter``, which JSON has as an object. Raises NotImplementedError for another type."""
    if typing.get_origin(kind) is not Counter:
        raise NotImplementedError(kind)
    return Counter(counts)
