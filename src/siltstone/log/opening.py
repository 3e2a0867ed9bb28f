"""From a partition directory to an open log: recovery, then ``PartitionLog``."""

from __future__ import annotations

from pathlib import Path

from siltstone.base import files
from siltstone.base.clock import Clock, SystemClock
from siltstone.base.config import LogConfig
from siltstone.base.errors import DirectoryRefusedError
from siltstone.log.names import TopicPartition, parse_partition
from siltstone.log.partition import PartitionLog
from siltstone.log.recovery.partition import recover_partition


def partition_of(directory: Path) -> TopicPartition:
    """Which partition a directory is, by its name. Raises DirectoryRefusedError for no ``topic-N``."""
    where = parse_partition(directory.absolute().name)
    if where is None:
        raise DirectoryRefusedError(
            f"{directory}: a partition's directory is named TOPIC-N, such as events-0"
        )
    return where


def open_partition(
    directory: Path,
    config: LogConfig | None = None,
    clock: Clock | None = None,
    *,
    clean: bool = False,
    recovery_point: int = 0,
    log_start: int = 0,
) -> PartitionLog:
    """Open one partition directory, made if it is not there, without a lock and without checkpoints.

    For tools and tests: a program opens logs through a ``LogManager``. ``clean`` says that it was closed in
    order; else everything from ``recovery_point`` on is checked. Raises CorruptRecordError, OSError.
    """
    config, clock = config or LogConfig(), clock or SystemClock()
    files.make_directory(directory, parents=True)
    recovered = recover_partition(
        directory,
        clean=clean,
        recovery_point=recovery_point,
        log_start=log_start,
        config=config,
        now_ms=clock.now_ms(),
    )
    return PartitionLog(partition_of(directory), recovered, config, clock)
