"""Options as a data source gets them: texts by names whose case does not count.

A table of ``Option`` says which there are; ``parse_options`` turns what was given into values and refuses
names that are not in it, with the nearest that is. The same for reading, streaming and writing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from siltstone.errors import UsageError

_SIZE = re.compile(r"(\d+)\s*(b|k|kb|m|mb|g|gb|t|tb)?", re.IGNORECASE)
_SCALE = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_DURATION = re.compile(r"(\d+)\s*(ms|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)?", re.IGNORECASE)
_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Option:
    """``name`` as people write it, ``parse`` its text (ValueError: what is wrong with it)."""

    name: str
    parse: Callable[[str], Any]
    field: str


IGNORED = frozenset("provider location owner comment external serialization.format paths".split())
"""What Spark hands on by itself: a catalog's properties of a table among them."""


def parse_options(given: Mapping[str, str], table: tuple[Option, ...]) -> dict[str, Any]:
    """Values by field. Raises UsageError for an unknown name or a text that is not allowed."""
    known = {option.name.lower(): option for option in table}
    found: dict[str, Any] = {}
    for name, text in given.items():
        lower = name.lower()
        option = known.get(lower)
        if option is None and (lower in IGNORED or lower.startswith(("option.", "transient_"))):
            continue
        if option is None:
            raise UsageError(_unknown(name, known))
        try:
            found[option.field] = option.parse(text)
        except ValueError as error:
            raise UsageError(f"option {option.name}={text!r}: {error}") from None
    return found


def _unknown(name: str, known: Mapping[str, Option]) -> str:
    if name.lower() == "kafka.isolation.level":
        return f"option {name!r}: here it is 'isolation'"
    if name.lower().startswith("kafka."):
        return f"option {name!r}: siltstone reads directories ('path') and talks to no broker"
    nearest = difflib.get_close_matches(name.lower(), sorted(known), 1, 0.5)
    return f"unknown option {name!r}" + (f"; did you mean {known[nearest[0]].name!r}?" if nearest else "")


def directory(text: str) -> str:
    """A directory's name: itself, or a ``file:`` URI, as Spark's catalog writes it."""
    if not text.startswith("file:"):
        return text
    found = urlsplit(text)
    if found.netloc not in ("", "localhost"):
        raise ValueError("give a directory of this machine")
    return unquote(found.path)


def boolean(text: str) -> bool:
    """true or false."""
    if text.lower() not in ("true", "false"):
        raise ValueError("give true or false")
    return text.lower() == "true"


def number(least: int = 0) -> Callable[[str], int]:
    """A whole number of at least ``least``."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?\d{1,19}", text.strip(), re.ASCII) or int(text) < least:
            raise ValueError(f"give a whole number of at least {least}")
        return int(text)

    return parse


def one_of(*allowed: str) -> Callable[[str], str]:
    """One of some words, in lower case."""

    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(f"give {' or '.join(allowed)}")
        return text.lower()

    return parse


def size(text: str) -> int:
    """Bytes, with Spark's endings: ``128m``, ``1g``, ``65536``."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise ValueError("give a size such as 128m")
    return int(found[1]) << _SCALE[(found[2] or "").lower()[:1]]


def duration_ms(text: str) -> int:
    """Milliseconds from ``15m``, ``10s``, ``500ms``; a bare number is ms."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError("give a duration such as 15m")
    unit = (found[2] or "ms").lower()
    return int(found[1]) * (1 if unit == "ms" else _MS[unit[0]])


def time_ms(text: str) -> int:
    """Milliseconds since 1970 from themselves or from an ISO 8601 date or time; UTC where it has no zone."""
    if re.fullmatch(r"-?\d{1,19}", text.strip(), re.ASCII):
        return int(text)
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("give milliseconds since 1970, or a time such as 2026-01-01T12:00:00Z") from None
    zoned = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    since = zoned - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def words(text: str) -> tuple[str, ...]:
    """Comma-separated words."""
    found = tuple(word.strip() for word in text.split(",") if word.strip())
    if not found:
        raise ValueError("give at least one, separated by commas")
    return found
