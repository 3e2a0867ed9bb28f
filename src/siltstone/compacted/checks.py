"""What must add up before anything of a compaction is believed: nothing was lost on its way between tasks."""

from __future__ import annotations

from siltstone.compacted.engine import Compacted, Folded
from siltstone.compacted.keys import PARTITIONS
from siltstone.compacted.result import Removed
from siltstone.compacted.work import CompactionWork
from siltstone.errors import CheckFailedError, CompactionFailedError
from siltstone.log.transactions import carried_by_group


def refuse_trouble(name: str, done: Compacted | Folded) -> None:
    """Raises CompactionFailedError with the first trouble that a piece reported."""
    trouble = done.first_trouble()
    if trouble is not None:
        raise CompactionFailedError(f"{name}: {trouble.reason}")


def removed_of(work: CompactionWork, done: Compacted) -> Removed:
    """Why the tail's records that were not written went."""
    keyless = 0 if work.retain_null_key else done.found.keyless
    keyed = sum(done.winners.values()) - (done.found.keyless - keyless)
    return Removed(
        superseded=done.found.keyed - keyed - done.deleted,
        deleted=done.deleted,
        keyless=keyless,
        aborted=done.found.aborted,
    )


def refuse_doubts(work: CompactionWork, done: Compacted) -> None:
    """Read = written + removed, entries sent = entries arrived, winners merged = winners written.

    Raises CheckFailedError; CompactionFailedError for trouble that was reported; CorruptFileError for an
    aborted transaction that no index names.
    """
    refuse_trouble(work.name, done)
    carried_by_group(done.found.summaries, [work.first], work.name)
    found, removed = done.found, removed_of(work, done)
    written = {group.group: group.kept for group in done.groups}
    kept = sum(done.winners.values())
    keyless = found.keyless if work.retain_null_key else 0
    entries = kept - keyless + (done.deleted if work.by_time else 0)
    held = (
        (found.records, found.keyed + found.keyless + found.aborted, "records by kind"),
        (done.arrived, found.entries, "keys on their way"),
        (found.records, kept + removed.total, "records that stay and go"),
        (written, done.winners, "winners written"),
        (len(done.groups), len(written), "groups written"),
        (sum(part.entries for part in done.keys), entries, "keys of the new generation"),
        (sum(len(part.counts) for part in done.keys), PARTITIONS, "partitions of its key index"),
    )
    for one, other, what in held:
        if one != other:
            raise CheckFailedError(f"{work.name}: {what} do not add up: {one}, {other}; nothing has changed")
    if removed.superseded < done.beaten:
        raise CheckFailedError(f"{work.name}: more keys were beaten than records superseded")


def refuse_doubtful_fold(name: str, done: Folded, live: int, *, keys: int | None) -> None:
    """All ``live`` records of the folded generations are written; ``keys``: how many entries there must be,
    None where deleted keys have some too. Raises CheckFailedError, CompactionFailedError."""
    refuse_trouble(name, done)
    parts = [each.keys for each in done.keys if each.keys is not None]
    entries = sum(part.entries for part in parts)
    held = (
        (sum(group.kept for group in done.groups), live, "records of the folded generations"),
        (sum(len(part.counts) for part in parts), PARTITIONS, "partitions of their key index"),
        (entries, entries if keys is None else keys, "keys of the folded generations"),
    )
    for one, other, what in held:
        if one != other:
            raise CheckFailedError(f"{name}: {what} do not add up: {one}, {other}; nothing has changed")
