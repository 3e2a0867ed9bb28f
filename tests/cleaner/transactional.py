"""Batches of transactions, markers and ``.txnindex`` files, made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from siltstone.log.indexes import TRANSACTION_ENTRY
from siltstone.log.names import segment_file
from siltstone.records.control import end_transaction_marker
from tests.cleaner.logs import Rec, batch


def data(offset: int, producer: int, key: str, value: str, count: int = 1) -> bytes:
    """A batch of a transaction: ``count`` records with one key."""
    rows = [Rec(offset=offset + i, key=key.encode(), value=value.encode()) for i in range(count)]
    return batch(rows, transactional=True, producer_id=producer, producer_epoch=0, base_sequence=0)


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    """The batch that ends a transaction."""
    built = end_transaction_marker(
        commit=commit, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1
    )
    return offset.to_bytes(8, "big") + built.tobytes()[8:]


def write_index(partition: Path, base: int, *entries: tuple[int, int, int, int]) -> None:
    """A segment's index: (producer, first, last, last stable offset)."""
    rows = np.array([(0, *entry) for entry in entries], TRANSACTION_ENTRY)
    (partition / segment_file(base, "txnindex")).write_bytes(rows.tobytes())
