"""One partition's log, open for appending and reading (Kafka's ``UnifiedLog`` and ``LocalLog``).

::

    append, roll, flush, read                     growing
    delete records or segments, truncate, swap    here

Two locks. ``_lock`` is an append's, and is held for memory and for the active segment. ``_reshaping`` is
taken before it by whoever renames, cuts or removes closed segments: a swap holds it while it renames and
syncs, and appends go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from siltstone import files
from siltstone.config import LogConfig
from siltstone.errors import OffsetOutOfRangeError, UnsafeFileError
from siltstone.log.fetch import LogView
from siltstone.log.growing import GrowingLog
from siltstone.log.ledger.keeping import forget_behind
from siltstone.log.names import SNAPSHOT, parse_segment_file
from siltstone.log.producers import ProducerState, load_producers
from siltstone.log.replacement import NOTHING_KNOWN, Known
from siltstone.log.segments import list_segments


class PartitionLog(GrowingLog):
    """The log of one partition.

    For everybody to read: ``where``, ``directory``, ``config``; ``log_start_offset``, the first offset that
    may be read; ``log_end_offset``, which the next record gets; ``recovery_point``, below which everything
    is durable; ``flushed_ms``, when it was flushed last; ``offline``, why it takes no more appends, None
    while it does; ``view``, what readers work on.
    """

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
