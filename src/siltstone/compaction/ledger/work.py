"""Phase one of a side-by-side compaction: the steps that an engine distributes over tasks.

::

    link_sources   a log        → sources: hard links to its segments above the compaction horizon
    extract        sources      → key entries by bucket, offsets of retained keyless records, counts
    merge_bucket   one bucket   → retained offsets, part of the new key index, superseded records of runs

Pulsar's ``AbstractTwoPhaseCompactor.phaseOne`` reads the topic from the compaction horizon on and notes the
latest message id of each key. Its ``phaseTwo`` (here in ``staging``) reads the topic again and writes these
messages to a new ledger. Pulsar also reads all messages of the old ledger again. Here they stay in their runs
(immutable parts of a ledger, as in an LSM tree), and a lookup by key tells which of them are superseded. A
step does not raise for damage in a log or a file: it reports a ``LogFailure``.
"""

from __future__ import annotations

import bisect
import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from siltstone.base import files
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import SourceChangedError
from siltstone.base.records.codecs import DEFAULT_DECOMPRESSION_LIMIT
from siltstone.base.records.columns import KeyColumns
from siltstone.base.records.decode import decode_record_keys, decode_records
from siltstone.base.records.layout import CONTROL_BIT, Flags, Int64, keyed_records_max
from siltstone.compaction.keys import PLAIN_WORDS, TIMED_WORDS, EntryBlob, deleted_of, offsets_of
from siltstone.compaction.ledger.keys import (
    KEY_INDEX_PARTITIONS,
    EntryCollector,
    KeyIndexPart,
    latest_entry_of_each_key,
    look_up_older_entries,
    read_key_index,
    write_key_index_part,
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
from siltstone.log.indexes import encode_aborted
from siltstone.log.ledger.manifest import SegmentEntry
from siltstone.log.names import segment_file
from siltstone.log.reading import HasView
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import windows
from siltstone.log.transactions import TransactionScan

MERGE_BYTES_PER_ENTRY = 80
"""Bytes of memory that a merge needs for a key entry, at most."""
MAX_RUNS = 8
"""The most runs of a ledger: a compaction reads the key index of every run, a reader its segments."""
NO_OFFSETS: Int64 = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """Settings of a compaction; sizes in bytes.

    ``staging``: the folder that tasks write into. ``segment_bytes``: the largest size of a new segment.
    ``index_interval``: of the segment, between two entries of its index; ``index_bytes``: the largest index.
    ``window_size``: how much of a segment a task reads at a time. ``memory_bytes``: what a task may take for
    keys. ``batch_limit``: the most that one batch may decompress to; each compaction sets it to the log's
    ``max.decompressed.message.bytes``. ``max_runs``: how many runs a ledger may have.
    """

    staging: str = ""
    segment_bytes: int = 1 << 30
    index_interval: int = 4096
    index_bytes: int = 10 << 20
    window_size: int = 4 << 20
    memory_bytes: int = 256 << 20
    batch_limit: int = DEFAULT_DECOMPRESSION_LIMIT
    max_runs: int = MAX_RUNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file of batches with offsets in [``base_offset``, ``end_offset``), read from byte ``start`` up to
    byte ``size``.

    The file must still have this ``inode``, and may have grown since. (Its device is not compared: each
    client of a network file system numbers devices for itself.) ``run``: the id of the run that the file
    belongs to, None for a segment of the log.
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
    """The work that all tasks share: to compact a log's records at offsets [``first_offset``,
    ``end_offset``), or to merge runs.

    ``name``: the partition. ``hash_key``: the two words of the key with which record keys are hashed
    (SipHash). ``groups``: of neighbouring sources; each is written as new segments. ``by_time``: of the
    records of a key the one with the largest timestamp is retained, not the last one. ``retain_null_key``:
    records without a key are retained. ``txnindex_entries``: those of the log's ``.txnindex`` files, also
    above ``end_offset``, as bytes. ``key_indexes``: run id → path, for all older runs, or for the runs to
    merge. ``superseded``: run id → offsets (int64, ascending) that a merge of runs leaves out.
    """

    name: str
    hash_key: tuple[int, int]
    by_time: bool
    retain_null_key: bool
    settings: CompactionSettings
    key_indexes: dict[int, str]
    sources: tuple[Source, ...] = ()
    groups: tuple[Group, ...] = ()
    first_offset: int = 0
    end_offset: int = 0
    txnindex_entries: bytes = b""
    superseded: dict[int, Int64] = field(default_factory=dict)

    @property
    def words(self) -> int:
        """How many uint64 words a key entry has."""
        return TIMED_WORDS if self.by_time else PLAIN_WORDS

    @property
    def size(self) -> int:
        """Bytes to read of all sources."""
        return sum(source.length for source in self.sources)


@decoded_in_threads
@dataclass(slots=True, kw_only=True)
class CompactionReport(Summable):
    """The report of one step of the work, or of several: reports add up.

    ``merged_entries``: key entries that reached a merge. ``deleted_keys``: keys whose newest record
    deletes them (a null or an empty value), unless it is late. ``late_keys``: keys of which an older run has
    a record with a larger timestamp (by time only). ``retained``: group → records to write, keyless ones too;
    ``written``: group → records written. ``superseded``: id of an older run → offsets (int64) of its records
    that are superseded now. ``key_index_parts``: of the new run. ``segments``: path without ``.log`` → new
    segment.
    """

    extracted: Extracted = field(default_factory=Extracted)
    merged_entries: int = 0
    deleted_keys: int = 0
    late_keys: int = 0
    retained: dict[int, int] = field(default_factory=dict)
    superseded: dict[int, list[Int64]] = field(default_factory=dict, repr=False)
    key_index_parts: list[KeyIndexPart] = field(default_factory=list)
    written: dict[int, int] = field(default_factory=dict)
    segments: dict[str, SegmentEntry] = field(default_factory=dict)
    failure: LogFailure | None = None

    def first_failure(self) -> LogFailure | None:
        """The first failure of any step."""
        return self.extracted.failure or self.failure


def bucket_count(work: CompactionWork, at_least: int = 1) -> int:
    """How many buckets the keys are divided into, so that the merge of one bucket fits a task's memory for
    keys: a power of two, at most ``KEY_INDEX_PARTITIONS``."""
    wanted = max(at_least, -(-entry_count_max(work) * MERGE_BYTES_PER_ENTRY // work.settings.memory_bytes))
    return min(KEY_INDEX_PARTITIONS, 1 << (wanted - 1).bit_length())


def entry_count_max(work: CompactionWork) -> int:
    """The most key entries that the new records may have: one for each record with a key."""
    return keyed_records_max(work.end_offset - work.first_offset, work.size)


def open_source(source: Source) -> files.Reader:
    """Open a source. Raises SourceChangedError if its path leads to another file by now, OSError."""
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
    """Read some sources. Yields blobs of key entries, and arrays of the offsets (int64) of keyless records
    that are retained.

    ``numbers``: indexes into ``work.sources``, ascending. Adds counts to ``extracted``. If that has a failure
    after the last blob, the caller must use nothing that was yielded.
    """
    # As many entries as fit the task's memory, but no more than the sources have offsets.
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
    """Read one source, as ``extract`` does. Raises CorruptFileError, SourceChangedError, OSError."""
    scan, settings = TransactionScan(parse_aborted(work.txnindex_entries)), work.settings
    decode: Callable[..., KeyColumns] = decode_records if work.by_time else decode_record_keys
    offsets, limit = (source.base_offset, source.end_offset), settings.batch_limit
    with open_source(source) as reader:
        read = windows(reader, start=source.start, end=source.size, window_size=settings.window_size)
        for part in decode_slices(source.path, read, offsets, decode, limit=limit):
            columns = part.columns
            selected = _select_records(work, scan, part, source.path, extracted)
            keyed, keyless = columns.key_size >= 0, columns.key_size < 0
            if selected is not None:
                keyed, keyless = keyed & selected, keyless & selected
            extracted.keyed += int(np.count_nonzero(keyed))
            extracted.keyless += int(np.count_nonzero(keyless))
            yield from collector.add(columns, keyed)
            if work.retain_null_key and keyless.any():
                yield columns.offset[keyless]
    scan.refuse_missing_markers(
        max(work.first_offset, source.base_offset), min(work.end_offset, source.end_offset), source.path
    )
    # What this source alone tells about transactions; ``check_compaction`` combines all sources' summaries.
    summary = scan.summary(source.base_offset)
    if len(summary):
        extracted.summaries.append(summary)


def _select_records(
    work: CompactionWork,
    scan: TransactionScan,
    part: DecodedSlice[KeyColumns],
    path: str,
    extracted: Extracted,
) -> Flags | None:
    """Which records are compacted: bool, one a record, or None for all. Excluded are records outside the
    work's offsets, control records and records of aborted transactions. Adds counts to ``extracted``."""
    window, batches, columns = part
    inside = None  # which records are within the work's offsets; None: all
    low, high = int(batches["base_offset"][0]), int(batches["last_offset"][-1])
    if len(columns):
        # The header of a wrapper (v0, v1) has only its last offset.
        low = min(low, int(columns.offset[0]))
    if low < work.first_offset or high >= work.end_offset:
        inside = (columns.offset >= work.first_offset) & (columns.offset < work.end_offset)
    reached = (batches["last_offset"] >= work.first_offset) & (batches["base_offset"] < work.end_offset)
    extracted.size += int(batches["size"][reached].sum())
    # Both bool, one a batch: (is of an aborted transaction, is a marker of a transaction without data). None
    # if no batch is of a transaction.
    aborted_and_empty = scan.follow(window.data, batches, path=path, origin=window.origin)
    if aborted_and_empty is None:
        extracted.records += len(columns) if inside is None else int(np.count_nonzero(inside))
        return inside
    is_control = ((batches["attributes"] & CONTROL_BIT) != 0) & (batches["magic"] == 2)
    is_data = ~is_control[columns.batch] if inside is None else inside & ~is_control[columns.batch]
    aborted_batches, _ = aborted_and_empty
    is_aborted = aborted_batches[columns.batch]
    extracted.records += int(np.count_nonzero(is_data))
    extracted.aborted += int(np.count_nonzero(is_data & is_aborted))
    return np.asarray(is_data & ~is_aborted)


def merge_bucket(
    work: CompactionWork, blobs: Sequence[EntryBlob], bucket: int, buckets: int, attempt: str
) -> tuple[CompactionReport, Int64]:
    """Merge the key entries of bucket number ``bucket`` of ``buckets``, and look up the keys of older runs in
    them.

    Returns (report, retained offsets). The report has counts, the bucket's part of the new key index, and the
    superseded records of older runs. The offsets are int64, in any order. The result depends neither on the
    order of the blobs nor on the ``attempt``, which only names a file. Does not raise: a failure is in the
    report.
    """
    partitions = KEY_INDEX_PARTITIONS // buckets
    first = bucket * partitions
    report = CompactionReport(merged_entries=sum(len(blob.entries) for blob in blobs))
    try:
        # 1. Of the new records of each key the last one, or by time the one with the largest timestamp.
        entries, bounds = latest_entry_of_each_key(blobs, work.words, first, partitions)
        # 2. Records of these keys in older runs are superseded. By time an older run may have a record with a
        #    larger timestamp: then the new record is late.
        late: Flags = np.zeros(len(entries), np.bool_)
        for run, path in work.key_indexes.items() if len(entries) else ():
            older = read_key_index(path, work.hash_key, work.words, first, first + partitions)
            report.superseded[run] = [
                look_up_older_entries(entries, bounds, older_entries, older_bounds, start - first, late)
                for start, older_entries, older_bounds in older
            ]
        # 3. A late record is not written: the older run keeps its record, or its deletion, of the key. A
        #    deleted key has no record to write.
        deleted = deleted_of(entries) & ~late
        stays = ~deleted & ~late
        report.deleted_keys, report.late_keys = int(np.count_nonzero(deleted)), int(np.count_nonzero(late))
        # 4. The new run's key index. By offset, a deleted key needs no entry: all records to come are newer.
        #    By time, a record to come may have a smaller timestamp than the deletion: the index keeps this.
        indexed = ~late if work.by_time else stays
        counts: Int64 = np.concatenate((np.zeros(1, np.int64), np.cumsum(indexed, dtype=np.int64)))
        index_entries = entries if indexed.all() else entries[indexed]
        report.key_index_parts = [
            write_key_index_part(Path(work.settings.staging), index_entries, counts[bounds], first, attempt)
        ]
        return report, offsets_of(entries[stays])
    except Exception as error:
        report.failure = failure_of(error)
        return report, NO_OFFSETS


def offsets_by_group(groups: Sequence[Group], offsets: Int64) -> Iterator[tuple[int, Int64]]:
    """Divide offsets (int64, in any order) by group. Yields (index of the group, its offsets, ascending) for
    each group that has some."""
    offsets = np.sort(offsets)
    ends = np.searchsorted(offsets, np.array([group.end_offset for group in groups], np.int64))
    for group, start, end in zip(groups, [0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        if end > start:
            yield group.index, offsets[start:end]


# The segments above the compaction horizon, as files that stay readable while they are compacted.
#
# Cleaning, retention and truncation rename and remove segments. So a compaction first makes hard links to
# those that it needs, in its own folder. The active segment may be one of them: it is read up to its end at
# the time when the compaction began. If the file system has no hard links, the compaction reads the segments
# themselves, and fails when one of them is renamed or removed.

_NO_LINK_ERRNOS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES)
"""Errors of a file system that has no hard links, or allows no more of them for this file."""
_MAX_TRIES = 20
"""How many times links are tried, because a segment may be replaced meanwhile."""
MIN_GROUP_BYTES, MAX_GROUP_BYTES = 32 << 20, 1 << 30
"""The bounds of the bytes of a group's sources; within them a worker gets four groups."""


def compactable_end(view: LogView) -> int:
    """The first offset that must not be compacted: the high watermark, or the last stable offset if that is
    lower; at least the log start offset, since retention may delete the beginning of an open transaction.

    ``view`` is the immutable state of a log at one moment: its segments and offsets.
    """
    return max(min(view.high_watermark, view.last_stable_offset), view.log_start_offset)


def link_sources(log: HasView, work: CompactionWork, horizon: int, parallelism: int) -> CompactionWork:
    """Link the segments with offsets at or above ``horizon`` into the staging folder. Returns ``work`` with
    the links as its sources, in groups for ``parallelism`` tasks at the same time.

    Raises SourceChangedError if segments were replaced at every try, OSError.
    """
    for attempt in range(_MAX_TRIES):
        view = log.view
        first = max(view.log_start_offset, horizon)
        end = max(compactable_end(view), first)
        folder = Path(work.settings.staging) / f"sources-{attempt}"
        files.make_directory(folder)
        try:
            sources = _link_all(view, first, end, folder)
            transactions = [transaction for segment in view.segments for transaction in segment.aborted()]
        except FileNotFoundError:
            continue
        groups = group_sources(sources, end, parallelism)
        # The transactions that end at or above the horizon.
        entries = encode_aborted(
            transaction for transaction in transactions if transaction.last_offset >= first
        )
        work = replace(work, first_offset=first, end_offset=end, txnindex_entries=entries)
        return replace(work, sources=sources, groups=groups)
    reason = f"segments were replaced while they were linked, {_MAX_TRIES} times"
    raise SourceChangedError(reason, path=work.name, advice="run again")


def _link_all(view: LogView, first: int, end: int, folder: Path) -> tuple[Source, ...]:
    """Link the segments with offsets in [``first``, ``end``). Raises FileNotFoundError if a segment was
    replaced before it was linked, OSError."""
    base_offsets = [segment.base_offset for segment in view.segments]
    end_offsets = [*base_offsets[1:], view.log_end_offset]
    first_index = max(bisect.bisect_right(base_offsets, first) - 1, 0)
    sources = []
    for index in range(first_index, bisect.bisect_left(base_offsets, end)):
        # The bytes from the batch with ``first`` to the batch with ``end``, which is read as a whole.
        segment, size = view.segments[index], view.size_of(index)
        first_batch, last_batch = segment.find_batch(first, size), segment.find_batch(end, size)
        if first_batch is None:  # the segment has no batch from ``first`` on
            continue
        sources.append(
            Source(
                path=str(_link(segment, folder)),
                base_offset=base_offsets[index],
                end_offset=end_offsets[index],
                start=first_batch.position,
                size=size if last_batch is None else last_batch.position + last_batch.size,
                inode=segment.reader.stat.inode,
            )
        )
    return tuple(sources)


def _link(segment: LiveSegment, folder: Path) -> Path:
    """Link a segment's file into ``folder``, and return the link; its own path if links are not possible.

    Raises FileNotFoundError if the path leads to another file by now, OSError.
    """
    path = folder / segment_file(segment.base_offset, "log")
    try:
        files.link(segment.path(), path)
    except OSError as error:
        if error.errno not in _NO_LINK_ERRNOS:
            raise
        path = segment.path()
    # A swap may have renamed another file to this path since the view was taken.
    if files.stat(path).inode != segment.reader.stat.inode:
        raise FileNotFoundError(errno.ENOENT, "was replaced meanwhile", str(path))
    return path


def group_sources(sources: Sequence[Source], end: int, parallelism: int) -> tuple[Group, ...]:
    """Groups of neighbouring sources of about the same size, a few for each worker. ``end``: the end offset
    of the last group."""
    total = sum(source.length for source in sources)
    target = min(max(total // (4 * parallelism), MIN_GROUP_BYTES), MAX_GROUP_BYTES)  # four groups a worker
    group_starts, size = [0] if sources else [], 0
    for number, source in enumerate(sources):
        if size and size + source.length // 2 > target:
            group_starts.append(number)
            size = 0
        size += source.length
    base_offsets = [*(source.base_offset for source in sources), end]
    return groups_from(group_starts, base_offsets)
