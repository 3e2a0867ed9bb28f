"""Staging: a group's new segment is written to a file, verified, and reported.

::

    sources ─► Rewriter ─► _Sink ─► RUN/BASE.ATTEMPT.log, .index, .timeindex, .txnindex
                                        └─► StagedVerifier reads the file again, 8 MiB at a time

A task creates only files that have the name of its attempt, with O_EXCL, under ``topic-N/.siltstone/RUN/``,
and syncs them. So a late attempt can change only its own files. The owner of the log renames the files that
it accepts (``log.replacement``).
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
from siltstone.log.transactions import NOTHING, Carried

# Compressing and writing in a thread of its own, while the next batches are rewritten.
#
# Codecs and kernels release the interpreter's lock, so that a task can use a second core when others are
# done.


class BackgroundWriter(ThreadPoolExecutor):
    """Runs calls that return bytes written, one at a time: a call begins when the one before has ended.

    The thread starts with the first call and ends with the ``with`` block.
    """

    def __init__(self) -> None:
        super().__init__(1, "background-writer")
        self._last: Future[int] | None = None

    def start(self, call: Callable[[], int]) -> int:
        """Begin a call; returns what the call before wrote, and raises what it raised."""
        written = self.wait()
        self._last = self.submit(call)
        return written

    def wait(self) -> int:
        """Wait for the last call; returns what it wrote (0 without a call), and raises what it raised."""
        last, self._last = self._last, None
        return last.result() if last is not None else 0


# Verification of a staged segment, while it is written.
#
# The bytes are read from the file. Ranges that were verified and are on disk are dropped from the page cache
# (``files.Writer.drop_cached``), so that a large cleaning does not evict the pages of other files.

_WRONG = {
    OUT_OF_ORDER: "the written segment has an offset twice or out of order",
    NOT_RETAINED: "the written segment has a record whose offset is not retained",
}


class StagedVerifier:
    """Verifies a staged segment: checksums, ascending offsets, and that each is a retained offset.

    ``retained`` returns the offsets retained so far, less the group's base, ascending. ``size``: bytes that
    were verified, whole batches. Raises CheckFailedError, CorruptFileError, OSError.
    """

    def __init__(
        self, work: LogWork, group: Group, path: str, retained: Callable[[], Offsets], scratch: Scratch
    ) -> None:
        self._work, self._group, self._path, self._retained = work, group, path, retained
        self._again = IndexBuilder(
            group.base_offset, work.limits.index_interval_bytes, work.limits.index_bytes
        )
        self._scratch = scratch
        self._following, self._last, self._met = group.base_offset, group.base_offset - 1, 0
        self.size = self.kept = 0

    def follow(self, size: int) -> int:
        """Verify up to byte ``size``, where a batch ends; returns how many bytes were read."""
        before, retained, path, limits = self.size, self._retained(), self._path, self._work.limits
        base, offsets = self._group.base_offset, (self._following, self._group.end_offset)
        scratch, limit = self._scratch, limits.batch_limit
        with files.Reader(path) as reader:
            staged = self._indexed(windows(reader, start=before, end=size, window_size=limits.window_size))
            for some in decode_slices(
                path, staged, offsets, decode_record_keys, scratch=scratch, limit=limit
            ):
                columns, control = some.columns, (some.batches["attributes"] & CONTROL_BIT) != 0
                spans = (columns.offset, columns.batch, control, base, self._work.rules.map_end)
                self._last, self._met, wrong = check_offsets(*spans, retained, self._last, self._met)
                if wrong:
                    raise CheckFailedError(_WRONG[wrong], path=path)
                self.kept += len(columns)
                self._following = int(some.batches["last_offset"][-1]) + 1
        self.size = size
        return size - before

    def _indexed(self, staged: Iterator[Window]) -> Iterator[Window]:
        for window in staged:
            self._again.add_batches(window.batches)
            yield window

    def finish(self, size: int, kept: int, staged: Mapping[str, bytes]) -> int:
        """Verify the rest of a file that is written and synced: ``size`` bytes with ``kept`` records.

        ``staged``: the indexes that were written, by kind; they must be those that were built here again.
        Returns how many bytes were read.
        """
        on_disk = files.stat(self._path).size
        if on_disk != size:
            raise CheckFailedError(f"{size} bytes were written, but the file has {on_disk}", path=self._path)
        done = self.follow(size)
        if self.kept != kept:
            raise CheckFailedError(
                f"{kept} records were written, but the file has {self.kept}", path=self._path
            )
        if any(staged[kind] != data for kind, data in self._again.finish().items()):
            raise CheckFailedError(
                "the indexes of the written segment do not match its batches", path=self._path
            )
        return done


_COPY_BYTES = 4 << 20
_READ_BACK_BYTES = 8 << 20
"""The verifier reads when so many bytes were written since."""
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of file systems without hard links, or at their limit."""


@dataclass(slots=True, kw_only=True)
class GroupReport:
    """The report on one group: counts of records, bytes, and paths of the staged files by kind.

    ``largest_timestamp``: of its records, in ms, -1 without a record; None before the group was written.
    ``identity``: the staged log's (``files.FileStat.identity``) when it was verified, empty before.
    """

    group_index: int
    counts: RecordCounts = field(default_factory=RecordCounts)
    retained_count: int = 0
    size: int = 0
    largest_timestamp: int | None = None
    staged: dict[str, str] = field(default_factory=dict)
    identity: list[int] = field(default_factory=list)
    failure: LogFailure | None = None


class _Sink:
    """Receives a group's batches: writes them to the staged log, or nowhere (a dry run), and builds the
    indexes.

    A group of one segment is not written as long as all batches are copied. At the first change the sink
    copies what came before; if nothing changes, the staged log becomes a hard link to the source.
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
        # Only in the log's own directory: a copy of a log shares no file with it.
        is_own = path is not None and Path(path).parent.parent.parent == Path(self._source.directory)
        self._unchanged = is_own and group.end_segment == group.first_segment + 1
        self._writer: files.Writer | None = None
        if path is not None and not self._unchanged:
            self._writer = files.Writer(path)
        self.indexes = IndexBuilder(
            group.base_offset, work.limits.index_interval_bytes, work.limits.index_bytes
        )
        self._verifier = verifier
        self._written = 0
        self.size = 0

    def write(self, batches: CleanedBatches | PendingBatches) -> int:
        """Compress where that is pending, and write; returns the bytes."""
        output = batches.finished(self.buffers.packed) if isinstance(batches, PendingBatches) else batches
        if self.size + len(output.data) > INT_MAX:
            raise CheckFailedError(
                "the new segment would exceed 2 GiB, the most that an index can address: message sets "
                "(v0, v1) grow when they become batches",
                path=self._source.path,
                advice="clean with a smaller segment.bytes",
            )
        if self._unchanged and not output.unchanged:
            self._copy_unwritten()
        if self._writer is not None and len(output.data):
            self._writer.write(output.data)
            self._written = self._writer.size
        self.size += len(output.data)
        self.indexes.add(output.last_offset, output.max_timestamp, output.size)
        return len(output.data)

    def verify(self) -> int:
        """Verify what was written, if it is enough; returns the bytes. May run while ``write`` does in
        another thread: it stays below what is written."""
        writer, verifier, written = self._writer, self._verifier, self._written
        if writer is None or verifier is None or written - verifier.size < _READ_BACK_BYTES:
            return 0
        read = verifier.follow(written)
        writer.drop_cached(verifier.size)
        return read

    def drop_cached(self) -> None:
        """Drop the verified file from the page cache."""
        if self._writer is not None:
            self._writer.drop_cached_rest()

    def _copy_unwritten(self) -> None:
        """Copy from the source what was not written, since it did not change."""
        assert self._path is not None
        self._unchanged, self._writer = False, files.Writer(self._path)
        with open_unchanged(self._source) as reader:
            buffer = np.empty(min(_COPY_BYTES, self.size), np.uint8)
            while self._writer.size < self.size:
                part = buffer[: self.size - self._writer.size]
                if reader.read_into(part, self._writer.size) < len(part):
                    raise SourceChangedError(
                        "the segment was truncated while it was cleaned",
                        path=self._source.path,
                        advice="run again",
                    )
                self._writer.write(part)

    def link(self) -> bool:
        """Called at the end: link the source if nothing changed; was it linked?"""
        if self._unchanged and self._path is not None and self.size == self._source.size:
            try:
                files.link(self._source.path, self._path)
                open_unchanged(self._source, self._path).close()
                return True
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
        if self._unchanged:
            self._copy_unwritten()
        return False

    def __enter__(self) -> _Sink:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()


def rewrite_group(
    work: LogWork,
    group: Group,
    retained: Offsets,
    attempt: str,
    carried: Carried = NOTHING,
    buffers: Buffers | None = None,
) -> GroupReport:
    """Write the group's new segment. ``retained``: offsets less the group's base, in any order.

    ``carried``: the state of transactions where the group starts. ``attempt`` is a part of the files' names.
    A task may use one ``buffers`` for several groups. Never raises for what is wrong with the log, the disk
    or the counts: the report has the failure, and the files of this attempt are removed.
    """
    ascending = sort_offsets(retained, group.end_offset - group.base_offset)
    record_filter = OffsetFilter(work, group.base_offset, ascending)
    return rewrite_with_filter(work, group, record_filter, attempt, carried, buffers)


def rewrite_with_filter(
    work: LogWork,
    group: Group,
    record_filter: RecordFilter,
    attempt: str,
    carried: Carried = NOTHING,
    buffers: Buffers | None = None,
) -> GroupReport:
    """``rewrite_group`` with any record filter."""
    rewrite = _GroupRewrite(work, group, record_filter, carried, buffers or Buffers())
    report = rewrite.report
    try:
        if work.staging is None:
            rewrite.fill(_Sink(work, group, None, rewrite.buffers))
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
        self, work: LogWork, group: Group, record_filter: RecordFilter, carried: Carried, buffers: Buffers
    ) -> None:
        self._work, self._group, self._filter, self._carried = work, group, record_filter, carried
        self.buffers, self.report = buffers, GroupReport(group_index=group.index)

    def stage(self, stem: Path) -> None:
        """Write the new segment and its indexes to files named ``stem``, sync and verify them."""
        work, group, report, log = self._work, self._group, self.report, f"{stem}.log"
        report.staged["log"] = log
        verifier = StagedVerifier(work, group, log, lambda: self._filter.retained, self.buffers.read_back)
        with _Sink(work, group, log, self.buffers, verifier) as sink:
            # 1. The log, then its indexes.
            transaction_index = self.fill(sink)
            staged, linked = sink.indexes.finish(), sink.link()
            if transaction_index:
                staged["txnindex"] = transaction_index
            for kind, data in staged.items():
                report.staged[kind] = f"{stem}.{kind}"
                with files.Writer(report.staged[kind]) as writer:
                    writer.write(data)
            # 2. Owner and mode of the first source, modification time of the last one (as in Kafka, so that
            #    retention by time goes on), then everything to the disk. A link shares those of its source.
            for kind, path in report.staged.items():
                if kind != "log" or not linked:
                    files.copy_attributes(work.segments[group.first_segment].path, path)
                    files.set_modified(path, work.segments[group.end_segment - 1].modified_ns)
            files.sync_files(report.staged.values())
            # 3. The rest of the verification, on what is on the disk.
            if not linked:
                read = verifier.finish(report.size, report.counts.records_retained, staged)
                Throttler(work.limits.io_bytes_per_second).maybe_throttle(read)
                sink.drop_cached()
        for kind, data in staged.items():
            if files.read_bytes(report.staged[kind]) != data:
                raise CheckFailedError("the file is not the index that was written", path=report.staged[kind])
        # 4. The owner of the log accepts only this file, as it was when it was verified.
        report.identity = list(files.stat(log).identity)

    def fill(self, sink: _Sink) -> bytes:
        """Rewrite the group's segments into ``sink``; returns the new transaction index."""
        work, group, report = self._work, self._group, self.report
        transactions = work.transaction_scan(self._carried)
        rewriter = Rewriter(work, self._filter, transactions, self.buffers)
        with BackgroundWriter() as writer:
            for number in range(group.first_segment, group.end_segment):
                self._rewrite_segment(number, rewriter, sink, writer)
        path = work.segments[group.first_segment].path
        transactions.refuse_unmarked(group.base_offset, group.end_offset, path)
        report.counts, report.size = rewriter.counts, sink.size
        report.largest_timestamp = sink.indexes.largest_timestamp
        self._filter.refuse_unmatched(work.name)
        read, retained = report.counts.records_read, report.counts.records_retained
        discarded = report.counts.discarded.total()
        if read != retained + discarded:
            reason = f"{read} records were read, but {retained} were retained and {discarded} discarded"
            raise CheckFailedError(reason, path=work.name)
        return transactions.ended_transactions()

    def _rewrite_segment(
        self, number: int, rewriter: Rewriter, sink: _Sink, writer: BackgroundWriter
    ) -> None:
        work, segment = self._work, self._work.segments[number]
        throttler = Throttler(work.limits.io_bytes_per_second)
        following, end = work.offsets_of(number)
        keeps = work.rules.keeps_legacy_tombstones(segment.modified_ms)
        with open_unchanged(segment) as reader:
            # ``verify=False``: the rewriter verifies the checksums of the batches that it reads.
            for window in throttled_windows(reader, work.limits.window_size, throttler, verify=False):
                following = check_ascending(segment.path, window, following, end)
                for part in batch_slices(segment.path, window):
                    batches = rewriter.rewrite(part, keeps_legacy_tombstones=keeps)
                    write = functools.partial(sink.write, batches)
                    if isinstance(batches, PendingBatches) and batches.codecs.any():
                        throttler.maybe_throttle(writer.start(write))
                    else:  # the bytes may be a part of the window, which the next one overwrites
                        throttler.maybe_throttle(writer.wait() + write())
                    # In this thread: two threads that decompress would wait for the interpreter's lock.
                    throttler.maybe_throttle(sink.verify())
        throttler.maybe_throttle(writer.wait())


# A group's retained offsets between two jobs, in a file.
#
# ::
#
#     BASE.ATTEMPT.retained     uint32, little-endian, ascending: offsets less the group's base
#
# There is no header: the count and the CRC32C are in the task's report. The file is not synced, since only
# the run that wrote it reads it. A group without retained offsets has no file.

RETAINED_OFFSET_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedFile:
    """One group's file of retained offsets: name in the run's folder ("" for none), count, CRC32C.

    ``carried``: the state of transactions where the group starts.
    """

    group_index: int
    name: str = ""
    count: int = 0
    checksum: int = 0
    carried: Carried = NOTHING
    failure: LogFailure | None = None


def write_retained(
    work: LogWork, group: Group, retained: Offsets, attempt: str, carried: Carried = NOTHING
) -> RetainedFile:
    """Write a group's retained offsets, in any order, to this attempt's file. Never raises: the report has
    the failure."""
    assert work.staging is not None
    if not len(retained):
        return RetainedFile(group_index=group.index, carried=carried)
    name = f"{group.base_offset:020d}.{attempt}.retained"
    path = Path(work.staging) / name
    try:
        ascending = sort_offsets(retained, group.end_offset - group.base_offset)
        data = ascending.astype("<u4", copy=False).view(np.uint8).data
        with files.Writer(path) as writer:
            writer.write(data)
            files.inherit_owner(path)
        return RetainedFile(
            group_index=group.index, name=name, count=len(retained), checksum=crc32c(data), carried=carried
        )
    except Exception as error:
        if not isinstance(error, FileExistsError):
            with contextlib.suppress(OSError):
                files.unlink(path)
        return RetainedFile(group_index=group.index, failure=failure_of(error))


def read_retained(folder: Path, file: RetainedFile) -> Offsets:
    """Read the retained offsets, ascending. Raises CheckFailedError if the file is not what was written."""
    retained = np.empty(file.count, "<u4")
    if file.count:
        with files.Reader(folder / file.name) as reader:
            got = reader.read_into(retained.view(np.uint8), 0)
            sound = got == reader.stat.size == retained.nbytes
        if not sound or crc32c(retained.view(np.uint8).data) != file.checksum:
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
    return rewrite_group(work, group, retained, attempt, file.carried, buffers)


@dataclass(slots=True, kw_only=True)
class LogReport(Summable):
    """The report on one log, on one wave of its groups, or on what one task did for it: parts add up.

    ``retained_counts``: how many offsets the merge retains, by group; ``dirty_keys``: distinct keys of the
    dirty section; ``files``: of retained offsets, where these were gathered; ``dirty_keys_met``: dirty keys
    whose last record a broadcast join read; ``seconds``: the time of the work, where one task did all of it.
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
