"""Topics: listed, described, made, given more partitions, deleted (Kafka's ``TopicCommand``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from siltstone.base import files
from siltstone.base.config import format_value, parse_topic_config
from siltstone.base.errors import SiltstoneError, UnknownTopicError, UsageError
from siltstone.commands.places import Look, Place, TopicFacts
from siltstone.log.ledger.manifest import Ledger
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.names import TopicPartition
from siltstone.runtime.manager import LogManager
from siltstone.runtime.topic_names import is_deleted_directory
from siltstone.runtime.topics import refuse_fewer_partitions, refuse_new_topic


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """One partition. ``failure``: why it cannot be read, or not all of it; sizes in bytes.

    ``compacted``: the ledger beside it, None without one.
    """

    partition: int
    directory: str | None
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    high_watermark: int | None = None
    size: int | None = None
    segments: int | None = None
    failure: str | None = None
    compacted: Ledger | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChange:
    """What was done to a topic, or would be: ``created``, ``exists``, ``altered``, ``deleted``."""

    topic: str
    status: str
    topic_id: str | None = None
    partitions: int | None = None
    config: Mapping[str, str] | None = None


def matching(names: Iterable[str], pattern: str | None) -> list[str]:
    """The topic of that very name, else those that the regular expression fits, as in Kafka; None: all.

    Raises UsageError.
    """
    names = list(names)
    if pattern is None:
        return names
    if pattern in names:
        return [pattern]
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--topic {pattern}: neither a topic nor a regular expression ({error})") from None
    return [name for name in names if wanted.fullmatch(name)]


def found_topics(names: Iterable[str], pattern: str | None, *, if_exists: bool = False) -> list[str]:
    """``matching``, at least one unless ``if_exists``. Raises UnknownTopicError, UsageError."""
    names = list(names)
    found = matching(names, pattern)
    if not found and pattern is not None and not if_exists:
        raise UnknownTopicError(f"there is no topic {pattern!r} here; siltstone topics --list shows all")
    return found


def texts_of(assignments: Sequence[str], flag: str) -> dict[str, str]:
    """``key=value`` arguments as checked texts by the names given. Raises UsageError."""
    parsed = parse_topic_config(assignments, flag)
    return {name: format_value(setting.value) for name, setting in parsed.items()}


def partitions_of(look: Look, topic: TopicFacts) -> list[PartitionFacts]:
    """The partitions of a topic; one that cannot be read says why, and the others are there."""
    return [_partition(look, TopicPartition(topic.name, number)) for number in topic.partitions]


def _partition(look: Look, where: TopicPartition) -> PartitionFacts:
    path = look.path_of(where)
    if path is None:
        failure = "is in none of these directories"
        return PartitionFacts(partition=where.partition, directory=None, failure=failure)
    try:
        log = look.log(where)
    except (SiltstoneError, OSError) as error:
        return PartitionFacts(partition=where.partition, directory=str(path.parent), failure=str(error))
    view = log.view
    damage, compacted = look.damage_of(where), None
    try:
        compacted = LedgerStore(path).current()
    except (SiltstoneError, OSError) as error:
        damage = damage or str(error)
    return PartitionFacts(
        partition=where.partition,
        directory=str(path.parent),
        log_start_offset=view.log_start_offset,
        log_end_offset=view.log_end_offset,
        high_watermark=view.high_watermark,
        size=sum(view.size_of(number) for number in range(len(view.segments))),
        segments=len(view.segments),
        failure=damage,
        compacted=compacted,
    )


def create_topic(
    place: Place,
    name: str,
    partitions: int | None,
    config: Mapping[str, str],
    *,
    if_not_exists: bool = False,
    dry_run: bool = False,
) -> TopicChange:
    """Make a topic. Raises LogError with Kafka's code, SiltstoneError."""
    if dry_run:
        look = place.look_before_making()
        if if_not_exists and name in look.names():
            return TopicChange(topic=name, status="exists")
        count = look.broker.integer("num.partitions") if partitions is None else partitions
        refuse_new_topic(name, look.names(), count, config, look.broker)
        return TopicChange(topic=name, status="created", partitions=count, config=config)
    with place.open() as manager:
        if if_not_exists and name in manager.topics.names():
            return TopicChange(topic=name, status="exists")
        made = manager.topics.create(name, partitions, config)
    return TopicChange(
        topic=name,
        status="created",
        topic_id=made.topic_id,
        partitions=len(made.partitions),
        config=made.config,
    )


def add_partitions(
    place: Place, pattern: str, count: int, *, if_exists: bool = False, dry_run: bool = False
) -> list[TopicChange]:
    """Let topics have ``count`` partitions each. Raises LogError, SiltstoneError."""
    look = place.look()
    names = found_topics(look.names(), pattern, if_exists=if_exists)
    for name in names:
        refuse_fewer_partitions(name, len(look.topic(name).partitions), count)
    if names and not dry_run:
        with place.open() as manager:
            for name in names:
                manager.topics.add_partitions(name, count)
    return [TopicChange(topic=name, status="altered", partitions=count) for name in names]


def delete_topics(
    place: Place, pattern: str, *, if_exists: bool = False, dry_run: bool = False
) -> list[TopicChange]:
    """Delete topics, and free their room at once: nobody else reads them. Raises LogError, SiltstoneError."""
    look = place.look()
    names = found_topics(look.names(), pattern, if_exists=if_exists)
    if names and not dry_run:
        with place.open() as manager:
            left = _deleted_directories(manager)
            for name in names:
                manager.topics.delete(name)
            for path in sorted(_deleted_directories(manager) - left):
                files.remove_tree(path)
    return [
        TopicChange(topic=name, status="deleted", partitions=len(look.topic(name).partitions))
        for name in names
    ]


def _deleted_directories(manager: LogManager) -> set[str]:
    return {
        str(served.path / entry.name)
        for served in manager.serving()
        for entry in files.entries(served.path)
        if entry.is_directory and is_deleted_directory(entry.name)
    }
