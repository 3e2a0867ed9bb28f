"""A segment's indexes: offset, time and aborted transactions.

Kafka's ``OffsetIndex``, ``TimeIndex`` and ``TransactionIndex``.

::

    .index      relative offset 4 | position 4                         8 bytes an entry
    .timeindex  timestamp 8 | relative offset 4                       12
    .txnindex   version 2 | producer id 8 | first offset 8 | last offset 8 | last stable offset 8   34

Big-endian, no header, no checksum; offsets are relative to the segment's base. An entry stands for "at
or before": the batch that holds the offset starts at the position, no later batch is older. All of them
can be built again from the ``.log`` alone, and ``IndexBuilder`` builds what Kafka would have built:
before a batch, when more than ``index.interval.bytes`` went by since the last entry, one offset entry,
and one time entry if a larger timestamp has been seen; one more time entry at the end.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from siltstone.base.errors import CorruptFileError
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import Directory, Int32, Int64

OFFSET_ENTRY = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])
TRANSACTION_ENTRY = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),
        ("last_stable_offset", ">i8"),
    ]
)
ENTRY_STRUCTS = {"index": struct.Struct(">ii"), "timeindex": struct.Struct(">qi")}
"""One entry at a time, without an array."""
LARGEST_RELATIVE_OFFSET = (1 << 31) - 1
ENTRY_OF_KIND = {"index": OFFSET_ENTRY, "timeindex": TIME_ENTRY, "txnindex": TRANSACTION_ENTRY}

_SINCE, _LARGEST, _LARGEST_OFFSET, _LAST_TIME, _POSITION, _LAST_OFFSET, _OFFSETS, _TIMES = range(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexes:
    """A segment's finished indexes as bytes."""

    offset_index: bytes
    time_index: bytes


@kernel
def _index_batches(
    base_offset: int,
    last_offset: Int64,
    max_timestamp: Int64,
    size: Int64,
    interval: int,
    room: int,
    state: Int64,
    offsets: Int32,
    times: Int64,
) -> None:
    """Add a run of batches: entries go to ``offsets`` and ``times`` at the counts in ``state``."""
    for i in range(len(size)):
        if max_timestamp[i] > state[1]:
            state[1] = max_timestamp[i]
            state[2] = last_offset[i]
        if state[0] > interval and state[6] < room:
            offsets[state[6], 0] = last_offset[i] - base_offset
            offsets[state[6], 1] = state[4]
            state[6] += 1
            if state[1] > state[3]:
                times[state[7], 0] = state[1]
                times[state[7], 1] = state[2] - base_offset
                state[7] += 1
                state[3] = state[1]
            state[0] = 0
        state[4] += size[i]
        state[0] += size[i]
        state[5] = last_offset[i]


class IndexBuilder:
    """Builds a segment's offset and time index while its batches go by.

    ``interval`` is ``index.interval.bytes``; ``size_limit`` is ``segment.index.bytes``: an index that is
    full takes no more entries.
    """

    def __init__(self, base_offset: int, interval: int, size_limit: int) -> None:
        self._base_offset = base_offset
        self._interval = interval
        self._room = size_limit // OFFSET_ENTRY.itemsize
        self._state = np.zeros(8, np.int64)
        self._state[[_LARGEST, _LAST_TIME, _LAST_OFFSET]] = -1
        self._offsets: list[Int32] = []
        self._times: list[Int64] = []
        self._count = 0

    @property
    def largest_timestamp(self) -> int:
        """Largest batch timestamp so far, in ms; -1 before any."""
        return int(self._state[_LARGEST])

    def add(self, last_offset: Int64, max_timestamp: Int64, size: Int64) -> None:
        """Batches in log order, as arrays: int64, one row a batch; they follow one another in the file."""
        offsets = np.empty((len(size), 2), np.int32)
        times = np.empty((len(size), 2), np.int64)
        room = self._room - self._count
        self._state[[_OFFSETS, _TIMES]] = 0
        _index_batches(
            self._base_offset,
            last_offset,
            max_timestamp,
            size,
            self._interval,
            room,
            self._state,
            offsets,
            times,
        )
        self._offsets.append(offsets[: self._state[_OFFSETS]].copy())
        self._times.append(times[: self._state[_TIMES]].copy())
        self._count += int(self._state[_OFFSETS])

    def add_directory(self, batches: Directory) -> None:
        """The same from a batch directory."""
        self.add(
            np.ascontiguousarray(batches["last_offset"]),
            np.ascontiguousarray(batches["max_timestamp"]),
            batches["size"].astype(np.int64),
        )

    def finish(self) -> Indexes:
        """The finished indexes, the closing time entry included."""
        offsets = np.concatenate([*self._offsets, np.empty((0, 2), np.int32)])
        times = np.concatenate([*self._times, np.empty((0, 2), np.int64)])
        if self._state[_LARGEST] > self._state[_LAST_TIME]:
            relative = int(self._state[_LARGEST_OFFSET]) - self._base_offset
            last = np.array([[self._state[_LARGEST], relative]], np.int64)
            times = np.concatenate([times, last])
        entries = np.empty(len(times), TIME_ENTRY)
        entries["timestamp"], entries["relative_offset"] = times[:, 0], times[:, 1]
        return Indexes(offset_index=offsets.astype(">i4").tobytes(), time_index=entries.tobytes())


def read_entries(data: bytes, kind: str, path: str = "") -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """An index file's entries (see the drawing), preallocated zeros at the end cut off.

    ``kind`` is "index", "timeindex" or "txnindex". Raises CorruptFileError when the size is not a whole
    number of entries, an offset index does not ascend, or a time index goes back.
    """
    dtype = ENTRY_OF_KIND[kind]
    if len(data) % dtype.itemsize:
        raise CorruptFileError(path, len(data), f"no whole number of {dtype.itemsize}-byte entries")
    found = np.frombuffer(data, dtype)
    if kind == "txnindex":
        bad = np.flatnonzero(found["version"] != 0)
        if len(bad):
            raise CorruptFileError(path, int(bad[0]) * dtype.itemsize, "unknown transaction index version")
        return found
    names = ("relative_offset", "position") if kind == "index" else ("timestamp", "relative_offset")
    used = np.flatnonzero((found[names[0]] != 0) | (found[names[1]] != 0))
    entries = found[: int(used[-1]) + 1 if len(used) else 0]
    for name in names:
        values = entries[name].astype(np.int64)
        strict = kind == "index"
        back = np.flatnonzero(np.diff(values) < (1 if strict else 0))
        if len(back) or (strict and len(values) and values[0] < 0):
            where = (int(back[0]) + 1 if len(back) else 0) * dtype.itemsize
            raise CorruptFileError(path, where, f"{name} does not ascend")
    return entries
