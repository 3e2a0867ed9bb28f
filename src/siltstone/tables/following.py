"""Follows growing logs for a stream: the next offsets, and the splits between two offsets.

::

    latest(start) ─► end ─► Spark writes it to its checkpoint ─► splits(start, end) ─► read ─► start = end

A range of offsets means the same records whatever is rolled or swapped meanwhile, so a micro-batch that is
read again after a crash is the same (``KafkaMicroBatchStream``). A new partition is read from its
beginning. Data loss (``failOnDataLoss``) is: records that were deleted before they were read, a log that ends
below the stream's offset, a partition that was deleted. Gaps that cleaning left are no data loss.

A log is opened again only if its files or the checkpoints of its directory have changed.
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
from siltstone.log.fetch import LATEST_TIMESTAMP
from siltstone.log.names import (
    CLEAN_SHUTDOWN,
    LOG_START_CHECKPOINT,
    RECOVERY_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TopicPartition,
)
from siltstone.log.read_only import ReadOnlyLog, ReadOnlyLogs
from siltstone.tables.options import OffsetLimit, ReadOptions
from siltstone.tables.splits import (
    READ_WHAT_IS_LEFT,
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
"""Consecutive attempts at opening the logs: a swap or a deletion may make one fail."""
_logger = logging.getLogger("siltstone")


def offsets_to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """``{"users": {"0": 5}}``, as in the checkpoints of Spark's Kafka source."""
    topics: dict[str, dict[str, int]] = {}
    for topic_partition, offset in sorted(offsets.items()):
        topics.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = offset
    return topics


def offsets_from_json(data: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    """The offsets that ``offsets_to_json`` wrote."""
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, offsets in data.items()
        for partition, offset in offsets.items()
    }


class Follower:
    """The driver's part of one stream (``KafkaMicroBatchStream``): reads the logs' state at each trigger."""

    def __init__(self, options: ReadOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._opened: dict[TopicPartition, tuple[object, ReadOnlyLog]] = {}
        self._failures = 0
        self._target: Offsets | None = None
        self._last_ms: int | None = None

    def initial(self) -> dict[TopicPartition, int]:
        """The offsets at which a new stream starts: ``startingOffsets`` and the like, "latest" by default.

        Raises UsageError, OffsetOutOfRangeError, what opening raises.
        """
        options = self._options
        starting = OffsetLimit(every=LATEST_TIMESTAMP) if options.starting is None else options.starting
        options = dataclasses.replace(options, starting=starting, ending=None, as_of=None)
        return {
            topic_partition: wanted.start
            for topic_partition, wanted in offset_ranges(self._open(), options).items()
        }

    def ends(self) -> dict[TopicPartition, int]:
        """The offset at which a read of each log would end now. Raises what opening raises."""
        return self._ends_of(self._open())

    def _ends_of(self, logs: Logs) -> dict[TopicPartition, int]:
        return {
            topic_partition: readable_end(log, self._options.isolation)
            for topic_partition, log in logs.items()
        }

    def stop_at_ends(self) -> None:
        """Fix the ends as they are now (``availableNow``): later records and new partitions are for the next
        run."""
        self._target = self.ends()

    def latest(self, start: Offsets, offsets_max: int | None = None) -> dict[TopicPartition, int]:
        """The end of the next micro-batch, at most ``offsets_max`` offsets after ``start``; ``start`` if
        there is none yet.

        Each log has a share in proportion to its new offsets. Raises OffsetOutOfRangeError for data loss.
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
            ends = {
                topic_partition: min(end, target[topic_partition])
                for topic_partition, end in ends.items()
                if topic_partition in target
            }
            ends.update(
                {
                    topic_partition: start[topic_partition]
                    for topic_partition in ends
                    if ends[topic_partition] < start.get(topic_partition, 0)
                }
            )
        self._check_loss(start, ends)
        sizes = {
            topic_partition: max(end - start.get(topic_partition, 0), 0)
            for topic_partition, end in ends.items()
        }
        total = sum(sizes.values())
        if self._target is None and self._waits(total):
            return dict(start)
        self._last_ms = self._clock.now_ms()
        if offsets_max is None or total <= offsets_max:
            return ends
        for topic_partition, size in sizes.items():
            share = offsets_max * size / total
            if size:  # at least one offset (Spark's rule)
                ends[topic_partition] = start.get(topic_partition, 0) + min(
                    size, 1 if share < 1 else int(share)
                )
        return ends

    def _waits(self, total: int) -> bool:
        """Are fewer offsets new than ``minOffsetsPerTrigger``, and is ``maxTriggerDelay`` not over?"""
        options = self._options
        if options.min_offsets_per_trigger is None or self._last_ms is None:
            return False
        waited_ms = self._clock.now_ms() - self._last_ms
        return total < options.min_offsets_per_trigger and waited_ms < options.max_trigger_delay_ms

    def splits(self, start: Offsets, end: Offsets) -> list[TaskSplit]:
        """The offsets from ``start`` to ``end`` as splits. Raises OffsetOutOfRangeError for data loss."""
        logs = self._open()
        ends = self._ends_of(logs)
        self._check_loss(end, ends)
        ranges = []
        for topic_partition, end_offset in sorted(end.items()):
            first = start.get(topic_partition, 0)
            if topic_partition in logs and first < end_offset:
                log_start = logs[topic_partition].log_start_offset
                if first < log_start:
                    reason = f"records from offset {first} to {log_start} were deleted before they were read"
                    self._report_loss(topic_partition, reason)
                first = min(max(first, log_start), ends[topic_partition])
                wanted = OffsetRange(first, max(first, min(end_offset, ends[topic_partition])))
                ranges.append(snapshot_range(logs[topic_partition], wanted))
        return split_ranges(ranges, self._options)

    def _check_loss(self, offsets: Offsets, ends: Offsets) -> None:
        for topic_partition, offset in offsets.items():
            if topic_partition not in ends and self._target is None:
                self._report_loss(
                    topic_partition, f"the partition was deleted; the stream was at offset {offset}"
                )
            elif ends.get(topic_partition, offset) < offset:
                reason = f"the log ends at offset {ends[topic_partition]}, below the stream's offset {offset}"
                self._report_loss(topic_partition, reason)

    def _report_loss(self, topic_partition: TopicPartition, reason: str) -> None:
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRangeError(reason, path=str(topic_partition), advice=READ_WHAT_IS_LEFT)
        _logger.warning(
            "%s: %s; the records that are there are read (failOnDataLoss=false)", topic_partition, reason
        )

    def _open(self) -> dict[TopicPartition, ReadOnlyLog]:
        for _ in range(_TRIES - 1):
            try:
                return self._open_once()
            except (FileNotFoundError, DirectoryRefusedError):
                continue
        return self._open_once()

    def _open_once(self) -> dict[TopicPartition, ReadOnlyLog]:
        """The selected logs as they are now; those whose files did not change are not opened again."""
        opened: dict[TopicPartition, tuple[object, ReadOnlyLog]] = {}
        # Files are listed before a log is opened, so a change in between is noticed at the next trigger.
        checkpoints = [_checkpoints(Path(path)) for path in self._options.paths]
        with ReadOnlyLogs(self._options.paths) as logs:
            for topic_partition in selected_partitions(logs, self._options):
                # A roll, a swap, a truncation and an append change a name, a size or an inode of these.
                listed = sorted(files.list_files(logs.directory_of(topic_partition)).items())
                state = checkpoints, [(name, at.size, at.inode) for name, at in listed if ".log" in name]
                before = self._opened.get(topic_partition)
                opened[topic_partition] = (
                    before if before is not None and before[0] == state else (state, logs[topic_partition])
                )
        self._opened = opened
        return {topic_partition: log for topic_partition, (_, log) in opened.items()}


def _checkpoints(path: Path) -> list[tuple[int, int] | None]:
    """(inode, modification time) of a log directory's checkpoints: in ``path``, or in its parent if ``path``
    is a partition's directory."""
    states: list[tuple[int, int] | None] = []
    for name in _CHECKPOINTS:
        for folder in (path, path.resolve().parent):
            try:
                status = files.stat(folder / name)
                states.append((status.inode, status.modified_ns))
            except FileNotFoundError:
                states.append(None)
    return states
