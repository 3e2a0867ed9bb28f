"""The last record of each key over a whole log, its tail and its active segment included.

The keys are compared as the cleaner compares them, by 96 bits of a keyed hash. What it costs: the log is
read twice; 16 bytes of memory for a record with a key at worst (for a key where all keys fit
``COLLECTED_BYTES`` twice), and 56 for each of these while they are merged.
"""

from __future__ import annotations

import secrets

import numpy as np

from siltstone.cleaner.collecting import KeyCollector
from siltstone.cleaner.keys import ENTRY_BYTES, EntryBlob, merge_bucket
from siltstone.log.reading import LogReader
from siltstone.records.layout import Int64

COLLECTED_BYTES = 256 << 20
"""Entries that are collected before they are de-duplicated."""


def latest_offsets(reader: LogReader, collected_bytes: int = COLLECTED_BYTES) -> Int64:
    """Ascending offsets of the last record of each key that ``reader`` gives; tombstones are records too.

    Records without a key are no key's last.
    """
    collector = KeyCollector(
        hash_key=(secrets.randbits(64), secrets.randbits(64)),
        first_dirty=0,
        buckets=1,
        capacity=collected_bytes // ENTRY_BYTES,
    )
    blobs: list[EntryBlob] = []
    for polled in reader:
        blobs += (blob.kept() for blob in collector.add(polled.columns, polled.columns.key_size >= 0))
    blobs += (blob.kept() for blob in collector.finish())
    return np.sort(merge_bucket(blobs, 0, 1).offsets)
