"""Looking at logs that somebody cleans, or that wait for it (``siltstone clean --watch``).

Nothing is locked and nothing is changed, so the directories may be a broker's that runs, those of a program
with the cleaner inside, or stopped ones. Files that change between two steps are looked at again. A log's
settings are those that its owner knows: Siltstone's list of topics, else the broker's metadata log, and what
is given by hand over them.
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
from siltstone.commands.places import Look
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
from siltstone.log.directory import Checkpoints, LogDirectory, open_directories, refuse_strangers
from siltstone.log.ledger.store import uncovered
from siltstone.log.names import LOCK, STAGING, TopicPartition
from siltstone.log.producers import ProducerStates, load_producers
from siltstone.log.replacement import interrupted
from siltstone.log.segments import Segment, list_segments
from siltstone.runtime.manager import Sample
from siltstone.runtime.served_directory import Uncleanable, read_uncleanable
from siltstone.runtime.topics import TopicDescription

# What a cleaner would find in a log now, asked again and again while somebody else writes and cleans it.
#
# The rules are ``plan``'s, the facts ``facts``'. What takes long is asked once and kept: where the
# transactions that were open when the active segment was begun have ended, and the delete horizons of the
# clean part. Nothing is locked or changed, so segments may go between two steps: FileNotFoundError,
# SourceChangedError and a torn tail (CorruptRecordError) then only mean that the log has to be looked at
# again.

HORIZON_BYTES = 4 << 30
"""Clean parts whose headers are read in one round; the others have their turn in the next ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A log's size in bytes, its segments, what of it may be cleaned now, and is that enough?

    ``horizons``: those of the clean part, None where they were not looked for yet. ``is_due``: something may
    be cleaned, and it is dirty enough or has waited for too long.
    """

    size: int
    segments: int
    range: plan.CleanableRange
    is_due: bool
    horizons: Horizons | None


# What ``siltstone clean --watch`` sees: one log, and all of them at one moment; and both as JSON.

STATES = "uncleanable unreadable cleaning due tombstones dirty changing up_to_date skipped".split()
UNCLEANABLE, UNREADABLE, CLEANING, DUE, TOMBSTONES, DIRTY, CHANGING, UP_TO_DATE, SKIPPED = STATES
"""What a log may be, the most urgent first.

uncleanable: the cleaner gave it up, with the reason; unreadable: it cannot be looked into; cleaning: a
cleaner has files of its own in it; due: dirty enough, waiting for too long, or with tombstones that may go;
tombstones: nothing new, but tombstones that go once their horizon has passed; dirty: not enough yet;
changing: its files changed faster than they were looked at; up_to_date: nothing to clean; skipped: not
compacted, or its settings are not known.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedLog:
    """One log at one moment. ``outlook`` None: it was not looked into, ``reason`` says why.

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
    outlook: Outlook | None = None
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
        found = self.outlook
        horizons = None if found is None else found.horizons
        return {
            "topic": self.where.topic,
            "partition": self.where.partition,
            "directory": str(self.directory),
            "state": self.state,
            "reason": self.reason,
            "cleanup_policy": self.policy_text or None,
            "cleanup_policy_source": None if self.policy is None else self.policy.source,
            "min_cleanable_dirty_ratio": None if self.min_ratio is None else self.min_ratio.value,
            "bytes": None if found is None else found.size,
            "segments": None if found is None else found.segments,
            "clean_bytes": None if found is None else found.range.clean_bytes,
            "dirty_bytes": None if found is None else found.range.cleanable_bytes,
            "dirty_ratio": None if found is None else round(found.range.dirty_ratio, 6),
            "cleaner_checkpoint": self.checkpoint,
            "first_dirty_offset": None if found is None else found.range.first_dirty,
            "first_uncleanable_offset": None if found is None else found.range.end,
            "overdue_ms": None if found is None else found.range.delay_ms,
            "delete_horizon_ms": None if horizons is None else horizons.newest_ms,
            "uncleanable_since_ms": None if self.uncleanable is None else self.uncleanable.since_ms,
            "last_cleaning": _cleaning(self.last_cleaning),
            "last_failure": _cleaning(self.last_failure),
        }


def _cleaning(cleaning: Cleaning | None) -> dict[str, object] | None:
    if cleaning is None:
        return None
    found = cleaning.to_json()
    return {name: value for name, value in found.items() if name not in ("topic", "partition")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """All logs that were looked into together; ``states`` counts every log."""

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
class Seen:
    """One look: ``at_ms``, the logs by name, directories with whether a process uses them, notes.

    ``error``: why nothing could be seen this time.
    """

    at_ms: int
    logs: tuple[WatchedLog, ...] = ()
    directories: dict[str, bool] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    error: str | None = None

    def total(self) -> Total:
        """All logs together."""
        found = [each.outlook for each in self.logs if each.outlook is not None]
        counts = Counter(each.state for each in self.logs)
        return Total(
            logs=len(self.logs),
            bytes=sum(each.size for each in found),
            clean_bytes=sum(each.range.clean_bytes for each in found),
            dirty_bytes=sum(each.range.cleanable_bytes for each in found),
            overdue_ms=max((each.range.delay_ms for each in found), default=0),
            states={state: counts[state] for state in STATES if counts[state]},
        )

    def to_json(self) -> dict[str, object]:
        """One object: a line of ``--watch --json``."""
        total = self.total()
        return {
            "at_ms": self.at_ms,
            "directories": [{"path": path, "in_use": used} for path, used in self.directories.items()],
            "logs": [each.to_json() for each in self.logs],
            "total": {**asdict(total), "dirty_ratio": round(total.dirty_ratio, 6)},
            "notes": list(self.notes),
            "error": self.error,
        }


LOOKS = 3
"""How often a log is looked at whose files change meanwhile."""
METADATA_MS = 30_000
"""A broker's metadata log is read anew after that."""
NO_SETTINGS = (
    "its settings are not known: it is no topic of Siltstone's, and no metadata log here tells; "
    "give --config or --config-file"
)


class Watch:
    """Looks at ``paths`` again and again; what takes long is kept from one look to the next."""

    def __init__(self, paths: Sequence[Path], options: LogOptions, clock: Clock) -> None:
        """``options``: which logs, and what is given by hand.

        Raises UsageError for that, NotALogDirectoryError, CorruptFileError, OSError.
        """
        self._paths = tuple(paths)
        self._topics = tuple(options.topics)
        self._clock = clock
        self.to_the_end = reads_to_the_end(options.high_watermark)
        self._given = gather_policies(open_directories(paths, lock=False), options)
        self._settled: dict[Path, tuple[int, int]] = {}
        self._known: dict[Path, tuple[tuple[Segment, ...], int, Horizons]] = {}
        self._room = HORIZON_BYTES
        self._metadata: tuple[int, Look] | None = None
        self._has_seen = False

    def look(self) -> Seen:
        """All logs now. The first look raises UsageError for a topic that is not there, SiltstoneError,
        OSError; what is in the way of a later one is its ``error``, and the next may see again."""
        try:
            found = self._look()
        except (SiltstoneError, OSError) as error:
            if not self._has_seen:
                raise
            return Seen(at_ms=self._clock.now_ms(), error=str(error))
        self._has_seen = True
        return found

    def _look(self) -> Seen:
        now_ms = self._clock.now_ms()
        look = self._open(now_ms)
        refuse_strangers(look.directories)
        meant = self._meant(look)
        self._room = HORIZON_BYTES
        for kept in (self._settled, self._known):
            for path in kept.keys() - set(meant.values()):
                del kept[path]
        topics = {name: look.topic(name) for name in sorted({where.topic for where in meant})}
        logs, notes = list[WatchedLog](), list[str]()
        for directory in look.directories:
            seeing = _Seeing(self, look, directory, now_ms)
            logs += [
                seeing.log(where, topics[where.topic]) for where in directory.partitions if where in meant
            ]
            notes += seeing.notes
        return Seen(
            at_ms=now_ms,
            logs=tuple(sorted(logs, key=lambda each: each.where)),
            directories={str(each.path): files.is_locked(each.path / LOCK) for each in look.directories},
            notes=(*notes, *look.notes, *look.notes_on(list(topics.values()))),
        )

    def _meant(self, look: Look) -> dict[TopicPartition, Path]:
        """The logs that are asked for, and where they are."""
        found = {where: look.path_of(where) for each in look.directories for where in each.partitions}
        meant = {
            where: path
            for where, path in found.items()
            if path is not None and (not self._topics or where.topic in self._topics)
        }
        missing = sorted(set(self._topics) - {where.topic for where in meant})
        if missing and not self._has_seen:
            places = ", ".join(map(str, self._paths))
            raise UsageError(f"--topic {missing[0]}: no partition of it in {places}")
        return meant

    def _open(self, now_ms: int) -> Look:
        before = self._metadata
        known = before[1] if before is not None and now_ms - before[0] < METADATA_MS else None
        look = Look(self._paths, self._given.settings.broker, known)
        if known is None and look.has_brokers_metadata:
            self._metadata = (now_ms, look)
        return look

    def settled(self, look: Look, topic: TopicDescription, state: LogState) -> LogState:
        """A log with the settings that hold for it, or with the reason why they are not known."""
        by_hand = {**self._given.by_topic.get(topic.name, {}), **self._given.given}
        try:
            if look.settings_of(topic).knows(topic.name):
                config = look.config_of(topic).over(by_hand)
            elif by_hand:
                config = look.settings.broker.over(by_hand)
            else:
                return replace(state, refused=(look.notes_on([topic]) or [NO_SETTINGS])[-1])
            return replace(state, config=refuse_contradictions(config))
        except UsageError as error:
            return replace(state, refused=str(error))

    def outlook(
        self, state: LogState, checkpoints: Checkpoints, now_ms: int, *, committed_below: int
    ) -> Outlook | None:
        """One log that has settings, None where it has no segments.

        ``committed_below``: an offset, see ``Checkpoints``. Raises SiltstoneError, OSError; see above.
        """
        assert state.config is not None
        segments = list_segments(state.path)
        if not segments:
            return None
        producers = self._producers(state, segments, checkpoints)
        facts = log_facts(state, checkpoints, segments, producers, committed_below)
        found = plan.cleanable_range(facts, lag_limits(state.config), now_ms)
        is_due = plan.is_eligible(found, state.config.number("min.cleanable.dirty.ratio"))
        clean = tuple(each for each in segments if each.base_offset < found.clean_end)
        limit = state.config.integer(LIMIT_SETTING)
        return Outlook(
            size=sum(each.size for each in segments),
            segments=len(segments),
            range=found,
            is_due=is_due,
            horizons=None if is_due else self._horizons(state.path, clean, found.clean_end, now_ms, limit),
        )

    def _producers(
        self, state: LogState, segments: list[Segment], checkpoints: Checkpoints
    ) -> ProducerStates:
        """The log's end and open transactions, as far as these bound what may be cleaned.

        Only transactions that were open when the active segment was begun do; once these have ended, the
        active segment need not be read, and its base stands for the log's end.
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
        found = load_producers(path, segments)
        first = found.first_open_transaction()
        if first is None or first >= base:
            self._settled[path] = identity
        return found

    def _horizons(
        self, path: Path, segments: tuple[Segment, ...], end: int, now_ms: int, batch_limit: int
    ) -> Horizons | None:
        """The horizons of some segments, looked for again once these have changed or the newest passed."""
        if path in self._known:
            before, looked_ms, horizons = self._known[path]
            newest_ms = horizons.newest_ms
            if before == segments and (newest_ms is None or not looked_ms < newest_ms <= now_ms):
                return horizons
        if self._room <= 0:
            return None
        self._room -= sum(segment.size for segment in segments)
        horizons = find_horizons(segments, end, now_ms, uncovered(path).tombstones_from, batch_limit)
        self._known[path] = (segments, now_ms, horizons)
        return horizons


class _Seeing:
    """One look at the logs of one directory."""

    def __init__(self, watch: Watch, look: Look, directory: LogDirectory, now_ms: int) -> None:
        self._watch = watch
        self._look = look
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
        """One log; what is wrong with it is in its state and reason."""
        path = self._directory.partitions[where]
        bare = LogState(where=where, path=path, directory=self._directory, config=None)
        state = self._watch.settled(self._look, topic, bare)
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
                return self._look_into(state, blank)
            except (FileNotFoundError, SourceChangedError, CorruptRecordError) as error:
                failure = error
                self._checkpoints = self._directory.checkpoints()
            except (SiltstoneError, OSError) as error:
                return replace(blank, state=UNREADABLE, reason=str(error))
        assert failure is not None
        changing = self._in_use or not isinstance(failure, CorruptRecordError)
        return replace(blank, state=CHANGING if changing else UNREADABLE, reason=str(failure))

    def _look_into(self, state: LogState, blank: WatchedLog) -> WatchedLog:
        reason = refusal(state)
        if reason is not None:
            swapped = self._being_swapped(state, blank)
            if swapped is None and self._in_use and reason != refusal(state):
                raise SourceChangedError(f"{state.path}: its segments were being swapped")
            return swapped or replace(blank, reason=reason)
        checkpoints = self._checkpoints
        alone = state.where.topic in self._look.registry.topics
        bound = checkpoints.committed_below(state.where, no_other_replica=alone or self._watch.to_the_end)
        if bound is None:
            return replace(blank, reason=NO_HIGH_WATERMARK)
        if alone and self._in_use:
            bound = LONG_MAX  # its owner goes by what it has in memory; the entry lags behind
        found = self._watch.outlook(state, checkpoints, self._now_ms, committed_below=bound)
        swapped = self._being_swapped(state, blank)
        if swapped is not None:
            return swapped
        blank = replace(blank, checkpoint=checkpoints.cleaner.get(state.where), outlook=found)
        verdict, reason = self._verdict(state.path, blank, found)
        return replace(blank, state=verdict, reason=reason)

    def _being_swapped(self, state: LogState, blank: WatchedLog) -> WatchedLog | None:
        """The log in the middle of a swap: what its files are then is nothing to go by."""
        left = interrupted(state.path) if self._in_use else []
        reason = f"segments are being swapped ({left[0]})" if left else ""
        return replace(blank, state=CLEANING, reason=reason) if left else None

    def _verdict(self, path: Path, log: WatchedLog, found: Outlook | None) -> tuple[str, str]:
        """Its state, and the reason where there is one to tell."""
        if log.uncleanable is not None:
            return UNCLEANABLE, log.uncleanable.reason
        if self._in_use and files.is_directory(path / STAGING) and files.entries(path / STAGING):
            run = files.entries(path / STAGING)[-1].name
            return CLEANING, f"run {run} is at it, or was killed"
        if found is None:
            return UP_TO_DATE, "the directory holds no segments"
        is_dirty = found.range.cleanable_bytes > 0
        if found.is_due:
            late = f"overdue by {found.range.delay_ms / 1000:,.0f} s" if found.range.overdue else ""
            return DUE, late
        horizons = found.horizons
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
    """``samples`` in Prometheus' text format: HELP and TYPE once a name, then its samples in the order
    given. Needs ``siltstone[server]``."""
    from prometheus_client import CollectorRegistry, Metric, generate_latest

    families: dict[str, Metric] = {}
    for each in samples:
        family = families.setdefault(each.name, Metric(each.name, each.help, each.type))
        family.add_sample(each.name, dict(each.labels), each.value)

    class Families(CollectorRegistry):
        def collect(self) -> Iterable[Metric]:
            return families.values()

    return generate_latest(Families())
