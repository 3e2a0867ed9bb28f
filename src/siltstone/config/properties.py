"""A broker's ``server.properties``: Java's properties format, with Kafka's names.

Apart from the package's face, since only what starts a broker reads such files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import javaproperties

from siltstone.config.given import parse_broker_config, parse_stored_config
from siltstone.config.resolve import Setting, Source
from siltstone.errors import UsageError

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
        found.update(parse_stored_config({key: value}, f"{name}:{line}", Source.STATIC_BROKER_CONFIG))
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
