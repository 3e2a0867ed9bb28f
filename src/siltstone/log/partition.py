"""One partition's log, open for appending and reading (Kafka's ``UnifiedLog`` and ``LocalLog``).

::

    append ─► validate, give offsets ─► producers ─► roll? ─► segment ─► view ─► flush?
    read   ─► view ─► segment ─► a slice of its file

Readers take no lock: they work on a ``LogView``, which is replaced as a whole. Bytes of a failed append are
cut off again; a failed fsync takes the log offline.

Two locks for who changes something. ``_lock`` is an append's, and is held for memory and for the active
segment. ``_reshaping`` is taken before it by whoever renames, cuts or removes closed segments: a swap holds
it while it renames and syncs, and appends go on.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from siltstone.base import files
from siltstone.base.clock import Clock
from siltstone.base.config import LogConfig
from siltstone.base.errors import OffsetOutOfRangeError, SourceChangedError, StorageError, UnsafeFileError
from siltstone.base.records.layout import BATCH_OVERHEAD, Bytes
from siltstone.log.epochs import LeaderEpochs
from siltstone.log.fetch import LogView
from siltstone.log.ledger.keeping import forget_behind
from siltstone.log.names import SNAPSHOT, TopicPartition, parse_segment_file, segment_file
from siltstone.log.producers import ProducerState, ProducerStates, load_producers
from siltstone.log.recovery.partition import Recovered
from siltstone.log.replacement import NOTHING_KNOWN, Known, swap_in
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import Segment, find_segment, list_segments
from siltstone.log.validation import Origin, Validated, validate_and_assign
from siltstone.log.viewed import ViewedLog

# The segments of an open log, in order: rolled, dropped, cut off, swapped (Kafka's ``LocalLog``).
#
# ``segments`` is immutable and replaced as a whole: whoever holds it goes on reading what it names. Nothing
# here knows of producers, epochs or start offsets, and nothing takes a lock: ``PartitionLog`` does.


class SegmentList:
    """At least one segment, the last one active. Every method raises OSError where the disk does."""

    def __init__(self, recovered: Recovered, config: LogConfig, clock: Clock, random: Random) -> None:
        self.directory = recovered.directory
        self.config = config
        self._clock = clock
        self._random = random
        self.segments = tuple(self._live(each) for each in recovered.segments)
        if not self.segments:
            self.segments = (self._create(recovered.log_end_offset),)

    @property
    def active(self) -> LiveSegment:
        """The segment that is appended to."""
        return self.segments[-1]

    def _live(self, found: Segment) -> LiveSegment:
        return LiveSegment(found, self.config, created_ms=self._clock.now_ms(), jitter_ms=self._jitter())

    def _create(self, base_offset: int) -> LiveSegment:
        now_ms, jitter_ms = self._clock.now_ms(), self._jitter()
        segment = LiveSegment.create(
            self.directory, base_offset, self.config, now_ms=now_ms, jitter_ms=jitter_ms
        )
        files.sync_directory(self.directory)
        return segment

    def _jitter(self) -> int:
        most = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return self._random.randrange(most) if most > 0 else 0

    def roll(self, base_offset: int) -> LiveSegment:
        """Begin a new active segment behind the one there is."""
        self.active.save_indexes(closing=True)
        fresh = self._create(base_offset)
        self.segments = (*self.segments, fresh)
        return fresh

    def drop_prefix(self, count: int) -> list[Path]:
        """Let go of the ``count`` oldest segments, never the active one; their ``.deleted`` files."""
        going = self.segments[: min(count, len(self.segments) - 1)]
        self.segments = self.segments[len(going) :]
        renamed = []
        for segment in going:
            renamed += segment.retire()
            if self.config.compacts:  # a tombstone must not go before the value that it hides
                files.sync_directory(self.directory)
        if renamed and not self.config.compacts:
            files.sync_directory(self.directory)
        return renamed

    def truncate(self, offset: int) -> Callable[[], None]:
        """Drop all at and above ``offset``: from ``segments`` now, on the disk when the answer is called.

        In between readers can be told. Later segments go first.
        """
        kept = [segment for segment in self.segments if segment.base_offset <= offset]
        going = self.segments[len(kept) :]
        if not kept:
            self.restart(offset)
            return lambda: None
        last = kept[-1].shortened(offset, self.config)
        cut = last is not kept[-1]
        self.segments = (*kept[:-1], last)

        def on_the_disk() -> None:
            self._remove(going)
            if cut:
                last.cut(offset)
            files.sync_directory(self.directory)

        return on_the_disk

    def restart(self, offset: int) -> None:
        """Drop everything; one empty segment at ``offset`` is left.

        It is there before the others go: a log without a segment would start again at 0 after a crash.
        """
        if self.segments[0].base_offset <= offset:
            self.truncate(offset)()
        found = [segment for segment in self.segments if segment.base_offset == offset]
        left = found[0] if found else self._create(offset)
        self._remove([segment for segment in self.segments if segment is not left])
        self.segments = (left,)

    def _remove(self, going: Sequence[LiveSegment]) -> None:
        for segment in reversed(going):
            for path in segment.retire():
                files.unlink(path)
            files.sync_directory(self.directory)

    def closed(self, bases: Sequence[int]) -> tuple[LiveSegment, ...]:
        """The closed segments with these bases. Raises SourceChangedError when one is not there any more."""
        found = tuple(segment for segment in self.segments[:-1] if segment.base_offset in bases)
        if len(found) != len(bases):
            raise SourceChangedError(
                f"{self.directory}: not all of the closed segments {sorted(bases)} are there any more; "
                "nothing was swapped"
            )
        return found

    def swap_files(
        self, new: Sequence[int], going: Sequence[LiveSegment], known: Known
    ) -> tuple[list[LiveSegment], list[Path]]:
        """Swap ``.cleaned`` segments with bases ``new`` in for closed ones, on the disk only.

        ``segments`` names the old ones until ``exchange``, and whoever reads them has their files open. Needs
        no lock but against others that change closed segments. Returns the new segments and the ``.deleted``
        files. Raises CorruptRecordError when a new segment does not read back; nothing old is gone then.
        """
        for segment in going:
            segment.hold()
        retired = swap_in(self.directory, new, [segment.base_offset for segment in going], known)
        return [self._live(find_segment(self.directory, base)) for base in sorted(new)], retired

    def exchange(self, going: Sequence[LiveSegment], fresh: Sequence[LiveSegment]) -> None:
        """The swapped segments are those that are there from now on."""
        for segment in going:
            segment.close_for_append()
        kept = [segment for segment in self.segments if segment not in going]
        self.segments = tuple(sorted((*kept, *fresh), key=lambda segment: segment.base_offset))


Background = Callable[[Callable[[], None]], object]
"""Runs a task now or later, such as the flush after a roll."""


def run_now(task: Callable[[], None]) -> None:
    """A ``Background`` that does not wait."""
    task()


class Appended(NamedTuple):
    """Where an append went. ``duplicate``: it was there already, these are its offsets then.

    ``log_append_ms`` is the time that was given under log-append time, else -1; of a duplicate it is the
    largest timestamp of the batch that is in the log, whatever the topic's timestamp type: Kafka answers
    that. ``left_out``: so many bytes behind the batch were not appended; a producer sends one batch.
    """

    first_offset: int
    last_offset: int
    log_append_ms: int = -1
    duplicate: bool = False
    left_out: int = 0


_FULL = (errno.ENOSPC, errno.EDQUOT)


class PartitionLog(ViewedLog):
    """The log of one partition; a program opens it through a ``LogManager``.

    For everybody to read: ``where``, ``directory``, ``config``; ``log_start_offset``, the first offset that
    may be read; ``log_end_offset``, which the next record gets; ``recovery_point``, below which everything is
    durable; ``flushed_ms``, when it was flushed last; ``offline``, why it takes no more appends, None while
    it does; ``view``, what readers work on.
    """

    def __init__(
        self,
        where: TopicPartition,
        recovered: Recovered,
        config: LogConfig,
        clock: Clock,
        *,
        background: Background = run_now,
        random: Random | None = None,
    ) -> None:
        """The log of a directory that recovery has brought into order. Raises OSError."""
        self.where = where
        self.directory = recovered.directory
        self.config = config
        self._clock = clock
        self._background = background
        self._lock = threading.RLock()
        self._reshaping = threading.RLock()
        self.offline: str | None = None
        self._closed = False
        self._producers = ProducerStates.load(recovered.producers, recovered.log_end_offset)
        self._epochs = LeaderEpochs(recovered.directory)
        self.recovery_point = recovered.recovery_point
        self.flushed_ms = clock.now_ms()
        self._cuts = 0
        self._high_watermark: int | None = None
        self._list = SegmentList(recovered, config, clock, random or Random())
        self._log_start, self._log_end = recovered.log_start_offset, recovered.log_end_offset
        self.view = self._publish()

    @property
    def size(self) -> int:
        """Bytes of all segments' logs."""
        return sum(segment.size for segment in self.view.segments)

    def _publish(self) -> LogView:
        mark = self._log_end
        if self._high_watermark is not None:
            mark = self._high_watermark = min(max(self._high_watermark, self._log_start), mark)
        view = LogView(
            self._list.segments,
            self._log_start,
            self._log_end,
            mark,
            self._producers.last_stable_offset(mark, self._log_start),
            self._list.active.size,
            self.config.max_decompressed_message_bytes,
        )
        self.view = view
        return view

    def _refuse_unusable(self) -> None:
        if self._closed or self.offline is not None:
            why = self.offline or "the log is closed"
            raise StorageError(f"{self.directory}: {why}; open the log again")

    def _go_offline(self, error: OSError | UnsafeFileError) -> StorageError:
        """What is on the disk is not what is in memory any more: the log has to be opened again."""
        self.offline = f"{(isinstance(error, OSError) and error.strerror) or error}"
        return StorageError(f"{self.directory}: {self.offline}; open the log again")

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Under the lock, on a log that can be used; the disk's errors become Kafka's."""
        with self._lock:
            self._refuse_unusable()
            try:
                yield
            except (OSError, UnsafeFileError) as error:
                raise self._go_offline(error) from error

    def append(
        self,
        data: Bytes | bytes | bytearray | memoryview,
        *,
        origin: Origin = Origin.CLIENT,
        leader_epoch: int | None = None,
        sync: bool = False,
    ) -> Appended:
        """Append batches. Offsets are written into ``data`` itself where it is a writable buffer.

        A client's ``data`` is one batch. A second whole one is refused; bytes behind it that are none, such
        as a batch that was cut, are left out as Kafka leaves them out, and counted in ``left_out``.
        ``leader_epoch``: the log's latest unless told; one that is lower would make it forget the later ones.
        ``sync``: return only when they are durable. Raises a LogError with Kafka's code; nothing has changed
        then, a batch in ``data`` neither.
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
            due = self._flush_is_due(now_ms)
        if sync or due:
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
        batches = validated.batches
        again = self._producers.check(batches, validated.data, origin=origin, now_ms=now_ms)
        if again is not None:
            return Appended(
                again.first_offset, again.last_offset, again.timestamp_ms, True, validated.left_out
            )
        try:
            self._write(validated, now_ms)
        except OSError as error:
            raise self._go_offline(error) from error
        stamped = now_ms if self.config.message_timestamp_type == "LogAppendTime" else -1
        return Appended(validated.first_offset, validated.last_offset, stamped, left_out=validated.left_out)

    def _write(self, validated: Validated, now_ms: int) -> None:
        try:
            active = self._segment_for(validated, now_ms)
            active.append(validated)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise StorageError(
                f"{self.directory}: {error.strerror}; nothing of this call was kept"
            ) from error
        aborted = self._producers.update(validated.batches, validated.data)
        if aborted:
            active.add_aborted(aborted)
        self._log_end = validated.last_offset + 1
        self._publish()

    def _segment_for(self, validated: Validated, now_ms: int) -> LiveSegment:
        active, size, last = self._list.active, len(validated.data), validated.last_offset
        if active.must_roll(self.config, size, last, validated.max_timestamp, now_ms):
            active = self._roll(validated.first_offset)
        epoch = validated.batches["leader_epoch"].item(-1)
        if epoch >= 0 and epoch != self._epochs.latest_epoch:
            self._epochs.assign(epoch, validated.first_offset)
        return active

    def _flush_is_due(self, now_ms: int) -> bool:
        unflushed = self._log_end - self.recovery_point
        return unflushed >= self.config.flush_messages or now_ms - self.flushed_ms >= self.config.flush_ms

    def roll(self, base_offset: int | None = None) -> None:
        """Begin a new active segment, at the end unless told."""
        with self._changing():
            self._roll(self._log_end if base_offset is None else base_offset)
            self._publish()

    def _roll(self, base_offset: int) -> LiveSegment:
        if base_offset <= self._list.active.base_offset:
            return self._list.active
        self._snapshot(base_offset)
        fresh = self._list.roll(base_offset)
        self._background(self.flush_closed)
        return fresh

    def _snapshot(self, offset: int) -> None:
        """Keep the producers as of ``offset``: a start needs to read only what comes behind it."""
        path = self.directory / segment_file(offset, SNAPSHOT)
        if not files.exists(path):
            files.replace(path, self._producers.snapshot())

    def flush(self) -> None:
        """Make everything that was appended before this call durable. Raises StorageError."""
        self._flush(including_active=True)

    def flush_closed(self) -> None:
        """The same for the segments that are not appended to any more."""
        self._flush(including_active=False)

    def _flush(self, *, including_active: bool) -> None:
        with self._lock:
            if self._closed or self.offline is not None:
                return
            upto = self._log_end if including_active else self._list.active.base_offset
            cuts, segments = self._cuts, self._list.segments[: None if including_active else -1]
            unsynced = [segment for segment in segments if segment.is_unsynced]
            try:
                for segment in unsynced:
                    segment.save_indexes()
            except OSError as error:
                raise self._go_offline(error) from error
        try:
            for segment in unsynced:
                with contextlib.suppress(FileNotFoundError):  # it was retired, cut or replaced meanwhile
                    segment.sync()
        except OSError as error:
            raise self._go_offline(error) from error
        with self._lock:
            if cuts == self._cuts:
                self.recovery_point = max(self.recovery_point, min(upto, self._log_end))
            if including_active:
                self.flushed_ms = self._clock.now_ms()

    # What makes it shorter

    def set_high_watermark(self, offset: int | None) -> None:
        """Say up to where records are replicated, within the log's bounds; None: the end, always."""
        with self._lock:
            self._high_watermark = offset
            self._publish()

    def delete_records(self, before: int) -> int:
        """Move the log start up to ``before`` (-1: the high watermark); the new log start.

        Raises OffsetOutOfRangeError above the high watermark. Whole segments below go at the next
        retention check.
        """
        with self._changing():
            target = self.high_watermark if before == -1 else before
            if not 0 <= target <= self.high_watermark:
                raise OffsetOutOfRangeError(
                    f"{self.where}: records before {target} cannot be deleted: the high watermark is "
                    f"{self.high_watermark}; give an offset up to it, or -1"
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
        """Let go of the ``count`` oldest segments, or of as many as it says of the log as it is now.

        When it is all of them, a new active segment begins first: the end offset stays. Returns the
        ``.deleted`` files, which are to be unlinked later.
        """
        with self._reshaping, self._changing():
            going = count(self.view) if callable(count) else count
            if going >= len(self._list.segments) and self._list.active.size:
                self._roll(self._log_end)
            renamed = self._list.drop_prefix(going)
            self._raise_start(max(self._log_start, self._list.segments[0].base_offset))
            self._publish()
            return renamed

    def truncate_to(self, offset: int) -> bool:
        """Drop everything at and above ``offset``, durably; False when there was nothing.

        A compacted ledger that covers some of it is forgotten.
        """
        with self._reshaping, self._changing():
            if offset >= self._log_end:
                return False
            forget_behind(self.directory, offset)
            finish = self._list.truncate(offset)
            self._end_at(offset, min(self._log_start, offset))
            finish()
            self._forget_behind(offset)
            return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and go on at ``offset`` (a follower whose leader has moved past it).

        A compacted ledger is forgotten: it knows nothing of the records in between.
        """
        with self._reshaping, self._changing():
            forget_behind(self.directory, 0)
            self._list.restart(offset)
            self._end_at(offset, offset)
            self.recovery_point = offset
            self._forget_behind(offset, everything=True)

    def _end_at(self, end: int, start: int) -> None:
        """Readers are told before the files are cut: who asks now is not sent behind the new end."""
        self._log_start, self._log_end = start, end
        self.recovery_point = min(self.recovery_point, end)
        self._cuts += 1
        self._publish()

    def _forget_behind(self, end: int, *, everything: bool = False) -> None:
        """Epochs, snapshots and producers of what was cut off."""
        self._epochs.truncate_from_end(end)
        for entry in files.entries(self.directory):
            name = parse_segment_file(entry.name)
            if name is not None and name.kind == SNAPSHOT and (everything or name.base_offset > end):
                files.unlink(self.directory / entry.name)
        self._producers = load_producers(self.directory, list_segments(self.directory), end)
        self._publish()

    def replace(self, new: Sequence[int], old: Sequence[int], known: Known = NOTHING_KNOWN) -> list[Path]:
        """Swap ``.cleaned`` segments in for closed, flushed ones (base offsets; see ``log.replacement``).

        Appends wait only while the list of segments is exchanged: closed segments' names are nobody's
        business but of those who take ``_reshaping``. Readers of either view go on with what is open. Returns
        the ``.deleted`` files, which are to be unlinked later. Raises CorruptRecordError when a new segment
        does not read back, SourceChangedError when an old one is not there: nothing has changed then.
        StorageError.
        """
        with self._reshaping:
            with self._lock:
                self._refuse_unusable()
                going = self._list.closed(old)
            try:
                fresh, retired = self._list.swap_files(new, going, known)
            except (OSError, UnsafeFileError) as error:
                raise self._go_offline(error) from error
            with self._lock:
                self._list.exchange(going, fresh)
                self._publish()
            return retired

    def at_one_moment(self) -> tuple[LogView, ProducerState]:
        """The view and the producers that belong to it, up to the log's end."""
        with self._lock:
            entries = {entry.producer_id: entry for entry in self._producers.entries()}
            return self.view, ProducerState(producers=entries, end_offset=self._log_end)

    def update_config(self, config: LogConfig) -> None:
        """Settings that hold from now on: sizes at the next roll, policies at once."""
        with self._lock:
            self.config = self._list.config = config
            self._publish()

    def expire_producers(self) -> None:
        """Forget producers that were silent for ``producer.id.expiration.ms``."""
        with self._lock:
            self._producers.expire(self._clock.now_ms(), self.config.producer_id_expiration_ms)

    def close(self) -> None:
        """Flush, keep the producers, let go of the files. Raises StorageError; twice is once."""
        with self._reshaping, self._lock:
            if self._closed:
                return
            if self.offline is None:
                with self._changing():
                    self._list.active.save_indexes(closing=True)
                    self._snapshot(self._log_end)
                self.flush()
            self._closed = True
            for segment in self._list.segments:
                segment.close_for_append()


def _writable(data: Bytes | bytes | bytearray | memoryview) -> Bytes:
    """A writable array over the buffer, or a copy where it is not writable."""
    array: Bytes = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    return array if array.flags.writeable else array.copy()
