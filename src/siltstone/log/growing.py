"""One partition's log as it is appended to and read: the half of ``PartitionLog`` that makes it longer.

::

    append ─► validate, give offsets ─► producers ─► roll? ─► segment ─► view ─► flush?
    read   ─► view ─► segment ─► a slice of its file

One lock for whatever changes the log; readers take none: they work on a ``LogView``, which is replaced as a
whole. Bytes of a failed append are cut off again; a failed fsync takes the log offline. (Kafka's
``UnifiedLog`` and ``LocalLog``.)
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Iterator
from random import Random

import numpy as np

from siltstone import files
from siltstone.clock import Clock
from siltstone.config import LogConfig
from siltstone.errors import StorageError, UnsafeFileError
from siltstone.log.epochs import LeaderEpochs
from siltstone.log.fetch import LogView
from siltstone.log.found import Appended, Background, Found, run_now
from siltstone.log.live_segment import LiveSegment
from siltstone.log.names import SNAPSHOT, segment_file
from siltstone.log.segment_list import SegmentList
from siltstone.log.validation import Origin, Validated, validate_and_assign
from siltstone.log.viewed import ViewedLog
from siltstone.records.layout import BATCH_OVERHEAD, Bytes

_FULL = (errno.ENOSPC, errno.EDQUOT)


class GrowingLog(ViewedLog):
    """What ``PartitionLog`` is built on; nobody opens it by itself.

    For everybody to read: ``where``, ``directory``, ``config``; ``log_start_offset``, the first offset that
    may be read; ``log_end_offset``, which the next record gets; ``recovery_point``, below which everything
    is durable; ``flushed_ms``, when it was flushed last; ``offline``, why it takes no more appends, None
    while it does; ``view``, what readers work on.
    """

    def __init__(
        self,
        found: Found,
        config: LogConfig,
        clock: Clock,
        *,
        background: Background = run_now,
        random: Random | None = None,
    ) -> None:
        self.where = found.where
        self.directory = found.directory
        self.config = config
        self._clock = clock
        self._background = background
        self._lock = threading.RLock()
        self._reshaping = threading.RLock()
        self.offline: str | None = None
        self._closed = False
        self._producers = found.producers
        self._epochs = LeaderEpochs(found.directory)
        self.recovery_point = found.recovery_point
        self.flushed_ms = clock.now_ms()
        self._cuts = 0
        self._high_watermark: int | None = None
        self._list = SegmentList(
            found.directory, found.segments, found.log_end_offset, config, clock, random or Random()
        )
        self._log_start, self._log_end = found.log_start_offset, found.log_end_offset
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


def _writable(data: Bytes | bytes | bytearray | memoryview) -> Bytes:
    """A writable array over the buffer, or a copy where it is not writable."""
    array: Bytes = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    return array if array.flags.writeable else array.copy()
