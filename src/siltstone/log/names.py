"""Names in a log directory (Kafka's ``LogFileUtils``, ``LocalLog.parseTopicPartitionName``).

::

    topic-0/00000000000000000289.log            a segment's file: base offset in 20 digits, kind
    topic-0/00000000000000000289.log.cleaned    the same, with the state of a swap as suffix
    topic-0.8b3f…-delete                        a deleted topic's directory: never touched
    00000000000000000155-0000000001.checkpoint  a snapshot of the metadata log: end offset, epoch
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from siltstone.base.config import LONG_MAX

SEGMENT_KINDS = ("log", "index", "timeindex", "txnindex")
"""A segment's own files, the log first."""
SNAPSHOT = "snapshot"
TEMPORARY = ".tmp"
"""The suffix of a file until it replaces the old one."""
CLEANED, SWAP, DELETED = ".cleaned", ".swap", ".deleted"

CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
RECOVERY_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
REPLICATION_CHECKPOINT = "replication-offset-checkpoint"
OFFSET_CHECKPOINTS = (
    RECOVERY_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    LOG_START_CHECKPOINT,
    CLEANER_CHECKPOINT,
)
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
CLEAN_SHUTDOWN_CONTENT = b'{"version":0,"brokerEpoch":-1}'
"""The content of ``CLEAN_SHUTDOWN`` where Siltstone writes it (Kafka's ``CleanShutdownFileHandler``). With
broker epoch -1 a controller assumes nothing about replicated records."""
LOCK = ".lock"
POSITIONS = "siltstone-positions.json"
"""Positions of named consumers, in a partition directory (``log.positions``). Kafka's loader ignores it."""
STAGING = ".siltstone"
"""Siltstone's folder inside a partition directory; Kafka's loader ignores folders."""
COMPACTED = ".compacted"
"""The folder of compacted ledgers inside a partition directory; see ``log.ledger``."""
STAGED_WRITES = ".siltstone-writes"
"""The folder inside a partition directory where a table's write waits for its commit; see ``tables.commit``.
It is another one than the cleaner's, which is removed with everything in it."""
CLUSTER_METADATA = "__cluster_metadata"

_SEGMENT_FILE = re.compile(
    r"^(\d{20})\.(log|index|timeindex|txnindex|snapshot)(\.cleaned|\.swap|\.deleted)?\Z", re.ASCII
)
_METADATA_SNAPSHOT = re.compile(r"^(\d{20})-(\d{10})\.checkpoint\Z", re.ASCII)
_NAME_CACHE_SIZE = 1 << 13
"""How many parsed names are cached: a directory is listed several times, and partitions share names."""
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
    """The parts of a file name in a partition directory: base offset, kind, swap suffix or ""."""

    base_offset: int
    kind: str
    suffix: str


@functools.lru_cache(_NAME_CACHE_SIZE)
def parse_segment_file(name: str) -> SegmentFile | None:
    """The parts of a segment file's name, None for any other name."""
    match = _SEGMENT_FILE.match(name)
    if match is None or int(match[1]) > LONG_MAX:
        return None
    return SegmentFile(base_offset=int(match[1]), kind=match[2], suffix=match[3] or "")


def parse_metadata_snapshot(name: str) -> tuple[int, int] | None:
    """(end offset, epoch) of a snapshot of the metadata log by its name, None for any other name."""
    match = _METADATA_SNAPSHOT.match(name)
    return None if match is None else (int(match[1]), int(match[2]))


def is_kafkas_file(name: str) -> bool:
    """Is this the name of a file of Kafka's in a partition directory, or of one that is being written?"""
    name = name.removesuffix(TEMPORARY)
    if name in (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA):
        return True
    return parse_segment_file(name) is not None or parse_metadata_snapshot(name) is not None


def segment_file(base_offset: int, kind: str, suffix: str = "") -> str:
    """The name of a segment's file."""
    return f"{base_offset:020d}.{kind}{suffix}"


def parse_partition(name: str) -> TopicPartition | None:
    """The topic and partition of a directory name, None where it is no legal ``topic-N``."""
    match = _PARTITION.match(name)
    if match is None or _LEFTOVER.search(name) or match[1] in (".", "..") or int(match[2]) > 0x7FFFFFFF:
        return None
    return TopicPartition(match[1], int(match[2]))


def reason_ignored(name: str) -> str:
    """Why a directory is ignored whose name is not that of a partition."""
    leftover = _LEFTOVER.search(name)
    return f"left over from Kafka (-{leftover[1]})" if leftover else "no topic-N directory"
