"""A program that uses one log through a ``LogManager``, and says at each moment what it was promised.

Every operation says twice what must hold after a crash: before it, what may be there while it is under way;
after it, what was acknowledged. A ``Recording`` keeps these with the operations of the disk.
"""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from siltstone.base.clock import ManualClock
from siltstone.base.records.control import end_transaction_marker
from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.report import CLEANED
from siltstone.log.partition import PartitionLog, TaskRunner, run_now
from siltstone.log.validation import Origin
from siltstone.runtime.log_cleaner import LogCleaner
from siltstone.runtime.manager import LogManager
from tests.support.cleaning.logs import NOW, WHERE
from tests.support.crash.disk import Recording
from tests.support.log import driving
from tests.support.log.model import ABORT, COMMIT, Batch, Stored

KEYS = [b"a", b"b", b"c", b"d", b"e"]
NO_LIMIT = 1 << 62
_DAY_MS = 86_400_000


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What must hold of the log that a start finds.

    ``batches`` are all that may be there, with every offset once; those below ``end_min`` must be. The log
    starts between ``start_min`` and ``start_max``. Below ``cleaned_below`` records may be gone that later
    ones have replaced.
    """

    doing: str
    batches: tuple[Batch, ...]
    end_min: int
    start_min: int
    start_max: int
    cleaned_below: int
    is_compacted: bool


def open_manager(root: Path, clock: ManualClock, background: TaskRunner = run_now) -> LogManager:
    """Nothing at random, nothing in another thread."""
    return LogManager.open(
        [root], clock=clock, background=background, random_bytes=random.Random(5).randbytes
    )


class Session:
    """One log in use. ``batches`` are what was appended and not cut off.

    What a log leaves to the background, as the flush after a roll, waits for ``settle``.
    """

    def __init__(self, root: Path, settings: dict[str, str]) -> None:
        self.root = root
        self.settings = settings
        self.clock = ManualClock(NOW)
        self.batches: list[Batch] = []
        self.cleaned_below = 0
        self._bounds = (0, 0)
        self.sequences: dict[int, int] = {}
        self.recording: Recording | None = None
        self._waiting: list[Callable[[], None]] = []
        self.manager = open_manager(root, self.clock, self._waiting.append)
        self.manager.topics.create(WHERE.topic, 1, settings)

    @property
    def log(self) -> PartitionLog:
        return self.manager[WHERE]

    # What is promised

    def _say(self, doing: str, batches: list[Batch], end_min: int, start_min: int, start_max: int) -> None:
        if self.recording is not None:
            promise = Promise(
                doing=doing,
                batches=tuple(batches),
                end_min=end_min,
                start_min=start_min,
                start_max=start_max,
                cleaned_below=self.cleaned_below,
                is_compacted="compact" in self.settings["cleanup.policy"],
            )
            self.recording.mark(promise)

    @contextlib.contextmanager
    def doing(
        self,
        what: str,
        *,
        more: tuple[Batch, ...] = (),
        end_min: int = NO_LIMIT,
        start_max: int = -1,
    ) -> Iterator[None]:
        """Something is under way that adds ``more``, or may bring the end or the start to these offsets."""
        durable, start = self.bounds
        self._say(what, [*self.batches, *more], min(durable, end_min), start, max(start, start_max))
        yield
        self.say_all(f"after {what}")

    def say_all(self, doing: str) -> None:
        """What holds now that the last operation is over."""
        durable, start = self.bounds
        self._say(doing, self.batches, durable, start, start)

    @property
    def bounds(self) -> tuple[int, int]:
        """(below what everything is durable, the log start); as they were last when the log is not open."""
        if self.manager.offline:
            return self._bounds
        return self.log.recovery_point, self.log.log_start_offset

    # What is done

    def append(
        self, count: int = 1, *, sync: bool = False, producer: int = -1, transactional: bool = False
    ) -> None:
        """A batch; keys come again and again, every fifth value is null."""
        base = self.log.log_end_offset
        records = tuple(self._record(base + number) for number in range(count))
        sequence = self.sequences.get(producer, 0) if producer >= 0 else -1
        batch = Batch(
            base=base,
            last=base + count - 1,
            records=records,
            producer_id=producer,
            epoch=0 if producer >= 0 else -1,
            sequence=sequence,
            transactional=transactional,
        )
        with self.doing("append", more=(batch,)):
            appended = self.log.append(message(batch), sync=sync)
            assert (appended.first_offset, appended.last_offset) == (batch.base, batch.last)
            self.batches.append(batch)
        assert not sync or self.log.recovery_point == self.log.log_end_offset
        if producer >= 0:
            self.sequences[producer] = sequence + count

    def _record(self, offset: int) -> Stored:
        self.clock.advance(10)
        value = None if offset % 5 == 3 else b"%d" % offset
        return Stored(offset, KEYS[offset * 7 % len(KEYS)], value, self.clock.now_ms())

    def end_transaction(self, producer: int, *, commit: bool) -> None:
        """The marker."""
        end = self.log.log_end_offset
        key, value = struct.pack(">hh", 0, commit), struct.pack(">hi", 0, 0)
        batch = Batch(
            base=end,
            last=end,
            records=(Stored(end, key, value, self.clock.now_ms()),),
            producer_id=producer,
            epoch=0,
            marker=COMMIT if commit else ABORT,
        )
        marker = end_transaction_marker(
            is_commit=commit,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=self.clock.now_ms(),
        )
        with self.doing("end of a transaction", more=(batch,)):
            self.log.append(marker, origin=Origin.COORDINATOR)
            self.batches.append(batch)

    def flush(self) -> None:
        """Everything appended is durable after it."""
        with self.doing("flush"):
            self.manager.flush()
        assert self.log.recovery_point == self.log.log_end_offset

    def roll(self) -> None:
        """A new active segment."""
        with self.doing("roll"):
            self.log.roll()

    def checkpoint(self) -> None:
        """What the periodic tasks write down."""
        with self.doing("checkpoints"):
            self.manager.upkeep.write_recovery_points()
            self.manager.upkeep.write_log_starts()

    def delete_records(self, before: int) -> None:
        """DeleteRecords; acknowledged, it holds."""
        with self.doing("DeleteRecords", start_max=before):
            assert self.manager.delete_records(WHERE, before) == before

    def retain(self, *, all_of_it: bool = False) -> None:
        """A retention check, and the files' end a minute later."""
        self.clock.advance(30 * _DAY_MS if all_of_it else 0)
        with self.doing("retention", start_max=self.log.log_end_offset):
            assert self.manager.upkeep.delete_old_segments()
        self.clock.advance(100_000)
        with self.doing("unlinking"):
            self.manager.tick()

    def truncate(self, offset: int) -> None:
        """As a follower does."""
        with self.doing("truncation", end_min=offset):
            assert self.manager.truncate_to(WHERE, offset)
            self.batches = [batch for batch in self.batches if batch.last < offset]
        sent = [batch for batch in self.batches if batch.producer_id >= 0 and not batch.marker]
        self.sequences = {batch.producer_id: batch.sequence + len(batch.records) for batch in sent}

    def restart(self, offset: int) -> None:
        """As a follower whose leader has moved on: everything goes."""
        with self.doing("restart", end_min=self.log.log_start_offset, start_max=offset):
            self.manager.truncate_fully_and_start_at(WHERE, offset)
            self.batches = []
        self.sequences = {}

    def clean(self) -> None:
        """Clean the open log, two segments or so in a group; then the checkpoint."""
        self.cleaned_below = self.log.view.segments[-1].base_offset
        directory = self.manager.directory_of(WHERE).directory
        with self.doing("clean"):
            checkpoint = directory.checkpoints().cleaner.get(WHERE)
            end = driving.clean_open_log(
                self.log,
                {**self.settings, "segment.bytes": "900"},
                now_ms=self.clock.now_ms(),
                checkpoint=checkpoint,
            )
            assert end is not None
            directory.write_cleaner_checkpoint(WHERE, end)

    def clean_embedded(self, *, unlink: bool, tombstones_only: bool = False) -> None:
        """A round of the embedded cleaner, group by group; old files go a minute later, or wait.

        ``tombstones_only``: nothing is dirty, but there are tombstones whose horizon has passed.
        """
        self.cleaned_below = self.log.view.segments[-1].base_offset
        with self.doing("clean"):
            cleaner = LogCleaner(self.manager, InProcessEngine, limits=RunLimits(whole_log_bytes=0))
            (result,) = cleaner.clean_once()
            assert (result.status, result.cleaned_end_offset) == (CLEANED, self.cleaned_below), result
            assert result.groups > 1 or tombstones_only, result
            assert not result.dirty_ratio or not tombstones_only, result
            cleaner.close()
        if unlink:
            self.clock.advance(100_000)
            with self.doing("unlinking"):
                self.manager.tick()

    def close(self) -> None:
        """A clean stop."""
        self._waiting.clear()
        self.say_all("close")
        self._bounds = (self.log.log_end_offset, self.log.log_start_offset)
        self.manager.close()
        self.say_all("closed")

    def open(self) -> None:
        """A start, when ``kill`` or ``close`` came before; nothing more is promised than by these."""
        self.manager = open_manager(self.root, self.clock, self._waiting.append)
        self.say_all("open")

    def settle(self) -> None:
        """The background has its turn."""
        while self._waiting:
            with self.doing("background"):
                self._waiting.pop(0)()

    def kill(self) -> None:
        """Let go of everything as it is: no flush, no checkpoint, no marker."""
        self._waiting.clear()
        self._bounds = self.bounds
        for served in self.manager.directories:
            served.go_offline("killed")

    @property
    def partition(self) -> Path:
        """Where the log is."""
        return self.root / str(WHERE)


def message(batch: Batch) -> driving.Bytes:
    """What a client sends for a batch."""
    return driving.client_batch(
        batch.records,
        producer_id=batch.producer_id,
        producer_epoch=batch.epoch,
        base_sequence=batch.sequence,
        transactional=batch.transactional,
    )
