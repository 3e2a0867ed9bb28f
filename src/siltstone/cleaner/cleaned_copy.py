"""``--out``: a cleaned copy of a log directory, the source is only read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from siltstone import files
from siltstone.cleaner import resume
from siltstone.cleaner.destination import Room, check_sizes, cleaned_up_to
from siltstone.cleaner.expiry import Expiry
from siltstone.cleaner.facts import LogState, Planned, staging_folder
from siltstone.cleaner.journal import Journal
from siltstone.cleaner.staging import Rewritten
from siltstone.errors import DirectoryRefusedError, UnsafeFileError
from siltstone.log import names
from siltstone.log.checkpoints import read_checkpoint, write_checkpoint
from siltstone.log.directory import LogDirectory
from siltstone.log.names import SEGMENT_KINDS, STAGING, SegmentFile, TopicPartition, segment_file
from siltstone.log.partition_files import refuse_kind, refuse_unsafe_files


class CleanedCopy:
    """Into a new log directory, which appears under its name only when it is whole.

    Everything of the source is copied but its lock: cleaned logs as cleaned, all others as they are.
    ``left_out``: what could not be copied whole, and so is not copied at all, by path, with the reason.
    """

    at_once = 1
    takes_together = True
    keeps_accepted = False

    def __init__(self, run: str, source: LogDirectory, target: Path) -> None:
        self._run = run
        self._source = source
        self._target = target
        self._partial = target.with_name(f"{target.name}.partial-{run}")
        self._accepted: dict[TopicPartition, dict[int, Rewritten]] = {}
        self._finished: dict[TopicPartition, Planned] = {}
        self._resets: dict[TopicPartition, int] = {}
        self._expired: dict[TopicPartition, set[int]] = {}
        self.left_out: dict[Path, str] = {}

    def tidy(self, state: LogState) -> list[str]:
        """The source is never changed."""
        return []

    def unfinished(self, state: LogState) -> resume.Unfinished | None:
        """A copy is always made anew."""
        return None

    def drop(self, state: LogState) -> None:
        """The source is never changed."""

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
        self._resets[state.where] = offset

    def prepare(self, planned: Planned) -> None:
        """Make the staging folder in the copy."""
        files.make_directory(staging_folder(self._folder(planned.state), self._run), parents=True)

    def remember(self, planned: Planned, journal: Journal) -> None:
        """Nothing to remember: there is one wave."""

    def accept(self, planned: Planned, groups: Sequence[Rewritten]) -> None:
        """Remember the groups; they are moved when the log is whole."""
        for group in groups:
            check_sizes(group)
        self._accepted.setdefault(planned.state.where, {}).update({each.group: each for each in groups})

    def finish(self, planned: Planned) -> None:
        """Move the new segments to their names in the copy."""
        for group in self._accepted[planned.state.where].values():
            base = planned.work.groups[group.group].base_offset
            for kind, path in group.staged.items():
                files.rename(path, self._folder(planned.state) / segment_file(base, kind))
        self._finished[planned.state.where] = planned
        files.remove_tree(self._folder(planned.state) / STAGING)

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

    def pause(self, planned: Planned) -> None:
        """A copy is not gone on with."""
        self.give_up(planned)

    def close(self, states: list[LogState]) -> None:
        """Copy all the rest, write the checkpoints, and give the copy its name."""
        files.make_directory(self._partial, parents=True)
        files.copy_attributes(self._source.path, self._partial)
        for name in self._names():
            try:
                self._copy(self._source.path / name, self._partial / name)
            except UnsafeFileError as error:
                self.left_out[self._source.path / name] = f"left out of the copy: {error}"
        self._write_checkpoint()
        files.sync_directory(self._partial)
        files.rename(self._partial, self._target)
        files.sync_directory(self._target.parent)

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
        found = files.entries(self._source.path)
        return [each.name for each in found if not each.is_link and each.name not in left_out]

    def _write_checkpoint(self) -> None:
        offsets = read_checkpoint(self._source.path / names.CLEANER_CHECKPOINT)
        if self._source.is_partial:
            offsets = {where: offset for where, offset in offsets.items() if where in self._source.partitions}
        offsets |= self._resets
        offsets |= {where: cleaned_up_to(planned) for where, planned in self._finished.items()}
        left_out = {names.parse_partition(path.name) for path in self.left_out}
        offsets = {where: offset for where, offset in offsets.items() if where not in left_out}
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
