"""Settings of a topic or of the broker, as Kafka's protocol tells them: value, source, synonyms, type.

Kafka 4.3 has ``TOPIC_SETTINGS``, in this order: that of its hash table, which ``kafka-topics --describe``
shows. Siltstone's own come after them. Of a setting that a broker has several names for
(``log.retention.ms``, ``.minutes``, ``.hours``) Kafka lists each name, and the default at the last one; and
what of its sources stands before the first one of the strongest name does not count (``ConfigHelper``,
``DynamicBrokerConfig``).
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
"""The protocol's numbers."""
TYPES = {
    Kind.BOOLEAN: 1,
    Kind.STRING: 2,
    Kind.INT: 3,
    Kind.LONG: 5,
    Kind.DOUBLE: 6,
    Kind.LIST: 7,
}
"""The protocol's numbers."""
_SHORT, _SHORT_MAX = 4, 32_767
_POSITIONS = {name: position for position, name in enumerate(TOPIC_SETTINGS)}
_BROKER_SOURCES = (
    ConfigSource.DYNAMIC_BROKER_CONFIG,
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
    ConfigSource.STATIC_BROKER_CONFIG,
)
_MIN_ISR, _TIERED = "min.insync.replicas", "remote.storage.enable"
_LOG_DIRS, _LOG_DIR = "log.dirs", "log.dir"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldValue:
    """One place that says a setting's value: the name there, the value, the protocol's number of the
    place."""

    name: str
    value: str | None
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldSetting:
    """A setting as DescribeConfigs tells it. ``value``: None for a name of a broker that says nothing;
    ``synonyms``: all that say a value, the one that counts first; ``is_own_to_siltstone``: Kafka 4.3 does not
    list it for topics."""

    key: Key
    name: str
    value: str | None
    synonyms: tuple[ToldValue, ...]
    type: int
    is_read_only: bool = False
    is_own_to_siltstone: bool = False

    @property
    def source(self) -> int:
        """The protocol's number of where the value comes from."""
        return self.synonyms[0].source if self.synonyms else SOURCES[ConfigSource.DEFAULT_CONFIG]


def as_formatted(config: Config) -> Config:
    """The settings with what formatting a directory sets in Kafka 4.3: ``min.insync.replicas`` for the whole
    cluster (KIP-966). Tools show it with every topic."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    layer = config.layer(source)
    if _MIN_ISR in layer:
        return config
    return config.with_layer(
        source, {**layer, _MIN_ISR: Setting(value=1, source=source.value, name=_MIN_ISR)}
    )


def refuse_tiered(overrides: Mapping[str, str]) -> None:
    """Raises InvalidConfigError for a topic that is to have tiered storage: there is none."""
    if overrides.get(_TIERED, "").strip().lower() == "true":
        raise InvalidConfigError(
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote "
            "log storage.",
            advice=f"leave {_TIERED} out",
        )


def topic_entries(config: Config) -> list[ToldSetting]:
    """All settings of a topic, whose own ones are the topic layer of ``config``."""
    config = as_formatted(config)
    own = config.layer(ConfigSource.DYNAMIC_TOPIC_CONFIG)
    # Those of Kafka's earlier releases, which Siltstone does not use, are listed where they are set.
    entries = [
        _topic_entry(config, key, key.name)
        for key in TOPIC_KEYS
        if key.name in _POSITIONS or key.is_used or key.name in own
    ]
    # Another name of a setting, such as internal.segment.bytes, is listed where it is set.
    entries += [_topic_entry(config, key, name) for key in TOPIC_KEYS for name in key.aliases if name in own]
    return sorted(entries, key=lambda entry: (_position(entry), entry.name))


def _position(entry: ToldSetting) -> int:
    if entry.is_own_to_siltstone:
        return len(TOPIC_SETTINGS)
    return _POSITIONS.get(entry.name, -1)


def _topic_entry(config: Config, key: Key, name: str) -> ToldSetting:
    own = config.layer(ConfigSource.DYNAMIC_TOPIC_CONFIG).get(name)
    synonyms = list(_broker_sources(config, key, key.broker_names)) if name == key.name else []
    if own is not None:
        value = format_value(own.value)
        synonyms.insert(
            0, ToldValue(name=name, value=value, source=SOURCES[ConfigSource.DYNAMIC_TOPIC_CONFIG])
        )
    return ToldSetting(
        key=key,
        name=name,
        value=synonyms[0].value if synonyms else format_value(_without_topic(config).setting(key.name).value),
        synonyms=tuple(synonyms),
        type=_type_of(key),
        is_own_to_siltstone=key.name not in _POSITIONS,
    )


def _without_topic(config: Config) -> Config:
    return config.with_layer(ConfigSource.DYNAMIC_TOPIC_CONFIG, {})


def broker_entries(config: Config) -> list[ToldSetting]:
    """All settings of the broker, each under each of its names, sorted by name."""
    config = as_formatted(config)
    names = {name for key in ALL_KEYS for name in key.broker_names}
    return [_broker_entry(config, name) for name in sorted(names)]


def default_entries(config: Config) -> list[ToldSetting]:
    """What is set at run time for all brokers, sorted by name."""
    layer = as_formatted(config).layer(ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    only = Config(broker_default=layer)
    return [_default_entry(only, name) for name in sorted(layer)]


def _default_entry(config: Config, name: str) -> ToldSetting:
    entry = _broker_entry(config, name)
    number = SOURCES[ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG]
    synonyms = tuple(source for source in entry.synonyms if source.source == number)
    return ToldSetting(
        key=entry.key,
        name=name,
        value=entry.value,
        synonyms=synonyms,
        type=entry.type,
        is_read_only=entry.is_read_only,
    )


def _broker_entry(config: Config, name: str) -> ToldSetting:
    key = find_broker_key(name)
    # A setting of topics has one meaning under all of its names; of another one a synonym is an older name.
    names = key.broker_names if key.is_topic_key else (name,)
    synonyms = tuple(_broker_sources(config, key, names, strongest=name))
    value = synonyms[0].value if synonyms else None
    return ToldSetting(
        key=key,
        name=name,
        value=value,
        synonyms=synonyms,
        type=_type_of(key, name),
        is_read_only=not key.changes_at_run_time(name),
    )


def _broker_sources(
    config: Config, key: Key, names: Iterable[str], strongest: str | None = None
) -> Iterator[ToldValue]:
    """Every place that says the broker's value, from the first one with the name ``strongest`` on (by default
    the first name)."""
    names = tuple(names)
    strongest = strongest or (names[0] if names else None)
    has_begun = False
    for source in _all_sources(config, key, names):
        has_begun = has_begun or source.name == strongest
        if has_begun:
            yield source


def _all_sources(config: Config, key: Key, names: tuple[str, ...]) -> Iterator[ToldValue]:
    for source in _BROKER_SOURCES:
        layer = config.layer(source)
        for name in names:
            if name in layer:
                yield ToldValue(
                    name=name, value=text_of(key, name, layer[name].value), source=SOURCES[source]
                )
    # Kafka's default is at the last name (hours, log.dir); of another setting with older names at its own.
    last = names[-1] if names and (key.is_topic_key or _has_default(key, names[-1])) else None
    if last is not None:
        yield ToldValue(name=last, value=default_text(key, last), source=SOURCES[ConfigSource.DEFAULT_CONFIG])


def _has_default(key: Key, name: str) -> bool:
    """Is Kafka's default at this name of a setting that topics do not have?"""
    return name == _LOG_DIR if key.name == _LOG_DIRS else name == key.name


def _type_of(key: Key, name: str | None = None) -> int:
    synonym = None if name is None else key.synonym(name)
    if key.kind is Kind.INT and key.maximum == _SHORT_MAX:
        return _SHORT
    return TYPES[(synonym and synonym.kind) or key.kind]
