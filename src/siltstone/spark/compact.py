"""Compaction beside the originals on Spark: the pieces of ``siltstone.compaction.ledger``, spread.

::

    spark.range(tasks) ─ extract ─► entries ─ by bucket ─► merge ─► winners ─ by group ─► rewrite ─► reports
    spark.range(tasks) ─ buckets' keys and groups' segments of generations that become one ─────────► reports

A small tail goes through one task. Older generations' key indexes are read where a bucket is merged; what
they lose travels to the driver as packed offsets. ``jobs`` and ``rows`` are the cleaner's, too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from siltstone.base.records.layout import Int64
from siltstone.compaction.engine import Progress
from siltstone.compaction.extraction import Extracted, Trouble
from siltstone.compaction.keys import BLOB_BYTES, EntryBlob
from siltstone.compaction.ledger.engine import Compacted, Folded, compact_in_one_go
from siltstone.compaction.ledger.key_index import KeysPart
from siltstone.compaction.ledger.keys import PARTITIONS
from siltstone.compaction.ledger.staging import (
    FoldedKeys,
    FoldWork,
    Rewritten,
    StagedSegment,
    fold_group,
    fold_keys,
    rewrite_group,
)
from siltstone.compaction.ledger.work import (
    CompactionWork,
    Merged,
    Source,
    bucket_count,
    by_group,
    extract,
    merge_bucket,
)
from siltstone.spark import exchange
from siltstone.spark.exchange import Row, Stage, rows_of
from siltstone.spark.jobs import (
    TOGETHER_BYTES,
    Job,
    attempt_name,
    can_go_together,
    collect,
    parallelism_of,
    run,
    stage,
)
from siltstone.spark.tasks import Batches, merging, runs_of, task_numbers

ENTRIES, KEPT, HIDDEN, KEYS = "entries", "kept", "hidden", "keys"
_TASK_BYTES = 1 << 30
_SMALL_FOLD_BYTES = 64 << 20


def compact_whole_task(work: CompactionWork, batches: Batches) -> Iterator[pa.RecordBatch]:
    """The one row's task does it all; what older generations lose goes as rows of its own."""
    for _ in task_numbers(batches):
        done = compact_in_one_go(work, attempt_name())
        yield exchange.report_row(exchange.FOUND, _of_extraction(done.found)).batch()
        yield from _summaries(done.found)
        for generation, parts in done.hidden.items():
            for offsets in parts:
                yield from _offset_rows(HIDDEN, generation, offsets)
        merged = Merged(bucket=0, arrived=done.arrived, deleted=done.deleted, beaten=done.beaten)
        merged.keys, merged.trouble = done.keys[0] if done.keys else None, done.trouble
        yield _merged_row(merged, done.winners).batch()
        for group in done.groups:
            yield exchange.report_row(exchange.REWRITTEN, asdict(group)).batch()


def extract_task(
    work: CompactionWork, parts: Sequence[Sequence[int]], buckets: int, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Each row names a run of sources: their entries, and a report of what was in them."""
    for number in task_numbers(batches):
        found = Extracted()
        for blob in extract(work, parts[number], buckets, found):
            if isinstance(blob, EntryBlob):
                data = np.ascontiguousarray(blob.entries).reshape(-1).view(np.uint8).data
                yield Row(target=blob.bucket, kind=ENTRIES, count=len(blob.entries), blob=data).batch()
            else:
                yield from _offset_rows(KEPT, number % buckets, blob)
        yield from _summaries(found)
        yield exchange.report_row(exchange.FOUND, _of_extraction(found), number % buckets).batch()
        if number == 0:
            yield from (Row(target=bucket, kind=KEYS).batch() for bucket in range(buckets))


def merge_task(work: CompactionWork, buckets: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    """A bucket's entries become winners by group; reports and summaries pass through.

    A task may be given several buckets. One without any entry still owes its part of the key index: ``KEYS``
    rows tell of all of them.
    """
    blobs: dict[int, list[EntryBlob]] = {}
    for batch in batches:
        for row in rows_of(batch):
            if row.kind == ENTRIES:
                entries = np.frombuffer(row.blob, np.uint64).reshape(-1, work.words)
                _refuse_other_count(row, len(entries))
                blobs.setdefault(row.target, []).append(EntryBlob(bucket=row.target, entries=entries))
            elif row.kind == KEPT:
                yield from _to_groups(work, Merged(bucket=-1, winners=np.sort(_offsets_of(row))))
            elif row.kind == KEYS:
                blobs.setdefault(row.target, [])
            else:
                yield row.batch()
    for bucket in sorted(blobs):
        merged = merge_bucket(work, blobs.pop(bucket), bucket, buckets, attempt_name())
        for generation, offsets in merged.hidden.items():
            yield from _offset_rows(HIDDEN, generation, offsets)
        yield from _to_groups(work, merged)


def _to_groups(work: CompactionWork, merged: Merged) -> Iterator[pa.RecordBatch]:
    """What was merged: the winners on their way to their groups, the counts to the driver."""
    counts = {}
    for group, offsets in by_group(work.groups, merged.winners):
        counts[group] = len(offsets)
        yield from _offset_rows(exchange.WINNERS, group, offsets)
    yield _merged_row(merged, counts).batch()


def rewrite_task(work: CompactionWork, batches: Batches) -> Iterator[pa.RecordBatch]:
    """The winners of one group, or of several, become staged segments; all else passes through."""
    winners: dict[int, list[Int64]] = {}
    for batch in batches:
        for row in rows_of(batch):
            if row.kind == exchange.WINNERS:
                winners.setdefault(row.target, []).append(_offsets_of(row).copy())
            else:
                yield row.batch()
    for group, parts in sorted(winners.items()):
        report = rewrite_group(work, work.groups[group], np.concatenate(parts), attempt_name())
        yield exchange.report_row(exchange.REWRITTEN, asdict(report)).batch()


def fold_task(work: FoldWork, buckets: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Each row names a bucket of keys, or behind those a group of segments."""
    for number in task_numbers(batches):
        if number < buckets:
            folded = fold_keys(work, number, buckets, attempt_name())
            yield exchange.report_row(KEYS, asdict(folded)).batch()
        else:
            group = fold_group(work, work.groups[number - buckets], attempt_name())
            yield exchange.report_row(exchange.REWRITTEN, asdict(group)).batch()


def _of_extraction(found: Extracted) -> dict[str, Any]:
    """The report without its arrays."""
    raw = {name: getattr(found, name) for name in ("records", "keyed", "keyless", "aborted", "size")}
    trouble = None if found.trouble is None else asdict(found.trouble)
    return raw | {"entries": found.entries, "trouble": trouble}


def _summaries(found: Extracted) -> Iterator[pa.RecordBatch]:
    for summary in found.summaries:
        yield exchange.summary_row(summary).batch()


def _merged_row(merged: Merged, winners: dict[int, int]) -> Row:
    keys = None if merged.keys is None else asdict(merged.keys)
    trouble = None if merged.trouble is None else asdict(merged.trouble)
    counts = {"arrived": merged.arrived, "deleted": merged.deleted, "beaten": merged.beaten}
    return exchange.report_row(
        exchange.MERGED, counts | {"keys": keys, "trouble": trouble, "winners": winners}
    )


def _offset_rows(kind: str, target: int, offsets: Int64) -> Iterator[pa.RecordBatch]:
    """Offsets on their way to a group, or as those that generation ``target`` loses to the driver."""
    step = BLOB_BYTES // offsets.itemsize
    for start in range(0, len(offsets), step):
        part = np.ascontiguousarray(offsets[start : start + step])
        yield Row(target=target, kind=kind, count=len(part), blob=part.data.cast("B")).batch()


def _offsets_of(row: Row) -> Int64:
    """The offsets again. Raises ValueError when their size is not their count's."""
    offsets = np.frombuffer(row.blob, np.int64)
    _refuse_other_count(row, len(offsets))
    return offsets


def _refuse_other_count(row: Row, arrived: int) -> None:
    if arrived != row.count:
        raise ValueError(f"{row.count} {row.kind} were sent, {arrived} arrived")


class SparkCompactionEngine:
    """Spreads a compaction's pieces over a session's workers."""

    def __init__(
        self,
        session: SparkSession,
        *,
        progress: Progress | None = None,
        buckets: int = 1,
        tasks: int | None = None,
        together_bytes: int = TOGETHER_BYTES,
    ) -> None:
        self._session = session
        self._together_bytes = together_bytes
        self._progress = progress
        self._least_buckets = buckets
        self._parallelism = tasks or parallelism_of(session)

    @property
    def workers(self) -> int:
        """How many tasks run at one time."""
        return self._parallelism

    def compact_whole(self, work: CompactionWork) -> Compacted:
        """A tail in one task."""
        found = self._collect(
            lambda: stage(self._session.range(0, 1, 1, 1), compact_whole_task, work), work.name
        )
        return _compacted(found)

    def compact_spread(self, work: CompactionWork) -> Compacted:
        """A tail over all workers, in one job."""
        enough = bucket_count(work, max(self._least_buckets, self._parallelism))
        held = 8 * work.words * (work.end - work.first)
        buckets, tasks = merging(enough, self._parallelism, held, work.output.memory_bytes)
        buckets = min(buckets, PARTITIONS)
        parts = self._parts(work.sources)
        groups = max(1, min(len(work.groups), self._parallelism))
        stages = (
            Stage(function=extract_task, given=(work, parts, buckets), tasks=len(parts)),
            Stage(function=merge_task, given=(work, buckets), tasks=min(tasks, buckets)),
            Stage(function=rewrite_task, given=(work,), tasks=groups),
        )
        size = sum(source.size - source.start for source in work.sources)
        together = can_go_together(self._session, size, self._together_bytes)
        job = Job(stages=stages, title=work.name, staging=work.output.staging)
        return _compacted(run(self._session, job, self._progress, together=together))

    def fold(self, work: FoldWork) -> Folded:
        """Generations into one, in one job: in one task where they are small."""
        size = sum(source.size for source in work.sources)
        tasks = 1 if size <= _SMALL_FOLD_BYTES else self._parallelism
        buckets = 1 << (tasks - 1).bit_length()
        pieces = buckets + len(work.groups)

        def folding() -> DataFrame:
            frame = self._session.range(0, pieces, 1, pieces)
            return stage(frame.coalesce(tasks) if tasks == 1 else frame, fold_task, work, buckets)

        done = Folded()
        for row in self._collect(folding, work.name):
            raw = json.loads(row.report)
            if row.kind == KEYS:
                trouble = _trouble_of(raw["trouble"])
                done.keys.append(
                    FoldedKeys(bucket=raw["bucket"], keys=_part_of(raw["keys"]), trouble=trouble)
                )
            else:
                done.groups.append(_rewritten_of(raw))
        done.groups.sort(key=lambda group: group.group)
        return done

    def _parts(self, sources: Sequence[Source]) -> list[list[int]]:
        """Runs of neighbouring sources of about the same size, one for each extracting task."""
        sizes = [source.size - source.start for source in sources]
        tasks = min(len(sources), max(self._parallelism, math.ceil(sum(sizes) / _TASK_BYTES)))
        return runs_of(sizes, tasks) or [[]]

    def _collect(self, frame: Callable[[], DataFrame], title: str) -> list[Row]:
        return collect(self._session, frame, title, self._progress)


def _compacted(found: Iterable[Row]) -> Compacted:
    """The reports of a job, summed up."""
    done = Compacted()
    for row in found:
        if row.kind == HIDDEN:
            done.hidden.setdefault(row.target, []).append(_offsets_of(row).copy())
        elif row.kind == exchange.SUMMARY:
            done.found.summaries.append(exchange.summary_of(row))
        elif row.kind == exchange.FOUND:
            raw = json.loads(row.report)
            done.found.add(Extracted(**raw | {"trouble": _trouble_of(raw["trouble"])}))
        elif row.kind == exchange.MERGED:
            _add_merged(done, json.loads(row.report))
        else:
            done.groups.append(_rewritten_of(json.loads(row.report)))
    done.groups.sort(key=lambda group: group.group)
    return done


def _add_merged(done: Compacted, raw: dict[str, Any]) -> None:
    merged = Merged(bucket=0, arrived=raw["arrived"], deleted=raw["deleted"], beaten=raw["beaten"])
    merged.keys, merged.trouble = _part_of(raw["keys"]), _trouble_of(raw["trouble"])
    done.add_merged(merged)
    for group, count in raw["winners"].items():
        done.expect(int(group), count)


def _trouble_of(raw: dict[str, str] | None) -> Trouble | None:
    return None if raw is None else Trouble(**raw)


def _part_of(raw: dict[str, Any] | None) -> KeysPart | None:
    if raw is None:
        return None
    return KeysPart(**raw | {"counts": tuple(raw["counts"]), "checksums": tuple(raw["checksums"])})


def _rewritten_of(raw: dict[str, Any]) -> Rewritten:
    segments = [StagedSegment(**each) for each in raw["segments"]]
    return Rewritten(**raw | {"segments": segments, "trouble": _trouble_of(raw["trouble"])})
