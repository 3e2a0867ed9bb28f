"""Plans and reads any table: its schema, its splits, and the rows of a split.

::

    schema_of(options)              pyarrow.Schema
    plan(options, predicate)        splits: small, picklable, on the driver
    read_split(split, options)      pyarrow.RecordBatch after RecordBatch, in a task

    table=records                             ``reading``
    table=consumerOffsets, transactionState   records again, decoded: ``file_tables``
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
from siltstone.tables.options import COMPACTED, LATEST_VIEW, LOG, RECORDS, ReadOptions, Splitting
from siltstone.tables.reading import decoded, read_quarantine, read_records, record_schema
from siltstone.tables.splits import (
    EVERYTHING,
    FileSplit,
    Logs,
    OffsetRange,
    Predicate,
    Split,
    ViewRange,
    aborted_of,
    between,
    find_ranges,
    open_again,
    open_directories,
    open_logs,
    pack_offsets,
    readable_end,
    split_ranges,
    view_range,
)

_logger = logging.getLogger("siltstone")


def schema_of(options: ReadOptions) -> pa.Schema:
    """The table's columns. Raises UsageError for unknown names."""
    return record_schema(options) if options.table == RECORDS else file_tables.schema_of(options)


def plan(options: ReadOptions, predicate: Predicate = EVERYTHING) -> list[Split]:
    """Open the directories, find the offsets to read, and cut them into splits; none for an empty table.

    ``predicate`` only leaves out records that it excludes; it does not apply to the other tables. For
    ``view=latest`` the log is read here once. Raises what opening raises, UsageError, OffsetOutOfRangeError,
    LedgerError.
    """
    if options.table in file_tables.FILE_TABLES:
        return file_tables.plan_files(options)
    if options.table in file_tables.DECODED_TABLES:
        return plan(file_tables.decoded_source(options))
    if options.quarantine:
        return _plan_quarantine(options)
    with contextlib.ExitStack() as held:
        logs: Logs = open_logs(options)
        if options.view == COMPACTED:
            # Ledgers are held while it is planned; a task finds out when its files were deleted since.
            views = [held.enter_context(contextlib.closing(CompactedLog(log))) for log in logs.values()]
            logs = {view.where: view for view in views}
        ranges = find_ranges(logs, options)
        chosen = predicate.chosen(logs)
        sources = [
            source
            for where, log in chosen.items()
            for source in _sources(log, predicate.narrowed(ranges[where], log))
        ]
        splits = split_ranges(sources, options)
    if options.view == LATEST_VIEW:
        retained = {where: find_latest(log, ranges[where], options) for where, log in chosen.items()}
        splits = _with_retained(splits, retained)
    return splits


def _sources(log: ReadOnlyLog, wanted: OffsetRange) -> list[ViewRange]:
    return log.sources(wanted) if isinstance(log, CompactedLog) else [view_range(log, wanted)]


def read_split(split: Split, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """A split as Arrow batches of ``schema_of``. Raises what ``reading.read_records`` raises."""
    if options.table in file_tables.FILE_TABLES:
        return file_tables.read_files(split, options)
    if options.table in file_tables.DECODED_TABLES:
        return file_tables.decode_table(read_records(split, file_tables.decoded_source(options)), options)
    return read_quarantine(split, options) if options.quarantine else read_records(split, options)


# badBatches=quarantine: every segment's whole file.


def _plan_quarantine(options: ReadOptions) -> list[Split]:
    """A split for every segment: its whole file, since recovery ends a log at its first damage.

    Records at and above the last stable offset or the high watermark are left out, where that is below the
    log's end. A log that is too damaged to be opened is read whole, if no offsets are asked for; its aborted
    transactions are not known then. Raises as ``plan``.
    """
    directories, logs = open_directories(options), {}
    for where, directory in directories.items():
        try:
            logs[where] = open_again(directory, where)
        except CorruptFileError as error:
            if options.offsets.starting is not None or options.offsets.ending is not None:
                raise
            _logger.warning("%s: cannot be opened (%s): its files are read as they are", directory, error)
    ranges, splits = find_ranges(logs, options), []
    for where, directory in directories.items():
        limits = OffsetRange(0, LONG_MAX)
        aborted: tuple[AbortedTransaction, ...] = ()
        if where in logs:
            log, limits = logs[where], ranges[where]
            # The log's end may only be where the damage begins: what is behind it is read, too.
            if options.offsets.ending is None and readable_end(log, options.isolation) == log.log_end_offset:
                limits = OffsetRange(limits.start, LONG_MAX)
            if options.isolation == READ_COMMITTED:
                aborted = aborted_of(log.view, OffsetRange(0, LONG_MAX))
        segments = list_segments(directory)
        for segment, following in itertools.zip_longest(segments, segments[1:]):
            behind = LONG_MAX if following is None else following.base_offset
            start, end = max(limits.start, segment.base_offset), min(limits.end, behind)
            if start < end and segment.size:
                piece = FileSplit(
                    where=where,
                    directory=str(directory),
                    base_offset=segment.base_offset,
                    mark=files.FileMark(segment.inode, segment.size, segment.modified_ns, following is None),
                    start=start,
                    end=end,
                    position=0,
                    end_position=segment.size,
                    size=segment.size,
                    aborted=aborted,
                )
                splits.append(Split(pieces=(piece,)))
    return splits


# view=latest: the last record of each key, found before a query's tasks start.
#
# ::
#
#     ranges ─ cut ─► threads: decode, hash, de-duplicate ─► entries by bucket ─► threads: merge ─► offsets
#                                                                └── too many: to a temporary file ──┘
#
# The kernels release the GIL, so as many cores work as there are. Keys are compared as the cleaner compares
# them, by 96 bits of a keyed hash. Memory: ``MEMORY_BYTES`` of entries (16 bytes for each key that a part of
# 64 MiB has), and what ``cores`` windows and buckets take; more entries than that go to a temporary file.

PART_BYTES = 64 << 20
MEMORY_BYTES = 1 << 30
_RECORD_BYTES = 64
"""A guess of the smallest records that are common: it only sets how many buckets there are."""
_BUCKET_ENTRIES = 1 << 21


class _Entries:
    """Entries of all buckets, in memory up to a bound, beyond it in a temporary file. Thread-safe."""

    def __init__(self, buckets: int, memory_bytes: int) -> None:
        self.buckets = buckets
        self._free = memory_bytes
        self._held: dict[int, list[EntryBlob]] = {}
        self._stored: dict[int, list[tuple[int, int, int]]] = {}
        """By bucket (base offset, position in the file, count)."""
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None

    def add(self, blobs: Iterable[EntryBlob]) -> None:
        """Keep entries; the arrays stay the caller's."""
        for blob in blobs:
            with self._lock:
                if blob.entries.nbytes <= self._free:
                    self._held.setdefault(blob.bucket, []).append(blob.kept())
                    self._free -= blob.entries.nbytes
                    continue
                if self._file is None:
                    self._file = files.temporary_file()
                position = self._file.seek(0, io.SEEK_END)
                self._file.write(np.ascontiguousarray(blob.entries).data)
                stored = (blob.base_offset, position, len(blob.entries))
                self._stored.setdefault(blob.bucket, []).append(stored)

    def latest(self, bucket: int) -> Int64:
        """The last offset of each key of a bucket, unordered; its entries are dropped."""
        blobs = self._held.pop(bucket, [])
        for base, position, count in self._stored.get(bucket, []):
            assert self._file is not None
            with self._lock:
                self._file.seek(position)
                raw = self._file.read(count * ENTRY_BYTES)
            entries = np.frombuffer(raw, np.uint64).reshape(-1, 2)
            blobs.append(EntryBlob(bucket=bucket, dirty=True, base_offset=base, entries=entries))
        return merge_bucket(blobs, bucket, self.buckets).offsets

    def close(self) -> None:
        """Drop the temporary file."""
        if self._file is not None:
            self._file.close()


def find_latest(
    log: ReadOnlyLog,
    wanted: OffsetRange,
    options: ReadOptions,
    *,
    memory_bytes: int = MEMORY_BYTES,
    part_bytes: int = PART_BYTES,
) -> Int64:
    """The ascending offsets of the last record of each key in a log's range.

    Records without a key are not among them; tombstones are. A key lives in one partition, as Kafka has it.
    Raises what reading raises.
    """
    plain = dataclasses.replace(
        options,
        view=LOG,
        offsets=dataclasses.replace(options.offsets, as_of=None),
        splitting=Splitting(max_partition_bytes=part_bytes),
    )
    splits = split_ranges([view_range(log, wanted)], plain)
    pieces = [piece for split in splits for piece in split.pieces]
    cores = min(os.cpu_count() or 1, max(len(pieces), 1))
    size = sum(piece.size for piece in pieces)
    buckets = max(cores, -(-size // (_RECORD_BYTES * _BUCKET_ENTRIES)))
    hash_key = (secrets.randbits(64), secrets.randbits(64))
    with contextlib.closing(_Entries(buckets, memory_bytes)) as entries, ThreadPoolExecutor(cores) as pool:

        def collect(piece: FileSplit) -> None:
            capacity = max(piece.size // ENTRY_BYTES, 1 << 12)
            collector = KeyCollector(hash_key=hash_key, first_dirty=0, buckets=buckets, capacity=capacity)
            for columns, *_ in decoded(piece, plain, decode_record_keys):
                entries.add(collector.add(columns, columns.key_size >= 0))
            entries.add(collector.finish())

        list(pool.map(collect, pieces))
        latest = list(pool.map(entries.latest, range(buckets)))
    return np.sort(np.concatenate([np.empty(0, np.int64), *latest]))


def _with_retained(splits: list[Split], retained: Mapping[TopicPartition, Int64]) -> list[Split]:
    """The splits with their share of the retained offsets; pieces without any are left out."""
    kept = []
    for split in splits:
        pieces = tuple(
            dataclasses.replace(piece, retained=pack_offsets(own))
            for piece in split.pieces
            if len(own := between(retained[piece.where], piece.start, piece.end))
        )
        kept += [Split(pieces=pieces)] if pieces else []
    return kept


# view=compacted: the ledger's segments, and the originals behind the horizon, as
# ``log.ledger.reading.CompactedReader`` reads them: each record once, hidden ones left out. A log without a
# ledger is read as it is.


class CompactedLog(ReadOnlyLog):
    """A log by its compacted view: it starts where its ledger does. Close it: it holds the ledger."""

    def __init__(self, log: ReadOnlyLog) -> None:
        """Raises LedgerError, OSError."""
        super().__init__(log.where, log.directory, log.view, log.not_shown, log.first_dirty_offset)
        self._reader = CompactedReader(log, isolation=READ_UNCOMMITTED)
        self._held = LedgerStore(log.directory).open()

    @property
    def log_start_offset(self) -> int:
        """The ledger's first offset, the log's own without one."""
        return self.view.log_start_offset if self._held is None else self._held.ledger.base_offset

    def offset_for_time(self, timestamp: int) -> TimestampAndOffset | None:
        """The view's first record at or after a time in ms, without its own time and epoch."""
        if self._held is None:
            return super().offset_for_time(timestamp)
        self._reader.seek(AtTime(timestamp))
        offset = self._reader.offset
        if offset >= self.view.high_watermark:
            return None
        return TimestampAndOffset(offset=offset, timestamp=-1, leader_epoch=-1)

    def sources(self, wanted: OffsetRange) -> list[ViewRange]:
        """Where the wanted offsets are read from, in order."""
        if self._held is None:
            return [view_range(self, wanted)]
        ranges = [
            ViewRange(
                where=self.where,
                directory=str(part.view.segments[0].directory),
                view=part.view,
                wanted=wanted,
                hidden=part.superseded,
            )
            for part in self._held.parts
        ]
        behind = max(self._held.ledger.horizon, self.view.log_start_offset)
        return [*ranges, view_range(self, OffsetRange(max(wanted.start, behind), wanted.end))]

    def close(self) -> None:
        """Release the ledger."""
        self._reader.close()
        if self._held is not None:
            self._held.close()
