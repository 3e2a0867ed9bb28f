"""Partitions that the cleaner leaves alone, and why: kept in a file of ours, ``siltstone-uncleanable.json``.

Kafka's ``LogCleanerManager`` marks a partition as uncleanable in memory: the reason is in its log, and the
next start tries again. Here it is kept until somebody says "try again", the partition is deleted or it is
emptied. The file lies in the root of the log directory that holds the partitions, where a broker passes files
over (a strange *folder* would stop it)::

    {"version": 1, "partitions": [{"topic": "users", "partition": 0, "since_ms": 1800000000000,
                                   "reason": "/data/users-0/00000000000000000000.log: byte 61: …"}]}

Nothing but the cleaner goes by it: such a log is appended to, read and retained as any other.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from siltstone import files
from siltstone.errors import CorruptFileError
from siltstone.log.names import TopicPartition

UNCLEANABLE_FILE = "siltstone-uncleanable.json"
_VERSION = 1
_logger = logging.getLogger("siltstone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncleanable:
    """Why a partition is not cleaned, and since when (ms)."""

    reason: str
    since_ms: int


def read_uncleanable(directory: Path) -> dict[TopicPartition, Uncleanable]:
    """What a log directory's file says; empty without one. Raises CorruptFileError, OSError."""
    path = directory / UNCLEANABLE_FILE
    try:
        raw = files.read_bytes(path)
    except FileNotFoundError:
        return {}
    try:
        found = json.loads(raw)
        if found["version"] != _VERSION:
            raise ValueError(f"version {found['version']}; only {_VERSION} is known")
        return {
            TopicPartition(str(row["topic"]), int(row["partition"])): Uncleanable(
                reason=str(row["reason"]), since_ms=int(row["since_ms"])
            )
            for row in found["partitions"]
        }
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(str(path), 0, f"no list of uncleanable partitions ({error})") from None


def write_uncleanable(directory: Path, found: Mapping[TopicPartition, Uncleanable]) -> None:
    """Replace the file, durably; without any partition there is none. Raises OSError."""
    path = directory / UNCLEANABLE_FILE
    if found:
        rows = [
            {
                "topic": where.topic,
                "partition": where.partition,
                "since_ms": each.since_ms,
                "reason": each.reason,
            }
            for where, each in sorted(found.items())
        ]
        files.replace(path, (json.dumps({"version": _VERSION, "partitions": rows}, indent=1) + "\n").encode())
    elif files.exists(path):
        files.unlink(path)
        files.sync_directory(directory)


def mark_uncleanable(directory: Path, where: TopicPartition, reason: str, now_ms: int) -> None:
    """Add a partition, or give it another reason; the first one's time stays. Raises OSError.

    For a cleaner that works on a directory that nobody serves; ``ServedDirectory`` has its own.
    """
    found = _read_or_begin_anew(directory)
    since_ms = found[where].since_ms if where in found else now_ms
    write_uncleanable(directory, {**found, where: Uncleanable(reason=reason, since_ms=since_ms)})


def clear_uncleanable(directory: Path, where: TopicPartition) -> bool:
    """Let a partition be cleaned again; False when it was not listed. Raises OSError."""
    found = _read_or_begin_anew(directory)
    if where not in found:
        return False
    write_uncleanable(directory, {each: why for each, why in found.items() if each != where})
    return True


def _read_or_begin_anew(directory: Path) -> dict[TopicPartition, Uncleanable]:
    """A file that makes no sense is as good as none: whatever is uncleanable is found to be so again."""
    try:
        return read_uncleanable(directory)
    except CorruptFileError as error:
        _logger.warning("%s; it is made anew", error)
        return {}
