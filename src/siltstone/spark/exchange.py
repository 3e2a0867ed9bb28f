"""Several stages in one job of tasks that run side by side and hand rows to each other through files.

::

    task 0   first stage ─► rows ─┬─► … wait for all … ─► second stage ─► rows ─┬─► … ─► last stage ─► results
    task 1   first stage ─► rows ─┴─► … wait for all … ─► second stage ─► rows ─┴─► … ─► last stage ─► results

    FOLDER/begun.TASK           made with O_EXCL: a task that goes again finds it, and gives up
    FOLDER/STAGE.FROM.TASK      rows from one worker for one task of the next stage, which removes them
    FOLDER/STAGE.FROM           that worker is through with that stage
    FOLDER/claimed.STAGE.NUMBER made with O_EXCL: some worker does that piece of the stage
    FOLDER/failed               somebody gave up: nobody waits any longer

Spark's shuffle takes some 80 ms a stage and copies each blob six times; this way takes one stage, in which
rows that stay with their worker do not move at all. All tasks must run at one time (Spark's barrier mode sees
to that) and see one folder, so it is for local masters. A stage may have more tasks than there are workers:
worker n does tasks n, n + workers, … one after another. What is wrong with one attempt is a ``FAILED`` row;
the driver then takes the way that Spark can repeat task by task.
"""

from __future__ import annotations

import contextlib
import functools
import json
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from siltstone.base import files
from siltstone.compaction.broadcast import GroupDone
from siltstone.compaction.engine import WinnersFile
from siltstone.compaction.extraction import Extracted, Trouble
from siltstone.compaction.keys import BLOB_BYTES, EntryBlob
from siltstone.compaction.staging import Rewritten
from siltstone.log.transactions import Carried
from siltstone.spark.tasks import Batches, task_numbers

# What travels between the stages of the pipeline: few and large rows.
#
# A row carries either a blob of packed arrays, at most 32 MiB, or a report as JSON. Its ``count`` is checked
# on arrival: a blob that lost or gained a byte on its way stops the log, not the job.

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


ALL = -1
"""The target of a row that every task of the next stage gets."""
FAILED = "failed"
"""The kind of a row, and a file, of a worker that gave up."""
KEPT_BYTES = 64 << 20
"""Rows for itself that a worker keeps in memory; more of them go through files, too."""
_HEAD = struct.Struct("<QII")
_SHORT_S, _LONG_S, _PATIENT_AFTER = 0.001, 0.01, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """``function(*given, batches)`` in so many ``tasks``: rows go to task ``target`` modulo ``tasks``.

    The first stage's tasks are given their number, as a row of ``spark.range``. One that ``claims`` is given,
    before the batches, a call that is true for one worker only, for each number that it is asked about: so
    workers share out pieces that any of them may do.
    """

    function: Callable[..., Iterator[pa.RecordBatch]]
    given: tuple[object, ...]
    tasks: int
    claims: bool = False

    @property
    def name(self) -> str:
        """The function's, for people."""
        return self.function.__name__.removesuffix("_task").replace("_", " ")


class GivenUpError(Exception):
    """Another worker gave up, or this one's task goes for a second time."""


class _Post:
    """One worker's way of handing rows to the others."""

    def __init__(self, folder: Path, number: int, workers: int, kept_bytes: int) -> None:
        self._folder, self._number, self._workers = folder, number, workers
        self._room = kept_bytes
        self._kept: dict[tuple[int, int], list[pa.RecordBatch]] = {}
        self._open: dict[int, files.Writer] = {}

    def begin(self) -> None:
        """Raises GivenUpError when this task was begun before."""
        try:
            self._mark(f"begun.{self._number}")
        except FileExistsError:
            raise GivenUpError(f"task {self._number} goes again") from None

    def give_up(self) -> None:
        """Let nobody wait for this worker."""
        with contextlib.suppress(OSError):
            self._mark(FAILED)

    def claim(self, stage: int, piece: int) -> bool:
        """May this worker do that piece of a stage? Nobody else may then."""
        try:
            self._mark(f"claimed.{stage}.{piece}")
        except FileExistsError:
            return False
        return True

    def send(self, stage: int, batch: pa.RecordBatch, tasks: int) -> None:
        """Hand rows to the ``tasks`` tasks of the stage after ``stage``."""
        for place, target in enumerate(batch.column("target").to_pylist()):
            row = batch if batch.num_rows == 1 else batch.slice(place, 1)
            for task in range(tasks) if target == ALL else (target % tasks,):
                self._send(stage, task, row)

    def _send(self, stage: int, task: int, row: pa.RecordBatch) -> None:
        if task % self._workers == self._number and row.nbytes <= self._room:
            self._room -= row.nbytes
            # A copy, as the row may be a part of something larger.
            kept = pa.ipc.read_record_batch(row.serialize(), ARROW_SCHEMA)
            self._kept.setdefault((stage, task), []).append(kept)
            return
        if task not in self._open:
            self._open[task] = files.Writer(self._folder / f"{stage}.{self._number}.{task}", lasting=False)
        data = row.serialize()
        self._open[task].write(_HEAD.pack(data.size, crc32c(data), 0))
        self._open[task].write(data)

    def through(self, stage: int) -> None:
        """All rows of a stage are sent: say so, and wait until every worker has. Raises GivenUpError."""
        for writer in self._open.values():
            writer.close()
        self._open.clear()
        self._mark(f"{stage}.{self._number}")
        waiting, looks = set(range(self._workers)), 0
        while waiting := {each for each in waiting if not files.exists(self._folder / f"{stage}.{each}")}:
            if files.exists(self._folder / FAILED) or not files.exists(self._folder):
                raise GivenUpError("another task gave up")
            looks += 1
            time.sleep(_SHORT_S if looks < _PATIENT_AFTER else _LONG_S)

    def received(self, stage: int, task: int) -> Iterator[pa.RecordBatch]:
        """What a task gets from the stage before. Raises ValueError for rows that are not those sent."""
        kept = self._kept.pop((stage - 1, task), [])
        self._room += sum(row.nbytes for row in kept)
        yield from kept
        del kept
        for worker in range(self._workers):
            path = self._folder / f"{stage - 1}.{worker}.{task}"
            if files.exists(path):
                yield from _rows_in(path)
                threading.Thread(target=_remove, args=(path,)).start()

    def _mark(self, name: str) -> None:
        files.Writer(self._folder / name).close()


def _remove(path: Path) -> None:
    """It may have gone with its folder already."""
    with contextlib.suppress(OSError):
        files.unlink(path)


def _rows_in(path: Path) -> Iterator[pa.RecordBatch]:
    everything, position = files.mapped(path), 0
    while position < len(everything):
        size, checksum, _ = _HEAD.unpack_from(everything.data, position)
        position += _HEAD.size
        data = everything[position : position + size]
        if len(data) != size or crc32c(data.data) != checksum:
            raise ValueError(f"{path}: not the rows that were sent")
        yield pa.ipc.read_record_batch(pa.py_buffer(data.data), ARROW_SCHEMA)
        position += size


def together_task(
    stages: Sequence[Stage], workers: int, folder: str, kept_bytes: int, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Each row names a worker, which does its part of all stages."""
    for number in task_numbers(batches):
        post = _Post(Path(folder), number, workers, kept_bytes)
        try:
            post.begin()
            yield from _all_stages(stages, number, workers, post)
        except Exception as error:
            post.give_up()
            yield report_row(FAILED, {"reason": f"{type(error).__name__}: {error}"}).batch()


def _all_stages(stages: Sequence[Stage], number: int, workers: int, post: _Post) -> Iterator[pa.RecordBatch]:
    for level, stage in enumerate(stages):
        is_last = level == len(stages) - 1
        for task in range(number, stage.tasks, workers):
            given: Iterable[pa.RecordBatch] = post.received(level, task) if level else (_numbered(task),)
            claim = (functools.partial(post.claim, level),) if stage.claims else ()
            for batch in stage.function(*stage.given, *claim, given):
                if is_last:
                    yield batch
                else:
                    post.send(level, batch, stages[level + 1].tasks)
        if not is_last:
            post.through(level)


def _numbered(task: int) -> pa.RecordBatch:
    """A row as ``spark.range`` gives it."""
    return pa.RecordBatch.from_pydict({"id": pa.array([task], pa.int64())})


def has_failed(found: Iterable[Row]) -> bool:
    """Did a worker give up? Nothing of what came is to be used then."""
    return any(row.kind == FAILED for row in found)


def progress_of(folder: Path, stages: Sequence[Stage], workers: int) -> Iterator[tuple[str, int, int]]:
    """What goes on: (name of the stage, workers that are through with it, all)."""
    for level, stage in enumerate(stages):
        done = sum(files.exists(folder / f"{level}.{each}") for each in range(workers))
        if done < workers:
            yield stage.name, done, workers
            return
