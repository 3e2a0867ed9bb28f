"""One partition's log, open for appends and reads (Kafka's ``UnifiedLog`` and ``LocalLog``).

::

    append ─► validate, assign offsets ─► check producers ─► roll? ─► write to segment ─► new view ─► flush?
    read   ─► view ─► segment ─► a slice of its file

Readers take no lock. They use a ``LogView``, an immutable summary of the log (segments, offsets); every
change of the log replaces it by a new one. A failed append truncates the bytes that it wrote. A failed fsync
takes the log offline.

A thread that must not wait, such as a server's event loop, calls ``try_append``; the log calls
``when_moved`` when one of its offsets has changed, so that such a thread need not poll.

There are two locks. ``_lock`` guards the state in memory and the active segment; every append takes it.
``_segments_lock`` guards the files of closed segments. A change that renames, truncates or removes them takes
``_segments_lock`` first and ``_lock`` second. A swap of segments holds only ``_segments_lock`` while it
renames and syncs files, so appends continue. (Kafka's ``UnifiedLog`` has one lock, and appends wait.)
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from random import randrange
from typing import NamedTuple

import numpy as np

from siltstone.base import files
from siltstone.base.clock import Clock, SystemClock
from siltstone.base.config import LONG_MAX, LogConfig
from siltstone.base.errors import (
    DirectoryRefusedError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    SourceChangedError,
    StorageError,
    UnsafeFileError,
    UsageError,
)
from siltstone.base.records.layout import BATCH_OVERHEAD, Bytes
from siltstone.log.checkpoints import LeaderEpochs
from siltstone.log.fetch import LogView
from siltstone.log.ledger.store import delete_cursor_beyond, recover_ledgers
from siltstone.log.names import SNAPSHOT, TopicPartition, parse_partition, parse_segment_file, segment_file
from siltstone.log.producers import ProducerStates, load_producers
from siltstone.log.read_only import ReadableLog
from siltstone.log.recovery.partition import RecoveredPartition, recover_partition
from siltstone.log.recovery.scan import epochs_of
from siltstone.log.replacement import NO_VERIFIED_LOGS, VerifiedLogs, swap_in
from siltstone.log.segment import LiveSegment, SegmentDirectory, remove_empty_segment
from siltstone.log.segments import Segment, find_segment, list_segments
from siltstone.log.validation import Origin, ValidatedBatches, validate_and_assign


class SegmentList:
    """The segments of an open log, ascending by base offset (Kafka's ``LocalLog``). The last one is active.

    There is always at least one. ``segments`` is a tuple that each change replaces, so a reader of the old
    tuple continues with its segments. The producers, the leader epochs, the log start offset and the locks
    are ``PartitionLog``'s. Every method may raise OSError.
    """

    __slots__ = ("_clock", "_directory", "config", "segments")

    def __init__(self, recovered: RecoveredPartition, config: LogConfig, clock: Clock) -> None:
        self._directory = SegmentDirectory(recovered.directory)
        self.config = config
        self._clock = clock
        self.segments = tuple(self._open_segment(segment) for segment in recovered.segments)
        if not self.segments:
            self.segments = (self._create(recovered.log_end_offset),)

    @property
    def directory(self) -> Path:
        """The log's directory."""
        return self._directory.path

    @property
    def active(self) -> LiveSegment:
        """The active segment, which appends are written to."""
        return self.segments[-1]

    def _open_segment(self, segment: Segment) -> LiveSegment:
        return LiveSegment(
            segment,
            self.config,
            created_ms=self._clock.now_ms(),
            jitter_ms=self._jitter(),
            directory=self._directory,
        )

    def _create(self, base_offset: int) -> LiveSegment:
        """Create an empty segment, durably. Raises OSError.

        After an error no file of the new segment is left. If the disk was full, the log stays online and may
        append offsets at and above ``base_offset`` to the segment before. If a ``.log`` with that base offset
        existed, a start would refuse these offsets, since they would belong to the other segment.
        """
        now_ms, jitter_ms = self._clock.now_ms(), self._jitter()
        try:
            segment = LiveSegment.create(
                self._directory, base_offset, self.config, now_ms=now_ms, jitter_ms=jitter_ms
            )
            files.sync_directory(self.directory)
        except OSError as error:
            try:
                remove_empty_segment(self.directory, base_offset)
            except OSError as second:
                raise OSError(errno.EIO, f"{error}; and its files stay", str(self.directory)) from second
            raise
        return segment

    def _jitter(self) -> int:
        """How many ms before ``segment.ms`` a segment rolls: random, so that not all logs roll at once."""
        limit_ms = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return randrange(limit_ms) if limit_ms > 0 else 0

    def roll(self, base_offset: int) -> LiveSegment:
        """Create a new active segment; the one before it becomes a closed segment."""
        self.active.save_indexes(closing=True)
        active = self._create(base_offset)
        self.segments = (*self.segments, active)
        return active

    def delete_oldest(self, count: int) -> list[Path]:
        """Remove the ``count`` oldest segments, never the active one; returns their ``.deleted`` files."""
        removed = self.segments[: min(count, len(self.segments) - 1)]
        self.segments = self.segments[len(removed) :]
        renamed = []
        for segment in removed:
            renamed += segment.mark_deleted()
            # One fsync for each segment, oldest first: a crash must not remove a tombstone while an older
            # value of its key is still in the log.
            if self.config.compacts:
                files.sync_directory(self.directory)
        if renamed and not self.config.compacts:
            files.sync_directory(self.directory)
        return renamed

    def truncate(self, offset: int) -> Callable[[], None]:
        """Remove the records at and above ``offset`` from ``segments``; returns a function that removes them
        from the disk.

        The caller publishes the shorter view before it calls that function, so that no reader reads beyond
        the end. The function removes later segments first, so that a crash leaves no gap.
        """
        remaining = [segment for segment in self.segments if segment.base_offset <= offset]
        removed = self.segments[len(remaining) :]
        if not remaining:  # the whole log is above ``offset``
            self.restart(offset)
            return lambda: None
        last = remaining[-1].truncated(offset, self.config)
        is_shorter = last is not remaining[-1]
        self.segments = (*remaining[:-1], last)

        def truncate_files() -> None:
            self._remove(removed)
            if is_shorter:
                last.truncate_files(offset)
            files.sync_directory(self.directory)

        return truncate_files

    def restart(self, offset: int) -> None:
        """Remove all records and continue with one empty segment at ``offset``.

        The empty segment is created before the others are removed: after a crash, a log without a segment
        would start at offset 0.
        """
        # A segment that begins at ``offset`` becomes the empty one. No earlier segment may have records at or
        # above ``offset`` beside it, not even after a crash.
        if self.segments[0].base_offset <= offset:
            self.truncate(offset)()
        at_offset = (segment for segment in self.segments if segment.base_offset == offset)
        active = next(at_offset, None) or self._create(offset)
        self._remove([segment for segment in self.segments if segment is not active])
        self.segments = (active,)

    def _remove(self, removed: Sequence[LiveSegment]) -> None:
        for segment in reversed(removed):
            for path in segment.mark_deleted():
                # The segment's files may have replaced ``.deleted`` files that an earlier swap left under the
                # same names. The thread that unlinks those after ``file.delete.delay.ms`` may come first.
                with contextlib.suppress(FileNotFoundError):
                    files.unlink(path)
            files.sync_directory(self.directory)

    def closed_segments(self, base_offsets: Sequence[int]) -> tuple[LiveSegment, ...]:
        """The closed segments with these base offsets. Raises SourceChangedError when one does not exist."""
        closed = tuple(segment for segment in self.segments[:-1] if segment.base_offset in base_offsets)
        if len(closed) != len(base_offsets):
            raise SourceChangedError(
                f"not all of the closed segments {sorted(base_offsets)} exist any more; nothing was swapped",
                path=self.directory,
            )
        return closed

    def swap_files(
        self, new_bases: Sequence[int], old: Sequence[LiveSegment], verified: VerifiedLogs
    ) -> tuple[list[LiveSegment], list[Path]]:
        """Replace the files of the closed segments ``old`` by the ``.cleaned`` files with base offsets
        ``new_bases``; ``segments`` has the old segments until ``exchange_segments``.

        Opens the old files first: readers of the old view still need them. The caller holds
        ``PartitionLog._segments_lock``. Returns the new segments and the paths of the ``.deleted`` files.
        Raises CorruptRecordError when a new segment fails its verification; no old segment was renamed then.
        """
        for segment in old:
            segment.keep_open()
        deleted_files = swap_in(self.directory, new_bases, [segment.base_offset for segment in old], verified)
        new = [self._open_segment(find_segment(self.directory, base)) for base in sorted(new_bases)]
        return new, deleted_files

    def exchange_segments(self, old: Sequence[LiveSegment], new: Sequence[LiveSegment]) -> None:
        """Replace the old segments in ``segments`` by the new ones."""
        for segment in old:
            segment.close_for_append()
        unchanged = [segment for segment in self.segments if segment not in old]
        self.segments = tuple(sorted((*unchanged, *new), key=lambda segment: segment.base_offset))


TaskRunner = Callable[[Callable[[], None]], object]
"""Takes a function without parameters and calls it, now or in another thread. A log passes it the flush of a
closed segment after a roll."""


def run_now(task: Callable[[], None]) -> None:
    """A ``TaskRunner`` that runs the task at once, in the caller's thread."""
    task()


class AppendResult(NamedTuple):
    """The result of an append: the offsets of its batches (Kafka's ``LogAppendInfo``).

    ``is_duplicate``: the batch was in the log already, at these offsets. ``log_append_ms``: with
    ``message.timestamp.type=LogAppendTime`` the time that the log assigned, else -1. For a duplicate it is,
    as in Kafka, the largest timestamp of the stored batch, whatever the timestamp type. ``trailing_bytes``:
    how many bytes after a producer's batch were not appended (see ``PartitionLog.append``).
    """

    first_offset: int
    last_offset: int
    log_append_ms: int = -1
    is_duplicate: bool = False
    trailing_bytes: int = 0


DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
"""If a write fails with one of these, it is undone and the log stays online."""
TRY_APPEND_BYTES_MAX = 256 << 10
"""``try_append`` refuses a batch that has more bytes, or that decompresses to more. The append of a batch of
this size takes about 100 µs; to pass a batch to another thread costs 40 µs of CPU time."""


class _WouldWaitError(Exception):
    """An append in a thread that must not wait would create a file or sync one."""


def _epochs_of(validated: ValidatedBatches) -> list[tuple[int, int]]:
    """(leader epoch, first offset) wherever the epoch changes; batches that a replica fetches may have
    several."""
    if len(validated.batches) == 1:  # as from every client: without the array operations of ``epochs_of``
        return [(validated.batches["leader_epoch"].item(0), validated.first_offset)]
    return epochs_of(validated.batches)


class PartitionLog(ReadableLog):
    """The log of one partition; a program opens it through a ``LogManager``.

    ``view``: the log as readers see it now. ``recovery_point``: all records below this offset are durable.
    ``flushed_ms``: the time of the last flush. ``offline``: the error that took the log offline, after which
    it refuses every change; None as long as there was none. ``when_moved``: is called with the log whenever
    one of the offsets in ``view`` has changed, and when the log was closed or has gone offline. It is called
    in the thread that made the change, which holds the log's locks: it must not wait, nor use the log.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        recovered: RecoveredPartition,
        config: LogConfig,
        clock: Clock,
        *,
        background: TaskRunner = run_now,
    ) -> None:
        """The log of a directory after its recovery. Raises OSError."""
        self.topic_partition = topic_partition
        self.directory = recovered.directory
        self.config, self._no_wait_config = config, _no_wait(config)
        self._clock = clock
        self._background = background
        self._lock = threading.RLock()
        self._segments_lock = threading.RLock()
        self.offline: str | None = None
        self.when_moved: Callable[[PartitionLog], object] | None = None
        self._closed = False
        self._producers = ProducerStates(recovered.log_end_offset, recovered.producers)
        self._epochs = LeaderEpochs(recovered.directory)
        self.recovery_point = recovered.log_end_offset
        self.flushed_ms = clock.now_ms()
        self._truncations = 0  # how often, since the log was opened
        self._high_watermark: int | None = None  # None: always the log end offset
        self._segment_list = SegmentList(recovered, config, clock)
        self._log_start_offset, self._log_end_offset = recovered.log_start_offset, recovered.log_end_offset
        self._publish()

    def __repr__(self) -> str:
        text = super().__repr__()
        if self.offline is not None:
            return f"{text[:-1]}, offline: {self.offline}>"
        return f"{text[:-1]}, closed>" if self._closed else text

    @property
    def size(self) -> int:
        """Bytes of all segments' logs."""
        return sum(segment.size for segment in self.view.segments)

    @property
    def is_open(self) -> bool:
        """Can the log be used: is it neither closed nor offline?"""
        return not self._closed and self.offline is None

    @property
    def leader_epoch(self) -> int:
        """The epoch that the next batch gets: the latest one, 0 as long as there is none."""
        return self._epochs.latest_epoch or 0

    def end_of_epoch(self, epoch: int) -> tuple[int, int] | None:
        """(the largest epoch up to ``epoch``, the offset at which it ends). None for -1 (unknown), and for an
        epoch that the log does not have yet. An epoch before the log's first epoch ends where the first
        begins. (``LeaderEpochFileCache.endOffsetFor``.)"""
        entries = self._epoch_entries()
        if epoch == self.leader_epoch:
            return epoch, self._log_end_offset
        end = next((start for later, start in entries if later > epoch), None)
        if epoch == -1 or end is None:
            return None
        return max((earlier for earlier, _ in entries if earlier <= epoch), default=epoch), end

    def epoch_at(self, offset: int) -> int:
        """The leader epoch of the record at ``offset``, -1 if that is not known."""
        entries = self._epoch_entries()
        return max((epoch for epoch, start in entries if start <= offset), default=-1)

    def _epoch_entries(self) -> tuple[tuple[int, int], ...]:
        """(leader epoch, start offset), ascending. A log without epochs counts as one of epoch 0."""
        return self._epochs.entries or ((0, 0),)

    def _publish(self) -> None:
        """Replace ``view`` by a view of the log as it is now, and call ``when_moved`` if an offset
        changed."""
        before = self.view if self.when_moved is not None else None
        high_watermark = self._log_end_offset
        if self._high_watermark is not None:  # after a truncation or a deletion it may be out of bounds
            high_watermark = min(max(self._high_watermark, self._log_start_offset), self._log_end_offset)
            self._high_watermark = high_watermark
        self.view = LogView(
            self._segment_list.segments,
            self._log_start_offset,
            self._log_end_offset,
            high_watermark,
            self._producers.last_stable_offset(high_watermark, self._log_start_offset),
            self._segment_list.active.size,
            self.config.max_decompressed_message_bytes,
            self._truncations,
        )
        if before is not None and before.offsets != self.view.offsets:
            self._call_when_moved()

    def _call_when_moved(self) -> None:
        if self.when_moved is not None:
            self.when_moved(self)

    def _refuse_unusable(self) -> None:
        """Raise StorageError if the log is closed or offline."""
        if self._closed or self.offline is not None:
            raise self._storage_error(self.offline or "the log is closed")

    def _go_offline(self, error: OSError | UnsafeFileError) -> StorageError:
        """Take the log offline: memory and disk may differ, so it has to be recovered. Returns the error."""
        self.offline = f"{(isinstance(error, OSError) and error.strerror) or error}"
        self._call_when_moved()
        return self._storage_error(self.offline)

    def _storage_error(self, reason: str) -> StorageError:
        return StorageError(reason, path=self.directory, advice="open the log again")

    @contextlib.contextmanager
    def _offline_on_error(self) -> Iterator[None]:
        """An error of the file system takes the log offline and becomes a StorageError."""
        try:
            yield
        except (OSError, UnsafeFileError) as error:
            raise self._go_offline(error) from error

    @contextlib.contextmanager
    def _locked_for_change(self) -> Iterator[None]:
        """Hold ``_lock`` on a log that can be used; an error of the file system takes the log offline."""
        with self._lock:
            self._refuse_unusable()
            with self._offline_on_error():
                yield

    def append(
        self,
        data: Bytes | bytes | bytearray | memoryview,
        *,
        origin: Origin = Origin.CLIENT,
        leader_epoch: int | None = None,
        sync: bool = False,
    ) -> AppendResult:
        """Append batches. Offsets are written into ``data`` itself where it is a writable buffer.

        A client's ``data`` is one batch. A second whole batch is refused. Other bytes after the first batch,
        such as an incomplete batch, are not appended, as in Kafka; ``trailing_bytes`` counts them.
        ``leader_epoch`` defaults to the log's latest; a lower one would remove the later epochs. ``sync``:
        return only when the batches are durable. Raises a LogError with Kafka's code; neither the log nor
        ``data`` has changed then, unless the disk failed after the append (StorageError: the log is offline).
        """
        with self._lock:
            self._refuse_unusable()
            appended = self._append_restoring(_writable(data), origin, leader_epoch, may_wait=True)
            is_flush_due = self._is_flush_due(self._log_end_offset, self._clock.now_ms())
        if sync or is_flush_due:
            self.flush()
            # Another thread's error may have taken the log offline before these batches were synced.
            if self.offline is not None and self.recovery_point <= appended.last_offset:
                raise self._storage_error(self.offline)
        return appended

    def try_append(
        self, data: Bytes | bytes | bytearray | memoryview, *, leader_epoch: int | None = None
    ) -> AppendResult | None:
        """``append`` of a client's batch in a thread that must not wait, such as a server's event loop.

        Returns None, and has changed nothing, if another thread holds the lock, if the append would create or
        sync a file, or if it takes long: a batch of over ``TRY_APPEND_BYTES_MAX``, also decompressed, or one
        that gets the topic's codec. The caller then calls ``append`` in another thread. Raises as ``append``
        does.
        """
        buffer = _writable(data)
        if len(buffer) > TRY_APPEND_BYTES_MAX or self.config.compression_type != "producer":
            return None
        if not self._lock.acquire(blocking=False):
            return None
        try:
            self._refuse_unusable()
            return self._append_restoring(buffer, Origin.CLIENT, leader_epoch, may_wait=False)
        except (_WouldWaitError, MessageTooLargeError):
            return None  # whether the batch is too large for the topic, too, is for ``append`` to say
        finally:
            self._lock.release()

    def _append_restoring(
        self, buffer: Bytes, origin: Origin, leader_epoch: int | None, *, may_wait: bool
    ) -> AppendResult:
        """``_append``, but if that appends nothing, restore the headers into which validation has written
        offsets. A client's ``buffer`` has one batch; a leader's batches keep their offsets."""
        written = {Origin.CLIENT: BATCH_OVERHEAD, Origin.REPLICATION: 0}.get(origin)  # None: all of it
        before = buffer[:written].copy()
        appended = None
        try:
            appended = self._append(buffer, origin, leader_epoch, self._clock.now_ms(), may_wait=may_wait)
        finally:
            if appended is None or appended.is_duplicate:
                buffer[: len(before)] = before
        return appended

    def _is_flush_due(self, log_end_offset: int, now_ms: int) -> bool:
        """Is the log to be flushed once it ends at ``log_end_offset``?"""
        if log_end_offset - self.recovery_point >= self.config.flush_messages:
            return True
        return self.is_flush_time(now_ms)

    def is_flush_time(self, now_ms: int) -> bool:
        """Has ``flush.ms`` passed since the last flush? Also yes if the clock was set back since then: how
        much time has passed is unknown."""
        flush_ms = self.config.flush_ms
        return flush_ms < LONG_MAX and not 0 <= now_ms - self.flushed_ms < flush_ms

    def _append(
        self, buffer: Bytes, origin: Origin, leader_epoch: int | None, now_ms: int, *, may_wait: bool
    ) -> AppendResult:
        validated = validate_and_assign(
            buffer,
            config=self.config if may_wait else self._no_wait_config,
            next_offset=self._log_end_offset,
            now_ms=now_ms,
            leader_epoch=(self._epochs.latest_epoch or 0) if leader_epoch is None else leader_epoch,
            origin=origin,
        )
        duplicate = self._producers.check(validated.batches, validated.data, origin=origin)
        if duplicate is not None:
            stored = duplicate.first_offset, duplicate.last_offset, duplicate.timestamp_ms
            return AppendResult(*stored, is_duplicate=True, trailing_bytes=validated.trailing_bytes)
        try:
            must_roll = self._segment_list.active.must_roll(self.config, validated, now_ms)
            if not may_wait and (must_roll or self._must_sync(validated, now_ms)):
                raise _WouldWaitError
            self._write(validated, must_roll=must_roll)
        except OSError as error:
            raise self._go_offline(error) from error
        append_ms = now_ms if self.config.message_timestamp_type == "LogAppendTime" else -1
        offsets = validated.first_offset, validated.last_offset
        return AppendResult(*offsets, append_ms, trailing_bytes=validated.trailing_bytes)

    def _must_sync(self, validated: ValidatedBatches, now_ms: int) -> bool:
        """Does the append of these batches sync a file: ``leader-epoch-checkpoint``, or the log by a
        flush?"""
        epoch = validated.batches["leader_epoch"].item(-1)
        return epoch != self._epochs.latest_epoch or self._is_flush_due(validated.last_offset + 1, now_ms)

    def _write(self, validated: ValidatedBatches, *, must_roll: bool) -> None:
        try:
            active = self._segment_list.active
            if must_roll:
                active = self._roll(validated.first_offset)
            for epoch, first_offset in _epochs_of(validated):
                if epoch >= 0 and epoch != self._epochs.latest_epoch:
                    self._epochs.assign(epoch, first_offset)
            active.append(validated)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:
                raise
            # Not an OSError, so ``_append`` leaves the log online: what this call wrote was undone.
            raise StorageError(
                f"{error.strerror}; the batches of this call were not appended",
                path=self.directory,
                advice="free space, and append them again",
            ) from error
        # The batches are in the file. After an error below, memory and disk differ, so ``_append`` takes the
        # log offline.
        aborted = self._producers.update(validated.batches, validated.data)
        if aborted:
            active.add_aborted(aborted)
        self._log_end_offset = validated.last_offset + 1
        self._publish()

    def roll(self, base_offset: int | None = None) -> None:
        """Create a new active segment at ``base_offset``, by default the log end offset."""
        with self._locked_for_change():
            self._roll(self._log_end_offset if base_offset is None else base_offset)
            self._publish()

    def _roll(self, base_offset: int) -> LiveSegment:
        # An empty active segment that begins there already is used.
        if base_offset <= self._segment_list.active.base_offset:
            return self._segment_list.active
        self._write_snapshot(base_offset)
        active = self._segment_list.roll(base_offset)
        self._background(lambda: self.flush(including_active=False))
        return active

    def _write_snapshot(self, offset: int) -> None:
        """Write a producer snapshot at ``offset``, so that recovery reads only the batches from there on. At
        the log start offset there is one only if there is a producer, as after a recovery."""
        path = self.directory / segment_file(offset, SNAPSHOT)
        is_needed = offset > self._log_start_offset or self._producers.entries()
        if is_needed and not files.exists(path):
            files.replace(path, self._producers.snapshot())

    def flush(self, *, including_active: bool = True) -> None:
        """Make all records durable that were appended before this call; without ``including_active`` only
        those of the closed segments.

        Does nothing on a log that is closed or offline. Raises StorageError, also if the log goes offline
        meanwhile.
        """
        with self._lock:
            if self._closed or self.offline is not None:
                return
            flush_offset = self._log_end_offset if including_active else self._segment_list.active.base_offset
            truncations = self._truncations
            segments = self._segment_list.segments[: None if including_active else -1]
            unsynced = [segment for segment in segments if segment.is_unsynced]
            with self._offline_on_error():
                for segment in unsynced:
                    segment.save_indexes()
        with self._offline_on_error():
            for segment in unsynced:
                # This thread does not hold the lock: a segment may be removed or swapped at the same time.
                with contextlib.suppress(FileNotFoundError):
                    segment.sync()
        with self._lock:
            if self.offline is not None:  # its files were closed, perhaps before they were synced
                raise self._storage_error(self.offline)
            # After a truncation in the meantime, new batches below ``flush_offset`` may not be synced.
            if truncations == self._truncations:
                self.recovery_point = max(self.recovery_point, min(flush_offset, self._log_end_offset))
            if including_active:
                self.flushed_ms = self._clock.now_ms()

    # Start offset, retention and truncation

    def set_high_watermark(self, offset: int | None) -> None:
        """Set the high watermark; None: it always equals the log end offset. As in Kafka
        (``UnifiedLog.updateHighWatermark``) it may be lower than before, and an offset below the log start
        offset or above the log end offset is taken for that one."""
        with self._lock:
            self._high_watermark = offset
            self._publish()

    def delete_records(self, before: int) -> int:
        """Raise the log start offset to ``before`` (-1: to the high watermark); returns the log start offset.

        The next retention check removes the segments below it. Raises OffsetOutOfRangeError for an offset
        above the high watermark.
        """
        with self._locked_for_change():
            target = self.high_watermark if before == -1 else before
            if not 0 <= target <= self.high_watermark:
                raise OffsetOutOfRangeError(
                    f"offset {target} is not between 0 and the high watermark, {self.high_watermark}",
                    path=str(self.topic_partition),
                    advice="pass an offset up to the high watermark, or -1 for the high watermark itself",
                )
            self._raise_log_start(target)
            return self._log_start_offset

    def _raise_log_start(self, offset: int) -> None:
        if offset <= self._log_start_offset:
            return
        self._log_start_offset = offset
        self.recovery_point = max(self.recovery_point, offset)
        self._epochs.truncate_from_start(offset)
        self._publish()

    def delete_oldest_segments(self, count: int | Callable[[LogView], int]) -> list[Path]:
        """Remove the ``count`` oldest segments, or as many as the function ``count`` returns for the view.

        If these are all segments, the log rolls first, so that it keeps its log end offset. Returns the paths
        of the ``.deleted`` files, which the caller unlinks later.
        """
        with self._segments_lock, self._locked_for_change():
            number = count(self.view) if callable(count) else count
            if number >= len(self._segment_list.segments) and self._segment_list.active.size:
                self._roll(self._log_end_offset)
            deleted_files = self._segment_list.delete_oldest(number)
            self._raise_log_start(max(self._log_start_offset, self._segment_list.segments[0].base_offset))
            self._publish()
            return deleted_files

    def truncate_to(self, offset: int) -> bool:
        """Remove all records at and above ``offset``, durably; returns False when there were none.

        Also removes a compacted ledger that covers some of these offsets.
        """
        with self._segments_lock, self._locked_for_change():
            if offset >= self._log_end_offset:
                return False
            # The ledger first: otherwise, after a crash, it might cover offsets that are then written again.
            delete_cursor_beyond(self.directory, offset)
            truncate_files = self._segment_list.truncate(offset)
            self._publish_bounds(min(self._log_start_offset, offset), offset)
            truncate_files()
            self._truncate_state(offset)
            return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all records; the next record gets ``offset`` (Kafka's ``truncateFullyAndStartAt``).

        A follower does this when its log ends below the leader's log start offset. Also removes the compacted
        ledger, which lacks the records between the old end and ``offset``.
        """
        with self._segments_lock, self._locked_for_change():
            delete_cursor_beyond(self.directory, 0)
            self._segment_list.restart(offset)
            self._publish_bounds(offset, offset)
            self.recovery_point = offset
            self._truncate_state(offset, all_snapshots=True)

    def _publish_bounds(self, log_start_offset: int, log_end_offset: int) -> None:
        """Set both offsets for a truncation and publish the view."""
        self._log_start_offset, self._log_end_offset = log_start_offset, log_end_offset
        self.recovery_point = min(self.recovery_point, log_end_offset)
        self._truncations += 1
        self._publish()

    def _truncate_state(self, end: int, *, all_snapshots: bool = False) -> None:
        """Remove the epochs, producer snapshots and producers of the truncated batches. ``end``: the log's
        new end offset; ``all_snapshots``: no batch is left, so remove the snapshots below ``end``, too."""
        self._epochs.truncate_from_end(end)
        for entry in files.entries(self.directory):
            name = parse_segment_file(entry.name)
            if name is not None and name.kind == SNAPSHOT and (all_snapshots or name.base_offset > end):
                with contextlib.suppress(FileNotFoundError):  # a ``.deleted`` snapshot, see ``_remove``
                    files.unlink(self.directory / entry.name)
        # Up to damage: recovery may have left some in a closed segment, and an error here would leave the
        # truncation half done.
        segments = list_segments(self.directory)
        self._producers = load_producers(self.directory, segments, end, up_to_damage=True)
        self._publish()

    def replace(
        self, new: Sequence[int], old: Sequence[int], verified: VerifiedLogs = NO_VERIFIED_LOGS
    ) -> list[Path]:
        """Replace closed, flushed segments by ``.cleaned`` ones (Kafka's ``replaceSegments``).

        ``new`` and ``old`` are base offsets; ``verified``: see ``log.replacement``. Appends wait only while
        the list of segments is exchanged. Readers of the old view continue with its open files. Returns the
        paths of the ``.deleted`` files, which the caller unlinks later. Raises CorruptRecordError when a new
        segment fails its verification and SourceChangedError when an old one does not exist; nothing has
        changed then. Raises StorageError.
        """
        with self._segments_lock:
            with self._lock:
                self._refuse_unusable()
                old_segments = self._segment_list.closed_segments(old)
            with self._offline_on_error():
                new_segments, deleted_files = self._segment_list.swap_files(new, old_segments, verified)
            with self._lock:
                self._segment_list.exchange_segments(old_segments, new_segments)
                self._publish()
            return deleted_files

    def view_and_producers(self) -> tuple[LogView, ProducerStates]:
        """The view, and a copy of the producer states at its log end offset."""
        with self._lock:
            view, entries = self.view, self._producers.entries()
        return view, ProducerStates(view.log_end_offset, entries)

    def largest_producer_id(self, below: int) -> int:
        """The largest id under ``below`` of a producer that has not expired, -1 without one."""
        with self._lock:
            return self._producers.largest_id(below)

    def update_config(self, config: LogConfig) -> None:
        """Replace the settings. Sizes of files apply from the next roll on, all others at once."""
        with self._lock:
            self.config = self._segment_list.config = config
            self._no_wait_config = _no_wait(config)
            self._publish()

    def expire_producers(self) -> None:
        """Remove producers that appended nothing for ``producer.id.expiration.ms``."""
        with self._lock:
            self._producers.expire(self._clock.now_ms(), self.config.producer_id_expiration_ms)

    def close(self) -> None:
        """Flush, write a producer snapshot, close the files. Raises StorageError. May be called twice."""
        with self._segments_lock, self._lock:
            if self._closed:
                return
            if self.offline is None:
                with self._locked_for_change():
                    self._segment_list.active.save_indexes(closing=True)
                    self._write_snapshot(self._log_end_offset)
                self.flush()
            self._closed = True
            for segment in self._segment_list.segments:
                segment.close_for_append()
            self._call_when_moved()


_logger = logging.getLogger("siltstone")


@lru_cache(maxsize=64)
def _no_wait(config: LogConfig) -> LogConfig:
    """The settings by which ``try_append`` checks a batch: it may not decompress to much. One object for all
    logs with the same settings."""
    limit = min(config.max_decompressed_message_bytes, TRY_APPEND_BYTES_MAX)
    return replace(config, max_decompressed_message_bytes=limit)


def _writable(data: Bytes | bytes | bytearray | memoryview) -> Bytes:
    """An array over the buffer ``data``, or over a copy of it if it is not writable. Raises UsageError."""
    if not isinstance(data, (np.ndarray, bytes, bytearray, memoryview)):
        raise UsageError(
            f"a {type(data).__name__} is not a record batch in Kafka's format",
            advice="call st.append(log, [st.NewRecord(key=…, value=…)]), which makes one",
        )
    array: Bytes = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    return array if array.flags.writeable else array.copy()


def partition_of(directory: Path) -> TopicPartition:
    """The partition of a directory, by its name. Raises DirectoryRefusedError unless that is ``topic-N``."""
    topic_partition = parse_partition(directory.absolute().name)
    if topic_partition is None:
        raise DirectoryRefusedError(
            "the name of a partition's directory must be TOPIC-N, such as events-0",
            path=directory,
            advice="rename the directory, or pass another one",
        )
    return topic_partition


def open_partition(
    directory: Path,
    config: LogConfig | None = None,
    clock: Clock | None = None,
    *,
    topic_partition: TopicPartition | None = None,
    had_clean_shutdown: bool = False,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    background: TaskRunner = run_now,
    create: bool = True,
) -> PartitionLog:
    """Recover one partition directory and its compacted ledgers, and open the log.

    An empty directory gets its first segment. This takes no lock and reads no checkpoint; ``LogManager`` does
    both, so a program opens its logs there. Without ``had_clean_shutdown`` recovery scans the log from
    ``recovery_point`` on. ``topic_partition``: what the directory's name says, if the caller has parsed it.
    ``background``: runs flushes after a roll. ``create``: make the directory if it is missing. Raises
    CorruptRecordError, UnsafeFileError, OSError.
    """
    config, clock = config or LogConfig(), clock or SystemClock()
    if create:
        files.make_directory(directory, parents=True)
    recovered = recover_partition(
        directory,
        had_clean_shutdown=had_clean_shutdown,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        config=config,
        now_ms=clock.now_ms(),
    )
    for note in (*recovered.notes, *recovered.damage):
        _logger.warning("%s: recovery: %s", directory, note)
    recover_ledgers(directory, recovered.log_end_offset)
    topic_partition = topic_partition or partition_of(directory)
    return PartitionLog(topic_partition, recovered, config, clock, background=background)
