"""The exchange of a barrier stage: tasks that run at one time send each other rows through files.

A *worker* is one task of the barrier stage; it runs its share of the tasks of every stage::

    worker 0   first stage ─► rows ─┬─► wait for all ─► second stage ─► rows ─┬─► … ─► last stage ─► results
    worker 1   first stage ─► rows ─┴─► wait for all ─► second stage ─► rows ─┴─► … ─► last stage ─► results

    FOLDER/begun.WORKER         made with O_EXCL: a worker that starts again cannot make it, and aborts
    FOLDER/STAGE.WORKER.TASK    rows from one worker for one task of the next stage, which removes them
    FOLDER/STAGE.WORKER         that worker has finished that stage
    FOLDER/claimed.STAGE.NUMBER made with O_EXCL: that worker has claimed number NUMBER of the stage
    FOLDER/failed               a worker aborted: the others stop waiting

A row in a file::

    size (8 bytes) | CRC32C (4) | 0 (4) | Arrow record batch of one row (size bytes)     little-endian

The protocol of a worker, step by step:

1. It makes its ``begun`` mark. Spark may start a task a second time; the first attempt may still write then,
   so the second one aborts.
2. It runs its tasks of the first stage: n, n + workers, … one after another. It sends each row to the task
   ``target % tasks`` of the next stage: a row for one of its own tasks stays in memory, up to
   ``MEMORY_BYTES``, all others go into a file for each receiving task.
3. It closes these files, makes its mark of the stage, and waits until each worker has made that mark. So all
   files of the stage are complete before anyone reads one. It stops waiting when ``failed`` is there, or when
   the driver has removed the folder.
4. It runs its tasks of the next stage on the rows that were sent to them, and goes on with step 2. The rows
   of the last stage are the results of Spark's stage.
5. If anything raises, it makes the ``failed`` mark and returns a ``FAILED`` row. After that, or when a worker
   was killed, the driver runs the job with shuffles, where Spark repeats single tasks.

Spark's shuffle takes some 80 ms a stage and copies each blob six times; here all stages are one stage of
Spark's. All workers must run at one time, as Spark's barrier mode guarantees, and see one folder, so the
master must be local.
"""

from __future__ import annotations

import contextlib
import functools
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from siltstone.base import files
from siltstone.compaction.keys import PACKED_WORDS, EntryBlob
from siltstone.spark.rows import ALL, ARROW_SCHEMA, CLEAN, DIRTY, FAILED, Row, array_row, report_row
from siltstone.spark.tasks import Batches, task_numbers

MEMORY_BYTES = 64 << 20
"""The most bytes of rows for itself that a worker keeps in memory; others go through files."""
_HEAD = struct.Struct("<QII")  # 8 bytes size, 4 CRC32C, 4 padding
_SHORT_S, _LONG_S, _PATIENT_AFTER = 0.001, 0.01, 200


def entries_row(blob: EntryBlob, target: int | None = None) -> Row:
    """A row with a blob of entries for its bucket, or for ``target``."""
    kind = DIRTY if blob.is_dirty else CLEAN
    to = blob.bucket if target is None else target
    return array_row(kind, to, blob.entries, base_offset=blob.base_offset)


def entries_of(row: Row, buckets: int, words: int = PACKED_WORDS) -> EntryBlob:
    """The row's blob, entries of ``words`` each. Raises ValueError if its size does not fit its count."""
    return EntryBlob(
        bucket=row.target % buckets,
        is_dirty=row.kind == DIRTY,
        base_offset=row.base_offset,
        entries=row.array(np.uint64, words),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """``function(*arguments, batches)`` in so many ``tasks``.

    Rows that are sent to this stage go to its task ``target % tasks``. Tasks of the first stage get their
    number, as a row of ``spark.range``. With ``claims`` the call is ``function(*arguments, claim, batches)``;
    ``claim(n)`` is True for exactly one worker for each n.
    """

    function: Callable[..., Iterator[pa.RecordBatch]]
    arguments: tuple[object, ...]
    tasks: int
    claims: bool = False

    @property
    def name(self) -> str:
        """The function's name, for people."""
        return self.function.__name__.removesuffix("_task").replace("_", " ")


class WorkerAbortedError(Exception):
    """Another worker aborted, or this worker's task runs for the second time."""


class _FileExchange:
    """One worker's end of the exchange."""

    def __init__(self, folder: Path, number: int, workers: int, memory_bytes: int) -> None:
        self._folder, self._number, self._workers = folder, number, workers
        self._memory_left = memory_bytes
        self._in_memory: dict[tuple[int, int], list[pa.RecordBatch]] = {}
        self._open: dict[int, files.Writer] = {}

    def begin(self) -> None:
        """Raises WorkerAbortedError if this task has begun before."""
        try:
            self._mark(f"begun.{self._number}")
        except FileExistsError:
            raise WorkerAbortedError(f"worker {self._number} was started a second time") from None

    def abort(self) -> None:
        """Stop the other workers from waiting for this one."""
        with contextlib.suppress(OSError):
            self._mark(FAILED)

    def claim(self, stage: int, number: int) -> bool:
        """Claim a number of a stage for this worker; False if another worker has it."""
        try:
            self._mark(f"claimed.{stage}.{number}")
        except FileExistsError:
            return False
        return True

    def send(self, stage: int, batch: pa.RecordBatch, tasks: int) -> None:
        """Send rows to the ``tasks`` tasks of the stage after ``stage``."""
        for number, target in enumerate(batch.column("target").to_pylist()):
            row = batch if batch.num_rows == 1 else batch.slice(number, 1)
            for task in range(tasks) if target == ALL else (target % tasks,):
                self._send(stage, task, row)

    def _send(self, stage: int, task: int, row: pa.RecordBatch) -> None:
        if task % self._workers == self._number and row.nbytes <= self._memory_left:
            self._memory_left -= row.nbytes
            # A copy, as the row may be a part of something larger.
            copied = pa.ipc.read_record_batch(row.serialize(), ARROW_SCHEMA)
            self._in_memory.setdefault((stage, task), []).append(copied)
            return
        if task not in self._open:
            self._open[task] = files.Writer(self._folder / f"{stage}.{self._number}.{task}", lasting=False)
        # Size and CRC32C before each row: the reader refuses a row that is cut or changed.
        data = row.serialize()
        self._open[task].write(_HEAD.pack(data.size, crc32c(data), 0))
        self._open[task].write(data)

    def finish_stage(self, stage: int) -> None:
        """Mark the stage as finished by this worker, and wait for the others. Raises WorkerAbortedError."""
        # The files are complete before the mark: a worker that sees all marks may read all files.
        for writer in self._open.values():
            writer.close()
        self._open.clear()
        self._mark(f"{stage}.{self._number}")
        # Polls last 1 ms each at first, since most stages end together, and later 10 ms.
        waiting, polls = set(range(self._workers)), 0
        while waiting := {
            worker for worker in waiting if not files.exists(self._folder / f"{stage}.{worker}")
        }:
            # The driver removes the folder when it abandons the job.
            if files.exists(self._folder / FAILED) or not files.exists(self._folder):
                raise WorkerAbortedError("another worker aborted")
            polls += 1
            time.sleep(_SHORT_S if polls < _PATIENT_AFTER else _LONG_S)

    def received(self, stage: int, task: int) -> Iterator[pa.RecordBatch]:
        """The rows for a task from the stage before. Raises ValueError for damaged rows."""
        own = self._in_memory.pop((stage - 1, task), [])
        self._memory_left += sum(row.nbytes for row in own)
        yield from own
        del own
        for worker in range(self._workers):
            path = self._folder / f"{stage - 1}.{worker}.{task}"
            if files.exists(path):
                yield from _rows_in(path)
                # Freeing a large file takes long; nothing depends on it.
                threading.Thread(target=_remove, args=(path,)).start()

    def _mark(self, name: str) -> None:
        files.Writer(self._folder / name).close()


def _remove(path: Path) -> None:
    """Remove a file, unless its folder is removed already."""
    with contextlib.suppress(OSError):
        files.unlink(path)


def _rows_in(path: Path) -> Iterator[pa.RecordBatch]:
    everything, position = files.map_file(path), 0
    while position < len(everything):
        size, checksum, _ = _HEAD.unpack_from(everything.data, position)
        position += _HEAD.size
        data = everything[position : position + size]
        if len(data) != size or crc32c(data.data) != checksum:
            raise ValueError(f"{path}: the rows that arrived are not those that were sent")
        yield pa.ipc.read_record_batch(pa.py_buffer(data.data), ARROW_SCHEMA)
        position += size


def barrier_task(
    stages: Sequence[Stage], workers: int, folder: str, memory_bytes: int, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Each row names a worker, which runs its tasks of all stages."""
    for number in task_numbers(batches):
        exchange = _FileExchange(Path(folder), number, workers, memory_bytes)
        try:
            exchange.begin()
            yield from _all_stages(stages, number, workers, exchange)
        except Exception as error:
            exchange.abort()
            yield report_row(FAILED, {"reason": f"{type(error).__name__}: {error}"}).batch()


def _all_stages(
    stages: Sequence[Stage], number: int, workers: int, exchange: _FileExchange
) -> Iterator[pa.RecordBatch]:
    for level, stage in enumerate(stages):
        is_last = level == len(stages) - 1
        for task in range(number, stage.tasks, workers):
            # The first stage gets a row as ``spark.range`` gives it.
            number_row = pa.RecordBatch.from_pydict({"id": pa.array([task], pa.int64())})
            batches: Iterable[pa.RecordBatch] = exchange.received(level, task) if level else (number_row,)
            claim = (functools.partial(exchange.claim, level),) if stage.claims else ()
            for batch in stage.function(*stage.arguments, *claim, batches):
                if is_last:
                    yield batch
                else:
                    exchange.send(level, batch, stages[level + 1].tasks)
        if not is_last:
            exchange.finish_stage(level)


def progress_of(folder: Path, stages: Sequence[Stage], workers: int) -> Iterator[tuple[str, int, int]]:
    """The first unfinished stage: (its name, workers that have finished it, all workers).

    The last stage has no marks: no worker counts as finished there."""
    for level, stage in enumerate(stages):
        done = sum(files.exists(folder / f"{level}.{worker}") for worker in range(workers))
        if done < workers:
            yield stage.name, done, workers
            return
