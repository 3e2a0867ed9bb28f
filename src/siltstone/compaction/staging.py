"""A group's new segment: rewritten, written to a file of its own, read back and checked on the way.

A task writes only to files that carry its attempt's name, made with O_EXCL, under
``topic-N/.siltstone/RUN/``, and makes them durable itself; an attempt that wakes up late can touch only
its own files. The owner of the log renames what it accepts.
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
from siltstone.compaction.report import Discarded
from siltstone.compaction.rewrite import (
    Buffers,
    CleanedBatches,
    OffsetFilter,
    Offsets,
    PendingBatches,
    RecordFilter,
    Rewriter,
    in_order,
    meet_retained,
)
from siltstone.compaction.work import (
    Extracted,
    Group,
    LogFailure,
    LogWork,
    Pacer,
    batch_slices,
    decoded,
    failure_of,
    first_failure,
    paced_windows,
    refuse_disorder,
)
from siltstone.log.indexes import IndexBuilder
from siltstone.log.segments import Window, unchanged, windows
from siltstone.log.transactions import NOTHING, Carried

# Work that goes on one step behind its caller, in a thread of its own.
#
# Codecs and kernels leave the other threads alone, so a task whose neighbours are done can use a second core.


class OneBehind(ThreadPoolExecutor):
    """Calls that return bytes written, one after another; when one is given, the one before it is done.

    There is no thread before the first call, and none after the block.
    """

    def __init__(self) -> None:
        super().__init__(1, "behind")
        self._last: Future[int] | None = None

    def give(self, call: Callable[[], int]) -> int:
        """Begin a call; returns what the one before wrote, and raises what it raised."""
        written = self.wait()
        self._last = self.submit(call)
        return written

    def wait(self) -> int:
        """Let the last call end; returns what it wrote, 0 without one, and raises what it raised."""
        last, self._last = self._last, None
        return last.result() if last is not None else 0


# Reading back what a task writes, while it writes: a staged segment is checked some way behind its end.
#
# The bytes come from the file, as any reader gets them. Ranges that were checked and written back are dropped
# from the page cache (``files.Writer.drop_cached``): a large cleaning must not evict other files' pages.

_WRONG = ("an offset is there twice or out of order", "a record is there whose offset is not retained")


class ReadBack:
    """Scans one group's staged segment: checksums, order, offsets among the retained offsets, none twice.

    ``retained`` gives the offsets retained up to now, less the group's base, ascending. ``size``: bytes that
    were read so far, whole batches. Raises CheckFailedError and CorruptFileError for what is not as it should
    be, OSError.
    """

    def __init__(
        self, work: LogWork, group: Group, path: str, retained: Callable[[], Offsets], scratch: Scratch
    ) -> None:
        self._work, self._group, self._path, self._retained = work, group, path, retained
        self._again = IndexBuilder(group.base_offset, work.limits.index_interval, work.limits.index_bytes)
        self._scratch = scratch
        self._following, self._last, self._met = group.base_offset, group.base_offset - 1, 0
        self.size = self.kept = 0

    def follow(self, size: int) -> int:
        """Read on up to byte ``size``, where a batch ends; returns the bytes."""
        before, retained, path = self.size, self._retained(), self._path
        base, offsets = self._group.base_offset, (self._following, self._group.end_offset)
        with files.Reader(path) as reader:
            staged = self._indexed(
                windows(reader, start=before, size=size, window_size=self._work.limits.window_size)
            )
            for some in decoded(
                path,
                staged,
                offsets,
                decode_record_keys,
                scratch=self._scratch,
                limit=self._work.limits.batch_limit,
            ):
                columns, control = some.columns, (some.batches["attributes"] & CONTROL_BIT) != 0
                spans = (columns.offset, columns.batch, control, base, self._work.rules.map_end)
                self._last, self._met, wrong = meet_retained(*spans, retained, self._last, self._met)
                if wrong:
                    raise CheckFailedError(f"{path}: {_WRONG[wrong - 1]}")
                self.kept += len(columns)
                self._following = int(some.batches["last_offset"][-1]) + 1
        self.size = size
        return size - before

    def _indexed(self, staged: Iterator[Window]) -> Iterator[Window]:
        for window in staged:
            self._again.add_directory(window.batches)
            yield window

    def finish(self, size: int, kept: int, staged: Mapping[str, bytes]) -> int:
        """All is written and synced: is it ``size`` bytes, ``kept`` records, and what ``staged`` indexes?

        ``staged``: the indexes that were written, by kind; offset and time index were built again. Returns
        the bytes that were read.
        """
        on_disk = files.stat(self._path).size
        if on_disk != size:
            raise CheckFailedError(f"{self._path}: {on_disk} bytes on disk, but {size} were written")
        done = self.follow(size)
        if self.kept != kept:
            raise CheckFailedError(f"{self._path}: {self.kept} records on disk, but {kept} were kept")
        built = self._again.finish()
        if (built.offset_index, built.time_index) != (staged["index"], staged["timeindex"]):
            raise CheckFailedError(f"{self._path}: its indexes are not those of what was written")
        return done


_COPY_BYTES = 4 << 20
_READ_BACK_BYTES = 8 << 20
"""So much is written before it is read back."""
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What file systems say that have no second names, or no more of them."""


@dataclass(slots=True, kw_only=True)
class Rewritten:
    """What became of one group: counts of records, bytes, and the staged files by kind.

    ``largest_timestamp``: of its records, in ms, -1 without any; None before it was written. ``identity``:
    the staged log's as it was read back, empty before.
    """

    group: int
    records: int = 0
    kept: int = 0
    removed: Discarded = field(default_factory=Discarded)
    retained: int = 0
    size: int = 0
    largest_timestamp: int | None = None
    staged: dict[str, str] = field(default_factory=dict)
    identity: list[int] = field(default_factory=list)
    failure: LogFailure | None = None


class _Sink:
    """Where output goes: a new file, or nowhere (a dry run); indexes are built on the way.

    As long as a group of one segment keeps its batches as they are, nothing is written: at the first change
    what came before is copied, and a segment that keeps all of them gets a second name instead. What was
    written is read back some way behind.
    """

    def __init__(
        self,
        work: LogWork,
        group: Group,
        path: str | None,
        buffers: Buffers,
        read_back: ReadBack | None = None,
    ) -> None:
        self.buffers = buffers
        self._source, self._path = work.segments[group.first], path
        # Only in the log's own directory: a copy of a log shares no file with it.
        is_own = path is not None and Path(path).parent.parent.parent == Path(self._source.directory)
        self._unchanged = is_own and group.last == group.first + 1
        self._writer: files.Writer | None = None
        if path is not None and not self._unchanged:
            self._writer = files.Writer(path)
        self.indexes = IndexBuilder(group.base_offset, work.limits.index_interval, work.limits.index_bytes)
        self._read_back = read_back
        self._whole = 0
        self.size = 0

    def put(self, batches: CleanedBatches | PendingBatches) -> int:
        """Write it, finished where it is not; returns the bytes."""
        output = batches.finished(self.buffers.packed) if isinstance(batches, PendingBatches) else batches
        if self.size + len(output.data) > INT_MAX:
            raise CheckFailedError(
                f"{self._source.path}: its new segment would grow beyond 2 GiB, an index's limit; "
                "message sets (v0, v1) grow when they become batches: clean with a smaller segment.bytes"
            )
        if self._unchanged and not output.unchanged:
            self._write_what_was_kept()
        if self._writer is not None and len(output.data):
            self._writer.write(output.data)
            self._whole = self._writer.size
        self.size += len(output.data)
        self.indexes.add(output.last_offset, output.max_timestamp, output.size)
        return len(output.data)

    def follow(self) -> int:
        """Read back what was put, when there is enough of it, also while more is; returns the bytes."""
        writer, read_back, whole = self._writer, self._read_back, self._whole
        if writer is None or read_back is None or whole - read_back.size < _READ_BACK_BYTES:
            return 0
        done = read_back.follow(whole)
        writer.drop_cached(read_back.size)
        return done

    def let_go(self) -> None:
        """All was read back: the system need not keep it in memory."""
        if self._writer is not None:
            self._writer.drop_cached_rest()

    def _write_what_was_kept(self) -> None:
        """So far the new segment is the old one: copy as much of it."""
        assert self._path is not None
        self._unchanged, self._writer = False, files.Writer(self._path)
        with unchanged(self._source) as reader:
            buffer = np.empty(min(_COPY_BYTES, self.size), np.uint8)
            while self._writer.size < self.size:
                part = buffer[: self.size - self._writer.size]
                if reader.read_into(part, self._writer.size) < len(part):
                    raise SourceChangedError(f"{self._source.path}: cut while it was cleaned; run again")
                self._writer.write(part)

    def linked(self) -> bool:
        """All is there; was the segment only given a second name? It was if nothing of it goes."""
        if self._unchanged and self._path is not None and self.size == self._source.size:
            try:
                files.link(self._source.path, self._path)
                unchanged(self._source, self._path).close()
                return True
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
        if self._unchanged:
            self._write_what_was_kept()
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
) -> Rewritten:
    """Write the group's new segment; ``retained`` are offsets less the group's base, in any order.

    ``carried``: what is known of transactions where the group starts. ``attempt`` names the files. A task
    that rewrites several groups may give them the same ``buffers``. Never raises for what is wrong with the
    log, the disk or the counts: the report says so, and the files of this attempt are gone then.
    """
    ascending = in_order(retained, group.end_offset - group.base_offset)
    record_filter = OffsetFilter(work, group.base_offset, ascending)
    return rewrite_by(work, group, record_filter, attempt, carried, buffers)


def rewrite_by(
    work: LogWork,
    group: Group,
    record_filter: RecordFilter,
    attempt: str,
    carried: Carried = NOTHING,
    buffers: Buffers | None = None,
) -> Rewritten:
    """The same, with any record filter."""
    report, buffers = Rewritten(group=group.index), buffers or Buffers()
    try:
        if work.staging is None:
            _fill(work, group, record_filter, carried, _Sink(work, group, None, buffers), report)
        else:
            stem = Path(work.staging) / f"{group.base_offset:020d}.{attempt}"
            _stage(work, group, record_filter, carried, stem, report, buffers)
    except Exception as error:
        report.failure = failure_of(error)
        remove_staged(report)
    report.retained = len(record_filter.retained)
    return report


def remove_staged(report: Rewritten) -> None:
    """Remove a group's staged files, which are not wanted."""
    for path in report.staged.values():
        with contextlib.suppress(OSError):
            files.unlink(path)
    report.staged = {}


def _stage(
    work: LogWork,
    group: Group,
    record_filter: RecordFilter,
    carried: Carried,
    stem: Path,
    report: Rewritten,
    buffers: Buffers,
) -> None:
    log = f"{stem}.log"
    report.staged["log"] = log
    read_back = ReadBack(work, group, log, lambda: record_filter.retained, buffers.read_back)
    with _Sink(work, group, log, buffers, read_back) as sink:
        transactions = _fill(work, group, record_filter, carried, sink, report)
        indexes, linked = sink.indexes.finish(), sink.linked()
        staged = {"index": indexes.offset_index, "timeindex": indexes.time_index}
        if transactions:
            staged["txnindex"] = transactions
        for kind, data in staged.items():
            report.staged[kind] = f"{stem}.{kind}"
            with files.Writer(report.staged[kind]) as writer:
                writer.write(data)
        source = work.segments[group.last - 1]
        for kind, path in report.staged.items():
            if kind != "log" or not linked:
                files.copy_attributes(work.segments[group.first].path, path)
                files.set_modified(path, source.modified_ns)
        files.sync_files(report.staged.values())
        if not linked:
            Pacer(work.limits.io_bytes_per_second).done(read_back.finish(report.size, report.kept, staged))
            sink.let_go()
    for kind, data in staged.items():
        if files.read_bytes(report.staged[kind]) != data:
            raise CheckFailedError(f"{report.staged[kind]}: is not the index of what was written")
    report.identity = list(files.stat(log).identity)


def _fill(
    work: LogWork, group: Group, record_filter: RecordFilter, carried: Carried, sink: _Sink, report: Rewritten
) -> bytes:
    """Rewrite the group's segments into ``sink``; returns the new transaction index."""
    transactions = work.transactions(carried)
    rewriter = Rewriter(work, record_filter, transactions, sink.buffers)
    with OneBehind() as behind:
        for number in range(group.first, group.last):
            _fill_from(work, number, rewriter, sink, behind)
    transactions.refuse_unmarked(group.base_offset, group.end_offset, work.segments[group.first].path)
    report.records, report.kept, report.size = rewriter.records, rewriter.kept, sink.size
    report.largest_timestamp = sink.indexes.largest_timestamp
    report.removed = Discarded.of(rewriter.discarded)
    record_filter.refuse_unmet(work.name)
    if report.records != report.kept + report.removed.total():
        raise CheckFailedError(
            f"{work.name}: {report.records} records read, but kept and removed do not add up to it"
        )
    return transactions.ended_transactions()


def _fill_from(work: LogWork, number: int, rewriter: Rewriter, sink: _Sink, behind: OneBehind) -> None:
    segment, pacer = work.segments[number], Pacer(work.limits.io_bytes_per_second)
    following, end = work.offsets_of(number)
    keeps = work.rules.keeps_legacy_tombstones(segment.modified_ms)
    with unchanged(segment) as reader:
        # The rewriter sums up what it looks at: what goes as a whole was summed up when the keys were read.
        for window in paced_windows(reader, work.limits.window_size, pacer, verify=False):
            following = refuse_disorder(segment.path, window, following, end)
            for part in batch_slices(segment.path, window):
                batches = rewriter.rewrite(part, keeps_legacy_tombstones=keeps)
                put = functools.partial(sink.put, batches)
                if isinstance(batches, PendingBatches) and batches.codecs.any():
                    pacer.done(behind.give(put))
                else:  # it may lie in the window, which the next one takes the place of
                    pacer.done(behind.wait() + put())
                # Not in that thread: both would ask for the interpreter at each batch that they decompress.
                pacer.done(sink.follow())
    pacer.done(behind.wait())


# A group's retained offsets between two jobs: written by the task that gathered them, verified by whoever
# reads them.
#
# ::
#
#     BASE.ATTEMPT.retained     uint32, little-endian, ascending: offsets less the group's base
#
# There is no header: count and CRC32C are in the task's report. A task writes only a file of its own name,
# made with O_EXCL. Only the run that wrote it reads it, so it need not be durable. A group without retained
# offsets has none.

RETAINED_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedFile:
    """One group's file: its name in the run's folder ("" without retained offsets), how many, and their
    CRC32C.

    ``carried``: what the group starts with, of transactions.
    """

    group: int
    name: str = ""
    count: int = 0
    checksum: int = 0
    carried: Carried = NOTHING
    failure: LogFailure | None = None


def write_retained(
    work: LogWork, group: Group, retained: Offsets, attempt: str, carried: Carried = NOTHING
) -> RetainedFile:
    """Write a group's retained offsets, in any order, to this attempt's file. Never raises: the report says
    it."""
    assert work.staging is not None
    if not len(retained):
        return RetainedFile(group=group.index, carried=carried)
    name = f"{group.base_offset:020d}.{attempt}.retained"
    path = Path(work.staging) / name
    try:
        ascending = in_order(retained, group.end_offset - group.base_offset)
        data = ascending.astype("<u4", copy=False).view(np.uint8).data
        with files.Writer(path) as writer:
            writer.write(data)
            files.inherit_owner(path)
        return RetainedFile(
            group=group.index, name=name, count=len(retained), checksum=crc32c(data), carried=carried
        )
    except Exception as error:
        if not isinstance(error, FileExistsError):
            with contextlib.suppress(OSError):
                files.unlink(path)
        return RetainedFile(group=group.index, failure=failure_of(error))


def read_retained(folder: Path, file: RetainedFile) -> Offsets:
    """The retained offsets again, ascending. Raises CheckFailedError when they are not those that were
    written."""
    retained = np.empty(file.count, "<u4")
    if file.count:
        with files.Reader(folder / file.name) as reader:
            got = reader.read_into(retained.view(np.uint8), 0)
            sound = got == reader.stat.size == retained.nbytes
        if not sound or crc32c(retained.view(np.uint8).data) != file.checksum:
            raise CheckFailedError(f"{folder / file.name}: not the retained offsets that were gathered")
    return retained.astype(np.uint32, copy=False)


def rewrite_from(
    work: LogWork, group: Group, file: RetainedFile, attempt: str, buffers: Buffers | None = None
) -> Rewritten:
    """``rewrite_group`` with the retained offsets of a file. Never raises: the report says what is
    wrong."""
    assert work.staging is not None and file.group == group.index
    try:
        retained = read_retained(Path(work.staging), file)
    except Exception as error:
        return Rewritten(group=group.index, failure=failure_of(error))
    return rewrite_group(work, group, retained, attempt, file.carried, buffers)


@dataclass(slots=True, kw_only=True)
class LogDone:
    """What an engine did for one log, or for one wave of its groups.

    ``retained`` (by group) and ``dirty_keys`` are the merge's totals over the whole log; ``groups`` are in
    order; ``files`` are those of the retained offsets where these were gathered; ``met``: dirty keys whose
    last records were met, where groups look keys up; ``seconds`` is what the work itself took, where one task
    did it all. Parts of one log add up.
    """

    name: str
    extracted: Extracted = field(default_factory=Extracted)
    groups: list[Rewritten] = field(default_factory=list)
    files: list[RetainedFile] = field(default_factory=list)
    retained: dict[int, int] = field(default_factory=dict)
    dirty_keys: int = 0
    met: int = 0
    seconds: float = 0.0

    def add(self, other: LogDone) -> None:
        """Sum up."""
        self.extracted.add(other.extracted)
        self.groups += other.groups
        self.files += other.files
        for group, count in other.retained.items():
            self.retained[group] = self.retained.get(group, 0) + count
        self.dirty_keys += other.dirty_keys
        self.met += other.met

    @property
    def failure(self) -> LogFailure | None:
        """The first one."""
        return first_failure((self.extracted, *self.files, *self.groups))
