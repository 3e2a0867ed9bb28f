"""Follows growing logs for a stream: which offsets come next, and the splits between two of them.

::

    latest(start) ─► end ─► Spark writes it to its checkpoint ─► splits(start, end) ─► read ─► start = end

Between two offsets are always the same records, whatever is rolled or swapped meanwhile, so a micro-batch
that is read again after a crash is the same (``KafkaMicroBatchStream``). A new partition is read from its
beginning. Loss of data (``failOnDataLoss``) is: records deleted before they were read, a log that ends below
the stream's offset, a partition that was deleted. Gaps that cleaning left are none.

A log is opened again only when its files or its directory's checkpoints have changed.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from siltstone.base import files
from siltstone.base.clock import Clock, SystemClock
from siltstone.base.errors import DirectoryRefusedError, OffsetOutOfRangeError
from siltstone.log.names import (
    CLEAN_SHUTDOWN,
    LOG_START_CHECKPOINT,
    RECOVERY_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TopicPartition,
)
from siltstone.log.read_only import ReadOnlyLog, ReadOnlyLogs
from siltstone.tables.options import LATEST, OffsetLimit, ReadOptions
from siltstone.tables.splits import (
    Logs,
    OffsetRange,
    TaskSplit,
    offset_ranges,
    readable_end,
    selected_partitions,
    snapshot_range,
    split_ranges,
)

Offsets = Mapping[TopicPartition, int]
"""The next offset of each partition."""
_CHECKPOINTS = (REPLICATION_CHECKPOINT, RECOVERY_CHECKPOINT, LOG_START_CHECKPOINT, CLEAN_SHUTDOWN)
_TRIES = 5
"""Attempts in a row at opening the logs: a swap or a deletion may make one fail."""
_logger = logging.getLogger("siltstone")


def offsets_to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """``{"users": {"0": 5}}``, as Spark's Kafka source writes it into a checkpoint."""
    topics: dict[str, dict[str, int]] = {}
    for where, offset in sorted(offsets.items()):
        topics.setdefault(where.topic, {})[str(where.partition)] = offset
    return topics


def offsets_from_json(data: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    """Offsets out of ``offsets_to_json``'s form."""
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, offsets in data.items()
        for partition, offset in offsets.items()
    }


class Follower:
    """The driver's side of one stream (``KafkaMicroBatchStream``): opens the logs anew at each trigger."""

    def __init__(self, options: ReadOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._known: dict[TopicPartition, tuple[object, ReadOnlyLog]] = {}
        self._failures = 0
        self._target: Offsets | None = None
        self._last_ms: int | None = None

    def initial(self) -> dict[TopicPartition, int]:
        """Where a new stream starts: ``startingOffsets`` and the like, "latest" by default.

        Raises UsageError, OffsetOutOfRangeError, what opening raises.
        """
        options = self._options
        starting = OffsetLimit(every=LATEST) if options.offsets.starting is None else options.offsets.starting
        limits = dataclasses.replace(options.offsets, starting=starting, ending=None, as_of=None)
        options = dataclasses.replace(options, offsets=limits)
        return {where: wanted.start for where, wanted in offset_ranges(self._open(), options).items()}

    def ends(self) -> dict[TopicPartition, int]:
        """The end of what may be read of each log now. Raises what opening raises."""
        return self._ends_of(self._open())

    def _ends_of(self, logs: Logs) -> dict[TopicPartition, int]:
        return {where: readable_end(log, self._options.isolation) for where, log in logs.items()}

    def stop_at_ends(self) -> None:
        """Fix the ends as they are now (``availableNow``): what is appended later and new partitions are left
        to the next run."""
        self._target = self.ends()

    def latest(self, start: Offsets, most: int | None = None) -> dict[TopicPartition, int]:
        """The end of the next micro-batch from ``start`` on: at most ``most`` offsets, ``start`` for none.

        Each log's part of ``most`` is by what it has. Raises OffsetOutOfRangeError for loss of data.
        """
        try:
            ends = self.ends()
            self._failures = 0
        except (FileNotFoundError, DirectoryRefusedError):
            self._failures += 1
            if self._failures >= _TRIES:
                raise
            return dict(start)
        if self._target is not None:
            target = self._target
            ends = {where: min(end, target[where]) for where, end in ends.items() if where in target}
            ends.update({where: start[where] for where in ends if ends[where] < start.get(where, 0)})
        self._refuse_gone(start, ends)
        sizes = {where: max(end - start.get(where, 0), 0) for where, end in ends.items()}
        total = sum(sizes.values())
        if self._target is None and self._waits(total):
            return dict(start)
        self._last_ms = self._clock.now_ms()
        if most is None or total <= most:
            return ends
        for where, size in sizes.items():
            share = most * size / total
            if size:  # at least one offset (Spark's rule)
                ends[where] = start.get(where, 0) + min(size, 1 if share < 1 else int(share))
        return ends

    def _waits(self, total: int) -> bool:
        """``minOffsetsPerTrigger``: fewer offsets are new, and ``maxTriggerDelay`` is not over."""
        triggers = self._options.triggers
        if triggers.min_offsets_per_trigger is None or self._last_ms is None:
            return False
        waited_ms = self._clock.now_ms() - self._last_ms
        return total < triggers.min_offsets_per_trigger and waited_ms < triggers.max_trigger_delay_ms

    def splits(self, start: Offsets, end: Offsets) -> list[TaskSplit]:
        """The records between two offsets, cut for tasks. Raises OffsetOutOfRangeError for loss of data."""
        logs = self._open()
        ends = self._ends_of(logs)
        self._refuse_gone(end, ends)
        ranges = []
        for where, behind in sorted(end.items()):
            first = start.get(where, 0)
            if where in logs and first < behind:
                log_start = logs[where].log_start_offset
                if first < log_start:
                    self._lost(f"{where}: records from offset {first} were deleted before they were read; ")
                first = min(max(first, log_start), ends[where])
                wanted = OffsetRange(first, max(first, min(behind, ends[where])))
                ranges.append(snapshot_range(logs[where], wanted))
        return split_ranges(ranges, self._options)

    def _refuse_gone(self, offsets: Offsets, ends: Offsets) -> None:
        for where, offset in offsets.items():
            if where not in ends and self._target is None:
                self._lost(f"{where}: was deleted, the stream was at offset {offset}; ")
            elif ends.get(where, offset) < offset:
                self._lost(f"{where}: ends at offset {ends[where]}, the stream was at {offset} already; ")

    def _lost(self, what: str) -> None:
        if self._options.offsets.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{what}failOnDataLoss=false reads what there is")
        _logger.warning("%sreading what there is", what)

    def _open(self) -> dict[TopicPartition, ReadOnlyLog]:
        for _ in range(_TRIES - 1):
            try:
                return self._open_once()
            except (FileNotFoundError, DirectoryRefusedError):
                continue
        return self._open_once()

    def _open_once(self) -> dict[TopicPartition, ReadOnlyLog]:
        """The chosen logs as they are now; those whose files did not change are not opened again."""
        opened: dict[TopicPartition, tuple[object, ReadOnlyLog]] = {}
        # Files are listed before a log is opened: a change in between shows at the next trigger.
        checkpoints = [_checkpoints(Path(path)) for path in self._options.paths]
        with ReadOnlyLogs(self._options.paths) as logs:
            for where in selected_partitions(logs, self._options):
                # A roll, a swap, a cut and an append change a name, a size or an inode of these.
                inside = sorted(files.list_files(logs.directory_of(where)).items())
                seen = checkpoints, [(name, at.size, at.inode) for name, at in inside if ".log" in name]
                known = self._known.get(where)
                opened[where] = known if known is not None and known[0] == seen else (seen, logs[where])
        self._known = opened
        return {where: log for where, (_, log) in opened.items()}


def _checkpoints(path: Path) -> list[tuple[int, int] | None]:
    """The checkpoints of a log directory: of the path or, where that is a partition's, of its parent."""
    marks: list[tuple[int, int] | None] = []
    for name in _CHECKPOINTS:
        for folder in (path, path.resolve().parent):
            try:
                facts = files.stat(folder / name)
                marks.append((facts.inode, facts.modified_ns))
            except FileNotFoundError:
                marks.append(None)
    return marks
