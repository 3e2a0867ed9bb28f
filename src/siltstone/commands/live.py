"""Compacts a topic of a running Kafka now: temporary settings, waiting, and the old settings again.

::

    journal (synced) ─► alter ─► wait: cleaner checkpoint, or read-back ─► restore ─► journal removed
         └──────────── after a crash: ``restore``, which each next run does first ─────────┘

The topic gets nothing but settings: no record is ever appended to it, so its active segment closes only when
a client appends (Kafka's ``LogConfig.maximumTimestampDelta`` is checked by an append). What is in the
active segment is not compacted, which is a normal outcome. ``delete.retention.ms`` is never changed.

The broker cannot change a setting on condition of its value (KIP-339 has no such operation), so a value that
another client sets in the milliseconds between the last read of it and its restoration is lost.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import msgspec

from siltstone.base import files
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    CorruptFileError,
    DirectoryLockedError,
    DirectoryRefusedError,
    UnknownTopicError,
    UsageError,
)
from siltstone.base.files.locking import Lock
from siltstone.log.checkpoints import read_checkpoint
from siltstone.log.names import TopicPartition

TEMPORARY_SETTINGS: Mapping[str, str] = {
    "min.cleanable.dirty.ratio": "0.0",
    "min.compaction.lag.ms": "0",
    "segment.ms": "1000",
}
"""A log is due with any dirty byte, whatever its age; the active segment closes at the next append after one
second. With a ratio of 0, ``max.compaction.lag.ms`` makes nothing due earlier, so it stays as it is."""
CLEANED, SETTLED, TIMED_OUT = "cleaned", "settled", "timed_out"
"""Statuses of a partition: nothing below its active segment is dirty; it was cleaned and has not changed for
``SETTLE_SECONDS``, so that what remains is in the active segment as far as can be seen; neither in time, or
not yet."""
SETTLE_SECONDS = 60.0
"""Four times Kafka's ``log.cleaner.backoff.ms``, after which the cleaner looks for work."""
GRACE_SECONDS = 5.0
"""The least time for which the temporary settings hold, so that an append can close the active segment."""
_PROPAGATION_SECONDS = 2.0
"""In which all brokers learn of topics and settings that were changed a moment ago."""
_VERSION = 1
"""Of the journal's form."""
_CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
_RESTORE_ADVICE = "siltstone compact --restore puts the settings back"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSetting:
    """A topic's setting in force; ``own``: it is the topic's, not inherited."""

    value: str
    own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTopic:
    """A topic of the cluster."""

    topic_id: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBack:
    """The counts of a read-back of a partition: its offsets from ``start`` to ``end``, the ``records`` there,
    and of these the number ``superseded`` by a later record of the same key."""

    start: int
    end: int
    records: int
    superseded: int


class Admin(Protocol):
    """The requests that a run makes to a cluster. All methods raise BrokerRefusedError, after which nothing
    has changed, and BrokerUnreachableError, after which it may have."""

    def cluster_id(self) -> str:
        """The cluster's id."""
        ...

    def topic(self, name: str) -> LiveTopic | None:
        """The topic of that name, None without one."""
        ...

    def settings(self, name: str) -> Mapping[str, LiveSetting]:
        """The topic's settings by name."""
        ...

    def alter(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Change own settings, all or none; None deletes one. No other setting changes (KIP-339)."""
        ...

    def read_back(self, name: str, partition: int) -> ReadBack:
        """Read a partition to its last stable offset."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """A setting of the topic: its own value before (None: inherited), and ``ours``, the temporary value."""

    name: str
    before: str | None
    ours: str


@decoded_in_threads
@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """The content of the journal file, as JSON: the changes that one run makes, or has made."""

    version: int
    bootstrap_server: str
    cluster_id: str
    topic: str
    topic_id: str
    changes: tuple[SettingChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The result of restoring a journal's entry: the names of the settings that were ``restored``, and a line
    for each that was ``kept`` as another client has set it."""

    topic: str
    restored: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """A partition after the run.

    Where its log directory could be read, ``cleaned_to`` is its cleaner checkpoint and ``active_from`` the
    base offset of its active segment, else None. Where it was read through the broker, ``before`` and
    ``after`` are the first and the last read-back, else None.
    """

    partition: int
    status: str
    cleaned_to: int | None = None
    active_from: int | None = None
    before: ReadBack | None = None
    after: ReadBack | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A run: the settings that it changes, the partitions, and what it restored, first of an earlier run."""

    topic: str
    topic_id: str
    dry_run: bool
    changes: tuple[SettingChange, ...]
    partitions: tuple[PartitionResult, ...] = ()
    restored: tuple[Restored, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """How to wait: at most ``timeout`` seconds, with a check every ``interval`` seconds, or more rarely if a
    check takes long. ``log_dirs``: of the broker, if they can be read here. ``stopwatch`` returns seconds,
    ``pause`` sleeps; tests replace both."""

    timeout: float
    interval: float = 1.0
    log_dirs: Sequence[Path] = ()
    stopwatch: Callable[[], float] = field(default=time.monotonic)
    pause: Callable[[float], None] = field(default=time.sleep)


def default_journal() -> Path:
    """The journal in the user's state directory (XDG Base Directory). Raises UsageError without one."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    except RuntimeError:  # the user id has no name, and HOME is not set, as in many containers
        reason = "the user has no home directory for the journal"
        raise UsageError(reason, path="--journal", advice="pass --journal, a file that survives") from None
    return Path(state) / "siltstone" / "compact.json"


def read_journal(path: Path) -> JournalEntry | None:
    """The entry that an earlier run left, None without a file. Raises CorruptFileError, OSError."""
    try:
        entry = msgspec.json.decode(files.read_bytes(path), type=JournalEntry)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptFileError(str(path), 0, f"it is no journal of siltstone compact: {error}") from None
    if entry.version != _VERSION:
        reason = f"the journal has version {entry.version}; only version {_VERSION} is supported"
        raise CorruptFileError(str(path), 0, reason)
    return entry


@contextlib.contextmanager
def locked(journal: Path) -> Iterator[None]:
    """Hold the journal's lock. Raises DirectoryLockedError, OSError."""
    files.make_directory(journal.parent, parents=True)
    try:
        lock = Lock(journal.with_name(journal.name + ".lock"))
    except BlockingIOError:
        advice = "wait for it, or name another --journal"
        raise DirectoryLockedError(
            "another siltstone compact uses this journal", path=journal, advice=advice
        ) from None
    try:
        yield
    finally:
        lock.release()


def restore(admin: Admin, journal: Path, pause: Callable[[float], None] = time.sleep) -> Restored | None:
    """Put back what a run left, and remove its journal; None if it left nothing. Call it ``locked``.

    A topic that was deleted has lost the temporary settings, too. A value that is neither the temporary nor
    the old one was set by another client, and stays. The old value is written even if the broker returns it:
    a broker that has not seen the temporary one yet returns the old one, too. A broker whose metadata is old
    may also not know the topic yet, or return a still older value: what is to stay is asked for twice,
    since nothing else remembers it when the journal is gone. ``pause``: waits so many seconds between.
    Raises CorruptFileError, DirectoryRefusedError, BrokerRefusedError, OSError.
    """
    entry = read_journal(journal)
    if entry is None:
        return None
    if admin.cluster_id() != entry.cluster_id:
        reason = f"it has settings of topic {entry.topic} in another cluster, at {entry.bootstrap_server}"
        advice = f"siltstone compact --restore --bootstrap-server {entry.bootstrap_server} puts them back"
        raise DirectoryRefusedError(reason, path=journal, advice=advice)
    result = _put_back(admin, entry)
    if result.kept:
        pause(_PROPAGATION_SECONDS)
        result = _put_back(admin, entry)
    _remove(journal)
    return result


def _remove(journal: Path) -> None:
    files.unlink(journal)
    files.sync_directory(journal.parent)


def _put_back(admin: Admin, entry: JournalEntry) -> Restored:
    topic = admin.topic(entry.topic)
    if topic is None or topic.topic_id != entry.topic_id:
        return Restored(topic=entry.topic, kept=("the topic has been deleted since",))
    settings = admin.settings(entry.topic)
    kept, changes = [], {}
    for change in entry.changes:
        now = _own_value(settings, change.name)
        if now in (change.ours, change.before):
            changes[change.name] = change.before
        else:
            text = "inherited" if now is None else now
            kept.append(f"{change.name} was changed meanwhile and stays {text}")
    if changes:
        admin.alter(entry.topic, changes)
    return Restored(topic=entry.topic, restored=tuple(changes), kept=tuple(kept))


def _own_value(settings: Mapping[str, LiveSetting], name: str) -> str | None:
    setting = settings.get(name)
    return setting.value if setting is not None and setting.own else None


def planned_changes(settings: Mapping[str, LiveSetting], topic: str) -> tuple[SettingChange, ...]:
    """The settings that a run changes: those whose values are above the temporary ones. Raises UsageError for
    a topic that is not compacted."""
    policy = settings["cleanup.policy"].value
    if "compact" not in policy.split(","):
        advice = "a broker compacts only topics with compact in their cleanup.policy"
        raise UsageError(f"its cleanup.policy is {policy}", path=topic, advice=advice)
    return tuple(
        SettingChange(name=name, before=_own_value(settings, name), ours=ours)
        for name, ours in TEMPORARY_SETTINGS.items()
        if name not in settings or float(settings[name].value) > float(ours)
    )


def compact(
    admin: Admin,
    topic: str,
    *,
    bootstrap_server: str,
    journal: Path,
    waiting: Waiting,
    dry_run: bool = False,
) -> Result:
    """Compact a topic now. First restores what an earlier run left. ``dry_run`` changes nothing.

    Raises UsageError, CorruptFileError, DirectoryLockedError, DirectoryRefusedError, UnknownTopicError,
    BrokerRefusedError, OSError.
    """
    if dry_run:
        description, changes = _planned(admin, topic)
        partitions = _Partitions(admin, topic, description.partitions, waiting)
        return Result(
            topic=topic,
            topic_id=description.topic_id,
            dry_run=True,
            changes=changes,
            partitions=partitions.results(),
        )
    with locked(journal):
        earlier = restore(admin, journal, waiting.pause)
        if earlier is not None:
            # Until all brokers have the old values: one without them would return the temporary ones, which
            # the new journal would then have as the topic's own.
            waiting.pause(_PROPAGATION_SECONDS)
        description, changes = _planned(admin, topic)
        partitions = _Partitions(admin, topic, description.partitions, waiting)
        entry = JournalEntry(
            version=_VERSION,
            bootstrap_server=bootstrap_server,
            cluster_id=admin.cluster_id(),
            topic=topic,
            topic_id=description.topic_id,
            changes=changes,
        )
        with _temporarily_changed(admin, entry, journal, waiting.pause) as restored:
            partitions.wait()
    return Result(
        topic=topic,
        topic_id=description.topic_id,
        dry_run=False,
        changes=changes,
        partitions=partitions.results(),
        restored=tuple(restoration for restoration in (earlier, *restored) if restoration is not None),
    )


def _planned(admin: Admin, topic: str) -> tuple[LiveTopic, tuple[SettingChange, ...]]:
    """The topic as it is, and the changes. Raises UsageError, UnknownTopicError."""
    description = admin.topic(topic)
    if description is None:
        raise UnknownTopicError(
            "the cluster has no such topic", path=topic, advice="kafka-topics --list shows its topics"
        )
    return description, planned_changes(admin.settings(topic), topic)


@contextlib.contextmanager
def _temporarily_changed(
    admin: Admin, entry: JournalEntry, journal: Path, pause: Callable[[float], None]
) -> Iterator[list[Restored | None]]:
    """Within the context the topic has the temporary settings; at its end what was restored is added to the
    yielded list."""
    restored: list[Restored | None] = []
    if not entry.changes:
        yield restored
        return
    files.replace(journal, msgspec.json.encode(entry))
    try:
        try:
            admin.alter(entry.topic, {change.name: change.ours for change in entry.changes})
        except BrokerRefusedError:  # nothing was changed, and restoring would be refused, too
            _remove(journal)
            raise
        yield restored
    finally:
        try:
            restored.append(restore(admin, journal, pause))
        except (BrokerRefusedError, BrokerUnreachableError) as error:
            reason = f"the settings of topic {entry.topic} are not restored: {error.reason}"
            raise type(error)(reason, path=journal, advice=_RESTORE_ADVICE) from error


class _Partitions:
    """The partitions of a topic, and whether each is cleaned: by the files of its log directory, or else by
    reading it."""

    def __init__(self, admin: Admin, topic: str, partitions: Sequence[int], waiting: Waiting) -> None:
        self._admin, self._topic, self._waiting = admin, topic, waiting
        self._results = {number: self._checked(number, None) for number in partitions}
        self._changed_at: dict[int, float] = {}
        """By partition, when a read-back last had fewer superseded records than the one before
        (stopwatch)."""

    def results(self) -> tuple[PartitionResult, ...]:
        """The last results."""
        return tuple(self._results.values())

    def wait(self) -> None:
        """Check until no partition has anything left to clean, or the time is over."""
        waiting = self._waiting
        start, interval = waiting.stopwatch(), waiting.interval
        while (waited := waiting.stopwatch() - start) < waiting.timeout:
            is_dirty = any(result.status == TIMED_OUT for result in self._results.values())
            if not is_dirty and waited >= GRACE_SECONDS:
                return
            waiting.pause(min(interval, waiting.timeout - waited))
            began = waiting.stopwatch()
            for number, result in self._results.items():
                # Files are read again also of a clean partition: an append may have rolled its active
                # segment.
                if result.status == TIMED_OUT or result.active_from is not None:
                    self._results[number] = self._settled(self._checked(number, result), result)
            # Reading a large partition again and again would cost the broker more than its cleaning.
            interval = max(waiting.interval, 2 * (waiting.stopwatch() - began))

    def _checked(self, number: int, earlier: PartitionResult | None) -> PartitionResult:
        """The partition as it is now: by its files, or else by a read-back. ``earlier``: its last result."""
        for log_dir in self._waiting.log_dirs:
            directory = log_dir / f"{self._topic}-{number}"
            if files.is_directory(directory):
                return self._from_files(log_dir, directory, number)
        counts = self._admin.read_back(self._topic, number)
        return PartitionResult(
            partition=number,
            status=TIMED_OUT if counts.superseded else CLEANED,
            before=counts if earlier is None else earlier.before,
            after=counts,
        )

    def _from_files(self, log_dir: Path, directory: Path, number: int) -> PartitionResult:
        """The result by the files in ``directory``: the broker writes the cleaner checkpoint after each
        cleaning (Kafka's ``updateCheckpoints``)."""
        names = (entry.name for entry in files.entries(directory))
        bases = [int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdigit()]
        checkpoint = read_checkpoint(log_dir / _CLEANER_CHECKPOINT)
        active_from = max(bases, default=0)
        cleaned_to = checkpoint.get(TopicPartition(self._topic, number), min(bases, default=0))
        return PartitionResult(
            partition=number,
            status=CLEANED if cleaned_to >= active_from else TIMED_OUT,
            cleaned_to=cleaned_to,
            active_from=active_from,
        )

    def _settled(self, result: PartitionResult, earlier: PartitionResult) -> PartitionResult:
        """The result as settled, if a read-back has seen a cleaning, and no change for ``SETTLE_SECONDS``
        since."""
        if result.after is None or earlier.after is None or result.status == CLEANED:
            return result
        now, number = self._waiting.stopwatch(), result.partition
        if result.after.superseded < earlier.after.superseded:
            self._changed_at[number] = now
        if now - self._changed_at.get(number, now) < SETTLE_SECONDS:
            return result
        return replace(result, status=SETTLED)
