"""Control batches, which end a transaction in a log (``EndTransactionMarker``, KIP-98).

A marker is a batch of one record with the control and the transactional bit set and no sequence::

    key    int16 version = 0 | int16 type, 0: abort, 1: commit
    value  int16 version = 0 | int32 coordinator epoch

Key and value are big-endian. A later version may only append fields to these. Other types (a KRaft leader
change, a snapshot's header and footer) have no producer id and end no transaction.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.build import NewBatchHeader, Spans, build_batch
from siltstone.base.records.columns import read_record_fields, read_record_head, span_bytes
from siltstone.base.records.decode import decode_records
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import BATCH_OVERHEAD, CODEC_MASK, BatchHeaders, Bytes

ABORT, COMMIT = 0, 1
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionMarker:
    """The end of a transaction. ``coordinator_epoch``: the epoch of the transaction coordinator that ended
    it."""

    is_commit: bool
    coordinator_epoch: int


def parse_marker(key: bytes | None, value: bytes | None) -> EndTransactionMarker | None:
    """Parse a control record; None for one that does not end a transaction.

    Raises ValueError for a key, or a marker's value, that is too short or has a negative version.
    """
    if key is None or len(key) < _KEY.size:
        raise ValueError("a control record's key is too short")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise ValueError(f"a control record's key has version {version}")
    if kind not in (ABORT, COMMIT):
        return None
    if value is None or len(value) < _VALUE.size:
        raise ValueError("a transaction marker's value is too short")
    version, epoch = _VALUE.unpack_from(value)
    if version < 0:
        raise ValueError(f"a transaction marker's value has version {version}")
    return EndTransactionMarker(is_commit=kind == COMMIT, coordinator_epoch=epoch)


def read_batch_marker(
    data: Bytes, batches: BatchHeaders, row: int, path: str = "", origin: int = 0
) -> EndTransactionMarker | None:
    """The marker that the control batch ``batches[row]`` of ``data`` holds.

    None for other control records, and for a batch that cleaning has emptied. ``path`` and ``origin`` (the
    file position of ``data[0]``) are for errors. Raises CorruptRecordError for a marker that cannot be
    parsed.
    """
    batch = batches[row : row + 1]
    if not batch["count"].item():
        return None
    if batch["attributes"].item() & CODEC_MASK:
        columns = decode_records(data, batch, path=path, origin=origin)
        key, value = columns.key(0), columns.value(0)
    else:
        spans = _first_record(data, batch["position"].item(), batch["size"].item())
        key, value = span_bytes(data, *spans[:2]), span_bytes(data, *spans[2:])
    try:
        return parse_marker(key, value)
    except ValueError as error:
        raise CorruptRecordError(path, origin + batch["position"].item(), str(error)) from None


@kernel
def _first_record(data: Bytes, position: int, size: int) -> tuple[int, int, int, int]:
    """(key start, key size, value start, value size) of the first record of an uncompressed batch; both sizes
    are -1, for null, if it cannot be parsed."""
    base = data.ctypes.data
    at, end, _, _, reason = read_record_head(base + position + BATCH_OVERHEAD, base + position + size)
    if reason == 0:
        key, key_size, value, value_size, _, _, reason = read_record_fields(at, end)
    if reason != 0:
        return 0, -1, 0, -1
    return key - base, key_size, value - base, value_size


def end_transaction_marker(
    *, is_commit: bool, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp_ms: int
) -> Bytes:
    """Build the control batch that ends a producer's transaction, with base offset 0: uint8."""
    return build_batch(
        NewBatchHeader(
            producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True
        ),
        offset=np.zeros(1, np.int64),
        timestamp=np.full(1, timestamp_ms, np.int64),
        keys=Spans.of([_KEY.pack(0, COMMIT if is_commit else ABORT)]),
        values=Spans.of([_VALUE.pack(0, coordinator_epoch)]),
    )
