"""Named positions of consumers, in a small file (what Kafka keeps in ``__consumer_offsets``).

::

    {"version": 1, "positions": {"billing": {"users": {"0": 1500}}}}

A position is the offset of the next record to read. Consumers of an open log directory have such a file in
each partition's directory, so it moves with its log and is deleted with it. A program that reads a log
directory without changing it names a file elsewhere. The file is replaced as a whole: after a crash it is the
old or the new one. One process may write it at a time, with any number of threads.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from siltstone.base import files
from siltstone.base.config import LONG_MAX
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import CorruptFileError, UsageError
from siltstone.log.names import TopicPartition

BYTES_MAX = 16 << 20
"""Bytes of the largest file that is read or written: a damaged one must not fill the memory."""
_NAME_MAX = 255
"""Characters of the longest name."""
_Offset = Annotated[int, msgspec.Meta(ge=0, le=LONG_MAX)]
_writing = threading.Lock()
"""Held while a file is read, changed and replaced, so that no thread's change is lost."""


@decoded_in_threads
class _Content(msgspec.Struct, frozen=True, kw_only=True, tag_field="version", tag=1):
    """The file's content: name → topic → partition → position. Decoding refuses another ``version``."""

    positions: dict[str, dict[str, dict[str, _Offset]]]


def check_name(name: str) -> None:
    """Raise UsageError unless ``name`` can be the name of a consumer."""
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_MAX or not name.isprintable():
        advice = f"pass 1 to {_NAME_MAX} printable characters, such as 'billing'"
        raise UsageError(f"{str(name)[:_NAME_MAX]!r} is not the name of a consumer", advice=advice)


def read_positions(path: Path, name: str) -> dict[TopicPartition, int]:
    """The positions of one name, by partition; empty if the file or the name is missing. Raises
    CorruptFileError, OSError."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, offsets in _read(path).get(name, {}).items()
        for partition, offset in offsets.items()
    }


def write_positions(path: Path, name: str, positions: Mapping[TopicPartition, int]) -> None:
    """Set some positions of one name, durably; all other positions in the file stay.

    Raises CorruptFileError for a damaged file, UsageError where the file would be too large, OSError.
    """
    for topic_partition, offset in positions.items():
        if not 0 <= offset <= LONG_MAX:
            advice = "seek to an offset of the log"
            raise UsageError(f"{offset} is not an offset", path=str(topic_partition), advice=advice)
    with _writing:
        content = _read(path)
        topics = content.setdefault(name, {})
        for topic_partition, offset in positions.items():
            topics.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = offset
        _write(path, content)


def forget_positions(path: Path, name: str) -> bool:
    """Remove all positions of one name, durably; False if it has none. Raises CorruptFileError, OSError."""
    with _writing:
        content = _read(path)
        if content.pop(name, None) is None:
            return False
        _write(path, content)
        return True


def _read(path: Path) -> dict[str, dict[str, dict[str, int]]]:
    """Name → topic → partition → position; empty without the file. Raises CorruptFileError, OSError."""
    advice = "restore it from a backup, or remove it: its consumers then start as `reset` says"
    try:
        if files.stat(path, follow=False).kind != files.FILE:
            raise CorruptFileError(str(path), 0, "it is not a regular file", advice=advice)
        data = files.read_bytes(path, BYTES_MAX + 1)
    except FileNotFoundError:
        return {}
    if len(data) > BYTES_MAX:
        reason = f"the file has more than {BYTES_MAX} bytes"
        raise CorruptFileError(str(path), BYTES_MAX, reason, advice=advice)
    try:
        content = msgspec.json.decode(data, type=_Content).positions
        for topics in content.values():
            for partition in (partition for offsets in topics.values() for partition in offsets):
                if not (partition.isascii() and partition.isdecimal() and str(int(partition)) == partition):
                    raise ValueError("a partition is not a number")
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(
            str(path), 0, f"it is not a file of positions: {error}", advice=advice
        ) from None
    return content


def _write(path: Path, content: dict[str, dict[str, dict[str, int]]]) -> None:
    data = msgspec.json.encode(_Content(positions=content)) + b"\n"
    if len(data) > BYTES_MAX:
        advice = "forget names that are not used any more"
        raise UsageError(
            f"positions of {len(content)} names do not fit in the file", path=path, advice=advice
        )
    files.replace(path, data)
