"""Destinations of a cleaning: the log directory itself, a cleaned copy, or none (a dry run).

A destination names the folder in which tasks write, accepts checked groups in ascending order, and finishes
or gives up a log. In place, groups are swapped in together, or each one durably before the next: a tombstone
must not be removed before the value that it deletes. The checkpoint moves last.
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
from siltstone.compaction.staging import GroupReport
from siltstone.log import names
from siltstone.log.checkpoints import read_checkpoint, write_checkpoint
from siltstone.log.directory import LogDirectory, has_own_folder, refuse_kind, refuse_unsafe_files
from siltstone.log.names import SEGMENT_KINDS, STAGING, SegmentFile, TopicPartition, segment_file
from siltstone.log.overflow import overflowed, split_overflowed
from siltstone.log.replacement import delete_oldest, finish_replacement, rename_to_cleaned, replace_segments

_SWAP_THREADS = 4
"""Swaps at one time; they mostly wait for the disk."""
DROPPED = f"removed staged files of an earlier run ({STAGING})"
INDEX_SETTINGS = ("index.interval.bytes", "segment.index.bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Bytes that new files may take, and free inodes (None: no limit).

    ``frees_sources``: a swap frees the space of the group's sources, so that waves can use it again.
    """

    size: int
    inodes: int | None
    frees_sources: bool


class Destination:
    """Base class of destinations; by itself it writes nothing.

    ``swap_threads``: how many logs ``accept`` and ``finish`` serve at one time.
    ``swaps_groups_together``: ``accept`` gets all groups of one engine result (a log or a
    wave) in one call, else one call for each group. ``keeps_accepted``:
    accepted groups stay when the log is given up later.
    """

    swap_threads = 1
    swaps_groups_together = True
    keeps_accepted = False

    def tidy(self, state: LogState) -> list[str]:
        """Called before planning: finish what an earlier run or a broker left; returns a line for each thing
        done."""
        return []

    def staging(self, state: LogState) -> Path | None:
        """The folder for new files; None if nothing is written."""
        return None

    def room(self, state: LogState, allowed: int | None) -> Room:
        """The space for new files; ``allowed`` is ``--max-extra-bytes``."""
        return Room(size=1 << 62, inodes=None, frees_sources=False)

    def reset_checkpoint(self, state: LogState, offset: int) -> None:
        """Write the checkpoint of a log that is not cleaned, since it was outside the log."""

    def check(self, planned: Planned) -> None:
        """Called before work on a log and before each wave; raises if the log is needed elsewhere."""

    def prepare(self, planned: Planned) -> None:
        """Called before work on a log: make the staging folder."""
        if planned.work.staging is not None:
            files.make_directory(planned.work.staging, parents=True)

    def accept(self, planned: Planned, groups: Sequence[GroupReport]) -> None:
        """Accept checked groups in ascending order: all of them, or none if this raises."""

    def finish(self, planned: Planned) -> None:
        """Called after the last group: move the checkpoint, remove the staging folder."""

    def expire(self, state: LogState, expiry: Expiry) -> None:
        """Delete the expired segments of a log that was cleaned or needs no cleaning."""

    def give_up(self, planned: Planned) -> None:
        """Remove the staged files of a log that failed, or of an interrupted run."""

    def commit(self) -> dict[Path, str]:
        """Called at the end of a run: publish the result. Returns what is not in it: reasons by path."""
        return {}

    def discard(self) -> None:
        """Called when a run failed as a whole: remove what it made."""


def check_sizes(group: GroupReport) -> None:
    """Raises CheckFailedError unless the staged log has the size that its task reported; OSError."""
    size = files.stat(group.staged["log"]).size
    if size != group.size:
        raise CheckFailedError(f"{group.staged['log']}: {size} bytes, but its task reported {group.size}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """A swap: staged files and identities of the new segments by base offset, and base offsets of the old
    ones."""

    staged: dict[int, dict[str, Path]]
    known: dict[int, Sequence[int]]
    old: list[int]


def swap_of(planned: Planned, groups: Sequence[GroupReport]) -> Swap:
    """The swap that accepts ``groups``."""
    swap = Swap(staged={}, known={}, old=[])
    for group in groups:
        plan = planned.work.groups[group.group]
        swap.staged[plan.base_offset] = {kind: Path(path) for kind, path in group.staged.items()}
        swap.known[plan.base_offset] = group.identity
        swap.old.extend(source.base_offset for source in planned.work.sources(plan))
    return swap


def cleaned_up_to(planned: Planned) -> int:
    """The cleaner checkpoint after the cleaning. It does not move back if only the clean section was
    cleaned."""
    return max(planned.work.rules.last_offset + 1, planned.result.first_dirty_offset or 0)


def drop_staged(partition: Path) -> bool:
    """Remove the staged files of all runs, durably; was there something?

    Raises DirectoryRefusedError if something else has the folder's name, OSError.
    """
    if not has_own_folder(partition):
        return False
    files.remove_tree(partition / STAGING)
    files.sync_directory(partition)
    return True


class DryRun(Destination):
    """A dry run: everything is computed, nothing is written."""


class InPlace(Destination):
    """Swaps new segments into the log directory (Kafka's ``replaceSegments``).

    With kept originals groups are swapped one by one, since ``undo`` restores them one by one.
    """

    keeps_accepted = True

    def __init__(self, run: str, originals: Originals | None = None) -> None:
        self._run = run
        self._originals = originals
        self._kept_bytes = 0
        self.swap_threads = _SWAP_THREADS if originals is None else 1
        self.swaps_groups_together = originals is None

    def tidy(self, state: LogState) -> list[str]:
        """Finish an interrupted swap or deletion as a broker does, and remove what earlier runs staged."""
        done = finish_replacement(state.path)
        if drop_staged(state.path):
            done.append(DROPPED)
        return done + (self._split(state) if self._originals is None else [])

    def _split(self, state: LogState) -> list[str]:
        """Split segments whose offsets do not fit an index. Raises CorruptRecordError, OSError."""
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
        """``--max-extra-bytes``, by default a quarter of the free space, less what kept originals take."""
        space = files.space(state.path)
        most = space.free_bytes // 4 if allowed is None else min(allowed, space.free_bytes)
        return Room(
            size=most - self._kept_bytes, inodes=space.free_inodes, frees_sources=self._originals is None
        )

    def reset_checkpoint(self, state: LogState, offset: int) -> None:
        """Write the checkpoint."""
        state.directory.write_cleaner_checkpoint(state.where, offset)

    def prepare(self, planned: Planned) -> None:
        """Make the staging folder. Raises DirectoryRefusedError if something else has its name."""
        has_own_folder(planned.state.path)
        super().prepare(planned)

    def accept(self, planned: Planned, groups: Sequence[GroupReport]) -> None:
        """Swap groups in, after their originals are kept if that was chosen."""
        for group in groups:
            check_sizes(group)
            if self._originals is not None:
                self._originals.keep(planned, planned.work.groups[group.group], group.staged["log"])
                self._kept_bytes += group.size
        # Staged files get their names as ``.cleaned``, then ``.swap``, and at last replace the sources, each
        # step durably: a start finishes the swap or drops it (``log.replacement``, Kafka's
        # ``replaceSegments``).
        swap = swap_of(planned, groups)
        rename_to_cleaned(planned.state.path, swap.staged)
        replace_segments(planned.state.path, list(swap.staged), swap.old, swap.known)

    def finish(self, planned: Planned) -> None:
        """Move the cleaner checkpoint to the end of the cleaned range."""
        planned.state.directory.write_cleaner_checkpoint(planned.state.where, cleaned_up_to(planned))
        self.give_up(planned)

    def expire(self, state: LogState, expiry: Expiry) -> None:
        """Delete the segments, after they are kept if that was chosen."""
        if self._originals is not None:
            self._originals.keep_expired(state, expiry.bases)
        delete_oldest(state.path, expiry.bases)

    def give_up(self, planned: Planned) -> None:
        """Remove the staging folder and its parent."""
        drop_staged(planned.state.path)


# ``--out``: a cleaned copy of a log directory. The source is only read.


class CleanedCopy(Destination):
    """A new log directory, which gets its name when it is complete.

    It has cleaned logs, and copies of all other files and folders but the lock and symbolic links. An unsafe
    file or partition is left out, and ``commit`` reports it.
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
        """The free space of the target's file system; ``refuse_little_room`` compares it with the whole
        copy."""
        space = files.space(self._target.parent)
        return Room(size=space.free_bytes, inodes=space.free_inodes, frees_sources=False)

    def refuse_little_room(self) -> None:
        """Raises DirectoryRefusedError if a copy of everything does not fit."""
        need = sum(files.tree_size(self._source.path / name) for name in self._names())
        free = files.space(self._target.parent).free_bytes
        if need > free:
            raise DirectoryRefusedError(
                f"--out {self._target}: needs up to {need} bytes, but only {free} are free there"
            )

    def reset_checkpoint(self, state: LogState, offset: int) -> None:
        """Remember it for the copy's checkpoint."""
        self._checkpoints[state.where] = offset

    def accept(self, planned: Planned, groups: Sequence[GroupReport]) -> None:
        """Move the new segments to their names in the copy."""
        for group in groups:
            check_sizes(group)
            base = planned.work.groups[group.group].base_offset
            for kind, path in group.staged.items():
                files.rename(path, self._folder(planned.state) / segment_file(base, kind))

    def finish(self, planned: Planned) -> None:
        """Remember that the copy has the log's new segments."""
        files.remove_tree(self._folder(planned.state) / STAGING)
        self._finished[planned.state.where] = planned
        self._checkpoints[planned.state.where] = cleaned_up_to(planned)

    def expire(self, state: LogState, expiry: Expiry) -> None:
        """Leave the segments out of the copy, and remove new ones."""
        self._expired[state.where] = set(expiry.bases)
        for base in expiry.bases:
            for kind in SEGMENT_KINDS:
                path = self._folder(state) / segment_file(base, kind)
                if files.exists(path):
                    files.unlink(path)

    def give_up(self, planned: Planned) -> None:
        """Remove what was staged; ``commit`` copies the originals."""
        if files.exists(self._folder(planned.state)):
            files.remove_tree(self._folder(planned.state))

    def commit(self) -> dict[Path, str]:
        """Copy everything else, write the checkpoint, and give the copy its name."""
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
        """What is copied: all but the lock and the cleaner checkpoint, which is written anew; or the
        partitions that were opened."""
        if self._source.is_partial:
            return [path.name for path in self._source.partitions.values()]
        left_out = (names.LOCK, names.CLEANER_CHECKPOINT)
        entries = files.entries(self._source.path)
        return [entry.name for entry in entries if not entry.is_link and entry.name not in left_out]

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
        """Remove the incomplete copy."""
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
        """A predicate for files of a partition that are not copied: replaced or expired segments."""
        where = names.parse_partition(source.name)
        cleaned = None if where is None else self._finished.get(where)
        expired = set() if where is None else self._expired.get(where, set())
        replaced = {segment.base_offset for segment in cleaned.work.segments} if cleaned else set()
        new = {group.base_offset for group in cleaned.work.groups} if cleaned else set()

        def left_out(name: SegmentFile) -> bool:
            stays = name.kind == names.SNAPSHOT and name.base_offset in new
            return name.base_offset in expired or (name.base_offset in replaced and not stays)

        return left_out
