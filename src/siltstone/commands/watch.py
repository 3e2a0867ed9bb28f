"""Snapshots of logs that are cleaned, or that wait for it (``siltstone clean --watch``).

Watching takes no lock and changes nothing, so the directories may be those of a running broker, of a program
with the log cleaner, or stopped ones. Files that change between two steps are read again. A log's settings
are those of Siltstone's list of topics, else of the broker's metadata log, and those of the command line over
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from siltstone.base import files
from siltstone.base.clock import Clock
from siltstone.base.config import LONG_MAX, Setting, refuse_contradictions
from siltstone.base.errors import (
    CorruptFileError,
    CorruptRecordError,
    SiltstoneError,
    SourceChangedError,
    UsageError,
)
from siltstone.base.records.codecs import LIMIT_SETTING
from siltstone.commands.places import Snapshot
from siltstone.commands.policies import LogOptions, gather_policies, reads_to_the_end
from siltstone.compaction.inplace import plan
from siltstone.compaction.inplace.facts import (
    NO_HIGH_WATERMARK,
    Horizons,
    LogState,
    find_horizons,
    lag_limits,
    log_facts,
    refusal,
)
from siltstone.compaction.report import CLEANED, Cleaning, read_cleanings
from siltstone.log.directory import Checkpoints, LogDirectory, open_directories, require_one_broker
from siltstone.log.ledger.store import cleaning_bounds
from siltstone.log.names import LOCK, STAGING, TopicPartition
from siltstone.log.producers import ProducerStates, load_producers
from siltstone.log.replacement import swap_leftovers
from siltstone.log.segments import Segment, list_segments
from siltstone.runtime.manager import Sample
from siltstone.runtime.served_directory import Uncleanable, read_uncleanable
from siltstone.runtime.topics import TopicDescription

# The cleanable range of a log, computed again and again while other processes append and clean.
#
# The rules are those of ``plan``, the facts those of ``facts``. Two costly facts are kept: that the
# transactions which were open when the active segment was created have ended, and the delete horizons of the
# clean section. Segments may disappear between two steps, since nothing is locked: FileNotFoundError,
# SourceChangedError and a torn tail (CorruptRecordError) only mean that the log is read again.

HORIZON_BYTES = 4 << 30
"""Bytes of clean sections whose headers are read in one round; others are read in the next rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSnapshot:
    """A log's size in bytes, its number of segments, and the range that may be cleaned now.

    ``horizons``: the delete horizons of the clean section, None where they were not read yet. ``is_due``: the
    dirty ratio is high enough, or the oldest dirty record is older than the maximum lag.
    """

    size: int
    segments: int
    range: plan.CleanableRange
    is_due: bool
    horizons: Horizons | None


# The snapshot of one log and of all logs, also as JSON.

STATES = "uncleanable unreadable cleaning due tombstones dirty changing up_to_date skipped".split()
UNCLEANABLE, UNREADABLE, CLEANING, DUE, TOMBSTONES, DIRTY, CHANGING, UP_TO_DATE, SKIPPED = STATES
"""The states of a log, the most urgent first.

uncleanable: the cleaner skips it, with the reason; unreadable: it cannot be read; cleaning: a cleaner has
staged files in it; due: dirty enough, over the maximum lag, or with tombstones that may be removed;
tombstones: nothing dirty, but tombstones whose delete horizon has not passed; dirty: not enough yet;
changing: its files changed faster than they were read; up_to_date: nothing to clean; skipped: not compacted,
or its settings are not known.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedLog:
    """One log at one moment. ``snapshot`` None: it was not read, for the ``reason``.

    ``policy`` and ``min_ratio`` are settings with their sources, None where none are known;
    ``last_cleaning``: the last that succeeded; ``last_failure``: one that came after it.
    """

    where: TopicPartition
    directory: Path
    state: str
    reason: str = ""
    policy: Setting | None = None
    min_ratio: Setting | None = None
    checkpoint: int | None = None
    snapshot: LogSnapshot | None = None
    uncleanable: Uncleanable | None = None
    last_cleaning: Cleaning | None = None
    last_failure: Cleaning | None = None

    @property
    def policy_text(self) -> str:
        """``compact,delete``; empty where no policy is known."""
        value = () if self.policy is None else self.policy.value
        return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)

    def to_json(self) -> dict[str, object]:
        """One object; offsets, bytes and times are null where nothing is known."""
        snapshot = self.snapshot
        horizons = None if snapshot is None else snapshot.horizons
        return {
            "topic": self.where.topic,
            "partition": self.where.partition,
            "directory": str(self.directory),
            "state": self.state,
            "reason": self.reason,
            "cleanup_policy": self.policy_text or None,
            "cleanup_policy_source": None if self.policy is None else self.policy.source,
            "min_cleanable_dirty_ratio": None if self.min_ratio is None else self.min_ratio.value,
            "bytes": None if snapshot is None else snapshot.size,
            "segments": None if snapshot is None else snapshot.segments,
            "clean_bytes": None if snapshot is None else snapshot.range.clean_bytes,
            "dirty_bytes": None if snapshot is None else snapshot.range.cleanable_bytes,
            "dirty_ratio": None if snapshot is None else round(snapshot.range.dirty_ratio, 6),
            "cleaner_checkpoint": self.checkpoint,
            "first_dirty_offset": None if snapshot is None else snapshot.range.first_dirty,
            "first_uncleanable_offset": None if snapshot is None else snapshot.range.end,
            "overdue_ms": None if snapshot is None else snapshot.range.delay_ms,
            "delete_horizon_ms": None if horizons is None else horizons.newest_ms,
            "uncleanable_since_ms": None if self.uncleanable is None else self.uncleanable.since_ms,
            "last_cleaning": _cleaning(self.last_cleaning),
            "last_failure": _cleaning(self.last_failure),
        }


def _cleaning(cleaning: Cleaning | None) -> dict[str, object] | None:
    if cleaning is None:
        return None
    document = cleaning.to_json()
    return {name: value for name, value in document.items() if name not in ("topic", "partition")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """Sums over all logs that were read; ``states`` counts every log."""

    logs: int
    bytes: int
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int
    states: dict[str, int]

    @property
    def dirty_ratio(self) -> float:
        """Dirty bytes over clean and dirty bytes; 0 where there are none."""
        return self.dirty_bytes / max(self.clean_bytes + self.dirty_bytes, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSnapshot:
    """All logs at ``at_ms``, by name; ``directories``: does a process use them; ``notes``: for people.

    ``error``: why the directories could not be read this time.
    """

    at_ms: int
    logs: tuple[WatchedLog, ...] = ()
    directories: dict[str, bool] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    error: str | None = None

    def total(self) -> Total:
        """Sums over all logs."""
        snapshots = [log.snapshot for log in self.logs if log.snapshot is not None]
        counts = Counter(log.state for log in self.logs)
        return Total(
            logs=len(self.logs),
            bytes=sum(snapshot.size for snapshot in snapshots),
            clean_bytes=sum(snapshot.range.clean_bytes for snapshot in snapshots),
            dirty_bytes=sum(snapshot.range.cleanable_bytes for snapshot in snapshots),
            overdue_ms=max((snapshot.range.delay_ms for snapshot in snapshots), default=0),
            states={state: counts[state] for state in STATES if counts[state]},
        )

    def to_json(self) -> dict[str, object]:
        """One object: a line of ``--watch --json``."""
        total = self.total()
        return {
            "at_ms": self.at_ms,
            "directories": [{"path": path, "in_use": used} for path, used in self.directories.items()],
            "logs": [log.to_json() for log in self.logs],
            "total": {**asdict(total), "dirty_ratio": round(total.dirty_ratio, 6)},
            "notes": list(self.notes),
            "error": self.error,
        }


LOOKS = 3
"""How many times a log is read whose files change meanwhile."""
METADATA_MS = 30_000
"""A broker's metadata log is read again after so long."""
NO_SETTINGS = (
    "its settings are not known: it is no topic of Siltstone's, and no metadata log here tells; "
    "give --config or --config-file"
)


class Watch:
    """Takes snapshots of ``paths``; costly facts are kept from one snapshot to the next."""

    def __init__(self, paths: Sequence[Path], options: LogOptions, clock: Clock) -> None:
        """``options``: which logs, with which settings.

        Raises UsageError for these, NotALogDirectoryError, CorruptFileError, OSError.
        """
        self._paths = tuple(paths)
        self._topics = tuple(options.topics)
        self._clock = clock
        self.to_the_end = reads_to_the_end(options.high_watermark)
        self._policies = gather_policies(open_directories(paths, lock=False), options)
        self._settled: dict[Path, tuple[int, int]] = {}
        self._known: dict[Path, tuple[tuple[Segment, ...], int, Horizons]] = {}
        self._room = HORIZON_BYTES
        self._metadata: tuple[int, Snapshot] | None = None
        self._has_seen = False

    def snapshot(self) -> WatchSnapshot:
        """All logs now. The first snapshot raises UsageError for a missing topic, SiltstoneError, OSError; a
        later one has the ``error`` instead."""
        try:
            snapshot = self._snapshot()
        except (SiltstoneError, OSError) as error:
            if not self._has_seen:
                raise
            return WatchSnapshot(at_ms=self._clock.now_ms(), error=str(error))
        self._has_seen = True
        return snapshot

    def _snapshot(self) -> WatchSnapshot:
        now_ms = self._clock.now_ms()
        snapshot = self._open(now_ms)
        require_one_broker(snapshot.directories)
        paths = self._chosen_logs(snapshot)
        self._room = HORIZON_BYTES
        for kept in (self._settled, self._known):
            for path in kept.keys() - set(paths.values()):
                del kept[path]
        topics = {name: snapshot.topic(name) for name in sorted({where.topic for where in paths})}
        logs, notes = list[WatchedLog](), list[str]()
        for directory in snapshot.directories:
            watching = _DirectoryWatch(self, snapshot, directory, now_ms)
            logs += [
                watching.log(where, topics[where.topic]) for where in directory.partitions if where in paths
            ]
            notes += watching.notes
        return WatchSnapshot(
            at_ms=now_ms,
            logs=tuple(sorted(logs, key=lambda log: log.where)),
            directories={
                str(directory.path): files.is_locked(directory.path / LOCK)
                for directory in snapshot.directories
            },
            notes=(*notes, *snapshot.notes, *snapshot.notes_on(list(topics.values()))),
        )

    def _chosen_logs(self, snapshot: Snapshot) -> dict[TopicPartition, Path]:
        """The selected logs and their directories."""
        paths = {
            where: snapshot.path_of(where)
            for directory in snapshot.directories
            for where in directory.partitions
        }
        chosen = {
            where: path
            for where, path in paths.items()
            if path is not None and (not self._topics or where.topic in self._topics)
        }
        missing = sorted(set(self._topics) - {where.topic for where in chosen})
        if missing and not self._has_seen:
            places = ", ".join(map(str, self._paths))
            raise UsageError(f"--topic {missing[0]}: no partition of it in {places}")
        return chosen

    def _open(self, now_ms: int) -> Snapshot:
        before = self._metadata
        known = before[1] if before is not None and now_ms - before[0] < METADATA_MS else None
        snapshot = Snapshot(self._paths, self._policies.settings.broker, known)
        if known is None and snapshot.has_brokers_metadata:
            self._metadata = (now_ms, snapshot)
        return snapshot

    def settled(self, snapshot: Snapshot, topic: TopicDescription, state: LogState) -> LogState:
        """A log with its settings, or with the reason why they are not known."""
        by_hand = {**self._policies.by_topic.get(topic.name, {}), **self._policies.config}
        try:
            if snapshot.settings_of(topic).knows(topic.name):
                config = snapshot.config_of(topic).over(by_hand)
            elif by_hand:
                config = snapshot.settings.broker.over(by_hand)
            else:
                return replace(state, refused=(snapshot.notes_on([topic]) or [NO_SETTINGS])[-1])
            return replace(state, config=refuse_contradictions(config))
        except UsageError as error:
            return replace(state, refused=str(error))

    def log_snapshot(
        self, state: LogState, checkpoints: Checkpoints, now_ms: int, *, committed_below: int
    ) -> LogSnapshot | None:
        """One log that has settings, None where it has no segments.

        ``committed_below``: an offset, see ``Checkpoints``. Raises SiltstoneError, OSError.
        """
        assert state.config is not None
        segments = list_segments(state.path)
        if not segments:
            return None
        producers = self._producers(state, segments, checkpoints)
        facts = log_facts(state, checkpoints, segments, producers, committed_below)
        cleanable = plan.cleanable_range(facts, lag_limits(state.config), now_ms)
        is_due = plan.is_eligible(cleanable, state.config.number("min.cleanable.dirty.ratio"))
        clean = tuple(segment for segment in segments if segment.base_offset < cleanable.clean_end)
        limit = state.config.integer(LIMIT_SETTING)
        return LogSnapshot(
            size=sum(segment.size for segment in segments),
            segments=len(segments),
            range=cleanable,
            is_due=is_due,
            horizons=None
            if is_due
            else self._horizons(state.path, clean, cleanable.clean_end, now_ms, limit),
        )

    def _producers(
        self, state: LogState, segments: list[Segment], checkpoints: Checkpoints
    ) -> ProducerStates:
        """The open transactions that bound the cleanable range, and the log's end.

        Only transactions that were open when the active segment was created bound it; once these have ended,
        the active segment is not read, and its base offset serves as the log's end.
        """
        active, path = segments[-1], state.path
        base, identity = active.base_offset, (active.base_offset, active.inode)
        at_base = ProducerStates(base)
        if checkpoints.cleaner.get(state.where, 0) <= base:
            if self._settled.get(path) == identity:
                return at_base
            if load_producers(path, segments, base).first_open_transaction() is None:
                self._settled[path] = identity
                return at_base
        producers = load_producers(path, segments)
        first = producers.first_open_transaction()
        if first is None or first >= base:
            self._settled[path] = identity
        return producers

    def _horizons(
        self, path: Path, segments: tuple[Segment, ...], end: int, now_ms: int, batch_limit: int
    ) -> Horizons | None:
        """The delete horizons of segments, read again once these have changed or the newest has passed."""
        if path in self._known:
            before, looked_ms, horizons = self._known[path]
            newest_ms = horizons.newest_ms
            if before == segments and (newest_ms is None or not looked_ms < newest_ms <= now_ms):
                return horizons
        if self._room <= 0:
            return None
        self._room -= sum(segment.size for segment in segments)
        horizons = find_horizons(segments, end, now_ms, cleaning_bounds(path).tombstones_from, batch_limit)
        self._known[path] = (segments, now_ms, horizons)
        return horizons


class _DirectoryWatch:
    """Reads the logs of one directory for one snapshot."""

    def __init__(self, watch: Watch, snapshot: Snapshot, directory: LogDirectory, now_ms: int) -> None:
        self._watch = watch
        self._snapshot = snapshot
        self._directory = directory
        self._now_ms = now_ms
        self._in_use = files.is_locked(directory.path / LOCK)
        self.notes: list[str] = []
        self._checkpoints = directory.checkpoints()
        self._uncleanable: dict[TopicPartition, Uncleanable] = {}
        try:
            self._uncleanable = read_uncleanable(directory.path)
        except CorruptFileError as error:
            self.notes.append(str(error))
        self._cleanings: dict[TopicPartition, Cleaning] = {}
        self._failures: dict[TopicPartition, Cleaning] = {}
        for cleaning in read_cleanings(directory.path):
            where = cleaning.result.where
            if cleaning.result.status == CLEANED:
                self._cleanings[where] = cleaning
                self._failures.pop(where, None)
            else:
                self._failures[where] = cleaning

    def log(self, where: TopicPartition, topic: TopicDescription) -> WatchedLog:
        """One log; an error is in its state and reason."""
        path = self._directory.partitions[where]
        bare = LogState(where=where, path=path, directory=self._directory, config=None)
        state = self._watch.settled(self._snapshot, topic, bare)
        blank = WatchedLog(
            where=where,
            directory=path,
            state=SKIPPED,
            policy=None if state.config is None else state.config.setting("cleanup.policy"),
            min_ratio=None if state.config is None else state.config.setting("min.cleanable.dirty.ratio"),
            uncleanable=self._uncleanable.get(where),
            last_cleaning=self._cleanings.get(where),
            last_failure=self._failures.get(where),
        )
        failure: Exception | None = None
        for _ in range(LOOKS):
            try:
                return self._inspect(state, blank)
            except (FileNotFoundError, SourceChangedError, CorruptRecordError) as error:
                failure = error
                self._checkpoints = self._directory.checkpoints()
            except (SiltstoneError, OSError) as error:
                return replace(blank, state=UNREADABLE, reason=str(error))
        assert failure is not None
        changing = self._in_use or not isinstance(failure, CorruptRecordError)
        return replace(blank, state=CHANGING if changing else UNREADABLE, reason=str(failure))

    def _inspect(self, state: LogState, blank: WatchedLog) -> WatchedLog:
        reason = refusal(state)
        if reason is not None:
            swapped = self._being_swapped(state, blank)
            # A swap that ended between the two checks may have caused the refusal.
            if swapped is None and self._in_use and reason != refusal(state):
                raise SourceChangedError(f"{state.path}: its segments were being swapped")
            return swapped or replace(blank, reason=reason)
        checkpoints = self._checkpoints
        alone = state.where.topic in self._snapshot.registry.topics
        bound = checkpoints.committed_below(state.where, no_other_replica=alone or self._watch.to_the_end)
        if bound is None:
            return replace(blank, reason=NO_HIGH_WATERMARK)
        if alone and self._in_use:
            bound = LONG_MAX  # its owner uses the high watermark in memory; the checkpoint lags
        snapshot = self._watch.log_snapshot(state, checkpoints, self._now_ms, committed_below=bound)
        swapped = self._being_swapped(state, blank)
        if swapped is not None:
            return swapped
        blank = replace(blank, checkpoint=checkpoints.cleaner.get(state.where), snapshot=snapshot)
        verdict, reason = self._verdict(state.path, blank, snapshot)
        return replace(blank, state=verdict, reason=reason)

    def _being_swapped(self, state: LogState, blank: WatchedLog) -> WatchedLog | None:
        """The log in state cleaning while its segments are swapped: its files are not consistent then."""
        left = swap_leftovers(state.path) if self._in_use else []
        reason = f"segments are being swapped ({left[0]})" if left else ""
        return replace(blank, state=CLEANING, reason=reason) if left else None

    def _verdict(self, path: Path, log: WatchedLog, snapshot: LogSnapshot | None) -> tuple[str, str]:
        """The state and its reason, empty where there is none."""
        if log.uncleanable is not None:
            return UNCLEANABLE, log.uncleanable.reason
        if self._in_use and files.is_directory(path / STAGING) and files.entries(path / STAGING):
            run = files.entries(path / STAGING)[-1].name
            return CLEANING, f"run {run} is at it, or was killed"
        if snapshot is None:
            return UP_TO_DATE, "the directory holds no segments"
        is_dirty = snapshot.range.cleanable_bytes > 0
        if snapshot.is_due:
            late = f"overdue by {snapshot.range.delay_ms / 1000:,.0f} s" if snapshot.range.overdue else ""
            return DUE, late
        horizons = snapshot.horizons
        if horizons is not None and horizons.is_due:
            passed = "the delete horizons of all its tombstones have passed"
            return DUE if is_dirty else TOMBSTONES, passed
        if is_dirty:
            return DIRTY, ""
        newest_ms = None if horizons is None else horizons.newest_ms
        if newest_ms is not None and newest_ms > self._now_ms:
            return TOMBSTONES, f"the last delete horizon passes in {(newest_ms - self._now_ms) / 1000:,.0f} s"
        return UP_TO_DATE, ""


def prometheus_text(samples: Iterable[Sample]) -> bytes:
    """``samples`` in Prometheus' text format: HELP and TYPE once a name, then its samples in order.
    Needs ``siltstone[server]``."""
    from prometheus_client import CollectorRegistry, Metric, generate_latest

    families: dict[str, Metric] = {}
    for sample in samples:
        family = families.setdefault(sample.name, Metric(sample.name, sample.help, "gauge"))
        family.add_sample(sample.name, dict(sample.labels), sample.value)

    class Families(CollectorRegistry):
        def collect(self) -> Iterable[Metric]:
            return families.values()

    return generate_latest(Families())
