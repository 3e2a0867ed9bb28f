"""The pieces of a side-by-side compaction that an engine spreads: plain data in, plain data out.

::

    hold_tail      a log           → its tail as sources that cannot go away while they are read
    extract        sources         → entries by bucket, keyless records that stay, and what was seen
    merge_bucket   one bucket      → retained offsets, the new key index's part, what older runs lose

``staging`` has the second phase. A piece never raises for what is wrong with a log or a file: it reports
``LogFailure``.
"""

from __future__ import annotations

import bisect
import errno
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from siltstone.base import files
from siltstone.base.errors import SourceChangedError
from siltstone.base.records.codecs import DEFAULT_LIMIT
from siltstone.base.records.columns import KeyColumns
from siltstone.base.records.decode import decode_record_keys, decode_records
from siltstone.base.records.layout import CONTROL_BIT, Flags, Int64
from siltstone.compaction.keys import PLAIN_WORDS, TIMED_WORDS, EntryBlob, deleted_of, offsets_of
from siltstone.compaction.ledger.keys import (
    PARTITIONS,
    EntryCollector,
    KeysPart,
    best_of_each_key,
    meet_older,
    read_keys,
    write_part,
)
from siltstone.compaction.work import Decoded, Extracted, Group, LogFailure, aborted_of, decoded, failure_of
from siltstone.log.fetch import LogView
from siltstone.log.indexes import TRANSACTION_ENTRY
from siltstone.log.ledger.manifest import SegmentEntry
from siltstone.log.names import segment_file
from siltstone.log.reading import HasView
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import windows
from siltstone.log.transactions import TransactionScan

MERGE_BYTES = 80
"""What a merge takes for an entry at its peak."""
MOST_RUNS = 8
"""Each is one more key index to look in, and one more directory to read."""
NO_OFFSETS: Int64 = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Sizes of what is written and of what tasks take, in bytes; ``most_runs`` of a ledger.

    ``staging``: the folder that tasks write into. ``segment_bytes``: a segment that has so much ends.
    ``memory_bytes``: what a task may take for keys. ``batch_limit``: what one batch may decompress to
    (``max.decompressed.message.bytes``); a compaction puts the log's own in its place.
    """

    staging: str = ""
    segment_bytes: int = 1 << 30
    index_interval: int = 4096
    index_bytes: int = 10 << 20
    window_size: int = 4 << 20
    memory_bytes: int = 256 << 20
    batch_limit: int = DEFAULT_LIMIT
    most_runs: int = MOST_RUNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file of batches, read from byte ``start`` up to ``size``; it holds offsets in [base, end).

    It must be the file with this inode, and may have grown since. (Not with this device: each client of a
    network file system numbers devices for itself.) ``run``: whose it is, None for a segment of the
    log.
    """

    path: str
    base_offset: int
    end_offset: int
    start: int = 0
    size: int
    inode: int
    run: int | None = None

    @property
    def length(self) -> int:
        """Bytes that are read."""
        return self.size - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionWork:
    """What a task has to know: of the tail of one log, offsets [first, end), or of runs to be merged.

    ``aborted``: the entries of the log's ``.txnindex`` files, those above ``end`` too. ``by_time``: the
    largest timestamp wins. ``key_indexes``: by run, of the older ones or of those that are merged.
    ``superseded``: of runs that are merged, the offsets that are left out (int64, ascending).
    """

    name: str
    hash_key: tuple[int, int]
    by_time: bool
    retain_null_key: bool
    settings: Settings
    key_indexes: dict[int, str]
    sources: tuple[Source, ...] = ()
    groups: tuple[Group, ...] = ()
    first: int = 0
    end: int = 0
    aborted: bytes = b""
    superseded: dict[int, Int64] = field(default_factory=dict)

    @property
    def words(self) -> int:
        """Words of an entry."""
        return TIMED_WORDS if self.by_time else PLAIN_WORDS

    @property
    def size(self) -> int:
        """Bytes that are read."""
        return sum(source.length for source in self.sources)


@dataclass(slots=True, kw_only=True)
class Compacted:
    """What one piece of the work has done, or all of them together.

    ``arrived``: entries that were merged; of keys: ``deleted``, and ``late`` by an older event.
    ``retained``: records that were to be written, by group, keyless ones too. ``superseded``: run →
    offsets that it loses (int64). ``keys``: parts of the new key index. ``written``: records, by group;
    ``segments``: those that hold them, by the stems of their paths (a path without ``.log``).
    """

    found: Extracted = field(default_factory=Extracted)
    arrived: int = 0
    deleted: int = 0
    late: int = 0
    retained: dict[int, int] = field(default_factory=dict)
    superseded: dict[int, list[Int64]] = field(default_factory=dict, repr=False)
    keys: list[KeysPart] = field(default_factory=list)
    written: dict[int, int] = field(default_factory=dict)
    segments: dict[str, SegmentEntry] = field(default_factory=dict)
    failure: LogFailure | None = None

    def add(self, other: Compacted) -> None:
        """Sum up; the first failure stays."""
        self.found.add(other.found)
        for name in ("arrived", "deleted", "late", "keys"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, more in ((self.retained, other.retained), (self.written, other.written)):
            for group, count in more.items():
                mine[group] = mine.get(group, 0) + count
        self.segments |= other.segments
        for run, offsets in other.superseded.items():
            self.superseded.setdefault(run, []).extend(offsets)
        self.failure = self.failure or other.failure

    def first_failure(self) -> LogFailure | None:
        """The first failure that anything had."""
        return self.found.failure or self.failure


def bucket_count(work: CompactionWork, at_least: int = 1) -> int:
    """Buckets, a power of two, so that the merge of one stays within a task's memory for keys."""
    wanted = max(at_least, -(-(work.end - work.first) * MERGE_BYTES // work.settings.memory_bytes))
    return min(PARTITIONS, 1 << (wanted - 1).bit_length())


def opened(source: Source) -> files.Reader:
    """Open a source, sure that it is the file that was planned with. Raises SourceChangedError, OSError."""
    reader = files.Reader(source.path)
    found = reader.stat
    if found.inode != source.inode or found.size < source.size:
        with reader:
            raise SourceChangedError(f"{source.path}: changed since it was planned with; run again")
    return reader


def extract(
    work: CompactionWork, numbers: Sequence[int], buckets: int, found: Extracted
) -> Iterator[EntryBlob | Int64]:
    """The keys of some sources (numbers into ``work.sources``, ascending) as blobs of entries; the offsets of
    keyless records that stay as arrays.

    ``found`` is added to on the way; when it has a failure in the end, the blobs are not to be used.
    """
    # Entries that fit the task's memory, no more than the sources can have.
    offsets = sum(work.sources[number].end_offset - work.sources[number].base_offset for number in numbers)
    capacity = max(1024, min(work.settings.memory_bytes // (8 * work.words), offsets))
    key, by_time = work.hash_key, work.by_time
    collector = EntryCollector(hash_key=key, by_time=by_time, buckets=buckets, capacity=capacity)
    try:
        for number in numbers:
            yield from _extract_source(work, work.sources[number], collector, found)
        yield from collector.finish()
        found.entries += collector.handed_on
    except Exception as error:
        found.failure = failure_of(error)


def _extract_source(
    work: CompactionWork, source: Source, collector: EntryCollector, found: Extracted
) -> Iterator[EntryBlob | Int64]:
    scan, how = TransactionScan(aborted_of(work.aborted)), work.settings
    decode: Callable[..., KeyColumns] = decode_records if work.by_time else decode_record_keys
    offsets, limit = (source.base_offset, source.end_offset), how.batch_limit
    with opened(source) as reader:
        read = windows(reader, start=source.start, size=source.size, window_size=how.window_size)
        for some in decoded(source.path, read, offsets, decode, limit=limit):
            columns = some.columns
            wanted = _wanted(work, scan, some, source.path, found)
            keyed, keyless = columns.key_size >= 0, columns.key_size < 0
            if wanted is not None:
                keyed, keyless = keyed & wanted, keyless & wanted
            found.keyed += int(np.count_nonzero(keyed))
            found.keyless += int(np.count_nonzero(keyless))
            yield from collector.add(columns, keyed)
            if work.retain_null_key and keyless.any():
                yield columns.offset[keyless]
    scan.refuse_unmarked(max(work.first, source.base_offset), min(work.end, source.end_offset), source.path)
    summary = scan.summary(source.base_offset)
    if len(summary):
        found.summaries.append(summary)


def _wanted(
    work: CompactionWork, scan: TransactionScan, some: Decoded[KeyColumns], path: str, found: Extracted
) -> Flags | None:
    """Which records take part (bool, one a record), None for all: those in the range, but for control records
    and those of aborted transactions. Counts them all."""
    window, batches, columns = some
    inside = None
    low, high = int(batches["base_offset"][0]), int(batches["last_offset"][-1])
    if len(columns):
        low = min(low, int(columns.offset[0]))  # a compressed message set's is its last message's
    if low < work.first or high >= work.end:
        inside = (columns.offset >= work.first) & (columns.offset < work.end)
    reached = (batches["last_offset"] >= work.first) & (batches["base_offset"] < work.end)
    found.size += int(batches["size"][reached].sum())
    followed = scan.follow(window.data, batches, path=path, origin=window.origin)
    if followed is None:
        found.records += len(columns) if inside is None else int(np.count_nonzero(inside))
        return inside
    control = ((batches["attributes"] & CONTROL_BIT) != 0) & (batches["magic"] == 2)
    data = ~control[columns.batch] if inside is None else inside & ~control[columns.batch]
    aborted = followed[0][columns.batch]
    found.records += int(np.count_nonzero(data))
    found.aborted += int(np.count_nonzero(data & aborted))
    return np.asarray(data & ~aborted)


def merge_bucket(
    work: CompactionWork, blobs: Sequence[EntryBlob], bucket: int, buckets: int, attempt: str
) -> tuple[Compacted, Int64]:
    """Merge one bucket's entries and let the older runs' meet them: counts and the new key index's
    part, and the offsets that are written (int64, in any order). In whatever order the blobs come, it is the
    same. Writes the part by way of a file of this ``attempt``. Never raises: the report says it.
    """
    partitions = PARTITIONS // buckets
    first = bucket * partitions
    done = Compacted(arrived=sum(len(blob.entries) for blob in blobs))
    try:
        entries, bounds = best_of_each_key(blobs, work.words, first, partitions)
        late: Flags = np.zeros(len(entries), np.bool_)
        for run, path in work.key_indexes.items() if len(entries) else ():
            older = read_keys(path, work.hash_key, work.words, first, first + partitions)
            done.superseded[run] = [
                meet_older(entries, bounds, some, edges, start - first, late) for start, some, edges in older
            ]
        deleted = deleted_of(entries) & ~late
        stays = ~deleted & ~late
        done.deleted, done.late = int(np.count_nonzero(deleted)), int(np.count_nonzero(late))
        # By time, deleted keys stay in the index, so that an older event that comes late stays deleted.
        indexed = ~late if work.by_time else stays
        counts: Int64 = np.concatenate((np.zeros(1, np.int64), np.cumsum(indexed, dtype=np.int64)))
        own = entries if indexed.all() else entries[indexed]
        done.keys = [write_part(Path(work.settings.staging), own, counts[bounds], first, attempt)]
        return done, offsets_of(entries[stays])
    except Exception as error:
        done.failure = failure_of(error)
        return done, NO_OFFSETS


def by_group(groups: Sequence[Group], offsets: Int64) -> Iterator[tuple[int, Int64]]:
    """Offsets, in any order, as (group's index, those in it, ascending); a group without any is left out."""
    offsets = np.sort(offsets)
    ends = np.searchsorted(offsets, np.array([group.end_offset for group in groups], np.int64))
    for group, start, end in zip(groups, [0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        if end > start:
            yield group.index, offsets[start:end]


# The tail of a log as files that nobody can take away while it is compacted.
#
# Cleaning, retention and truncation rename and remove segments, so a compaction first links those that it
# needs into its own folder. The active segment may be among them; it is read up to where it ended when the
# compaction began. Where a file system has no hard links, the segments are read by their own names, and the
# compaction fails when one of them is renamed or removed.

_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES)
_TRIES = 20
LEAST_GROUP_BYTES, MOST_GROUP_BYTES = 32 << 20, 1 << 30


def end_of(view: LogView) -> int:
    """Up to where a log may be compacted: what is replicated, and no transaction is open in.

    Not below the log's start: of a transaction that began before it that much was given up.
    """
    return max(min(view.high_watermark, view.last_stable_offset), view.log_start_offset)


def hold_tail(log: HasView, work: CompactionWork, horizon: int, workers: int) -> CompactionWork:
    """The work with links to the segments that hold what is at or above ``horizon`` as its sources, in groups
    for so many ``workers``.

    Raises SourceChangedError when segments went again and again while they were being linked, OSError.
    """
    for attempt in range(_TRIES):
        view = log.view
        first = max(view.log_start_offset, horizon)
        end = max(end_of(view), first)
        folder = Path(work.settings.staging) / f"sources-{attempt}"
        files.make_directory(folder)
        try:
            sources = _link_all(view, first, end, folder)
            aborted = _aborted(view, first)
        except FileNotFoundError:
            continue
        groups = groups_of(sources, end, workers)
        return replace(work, sources=sources, groups=groups, first=first, end=end, aborted=aborted)
    raise SourceChangedError(f"{work.name}: segments were replaced while they were being held; run again")


def _link_all(view: LogView, first: int, end: int, folder: Path) -> tuple[Source, ...]:
    """Raises FileNotFoundError when a name was another file's by the time that it was linked, OSError."""
    bases = [segment.base_offset for segment in view.segments]
    found = []
    for number in range(max(bisect.bisect_right(bases, first) - 1, 0), len(bases)):
        if bases[number] >= end:
            break
        segment, size = view.segments[number], view.size_of(number)
        place = segment.place_of(first, size)
        if place is None:
            continue
        until = segment.place_of(end, size)
        found.append(
            Source(
                path=str(_link(segment, folder)),
                base_offset=bases[number],
                end_offset=bases[number + 1] if number + 1 < len(bases) else view.log_end_offset,
                start=place.position,
                size=size if until is None else until.position + until.size,
                inode=segment.reader.stat.inode,
            )
        )
    return tuple(found)


def _link(segment: LiveSegment, folder: Path) -> Path:
    """A name of ours for the segment's file. Raises FileNotFoundError when its own name is another file's by
    now, OSError."""
    wanted = segment.reader.stat.inode
    path = folder / segment_file(segment.base_offset, "log")
    try:
        files.link(segment.path(), path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        path = segment.path()
    if files.stat(path).inode != wanted:
        raise FileNotFoundError(errno.ENOENT, "was replaced meanwhile", str(path))
    return path


def _aborted(view: LogView, first: int) -> bytes:
    """The aborted transactions that ended at or above ``first``, in the form of ``.txnindex`` files."""
    rows = [(0, *row) for segment in view.segments for row in segment.aborted() if row[2] >= first]
    return np.array(rows, TRANSACTION_ENTRY).tobytes()


def groups_of(sources: Sequence[Source], end: int, workers: int) -> tuple[Group, ...]:
    """Runs of neighbouring sources of about the same size, a few for each worker; ``end`` is the last's."""
    total = sum(source.length for source in sources)
    target = min(max(total // (4 * workers), LEAST_GROUP_BYTES), MOST_GROUP_BYTES)
    firsts, size = [0] if sources else [], 0
    for number, source in enumerate(sources):
        if size and size + source.length // 2 > target:
            firsts.append(number)
            size = 0
        size += source.length
    bounds = itertools.pairwise([*firsts, len(sources)])
    return tuple(
        Group(
            index=index,
            first=first,
            last=last,
            base_offset=sources[first].base_offset,
            end_offset=sources[last].base_offset if last < len(sources) else end,
        )
        for index, (first, last) in enumerate(bounds)
    )
