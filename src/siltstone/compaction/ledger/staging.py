"""Phase two of a side-by-side compaction, and the merge of runs: new segments, written and verified.

::

    rewrite_group   sources of the log + retained offsets   → segments that hold exactly these
    merge_group     sources of runs + superseded offsets    → segments that hold all others
    merge_keys      their key indexes, a bucket of them     → a part of the new key index

A task writes only files with its attempt's name, created with O_EXCL, in the compaction's staging folder,
and makes segments durable itself. The compactor renames those of the attempt that it accepts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from crc32c import crc32c

from siltstone.base import files
from siltstone.base.config import INT_MAX
from siltstone.base.errors import CheckFailedError, CorruptRecordError
from siltstone.base.records.build import copy_bytes, write_header
from siltstone.base.records.checksum import refuse_bad_checksum
from siltstone.base.records.codecs import DEFAULT_LIMIT, Scratch
from siltstone.base.records.columns import DECODE_REASON, record_head
from siltstone.base.records.convert import NO_HORIZON, convert_entries
from siltstone.base.records.decode import decode_record_keys, decode_records
from siltstone.base.records.decompression import decompress_batches, slices_within
from siltstone.base.records.kernel import inlined, kernel
from siltstone.base.records.layout import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    SIZE_POSITION,
    TIMESTAMP_TYPE_BIT,
    BatchHeaders,
    Bytes,
    Flags,
    Int64,
    codec_of,
)
from siltstone.base.records.scan import scan_batches
from siltstone.base.records.varint import next_varint, varint_size, write_varint
from siltstone.compaction.keys import EntryBlob, offsets_of
from siltstone.compaction.ledger.keys import PARTITIONS, best_of_each_key, read_keys, write_part
from siltstone.compaction.ledger.work import (
    NO_OFFSETS,
    Compacted,
    CompactionWork,
    Settings,
    Source,
    open_source,
)
from siltstone.compaction.report import failure_of
from siltstone.compaction.rewrite import CleanedBatches, PendingBatches
from siltstone.compaction.work import Group, check_ascending, decode_slices
from siltstone.log.indexes import IndexBuilder
from siltstone.log.ledger.manifest import SegmentEntry
from siltstone.log.segments import windows

# Coalescing: the retained records of many batches are written as few large batches.
#
# Consecutive retained records become v2 batches of about ``BATCH_BYTES`` of records each::
#
#     same       offsets, timestamps, keys, values, headers; the batch's codec, timestamp type, leader epoch
#     new        base offset and base timestamp (the first record's), largest timestamp
#     dropped    producer id, epoch and sequence (-1), the transactional bit, the delete horizon
#
# A batch ends where codec, timestamp type, leader epoch or log append time change, where it is full, and
# where an offset would not fit its delta of 32 bits. In a merge of runs, a large batch of which all records
# stay is copied as it is; a batch of the log never is, since its producer fields must go. Message sets (v0,
# v1) are converted to batches first. (Pulsar's ``RawBatchConverter.rebatchMessage`` keeps a batch for each
# source batch.)

BATCH_BYTES = 128 << 10
"""A batch is closed before its records exceed so many bytes, uncompressed."""
GROWTH = 20
"""Bytes by which a record may grow: its size, timestamp delta and offset delta may become the longest
varints."""
_KIND_MASK = CODEC_MASK | TIMESTAMP_TYPE_BIT
"""The attributes that a new batch has from its sources."""
START, END, COUNT, BASE, BASE_TIME, MAX_TIME, LAST, KIND, EPOCH, ROWS, MATCHED = range(11)
"""Fields of the open batch's state (int64): where it starts and ends in the output, its header's values; how
many rows are finished, how many listed offsets were matched."""
_MISSED, _MALFORMED = -1, -2


class _NewHeader(NamedTuple):
    """What ``write_header`` takes from a source batch's row, for a new batch."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


@kernel
def _close(out: Bytes, open_: Int64, rows: Int64) -> None:
    """Finish the open batch: write its header and its row, which is (start, size, last offset, largest
    timestamp, codec, 1: its checksum is still to be computed)."""
    start, size = open_[START], open_[END] - open_[START]
    header = _NewHeader(open_[BASE], open_[LAST], open_[EPOCH], -1, -1, -1)
    write_header(out, start, size, header, open_[KIND], open_[BASE_TIME], open_[MAX_TIME], open_[COUNT])
    row = rows[open_[ROWS]]
    row[0], row[1], row[2], row[3] = start, size, open_[LAST], open_[MAX_TIME]
    row[4], row[5] = open_[KIND] & CODEC_MASK, 1
    open_[ROWS] += 1
    open_[START] = open_[END]
    open_[COUNT] = 0


@kernel
def _copy_batch(window: Bytes, header: Any, out: Bytes, open_: Int64, rows: Int64) -> None:
    """Copy a batch as it is, after the batches that are finished."""
    row = rows[open_[ROWS]]
    row[0], row[1], row[2], row[3] = open_[END], header.size, header.last_offset, header.max_timestamp
    row[4], row[5] = 0, 0
    open_[END] = copy_bytes(window, header.position, header.size, out, open_[END])
    open_[START] = open_[END]
    open_[ROWS] += 1


@kernel
def _add(
    data: Bytes, rest: int, size: int, offset: int, timestamp: int, header: Any, out: Bytes, open_: Int64
) -> None:
    """Add a record to the open batch, or open one. ``rest``: where its key begins, ``size`` bytes up to its
    end.

    Only the deltas and the record's size change; key, value and headers are copied.
    """
    if open_[COUNT] == 0:
        open_[END] = open_[START] + BATCH_OVERHEAD
        open_[BASE], open_[BASE_TIME], open_[MAX_TIME] = offset, timestamp, timestamp
        open_[KIND], open_[EPOCH] = header.attributes & _KIND_MASK, header.leader_epoch
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
def _skip_records(at: int, end: int, count: int) -> int:
    """Skip ``count`` records from address ``at`` on by their sizes: where they end, -1 for a malformed
    size."""
    for _ in range(count):
        body, at = next_varint(at, end)
        if at < 0 or body < 6 or body > end - at:
            return -1
        at += body
    return at


@kernel
def _coalesce(
    window: Bytes,
    batches: BatchHeaders,
    decompressed: tuple[Bytes, Int64, Int64],
    action: Int64,
    selection: tuple[Int64, Int64, bool],
    limit: int,
    into: tuple[Bytes, Int64, Int64],
    offsets: Int64,
) -> tuple[int, int]:
    """Coalesce v2 batches: (records retained, 0), or (number of the bad batch, ``_MISSED`` or
    ``_MALFORMED``).

    ``decompressed``: (data, starts, ends), the records of batch i are ``data[starts[i]:ends[i]]``.
    ``action``: 1 for a batch that is copied as it is. ``selection``: (listed, until, keep): ascending
    offsets that are retained, or discarded where ``keep`` is False; ``until[i]`` of them are at or below
    batch i's last offset. ``into``: (out, state, rows): the output's bytes, the open batch's state, a row
    for each finished batch, as ``_close`` writes it. Fills ``offsets`` with those that are retained.
    """
    data, starts, ends = decompressed
    listed, until, keep_listed = selection
    out, open_, rows = into
    retained, origin = 0, data.ctypes.data
    matched = open_[MATCHED]
    for i in range(len(batches)):
        header = batches[i]
        # 1. Close the open batch where this one's records cannot join it.
        log_append = header.attributes & TIMESTAMP_TYPE_BIT != 0
        other = open_[KIND] != header.attributes & _KIND_MASK or open_[EPOCH] != header.leader_epoch
        if open_[COUNT] and (action[i] or other or (log_append and open_[BASE_TIME] != header.max_timestamp)):
            _close(out, open_, rows)
        # 2. Copy the batch if all of it stays. Its records are gone through all the same, for their offsets.
        if action[i]:
            _copy_batch(window, header, out, open_, rows)
        at, end, remaining = origin + starts[i], origin + ends[i], header.count
        # In a batch without gaps the position of an offset is known, so records before the next listed one
        # are skipped by their sizes. (Phase one has checked that offsets ascend.)
        is_dense = keep_listed and header.last_offset - header.base_offset + 1 == header.count
        while remaining > 0:
            # 3. Go to the next record, or to the next listed one where only these are retained.
            if keep_listed and matched == until[i]:
                break
            if is_dense:
                skipped = max(listed[matched] - (header.last_offset + 1 - remaining), 0)
                at = _skip_records(at, end, skipped)
                if at < 0:
                    return i, _MALFORMED
                remaining -= skipped
            remaining -= 1
            rest, at, delta, step, reason = record_head(at, end)
            if reason > 0:
                return i, _MALFORMED
            # 4. Match it. Both lists ascend, so a listed offset below this record's has no record: phase one
            #    has seen one that is missing now.
            offset = header.base_offset + step
            is_listed = matched < until[i] and listed[matched] <= offset
            if is_listed:
                if listed[matched] != offset:
                    return i, _MISSED
                matched += 1
            if is_listed != keep_listed:
                continue
            offsets[retained] = offset
            retained += 1
            if action[i]:
                continue
            # 5. Add it to the open batch, or to a new one where it does not fit.
            is_full = open_[END] - open_[START] + at - rest > limit or offset - open_[BASE] > INT_MAX
            if open_[COUNT] and is_full:
                _close(out, open_, rows)
            # With log append time a record's timestamp is its batch's, whatever its delta says.
            timestamp = header.max_timestamp if log_append else header.base_timestamp + delta
            _add(data, rest - origin, at - rest, offset, timestamp, header, out, open_)
        if matched != until[i]:
            return i, _MISSED
    open_[MATCHED] = matched
    return retained, 0


class Coalescer:
    """Coalesces the windows of one group, in log order.

    ``listed`` (int64, ascending): offsets that are retained, or with ``keep_listed`` False discarded; each
    must be matched by a record. ``offsets``: those that were retained, an array for each call, in order.
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
        self._output = self._out.reserve(0)
        self.offsets: list[Int64] = []

    @property
    def matched(self) -> int:
        """How many listed offsets were matched."""
        return int(self._open[MATCHED])

    def chosen(self, batches: BatchHeaders) -> BatchHeaders:
        """The batches that may have records to retain, by their offsets."""
        if not self._keep_listed:
            return batches
        low = np.searchsorted(self._listed, batches["base_offset"])
        high = np.searchsorted(self._listed, batches["last_offset"], side="right")
        return batches[(high > low) | (batches["magic"] < 2)]

    def take(
        self, window: Bytes, batches: BatchHeaders, *, path: str = "", origin: int = 0
    ) -> CleanedBatches | None:
        """Coalesce some batches, all of magic 2 or all older: the batches that are finished by now, valid
        until the next call; None where no record is retained.

        Raises CheckFailedError for a listed offset without a record, CorruptRecordError.
        """
        if not len(batches):
            return None
        if int(batches["magic"][0]) < 2:
            window, batches = self._converted(window, batches, path, origin)
            if not len(batches):
                return None
        plain, limit = self._plain, self._batch_limit
        decompressed = decompress_batches(window, batches, plain, limit=limit, path=path, origin=origin)
        counts = int(batches["count"].sum())
        size = int((decompressed[2] - decompressed[1]).sum()) + int(batches["size"].sum()) + GROWTH * counts
        # Each source batch may end a batch and be copied; of others, two in a row exceed the limit together.
        max_batches = 2 * len(batches) + 2 * size // self._limit + 4
        self._reserve(size + BATCH_OVERHEAD * max_batches)
        rows = np.empty((max_batches, 6), np.int64)
        offsets = np.empty(counts, np.int64)
        until = np.searchsorted(self._listed, batches["last_offset"], side="right")
        action = self._copied(batches, until)
        self._open[ROWS] = 0
        selection = self._listed, until, self._keep_listed
        into = self._output, self._open, rows
        retained, wrong = _coalesce(
            window, batches, decompressed, action, selection, self._limit, into, offsets
        )
        if wrong:
            position = origin + int(batches["position"][retained])
            if wrong == _MALFORMED:
                raise CorruptRecordError(path, position, DECODE_REASON[1])
            reason = "a record that was there when the keys were read is missing"
            raise CheckFailedError(reason, path=path, position=position, advice="run again")
        self.offsets.append(offsets[:retained].copy())
        return self._finished(rows)

    def _copied(self, batches: BatchHeaders, until: Int64) -> Int64:
        """1 for the batches of a run that are large and of which all records are retained."""
        if self._keep_listed:
            return np.zeros(len(batches), np.int64)
        low = np.searchsorted(self._listed, batches["base_offset"])
        large = batches["size"] * np.where(codec_of(batches) > 0, 8, 1) >= self._limit // 2
        return np.asarray((until == low) & large).astype(np.int64)

    def _converted(
        self, window: Bytes, entries: BatchHeaders, path: str, origin: int
    ) -> tuple[Bytes, BatchHeaders]:
        """Convert message set entries to v2 batches of the records that are retained."""
        assert self._keep_listed, "a run has no message sets"
        limit = self._batch_limit
        columns = decode_records(window, entries, Scratch(), limit=limit, path=path, origin=origin)
        done = convert_entries(
            entries,
            columns,
            keep=_is_listed(columns.offset, self._listed),
            horizon_ms=np.full(len(entries), NO_HORIZON, np.int64),
            keep_empty=np.zeros(len(entries), np.bool_),
            path=path,
            origin=origin,
        )
        return done.data, scan_batches(np.ascontiguousarray(done.data)).batches

    def _reserve(self, size: int) -> None:
        """Move the open batch to the start of the output, with ``size`` free bytes after it."""
        start, end = int(self._open[START]), int(self._open[END]) if self._open[COUNT] else 0
        open_batch = self._output[start:end].copy() if end else np.empty(0, np.uint8)
        self._output = self._out.reserve(len(open_batch) + size)
        self._output[: len(open_batch)] = open_batch
        self._open[START], self._open[END] = 0, len(open_batch)

    def _finished(self, rows: Int64) -> CleanedBatches:
        starts, sizes, last_offset, max_timestamp, codecs, new = rows[: self._open[ROWS]].T.copy()
        return PendingBatches(
            data=self._output[: int(self._open[START])],
            starts=starts,
            sizes=sizes,
            codecs=codecs.astype(np.int16),
            is_new=new != 0,
            last_offset=last_offset,
            max_timestamp=max_timestamp,
        ).finished(self._packed)

    def finish(self) -> CleanedBatches:
        """Finish the open batch. Raises CheckFailedError when not every listed offset was matched."""
        if self.matched != len(self._listed):
            raise CheckFailedError(
                f"{len(self._listed)} offsets were listed, but {self.matched} have a record"
            )
        rows = np.empty((1, 6), np.int64)
        self._open[ROWS] = 0
        if self._open[COUNT]:
            self._reserve(0)
            _close(self._output, self._open, rows)
        else:
            self._open[START] = self._open[END] = 0
        return self._finished(rows)


def _is_listed(offsets: Int64, listed: Int64) -> Flags:
    """Which offsets are among the ``listed`` ones (ascending): bool."""
    if not len(listed):
        return np.zeros(len(offsets), np.bool_)
    return np.asarray(listed[np.searchsorted(listed, offsets).clip(max=len(listed) - 1)] == offsets)


KINDS = ("log", "index", "timeindex")


class _Sink:
    """Writes a group's segments; begins a new one where bytes or offsets of the one before reach their
    limit."""

    def __init__(self, settings: Settings, attempt: str, report: Compacted) -> None:
        self._settings, self._attempt, self._report = settings, attempt, report
        self._writer: files.Writer | None = None
        self._open_file = contextlib.ExitStack()

    def _open(self, batch: Bytes) -> files.Writer:
        """Begin a segment with the base offset that ``batch`` begins with."""
        self._base, self._crc = int.from_bytes(batch[:SIZE_POSITION].tobytes(), "big"), 0
        self._stem = str(Path(self._settings.staging) / f"{self._base:020d}.{self._attempt}")
        self._writer = self._open_file.enter_context(files.Writer(f"{self._stem}.log"))
        self._indexes = IndexBuilder(self._base, self._settings.index_interval, self._settings.index_bytes)
        return self._writer

    def put(self, batches: CleanedBatches) -> None:
        """Write finished batches, in order."""
        start, ends = 0, np.concatenate((np.zeros(1, np.int64), np.cumsum(batches.size)))
        while start < len(batches.size):
            writer = self._writer or self._open(batches.data[ends[start] :])
            # Batches up to ``end`` fit: by their bytes, and by their offsets, which indexes have as int32.
            last_byte = ends[start] + self._settings.segment_bytes - writer.size
            by_bytes = int(np.searchsorted(ends, last_byte, side="right")) - 1
            by_offset = int(np.searchsorted(batches.last_offset, self._base + INT_MAX, side="right"))
            end = min(by_bytes, by_offset)
            if end <= start and writer.size:
                self.close()
                continue
            end = max(end, start + 1)  # a batch larger than ``segment_bytes`` gets a segment of its own
            rows, data = slice(start, end), batches.data[ends[start] : ends[end]].data
            self._crc = crc32c(data, self._crc)
            writer.write(data)
            self._indexes.add(batches.last_offset[rows], batches.max_timestamp[rows], batches.size[rows])
            start = end

    def close(self) -> None:
        """Finish the open segment: write its indexes, make all durable."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        indexes = self._indexes.finish()
        for kind, data in indexes.items():
            files.write_new(f"{self._stem}.{kind}", data)
        for kind in KINDS:
            files.inherit_owner(f"{self._stem}.{kind}")
        writer.sync()
        self._open_file.close()
        self._report.segments[self._stem] = SegmentEntry(
            base_offset=self._base,
            size=writer.size,
            crc=self._crc,
            index_crc=crc32c(indexes["index"]),
            time_index_crc=crc32c(indexes["timeindex"]),
        )

    def drop(self) -> None:
        """Remove all files of this attempt."""
        self._open_file.close()
        for stem in [*self._report.segments, *([] if self._writer is None else [self._stem])]:
            for kind in KINDS:
                with contextlib.suppress(OSError):
                    files.unlink(f"{stem}.{kind}")
        self._report.segments.clear()


def rewrite_group(work: CompactionWork, group: Group, retained: Int64, attempt: str) -> Compacted:
    """Write the records of a group at the ``retained`` offsets (int64, in any order) into new segments.

    Does not raise for damage, a full disk or wrong counts: the report has the failure, and the files of this
    attempt are removed.
    """
    coalescer = Coalescer(np.sort(retained), batch_limit=work.settings.batch_limit)
    return _write_group(work, group, coalescer, attempt)


def merge_group(work: CompactionWork, group: Group, attempt: str) -> Compacted:
    """Write the records of a group that are not superseded into new segments. Does not raise, as above."""
    runs = {source.run for source in work.sources[group.first_segment : group.end_segment]}
    parts = [offsets for run, offsets in work.superseded.items() if run in runs]
    superseded = np.sort(np.concatenate([NO_OFFSETS, *parts]))
    low, high = np.searchsorted(superseded, [group.base_offset, group.end_offset])
    limit = work.settings.batch_limit
    coalescer = Coalescer(superseded[low:high], keep_listed=False, batch_limit=limit)
    return _write_group(work, group, coalescer, attempt)


def _write_group(work: CompactionWork, group: Group, coalescer: Coalescer, attempt: str) -> Compacted:
    report = Compacted()
    sink = _Sink(work.settings, f"{group.index}.{attempt}", report)
    try:
        for source in work.sources[group.first_segment : group.end_segment]:
            for batches in _coalesced(source, coalescer, work.settings.window_size):
                sink.put(batches)
        sink.put(coalescer.finish())
        sink.close()
        offsets = np.concatenate([NO_OFFSETS, *coalescer.offsets])
        _verify(report, group, offsets, work.settings)
        report.written[group.index] = len(offsets)
    except Exception as error:
        report.failure = failure_of(error)
        sink.drop()
    return report


def _coalesced(source: Source, coalescer: Coalescer, window_size: int) -> Iterator[CleanedBatches]:
    """Coalesce one source; batches without a record to retain are passed over unread."""
    following = source.base_offset
    with open_source(source) as reader:
        read = windows(reader, start=source.start, end=source.size, window_size=window_size, verify=False)
        for window in read:
            following = check_ascending(source.path, window, following, source.end_offset)
            chosen = coalescer.chosen(window.batches)
            refuse_bad_checksum(window.data, chosen, path=source.path, origin=window.origin)
            for part in slices_within(window.data, chosen):
                batches = coalescer.take(window.data, chosen[part], path=source.path, origin=window.origin)
                if batches is not None:
                    yield batches


def _verify(report: Compacted, group: Group, offsets: Int64, settings: Settings) -> None:
    """Verify the new segments from disk: batch checksums, order, exactly these offsets, indexes built again.

    Raises CheckFailedError, CorruptFileError, OSError.
    """
    following, seen, scratch, limit = group.base_offset, 0, Scratch(), settings.batch_limit
    for stem, segment in report.segments.items():
        path = f"{stem}.log"
        rebuilt = IndexBuilder(segment.base_offset, settings.index_interval, settings.index_bytes)
        with files.Reader(path) as reader:
            if reader.stat.size != segment.size:
                reason = f"the file has {reader.stat.size} bytes, but {segment.size} were written"
                raise CheckFailedError(reason, path=path)
            read, span = windows(reader, window_size=settings.window_size), (following, group.end_offset)
            for some in decode_slices(path, read, span, decode_record_keys, scratch=scratch, limit=limit):
                rebuilt.add_batches(some.batches)
                if not np.array_equal(offsets[seen : seen + len(some.columns)], some.columns.offset):
                    raise CheckFailedError("the file has other records than were written", path=path)
                seen += len(some.columns)
                following = int(some.batches["last_offset"][-1]) + 1
        for kind, data in rebuilt.finish().items():
            if files.read_bytes(f"{stem}.{kind}") != data:
                raise CheckFailedError("the file is not the index of its log", path=f"{stem}.{kind}")
    if seen != len(offsets):
        raise CheckFailedError(f"{seen} records are on disk, but {len(offsets)} were written")


def merge_keys(work: CompactionWork, bucket: int, buckets: int, attempt: str) -> Compacted:
    """Merge one bucket of the runs' key indexes, without superseded entries, into a part of a new one. Does
    not raise: the report has the failure."""
    done, partitions = Compacted(), PARTITIONS // buckets
    first, parts = bucket * partitions, []
    try:
        for run, path in work.key_indexes.items():
            superseded, span = work.superseded.get(run, NO_OFFSETS), (first, first + partitions)
            for _, entries, _ in read_keys(path, work.hash_key, work.words, *span):
                live = ~_is_listed(offsets_of(entries), superseded) if len(superseded) else slice(None)
                parts.append(EntryBlob(bucket=bucket, entries=entries[live]))
        best, bounds = best_of_each_key(parts, work.words, first, partitions)
        done.keys = [write_part(Path(work.settings.staging), best, bounds, first, attempt)]
    except Exception as error:
        done.failure = failure_of(error)
    return done
