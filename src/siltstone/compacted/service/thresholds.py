"""From how many bytes on a log is compacted: the topic's word before the broker's before its namespace's.

That is seed 001's order. Pulsar itself lets a namespace's policy go before its broker's; who wants that
leaves the broker's out. All pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from siltstone.config import Config, Source
from siltstone.log.service.namespaces import namespace_of

KEY = "compactionThreshold"
TOPIC, BROKER, NAMESPACE, DEFAULT = "topic", "broker", "namespace", "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """``size`` in bytes, 0: never by itself; ``source``: who said so."""

    size: int
    source: str

    def is_passed_by(self, backlog: int) -> bool:
        """Do so many bytes start a compaction?"""
        return 0 < self.size < backlog


def compaction_threshold(
    topic: str, settings: Config, namespaces: Mapping[str, Mapping[str, str]]
) -> Threshold:
    """What holds for ``topic``: ``settings`` are its own over the broker's, ``namespaces`` the policies by
    ``tenant/namespace``. A 0 that somebody gave counts, and hides what comes after it."""
    found = settings.setting(KEY)
    assert isinstance(found.value, int)
    if found.origin is Source.DEFAULT_CONFIG:
        text = namespaces.get(str(namespace_of(topic)), {}).get(KEY)
        return Threshold(size=found.value, source=DEFAULT) if text is None else _of_namespace(text)
    return Threshold(size=found.value, source=TOPIC if found.name == KEY else BROKER)


def _of_namespace(text: str) -> Threshold:
    return Threshold(size=int(text), source=NAMESPACE)
