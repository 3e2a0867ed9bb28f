"""Taking several log directories into service: each claimed, all of one broker, each with its identity."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from siltstone import files
from siltstone.config import Config
from siltstone.errors import DirectoryRefusedError, StorageError
from siltstone.log.directory import LogDirectory, refuse_strangers
from siltstone.log.names import CLUSTER_METADATA, META_PROPERTIES, TopicPartition
from siltstone.log.service.served_directory import ServedDirectory
from siltstone.log.service.topic_names import RandomBytes, new_id

_logger = logging.getLogger("siltstone")


def claim_all(
    paths: Sequence[Path], config: Config, random_bytes: RandomBytes, only: TopicPartition | None
) -> tuple[list[ServedDirectory], dict[Path, str]]:
    """Claim the directories; those that the disk refuses come back with the reason.

    One that is new gets a ``meta.properties``, unless it is there for ``only`` one partition. Raises
    SiltstoneError when one is locked or another broker's, and StorageError when none is left.
    """
    if only is not None and only.topic == CLUSTER_METADATA:
        raise DirectoryRefusedError(f"{only}: the log of a broker's metadata is never opened for a change")
    served: list[ServedDirectory] = []
    offline: dict[Path, str] = {}
    try:
        for path in paths:
            try:
                _refuse_twice(path, served)
                served.append(ServedDirectory.claim(path, only=only))
            except OSError as error:
                offline[path] = f"{error.strerror or error}"
                _logger.error("%s: offline: %s", path, offline[path])
        refuse_strangers([each.directory for each in served])
        if only is None:
            _settle_identity(served, config.integer("node.id"), random_bytes)
    except BaseException:
        for each in served:
            each.directory.close()
        raise
    serving = [each for each in served if each.offline is None]
    offline.update({each.path: each.offline for each in served if each.offline is not None})
    if not serving:
        raise StorageError(f"no log directory can be used: {_said(offline)}")
    return serving, offline


def _refuse_twice(path: Path, served: Sequence[ServedDirectory]) -> None:
    """As a broker refuses a directory that ``log.dirs`` names twice, be it by two paths. Raises
    DirectoryRefusedError, OSError."""
    if files.is_directory(path):
        place = files.stat(path).place
        for each in served:
            if each.directory.place == place:
                raise DirectoryRefusedError(f"{path} and {each.path} are one log directory; name it once")


def _said(offline: dict[Path, str]) -> str:
    return "; ".join(f"{path}: {why}" for path, why in offline.items())


def _settle_identity(served: Iterable[ServedDirectory], node_id: int, random_bytes: RandomBytes) -> None:
    for each in served:
        partitions = each.directory.partitions
        for where in [where for where in partitions if where.topic == CLUSTER_METADATA]:
            del partitions[where]
    new = properties_for([each.directory for each in served], node_id, random_bytes)
    for each in served:
        if each.path in new:
            try:
                files.replace(each.path / META_PROPERTIES, new[each.path])
            except OSError as error:
                each.go_offline(f"{error.strerror or error}")


def properties_for(
    directories: Iterable[LogDirectory], node_id: int, random_bytes: RandomBytes
) -> dict[Path, bytes]:
    """``meta.properties`` for the directories that have none, in the form of a KRaft broker's (version 1).

    Cluster and node are those of the directories that have one, else new. ``node_id`` -1: not said. Raises
    DirectoryRefusedError where a directory is another node's.
    """
    cluster, node, missing = None, None, []
    for directory in directories:
        found = directory.properties()
        if not found:
            missing.append(directory.path)
        cluster = cluster or found.get("cluster.id")
        node = node or found.get("node.id") or found.get("broker.id")
    if node is not None and node_id >= 0 and node != str(node_id):
        raise DirectoryRefusedError(f"the directories are those of node {node}, not of node.id={node_id}")
    cluster = cluster or new_id(random_bytes)
    node = node or str(max(node_id, 0))
    lines = f"#\nversion=1\ncluster.id={cluster}\nnode.id={node}\ndirectory.id="
    return {path: f"{lines}{new_id(random_bytes)}\n".encode() for path in missing}
