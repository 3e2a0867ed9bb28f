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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from siltstone.base import files
from siltstone.base.config import LogConfig
from siltstone.base.errors import CorruptFileError, CorruptRecordError
from siltstone.base.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT, Bytes, Directory, Int64
from siltstone.log.checkpoints import LeaderEpochs
from siltstone.log.indexes import ENTRY_OF_KIND, LARGEST_RELATIVE_OFFSET, TRANSACTION_ENTRY
from siltstone.log.names import LEADER_EPOCH_CHECKPOINT, SEGMENT_KINDS, SNAPSHOT, segment_file
from siltstone.log.producers import ProducerEntry, ProducerStates, read_snapshot
from siltstone.log.recovery.scan import Damage, SegmentScan, Visit, check_tail, scan_segment
from siltstone.log.recovery.survey import (
    Changes,
    contradict_markers,
    finish_swap,
    lacks_transactions,
    quick_trouble,
    remove_strays,
    split_too_wide,
    trouble_with_log,
    whole_trouble,
)
from siltstone.log.segments import Segment, segment_holding, segments_among, windows

# Producer states while a log is recovered: from the newest sound snapshot, and the batches behind it.
#
# Kafka's ``ProducerStateManager`` as far as a start needs it. A snapshot that does not read is taken away and
# the one before it is used; without any, the log is gone through from its start.

AbortedEntry = tuple[int, int, int, int, int]
"""A row of a ``.txnindex``: version, producer id, first, last and last stable offset."""


def fold(states: ProducerStates, batches: Directory, data: Bytes) -> list[AbortedEntry]:
    """Take batches of ``data`` into ``states``, as far as they matter; the transactions that they aborted.

    Raises CorruptRecordError for a marker that makes no sense.
    """
    rows = rows_that_matter(batches)
    mattering = batches if len(rows) == len(batches) else batches[rows]
    return [(0, *aborted) for aborted in states.update(mattering, data)]


def rows_that_matter(batches: Directory) -> Int64:
    """Rows that change a producer's state: of a run of one producer's like batches the first and the last.

    What lies between them is overwritten by the last, and opens no transaction that the first did not.
    Ascending; markers are all among them.
    """
    rows = np.flatnonzero(batches["producer_id"] >= 0)
    if len(rows) < 3:
        return rows
    producers = batches["producer_id"][rows]
    order = np.argsort(producers, kind="stable")
    producers, sorted_rows = producers[order], rows[order]
    flags = batches["attributes"][sorted_rows] & (CONTROL_BIT | TRANSACTIONAL_BIT)
    starts = np.empty(len(rows) + 1, bool)
    starts[0] = starts[-1] = True
    starts[1:-1] = (
        (producers[1:] != producers[:-1])
        | (flags[1:] != flags[:-1])
        | ((flags[1:] & CONTROL_BIT) != 0)
        | (np.diff(batches["producer_epoch"][sorted_rows]) != 0)
    )
    return np.sort(sorted_rows[starts[:-1] | starts[1:]])


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
        for offset in sorted((each for each in self.snapshots if each <= upto), reverse=True):
            if offset < self._log_start:
                break
            path = f"{self._changes.directory}/{segment_file(offset, SNAPSHOT)}"
            try:
                entries = read_snapshot(files.read_bytes(path), path, offset)
            except CorruptFileError:
                self.remove(offset)
                continue
            return offset, ProducerStates.load(entry for entry in entries if not self._is_expired(entry))
        return self._log_start, ProducerStates()

    def _is_expired(self, entry: ProducerEntry) -> bool:
        silent_ms = self._now_ms - entry.timestamp_ms
        return entry.open_transaction_offset < 0 and silent_ms >= self._expiration_ms

    def at(self, offset: int, segments: Sequence[Segment], take: Iterable[int] = ()) -> ProducerStates:
        """The state as of ``offset``; snapshots are taken on the way at the bases in ``take``.

        Raises OSError. Checksums are not looked at: what lies below is taken as it is, as far as it reads.
        """
        start, states = self.newest(offset)
        wanted = set(take)
        for number, segment in enumerate(segments):
            following = segments[number + 1].base_offset if number + 1 < len(segments) else None
            if segment.base_offset >= offset or start >= offset or (following or start + 1) <= start:
                continue
            if segment.base_offset in wanted and segment.base_offset > start:
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
    damage: tuple[Damage, ...]
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
    names, finished, removed = finish_swap(directory, owned=owned, dry_run=dry_run)
    everywhere = check or not clean
    names, split = split_too_wide(directory, names, config, everywhere=everywhere, dry_run=dry_run)
    changes = Changes(directory, names, dry_run=dry_run)
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
        removed_files=(*removed, *changes.removed),
        damage=tuple(recovery.damage),
        notes=tuple(recovery.notes),
        changed=bool(finished or removed or split) or changes.any,
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
        self.damage: list[Damage] = []
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
        if quick_trouble(active, self._limit(len(self.segments) - 1), self._changes.names):
            return None
        return check_tail(active)

    # Below the recovery point

    def _look_at(self, number: int, *, check: bool) -> None:
        segment, limit = self.segments[number], self._limit(number)
        failure = (quick_trouble if self._clean and not check else whole_trouble)(
            segment, limit, self._changes.names
        )
        if not failure and not check:
            return
        states = self._history.at(segment.base_offset, self.segments)
        aborted: list[AbortedEntry] = []

        def visit(data: Bytes, batches: Directory) -> None:
            aborted.extend(fold(states, batches, data))

        scan = self._scan(number, visit, keep_going=True)
        self.damage += scan.skipped if scan.damage is None else (*scan.skipped, scan.damage)
        if check and scan.damage is None:
            lying = trouble_with_log(segment, self._changes.names)
            lying += lacks_transactions(segment, self._changes.names, aborted)
            lying += self._distrusted(segment, aborted)
            failure += [name for name in lying if name not in failure]
        if failure:
            self._write_indexes(segment, scan, aborted, failure)
        if check:
            self._note_gaps(number, scan)

    def _distrusted(self, segment: Segment, aborted: Sequence[AbortedEntry]) -> list[str]:
        """A segment's transaction index that is not what its log says, where one of the log's is wrong.

        Else it may say more: cleaning takes an aborted transaction's data before its entry.
        """
        name = segment_file(segment.base_offset, "txnindex")
        if not self._distrusts_transactions or name not in self._changes.names:
            return []
        wanted = np.array(aborted, TRANSACTION_ENTRY).tobytes()
        return [] if files.read_bytes(self._changes.directory / name) == wanted else [name]

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

    def _scan(self, number: int, visit: Visit, *, keep_going: bool = False) -> SegmentScan:
        return scan_segment(
            self.segments[number],
            interval=self._config.index_interval_bytes,
            index_limit=self._config.segment_index_bytes,
            limit_offset=self._limit(number),
            keep_going=keep_going,
            visit=visit,
        )

    def _write_indexes(
        self,
        segment: Segment,
        scan: SegmentScan,
        aborted: Sequence[AbortedEntry],
        failure: Sequence[str] | None = None,
    ) -> None:
        """Write a scanned segment's indexes: those in ``failure``, and one that is missing; None: all."""
        built = {
            "index": scan.indexes.offset_index,
            "timeindex": scan.indexes.time_index,
            "txnindex": np.array(aborted, TRANSACTION_ENTRY).tobytes(),
        }
        for kind, data in built.items():
            name = segment_file(segment.base_offset, kind)
            known = name in self._changes.names
            if kind == "txnindex" and not known and not data:
                continue
            if failure is not None and known and name not in failure:
                continue
            wrong = kind != "txnindex" and segment.base_offset in self._too_wide
            if wrong or name in (failure or ()) or not (known and self._was_of(name, kind, data)):
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
            segment, aborted = self.segments[number], list[AbortedEntry]()
            if number > first:
                self._history.take(segment.base_offset, self.states)

            def visit(data: Bytes, batches: Directory, into: list[AbortedEntry] = aborted) -> None:
                into.extend(fold(self.states, batches, data))
                self._see_epochs(batches)

            scan = self._scan(number, visit)
            end = scan.next_offset
            if scan.damage is None:
                self._changes.sync(segment_file(segment.base_offset, "log"))
            else:
                self._cut(number, scan)
            self._note_gaps(number, scan)
            self._write_indexes(segment, scan, aborted)
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

    def _see_epochs(self, batches: Directory) -> None:
        """Epochs that are news, as a leader's ``leader-epoch-checkpoint`` would have them."""
        epochs = batches["leader_epoch"]
        for row in np.flatnonzero(np.diff(epochs, prepend=self._last_epoch)).tolist():
            epoch, base = int(epochs[row]), int(batches["base_offset"][row])
            latest = self._seen_epochs[-1][0] if self._seen_epochs else self._latest_epoch()
            if epoch > latest:
                self._seen_epochs.append((epoch, base))
            before, self._last_epoch = self._last_epoch, epoch
            if 0 <= epoch < before:
                self.notes.append(f"leader epoch {epoch} at offset {base}, though {before} came before")

    def _latest_epoch(self) -> int:
        latest = None if self._epochs is None else self._epochs.latest_epoch
        return -1 if latest is None else latest

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
