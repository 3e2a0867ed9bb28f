"""The table of settings by every name that they go by. Unknown names are refused with the nearest known."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from siltstone.base.config.broker_keys import BROKER_KEYS
from siltstone.base.config.keys import Key, Level
from siltstone.base.config.topic_keys import TOPIC_KEYS
from siltstone.base.errors import UsageError

ALL_KEYS: tuple[Key, ...] = (*TOPIC_KEYS, *BROKER_KEYS)

# A name that is a setting of its own is that one, although it also stands in for another
# (log.flush.scheduler.interval.ms for flush.ms).
_BY_NAME = {name: key for key in ALL_KEYS for name in key.names} | {key.name: key for key in ALL_KEYS}
TOPIC_NAMES = frozenset(name for key in ALL_KEYS for name in key.topic_names)
BROKER_NAMES = frozenset(name for key in ALL_KEYS for name in key.broker_names)


def find_key(name: str) -> Key:
    """The key of that name or synonym. Raises UsageError that suggests the nearest."""
    return _find(name, _BY_NAME)


def find_topic_key(name: str) -> Key:
    """The key of a topic's name for it. Raises UsageError, with the topic's name for a broker's."""
    if name in TOPIC_NAMES or name not in _BY_NAME:
        return _find(name, TOPIC_NAMES)
    key = _BY_NAME[name]
    if key.level is Level.BROKER:
        raise UsageError(f"{name!r} is a broker's setting, not a topic's")
    raise UsageError(f"{name!r} is a broker's setting; a topic's is {key.name!r}")


def find_broker_key(name: str) -> Key:
    """The key of a broker's name for it. Raises UsageError, with the broker's name for a topic's."""
    if name in BROKER_NAMES or name not in _BY_NAME:
        return _find(name, BROKER_NAMES)
    key = _BY_NAME[name]
    if key.level is Level.TOPIC:
        raise UsageError(f"{name!r} is a topic's setting, not a broker's")
    raise UsageError(f"{name!r} is a topic's setting; a broker's is {key.broker_names[0]!r}")


def _find(name: str, names: Collection[str]) -> Key:
    if name in names:
        return _BY_NAME[name]
    nearest = difflib.get_close_matches(name, sorted(names), 1, 0.5)
    raise UsageError(f"unknown setting {name!r}" + (f"; did you mean {nearest[0]!r}?" if nearest else ""))
