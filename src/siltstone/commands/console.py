"""Answers queries of the console and the REST API from the directories of a server (``Served``), besides
those that the catalogue answers: records, segments, groups, directories, savings, changes. Nothing is
changed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from siltstone.base import files
from siltstone.base.errors import UnknownTopicError
from siltstone.commands import emptying, erasing
from siltstone.commands.browsing import READ_BYTES, BrowsedTopic
from siltstone.commands.changes import AuditedChange
from siltstone.commands.cleaning_conditions import CleaningConditions, conditions_of
from siltstone.commands.emptying import Emptying
from siltstone.commands.erasing import ErasureRequest, Erasures
from siltstone.commands.explain_page import counted
from siltstone.commands.groups import ConsumerGroup, partitions_elsewhere, read_groups, with_log_ends
from siltstone.commands.masking import Masking
from siltstone.commands.previewing import ChangePreview, changed_settings, preview
from siltstone.commands.savings import SavedBytes, saved_lately
from siltstone.commands.segments import PartitionSegments, segments_of
from siltstone.commands.served import Served
from siltstone.commands.watch import DUE, STATES, WatchedLog
from siltstone.commands.why_retained import RetainedReason, why_retained
from siltstone.compaction.report import Cleaning
from siltstone.compaction.savings import Saving
from siltstone.log.names import CLEAN_SHUTDOWN, TopicPartition
from siltstone.log.read_only import ReadableLog
from siltstone.runtime.cleaner_metrics import DEAD_THREADS, ENGINE_UP

CONSUMER_OFFSETS = "__consumer_offsets"
CHANGES_LISTED = 10_000
"""The most changes of the audit log in a list: the newest."""


def browsed_topic(served: Served, topic: str) -> BrowsedTopic:
    """A topic whose records can be browsed, masked as ``siltstone.http.mask`` says. Raises
    UnknownTopicError, UsageError."""
    description = served.describe(topic)
    rows = served.catalogue.partitions_of(topic) if topic in served.catalogue.topics else []

    def logs() -> Sequence[ReadableLog]:
        now = served.describe(topic)
        if now.topic_id != description.topic_id:
            raise UnknownTopicError(f"topic {topic[:256]!r} was deleted, and created again")
        return [served.log(topic, partition) for partition in now.partitions]

    return BrowsedTopic(
        name=topic,
        identity=description.topic_id or "",
        logs=logs,
        partition_count=served.partition_count(topic) or len(description.partitions),
        checkpoints={row.topic_partition.partition: row.watched.checkpoint or 0 for row in rows},
        masked=Masking.parse(served.config["siltstone.http.mask"]).of_topic(topic),  # type: ignore[arg-type]
    )


def cleaning_conditions(served: Served, topic: str, partition: int) -> CleaningConditions:
    """The conditions of a partition's cleaning. Checkpoint and uncleanable state are the open manager's,
    which are newer than the catalogue; in look mode the catalogue's. Raises UnknownTopicError,
    SiltstoneError, OSError."""
    log, topic_partition = served.log(topic, partition), TopicPartition(topic, partition)
    watched = served.catalogue.partition_of(topic_partition).watched
    conditions = conditions_of(
        log,
        watched,
        served.settings_of(topic),
        served.clock.now_ms(),
        is_paused=served.cleaner is not None and topic_partition in served.cleaner.paused,
        place=_place_in_queue(served, watched),
    )
    if served.manager is None:
        return conditions
    checkpoints = (
        directory.cleaner_checkpoint().get(topic_partition)
        for directory in served.manager.serving()
        if topic_partition in directory.logs
    )
    checkpoint = next(checkpoints, None)
    return replace(
        conditions, checkpoint=checkpoint, uncleanable=served.manager.uncleanable.get(topic_partition)
    )


def _place_in_queue(served: Served, watched: WatchedLog) -> int | None:
    """The place of a log among those that are due, the dirtiest first, from 1 on; None if it is not due."""
    if watched.state != DUE or watched.snapshot is None:
        return None
    columns = served.catalogue.partition_columns
    is_due = columns["state"] == STATES.index(DUE)
    return 1 + int((is_due & (columns["dirty_ratio"] > watched.snapshot.range.dirty_ratio)).sum())


def partition_segments(served: Served, topic: str, partition: int) -> PartitionSegments:
    """A partition's segments. Raises UnknownTopicError, SiltstoneError, OSError."""
    conditions = cleaning_conditions(served, topic, partition)
    watched = served.catalogue.partition_of(TopicPartition(topic, partition)).watched
    return segments_of(
        conditions.log, watched, conditions.config, counter=served.counter, conditions=conditions
    )


def why_record_retained(
    served: Served,
    topic: str,
    partition: int,
    offset: int,
    *,
    search_from: int | None = None,
    superseded_by: int | None = None,
) -> RetainedReason:
    """Why a record is still here; see ``why_retained``. Raises UnknownTopicError, UsageError, SiltstoneError,
    OSError."""
    conditions = cleaning_conditions(served, topic, partition)
    return why_retained(conditions, offset, search_from=search_from, superseded_by=superseded_by)


def preview_change(
    served: Served, topic: str, set_to: Mapping[str, str], remove: Sequence[str] = ()
) -> ChangePreview:
    """A preview of a change of a topic's own settings. Raises UsageError for an unknown setting,
    UnknownTopicError, SiltstoneError, OSError."""
    numbers = served.describe(topic).partitions
    logs = [cleaning_conditions(served, topic, number) for number in numbers]
    after = changed_settings(served.settings_of(topic), set_to, remove)
    namespaces = {} if served.manager is None else served.manager.topics.namespaces
    return preview(topic, logs, after, namespaces=namespaces, counter=served.counter)


def preview_emptying(served: Served, topic: str, mode: str) -> Emptying:
    """A dry run of emptying a topic; its keys are counted up to ``READ_BYTES``. Raises
    UnknownTopicError, PolicyViolationError, UsageError, SiltstoneError, OSError."""
    config = served.settings_of(topic)
    emptying.refuse_topic(topic, mode, config)
    logs = [served.log(topic, number) for number in served.describe(topic).partitions]
    manager = served.manager
    return emptying.preview_emptying(
        topic,
        mode,
        logs,
        emptying.snapshot_checkpoint if manager is None else emptying.opened_checkpoints(manager),
        config,
        counter=served.counter,
        counts_keys=_size_of(logs) <= READ_BYTES,
    )


def find_keys(served: Served, request: ErasureRequest) -> Erasures | None:
    """Where keys are; None if the topic has more than ``READ_BYTES``, so that a job should search it. Raises
    UnknownTopicError, PolicyViolationError, SiltstoneError, OSError."""
    erasing.refuse_topic(request.topic, served.settings_of(request.topic))
    if served.manager is not None:
        topic = erasing.opened_topic(served.manager, request.topic)
    else:
        topic = erasing.snapshot_topic(served.snapshot(), request.topic)
    if _size_of(topic.logs) > READ_BYTES:
        return None
    earlier = erasing.earlier_runs(topic.directories, served.clock, request)
    return erasing.find_keys(topic, request, earlier)


def _size_of(logs: Sequence[ReadableLog]) -> int:
    return sum(log.view.size_of(number) for log in logs for number in range(len(log.view.segments)))


def cleanings(served: Served, topic: str | None = None) -> Sequence[Cleaning]:
    """The cleanings in the directories' histories, or those of one topic, the newest first. Raises
    UnknownTopicError, OSError."""
    newest = served.histories.cleanings(served.roots)
    if topic is None:
        return newest
    served.describe(topic)
    return [cleaning for cleaning in newest if cleaning.result.topic == topic]


def savings(served: Served) -> Sequence[Saving]:
    """The savings by day and topic, the newest day first, on a day the largest first. Raises OSError."""
    return served.histories.savings(served.roots)


def saved_bytes(served: Served) -> SavedBytes:
    """The recent savings of cleanings. Raises OSError."""
    return saved_lately(savings(served), cleanings(served), served.clock.now_ms())


def groups(served: Served) -> tuple[list[ConsumerGroup], list[str]]:
    """The consumer groups with their lags, and notes. Raises SiltstoneError, OSError."""
    snapshot = served.snapshot_now()
    if not snapshot.has(CONSUMER_OFFSETS):
        return [], [f"the directories have no {CONSUMER_OFFSETS}, where a broker keeps its groups"]
    groups, failures = read_groups(snapshot, kept=served.group_records)
    complete, more = with_log_ends(snapshot, groups)
    return complete, [*failures, *more, *partitions_elsewhere(snapshot, complete)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryRow:
    """A log directory: whether a process uses it, and if none does, whether the last one has stopped cleanly
    (None: in use); why it is offline, None if it is not; the free bytes of its file system (None:
    unknown), its logs and their bytes."""

    path: str
    in_use: bool
    stopped_cleanly: bool | None
    offline: str | None
    free_bytes: int | None
    logs: int
    bytes: int

    def to_json(self) -> Mapping[str, Any]:
        """One object."""
        return {name: getattr(self, name) for name in DirectoryRow.__slots__}


def directories(served: Served) -> list[DirectoryRow]:
    """The log directories, also those that the catalogue could not read."""
    catalogue, offline = served.catalogue, offline_directories(served)
    sums = {**catalogue.sums_by_directory}
    for path in offline:
        sums.setdefault(path, (0, 0))
    return [
        DirectoryRow(
            path=path,
            in_use=(in_use := catalogue.directories.get(path, False)),
            stopped_cleanly=None if in_use else was_stopped_cleanly(path),
            offline=offline.get(path),
            free_bytes=_free_bytes(path),
            logs=logs,
            bytes=size,
        )
        for path, (logs, size) in sums.items()
    ]


def was_stopped_cleanly(path: str) -> bool:
    """Has the last process closed the directory cleanly? False also if it cannot be read."""
    with contextlib.suppress(OSError):
        return files.exists(Path(path) / CLEAN_SHUTDOWN)
    return False


def _free_bytes(path: str) -> int | None:
    with contextlib.suppress(OSError):
        return files.free_space(Path(path)).free_bytes
    return None


def offline_directories(served: Served) -> Mapping[str, str]:
    """The log directories that are offline, and why; none in look mode."""
    offline = {} if served.manager is None else served.manager.offline
    return {str(path): reason for path, reason in offline.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerHealth:
    """The log cleaner of a server: does it run, was its engine there when it was needed last, and how many of
    its threads have died?"""

    enabled: bool
    engine_up: bool
    dead_threads: int

    @property
    def problem(self) -> str | None:
        """A sentence on the problem; None if there is none."""
        if self.dead_threads:
            return f"{counted(self.dead_threads, 'thread has', 'threads have')} died"
        return None if self.engine_up else "engine lost"

    def to_json(self) -> Mapping[str, Any]:
        """One object."""
        return {name: getattr(self, name) for name in CleanerHealth.__slots__}


def cleaner_health(served: Served) -> CleanerHealth | None:
    """The health of the log cleaner; None where nothing is cleaned."""
    if served.manager is None or served.cleaner is None:
        return None
    metrics = served.cleaner.metrics()
    return CleanerHealth(
        enabled=served.manager.config.flag("log.cleaner.enable"),
        engine_up=bool(metrics[ENGINE_UP]),
        dead_threads=int(metrics[DEAD_THREADS]),
    )


def changes(served: Served, count: int = CHANGES_LISTED) -> list[AuditedChange]:
    """The audit log, the newest change first; empty where nothing is changed. Raises OSError."""
    return [] if served.changes is None else served.changes.newest(count)
