"""Text ↔ checked value. ``parse_text(key, format_value(value)) == value`` for every value that a key allows.

Numbers are read as Kafka reads them: decimal digits with a sign, 32 or 64 bits; nothing of Python's own
(underscores, other alphabets' digits). Answers to ``ConfigDef.parseType`` and its validators.
"""

from __future__ import annotations

import re

from siltstone.config.key import INT_MAX, LONG_MAX, Key, Kind, Synonym, Value

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
