"""Topics: made, changed, deleted, listed; their settings, at run time too.

Every change is first written to ``siltstone-topics.json`` (``TopicRegistry``) and then carried out on
the partitions: what a crash interrupts, the next start finishes. Errors are Kafka's, by their codes: 3
unknown, 17 bad name or collision, 36 exists, 37 bad number of partitions, 40 bad settings.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from siltstone.base import files
from siltstone.base.config import (
    Config,
    ConfigSource,
    LogConfig,
    find_topic_key,
    parse_topic_config,
    refuse_contradictions,
)
from siltstone.base.errors import (
    CorruptFileError,
    DirectoryRefusedError,
    InvalidConfigError,
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
from siltstone.runtime.served_directory import ServedDirectory
from siltstone.runtime.topic_names import (
    RandomBytes,
    altered_policies,
    is_deleted_directory,
    new_id,
    parse_namespace,
    refuse_bad_name,
    refuse_collision,
)
from siltstone.runtime.upkeep import Upkeep

# The topics that were made here and their settings, kept in a file of ours: ``siltstone-topics.json``.
#
# Kafka keeps this in its metadata log; a log directory that Siltstone serves alone has none. The file lies in
# the root of every log directory, where a broker passes files over (a strange *folder* would stop it)::
#
#     {"version": 1, "generation": 7,
#      "topics": {"users": {"id": "kLhQkZ_dTQCU8PsWACbD0Q", "partitions": [0, 1], "unmade": [1],
#                           "config": {"retention.ms": "1"}}},
#      "deleted": {"old": ["DNBQGazITYep2N_VW9ngBQ"]},
#      "namespaces": {"public/default": {"compactionThreshold": "100000000"}}}   left out where there are none
#
# The copy with the highest generation counts: a directory that was offline for a while has an older one. A
# change is made in all copies before it is acknowledged, and before its partition directories are touched: a
# start makes the partitions that are listed as unmade, and takes away those of topics (by id) that are listed
# as deleted. A partition that was made once and is in none of the directories is not made again: its
# directory may be one that was not named this time. The settings of a topic that is on disk and not in the
# file are its broker's (see ``BrokerTopics``).

TOPICS_FILE = "siltstone-topics.json"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEntry:
    """One topic: its id ("" where Kafka gave it none), its partitions' numbers, its settings as texts.

    ``unmade``: those of the partitions whose directories a crash may have kept from being made.
    """

    topic_id: str
    partitions: tuple[int, ...]
    unmade: tuple[int, ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRegistry:
    """What the file holds. Changes make a new one with the next generation.

    ``deleted``: by name, the ids of deleted topics of which directories may be left. ``namespaces``: the
    policies of Pulsar's namespaces, by ``tenant/namespace``, as texts.
    """

    generation: int = 0
    topics: Mapping[str, TopicEntry] = field(default_factory=dict)
    deleted: Mapping[str, frozenset[str]] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def with_topic(self, name: str, entry: TopicEntry) -> TopicRegistry:
        """A topic is there, or is another one now."""
        return replace(self, generation=self.generation + 1, topics={**self.topics, name: entry})

    def without_topic(self, name: str, topic_id: str) -> TopicRegistry:
        """A topic is deleted; its directories may be there still."""
        kept = {other: entry for other, entry in self.topics.items() if other != name}
        deleted = {**self.deleted, name: self.deleted.get(name, frozenset()) | {topic_id}}
        return replace(self, generation=self.generation + 1, topics=kept, deleted=deleted)

    def with_namespace(self, name: str, policies: Mapping[str, str]) -> TopicRegistry:
        """A namespace has these policies now; one without any is not listed."""
        kept = {other: texts for other, texts in self.namespaces.items() if other != name}
        listed = {**kept, name: dict(policies)} if policies else kept
        return replace(self, generation=self.generation + 1, namespaces=listed)

    def without_deleted(self) -> TopicRegistry:
        """Nothing is left of the topics that were deleted. The generation stays: nothing depends on it."""
        return replace(self, deleted={})

    def encode(self) -> bytes:
        """The file's content."""
        topics = {
            name: {
                "id": entry.topic_id,
                "partitions": entry.partitions,
                "unmade": entry.unmade,
                "config": dict(entry.config),
            }
            for name, entry in self.topics.items()
        }
        deleted = {name: sorted(ids) for name, ids in self.deleted.items()}
        found = {"version": _VERSION, "generation": self.generation, "topics": topics, "deleted": deleted}
        if self.namespaces:
            found["namespaces"] = {name: dict(texts) for name, texts in self.namespaces.items()}
        return (json.dumps(found, sort_keys=True) + "\n").encode()


def load_registry(directories: Iterable[Path]) -> tuple[TopicRegistry, list[Path]]:
    """The newest copy in these directories, and the directories whose copy is missing or older.

    A copy that makes no sense counts as missing. Raises CorruptFileError when none does, OSError.
    """
    copies: dict[Path, TopicRegistry | None] = {}
    failure: CorruptFileError | None = None
    for directory in directories:
        try:
            copies[directory] = _read(directory / TOPICS_FILE)
        except CorruptFileError as error:
            copies[directory], failure = None, error
    found = [copy for copy in copies.values() if copy is not None]
    if failure is not None and not found:
        raise failure
    newest = max(found, key=lambda copy: copy.generation, default=TopicRegistry())
    behind = [each for each, copy in copies.items() if copy is None or copy.generation < newest.generation]
    return newest, behind if newest.generation else []


def write_registry(directory: Path, registry: TopicRegistry) -> None:
    """Replace a directory's copy, durably. Raises OSError."""
    files.replace(directory / TOPICS_FILE, registry.encode())


def _read(path: Path) -> TopicRegistry | None:
    try:
        raw = files.read_bytes(path)
    except FileNotFoundError:
        return None
    try:
        return _parse(json.loads(raw))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(str(path), 0, f"no list of topics ({error}); put an older copy back") from None


def _parse(found: Any) -> TopicRegistry:
    if found["version"] != _VERSION:
        raise ValueError(f"version {found['version']}; only {_VERSION} is known")
    topics = {
        str(name): TopicEntry(
            topic_id=str(entry["id"]),
            partitions=tuple(int(number) for number in entry["partitions"]),
            unmade=tuple(int(number) for number in entry["unmade"]),
            config={str(key): str(value) for key, value in entry["config"].items()},
        )
        for name, entry in found["topics"].items()
    }
    deleted = {str(name): frozenset(map(str, ids)) for name, ids in found["deleted"].items()}
    namespaces = {
        str(name): {str(key): str(value) for key, value in texts.items()}
        for name, texts in found.get("namespaces", {}).items()
    }
    return TopicRegistry(
        generation=int(found["generation"]), topics=topics, deleted=deleted, namespaces=namespaces
    )


# The topics of a broker in whose directories a ``LogManager`` is opened: their ids and settings are in the
# broker's own ``__cluster_metadata-0``, which is read once, when the directories are opened, and never
# changed.
#
# A topic that is listed in ``siltstone-topics.json`` (made here, or altered here) goes by that. Metadata that
# cannot be read means that nothing is opened for a change: by Kafka's defaults, a topic that compacts would
# lose all that is older than a week.


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTopics:
    """What the metadata says of topics; ``cluster`` None: there is none in these directories.

    ``has_owner``: they have a ``meta.properties``, so topics that are not listed here are somebody else's.
    """

    cluster: ClusterSettings | None = None
    has_owner: bool = False

    @classmethod
    def read(cls, directories: Sequence[LogDirectory]) -> BrokerTopics:
        """Read it. Raises DirectoryRefusedError where it is damaged, or is there twice."""
        try:
            holder = metadata_directory(directories)
            if holder is None:
                return cls(has_owner=any(directory.properties() for directory in directories))
            found = read_cluster_settings(holder, node_id=node_id_of(directories))
        except (CorruptFileError, UsageError, OSError) as error:
            places = ", ".join(str(directory.path) for directory in directories)
            raise DirectoryRefusedError(
                f"{places}: not opened for a change: the settings of its broker's topics cannot be read "
                f"({error}), so nothing says what must not be deleted; let the broker put its metadata log "
                "in order, or only read the directory"
            ) from None
        _logger.info("settings of topics: %s up to offset %d", found.path, found.image.end_offset)
        return cls(cluster=found, has_owner=True)

    @property
    def is_elsewhere(self) -> bool:
        """These directories are a broker's, and its metadata is in another one."""
        return self.has_owner and self.cluster is None

    def topic_id(self, name: str) -> str | None:
        """The id of a topic of the broker, None where it has no such topic."""
        return None if self.cluster is None else self.cluster.topic_id(name)

    def why_a_stranger(self, name: str, directory: Path) -> str | None:
        """Why a directory is of no topic of the broker; None where it is, or no metadata says so."""
        if self.cluster is None:
            return None
        try:
            return self.cluster.why_a_stranger(name, directory)
        except CorruptFileError as error:
            return str(error)

    def own_texts(self, name: str) -> dict[str, str]:
        """A topic's own settings as texts, those that are known here. Raises UsageError for a bad one."""
        if self.cluster is None:
            return {}
        known = self.cluster.own(name)
        return {key: text for key, text in self.cluster.own_texts(name).items() if key in known}

    def broker(self, config: Config) -> Config:
        """The broker's settings: those of the program, over what was set at run time."""
        return config if self.cluster is None else self.cluster.broker_in_force(config)

    def without_guesses(self, name: str, entry: TopicEntry | None, config: Config) -> LogConfig:
        """What a log goes by: of a topic that was not made here nothing goes by an age that nobody has set.

        ``config``: the topic's settings, ``entry``: as it is listed here. Kafka's default of 7 days
        counts only beside settings out of the broker's ``server.properties``, which may have another; so may
        a topic whose settings are in a directory that was not named. What is gone is gone.
        """
        found = LogConfig.of(config)
        made_here = entry is not None and (entry.topic_id or None) != self.topic_id(name)
        known = config.setting("retention.ms").origin is not ConfigSource.DEFAULT_CONFIG
        if made_here or known or not self.has_owner or config.layer(ConfigSource.STATIC_BROKER_CONFIG):
            return found
        return replace(found, retention_ms=-1)


_logger = logging.getLogger("siltstone")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic: its id (None where Kafka gave it none), partitions, those not served now, own settings."""

    name: str
    topic_id: str | None
    partitions: tuple[int, ...]
    offline: tuple[int, ...]
    config: Mapping[str, str]


# What a change of topics refuses, whether it is carried out or only tried (``--dry-run``).


def refuse_new_topic(
    name: str, others: Iterable[str], partitions: int, texts: Mapping[str, str], broker: Config
) -> None:
    """Raises InvalidTopicError, TopicExistsError, InvalidPartitionsError, InvalidConfigError."""
    refuse_bad_name(name)
    if name in others:
        raise TopicExistsError(f"topic {name!r} exists")
    refuse_collision(name, others)
    if partitions < 1:
        raise InvalidPartitionsError(f"topic {name!r}: {partitions} partitions; give at least 1")
    _refuse_bad_settings(name, texts, broker)


def refuse_fewer_partitions(name: str, have: int, count: int) -> None:
    """Raises InvalidPartitionsError unless ``count`` is more than a topic has."""
    if count <= have:
        raise InvalidPartitionsError(f"topic {name!r} has {have} partitions; {count} would not be more")


def altered_settings(
    name: str, before: Mapping[str, str], set_to: Mapping[str, str], remove: Iterable[str], broker: Config
) -> dict[str, str]:
    """A topic's settings with some set and others taken away. Raises InvalidConfigError."""
    try:
        gone = {find_topic_key(key).name for key in (*remove, *set_to)}
    except UsageError as error:
        raise InvalidConfigError(f"topic {name}: {error}") from None
    kept = {key: text for key, text in before.items() if find_topic_key(key).name not in gone}
    after = {**kept, **set_to}
    _refuse_bad_settings(name, after, broker)
    return after


def _refuse_bad_settings(name: str, texts: Mapping[str, str], broker: Config) -> None:
    try:
        config = refuse_contradictions(broker.over(parse_topic_config(texts, f"topic {name}")))
    except UsageError as error:
        raise InvalidConfigError(str(error)) from None
    find_policy(LogConfig.of(config).retention_policy)


class Partitions(Protocol):
    """What topics ask of the ``LogManager`` that holds their partitions; see there."""

    config: Config
    only: TopicPartition | None
    upkeep: Upkeep
    changing: threading.RLock

    @property
    def offline(self) -> Mapping[Path, str]: ...
    def serving(self) -> list[ServedDirectory]: ...
    def refuse_in_the_way(self, where: TopicPartition) -> None: ...
    def make(self, where: TopicPartition) -> object: ...
    def take_away(self, served: ServedDirectory, where: TopicPartition, delay_ms: int) -> None: ...
    def settings_changed(self, topic: str) -> None: ...


class Topics:
    """The topics of a ``LogManager``."""

    def __init__(self, manager: Partitions, random_bytes: RandomBytes) -> None:
        self._manager = manager
        self._random_bytes = random_bytes
        self._registry = TopicRegistry()
        self._behind: list[ServedDirectory] = []
        self._broker_topics = BrokerTopics()
        self._settings: dict[str, LogConfig] = {}
        self._ids_given: dict[str, str] = {}

    # Starting

    def load(self) -> None:
        """Read the registry, and the broker's metadata. Raises CorruptFileError, DirectoryRefusedError."""
        self._broker_topics = BrokerTopics.read([served.directory for served in self._manager.serving()])
        by_path = {served.path: served for served in self._manager.serving()}
        self._registry, behind = load_registry(by_path)
        self._behind = [by_path[path] for path in behind]

    def sort_out(self, served: ServedDirectory) -> None:
        """Before a directory's logs are opened: deleted topics' partitions go, strangers are passed over.

        Raises StorageError.
        """
        for where in list(served.directory.partitions):
            entry, deleted = self._registry.topics.get(where.topic), self._registry.deleted.get(where.topic)
            path, found = served.partition_path(where), ""
            if entry is not None or deleted is not None:
                try:
                    found = read_topic_id(path) or ""
                except CorruptFileError as error:
                    served.pass_over(where, str(error))
                    continue
            if deleted is not None and found in deleted:
                self._manager.take_away(served, where, self.log_config("").file_delete_delay_ms)
            elif entry is None:
                reason = self._broker_topics.why_a_stranger(where.topic, path)
                if reason is not None:
                    served.pass_over(where, reason)
            elif found and entry.topic_id not in ("", found):
                served.pass_over(where, f"its topic id is {found}, the topic's is {entry.topic_id}")

    def finish(self) -> None:
        """After the start: make partitions that are listed and missing, bring older copies up to date."""
        manager = self._manager
        if manager.only is not None:
            return
        for served in self._behind:
            if served.offline is None:
                with manager.upkeep.guarded(served):
                    write_registry(served.path, self._registry)
        for served in manager.serving():
            for each in served.directory.passed_over:
                path = served.path / each.path.rpartition("/")[2]
                if is_deleted_directory(path.name):
                    manager.upkeep.remove_later(served, path, self.log_config("").file_delete_delay_ms)
        if manager.offline:
            return
        for name, entry in self._registry.topics.items():
            if entry.unmade:
                try:
                    self._make(name, entry)
                except DirectoryRefusedError as error:
                    _logger.warning("%s; topic %s stays without it until the next start", error, name)

    # Settings

    def settings(self, name: str) -> Config:
        """What holds for a topic: its own settings over the broker's. Raises UsageError for a bad one."""
        entry = self._registry.topics.get(name)
        own = parse_topic_config(self._own_texts(name, entry), f"topic {name}")
        return self._broker.over(own)

    def _own_texts(self, name: str, entry: TopicEntry | None) -> Mapping[str, str]:
        return self._broker_topics.own_texts(name) if entry is None else entry.config

    def log_config(self, name: str) -> LogConfig:
        """The same, as a log reads it; see ``BrokerTopics.without_guesses``. Raises UsageError."""
        entry = self._registry.topics.get(name)
        known = name if entry is not None or self._broker_topics.topic_id(name) is not None else ""
        config = self._settings.get(known)
        if config is None:
            config = self._broker_topics.without_guesses(known, entry, self.settings(known))
            self._settings[known] = config
        return config

    def forget_settings(self) -> None:
        """The broker's settings are others now."""
        self._settings = {}

    @property
    def _broker(self) -> Config:
        return self._broker_topics.broker(self._manager.config)

    # What there is

    def names(self) -> list[str]:
        """All topics, in order of name."""
        return sorted({*self._registry.topics, *(where.topic for where in self._here())})

    def _here(self) -> set[TopicPartition]:
        return {where for served in self._manager.serving() for where in (*served.logs, *served.refused)}

    def has(self, where: TopicPartition) -> bool:
        """Is this partition listed, be it served or not?"""
        entry = self._registry.topics.get(where.topic)
        return entry is not None and where.partition in entry.partitions

    def describe(self, name: str) -> TopicDescription:
        """One topic. Raises UnknownTopicError."""
        entry = self._entry(name)
        serving = self._manager.serving()
        served = {where.partition for each in serving for where in list(each.logs) if where.topic == name}
        return TopicDescription(
            name=name,
            topic_id=entry.topic_id or None,
            partitions=entry.partitions,
            offline=tuple(number for number in entry.partitions if number not in served),
            config=dict(entry.config),
        )

    def _entry(self, name: str) -> TopicEntry:
        """The registry's entry with what else is on disk, for a topic of a broker all of it."""
        listed = self._registry.topics.get(name)
        found = sorted(where for where in self._here() if where.topic == name)
        if listed is None and not found:
            raise UnknownTopicError(f"there is no topic {name!r} here")
        numbers = {where.partition for where in found}
        if listed is not None:
            return replace(listed, partitions=tuple(sorted({*listed.partitions, *numbers})))
        topic_id = self._found_id(found)
        own = self._own_texts(name, None)
        return TopicEntry(topic_id=topic_id or "", partitions=tuple(sorted(numbers)), config=own)

    def _found_id(self, wheres: Iterable[TopicPartition]) -> str | None:
        for served in self._manager.serving():
            for where in wheres:
                with contextlib.suppress(CorruptFileError):
                    topic_id = read_topic_id(served.partition_path(where))
                    if topic_id is not None:
                        return topic_id
        return None

    def id_of(self, name: str) -> str | None:
        """The id for a topic's new partition."""
        if self._manager.only is not None and name not in self._registry.topics:
            return self._ids_given.setdefault(name, new_id(self._random_bytes))
        with contextlib.suppress(UnknownTopicError):
            return self._entry(name).topic_id or None
        return None

    # Changing

    def create(
        self,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> TopicDescription:
        """A new topic; ``num.partitions`` partitions unless told, ``config`` as texts by Kafka's names.

        Raises InvalidTopicError, TopicExistsError, InvalidPartitionsError, InvalidConfigError, StorageError,
        DirectoryRefusedError where something that is no directory has a partition's name.
        """
        with self._manager.changing:
            names, texts = self.names(), dict(config or {})
            if name not in names and self._broker_topics.topic_id(name) is not None:
                raise TopicExistsError(
                    f"topic {name!r} exists in the broker's metadata, with no partition here: "
                    "make them with get_or_create, one by one"
                )
            count = self._manager.config.integer("num.partitions") if partitions is None else partitions
            refuse_new_topic(name, names, count, texts, self._broker)
            numbers = tuple(range(count))
            self._refuse_in_the_way(name, numbers)
            entry = TopicEntry(
                topic_id=new_id(self._random_bytes), partitions=numbers, unmade=numbers, config=texts
            )
            if validate_only:
                return _as_asked(name, entry)
            self._write(self._registry.with_topic(name, entry))
            self._make(name, entry)
            return self.describe(name)

    def add_partitions(self, name: str, count: int) -> TopicDescription:
        """Let a topic have ``count`` partitions, which is more than it has.

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
        self._refuse_in_the_way(name, more)
        numbers = tuple(sorted((*entry.partitions, *more)))
        entry = replace(entry, partitions=numbers, unmade=(*entry.unmade, *more))
        self._write(self._registry.with_topic(name, entry))
        self._make(name, entry)

    def _refuse_in_the_way(self, name: str, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._manager.refuse_in_the_way(TopicPartition(name, number))

    def _make(self, name: str, entry: TopicEntry) -> None:
        """Make what is unmade of a listed topic, and say so only then: a crash before makes it once more."""
        here = {where for served in self._manager.serving() for where in served.all_partitions}
        for where in (TopicPartition(name, number) for number in entry.unmade):
            if where not in here:
                self._manager.make(where)
        self._write(self._registry.with_topic(name, replace(entry, unmade=())))

    def add(self, where: TopicPartition) -> None:
        """A new partition, of a topic that may be new too. Raises as ``create`` does."""
        if self._manager.only is not None:
            if where != self._manager.only:
                raise UnknownTopicError(f"{where}: only {self._manager.only} is open here")
            self._manager.make(where)
            return
        names = self.names()
        if where.topic in names:
            entry = self._entry(where.topic)
        else:
            refuse_bad_name(where.topic)
            refuse_collision(where.topic, names)
            known = self._broker_topics.topic_id(where.topic)
            own = self._broker_topics.own_texts(where.topic)
            entry = TopicEntry(topic_id=known or new_id(self._random_bytes), partitions=(), config=own)
        if where.partition < 0:
            raise InvalidPartitionsError(f"{where.topic}: no partition has number {where.partition}")
        self._add(where.topic, entry, [where.partition])

    def alter(
        self, name: str, set_to: Mapping[str, str] | None = None, *, remove: Iterable[str] = ()
    ) -> TopicDescription:
        """Set some of a topic's settings and take others away; they hold at once, sizes at the next roll.

        Raises UnknownTopicError, InvalidConfigError, StorageError; DirectoryRefusedError where
        the topic's other settings are in metadata that is not in these directories.
        """
        with self._manager.changing:
            entry = self._entry(name)
            if name not in self._registry.topics and self._broker_topics.is_elsewhere:
                raise DirectoryRefusedError(
                    f"topic {name}: its other settings are in its broker's metadata, which is in none of "
                    "these directories: name all of the broker's log.dirs, or alter it through the broker"
                )
            texts = altered_settings(name, entry.config, set_to or {}, remove, self._broker)
            self._write(self._registry.with_topic(name, replace(entry, config=texts)))
            self._settings.pop(name, None)
            self._manager.settings_changed(name)
            return self.describe(name)

    def delete(self, name: str) -> None:
        """A topic goes: its directories are renamed now and removed after ``file.delete.delay.ms``.

        Partitions in a directory that is offline go when that is back. Raises UnknownTopicError,
        StorageError.
        """
        with self._manager.changing:
            entry, delay_ms = self._entry(name), self.log_config(name).file_delete_delay_ms
            self._write(self._registry.without_topic(name, entry.topic_id))
            for served in self._manager.serving():
                for where in [each for each in (*served.logs, *served.refused) if each.topic == name]:
                    with contextlib.suppress(StorageError):
                        self._manager.take_away(served, where, delay_ms)
            self._settings.pop(name, None)
            if not self._manager.offline:
                self._registry = self._registry.without_deleted()

    # Namespaces

    @property
    def namespaces(self) -> Mapping[str, Mapping[str, str]]:
        """The policies of Pulsar's namespaces, by ``tenant/namespace``."""
        return self._registry.namespaces

    def alter_namespace(
        self, name: str, set_to: Mapping[str, str] | None = None, *, remove: Iterable[str] = ()
    ) -> Mapping[str, str]:
        """Set some of a namespace's policies and take others away; they hold at once, and durably.

        Raises UsageError for a bad name, InvalidConfigError, StorageError.
        """
        with self._manager.changing:
            namespace = parse_namespace(name)
            before = self._registry.namespaces.get(name, {})
            policies = altered_policies(before, set_to or {}, remove, namespace)
            self._write(self._registry.with_namespace(name, policies))
            return policies

    def _write(self, registry: TopicRegistry) -> None:
        """Make a change durable in every directory that serves. Raises StorageError when none does."""
        if self._manager.only is not None:
            raise DirectoryRefusedError("a single partition is open: open its log directory to change topics")
        for served in self._manager.serving():
            with self._manager.upkeep.guarded(served):
                write_registry(served.path, registry)
        if not self._manager.serving():
            raise StorageError("no log directory is in service")
        self._registry = registry


def _as_asked(name: str, entry: TopicEntry) -> TopicDescription:
    return TopicDescription(
        name=name, topic_id=None, partitions=entry.partitions, offline=(), config=entry.config
    )
