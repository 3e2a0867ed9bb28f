"""Bringing a partition directory into order before it is opened (Kafka's ``LogLoader``).

::

    names ─► finish a swap ─► split what is too wide ─► take strays away ─► segments
      below the recovery point: are the indexes possible?          else built again
      from it on (after a crash): every batch's checksum           cut at the first bad one
      after a clean stop: the tail behind the last index entry     unsound: as after a crash
    ─► producer snapshots ─► leader epochs ─► Recovered

What was appended and not flushed may be missing, torn or nonsense after a crash: the log ends before the
first batch that is not sound. What is wrong below the recovery point was durable once, so that it is no torn
write: it is never cut off, only reported. Offsets that go back make the log refused (CorruptRecordError).

Every step can be made again, and nothing here says that the log is in order: the recovery point and the
clean-shutdown marker are ``recovery_directories``' to write, once everything they point to is durable.
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
from siltstone.log.epochs import LeaderEpochs
from siltstone.log.index_checks import Finding
from siltstone.log.indexes import ENTRY_OF_KIND, LARGEST_RELATIVE_OFFSET, TRANSACTION_ENTRY
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
from siltstone.log.partition_files import partition_files
from siltstone.log.producers import ProducerStates
from siltstone.log.recovery.scan import (
    SegmentScan,
    check_tail,
    contradict_markers,
    fold,
    impossible_indexes,
    wrong_indexes,
)
from siltstone.log.replacement import finish_replacement
from siltstone.log.segments import Segment, segment_holding, segments_among, windows
from siltstone.log.snapshots import ProducerEntry, read_snapshot

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
        path, known = self.directory / name, self.names.get(name)
        begins_so = known is not None and known.size >= len(data)
        begins_so = begins_so and (not data or files.read_slice(path, 0, len(data)) == data)
        if begins_so and known is not None and known.size == len(data):
            return
        self.any = True
        if self.dry_run:
            return
        if begins_so:
            cut(path, len(data))
        else:
            files.replace(path, data)
        self.names[name] = files.stat(path)

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


# Producer states while a log is recovered: from the newest sound snapshot, and the batches behind it.
#
# Kafka's ``ProducerStateManager`` as far as a start needs it. A snapshot that does not read is taken away and
# the one before it is used; without any, the log is gone through from its start.


class ProducerHistory:
    """The states at offsets of one log. ``snapshots`` are the offsets that have a snapshot file."""

    def __init__(
        self, changes: Changes, snapshots: Iterable[int], *, log_start: int, now_ms: int, expiration_ms: int
    ) -> None:
        self.snapshots = set(snapshots)
        self._changes = changes
        self._log_start = log_start
        self._now_ms = now_ms
        self._expiration_ms = expiration_ms

    def newest(self, upto: int) -> tuple[int, ProducerStates]:
        """The newest sound snapshot's offset, at most ``upto``, and its state.

        (log start, nobody) without one.
        """
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
        """The state as of ``offset``; snapshots are taken on the way at the bases in ``take``.

        Raises OSError. Checksums are not looked at: what lies below is taken as it is, as far as it reads.
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
                    # A batch in which the log starts counts whole, as where a broker reads from its start.
                    mine = (window.batches["last_offset"] >= start) & (bases < end)
                    fold(states, window.batches[mine], window.data)
                    if int(bases[-1]) >= end:
                        return
            except CorruptRecordError:
                return

    def take(self, offset: int, states: ProducerStates) -> None:
        """Write a snapshot, durably; none at the log's start, where nobody is known."""
        if offset > self._log_start or (offset == self._log_start and len(states)):
            self._changes.write(segment_file(offset, SNAPSHOT), states.snapshot())
            self.snapshots.add(offset)

    def remove(self, offset: int) -> None:
        """Take a snapshot away."""
        self.snapshots.discard(offset)
        self._changes.remove(segment_file(offset, SNAPSHOT))

    def tidy(self, bases: set[int], end_offset: int) -> None:
        """Take away what no start will read: outside the log, or of no segment unless it is the newest."""
        strays = self.snapshots - bases
        newest = max((offset for offset in strays if offset <= end_offset), default=-1)
        for offset in sorted(self.snapshots):
            outside = offset < self._log_start or offset > end_offset
            stray = offset in strays and not (offset == newest and offset > max(bases))
            if outside or stray:
                self.remove(offset)


# What is done before segments are looked at.

_FINISHED = "finished the swap of "
_REMOVED = "removed "


def finish_swap(changes: Changes) -> list[str]:
    """Finish a swap that is under way; the segments that it was finished for.

    Raises UnsafeFileError, CorruptRecordError, OSError.
    """
    suffixes = (CLEANED, SWAP, DELETED)
    left = [name for name in changes.names if name.endswith(suffixes) and parse_segment_file(name)]
    if not left:
        return []
    if changes.dry_run:
        finished = sorted(name.removesuffix(SWAP) for name in left if name.endswith(f".log{SWAP}"))
        removed = sorted(name for name in left if not name.endswith(SWAP))
    else:
        done = finish_replacement(changes.directory)
        finished = [line.removeprefix(_FINISHED) for line in done if line.startswith(_FINISHED)]
        removed = [line.removeprefix(_REMOVED) for line in done if line.startswith(_REMOVED)]
        changes.names = files.list_files(changes.directory)
    changes.removed += removed
    changes.any |= bool(finished or removed)
    return finished


def split_too_wide(changes: Changes, config: LogConfig, *, everywhere: bool) -> dict[int, list[int]]:
    """Split closed segments whose offsets no index can tell: {base: bases that it became}.

    Brokers before 1.1 left such. With ``everywhere`` they are looked for by their headers, else only where an
    index makes no sense. One that is damaged is left to the scan. A dry run names no new bases.
    """
    split: dict[int, list[int]] = {}
    names, interval, size = changes.names, config.index_interval_bytes, config.segment_index_bytes
    for segment, following in itertools.pairwise(segments_among(changes.directory, names)):
        limit = segment.base_offset + LARGEST_RELATIVE_OFFSET + 1
        if not could_overflow(segment, following):
            continue
        if not everywhere and not impossible_indexes(segment, limit, names, every_entry=False):
            continue
        with contextlib.suppress(CorruptRecordError):
            if overflowed([segment, following]):
                bases = []
                if not changes.dry_run:
                    bases = split_overflowed(changes.directory, segment, interval=interval, index_bytes=size)
                split[segment.base_offset] = bases
    if split:
        changes.any = True
        changes.names = names if changes.dry_run else files.list_files(changes.directory)
    return split


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


# The recovery itself.


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A partition directory in order, and what it took.

    ``producers`` are known at ``log_end_offset``. ``damage``: bad batches below the recovery point, which
    stay. ``notes``: what is odd, in words. ``changed``: was anything done to the directory?
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
    damage: tuple[Finding, ...]
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
    """Bring one partition directory into order.

    ``clean``: it was stopped cleanly. ``recovery_point`` and ``log_start`` are the checkpoints' entries, 0
    without one. ``check``: read what lies below the recovery point too, and report what is wrong in it.
    ``owned``: its files must be the directory owner's. ``dry_run``: change nothing. Raises CorruptRecordError
    for a log that cannot be served, UnsafeFileError for one with a file that is no file of its own, OSError.
    """
    changes = Changes(directory, partition_files(directory, owned=owned), dry_run=dry_run)
    finished = finish_swap(changes)
    split = split_too_wide(changes, config, everywhere=check or not clean)
    recovery = _Recovery(changes, clean=clean, log_start=log_start, config=config, now_ms=now_ms)
    recovery.note_split(split)
    end = recovery.run(recovery_point, check=check)
    return Recovered(
        directory=directory,
        segments=tuple(segments_among(directory, changes.names) if changes.any else recovery.segments),
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
        self.segments = segments_among(changes.directory, changes.names)
        first = self.segments[0].base_offset if self.segments else 0
        self.log_start = max(self._checkpointed_start, first)
        self.states = ProducerStates()
        self.rebuilt: list[str] = []
        self.damage: list[Finding] = []
        self.notes: list[str] = []
        self._epochs = self._load_epochs()
        self._too_wide: set[int] = set()
        self._distrusts_transactions = False
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
        """Say which segments were split; in a dry run they are read as they lie."""
        for base, new in split.items():
            log = segment_file(base, "log")
            what = f"was split: {', '.join(map(str, new))}" if new else "is to be split"
            self.notes.append(f"{log}: its offsets are too far apart for its indexes; it {what}")
            if not new:
                self._too_wide.add(base)

    def run(self, recovery_point: int, *, check: bool) -> int:
        """Do it; the log's end offset."""
        self._distrusts_transactions = check and contradict_markers(self.segments)
        end = self._tail_end() if self._clean else None
        first = len(self.segments)
        if end is None:
            holding = segment_holding(self.segments, recovery_point)
            first = len(self.segments) - 1 if self._clean else max(holding, 0)
        looked_at = end is not None and not check  # the active segment was, by its tail
        for number in range(min(first, len(self.segments) - looked_at)):
            self._look_at(number, check=check)
        if end is None and self.segments:
            end = self._scan_from(first)
        elif end is not None:
            self._load_producers(end)
        if end is None or end < self._checkpointed_start:
            return self._start_empty()
        self._history.tidy({segment.base_offset for segment in self.segments}, end)
        self._settle_epochs(end)
        self._changes.settle()
        return end

    # What is there

    def _load_epochs(self) -> LeaderEpochs | None:
        try:
            return LeaderEpochs(self._changes.directory)
        except CorruptFileError:
            return None

    def _limit(self, number: int) -> int:
        """No offset of a segment is as high."""
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
        if impossible_indexes(active, limit, self._changes.names, every_entry=False):
            return None
        return check_tail(active)

    # Below the recovery point

    def _look_at(self, number: int, *, check: bool) -> None:
        segment, names = self.segments[number], self._changes.names
        every_entry = check or not self._clean
        failing = impossible_indexes(segment, self._limit(number), names, every_entry=every_entry)
        if not failing and not check:
            return
        scan = self._scan(number, self._history.at(segment.base_offset, self.segments), keep_going=True)
        self.damage += scan.skipped if scan.damage is None else (*scan.skipped, scan.damage)
        if check and scan.damage is None:
            failing += wrong_indexes(segment, names, scan.aborted, exactly=self._distrusts_transactions)
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
        """Write a scanned segment's indexes: those that are ``failing``, and one that is missing; None:
        all."""
        indexes = scan.indexes.finish()
        built = {
            "index": indexes.offset_index,
            "timeindex": indexes.time_index,
            "txnindex": np.array(scan.aborted, TRANSACTION_ENTRY).tobytes(),
        }
        for kind, data in built.items():
            name = segment_file(segment.base_offset, kind)
            known = name in self._changes.names
            if kind == "txnindex" and not known and not data:
                continue
            if failing is not None and known and name not in failing:
                continue
            wrong = kind != "txnindex" and segment.base_offset in self._too_wide
            if wrong or name in (failing or ()) or not (known and self._was_of(name, kind, data)):
                self.rebuilt.append(name)
            self._changes.write(name, data)

    def _was_of(self, name: str, kind: str, data: bytes) -> bool:
        """Was an index the right one, but for zeros at its end, or entries that are to come or to go?"""
        before = files.read_bytes(self._changes.directory / name)
        whole = len(before) % ENTRY_OF_KIND[kind].itemsize == 0
        return whole and (data.startswith(before.rstrip(b"\0")) or before.startswith(data))

    # From the recovery point on

    def _scan_from(self, first: int) -> int:
        """Scan the segments from number ``first`` on, cut at the first damage; the end offset."""
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
            self._see_epochs(scan.epochs)
            end = scan.next_offset
            if scan.damage is None:
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
        """End the log at a damage: later segments go first, so that a crash leaves the damage to be found."""
        assert scan.damage is not None
        self.notes.append(f"cut at {scan.damage}")
        later = [segment.base_offset for segment in self.segments[number + 1 :]]
        self._history.snapshots -= set(later)
        self._changes.remove_segments(later)
        del self.segments[number + 1 :]
        self._changes.truncate_log(segment_file(self.segments[number].base_offset, "log"), scan.size)

    def _see_epochs(self, epochs: Sequence[tuple[int, int]]) -> None:
        """Epochs that are news, as a leader's ``leader-epoch-checkpoint`` would have them."""
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

    # The end of it

    def _load_producers(self, end: int) -> None:
        """After a clean stop: from the snapshot at the end; without any snapshot, nobody, as Kafka has it."""
        bases = [segment.base_offset for segment in self.segments]
        if not self._history.snapshots:
            for offset in (*bases[-2:], end):
                self._history.take(offset, self.states)
            return
        self.states = self._history.at(end, self.segments, take=bases[-2:])
        if end not in self._history.snapshots:
            self._history.take(end, self.states)

    def _settle_epochs(self, end: int) -> None:
        if self._epochs is None:
            self._changes.remove(LEADER_EPOCH_CHECKPOINT)
            self._changes.settle()
            if not self._changes.dry_run:
                self._epochs = LeaderEpochs(self._changes.directory)
        if self._changes.dry_run or self._epochs is None:
            return
        before = self._epochs.entries
        for epoch, base in self._seen_epochs:
            self._epochs.assign(epoch, base)
        self._epochs.truncate_from_start(self.log_start)  # first: what is moved to an empty log's end goes
        self._epochs.truncate_from_end(end)
        self._changes.any |= self._epochs.entries != before

    def _start_empty(self) -> int:
        """There is no segment, or the log ends below its start: one empty segment at the start."""
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
        self._settle_epochs(self.log_start)
        return self.log_start
