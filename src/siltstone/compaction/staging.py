"""Staging: a task writes a group's new segment to files that no reader sees yet, verifies and reports it.

::

    old segments ─► Rewriter ─► _SegmentWriter ─► RUN/BASE.ATTEMPT.log, .index, .timeindex, .txnindex
                                                      └─► StagedVerifier reads the log back, 8 MiB at a time

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
from siltstone.base.errors import CheckFailedError, SourceChangedError
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.decode import decode_record_keys
from siltstone.base.records.layout import CONTROL_BIT
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
    LogWork,
    Throttler,
    batch_slices,
    check_ascending,
    decode_slices,
    throttled_windows,
)
from siltstone.log.indexes import IndexBuilder
from siltstone.log.segments import Window, open_unchanged, windows
from siltstone.log.transactions import NO_TRANSACTIONS, TransactionState

# A second thread compresses and writes batches while the task's thread rewrites the next ones. Codecs and
# kernels release the interpreter's lock, so a task can use a second core that no other task needs.


class BackgroundWriter(ThreadPoolExecutor):
    """A thread for calls that write; each returns how many bytes it wrote. A call begins when the one before
    has ended. The thread starts with the first call and ends with the ``with`` block.
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
    """Verifies a staged segment: checksums, ascending offsets, that each is a retained offset, the indexes.

    ``path``: of the staged log. ``retained`` returns the offsets retained so far, less the group's base,
    ascending. ``scratch``: memory to decompress into. ``size``: bytes that were verified, whole batches;
    ``record_count``: the records in them. Raises CheckFailedError, CorruptFileError, OSError.
    """

    def __init__(
        self, work: LogWork, group: Group, path: str, retained: Callable[[], Offsets], scratch: Scratch
    ) -> None:
        self._work, self._group, self._path, self._retained = work, group, path, retained
        self._rebuilt_indexes = IndexBuilder(
            group.base_offset, work.limits.index_interval_bytes, work.limits.index_bytes
        )
        self._scratch = scratch
        self._next_offset, self._last_offset, self._matched = group.base_offset, group.base_offset - 1, 0
        self.size = self.record_count = 0

    def verify_up_to(self, size: int) -> int:
        """Verify up to byte ``size``, where a batch ends; returns how many bytes were read."""
        start, retained, path, limits = self.size, self._retained(), self._path, self._work.limits
        base, offsets = self._group.base_offset, (self._next_offset, self._group.end_offset)
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
        """The windows; builds the indexes of their batches again."""
        for window in staged:
            self._rebuilt_indexes.add_batches(window.batches)
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


_COPY_BUFFER_BYTES = 4 << 20
_READ_BACK_BYTES = 8 << 20
"""The verifier reads the file when so many bytes were written since it last did."""
_NO_LINK_ERRNOS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of file systems without hard links, or at their limit."""


@dataclass(slots=True, kw_only=True)
class GroupReport:
    """The report on the rewrite of the group number ``group_index``.

    ``retained_count``: how many retained offsets the task got. ``size``: bytes of the new log.
    ``largest_timestamp``: of its records, in ms, -1 without a record; None before the group was written.
    ``staged``: paths of the staged files by kind. ``identity``: of the staged log's file when it was verified
    (``files.FileStat.identity``), empty before.
    """

    group_index: int
    counts: RecordCounts = field(default_factory=RecordCounts)
    retained_count: int = 0
    size: int = 0
    largest_timestamp: int | None = None
    staged: dict[str, str] = field(default_factory=dict)
    identity: list[int] = field(default_factory=list)
    failure: LogFailure | None = None


class _SegmentWriter:
    """Writes a group's batches to the staged log at ``path`` (None: a dry run), and builds the indexes.

    A group of one segment is not written as long as no batch changes. At the first change the writer copies
    what came before; if nothing changes, the staged log becomes a hard link to the old one.
    """

    def __init__(
        self,
        work: LogWork,
        group: Group,
        path: str | None,
        buffers: Buffers,
        verifier: StagedVerifier | None = None,
    ) -> None:
        self.buffers = buffers
        self._source, self._path = work.segments[group.first_segment], path
        # A link only in the log's own directory (topic-N/.siltstone/RUN/file): ``--out`` makes a copy of the
        # log, which shares no file with it.
        is_in_place = path is not None and Path(path).parent.parent.parent == Path(self._source.directory)
        self._is_unchanged = is_in_place and group.end_segment == group.first_segment + 1
        self._writer: files.Writer | None = None
        if path is not None and not self._is_unchanged:
            self._writer = files.Writer(path)
        self.indexes = IndexBuilder(
            group.base_offset, work.limits.index_interval_bytes, work.limits.index_bytes
        )
        self._verifier = verifier
        self._written = 0
        self.size = 0

    def write(self, batches: CleanedBatches | PendingBatches) -> int:
        """Compress pending batches, and write; returns how many bytes."""
        output = batches.finished(self.buffers.compressed) if isinstance(batches, PendingBatches) else batches
        if self.size + len(output.data) > INT_MAX:
            raise CheckFailedError(
                "the new segment would exceed 2 GiB, the most that an index can address: message sets "
                "(v0, v1) grow when they become batches",
                path=self._source.path,
                advice="clean with a smaller segment.bytes",
            )
        if self._is_unchanged and not output.is_unchanged:
            self._copy_unwritten()
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
        assert self._path is not None
        self._is_unchanged, self._writer = False, files.Writer(self._path)
        with open_unchanged(self._source) as reader:
            buffer = np.empty(min(_COPY_BUFFER_BYTES, self.size), np.uint8)
            while self._writer.size < self.size:
                chunk = buffer[: self.size - self._writer.size]
                if reader.read_into(chunk, self._writer.size) < len(chunk):
                    raise SourceChangedError(
                        "the segment was truncated while it was cleaned",
                        path=self._source.path,
                        advice="run again",
                    )
                self._writer.write(chunk)

    def link(self) -> bool:
        """Called after the last batch: if nothing changed, make the staged log a hard link to the old one.
        Returns whether it is a link; where no link can be made, it is a copy."""
        if self._is_unchanged and self._path is not None and self.size == self._source.size:
            try:
                files.link(self._source.path, self._path)
                open_unchanged(self._source, self._path).close()
                return True
            except OSError as error:
                if error.errno not in _NO_LINK_ERRNOS:
                    raise
        if self._is_unchanged:
            self._copy_unwritten()
        return False

    def __enter__(self) -> _SegmentWriter:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()


def rewrite_group(
    work: LogWork,
    group: Group,
    retained: Offsets,
    attempt: str,
    transaction_state: TransactionState = NO_TRANSACTIONS,
    buffers: Buffers | None = None,
    *,
    has_keyless: bool = True,
) -> GroupReport:
    """Write the group's new segment to staged files. ``retained``: the retained offsets, less the group's
    base, in any order.

    ``transaction_state``: the transactions that are open where the group starts. ``attempt`` is a part of the
    files' names. A task may use one ``buffers`` for several groups. ``has_keyless``: the log may have records
    without a key. (Without ``drop_keyless`` such a log is refused before.) Never raises for what is wrong
    with the log, the disk or the counts: the report has the failure, and the files of this attempt are
    removed.
    """
    ascending = sort_offsets(retained, group.end_offset - group.base_offset)
    has_keyless = has_keyless and work.rules.drop_keyless
    record_filter = OffsetFilter(work, group.base_offset, ascending, has_keyless=has_keyless)
    return rewrite_with_filter(work, group, record_filter, attempt, transaction_state, buffers)


def rewrite_with_filter(
    work: LogWork,
    group: Group,
    record_filter: RecordFilter,
    attempt: str,
    transaction_state: TransactionState = NO_TRANSACTIONS,
    buffers: Buffers | None = None,
) -> GroupReport:
    """``rewrite_group`` for any record filter."""
    rewrite = _GroupRewrite(work, group, record_filter, transaction_state, buffers or Buffers())
    report = rewrite.report
    try:
        if work.staging is None:
            rewrite.rewrite_segments(_SegmentWriter(work, group, None, rewrite.buffers))
        else:
            rewrite.stage(Path(work.staging) / f"{group.base_offset:020d}.{attempt}")
    except Exception as error:
        report.failure = failure_of(error)
        remove_staged(report)
    report.retained_count = len(record_filter.retained)
    return report


def remove_staged(report: GroupReport) -> None:
    """Remove a group's staged files. Raises nothing."""
    for path in report.staged.values():
        with contextlib.suppress(OSError):
            files.unlink(path)
    report.staged = {}


class _GroupRewrite:
    """The rewrite of one group (Kafka's ``Cleaner.cleanSegments``); ``report`` is filled on the way."""

    def __init__(
        self,
        work: LogWork,
        group: Group,
        record_filter: RecordFilter,
        transaction_state: TransactionState,
        buffers: Buffers,
    ) -> None:
        self._work, self._group, self._filter, self._transaction_state = (
            work,
            group,
            record_filter,
            transaction_state,
        )
        self.buffers, self.report = buffers, GroupReport(group_index=group.index)

    def stage(self, stem: Path) -> None:
        """Write the new segment and its indexes to files named ``stem``, sync and verify them."""
        work, group, report, log = self._work, self._group, self.report, f"{stem}.log"
        report.staged["log"] = log
        verifier = StagedVerifier(work, group, log, lambda: self._filter.retained, self.buffers.verified)
        with _SegmentWriter(work, group, log, self.buffers, verifier) as segment_writer:
            # 1. Write the log, then its indexes.
            transaction_index = self.rewrite_segments(segment_writer)
            indexes, is_link = segment_writer.indexes.finish(), segment_writer.link()
            if transaction_index:
                indexes["txnindex"] = transaction_index
            for kind, data in indexes.items():
                report.staged[kind] = f"{stem}.{kind}"
                with files.Writer(report.staged[kind]) as writer:
                    writer.write(data)
            # 2. Give the files owner and mode of the group's first segment and the modification time of its
            #    last one, by which retention deletes records without timestamps (Kafka does the same), and
            #    sync them. A hard link has all that.
            for kind, path in report.staged.items():
                if kind != "log" or not is_link:
                    files.copy_attributes(work.segments[group.first_segment].path, path)
                    files.set_modified(path, work.segments[group.end_segment - 1].modified_ns)
            files.sync_files(report.staged.values())
            # 3. Verify the rest of the file, which is on the disk now. A hard link is the old log, of which
            #    every batch was verified when it was read.
            if not is_link:
                read = verifier.finish(report.size, report.counts.records_retained, indexes)
                Throttler(work.limits.io_bytes_per_second).maybe_throttle(read)
                segment_writer.drop_cached()
        for kind, data in indexes.items():
            if files.read_bytes(report.staged[kind]) != data:
                raise CheckFailedError("the file is not the index that was written", path=report.staged[kind])
        # 4. Report which file was verified: the swap reads the log again if its file has another identity.
        report.identity = list(files.stat(log).identity)

    def rewrite_segments(self, segment_writer: _SegmentWriter) -> bytes:
        """Rewrite the group's segments into ``segment_writer``, one after another, and check the counts;
        returns the new transaction index."""
        work, group, report = self._work, self._group, self.report
        transactions = work.transaction_scan(self._transaction_state)
        rewriter = Rewriter(work, self._filter, transactions, self.buffers)
        with BackgroundWriter() as writer:
            for number in range(group.first_segment, group.end_segment):
                self._rewrite_segment(number, rewriter, segment_writer, writer)
        path = work.segments[group.first_segment].path
        transactions.refuse_missing_markers(group.base_offset, group.end_offset, path)
        report.counts, report.size = rewriter.counts, segment_writer.size
        report.largest_timestamp = segment_writer.indexes.largest_timestamp
        self._filter.refuse_unmatched(work.name)
        read, retained = report.counts.records_read, report.counts.records_retained
        discarded = report.counts.discarded.total()
        if read != retained + discarded:
            reason = f"{read} records were read, but {retained} were retained and {discarded} discarded"
            raise CheckFailedError(reason, path=work.name)
        return transactions.completed_index()

    def _rewrite_segment(
        self, number: int, rewriter: Rewriter, segment_writer: _SegmentWriter, writer: BackgroundWriter
    ) -> None:
        """Rewrite segment ``number``: read a window, rewrite its batches slice by slice, write and verify."""
        work, segment = self._work, self._work.segments[number]
        throttler = Throttler(work.limits.io_bytes_per_second)
        next_offset, end = work.offsets_of(number)
        keeps_legacy_tombstones = work.rules.keeps_legacy_tombstones(segment.modified_ms)
        with open_unchanged(segment) as reader:
            # ``verify=False``: the rewriter verifies the checksums of the batches that it reads.
            for window in throttled_windows(reader, work.limits.window_size, throttler, verify=False):
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


# Files for the retained offsets of groups, between the job that merges keys and those that rewrite in waves.
#
# ::
#
#     BASE.ATTEMPT.retained     uint32, little-endian, ascending: offsets less the group's base
#
# There is no header: count and CRC32C are in the task's report (``RetainedFile``). The file is not synced,
# since only the run that wrote it reads it. A group without retained offsets has no file.

RETAINED_OFFSET_BYTES = 4
"""The size of a retained offset in such a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedFile:
    """The file of retained offsets of group number ``group_index``: its ``name`` in the run's folder (empty
    for no file), the ``count`` of offsets, and their CRC32C (``checksum``).

    ``transaction_state``: the transactions that are open where the group starts. ``has_keyless``: the log has
    records without a key.
    """

    group_index: int
    name: str = ""
    count: int = 0
    checksum: int = 0
    transaction_state: TransactionState = NO_TRANSACTIONS
    has_keyless: bool = True
    failure: LogFailure | None = None


def write_retained(
    work: LogWork,
    group: Group,
    retained: Offsets,
    attempt: str,
    transaction_state: TransactionState = NO_TRANSACTIONS,
    *,
    has_keyless: bool = True,
) -> RetainedFile:
    """Write a group's retained offsets, in any order, to this attempt's file. Never raises: the report has
    the failure."""
    assert work.staging is not None
    if not len(retained):
        return RetainedFile(
            group_index=group.index, transaction_state=transaction_state, has_keyless=has_keyless
        )
    name = f"{group.base_offset:020d}.{attempt}.retained"
    path = Path(work.staging) / name
    try:
        ascending = sort_offsets(retained, group.end_offset - group.base_offset)
        data = ascending.astype("<u4", copy=False).view(np.uint8).data
        with files.Writer(path) as writer:
            writer.write(data)
            files.inherit_owner(path)
        return RetainedFile(
            group_index=group.index,
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
        return RetainedFile(group_index=group.index, failure=failure_of(error))


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
    work: LogWork, group: Group, file: RetainedFile, attempt: str, buffers: Buffers | None = None
) -> GroupReport:
    """``rewrite_group`` with the retained offsets of a file. Never raises: the report has the failure."""
    assert work.staging is not None and file.group_index == group.index
    try:
        retained = read_retained(Path(work.staging), file)
    except Exception as error:
        return GroupReport(group_index=group.index, failure=failure_of(error))
    inputs = (retained, attempt, file.transaction_state, buffers)
    return rewrite_group(work, group, *inputs, has_keyless=file.has_keyless)


@dataclass(slots=True, kw_only=True)
class LogReport(Summable):
    """The report on one log, on one wave of its groups, or on what one task did for it: parts add up.

    ``name``: of the log. ``files``: those of retained offsets, where the log is rewritten in waves.
    ``retained_counts``: how many offsets the merge retains, by group. ``dirty_keys``: distinct keys of the
    dirty section; ``dirty_keys_met``: those of which a broadcast join read the last record. ``seconds``: the
    time of the work, where one task did all of it.
    """

    name: str
    extracted: Extracted = field(default_factory=Extracted)
    groups: list[GroupReport] = field(default_factory=list)
    files: list[RetainedFile] = field(default_factory=list)
    retained_counts: dict[int, int] = field(default_factory=dict)
    dirty_keys: int = 0
    dirty_keys_met: int = 0
    seconds: float = 0.0

    @property
    def failure(self) -> LogFailure | None:
        """The first failure, None without one."""
        return first_failure((self.extracted, *self.files, *self.groups))
