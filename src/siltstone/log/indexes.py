"""A segment's indexes: their formats, building them, and checking them against the log.

Kafka's ``OffsetIndex``, ``TimeIndex`` and ``TransactionIndex``.

One entry of each, with the byte at which each field begins::

               0                 4                 8                12
    .index     | relative offset | position        |                           OffsetIndex, 8 bytes

    .timeindex | timestamp in ms                   | relative offset |          TimeIndex, 12 bytes

               0         2             10             18            26                   34
    .txnindex  | version | producer id | first offset | last offset | last stable offset |    TransactionIndex

Numbers are signed and big-endian. A file has entries and nothing else: no header, no checksum. A relative
offset is an offset less the segment's base offset. The batch with an offset entry's offset starts at its
position in the ``.log``; a time entry has the largest timestamp up to its offset. A broker preallocates
``.index`` and ``.timeindex``, so zeros may follow the last entry.

All of them can be built again from the ``.log`` alone, and ``IndexBuilder`` builds what Kafka would have
built: before a batch, when more than ``index.interval.bytes`` were written since the last entry, one offset
entry, and one time entry if a larger timestamp has been seen; one more time entry at the end.

Recovery builds an index again that its log contradicts; ``dump`` reports each wrong entry. Brokers differ
in what they write, so an entry is compared with what every one of them keeps:

* offset entry: a batch starts at its position, and its offset ends that batch, or a later one that starts
  before the next entry's position (one entry for a whole append: message sets, and followers of Kafka 3);
* time entry: the batch that has its offset has its timestamp as the largest (Kafka 4 writes the batch's
  last offset, Kafka 2 that of the record).

The entries of a transaction index are checked here; ``transactions`` compares them with the markers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from siltstone.base import files
from siltstone.base.config import LONG_MAX
from siltstone.base.errors import CorruptFileError, CorruptRecordError
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import BatchHeaders, Int32, Int64
from siltstone.log.lookup import batch_headers
from siltstone.log.names import CLEANED, DELETED, SWAP

Entries = np.ndarray[tuple[int], np.dtype[np.void]]

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
"""For reading one entry without an array."""
LARGEST_RELATIVE_OFFSET = (1 << 31) - 1
ENTRY_OF_KIND = {"index": OFFSET_ENTRY, "timeindex": TIME_ENTRY, "txnindex": TRANSACTION_ENTRY}

_SINCE_ENTRY, _LARGEST, _LARGEST_OFFSET, _LAST_TIME, _POSITION = range(5)
"""The state of a builder: bytes since the last entry, the largest timestamp and the last offset of its batch,
the last time entry's timestamp, the position of the next batch."""


class AbortedTransaction(NamedTuple):
    """An entry of a ``.txnindex``: a producer's records from ``first_offset`` to its abort marker at
    ``last_offset`` do not count (Kafka's ``AbortedTxn``)."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_aborted(transactions: Iterable[AbortedTransaction]) -> bytes:
    """The bytes of a ``.txnindex`` with these entries."""
    return np.array([(0, *entry) for entry in transactions], TRANSACTION_ENTRY).tobytes()


@kernel
def _index_batches(
    base_offset: int,
    last_offset: Int64,
    max_timestamp: Int64,
    size: Int64,
    interval: int,
    limit: int,
    state: Int64,
    offsets: Int32,
    times: Int64,
) -> tuple[int, int]:
    """Add consecutive batches as Kafka's ``LogSegment.append`` does, one batch a call.

    Writes at most ``limit`` offset entries to ``offsets`` and their time entries to ``times``, one row an
    entry; returns how many of each. ``state`` goes on from call to call.
    """
    offset_count = time_count = 0
    for i in range(len(size)):
        # The batch's timestamp counts before an entry is added, so a time entry covers this batch too.
        if max_timestamp[i] > state[_LARGEST]:
            state[_LARGEST] = max_timestamp[i]
            state[_LARGEST_OFFSET] = last_offset[i]
        if state[_SINCE_ENTRY] > interval and offset_count < limit:
            offsets[offset_count, 0] = last_offset[i] - base_offset
            offsets[offset_count, 1] = state[_POSITION]
            offset_count += 1
            # ``TimeIndex.maybeAppend``: no entry unless the largest timestamp has grown since the last one.
            if state[_LARGEST] > state[_LAST_TIME]:
                times[time_count, 0] = state[_LARGEST]
                times[time_count, 1] = state[_LARGEST_OFFSET] - base_offset
                time_count += 1
                state[_LAST_TIME] = state[_LARGEST]
            state[_SINCE_ENTRY] = 0
        # Its bytes count after that: the first batch of a segment never has an entry.
        state[_POSITION] += size[i]
        state[_SINCE_ENTRY] += size[i]
    return offset_count, time_count


class IndexBuilder:
    """Builds a segment's offset and time index from its batches, added in log order.

    ``interval`` is ``index.interval.bytes``; ``size_limit`` is ``segment.index.bytes``: a full index gets no
    more entries.
    """

    def __init__(self, base_offset: int, interval: int, size_limit: int) -> None:
        self._base_offset = base_offset
        self._interval = interval
        self._limit = size_limit // OFFSET_ENTRY.itemsize
        self._state = np.zeros(5, np.int64)
        self._state[[_LARGEST, _LAST_TIME]] = -1
        self._offsets: list[Int32] = []
        self._times: list[Int64] = []

    @property
    def largest_timestamp(self) -> int:
        """Largest batch timestamp so far, in ms; -1 before any."""
        return int(self._state[_LARGEST])

    def add(self, last_offset: Int64, max_timestamp: Int64, size: Int64) -> None:
        """Add consecutive batches: int64 arrays, one row a batch."""
        offsets = np.empty((len(size), 2), np.int32)
        times = np.empty((len(size), 2), np.int64)
        offset_count, time_count = _index_batches(
            self._base_offset,
            last_offset,
            max_timestamp,
            size,
            self._interval,
            self._limit,
            self._state,
            offsets,
            times,
        )
        self._offsets.append(offsets[:offset_count].copy())
        self._times.append(times[:time_count].copy())
        self._limit -= offset_count

    def add_batches(self, batches: BatchHeaders) -> None:
        """Add batches by their headers."""
        self.add(
            np.ascontiguousarray(batches["last_offset"]),
            np.ascontiguousarray(batches["max_timestamp"]),
            batches["size"].astype(np.int64),
        )

    def finish(self) -> dict[str, bytes]:
        """The content of the index files by kind, "index" and "timeindex", with the last time entry."""
        offsets = np.concatenate([*self._offsets, np.empty((0, 2), np.int32)])
        times = np.concatenate([*self._times, np.empty((0, 2), np.int64)])
        if self._state[_LARGEST] > self._state[_LAST_TIME]:
            relative = int(self._state[_LARGEST_OFFSET]) - self._base_offset
            last = np.array([[self._state[_LARGEST], relative]], np.int64)
            times = np.concatenate([times, last])
        entries = np.empty(len(times), TIME_ENTRY)
        entries["timestamp"], entries["relative_offset"] = times[:, 0], times[:, 1]
        return {"index": offsets.astype(">i4").tobytes(), "timeindex": entries.tobytes()}


def read_entries(data: bytes, kind: str, path: str = "") -> Entries:
    """An index file's entries (see the drawing), without preallocated zeros at the end.

    ``kind`` is "index", "timeindex" or "txnindex". Raises CorruptFileError when the size is not a whole
    number of entries, a transaction index has another version, an offset index does not ascend, or a time
    index descends.
    """
    dtype = ENTRY_OF_KIND[kind]
    if len(data) % dtype.itemsize:
        raise CorruptFileError(
            path, len(data), f"the size is not a multiple of {dtype.itemsize}, the size of an entry"
        )
    rows = np.frombuffer(data, dtype)
    if kind == "txnindex":
        bad = np.flatnonzero(rows["version"] != 0)
        if len(bad):
            reason = f"the entry has version {rows['version'][bad[0]]}; only version 0 is supported"
            raise CorruptFileError(path, int(bad[0]) * dtype.itemsize, reason)
        return rows
    names = ("relative_offset", "position") if kind == "index" else ("timestamp", "relative_offset")
    used = np.flatnonzero((rows[names[0]] != 0) | (rows[names[1]] != 0))
    entries = rows[: int(used[-1]) + 1 if len(used) else 0]
    for name in names:
        values = entries[name].astype(np.int64)
        strict = kind == "index"
        back = np.flatnonzero(np.diff(values) < (1 if strict else 0))
        if len(back) or (strict and len(values) and values[0] < 0):
            number = int(back[0]) + 1 if len(back) else 0
            reason = f"the entry's {name} is {'not above' if strict else 'below'} that of the entry before"
            raise CorruptFileError(path, number * dtype.itemsize, reason)
    return entries


_LOGS_OF = {
    "": ("", SWAP, DELETED),
    CLEANED: (CLEANED, SWAP, ""),
    SWAP: (SWAP, CLEANED, ""),
    DELETED: (DELETED, ""),
}
"""By an index's suffix: the suffixes that its log may have during a swap, which renames file by file; the
likeliest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """A file of a log directory by its name: its kind, base offset (-1: none) and swap suffix or ""."""

    path: str
    kind: str
    base_offset: int = -1
    suffix: str = ""

    def log_path(self) -> str | None:
        """The log of this index, in whatever state of a swap; None where there is no log."""
        stem = self.path.removesuffix(self.suffix).removesuffix(self.kind)
        candidates = [f"{stem}log{suffix}" for suffix in _LOGS_OF[self.suffix]]
        return next((path for path in candidates if files.exists(path)), None)


def differs_from_log(index: NamedFile, log: str) -> bool:
    """Is an offset or time index damaged, or does it contradict its ``log``? Raises OSError."""
    entries, damage = entries_before_damage(files.read_bytes(index.path), index)
    if damage or any(sanity_check(index, entries)):
        return True
    return any(error.path == index.path for error in check_against_log(index, entries, log))


def entries_before_damage(data: bytes, index: NamedFile) -> tuple[Entries, list[CorruptFileError]]:
    """The entries before the first damage, and that damage."""
    width = ENTRY_OF_KIND[index.kind].itemsize
    damage: list[CorruptFileError] = []
    while True:
        try:
            return read_entries(data, index.kind, index.path), damage[-1:]
        except CorruptFileError as error:
            damage.append(error.with_traceback(None))
            data = data[: min(error.position, len(data) - 1) // width * width]


def sanity_check(index: NamedFile, entries: Entries) -> Iterator[CorruptFileError]:
    """The first entry whose offset is below the segment's base offset, if any (Kafka's sanity check)."""
    if index.kind == "txnindex":
        bad = np.flatnonzero(
            (entries["last_offset"] < index.base_offset) | (entries["first_offset"] > entries["last_offset"])
        )
    else:
        bad = np.flatnonzero(entries["relative_offset"] < 0)
    if len(bad):
        position = int(bad[0]) * entries.dtype.itemsize
        yield CorruptFileError(
            index.path, position, "the entry's offset is below the base offset of the segment"
        )


_COLUMNS = ["position", "base_offset", "last_offset", "max_timestamp"]
_CHECKED = np.dtype([(name, np.int64) for name in _COLUMNS])
"""What entries are compared with: one row a batch of the log."""


def check_against_log(index: NamedFile, entries: Entries, log: str) -> Iterator[CorruptFileError]:
    """The entries of an offset or time index that its ``log`` contradicts, and the log's damage.

    Raises OSError.
    """
    parts, readable_end = [np.empty(0, _CHECKED)], LONG_MAX
    try:
        with files.Reader(log) as reader:
            for some in batch_headers(reader):
                parts.append(some[_COLUMNS].astype(_CHECKED))
    except CorruptRecordError as error:
        readable_end = error.position
        yield error.with_traceback(None)
    batches = np.concatenate(parts)
    offsets = entries["relative_offset"].astype(np.int64) + index.base_offset
    if index.kind == "index":
        reasons = _check_offsets(offsets, entries["position"].astype(np.int64), batches, readable_end)
    else:
        reasons = _check_times(offsets, entries["timestamp"].astype(np.int64), batches, readable_end)
    for number, reason in reasons:
        yield CorruptFileError(index.path, number * entries.dtype.itemsize, reason)


def _take(values: Int64, rows: npt.NDArray[np.intp]) -> Int64:
    """``values[rows]``, and -2, which is no offset or position, for a row after the last one."""
    padded = np.append(values, np.int64(-2))
    return padded[np.minimum(rows, len(values))]


def _check_offsets(
    offsets: Int64, positions: Int64, batches: Entries, readable_end: int
) -> Iterator[tuple[int, str]]:
    """(entry, reason) of each offset entry that its log contradicts, below ``readable_end``."""
    rows = np.searchsorted(batches["position"], positions)
    starts, ends = _take(batches["position"], rows), _take(batches["last_offset"], rows)
    later = np.searchsorted(batches["last_offset"], offsets)
    following = np.append(positions[1:], LONG_MAX)
    # An entry may be for a whole append: its offset then ends a later batch before the next entry.
    ends_later = (
        (_take(batches["last_offset"], later) == offsets)
        & (later >= rows)
        & (_take(batches["position"], later) < following)
    )
    readable = positions < readable_end
    for number in np.flatnonzero(readable & ((starts != positions) | ~ends_later)).tolist():
        entry = f"offset {offsets[number]} position {positions[number]}"
        if starts[number] != positions[number]:
            yield number, f"{entry}: no batch of the log starts at that position"
        else:
            yield number, f"{entry}: the batch at that position ends at offset {ends[number]}"


def _check_times(
    offsets: Int64, times: Int64, batches: Entries, readable_end: int
) -> Iterator[tuple[int, str]]:
    """(entry, reason) of each time entry that its log contradicts, if its batch was read."""
    rows = np.searchsorted(batches["last_offset"], offsets)
    inside = (rows < len(batches)) & (_take(batches["base_offset"], rows) <= offsets)
    largest = _take(batches["max_timestamp"], rows)
    readable = (rows < len(batches)) | (readable_end == LONG_MAX)
    for number in np.flatnonzero(readable & (~inside | (largest != times))).tolist():
        entry = f"timestamp {times[number]} offset {offsets[number]}"
        if inside[number]:
            yield number, f"{entry}: its batch has largest timestamp {largest[number]}"
        else:
            yield number, f"{entry}: no batch of the log has that offset"
