"""Opening partitions: brought into order, then handed to ``PartitionLog``; many of a directory side by side.

A log that cannot be served is refused with the reason and the others are opened (Kafka would stop); an error
of the disk itself takes the whole directory offline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from siltstone.clock import Clock
from siltstone.config import LogConfig
from siltstone.errors import SiltstoneError
from siltstone.log.found import Background
from siltstone.log.ledger.keeping import settle
from siltstone.log.names import TopicPartition
from siltstone.log.opening import open_recovered
from siltstone.log.partition import PartitionLog
from siltstone.log.recovery.partition import recover_partition
from siltstone.log.service.served_directory import ServedDirectory

_CHUNKS_PER_THREAD = 8
_logger = logging.getLogger("siltstone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What every log is handed: its settings by topic, the clock, and who runs what can wait."""

    config_of: Callable[[str], LogConfig]
    clock: Clock
    background: Background


def open_log(
    where: TopicPartition,
    directory: Path,
    surroundings: Surroundings,
    *,
    clean: bool,
    recovery_point: int = 0,
    log_start: int = 0,
) -> PartitionLog:
    """Bring a partition directory into order and open it; an empty one gets its first segment.

    Raises CorruptFileError for a log that cannot be served, OSError.
    """
    config = surroundings.config_of(where.topic)
    recovered = recover_partition(
        directory,
        clean=clean,
        recovery_point=recovery_point,
        log_start=log_start,
        config=config,
        now_ms=surroundings.clock.now_ms(),
    )
    for odd in (*recovered.notes, *recovered.damage):
        _logger.warning("%s: %s", directory, odd)
    settle(directory, recovered.log_end_offset)
    return open_recovered(recovered, config, surroundings.clock, background=surroundings.background)


def open_logs(served: ServedDirectory, surroundings: Surroundings, threads: int) -> None:
    """Open all partitions of a directory into its ``logs`` and ``refused``. Raises OSError.

    The directory's own state of cleanliness holds for all of them.
    """

    def open_some(some: Sequence[tuple[TopicPartition, Path]]) -> None:
        for where, path in some:
            try:
                served.logs[where] = open_log(
                    where,
                    path,
                    surroundings,
                    clean=served.was_clean,
                    recovery_point=served.recovery_point(where),
                    log_start=served.log_start(where),
                )
            except SiltstoneError as error:
                served.refused[where] = str(error)

    partitions = sorted(served.directory.partitions.items())
    size = max(-(-len(partitions) // (threads * _CHUNKS_PER_THREAD)), 1)
    chunks = [partitions[start : start + size] for start in range(0, len(partitions), size)]
    with ThreadPoolExecutor(threads, thread_name_prefix="siltstone-open") as pool:
        for done in [pool.submit(open_some, chunk) for chunk in chunks]:
            done.result()
