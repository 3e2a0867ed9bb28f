"""Phase two, and the folding of generations: new segments, written, read back and checked.

::

    rewrite_group   sources of the log + retained offsets            → segments that hold exactly these
    fold_group      sources of generations + hidden offsets → segments that hold all others
    fold_keys       their key indexes, a bucket of them     → a part of the new key index

A task writes only files that carry its attempt's name, made with O_EXCL, in the run's folder, and makes
segments durable itself. The owner of the log renames what it accepts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from crc32c import crc32c

from siltstone.base import files
from siltstone.base.config import INT_MAX
from siltstone.base.errors import CheckFailedError, CorruptRecordError
from siltstone.base.records.build import compress_batches, copy_bytes, write_int
from siltstone.base.records.checksum import patch_checksums, refuse_bad_checksum
from siltstone.base.records.codecs import DEFAULT_LIMIT, Scratch
from siltstone.base.records.columns import DECODE_REASON, record_head
from siltstone.base.records.convert import NO_HORIZON, convert_entries
from siltstone.base.records.decode import decode_record_keys, decode_records
from siltstone.base.records.inflate import inflate
from siltstone.base.records.kernel import inlined, kernel
from siltstone.base.records.layout import BATCH_OVERHEAD, Bytes, Directory, Int64, codec_of
from siltstone.base.records.pieces import pieces
from siltstone.base.records.scan import scan_batches
from siltstone.base.records.varint import next_varint, varint_size, write_varint
from siltstone.compaction.keys import EntryBlob, offsets_of
from siltstone.compaction.ledger.key_index import KeyIndex, KeysPart
from siltstone.compaction.ledger.keys import PARTITIONS, best_of_each_key
from siltstone.compaction.ledger.work import (
    CompactionWork,
    OldKeys,
    OutputSettings,
    Source,
    keep_part,
    opened,
    source_windows,
)
from siltstone.compaction.work import Group, LogFailure, decoded, failure_of, refuse_disorder
from siltstone.log.indexes import IndexBuilder
from siltstone.log.segments import windows

# Survivors of many batches become few large ones: the second phase's writer.
#
# Runs of records that stay become one v2 batch of about ``BATCH_BYTES``, whatever is left out between them::
#
#     kept      offsets, timestamps, keys, values, headers; codec, timestamp type, leader epoch of the source
#     new       base offset (the first record's), base timestamp (the first record's), largest timestamp
#     gone      producer id, epoch and sequence (-1), the transactional bit, a delete horizon
#
# A batch ends where codec, timestamp type or leader epoch change, where log-append time does, where it is
# full, and where an offset would be too far from its base. A batch all of whose records stay and that is
# large already is copied as it is, which only a generation's own batches may be. Message sets (v0, v1) become
# batches first. ``Coalescer`` is told which offsets stay, or which go, and makes sure that it meets every one
# of them.

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
    start = open_[START]
    size = open_[END] - start
    write_int(out, start, open_[BASE], 8)
    write_int(out, start + 8, size - 12, 4)
    write_int(out, start + 12, open_[EPOCH], 4)
    out[start + 16] = 2
    write_int(out, start + 17, 0, 4)
    write_int(out, start + 21, open_[KIND], 2)
    write_int(out, start + 23, open_[LAST] - open_[BASE], 4)
    write_int(out, start + 27, open_[BASE_TIME], 8)
    write_int(out, start + 35, open_[MAX_TIME], 8)
    write_int(out, start + 43, -1, 8)
    write_int(out, start + 51, -1, 2)
    write_int(out, start + 53, -1, 4)
    write_int(out, start + 57, open_[COUNT], 4)
    row = rows[open_[ROWS]]
    row[0], row[1], row[2], row[3] = start, size, open_[BASE], open_[LAST]
    row[4], row[5], row[6] = open_[MAX_TIME], open_[KIND] & 7, 1
    open_[ROWS] += 1
    open_[START] = open_[END]
    open_[COUNT] = 0


@kernel
def _copy_batch(window: Bytes, header: Any, out: Bytes, open_: Int64, rows: Int64) -> None:
    """A whole batch as it is, behind what was closed."""
    row = rows[open_[ROWS]]
    row[0], row[1], row[2], row[3] = open_[END], header.size, header.base_offset, header.last_offset
    row[4], row[5], row[6] = header.max_timestamp, 0, 0
    open_[END] = copy_bytes(window, header.position, header.size, out, open_[END])
    open_[START] = open_[END]
    open_[ROWS] += 1


@kernel
def _add(
    data: Bytes, rest: int, size: int, offset: int, timestamp: int, header: Any, out: Bytes, open_: Int64
) -> None:
    """Add a record to the open batch, or open one; ``rest`` are its bytes behind the offset delta."""
    if open_[COUNT] == 0:
        open_[END] = open_[START] + 61
        open_[BASE], open_[BASE_TIME], open_[MAX_TIME] = offset, timestamp, timestamp
        open_[KIND], open_[EPOCH] = header.attributes & 0x0F, header.leader_epoch
    delta, time = offset - open_[BASE], timestamp - open_[BASE_TIME]
    position = write_varint(out, open_[END], 1 + varint_size(time) + varint_size(delta) + size)
    out[position] = 0
    position = write_varint(out, position + 1, time)
    position = write_varint(out, position, delta)
    open_[END] = copy_bytes(data, rest, size, out, position)
    open_[COUNT] += 1
    open_[MAX_TIME] = max(open_[MAX_TIME], timestamp)
    open_[LAST] = offset


@inlined
def _pass(at: int, end: int, count: int) -> int:
    """Go over ``count`` records from address ``at`` on: where they end, -1 for a size that is none."""
    for _ in range(count):
        body, at = next_varint(at, end)
        if at < 0 or body < 6 or body > end - at:
            return -1
        at += body
    return at


class InflatedBatches(NamedTuple):
    """Decompressed records: those of batch i are ``data[starts[i]:ends[i]]``."""

    data: Bytes
    starts: Int64
    ends: Int64


class ListedOffsets(NamedTuple):
    """Offsets, ascending, that stay, or with ``keep`` False go; ``until[i]`` of them are met once batch i is
    through."""

    offsets: Int64
    until: Int64
    keep: bool


class OpenBatch(NamedTuple):
    """Where the new batches go: ``out`` their bytes, ``state`` the open one's (START to MET), ``rows`` a row
    a finished batch, as ``_close`` has them."""

    out: Bytes
    state: Int64
    rows: Int64


@kernel
def _coalesce(
    window: Bytes,
    batches: Directory,
    inflated: InflatedBatches,
    action: Int64,
    wanted: ListedOffsets,
    limit: int,
    into: OpenBatch,
    offsets: Int64,
) -> tuple[int, int]:
    """Go through v2 batches: (records kept, 0), or (the bad batch, what is wrong: below 0).

    ``offsets`` is filled with those that are kept; a batch whose ``action`` is 1 is copied as it is.
    """
    listed, until, keep_listed = wanted
    out, open_, rows = into
    data = inflated.data
    kept, origin = 0, data.ctypes.data
    met = open_[MET]
    for i in range(len(batches)):
        header = batches[i]
        log_append = header.attributes & 8 != 0
        other = open_[KIND] != header.attributes & 0x0F or open_[EPOCH] != header.leader_epoch
        if open_[COUNT] and (action[i] or other or (log_append and open_[BASE_TIME] != header.max_timestamp)):
            _close(out, open_, rows)
        if action[i]:
            _copy_batch(window, header, out, open_, rows)
        at, end, left = origin + inflated.starts[i], origin + inflated.ends[i], header.count
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
            far = open_[END] - open_[START] + at - rest > limit or offset - open_[BASE] > 0x7FFFFFFF
            if open_[COUNT] and far:
                _close(out, open_, rows)
            timestamp = header.max_timestamp if log_append else header.base_timestamp + delta
            _add(data, rest - origin, at - rest, offset, timestamp, header, out, open_)
        if met != until[i]:
            return i, -1
    open_[MET] = met
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
        wanted = ListedOffsets(self._listed, until, self._keep_listed)
        into = OpenBatch(self._room, self._open, rows)
        inflated = InflatedBatches(data, starts, ends)
        kept, wrong = _coalesce(window, batches, inflated, action, wanted, self._limit, into, offsets)
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


KINDS = ("log", "index", "timeindex")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSegment:
    """A finished segment: ``stem`` is its path without the kinds; sizes in bytes, checksums CRC32C."""

    base_offset: int
    stem: str
    size: int
    crc: int
    index_crc: int
    time_index_crc: int


@dataclass(slots=True, kw_only=True)
class WrittenGroup:
    """What became of a group: its segments, the records in them, and the first failure."""

    group: int
    kept: int = 0
    segments: list[StagedSegment] = field(default_factory=list)
    failure: LogFailure | None = None


@dataclass(slots=True, kw_only=True)
class FoldedKeys:
    """What became of a bucket of folded key indexes."""

    bucket: int
    keys: KeysPart | None = None
    failure: LogFailure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldWork:
    """Generations that become one: their segments, what is hidden in each (int64, ascending), their keys."""

    name: str
    sources: tuple[Source, ...]
    groups: tuple[Group, ...]
    hidden: dict[int, Int64]
    keys: tuple[OldKeys, ...]
    hash_key: tuple[int, int]
    output: OutputSettings


class _Sink:
    """Segments as they are written: a new one where the one before is full or too wide."""

    def __init__(self, output: OutputSettings, attempt: str, report: WrittenGroup) -> None:
        self._output, self._attempt, self._report = output, attempt, report
        self._writer: files.Writer | None = None
        self._room = contextlib.ExitStack()

    def put(self, found: Coalesced) -> None:
        """Write finished batches, in order."""
        start, place = 0, 0
        while start < len(found.size):
            behind = self._fitting(found, start)
            size = int(found.size[start:behind].sum())
            self._write(found, start, behind, place, size)
            start, place = behind, place + size

    def _fitting(self, found: Coalesced, start: int) -> int:
        """How many batches from ``start`` on go into the segment that is open, or into a new one."""
        if self._writer is not None:
            behind = start + self._room_for(found, start, self._base, self._writer.size)
            if behind > start:
                return behind
            self.close()
        base = int(found.base_offset[start])
        self._open(base)
        return start + max(1, self._room_for(found, start, base, 0))

    def _room_for(self, found: Coalesced, start: int, base: int, used: int) -> int:
        full = np.searchsorted(np.cumsum(found.size[start:]), self._output.segment_bytes - used, side="right")
        wide = np.searchsorted(found.last_offset[start:], base + INT_MAX, side="right")
        return int(min(full, wide))

    def _open(self, base: int) -> None:
        self._base, self._crc = base, 0
        self._stem = str(Path(self._output.staging) / f"{base:020d}.{self._attempt}")
        self._writer = self._room.enter_context(files.Writer(f"{self._stem}.log"))
        self._indexes = IndexBuilder(base, self._output.index_interval, self._output.index_bytes)

    def _write(self, found: Coalesced, start: int, behind: int, place: int, size: int) -> None:
        assert self._writer is not None
        data = found.data[place : place + size]
        self._crc = crc32c(data.data, self._crc)
        self._writer.write(data.data)
        rows = slice(start, behind)
        self._indexes.add(found.last_offset[rows], found.max_timestamp[rows], found.size[rows])

    def close(self) -> None:
        """Finish the segment that is open: its indexes, everything durable."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        indexes = self._indexes.finish()
        made = {"index": indexes.offset_index, "timeindex": indexes.time_index}
        for kind, data in made.items():
            files.write_new(f"{self._stem}.{kind}", data)
        for kind in KINDS:
            files.inherit_owner(f"{self._stem}.{kind}")
        writer.sync()
        self._room.close()
        self._report.segments.append(
            StagedSegment(
                base_offset=self._base,
                stem=self._stem,
                size=writer.size,
                crc=self._crc,
                index_crc=crc32c(made["index"]),
                time_index_crc=crc32c(made["timeindex"]),
            )
        )

    def drop(self) -> None:
        """Remove everything of this attempt."""
        self._room.close()
        stems = [each.stem for each in self._report.segments]
        stems += [] if self._writer is None else [self._stem]
        for stem in stems:
            for kind in KINDS:
                with contextlib.suppress(OSError):
                    files.unlink(f"{stem}.{kind}")
        self._report.segments.clear()


def rewrite_group(work: CompactionWork, group: Group, retained: Int64, attempt: str) -> WrittenGroup:
    """Write the group's ``retained`` (offsets, int64, in any order) into new segments.

    Never raises for what is wrong with the log, the disk or the counts: the report says so, and the files of
    this attempt are gone then.
    """
    coalescer = Coalescer(np.sort(retained), batch_limit=work.output.batch_limit)
    return _written(work.name, work.sources, group, coalescer, work.output, attempt, len(retained))


def fold_group(work: FoldWork, group: Group, attempt: str) -> WrittenGroup:
    """Write what is not hidden of a group of generations' segments into new ones. Never raises, as above."""
    mine = {source.generation for source in work.sources[group.first : group.last]}
    parts = [offsets for each, offsets in sorted(work.hidden.items()) if each in mine]
    hidden = np.sort(np.concatenate([np.empty(0, np.int64), *parts]))
    low, high = np.searchsorted(hidden, [group.base_offset, group.end_offset])
    coalescer = Coalescer(hidden[low:high], keep_listed=False, batch_limit=work.output.batch_limit)
    return _written(work.name, work.sources, group, coalescer, work.output, attempt, None)


def _written(
    name: str,
    sources: tuple[Source, ...],
    group: Group,
    coalescer: Coalescer,
    output: OutputSettings,
    attempt: str,
    expected: int | None,
) -> WrittenGroup:
    report = WrittenGroup(group=group.index)
    sink = _Sink(output, f"{group.index}.{attempt}", report)
    try:
        for source in sources[group.first : group.last]:
            for found in _coalesced(source, coalescer, output):
                sink.put(found)
        sink.put(coalescer.finish())
        sink.close()
        report.kept = coalescer.kept
        if expected is not None and report.kept != expected:
            counts = f"{expected} retained offsets, but {report.kept} records were written"
            raise CheckFailedError(f"{name}: {counts}")
        _read_back(report, group, np.concatenate([np.empty(0, np.int64), *coalescer.offsets]), output)
    except Exception as error:
        report.failure = failure_of(error)
        sink.drop()
    return report


def _coalesced(source: Source, coalescer: Coalescer, output: OutputSettings) -> Iterator[Coalesced]:
    """What a source adds; only batches that have something that stays are looked at."""
    following = source.base_offset
    with opened(source) as reader:
        for window in source_windows(reader, source, output.window_size, verify=False):
            following = refuse_disorder(source.path, window, following, source.end_offset)
            chosen = coalescer.chosen(window.batches)
            refuse_bad_checksum(window.data, chosen, path=source.path, origin=window.origin)
            for part in pieces(window.data, chosen):
                found = coalescer.take(window.data, chosen[part], path=source.path, origin=window.origin)
                if found is not None and len(found.size):
                    yield found


def _read_back(report: WrittenGroup, group: Group, offsets: Int64, output: OutputSettings) -> None:
    """Scan the new segments from disk: checksums, order, exactly these offsets, the indexes built again.

    Raises CheckFailedError, CorruptFileError, OSError.
    """
    following, seen, scratch, limit = group.base_offset, 0, Scratch(), output.batch_limit
    for segment in report.segments:
        path = f"{segment.stem}.log"
        again = IndexBuilder(segment.base_offset, output.index_interval, output.index_bytes)
        with files.Reader(path) as reader:
            if reader.stat.size != segment.size:
                raise CheckFailedError(f"{path}: {reader.stat.size} bytes, but {segment.size} were written")
            found, range_ = windows(reader, window_size=output.window_size), (following, group.end_offset)
            for some in decoded(path, found, range_, decode_record_keys, scratch=scratch, limit=limit):
                again.add_directory(some.batches)
                mine = offsets[seen : seen + len(some.columns)]
                if not np.array_equal(mine, some.columns.offset):
                    raise CheckFailedError(f"{path}: holds other records than were written")
                seen += len(some.columns)
                following = int(some.batches["last_offset"][-1]) + 1
        built = again.finish()
        for kind, data in (("index", built.offset_index), ("timeindex", built.time_index)):
            if files.read_bytes(f"{segment.stem}.{kind}") != data:
                raise CheckFailedError(f"{segment.stem}.{kind}: is not the index of what was written")
    if seen != len(offsets):
        raise CheckFailedError(f"{seen} records on disk, but {len(offsets)} were written")


def fold_keys(work: FoldWork, bucket: int, buckets: int, attempt: str) -> FoldedKeys:
    """One bucket of the generations' key indexes as a part of a new one; hidden entries go. Never raises."""
    report = FoldedKeys(bucket=bucket)
    each = PARTITIONS // buckets
    first = bucket * each
    parts = []
    try:
        for keys in work.keys:
            hidden = work.hidden.get(keys.generation, np.empty(0, np.int64))
            with KeyIndex(keys.path, work.hash_key) as index:
                words = index.words
                for _, entries, _ in index.ranges(first, first + each):
                    offsets = offsets_of(entries)
                    where = np.searchsorted(hidden, offsets).clip(max=max(len(hidden) - 1, 0))
                    kept = entries[hidden[where] != offsets] if len(hidden) else entries
                    parts.append(EntryBlob(bucket=bucket, entries=kept))
        best, bounds = best_of_each_key(parts, words, first, each)
        report.keys = keep_part(work.output, best, bounds, np.ones(len(best), np.bool_), first, attempt)
    except Exception as error:
        report.failure = failure_of(error)
    return report
