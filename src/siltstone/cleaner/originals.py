"""``--keep-originals`` and ``undo``: hard links of what a run replaces or deletes, and the way back.

::

    KEEP/RUN/topic-N/undo.json                     what was swapped or expired, written before that is done
    KEEP/RUN/topic-N/00000000000000000127.log …    a hard link of every file that is taken away

``undo`` puts the files back by the same swap, in descending order of groups, and resets the cleaner
checkpoint first. What retention deleted comes back as it was before the run: a new segment's originals, not
the new segment. It is refused once the log was appended to, cleaned or cut since: the active segment and
every cleaned segment must still be what the run left.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siltstone import files
from siltstone.cleaner.work import Group
from siltstone.errors import DirectoryRefusedError, UsageError
from siltstone.log.directory import LogDirectory
from siltstone.log.names import CLEANED, SEGMENT_KINDS, SNAPSHOT, parse_partition, segment_file
from siltstone.log.replacement import replace_segments
from siltstone.log.segments import list_segments

if TYPE_CHECKING:
    from siltstone.cleaner.facts import LogState, Planned

UNDO_FILE = "undo.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptGroup:
    """One swap: the new segment's base and size, the originals' bases and files.

    ``expired``: retention deleted that segment after. One that was never cleaned is its own original.
    """

    base_offset: int
    size: int
    originals: list[int]
    names: list[str]
    expired: bool = False


@dataclass(slots=True, kw_only=True)
class KeptLog:
    """What undoing one log needs: where it is, its checkpoint before, its active segment, its swaps."""

    path: str
    checkpoint: int | None
    active_base: int
    active_size: int
    groups: list[KeptGroup] = field(default_factory=list)


class Originals:
    """Keeps the originals of one run under ``folder`` (KEEP/RUN)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._logs: dict[str, KeptLog] = {}

    def keep(self, planned: Planned, group: Group, new_log: str) -> None:
        """Keep a group's files before its swap, durably: linked, but for one of which ``new_log``, its
        successor, is a second name. Who cuts the log later shall not cut what is kept."""
        log, new = self._log(planned.state), files.stat(new_log)
        sources = [segment.base_offset for segment in planned.work.segments[group.first : group.last]]
        names = self._link(planned.state, sources, staying=new.inode)
        log.groups.append(
            KeptGroup(base_offset=group.base_offset, size=new.size, originals=sources, names=names)
        )
        self._write(planned.state, log)

    def keep_expired(self, state: LogState, bases: Sequence[int]) -> None:
        """Link what retention is about to delete, durably; of new segments the originals are kept already."""
        log = self._log(state)
        swapped = {group.base_offset: group for group in log.groups}
        for base in bases:
            if base in swapped:
                log.groups[log.groups.index(swapped[base])] = replace(swapped[base], expired=True)
                continue
            size = files.stat(state.path / segment_file(base, "log")).size
            names = self._link(state, [base])
            log.groups.append(
                KeptGroup(base_offset=base, size=size, originals=[base], names=names, expired=True)
            )
        self._write(state, log)

    def _log(self, state: LogState) -> KeptLog:
        """What is kept of the log; at first, its checkpoint as it is before the run moves it."""
        if str(state.where) not in self._logs:
            active = state.segments()[-1]
            files.make_directory(self.folder / str(state.where), parents=True)
            self._logs[str(state.where)] = KeptLog(
                path=str(state.path),
                checkpoint=state.directory.checkpoints().cleaner.get(state.where),
                active_base=active.base_offset,
                active_size=active.size,
            )
        return self._logs[str(state.where)]

    def _link(self, state: LogState, bases: Sequence[int], staying: int | None = None) -> list[str]:
        """Link all files of these segments, and copy the one with the inode ``staying``; their names."""
        names = [segment_file(base, kind) for base in bases for kind in (*SEGMENT_KINDS, SNAPSHOT)]
        there = [name for name in names if files.exists(state.path / name)]
        for name in there:
            path, kept = state.path / name, self.folder / str(state.where) / name
            (files.copy if files.stat(path).inode == staying else files.link)(path, kept)
        return there

    def _write(self, state: LogState, log: KeptLog) -> None:
        place = self.folder / str(state.where)
        files.replace(place / UNDO_FILE, json.dumps(asdict(log), indent=1).encode())
        for folder in (self.folder, self.folder.parent):
            files.sync_directory(folder)


def refuse_other_file_system(folder: Path, partition: Path) -> None:
    """Hard links need one file system. Raises UsageError."""
    if files.stat(folder).device != files.stat(partition).device:
        raise UsageError(
            f"--keep-originals {folder}: not on the file system of {partition}; no hard link can be made"
        )


def read_run(folder: Path) -> list[tuple[Path, KeptLog]]:
    """The logs that a run kept, with their folders. Raises UsageError where there is no such run."""
    found = []
    with contextlib.suppress(OSError):
        for entry in files.entries(folder):
            path = folder / entry.name / UNDO_FILE
            if entry.is_directory and files.exists(path):
                found.append((folder / entry.name, _read(path)))
    if not found:
        raise UsageError(
            f"{folder}: no run kept its originals here; give KEEP/RUN as clean --keep-originals printed it"
        )
    return found


def _read(path: Path) -> KeptLog:
    try:
        raw: dict[str, Any] = json.loads(files.read_bytes(path))
        groups = [KeptGroup(**group) for group in raw.pop("groups")]
        return KeptLog(**raw, groups=groups)
    except (ValueError, TypeError, KeyError):
        raise DirectoryRefusedError(
            f"{path}: not what clean --keep-originals writes; nothing was changed"
        ) from None


def refuse_changed(log: KeptLog) -> None:
    """Raises DirectoryRefusedError unless the log is as the run left it."""
    segments = list_segments(Path(log.path), owned=True)
    if not segments or (segments[-1].base_offset, segments[-1].size) != (log.active_base, log.active_size):
        raise DirectoryRefusedError(f"{log.path}: was appended to, rolled or cut since; nothing was changed")


def undo_log(place: Path, log: KeptLog, directory: LogDirectory) -> list[str]:
    """Put one log's originals back; names of the restored ``.log`` files. Raises DirectoryRefusedError.

    ``directory`` is locked by the caller.
    """
    partition = Path(log.path)
    refuse_changed(log)
    sizes = {segment.base_offset: segment.size for segment in list_segments(partition)}
    todo = [group for group in log.groups if not _is_there(place, partition, group)]
    for group in todo:
        if sizes.get(group.base_offset) not in {group.size, None if group.expired else group.size}:
            raise DirectoryRefusedError(
                f"{partition / segment_file(group.base_offset, 'log')}: is not what the run left; "
                "nothing was changed"
            )
    where = parse_partition(partition.name)
    assert where is not None
    directory.write_cleaner_checkpoint(where, log.checkpoint)
    for group in sorted(todo, key=lambda each: -each.base_offset):
        _restore(place, partition, group)
    return [segment_file(base, "log") for group in todo for base in group.originals]


def _is_there(place: Path, partition: Path, group: KeptGroup) -> bool:
    """Are the originals themselves in the partition (the swap never happened, or was undone)?

    Where a segment kept all its records, the new log is the original; its indexes tell the two apart.
    """
    log = segment_file(group.originals[0], "log")
    if not _is_same(place / log, partition / log):
        return False
    if group.originals != [group.base_offset] or files.stat(place / log).size != group.size:
        return True
    indexes = [name for name in group.names if name != log and not name.endswith("." + SNAPSHOT)]
    return all(_is_same(place / name, partition / name) for name in indexes)


def _is_same(kept: Path, present: Path) -> bool:
    return files.exists(present) and files.stat(present).inode == files.stat(kept).inode


def _restore(place: Path, partition: Path, group: KeptGroup) -> None:
    for name in group.names:
        target = partition / name
        if name.endswith("." + SNAPSHOT):
            if not files.exists(target):
                files.link(place / name, target)
        else:
            files.link(place / name, partition / (name + CLEANED))
    files.sync_directory(partition)
    replace_segments(partition, group.originals, [group.base_offset])
