"""What the console and the REST API ask of a ``Served``, beside the catalogue: records, segments, groups,
directories, savings, changes. Nothing here changes anything."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siltstone.base import files
from siltstone.commands.browsing import BrowsedTopic
from siltstone.commands.catalogue import PartitionRow
from siltstone.commands.changes import AuditedChange
from siltstone.commands.groups import ConsumerGroup, partitions_elsewhere, read_groups, with_log_ends
from siltstone.commands.masking import Masking
from siltstone.commands.savings import cleanings_of
from siltstone.commands.segments import PartitionSegments, segments_of
from siltstone.commands.served import Served
from siltstone.compaction.report import Cleaning
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadableLog

CONSUMER_OFFSETS = "__consumer_offsets"


def browsed_topic(served: Served, topic: str) -> BrowsedTopic:
    """A topic whose records can be browsed, masked as ``siltstone.http.mask`` says. Raises
    UnknownTopicError, UsageError."""
    description = served.describe(topic)
    rows = served.catalogue.partitions_of(topic) if topic in served.catalogue.topics else []

    def logs() -> Sequence[ReadableLog]:
        return [served.log(topic, partition) for partition in served.describe(topic).partitions]

    return BrowsedTopic(
        name=topic,
        logs=logs,
        partition_count=served.partition_count(topic) or len(description.partitions),
        checkpoints={row.topic_partition.partition: row.watched.checkpoint or 0 for row in rows},
        masked=Masking.parse(served.config["siltstone.http.mask"]).of_topic(topic),  # type: ignore[arg-type]
    )


def partition_segments(served: Served, topic: str, partition: int) -> PartitionSegments:
    """A partition's segments. Raises UnknownTopicError, SiltstoneError, OSError."""
    log = served.log(topic, partition)
    watched = served.catalogue.partition_of(TopicPartition(topic, partition)).watched
    return segments_of(log, watched, served.settings_of(topic))


def uncleanable_rows(served: Served) -> list[PartitionRow]:
    """The logs that the cleaner skips."""
    catalogue = served.catalogue
    return [
        catalogue.partition(number)
        for number, watched in enumerate(catalogue.watched)
        if watched.uncleanable is not None
    ]


def cleanings(served: Served) -> list[Cleaning]:
    """The cleanings in the directories' histories, the newest first. Raises OSError."""
    return cleanings_of(served.paths)


def groups(served: Served) -> tuple[list[ConsumerGroup], list[str]]:
    """The consumer groups with their lags, and notes. Raises SiltstoneError, OSError."""
    snapshot = served.snapshot()
    if CONSUMER_OFFSETS not in snapshot.names():
        return [], [f"the directories have no {CONSUMER_OFFSETS}, where a broker keeps its groups"]
    found, failures = read_groups(snapshot)
    complete, more = with_log_ends(snapshot, found)
    return complete, [*failures, *more, *partitions_elsewhere(snapshot, complete)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryRow:
    """A log directory: whether a process uses it, the free bytes of its file system (None: unknown), its
    logs and their bytes."""

    path: str
    in_use: bool
    free_bytes: int | None
    logs: int
    bytes: int

    def to_json(self) -> Mapping[str, Any]:
        """One object."""
        return {name: getattr(self, name) for name in DirectoryRow.__slots__}


def directories(served: Served) -> list[DirectoryRow]:
    """The log directories."""
    counts: dict[str, list[int]] = {path: [0, 0] for path in served.catalogue.directories}
    for log in served.catalogue.watched:
        row = counts.setdefault(str(log.directory.parent), [0, 0])
        row[0] += 1
        row[1] += log.size
    return [
        DirectoryRow(
            path=path,
            in_use=served.catalogue.directories.get(path, False),
            free_bytes=_free_bytes(path),
            logs=logs,
            bytes=size,
        )
        for path, (logs, size) in counts.items()
    ]


def _free_bytes(path: str) -> int | None:
    with contextlib.suppress(OSError):
        return files.free_space(Path(path)).free_bytes
    return None


def changes(served: Served, count: int) -> list[AuditedChange]:
    """The audit log, the newest change first; empty where nothing is changed. Raises OSError."""
    return [] if served.changes is None else served.changes.newest(count)
