"""Plans the micro-batches of a stream of growing logs: where the next one ends, and its splits.

::

    next_end(start) ─► end ─► Spark writes it to its checkpoint ─► splits(start, end) ─► read ─► start = end

A range of offsets means the same records whatever is rolled or swapped meanwhile. So a micro-batch that is
read again after a crash has the same records (``KafkaMicroBatchStream``). A new partition is read from its
beginning. Data loss (``failOnDataLoss``) means: records were deleted before they were read, a log ends below
the stream's offset, or a partition was deleted. A gap that a cleaning left is no data loss.

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
    selected_partitions,
    snapshot_range,
    split_ranges,
)

Offsets = Mapping[TopicPartition, int]
"""The next offset of each partition."""
_CHECKPOINTS = (REPLICATION_CHECKPOINT, RECOVERY_CHECKPOINT, LOG_START_CHECKPOINT, CLEAN_SHUTDOWN)
"""The files beside the logs that say where logs start and end; the clean-shutdown marker is one of them."""
_OPEN_ATTEMPTS = 5
"""How often to try to open the logs, since a swap or a deletion may make an attempt fail; and how many
triggers in a row may fail to open them before the stream fails."""
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


class MicroBatchStream:
    """The driver's part of one stream (``KafkaMicroBatchStream``): finds the ends of the logs at each
    trigger, and plans the next micro-batch."""

    def __init__(self, options: ReadOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        # By partition, (the state of the log's files when it was opened, the log): see ``_open_once``.
        self._opened: dict[TopicPartition, tuple[object, ReadOnlyLog]] = {}
        self._failed_attempts = 0
        self._final_offsets: Offsets | None = None
        self._last_batch_ms: int | None = None

    def initial_offsets(self) -> dict[TopicPartition, int]:
        """The offsets at which a new stream starts, by its ``starting…`` options; by default the logs' ends.

        Raises UsageError, OffsetOutOfRangeError, and what opening a directory raises.
        """
        options = self._options
        starting = (
            OffsetLimit(every_partition=LATEST_TIMESTAMP) if options.starting is None else options.starting
        )
        options = dataclasses.replace(options, starting=starting, ending=None, as_of=None)
        return {
            topic_partition: offset_range.start
            for topic_partition, offset_range in offset_ranges(self._open(), options).items()
        }

    def log_ends(self) -> dict[TopicPartition, int]:
        """The offset at which a read of each log would end now. Raises what opening a directory raises."""
        return self._log_ends_of(self._open())

    def _log_ends_of(self, logs: Logs) -> dict[TopicPartition, int]:
        return {
            topic_partition: log.view.readable_end(self._options.isolation)
            for topic_partition, log in logs.items()
        }

    def stop_at_current_ends(self) -> None:
        """Read no further than the current ends (``availableNow``): later records and new partitions are left
        to the next run of the query."""
        self._final_offsets = self.log_ends()

    def next_end(self, start: Offsets, offsets_max: int | None = None) -> dict[TopicPartition, int]:
        """The end of the next micro-batch, which has about ``offsets_max`` offsets; ``start`` if there is no
        micro-batch yet.

        Each log gets a share of ``offsets_max`` in proportion to its new offsets, one offset at least. Raises
        OffsetOutOfRangeError for data loss.
        """
        try:
            log_ends = self.log_ends()
            self._failed_attempts = 0
        except (FileNotFoundError, DirectoryRefusedError):
            self._failed_attempts += 1
            if self._failed_attempts >= _OPEN_ATTEMPTS:
                raise
            return dict(start)
        self._report_losses(start, log_ends)
        if self._final_offsets is not None:
            log_ends = _up_to(log_ends, self._final_offsets, start)
        new_by_partition = {
            topic_partition: max(end - start.get(topic_partition, 0), 0)
            for topic_partition, end in log_ends.items()
        }
        new_offsets = sum(new_by_partition.values())
        if self._final_offsets is None and self._waits_for_more(new_offsets):
            return dict(start)
        self._last_batch_ms = self._clock.now_ms()
        if offsets_max is None or new_offsets <= offsets_max:
            return log_ends
        for topic_partition, new_of_log in new_by_partition.items():
            share = offsets_max * new_of_log / new_offsets
            if new_of_log:  # Each log with new offsets gets at least one, as in Spark's Kafka source.
                log_ends[topic_partition] = start.get(topic_partition, 0) + min(
                    new_of_log, 1 if share < 1 else int(share)
                )
        return log_ends

    def _waits_for_more(self, new_offsets: int) -> bool:
        """Are there fewer new offsets than ``minOffsetsPerTrigger``, and is ``maxTriggerDelay`` not over?"""
        options = self._options
        if options.min_offsets_per_trigger is None or self._last_batch_ms is None:
            return False
        waited_ms = self._clock.now_ms() - self._last_batch_ms
        return new_offsets < options.min_offsets_per_trigger and waited_ms < options.max_trigger_delay_ms

    def splits(self, start: Offsets, end: Offsets) -> list[TaskSplit]:
        """The splits of the micro-batch from ``start`` to ``end``. Raises OffsetOutOfRangeError for data
        loss."""
        logs = self._open()
        log_ends = self._log_ends_of(logs)
        self._report_losses(end, log_ends)
        ranges = []
        for topic_partition, end_offset in sorted(end.items()):
            first = start.get(topic_partition, 0)
            if topic_partition in logs and first < end_offset:
                log_start = logs[topic_partition].log_start_offset
                if first < log_start:
                    reason = f"records from offset {first} to {log_start} were deleted before they were read"
                    self._report_loss(topic_partition, reason)
                first = min(max(first, log_start), log_ends[topic_partition])
                offset_range = OffsetRange(first, max(first, min(end_offset, log_ends[topic_partition])))
                ranges.append(snapshot_range(logs[topic_partition], offset_range))
        return split_ranges(ranges, self._options)

    def _report_losses(self, offsets: Offsets, ends: Offsets) -> None:
        """Report partitions that are missing among the logs' ``ends``, or end below the stream's
        ``offsets``."""
        for topic_partition, offset in offsets.items():
            if topic_partition not in ends:
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
        """The selected logs as they are now. Tries again if a swap or a deletion interferes."""
        for _ in range(_OPEN_ATTEMPTS - 1):
            try:
                return self._open_once()
            except (FileNotFoundError, DirectoryRefusedError):
                continue
        return self._open_once()

    def _open_once(self) -> dict[TopicPartition, ReadOnlyLog]:
        """The selected logs as they are now; a log is opened again only if its files have changed."""
        logs_by_partition: dict[TopicPartition, tuple[object, ReadOnlyLog]] = {}
        # Files are listed before a log is opened, so a change in between is noticed at the next trigger.
        directories = self._options.directories
        checkpoints = list(map(_checkpoints, directories))
        # The logs stay readable after the block: each is a snapshot, which opens its files for each read.
        with ReadOnlyLogs(directories) as logs:
            for topic_partition in selected_partitions(logs, self._options):
                # A roll, swap, truncation or append changes the name, size or inode of a ``.log`` file.
                listed = sorted(files.list_files(logs.directory_of(topic_partition)).items())
                state = (
                    checkpoints,
                    [(name, file.size, file.inode) for name, file in listed if ".log" in name],
                )
                known = self._opened.get(topic_partition)
                logs_by_partition[topic_partition] = (
                    known if known is not None and known[0] == state else (state, logs[topic_partition])
                )
        self._opened = logs_by_partition
        return {topic_partition: log for topic_partition, (_, log) in logs_by_partition.items()}


def _up_to(log_ends: Offsets, final_offsets: Offsets, start: Offsets) -> dict[TopicPartition, int]:
    """The ends of the logs, but at most ``final_offsets``; a stream that is past one already stays where it
    is. Logs that have neither a final offset nor a start are new, and left out."""
    return {
        topic_partition: min(end, max(final_offsets.get(topic_partition, 0), start.get(topic_partition, 0)))
        for topic_partition, end in log_ends.items()
        if topic_partition in final_offsets or topic_partition in start
    }


def _checkpoints(path: Path) -> list[tuple[int, int] | None]:
    """(inode, modification time) of each checkpoint file, None for a missing one.

    ``path`` may be a log directory or a partition's directory, so its parent is checked, too."""
    states: list[tuple[int, int] | None] = []
    for name in _CHECKPOINTS:
        for folder in (path, files.resolved(path).parent):
            try:
                status = files.stat(folder / name)
                states.append((status.inode, status.modified_ns))
            except FileNotFoundError:
                states.append(None)
    return states
