"""Which value is in force: a topic's own, else the broker's, else the default; each with where it came from.

    DYNAMIC_TOPIC_CONFIG           the topic's own, or given for it on the command line
    DYNAMIC_BROKER_CONFIG          this broker's, changed at run time
    DYNAMIC_DEFAULT_BROKER_CONFIG  all brokers', changed at run time
    STATIC_BROKER_CONFIG           the broker's server.properties
    DEFAULT_CONFIG                 the table's

The first layer that has any of a key's names wins; within a layer the best name: ``log.retention.ms`` before
``.minutes`` before ``.hours``. A change at run time makes a new ``Config``; nobody sees half of one.
Answers to Kafka's ``ConfigEntry.ConfigSource`` and ``DynamicBrokerConfig``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from siltstone.base.config.keys import Key, Level, Value
from siltstone.base.config.table import ALL_KEYS, find_key
from siltstone.base.errors import UsageError


class ConfigSource(Enum):
    """Where a value came from, by Kafka's names, strongest first."""

    DYNAMIC_TOPIC_CONFIG = "DYNAMIC_TOPIC_CONFIG"
    DYNAMIC_BROKER_CONFIG = "DYNAMIC_BROKER_CONFIG"
    DYNAMIC_DEFAULT_BROKER_CONFIG = "DYNAMIC_DEFAULT_BROKER_CONFIG"
    STATIC_BROKER_CONFIG = "STATIC_BROKER_CONFIG"
    DEFAULT_CONFIG = "DEFAULT_CONFIG"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A value and where it came from: ``source`` for people ("default", "--config", "file:line"), ``origin``
    by Kafka's names, ``name`` the one it was given under. ``value`` is in the unit of the key's own name."""

    value: Value
    source: str
    origin: ConfigSource = ConfigSource.DYNAMIC_TOPIC_CONFIG
    name: str = ""


Given = Mapping[str, Setting]

_NAMES = {key.name: key.names for key in ALL_KEYS}
# A broker's settings that the cleaning of one log goes by.
_OF_A_CLEANING = (
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.buffer.size",
    "producer.id.expiration.ms",
)
_LOG_KEYS = tuple(
    key for key in ALL_KEYS if key.used and (key.level is not Level.BROKER or key.name in _OF_A_CLEANING)
)


class Config:
    """The effective settings of one topic, or of a broker. Layers map a name as it was given to its setting.

    ``given`` is the topic's own layer; a command line may put brokers' names there too. ``default_source``
    is what is said of values that nobody gave.
    """

    __slots__ = ("_default_source", "_layers")

    def __init__(
        self,
        given: Given | None = None,
        *,
        broker: Given | None = None,
        broker_default: Given | None = None,
        static: Given | None = None,
        default_source: str = "default",
    ) -> None:
        self._default_source = default_source
        self._layers: dict[ConfigSource, Given] = {
            ConfigSource.DYNAMIC_TOPIC_CONFIG: dict(given or {}),
            ConfigSource.DYNAMIC_BROKER_CONFIG: dict(broker or {}),
            ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: dict(broker_default or {}),
            ConfigSource.STATIC_BROKER_CONFIG: dict(static or {}),
        }

    def __getitem__(self, name: str) -> Value:
        return self.setting(name).value

    def setting(self, name: str) -> Setting:
        """Value and source of one key. Raises UsageError for an unknown name."""
        return self.found(find_key(name))

    def found(self, key: Key) -> Setting:
        """Value and source of ``key``."""
        for origin, layer in self._layers.items():
            for name in _NAMES[key.name] if layer else ():
                if name in layer:
                    setting = layer[name]
                    return Setting(value=setting.value, source=setting.source, origin=origin, name=name)
        return Setting(
            value=key.default, source=self._default_source, origin=ConfigSource.DEFAULT_CONFIG, name=key.name
        )

    def integer(self, name: str) -> int:
        """A whole-number setting."""
        value = self[name]
        assert isinstance(value, int)
        return value

    def number(self, name: str) -> float:
        """A number setting."""
        value = self[name]
        assert isinstance(value, (int, float))
        return float(value)

    def flag(self, name: str) -> bool:
        """A true-or-false setting."""
        return self[name] is True

    def words(self, name: str) -> tuple[str, ...]:
        """A list setting."""
        value = self[name]
        assert isinstance(value, tuple)
        return value

    @property
    def policies(self) -> tuple[str, ...]:
        """``cleanup.policy`` as its words."""
        return self.words("cleanup.policy")

    def settings(self, keys: Iterable[Key] = _LOG_KEYS) -> dict[str, Setting]:
        """The settings of ``keys`` by name: without it, those that one log and its cleaning go by."""
        return {key.name: self.found(key) for key in keys}

    def given(self, origin: ConfigSource) -> Given:
        """What one layer holds, by the names it was given under."""
        return self._layers.get(origin, {})

    def over(self, given: Given) -> Config:
        """These settings with ``given`` over the topic's own; a key given wins under any of its names."""
        hidden = {name for each in given for name in find_key(each).names}
        before = self._layers[ConfigSource.DYNAMIC_TOPIC_CONFIG]
        kept = {name: setting for name, setting in before.items() if name not in hidden}
        return self.replacing(ConfigSource.DYNAMIC_TOPIC_CONFIG, {**kept, **given})

    def replacing(self, origin: ConfigSource, given: Given) -> Config:
        """These settings with another layer in place of ``origin``'s."""
        assert origin is not ConfigSource.DEFAULT_CONFIG
        layers = {**self._layers, origin: given}
        return Config(
            layers[ConfigSource.DYNAMIC_TOPIC_CONFIG],
            broker=layers[ConfigSource.DYNAMIC_BROKER_CONFIG],
            broker_default=layers[ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG],
            static=layers[ConfigSource.STATIC_BROKER_CONFIG],
            default_source=self._default_source,
        )


# What must hold between settings, as in ``validateValues`` of Kafka's ``LogConfig`` and ``KafkaConfig``.

_MEBIBYTE = 1 << 20


def refuse_contradictions(config: Config) -> Config:
    """``base.config`` itself, where a topic's settings agree with each other. Raises UsageError."""
    shortest, longest = "min.compaction.lag.ms", "max.compaction.lag.ms"
    if config.integer(shortest) > config.integer(longest):
        raise UsageError(f"{_said(config, shortest)} is more than {_said(config, longest)}")
    return config


def refuse_broker_contradictions(config: Config) -> Config:
    """``base.config`` itself, where a broker's settings agree with each other. Raises UsageError."""
    refuse_contradictions(config)
    if not config.words("log.dirs"):
        raise UsageError("log.dirs names no directory")
    threads = config.integer("log.cleaner.threads")
    buffer_size = config.integer("log.cleaner.dedupe.buffer.size")
    if threads and buffer_size // threads <= _MEBIBYTE:
        raise UsageError(
            f"{_said(config, 'log.cleaner.dedupe.buffer.size')}: must be over {_MEBIBYTE} for each of "
            f"log.cleaner.threads={threads}"
        )
    return config


def _said(config: Config, name: str) -> str:
    setting = config.setting(name)
    return f"{name}={setting.value} ({setting.source})"
