"""Kafka's small text files: checkpoints, ``partition.metadata``, ``meta.properties``.

A checkpoint (``CheckpointFile``) is a version line ``0``, a line with the number of entries, then an entry a
line: ``topic partition offset`` in the offset checkpoints (``OffsetCheckpointFile``), ``epoch start_offset``
in ``leader-epoch-checkpoint`` (``LeaderEpochCheckpointFile``). Writing goes through ``files.replace``: at any
moment there is an old or a new file, never half of one.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from siltstone.base import files
from siltstone.base.config import LONG_MAX
from siltstone.base.errors import CorruptFileError
from siltstone.log.names import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, TopicPartition

_TOPIC_ID_LENGTH = 22
_NO_FILE = (errno.EISDIR, errno.EINVAL, errno.ENXIO)
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_LARGEST_EPOCH = (1 << 31) - 1


def read_checkpoint(path: Path) -> dict[TopicPartition, int]:
    """Offsets by partition; empty when there is no such file. Raises CorruptFileError, OSError."""
    try:
        raw = files.read_bytes(path)
    except FileNotFoundError:
        return {}
    rows = _rows(path, raw, "topic partition offset") if raw else []
    return {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in rows}


def _rows(path: Path, raw: bytes, fields: str) -> list[list[str]]:
    """A checkpoint's rows of these fields, the last two of which are int64 numbers.

    Raises CorruptFileError.
    """
    version, *lines = _decode(path, raw).splitlines() or [""]
    if version.strip() != "0":
        raise CorruptFileError(str(path), 0, f"checkpoint version {version!r}; only 0 is known")
    rows = [line.split() for line in lines[1:] if line.strip()]
    if not lines or lines[0].strip() != str(len(rows)):
        position = min(len(version) + 1, len(raw))
        raise CorruptFileError(str(path), position, f"the entry count does not match {len(rows)} entries")
    for row in rows:
        numbers = [int(field) for field in row[-2:] if _NUMBER.fullmatch(field)]
        if len(row) != len(fields.split()) or len(numbers) != 2 or max(map(abs, numbers)) > LONG_MAX:
            raise CorruptFileError(str(path), 0, f"no {fields!r}: {' '.join(row)!r}")
    return rows


def _write_rows(path: Path, rows: Iterable[str]) -> None:
    lines = list(rows)
    files.replace(path, "\n".join(["0", str(len(lines)), *lines, ""]).encode())


def _decode(path: Path, raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptFileError(str(path), error.start, "not text") from None


def write_checkpoint(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace the checkpoint, durably. Raises OSError."""
    entries = sorted(offsets.items())
    _write_rows(path, (f"{where.topic} {where.partition} {offset}" for where, offset in entries))


def read_properties(path: Path) -> dict[str, str]:
    """``key=value`` lines of a Java properties file, comments left out. Raises OSError, CorruptFileError."""
    properties = {}
    for line in _decode(path, files.read_bytes(path)).splitlines():
        key, equals, value = line.partition("=")
        if equals and not key.lstrip().startswith(("#", "!")):
            properties[key.strip()] = value.strip()
    return properties


def read_topic_id(partition: Path) -> str | None:
    """The topic id in ``partition.metadata`` (22 characters of URL-safe base64), None without the file.

    Raises CorruptFileError where the file is damaged or is no regular file, such as a directory or a FIFO.
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


class LeaderEpochs:
    """The leader epochs of one partition, by ascending start (Kafka's ``LeaderEpochFileCache``, KIP-101).

    Epochs and start offsets both ascend strictly; an epoch lasts to the next one's start, the latest one to
    the log's end. Every change replaces the file before it returns: memory and disk agree.
    """

    def __init__(self, directory: Path) -> None:
        """Read the partition's file; without a file there are no epochs. Raises CorruptFileError, OSError."""
        self._path = directory / LEADER_EPOCH_CHECKPOINT
        try:
            rows = _rows(self._path, files.read_bytes(self._path), "epoch start_offset")
        except FileNotFoundError:
            rows = []
        self._entries = [(int(epoch), int(start_offset)) for epoch, start_offset in rows]
        before = (-1, -1)
        for entry in self._entries:
            if entry[0] <= before[0] or entry[1] <= before[1] or entry[0] > _LARGEST_EPOCH:
                reason = f"epoch {entry[0]} from offset {entry[1]} on: epochs do not ascend from 0 on"
                raise CorruptFileError(str(self._path), 0, reason)
            before = entry

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset), ascending."""
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> int | None:
        """The newest epoch, None where there is none."""
        return self._entries[-1][0] if self._entries else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that ``epoch`` starts at ``start_offset``; returns whether the entries changed.

        Removes entries with the same or a higher epoch or start offset (Kafka's
        ``maybeTruncateNonMonotonicEntries``). Neither number is negative. Raises OSError.
        """
        assert epoch >= 0 and start_offset >= 0, (epoch, start_offset)
        if self._entries and self._entries[-1][0] == epoch and self._entries[-1][1] <= start_offset:
            return False
        kept = [entry for entry in self._entries if entry[0] < epoch and entry[1] < start_offset]
        self._replace([*kept, (epoch, start_offset)])
        return True

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that start at or above ``end_offset``, the log's new end. Raises OSError."""
        self._replace([entry for entry in self._entries if entry[1] < end_offset])

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove the epochs that ended at or below ``start_offset``, the log's new start.

        The epoch that covers the new start stays and starts there from now on. Raises OSError.
        """
        passed = [entry for entry in self._entries if entry[1] <= start_offset]
        covering = [(passed[-1][0], start_offset)] if passed else []
        self._replace(covering + self._entries[len(passed) :])

    def _replace(self, entries: list[tuple[int, int]]) -> None:
        if entries == self._entries:
            return
        _write_rows(self._path, (f"{epoch} {start_offset}" for epoch, start_offset in entries))
        self._entries = entries
