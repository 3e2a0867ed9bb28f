"""``st.Log``: one partition that a program opens without its topic's other partitions.

::

    with st.Log("/data/events-0") as log:                     # created if it is missing
        log.append(key=b"k", value=b"v", sync=True)

The records of one call become one batch, compressed as ``compression.type`` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Unpack

from siltstone.base.clock import Clock, SystemClock
from siltstone.base.closing import Closing
from siltstone.base.config import (
    Config,
    ConfigValue,
    parse_topic_config,
    refuse_contradictions,
)
from siltstone.log.directory import resolve_directory
from siltstone.log.fetch import LogView
from siltstone.log.following import Consumer, ConsumerOptions
from siltstone.log.names import POSITIONS
from siltstone.log.partition import AppendResult, PartitionLog, partition_of
from siltstone.log.read_only import ReadableLog
from siltstone.runtime.manager import LogManager
from siltstone.runtime.producing import Headers, NewRecord, append, new_record


class Log(ReadableLog, Closing):
    """One partition directory, open for appending and reading without its topic's other partitions.

    Its parent is the log directory, which is locked and gets the checkpoints; other partitions in it are not
    changed. ``config``: settings by Kafka's names for a topic. ``log`` is the ``PartitionLog``. The methods
    that read are those of every log (``ReadableLog``).
    """

    def __init__(
        self,
        path: Path | str,
        *,
        config: Mapping[str, ConfigValue] | None = None,
        clock: Clock | None = None,
        upkeep: bool = True,
    ) -> None:
        """Open the partition directory ``path``; it is created if it is missing. ``upkeep``: start a thread
        that applies retention and flushes by time.

        Raises UsageError for a bad setting, NotALogDirectoryError, DirectoryRefusedError,
        DirectoryLockedError, StorageError, OSError.
        """
        self.directory = resolve_directory(Path(path))
        self.topic_partition = partition_of(self.directory)
        settings = parse_topic_config(config or {}, f"Log {path}")
        self._clock = clock or SystemClock()
        self._manager = LogManager.open(
            [self.directory.parent],
            config=refuse_contradictions(Config(settings)),
            clock=self._clock,
            only=self.topic_partition,
        )
        try:
            self.log: PartitionLog = self._manager.get_or_create(self.topic_partition)
        except BaseException:
            self._manager.close()
            raise
        if upkeep:
            self._manager.start()

    # Appending

    def append(
        self,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        sync: bool = False,
    ) -> int:
        """Append one record; returns its offset. ``sync``: return only when it is durable.

        Raises LogError; UsageError for arguments of a wrong type, and if value, key and headers are missing.
        """
        record = new_record(value, key, headers, timestamp)
        return self.append_many([record], sync=sync).first_offset

    def append_many(self, records: Iterable[NewRecord], *, sync: bool = False) -> AppendResult:
        """Append records as one batch, all or none. Raises LogError, UsageError when there are none."""
        return append(self.log, records, now_ms=self._clock.now_ms(), sync=sync)

    def flush(self) -> None:
        """Make all appended records durable. Raises StorageError."""
        self.log.flush()

    # Reading

    @property
    def view(self) -> LogView:  # type: ignore[override]  # the log replaces it, so it is read only here
        """The log's current view; ``siltstone.tables.arrow.to_arrow(log)`` reads it."""
        return self.log.view

    def consumer(self, name: str, **options: Unpack[ConsumerOptions]) -> Consumer:
        """A consumer with durable positions, which are kept in the directory; ``options`` as ``Consumer``.

        Raises CorruptFileError, UsageError, OSError.
        """
        return Consumer(name, lambda: [self], lambda _: self.directory / POSITIONS, **options)

    # Deleting records, close

    def delete_records(self, before: int) -> int:
        """Raise the log start offset to ``before`` (-1: to the high watermark), durably; returns the log
        start offset. Raises LogError."""
        return self._manager.delete_records(self.topic_partition, before)

    def close(self) -> None:
        """Close the log cleanly, so that the next opening reads only its tail. Raises StorageError."""
        self._manager.close()
