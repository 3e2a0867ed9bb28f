"""Reads the status and the statistics of side-by-side compaction in the form of Pulsar's admin API, and reads
and sets its thresholds. In look mode reading works, too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from siltstone.base.errors import UsageError
from siltstone.commands import administration
from siltstone.commands.changes import Actor
from siltstone.commands.compaction import compacted_json
from siltstone.commands.served import Served
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.read_only import ReadOnlyLog
from siltstone.runtime import compactions
from siltstone.runtime.compactions import (
    ERROR,
    SUCCESS,
    THRESHOLD_KEY,
    TOPIC,
    CompactionStatus,
    backlog_bytes,
    compaction_threshold,
    read_status,
    topic_status,
)
from siltstone.runtime.topic_names import find_partitions, persistent_name, refuse_bad_namespace


def named_logs(served: Served, name: str) -> list[PartitionLog | ReadOnlyLog]:
    """The logs that a Pulsar name stands for: those of a topic, or of one partition. Raises UsageError,
    UnknownTopicError, SiltstoneError, OSError."""
    existing: Iterable[TopicPartition]
    existing = served.snapshot().partitions if served.manager is None else served.manager
    return [served.log(partition.topic, partition.partition) for partition in find_partitions(name, existing)]


def topic_of(served: Served, name: str) -> str:
    """The topic that a Pulsar name stands for, or whose partition it names. Raises as ``named_logs``."""
    return named_logs(served, name)[0].topic_partition.topic


def compaction_status(served: Served, name: str) -> CompactionStatus:
    """The status of all partitions together. Raises as ``named_logs``."""
    return topic_status([read_status(log.directory) for log in named_logs(served, name)])


def threshold(served: Served, name: str, *, applied: bool) -> int | None:
    """A topic's threshold in bytes: its own, None without one; with ``applied`` the one in effect, which may
    be that of the namespace or of the broker. Raises as ``named_logs``."""
    topic = topic_of(served, name)
    threshold = compaction_threshold(topic, served.settings_of(topic), _policies(served))
    return threshold.size if applied or threshold.source == TOPIC else None


def set_threshold(served: Served, actor: Actor, name: str, size: int | None) -> None:
    """Set a topic's own threshold; None: remove it, if it has one. Raises as ``named_logs`` and
    ``administration.alter_settings``."""
    topic = topic_of(served, name)
    if size is not None:
        administration.alter_settings(served, actor, topic, {THRESHOLD_KEY: str(size)})
    elif THRESHOLD_KEY in served.describe(topic).config:
        administration.alter_settings(served, actor, topic, {}, [THRESHOLD_KEY])


def namespace_threshold(served: Served, namespace: str) -> int | None:
    """The policy of a namespace, None if it has none. Raises UsageError for a bad name or a bad policy,
    SiltstoneError, OSError."""
    refuse_bad_namespace(namespace)
    return compactions.namespace_threshold(namespace, _policies(served))


def set_namespace_threshold(served: Served, actor: Actor, namespace: str, size: int | None) -> None:
    """Set a namespace's policy; None: remove it. Raises as ``administration.alter_namespace``."""
    if size is None:
        administration.alter_namespace(served, actor, namespace, {}, [THRESHOLD_KEY])
    else:
        administration.alter_namespace(served, actor, namespace, {THRESHOLD_KEY: str(size)})


def _policies(served: Served) -> Mapping[str, Mapping[str, str]]:
    if served.manager is not None:
        return served.manager.topics.namespaces
    return served.snapshot().registry.namespaces


def topic_stats(served: Served, name: str) -> dict[str, Any]:
    """The fields of Pulsar's ``stats`` that a log has. Raises as ``named_logs``."""
    logs, status = named_logs(served, name), compaction_status(served, name)
    ended, millis = status.ended_ms or 0, round(1000 * status.seconds)
    return {
        "topic": persistent_name(logs[0].topic_partition.topic),
        "storageSize": sum(map(_size, logs)),
        "backlogSize": sum(map(_backlog, logs)),
        "compaction": {
            "lastCompactionSucceedTimestamp": ended if status.status == SUCCESS else 0,
            "lastCompactionFailedTimestamp": ended if status.status == ERROR else 0,
            "lastCompactionDurationTimeInMills": millis,
        },
    }


_NOT_COMPACTED = {"cursors": {}, "compactedLedger": {"ledgerId": -1, "entries": -1, "size": -1}}
"""What ``compacted_json`` gives for a partition with a ledger, for one without."""


def internal_stats(served: Served, name: str) -> dict[str, Any]:
    """The fields of Pulsar's ``internalStats`` that a log has. For one partition its own; for a topic with
    several, ``partitions`` with those of each. Raises as ``named_logs``."""
    logs = named_logs(served, name)
    if len(logs) == 1:
        return _internal(logs[0])
    partitions = {
        f"{persistent_name(log.topic_partition.topic)}-partition-{log.topic_partition.partition}": log
        for log in logs
    }
    return {
        "metadata": {"partitions": len(logs), "deleted": False},
        "partitions": {partition: _internal(log) for partition, log in partitions.items()},
    }


def _internal(log: PartitionLog | ReadOnlyLog) -> dict[str, Any]:
    ledger = LedgerStore(log.directory).current()
    return {
        "totalSize": _size(log),
        "lastConfirmedEntry": log.high_watermark - 1,
        **(compacted_json(ledger) or _NOT_COMPACTED),
    }


def _size(log: PartitionLog | ReadOnlyLog) -> int:
    view = log.view
    return sum(view.size_of(number) for number in range(len(view.segments)))


def _backlog(log: PartitionLog | ReadOnlyLog) -> int:
    ledger = LedgerStore(log.directory).current()
    return backlog_bytes(log.view, None if ledger is None else ledger.horizon)


def pulsar_name(tenant: str, namespace: str, topic: str) -> str:
    """A topic's name from the parts of a URL's path. Raises UsageError for a bad one."""
    refuse_bad_namespace(f"{tenant}/{namespace}")
    if "/" in topic:
        raise UsageError(f"{topic[:256]!r} is not the name of a topic", advice="leave the slash out")
    return f"persistent://{tenant}/{namespace}/{topic}"
