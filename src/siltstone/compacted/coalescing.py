"""Survivors of many batches become few large ones: the second phase's writer.

Runs of records that stay become one v2 batch of about ``BATCH_BYTES``, whatever is left out between them::

    kept      offsets, timestamps, keys, values, headers; codec, timestamp type, leader epoch of the source
    new       base offset (the first record's), base timestamp (the first record's), largest timestamp
    gone      producer id, epoch and sequence (-1), the transactional bit, a delete horizon

A batch ends where codec, timestamp type or leader epoch change, where log-append time does, where it is full,
and where an offset would be too far from its base. A batch all of whose records stay and that is large
already is copied as it is, which only a generation's own batches may be. Message sets (v0, v1) become batches
first. ``Coalescer`` is told which offsets stay, or which go, and makes sure that it meets every one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from siltstone.errors import CheckFailedError, CorruptRecordError
from siltstone.records.build import compress_batches, copy_bytes, write_int
from siltstone.records.checksum import patch_checksums
from siltstone.records.codecs import DEFAULT_LIMIT, Scratch
from siltstone.records.convert import NO_HORIZON, convert_entries
from siltstone.records.decode import decode_records
from siltstone.records.inflate import inflate
from siltstone.records.kernel import inlined, kernel
from siltstone.records.layout import BATCH_OVERHEAD, Bytes, Directory, Int64, codec_of
from siltstone.records.record import DECODE_REASON, record_head
from siltstone.records.scan import scan_batches
from siltstone.records.varint import next_varint, varint_size, write_varint

BATCH_BYTES = 128 << 10
"""About how many bytes of records a batch takes, uncompressed."""
GROWTH = 20
"""Most bytes by which a record can outgrow the stored one: its size, time and offset at their longest."""
START, END, COUNT, BASE, BASE_TIME, MAX_TIME, LAST, KIND, EPOCH, ROWS, MET = range(11)
"""The open batch: where it starts and ends in the output, and its header; rows finished, offsets met."""
_MISSED = -1


@kernel
def _close(out: Bytes, open_: Int64, rows: Int64) -> None:
    """Write the open batch's header; its row is (start, size, base offset, last offset, largest timestamp,
    codec, 1: the checksum is to come)."""
    start = open_[0]
    size = open_[1] - start
    write_int(out, start, open_[3], 8)
    write_int(out, start + 8, size - 12, 4)
    write_int(out, start + 12, open_[8], 4)
    out[start + 16] = 2
    write_int(out, start + 17, 0, 4)
    write_int(out, start + 21, open_[7], 2)
    write_int(out, start + 23, open_[6] - open_[3], 4)
    write_int(out, start + 27, open_[4], 8)
    write_int(out, start + 35, open_[5], 8)
    write_int(out, start + 43, -1, 8)
    write_int(out, start + 51, -1, 2)
    write_int(out, start + 53, -1, 4)
    write_int(out, start + 57, open_[2], 4)
    row = rows[open_[9]]
    row[0], row[1], row[2], row[3] = start, size, open_[3], open_[6]
    row[4], row[5], row[6] = open_[5], open_[7] & 7, 1
    open_[9] += 1
    open_[0] = open_[1]
    open_[2] = 0


@kernel
def _copy_batch(window: Bytes, header: Any, out: Bytes, open_: Int64, rows: Int64) -> None:
    """A whole batch as it is, behind what was closed."""
    row = rows[open_[9]]
    row[0], row[1], row[2], row[3] = open_[1], header.size, header.base_offset, header.last_offset
    row[4], row[5], row[6] = header.max_timestamp, 0, 0
    open_[1] = copy_bytes(window, header.position, header.size, out, open_[1])
    open_[0] = open_[1]
    open_[9] += 1


@kernel
def _add(
    data: Bytes, rest: int, size: int, offset: int, timestamp: int, header: Any, out: Bytes, open_: Int64
) -> None:
    """Add a record to the open batch, or open one; ``rest`` are its bytes behind the offset delta."""
    if open_[2] == 0:
        open_[1] = open_[0] + 61
        open_[3], open_[4], open_[5] = offset, timestamp, timestamp
        open_[7], open_[8] = header.attributes & 0x0F, header.leader_epoch
    delta, time = offset - open_[3], timestamp - open_[4]
    position = write_varint(out, open_[1], 1 + varint_size(time) + varint_size(delta) + size)
    out[position] = 0
    position = write_varint(out, position + 1, time)
    position = write_varint(out, position, delta)
    open_[1] = copy_bytes(data, rest, size, out, position)
    open_[2] += 1
    open_[5] = max(open_[5], timestamp)
    open_[6] = offset


@inlined
def _pass(at: int, end: int, count: int) -> int:
    """Go over ``count`` records from address ``at`` on: where they end, -1 for a size that is none."""
    for _ in range(count):
        body, at = next_varint(at, end)
        if at < 0 or body < 6 or body > end - at:
            return -1
        at += body
    return at


@kernel
def _coalesce(
    window: Bytes,
    data: Bytes,
    starts: Int64,
    ends: Int64,
    batches: Directory,
    action: Int64,
    listed: Int64,
    until: Int64,
    keep_listed: bool,
    limit: int,
    out: Bytes,
    open_: Int64,
    rows: Int64,
    offsets: Int64,
) -> tuple[int, int]:
    """Go through v2 batches: (records kept, 0), or (the bad batch, what is wrong: below 0).

    ``listed``: offsets, ascending, of which ``until[i]`` are met once batch i is through. ``offsets`` is
    filled with those that are kept, ``rows`` and ``open_`` are as ``_close`` and ``Coalescer`` have them.
    """
    kept, origin = 0, data.ctypes.data
    met = open_[10]
    for i in range(len(batches)):
        header = batches[i]
        log_append = header.attributes & 8 != 0
        other = open_[7] != header.attributes & 0x0F or open_[8] != header.leader_epoch
        if open_[2] and (action[i] or other or (log_append and open_[4] != header.max_timestamp)):
            _close(out, open_, rows)
        if action[i]:
            _copy_batch(window, header, out, open_, rows)
        at, end, left = origin + starts[i], origin + ends[i], header.count
        # Extraction saw that offsets ascend: where none is missing, those that go need not be read.
        is_dense = keep_listed and header.last_offset - header.base_offset + 1 == header.count
        while left > 0:
            if keep_listed and met == until[i]:
                break
            if is_dense:
                passed = max(listed[met] - (header.last_offset + 1 - left), 0)
                at = _pass(at, end, passed)
                if at < 0:
                    return i, -2
                left -= passed
            left -= 1
            rest, at, delta, step, reason = record_head(at, end)
            if reason > 0:
                return i, -2
            offset = header.base_offset + step
            is_listed = met < until[i] and listed[met] <= offset
            if is_listed:
                if listed[met] != offset:
                    return i, -1
                met += 1
            if is_listed != keep_listed:
                continue
            offsets[kept] = offset
            kept += 1
            if action[i]:
                continue
            far = open_[1] - open_[0] + at - rest > limit or offset - open_[3] > 0x7FFFFFFF
            if open_[2] and far:
                _close(out, open_, rows)
            timestamp = header.max_timestamp if log_append else header.base_timestamp + delta
            _add(data, rest - origin, at - rest, offset, timestamp, header, out, open_)
        if met != until[i]:
            return i, -1
    open_[10] = met
    return kept, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Coalesced:
    """Finished batches: the bytes, which hold until the next call, and a row a batch (int64)."""

    data: Bytes
    base_offset: Int64
    last_offset: Int64
    max_timestamp: Int64
    size: Int64
    codec: int


class Coalescer:
    """Takes windows in log order and gives batches out. One for each group.

    ``listed`` (int64, ascending): the offsets that stay, or with ``keep_listed`` False those that go.
    ``offsets``: what was kept, an array for each call, in order.
    """

    def __init__(
        self,
        listed: Int64,
        *,
        keep_listed: bool = True,
        limit: int = BATCH_BYTES,
        batch_limit: int = DEFAULT_LIMIT,
    ) -> None:
        self._listed = listed
        self._keep_listed = keep_listed
        self._limit, self._batch_limit = limit, batch_limit
        self._open: Int64 = np.zeros(11, np.int64)
        self._out, self._packed, self._plain = Scratch(), Scratch(), Scratch()
        self.offsets: list[Int64] = []

    @property
    def kept(self) -> int:
        """How many records stayed."""
        return sum(map(len, self.offsets))

    @property
    def met(self) -> int:
        """How many listed offsets were met; all of them at the end, or something is wrong."""
        return int(self._open[MET])

    def chosen(self, batches: Directory) -> Directory:
        """The batches that have anything that stays, by their offsets alone."""
        low = np.searchsorted(self._listed, batches["base_offset"])
        high = np.searchsorted(self._listed, batches["last_offset"], side="right")
        if self._keep_listed:
            modern: Directory = batches[(high > low) | (batches["magic"] < 2)]
            return modern
        return batches

    def take(self, window: Bytes, batches: Directory, *, path: str = "", origin: int = 0) -> Coalesced | None:
        """What the next batches finish; all of magic 2, or all older. None where nothing of them stays.

        Raises CheckFailedError for a listed offset that is not there, CorruptRecordError.
        """
        if not len(batches):
            return None
        if int(batches["magic"][0]) < 2:
            window, batches = self._converted(window, batches, path, origin)
            if not len(batches):
                return None
        plain, limit = self._plain, self._batch_limit
        data, starts, ends = inflate(window, batches, plain, limit=limit, path=path, origin=origin)
        counts = int(batches["count"].sum())
        room = int((ends - starts).sum()) + int(batches["size"].sum()) + GROWTH * counts
        most = 2 * len(batches) + 2 * room // self._limit + 4
        self._make_room(room + BATCH_OVERHEAD * most)
        rows = np.empty((most, 7), np.int64)
        offsets = np.empty(counts, np.int64)
        until = np.searchsorted(self._listed, batches["last_offset"], side="right")
        action = self._copied(batches, until)
        self._open[ROWS] = 0
        arguments: list[Any] = [window, data, starts, ends, batches, action, self._listed, until]
        arguments += [self._keep_listed, self._limit, self._room, self._open, rows, offsets]
        kept, wrong = _coalesce(*arguments)
        if wrong:
            position = origin + int(batches["position"][kept])
            if wrong == _MISSED:
                raise CheckFailedError(f"{path}: byte {position}: an offset that must be there is not")
            raise CorruptRecordError(path, position, DECODE_REASON[1])
        self.offsets.append(offsets[:kept].copy())
        return self._finished(rows)

    def _copied(self, batches: Directory, until: Int64) -> Int64:
        """1 for batches that are large and stay as they are: only those of a generation may."""
        if self._keep_listed:
            return np.zeros(len(batches), np.int64)
        low = np.searchsorted(self._listed, batches["base_offset"])
        large = batches["size"] * np.where(codec_of(batches) > 0, 8, 1) >= self._limit // 2
        return np.asarray((until == low) & large).astype(np.int64)

    def _converted(
        self, window: Bytes, entries: Directory, path: str, origin: int
    ) -> tuple[Bytes, Directory]:
        """Message set entries as v2 batches, which hold nothing but what stays."""
        assert self._keep_listed, "a generation has no message sets"
        limit = self._batch_limit
        columns = decode_records(window, entries, Scratch(), limit=limit, path=path, origin=origin)
        where = np.searchsorted(self._listed, columns.offset).clip(max=max(len(self._listed) - 1, 0))
        keep = (
            self._listed[where] == columns.offset if len(self._listed) else np.zeros(len(columns), np.bool_)
        )
        done = convert_entries(
            entries,
            columns,
            keep=keep,
            horizon_ms=np.full(len(entries), NO_HORIZON, np.int64),
            keep_empty=np.zeros(len(entries), np.bool_),
            path=path,
            origin=origin,
        )
        return done.data, scan_batches(np.ascontiguousarray(done.data)).batches

    def _make_room(self, size: int) -> None:
        """The open batch comes to the start of the output, with ``size`` bytes free behind it."""
        start, end = int(self._open[START]), int(self._open[END]) if self._open[COUNT] else 0
        carried = self._room[start:end].copy() if end else np.empty(0, np.uint8)
        self._out.clear()
        room = self._out.reserve(len(carried) + size)
        room[: len(carried)] = carried
        self._open[START], self._open[END] = 0, len(carried)

    @property
    def _room(self) -> Bytes:
        self._out.clear()
        return self._out.reserve(0)

    def _finished(self, rows: Int64) -> Coalesced:
        rows = rows[: self._open[ROWS]]
        starts, sizes = rows[:, 0].copy(), rows[:, 1].copy()
        data = self._room[: int(self._open[START])]
        codecs = rows[:, 5].astype(np.int16)
        if codecs.any():
            data, starts, sizes = compress_batches(data, starts, sizes, codecs, self._packed)
        new = rows[:, 6] != 0
        patch_checksums(data, starts[new], sizes[new])
        return Coalesced(
            data=data,
            base_offset=rows[:, 2].copy(),
            last_offset=rows[:, 3].copy(),
            max_timestamp=rows[:, 4].copy(),
            size=sizes,
            codec=int(codecs.max(initial=0)),
        )

    def finish(self) -> Coalesced:
        """The batch that is still open. Raises CheckFailedError when not every listed offset was met."""
        if self.met != len(self._listed):
            raise CheckFailedError(
                f"{len(self._listed)} offsets were listed, but {self.met} of them were met"
            )
        rows = np.empty((1, 7), np.int64)
        self._open[ROWS] = 0
        if self._open[COUNT]:
            self._make_room(0)
            _close(self._room, self._open, rows)
        else:
            self._open[START] = self._open[END] = 0
        return self._finished(rows)
