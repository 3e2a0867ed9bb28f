"""Staging: a task writes a group's new segment to files that no reader sees yet, verifies and reports it.

::

    old segments ─► Rewriter ─► _SegmentWriter ─► RUN/BASE.ATTEMPT.log, .index, .timeindex, .txnindex
                                                      └─► StagedVerifier reads the log back, 8 MiB at a time
    a part of a group ─► the same               ─► RUN/BASE.ATTEMPT.piece (``assembling`` makes the segment)

Kafka's ``Cleaner.cleanSegments`` writes ``.cleaned`` files. Here a task may be repeated, so each attempt has
files of its own. A task creates them with O_EXCL in ``topic-N/.siltstone/RUN/`` and syncs them: a late
attempt can change only its own files. Only the process that holds the log renames files, and only those of
the attempt whose report it got (``log.replacement``).
"""

from __future__ import annotations

import contextlib
import errno
import functools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from crc32c import crc32c

from siltstone.base import files
from siltstone.base.config import INT_MAX
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import CheckFailedError, SourceChangedError
from siltstone.base.files.backups import BackedUpFile
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.decode import decode_record_keys
from siltstone.base.records.layout import CONTROL_BIT
from siltstone.compaction.putting import ChunkStore, put_staged
from siltstone.compaction.report import LogFailure, RecordCounts, Summable, failure_of, first_failure
from siltstone.compaction.rewrite import (
    NOT_RETAINED,
    OUT_OF_ORDER,
    Buffers,
    CleanedBatches,
    OffsetFilter,
    Offsets,
    PendingBatches,
    RecordFilter,
    Rewriter,
    check_offsets,
    sort_offsets,
)
from siltstone.compaction.work import (
    Extracted,
    Group,
    GroupRange,
    InputSplit,
    LogWork,
    Throttler,
    batch_slices,
    check_ascending,
    decode_slices,
    throttled_windows,
)
from siltstone.log.indexes import IndexBuilder
from siltstone.log.segments import Segment, Window, open_unchanged, windows
from siltstone.log.transactions import NO_TRANSACTIONS, TransactionState

# A second thread compresses and writes batches while the task's thread rewrites the next ones. Codecs and
# kernels release the interpreter's lock, so a task can use a second core that no other task needs.


class BackgroundWriter(ThreadPoolExecutor):
    """A thread for calls that write; each call returns how many bytes it wrote. A call begins when the call
    before it has ended. The thread starts with the first call and ends with the ``with`` block.
    """

    def __init__(self) -> None:
        super().__init__(1, "background-writer")
        self._last_call: Future[int] | None = None

    def start(self, call: Callable[[], int]) -> int:
        """Wait for the call before, and begin this one; returns what the call before wrote, and raises what
        it raised."""
        written = self.wait()
        self._last_call = self.submit(call)
        return written

    def wait(self) -> int:
        """Wait for the last call; returns what it wrote (0 without a call), and raises what it raised."""
        last, self._last_call = self._last_call, None
        return last.result() if last is not None else 0


# A staged segment is verified while it is written, by reading the file. What was verified and is on disk is
# dropped from the page cache (``files.Writer.drop_cached``), so that a large cleaning does not evict the
# pages of other files.

_WRONG_OFFSETS = {
    OUT_OF_ORDER: "the written segment has an offset twice or out of order",
    NOT_RETAINED: "the written segment has a record whose offset is not retained",
}


class StagedVerifier:
    """Verifies a staged segment or piece: checksums, ascending offsets, that each is retained, the indexes.

    ``path``: of the staged log. ``retained`` returns the offsets retained so far, less the range's base,
    ascending. ``scratch``: memory to decompress into. ``size``: bytes that were verified, whole batches;
    ``record_count``: the records in them; ``checksum``: the CRC32C of a piece's bytes. Raises
    CheckFailedError, CorruptFileError, OSError.
    """

    def __init__(
        self,
        work: LogWork,
        group_range: GroupRange,
        path: str,
        retained: Callable[[], Offsets],
        scratch: Scratch,
    ) -> None:
        self._work, self._range, self._path, self._retained = work, group_range, path, retained
        self._rebuilt_indexes = index_builder(work, group_range.base_offset)
        self._scratch = scratch
        self._is_piece = not group_range.is_whole(work.groups[group_range.group])
        self._next_offset, self._matched = group_range.base_offset, 0
        self._last_offset = group_range.base_offset - 1
        self.size = self.record_count = self.checksum = 0

    def verify_up_to(self, size: int) -> int:
        """Verify up to byte ``size``, where a batch ends; returns how many bytes were read."""
        start, retained, path, limits = self.size, self._retained(), self._path, self._work.limits
        base, offsets = self._range.base_offset, (self._next_offset, self._range.end_offset)
        scratch, limit = self._scratch, limits.batch_limit
        with files.Reader(path) as reader:
            staged = self._indexed(windows(reader, start=start, end=size, window_size=limits.window_size))
            for decoded in decode_slices(
                path, staged, offsets, decode_record_keys, scratch=scratch, limit=limit
            ):
                columns, is_control = decoded.columns, (decoded.batches["attributes"] & CONTROL_BIT) != 0
                self._last_offset, self._matched, problem = check_offsets(
                    columns.offset,
                    columns.batch,
                    is_control,
                    base,
                    self._work.rules.map_end,
                    retained,
                    self._last_offset,
                    self._matched,
                )
                if problem:
                    raise CheckFailedError(_WRONG_OFFSETS[problem], path=path)
                self.record_count += len(columns)
                self._next_offset = int(decoded.batches["last_offset"][-1]) + 1
        self.size = size
        return size - start

    def _indexed(self, staged: Iterator[Window]) -> Iterator[Window]:
        """Passes the windows on; builds the indexes of their batches again, and continues a piece's
        checksum."""
        for window in staged:
            self._rebuilt_indexes.add_batches(window.batches)
            if self._is_piece:
                self.checksum = crc32c(batch_bytes(window), self.checksum)
            yield window

    def finish(self, size: int, record_count: int, indexes: Mapping[str, bytes]) -> int:
        """Verify the rest of a file that is written and synced: ``size`` bytes with ``record_count`` records.

        ``indexes``: those that were written, by kind; the indexes that are built here again must equal them.
        Returns how many bytes were read.
        """
        on_disk = files.stat(self._path).size
        if on_disk != size:
            raise CheckFailedError(f"{size} bytes were written, but the file has {on_disk}", path=self._path)
        read = self.verify_up_to(size)
        if self.record_count != record_count:
            raise CheckFailedError(
                f"{record_count} records were written, but the file has {self.record_count}", path=self._path
            )
        if any(indexes[kind] != data for kind, data in self._rebuilt_indexes.finish().items()):
            raise CheckFailedError(
                "the indexes of the written segment do not match its batches", path=self._path
            )
        return read


def batch_bytes(window: Window) -> memoryview:
    """The bytes of a window's batches. (Behind them ``data`` may have a part of the next batch.)"""
    last = window.batches[-1]
    return window.data[: int(last["position"]) + int(last["size"])].data


def index_builder(work: LogWork, base_offset: int) -> IndexBuilder:
    """A builder of the indexes of a segment of the log."""
    return IndexBuilder(base_offset, work.limits.index_interval_bytes, work.limits.index_bytes)


_READ_BACK_BYTES = 8 << 20
"""The bytes after which the verifier reads what was written since its last read."""
_NO_LINK_ERRNOS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of file systems without hard links, or at their limit."""


@dataclass(slots=True, kw_only=True)
class GroupReport:
    """The report on the rewrite of group number ``group_index``.

    ``retained_count``: how many retained offsets the task got. ``size``: bytes of the new log.
    ``largest_timestamp``: of its records, in ms, -1 without a record; None before the group was written.
    ``staged``: paths of the staged files by kind. ``identity``: of the staged log's file when it was verified
    (``files.FileStat.identity``), empty before. ``put``: the files by kind that the task has put into a store
    (``LogWork.chunk_store``), without names; they are not staged any more.
    """

    group_index: int
    counts: RecordCounts = field(default_factory=RecordCounts)
    retained_count: int = 0
    size: int = 0
    largest_timestamp: int | None = None
    staged: dict[str, str] = field(default_factory=dict)
    identity: list[int] = field(default_factory=list)
    put: dict[str, BackedUpFile] = field(default_factory=dict)
    failure: LogFailure | None = None


@dataclass(slots=True, kw_only=True)
class PieceReport:
    """The report on the rewrite of a range that is a part of a group; ``base_offset``: the range's.

    ``group``: as of a group that has only this range. The new bytes, ``group.size`` of them, begin at byte
    ``position`` of the file at ``path``: the staged piece, or the old log if no batch changed; None in a dry
    run. ``checksum``: their CRC32C, as they were read. ``transaction_index``: the range's part of the new
    ``.txnindex``.
    """

    group: GroupReport
    base_offset: int
    path: str | None = None
    position: int = 0
    checksum: int = 0
    transaction_index: bytes = b""

    @property
    def failure(self) -> LogFailure | None:
        """The failure, None if there was none."""
        return self.group.failure


PIECE = "piece"
"""The suffix of a staged piece."""


def can_link(work: LogWork, group: Group, path: Path) -> bool:
    """May the staged log at ``path`` become a hard link to the old one, if nothing changes?

    It may if the group has one segment, and the path is in the log's own directory
    (topic-N/.siltstone/RUN/file): a copy of the log (``--out``) shares no file with it.
    """
    in_place = path.parent.parent.parent == Path(work.segments[group.first_segment].directory)
    return in_place and group.end_segment == group.first_segment + 1


def link_unchanged(source: Segment, path: str) -> bool:
    """Make the staged log a hard link to the old one; returns False where no link can be made. Raises
    SourceChangedError, OSError."""
    try:
        files.link(source.path, path)
        open_unchanged(source, path).close()  # the link must be to the file that the rewrite has read
        return True
    except OSError as error:
        if error.errno not in _NO_LINK_ERRNOS:
            raise
        return False


def refuse_over_2_gib(size: int, path: str) -> None:
    """Raises CheckFailedError if a new segment of the group whose old log is ``path`` has too many bytes."""
    if size > INT_MAX:
        raise CheckFailedError(
            "the new segment would exceed 2 GiB, the most that an index can address: message sets "
            "(v0, v1) grow when they become batches",
            path=path,
            advice="clean with a smaller segment.bytes",
        )


class _SegmentWriter:
    """Writes a range's batches to the staged log or piece at ``path`` (None: a dry run), and builds indexes.

    A range of one segment is not written as long as no batch changes, if ``may_leave_unchanged``. At the
    first change the writer copies what came before. If nothing changes, the staged log of a whole group
    becomes a hard link to the old one, and a piece is a part of the old one.

    ``size``: bytes of the range's new batches so far, written or not; ``unchanged_checksum``: their CRC32C,
    as long as no batch of a piece has changed.
    """

    def __init__(
        self,
        work: LogWork,
        group_range: GroupRange,
        path: str | None,
        buffers: Buffers,
        verifier: StagedVerifier | None = None,
        *,
        may_leave_unchanged: bool = False,
    ) -> None:
        self.buffers = buffers
        self.source_split = group_range.splits[0]
        self._source, self._path = work.segments[self.source_split.segment], path
        self.is_unchanged = may_leave_unchanged and len(group_range.splits) == 1
        self._writer: files.Writer | None = None
        self._is_piece = not group_range.is_whole(work.groups[group_range.group])
        if not self.is_unchanged:
            self._open()
        self.indexes = index_builder(work, group_range.base_offset)
        self._verifier = verifier
        self._written = 0
        self.size = self.unchanged_checksum = 0

    def _open(self) -> None:
        """Create the file, unless it is a dry run. A piece is removed before long, so it is not synced."""
        if self._path is not None:
            self._writer = files.Writer(self._path, will_be_synced=not self._is_piece)

    def write(self, batches: CleanedBatches | PendingBatches) -> int:
        """Write batches, which are compressed first if they are pending. (As long as the range is unchanged,
        its batches are only counted.) Returns how many bytes they have."""
        output = batches.finished(self.buffers.compressed) if isinstance(batches, PendingBatches) else batches
        refuse_over_2_gib(self.size + len(output.data), self._source.path)
        if self.is_unchanged and not output.is_unchanged:
            self._copy_unwritten()
        elif self.is_unchanged and self._is_piece:
            self.unchanged_checksum = crc32c(output.data.data, self.unchanged_checksum)
        if self._writer is not None and len(output.data):
            self._writer.write(output.data)
            self._written = self._writer.size
        self.size += len(output.data)
        self.indexes.add(output.last_offset, output.max_timestamp, output.size)
        return len(output.data)

    def verify(self) -> int:
        """Verify what was written since the last time, once that is ``_READ_BACK_BYTES``; returns how many
        bytes were read. ``write`` may run in another thread: this reads only below ``_written``."""
        writer, verifier, written = self._writer, self._verifier, self._written
        if writer is None or verifier is None or written - verifier.size < _READ_BACK_BYTES:
            return 0
        read = verifier.verify_up_to(written)
        writer.drop_cached(verifier.size)
        return read

    def drop_cached(self) -> None:
        """Drop the verified file from the page cache."""
        if self._writer is not None:
            self._writer.drop_cached_rest()

    def _copy_unwritten(self) -> None:
        """Copy the batches so far from the old log: they were not written, since none had changed."""
        self.is_unchanged = False
        self._open()
        assert self._writer is not None
        with open_unchanged(self._source) as reader:
            start = self.source_split.start_position
            if self._writer.copy(reader, start, self.size) < self.size:
                raise SourceChangedError(
                    "the segment was truncated while it was cleaned",
                    path=self._source.path,
                    advice="run again",
                )

    def link(self) -> bool:
        """Called after the last batch of a group: if nothing changed, make the staged log a hard link to the
        old one. Returns whether it is a link; where no link can be made, it is a copy."""
        may_link = self.is_unchanged and self.size == self._source.size
        if may_link and self._path is not None and link_unchanged(self._source, self._path):
            return True
        if self.is_unchanged:
            self._copy_unwritten()
        return False

    def __enter__(self) -> _SegmentWriter:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()


def rewrite_range(
    work: LogWork,
    group_range: GroupRange,
    retained: Offsets,
    attempt: str,
    transaction_state: TransactionState = NO_TRANSACTIONS,
    buffers: Buffers | None = None,
    *,
    has_keyless: bool = True,
) -> LogReport:
    """Write the new segment of a whole group, or the piece of a part of one, to staged files; the report is a
    part of the log's. ``retained``: the retained offsets, less the range's base, in any order.

    ``transaction_state``: the transactions that are open where the range starts. ``attempt`` is a part of the
    files' names. A task may use one ``buffers`` for several ranges. ``has_keyless``: the log may have records
    without a key. (Without ``drop_keyless`` such a log is refused before.) Never raises for what is wrong
    with the log, the disk or the counts: the report has the failure, and the files of this attempt are
    removed.
    """
    ascending = sort_offsets(retained, group_range.end_offset - group_range.base_offset)
    has_keyless = has_keyless and work.rules.drop_keyless
    record_filter = OffsetFilter(work, group_range.base_offset, ascending, has_keyless=has_keyless)
    return rewrite_with_filter(work, group_range, record_filter, attempt, transaction_state, buffers)


def rewrite_with_filter(
    work: LogWork,
    group_range: GroupRange,
    record_filter: RecordFilter,
    attempt: str,
    transaction_state: TransactionState = NO_TRANSACTIONS,
    buffers: Buffers | None = None,
) -> LogReport:
    """``rewrite_range`` for any record filter."""
    rewrite = _RangeRewrite(work, group_range, record_filter, transaction_state, buffers or Buffers())
    report = rewrite.report
    part = _as_part(work, group_range, report)
    stem = f"{group_range.base_offset:020d}.{attempt}"
    try:
        if work.staging is None:
            rewrite.rewrite_batches(_SegmentWriter(work, group_range, None, rewrite.buffers))
        elif work.chunk_store is not None:
            rewrite.put(stem, work.chunk_store)
        elif part.pieces:
            rewrite.stage_piece(part.pieces[0], Path(work.staging) / f"{stem}.{PIECE}")
        else:
            rewrite.stage(Path(work.staging) / stem)
    except Exception as error:
        report.failure = failure_of(error)
        remove_staged(report)
    report.retained_count = len(record_filter.retained)
    return part


def _as_part(work: LogWork, group_range: GroupRange, report: GroupReport) -> LogReport:
    """The log's report with only the ``report`` on a range: a group, or a piece of one."""
    if group_range.is_whole(work.groups[group_range.group]):
        return LogReport(name=work.name, groups=[report])
    piece = PieceReport(group=report, base_offset=group_range.base_offset)
    return LogReport(name=work.name, pieces=[piece])


def remove_staged(report: GroupReport) -> None:
    """Remove a group's staged files. Raises nothing."""
    for path in report.staged.values():
        with contextlib.suppress(OSError):
            files.unlink(path)
    report.staged = {}


def stage_indexes(
    work: LogWork, group: Group, report: GroupReport, indexes: Mapping[str, bytes], *, is_link: bool
) -> None:
    """Write the indexes (by kind) beside the staged log, and sync all files. ``is_link``: the log is a hard
    link to the old one.

    The files get owner and mode of the group's first segment and the modification time of its last one, by
    which retention deletes records without timestamps (Kafka does the same). A hard link has all that.
    """
    stem = report.staged["log"].removesuffix(".log")
    for kind, data in indexes.items():
        report.staged[kind] = f"{stem}.{kind}"
        with files.Writer(report.staged[kind]) as writer:
            writer.write(data)
    for kind, path in report.staged.items():
        if kind != "log" or not is_link:
            files.copy_attributes(work.segments[group.first_segment].path, path)
            files.set_modified(path, work.segments[group.end_segment - 1].modified_ns)
    files.sync_files(report.staged.values())


def finish_staged(report: GroupReport, indexes: Mapping[str, bytes]) -> None:
    """Called after the staged log was verified. Compares the index files with the ``indexes`` (by kind), and
    reports the identity of the log's file: the swap reads the log again if its file has another one. Raises
    CheckFailedError."""
    for kind, data in indexes.items():
        if files.read_bytes(report.staged[kind]) != data:
            raise CheckFailedError("the file is not the index that was written", path=report.staged[kind])
    report.identity = list(files.stat(report.staged["log"]).identity)


class _RangeRewrite:
    """The rewrite of one range (Kafka's ``Cleaner.cleanSegments``). ``report``: the report on the group, or
    on this range as if it were one; it is filled on the way."""

    def __init__(
        self,
        work: LogWork,
        group_range: GroupRange,
        record_filter: RecordFilter,
        transaction_state: TransactionState,
        buffers: Buffers,
    ) -> None:
        self._work, self._range, self._filter, self._transaction_state = (
            work,
            group_range,
            record_filter,
            transaction_state,
        )
        self.buffers, self.report = buffers, GroupReport(group_index=group_range.group)

    def _verifier(self, path: str) -> StagedVerifier:
        # The filter's retained offsets grow while it works, so the verifier asks for them each time.
        return StagedVerifier(
            self._work, self._range, path, lambda: self._filter.retained, self.buffers.verified
        )

    def stage(self, stem: Path) -> None:
        """Write the new segment of a whole group and its indexes to files named ``stem``, sync and verify
        them."""
        work, report, log = self._work, self.report, f"{stem}.log"
        group = work.groups[self._range.group]
        report.staged["log"] = log
        verifier = self._verifier(log)
        with _SegmentWriter(
            work,
            self._range,
            log,
            self.buffers,
            verifier,
            may_leave_unchanged=can_link(work, group, stem),
        ) as segment_writer:
            # 1. Write the log, then its indexes, and sync them.
            transaction_index = self.rewrite_batches(segment_writer)
            indexes, is_link = segment_writer.indexes.finish(), segment_writer.link()
            staged_indexes = {**indexes, **({"txnindex": transaction_index} if transaction_index else {})}
            stage_indexes(work, group, report, staged_indexes, is_link=is_link)
            # 2. Verify the rest of the file, which is on the disk now. A hard link is the old log, of which
            #    every batch was verified when it was read.
            if not is_link:
                read = verifier.finish(report.size, report.counts.records_retained, indexes)
                Throttler(work.limits.io_bytes_per_second).maybe_throttle(read)
                segment_writer.drop_cached()
        finish_staged(report, staged_indexes)

    def put(self, stem: str, store: ChunkStore) -> None:
        """``stage`` in a folder that only this task uses, and put the files into the store."""
        report = self.report
        with files.temporary_directory("siltstone-new-", files.local_folder_of_executor()) as folder:
            self.stage(Path(folder) / stem)
            report.put = put_staged(report.staged, store)
            report.staged, report.identity = {}, []

    def stage_piece(self, piece: PieceReport, path: Path) -> None:
        """Write the piece of a part of a group to ``path`` and verify it; if no batch changes, the piece is a
        part of the old log, of which every batch was verified when it was read."""
        work, report, staged = self._work, self.report, str(path)
        report.staged[PIECE] = staged
        verifier = self._verifier(staged)
        with _SegmentWriter(
            work, self._range, staged, self.buffers, verifier, may_leave_unchanged=True
        ) as segment_writer:
            piece.transaction_index = self.rewrite_batches(segment_writer)
            if segment_writer.is_unchanged:
                split = segment_writer.source_split
                piece.path, piece.position = work.segments[split.segment].path, split.start_position
                piece.checksum, report.staged = segment_writer.unchanged_checksum, {}
                return
            indexes = segment_writer.indexes.finish()
            read = verifier.finish(report.size, report.counts.records_retained, indexes)
            Throttler(work.limits.io_bytes_per_second).maybe_throttle(read)
            piece.path, piece.checksum = staged, verifier.checksum

    def rewrite_batches(self, segment_writer: _SegmentWriter) -> bytes:
        """Rewrite the range's batches into ``segment_writer``, segment by segment, and check the counts;
        returns the new transaction index."""
        work, group_range, report = self._work, self._range, self.report
        transactions = work.transaction_scan(self._transaction_state)
        rewriter = Rewriter(work, self._filter, transactions, self.buffers)
        with BackgroundWriter() as writer:
            for split in group_range.splits:
                self._rewrite_split(split, rewriter, segment_writer, writer)
        path = work.segments[group_range.splits[0].segment].path
        transactions.refuse_missing_markers(group_range.base_offset, group_range.end_offset, path)
        report.counts, report.size = rewriter.counts, segment_writer.size
        report.largest_timestamp = segment_writer.indexes.largest_timestamp
        self._filter.refuse_unmatched(work.name)
        read, retained = report.counts.records_read, report.counts.records_retained
        discarded = report.counts.discarded.total()
        if read != retained + discarded:
            reason = f"{read} records were read, but {retained} were retained and {discarded} discarded"
            raise CheckFailedError(reason, path=work.name)
        return transactions.completed_index()

    def _rewrite_split(
        self, split: InputSplit, rewriter: Rewriter, segment_writer: _SegmentWriter, writer: BackgroundWriter
    ) -> None:
        """Rewrite a split: read a window, rewrite its batches slice by slice, write and verify."""
        work, segment = self._work, self._work.segments[split.segment]
        throttler, span = (
            Throttler(work.limits.io_bytes_per_second),
            (split.start_position, split.end_position),
        )
        next_offset, end = split.first_offset, split.end_offset
        keeps_legacy_tombstones = work.rules.keeps_legacy_tombstones(segment.modified_ms)
        with open_unchanged(segment) as reader:
            # ``verify=False``: the rewriter verifies the checksums of the batches that it reads.
            for window in throttled_windows(
                reader, work.limits.window_size, throttler, span=span, verify=False
            ):
                next_offset = check_ascending(segment.path, window, next_offset, end)
                for batch_slice in batch_slices(segment.path, window):
                    batches = rewriter.rewrite(batch_slice, keeps_legacy_tombstones=keeps_legacy_tombstones)
                    write = functools.partial(segment_writer.write, batches)
                    if isinstance(batches, PendingBatches) and batches.codecs.any():
                        throttler.maybe_throttle(writer.start(write))
                    else:  # written now: the bytes may be a part of the window, which the next one overwrites
                        throttler.maybe_throttle(writer.wait() + write())
                    # Verified in this thread: two threads that decompress would wait for the interpreter's
                    # lock.
                    throttler.maybe_throttle(segment_writer.verify())
        throttler.maybe_throttle(writer.wait())


# Files for the retained offsets of ranges, between the job that merges keys and those that rewrite in waves.
#
# ::
#
#     BASE.ATTEMPT.retained     uint32, little-endian, ascending: offsets less the range's base
#
# There is no header: count and CRC32C are in the task's report (``RetainedFile``). The file is not synced,
# since only the run that wrote it reads it. A range without retained offsets has no file.

RETAINED_OFFSET_BYTES = 4
"""The size of a retained offset in such a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedFile:
    """The file of retained offsets of a range: its ``name`` in the run's folder (empty for no file), the
    ``count`` of offsets, and their CRC32C (``checksum``).

    ``transaction_state``: the transactions that are open where the range starts. ``has_keyless``: the log has
    records without a key.
    """

    group_range: GroupRange
    name: str = ""
    count: int = 0
    checksum: int = 0
    transaction_state: TransactionState = NO_TRANSACTIONS
    has_keyless: bool = True
    failure: LogFailure | None = None


def write_retained(
    work: LogWork,
    group_range: GroupRange,
    retained: Offsets,
    attempt: str,
    transaction_state: TransactionState = NO_TRANSACTIONS,
    *,
    has_keyless: bool = True,
) -> RetainedFile:
    """Write a range's retained offsets, in any order, to this attempt's file. Never raises: the report has
    the failure."""
    assert work.staging is not None
    if not len(retained):
        return RetainedFile(
            group_range=group_range, transaction_state=transaction_state, has_keyless=has_keyless
        )
    name = f"{group_range.base_offset:020d}.{attempt}.retained"
    path = Path(work.staging) / name
    try:
        ascending = sort_offsets(retained, group_range.end_offset - group_range.base_offset)
        data = ascending.astype("<u4", copy=False).view(np.uint8).data
        with files.Writer(path) as writer:
            writer.write(data)
            files.inherit_owner(path)
        return RetainedFile(
            group_range=group_range,
            name=name,
            count=len(retained),
            checksum=crc32c(data),
            transaction_state=transaction_state,
            has_keyless=has_keyless,
        )
    except Exception as error:
        # A file that exists belongs to another attempt, and stays.
        if not isinstance(error, FileExistsError):
            with contextlib.suppress(OSError):
                files.unlink(path)
        return RetainedFile(group_range=group_range, failure=failure_of(error))


def read_retained(folder: Path, file: RetainedFile) -> Offsets:
    """Read the retained offsets, ascending. Raises CheckFailedError if the file is not what was written."""
    retained = np.empty(file.count, "<u4")
    if file.count:
        with files.Reader(folder / file.name) as reader:
            read_size = reader.read_into(retained.view(np.uint8), 0)
            is_complete = read_size == reader.stat.size == retained.nbytes
        if not is_complete or crc32c(retained.view(np.uint8).data) != file.checksum:
            raise CheckFailedError(
                "the file does not have the offsets that were written", path=folder / file.name
            )
    return retained.astype(np.uint32, copy=False)


def rewrite_from_file(
    work: LogWork, file: RetainedFile, attempt: str, buffers: Buffers | None = None
) -> LogReport:
    """``rewrite_range`` with the retained offsets of a file. Never raises: the report has the failure."""
    assert work.staging is not None
    try:
        retained = read_retained(Path(work.staging), file)
    except Exception as error:
        failed = GroupReport(group_index=file.group_range.group, failure=failure_of(error))
        return _as_part(work, file.group_range, failed)
    inputs = (retained, attempt, file.transaction_state, buffers)
    return rewrite_range(work, file.group_range, *inputs, has_keyless=file.has_keyless)


@decoded_in_threads
@dataclass(slots=True, kw_only=True)
class LogReport(Summable):
    """The report on one log, on one wave of its groups, or on what one task did for it: parts add up.

    ``name``: of the log. ``pieces``: of groups that were cut, until their segments are assembled. ``files``:
    those of retained offsets, where the log is rewritten in waves. ``retained_counts``: how many offsets the
    merge retains, by group. ``dirty_keys``: distinct keys of the dirty section; ``dirty_keys_met``: those of
    which a broadcast join read the last record. ``seconds``: the time of the work, where one task did all of
    it.
    """

    name: str
    extracted: Extracted = field(default_factory=Extracted)
    groups: list[GroupReport] = field(default_factory=list)
    pieces: list[PieceReport] = field(default_factory=list)
    files: list[RetainedFile] = field(default_factory=list)
    retained_counts: dict[int, int] = field(default_factory=dict)
    dirty_keys: int = 0
    dirty_keys_met: int = 0
    seconds: float = 0.0

    @property
    def failure(self) -> LogFailure | None:
        """The first failure, None without one."""
        return first_failure((self.extracted, *self.files, *self.pieces, *self.groups))
