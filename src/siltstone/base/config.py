"""The settings in effect: parsed from text and layered by their sources. ``LogConfig`` has those that one log
uses.

    text ─ parse_… ─► layers of Setting ─► Config ─ LogConfig.of ─► LogConfig

    DYNAMIC_TOPIC_CONFIG           the topic's own, or set for it on the command line
    DYNAMIC_BROKER_CONFIG          this broker's, changed at run time
    DYNAMIC_DEFAULT_BROKER_CONFIG  all brokers', changed at run time
    STATIC_BROKER_CONFIG           the broker's server.properties
    DEFAULT_CONFIG                 the table's (``config_table``)

The first layer that has any name of a key gives its value. Within a layer the names of a key have an order,
too: ``log.retention.ms`` comes before ``.minutes`` and ``.hours``. A change at run time makes a new
``Config``, so no reader sees half of a change. Corresponds to Kafka's ``ConfigEntry.ConfigSource``,
``DynamicBrokerConfig``, ``ConfigDef.parseType`` and ``LogConfig``.
"""

from __future__ import annotations

import copy
import dataclasses
import decimal
import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import javaproperties

from siltstone.base.config_table import ALL_KEYS, OTHER_BROKER_NAMES, Key, Kind, Synonym, Value
from siltstone.base.config_table import INT_MAX as INT_MAX  # noqa: PLC0414 - for users of this module
from siltstone.base.config_table import LONG_MAX as LONG_MAX  # noqa: PLC0414
from siltstone.base.errors import UnknownSettingError, UsageError

# The key of every name. log.flush.scheduler.interval.ms is a setting of its own and also a synonym of
# flush.ms: such a name stands for the setting of its own.
_BY_NAME = {name: key for key in ALL_KEYS for name in key.names} | {key.name: key for key in ALL_KEYS}
TOPIC_NAMES = frozenset(name for key in ALL_KEYS for name in key.topic_names)
BROKER_SETTING_NAMES = frozenset(name for key in ALL_KEYS for name in key.broker_names)


def find_key(name: str) -> Key:
    """The key that has this name or synonym. Raises UsageError that suggests the nearest name."""
    return _find(name, _BY_NAME)


def find_topic_key(name: str) -> Key:
    """The key of the topic's setting ``name``. Raises UsageError; if ``name`` is a broker's, its advice has
    the topic's name."""
    if name in TOPIC_NAMES or name not in _BY_NAME:
        return _find(name, TOPIC_NAMES)
    key = _BY_NAME[name]
    advice = f"set {key.name!r} instead" if key.is_topic_key else "set it for the broker"
    raise UsageError(f"{name!r} is a broker's setting, not a topic's", advice=advice)


def find_broker_key(name: str) -> Key:
    """The key of the broker's setting ``name``. Raises UsageError; if ``name`` is a topic's, its advice has
    the broker's name."""
    if name in BROKER_SETTING_NAMES or name not in _BY_NAME:
        return _find(name, BROKER_SETTING_NAMES)
    names = _BY_NAME[name].broker_names
    advice = f"set {names[0]!r} instead" if names else "set it for the topic"
    raise UsageError(f"{name!r} is a topic's setting, not a broker's", advice=advice)


def _find(name: str, names: Collection[str]) -> Key:
    if name in names:
        return _BY_NAME[name]
    nearest = difflib.get_close_matches(name, sorted(names), 1, 0.5)
    advice = f"did you mean {nearest[0]!r}?" if nearest else "docs/configuration.md lists all settings"
    raise UnknownSettingError(f"unknown setting {name!r}", advice=advice)


# From text to a checked value, and back: ``parse_text(key, format_value(value)) == value`` for every allowed
# value.
#
# Numbers are read as Kafka reads them: ASCII digits with a sign, of 32 or 64 bits. Python would also accept
# underscores and the digits of other alphabets. ``_INTEGER`` bounds the digits, since Python refuses to
# parse thousands of them.

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?|[+-]?Infinity|NaN")
_KIND_BOUNDS = {Kind.INT: (-INT_MAX - 1, INT_MAX), Kind.LONG: (-LONG_MAX - 1, LONG_MAX)}
_KIND_TEXTS = {
    Kind.BOOLEAN: "true or false",
    Kind.INT: "a whole number",
    Kind.LONG: "a whole number",
    Kind.DOUBLE: "a number",
    Kind.LIST: "words, separated by commas",
}


_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character: JSON and escapes of a properties file may have one, UTF-8 may not."""


def parse_text(key: Key, text: str, name: str | None = None) -> Value:
    """Parse ``text``, set under ``name`` (or the key's own name), into a value in the key's own unit. Raises
    UsageError."""
    synonym = None if name is None else key.synonym(name)
    kind = (synonym and synonym.kind) or key.kind
    try:
        if not text.isascii() and _LONE_SURROGATE.search(text):
            raise ValueError("a part of it is no character: it could not be written as UTF-8")
        value = _parse(kind, text.strip())
        if isinstance(value, (str, tuple)):
            words = {value} if isinstance(value, str) else set(value)
            if key.choices and not words <= set(key.choices):
                raise ValueError(f"choose from {', '.join(key.choices)}")
        elif not isinstance(value, bool):
            return _checked_number(key, synonym, kind, value)
    except ValueError as error:
        raise UsageError(f"invalid value {text!r} for {name or key.name}", advice=str(error)) from None
    return value


def format_value(value: Value) -> str:
    """The text that Kafka writes for a value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return _java_text(value) if isinstance(value, float) else str(value)


def _java_text(number: float) -> str:
    """A number as Java writes it (``Double.toString``): with an exponent from 10⁷ on and below 10⁻³."""
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return str(number)
    sign, digits, exponent = decimal.Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)
    first, *others = map(str, digits)
    exponent += len(others)
    return f"{'-' if sign else ''}{first}.{''.join(others) or '0'}E{exponent}"


def _parse(kind: Kind, text: str) -> Value:
    """Parse ``text`` as a value of ``kind``; its range is not checked. Raises ValueError that says what to
    pass."""
    if kind is Kind.STRING:
        return text
    if kind is Kind.BOOLEAN and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind is Kind.LIST:
        words = [word.strip() for word in text.split(",")] if text else []
        if all(words):
            return tuple(dict.fromkeys(words))
    if kind is Kind.DOUBLE and _NUMBER.fullmatch(text):
        return float(text)
    if kind in _KIND_BOUNDS and _INTEGER.fullmatch(text):
        return int(text)
    raise ValueError(f"pass {_KIND_TEXTS[kind]}")


def _checked_number(key: Key, synonym: Synonym | None, kind: Kind, number: int | float) -> int | float:
    """Check ``number``, in the unit of the name that was used, and convert it to the key's own unit. Raises
    ValueError that says what the number must be."""
    kind_minimum, kind_maximum = _KIND_BOUNDS.get(kind, (None, None))
    minimum, maximum = key.minimum, key.maximum
    if synonym is not None and (synonym.unit != 1 or synonym.minimum is not None):
        minimum, maximum = synonym.minimum, None
    minimum = kind_minimum if minimum is None else minimum
    maximum = kind_maximum if maximum is None else maximum
    # A negative number means no limit. For retention.ms that holds only under a broker's names, as in Kafka.
    allows_unlimited = key.negative_is_unlimited or (synonym is not None and key.name == "retention.ms")
    if allows_unlimited and kind_minimum is not None and kind_minimum <= number < 0:
        return -1
    # A comparison with NaN is False, so NaN is in bounds only where there are none.
    is_in_bounds = (minimum is None or number >= minimum) and (maximum is None or number <= maximum)
    if is_in_bounds and number not in key.refused:
        return number if synonym is None else number * synonym.unit
    bounds = [
        f"at {end} {bound}" for end, bound in (("least", minimum), ("most", maximum)) if bound is not None
    ]
    refused = ", not " + " or ".join(map(str, key.refused)) if key.refused else ""
    unlimited = ", or negative: no limit" if synonym and allows_unlimited else ""
    raise ValueError(f"it must be {' and '.join(bounds)}{refused}{unlimited}")


# Settings from command lines and files. Each of these functions checks names, types and ranges, and its error
# says where the value was set.


class ConfigSource(Enum):
    """Where a value was set, by Kafka's names. An earlier member takes precedence over a later one."""

    DYNAMIC_TOPIC_CONFIG = "DYNAMIC_TOPIC_CONFIG"
    DYNAMIC_BROKER_CONFIG = "DYNAMIC_BROKER_CONFIG"
    DYNAMIC_DEFAULT_BROKER_CONFIG = "DYNAMIC_DEFAULT_BROKER_CONFIG"
    STATIC_BROKER_CONFIG = "STATIC_BROKER_CONFIG"
    DEFAULT_CONFIG = "DEFAULT_CONFIG"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A value and where it came from.

    ``value``: in the unit of the key's own name. ``source``: where it was set, as text ("DEFAULT_CONFIG",
    "--config", "file:line"). ``config_source``: the same by Kafka's names. ``name``: the name under which it
    was set.
    """

    value: Value
    source: str
    config_source: ConfigSource = ConfigSource.DYNAMIC_TOPIC_CONFIG
    name: str = ""


Layer = Mapping[str, Setting]
"""Settings by the names under which they were set."""

_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[\]]*\])")
"""A comma between two assignments: none that is within the brackets of a list."""
_DYNAMIC_SOURCES = (ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)


def parse_assignments(assignments: Iterable[str], source: str) -> dict[str, Setting]:
    """Parse ``key=value`` strings, with a topic's or a broker's names, into settings by name. Raises
    UsageError."""
    return {name: _setting(find_key, name, text, source) for name, text in _pairs(assignments, source)}


ConfigValue = str | int | float | Sequence[str]
"""The value of a setting as a program passes it: text, or a number, a bool or a list of words."""


def config_texts(values: Mapping[str, ConfigValue], source: str) -> dict[str, str]:
    """Kafka's texts for a program's values: "true" for True, "compact,delete" for ["compact", "delete"].

    Raises UsageError for a value of another type.
    """
    texts = {}
    for name, value in values.items():
        if isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value):
            texts[name] = ",".join(value)
        elif isinstance(value, (str, int, float)):
            texts[name] = format_value(value)
        else:
            advice = "pass text, a number, True or False, or a list of words; leave it out for the default"
            raise UsageError(f"{name}={value!r} is not a setting's value", path=source, advice=advice)
    return texts


def parse_topic_config(values: Mapping[str, ConfigValue] | Iterable[str], source: str) -> dict[str, Setting]:
    """Parse a topic's own settings, from values by name or from ``key=value`` strings. Refuses a broker's
    names.

    Raises UsageError.
    """
    pairs = config_texts(values, source).items() if isinstance(values, Mapping) else _pairs(values, source)
    return {name: _setting(find_topic_key, name, text, source) for name, text in pairs}


def parse_broker_config(
    values: Mapping[str, ConfigValue],
    source: str,
    config_source: ConfigSource = ConfigSource.STATIC_BROKER_CONFIG,
) -> dict[str, Setting]:
    """Parse a broker's settings, from values by name. Refuses a topic's names, and for a dynamic source those
    that cannot change at run time.

    Raises UsageError.
    """

    def find(name: str) -> Key:
        key = find_broker_key(name)
        if config_source in _DYNAMIC_SOURCES and not key.changes_at_run_time(name):
            raise UsageError(f"{name} cannot change at run time", advice="set it in server.properties")
        return key

    texts = config_texts(values, source)
    return {name: _setting(find, name, text, source, config_source) for name, text in texts.items()}


def parse_stored_config(
    texts: Mapping[str, str], source: str, config_source: ConfigSource = ConfigSource.STATIC_BROKER_CONFIG
) -> dict[str, Setting]:
    """Parse settings that a Kafka broker has stored for a topic or for brokers, as far as Siltstone knows
    them.

    Skips settings that Siltstone does not have (security, quotas, keys of newer releases), bad values of
    settings that it does not use, and, if ``config_source`` is a dynamic one, settings that cannot change at
    run time. Raises UsageError for a bad value of a setting that it uses.
    """
    known_names = TOPIC_NAMES if config_source is ConfigSource.DYNAMIC_TOPIC_CONFIG else BROKER_SETTING_NAMES
    settings = {}
    for name, text in texts.items():
        if name not in known_names or (
            config_source in _DYNAMIC_SOURCES and not _BY_NAME[name].changes_at_run_time(name)
        ):
            continue
        try:
            settings[name] = _setting(find_key, name, text, source, config_source)
        except UsageError:
            if _BY_NAME[name].is_used:
                raise
    return settings


def _setting(
    find: Callable[[str], Key],
    name: str,
    text: str,
    source: str,
    config_source: ConfigSource = ConfigSource.DYNAMIC_TOPIC_CONFIG,
) -> Setting:
    """Parse one setting. Raises UsageError that says where it was set and what is allowed."""
    try:
        return Setting(
            value=parse_text(find(name), text, name), source=source, config_source=config_source, name=name
        )
    except UsageError as error:
        error.path = source
        raise


def split_additions(text: str) -> list[str]:
    """Split ``a=1,cleanup.policy=[compact,delete]`` (kafka-configs --add-config) into its assignments."""
    return [part.strip() for part in _COMMA_OUTSIDE_BRACKETS.split(text)] if text.strip() else []


def parse_config_file(text: str, name: str) -> dict[str, dict[str, Setting]]:
    """Parse lines ``topic:key=value`` (``#`` starts a comment) into settings by topic. Raises UsageError."""
    by_topic: dict[str, dict[str, Setting]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        topic, colon, assignment = stripped.partition(":")
        if not colon or "=" not in assignment:
            place, advice = f"{name}:{number}", "write topic:key=value"
            raise UsageError(f"{stripped!r} is not a setting", path=place, advice=advice)
        by_topic.setdefault(topic.strip(), {}).update(parse_assignments([assignment], f"{name}:{number}"))
    return by_topic


def _pairs(assignments: Iterable[str], source: str) -> Iterator[tuple[str, str]]:
    """Split each ``key=value`` into name and text, without the brackets around a list."""
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"{text!r} is not a setting", path=source, advice="pass key=value")
        value = value.strip()
        if value.startswith("[") and value.endswith("]"):
            value = value[1:-1]
        yield name.strip(), value


# A broker's ``server.properties``: Java's properties format, with Kafka's names.

_LISTENER_PREFIX = "listener.name."
"""What the names of one listener's settings begin with."""
_LINE_END = re.compile(r"\r\n|\r|\n")


def parse_server_properties(text: str, name: str, *, skip_unknown: bool = False) -> dict[str, Setting]:
    """Parse the ``text`` of a ``server.properties``; ``name``: the file's. The source of each setting is
    ``name:line``.

    Of entries with the same name the last one counts. ``skip_unknown``: the file is that of a Kafka broker,
    so settings that Siltstone does not know are skipped. Raises UsageError for an unknown name, a value out
    of range and an invalid escape.
    """
    parse = parse_stored_config if skip_unknown else parse_broker_config
    settings: dict[str, Setting] = {}
    for line, key, value in _entries(text, name):
        settings.update(parse({key: value}, f"{name}:{line}"))
    return settings


def ignored_properties(text: str, name: str) -> tuple[list[UsageError], list[str]]:
    """The settings of a ``server.properties`` that have no effect: an error that suggests the nearest name
    for each entry that is no setting of a broker, and the names of those that only a Kafka broker uses.
    Raises UsageError for an invalid escape."""
    unknown, unused = list[UsageError](), dict[str, None]()
    for line, key, _ in _entries(text, name):
        if key in OTHER_BROKER_NAMES or key.startswith(_LISTENER_PREFIX):
            unused[key] = None
            continue
        try:
            if not find_broker_key(key).is_used:
                unused[key] = None
        except UsageError as error:
            error.path = f"{name}:{line}"
            unknown.append(error)
    return unknown, list(unused)


def parse_properties(text: str, name: str) -> dict[str, str]:
    """The entries of a properties file by name. Of entries with the same name the last one counts. Raises
    UsageError."""
    return {key: value for _, key, value in _entries(text, name)}


def first_property(text: str, name: str, *keys: str) -> str | None:
    """The text of the first of ``keys`` that the file sets to more than blanks; None if it sets none of them.
    Of entries with the same name the last one counts. Raises UsageError."""
    entries = parse_properties(text, name)
    return next((entries[key].strip() for key in keys if entries.get(key, "").strip()), None)


def _entries(text: str, name: str) -> Iterator[tuple[int, str, str]]:
    """(number of its first line, key, value) of each entry, with escapes decoded and continued lines
    joined."""
    line = 1
    try:
        for element in javaproperties.parse(text):
            if isinstance(element, javaproperties.KeyValue):
                yield line, element.key, element.value
            line += len(_LINE_END.findall(element.source))
    except javaproperties.InvalidUEscapeError as error:
        advice = r"write four hexadecimal digits after \u"
        raise UsageError(str(error), path=f"{name}:{line}", advice=advice) from None


# The settings in effect.

# The broker's settings that a cleaning of one log uses.
_CLEANER_KEYS = (
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.buffer.size",
    "producer.id.expiration.ms",
)
_LOG_KEYS = tuple(key for key in ALL_KEYS if key.is_used and (key.is_topic_key or key.name in _CLEANER_KEYS))


class Config:
    """The effective settings of one topic, or of a broker (Kafka's ``AbstractConfig``), in layers.

    ``topic``: the topic's own layer; settings of a command line go there, also under brokers' names.
    ``broker``, ``broker_default``, ``static``: the layers of the module's drawing. A value that no layer has
    is Kafka's default, with ``DEFAULT_CONFIG`` as its source.
    """

    __slots__ = ("_layers", "_settings")

    def __init__(
        self,
        topic: Layer | None = None,
        *,
        broker: Layer | None = None,
        broker_default: Layer | None = None,
        static: Layer | None = None,
    ) -> None:
        self._layers: dict[ConfigSource, Layer] = {
            ConfigSource.DYNAMIC_TOPIC_CONFIG: dict(topic or {}),
            ConfigSource.DYNAMIC_BROKER_CONFIG: dict(broker or {}),
            ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: dict(broker_default or {}),
            ConfigSource.STATIC_BROKER_CONFIG: dict(static or {}),
        }
        self._settings: dict[str, Setting] = {}

    def __getitem__(self, name: str) -> Value:
        return self.setting(name).value

    def setting(self, name: str) -> Setting:
        """The setting of one key, by any of its names. Raises UsageError for an unknown name."""
        setting = self._settings.get(name)
        if setting is None:
            setting = self._settings[name] = self._find(name)
        return setting

    def _find(self, name: str) -> Setting:
        key = find_key(name)
        for config_source, layer in self._layers.items():
            for key_name in key.names if layer else ():
                if key_name in layer:
                    return dataclasses.replace(layer[key_name], config_source=config_source, name=key_name)
        return Setting(
            value=key.default,
            source=ConfigSource.DEFAULT_CONFIG.value,
            config_source=ConfigSource.DEFAULT_CONFIG,
            name=key.name,
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

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies of ``cleanup.policy``: "compact", "delete", both or none."""
        value = self["cleanup.policy"]
        assert isinstance(value, tuple)
        return value

    def settings(self) -> dict[str, Setting]:
        """The settings that one log and its cleaning use, by name."""
        return {key.name: self.setting(key.name) for key in _LOG_KEYS}

    def layer(self, config_source: ConfigSource) -> Layer:
        """The settings of one layer, by the names under which they were set."""
        return self._layers.get(config_source, {})

    def with_topic_layer(self, layer: Layer) -> Config:
        """A copy whose topic layer has the settings of ``layer`` too. They replace the topic's own, also
        those that the topic has under another name."""
        overridden = {name for layer_name in layer for name in find_key(layer_name).names}
        before = self._layers[ConfigSource.DYNAMIC_TOPIC_CONFIG]
        kept = {name: setting for name, setting in before.items() if name not in overridden}
        return self.with_layer(ConfigSource.DYNAMIC_TOPIC_CONFIG, {**kept, **layer})

    def with_layer(self, config_source: ConfigSource, layer: Layer) -> Config:
        """A copy with another layer in place of that of ``config_source``."""
        assert config_source in self._layers
        config = copy.copy(self)
        config._layers = {**self._layers, config_source: dict(layer)}
        config._settings = {}
        return config


def refuse_contradictions(config: Config) -> Config:
    """``config`` itself, after a check that min.compaction.lag.ms is not above max.compaction.lag.ms
    (``LogConfig.validateValues`` in Kafka). Raises UsageError."""
    shortest, longest = config.setting("min.compaction.lag.ms"), config.setting("max.compaction.lag.ms")
    if config.integer("min.compaction.lag.ms") > config.integer("max.compaction.lag.ms"):
        raise UsageError(
            f"min.compaction.lag.ms={shortest.value} ({shortest.source}) is more than "
            f"max.compaction.lag.ms={longest.value} ({longest.source})",
            advice="lower the first or raise the second",
        )
    return config


_DAY_MS = 86_400_000
# Attributes of ``LogConfig`` whose name is not that of their key with underscores.
_ATTRIBUTE_KEYS = {"policies": "cleanup.policy", "retention_policy": "siltstone.retention.policy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The settings of one log as typed attributes (Kafka's ``LogConfig``).

    ``segment_bytes`` is ``segment.bytes``, and so on. Times are in milliseconds, sizes in bytes; a retention
    of −1 is unlimited. A log reads these on every append, so ``LogConfig.of(config)`` looks them up once,
    when the settings change. ``LogConfig()`` has Kafka's defaults. A log that gets a new ``LogConfig`` uses
    it from then on: a smaller ``segment_bytes`` at its next roll, a new policy at its next check.
    """

    policies: tuple[str, ...] = ("delete",)
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    delete_retention_ms: int = _DAY_MS
    file_delete_delay_ms: int = 60_000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = LONG_MAX
    max_decompressed_message_bytes: int = 256 << 20
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    producer_id_expiration_ms: int = _DAY_MS
    remote_storage_enable: bool = False
    retention_bytes: int = -1
    retention_ms: int = 7 * _DAY_MS
    retention_policy: str = "kafka"
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    segment_jitter_ms: int = 0
    segment_ms: int = 7 * _DAY_MS

    @classmethod
    def of(cls, config: Config) -> LogConfig:
        """The values that ``config`` has for one log."""
        values: dict[str, Any] = {field.name: config[key_of(field.name)] for field in dataclasses.fields(cls)}
        return cls(**values)

    @property
    def compacts(self) -> bool:
        """Whether the cleaner keeps the last record of each key."""
        return "compact" in self.policies

    @property
    def deletes(self) -> bool:
        """Whether retention deletes old segments by time and size."""
        return "delete" in self.policies


def key_of(attribute: str) -> str:
    """The key that an attribute of ``LogConfig`` is read from."""
    return _ATTRIBUTE_KEYS.get(attribute, attribute.replace("_", "."))
