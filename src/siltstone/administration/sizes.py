"""What lies in each log directory, in the shape of Kafka's ``DescribeLogDirs`` (``LogDirsCommand``)."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from siltstone.administration.places import Look, Place
from siltstone.errors import SiltstoneError
from siltstone.log.names import CLUSTER_METADATA
from siltstone.log.segments import list_segments

_STORAGE_ERROR = "org.apache.kafka.common.errors.KafkaStorageException"


def describe_log_dirs(place: Place, topics: Collection[str] = ()) -> dict[str, Any]:
    """``{"version": 1, "brokers": [{"broker", "logDirs": [{"logDir", "error", "partitions": […]}]}]}``.

    A directory that cannot be read has its ``error``; sizes are bytes of the ``.log`` files. ``topics``
    empty: all of them.
    """
    found, broker = [], 0
    for path in place.directories:
        entry: dict[str, Any] = {"logDir": str(path.absolute()), "error": None, "partitions": []}
        try:
            look = Look([path], place.broker_config())
            entry["partitions"] = _partitions(look, topics)
            broker = broker or look.broker_id
        except (SiltstoneError, OSError) as error:
            entry["error"] = f"{_STORAGE_ERROR}: {error}"
        found.append(entry)
    return {"version": 1, "brokers": [{"broker": broker, "logDirs": found}]}


def _partitions(look: Look, topics: Collection[str]) -> list[dict[str, Any]]:
    return [
        {"partition": str(where), "size": _size(path), "offsetLag": 0, "isFuture": False}
        for directory in look.directories
        for where, path in sorted(directory.partitions.items())
        if where.topic != CLUSTER_METADATA and (not topics or where.topic in topics)
    ]


def _size(path: Path) -> int:
    return sum(segment.size for segment in list_segments(path))
