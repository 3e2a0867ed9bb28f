"""Plans and reads any table: its schema, its splits, and the rows of a split.

::

    schema_of(options)              pyarrow.Schema
    plan(options, filters)          splits: small, picklable, on the driver
    read_split(split, options)      pyarrow.RecordBatch after RecordBatch, in a task

    table=records                             ``reading``
    table=consumerOffsets, transactionState   the same records, decoded: ``file_tables``
    table=batches, offsetIndex, checkpoints…  ``file_tables``
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import logging
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO

import numpy as np
import pyarrow as pa

from siltstone.base import files
from siltstone.base.config import LONG_MAX
from siltstone.base.errors import CorruptFileError
from siltstone.base.records.decode import decode_record_keys
from siltstone.base.records.layout import Int64
from siltstone.compaction.keys import ENTRY_BYTES, EntryBlob, KeyCollector, merge_bucket
from siltstone.log.fetch import READ_COMMITTED, READ_UNCOMMITTED
from siltstone.log.indexes import AbortedTransaction
from siltstone.log.ledger.reading import CompactedReader
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.lookup import TimestampAndOffset
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadOnlyLog
from siltstone.log.reading import AtTime
from siltstone.log.segments import list_segments
from siltstone.tables import file_tables
from siltstone.tables.options import COMPACTED, LATEST_VIEW, LOG, RECORDS, ReadOptions
from siltstone.tables.reading import decoded, read_quarantine, read_records, record_schema
from siltstone.tables.splits import (
    NO_FILTERS,
    FilePiece,
    Logs,
    OffsetRange,
    PushedFilters,
    SnapshotRange,
    TaskSplit,
    aborted_transactions,
    between,
    encode_offsets,
    offset_ranges,
    open_logs,
    partition_directories,
    readable_end,
    reopen_log,
    snapshot_range,
    split_ranges,
)

_logger = logging.getLogger("siltstone")


def schema_of(options: ReadOptions) -> pa.Schema:
    """The table's columns. Raises UsageError for unknown names."""
    return record_schema(options) if options.table == RECORDS else file_tables.schema_of(options)


def plan(options: ReadOptions, filters: PushedFilters = NO_FILTERS) -> list[TaskSplit]:
    """Open the directories, find the offsets to read, and cut them into splits; none for an empty table.

    ``filters`` restrict which records are read, not the rows of other tables. For ``view=latest`` the log is
    read here once. Raises what opening raises, UsageError, OffsetOutOfRangeError, LedgerError.
    """
    if options.table in file_tables.FILE_TABLES:
        return file_tables.plan_files(options)
    if options.table in file_tables.DECODED_TABLES:
        return plan(file_tables.decoded_source(options))
    if options.quarantine:
        return _plan_quarantine(options)
    with contextlib.ExitStack() as stack:
        logs: Logs = open_logs(options)
        if options.view == COMPACTED:
            # Ledgers are kept open while planning; a task notices if its files were deleted since.
            views = [stack.enter_context(contextlib.closing(CompactedLog(log))) for log in logs.values()]
            logs = {view.topic_partition: view for view in views}
        ranges = offset_ranges(logs, options)
        selected = filters.select(logs)
        sources = [
            source
            for topic_partition, log in selected.items()
            for source in _sources(log, filters.restrict(ranges[topic_partition], log))
        ]
        splits = split_ranges(sources, options)
    if options.view == LATEST_VIEW:
        # The last record of a key is that of the whole range: filters apply to it afterwards.
        latest = {
            topic_partition: find_latest_offsets(log, ranges[topic_partition], options)
            for topic_partition, log in selected.items()
        }
        splits = _only_retained(splits, latest)
    return splits


def _sources(log: ReadOnlyLog, wanted: OffsetRange) -> list[SnapshotRange]:
    return log.sources(wanted) if isinstance(log, CompactedLog) else [snapshot_range(log, wanted)]


def read_split(split: TaskSplit, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """A split as Arrow batches of ``schema_of``. Raises what ``reading.read_records`` raises."""
    if options.table in file_tables.FILE_TABLES:
        return file_tables.read_files(split, options)
    if options.table in file_tables.DECODED_TABLES:
        return file_tables.decode_table(read_records(split, file_tables.decoded_source(options)), options)
    return read_quarantine(split, options) if options.quarantine else read_records(split, options)


# badBatches=quarantine: every segment's whole file.


def _plan_quarantine(options: ReadOptions) -> list[TaskSplit]:
    """One split for each segment, its whole file: after recovery, the log would end at its first damage.

    Records at and above the last stable offset or the high watermark are excluded if that is below the log's
    end. A log that is too damaged to be opened is read as a whole, unless offsets are requested; its aborted
    transactions are not known then. Raises as ``plan``.
    """
    directories, logs = partition_directories(options), {}
    for topic_partition, directory in directories.items():
        try:
            logs[topic_partition] = reopen_log(directory, topic_partition)
        except CorruptFileError as error:
            if options.starting is not None or options.ending is not None:
                raise
            effect = "its segments are read as they are, aborted transactions too"
            _logger.warning("%s: the log cannot be opened (%s); %s", directory, error, effect)
    ranges, splits = offset_ranges(logs, options), []
    for topic_partition, directory in directories.items():
        limits = OffsetRange(0, LONG_MAX)
        aborted: tuple[AbortedTransaction, ...] = ()
        if topic_partition in logs:
            log, limits = logs[topic_partition], ranges[topic_partition]
            # The log's end may be the first damage: the records after it are read, too.
            if options.ending is None and readable_end(log, options.isolation) == log.log_end_offset:
                limits = OffsetRange(limits.start, LONG_MAX)
            if options.isolation == READ_COMMITTED:
                aborted = aborted_transactions(log.view, OffsetRange(0, LONG_MAX))
        segments = list_segments(directory)
        for segment, following in itertools.zip_longest(segments, segments[1:]):
            next_base = LONG_MAX if following is None else following.base_offset
            start, end = max(limits.start, segment.base_offset), min(limits.end, next_base)
            if start < end and segment.size:
                piece = FilePiece(
                    topic_partition=topic_partition,
                    directory=str(directory),
                    base_offset=segment.base_offset,
                    identity=files.FileMark(
                        segment.inode, segment.size, segment.modified_ns, following is None
                    ),
                    start=start,
                    end=end,
                    position=0,
                    end_position=segment.size,
                    size=segment.size,
                    aborted=aborted,
                )
                splits.append(TaskSplit(pieces=(piece,)))
    return splits


# view=latest: the last record of each key is found on the driver, before the tasks of the query start.
#
# ::
#
#     ranges ─ cut ─► threads: decode, hash, de-duplicate ─► entries by bucket ─► threads: merge ─► offsets
#                                                                └── too many: to a temporary file ──┘
#
# The kernels release the GIL, so all cores work. Keys are compared as in the cleaner, by 96 bits of a keyed
# hash. Memory: ``MEMORY_BYTES`` of entries (16 bytes for each key that a part of 64 MiB has), and one window
# and one bucket for each core; more entries go to a temporary file.

PART_BYTES = 64 << 20
MEMORY_BYTES = 1 << 30
_RECORD_BYTES = 64
"""An estimate of the smallest common records, from which the number of buckets follows."""
_BUCKET_ENTRIES = 1 << 21


class _Entries:
    """Entries of all buckets, in memory up to a bound, beyond it in a temporary file. Thread-safe."""

    def __init__(self, buckets: int, memory_bytes: int) -> None:
        self.buckets = buckets
        self._free_bytes = memory_bytes
        self._in_memory: dict[int, list[EntryBlob]] = {}
        self._in_file: dict[int, list[tuple[int, int, int]]] = {}
        """(base offset, position in the file, number of entries) by bucket."""
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None

    def add(self, blobs: Iterable[EntryBlob]) -> None:
        """Add copies of entries: their arrays are the collector's, which fills them again."""
        for blob in blobs:
            with self._lock:
                if blob.entries.nbytes <= self._free_bytes:
                    self._in_memory.setdefault(blob.bucket, []).append(blob.copied())
                    self._free_bytes -= blob.entries.nbytes
                    continue
                if self._file is None:
                    self._file = files.temporary_file()
                position = self._file.seek(0, io.SEEK_END)
                self._file.write(np.ascontiguousarray(blob.entries).data)
                written = (blob.base_offset, position, len(blob.entries))
                self._in_file.setdefault(blob.bucket, []).append(written)

    def latest(self, bucket: int) -> Int64:
        """The last offset of each key of a bucket, unordered; its entries in memory are freed."""
        blobs = self._in_memory.pop(bucket, [])
        for base, position, count in self._in_file.get(bucket, []):
            assert self._file is not None
            with self._lock:
                self._file.seek(position)
                raw = self._file.read(count * ENTRY_BYTES)
            entries = np.frombuffer(raw, np.uint64).reshape(-1, 2)
            blobs.append(EntryBlob(bucket=bucket, is_dirty=True, base_offset=base, entries=entries))
        return merge_bucket(blobs, bucket, self.buckets).offsets

    def close(self) -> None:
        """Remove the temporary file."""
        if self._file is not None:
            self._file.close()


def find_latest_offsets(
    log: ReadOnlyLog,
    wanted: OffsetRange,
    options: ReadOptions,
    *,
    memory_bytes: int = MEMORY_BYTES,
    part_bytes: int = PART_BYTES,
) -> Int64:
    """The ascending offsets of the last record of each key in a log's range, int64.

    Tombstones are among them, records without a key are not. The records of a key are in one partition, as in
    Kafka. Raises what reading raises.
    """
    log_options = dataclasses.replace(
        options,
        view=LOG,
        as_of=None,
        min_partitions=None,
        max_partition_bytes=part_bytes,
        max_records_per_partition=None,
    )
    splits = split_ranges([snapshot_range(log, wanted)], log_options)
    pieces = [piece for split in splits for piece in split.pieces]
    cores = min(os.cpu_count() or 1, max(len(pieces), 1))
    size = sum(piece.size for piece in pieces)
    buckets = max(cores, -(-size // (_RECORD_BYTES * _BUCKET_ENTRIES)))
    hash_key = (secrets.randbits(64), secrets.randbits(64))
    with contextlib.closing(_Entries(buckets, memory_bytes)) as entries, ThreadPoolExecutor(cores) as pool:

        def collect(piece: FilePiece) -> None:
            capacity = max(piece.size // ENTRY_BYTES, 1 << 12)
            collector = KeyCollector(hash_key=hash_key, first_dirty=0, buckets=buckets, capacity=capacity)
            for columns, *_ in decoded(piece, log_options, decode_record_keys):
                entries.add(collector.add(columns, columns.key_size >= 0))
            entries.add(collector.finish())

        list(pool.map(collect, pieces))
        latest = list(pool.map(entries.latest, range(buckets)))
    return np.sort(np.concatenate([np.empty(0, np.int64), *latest]))


def _only_retained(splits: list[TaskSplit], retained: Mapping[TopicPartition, Int64]) -> list[TaskSplit]:
    """The splits with their retained offsets, without pieces and splits that have none."""
    result = []
    for split in splits:
        pieces = tuple(
            dataclasses.replace(piece, retained=encode_offsets(own))
            for piece in split.pieces
            if len(own := between(retained[piece.topic_partition], piece.start, piece.end))
        )
        result += [TaskSplit(pieces=pieces)] if pieces else []
    return result


# view=compacted: the ledger's segments, and the log's own from the horizon on, as
# ``log.ledger.reading.CompactedReader`` reads them: each record once, without superseded ones. A log without
# a ledger is read as it is.


class CompactedLog(ReadOnlyLog):
    """A log in its compacted view: it begins where its ledger does. Close it, to release the ledger."""

    def __init__(self, log: ReadOnlyLog) -> None:
        """Raises LedgerError, OSError."""
        super().__init__(
            log.topic_partition, log.directory, log.view, log.unreadable_logs, log.first_dirty_offset
        )
        self._reader = CompactedReader(log, isolation=READ_UNCOMMITTED)
        self._opened = LedgerStore(log.directory).open()

    @property
    def log_start_offset(self) -> int:
        """The ledger's first offset, the log's own without one."""
        return self.view.log_start_offset if self._opened is None else self._opened.ledger.base_offset

    def offset_for_time(self, timestamp: int) -> TimestampAndOffset | None:
        """The view's first record at or after a time in ms; its own timestamp and epoch are given as -1."""
        if self._opened is None:
            return super().offset_for_time(timestamp)
        self._reader.seek(AtTime(timestamp))
        offset = self._reader.offset
        if offset >= self.view.high_watermark:
            return None
        return TimestampAndOffset(offset=offset, timestamp=-1, leader_epoch=-1)

    def sources(self, wanted: OffsetRange) -> list[SnapshotRange]:
        """The ranges that have the wanted offsets, in order: the ledger's runs, then the log."""
        if self._opened is None:
            return [snapshot_range(self, wanted)]
        ranges = [
            SnapshotRange(
                topic_partition=self.topic_partition,
                directory=str(part.view.segments[0].directory),
                view=part.view,
                wanted=wanted,
                superseded=part.superseded,
            )
            for part in self._opened.parts
        ]
        horizon = max(self._opened.ledger.horizon, self.view.log_start_offset)
        return [*ranges, snapshot_range(self, OffsetRange(max(wanted.start, horizon), wanted.end))]

    def close(self) -> None:
        """Release the ledger."""
        self._reader.close()
        if self._opened is not None:
            self._opened.close()
