"""The commit of a job or of a stream's micro-batch: staged batches are appended to their logs, once.

::

    lock ─► finish interrupted writes ─► known id? ─► entry ─► append, flush ─► entry done ─► remove staged
                                                                 │                             files
                                                                 └ error: truncate, no entry

The entry (``Write``) is the commit point. Before it is written, no batch of the write is in a log. Once it is
durable, all of them will be: a crash leaves the staged files, and the next write to the directory compares
them with the logs' content from the remembered ends on and appends the rest. The directory's lock is held
throughout, so a live broker is refused, and no other process appends in between.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from crc32c import crc32c
from msgspec.structs import replace

from siltstone.base import files
from siltstone.base.errors import CorruptFileError, DirectoryRefusedError, SiltstoneError
from siltstone.base.records.layout import BATCH_OVERHEAD, CODEC_MASK, Bytes, Directory
from siltstone.log.directory import has_own_folder
from siltstone.log.fetch import Fetched
from siltstone.log.names import CLEANER_CHECKPOINT, STAGED_WRITES, TopicPartition, parse_partition
from siltstone.log.partition import PartitionLog
from siltstone.runtime.manager import LogManager

# Finished batches that wait for a commit: a file an attempt of a task, and beside it what is in it.
#
# ::
#
#     topic-N/.siltstone-writes/RUN/TASK-ATTEMPT.batches     batches one behind another, base offsets 0
#                                   TASK-ATTEMPT.directory   a row a batch: its partition and position
#
# Made with O_EXCL under a name that only one attempt has, and fsynced by it: a late attempt can touch only
# its own file. Kafka's loader skips folders in a partition's directory. A task reports its ``StagedFile`` to
# the driver; only files that the driver commits are ever appended.

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
"""One row a staged batch; ``topic`` counts in ``StagedFile.topics``."""


class StagedFile(msgspec.Struct, frozen=True, kw_only=True):
    """What one task wrote: ``stem`` is the path without its ending, "" for no records at all.

    ``size`` of the batches in bytes, ``directory_crc``: the directory's CRC32C; ``task`` orders the files.
    """

    task: int
    stem: str = ""
    topics: tuple[str, ...] = ()
    size: int = 0
    records: int = 0
    directory_crc: int = 0

    def directory(self) -> Directory:
        """The rows of its batches. Raises CorruptFileError, DirectoryRefusedError where they are missing."""
        if not self.stem:
            return np.empty(0, STAGED)
        path = f"{self.stem}.directory"
        try:
            raw, size = files.read_bytes(path), files.stat(f"{self.stem}.batches").size
        except FileNotFoundError as error:
            raise DirectoryRefusedError(
                f"{error.filename}: what a task wrote is missing: driver and tasks have to share the file "
                "system, and the file must stay until it is committed"
            ) from None
        if crc32c(raw) != self.directory_crc:
            raise CorruptFileError(path, 0, "is not what the task wrote")
        if size != self.size:
            raise CorruptFileError(
                f"{self.stem}.batches", 0, f"has {size} bytes, but {self.size} were written"
            )
        return np.frombuffer(raw, STAGED)


class StagedWriter:
    """Writes one attempt's file; the folder is made when there is something to write. Use it as a context.

    Left without ``finish``, by an error, it removes the files.
    """

    def __init__(self, stem: Path) -> None:
        self._stem = stem
        self._writer: files.Writer | None = None
        self._rows: list[tuple[int, int, int, int, int]] = []

    def put(self, topic: int, partition: int, batch: Bytes, records: int) -> None:
        """Append one batch. Raises OSError."""
        if self._writer is None:
            _make_folder(self._stem.parent)
            self._writer = files.Writer(f"{self._stem}.batches")
        self._rows.append((topic, partition, self._writer.size, len(batch), records))
        self._writer.write(batch)

    def finish(self, task: int, topics: tuple[str, ...]) -> StagedFile:
        """Make it durable. Raises OSError."""
        if self._writer is None:
            return StagedFile(task=task)
        directory = np.array(self._rows, STAGED)
        raw = directory.tobytes()
        files.write_new(f"{self._stem}.directory", raw)
        self._writer.sync()
        files.sync_directory(self._stem.parent)
        self._writer.close()
        staged = StagedFile(
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
    has_own_folder(folder.parent.parent, folder.parent.name)
    for path in (folder.parent, folder):
        with contextlib.suppress(FileExistsError):  # another task was faster
            files.make_directory(path)
            files.sync_directory(path.parent)


def staged_batches(staged: StagedFile) -> Iterator[tuple[TopicPartition, Bytes, int]]:
    """Each batch in the order of writing: its partition, its bytes (writable, the caller's), its records.

    Raises CorruptFileError, DirectoryRefusedError, OSError.
    """
    rows = staged.directory()
    if not len(rows):
        return
    with files.Reader(f"{staged.stem}.batches") as reader:
        for topic, partition, position, size, count in rows.tolist():
            batch = np.empty(size, np.uint8)
            if reader.read_into(batch, position) < size:
                raise CorruptFileError(reader.path, position, "ends too early")
            yield TopicPartition(staged.topics[topic], partition), batch, count


def remove_staged(folder: Path) -> None:
    """Remove a run's folder, and the one that it is in where that is empty then; none is fine.

    Raises DirectoryRefusedError where another's folder, or a link, has its name.
    """
    with contextlib.suppress(FileNotFoundError):
        has_own_folder(folder.parent.parent, folder.parent.name)
        files.remove_tree(folder)
    with contextlib.suppress(OSError):
        if not files.entries(folder.parent):
            files.remove_directory(folder.parent)


# What jobs have written to a directory: ``siltstone-writes.json`` in its root, which a broker ignores.
#
# ::
#
#     {"version": 1, "writes": [{"id": "backfill-7", "epoch": 3, "done": true, "at_ms": 1795000000000,
#                                "ranges": {"users-0": [100, 250]}, "staged": []}]}
#
# An entry that is not ``done`` is the commit point of its write: it is durable before the first batch is
# appended, and holds where each log ended then and which staged files are to be appended. The next write to
# the directory finishes it, so no write stays half done. By an entry that is done a job that runs again with
# the same id knows that its records are in the logs. One entry an id: of a stream its newest epoch, since
# epochs ascend.

WRITES_FILE = "siltstone-writes.json"
WRITES_MAX = 1000
"""Ids that are remembered; the oldest are dropped first."""


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """One write. ``ranges``: by partition the log's end before it, and behind it; ``at_ms``: when it began.

    ``epoch``: of a stream's batches, ascending; 0 for a job. ``is_named``: the writer can use the same id
    again, so it is remembered. ``staged``: what is to be appended, in this order, empty once it is ``done``.
    """

    write_id: str = msgspec.field(name="id")
    epoch: int = 0
    is_named: bool = msgspec.field(name="named", default=True)
    done: bool = False
    at_ms: int = 0
    ranges: dict[str, tuple[int, int]] = {}
    staged: tuple[StagedFile, ...] = ()

    def __post_init__(self) -> None:
        self.ends_before()

    def ends_before(self) -> dict[TopicPartition, int]:
        """Each log's end before the write. Raises ValueError for a name that is no partition's."""
        ends = {}
        for name, (before, _) in self.ranges.items():
            where = parse_partition(name)
            if where is None:
                raise ValueError(f"{name} is no partition")
            ends[where] = before
        return ends


class _WritesFile(msgspec.Struct, frozen=True, kw_only=True):
    version: Literal[1] = 1
    writes: list[Write]


def load_writes(root: Path) -> list[Write]:
    """The writes of a directory, the oldest first; none where there is no file. Raises CorruptFileError."""
    path = root / WRITES_FILE
    try:
        return msgspec.json.decode(files.read_bytes(path), type=_WritesFile).writes
    except FileNotFoundError:
        return []
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptFileError(
            str(path),
            0,
            f"no list of writes ({error}); without it a repeated job cannot be told from a new one: "
            "put an older copy back, or remove it when no job will be repeated",
        ) from None


def find_write(writes: list[Write], write_id: str, epoch: int) -> Write | None:
    """The write that this one repeats: of its id, with its epoch or a later one."""
    return next((write for write in writes if write.write_id == write_id and write.epoch >= epoch), None)


def store_write(root: Path, writes: list[Write], write: Write) -> list[Write]:
    """Put ``write`` in the place of an earlier one of its id, durably; the list then. Raises OSError."""
    others = [other for other in writes if other.write_id != write.write_id]
    kept = [other for other in others if other.is_named or not other.done]
    return _store(root, [*kept[-WRITES_MAX + 1 :], write])


def forget_write(root: Path, writes: list[Write], write: Write) -> list[Write]:
    """Remove the entry of a write of which no batch is in a log, durably; the list then. Raises OSError."""
    return _store(root, [other for other in writes if other.write_id != write.write_id])


def _store(root: Path, writes: list[Write]) -> list[Write]:
    files.replace(root / WRITES_FILE, msgspec.json.encode(_WritesFile(writes=writes)) + b"\n")
    return writes


ABANDONED_MS = 7 * 86_400_000
"""Staged files of a job that was never committed are removed after this time."""
_COMPARED = (slice(23, 35), slice(43, None))
"""The bytes of a batch that an append does not change: all but offset, epoch and checksum, and attributes and
largest time, which log-append time sets."""
_logger = logging.getLogger("siltstone")


def commit_write(manager: LogManager, root: Path, staged: Iterable[StagedFile], write: Write) -> Write:
    """Append what tasks staged, in the order of the tasks, or nothing if a write with this id did.

    ``manager``: of the directory ``root``, open and locked; ``write``: without ranges. Returns the entry: its
    ranges are those of the first time. Staged files are removed. Raises SiltstoneError, OSError; the logs are
    as before, or the next write finishes it.
    """
    ordered = sorted((file for file in staged if file.records), key=lambda file: file.task)
    writes = finish_interrupted(manager, root)
    known = find_write(writes, write.write_id, write.epoch)
    if known is None:
        known = _write(manager, root, writes, _with_ranges(manager, ordered, write))
    else:
        _logger.info(
            "write %s, epoch %d was committed before: nothing is appended", write.write_id, write.epoch
        )
    discard_staged(ordered)
    _remove_abandoned(manager, write.at_ms)
    return known


def finish_interrupted(manager: LogManager, root: Path) -> list[Write]:
    """Finish the writes that a crash interrupted; returns the list of writes as it is now.

    Raises DirectoryRefusedError where a log was cleaned or cut since: which batches it had is not known then.
    """
    writes = load_writes(root)
    for write in [write for write in writes if not write.done]:
        _logger.warning("write %s, epoch %d was interrupted: it is finished now", write.write_id, write.epoch)
        for where, before in write.ends_before().items():
            _refuse_hidden(manager, root, where, before, write)
        _append(manager, write, resuming=True)
        writes = store_write(root, writes, replace(write, done=True, staged=()))
        discard_staged(write.staged)
    return writes


def _with_ranges(manager: LogManager, staged: list[StagedFile], write: Write) -> Write:
    """The entry to begin with: where each log ends, and will end. Raises for a missing log or staged file."""
    counts: dict[TopicPartition, int] = {}
    for file in staged:
        for topic, partition, _, _, count in file.directory().tolist():
            where = TopicPartition(file.topics[topic], partition)
            counts[where] = counts.get(where, 0) + count
    ends = {where: manager.get(where).log_end_offset for where in sorted(counts)}
    ranges = {str(where): (end, end + counts[where]) for where, end in ends.items()}
    return replace(write, ranges=ranges, staged=tuple(staged))


def _write(manager: LogManager, root: Path, writes: list[Write], write: Write) -> Write:
    """Store the entry, append, store it as done. A write without records is remembered only by a name."""
    if not write.staged and not write.is_named:
        return replace(write, done=True)
    if write.staged:
        writes = store_write(root, writes, write)
        try:
            _append(manager, write)
        except (SiltstoneError, OSError):
            _cut_back(manager, root, writes, write)
            raise
    done = replace(write, done=True, staged=())
    store_write(root, writes, done)
    return done


def _append(manager: LogManager, write: Write, *, resuming: bool = False) -> None:
    """Append the staged batches and flush; ``resuming``: those that are in the log already are skipped."""
    ends = write.ends_before()
    # The next offset at which a batch of the interrupted write may be. A log that was appended to since has
    # other batches there: from the first that differs on, all are appended.
    behind = dict(ends) if resuming else {}
    for staged in write.staged:
        for where, batch, count in staged_batches(staged):
            log = manager.get(where)
            if where in behind and _is_at(log, behind[where], batch):
                behind[where] += count
                continue
            behind.pop(where, None)
            log.append(batch)
    for where in ends:
        manager.get(where).flush()


def _is_at(log: PartitionLog, offset: int, batch: Bytes) -> bool:
    """Is this batch the one at ``offset``?"""
    if offset >= log.log_end_offset:
        return False
    fetched: Fetched = log.read(offset, len(batch))
    data, batches, _ = fetched.batches()
    if not len(batches) or batches["base_offset"].item(0) != offset:
        return False
    stored = data[: batches["size"].item(0)]
    if len(stored) != len(batch) or len(stored) < BATCH_OVERHEAD:
        return False
    same_codec = (int(stored[22]) ^ int(batch[22])) & CODEC_MASK == 0
    return same_codec and all((stored[part] == batch[part]).all() for part in _COMPARED)


def _refuse_hidden(manager: LogManager, root: Path, where: TopicPartition, before: int, write: Write) -> None:
    log = manager.get(where)
    cleaned = manager.directory_of(where).cleaner_checkpoint().get(where, 0)
    if log.log_start_offset > before or cleaned > before:
        raise DirectoryRefusedError(
            f"{where}: a crash interrupted the write {write.write_id} at offset {before}, and the log was "
            f"cleaned or cut there since ({CLEANER_CHECKPOINT}): what is missing is not known any more; "
            f"look at the records from there on, then take the entry out of {root}/siltstone-writes.json"
        )


def _cut_back(manager: LogManager, root: Path, writes: list[Write], write: Write) -> None:
    """Truncate the logs to where they ended before; if that fails, the next write finishes this one."""
    try:
        for where, before in write.ends_before().items():
            manager.truncate_to(where, before)
        forget_write(root, writes, write)
    except (SiltstoneError, OSError) as error:
        _logger.warning(
            "write %s could not be taken back (%s): the next write finishes it", write.write_id, error
        )


def discard_staged(staged: Iterable[StagedFile]) -> None:
    """Remove what was staged with these files: all of their runs, late attempts' files too."""
    for folder in {Path(file.stem).parent for file in staged if file.stem}:
        remove_staged(folder)


def _remove_abandoned(manager: LogManager, now_ms: int) -> None:
    """Remove staged files that have not grown for long: their job has ended. No entry needs them, since all
    are done."""
    for where in manager:
        folder = manager.get(where).directory / STAGED_WRITES
        with contextlib.suppress(SiltstoneError, OSError):
            for run in files.entries(folder) if files.exists(folder) else []:
                path = folder / run.name
                age_ms = now_ms - files.stat(path).modified_ns // 1_000_000
                if run.is_directory and age_ms > ABANDONED_MS:
                    remove_staged(path)
