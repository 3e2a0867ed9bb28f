"""What the batch headers of a log's segments tell: exact counts of records, codecs, delete horizons.

::

    closed segment   its headers are read once; kept by path, inode and size
    active segment   only the batches after those that were counted before

A header has the number of records that are *stored*, which is exact also after cleanings, where the span of
offsets is not. Markers count as records, as in the results of cleanings. Entries of message sets (v0, v1)
have no counts, so their segments are decoded (``expiry.count_records``).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from siltstone.base import files
from siltstone.base.codec_table import codec_name
from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.layout import CONTROL_BIT, BatchHeaders, codec_of, have_delete_horizons
from siltstone.compaction.inplace.expiry import count_records, total_or_none
from siltstone.log.lookup import batch_headers
from siltstone.log.read_only import ReadableLog
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import Segment

KEPT_MAX = 200_000
"""Segments whose counts are kept: about 100 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCounts:
    """What the headers of a segment tell.

    ``records``: that are stored, with ``markers`` (all control batches); ``codecs``: of its batches, by
    number; ``stamped_batches``: with a delete horizon and records; ``oldest_horizon_ms`` and
    ``newest_horizon_ms`` of these, None without any.
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
class _Kept:
    """The counts of the first ``end`` bytes of a file. ``last``: position and checksum of the last batch, by
    which a file that was truncated and written anew is noticed; ``is_closed``: it was counted as a closed
    segment, which never changes. ``has_message_sets``: it cannot be counted on from ``end``."""

    inode: int
    end: int
    counts: SegmentCounts
    last: tuple[int, int] | None = None
    is_closed: bool = False
    has_message_sets: bool = False


class SegmentCounter:
    """Counts segments, and keeps the counts. Thread-safe; two threads may count a segment twice."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max, self._lock = kept_max, threading.Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def records_of(self, log: ReadableLog, *, bytes_max: int | None = None) -> int | None:
        """How many records the log has stored; None if a segment is damaged, vanished or not counted yet."""
        counts = self.counts_of(log, bytes_max=bytes_max)
        return total_or_none([None if found is None else found.records for found in counts])

    def counts_of(self, log: ReadableLog, *, bytes_max: int | None = None) -> list[SegmentCounts | None]:
        """The counts of each segment of ``log.view``, in order; None for one that is damaged or has gone.

        ``bytes_max``: so many bytes of segments are read at most; for the others None. Raises OSError.
        """
        view, counts = log.view, list[SegmentCounts | None]()
        left = bytes_max
        for number, segment in enumerate(view.segments):
            size, is_closed = view.size_of(number), number + 1 < len(view.segments)
            try:
                kept = self._kept_of(segment, size, is_closed)
                if kept is None or kept.end < size:
                    start = 0 if kept is None else kept.end
                    if left is not None and size - start > left:
                        counts.append(None)
                        continue
                    left = None if left is None else left - (size - start)
                    kept = _count(segment, size, kept, is_closed)
                    self._keep(segment.path(), kept)
                counts.append(kept.counts)
            except (FileNotFoundError, CorruptRecordError):
                counts.append(None)
        return counts

    def _kept_of(self, segment: LiveSegment, size: int, is_closed: bool) -> _Kept | None:
        """What is kept of a file and still holds, perhaps of its first bytes only."""
        path = segment.path()
        with self._lock:
            kept = self._kept.get(str(path))
            if kept is not None:
                self._kept.move_to_end(str(path))
        if kept is None or kept.inode != files.stat(path).inode or kept.end > size:
            return None
        if kept.is_closed and kept.end == size:
            return kept
        if kept.has_message_sets and kept.end < size:
            return None
        if kept.last != _last_batch_at(path, kept.last):
            return None
        return replace(kept, is_closed=is_closed)

    def _keep(self, path: Path, kept: _Kept) -> None:
        with self._lock:
            self._kept[str(path)] = kept
            self._kept.move_to_end(str(path))
            while len(self._kept) > self._kept_max:
                self._kept.popitem(last=False)


def _last_batch_at(path: Path, last: tuple[int, int] | None) -> tuple[int, int] | None:
    """Position and checksum of the batch that begins where ``last`` begins, None if there is none now."""
    if last is None:
        return None
    try:
        with files.Reader(path) as reader:
            first = next(batch_headers(reader, start=last[0]), None)
    except CorruptRecordError:
        return None
    return None if first is None else (last[0], int(first["crc"][0]))


def _count(segment: LiveSegment, size: int, kept: _Kept | None, is_closed: bool) -> _Kept:
    """Count the batches up to byte ``size``, after those that are ``kept``. Raises CorruptRecordError,
    OSError."""
    counts, last = (SegmentCounts(), None) if kept is None else (kept.counts, kept.last)
    has_message_sets = False
    with files.Reader(segment.path()) as reader:
        inode = reader.stat.inode
        if kept is not None and kept.inode != inode:
            return _count(segment, size, None, is_closed)
        for batches in batch_headers(reader, start=0 if kept is None else kept.end, end=size):
            counts += _counts_of_batches(batches)
            last = int(batches["position"][-1]), int(batches["crc"][-1])
            has_message_sets |= bool((batches["magic"] < 2).any())
    if has_message_sets:
        records = count_records(
            Segment(
                directory=str(segment.directory), base_offset=segment.base_offset, size=size, modified_ns=0
            )
        )
        if records is None:
            raise CorruptRecordError(str(segment.path()), 0, "a message set cannot be decoded")
        counts = replace(counts, records=records)
    return _Kept(
        inode=inode,
        end=size,
        counts=counts,
        last=last,
        is_closed=is_closed,
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
