"""Takes snapshots of how clean logs are (``siltstone clean --watch``).

::

    Watch.snapshot ─► WatchSnapshot ─ one for each log ─► WatchedLog: state, reason, settings, last cleanings
                                                              └► LogSnapshot: sizes, cleanable range, horizons

Watching takes no lock and changes nothing, so the directories may be those of a running broker, of a program
with the log cleaner, or of neither. Files that change between two steps are read again. A log's settings are
those in Siltstone's topic registry, or in the broker's metadata log, overridden by the command line.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec
from msgspec.structs import replace

from siltstone.base import files
from siltstone.base.clock import Clock, duration_text
from siltstone.base.config import LONG_MAX, Config, ConfigSource, LogConfig, Setting, refuse_contradictions
from siltstone.base.errors import (
    CorruptFileError,
    CorruptRecordError,
    SiltstoneError,
    SourceChangedError,
    UsageError,
)
from siltstone.commands.directories import Snapshot
from siltstone.commands.policies import (
    LogOptions,
    gather_policies,
    high_watermark_is_end,
    refuse_missing_topics,
)
from siltstone.compaction.inplace import ranges
from siltstone.compaction.inplace.planning import (
    NO_HIGH_WATERMARK,
    NO_HORIZONS,
    POLICY_UNKNOWN,
    Horizons,
    LogState,
    find_horizons,
    log_facts,
    refusal,
    refusal_by_settings,
)
from siltstone.compaction.report import CLEANED, Cleaning, read_cleanings
from siltstone.log.directory import (
    Checkpoints,
    LogDirectory,
    open_directories,
    partition_entries,
    require_one_broker,
)
from siltstone.log.names import (
    COMPACTED,
    LOCK,
    STAGING,
    TopicPartition,
    parse_segment_file,
    segment_file,
)
from siltstone.log.producers import ProducerStates, load_producers
from siltstone.log.replacement import swap_leftovers
from siltstone.log.segments import Segment, segments_of_listing
from siltstone.runtime.served_directory import Uncleanable, read_uncleanable
from siltstone.runtime.topics import TopicDescription

# The cleanable range of a log, computed for each snapshot while other processes append and clean.
#
# The rules are those of a cleaning's plan. Two costly results are kept between snapshots: that the
# transactions which were open when the active segment was created have ended, and the delete horizons of the
# clean section. Segments may disappear between two steps, since nothing is locked: after FileNotFoundError,
# SourceChangedError and a torn tail (CorruptRecordError), the log is read again.

HORIZON_BYTES = 4 << 30
"""Bytes of clean sections whose headers are read for one snapshot, so that it does not take too long; others
are read for the next ones."""


class LogSnapshot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A log's size in bytes, its number of segments, and the range that may be cleaned now.

    ``horizons``: the delete horizons of the clean section, None if the log is due, so that they do not
    matter, or if they were not read yet. ``is_due``: the dirty ratio is high enough, or the oldest dirty
    record is older than the maximum lag. ``active``: base offset and bytes of the active segment.
    ``may_have_ledger``: the range may end at the horizon of a compacted ledger.
    """

    size: int
    segments: int
    range: ranges.CleanableRange
    is_due: bool
    horizons: Horizons | None
    active: tuple[int, int] = (0, 0)
    may_have_ledger: bool = False


# The snapshots of one log and of all logs, also as JSON.

STATES = "uncleanable unreadable cleaning due tombstones dirty changing up_to_date skipped".split()
UNCLEANABLE, UNREADABLE, CLEANING, DUE, TOMBSTONES, DIRTY, CHANGING, UP_TO_DATE, SKIPPED = STATES
"""The states of a log, the most urgent first.

uncleanable: the cleaner skips it, for the reason; unreadable: it cannot be read; cleaning: a cleaner has
staged files in it; due: dirty enough, over the maximum lag, or dirty with tombstones that may all be removed;
tombstones: nothing is dirty, but tombstones or markers have a delete horizon, passed or not; dirty: not dirty
enough yet; changing: its files changed while they were read; up_to_date: nothing to clean; skipped: not
compacted, or its settings are not known.
"""


class ListedSegments(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The ``.log`` files of a log: their bytes and number, base offset and bytes of the active one."""

    size: int
    segments: int
    active: tuple[int, int]


class WatchedLog(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One log at one moment. ``snapshot`` None: it was not read, for the ``reason``.

    ``policy`` and ``min_ratio`` are settings with their sources, None if they are not known;
    ``last_cleaning``: the last that succeeded; ``last_failure``: a later one that failed.
    """

    topic_partition: TopicPartition
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
    listed: ListedSegments | None = None
    """The segments of a log without ``snapshot``, if they were asked for."""

    @property
    def known_segments(self) -> LogSnapshot | ListedSegments | None:
        """The log's segments as they were read or listed; None if neither: ``size`` and ``segment_count`` are
        0 then, whatever the log has."""
        return self.snapshot or self.listed

    @property
    def size(self) -> int:
        """Bytes of the log's segments."""
        known = self.known_segments
        return 0 if known is None else known.size

    @property
    def segment_count(self) -> int:
        """How many segments the log has."""
        known = self.known_segments
        return 0 if known is None else known.segments

    @property
    def policy_text(self) -> str:
        """``compact,delete``; empty if no policy is known."""
        value = () if self.policy is None else self.policy.value
        return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)

    def to_json(self) -> dict[str, object]:
        """One object; unknown offsets, bytes and times are null."""
        snapshot = self.snapshot
        horizons = None if snapshot is None else snapshot.horizons
        return {
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
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
            "overdue_ms": None if snapshot is None else snapshot.range.overdue_ms,
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
        """Dirty bytes, divided by clean and dirty bytes; 0 without any."""
        return self.dirty_bytes / max(self.clean_bytes + self.dirty_bytes, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSnapshot:
    """All logs at ``at_ms``, by name; ``directories``: whether each is in use; ``notes``: for display.

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
            overdue_ms=max((snapshot.range.overdue_ms for snapshot in snapshots), default=0),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedTopic:
    """A topic, and its settings or the reason why they are not known."""

    description: TopicDescription
    settings: Config | str


READS_MAX = 3
"""How many times a log is read whose files change meanwhile."""
SETTLED_MS = 2_000
"""A log whose directory was changed so short a time before it was read is read again: a second change could
have the same time."""
NOT_READ = "not read yet"
METADATA_MS = 30_000
"""The time after which a broker's metadata log is read again."""


class Watch:
    """Takes snapshots of ``paths``; costly results are kept from one snapshot to the next."""

    def __init__(
        self,
        paths: Sequence[Path],
        options: LogOptions,
        clock: Clock,
        *,
        for_catalogue: bool = False,
        is_ours: bool = False,
        history_of: Callable[[Path], Sequence[Cleaning]] = read_cleanings,
        opened: Sequence[LogDirectory] = (),
    ) -> None:
        """``options``: which logs, with which settings. ``for_catalogue``: also the sizes of logs that are
        not compacted; and logs that have not changed are not read again. ``is_ours``: this process has the
        directories open, so notes say nothing of their use. ``history_of``: reads the history of a log
        directory. ``opened``: directories that this process has open; their names are not parsed again.

        Raises UsageError for ``options``, NotALogDirectoryError, CorruptFileError, OSError.
        """
        self._paths, self._topics, self._clock = tuple(paths), tuple(options.topics), clock
        self.for_catalogue, self._is_ours, self.history_of = for_catalogue, is_ours, history_of
        self._kept: dict[str, _KeptLog] = {}
        """By the path of the log."""
        self._settings_read: dict[str, tuple[object, Config | str]] = {}
        """By topic, what its settings were made of, and the settings."""
        self._shared: dict[object, Config] = {}
        """One object for the settings of all topics whose own ones are the same."""
        self._log_configs: dict[int, tuple[Config, LogConfig]] = {}
        """By the id of a ``Config``, which is kept so that no other one gets its id."""
        self.no_other_replica = high_watermark_is_end(options.high_watermark)
        self._opened_directories = tuple(opened)
        self._listing: _Listing | None = None
        """The directories as they were listed last."""
        listed = self._list(clock.now_ms(), self._opened_directories)
        self._policies = gather_policies(listed, options)
        self._first_listing: list[LogDirectory] | None = listed
        """For the first snapshot: to list the directories takes long where there are many partitions."""
        self._without_open_transactions: dict[str, tuple[int, int]] = {}
        """By log, (base offset, inode) of an active segment that no open transaction began before."""
        self._horizons_read: dict[str, tuple[tuple[Segment, ...], int, Horizons]] = {}
        """By log, the segments, the time in ms at which they were read, and their horizons."""
        self._horizon_bytes_left = HORIZON_BYTES
        self._metadata: tuple[int, Snapshot] | None = None
        """When a broker's metadata log was last read (ms), and the snapshot that read it."""
        self._has_snapshot = False
        self.topics: Mapping[str, WatchedTopic] = {}
        """The topics of the newest snapshot, by name."""
        self.newest: Snapshot | None = None
        """The directories as they were read last."""
        self._last_opened: tuple[int, Snapshot] | None = None
        """The last snapshot that was opened, and when (ms)."""

    def list_again(self) -> None:
        """Let the first snapshot list the directories again: this process may change them before that."""
        self._first_listing = self._listing = None

    def snapshot(self) -> WatchSnapshot:
        """All logs now. The first snapshot raises UsageError for a missing topic, SiltstoneError, OSError;
        later ones have the ``error`` instead."""
        try:
            snapshot = self._snapshot()
        except (SiltstoneError, OSError) as error:
            if not self._has_snapshot:
                raise
            return WatchSnapshot(at_ms=self._clock.now_ms(), error=str(error))
        self._has_snapshot = True
        return snapshot

    def outline(self) -> WatchSnapshot:
        """The names of all topics and partitions, before their files are read; as for ``snapshot``, but its
        ``topics`` have neither ids nor settings. Raises SiltstoneError, OSError."""
        snapshot = self.newest = self._open(self._clock.now_ms())
        numbers = dict[str, list[int]]()
        in_order = sorted(snapshot.partitions.items())
        for topic_partition, _ in in_order:
            numbers.setdefault(topic_partition.topic, []).append(topic_partition.partition)
        self.topics = {
            name: WatchedTopic(
                description=TopicDescription(
                    name=name,
                    topic_id=None,
                    partitions=tuple(partitions),
                    config={},
                    offline=(),
                    is_registered=name in snapshot.registry.topics,
                ),
                settings=NOT_READ,
            )
            for name, partitions in numbers.items()
        }
        logs = (
            WatchedLog(topic_partition=topic_partition, directory=path, state=SKIPPED, reason=NOT_READ)
            for topic_partition, path in in_order
        )
        return WatchSnapshot(
            at_ms=self._clock.now_ms(), logs=tuple(logs), notes=tuple(self._notes_on_use(snapshot))
        )

    def _snapshot(self) -> WatchSnapshot:
        now_ms = self._clock.now_ms()
        snapshot = self._open(now_ms)
        require_one_broker(snapshot.directories, only_reads=True)
        partitions = snapshot.partitions.items()
        paths = {
            topic_partition: path
            for topic_partition, path in partitions
            if not self._topics or topic_partition.topic in self._topics
        }
        if not self._has_snapshot:
            refuse_missing_topics(self._topics, paths, self._paths)
        self._horizon_bytes_left = HORIZON_BYTES
        # Forget the kept results of logs that are gone.
        here = set(map(str, paths.values()))
        for results in (self._without_open_transactions, self._horizons_read, self._kept):
            for path in results.keys() - here:
                del results[path]
        self._log_configs = {}
        topics = {
            name: self._described(snapshot.topic(name))
            for name in sorted({topic_partition.topic for topic_partition in paths})
        }
        logs, notes = list[WatchedLog](), list[str]()
        self.topics = {
            name: WatchedTopic(description=topic, settings=self._settings_of(snapshot, topic))
            for name, topic in topics.items()
        }
        self._forget_settings()
        for directory in snapshot.directories:
            watch = _DirectoryWatch(self, snapshot, directory, now_ms)
            read = watch.kept_or_read if self.for_catalogue else watch.log
            logs += [
                read(topic_partition, self.topics[topic_partition.topic].settings)
                for topic_partition in directory.partitions
                if topic_partition in paths
            ]
            notes += watch.notes
        self.newest = snapshot
        return WatchSnapshot(
            at_ms=now_ms,
            logs=tuple(sorted(logs, key=lambda log: log.topic_partition)),
            directories={
                str(directory.path): files.is_locked(directory.path / LOCK)
                for directory in snapshot.directories
            },
            notes=(*notes, *self._notes_on_use(snapshot), *snapshot.notes_on(list(topics.values()))),
        )

    def _notes_on_use(self, snapshot: Snapshot) -> Sequence[str]:
        return [] if self._is_ours else snapshot.notes

    def _described(self, topic: TopicDescription) -> TopicDescription:
        """The description that is kept already, if it is the same."""
        before = self.topics.get(topic.name)
        return before.description if before is not None and before.description == topic else topic

    def _open(self, now_ms: int) -> Snapshot:
        """A new snapshot of the directories. It uses the broker's metadata that an earlier one has read, for
        ``METADATA_MS``."""
        read_ms, with_metadata = self._metadata if self._metadata is not None else (0, None)
        # A clock that stands (``--now-ms``) or was set back does not put off the next reading.
        is_recent = with_metadata is not None and 0 < now_ms - read_ms < METADATA_MS
        metadata_from = with_metadata if is_recent else None
        listed, self._first_listing = self._first_listing, None
        opened_ms, earlier = self._last_opened or (0, None)
        if listed is None:
            known = self._opened_directories if earlier is None else earlier.directories
            listed = self._list(now_ms, known)
        settled_ns = (opened_ms - SETTLED_MS) * 1_000_000
        if earlier is not None and any(
            file is not None and file.modified_ns >= settled_ns for file in earlier.registry_files
        ):
            earlier = None  # the registry was just being changed when it was read
        broker = self._policies.settings.broker
        snapshot = Snapshot(self._paths, broker, metadata_from, listed, registry_from=earlier)
        self._last_opened = now_ms, snapshot
        if metadata_from is None and snapshot.has_brokers_metadata:
            self._metadata = (now_ms, snapshot)
        return snapshot

    def _list(self, now_ms: int, known: Sequence[LogDirectory]) -> list[LogDirectory]:
        """The log directories; those of the last listing if no name in them has changed since: to list them
        takes long where there are many partitions. ``known``: the directories as they were listed earlier.
        Raises NotALogDirectoryError, OSError."""
        last, states = self._listing, _directory_states(self._paths)
        if last is not None and last.states == states and last.is_reliable:
            return last.directories
        listed = open_directories(self._paths, lock=False, before=known)
        self._listing = _Listing(directories=listed, states=states, at_ms=now_ms)
        return listed

    def _settings_of(self, snapshot: Snapshot, topic: TopicDescription) -> Config | str:
        """A topic's settings, or the reason why they are not known: the same object while nothing changes."""
        origin = topic, snapshot.metadata_state, id(snapshot.broker)
        before = self._settings_read.get(topic.name)
        if before is not None and before[0] == origin:
            return before[1]
        # Registered topics with the same settings of their own share one object, which is made once.
        shared_key: object = None
        if topic.is_registered and topic.name not in self._policies.by_topic:
            shared_key = ("registered", frozenset(topic.config.items()), *origin[1:])
        settings = self._shared.get(shared_key) or self._new_settings_of(snapshot, topic)
        if shared_key is not None and isinstance(settings, Config):
            self._shared[shared_key] = settings
        elif isinstance(settings, Config):  # other topics: their own settings are known only once it is made
            own = settings.layer(ConfigSource.DYNAMIC_TOPIC_CONFIG)
            settings = self._shared.setdefault((frozenset(own.items()), *origin[1:]), settings)
        self._settings_read[topic.name] = origin, settings
        return settings

    def _forget_settings(self) -> None:
        """Forget the settings of topics that are gone."""
        for name in self._settings_read.keys() - self.topics.keys():
            del self._settings_read[name]
        used = {id(topic.settings) for topic in self.topics.values()}
        self._shared = {own: settings for own, settings in self._shared.items() if id(settings) in used}

    def _new_settings_of(self, snapshot: Snapshot, topic: TopicDescription) -> Config | str:
        # The settings of --config-file and --config, which override all others.
        passed = {**self._policies.by_topic.get(topic.name, {}), **self._policies.config}
        try:
            if snapshot.settings_of(topic).knows(topic.name):
                config = snapshot.config_of(topic)
                config = config.with_topic_layer(passed) if passed else config
            else:
                config = snapshot.settings.broker.with_topic_layer(passed)
                policy = config.setting("cleanup.policy")
                if not passed or policy.config_source is ConfigSource.DEFAULT_CONFIG:
                    # The last note says why the topic has no settings.
                    return (snapshot.notes_on([topic]) or [POLICY_UNKNOWN])[-1]
            return refuse_contradictions(config)
        except UsageError as error:
            return str(error)

    def log_snapshot(
        self,
        state: LogState,
        segments: list[Segment],
        listed: Collection[str],
        checkpoints: Checkpoints,
        now_ms: int,
        *,
        committed_below: int,
    ) -> LogSnapshot | None:
        """One log that has settings, None if it has no segments.

        ``segments``, ``listed``: its segments, and the names of its files and folders, as they were listed
        just now; ``committed_below``: an offset, see ``Checkpoints``. Raises SiltstoneError, OSError.
        """
        assert state.config is not None
        if not segments:
            return None
        producers = self._producers(state, segments, listed, checkpoints)
        config = self.log_config(state.config)
        facts = log_facts(
            state,
            config,
            checkpoints,
            segments,
            producers,
            committed_below,
            may_have_ledger=COMPACTED in listed,
        )
        cleanable = ranges.cleanable_range(facts, config, now_ms)
        is_due = ranges.is_eligible(cleanable, config.min_cleanable_dirty_ratio)
        clean = tuple([segment for segment in segments if segment.base_offset < cleanable.clean_end])
        limit = config.max_decompressed_message_bytes
        horizons = None if is_due else self._horizons(state.path, clean, cleanable.clean_end, now_ms, limit)
        return LogSnapshot(
            size=sum([segment.size for segment in segments]),
            segments=len(segments),
            range=cleanable,
            is_due=is_due,
            horizons=horizons,
            active=(segments[-1].base_offset, segments[-1].size),
            may_have_ledger=COMPACTED in listed,
        )

    def log_config(self, config: Config) -> LogConfig:
        """``LogConfig.of``, once for the partitions of a topic."""
        if id(config) not in self._log_configs:
            self._log_configs[id(config)] = config, LogConfig.of(config)
        return self._log_configs[id(config)][1]

    def kept(self, path: str, settings: Config | str, facts: _Facts) -> WatchedLog | None:
        """A log as it was read before, None if it may have changed since."""
        before = self._kept.get(path)
        if before is None or before.settings is not settings or before.facts != facts:
            return None
        known = before.log.known_segments
        assert known is not None
        base, size = known.active  # an append changes the size of this file, and nothing in ``facts``
        try:
            if before.ledger_ns is not None and before.ledger_ns != _ledger_ns(path):
                return None
            return before.log if files.stat(f"{path}/{segment_file(base, 'log')}").size == size else None
        except OSError:
            return None

    def keep(self, path: str, log: WatchedLog, settings: Config | str, facts: _Facts, now_ms: int) -> None:
        """Keep a log for ``kept``, unless its state depends on the time or its directory is just changing."""
        known, ledger_ns = log.known_segments, None
        if log.snapshot is not None and log.snapshot.may_have_ledger:
            with contextlib.suppress(OSError):  # deleted meanwhile, which is a change of the directory
                ledger_ns = _ledger_ns(path)
        settled = max(facts.modified_ns, ledger_ns or 0) < (now_ms - SETTLED_MS) * 1_000_000
        if known is None or not known.segments or not settled or not self._is_timeless(log, settings):
            self._kept.pop(path, None)
            return
        self._kept[path] = _KeptLog(log=log, settings=settings, facts=facts, ledger_ns=ledger_ns)

    def _is_timeless(self, log: WatchedLog, settings: Config | str) -> bool:
        """Does the state stay while no file changes? With a lag, time alone makes a log due or more of it
        cleanable, and a delete horizon passes."""
        if log.state not in (UNCLEANABLE, DUE, DIRTY, UP_TO_DATE, SKIPPED):
            return False
        if log.snapshot is None or isinstance(settings, str):
            return log.state == SKIPPED
        config, horizons = self.log_config(settings), log.snapshot.horizons
        if config.max_compaction_lag_ms != LONG_MAX or config.min_compaction_lag_ms:
            return False
        return log.snapshot.is_due or (horizons is not None and horizons.newest_ms is None)

    def _producers(
        self, state: LogState, segments: list[Segment], listed: Iterable[str], checkpoints: Checkpoints
    ) -> ProducerStates:
        """The open transactions that bound the cleanable range, and the log's end.

        Only transactions that were open when the active segment was created bound it. Once these have ended,
        the active segment is not read, and its base offset is returned as the log's end.
        """
        active, path = segments[-1], str(state.path)
        base, identity = active.base_offset, (active.base_offset, active.inode)
        at_base = ProducerStates(base)
        # A checkpoint above ``base`` would look as if it were outside the log, and be reset: then the true
        # end is needed.
        if checkpoints.cleaner.get(state.topic_partition, 0) <= base:
            if self._without_open_transactions.get(path) == identity:
                return at_base
            if load_producers(state.path, segments, base, listed=listed).first_open_transaction() is None:
                self._without_open_transactions[path] = identity
                return at_base
        producers = load_producers(state.path, segments, listed=listed)
        first = producers.first_open_transaction()
        if first is None or first >= base:
            self._without_open_transactions[path] = identity
        return producers

    def _horizons(
        self, log: Path, segments: tuple[Segment, ...], end: int, now_ms: int, batch_limit: int
    ) -> Horizons | None:
        """The delete horizons of segments, read again if these have changed or the newest has passed."""
        if not segments:
            return NO_HORIZONS
        path = str(log)
        if path in self._horizons_read:
            before, read_ms, horizons = self._horizons_read[path]
            newest_ms = horizons.newest_ms
            if before == segments and (newest_ms is None or not read_ms < newest_ms <= now_ms):
                return horizons
        if self._horizon_bytes_left <= 0:
            return None
        self._horizon_bytes_left -= sum(segment.size for segment in segments)
        horizons = find_horizons(segments, end, now_ms, batch_limit)
        self._horizons_read[path] = (segments, now_ms, horizons)
        return horizons


class _Facts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The facts that a log's state depends on, beside its settings and the bytes of its active segment: when
    its directory was changed, and what other files say of it."""

    modified_ns: int
    is_in_use: bool
    checkpoint: int | None
    high_watermark: int | None
    log_start: int | None
    uncleanable: Uncleanable | None
    last_cleaning: Cleaning | None
    last_failure: Cleaning | None


class _KeptLog(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A log, and what it was read from. ``ledger_ns``: see ``_ledger_ns``, None without a ledger."""

    log: WatchedLog
    settings: Config | str
    facts: _Facts
    ledger_ns: int | None


def _ledger_ns(path: str) -> int:
    """When the folder of a log's compacted ledgers was changed (ns): also when a compaction moves the
    horizon, which changes nothing else. Raises OSError."""
    return files.stat(f"{path}/{COMPACTED}").modified_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class _TopicRules:
    """What the settings of a topic say of all its logs: ``config`` and ``refused`` as in ``LogState``,
    ``policy`` and ``min_ratio`` as in ``WatchedLog``. ``refusal``: why the logs are skipped without reading
    their files, None if they are not."""

    config: Config | None
    refused: str | None
    policy: Setting | None
    min_ratio: Setting | None
    refusal: str | None

    @classmethod
    def of(cls, topic: str, settings: Config | str) -> _TopicRules:
        """The rules that follow from a topic's settings, or from the reason why they are not known."""
        config = settings if isinstance(settings, Config) else None
        refused = settings if isinstance(settings, str) else None
        is_compacted = config is not None and "compact" in config.policies
        return cls(
            config=config,
            refused=refused,
            policy=None if config is None else config.setting("cleanup.policy"),
            min_ratio=None if config is None else config.setting("min.cleanable.dirty.ratio"),
            refusal=None if is_compacted else refusal_by_settings(topic, config, refused),
        )


def _directory_states(paths: Sequence[Path]) -> list[tuple[int, int, int]] | None:
    """Device, inode and modification time (ns) of each directory, which is another one after a name in it was
    added or removed; None where that is not known, as in a store, or where one is missing."""
    if any(map(files.is_read_only, paths)):
        return None
    try:
        return [(*status.device_and_inode, status.modified_ns) for status in map(files.stat, paths)]
    except OSError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """Log directories that were listed at ``at_ms``, and their ``_directory_states`` just before that."""

    directories: list[LogDirectory]
    states: list[tuple[int, int, int]] | None
    at_ms: int

    @property
    def is_reliable(self) -> bool:
        """Do equal states mean that the list is the same? Not if a directory had just been changed, and not
        for single partitions and without a broker's files, where what counts as a partition depends on its
        own files."""
        settled_ns = (self.at_ms - SETTLED_MS) * 1_000_000
        return (
            self.states is not None
            and all(modified_ns < settled_ns for *_, modified_ns in self.states)
            and all(
                directory.has_broker_files and not directory.is_partition_subset
                for directory in self.directories
            )
        )


def _listed_segments(path: str) -> ListedSegments:
    """The segments in a directory. Raises OSError."""
    sizes = {
        parsed.base_offset: status.size
        for name, status in files.list_files(path, ending=".log").items()
        if (parsed := parse_segment_file(name)) is not None
    }
    newest = max(sizes, default=0)
    active = newest, sizes.get(newest, 0)
    return ListedSegments(size=sum(sizes.values()), segments=len(sizes), active=active)


def _staged_runs(path: Path) -> list[str]:
    """The runs that have staged files in a log's directory. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):  # the last run has just removed its files
        return [entry.name for entry in files.entries(path / STAGING)]
    return []


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
        self._rules: dict[str, _TopicRules] = {}
        """By topic."""
        self._uncleanable: dict[TopicPartition, Uncleanable] = {}
        try:
            self._uncleanable = read_uncleanable(directory.path)
        except CorruptFileError as error:
            self.notes.append(str(error))
        self._cleanings: dict[TopicPartition, Cleaning] = {}
        self._failures: dict[TopicPartition, Cleaning] = {}
        for cleaning in watch.history_of(directory.path):
            topic_partition = cleaning.result.topic_partition
            if cleaning.result.status == CLEANED:
                self._cleanings[topic_partition] = cleaning
                self._failures.pop(topic_partition, None)
            else:
                self._failures[topic_partition] = cleaning

    def log(self, topic_partition: TopicPartition, settings: Config | str) -> WatchedLog:
        """One log with its topic's settings, or the reason why they are not known; its state and reason say
        what failed."""
        rules = self._rules_of(topic_partition.topic, settings)
        return self._read(self._unread(topic_partition, rules), rules)

    def _rules_of(self, topic: str, settings: Config | str) -> _TopicRules:
        rules = self._rules.get(topic)
        if rules is None:
            rules = self._rules[topic] = _TopicRules.of(topic, settings)
        return rules

    def _unread(self, topic_partition: TopicPartition, rules: _TopicRules) -> WatchedLog:
        """What is known of a log before its files are read."""
        return WatchedLog(
            topic_partition=topic_partition,
            directory=self._directory.partitions[topic_partition],
            state=SKIPPED,
            reason=rules.refusal or "",
            policy=rules.policy,
            min_ratio=rules.min_ratio,
            uncleanable=self._uncleanable.get(topic_partition),
            last_cleaning=self._cleanings.get(topic_partition),
            last_failure=self._failures.get(topic_partition),
        )

    def _read(self, unread: WatchedLog, rules: _TopicRules, owner: int | None = None) -> WatchedLog:
        """Read the files of a log; of one that its rules refuse, only whether its segments are being swapped.
        ``owner``: the user id that owns its directory, None if that has not been read yet."""
        if rules.refusal is not None and not self._in_use:
            return unread
        path = unread.directory
        state = LogState(
            topic_partition=unread.topic_partition,
            path=path,
            directory=self._directory,
            config=rules.config,
            refused=rules.refused,
        )
        failure: Exception | None = None
        for _ in range(READS_MAX):
            try:
                if rules.refusal is not None:
                    return self._being_swapped(state, unread) or unread
                return self._inspect(state, unread, files.stat(path).owner if owner is None else owner)
            except (FileNotFoundError, SourceChangedError, CorruptRecordError) as error:
                failure, owner = error, None
                self._checkpoints = self._directory.checkpoints()
            except (SiltstoneError, OSError) as error:
                return replace(unread, state=UNREADABLE, reason=str(error))
        assert failure is not None
        return replace(
            unread, state=UNREADABLE if self._is_damage(failure) else CHANGING, reason=str(failure)
        )

    def _is_damage(self, failure: Exception) -> bool:
        """Is it damage, or may a process just be writing the file? It may, if one uses the directory and the
        file was modified lately."""
        if not isinstance(failure, CorruptRecordError):
            return False
        if not self._in_use:
            return True
        try:
            modified_ns = files.stat(failure.path).modified_ns
        except OSError:
            return False
        return modified_ns < (self._now_ms - SETTLED_MS) * 1_000_000

    def kept_or_read(self, topic_partition: TopicPartition, settings: Config | str) -> WatchedLog:
        """As ``log``, with the sizes of any log; one that has not changed is not read again."""
        rules = self._rules_of(topic_partition.topic, settings)
        unread = self._unread(topic_partition, rules)
        path = str(unread.directory)
        try:
            status = files.stat(path)
        except OSError:
            return self._read(unread, rules)
        facts = _Facts(
            modified_ns=status.modified_ns,
            is_in_use=self._in_use,
            checkpoint=self._checkpoints.cleaner.get(topic_partition),
            high_watermark=self._checkpoints.high_watermark.get(topic_partition),
            log_start=self._checkpoints.log_start.get(topic_partition),
            uncleanable=unread.uncleanable,
            last_cleaning=unread.last_cleaning,
            last_failure=unread.last_failure,
        )
        kept = self._watch.kept(path, settings, facts)
        if kept is not None:
            return kept
        log = self._read(unread, rules, status.owner)
        if log.snapshot is None:
            with contextlib.suppress(OSError):
                log = replace(log, listed=_listed_segments(path))
        self._watch.keep(path, log, settings, facts, self._now_ms)
        return log

    def _inspect(self, state: LogState, unread: WatchedLog, owner: int) -> WatchedLog:
        """Read one log that its settings do not refuse. ``unread``: what is known of it before that;
        ``owner``: the user id that owns its directory. Raises SiltstoneError, OSError."""
        # Listed once: where there are many logs, most of the time goes into listing.
        listed = partition_entries(state.path, owner)
        segments = segments_of_listing(state.path, listed)
        reason = refusal(state, segments, listed)
        if reason is not None:
            swapped = self._being_swapped(state, unread)
            # A swap that ended between the two checks may have caused the refusal.
            if swapped is None and self._in_use and reason != refusal(state):
                raise SourceChangedError("its segments were being swapped", path=state.path)
            return swapped or replace(unread, reason=reason)
        checkpoints = self._checkpoints
        only_replica = self._snapshot.settings.is_created_by_siltstone(state.topic_partition.topic)
        committed_below = checkpoints.committed_below(
            state.topic_partition, no_other_replica=only_replica or self._watch.no_other_replica
        )
        if committed_below is None:
            return replace(unread, reason=NO_HIGH_WATERMARK)
        if only_replica and self._in_use:
            committed_below = LONG_MAX  # the process has a newer high watermark in memory than the checkpoint
        snapshot = self._watch.log_snapshot(
            state, segments, listed, checkpoints, self._now_ms, committed_below=committed_below
        )
        swapped = self._being_swapped(state, unread)
        if swapped is not None:
            return swapped
        checkpoint = checkpoints.cleaner.get(state.topic_partition)
        watched = replace(unread, checkpoint=checkpoint, snapshot=snapshot)
        is_staged = self._in_use and STAGING in listed
        log_state, reason = self._state_and_reason(state.path, watched, snapshot, is_staged=is_staged)
        return replace(watched, state=log_state, reason=reason)

    def _being_swapped(self, state: LogState, unread: WatchedLog) -> WatchedLog | None:
        """The log in the state ``cleaning`` if its segments are being swapped, since its files are not
        consistent meanwhile; otherwise None."""
        unfinished = swap_leftovers(state.path) if self._in_use else []
        if not unfinished:
            return None
        return replace(unread, state=CLEANING, reason=f"segments are being swapped ({unfinished[0]})")

    def _state_and_reason(
        self, path: Path, log: WatchedLog, snapshot: LogSnapshot | None, *, is_staged: bool
    ) -> tuple[str, str]:
        """The state and its reason, "" without one. ``is_staged``: a process that uses the directory may
        stage files in the log."""
        if log.uncleanable is not None:
            return UNCLEANABLE, log.uncleanable.reason
        runs = _staged_runs(path) if is_staged else []
        if runs:
            return CLEANING, f"run {runs[-1]} cleans it, or was killed"
        if snapshot is None:
            return UP_TO_DATE, "the directory has no segments"
        is_dirty = snapshot.range.cleanable_bytes > 0
        if snapshot.is_due:
            overdue = f"overdue by {duration_text(snapshot.range.overdue_ms / 1000)}"
            return DUE, overdue if snapshot.range.is_overdue else ""
        horizons = snapshot.horizons
        if horizons is not None and horizons.is_due:
            passed = "the delete horizons of all its tombstones have passed"
            return DUE if is_dirty else TOMBSTONES, passed
        if is_dirty:
            return DIRTY, ""
        newest_ms = None if horizons is None else horizons.newest_ms
        if newest_ms is not None and newest_ms > self._now_ms:
            return (
                TOMBSTONES,
                f"the last delete horizon passes in {duration_text((newest_ms - self._now_ms) / 1000)}",
            )
        return UP_TO_DATE, "" if horizons is not None else "its delete horizons are not read yet"
