"""The work of a task of a compaction, and how a task reads a log: records, their keys, their transactions.

``LogWork`` is all that a task needs to know about one log that is cleaned in place. An engine distributes
these steps over tasks; each takes plain data and returns plain data::

    extract                      input splits  ─► key entries by bucket, and the report on the splits
    keys.merge_bucket            one bucket    ─► retained offsets; ``retained_by_range`` groups them
    transaction_state_by_range   summaries of  ─► the transactions that are open where each range starts
                                 all splits
    staging.rewrite_range        one range     ─► a staged segment or, of a part of a group, a piece of one
    assembling.assemble_pieces   a group's     ─► a staged segment
                                 pieces

A range is what one task rewrites: a segment group, or a part of a large one.

A step does not raise for what is wrong with a log: its report has a ``LogFailure``, so that one bad log does
not stop the other logs of a job. ``compaction.ledger`` reads its sources with ``decode_slices``, too.
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
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import CorruptFileError, SiltstoneError
from siltstone.base.records.codecs import DEFAULT_DECOMPRESSION_LIMIT, Scratch
from siltstone.base.records.columns import KeyColumns, RecordColumns
from siltstone.base.records.decode import decode_record_keys, decode_records
from siltstone.base.records.decompression import slices_within
from siltstone.base.records.layout import CONTROL_BIT, BatchHeaders, Bytes, Flags, Int64, Words
from siltstone.compaction.keys import (
    COUNTED_WORDS,
    MERGE_BYTES_PER_ENTRY,
    PACKED_WORDS,
    EntryBlob,
    KeyCollector,
    MergedBucket,
    group_offsets,
    merge_bucket,
)
from siltstone.compaction.putting import ChunkStore
from siltstone.compaction.report import SKIPPED, LogFailure, Summable, failure_of
from siltstone.compaction.statistics import (
    MERGE_BYTES_PER_COUNTED_ENTRY,
    LogStatistics,
    StatisticsOptions,
    TombstoneRules,
    add_sums,
    count_records,
    merge_counted_bucket,
)
from siltstone.log.indexes import read_entries
from siltstone.log.names import segment_file
from siltstone.log.segments import Segment, Window, open_unchanged, windows
from siltstone.log.transactions import (
    NO_TRANSACTIONS,
    AbortedTransactions,
    TransactionScan,
    TransactionState,
    combine_summaries,
    expected_markers,
    refuse_unexpected_markers,
)

# Segment groups, the report on an extraction, and decoding with its checks, for both kinds of compaction.
# These functions raise an error for what is wrong with a log; their callers turn it into a ``LogFailure``
# (``report.failure_of``).

Columns = TypeVar("Columns", KeyColumns, RecordColumns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A segment group (Kafka's ``groupSegmentsBySize``): segments number ``first_segment`` up to, but not
    including, ``end_segment`` become one segment with the offsets [base_offset, end_offset).

    ``index``: its number among the log's groups.
    """

    index: int
    first_segment: int
    end_segment: int
    base_offset: int
    end_offset: int


def groups_from(first_segments: Sequence[int], bases: Sequence[int]) -> tuple[Group, ...]:
    """The groups that begin with the segments number ``first_segments``.

    ``bases``: the base offset of each segment of the log, then the offset after the last segment.
    """
    return tuple(
        Group(
            index=index,
            first_segment=first,
            end_segment=end,
            base_offset=bases[first],
            end_offset=bases[end],
        )
        for index, (first, end) in enumerate(itertools.pairwise([*first_segments, len(bases) - 1]))
    )


@decoded_in_threads
@dataclass(slots=True, kw_only=True)
class Extracted(Summable):
    """The report on the extraction of keys from some segments: counts of records, and the first failure.

    ``records``: all records; ``keyless``: those without a key. ``has_transactions``: a batch of a transaction
    or a control batch was read. ``summaries``: what each input split tells about transactions
    (``TransactionScan.summary``). ``statistics``: what was counted for ``explain``, None in a cleaning.

    Only side-by-side compaction fills these, and it counts only records of its range: ``keyed``: records with
    a key; ``aborted``: records of aborted transactions; ``size``: bytes of the batches; ``entries``: key
    entries that were sent.
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
    statistics: LogStatistics | None = None


@functools.lru_cache(maxsize=4)
def parse_aborted(data: bytes) -> AbortedTransactions:
    """The aborted transactions of ``.txnindex`` entries, parsed once for all segments of a task."""
    return AbortedTransactions.from_entries(data)


class BatchSlice(NamedTuple):
    """Some batches of a window. ``data``: the window's bytes, from byte ``origin`` of file ``path`` on;
    ``batches``: the headers of these batches, with positions in ``data``."""

    data: Bytes
    batches: BatchHeaders
    path: str
    origin: int


def batch_slices(path: str, window: Window) -> Iterator[BatchSlice]:
    """Slices of a window whose records take about 8 MiB decompressed (``decompression.slices_within``)."""
    for rows in slices_within(window.data, window.batches):
        yield BatchSlice(window.data, window.batches[rows], path, window.origin)


class DecodedSlice(NamedTuple, Generic[Columns]):
    """Some batches of a ``window``, and the ``columns`` of their records."""

    window: Window
    batches: BatchHeaders
    columns: Columns


def decode_slices(
    path: str,
    windows: Iterable[Window],
    offsets: tuple[int, int],
    decode: Callable[..., Columns],
    *,
    scratch: Scratch | None = None,
    limit: int = DEFAULT_DECOMPRESSION_LIMIT,
) -> Iterator[DecodedSlice[Columns]]:
    """Decode all records of a segment's ``windows``, in slices of about 8 MiB (``slices_within``).

    ``offsets``: (first, end) of the offsets that the segment may hold. ``decode`` is ``decode_records`` or
    ``decode_record_keys``; ``limit``: the most bytes that one batch may decompress to. ``scratch``: memory to
    decompress into. Raises CorruptFileError for offsets that do not ascend or that lie outside, and what
    ``decode`` raises.
    """
    next_offset, scratch = offsets[0], scratch or Scratch()
    for window in windows:
        next_in_slice, next_offset = next_offset, check_ascending(path, window, next_offset, offsets[1])
        for rows in slices_within(window.data, window.batches):
            batches = window.batches[rows]
            columns = decode(window.data, batches, scratch, limit=limit, path=path, origin=window.origin)
            next_in_slice = _check_ascending_entries(path, window, batches, columns, next_in_slice)
            yield DecodedSlice(window, batches, columns)


def check_ascending(path: str, window: Window, next_offset: int, end: int) -> int:
    """Check that the batches' offsets ascend within [next_offset, end); returns the offset after the last.

    Raises CorruptFileError for the first batch whose offsets do not.
    """
    base, last = window.batches["base_offset"], window.batches["last_offset"]
    lowest_base = np.concatenate((np.array([next_offset], np.int64), last[:-1] + 1))
    bad = np.flatnonzero((base < lowest_base) | (last >= end))
    if len(bad):
        row = int(bad[0])
        raise CorruptFileError(
            path,
            window.origin + int(window.batches["position"][row]),
            f"offsets {base[row]} to {last[row]} of a batch are out of order or outside "
            f"[{next_offset}, {end})",
        )
    return int(last[-1]) + 1


def _check_ascending_entries(
    path: str, window: Window, batches: BatchHeaders, columns: KeyColumns, next_offset: int
) -> int:
    """Check that the offsets of all messages inside wrappers (v0, v1) ascend, too: a wrapper's header has
    only its last offset. Returns the offset after the last batch. Raises CorruptFileError."""
    if (batches["magic"] < 2).any():
        previous = np.concatenate((np.array([next_offset - 1], np.int64), columns.offset[:-1]))
        bad = np.flatnonzero(columns.offset <= previous)
        if len(bad):
            position = window.origin + int(batches["position"][columns.batch[bad[0]]])
            raise CorruptFileError(
                path, position, f"offset {columns.offset[bad[0]]} in a message set is out of order"
            )
    return int(batches["last_offset"][-1]) + 1


# Input splits: whole segments, or parts of segments where that gives the tasks equal numbers of bytes.
#
# ::
#
#     segments   |------------------------|--------------|      two tasks, more bytes in the first segment
#     splits     |--------------------|                         cut between two batches, at an entry of the
#                                     |---|--------------|      offset index where a sound batch begins
#
# Where the index is missing or wrong, the segment is not cut, and the tasks' shares are less equal. An index
# entry may also point at bytes inside a record's value that look like a batch. The task that reads up to this
# cut then meets a batch that crosses it; the log is extracted again with whole segments.

MIN_SPLIT_BYTES = 16 << 20
"""The least size of a part of a segment."""
_NEAR_BOUNDARY_DIVISOR = 16
"""Where a segment ends within 1/16 of a task's share of the wanted place, the next task's splits begin there:
the segment is not cut."""
_FIRST_BATCH_READ_BYTES = 1 << 16
"""Bytes that are read at a time to see whether a batch begins at a cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSplit:
    """Bytes [start_position, end_position) of segment number ``segment``, which hold offsets [first_offset,
    end_offset)."""

    segment: int
    start_position: int
    end_position: int
    first_offset: int
    end_offset: int


def whole_segments(segments: Sequence[Segment], end: int) -> list[InputSplit]:
    """A split for each segment. ``end``: the offset after the last segment."""
    bases = [*(segment.base_offset for segment in segments), end]
    return [
        InputSplit(
            segment=number,
            start_position=0,
            end_position=segment.size,
            first_offset=bases[number],
            end_offset=bases[number + 1],
        )
        for number, segment in enumerate(segments)
    ]


def splits_by_task(
    segments: Sequence[Segment], end: int, tasks: int, *, may_cut: bool
) -> list[list[InputSplit]]:
    """Divide a log: a list of neighbouring splits for each of up to ``tasks`` tasks, about equal in bytes.

    ``end``: the offset after the last segment. Segments are cut only with ``may_cut``, and into parts of
    ``MIN_SPLIT_BYTES`` or more. (Segments with message sets are not cut: the header of a wrapper lacks
    its first offset, which a split must know.)
    """
    total = sum(segment.size for segment in segments)
    tasks = max(1, min(tasks, max(len(segments), total // MIN_SPLIT_BYTES)))
    share = total / tasks
    boundaries = np.cumsum([0, *(segment.size for segment in segments)])
    # By segment: where in it the splits of another task begin, as (byte position, offset).
    cuts: dict[int, set[tuple[int, int]]] = {}
    for task in range(1, tasks):
        # The next task's splits begin with a segment if one begins near, else at a cut inside a segment.
        target = total * task // tasks
        nearest = int(np.argmin(np.abs(boundaries - target)))
        cut = None
        if (
            may_cut
            and share >= MIN_SPLIT_BYTES
            and abs(int(boundaries[nearest]) - target) > share / _NEAR_BOUNDARY_DIVISOR
        ):
            number = int(np.searchsorted(boundaries, target, side="right")) - 1
            cut = cut_near(segments[number], target - int(boundaries[number]))
        if cut is not None:
            cuts.setdefault(number, set()).add(cut)
        elif 0 < nearest < len(segments):
            cuts.setdefault(nearest, set()).add((0, segments[nearest].base_offset))
    return [splits for splits in _divide(whole_segments(segments, end), cuts) if splits]


def are_cut(splits_of_tasks: Sequence[Sequence[InputSplit]]) -> bool:
    """Does a split begin inside a segment?"""
    return any(split.start_position for splits in splits_of_tasks for split in splits)


def _divide(splits: Sequence[InputSplit], cuts: dict[int, set[tuple[int, int]]]) -> list[list[InputSplit]]:
    """Divide splits of whole segments into lists. ``cuts``: by segment, the (byte position, offset) at which
    another list begins; position 0 is the segment's start."""
    splits_of_tasks: list[list[InputSplit]] = [[]]
    for split in splits:
        rest = split
        for position, offset in sorted(cuts.get(split.segment, ())):
            if position:  # at 0 the next list begins with the whole segment
                splits_of_tasks[-1].append(replace(rest, end_position=position, end_offset=offset))
                rest = replace(rest, start_position=position, first_offset=offset)
            splits_of_tasks.append([])
        splits_of_tasks[-1].append(rest)
    return splits_of_tasks


def cut_near(segment: Segment, position: int) -> tuple[int, int] | None:
    """The cut nearest to byte ``position`` by the offset index: (position, base offset) of a v2 batch whose
    checksum is right. None where the index has no entry, or no such batch begins at the nearest entry."""
    path = Path(segment.directory) / segment_file(segment.base_offset, "index")
    try:
        entries = read_entries(files.read_bytes(path), "index", str(path))
        if not len(entries):
            return None
        entry = entries[np.argmin(np.abs(entries["position"].astype(np.int64) - position))]
        # An index entry has the last offset of the batch at its position.
        start, last = int(entry["position"]), segment.base_offset + int(entry["relative_offset"])
        with open_unchanged(segment) as reader:
            batch = next(windows(reader, start=start, window_size=_FIRST_BATCH_READ_BYTES)).batches[0]
    except (OSError, SiltstoneError, StopIteration):
        return None
    first = int(batch["base_offset"])
    if start <= 0 or batch["magic"] != 2 or not segment.base_offset < first <= last:
        return None
    return start, first


# Ranges: what one task rewrites. A group becomes one file, so by itself it is the work of one task. Where
# there are fewer large groups than workers, groups are cut into ranges, and their segments assembled from the
# pieces.
#
# ::
#
#     groups     |------------------------------|--------|      two workers, four tasks
#     ranges     |----------|----------|--------|-|------|      task 1 has two ranges
#     tasks           3          2          1         0
#
# Newer ranges have more retained records and take longer. So there are two tasks for each worker, and the
# newest ranges come first: while a worker rewrites one of these, the others do the rest.
#
# A range begins where an input split begins: the summaries of the splits tell which transactions are open
# there, and a wrong cut is detected when the keys are extracted.

MIN_CUT_BYTES = 128 << 20
"""The least bytes of the largest group for which groups are cut into ranges: assembling the pieces costs
Spark a stage."""
_MIN_SHARES = 2
"""The least size of the largest group for which groups are cut, as a multiple of a worker's share of all
bytes. The task of a smaller group ends soon after the others, so cutting it would gain little."""
_TASKS_PER_WORKER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRange:
    """Consecutive batches of group number ``group``, by their ``splits``; task number ``task`` rewrites them.

    Two waves of a log have no task number in common. A job with fewer tasks takes a range's task number
    modulo the number of its tasks."""

    group: int
    task: int
    splits: tuple[InputSplit, ...]

    @property
    def base_offset(self) -> int:
        """The first offset that it may hold. No two ranges of a log have the same."""
        return self.splits[0].first_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last one that it may hold."""
        return self.splits[-1].end_offset

    @property
    def size(self) -> int:
        """Its bytes in the old segments."""
        return sum(split.end_position - split.start_position for split in self.splits)

    def is_whole(self, group: Group) -> bool:
        """Is it all of its group?"""
        return (self.base_offset, self.end_offset) == (group.base_offset, group.end_offset)


def whole_groups(
    segments: Sequence[Segment], groups: Sequence[Group], first_task: int = 0
) -> list[GroupRange]:
    """A range for each group. Each is the work of another task: number ``first_task`` and up."""
    return [
        GroupRange(
            group=group.index,
            task=task,
            splits=tuple(
                replace(split, segment=group.first_segment + split.segment)
                for split in whole_segments(
                    segments[group.first_segment : group.end_segment], group.end_offset
                )
            ),
        )
        for task, group in enumerate(groups, first_task)
    ]


def cut_groups(
    segments: Sequence[Segment], groups: Sequence[Group], parallelism: int, first_task: int = 0
) -> list[GroupRange]:
    """The ranges of some neighbouring groups, cut so that tasks get about equal numbers of bytes; whole
    groups where cutting is not worth it. ``parallelism``: how many tasks run at the same time;
    ``first_task``: the least task number."""
    first, end = groups[0].first_segment, groups[-1].end_segment
    sizes = [segment.size for segment in segments]
    largest = max(sum(sizes[group.first_segment : group.end_segment]) for group in groups)
    if largest < MIN_CUT_BYTES or largest * parallelism < _MIN_SHARES * sum(sizes[first:end]):
        return whole_groups(segments, groups, first_task)
    group_of = [group.index for group in groups for _ in range(group.first_segment, group.end_segment)]
    splits_of_tasks = splits_by_task(
        segments[first:end], groups[-1].end_offset, _TASKS_PER_WORKER * parallelism, may_cut=True
    )
    ranges, last_task = list[GroupRange](), first_task + len(splits_of_tasks) - 1
    for number, splits in enumerate(splits_of_tasks):
        for group, of_group in itertools.groupby(splits, lambda split: group_of[split.segment]):
            # The splits count segments from the first group's first one; ranges count those of the log.
            of_log = tuple(replace(split, segment=first + split.segment) for split in of_group)
            ranges.append(GroupRange(group=group, task=last_task - number, splits=of_log))
    return ranges


# ``log.cleaner.io.max.bytes.per.second``: each task reads and writes no faster than its share of it (Kafka's
# ``Throttler``).

IO_LIMIT = "log.cleaner.io.max.bytes.per.second"
UNLIMITED = math.inf
_SLEEP_SECONDS_MAX = 1.0
"""The longest single sleep, so that an interrupt is noticed."""


def share_of_io(bytes_per_second: float, tasks: int) -> float:
    """The bytes a second that each of ``tasks`` tasks may read and write, so that together they stay below
    ``bytes_per_second``. (Kafka's default is the largest double: no limit.)"""
    return UNLIMITED if bytes_per_second >= sys.float_info.max else bytes_per_second / max(tasks, 1)


class Throttler:
    """Sleeps when a task has read and written more than ``bytes_per_second`` since the throttler was made."""

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
            time.sleep(min(ahead, _SLEEP_SECONDS_MAX))


def throttled_windows(
    reader: files.Reader,
    window_size: int,
    throttler: Throttler,
    *,
    span: tuple[int, int | None] = (0, None),
    verify: bool = True,
) -> Iterator[Window]:
    """The windows of a ``span`` of a segment (start and end in bytes), no faster than the throttler allows.

    ``verify``: verify the batches' checksums (``log.segments.windows``).
    """
    start, end = span
    for window in windows(reader, start=start, end=end, window_size=window_size, verify=verify):
        throttler.maybe_throttle(len(window.data))
        yield window


HAS_KEYLESS_RECORDS = (
    "has {count} records without a key, which cleaning would remove; pass --drop-keyless to allow it"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RetentionRules:
    """The settings and the state that decide which records of a log stay; times in ms.

    ``last_offset``: the last offset of the range that is cleaned; its batch stays even without records.
    ``producers`` (int64[n, 3], a row a producer): the id of each producer that has not expired, ascending;
    its last data offset, -1 without one; its epoch. ``map_end``: the first offset that the offset map does
    not cover; all records from it on stay. (Kafka's map ends where it is full. Here it covers the whole dirty
    section, and only tests that compare with Kafka set this.) ``tombstones_from``: tombstones at this offset
    and above stay whatever their age, since the compacted ledger has not read them
    (``log.ledger.store.cleaning_bounds``). ``legacy_delete_horizon_ms``: tombstones of message sets (v0, v1)
    stay in segments that were modified after this. ``drop_keyless``: records without a key are discarded;
    without this flag a log that has such records is not cleaned.
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
        """Do the tombstones of a segment of message sets (v0, v1) with this modification time stay?

        These formats have no delete horizon, so the modification time decides (``Cleaner.cleanSegments``).
        """
        return modified_ms > self.legacy_delete_horizon_ms

    @property
    def new_delete_horizon_ms(self) -> int:
        """The delete horizon that this cleaning writes into batches, at most LONG_MAX. (Kafka's sum overflows
        for a longer retention, and the batch gets no horizon.)"""
        return min(self.now_ms + self.delete_retention_ms, LONG_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """The limits of a task, in bytes.

    ``index_interval_bytes``: of the segment, between two entries of its index (``index.interval.bytes``).
    ``index_bytes``: the largest index (``segment.index.bytes``). ``window_size``: how much of a segment is
    read at a time. ``memory_bytes``: the memory for keys. ``batch_limit``: the most that one batch may
    decompress to (``max.decompressed.message.bytes``). ``io_bytes_per_second``: what one task may read and
    write.
    """

    index_interval_bytes: int
    index_bytes: int
    window_size: int
    memory_bytes: int
    batch_limit: int = DEFAULT_DECOMPRESSION_LIMIT
    io_bytes_per_second: float = UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWork:
    """All that tasks need to know to clean one log. All offsets are absolute.

    ``name``: ``topic-N``. ``segments``: those to clean, below offset ``end``, the first uncleanable offset.
    ``groups``: what these become. ``first_dirty``: the first dirty offset. ``hash_key``: the random key of
    SipHash, two 64-bit numbers. ``staging``: the folder for new files, None for a dry run.
    ``txnindex_entries``: the bytes of all the log's ``.txnindex`` files, also those above ``end``.
    ``segments_above``: the segments from ``end`` on; they may hold the markers of transactions that began
    below. ``has_message_sets``: one of ``segments`` begins with v0 or v1. ``may_cut_segments``: an input
    split may be a part of a segment. ``has_space_for_pieces``: the disk has space for the pieces of cut
    groups as well as for the new segments. ``cut_ranges``: the log's ranges if a group was cut, else none.
    ``statistics``: what is counted for ``explain`` while keys are extracted and merged, None in a cleaning.
    ``chunk_store``: the object store into which tasks upload the new segments, which they write to local
    folders of their own first; None if they leave them in ``staging``.
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
    txnindex_entries: bytes = b""
    segments_above: tuple[Segment, ...] = ()
    has_message_sets: bool = False
    may_cut_segments: bool = True
    has_space_for_pieces: bool = False
    cut_ranges: tuple[GroupRange, ...] = ()
    statistics: StatisticsOptions | None = None
    chunk_store: ChunkStore | None = None

    @property
    def shared_staging(self) -> str | None:
        """The folder that tasks share with the driver; None if they write nothing there."""
        return self.staging if self.chunk_store is None else None

    @property
    def ranges(self) -> Sequence[GroupRange]:
        """The ranges that tasks rewrite: whole groups, unless some were cut; by offset."""
        return self.cut_ranges or whole_groups(self.segments, self.groups)

    @property
    def entry_words(self) -> int:
        """Words of a key entry on its way to the merge."""
        return PACKED_WORDS if self.statistics is None else COUNTED_WORDS

    @property
    def merge_bytes_per_entry(self) -> int:
        """Memory that a merge takes for an entry, at most."""
        return MERGE_BYTES_PER_ENTRY if self.statistics is None else MERGE_BYTES_PER_COUNTED_ENTRY

    @property
    def size(self) -> int:
        """Bytes of its segments."""
        return sum(segment.size for segment in self.segments)

    def sources(self, group: Group) -> tuple[Segment, ...]:
        """The segments that become the group's new segment."""
        return self.segments[group.first_segment : group.end_segment]

    def transaction_scan(self, initial_state: TransactionState = NO_TRANSACTIONS) -> TransactionScan:
        """A scan that tells which batches are of aborted transactions. ``initial_state``: the transactions
        that are open where the scan starts. A scan of one input split does not know any; its summary says
        what depends on them."""
        return TransactionScan(parse_aborted(self.txnindex_entries), initial_state)

    @property
    def splits(self) -> list[InputSplit]:
        """One input split for each segment; none extends over a cut of a group."""
        cut = [split for group_range in self.cut_ranges for split in group_range.splits]
        return cut or whole_segments(self.segments, self.end)

    def offsets_of(self, segment: int) -> tuple[int, int]:
        """The offsets that segment number ``segment`` may hold: [its base, the next segment's base)."""
        next_base = self.segments[segment + 1].base_offset if segment + 1 < len(self.segments) else self.end
        return self.segments[segment].base_offset, next_base


def extract(
    work: LogWork, splits: Sequence[InputSplit], buckets: int, capacity: int, extracted: Extracted
) -> Iterator[EntryBlob]:
    """Key entries of some input splits, which ascend by offset; in blobs of at most ``keys.BLOB_BYTES_MAX``.

    ``buckets``: into how many buckets all keys are divided. ``capacity``: the most dirty entries, and also
    the most clean entries, in memory. Fills the report ``extracted``; if that has a failure after the last
    blob, the caller must use none of them.
    """
    counted = work.statistics
    if counted is not None:
        extracted.statistics = extracted.statistics or LogStatistics()
    collector = KeyCollector(
        hash_key=work.hash_key,
        first_dirty=work.first_dirty,
        buckets=buckets,
        capacity=capacity,
        expected=sum(split.end_offset - split.first_offset for split in splits),
        bins=0 if counted is None else counted.bins.bin_count,
    )
    try:
        scratch = Scratch()
        for split in splits:
            yield from _extract_split(work, split, scratch, collector, extracted)
        yield from collector.finish()
        if extracted.statistics is not None:
            superseded = collector.superseded
            add_sums(extracted.statistics.superseded, range(len(superseded)), superseded)
    except Exception as error:
        extracted.failure = failure_of(error)


def _extract_split(
    work: LogWork, split: InputSplit, scratch: Scratch, collector: KeyCollector, extracted: Extracted
) -> Iterator[EntryBlob]:
    """Read one split, as ``extract`` does. Raises for what is wrong with it."""
    segment, scan = work.segments[split.segment], work.transaction_scan()
    throttler, span = Throttler(work.limits.io_bytes_per_second), (split.start_position, split.end_position)
    with open_unchanged(segment) as reader:
        windows = throttled_windows(reader, work.limits.window_size, throttler, span=span)
        offsets, limit = (split.first_offset, split.end_offset), work.limits.batch_limit
        decode: Callable[..., KeyColumns] = decode_record_keys if work.statistics is None else decode_records
        for decoded in decode_slices(segment.path, windows, offsets, decode, scratch=scratch, limit=limit):
            window, batches, columns = decoded
            extracted.records += len(columns)
            keyed = columns.key_size >= 0
            # Both bool, one a batch: (is of an aborted transaction, is a marker of a transaction without
            # data). None if no batch is of a transaction.
            aborted_and_empty = scan.follow(window.data, batches, path=segment.path, origin=window.origin)
            aborted = None if aborted_and_empty is None else aborted_and_empty[0]
            extracted.has_transactions |= aborted is not None
            mapped = _enters_offset_map(work, batches, columns, aborted)
            # Records of aborted transactions and control records are not counted, though they may have no
            # key: they are discarded for another reason.
            extracted.keyless += int(np.count_nonzero(~keyed if mapped is None else mapped & ~keyed))
            count_words = _count_records(work, segment, decoded, aborted, extracted)
            yield from collector.add(columns, keyed if mapped is None else mapped & keyed, *count_words)
    scan.refuse_missing_markers(split.first_offset, split.end_offset, segment.path)
    summary = scan.summary(split.first_offset)
    if len(summary):
        extracted.summaries.append(summary)


def _count_records(
    work: LogWork,
    segment: Segment,
    decoded: DecodedSlice[KeyColumns],
    aborted: Flags | None,
    extracted: Extracted,
) -> list[Words]:
    """Count the records for ``explain``; returns word 2 of their counted entries, for the collector."""
    if work.statistics is None or extracted.statistics is None:
        return []
    columns, rules = decoded.columns, work.rules
    assert isinstance(columns, RecordColumns)
    tombstones = TombstoneRules(
        now_ms=rules.now_ms,
        tombstones_from=rules.tombstones_from,
        keeps_legacy=rules.keeps_legacy_tombstones(segment.modified_ms),
    )
    statistics, bins = extracted.statistics, work.statistics.bins
    return [count_records(statistics, bins, decoded.batches, columns, aborted, tombstones)]


def _enters_offset_map(
    work: LogWork, batches: BatchHeaders, columns: KeyColumns, aborted: Flags | None
) -> Flags | None:
    """Which records may enter the offset map (bool, one a record), None for all of them.

    Left out are records of aborted transactions, control records, and records from ``map_end`` on
    (Kafka's ``Cleaner.buildOffsetMapForSegment``). ``aborted``: bool, one a batch; None for batches without
    transactions.
    """
    mapped = None
    if aborted is not None:
        mapped = ~(aborted | ((batches["attributes"] & CONTROL_BIT) != 0))[columns.batch]
    if work.rules.map_end < work.end:
        below = columns.offset < work.rules.map_end
        mapped = below if mapped is None else mapped & below
    return mapped


def merge_entries(
    work: LogWork, blobs: list[EntryBlob], bucket: int, buckets: int, extracted: Extracted
) -> MergedBucket:
    """Merge all blobs of bucket number ``bucket`` of ``buckets``; adds the statistics of its keys, if they
    are counted, to ``extracted``."""
    if work.statistics is None:
        return merge_bucket(blobs, bucket, buckets)
    merged, statistics = merge_counted_bucket(blobs, bucket, buckets, work.statistics)
    extracted.add(Extracted(statistics=statistics))
    return merged


def retained_by_range(
    work: LogWork, retained: MergedBucket
) -> Iterator[tuple[GroupRange, np.ndarray[tuple[int], np.dtype[np.uint32]]]]:
    """A bucket's retained offsets by range: (the range, offsets less the range's base, unordered)."""
    ranges = work.ranges
    offsets, bounds = group_offsets(
        retained.offsets, np.array([group_range.base_offset for group_range in ranges], np.int64)
    )
    for number, group_range in enumerate(ranges):
        of_range = offsets[bounds[number] : bounds[number + 1]]
        if len(of_range):
            yield group_range, of_range


def check_keyless(work: LogWork, extracted: Extracted) -> LogFailure | None:
    """The failure of a log that has records without a key although the run must not discard any (without
    ``drop_keyless``); None for other logs."""
    if extracted.keyless and not work.rules.drop_keyless:
        return LogFailure(status=SKIPPED, reason=HAS_KEYLESS_RECORDS.format(count=extracted.keyless))
    return None


def transaction_state_by_range(work: LogWork, extracted: Extracted) -> dict[int, TransactionState]:
    """The transactions that are open where each range starts, by the range's base offset; from the summaries
    of all input splits. A range that is not in the result starts with no transaction open.

    Takes the summaries out of ``extracted``. Sets its failure where they contradict each other or the
    ``.txnindex`` files, or where a transaction is open below ``end`` that planning did not know.
    """
    summaries, extracted.summaries = extracted.summaries, []
    try:
        bases = [group_range.base_offset for group_range in work.ranges]
        directory = work.segments[0].directory
        states = combine_summaries(summaries, bases, directory)
        # Planning ends the range below every transaction that is open in the log. So what these splits leave
        # open must end with a marker in the segments above.
        expected = expected_markers(summaries, parse_aborted(work.txnindex_entries), work.end)
        refuse_unexpected_markers(expected, work.end, work.segments_above, directory)
        return {bases[number]: state for number, state in states.items()}
    except Exception as error:
        extracted.failure = extracted.failure or failure_of(error)
        return {}
