"""The broadcast join on Spark: clean records' keys are looked up in an offset map of the dirty section.

::

    in a barrier     dirty segments ─► entries, to every task ─► a map each ─► groups rewritten ─► reports
    with shuffles    dirty segments ─► entries ─► driver: a map, broadcast ─► groups rewritten ─► reports

In a barrier stage each worker begins with groups of its own, and goes on with those that are not claimed. The
pieces are ``compaction.broadcast``'s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession

from siltstone.compaction import broadcast
from siltstone.compaction.engine import LogDone, Progress, looked_up
from siltstone.compaction.keys import EntryBlob
from siltstone.compaction.work import Extracted, InputSplit, LogWork
from siltstone.spark import rows
from siltstone.spark.exchange import Stage, entries_of, entries_row
from siltstone.spark.jobs import Job, attempt_name, collect, run_in_barrier, stage
from siltstone.spark.rows import ALL, Row, report_of, report_row, rows_of
from siltstone.spark.tasks import Batches, runs_of, task_numbers, told_as_engine_error

Runs = Sequence[Sequence[int]]
Claim = Callable[[int], bool]
"""Is that group for this worker?"""


def dirty_task(
    work: LogWork, parts: Sequence[Sequence[InputSplit]], lookups: int, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Each row names a run of splits: their dirty entries, for everybody. The first one names as well the
    ``lookups`` runs of groups that are looked up next."""
    for number in task_numbers(batches):
        found = Extracted()
        for blob in broadcast.dirty_entries(work, parts[number], found):
            yield entries_row(blob, ALL).batch()
        found.summaries = []
        yield report_row(rows.FOUND, found, ALL).batch()
        if number == 0:
            yield from (Row(target=run, kind=rows.HEADS).batch() for run in range(lookups))


def _dirty(said: Sequence[Row]) -> tuple[Extracted, list[EntryBlob]]:
    """What the tasks of dirty segments say: what was in them, and the entries."""
    found = Extracted()
    for row in said:
        if row.kind == rows.FOUND:
            found.add(report_of(row, Extracted))
    return found, [entries_of(row, 1) for row in said if row.kind == rows.DIRTY]


def shared_lookup_task(
    work: LogWork, shared: Broadcast[broadcast.OffsetMap], parts: Runs, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Each row names a run of groups: looked up in the map, and rewritten."""
    for number in task_numbers(batches):
        yield from _looked_up(work, shared.value, parts[number])


def lookup_task(work: LogWork, parts: Runs, claim: Claim, batches: Batches) -> Iterator[pa.RecordBatch]:
    """The same by a map of the dirty entries that arrive: its run, then from the end those groups of others
    that nobody has claimed. Nothing is looked up where reading them failed, or met transactions; the first
    run's task says so."""
    arrived = [row for batch in batches for row in rows_of(batch)]
    (mine,) = (row.target for row in arrived if row.kind == rows.HEADS)
    found, entries = _dirty(arrived)
    if found.failure is not None or found.transactional:
        yield report_row(rows.FOUND, found).batch()
        return
    offset_map = broadcast.OffsetMap.of(entries)
    yield report_row(rows.MERGED, {"dirty_keys": len(offset_map)}).batch()
    others = [group for run in parts if run is not parts[mine] for group in run]
    yield from _looked_up(work, offset_map, filter(claim, [*parts[mine], *reversed(others)]))


def _looked_up(
    work: LogWork, offset_map: broadcast.OffsetMap, groups: Iterable[int]
) -> Iterator[pa.RecordBatch]:
    ready = broadcast.Lookup(work, offset_map)
    for group in groups:
        done = broadcast.clean_group(work, work.groups[group], ready, attempt_name())
        yield report_row(rows.LOOKED_UP, done, group).batch()


def clean_by_lookup(
    session: SparkSession, work: LogWork, workers: int, progress: Progress | None, *, barrier: bool
) -> LogDone | None:
    """One log over so many workers; None for a log that has transactions. Raises EngineError."""
    sizes = [segment.size for segment in work.segments]
    dirty = broadcast.dirty_splits(work, workers) or [[]]
    parts = _runs([sum(sizes[group.first : group.last]) for group in work.groups], workers)
    if barrier:
        stages = (
            Stage(function=dirty_task, given=(work, dirty, len(parts)), tasks=len(dirty)),
            Stage(function=lookup_task, given=(work, parts), tasks=len(parts), claims=True),
        )
        reports = run_in_barrier(session, Job(stages=stages, title=work.name, staging=work.staging), progress)
        if reports is not None:
            return _of_lookups(work, reports)
    return _apart(session, work, dirty, parts, progress)


def _runs(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """Runs of neighbours of about the same size, one for each worker."""
    return runs_of(sizes, min(len(sizes), workers))


def _apart(
    session: SparkSession,
    work: LogWork,
    dirty: Sequence[Sequence[InputSplit]],
    parts: Runs,
    progress: Progress | None,
) -> LogDone | None:
    """In two jobs: the map goes by way of the driver."""

    def collecting() -> DataFrame:
        return stage(session.range(0, len(dirty), 1, len(dirty)), dirty_task, work, dirty, 0)

    found, entries = _dirty(collect(session, collecting, work.name, progress))
    if found.failure is not None:
        return LogDone(name=work.name, found=found)
    if found.transactional:
        return None
    offset_map = broadcast.OffsetMap.of(entries)
    with told_as_engine_error(work.name):
        shared = session.sparkContext.broadcast(offset_map)

    def looking_up() -> DataFrame:
        return stage(session.range(0, len(parts), 1, len(parts)), shared_lookup_task, work, shared, parts)

    try:
        reports = collect(session, looking_up, work.name, progress)
    finally:
        with contextlib.suppress(Exception):  # it goes with Spark, too
            shared.destroy()
    return looked_up(work, len(offset_map), (report_of(row, broadcast.GroupDone) for row in reports))


def _of_lookups(work: LogWork, reports: Sequence[Row]) -> LogDone | None:
    """What the tasks of a second pass say; None where there are transactions."""
    stopped = next((report_of(row, Extracted) for row in reports if row.kind == rows.FOUND), None)
    if stopped is not None:
        return LogDone(name=work.name, found=stopped) if stopped.failure is not None else None
    keys = max(report_of(row, dict[str, int])["dirty_keys"] for row in reports if row.kind == rows.MERGED)
    groups = (report_of(row, broadcast.GroupDone) for row in reports if row.kind == rows.LOOKED_UP)
    return looked_up(work, keys, groups)
