"""The last record of each key over a whole log: clean section, dirty section and active segment.

Keys are compared as in the cleaner, by 96 bits of a keyed hash. The log is read twice: for the last offset
of each key, then for the records at these offsets. A key entry takes 16 bytes, and 56 bytes in the merge.
Entries are de-duplicated while they are collected, within ``COLLECTED_BYTES``, so a key that repeats often
takes less memory.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator

import numpy as np

from siltstone.base.records.columns import select
from siltstone.base.records.layout import Int64
from siltstone.compaction.keys import ENTRY_BYTES, EntryBlob, KeyCollector, merge_bucket
from siltstone.log.reading import PolledRecords

COLLECTED_BYTES = 256 << 20
"""The most memory of the collector, in which entries are de-duplicated. When it is full, they are kept for
the merge as they are."""


def last_offsets_of_keys(reader: Iterable[PolledRecords], collected_bytes: int = COLLECTED_BYTES) -> Int64:
    """Ascending offsets of the last record of each key that ``reader`` reads; tombstones count, records
    without a key do not."""
    collector = KeyCollector(
        hash_key=(secrets.randbits(64), secrets.randbits(64)),
        first_dirty=0,  # all offsets count as dirty: each may be the last of its key
        buckets=1,
        capacity=collected_bytes // ENTRY_BYTES,
    )
    entry_blobs: list[EntryBlob] = []
    for polled in reader:
        entry_blobs += (blob.copied() for blob in collector.add(polled.columns, polled.columns.key_size >= 0))
    entry_blobs += (blob.copied() for blob in collector.finish())
    return np.sort(merge_bucket(entry_blobs, 0, 1).offsets)


def latest_records(
    first_reading: Iterable[PolledRecords],
    second_reading: Iterable[PolledRecords],
    *,
    keep_tombstones: bool,
) -> Iterator[PolledRecords]:
    """The records that are the last of their keys, without tombstones unless ``keep_tombstones``. Both
    readings are of the same records: the first finds the offsets, the second yields the records."""
    retained = last_offsets_of_keys(first_reading)
    for polled in second_reading:
        rows = matching_rows(polled.columns.offset, retained)
        if not keep_tombstones:
            rows = rows[polled.columns.value_size[rows] >= 0]
        if len(rows):
            yield PolledRecords(columns=select(polled.columns, rows), batches=polled.batches)


def matching_rows(present: Int64, offsets: Int64) -> Int64:
    """The rows at which ``present`` has one of the ``offsets``; both ascend, and ``present`` is not empty."""
    low, high = np.searchsorted(offsets, [present[0], present[-1] + 1]).tolist()
    rows = np.searchsorted(present, offsets[low:high])
    return np.asarray(rows[present[rows] == offsets[low:high]])
