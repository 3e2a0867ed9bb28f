"""Engines, which carry the cleaning of logs out: the interface, and the engine that uses one process.

An engine takes the work of logs and returns a ``LogReport`` for each log, or for each wave of a log. The
in-process engine calls the steps of ``compaction.work`` one after another; ``spark.clean`` distributes the
same steps over tasks.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from siltstone.base import files, interruption
from siltstone.base.codec_table import CODECS
from siltstone.base.records.build import NewBatchHeader, Spans, build_batch, encode_headers
from siltstone.base.records.control import end_transaction_marker
from siltstone.base.records.layout import keyed_records_max
from siltstone.compaction import broadcast
from siltstone.compaction.assembling import assemble_log
from siltstone.compaction.keys import EntryBlob
from siltstone.compaction.rewrite import Buffers, Offsets
from siltstone.compaction.staging import (
    GroupReport,
    LogReport,
    RetainedFile,
    rewrite_from_file,
    rewrite_range,
    write_retained,
)
from siltstone.compaction.work import (
    Extracted,
    Group,
    GroupRange,
    LogWork,
    RetentionRules,
    TaskLimits,
    check_keyless,
    cut_groups,
    extract,
    merge_entries,
    retained_by_range,
    transaction_state_by_range,
)
from siltstone.log.names import segment_file
from siltstone.log.segments import list_segments
from siltstone.log.transactions import NO_TRANSACTIONS, TransactionState

Progress = Callable[[str, str, int, int], None]
"""Called several times a second with (log, stage, bytes done, bytes of the log)."""
_PROGRESS_SECONDS = 0.2
"""The time between two reports of progress."""


@contextlib.contextmanager
def run_beside(function: Callable[[threading.Event], object]) -> Iterator[None]:
    """Run ``function`` in a thread while the block runs. At the end of the block its argument, an event, is
    set, and the thread is waited for."""
    is_over = threading.Event()
    thread = threading.Thread(target=function, args=(is_over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextlib.contextmanager
def report_progress(
    progress: Progress | None,
    name: str,
    size: int,
    bytes_read: Callable[[], int] = files.bytes_read,
    *,
    only_rewrites: bool = False,
) -> Iterator[None]:
    """Report the progress of a cleaning while the block runs.

    A cleaning reads a log twice, to extract its keys and to rewrite it: the block reads up to twice ``size``
    bytes. With ``only_rewrites`` it only rewrites. ``bytes_read``: a running count of bytes, which need not
    begin at 0.
    """
    if progress is None or not size:
        yield
        return
    # The count at which the first reading began. A block that only rewrites has no first reading: the count
    # at which it would have begun.
    start = bytes_read() - (size if only_rewrites else 0)

    def report(is_over: threading.Event) -> None:
        while not is_over.wait(_PROGRESS_SECONDS):
            done = bytes_read() - start
            stage = "reading" if done < size else "rewriting"
            progress(name, stage, done if done < size else min(done - size, size), size)

    with run_beside(report):
        yield


class Engine(Protocol):
    """Carries cleanings out. Raises EngineError when it cannot run a task. What is wrong with one log is in
    that log's report."""

    @property
    def parallelism(self) -> int:
        """How many tasks run at the same time."""

    def clean_whole(self, works: Sequence[LogWork]) -> Iterator[LogReport]:
        """Clean small logs, each in one task; yields a report for each log, in any order."""

    def clean_distributed(self, work: LogWork) -> LogReport:
        """Clean one log, distributed over all workers."""

    def write_retained_offsets(self, work: LogWork, waves: Sequence[Sequence[Group]]) -> LogReport:
        """For a log that is rewritten in ``waves``: extract and merge its keys on all workers, and write the
        retained offsets to a file for each range, in the staging folder."""

    def rewrite(self, work: LogWork, retained: Sequence[RetainedFile]) -> list[GroupReport]:
        """Rewrite some groups of a log, a wave, after ``write_retained_offsets``; the reports are in order.
        ``retained``: the files of all ranges of these groups."""


def bucket_count(work: LogWork, at_least: int = 1) -> int:
    """How many buckets a merge needs so that the keys of each fit the memory for keys."""
    return max(at_least, -(-entry_count_max(work) * work.merge_bytes_per_entry // work.limits.memory_bytes))


def entry_count_max(work: LogWork) -> int:
    """The most key entries that the log may have: one for each record with a key."""
    return keyed_records_max(work.end - work.segments[0].base_offset, work.size)


def entry_capacity(work: LogWork) -> int:
    """How many dirty entries, and how many clean ones, a task may hold while it extracts: a third of its
    memory for each kind. While the shards of one kind are doubled, the old ones are there too: another sixth.
    The last sixth is for blobs that are sent."""
    return max(1024, work.limits.memory_bytes // (3 * entry_bytes(work)))


def entry_bytes(work: LogWork) -> int:
    """The size of a key entry on its way to the merge."""
    return 8 * work.entry_words


def fits_one_task(work: LogWork, byte_limit: int) -> bool:
    """Is the log small enough for one task, by its bytes and by the memory for its keys?"""
    return work.size <= byte_limit and bucket_count(work) == 1


def with_ranges(work: LogWork, waves: Sequence[Sequence[Group]], parallelism: int) -> LogWork:
    """The work with its groups cut into ranges, where that is possible and worth it. ``parallelism``: how
    many tasks run at the same time; ``waves``: the groups that are rewritten at one time. (A dry run writes
    no pieces.)"""
    has_space = work.has_space_for_pieces or work.staging is None
    if work.chunk_store is not None:  # a piece is on the disk of one executor, which the others do not see
        return work
    if not (has_space and work.may_cut_segments) or work.has_message_sets:
        return work
    ranges: list[GroupRange] = []
    for wave in waves:
        first_task = 1 + max((group_range.task for group_range in ranges), default=-1)
        ranges += cut_groups(work.segments, wave, parallelism, first_task)
    is_cut = len(ranges) > len(work.groups)
    return replace(work, cut_ranges=tuple(ranges)) if is_cut else work


def clean_in_one_task(work: LogWork, attempt: str, buffers: Buffers | None = None) -> LogReport:
    """Clean a whole log in this process: by a broadcast join where that is faster, else by a merge of all
    keys. ``attempt``: a part of the staged files' names. A task may use one ``buffers`` for several logs."""
    began, buffers = time.perf_counter(), buffers or Buffers()
    log_report = broadcast_join(work, attempt, buffers)
    if log_report is None:
        log_report = MergedLog(work, 1).rewrite_ranges(attempt, buffers)
    log_report.seconds = time.perf_counter() - began
    return log_report


HELD_ENTRY_BYTES_MAX = 1 << 30
"""The most bytes of key entries that a merge in this process holds. If all entries take more, the log is read
again for the buckets that were left out."""


def _extract_buckets(
    work: LogWork, wanted: range, buckets: int, extracted: Extracted
) -> tuple[dict[int, list[EntryBlob]], range]:
    """The key entries of a log by bucket, and which of the ``wanted`` buckets they are: all of them or, if
    these take too much memory, the first ones."""
    blobs: dict[int, list[EntryBlob]] = {}
    size = 0
    for blob in extract(work, work.splits, buckets, entry_capacity(work), extracted):
        if blob.bucket not in wanted:
            continue
        blobs.setdefault(blob.bucket, []).append(blob.copied())
        size += blob.entries.nbytes
        while size > HELD_ENTRY_BYTES_MAX and len(wanted) > 1:
            wanted, left_out = wanted[: len(wanted) // 2], wanted[len(wanted) // 2 :]
            size -= sum(part.entries.nbytes for bucket in left_out for part in blobs.pop(bucket, []))
    return blobs, wanted


class MergedLog:
    """The steps of a shuffle join in this process: extracts and merges a whole log, then rewrites its ranges.

    ``log_report``: the report so far. By base offset of a range: ``retained``, retained offsets less that
    base, and ``transaction_states``, the transactions that are open there.
    """

    def __init__(self, work: LogWork, buckets: int) -> None:
        self._work, self.log_report = work, LogReport(name=work.name)
        extracted, parts = self.log_report.extracted, dict[int, list[Offsets]]()
        # 1. Extract: key entries by bucket, and summaries of transactions. ``held``: the buckets that
        #    ``blobs`` has entries of.
        blobs, held = _extract_buckets(work, range(buckets), buckets, extracted)
        # 2. Check what was extracted.
        self.transaction_states = transaction_state_by_range(work, extracted)
        extracted.failure = extracted.failure or check_keyless(work, extracted)
        # 3. Merge bucket by bucket: retained offsets by range.
        while extracted.failure is None:
            for bucket in sorted(blobs):
                self._merge(blobs.pop(bucket), bucket, buckets, parts)
            if held.stop == buckets:
                break
            again = Extracted()  # only its failure counts: the first reading has counted all records
            blobs, held = _extract_buckets(work, range(held.stop, buckets), buckets, again)
            extracted.failure = again.failure
        self.retained = {base: np.concatenate(offsets) for base, offsets in parts.items()}

    def _merge(
        self, blobs: list[EntryBlob], bucket: int, buckets: int, parts: dict[int, list[Offsets]]
    ) -> None:
        merged = merge_entries(self._work, blobs, bucket, buckets, self.log_report.extracted)
        self.log_report.dirty_keys += merged.dirty_keys
        counts = self.log_report.retained_counts
        for group_range, offsets in retained_by_range(self._work, merged):
            parts.setdefault(group_range.base_offset, []).append(offsets)
            counts[group_range.group] = counts.get(group_range.group, 0) + len(offsets)

    @property
    def has_keyless(self) -> bool:
        """Has the log records without a key?"""
        return self.log_report.extracted.keyless > 0

    def input_of(self, group_range: GroupRange) -> tuple[Offsets, TransactionState]:
        """The input of the rewrite of a range: its retained offsets, and the transactions that are open where
        it starts."""
        base, no_offsets = group_range.base_offset, np.empty(0, np.uint32)
        return self.retained.get(base, no_offsets), self.transaction_states.get(base, NO_TRANSACTIONS)

    def rewrite_ranges(self, attempt: str, buffers: Buffers) -> LogReport:
        """Rewrite the ranges in order, up to the first that fails; returns the report on the log."""
        if self.log_report.extracted.failure is None:
            for group_range in self._work.ranges:
                retained, transaction_state = self.input_of(group_range)
                inputs = (retained, attempt, transaction_state, buffers)
                self.log_report.add(
                    rewrite_range(self._work, group_range, *inputs, has_keyless=self.has_keyless)
                )
                if self.log_report.failure is not None:
                    break
        return self.log_report


def broadcast_join(
    work: LogWork,
    attempt: str,
    buffers: Buffers,
    min_clean_to_dirty_ratio: float = broadcast.MIN_CLEAN_TO_DIRTY_RATIO,
) -> LogReport | None:
    """The broadcast join in this process; None if it is not faster for the log, or not possible
    (transactions)."""
    if not broadcast.should_broadcast(work, min_clean_to_dirty_ratio):
        return None
    log_report = LogReport(name=work.name)
    splits = [split for splits_of_task in broadcast.dirty_splits(work, 1) for split in splits_of_task]
    entries = broadcast.dirty_entries(work, splits, log_report.extracted)
    if log_report.extracted.failure is not None:
        return log_report
    if log_report.extracted.has_transactions:
        return None
    offset_map = broadcast.OffsetMap.of(entries)
    parts = [
        broadcast.clean_range(work, group_range, offset_map, attempt, buffers) for group_range in work.ranges
    ]
    return broadcast.merge_range_reports(work, len(offset_map), parts)


class InProcessEngine:
    """Runs all steps in this process, one after another. No step is repeated, so its attempts are named "0".

    ``buckets``: the least number of buckets of a merge. ``min_clean_to_dirty_ratio``: see
    ``broadcast.MIN_CLEAN_TO_DIRTY_RATIO``. ``parallelism``: large groups are cut as if this many tasks ran
    at the same time; only tests set it.
    """

    def __init__(
        self,
        buckets: int = 1,
        *,
        min_clean_to_dirty_ratio: float = broadcast.MIN_CLEAN_TO_DIRTY_RATIO,
        progress: Progress | None = None,
        parallelism: int = 1,
    ) -> None:
        self._buckets = buckets
        self._min_clean_to_dirty_ratio = min_clean_to_dirty_ratio
        self._progress = progress
        self.parallelism = parallelism

    def clean_whole(self, works: Sequence[LogWork]) -> Iterator[LogReport]:
        """Clean one log after another. No log begins after an interrupt, also in a thread other than the main
        one, which gets no KeyboardInterrupt."""
        buffers = Buffers()
        for work in works:
            interruption.current().check()
            with report_progress(self._progress, work.name, work.size):
                log_report = clean_in_one_task(work, "0", buffers)
            yield log_report

    def clean_distributed(self, work: LogWork) -> LogReport:
        """Clean by the steps of a distributed log: bucket by bucket, range by range."""
        buffers, work = Buffers(), with_ranges(work, [work.groups], self.parallelism)
        with report_progress(self._progress, work.name, work.size):
            log_report = broadcast_join(work, "0", buffers, self._min_clean_to_dirty_ratio)
            if log_report is None:
                log_report = self._merged(work).rewrite_ranges("0", buffers)
            assemble_log(work, log_report, "0")
        return log_report

    def write_retained_offsets(self, work: LogWork, waves: Sequence[Sequence[Group]]) -> LogReport:
        """Extract and merge, and write the retained offsets to files."""
        work = with_ranges(work, waves, self.parallelism)
        with report_progress(self._progress, work.name, work.size):
            merged = self._merged(work)
        if merged.log_report.extracted.failure is None:
            for group_range in work.ranges:
                retained, transaction_state = merged.input_of(group_range)
                inputs = (retained, "0", transaction_state)
                merged.log_report.files.append(
                    write_retained(work, group_range, *inputs, has_keyless=merged.has_keyless)
                )
        return merged.log_report

    def rewrite(self, work: LogWork, retained: Sequence[RetainedFile]) -> list[GroupReport]:
        """Rewrite range by range, up to the first that fails."""
        work = replace(work, cut_ranges=tuple(file.group_range for file in retained))
        report, buffers = LogReport(name=work.name), Buffers()
        size = sum(group_range.size for group_range in work.ranges)
        with report_progress(self._progress, work.name, size, only_rewrites=True):
            for file in retained:
                report.add(rewrite_from_file(work, file, "0", buffers))
                if report.failure is not None:
                    break
            assemble_log(work, report, "0")
        return report.groups

    def _merged(self, work: LogWork) -> MergedLog:
        return MergedLog(work, bucket_count(work, self._buckets))


# The warm-up log: a small log that is cleaned only to have every kernel of a cleaning compiled and loaded.

_BATCH_RECORDS = 10
MARKER_OFFSET = _BATCH_RECORDS * 2 * len(CODECS)
"""The offset of the warm-up log's last batch, a marker: two data batches of every codec come before."""


def warm_up_batches() -> list[bytes]:
    """Two batches of every codec, with superseded keys, tombstones and record headers, and a marker."""
    batches = []
    for number in range(2 * len(CODECS)):
        offsets = number * _BATCH_RECORDS + np.arange(_BATCH_RECORDS, dtype=np.int64)
        batch = build_batch(
            NewBatchHeader(base_offset=number * _BATCH_RECORDS, codec=number % len(CODECS)),
            offset=offsets,
            timestamp=offsets * 7,
            keys=Spans.of([b"key %d" % (offset % 17) for offset in offsets.tolist()]),
            values=Spans.of([None if offset % 5 == 0 else b"value" for offset in offsets.tolist()]),
            headers=Spans.of([encode_headers([(b"header", None)])] * _BATCH_RECORDS),
        )
        batches.append(batch.tobytes())
    marker = end_transaction_marker(
        is_commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
    )
    # The first 8 bytes of a batch are its base offset.
    return [*batches, MARKER_OFFSET.to_bytes(8, "big") + marker.tobytes()[8:]]


def clean_warm_up_log(directory: Path, whole: Engine, distributed: Engine) -> None:
    """Make the warm-up log in an empty directory. Clean it in one task (engine ``whole``), by a broadcast
    join in one task, and on all workers (engine ``distributed``)."""
    files.write_new(directory / segment_file(0, "log"), b"".join(warm_up_batches()))
    (merged,) = whole.clean_whole([warm_up_work(directory, "whole")])
    (joined,) = whole.clean_whole([_broadcast_join_work(directory / "twice")])
    for log_report in (merged, joined, distributed.clean_distributed(warm_up_work(directory, "spread"))):
        assert log_report.extracted.failure is None and log_report.groups[0].failure is None, log_report


def _broadcast_join_work(directory: Path) -> LogWork:
    """The work on a log in a new directory, of which only the last batch is dirty."""
    *clean, dirty = warm_up_batches()[:-1]
    first = MARKER_OFFSET - _BATCH_RECORDS
    files.make_directory(directory)
    files.write_new(directory / segment_file(0, "log"), b"".join(clean))
    files.write_new(directory / segment_file(first, "log"), dirty)
    groups = (
        Group(index=0, first_segment=0, end_segment=1, base_offset=0, end_offset=first),
        Group(index=1, first_segment=1, end_segment=2, base_offset=first, end_offset=MARKER_OFFSET),
    )
    work = warm_up_work(directory, "staged")
    rules = replace(work.rules, last_offset=MARKER_OFFSET - 1)
    return replace(work, groups=groups, first_dirty=first, end=MARKER_OFFSET, rules=rules)


def warm_up_work(directory: Path, name: str, window_size: int = 1 << 16) -> LogWork:
    """The work on the warm-up log in ``directory``; its staging is the folder ``name`` there, which is
    made."""
    files.make_directory(directory / name)
    end = MARKER_OFFSET + 1
    return LogWork(
        name=name,
        segments=tuple(list_segments(directory)),
        groups=(Group(index=0, first_segment=0, end_segment=1, base_offset=0, end_offset=end),),
        first_dirty=end // 4,
        end=end,
        rules=RetentionRules(
            now_ms=0,
            delete_retention_ms=1,
            last_offset=MARKER_OFFSET,
            producers=np.empty((0, 3), np.int64),
            drop_keyless=True,
        ),
        limits=TaskLimits(
            index_interval_bytes=4096, index_bytes=1 << 20, window_size=window_size, memory_bytes=1 << 20
        ),
        hash_key=(1, 2),
        staging=str(directory / name),
    )
