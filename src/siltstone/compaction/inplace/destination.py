"""Where a cleaning's result goes: into the directory itself, into a cleaned copy, or nowhere.

A destination names the folder that tasks write to, takes over checked groups in ascending order, and
finishes or gives up a log. In place, groups are swapped in together, or each one fully and synced before the
next, so that a tombstone never goes before the value it hides, and the checkpoint moves last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from siltstone.base import files
from siltstone.base.errors import CheckFailedError, DirectoryRefusedError, UnsafeFileError
from siltstone.compaction.inplace.expiry import Expiry
from siltstone.compaction.inplace.facts import LogState, Planned, staging_folder
from siltstone.compaction.inplace.originals import Originals
from siltstone.compaction.staging import Rewritten
from siltstone.log import names
from siltstone.log.checkpoints import read_checkpoint, write_checkpoint
from siltstone.log.directory import LogDirectory, has_own_folder, refuse_kind, refuse_unsafe_files
from siltstone.log.names import SEGMENT_KINDS, STAGING, SegmentFile, TopicPartition, segment_file
from siltstone.log.overflow import overflowed, split_overflowed
from siltstone.log.replacement import adopt, delete_oldest, finish_replacement, replace_segments

_AT_ONCE = 4
"""Swaps that wait for the disk at one time."""
DROPPED = f"removed staged files of an earlier run ({STAGING})"
INDEX_SETTINGS = ("index.interval.bytes", "segment.index.bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Bytes that new files may take, and free inodes (None: not counted).

    ``frees_sources``: a swapped group's originals are gone, so that waves need room one after another; only
    then are there waves.
    """

    size: int
    inodes: int | None
    frees_sources: bool


class Destination:
    """What the cleaner asks of the place where results go. By itself it is a dry run's: nothing is written.

    Another kind overrides what it does. ``at_once``: so many logs may be taken over at one time, each by a
    thread. ``takes_together``: all groups at hand are taken over in one go, not one after another.
    ``keeps_accepted``: groups that were taken over stay, also when the log is given up after that.
    """

    at_once = 1
    takes_together = True
    keeps_accepted = False

    def tidy(self, state: LogState) -> list[str]:
        """Before planning: finish what an earlier run or broker left; what was done, a line each."""
        return []

    def staging(self, state: LogState) -> Path | None:
        """The folder for new files, by name; None when nothing is written."""
        return None

    def room(self, state: LogState, allowed: int | None) -> Room:
        """What new files may take; ``allowed`` is ``--max-extra-bytes``."""
        return Room(size=1 << 62, inodes=None, frees_sources=False)

    def reset_checkpoint(self, state: LogState, offset: int) -> None:
        """The checkpoint was outside the log and nothing is cleaned: write it anew."""

    def check(self, planned: Planned) -> None:
        """Is the log still the run's? Asked before work is begun, and before each wave; raises if it is
        not."""

    def prepare(self, planned: Planned) -> None:
        """The log is about to be worked on: make the folder."""
        if planned.work.staging is not None:
            files.make_directory(planned.work.staging, parents=True)

    def accept(self, planned: Planned, groups: Sequence[Rewritten]) -> None:
        """Take over checked groups, in ascending order: all of them, or, where it raises, none."""

    def finish(self, planned: Planned) -> None:
        """All groups are in: move the checkpoint, clear away."""

    def expire(self, state: LogState, expiry: Expiry) -> None:
        """The log is cleaned, or needs no cleaning: let go of its expired segments."""

    def give_up(self, planned: Planned) -> None:
        """The log is not gone on with, or the run is interrupted: clear away what is only staged."""

    def commit(self) -> dict[Path, str]:
        """The run is over, let its result be seen. Returns what is not in it, by path, with the reason."""
        return {}

    def discard(self) -> None:
        """The run broke off: leave nothing half-done that is ours to clear."""


def check_sizes(group: Rewritten) -> None:
    """The staged files are what the task said that it wrote. Raises CheckFailedError, OSError."""
    size = files.stat(group.staged["log"]).size
    if size != group.size:
        raise CheckFailedError(f"{group.staged['log']}: {size} bytes, but its task reported {group.size}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """New segments' staged files and identities, by base offset, and base offsets of what they replace."""

    staged: dict[int, dict[str, Path]]
    known: dict[int, Sequence[int]]
    old: list[int]


def swap_of(planned: Planned, groups: Sequence[Rewritten]) -> Swap:
    """What is swapped to take over ``groups``."""
    swap = Swap(staged={}, known={}, old=[])
    for group in groups:
        plan = planned.work.groups[group.group]
        swap.staged[plan.base_offset] = {kind: Path(path) for kind, path in group.staged.items()}
        swap.known[plan.base_offset] = group.identity
        swap.old.extend(each.base_offset for each in planned.work.sources(plan))
    return swap


def cleaned_up_to(planned: Planned) -> int:
    """The cleaner checkpoint afterwards. It does not go back where only the clean part was cleaned again."""
    return max(planned.work.rules.last_offset + 1, planned.result.first_dirty_offset or 0)


def drop_staged(partition: Path) -> bool:
    """Remove everything that any run staged, durably; was there something? Never is any of it used again.

    Raises DirectoryRefusedError where the folder is none of ours, OSError.
    """
    if not has_own_folder(partition):
        return False
    files.remove_tree(partition / STAGING)
    files.sync_directory(partition)
    return True


class DryRun(Destination):
    """Nowhere: everything is computed, nothing is written."""


class InPlace(Destination):
    """Into the log directory itself, by Kafka's swap.

    A swap syncs the directory seven times for two groups, ten times for one after another. Kept originals
    are those of one group each, and go into one manifest.
    """

    keeps_accepted = True

    def __init__(self, run: str, originals: Originals | None = None) -> None:
        self._run = run
        self._originals = originals
        self._kept_bytes = 0
        self.at_once = _AT_ONCE if originals is None else 1
        self.takes_together = originals is None

    def tidy(self, state: LogState) -> list[str]:
        """Finish an interrupted swap or deletion as a broker would, and drop what an earlier run staged."""
        done = finish_replacement(state.path)
        if drop_staged(state.path):
            done.append(DROPPED)
        return done + (self._split(state) if self._originals is None else [])

    def _split(self, state: LogState) -> list[str]:
        """Split segments that no index can tell the offsets of. Raises CorruptRecordError, OSError."""
        assert state.config is not None
        interval, size = (state.config.integer(name) for name in INDEX_SETTINGS)
        done = []
        for segment in overflowed(state.segments()):
            bases = split_overflowed(state.path, segment, interval=interval, index_bytes=size)
            done.append(f"split {segment.path}: its offsets were too far apart for one segment; now {bases}")
        return done

    def staging(self, state: LogState) -> Path | None:
        """``topic-N/.siltstone/RUN``."""
        return staging_folder(state.path, self._run)

    def room(self, state: LogState, allowed: int | None) -> Room:
        """What is allowed, by default a quarter of what is free; kept originals take their part of it."""
        space = files.space(state.path)
        most = space.free_bytes // 4 if allowed is None else min(allowed, space.free_bytes)
        return Room(
            size=most - self._kept_bytes, inodes=space.free_inodes, frees_sources=self._originals is None
        )

    def reset_checkpoint(self, state: LogState, offset: int) -> None:
        """Write the checkpoint anew."""
        state.directory.write_cleaner_checkpoint(state.where, offset)

    def prepare(self, planned: Planned) -> None:
        """Make the staging folder. Raises DirectoryRefusedError where something else has its name."""
        has_own_folder(planned.state.path)
        super().prepare(planned)

    def accept(self, planned: Planned, groups: Sequence[Rewritten]) -> None:
        """Swap groups in; their originals are kept first where that was asked for."""
        for group in groups:
            check_sizes(group)
            if self._originals is not None:
                self._originals.keep(planned, planned.work.groups[group.group], group.staged["log"])
                self._kept_bytes += group.size
        swap = swap_of(planned, groups)
        adopt(planned.state.path, swap.staged)
        replace_segments(planned.state.path, list(swap.staged), swap.old, swap.known)

    def finish(self, planned: Planned) -> None:
        """Move the cleaner checkpoint to the end of the cleaned range."""
        planned.state.directory.write_cleaner_checkpoint(planned.state.where, cleaned_up_to(planned))
        self.give_up(planned)

    def expire(self, state: LogState, expiry: Expiry) -> None:
        """Rename and unlink them, kept first where that was asked for."""
        if self._originals is not None:
            self._originals.keep_expired(state, expiry.bases)
        delete_oldest(state.path, expiry.bases)

    def give_up(self, planned: Planned) -> None:
        """Remove the staging folder and its parent."""
        drop_staged(planned.state.path)


# ``--out``: a cleaned copy of a log directory, the source is only read.


class CleanedCopy(Destination):
    """Into a new log directory, which appears under its name only when it is whole.

    Everything of the source is copied but its lock: cleaned logs as cleaned, all others as they are. What
    cannot be copied whole is not copied at all.
    """

    def __init__(self, run: str, source: LogDirectory, target: Path) -> None:
        self._run = run
        self._source = source
        self._target = target
        self._partial = target.with_name(f"{target.name}.partial-{run}")
        self._finished: dict[TopicPartition, Planned] = {}
        self._checkpoints: dict[TopicPartition, int] = {}
        self._expired: dict[TopicPartition, set[int]] = {}

    def _folder(self, state: LogState) -> Path:
        return self._partial / state.path.name

    def staging(self, state: LogState) -> Path | None:
        """A staging folder in the copy."""
        return staging_folder(self._folder(state), self._run)

    def room(self, state: LogState, allowed: int | None) -> Room:
        """What is free where the copy goes: the whole of it is asked for before it is begun."""
        space = files.space(self._target.parent)
        return Room(size=space.free_bytes, inodes=space.free_inodes, frees_sources=False)

    def refuse_little_room(self) -> None:
        """Raises DirectoryRefusedError where a copy of everything would not fit."""
        need = sum(files.tree_size(self._source.path / name) for name in self._names())
        free = files.space(self._target.parent).free_bytes
        if need > free:
            raise DirectoryRefusedError(
                f"--out {self._target}: needs up to {need} bytes, but only {free} are free there"
            )

    def reset_checkpoint(self, state: LogState, offset: int) -> None:
        """Remember it for the copy's checkpoint."""
        self._checkpoints[state.where] = offset

    def accept(self, planned: Planned, groups: Sequence[Rewritten]) -> None:
        """Move the new segments to their names in the copy, which has no name of its own yet."""
        for group in groups:
            check_sizes(group)
            base = planned.work.groups[group.group].base_offset
            for kind, path in group.staged.items():
                files.rename(path, self._folder(planned.state) / segment_file(base, kind))

    def finish(self, planned: Planned) -> None:
        """The log is copied as cleaned."""
        files.remove_tree(self._folder(planned.state) / STAGING)
        self._finished[planned.state.where] = planned
        self._checkpoints[planned.state.where] = cleaned_up_to(planned)

    def expire(self, state: LogState, expiry: Expiry) -> None:
        """They are not copied; new ones go again."""
        self._expired[state.where] = set(expiry.bases)
        for base in expiry.bases:
            for kind in SEGMENT_KINDS:
                path = self._folder(state) / segment_file(base, kind)
                if files.exists(path):
                    files.unlink(path)

    def give_up(self, planned: Planned) -> None:
        """Drop what was staged; the originals are copied in the end."""
        if files.exists(self._folder(planned.state)):
            files.remove_tree(self._folder(planned.state))

    def commit(self) -> dict[Path, str]:
        """Copy all the rest, write the checkpoints, and give the copy its name."""
        left_out: dict[Path, str] = {}
        files.make_directory(self._partial, parents=True)
        files.copy_attributes(self._source.path, self._partial)
        for name in self._names():
            try:
                self._copy(self._source.path / name, self._partial / name)
            except UnsafeFileError as error:
                left_out[self._source.path / name] = f"left out of the copy: {error}"
        self._write_checkpoint(left_out)
        files.sync_directory(self._partial)
        files.rename(self._partial, self._target)
        files.sync_directory(self._target.parent)
        return left_out

    def _copy(self, source: Path, target: Path) -> None:
        """One entry of the source. Raises UnsafeFileError, and nothing of it is copied then; OSError."""
        facts = files.stat(source, follow=False)
        if facts.kind != files.DIRECTORY:
            refuse_kind(source, facts, files.FILE)
            return files.copy(source, target)
        try:
            refuse_unsafe_files(source)
        except UnsafeFileError:
            if files.exists(target):
                files.remove_tree(target)
            raise
        return self._copy_partition(source, target)

    def _names(self) -> list[str]:
        """What is copied: all files and folders but the lock, or the one partition that was opened."""
        if self._source.is_partial:
            return [path.name for path in self._source.partitions.values()]
        left_out = (names.LOCK, names.CLEANER_CHECKPOINT)
        entries = files.entries(self._source.path)
        return [each.name for each in entries if not each.is_link and each.name not in left_out]

    def _write_checkpoint(self, left_out: Mapping[Path, str]) -> None:
        offsets = read_checkpoint(self._source.path / names.CLEANER_CHECKPOINT)
        if self._source.is_partial:
            offsets = {where: offset for where, offset in offsets.items() if where in self._source.partitions}
        offsets |= self._checkpoints
        missing = {names.parse_partition(path.name) for path in left_out}
        offsets = {where: offset for where, offset in offsets.items() if where not in missing}
        if offsets:
            write_checkpoint(self._partial / names.CLEANER_CHECKPOINT, offsets)

    def discard(self) -> None:
        """The run failed as a whole: nothing of the copy stays."""
        if files.exists(self._partial):
            files.remove_tree(self._partial)

    def _copy_partition(self, source: Path, target: Path) -> None:
        files.make_directory(target)
        files.copy_attributes(source, target)
        left_out = self._left_out(source)
        for entry in files.entries(source):
            name = names.parse_segment_file(entry.name)
            if entry.is_file and (name is None or not left_out(name)):
                files.copy(source / entry.name, target / entry.name)
        files.sync_directory(target)

    def _left_out(self, source: Path) -> Callable[[SegmentFile], bool]:
        """Which of a partition's files the copy is to be without, or has others in place of."""
        where = names.parse_partition(source.name)
        cleaned = None if where is None else self._finished.get(where)
        expired = set() if where is None else self._expired.get(where, set())
        replaced = {segment.base_offset for segment in cleaned.work.segments} if cleaned else set()
        new = {group.base_offset for group in cleaned.work.groups} if cleaned else set()

        def left_out(name: SegmentFile) -> bool:
            stays = name.kind == names.SNAPSHOT and name.base_offset in new
            return name.base_offset in expired or (name.base_offset in replaced and not stays)

        return left_out
