"""Where a cleaning's result goes: into the directory itself, into a copy (``cleaned_copy``), or nowhere.

A destination names the folder that tasks write to, takes over checked groups in ascending order, and
finishes or gives up a log. In place, groups are swapped in together, or each one fully and synced before the
next, so that a tombstone never goes before the value it hides, and the checkpoint moves last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from siltstone import files
from siltstone.cleaner import resume
from siltstone.cleaner.expiry import Expiry
from siltstone.cleaner.facts import LogState, Planned, staging_folder
from siltstone.cleaner.journal import Journal
from siltstone.cleaner.originals import Originals
from siltstone.cleaner.staging import Rewritten
from siltstone.errors import CheckFailedError
from siltstone.log.overflow import overflowed, split_overflowed
from siltstone.log.own_folders import has_own_folder
from siltstone.log.replacement import adopt, delete_oldest, finish_replacement, replace_segments

_AT_ONCE = 4
"""Swaps that wait for the disk at one time."""
INDEX_SETTINGS = ("index.interval.bytes", "segment.index.bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Bytes that new files may take, and free inodes (None: not counted).

    ``frees_sources``: a swapped group's originals are gone, so that waves need room one after another; only
    then are there waves, and a journal of them.
    """

    size: int
    inodes: int | None
    frees_sources: bool


class Destination(Protocol):
    """What the cleaner asks of the place where results go."""

    @property
    def at_once(self) -> int:
        """So many logs may be taken over at one time, each by a thread."""
        ...

    def tidy(self, state: LogState) -> list[str]:
        """Before planning: finish what an earlier run or broker left; what was done, a line each."""
        ...

    def unfinished(self, state: LogState) -> resume.Unfinished | None:
        """After that: the interrupted run that may be gone on with."""
        ...

    def drop(self, state: LogState) -> None:
        """That run is not gone on with: clear it away."""
        ...

    def staging(self, state: LogState) -> Path | None:
        """The folder for new files, by name; None when nothing is written."""
        ...

    def room(self, state: LogState, allowed: int | None) -> Room:
        """What new files may take; ``allowed`` is ``--max-extra-bytes``."""
        ...

    def reset_checkpoint(self, state: LogState, offset: int) -> None:
        """The checkpoint was outside the log and nothing is cleaned: write it anew."""
        ...

    def prepare(self, planned: Planned) -> None:
        """Make the folder: the log is about to be worked on."""
        ...

    def remember(self, planned: Planned, journal: Journal) -> None:
        """Keep the journal, durably, for a run that has to go on with this one."""
        ...

    @property
    def takes_together(self) -> bool:
        """Is it all groups at hand that are taken over in one go, or one after another?"""
        ...

    @property
    def keeps_accepted(self) -> bool:
        """Do groups that were taken over stay, also when the log is given up after that?"""
        ...

    def accept(self, planned: Planned, groups: Sequence[Rewritten]) -> None:
        """Take over checked groups, in ascending order: all of them, or, where it raises, none."""
        ...

    def finish(self, planned: Planned) -> None:
        """All groups are in: move the checkpoint, clear away."""
        ...

    def expire(self, state: LogState, expiry: Expiry) -> None:
        """The log is cleaned, or needs no cleaning: let go of its expired segments."""
        ...

    def give_up(self, planned: Planned) -> None:
        """The log is not gone on with: clear away what is only staged."""
        ...

    def pause(self, planned: Planned) -> None:
        """The log is interrupted: clear away what is only staged, but for what a run can go on with."""
        ...

    def close(self, states: list[LogState]) -> None:
        """The run is over."""
        ...

    def discard(self) -> None:
        """The run broke off: leave nothing half-done that is ours to clear."""
        ...


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
    found = Swap(staged={}, known={}, old=[])
    for group in groups:
        plan = planned.work.groups[group.group]
        found.staged[plan.base_offset] = {kind: Path(path) for kind, path in group.staged.items()}
        found.known[plan.base_offset] = group.identity
        found.old.extend(each.base_offset for each in planned.work.segments[plan.first : plan.last])
    return found


def cleaned_up_to(planned: Planned) -> int:
    """The cleaner checkpoint afterwards. It does not go back where only the clean part was cleaned again."""
    return max(min(planned.work.end, planned.work.map_end), planned.result.first_dirty_offset or 0)


class Nowhere:
    """A dry run: everything is computed, nothing is written."""

    at_once = 1
    takes_together = True
    keeps_accepted = False

    def tidy(self, state: LogState) -> list[str]:
        """Nothing is finished in a dry run; such a log is reported as skipped."""
        return []

    def unfinished(self, state: LogState) -> resume.Unfinished | None:
        """A dry run plans as if nothing had been begun."""
        return None

    def drop(self, state: LogState) -> None:
        """Nothing to clear away."""

    def staging(self, state: LogState) -> Path | None:
        """No folder."""
        return None

    def room(self, state: LogState, allowed: int | None) -> Room:
        """As much as one likes."""
        return Room(size=1 << 62, inodes=None, frees_sources=False)

    def reset_checkpoint(self, state: LogState, offset: int) -> None:
        """Nothing to write."""

    def prepare(self, planned: Planned) -> None:
        """Nothing to make."""

    def remember(self, planned: Planned, journal: Journal) -> None:
        """Nothing to remember: there is one wave."""

    def accept(self, planned: Planned, groups: Sequence[Rewritten]) -> None:
        """Nothing to take over."""

    def finish(self, planned: Planned) -> None:
        """Nothing to move."""

    def expire(self, state: LogState, expiry: Expiry) -> None:
        """Nothing goes."""

    def give_up(self, planned: Planned) -> None:
        """Nothing to clear away."""

    def pause(self, planned: Planned) -> None:
        """Nothing to clear away."""

    def close(self, states: list[LogState]) -> None:
        """Nothing to close."""

    def discard(self) -> None:
        """Nothing to clear."""


class InPlace:
    """Into the log directory itself, by Kafka's swap."""

    keeps_accepted = True

    def __init__(self, run: str, originals: Originals | None = None) -> None:
        self._run = run
        self._originals = originals
        self._kept_bytes = 0

    @property
    def at_once(self) -> int:
        """Several, unless originals are kept: those go into one manifest."""
        return _AT_ONCE if self._originals is None else 1

    def tidy(self, state: LogState) -> list[str]:
        """Finish an interrupted swap or deletion as a broker would, and drop an earlier run's staged files,
        but for those that can be gone on with."""
        done = finish_replacement(state.path)
        if has_own_folder(state.path):
            done += resume.sweep(state.path, keep=self._originals is None)
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

    def unfinished(self, state: LogState) -> resume.Unfinished | None:
        """The run whose journal is there; with kept originals a log is not gone on with."""
        return None if self._originals is not None else resume.find_unfinished(state.path)[0]

    def drop(self, state: LogState) -> None:
        """Remove its folder."""
        resume.drop(state.path)

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
        """Make the staging folder; that of an interrupted run is there."""
        assert planned.work.staging is not None
        has_own_folder(planned.state.path)
        files.make_directory(planned.work.staging, parents=True)

    def remember(self, planned: Planned, journal: Journal) -> None:
        """Write the journal beside what is staged."""
        assert planned.work.staging is not None
        resume.remember(Path(planned.work.staging), journal)

    @property
    def takes_together(self) -> bool:
        """A swap syncs the directory seven times for two groups, ten times for one after another. Kept
        originals are those of one group each."""
        return self._originals is None

    def accept(self, planned: Planned, groups: Sequence[Rewritten]) -> None:
        """Swap groups in; their originals are kept first where that was asked for."""
        for group in groups:
            check_sizes(group)
            if self._originals is not None:
                self._originals.keep(planned, planned.work.groups[group.group], group.staged["log"])
                self._kept_bytes += group.size
        found = swap_of(planned, groups)
        adopt(planned.state.path, found.staged)
        replace_segments(planned.state.path, list(found.staged), found.old, found.known)

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
        resume.drop(planned.state.path)

    def pause(self, planned: Planned) -> None:
        """Remove all that is staged but a journal and what it names."""
        if has_own_folder(planned.state.path):
            resume.sweep(planned.state.path)

    def close(self, states: list[LogState]) -> None:
        """Nothing is open."""

    def discard(self) -> None:
        """Staged files stay for the next run to remove: a task may still be writing them."""
