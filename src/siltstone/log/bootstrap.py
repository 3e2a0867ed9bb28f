"""``bootstrap.checkpoint``: the records with which a KRaft controller starts an empty metadata log.

``kafka-storage format`` writes it with the features of the cluster; Kafka's ``BootstrapDirectory`` reads
it. A snapshot of the metadata log has the same form::

    control batch   SnapshotHeader: key version int16 0, type int16 3
                                    value version int16 0, timestamp int64 0, number of tagged fields 0
    batches         metadata records, up to 1,000 in each
    control batch   SnapshotFooter: key version int16 0, type int16 4
                                    value version int16 0, number of tagged fields 0

The timestamp in a snapshot's header is that of the last record of the log that it covers; here it is 0, since
there is no log yet.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from siltstone.base.records.build import NewBatchHeader, Spans, build_batch
from siltstone.log.metadata_log import SNAPSHOT_FOOTER, SNAPSHOT_HEADER

BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
RECORDS_PER_BATCH = 1_000
_CONTROL_KEY = struct.Struct(">hh")
"""The key of a control record: version, type."""
_HEADER_VALUE = struct.Struct(">hqB").pack(0, 0, 0)
_FOOTER_VALUE = struct.Struct(">hB").pack(0, 0)


def bootstrap_checkpoint(records: Sequence[bytes], now_ms: int) -> bytes:
    """The file's bytes. ``records``: frames of metadata records (``base.records.metadata``), in order."""
    batches = [_batch(0, [_HEADER_VALUE], now_ms, control_type=SNAPSHOT_HEADER)]
    for start in range(0, len(records), RECORDS_PER_BATCH):
        batches.append(_batch(1 + start, records[start : start + RECORDS_PER_BATCH], now_ms))
    batches.append(_batch(1 + len(records), [_FOOTER_VALUE], now_ms, control_type=SNAPSHOT_FOOTER))
    return b"".join(batches)


def _batch(
    base_offset: int, values: Sequence[bytes], now_ms: int, *, control_type: int | None = None
) -> bytes:
    """A batch with these records' values. ``control_type``: the type of a control batch's records; None for
    metadata records, which have no key."""
    keys = [None if control_type is None else _CONTROL_KEY.pack(0, control_type)] * len(values)
    return build_batch(
        NewBatchHeader(base_offset=base_offset, control=control_type is not None),
        offset=np.arange(base_offset, base_offset + len(values), dtype=np.int64),
        timestamp=np.full(len(values), now_ms, np.int64),
        keys=Spans.of(keys),
        values=Spans.of(list(values)),
    ).tobytes()
