"""The two directories of a check: which logs they hold, and what lies beside their segments.

BEFORE is a copy of the log directory, or of one partition, or what ``clean --keep-originals`` kept of a run:
hard links of the replaced segments and a file that says what was swapped::

    KEEP/RUN/topic-N/undo.json    {"checkpoint": …, "groups": [{"base_offset": …, "originals": […]}, …]}

Of the latter, segments that were not swapped are those of AFTER.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from siltstone import files
from siltstone.errors import CorruptFileError, NotALogDirectoryError, UnsafeFileError, UsageError
from siltstone.log.directory import Checkpoints, LogDirectory
from siltstone.log.names import TopicPartition, parse_partition
from siltstone.log.segments import Segment, list_segments

UNDO_FILE = "undo.json"
_NO_CHECKPOINTS = Checkpoints(cleaner={}, recovery_point={}, log_start={}, high_watermark={})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSide:
    """One log on one side. ``place``: where its snapshots and epochs are; ``checkpoint``: the cleaner's.

    ``unsafe``: why its files cannot be gone by, None where they can.
    """

    place: Path
    segments: tuple[Segment, ...]
    checkpoint: int | None
    log_start: int
    high_watermark: int | None
    unsafe: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The logs of both directories by topic and partition; ``notes`` for people."""

    before: Mapping[TopicPartition, LogSide]
    after: Mapping[TopicPartition, LogSide]
    notes: tuple[str, ...] = field(default=())


def open_sides(before: Path, after: Path, topics: Sequence[str] = ()) -> Sides:
    """Look at both directories, without a lock. Raises UsageError, NotALogDirectoryError, CorruptFileError,
    OSError."""
    for path in (before, after):
        if not files.is_directory(path):
            raise NotALogDirectoryError(f"{path}: no such directory; give a log directory before and after")
    if files.stat(before).place == files.stat(after).place:
        raise UsageError(f"{after}: BEFORE and AFTER are one directory; name a copy from before the cleaning")
    new = _directory_sides(after)
    kept = _kept_logs(before)
    old = _kept_sides(kept, new) if kept else _directory_sides(before)
    if len(old) == 1 and len(new) == 1 and old.keys() != new.keys():
        raise UsageError(f"{before} is {next(iter(old))}, but {after} is {next(iter(new))}")
    notes: tuple[str, ...] = ()
    if kept:
        new = {where: side for where, side in new.items() if where in old}
        notes = (
            f"{before}: originals that a run kept; only the {len(old)} logs that it changed are checked",
        )
    for where, side in () if kept else old.items():
        if where in new and files.stat(side.place).place == files.stat(new[where].place).place:
            raise UsageError(
                f"{side.place} is {where} of BEFORE and of AFTER; name a copy from before the cleaning"
            )
    if topics:
        missing = set(topics) - {where.topic for where in old}
        if missing:
            raise UsageError(f"--topic {min(missing)}: no partition of it in {before}")
        old = {where: side for where, side in old.items() if where.topic in topics}
        new = {where: side for where, side in new.items() if where.topic in topics}
    return Sides(before=old, after=new, notes=notes)


def _directory_sides(path: Path) -> dict[TopicPartition, LogSide]:
    directory = LogDirectory.open(path, lock=False)
    checkpoints = directory.checkpoints()
    found = {}
    for where, place in directory.partitions.items():
        segments, unsafe = _safe_segments(place)
        found[where] = LogSide(
            place=place,
            segments=segments,
            unsafe=unsafe,
            checkpoint=checkpoints.cleaner.get(where),
            log_start=checkpoints.log_start.get(where, 0),
            high_watermark=checkpoints.high_watermark.get(where),
        )
    return found


def _safe_segments(place: Path) -> tuple[tuple[Segment, ...], str | None]:
    """A partition's segments, or why its files cannot be gone by."""
    try:
        return tuple(list_segments(place)), None
    except UnsafeFileError as error:
        return (), str(error)


def _kept_logs(path: Path) -> dict[TopicPartition, Path]:
    """The partitions of which a run kept originals below ``path``, or that ``path`` itself is one of."""
    folders = [path] if files.exists(path / UNDO_FILE) else []
    if not folders:
        folders = [path / entry.name for entry in files.entries(path) if entry.is_directory]
    found = {}
    for folder in folders:
        where = parse_partition(folder.absolute().name)
        if where is not None and files.exists(folder / UNDO_FILE):
            found[where] = folder
    return found


def _kept_sides(
    kept: Mapping[TopicPartition, Path], after: Mapping[TopicPartition, LogSide]
) -> dict[TopicPartition, LogSide]:
    found = {}
    for where, folder in kept.items():
        if where not in after:
            raise UsageError(f"{folder}: AFTER has no {where}; name the directory that was cleaned in place")
        checkpoint, swapped = _undo(folder)
        rest = [each for each in after[where].segments if each.base_offset not in swapped]
        own, unsafe = _safe_segments(folder)
        originals = sorted([*own, *rest], key=lambda each: each.base_offset)
        found[where] = LogSide(
            place=after[where].place,
            segments=tuple(originals),
            unsafe=unsafe or after[where].unsafe,
            checkpoint=checkpoint,
            log_start=after[where].log_start,
            high_watermark=after[where].high_watermark,
        )
    return found


def _undo(folder: Path) -> tuple[int | None, set[int]]:
    """(the checkpoint before, the base offsets of the new segments). Raises CorruptFileError."""
    path = folder / UNDO_FILE
    try:
        raw = json.loads(files.read_bytes(path))
        groups = [group for group in raw["groups"] if not group.get("expired")]
        checkpoint = raw["checkpoint"]
        return None if checkpoint is None else int(checkpoint), {int(each["base_offset"]) for each in groups}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CorruptFileError(str(path), 0, "not what a run writes down of kept originals") from None
