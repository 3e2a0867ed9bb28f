"""Counts from the batch headers of a log's segments: records (exact), codecs, delete horizons.

::

    closed segment   its headers are read once; the counts are cached by path, inode and size
    active segment   only the batches after those that were counted before

A header has the number of records that are *stored*, which is exact also after cleanings, where the span of
offsets is not. Markers count as records, as in the results of cleanings. Entries of message sets (v0, v1)
have no counts, so their segments are decoded (``expiry.count_records``).

``RecordTotals`` has the sums of all logs of a catalogue: it counts a little at each call, and keeps a log's
sum until the log changes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from siltstone.base import files
from siltstone.base.codec_table import codec_name
from siltstone.base.errors import CorruptRecordError, SiltstoneError
from siltstone.base.records.layout import CONTROL_BIT, BatchHeaders, codec_of, have_delete_horizons
from siltstone.commands.watch import WatchedLog
from siltstone.compaction.inplace.expiry import count_records, total_or_none
from siltstone.log.lookup import batch_headers
from siltstone.log.names import TopicPartition, segment_file
from siltstone.log.read_only import ReadableLog
from siltstone.log.segments import Segment, list_segments

CACHED_SEGMENTS_MAX = 200_000
"""The most segments whose counts are cached: about 100 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCounts:
    """Counts from the batch headers of a segment.

    ``records``: stored records, ``markers`` among them (the records of control batches); ``codecs``: the
    names of those that its batches use; ``stamped_batches``: batches with records and a delete horizon;
    ``oldest_horizon_ms`` and ``newest_horizon_ms``: of these batches, None without any.
    """

    records: int = 0
    markers: int = 0
    batches: int = 0
    codecs: tuple[str, ...] = ()
    stamped_batches: int = 0
    oldest_horizon_ms: int | None = None
    newest_horizon_ms: int | None = None

    def __add__(self, other: SegmentCounts) -> SegmentCounts:
        horizons = [
            (part.oldest_horizon_ms, part.newest_horizon_ms)
            for part in (self, other)
            if part.oldest_horizon_ms is not None and part.newest_horizon_ms is not None
        ]
        return SegmentCounts(
            records=self.records + other.records,
            markers=self.markers + other.markers,
            batches=self.batches + other.batches,
            codecs=tuple(dict.fromkeys((*self.codecs, *other.codecs))),
            stamped_batches=self.stamped_batches + other.stamped_batches,
            oldest_horizon_ms=min((oldest for oldest, _ in horizons), default=None),
            newest_horizon_ms=max((newest for _, newest in horizons), default=None),
        )


def sum_of(counts: Iterable[SegmentCounts]) -> SegmentCounts:
    """The counts of several segments together."""
    return sum(counts, SegmentCounts())


@dataclass(frozen=True, slots=True, kw_only=True)
class _SegmentFile:
    """The first ``size`` bytes of a segment's ``.log``. ``may_be_torn``: another process may be appending to
    it, so its last batch may be incomplete; only the batches before that are counted."""

    directory: Path
    base_offset: int
    size: int
    is_closed: bool
    may_be_torn: bool = False

    @property
    def path(self) -> Path:
        """The path of the ``.log``."""
        return self.directory / segment_file(self.base_offset, "log")


@dataclass(frozen=True, slots=True, kw_only=True)
class _CachedCounts:
    """The counts of the first ``end`` bytes of a file. ``last``: position and checksum of the last batch
    there, by which a file that was truncated and written again is noticed; None without a batch.
    ``is_closed``: it was a closed segment, which never changes. ``has_message_sets``: if the file has grown,
    it must be counted from its start."""

    inode: int
    end: int
    counts: SegmentCounts
    last: tuple[int, int] | None = None
    is_closed: bool = False
    has_message_sets: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecords:
    """How many records a log has stored. ``records`` None: not all of it was counted, since ``may_read``
    refused more (``is_refused``), or since it cannot be: ``damage`` is the first damaged batch header, or the
    error of the system; empty if a segment was deleted meanwhile."""

    records: int | None = None
    is_refused: bool = False
    damage: str = ""


class _ReadRefusedError(Exception):
    """``may_read`` has returned False for a segment that had to be read."""


class SegmentCounter:
    """Counts segments, and caches the counts. Thread-safe; two threads may count a segment twice."""

    def __init__(self, cached_max: int = CACHED_SEGMENTS_MAX) -> None:
        self._cached_max, self._lock = cached_max, threading.Lock()
        self._cached: OrderedDict[str, _CachedCounts] = OrderedDict()

    def records_of(self, log: ReadableLog, *, bytes_max: int | None = None) -> int | None:
        """How many records the log has stored; None if a segment is damaged, was deleted or is not counted
        yet."""
        counts = self.counts_of(log, bytes_max=bytes_max)
        return total_or_none([None if count is None else count.records for count in counts])

    def counts_of(self, log: ReadableLog, *, bytes_max: int | None = None) -> list[SegmentCounts | None]:
        """The counts of each segment of ``log.view``, in order; None for one that is damaged or was deleted.

        ``bytes_max``: read at most so many bytes; segments beyond that have None, too. Raises OSError.
        """
        left, counts = bytes_max, list[SegmentCounts | None]()

        def may_read(size: int) -> bool:
            nonlocal left
            if left is not None and size > left:
                return False
            left = None if left is None else left - size
            return True

        for file in _segment_files(log):
            try:
                counts.append(self._counts(file, may_read))
            except _ReadRefusedError:
                counts.append(None)
        return counts

    def records_stored(self, log: ReadableLog | Path, may_read: Callable[[int], bool]) -> StoredRecords:
        """How many records a log has stored.

        ``log``: an open log; or the directory of a log that another process may be writing (look mode): its
        active segment is counted up to the first incomplete batch. ``may_read``: called with the number of
        bytes before they are read; if it returns False, they are not.
        Raises SiltstoneError, OSError.
        """
        total = 0
        try:
            for file in _segment_files(log):
                total += self._read_counts(file, may_read).records
        except _ReadRefusedError:
            return StoredRecords(is_refused=True)
        except FileNotFoundError:
            return StoredRecords()
        except CorruptRecordError as error:
            return StoredRecords(damage=str(error))
        return StoredRecords(records=total)

    def _counts(self, file: _SegmentFile, may_read: Callable[[int], bool]) -> SegmentCounts | None:
        """As ``_read_counts``; None if the segment is damaged or was deleted."""
        try:
            return self._read_counts(file, may_read)
        except (FileNotFoundError, CorruptRecordError):
            return None

    def _read_counts(self, file: _SegmentFile, may_read: Callable[[int], bool]) -> SegmentCounts:
        """The counts of a segment. Raises _ReadRefusedError if it may not be read, CorruptRecordError,
        OSError."""
        if not file.size:
            return SegmentCounts()
        cached = self._cached_counts(file)
        if cached is None or cached.end < file.size:
            if not may_read(file.size - (0 if cached is None else cached.end)):
                raise _ReadRefusedError
            cached = _count(file, cached)
            self._cache_counts(file.path, cached)
        return cached.counts

    def _cached_counts(self, file: _SegmentFile) -> _CachedCounts | None:
        """The cached counts of a file if they are still valid, perhaps for its first bytes only."""
        path = file.path
        with self._lock:
            cached = self._cached.get(str(path))
            if cached is not None:
                self._cached.move_to_end(str(path))
        if cached is None or cached.inode != files.stat(path).inode or cached.end > file.size:
            return None
        if cached.is_closed and cached.end == file.size:
            return cached
        if cached.has_message_sets and cached.end < file.size:
            return None
        if cached.last != _last_batch_at(path, cached.last):
            return None
        return replace(cached, is_closed=file.is_closed)

    def _cache_counts(self, path: Path, cached: _CachedCounts) -> None:
        with self._lock:
            self._cached[str(path)] = cached
            self._cached.move_to_end(str(path))
            while len(self._cached) > self._cached_max:
                self._cached.popitem(last=False)


def _last_batch_at(path: Path, last: tuple[int, int] | None) -> tuple[int, int] | None:
    """Position and checksum of the batch that is now at the position of ``last``; None if there is none."""
    if last is None:
        return None
    try:
        with files.Reader(path) as reader:
            first = next(batch_headers(reader, start=last[0]), None)
    except CorruptRecordError:
        return None
    return None if first is None else (last[0], int(first["crc"][0]))


def _segment_files(log: ReadableLog | Path) -> list[_SegmentFile]:
    """The segments of an open log, or those in a directory. Raises UnsafeFileError, OSError."""
    if isinstance(log, Path):
        sizes = [(segment.base_offset, segment.size) for segment in list_segments(log)]
        directories = [log] * len(sizes)
    else:
        view = log.view
        sizes = [(segment.base_offset, view.size_of(index)) for index, segment in enumerate(view.segments)]
        directories = [Path(segment.directory) for segment in view.segments]
    return [
        _SegmentFile(
            directory=directory,
            base_offset=base_offset,
            size=size,
            is_closed=number < len(sizes),
            may_be_torn=isinstance(log, Path) and number == len(sizes),
        )
        for number, (directory, (base_offset, size)) in enumerate(zip(directories, sizes, strict=True), 1)
    ]


def _count(file: _SegmentFile, cached: _CachedCounts | None) -> _CachedCounts:
    """Count the batches of a file after those that are ``cached``. Raises CorruptRecordError, OSError."""
    counts, last = (SegmentCounts(), None) if cached is None else (cached.counts, cached.last)
    end = 0 if cached is None else cached.end
    has_message_sets = False
    with files.Reader(file.path) as reader:
        inode = reader.stat.inode
        if cached is not None and cached.inode != inode:  # replaced since ``cached`` was looked up
            return _count(file, None)
        try:
            for batches in batch_headers(reader, start=end, end=file.size):
                counts += _counts_of_batches(batches)
                last = int(batches["position"][-1]), int(batches["crc"][-1])
                end = last[0] + int(batches["size"][-1])
                has_message_sets |= bool((batches["magic"] < 2).any())
        except CorruptRecordError:
            if not file.may_be_torn:
                raise
    if has_message_sets:
        records = count_records(
            # Only the whole message sets, if another process still appends to the file.
            Segment(directory=str(file.directory), base_offset=file.base_offset, size=end, modified_ns=0)
        )
        if records is None:
            raise CorruptRecordError(str(file.path), 0, "a message set cannot be decoded")
        counts = replace(counts, records=records)
    return _CachedCounts(
        inode=inode,
        end=end,
        counts=counts,
        last=last,
        is_closed=file.is_closed,
        has_message_sets=has_message_sets,
    )


def _counts_of_batches(batches: BatchHeaders) -> SegmentCounts:
    stamped = have_delete_horizons(batches) & (batches["count"] > 0)
    horizons = batches["base_timestamp"][stamped]
    is_control = (batches["attributes"] & CONTROL_BIT != 0) & (batches["magic"] == 2)
    return SegmentCounts(
        records=int(batches["count"].sum()),
        markers=int(batches["count"][is_control].sum()),
        batches=len(batches),
        codecs=tuple(codec_name(number) for number in np.unique(codec_of(batches)).tolist()),
        stamped_batches=int(stamped.sum()),
        oldest_horizon_ms=int(horizons.min()) if len(horizons) else None,
        newest_horizon_ms=int(horizons.max()) if len(horizons) else None,
    )


NOT_COUNTED = -1
"""In a column of counts: not counted yet (the catalogue's ``UNKNOWN``)."""
_DAMAGED = -2
"""Could not be counted: a segment is damaged or was deleted. Tried again when the log changes."""


class RecordTotals:
    """How many records the logs of a catalogue have stored, as a column. Used by one thread at a time.

    The catalogue makes a new row for a log that has changed. So a log is counted again only if its row is
    another object. ``log_of``: the open log of a partition, None in look mode.
    """

    def __init__(
        self, counter: SegmentCounter, log_of: Callable[[TopicPartition], ReadableLog | None]
    ) -> None:
        self._counter, self._log_of = counter, log_of
        self._logs: Sequence[WatchedLog] = ()
        self._records: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self.damage: Mapping[TopicPartition, str] = {}
        """The logs that cannot be counted, and why."""

    def count(
        self, logs: Sequence[WatchedLog], may_read: Callable[[int], bool]
    ) -> tuple[npt.NDArray[np.int64], bool]:
        """(Records of each log, ``NOT_COUNTED`` for those that are not known; whether another call without a
        change of a log would count no more).

        ``may_read``: called with the number of bytes before they are read; if it returns False, the next call
        counts the rest.
        """
        if logs is not self._logs:
            before = dict(zip(map(id, self._logs), self._records.tolist(), strict=True))
            known = (before.get(id(log), NOT_COUNTED) for log in logs)
            # ``self._logs`` keeps the old rows alive until now, so none of the new ones can have an old row's
            # id.
            self._logs, self._records = logs, np.fromiter(known, np.int64, len(logs))
        damage = {
            logs[row].topic_partition: self.damage.get(logs[row].topic_partition, "")
            for row in np.flatnonzero(self._records == _DAMAGED).tolist()
        }
        is_complete = True
        for row in np.flatnonzero(self._records == NOT_COUNTED).tolist():
            stored = self._counted(logs[row], may_read)
            if stored.is_refused:
                is_complete = False
                break
            self._records[row] = _DAMAGED if stored.records is None else stored.records
            damage[logs[row].topic_partition] = stored.damage
        self.damage = {topic_partition: reason for topic_partition, reason in damage.items() if reason}
        return np.maximum(self._records, NOT_COUNTED), is_complete

    def _counted(self, log: WatchedLog, may_read: Callable[[int], bool]) -> StoredRecords:
        """The records of one log; errors are in the result."""
        if log.known_segments is not None and not log.size:
            return StoredRecords(records=0)
        try:
            opened = self._log_of(log.topic_partition)
            return self._counter.records_stored(log.directory if opened is None else opened, may_read)
        except FileNotFoundError:
            return StoredRecords()
        except (SiltstoneError, OSError) as error:
            return StoredRecords(damage=str(error))
