"""The commit of a job or of a stream's micro-batch: staged batches are appended to their logs, once.

::

    step                                     in the logs     after a crash in this step
    0  tasks stage batches in their files    none of them    the files are removed after a week
    1  lock the directory
    2  complete interrupted writes           theirs          step 2 of the next write continues
    3  is a write with this id done?         then all of it  go to 7: nothing is appended
    4  write the entry, durably (``Write``)  none            no entry: as 0; an entry: step 2 appends all
    5  append the batches, flush the logs    some, then all  step 2 appends the batches that are not there
       error: truncate the logs, remove the entry, raise
    6  write the entry as done, durably      all             step 3 recognises the id
    7  remove the staged files               all             the files are removed after a week

Step 4 is the commit point. Before it, no batch of the write is in a log; once the entry is durable, all of
them will be, unless an error in step 5 removes all of them again. The entry has the end of each log before
the write, and step 2 compares the staged batches with the log from there on, so it appends each batch once.
The lock is held from 1 to 7, so the write is refused while a broker is live, and no other process appends in
between.

The same protocol as a job commit of Spark's ``FileOutputCommitter`` (task attempts write files of their own,
the driver commits those of successful attempts), with a log instead of a rename as the destination.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
from crc32c import crc32c
from msgspec.structs import replace

from siltstone.base import files
from siltstone.base.errors import CorruptFileError, DirectoryRefusedError, SiltstoneError
from siltstone.base.records.layout import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    CODEC_MASK,
    LAST_OFFSET_DELTA_POSITION,
    MAX_TIMESTAMP_POSITION,
    PRODUCER_ID_POSITION,
    Bytes,
)
from siltstone.log.directory import has_siltstone_folder
from siltstone.log.fetch import FetchResult
from siltstone.log.names import CLEANER_CHECKPOINT, STAGED_WRITES, TopicPartition, parse_partition
from siltstone.log.partition import PartitionLog
from siltstone.runtime.manager import LogManager

# Staged batches: two files for each attempt of a task.
#
# ::
#
#     topic-N/.siltstone-writes/RUN/TASK-ATTEMPT.batches     batches one after another, base offsets 0
#                                   TASK-ATTEMPT.directory   a row (``STAGED``) for each batch
#
#     STAGED   topic int32 | partition int32 | position int64 | size int32 | count int32      24 bytes, native
#
# An attempt makes both with O_EXCL under a name of its own and syncs them, so a late attempt can change only
# its own files. Kafka's loader ignores folders in a partition's directory. A task reports its
# ``StagedOutput`` to the driver; only files that the driver commits are appended.

STAGED = np.dtype(
    [
        ("topic", np.int32),
        ("partition", np.int32),
        ("position", np.int64),
        ("size", np.int32),
        ("count", np.int32),
    ],
    align=True,
)
"""One row for each staged batch; ``topic`` is an index into ``StagedOutput.topics``."""


class StagedOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The staged batches of one task; ``stem``: the path without its ending, "" if there are no records.

    ``size``: bytes of all batches; ``directory_crc``: CRC32C of the directory; files are appended in the
    order of ``task``.
    """

    task: int
    stem: str = ""
    topics: tuple[str, ...] = ()
    size: int = 0
    records: int = 0
    directory_crc: int = 0

    def directory(self) -> npt.NDArray[np.void]:
        """The rows of its batches. Raises CorruptFileError, DirectoryRefusedError for a missing file."""
        if not self.stem:
            return np.empty(0, STAGED)
        path = f"{self.stem}.directory"
        try:
            raw, size = files.read_bytes(path), files.stat(f"{self.stem}.batches").size
        except FileNotFoundError as error:
            raise DirectoryRefusedError(
                "a file that a task staged is missing",
                path=error.filename,
                advice="driver and tasks must share the file system; run the job again",
            ) from None
        if crc32c(raw) != self.directory_crc:
            raise CorruptFileError(path, 0, "checksum does not match that of the task", advice=_WRITE_AGAIN)
        if size != self.size:
            reason = f"the file has {size} bytes, but the task wrote {self.size}"
            raise CorruptFileError(f"{self.stem}.batches", 0, reason, advice=_WRITE_AGAIN)
        return np.frombuffer(raw, STAGED)


class StagedWriter:
    """Writes the files of one attempt; the first batch makes the folder. Use it as a context.

    If the context ends without ``finish``, by an error, the files are removed.
    """

    def __init__(self, stem: Path) -> None:
        self._stem = stem
        self._writer: files.Writer | None = None
        self._rows: list[tuple[int, int, int, int, int]] = []

    def append(self, topic: int, partition: int, batch: Bytes, records: int) -> None:
        """Append one batch. Raises OSError."""
        if self._writer is None:
            _make_folder(self._stem.parent)
            self._writer = files.Writer(f"{self._stem}.batches")
        self._rows.append((topic, partition, self._writer.size, len(batch), records))
        self._writer.write(batch)

    def finish(self, task: int, topics: tuple[str, ...]) -> StagedOutput:
        """Make it durable. Raises OSError."""
        if self._writer is None:
            return StagedOutput(task=task)
        directory = np.array(self._rows, STAGED)
        raw = directory.tobytes()
        files.write_new(f"{self._stem}.directory", raw)
        self._writer.sync()
        files.sync_directory(self._stem.parent)
        self._writer.close()
        staged = StagedOutput(
            task=task,
            stem=str(self._stem),
            topics=topics,
            size=self._writer.size,
            records=int(directory["count"].sum()),
            directory_crc=crc32c(raw),
        )
        self._writer = None
        return staged

    def __enter__(self) -> StagedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
            for kind in ("batches", "directory"):
                with contextlib.suppress(FileNotFoundError):
                    files.unlink(f"{self._stem}.{kind}")


def _make_folder(folder: Path) -> None:
    has_siltstone_folder(folder.parent.parent, folder.parent.name)
    for path in (folder.parent, folder):
        with contextlib.suppress(FileExistsError):  # another task was faster
            files.make_directory(path)
            files.sync_directory(path.parent)


def staged_batches(staged: StagedOutput) -> Iterator[tuple[TopicPartition, Bytes, int]]:
    """The batches in the order of writing: partition, bytes (writable, the caller's), number of records.

    Raises CorruptFileError, DirectoryRefusedError, OSError.
    """
    rows = staged.directory()
    if not len(rows):
        return
    with files.Reader(f"{staged.stem}.batches") as reader:
        for topic, partition, position, size, count in rows.tolist():
            batch = np.empty(size, np.uint8)
            if reader.read_into(batch, position) < size:
                reason = f"the file ends within a batch of {size} bytes"
                raise CorruptFileError(reader.path, position, reason, advice=_WRITE_AGAIN)
            yield TopicPartition(staged.topics[topic], partition), batch, count


def remove_staged(folder: Path) -> None:
    """Remove a run's folder if it exists, and its parent if that is empty then.

    Raises DirectoryRefusedError for a link, or a folder of another user, with its name.
    """
    with contextlib.suppress(FileNotFoundError):
        has_siltstone_folder(folder.parent.parent, folder.parent.name)
        files.remove_tree(folder)
    with contextlib.suppress(OSError):
        if not files.entries(folder.parent):
            files.remove_directory(folder.parent)


# The writes to a directory: ``siltstone-writes.json`` in its root, which a broker ignores.
#
# ::
#
#     {"version": 1, "writes": [{"id": "backfill-7", "epoch": 3, "done": true, "at_ms": 1795000000000,
#                                "ranges": {"users-0": [100, 250]}, "staged": []}]}
#
# An entry that is not ``done`` is the commit point of its write (step 4): it is durable before the first
# batch is appended, and has the end of each log before the write (``ranges``) and the staged files. An entry
# that is done tells a job that runs again with the same id that its records are in the logs. There is one
# entry for each id; that of a stream has its newest epoch, since epochs ascend.

WRITES_FILE = "siltstone-writes.json"
WRITES_MAX = 1000
"""Entries in the file; the oldest are removed first."""


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """One write. ``ranges``: by partition the log's end before and after it; ``at_ms``: when it began.

    ``epoch``: of a stream's micro-batches, ascending; 0 for a job. ``is_named``: the writer can use the same
    id again, so the entry is kept. ``staged``: the files to append, in this order; empty once it is ``done``.
    """

    write_id: str = msgspec.field(name="id")
    epoch: int = 0
    is_named: bool = msgspec.field(name="named", default=True)
    done: bool = False
    at_ms: int = 0
    ranges: dict[str, tuple[int, int]] = {}
    staged: tuple[StagedOutput, ...] = ()

    def __post_init__(self) -> None:
        self.ends_before()

    def ends_before(self) -> dict[TopicPartition, int]:
        """Each log's end before the write. Raises ValueError for a name that is not a partition's."""
        ends = {}
        for name, (before, _) in self.ranges.items():
            topic_partition = parse_partition(name)
            if topic_partition is None:
                raise ValueError(f"{name} is not a partition")
            ends[topic_partition] = before
        return ends


class _WritesFile(msgspec.Struct, frozen=True, kw_only=True):
    version: Literal[1] = 1
    writes: list[Write]


def load_writes(root: Path) -> list[Write]:
    """The writes of a directory, the oldest first; none without a file. Raises CorruptFileError."""
    path = root / WRITES_FILE
    try:
        return msgspec.json.decode(files.read_bytes(path), type=_WritesFile).writes
    except FileNotFoundError:
        return []
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptFileError(
            str(path),
            0,
            f"not a list of writes ({error}), so a repeated job cannot be told from a new one",
            advice="restore an older copy, or remove the file if no job will be repeated",
        ) from None


def find_write(writes: list[Write], write_id: str, epoch: int) -> Write | None:
    """The earlier write that this one repeats: it has this id, and this epoch or a later
    one."""
    return next((write for write in writes if write.write_id == write_id and write.epoch >= epoch), None)


def store_write(root: Path, writes: list[Write], write: Write) -> list[Write]:
    """Add ``write``, or replace the earlier one of its id, durably; returns the new list. Raises OSError."""
    others = [other for other in writes if other.write_id != write.write_id]
    kept = [other for other in others if other.is_named or not other.done]
    return _store(root, [*kept[-WRITES_MAX + 1 :], write])


def _store(root: Path, writes: list[Write]) -> list[Write]:
    files.replace(root / WRITES_FILE, msgspec.json.encode(_WritesFile(writes=writes)) + b"\n")
    return writes


ABANDONED_MS = 7 * 86_400_000
"""Staged files of a job that was never committed are removed after this time."""
_COMPARED = (slice(LAST_OFFSET_DELTA_POSITION, MAX_TIMESTAMP_POSITION), slice(PRODUCER_ID_POSITION, None))
"""The bytes of a batch that an append does not change: not base offset, length, leader epoch, magic, checksum
and attributes before them, and not the largest timestamp between them, which log-append time sets."""
_WRITE_AGAIN = "run the job again"
_logger = logging.getLogger("siltstone")


def commit_write(manager: LogManager, root: Path, staged: Iterable[StagedOutput], write: Write) -> Write:
    """Append the staged batches in the order of the tasks, unless a write with this id was committed before.

    ``manager``: of the directory ``root``, open and locked (step 1); ``write``: without ranges. Returns the
    entry, with the ranges of the first time. Raises SiltstoneError, OSError; the logs are then as before, or
    the next write completes this one.
    """
    ordered = sorted((file for file in staged if file.records), key=lambda file: file.task)
    writes = _complete_interrupted(manager, root)
    committed = find_write(writes, write.write_id, write.epoch)
    if committed is None:
        committed = _write(manager, root, writes, _with_ranges(manager, ordered, write))
    else:
        _logger.info(
            "write %s, epoch %d was committed before; nothing is appended", write.write_id, write.epoch
        )
    discard_staged(ordered)
    _remove_abandoned(manager, write.at_ms)
    return committed


def _complete_interrupted(manager: LogManager, root: Path) -> list[Write]:
    """Step 2: complete the writes that a crash interrupted; returns the list of writes as it is now.

    Raises DirectoryRefusedError if a log was cleaned or its start was moved since, so that its batches of the
    write are not known.
    """
    writes = load_writes(root)
    for write in [write for write in writes if not write.done]:
        _logger.warning(
            "write %s, epoch %d was interrupted; its missing batches are appended now",
            write.write_id,
            write.epoch,
        )
        for topic_partition, before in write.ends_before().items():
            _refuse_changed_log(manager, root, topic_partition, before, write)
        _append(manager, write, resuming=True)
        writes = store_write(root, writes, replace(write, done=True, staged=()))
        discard_staged(write.staged)
    return writes


def _with_ranges(manager: LogManager, staged: list[StagedOutput], write: Write) -> Write:
    """The entry of step 4, with the end of each log before and after the write. Raises for a missing log or
    staged file."""
    counts: dict[TopicPartition, int] = {}
    for file in staged:
        for topic, partition, _, _, count in file.directory().tolist():
            topic_partition = TopicPartition(file.topics[topic], partition)
            counts[topic_partition] = counts.get(topic_partition, 0) + count
    ends = {
        topic_partition: manager.get(topic_partition).log_end_offset for topic_partition in sorted(counts)
    }
    ranges = {
        str(topic_partition): (end, end + counts[topic_partition]) for topic_partition, end in ends.items()
    }
    return replace(write, ranges=ranges, staged=tuple(staged))


def _write(manager: LogManager, root: Path, writes: list[Write], write: Write) -> Write:
    """Steps 4 to 6. A write without records has an entry only if its id can be used again."""
    if not write.staged and not write.is_named:
        return replace(write, done=True)
    if write.staged:
        writes = store_write(root, writes, write)
        try:
            _append(manager, write)
        except (SiltstoneError, OSError):
            _roll_back(manager, root, writes, write)
            raise
    done = replace(write, done=True, staged=())
    store_write(root, writes, done)
    return done


def _append(manager: LogManager, write: Write, *, resuming: bool = False) -> None:
    """Step 5; ``resuming``: batches that the interrupted write appended are skipped."""
    ends = write.ends_before()
    # By log, the offset at which its next batch of the interrupted write would be. From the first batch on
    # that is not there, all are appended: the log ends there, or has batches of later writes.
    expected = dict(ends) if resuming else {}
    for staged in write.staged:
        for topic_partition, batch, count in staged_batches(staged):
            log = manager.get(topic_partition)
            if topic_partition in expected and _is_at(log, expected[topic_partition], batch):
                expected[topic_partition] += count
                continue
            expected.pop(topic_partition, None)
            log.append(batch)
    for topic_partition in ends:
        manager.get(topic_partition).flush()


def _is_at(log: PartitionLog, offset: int, batch: Bytes) -> bool:
    """Is this batch the one at ``offset``?"""
    if offset >= log.log_end_offset:
        return False
    fetched: FetchResult = log.read(offset, len(batch))
    data, batches, _ = fetched.batches()
    if not len(batches) or batches["base_offset"].item(0) != offset:
        return False
    stored = data[: batches["size"].item(0)]
    if len(stored) != len(batch) or len(stored) < BATCH_OVERHEAD:
        return False
    low_attributes = ATTRIBUTES_POSITION + 1
    same_codec = (int(stored[low_attributes]) ^ int(batch[low_attributes])) & CODEC_MASK == 0
    return same_codec and all((stored[part] == batch[part]).all() for part in _COMPARED)


def _refuse_changed_log(
    manager: LogManager, root: Path, topic_partition: TopicPartition, before: int, write: Write
) -> None:
    log = manager.get(topic_partition)
    cleaned = manager.directory_of(topic_partition).cleaner_checkpoint().get(topic_partition, 0)
    if log.log_start_offset > before or cleaned > before:
        raise DirectoryRefusedError(
            f"a crash interrupted the write {write.write_id} at offset {before}, and the log was cleaned "
            f"there, or its start moved past it, since ({CLEANER_CHECKPOINT}), so its missing batches are "
            "not known",
            path=str(topic_partition),
            advice=f"check the records from offset {before} on, then remove the entry from "
            f"{root / WRITES_FILE}",
        )


def _roll_back(manager: LogManager, root: Path, writes: list[Write], write: Write) -> None:
    """Truncate the logs to their ends before the write; if that fails, the next write completes this one."""
    try:
        for topic_partition, before in write.ends_before().items():
            manager.truncate_to(topic_partition, before)
        _store(root, [other for other in writes if other.write_id != write.write_id])
    except (SiltstoneError, OSError) as error:
        _logger.warning(
            "write %s cannot be rolled back (%s); the next write to %s completes it",
            write.write_id,
            error,
            root,
        )


def discard_staged(staged: Iterable[StagedOutput]) -> None:
    """Remove the folders of the runs that staged these files, with the files of late attempts."""
    for folder in {Path(file.stem).parent for file in staged if file.stem}:
        remove_staged(folder)


def _remove_abandoned(manager: LogManager, now_ms: int) -> None:
    """Remove staged files that are older than ``ABANDONED_MS``: their job has ended. No entry needs them,
    since all entries are done by now."""
    for topic_partition in manager:
        folder = manager.get(topic_partition).directory / STAGED_WRITES
        with contextlib.suppress(SiltstoneError, OSError):
            for run in files.entries(folder) if files.exists(folder) else []:
                path = folder / run.name
                age_ms = now_ms - files.stat(path).modified_ns // 1_000_000
                if run.is_directory and age_ms > ABANDONED_MS:
                    remove_staged(path)
