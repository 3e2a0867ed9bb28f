"""Settings as people give them: ``key=value`` arguments, files of them, and what the protocol carries.

Every reader checks names, types and ranges, and says in its error where the value stood.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from siltstone.config.key import Key
from siltstone.config.resolve import Setting, Source
from siltstone.config.table import BROKER_NAMES, TOPIC_NAMES, find_broker_key, find_key, find_topic_key
from siltstone.config.values import parse_text
from siltstone.errors import UsageError

_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[\]]*\])")
_DYNAMIC = (Source.DYNAMIC_BROKER_CONFIG, Source.DYNAMIC_DEFAULT_BROKER_CONFIG)


def parse_value(
    key: Key,
    text: str,
    source: str,
    *,
    name: str | None = None,
    origin: Source = Source.DYNAMIC_TOPIC_CONFIG,
) -> Setting:
    """A checked value, given under ``name`` (the key's own where not said). Raises UsageError that says
    what is allowed."""
    name = name or key.name
    try:
        value = parse_text(key, text, name)
    except ValueError as error:
        raise UsageError(f"{source}: {name}={text!r} {error}") from None
    return Setting(value=value, source=source, origin=origin, name=name)


def parse_assignments(assignments: Iterable[str], source: str) -> dict[str, Setting]:
    """``key=value`` strings as settings, by the names given; a topic's or a broker's. Raises UsageError."""
    return {
        name: parse_value(find_key(name), value, source, name=name)
        for name, value in _pairs(assignments, source)
    }


def parse_topic_config(given: Mapping[str, str] | Iterable[str], source: str) -> dict[str, Setting]:
    """A topic's own settings, from names and texts or from ``key=value`` strings; no broker's names.

    Raises UsageError.
    """
    pairs = given.items() if isinstance(given, Mapping) else _pairs(given, source)
    return {
        name: parse_value(_find(find_topic_key, name, source), value, source, name=name)
        for name, value in pairs
    }


def parse_broker_config(
    given: Mapping[str, str], source: str, origin: Source = Source.STATIC_BROKER_CONFIG
) -> dict[str, Setting]:
    """A broker's settings, from names and texts; no topic's names, and at run time only what can change then.

    Raises UsageError.
    """
    found = {}
    for name, text in given.items():
        key = _find(find_broker_key, name, source)
        if origin in _DYNAMIC and not key.changes_at_run_time(name):
            raise UsageError(f"{source}: {name} cannot change at run time; set it in server.properties")
        found[name] = parse_value(key, text, source, name=name, origin=origin)
    return found


def parse_stored_config(given: Mapping[str, str], source: str, origin: Source) -> dict[str, Setting]:
    """The settings that a broker keeps for a topic or for brokers, as far as they are known here.

    What Kafka has and Siltstone does not (security, quotas, newer releases' keys), what cannot change at run
    time, and bad values of settings that are not used are passed over. Raises UsageError for a bad value of
    one that is used.
    """
    of_topic = origin is Source.DYNAMIC_TOPIC_CONFIG
    found = {}
    for name, text in given.items():
        key = (_topic_key if of_topic else _broker_key)(name)
        if key is None or (origin in _DYNAMIC and not key.changes_at_run_time(name)):
            continue
        try:
            found[name] = parse_value(key, text, source, name=name, origin=origin)
        except UsageError:
            if key.used:
                raise
    return found


def _topic_key(name: str) -> Key | None:
    return find_topic_key(name) if name in TOPIC_NAMES else None


def _broker_key(name: str) -> Key | None:
    return find_broker_key(name) if name in BROKER_NAMES else None


def split_additions(text: str) -> list[str]:
    """``a=1,cleanup.policy=[compact,delete]`` (kafka-configs --add-config) as its assignments."""
    return [part.strip() for part in _COMMA_OUTSIDE_BRACKETS.split(text)] if text.strip() else []


def parse_config_file(text: str, name: str) -> dict[str, dict[str, Setting]]:
    """Lines ``topic:key=value`` (``#`` starts a comment) as settings by topic. Raises UsageError."""
    found: dict[str, dict[str, Setting]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        topic, colon, assignment = stripped.partition(":")
        if not colon or "=" not in assignment:
            raise UsageError(f"{name}:{number}: give topic:key=value")
        found.setdefault(topic.strip(), {}).update(parse_assignments([assignment], f"{name}:{number}"))
    return found


def _find(find: Callable[[str], Key], name: str, source: str) -> Key:
    try:
        return find(name)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


def _pairs(assignments: Iterable[str], source: str) -> Iterator[tuple[str, str]]:
    """Names and texts of ``key=value``; brackets around a list go."""
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"{source} {text!r}: give key=value")
        value = value.strip()
        if value.startswith("[") and value.endswith("]"):
            value = value[1:-1]
        yield name.strip(), value
