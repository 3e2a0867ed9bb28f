"""The entries of DescribeConfigs: settings of a topic or of the broker with value, source, synonyms and type
(Kafka's ``ConfigHelper``, ``DynamicBrokerConfig``).

The order is Kafka's: Kafka 4.3 lists the settings of a topic in the order of its hash table
(``TOPIC_SETTINGS``), and ``kafka-topics --describe`` shows them so. Siltstone's own settings come after them.

A *synonym* is a place that sets the same setting: the topic, the broker dynamically, all brokers dynamically,
``server.properties``, the default, in this order of precedence; the value is that of the first synonym. A
setting that a broker has under several names (``log.retention.ms``, ``.minutes``, ``.hours``) has an entry
for each name, and only the last name has the default as a synonym. In the entry of a name, synonyms before
the first one with this name are left out, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from siltstone.base.config import Config, ConfigSource, Setting, find_broker_key, format_value
from siltstone.base.config_table import ALL_KEYS, TOPIC_KEYS, Key, Kind
from siltstone.base.errors import InvalidConfigError
from siltstone.commands.topics import default_text, text_of

TOPIC_SETTINGS = (
    "compression.type",
    "remote.log.delete.on.disable",
    "leader.replication.throttled.replicas",
    "remote.storage.enable",
    "min.insync.replicas",
    "segment.jitter.ms",
    "remote.log.copy.disable",
    "local.retention.ms",
    "cleanup.policy",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "compression.lz4.level",
    "segment.bytes",
    "retention.ms",
    "compression.gzip.level",
    "flush.messages",
    "compression.zstd.level",
    "max.compaction.lag.ms",
    "file.delete.delay.ms",
    "max.message.bytes",
    "min.compaction.lag.ms",
    "message.timestamp.type",
    "local.retention.bytes",
    "preallocate",
    "index.interval.bytes",
    "min.cleanable.dirty.ratio",
    "unclean.leader.election.enable",
    "retention.bytes",
    "delete.retention.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "segment.ms",
    "segment.index.bytes",
)
"""The topics' settings of Kafka 4.3, in its order (measured)."""
SOURCES = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG: 1,
    ConfigSource.DYNAMIC_BROKER_CONFIG: 2,
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: 3,
    ConfigSource.STATIC_BROKER_CONFIG: 4,
    ConfigSource.DEFAULT_CONFIG: 5,
}
"""The protocol's numbers of the sources (``ConfigSource``)."""
TYPES = {
    Kind.BOOLEAN: 1,
    Kind.STRING: 2,
    Kind.INT: 3,
    Kind.LONG: 5,
    Kind.DOUBLE: 6,
    Kind.LIST: 7,
}
"""The protocol's numbers of the types (``ConfigType``), but for SHORT, which no ``Kind`` stands for."""
_SHORT, _SHORT_MAX = 4, 32_767
_POSITIONS = {name: position for position, name in enumerate(TOPIC_SETTINGS)}
_BROKER_SOURCES = (
    ConfigSource.DYNAMIC_BROKER_CONFIG,
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
    ConfigSource.STATIC_BROKER_CONFIG,
)
_MIN_ISR, _TIERED = "min.insync.replicas", "remote.storage.enable"
_PROTOCOLS = "listener.security.protocol.map"
_UNLISTED = frozenset(
    (
        "log.cleaner.thread",
        "log.cleanup.interval.mins",
        "log.initial.task.delay.ms",
        "log.message.downconversion.enable",
        "log.message.format.version",
        "log.message.timestamp.difference.max.ms",
        "producer.id.expiration.check.interval.ms",
    )
)
"""Names of a broker's settings that Kafka 4.3 does not list. They are listed only if they are set."""
_WITHOUT_DEFAULT = frozenset(
    (
        "advertised.listeners",
        "controller.listener.names",
        "inter.broker.listener.name",
        "node.id",
        "process.roles",
    )
)
"""A broker's settings that have no default in Kafka."""
_LOG_DIRS, _LOG_DIR = "log.dirs", "log.dir"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingSynonym:
    """A place that sets a setting. ``name``: the setting's name there; ``value``: None for a default of null;
    ``source``: the protocol's number of the kind of place (``SOURCES``)."""

    name: str
    value: str | None
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingEntry:
    """A setting as DescribeConfigs returns it. ``name``: the key's name, or another name of it; ``value``:
    None if no place sets the broker's setting under this name; ``synonyms``: in order of precedence;
    ``type``: the protocol's number; ``is_own_to_siltstone``: topics of Kafka 4.3 do not have it."""

    key: Key
    name: str
    value: str | None
    synonyms: tuple[SettingSynonym, ...]
    type: int
    is_read_only: bool = False
    is_own_to_siltstone: bool = False

    @property
    def source(self) -> int:
        """The protocol's number of where the value comes from."""
        return self.synonyms[0].source if self.synonyms else SOURCES[ConfigSource.DEFAULT_CONFIG]


def as_formatted(config: Config) -> Config:
    """The settings, with ``min.insync.replicas=1`` for the whole cluster unless it is set: Kafka 4.3 sets it
    when it formats a directory (KIP-966), and tools show it with every topic."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    layer = config.layer(source)
    if _MIN_ISR in layer:
        return config
    return config.with_layer(
        source, {**layer, _MIN_ISR: Setting(value=1, source=source.value, name=_MIN_ISR)}
    )


def refuse_tiered(overrides: Mapping[str, str]) -> None:
    """Raises InvalidConfigError for settings that turn on tiered storage, which this broker does not have."""
    if overrides.get(_TIERED, "").strip().lower() == "true":
        raise InvalidConfigError(
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote "
            "log storage.",
            advice=f"leave {_TIERED} out",
        )


def topic_entries(config: Config) -> list[SettingEntry]:
    """All settings of a topic. ``config``: those in effect; its topic layer has those that the topic sets."""
    config = as_formatted(config)
    own = config.layer(ConfigSource.DYNAMIC_TOPIC_CONFIG)
    # Settings of Kafka's earlier releases, which Siltstone does not use, are listed only if they are set.
    entries = [
        _topic_entry(config, key, key.name)
        for key in TOPIC_KEYS
        if key.name in _POSITIONS or key.is_used or key.name in own
    ]
    # An alias of a setting, such as internal.segment.bytes, is listed only if it is set.
    entries += [_topic_entry(config, key, name) for key in TOPIC_KEYS for name in key.aliases if name in own]
    return sorted(entries, key=lambda entry: (_position(entry), entry.name))


def _position(entry: SettingEntry) -> int:
    """The place of a topic's setting in Kafka's order: aliases before all, Siltstone's own after all."""
    if entry.is_own_to_siltstone:
        return len(TOPIC_SETTINGS)
    return _POSITIONS.get(entry.name, -1)


def _topic_entry(config: Config, key: Key, name: str) -> SettingEntry:
    """The entry of a topic's setting under one of its names. An alias, which is another name than the key's,
    is one of topics only, so it has no synonyms of the broker."""
    own = config.layer(ConfigSource.DYNAMIC_TOPIC_CONFIG).get(name)
    synonyms = list(_broker_synonyms(config, key, key.broker_names)) if name == key.name else []
    if own is not None:
        value = format_value(own.value)
        synonyms.insert(
            0, SettingSynonym(name=name, value=value, source=SOURCES[ConfigSource.DYNAMIC_TOPIC_CONFIG])
        )
    return SettingEntry(
        key=key,
        name=name,
        # Without synonyms it is the default, also if the topic sets the setting under an alias.
        value=synonyms[0].value if synonyms else format_value(_without_topic(config).setting(key.name).value),
        synonyms=tuple(synonyms),
        type=_type_of(key),
        is_own_to_siltstone=key.name not in _POSITIONS,
    )


def _without_topic(config: Config) -> Config:
    return config.with_layer(ConfigSource.DYNAMIC_TOPIC_CONFIG, {})


def broker_entries(config: Config) -> list[SettingEntry]:
    """All settings of the broker, each under each of its names, sorted by name."""
    config = as_formatted(config)
    set_here = {name for source in _BROKER_SOURCES for name in config.layer(source)}
    names = {
        name for key in ALL_KEYS for name in key.broker_names if name not in _UNLISTED or name in set_here
    }
    return [_broker_entry(config, name) for name in sorted(names)]


def default_entries(config: Config) -> list[SettingEntry]:
    """The settings that were changed at run time for all brokers, sorted by name."""
    layer = as_formatted(config).layer(ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    only = Config(broker_default=layer)
    return [_default_entry(only, name) for name in sorted(layer)]


def _default_entry(config: Config, name: str) -> SettingEntry:
    """The entry of a setting that was changed at run time for all brokers: without the default's synonym."""
    entry = _broker_entry(config, name)
    number = SOURCES[ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG]
    synonyms = tuple(synonym for synonym in entry.synonyms if synonym.source == number)
    return SettingEntry(
        key=entry.key,
        name=name,
        value=entry.value,
        synonyms=synonyms,
        type=entry.type,
        is_read_only=entry.is_read_only,
    )


def _broker_entry(config: Config, name: str) -> SettingEntry:
    """The entry of a broker's setting under one of its names."""
    key = find_broker_key(name)
    # A setting that topics have, too, has all its names as synonyms; any other setting only the entry's name.
    names = key.broker_names if key.is_topic_key else (name,)
    synonyms = tuple(_broker_synonyms(config, key, names, from_name=name))
    value = synonyms[0].value if synonyms else None
    return SettingEntry(
        key=key,
        name=name,
        value=value,
        synonyms=synonyms,
        type=_type_of(key, name),
        is_read_only=not key.changes_at_run_time(name),
    )


def _broker_synonyms(
    config: Config, key: Key, names: Iterable[str], from_name: str | None = None
) -> Iterator[SettingSynonym]:
    """The synonyms that set the broker's value, in order of precedence, from the first one on that uses the
    name ``from_name`` (default: the first of ``names``)."""
    names = tuple(names)
    from_name = from_name or (names[0] if names else None)
    has_begun = False
    for synonym in _all_synonyms(config, key, names):
        has_begun = has_begun or synonym.name == from_name
        if has_begun:
            yield synonym


def _all_synonyms(config: Config, key: Key, names: tuple[str, ...]) -> Iterator[SettingSynonym]:
    """The synonyms that set the broker's value under one of these names, in order of precedence, with the
    default last."""
    for source in _BROKER_SOURCES:
        layer = config.layer(source)
        for name in names:
            if name in layer:
                yield SettingSynonym(
                    name=name, value=text_of(key, name, layer[name].value), source=SOURCES[source]
                )
    # A topic's setting has its default under the last of its broker names, such as log.retention.hours; for
    # others see ``_has_default``.
    has_default = names and (key.is_topic_key or _has_default(key, names[-1]))
    last = names[-1] if has_default and key.name not in _WITHOUT_DEFAULT else None
    if last is not None:
        yield SettingSynonym(
            name=last, value=default_text(key, last), source=SOURCES[ConfigSource.DEFAULT_CONFIG]
        )


def _has_default(key: Key, name: str) -> bool:
    """Does Kafka list the default under this name, for a setting that topics do not have? It has the default
    of ``log.dirs`` under ``log.dir``."""
    return name == _LOG_DIR if key.name == _LOG_DIRS else name == key.name


def _type_of(key: Key, name: str | None = None) -> int:
    """The protocol's number of a setting's type. ``name``: one of the setting's broker names, which may have
    another type than the key, such as ``log.retention.hours``; None for the key's own type."""
    other_name = None if name is None else key.synonym(name)
    if name == _PROTOCOLS:  # a list here, a string in Kafka
        return TYPES[Kind.STRING]
    if key.kind is Kind.INT and key.maximum == _SHORT_MAX:
        return _SHORT
    return TYPES[(other_name and other_name.kind) or key.kind]
