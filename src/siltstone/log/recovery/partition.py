"""Recovers a partition directory before its log is opened (Kafka's ``LogLoader``).

The steps, with those of ``LogLoader.load`` in parentheses::

    1 finish or drop an interrupted swap           (removeTempFilesAndCollectSwapFiles,
                                                   completeSwapOperations)
    2 split overflowed segments                    (retryOnOffsetOverflow)
    3 remove orphaned files                        (loadSegmentFiles)
    4 check what is durable: are its indexes possible? If not, they are rebuilt
                                                   (LogSegment.sanityCheck)
    5 after a crash: scan every segment from the recovery point on, truncate the log at the first corrupt
      batch, rebuild the indexes                   (recoverLog, recoverSegment)
      after a clean stop: check the active segment's tail, and scan that segment if the tail is corrupt
    6 producer states and snapshots                (UnifiedLog.rebuildProducerState)
    7 leader epochs: truncate to the log's start and end

Where this differs from ``LogLoader.recoverLog``:

- Kafka trusts a log that was stopped cleanly; here its tail is checked (steps 4 and 5).
- A batch with a wrong magic byte is corrupt: no checksum covers that byte, and Kafka accepts it.
- Corruption below the recovery point is reported and left as it is: what was durable is no torn write.
- A log whose offsets decrease is refused (CorruptRecordError); Kafka does not start.
- Indexes below the recovery point are rebuilt too.

Every step can be repeated after a crash, and none of them declares that the log is in order: ``directories``
writes the recovery point and the clean-shutdown marker, when everything that they vouch for is durable.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from siltstone.base import files
from siltstone.base.config import LogConfig
from siltstone.base.errors import CorruptFileError, CorruptRecordError
from siltstone.log import names
from siltstone.log.checkpoints import LeaderEpochs
from siltstone.log.directory import partition_files
from siltstone.log.indexes import ENTRY_OF_KIND, LARGEST_RELATIVE_OFFSET, encode_aborted
from siltstone.log.names import SEGMENT_KINDS, SNAPSHOT, parse_segment_file, segment_file
from siltstone.log.overflow import could_overflow, overflowed_segments, split_overflowed_segment
from siltstone.log.producers import ProducerEntry, ProducerStates, newest_snapshots, replay
from siltstone.log.recovery.scan import (
    SegmentScan,
    apply_batches,
    check_tail,
    contradict_markers,
    impossible_indexes,
    wrong_indexes,
)
from siltstone.log.replacement import finish_replacement
from siltstone.log.segments import Segment, floor_segment_index, segments_among

_REPLACED_FILES = (names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA)
"""Files of a partition, besides those of segments, that are first written under a temporary name."""


@dataclass(slots=True, kw_only=True)
class DirectoryChanges:
    """Changes one partition directory, or in a dry run only counts the changes.

    ``removed`` and ``truncated_bytes``: what was done. ``listing``: the directory's files by name, as they
    are after each change. ``any``: something was changed.

    Every change can be repeated: a crash between any two of them leaves a directory that recovers to the same
    log. The caller writes the checkpoints and the clean-shutdown marker, which say that all of it is durable,
    after them.
    """

    directory: Path
    listing: dict[str, files.FileStat]
    dry_run: bool
    removed: list[str] = field(default_factory=list)
    truncated_bytes: int = 0
    any: bool = False
    _unsynced: bool = False

    def remove(self, name: str) -> None:
        """Remove a file if it exists; ``sync_names`` makes that durable."""
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
            self.sync_names()

    def write(self, name: str, data: bytes) -> None:
        """Replace a file's contents with ``data``, durably; a file with these bytes is left as it is."""
        path = self.directory / name
        size = self.listing[name].size if name in self.listing else -1
        has_prefix = size >= len(data) and files.read_slice(path, 0, len(data)) == data
        if has_prefix and size == len(data):
            return
        self.any = True
        if self.dry_run:
            return
        # An index that an unclean stop left preallocated, or with entries of records that were not flushed,
        # is truncated in place; anything else is replaced by a rename.
        if has_prefix:
            _truncate(path, len(data))
        else:
            files.replace(path, data)
        self.listing[name] = files.stat(path)

    def create(self, name: str) -> None:
        """Create an empty file; ``sync_names`` makes its name durable."""
        self.any = True
        if not self.dry_run:
            files.write_new(self.directory / name, b"")
            files.inherit_owner(self.directory / name)
            self.listing[name] = files.stat(self.directory / name)
            self._unsynced = True

    def truncate_log(self, name: str, size: int) -> None:
        """Truncate a segment's log, durably."""
        before = self.listing[name].size
        if size >= before:
            return
        self.truncated_bytes += before - size
        self.any = True
        if not self.dry_run:
            _truncate(self.directory / name, size)
            self.listing[name] = files.stat(self.directory / name)

    def sync(self, name: str) -> None:
        """Flush a file: what was read from it may be in the page cache alone."""
        if not self.dry_run:
            files.sync_file(self.directory / name)

    def sync_names(self) -> None:
        """Sync the directory if names were created or removed."""
        if self._unsynced:
            files.sync_directory(self.directory)
            self._unsynced = False


def _truncate(path: Path, size: int) -> None:
    """Truncate a file to ``size`` bytes, durably. Raises OSError."""
    with contextlib.closing(files.Appender(path)) as appender:
        appender.truncate(size)


@dataclass(slots=True, kw_only=True)
class ProducerHistory:
    """The producer states at offsets of one log (``ProducerStateManager``, as far as startup needs it).

    They are built from the newest valid snapshot and the batches after it. A corrupt snapshot is removed and
    the one before it is used; without any, the log is read from its start. ``snapshots``: the offsets that
    have a snapshot file.
    """

    changes: DirectoryChanges
    snapshots: set[int]
    log_start: int
    now_ms: int
    expiration_ms: int

    def _load_newest(self, upto: int) -> tuple[int, ProducerStates]:
        """The newest valid snapshot at or below offset ``upto``: its offset, and its producers that have not
        expired. Without one: the log start, and no producer."""
        in_log = [offset for offset in self.snapshots if self.log_start <= offset <= upto]
        for offset, entries in newest_snapshots(self.changes.directory, in_log):
            if entries is None:
                self.remove_snapshot(offset)
                continue
            states = ProducerStates(offset, entries)
            states.expire(self.now_ms, self.expiration_ms)
            return offset, states
        return self.log_start, ProducerStates()

    def rebuild_to(
        self, offset: int, segments: Sequence[Segment], snapshots_at: Sequence[int] = ()
    ) -> ProducerStates:
        """The states as of ``offset``; on the way, snapshots are written at the base offsets
        ``snapshots_at``.

        Checksums are not verified: batches below ``offset`` count as they are, as far as they can be read.
        Raises OSError.
        """
        start, states = self._load_newest(offset)
        ends = [*(segment.base_offset for segment in segments[1:]), start + 1]
        for segment, end in zip(segments, ends, strict=False):
            if segment.base_offset >= offset or start >= offset or end <= start:
                continue
            if segment.base_offset in snapshots_at and segment.base_offset > start:
                self.take_snapshot(segment.base_offset, states)
            with contextlib.suppress(CorruptRecordError):
                replay(states, segment, start, offset, apply_batches)
        return states

    def take_snapshot(self, offset: int, states: ProducerStates) -> None:
        """Write a snapshot, durably; at the log's start only if there is a producer."""
        if offset > self.log_start or (offset == self.log_start and states.entries()):
            self.changes.write(segment_file(offset, SNAPSHOT), states.snapshot())
            self.snapshots.add(offset)

    def remove_snapshot(self, offset: int) -> None:
        """Remove a snapshot."""
        self.snapshots.discard(offset)
        self.changes.remove(segment_file(offset, SNAPSHOT))

    def remove_stray_snapshots(self, bases: set[int], end_offset: int) -> None:
        """Remove snapshots that no start reads: outside the log, or at no segment's base unless it is the
        newest (``ProducerStateManager.removeStraySnapshots``)."""
        strays = self.snapshots - bases
        newest = max((offset for offset in strays if offset <= end_offset), default=-1)
        for offset in sorted(self.snapshots):
            outside = offset < self.log_start or offset > end_offset
            if outside or (offset in strays and not (offset == newest and offset > max(bases))):
                self.remove_snapshot(offset)


# Steps 1 to 3, before segments are read.


def finish_swap(changes: DirectoryChanges) -> list[str]:
    """Finish or drop an interrupted swap; the names of the new segments' logs.

    Raises UnsafeFileError, CorruptRecordError, OSError.
    """
    suffixes = (names.CLEANED, names.SWAP, names.DELETED)
    leftovers = [name for name in changes.listing if name.endswith(suffixes) and parse_segment_file(name)]
    if not leftovers:
        return []
    if changes.dry_run:
        swaps = [name for name in leftovers if name.endswith(f".log{names.SWAP}")]
        finished = sorted(name.removesuffix(names.SWAP) for name in swaps)
        removed = sorted(name for name in leftovers if not name.endswith(names.SWAP))
    else:
        finished, removed = finish_replacement(changes.directory)
        changes.listing = files.list_files(changes.directory)
    changes.removed += removed
    changes.any |= bool(finished or removed)
    return finished


def split_overflowed_segments(
    changes: DirectoryChanges, config: LogConfig, *, all_candidates: bool
) -> dict[int, list[int]]:
    """Split closed segments with offsets of 2³¹ and more above their base: {base: its parts' bases}.

    Brokers before 1.1 wrote such, and no index entry can name those offsets. With ``all_candidates`` the
    headers of all segments are read that may be such; else only if one of their indexes is impossible. A
    corrupt one is left to the scan. A dry run returns no new bases.
    """
    split: dict[int, list[int]] = {}
    listing, interval, size = changes.listing, config.index_interval_bytes, config.segment_index_bytes
    for segment, following in itertools.pairwise(segments_among(changes.directory, listing)):
        limit = segment.base_offset + LARGEST_RELATIVE_OFFSET + 1
        if not could_overflow(segment, following):
            continue
        if not all_candidates and not impossible_indexes(segment, limit, listing, all_entries=False):
            continue
        with contextlib.suppress(CorruptRecordError):
            if overflowed_segments([segment, following]):
                bases = []
                if not changes.dry_run:
                    bases = split_overflowed_segment(
                        changes.directory, segment, index_interval=interval, index_bytes=size
                    )
                split[segment.base_offset] = bases
    if split:
        changes.any = True
        changes.listing = listing if changes.dry_run else files.list_files(changes.directory)
    return split


def remove_orphans(changes: DirectoryChanges, segments: Sequence[Segment]) -> set[int]:
    """Remove indexes without a log and files that were being written; returns the snapshots' offsets."""
    bases = {segment.base_offset for segment in segments}
    snapshots = set()
    for name in list(changes.listing):
        parsed = parse_segment_file(name.removesuffix(names.TEMPORARY))
        if name.endswith(names.TEMPORARY):
            if parsed or name.removesuffix(names.TEMPORARY) in _REPLACED_FILES:
                changes.remove(name)
        elif parsed is None or parsed.suffix or parsed.kind == "log":
            continue
        elif parsed.kind == SNAPSHOT:
            snapshots.add(parsed.base_offset)
        elif parsed.base_offset not in bases:
            changes.remove(name)
    return snapshots


# The recovery itself.


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A recovered partition directory, and what recovery did to it.

    ``producers`` are those at ``log_end_offset``, below which everything is durable now. ``damage``: corrupt
    batches below the recovery point, which are left as they are. ``notes``: what an operator should know.
    ``changed``: recovery changed a file.
    """

    directory: Path
    segments: tuple[Segment, ...]
    producers: tuple[ProducerEntry, ...]
    log_start_offset: int
    log_end_offset: int
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
    listing = partition_files(directory, owned=owned)
    changes = DirectoryChanges(directory=directory, listing=listing, dry_run=dry_run)
    finished = finish_swap(changes)
    split = split_overflowed_segments(changes, config, all_candidates=check or not clean)
    recovery = _Recovery(
        changes, split, clean=clean, check=check, log_start=log_start, config=config, now_ms=now_ms
    )
    end = recovery.run(recovery_point)
    return Recovered(
        directory=directory,
        segments=tuple(segments_among(directory, changes.listing) if changes.any else recovery.segments),
        producers=tuple(recovery.states.entries()),
        log_start_offset=recovery.log_start,
        log_end_offset=end,
        truncated_bytes=changes.truncated_bytes,
        rebuilt_indexes=tuple(recovery.rebuilt),
        finished_swaps=tuple(finished),
        removed_files=tuple(changes.removed),
        damage=tuple(recovery.damage),
        notes=tuple(recovery.notes),
        changed=changes.any,
    )


class _Recovery:
    """Steps 3 to 7 for one partition: ``run`` once. ``split``: from ``split_overflowed_segments``."""

    def __init__(
        self,
        changes: DirectoryChanges,
        split: Mapping[int, Sequence[int]],
        *,
        clean: bool,
        check: bool,
        log_start: int,
        config: LogConfig,
        now_ms: int,
    ) -> None:
        self._changes = changes
        self._clean = clean
        self._check = check
        self._config = config
        self._checkpointed_start = max(log_start, 0)
        self.segments = segments_among(changes.directory, changes.listing)
        first = self.segments[0].base_offset if self.segments else 0
        self.log_start = max(self._checkpointed_start, first)
        self.states = ProducerStates()
        self.rebuilt: list[str] = []
        self.damage: list[CorruptFileError] = []
        self.notes: list[str] = []
        for base, bases in split.items():
            outcome = f"was split: {', '.join(map(str, bases))}" if bases else "is to be split"
            log = segment_file(base, "log")
            self.notes.append(f"{log}: its offsets are too far apart for its indexes; it {outcome}")
        # A dry run reads these segments as they are.
        self._overflowed = {base for base, bases in split.items() if not bases}
        self._epochs: LeaderEpochs | None = None
        with contextlib.suppress(CorruptFileError):
            self._epochs = LeaderEpochs(changes.directory)
        latest = self._epochs.latest_epoch if self._epochs else None
        self._latest_epoch = -1 if latest is None else latest
        self._new_epochs: list[tuple[int, int]] = []
        self._previous_epoch = -1
        self._indexes_contradict_markers = False
        self._history = ProducerHistory(
            changes=changes,
            snapshots=remove_orphans(changes, self.segments),
            log_start=self.log_start,
            now_ms=now_ms,
            expiration_ms=config.producer_id_expiration_ms,
        )

    def run(self, recovery_point: int) -> int:
        """Recover the log; returns its end offset.

        ``durable``: how many segments are taken as durable, so that their indexes alone are checked. All
        later ones are scanned::

            clean stop, valid tail      all segments; the indexes of the active one were checked with its tail
            clean stop, corrupt tail    all but the active segment: a clean stop has flushed them
            crash                       those below the segment that the recovery point is in
            no segment                  none: the log begins empty
        """
        self._indexes_contradict_markers = self._check and contradict_markers(self.segments)
        end = self._tail_end() if self._clean else None
        durable = len(self.segments) - 1
        if end is not None:
            durable += self._check
        elif not self._clean:
            durable = max(floor_segment_index(self.segments, recovery_point), 0)
        for number in range(durable):
            self._check_durable(number)
        if end is not None:
            self._load_producers(end)
        elif self.segments:
            end = self._scan_from(durable)
        # As in ``LogLoader.load``: below the log start nothing is left that readers may see.
        if end is None or end < self._checkpointed_start:
            return self._start_empty()
        self._history.remove_stray_snapshots({segment.base_offset for segment in self.segments}, end)
        self._write_epochs(end)
        self._changes.sync_names()
        return end

    def _offset_limit(self, number: int) -> int:
        """An offset that is above all of a segment's."""
        base = self.segments[number].base_offset
        maximum = base + LARGEST_RELATIVE_OFFSET + 1
        if number + 1 == len(self.segments):
            return maximum
        following = self.segments[number + 1].base_offset
        return following if base in self._overflowed else min(maximum, following)

    def _tail_end(self) -> int | None:
        """After a clean stop: the end offset, None where the active segment has to be scanned."""
        if not self.segments or self._epochs is None:
            return None
        active = self.segments[-1]
        limit = self._offset_limit(len(self.segments) - 1)
        if impossible_indexes(active, limit, self._changes.listing, all_entries=False):
            return None
        return check_tail(active)

    # Step 4: below the recovery point

    def _check_durable(self, number: int) -> None:
        """Check a segment below the recovery point: its indexes, and with ``check`` its batches."""
        segment, listing = self.segments[number], self._changes.listing
        all_entries = self._check or not self._clean
        invalid = impossible_indexes(segment, self._offset_limit(number), listing, all_entries=all_entries)
        if not invalid and not self._check:
            return
        states = self._history.rebuild_to(segment.base_offset, self.segments)
        scan = self._scan(number, states, keep_going=True)
        self.damage += scan.skipped if scan.damage is None else (*scan.skipped, scan.damage)
        if self._check and scan.damage is None:
            exact = self._indexes_contradict_markers
            invalid += wrong_indexes(segment, listing, scan.aborted, exact_transactions=exact)
        if invalid:
            self._write_indexes(segment, scan, invalid)
        if self._check:
            self._note_gaps(number, scan)

    def _note_gaps(self, number: int, scan: SegmentScan) -> None:
        if self._config.compacts:
            return
        log = segment_file(self.segments[number].base_offset, "log")
        if scan.gaps and not scan.skipped:
            self.notes.append(f"{log}: {scan.gaps} gaps between offsets, as cleaning leaves them")
        if number + 1 < len(self.segments) and scan.damage is None:
            following = self.segments[number + 1].base_offset
            if scan.next_offset < following:
                self.notes.append(
                    f"{log}: offsets {scan.next_offset} to {following - 1} are missing after it"
                )

    def _scan(self, number: int, states: ProducerStates, *, keep_going: bool = False) -> SegmentScan:
        limit = self._offset_limit(number)
        scan = SegmentScan(self.segments[number], self._config, limit_offset=limit, keep_going=keep_going)
        scan.run(states)
        return scan

    def _write_indexes(
        self, segment: Segment, scan: SegmentScan, invalid: Sequence[str] | None = None
    ) -> None:
        """Write a scanned segment's indexes: those ``invalid`` and those that are missing; None: all."""
        built = scan.indexes.finish()
        built["txnindex"] = encode_aborted(scan.aborted)
        for kind, data in built.items():
            name = segment_file(segment.base_offset, kind)
            exists = name in self._changes.listing
            if kind == "txnindex" and not exists and not data:
                continue
            if invalid is not None and exists and name not in invalid:
                continue
            # A dry run did not split an overflowed segment: no index of it can be right.
            wrong = kind != "txnindex" and segment.base_offset in self._overflowed
            wrong = wrong or name in (invalid or ()) or not exists
            if wrong or not self._is_prefix_or_extension(name, kind, data):
                self.rebuilt.append(name)
            self._changes.write(name, data)

    def _is_prefix_or_extension(self, name: str, kind: str, data: bytes) -> bool:
        """Is an index on disk right, but for preallocated zeros, or for entries that its end has or lacks?"""
        existing = files.read_bytes(self._changes.directory / name)
        whole = len(existing) % ENTRY_OF_KIND[kind].itemsize == 0
        return whole and (data.startswith(existing.rstrip(b"\0")) or existing.startswith(data))

    # Step 5: from the recovery point on

    def _scan_from(self, first: int) -> int:
        """Scan the segments from number ``first`` on and truncate the log at the first damage; its end."""
        bases = [segment.base_offset for segment in self.segments]
        end = bases[first]
        self._rebuild_producers(end)
        for number in range(first, len(bases)):
            segment = self.segments[number]
            if number > first:
                self._history.take_snapshot(segment.base_offset, self.states)
            scan = self._scan(number, self.states)
            self._note_epochs(scan.epochs)
            end = scan.next_offset
            if scan.damage is None:
                # After a killed process the page cache has bytes that the disk may not have.
                self._changes.sync(segment_file(segment.base_offset, "log"))
            else:
                self._truncate_after(number, scan)
            self._note_gaps(number, scan)
            self._write_indexes(segment, scan)
            if scan.damage is not None:
                break
        self._history.take_snapshot(end, self.states)
        return end

    def _truncate_after(self, number: int, scan: SegmentScan) -> None:
        """End the log where the scan of a segment ended. Later segments are removed first: after a crash in
        between, the next start finds the damage again and removes the rest."""
        self.notes.append(f"truncated at {scan.damage}")
        later = [segment.base_offset for segment in self.segments[number + 1 :]]
        self._history.snapshots -= set(later)
        self._changes.remove_segments(later)
        del self.segments[number + 1 :]
        self._changes.truncate_log(segment_file(self.segments[number].base_offset, "log"), scan.size)

    def _note_epochs(self, epochs: Sequence[tuple[int, int]]) -> None:
        """Collect the leader epochs that ``leader-epoch-checkpoint`` lacks; note those that decrease."""
        for epoch, base in epochs:
            if epoch > self._latest_epoch:
                self._new_epochs.append((epoch, base))
                self._latest_epoch = epoch
            if 0 <= epoch < self._previous_epoch:
                self.notes.append(
                    f"the leader epoch decreases from {self._previous_epoch} to {epoch} at offset {base}"
                )
            self._previous_epoch = epoch

    # Steps 6 and 7: producers and epochs at the log's end

    def _load_producers(self, end: int) -> None:
        """After a clean stop: from the snapshot at the end. Without any snapshot there is no producer, as in
        ``UnifiedLog.rebuildProducerState``: the log was written before there were snapshots."""
        if self._history.snapshots:
            self._rebuild_producers(end)
            return
        for offset in (*(segment.base_offset for segment in self.segments[-2:]), end):
            self._history.take_snapshot(offset, self.states)

    def _rebuild_producers(self, offset: int) -> None:
        """The states as of ``offset``, with snapshots there and, as in Kafka, at the last two segments."""
        last_two = [segment.base_offset for segment in self.segments[-2:]]
        self.states = self._history.rebuild_to(offset, self.segments, snapshots_at=last_two)
        if offset not in self._history.snapshots:
            self._history.take_snapshot(offset, self.states)

    def _write_epochs(self, end: int) -> None:
        if self._epochs is None:
            self._changes.remove(names.LEADER_EPOCH_CHECKPOINT)
            self._changes.sync_names()
            if not self._changes.dry_run:
                self._epochs = LeaderEpochs(self._changes.directory)
        if self._changes.dry_run or self._epochs is None:
            return
        before = self._epochs.entries
        for epoch, base in self._new_epochs:
            self._epochs.assign(epoch, base)
        # The start first: an epoch that it moves to the end of an empty log is removed with the end.
        self._epochs.truncate_from_start(self.log_start)
        self._epochs.truncate_from_end(end)
        self._changes.any |= self._epochs.entries != before

    def _start_empty(self) -> int:
        """Make the log one empty segment at its start: it had none, or ended below its start."""
        if self.segments:
            start = self._checkpointed_start
            self.notes.append(f"ended below its log start offset {start}; it is empty now and starts there")
        self._changes.remove_segments([segment.base_offset for segment in self.segments])
        self.log_start = self._checkpointed_start
        for offset in sorted(self._history.snapshots):
            self._history.remove_snapshot(offset)
        for kind in SEGMENT_KINDS[:3]:
            self._changes.create(segment_file(self.log_start, kind))
        self._changes.sync_names()
        self.states = ProducerStates()
        self._write_epochs(self.log_start)
        return self.log_start
