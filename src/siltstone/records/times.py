"""v2 batches to offsets and timestamps, for somebody who wants nothing else of their records.

Only the front of each record is read; its size leads to the next one, so what a key, a value or a header says
of itself is not looked at. ``modern`` decodes everything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from siltstone.errors import CorruptRecordError
from siltstone.records.codecs import DEFAULT_LIMIT, SPANS_END, Scratch
from siltstone.records.inflate import inflate, refuse_impossible_counts
from siltstone.records.kernel import kernel
from siltstone.records.layout import Bytes, Directory, Int32, Int64
from siltstone.records.record import DECODE_REASON, record_head


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeColumns:
    """One row a record, in log order: ``batch`` (row in the batch directory, int32), ``offset`` (int64),
    ``timestamp`` (ms, int64)."""

    batch: Int32
    offset: Int64
    timestamp: Int64

    def __len__(self) -> int:
        return len(self.offset)


@kernel
def _decode_times(
    data: Bytes,
    starts: Int64,
    ends: Int64,
    batches: Directory,
    batch: Int32,
    offset: Int64,
    timestamp: Int64,
) -> tuple[int, int]:
    """Fill the columns: (-1 or the bad batch's row, reason)."""
    base = data.ctypes.data
    count = 0
    for i in range(len(batches)):
        header = batches[i]
        first_offset, last_offset = header.base_offset, header.last_offset
        first_time, last_time = header.base_timestamp, header.max_timestamp
        log_append = (header.attributes & 8) != 0
        at = base + starts[i]
        batch_end = base + ends[i]
        previous = first_offset - 1
        for _ in range(header.count):
            _, end, timestamp_delta, offset_delta, reason = record_head(at, batch_end)
            if reason:
                return i, reason
            here = first_offset + offset_delta
            if here <= previous or here > last_offset:
                return i, 5
            previous = here
            row = np.uint64(count)
            batch[row] = i
            offset[row] = here
            timestamp[row] = last_time if log_append else first_time + timestamp_delta
            count += 1
            at = end
        if at != batch_end:
            return i, 6
    return -1, 0


def decode_times(
    window: Bytes,
    batches: Directory,
    scratch: Scratch | None = None,
    *,
    limit: int = DEFAULT_LIMIT,
    path: str = "",
    origin: int = 0,
) -> TimeColumns:
    """Offsets and timestamps of every record of ``batches`` (rows of a scan over ``window``, magic 2).

    ``scratch`` takes decompressed bytes, ``limit`` bounds a batch's; ``path`` and ``origin`` (the file
    position of ``window[0]``) are for messages. Raises CorruptRecordError with the position of the first
    batch that makes no sense.
    """
    data, starts, ends = inflate(window, batches, scratch or Scratch(), limit=limit, path=path, origin=origin)
    assert len(data) <= SPANS_END, "no batch is larger"
    counts = batches["count"].astype(np.int64)
    refuse_impossible_counts(batches, counts, ends - starts, path, origin, limit)
    total = int(counts.sum())
    columns = TimeColumns(
        batch=np.empty(total, np.int32), offset=np.empty(total, np.int64), timestamp=np.empty(total, np.int64)
    )
    bad, reason = _decode_times(data, starts, ends, batches, columns.batch, columns.offset, columns.timestamp)
    if bad >= 0:
        raise CorruptRecordError(path, origin + int(batches["position"][bad]), DECODE_REASON[reason])
    return columns
