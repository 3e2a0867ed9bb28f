"""The swap: replacing segments by new ones, and finishing a swap that a crash interrupted.

The protocol is Kafka's (``LocalLog.replaceSegments``, ``LogLoader``): a broker that starts on an interrupted
directory finishes or drops the swap in the same way::

    staged files ── rename ──► BASE.*.cleaned      sync; until here startup drops them
    .cleaned     ── rename ──► BASE.*.swap         descending bases, each synced before the next: startup
                                                   finishes only swaps with no ``.cleaned`` at or below their
                                                   base offset
    (each .swap log is verified before any original is renamed, unless it is the very file
     that was verified when it was staged)
    originals    ── rename ──► OLD.*.deleted       ascending, each log after its indexes; sync
    .swap        ── rename ──► BASE.*              ascending, each synced before the next, so that a segment
                                                   that has its name is never in the range that startup
                                                   replaces
    .deleted     ── unlink: at once, or later where the log is open and readers may still open them

Startup removes every ``.cleaned``, and every ``.swap`` at or above the lowest ``.cleaned``. The other
``.swap`` are complete. Startup removes the segments from the lowest one's base offset to the highest one's
end, and any segment above of which a file is ``.deleted`` already; it renames the ``.swap``, and unlinks
``.deleted``. A ``.snapshot`` is removed with its segment unless a new segment has its base offset.
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

Verified = Mapping[int, Sequence[int]]
"""Identities (``files.FileStat.identity``) of new logs that are verified already, by base offset."""
NOTHING_VERIFIED: Verified = {}


def rename_to_cleaned(directory: Path, staged: Mapping[int, Mapping[str, Path]]) -> None:
    """Rename staged files (by base offset and kind) to ``.cleaned``, durably."""
    for base_offset, kinds in staged.items():
        for kind, path in kinds.items():
            files.rename(path, directory / segment_file(base_offset, kind, CLEANED))
    files.sync_directory(directory)


def replace_segments(
    directory: Path, new: Sequence[int], old: Sequence[int], verified: Verified = NOTHING_VERIFIED
) -> None:
    """Replace the segments ``old`` by the ``.cleaned`` ones ``new``, all by base offset.

    Raises CorruptRecordError when a new segment fails its verification; no old segment has changed then.
    """
    swap_in(directory, new, old, verified)
    remove_deleted(directory)


def swap_in(
    directory: Path, new: Sequence[int], old: Sequence[int], verified: Verified = NOTHING_VERIFIED
) -> list[Path]:
    """Replace segments as ``replace_segments`` does; the old files stay as ``.deleted``. Returns them."""
    # A start takes a ``.deleted`` beside a ``.swap`` for a segment that this swap replaces: those that an
    # earlier swap left are unlinked first.
    remove_deleted(directory, from_base=min(new))
    # Descending: after a crash the lowest bases are still ``.cleaned``, which drops the ``.swap`` above them.
    for base_offset in sorted(new, reverse=True):
        _change_suffix(directory, base_offset, CLEANED, SWAP)
        files.sync_directory(directory)
    try:
        for base_offset in new:
            path = _swap_log(directory, base_offset)
            if tuple(verified.get(base_offset, ())) != files.stat(path).identity:
                _check(path)
    except CorruptRecordError:
        # No original was renamed yet: without the new segments the log is what it was.
        for base_offset in new:
            _remove(directory, base_offset, SWAP)
        files.sync_directory(directory)
        raise
    # All ``.swap`` are durable and sound: from here on a start finishes the swap.
    deleted = _mark_deleted(directory, old, keep_snapshots_of=new)
    _promote(directory, new)
    return deleted


def drop_cleaned(directory: Path, base_offset: int) -> None:
    """Remove the ``.cleaned`` files of a new segment that is not swapped in."""
    _remove(directory, base_offset, CLEANED)


def swap_leftovers(directory: Path) -> list[str]:
    """Names of files of an interrupted swap, in order; none where a whole swap left only ``.deleted``."""
    left = [(entry.name, name.suffix) for entry, name in _files(directory) if name.suffix]
    return [] if all(suffix == DELETED for _, suffix in left) else [name for name, _ in left]


def finish_replacement(directory: Path) -> list[str]:
    """Finish or drop an interrupted swap as a broker does at start; returns what was done, a line each.

    Raises CorruptRecordError when a ``.swap`` fails its verification and its originals are incomplete,
    UnsafeFileError.
    """
    refuse_unsafe_files(directory)
    if not any(name.suffix for _, name in _files(directory)):
        return []
    done = _drop_cleaned(directory)
    swapped = _bases(directory, SWAP)
    ends = {base: _end_of(directory, base) for base in swapped if files.exists(_swap_log(directory, base))}
    usable = {base: end for base, end in ends.items() if end is not None}
    for base in sorted(ends.keys() - usable.keys()):
        done += _remove(directory, base, SWAP)
    if usable:
        # The new segments replace all segments in their range of offsets; some may be ``.deleted`` already.
        low, high = min(usable), max(usable.values())
        named = [name for _, name in _files(directory) if name.kind != SNAPSHOT]
        # A crash between the renames of one segment's files: the rest of them is renamed, too.
        begun = {name.base_offset for name in named if name.suffix == DELETED and name.base_offset > low}
        begun = {base for base in begun if not _is_of_an_earlier_swap(directory, base)}
        existing = {name.base_offset for name in named if not name.suffix}
        old = sorted(base for base in existing if low <= base < high or base in begun or base in usable)
        _mark_deleted(directory, old, keep_snapshots_of=tuple(usable), replaced=tuple(usable))
    if swapped:
        _promote(directory, swapped)
        done += [f"finished the swap of {segment_file(base, 'log')}" for base in usable]
    _unlink_rest(directory)
    return done + [f"removed {name}" for name in remove_deleted(directory)]


def _is_of_an_earlier_swap(directory: Path, base_offset: int) -> bool:
    """Does a segment exist beside ``.deleted`` files of an earlier segment with its base offset?

    A log is renamed after its indexes, so a log that exists was not being renamed. A broker's ``.deleted``
    files wait for ``file.delete.delay.ms``, and longer where the broker was killed.
    """
    named = (segment_file(base_offset, "log", suffix) for suffix in ("", DELETED))
    return all(files.exists(directory / name) for name in named)


def delete_oldest(directory: Path, bases: Sequence[int]) -> None:
    """Remove the segments ``bases``, the log's oldest, with their snapshots.

    Each is renamed to ``.deleted`` durably before the next one, so a crash removes only a prefix: no
    tombstone vanishes before an older value of its key. They are unlinked when all are renamed.
    """
    for base_offset in sorted(bases):
        _mark_deleted(directory, [base_offset], keep_snapshots_of=())
    remove_deleted(directory)


def remove_deleted(directory: Path, from_base: int = 0) -> list[str]:
    """Unlink the ``.deleted`` files of segments from ``from_base`` on, durably; returns their names."""
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


def _mark_deleted(
    directory: Path, old: Sequence[int], *, keep_snapshots_of: Sequence[int], replaced: Sequence[int] = ()
) -> list[Path]:
    """Rename old segments to ``.deleted``, the log last: while it exists, its indexes are the old ones.

    ``replaced``: base offsets of new segments whose originals may have been renamed before a crash; an index
    without a log and without a ``.swap`` is then the new segment's. Returns the new paths.
    """
    deleted = []
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
                deleted.append(directory / segment_file(base_offset, kind, DELETED))
                files.rename(path, deleted[-1])
    files.sync_directory(directory)
    return deleted


def _unlink_rest(directory: Path) -> None:
    """Unlink the snapshot or index that a crash amid ``_mark_deleted`` left of a removed segment."""
    for base in _bases(directory, DELETED):
        if not files.exists(directory / segment_file(base, "log")):
            for kind in (*SEGMENT_KINDS, SNAPSHOT):
                path = directory / segment_file(base, kind)
                if files.exists(path):
                    files.unlink(path)


def _promote(directory: Path, new: Sequence[int]) -> None:
    # Ascending: a start replaces what lies between the ``.swap`` that are left, so never a promoted segment.
    for base_offset in sorted(new):
        _change_suffix(directory, base_offset, SWAP, "")
        files.sync_directory(directory)


def _check(path: Path) -> int:
    """Read a whole segment and check its checksums; the offset after its last batch, -1 when empty."""
    last = -2
    with files.Reader(path) as reader:
        for window in windows(reader):
            last = int(window.batches["last_offset"][-1])
    return last + 1


def _end_of(directory: Path, base_offset: int) -> int | None:
    """The offset behind a ``.swap``; None for a damaged one whose originals all exist, else that raises."""
    try:
        return max(_check(_swap_log(directory, base_offset)), base_offset)
    except CorruptRecordError:
        retired = any(base >= base_offset for base in _bases(directory, DELETED))
        if retired or not files.exists(directory / segment_file(base_offset, "log")):
            raise
        return None


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
