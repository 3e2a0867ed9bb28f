"""Text ↔ checked value. ``parse_text(key, format_value(value)) == value`` for every value that a key allows.

Numbers are read as Kafka reads them: decimal digits with a sign, 32 or 64 bits; nothing of Python's own
(underscores, other alphabets' digits). Answers to ``ConfigDef.parseType`` and its validators.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import javaproperties

from siltstone.base.config.keys import INT_MAX, LONG_MAX, Key, Kind, Synonym, Value
from siltstone.base.config.resolve import ConfigSource, Setting
from siltstone.base.config.table import BROKER_NAMES, TOPIC_NAMES, find_broker_key, find_key, find_topic_key
from siltstone.base.errors import UsageError

_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?|[+-]?Infinity|NaN")
_KIND_BOUNDS = {Kind.INT: (-INT_MAX - 1, INT_MAX), Kind.LONG: (-LONG_MAX - 1, LONG_MAX)}
_SAID = {
    Kind.BOOLEAN: "true or false",
    Kind.INT: "whole number",
    Kind.LONG: "whole number",
    Kind.DOUBLE: "number",
    Kind.LIST: "list of words",
    Kind.STRING: "text",
}


def parse_text(key: Key, text: str, name: str | None = None) -> Value:
    """The value, in the key's own unit, that ``text`` means under ``name``. Raises ValueError: why not."""
    synonym = None if name is None else key.synonym(name)
    kind = (synonym and synonym.kind) or key.kind
    try:
        value = _parse(kind, text.strip())
    except ValueError:
        raise ValueError(f"is no {_SAID[kind]}") from None
    if isinstance(value, (str, tuple)):
        refuse_other_words(key, value)
    elif not isinstance(value, bool):
        return _checked_number(key, synonym, kind, value)
    return value


def format_value(value: Value) -> str:
    """The text that Kafka writes for a value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def allowed(key: Key, synonym: Synonym | None = None) -> str:
    """What a number may be, in words; empty where anything goes."""
    least, most = _bounds(key, synonym, (synonym and synonym.kind) or key.kind)
    words = [] if least is None else [f"at least {least}"]
    words += [] if most is None else [f"at most {most}"]
    said = " and ".join(words)
    if key.refused:
        said += ", not " + " or ".join(map(str, key.refused))
    return said + (", or negative: no limit" if synonym and _is_unlimited(key, synonym) else "")


def refuse_other_words(key: Key, value: str | tuple[str, ...]) -> None:
    """Raises ValueError for a word that is none of the key's choices."""
    for word in (value,) if isinstance(value, str) else value:
        if key.choices and word not in key.choices:
            raise ValueError(f"is none of its values; choose from {', '.join(key.choices)}")


def _parse(kind: Kind, text: str) -> Value:
    if kind is Kind.BOOLEAN:
        if text.lower() not in ("true", "false"):
            raise ValueError
        return text.lower() == "true"
    if kind is Kind.STRING:
        return text
    if kind is Kind.LIST:
        return _words(text)
    if not (_NUMBER if kind is Kind.DOUBLE else _WHOLE).fullmatch(text):
        raise ValueError
    return float(text) if kind is Kind.DOUBLE else int(text)


def _words(text: str) -> tuple[str, ...]:
    """Words between commas, each once; nothing at all is the empty list."""
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(words):
        raise ValueError
    return tuple(dict.fromkeys(words))


def _is_unlimited(key: Key, synonym: Synonym | None) -> bool:
    """Whether a negative number means no limit: a broker's retention times too, not a topic's (Kafka)."""
    return key.negative_is_unlimited or (synonym is not None and key.name == "retention.ms")


def _checked_number(key: Key, synonym: Synonym | None, kind: Kind, number: int | float) -> int | float:
    if _is_unlimited(key, synonym) and _KIND_BOUNDS[kind][0] <= number < 0:
        return -1
    least, most = _bounds(key, synonym, kind)
    inside = (least is None or number >= least) and (most is None or number <= most)  # never NaN
    if not inside or number in key.refused:
        raise ValueError(f"must be {allowed(key, synonym)}")
    return number if synonym is None else number * synonym.unit


def _bounds(key: Key, synonym: Synonym | None, kind: Kind) -> tuple[float | None, float | None]:
    """The least and the most, in the unit of the name that was used."""
    shortest, longest = _KIND_BOUNDS.get(kind, (None, None))
    least, most = key.least, key.most
    if synonym is not None and (synonym.unit != 1 or synonym.least is not None):
        least, most = synonym.least, None
    return (shortest if least is None else least), (longest if most is None else most)


# Settings as people give them: ``key=value`` arguments, files of them, and what the protocol carries.
#
# Every reader checks names, types and ranges, and says in its error where the value stood.

_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[\]]*\])")
_DYNAMIC = (ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)


def parse_value(
    key: Key,
    text: str,
    source: str,
    *,
    name: str | None = None,
    origin: ConfigSource = ConfigSource.DYNAMIC_TOPIC_CONFIG,
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
    given: Mapping[str, str], source: str, origin: ConfigSource = ConfigSource.STATIC_BROKER_CONFIG
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


def parse_stored_config(given: Mapping[str, str], source: str, origin: ConfigSource) -> dict[str, Setting]:
    """The settings that a broker keeps for a topic or for brokers, as far as they are known here.

    What Kafka has and Siltstone does not (security, quotas, newer releases' keys), what cannot change at run
    time, and bad values of settings that are not used are passed over. Raises UsageError for a bad value of
    one that is used.
    """
    of_topic = origin is ConfigSource.DYNAMIC_TOPIC_CONFIG
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


# A broker's ``server.properties``: Java's properties format, with Kafka's names.
#
# Apart from the package's face, since only what starts a broker reads such files.

_LINE_END = re.compile(r"\r\n|\r|\n")


def parse_server_properties(text: str, name: str) -> dict[str, Setting]:
    """The settings of a ``server.properties``, each with ``name:line`` as its source.

    Of entries with the same name the last one counts.
    Raises UsageError for an unknown name, a value that is out of range and a broken escape.
    """
    found: dict[str, Setting] = {}
    for line, key, value in _entries(text, name):
        found.update(parse_broker_config({key: value}, f"{name}:{line}"))
    return found


def parse_foreign_server_properties(text: str, name: str) -> dict[str, Setting]:
    """The same of a Kafka broker's own file, which holds more than is known here: that is passed over.

    Raises UsageError for a value that is out of range and a broken escape.
    """
    found: dict[str, Setting] = {}
    for line, key, value in _entries(text, name):
        found.update(parse_stored_config({key: value}, f"{name}:{line}", ConfigSource.STATIC_BROKER_CONFIG))
    return found


def first_of(text: str, name: str, *keys: str) -> str | None:
    """The last entry for the first of ``keys`` that the file has, as text. Raises UsageError."""
    entries = {key: value for _, key, value in _entries(text, name)}
    return next((entries[key].strip() for key in keys if entries.get(key, "").strip()), None)


def _entries(text: str, name: str) -> Iterator[tuple[int, str, str]]:
    """Line number (of its beginning), key and value of each entry; escapes and continued lines resolved."""
    line = 1
    try:
        for element in javaproperties.parse(text):
            if isinstance(element, javaproperties.KeyValue):
                yield line, element.key, element.value
            line += len(_LINE_END.findall(element.source))
    except javaproperties.InvalidUEscapeError as error:
        raise UsageError(f"{name}:{line}: {error}") from None
