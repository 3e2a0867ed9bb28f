"""A segment of an open log, which takes appends while it is active and reads at any time (``LogSegment``).

Its files are opened when they are first needed and stay open for readers, also after they were renamed or
unlinked. Readers use no bytes at or above ``size``: an append writes first and then raises ``size``.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from siltstone.base import files
from siltstone.base.config import LogConfig
from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.layout import MAGIC_POSITION
from siltstone.log.indexes import (
    ENTRY_STRUCTS,
    LARGEST_RELATIVE_OFFSET,
    AbortedTransaction,
    encode_aborted,
    read_entries,
)
from siltstone.log.lookup import (
    BatchPosition,
    TimestampAndOffset,
    batch_headers,
    first_offset_at_or_after,
    position_of_offset,
)
from siltstone.log.names import DELETED, SEGMENT_KINDS, SNAPSHOT, segment_file
from siltstone.log.segments import Segment
from siltstone.log.validation import Validated

Entry = tuple[int, int]
"""(relative offset, position) of an offset index; (timestamp in ms, relative offset) of a time index."""
_TRUNCATED = (1 << 62, 1 << 62)
"""What a search with an older state reads where the file has been truncated since: above every entry."""


class IndexFile:
    """``OffsetIndex`` or ``TimeIndex`` of one segment; ``size_limit`` is ``segment.index.bytes``.

    The newest entries are in memory until ``save``, the others in the file. One thread adds entries, and any
    thread searches without a lock: the number of entries in the file and the list of those in memory are one
    tuple, ``_state``, which is replaced at once. In the file a binary search reads one entry at a time, so an
    open log has no index in memory, however many segments it has. (Kafka maps its index files.)

    Recovery has checked the file, or built it again. ``is_full``: no further entry fits.
    """

    __slots__ = ("_entry", "_limit", "_opening", "_path", "_reader", "_state", "_width", "is_full")

    def __init__(self, path: Path, kind: str, size: int, size_limit: int) -> None:
        self._entry = ENTRY_STRUCTS[kind]
        self._width = self._entry.size
        self._path = path
        self._limit = size_limit // self._width
        self._reader: files.Reader | None = None
        self._opening = threading.Lock()
        self._state: tuple[int, list[Entry]] = (size // self._width, [])
        self.is_full = len(self) >= self._limit

    def __len__(self) -> int:
        saved, new = self._state
        return saved + len(new)

    @property
    def size(self) -> int:
        """Bytes that all entries take."""
        return len(self) * self._width

    def last(self) -> Entry | None:
        """The newest entry. The file does not stay open for it, since a log may have many segments."""
        saved, new = self._state
        if new or not saved:
            return new[-1] if new else None
        if self._reader is not None:
            return self._read(saved - 1)
        with files.Reader(self._path) as reader:
            entry = self._entry_at(reader, saved - 1)
        # A rename calls ``keep_open`` first: with a reader by now, the name may be another file's already.
        return entry if self._reader is None else self._read(saved - 1)

    def floor(self, key: int) -> Entry | None:
        """The last entry whose first number is at or below ``key``."""
        number, state = self._search(key + 1, 0)
        return self._at(number - 1, state) if number else None

    def first_at(self, value: int) -> Entry | None:
        """The first entry whose second number is at or above ``value``."""
        number, state = self._search(value, 1)
        return self._at(number, state) if number < state[0] + len(state[1]) else None

    def _search(self, value: int, column: int) -> tuple[int, tuple[int, list[Entry]]]:
        """The number of entries with less than ``value`` in a column, and the state that was searched."""
        state = self._state
        saved, new = state
        if new and new[0][column] < value:
            return saved + bisect.bisect_left(new, value, key=lambda entry: entry[column]), state
        low, high = 0, saved
        while low < high:
            middle = (low + high) // 2
            if self._read(middle)[column] < value:
                low = middle + 1
            else:
                high = middle
        return low, state

    def _at(self, number: int, state: tuple[int, list[Entry]]) -> Entry:
        saved, new = state
        return self._read(number) if number < saved else new[number - saved]

    def keep_open(self) -> None:
        """Open the file, so that searches continue when it is renamed or unlinked."""
        if self._reader is None:
            with self._opening:
                if self._reader is None:
                    self._reader = files.Reader(self._path)

    def _read(self, number: int) -> Entry:
        self.keep_open()
        assert self._reader is not None
        return self._entry_at(self._reader, number)

    def _entry_at(self, reader: files.Reader, number: int) -> Entry:
        raw = reader.read(number * self._width, self._width)
        if len(raw) < self._width:
            return _TRUNCATED
        first, second = self._entry.unpack(raw)
        return first, second

    def add(self, first: int, second: int) -> None:
        """Append an entry in memory."""
        self._state[1].append((first, second))
        self.is_full = len(self) >= self._limit

    def save(self) -> bool:
        """Write new entries to the file; returns whether there were any. Raises OSError."""
        saved, new = self._state
        if not new:
            return False
        with contextlib.closing(files.Appender(self._path, saved * self._width)) as appender:
            appender.write(b"".join(self._entry.pack(*entry) for entry in new))
            self._state = (saved + len(new), [])
        return True

    def sync(self) -> None:
        """Make the saved entries durable. Raises OSError."""
        files.sync_file(self._path)

    def truncate(self, *, below: int, column: int) -> None:
        """Keep only entries whose number in ``column`` (0 or 1) is below ``below``. Raises OSError."""
        saved, new = self._state
        remaining = [entry for entry in new if entry[column] < below]
        while saved and self._read(saved - 1)[column] >= below:
            saved -= 1
        with contextlib.closing(files.Appender(self._path)) as appender:
            if appender.size != saved * self._width:
                appender.truncate(saved * self._width)
        self._state = (saved, remaining)
        self.is_full = len(self) >= self._limit


NO_TIMESTAMP = -1
Result = TypeVar("Result")


class LiveSegment:
    """One segment: ``size`` in bytes, ``base_offset``, ``created_ms``: when this object was made.

    Only its log calls methods that change it, under the log's lock.
    """

    def __init__(self, segment: Segment, config: LogConfig, *, created_ms: int, jitter_ms: int = 0) -> None:
        self.directory = Path(segment.directory)
        self.base_offset = segment.base_offset
        self.size = segment.size
        self.created_ms = created_ms
        self.jitter_ms = jitter_ms
        self.transaction_index_size = segment.transaction_index_size
        self._writes, self._synced = 0, 0
        limit = config.segment_index_bytes
        self.offset_index = IndexFile(self.path("index"), "index", segment.offset_index_size, limit)
        self.time_index = IndexFile(self.path("timeindex"), "timeindex", segment.time_index_size, limit)
        self._config = config
        self._modified_ms = segment.modified_ms
        self._appender: files.Appender | None = None
        self._reader: files.Reader | None = None
        self._opening = threading.Lock()
        self._aborted: list[AbortedTransaction] | None = None
        self._since_entry = 0
        self._largest: tuple[int, int] | None = None
        self._first_time: int | None = None

    @classmethod
    def create(
        cls, directory: Path, base_offset: int, config: LogConfig, *, now_ms: int, jitter_ms: int = 0
    ) -> LiveSegment:
        """Make a new, empty segment and its files; the caller syncs the directory.

        Files that an earlier attempt left when the disk was full are replaced.
        """
        written_ns = now_ms * 1_000_000
        empty = Segment(directory=str(directory), base_offset=base_offset, size=0, modified_ns=written_ns)
        segment = cls(empty, config, created_ms=now_ms, jitter_ms=jitter_ms)
        for kind in SEGMENT_KINDS[:3]:
            if files.exists(segment.path(kind)):
                files.unlink(segment.path(kind))
            files.write_new(segment.path(kind), b"")
        return segment

    def path(self, kind: str = "log") -> Path:
        """One of the segment's files."""
        return self.directory / segment_file(self.base_offset, kind)

    @property
    def reader(self) -> files.Reader:
        """The open ``.log``; it is opened at the first call."""
        if self._reader is None:
            with self._opening:
                if self._reader is None:
                    self._reader = files.Reader(self.path())
        return self._reader

    # Appending

    def append(self, validated: Validated) -> None:
        """Append batches and their index entries. Raises OSError; ``size`` has not changed then."""
        if self._appender is None:
            self._appender = files.Appender(self.path(), self.size, reserve_up_to=self._config.segment_bytes)
        self._appender.write(validated.data)
        self._writes += 1
        batches = validated.batches
        if len(batches) == 1:
            self._index_batch(validated.last_offset, validated.max_timestamp, self.size, len(validated.data))
        else:
            columns = (
                batches[name].tolist() for name in ("last_offset", "max_timestamp", "position", "size")
            )
            for last_offset, max_timestamp, position, size in zip(*columns, strict=True):
                self._index_batch(last_offset, max_timestamp, self.size + position, size)
        self.size = self._appender.size

    def _index_batch(self, last_offset: int, max_timestamp: int, position: int, size: int) -> None:
        """Add index entries for a batch, if over ``index.interval.bytes`` were written since the last entry.

        The arithmetic is that of ``indexes.IndexBuilder``, for one batch at a time.
        """
        if self._first_time is None and position == 0:
            self._first_time = max_timestamp
        if max_timestamp > self.largest()[0]:
            self._largest = (max_timestamp, last_offset)
        if self._since_entry > self._config.index_interval_bytes and not self.offset_index.is_full:
            self.offset_index.add(last_offset - self.base_offset, position)
            self._add_time()
            self._since_entry = 0
        self._since_entry += size

    def _add_time(self) -> None:
        timestamp, offset = self.largest()
        newest = self.time_index.last()
        if timestamp > (newest[0] if newest else NO_TIMESTAMP):
            self.time_index.add(timestamp, offset - self.base_offset)

    def add_aborted(self, entries: Sequence[AbortedTransaction]) -> None:
        """Add entries of aborted transactions to the transaction index."""
        with contextlib.closing(files.Appender(self.path("txnindex"))) as appender:
            appender.write(encode_aborted(entries))
            self._writes += 1
            self.transaction_index_size = appender.size

    def must_roll(self, config: LogConfig, validated: Validated, now_ms: int) -> bool:
        """Must a new segment begin with these batches (``LogSegment.shouldRoll``)?"""
        if self.size > config.segment_bytes - len(validated.data):
            return True
        if validated.last_offset - self.base_offset > LARGEST_RELATIVE_OFFSET:
            return True
        if not self.size:
            return False
        if self.offset_index.is_full or self.time_index.is_full:
            return True
        age_max_ms = config.segment_ms
        if config.compacts and config.max_compaction_lag_ms > 0:
            age_max_ms = min(age_max_ms, config.max_compaction_lag_ms)
        first = self.first_timestamp()
        age_ms = validated.max_timestamp - first if first > NO_TIMESTAMP else now_ms - self.created_ms
        return age_ms > age_max_ms - self.jitter_ms

    # Times, for retention and rolling

    def largest(self) -> tuple[int, int]:
        """(largest timestamp in ms, last offset of its batch), (-1, base offset) without a timestamp."""
        if self._largest is None:
            newest = self.time_index.last()
            self._largest = (newest[0], newest[1] + self.base_offset) if newest else (-1, self.base_offset)
        return self._largest

    @property
    def largest_timestamp(self) -> int:
        """The largest timestamp in ms if it is over 0, else the file's modification time."""
        timestamp = self.largest()[0]
        return timestamp if timestamp > 0 else self.modified_ms

    @property
    def modified_ms(self) -> int:
        """The file's modification time in ms, also after appends."""
        if self._appender is not None:
            return files.stat(self.path()).modified_ns // 1_000_000
        return self._modified_ms

    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch in ms, -1 without a batch or a timestamp."""
        if self._first_time is None and self.size:
            first = next(batch_headers(self.reader, end=self.size, first_read=4096))
            self._first_time = int(first["max_timestamp"][0])
        return NO_TIMESTAMP if self._first_time is None else self._first_time

    # Reading

    def find_batch(self, offset: int, end: int) -> BatchPosition | None:
        """The batch with ``offset``, or the next higher one, below byte ``end`` (``translateOffset``).

        None where there is none. Raises CorruptRecordError, OSError.
        """
        relative = min(offset - self.base_offset, LARGEST_RELATIVE_OFFSET)
        return self._search(
            relative, end, lambda start: position_of_offset(self.reader, offset, start=start, end=end)
        )

    def _search(self, relative: int, end: int, search: Callable[[int], Result | None]) -> Result | None:
        """``search`` from the position in the offset index, or from byte 0 if that position is wrong."""
        if not end:
            return None
        start = self._start_at(self.offset_index.floor(relative), end) if relative > 0 else 0
        try:
            return search(start)
        except CorruptRecordError:
            if not start:
                raise
        return search(0)

    def _start_at(self, entry: Entry | None, end: int) -> int:
        """The position of an entry of the offset index if a batch of its offset can begin there, else 0.

        Only the header there is checked: an entry that points to a batch inside of a record's value is used,
        as in Kafka, until a recovery checks the whole log.
        """
        if entry is None or not 0 <= entry[1] < end:
            return 0
        relative_offset, position = entry
        head = self.reader.read(position, MAGIC_POSITION + 1)
        if len(head) <= MAGIC_POSITION:
            return 0
        offset, magic = int.from_bytes(head[:8], "big"), head[MAGIC_POSITION]
        return position if magic <= 2 and 0 <= offset - self.base_offset <= relative_offset else 0

    def upper_bound_offset(self, position: int) -> int | None:
        """The offset of the first index entry at or above byte ``position``, None without one.

        (Kafka's ``LogSegment.fetchUpperBoundOffset``.)
        """
        entry = self.offset_index.first_at(position)
        return None if entry is None else self.base_offset + entry[0]

    def find_record_by_timestamp(
        self, timestamp: int, end: int, from_offset: int, batch_limit: int
    ) -> TimestampAndOffset | None:
        """The first record at or after ``timestamp`` (ms), below byte ``end`` (``findOffsetByTimestamp``).

        ``batch_limit``: the bytes that a batch may decompress to. Raises CorruptRecordError, OSError.
        """
        entry = self.time_index.floor(timestamp - 1) if end else None
        return self._search(
            entry[1] if entry else 0,
            end,
            lambda start: first_offset_at_or_after(
                self.reader, timestamp, start=start, end=end, from_offset=from_offset, limit=batch_limit
            ),
        )

    def aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions whose markers are in this segment."""
        if not self.transaction_index_size:
            return []
        with self._opening:
            if self._aborted is not None:
                return self._aborted
            path = self.path("txnindex")
            rows = read_entries(files.read_bytes(path), "txnindex", str(path))
            return [AbortedTransaction(*row[1:]) for row in rows.tolist()]

    # Durability, truncation and deletion

    def save_indexes(self, *, closing: bool = False) -> None:
        """Write new index entries. ``closing``: no append follows, so the last time entry is added."""
        if closing and self.size:
            self._add_time()
            if self._appender is not None:
                self._appender.release()
        self._writes += self.offset_index.save() | self.time_index.save()

    @property
    def is_unsynced(self) -> bool:
        """Was a file of the segment written to since the last completed ``sync`` began?"""
        return self._writes > self._synced

    def sync(self) -> None:
        """Make the written bytes durable. Raises OSError. Needs no lock: appends may continue."""
        # Writes that happen from here on may miss the fsync, so they do not count as synced.
        writes, appender = self._writes, self._appender
        if appender is not None:
            appender.sync()
        else:
            files.sync_file(self.path())
        self.offset_index.sync()
        self.time_index.sync()
        if self.transaction_index_size:
            files.sync_file(self.path("txnindex"))
        self._synced = writes

    def truncated(self, offset: int, config: LogConfig) -> LiveSegment:
        """This segment without the batches with ``offset`` or more; ``truncate_files`` truncates its files.

        The segment itself where it has no such batch. Raises OSError.
        """
        batch = self.find_batch(offset, self.size)
        if batch is None:
            return self
        # The result opens the index files itself, so no entry may be in memory only.
        self.save_indexes()
        self.close_for_append()
        shorter = Segment(
            directory=str(self.directory),
            base_offset=self.base_offset,
            size=batch.position,
            modified_ns=self._modified_ms * 1_000_000,
            offset_index_size=self.offset_index.size,
            time_index_size=self.time_index.size,
            transaction_index_size=self.transaction_index_size,
        )
        result = LiveSegment(shorter, config, created_ms=self.created_ms, jitter_ms=self.jitter_ms)
        result._writes += 1
        return result

    def truncate_files(self, offset: int) -> None:
        """Truncate the files of a ``truncated`` segment, durably. Raises OSError."""
        # Offset entries go by position, time entries by offset.
        self.offset_index.truncate(below=self.size, column=1)
        self.time_index.truncate(below=offset - self.base_offset, column=1)
        if self.transaction_index_size:
            remaining = encode_aborted(entry for entry in self.aborted() if entry.last_offset < offset)
            files.replace(self.path("txnindex"), remaining)
            self.transaction_index_size = len(remaining)
        self._appender = files.Appender(self.path(), self.size)
        self._appender.truncate(self.size)
        self._find_largest()

    def _find_largest(self) -> None:
        """Find the largest timestamp after a truncation: the last batches have no time entry."""
        self._largest = None
        entry = self.offset_index.floor(max(self.largest()[1] - self.base_offset, 0))
        for batches in batch_headers(self.reader, start=self._start_at(entry, self.size), end=self.size):
            row = int(batches["max_timestamp"].argmax())
            timestamp = int(batches["max_timestamp"][row])
            if timestamp > self.largest()[0]:
                self._largest = (timestamp, int(batches["last_offset"][row]))

    def keep_open(self) -> None:
        """Open the files that readers may still need, because they are about to be renamed.

        A reader that needs one at the same moment waits for ``_opening``.
        """
        aborted = self.aborted()
        with self._opening:
            self._aborted = aborted
        _ = self.reader
        self.offset_index.keep_open()
        self.time_index.keep_open()

    def mark_deleted(self) -> list[Path]:
        """Rename the files to ``.deleted``, the log last; returns the new paths. Readers keep theirs open."""
        self.keep_open()
        renamed = []
        for kind in (SNAPSHOT, *reversed(SEGMENT_KINDS)):
            path = self.path(kind)
            if files.exists(path):
                target = self.directory / segment_file(self.base_offset, kind, DELETED)
                files.rename(path, target)
                renamed.append(target)
        self.close_for_append()
        return renamed

    def close_for_append(self) -> None:
        """Close the file for appends; readers keep theirs."""
        if self._appender is not None:
            self._modified_ms = self.modified_ms if files.exists(self.path()) else self._modified_ms
            self._appender.close()
            self._appender = None
