"""Compaction beside the originals, in directories that nobody serves, and what came of it anywhere
(``pulsar compact-topic``, ``pulsar-admin topics compact`` and ``compaction-status``).

Looking takes no lock. Compacting takes the directories' locks as a broker does, and changes nothing but the
``.compacted`` folders: the originals, the checkpoints and the clean-shutdown marker stay as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from siltstone.base.clock import Clock, SystemClock
from siltstone.base.config import Config
from siltstone.base.errors import DirectoryRefusedError, SiltstoneError
from siltstone.commands.places import Place, Snapshot, refuse_unclean
from siltstone.compaction.ledger.compactor import TwoPhaseCompactor
from siltstone.compaction.ledger.engine import CompactionEngine, CompactionResult
from siltstone.log.directory import open_directories, refuse_network_file_system
from siltstone.log.ledger.manifest import LEDGER_PROPERTY, SUBSCRIPTION
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.names import TopicPartition
from siltstone.log.partition_files import refuse_unsafe_files
from siltstone.log.read_only import ReadOnlyLog
from siltstone.runtime.compaction_status import ERROR, RUNNING, CompactionStatus, of_topic, status_of
from siltstone.runtime.compactions import Attempt, Threshold, backlog_bytes, compact_log, compaction_threshold
from siltstone.runtime.topic_names import find_topic, persistent_name

# What lies beside a partition's originals, in the words that Pulsar shows it in.


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedFacts:
    """A compacted ledger: ``mark_delete_position`` is the last offset that it covers, ``size`` in bytes."""

    mark_delete_position: int
    ledger_id: int
    entries: int
    size: int

    def to_json(self) -> Mapping[str, object]:
        """``cursors`` and ``compactedLedger``, as in Pulsar's internal statistics of a topic."""
        cursor = {
            "markDeletePosition": self.mark_delete_position,
            "properties": {LEDGER_PROPERTY: self.ledger_id},
        }
        ledger = {"ledgerId": self.ledger_id, "entries": self.entries, "size": self.size}
        return {"cursors": {SUBSCRIPTION: cursor}, "compactedLedger": ledger}


def compacted_facts(partition: Path) -> CompactedFacts | None:
    """A partition's compacted ledger, None without one. Raises LedgerError, OSError."""
    ledger = LedgerStore(partition).current()
    if ledger is None:
        return None
    return CompactedFacts(
        mark_delete_position=ledger.horizon - 1,
        ledger_id=ledger.id,
        entries=ledger.entries,
        size=ledger.size,
    )


EngineFor = Callable[[int], CompactionEngine]
"""Makes an engine for logs of which so many bytes are to be compacted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCompaction:
    """A partition: its status and its ledger; ``backlog`` in bytes. ``failure``: why it cannot be looked at.

    ``result``: what a compaction has just done, None where there was none.
    """

    partition: int
    directory: str | None
    status: CompactionStatus
    compacted: CompactedFacts | None = None
    backlog: int | None = None
    result: CompactionResult | None = None
    failure: str | None = None

    def to_json(self) -> dict[str, object]:
        """Pulsar's names where it has one."""
        found: dict[str, object] = {
            "partition": self.partition,
            "directory": self.directory,
            **self.status.to_json(),
            "backlogSize": self.backlog,
            "cursors": {},
            "compactedLedger": None,
            **(self.compacted.to_json() if self.compacted else {}),
        }
        if self.failure:
            found["failure"] = self.failure
        return {**found, **_done(self.result)}


def _done(result: CompactionResult | None) -> Mapping[str, object]:
    if result is None:
        return {}
    removed = {
        name: getattr(result.removed, name) for name in ("superseded", "deleted", "keyless", "aborted")
    }
    counts = {
        "changed": result.changed,
        "readRecords": result.read_records,
        "written": result.written,
        "removed": removed,
        "replaced": result.hidden,
    }
    return {"compaction": counts}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCompaction:
    """A topic, or the one partition of it that was asked for. ``notes``: for people."""

    topic: str
    threshold: Threshold
    partitions: tuple[PartitionCompaction, ...]
    notes: tuple[str, ...] = ()

    @property
    def status(self) -> CompactionStatus:
        """Of all partitions together."""
        return of_topic([each.status for each in self.partitions])

    @property
    def is_running(self) -> bool:
        """Is one of the partitions being compacted?"""
        return self.status.status == RUNNING

    @property
    def has_trouble(self) -> bool:
        """Did something fail, or could it not be looked at?"""
        return any(each.failure or each.status.status == ERROR for each in self.partitions)

    def to_json(self) -> dict[str, object]:
        """``status`` and ``lastError`` as Pulsar's REST interface has them, and what is known beside."""
        return {
            "topic": self.topic,
            "persistentName": persistent_name(self.topic),
            "status": self.status.status,
            "lastError": self.status.last_error,
            "compactionThreshold": self.threshold.size,
            "compactionThresholdSource": self.threshold.source,
            "partitions": [each.to_json() for each in self.partitions],
        }


def compaction_of(place: Place, topic: str, *, to_the_end: bool | None = None) -> TopicCompaction:
    """What came of a topic's compactions, and what the next one would read.

    ``to_the_end``: logs without an entry for the high watermark have no other replica; None where they are
    only asked for, and not to be compacted. Raises UnknownTopicError, UsageError, SiltstoneError, OSError.
    """
    look = place.snapshot()
    wheres = _asked(look, topic)
    found = [_partition(look, where, to_the_end=to_the_end) for where in wheres]
    return _topic(look, wheres[0].topic, found)


def _asked(look: Snapshot, text: str) -> list[TopicPartition]:
    asked = find_topic(text, {name: look.topic(name).partitions for name in look.names()})
    numbers = look.topic(asked.topic).partitions if asked.partition is None else [asked.partition]
    return [TopicPartition(asked.topic, number) for number in numbers]


def _topic(look: Snapshot, name: str, partitions: list[PartitionCompaction]) -> TopicCompaction:
    facts = look.topic(name)
    return TopicCompaction(
        topic=name,
        threshold=compaction_threshold(name, look.config_of(facts), look.registry.namespaces),
        partitions=tuple(partitions),
        notes=(*look.notes, *look.notes_on([facts])),
    )


def _partition(look: Snapshot, where: TopicPartition, *, to_the_end: bool | None) -> PartitionCompaction:
    path = look.path_of(where)
    if path is None:
        failure = "is in none of these directories"
        return PartitionCompaction(
            partition=where.partition, directory=None, status=CompactionStatus(), failure=failure
        )
    status, compacted, backlog, damage = CompactionStatus(), None, None, look.damage_of(where)
    try:
        status = status_of(path)
        compacted = compacted_facts(path)
        horizon = None if compacted is None else compacted.mark_delete_position + 1
        log = (
            look.log(where) if to_the_end is None else look.committed_log(where, no_other_replica=to_the_end)
        )
        backlog = backlog_bytes(log.view, horizon)
    except (SiltstoneError, OSError) as error:
        damage = damage or str(error)
    return PartitionCompaction(
        partition=where.partition,
        directory=str(path.parent),
        status=status,
        compacted=compacted,
        backlog=backlog,
        failure=damage,
    )


# Doing it


def compact_topic(
    place: Place,
    topic: str,
    engine: EngineFor,
    *,
    reset: bool = False,
    to_the_end: bool = False,
    dry_run: bool = False,
    clock: Clock | None = None,
) -> TopicCompaction:
    """Compact a topic, or one partition of it, beside its originals; what is wrong with one partition is in
    its status, and the others are compacted.

    ``reset``: forget the ledger first, and compact what is left of the originals. ``dry_run``: only say how
    much would be read. Raises DirectoryLockedError, DirectoryRefusedError, UnknownTopicError, UsageError,
    CompactionInProgressError, EngineError, SiltstoneError, OSError.
    """
    before = compaction_of(place, topic, to_the_end=to_the_end)
    if dry_run:
        return before
    clock = clock or SystemClock()
    with _locked(place):
        look = place.snapshot()
        wheres = _asked(look, topic)
        made = engine(sum(each.backlog or 0 for each in before.partitions))
        compactor = TwoPhaseCompactor(made, clock=clock)
        config = look.config_of(look.topic(wheres[0].topic))
        found = []
        for where in wheres:
            result = _compacted(look, where, compactor, config, clock, reset=reset, to_the_end=to_the_end)
            found.append(replace(_partition(look, where, to_the_end=to_the_end), result=result))
        return _topic(look, wheres[0].topic, found)


@contextlib.contextmanager
def _locked(place: Place) -> Iterator[None]:
    """The directories' locks, held; each once. Raises DirectoryLockedError, DirectoryRefusedError."""
    with contextlib.ExitStack() as stack:
        for directory in open_directories(place.directories):
            refuse_unclean(stack.enter_context(directory))
            refuse_network_file_system(directory)
        yield


def _compacted(
    look: Snapshot,
    where: TopicPartition,
    compactor: TwoPhaseCompactor,
    config: Config,
    clock: Clock,
    *,
    reset: bool,
    to_the_end: bool,
) -> CompactionResult | None:
    """Compact one partition; None when that failed, and its status says why."""
    if look.path_of(where) is None:
        return None
    log = look.log(where)
    attempt = Attempt(log, clock.now_ms())
    outcome: CompactionResult | str = "interrupted"
    try:
        log = look.committed_log(where, no_other_replica=to_the_end)
        refuse_unsafe_files(log.directory)
        _refuse_damage(log)
        if reset:
            _forget(log)
        outcome = compact_log(compactor, log, config)
        return outcome
    except (SiltstoneError, OSError) as error:
        outcome = str(error)
        return None
    finally:
        attempt.ended(clock.now_ms(), outcome)


def _refuse_damage(log: ReadOnlyLog) -> None:
    if log.not_shown:
        raise DirectoryRefusedError(
            f"{log.where}: not all of it can be read: {'; '.join(log.not_shown)}; run siltstone recover "
            "first: what it cuts off must be in no ledger"
        )


def _forget(log: ReadOnlyLog) -> None:
    store = LedgerStore(log.directory)
    store.forget()
    store.collect()
