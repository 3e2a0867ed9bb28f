"""Plans and reads every kind of table: its schema, its splits, and the rows of a split.

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
from siltstone.tables.options import COMPACTED_VIEW, LATEST_VIEW, LOG_VIEW, RECORDS_TABLE, ReadOptions
from siltstone.tables.reading import decode, read_quarantine, read_records, record_schema
from siltstone.tables.splits import (
    NO_FILTERS,
    FilePiece,
    Logs,
    OffsetRange,
    PushedFilters,
    SnapshotRange,
    TaskSplit,
    aborted_transactions,
    encode_offsets,
    offset_ranges,
    offsets_in,
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
    return record_schema(options) if options.table == RECORDS_TABLE else file_tables.schema_of(options)


def plan(options: ReadOptions, filters: PushedFilters = NO_FILTERS) -> list[TaskSplit]:
    """Open the directories, find the offsets to read, and cut them into splits; none for an empty table.

    ``filters`` restrict records only: other tables have all their rows. For ``view=latest`` this reads the
    log once, to find the last record of each key. Raises UsageError, OffsetOutOfRangeError, LedgerError, and
    what opening a directory raises.
    """
    if options.table in file_tables.FILE_TABLES:
        return file_tables.plan_files(options)
    if options.table in file_tables.DECODED_TABLES:
        return plan(file_tables.decoded_source(options))
    if options.quarantine_bad_batches:
        return _plan_quarantine(options)
    with contextlib.ExitStack() as stack:
        logs: Logs = open_logs(options)
        if options.view == COMPACTED_VIEW:
            # Ledgers stay open while the query is planned; a task notices if their files were deleted since.
            compacted = [stack.enter_context(contextlib.closing(CompactedLog(log))) for log in logs.values()]
            logs = {log.topic_partition: log for log in compacted}
        ranges = offset_ranges(logs, options)
        selected = filters.select(logs)
        ranges_to_read = [
            range_to_read
            for topic_partition, log in selected.items()
            for range_to_read in _ranges_to_read(log, filters.restrict(ranges[topic_partition], log))
        ]
        splits = split_ranges(ranges_to_read, options)
    if options.view == LATEST_VIEW:
        # The last record of a key is that of the whole range: a filter must not make an older one the last.
        last_offsets = {
            topic_partition: find_last_offsets_of_keys(log, ranges[topic_partition], options)
            for topic_partition, log in selected.items()
        }
        splits = _with_retained(splits, last_offsets)
    return splits


def _ranges_to_read(log: ReadOnlyLog, offsets: OffsetRange) -> list[SnapshotRange]:
    return log.ranges_to_read(offsets) if isinstance(log, CompactedLog) else [snapshot_range(log, offsets)]


def read_split(split: TaskSplit, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """A split as Arrow batches of ``schema_of``. Raises what ``reading.read_records`` raises."""
    if options.table in file_tables.FILE_TABLES:
        return file_tables.read_files(split, options)
    if options.table in file_tables.DECODED_TABLES:
        return file_tables.decode_table(read_records(split, file_tables.decoded_source(options)), options)
    return read_quarantine(split, options) if options.quarantine_bad_batches else read_records(split, options)


# badBatches=quarantine reads the whole file of each segment.


def _plan_quarantine(options: ReadOptions) -> list[TaskSplit]:
    """One split for each segment, its whole file. A log that is opened ends at its first damage; the records
    after it are read, too.

    Records above the readable end are excluded if that is below the log's end. A log that is too damaged to
    be opened is read as a whole, with the records of aborted transactions; if a start or an end is set, that
    is an error. Raises as ``plan``.
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
        offset_range = OffsetRange(0, LONG_MAX)
        aborted: tuple[AbortedTransaction, ...] = ()
        if topic_partition in logs:
            log, offset_range = logs[topic_partition], ranges[topic_partition]
            # The log's end may be the first damage: the records after it are read, too.
            if options.ending is None and readable_end(log, options.isolation) == log.log_end_offset:
                offset_range = OffsetRange(offset_range.start, LONG_MAX)
            if options.isolation == READ_COMMITTED:
                aborted = aborted_transactions(log.view, OffsetRange(0, LONG_MAX))
        segments = list_segments(directory)
        for segment, following in itertools.zip_longest(segments, segments[1:]):
            next_base = LONG_MAX if following is None else following.base_offset
            start, end = max(offset_range.start, segment.base_offset), min(offset_range.end, next_base)
            if start < end and segment.size:
                piece = FilePiece(
                    topic_partition=topic_partition,
                    directory=str(directory),
                    base_offset=segment.base_offset,
                    identity=files.FileIdentity(
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
# hash. A thread reads ``PART_BYTES`` of the log, and keeps a key entry of 16 bytes for each key that it meets
# there. ``MEMORY_BYTES`` of entries stay in memory, the others go to a temporary file. Each core also needs
# the memory of one window and of one bucket.

PART_BYTES = 64 << 20
MEMORY_BYTES = 1 << 30
_RECORD_BYTES_MIN = 64
"""An estimate of the smallest common records: it bounds the number of entries, and so gives the buckets."""
_BUCKET_ENTRIES_MAX = 1 << 21
_COLLECTOR_ENTRIES_MIN = 1 << 12


class _KeyEntries:
    """Key entries by bucket: ``memory_bytes`` of them in memory, the others in a temporary file.

    Threads may add entries at one time, and then, when all are added, take the offsets of buckets."""

    def __init__(self, buckets: int, memory_bytes: int) -> None:
        self.buckets = buckets
        self._free_bytes = memory_bytes
        self._in_memory: dict[int, list[EntryBlob]] = {}
        self._in_file: dict[int, list[tuple[int, int, int]]] = {}
        """By bucket: (base offset, position in the temporary file, number of entries) of each blob."""
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None

    def add(self, blobs: Iterable[EntryBlob]) -> None:
        """Add copies of entries, since the collector reuses their arrays."""
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

    def last_offsets(self, bucket: int) -> Int64:
        """The last offset of each key of a bucket, in no order. Call it once: it frees the bucket's
        memory."""
        blobs = self._in_memory.pop(bucket, [])
        for base_offset, position, count in self._in_file.get(bucket, []):
            assert self._file is not None
            with self._lock:
                self._file.seek(position)
                raw = self._file.read(count * ENTRY_BYTES)
            entries = np.frombuffer(raw, np.uint64).reshape(-1, 2)
            blobs.append(EntryBlob(bucket=bucket, is_dirty=True, base_offset=base_offset, entries=entries))
        return merge_bucket(blobs, bucket, self.buckets).offsets

    def close(self) -> None:
        """Remove the temporary file."""
        if self._file is not None:
            self._file.close()


def find_last_offsets_of_keys(
    log: ReadOnlyLog,
    offset_range: OffsetRange,
    options: ReadOptions,
    *,
    memory_bytes: int = MEMORY_BYTES,
    part_bytes: int = PART_BYTES,
) -> Int64:
    """The ascending offsets of the last record of each key in a log's range, int64.

    Tombstones are included, records without a key are not. Each partition is treated alone: Kafka sends all
    records of a key to one partition. Raises what reading raises.
    """
    log_options = dataclasses.replace(
        options,
        view=LOG_VIEW,
        as_of=None,
        min_partitions=None,
        max_partition_bytes=part_bytes,
        max_records_per_partition=None,
    )
    splits = split_ranges([snapshot_range(log, offset_range)], log_options)
    pieces = [piece for split in splits for piece in split.pieces]
    cores = min(os.cpu_count() or 1, max(len(pieces), 1))
    size = sum(piece.size for piece in pieces)
    buckets = max(cores, -(-size // (_RECORD_BYTES_MIN * _BUCKET_ENTRIES_MAX)))
    hash_key = (secrets.randbits(64), secrets.randbits(64))
    with contextlib.closing(_KeyEntries(buckets, memory_bytes)) as entries, ThreadPoolExecutor(cores) as pool:

        def collect(piece: FilePiece) -> None:
            capacity = max(piece.size // ENTRY_BYTES, _COLLECTOR_ENTRIES_MIN)
            collector = KeyCollector(hash_key=hash_key, first_dirty=0, buckets=buckets, capacity=capacity)
            for columns, *_ in decode(piece, log_options, decode_record_keys):
                entries.add(collector.add(columns, columns.key_size >= 0))
            entries.add(collector.finish())

        list(pool.map(collect, pieces))
        last_offsets = list(pool.map(entries.last_offsets, range(buckets)))
    return np.sort(np.concatenate([np.empty(0, np.int64), *last_offsets]))


def _with_retained(splits: list[TaskSplit], retained: Mapping[TopicPartition, Int64]) -> list[TaskSplit]:
    """The splits with the retained offsets of each piece; a piece or split without any is left out."""
    result = []
    for split in splits:
        pieces = tuple(
            dataclasses.replace(piece, retained=encode_offsets(own))
            for piece in split.pieces
            if len(own := offsets_in(retained[piece.topic_partition], piece.start, piece.end))
        )
        result += [TaskSplit(pieces=pieces)] if pieces else []
    return result


# view=compacted: the segments of the compacted ledger, then the log's own from the compaction horizon on. A
# record that a later run of the ledger supersedes is left out (``log.ledger.reading.CompactedReader``). A log
# without a ledger is read as it is.


class CompactedLog(ReadOnlyLog):
    """A log in its compacted view, which begins where its ledger begins. Close it, to release the ledger."""

    def __init__(self, log: ReadOnlyLog) -> None:
        """Raises LedgerError, OSError."""
        super().__init__(
            log.topic_partition, log.directory, log.view, log.unreadable_logs, log.first_dirty_offset
        )
        self._reader = CompactedReader(log, isolation=READ_UNCOMMITTED)
        self._opened_ledger = LedgerStore(log.directory).open()

    @property
    def log_start_offset(self) -> int:
        """The ledger's first offset; without a ledger, that of the log."""
        return (
            self.view.log_start_offset
            if self._opened_ledger is None
            else self._opened_ledger.ledger.base_offset
        )

    def offset_for_time(self, timestamp: int) -> TimestampAndOffset | None:
        """The view's first record at or after a time in ms; only its offset is set, the others are -1."""
        if self._opened_ledger is None:
            return super().offset_for_time(timestamp)
        self._reader.seek(AtTime(timestamp))
        offset = self._reader.offset
        if offset >= self.view.high_watermark:
            return None
        return TimestampAndOffset(offset=offset, timestamp=-1, leader_epoch=-1)

    def ranges_to_read(self, offsets: OffsetRange) -> list[SnapshotRange]:
        """Where to read the offsets, in order: from the runs of the ledger, then from the log."""
        if self._opened_ledger is None:
            return [snapshot_range(self, offsets)]
        ranges = [
            SnapshotRange(
                topic_partition=self.topic_partition,
                directory=str(part.view.segments[0].directory),
                log_view=part.view,
                offsets=offsets,
                superseded=part.superseded,
            )
            for part in self._opened_ledger.segments
        ]
        horizon = max(self._opened_ledger.ledger.horizon, self.view.log_start_offset)
        return [*ranges, snapshot_range(self, OffsetRange(max(offsets.start, horizon), offsets.end))]

    def close(self) -> None:
        """Release the ledger."""
        self._reader.close()
        if self._opened_ledger is not None:
            self._opened_ledger.close()
