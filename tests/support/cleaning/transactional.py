"""Batches of transactions, markers and ``.txnindex`` files, made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from siltstone.base.records.control import end_transaction_marker
from siltstone.log.indexes import TRANSACTION_ENTRY
from siltstone.log.names import segment_file
from tests.support.cleaning.logs import Rec, batch, one, write_log


def data(offset: int, producer: int, key: str, value: str, count: int = 1) -> bytes:
    """A batch of a transaction: ``count`` records with one key."""
    rows = [Rec(offset=offset + i, key=key.encode(), value=value.encode()) for i in range(count)]
    return batch(rows, transactional=True, producer_id=producer, producer_epoch=0, base_sequence=0)


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    """The batch that ends a transaction."""
    built = end_transaction_marker(
        is_commit=commit, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1
    )
    return offset.to_bytes(8, "big") + built.tobytes()[8:]


def write_index(partition: Path, base: int, *entries: tuple[int, int, int, int]) -> None:
    """A segment's index: (producer, first, last, last stable offset)."""
    rows = np.array([(0, *entry) for entry in entries], TRANSACTION_ENTRY)
    (partition / segment_file(base, "txnindex")).write_bytes(rows.tobytes())


def a_log(path: Path, high_watermark: int = 1 << 40) -> Path:
    """Three producers whose transactions lie in one another and over segments; both outcomes, side by side.

    Ids and offsets are one bit apart where they can be, so that a flip hits what is there.
    """
    segments = {
        0: [data(0, 4, "a", "committed"), data(1, 5, "b", "aborted"), marker(2, 4, commit=True)],
        3: [data(3, 4, "c", "aborted", 2), marker(5, 5, commit=False), data(6, 5, "d", "committed")],
        7: [marker(7, 4, commit=False), data(8, 4, "a", "aborted"), marker(9, 5, commit=True)],
        10: [data(10, 5, "b", "committed"), marker(11, 4, commit=False), data(12, 4, "c", "committed")],
        13: [data(13, 6, "d", "aborted"), marker(14, 6, commit=False), data(15, 6, "a", "aborted")],
        16: [marker(16, 5, commit=True), marker(17, 4, commit=True), marker(18, 5, commit=False)],
        19: [marker(19, 6, commit=False)],
        20: [one(20, "z")],
    }
    partition = write_log(path, segments, high_watermark=high_watermark)
    write_index(partition, 3, (5, 1, 5, 3))
    write_index(partition, 7, (4, 3, 7, 6))
    write_index(partition, 10, (4, 8, 11, 10))
    write_index(partition, 13, (6, 13, 14, 10))
    write_index(partition, 19, (6, 15, 19, 20))
    return partition
