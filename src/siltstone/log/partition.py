"""One partition's log, open for appends and reads (Kafka's ``UnifiedLog`` and ``LocalLog``).

::

    append ─► validate, assign offsets ─► producers ─► roll? ─► segment ─► view ─► flush?
    read   ─► view ─► segment ─► a slice of its file

Readers take no lock: they use a ``LogView``, which is replaced as a whole. The bytes of a failed append are
truncated again; a failed fsync takes the log offline.

There are two locks. ``_lock`` guards the state in memory and the active segment; every append takes it.
``_segments_lock`` guards the files of closed segments: a change that renames, truncates or removes them takes
it, and then ``_lock``, always in this order. A swap has only ``_segments_lock`` while it renames and syncs
files, so appends continue (Kafka's ``UnifiedLog`` has one lock for both, and appends wait).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from siltstone.base import files
from siltstone.base.clock import Clock, SystemClock
from siltstone.base.config import LogConfig
from siltstone.base.errors import (
    DirectoryRefusedError,
    OffsetOutOfRangeError,
    SourceChangedError,
    StorageError,
    UnsafeFileError,
    UsageError,
)
from siltstone.base.records.layout import BATCH_OVERHEAD, Bytes
from siltstone.log.checkpoints import LeaderEpochs
from siltstone.log.fetch import LogView
from siltstone.log.ledger.store import forget_beyond, recover_ledgers
from siltstone.log.names import SNAPSHOT, TopicPartition, parse_partition, parse_segment_file, segment_file
from siltstone.log.producers import ProducerStates, load_producers
from siltstone.log.read_only import ReadableLog
from siltstone.log.recovery.partition import Recovered, recover_partition
from siltstone.log.replacement import NOTHING_VERIFIED, Verified, swap_in
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import Segment, find_segment, list_segments
from siltstone.log.validation import Origin, Validated, validate_and_assign


class SegmentList:
    """The segments of an open log, in order, at least one; the last one is active (Kafka's ``LocalLog``).

    ``segments`` is immutable and replaced as a whole: readers of the old tuple continue with its segments.
    Producers, epochs, start offsets and locks are ``PartitionLog``'s. Every method may raise OSError.
    """

    def __init__(self, recovered: Recovered, config: LogConfig, clock: Clock, random: Random) -> None:
        self.directory = recovered.directory
        self.config = config
        self._clock = clock
        self._random = random
        self.segments = tuple(self._live(segment) for segment in recovered.segments)
        if not self.segments:
            self.segments = (self._create(recovered.log_end_offset),)

    @property
    def active(self) -> LiveSegment:
        """The active segment, which appends are written to."""
        return self.segments[-1]

    def _live(self, segment: Segment) -> LiveSegment:
        return LiveSegment(segment, self.config, created_ms=self._clock.now_ms(), jitter_ms=self._jitter())

    def _create(self, base_offset: int) -> LiveSegment:
        now_ms, jitter_ms = self._clock.now_ms(), self._jitter()
        segment = LiveSegment.create(
            self.directory, base_offset, self.config, now_ms=now_ms, jitter_ms=jitter_ms
        )
        files.sync_directory(self.directory)
        return segment

    def _jitter(self) -> int:
        limit_ms = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return self._random.randrange(limit_ms) if limit_ms > 0 else 0

    def roll(self, base_offset: int) -> LiveSegment:
        """Begin a new active segment; the one before is closed from now on."""
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
            # Durable one by one, oldest first: a tombstone must not vanish before an older value of its key.
            if self.config.compacts:
                files.sync_directory(self.directory)
        if renamed and not self.config.compacts:
            files.sync_directory(self.directory)
        return renamed

    def truncate(self, offset: int) -> Callable[[], None]:
        """Remove everything at and above ``offset`` from ``segments``; returns what does it on the disk.

        In between the caller publishes the shorter view. On the disk later segments are removed first, so
        that a crash leaves no gap.
        """
        remaining = [segment for segment in self.segments if segment.base_offset <= offset]
        removed = self.segments[len(remaining) :]
        if not remaining:
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
        """Remove everything and continue with one empty segment at ``offset``.

        It is made before the others are removed: a log without a segment would start at 0 after a crash.
        """
        if self.segments[0].base_offset <= offset:
            self.truncate(offset)()
        existing = (segment for segment in self.segments if segment.base_offset == offset)
        active = next(existing, None) or self._create(offset)
        self._remove([segment for segment in self.segments if segment is not active])
        self.segments = (active,)

    def _remove(self, removed: Sequence[LiveSegment]) -> None:
        for segment in reversed(removed):
            for path in segment.mark_deleted():
                files.unlink(path)
            files.sync_directory(self.directory)

    def closed(self, bases: Sequence[int]) -> tuple[LiveSegment, ...]:
        """The closed segments with these base offsets. Raises SourceChangedError when one does not exist."""
        closed = tuple(segment for segment in self.segments[:-1] if segment.base_offset in bases)
        if len(closed) != len(bases):
            raise SourceChangedError(
                f"the closed segments {sorted(bases)} do not all exist any more; nothing was swapped",
                path=self.directory,
            )
        return closed

    def swap_files(
        self, new: Sequence[int], old: Sequence[LiveSegment], verified: Verified
    ) -> tuple[list[LiveSegment], list[Path]]:
        """Replace closed segments by the ``.cleaned`` ones with base offsets ``new``, on the disk only.

        ``segments`` has the old ones until ``exchange``; ``keep_open`` has opened their files for readers of
        the old view. Needs only the lock of changes to closed segments. Returns the new segments and the
        ``.deleted`` files. Raises CorruptRecordError when a new segment fails its verification; no old
        segment was renamed then.
        """
        for segment in old:
            segment.keep_open()
        retired = swap_in(self.directory, new, [segment.base_offset for segment in old], verified)
        return [self._live(find_segment(self.directory, base)) for base in sorted(new)], retired

    def exchange(self, old: Sequence[LiveSegment], new: Sequence[LiveSegment]) -> None:
        """Replace the old segments in ``segments`` by the new ones."""
        for segment in old:
            segment.close_for_append()
        others = [segment for segment in self.segments if segment not in old]
        self.segments = tuple(sorted((*others, *new), key=lambda segment: segment.base_offset))


Background = Callable[[Callable[[], None]], object]
"""Runs a task now or later, such as the flush of a closed segment after a roll."""


def run_now(task: Callable[[], None]) -> None:
    """A ``Background`` that runs the task at once, in the caller's thread."""
    task()


class Appended(NamedTuple):
    """The offsets of an append (Kafka's ``LogAppendInfo``). ``duplicate``: the batch was in the log already,
    at these offsets.

    ``log_append_ms`` is the assigned time under log-append time, else -1. For a duplicate it is, as in Kafka,
    the largest timestamp of the stored batch, whatever the topic's timestamp type. ``left_out``: the number
    of bytes after a producer's batch that were not appended.
    """

    first_offset: int
    last_offset: int
    log_append_ms: int = -1
    duplicate: bool = False
    left_out: int = 0


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class PartitionLog(ReadableLog):
    """The log of one partition; a program opens it through a ``LogManager``.

    Public attributes: ``topic_partition``, ``directory``, ``config``; ``view``, which readers use;
    ``recovery_point``, below which everything is durable; ``flushed_ms``, the time of the last flush;
    ``offline``, why the log takes no more appends, None while it does.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        recovered: Recovered,
        config: LogConfig,
        clock: Clock,
        *,
        background: Background = run_now,
        random: Random | None = None,
    ) -> None:
        """The log of a directory after its recovery. Raises OSError."""
        self.topic_partition = topic_partition
        self.directory = recovered.directory
        self.config = config
        self._clock = clock
        self._background = background
        self._lock = threading.RLock()
        self._segments_lock = threading.RLock()
        self.offline: str | None = None
        self._closed = False
        self._producers = ProducerStates(recovered.log_end_offset, recovered.producers)
        self._epochs = LeaderEpochs(recovered.directory)
        self.recovery_point = recovered.log_end_offset
        self.flushed_ms = clock.now_ms()
        self._truncations = 0
        self._high_watermark: int | None = None
        self._list = SegmentList(recovered, config, clock, random or Random())
        self._log_start, self._log_end = recovered.log_start_offset, recovered.log_end_offset
        self._publish()

    @property
    def size(self) -> int:
        """Bytes of all segments' logs."""
        return sum(segment.size for segment in self.view.segments)

    def _publish(self) -> None:
        """Replace the view by one of the log as it is now."""
        high_watermark = self._log_end
        if self._high_watermark is not None:
            high_watermark = min(max(self._high_watermark, self._log_start), self._log_end)
            self._high_watermark = high_watermark
        self.view = LogView(
            self._list.segments,
            self._log_start,
            self._log_end,
            high_watermark,
            self._producers.last_stable_offset(high_watermark, self._log_start),
            self._list.active.size,
            self.config.max_decompressed_message_bytes,
        )

    def _refuse_unusable(self) -> None:
        if self._closed or self.offline is not None:
            raise self._storage_error(self.offline or "the log is closed")

    def _go_offline(self, error: OSError | UnsafeFileError) -> StorageError:
        """Take the log offline: memory and disk may differ, so it has to be recovered. Returns the error."""
        self.offline = f"{(isinstance(error, OSError) and error.strerror) or error}"
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
    def _changing(self) -> Iterator[None]:
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
    ) -> Appended:
        """Append batches. Offsets are written into ``data`` itself where it is a writable buffer.

        A client's ``data`` is one batch. A second whole batch is refused; other bytes after the first, such
        as an incomplete batch, are not appended, as in Kafka, and counted in ``left_out``. ``leader_epoch``
        defaults to the log's latest; a lower one would remove the later epochs. ``sync``: return only when
        the batches are durable. Raises a LogError with Kafka's code; neither the log nor ``data`` has changed
        then.
        """
        with self._lock:
            self._refuse_unusable()
            now_ms, buffer = self._clock.now_ms(), _writable(data)
            header = buffer[:BATCH_OVERHEAD].copy()
            appended = None
            try:
                appended = self._append(buffer, origin, leader_epoch, now_ms)
            finally:
                if appended is None or appended.duplicate:
                    buffer[:BATCH_OVERHEAD] = header
            unflushed = self._log_end - self.recovery_point
            is_due = unflushed >= self.config.flush_messages
            is_due |= now_ms - self.flushed_ms >= self.config.flush_ms
        if sync or is_due:
            self.flush()
        return appended

    def _append(self, buffer: Bytes, origin: Origin, leader_epoch: int | None, now_ms: int) -> Appended:
        validated = validate_and_assign(
            buffer,
            config=self.config,
            next_offset=self._log_end,
            now_ms=now_ms,
            leader_epoch=(self._epochs.latest_epoch or 0) if leader_epoch is None else leader_epoch,
            origin=origin,
        )
        duplicate = self._producers.check(validated.batches, validated.data, origin=origin)
        if duplicate is not None:
            return Appended(
                duplicate.first_offset,
                duplicate.last_offset,
                duplicate.timestamp_ms,
                True,
                validated.left_out,
            )
        try:
            self._write(validated, now_ms)
        except OSError as error:
            raise self._go_offline(error) from error
        append_ms = now_ms if self.config.message_timestamp_type == "LogAppendTime" else -1
        return Appended(validated.first_offset, validated.last_offset, append_ms, left_out=validated.left_out)

    def _write(self, validated: Validated, now_ms: int) -> None:
        try:
            active = self._list.active
            if active.must_roll(self.config, validated, now_ms):
                active = self._roll(validated.first_offset)
            epoch = validated.batches["leader_epoch"].item(-1)
            if epoch >= 0 and epoch != self._epochs.latest_epoch:
                self._epochs.assign(epoch, validated.first_offset)
            active.append(validated)
        except OSError as error:
            if error.errno not in _DISK_FULL:
                raise
            raise StorageError(
                f"{error.strerror}; the batches of this call were not appended",
                path=self.directory,
                advice="free space, and append them again",
            ) from error
        # The batches are in the file. After an error from here on memory and disk differ: ``_append`` takes
        # the log offline then.
        aborted = self._producers.update(validated.batches, validated.data)
        if aborted:
            active.add_aborted(aborted)
        self._log_end = validated.last_offset + 1
        self._publish()

    def roll(self, base_offset: int | None = None) -> None:
        """Begin a new active segment at ``base_offset``, by default the log's end."""
        with self._changing():
            self._roll(self._log_end if base_offset is None else base_offset)
            self._publish()

    def _roll(self, base_offset: int) -> LiveSegment:
        if base_offset <= self._list.active.base_offset:
            return self._list.active
        self._write_snapshot(base_offset)
        active = self._list.roll(base_offset)
        self._background(lambda: self.flush(including_active=False))
        return active

    def _write_snapshot(self, offset: int) -> None:
        """Write a producer snapshot at ``offset``, so that recovery reads only the batches from there on."""
        path = self.directory / segment_file(offset, SNAPSHOT)
        if not files.exists(path):
            files.replace(path, self._producers.snapshot())

    def flush(self, *, including_active: bool = True) -> None:
        """Make everything that was appended before this call durable, or the closed segments alone.

        Raises StorageError.
        """
        with self._lock:
            if self._closed or self.offline is not None:
                return
            upto = self._log_end if including_active else self._list.active.base_offset
            truncations, segments = self._truncations, self._list.segments[: None if including_active else -1]
            unsynced = [segment for segment in segments if segment.is_unsynced]
            with self._offline_on_error():
                for segment in unsynced:
                    segment.save_indexes()
        with self._offline_on_error():
            for segment in unsynced:
                # Without the lock: a segment may have been removed, truncated or swapped meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    segment.sync()
        with self._lock:
            # If the log was truncated meanwhile, new batches may have offsets below ``upto`` and be unsynced.
            if truncations == self._truncations:
                self.recovery_point = max(self.recovery_point, min(upto, self._log_end))
            if including_active:
                self.flushed_ms = self._clock.now_ms()

    # Start offset, retention and truncation

    def set_high_watermark(self, offset: int | None) -> None:
        """Set the high watermark, within the log's bounds; None: it is always the log's end."""
        with self._lock:
            self._high_watermark = offset
            self._publish()

    def delete_records(self, before: int) -> int:
        """Move the log start up to ``before`` (-1: the high watermark); returns the new log start.

        Raises OffsetOutOfRangeError above the high watermark. The next retention check removes the segments
        below.
        """
        with self._changing():
            target = self.high_watermark if before == -1 else before
            if not 0 <= target <= self.high_watermark:
                raise OffsetOutOfRangeError(
                    f"offset {target} is not between 0 and the high watermark, {self.high_watermark}",
                    path=str(self.topic_partition),
                    advice="pass an offset up to the high watermark, or -1 for the high watermark itself",
                )
            self._raise_start(target)
            return self._log_start

    def _raise_start(self, offset: int) -> None:
        if offset <= self._log_start:
            return
        self._log_start = offset
        self.recovery_point = max(self.recovery_point, offset)
        self._epochs.truncate_from_start(offset)
        self._publish()

    def delete_prefix(self, count: int | Callable[[LogView], int]) -> list[Path]:
        """Remove the ``count`` oldest segments, or as many as ``count`` returns for the current view.

        If these are all segments, a new active segment begins first, so that the end offset stays. Returns
        the ``.deleted`` files, which the caller unlinks later.
        """
        with self._segments_lock, self._changing():
            removed = count(self.view) if callable(count) else count
            if removed >= len(self._list.segments) and self._list.active.size:
                self._roll(self._log_end)
            deleted_files = self._list.delete_oldest(removed)
            self._raise_start(max(self._log_start, self._list.segments[0].base_offset))
            self._publish()
            return deleted_files

    def truncate_to(self, offset: int) -> bool:
        """Remove everything at and above ``offset``, durably; False when there was nothing.

        Also removes a compacted ledger that covers some of it.
        """
        with self._segments_lock, self._changing():
            if offset >= self._log_end:
                return False
            # The ledger first: it must not survive a crash and cover offsets that are then written again.
            forget_beyond(self.directory, offset)
            finish = self._list.truncate(offset)
            self._publish_end(offset, min(self._log_start, offset))
            finish()
            self._truncate_state(offset)
            return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything and continue at ``offset`` (a follower whose log ends below its leader's start).

        Also removes the compacted ledger, which lacks the records in between.
        """
        with self._segments_lock, self._changing():
            forget_beyond(self.directory, 0)
            self._list.restart(offset)
            self._publish_end(offset, offset)
            self.recovery_point = offset
            self._truncate_state(offset, all_snapshots=True)

    def _publish_end(self, end: int, start: int) -> None:
        """Publish the new end before the files are truncated, so that no reader reads beyond it."""
        self._log_start, self._log_end = start, end
        self.recovery_point = min(self.recovery_point, end)
        self._truncations += 1
        self._publish()

    def _truncate_state(self, end: int, *, all_snapshots: bool = False) -> None:
        """Remove the epochs, producer snapshots and producers of the truncated batches."""
        self._epochs.truncate_from_end(end)
        for entry in files.entries(self.directory):
            name = parse_segment_file(entry.name)
            if name is not None and name.kind == SNAPSHOT and (all_snapshots or name.base_offset > end):
                files.unlink(self.directory / entry.name)
        self._producers = load_producers(self.directory, list_segments(self.directory), end)
        self._publish()

    def replace(
        self, new: Sequence[int], old: Sequence[int], verified: Verified = NOTHING_VERIFIED
    ) -> list[Path]:
        """Replace closed, flushed segments by ``.cleaned`` ones (base offsets; see ``log.replacement``).

        Appends wait only while the list of segments is exchanged: the files of closed segments change only
        under ``_segments_lock``. Readers of either view continue with the files that are open. Returns the
        ``.deleted`` files, which the caller unlinks later. Raises CorruptRecordError when a new segment fails
        its verification, SourceChangedError when an old one does not exist: nothing has changed then.
        StorageError.
        """
        with self._segments_lock:
            with self._lock:
                self._refuse_unusable()
                replaced = self._list.closed(old)
            with self._offline_on_error():
                opened, retired = self._list.swap_files(new, replaced, verified)
            with self._lock:
                self._list.exchange(replaced, opened)
                self._publish()
            return retired

    def view_and_producers(self) -> tuple[LogView, ProducerStates]:
        """The view and the producers at its end, both of one moment."""
        with self._lock:
            view, entries = self.view, self._producers.entries()
        return view, ProducerStates(view.log_end_offset, entries)

    def update_config(self, config: LogConfig) -> None:
        """Change the settings: sizes apply from the next roll on, policies at once."""
        with self._lock:
            self.config = self._list.config = config
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
                with self._changing():
                    self._list.active.save_indexes(closing=True)
                    self._write_snapshot(self._log_end)
                self.flush()
            self._closed = True
            for segment in self._list.segments:
                segment.close_for_append()


_logger = logging.getLogger("siltstone")


def _writable(data: Bytes | bytes | bytearray | memoryview) -> Bytes:
    """A writable array over the buffer, or a copy where it is not writable. Raises UsageError."""
    if not isinstance(data, (np.ndarray, bytes, bytearray, memoryview)):
        raise UsageError(
            f"a {type(data).__name__} is no record batch in Kafka's format",
            advice="st.append(log, [st.NewRecord(key=…, value=…)]) makes one",
        )
    array: Bytes = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    return array if array.flags.writeable else array.copy()


def partition_of(directory: Path) -> TopicPartition:
    """The partition of a directory, by its name. Raises DirectoryRefusedError for no ``topic-N``."""
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
    clean: bool = False,
    recovery_point: int = 0,
    log_start: int = 0,
    background: Background = run_now,
    create: bool = True,
) -> PartitionLog:
    """Recover and open one partition directory and its ledgers; an empty one gets its first segment.

    Without a lock or checkpoints, which are a ``LogManager``'s: a program opens logs through it. ``clean``:
    the log was closed cleanly; else everything from ``recovery_point`` on is checked. ``create``: make the
    directory if it is missing. Raises CorruptRecordError, UnsafeFileError, OSError.
    """
    config, clock = config or LogConfig(), clock or SystemClock()
    if create:
        files.make_directory(directory, parents=True)
    recovered = recover_partition(
        directory,
        clean=clean,
        recovery_point=recovery_point,
        log_start=log_start,
        config=config,
        now_ms=clock.now_ms(),
    )
    for note in (*recovered.notes, *recovered.damage):
        _logger.warning("%s: recovery: %s", directory, note)
    recover_ledgers(directory, recovered.log_end_offset)
    return PartitionLog(partition_of(directory), recovered, config, clock, background=background)
