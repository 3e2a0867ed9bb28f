"""The logs that a program opens with ``import siltstone as st``, record by record.

::

    with st.Log("/data/events-0") as log:                     # one partition, created where it is missing
        log.append(key=b"k", value=b"v", sync=True)

    with st.open("/data/logs", mode="a") as logs:             # all of a log directory
        logs.topics.create("users", partitions=2, config={"cleanup.policy": "compact"})
        st.append(logs["users", 0], [st.NewRecord(key=b"k", value=b"v")])

Records become one batch for each call, compressed as ``compression.type`` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

import numpy as np

from siltstone.base.clock import Clock, SystemClock
from siltstone.base.closing import Closing
from siltstone.base.codec_table import codec_number
from siltstone.base.config import Config, parse_topic_config, refuse_contradictions
from siltstone.base.errors import UsageError
from siltstone.base.records.build import NewBatchHeader, Spans, build_batch, encode_headers
from siltstone.base.records.layout import Bytes
from siltstone.log.directory import resolve_directory
from siltstone.log.fetch import READ_UNCOMMITTED, LogView
from siltstone.log.partition import AppendResult, PartitionLog, partition_of
from siltstone.log.read_only import ReadableLog, ReadOnlyLogs
from siltstone.log.reading import EARLIEST, LogReader, Start
from siltstone.log.reading import Record as ReadRecord
from siltstone.runtime.manager import LogManager

Headers = Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]
OnePathOrMany = Path | str | Sequence[Path | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """A record to append; ``timestamp`` in ms, None: now. Header names repeat only in a sequence of pairs."""

    value: bytes | None = None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None


@overload
def open(path: OnePathOrMany, mode: Literal["r"] = ..., *, clock: Clock | None = None) -> ReadOnlyLogs:
    """To read."""


@overload
def open(
    path: OnePathOrMany, mode: Literal["a"], *, config: Config | None = None, clock: Clock | None = None
) -> LogManager:
    """To append."""


def open(
    path: OnePathOrMany,
    mode: str = "r",
    *,
    config: Config | None = None,
    clock: Clock | None = None,
) -> ReadOnlyLogs | LogManager:
    """Open a log directory, or several of one broker.

    mode "r": read-only, without a lock; "a": created where it is missing, locked, recovered, maintained by a
    thread. ``config``: the broker's settings, for "a". Raises SiltstoneError, OSError.
    """
    paths = [path] if isinstance(path, (str, Path)) else list(path)
    if mode == "r":
        return ReadOnlyLogs(paths, clock=clock)
    if mode != "a":
        raise UsageError(f"there is no mode {mode!r}", advice="pass 'r' to read or 'a' to append")
    manager = LogManager.open(paths, config=config, clock=clock)
    manager.start()
    return manager


class Log(ReadableLog, Closing):
    """One partition directory, open for appending and reading, by itself.

    Its parent is the log directory, which is locked and gets the checkpoints; other partitions in it are not
    changed. ``config``: settings as texts by Kafka's names for a topic. ``log`` is the ``PartitionLog``.
    Reading is that of every log: ``read``, ``reader``, ``fetch``, ``offset_for_time`` and the offsets.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        config: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        upkeep: bool = True,
    ) -> None:
        """Open it, created where it is missing; ``upkeep``: a thread applies retention and flushes by time.

        Raises UsageError for a bad setting, NotALogDirectoryError, DirectoryRefusedError,
        DirectoryLockedError, StorageError, OSError.
        """
        self.directory = resolve_directory(Path(path))
        self.topic_partition = partition_of(self.directory)
        own = parse_topic_config(config or {}, f"Log {path}")
        self._clock = clock or SystemClock()
        self._manager = LogManager.open(
            [self.directory.parent],
            config=refuse_contradictions(Config(own)),
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
        """Append one record; its offset. ``sync``: return only when it is durable. Raises LogError."""
        record = NewRecord(value=value, key=key, headers=headers, timestamp=timestamp)
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
        """What may be read now: ``siltstone.tables.arrow.to_arrow(log)`` reads it."""
        return self.log.view

    def records(self, start: Start = EARLIEST, *, isolation: str = READ_UNCOMMITTED) -> Iterator[ReadRecord]:
        """One object for each record, from ``start`` to the end as it is now."""
        return LogReader(self.log, start, isolation=isolation).records()

    def __iter__(self) -> Iterator[ReadRecord]:
        return self.records()

    # Deleting records, close

    def delete_records(self, before: int) -> int:
        """Move the log start up to ``before`` (-1: the end), durably; the new start. Raises LogError."""
        return self._manager.delete_records(self.topic_partition, before)

    def close(self) -> None:
        """Close it in order: the next opening reads no more than its tail. Raises StorageError."""
        self._manager.close()


def append(
    log: PartitionLog, records: Iterable[NewRecord], *, now_ms: int | None = None, sync: bool = False
) -> AppendResult:
    """Append records to any open log as one batch, all or none; those without a time get ``now_ms``.

    Raises LogError, and UsageError when there are no records.
    """
    now_ms = SystemClock().now_ms() if now_ms is None else now_ms
    return log.append(batch_of(list(records), log.config.compression_type, now_ms), sync=sync)


def batch_of(records: Sequence[NewRecord], compression: str, now_ms: int) -> Bytes:
    """One batch with offsets from 0 on, which the log replaces. Raises UsageError when there are none."""
    if not records:
        raise UsageError("a batch cannot be empty", advice="pass at least one record")
    codec = codec_number(compression)
    times = [now_ms if record.timestamp is None else record.timestamp for record in records]
    return build_batch(
        NewBatchHeader(codec=codec),
        offset=np.arange(len(records), dtype=np.int64),
        timestamp=np.array(times, np.int64),
        keys=Spans.of([record.key for record in records]),
        values=Spans.of([record.value for record in records]),
        headers=Spans.of([_encoded(record.headers) for record in records]),
    )


def _encoded(headers: Headers) -> bytes:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return encode_headers([(name.encode(), value) for name, value in pairs])
