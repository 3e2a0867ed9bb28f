"""Collects the history of a topic: its cleanings, its last side-by-side compactions, and the changes that
users have made to it, the newest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from siltstone.commands import console
from siltstone.commands.explain_page import counted
from siltstone.commands.explaining import removal_words
from siltstone.commands.served import Served
from siltstone.compaction.report import CLEANED, Cleaning
from siltstone.log.names import parse_partition
from siltstone.runtime.compactions import SUCCESS, read_status

CLEANING, SIDE_BY_SIDE = "cleaning", "side-by-side compaction"
CHANGES_READ = 1000
"""How many of the server's newest changes are searched for those of the topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEvent:
    """A cleaning of one partition, its last side-by-side compaction, or a change. ``what``: ``CLEANING``,
    ``SIDE_BY_SIDE``, or the change's action; ``details``: what was removed, why nothing was, or before and
    after of the change. ``bytes_before``, ``bytes_after``: of the log, before and after a cleaning; of a
    compaction, what it has read, and its ledger. ``removed``: records that a cleaning has removed."""

    at_ms: int
    what: str
    partition: int | None
    status: str
    details: str
    bytes_before: int | None = None
    bytes_after: int | None = None
    seconds: float | None = None
    removed: int = 0

    @property
    def saved_bytes(self) -> int | None:
        """Bytes that a cleaning has freed; a side-by-side compaction frees none."""
        if self.what != CLEANING or self.bytes_before is None or self.bytes_after is None:
            return None
        return self.bytes_before - self.bytes_after


def history_of(served: Served, topic: str) -> list[TopicEvent]:
    """The events of a topic, as far back as the files reach. Raises OSError."""
    events = [
        _of_cleaning(cleaning) for cleaning in console.cleanings(served) if cleaning.result.topic == topic
    ]
    events += [*_compactions(served, topic), *_changes(served, topic)]
    return sorted(events, key=lambda event: -event.at_ms)


def _of_cleaning(cleaning: Cleaning) -> TopicEvent:
    result = cleaning.result
    is_cleaned = result.status == CLEANED
    words = removal_words(result.discarded.counts) or "nothing had to go"
    return TopicEvent(
        at_ms=cleaning.began_ms,
        what=CLEANING,
        partition=result.partition,
        status=result.status,
        details=f"removed {words}" if is_cleaned else result.reason,
        bytes_before=result.bytes_before,
        bytes_after=result.bytes_after,
        seconds=result.seconds,
        removed=result.discarded.total(),
    )


def _compactions(served: Served, topic: str) -> Iterator[TopicEvent]:
    """The last side-by-side compaction of each partition: of earlier ones only sums are kept."""
    for row in served.catalogue.partitions_of(topic):
        status = read_status(row.watched.directory)
        if status.began_ms is None:
            continue
        tries = counted(status.succeeded, "success", "successes") + f", {counted(status.failed, 'failure')}"
        ledger = f"the ledger has {counted(status.entries, 'record')}"
        removed = f"{counted(status.removed, 'record')} removed so far"
        is_success = status.status == SUCCESS
        yield TopicEvent(
            at_ms=status.began_ms,
            what=SIDE_BY_SIDE,
            partition=row.topic_partition.partition,
            status=status.status.lower(),
            details=f"{ledger}; {removed} ({tries})" if is_success else status.last_error or tries,
            bytes_before=status.read_bytes if is_success else None,
            bytes_after=status.size if is_success else None,
            seconds=status.seconds if is_success else None,
        )


def _changes(served: Served, topic: str) -> Iterator[TopicEvent]:
    """The changes of the topic, or of one of its partitions."""
    for change in console.changes(served, CHANGES_READ):
        topic_partition = parse_partition(change.target)
        if change.target != topic and (topic_partition is None or topic_partition.topic != topic):
            continue
        before, after = change.before, change.after
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        yield TopicEvent(
            at_ms=change.at_ms,
            what=change.action,
            partition=None if topic_partition is None else topic_partition.partition,
            status=change.outcome or "interrupted, or still running",
            details=", ".join(f"{name}: {_text(before, name)} → {_text(after, name)}" for name in names)
            + f" (by {change.actor.user})",
        )


def _text(values: Mapping[str, object], name: str) -> str:
    return str(values.get(name, "not set"))
