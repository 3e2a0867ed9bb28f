"""Destinations of a cleaning: the log directory itself, a cleaned copy, or none (a dry run).

The cleaner calls a destination's methods like those of Spark's ``OutputCommitter``, for each log and for the
run::

    recover ─► setup_log ─► commit_groups, ascending ─► commit_log ─► delete_old_segments ─┐
                  └──────────── abort_log, after a failure or an interrupt ────────────────┴─► commit_run
                                                                                               or abort_run

In place, either all groups of a call are swapped in together, or each one durably before the next one: a
tombstone must not be removed before the value that it deletes. The checkpoint moves last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from siltstone.base import files
from siltstone.base.config import LONG_MAX
from siltstone.base.errors import CheckFailedError, DirectoryRefusedError, SiltstoneError, UnsafeFileError
from siltstone.compaction.inplace.expiry import Expiry
from siltstone.compaction.inplace.originals import Originals
from siltstone.compaction.inplace.planning import LogState, PlannedLog, staging_folder
from siltstone.compaction.report import failure_of
from siltstone.compaction.staging import GroupReport
from siltstone.log import names
from siltstone.log.checkpoints import read_checkpoint, write_checkpoint
from siltstone.log.directory import (
    LogDirectory,
    has_siltstone_folder,
    refuse_foreign_folder,
    refuse_unsafe_files,
    require_kind,
)
from siltstone.log.names import SEGMENT_KINDS, STAGING, TopicPartition, segment_file
from siltstone.log.overflow import overflowed_segments, split_overflowed_segment
from siltstone.log.replacement import (
    delete_oldest,
    finish_replacement,
    removed_at_startup,
    rename_to_cleaned,
    replace_segments,
)

_SWAP_THREADS = 4
"""How many swaps run at the same time; they mostly wait for the disk."""
REMOVED_STAGED = f"removed staged files of an earlier run ({STAGING})"
STAGED_NOT_REMOVED = "its staged files could not be removed, the next run removes them: {reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceBudget:
    """The disk space that new files may take: ``size`` in bytes, and ``inodes`` (None: no limit).

    ``frees_sources``: a swap frees the space of the old segments, so that the next wave can use it.
    """

    size: int
    inodes: int | None
    frees_sources: bool


class Destination:
    """Base class of destinations; by itself it writes nothing.

    ``swap_threads``: how many logs ``commit_groups`` and ``commit_log`` serve at the same time.
    ``commits_groups_together``: ``commit_groups`` gets all groups of one engine result (a log or a wave) in
    one call, else one call for each group. ``survives_abort``: committed groups stay after ``abort_log``.
    """

    swap_threads = 1
    commits_groups_together = True
    survives_abort = False

    def recover(self, state: LogState) -> list[str]:
        """Called before planning: finish what an earlier run or a broker began; returns a note for each
        action."""
        return []

    def staging(self, state: LogState) -> Path | None:
        """The folder for new files; None if nothing is written."""
        return None

    def space_budget(self, state: LogState, max_extra_bytes: int | None) -> SpaceBudget:
        """The space for new files; ``max_extra_bytes`` is ``--max-extra-bytes``."""
        return SpaceBudget(size=LONG_MAX, inodes=None, frees_sources=False)

    def count_originals(self, groups: Sequence[GroupReport]) -> None:
        """If originals are kept: subtract the groups' new segments from the space budget, since the space of
        their originals is not freed."""

    def reset_checkpoint(self, state: LogState, offset: int) -> None:
        """Write the cleaner checkpoint of a log that is not cleaned, since the old one was outside the
        log."""

    def check_not_aborted(self, planned: PlannedLog) -> None:
        """Called before work on a log and before each wave (Kafka's ``Cleaner.checkDone``); raises if the
        cleaning was aborted."""

    def setup_log(self, planned: PlannedLog) -> None:
        """Called before work on a log: make the staging folder."""
        if planned.work.staging is not None:
            files.make_directory(planned.work.staging, parents=True)

    def commit_groups(self, planned: PlannedLog, groups: Sequence[GroupReport]) -> None:
        """Commit ``groups``, which ascend by offset, and whose counts were checked. If this raises, none of
        them counts as committed."""

    def commit_log(self, planned: PlannedLog) -> None:
        """Called after the last group: move the checkpoint, remove the staging folder."""

    def delete_old_segments(self, state: LogState, expiry: Expiry) -> None:
        """Delete the expired segments of a log that was cleaned or needs no cleaning."""

    def abort_log(self, planned: PlannedLog) -> None:
        """Remove the staged files of a log that failed, or of an interrupted run."""

    def commit_run(self) -> dict[Path, str]:
        """Called at the end of a run: publish the result. Returns the paths that the result does not have,
        and why."""
        return {}

    def abort_run(self) -> None:
        """Called when a run failed as a whole: remove what it made."""


def _check_size(group: GroupReport) -> None:
    """Raises CheckFailedError unless the staged log has the size that its task reported; OSError."""
    path, size = group.staged["log"], files.stat(group.staged["log"]).size
    if size != group.size:
        raise CheckFailedError(f"the file has {size} bytes, but its task reported {group.size}", path=path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """A swap of new segments for old ones. By base offset of a new segment: ``staged``, its files by kind,
    and ``verified``, the identity of its log when it was verified. ``old``: base offsets of the old
    segments."""

    staged: dict[int, dict[str, Path]]
    verified: dict[int, Sequence[int]]
    old: list[int]


def check_and_collect_swap(planned: PlannedLog, groups: Sequence[GroupReport]) -> Swap:
    """The swap that commits ``groups``. Raises CheckFailedError unless each staged log has the size that its
    task reported; OSError."""
    swap = Swap(staged={}, verified={}, old=[])
    for report in groups:
        _check_size(report)
        group = planned.work.groups[report.group_index]
        swap.staged[group.base_offset] = {kind: Path(path) for kind, path in report.staged.items()}
        swap.verified[group.base_offset] = report.identity
        swap.old.extend(source.base_offset for source in planned.work.sources(group))
    return swap


def next_cleaner_checkpoint(planned: PlannedLog) -> int:
    """The cleaner checkpoint after the cleaning: the end of the cleaned range. It does not move back if only
    the clean section was cleaned again."""
    return max(planned.work.rules.last_offset + 1, planned.result.first_dirty_offset or 0)


def remove_all_staged(partition: Path) -> bool:
    """Remove the staged files of all runs from a partition's directory, durably. Returns whether there were
    any.

    Raises DirectoryRefusedError if the folder's name belongs to something else, OSError.
    """
    if not has_siltstone_folder(partition):
        return False
    files.remove_tree(partition / STAGING)
    files.sync_directory(partition)
    return True


class DryRun(Destination):
    """A dry run: everything is computed, nothing is written.

    ``imitated``: the destination of the run whose dry run it is; its space is checked, as in that run. None:
    the space is not checked.
    """

    def __init__(self, imitated: Destination | None = None) -> None:
        self._imitated = imitated
        self.swap_threads = _SWAP_THREADS

    def space_budget(self, state: LogState, max_extra_bytes: int | None) -> SpaceBudget:
        """The space that the run would have."""
        if self._imitated is None:
            return super().space_budget(state, max_extra_bytes)
        return self._imitated.space_budget(state, max_extra_bytes)

    def commit_groups(self, planned: PlannedLog, groups: Sequence[GroupReport]) -> None:
        """Count the space that the run would take permanently."""
        if self._imitated is not None:
            self._imitated.count_originals(groups)


class InPlace(Destination):
    """Swaps new segments into the log directory (Kafka's ``UnifiedLog.replaceSegments``).

    ``run``: the run's name. ``originals``: keeps the originals, None without ``--keep-originals``. With kept
    originals groups are swapped one by one, since ``undo`` restores them one by one.
    """

    survives_abort = True

    def __init__(self, run: str, originals: Originals | None = None) -> None:
        self._run = run
        self._originals = originals
        self._bytes_not_freed = 0
        self.swap_threads = _SWAP_THREADS if originals is None else 1
        self.commits_groups_together = originals is None

    def recover(self, state: LogState) -> list[str]:
        """Finish an interrupted swap or deletion as a broker does, remove what earlier runs staged, and split
        segments whose offsets do not fit an index. Raises CorruptRecordError, OSError."""
        finished, removed = finish_replacement(state.path)
        notes = [f"finished the swap of {name}" for name in finished]
        notes += [f"removed {name}" for name in removed]
        if remove_all_staged(state.path):
            notes.append(REMOVED_STAGED)
        assert state.config is not None
        interval = state.config.integer("index.interval.bytes")
        index_bytes = state.config.integer("segment.index.bytes")
        # ``undo`` cannot join the parts of a split, so with kept originals the log is skipped instead.
        for segment in overflowed_segments(state.segments()) if self._originals is None else ():
            bases = split_overflowed_segment(
                state.path, segment, index_interval=interval, index_bytes=index_bytes
            )
            notes.append(f"split {segment.path}: its offsets were too far apart for one segment; now {bases}")
        return notes

    def staging(self, state: LogState) -> Path | None:
        """``topic-N/.siltstone/RUN``."""
        return staging_folder(state.path, self._run)

    def space_budget(self, state: LogState, max_extra_bytes: int | None) -> SpaceBudget:
        """``--max-extra-bytes``, by default a quarter of the free space, less the new segments that this run
        has swapped in while it keeps their originals."""
        space = files.free_space(state.path)
        maximum = space.free_bytes // 4 if max_extra_bytes is None else min(max_extra_bytes, space.free_bytes)
        return SpaceBudget(
            size=maximum - self._bytes_not_freed,
            inodes=space.free_inodes,
            frees_sources=self._originals is None,
        )

    def count_originals(self, groups: Sequence[GroupReport]) -> None:
        """If originals are kept, a swap frees no space: subtract the groups' new segments from the budget."""
        if self._originals is not None:
            self._bytes_not_freed += sum(group.size for group in groups)

    def reset_checkpoint(self, state: LogState, offset: int) -> None:
        """Write the checkpoint."""
        state.directory.write_cleaner_checkpoint(state.topic_partition, offset)

    def setup_log(self, planned: PlannedLog) -> None:
        """Make the staging folder. Raises DirectoryRefusedError if its name belongs to something else."""
        refuse_foreign_folder(planned.state.path)
        super().setup_log(planned)

    def commit_groups(self, planned: PlannedLog, groups: Sequence[GroupReport]) -> None:
        """Swap groups in; with ``--keep-originals`` keep their originals first."""
        # 1. Check that the staged files are what the tasks reported.
        swap = check_and_collect_swap(planned, groups)
        # 2. Link all files that the swap removes, and write their entry to ``undo.json``, durably. After a
        #    crash between this and the swap, ``undo`` finds that the originals are still in place.
        if self._originals is not None:
            for group in groups:
                self._originals.keep(planned, planned.work.groups[group.group_index], group.staged["log"])
            self.count_originals(groups)
        # 3. Rename the staged files to ``.cleaned`` in the partition's directory. A broker's start removes
        #    ``.cleaned`` files, as long as not all of them have become ``.swap``.
        rename_to_cleaned(planned.state.path, swap.staged)
        # 4. Rename ``.cleaned`` to ``.swap``, originals to ``.deleted``, ``.swap`` to the segments' names,
        #    each step durably. From ``.swap`` on a broker's start finishes the swap (``log.replacement``;
        #    Kafka's ``replaceSegments``). A log that is the very file that was verified is not read again.
        replace_segments(planned.state.path, list(swap.staged), swap.old, swap.verified)

    def commit_log(self, planned: PlannedLog) -> None:
        """Move the cleaner checkpoint to the end of the cleaned range. The log is cleaned then, even if its
        staging folder cannot be removed: a note says so."""
        planned.state.directory.write_cleaner_checkpoint(
            planned.state.topic_partition, next_cleaner_checkpoint(planned)
        )
        try:
            self.abort_log(planned)  # removes the staging folder
        except (SiltstoneError, OSError) as error:
            planned.result.notes.append(STAGED_NOT_REMOVED.format(reason=failure_of(error).reason))

    def delete_old_segments(self, state: LogState, expiry: Expiry) -> None:
        """Delete the segments; with ``--keep-originals`` keep them first."""
        if self._originals is not None:
            self._originals.keep_expired(state, expiry.bases)
        delete_oldest(state.path, expiry.bases)

    def abort_log(self, planned: PlannedLog) -> None:
        """Remove the staging folder and its parent."""
        remove_all_staged(planned.state.path)


# ``--out``: a cleaned copy of a log directory. The source is only read.


class CleanedCopy(Destination):
    """Makes a cleaned copy of ``source``: a new log directory ``target``, which gets its name when complete.

    It has the cleaned logs, and copies of all other files and folders of ``source`` but the lock, symbolic
    links and what a broker's start would only remove (``.deleted``, ``.cleaned``). An unsafe file or
    partition (``UnsafeFileError``) is left out, and ``commit_run`` reports it. A log that was not cleaned,
    and has a swap that a broker's start would finish, is copied with all files of the swap: a start on the
    copy finishes it.
    """

    def __init__(self, run: str, source: LogDirectory, target: Path) -> None:
        self._run = run
        self._source = source
        self._target = target
        self._partial_copy = target.with_name(f"{target.name}.partial-{run}")
        self.swap_threads = _SWAP_THREADS
        self._checkpoints: dict[TopicPartition, int] = {}
        # Base offsets by partition: of old segments that were replaced or have expired, whose files are not
        # copied; and of new segments, which get the source's producer snapshots at their base offsets.
        self._bases_not_copied: dict[TopicPartition | None, set[int]] = defaultdict(set)
        self._new_bases: dict[TopicPartition | None, set[int]] = defaultdict(set)

    def _folder(self, state: LogState) -> Path:
        """The log's folder in the copy."""
        return self._partial_copy / state.path.name

    def staging(self, state: LogState) -> Path | None:
        """A staging folder in the copy."""
        return staging_folder(self._folder(state), self._run)

    def space_budget(self, state: LogState, max_extra_bytes: int | None) -> SpaceBudget:
        """The free space of the target's file system; ``refuse_too_little_space`` compares it with the whole
        copy."""
        space = files.free_space(self._target.parent)
        return SpaceBudget(size=space.free_bytes, inodes=space.free_inodes, frees_sources=False)

    def refuse_too_little_space(self) -> None:
        """Raises DirectoryRefusedError if a copy of everything does not fit."""
        need = sum(files.tree_size(self._source.path / name) for name in self._names_to_copy())
        free = files.free_space(self._target.parent).free_bytes
        if need > free:
            raise DirectoryRefusedError(
                f"the copy needs up to {need} bytes, but only {free} are free on its file system",
                path=self._target,
                advice="free some space, or pass --out with a path on another file system",
            )

    def reset_checkpoint(self, state: LogState, offset: int) -> None:
        """Remember the offset for the copy's cleaner checkpoint."""
        self._checkpoints[state.topic_partition] = offset

    def commit_groups(self, planned: PlannedLog, groups: Sequence[GroupReport]) -> None:
        """Move the new segments to their names in the copy."""
        for base, staged in check_and_collect_swap(planned, groups).staged.items():
            for kind, path in staged.items():
                files.rename(path, self._folder(planned.state) / segment_file(base, kind))

    def commit_log(self, planned: PlannedLog) -> None:
        """Remove the staging folder, and remember which segments of the source the new ones replace."""
        topic_partition, work = planned.state.topic_partition, planned.work
        files.remove_tree(self._folder(planned.state) / STAGING)
        self._bases_not_copied[topic_partition] = {segment.base_offset for segment in work.segments}
        self._new_bases[topic_partition] = {group.base_offset for group in work.groups}
        self._checkpoints[topic_partition] = next_cleaner_checkpoint(planned)

    def delete_old_segments(self, state: LogState, expiry: Expiry) -> None:
        """Remember not to copy these segments, and remove those of them that this run has written."""
        self._bases_not_copied[state.topic_partition].update(expiry.bases)
        self._new_bases[state.topic_partition].difference_update(expiry.bases)
        for base in expiry.bases:
            for kind in SEGMENT_KINDS:
                path = self._folder(state) / segment_file(base, kind)
                if files.exists(path):
                    files.unlink(path)

    def abort_log(self, planned: PlannedLog) -> None:
        """Remove what was staged; ``commit_run`` copies the originals."""
        self._remove_folder(self._folder(planned.state))

    def commit_run(self) -> dict[Path, str]:
        """Copy everything else, write the checkpoint, and give the copy its name."""
        excluded: dict[Path, str] = {}
        self._make_folder(self._source.path, self._partial_copy)
        for name in self._names_to_copy():
            try:
                self._copy(self._source.path / name, self._partial_copy / name)
            except UnsafeFileError as error:
                excluded[self._source.path / name] = f"left out of the copy: {error}"
        self._write_checkpoint(excluded)
        self._publish()
        return excluded

    def _make_folder(self, source: Path, target: Path) -> None:
        """Make a folder of the copy, like the ``source``'s."""
        files.make_directory(target, parents=True)
        files.copy_attributes(source, target)

    def _copy_file(self, source: Path, target: Path) -> None:
        """Copy a file that the cleaning left as it is."""
        files.copy(source, target)

    def _sync_folder(self, target: Path) -> None:
        """Make the names in a folder of the copy durable."""
        files.sync_directory(target)

    def _remove_folder(self, target: Path) -> None:
        """Remove what was written of a partition to the copy."""
        if files.exists(target):
            files.remove_tree(target)

    def _publish(self) -> None:
        """Give the copy, which is complete, its name."""
        files.sync_directory(self._partial_copy)
        files.rename(self._partial_copy, self._target)
        files.sync_directory(self._target.parent)

    def abort_run(self) -> None:
        """Remove the incomplete copy."""
        if files.exists(self._partial_copy):
            files.remove_tree(self._partial_copy)

    def _copy(self, source: Path, target: Path) -> None:
        """Copy one file or folder of the source. Raises UnsafeFileError if it is unsafe, and copies nothing
        of it then; OSError."""
        status = files.stat(source, follow=False)
        if status.kind != files.DIRECTORY:
            require_kind(source, status, files.FILE)
            return self._copy_file(source, target)
        try:
            refuse_unsafe_files(source)
        except UnsafeFileError:
            self._remove_folder(target)
            raise
        return self._copy_partition(source, target)

    def _copy_partition(self, source: Path, target: Path) -> None:
        """Copy a partition's files, but not those of segments that were replaced, have expired or had been
        deleted before. A producer snapshot at the base offset of a new segment is copied: it has the
        producers at that offset."""
        self._make_folder(source, target)
        topic_partition = names.parse_partition(source.name)
        not_copied, new_bases = self._bases_not_copied[topic_partition], self._new_bases[topic_partition]
        removed = removed_at_startup(source)
        for entry in files.entries(source):
            name = names.parse_segment_file(entry.name)
            is_left_out = name is not None and name.base_offset in not_copied
            is_snapshot_of_new = (
                name is not None and name.base_offset in new_bases and name.kind == names.SNAPSHOT
            )
            is_copied = entry.name not in removed and (is_snapshot_of_new or not is_left_out)
            if entry.is_file and is_copied:
                self._copy_file(source / entry.name, target / entry.name)
        self._sync_folder(target)

    def _names_to_copy(self) -> list[str]:
        """The names of the files and folders to copy: all but the lock, symbolic links, and the cleaner
        checkpoint, which is written anew. If only some partitions were opened, only their folders."""
        if self._source.is_partition_subset:
            return [path.name for path in self._source.partitions.values()]
        not_copied = (names.LOCK, names.CLEANER_CHECKPOINT)
        entries = files.entries(self._source.path)
        return [entry.name for entry in entries if not entry.is_link and entry.name not in not_copied]

    def _write_checkpoint(self, excluded: Mapping[Path, str]) -> None:
        """Write the copy's cleaner checkpoint, without the partitions that the copy does not have."""
        offsets = read_checkpoint(self._source.path / names.CLEANER_CHECKPOINT) | self._checkpoints
        missing = {names.parse_partition(path.name) for path in excluded}
        if self._source.is_partition_subset:
            missing |= offsets.keys() - self._source.partitions.keys()
        offsets = {
            topic_partition: offset
            for topic_partition, offset in offsets.items()
            if topic_partition not in missing
        }
        if offsets:
            write_checkpoint(self._partial_copy / names.CLEANER_CHECKPOINT, offsets)
