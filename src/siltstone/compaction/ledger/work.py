"""The pieces of phase one that an engine spreads: plain data in, plain data out.

::

    extract        sources        → entries by bucket, keyless records that stay, and what was seen
    merge_bucket   one bucket     → retained offsets, the new key index's part, what older generations lose

A piece never raises for what is wrong with a log or a file: it reports ``LogFailure``.
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
from siltstone.base.errors import CorruptFileError, SourceChangedError
from siltstone.base.records.codecs import DEFAULT_LIMIT
from siltstone.base.records.columns import KeyColumns
from siltstone.base.records.decode import decode_record_keys, decode_records
from siltstone.base.records.layout import CONTROL_BIT, Flags, Int64, Words
from siltstone.compaction.keys import PLAIN_WORDS, TIMED_WORDS, EntryBlob, deleted_of, offsets_of
from siltstone.compaction.ledger.key_index import KeyIndex, KeysPart, write_part
from siltstone.compaction.ledger.keys import PARTITIONS, EntryCollector, NewEntries, best_of_each_key
from siltstone.compaction.work import Decoded, Extracted, Group, LogFailure, aborted_of, decoded, failure_of
from siltstone.log.fetch import LogView
from siltstone.log.indexes import TRANSACTION_ENTRY
from siltstone.log.names import segment_file
from siltstone.log.reading import HasView
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import Window, windows
from siltstone.log.transactions import TransactionScan

MERGE_BYTES = 80
"""What a merge takes for an entry at its peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file of batches, read from byte ``start`` up to ``size``; it holds offsets in [base, end).

    It must be the file with this inode, and may have grown since. (Not with this device: each client of a
    network file system numbers devices for itself.) ``generation``: whose it is, None for a segment of the
    log.
    """

    path: str
    base_offset: int
    end_offset: int
    start: int
    size: int
    inode: int
    generation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OldKeys:
    """An older generation's key index."""

    generation: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSettings:
    """How new files are written: ``staging`` is the run's folder, sizes are in bytes.

    ``segment_bytes``: a segment that has so much ends. ``memory_bytes``: what a task may take for keys.
    ``batch_limit``: what one batch may decompress to (``max.decompressed.message.bytes``).
    """

    staging: str
    segment_bytes: int
    index_interval: int
    index_bytes: int
    window_size: int
    memory_bytes: int
    batch_limit: int = DEFAULT_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionWork:
    """The tail of one log, offsets [first, end): what a task has to know of it.

    ``aborted``: the entries of the log's ``.txnindex`` files, those above ``end`` too. ``by_time``: the
    largest timestamp wins. ``older``: the generations that there are.
    """

    name: str
    sources: tuple[Source, ...]
    groups: tuple[Group, ...]
    first: int
    end: int
    aborted: bytes
    hash_key: tuple[int, int]
    by_time: bool
    retain_null_key: bool
    older: tuple[OldKeys, ...]
    output: OutputSettings

    @property
    def words(self) -> int:
        """Words of an entry."""
        return TIMED_WORDS if self.by_time else PLAIN_WORDS


@dataclass(slots=True, kw_only=True)
class Merged:
    """What became of a bucket: counts of keys, ``arrived`` entries, and the new key index's part.

    ``retained``: offsets that are written (int64, ascending). ``deleted``: keys that are deleted.
    ``beaten``: keys for which an older event came late. ``hidden``: generation → offsets that it loses
    (int64, ascending).
    """

    bucket: int
    arrived: int = 0
    deleted: int = 0
    beaten: int = 0
    keys: KeysPart | None = None
    failure: LogFailure | None = None
    retained: Int64 = field(default_factory=lambda: np.empty(0, np.int64), repr=False)
    hidden: dict[int, Int64] = field(default_factory=dict, repr=False)


def bucket_count(work: CompactionWork, at_least: int = 1) -> int:
    """Buckets, a power of two, so that the merge of one stays within a task's memory for keys."""
    wanted = max(at_least, -(-(work.end - work.first) * MERGE_BYTES // work.output.memory_bytes))
    return min(PARTITIONS, 1 << (wanted - 1).bit_length())


def entry_capacity(work: CompactionWork, numbers: Sequence[int]) -> int:
    """Entries that an extracting task may keep: what fits its memory, no more than its sources can have."""
    offsets = sum(work.sources[number].end_offset - work.sources[number].base_offset for number in numbers)
    return max(1024, min(work.output.memory_bytes // (8 * work.words), offsets))


def fits_one_task(work: CompactionWork, byte_limit: int) -> bool:
    """Is the tail small enough for one task, by its bytes and by the memory for its keys?"""
    return (
        sum(source.size - source.start for source in work.sources) <= byte_limit and bucket_count(work) == 1
    )


def opened(source: Source) -> files.Reader:
    """Open a source, sure that it is the file that was planned with. Raises SourceChangedError, OSError."""
    reader = files.Reader(source.path)
    found = reader.stat
    if found.inode != source.inode or found.size < source.size:
        with reader:
            raise SourceChangedError(f"{source.path}: changed since it was planned with; run again")
    return reader


def source_windows(
    reader: files.Reader, source: Source, window_size: int, *, verify: bool = True
) -> Iterator[Window]:
    """A source's batches, window by window, as ``windows`` gives them."""
    return windows(reader, start=source.start, size=source.size, window_size=window_size, verify=verify)


def extract(
    work: CompactionWork, numbers: Sequence[int], buckets: int, found: Extracted
) -> Iterator[EntryBlob | Int64]:
    """The keys of some sources (numbers into ``work.sources``, ascending) as blobs of entries; the offsets of
    keyless records that stay as arrays.

    ``found`` is filled on the way; when it has a failure in the end, the blobs are not to be used.
    """
    collector = EntryCollector(
        hash_key=work.hash_key,
        by_time=work.by_time,
        buckets=buckets,
        capacity=entry_capacity(work, numbers),
    )
    try:
        for number in numbers:
            yield from _extract_source(work, number, collector, found)
        yield from collector.finish()
        found.entries = collector.handed_on
    except Exception as error:
        found.failure = failure_of(error)


def _extract_source(
    work: CompactionWork, number: int, collector: EntryCollector, found: Extracted
) -> Iterator[EntryBlob | Int64]:
    source, scan = work.sources[number], TransactionScan(aborted_of(work.aborted))
    decode: Callable[..., KeyColumns] = decode_records if work.by_time else decode_record_keys
    offsets, limit = (source.base_offset, source.end_offset), work.output.batch_limit
    with opened(source) as reader:
        windows = source_windows(reader, source, work.output.window_size)
        for each in decoded(source.path, windows, offsets, decode, limit=limit):
            wanted = _wanted(work, scan, each, source.path, found)
            yield from _collect(work, each.columns, wanted, collector, found)
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


def _collect(
    work: CompactionWork,
    columns: KeyColumns,
    wanted: Flags | None,
    collector: EntryCollector,
    found: Extracted,
) -> Iterator[EntryBlob | Int64]:
    has_key = columns.key_size >= 0
    keyed = has_key if wanted is None else has_key & wanted
    keyless = ~has_key if wanted is None else wanted & ~has_key
    count = int(np.count_nonzero(keyless))
    found.keyed += int(np.count_nonzero(keyed))
    found.keyless += count
    yield from collector.add(columns, keyed)
    if count and work.retain_null_key:
        yield columns.offset[keyless]


def merge_bucket(
    work: CompactionWork, blobs: Sequence[EntryBlob], bucket: int, buckets: int, attempt: str
) -> Merged:
    """Merge one bucket's entries and let the older generations' meet them; all the same in whatever order the
    blobs come.

    Writes the new key index's part by way of a file of this ``attempt``. Never raises: the report says it.
    """
    merged = Merged(bucket=bucket)
    try:
        merged.arrived = sum(len(blob.entries) for blob in blobs)
        _merge(work, blobs, buckets, attempt, merged)
    except Exception as error:
        merged.failure = failure_of(error)
    return merged


def _merge(
    work: CompactionWork, blobs: Sequence[EntryBlob], buckets: int, attempt: str, merged: Merged
) -> None:
    each = PARTITIONS // buckets
    first = merged.bucket * each
    entries, bounds = best_of_each_key(blobs, work.words, first, each)
    beaten: Flags = np.zeros(len(entries), np.bool_)
    if len(entries) and work.older:
        new = NewEntries(entries, bounds)
        for old in work.older:
            hidden = _meet(work, new, old, first, each)
            if len(hidden):
                merged.hidden[old.generation] = hidden
        beaten = new.beaten
    stays = ~deleted_of(entries) & ~beaten
    merged.deleted = int(np.count_nonzero(~stays & ~beaten))
    merged.beaten = int(np.count_nonzero(beaten))
    merged.retained = np.sort(offsets_of(entries[stays]))
    merged.keys = keep_part(work.output, entries, bounds, ~beaten if work.by_time else stays, first, attempt)


def _meet(work: CompactionWork, new: NewEntries, old: OldKeys, first: int, each: int) -> Int64:
    """What an older generation loses to this bucket: offsets, ascending."""
    lost = []
    with KeyIndex(old.path, work.hash_key) as index:
        if index.words != work.words:
            raise CorruptFileError(index.path, 12, "keys of another order than its ledger's")
        for start, entries, bounds in index.ranges(first, first + each):
            lost.append(new.meet(entries, bounds, start - first))
    return np.sort(np.concatenate([np.empty(0, np.int64), *lost]))


def keep_part(
    output: OutputSettings, entries: Words, bounds: Int64, kept: Flags, first: int, attempt: str
) -> KeysPart:
    """Write those entries of a run of partitions that are ``kept`` as a part of a key index.

    All attempts write the same, so the last one to be done takes the place of the others: what a task says
    does not depend on its attempt, or Spark would not take it from another one.
    """
    counts: Int64 = np.concatenate((np.zeros(1, np.int64), np.cumsum(kept, dtype=np.int64)))
    own = Path(output.staging) / f"{first:04d}.{attempt}.keys"
    part = write_part(own, entries if kept.all() else entries[kept], counts[bounds], first)
    if not part.path:
        return part
    path = own.with_name(f"{first:04d}.keys")
    files.rename(own, path)
    return replace(part, path=str(path))


def by_group(groups: Sequence[Group], offsets: Int64) -> Iterator[tuple[int, Int64]]:
    """Ascending offsets as (group's index, those in it); a group without any is left out."""
    ends = np.searchsorted(offsets, np.array([group.end_offset for group in groups], np.int64))
    start = 0
    for group, end in zip(groups, ends.tolist(), strict=True):
        if end > start:
            yield group.index, offsets[start:end]
        start = end


# The tail of a log as files that nobody can take away while it is compacted.
#
# Cleaning, retention and truncation rename and remove segments, so a run begins with names of its own for
# those that it needs: hard links in its folder. The segment that is appended to may be among them; it is read
# up to where it was when the run began. Where a file system has no links the segments' own names do, and a
# run fails when one of them goes.

_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES)
_TRIES = 20
LEAST_GROUP_BYTES, MOST_GROUP_BYTES = 32 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What is to be compacted: offsets [first, end) in ``sources``; ``aborted``: entries of ``.txnindex``."""

    first: int
    end: int
    sources: tuple[Source, ...]
    aborted: bytes


def end_of(view: LogView) -> int:
    """Up to where a log may be compacted: what is replicated, and no transaction is open in.

    Not below the log's start: of a transaction that began before it that much was given up.
    """
    return max(min(view.high_watermark, view.last_stable_offset), view.log_start_offset)


def hold_tail(log: HasView, horizon: int | None, folder: Path) -> Tail:
    """Links to the segments that hold what is at or above ``horizon`` (None: the log's start).

    Raises SourceChangedError when segments went again and again while they were being linked, OSError.
    """
    for attempt in range(_TRIES):
        view = log.view
        first = max(view.log_start_offset, horizon or 0)
        end = max(end_of(view), first)
        place = folder / f"sources-{attempt}"
        files.make_directory(place)
        try:
            sources = _link_all(view, first, end, place)
            aborted = _aborted(view, first)
        except FileNotFoundError:
            continue
        if sources is not None:
            return Tail(first=first, end=end, sources=sources, aborted=aborted)
    raise SourceChangedError(f"{folder}: segments were replaced while they were being held; run again")


def _link_all(view: LogView, first: int, end: int, folder: Path) -> tuple[Source, ...] | None:
    """None when a name was another file's by the time that it was linked."""
    bases = [segment.base_offset for segment in view.segments]
    found = []
    for number in range(max(bisect.bisect_right(bases, first) - 1, 0), len(bases)):
        if bases[number] >= end:
            break
        segment, size = view.segments[number], view.size_of(number)
        place = segment.place_of(first, size) if size else None
        if place is None:
            continue
        until = segment.place_of(end, size)
        path = _link(segment, folder)
        if path is None:
            return None
        found.append(
            Source(
                path=str(path),
                base_offset=bases[number],
                end_offset=bases[number + 1] if number + 1 < len(bases) else view.log_end_offset,
                start=place.position,
                size=size if until is None else until.position + until.size,
                inode=segment.reader.stat.inode,
            )
        )
    return tuple(found)


def _link(segment: LiveSegment, folder: Path) -> Path | None:
    """A name of ours for the segment's file; None when its own name is another file's by now."""
    wanted = segment.reader.stat.inode
    path = folder / segment_file(segment.base_offset, "log")
    try:
        files.link(segment.path(), path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        path = segment.path()
    return path if files.stat(path).inode == wanted else None


def _aborted(view: LogView, first: int) -> bytes:
    """The aborted transactions that ended at or above ``first``, in the form of ``.txnindex`` files."""
    rows = [(0, *row) for segment in view.segments for row in segment.aborted() if row[2] >= first]
    return np.array(rows, TRANSACTION_ENTRY).tobytes()


def groups_of(sources: Sequence[Source], end: int, workers: int) -> tuple[Group, ...]:
    """Runs of neighbouring sources of about the same size, a few for each worker; ``end`` is the last's."""
    total = sum(source.size - source.start for source in sources)
    target = min(max(total // (4 * workers), LEAST_GROUP_BYTES), MOST_GROUP_BYTES)
    firsts, size = [0] if sources else [], 0
    for number, source in enumerate(sources):
        if size and size + (source.size - source.start) // 2 > target:
            firsts.append(number)
            size = 0
        size += source.size - source.start
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
