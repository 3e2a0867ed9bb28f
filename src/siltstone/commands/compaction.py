"""Compacts topics side by side, and reads the status of compactions (``pulsar compact-topic``, ``pulsar-admin
topics compact`` and ``compaction-status``).

The status takes no lock. Compacting takes the directories' locks, as a broker does, and changes only the
``.compacted`` folders, not segments, checkpoints or the clean-shutdown marker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from siltstone.base.clock import SystemClock
from siltstone.base.errors import DirectoryRefusedError, SiltstoneError
from siltstone.commands.directories import NOT_HERE, BrokerDirectories, Snapshot, locked_directories
from siltstone.compaction.ledger.compactor import CompactionEngine, CompactionResult, TwoPhaseCompactor
from siltstone.log.directory import refuse_unsafe_files
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
    statistics = {"ledgerId": ledger.id, "entries": ledger.entries, "size": ledger.size}
    return {"cursors": {SUBSCRIPTION: cursor}, "compactedLedger": statistics}


EngineFor = Callable[[int], CompactionEngine]
"""Returns an engine for a compaction that reads so many bytes."""


@dataclass(slots=True, kw_only=True)
class PartitionCompaction:
    """A partition's status and ledger; ``backlog`` in bytes. ``failure``: why it cannot be read, or only in
    part.

    ``result``: of the compaction that this command ran, None without one.
    """

    partition: int
    directory: str | None = None
    status: CompactionStatus = field(default_factory=CompactionStatus)
    compacted: Ledger | None = None
    backlog: int | None = None
    result: CompactionResult | None = None
    failure: str | None = None

    def to_json(self) -> dict[str, object]:
        """The partition as JSON, by Pulsar's names if Pulsar has them."""
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
    """The counts of a compaction as JSON. ``deleted``: tombstones; ``replaced``: records of older runs that
    new records supersede."""
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
        "replaced": result.replaced_entries,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCompaction:
    """A topic, or the requested partition of it. ``notes``: for display."""

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


def compaction_of(
    directories: BrokerDirectories, topic: str, *, no_other_replica: bool | None = None
) -> TopicCompaction:
    """The status of a topic's compactions, and its backlog.

    ``no_other_replica``: logs without an entry for the high watermark have no other replica; None if only the
    status is requested. Raises UnknownTopicError, UsageError, SiltstoneError, OSError.
    """
    snapshot = directories.snapshot()
    return _topic(
        snapshot, _requested_partitions(snapshot, topic), no_other_replica=no_other_replica, results={}
    )


def _requested_partitions(snapshot: Snapshot, text: str) -> list[TopicPartition]:
    """The partitions that ``text`` names: a topic, or one partition of it, also in Pulsar's form. Raises
    UnknownTopicError, UsageError."""
    partitions = (
        TopicPartition(name, number)
        for name in snapshot.names()
        for number in snapshot.topic(name).partitions
    )
    return find_partitions(text, partitions)


def _topic(
    snapshot: Snapshot,
    topic_partitions: Sequence[TopicPartition],
    *,
    no_other_replica: bool | None,
    results: Mapping[TopicPartition, CompactionResult | None],
) -> TopicCompaction:
    """The topic as it is now. ``results``: of the compactions that were just made, by partition."""
    topic = snapshot.topic(topic_partitions[0].topic)
    return TopicCompaction(
        topic=topic.name,
        threshold=compaction_threshold(topic.name, snapshot.config_of(topic), snapshot.registry.namespaces),
        partitions=tuple(
            _partition(snapshot, topic_partition, results.get(topic_partition), no_other_replica)
            for topic_partition in topic_partitions
        ),
        notes=(*snapshot.notes, *snapshot.notes_on([topic])),
    )


def _partition(
    snapshot: Snapshot,
    topic_partition: TopicPartition,
    result: CompactionResult | None,
    no_other_replica: bool | None,
) -> PartitionCompaction:
    partition = PartitionCompaction(partition=topic_partition.partition, result=result)
    path = snapshot.partitions.get(topic_partition)
    if path is None:
        partition.failure = NOT_HERE
        return partition
    partition.directory = str(path.parent)
    try:
        partition.status = read_status(path)
        partition.failure = snapshot.damage_of(topic_partition)
        partition.compacted = ledger = LedgerStore(path).current()
        if no_other_replica is None:
            log = snapshot.log(topic_partition)
        else:
            log = snapshot.committed_log(topic_partition, no_other_replica=no_other_replica)
        partition.backlog = backlog_bytes(log.view, None if ledger is None else ledger.horizon)
    except (SiltstoneError, OSError) as error:
        partition.failure = partition.failure or str(error)
    return partition


# Compacting


def compact_topic(
    directories: BrokerDirectories,
    topic: str,
    engine: EngineFor,
    *,
    reset: bool = False,
    no_other_replica: bool = False,
    dry_run: bool = False,
) -> TopicCompaction:
    """Compact a topic, or one partition of it, side by side. A partition that fails has the failure in its
    status, and the others are compacted.

    ``reset``: delete the ledger first, and compact the records that the log still has. ``dry_run``: only the
    status and backlog. Raises DirectoryLockedError, DirectoryRefusedError, UnknownTopicError, UsageError,
    CompactionInProgressError, EngineError, SiltstoneError, OSError.
    """
    before = compaction_of(directories, topic, no_other_replica=no_other_replica)
    if dry_run:
        return before
    with locked_directories(directories.paths):
        snapshot = directories.snapshot()
        topic_partitions = _requested_partitions(snapshot, topic)
        backlog = sum(partition.backlog or 0 for partition in before.partitions)
        compactor = TwoPhaseCompactor(engine(backlog), clock=SystemClock())
        flags = {"reset": reset, "no_other_replica": no_other_replica}
        results = {
            topic_partition: _compact(snapshot, topic_partition, compactor, **flags)
            for topic_partition in topic_partitions
        }
        return _topic(snapshot, topic_partitions, no_other_replica=no_other_replica, results=results)


def _compact(
    snapshot: Snapshot,
    topic_partition: TopicPartition,
    compactor: TwoPhaseCompactor,
    *,
    reset: bool,
    no_other_replica: bool,
) -> CompactionResult | None:
    """Compact one partition; None if that failed, with the reason in its status."""
    if topic_partition not in snapshot.partitions:
        return None
    try:
        log = snapshot.log(topic_partition)
    except (SiltstoneError, OSError):
        return None  # it cannot be opened: ``_partition`` says why
    config = snapshot.config_of(snapshot.topic(topic_partition.topic))
    attempt = Attempt(log, SystemClock().now_ms())
    outcome: CompactionResult | str = "interrupted"  # stays after a KeyboardInterrupt, which is not caught
    try:
        log = snapshot.committed_log(topic_partition, no_other_replica=no_other_replica)
        refuse_unsafe_files(log.directory)
        if log.damage:
            raise DirectoryRefusedError(
                f"not all of it can be read: {'; '.join(log.damage)}",
                path=str(log.topic_partition),
                advice="run siltstone recover first: a ledger must not have records that it truncates",
            )
        if reset:
            store = LedgerStore(log.directory)
            store.delete_cursor()  # first: without it no reader opens the files that go next
            store.delete_unused()
        outcome = compact_log(compactor, log, config)
        return outcome
    except (SiltstoneError, OSError) as error:
        outcome = str(error)
        return None
    finally:
        attempt.finish(SystemClock().now_ms(), outcome)
