"""The journal's file and its run's folder: written, found again, swept. Pure is ``cleaner.journal``.

::

    topic-N/.siltstone/RUN/journal.json     kept between runs
                           *.winners        those that the journal names are kept
                           *                everything else is an attempt's, and goes

A journal that is of no use is never an error: it is dropped, and the run begins anew.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from siltstone import files
from siltstone.cleaner.journal import Checked, Journal, decode, encode
from siltstone.cleaner.staging import Rewritten
from siltstone.cleaner.winners import is_sound
from siltstone.log.names import STAGING
from siltstone.log.own_folders import has_own_folder

JOURNAL = "journal.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """An interrupted run that may be gone on with: its folder, named after it, and its journal."""

    folder: Path
    journal: Journal

    @property
    def run(self) -> str:
        """The run's name."""
        return self.folder.name

    def damaged_winners(self, done: int) -> str | None:
        """The first damaged file of winners, of those that are needed when ``done`` groups are done."""
        for file in self.journal.winners[done:]:
            if not is_sound(self.folder, file):
                return file.name
        return None


def remember(folder: Path, journal: Journal) -> None:
    """Put the journal into the run's folder, durably, and first of all what it names. Raises OSError."""
    if not files.exists(folder / JOURNAL):
        for each in (folder.parent.parent, folder.parent, folder):
            files.sync_directory(each)
    files.replace(folder / JOURNAL, encode(journal))


def checked_group(group: Rewritten) -> Checked:
    """A staged group as the journal remembers it. Raises OSError."""
    found = files.stat(group.staged["log"])
    return Checked(rewritten=group, inode=found.inode, modified_ns=found.modified_ns)


def find_unfinished(partition: Path) -> tuple[Unfinished | None, list[str]]:
    """The newest run with a journal that makes sense; and why others are not gone on with, a line each."""
    refused: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        for entry in reversed(files.entries(partition / STAGING)):
            folder = partition / STAGING / entry.name
            if not entry.is_directory or not files.exists(folder / JOURNAL):
                continue
            try:
                journal = decode(files.read_bytes(folder / JOURNAL), partition, folder)
                return Unfinished(folder=folder, journal=journal), refused
            except OSError as error:
                refused.append(not_gone_on_with(entry.name, f"its journal cannot be read ({error.strerror})"))
            except ValueError as error:
                refused.append(not_gone_on_with(entry.name, str(error)))
    return None, refused


def not_gone_on_with(run: str, reason: str) -> str:
    """A note for the log's result."""
    return f"did not go on with run {run}: {reason}"


def sweep(partition: Path, *, keep: bool = True) -> list[str]:
    """Remove what earlier runs staged, but for the journal that may be gone on with and its winners.

    Without ``keep`` they go too. Returns what was done, a line each. Raises DirectoryRefusedError where the
    folder is none of ours, OSError.
    """
    if not has_own_folder(partition):
        return []
    unfinished, notes = find_unfinished(partition)
    if unfinished is not None and not keep:
        notes = [not_gone_on_with(unfinished.run, "with --keep-originals a log is cleaned anew")]
    if unfinished is None or not keep:
        drop(partition)
        return [*notes, f"removed staged files of an earlier run ({STAGING})"]
    wanted = {JOURNAL, *(file.name for file in unfinished.journal.winners)}
    for entry in files.entries(partition / STAGING):
        if entry.name != unfinished.run:
            _remove(partition / STAGING / entry.name, entry)
    for entry in files.entries(unfinished.folder):
        if entry.name not in wanted:
            _remove(unfinished.folder / entry.name, entry)
    return notes


def _remove(path: Path, entry: files.Entry) -> None:
    if entry.is_directory:
        files.remove_tree(path)
    else:
        files.unlink(path)


def drop(partition: Path) -> None:
    """Remove everything that is staged, durably, journal and all. Raises DirectoryRefusedError where the
    folder is none of ours, OSError."""
    if has_own_folder(partition):
        files.remove_tree(partition / STAGING)
        files.sync_directory(partition)
