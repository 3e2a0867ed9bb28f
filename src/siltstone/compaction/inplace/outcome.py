"""A log on its way through the cleaner: what is checked of each wave, and what its result says in the end."""

from __future__ import annotations

from dataclasses import dataclass, field

from siltstone.base.errors import CheckFailedError, CorruptFileError
from siltstone.compaction import report
from siltstone.compaction.engine import Gathered, LogDone, RetainedFile
from siltstone.compaction.inplace.facts import Planned
from siltstone.compaction.inplace.plan import kafka_map_keys, kafka_passes
from siltstone.compaction.staging import Rewritten
from siltstone.compaction.work import LogWork
from siltstone.log.segments import count_records


@dataclass(slots=True, kw_only=True)
class InProgress:
    """A log that is being cleaned, and the groups that were taken over so far."""

    planned: Planned
    began: float = 0.0
    groups: list[Rewritten] = field(default_factory=list)


def check_gathered(work: LogWork, gathered: Gathered) -> list[RetainedFile]:
    """The files of retained offsets, one a group, in order.

    Raises CheckFailedError unless each group's retained offsets that were merged are in its one file.
    """
    found = sorted(gathered.files, key=lambda file: file.group)
    if [file.group for file in found] != [group.index for group in work.groups]:
        raise CheckFailedError(f"{work.name}: not every group's retained offsets were gathered once")
    for file in found:
        _check_winners(work.name, file.group, gathered.totals.retained.get(file.group, 0), file.count)
    return found


def check_counts(cleaning: InProgress, done: LogDone, *, last: bool) -> None:
    """Group by group, as many retained offsets were met as were merged; records add up, too.

    Raises CheckFailedError.
    """
    work = cleaning.planned.work
    for group in done.groups:
        _check_winners(work.name, group.group, done.retained.get(group.group, 0), group.retained)
    groups = [*cleaning.groups, *done.groups]
    if last and len(groups) != len(work.groups):
        raise CheckFailedError(f"{work.name}: {len(groups)} groups came back, not {len(work.groups)}")
    if last and sum(group.records for group in groups) != done.found.records:
        raise CheckFailedError(
            f"{work.name}: the groups' records are not the {done.found.records} that were extracted"
        )


def _check_winners(name: str, group: int, merged: int, arrived: int) -> None:
    if merged != arrived:
        raise CheckFailedError(
            f"{name}: {merged} retained offsets of group {group} were merged, "
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


def changes_something(work: LogWork, group: Rewritten) -> bool:
    """Is the group's new segment less than its sources: in records, in bytes or in segments?

    One that is only a second name of its source, or written as it was, is not; nor is one that was only
    stamped. So a log that is cleaned again and again has ever less that changes.
    """
    members = work.segments[work.groups[group.group].first : work.groups[group.group].last]
    return len(members) > 1 or group.records != group.kept or group.size < members[0].size


def fill_counts(cleaning: InProgress) -> None:
    """Sizes after the groups that were taken over, and the records that went with them; all or some of the
    log's groups, whatever came of the rest."""
    result, work = cleaning.planned.result, cleaning.planned.work
    for group in cleaning.groups:
        result.removed.add(group.removed)
    if result.records_before is not None:
        result.records_after = result.records_before - result.removed.total()
    result.bytes_after, result.segments_after = result.bytes_before, result.segments_before
    for group in cleaning.groups:
        members = work.segments[work.groups[group.group].first : work.groups[group.group].last]
        result.bytes_after += group.size - sum(segment.size for segment in members)
        result.segments_after -= len(members) - 1


def fill(cleaning: InProgress, done: LogDone) -> None:
    """The result of a log that was cleaned, but for the seconds that it took."""
    result, config = cleaning.planned.result, cleaning.planned.state.config
    assert config is not None
    fill_counts(cleaning)
    result.distinct_dirty_keys = done.dirty_keys
    map_keys = kafka_map_keys(
        config.integer("log.cleaner.dedupe.buffer.size"), config.number("log.cleaner.io.buffer.load.factor")
    )
    result.kafka_passes = kafka_passes(done.dirty_keys, map_keys)
    result.status, result.reason = report.CLEANED, ""
