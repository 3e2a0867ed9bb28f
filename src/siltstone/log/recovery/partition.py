"""Recovers a partition directory before its log is opened (Kafka's ``LogLoader``).

::

    files ─► finish a swap ─► split segments that are too wide ─► remove strays ─► segments
      below the recovery point: can the indexes be right?          if not, they are rebuilt
      from it on (after a crash): every batch's checksum           the log is cut at the first bad one
      after a clean stop: the tail behind the last index entry     if it is not sound, as after a crash
    ─► producer snapshots ─► leader epochs ─► Recovered

Records that were appended and not flushed may be missing, torn or garbage after a crash: the log ends before
the first batch that is not sound. Damage below the recovery point was durable once, so that it is no torn
write: it is never cut off, only reported. A log whose offsets go back is refused (CorruptRecordError).

Every step can be repeated after a crash, and none of them declares that the log is in order: ``directories``
writes the recovery point and the clean-shutdown marker, when everything that they vouch for is durable.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from siltstone.base import files
from siltstone.base.config import LogConfig
from siltstone.base.errors import CorruptFileError, CorruptRecordError
from siltstone.log import names
from siltstone.log.checkpoints import LeaderEpochs
from siltstone.log.directory import partition_files
from siltstone.log.indexes import ENTRY_OF_KIND, LARGEST_RELATIVE_OFFSET, TRANSACTION_ENTRY
from siltstone.log.names import (
    SEGMENT_KINDS,
    SNAPSHOT,
    parse_segment_file,
    segment_file,
)
from siltstone.log.overflow import could_overflow, overflowed_segments, split_overflowed_segment
from siltstone.log.producers import ProducerEntry, ProducerStates, read_snapshot
from siltstone.log.recovery.scan import (
    SegmentScan,
    check_tail,
    contradict_markers,
    fold,
    impossible_indexes,
    wrong_indexes,
)
from siltstone.log.replacement import finish_replacement
from siltstone.log.segments import Segment, floor_segment_index, segments_among, windows

# Changes to a partition directory: carried out, or in a dry run only counted.
#
# Every change can be repeated: a crash between any two of them leaves a directory that recovers to the same
# log. The caller writes the checkpoints and the clean-shutdown marker, which say that all of it is durable,
# after them.


class Changes:
    """Changes one partition directory; ``removed`` and ``truncated_bytes`` count what was done.

    ``listing``: the directory's files by name, as they are after each change. ``any``: something was changed.
    """

    def __init__(self, directory: Path, listing: dict[str, files.FileStat], *, dry_run: bool) -> None:
        self.directory = directory
        self.listing = listing
        self.dry_run = dry_run
        self.removed: list[str] = []
        self.truncated_bytes = 0
        self.any = False
        self._unsynced = False

    def remove(self, name: str) -> None:
        """Remove a file if it exists; ``settle`` makes that durable."""
        if self.listing.pop(name, None) is None:
            return
        self.removed.append(name)
        self.any = True
        if not self.dry_run:
            with contextlib.suppress(FileNotFoundError):
                files.unlink(self.directory / name)
            self._unsynced = True

    def remove_segments(self, bases: Sequence[int]) -> None:
        """Remove segments, the last one first; durable when it returns. Their bytes count as truncated.

        A crash in between must not leave a later segment without an earlier one, so each is durably gone
        before the next; its log is removed last, so that no index or snapshot outlives it.
        """
        for base in sorted(bases, reverse=True):
            log = self.listing.get(segment_file(base, "log"))
            self.truncated_bytes += log.size if log is not None else 0
            for kind in (SNAPSHOT, *reversed(SEGMENT_KINDS)):
                self.remove(segment_file(base, kind))
            self.settle()

    def write(self, name: str, data: bytes) -> None:
        """Replace a file's contents with ``data``, durably; a file with these bytes is left as it is."""
        path, known = self.directory / name, self.listing.get(name)
        begins_so = known is not None and known.size >= len(data)
        begins_so = begins_so and (not data or files.read_slice(path, 0, len(data)) == data)
        if begins_so and known is not None and known.size == len(data):
            return
        self.any = True
        if self.dry_run:
            return
        # An index that an unclean stop left preallocated, or with entries of records that were not flushed,
        # is cut off in place; anything else is replaced by a rename.
        if begins_so:
            cut(path, len(data))
        else:
            files.replace(path, data)
        self.listing[name] = files.stat(path)

    def create(self, name: str) -> None:
        """Create an empty file; ``settle`` makes its name durable."""
        self.any = True
        if not self.dry_run:
            files.write_new(self.directory / name, b"")
            files.inherit_owner(self.directory / name)
            self.listing[name] = files.stat(self.directory / name)
            self._unsynced = True

    def truncate_log(self, name: str, size: int) -> None:
        """Cut a segment's log off, durably."""
        before = self.listing[name].size
        if size >= before:
            return
        self.truncated_bytes += before - size
        self.any = True
        if not self.dry_run:
            cut(self.directory / name, size)
            self.listing[name] = files.stat(self.directory / name)

    def sync(self, name: str) -> None:
        """Flush a file: what was read from it may be in the page cache only."""
        if not self.dry_run:
            files.sync_file(self.directory / name)

    def settle(self) -> None:
        """Make the names that were created and removed durable."""
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


# Producer states of a log that is recovered: from the newest sound snapshot, and the batches behind it.
#
# Kafka's ``ProducerStateManager`` as far as a start needs it. A snapshot that is not sound is removed and the
# one before it is used; without any, the log is read from its start.


class ProducerHistory:
    """The producer states at offsets of one log. ``snapshots``: the offsets that have a snapshot file."""

    def __init__(
        self, changes: Changes, snapshots: Iterable[int], *, log_start: int, now_ms: int, expiration_ms: int
    ) -> None:
        self.snapshots = set(snapshots)
        self._changes = changes
        self._log_start = log_start
        self._now_ms = now_ms
        self._expiration_ms = expiration_ms

    def newest(self, upto: int) -> tuple[int, ProducerStates]:
        """The newest sound snapshot at or below offset ``upto``: its offset, and its producers that have not
        expired. Without one: the log start, and no producer."""
        for offset in sorted(self.snapshots, reverse=True):
            if not self._log_start <= offset <= upto:
                continue
            path = f"{self._changes.directory}/{segment_file(offset, SNAPSHOT)}"
            try:
                entries = read_snapshot(files.read_bytes(path), path, offset)
            except CorruptFileError:
                self.remove(offset)
                continue
            states = ProducerStates.load(entries)
            states.expire(self._now_ms, self._expiration_ms)
            return offset, states
        return self._log_start, ProducerStates()

    def at(self, offset: int, segments: Sequence[Segment], take: Sequence[int] = ()) -> ProducerStates:
        """The states as of ``offset``; snapshots are written on the way at the base offsets in ``take``.

        Checksums are not checked: batches below ``offset`` count as they are, as far as they can be read.
        Raises OSError.
        """
        start, states = self.newest(offset)
        ends = [*(segment.base_offset for segment in segments[1:]), start + 1]
        for segment, end in zip(segments, ends, strict=False):
            if segment.base_offset >= offset or start >= offset or end <= start:
                continue
            if segment.base_offset in take and segment.base_offset > start:
                self.take(segment.base_offset, states)
            self._read(segment, start, offset, states)
        return states

    def _read(self, segment: Segment, start: int, end: int, states: ProducerStates) -> None:
        with files.Reader(segment.path) as reader:
            try:
                for window in windows(reader, verify=False):
                    bases = window.batches["base_offset"]
                    # A batch in which the log starts counts as a whole, as in
                    # ``UnifiedLog.rebuildProducerState``.
                    mine = (window.batches["last_offset"] >= start) & (bases < end)
                    fold(states, window.batches[mine], window.data)
                    if int(bases[-1]) >= end:
                        return
            except CorruptRecordError:
                return

    def take(self, offset: int, states: ProducerStates) -> None:
        """Write a snapshot, durably; at the log's start only if a producer is known there."""
        if offset > self._log_start or (offset == self._log_start and len(states)):
            self._changes.write(segment_file(offset, SNAPSHOT), states.snapshot())
            self.snapshots.add(offset)

    def remove(self, offset: int) -> None:
        """Remove a snapshot."""
        self.snapshots.discard(offset)
        self._changes.remove(segment_file(offset, SNAPSHOT))

    def tidy(self, bases: set[int], end_offset: int) -> None:
        """Remove snapshots that no start reads: outside the log, or at no segment's base unless it is the
        newest (``ProducerStateManager.removeStraySnapshots``)."""
        strays = self.snapshots - bases
        newest = max((offset for offset in strays if offset <= end_offset), default=-1)
        for offset in sorted(self.snapshots):
            outside = offset < self._log_start or offset > end_offset
            stray = offset in strays and not (offset == newest and offset > max(bases))
            if outside or stray:
                self.remove(offset)


# The steps before segments are read: swaps, segments that are too wide, strays.

_FINISHED = "finished the swap of "
_REMOVED = "removed "


def finish_swap(changes: Changes) -> list[str]:
    """Finish an interrupted swap; the names of the new segments' logs.

    Raises UnsafeFileError, CorruptRecordError, OSError.
    """
    suffixes = (names.CLEANED, names.SWAP, names.DELETED)
    left = [name for name in changes.listing if name.endswith(suffixes) and parse_segment_file(name)]
    if not left:
        return []
    if changes.dry_run:
        finished = sorted(
            name.removesuffix(names.SWAP) for name in left if name.endswith(f".log{names.SWAP}")
        )
        removed = sorted(name for name in left if not name.endswith(names.SWAP))
    else:
        done = finish_replacement(changes.directory)
        finished = [line.removeprefix(_FINISHED) for line in done if line.startswith(_FINISHED)]
        removed = [line.removeprefix(_REMOVED) for line in done if line.startswith(_REMOVED)]
        changes.listing = files.list_files(changes.directory)
    changes.removed += removed
    changes.any |= bool(finished or removed)
    return finished


def split_too_wide(changes: Changes, config: LogConfig, *, everywhere: bool) -> dict[int, list[int]]:
    """Split closed segments with offsets of 2³¹ and more above their base: {base: its parts' bases}.

    Brokers before 1.1 wrote such, and no index entry can name those offsets. With ``everywhere`` the headers
    of all candidates are read, else only those of a segment with an impossible index. A damaged one is left
    to the scan. A dry run returns no new bases.
    """
    split: dict[int, list[int]] = {}
    listing, interval, size = changes.listing, config.index_interval_bytes, config.segment_index_bytes
    for segment, following in itertools.pairwise(segments_among(changes.directory, listing)):
        limit = segment.base_offset + LARGEST_RELATIVE_OFFSET + 1
        if not could_overflow(segment, following):
            continue
        if not everywhere and not impossible_indexes(segment, limit, listing, every_entry=False):
            continue
        with contextlib.suppress(CorruptRecordError):
            if overflowed_segments([segment, following]):
                bases = []
                if not changes.dry_run:
                    bases = split_overflowed_segment(
                        changes.directory, segment, interval=interval, index_bytes=size
                    )
                split[segment.base_offset] = bases
    if split:
        changes.any = True
        changes.listing = listing if changes.dry_run else files.list_files(changes.directory)
    return split


def remove_strays(changes: Changes, segments: list[Segment]) -> set[int]:
    """Remove indexes without a log and files that were being written; returns the snapshots' offsets."""
    bases = {segment.base_offset for segment in segments}
    snapshots = set()
    for name in list(changes.listing):
        if name.endswith(names.TEMPORARY):
            written = name.removesuffix(names.TEMPORARY)
            if parse_segment_file(written) or written in (
                names.LEADER_EPOCH_CHECKPOINT,
                names.PARTITION_METADATA,
            ):
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


# The recovery itself.


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A recovered partition directory, and what recovery did to it.

    ``producers`` are those at ``log_end_offset``. ``damage``: bad batches below the recovery point, which are
    left as they are. ``notes``: what a person should know. ``changed``: recovery changed a file.
    """

    directory: Path
    segments: tuple[Segment, ...]
    producers: tuple[ProducerEntry, ...]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    truncated_bytes: int
    rebuilt_indexes: tuple[str, ...]
    finished_swaps: tuple[str, ...]
    removed_files: tuple[str, ...]
    damage: tuple[CorruptFileError, ...]
    notes: tuple[str, ...]
    changed: bool


def recover_partition(
    directory: Path,
    *,
    clean: bool,
    recovery_point: int,
    log_start: int,
    config: LogConfig,
    now_ms: int,
    check: bool = False,
    owned: bool = True,
    dry_run: bool = False,
) -> Recovered:
    """Recover one partition directory.

    ``clean``: it was stopped cleanly. ``recovery_point`` and ``log_start`` are the checkpoints' entries, 0
    without one. ``check``: read the segments below the recovery point too, and report damage in them.
    ``owned``: its files must belong to the directory's owner. ``dry_run``: change nothing. Raises
    CorruptRecordError for a log that cannot be served, UnsafeFileError for a link, a device or another user's
    file among its files, OSError.
    """
    changes = Changes(directory, partition_files(directory, owned=owned), dry_run=dry_run)
    finished = finish_swap(changes)
    split = split_too_wide(changes, config, everywhere=check or not clean)
    recovery = _Recovery(changes, clean=clean, log_start=log_start, config=config, now_ms=now_ms)
    recovery.note_split(split)
    end = recovery.run(recovery_point, check=check)
    return Recovered(
        directory=directory,
        segments=tuple(segments_among(directory, changes.listing) if changes.any else recovery.segments),
        producers=tuple(recovery.states.entries()),
        log_start_offset=recovery.log_start,
        log_end_offset=end,
        recovery_point=end,
        truncated_bytes=changes.truncated_bytes,
        rebuilt_indexes=tuple(recovery.rebuilt),
        finished_swaps=tuple(finished),
        removed_files=tuple(changes.removed),
        damage=tuple(recovery.damage),
        notes=tuple(recovery.notes),
        changed=changes.any,
    )


class _Recovery:
    """The recovery of one partition: ``run`` once."""

    def __init__(
        self, changes: Changes, *, clean: bool, log_start: int, config: LogConfig, now_ms: int
    ) -> None:
        self._changes = changes
        self._clean = clean
        self._config = config
        self._checkpointed_start = max(log_start, 0)
        self.segments = segments_among(changes.directory, changes.listing)
        first = self.segments[0].base_offset if self.segments else 0
        self.log_start = max(self._checkpointed_start, first)
        self.states = ProducerStates()
        self.rebuilt: list[str] = []
        self.damage: list[CorruptFileError] = []
        self.notes: list[str] = []
        self._epochs: LeaderEpochs | None = None
        with contextlib.suppress(CorruptFileError):
            self._epochs = LeaderEpochs(changes.directory)
        self._too_wide: set[int] = set()
        self._indexes_contradict_markers = False
        self._seen_epochs: list[tuple[int, int]] = []
        self._last_epoch = -1
        self._history = ProducerHistory(
            changes,
            remove_strays(changes, self.segments),
            log_start=self.log_start,
            now_ms=now_ms,
            expiration_ms=config.producer_id_expiration_ms,
        )

    def note_split(self, split: Mapping[int, Sequence[int]]) -> None:
        """Note the segments that were split; in a dry run they are read as they are."""
        for base, new in split.items():
            log = segment_file(base, "log")
            what = f"was split: {', '.join(map(str, new))}" if new else "is to be split"
            self.notes.append(f"{log}: its offsets are too far apart for its indexes; it {what}")
            if not new:
                self._too_wide.add(base)

    def run(self, recovery_point: int, *, check: bool) -> int:
        """Recover the log; returns its end offset."""
        self._indexes_contradict_markers = check and contradict_markers(self.segments)
        end = self._tail_end() if self._clean else None
        # ``first``: the number of the segment from which on everything is scanned. A clean stop flushed all,
        # so that an unsound tail concerns the active segment alone.
        first = len(self.segments)
        if end is None:
            holding = floor_segment_index(self.segments, recovery_point)
            first = len(self.segments) - 1 if self._clean else max(holding, 0)
        tail_checked = end is not None and not check  # the active segment's indexes were, too
        for number in range(min(first, len(self.segments) - tail_checked)):
            self._check_durable(number, check=check)
        if end is None and self.segments:
            end = self._scan_from(first)
        elif end is not None:
            self._load_producers(end)
        # As in Kafka's ``LogLoader``: nothing is left that readers may see.
        if end is None or end < self._checkpointed_start:
            return self._start_empty()
        self._history.tidy({segment.base_offset for segment in self.segments}, end)
        self._write_epochs(end)
        self._changes.settle()
        return end

    def _limit(self, number: int) -> int:
        """An offset that is above all of a segment's."""
        base = self.segments[number].base_offset
        most = base + LARGEST_RELATIVE_OFFSET + 1
        if number + 1 == len(self.segments):
            return most
        following = self.segments[number + 1].base_offset
        return following if base in self._too_wide else min(most, following)

    def _tail_end(self) -> int | None:
        """After a clean stop: the end offset, None where the active segment has to be scanned."""
        if not self.segments or self._epochs is None:
            return None
        active = self.segments[-1]
        limit = self._limit(len(self.segments) - 1)
        if impossible_indexes(active, limit, self._changes.listing, every_entry=False):
            return None
        return check_tail(active)

    # Below the recovery point

    def _check_durable(self, number: int, *, check: bool) -> None:
        """Check a segment below the recovery point: its indexes, and with ``check`` its batches."""
        segment, listing = self.segments[number], self._changes.listing
        every_entry = check or not self._clean
        failing = impossible_indexes(segment, self._limit(number), listing, every_entry=every_entry)
        if not failing and not check:
            return
        scan = self._scan(number, self._history.at(segment.base_offset, self.segments), keep_going=True)
        self.damage += scan.skipped if scan.damage is None else (*scan.skipped, scan.damage)
        if check and scan.damage is None:
            failing += wrong_indexes(segment, listing, scan.aborted, exactly=self._indexes_contradict_markers)
        if failing:
            self._write_indexes(segment, scan, failing)
        if check:
            self._note_gaps(number, scan)

    def _note_gaps(self, number: int, scan: SegmentScan) -> None:
        if self._config.compacts:
            return
        log = segment_file(self.segments[number].base_offset, "log")
        if scan.gaps and not scan.skipped:
            self.notes.append(f"{log}: {scan.gaps} gaps between offsets, such as cleaning leaves")
        if number + 1 < len(self.segments) and scan.damage is None:
            following = self.segments[number + 1].base_offset
            if scan.next_offset < following:
                self.notes.append(
                    f"{log}: offsets {scan.next_offset} to {following - 1} are missing behind it"
                )

    def _scan(self, number: int, states: ProducerStates, *, keep_going: bool = False) -> SegmentScan:
        limit = self._limit(number)
        scan = SegmentScan(self.segments[number], self._config, limit_offset=limit, keep_going=keep_going)
        scan.run(states)
        return scan

    def _write_indexes(
        self, segment: Segment, scan: SegmentScan, failing: Sequence[str] | None = None
    ) -> None:
        """Write a scanned segment's indexes: those ``failing`` and those that are missing; None: all."""
        built = scan.indexes.finish()
        built["txnindex"] = np.array(scan.aborted, TRANSACTION_ENTRY).tobytes()
        for kind, data in built.items():
            name = segment_file(segment.base_offset, kind)
            known = name in self._changes.listing
            if kind == "txnindex" and not known and not data:
                continue
            if failing is not None and known and name not in failing:
                continue
            # A dry run did not split a segment that is too wide: no index of it can be right.
            wrong = kind != "txnindex" and segment.base_offset in self._too_wide
            if wrong or name in (failing or ()) or not (known and self._was_of(name, kind, data)):
                self.rebuilt.append(name)
            self._changes.write(name, data)

    def _was_of(self, name: str, kind: str, data: bytes) -> bool:
        """Was an index right, but for preallocated zeros, or for entries that its end has or lacks?"""
        before = files.read_bytes(self._changes.directory / name)
        whole = len(before) % ENTRY_OF_KIND[kind].itemsize == 0
        return whole and (data.startswith(before.rstrip(b"\0")) or before.startswith(data))

    # From the recovery point on

    def _scan_from(self, first: int) -> int:
        """Scan the segments from number ``first`` on and cut the log at the first damage; its end offset."""
        bases = [segment.base_offset for segment in self.segments]
        self.states = self._history.at(bases[first], self.segments, take=bases[-2:])
        if bases[first] not in self._history.snapshots:
            self._history.take(bases[first], self.states)
        end = bases[first]
        for number in range(first, len(bases)):
            segment = self.segments[number]
            if number > first:
                self._history.take(segment.base_offset, self.states)
            scan = self._scan(number, self.states)
            self._note_epochs(scan.epochs)
            end = scan.next_offset
            if scan.damage is None:
                # After a killed process the page cache has bytes that the disk may not have.
                self._changes.sync(segment_file(segment.base_offset, "log"))
            else:
                self._cut(number, scan)
            self._note_gaps(number, scan)
            self._write_indexes(segment, scan)
            if scan.damage is not None:
                break
        self._history.take(end, self.states)
        return end

    def _cut(self, number: int, scan: SegmentScan) -> None:
        """End the log at a damage. Later segments are removed first: after a crash in between, the next start
        finds the damage again and removes the rest."""
        assert scan.damage is not None
        self.notes.append(f"cut at {scan.damage}")
        later = [segment.base_offset for segment in self.segments[number + 1 :]]
        self._history.snapshots -= set(later)
        self._changes.remove_segments(later)
        del self.segments[number + 1 :]
        self._changes.truncate_log(segment_file(self.segments[number].base_offset, "log"), scan.size)

    def _note_epochs(self, epochs: Sequence[tuple[int, int]]) -> None:
        """Collect the leader epochs that ``leader-epoch-checkpoint`` lacks; note those that go back."""
        known = self._epochs.latest_epoch if self._epochs is not None else None
        for epoch, base in epochs:
            latest = self._seen_epochs[-1][0] if self._seen_epochs else known
            if epoch > (-1 if latest is None else latest):
                self._seen_epochs.append((epoch, base))
            if 0 <= epoch < self._last_epoch:
                self.notes.append(
                    f"leader epoch {epoch} at offset {base}, though {self._last_epoch} came before"
                )
            self._last_epoch = epoch

    # Producers and epochs at the log's end

    def _load_producers(self, end: int) -> None:
        """After a clean stop: from the snapshot at the end. Without any snapshot no producer is known, as in
        Kafka (``UnifiedLog.rebuildProducerState``): the log was written before there were snapshots."""
        bases = [segment.base_offset for segment in self.segments]
        if not self._history.snapshots:
            for offset in (*bases[-2:], end):
                self._history.take(offset, self.states)
            return
        self.states = self._history.at(end, self.segments, take=bases[-2:])
        if end not in self._history.snapshots:
            self._history.take(end, self.states)

    def _write_epochs(self, end: int) -> None:
        if self._epochs is None:
            self._changes.remove(names.LEADER_EPOCH_CHECKPOINT)
            self._changes.settle()
            if not self._changes.dry_run:
                self._epochs = LeaderEpochs(self._changes.directory)
        if self._changes.dry_run or self._epochs is None:
            return
        before = self._epochs.entries
        for epoch, base in self._seen_epochs:
            self._epochs.assign(epoch, base)
        # The start first: an epoch that it moves to the end of an empty log is removed with the end.
        self._epochs.truncate_from_start(self.log_start)
        self._epochs.truncate_from_end(end)
        self._changes.any |= self._epochs.entries != before

    def _start_empty(self) -> int:
        """Make the log one empty segment at its start: it had none, or ended below its start."""
        if self.segments:
            self.notes.append(f"ended below its start {self._checkpointed_start}: starts empty there")
        self._changes.remove_segments([segment.base_offset for segment in self.segments])
        self.log_start = self._checkpointed_start
        for offset in sorted(self._history.snapshots):
            self._history.remove(offset)
        for kind in SEGMENT_KINDS[:3]:
            self._changes.create(segment_file(self.log_start, kind))
        self._changes.settle()
        self.states = ProducerStates()
        self._write_epochs(self.log_start)
        return self.log_start
