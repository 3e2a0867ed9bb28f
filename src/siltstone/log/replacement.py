"""The swap: replaces segments by new ones, and finishes a swap that a crash interrupted.

The protocol is Kafka's: ``UnifiedLog.replaceSegments`` swaps, and at startup ``LogLoader`` finishes or drops
an interrupted swap (``removeTempFilesAndCollectSwapFiles``, then ``completeSwapOperations``). A broker that
starts on such a directory does the same as ``finish_replacement``.

``rename_to_cleaned`` and ``replace_segments``::

    1 staged files ── rename ──► BASE.*.cleaned    sync
    2 .cleaned     ── rename ──► BASE.*.swap       descending base offsets, a sync after each
    3 every .swap log is read and its checksums are verified, unless it is the very file (by inode, size and
      time) that was verified when it was staged
    4 originals    ── rename ──► OLD.*.deleted     ascending, the log of a segment after its indexes; sync
    5 .swap        ── rename ──► BASE.*            ascending, a sync after each
    6 .deleted     ── unlink                       at once; later where the log is open, since readers may
                                                   still open them

What a crash leaves, and what startup makes of it::

    during 1    only .cleaned                      removed: the log is as before
    during 2    .cleaned below .swap               both removed (KAFKA-6264): a .swap counts only if no
                                                   .cleaned has its base offset or a lower one
    during 3-4  all .swap, some .deleted           the swap is finished
    during 5    some .swap, the lower ones renamed the swap of the others is finished: the range from the
                                                   lowest .swap to the end of the highest one contains no
                                                   segment that has its final name already
    during 6    only .deleted                      unlinked

To finish, startup removes the segments from the lowest ``.swap``'s base offset to the highest one's end, and
each higher segment of which a file is ``.deleted`` already; then it renames the ``.swap`` and unlinks the
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
    # Step 0: startup takes a ``.deleted`` above a ``.swap`` for a segment that this swap replaces, so those
    # that an earlier swap left (they wait for ``file.delete.delay.ms``) are unlinked first.
    remove_deleted(directory, from_base=min(new))
    # Step 2, descending: after a crash the lowest bases are still ``.cleaned``, which drops the ``.swap``
    # above them, so that all new segments or none are swapped in.
    for base_offset in sorted(new, reverse=True):
        _change_suffix(directory, base_offset, CLEANED, SWAP)
        files.sync_directory(directory)
    # Step 3, which Kafka does not have: the last moment at which a corrupt segment costs nothing.
    try:
        for base_offset in new:
            path = _swap_log(directory, base_offset)
            if tuple(verified.get(base_offset, ())) != files.stat(path).identity:
                _verified_end(path)
    except CorruptRecordError:
        # No original was renamed yet: without the new segments the log is what it was.
        for base_offset in new:
            _remove(directory, base_offset, SWAP)
        files.sync_directory(directory)
        raise
    # Steps 4 and 5: all ``.swap`` are durable and valid, so from here on startup finishes the swap.
    deleted = _mark_deleted(directory, old, keep_snapshots_of=new)
    _remove_swap_suffix(directory, new)
    return deleted


def drop_cleaned(directory: Path, base_offset: int) -> None:
    """Remove the ``.cleaned`` files of a new segment that is not swapped in."""
    _remove(directory, base_offset, CLEANED)


def swap_leftovers(directory: Path) -> list[str]:
    """Names of files of an interrupted swap, in order; none where a whole swap left only ``.deleted``."""
    leftovers = [(entry.name, name.suffix) for entry, name in _files(directory) if name.suffix]
    return [] if all(suffix == DELETED for _, suffix in leftovers) else [name for name, _ in leftovers]


def finish_replacement(directory: Path) -> tuple[list[str], list[str]]:
    """Finish or drop an interrupted swap as a broker does at startup.

    Returns the names of the new segments' logs and of the removed files. Raises CorruptRecordError when a
    ``.swap`` fails its verification and its originals are incomplete, UnsafeFileError.
    """
    refuse_unsafe_files(directory)
    if not any(name.suffix for _, name in _files(directory)):
        return [], []
    # ``removeTempFilesAndCollectSwapFiles``: a ``.swap`` is left only if its swap had come to step 3.
    removed = _remove_cleaned(directory)
    pending = _bases(directory, SWAP)
    # An index alone is left of a segment whose log has lost its suffix already (step 5): it only follows.
    ends = {base: _end_of(directory, base) for base in pending if files.exists(_swap_log(directory, base))}
    valid = {base: end for base, end in ends.items() if end is not None}
    for base in sorted(ends.keys() - valid.keys()):
        removed += _remove(directory, base, SWAP)
    if valid:
        # Step 4, ``completeSwapOperations``: the new segments replace all segments in their range of
        # offsets. Some may be ``.deleted`` already.
        low, high = min(valid), max(valid.values())
        named = [name for _, name in _files(directory) if name.kind != SNAPSHOT]
        # An original of which cleaning removed every record may begin above that range. It goes too if the
        # crash came between the renames of its files.
        partly_deleted = {
            name.base_offset
            for name in named
            if name.suffix == DELETED
            and name.base_offset > low
            and not _is_of_an_earlier_swap(directory, name.base_offset)
        }
        existing = {name.base_offset for name in named if not name.suffix}
        in_range = {base for base in existing if low <= base < high}
        old = sorted(in_range | existing & (partly_deleted | valid.keys()))
        _mark_deleted(directory, old, keep_snapshots_of=tuple(valid), replaced=tuple(valid))
    # Steps 5 and 6.
    _remove_swap_suffix(directory, pending)
    _unlink_orphans(directory)
    return [segment_file(base, "log") for base in valid], removed + remove_deleted(directory)


def _is_of_an_earlier_swap(directory: Path, base_offset: int) -> bool:
    """Does a segment exist beside ``.deleted`` files of an earlier segment with its base offset?

    A log is renamed after its indexes, so a log that exists was not being renamed. A broker's ``.deleted``
    files wait for ``file.delete.delay.ms``, and longer where the broker was killed.
    """
    named = (segment_file(base_offset, "log", suffix) for suffix in ("", DELETED))
    return all(files.exists(directory / name) for name in named)


def delete_oldest(directory: Path, bases: Sequence[int]) -> None:
    """Remove the segments ``bases``, the log's oldest, with their snapshots (``deleteOldSegments``).

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
    """Step 4: rename old segments to ``.deleted``, each log after its indexes, so that beside a log there are
    its own indexes or none.

    ``replaced``: base offsets of new segments whose originals may have been renamed before a crash; an index
    without a log and without a ``.swap`` is then the new segment's. Returns the new paths.
    """
    deleted = []
    for base_offset in sorted(old):
        has_new_log = base_offset in replaced and not files.exists(
            directory / segment_file(base_offset, "log")
        )
        for kind in (*reversed(SEGMENT_KINDS), SNAPSHOT):
            path = directory / segment_file(base_offset, kind)
            if kind == SNAPSHOT:
                stays = base_offset in keep_snapshots_of
            else:
                stays = has_new_log and not files.exists(directory / segment_file(base_offset, kind, SWAP))
            if files.exists(path) and not stays:
                deleted.append(directory / segment_file(base_offset, kind, DELETED))
                files.rename(path, deleted[-1])
    files.sync_directory(directory)
    return deleted


def _unlink_orphans(directory: Path) -> None:
    """Unlink the index or snapshot that a crash between the renames of step 4 left of a deleted log."""
    for base in _bases(directory, DELETED):
        if not files.exists(directory / segment_file(base, "log")):
            _remove(directory, base, "")


def _remove_swap_suffix(directory: Path, new: Sequence[int]) -> None:
    """Step 5, ascending: startup replaces what lies between the ``.swap`` that are left, so never a segment
    that has its final name."""
    for base_offset in sorted(new):
        _change_suffix(directory, base_offset, SWAP, "")
        files.sync_directory(directory)


def _verified_end(path: Path) -> int:
    """Read a whole segment and verify its checksums; the offset after its last batch, -1 when empty.

    Raises CorruptRecordError.
    """
    last = -2
    with files.Reader(path) as reader:
        for window in windows(reader):
            last = int(window.batches["last_offset"][-1])
    return last + 1


def _end_of(directory: Path, base_offset: int) -> int | None:
    """The offset after a ``.swap``'s last batch; None for a corrupt one whose originals all exist, so that
    the swap can be dropped. Otherwise raises CorruptRecordError."""
    try:
        return max(_verified_end(_swap_log(directory, base_offset)), base_offset)
    except CorruptRecordError:
        any_deleted = any(base >= base_offset for base in _bases(directory, DELETED))
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
    not come to step 3. Returns the names."""
    cleaned = _bases(directory, CLEANED)
    if not cleaned:
        return []
    removed = []
    for base in _bases(directory, SWAP):
        if base >= cleaned[0]:
            removed += _remove(directory, base, SWAP)
    for base in cleaned:
        removed += _remove(directory, base, CLEANED)
    files.sync_directory(directory)
    return removed
