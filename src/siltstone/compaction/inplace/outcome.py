"""A log on its way through the cleaner: what is checked of each wave, and what its result says in the end."""

from __future__ import annotations

from dataclasses import dataclass, field

from siltstone.base.errors import CheckFailedError, CorruptFileError
from siltstone.compaction import report
from siltstone.compaction.engine import Gathered, LogDone
from siltstone.compaction.extraction import Extracted
from siltstone.compaction.inplace.facts import Planned
from siltstone.compaction.inplace.plan import kafka_map_keys, kafka_passes
from siltstone.compaction.inplace.resume import Journal
from siltstone.compaction.staging import Rewritten
from siltstone.log.segments import count_records


@dataclass(slots=True, kw_only=True)
class Progressing:
    """A planned log on its way: the groups that were taken over, and its journal where it goes in waves."""

    planned: Planned
    began: float = 0.0
    groups: list[Rewritten] = field(default_factory=list)
    journal: Journal | None = None


def begin_journal(planned: Planned, gathered: Gathered) -> Journal:
    """The journal of a log whose winners were gathered.

    Raises CheckFailedError unless each group's winners that were merged are in its one file.
    """
    totals, work = gathered.totals, planned.work
    by_group = {file.group: file for file in gathered.files}
    groups = [group.index for group in work.groups]
    if sorted(file.group for file in gathered.files) != groups:
        raise CheckFailedError(f"{work.name}: not every group's winners were gathered once")
    for group in groups:
        _check_winners(work.name, group, totals.winners.get(group, 0), by_group[group].count)
    return Journal(
        work=work,
        rest=planned.uncleaned,
        basis=planned.basis,
        dirty_ratio=planned.result.dirty_ratio or 0.0,
        records=totals.found.records,
        keyless=totals.found.keyless,
        dirty_keys=totals.dirty_keys,
        winners=tuple(by_group[group] for group in groups),
    )


def wave_done(journal: Journal, groups: list[Rewritten]) -> LogDone:
    """A wave's groups beside the totals of the whole log, which are the journal's."""
    return LogDone(
        name=journal.work.name,
        found=Extracted(records=journal.records, keyless=journal.keyless),
        groups=groups,
        winners={file.group: file.count for file in journal.winners},
        dirty_keys=journal.dirty_keys,
    )


def check_counts(progressing: Progressing, done: LogDone, *, last: bool) -> None:
    """The winners that were merged are the winners that were met, group by group; so are the records.

    Raises CheckFailedError.
    """
    name = progressing.planned.work.name
    for group in done.groups:
        _check_winners(name, group.group, done.winners.get(group.group, 0), group.winners)
    groups = [*progressing.groups, *done.groups]
    if last and len(groups) != len(progressing.planned.work.groups):
        raise CheckFailedError(
            f"{name}: {len(groups)} groups came back, not {len(progressing.planned.work.groups)}"
        )
    if last and sum(group.records for group in groups) != done.found.records:
        raise CheckFailedError(
            f"{name}: the groups' records are not the {done.found.records} that were extracted"
        )


def _check_winners(name: str, group: int, merged: int, arrived: int) -> None:
    if merged != arrived:
        raise CheckFailedError(
            f"{name}: {merged} winners of group {group} were merged, "
            f"but {arrived} arrived; nothing of it was swapped"
        )


def count_all(planned: Planned, done: LogDone) -> None:
    """Records of the whole log before: those extracted, and those above the cleaned range."""
    try:
        rest = [count_records(segment) for segment in planned.uncleaned]
    except CorruptFileError:
        rest = [None]
    if None not in rest:
        planned.result.records_before = done.found.records + sum(count for count in rest if count is not None)


def fill_counts(progressing: Progressing) -> None:
    """Sizes after the groups that were taken over, and the records that went with them; all or some of the
    log's groups, whatever came of the rest."""
    result, work = progressing.planned.result, progressing.planned.work
    for group in progressing.groups:
        result.removed.add(group.removed)
    if result.records_before is not None:
        result.records_after = result.records_before - result.removed.total()
    result.bytes_after, result.segments_after = result.bytes_before, result.segments_before
    for group in progressing.groups:
        members = work.segments[work.groups[group.group].first : work.groups[group.group].last]
        result.bytes_after += group.size - sum(segment.size for segment in members)
        result.segments_after -= len(members) - 1


def fill(progressing: Progressing, done: LogDone) -> None:
    """The result of a log that was cleaned, but for the seconds that it took."""
    result, config = progressing.planned.result, progressing.planned.state.config
    assert config is not None
    fill_counts(progressing)
    result.distinct_dirty_keys = done.dirty_keys
    map_keys = kafka_map_keys(
        config.integer("log.cleaner.dedupe.buffer.size"), config.number("log.cleaner.io.buffer.load.factor")
    )
    result.kafka_passes = kafka_passes(done.dirty_keys, map_keys)
    result.status, result.reason = report.CLEANED, ""
