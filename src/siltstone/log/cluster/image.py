"""What a metadata log says, record by record, brought together: topics by name, settings by resource.

A transaction's records (KIP-868) count when it has ended, all at once; those of one that was aborted, or that
is still open at the log's end, never do. Answers to ``MetadataDelta``, ``MetadataBatchLoader``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from siltstone.records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    MetadataRecord,
    RemoveTopicRecord,
    TopicRecord,
)

TOPIC, BROKER = 2, 4
"""Types of resources that have settings; others are passed over (``ConfigResource.Type``)."""
ALL_BROKERS = ""
"""The name under which a broker's settings hold for all brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterImage:
    """Topics (name → id) and settings ((resource type, name) → key → text) below ``end_offset``."""

    topics: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[tuple[int, str], Mapping[str, str]] = field(default_factory=dict)
    end_offset: int = 0

    def settings_of(self, resource_type: int, name: str) -> Mapping[str, str]:
        """A resource's own settings as texts, empty where it has none."""
        return self.settings.get((resource_type, name), {})


class Replay:
    """Applies records in the order of the log. ``image`` is what counts so far."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._settings: dict[tuple[int, str], dict[str, str]] = {}
        self._held: list[MetadataRecord] | None = None

    def apply(self, record: MetadataRecord) -> None:
        """One record more. Raises ValueError for one that cannot follow what came before."""
        match record:
            case BeginTransactionRecord():
                if self._held is not None:
                    raise ValueError("a transaction begins inside another one")
                self._held = []
            case EndTransactionRecord() | AbortTransactionRecord():
                self._end(commit=isinstance(record, EndTransactionRecord))
            case _ if self._held is not None:
                self._held.append(record)
            case _:
                self._change(record)

    def _end(self, *, commit: bool) -> None:
        if self._held is None:
            raise ValueError("a transaction ends that never began")
        held, self._held = self._held, None
        for record in held if commit else ():
            self._change(record)

    def _change(self, record: MetadataRecord) -> None:
        match record:
            case TopicRecord(name, topic_id):
                self._names[topic_id] = name
            case RemoveTopicRecord(topic_id):
                if topic_id not in self._names:
                    raise ValueError(f"the topic with id {topic_id} goes, but there is none")
                self._settings.pop((TOPIC, self._names.pop(topic_id)), None)
            case ConfigRecord(resource_type, resource_name, name, None):
                self._settings.get((resource_type, resource_name), {}).pop(name, None)
            case ConfigRecord(resource_type, resource_name, name, str(value)):
                if resource_type in (TOPIC, BROKER):
                    self._settings.setdefault((resource_type, resource_name), {})[name] = value

    def image(self, end_offset: int) -> ClusterImage:
        """What counts, an open transaction left out. Nothing is applied to this afterwards."""
        topics = {name: topic_id for topic_id, name in self._names.items()}
        return ClusterImage(topics=topics, settings=self._settings, end_offset=end_offset)
