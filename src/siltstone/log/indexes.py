"""A segment's indexes: their formats, building them, and checking them against the log.

Kafka's ``OffsetIndex``, ``TimeIndex`` and ``TransactionIndex``.

One entry of each, with the byte at which each field begins::

               0                 4                 8                12
    .index     | relative offset | position        |                           OffsetIndex, 8 bytes

    .timeindex | timestamp in ms                   | relative offset |          TimeIndex, 12 bytes

               0         2             10             18            26                   34
    .txnindex  | version | producer id | first offset | last offset | last stable offset |    TransactionIndex

Numbers are signed and big-endian. A file has entries and nothing else: no header, no checksum. A relative
offset is an offset minus the segment's base offset. An offset entry says at which position of the ``.log``
the batch with its offset starts. A time entry has the largest timestamp of the records up to its offset. A
broker preallocates ``.index`` and ``.timeindex``, so zeros may follow the last entry.

An offset index and a time index can be rebuilt from the ``.log`` alone. A transaction index also needs the
state of the producers at the segment's start, since a transaction may begin in an earlier segment.
``IndexBuilder`` builds the entries that Kafka writes. When more than ``index.interval.bytes`` were written
since the last entry, the next batch gets an offset entry, and a time entry if the largest timestamp has
grown. At the end there is one more time entry.

Recovery rebuilds an index that its log contradicts; ``dump`` reports each wrong entry. Versions of Kafka
write different entries. So an entry is wrong only if no version could have written it:

* offset entry: a batch must start at its position. Its offset must be the last offset of that batch, or of a
  later batch before the next entry's position: followers of Kafka 3, and message sets, have one entry for
  several batches that were appended together.
* time entry: its timestamp must be the largest of the batch that has its offset. Kafka 4 writes the batch's
  last offset; Kafka 2, and a leader of Kafka 3, the offset of the record with that timestamp.

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
"""A structured array of ``OFFSET_ENTRY``, ``TIME_ENTRY`` or ``TRANSACTION_ENTRY``; here also of
``_BATCH_ROW``."""

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
"""The format of an entry, by kind of index, for reading a single entry without an array."""
LARGEST_RELATIVE_OFFSET = (1 << 31) - 1
"""A relative offset is a non-negative int32."""
ENTRY_OF_KIND = {"index": OFFSET_ENTRY, "timeindex": TIME_ENTRY, "txnindex": TRANSACTION_ENTRY}

(
    _BYTES_SINCE_ENTRY,
    _LARGEST_TIMESTAMP,
    _OFFSET_OF_LARGEST_TIMESTAMP,
    _LAST_TIME_ENTRY,
    _POSITION,
) = range(5)
"""The elements of the state of an ``IndexBuilder``: bytes since the last offset entry, the largest timestamp
so far, the last offset of its batch, the last time entry's timestamp, the position of the next batch."""


class AbortedTransaction(NamedTuple):
    """An entry of a ``.txnindex`` (Kafka's ``AbortedTxn``).

    The producer's records from ``first_offset`` to its abort marker at ``last_offset`` are aborted.
    ``last_stable_offset``: the first offset of the earliest transaction that was open after the marker, or
    the offset after the marker if none was.
    """

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
    offsets_max: int,
    times_max: int,
    state: Int64,
    offsets: Int32,
    times: Int64,
) -> tuple[int, int]:
    """Add the entries of consecutive batches, each as Kafka's ``LogSegment.append`` adds one.

    ``last_offset``, ``max_timestamp`` (ms) and ``size`` (bytes) have one element for each batch. Writes at
    most ``offsets_max`` rows (relative offset, position) to ``offsets`` and ``times_max`` rows (timestamp,
    relative offset) to ``times``; returns how many of each. Updates ``state``, with which the next call
    continues.
    """
    offset_count = time_count = 0
    for i in range(len(size)):
        # The timestamp first: a time entry that is added below includes this batch.
        if max_timestamp[i] > state[_LARGEST_TIMESTAMP]:
            state[_LARGEST_TIMESTAMP] = max_timestamp[i]
            state[_OFFSET_OF_LARGEST_TIMESTAMP] = last_offset[i]
        if state[_BYTES_SINCE_ENTRY] > interval and offset_count < offsets_max:
            offsets[offset_count, 0] = last_offset[i] - base_offset
            offsets[offset_count, 1] = state[_POSITION]
            offset_count += 1
            # As in ``TimeIndex.maybeAppend``: only if the largest timestamp has grown since the last entry.
            if state[_LARGEST_TIMESTAMP] > state[_LAST_TIME_ENTRY] and time_count < times_max:
                times[time_count, 0] = state[_LARGEST_TIMESTAMP]
                times[time_count, 1] = state[_OFFSET_OF_LARGEST_TIMESTAMP] - base_offset
                time_count += 1
                state[_LAST_TIME_ENTRY] = state[_LARGEST_TIMESTAMP]
            state[_BYTES_SINCE_ENTRY] = 0
        # The batch's own bytes count for the next one, so the first batch of a segment never gets an entry.
        state[_POSITION] += size[i]
        state[_BYTES_SINCE_ENTRY] += size[i]
    return offset_count, time_count


class IndexBuilder:
    """Builds a segment's offset index and time index from its batches, which are added in order of offset.

    ``interval`` is ``index.interval.bytes``; ``size_limit`` is ``segment.index.bytes``, the largest size of
    each file. A full index gets no more entries, but a time index has room for the entry that ``finish``
    adds.
    """

    def __init__(self, base_offset: int, interval: int, size_limit: int) -> None:
        self._base_offset = base_offset
        self._interval = interval
        self._offset_entries_left = size_limit // OFFSET_ENTRY.itemsize
        # Kafka's ``TimeIndex.isFull``, too, leaves room for the entry that is added at the end.
        self._time_entries_left = max(size_limit // TIME_ENTRY.itemsize - 1, 0)
        self._state = np.zeros(_POSITION + 1, np.int64)
        self._state[[_LARGEST_TIMESTAMP, _LAST_TIME_ENTRY]] = -1
        self._offsets: list[Int32] = []
        self._times: list[Int64] = []

    @property
    def largest_timestamp(self) -> int:
        """Largest batch timestamp so far, in ms; -1 before any."""
        return int(self._state[_LARGEST_TIMESTAMP])

    def add(self, last_offset: Int64, max_timestamp: Int64, size: Int64) -> None:
        """Add consecutive batches: int64 arrays with one element for each batch; ``size`` in bytes."""
        offsets = np.empty((len(size), 2), np.int32)
        times = np.empty((len(size), 2), np.int64)
        offset_count, time_count = _index_batches(
            self._base_offset,
            last_offset,
            max_timestamp,
            size,
            self._interval,
            self._offset_entries_left,
            self._time_entries_left,
            self._state,
            offsets,
            times,
        )
        self._offsets.append(offsets[:offset_count].copy())
        self._times.append(times[:time_count].copy())
        self._offset_entries_left -= offset_count
        self._time_entries_left -= time_count

    def add_batches(self, batches: BatchHeaders) -> None:
        """Add batches by their headers."""
        self.add(
            np.ascontiguousarray(batches["last_offset"]),
            np.ascontiguousarray(batches["max_timestamp"]),
            batches["size"].astype(np.int64),
        )

    def finish(self) -> dict[str, bytes]:
        """The contents of the files, by kind: "index", and "timeindex" with its last entry."""
        offsets = np.concatenate([*self._offsets, np.empty((0, 2), np.int32)])
        times = np.concatenate([*self._times, np.empty((0, 2), np.int64)])
        if self._state[_LARGEST_TIMESTAMP] > self._state[_LAST_TIME_ENTRY]:
            relative_offset = int(self._state[_OFFSET_OF_LARGEST_TIMESTAMP]) - self._base_offset
            last_entry = np.array([[self._state[_LARGEST_TIMESTAMP], relative_offset]], np.int64)
            times = np.concatenate([times, last_entry])
        entries = np.empty(len(times), TIME_ENTRY)
        entries["timestamp"], entries["relative_offset"] = times[:, 0], times[:, 1]
        return {"index": offsets.astype(">i4").tobytes(), "timeindex": entries.tobytes()}


def read_entries(data: bytes, kind: str, path: str = "") -> Entries:
    """Decode an index file's entries, without preallocated zeros at the end.

    ``kind`` is "index", "timeindex" or "txnindex"; the module's docstring draws their entries. Raises
    CorruptFileError for a size that is not a whole number of entries, for another version of a transaction
    index, for an offset index that does not increase or begins below 0, and for a time index that decreases.
    """
    dtype = ENTRY_OF_KIND[kind]
    if len(data) % dtype.itemsize:
        raise CorruptFileError(
            path, len(data), f"the size is not a multiple of {dtype.itemsize}, the size of an entry"
        )
    rows = np.frombuffer(data, dtype)
    if kind == "txnindex":
        unknown = np.flatnonzero(rows["version"] != 0)
        if len(unknown):
            reason = f"the entry has version {rows['version'][unknown[0]]}; only version 0 is supported"
            raise CorruptFileError(path, int(unknown[0]) * dtype.itemsize, reason)
        return rows
    names = ("relative_offset", "position") if kind == "index" else ("timestamp", "relative_offset")
    used = np.flatnonzero((rows[names[0]] != 0) | (rows[names[1]] != 0))
    entries = rows[: int(used[-1]) + 1 if len(used) else 0]
    is_strict = kind == "index"
    for name in names:
        values = entries[name].astype(np.int64)
        if is_strict and len(values) and values[0] < 0:
            raise CorruptFileError(path, 0, f"the entry's {name} is negative")
        decreasing = np.flatnonzero(np.diff(values) < (1 if is_strict else 0))
        if len(decreasing):
            reason = f"the entry's {name} is {'not above' if is_strict else 'below'} that of the entry before"
            raise CorruptFileError(path, (int(decreasing[0]) + 1) * dtype.itemsize, reason)
    return entries


_LOGS_OF = {
    "": ("", SWAP, DELETED),
    CLEANED: (CLEANED, SWAP, ""),
    SWAP: (SWAP, CLEANED, ""),
    DELETED: (DELETED, ""),
}
"""For an index with this suffix: the suffixes that its ``.log`` may have, the likeliest first. During a swap
they may differ, since the files are renamed one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """A file of a log directory or of a partition directory: its path, and what its name says.

    ``kind``: one of ``SEGMENT_KINDS``, ``SNAPSHOT``, or for ``dump`` "offsets" or "epochs" (a checkpoint) or
    "properties". ``base_offset``: -1 if the name has none. ``suffix``: ``CLEANED``, ``SWAP``, ``DELETED`` or
    "".
    """

    path: str
    kind: str
    base_offset: int = -1
    suffix: str = ""

    def log_path(self) -> str | None:
        """The path of the ``.log`` that belongs to this index; None if there is none (see ``_LOGS_OF``)."""
        stem = self.path.removesuffix(self.suffix).removesuffix(self.kind)
        candidates = [f"{stem}log{suffix}" for suffix in _LOGS_OF[self.suffix]]
        return next((path for path in candidates if files.exists(path)), None)


def differs_from_log(index: NamedFile, log: str) -> bool:
    """Is an offset or time index damaged, or does its ``log`` (a path) have other batches? Raises OSError."""
    entries, damage = entries_before_damage(files.read_bytes(index.path), index)
    if damage or any(sanity_check(index, entries)):
        return True
    return any(error.path == index.path for error in check_against_log(index, entries, log))


def entries_before_damage(data: bytes, index: NamedFile) -> tuple[Entries, list[CorruptFileError]]:
    """(the entries before the first damage, a list of the error for that damage, empty without damage)."""
    width = ENTRY_OF_KIND[index.kind].itemsize
    damage: list[CorruptFileError] = []
    # ``read_entries`` checks the whole file for one kind of damage after another. So each time it raises,
    # the file is cut before that entry and decoded again: what it finds last is nearest to the file's
    # beginning.
    while True:
        try:
            return read_entries(data, index.kind, index.path), damage[-1:]
        except CorruptFileError as error:
            damage.append(error.with_traceback(None))  # with a traceback it would keep ``data`` in memory
            # For an incomplete last entry the position is ``len(data)``: then that entry is cut off.
            data = data[: min(error.position, len(data) - 1) // width * width]


def sanity_check(index: NamedFile, entries: Entries) -> Iterator[CorruptFileError]:
    """Yield an error for the first entry that has an offset below the segment's base offset, or is of a
    transaction that ends before it begins; nothing if there is none.

    (Kafka's ``OffsetIndex.sanityCheck``, ``TimeIndex.sanityCheck`` and ``TransactionIndex.sanityCheck``.)
    """
    reason = "the entry's offset is below the base offset of the segment"
    if index.kind == "txnindex":
        is_below = entries["last_offset"] < index.base_offset
        bad = np.flatnonzero(is_below | (entries["first_offset"] > entries["last_offset"]))
        if len(bad) and not is_below[bad[0]]:
            reason = "the transaction's first offset is above its last offset"
    else:
        bad = np.flatnonzero(entries["relative_offset"] < 0)
    if len(bad):
        yield CorruptFileError(index.path, int(bad[0]) * entries.dtype.itemsize, reason)


_BATCH_FIELDS = ["position", "base_offset", "last_offset", "max_timestamp"]
_BATCH_ROW = np.dtype([(name, np.int64) for name in _BATCH_FIELDS])
"""The fields of a batch header that index entries are compared with."""


def check_against_log(index: NamedFile, entries: Entries, log: str) -> Iterator[CorruptFileError]:
    """Yield an error for the damage of ``log`` (a path), and for each wrong entry of an offset or time index.

    Raises OSError.
    """
    # ``readable_end``: the position at which the log is damaged, LONG_MAX without damage.
    parts, readable_end = [np.empty(0, _BATCH_ROW)], LONG_MAX
    try:
        with files.Reader(log) as reader:
            for headers in batch_headers(reader):
                parts.append(headers[_BATCH_FIELDS].astype(_BATCH_ROW))
    except CorruptRecordError as error:
        readable_end = error.position
        yield error.with_traceback(None)  # as in ``entries_before_damage``
    batches = np.concatenate(parts)
    offsets = entries["relative_offset"].astype(np.int64) + index.base_offset
    if index.kind == "index":
        reasons = _check_offsets(offsets, entries["position"].astype(np.int64), batches, readable_end)
    else:
        reasons = _check_times(offsets, entries["timestamp"].astype(np.int64), batches, readable_end)
    for number, reason in reasons:
        yield CorruptFileError(index.path, number * entries.dtype.itemsize, reason)


_NO_VALUE = np.int64(-2)
"""No batch has this offset, position or timestamp. (-1 is the timestamp of a batch without one.)"""


def _take_rows(values: Int64, rows: npt.NDArray[np.intp]) -> Int64:
    """``values[rows]``, and ``_NO_VALUE`` for a row after the last one."""
    padded = np.append(values, _NO_VALUE)
    return padded[np.minimum(rows, len(values))]


def _check_offsets(
    offsets: Int64, positions: Int64, batches: Entries, readable_end: int
) -> Iterator[tuple[int, str]]:
    """(number of the entry, reason) for each wrong offset entry with a position below ``readable_end``.

    ``offsets``, ``positions``: one element an entry; ``batches``: an array of ``_BATCH_ROW``.
    """
    # For each entry: the row of the batch at its position, and below (``later``) of the batch with its
    # offset.
    rows = np.searchsorted(batches["position"], positions)
    start_positions = _take_rows(batches["position"], rows)
    last_offsets = _take_rows(batches["last_offset"], rows)
    later = np.searchsorted(batches["last_offset"], offsets)
    next_positions = np.append(positions[1:], LONG_MAX)
    # An entry may stand for several batches: its offset is then the last one of a later batch.
    ends_batch = (
        (_take_rows(batches["last_offset"], later) == offsets)
        & (later >= rows)
        & (_take_rows(batches["position"], later) < next_positions)
    )
    is_readable = positions < readable_end
    for number in np.flatnonzero(is_readable & ((start_positions != positions) | ~ends_batch)).tolist():
        entry = f"offset {offsets[number]} position {positions[number]}"
        if start_positions[number] != positions[number]:
            yield number, f"{entry}: no batch of the log starts at that position"
        else:
            yield number, f"{entry}: the batch at that position ends at offset {last_offsets[number]}"


def _check_times(
    offsets: Int64, times: Int64, batches: Entries, readable_end: int
) -> Iterator[tuple[int, str]]:
    """(number of the entry, reason) for each wrong time entry whose batch was read; arguments as in
    ``_check_offsets``."""
    rows = np.searchsorted(batches["last_offset"], offsets)
    is_in_batch = (rows < len(batches)) & (_take_rows(batches["base_offset"], rows) <= offsets)
    largest = _take_rows(batches["max_timestamp"], rows)
    # An entry above the last batch that was read may be of a batch after the damage, if there is damage.
    is_readable = (rows < len(batches)) | (readable_end == LONG_MAX)
    for number in np.flatnonzero(is_readable & (~is_in_batch | (largest != times))).tolist():
        entry = f"timestamp {times[number]} offset {offsets[number]}"
        if is_in_batch[number]:
            yield number, f"{entry}: its batch has largest timestamp {largest[number]}"
        else:
            yield number, f"{entry}: no batch of the log has that offset"
