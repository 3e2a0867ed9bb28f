"""Lists, describes, creates, alters and deletes topics and settings (Kafka's ``TopicCommand``,
``ConfigCommand``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from siltstone.base import files
from siltstone.base.config import (
    Config,
    ConfigSource,
    find_topic_key,
    format_value,
    parse_properties,
    parse_topic_config,
)
from siltstone.base.config_table import ALL_KEYS, TOPIC_KEYS, Key, Value
from siltstone.base.errors import InvalidConfigError, SiltstoneError, UnknownTopicError, UsageError
from siltstone.commands.directories import LIST_TOPICS, NOT_HERE, BrokerDirectories, Snapshot
from siltstone.commands.policies import read_text
from siltstone.log.ledger.manifest import Ledger
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.names import TopicPartition
from siltstone.runtime.manager import LogManager
from siltstone.runtime.topic_names import altered_policies, is_deleted_directory, refuse_bad_namespace
from siltstone.runtime.topics import (
    TopicDescription,
    altered_settings,
    refuse_fewer_partitions,
    refuse_new_topic,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """One partition. ``directory``: its log directory. ``size``: bytes of its ``.log`` files. ``failure``:
    why it cannot be read, or why only in part.

    ``leader``, ``replicas``, ``isr``: ids of brokers, by the broker's metadata; None without it.
    ``compacted``: its compacted ledger, None without one.
    """

    partition: int
    directory: str | None
    leader: int | None = None
    replicas: Sequence[int] | None = None
    isr: Sequence[int] | None = None
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    high_watermark: int | None = None
    size: int | None = None
    segments: int | None = None
    failure: str | None = None
    compacted: Ledger | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChange:
    """A change of a topic, done or planned: ``created``, ``exists``, ``altered``, ``deleted``."""

    topic: str
    status: str
    topic_id: str | None = None
    partitions: int | None = None
    config: Mapping[str, str] | None = None


def matching_topics(names: Sequence[str], pattern: str | None, *, if_exists: bool = False) -> list[str]:
    """The topic among ``names`` that ``pattern`` names, else those that it matches as a regular expression;
    all if it is None.

    A comma separates alternatives, as in Kafka's ``TopicFilter``. (For Kafka the name of a topic is an
    expression, too, so that ``a.b`` also matches ``axb``.)

    Raises UsageError, and UnknownTopicError if none matches, unless ``if_exists``.
    """
    if pattern is None or pattern in names:
        return list(names) if pattern is None else [pattern]
    try:
        expression = re.compile(pattern.replace(",", "|").replace(" ", "").strip("\"'"))
    except re.error as error:
        reason = f"--topic {pattern}: neither a topic nor a regular expression ({error})"
        raise UsageError(reason, advice=LIST_TOPICS) from None
    matched = [name for name in names if expression.fullmatch(name)]
    if not matched and not if_exists:
        raise UnknownTopicError(f"there is no topic {pattern!r}", advice=LIST_TOPICS)
    return matched


def parse_assignments(assignments: Sequence[str], flag: str) -> dict[str, str]:
    """Parse and check ``key=value`` arguments: {name: value in its canonical form}. Raises UsageError."""
    parsed = parse_topic_config(assignments, flag)
    return {name: format_value(setting.value) for name, setting in parsed.items()}


def partitions_of(snapshot: Snapshot, topic: TopicDescription) -> list[PartitionDescription]:
    """The partitions of a topic; one that cannot be read has the failure, and the others are complete."""
    described = []
    for number in topic.partitions:
        brokers = snapshot.replicas_of(topic, number)
        partition = _partition(snapshot, TopicPartition(topic.name, number))
        described.append(
            replace(partition, leader=brokers.leader, replicas=brokers.replicas, isr=brokers.isr)
        )
    return described


def _partition(snapshot: Snapshot, topic_partition: TopicPartition) -> PartitionDescription:
    path = snapshot.partitions.get(topic_partition)
    if path is None:
        return PartitionDescription(partition=topic_partition.partition, directory=None, failure=NOT_HERE)
    try:
        log = snapshot.log(topic_partition)
    except (SiltstoneError, OSError) as error:
        return PartitionDescription(
            partition=topic_partition.partition, directory=str(path.parent), failure=str(error)
        )
    view = log.view
    damage, compacted = snapshot.damage_of(topic_partition), None
    try:
        compacted = LedgerStore(path).current()
    except (SiltstoneError, OSError) as error:
        damage = damage or str(error)
    return PartitionDescription(
        partition=topic_partition.partition,
        directory=str(path.parent),
        log_start_offset=view.log_start_offset,
        log_end_offset=view.log_end_offset,
        high_watermark=view.high_watermark,
        size=sum(view.size_of(number) for number in range(len(view.segments))),
        segments=len(view.segments),
        failure=damage,
        compacted=compacted,
    )


def create_topic(
    directories: BrokerDirectories,
    name: str,
    partitions: int | None,
    config: Mapping[str, str],
    *,
    if_not_exists: bool = False,
    dry_run: bool = False,
) -> TopicChange:
    """Create a topic. Raises LogError with Kafka's code, SiltstoneError."""
    if dry_run:
        snapshot = directories.snapshot_before_creation()
        if if_not_exists and name in snapshot.names():
            return TopicChange(topic=name, status="exists")
        count = snapshot.broker.integer("num.partitions") if partitions is None else partitions
        refuse_new_topic(name, snapshot.names(), count, config, snapshot.broker)
        return TopicChange(topic=name, status="created", partitions=count, config=config)
    with directories.open() as manager:
        if if_not_exists and name in manager.topics.names():
            return TopicChange(topic=name, status="exists")
        return created_topic(manager, name, partitions, config)


def created_topic(
    manager: LogManager, name: str, partitions: int | None, config: Mapping[str, str]
) -> TopicChange:
    """Create a topic in open directories. Raises LogError with Kafka's code, SiltstoneError."""
    topic = manager.topics.create(name, partitions, config)
    return TopicChange(
        topic=name,
        status="created",
        topic_id=topic.topic_id,
        partitions=len(topic.partitions),
        config=topic.config,
    )


def add_partitions(
    directories: BrokerDirectories,
    pattern: str,
    count: int,
    *,
    if_exists: bool = False,
    dry_run: bool = False,
) -> list[TopicChange]:
    """Raise the number of partitions of the topics that ``pattern`` names to ``count``. Raises LogError,
    SiltstoneError."""
    snapshot = directories.snapshot()
    names = matching_topics(snapshot.names(), pattern, if_exists=if_exists)
    for name in names:
        refuse_fewer_partitions(name, len(snapshot.topic(name).partitions), count)
    if names and not dry_run:
        with directories.open() as manager:
            for name in names:
                manager.topics.add_partitions(name, count)
    return [TopicChange(topic=name, status="altered", partitions=count) for name in names]


def delete_topics(
    directories: BrokerDirectories, pattern: str, *, if_exists: bool = False, dry_run: bool = False
) -> list[TopicChange]:
    """Delete topics and remove their directories at once. Raises LogError, SiltstoneError."""
    snapshot = directories.snapshot()
    names = matching_topics(snapshot.names(), pattern, if_exists=if_exists)
    if names and not dry_run:
        with directories.open() as manager:
            before = _deleted_directories(manager)
            for name in names:
                manager.topics.delete(name)
            # While this process holds the lock no broker has them open, so they need not wait for
            # file.delete.delay.ms.
            for path in sorted(_deleted_directories(manager) - before):
                files.remove_tree(path)
    return [
        TopicChange(topic=name, status="deleted", partitions=len(snapshot.topic(name).partitions))
        for name in names
    ]


def _deleted_directories(manager: LogManager) -> set[str]:
    """The directories of deleted partitions (``TOPIC-N.ID-delete``) that are still there."""
    return {
        str(served.path / entry.name)
        for served in manager.serving()
        for entry in files.entries(served.path)
        if entry.is_directory and is_deleted_directory(entry.name)
    }


# Settings of topics, brokers and namespaces. A broker's static settings are in its ``server.properties``;
# only a running broker changes its dynamic ones.

NAMESPACE_SOURCE = "NAMESPACE_POLICY"
"""The source of a namespace's policies, where Kafka's names of sources stand for others."""
_BROKER_SOURCES = (
    ConfigSource.DYNAMIC_BROKER_CONFIG,
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
    ConfigSource.STATIC_BROKER_CONFIG,
)
"""The sources of a broker's settings, strongest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSetting:
    """An effective value: ``source`` by Kafka's names; ``synonyms``: (source, name, value), strongest
    first."""

    name: str
    value: str
    source: str
    synonyms: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChange:
    """The settings of a topic or of brokers, or the policies of a namespace, before and after a change.

    ``name``: the topic, or ``tenant/namespace``; of brokers ``broker``, ``brokers`` or a node id.
    """

    name: str
    before: Mapping[str, str]
    after: Mapping[str, str]


def settings_of_topic(config: Config, *, everything: bool) -> list[EffectiveSetting]:
    """A topic's own settings, or all of its effective settings, in the order of ``TOPIC_KEYS``."""
    settings = (_effective(config, key, of_topic=True) for key in TOPIC_KEYS)
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return [setting for setting in settings if everything or setting.source == own]


def settings_of_broker(config: Config, *, everything: bool) -> list[EffectiveSetting]:
    """The settings that were set for a broker, or all of its settings, sorted by name."""
    settings = [_effective(config, key, of_topic=False) for key in ALL_KEYS if key.broker_names]
    default = ConfigSource.DEFAULT_CONFIG.value
    shown = [setting for setting in settings if everything or setting.source != default]
    return sorted(shown, key=lambda setting: setting.name)


def _effective(config: Config, key: Key, *, of_topic: bool) -> EffectiveSetting:
    """The effective value of a key, by its topic's name (``of_topic``) or by its broker's."""
    setting = config.setting(key.name)
    name = key.name if of_topic else key.broker_names[0]
    value = format_value(setting.value) if of_topic else text_of(key, name, setting.value)
    synonyms = tuple(_synonyms(config, key, of_topic=of_topic))
    return EffectiveSetting(name=name, value=value, source=setting.config_source.value, synonyms=synonyms)


def _synonyms(config: Config, key: Key, *, of_topic: bool) -> Iterable[tuple[str, str, str]]:
    """All sources that set the key, strongest first, and the default with the broker's name of it.

    A topic's setting for which a broker has several names is listed without the default, as in Kafka.
    """
    sources = [(source, key.broker_names) for source in _BROKER_SOURCES]
    if of_topic:
        sources.insert(0, (ConfigSource.DYNAMIC_TOPIC_CONFIG, key.topic_names))
    for source, names in sources:
        layer = config.layer(source)
        for name in names:
            if name in layer:
                yield source.value, name, text_of(key, name, layer[name].value)
    names = key.broker_names
    if len(names) == 1 or not key.is_topic_key:
        yield ConfigSource.DEFAULT_CONFIG.value, names[0], text_of(key, names[0], key.default)


def default_text(key: Key, name: str) -> str:
    """The default of a setting, in the unit of this name of it."""
    return text_of(key, name, key.default)


def text_of(key: Key, name: str, value: Value) -> str:
    """A value as text, in the unit of the name: a broker has ``log.retention.hours`` beside
    ``log.retention.ms``."""
    synonym = key.synonym(name)
    # A negative value is no amount: -1 means no limit.
    if synonym is None or synonym.unit == 1 or isinstance(value, (bool, str, tuple)) or value < 0:
        return format_value(value)
    return format_value(int(value) // synonym.unit)


def read_additions(path: Path) -> list[str]:
    """A properties file as ``key=value`` assignments. Raises UsageError."""
    texts = parse_properties(read_text(path, "--add-config-file"), str(path))
    return [f"{name}={value}" for name, value in texts.items()]


def alter_settings(
    directories: BrokerDirectories,
    name: str,
    additions: Sequence[str],
    removals: Sequence[str],
    *,
    of_namespace: bool,
    dry_run: bool,
) -> SettingsChange:
    """Set and remove settings of a topic, or policies of a Pulsar namespace. Raises UsageError,
    UnknownTopicError, InvalidConfigError."""
    new_texts = parse_assignments(additions, "--add-config")
    snapshot = directories.snapshot()
    if of_namespace:
        refuse_bad_namespace(name)
        before = snapshot.registry.namespaces.get(name, {})
        after = altered_policies(before, new_texts, removals, name)
    else:
        before = snapshot.settings_of(snapshot.topic(name)).overrides(name)
        refuse_missing_removals(name, before, removals)
        after = altered_settings(name, before, new_texts, removals, snapshot.broker)
    if not dry_run:
        with directories.open() as manager:
            if of_namespace:
                after = manager.topics.alter_namespace(name, new_texts, remove=removals)
            else:
                after = dict(manager.topics.alter(name, new_texts, remove=removals).config)
    return SettingsChange(name=name, before=before, after=after)


def refuse_missing_removals(name: str, before: Mapping[str, str], removals: Sequence[str]) -> None:
    """Raises InvalidConfigError if a topic's own settings, ``before``, lack one that is to be removed;
    UsageError for a name that does not exist."""
    set_keys = {find_topic_key(key).name for key in before}
    missing = [key for key in removals if find_topic_key(key).name not in set_keys]
    if missing:
        raise InvalidConfigError(
            f"{', '.join(missing)} cannot be removed: the topic's own settings do not have it",
            path=name,
            advice="siltstone configs --describe shows the topic's own settings",
        )


def settings_of_namespace(policies: Mapping[str, str]) -> list[EffectiveSetting]:
    """A namespace's policies, sorted by name."""
    return [
        EffectiveSetting(name=name, value=text, source=NAMESPACE_SOURCE, synonyms=())
        for name, text in sorted(policies.items())
    ]
