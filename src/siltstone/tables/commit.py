"""The commit of a job or of a stream's micro-batch: appends the staged batches to their logs, exactly once.

::

    step                                     batches in the logs  after a crash in this step
    0  tasks stage batches in their files    none                 the files are removed after a week
    1  lock the directory                    none                 as 0
    2  complete interrupted earlier writes   none of this write   step 2 of the next write continues
    3  was this id written before?           none; if so, all     as 0 (if so, go to 7: nothing is appended)
    4  write the entry, durably (``Write``)  none                 as 0, or with the entry: step 2 appends all
    5  append the batches, flush the logs    some, then all       step 2 appends the batches that are missing
       error: truncate the logs, put back the entries as they were before 4, raise
    6  write the entry as done, durably      all                  step 3 recognises the id
    7  remove the staged files               all                  the files are removed after a week

Step 4 is the commit point. Before it, no batch of the write is in a log. Once the entry is durable, all of
them will be, unless an error in step 5 removes all of them again. The entry has the end of each log before
the write. Step 2 compares the staged batches with the log from there on, with any compression, so it appends
each batch once. It first writes to the entry, durably, where it continues, since a broker may have appended
in between: after a crash in step 2 the next one compares from there on. The lock is held from 1 to 7: the
write is refused while a broker runs, and no other process appends in between.

This is the protocol of Spark's ``FileOutputCommitter``: task attempts write files of their own, and the
driver commits those of successful attempts. Here the driver appends to logs instead of renaming files.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
from crc32c import crc32c
from msgspec.structs import replace

from siltstone.base import files
from siltstone.base.codec_table import NONE
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import (
    CorruptFileError,
    DirectoryRefusedError,
    SiltstoneError,
    StorageError,
    UnknownTopicError,
)
from siltstone.base.records.codecs import DecompressionError, Scratch, decompress
from siltstone.base.records.layout import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    CODEC_MASK,
    LAST_OFFSET_DELTA_POSITION,
    MAX_TIMESTAMP_POSITION,
    PRODUCER_ID_POSITION,
    Bytes,
)
from siltstone.log.checkpoints import read_topic_id
from siltstone.log.directory import refuse_foreign_folder
from siltstone.log.fetch import FetchResult
from siltstone.log.names import CLEANER_CHECKPOINT, STAGED_WRITES, TopicPartition, parse_partition
from siltstone.log.partition import PartitionLog
from siltstone.runtime.manager import LogManager

# Staged batches: two files for each attempt of a task.
#
# ::
#
#     topic-N/.siltstone-writes/WRITE/TASK-ATTEMPT.batches     batches one after another, base offsets 0
#                                     TASK-ATTEMPT.directory   the manifest: a row for each of the batches
#
#     row  topic int32 | partition int32 | position int64 | size int32 | record count int32   24 bytes, native
#
# An attempt creates both files with O_EXCL under a name of its own, and syncs them, so a late attempt can
# change only its own files. Kafka's loader ignores folders in a partition's directory. A task reports its
# ``StagedOutput`` to the driver, which appends the batches of those that it commits.

MANIFEST_ROW = np.dtype(
    [
        ("topic", np.int32),
        ("partition", np.int32),
        ("position", np.int64),
        ("size", np.int32),
        ("record_count", np.int32),
    ],
    align=True,
)
"""A staged batch: ``topic`` is an index into ``StagedOutput.topics``, ``position`` a byte of the ``.batches``
file."""


class StagedOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one task's staged batches; ``stem``: their path without its ending, "" if there are none.
    In the list of writes it is relative to the log directory, so that a copy of the directory has its own.

    ``size``: bytes of all batches; ``manifest_crc``: CRC32C of the manifest. The commit appends the files in
    the order of ``task``, the number of the task.
    """

    task: int
    stem: str = ""
    topics: tuple[str, ...] = ()
    size: int = 0
    record_count: int = msgspec.field(name="records", default=0)
    manifest_crc: int = msgspec.field(name="directory_crc", default=0)

    def manifest(self) -> npt.NDArray[np.void]:
        """Read the manifest: rows of ``MANIFEST_ROW``. Raises CorruptFileError if one of the two files was
        changed, or if the rows are not of its batches, DirectoryRefusedError if one is missing."""
        if not self.stem:
            return np.empty(0, MANIFEST_ROW)
        path = f"{self.stem}.directory"
        try:
            raw, size = files.read_bytes(path), files.stat(f"{self.stem}.batches").size
        except FileNotFoundError as error:
            raise DirectoryRefusedError(
                "a file that a task staged is missing",
                path=error.filename,
                advice="driver and tasks must share the file system; run the job again",
            ) from None
        if crc32c(raw) != self.manifest_crc:
            raise CorruptFileError(path, 0, "checksum does not match that of the task", advice=_WRITE_AGAIN)
        if size != self.size:
            reason = f"the file has {size} bytes, but the task wrote {self.size}"
            raise CorruptFileError(f"{self.stem}.batches", 0, reason, advice=_WRITE_AGAIN)
        if len(raw) % MANIFEST_ROW.itemsize:
            raise CorruptFileError(path, 0, "it ends within a row", advice=_WRITE_AGAIN)
        rows = np.frombuffer(raw, MANIFEST_ROW)
        for name, end in (("topic", len(self.topics)), ("position", self.size), ("size", self.size + 1)):
            if not ((rows[name] >= 0) & (rows[name] < end)).all():
                raise CorruptFileError(path, 0, f"a row has a {name} that is not there", advice=_WRITE_AGAIN)
        return rows


class StagedWriter:
    """Writes the files of one attempt of a task; the first batch creates the folder. Use it as a context.

    If the context ends without ``finish``, because of an error, it removes the files.
    """

    def __init__(self, stem: Path) -> None:
        self._stem = stem
        self._writer: files.Writer | None = None
        self._rows: list[tuple[int, int, int, int, int]] = []

    def append(self, topic: int, partition: int, batch: Bytes, record_count: int) -> None:
        """Append one batch. Raises OSError."""
        if self._writer is None:
            _make_staging_folder(self._stem.parent)
            self._writer = files.Writer(f"{self._stem}.batches")
        self._rows.append((topic, partition, self._writer.size, len(batch), record_count))
        self._writer.write(batch)

    def finish(self, task: int, topics: tuple[str, ...]) -> StagedOutput:
        """Write the manifest, and make both files durable. Raises OSError."""
        if self._writer is None:
            return StagedOutput(task=task)
        manifest = np.array(self._rows, MANIFEST_ROW)
        raw = manifest.tobytes()
        files.write_new(f"{self._stem}.directory", raw)
        self._writer.sync()
        files.sync_directory(self._stem.parent)
        self._writer.close()
        staged = StagedOutput(
            task=task,
            stem=str(self._stem),
            topics=topics,
            size=self._writer.size,
            record_count=int(manifest["record_count"].sum()),
            manifest_crc=crc32c(raw),
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


def _make_staging_folder(folder: Path) -> None:
    """Make the folder of a write, and its parent ``.siltstone-writes``, durably."""
    # Raises if the parent's name belongs to something else, such as a link.
    refuse_foreign_folder(folder.parent.parent, folder.parent.name)
    for path in (folder.parent, folder):
        files.make_directory(path)
        files.sync_directory(path.parent)


def staged_batches(staged: StagedOutput) -> Iterator[tuple[TopicPartition, Bytes, int]]:
    """The batches in the order in which the task wrote them: (partition, bytes, number of records).

    The caller may change the bytes. Raises CorruptFileError, DirectoryRefusedError, OSError.
    """
    rows = staged.manifest()
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
    """Remove the staging folder of a write, and then its parent folder if that is empty.

    Raises DirectoryRefusedError if the parent is a link or another user's.
    """
    with contextlib.suppress(FileNotFoundError):
        refuse_foreign_folder(folder.parent.parent, folder.parent.name)
        files.remove_tree(folder)
    with contextlib.suppress(OSError):
        if not files.entries(folder.parent):
            files.remove_directory(folder.parent)


# The writes to a log directory: ``siltstone-writes.json`` in it, which a broker ignores.
#
# ::
#
#     {"version": 1, "writes": [{"id": "backfill-7", "epoch": 3, "done": true, "at_ms": 1795000000000,
#                                "ranges": {"users-0": [100, 250]}, "staged": [], "resumed": {},
#                                "topic_ids": {}}]}
#
# An entry that is not done is the commit point of its write (step 4). It is durable before the first batch is
# appended, and has the end of each log before the write (``ranges``) and the staged files, whose names begin
# with the partition: those of a copy of the directory are its own. ``resumed`` has where step 2 continued,
# such as {"users-0": [[3, 170]]}: three batches were in the log, and the fourth would be at offset 170.
# ``topic_ids`` has which topic each log is of: one that was created again under the name is another. An entry
# that is done shows a job that runs again with the same id that its records are in the logs. Each id
# has one entry, that of its newest epoch: the epochs of a stream ascend.

WRITES_FILE = "siltstone-writes.json"
WRITES_MAX = 1000
"""Entries in the file; the oldest are removed first."""


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """One write. ``ranges``: (end of the log before the write, after it) by partition; ``at_ms``: its start.

    ``epoch``: the number of a stream's micro-batch, 0 for a job. ``is_named``: the writer chose the id and
    may use it again, so the entry is kept. ``staged``: the files to append, in this order. ``resumed``: by
    partition, for each time that the interrupted write was resumed: (how many of its batches the log had, the
    end of the log). ``topic_ids``: by partition, the topic's id, of those that have one. All three are empty
    once it is done.
    """

    write_id: str = msgspec.field(name="id")
    epoch: int = 0
    is_named: bool = msgspec.field(name="named", default=True)
    is_done: bool = msgspec.field(name="done", default=False)
    at_ms: int = 0
    ranges: dict[str, tuple[int, int]] = {}
    staged: tuple[StagedOutput, ...] = ()
    resumed: dict[str, tuple[tuple[int, int], ...]] = {}
    topic_ids: dict[str, str] = {}

    def __post_init__(self) -> None:
        self.ends_before()  # raises ValueError for a wrong name, which msgspec reports as a damaged file

    def completed(self) -> Write:
        """The entry once all is appended: without what only an interrupted write needs."""
        return replace(self, is_done=True, staged=(), resumed={}, topic_ids={})

    def ends_before(self) -> dict[TopicPartition, int]:
        """Each log's end before the write. Raises ValueError for a name that is no partition's."""
        ends = {}
        for name, (before, _) in self.ranges.items():
            topic_partition = parse_partition(name)
            if topic_partition is None:
                raise ValueError(f"{name} is not a partition")
            ends[topic_partition] = before
        return ends


@decoded_in_threads
class _WritesFile(msgspec.Struct, frozen=True, kw_only=True):
    version: Literal[1] = 1
    writes: list[Write]


def load_writes(root: Path) -> list[Write]:
    """The writes to a log directory, the oldest first; none if the file is missing. Raises
    CorruptFileError."""
    path = root / WRITES_FILE
    try:
        return msgspec.json.decode(files.read_bytes(path), type=_WritesFile).writes
    except FileNotFoundError:
        return []
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(
            str(path),
            0,
            f"not a list of writes ({error}), so it is not known which jobs were committed before",
            advice="restore an older copy, or remove the file if no job will be repeated",
        ) from None


def find_write(writes: list[Write], write_id: str, epoch: int) -> Write | None:
    """The earlier write that a write with this id and epoch repeats: with the same id, and this epoch or a
    later one. None if there is none."""
    return next((write for write in writes if write.write_id == write_id and write.epoch >= epoch), None)


def store_write(root: Path, writes: list[Write], write: Write) -> list[Write]:
    """Add ``write`` to the file, durably, in place of an earlier one with its id; returns the new list.

    Raises OSError."""
    others = [other for other in writes if other.write_id != write.write_id]
    kept = [other for other in others if other.is_named or not other.is_done]
    return _replace_file(root, [*kept[-WRITES_MAX + 1 :], write])


def _replace_file(root: Path, writes: list[Write]) -> list[Write]:
    files.replace(root / WRITES_FILE, msgspec.json.encode(_WritesFile(writes=writes)) + b"\n")
    return writes


ABANDONED_MS = 7 * 86_400_000
"""After this time a write removes the staged files of other jobs, which were never committed."""
_COMPARED = (
    slice(LAST_OFFSET_DELTA_POSITION, MAX_TIMESTAMP_POSITION),
    slice(PRODUCER_ID_POSITION, BATCH_OVERHEAD),
)
"""The bytes of a batch's header that an append never changes. It may change those before them (base offset to
attributes), and the largest timestamp between them, which log-append time sets."""
_WRITE_AGAIN = "run the job again"
_logger = logging.getLogger("siltstone")


def commit_write(manager: LogManager, root: Path, staged: Iterable[StagedOutput], write: Write) -> Write:
    """Append the staged batches in the order of the tasks, unless a write with this id was committed before.

    ``manager`` has opened and locked ``root`` (step 1); ``write`` has no ranges yet. Returns the
    entry of this write, or of the earlier one that it repeats. Raises SiltstoneError, OSError: the logs are
    then as before, or the next write completes this one.
    """
    staged_outputs = sorted(
        (output for output in staged if output.record_count), key=lambda output: output.task
    )
    writes = _complete_interrupted(manager, root)
    committed = find_write(writes, write.write_id, write.epoch)
    if committed is None:
        committed = _write_and_append(manager, root, writes, _with_ranges(manager, staged_outputs, write))
    else:
        _logger.info(
            "write %s, epoch %d was committed before; nothing is appended", write.write_id, write.epoch
        )
    discard_staged(staged_outputs)
    _remove_abandoned(manager, write.at_ms)
    return committed


def _complete_interrupted(manager: LogManager, root: Path) -> list[Write]:
    """Step 2: complete the writes that a crash interrupted; returns the list of writes as it is now.

    Raises DirectoryRefusedError if a log, or a staged file, is not there, if the log is one of another topic
    by now, or if the log was cleaned or its start moved since: it is then unknown which batches of the write
    were in the log. Raises CorruptFileError, OSError.
    """
    writes = load_writes(root)
    for write in [write for write in writes if not write.is_done]:
        _logger.warning(
            "write %s, epoch %d was interrupted; its missing batches are appended now",
            write.write_id,
            write.epoch,
        )
        for topic_partition, before in write.ends_before().items():
            _refuse_changed_log(manager, root, topic_partition, before, write)
        located = _with_stems(write, lambda stem: str(root / _stem_in_directory(root, stem)))
        try:
            appended = _appended_counts(manager, located)
        except DirectoryRefusedError as error:  # a staged file is missing: the next job has other ones
            error.advice = f"remove the entry {write.write_id} from {root / WRITES_FILE}, run its job again"
            raise
        resumed = _resumed_at(manager, write, appended)
        writes = store_write(root, writes, replace(write, resumed=resumed))
        _append(manager, located, appended)
        writes = store_write(root, writes, write.completed())
        discard_staged(located.staged)
    return writes


def _with_stems(write: Write, change: Callable[[str], str]) -> Write:
    """The write with other paths of its staged files."""
    return replace(write, staged=tuple(replace(output, stem=change(output.stem)) for output in write.staged))


def _stem_in_directory(root: Path, stem: str) -> str:
    """The stem of staged files relative to the log directory: PARTITION/.siltstone-writes/WRITE/TASK-ATTEMPT.
    Earlier versions stored absolute paths; in a directory that was copied or moved since, only these last
    four parts hold.

    Raises CorruptFileError for a path that is not one of staged files."""
    parts = Path(stem).parts[-4:]
    is_staged = len(parts) == 4 and parse_partition(parts[0]) is not None and parts[1] == STAGED_WRITES
    if not is_staged or ".." in parts or "\0" in stem:
        reason = f"a write has staged files that are not in the directory: {stem[:200]!r}"
        raise CorruptFileError(
            str(root / WRITES_FILE), 0, reason, advice="remove the entry, run its job again"
        )
    return "/".join(parts)


def _with_ranges(manager: LogManager, staged: list[StagedOutput], write: Write) -> Write:
    """The entry of step 4, with the end of each log before and after the write, and the topics' ids.

    Raises SiltstoneError for a missing log or staged file."""
    counts: dict[TopicPartition, int] = {}
    for output in staged:
        for topic, partition, _, _, count in output.manifest().tolist():
            topic_partition = TopicPartition(output.topics[topic], partition)
            counts[topic_partition] = counts.get(topic_partition, 0) + count
    logs = {topic_partition: manager.get(topic_partition) for topic_partition in sorted(counts)}
    ranges = {
        str(topic_partition): (log.log_end_offset, log.log_end_offset + counts[topic_partition])
        for topic_partition, log in logs.items()
    }
    ids = {str(topic_partition): read_topic_id(log.directory) for topic_partition, log in logs.items()}
    topic_ids = {name: topic_id for name, topic_id in ids.items() if topic_id is not None}
    return replace(write, ranges=ranges, staged=tuple(staged), topic_ids=topic_ids)


def _write_and_append(manager: LogManager, root: Path, writes: list[Write], write: Write) -> Write:
    """Steps 4 to 6. A write without records gets an entry only if its id can be used again."""
    if not write.staged and not write.is_named:
        return write.completed()
    if write.staged:
        store_write(root, writes, _with_stems(write, partial(_stem_in_directory, root)))
        try:
            _append(manager, write)
        except (SiltstoneError, OSError):
            _roll_back(manager, root, writes, write)
            raise
    completed = write.completed()
    store_write(root, writes, completed)
    return completed


def _append(
    manager: LogManager, write: Write, appended: Mapping[TopicPartition, int] = MappingProxyType({})
) -> None:
    """Step 5: append the batches and flush, without the first ones that each log has ``appended``."""
    to_skip = dict(appended)
    for staged in write.staged:
        for topic_partition, batch, _ in staged_batches(staged):
            if to_skip.get(topic_partition, 0):
                to_skip[topic_partition] -= 1
            else:
                manager.get(topic_partition).append(batch)
    for topic_partition in write.ends_before():
        manager.get(topic_partition).flush()


def _appended_counts(manager: LogManager, write: Write) -> dict[TopicPartition, int]:
    """How many of its batches an interrupted write has appended to each log.

    The write, and each resume of it, appended one batch after another. So if a batch is not at the offset
    where it would be, neither it nor any later batch of the write is in this log, which ends there or has
    records of other writers.
    """
    expected_offsets = write.ends_before()
    counts = dict.fromkeys(expected_offsets, 0)
    resumed_at = {log: dict(write.resumed.get(str(log), ())) for log in counts}
    for staged in write.staged:
        for topic_partition, batch, record_count in staged_batches(staged):
            if topic_partition not in expected_offsets:
                continue
            expected = expected_offsets[topic_partition]
            offset = resumed_at[topic_partition].get(counts[topic_partition], expected)
            if _is_batch_at(manager.get(topic_partition), offset, batch):
                expected_offsets[topic_partition] = offset + record_count
                counts[topic_partition] += 1
            else:
                del expected_offsets[topic_partition]  # no later batch of this log is looked for
    return counts


def _resumed_at(
    manager: LogManager, write: Write, appended: Mapping[TopicPartition, int]
) -> dict[str, tuple[tuple[int, int], ...]]:
    """``Write.resumed`` of a write that is resumed now. ``appended``: how many of its batches each log
    has."""
    resumed = {}
    for topic_partition, count in appended.items():
        earlier = write.resumed.get(str(topic_partition), ())
        now = count, manager.get(topic_partition).log_end_offset
        resumed[str(topic_partition)] = (*(resume for resume in earlier if resume[0] < count), now)
    return resumed


def _is_batch_at(log: PartitionLog, offset: int, batch: Bytes) -> bool:
    """Is this staged batch, as an append changes it, in the log at ``offset``?"""
    if offset >= log.log_end_offset:
        return False
    fetched: FetchResult = log.read(offset, len(batch))
    data, batches, _ = fetched.batches()
    if not len(batches) or batches["base_offset"].item(0) != offset:
        return False
    stored = data[: batches["size"].item(0)]
    return _is_same_batch(stored, batch, log.config.max_decompressed_message_bytes)


def _is_same_batch(stored: Bytes, batch: Bytes, limit: int) -> bool:
    """Can an append have made ``stored`` of the staged ``batch``? The codecs may differ, since an append
    compresses a batch with the topic's. ``limit``: the most bytes that a batch may decompress to."""
    if min(len(stored), len(batch)) < BATCH_OVERHEAD:
        return False
    if any((stored[part] != batch[part]).any() for part in _COMPARED):
        return False
    if _codec(stored) == _codec(batch) and np.array_equal(stored[BATCH_OVERHEAD:], batch[BATCH_OVERHEAD:]):
        return True
    try:
        return np.array_equal(_decompressed(stored, limit), _decompressed(batch, limit))
    except DecompressionError:
        return False


def _codec(batch: Bytes) -> int:
    return int(batch[ATTRIBUTES_POSITION + 1]) & CODEC_MASK  # the low byte of the two has it


def _decompressed(batch: Bytes, limit: int) -> Bytes:
    """The batch's records, decompressed. Raises DecompressionError."""
    records, scratch = batch[BATCH_OVERHEAD:], Scratch()
    if _codec(batch) == NONE:
        return records
    decompress(_codec(batch), records, scratch, limit)
    return scratch.array()


def _refuse_changed_log(
    manager: LogManager, root: Path, topic_partition: TopicPartition, before: int, write: Write
) -> None:
    """Raises DirectoryRefusedError if the log was cleaned above ``before``, or now starts above it, if it is
    not there, or if its topic is another one by now."""
    try:
        log = manager.get(topic_partition)
    except (UnknownTopicError, StorageError) as error:
        raise DirectoryRefusedError(
            f"a crash interrupted the write {write.write_id}, and its missing batches cannot be appended to "
            f"this partition: {error.reason}",
            path=str(topic_partition),
            advice=f"write to the log directory, not to a partition's; if the topic was deleted, remove the "
            f"entry from {root / WRITES_FILE}",
        ) from None
    topic_id, id_before = read_topic_id(log.directory), write.topic_ids.get(str(topic_partition))
    if id_before is not None and topic_id != id_before:
        raise DirectoryRefusedError(
            f"a crash interrupted the write {write.write_id}, and this topic was created again since "
            f"(its id was {id_before} and is {topic_id}), so the missing batches are not appended",
            path=str(topic_partition),
            advice="check which of its records the other partitions have (ranges of the entry), then remove "
            f"the entry from {root / WRITES_FILE}",
        )
    cleaner_checkpoint = manager.directory_of(topic_partition).cleaner_checkpoint().get(topic_partition, 0)
    if log.log_start_offset > before or cleaner_checkpoint > before:
        raise DirectoryRefusedError(
            f"a crash interrupted the write {write.write_id} at offset {before}, and the log was cleaned "
            f"there, or its start moved past it, since ({CLEANER_CHECKPOINT}), so its missing batches are "
            "not known",
            path=str(topic_partition),
            advice=f"check the records from offset {before} on, then remove the entry from "
            f"{root / WRITES_FILE}",
        )


def _roll_back(manager: LogManager, root: Path, writes: list[Write], write: Write) -> None:
    """Truncate the logs to their ends before the write, and put back ``writes``, the entries before step 4.
    If an error ends this, the next write completes the write."""
    try:
        for topic_partition, before in write.ends_before().items():
            manager.truncate_to(topic_partition, before)
        # Step 2 has completed all these writes, and a completed write without a name needs no entry.
        _replace_file(root, [other for other in writes if other.is_named])
    except (SiltstoneError, OSError) as error:
        _logger.warning(
            "write %s cannot be rolled back (%s); the next write to %s completes it",
            write.write_id,
            error,
            root,
        )


def staging_folders(staged: Iterable[StagedOutput]) -> set[Path]:
    """The staging folders of these files."""
    return {Path(output.stem).parent for output in staged if output.stem}


def discard_staged(staged: Iterable[StagedOutput]) -> None:
    """Remove the staging folders of these files, and with them the files of late attempts. The write is done:
    an error would say that it is not, so what cannot be removed stays until a later write removes it."""
    for folder in staging_folders(staged):
        try:
            remove_staged(folder)
        except (SiltstoneError, OSError) as error:
            _logger.warning(
                "the staged files of a completed write stay in %s; a write removes them after a week (%s)",
                folder,
                error,
            )


def discard_aborted(root: Path, folders: Iterable[Path]) -> None:
    """Remove the staging folders of a job that failed, except those that an entry needs: its commit failed
    after step 4 and was not rolled back, so step 2 of the next write appends the batches.

    Raises CorruptFileError if the list of writes is damaged: no folder is removed then, since it is not known
    which ones are needed. Raises DirectoryRefusedError, OSError for a folder, after the others are removed.
    """
    needed = {
        Path(_stem_in_directory(root, output.stem)).parent
        for write in load_writes(root)
        if not write.is_done
        for output in write.staged
    }
    errors: list[SiltstoneError | OSError] = []
    for folder in folders:
        if Path(*folder.parts[-3:]) not in needed:  # PARTITION/.siltstone-writes/WRITE
            try:
                remove_staged(folder)
            except (SiltstoneError, OSError) as error:
                errors.append(error)
    if errors:
        raise errors[0]


def _remove_abandoned(manager: LogManager, now_ms: int) -> None:
    """Remove staging folders that are older than ``ABANDONED_MS``: their job has ended. No entry needs them,
    since step 2 has completed all entries."""
    for topic_partition in manager:
        folder = manager.get(topic_partition).directory / STAGED_WRITES
        with contextlib.suppress(SiltstoneError, OSError):
            for entry in files.entries(folder) if files.exists(folder) else []:
                path = folder / entry.name
                age_ms = now_ms - files.stat(path).modified_ns // 1_000_000
                if entry.is_directory and age_ms > ABANDONED_MS:
                    remove_staged(path)
