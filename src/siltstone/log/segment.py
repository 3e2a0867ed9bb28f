"""A segment of an open log: appends while it is the active one, reads at any time (Kafka's ``LogSegment``).

A file is opened when it is first needed and stays open for readers, also after it was renamed or unlinked. An
append writes the file first and increases ``size`` second, so readers use only the bytes below ``size``.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from siltstone.log.names import segment_file
from siltstone.log.segments import Segment, rename_to_deleted
from siltstone.log.validation import ValidatedBatches

IndexEntry = tuple[int, int]
"""(relative offset, position) of an offset index; (timestamp in ms, relative offset) of a time index."""
_NO_ENTRIES: Sequence[IndexEntry] = ()
_EMPTY = (0, _NO_ENTRIES)
"""The state of an index without entries: one object for all of these indexes, to save memory."""
_TRUNCATED = (1 << 62, 1 << 62)
"""Stands for an entry that was truncated from the file during a search. It is above every real entry, so the
search continues below it."""

_CREATED = ("log", "index", "timeindex")
"""The files of a new segment; a transaction index begins with its first entry."""


@dataclass(frozen=True, slots=True)
class SegmentDirectory:
    """The directory of a log's segments. ``opening``: the lock for opening their files to read, one for all,
    since a log may have very many files."""

    path: Path
    opening: threading.Lock = field(default_factory=threading.Lock)


class IndexFile:
    """The offset index or the time index of one segment (Kafka's ``OffsetIndex``, ``TimeIndex``).

    New entries are in memory until ``save`` writes them to the file. One thread adds entries; any thread
    searches without a lock, because ``_state`` is a tuple that is replaced as a whole: the number of entries
    in the file, and the list of the entries in memory, to which ``add`` appends (atomically). A search in the
    file reads one entry at a time, so an open log needs no memory for saved entries. (Kafka maps its index
    files.)

    ``size_limit`` is ``segment.index.bytes``; ``is_full``: no further entry fits. Recovery has checked or
    rebuilt the file before the log was opened.
    """

    __slots__ = (
        "_base_offset",
        "_capacity",
        "_directory",
        "_entry_size",
        "_kind",
        "_reader",
        "_state",
        "_struct",
        "is_full",
    )

    def __init__(
        self, directory: SegmentDirectory, base_offset: int, kind: str, size: int, size_limit: int
    ) -> None:
        self._struct = ENTRY_STRUCTS[kind]
        self._entry_size = self._struct.size
        # Not the path, which is a long text: a process may have tens of thousands of index files.
        self._directory, self._base_offset, self._kind = directory, base_offset, kind
        self._capacity = size_limit // self._entry_size
        self._reader: files.Reader | None = None
        self._state = (size // self._entry_size, _NO_ENTRIES) if size else _EMPTY
        self.is_full = len(self) >= self._capacity

    @property
    def _path(self) -> Path:
        return self._directory.path / segment_file(self._base_offset, self._kind)

    def __len__(self) -> int:
        saved_count, unsaved = self._state
        return saved_count + len(unsaved)

    @property
    def size(self) -> int:
        """Bytes that all entries take."""
        return len(self) * self._entry_size

    def last(self) -> IndexEntry | None:
        """The last entry. This does not leave the file open, since a log may have many segments."""
        saved_count, unsaved = self._state
        if unsaved or not saved_count:
            return unsaved[-1] if unsaved else None
        if self._reader is not None:
            return self._read_entry(saved_count - 1)
        with files.Reader(self._path) as reader:
            entry = self._decode_entry(reader, saved_count - 1)
        # Another thread opens ``_reader`` before it renames the file. If there is a reader now, the path may
        # already have led to another file, so the entry is read again.
        return entry if self._reader is None else self._read_entry(saved_count - 1)

    def floor(self, key: int) -> IndexEntry | None:
        """The last entry whose first number (relative offset, timestamp) is at or below ``key``."""
        count, state = self._count_below(key + 1, column=0)
        return self._entry_of_state(count - 1, state) if count else None

    def first_at_position(self, position: int) -> IndexEntry | None:
        """The first entry of an offset index whose position is at or above ``position``."""
        count, state = self._count_below(position, column=1)
        return self._entry_of_state(count, state) if count < state[0] + len(state[1]) else None

    def _count_below(self, value: int, *, column: int) -> tuple[int, tuple[int, Sequence[IndexEntry]]]:
        """(how many entries have less than ``value`` in ``column``, the ``_state`` that was searched).

        ``column``: 0 or 1, the first or second number of an entry. The numbers in a column never decrease.
        """
        state = self._state
        saved_count, unsaved = state
        # If the first unsaved entry is below ``value``, so are all saved ones.
        if unsaved and unsaved[0][column] < value:
            return saved_count + bisect.bisect_left(unsaved, value, key=lambda entry: entry[column]), state
        low, high = 0, saved_count
        while low < high:
            middle = (low + high) // 2
            if self._read_entry(middle)[column] < value:
                low = middle + 1
            else:
                high = middle
        return low, state

    def _entry_of_state(self, number: int, state: tuple[int, Sequence[IndexEntry]]) -> IndexEntry:
        """Entry ``number`` (from 0 on) of the index as it was with ``state``."""
        saved_count, unsaved = state
        return self._read_entry(number) if number < saved_count else unsaved[number - saved_count]

    def keep_open(self) -> None:
        """Open the file, so that searches continue when it is renamed or unlinked."""
        if self._reader is None:
            with self._directory.opening:
                if self._reader is None:
                    self._reader = files.Reader(self._path)

    def _read_entry(self, number: int) -> IndexEntry:
        self.keep_open()
        assert self._reader is not None
        return self._decode_entry(self._reader, number)

    def _decode_entry(self, reader: files.Reader, number: int) -> IndexEntry:
        raw = reader.read(number * self._entry_size, self._entry_size)
        if len(raw) < self._entry_size:
            return _TRUNCATED
        first, second = self._struct.unpack(raw)
        return first, second

    def add(self, first: int, second: int) -> None:
        """Append an entry, in memory until ``save``."""
        saved_count, unsaved = self._state
        if isinstance(unsaved, list):
            unsaved.append((first, second))
        else:
            self._state = saved_count, [(first, second)]
        self.is_full = len(self) >= self._capacity

    def save(self) -> bool:
        """Write new entries to the file; returns whether there were any. Raises OSError."""
        saved_count, unsaved = self._state
        if not unsaved:
            return False
        with contextlib.closing(files.Appender(self._path, saved_count * self._entry_size)) as appender:
            appender.write(b"".join(self._struct.pack(*entry) for entry in unsaved))
            self._state = (saved_count + len(unsaved), _NO_ENTRIES)
        return True

    def sync(self) -> None:
        """Make the saved entries durable. Raises OSError."""
        files.sync_file(self._path)

    def truncate(self, *, below: int, column: int) -> None:
        """Remove, durably, the entries that have ``below`` or more in ``column`` (0 or 1).

        Raises OSError.
        """
        saved_count, unsaved = self._state
        remaining = [entry for entry in unsaved if entry[column] < below]
        while saved_count and self._read_entry(saved_count - 1)[column] >= below:
            saved_count -= 1
        with contextlib.closing(files.Appender(self._path)) as appender:
            if appender.size != saved_count * self._entry_size:
                appender.truncate(saved_count * self._entry_size)
        self._state = (saved_count, remaining)
        self.is_full = len(self) >= self._capacity


NO_TIMESTAMP = -1
Result = TypeVar("Result")


def segment_age_max_ms(config: LogConfig) -> int:
    """How old an active segment may get: ``segment.ms``, of a compacted log ``max.compaction.lag.ms`` too."""
    if config.compacts and config.max_compaction_lag_ms > 0:
        return min(config.segment_ms, config.max_compaction_lag_ms)
    return config.segment_ms


def remove_empty_segment(directory: Path, base_offset: int) -> None:
    """Remove, durably, the files of a segment that ``LiveSegment.create`` has created or begun to. Raises
    OSError."""
    for kind in _CREATED:
        with contextlib.suppress(FileNotFoundError):
            files.unlink(directory / segment_file(base_offset, kind))
    files.sync_directory(directory)


class LiveSegment:
    """One segment of an open log (Kafka's ``LogSegment``).

    ``size``: bytes of the ``.log``. ``created_ms``: when this object was created, from which its age counts
    as long as no batch has a timestamp. ``jitter_ms``: how much earlier than ``segment.ms`` says the log
    rolls. Only ``PartitionLog`` calls the methods that change a segment, under its lock.
    """

    def __init__(
        self,
        segment: Segment,
        config: LogConfig,
        *,
        created_ms: int,
        jitter_ms: int = 0,
        directory: SegmentDirectory | None = None,
    ) -> None:
        """``directory``: the log's, which all of its segments share."""
        self._directory = directory or SegmentDirectory(Path(segment.directory))
        self.base_offset = segment.base_offset
        self.size = segment.size
        self.created_ms = created_ms
        self.jitter_ms = jitter_ms
        self.transaction_index_size = segment.transaction_index_size
        # Writes to any file of the segment, and how many of them ``sync`` has made durable.
        self._write_count, self._synced_write_count = 0, 0
        self._is_transaction_index_new = False
        limit = config.segment_index_bytes
        where = self._directory, self.base_offset
        self.offset_index = IndexFile(*where, "index", segment.offset_index_size, limit)
        self.time_index = IndexFile(*where, "timeindex", segment.time_index_size, limit)
        self._config = config
        self._modified_ms = segment.modified_ms
        self._appender: files.Appender | None = None
        self._reader: files.Reader | None = None
        self._aborted: list[AbortedTransaction] | None = None  # set before the index file is renamed
        self._bytes_since_entry = 0
        self._largest_timestamp_and_offset: tuple[int, int] | None = None
        self._first_timestamp: int | None = None

    @classmethod
    def create(
        cls,
        directory: SegmentDirectory,
        base_offset: int,
        config: LogConfig,
        *,
        now_ms: int,
        jitter_ms: int = 0,
    ) -> LiveSegment:
        """Create a new, empty segment and its files; the caller syncs the directory.

        Files that an earlier attempt left when the disk was full are replaced.
        """
        written_ns = now_ms * 1_000_000
        empty = Segment(
            directory=str(directory.path), base_offset=base_offset, size=0, modified_ns=written_ns
        )
        segment = cls(empty, config, created_ms=now_ms, jitter_ms=jitter_ms, directory=directory)
        for kind in _CREATED:
            if files.exists(segment.path(kind)):
                files.unlink(segment.path(kind))
            files.write_new(segment.path(kind), b"")
        return segment

    @property
    def directory(self) -> Path:
        """The log's directory."""
        return self._directory.path

    def path(self, kind: str = "log") -> Path:
        """The path of the segment's file of this kind (``names.SEGMENT_KINDS``)."""
        return self.directory / segment_file(self.base_offset, kind)

    @property
    def reader(self) -> files.Reader:
        """The open ``.log``; it is opened at the first call."""
        if self._reader is None:
            with self._directory.opening:
                if self._reader is None:
                    self._reader = files.Reader(self.path())
        return self._reader

    # Appending

    def append(self, validated: ValidatedBatches) -> None:
        """Append batches and their index entries. Raises OSError; ``size`` has not changed then."""
        if self._appender is None:
            self._appender = files.Appender(self.path(), self.size, reserve_up_to=self._config.segment_bytes)
        self._appender.write(validated.data)
        self._write_count += 1
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

        The rules are those of ``indexes.IndexBuilder``, which builds the indexes of a whole segment.
        """
        if self._first_timestamp is None and position == 0:
            self._first_timestamp = max_timestamp
        if max_timestamp > self.largest_timestamp_and_offset()[0]:
            self._largest_timestamp_and_offset = (max_timestamp, last_offset)
        if self._bytes_since_entry > self._config.index_interval_bytes and not self.offset_index.is_full:
            self.offset_index.add(last_offset - self.base_offset, position)
            self._add_time_entry()
            self._bytes_since_entry = 0
        self._bytes_since_entry += size

    def _add_time_entry(self) -> None:
        """Add a time entry, if the largest timestamp has grown since the last one."""
        timestamp, offset = self.largest_timestamp_and_offset()
        newest = self.time_index.last()
        if timestamp > (newest[0] if newest else NO_TIMESTAMP):
            self.time_index.add(timestamp, offset - self.base_offset)

    def add_aborted(self, entries: Sequence[AbortedTransaction]) -> None:
        """Add entries of aborted transactions to the transaction index."""
        with contextlib.closing(files.Appender(self.path("txnindex"))) as appender:
            self._is_transaction_index_new |= not appender.size
            appender.write(encode_aborted(entries))
            self._write_count += 1
            self.transaction_index_size = appender.size

    def must_roll(self, config: LogConfig, validated: ValidatedBatches, now_ms: int) -> bool:
        """Must a new segment begin with these batches (``LogSegment.shouldRoll``)?"""
        if validated.last_offset - self.base_offset > LARGEST_RELATIVE_OFFSET:
            return True
        return self.is_full_for(len(validated.data), config) or (
            self.size > 0 and self.is_old_for(validated.max_timestamp, config, now_ms)
        )

    def is_full_for(self, size: int, config: LogConfig) -> bool:
        """Has the segment no space for ``size`` more bytes, or its indexes none for another entry?"""
        if self.size > config.segment_bytes - size:
            return True
        return self.size > 0 and (self.offset_index.is_full or self.time_index.is_full)

    def is_old_for(self, timestamp: int, config: LogConfig, now_ms: int) -> bool:
        """Is the segment too old for a record with this timestamp (ms), by ``segment.ms``?"""
        first = self.first_timestamp()
        age_ms = timestamp - first if first > NO_TIMESTAMP else now_ms - self.created_ms
        return age_ms > segment_age_max_ms(config) - self.jitter_ms

    def rolls_at_ms(self, config: LogConfig) -> int:
        """The time (ms) after which an append of that time rolls the segment, whatever its size."""
        first = self.first_timestamp()
        begin_ms = first if first > NO_TIMESTAMP else self.created_ms
        return begin_ms + segment_age_max_ms(config) - self.jitter_ms

    # Times, for retention and rolling

    def largest_timestamp_and_offset(self) -> tuple[int, int]:
        """(largest timestamp in ms, last offset of its batch), (-1, base offset) without a timestamp."""
        if self._largest_timestamp_and_offset is None:
            last = self.time_index.last()
            if last is None:
                return NO_TIMESTAMP, self.base_offset
            timestamp, relative_offset = last
            self._largest_timestamp_and_offset = timestamp, self.base_offset + relative_offset
        return self._largest_timestamp_and_offset

    @property
    def largest_timestamp(self) -> int:
        """The largest timestamp in ms if it is over 0, else the file's modification time."""
        timestamp = self.largest_timestamp_and_offset()[0]
        return timestamp if timestamp > 0 else self.modified_ms

    @property
    def modified_ms(self) -> int:
        """The file's modification time in ms, also after appends."""
        if self._appender is not None:
            return files.stat(self.path()).modified_ns // 1_000_000
        return self._modified_ms

    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch in ms, -1 without a batch or a timestamp."""
        if self._first_timestamp is None and self.size:
            first = next(batch_headers(self.reader, end=self.size, first_read=4096))
            self._first_timestamp = int(first["max_timestamp"][0])
        return NO_TIMESTAMP if self._first_timestamp is None else self._first_timestamp

    # Reading

    def find_batch(self, offset: int, end: int) -> BatchPosition | None:
        """The batch with ``offset``, or the next higher one, below byte ``end`` (``translateOffset``).

        None where there is none. Raises CorruptRecordError, OSError.
        """
        relative_offset = min(offset - self.base_offset, LARGEST_RELATIVE_OFFSET)
        return self._search(
            relative_offset, end, lambda start: position_of_offset(self.reader, offset, start=start, end=end)
        )

    def _search(self, relative_offset: int, end: int, find: Callable[[int], Result | None]) -> Result | None:
        """The result of ``find(start)``, where ``start`` is the position that the offset index has.

        If that position turns out to be wrong, the search begins at byte 0.
        """
        if not end:
            return None
        is_indexed = relative_offset > 0
        start = self._batch_start(self.offset_index.floor(relative_offset), end) if is_indexed else 0
        try:
            return find(start)
        except CorruptRecordError:
            if not start:
                raise
        return find(0)

    def _batch_start(self, entry: IndexEntry | None, end: int) -> int:
        """The position in an entry of the offset index, or 0 if no batch with that offset can begin there.

        Only the bytes of a batch header are checked. So an entry that points into a record's value, at bytes
        that look like a batch, is used, as in Kafka, until a recovery checks the whole log.
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
        entry = self.offset_index.first_at_position(position)
        return None if entry is None else self.base_offset + entry[0]

    def find_record_by_timestamp(
        self, timestamp: int, end: int, from_offset: int, batch_limit: int
    ) -> TimestampAndOffset | None:
        """The first record at or after ``timestamp`` (ms), below byte ``end`` (``findOffsetByTimestamp``).
        With ``timestamp`` -1 this may be a record without a timestamp.

        ``batch_limit``: the bytes that a batch may decompress to. Raises CorruptRecordError, OSError.
        """
        # Up to the offset of a time entry no record has a later timestamp than the entry, so the records up
        # to the offset of the last entry below ``timestamp`` are too old.
        entry = self.time_index.floor(timestamp - 1) if end else None
        return self._search(
            entry[1] if entry else 0,
            end,
            lambda start: first_offset_at_or_after(
                self.reader,
                timestamp,
                start=start,
                end=end,
                from_offset=from_offset,
                limit=batch_limit,
                min_timestamp=-1 if timestamp == -1 else 0,
            ),
        )

    def aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions whose markers are in this segment."""
        if not self.transaction_index_size:
            return []
        with self._directory.opening:
            if self._aborted is not None:
                return self._aborted
            path = self.path("txnindex")
            # No more than was there when ``add_aborted`` ended: another thread may be adding an entry.
            data = files.read_slice(path, 0, self.transaction_index_size)
            rows = read_entries(data, "txnindex", str(path))
            return [AbortedTransaction(*row[1:]) for row in rows.tolist()]

    # Durability, truncation and deletion

    def save_indexes(self, *, closing: bool = False) -> None:
        """Write new index entries to the files.

        ``closing``: no append follows, so the time index gets its last entry. Raises OSError.
        """
        if closing and self.size:
            self._add_time_entry()
            if self._appender is not None:
                self._appender.release()
        self._write_count += self.offset_index.save() | self.time_index.save()

    @property
    def is_unsynced(self) -> bool:
        """Was a file of the segment written to since the last completed ``sync`` began?"""
        return self._write_count > self._synced_write_count

    def sync(self) -> None:
        """Make the written bytes durable. Raises OSError. Needs no lock: appends may continue."""
        # A write after this line may come too late for the fsync, so ``sync`` does not count it as synced.
        writes, appender = self._write_count, self._appender
        if appender is not None:
            appender.sync()
        else:
            files.sync_file(self.path())
        self.offset_index.sync()
        self.time_index.sync()
        if self.transaction_index_size:
            files.sync_file(self.path("txnindex"))
            if self._is_transaction_index_new:
                self._is_transaction_index_new = False
                files.sync_directory(self.directory)
        self._synced_write_count = writes

    def truncated(self, offset: int, config: LogConfig) -> LiveSegment:
        """A segment without the batches at and above ``offset``; the segment itself if it has none of them.

        The files stay as they are until ``truncate_files``. Raises OSError.
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
        result = LiveSegment(
            shorter,
            config,
            created_ms=self.created_ms,
            jitter_ms=self.jitter_ms,
            directory=self._directory,
        )
        result._write_count += 1  # its files may have writes of the longer segment that are not synced
        return result

    def truncate_files(self, offset: int) -> None:
        """Truncate, durably, the files of a segment that ``truncated`` returned for ``offset``. Raises
        OSError."""
        # Column 1 is the position in the offset index, and the relative offset in the time index.
        self.offset_index.truncate(below=self.size, column=1)
        self.time_index.truncate(below=offset - self.base_offset, column=1)
        if self.transaction_index_size:
            remaining = encode_aborted(entry for entry in self.aborted() if entry.last_offset < offset)
            files.replace(self.path("txnindex"), remaining)
            self.transaction_index_size = len(remaining)
        self._appender = files.Appender(self.path(), self.size)
        self._appender.truncate(self.size)
        self._find_largest_timestamp()

    def _find_largest_timestamp(self) -> None:
        """Find the largest timestamp after a truncation, also among batches after the last time entry."""
        self._largest_timestamp_and_offset = None
        entry = self.offset_index.floor(max(self.largest_timestamp_and_offset()[1] - self.base_offset, 0))
        start = self._batch_start(entry, self.size)
        with contextlib.suppress(CorruptRecordError):  # batches after damage do not count
            for batches in batch_headers(self.reader, start=start, end=self.size):
                row = int(batches["max_timestamp"].argmax())
                timestamp = int(batches["max_timestamp"][row])
                if timestamp > self.largest_timestamp_and_offset()[0]:
                    self._largest_timestamp_and_offset = (timestamp, int(batches["last_offset"][row]))

    def keep_open(self) -> None:
        """Open the files, before they are renamed, so that readers can still use them afterwards.

        ``SegmentDirectory.opening`` keeps a reader from opening the same file at the same moment.
        """
        aborted = self.aborted()
        with self._directory.opening:
            self._aborted = aborted
        _ = self.reader
        self.offset_index.keep_open()
        self.time_index.keep_open()

    def mark_deleted(self) -> list[Path]:
        """Rename the files to ``.deleted``; returns the new paths. Readers continue."""
        self.keep_open()
        renamed = rename_to_deleted(self.directory, self.base_offset)
        self.close_for_append()
        return renamed

    def close_for_append(self) -> None:
        """Close the file that appends are written to; readers have a file object of their own."""
        if self._appender is not None:
            # ``modified_ms`` asks the file, which may have been renamed to ``.deleted``.
            self._modified_ms = self.modified_ms if files.exists(self.path()) else self._modified_ms
            self._appender.close()
            self._appender = None
