"""Finds offsets by time, deletes records, sums the sizes of log directories (Kafka's ``GetOffsetShell``,
``DeleteRecordsCommand``, ``LogDirsCommand``)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from siltstone.base import files
from siltstone.base.config import LogConfig
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import (
    LogError,
    OffsetOutOfRangeError,
    SiltstoneError,
    UnknownTopicError,
    UsageError,
    shown_path,
)
from siltstone.commands.directories import LIST_TOPICS, BrokerDirectories, Snapshot
from siltstone.commands.topics import matching_topics
from siltstone.log.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP
from siltstone.log.names import CLUSTER_METADATA, INTERNAL_TOPICS, TopicPartition
from siltstone.log.segments import list_segments
from siltstone.runtime.manager import refuse_compacted_only
from siltstone.runtime.topics import TopicDescription

_TIMES = {
    "latest": LATEST_TIMESTAMP,
    "earliest": EARLIEST_TIMESTAMP,
    "max-timestamp": MAX_TIMESTAMP,
    "earliest-local": EARLIEST_TIMESTAMP,
    "-4": EARLIEST_TIMESTAMP,
}
"""Words of ``--time``, and Kafka's -4, which is earliest-local. The log directories have local segments only,
so the earliest local offset is the earliest one."""
_PARTITIONS = re.compile(r"(\d{0,18})(-)?(\d{0,18})", re.ASCII)
"""A number, or a range with a hyphen."""
_PARTITION_MAX = (1 << 31) - 1
"""Numbers of partitions are int32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffset:
    """A partition's offset for a time, None if no record is that late; or its log start after records were
    deleted. ``failure``: why the log cannot be read, or only in part, or Kafka's error."""

    topic_partition: TopicPartition
    offset: int | None
    failure: str | None = None

    def to_json(self, name: str = "offset") -> dict[str, object]:
        """One object, with the offset as ``name``."""
        return {
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            name: self.offset,
            "error": self.failure,
        }


def parse_time(text: str) -> int:
    """``--time``: ms, or Kafka's words and negative numbers. Raises UsageError."""
    if text in _TIMES:
        return _TIMES[text]
    # MAX_TIMESTAMP is -3, the lowest of Kafka's negative numbers that stand for a time here.
    if re.fullmatch(r"-?\d{1,18}", text, re.ASCII) and int(text) >= MAX_TIMESTAMP:
        return int(text)
    is_tiered = text in ("-5", "latest-tiered")
    raise UsageError(
        f"--time {text}: " + ("there is no remote storage" if is_tiered else "not a time"),
        advice="pass ms since 1970, -1 or latest, -2 or earliest, -3 or max-timestamp",
    )


def parse_partitions(text: str) -> list[range]:
    """``0,2-4,7-``: numbers, and ranges without their upper ends, as in Kafka. Raises UsageError."""
    ranges = []
    for part in text.split(","):
        match = _PARTITIONS.fullmatch(part.strip())
        if match is None or not (match[1] or match[2]):
            advice = "pass numbers and ranges such as 0,2-4,7-"
            raise UsageError(f"partitions {text!r}: {part!r} is no number or range", advice=advice)
        first = int(match[1] or 0)
        if not match[2]:
            ranges.append(range(first, first + 1))
        else:
            ranges.append(range(first, int(match[3]) if match[3] else _PARTITION_MAX))
    return ranges


class ListedTopics(Protocol):
    """A source of topics and their partitions: a snapshot of directories, or a running broker."""

    def names(self) -> list[str]: ...
    def topic(self, name: str) -> TopicDescription: ...


def select_partitions(
    listed: ListedTopics,
    *,
    topic: str | None = None,
    partitions: str | None = None,
    topic_partitions: str | None = None,
    exclude_internal: bool = False,
) -> list[TopicPartition]:
    """The partitions that the flags select, in order; at least one. ``topic``: a name or a regular
    expression; ``partitions``: as in ``parse_partitions``; ``topic_partitions``: TOPIC:PARTITIONS,…, in place
    of both. Raises UsageError, UnknownTopicError."""
    if topic_partitions is not None and (topic is not None or partitions is not None):
        reason = "--topic-partitions is passed with --topic or --partitions"
        raise UsageError(reason, advice="pass --topic-partitions alone")
    names = [name for name in listed.names() if not (exclude_internal and name in INTERNAL_TOPICS)]
    terms: list[tuple[str | None, str | None]] = [(topic, partitions)]
    if topic_partitions is not None:
        parts = (part.strip().partition(":") for part in topic_partitions.split(","))
        terms = [(name or None, numbers) for name, _, numbers in parts]
    selected = set[TopicPartition]()
    for pattern, numbers in terms:
        ranges = parse_partitions(numbers) if numbers else [range(_PARTITION_MAX)]
        selected |= {
            TopicPartition(name, number)
            for name in matching_topics(names, pattern, if_exists=True)
            for number in listed.topic(name).partitions
            if any(number in numbers_range for numbers_range in ranges)
        }
    if not selected:
        raise UnknownTopicError("no partition matches the flags", advice=LIST_TOPICS)
    return sorted(selected)


def list_offsets(
    snapshot: Snapshot, topic_partitions: Iterable[TopicPartition], time: int
) -> list[PartitionOffset]:
    """The offset of each partition for a time, as ``parse_time`` returns it; one that cannot be read has the
    failure."""
    offsets = []
    for topic_partition in topic_partitions:
        try:
            record = snapshot.log(topic_partition).offset_for_time(time)
        except (SiltstoneError, OSError) as error:
            offsets.append(PartitionOffset(topic_partition=topic_partition, offset=None, failure=str(error)))
        else:
            offset = None if record is None else record.offset
            offsets.append(
                PartitionOffset(
                    topic_partition=topic_partition,
                    offset=offset,
                    failure=snapshot.damage_of(topic_partition),
                )
            )
    return offsets


class _Offset(msgspec.Struct):
    topic: str
    partition: int
    offset: int


@decoded_in_threads
class _Offsets(msgspec.Struct, tag_field="version", tag=1):
    partitions: list[_Offset]


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """``{"partitions": [{"topic": "a", "partition": 1, "offset": 2}], "version": 1}``.

    Raises UsageError, OSError.
    """
    try:
        rows = msgspec.convert(json.loads(files.read_input(path)), _Offsets).partitions
    except (ValueError, RecursionError) as error:
        example = '{"partitions": [{"topic": "a", "partition": 0, "offset": 5}], "version": 1}'
        reason = f"--offset-json-file has another form: {error}"
        raise UsageError(reason, path=path, advice=f"write {example}") from None
    offsets = {TopicPartition(row.topic, row.partition): row.offset for row in rows}
    if len(offsets) < len(rows):
        counts = Counter(TopicPartition(row.topic, row.partition) for row in rows)
        repeated = sorted(str(topic_partition) for topic_partition, count in counts.items() if count > 1)
        reason = f"--offset-json-file has several offsets for {', '.join(repeated)}"
        raise UsageError(reason, path=path, advice="name each partition once")
    return offsets


def delete_records(
    directories: BrokerDirectories, offsets: dict[TopicPartition, int], *, dry_run: bool = False
) -> list[PartitionOffset]:
    """Raise the start of each log to its offset (-1: the high watermark, which is the log's end here, since
    there is no other replica). The failure of a log is in its result.

    The next retention check deletes the segments below. Raises SiltstoneError.
    """
    if dry_run:
        snapshot = directories.snapshot()
        return _delete_all(
            offsets, lambda topic_partition, offset: _new_start(snapshot, topic_partition, offset)
        )
    with directories.open() as manager:
        return _delete_all(offsets, manager.delete_records)


def _delete_all(
    offsets: dict[TopicPartition, int], delete: Callable[[TopicPartition, int], int]
) -> list[PartitionOffset]:
    """The results of ``delete``, which returns a log's new start, for all of ``offsets``."""
    results = []
    for topic_partition, offset in offsets.items():
        try:
            results.append(
                PartitionOffset(topic_partition=topic_partition, offset=delete(topic_partition, offset))
            )
        except SiltstoneError as error:
            failure = f"{error} ({error.code})" if isinstance(error, LogError) else str(error)
            results.append(PartitionOffset(topic_partition=topic_partition, offset=None, failure=failure))
    return results


def _new_start(snapshot: Snapshot, topic_partition: TopicPartition, offset: int) -> int:
    """The log start that ``LogManager.delete_records`` would set. Raises the same errors."""
    log = snapshot.log(topic_partition)
    refuse_compacted_only(
        topic_partition, LogConfig.of(snapshot.config_of(snapshot.topic(topic_partition.topic)))
    )
    target = log.log_end_offset if offset == -1 else offset
    if not 0 <= target <= log.log_end_offset:
        raise OffsetOutOfRangeError(
            f"offset {offset} is outside 0 to {log.log_end_offset}, the log's end",
            path=str(topic_partition),
            advice="pass an offset up to the end, or -1",
        )
    return max(target, log.log_start_offset)


# The partitions of each log directory, in the form of Kafka's ``DescribeLogDirs`` (``LogDirsCommand``).

STORAGE_ERROR = "org.apache.kafka.common.errors.KafkaStorageException"
"""Kafka's name of the error that a log directory has."""
_LISTINGS_MAX = 5
"""How often a partition's directory is listed whose files are renamed meanwhile."""


def describe_log_dirs(directories: BrokerDirectories, topics: Collection[str] = ()) -> dict[str, Any]:
    """``{"version": 1, "brokers": [{"broker", "logDirs": [{"logDir", "error", "partitions": […]}]}]}``.

    A directory that cannot be read has its ``error``; sizes are bytes of the ``.log`` files. ``topics``
    empty: all of them.
    """
    log_dirs, broker = [], 0
    for path in directories.paths:
        entry: dict[str, Any] = {"logDir": shown_path(files.absolute(path)), "error": None, "partitions": []}
        try:
            snapshot = Snapshot([path], directories.broker_config())
            entry["partitions"] = [
                {"partition": str(topic_partition), "size": size, "offsetLag": 0, "isFuture": False}
                for directory in snapshot.directories
                for topic_partition, partition in sorted(directory.partitions.items())
                if topic_partition.topic != CLUSTER_METADATA
                and (not topics or topic_partition.topic in topics)
                and (size := _size_of(partition)) is not None
            ]
            broker = broker or snapshot.broker_id
        except (SiltstoneError, OSError) as error:
            entry["error"] = f"{STORAGE_ERROR}: {error}"
        log_dirs.append(entry)
    return {"version": 1, "brokers": [{"broker": broker, "logDirs": log_dirs}]}


def _size_of(partition: Path) -> int | None:
    """The bytes of a partition's ``.log`` files; None if it was deleted since it was listed. Files that a
    broker renames meanwhile (a roll, retention, a swap) have the directory listed again. Raises OSError."""
    for attempt in range(1, _LISTINGS_MAX + 1):
        try:
            return sum(segment.size for segment in list_segments(partition))
        except FileNotFoundError:
            if not files.exists(partition):
                break
            if attempt == _LISTINGS_MAX:
                raise
    return None
