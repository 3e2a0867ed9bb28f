"""The work of a compaction's task, and reading a log for it: records, their keys, transactions, a limit on
I/O.

``LogWork`` is all that a task needs to know about one log that is cleaned in place. An engine spreads these
steps; each takes plain data and returns plain data::

    extract                  input splits   ─► key entries by bucket, and the report on the splits
    keys.merge_bucket        one bucket     ─► retained offsets, by group (``retained_by_group``)
    transaction_state_by_group          all summaries  ─► the state of transactions where each group starts
    staging.rewrite_group    one group      ─► a staged segment, verified

A step does not raise for what is wrong with a log: its report has a ``LogFailure``, so that one bad log does
not stop the other logs of a job. ``compaction.ledger`` reads its sources with ``decoded``, too.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from siltstone.base import files
from siltstone.base.config import LONG_MAX
from siltstone.base.errors import CorruptFileError, SiltstoneError
from siltstone.base.records.codecs import DEFAULT_LIMIT, Scratch
from siltstone.base.records.columns import KeyColumns, RecordColumns
from siltstone.base.records.decode import decode_record_keys
from siltstone.base.records.decompression import slices_within
from siltstone.base.records.layout import CONTROL_BIT, BatchHeaders, Bytes, Flags, Int64
from siltstone.compaction.keys import EntryBlob, KeyCollector, MergedBucket, group_offsets
from siltstone.compaction.report import SKIPPED, LogFailure, Summable, failure_of
from siltstone.log.indexes import read_entries
from siltstone.log.names import segment_file
from siltstone.log.segments import Segment, Window, open_unchanged, windows
from siltstone.log.transactions import (
    NOTHING,
    Aborted,
    Carried,
    TransactionScan,
    carried_by_group,
    expected_markers,
    refuse_unexpected_markers,
)

# Groups, counts, and decoding with its checks: for both kinds of compaction. These functions raise for what
# is wrong with a log; ``report.failure_of`` turns that into a ``LogFailure``.

Columns = TypeVar("Columns", KeyColumns, RecordColumns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A segment group (Kafka's ``groupSegmentsBySize``): segments [first_segment, end_segment) become one
    segment with the offsets [base_offset, end_offset)."""

    index: int
    first_segment: int
    end_segment: int
    base_offset: int
    end_offset: int


def groups_from(firsts: Sequence[int], bases: Sequence[int]) -> tuple[Group, ...]:
    """The groups that begin with segments number ``firsts``; ``bases``: the base offset of each segment, and
    the offset after the last one's."""
    return tuple(
        Group(
            index=index,
            first_segment=first,
            end_segment=end,
            base_offset=bases[first],
            end_offset=bases[end],
        )
        for index, (first, end) in enumerate(itertools.pairwise([*firsts, len(bases) - 1]))
    )


@dataclass(slots=True, kw_only=True)
class Extracted(Summable):
    """The report on reading some segments: counts of records, and the first failure.

    ``has_transactions``: a batch of a transaction or a control batch was there. ``summaries``: the state in
    which each input split leaves transactions (``log.transactions``). A side-by-side compaction counts only
    records in its range; ``aborted``: records of aborted transactions, ``size``: bytes of their batches,
    ``entries``: key entries that were sent.
    """

    records: int = 0
    keyed: int = 0
    keyless: int = 0
    aborted: int = 0
    size: int = 0
    entries: int = 0
    has_transactions: bool = False
    failure: LogFailure | None = None
    summaries: list[Int64] = field(default_factory=list, repr=False)


@functools.lru_cache(maxsize=4)
def parse_aborted(data: bytes) -> Aborted:
    """The aborted transactions of ``.txnindex`` entries, parsed once for all segments of a task."""
    return Aborted.of(data)


class BatchSlice(NamedTuple):
    """Some batches of a window: rows of a scan over ``data``, which was read at ``origin`` in file
    ``path``."""

    data: Bytes
    batches: BatchHeaders
    path: str
    origin: int


def batch_slices(path: str, window: Window) -> Iterator[BatchSlice]:
    """Slices of a window whose records take about 8 MiB decompressed (``decompression.slices_within``)."""
    for part in slices_within(window.data, window.batches):
        yield BatchSlice(window.data, window.batches[part], path, window.origin)


class Decoded(NamedTuple, Generic[Columns]):
    """Some batches of a window with the columns of their records."""

    window: Window
    batches: BatchHeaders
    columns: Columns


def decoded(
    path: str,
    windows: Iterable[Window],
    offsets: tuple[int, int],
    decode: Callable[..., Columns],
    *,
    scratch: Scratch | None = None,
    limit: int = DEFAULT_LIMIT,
) -> Iterator[Decoded[Columns]]:
    """All records of a segment's ``windows``, in slices of about 8 MiB (``decompression.slices_within``).

    ``offsets``: what the segment may hold, [base, end). ``decode`` is ``decode_records`` or
    ``decode_record_keys``; ``limit``: what one batch may decompress to. Raises CorruptFileError for offsets
    that do not ascend or lie outside, and what ``decode`` raises.
    """
    following, scratch = offsets[0], scratch or Scratch()
    for window in windows:
        before, following = following, check_ascending(path, window, following, offsets[1])
        for part in slices_within(window.data, window.batches):
            batches = window.batches[part]
            columns = decode(window.data, batches, scratch, limit=limit, path=path, origin=window.origin)
            before = _check_ascending_entries(path, window, batches, columns, before)
            yield Decoded(window, batches, columns)


def check_ascending(path: str, window: Window, following: int, end: int) -> int:
    """Batches must ascend inside [following, end); returns the offset after the last one.

    Raises CorruptFileError for the first that does not.
    """
    base, last = window.batches["base_offset"], window.batches["last_offset"]
    before = np.concatenate((np.array([following], np.int64), last[:-1] + 1))
    bad = np.flatnonzero((base < before) | (last >= end))
    if len(bad):
        row = int(bad[0])
        raise CorruptFileError(
            path,
            window.origin + int(window.batches["position"][row]),
            f"offsets {base[row]} to {last[row]} of a batch are out of order or outside [{following}, {end})",
        )
    return int(last[-1]) + 1


def _check_ascending_entries(
    path: str, window: Window, batches: BatchHeaders, columns: KeyColumns, following: int
) -> int:
    """The offsets inside message sets (v0, v1) must ascend over entries too; returns the one after the last.

    Raises CorruptFileError.
    """
    if (batches["magic"] < 2).any():
        before = np.concatenate((np.array([following - 1], np.int64), columns.offset[:-1]))
        bad = np.flatnonzero(columns.offset <= before)
        if len(bad):
            position = window.origin + int(batches["position"][columns.batch[bad[0]]])
            raise CorruptFileError(
                path, position, f"the entry's offset {columns.offset[bad[0]]} is out of order"
            )
    return int(batches["last_offset"][-1]) + 1


# Input splits: whole segments, or parts of a segment where there are fewer segments than tasks.
#
# ::
#
#     segments   |------------------------|--------------|      two tasks, more bytes in the first segment
#     splits     |--------------------|                         cut between two batches, at an entry of the
#                                     |---|--------------|      offset index where a sound batch begins
#
# Where the index is missing or wrong, the segment is not cut and the tasks are less balanced. An entry may
# also point at bytes inside a record's value that look like a batch. The task that reads up to this cut then
# meets a batch that crosses it; the log is extracted again with whole segments.

MIN_SPLIT_BYTES = 16 << 20
"""The least size of a part of a segment."""
_NEAR_BOUNDARY_DIVISOR = 16
"""A cut within 1/16 of a task's share of a segment boundary moves to that boundary."""
_FIRST_BATCH_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSplit:
    """Bytes [start_position, end_position) of segment number ``segment``, which hold offsets [first_offset,
    end_offset)."""

    segment: int
    start_position: int
    end_position: int
    first_offset: int
    end_offset: int


def whole(segments: Sequence[Segment], end: int) -> list[InputSplit]:
    """A split for each segment; ``end`` is the offset after the last one's."""
    firsts = [*(segment.base_offset for segment in segments), end]
    return [
        InputSplit(
            segment=number,
            start_position=0,
            end_position=segment.size,
            first_offset=firsts[number],
            end_offset=firsts[number + 1],
        )
        for number, segment in enumerate(segments)
    ]


def splits_by_task(
    segments: Sequence[Segment], end: int, tasks: int, *, may_cut: bool
) -> list[list[InputSplit]]:
    """The log as one list of neighbouring splits for each of up to ``tasks`` tasks, about equal in bytes.

    Segments are cut only with ``may_cut`` (not set for message sets, whose entries do not say where
    they begin), and into parts of ``MIN_SPLIT_BYTES`` or more.
    """
    total = sum(segment.size for segment in segments)
    tasks = max(1, min(tasks, max(len(segments), total // MIN_SPLIT_BYTES)))
    share = total / tasks
    borders = np.cumsum([0, *(segment.size for segment in segments)])
    begins: dict[int, set[tuple[int, int]]] = {}
    for task in range(1, tasks):
        # Where the next task's splits begin: at a segment if one begins near, else at a cut inside one.
        wanted = total * task // tasks
        nearest = int(np.argmin(np.abs(borders - wanted)))
        cut = None
        if (
            may_cut
            and share >= MIN_SPLIT_BYTES
            and abs(int(borders[nearest]) - wanted) > share / _NEAR_BOUNDARY_DIVISOR
        ):
            number = int(np.searchsorted(borders, wanted, side="right")) - 1
            cut = cut_near(segments[number], wanted - int(borders[number]))
        if cut is not None:
            begins.setdefault(number, set()).add(cut)
        elif 0 < nearest < len(segments):
            begins.setdefault(nearest, set()).add((0, segments[nearest].base_offset))
    return [splits for splits in _cut(whole(segments, end), begins) if splits]


def are_cut(by_task: Sequence[Sequence[InputSplit]]) -> bool:
    """Does a split begin inside a segment?"""
    return any(split.start_position for splits in by_task for split in splits)


def _cut(splits: Sequence[InputSplit], begins: dict[int, set[tuple[int, int]]]) -> list[list[InputSplit]]:
    """Lists of splits that begin at (position, offset) in segments, by the segments' numbers."""
    by_task: list[list[InputSplit]] = [[]]
    for split in splits:
        rest = split
        for position, offset in sorted(begins.get(split.segment, ())):
            if position:  # else the list begins with the whole segment
                by_task[-1].append(replace(rest, end_position=position, end_offset=offset))
                rest = replace(rest, start_position=position, first_offset=offset)
            by_task.append([])
        by_task[-1].append(rest)
    return by_task


def cut_near(segment: Segment, position: int) -> tuple[int, int] | None:
    """The cut nearest to byte ``position`` in the offset index: (position, base offset) of a v2 batch whose
    checksum is right. None where the index has no such cut."""
    path = Path(segment.directory) / segment_file(segment.base_offset, "index")
    try:
        entries = read_entries(files.read_bytes(path), "index", str(path))
        if not len(entries):
            return None
        entry = entries[np.argmin(np.abs(entries["position"].astype(np.int64) - position))]
        start, last = int(entry["position"]), segment.base_offset + int(entry["relative_offset"])
        with open_unchanged(segment) as reader:
            batch = next(windows(reader, start=start, window_size=_FIRST_BATCH_READ_BYTES)).batches[0]
    except (OSError, SiltstoneError, StopIteration):
        return None
    first = int(batch["base_offset"])
    if start <= 0 or batch["magic"] != 2 or not segment.base_offset < first <= last:
        return None
    return start, first


# ``log.cleaner.io.max.bytes.per.second``: each task reads and writes no faster than its share of it (Kafka's
# ``Throttler``).

IO_LIMIT = "log.cleaner.io.max.bytes.per.second"
UNLIMITED = math.inf
_LONGEST_SLEEP = 1.0
"""Seconds: an interrupt is noticed in between."""


def share_of_io(bytes_per_second: float, tasks: int) -> float:
    """What each of so many tasks may read and write, of the setting's value."""
    return UNLIMITED if bytes_per_second >= sys.float_info.max else bytes_per_second / max(tasks, 1)


class Throttler:
    """Sleeps when a task is ahead of ``bytes_per_second``, counted from its start."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._began = time.monotonic() if bytes_per_second < UNLIMITED else 0.0
        self._bytes = 0

    def maybe_throttle(self, size: int) -> None:
        """Count ``size`` bytes that were read or written, and sleep until the rate allows them."""
        if self._rate == UNLIMITED:
            return
        self._bytes += size
        while (ahead := self._bytes / self._rate - (time.monotonic() - self._began)) > 0:
            time.sleep(min(ahead, _LONGEST_SLEEP))


def throttled_windows(
    reader: files.Reader,
    window_size: int,
    throttler: Throttler,
    *,
    span: tuple[int, int | None] = (0, None),
    verify: bool = True,
) -> Iterator[Window]:
    """``log.segments.windows`` of a ``span`` of a segment (first byte, end), at the throttler's rate."""
    start, end = span
    for window in windows(reader, start=start, end=end, window_size=window_size, verify=verify):
        throttler.maybe_throttle(len(window.data))
        yield window


HAS_KEYLESS_RECORDS = (
    "has {count} records without a key, which cleaning would remove; pass --drop-keyless to allow it"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RetentionRules:
    """What decides which records stay: times in ms.

    ``last_offset``: of the range that is cleaned, whose batch stays even without records. ``producers``
    (int64[n, 3]): ids of those that are alive, ascending, their last data offsets (-1 without one) and
    epochs. ``map_end``: records from it on all stay; Kafka's map ends where it is full, ours does not, so
    only a comparison with Kafka sets it. ``tombstones_from``: tombstones from it on stay at any age
    (``log.ledger.store``). ``legacy_delete_horizon_ms``: tombstones of v0 and v1 stay in segments that were
    modified later. ``drop_keyless``: records without a key go; else a log that has some is not cleaned.
    """

    now_ms: int
    delete_retention_ms: int
    last_offset: int
    producers: Int64
    map_end: int = LONG_MAX
    tombstones_from: int = LONG_MAX
    legacy_delete_horizon_ms: int = 0
    drop_keyless: bool = False

    def keeps_legacy_tombstones(self, modified_ms: int) -> bool:
        """Do the tombstones of a v0 or v1 segment with this modification time stay?

        As Kafka's ``Cleaner.cleanSegments`` does for v0 and v1, which have no delete horizon: the segment's
        modification time decides.
        """
        return modified_ms > self.legacy_delete_horizon_ms

    @property
    def new_delete_horizon_ms(self) -> int:
        """The delete horizon that this cleaning writes into batches, at most LONG_MAX. (Kafka's sum overflows
        for a longer retention, and the batch gets no horizon.)"""
        return min(self.now_ms + self.delete_retention_ms, LONG_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """The limits of a task, in bytes: between two index entries, of an index, of a window that is
    read, of the memory for keys, of one decompressed batch (``max.decompressed.message.bytes``).

    ``io_bytes_per_second``: what one task may read and write.
    """

    index_interval_bytes: int
    index_bytes: int
    window_size: int
    memory_bytes: int
    batch_limit: int = DEFAULT_LIMIT
    io_bytes_per_second: float = UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWork:
    """One log's cleaning; no offset is relative to a segment.

    ``end``: the first uncleanable offset. ``aborted``: the entries of the log's ``.txnindex`` files, those
    above ``end`` too. ``segments_above``: those from ``end`` on, where markers of transactions may be
    that began below. ``has_message_sets``: a segment of it begins with v0 or v1. ``may_cut``: tasks may extract
    parts of a segment. ``staging``: folder for new files, None for a dry run.
    """

    name: str
    segments: tuple[Segment, ...]
    groups: tuple[Group, ...]
    first_dirty: int
    end: int
    rules: RetentionRules
    limits: TaskLimits
    hash_key: tuple[int, int]
    staging: str | None
    aborted: bytes = b""
    segments_above: tuple[Segment, ...] = ()
    has_message_sets: bool = False
    may_cut: bool = True

    @property
    def size(self) -> int:
        """Bytes of its segments."""
        return sum(segment.size for segment in self.segments)

    def sources(self, group: Group) -> tuple[Segment, ...]:
        """The segments of one of its groups."""
        return self.segments[group.first_segment : group.end_segment]

    def transactions(self, carried: Carried = NOTHING) -> TransactionScan:
        """A scan of transactions for one segment, or for a group with ``carried`` as its initial state."""
        return TransactionScan(parse_aborted(self.aborted), carried)

    @property
    def splits(self) -> list[InputSplit]:
        """One input split for each segment."""
        return whole(self.segments, self.end)

    def offsets_of(self, segment: int) -> tuple[int, int]:
        """The offsets that segment number ``segment`` may hold: [its base, the next segment's base)."""
        following = self.segments[segment + 1].base_offset if segment + 1 < len(self.segments) else self.end
        return self.segments[segment].base_offset, following


def extract(
    work: LogWork, splits: Sequence[InputSplit], buckets: int, capacity: int, extracted: Extracted
) -> Iterator[EntryBlob]:
    """Key entries of some input splits, in ascending order of splits; blobs of at most ``keys.BLOB_BYTES``.

    ``capacity``: most entries of each kind in memory. Fills ``extracted``; if that has a failure in the end,
    the caller must not use the blobs.
    """
    collector = KeyCollector(
        hash_key=work.hash_key,
        first_dirty=work.first_dirty,
        buckets=buckets,
        capacity=capacity,
        expected=sum(split.end_offset - split.first_offset for split in splits),
    )
    try:
        scratch = Scratch()
        for split in splits:
            yield from _extract_split(work, split, scratch, collector, extracted)
        yield from collector.finish()
    except Exception as error:
        extracted.failure = failure_of(error)


def _extract_split(
    work: LogWork, split: InputSplit, scratch: Scratch, collector: KeyCollector, extracted: Extracted
) -> Iterator[EntryBlob]:
    segment, scan = work.segments[split.segment], work.transactions()
    throttler, span = Throttler(work.limits.io_bytes_per_second), (split.start_position, split.end_position)
    with open_unchanged(segment) as reader:
        windows = throttled_windows(reader, work.limits.window_size, throttler, span=span)
        offsets, limit = (split.first_offset, split.end_offset), work.limits.batch_limit
        for some in decoded(segment.path, windows, offsets, decode_record_keys, scratch=scratch, limit=limit):
            columns = some.columns
            extracted.records += len(columns)
            keyed = columns.key_size >= 0
            mapped = _enters_offset_map(work, scan, some, segment.path, extracted)
            extracted.keyless += int(np.count_nonzero(~keyed if mapped is None else mapped & ~keyed))
            yield from collector.add(columns, keyed if mapped is None else mapped & keyed)
    scan.refuse_unmarked(split.first_offset, split.end_offset, segment.path)
    summary = scan.summary(split.first_offset)
    if len(summary):
        extracted.summaries.append(summary)


def _enters_offset_map(
    work: LogWork, scan: TransactionScan, some: Decoded[KeyColumns], path: str, extracted: Extracted
) -> Flags | None:
    """Which records go into the offset map (bool, one a record), None for all of them.

    Left out are records of aborted transactions, control records, and records from ``map_end`` on
    (Kafka's ``Cleaner.buildOffsetMapForSegment``).
    """
    window, batches, columns = some
    followed, mapped = scan.follow(window.data, batches, path=path, origin=window.origin), None
    if followed is not None:
        extracted.has_transactions = True
        mapped = ~(followed[0] | ((batches["attributes"] & CONTROL_BIT) != 0))[columns.batch]
    if work.rules.map_end < work.end:
        below = columns.offset < work.rules.map_end
        mapped = below if mapped is None else mapped & below
    return mapped


def retained_by_group(
    work: LogWork, retained: MergedBucket
) -> Iterator[tuple[int, np.ndarray[tuple[int], np.dtype[np.uint32]]]]:
    """A bucket's retained offsets by group: (group's index, offsets less its base: uint32, unordered)."""
    offsets, bounds = group_offsets(
        retained.offsets, np.array([group.base_offset for group in work.groups], np.int64)
    )
    for number, group in enumerate(work.groups):
        of_group = offsets[bounds[number] : bounds[number + 1]]
        if len(of_group):
            yield group.index, of_group


def check_keyless(work: LogWork, extracted: Extracted) -> LogFailure | None:
    """The failure of a log that has records without a key and may not lose them; None for other logs."""
    if extracted.keyless and not work.rules.drop_keyless:
        return LogFailure(status=SKIPPED, reason=HAS_KEYLESS_RECORDS.format(count=extracted.keyless))
    return None


def transaction_state_by_group(work: LogWork, extracted: Extracted) -> dict[int, Carried]:
    """The state of transactions where each group starts, from the summaries of the whole log.

    Takes the summaries out of ``extracted``. Sets its failure where they contradict each other or the
    ``.txnindex`` files, or where a transaction is open below ``end`` that planning did not see.
    """
    summaries, extracted.summaries = extracted.summaries, []
    try:
        bases, directory = [group.base_offset for group in work.groups], work.segments[0].directory
        carried = carried_by_group(summaries, bases, directory)
        unended = expected_markers(summaries, parse_aborted(work.aborted), work.end)
        refuse_unexpected_markers(unended, work.end, work.segments_above, directory)
        return carried
    except Exception as error:
        extracted.failure = extracted.failure or failure_of(error)
        return {}
