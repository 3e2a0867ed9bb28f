"""Names in a log directory (Kafka's ``LogFileUtils``, ``LocalLog.parseTopicPartitionName``).

::

    topic-0/00000000000000000289.log            a segment's file: base offset in 20 digits, kind
    topic-0/00000000000000000289.log.cleaned    the same during a swap of segments: the suffix is its state
    topic-0.8b3f…-delete                        a deleted partition, which Siltstone neither reads nor cleans
    00000000000000000155-0000000001.checkpoint  a snapshot of the metadata log: end offset, leader epoch
"""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass

import msgspec

from siltstone.base.config import LONG_MAX

SEGMENT_KINDS = ("log", "index", "timeindex", "txnindex")
"""The kinds of a segment's files: the records, the offset index, the time index, the transaction index."""
INDEX_KINDS = SEGMENT_KINDS[1:]
"""The kinds of a segment's indexes."""
SNAPSHOT = "snapshot"
"""The kind of a producer snapshot."""
TEMPORARY = ".tmp"
"""The suffix of a new version of a file until it replaces the old one."""
CLEANED, SWAP, DELETED = ".cleaned", ".swap", ".deleted"
"""The suffixes of a swap: a new file before it is complete, a complete one before its last rename, an old one
before it is removed."""

CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
RECOVERY_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
REPLICATION_CHECKPOINT = "replication-offset-checkpoint"
"""The high watermarks."""
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
"""The content of a ``CLEAN_SHUTDOWN`` that Siltstone writes (Kafka's ``CleanShutdownFileHandler``). Broker
epoch -1 means unknown: the controller then does not assume that the broker still has all records."""
LOCK = ".lock"
POSITIONS = "siltstone-positions.json"
"""Positions of named consumers, in a partition directory (``log.positions``). Kafka's loader ignores it."""
STAGING = ".siltstone"
"""The folder inside a partition directory in which a cleaning writes new segments until their swap. Kafka's
loader ignores folders."""
COMPACTED = ".compacted"
"""The folder of compacted ledgers inside a partition directory; see ``log.ledger``."""
STAGED_WRITES = ".siltstone-writes"
"""The folder inside a partition directory where a table's write waits for its commit; see ``tables.commit``.
It is not inside ``STAGING``, because a cleaning removes all of that."""
CLUSTER_METADATA = "__cluster_metadata"
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""The topics that only coordinators write (Kafka's ``Topic.isInternal``)."""
QUORUM_STATE = "quorum-state"
"""The file in the directory of ``CLUSTER_METADATA`` with the controller's vote (KRaft)."""

_SEGMENT_FILE = re.compile(
    r"^(\d{20})\.(log|index|timeindex|txnindex|snapshot)(\.cleaned|\.swap|\.deleted)?\Z", re.ASCII
)
_METADATA_SNAPSHOT = re.compile(r"^(\d{20})-(\d{10})\.checkpoint\Z", re.ASCII)
# ``….checkpoint.part``, with a random number, while it is written or fetched; ``….checkpoint.deleted`` before
# it is removed (Kafka's ``Snapshots``).
_TEMPORARY_METADATA_SNAPSHOT = re.compile(
    r"^\d{20}-\d{10}(-\d+\.checkpoint\.part|\.checkpoint\.deleted)\Z", re.ASCII
)
_NAME_CACHE_SIZE = 1 << 13
"""How many parsed names are cached: a directory is listed several times, and partitions share names."""
MAX_PARTITION = (1 << 31) - 1
"""The largest number of a partition: a directory with a larger one is not a partition's."""
# Kafka's ``Topic.validate`` allows 249 characters for a topic.
_PARTITION = re.compile(r"^([a-zA-Z0-9._-]{1,249})-(0|[1-9]\d{0,9})\Z", re.ASCII)
_NOT_SERVED = re.compile(r"-(delete|future|stray)\Z")
"""The suffixes of directories that are no current replica: of a deleted topic, of a replica that moves to
this log directory, of a replica that no longer belongs to the broker."""


class TopicPartition(msgspec.Struct, frozen=True, order=True, gc=False):
    """A topic's name and a partition's number. (A ``Struct``: there may be 100,000 of them as keys of several
    mappings, and its hash and its order take a third of a dataclass's time.)"""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class HasTopicPartition:
    """A mixin of results about one log, which have its ``topic`` and ``partition``."""

    __slots__ = ()
    topic: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def name(self) -> str:
        """``topic-N``."""
        return str(self.topic_partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFile:
    """The parts of a segment file's name, or of a producer snapshot's.

    ``kind``: one of ``SEGMENT_KINDS``, or ``SNAPSHOT``. ``suffix``: ``CLEANED``, ``SWAP``, ``DELETED`` or "".
    """

    base_offset: int
    kind: str
    suffix: str


@functools.lru_cache(_NAME_CACHE_SIZE)
def parse_segment_file(name: str) -> SegmentFile | None:
    """Parse the name of a segment's file or a producer snapshot; None for any other name."""
    match = _SEGMENT_FILE.match(name)
    if match is None or int(match[1]) > LONG_MAX:
        return None
    return SegmentFile(base_offset=int(match[1]), kind=match[2], suffix=match[3] or "")


def parse_metadata_snapshot(name: str) -> tuple[int, int] | None:
    """Parse the name of a metadata log's snapshot: (end offset, leader epoch); None for any other name."""
    match = _METADATA_SNAPSHOT.match(name)
    return None if match is None else (int(match[1]), int(match[2]))


def is_kafka_file(name: str) -> bool:
    """Is this the name of a file that Kafka writes in a partition directory, or its temporary name?"""
    name = name.removesuffix(TEMPORARY)
    if name in (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, QUORUM_STATE):
        return True
    if parse_segment_file(name) is not None or parse_metadata_snapshot(name) is not None:
        return True
    return _TEMPORARY_METADATA_SNAPSHOT.match(name) is not None


def segment_file(base_offset: int, kind: str, suffix: str = "") -> str:
    """The name of a segment's file."""
    return f"{base_offset:020d}.{kind}{suffix}"


def parse_partition(name: str) -> TopicPartition | None:
    """The topic and partition of a directory by its name; None if that is no legal ``topic-N``."""
    match = _PARTITION.match(name)
    # The pattern refuses ``-delete``, ``-future`` and ``-stray`` too, since these names do not end with a
    # number.
    if match is None or match[1] in (".", "..") or int(match[2]) > MAX_PARTITION:
        return None
    # Thousands of partitions share the name of their topic.
    return TopicPartition(sys.intern(match[1]), int(match[2]))


def ignore_reason(name: str) -> str:
    """Why a directory is ignored, if ``parse_partition`` returns None for its name."""
    not_served = _NOT_SERVED.search(name)
    return f"not a current replica (-{not_served[1]})" if not_served else "its name is not TOPIC-PARTITION"


def is_not_served(name: str) -> bool:
    """Is this the name of the directory of a deleted, future or stray partition?"""
    return parse_partition(name) is None and _NOT_SERVED.search(name) is not None
