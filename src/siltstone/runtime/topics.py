"""Creates, changes, deletes and lists topics, with their settings.

Every change is first written to ``siltstone-topics.json`` (``TopicRegistry``) and then carried out on the
partitions: the next start completes a change that a crash interrupted. Errors are Kafka's, by their codes: 3
unknown, 17 bad name or collision, 36 exists, 37 bad number of partitions, 40 bad settings.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from siltstone.base import files
from siltstone.base.config import (
    Config,
    ConfigSource,
    ConfigValue,
    LogConfig,
    config_texts,
    parse_topic_config,
    refuse_contradictions,
)
from siltstone.base.errors import (
    CorruptFileError,
    DirectoryRefusedError,
    InvalidPartitionsError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
    UsageError,
)
from siltstone.log.checkpoints import read_topic_id
from siltstone.log.directory import LogDirectory
from siltstone.log.metadata_log import ClusterSettings, metadata_directory, node_id_of, read_cluster_settings
from siltstone.log.names import TopicPartition
from siltstone.log.retention import find_policy
from siltstone.runtime.served_directory import NO_DIRECTORY, RESTART, ServedDirectory
from siltstone.runtime.topic_names import (
    altered_policies,
    altered_texts,
    bad_settings_are_invalid_config,
    is_deleted_directory,
    new_id,
    refuse_bad_name,
    refuse_bad_namespace,
    refuse_collision,
)

if TYPE_CHECKING:
    from siltstone.runtime.manager import LogManager

# The registry of topics that were created or altered with Siltstone: the file ``siltstone-topics.json``.
#
# Kafka keeps this in its metadata log; a log directory that Siltstone serves alone has none. The file is in
# the root of every log directory, where a broker ignores files (an unknown *folder* would stop it)::
#
#     {"version": 1, "generation": 7,
#      "topics": {"users": {"id": "kLhQkZ_dTQCU8PsWACbD0Q", "partitions": [0, 1], "unmade": [1],
#                           "config": {"retention.ms": "1"}}},
#      "deleted": {"old": ["DNBQGazITYep2N_VW9ngBQ"]},
#      "namespaces": {"public/default": {"compactionThreshold": "100000000"}}}   left out where there are none
#
# The copy with the highest generation counts: a directory that was offline has an older one. A change is
# written to all copies before it is acknowledged and before partition directories are changed, so a start can
# complete it: it creates partitions that are listed as unmade, and removes those of topics (by id) that are
# listed as deleted. A partition that was created once and is in none of the directories is not created again:
# its directory may be one that was not passed this time. A topic that is on disk and not in the file has the
# settings of its broker (see ``TopicSettings``).

TOPICS_FILE = "siltstone-topics.json"


class TopicEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One topic: its id ("" where Kafka gave it none), its partitions' numbers, its settings as texts.

    ``unmade``: the partitions whose directories may not exist yet because of a crash.
    """

    topic_id: str = msgspec.field(name="id")
    partitions: tuple[int, ...]
    unmade: tuple[int, ...]
    config: Mapping[str, str]

    def describe(
        self, name: str, *, created_by_siltstone: bool, offline: tuple[int, ...] = ()
    ) -> TopicDescription:
        """The topic of this entry; see ``TopicDescription``."""
        return TopicDescription(
            name=name,
            topic_id=self.topic_id or None,
            partitions=self.partitions,
            config=dict(self.config),
            offline=offline,
            created_by_siltstone=created_by_siltstone,
        )


class TopicRegistry(msgspec.Struct, frozen=True, kw_only=True, tag_field="version", tag=1):
    """The content of the file. A change makes a new registry with the next generation.

    ``deleted``: by name, the ids of deleted topics of which directories may be left. ``namespaces``: the
    policies of Pulsar's namespaces, by ``tenant/namespace``, as texts.
    """

    generation: int
    topics: Mapping[str, TopicEntry]
    deleted: Mapping[str, frozenset[str]]
    namespaces: Mapping[str, Mapping[str, str]] = {}

    def with_topic(self, name: str, entry: TopicEntry) -> TopicRegistry:
        """Add a topic, or replace its entry."""
        return replace(self, generation=self.generation + 1, topics={**self.topics, name: entry})

    def without_topic(self, name: str, topic_id: str) -> TopicRegistry:
        """Remove a topic; its id stays listed as deleted until its directories are removed."""
        topics = {other: entry for other, entry in self.topics.items() if other != name}
        deleted = {**self.deleted, name: self.deleted.get(name, frozenset()) | {topic_id}}
        return replace(self, generation=self.generation + 1, topics=topics, deleted=deleted)

    def with_namespace(self, name: str, policies: Mapping[str, str]) -> TopicRegistry:
        """Replace a namespace's policies; a namespace without any is not listed."""
        listed = {**self.namespaces, name: dict(policies)}
        listed = {other: overrides for other, overrides in listed.items() if overrides}
        return replace(self, generation=self.generation + 1, namespaces=listed)

    def entry(self, name: str, partitions: Mapping[TopicPartition, Path]) -> TopicEntry:
        """A topic's entry with its partitions on disk (``partitions``: directories by partition) added.

        The entry of a topic that is not listed has no settings. Raises UnknownTopicError.
        """
        paths = {
            topic_partition.partition: partitions[topic_partition]
            for topic_partition in sorted(partitions)
            if topic_partition.topic == name
        }
        listed = self.topics.get(name)
        if listed is not None:
            return replace(listed, partitions=tuple(sorted({*listed.partitions, *paths})))
        if not paths:
            raise UnknownTopicError(f"topic {name!r} does not exist here")
        topic_id = next(filter(None, map(_readable_topic_id, paths.values())), "")
        return TopicEntry(topic_id=topic_id, partitions=tuple(paths), unmade=(), config={})

    def has_deleted(self, topic_partition: TopicPartition, directory: Path) -> bool:
        """Is this the directory of a topic that was deleted? Raises CorruptFileError."""
        ids = self.deleted.get(topic_partition.topic)
        return ids is not None and (read_topic_id(directory) or "") in ids

    def encode(self) -> bytes:
        """The file as bytes. By ``json``, since a text may hold bytes that are no UTF-8, as surrogates."""
        document = msgspec.to_builtins(self, order="deterministic")
        if not self.namespaces:
            del document["namespaces"]
        return (json.dumps(document, sort_keys=True) + "\n").encode()


def _readable_topic_id(directory: Path) -> str | None:
    with contextlib.suppress(CorruptFileError):
        return read_topic_id(directory)
    return None


NO_TOPICS = TopicRegistry(generation=0, topics={}, deleted={})


def load_registry(directories: Iterable[Path]) -> tuple[TopicRegistry, list[Path]]:
    """The newest copy in these directories, and the directories whose copy is missing or older.

    A damaged copy counts as missing. Raises CorruptFileError when all are damaged, OSError.
    """
    copies: dict[Path, TopicRegistry] = {}
    missing: list[Path] = []
    failure: CorruptFileError | None = None
    for directory in directories:
        path = directory / TOPICS_FILE
        try:
            copies[directory] = msgspec.convert(json.loads(files.read_bytes(path)), TopicRegistry)
        except FileNotFoundError:
            missing.append(directory)
        except (ValueError, RecursionError) as error:
            reason = f"the file is not a registry of topics: {error}"
            failure = CorruptFileError(str(path), 0, reason, advice="restore the file from a backup")
            missing.append(directory)
    if failure is not None and not copies:
        raise failure
    newest = max(copies.values(), key=lambda copy: copy.generation, default=NO_TOPICS)
    older = [directory for directory, copy in copies.items() if copy.generation < newest.generation]
    return newest, [*missing, *older] if newest.generation else []


def write_registry(directory: Path, registry: TopicRegistry) -> None:
    """Replace a directory's copy, durably. Raises OSError."""
    files.replace(directory / TOPICS_FILE, registry.encode())


# The settings of topics: for an open ``LogManager``, for a snapshot of stopped directories, for a cleaning.
#
# A topic that is listed in ``siltstone-topics.json`` has the settings listed there; any other those of the
# broker's ``__cluster_metadata-0``, which is only read.


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """Ids and settings of topics, out of Siltstone's registry (``listed``), else out of the broker's
    metadata.

    ``cluster``: the metadata, None without one. ``broker``: the broker's settings in force, with those that
    were set at run time.
    """

    listed: Mapping[str, TopicEntry] = field(default_factory=dict)
    cluster: ClusterSettings | None = None
    broker: Config = field(default_factory=Config)

    def brokers_id(self, name: str) -> str | None:
        """The id of a topic in the metadata, None where there is none."""
        return None if self.cluster is None else self.cluster.topic_id(name)

    def knows(self, name: str) -> bool:
        """Is the topic listed, or in the metadata?"""
        return name in self.listed or self.brokers_id(name) is not None

    def is_made_here(self, name: str) -> bool:
        """Was the topic created with Siltstone, rather than listed because its settings were altered?"""
        return name in self.listed and (self.listed[name].topic_id or None) != self.brokers_id(name)

    def overrides(self, name: str) -> Mapping[str, str]:
        """A topic's own settings as texts, of the keys that Siltstone supports. Raises UsageError for an
        invalid one."""
        if name in self.listed:
            return self.listed[name].config
        if self.cluster is None:
            return {}
        supported = self.cluster.own(name)
        return {key: text for key, text in self.cluster.overrides(name).items() if key in supported}

    def config_of(self, name: str) -> Config:
        """A topic's own settings over the broker's. Raises UsageError for an invalid one."""
        if name in self.listed:
            return self.broker.over(parse_topic_config(self.listed[name].config, TOPICS_FILE))
        return self.broker if self.cluster is None else self.cluster.config_of(name, self.broker)

    def topic_mismatch(self, name: str, directory: Path) -> str | None:
        """Why a directory is no partition of the topic that has its name; None where it is.

        Raises CorruptFileError for a damaged ``partition.metadata``.
        """
        if name not in self.listed:
            return None if self.cluster is None else self.cluster.mismatch_reason(name, directory)
        topic_id, listed_id = read_topic_id(directory), self.listed[name].topic_id
        if not topic_id or listed_id in ("", topic_id):
            return None
        return f"its topic id is {topic_id}, but {TOPICS_FILE} has {listed_id} for its name"


def read_brokers_topics(directories: Sequence[LogDirectory]) -> ClusterSettings | None:
    """The broker's metadata log, read before its directories are opened for changes; None where they have
    none.

    Where it cannot be read, nothing is opened: with Kafka's default settings, retention would delete all
    records of a compacted topic that are older than a week. Raises DirectoryRefusedError where it is damaged,
    or is there twice.
    """
    try:
        holder = metadata_directory(directories)
        if holder is None:
            return None
        cluster = read_cluster_settings(holder, node_id=node_id_of(directories))
    except (CorruptFileError, UsageError, OSError) as error:
        raise DirectoryRefusedError(
            "the topics' settings cannot be read from the broker's metadata log, so the records that must be "
            f"retained are unknown: {error}",
            path=", ".join(str(directory.path) for directory in directories),
            advice="let the broker repair its metadata log, or open the directory read-only",
        ) from None
    _logger.info("The topics have the settings of %s up to offset %d", cluster.path, cluster.image.end_offset)
    return cluster


_logger = logging.getLogger("siltstone")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic: its id (None where Kafka gave it none), partitions, own settings as texts.

    ``offline``: partitions that are not served now. ``created_by_siltstone``: Siltstone lists the topic, so
    its settings are those, and there is no other replica.
    """

    name: str
    topic_id: str | None
    partitions: tuple[int, ...]
    config: Mapping[str, str]
    offline: tuple[int, ...]
    created_by_siltstone: bool


# The checks before a change of topics, also for ``--dry-run``.


def refuse_new_topic(
    name: str, others: Iterable[str], partitions: int, overrides: Mapping[str, str], broker: Config
) -> None:
    """Raises InvalidTopicError, TopicExistsError, InvalidPartitionsError, InvalidConfigError."""
    refuse_bad_name(name)
    if name in others:
        raise TopicExistsError(f"topic {name!r} already exists")
    refuse_collision(name, others)
    if partitions < 1:
        raise InvalidPartitionsError(
            f"topic {name!r} cannot have {partitions} partitions", advice="pass at least 1"
        )
    _refuse_bad_settings(name, overrides, broker)


def refuse_fewer_partitions(name: str, have: int, count: int) -> None:
    """Raises InvalidPartitionsError unless ``count`` is more than a topic has."""
    if count <= have:
        raise InvalidPartitionsError(
            f"topic {name!r} has {have} partitions already, so {count} would not add any",
            advice=f"pass at least {have + 1}",
        )


def altered_settings(
    name: str, before: Mapping[str, str], set_to: Mapping[str, str], remove: Iterable[str], broker: Config
) -> dict[str, str]:
    """A topic's settings after some were set and others removed. Raises InvalidConfigError."""
    after = altered_texts(before, set_to, remove, f"topic {name}")
    _refuse_bad_settings(name, after, broker)
    return after


def _refuse_bad_settings(name: str, overrides: Mapping[str, str], broker: Config) -> None:
    source = f"topic {name}"
    with bad_settings_are_invalid_config(source):
        config = refuse_contradictions(broker.over(parse_topic_config(overrides, source)))
    find_policy(LogConfig.of(config).retention_policy)


class Topics:
    """The topics of a ``LogManager``.

    ``_cluster``: the broker's metadata, None without one. ``_has_owner``: a broker has used the directories.
    ``_outdated``: directories whose copy of the registry is missing or older. ``_log_configs``: a cache, by
    topic. ``_new_ids``: ids of topics of which a single partition is open, so that they are in no registry.

    A change of topics goes step by step::

        check ─► write the registry to every directory, durably ─► change the partitions ─► write what is left

    A crash in between is completed by the next start: ``exclude_partitions`` deletes, ``complete_start``
    creates. In Kafka the controller writes the metadata log, and ``TopicConfigHandler``, ``LogManager``
    (``getOrCreateLog``, ``asyncDelete``) follow.
    """

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._registry = NO_TOPICS
        self._outdated: list[Path] = []
        self._cluster: ClusterSettings | None = None
        self._has_owner = False
        self._log_configs: dict[str, LogConfig] = {}
        self._partitions: dict[str, tuple[int, ...]] = {}
        self._new_ids: dict[str, str] = {}

    # Start

    def load(self) -> None:
        """Read the registry, and the broker's metadata. Raises CorruptFileError, DirectoryRefusedError."""
        directories = [served.directory for served in self._manager.serving()]
        self._cluster = read_brokers_topics(directories)
        self._has_owner = self._cluster is not None or any(one.properties() for one in directories)
        self._registry, self._outdated = load_registry(directory.path for directory in directories)

    def exclude_partitions(self, served: ServedDirectory) -> None:
        """Delete partitions of deleted topics and exclude those of other topics, before a directory's logs
        are opened.

        Raises StorageError.
        """
        for topic_partition in list(served.directory.partitions):
            path = served.partition_path(topic_partition)
            try:
                if self._registry.has_deleted(topic_partition, path):
                    delay_ms = self.log_config("").file_delete_delay_ms
                    self._manager.delete_partition(served, topic_partition, delay_ms)
                    continue
                reason = self._topic_settings.topic_mismatch(topic_partition.topic, path)
            except CorruptFileError as error:
                reason = str(error)
            if reason is not None:
                served.exclude(topic_partition, reason)

    def complete_start(self) -> None:
        """Create partitions that are listed and missing, and update older copies of the registry."""
        manager = self._manager
        if manager.only is not None:
            return
        for served in manager.serving():
            if served.path in self._outdated:
                with manager.upkeep.guarded(served):
                    write_registry(served.path, self._registry)
        for served in manager.serving():
            for excluded in served.directory.passed_over:
                path = served.path / excluded.path.rpartition("/")[2]
                if is_deleted_directory(path.name):
                    manager.upkeep.remove_later(served, path, self.log_config("").file_delete_delay_ms)
        # An unmade partition may be in a directory that is offline.
        if manager.offline:
            return
        for name, entry in self._registry.topics.items():
            if entry.unmade:
                try:
                    self._make(name, entry)
                except DirectoryRefusedError as error:
                    _logger.warning("%s. The partition of topic %s is created at the next start", error, name)

    # Settings

    @property
    def _topic_settings(self) -> TopicSettings:
        """The program's settings of the broker, over those that were set at the broker at run time."""
        broker = self._manager.config
        if self._cluster is not None:
            broker = self._cluster.effective_broker_config(broker)
        return TopicSettings(listed=self._registry.topics, cluster=self._cluster, broker=broker)

    def settings(self, name: str) -> Config:
        """A topic's settings over the broker's. Raises UsageError for an invalid one."""
        return self._topic_settings.config_of(name)

    def log_config(self, name: str) -> LogConfig:
        """A topic's settings as its log uses them; retention by time only if a setting says so.

        The ``server.properties`` of a broker, or metadata in a directory that was not named, may have another
        ``retention.ms`` than Kafka's default of 7 days. Where neither is known, the default would delete
        records that the broker keeps, so the log's retention is unlimited. Raises UsageError.
        """
        settings = self._topic_settings
        name = name if settings.knows(name) else ""
        if name not in self._log_configs:
            config = settings.config_of(name)
            is_known = config.setting("retention.ms").origin is not ConfigSource.DEFAULT_CONFIG
            is_known = is_known or bool(config.layer(ConfigSource.STATIC_BROKER_CONFIG))
            log_config = LogConfig.of(config)
            if self._has_owner and not (is_known or settings.is_made_here(name)):
                log_config = replace_fields(log_config, retention_ms=-1)
            self._log_configs[name] = log_config
        return self._log_configs[name]

    def forget_settings(self) -> None:
        """The broker's settings have changed: compute the topics' again."""
        self._log_configs = {}

    # Listing

    def names(self) -> list[str]:
        """All topics, in order of name."""
        return sorted(
            {*self._registry.topics, *(topic_partition.topic for topic_partition in self._on_disk())}
        )

    def _on_disk(self) -> dict[TopicPartition, Path]:
        return {
            topic_partition: served.partition_path(topic_partition)
            for served in self._manager.serving()
            for topic_partition in (*served.logs, *served.refused)
        }

    def has(self, topic_partition: TopicPartition) -> bool:
        """Does the registry list this partition?"""
        entry = self._registry.topics.get(topic_partition.topic)
        return entry is not None and topic_partition.partition in entry.partitions

    def describe(self, name: str) -> TopicDescription:
        """One topic. Raises UnknownTopicError."""
        entry = self._entry(name)
        served = {
            log.topic_partition.partition
            for _, log in self._manager.logs()
            if log.topic_partition.topic == name
        }
        offline = tuple(number for number in entry.partitions if number not in served)
        return entry.describe(name, created_by_siltstone=name in self._registry.topics, offline=offline)

    def partitions_of(self, name: str) -> tuple[int, ...]:
        """The numbers of a topic's partitions, served or not; cached, since every record that is sent asks.

        Raises UnknownTopicError.
        """
        numbers = self._partitions.get(name)
        if numbers is None:
            with self._manager.changing:  # else a change could come between the two
                numbers = self._partitions[name] = self._entry(name).partitions
        return numbers

    def forget_partitions(self) -> None:
        """Partitions were created or deleted."""
        self._partitions = {}

    def _entry(self, name: str) -> TopicEntry:
        """A topic's entry, with partitions on disk and, for a topic of a broker, the broker's settings."""
        entry = self._registry.entry(name, self._on_disk())
        return replace(entry, config=self._topic_settings.overrides(name))

    def id_of(self, name: str) -> str | None:
        """The topic id for a new partition of a topic."""
        if self._manager.only is not None and name not in self._registry.topics:
            return self._new_ids.setdefault(name, new_id(self._manager.random_bytes))
        with contextlib.suppress(UnknownTopicError):
            return self._entry(name).topic_id or None
        return None

    # Changing

    def create(
        self, name: str, partitions: int | None = None, config: Mapping[str, ConfigValue] | None = None
    ) -> TopicDescription:
        """Create a topic; ``partitions``: default ``num.partitions``; ``config``: values by Kafka's names.

        Raises InvalidTopicError, TopicExistsError, InvalidPartitionsError, InvalidConfigError, StorageError,
        DirectoryRefusedError where a file or a link has a partition's name.
        """
        with self._manager.changing:
            names, overrides = self.names(), config_texts(config or {}, f"topic {name}")
            if name not in names and self._topic_settings.brokers_id(name) is not None:
                raise TopicExistsError(
                    f"topic {name!r} already exists in the broker's metadata, and has no partition here",
                    advice="create its partitions one by one with LogManager.get_or_create",
                )
            count = self._manager.config.integer("num.partitions") if partitions is None else partitions
            refuse_new_topic(name, names, count, overrides, self._topic_settings.broker)
            topic_id = new_id(self._manager.random_bytes)
            entry = TopicEntry(topic_id=topic_id, partitions=(), unmade=(), config=overrides)
            self._add(name, entry, range(count))
            return self.describe(name)

    def add_partitions(self, name: str, count: int) -> TopicDescription:
        """Raise a topic's number of partitions to ``count``.

        Raises UnknownTopicError, InvalidPartitionsError, StorageError.
        """
        with self._manager.changing:
            entry = self._entry(name)
            refuse_fewer_partitions(name, len(entry.partitions), count)
            more = [number for number in range(count) if number not in entry.partitions]
            self._add(name, entry, more)
            return self.describe(name)

    def _add(self, name: str, entry: TopicEntry, more: Iterable[int]) -> None:
        more = tuple(more)
        self._manager.refuse_occupied_paths(name, more)
        numbers = tuple(sorted((*entry.partitions, *more)))
        entry = replace(entry, partitions=numbers, unmade=(*entry.unmade, *more))
        # 1. Durable first, listed as unmade: after a crash the next start creates what is missing. 2. The
        # directories and logs. 3. Listed as made, so that a directory that is lost later is not made anew.
        self._write(self._registry.with_topic(name, entry))
        self._make(name, entry)

    def _make(self, name: str, entry: TopicEntry) -> None:
        """Create a listed topic's unmade partitions, then list them as made: after a crash between the two
        the next start checks them again."""
        existing = {
            topic_partition for served in self._manager.serving() for topic_partition in served.all_partitions
        }
        for topic_partition in (TopicPartition(name, number) for number in entry.unmade):
            if topic_partition not in existing:
                self._manager.create_partition(topic_partition)
        self._write(self._registry.with_topic(name, replace(entry, unmade=())))

    def add(self, topic_partition: TopicPartition) -> None:
        """Create one partition, and its topic where that is new. Raises as ``create`` does."""
        if self._manager.only is not None:
            if topic_partition != self._manager.only:
                raise UnknownTopicError(
                    f"only {self._manager.only} is open here",
                    path=str(topic_partition),
                    advice="open its log directory with LogManager.open",
                )
            self._manager.create_partition(topic_partition)
            return
        names = self.names()
        if topic_partition.topic in names:
            entry = self._entry(topic_partition.topic)
        else:
            refuse_bad_name(topic_partition.topic)
            refuse_collision(topic_partition.topic, names)
            topic_id = self._topic_settings.brokers_id(topic_partition.topic) or new_id(
                self._manager.random_bytes
            )
            own = self._topic_settings.overrides(topic_partition.topic)
            entry = TopicEntry(topic_id=topic_id, partitions=(), unmade=(), config=own)
        if topic_partition.partition < 0:
            raise InvalidPartitionsError(
                f"topic {topic_partition.topic!r} cannot have a partition {topic_partition.partition}",
                advice="pass at least 0",
            )
        self._add(topic_partition.topic, entry, [topic_partition.partition])

    def alter(
        self, name: str, set_to: Mapping[str, ConfigValue] | None = None, *, remove: Iterable[str] = ()
    ) -> TopicDescription:
        """Set some of a topic's settings and remove others; they apply at once, segment sizes at the next
        roll.

        Raises UnknownTopicError, InvalidConfigError, StorageError; DirectoryRefusedError where
        the topic's other settings are in metadata that is not in these directories.
        """
        with self._manager.changing:
            entry = self._entry(name)
            if self._has_owner and self._cluster is None and name not in self._registry.topics:
                raise DirectoryRefusedError(
                    f"the other settings of topic {name!r} are in the broker's metadata log, which none of "
                    "the directories has",
                    path=", ".join(str(served.path) for served in self._manager.serving()),
                    advice="open all of the broker's log.dirs, or alter the topic through the broker",
                )
            texts = config_texts(set_to or {}, f"topic {name}")
            overrides = altered_settings(name, entry.config, texts, remove, self._topic_settings.broker)
            self._write(self._registry.with_topic(name, replace(entry, config=overrides)))
            self._log_configs.pop(name, None)
            self._manager.settings_changed(name)
            return self.describe(name)

    def delete(self, name: str) -> None:
        """Delete a topic: its directories are renamed now and removed after ``file.delete.delay.ms``.

        Partitions in a directory that is offline are deleted at the next start that has it. Raises
        UnknownTopicError, StorageError.
        """
        with self._manager.changing:
            entry, delay_ms = self._entry(name), self.log_config(name).file_delete_delay_ms
            # 1. Durable first, by its id: after a crash the next start deletes what is left. 2. Each
            # partition is closed and its directory renamed; if one disk fails, the others go on. 3. The id
            # leaves the list once no directory is missing.
            self._write(self._registry.without_topic(name, entry.topic_id))
            for served in self._manager.serving():
                partitions = [*served.logs, *served.refused]
                for topic_partition in (
                    topic_partition for topic_partition in partitions if topic_partition.topic == name
                ):
                    with contextlib.suppress(StorageError):
                        self._manager.delete_partition(served, topic_partition, delay_ms)
            self._log_configs.pop(name, None)
            # In memory only: the file lists the ids until its next change, which does no harm, since ids are
            # unique.
            if not self._manager.offline:
                self._registry = replace(self._registry, deleted={})

    # Namespaces

    @property
    def namespaces(self) -> Mapping[str, Mapping[str, str]]:
        """The policies of Pulsar's namespaces, by ``tenant/namespace``."""
        return self._registry.namespaces

    def alter_namespace(
        self, name: str, set_to: Mapping[str, str] | None = None, *, remove: Iterable[str] = ()
    ) -> dict[str, str]:
        """Set some of a namespace's policies and remove others, durably; they apply at once.

        Raises UsageError for a bad name, InvalidConfigError, StorageError.
        """
        with self._manager.changing:
            refuse_bad_namespace(name)
            before = self._registry.namespaces.get(name, {})
            policies = altered_policies(before, set_to or {}, remove, name)
            self._write(self._registry.with_namespace(name, policies))
            return policies

    def _write(self, registry: TopicRegistry) -> None:
        """Write the registry to every directory in service, durably. Raises StorageError when there is
        none."""
        if self._manager.only is not None:
            raise DirectoryRefusedError(
                "topics cannot be changed while a single partition is open",
                path=str(self._manager.only),
                advice="open its log directory with LogManager.open",
            )
        for served in self._manager.serving():
            with self._manager.upkeep.guarded(served):
                write_registry(served.path, registry)
        if not self._manager.serving():
            raise StorageError(NO_DIRECTORY, advice=RESTART)
        self._registry = registry
        self.forget_partitions()
