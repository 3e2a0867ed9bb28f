"""Looking at logs that somebody cleans, or that wait for it (``siltstone clean --watch``).

Nothing is locked and nothing is changed, so the directories may be a broker's that runs, those of a program
with the cleaner inside, or stopped ones. Files that change between two steps are looked at again. A log's
settings are those that its owner knows: Siltstone's list of topics, else the broker's metadata log, and what
is given by hand over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from siltstone import files
from siltstone.administration.places import Look, TopicFacts
from siltstone.administration.watched import (
    CHANGING,
    CLEANING,
    DIRTY,
    DUE,
    SKIPPED,
    TOMBSTONES,
    UNCLEANABLE,
    UNREADABLE,
    UP_TO_DATE,
    Seen,
    WatchedLog,
)
from siltstone.cleaner.facts import NO_HIGH_WATERMARK, LogState, refusal
from siltstone.cleaner.history import Cleaning, read_cleanings
from siltstone.cleaner.outlook import Outlook, Outlooks
from siltstone.cleaner.report import CLEANED
from siltstone.clock import Clock
from siltstone.config import LONG_MAX, Config, refuse_contradictions
from siltstone.errors import (
    CorruptFileError,
    CorruptRecordError,
    SiltstoneError,
    SourceChangedError,
    UsageError,
)
from siltstone.log.directory import Checkpoints, LogDirectory, open_directories, refuse_strangers
from siltstone.log.names import LOCK, STAGING, TopicPartition
from siltstone.log.replacement import interrupted
from siltstone.log.service.uncleanable import Uncleanable, read_uncleanable
from siltstone.policies import PolicyPlaces, gather_policies

LOOKS = 3
"""How often a log is looked at whose files change meanwhile."""
METADATA_MS = 30_000
"""A broker's metadata log is read anew after that."""
NO_SETTINGS = (
    "its settings are not known: it is no topic of Siltstone's, and no metadata log here tells; "
    "give --config or --config-file"
)


class Watch:
    """Looks at ``paths`` again and again; what takes long is kept from one look to the next.

    ``to_the_end``: logs without an entry in the high watermarks' checkpoint have no other replica.
    """

    def __init__(
        self, paths: Sequence[Path], places: PolicyPlaces, clock: Clock, *, to_the_end: bool = False
    ) -> None:
        """Raises UsageError for what is given by hand, NotALogDirectoryError, CorruptFileError, OSError."""
        self._paths = tuple(paths)
        self._topics = tuple(places.topics)
        self._clock = clock
        self._to_the_end = to_the_end
        self._given = gather_policies(open_directories(paths, lock=False), places)
        self._outlooks = Outlooks()
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
        self._outlooks.begin_round(list(meant.values()))
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
        look = Look(self._paths, Config(static=self._given.static), known)
        if known is None and look.has_brokers_metadata:
            self._metadata = (now_ms, look)
        return look

    def settled(self, look: Look, topic: TopicFacts, state: LogState) -> LogState:
        """A log with the settings that hold for it, or with the reason why they are not known."""
        by_hand = {**self._given.by_topic.get(topic.name, {}), **self._given.given}
        try:
            if look.knows_settings_of(topic):
                config = look.config_of(topic).over(by_hand)
            elif by_hand:
                config = look.broker_in_force.over(by_hand)
            else:
                return replace(state, refused=(look.notes_on([topic]) or [NO_SETTINGS])[-1])
            return replace(state, config=refuse_contradictions(config))
        except UsageError as error:
            return replace(state, refused=str(error))

    def outlook(
        self, state: LogState, checkpoints: Checkpoints, now_ms: int, committed_below: int
    ) -> Outlook | None:
        """See ``Outlooks.look``."""
        return self._outlooks.look(state, checkpoints, now_ms, committed_below=committed_below)

    @property
    def without_high_watermark(self) -> bool:
        """Are logs without an entry looked at, too?"""
        return self._to_the_end


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
        self._uncleanable = self._read_uncleanable()
        self._cleanings, self._failures = self._read_cleanings()

    def _read_uncleanable(self) -> dict[TopicPartition, Uncleanable]:
        try:
            return read_uncleanable(self._directory.path)
        except CorruptFileError as error:
            self.notes.append(str(error))
            return {}

    def _read_cleanings(self) -> tuple[dict[TopicPartition, Cleaning], dict[TopicPartition, Cleaning]]:
        done, failed = dict[TopicPartition, Cleaning](), dict[TopicPartition, Cleaning]()
        for each in read_cleanings(self._directory.path):
            where = each.result.where
            if each.result.status == CLEANED:
                done[where] = each
                failed.pop(where, None)
            else:
                failed[where] = each
        return done, failed

    def log(self, where: TopicPartition, topic: TopicFacts) -> WatchedLog:
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
        trouble: Exception | None = None
        for _ in range(LOOKS):
            try:
                return self._look_into(state, blank)
            except (FileNotFoundError, SourceChangedError, CorruptRecordError) as error:
                trouble = error
                self._checkpoints = self._directory.checkpoints()
            except (SiltstoneError, OSError) as error:
                return replace(blank, state=UNREADABLE, reason=str(error))
        assert trouble is not None
        changing = self._in_use or not isinstance(trouble, CorruptRecordError)
        return replace(blank, state=CHANGING if changing else UNREADABLE, reason=str(trouble))

    def _look_into(self, state: LogState, blank: WatchedLog) -> WatchedLog:
        reason = refusal(state)
        if reason is not None:
            swapped = self._being_swapped(state, blank)
            if swapped is None and self._in_use and reason != refusal(state):
                raise SourceChangedError(f"{state.path}: its segments were being swapped")
            return swapped or replace(blank, reason=reason)
        checkpoints = self._checkpoints
        alone = state.where.topic in self._look.registry.topics
        bound = checkpoints.committed_below(
            state.where, no_other_replica=alone or self._watch.without_high_watermark
        )
        if bound is None:
            return replace(blank, reason=NO_HIGH_WATERMARK)
        if alone and self._in_use:
            bound = LONG_MAX  # its owner goes by what it has in memory; the entry lags behind
        found = self._watch.outlook(state, checkpoints, self._now_ms, bound)
        swapped = self._being_swapped(state, blank)
        if swapped is not None:
            return swapped
        blank = replace(blank, checkpoint=checkpoints.cleaner.get(state.where), outlook=found)
        verdict, reason = self._verdict(state.path, blank, found)
        return replace(blank, state=verdict, reason=reason)

    def _being_swapped(self, state: LogState, blank: WatchedLog) -> WatchedLog | None:
        """The log in the middle of a swap: what its files are then is nothing to go by."""
        left = interrupted(state.path) if self._in_use else []
        return (
            replace(blank, state=CLEANING, reason=f"segments are being swapped ({left[0]})") if left else None
        )

    def _verdict(self, path: Path, log: WatchedLog, found: Outlook | None) -> tuple[str, str]:
        """Its state, and the reason where there is one to tell."""
        if log.uncleanable is not None:
            return UNCLEANABLE, log.uncleanable.reason
        if self._in_use and files.is_directory(path / STAGING) and files.entries(path / STAGING):
            run = files.entries(path / STAGING)[-1].name
            return CLEANING, f"run {run} is at it, or was killed"
        if found is None:
            return UP_TO_DATE, "the directory holds no segments"
        if found.is_due:
            late = f"overdue by {found.range.delay_ms / 1000:,.0f} s" if found.range.overdue else ""
            return DUE, late
        horizons = found.horizons
        if horizons is not None and horizons.is_due:
            passed = "the delete horizons of all its tombstones have passed"
            return DUE if found.is_dirty else TOMBSTONES, passed
        if found.is_dirty:
            return DIRTY, ""
        newest_ms = None if horizons is None else horizons.newest_ms
        if newest_ms is not None and newest_ms > self._now_ms:
            return TOMBSTONES, f"the last delete horizon passes in {(newest_ms - self._now_ms) / 1000:,.0f} s"
        return UP_TO_DATE, ""
