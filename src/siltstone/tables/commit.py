"""Putting staged batches into their logs, once: the commit of a job or of a stream's batch.

::

    lock ─► finish what was interrupted ─► there already? ─► entry ─► append, flush ─► entry done ─► staged
                                                                        │                           files go
                                                                        └ error: cut back, no entry

The entry (``Write``) is what decides. Before it nothing of the write is in a log; behind it all of it
will be: a crash in between leaves the staged files, and whoever writes next compares them with what is in
the logs from the remembered ends on and appends the rest. The directory's lock is held throughout, so a
live broker is refused, and nobody else appends in between.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c

from siltstone.base import files
from siltstone.base.clock import Clock
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
#                                   TASK-ATTEMPT.directory   a row a batch: where it goes, where it lies
#
# Made with O_EXCL under a name that only one attempt has, and fsynced by it: an attempt that wakes up late
# can touch only its own file. Kafka's loader passes folders in a partition's directory over. ``StagedFile``
# is what the driver is told; nothing but a committed file is ever appended.

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
_READ_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """What one task wrote: ``stem`` is the path without its ending, "" for no records at all.

    ``size`` of the batches in bytes, ``directory_crc``: the directory's CRC32C; ``task`` orders the files.
    """

    task: int
    stem: str = ""
    topics: tuple[str, ...] = ()
    size: int = 0
    batches: int = 0
    records: int = 0
    directory_crc: int = 0

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> StagedFile:
        """Out of a file of JSON. Raises KeyError, TypeError, ValueError."""
        numbers = ("task", "size", "batches", "records", "directory_crc")
        return cls(
            stem=str(data["stem"]),
            topics=tuple(map(str, data["topics"])),
            **{name: int(data[name]) for name in numbers},
        )

    def directory(self) -> Directory:
        """The rows of its batches. Raises CorruptFileError, DirectoryRefusedError when it is not there."""
        if not self.stem:
            return np.empty(0, STAGED)
        path = f"{self.stem}.directory"
        try:
            raw, size = files.read_bytes(path), files.stat(f"{self.stem}.batches").size
        except FileNotFoundError as error:
            raise DirectoryRefusedError(
                f"{error.filename}: what a task wrote is not there: driver and tasks have to share the file "
                "system, and nobody may remove it before it is committed"
            ) from None
        if crc32c(raw) != self.directory_crc or len(raw) != self.batches * STAGED.itemsize:
            raise CorruptFileError(path, 0, "is not what the task wrote")
        if size != self.size:
            raise CorruptFileError(
                f"{self.stem}.batches", 0, f"has {size} bytes, but {self.size} were written"
            )
        return np.frombuffer(raw, STAGED)


class StagedWriter:
    """Writes one attempt's file; the folder is made when there is something to write. Use it as a context.

    Left without ``finish``, by an error, the files are gone.
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
        size = self._writer.size
        self._close()
        return StagedFile(
            task=task,
            stem=str(self._stem),
            topics=topics,
            size=size,
            batches=len(directory),
            records=int(directory["count"].sum()),
            directory_crc=crc32c(raw),
        )

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.__exit__(None, None, None)
            self._writer = None

    def __enter__(self) -> StagedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._close()
            for kind in ("batches", "directory"):
                with contextlib.suppress(FileNotFoundError):
                    files.unlink(f"{self._stem}.{kind}")


def _make_folder(folder: Path) -> None:
    has_own_folder(folder.parent.parent, folder.parent.name)
    for each in (folder.parent, folder):
        with contextlib.suppress(FileExistsError):  # another task was faster
            files.make_directory(each)
            files.sync_directory(each.parent)


def staged_batches(staged: StagedFile) -> Iterator[tuple[TopicPartition, Bytes, int]]:
    """Each batch in the order of writing: its partition, its bytes (writable, the caller's), its records.

    Raises CorruptFileError, DirectoryRefusedError, OSError.
    """
    rows = staged.directory()
    if not len(rows):
        return
    places = rows["position"].tolist()
    with files.Reader(f"{staged.stem}.batches") as reader:
        first = 0
        while first < len(rows):
            behind = int(np.searchsorted(rows["position"], places[first] + _READ_BYTES))
            behind = max(behind, first + 1)
            end = places[behind] if behind < len(rows) else staged.size
            data = np.empty(end - places[first], np.uint8)
            if reader.read_into(data, places[first]) < len(data):
                raise CorruptFileError(reader.path, places[first], "ends too early")
            for topic, partition, position, size, count in rows[first:behind].tolist():
                start = position - places[first]
                where = TopicPartition(staged.topics[topic], partition)
                yield where, data[start : start + size], count
            first = behind


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


# What jobs have written to a directory: ``siltstone-writes.json`` in its root, passed over by a broker.
#
# ::
#
#     {"version": 1, "writes": [{"id": "backfill-7", "epoch": 3, "done": true, "at_ms": 1795000000000,
#                                "ranges": {"users-0": [100, 250]}, "staged": []}]}
#
# An entry that is not ``done`` is the commit point of its write: it is durable before the first batch is
# appended, and holds where each log ended then and which staged files are to be in it. Whoever writes to the
# directory next finishes it, so nothing stays half. An entry that is done tells a job that runs again with
# the same id that its records are there. One entry an id: of a stream its newest epoch, since epochs ascend.

WRITES_FILE = "siltstone-writes.json"
MOST_KEPT = 1000
"""Ids that are remembered; the oldest go first."""
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One write. ``ranges``: by partition the log's end before it, and behind it; ``at_ms``: when it began.

    ``epoch``: of a stream's batches, ascending; 0 for a job. ``is_named``: whoever wrote can say the same id
    again, so it is remembered. ``staged``: what is to be appended, in this order, empty once it is ``done``.
    """

    write_id: str
    epoch: int = 0
    is_named: bool = True
    done: bool = False
    at_ms: int = 0
    ranges: Mapping[TopicPartition, tuple[int, int]]
    staged: tuple[StagedFile, ...] = ()

    @property
    def records(self) -> int:
        """How many were, or are to be, appended."""
        return sum(behind - before for before, behind in self.ranges.values())

    def as_data(self) -> dict[str, Any]:
        """For the file."""
        return {
            "id": self.write_id,
            "epoch": self.epoch,
            "named": self.is_named,
            "done": self.done,
            "at_ms": self.at_ms,
            "ranges": {str(where): list(each) for where, each in sorted(self.ranges.items())},
            "staged": [asdict(each) for each in self.staged],
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Write:
        """The other way round. Raises KeyError, TypeError, ValueError."""
        ranges = {}
        for name, (before, behind) in data["ranges"].items():
            where = parse_partition(name)
            if where is None:
                raise ValueError(f"{name} is no partition")
            ranges[where] = (int(before), int(behind))
        return cls(
            write_id=str(data["id"]),
            epoch=int(data["epoch"]),
            is_named=bool(data["named"]),
            done=bool(data["done"]),
            at_ms=int(data["at_ms"]),
            ranges=ranges,
            staged=tuple(StagedFile.of_data(each) for each in data["staged"]),
        )


def load_writes(root: Path) -> list[Write]:
    """The writes of a directory, the oldest first; none where there is no file. Raises CorruptFileError."""
    path = root / WRITES_FILE
    try:
        raw = files.read_bytes(path)
    except FileNotFoundError:
        return []
    try:
        found = json.loads(raw)
        if found["version"] != _VERSION:
            raise ValueError(f"version {found['version']}; only {_VERSION} is known")
        return [Write.of_data(each) for each in found["writes"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(
            str(path),
            0,
            f"no list of writes ({error}); without it a repeated job cannot be told from a new one: "
            "put an older copy back, or remove it when no job will be repeated",
        ) from None


def find_write(writes: list[Write], write_id: str, epoch: int) -> Write | None:
    """The write that this one repeats: of its id, with its epoch or a later one."""
    return next((each for each in writes if each.write_id == write_id and each.epoch >= epoch), None)


def store_write(root: Path, writes: list[Write], write: Write) -> list[Write]:
    """Put ``write`` in the place of an earlier one of its id, durably; the list then. Raises OSError."""
    others = [each for each in writes if each.write_id != write.write_id]
    kept = [each for each in others if each.is_named or not each.done]
    return _store(root, [*kept[-MOST_KEPT + 1 :], write])


def forget_write(root: Path, writes: list[Write], write: Write) -> list[Write]:
    """Take an entry away, durably: nothing of it is in the logs. Raises OSError."""
    return _store(root, [each for each in writes if each.write_id != write.write_id])


def _store(root: Path, writes: list[Write]) -> list[Write]:
    found = {"version": _VERSION, "writes": [each.as_data() for each in writes]}
    files.replace(root / WRITES_FILE, (json.dumps(found) + "\n").encode())
    return writes


ABANDONED_MS = 7 * 86_400_000
"""Staged files of a job that was never committed go after this time."""
_COMPARED = (slice(23, 35), slice(43, None))
"""What an append does not change: all but offset, epoch, checksum, and attributes and largest time, which
log-append time sets."""
_logger = logging.getLogger("siltstone")


def commit_write(
    manager: LogManager,
    root: Path,
    staged: Iterable[StagedFile],
    *,
    write_id: str,
    epoch: int = 0,
    is_named: bool = True,
    clock: Clock,
) -> Write:
    """Append what tasks staged, in the order of the tasks, or nothing where it is there already.

    ``manager``: of the directory ``root``, open and locked. Returns the entry: its ranges are those of the
    first time. Staged files are gone then. Raises SiltstoneError, OSError; the logs are as before, or the
    next write finishes it.
    """
    ordered = sorted((each for each in staged if each.records), key=lambda each: each.task)
    writes = finish_interrupted(manager, root)
    known = find_write(writes, write_id, epoch)
    if known is None:
        known = _write(manager, root, writes, _begun(manager, ordered, write_id, epoch, is_named, clock))
    else:
        _logger.info("write %s, epoch %d: is there already; nothing was appended", write_id, epoch)
    discard_staged(ordered)
    _remove_abandoned(manager, load_writes(root), clock.now_ms())
    return known


def finish_interrupted(manager: LogManager, root: Path) -> list[Write]:
    """Finish the writes that a crash interrupted; the list of writes as it is now.

    Raises DirectoryRefusedError where the logs were changed since in a way that hides what was written.
    """
    writes = load_writes(root)
    for write in [each for each in writes if not each.done]:
        _logger.warning("write %s, epoch %d was interrupted: it is finished now", write.write_id, write.epoch)
        for where, (before, _) in write.ranges.items():
            _refuse_hidden(manager, root, where, before, write)
        _append(manager, write, resuming=True)
        writes = store_write(root, writes, replace(write, done=True, staged=()))
        discard_staged(write.staged)
    return writes


def _begun(
    manager: LogManager,
    staged: Sequence[StagedFile],
    write_id: str,
    epoch: int,
    is_named: bool,
    clock: Clock,
) -> Write:
    """The entry to begin with; every log and every staged file is there."""
    counts: dict[TopicPartition, int] = {}
    for each in staged:
        for topic, partition, _, _, count in each.directory().tolist():
            where = TopicPartition(each.topics[topic], partition)
            counts[where] = counts.get(where, 0) + count
    ends = {where: manager.get(where).log_end_offset for where in counts}
    return Write(
        write_id=write_id,
        epoch=epoch,
        is_named=is_named,
        at_ms=clock.now_ms(),
        ranges={where: (ends[where], ends[where] + counts[where]) for where in sorted(counts)},
        staged=tuple(staged),
    )


def _write(manager: LogManager, root: Path, writes: list[Write], write: Write) -> Write:
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
    """Append the staged batches and flush; ``resuming``: those that are there already are passed over."""
    behind = {where: before for where, (before, _) in write.ranges.items()} if resuming else {}
    for staged in write.staged:
        for where, batch, count in staged_batches(staged):
            log = manager.get(where)
            if where in behind and _is_there(log, behind[where], batch):
                behind[where] += count
                continue
            behind.pop(where, None)
            log.append(batch)
    for where in write.ranges:
        manager.get(where).flush()


def _is_there(log: PartitionLog, offset: int, batch: Bytes) -> bool:
    """Does this batch, and no other, stand at ``offset``?"""
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
            f"cleaned or cut there since ({CLEANER_CHECKPOINT}): what is missing cannot be told any more; "
            f"look at the records from there on, then take the entry out of {root}/siltstone-writes.json"
        )


def _cut_back(manager: LogManager, root: Path, writes: list[Write], write: Write) -> None:
    """Nothing of it stays; where the disk does not allow that, the next write finishes it instead."""
    try:
        for where, (before, _) in write.ranges.items():
            manager.truncate_to(where, before)
        forget_write(root, writes, write)
    except (SiltstoneError, OSError) as error:
        _logger.warning(
            "write %s could not be taken back (%s): the next write finishes it", write.write_id, error
        )


def discard_staged(staged: Iterable[StagedFile]) -> None:
    """Remove what was staged with these files: all of their runs, late attempts' files too."""
    for folder in {Path(each.stem).parent for each in staged if each.stem}:
        remove_staged(folder)


def _remove_abandoned(manager: LogManager, writes: Sequence[Write], now_ms: int) -> None:
    """Staged files that no entry names and that have not grown for long: their job is gone."""
    needed = {str(Path(each.stem).parent) for write in writes for each in write.staged}
    for where in manager:
        folder = manager.get(where).directory / STAGED_WRITES
        with contextlib.suppress(SiltstoneError, OSError):
            for run in files.entries(folder) if files.exists(folder) else []:
                path = folder / run.name
                old = now_ms - files.stat(path).modified_ns // 1_000_000 > ABANDONED_MS
                if run.is_directory and old and str(path) not in needed:
                    remove_staged(path)
