"""Streams of a topic's records: ``follow`` sends the records from a position on, and then new ones as they
are written.

::

    view log        ───────────── records from the start that was asked for, else new ones ──►
    view compacted  ├─ ledger: the last record of each key ─┤ log_from ─ the log itself ──►    readCompacted

    async for event in follow(topic, RecordQuery(view="compacted")):
        event.records, event.position          # a later stream continues after the event: follow(…, position)

Every record of a partition is sent once, in the order of offsets. A position has for each partition the next
offset, and ``log_from``: the offset from which the log itself is read, also if a newer ledger covers more. So
a reader that continues later sees every change of the keys that it has read, with tombstones; the rest of the
ledger comes from the newest one. If retention or ``delete-records`` has deleted records before they were
read, an event ``gap`` says so, and the stream continues in the ledger that is current then.

A ledger is read to its horizon before the next partition's is opened; beyond the horizons all partitions take
turns. A stream holds the records of one read in memory, and reads again when its consumer asks for the next
event. A position is opaque: base64 of these fields, big-endian::

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
    readable_end,
    record_in,
)
from siltstone.log.fetch import LogView
from siltstone.log.ledger.reading import CompactedReader
from siltstone.log.read_only import ReadableLog
from siltstone.log.reading import EARLIEST, AtTime, LogReader, PolledRecords

HEARTBEAT_SECONDS = 15.0
POSITIONS_MAX = 256
"""A stream of more partitions has no positions: HTTP's header ``Last-Event-ID`` must stay short."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_GATHER_SECONDS = 0.25
"""How long a stream pauses after it has sent new records. A person needs no more than four events a second.
Without the pause ten streams of a busy topic would take a whole core, which appends need, too."""
_STEP_SECONDS = 0.1
"""How long a step reads without finding a record of the query: other streams wait for their turn."""
_ATTEMPTS = 3
_VERSION = 1
_HEAD, _ENTRY = struct.Struct(">b8s"), struct.Struct(">iqq")
Shown = TypeVar("Shown")
Kind = Literal["records", "gap", "heartbeat", "end"]
_TEXT_MAX = 2 * (_HEAD.size + POSITIONS_MAX * _ENTRY.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """``records``; ``gap``: records were deleted before they were read; ``heartbeat``: nothing for a while;
    ``end``: the topic was deleted, the reader stopped, or there is no more and the reader does not wait.

    ``position``: from which a stream continues after this event; None before the first one, and for more than
    ``POSITIONS_MAX`` partitions. ``left``: the offsets that are left to read, so a slow reader sees how far
    it is behind.
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
    """The keyword arguments of ``follow_shown``, which explains them."""

    waits: bool
    heartbeat_seconds: float
    stopped: asyncio.Event | None
    turns: Executor | None


def check_stream(topic: BrowsedTopic, query: RecordQuery, position: str | None = None) -> None:
    """Raises UsageError for a query or a position that ``follow`` cannot follow."""
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
    """The records after ``position``, else from the query's start on, else of the view *compacted* all and of
    the view *log* those that come from now on, as events. Raises UsageError, and what ``browse`` raises."""
    return follow_shown(topic, query, lambda event: event, position, **options)


async def follow_shown(
    topic: BrowsedTopic,
    query: RecordQuery,
    shown: Callable[[StreamEvent], Shown],
    position: str | None = None,
    *,
    waits: bool = True,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
    stopped: asyncio.Event | None = None,
    turns: Executor | None = None,
) -> AsyncIterator[Shown]:
    """``follow``, whose events are ``shown`` (as texts, say) in the thread that has read them.

    A stream of new records rests for ``_GATHER_SECONDS`` after an event, one of the compacted view once it
    has caught up. Such streams read in ``turns``, one thread for all: of ten threads that wake at once, an
    append would wait for one after the other. Others read in asyncio's threads."""
    check_stream(topic, query, position)
    stopped = stopped or asyncio.Event()
    begun = {} if position is None else parse_position(topic, query, position)
    stream = await asyncio.to_thread(_Stream, topic, query, begun, is_resumed=position is not None)
    run = asyncio.get_running_loop().run_in_executor
    pause, quiet_since, was_at_end = _SHORTEST_PAUSE, time.monotonic(), False
    try:
        while not stopped.is_set():
            is_paced = waits and (query.view == "log" or was_at_end)
            try:
                step, events = await run(turns if is_paced else None, stream.shown_step, shown)
            except UnknownTopicError as error:
                yield shown(stream.event("end", reason=error.reason))
                return
            if events:
                yield events[0]
                if is_paced and step.records:
                    await _sleep(stopped, _GATHER_SECONDS)
            elif step.is_at_end and not waits:
                yield shown(stream.event("end", reason="there is no more"))
                return
            elif time.monotonic() - quiet_since >= heartbeat_seconds:
                yield shown(stream.event("heartbeat"))
            else:
                was_at_end = step.is_at_end
                if was_at_end:
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    await _sleep(stopped, min(pause, heartbeat_seconds))
                continue
            pause, quiet_since, was_at_end = _SHORTEST_PAUSE, time.monotonic(), False
        yield shown(stream.event("end", reason="the reader was stopped"))
    finally:
        # A read that a thread is still at is not waited for here: the reader may be gone.
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
    """The identity of a position's stream. Filters, and how much is sent, may change."""
    return sha256(repr((topic.name, topic.identity, query.view)).encode()).digest()[:8]


def position_text(topic: BrowsedTopic, query: RecordQuery, positions: Mapping[int, Position]) -> str | None:
    """Positions by partition as a text, None for none and for too many."""
    if not 0 < len(positions) <= POSITIONS_MAX:
        return None
    entries = b"".join(_ENTRY.pack(number, *place) for number, place in sorted(positions.items()))
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


class _Newest:
    """A partition's log as it was read last: its reader sees each newer view."""

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


class _Block(NamedTuple):
    """Records that were read, and how many of their ``rows`` were sent."""

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
    """The readers of a topic's partitions. ``positions``: where to go on, of those that were begun. One
    thread steps; ``close`` waits for it."""

    def __init__(
        self,
        topic: BrowsedTopic,
        query: RecordQuery,
        positions: Mapping[int, Position],
        *,
        is_resumed: bool,
    ) -> None:
        self._topic, self._query, self._filter = topic, query, MatchingRows(query, topic.masked)
        self._logs = {number: _Newest(log) for number, log in chosen_logs(topic, query).items()}
        self._positions = {number: place for number, place in positions.items() if number in self._logs}
        self._readers: dict[int, Reader] = {}
        self._order = deque(self._logs)
        self._block: _Block | None = None
        self._is_at_end = self._is_closed = False
        self._lock = threading.Lock()
        if not is_resumed and query.view == "log":
            for number, newest in self._logs.items():
                self._positions[number] = Position(first_offset(query, newest.log), 0)

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
        for number, newest in self._logs.items():
            low = self._positions[number].offset if number in self._positions else 0
            high = readable_end(newest.view, self._query.isolation)
            if low < high:
                left.append(PartitionProgress(partition=number, low=low, high=high))
        return tuple(left)

    def shown_step(self, shown: Callable[[StreamEvent], Shown]) -> tuple[_Step, list[Shown]]:
        """A step, and its event as it is shown, if it has one. Raises what ``step`` raises."""
        step = self.step()
        if step.gap is not None:
            return step, [shown(self.event("gap", reason=step.gap))]
        return step, [shown(self.event("records", step.records))] if step.records else []

    def step(self) -> _Step:
        """The next records of one partition: of the last read, or of reads until there are some. Raises
        UnknownTopicError once the topic is deleted, and what ``browse`` raises."""
        with self._lock:
            return _Step() if self._is_closed else self._step()

    def _step(self) -> _Step:
        if self._block is None and self._is_at_end:
            self._refresh_snapshot()
        budget, quiet = Budget(seconds=_STEP_SECONDS), 0
        while self._block is None and quiet < len(self._order):
            if budget.is_over:
                return _Step()
            number = self._order[0]
            try:
                polled = self._poll(number, budget)
            except OffsetOutOfRangeError as error:
                self._continue_after_gap(number)
                return _Step(gap=error.reason)
            reader = self._readers[number]
            if not (isinstance(reader, CompactedReader) and reader.is_in_ledger):
                self._order.rotate(-1)
            if polled is None:
                quiet += 1
                continue
            quiet = 0
            rows = self._filter.rows(polled).tolist() if len(polled) else []
            if rows:
                self._block = _Block(number, polled, rows, 0)
            else:
                self._note(number)
        self._is_at_end = self._block is None
        return _Step(records=self._take(), is_at_end=self._is_at_end)

    def _take(self) -> tuple[BrowsedRecord, ...]:
        """The next ``limit`` records of the block."""
        if self._block is None:
            return ()
        number, polled, rows, sent = self._block
        chosen = rows[sent : sent + self._query.limit]
        records = tuple(record_in(self._topic, self._query, number, polled, row) for row in chosen)
        if sent + len(chosen) < len(rows):
            self._block = _Block(number, polled, rows, sent + len(chosen))
            self._positions[number] = self._positions[number]._replace(offset=records[-1].offset + 1)
        else:
            self._block = None
            self._note(number)
        return records

    def _note(self, number: int) -> None:
        """All that the reader has read was sent."""
        reader = self._readers[number]
        log_from = reader.log_from if isinstance(reader, CompactedReader) else 0
        self._positions[number] = Position(reader.offset, log_from)

    def _refresh_snapshot(self) -> None:
        """Look for new partitions, and for what other processes have written. Raises UnknownTopicError."""
        for number, log in chosen_logs(self._topic, self._query).items():
            if number in self._logs:
                self._logs[number].log = log
                log.refresh()
            else:
                self._logs[number] = _Newest(log)
                self._order.append(number)
                if self._query.view == "log":
                    self._positions[number] = Position(log.log_start_offset, 0)

    def _poll(self, number: int, budget: Budget) -> PolledRecords | None:
        """One read of a partition. In a directory that another process cleans a file may be gone before it is
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
            self._readers[number] = self._begun(number)
            self._note(number)
        reader = self._readers[number]
        if isinstance(reader, LogReader):
            before = reader.bytes_read
            polled = reader.poll_once()
            budget.spent += reader.bytes_read - before
        else:
            polled = reader.poll()
            budget.spent += 0 if polled is None else int(polled.batches["size"].sum())
        return polled

    def _begun(self, number: int) -> Reader:
        """A partition's reader, at its position or at the start that was asked for."""
        log, query, place = self._logs[number], self._query, self._positions.get(number)
        if query.view == "log":
            in_log = LogReader(log, 0 if place is None else place.offset, isolation=query.isolation)
            in_log.control_records = query.control_records
            return in_log
        if place is not None:
            return CompactedReader(log, place.offset, log_from=place.log_from, isolation=query.isolation)
        if query.start_ms is not None:
            return CompactedReader(log, AtTime(query.start_ms), isolation=query.isolation)
        reader = CompactedReader(log, EARLIEST, isolation=query.isolation)
        if query.start_offset is not None:
            reader.seek_existing(min(query.start_offset, log.view.log_end_offset))
        return reader

    def _continue_after_gap(self, number: int) -> None:
        """Go on in a partition whose next records were deleted, or cut off by a truncation."""
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
        self._note(number)

    def close(self) -> None:
        """Release a ledger that is held."""
        with self._lock:
            self._is_closed = True
            for reader in self._readers.values():
                if isinstance(reader, CompactedReader):
                    reader.close()
