"""Kafka's small text files: offset checkpoints, ``partition.metadata``, ``meta.properties``.

An offset checkpoint (``OffsetCheckpointFile``) is a version line ``0``, a line with the number of
entries, then ``topic partition offset`` a line. Writing goes through ``files.replace``: an old or a new
file is there at any moment, never half of one.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from pathlib import Path

from siltstone.base import files
from siltstone.base.errors import CorruptFileError
from siltstone.log.names import PARTITION_METADATA, TopicPartition

_TOPIC_ID_LENGTH = 22
_NO_FILE = (errno.EISDIR, errno.EINVAL, errno.ENXIO)
_ENTRY_FIELDS = 3
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")


def read_checkpoint(path: Path) -> dict[TopicPartition, int]:
    """Offsets by partition; empty when there is no such file. Raises CorruptFileError, OSError."""
    try:
        raw = files.read_bytes(path)
    except FileNotFoundError:
        return {}
    lines = _decode(path, raw).splitlines()
    if not lines:
        return {}
    if lines[0].strip() != "0":
        raise CorruptFileError(str(path), 0, f"checkpoint version {lines[0]!r}; only 0 is known")
    rows = [line for line in lines[2:] if line.strip()]
    if len(lines) < 2 or lines[1].strip() != str(len(rows)):
        raise CorruptFileError(
            str(path), min(len(lines[0]) + 1, len(raw)), f"the entry count does not match {len(rows)} entries"
        )
    return dict(_entry(path, row) for row in rows)


def _entry(path: Path, row: str) -> tuple[TopicPartition, int]:
    fields = row.split()
    try:
        if len(fields) != _ENTRY_FIELDS or not all(map(_NUMBER.fullmatch, fields[1:])):
            raise ValueError
        offset = int(fields[2])
        if not -(1 << 63) <= offset < 1 << 63:
            raise ValueError
        return TopicPartition(fields[0], int(fields[1])), offset
    except ValueError:
        raise CorruptFileError(str(path), 0, f"no 'topic partition offset': {row!r}") from None


def _decode(path: Path, raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptFileError(str(path), error.start, "not text") from None


def write_checkpoint(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace the checkpoint, durably. Raises OSError."""
    rows = [f"{where.topic} {where.partition} {offset}" for where, offset in sorted(offsets.items())]
    files.replace(path, "\n".join(["0", str(len(rows)), *rows, ""]).encode())


def read_properties(path: Path) -> dict[str, str]:
    """``key=value`` lines of a Java properties file, comments left out. Raises OSError, CorruptFileError."""
    found = {}
    for line in _decode(path, files.read_bytes(path)).splitlines():
        key, equals, value = line.partition("=")
        if equals and not key.lstrip().startswith(("#", "!")):
            found[key.strip()] = value.strip()
    return found


def read_topic_id(partition: Path) -> str | None:
    """The topic id in ``partition.metadata`` (22 characters of URL-safe base64), None without the file.

    Raises CorruptFileError when something is there that makes no sense, be it a directory or a FIFO.
    """
    path = partition / PARTITION_METADATA
    try:
        text = _decode(path, files.read_bytes(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _NO_FILE:
            raise CorruptFileError(str(path), 0, "no regular file") from None
        raise
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    version, topic_id = fields.get("version", "").strip(), fields.get("topic_id", "").strip()
    if version != "0" or len(topic_id) != _TOPIC_ID_LENGTH:
        raise CorruptFileError(str(path), 0, "no version 0 with a topic id")
    return topic_id
