"""The topics that were made here and their settings, kept in a file of ours: ``siltstone-topics.json``.

Kafka keeps this in its metadata log; a log directory that Siltstone serves alone has none. The file lies in
the root of every log directory, where a broker passes files over (a strange *folder* would stop it)::

    {"version": 1, "generation": 7,
     "topics": {"users": {"id": "kLhQkZ_dTQCU8PsWACbD0Q", "partitions": [0, 1], "unmade": [1],
                          "config": {"retention.ms": "1"}}},
     "deleted": {"old": ["DNBQGazITYep2N_VW9ngBQ"]},
     "namespaces": {"public/default": {"compactionThreshold": "100000000"}}}   left out where there are none

The copy with the highest generation counts: a directory that was offline for a while has an older one. A
change is made in all copies before it is acknowledged, and before its partition directories are touched: a
start makes the partitions that are listed as unmade, and takes away those of topics (by id) that are listed
as deleted. A partition that was made once and is in none of the directories is not made again: its directory
may be one that was not named this time. The settings of a topic that is on disk and not in the file are its
broker's (see ``broker_topics``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from siltstone import files
from siltstone.errors import CorruptFileError

TOPICS_FILE = "siltstone-topics.json"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEntry:
    """One topic: its id ("" where Kafka gave it none), its partitions' numbers, its settings as texts.

    ``unmade``: those of the partitions whose directories a crash may have kept from being made.
    """

    topic_id: str
    partitions: tuple[int, ...]
    unmade: tuple[int, ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRegistry:
    """What the file holds. Changes make a new one with the next generation.

    ``deleted``: by name, the ids of deleted topics of which directories may be left. ``namespaces``: the
    policies of Pulsar's namespaces, by ``tenant/namespace``, as texts.
    """

    generation: int = 0
    topics: Mapping[str, TopicEntry] = field(default_factory=dict)
    deleted: Mapping[str, frozenset[str]] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def with_topic(self, name: str, entry: TopicEntry) -> TopicRegistry:
        """A topic is there, or is another one now."""
        return replace(self, generation=self.generation + 1, topics={**self.topics, name: entry})

    def without_topic(self, name: str, topic_id: str) -> TopicRegistry:
        """A topic is deleted; its directories may be there still."""
        kept = {other: entry for other, entry in self.topics.items() if other != name}
        deleted = {**self.deleted, name: self.deleted.get(name, frozenset()) | {topic_id}}
        return replace(self, generation=self.generation + 1, topics=kept, deleted=deleted)

    def with_namespace(self, name: str, policies: Mapping[str, str]) -> TopicRegistry:
        """A namespace has these policies now; one without any is not listed."""
        kept = {other: texts for other, texts in self.namespaces.items() if other != name}
        listed = {**kept, name: dict(policies)} if policies else kept
        return replace(self, generation=self.generation + 1, namespaces=listed)

    def without_deleted(self) -> TopicRegistry:
        """Nothing is left of the topics that were deleted. The generation stays: nothing depends on it."""
        return replace(self, deleted={})

    def encode(self) -> bytes:
        """The file's content."""
        topics = {
            name: {
                "id": entry.topic_id,
                "partitions": entry.partitions,
                "unmade": entry.unmade,
                "config": dict(entry.config),
            }
            for name, entry in self.topics.items()
        }
        deleted = {name: sorted(ids) for name, ids in self.deleted.items()}
        found = {"version": _VERSION, "generation": self.generation, "topics": topics, "deleted": deleted}
        if self.namespaces:
            found["namespaces"] = {name: dict(texts) for name, texts in self.namespaces.items()}
        return (json.dumps(found, sort_keys=True) + "\n").encode()


def load_registry(directories: Iterable[Path]) -> tuple[TopicRegistry, list[Path]]:
    """The newest copy in these directories, and the directories whose copy is missing or older.

    A copy that makes no sense counts as missing. Raises CorruptFileError when none does, OSError.
    """
    copies: dict[Path, TopicRegistry | None] = {}
    trouble: CorruptFileError | None = None
    for directory in directories:
        try:
            copies[directory] = _read(directory / TOPICS_FILE)
        except CorruptFileError as error:
            copies[directory], trouble = None, error
    found = [copy for copy in copies.values() if copy is not None]
    if trouble is not None and not found:
        raise trouble
    newest = max(found, key=lambda copy: copy.generation, default=TopicRegistry())
    behind = [each for each, copy in copies.items() if copy is None or copy.generation < newest.generation]
    return newest, behind if newest.generation else []


def write_registry(directory: Path, registry: TopicRegistry) -> None:
    """Replace a directory's copy, durably. Raises OSError."""
    files.replace(directory / TOPICS_FILE, registry.encode())


def _read(path: Path) -> TopicRegistry | None:
    try:
        raw = files.read_bytes(path)
    except FileNotFoundError:
        return None
    try:
        return _parse(json.loads(raw))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(str(path), 0, f"no list of topics ({error}); put an older copy back") from None


def _parse(found: Any) -> TopicRegistry:
    if found["version"] != _VERSION:
        raise ValueError(f"version {found['version']}; only {_VERSION} is known")
    topics = {
        str(name): TopicEntry(
            topic_id=str(entry["id"]),
            partitions=tuple(int(number) for number in entry["partitions"]),
            unmade=tuple(int(number) for number in entry["unmade"]),
            config={str(key): str(value) for key, value in entry["config"].items()},
        )
        for name, entry in found["topics"].items()
    }
    deleted = {str(name): frozenset(map(str, ids)) for name, ids in found["deleted"].items()}
    namespaces = {
        str(name): {str(key): str(value) for key, value in texts.items()}
        for name, texts in found.get("namespaces", {}).items()
    }
    return TopicRegistry(
        generation=int(found["generation"]), topics=topics, deleted=deleted, namespaces=namespaces
    )
