"""Offsets by time, deletion of records, sizes of log directories (Kafka's ``GetOffsetShell``,
``DeleteRecordsCommand``, ``LogDirsCommand``)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from siltstone.base import files
from siltstone.base.errors import (
    LogError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    SiltstoneError,
    UnknownTopicError,
    UsageError,
)
from siltstone.commands.places import INTERNAL_TOPICS, Place, Snapshot
from siltstone.commands.topics import matching
from siltstone.log.fetch import EARLIEST, LATEST, MAX_TIMESTAMP
from siltstone.log.names import CLUSTER_METADATA, TopicPartition
from siltstone.log.segments import list_segments

_TIMES = {
    "latest": LATEST,
    "earliest": EARLIEST,
    "max-timestamp": MAX_TIMESTAMP,
    "earliest-local": EARLIEST,
    "-4": EARLIEST,
}
_PARTITIONS = re.compile(r"(\d*)(-)?(\d*)", re.ASCII)
_MOST_PARTITION = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffset:
    """A partition's offset for a time, None where no record is that late; or its log start after records were
    deleted. ``failure``: why the log cannot be read, or only in part, or Kafka's error."""

    where: TopicPartition
    offset: int | None
    failure: str | None = None

    def to_json(self, name: str = "offset") -> dict[str, object]:
        """One object, the offset by that ``name``."""
        return {
            "topic": self.where.topic,
            "partition": self.where.partition,
            name: self.offset,
            "error": self.failure,
        }


def parse_time(text: str) -> int:
    """``--time``: ms, or Kafka's words and negative numbers. Raises UsageError."""
    if text in _TIMES:
        return _TIMES[text]
    if re.fullmatch(r"-?\d{1,18}", text, re.ASCII) and int(text) >= MAX_TIMESTAMP:
        return int(text)
    raise UsageError(
        f"--time {text}: give ms since 1970, -1 or latest, -2 or earliest, -3 or max-timestamp"
        + ("; nothing is kept in remote storage here" if text in ("-5", "latest-tiered") else "")
    )


def parse_partitions(text: str) -> list[range]:
    """``0,2-4,7-``: numbers, and ranges without their upper ends, as in Kafka. Raises UsageError."""
    ranges = []
    for part in text.split(","):
        match = _PARTITIONS.fullmatch(part.strip())
        if match is None or not (match[1] or match[2]):
            raise UsageError(f"partitions {text!r}: give numbers and ranges such as 0,2-4,7-")
        first = int(match[1] or 0)
        if not match[2]:
            ranges.append(range(first, first + 1))
        else:
            ranges.append(range(first, int(match[3]) if match[3] else _MOST_PARTITION))
    return ranges


def select_partitions(
    snapshot: Snapshot,
    *,
    topic: str | None = None,
    partitions: str | None = None,
    topic_partitions: str | None = None,
    exclude_internal: bool = False,
) -> list[TopicPartition]:
    """The partitions that the flags select, in order; at least one. Raises UsageError, UnknownTopicError."""
    if topic_partitions is not None and (topic is not None or partitions is not None):
        raise UsageError("--topic-partitions goes without --topic and --partitions")
    names = [name for name in snapshot.names() if not (exclude_internal and name in INTERNAL_TOPICS)]
    chosen: list[tuple[list[str], list[range] | None]] = []
    for part in topic_partitions.split(",") if topic_partitions is not None else ():
        name, _, numbers = part.strip().partition(":")
        chosen.append((matching(names, name or None), parse_partitions(numbers) if numbers else None))
    if topic_partitions is None:
        chosen.append((matching(names, topic), parse_partitions(partitions) if partitions else None))
    selected = {
        TopicPartition(name, number)
        for some, ranges in chosen
        for name in some
        for number in snapshot.topic(name).partitions
        if ranges is None or any(number in part for part in ranges)
    }
    if not selected:
        raise UnknownTopicError(
            "no partition here is what was asked for; siltstone topics --list shows topics"
        )
    return sorted(selected)


def list_offsets(snapshot: Snapshot, wheres: Iterable[TopicPartition], time: int) -> list[PartitionOffset]:
    """The offset of each partition for a time; one that cannot be read says why."""
    offsets = []
    for where in wheres:
        try:
            place = snapshot.log(where).offset_for_time(time)
        except (SiltstoneError, OSError) as error:
            offsets.append(PartitionOffset(where=where, offset=None, failure=str(error)))
        else:
            offset = None if place is None else place.offset
            offsets.append(PartitionOffset(where=where, offset=offset, failure=snapshot.damage_of(where)))
    return offsets


class _Offset(msgspec.Struct):
    topic: str
    partition: int
    offset: int


class _Offsets(msgspec.Struct, tag_field="version", tag=1):
    partitions: list[_Offset]


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """``{"partitions": [{"topic": "a", "partition": 1, "offset": 2}], "version": 1}``.

    Raises UsageError, OSError.
    """
    try:
        rows = msgspec.convert(json.loads(files.read_input(path)), _Offsets).partitions
    except ValueError as error:
        raise UsageError(
            f"--offset-json-file {path}: {error}; give "
            '{"partitions": [{"topic": "a", "partition": 0, "offset": 5}], "version": 1}'
        ) from None
    wheres = Counter(TopicPartition(row.topic, row.partition) for row in rows)
    twice = sorted(str(where) for where, times in wheres.items() if times > 1)
    if twice:
        raise UsageError(f"--offset-json-file {path}: names {', '.join(twice)} more than once")
    return {TopicPartition(row.topic, row.partition): row.offset for row in rows}


def delete_records(
    place: Place, offsets: dict[TopicPartition, int], *, dry_run: bool = False
) -> list[PartitionOffset]:
    """Move log starts up, each to its offset (-1: the high watermark); each result has its failure.

    Whole segments below go at the next retention check. Raises SiltstoneError.
    """
    if dry_run:
        snapshot = place.snapshot()
        return _delete_all(offsets, lambda where, offset: _would_delete(snapshot, where, offset))
    with place.open() as manager:
        return _delete_all(offsets, manager.delete_records)


def _delete_all(
    offsets: dict[TopicPartition, int], delete: Callable[[TopicPartition, int], int]
) -> list[PartitionOffset]:
    done = []
    for where, offset in offsets.items():
        try:
            done.append(PartitionOffset(where=where, offset=delete(where, offset)))
        except SiltstoneError as error:
            failure = f"{error} ({error.code})" if isinstance(error, LogError) else str(error)
            done.append(PartitionOffset(where=where, offset=None, failure=failure))
    return done


def _would_delete(snapshot: Snapshot, where: TopicPartition, offset: int) -> int:
    """The log start that ``LogManager.delete_records`` would set. Raises the same errors."""
    log = snapshot.log(where)
    policies = snapshot.config_of(snapshot.topic(where.topic)).policies
    if "compact" in policies and "delete" not in policies:
        raise PolicyViolationError(
            f"{where}: records of a topic with cleanup.policy=compact cannot be deleted"
        )
    target = log.log_end_offset if offset == -1 else offset
    if not 0 <= target <= log.log_end_offset:
        raise OffsetOutOfRangeError(
            f"{where}: {offset} is above the end, {log.log_end_offset}; give less, or -1"
        )
    return max(target, log.log_start_offset)


# The partitions of each log directory, in the form of Kafka's ``DescribeLogDirs`` (``LogDirsCommand``).

_STORAGE_ERROR = "org.apache.kafka.common.errors.KafkaStorageException"


def describe_log_dirs(place: Place, topics: Collection[str] = ()) -> dict[str, Any]:
    """``{"version": 1, "brokers": [{"broker", "logDirs": [{"logDir", "error", "partitions": […]}]}]}``.

    A directory that cannot be read has its ``error``; sizes are bytes of the ``.log`` files. ``topics``
    empty: all of them.
    """
    log_dirs, broker = [], 0
    for path in place.directories:
        entry: dict[str, Any] = {"logDir": str(path.absolute()), "error": None, "partitions": []}
        try:
            snapshot = Snapshot([path], place.broker_config())
            entry["partitions"] = [
                {
                    "partition": str(where),
                    "size": sum(segment.size for segment in list_segments(partition)),
                    "offsetLag": 0,
                    "isFuture": False,
                }
                for directory in snapshot.directories
                for where, partition in sorted(directory.partitions.items())
                if where.topic != CLUSTER_METADATA and (not topics or where.topic in topics)
            ]
            broker = broker or snapshot.broker_id
        except (SiltstoneError, OSError) as error:
            entry["error"] = f"{_STORAGE_ERROR}: {error}"
        log_dirs.append(entry)
    return {"version": 1, "brokers": [{"broker": broker, "logDirs": log_dirs}]}
