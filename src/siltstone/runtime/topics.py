"""The topics of open log directories: creates, changes, deletes and lists them, with their settings.

Every change is first written to ``siltstone-topics.json`` (``TopicRegistry``) and then carried out on the
partitions: the next start completes a change that a crash interrupted. Errors have Kafka's codes: 3 unknown
topic, 17 invalid name or collision, 36 topic exists, 37 invalid number of partitions, 40 invalid settings.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from siltstone.base import files
from siltstone.base.config import (
    Config,
    ConfigSource,
    ConfigValue,
    LogConfig,
    config_texts,
    parse_broker_config,
    parse_stored_config,
    parse_topic_config,
    refuse_contradictions,
)
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import (
    CorruptFileError,
    DirectoryRefusedError,
    InvalidPartitionsError,
    SiltstoneError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
    UsageError,
)
from siltstone.log.checkpoints import node_number, read_topic_id
from siltstone.log.directory import LogDirectory
from siltstone.log.metadata_log import ClusterSettings, metadata_directory, node_id_of, read_cluster_settings
from siltstone.log.names import MAX_PARTITION, TopicPartition, parse_partition
from siltstone.log.partition import DISK_FULL_ERRORS
from siltstone.log.retention import find_policy
from siltstone.runtime.quotas import QuotaEntry, Quotas, from_entries, to_entries
from siltstone.runtime.served_directory import OPEN_AGAIN, ServedDirectory
from siltstone.runtime.topic_names import (
    altered_policies,
    altered_texts,
    bad_settings_are_invalid_config,
    id_bytes,
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
# Kafka keeps this in its metadata log; a log directory that only Siltstone uses has none. The file is in the
# root of every log directory. A broker ignores files there; at a folder that it does not know it would stop::
#
#     {"version": 1, "generation": 7,
#      "topics": {"users": {"id": "kLhQkZ_dTQCU8PsWACbD0Q", "partitions": [0, 1], "unmade": [1],
#                           "config": {"retention.ms": "1"}}},
#      "deleted": {"old": ["DNBQGazITYep2N_VW9ngBQ"]},
#      "namespaces": {"public/default": {"compactionThreshold": "100000000"}},   left out if there are none
#      "brokers": {"": {"log.retention.ms": "1"}, "0": {}},                      left out if there are none
#      "quotas": [{"entity": {"user": "ada"}, "values": {"producer_byte_rate": 1000.0}}],
#                                                                                left out if never altered
#      "handed_over": ["kLhQkZ_dTQCU8PsWACbD0Q"],                                left out if there are none
#      "handed_over_brokers": ["", "0"],                                         left out if there are none
#      "replaced_log": "155 at 1700000000000"}                                   left out if there was none
#
# The copy with the highest generation counts: a directory that was offline has an older one. Directories
# that fail in turn, one in each start, have copies that do not know each other's changes. So a generation is
# the next number or the time of the change in ms, whichever is higher: as long as no clock goes back, the
# copy with the last change counts there, too. The other's changes are not merged into it: it does not show
# whether a topic that only one copy lists was created or deleted. Such a topic's partitions stay. A change is
# written to all copies before it is acknowledged and before partition directories change, so the next start
# can complete it. It creates the partitions that are listed as ``unmade`` (not created yet), and removes
# those of the topics (by id) that are listed as ``deleted``. A partition that was created once and is in no
# directory is not created again: it may be in a log directory that is not opened this time. A topic that is
# on disk and not in the file has the settings of its broker (see ``TopicSettings``).

TOPICS_FILE = "siltstone-topics.json"


class TopicEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One topic: its id ("" if Kafka gave it none), the numbers of its partitions, its settings as texts.

    ``uncreated``: the partitions that are still to be created. They are listed before their directories are
    created, so that the next start can create them after a crash.
    """

    topic_id: str = msgspec.field(name="id")
    partitions: tuple[int, ...]
    uncreated: tuple[int, ...] = msgspec.field(name="unmade")
    config: Mapping[str, str]

    def describe(self, name: str, *, is_registered: bool, offline: tuple[int, ...] = ()) -> TopicDescription:
        """This entry as the description of topic ``name``; see ``TopicDescription``."""
        return TopicDescription(
            name=name,
            topic_id=self.topic_id or None,
            partitions=self.partitions,
            config=self.config,
            offline=offline,
            is_registered=is_registered,
        )


@decoded_in_threads
class TopicRegistry(msgspec.Struct, frozen=True, kw_only=True, tag_field="version", tag=1):
    """The content of the file. Each change makes a new registry with the next ``generation``.

    ``deleted``: topic name → ids of deleted topics of that name, of which directories may be left.
    ``namespaces``: ``tenant/namespace`` → policies of Pulsar's namespace (name → text). ``brokers``: a
    broker's id, or "" for all of a cluster → its dynamic settings (name → text). ``quotas``: None as long as
    Siltstone has changed none: then those of the metadata log count. ``handed_over``,
    ``handed_over_brokers``: ids of topics, and broker's ids, that were handed over to a Kafka (``siltstone
    hand-over``): where the directories have a metadata log, it has their settings, or has deleted them.
    ``quotas_are_handed_over``: the same of quotas. ``replaced_log``: the state of the metadata log that the
    directories had before the hand-over, which moves it away. As long as it is there (the command was
    interrupted), it has nothing of what is handed over, and the registry's settings count.
    """

    generation: int
    topics: Mapping[str, TopicEntry]
    deleted: Mapping[str, frozenset[str]]
    namespaces: Mapping[str, Mapping[str, str]] = {}
    brokers: Mapping[str, Mapping[str, str]] = {}
    handed_over: frozenset[str] = frozenset()
    quotas: tuple[QuotaEntry, ...] | None = None
    handed_over_brokers: frozenset[str] = frozenset()
    quotas_are_handed_over: bool = False
    replaced_log: str = ""

    def with_topic(self, name: str, entry: TopicEntry) -> TopicRegistry:
        """Add a topic, or replace its entry: the registry has its settings from now on."""
        topics, handed_over = {**self.topics, name: entry}, self.handed_over - {entry.topic_id}
        return replace(self, generation=self.generation + 1, topics=topics, handed_over=handed_over)

    def all_handed_over(
        self,
        topics: Mapping[str, TopicEntry],
        brokers: Mapping[str, Mapping[str, str]],
        quotas: Quotas,
        replaced: ClusterSettings | None,
    ) -> TopicRegistry:
        """A registry with these topics, dynamic settings of brokers and quotas, all marked as handed over to
        a Kafka; ``replaced``: the metadata log that is to be moved away."""
        has_quotas = bool(quotas) or self.quotas is not None
        return replace(
            self,
            generation=self.generation + 1,
            topics=topics,
            brokers={name: settings for name, settings in brokers.items() if settings},
            quotas=to_entries(quotas) if has_quotas else None,
            handed_over=frozenset(entry.topic_id for entry in topics.values() if entry.topic_id),
            handed_over_brokers=frozenset(name for name, settings in brokers.items() if settings),
            quotas_are_handed_over=has_quotas,
            replaced_log="" if replaced is None else replaced.state,
        )

    @property
    def is_handed_over(self) -> bool:
        """Was a part of the registry handed over to a Kafka?"""
        return bool(self.handed_over or self.handed_over_brokers or self.quotas_are_handed_over)

    def without_handed_over(self, cluster: ClusterSettings | None) -> TopicRegistry:
        """The registry without what was handed over to a Kafka, if the directories have that Kafka's metadata
        log (``cluster``), whose settings count now. The log from before the hand-over is not that one."""
        if cluster is None or not self.is_handed_over or cluster.state == self.replaced_log:
            return self
        quotas = None if self.quotas_are_handed_over else self.quotas
        kept = {name: entry for name, entry in self.topics.items() if entry.topic_id not in self.handed_over}
        own = {
            name: settings for name, settings in self.brokers.items() if name not in self.handed_over_brokers
        }
        return replace(self, topics=kept, brokers=own, quotas=quotas, quotas_are_handed_over=False)

    def effective_quotas(self, cluster: ClusterSettings | None) -> Quotas:
        """The quotas: Siltstone's, if it has changed some, else those of the metadata log."""
        if self.quotas is not None:
            return from_entries(self.quotas)
        return {} if cluster is None else cluster.image.quotas

    def with_quotas(self, quotas: Quotas) -> TopicRegistry:
        """Replace all quotas."""
        return replace(
            self,
            generation=self.generation + 1,
            quotas=to_entries(quotas),
            quotas_are_handed_over=False,
        )

    def without_topic(self, name: str, topic_id: str) -> TopicRegistry:
        """Remove a topic; its id stays listed as deleted until its directories are renamed."""
        topics = {topic: entry for topic, entry in self.topics.items() if topic != name}
        deleted = {**self.deleted, name: self.deleted.get(name, frozenset()) | {topic_id}}
        return replace(self, generation=self.generation + 1, topics=topics, deleted=deleted)

    def without_deleted(self) -> TopicRegistry:
        """Forget the ids of deleted topics."""
        return replace(self, generation=self.generation + 1, deleted={})

    def as_newest(self, now_ms: int) -> TopicRegistry:
        """A changed registry with a generation that no earlier change in another directory has."""
        return replace(self, generation=max(self.generation, now_ms))

    def with_namespace(self, name: str, policies: Mapping[str, str]) -> TopicRegistry:
        """Replace a namespace's policies; a namespace without any is not listed."""
        listed = {**self.namespaces, name: dict(policies)}
        listed = {namespace: overrides for namespace, overrides in listed.items() if overrides}
        return replace(self, generation=self.generation + 1, namespaces=listed)

    def with_broker(self, broker_id: str, settings: Mapping[str, str]) -> TopicRegistry:
        """Replace the dynamic settings of a broker, or of all: the registry has them from now on. A broker
        without any is not listed."""
        listed = {**self.brokers, broker_id: dict(settings)}
        listed = {name: overrides for name, overrides in listed.items() if overrides}
        handed_over = self.handed_over_brokers - {broker_id}
        return replace(self, generation=self.generation + 1, brokers=listed, handed_over_brokers=handed_over)

    def with_dynamic_settings(self, config: Config) -> Config:
        """A broker's ``config`` with the registry's dynamic settings, which replace those that it has. Raises
        UsageError for a bad value of a setting that Siltstone uses."""
        for broker_id, settings in self.brokers.items():
            source = dynamic_source(of_all=not broker_id)
            own = parse_stored_config(settings, TOPICS_FILE, source)
            config = config.with_layer(source, {**config.layer(source), **own})
        return config

    def entry(
        self,
        name: str,
        partitions: Mapping[TopicPartition, Path],
        *,
        offline: Iterable[int] = (),
        known_id: str = "",
    ) -> TopicEntry:
        """A topic's entry, with its partitions on disk added.

        ``partitions``: the directory of each partition on disk, also of other topics. ``offline``: the
        numbers of its partitions in directories that are offline; ``known_id``: its id if it has only these.
        A topic that the registry does not list gets an entry without settings. Raises UnknownTopicError if it
        has no partition either.
        """
        here = sorted(topic_partition for topic_partition in partitions if topic_partition.topic == name)
        paths = {topic_partition.partition: partitions[topic_partition] for topic_partition in here}
        listed, on_disk = self.topics.get(name), {*paths, *offline}
        if listed is not None:
            numbers = tuple(sorted({*listed.partitions, *on_disk}))
            return listed if numbers == listed.partitions else replace(listed, partitions=numbers)
        if not on_disk:
            raise UnknownTopicError(f"the log directories have no topic {name!r}")
        topic_id = next(filter(None, map(_readable_topic_id, paths.values())), known_id)
        return TopicEntry(topic_id=topic_id, partitions=tuple(sorted(on_disk)), uncreated=(), config={})

    def has_deleted(self, topic_partition: TopicPartition, directory: Path) -> bool:
        """Is this the directory of a topic that was deleted? Never without an id: it may be another topic's.
        Raises CorruptFileError."""
        ids = self.deleted.get(topic_partition.topic)
        return ids is not None and (read_topic_id(directory) or None) in ids

    def encode(self) -> bytes:
        """The file as bytes. By ``json``, not msgspec: a text may have surrogates, for bytes that are not
        UTF-8."""
        document = msgspec.to_builtins(self, order="deterministic")
        of_hand_over = ("handed_over", "handed_over_brokers", "quotas_are_handed_over", "replaced_log")
        for name in ("namespaces", "brokers", *of_hand_over):  # these are left out if they are empty
            if not document[name]:
                del document[name]
        if document["quotas"] is None:  # an empty list says that there are none
            del document["quotas"]
        return (json.dumps(document, sort_keys=True) + "\n").encode()


def dynamic_source(*, of_all: bool) -> ConfigSource:
    """The layer of the dynamic settings of one broker, or, ``of_all``, of all brokers of a cluster."""
    if of_all:
        return ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return ConfigSource.DYNAMIC_BROKER_CONFIG


def _readable_topic_id(directory: Path) -> str | None:
    """The topic id in a partition's directory, None without one or if its file cannot be read."""
    with contextlib.suppress(CorruptFileError, OSError):
        return read_topic_id(directory)
    return None


NO_TOPICS = TopicRegistry(generation=0, topics={}, deleted={})


def load_registry(
    directories: Iterable[Path], on_error: Callable[[Path, OSError], object] | None = None
) -> tuple[TopicRegistry, list[Path]]:
    """The newest copy of the registry, and the directories whose copy is missing or another one.

    A damaged copy counts as missing. ``on_error``: called with each directory whose copy cannot be read, for
    an error of the file system; without it the error is raised. Raises CorruptFileError if copies are damaged
    and none is left, OSError.
    """
    copies: dict[Path, TopicRegistry] = {}
    missing: list[Path] = []
    failure: CorruptFileError | None = None
    for directory in directories:
        path = directory / TOPICS_FILE
        try:
            copies[directory] = _decoded(files.read_bytes(path))
        except FileNotFoundError:
            missing.append(directory)
        except OSError as error:
            if on_error is None:
                raise
            on_error(directory, error)
        except (ValueError, RecursionError) as error:
            reason = f"the file is not a registry of topics: {error}"
            failure = CorruptFileError(str(path), 0, reason, advice="restore the file from a backup")
            missing.append(directory)
    if failure is not None and not copies:
        raise failure
    newest = max(copies.values(), key=lambda copy: copy.generation, default=NO_TOPICS)
    others = [directory for directory, copy in copies.items() if copy != newest]
    return newest, [*missing, *others] if newest.generation else []


def _decoded(data: bytes) -> TopicRegistry:
    """Raises ValueError, RecursionError."""
    try:
        registry = msgspec.json.decode(data, type=TopicRegistry)
    except ValueError:  # it may have surrogates, or else says better what is wrong
        registry = msgspec.convert(json.loads(data), TopicRegistry)
    for name, entry in registry.topics.items():
        if parse_partition(f"{name}-0") != TopicPartition(name, 0):
            raise ValueError(f"{name!r} is not the name of a topic")
        for number in (*entry.partitions, *entry.uncreated):
            if not _is_partition_number(number):
                raise ValueError(f"topic {name!r} cannot have a partition {number}")
    # Most topics have the settings of others: one object for all of them.
    shared: dict[frozenset[tuple[str, str]], Mapping[str, str]] = {}
    topics = {
        name: replace(entry, config=shared.setdefault(frozenset(entry.config.items()), entry.config))
        for name, entry in registry.topics.items()
    }
    return replace(registry, topics=topics)


def _is_partition_number(number: int) -> bool:
    """Does a start find a directory with this number again?"""
    return 0 <= number <= MAX_PARTITION


def registry_files(directories: Iterable[Path]) -> list[files.FileStat | None]:
    """The files of the registry's copies, None for a missing one: as long as none is written they are equal.
    Two that are written within a tick of the clock may be equal, too. Raises OSError."""
    statuses = list[files.FileStat | None]()
    for directory in directories:
        try:
            statuses.append(files.stat(directory / TOPICS_FILE))
        except FileNotFoundError:
            statuses.append(None)
    return statuses


def write_registry(directory: Path, registry: TopicRegistry) -> None:
    """Replace a directory's copy, durably. Raises OSError."""
    files.replace(directory / TOPICS_FILE, registry.encode())


# The settings of topics: for an open ``LogManager``, for read-only directories, for a cleaning.
#
# A topic in ``siltstone-topics.json`` has the settings that are listed there. Any other topic has those of
# the broker's metadata log ``__cluster_metadata-0``, which is only read.


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """Ids and settings of topics, from Siltstone's registry, or else from the broker's metadata log.

    ``registered``: the topics of the registry. ``cluster``: what the metadata log says, None without one.
    ``broker``: the broker's settings, with its dynamic ones.
    """

    registered: Mapping[str, TopicEntry] = field(default_factory=dict)
    cluster: ClusterSettings | None = None
    broker: Config = field(default_factory=Config)

    def broker_topic_id(self, name: str) -> str | None:
        """The id of a topic in the broker's metadata log, None if it has none."""
        return None if self.cluster is None else self.cluster.topic_id(name)

    def knows(self, name: str) -> bool:
        """Is the topic in the registry or in the broker's metadata log?"""
        return name in self.registered or self.broker_topic_id(name) is not None

    def is_created_by_siltstone(self, name: str) -> bool:
        """Was the topic created with Siltstone? (A broker's topic is registered, too, once it was
        altered with Siltstone.)"""
        return name in self.registered and (self.registered[name].topic_id or None) != self.broker_topic_id(
            name
        )

    def partition_count(self, name: str) -> int | None:
        """How many partitions a topic has, in these directories and elsewhere: by the registry if Siltstone
        created it, else by the broker's metadata log; None if neither says it.

        A program may create single partitions (``LogManager.get_or_create``): with a gap in their numbers
        it is not known how many there are to be."""
        if self.is_created_by_siltstone(name):
            numbers = self.registered[name].partitions
            return len(numbers) if numbers == tuple(range(len(numbers))) else None
        return None if self.cluster is None else self.cluster.partition_count(name)

    def overrides(self, name: str) -> Mapping[str, str]:
        """A topic's own settings as texts, of the keys that Siltstone supports. Raises UsageError for an
        invalid one."""
        if name in self.registered:
            return self.registered[name].config
        if self.cluster is None:
            return {}
        supported = self.cluster.known_overrides(name)
        return {key: text for key, text in self.cluster.overrides(name).items() if key in supported}

    def config_of(self, name: str) -> Config:
        """A topic's own settings over the broker's. Raises UsageError for an invalid one."""
        if name in self.registered:
            return self.broker.with_topic_layer(parse_topic_config(self.registered[name].config, TOPICS_FILE))
        return self.broker if self.cluster is None else self.cluster.config_of(name, self.broker)

    def topic_mismatch(self, name: str, directory: Path) -> str | None:
        """Why a directory does not belong to the topic of its name; None if it does.

        Raises CorruptFileError for a damaged ``partition.metadata``.
        """
        if name not in self.registered:
            return None if self.cluster is None else self.cluster.mismatch_reason(name, directory)
        topic_id, listed_id = read_topic_id(directory), self.registered[name].topic_id
        if not topic_id or listed_id in ("", topic_id):
            return None
        return f"its topic id is {topic_id}, but {TOPICS_FILE} has {listed_id} for its name"


def read_broker_settings(directories: Sequence[LogDirectory]) -> ClusterSettings | None:
    """Read the broker's metadata log, before its directories are opened for changes; None if they have none.

    If it cannot be read, nothing may be opened: with Kafka's default settings, retention would delete all
    records of a compacted topic that are older than a week. Raises DirectoryRefusedError if it is damaged, or
    in two directories.
    """
    try:
        directory = metadata_directory(directories)
        if directory is None:
            return None
        cluster = read_cluster_settings(directory, node_id=node_id_of(directories))
    except (CorruptFileError, UsageError, OSError) as error:
        raise DirectoryRefusedError(
            "the topics' settings cannot be read from the broker's metadata log, so the records that must be "
            f"retained are unknown: {error}",
            path=", ".join(str(directory.path) for directory in directories),
            advice="let the broker repair its metadata log, or open the directory read-only",
        ) from None
    _logger.info("The topics have the settings of %s up to offset %d", cluster.path, cluster.image.end_offset)
    return cluster


class Strays:
    """Tells whether the directory of a partition is stray: whether its topic id is that of a topic that was
    deleted. Of such a directory and one of a new topic of the same name, the new topic's counts.

    For directories that are locked and not changed yet. The registry and the broker's metadata log are read
    when it is called first. Corresponds to Kafka's ``LogManager.isStrayReplica``, for which a partition
    without an id is stray, too; here it is not, since nothing shows which topic it is of.
    """

    def __init__(self, directories: Sequence[LogDirectory]) -> None:
        self._directories = directories

    @cached_property
    def _known(self) -> tuple[TopicRegistry, TopicSettings]:
        # A directory whose copy cannot be read goes offline in ``Topics.load``.
        registry, cluster, _ = _read_topics(self._directories, on_error=lambda directory, error: None)
        return registry, TopicSettings(registered=registry.topics, cluster=cluster)

    def __call__(self, topic_partition: TopicPartition, path: Path) -> bool:
        """Is it stray? Raises CorruptFileError, DirectoryRefusedError if that cannot be known, OSError."""
        if not _readable_topic_id(path):
            return False
        registry, settings = self._known
        return (
            registry.has_deleted(topic_partition, path)
            or settings.topic_mismatch(topic_partition.topic, path) is not None
        )


def _read_topics(
    directories: Sequence[LogDirectory], on_error: Callable[[Path, OSError], object]
) -> tuple[TopicRegistry, ClusterSettings | None, list[Path]]:
    """The registry without what was handed over to a Kafka, the broker's metadata, and the directories whose
    copy of the registry is missing or another one; ``on_error``: see ``load_registry``. Raises
    CorruptFileError, DirectoryRefusedError."""
    cluster = read_broker_settings(directories)
    registry, outdated = load_registry((directory.path for directory in directories), on_error)
    return registry.without_handed_over(cluster), cluster, outdated


_logger = logging.getLogger("siltstone")
_NO_TOPIC = ""
"""For ``Topics.log_config``: no topic has this name, so the settings are the broker's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic: its id (None if Kafka gave it none), the numbers of its partitions, its own settings as texts.

    ``offline``: partitions that are not served now. ``is_registered``: Siltstone's registry lists the topic,
    since it was created or altered with Siltstone, so the settings are the registry's.
    """

    name: str
    topic_id: str | None
    partitions: tuple[int, ...]
    config: Mapping[str, str]
    offline: tuple[int, ...]
    is_registered: bool


# The checks before a change of topics, also for ``--dry-run``.


def refuse_new_topic(
    name: str, existing: Iterable[str], partitions: int, overrides: Mapping[str, str], broker: Config
) -> None:
    """Check a topic that is to be created; ``existing``: the names of all topics.

    Raises InvalidTopicError, TopicExistsError, InvalidPartitionsError, InvalidConfigError.
    """
    refuse_bad_name(name)
    if name in existing:
        raise TopicExistsError(f"topic {name!r} already exists")
    refuse_collision(name, existing)
    _refuse_bad_settings(name, overrides, broker)
    if partitions < 1:
        raise InvalidPartitionsError(
            f"topic {name!r} cannot have {partitions} partitions", advice="pass at least 1"
        )


def refuse_fewer_partitions(name: str, current: int, count: int) -> None:
    """Raises InvalidPartitionsError unless ``count`` is more than the ``current`` number of partitions."""
    if count <= current:
        raise InvalidPartitionsError(
            f"topic {name!r} has {current} already: {count} would not add a partition",
            advice=f"pass at least {current + 1}",
        )


def altered_settings(
    name: str, before: Mapping[str, str], set_to: Mapping[str, str], remove: Iterable[str], broker: Config
) -> dict[str, str]:
    """A topic's settings after some were set and others removed. Raises InvalidConfigError."""
    after = altered_texts(before, set_to, remove, f"topic {name}")
    _refuse_bad_settings(name, after, broker)
    return after


def altered_broker(config: Config, settings: Mapping[str, str], *, of_all: bool) -> Config:
    """A broker's ``config`` with ``settings`` in place of the dynamic settings of this broker, or of
    all. Raises InvalidConfigError."""
    source = dynamic_source(of_all=of_all)
    with bad_settings_are_invalid_config("broker"):
        layer = parse_broker_config(settings, "broker", source)
        return refuse_contradictions(config.with_layer(source, layer))


def _refuse_bad_settings(name: str, overrides: Mapping[str, str], broker: Config) -> None:
    source = f"topic {name}"
    with bad_settings_are_invalid_config(source):
        config = refuse_contradictions(broker.with_topic_layer(parse_topic_config(overrides, source)))
    find_policy(LogConfig.of(config).retention_policy)


class _OnDisk(NamedTuple):
    """The numbers of partitions by topic. ``serving``: of those in directories that serve; ``offline``: of
    those that are only in directories that are offline."""

    serving: Mapping[str, Sequence[int]]
    offline: Mapping[str, Sequence[int]]


@dataclass(slots=True, eq=False)
class _Cache:
    """A cache of what was read of topics and partitions since they last changed. A change begins a new cache.

    A change may take seconds for many partitions, and readers do not wait for it. What a reader reads during
    a change, it keeps in the old cache, which later readers do not use.

    ``partitions``, ``counts``: by topic; ``on_disk``: the state of the directories, and the partitions that
    they had in it; ``ids``: the ids by name, and the names by id.
    """

    partitions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    counts: dict[str, int | None] = field(default_factory=dict)
    on_disk: tuple[object, _OnDisk] = (None, _OnDisk({}, {}))
    ids: tuple[Mapping[str, bytes], Mapping[bytes, str]] | None = None


class Topics:
    """The topics of a ``LogManager``.

    ``_cluster``: the broker's metadata log, None without one. ``_is_used_by_broker``: a broker has used the
    directories; ``_node_id``: that broker's. ``_outdated``: directories whose copy of the registry is missing
    or another one. ``_log_configs``: a cache, by topic. ``_cache``: what was read since the last change of
    topics. ``_all_partitions``: the result of ``all_partitions``, after the registry and the numbers on disk
    that it was made from.
    ``_ids_on_disk``: the ids of topics that the registry does not list, as far as they were read.
    ``_new_ids``: ids of new topics while a single partition is open (``LogManager.only``); the registry does
    not list them.

    A change of topics goes step by step::

        check ─► write the registry to every directory, durably ─► change the partitions ─► write it again

    The second write lists the partitions as created. After a crash between the two the next start completes
    the change: ``exclude_partitions`` deletes, ``complete_start`` creates. In Kafka the controller writes the
    metadata log, and ``TopicConfigHandler`` and ``LogManager`` (``getOrCreateLog``, ``asyncDelete``) follow.
    """

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._registry = NO_TOPICS
        self._outdated: list[Path] = []
        self._cluster: ClusterSettings | None = None
        self._is_used_by_broker = False
        self._node_id: int | None = None
        self._log_configs: dict[str, LogConfig] = {}
        self._cache = _Cache()
        self._ids_on_disk: dict[str, str] = {}
        self._all_partitions: tuple[object, object, Mapping[str, tuple[int, ...]]] = (None, None, {})
        self._new_ids: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<Topics of {self._manager!r}>"

    # Start

    def load(self) -> None:
        """Read the registry, and the broker's metadata. A directory whose copy of the registry cannot be read
        goes offline. Raises CorruptFileError, DirectoryRefusedError, StorageError if no directory is left."""
        serving = {served.path: served for served in self._manager.serving()}
        directories = [served.directory for served in serving.values()]
        self._registry, self._cluster, self._outdated = _read_topics(
            directories, lambda path, error: serving[path].go_offline(error)
        )
        directories = [served.directory for served in self._manager.require_serving()]
        self._node_id = node_number(node_id_of(directories))
        self._is_used_by_broker = self._cluster is not None or any(
            directory.properties() for directory in directories
        )
        self._manager.config = self._registry.with_dynamic_settings(self._manager.config)

    def exclude_partitions(self, served: ServedDirectory) -> None:
        """Delete the partitions of deleted topics, and exclude those with another topic id than their
        topic's, before a directory's logs are opened. Raises StorageError.
        """
        for topic_partition in list(served.directory.partitions):
            path = served.partition_path(topic_partition)
            try:
                if self._registry.has_deleted(topic_partition, path):
                    delay_ms = self.log_config(_NO_TOPIC).file_delete_delay_ms
                    self._manager.delete_partition(served, topic_partition, delay_ms)
                    continue
                reason = self._topic_settings.topic_mismatch(topic_partition.topic, path)
            except CorruptFileError as error:
                reason = str(error)
            if reason is not None:
                served.exclude(topic_partition, reason)

    def complete_start(self) -> None:
        """Create the partitions that are listed as uncreated, update older copies of the registry, forget the
        ids of deleted topics, and schedule the removal of deleted directories. What cannot be created is
        left for the next start. Raises StorageError if no directory is left."""
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
                    manager.upkeep.remove_later(served, path, self.log_config(_NO_TOPIC).file_delete_delay_ms)
        self._forget_deleted()
        for name, entry in self._registry.topics.items():
            # An uncreated partition may exist in a directory that is offline. (One may have gone offline
            # while the topic before this one was created.)
            if entry.uncreated and not manager.offline:
                try:
                    self._create_listed(name, entry, entry.uncreated)
                except SiltstoneError as error:
                    if not manager.serving():
                        raise
                    _logger.warning("%s. The partition of topic %s is created at the next start", error, name)

    # Settings

    @property
    def _topic_settings(self) -> TopicSettings:
        """The settings of topics and of the broker; the program's ``config`` overrides the metadata log's."""
        broker = self._manager.config
        if self._cluster is not None:
            broker = self._cluster.effective_broker_config(broker)
        return TopicSettings(registered=self._registry.topics, cluster=self._cluster, broker=broker)

    def settings(self, name: str) -> Config:
        """A topic's settings over the broker's. Raises UsageError for an invalid one."""
        return self._topic_settings.config_of(name)

    def log_config(self, name: str) -> LogConfig:
        """A topic's settings as its log uses them. A ``name`` without a topic gets the broker's.

        Retention by time applies to a broker's topic only if a setting says so. The broker's
        ``server.properties``, or a metadata log in a directory that is not open, may set another
        ``retention.ms`` than Kafka's default of 7 days. While they are unknown, the default would delete
        records that the broker keeps, so the retention is unlimited. Raises UsageError.
        """
        settings = self._topic_settings
        name = name if settings.knows(name) else _NO_TOPIC
        if name not in self._log_configs:
            config = settings.config_of(name)
            is_known = config.setting("retention.ms").config_source is not ConfigSource.DEFAULT_CONFIG
            is_known = is_known or bool(config.layer(ConfigSource.STATIC_BROKER_CONFIG))
            log_config = LogConfig.of(config)
            if self._is_used_by_broker and not (is_known or settings.is_created_by_siltstone(name)):
                log_config = replace_fields(log_config, retention_ms=-1)
            self._log_configs[name] = log_config
        return self._log_configs[name]

    def forget_settings(self) -> None:
        """Forget the cached settings of topics: the broker's settings have changed."""
        self._log_configs = {}

    # Listing

    def names(self) -> list[str]:
        """All topics, in order of name, also those that only an offline directory has."""
        on_disk = self._numbers_on_disk()
        return sorted({*self._registry.topics, *on_disk.serving, *on_disk.offline})

    def _on_disk(self) -> Iterator[TopicPartition]:
        """The partitions in the directories that serve."""
        for served in self._manager.serving():
            yield from (*served.logs, *served.refused)  # copied at once: others may be created meanwhile

    def _offline_partitions(self) -> Iterator[TopicPartition]:
        """The partitions that directories had when they went offline, and those that may be in a directory
        that has been offline since the start: the partitions of this node, by the broker's metadata log.
        Without that log and a registry, a topic in such a directory is not known."""
        manager = self._manager
        for served in manager.directories:
            if served.offline is not None:
                yield from (*served.logs, *served.refused)
        if self._cluster is None or not manager.offline:
            return
        image, settings = self._cluster.image, self._topic_settings
        for name, topic_id in image.topics.items():
            if settings.is_created_by_siltstone(name) or topic_id in self._registry.deleted.get(name, ()):
                continue
            for number in range(image.partition_counts.get(topic_id, 0)):
                replicas = image.replicas.get(topic_id, {}).get(number)
                brokers = None if replicas is None else replicas.replicas
                if brokers is None or self._node_id is None or self._node_id in brokers:
                    yield TopicPartition(name, number)

    def _numbers_on_disk(self) -> _OnDisk:
        """The numbers of each topic's partitions in the directories; kept until some are created or deleted,
        or a directory goes offline, so that one topic costs no walk over all partitions."""
        state = [
            (served.path, len(served.logs), len(served.refused), served.offline is None)
            for served in self._manager.directories
        ]
        cache = self._cache
        cached_state, on_disk = cache.on_disk
        if cached_state != state:
            serving: dict[str, list[int]] = {}
            for topic_partition in self._on_disk():
                serving.setdefault(topic_partition.topic, []).append(topic_partition.partition)
            offline: dict[str, set[int]] = {}
            for topic_partition in self._offline_partitions():
                offline.setdefault(topic_partition.topic, set()).add(topic_partition.partition)
            others = {
                name: sorted(numbers.difference(serving.get(name, ()))) for name, numbers in offline.items()
            }
            on_disk = _OnDisk(serving, {name: numbers for name, numbers in others.items() if numbers})
            cache.on_disk = state, on_disk
        return on_disk

    def _paths_on_disk(self, name: str) -> dict[TopicPartition, Path]:
        """The directories of a topic's partitions, in the log directories that serve."""
        here = [TopicPartition(name, number) for number in self._numbers_on_disk().serving.get(name, ())]
        return {
            topic_partition: served.partition_path(topic_partition)
            for served in self._manager.serving()
            for topic_partition in here
            if topic_partition in served.logs or topic_partition in served.refused
        }

    def has(self, topic_partition: TopicPartition) -> bool:
        """Does the registry list this partition, or does an offline directory have it?"""
        name, number = topic_partition.topic, topic_partition.partition
        entry = self._registry.topics.get(name)
        is_listed = entry is not None and number in entry.partitions
        return is_listed or number in self._numbers_on_disk().offline.get(name, ())

    def describe(self, name: str) -> TopicDescription:
        """One topic. Raises UnknownTopicError."""
        entry, serving = self._entry(name), self._manager.serving()
        offline = tuple(
            number
            for number in entry.partitions
            if not any(TopicPartition(name, number) in served.logs for served in serving)
        )
        return entry.describe(name, is_registered=name in self._registry.topics, offline=offline)

    def partitions_of(self, name: str) -> tuple[int, ...]:
        """The numbers of a topic's partitions, served or not. Raises UnknownTopicError."""
        cache = self._cache
        numbers = cache.partitions.get(name)
        if numbers is None:
            numbers = cache.partitions[name] = self._entry(name).partitions
        return numbers

    def all_partitions(self) -> Mapping[str, tuple[int, ...]]:
        """The numbers of the partitions of all topics, by name, as ``partitions_of``. Kept until a topic is
        created, altered or deleted, or one of their directories goes offline."""
        registry, on_disk = self._registry, self._numbers_on_disk()
        cached_registry, cached_on_disk, numbers = self._all_partitions
        if cached_registry is not registry or cached_on_disk is not on_disk:
            listed = registry.topics
            numbers = {
                name: tuple(
                    sorted(
                        {
                            *(listed[name].partitions if name in listed else ()),
                            *on_disk.serving.get(name, ()),
                            *on_disk.offline.get(name, ()),
                        }
                    )
                )
                for name in sorted({*listed, *on_disk.serving, *on_disk.offline})
            }
            self._all_partitions = registry, on_disk, numbers
        return numbers

    def partition_count(self, name: str) -> int | None:
        """How many partitions a topic has; see ``TopicSettings``. Raises UnknownTopicError."""
        cache = self._cache
        if name not in cache.counts:
            self._entry(name)
            cache.counts[name] = self._topic_settings.partition_count(name)
        return cache.counts[name]

    def forget_partitions(self) -> None:
        """Forget the cached partitions of topics, after some were created or deleted."""
        self._cache = _Cache()

    def _entry(self, name: str) -> TopicEntry:
        """A topic's entry, with its partitions on disk and the settings from ``TopicSettings.overrides``."""
        return replace(self._listed_entry(name), config=self._topic_settings.overrides(name))

    def _listed_entry(self, name: str) -> TopicEntry:
        """A topic's entry, with its partitions on disk and the settings of the registry. Raises
        UnknownTopicError."""
        return self._registry.entry(
            name,
            self._paths_on_disk(name),
            offline=self._numbers_on_disk().offline.get(name, ()),
            known_id=self._ids_on_disk.get(name) or (self._cluster and self._cluster.topic_id(name)) or "",
        )

    def id_of(self, name: str) -> str | None:
        """The topic id to write into a new partition of a topic, None without one."""
        if self._manager.only is not None and name not in self._registry.topics:
            return self._new_ids.setdefault(name, new_id(self._manager.random_bytes))
        listed = self._registry.topics.get(name)
        if listed is not None:  # a shortcut: ``_entry`` would search the directories for each new topic
            return listed.topic_id or None
        with contextlib.suppress(UnknownTopicError):
            return self._entry(name).topic_id or None
        return None

    @property
    def ids(self) -> Mapping[str, bytes]:
        """The id of each topic that has one, by name: 16 bytes, as the protocol has it."""
        return self._names_and_ids()[0]

    @property
    def names_by_id(self) -> Mapping[bytes, str]:
        """The name of each topic that has an id, by the id's 16 bytes."""
        return self._names_and_ids()[1]

    def _names_and_ids(self) -> tuple[Mapping[str, bytes], Mapping[bytes, str]]:
        """``ids`` and ``names_by_id``, cached until topics are created or deleted: every request that names
        topics by id needs them."""
        cache = self._cache
        cached = cache.ids
        if cached is None:
            ids = {name: topic_id for name in self.names() if (topic_id := self._id_bytes(name))}
            # Those of topics that no longer exist are left out: one of the same name has another id.
            on_disk = self._ids_on_disk.copy()  # another thread may add one
            self._ids_on_disk = {name: known for name, known in on_disk.items() if name in ids}
            cached = cache.ids = ids, {topic_id: name for name, topic_id in ids.items()}
        return cached

    def _id_bytes(self, name: str) -> bytes:
        """A topic's id, empty without one. The id of a topic that the registry does not list is in a file of
        each partition, which is read once."""
        listed = self._registry.topics.get(name)
        topic_id = self._ids_on_disk.get(name) if listed is None else listed.topic_id
        if topic_id is None:
            try:
                topic_id = self._ids_on_disk[name] = self._listed_entry(name).topic_id
            except UnknownTopicError:  # deleted just now
                return b""
        try:
            return id_bytes(topic_id)
        except ValueError:
            return b""

    @property
    def allocated_producer_ids_end(self) -> int:
        """The end of the blocks of producer ids that are allocated by the broker's metadata log, 0 without
        one."""
        return 0 if self._cluster is None else self._cluster.image.next_producer_id

    # Changing

    def create(
        self, name: str, partitions: int | None = None, config: Mapping[str, ConfigValue] | None = None
    ) -> TopicDescription:
        """Create a topic. ``partitions``: how many, by default ``num.partitions``; ``config``: its own
        settings, values by Kafka's names.

        Raises InvalidTopicError, TopicExistsError, InvalidPartitionsError, InvalidConfigError, StorageError,
        DirectoryRefusedError if a file, a link or another topic's directory has the name of a partition's
        directory.
        """
        with self._manager.creation_or_deletion_lock:
            names, overrides = self.names(), config_texts(config or {}, f"topic {name}")
            if name not in names and self._topic_settings.broker_topic_id(name) is not None:
                raise TopicExistsError(
                    f"topic {name!r} already exists in the broker's metadata, but these directories have no "
                    "partition of it",
                    advice="create its partitions one by one with LogManager.get_or_create",
                )
            count = self._manager.config.integer("num.partitions") if partitions is None else partitions
            refuse_new_topic(name, names, count, overrides, self._topic_settings.broker)
            topic_id = new_id(self._manager.random_bytes)
            entry = TopicEntry(topic_id=topic_id, partitions=(), uncreated=(), config=overrides)
            self._add_partitions(name, entry, range(count))
            return self.describe(name)

    def add_partitions(self, name: str, count: int) -> TopicDescription:
        """Raise a topic's number of partitions to ``count``.

        Raises UnknownTopicError, InvalidPartitionsError, StorageError, DirectoryRefusedError as ``create``.
        """
        with self._manager.creation_or_deletion_lock:
            entry = self._entry(name)
            refuse_fewer_partitions(name, len(entry.partitions), count)
            new_numbers = sorted(set(range(count)).difference(entry.partitions))
            self._add_partitions(name, entry, new_numbers)
            return self.describe(name)

    def _add_partitions(self, name: str, entry: TopicEntry, new_numbers: Iterable[int]) -> None:
        """Add partitions with the numbers ``new_numbers`` to a topic's entry, and create them."""
        new_numbers = tuple(new_numbers)
        self._manager.refuse_occupied_paths(name, new_numbers)
        numbers = tuple(sorted((*entry.partitions, *new_numbers)))
        entry = replace(entry, partitions=numbers, uncreated=(*entry.uncreated, *new_numbers))
        # 1. List the partitions as uncreated, durably: after a crash the next start creates those that are
        # missing. 2. Create directories and logs. 3. List them as created: a partition that gets lost later
        # is not created again.
        self._write_registry(self._registry.with_topic(name, entry))
        self._create_listed(name, entry, new_numbers if self._manager.offline else entry.uncreated)

    def _create_listed(self, name: str, entry: TopicEntry, numbers: Sequence[int]) -> None:
        """Create the partitions ``numbers`` of those that a listed topic has uncreated, then list them as
        created. After a crash between the two the next start finds those that exist.

        Others stay listed as uncreated: they may exist in a directory that is offline.
        """
        self._manager.create_partitions(name, numbers)
        others = tuple(sorted(set(entry.uncreated).difference(numbers)))
        self._write_registry(self._registry.with_topic(name, replace(entry, uncreated=others)))

    def add_partition(self, topic_partition: TopicPartition) -> None:
        """Create one partition, and its topic if that is new. Raises what ``create`` raises."""
        if not _is_partition_number(topic_partition.partition):
            raise InvalidPartitionsError(
                f"topic {topic_partition.topic!r} cannot have a partition {topic_partition.partition}",
                advice=f"pass a number from 0 to {MAX_PARTITION}",
            )
        if self._manager.only is not None:
            if topic_partition != self._manager.only:
                raise UnknownTopicError(
                    f"only {self._manager.only} is open",
                    path=str(topic_partition),
                    advice="open its log directory with LogManager.open",
                )
            self._manager.create_partitions(topic_partition.topic, [topic_partition.partition])
            return
        names = self.names()
        if topic_partition.topic in names:
            entry = self._entry(topic_partition.topic)
        else:
            refuse_bad_name(topic_partition.topic)
            refuse_collision(topic_partition.topic, names)
            topic_id = self._topic_settings.broker_topic_id(topic_partition.topic) or new_id(
                self._manager.random_bytes
            )
            overrides = self._topic_settings.overrides(topic_partition.topic)
            entry = TopicEntry(topic_id=topic_id, partitions=(), uncreated=(), config=overrides)
        self._add_partitions(topic_partition.topic, entry, [topic_partition.partition])

    def alter(
        self, name: str, set_to: Mapping[str, ConfigValue] | None = None, *, remove: Iterable[str] = ()
    ) -> TopicDescription:
        """Set the settings in ``set_to`` (name → text) and remove those in ``remove``. They apply at once,
        segment sizes at the next roll.

        Raises UnknownTopicError, InvalidConfigError, StorageError; DirectoryRefusedError if the topic's other
        settings are in a metadata log that is not in these directories.
        """
        with self._manager.creation_or_deletion_lock:
            entry = self._entry(name)
            if self._is_used_by_broker and self._cluster is None and name not in self._registry.topics:
                raise DirectoryRefusedError(
                    f"the other settings of topic {name!r} are in the broker's metadata log, which none of "
                    "the directories has",
                    path=", ".join(str(served.path) for served in self._manager.serving()),
                    advice="open all of the broker's log.dirs, or alter the topic through the broker",
                )
            texts = config_texts(set_to or {}, f"topic {name}")
            overrides = altered_settings(name, entry.config, texts, remove, self._topic_settings.broker)
            self._write_registry(self._registry.with_topic(name, replace(entry, config=overrides)))
            self._log_configs.pop(name, None)
            self._manager.settings_changed(name)
            return self.describe(name)

    def delete(self, name: str) -> None:
        """Delete a topic: its directories are renamed now and removed after ``file.delete.delay.ms``.

        Partitions in a directory that is offline are deleted at the next start that has it. Raises
        UnknownTopicError, StorageError.
        """
        with self._manager.creation_or_deletion_lock:
            entry, delay_ms = self._entry(name), self.log_config(name).file_delete_delay_ms
            if not entry.topic_id and self._manager.offline and not self._paths_on_disk(name):
                # By its id the next start would know which partitions to delete.
                raise StorageError(
                    f"the directories that have topic {name!r} are offline, and its id is not known",
                    path=", ".join(map(str, self._manager.offline)),
                    advice=OPEN_AGAIN,
                )
            # 1. List the topic's id as deleted, durably: after a crash the next start deletes the partitions
            # that are left. 2. Close each partition and rename its directory; if one disk fails, go on with
            # the others. 3. Forget the id, durably, unless a directory is offline.
            self._write_registry(self._registry.without_topic(name, entry.topic_id))
            partitions = [TopicPartition(name, number) for number in entry.partitions]
            for served in self._manager.serving():
                for topic_partition in partitions:
                    if topic_partition in served.logs or topic_partition in served.refused:
                        with contextlib.suppress(StorageError):
                            self._manager.delete_partition(served, topic_partition, delay_ms)
            for served in self._manager.directories:
                for topic_partition in partitions if served.offline is not None else ():
                    served.drop(topic_partition)
            self.forget_partitions()
            self._log_configs.pop(name, None)
            self._forget_deleted()

    def _forget_deleted(self) -> None:
        """Forget the ids of deleted topics, durably, unless a directory is offline, which may have partitions
        of them. (The partitions in directories that serve are renamed.) If its id stayed listed, a topic that
        is restored from a backup would be deleted again at the next start."""
        if self._manager.offline or not self._registry.deleted:
            return
        registry = self._registry.without_deleted().as_newest(self._manager.clock.now_ms())
        for served in self._manager.serving():
            with self._manager.upkeep.guarded(served):
                try:
                    write_registry(served.path, registry)
                except OSError as error:
                    # With a full disk the ids stay listed until the next change, or the next start.
                    if error.errno not in DISK_FULL_ERRORS:
                        raise
                    _logger.warning("%s: %s was not written: %s", served.path, TOPICS_FILE, error.strerror)
        self._registry = registry

    # Namespaces

    @property
    def namespaces(self) -> Mapping[str, Mapping[str, str]]:
        """The policies of Pulsar's namespaces, by ``tenant/namespace``."""
        return self._registry.namespaces

    def alter_namespace(
        self, name: str, set_to: Mapping[str, str] | None = None, *, remove: Iterable[str] = ()
    ) -> dict[str, str]:
        """Set a namespace's policies in ``set_to`` (name → text) and remove those in ``remove``, durably.

        Raises UsageError for a bad name, InvalidConfigError, StorageError.
        """
        with self._manager.creation_or_deletion_lock:
            refuse_bad_namespace(name)
            before = self._registry.namespaces.get(name, {})
            policies = altered_policies(before, set_to or {}, remove, name)
            self._write_registry(self._registry.with_namespace(name, policies))
            return policies

    # Brokers

    def alter_brokers(self, settings: Mapping[str, str], *, of_all: bool) -> Config:
        """Replace the dynamic settings of this broker, or of all brokers, durably. Returns the broker's
        settings with them, which do not apply yet (``LogManager.update_config``).

        Raises InvalidConfigError for an unknown setting, a bad value, and one that cannot change at run time;
        StorageError.
        """
        with self._manager.creation_or_deletion_lock:
            config = altered_broker(self._manager.config, settings, of_all=of_all)
            directories = [served.directory for served in self._manager.serving()]
            broker_id = "" if of_all else node_id_of(directories) or "0"
            self._write_registry(self._registry.with_broker(broker_id, settings))
            return config

    @property
    def quotas(self) -> Quotas:
        """The quotas of users, clients and addresses."""
        return self._registry.effective_quotas(self._cluster)

    def replace_quotas(self, quotas: Quotas) -> None:
        """Replace all quotas, durably. Raises StorageError."""
        with self._manager.creation_or_deletion_lock:
            self._write_registry(self._registry.with_quotas(quotas))

    def _write_registry(self, registry: TopicRegistry) -> None:
        """Write the registry to every directory in service, durably. Raises StorageError if none is left."""
        if self._manager.only is not None:
            raise DirectoryRefusedError(
                "topics cannot be changed while a single partition is open",
                path=str(self._manager.only),
                advice="open its log directory with LogManager.open",
            )
        registry = registry.as_newest(self._manager.clock.now_ms())
        for served in self._manager.serving():
            with self._manager.upkeep.guarded(served):
                write_registry(served.path, registry)
        self._manager.require_serving()
        self._registry = registry
        self.forget_partitions()
