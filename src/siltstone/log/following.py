"""Reads logs as they grow, record by record: ``RecordStream``, and ``Consumer``, which has durable positions.

::

    for record in logs["users"].follow(timeout=5):            # ends after 5 s without a new record
        …
    async for record in logs["users"].follow():               # never ends
        …
    consumer = logs.consumer("billing", "users")              # continues after the last commit
    for record in consumer:
        bill(record)
        consumer.commit()

A stream that has returned all records polls for new records after 5 ms, then after 10 ms and so on, up to
every 100 ms. It also lists the files again then, since another process may write the log. Records of one
partition come in their order; partitions take turns. New partitions of a topic are read from their beginning.
Corresponds to ``KafkaConsumer`` (``seek``, ``position``, ``commitSync``) without its groups: every consumer
reads all partitions, also if several have the same name.
"""

from __future__ import annotations

import asyncio
import collections
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypedDict

from siltstone.base.errors import (
    DirectoryRefusedError,
    OffsetOutOfRangeError,
    UnknownTopicError,
    UsageError,
)
from siltstone.log.fetch import READ_UNCOMMITTED, LogView
from siltstone.log.names import TopicPartition
from siltstone.log.positions import check_name, forget_positions, read_positions, write_positions
from siltstone.log.reading import EARLIEST, LogReader, Record, Start, records_of

_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.005, 0.1
_SHOWN_POSITIONS = 10
"""How many partitions the ``repr`` of a stream shows."""
_TRIES = 50
"""Consecutive attempts at reading files that another process swaps, before the error is raised. With the
waits in between they take about 5 s."""


class FollowedLog(Protocol):
    """A log that is read as it grows."""

    topic_partition: TopicPartition

    @property
    def view(self) -> LogView:
        """The current view."""
        ...

    def refresh(self) -> None:
        """Update the view with what another process has written. Raises OSError, DirectoryRefusedError."""
        ...


class ConsumerOptions(TypedDict, total=False):
    """The keyword arguments of ``Consumer``."""

    timeout: float | None
    isolation: str
    reset: str


class StreamOptions(ConsumerOptions, total=False):
    """The keyword arguments of ``RecordStream``."""

    positions: Mapping[TopicPartition, int] | None


class RecordStream(Iterator[Record], AsyncIterator[Record]):
    """The records of some logs, from a start on, as they are appended: for one thread or one asyncio task.

    ``timeout``: seconds without a new record after which the stream ends; 0: at the current end; None: never.
    A stream that has ended can be iterated again, and continues. ``logs`` is called for the current list of
    logs whenever all of them were read to their ends. ``start``: where the stream begins in a log that has no
    entry in ``positions``; a log that appears later is read from its own start. ``isolation``, ``reset``:
    those of ``LogReader``.
    """

    def __init__(
        self,
        logs: Callable[[], Iterable[FollowedLog]],
        start: Start = EARLIEST,
        *,
        positions: Mapping[TopicPartition, int] | None = None,
        timeout: float | None = None,
        isolation: str = READ_UNCOMMITTED,
        reset: str = "none",
    ) -> None:
        if timeout is not None and not (isinstance(timeout, (int, float)) and timeout >= 0):
            advice = "pass seconds, 0 to end at the current end, or None for no end"
            raise UsageError(f"timeout={timeout!r} is not a number of seconds", advice=advice)
        self._logs, self._timeout, self._isolation, self._reset = logs, timeout, isolation, reset
        self._readers: dict[TopicPartition, LogReader] = {}
        # The partitions in the order in which they are read next.
        self._turns: collections.deque[TopicPartition] = collections.deque()
        # Records that were read and not returned yet, all of one partition.
        self._pending: collections.deque[Record] = collections.deque()
        self._positions: dict[TopicPartition, int] = {}
        self._reading = threading.Lock()  # held while files are read (see ``_poll``), and by ``seek``
        self._failures = 0  # consecutive failed reads, see ``_TRIES``
        self._update_logs(start, positions or {})

    def _update_logs(self, start: Start, positions: Mapping[TopicPartition, int]) -> None:
        """Make readers for the logs that have none yet, and refresh all others."""
        for log in self._logs():
            partition = log.topic_partition
            if partition not in self._readers:
                first = positions.get(partition, start)
                reader = LogReader(log, first, isolation=self._isolation, reset=self._reset)
                self._readers[partition] = reader
                self._positions[partition] = reader.offset
                self._turns.append(partition)
            else:
                log.refresh()

    def __repr__(self) -> str:
        positions = sorted(self._positions.items())[:_SHOWN_POSITIONS]
        shown = [f"{partition} at {offset}" for partition, offset in positions]
        more = len(self._positions) - len(shown)
        return f"<{self._title()}: {', '.join(shown) or 'no partition'}{f' and {more} more' if more else ''}>"

    def _title(self) -> str:
        """What ``repr`` says before the positions."""
        return type(self).__name__

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The offset after the last record that was returned, by partition."""
        return dict(self._positions)

    def seek(self, topic_partition: TopicPartition | tuple[str, int], start: Start) -> None:
        """Continue a partition at another offset or time. Raises UnknownTopicError, UsageError."""
        partition = (
            TopicPartition(*topic_partition) if isinstance(topic_partition, tuple) else topic_partition
        )
        if partition not in self._readers:
            raise UnknownTopicError("the stream does not read this partition", path=str(partition))
        with self._reading:
            self._readers[partition].seek(start)
            self._positions[partition] = self._readers[partition].offset
            kept = (record for record in self._pending if _partition_of(record) != partition)
            self._pending = collections.deque(kept)

    def __iter__(self) -> RecordStream:
        return self

    def __next__(self) -> Record:
        wait, waited = _FIRST_WAIT_SECONDS, 0.0
        while not self._pending and not self._poll(is_last=self._ends_after(waited)):
            if self._ends_after(waited):
                raise StopIteration
            time.sleep(wait)
            wait, waited = min(2 * wait, _LONGEST_WAIT_SECONDS), waited + wait
        return self._take()

    def __aiter__(self) -> RecordStream:
        return self

    async def __anext__(self) -> Record:
        wait, waited = _FIRST_WAIT_SECONDS, 0.0
        # Files are read in a thread, so that the event loop can run other tasks meanwhile.
        while not self._pending and not await asyncio.to_thread(self._poll, is_last=self._ends_after(waited)):
            if self._ends_after(waited):
                raise StopAsyncIteration
            await asyncio.sleep(wait)
            wait, waited = min(2 * wait, _LONGEST_WAIT_SECONDS), waited + wait
        return self._take()

    def _ends_after(self, waited: float) -> bool:
        """Does the stream end after ``waited`` seconds without a new record?"""
        return self._timeout is not None and waited >= self._timeout

    def _take(self) -> Record:
        """The next pending record; moves the position of its partition."""
        record = self._pending.popleft()
        partition = _partition_of(record)
        # After the last record of a poll the position also passes the offsets after it that have no record:
        # transaction markers, and offsets that a cleaning discarded.
        self._positions[partition] = record.offset + 1 if self._pending else self._readers[partition].offset
        return record

    def _poll(self, *, is_last: bool) -> bool:
        """Read more records into ``_pending``; False if there are none. Raises what reading raises.

        While another process swaps segments, files are missing for a moment. That error is raised only after
        ``_TRIES`` consecutive failures, or if the stream is about to end (``is_last``).
        """
        # A cancelled asyncio task leaves its thread reading. The next call waits for that thread, and returns
        # the records that it has read.
        with self._reading:
            try:
                has_records = bool(self._pending) or self._read()
                if not has_records:
                    self._update_logs(EARLIEST, {})
                    has_records = self._read()
                self._failures = 0
                return has_records
            except (FileNotFoundError, DirectoryRefusedError):
                self._failures += 1
                if is_last or self._failures >= _TRIES:
                    raise
                return False

    def _read(self) -> bool:
        """Read records of the next partition that has any into ``_pending``; False if none has. Each
        partition that was asked goes to the end of ``_turns``, so that partitions take turns."""
        for _ in range(len(self._turns)):
            partition = self._turns[0]
            self._turns.rotate(-1)
            reader = self._readers[partition]
            polled = reader.poll()
            if polled is not None:
                self._pending.extend(records_of(polled, topic_partition=partition))
                return True
            self._positions[partition] = reader.offset
        return False


def _partition_of(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


class Consumer(RecordStream):
    """A stream with a name, whose positions are durable once they are committed.

    It begins at the position of the last commit of its name. If a partition has no such position, or its
    offset does not exist any more, it begins as ``reset`` says: "earliest", "latest", or "none" to raise
    OffsetOutOfRangeError. Records that were returned after the last commit are returned again after a restart
    (at least once).
    """

    def __init__(
        self,
        name: str,
        logs: Callable[[], Sequence[FollowedLog]],
        file_of: Callable[[TopicPartition], Path],
        *,
        timeout: float | None = None,
        isolation: str = READ_UNCOMMITTED,
        reset: str = EARLIEST,
    ) -> None:
        """``file_of``: the file of a partition's positions. Raises CorruptFileError, UsageError, OSError."""
        check_name(name)
        self.name = name
        self._file_of = file_of
        positions: dict[TopicPartition, int] = {}
        for path in {file_of(log.topic_partition) for log in logs()}:
            positions |= read_positions(path, name)
        if reset == "none" and (missing := {log.topic_partition for log in logs()} - positions.keys()):
            raise OffsetOutOfRangeError(
                f"the consumer {name!r} has no position in it",
                path=str(min(missing)),
                advice="pass reset='earliest' or reset='latest'",
            )
        start = EARLIEST if reset == "none" else reset  # with "none" not used: all logs have a position
        super().__init__(logs, start, positions=positions, timeout=timeout, isolation=isolation, reset=reset)
        self._committed = {
            partition: offset for partition, offset in positions.items() if partition in self._readers
        }

    def _title(self) -> str:
        return f"{type(self).__name__} {self.name!r}"

    @property
    def committed(self) -> dict[TopicPartition, int]:
        """The positions that are durable, by partition."""
        return dict(self._committed)

    def commit(self) -> None:
        """Make the position after the last returned record durable, in every partition where it has moved.

        Raises CorruptFileError, OSError; some partitions may be committed then.
        """
        by_file: dict[Path, dict[TopicPartition, int]] = {}
        for partition, offset in self._positions.items():
            if self._committed.get(partition) != offset:
                by_file.setdefault(self._file_of(partition), {})[partition] = offset
        for path, moved in by_file.items():
            write_positions(path, self.name, moved)
            self._committed |= moved

    def forget(self) -> None:
        """Remove the name's positions, durably; the stream continues from where it is. Raises
        CorruptFileError, OSError."""
        for path in {self._file_of(partition) for partition in self._readers}:
            forget_positions(path, self.name)
        self._committed = {}
