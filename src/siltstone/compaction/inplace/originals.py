"""``clean --keep-originals`` and ``undo``: a run keeps hard links to the files that it removes, and ``undo``
restores them.

::

    KEEP/RUN/topic-N/undo.json                     what is swapped or deleted, and a checksum; written before
    KEEP/RUN/topic-N/00000000000000000127.log …    a hard link to each file that the run removes

``undo`` first resets the cleaner checkpoint. Then it swaps the originals in again, the group with the highest
offsets first. A segment that retention deleted comes back as it was before the run. ``undo`` refuses a log
that was appended to, cleaned or truncated since the run: its active segment and all its cleaned segments must
be as the run left them.

All logs are checked before the first one is changed: they are as the run left them, the kept files are
complete, and there is space. If the disk fails after that, the error says what was restored and what was not.
Every log is consistent then, and ``undo`` can be run again. Where a later run has cleaned a log again, the
refusal names it: runs are undone from the newest to the oldest.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from crc32c import crc32c

from siltstone.base import files
from siltstone.base.clock import time_text
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import DirectoryRefusedError, SiltstoneError, UndoStoppedError, UsageError
from siltstone.base.interruption import CriticalSection
from siltstone.compaction.report import CLEANED as CLEANED_STATUS
from siltstone.compaction.report import failure_of, read_cleanings
from siltstone.compaction.work import Group
from siltstone.log.directory import LogDirectory
from siltstone.log.names import (
    CLEANED,
    SEGMENT_KINDS,
    SNAPSHOT,
    TopicPartition,
    parse_partition,
    parse_segment_file,
    segment_file,
)
from siltstone.log.replacement import finish_replacement, replace_segments, swap_leftovers
from siltstone.log.segments import list_segments, windows

if TYPE_CHECKING:
    from siltstone.compaction.inplace.planning import LogState, PlannedLog

UNDO_FILE = "undo.json"
MIN_FREE_BYTES = 1 << 20
"""The space that must be free for links and the checkpoint."""
RUNS_NAMED = 4
"""How many runs an error names."""
_NOTHING_CHANGED = "nothing was changed"
_CANNOT_BE_UNDONE = "this run cannot be undone any more"
_RESTORE_ADVICE = "restore the file in the run's folder from a backup"


@dataclass(slots=True, kw_only=True)
class KeptGroup:
    """One swap, an entry of ``undo.json``: base offset and size of the new segment, base offsets
    (``originals``) and file names of the segments that it replaced.

    ``expired``: retention deleted the segment after that. (A segment that expired without a cleaning has an
    entry with itself as the original.) ``sizes``: of the files, in bytes. ``checksums``: CRC32C of the files
    other than logs, whose batches have checksums of their own. Both are empty in folders of older versions.
    """

    base_offset: int
    size: int
    originals: list[int]
    names: list[str]
    expired: bool = False
    sizes: dict[str, int] = field(default_factory=dict)
    checksums: dict[str, int] = field(default_factory=dict)


@decoded_in_threads
@dataclass(slots=True, kw_only=True)
class KeptLog:
    """``undo.json`` of one log: the partition's directory, the log's cleaner checkpoint before the run (None
    without one), base offset and size of its active segment, and its swaps."""

    path: str
    checkpoint: int | None
    active_base: int
    active_size: int
    groups: list[KeptGroup] = field(default_factory=list)

    @property
    def topic_partition(self) -> TopicPartition:
        """The log's topic and partition, by the name of its directory."""
        topic_partition = parse_partition(Path(self.path).name)
        assert topic_partition is not None
        return topic_partition


class Originals:
    """Keeps the originals of a run in ``folder`` (KEEP/RUN)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._logs: dict[str, KeptLog] = {}

    def keep(self, planned: PlannedLog, group: Group, new_log: str) -> None:
        """Keep a group's files before its swap, durably.

        They are kept as hard links. If ``new_log`` is itself a link to an old log (a cleaning that retains
        all records makes one), that file is copied: a later truncation of the log would cut the kept file as
        well.
        """
        log, new = self._kept_log(planned.state), files.stat(new_log)
        sources = [segment.base_offset for segment in planned.work.sources(group)]
        log.groups.append(self._keep_files(planned.state, group.base_offset, new.size, sources, new.inode))
        self._write_undo_file(planned.state, log)

    def keep_expired(self, state: LogState, bases: Sequence[int]) -> None:
        """Keep the segments with base offsets ``bases`` before retention deletes them, durably. Those that
        this run wrote are not kept: ``keep`` has kept their originals."""
        log = self._kept_log(state)
        kept = {group.base_offset: group for group in log.groups}
        for base in bases:
            if base not in kept:
                size = files.stat(state.path / segment_file(base, "log")).size
                kept[base] = self._keep_files(state, base, size, [base])
                log.groups.append(kept[base])
            kept[base].expired = True
        self._write_undo_file(state, log)

    def _keep_files(
        self, state: LogState, base: int, size: int, originals: list[int], copied_inode: int | None = None
    ) -> KeptGroup:
        """Keep all files of the segments with base offsets ``originals``: as links, but the file with the
        inode ``copied_inode`` as a copy (see ``keep``). ``base`` and ``size``: of the segment that replaces
        them."""
        folder = self.folder / str(state.topic_partition)
        names = [segment_file(base, kind) for base in originals for kind in (*SEGMENT_KINDS, SNAPSHOT)]
        names = [name for name in names if files.exists(state.path / name)]
        for name in names:
            path = state.path / name
            (files.copy if files.stat(path).inode == copied_inode else files.link)(path, folder / name)
        return KeptGroup(
            base_offset=base,
            size=size,
            originals=originals,
            names=names,
            sizes={name: files.stat(folder / name).size for name in names},
            checksums={name: crc32c(files.read_bytes(folder / name)) for name in names if not _is_log(name)},
        )

    def _kept_log(self, state: LogState) -> KeptLog:
        """The kept originals of a log. The first call for a log stores its checkpoint, before the run moves
        it."""
        if str(state.topic_partition) not in self._logs:
            active = state.segments()[-1]
            files.make_directory(self.folder / str(state.topic_partition), parents=True)
            self._logs[str(state.topic_partition)] = KeptLog(
                path=str(state.path),
                checkpoint=state.directory.checkpoints().cleaner.get(state.topic_partition),
                active_base=active.base_offset,
                active_size=active.size,
            )
        return self._logs[str(state.topic_partition)]

    def _write_undo_file(self, state: LogState, log: KeptLog) -> None:
        """Write ``undo.json`` of a log, durably with its folder and that of the run."""
        # ``json`` escapes a path that is not UTF-8, which msgspec would not encode.
        undo_file = self.folder / str(state.topic_partition) / UNDO_FILE
        document = msgspec.to_builtins(log)
        document["crc32c"] = _checksum(document)
        files.replace(undo_file, json.dumps(document, indent=1).encode())
        for folder in (self.folder, self.folder.parent):
            files.sync_directory(folder)


def refuse_other_file_system(folder: Path, partition: Path) -> None:
    """Raises UsageError unless both are on one file system, which hard links need."""
    if files.stat(folder).device != files.stat(partition).device:
        raise UsageError(
            f"the folder is not on the file system of {partition}, so no hard link can be made",
            path=folder,
            advice="pass --keep-originals with a folder on that file system",
        )


def read_run(folder: Path) -> list[tuple[Path, KeptLog]]:
    """The logs that a run kept, with their folders. Raises UsageError if there is no run."""
    logs = [(path, _read_undo_file(path / UNDO_FILE)) for path in _kept_folders(folder)]
    if not logs:
        advice = "pass the path KEEP/RUN that clean --keep-originals printed"
        runs = _runs_in(folder)
        if runs:
            more = f" or one of {len(runs) - RUNS_NAMED} others" if len(runs) > RUNS_NAMED else ""
            advice = f"pass one of its runs, the newest first: {', '.join(map(str, runs[:RUNS_NAMED]))}{more}"
        elif files.exists(folder / UNDO_FILE):
            advice = f"pass the run's folder, {folder.absolute().parent}, and --topic for a part of it"
        raise UsageError("no run kept its originals here", path=folder, advice=advice)
    return logs


def _kept_folders(folder: Path) -> list[Path]:
    """The folders of the logs that a run kept in ``folder``, in order; none where it cannot be read."""
    with contextlib.suppress(OSError):
        paths = [folder / entry.name for entry in files.entries(folder) if entry.is_directory]
        return [path for path in paths if files.exists(path / UNDO_FILE)]
    return []


def _runs_in(folder: Path) -> list[Path]:
    """The runs below ``folder`` (KEEP), the newest first: their names begin with their times."""
    with contextlib.suppress(OSError):
        paths = [folder / entry.name for entry in files.entries(folder) if entry.is_directory]
        return sorted(filter(_kept_folders, paths), reverse=True)
    return []


def kept_folders_of(keep: Path, topic: str) -> list[Path]:
    """The folders KEEP/RUN/topic-N of a topic in ``keep``, of all runs; none where it cannot be read."""
    folders = itertools.chain.from_iterable(map(_kept_folders, _runs_in(keep)))
    return [path for path in folders if (name := parse_partition(path.name)) and name.topic == topic]


def _read_undo_file(path: Path) -> KeptLog:
    """Read an ``undo.json``. Raises DirectoryRefusedError for what ``Originals`` does not write, OSError. A
    file of an older version has no checksum."""
    try:
        document = json.loads(files.read_bytes(path))
        log = msgspec.convert(document, KeptLog)
        checksum = document.pop("crc32c", None)
        os.fsencode(log.path)  # raises UnicodeEncodeError, a ValueError, for what is no path
        is_valid = Path(log.path).is_absolute() and "\0" not in log.path
        is_valid = is_valid and Path(log.path).name == path.parent.name
        is_valid = is_valid and parse_partition(path.parent.name) is not None
        is_valid = is_valid and all(map(_has_files_of_originals, log.groups))
        is_valid = is_valid and checksum in (None, _checksum(document))
    except (ValueError, RecursionError):
        is_valid = False
    if not is_valid:
        reason = f"not what clean --keep-originals writes; {_NOTHING_CHANGED}"
        raise DirectoryRefusedError(reason, path=path, advice=_RESTORE_ADVICE) from None
    return log


def _checksum(document: dict[str, object]) -> int:
    """CRC32C of the fields of ``undo.json`` but for the path, which may be another one after a move."""
    return crc32c(json.dumps({key: value for key, value in document.items() if key != "path"}).encode())


def _has_files_of_originals(group: KeptGroup) -> bool:
    """Are a group's files those of its originals, each file once, and a log of each original? The swap of an
    undo takes its segments from ``originals``; it would leave out a segment that only ``names`` has."""
    logs = [segment_file(base, "log") for base in group.originals]
    return (
        group.originals[:1] == [group.base_offset]
        and all(map(_is_kept_name, group.names))
        and len(set(group.names)) == len(group.names)
        and [name for name in group.names if _is_log(name)] == logs
    )


def _is_kept_name(name: str) -> bool:
    """Is it the name of a file of a segment? ``undo.json`` must not lead to any other file."""
    parsed = parse_segment_file(name)
    return parsed is not None and not parsed.suffix


def _is_log(name: str) -> bool:
    return name.endswith(".log")


@dataclass(slots=True, kw_only=True)
class LogUndo:
    """The undo of one log, which was checked. ``pending``: the groups to restore, the highest offsets first.
    ``verified``: by base offset, the identity that a kept ``.log`` file had when it was read
    (``files.FileStat.identity``). ``restored``: names of the ``.log`` files that were restored so far.
    ``folder``: where the kept files are."""

    folder: Path
    log: KeptLog
    pending: list[KeptGroup]
    verified: dict[int, Sequence[int]]
    restored: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """The partition's directory."""
        return Path(self.log.path)

    def restore(self, directory: LogDirectory) -> list[str]:
        """Restore the originals; returns the names of the ``.log`` files. Raises SiltstoneError, OSError.

        ``directory`` is locked by the caller.
        """
        if self.pending:
            # The checkpoint moves back first. If a crash came after a group was restored and before that, the
            # restored records would count as clean, and would never be cleaned.
            directory.write_cleaner_checkpoint(self.log.topic_partition, self.log.checkpoint)
        for group in self.pending:
            self._restore_group(group)
            self.restored += [segment_file(base, "log") for base in group.originals]
        return sorted(self.restored)

    def _restore_group(self, group: KeptGroup) -> None:
        """Link the kept files as ``.cleaned``, and swap them in for the group's new segment."""
        for name in group.names:
            target = self.path / name
            if name.endswith("." + SNAPSHOT):
                if not files.exists(target):
                    files.link(self.folder / name, target)
            else:
                files.link(self.folder / name, self.path / (name + CLEANED))
        files.sync_directory(self.path)
        replace_segments(self.path, group.originals, [group.base_offset], self.verified)

    @property
    def originals(self) -> list[str]:
        """The names of the ``.log`` files to restore."""
        return sorted(segment_file(base, "log") for group in self.pending for base in group.originals)

    @property
    def progress(self) -> str:
        """How much was restored so far, as text for an error."""
        return f"{self.path} ({len(self.restored)} of {len(self.originals)} segments)"


def check_log(folder: Path, log: KeptLog) -> LogUndo:
    """Check a log that has no interrupted swap, and the files that were kept of it: can it be undone? Changes
    nothing.

    Raises DirectoryRefusedError if the log is not as the run left it, the kept files are damaged, or there is
    no space; CorruptRecordError for a damaged kept log, OSError.
    """
    partition = Path(log.path)
    refuse_changed(folder, log)
    sizes = {segment.base_offset: segment.size for segment in list_segments(partition)}
    _refuse_incomplete(folder, log.groups)
    pending = [group for group in log.groups if not _is_in_place(folder, partition, group)]
    for group in pending:
        size = sizes.get(group.base_offset)
        is_deleted_by_retention = size is None and group.expired
        if size != group.size and not is_deleted_by_retention:
            later_run, explanation = _later_cleaning(folder, log)
            undo_first = f"undo the later run first: siltstone undo {later_run}"
            raise DirectoryRefusedError(
                f"the segment is not what the run left{explanation}",
                path=partition / segment_file(group.base_offset, "log"),
                advice=undo_first if later_run else _CANNOT_BE_UNDONE,
            )
    verified = {base: identity for group in pending for base, identity in _verify_files(folder, group)}
    if pending:
        _refuse_little_space(folder, partition)
    pending.sort(key=lambda group: -group.base_offset)
    return LogUndo(folder=folder, log=log, pending=pending, verified=verified)


def refuse_changed(folder: Path, log: KeptLog) -> None:
    """Raises DirectoryRefusedError unless the log is as the run left it."""
    if not files.is_directory(log.path, follow=False):
        raise DirectoryRefusedError("the log is not there any more", path=log.path, advice=_CANNOT_BE_UNDONE)
    segments = list_segments(Path(log.path), require_owner=True)
    if not segments or (segments[-1].base_offset, segments[-1].size) != (log.active_base, log.active_size):
        later_run, explanation = _later_cleaning(folder, log)
        reason = f"the log was appended to, rolled or truncated since the run{explanation}"
        advice = f"{_CANNOT_BE_UNDONE}; the later run is {later_run}" if later_run else _CANNOT_BE_UNDONE
        raise DirectoryRefusedError(reason, path=log.path, advice=advice)


def _later_cleaning(folder: Path, log: KeptLog) -> tuple[Path | None, str]:
    """Which cleaning has changed the log since the run that kept ``folder`` (KEEP/RUN/topic-N).

    Returns the folder KEEP/RUN of the newest later run that was not undone, None if no such run kept the
    log's files; and words for an error, empty if no later cleaning is known. A later run that kept nothing is
    in the history of the log directory.
    """
    kept_ns = files.stat(folder / UNDO_FILE).modified_ns
    later = []
    for entry in files.entries(folder.parent.parent):
        other = folder.parent.parent / entry.name / folder.name
        with contextlib.suppress(SiltstoneError, OSError):
            kept, time_ns = _read_undo_file(other / UNDO_FILE), files.stat(other / UNDO_FILE).modified_ns
            is_undone = all(_is_in_place(other, Path(log.path), group) for group in kept.groups)
            if kept.path == log.path and time_ns > kept_ns and not is_undone:
                later.append((time_ns, other.parent))
    if later:
        return max(later)[1], ", and a later run has cleaned it"
    with contextlib.suppress(OSError):
        for cleaning in reversed(read_cleanings(Path(log.path).parent)):
            is_later = cleaning.began_ms * 1_000_000 > kept_ns and cleaning.result.status == CLEANED_STATUS
            if is_later and cleaning.result.topic_partition == log.topic_partition:
                return None, f", and it was cleaned again at {time_text(cleaning.began_ms)}"
    return None, ""


def _refuse_incomplete(folder: Path, groups: Sequence[KeptGroup]) -> None:
    """Raises DirectoryRefusedError unless all kept files are there with their sizes."""
    existing = files.list_files(folder)
    for group in groups:
        for name in group.names:
            if name not in existing:
                raise DirectoryRefusedError(
                    "the kept file is missing", path=folder / name, advice=_RESTORE_ADVICE
                )
            size = existing[name].size
            if size != group.sizes.get(name, size):
                reason = f"the kept file has {size} bytes, but {group.sizes[name]} were kept"
                raise DirectoryRefusedError(reason, path=folder / name, advice=_RESTORE_ADVICE)


def _verify_files(folder: Path, group: KeptGroup) -> Iterator[tuple[int, Sequence[int]]]:
    """Read the kept files of a group; yields base offset and identity of each log.

    Raises DirectoryRefusedError for a file with another checksum, CorruptRecordError, OSError.
    """
    for name in group.names:
        path = folder / name
        if _is_log(name):
            with files.Reader(path) as reader:
                for _ in windows(reader):
                    pass
                yield int(Path(name).stem), reader.stat.identity
        elif name in group.checksums and crc32c(files.read_bytes(path)) != group.checksums[name]:
            raise DirectoryRefusedError("the file is not what was kept", path=path, advice=_RESTORE_ADVICE)


def _refuse_little_space(folder: Path, partition: Path) -> None:
    """Raises DirectoryRefusedError where no link to the kept files can be made."""
    if files.stat(folder).device != files.stat(partition).device:
        reason = f"the folder is not on the file system of {partition} any more, so no hard link can be made"
        raise DirectoryRefusedError(reason, path=folder, advice="move the run's folder there")
    space = files.free_space(partition)
    if space.free_bytes < MIN_FREE_BYTES:
        reason = f"only {space.free_bytes} bytes are free on its file system"
        raise DirectoryRefusedError(reason, path=partition, advice=f"free {MIN_FREE_BYTES} bytes")
    if space.free_inodes == 0:
        reason = "no inode is free on its file system"
        raise DirectoryRefusedError(reason, path=partition, advice="remove files")


def undo_logs(
    kept: Sequence[tuple[Path, KeptLog]],
    directories: Mapping[Path, LogDirectory],
    critical: CriticalSection,
    *,
    dry_run: bool = False,
) -> dict[str, list[str]]:
    """Check all logs, then restore each: {partition directory: restored files}.

    ``directories``: of the logs, locked. ``critical`` defers an interrupt. A swap that a crash interrupted is
    finished as a broker's start does, after the other logs were checked; a dry run, which changes nothing,
    refuses it. Raises DirectoryRefusedError if nothing was restored, UndoStoppedError if a part was.
    """
    finished: list[str] = []
    try:
        for folder, log in kept:
            refuse_changed(folder, log)
        interrupted = {log.path for _, log in kept if swap_leftovers(Path(log.path))}
        if dry_run and interrupted:
            reason = "a crash interrupted a swap, which undo finishes first"
            advice = "run it without --dry-run; it still checks all logs before it restores one"
            raise DirectoryRefusedError(reason, path=min(interrupted), advice=advice)
        undos = {log.path: check_log(folder, log) for folder, log in kept if log.path not in interrupted}
        for folder, log in kept:
            if log.path in interrupted:
                with critical():
                    finish_replacement(Path(log.path))
                finished.append(log.path)
                undos[log.path] = check_log(folder, log)
    except (SiltstoneError, OSError) as error:
        raise _error_before_restoring(error, finished) from error
    if dry_run:
        return {log.path: undos[log.path].originals for _, log in kept}
    restored: dict[str, list[str]] = {}
    for _, log in kept:
        try:
            with critical():
                finish_replacement(Path(log.path))  # unlinks what an earlier swap has left
                restored[log.path] = undos[log.path].restore(directories[Path(log.path).parent])
        except (SiltstoneError, OSError) as error:
            raise _error_while_restoring(error, [undos[other.path] for _, other in kept], log.path) from error
    return restored


def _error_before_restoring(error: SiltstoneError | OSError, finished: Sequence[str]) -> SiltstoneError:
    """The error of an undo that restored nothing; it says what was changed: nothing, or only swaps that had
    been interrupted were finished."""
    changed = _NOTHING_CHANGED
    if finished:
        changed = "nothing was restored, but an interrupted swap was finished, as by a broker's start: "
        changed += ", ".join(finished)
    if isinstance(error, OSError):
        reason, advice = (
            f"{error.strerror or error}; {changed}",
            "remove the cause, and run the command again",
        )
        return DirectoryRefusedError(reason, path=error.filename, advice=advice)
    kind = type(error) if isinstance(error, DirectoryRefusedError) else DirectoryRefusedError
    reason = f"{error.reason}; {changed}"
    return kind(reason, path=error.path, position=error.position, advice=error.advice or _RESTORE_ADVICE)


def _error_while_restoring(error: Exception, undos: Sequence[LogUndo], path: str) -> SiltstoneError:
    """The error of an undo that stopped at the log ``path``; it says what was restored and what was not."""
    stopped_number = next(number for number, undo in enumerate(undos) if undo.log.path == path)
    parts = [
        failure_of(error).reason,
        f"stopped at {undos[stopped_number].progress}",
        f"restored: {', '.join(undo.progress for undo in undos[:stopped_number]) or 'no other log'}",
        f"not begun: {', '.join(undo.log.path for undo in undos[stopped_number + 1 :]) or 'no other log'}",
    ]
    advice = "no log is damaged, run the command again to go on"
    return UndoStoppedError("; ".join(parts), path=path, advice=advice)


def _is_in_place(folder: Path, partition: Path, group: KeptGroup) -> bool:
    """Are the originals in the partition, since the swap did not happen or was undone?

    Where a segment kept all its records, its new ``.log`` is a hard link to the original; then its indexes,
    which a cleaning always writes anew, show whether the swap happened.
    """
    log = segment_file(group.originals[0], "log")
    if not _is_same_file(folder / log, partition / log):
        return False
    if group.originals != [group.base_offset] or files.stat(folder / log).size != group.size:
        return True
    indexes = [name for name in group.names if name != log and not name.endswith("." + SNAPSHOT)]
    return all(_is_same_file(folder / name, partition / name) for name in indexes)


def _is_same_file(kept: Path, present: Path) -> bool:
    return files.exists(present) and files.stat(present).inode == files.stat(kept).inode
