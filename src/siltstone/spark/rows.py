"""What travels between the stages of the pipeline: few and large rows.

A row carries either a blob of packed arrays, at most 32 MiB, or a report as JSON. Its ``count`` is checked
on arrival: a blob that lost or gained a byte on its way stops the log, not the job.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from siltstone.cleaner.keys import BLOB_BYTES, EntryBlob
from siltstone.cleaner.lookup import GroupDone
from siltstone.cleaner.staging import Rewritten
from siltstone.cleaner.winners import WinnersFile
from siltstone.cleaner.work import Extracted, Trouble
from siltstone.log.transactions import Carried

SCHEMA = StructType(
    [
        StructField("target", IntegerType()),
        StructField("kind", StringType()),
        StructField("base_offset", LongType()),
        StructField("count", LongType()),
        StructField("blob", BinaryType()),
        StructField("report", StringType()),
    ]
)
"""As Spark says it; a text would be parsed for every stage."""
ARROW_SCHEMA = pa.schema(
    [
        pa.field("target", pa.int32()),
        pa.field("kind", pa.string()),
        pa.field("base_offset", pa.int64()),
        pa.field("count", pa.int64()),
        pa.field("blob", pa.binary()),
        pa.field("report", pa.string()),
    ]
)
DIRTY, CLEAN, WINNERS = "dirty", "clean", "winners"
SUMMARY, CARRIED = "summary", "carried"
HEADS = "heads"
"""A row for a task of the next stage that has to do something even if nothing else comes to it."""
FOUND, MERGED, GATHERED, REWRITTEN, LOOKED_UP = "found", "merged", "gathered", "rewritten", "looked up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: ``target`` is the bucket or group that it goes to."""

    target: int
    kind: str
    base_offset: int = 0
    count: int = 0
    blob: bytes | memoryview = b""
    report: str = ""

    def batch(self) -> pa.RecordBatch:
        """The row as an Arrow batch of one; the blob is not copied."""
        blob = pa.py_buffer(self.blob)
        offsets = pa.py_buffer(np.array([0, blob.size], np.int32))
        arrays = [
            pa.array([self.target], pa.int32()),
            pa.array([self.kind], pa.string()),
            pa.array([self.base_offset], pa.int64()),
            pa.array([self.count], pa.int64()),
            pa.Array.from_buffers(pa.binary(), 1, [None, offsets, blob]),
            pa.array([self.report], pa.string()),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of an Arrow batch; blobs are views that keep its memory."""
    columns = [batch.column(name) for name in ("target", "kind", "base_offset", "count", "blob", "report")]
    for i in range(batch.num_rows):
        target, kind, base_offset, count, blob, report = (column[i] for column in columns)
        yield Row(
            target=target.as_py(),
            kind=kind.as_py(),
            base_offset=base_offset.as_py(),
            count=count.as_py(),
            blob=memoryview(blob.as_buffer()),
            report=report.as_py(),
        )


def entries_row(blob: EntryBlob) -> Row:
    """A blob of entries on its way to its bucket."""
    return Row(
        target=blob.bucket,
        kind=DIRTY if blob.dirty else CLEAN,
        base_offset=blob.base_offset,
        count=len(blob.entries),
        blob=np.ascontiguousarray(blob.entries).reshape(-1).view(np.uint8).data,
    )


def entries_of(row: Row, buckets: int) -> EntryBlob:
    """The blob again. Raises ValueError when its size is not its count's."""
    entries = np.frombuffer(row.blob, np.uint64).reshape(-1, 2)
    if len(entries) != row.count:
        raise ValueError(f"{row.count} entries were sent, {len(entries)} arrived")
    return EntryBlob(
        bucket=row.target % buckets, dirty=row.kind == DIRTY, base_offset=row.base_offset, entries=entries
    )


def winners_rows(group: int, offsets: npt.NDArray[np.uint32]) -> Iterator[Row]:
    """Winners on their way to their group."""
    step = BLOB_BYTES // offsets.itemsize
    for start in range(0, len(offsets), step):
        part = np.ascontiguousarray(offsets[start : start + step])
        yield Row(target=group, kind=WINNERS, count=len(part), blob=part.data.cast("B"))


def winners_of(row: Row) -> npt.NDArray[np.uint32]:
    """The winners again. Raises ValueError when their size is not their count's."""
    offsets = np.frombuffer(row.blob, np.uint32)
    if len(offsets) != row.count:
        raise ValueError(f"{row.count} winners were sent, {len(offsets)} arrived")
    return offsets


def report_row(kind: str, report: Any, target: int = 0) -> Row:
    """A report dataclass, or a plain dictionary, as a row."""
    return Row(
        target=target, kind=kind, report=json.dumps(report if isinstance(report, dict) else asdict(report))
    )


def _trouble(found: dict[str, Any]) -> dict[str, Any]:
    return found | {"trouble": None if found["trouble"] is None else Trouble(**found["trouble"])}


def summary_row(summary: npt.NDArray[np.int64]) -> Row:
    """A segment's transactions on their way to the first bucket."""
    data = np.ascontiguousarray(summary).reshape(-1).view(np.uint8).data
    return Row(target=0, kind=SUMMARY, count=len(summary), blob=data)


def summary_of(row: Row) -> npt.NDArray[np.int64]:
    """The summary again. Raises ValueError when its size is not its count's."""
    summary = np.frombuffer(row.blob, np.int64).reshape(-1, 3)
    if len(summary) != row.count:
        raise ValueError(f"{row.count} rows were sent, {len(summary)} arrived")
    return summary.copy()


def carried_of(text: str) -> Carried:
    """What a group starts with, again."""
    return _carried(json.loads(text))


def _carried(raw: dict[str, Any]) -> Carried:
    return Carried(unended=tuple(raw["unended"]), observed=tuple(raw["observed"]))


def extracted_of(text: str) -> Extracted:
    """An extraction's report again."""
    return Extracted(**_trouble(json.loads(text)))


def winners_file_of(text: str) -> WinnersFile:
    """A gathering's report again."""
    raw = json.loads(text)
    return WinnersFile(**_trouble(raw) | {"carried": _carried(raw["carried"])})


def rewritten_of(text: str) -> Rewritten:
    """A group's report again."""
    return Rewritten(**_trouble(json.loads(text)))


def looked_up_of(text: str) -> GroupDone:
    """The report of a group that was looked up again."""
    raw = json.loads(text)
    rewritten = None if raw["rewritten"] is None else Rewritten(**_trouble(raw["rewritten"]))
    return GroupDone(**raw | {"found": Extracted(**_trouble(raw["found"])), "rewritten": rewritten})
