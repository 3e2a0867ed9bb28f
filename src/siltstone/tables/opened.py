"""The logs that a table is over, as they are now: opened without a lock and without changing a byte."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from siltstone.log.fetch import READ_COMMITTED
from siltstone.log.names import CLUSTER_METADATA, TopicPartition
from siltstone.log.service.read_only import ReadOnlyLog, ReadOnlyLogs
from siltstone.tables.options import ReadOptions

Logs = Mapping[TopicPartition, ReadOnlyLog]


def open_logs(options: ReadOptions) -> dict[TopicPartition, ReadOnlyLog]:
    """The chosen partitions of the options' directories; those of a broker's own metadata only by name.

    Raises what ``ReadOnlyLogs`` raises, and UnknownTopicError for a name that is not there.
    """
    with ReadOnlyLogs(options.paths) as logs:
        return {where: logs[where] for where in chosen_of(logs, options)}


def open_directories(options: ReadOptions) -> dict[TopicPartition, Path]:
    """The chosen partitions' directories, without a look at their logs. Raises as ``open_logs``."""
    with ReadOnlyLogs(options.paths) as logs:
        return {where: logs.directory_of(where) for where in chosen_of(logs, options)}


def chosen_of(logs: ReadOnlyLogs, options: ReadOptions) -> list[TopicPartition]:
    """The chosen partitions among those that are there. Raises UnknownTopicError."""
    named = options.choice.assign is not None or options.choice.subscribe is not None
    there = [each for each in logs if named or each.topic != CLUSTER_METADATA or len(logs) == 1]
    return options.choice.of(there)


def open_again(directory: Path | str, where: TopicPartition) -> ReadOnlyLog:
    """One partition as it is now, from its own directory."""
    with ReadOnlyLogs([directory]) as logs:
        return logs[where]


def readable_end(log: ReadOnlyLog, isolation: str) -> int:
    """The offset behind what may be read: the last stable one, or the high watermark."""
    return log.view.last_stable_offset if isolation == READ_COMMITTED else log.view.high_watermark
