"""What is in a partition directory when recovery begins: swaps under way, segments too wide, strays."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path

from siltstone.base import files
from siltstone.base.config import LogConfig
from siltstone.base.errors import CorruptFileError, CorruptRecordError
from siltstone.base.records.layout import Int64
from siltstone.log.directory import partition_files
from siltstone.log.indexes import (
    ENTRY_OF_KIND,
    ENTRY_STRUCTS,
    LARGEST_RELATIVE_OFFSET,
    NamedIndex,
    differs_from_log,
    read_entries,
)
from siltstone.log.names import (
    CLEANED,
    DELETED,
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    SEGMENT_KINDS,
    SNAPSHOT,
    SWAP,
    TEMPORARY,
    parse_segment_file,
    segment_file,
)
from siltstone.log.overflow import could_overflow, overflowed, split_overflowed
from siltstone.log.replacement import finish_replacement
from siltstone.log.segments import Segment, segments_among, windows
from siltstone.log.transactions import Aborted, TransactionScan, carried_by_group, transaction_indexes

# What recovery changes in a partition directory: carried out, or in a dry run only said.
#
# Every change can be made again: a crash between any two of them leaves a directory that recovers to the same
# log. The clean-shutdown marker and the checkpoints, which say that all of it is durable, are written by the
# caller behind them.


class Changes:
    """The changes to one partition directory; ``removed`` and ``truncated_bytes`` tell of them."""

    def __init__(self, directory: Path, names: dict[str, files.FileStat], *, dry_run: bool) -> None:
        self.directory = directory
        self.names = names
        self.dry_run = dry_run
        self.removed: list[str] = []
        self.truncated_bytes = 0
        self.any = False
        self._unsynced = False

    def remove(self, name: str) -> None:
        """Take a file away, where it is there."""
        if self.names.pop(name, None) is None:
            return
        self.removed.append(name)
        self.any = True
        if not self.dry_run:
            with contextlib.suppress(FileNotFoundError):
                files.unlink(self.directory / name)
            self._unsynced = True

    def remove_segments(self, bases: Sequence[int]) -> None:
        """Take segments away, the last one first; durable when it returns, whatever follows.

        What goes counts as truncated: a crash amid it must not leave a later segment without an earlier one.
        """
        for base in sorted(bases, reverse=True):
            log = self.names.get(segment_file(base, "log"))
            self.truncated_bytes += log.size if log is not None else 0
            for kind in (SNAPSHOT, *reversed(SEGMENT_KINDS)):
                self.remove(segment_file(base, kind))
            self.settle()

    def write(self, name: str, data: bytes) -> None:
        """Put ``data`` in the place of a file, durably; nothing is done where it has these bytes already."""
        if self._has(name, data):
            return
        self.any = True
        if self.dry_run:
            return
        path = self.directory / name
        known = self.names.get(name)
        if known is not None and known.size > len(data) and self._starts_with(path, data):
            cut(path, len(data))
        else:
            files.replace(path, data)
        self.names[name] = files.stat(path)

    def _has(self, name: str, data: bytes) -> bool:
        known = self.names.get(name)
        return (
            known is not None and known.size == len(data) and self._starts_with(self.directory / name, data)
        )

    def _starts_with(self, path: Path, data: bytes) -> bool:
        return not data or files.read_slice(path, 0, len(data)) == data

    def create(self, name: str) -> None:
        """A new, empty file; ``settle`` makes its name durable."""
        self.any = True
        if not self.dry_run:
            files.write_new(self.directory / name, b"")
            files.inherit_owner(self.directory / name)
            self.names[name] = files.stat(self.directory / name)
            self._unsynced = True

    def truncate_log(self, name: str, size: int) -> None:
        """Cut a segment's log off, durably."""
        before = self.names[name].size
        if size >= before:
            return
        self.truncated_bytes += before - size
        self.any = True
        if not self.dry_run:
            cut(self.directory / name, size)
            self.names[name] = files.stat(self.directory / name)

    def sync(self, name: str) -> None:
        """Make a file's contents durable: they were read, and may be in memory only."""
        if not self.dry_run:
            files.sync_file(self.directory / name)

    def settle(self) -> None:
        """Make the names that went durable."""
        if self._unsynced:
            files.sync_directory(self.directory)
            self._unsynced = False


def cut(path: Path, size: int) -> None:
    """Cut a file off at ``size`` bytes, durably. Raises OSError."""
    appender = files.Appender(path)
    try:
        appender.truncate(size)
    finally:
        appender.close()


# Are a segment's index files there, and can they be of this segment?
#
# An index has no checksum. ``quick_trouble`` asks what a size and the last entry tell, for a start after a
# clean stop; ``whole_trouble`` reads all entries; ``trouble_with_log`` holds each of them against the log,
# and ``contradict_markers`` all transaction indexes together. What does not pass is built again.

INDEX_KINDS = SEGMENT_KINDS[1:]
_LEAST_TIMESTAMP = -1
_BEHIND_ALL = (1 << 63) - 1
_WIDTHS = {kind: ENTRY_OF_KIND[kind].itemsize for kind in INDEX_KINDS}


def quick_trouble(segment: Segment, limit_offset: int, names: dict[str, files.FileStat]) -> list[str]:
    """The names of a segment's indexes that are missing or whose last entry is impossible. Raises OSError.

    ``limit_offset``: no offset of the segment is as high; ``names`` are the files of the directory.
    """
    found = []
    for kind in INDEX_KINDS:
        name = segment_file(segment.base_offset, kind)
        facts = names.get(name)
        if facts is None:
            if kind != "txnindex":
                found.append(name)
        elif facts.size and not _last_is_possible(segment, kind, name, facts.size, limit_offset):
            found.append(name)
    return found


def _last_is_possible(segment: Segment, kind: str, name: str, size: int, limit_offset: int) -> bool:
    width = _WIDTHS[kind]
    if size % width:
        return False
    raw = files.read_slice(f"{segment.directory}/{name}", size - width, width)
    if kind == "txnindex":
        return raw[:2] == b"\0\0"
    if raw == bytes(width):
        return False
    relative: int
    if kind == "index":
        relative, position = ENTRY_STRUCTS[kind].unpack(raw)
        if not 0 <= position < segment.size:
            return False
    else:
        timestamp, relative = ENTRY_STRUCTS[kind].unpack(raw)
        if timestamp < _LEAST_TIMESTAMP or not segment.size:
            return False
    return 0 <= relative < limit_offset - segment.base_offset


def whole_trouble(segment: Segment, limit_offset: int, names: dict[str, files.FileStat]) -> list[str]:
    """The same with every entry read: they ascend, and all lie within the segment. Raises OSError."""
    found = quick_trouble(segment, limit_offset, names)
    for kind in INDEX_KINDS:
        name = segment_file(segment.base_offset, kind)
        if name in found or name not in names or not names[name].size:
            continue
        try:
            data = files.read_bytes(f"{segment.directory}/{name}")
            entries = read_entries(data, kind, name)
        except CorruptFileError:
            found.append(name)
            continue
        if len(entries) * entries.dtype.itemsize != len(data):
            found.append(name)
        elif kind == "txnindex":
            first, last = entries["first_offset"], entries["last_offset"]
            if (last < segment.base_offset).any() or (last >= limit_offset).any() or (first > last).any():
                found.append(name)
        elif (entries["relative_offset"] < 0).any():
            found.append(name)
    return found


def trouble_with_log(segment: Segment, names: dict[str, files.FileStat]) -> list[str]:
    """The names of a sound segment's indexes with entries that its log does not bear out. Raises OSError."""
    found = []
    for kind in ("index", "timeindex"):
        name = segment_file(segment.base_offset, kind)
        if name in names:
            path = f"{segment.directory}/{name}"
            index = NamedIndex(path=path, kind=kind, base_offset=segment.base_offset, suffix="")
            if differs_from_log(index, segment.path):
                found.append(name)
    return found


def lacks_transactions(
    segment: Segment, names: dict[str, files.FileStat], aborted: Sequence[tuple[int, int, int, int, int]]
) -> list[str]:
    """The name of the transaction index when it lacks a transaction that ends in the segment, aborted.

    ``aborted``: what the log says, as rows of the index. The index may say more: cleaning takes the data of
    an aborted transaction before its entry. Raises OSError.
    """
    name = segment_file(segment.base_offset, "txnindex")
    listed: dict[tuple[int, int], int] = {}
    if name in names:
        data = files.read_bytes(f"{segment.directory}/{name}")
        try:
            for _, producer, first, last, _ in read_entries(data, "txnindex", name).tolist():
                listed[(producer, last)] = first
        except CorruptFileError:
            return [name]
    covered = all(listed.get((producer, last), last + 1) <= first for _, producer, first, last, _ in aborted)
    return [] if covered else [name]


def contradict_markers(segments: Sequence[Segment]) -> bool:
    """Do the transaction indexes of a log say something that its batches do not bear out?

    Reads all of the log where there is an entry. Where batches are damaged nothing is said of transactions
    that go beyond their segment. Raises OSError.
    """
    try:
        aborted = Aborted.of(transaction_indexes(segments))
        if not len(aborted.entries):
            return False
        ends = [*(segment.base_offset for segment in segments[1:]), _BEHIND_ALL]
        summaries = [_gone_through(aborted, *each) for each in zip(segments, ends, strict=True)]
        whole = [each for each in summaries if each is not None]
        if len(whole) == len(summaries):
            carried_by_group(whole, [])
    except CorruptFileError:
        return True
    return False


def _gone_through(aborted: Aborted, segment: Segment, end: int) -> Int64 | None:
    """How a segment leaves its transactions, None where it is damaged. Raises CorruptFileError."""
    scan = TransactionScan(aborted)
    with files.Reader(segment.path) as reader:
        try:
            for window in windows(reader, verify=False):
                scan.follow(window.data, window.batches, path=segment.path, origin=window.origin)
        except CorruptRecordError:
            return None
    scan.refuse_unmarked(segment.base_offset, end, segment.path)
    return scan.summary(segment.base_offset)


_FINISHED = "finished the swap of "
_REMOVED = "removed "


def finish_swap(
    directory: Path, *, owned: bool, dry_run: bool
) -> tuple[dict[str, files.FileStat], list[str], list[str]]:
    """The directory's files once no swap is under way; the segments that one was finished for, what went.

    ``owned`` as ``partition_files`` has it. Raises UnsafeFileError, CorruptRecordError, OSError.
    """
    names = partition_files(directory, owned=owned)
    left = [name for name in names if name.endswith((CLEANED, SWAP, DELETED)) and parse_segment_file(name)]
    if not left:
        return names, [], []
    if dry_run:
        swaps = [name.removesuffix(SWAP) for name in left if name.endswith(f".log{SWAP}")]
        return names, sorted(swaps), sorted(name for name in left if not name.endswith(SWAP))
    done = finish_replacement(directory)
    finished = [line.removeprefix(_FINISHED) for line in done if line.startswith(_FINISHED)]
    removed = [line.removeprefix(_REMOVED) for line in done if line.startswith(_REMOVED)]
    return files.list_files(directory), finished, removed


def split_too_wide(
    directory: Path,
    names: dict[str, files.FileStat],
    config: LogConfig,
    *,
    everywhere: bool,
    dry_run: bool,
) -> tuple[dict[str, files.FileStat], dict[int, list[int]]]:
    """Split closed segments whose offsets no index can tell; the files then, and {base: bases it became}.

    Brokers before 1.1 left such. With ``everywhere`` they are looked for by their headers, else only where an
    index makes no sense. One that is damaged is left to the scan. A dry run names no new bases.
    """
    done: dict[int, list[int]] = {}
    for segment, following in itertools.pairwise(segments_among(directory, names)):
        limit = segment.base_offset + LARGEST_RELATIVE_OFFSET + 1
        if not could_overflow(segment, following) or not (everywhere or quick_trouble(segment, limit, names)):
            continue
        with contextlib.suppress(CorruptRecordError):
            if overflowed([segment, following]):
                interval, size = config.index_interval_bytes, config.segment_index_bytes
                done[segment.base_offset] = (
                    []
                    if dry_run
                    else split_overflowed(directory, segment, interval=interval, index_bytes=size)
                )
    return (files.list_files(directory) if done and not dry_run else names), done


def remove_strays(changes: Changes, segments: list[Segment]) -> set[int]:
    """Take away indexes without a log and files that were being written; the offsets of snapshots."""
    bases = {segment.base_offset for segment in segments}
    snapshots = set()
    for name in list(changes.names):
        if name.endswith(TEMPORARY):
            written = name.removesuffix(TEMPORARY)
            if parse_segment_file(written) or written in (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA):
                changes.remove(name)
            continue
        if name.endswith(".log"):
            continue
        parsed = parse_segment_file(name)
        if parsed is None or parsed.suffix:
            continue
        if parsed.kind == SNAPSHOT:
            snapshots.add(parsed.base_offset)
        elif parsed.base_offset not in bases:
            changes.remove(name)
    return snapshots
