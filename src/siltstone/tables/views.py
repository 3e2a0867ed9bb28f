"""``plan``: options and filters → splits, for every view."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import secrets
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO

import numpy as np

from siltstone.base import files
from siltstone.base.records.decode import decode_record_keys
from siltstone.base.records.layout import Int64, Words
from siltstone.compaction.keys import ENTRY_BYTES, EntryBlob, KeyCollector, merge_bucket
from siltstone.log.fetch import READ_UNCOMMITTED
from siltstone.log.ledger.reading import CompactedReader
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.lookup import RecordPlace
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadOnlyLog
from siltstone.log.reading import AtTime
from siltstone.tables.options import COMPACTED, LATEST_VIEW, LOG, ReadOptions, Splitting
from siltstone.tables.reading import decoded
from siltstone.tables.splits import (
    EVERYTHING,
    FileSplit,
    Logs,
    OffsetRange,
    Predicate,
    Split,
    ViewRange,
    between,
    find_ranges,
    open_logs,
    pack_offsets,
    split_ranges,
    split_sources,
    view_range,
)

# The last record of each key, found before a query's tasks start: ``find_winners``.
#
# ::
#
#     ranges ─ cut ─► threads: decode, hash, de-duplicate ─► entries by bucket ─► threads: merge ─► offsets
#                                                                └── too many: to a temporary file ──┘
#
# The kernels let go of the GIL, so as many cores work as there are. Keys are compared as the cleaner compares
# them, by 96 bits of a keyed hash. Memory: ``MEMORY_BYTES`` of entries (16 bytes for each key that a part of
# 64 MiB has), and what ``cores`` windows and buckets take; more entries than that go to a temporary file.

PART_BYTES = 64 << 20
MEMORY_BYTES = 1 << 30
_RECORD_BYTES = 64
"""A guess of the smallest records that are common: it only sets how many buckets there are."""
_BUCKET_ENTRIES = 1 << 21


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """Entries of one bucket in the temporary file."""

    base_offset: int
    position: int
    count: int


@dataclass(slots=True)
class _Entries:
    """Entries of all buckets, in memory up to a bound, behind that in a temporary file. Thread-safe."""

    buckets: int
    memory_bytes: int
    _held: dict[int, list[EntryBlob]] = field(default_factory=dict)
    _stored: dict[int, list[_Stored]] = field(default_factory=dict)
    _size: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _file: IO[bytes] | None = None

    def add(self, blobs: Iterable[EntryBlob]) -> None:
        """Take entries over; the arrays stay the caller's."""
        for blob in blobs:
            with self._lock:
                if self._size + blob.entries.nbytes > self.memory_bytes:
                    self._store(blob)
                else:
                    self._held.setdefault(blob.bucket, []).append(blob.kept())
                    self._size += blob.entries.nbytes

    def _store(self, blob: EntryBlob) -> None:
        if self._file is None:
            self._file = files.temporary_file()
        position = self._file.seek(0, io.SEEK_END)
        self._file.write(np.ascontiguousarray(blob.entries).data)
        stored = _Stored(base_offset=blob.base_offset, position=position, count=len(blob.entries))
        self._stored.setdefault(blob.bucket, []).append(stored)

    def retained(self, bucket: int) -> Int64:
        """The last offset of each key of a bucket, unordered; its entries are let go."""
        blobs = self._held.pop(bucket, [])
        for each in self._stored.get(bucket, []):
            entries = self._load(each)
            blobs.append(EntryBlob(bucket=bucket, dirty=True, base_offset=each.base_offset, entries=entries))
        return merge_bucket(blobs, bucket, self.buckets).offsets

    def _load(self, stored: _Stored) -> Words:
        assert self._file is not None
        with self._lock:
            self._file.seek(stored.position)
            raw = self._file.read(stored.count * ENTRY_BYTES)
        return np.frombuffer(raw, np.uint64).reshape(-1, 2)

    def close(self) -> None:
        """Drop the temporary file."""
        if self._file is not None:
            self._file.close()


def find_winners(
    logs: Logs,
    ranges: Mapping[TopicPartition, OffsetRange],
    options: ReadOptions,
    *,
    memory_bytes: int = MEMORY_BYTES,
    part_bytes: int = PART_BYTES,
) -> dict[TopicPartition, Int64]:
    """For each partition the ascending offsets of the last record of each key in its range.

    Records without a key are nobody's last; tombstones are records. A key lives in one partition, as Kafka
    has it. Raises what reading raises.
    """
    return {
        where: _winners_of(logs, where, ranges[where], options, memory_bytes, part_bytes) for where in ranges
    }


def _winners_of(
    logs: Logs,
    where: TopicPartition,
    wanted: OffsetRange,
    options: ReadOptions,
    memory_bytes: int,
    part_bytes: int,
) -> Int64:
    plain = dataclasses.replace(
        options,
        view=LOG,
        offsets=dataclasses.replace(options.offsets, as_of=None),
        splitting=Splitting(max_partition_bytes=part_bytes),
    )
    splits = split_ranges(logs, {where: wanted}, plain)
    cores = min(os.cpu_count() or 1, max(len(splits), 1))
    size = sum(split.size for split in splits)
    buckets = max(cores, -(-size // (_RECORD_BYTES * _BUCKET_ENTRIES)))
    entries = _Entries(buckets, memory_bytes)
    hash_key = (secrets.randbits(64), secrets.randbits(64))

    def collect(split: Split) -> None:
        for piece in split.pieces:
            _collect(piece, plain, entries, hash_key)

    try:
        with ThreadPoolExecutor(cores) as pool:
            list(pool.map(collect, splits))
            found = list(pool.map(entries.retained, range(buckets)))
    finally:
        entries.close()
    return np.sort(np.concatenate([np.empty(0, np.int64), *found]))


def _collect(piece: FileSplit, options: ReadOptions, entries: _Entries, hash_key: tuple[int, int]) -> None:
    capacity = max(piece.size // ENTRY_BYTES, 1 << 12)
    collector = KeyCollector(hash_key=hash_key, first_dirty=0, buckets=entries.buckets, capacity=capacity)
    for columns, _ in decoded(piece, options, decode_record_keys):
        entries.add(collector.add(columns, columns.key_size >= 0))
    entries.add(collector.finish())


def with_winners(splits: list[Split], retained: Mapping[TopicPartition, Int64]) -> list[Split]:
    """The splits with their share of the retained offsets; pieces without any are left out."""
    found = []
    for split in splits:
        pieces = tuple(
            dataclasses.replace(piece, retained=pack_offsets(own))
            for piece in split.pieces
            if len(own := between(retained[piece.where], piece.start, piece.end))
        )
        found += [Split(pieces=pieces)] if pieces else []
    return found


# A log's compacted view, to be split: its ledger's segments, and the originals behind the horizon.
#
# The same view as ``log.ledger.reading.CompactedReader`` reads: each record once, hidden ones left out. A log
# without a ledger is read as it is.


class CompactedLog(ReadOnlyLog):
    """A log by its compacted view: it starts where its ledger does. Close it: its ledger is held."""

    def __init__(self, log: ReadOnlyLog) -> None:
        """Raises LedgerError, OSError."""
        super().__init__(log.where, log.directory, log.view, log.not_shown, log.first_dirty_offset)
        self._reader = CompactedReader(log, isolation=READ_UNCOMMITTED)
        self._held = LedgerStore(log.directory).open()

    @property
    def log_start_offset(self) -> int:
        """The ledger's first offset, the log's own without one."""
        return self.view.log_start_offset if self._held is None else self._held.ledger.base_offset

    def offset_for_time(self, timestamp: int) -> RecordPlace | None:
        """The view's first record at or after a time in ms; its own time and epoch are not told."""
        if self._held is None:
            return super().offset_for_time(timestamp)
        self._reader.seek(AtTime(timestamp))
        offset = self._reader.offset
        if offset >= self.view.high_watermark:
            return None
        return RecordPlace(offset=offset, timestamp=-1, leader_epoch=-1)

    def sources(self, wanted: OffsetRange) -> list[ViewRange]:
        """Where the wanted offsets are read from, in order."""
        if self._held is None:
            return [view_range(self, wanted)]
        horizon = self._held.ledger.horizon
        found = [
            ViewRange(
                where=self.where,
                directory=str(part.view.segments[0].directory),
                view=part.view,
                wanted=wanted,
                hidden=part.superseded,
            )
            for part in self._held.parts
        ]
        behind = max(horizon, self.view.log_start_offset)
        return [*found, view_range(self, OffsetRange(max(wanted.start, behind), wanted.end))]

    def close(self) -> None:
        """Let go of the ledger."""
        self._reader.close()
        if self._held is not None:
            self._held.close()


def plan(options: ReadOptions, predicate: Predicate = EVERYTHING) -> list[Split]:
    """Open the directories, find what is to be read, and cut it into splits; none where there is nothing.

    ``predicate`` only leaves out what cannot hold. For ``view=latest`` the log is read here once. Raises what
    opening raises, UsageError, OffsetOutOfRangeError, LedgerError.
    """
    if options.view == COMPACTED:
        return _plan_compacted(options, predicate)
    logs = open_logs(options)
    ranges = find_ranges(logs, options)
    chosen = predicate.chosen(logs)
    narrowed = {where: predicate.narrowed(ranges[where], log) for where, log in chosen.items()}
    splits = split_ranges(chosen, narrowed, options)
    if options.view == LATEST_VIEW:
        retained = find_winners(chosen, {where: ranges[where] for where in chosen}, options)
        splits = with_winners(splits, retained)
    return splits


def _plan_compacted(options: ReadOptions, predicate: Predicate) -> list[Split]:
    """The ledgers are held while it is planned; a task finds out when its files went since."""
    with contextlib.ExitStack() as held:
        logs = {
            where: held.enter_context(contextlib.closing(CompactedLog(log)))
            for where, log in open_logs(options).items()
        }
        ranges = find_ranges(logs, options)
        return split_sources(
            [
                source
                for where, log in predicate.chosen(logs).items()
                for source in logs[where].sources(predicate.narrowed(ranges[where], log))
            ],
            options,
        )
