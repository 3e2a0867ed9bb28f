"""The names of remote segments in two storages.

::

    Aiven's plugin        TOPIC-TOPICID/PARTITION/OFFSET-SEGMENTID.log            below any prefix
                                                                  .indexes        all indexes, in a row
                                                                  .rsm-manifest   sizes, positions; put last
    LocalTieredStorage    TOPIC-PARTITION-TOPICID/OFFSET-SEGMENTID.log
                                                                  .index .timeindex .snapshot [.txnindex]
                                                                  .leader_epoch_checkpoint

``OFFSET`` is the segment's base offset, in 20 digits (older brokers' LocalTieredStorage: without zeros).
Both ids are 16 bytes in 22 characters of URL-safe base64. The first storage is that of
``tiered-storage-for-apache-kafka`` (its ``ObjectKeyFactory``), the second the one that Kafka tests itself
with (``RemoteLogSegmentFileset``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from siltstone.base.config import LONG_MAX
from siltstone.log.names import TopicPartition

LOG, INDEXES, MANIFEST, EPOCHS = "log", "indexes", "rsm-manifest", "leader_epoch_checkpoint"
"""Kinds of remote files, besides those of a local segment."""
_FILE = re.compile(
    r"(\d{1,20})-([A-Za-z0-9_-]{22})\.(log|indexes|rsm-manifest|index|timeindex|txnindex|snapshot|"
    r"leader_epoch_checkpoint)\Z",
    re.ASCII,
)
_TOPIC_ID = r"-([A-Za-z0-9_-]{22})\Z"


class Layout(Enum):
    """How a storage names its segments; the value is the storage's name, for display."""

    AIVEN = "Aiven's plugin"
    LOCAL = "LocalTieredStorage"

    @property
    def required(self) -> frozenset[str]:
        """The kinds of files that a copied segment has; one without all of them was not copied to the end,
        or is being deleted."""
        return _REQUIRED[self]

    def folder(self, topic_partition: TopicPartition, topic_id: str) -> str:
        """The directory of a partition's segments, below the storage's root."""
        topic, partition = topic_partition.topic, topic_partition.partition
        if self is Layout.AIVEN:
            return f"{topic}-{topic_id}/{partition}"
        return f"{topic}-{partition}-{topic_id}"

    def topic_ids(self, topic_partition: TopicPartition, folders: Iterable[str]) -> set[str]:
        """The topic ids in the names of the partition's directories. ``folders``: the names of all
        directories in the storage's root."""
        topic, partition = topic_partition.topic, topic_partition.partition
        prefix = topic if self is Layout.AIVEN else f"{topic}-{partition}"
        pattern = re.compile(re.escape(prefix) + _TOPIC_ID, re.ASCII)
        return {match[1] for name in folders if (match := pattern.match(name))}


_REQUIRED = {
    Layout.AIVEN: frozenset((LOG, INDEXES, MANIFEST)),
    Layout.LOCAL: frozenset((LOG, "index", "timeindex", "snapshot", EPOCHS)),
}


class RemoteName(NamedTuple):
    """The parts of a remote file's name. ``kind``: its ending, such as ``log`` or ``rsm-manifest``."""

    start_offset: int
    segment_id: str
    kind: str


def parse_remote_file(name: str) -> RemoteName | None:
    """Parse the name of a remote segment's file; None for any other name."""
    match = _FILE.match(name)
    if match is None or int(match[1]) > LONG_MAX:
        return None
    return RemoteName(int(match[1]), match[2], match[3])
