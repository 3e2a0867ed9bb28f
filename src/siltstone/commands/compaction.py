"""Side-by-side compaction of directories that no broker serves, and the status of any (``pulsar
compact-topic``, ``pulsar-admin topics compact`` and ``compaction-status``).

The status takes no lock. Compacting takes the directories' locks, as a broker does, and changes only the
``.compacted`` folders, not segments, checkpoints or the clean-shutdown marker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from siltstone.base.clock import Clock, SystemClock
from siltstone.base.config import Config
from siltstone.base.errors import DirectoryRefusedError, SiltstoneError
from siltstone.commands.places import Place, Snapshot, refuse_unclean
from siltstone.compaction.ledger.compactor import CompactionEngine, CompactionResult, TwoPhaseCompactor
from siltstone.log.directory import open_directories, refuse_network_file_system, refuse_unsafe_files
from siltstone.log.ledger.manifest import LEDGER_PROPERTY, SUBSCRIPTION, Ledger
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.names import TopicPartition
from siltstone.runtime.compactions import (
    Attempt,
    CompactionStatus,
    Threshold,
    backlog_bytes,
    compact_log,
    compaction_threshold,
    read_status,
    topic_status,
)
from siltstone.runtime.topic_names import find_partitions, persistent_name


def compacted_json(ledger: Ledger | None) -> dict[str, object]:
    """``cursors`` and ``compactedLedger`` of a partition, as in Pulsar's internal statistics of a topic;
    empty without a ledger."""
    if ledger is None:
        return {}
    cursor = {"markDeletePosition": ledger.horizon - 1, "properties": {LEDGER_PROPERTY: ledger.id}}
    facts = {"ledgerId": ledger.id, "entries": ledger.entries, "size": ledger.size}
    return {"cursors": {SUBSCRIPTION: cursor}, "compactedLedger": facts}


EngineFor = Callable[[int], CompactionEngine]
"""Makes an engine for a compaction of so many bytes."""


@dataclass(slots=True, kw_only=True)
class PartitionCompaction:
    """A partition's status and ledger; ``backlog`` in bytes. ``failure``: why it cannot be read.

    ``result``: of the compaction that was just run, None without one.
    """

    partition: int
    directory: str | None = None
    status: CompactionStatus = field(default_factory=CompactionStatus)
    compacted: Ledger | None = None
    backlog: int | None = None
    result: CompactionResult | None = None
    failure: str | None = None

    def to_json(self) -> dict[str, object]:
        """The partition as JSON, with Pulsar's names where Pulsar has one."""
        document: dict[str, object] = {
            "partition": self.partition,
            "directory": self.directory,
            **msgspec.to_builtins(self.status),
            "backlogSize": self.backlog,
            "cursors": {},
            "compactedLedger": None,
            **compacted_json(self.compacted),
        }
        if self.failure:
            document["failure"] = self.failure
        if self.result is not None:
            document["compaction"] = _counts(self.result)
        return document


def _counts(result: CompactionResult) -> dict[str, object]:
    removed = {
        "superseded": result.removed.superseded,
        "deleted": result.removed.tombstones,
        "keyless": result.removed.keyless,
        "aborted": result.removed.aborted,
    }
    return {
        "changed": result.changed,
        "readRecords": result.read_records,
        "written": result.written,
        "removed": removed,
        "replaced": result.superseded,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCompaction:
    """A topic, or the one partition of it that was asked for. ``notes``: for people."""

    topic: str
    threshold: Threshold
    partitions: tuple[PartitionCompaction, ...]
    notes: tuple[str, ...] = ()

    @property
    def status(self) -> CompactionStatus:
        """The status of all partitions together."""
        return topic_status([partition.status for partition in self.partitions])

    def to_json(self) -> dict[str, object]:
        """The topic as JSON: ``status`` and ``lastError`` as in Pulsar's REST interface, and more."""
        return {
            "topic": self.topic,
            "persistentName": persistent_name(self.topic),
            "status": self.status.status,
            "lastError": self.status.last_error,
            "compactionThreshold": self.threshold.size,
            "compactionThresholdSource": self.threshold.source,
            "partitions": [partition.to_json() for partition in self.partitions],
        }


def compaction_of(place: Place, topic: str, *, to_the_end: bool | None = None) -> TopicCompaction:
    """The status of a topic's compactions, and its backlog.

    ``to_the_end``: logs without an entry for the high watermark have no other replica; None where no
    compaction is to follow. Raises UnknownTopicError, UsageError, SiltstoneError, OSError.
    """
    snapshot = place.snapshot()
    return _topic(snapshot, _asked(snapshot, topic), to_the_end=to_the_end)


def _asked(snapshot: Snapshot, text: str) -> list[TopicPartition]:
    existing = (
        TopicPartition(name, number)
        for name in snapshot.names()
        for number in snapshot.topic(name).partitions
    )
    return find_partitions(text, existing)


def _topic(
    snapshot: Snapshot,
    wheres: Sequence[TopicPartition],
    *,
    to_the_end: bool | None,
    results: Mapping[TopicPartition, CompactionResult | None] = MappingProxyType({}),
) -> TopicCompaction:
    facts = snapshot.topic(wheres[0].topic)
    return TopicCompaction(
        topic=facts.name,
        threshold=compaction_threshold(facts.name, snapshot.config_of(facts), snapshot.registry.namespaces),
        partitions=tuple(_partition(snapshot, where, results.get(where), to_the_end) for where in wheres),
        notes=(*snapshot.notes, *snapshot.notes_on([facts])),
    )


def _partition(
    snapshot: Snapshot, where: TopicPartition, result: CompactionResult | None, to_the_end: bool | None
) -> PartitionCompaction:
    partition = PartitionCompaction(partition=where.partition, result=result)
    path = snapshot.path_of(where)
    if path is None:
        partition.failure = "is in none of these directories"
        return partition
    partition.directory, partition.failure = str(path.parent), snapshot.damage_of(where)
    try:
        partition.status = read_status(path)
        partition.compacted = ledger = LedgerStore(path).current()
        log = (
            snapshot.log(where)
            if to_the_end is None
            else snapshot.committed_log(where, no_other_replica=to_the_end)
        )
        partition.backlog = backlog_bytes(log.view, None if ledger is None else ledger.horizon)
    except (SiltstoneError, OSError) as error:
        partition.failure = partition.failure or str(error)
    return partition


# Compacting


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
    """Compact a topic, or one partition of it, side by side. A partition that fails has the failure in its
    status, and the others are compacted.

    ``reset``: forget the ledger first, and compact what is left of the log. ``dry_run``: only the status and
    backlog. Raises DirectoryLockedError, DirectoryRefusedError, UnknownTopicError, UsageError,
    CompactionInProgressError, EngineError, SiltstoneError, OSError.
    """
    before = compaction_of(place, topic, to_the_end=to_the_end)
    if dry_run:
        return before
    clock = clock or SystemClock()
    with _locked(place):
        snapshot = place.snapshot()
        wheres = _asked(snapshot, topic)
        made = engine(sum(partition.backlog or 0 for partition in before.partitions))
        compactor = TwoPhaseCompactor(made, clock=clock)
        config = snapshot.config_of(snapshot.topic(wheres[0].topic))
        how = {"reset": reset, "to_the_end": to_the_end}
        results = {where: _compacted(snapshot, where, compactor, config, clock, **how) for where in wheres}
        return _topic(snapshot, wheres, to_the_end=to_the_end, results=results)


@contextlib.contextmanager
def _locked(place: Place) -> Iterator[None]:
    """Hold the directories' locks. Raises DirectoryLockedError, DirectoryRefusedError."""
    with contextlib.ExitStack() as stack:
        for directory in open_directories(place.directories):
            refuse_unclean(stack.enter_context(directory))
            refuse_network_file_system(directory)
        yield


def _compacted(
    snapshot: Snapshot,
    where: TopicPartition,
    compactor: TwoPhaseCompactor,
    config: Config,
    clock: Clock,
    *,
    reset: bool,
    to_the_end: bool,
) -> CompactionResult | None:
    """Compact one partition; None when that failed, with the reason in its status."""
    if snapshot.path_of(where) is None:
        return None
    log = snapshot.log(where)
    attempt = Attempt(log, clock.now_ms())
    outcome: CompactionResult | str = "interrupted"
    try:
        log = snapshot.committed_log(where, no_other_replica=to_the_end)
        refuse_unsafe_files(log.directory)
        if log.not_shown:
            raise DirectoryRefusedError(
                f"{log.where}: not all of it can be read: {'; '.join(log.not_shown)}; run siltstone recover "
                "first: a ledger must not have records that a recovery cuts off"
            )
        if reset:
            store = LedgerStore(log.directory)
            store.forget()
            store.collect()
        outcome = compact_log(compactor, log, config)
        return outcome
    except (SiltstoneError, OSError) as error:
        outcome = str(error)
        return None
    finally:
        attempt.ended(clock.now_ms(), outcome)
