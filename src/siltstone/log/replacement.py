"""The swap: replaces the segments of a log by new ones, and finishes a swap that a crash interrupted.

The protocol is Kafka's: ``UnifiedLog.replaceSegments`` swaps, and at startup ``LogLoader`` finishes or drops
an interrupted swap (``removeTempFilesAndCollectSwapFiles``, then ``completeSwapOperations``). A broker that
starts on such a directory does the same as ``finish_replacement``.

``rename_to_cleaned`` and ``replace_segments``::

    1 staged files ── rename ──► BASE.*.cleaned    sync
    2 .cleaned     ── rename ──► BASE.*.swap       descending base offsets, a sync after each
    3 every .swap log is read and its checksums are verified, unless it is the same file (inode, size and
      time) that was already verified when it was staged
    4 originals    ── rename ──► OLD.*.deleted     ascending, each segment's indexes before its log; sync
    5 .swap        ── rename ──► BASE.*            ascending, a sync after each
    6 .deleted     ── unlink                       at once; in an open log later, since its readers may still
                                                   open these files

What a crash leaves, and what startup does with it::

    during 1    only .cleaned                      startup removes them: the log is as before
    during 2    .cleaned below .swap               startup removes both (KAFKA-6264): a .swap is valid only if
                                                   no .cleaned has its base offset or a lower one
    during 3-4  all .swap, some .deleted           startup finishes the swap
    during 5    some .swap, the lower ones renamed startup finishes the swap of the others: the range from the
                                                   lowest .swap to the end of the highest one contains no
                                                   segment that has its final name already
    during 6    only .deleted                      startup unlinks them

To finish a swap, startup removes the segments from the lowest ``.swap``'s base offset to the end of the
highest ``.swap``, and each higher segment of which a file is ``.deleted`` already. Then it renames the
``.swap`` and unlinks the ``.deleted``. A ``.snapshot`` is removed with its segment unless a new segment has
its base offset.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from siltstone.base import files
from siltstone.base.errors import CorruptRecordError
from siltstone.log.directory import refuse_unsafe_files
from siltstone.log.names import (
    CLEANED,
    DELETED,
    SEGMENT_KINDS,
    SNAPSHOT,
    SWAP,
    SegmentFile,
    parse_segment_file,
    segment_file,
)
from siltstone.log.segments import rename_to_deleted, windows

VerifiedLogs = Mapping[int, Sequence[int]]
"""Base offset of a new segment → its log's ``files.FileStat.identity`` when the log was verified. A log
without an entry, or with another identity by now, is verified during the swap."""
NO_VERIFIED_LOGS: VerifiedLogs = {}
_SUFFIXES = (CLEANED, SWAP, DELETED)


def rename_to_cleaned(directory: Path, staged: Mapping[int, Mapping[str, Path]]) -> None:
    """Step 1: rename staged files to ``.cleaned``, durably. ``staged``: base offset → kind of file → path."""
    for base_offset, paths in staged.items():
        for kind, path in paths.items():
            files.rename(path, directory / segment_file(base_offset, kind, CLEANED))
    files.sync_directory(directory)


def replace_segments(
    directory: Path, new: Sequence[int], old: Sequence[int], verified: VerifiedLogs = NO_VERIFIED_LOGS
) -> None:
    """Steps 2 to 6: replace the segments ``old`` by the ``.cleaned`` segments ``new`` (base offsets).

    Raises CorruptRecordError when a new segment fails its verification; no old segment has changed then.
    """
    swap_in(directory, new, old, verified)
    remove_deleted(directory)


def swap_in(
    directory: Path, new: Sequence[int], old: Sequence[int], verified: VerifiedLogs = NO_VERIFIED_LOGS
) -> list[Path]:
    """Steps 2 to 5: replace segments as ``replace_segments`` does, but leave the old files as ``.deleted``.

    Returns the paths of these files. Raises CorruptRecordError, and FileNotFoundError before it changes
    anything if the log of a new segment is not there.
    """
    for base_offset in new:
        files.stat(directory / segment_file(base_offset, "log", CLEANED))
    # Step 0: unlink the ``.deleted`` that an earlier swap left (they wait for ``file.delete.delay.ms``).
    # Startup would take a ``.deleted`` above a ``.swap`` for a segment that the interrupted swap replaces.
    remove_deleted(directory, from_base=min(new))
    # Step 2, descending: after a crash the lowest new segments are still ``.cleaned``, so startup drops the
    # ``.swap`` above them. So either all new segments are swapped in, or none is.
    for base_offset in sorted(new, reverse=True):
        _change_suffix(directory, base_offset, CLEANED, SWAP)
        files.sync_directory(directory)
    # Step 3, which Kafka does not have: here a corrupt new segment can still be dropped.
    try:
        for base_offset in new:
            path = _swap_log(directory, base_offset)
            if tuple(verified.get(base_offset, ())) != files.stat(path).identity:
                _verify_log(path)
    except CorruptRecordError:
        # No original was renamed yet: without the new segments the log is as before.
        for base_offset in new:
            _remove(directory, base_offset, SWAP)
        files.sync_directory(directory)
        raise
    # Steps 4 and 5: all ``.swap`` are durable and valid, so after a crash from here on startup finishes the
    # swap.
    deleted = _mark_deleted(directory, old, keep_snapshots_of=new)
    _remove_swap_suffix(directory, new)
    return deleted


def drop_cleaned(directory: Path, base_offset: int) -> None:
    """Remove the ``.cleaned`` files of a new segment that is not swapped in."""
    _remove(directory, base_offset, CLEANED)


def swap_leftovers(directory: Path, listed: Iterable[str] | None = None) -> list[str]:
    """The names of an interrupted swap's files, in order; empty if only ``.deleted`` are left, since then the
    swap was complete. ``listed``: the names of the directory's files, if they were listed just now."""
    all_names = [entry.name for entry, _ in _files(directory)] if listed is None else listed
    names = sorted([name for name in all_names if name.endswith(_SUFFIXES)])
    parsed = [(name, parse_segment_file(name)) for name in names]
    leftovers = [(name, file.suffix) for name, file in parsed if file is not None and file.suffix]
    return [] if all(suffix == DELETED for _, suffix in leftovers) else [name for name, _ in leftovers]


def removed_at_startup(directory: Path) -> set[str]:
    """The names of files that ``finish_replacement`` only removes: ``.cleaned``, ``.deleted``, and indexes
    and snapshots whose log is ``.deleted``. Empty if there is a ``.swap``: then these files show how far its
    swap had come."""
    parsed = _files(directory)
    if any(name.suffix == SWAP for _, name in parsed):
        return set()
    logs = {name.base_offset for _, name in parsed if name.kind == "log" and not name.suffix}
    orphaned = {name.base_offset for _, name in parsed if name.suffix == DELETED} - logs
    return {entry.name for entry, name in parsed if name.suffix or name.base_offset in orphaned}


def finish_replacement(directory: Path) -> tuple[list[str], list[str]]:
    """Finish or drop an interrupted swap as a broker does at startup.

    Returns (names of the new segments' logs, names of the removed files). Raises CorruptRecordError when a
    ``.swap`` fails its verification and its originals are incomplete, UnsafeFileError.
    """
    refuse_unsafe_files(directory)
    if not any(name.suffix for _, name in _files(directory)):
        return [], []
    # ``removeTempFilesAndCollectSwapFiles``: a ``.swap`` stays only if its swap had reached step 3.
    removed = _remove_cleaned(directory)
    pending = _base_offsets(directory, SWAP)
    # Where only an index is ``.swap``, the segment's log has its final name already (step 5).
    ends = {
        base: _swap_log_end(directory, base) for base in pending if files.exists(_swap_log(directory, base))
    }
    valid = {base: end for base, end in ends.items() if end is not None}
    for base in sorted(ends.keys() - valid.keys()):
        removed += _remove(directory, base, SWAP)
    if valid:
        # Step 4, ``completeSwapOperations``: the new segments replace all segments in their range of
        # offsets. Some may be ``.deleted`` already.
        low, high = min(valid), max(valid.values())
        names = [name for _, name in _files(directory) if name.kind != SNAPSHOT]
        # An original of which the cleaning discarded every record may begin above that range. It is removed
        # too if the crash came between the renames of its files.
        partly_deleted = {
            name.base_offset
            for name in names
            if name.suffix == DELETED
            and name.base_offset > low
            and not _was_deleted_earlier(directory, name.base_offset)
        }
        existing = {name.base_offset for name in names if not name.suffix}
        in_range = {base for base in existing if low <= base < high}
        # ``valid``, too: if the highest new segment is empty, the range ends at its base offset.
        old = sorted(in_range | existing & (partly_deleted | valid.keys()))
        _mark_deleted(directory, old, keep_snapshots_of=tuple(valid), replaced=tuple(valid))
    # Steps 5 and 6.
    _remove_swap_suffix(directory, pending)
    _unlink_orphans(directory)
    return [segment_file(base, "log") for base in valid], removed + remove_deleted(directory)


def _was_deleted_earlier(directory: Path, base_offset: int) -> bool:
    """Are the ``.deleted`` files with this base offset those of an earlier segment, which an earlier swap
    replaced?

    They are if a log exists with and without the suffix: one segment has only one log. A broker's
    ``.deleted`` files wait for ``file.delete.delay.ms``, and longer if the broker was killed.
    """
    names = (segment_file(base_offset, "log", suffix) for suffix in ("", DELETED))
    return all(files.exists(directory / name) for name in names)


def delete_oldest(directory: Path, bases: Sequence[int]) -> None:
    """Remove the log's oldest segments (base offsets ``bases``) with their snapshots (``deleteOldSegments``).

    Each segment is durably ``.deleted`` before the next one is renamed. So a crash removes only a prefix of
    them, and never a tombstone before an older value of its key. All are unlinked at the end.
    """
    for base_offset in sorted(bases):
        rename_to_deleted(directory, base_offset)
        files.sync_directory(directory)
    remove_deleted(directory)


def remove_deleted(directory: Path, from_base: int = 0) -> list[str]:
    """Unlink, durably, the ``.deleted`` files of segments from base offset ``from_base`` on.

    Returns their names.
    """
    deleted = [(entry, name) for entry, name in _files(directory) if name.suffix == DELETED]
    names = [entry.name for entry, name in deleted if name.base_offset >= from_base]
    for name in names:
        # In an open log, the thread that unlinks them after ``file.delete.delay.ms`` may come first.
        with contextlib.suppress(FileNotFoundError):
            files.unlink(directory / name)
    if names:
        files.sync_directory(directory)
    return names


def _files(directory: Path) -> list[tuple[files.Entry, SegmentFile]]:
    """The files of segments, each with the parts of its name."""
    parsed = ((entry, parse_segment_file(entry.name)) for entry in files.entries(directory) if entry.is_file)
    return [(entry, name) for entry, name in parsed if name is not None]


def _base_offsets(directory: Path, suffix: str) -> list[int]:
    """The distinct base offsets of the files with ``suffix``, ascending."""
    return sorted({name.base_offset for _, name in _files(directory) if name.suffix == suffix})


def _swap_log(directory: Path, base_offset: int) -> Path:
    return directory / segment_file(base_offset, "log", SWAP)


def _change_suffix(directory: Path, base_offset: int, before: str, after: str) -> None:
    for kind in SEGMENT_KINDS:
        source = directory / segment_file(base_offset, kind, before)
        if files.exists(source):
            files.rename(source, directory / segment_file(base_offset, kind, after))


def _mark_deleted(
    directory: Path, old: Sequence[int], *, keep_snapshots_of: Sequence[int], replaced: Sequence[int] = ()
) -> list[Path]:
    """Step 4: rename old segments to ``.deleted``, each log after its indexes, so that no log ever stands
    beside the indexes of another segment.

    ``keep_snapshots_of``: base offsets whose producer snapshot stays, since a new segment has them.
    ``replaced``: base offsets of new segments, when a swap is finished after a crash. The crash may have come
    after an original log was renamed. Then an index of that base offset that has no ``.swap`` beside it is
    the new segment's, and it stays. Returns the new paths.
    """
    deleted = []
    for base_offset in sorted(old):
        is_original_log_gone = base_offset in replaced and not files.exists(
            directory / segment_file(base_offset, "log")
        )
        for kind in (*reversed(SEGMENT_KINDS), SNAPSHOT):
            path = directory / segment_file(base_offset, kind)
            if kind == SNAPSHOT:
                is_kept = base_offset in keep_snapshots_of
            else:
                is_kept = is_original_log_gone and not files.exists(
                    directory / segment_file(base_offset, kind, SWAP)
                )
            if files.exists(path) and not is_kept:
                deleted.append(directory / segment_file(base_offset, kind, DELETED))
                files.rename(path, deleted[-1])
    files.sync_directory(directory)
    return deleted


def _unlink_orphans(directory: Path) -> None:
    """Unlink the indexes and the snapshot that are left of a segment whose log is ``.deleted``."""
    for base in _base_offsets(directory, DELETED):
        if not files.exists(directory / segment_file(base, "log")):
            _remove(directory, base, "")


def _remove_swap_suffix(directory: Path, new: Sequence[int]) -> None:
    """Step 5, ascending: after a crash startup replaces what lies between the ``.swap`` that are left, and no
    segment that has its final name lies there."""
    for base_offset in sorted(new):
        _change_suffix(directory, base_offset, SWAP, "")
        files.sync_directory(directory)


def _verify_log(path: Path) -> int:
    """Read a whole log file and verify its checksums; returns the offset after its last batch, -1 if empty.

    Raises CorruptRecordError.
    """
    end = -1
    with files.Reader(path) as reader:
        for window in windows(reader):
            end = int(window.batches["last_offset"][-1]) + 1
    return end


def _swap_log_end(directory: Path, base_offset: int) -> int | None:
    """The offset after the last batch of a ``.swap``. None for a corrupt one whose originals all exist: that
    swap can be dropped. Raises CorruptRecordError for any other corrupt one."""
    try:
        return max(_verify_log(_swap_log(directory, base_offset)), base_offset)
    except CorruptRecordError:
        any_deleted = any(base >= base_offset for base in _base_offsets(directory, DELETED))
        if any_deleted or not files.exists(directory / segment_file(base_offset, "log")):
            raise
        return None


def _remove(directory: Path, base_offset: int, suffix: str) -> list[str]:
    """Unlink a segment's files that have ``suffix``; returns their names."""
    paths = [directory / segment_file(base_offset, kind, suffix) for kind in (*SEGMENT_KINDS, SNAPSHOT)]
    existing = [path for path in paths if files.exists(path)]
    for path in existing:
        files.unlink(path)
    return [path.name for path in existing]


def _remove_cleaned(directory: Path) -> list[str]:
    """Remove all ``.cleaned``, and the ``.swap`` at or above the lowest of them (KAFKA-6264): their swap had
    not reached step 3. Returns the names."""
    cleaned = _base_offsets(directory, CLEANED)
    if not cleaned:
        return []
    removed = []
    for base in _base_offsets(directory, SWAP):
        if base >= cleaned[0]:
            removed += _remove(directory, base, SWAP)
    for base in cleaned:
        removed += _remove(directory, base, CLEANED)
    files.sync_directory(directory)
    return removed
