"""Recovers a partition directory before its log is opened (Kafka's ``LogLoader``).

The steps, with those of ``LogLoader.load`` in parentheses::

    1 complete an interrupted swap, or remove its files   (removeTempFilesAndCollectSwapFiles,
                                                          completeSwapOperations)
    2 split overflowed closed segments                    (retryOnOffsetOverflow)
    3 remove files that belong to no segment              (loadSegmentFiles)
    4 check the indexes of segments below the recovery point, and rebuild an index with entries that cannot
      be right                                            (LogSegment.sanityCheck)
    5 after a crash: scan every segment from the recovery point on, truncate the log at the first corrupt
      batch, rebuild the indexes                          (recoverLog, recoverSegment)
      after a clean shutdown: check the last batches of the active segment; scan it if one is corrupt
    6 rebuild the producer states, write snapshots        (UnifiedLog.rebuildProducerState)
    7 truncate the leader epochs to the log's start and end; rebuild a damaged file of them from the batches
      of all segments

Where this differs from ``LogLoader.recoverLog``:

- Kafka checks only that an ``.index`` exists and that a ``.txnindex`` is sane; here the entries of indexes
  are checked, too, and after a clean shutdown the last batches.
- Kafka splits an overflowed active segment; here a log that has one is refused (CorruptRecordError).
- A batch with a wrong magic byte is corrupt. Kafka accepts it, since no checksum covers that byte.
- Corruption below the recovery point is reported and left as it is. Those bytes were durable, so no
  interrupted write explains it, and truncating there would lose valid records.
- A log whose offsets decrease is refused (CorruptRecordError); Kafka does not start.
- A wrong index below the recovery point is rebuilt too.
- With a damaged ``leader-epoch-checkpoint`` Kafka takes the whole directory offline (``LeaderEpochFileCache``
  cannot be read); here its epochs are taken from the batches, which have them.

A crash may interrupt any step: the next start repeats it. ``directories`` writes the recovery point and the
clean-shutdown marker afterwards, when all of these changes are durable.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from siltstone.base import files
from siltstone.base.config import LONG_MAX, LogConfig
from siltstone.base.errors import CorruptFileError, CorruptRecordError
from siltstone.log import names
from siltstone.log.checkpoints import LeaderEpochs, encode_epochs, with_epoch
from siltstone.log.directory import partition_files
from siltstone.log.indexes import ENTRY_OF_KIND, LARGEST_RELATIVE_OFFSET, encode_aborted
from siltstone.log.names import SEGMENT_KINDS, SNAPSHOT, parse_segment_file, segment_file
from siltstone.log.overflow import could_overflow, overflowed_segments, split_overflowed_segment
from siltstone.log.producers import ProducerEntry, ProducerStates, newest_snapshots, replay
from siltstone.log.recovery.scan import (
    SegmentScan,
    apply_batches,
    check_tail,
    impossible_indexes,
    indexes_contradict_markers,
    read_epochs,
    wrong_indexes,
)
from siltstone.log.replacement import finish_replacement
from siltstone.log.segments import Segment, floor_segment_index, segments_of_listing

_REPLACED_FILES = (names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA)
"""Files of a partition that are replaced: written under a temporary name, then renamed."""


@dataclass(slots=True, kw_only=True)
class DirectoryChanges:
    """Changes the files of one partition directory; a dry run only records what it would change.

    ``listing``: the directory's files by name, kept up to date. ``removed``: names of removed files.
    ``truncated_bytes``: how many bytes of batches were removed. ``is_changed``: there was any change.

    After a crash between two changes the next start recovers the same log. The checkpoints and the
    clean-shutdown marker say that all changes are durable, so the caller writes them last.
    """

    directory: Path
    listing: dict[str, files.FileStat]
    dry_run: bool
    removed: list[str] = field(default_factory=list)
    truncated_bytes: int = 0
    is_changed: bool = False
    _has_unsynced_names: bool = False

    def remove(self, name: str) -> None:
        """Remove a file if it exists; ``sync_names`` makes that durable."""
        if self.listing.pop(name, None) is None:
            return
        self.removed.append(name)
        self.is_changed = True
        if not self.dry_run:
            with contextlib.suppress(FileNotFoundError):
                files.unlink(self.directory / name)
            self._has_unsynced_names = True

    def remove_segments(self, bases: Sequence[int]) -> None:
        """Remove segments, durably, the last one first. Their bytes count as truncated.

        A crash must not leave a later segment without an earlier one, so each removal is synced before the
        next begins. A segment's ``.log`` is removed last, so that no index or snapshot is left without a log.
        """
        for base in sorted(bases, reverse=True):
            log = self.listing.get(segment_file(base, "log"))
            self.truncated_bytes += log.size if log is not None else 0
            for kind in (SNAPSHOT, *reversed(SEGMENT_KINDS)):
                self.remove(segment_file(base, kind))
            self.sync_names()

    def write(self, name: str, data: bytes) -> None:
        """Replace a file's contents with ``data``, durably; a file that already has these bytes is left."""
        path = self.directory / name
        size = self.listing[name].size if name in self.listing else -1
        has_prefix = size >= len(data) and files.read_slice(path, 0, len(data)) == data
        if has_prefix and size == len(data):
            return
        self.is_changed = True
        if self.dry_run:
            return
        # After a crash an index may have the right entries and more: preallocated zeros, or entries of
        # records that were truncated. Then truncating it is enough; any other file is replaced by a rename.
        if has_prefix:
            _truncate(path, len(data))
        else:
            files.replace(path, data)
        self.listing[name] = files.stat(path)

    def create(self, name: str) -> None:
        """Create an empty file; ``sync_names`` makes its name durable."""
        self.is_changed = True
        if not self.dry_run:
            files.write_new(self.directory / name, b"")
            files.inherit_owner(self.directory / name)
            self.listing[name] = files.stat(self.directory / name)
            self._has_unsynced_names = True

    def truncate_log(self, name: str, size: int) -> None:
        """Truncate a segment's log, durably."""
        before = self.listing[name].size
        if size >= before:
            return
        self.truncated_bytes += before - size
        self.is_changed = True
        if not self.dry_run:
            _truncate(self.directory / name, size)
            self.listing[name] = files.stat(self.directory / name)

    def sync(self, name: str) -> None:
        """Flush a file to disk: after a killed process its bytes may be only in the page cache."""
        if not self.dry_run:
            files.sync_file(self.directory / name)

    def sync_names(self) -> None:
        """Sync the directory if names were created or removed."""
        if self._has_unsynced_names:
            files.sync_directory(self.directory)
            self._has_unsynced_names = False


def _truncate(path: Path, size: int) -> None:
    """Truncate a file to ``size`` bytes, durably. Raises OSError."""
    with contextlib.closing(files.Appender(path)) as appender:
        appender.truncate(size)


@dataclass(slots=True, kw_only=True)
class ProducerSnapshots:
    """One log's producer snapshots, and producer states built from them (Kafka's ``ProducerStateManager``).

    The states at an offset are those of the newest valid snapshot at or below it, with the batches from the
    snapshot to the offset applied. A corrupt snapshot is removed, and the one before it is used. Without a
    snapshot the log is read from its start. ``offsets``: those that have a snapshot file. ``expiration_ms``:
    ``producer.id.expiration.ms``.
    """

    changes: DirectoryChanges
    offsets: set[int]
    log_start_offset: int
    now_ms: int
    expiration_ms: int

    def _load_newest_snapshot(self, end_offset: int) -> tuple[int, ProducerStates]:
        """The newest valid snapshot up to ``end_offset``: (its offset, its producers that have not expired).

        Without a snapshot: the log start offset, and no producer.
        """
        in_log = [offset for offset in self.offsets if self.log_start_offset <= offset <= end_offset]
        for offset, entries in newest_snapshots(self.changes.directory, in_log):
            if entries is None:
                self.remove_snapshot(offset)
                continue
            states = ProducerStates(offset, entries)
            states.expire(self.now_ms, self.expiration_ms)
            return offset, states
        return self.log_start_offset, ProducerStates()

    def rebuild_to(
        self, offset: int, segments: Sequence[Segment], snapshots_at: Sequence[int] = ()
    ) -> ProducerStates:
        """The producer states at ``offset``. Writes snapshots at the base offsets in ``snapshots_at``.

        Checksums are not checked. A segment with a damaged batch counts up to that batch. Raises OSError.
        """
        start, states = self._load_newest_snapshot(offset)
        ends = [*(segment.base_offset for segment in segments[1:]), LONG_MAX]
        for segment, end in zip(segments, ends, strict=False):
            if segment.base_offset >= offset or start >= offset or end <= start:
                continue
            if segment.base_offset in snapshots_at and segment.base_offset > start:
                self.take_snapshot(segment.base_offset, states)
            with contextlib.suppress(CorruptRecordError):
                replay(states, segment, start, offset, apply_batches)
        return states

    def take_snapshot(self, offset: int, states: ProducerStates) -> None:
        """Write a snapshot, durably. At the log start offset there is one only if there is a producer."""
        if offset > self.log_start_offset or (offset == self.log_start_offset and states.entries()):
            self.changes.write(segment_file(offset, SNAPSHOT), states.snapshot())
            self.offsets.add(offset)

    def remove_snapshot(self, offset: int) -> None:
        """Remove the snapshot at ``offset``."""
        self.offsets.discard(offset)
        self.changes.remove(segment_file(offset, SNAPSHOT))

    def remove_stray_snapshots(self, bases: set[int], end_offset: int) -> None:
        """Remove the snapshots that no start reads (Kafka's ``ProducerStateManager.removeStraySnapshots``).

        These are snapshots outside of the log, and snapshots at an offset that is no segment's base offset.
        But the newest one of the second kind stays if it is above all base offsets: a shutdown writes a
        snapshot at the log's end. ``bases``: the segments' base offsets.
        """
        strays = self.offsets - bases
        newest = max((offset for offset in strays if offset <= end_offset), default=-1)
        for offset in sorted(self.offsets):
            is_outside = offset < self.log_start_offset or offset > end_offset
            if is_outside or (offset in strays and not (offset == newest and offset > max(bases))):
                self.remove_snapshot(offset)


# Steps 1 to 3, before segments are read.


def finish_swap(changes: DirectoryChanges) -> list[str]:
    """Complete an interrupted swap, or remove its files; returns the names of the new segments' logs.

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
    changes.is_changed |= bool(finished or removed)
    return finished


def split_overflowed_segments(
    changes: DirectoryChanges, config: LogConfig, *, all_candidates: bool
) -> dict[int, list[int]]:
    """Split overflowed closed segments; returns {base offset: base offsets of the segments that replace it}.

    Their offsets reach 2³¹ or more above their base offset, which no index entry can hold; brokers before 1.1
    wrote such segments. ``all_candidates``: read the headers of every segment that may have such offsets;
    otherwise only of a segment that also has an index that cannot be right. A corrupt segment is left to the
    scan. A dry run splits nothing and returns no new base offsets.
    """
    split: dict[int, list[int]] = {}
    listing, interval, size = changes.listing, config.index_interval_bytes, config.segment_index_bytes
    for segment, next_segment in itertools.pairwise(segments_of_listing(changes.directory, listing)):
        limit = segment.base_offset + LARGEST_RELATIVE_OFFSET + 1
        if not could_overflow(segment, next_segment):
            continue
        if not all_candidates and not impossible_indexes(segment, limit, listing, all_entries=False):
            continue
        with contextlib.suppress(CorruptRecordError):
            if overflowed_segments([segment, next_segment]):
                bases = []
                if not changes.dry_run:
                    bases = split_overflowed_segment(
                        changes.directory, segment, index_interval=interval, index_bytes=size
                    )
                split[segment.base_offset] = bases
    if split:
        changes.is_changed = True
        changes.listing = listing if changes.dry_run else files.list_files(changes.directory)
    return split


def remove_orphans(changes: DirectoryChanges, segments: Sequence[Segment]) -> set[int]:
    """Remove indexes without a ``.log``, and temporary files that a crash left; returns the offsets of the
    producer snapshots."""
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
class RecoveredPartition:
    """The result of recovering a partition directory (Kafka's ``LoadedLogOffsets``).

    Everything below ``log_end_offset`` is durable now; ``producers`` are those at that offset.
    ``truncated_bytes``: how many bytes of batches were removed. ``rebuilt_indexes``, ``removed_files``: names
    of files; ``finished_swaps``: names of new segments' logs. ``damage``: corrupt batches below the recovery
    point, which recovery left as they are. ``notes``: what else an operator should know. ``changed``:
    recovery changed a file. In a dry run these fields say what a recovery would do.
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
    had_clean_shutdown: bool,
    recovery_point: int,
    log_start_offset: int,
    config: LogConfig,
    now_ms: int,
    check: bool = False,
    require_owner: bool = True,
    dry_run: bool = False,
) -> RecoveredPartition:
    """Recover one partition directory.

    ``recovery_point`` and ``log_start_offset`` are the checkpoints' entries, 0 without one. ``check``: read
    the segments below the recovery point too, and report damage in them. ``require_owner``: all files must
    belong to the directory's owner. ``dry_run``: change nothing. Raises CorruptRecordError for a log that
    cannot be served, UnsafeFileError for a link, a device or another user's file, OSError.
    """
    listing = partition_files(directory, require_owner=require_owner)
    changes = DirectoryChanges(directory=directory, listing=listing, dry_run=dry_run)
    finished = finish_swap(changes)
    split = split_overflowed_segments(changes, config, all_candidates=check or not had_clean_shutdown)
    recovery = _Recovery(
        changes,
        split,
        had_clean_shutdown=had_clean_shutdown,
        check=check,
        log_start_offset=log_start_offset,
        config=config,
        now_ms=now_ms,
    )
    end = recovery.run(recovery_point)
    return RecoveredPartition(
        directory=directory,
        segments=tuple(
            segments_of_listing(directory, changes.listing) if changes.is_changed else recovery.segments
        ),
        producers=tuple(recovery.states.entries()),
        log_start_offset=recovery.log_start_offset,
        log_end_offset=end,
        truncated_bytes=changes.truncated_bytes,
        rebuilt_indexes=tuple(recovery.rebuilt_indexes),
        finished_swaps=tuple(finished),
        removed_files=tuple(changes.removed),
        damage=tuple(recovery.damage),
        notes=tuple(recovery.notes),
        changed=changes.is_changed,
    )


class _Recovery:
    """Steps 3 to 7 for one partition; call ``run`` once.

    ``split``: the result of ``split_overflowed_segments``.
    """

    def __init__(
        self,
        changes: DirectoryChanges,
        split: Mapping[int, Sequence[int]],
        *,
        had_clean_shutdown: bool,
        check: bool,
        log_start_offset: int,
        config: LogConfig,
        now_ms: int,
    ) -> None:
        self._changes = changes
        self._had_clean_shutdown = had_clean_shutdown
        self._check = check
        self._config = config
        self._checkpointed_log_start = max(log_start_offset, 0)
        self.segments = segments_of_listing(changes.directory, changes.listing)
        first = self.segments[0].base_offset if self.segments else 0
        self.log_start_offset = max(self._checkpointed_log_start, first)
        self.states = ProducerStates()
        self.rebuilt_indexes: list[str] = []
        self.damage: list[CorruptFileError] = []
        self.notes: list[str] = []
        for base, bases in split.items():
            outcome = f"was split: {', '.join(map(str, bases))}" if bases else "is to be split"
            log = segment_file(base, "log")
            self.notes.append(f"{log}: its offsets are too far apart for its indexes; it {outcome}")
        # Overflowed segments that a dry run did not split.
        self._overflowed = {base for base, bases in split.items() if not bases}
        self._epochs: LeaderEpochs | None = None
        try:
            self._epochs = LeaderEpochs(changes.directory)
        except CorruptFileError as error:
            name = names.LEADER_EPOCH_CHECKPOINT
            self.notes.append(f"{name} is damaged ({error.reason}); the epochs are those of the batches")
        latest = self._epochs.latest_epoch if self._epochs else None
        self._latest_epoch = -1 if latest is None else latest  # in the checkpoint or in ``_new_epochs``
        self._new_epochs: list[tuple[int, int]] = []
        self._previous_epoch = -1  # that of the batch before: an epoch that decreases gets a note
        self._indexes_contradict_markers = False
        self._snapshots = ProducerSnapshots(
            changes=changes,
            offsets=remove_orphans(changes, self.segments),
            log_start_offset=self.log_start_offset,
            now_ms=now_ms,
            expiration_ms=config.producer_id_expiration_ms,
        )

    def run(self, recovery_point: int) -> int:
        """Recover the log; returns its end offset.

        The first ``durable_count`` segments were flushed, so only their indexes are checked. All later ones
        are scanned. ``durable_count`` is::

            clean shutdown, valid tail      all but the active segment, whose indexes were checked with its
                                            tail; with ``check`` all segments
            clean shutdown, corrupt tail    all but the active segment
            crash                           those below the segment with the recovery point
            no segment                      none: the log begins empty
        """
        self._indexes_contradict_markers = self._check and indexes_contradict_markers(self.segments)
        end = self._tail_end() if self._had_clean_shutdown else None
        durable_count = len(self.segments) - 1
        if end is not None:
            durable_count += 1 if self._check else 0
        elif not self._had_clean_shutdown:
            durable_count = max(floor_segment_index(self.segments, recovery_point), 0)
        for number in range(durable_count):
            self._check_durable_segment(number)
        if self._epochs is None and not self._changes.dry_run:  # a dry run does not write epochs
            for segment in self.segments[:durable_count]:
                self._note_epochs(read_epochs(segment))
        if end is not None:
            self._load_producers(end)
        elif self.segments:
            end = self._scan_from(durable_count)
        # As in ``LogLoader.load``: a log that ends below its log start offset has no record for a reader.
        if end is None or end < self._checkpointed_log_start:
            return self._start_empty()
        self._snapshots.remove_stray_snapshots({segment.base_offset for segment in self.segments}, end)
        self._write_epochs(end)
        self._changes.sync_names()
        return end

    def _offset_limit(self, number: int) -> int:
        """The offset below which all offsets of segment ``number`` must be: the next segment's base offset,
        or the first one that its indexes cannot hold."""
        base = self.segments[number].base_offset
        maximum = base + LARGEST_RELATIVE_OFFSET + 1
        if number + 1 == len(self.segments):
            return maximum
        next_base = self.segments[number + 1].base_offset
        return next_base if base in self._overflowed else min(maximum, next_base)

    def _tail_end(self) -> int | None:
        """The log end offset after a clean shutdown; None if the active segment has to be scanned."""
        if not self.segments or self._epochs is None:
            return None
        active = self.segments[-1]
        limit = self._offset_limit(len(self.segments) - 1)
        if impossible_indexes(active, limit, self._changes.listing, all_entries=False):
            return None
        return check_tail(active)

    # Step 4: below the recovery point

    def _check_durable_segment(self, number: int) -> None:
        """Check a segment below the recovery point: its indexes, and with ``check`` its batches."""
        segment, listing = self.segments[number], self._changes.listing
        all_entries = self._check or not self._had_clean_shutdown
        invalid = impossible_indexes(segment, self._offset_limit(number), listing, all_entries=all_entries)
        if not invalid and not self._check:
            return
        states = self._snapshots.rebuild_to(segment.base_offset, self.segments)
        scan = self._scan(number, states, skip_corrupt=True)
        self.damage += scan.skipped if scan.damage is None else (*scan.skipped, scan.damage)
        if self._check and scan.damage is None:
            # An index may have more entries than the log has markers, since cleaning removes markers. But if
            # some index contradicts its markers, none is trusted: each has to be exactly the log's.
            exact = self._indexes_contradict_markers
            invalid += wrong_indexes(segment, listing, scan.aborted, exact_transactions=exact)
        if invalid:
            self._write_indexes(segment, scan, invalid)
        if self._check:
            self._note_gaps(number, scan)

    def _note_gaps(self, number: int, scan: SegmentScan) -> None:
        """Add notes about missing offsets in or after a segment; in a compacted log they are normal."""
        if self._config.compacts:
            return
        log = segment_file(self.segments[number].base_offset, "log")
        if scan.gaps and not scan.skipped:
            self.notes.append(f"{log}: {scan.gaps} gaps between offsets, as cleaning leaves them")
        if number + 1 < len(self.segments) and scan.damage is None:
            next_base = self.segments[number + 1].base_offset
            if scan.next_offset < next_base:
                self.notes.append(
                    f"{log}: offsets {scan.next_offset} to {next_base - 1} are missing after it"
                )

    def _scan(self, number: int, states: ProducerStates, *, skip_corrupt: bool = False) -> SegmentScan:
        """A scan of segment ``number`` that has run; applies the segment's batches to ``states``."""
        limit = self._offset_limit(number)
        scan = SegmentScan(self.segments[number], self._config, offset_limit=limit, skip_corrupt=skip_corrupt)
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
            is_wrong = kind != "txnindex" and segment.base_offset in self._overflowed
            is_wrong = is_wrong or name in (invalid or ()) or not exists
            if is_wrong or not self._is_prefix_or_extension(name, kind, data):
                self.rebuilt_indexes.append(name)
            self._changes.write(name, data)

    def _is_prefix_or_extension(self, name: str, kind: str, data: bytes) -> bool:
        """Does an index on disk differ from ``data`` only at its end, in its last entries or by zeros?

        A crash leaves such an index, so it does not count as one that was wrong.
        """
        existing = files.read_bytes(self._changes.directory / name)
        has_whole_entries = len(existing) % ENTRY_OF_KIND[kind].itemsize == 0
        return has_whole_entries and (data.startswith(existing.rstrip(b"\0")) or existing.startswith(data))

    # Step 5: from the recovery point on

    def _scan_from(self, first: int) -> int:
        """Scan the segments from number ``first`` on and truncate the log at the first damage.

        Returns the log end offset.
        """
        bases = [segment.base_offset for segment in self.segments]
        end = bases[first]
        self._rebuild_producers(end)
        for number in range(first, len(bases)):
            segment = self.segments[number]
            if number > first:
                self._snapshots.take_snapshot(segment.base_offset, self.states)
            scan = self._scan(number, self.states)
            self._note_epochs(scan.epochs)
            end = scan.next_offset
            if scan.damage is None:
                self._changes.sync(segment_file(segment.base_offset, "log"))
            else:
                self._truncate_at_damage(number, scan)
            self._note_gaps(number, scan)
            self._write_indexes(segment, scan)
            if scan.damage is not None:
                break
        self._snapshots.take_snapshot(end, self.states)
        return end

    def _truncate_at_damage(self, number: int, scan: SegmentScan) -> None:
        """Truncate the log where the scan of segment ``number`` found damage.

        Later segments are removed first: after a crash in between, the next start finds the damage again.
        """
        self.notes.append(f"truncated at {scan.damage}")
        later = [segment.base_offset for segment in self.segments[number + 1 :]]
        self._snapshots.offsets -= set(later)
        self._changes.remove_segments(later)
        del self.segments[number + 1 :]
        self._changes.truncate_log(segment_file(self.segments[number].base_offset, "log"), scan.size)

    def _note_epochs(self, epochs: Sequence[tuple[int, int]]) -> None:
        """Collect the epochs that are missing in ``leader-epoch-checkpoint``; add a note where the epoch
        decreases. ``epochs``: (leader epoch, the offset at which it begins)."""
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
        """Load the producers after a clean shutdown, from the snapshot at the end.

        A log without any snapshot is older than Kafka's snapshots and has no producer, as in
        ``UnifiedLog.rebuildProducerState``.
        """
        if self._snapshots.offsets:
            self._rebuild_producers(end)
            return
        for offset in (*(segment.base_offset for segment in self.segments[-2:]), end):
            self._snapshots.take_snapshot(offset, self.states)

    def _rebuild_producers(self, offset: int) -> None:
        """Rebuild the states at ``offset``; write snapshots there and, as Kafka, at the last two segments."""
        last_two = [segment.base_offset for segment in self.segments[-2:]]
        self.states = self._snapshots.rebuild_to(offset, self.segments, snapshots_at=last_two)
        if offset not in self._snapshots.offsets:
            self._snapshots.take_snapshot(offset, self.states)

    def _write_epochs(self, end: int) -> None:
        """Step 7. ``end``: the log end offset."""
        if self._epochs is None:
            # All epochs in one write: after a crash before it, the next start finds the damaged file and
            # reads the epochs of all batches again.
            entries: list[tuple[int, int]] = []
            for epoch, base in self._new_epochs:
                entries = with_epoch(entries, epoch, base)
            self._changes.write(names.LEADER_EPOCH_CHECKPOINT, encode_epochs(entries))
        if self._changes.dry_run:
            return
        if self._epochs is None:
            self._epochs = LeaderEpochs(self._changes.directory)
        before = self._epochs.entries
        for epoch, base in self._new_epochs:
            self._epochs.assign(epoch, base)
        # The start first: in an empty log it moves an epoch to the end, where the second call removes it.
        self._epochs.truncate_from_start(self.log_start_offset)
        self._epochs.truncate_from_end(end)
        self._changes.is_changed |= self._epochs.entries != before

    def _start_empty(self) -> int:
        """Begin an empty log at the checkpoint's log start offset: the log had no segment, or ended below
        that offset. Returns the offset."""
        if self.segments:
            start = self._checkpointed_log_start
            self.notes.append(f"ended below its log start offset {start}; it is empty now and starts there")
        self._changes.remove_segments([segment.base_offset for segment in self.segments])
        self.log_start_offset = self._checkpointed_log_start
        for offset in sorted(self._snapshots.offsets):
            self._snapshots.remove_snapshot(offset)
        for kind in ("log", "index", "timeindex"):
            self._changes.create(segment_file(self.log_start_offset, kind))
        self._changes.sync_names()
        self.states = ProducerStates()
        self._write_epochs(self.log_start_offset)
        return self.log_start_offset
