"""Describes the directories of a server (``Served``) as a cluster of one broker, in the terms of Confluent's
REST proxy: identity, topics, partitions, replicas, offsets, settings. Works on open directories and in look
mode; changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from siltstone.base.config import ConfigSource, find_broker_key, find_topic_key
from siltstone.base.config_table import TOPIC_KEYS
from siltstone.base.errors import InvalidConfigError, SiltstoneError, UnknownTopicError
from siltstone.commands.broker_settings import broker_etag, broker_settings, pending
from siltstone.commands.served import Served
from siltstone.commands.topics import EffectiveSetting, settings_of_broker, settings_of_topic
from siltstone.log.checkpoints import node_number
from siltstone.log.metadata_log import node_id_of
from siltstone.log.names import TopicPartition

NO_CLUSTER = "siltstone"
"""The cluster id of directories without ``meta.properties``: a copy of some partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterIdentity:
    """The ids in ``meta.properties``."""

    cluster_id: str
    broker_id: int


def cluster_identity(served: Served) -> ClusterIdentity:
    """Which broker of which cluster the directories belong to. Raises SiltstoneError, OSError."""
    if served.manager is not None:
        directories = [open_directory.directory for open_directory in served.manager.serving()]
    else:
        directories = list(served.snapshot().directories)
    clusters = (directory.properties().get("cluster.id") for directory in directories)
    return ClusterIdentity(
        cluster_id=next(filter(None, clusters), NO_CLUSTER),
        broker_id=node_number(node_id_of(directories)) or 0,
    )


def all_partitions(served: Served) -> Mapping[str, tuple[int, ...]]:
    """The numbers of the partitions of all topics here, by name: also of one that was created a moment ago.
    Raises SiltstoneError, OSError."""
    if served.manager is not None:
        return served.manager.topics.all_partitions()
    return served.snapshot().all_partitions


def partitions_of(served: Served, topic: str) -> tuple[int, ...]:
    """The numbers of a topic's partitions here. Raises UnknownTopicError, SiltstoneError, OSError."""
    if served.manager is not None:
        return served.manager.topics.partitions_of(topic)
    return served.snapshot().topic(topic).partitions


def partition_named(served: Served, topic: str, partition: int) -> TopicPartition:
    """A partition of these directories. Raises UnknownTopicError if they do not have it."""
    if partition not in partitions_of(served, topic):
        raise UnknownTopicError(f"topic {topic[:256]!r} has no partition {partition}")
    return TopicPartition(topic, partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReplicas:
    """The brokers that have a partition; ``leader`` is None if there is none."""

    leader: int | None
    replicas: Sequence[int]
    in_sync: Sequence[int]


def replicas_of(served: Served, broker_id: int, topic: str, partition: int) -> PartitionReplicas:
    """The replicas: in look mode from the broker's metadata, if it is there; else this broker alone, whose
    id is ``broker_id``. The directories have the partition. Raises SiltstoneError, OSError."""
    if served.manager is None:
        snapshot = served.snapshot()
        known = snapshot.replicas_of(snapshot.topic(topic), partition)
        if known.replicas is not None:
            leader = None if known.leader is None or known.leader < 0 else known.leader
            return PartitionReplicas(leader=leader, replicas=known.replicas, in_sync=known.isr or ())
    return PartitionReplicas(leader=broker_id, replicas=(broker_id,), in_sync=(broker_id,))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffsets:
    """Where a partition begins and ends for a consumer: from ``beginning`` to below ``end``, the high
    watermark; with ``read_committed`` to below ``last_stable``. ``log_end``: of all that is stored."""

    beginning: int
    end: int
    last_stable: int
    log_end: int


def offsets_of(served: Served, topic: str, partition: int) -> PartitionOffsets:
    """The offsets of a partition. Raises UnknownTopicError, SiltstoneError, OSError."""
    partition_named(served, topic, partition)
    log = served.log(topic, partition)
    return PartitionOffsets(
        beginning=log.log_start_offset,
        end=log.high_watermark,
        last_stable=log.last_stable_offset,
        log_end=log.log_end_offset,
    )


# Settings, as Kafka's ConfigEntry describes them.


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """A setting, as in Kafka's class of this name. ``is_read_only``: it does not change at run time;
    ``restart_pending``: the file has a value that a restart will use, None for a topic's setting."""

    setting: EffectiveSetting
    is_read_only: bool
    restart_pending: bool | None = None

    @property
    def is_default(self) -> bool:
        """Is it set nowhere?"""
        return self.setting.source == ConfigSource.DEFAULT_CONFIG.value


TOPIC_SETTINGS = tuple(key.name for key in TOPIC_KEYS)
"""The names of a topic's settings, in the order of ``topic_entries``."""


def topic_entries(served: Served, topic: str) -> list[ConfigEntry]:
    """A topic's effective settings. Raises UnknownTopicError, SiltstoneError, OSError."""
    partitions_of(served, topic)
    settings = settings_of_topic(served.settings_of(topic), everything=True)
    return [ConfigEntry(setting=setting, is_read_only=False) for setting in settings]


def topic_entry(served: Served, topic: str, name: str) -> ConfigEntry:
    """One effective setting of a topic, by any of its names. Raises UsageError for an unknown setting,
    UnknownTopicError, SiltstoneError, OSError."""
    key = find_topic_key(name)
    return next(entry for entry in topic_entries(served, topic) if entry.setting.name == key.name)


def broker_entries(served: Served, *, everything: bool = True) -> list[ConfigEntry]:
    """The broker's settings: all, or those that were set. Raises SiltstoneError, OSError."""
    # A broker's setting may have several names, of which the file and the process may use different ones, so
    # keys are compared.
    waiting = {find_broker_key(name).name for name in pending(served)}
    settings = broker_settings(served)
    if not everything:
        names = {entry.name for entry in settings_of_broker(served.broker_settings(), everything=False)}
        settings = [
            entry for entry in settings if entry.name in names or find_broker_key(entry.name).name in waiting
        ]
    return [
        ConfigEntry(
            setting=setting,
            is_read_only=not find_broker_key(setting.name).changes_at_run_time(setting.name),
            restart_pending=find_broker_key(setting.name).name in waiting,
        )
        for setting in settings
    ]


def broker_entry(served: Served, name: str) -> ConfigEntry:
    """One setting of the broker, by any of its names. Raises UsageError for an unknown one,
    SiltstoneError, OSError."""
    key = find_broker_key(name).name
    return next(entry for entry in broker_entries(served) if find_broker_key(entry.setting.name).name == key)


def broker_tag(served: Served) -> str | None:
    """The entity tag of the broker's file, None without a file that can be read."""
    try:
        return broker_etag(served)
    except (SiltstoneError, OSError):
        return None


def own_names(served: Served, topic: str, names: Sequence[str]) -> list[str]:
    """Which of these settings the topic itself has: to remove the others changes nothing. Raises
    InvalidConfigError for an unknown setting, UnknownTopicError, SiltstoneError, OSError."""
    own = {find_topic_key(name).name for name in served.describe(topic).config}
    try:
        return [name for name in names if find_topic_key(name).name in own]
    except SiltstoneError as error:
        raise InvalidConfigError(error.reason, path=topic, advice=error.advice) from None
