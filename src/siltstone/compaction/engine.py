"""The engine interface between the cleaner and its workers, and the engine that runs in this process.

An engine takes the work of logs and returns ``LogReport``, log by log or wave by wave. The in-process engine
calls the steps of ``compaction.work`` one after another; ``spark.clean`` spreads the same steps over tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from siltstone.base import files
from siltstone.base.codec_table import CODECS
from siltstone.base.records.build import BatchShape, Spans, build_batch, encode_headers
from siltstone.base.records.control import end_transaction_marker
from siltstone.compaction import broadcast
from siltstone.compaction.keys import MERGE_BYTES_PER_ENTRY, EntryBlob, merge_bucket
from siltstone.compaction.rewrite import Buffers, Offsets
from siltstone.compaction.staging import (
    GroupReport,
    LogReport,
    RetainedFile,
    rewrite_from_file,
    rewrite_group,
    write_retained,
)
from siltstone.compaction.work import (
    Group,
    InputSplit,
    LogWork,
    RetentionRules,
    TaskLimits,
    check_keyless,
    extract,
    retained_by_group,
    transaction_state_by_group,
)
from siltstone.log.names import segment_file
from siltstone.log.segments import list_segments
from siltstone.log.transactions import NOTHING, Carried

Progress = Callable[[str, str, int, int], None]
"""Called with (log, stage, tasks done, tasks)."""


class Engine(Protocol):
    """Runs the work of logs. Raises EngineError when it cannot run any."""

    @property
    def workers(self) -> int:
        """How many groups are rewritten at one time."""

    def clean_whole(self, works: Sequence[LogWork]) -> Iterator[LogReport]:
        """Clean each log in one task: a report a log, in any order."""

    def clean_distributed(self, work: LogWork) -> LogReport:
        """Clean one log on all workers."""

    def gather(self, work: LogWork) -> LogReport:
        """Merge one log on all workers; its retained offsets go into files, one a group, in the staging
        folder."""

    def rewrite(
        self, work: LogWork, groups: Sequence[Group], retained: Sequence[RetainedFile]
    ) -> list[GroupReport]:
        """Rewrite some groups of a log after ``gather``, in order; ``retained``: the files of all its
        groups."""


def bucket_count(work: LogWork, at_least: int = 1) -> int:
    """How many buckets a merge needs so that each fits the memory for keys: the span of offsets bounds the
    number of records, hence of keys."""
    return max(at_least, -(-offset_span(work) * MERGE_BYTES_PER_ENTRY // work.limits.memory_bytes))


def offset_span(work: LogWork) -> int:
    """The number of offsets of the log, which is at least the number of its records."""
    return work.end - work.segments[0].base_offset


def entry_capacity(work: LogWork) -> int:
    """Entries that an extracting task may hold: a third of its memory. Growing a collector takes half as much
    again, and the rest is for blobs in transit."""
    return max(1024, work.limits.memory_bytes // (3 * 16))


def fits_one_task(work: LogWork, byte_limit: int) -> bool:
    """Is the log small enough for one task, by its bytes and by the memory for its keys?"""
    return work.size <= byte_limit and bucket_count(work) == 1


def clean_in_one_task(work: LogWork, attempt: str, buffers: Buffers | None = None) -> LogReport:
    """Clean a whole log in this process, by a broadcast join where that is faster. A task may use one
    ``buffers`` for several logs."""
    began, buffers = time.perf_counter(), buffers or Buffers()
    done = broadcast_join(work, attempt, buffers)
    if done is None:
        done = _Merge(work, [work.splits], 1).rewritten(attempt, buffers)
    done.seconds = time.perf_counter() - began
    return done


class _Merge:
    """A whole log, extracted and merged in this process: a collector for each run of splits, then the
    buckets.

    ``done``: the totals. By group: ``retained``, offsets less the group's base, and ``carried``, the state of
    transactions where it starts.
    """

    def __init__(self, work: LogWork, runs: Iterable[Sequence[InputSplit]], buckets: int) -> None:
        self._work, self.done = work, LogReport(name=work.name)
        extracted, blobs = self.done.extracted, dict[int, list[EntryBlob]]()
        for splits in runs:
            for blob in extract(work, splits, buckets, entry_capacity(work), extracted):
                blobs.setdefault(blob.bucket, []).append(blob.copied())
        self.carried = transaction_state_by_group(work, extracted)
        extracted.failure = extracted.failure or check_keyless(work, extracted)
        parts: dict[int, list[Offsets]] = {}
        for bucket in sorted(blobs) if extracted.failure is None else ():
            merged = merge_bucket(blobs.pop(bucket), bucket, buckets)
            self.done.dirty_keys += merged.dirty_keys
            for group, offsets in retained_by_group(work, merged):
                parts.setdefault(group, []).append(offsets)
        self.retained = {group: np.concatenate(offsets) for group, offsets in parts.items()}
        self.done.retained_counts = {group: len(offsets) for group, offsets in self.retained.items()}

    def of(self, group: Group) -> tuple[Offsets, Carried]:
        """A group's retained offsets, and its initial state of transactions."""
        nothing = np.empty(0, np.uint32)
        return self.retained.get(group.index, nothing), self.carried.get(group.index, NOTHING)

    def rewritten(self, attempt: str, buffers: Buffers) -> LogReport:
        """Rewrite the groups in order, up to the first that fails."""
        if self.done.extracted.failure is None:
            for group in self._work.groups:
                retained, carried = self.of(group)
                self.done.groups.append(rewrite_group(self._work, group, retained, attempt, carried, buffers))
                if self.done.groups[-1].failure is not None:
                    break
        return self.done


def broadcast_join(
    work: LogWork,
    attempt: str,
    buffers: Buffers,
    min_clean_to_dirty_ratio: float = broadcast.MIN_CLEAN_TO_DIRTY_RATIO,
) -> LogReport | None:
    """The broadcast join in this process; None where it is not faster, and for a log with transactions."""
    if not broadcast.should_broadcast(work, min_clean_to_dirty_ratio):
        return None
    done = LogReport(name=work.name)
    splits = [split for run in broadcast.dirty_splits(work, 1) for split in run]
    entries = broadcast.dirty_entries(work, splits, done.extracted)
    if done.extracted.failure is not None:
        return done
    if done.extracted.has_transactions:
        return None
    offset_map = broadcast.OffsetMap.of(entries)
    groups = [broadcast.clean_group(work, group, offset_map, attempt, buffers) for group in work.groups]
    return broadcast.merge_group_reports(work, len(offset_map), groups)


class InProcessEngine:
    """Runs all steps in this process, one after another. ``buckets``: the least of a merge."""

    workers = 1

    def __init__(
        self, buckets: int = 1, *, min_clean_to_dirty_ratio: float = broadcast.MIN_CLEAN_TO_DIRTY_RATIO
    ) -> None:
        self._buckets = buckets
        self._clean_share = min_clean_to_dirty_ratio

    def clean_whole(self, works: Sequence[LogWork]) -> Iterator[LogReport]:
        """Clean one log after another."""
        buffers = Buffers()
        for work in works:
            yield clean_in_one_task(work, "0", buffers)

    def clean_distributed(self, work: LogWork) -> LogReport:
        """Clean by the steps of a spread log: segment by segment, bucket by bucket, group by group."""
        buffers = Buffers()
        done = broadcast_join(work, "0", buffers, self._clean_share)
        return done if done is not None else self._merged(work).rewritten("0", buffers)

    def gather(self, work: LogWork) -> LogReport:
        """Merge, and write the retained offsets to files."""
        merge = self._merged(work)
        if merge.done.extracted.failure is None:
            for group in work.groups:
                retained, carried = merge.of(group)
                merge.done.files.append(write_retained(work, group, retained, "0", carried))
        return merge.done

    def rewrite(
        self, work: LogWork, groups: Sequence[Group], retained: Sequence[RetainedFile]
    ) -> list[GroupReport]:
        """Rewrite group by group, up to the first that fails."""
        reports: list[GroupReport] = []
        buffers = Buffers()
        for group in groups:
            reports.append(rewrite_from_file(work, group, retained[group.index], "0", buffers))
            if reports[-1].failure is not None:
                break
        return reports

    def _merged(self, work: LogWork) -> _Merge:
        return _Merge(work, ([split] for split in work.splits), bucket_count(work, self._buckets))


# A small log, cleaned for nothing but to have every kernel of a cleaning compiled and loaded.

END = 20 * len(CODECS)
"""Offset of the last batch."""


def warm_up_batches() -> list[bytes]:
    """A few batches of every codec, with superseded keys, tombstones and headers, and a transaction's end."""
    batches = []
    for number in range(2 * len(CODECS)):
        offsets = np.arange(number * 10, number * 10 + 10, dtype=np.int64)
        batch = build_batch(
            BatchShape(base_offset=number * 10, codec=number % len(CODECS)),
            offset=offsets,
            timestamp=offsets * 7,
            keys=Spans.of([b"key %d" % (offset % 17) for offset in offsets.tolist()]),
            values=Spans.of([None if offset % 5 == 0 else b"value" for offset in offsets.tolist()]),
            headers=Spans.of([encode_headers([(b"header", None)])] * 10),
        )
        batches.append(batch.tobytes())
    marker = end_transaction_marker(
        commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
    )
    return [*batches, END.to_bytes(8, "big") + marker.tobytes()[8:]]


def clean_warm_up_log(directory: Path, whole: Engine, spread: Engine) -> None:
    """Make it in an empty directory and clean it both ways, by one worker, and spread over several; and one
    whose keys are looked up."""
    files.write_new(directory / segment_file(0, "log"), b"".join(warm_up_batches()))
    (done,) = whole.clean_whole([warm_up_work(directory, "whole")])
    (again,) = whole.clean_whole([_second_pass(directory / "twice")])
    for done_log in (done, again, spread.clean_distributed(warm_up_work(directory, "spread"))):
        assert done_log.extracted.failure is None and done_log.groups[0].failure is None, done_log


def _second_pass(directory: Path) -> LogWork:
    """The cleaning of a log in a new directory of which only the last batch is dirty."""
    *clean, dirty = warm_up_batches()[:-1]
    first = END - 10
    files.make_directory(directory)
    files.write_new(directory / segment_file(0, "log"), b"".join(clean))
    files.write_new(directory / segment_file(first, "log"), dirty)
    groups = (
        Group(index=0, first_segment=0, end_segment=1, base_offset=0, end_offset=first),
        Group(index=1, first_segment=1, end_segment=2, base_offset=first, end_offset=END),
    )
    work = warm_up_work(directory, "staged")
    rules = replace(work.rules, last_offset=END - 1)
    return replace(work, groups=groups, first_dirty=first, end=END, rules=rules)


def warm_up_work(directory: Path, name: str, window_size: int = 1 << 16) -> LogWork:
    """The cleaning of the small log in ``directory``, staged in its folder ``name``, which is made."""
    files.make_directory(directory / name)
    end = END + 1
    return LogWork(
        name=name,
        segments=tuple(list_segments(directory)),
        groups=(Group(index=0, first_segment=0, end_segment=1, base_offset=0, end_offset=end),),
        first_dirty=end // 4,
        end=end,
        rules=RetentionRules(
            now_ms=0,
            delete_retention_ms=1,
            last_offset=END,
            producers=np.empty((0, 3), np.int64),
            drop_keyless=True,
        ),
        limits=TaskLimits(
            index_interval_bytes=4096, index_bytes=1 << 20, window_size=window_size, memory_bytes=1 << 20
        ),
        hash_key=(1, 2),
        staging=str(directory / name),
    )
