"""Streams the records of a topic: ``follow`` sends the records from a position on, and then new ones as they
are written.

::

    view log        ──── records from the start of the query on; without a start, only new ones ────►
    view compacted  ├─ ledger: the last record of each key ─┤ log_from ─ the log itself ──►

    async for event in follow(topic, RecordQuery(view="compacted")):
        event.records, event.position          # a later stream continues after the event: follow(…, position)

Every record of a partition is sent once, in the order of offsets. A position has the next offset of each
partition, and ``log_from``: the offset from which the log itself is read, also if a newer ledger covers more.
So a reader that continues later sees every change of the keys that it has read, with tombstones. Below
``log_from`` it reads the newest ledger. If retention or ``delete-records`` has deleted records before they
were read, an event ``gap`` says so, and the stream continues in the newest ledger.

A stream of the view *compacted* (what a Pulsar consumer gets with ``readCompacted``) reads the ledgers of one
partition after another, each to its compaction horizon. Then it reads the logs of all partitions in turn, as
a stream of the view *log* does from its start. A stream holds the records of one read in memory, and reads
again when its consumer asks for the next event. Clients need not understand a position; it is base64 of these
fields, big-endian::

    version int8 | digest 8 bytes | per partition: number int32 | offset int64 | log_from int64
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import struct
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict, TypeVar, Unpack

from siltstone.base.errors import OffsetOutOfRangeError, UnknownTopicError, UsageError
from siltstone.commands.browsing import (
    BrowsedRecord,
    BrowsedTopic,
    Budget,
    MatchingRows,
    PartitionProgress,
    RecordQuery,
    check_query,
    chosen_logs,
    first_offset,
    record_in,
)
from siltstone.log.fetch import LogView
from siltstone.log.ledger.reading import CompactedReader
from siltstone.log.read_only import ReadableLog
from siltstone.log.reading import EARLIEST, AtTime, LogReader, PolledRecords

HEARTBEAT_SECONDS = 15.0
"""After how long without another event a heartbeat is sent, so that proxies keep the connection."""
POSITIONS_MAX = 256
"""A stream of more partitions has no positions: HTTP's header ``Last-Event-ID`` must stay short."""
_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 0.02, 0.5
"""How long a stream waits at the end of the logs before it reads again: longer each time, if nothing came."""
_LINGER_SECONDS = 0.25
"""How long a stream waits for more records after it has sent some, as a producer does with ``linger.ms``: a
person needs no more than four events a second. Without it ten streams of a busy topic would take a whole core
from the appends."""
_STEP_SECONDS = 0.1
"""How long a step reads without a matching record before other streams get their turn."""
_ATTEMPTS = 3
"""How often a read is tried if another process removes the file meanwhile."""
_VERSION = 1
_HEAD, _ENTRY = struct.Struct(">b8s"), struct.Struct(">iqq")
"""The parts of a position: its head, and the entry of a partition."""
Rendered = TypeVar("Rendered")
Kind = Literal["records", "gap", "heartbeat", "end"]
_TEXT_MAX = 2 * (_HEAD.size + POSITIONS_MAX * _ENTRY.size)
"""Longer texts are refused; base64 makes a position 4/3 as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """An event of a stream. ``kind``: ``records``; ``gap``: records were deleted before they were read;
    ``heartbeat``: there was nothing to send for a while; ``end``: the topic was deleted, the stream was
    stopped, or the log has ended and the stream does not wait for more.

    ``position``: from which a stream continues after this event; None before the first one, and for more than
    ``POSITIONS_MAX`` partitions. ``left``: the offsets of each partition that are still to be read: the lag.
    """

    kind: Kind
    records: tuple[BrowsedRecord, ...] = ()
    left: tuple[PartitionProgress, ...] = ()
    reason: str | None = None
    position: str | None = None

    def to_json(self) -> dict[str, object]:
        """The data of the event, without kind and position, which have fields of their own."""
        return {
            "records": [record.to_json() for record in self.records],
            "left": [progress.to_json() for progress in self.left],
            "reason": self.reason,
        }


class FollowOptions(TypedDict, total=False):
    """The keyword arguments of ``follow_rendered``, which explains them."""

    waits: bool
    heartbeat_seconds: float
    stopped: asyncio.Event | None
    executor: Executor | None


def check_stream(topic: BrowsedTopic, query: RecordQuery, position: str | None = None) -> None:
    """Raises UsageError for a query or a position that ``follow`` does not support."""
    check_query(topic, query)
    ends = (query.last, query.newest_first or None, query.end_ms, query.end_offset)
    if query.view == "latest" or any(bound is not None for bound in ends):
        advice = "leave view=latest, last, end and order out"
        raise UsageError("a stream has the order of the log, and no end", advice=advice)
    if position is not None:
        parse_position(topic, query, position)


def follow(
    topic: BrowsedTopic, query: RecordQuery, position: str | None = None, **options: Unpack[FollowOptions]
) -> AsyncIterator[StreamEvent]:
    """Send the records after ``position`` as events. Without a position the stream begins at the start of the
    query; without a start, it sends all records of the view *compacted*, and only new records of the
    view *log*. Raises UsageError, and what ``browse`` raises."""
    return follow_rendered(topic, query, lambda event: event, position, **options)


async def follow_rendered(
    topic: BrowsedTopic,
    query: RecordQuery,
    render: Callable[[StreamEvent], Rendered],
    position: str | None = None,
    *,
    waits: bool = True,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
    stopped: asyncio.Event | None = None,
    executor: Executor | None = None,
) -> AsyncIterator[Rendered]:
    """``follow``, but ``render`` makes something of each event, in the thread that has read the records.

    A stream of the view *log*, or of the view *compacted* once it has caught up, is paced by the writers. It
    reads in ``executor``, which has one thread for all such streams: ten threads that wake at once would
    delay an append. Others read in asyncio's threads. ``waits``: for new records. ``stopped``: ends it."""
    check_stream(topic, query, position)
    stopped = stopped or asyncio.Event()
    positions = {} if position is None else parse_position(topic, query, position)
    stream = await asyncio.to_thread(_Stream, topic, query, positions, is_resumed=position is not None)
    run = asyncio.get_running_loop().run_in_executor
    pause, last_event_at, was_at_end = _PAUSE_SECONDS_MIN, time.monotonic(), False
    try:
        while not stopped.is_set():
            is_paced = waits and (query.view == "log" or was_at_end)
            try:
                step, events = await run(executor if is_paced else None, stream.rendered_step, render)
            except UnknownTopicError as error:
                yield render(stream.event("end", reason=error.reason))
                return
            if events:  # a step has one at most
                yield events[0]
                if is_paced and step.records:
                    await _sleep(stopped, _LINGER_SECONDS)
            elif step.is_at_end and not waits:
                yield render(stream.event("end", reason="there is no more"))
                return
            elif time.monotonic() - last_event_at >= heartbeat_seconds:
                yield render(stream.event("heartbeat"))
            else:
                was_at_end = step.is_at_end
                if was_at_end:
                    pause = min(2 * pause, _PAUSE_SECONDS_MAX)
                    await _sleep(stopped, min(pause, heartbeat_seconds))
                continue
            pause, last_event_at, was_at_end = _PAUSE_SECONDS_MIN, time.monotonic(), False
        yield render(stream.event("end", reason="the reader was stopped"))
    finally:
        # In a thread, since ``close`` waits for a read that is still running, and this generator must not.
        run(None, stream.close)


async def _sleep(stopped: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stopped.wait(), seconds)
    except TimeoutError:
        return


# Positions


class Position(NamedTuple):
    """Where a partition's reader continues: the next offset, and that from which the log itself is read."""

    offset: int
    log_from: int


def _digest(topic: BrowsedTopic, query: RecordQuery) -> bytes:
    """Tells to which topic and view a position belongs. The filters of a query may change between streams."""
    return sha256(repr((topic.name, topic.identity, query.view)).encode()).digest()[:8]


def position_text(topic: BrowsedTopic, query: RecordQuery, positions: Mapping[int, Position]) -> str | None:
    """The text of the positions of all partitions; None if there are none, or too many."""
    if not 0 < len(positions) <= POSITIONS_MAX:
        return None
    entries = b"".join(_ENTRY.pack(number, *position) for number, position in sorted(positions.items()))
    return base64.urlsafe_b64encode(_HEAD.pack(_VERSION, _digest(topic, query)) + entries).decode()


def parse_position(topic: BrowsedTopic, query: RecordQuery, text: str) -> dict[int, Position]:
    """The positions in a text. Raises UsageError for one that is not of this topic and view."""
    positions: dict[int, Position] = {}
    try:
        if len(text) > _TEXT_MAX:
            raise ValueError("it is too long")
        data = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
        version, digest = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"it has version {version}")
        if digest != _digest(topic, query):
            raise ValueError("it belongs to another topic or view")
        for number, offset, log_from in _ENTRY.iter_unpack(data[_HEAD.size :]):
            if number < 0 or number in positions or offset < 0 or log_from < 0:
                raise ValueError("its positions are impossible")
            positions[number] = Position(offset, log_from)
        if not positions:
            raise ValueError("it has no positions")
    except (ValueError, struct.error, binascii.Error) as error:
        reason = f"the position is not valid: {error}"
        raise UsageError(reason, advice="begin again without one") from error
    return positions


# Reading


class _CurrentLog:
    """The log of a partition. A reader asks it for the view at each read; ``log`` is replaced when another
    process has written."""

    def __init__(self, log: ReadableLog) -> None:
        self.log = log

    @property
    def view(self) -> LogView:
        """The newest view."""
        return self.log.view

    @property
    def directory(self) -> Path:
        """The partition's directory."""
        return self.log.directory


Reader = LogReader | CompactedReader


class _PendingRecords(NamedTuple):
    """The records of one read that match the query, and are not all sent yet: their ``rows`` in ``polled``,
    and how many of these were ``sent``."""

    partition: int
    polled: PolledRecords
    rows: list[int]
    sent: int


class _Step(NamedTuple):
    """The result of one step. ``gap``: why records are missing; ``is_at_end``: of all partitions."""

    records: tuple[BrowsedRecord, ...] = ()
    gap: str | None = None
    is_at_end: bool = False


class _Stream:
    """Reads the partitions of a topic. ``positions``: where to continue, for the partitions that an earlier
    stream has read; with ``is_resumed`` the others are new since, and are read from their start. Only one
    thread at a time is in ``step``; ``close`` waits for it."""

    def __init__(
        self,
        topic: BrowsedTopic,
        query: RecordQuery,
        positions: Mapping[int, Position],
        *,
        is_resumed: bool,
    ) -> None:
        self._topic, self._query, self._filter = topic, query, MatchingRows(query, topic.masked)
        self._logs = {number: _CurrentLog(log) for number, log in chosen_logs(topic, query).items()}
        self._positions = {number: position for number, position in positions.items() if number in self._logs}
        self._readers: dict[int, Reader] = {}
        self._order = deque(self._logs)
        self._pending: _PendingRecords | None = None
        self._is_at_end = self._is_closed = False
        self._lock = threading.Lock()
        if not is_resumed and query.view == "log":
            for number, current in self._logs.items():
                self._positions[number] = Position(first_offset(query, current.log), 0)

    def event(
        self,
        kind: Kind,
        records: tuple[BrowsedRecord, ...] = (),
        reason: str | None = None,
    ) -> StreamEvent:
        """An event with the positions as they are now."""
        position = position_text(self._topic, self._query, self._positions)
        return StreamEvent(kind=kind, records=records, left=self._left(), reason=reason, position=position)

    def _left(self) -> tuple[PartitionProgress, ...]:
        left = []
        for number, current in self._logs.items():
            low = self._positions[number].offset if number in self._positions else 0
            high = current.view.readable_end(self._query.isolation)
            if low < high:
                left.append(PartitionProgress(partition=number, low=low, high=high))
        return tuple(left)

    def rendered_step(self, render: Callable[[StreamEvent], Rendered]) -> tuple[_Step, list[Rendered]]:
        """A step, and its event as ``render`` returns it, if there is one. Raises what ``step`` raises."""
        step = self.step()
        if step.gap is not None:
            return step, [render(self.event("gap", reason=step.gap))]
        return step, [render(self.event("records", step.records))] if step.records else []

    def step(self) -> _Step:
        """The next records of one partition: the rest of the last read, or new reads until a record matches.
        Raises UnknownTopicError once the topic is deleted, and what ``browse`` raises."""
        with self._lock:
            return _Step() if self._is_closed else self._step()

    def _step(self) -> _Step:
        if self._pending is None and self._is_at_end:
            self._refresh_logs()
        budget, empty_polls = Budget(seconds=_STEP_SECONDS), 0
        while self._pending is None and empty_polls < len(self._order):
            if budget.is_over:
                return _Step()
            number = self._order[0]
            try:
                polled = self._poll(number, budget)
            except OffsetOutOfRangeError as error:
                self._continue_after_gap(number)
                return _Step(gap=error.reason)
            reader = self._readers[number]
            # A ledger is read to its horizon first; logs are read in turn.
            if not (isinstance(reader, CompactedReader) and reader.is_in_ledger):
                self._order.rotate(-1)
            if polled is None:
                empty_polls += 1
                continue
            empty_polls = 0
            rows = self._filter.rows(polled).tolist() if len(polled) else []
            if rows:
                self._pending = _PendingRecords(number, polled, rows, 0)
            else:
                self._advance_position(number)
        self._is_at_end = self._pending is None
        return _Step(records=self._take(), is_at_end=self._is_at_end)

    def _take(self) -> tuple[BrowsedRecord, ...]:
        """The next ``limit`` records of the last read."""
        if self._pending is None:
            return ()
        number, polled, rows, sent = self._pending
        chosen = rows[sent : sent + self._query.limit]
        records = tuple(record_in(self._topic, self._query, number, polled, row) for row in chosen)
        if sent + len(chosen) < len(rows):
            self._pending = _PendingRecords(number, polled, rows, sent + len(chosen))
            self._positions[number] = self._positions[number]._replace(offset=records[-1].offset + 1)
        else:
            self._pending = None
            self._advance_position(number)
        return records

    def _advance_position(self, number: int) -> None:
        """Move a partition's position to its reader's: all records that it has read were sent."""
        reader = self._readers[number]
        log_from = reader.log_from if isinstance(reader, CompactedReader) else 0
        self._positions[number] = Position(reader.offset, log_from)

    def _refresh_logs(self) -> None:
        """Look for new partitions, and for what other processes have written. Raises UnknownTopicError."""
        for number, log in chosen_logs(self._topic, self._query).items():
            if number in self._logs:
                self._logs[number].log = log
                log.refresh()
            else:
                self._logs[number] = _CurrentLog(log)
                self._order.append(number)
                if self._query.view == "log":
                    self._positions[number] = Position(log.log_start_offset, 0)

    def _poll(self, number: int, budget: Budget) -> PolledRecords | None:
        """Read a partition once. Another process that cleans the directory may remove a file before it is
        opened: then the log is opened again. Raises OffsetOutOfRangeError."""
        for attempt in range(_ATTEMPTS):
            try:
                return self._polled(number, budget)
            except (FileNotFoundError, OffsetOutOfRangeError):
                if attempt + 1 == _ATTEMPTS:
                    raise
                self._logs[number].log.refresh()
        raise AssertionError("the last attempt returns or raises")

    def _polled(self, number: int, budget: Budget) -> PolledRecords | None:
        if number not in self._readers:
            self._readers[number] = self._open_reader(number)
            self._advance_position(number)
        reader = self._readers[number]
        if isinstance(reader, LogReader):
            before = reader.bytes_read
            polled = reader.poll_once()
            budget.spent += reader.bytes_read - before
        else:
            polled = reader.poll()
            budget.spent += 0 if polled is None else int(polled.batches["size"].sum())
        return polled

    def _open_reader(self, number: int) -> Reader:
        """Open a partition's reader at its position, or at the start of the query."""
        log, query, position = self._logs[number], self._query, self._positions.get(number)
        if query.view == "log":
            log_reader = LogReader(log, 0 if position is None else position.offset, isolation=query.isolation)
            log_reader.control_records = query.control_records
            return log_reader
        if position is not None:
            return CompactedReader(
                log, position.offset, log_from=position.log_from, isolation=query.isolation
            )
        if query.start_ms is not None:
            return CompactedReader(log, AtTime(query.start_ms), isolation=query.isolation)
        reader = CompactedReader(log, EARLIEST, isolation=query.isolation)
        if query.start_offset is not None:
            reader.seek_existing(min(query.start_offset, log.view.log_end_offset))
        return reader

    def _continue_after_gap(self, number: int) -> None:
        """Continue in a partition whose next records were deleted, or cut off by a truncation."""
        log, reader = self._logs[number], self._readers.pop(number, None)
        offset = self._positions[number].offset if reader is None else reader.offset
        offset = min(offset, log.view.log_end_offset)
        if self._query.view == "log":
            self._positions[number] = Position(max(offset, log.view.log_start_offset), 0)
            return
        if not isinstance(reader, CompactedReader):
            reader = CompactedReader(log, EARLIEST, isolation=self._query.isolation)
        reader.seek_existing(offset)
        self._readers[number] = reader
        self._advance_position(number)

    def close(self) -> None:
        """Close the readers of ledgers, so that the files of these can be removed."""
        with self._lock:
            self._is_closed = True
            for reader in self._readers.values():
                if isinstance(reader, CompactedReader):
                    reader.close()
