"""Swapping new segments in for old ones, and finishing what a crash interrupted.

The protocol is Kafka's (``LocalLog.replaceSegments``, ``LogLoader``), so that a broker that starts on an
interrupted directory finishes or drops the swap as we would::

    staged files ── rename ──► BASE.*.cleaned      sync; until here a start drops them
    .cleaned     ── rename ──► BASE.*.swap         descending bases, each synced before the next: a start
                                                   finishes only what has no ``.cleaned`` above it
    (each .swap log's checksums are read back before any original goes, unless it is
     known to be the very file that was read back when it was written)
    originals    ── rename ──► OLD.*.deleted       ascending, each log after its indexes; sync
    .swap        ── rename ──► BASE.*              ascending, each synced before the next: a start takes what
                                                   lies between two ``.swap`` for something to be replaced
    .deleted     ── unlink: at once, or later where the log is open and somebody may still want them

On start: any ``.cleaned`` goes, and with it every ``.swap`` at or above the lowest ``.cleaned``; the
``.swap`` that are left are finished, the segments in their range going, and one above that was being
retired; ``.deleted`` are unlinked.
A ``.snapshot`` goes with its segment unless a new segment has its base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from siltstone.log.segments import windows

Known = Mapping[int, Sequence[int]]
"""Identities (``files.FileStat.identity``) of new logs that were read back already, by base offset."""
NOTHING_KNOWN: Known = {}


def adopt(directory: Path, staged: Mapping[int, Mapping[str, Path]]) -> None:
    """Rename staged files (by base offset and kind) to ``.cleaned``; the directory is synced."""
    for base_offset, kinds in staged.items():
        for kind, path in kinds.items():
            files.rename(path, directory / segment_file(base_offset, kind, CLEANED))
    files.sync_directory(directory)


def replace_segments(
    directory: Path, new: Sequence[int], old: Sequence[int], known: Known = NOTHING_KNOWN
) -> None:
    """Swap the ``.cleaned`` segments with base offsets ``new`` in for the segments ``old``.

    Raises CorruptRecordError when a new segment does not read back; nothing old is gone then.
    """
    swap_in(directory, new, old, known)
    remove_deleted(directory)


def swap_in(
    directory: Path, new: Sequence[int], old: Sequence[int], known: Known = NOTHING_KNOWN
) -> list[Path]:
    """The same, but what was old stays as ``.deleted``: these files.

    What an earlier swap left so at or above the first new segment goes before: a start takes a ``.deleted``
    beside a ``.swap`` for one of the segments that the swap replaces.
    """
    remove_deleted(directory, from_base=min(new))
    for base_offset in sorted(new, reverse=True):
        _change_suffix(directory, base_offset, CLEANED, SWAP)
        files.sync_directory(directory)
    try:
        for base_offset in new:
            path = _swap_log(directory, base_offset)
            if tuple(known.get(base_offset, ())) != files.stat(path).identity:
                _check(path)
    except CorruptRecordError:
        for base_offset in new:
            _remove(directory, base_offset, SWAP)
        files.sync_directory(directory)
        raise
    retired = _retire(directory, old, keep_snapshots_of=new)
    _promote(directory, new)
    return retired


def drop_cleaned(directory: Path, base_offset: int) -> None:
    """Remove the ``.cleaned`` files of a new segment that is not swapped in after all."""
    _remove(directory, base_offset, CLEANED)


def interrupted(directory: Path) -> list[str]:
    """Names of files that an interrupted swap left, in order; ``.deleted`` alone only wait to be unlinked."""
    left = [(entry.name, name.suffix) for entry, name in _files(directory) if name.suffix]
    return [] if all(suffix == DELETED for _, suffix in left) else [name for name, _ in left]


def finish_replacement(directory: Path) -> list[str]:
    """Do what a broker does at start with an interrupted swap; returns what was done, one line each.

    Raises CorruptRecordError when a ``.swap`` does not read back and its originals are not all there,
    UnsafeFileError.
    """
    refuse_unsafe_files(directory)
    if not any(name.suffix for _, name in _files(directory)):
        return []
    done = _drop_cleaned(directory)
    swapped = _bases(directory, SWAP)
    logs = [base for base in swapped if files.exists(_swap_log(directory, base))]
    usable = [base for base in logs if _usable(directory, base)]
    for base in sorted(set(logs) - set(usable)):
        done += _remove(directory, base, SWAP)
    if usable:
        low, high = min(usable), max(max(_check(_swap_log(directory, base)), base) for base in usable)
        named = [name for _, name in _files(directory) if name.kind != SNAPSHOT]
        begun = {name.base_offset for name in named if name.suffix == DELETED and name.base_offset > low}
        begun = {base for base in begun if not _is_of_an_earlier_swap(directory, base)}
        going = {name.base_offset for name in named if not name.suffix}
        old = sorted(base for base in going if low <= base < high or base in begun or base in usable)
        _retire(directory, old, keep_snapshots_of=usable, replaced=usable)
    if swapped:
        _promote(directory, swapped)
        done += [f"finished the swap of {segment_file(base, 'log')}" for base in usable]
    _drop_rest_of_retired(directory)
    return done + [f"removed {name}" for name in remove_deleted(directory)]


def _is_of_an_earlier_swap(directory: Path, base_offset: int) -> bool:
    """Is a segment there, and ``.deleted`` files of another one that had its base before?

    A log is retired after its indexes, so the one that is there has not been. A broker's ``.deleted`` files
    wait for ``file.delete.delay.ms``, and longer where it is killed.
    """
    named = (segment_file(base_offset, "log", suffix) for suffix in ("", DELETED))
    return all(files.exists(directory / name) for name in named)


def delete_oldest(directory: Path, bases: Sequence[int]) -> None:
    """Take the segments ``bases``, the log's oldest, away for good, with their snapshots.

    Each is ``.deleted`` durably before the next one: only a prefix ever goes, so no tombstone before the
    value that it hides. They are unlinked when all are.
    """
    for base_offset in sorted(bases):
        _retire(directory, [base_offset], keep_snapshots_of=())
    remove_deleted(directory)


def remove_deleted(directory: Path, from_base: int = 0) -> list[str]:
    """Unlink ``.deleted`` files, of segments from ``from_base`` on; returns their names.

    The directory is synced if there were any.
    """
    named = [(entry, name) for entry, name in _files(directory) if name.suffix == DELETED]
    names = [entry.name for entry, name in named if name.base_offset >= from_base]
    for name in names:
        files.unlink(directory / name)
    if names:
        files.sync_directory(directory)
    return names


def _files(directory: Path) -> list[tuple[files.Entry, SegmentFile]]:
    named = ((entry, parse_segment_file(entry.name)) for entry in files.entries(directory) if entry.is_file)
    return [(entry, name) for entry, name in named if name is not None]


def _bases(directory: Path, suffix: str) -> list[int]:
    """Base offsets of the files with a suffix, ascending."""
    return sorted({name.base_offset for _, name in _files(directory) if name.suffix == suffix})


def _swap_log(directory: Path, base_offset: int) -> Path:
    return directory / segment_file(base_offset, "log", SWAP)


def _change_suffix(directory: Path, base_offset: int, before: str, after: str) -> None:
    for kind in SEGMENT_KINDS:
        source = directory / segment_file(base_offset, kind, before)
        if files.exists(source):
            files.rename(source, directory / segment_file(base_offset, kind, after))


def _retire(
    directory: Path, old: Sequence[int], *, keep_snapshots_of: Sequence[int], replaced: Sequence[int] = ()
) -> list[Path]:
    """Rename old segments to ``.deleted``, the log last: while it is there, its indexes are the old ones.

    ``replaced``: bases of new segments whose originals may be gone; an index without a log and without a
    ``.swap`` of its own is then the new one, promoted already. Returns the new names.
    """
    retired = []
    for base_offset in sorted(old):
        is_promoted = base_offset in replaced and not files.exists(
            directory / segment_file(base_offset, "log")
        )
        for kind in (*reversed(SEGMENT_KINDS), SNAPSHOT):
            path = directory / segment_file(base_offset, kind)
            if kind == SNAPSHOT:
                stays = base_offset in keep_snapshots_of
            else:
                stays = is_promoted and not files.exists(directory / segment_file(base_offset, kind, SWAP))
            if files.exists(path) and not stays:
                retired.append(directory / segment_file(base_offset, kind, DELETED))
                files.rename(path, retired[-1])
    files.sync_directory(directory)
    return retired


def _drop_rest_of_retired(directory: Path) -> None:
    """A crash amid ``_retire`` can leave a retired segment's snapshot, or an index, under its name."""
    for base in _bases(directory, DELETED):
        if not files.exists(directory / segment_file(base, "log")):
            for kind in (*SEGMENT_KINDS, SNAPSHOT):
                path = directory / segment_file(base, kind)
                if files.exists(path):
                    files.unlink(path)


def _promote(directory: Path, new: Sequence[int]) -> None:
    for base_offset in sorted(new):
        _change_suffix(directory, base_offset, SWAP, "")
        files.sync_directory(directory)


def _check(path: Path) -> int:
    """Read a segment back, checksums and all; returns the offset after its last batch, -1 when empty."""
    last = -2
    with files.Reader(path) as reader:
        for window in windows(reader):
            last = int(window.batches["last_offset"][-1])
    return last + 1


def _usable(directory: Path, base_offset: int) -> bool:
    """Does the ``.swap`` read back? If it does not, its originals must all be there still."""
    try:
        _check(_swap_log(directory, base_offset))
        return True
    except CorruptRecordError:
        retired = any(base >= base_offset for base in _bases(directory, DELETED))
        if retired or not files.exists(directory / segment_file(base_offset, "log")):
            raise
        return False


def _remove(directory: Path, base_offset: int, suffix: str) -> list[str]:
    removed = []
    for kind in (*SEGMENT_KINDS, SNAPSHOT):
        path = directory / segment_file(base_offset, kind, suffix)
        if files.exists(path):
            files.unlink(path)
            removed.append(f"removed {path.name}")
    return removed


def _drop_cleaned(directory: Path) -> list[str]:
    cleaned = _bases(directory, CLEANED)
    if not cleaned:
        return []
    done = []
    for base in _bases(directory, SWAP):
        if base >= cleaned[0]:
            done += _remove(directory, base, SWAP)
    for base in cleaned:
        done += _remove(directory, base, CLEANED)
    files.sync_directory(directory)
    return done
