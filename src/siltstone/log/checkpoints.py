"""Kafka's small text files: checkpoints, ``partition.metadata``, ``meta.properties``.

A checkpoint is UTF-8 text (Kafka's ``CheckpointFile``)::

    0                   version
    2                   number of entries
    orders 0 1500       topic, partition, offset: the offset checkpoints (``OffsetCheckpointFile``)
    orders 1 1498

    0                   version
    1                   number of entries
    3 1200              epoch, start offset: leader-epoch-checkpoint (``LeaderEpochCheckpointFile``)

The other two files have one property in each line::

    version: 0                              partition.metadata (``PartitionMetadataFile``)
    topic_id: FvX_0uW9QJ2WKTgL7cWb0g        a UUID, 16 bytes in URL-safe base64 without padding

    cluster.id=Jx2kqTzqQ7W5n1Yf0aVw3g       meta.properties, a file of Java properties (``MetaProperties``)

This module replaces a checkpoint by ``files.replace``: it writes a temporary file and renames it. So after a
crash there is the old checkpoint or the new one, never a part of one.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from siltstone.base import files
from siltstone.base.config import INT_MAX, LONG_MAX
from siltstone.base.errors import CorruptFileError, DirectoryRefusedError
from siltstone.log.names import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, TopicPartition

_TOPIC_ID_LENGTH = 22
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_NODE_ID = re.compile(r"[0-9]{1,10}")
_OFFSET_CHECKPOINT = re.compile(rb"0\n[0-9]{1,9}\n(?:[\w.-]+ [0-9]{1,10} [0-9]{1,18}\n)*", re.ASCII)
"""An offset checkpoint as brokers write it, which is split at once, for speed. A checkpoint that does not
match is read line by line, so that errors say where."""
OFFSET_COLUMNS = ("topic", "partition", "offset")
EPOCH_COLUMNS = ("epoch", "startOffset")
# Errors quote only the first 40 or 80 characters of a damaged line.


def read_checkpoint(path: Path) -> dict[TopicPartition, int]:
    """Read an offset checkpoint: the offsets by partition, empty without the file.

    Raises CorruptFileError, OSError.
    """
    try:
        data = files.read_bytes(path)
        fields = data.decode("ascii").split() if _OFFSET_CHECKPOINT.fullmatch(data) else []
        # The first two fields are the version and the number of entries.
        rows: Iterable[Sequence[str]] = zip(fields[2::3], fields[3::3], fields[4::3], strict=True)
        if not fields or int(fields[1]) != (len(fields) - 2) // 3:
            rows = list(read_rows(str(path), OFFSET_COLUMNS))
    except FileNotFoundError:
        return {}
    return {
        TopicPartition(sys.intern(topic), int(partition)): int(offset) for topic, partition, offset in rows
    }


def read_rows(path: str, columns: Sequence[str]) -> Iterator[list[str]]:
    """Read a checkpoint's rows, split into ``columns``. The last two columns are int64 numbers.

    An empty file has no rows. Yields the rows before a damaged line, and then raises CorruptFileError. Raises
    OSError.
    """
    count, row_count, count_position = "", 0, -1  # -1: no line so far
    for number, (position, line) in enumerate(read_lines(path)):
        row = line.split()
        if number == 0:
            if line != "0":
                reason = f"the checkpoint has version {line[:40]!r}; only version 0 is supported"
                raise CorruptFileError(path, position, reason)
            count_position = position
        elif number == 1:
            count, count_position = line, position
        elif row:
            numbers = [int(field) for field in row[-2:] if _NUMBER.fullmatch(field)]
            if len(row) != len(columns) or len(numbers) != 2 or max(map(abs, numbers)) > LONG_MAX:
                reason = f"the line {line[:80]!r} is no checkpoint entry ({', '.join(columns)})"
                raise CorruptFileError(path, position, reason)
            row_count += 1
            yield row
    if count_position >= 0 and count != str(row_count):
        reason = f"its number of entries is {count[:40]!r}, but there are {row_count}"
        raise CorruptFileError(path, count_position, reason)


def _encode_rows(rows: Iterable[str]) -> bytes:
    """A checkpoint's contents: version, number of entries, then ``rows``."""
    lines = list(rows)
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def read_lines(path: str) -> Iterator[tuple[int, str]]:
    """Read a text file: (byte position, text without surrounding spaces) of each line.

    Yields the lines before bytes that are not UTF-8, and then raises CorruptFileError. Raises OSError.
    """
    position = 0
    for line in files.read_bytes(path).splitlines(keepends=True):
        try:
            yield position, line.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise CorruptFileError(path, position + error.start, "the bytes are not UTF-8 text") from None
        position += len(line)


def write_checkpoint(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace an offset checkpoint, durably. Raises OSError."""
    entries = sorted(offsets.items())
    rows = (
        f"{topic_partition.topic} {topic_partition.partition} {offset}" for topic_partition, offset in entries
    )
    files.replace(path, _encode_rows(rows))


def read_properties(path: Path) -> dict[str, str]:
    """Read the ``key=value`` lines of a Java properties file. Raises CorruptFileError, OSError."""
    properties = {}
    for _, line in read_lines(str(path)):
        key, equals, value = line.partition("=")
        if equals and line[0] not in "#!":
            properties[key.strip()] = value.strip()
    return properties


def broker_id_of(properties: Mapping[str, str]) -> str | None:
    """The id of the broker by its ``meta.properties``: ``node.id``, in older ones ``broker.id``; None without
    either."""
    return properties.get("node.id") or properties.get("broker.id")


def node_number(text: str | None) -> int | None:
    """The number in ``text``, a broker's id: 0 to 2^31 - 1; None for any other text, and for None."""
    if text is None or not _NODE_ID.fullmatch(text) or int(text) > INT_MAX:
        return None
    return int(text)


def require_node_number(text: str, path: Path) -> int:
    """``node_number`` of the id that the ``meta.properties`` at ``path`` has. Raises DirectoryRefusedError if
    it is not a number."""
    number = node_number(text)
    if number is None:
        raise DirectoryRefusedError(
            f"node.id={text[:40]!r} is not a number of 0 to {INT_MAX}",
            path=path,
            advice="write the broker's node.id there, as its server.properties has it",
        )
    return number


def read_topic_id(partition: Path) -> str | None:
    """Read the topic id in the ``partition.metadata`` of a partition's directory: 22 characters of URL-safe
    base64; None without the file.

    Raises CorruptFileError if the file is damaged or is not a regular file; OSError.
    """
    path = str(partition / PARTITION_METADATA)
    try:
        properties = dict(line.split(":", 1) for _, line in read_lines(path) if ":" in line)
    except FileNotFoundError:
        return None
    except OSError as error:
        # The system's errors for a directory, a device or a socket.
        if error.errno in (errno.EISDIR, errno.EINVAL, errno.ENXIO):
            raise CorruptFileError(path, 0, "it is not a regular file") from None
        raise
    version, topic_id = (properties.get(name, "").strip() for name in ("version", "topic_id"))
    if version != "0" or len(topic_id) != _TOPIC_ID_LENGTH:
        reason = f"it has no version 0 with a topic id of {_TOPIC_ID_LENGTH} characters"
        raise CorruptFileError(path, 0, reason)
    return topic_id


def encode_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """The contents of a ``leader-epoch-checkpoint`` with the ``entries`` (epoch, start offset)."""
    return _encode_rows(f"{epoch} {start_offset}" for epoch, start_offset in entries)


def with_epoch(entries: Iterable[tuple[int, int]], epoch: int, start_offset: int) -> list[tuple[int, int]]:
    """The entries with ``epoch`` from ``start_offset`` on added. Entries with the same or a higher epoch or
    start offset are removed (Kafka's ``maybeTruncateNonMonotonicEntries``)."""
    earlier = [entry for entry in entries if entry[0] < epoch and entry[1] < start_offset]
    return [*earlier, (epoch, start_offset)]


class LeaderEpochs:
    """The leader epochs of one partition, by start offset (Kafka's ``LeaderEpochFileCache``, KIP-101).

    Epochs and start offsets both increase. An epoch ends where the next one starts, the latest one at the log
    end offset. Every change replaces the file before it returns, so memory and disk agree.
    """

    __slots__ = ("_directory", "_entries")

    def __init__(self, directory: Path) -> None:
        """Read the partition's file; without a file there are no epochs. Raises CorruptFileError, OSError."""
        self._directory = directory
        try:
            rows = list(read_rows(str(self._path), EPOCH_COLUMNS))
            # Even without epochs the file has a version and a count, so an empty file has lost its epochs.
            # After this error, recovery takes the epochs from the batches of all segments. (An empty offset
            # checkpoint counts as one without entries, as in Kafka.)
            if not rows and not files.stat(self._path).size:
                raise CorruptFileError(str(self._path), 0, "the file is empty")
        except FileNotFoundError:
            rows = []
        self._entries = tuple((int(epoch), int(start_offset)) for epoch, start_offset in rows)
        before = (-1, -1)
        for entry in self._entries:
            if entry[0] > INT_MAX:
                reason = f"epoch {entry[0]} is above {INT_MAX}, the largest 32-bit integer"
                raise CorruptFileError(str(self._path), 0, reason)
            if entry[0] <= before[0] or entry[1] <= before[1]:
                reason = f"epoch {entry[0]} with start offset {entry[1]} is not above the entry before"
                raise CorruptFileError(str(self._path), 0, reason)
            before = entry

    @property
    def _path(self) -> Path:
        return self._directory / LEADER_EPOCH_CHECKPOINT

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset) of each epoch, ascending."""
        return self._entries

    @property
    def latest_epoch(self) -> int | None:
        """The newest epoch, None where there is none."""
        return self._entries[-1][0] if self._entries else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that ``epoch`` starts at ``start_offset`` (see ``with_epoch``); returns whether the entries
        changed. Neither number is negative. Raises OSError."""
        assert epoch >= 0 and start_offset >= 0, (epoch, start_offset)
        if self._entries and self._entries[-1][0] == epoch and self._entries[-1][1] <= start_offset:
            return False
        self._replace(with_epoch(self._entries, epoch, start_offset))
        return True

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that start at or above ``end_offset``, the log's new end. Raises OSError."""
        self._replace([entry for entry in self._entries if entry[1] < end_offset])

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove the epochs that ended at or below ``start_offset``, the log's new start.

        The epoch that covers ``start_offset`` starts there from now on. Raises OSError.
        """
        earlier = [entry for entry in self._entries if entry[1] <= start_offset]
        covering = [(earlier[-1][0], start_offset)] if earlier else []
        self._replace([*covering, *self._entries[len(earlier) :]])

    def _replace(self, entries: Sequence[tuple[int, int]]) -> None:
        if tuple(entries) == self._entries:
            return
        files.replace(self._path, encode_epochs(entries))
        self._entries = tuple(entries)
