"""Reads a topic's records for display, a page at a time: ``browse``. (``commands/streaming`` streams new
ones.)

::

    topic = BrowsedTopic(name="users", logs=logs["users"].logs, partition_count=3)
    query, latest = RecordQuery(key=b"alice", view="latest"), LatestViews()
    page = browse(topic, query, latest=latest)
    while page.cursor is not None:  # there are more records
        page = browse(topic, query, cursor=page.cursor, latest=latest)

A request reads at most ``READ_BYTES`` or for ``READ_SECONDS``, but at least one block of each partition. It
scans columns and makes objects only for the records of its page. Partitions are merged by time: the next
record is the one with the smallest (with ``newest_first``: the largest) timestamp among the next records of
all partitions. The first page fixes the ends of the partitions, so the last page is reached although the log
grows; a key whose last record is after that end is not in later pages of the view *latest*.

Later pages of the view *compacted* may read a newer ledger. They end at its horizon at least, since it no
longer has the records that are superseded below its horizon. They read the log itself from where the first
page would have (``log_from``), since a ledger has no tombstones.

A cursor is opaque: base64 of these fields, big-endian, and refused for another topic or query::

    version int8 | digest 8 bytes | records left int32 (-1: no bound)
    per partition: number int32 | low int64 | high int64 | view compacted: log_from int64 (-1: not begun)

Logs may be appended to and cleaned meanwhile. If another process, which cleans the directory, removes a file
before it is opened, the log is opened again and the page is read once more.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import contextlib
import heapq
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Literal, NamedTuple, TypeVar, get_args

import numpy as np

from siltstone.base.clock import LATEST_MS
from siltstone.base.errors import (
    OffsetOutOfRangeError,
    UnknownRecordError,
    UnknownTopicError,
    UsageError,
)
from siltstone.base.records.control import parse_marker
from siltstone.base.records.hashing import partition_for_key
from siltstone.base.records.layout import CONTROL_BIT, Int64
from siltstone.base.records.matching import rows_containing, rows_with_key
from siltstone.commands.decoding import (
    DECODERS,
    MASKED,
    NULL,
    SHOWN_BYTES,
    TOMBSTONE,
    DecodedBytes,
    Decoding,
    decode,
    decode_internal,
)
from siltstone.commands.latest_keys import LatestKeys, LatestViews
from siltstone.commands.masking import NOTHING_MASKED, MaskedParts
from siltstone.log import fetch
from siltstone.log.fetch import READ_COMMITTED, READ_UNCOMMITTED, LogView
from siltstone.log.ledger.reading import CompactedReader
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.read_only import ReadableLog
from siltstone.log.reading import EARLIEST, LogReader, PolledRecords, ReaderSettings

Result = TypeVar("Result")
RecordsView = Literal["log", "latest", "compacted"]
RECORDS_VIEWS: tuple[RecordsView, ...] = get_args(RecordsView)
READ_BYTES, READ_SECONDS = 64 << 20, 1.0
"""The most bytes that one request reads, and how long it reads at most."""
PAGE_RECORDS, PAGE_RECORDS_MAX = 50, 500
HEADERS_SHOWN, HEADERS_SEARCHED = 100, 500
"""The most headers of a record that are shown, and searched: a batch of a few kB may decompress to a hundred
million of two bytes each, which would fill the memory."""
_BLOCK_BYTES, _SMALLEST_BLOCK_BYTES = 1 << 20, 16 << 10
"""How much of a partition one read covers, and the least of it in a topic of many partitions."""
_ATTEMPTS = 3
"""How often a page is read at most, if another process removes files meanwhile."""
_CURSOR_VERSION = 1
_CURSOR_HEAD, _CURSOR_RANGE, _COMPACTED_RANGE = map(struct.Struct, (">b8si", ">iqq", ">iqqq"))
"""The fields of a cursor: see the module's docstring."""
_CURSOR_BYTES_MAX = 4 << 20
_LAST_OFFSET = (1 << 63) - 1
_CURSOR_ADVICE = "begin again without a cursor"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordQuery:
    """A query for records: filters and order.

    ``partitions``: None for all. A page begins at ``start_offset`` or at the first record at or after
    ``start_ms`` and ends below ``end_offset`` or ``end_ms`` (both as positions in the log, found by the time
    index). ``last``: only this many last records, newest first. ``newest_first``: None for True with
    ``last`` and with ``key``. ``key``: equal bytes, in the partition that Kafka's partitioner gives, or with
    ``any_partition`` in all. ``…_contains``: bytes that occur in it. ``control_records``: markers of
    transactions, too. ``view``: ``log``; ``latest``, the last record of each key; ``compacted``, the ledger,
    then the originals (oldest first only).
    """

    partitions: tuple[int, ...] | None = None
    start_offset: int | None = None
    end_offset: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    last: int | None = None
    newest_first: bool | None = None
    key: bytes | None = None
    any_partition: bool = False
    key_contains: bytes | None = None
    value_contains: bytes | None = None
    header_contains: bytes | None = None
    only_tombstones: bool = False
    isolation: str = READ_UNCOMMITTED
    control_records: bool = False
    view: RecordsView = "log"
    limit: int = PAGE_RECORDS
    key_decoding: Decoding = "auto"
    value_decoding: Decoding = "auto"

    @property
    def is_newest_first(self) -> bool:
        """Is the newest record the first one?"""
        if self.finds_latest_by_key:
            return True
        if self.newest_first is None:
            return self.view != "compacted" and (self.last is not None or self.key is not None)
        return self.newest_first

    @property
    def finds_latest_by_key(self) -> bool:
        """Is it the last record of one key, in whole logs? That is the first one found from the end, without
        ``LatestKeys``. With an end or another filter, the first one found may not be the key's last."""
        others = (self.key_contains, self.value_contains, self.header_contains, self.only_tombstones or None)
        bounds = (*others, self.end_offset, self.end_ms)
        return self.view == "latest" and self.key is not None and all(bound is None for bound in bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowsedTopic:
    """A topic's open logs, or logs that are only read.

    ``identity``: the topic's id, empty where it has none. ``logs``: returns them, with new partitions; raises
    UnknownTopicError once the topic is deleted. ``partition_count``: of the topic, for the partitioner.
    ``checkpoints``: the cleaner checkpoint by partition, 0 without one. ``masked``: the parts of records that
    are neither shown nor searched.
    """

    name: str
    logs: Callable[[], Sequence[ReadableLog]]
    partition_count: int
    checkpoints: Mapping[int, int] = field(default_factory=dict)
    masked: MaskedParts = NOTHING_MASKED
    identity: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowsedRecord:
    """One record of a page. ``headers``: the first ``HEADERS_SHOWN``; ``headers_left``: how many more it has.
    ``size``: bytes in its batch, decompressed. ``leader_epoch``, ``producer_id``: of its batch, -1 without
    one. ``mark``: of a control record ``commit``, ``abort`` or ``control`` (another), else None.
    ``timestamp_ms`` is None where the format has none."""

    partition: int
    offset: int
    timestamp_ms: int | None
    key: DecodedBytes
    value: DecodedBytes
    headers: tuple[tuple[str, DecodedBytes], ...]
    size: int
    leader_epoch: int
    producer_id: int
    mark: str | None
    headers_left: int = 0

    def to_json(self) -> dict[str, object]:
        """The object in the REST API."""
        return {
            "partition": self.partition,
            "offset": self.offset,
            "timestamp_ms": self.timestamp_ms,
            "key": self.key.to_json(),
            "value": self.value.to_json(),
            "headers": [{"name": name, "value": value.to_json()} for name, value in self.headers],
            "headers_left": self.headers_left,
            "size": self.size,
            "leader_epoch": self.leader_epoch,
            "producer_id": self.producer_id,
            "mark": self.mark,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress:
    """The progress in a partition: the offsets from ``low`` to below ``high`` are left to read."""

    partition: int
    low: int
    high: int

    def to_json(self) -> dict[str, object]:
        """The object in the REST API."""
        return {"partition": self.partition, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPage:
    """A page. ``cursor``: to go on with, None at the end. ``bytes_read``: of files. ``is_bounded``: the
    request's budget ended the page, not its limit. ``left``: what is left to read. ``building``: while the
    view *latest* is built, the share of it that is ready (0 to 1), else None."""

    records: tuple[BrowsedRecord, ...]
    cursor: str | None
    bytes_read: int
    is_bounded: bool
    left: tuple[PartitionProgress, ...]
    building: float | None = None

    def to_json(self) -> dict[str, object]:
        """The object in the REST API."""
        return {
            "records": [record.to_json() for record in self.records],
            "cursor": self.cursor,
            "bytes_read": self.bytes_read,
            "is_bounded": self.is_bounded,
            "left": [progress.to_json() for progress in self.left],
            "building": self.building,
        }


class Budget:
    """The bytes and the time that one request may take. ``spent``: the bytes that were read so far; the
    code that reads adds to it."""

    def __init__(self, read_bytes: int = READ_BYTES, seconds: float = READ_SECONDS) -> None:
        self._bytes, self._until, self.spent = read_bytes, time.monotonic() + seconds, 0

    @property
    def is_over(self) -> bool:
        """Must the request come to its end?"""
        return self.spent >= self._bytes or time.monotonic() >= self._until


def browse(
    topic: BrowsedTopic,
    query: RecordQuery,
    *,
    cursor: str | None = None,
    latest: LatestViews | None = None,
    budget: Budget | None = None,
) -> RecordPage:
    """One page of records. ``latest``: for the view of that name, the cache of each log's last
    offsets by key; without it they are found for this page alone. (A query for one key needs none:
    ``finds_latest_by_key``.)

    Raises UsageError (query, cursor), UnknownTopicError, CorruptRecordError, LedgerError,
    DirectoryRefusedError, OSError.
    """
    check_query(topic, query)
    budget = budget or Budget()
    return _retried(topic, query, lambda logs: _browse(topic, query, logs, cursor, latest, budget))


def _retried(
    topic: BrowsedTopic, query: RecordQuery, work: Callable[[Mapping[int, ReadableLog]], Result]
) -> Result:
    """The result of ``work`` on the chosen logs. If a file does not exist any more when it is opened, another
    process has swapped or deleted the segment since the directory was listed: then the logs are opened again.
    """
    for _ in range(_ATTEMPTS - 1):
        logs = chosen_logs(topic, query)
        try:
            return work(logs)
        except FileNotFoundError:
            for log in logs.values():
                log.refresh()
    return work(chosen_logs(topic, query))


def check_query(topic: BrowsedTopic, query: RecordQuery) -> None:
    """Raises UsageError for a query that contradicts itself, or searches in what is masked."""
    problem = _problem(query)
    if problem is not None:
        raise UsageError(problem[0], advice=problem[1])
    masked = topic.masked
    if (masked.key and query.key_contains) or (masked.value and query.value_contains):
        advice = "search for an equal key, or in another part"
        raise UsageError("what is masked cannot be searched", path="siltstone.http.mask", advice=advice)


def _problem(query: RecordQuery) -> tuple[str, str] | None:
    """(what is wrong with a query, what to do); None if nothing is wrong."""
    if query.view not in RECORDS_VIEWS:
        return f"{query.view!r} is no view", f"it is one of {', '.join(RECORDS_VIEWS)}"
    if query.isolation not in (READ_UNCOMMITTED, READ_COMMITTED):
        return f"{query.isolation!r} is no isolation level", f"pass {READ_COMMITTED} or {READ_UNCOMMITTED}"
    if not 1 <= query.limit <= PAGE_RECORDS_MAX:
        return f"a page of {query.limit} records is not possible", f"ask for 1 to {PAGE_RECORDS_MAX}"
    if query.last is not None and not 1 <= query.last < 1 << 31:
        return f"the last {query.last} records are not possible", "ask for 1 to 2147483647"
    if query.last is not None and query.newest_first is False:
        return "the last records come newest first", "leave newest_first out"
    for name in ("start", "end"):
        offset, time_ms = getattr(query, f"{name}_offset"), getattr(query, f"{name}_ms")
        if offset is not None and time_ms is not None:
            return f"the {name} is an offset and a time", "pass one of both"
        if not 0 <= (offset or 0) <= _LAST_OFFSET or not 0 <= (time_ms or 0) <= LATEST_MS:
            return f"the {name} is out of bounds", "pass an offset or ms since 1970"
    if query.view == "compacted" and (query.is_newest_first or query.last is not None):
        return (
            "the compacted view is read oldest first",
            "leave last and newest_first out, or read the view latest",
        )
    if b"" in (query.key_contains, query.value_contains, query.header_contains):
        return "a search for nothing finds everything", "leave the search out"
    return None


def chosen_logs(topic: BrowsedTopic, query: RecordQuery) -> dict[int, ReadableLog]:
    """The logs to read, by partition. Raises UnknownTopicError, UsageError."""
    logs = {log.topic_partition.partition: log for log in topic.logs()}
    chosen = query.partitions
    if query.key is not None and not query.any_partition and chosen is None:
        chosen = (partition_for_key(query.key, topic.partition_count),)
    if chosen is None:
        return logs
    missing = sorted(set(chosen) - set(logs))
    if missing:
        advice = f"it has {', '.join(map(str, sorted(logs)[:20]))}"
        raise UnknownTopicError(f"topic {topic.name!r} has no partition {missing[0]}", advice=advice)
    return {partition: logs[partition] for partition in sorted(set(chosen))}


# Cursors


class _Range(NamedTuple):
    """Offsets of a partition that are left to read: ``low`` to ``high`` (exclusive). ``log_from``: in the
    view *compacted*, the offset from which the log itself is read, not the ledger (``CompactedReader``); -1
    before the first read."""

    low: int
    high: int
    log_from: int = -1


class _Position(NamedTuple):
    """Where a page begins: what is left of each partition, and how many records (None: without a bound)."""

    ranges: dict[int, _Range]
    records_left: int | None


def _digest(topic: BrowsedTopic, query: RecordQuery) -> bytes:
    """The identity of a cursor's query: the topic, and all of the query but how much and how it is shown."""
    shape = replace(query, limit=1, key_decoding="auto", value_decoding="auto")
    return sha256(repr((topic.name, topic.identity, shape)).encode()).digest()[:8]


def _cursor_text(position: _Position, digest: bytes, view: RecordsView) -> str:
    left = -1 if position.records_left is None else position.records_left
    entry = _range_struct(view)
    width = len(entry.format) - 2  # without the byte order and the partition's number
    ranges = b"".join(entry.pack(number, *remaining[:width]) for number, remaining in position.ranges.items())
    return base64.urlsafe_b64encode(_CURSOR_HEAD.pack(_CURSOR_VERSION, digest, left) + ranges).decode()


def _range_struct(view: RecordsView) -> struct.Struct:
    return _COMPACTED_RANGE if view == "compacted" else _CURSOR_RANGE


def _parse_cursor(
    text: str, digest: bytes, view: RecordsView, partitions: Mapping[int, ReadableLog]
) -> _Position:
    """The position in a cursor. Raises UsageError for one that was not made for this topic and query."""
    try:
        if len(text) > _CURSOR_BYTES_MAX:
            raise ValueError("it is too long")
        data = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
        version, of_query, left = _CURSOR_HEAD.unpack_from(data)
        if version != _CURSOR_VERSION:
            raise ValueError(f"it has version {version}")
        if of_query != digest:
            raise ValueError("it belongs to another topic or query")
        ranges: dict[int, _Range] = {}
        for number, *offsets in _range_struct(view).iter_unpack(data[_CURSOR_HEAD.size :]):
            remaining = _Range(*offsets)
            is_possible = 0 <= remaining.low <= remaining.high and remaining.log_from >= -1
            if number not in partitions or number in ranges or not is_possible or left < -1:
                raise ValueError("its positions are impossible")
            ranges[number] = remaining
    except (ValueError, struct.error, binascii.Error) as error:
        raise UsageError(f"the cursor is not valid: {error}", advice=_CURSOR_ADVICE) from error
    return _Position(ranges, None if left < 0 else left)


def _over_newer_ledgers(
    position: _Position, query: RecordQuery, logs: Mapping[int, ReadableLog]
) -> _Position:
    """The position in the view *compacted* whose ends are not below the horizons as they are now. Raises
    LedgerError, OSError."""
    ranges = dict(position.ranges)
    for number, remaining in ranges.items():
        is_in_ledger = remaining.log_from < 0 or remaining.low < remaining.log_from
        ledger = LedgerStore(logs[number].directory).cursor() if is_in_ledger else None
        if ledger is not None:
            end = min(ledger.horizon, logs[number].view.readable_end(query.isolation))
            ranges[number] = remaining._replace(high=max(remaining.high, end))
    return position._replace(ranges=ranges)


def _first_position(query: RecordQuery, logs: Mapping[int, ReadableLog]) -> _Position:
    ranges = {partition: _bounds(query, log) for partition, log in logs.items()}
    return _Position(ranges, query.last)


def _bounds(query: RecordQuery, log: ReadableLog) -> _Range:
    """The offsets of a log that the query is for, as the log is now."""
    view = log.view
    # Retention may have deleted originals that the ledger has.
    low = 0 if query.view == "compacted" else view.log_start_offset
    high = view.readable_end(query.isolation)
    if query.start_offset is not None or query.start_ms is not None:
        low = max(low, _offset_at(view, query.start_offset, query.start_ms, high))
    if query.end_offset is not None or query.end_ms is not None:
        high = min(high, _offset_at(view, query.end_offset, query.end_ms, high))
    return _Range(min(low, high), high)


def first_offset(query: RecordQuery, log: ReadableLog) -> int:
    """Where a stream of a log begins: at the query's start, or without one with the next new record."""
    if query.start_offset is None and query.start_ms is None:
        return log.view.readable_end(query.isolation)
    return _bounds(query, log).low


def _offset_at(view: LogView, offset: int | None, time_ms: int | None, end: int) -> int:
    if time_ms is None:
        return offset or 0
    record = fetch.offset_for_time(view, time_ms)
    return end if record is None else record.offset


# Scanning one partition


class _Match(NamedTuple):
    """A record that matches the query: a row of polled columns."""

    offset: int
    timestamp: int
    polled: PolledRecords
    row: int


class MatchingRows:
    """Finds the rows of columns that match a query."""

    def __init__(self, query: RecordQuery, masked: MaskedParts, keys: LatestKeys | None = None) -> None:
        self._query, self._masked, self._keys = query, masked, keys

    def rows(self, polled: PolledRecords) -> Int64:
        """The rows of the records that match the query, ascending."""
        query, columns = self._query, polled.columns
        key = query.key
        rows = np.arange(len(columns)) if key is None else rows_with_key(columns, key)
        if query.only_tombstones:
            rows = rows[(columns.key_size[rows] >= 0) & (columns.value_size[rows] < 0)]
        if query.key_contains is not None and len(rows):
            start, size = columns.key_start[rows], columns.key_size[rows]
            rows = rows[rows_containing(columns.data, start, size, query.key_contains)]
        if query.value_contains is not None and len(rows):
            start, size = columns.value_start[rows], columns.value_size[rows]
            rows = rows[rows_containing(columns.data, start, size, query.value_contains)]
            rows = self._unmasked(polled, rows, query.value_contains)
        if query.header_contains is not None and len(rows):
            rows = self._with_header(polled, rows, query.header_contains)
        if self._keys is not None and len(rows):
            rows = rows[np.isin(rows, self._keys.latest_rows(columns), assume_unique=True)]
        return rows

    def _unmasked(self, polled: PolledRecords, rows: Int64, needle: bytes) -> Int64:
        """Those of the rows that have the needle also where nothing of the value is masked."""
        if not self._masked.masks_value:
            return rows
        shown = (self._masked.masked_value(polled.columns.value(int(row))) or b"" for row in rows)
        return rows[np.fromiter((needle in value for value in shown), np.bool_, len(rows))]

    def _with_header(self, polled: PolledRecords, rows: Int64, needle: bytes) -> Int64:
        """Those of the rows with the needle in the name or value of one of the first ``HEADERS_SEARCHED``
        headers."""
        columns = polled.columns
        rows = rows[columns.header_count[rows] > 0]
        start = columns.headers_start[rows]
        size = columns.start[rows] + columns.size[rows] - start
        rows = rows[rows_containing(columns.data, start, size, needle)]
        # The bytes between the headers are their sizes, which a needle may match by chance.
        headers = (columns.headers(int(row), HEADERS_SEARCHED) for row in rows)
        matches = (
            any(needle in name or needle in (value or b"") for name, value in pairs) for pairs in headers
        )
        return rows[np.fromiter(matches, np.bool_, len(rows))]


class _Scan:
    """The matches of one partition, in order. ``remaining``: the offsets that are not read yet, or whose
    matches were dropped."""

    def __init__(
        self,
        log: ReadableLog,
        remaining: _Range,
        query: RecordQuery,
        matching: MatchingRows,
        budget: Budget,
        block_bytes: int,
    ) -> None:
        self.log, self.remaining = log, remaining
        self._query, self._matching, self._budget, self._block_bytes = query, matching, budget, block_bytes
        self._matches: deque[_Match] = deque()
        self._reader: LogReader | CompactedReader | None = None
        self._has_read = False

    def head(self) -> _Match | None:
        """The next match; None at the end, or if the budget is over before one is found.

        One read is always done, so that each request makes progress in every partition whose next match it
        needs.
        """
        while not self._matches and self.remaining.low < self.remaining.high:
            if self._has_read and self._budget.is_over:
                return None
            self._has_read = True
            if self._query.is_newest_first:
                self._read_block_before()
            else:
                self._read_forward()
        return self._matches[0] if self._matches else None

    def take(self) -> None:
        """Remove the head: it is on the page."""
        self._matches.popleft()

    def left(self) -> _Range:
        """The range that is left to read, from the head on."""
        if not self._matches:
            return self.remaining
        offset = self._matches[0].offset
        if self._query.is_newest_first:
            return _Range(min(self.remaining.low, offset), offset + 1)
        return self.remaining._replace(low=offset)

    def close(self) -> None:
        """Release a ledger that is held."""
        if isinstance(self._reader, CompactedReader):
            self._reader.close()

    def _read_forward(self) -> None:
        reader = self._reader = self._reader or self._open(self.remaining)
        polled = self._poll(reader)
        if isinstance(reader, CompactedReader):
            self.remaining = self.remaining._replace(log_from=reader.log_from)
        if polled is None:
            self.remaining = self.remaining._replace(low=self.remaining.high)
            return
        matches = self._matches_of(polled)[: self._query.limit]
        self._matches.extend(matches)
        # Matches beyond a page are found again by the next one.
        is_cut = len(matches) == self._query.limit
        low = matches[-1].offset + 1 if is_cut else reader.offset
        if is_cut:
            self.close()
            self._reader = None
        self.remaining = self.remaining._replace(low=min(low, self.remaining.high))

    def _read_block_before(self) -> None:
        """Read the block that ends at the end of ``remaining``, and append its matches, the newest first."""
        # Retention may have removed the first records since the page before.
        low, high = max(self.remaining.low, self.log.log_start_offset), self.remaining.high
        if low >= high:
            self.remaining = _Range(high, high)
            return
        start = max(_block_start(self.log.view, high, self._block_bytes), low)
        reader = self._open(_Range(start, high))
        limit = self._query.limit
        matches: deque[_Match] = deque(maxlen=limit)
        while (polled := self._poll(reader)) is not None:
            matches.extend(self._matches_of(polled)[-limit:])
        if matches and self._query.finds_latest_by_key:
            self._matches.append(matches[-1])
            self.remaining = _Range(low, low)
            return
        self._matches.extend(reversed(matches))
        # A full deque has dropped older matches of this block: the next page finds them again.
        self.remaining = _Range(low, matches[0].offset if len(matches) == limit else start)

    def _open(self, offsets: _Range) -> LogReader | CompactedReader:
        isolation, end = self._query.isolation, offsets.high
        if self._query.view == "compacted":
            return self._open_compacted(offsets)
        low = min(max(offsets.low, self.log.log_start_offset), self.log.log_end_offset)
        reader = LogReader(
            self.log,
            low,
            isolation=isolation,
            end=end,
            reset="earliest",
            buffer_bytes=self._block_bytes,
        )
        reader.control_records = self._query.control_records
        return reader

    def _open_compacted(self, offsets: _Range) -> CompactedReader:
        # Checksums of a ledger are those of whole files: the first page verifies them, not every page.
        has_begun, low = offsets.log_from >= 0, min(offsets.low, self.log.log_end_offset)
        options: ReaderSettings = {"isolation": self._query.isolation, "end": offsets.high}
        options["verify"] = not has_begun
        if has_begun:
            with contextlib.suppress(OffsetOutOfRangeError):
                return CompactedReader(self.log, low, log_from=offsets.log_from, **options)
        reader = CompactedReader(self.log, EARLIEST, **options)
        reader.seek_existing(low)
        return reader

    def _poll_compacted(self, reader: CompactedReader) -> PolledRecords | None:
        """The next records of the view *compacted*."""
        try:
            return reader.poll()
        except OffsetOutOfRangeError:
            # Retention has deleted these records: continue in the ledger that is current now.
            reader.seek_existing(reader.offset)
            return reader.poll()

    def _poll(self, reader: LogReader | CompactedReader) -> PolledRecords | None:
        """The next records, whose bytes are added to the budget; None at the end."""
        if isinstance(reader, CompactedReader):
            polled = self._poll_compacted(reader)
            self._budget.spent += 0 if polled is None else int(polled.batches["size"].sum())
            return polled
        before = reader.bytes_read
        polled = reader.poll_once()
        self._budget.spent += reader.bytes_read - before
        return polled

    def _matches_of(self, polled: PolledRecords) -> list[_Match]:
        if not len(polled):
            return []
        rows, columns, limit = self._matching.rows(polled), polled.columns, self._query.limit
        rows = rows[-limit:] if self._query.is_newest_first else rows[:limit]
        return [
            _Match(int(columns.offset[row]), int(columns.timestamp[row]), polled, int(row)) for row in rows
        ]


def _block_start(view: LogView, high: int, block_bytes: int) -> int:
    """An offset about ``block_bytes`` of the file before ``high``, in the segment of the offset before
    ``high``.

    It is from the offset index; without entries there, it is estimated from the bytes of the segment.
    """
    number = max(bisect.bisect_left(view.segments, high, key=lambda segment: segment.base_offset) - 1, 0)
    segment, size = view.segments[number], view.size_of(number)
    batch = segment.find_batch(high, size)
    end = size if batch is None else batch.position
    if end <= block_bytes:
        return segment.base_offset
    indexed = segment.upper_bound_offset(end - block_bytes)
    if indexed is not None and indexed + 1 < high:
        return indexed + 1
    span = high - segment.base_offset
    return high - max(1, span * block_bytes // end)


# One page


class _PageRead(NamedTuple):
    """The records of a page, and where the next one begins."""

    records: tuple[BrowsedRecord, ...]
    position: _Position
    is_bounded: bool


def _browse(
    topic: BrowsedTopic,
    query: RecordQuery,
    logs: Mapping[int, ReadableLog],
    cursor: str | None,
    latest: LatestViews | None,
    budget: Budget,
) -> RecordPage:
    digest = _digest(topic, query)
    if cursor is None:
        position = _first_position(query, logs)
    else:
        position = _parse_cursor(cursor, digest, query.view, logs)
        if query.view == "compacted" and query.end_offset is None and query.end_ms is None:
            position = _over_newer_ledgers(position, query, logs)
    keys: dict[int, LatestKeys] = {}
    if query.view == "latest" and not query.finds_latest_by_key:
        if latest is None:
            latest = LatestViews()
        shown = {number: log for number, log in logs.items() if number in position.ranges}
        keys = latest.of(topic.name, shown, topic.checkpoints, query.isolation)
        are_ready = [latest.bring_up_to_date(newest, budget) for newest in keys.values()]
        if not all(are_ready):
            covered = sum(newest.covered for newest in keys.values()) / len(keys)
            read = _PageRead((), position, is_bounded=True)
            return _page(read, budget, digest, query.view, building=covered)
        # A request that caught up may have used its time: the page itself is small, and gets time of its own.
        budget = Budget()
    read = _read_page(topic, query, logs, position, keys, budget)
    return _page(read, budget, digest, query.view)


def _page(
    read: _PageRead, budget: Budget, digest: bytes, view: RecordsView, building: float | None = None
) -> RecordPage:
    ranges = {
        number: remaining
        for number, remaining in read.position.ranges.items()
        if remaining.low < remaining.high
    }
    is_end = not ranges or read.position.records_left == 0
    return RecordPage(
        records=read.records,
        cursor=None if is_end else _cursor_text(read.position._replace(ranges=ranges), digest, view),
        bytes_read=budget.spent,
        is_bounded=read.is_bounded,
        left=_progress(ranges),
        building=building,
    )


def _progress(ranges: Mapping[int, _Range]) -> tuple[PartitionProgress, ...]:
    return tuple(
        PartitionProgress(partition=number, low=remaining.low, high=remaining.high)
        for number, remaining in ranges.items()
    )


def _read_page(
    topic: BrowsedTopic,
    query: RecordQuery,
    logs: Mapping[int, ReadableLog],
    position: _Position,
    keys: Mapping[int, LatestKeys],
    budget: Budget,
) -> _PageRead:
    """The records of a page: the next records of all partitions, merged in the order of the query."""
    limit = min(query.limit, query.limit if position.records_left is None else position.records_left)
    block_bytes = max(
        min(READ_BYTES // 4 // max(len(position.ranges), 1), _BLOCK_BYTES), _SMALLEST_BLOCK_BYTES
    )
    scans = {
        number: _Scan(
            logs[number],
            remaining,
            query,
            MatchingRows(query, topic.masked, keys.get(number)),
            budget,
            block_bytes,
        )
        for number, remaining in position.ranges.items()
    }
    try:
        taken, is_bounded = _merge(scans, limit, query.is_newest_first)
        records = tuple(record_in(topic, query, number, match.polled, match.row) for number, match in taken)
        ranges = {number: scan.left() for number, scan in scans.items()}
    finally:
        for scan in scans.values():
            scan.close()
    left = position.records_left
    return _PageRead(records, _Position(ranges, None if left is None else left - len(records)), is_bounded)


def _merge(
    scans: Mapping[int, _Scan], limit: int, is_newest_first: bool
) -> tuple[list[tuple[int, _Match]], bool]:
    """(the records of the page with their partitions, whether the budget was over before the page was full).

    While the next record of a partition is unknown, no record of another one can be returned: the unknown one
    may come before it.
    """
    heads: list[tuple[tuple[int, int], _Match]] = []
    taken: list[tuple[int, _Match]] = []
    waiting, sign = list(scans), -1 if is_newest_first else 1
    while len(taken) < limit:
        for number in waiting:
            scan = scans[number]
            head = scan.head()
            if head is not None:
                heapq.heappush(heads, ((sign * head.timestamp, number), head))
            elif scan.remaining.low < scan.remaining.high:
                return taken, True
        if not heads:
            break
        (_, number), match = heapq.heappop(heads)
        scans[number].take()
        taken.append((number, match))
        waiting = [number]
    return taken, False


def record_in(
    topic: BrowsedTopic, query: RecordQuery, partition: int, polled: PolledRecords, row: int
) -> BrowsedRecord:
    """The record in a row of polled columns, as it is shown."""
    columns = polled.columns
    batch, timestamp = polled.batches[columns.batch[row]], int(columns.timestamp[row])
    key, value = columns.key(row), columns.value(row)
    is_control = bool(batch["attributes"] & CONTROL_BIT) and int(batch["magic"]) == 2
    shown_key, shown_value = (
        (decode(key, "hex"), decode(value, "hex")) if is_control else shown_parts(topic, query, key, value)
    )
    return BrowsedRecord(
        partition=partition,
        offset=int(columns.offset[row]),
        timestamp_ms=None if timestamp < 0 else timestamp,
        key=shown_key,
        value=shown_value,
        headers=tuple(
            (name.decode(errors="replace")[:SHOWN_BYTES], decode(data))
            for name, data in columns.headers(row, HEADERS_SHOWN)
        ),
        headers_left=max(int(columns.header_count[row]) - HEADERS_SHOWN, 0),
        size=int(columns.size[row]),
        leader_epoch=int(batch["leader_epoch"]),
        producer_id=int(batch["producer_id"]),
        mark=_control_mark(key, value) if is_control else None,
    )


def shown_parts(
    topic: BrowsedTopic, query: RecordQuery, key: bytes | None, value: bytes | None
) -> tuple[DecodedBytes, DecodedBytes]:
    """Key and value of a record as they are shown: masked, then decoded."""
    masked = topic.masked
    if topic.name in DECODERS and (query.key_decoding, query.value_decoding) == ("auto", "auto"):
        shown_key, shown_value = decode_internal(topic.name, key, value)
        is_hidden = masked.masks_value and value is not None
        return (MASKED if masked.key and key is not None else shown_key), (
            MASKED if is_hidden else shown_value
        )
    shown_key = MASKED if masked.key and key is not None else decode(key, query.key_decoding)
    if value is None:
        return shown_key, NULL if key is None else TOMBSTONE
    visible = masked.masked_value(value)
    return shown_key, MASKED if visible is None else decode(visible, query.value_decoding)


def _control_mark(key: bytes | None, value: bytes | None) -> str:
    try:
        marker = parse_marker(key, value)
    except ValueError:
        return "control"
    return "control" if marker is None else "commit" if marker.is_commit else "abort"


# One record


def one_record(
    topic: BrowsedTopic,
    partition: int,
    offset: int,
    *,
    key_decoding: Decoding = "auto",
    value_decoding: Decoding = "auto",
) -> BrowsedRecord:
    """The record at an offset, as a page shows it. Raises UnknownRecordError, and what ``browse`` raises."""
    query = RecordQuery(
        partitions=(partition,),
        key_decoding=key_decoding,
        value_decoding=value_decoding,
        control_records=True,
    )
    polled = _polled_record(topic, query, partition, offset)
    return record_in(topic, query, partition, polled, 0)


def raw_value(topic: BrowsedTopic, partition: int, offset: int) -> bytes | None:
    """The value of one record as bytes, for a download, without what is masked; None if it is null.

    Raises UnknownRecordError, UsageError if all of the value is masked, and what ``browse`` raises.
    """
    value = _polled_record(topic, RecordQuery(partitions=(partition,)), partition, offset).columns.value(0)
    visible = topic.masked.masked_value(value)
    if value is not None and visible is None:
        raise UsageError("the value is masked", path="siltstone.http.mask", advice="ask who set the mask")
    return visible


def _polled_record(topic: BrowsedTopic, query: RecordQuery, partition: int, offset: int) -> PolledRecords:
    """The one record at an offset. Raises UnknownRecordError."""

    def read(logs: Mapping[int, ReadableLog]) -> PolledRecords | None:
        log = logs[partition]
        if not log.log_start_offset <= offset < log.high_watermark:
            return None
        reader = LogReader(log, offset, end=offset + 1)
        reader.control_records = query.control_records
        return reader.poll()

    polled = _retried(topic, query, read)
    if polled is None:
        raise UnknownRecordError(f"partition {partition} has no record at offset {offset}")
    return polled
