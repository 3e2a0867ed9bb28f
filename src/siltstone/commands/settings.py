"""Settings of topics and of brokers: described with their sources, changed (Kafka's ``ConfigCommand``).

A broker's settings are those of its ``server.properties``; changing them at run time takes a broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import javaproperties

from siltstone.base import files
from siltstone.base.config import TOPIC_NAMES, Config, ConfigSource, find_topic_key, format_value
from siltstone.base.config_table import ALL_KEYS, TOPIC_KEYS, Key, Value
from siltstone.base.errors import InvalidConfigError
from siltstone.commands.places import Place
from siltstone.commands.topics import texts_of
from siltstone.runtime.topic_names import altered_policies, parse_namespace
from siltstone.runtime.topics import altered_settings

NAMESPACE_SOURCE = "NAMESPACE_POLICY"
_BROKER_SOURCES = (
    ConfigSource.DYNAMIC_BROKER_CONFIG,
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
    ConfigSource.STATIC_BROKER_CONFIG,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingFacts:
    """A value in force: ``source`` by Kafka's names; ``synonyms``: (source, name, value), strongest first."""

    name: str
    value: str
    source: str
    synonyms: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChange:
    """A topic's own settings, or a namespace's policies, before and after a change; ``topic`` is its name."""

    topic: str
    before: Mapping[str, str]
    after: Mapping[str, str]


def settings_of_topic(config: Config, *, everything: bool) -> list[SettingFacts]:
    """A topic's own settings, or all that hold for it, by name."""
    facts = [_facts(config, key, of_topic=True) for key in TOPIC_KEYS]
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return sorted((each for each in facts if everything or each.source == own), key=lambda each: each.name)


def settings_of_broker(config: Config, *, everything: bool) -> list[SettingFacts]:
    """What a broker was told, or all of its settings, by name."""
    keys = [key for key in ALL_KEYS if key.broker_names]
    facts = [_facts(config, key, of_topic=False) for key in keys]
    default = ConfigSource.DEFAULT_CONFIG.value
    return sorted(
        (each for each in facts if everything or each.source != default), key=lambda each: each.name
    )


def _facts(config: Config, key: Key, *, of_topic: bool) -> SettingFacts:
    setting = config.setting(key.name)
    name = key.name if of_topic else key.broker_names[0]
    value = format_value(setting.value) if of_topic else _in_unit(key, name, setting.value)
    synonyms = tuple(_synonyms(config, key, of_topic=of_topic))
    return SettingFacts(name=name, value=value, source=setting.origin.value, synonyms=synonyms)


def _synonyms(config: Config, key: Key, *, of_topic: bool) -> Iterable[tuple[str, str, str]]:
    """Everywhere the setting is given, strongest first, and the default under its broker's name.

    A topic's setting for which a broker has several names has no default under the best of them, as in Kafka.
    """
    if of_topic:
        own = config.layer(ConfigSource.DYNAMIC_TOPIC_CONFIG)
        for name in key.topic_names:
            if name in own:
                yield ConfigSource.DYNAMIC_TOPIC_CONFIG.value, name, format_value(own[name].value)
    for source in _BROKER_SOURCES:
        layer = config.layer(source)
        for name in key.broker_names:
            if name in layer:
                yield source.value, name, _in_unit(key, name, layer[name].value)
    names = key.broker_names
    if len(names) == 1 or not key.of_topic:
        yield ConfigSource.DEFAULT_CONFIG.value, names[0], _in_unit(key, names[0], key.default)


def _in_unit(key: Key, name: str, value: Value) -> str:
    """A value in the unit of one of its broker's names."""
    synonym = key.synonym(name)
    if synonym is None or synonym.unit == 1 or isinstance(value, (bool, str, tuple)) or value < 0:
        return format_value(value)
    return format_value(int(value) // synonym.unit)


def read_additions(path: Path) -> list[str]:
    """A properties file as ``key=value`` assignments. Raises OSError, UsageError."""
    found = javaproperties.loads(files.read_input(path).decode("utf-8", "replace"))
    return [f"{name}={value}" for name, value in found.items()]


def alter_settings(
    place: Place, name: str, additions: Sequence[str], removals: Sequence[str], *, dry_run: bool = False
) -> SettingsChange:
    """Set and remove settings of a topic. Raises UsageError, UnknownTopicError, InvalidConfigError."""
    set_to = texts_of(additions, "--add-config")
    gone = [find_topic_key(each).name for each in removals]
    look = place.look()
    topic = look.topic(name)
    before = topic.config if topic.made_here else _known(look.own_texts(topic))
    _refuse_unset(name, before, removals, gone)
    after = altered_settings(name, before, set_to, removals, look.broker)
    if not dry_run:
        with place.open() as manager:
            after = dict(manager.topics.alter(name, set_to, remove=removals).config)
    return SettingsChange(topic=name, before=before, after=after)


def alter_namespace(
    place: Place, name: str, additions: Sequence[str], removals: Sequence[str], *, dry_run: bool = False
) -> SettingsChange:
    """Set and remove policies of a Pulsar namespace. Raises UsageError, InvalidConfigError."""
    set_to = texts_of(additions, "--add-config")
    namespace = parse_namespace(name)
    before = place.look().registry.namespaces.get(name, {})
    after: Mapping[str, str] = altered_policies(before, set_to, removals, namespace)
    if not dry_run:
        with place.open() as manager:
            after = manager.topics.alter_namespace(name, set_to, remove=removals)
    return SettingsChange(topic=name, before=before, after=after)


def settings_of_namespace(policies: Mapping[str, str]) -> list[SettingFacts]:
    """A namespace's policies, by name."""
    return [
        SettingFacts(name=name, value=text, source=NAMESPACE_SOURCE, synonyms=())
        for name, text in sorted(policies.items())
    ]


def _known(texts: Mapping[str, str]) -> dict[str, str]:
    """Of a broker's own texts for a topic those that Siltstone knows, which are all that it can keep."""
    return {name: text for name, text in texts.items() if name in TOPIC_NAMES}


def _refuse_unset(topic: str, before: Iterable[str], removals: Sequence[str], gone: Sequence[str]) -> None:
    have = {find_topic_key(each).name for each in before}
    missing = [name for name, key in zip(removals, gone, strict=True) if key not in have]
    if missing:
        raise InvalidConfigError(
            f"topic {topic}: {', '.join(missing)} is not set for it, so it cannot be removed; "
            "siltstone configs --describe shows what is"
        )
