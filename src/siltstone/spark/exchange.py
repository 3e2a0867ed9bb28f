"""An exchange stage: tasks that run at the same time send each other rows through files.

Spark's shuffle takes some 80 ms a stage and copies each blob six times. So all stages of a job run within one
stage of Spark's. A *worker* is one task of that exchange stage; it runs its share of the tasks of every
stage::

    worker 0   first stage ─► rows ─┬─► wait for all ─► second stage ─► rows ─┬─► … ─► last stage ─► results
    worker 1   first stage ─► rows ─┴─► wait for all ─► second stage ─► rows ─┴─► … ─► last stage ─► results

    FOLDER/begun.WORKER         a mark: this worker has begun; a second attempt cannot make it, and aborts
    FOLDER/STAGE.WORKER.TASK    rows from one worker for one task of the next stage, which removes them
    FOLDER/STAGE.WORKER         a mark: this worker has finished this stage
    FOLDER/claimed.STAGE.NUMBER a mark: a worker has claimed this piece of work of the stage for itself
    FOLDER/failed               a mark: a worker aborted, so the others stop waiting
    FOLDER/read.WORKER          how many bytes of files the worker has read, a number appended twice a second:
                                for progress, and as a sign of life

A row in a file::

    size (8 bytes) | CRC32C (4) | 0 (4) | Arrow record batch of one row (size bytes)     little-endian

A mark is an empty file, created with O_EXCL: only one worker can make it. The protocol of worker n:

1. It makes its ``begun`` mark. Spark may start a task a second time while the first attempt still writes, so
   the second attempt aborts.
2. It runs its tasks of the first stage one after another: n, n + workers and so on. It sends each row to the
   task ``target % tasks`` of the next stage. A row for one of its own tasks stays in memory, up to
   ``MEMORY_BYTES``; each other row goes into the file of the receiving task.
3. It closes these files, makes its mark of the stage, and waits until each worker has made that mark. So all
   files of the stage are complete before any worker reads one. It stops waiting if ``failed`` is there, if
   the driver has removed the folder, or if a worker that it waits for has appended nothing to its ``read``
   file for ``SILENCE_S``: its process died or was never started.
4. It runs its tasks of the next stage on the rows that were sent to them, as in steps 2 and 3. The rows of
   the last stage are the results of Spark's stage.
5. If anything raises, it makes the ``failed`` mark and returns a ``FAILED`` row. After that, or if a worker
   was killed, the driver runs the job with shuffles, where Spark repeats single tasks.

All workers must run at the same time and see one folder, so all executors must be on the driver's machine.
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
from siltstone.compaction.engine import run_beside
from siltstone.compaction.keys import PACKED_WORDS, EntryBlob
from siltstone.spark.rows import ALL, ARROW_SCHEMA, CLEAN, DIRTY, FAILED, Row, array_row, report_row
from siltstone.spark.tasks import Batches, task_numbers

MEMORY_BYTES = 64 << 20
"""The most bytes of rows for its own tasks that a worker keeps in memory; others go through files."""
_ROW_HEADER = struct.Struct("<QII")  # size 8 bytes, CRC32C 4, padding 4
_FIRST_POLL_S, _LATER_POLL_S, _FIRST_POLL_COUNT = 0.001, 0.01, 200
"""Seconds between two checks for the marks of other workers: for the first 200 checks, and later."""
_BYTES_READ = struct.Struct("<Q")
"""A number in the file ``read.WORKER``."""
_BYTES_READ_INTERVAL_S = 0.5
_FAILED_MARK = "failed"
SILENCE_S = 30.0
"""How long a worker may append nothing before those that wait for it give up: a new executor needs some 10 s
to load Siltstone before its worker begins."""


def entries_row(blob: EntryBlob, target: int | None = None) -> Row:
    """A row with a blob of key entries, for the task of its bucket, or for ``target``: ALL tasks, or a number
    that is the bucket modulo the number of buckets, from which ``entries_of`` reads the bucket again."""
    kind = DIRTY if blob.is_dirty else CLEAN
    receiver = blob.bucket if target is None else target
    return array_row(kind, receiver, blob.entries, base_offset=blob.base_offset)


def entries_of(row: Row, buckets: int, words: int = PACKED_WORDS) -> EntryBlob:
    """The blob of a row that ``entries_row`` made. ``buckets``: how many the keys are cut into; ``words``:
    64-bit words of an entry. Raises ValueError if the blob's size does not fit the row's count."""
    return EntryBlob(
        bucket=row.target % buckets,  # of a row to ``ALL`` (-1) 0, since its receivers have one bucket only
        is_dirty=row.kind == DIRTY,
        base_offset=row.base_offset,
        entries=row.array(np.uint64, words),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of a job with a number of ``tasks``, each of which calls ``function(*arguments, batches)``.

    Rows that are sent to this stage go to its task ``target % tasks``. A task of the first stage gets one row
    with its number, as from ``spark.range``. With ``needs_claim``, each task calls
    ``function(*arguments, claim, batches)``: ``claim(n)`` is True for exactly one worker for each n, so a
    task may take work that was meant for a slower one. Only an exchange stage has claims: a job that may run
    with shuffles has no such stage.
    """

    function: Callable[..., Iterator[pa.RecordBatch]]
    arguments: tuple[object, ...]
    tasks: int
    needs_claim: bool = False


class WorkerAbortedError(Exception):
    """Another worker aborted, or this worker's task runs for the second time."""


class _FileExchange:
    """The exchange as one worker uses it: it sends, waits and receives."""

    def __init__(self, folder: Path, worker: int, workers: int, memory_bytes: int) -> None:
        self._folder, self._worker, self._workers = folder, worker, workers
        self._free_bytes, self._received_bytes = memory_bytes, 0  # the latter: of the task that runs
        self._in_memory: dict[tuple[int, int], list[pa.RecordBatch]] = {}
        self._files: dict[int, files.Writer] = {}

    def begin(self) -> None:
        """Make the ``begun`` mark. Raises WorkerAbortedError if this worker has begun before."""
        try:
            self._mark(f"begun.{self._worker}")
        except FileExistsError:
            raise WorkerAbortedError(f"worker {self._worker} was started a second time") from None

    def abort(self) -> None:
        """Stop the other workers from waiting for this one."""
        with contextlib.suppress(OSError):
            self._mark(_FAILED_MARK)

    def claim(self, stage: int, number: int) -> bool:
        """Claim piece of work ``number`` of a stage for this worker; False if another worker has it."""
        try:
            self._mark(f"claimed.{stage}.{number}")
        except FileExistsError:
            return False
        return True

    def send(self, stage: int, batch: pa.RecordBatch, tasks: int) -> None:
        """Send the rows of a batch to their tasks of the next stage, which has ``tasks`` tasks."""
        for index, target in enumerate(batch.column("target").to_pylist()):
            row = batch if batch.num_rows == 1 else batch.slice(index, 1)
            for task in range(tasks) if target == ALL else (target % tasks,):
                self._send(stage, task, row)

    def _send(self, stage: int, task: int, row: pa.RecordBatch) -> None:
        """Send a row to one task of the next stage: in memory if this worker runs the task, else in a
        file."""
        if task % self._workers == self._worker and row.nbytes <= self._free_bytes:
            self._free_bytes -= row.nbytes
            # A copy, as the row may be a part of something larger.
            copied = pa.ipc.read_record_batch(row.serialize(), ARROW_SCHEMA)
            self._in_memory.setdefault((stage, task), []).append(copied)
            return
        if task not in self._files:
            self._files[task] = files.Writer(
                self._folder / f"{stage}.{self._worker}.{task}", will_be_synced=False
            )
        # Size and CRC32C before each row: the reader refuses a row that is cut or changed.
        data = row.serialize()
        self._files[task].write(_ROW_HEADER.pack(data.size, crc32c(data), 0))
        self._files[task].write(data)

    def finish_stage(self, stage: int) -> None:
        """Mark the stage as finished by this worker, and wait for the others. Raises WorkerAbortedError."""
        # The files are complete before the mark: a worker that sees all marks may read all files.
        for writer in self._files.values():
            writer.close()
        self._files.clear()
        self._mark(f"{stage}.{self._worker}")
        # At first every 1 ms, since most workers finish a stage together, and later every 10 ms.
        waiting, polls = set(range(self._workers)), 0
        sizes, heard = dict.fromkeys(waiting, -1), dict.fromkeys(waiting, time.monotonic())
        while waiting := {
            worker for worker in waiting if not files.exists(self._folder / f"{stage}.{worker}")
        }:
            # The driver removes the folder when it abandons the job.
            if files.exists(self._folder / _FAILED_MARK) or not files.exists(self._folder):
                raise WorkerAbortedError("another worker aborted")
            polls += 1
            if polls >= _FIRST_POLL_COUNT:
                self._refuse_silence(waiting, sizes, heard)
            time.sleep(_FIRST_POLL_S if polls < _FIRST_POLL_COUNT else _LATER_POLL_S)

    def _refuse_silence(self, waiting: Iterable[int], sizes: dict[int, int], heard: dict[int, float]) -> None:
        """Raises WorkerAbortedError if a worker has appended nothing to its ``read`` file for ``SILENCE_S``.
        ``sizes``, ``heard``: by worker, the size of that file and when it was first seen; they are updated.
        """
        now = time.monotonic()
        for worker in waiting:
            size = -1
            with contextlib.suppress(OSError):  # it has not begun
                size = files.stat(self._folder / f"read.{worker}").size
            if size != sizes[worker]:
                sizes[worker], heard[worker] = size, now
            elif now - heard[worker] > SILENCE_S:
                raise WorkerAbortedError(f"worker {worker} was not heard of for {SILENCE_S:.0f} s")

    def received(self, stage: int, task: int) -> Iterator[pa.RecordBatch]:
        """The rows that the previous stage sent to a task. Raises ValueError for damaged rows.

        A task may hold its rows until it ends, so their memory is free again when the next one begins."""
        self._free_bytes += self._received_bytes
        in_memory = self._in_memory.pop((stage - 1, task), [])
        self._received_bytes = sum(row.nbytes for row in in_memory)
        yield from in_memory
        del in_memory
        for worker in range(self._workers):
            path = self._folder / f"{stage - 1}.{worker}.{task}"
            if files.exists(path):
                yield from _rows_in(path)
                # Removing a large file takes long, and the task need not wait for it.
                threading.Thread(target=_remove, args=(path,)).start()

    def _mark(self, name: str) -> None:
        files.Writer(self._folder / name).close()


def _remove(path: Path) -> None:
    """Remove a file, unless its folder is removed already."""
    with contextlib.suppress(OSError):
        files.unlink(path)


def _rows_in(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a file, as batches of one row. Raises ValueError for damaged rows."""
    data_of_file, position = files.map_file(path), 0
    while position < len(data_of_file):
        try:
            size, checksum, _ = _ROW_HEADER.unpack_from(data_of_file.data, position)
            position += _ROW_HEADER.size
            data = data_of_file[position : position + size]
            if len(data) != size or crc32c(data.data) != checksum:
                raise ValueError("size or checksum")
            row = pa.ipc.read_record_batch(pa.py_buffer(data.data), ARROW_SCHEMA)
        except (struct.error, ValueError, OSError, EOFError) as error:  # the last three are Arrow's
            raise ValueError(
                f"{path}: the rows that arrived are not those that were sent ({error})"
            ) from None
        yield row
        position += size


def exchange_task(
    stages: Sequence[Stage], workers: int, folder: str, memory_bytes: int, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """The function of the exchange stage: run all stages as the worker whose number the row has."""
    for worker in task_numbers(batches):
        exchange = _FileExchange(Path(folder), worker, workers, memory_bytes)
        try:
            exchange.begin()
            with _bytes_read_reported(Path(folder), worker):
                yield from _run_stages(stages, worker, workers, exchange)
        except Exception as error:
            exchange.abort()
            yield report_row(FAILED, {"reason": f"{type(error).__name__}: {error}"}).batch()


def _run_stages(
    stages: Sequence[Stage], worker: int, workers: int, exchange: _FileExchange
) -> Iterator[pa.RecordBatch]:
    """Run this worker's tasks of all stages; yields the rows of the last stage."""
    for stage_number, stage in enumerate(stages):
        is_last = stage_number == len(stages) - 1
        for task in range(worker, stage.tasks, workers):
            # A task of the first stage gets its number, in a row as from ``spark.range``.
            number_row = pa.RecordBatch.from_pydict({"id": pa.array([task], pa.int64())})
            received = exchange.received(stage_number, task)
            batches: Iterable[pa.RecordBatch] = received if stage_number else (number_row,)
            claim = (functools.partial(exchange.claim, stage_number),) if stage.needs_claim else ()
            for batch in stage.function(*stage.arguments, *claim, batches):
                if is_last:
                    yield batch
                else:
                    exchange.send(stage_number, batch, stages[stage_number + 1].tasks)
        if not is_last:
            exchange.finish_stage(stage_number)


@contextlib.contextmanager
def _bytes_read_reported(folder: Path, worker: int) -> Iterator[None]:
    """Append how many bytes this worker has read to its file in ``folder``, twice a second."""
    first = files.bytes_read()

    def report(is_over: threading.Event) -> None:
        with (
            contextlib.suppress(OSError),
            files.Writer(folder / f"read.{worker}", will_be_synced=False) as writer,
        ):
            while not is_over.wait(_BYTES_READ_INTERVAL_S):
                writer.write(_BYTES_READ.pack(files.bytes_read() - first))

    with run_beside(report):
        yield


def bytes_read_by(workers: int, folder: Path) -> int:
    """The bytes that the workers have read so far, by their files in ``folder``."""
    total = 0
    for worker in range(workers):
        with contextlib.suppress(OSError, struct.error):  # nothing is reported yet
            total += _BYTES_READ.unpack(files.read_bytes(folder / f"read.{worker}")[-_BYTES_READ.size :])[0]
    return total
