"""Key entries of a ledger in tests."""

from __future__ import annotations

import numpy as np

from siltstone.base.records.layout import Words
from siltstone.compaction.keys import EntryBlob, gather_by_shard
from siltstone.compaction.ledger.keys import KEY_INDEX_PARTITIONS


def spread_entries(entries: Words) -> tuple[Words, np.ndarray]:
    """Entries in order of partition, and the bounds of the partitions."""
    blob = EntryBlob(bucket=0, entries=entries)
    return gather_by_shard([blob], KEY_INDEX_PARTITIONS, 0, KEY_INDEX_PARTITIONS, entries.shape[1])
