"""A broker's ``server.properties``: Java's properties format, with Kafka's names.

Apart from the package's face, since only what starts a broker reads such files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import javaproperties

from siltstone.config.given import parse_broker_config
from siltstone.config.resolve import Setting
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
