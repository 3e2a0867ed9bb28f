"""Putting staged batches into their logs, once: the commit of a job or of a stream's batch.

::

    lock ─► finish what was interrupted ─► there already? ─► entry ─► append, flush ─► entry done ─► staged
                                                                        │                           files go
                                                                        └ error: cut back, no entry

The entry (see ``writes``) is what decides. Before it nothing of the write is in a log; behind it all of it
will be: a crash in between leaves the staged files, and whoever writes next compares them with what is in
the logs from the remembered ends on and appends the rest. The directory's lock is held throughout, so a
live broker is refused, and nobody else appends in between.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from siltstone import files
from siltstone.clock import Clock
from siltstone.errors import DirectoryRefusedError, SiltstoneError
from siltstone.log.fetch import Fetched
from siltstone.log.names import CLEANER_CHECKPOINT, STAGED_WRITES, TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.service.manager import LogManager
from siltstone.records.layout import BATCH_OVERHEAD, CODEC_MASK, Bytes
from siltstone.tables.staged import StagedFile, remove_staged, staged_batches
from siltstone.tables.writes import Write, find_write, forget_write, load_writes, store_write

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
