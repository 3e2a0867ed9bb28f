"""Phase two of a side-by-side compaction, and the merge of runs: new segments, written and verified.

::

    rewrite_group      sources of the log, retained offsets    → segments with exactly these records
    merge_group        sources of runs, superseded offsets     → segments with all other records
    merge_key_indexes  a bucket of the runs' key indexes       → a part of the new key index

A task writes only files that have its attempt's name, in the compaction's staging folder. It creates them
with O_EXCL, and makes the segments durable. The compactor renames the files of the attempt that it accepts.
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
from siltstone.base.records.codecs import DEFAULT_DECOMPRESSION_LIMIT, Scratch
from siltstone.base.records.columns import DECODE_REASON, RECORD_SIZE, read_record_head
from siltstone.base.records.convert import NO_HORIZON, convert_entries
from siltstone.base.records.decode import decode_record_keys, decode_records
from siltstone.base.records.decompression import decompress_batches, slices_within
from siltstone.base.records.kernel import inline_kernel, kernel
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
from siltstone.compaction.ledger.keys import (
    KEY_INDEX_PARTITIONS,
    latest_entry_of_each_key,
    read_key_index,
    write_key_index_part,
)
from siltstone.compaction.ledger.work import (
    NO_OFFSETS,
    CompactionReport,
    CompactionSettings,
    CompactionWork,
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
#     kept       offsets, timestamps, keys, values, headers; the batch's codec, timestamp type, leader epoch
#     new        base offset and base timestamp (the first record's), largest timestamp
#     dropped    producer id, producer epoch and base sequence (-1), transactional bit, delete horizon
#
# A batch ends where the codec, the timestamp type, the leader epoch or the log append time changes, where it
# is full, and where an offset delta would not fit 32 bits. In a merge of runs, a large batch of which all
# records stay is copied as it is. A batch of the log never is, since its producer fields are dropped. Message
# sets (v0, v1) are converted to batches first. (Pulsar's ``RawBatchConverter.rebatchMessage`` writes a batch
# for each source batch.)

BATCH_BYTES = 128 << 10
"""A batch is closed before it exceeds this size, uncompressed."""
GROWTH = 20
"""The most bytes by which a record may grow: its size (up to 5 bytes), its timestamp delta (10) and its
offset delta (5) may become longer varints."""
_KIND_MASK = CODEC_MASK | TIMESTAMP_TYPE_BIT
"""The bits of a batch's attributes that a new batch takes from its source batches."""
_STATE_FIELDS, _ROW_FIELDS = 11, 6
START, END, COUNT, BASE, BASE_TIME, MAX_TIME, LAST, KIND, EPOCH, ROWS, MATCHED = range(_STATE_FIELDS)
"""Fields of ``state``, the state of the open batch (int64): START and END are its positions in the output;
COUNT to EPOCH are values for its header (KIND: its attributes). ROWS: how many batches this call has
finished. MATCHED: how many listed offsets had a record, over all calls."""
ROW_START, ROW_SIZE, ROW_LAST, ROW_MAX_TIME, ROW_CODEC, ROW_IS_NEW = range(_ROW_FIELDS)
"""Fields of a finished batch's row in ``rows`` (int64): its position and size in the output, last offset,
largest timestamp, the codec to compress it with, and 1 if its checksum has to be computed (0: it was
copied)."""
_MISSED, _MALFORMED = -1, -2
"""Errors that ``_coalesce`` returns: a listed offset has no record; a record cannot be decoded."""
_SMALLEST_RECORD = 6
"""Bytes after a record's size: attributes, two deltas, two sizes and the header count."""
_COMPRESSION_RATIO = 8
"""An estimate, to tell whether a compressed batch is large."""


class _NewHeader(NamedTuple):
    """The fields of a new batch that ``write_header`` otherwise takes from a source batch's header."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


@kernel
def _close(out: Bytes, state: Int64, rows: Int64) -> None:
    """Finish the open batch: write its header and its row. Its checksum is computed later."""
    start, size = state[START], state[END] - state[START]
    header = _NewHeader(state[BASE], state[LAST], state[EPOCH], -1, -1, -1)
    write_header(out, start, size, header, state[KIND], state[BASE_TIME], state[MAX_TIME], state[COUNT])
    row = rows[state[ROWS]]
    row[ROW_START], row[ROW_SIZE] = start, size
    row[ROW_LAST], row[ROW_MAX_TIME] = state[LAST], state[MAX_TIME]
    row[ROW_CODEC], row[ROW_IS_NEW] = state[KIND] & CODEC_MASK, 1
    state[ROWS] += 1
    state[START] = state[END]
    state[COUNT] = 0


@kernel
def _copy_batch(window: Bytes, header: Any, out: Bytes, state: Int64, rows: Int64) -> None:
    """Copy a batch of a run, unchanged, to the end of the output. No batch is open then."""
    row = rows[state[ROWS]]
    row[ROW_START], row[ROW_SIZE] = state[END], header.size
    row[ROW_LAST], row[ROW_MAX_TIME] = header.last_offset, header.max_timestamp
    row[ROW_CODEC], row[ROW_IS_NEW] = 0, 0  # it is compressed already, and has its checksum
    state[END] = copy_bytes(window, header.position, header.size, out, state[END])
    state[START] = state[END]
    state[ROWS] += 1


@kernel
def _add(
    data: Bytes, key_start: int, size: int, offset: int, timestamp: int, header: Any, out: Bytes, state: Int64
) -> None:
    """Add a record to the open batch; if none is open, begin one with the attributes of ``header``.

    ``data[key_start:key_start + size]``: key, value and headers, which are copied. The record's size and its
    deltas are written anew. Kafka does not use a record's attributes: they are 0.
    """
    if state[COUNT] == 0:
        state[END] = state[START] + BATCH_OVERHEAD
        state[BASE], state[BASE_TIME], state[MAX_TIME] = offset, timestamp, timestamp
        state[KIND], state[EPOCH] = header.attributes & _KIND_MASK, header.leader_epoch
    offset_delta, timestamp_delta = offset - state[BASE], timestamp - state[BASE_TIME]
    body_size = 1 + varint_size(timestamp_delta) + varint_size(offset_delta) + size
    position = write_varint(out, state[END], body_size)
    out[position] = 0
    position = write_varint(out, position + 1, timestamp_delta)
    position = write_varint(out, position, offset_delta)
    state[END] = copy_bytes(data, key_start, size, out, position)
    state[COUNT] += 1
    state[MAX_TIME] = max(state[MAX_TIME], timestamp)
    state[LAST] = offset


@inline_kernel
def _skip_records(at: int, end: int, count: int) -> int:
    """Skip ``count`` records, by their sizes, from the memory address ``at`` on; ``end``: the address after
    the batch. Returns the address after them, -1 for a malformed size."""
    for _ in range(count):
        body_size, at = next_varint(at, end)
        if at < 0 or body_size < _SMALLEST_RECORD or body_size > end - at:
            return -1
        at += body_size
    return at


@kernel
def _coalesce(
    window: Bytes,
    batches: BatchHeaders,
    decompressed: tuple[Bytes, Int64, Int64],
    is_copied: Int64,
    selection: tuple[Int64, Int64, bool],
    limit: int,
    output: tuple[Bytes, Int64, Int64],
    offsets: Int64,
) -> tuple[int, int]:
    """Coalesce v2 batches. Returns (number of records retained, 0); for an error (index of the bad batch,
    ``_MISSED`` or ``_MALFORMED``).

    ``decompressed``: (data, starts, ends); the records of batch i are ``data[starts[i]:ends[i]]``.
    ``is_copied``: 1 for a batch that is copied as it is, else 0. ``selection``: (listed, listed_ends,
    keep_listed). ``listed``: ascending offsets of records to retain, or to discard if ``keep_listed`` is
    False; ``listed_ends[i]`` of them are at or below batch i's last offset. ``limit``: bytes of a batch.
    ``output``: (out, state, rows): its bytes, the state of the open batch, a row for each finished
    batch. Fills ``offsets`` with those that are retained.
    """
    data, starts, ends = decompressed
    listed, listed_ends, keep_listed = selection
    out, state, rows = output
    retained, origin = 0, data.ctypes.data
    matched = state[MATCHED]
    for i in range(len(batches)):
        header = batches[i]
        # 1. Close the open batch if this one's records cannot join it.
        is_log_append = header.attributes & TIMESTAMP_TYPE_BIT != 0
        is_other_kind = state[KIND] != header.attributes & _KIND_MASK or state[EPOCH] != header.leader_epoch
        is_other_time = is_log_append and state[BASE_TIME] != header.max_timestamp
        if state[COUNT] and (is_copied[i] or is_other_kind or is_other_time):
            _close(out, state, rows)
        # 2. Copy the batch if all its records stay. The loop still reads them, for their offsets.
        if is_copied[i]:
            _copy_batch(window, header, out, state, rows)
        at, end, remaining = origin + starts[i], origin + ends[i], header.count
        # In a batch without gaps an offset tells how many records come before it, so these are skipped by
        # their sizes. (Phase one has checked that offsets ascend.)
        is_dense = keep_listed and header.last_offset - header.base_offset + 1 == header.count
        while remaining > 0:
            # 3. Go to the next record; if only listed ones are retained, to the next listed one.
            if keep_listed and matched == listed_ends[i]:
                break
            if is_dense:
                skipped = max(listed[matched] - (header.last_offset + 1 - remaining), 0)
                at = _skip_records(at, end, skipped)
                if at < 0:
                    return i, _MALFORMED
                remaining -= skipped
            remaining -= 1
            key_start, at, timestamp_delta, offset_delta, reason = read_record_head(at, end)
            if reason > 0:
                return i, _MALFORMED
            # 4. Is the record listed? Offsets and the list ascend: a listed offset below this record's has no
            #    record, although phase one has seen one.
            offset = header.base_offset + offset_delta
            is_listed = matched < listed_ends[i] and listed[matched] <= offset
            if is_listed:
                if listed[matched] != offset:
                    return i, _MISSED
                matched += 1
            if is_listed != keep_listed:
                continue
            offsets[retained] = offset
            retained += 1
            if is_copied[i]:
                continue
            # 5. Add it to the open batch, or to a new one if it does not fit.
            size = at - key_start
            is_full = state[END] - state[START] + size > limit or offset - state[BASE] > INT_MAX
            if state[COUNT] and is_full:
                _close(out, state, rows)
            # With log append time a record's timestamp is its batch's, whatever its delta says.
            timestamp = header.max_timestamp if is_log_append else header.base_timestamp + timestamp_delta
            _add(data, key_start - origin, size, offset, timestamp, header, out, state)
        if matched != listed_ends[i]:
            return i, _MISSED
    state[MATCHED] = matched
    return retained, 0


class Coalescer:
    """Coalesces the windows of one segment group, in log order.

    ``listed`` (int64, ascending): offsets of the records to retain, or to discard if ``keep_listed`` is
    False; each must have a record. ``limit``: the bytes of records with which a new batch is full;
    ``batch_limit``: the most bytes that a source batch may decompress to. ``offsets``: those of the retained
    records, an array for each call, in order.
    """

    def __init__(
        self,
        listed: Int64,
        *,
        keep_listed: bool = True,
        limit: int = BATCH_BYTES,
        batch_limit: int = DEFAULT_DECOMPRESSION_LIMIT,
    ) -> None:
        self._listed = listed
        self._keep_listed = keep_listed
        self._limit, self._batch_limit = limit, batch_limit
        self._state: Int64 = np.zeros(_STATE_FIELDS, np.int64)
        # Memory for new batches before compression, for compressed ones, and for decompressed source batches.
        self._out, self._packed, self._plain = Scratch(), Scratch(), Scratch()
        self._output = self._out.reserve(0)
        self.offsets: list[Int64] = []

    @property
    def matched(self) -> int:
        """How many of the listed offsets had a record so far."""
        return int(self._state[MATCHED])

    def may_retain(self, batches: BatchHeaders) -> BatchHeaders:
        """Those of ``batches`` that may have records to retain, by their offsets."""
        if not self._keep_listed:
            return batches
        low = np.searchsorted(self._listed, batches["base_offset"])
        high = np.searchsorted(self._listed, batches["last_offset"], side="right")
        # The header of a wrapper (v0, v1) has only its last offset.
        return batches[(high > low) | (batches["magic"] < 2)]

    def coalesce(
        self, window: Bytes, batches: BatchHeaders, *, path: str = "", origin: int = 0
    ) -> CleanedBatches | None:
        """Coalesce some batches, all of magic 2 or all older. ``path`` and ``origin`` are for errors.

        Returns the new batches that are finished, valid until the next call; None if ``batches`` has no
        record to retain. Raises CheckFailedError for a listed offset without a record, CorruptRecordError.
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
        # An upper bound: each source batch may end the open batch, and be copied; of batches that ended
        # because they were full, two in a row exceed the limit together.
        max_batches = 2 * len(batches) + 2 * size // self._limit + 4
        self._reserve(size + BATCH_OVERHEAD * max_batches)
        rows = np.empty((max_batches, _ROW_FIELDS), np.int64)
        offsets = np.empty(counts, np.int64)
        listed_ends = np.searchsorted(self._listed, batches["last_offset"], side="right")
        is_copied = self._copied_batches(batches, listed_ends)
        self._state[ROWS] = 0
        selection = self._listed, listed_ends, self._keep_listed
        output = self._output, self._state, rows
        retained, error = _coalesce(
            window, batches, decompressed, is_copied, selection, self._limit, output, offsets
        )
        if error:
            position = origin + int(batches["position"][retained])  # here it is the bad batch's index
            if error == _MALFORMED:
                raise CorruptRecordError(path, position, DECODE_REASON[RECORD_SIZE])
            reason = "a record that was there when the keys were read is missing"
            raise CheckFailedError(reason, path=path, position=position, advice="run again")
        self.offsets.append(offsets[:retained].copy())
        return self._finished(rows)

    def _copied_batches(self, batches: BatchHeaders, listed_ends: Int64) -> Int64:
        """1 for each batch that is copied: it is a run's, large, and has no listed record."""
        if self._keep_listed:
            return np.zeros(len(batches), np.int64)
        listed_starts = np.searchsorted(self._listed, batches["base_offset"])
        uncompressed = batches["size"] * np.where(codec_of(batches) > 0, _COMPRESSION_RATIO, 1)
        is_large = uncompressed >= self._limit // 2
        return np.asarray((listed_ends == listed_starts) & is_large).astype(np.int64)

    def _converted(
        self, window: Bytes, entries: BatchHeaders, path: str, origin: int
    ) -> tuple[Bytes, BatchHeaders]:
        """Convert the entries of message sets to v2 batches with the records to retain."""
        assert self._keep_listed, "a run has no message sets"
        limit = self._batch_limit
        columns = decode_records(window, entries, Scratch(), limit=limit, path=path, origin=origin)
        converted = convert_entries(
            entries,
            columns,
            is_retained=_is_listed(columns.offset, self._listed),
            horizon_ms=np.full(len(entries), NO_HORIZON, np.int64),
            keeps_empty=np.zeros(len(entries), np.bool_),
            path=path,
            origin=origin,
        )
        return converted.data, scan_batches(np.ascontiguousarray(converted.data)).batches

    def _reserve(self, size: int) -> None:
        """Move the open batch to the start of the output, with ``size`` free bytes after it."""
        start, end = int(self._state[START]), int(self._state[END]) if self._state[COUNT] else 0
        unfinished = self._output[start:end].copy() if end else np.empty(0, np.uint8)
        self._output = self._out.reserve(len(unfinished) + size)
        self._output[: len(unfinished)] = unfinished
        self._state[START], self._state[END] = 0, len(unfinished)

    def _finished(self, rows: Int64) -> CleanedBatches:
        """Compress the finished batches, which ``rows`` describe, and compute their checksums."""
        starts, sizes, last_offset, max_timestamp, codecs, is_new = rows[: self._state[ROWS]].T.copy()
        return PendingBatches(
            data=self._output[: int(self._state[START])],
            starts=starts,
            sizes=sizes,
            codecs=codecs.astype(np.int16),
            is_new=is_new != 0,
            last_offset=last_offset,
            max_timestamp=max_timestamp,
        ).finished(self._packed)

    def finish(self) -> CleanedBatches:
        """Finish the last batch. Raises CheckFailedError if a listed offset had no record."""
        if self.matched != len(self._listed):
            raise CheckFailedError(
                f"{len(self._listed)} offsets of records were looked for, but only {self.matched} were found"
            )
        rows = np.empty((1, _ROW_FIELDS), np.int64)
        self._state[ROWS] = 0
        if self._state[COUNT]:
            self._reserve(0)
            _close(self._output, self._state, rows)
        else:
            self._state[START] = self._state[END] = 0
        return self._finished(rows)


def _is_listed(offsets: Int64, listed: Int64) -> Flags:
    """Which of ``offsets`` are in ``listed`` (ascending): bool, one an offset."""
    if not len(listed):
        return np.zeros(len(offsets), np.bool_)
    return np.asarray(listed[np.searchsorted(listed, offsets).clip(max=len(listed) - 1)] == offsets)


SEGMENT_FILES = ("log", "index", "timeindex")
"""Suffixes of the files of a run's segment."""


class _SegmentWriter:
    """Writes the segments of a group, and adds them to ``report``. A new segment begins when the one before
    reaches ``segment_bytes``, or the largest relative offset.

    ``_stem``: the path of the open segment without a suffix; ``_base``: its base offset.
    """

    def __init__(self, settings: CompactionSettings, attempt: str, report: CompactionReport) -> None:
        self._settings, self._attempt, self._report = settings, attempt, report
        self._writer: files.Writer | None = None
        self._open_file = contextlib.ExitStack()

    def _begin(self, batch: Bytes) -> files.Writer:
        """Begin a segment. Its base offset is the base offset of ``batch``, the first field of its header."""
        self._base, self._crc = int.from_bytes(batch[:SIZE_POSITION].tobytes(), "big"), 0
        self._stem = str(Path(self._settings.staging) / f"{self._base:020d}.{self._attempt}")
        self._writer = self._open_file.enter_context(files.Writer(f"{self._stem}.log"))
        self._indexes = IndexBuilder(self._base, self._settings.index_interval, self._settings.index_bytes)
        return self._writer

    def put(self, batches: CleanedBatches) -> None:
        """Write finished batches, in log order; begins and ends segments as needed."""
        start, ends = 0, np.concatenate((np.zeros(1, np.int64), np.cumsum(batches.size)))
        while start < len(batches.size):
            writer = self._writer or self._begin(batches.data[ends[start] :])
            # Batches up to ``end`` fit the segment: in bytes, and in offsets, which an index has as int32.
            max_byte = ends[start] + self._settings.segment_bytes - writer.size
            end_by_size = int(np.searchsorted(ends, max_byte, side="right")) - 1
            end_by_offset = int(np.searchsorted(batches.last_offset, self._base + INT_MAX, side="right"))
            end = min(end_by_size, end_by_offset)
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
        """Finish the open segment: write its indexes, and make its log durable."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        indexes = self._indexes.finish()
        for kind, data in indexes.items():
            files.write_new(f"{self._stem}.{kind}", data)
        for kind in SEGMENT_FILES:
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
        """Remove all files that this attempt has written."""
        self._open_file.close()
        for stem in [*self._report.segments, *([] if self._writer is None else [self._stem])]:
            for kind in SEGMENT_FILES:
                with contextlib.suppress(OSError):
                    files.unlink(f"{stem}.{kind}")
        self._report.segments.clear()


def rewrite_group(work: CompactionWork, group: Group, retained: Int64, attempt: str) -> CompactionReport:
    """Write the records of a group at the ``retained`` offsets (int64, in any order) into new segments.

    Does not raise for damage, a full disk or wrong counts: the report has the failure, and the files of this
    attempt are removed.
    """
    coalescer = Coalescer(np.sort(retained), batch_limit=work.settings.batch_limit)
    return _write_group(work, group, coalescer, attempt)


def merge_group(work: CompactionWork, group: Group, attempt: str) -> CompactionReport:
    """Write the records of a group of the runs' segments that are not superseded into new segments. Does not
    raise, like ``rewrite_group``."""
    runs = {source.run for source in work.sources[group.first_segment : group.end_segment]}
    superseded_of_runs = [offsets for run, offsets in work.superseded.items() if run in runs]
    superseded = np.sort(np.concatenate([NO_OFFSETS, *superseded_of_runs]))
    low, high = np.searchsorted(superseded, [group.base_offset, group.end_offset])
    limit = work.settings.batch_limit
    coalescer = Coalescer(superseded[low:high], keep_listed=False, batch_limit=limit)
    return _write_group(work, group, coalescer, attempt)


def _write_group(work: CompactionWork, group: Group, coalescer: Coalescer, attempt: str) -> CompactionReport:
    """Coalesce a group's sources into new segments, and verify these. A failure is in the report."""
    report = CompactionReport()
    segments = _SegmentWriter(work.settings, f"{group.index}.{attempt}", report)
    try:
        for source in work.sources[group.first_segment : group.end_segment]:
            for batches in _coalesced(source, coalescer, work.settings.window_size):
                segments.put(batches)
        segments.put(coalescer.finish())
        segments.close()
        offsets = np.concatenate([NO_OFFSETS, *coalescer.offsets])
        _verify(report, group, offsets, work.settings)
        report.written[group.index] = len(offsets)
    except Exception as error:
        report.failure = failure_of(error)
        segments.drop()
    return report


def _coalesced(source: Source, coalescer: Coalescer, window_size: int) -> Iterator[CleanedBatches]:
    """Coalesce one source. The records of batches without a record to retain are not decoded."""
    next_offset = source.base_offset
    with open_source(source) as reader:
        read = windows(reader, start=source.start, end=source.size, window_size=window_size, verify=False)
        for window in read:
            next_offset = check_ascending(source.path, window, next_offset, source.end_offset)
            batches = coalescer.may_retain(window.batches)
            refuse_bad_checksum(window.data, batches, path=source.path, origin=window.origin)
            for rows in slices_within(window.data, batches):
                new = coalescer.coalesce(window.data, batches[rows], path=source.path, origin=window.origin)
                if new is not None:
                    yield new


def _verify(report: CompactionReport, group: Group, offsets: Int64, settings: CompactionSettings) -> None:
    """Read the new segments back from disk. Their batches must have right checksums, ascend, and hold records
    at exactly ``offsets``; their indexes must be those that are built from them again.

    Raises CheckFailedError, CorruptFileError, OSError.
    """
    next_offset, seen, scratch, limit = group.base_offset, 0, Scratch(), settings.batch_limit
    for stem, segment in report.segments.items():
        path = f"{stem}.log"
        rebuilt = IndexBuilder(segment.base_offset, settings.index_interval, settings.index_bytes)
        with files.Reader(path) as reader:
            if reader.stat.size != segment.size:
                reason = f"the file has {reader.stat.size} bytes, but {segment.size} were written"
                raise CheckFailedError(reason, path=path)
            read, span = windows(reader, window_size=settings.window_size), (next_offset, group.end_offset)
            for _, batches, columns in decode_slices(
                path, read, span, decode_record_keys, scratch=scratch, limit=limit
            ):
                rebuilt.add_batches(batches)
                if not np.array_equal(offsets[seen : seen + len(columns)], columns.offset):
                    raise CheckFailedError("the file has other records than were written", path=path)
                seen += len(columns)
                next_offset = int(batches["last_offset"][-1]) + 1
        for kind, data in rebuilt.finish().items():
            if files.read_bytes(f"{stem}.{kind}") != data:
                raise CheckFailedError("the file is not the index of its log", path=f"{stem}.{kind}")
    if seen != len(offsets):
        raise CheckFailedError(f"{seen} records are on disk, but {len(offsets)} were written")


def merge_key_indexes(work: CompactionWork, bucket: int, buckets: int, attempt: str) -> CompactionReport:
    """Merge bucket number ``bucket`` of ``buckets`` of the runs' key indexes into a part of a new index.
    Entries of superseded records are left out. Does not raise: a failure is in the report."""
    report, partitions = CompactionReport(), KEY_INDEX_PARTITIONS // buckets
    first, parts = bucket * partitions, []
    try:
        for run, path in work.key_indexes.items():
            superseded = work.superseded.get(run, NO_OFFSETS)
            for _, entries, _ in read_key_index(path, work.hash_key, work.words, first, first + partitions):
                live = ~_is_listed(offsets_of(entries), superseded) if len(superseded) else slice(None)
                parts.append(EntryBlob(bucket=bucket, entries=entries[live]))
        entries, bounds = latest_entry_of_each_key(parts, work.words, first, partitions)
        report.key_index_parts = [
            write_key_index_part(Path(work.settings.staging), entries, bounds, first, attempt)
        ]
    except Exception as error:
        report.failure = failure_of(error)
    return report
