"""The rows that tasks send each other and the driver: few and large ones.

A row has a blob (a packed array of key entries, offsets or transactions, or an Arrow stream), or a report as
JSON. A row without either only tells a task something: that it has work even if no other row arrives
(``TRIGGER``), or that the log has keyless records (``KEYLESS``). The receiver checks an array's
``count``: if an array lost or gained bytes on its way, its task fails. ``verify`` uses this module, and
shares no code with the cleaner, so nothing of the cleaner is imported here.
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
"""``ARROW_SCHEMA`` as Spark's type. A schema as text (DDL) would be parsed again for each stage."""
BLOB_BYTES_MAX = 32 << 20
"""The largest blob of offsets in one row. Blobs of key entries are bounded where they are made: to 32 MiB
(``compaction.keys``), or to 16 MiB (``verify``)."""
ALL = -1
"""The target of a row for every task of the next stage."""

# The kinds of rows.

ENTRIES = "entries"
"""Key entries of ``verify``."""
DIRTY, CLEAN = "dirty", "clean"
"""Key entries of a cleaning or of ``explain``: DIRTY of a log's dirty section, CLEAN of its clean section.
The new records of a side-by-side compaction are DIRTY, too."""
RETAINED = "retained"
"""Offsets of records that a range of a segment group retains, or that a split of ``view=latest`` reads."""
SUPERSEDED = "superseded"
"""Offsets of records in an older run of a compacted ledger that later records supersede."""
TRANSACTION_SUMMARY = "transaction-summary"
"""The transactions of one input split: int64[count, 3] (``log.transactions.CLOSED_PRODUCER``)."""
TRANSACTION_STATE = "transaction-state"
"""A report with the transactions that are open or aborted where a range of a segment group starts."""
KEYLESS = "keyless"
"""Neither array nor report: tells a task that rewrites ranges that the log has records without a key."""
TRIGGER = "trigger"
"""Neither array nor report: makes a task of the next stage do its work even without other rows."""
EXTRACTED = "extracted"
"""A report of a task that extracted key entries, for a broadcast join."""
MERGED = "merged"
"""A report of a task that built an offset map (broadcast join)."""
REWRITTEN = "rewritten"
"""A report on a range that a broadcast join rewrote, or on a group whose pieces were joined after that."""
ROWS = "rows"
"""Rows of a table's key bucket, as an Arrow stream (``tables.lakes.buckets``)."""
REPORT = "report"
"""A report of any other task."""
FAILED = "failed"
"""A report of a worker that aborted. It returns this row and raises nothing: for an exception in an exchange
stage Spark would run the stage again, while the driver runs the job with shuffles (``spark.exchange``)."""
Report = TypeVar("Report")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row. ``target``: the bucket, group or task that it is for. It goes to task ``target`` modulo the
    number of tasks, or to each task (``ALL``). ``count``: the length of the array in ``blob``, 0 for a blob
    of another kind. ``base_offset``: of key entries, what is added to their relative offsets; of ``RETAINED``
    and ``TRANSACTION_STATE``, the base offset of the range that the row is for (a cleaning's retained offsets
    are relative to it). ``log``: the number of the row's log, in a job of several logs."""

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
        """The array in the blob, not copied: shape [count], or [count, words] for several words an item.

        It is valid as long as the batch of the row. Raises ValueError if its size does not fit ``count``.
        """
        values = np.frombuffer(self.blob, dtype)
        if len(values) != self.count * words:
            raise ValueError(
                f"a row of kind {self.kind!r} has {len(values) / words:g} items, but {self.count} were sent"
            )
        return values if words == 1 else values.reshape(-1, words)


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """The rows of Arrow batches; blobs are views of a batch's memory, which they keep alive."""
    for batch in batches:
        for row in range(batch.num_rows):
            values = {name: batch.column(name)[row].as_py() for name, _ in _SCALARS}
            yield Row(**values, blob=memoryview(batch.column("blob")[row].as_buffer()))


def array_row(kind: str, target: int, array: npt.NDArray[Any], *, base_offset: int = 0, log: int = 0) -> Row:
    """A row with an array, which is not copied; ``count`` is its length."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return Row(target=target, kind=kind, base_offset=base_offset, count=len(array), blob=data, log=log)


def array_rows(kind: str, target: int, array: npt.NDArray[Any], *, log: int = 0) -> Iterator[Row]:
    """An array of one dimension in rows of at most ``BLOB_BYTES_MAX``; no row for an empty array."""
    step = BLOB_BYTES_MAX // array.itemsize
    for start in range(0, len(array), step):
        yield array_row(kind, target, array[start : start + step], log=log)


def report_row(kind: str, report: Any, target: int = 0, *, log: int = 0) -> Row:
    """A row with a report, a dataclass or a dictionary, as JSON.

    ``json`` encodes it, since msgspec's encoder raises for a path that is not UTF-8.
    """
    return Row(target=target, kind=kind, report=json.dumps(msgspec.to_builtins(report)), log=log)


def report_of(row: Row, report_type: type[Report]) -> Report:
    """The row's report. Raises msgspec.ValidationError if it is of another type."""
    return msgspec.convert(json.loads(row.report), report_type, dec_hook=_decode_counter, str_keys=True)


def _decode_counter(field_type: type, counts: Any) -> Any:
    """msgspec's hook for types that it does not know: a ``Counter`` from JSON's object. Raises
    NotImplementedError for other types."""
    if typing.get_origin(field_type) is not Counter:
        raise NotImplementedError(field_type)
    return Counter(counts)
