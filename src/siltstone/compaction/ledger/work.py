"""Phase one of a side-by-side compaction, as steps that an engine spreads: plain data in, plain data out.

::

    link_sources   a log        → its uncompacted segments as sources, linked so that they stay readable
    extract        sources      → key entries by bucket, offsets of retained keyless records, counts
    merge_bucket   one bucket   → retained offsets, part of the new key index, what older runs lose

Pulsar's ``AbstractTwoPhaseCompactor.phaseOne`` reads the topic from the compaction horizon on and notes the
latest message id of each key; its ``phaseTwo`` (``staging``) reads again and writes these messages to a new
ledger. Pulsar reads the old ledger's messages again, too; here they stay in their runs, and the lookup says
which of them are superseded. A step does not raise for damage in a log or a file: it reports a
``LogFailure``.
"""

from __future__ import annotations

import bisect
import errno
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
    look_up_older,
    read_keys,
    write_part,
)
from siltstone.compaction.report import LogFailure, Summable, failure_of
from siltstone.compaction.work import (
    DecodedSlice,
    Extracted,
    Group,
    decode_slices,
    groups_from,
    parse_aborted,
)
from siltstone.log.fetch import LogView
from siltstone.log.indexes import TRANSACTION_ENTRY
from siltstone.log.ledger.manifest import SegmentEntry
from siltstone.log.names import segment_file
from siltstone.log.reading import HasView
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import windows
from siltstone.log.transactions import TransactionScan

MERGE_BYTES = 80
"""Bytes of memory that a merge needs for an entry, at most."""
MAX_RUNS = 8
"""Each run costs a compaction one more key index to read, and a reader one more directory."""
NO_OFFSETS: Int64 = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Sizes of what is written and of what tasks take, in bytes; ``max_runs`` of a ledger.

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
    max_runs: int = MAX_RUNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file of batches, read from byte ``start`` up to ``size``; it holds offsets in [base, end).

    It must be the file with this inode, and may have grown since. (Not with this device: each client of a
    network file system numbers devices for itself.) ``run``: the run that it is of, None for a segment of the
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
        """Bytes to read."""
        return self.size - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionWork:
    """The work that tasks share: a log's records at offsets [first, end), to be compacted, or runs to merge.

    ``aborted``: the entries of the log's ``.txnindex`` files, those above ``end`` too. ``by_time``: the
    largest timestamp wins. ``key_indexes``: run id → path, of the older runs or of those that are merged.
    ``superseded``: run id → offsets (int64, ascending) to leave out of a merge of runs.
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
        """uint64 words of an entry."""
        return TIMED_WORDS if self.by_time else PLAIN_WORDS

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(source.length for source in self.sources)


@dataclass(slots=True, kw_only=True)
class Compacted(Summable):
    """The report of one step of the work, or of several: reports add up.

    ``arrived``: entries that were merged. Numbers of keys: ``deleted``, and ``late`` ones, whose newest event
    among the new records is older than one of an older run (by time only). ``retained``: group → records to
    be written, keyless ones too; ``written``: group → records written. ``superseded``: older run's id →
    offsets (int64) that it loses. ``keys``: parts of the new key index. ``segments``: path without ``.log`` →
    new segment.
    """

    extracted: Extracted = field(default_factory=Extracted)
    arrived: int = 0
    deleted: int = 0
    late: int = 0
    retained: dict[int, int] = field(default_factory=dict)
    superseded: dict[int, list[Int64]] = field(default_factory=dict, repr=False)
    keys: list[KeysPart] = field(default_factory=list)
    written: dict[int, int] = field(default_factory=dict)
    segments: dict[str, SegmentEntry] = field(default_factory=dict)
    failure: LogFailure | None = None

    def first_failure(self) -> LogFailure | None:
        """The first failure of any step."""
        return self.extracted.failure or self.failure


def bucket_count(work: CompactionWork, at_least: int = 1) -> int:
    """How many buckets, a power of two: the merge of one stays within a task's memory for keys."""
    wanted = max(at_least, -(-(work.end - work.first) * MERGE_BYTES // work.settings.memory_bytes))
    return min(PARTITIONS, 1 << (wanted - 1).bit_length())


def open_source(source: Source) -> files.Reader:
    """Open a source. Raises SourceChangedError where its path is another file's by now, OSError."""
    reader = files.Reader(source.path)
    stat = reader.stat
    if stat.inode != source.inode or stat.size < source.size:
        with reader:
            reason = "the file was replaced or truncated since the compaction began"
            raise SourceChangedError(reason, path=source.path, advice="run again")
    return reader


def extract(
    work: CompactionWork, numbers: Sequence[int], buckets: int, extracted: Extracted
) -> Iterator[EntryBlob | Int64]:
    """Read sources (``numbers`` into ``work.sources``, ascending): yields blobs of key entries, and arrays of
    the offsets (int64) of keyless records that are retained.

    Adds counts to ``extracted``; when that has a failure in the end, the caller must not use the blobs.
    """
    # Entries that fit the task's memory; sources have no more records than offsets.
    offsets = sum(work.sources[number].end_offset - work.sources[number].base_offset for number in numbers)
    capacity = max(1024, min(work.settings.memory_bytes // (8 * work.words), offsets))
    key, by_time = work.hash_key, work.by_time
    collector = EntryCollector(hash_key=key, by_time=by_time, buckets=buckets, capacity=capacity)
    try:
        for number in numbers:
            yield from _extract_source(work, work.sources[number], collector, extracted)
        yield from collector.finish()
        extracted.entries += collector.emitted
    except Exception as error:
        extracted.failure = failure_of(error)


def _extract_source(
    work: CompactionWork, source: Source, collector: EntryCollector, extracted: Extracted
) -> Iterator[EntryBlob | Int64]:
    scan, settings = TransactionScan(parse_aborted(work.aborted)), work.settings
    decode: Callable[..., KeyColumns] = decode_records if work.by_time else decode_record_keys
    offsets, limit = (source.base_offset, source.end_offset), settings.batch_limit
    with open_source(source) as reader:
        read = windows(reader, start=source.start, end=source.size, window_size=settings.window_size)
        for some in decode_slices(source.path, read, offsets, decode, limit=limit):
            columns = some.columns
            selected = _selected(work, scan, some, source.path, extracted)
            keyed, keyless = columns.key_size >= 0, columns.key_size < 0
            if selected is not None:
                keyed, keyless = keyed & selected, keyless & selected
            extracted.keyed += int(np.count_nonzero(keyed))
            extracted.keyless += int(np.count_nonzero(keyless))
            yield from collector.add(columns, keyed)
            if work.retain_null_key and keyless.any():
                yield columns.offset[keyless]
    scan.refuse_unmarked(max(work.first, source.base_offset), min(work.end, source.end_offset), source.path)
    summary = scan.summary(source.base_offset)
    if len(summary):
        extracted.summaries.append(summary)


def _selected(
    work: CompactionWork,
    scan: TransactionScan,
    some: DecodedSlice[KeyColumns],
    path: str,
    extracted: Extracted,
) -> Flags | None:
    """Which records take part: bool, one a record, or None for all. Not those outside [first, end), control
    records, and records of aborted transactions. Adds the counts to ``extracted``."""
    window, batches, columns = some
    inside = None
    low, high = int(batches["base_offset"][0]), int(batches["last_offset"][-1])
    if len(columns):
        low = min(low, int(columns.offset[0]))  # a compressed message set is stored under its last offset
    if low < work.first or high >= work.end:
        inside = (columns.offset >= work.first) & (columns.offset < work.end)
    reached = (batches["last_offset"] >= work.first) & (batches["base_offset"] < work.end)
    extracted.size += int(batches["size"][reached].sum())
    followed = scan.follow(window.data, batches, path=path, origin=window.origin)
    if followed is None:
        extracted.records += len(columns) if inside is None else int(np.count_nonzero(inside))
        return inside
    control = ((batches["attributes"] & CONTROL_BIT) != 0) & (batches["magic"] == 2)
    data = ~control[columns.batch] if inside is None else inside & ~control[columns.batch]
    aborted = followed[0][columns.batch]
    extracted.records += int(np.count_nonzero(data))
    extracted.aborted += int(np.count_nonzero(data & aborted))
    return np.asarray(data & ~aborted)


def merge_bucket(
    work: CompactionWork, blobs: Sequence[EntryBlob], bucket: int, buckets: int, attempt: str
) -> tuple[Compacted, Int64]:
    """Merge one bucket's entries and look up the older runs' entries in them: (report, retained offsets).

    The report has counts, the bucket's part of the new key index, and what older runs lose. The offsets are
    int64, in any order. The result does not depend on the order of the blobs, nor on the ``attempt``, which
    only names a file. Does not raise: a failure is in the report.
    """
    partitions = PARTITIONS // buckets
    first = bucket * partitions
    done = Compacted(arrived=sum(len(blob.entries) for blob in blobs))
    try:
        # 1. The winning entry of each key among the new records: the last one, or the latest by time.
        entries, bounds = best_of_each_key(blobs, work.words, first, partitions)
        # 2. Older runs' records of these keys are superseded. By time a run may have a later event: then the
        #    new entry is late.
        late: Flags = np.zeros(len(entries), np.bool_)
        for run, path in work.key_indexes.items() if len(entries) else ():
            older = read_keys(path, work.hash_key, work.words, first, first + partitions)
            done.superseded[run] = [
                look_up_older(entries, bounds, some, edges, start - first, late)
                for start, some, edges in older
            ]
        # 3. A late key changes nothing: the older run keeps its record, or its deletion. A deleted key has no
        #    record to write.
        deleted = deleted_of(entries) & ~late
        stays = ~deleted & ~late
        done.deleted, done.late = int(np.count_nonzero(deleted)), int(np.count_nonzero(late))
        # 4. The new run's key index. By offset, no later compaction meets an older event than those that were
        #    compacted, so a deleted key needs no entry. By time it may, so the deletion stays in the index.
        indexed = ~late if work.by_time else stays
        counts: Int64 = np.concatenate((np.zeros(1, np.int64), np.cumsum(indexed, dtype=np.int64)))
        own = entries if indexed.all() else entries[indexed]
        done.keys = [write_part(Path(work.settings.staging), own, counts[bounds], first, attempt)]
        return done, offsets_of(entries[stays])
    except Exception as error:
        done.failure = failure_of(error)
        return done, NO_OFFSETS


def by_group(groups: Sequence[Group], offsets: Int64) -> Iterator[tuple[int, Int64]]:
    """Offsets, in any order, by group: yields (group index, its offsets, ascending)."""
    offsets = np.sort(offsets)
    ends = np.searchsorted(offsets, np.array([group.end_offset for group in groups], np.int64))
    for group, start, end in zip(groups, [0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        if end > start:
            yield group.index, offsets[start:end]


# The uncompacted segments of a log as files that stay readable while it is compacted.
#
# Cleaning, retention and truncation rename and remove segments, so a compaction first links those that it
# needs into its own folder. The active segment may be among them; it is read up to where it ended when the
# compaction began. Where a file system has no hard links, the segments are read by their own names, and the
# compaction fails when one of them is renamed or removed.

_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES)
_TRIES = 20
MIN_GROUP_BYTES, MAX_GROUP_BYTES = 32 << 20, 1 << 30


def end_of(view: LogView) -> int:
    """The first offset that must not be compacted: the high watermark, or the first open transaction's.

    At least the log start offset: retention may have deleted the beginning of an open transaction.
    """
    return max(min(view.high_watermark, view.last_stable_offset), view.log_start_offset)


def link_sources(log: HasView, work: CompactionWork, horizon: int, workers: int) -> CompactionWork:
    """Link the segments that hold offsets at or above ``horizon`` into the staging folder. Returns the work
    with them as its sources, in groups for so many ``workers``.

    Raises SourceChangedError when segments were replaced again and again meanwhile, OSError.
    """
    for attempt in range(_TRIES):
        view = log.view
        first = max(view.log_start_offset, horizon)
        end = max(end_of(view), first)
        folder = Path(work.settings.staging) / f"sources-{attempt}"
        files.make_directory(folder)
        try:
            sources = _link_all(view, first, end, folder)
            rows = [(0, *row) for segment in view.segments for row in segment.aborted() if row[2] >= first]
        except FileNotFoundError:
            continue
        groups = groups_of(sources, end, workers)
        aborted = np.array(rows, TRANSACTION_ENTRY).tobytes()
        return replace(work, sources=sources, groups=groups, first=first, end=end, aborted=aborted)
    reason = f"segments were replaced while they were linked, {_TRIES} times"
    raise SourceChangedError(reason, path=work.name, advice="run again")


def _link_all(view: LogView, first: int, end: int, folder: Path) -> tuple[Source, ...]:
    """Raises FileNotFoundError when a segment was replaced before it was linked, OSError."""
    bases = [segment.base_offset for segment in view.segments]
    ends = [*bases[1:], view.log_end_offset]
    sources = []
    for number in range(max(bisect.bisect_right(bases, first) - 1, 0), bisect.bisect_left(bases, end)):
        # The bytes from the batch that holds ``first`` to the one that holds ``end``.
        segment, size = view.segments[number], view.size_of(number)
        first_batch, last_batch = segment.find_batch(first, size), segment.find_batch(end, size)
        if first_batch is None:
            continue
        sources.append(
            Source(
                path=str(_link(segment, folder)),
                base_offset=bases[number],
                end_offset=ends[number],
                start=first_batch.position,
                size=size if last_batch is None else last_batch.position + last_batch.size,
                inode=segment.reader.stat.inode,
            )
        )
    return tuple(sources)


def _link(segment: LiveSegment, folder: Path) -> Path:
    """A path that leads to the segment's file: a new link, or its own path where links are not possible.

    Raises FileNotFoundError when the path leads to another file by now, OSError.
    """
    path = folder / segment_file(segment.base_offset, "log")
    try:
        files.link(segment.path(), path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        path = segment.path()
    # A swap may have renamed another file to this path since the view was taken.
    if files.stat(path).inode != segment.reader.stat.inode:
        raise FileNotFoundError(errno.ENOENT, "was replaced meanwhile", str(path))
    return path


def groups_of(sources: Sequence[Source], end: int, workers: int) -> tuple[Group, ...]:
    """Groups of neighbouring sources of about the same size, a few for each worker; ``end`` is the last's."""
    total = sum(source.length for source in sources)
    target = min(max(total // (4 * workers), MIN_GROUP_BYTES), MAX_GROUP_BYTES)
    firsts, size = [0] if sources else [], 0
    for number, source in enumerate(sources):
        if size and size + source.length // 2 > target:
            firsts.append(number)
            size = 0
        size += source.length
    bases = [*(source.base_offset for source in sources), end]
    return groups_from(firsts, bases)
