"""Names in a log directory (Kafka's ``LogFileUtils``, ``LocalLog.parseTopicPartitionName``).

::

    topic-0/00000000000000000289.log            a segment's file: base offset in 20 digits, kind
    topic-0/00000000000000000289.log.cleaned    the same with the state of a swap behind it
    topic-0.8b3f…-delete                        a deleted topic's directory: never touched
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

SEGMENT_KINDS = ("log", "index", "timeindex", "txnindex")
"""A segment's own files, the log first."""
SNAPSHOT = "snapshot"
TEMPORARY = ".tmp"
"""What a file that is written anew is called until it takes the place of the old one."""
CLEANED, SWAP, DELETED = ".cleaned", ".swap", ".deleted"

CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
RECOVERY_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
REPLICATION_CHECKPOINT = "replication-offset-checkpoint"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
MARKER_OF_NO_BROKER = b'{"version":0,"brokerEpoch":-1}'
"""What is in it when no broker's run ended: a controller takes nothing for granted of what was replicated."""
LOCK = ".lock"
STAGING = ".siltstone"
"""Our own folder inside a partition directory; Kafka's loader passes folders over."""
COMPACTED = ".compacted"
"""The folder of compacted ledgers inside a partition directory; see ``log.ledger``."""
STAGED_WRITES = ".siltstone-writes"
"""The folder inside a partition directory where a table's write waits for its commit; see ``tables.commit``.
It is not the cleaner's, which removes its own with all that is in it."""
CLUSTER_METADATA = "__cluster_metadata"

_SEGMENT_FILE = re.compile(
    r"^(\d{20})\.(log|index|timeindex|txnindex|snapshot)(\.cleaned|\.swap|\.deleted)?\Z", re.ASCII
)
_METADATA_SNAPSHOT = re.compile(r"^\d{20}-\d{10}\.checkpoint\Z", re.ASCII)
_LARGEST_OFFSET = (1 << 63) - 1
_NAMES_KEPT = 1 << 13
"""Parsed names that are kept: a directory is listed several times, and many partitions have the same."""
_PARTITION = re.compile(r"^([a-zA-Z0-9._-]{1,249})-(0|[1-9]\d{0,9})\Z", re.ASCII)
_LEFTOVER = re.compile(r"-(delete|future|stray)$")


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A topic's name and a partition's number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFile:
    """What a file name in a partition directory says: base offset, kind, swap suffix or ""."""

    base_offset: int
    kind: str
    suffix: str


@functools.lru_cache(_NAMES_KEPT)
def parse_segment_file(name: str) -> SegmentFile | None:
    """The parts of a segment file's name, None for any other name."""
    found = _SEGMENT_FILE.match(name)
    if found is None or int(found[1]) > _LARGEST_OFFSET:
        return None
    return SegmentFile(base_offset=int(found[1]), kind=found[2], suffix=found[3] or "")


def is_kafkas_file(name: str) -> bool:
    """Is it the name of a file that Kafka keeps in a partition directory, or of one that is about to be
    that?"""
    name = name.removesuffix(TEMPORARY)
    known = name in (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA)
    return known or parse_segment_file(name) is not None or _METADATA_SNAPSHOT.match(name) is not None


def segment_file(base_offset: int, kind: str, suffix: str = "") -> str:
    """The name of a segment's file."""
    return f"{base_offset:020d}.{kind}{suffix}"


def parse_partition(name: str) -> TopicPartition | None:
    """The topic and partition of a directory name, None where it is no legal ``topic-N``."""
    found = _PARTITION.match(name)
    if found is None or _LEFTOVER.search(name) or found[1] in (".", "..") or int(found[2]) > 0x7FFFFFFF:
        return None
    return TopicPartition(found[1], int(found[2]))


def why_not_a_partition(name: str) -> str:
    """The reason why a directory name is passed over, for lists that people read."""
    leftover = _LEFTOVER.search(name)
    return f"left over from Kafka (-{leftover[1]})" if leftover else "no topic-N directory"
