"""``view=latest``: finds the last record of each key, before its records are read.

::

    file splits of the logs ─ decode, hash, de-duplicate ─► entries by bucket ─ merge ─► offsets, by split
                         threads, or tasks                                 threads, or tasks

``find_retained`` does it in this process: the kernels release the GIL, so all cores work. ``spark.read`` does
the same in tasks, so that no process has the entries of all keys. Keys are compared as in the cleaner,
by 96 bits of a keyed hash, and within a partition: Kafka's producers send all records of a key to one.

Every file split is read from the file that was there when the query was planned, or the query fails: a log
that was cleaned since may have lost records that were the last of their keys."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
import secrets
import threading
from bisect import bisect, bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO

import numpy as np

from siltstone.base import files
from siltstone.base.records.decode import decode_record_keys
from siltstone.base.records.layout import Int64
from siltstone.compaction.keys import ENTRY_BYTES, EntryBlob, KeyCollector, merge_bucket
from siltstone.log.names import TopicPartition
from siltstone.tables.options import ReadOptions
from siltstone.tables.reading import decode, has_one_of_keys
from siltstone.tables.splits import (
    OPEN_COST_BYTES,
    FileSplit,
    Logs,
    OffsetRange,
    TaskSplit,
    encode_offsets,
    offsets_in,
    snapshot_range,
    split_ranges,
)

PART_BYTES = 64 << 20
"""The largest file split of a log whose keys one thread collects at a time."""
MEMORY_BYTES = 1 << 30
"""Bytes of key entries that ``find_retained`` has in memory; others go to a temporary file."""
_BUCKET_BYTES = 128 << 20
"""Bytes of a log for each bucket. A bucket has 2²¹ entries if records have 64 bytes; few are smaller."""
_COLLECTOR_ENTRIES_MIN, _COLLECTOR_ENTRIES_MAX = 1 << 12, 1 << 23
"""Bounds of a collector's capacity, in entries: for small file splits, and for large ones (128 MiB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPlan:
    """The plan of finding the last record of each key.

    ``file_splits``: all offsets of the ``logs`` (ascending), log by log, whatever the query reads of them.
    The buckets of all logs are numbered one after another: log n has those from ``first_buckets[n]`` on,
    below ``first_buckets[n + 1]``. ``hash_key``: the key (two 64-bit numbers) of the keyed hash, the same in
    all tasks."""

    logs: tuple[TopicPartition, ...]
    file_splits: tuple[FileSplit, ...]
    first_buckets: tuple[int, ...]
    hash_key: tuple[int, int]

    @property
    def buckets(self) -> int:
        """How many buckets there are."""
        return self.first_buckets[-1]

    @property
    def size(self) -> int:
        """The bytes of the file splits."""
        return sum(file_split.size for file_split in self.file_splits)

    def log_of(self, bucket: int) -> int:
        """The number of the log that a bucket is of."""
        return bisect(self.first_buckets, bucket) - 1


def plan_keys(
    logs: Logs,
    ranges: Mapping[TopicPartition, OffsetRange],
    options: ReadOptions,
    *,
    parallelism: int,
    part_bytes: int = PART_BYTES,
) -> KeyPlan:
    """Cut the ranges of the logs into file splits of ``part_bytes``. ``parallelism``: how many tasks or
    threads run at one time."""
    # The query's own bounds of a split are for the records that it returns, and not for these file splits.
    file_split_options = dataclasses.replace(
        options, min_partitions=None, max_partition_bytes=part_bytes, max_records_per_partition=None
    )
    file_splits: list[FileSplit] = []
    first_buckets = [0]
    for topic_partition, log in logs.items():
        splits = split_ranges([snapshot_range(log, ranges[topic_partition])], file_split_options)
        file_splits_of_log = [file_split for split in splits for file_split in split.file_splits]
        size = sum(file_split.size for file_split in file_splits_of_log)
        buckets = max(1, min(parallelism, size // OPEN_COST_BYTES), -(-size // _BUCKET_BYTES))
        first_buckets.append(first_buckets[-1] + buckets)
        file_splits += file_splits_of_log
    return KeyPlan(
        logs=tuple(logs),
        file_splits=tuple(file_splits),
        first_buckets=tuple(first_buckets),
        hash_key=(secrets.randbits(64), secrets.randbits(64)),
    )


def collect_entries(
    key_plan: KeyPlan, file_splits: Iterable[FileSplit], options: ReadOptions
) -> Iterator[EntryBlob]:
    """The key entries of some of the plan's file splits, which are in its order.

    The blobs have the plan's bucket numbers. A blob is valid until the next one is requested. Tombstones have
    entries; records without a key, or with none of the keys of the query's filter, have none. Raises what
    reading raises.
    """
    wanted_keys = options.row_filter.keys
    for topic_partition, group in itertools.groupby(
        file_splits, lambda file_split: file_split.topic_partition
    ):
        file_splits_of_log = list(group)
        log_number = bisect_left(key_plan.logs, topic_partition)
        first, end = key_plan.first_buckets[log_number : log_number + 2]
        capacity = sum(file_split.size for file_split in file_splits_of_log) // ENTRY_BYTES
        collector = KeyCollector(
            hash_key=key_plan.hash_key,
            first_dirty=0,  # all offsets count as dirty: each may be the last of its key
            buckets=end - first,
            capacity=min(max(capacity, _COLLECTOR_ENTRIES_MIN), _COLLECTOR_ENTRIES_MAX),
        )

        def blobs(file_splits_of_log: Sequence[FileSplit], collector: KeyCollector) -> Iterator[EntryBlob]:
            for file_split in file_splits_of_log:
                for columns, *_ in decode(file_split, options, decode_record_keys):
                    wanted = columns.key_size >= 0
                    if wanted_keys is not None:
                        wanted &= has_one_of_keys(columns, wanted_keys)
                    yield from collector.add(columns, wanted)
            yield from collector.finish()

        for blob in blobs(file_splits_of_log, collector):
            yield dataclasses.replace(blob, bucket=first + blob.bucket)


def merge_entries(key_plan: KeyPlan, bucket: int, blobs: list[EntryBlob]) -> Int64:
    """The last offset of each key of a bucket, in no order."""
    log_number = key_plan.log_of(bucket)
    first, end = key_plan.first_buckets[log_number : log_number + 2]
    return merge_bucket(blobs, bucket - first, end - first).offsets


def splits_by_log(splits: Iterable[TaskSplit]) -> dict[TopicPartition, list[tuple[int, OffsetRange]]]:
    """By log, (number, offset range) of each split that reads it: from the split's first file split of the
    log to its last."""
    by_log: dict[TopicPartition, list[tuple[int, OffsetRange]]] = {}
    for number, split in enumerate(splits):
        for topic_partition, group in itertools.groupby(
            split.file_splits, lambda file_split: file_split.topic_partition
        ):
            file_splits_of_log = list(group)
            offset_range = OffsetRange(file_splits_of_log[0].start, file_splits_of_log[-1].end)
            by_log.setdefault(topic_partition, []).append((number, offset_range))
    return by_log


def with_retained(split: TaskSplit, retained: Mapping[TopicPartition, Int64]) -> TaskSplit:
    """The split with the retained offsets (ascending) of each file split; a file split without any is left
    out."""
    return TaskSplit(
        file_splits=tuple(
            dataclasses.replace(file_split, retained=encode_offsets(offsets))
            for file_split in split.file_splits
            if file_split.topic_partition in retained
            and len(
                offsets := offsets_in(retained[file_split.topic_partition], file_split.start, file_split.end)
            )
        )
    )


# In this process: threads collect the entries of file splits, and then merge buckets. ``MEMORY_BYTES`` of
# entries stay in memory, the others go to a temporary file. Each core also needs the memory of a window, of a
# collector and of a bucket.


class _KeyEntries:
    """Key entries by bucket: ``memory_bytes`` of them in memory, the others in a temporary file.

    Threads may add entries at the same time, and then, when all are added, take the blobs of buckets."""

    def __init__(self, memory_bytes: int) -> None:
        self._free_bytes = memory_bytes
        self._in_memory: dict[int, list[EntryBlob]] = {}
        self._in_file: dict[int, list[tuple[int, int, int]]] = {}
        """By bucket: (base offset, position in the temporary file, number of entries) of each blob."""
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None

    def add(self, blob: EntryBlob) -> None:
        """Add a copy of the entries, since the collector reuses their arrays."""
        with self._lock:
            if blob.entries.nbytes <= self._free_bytes:
                self._in_memory.setdefault(blob.bucket, []).append(blob.copied())
                self._free_bytes -= blob.entries.nbytes
                return
            if self._file is None:
                self._file = files.temporary_file()
            position = self._file.seek(0, io.SEEK_END)
            self._file.write(np.ascontiguousarray(blob.entries).data)
            written = (blob.base_offset, position, len(blob.entries))
            self._in_file.setdefault(blob.bucket, []).append(written)

    def take(self, bucket: int) -> list[EntryBlob]:
        """The blobs of a bucket. Call it once: it frees their memory."""
        blobs = self._in_memory.pop(bucket, [])
        for base_offset, position, count in self._in_file.get(bucket, []):
            assert self._file is not None
            with self._lock:
                self._file.seek(position)
                raw = self._file.read(count * ENTRY_BYTES)
            entries = np.frombuffer(raw, np.uint64).reshape(-1, 2)
            blobs.append(EntryBlob(bucket=bucket, is_dirty=True, base_offset=base_offset, entries=entries))
        return blobs

    def close(self) -> None:
        """Remove the temporary file."""
        if self._file is not None:
            self._file.close()


def find_last_offsets(
    key_plan: KeyPlan, options: ReadOptions, *, memory_bytes: int = MEMORY_BYTES
) -> dict[TopicPartition, Int64]:
    """By log, the ascending offsets of the last record of each key. Raises what reading raises."""
    threads = min(os.cpu_count() or 1, max(len(key_plan.file_splits), 1))
    with contextlib.closing(_KeyEntries(memory_bytes)) as entries, ThreadPoolExecutor(threads) as pool:

        def collect(file_split: FileSplit) -> None:
            for blob in collect_entries(key_plan, [file_split], options):
                entries.add(blob)

        list(pool.map(collect, key_plan.file_splits))  # waits for all, and raises the first error
        merged = pool.map(
            lambda bucket: merge_entries(key_plan, bucket, entries.take(bucket)), range(key_plan.buckets)
        )
        by_log: list[list[Int64]] = [[np.empty(0, np.int64)] for _ in key_plan.logs]
        for bucket, offsets in enumerate(merged):
            by_log[key_plan.log_of(bucket)].append(offsets)
    return {log: np.sort(np.concatenate(parts)) for log, parts in zip(key_plan.logs, by_log, strict=True)}


def find_retained(splits: Iterable[TaskSplit], key_plan: KeyPlan, options: ReadOptions) -> list[TaskSplit]:
    """The splits with the offsets that they are to read; a split without any is left out."""
    last_offsets = find_last_offsets(key_plan, options)
    with_offsets = [with_retained(split, last_offsets) for split in splits]
    return [split for split in with_offsets if split.file_splits]
