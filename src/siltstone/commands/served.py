"""Holds the log directories of one ``siltstone serve`` process, open or in look mode, and what works on them.

::

    open   LogManager (locked, recovered) ─ LogCleaner, Compactions, upkeep ─ Cataloguer, Jobs, ChangeLog
    look   Snapshot (no lock, nothing changed) ──────────────────────────── Cataloguer, Jobs
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from siltstone.base import files
from siltstone.base.clock import Clock, SystemClock
from siltstone.base.closing import Closing
from siltstone.base.collector import collector_paused
from siltstone.base.config import (
    Config,
    ConfigValue,
    first_property,
    ignored_properties,
    parse_broker_config,
)
from siltstone.base.errors import NotAllowedError, NotALogDirectoryError, UnknownTopicError
from siltstone.commands.catalogue import FIGURES_SECONDS, Catalogue, Cataloguer, SlowFigures
from siltstone.commands.changes import DONE, RESTART, ChangeLog
from siltstone.commands.counting import RecordTotals, SegmentCounter
from siltstone.commands.directories import Snapshot
from siltstone.commands.engines import has_session
from siltstone.commands.group_records import KeptRecords
from siltstone.commands.jobs import Jobs
from siltstone.commands.library import EngineName, start_cleaner
from siltstone.commands.policies import LogOptions, read_server_properties, read_text
from siltstone.commands.savings import Histories, saved_by_topic
from siltstone.commands.scans import Scans
from siltstone.commands.watch import Watch, WatchedLog
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.read_only import ReadOnlyLog
from siltstone.runtime.manager import LogManager
from siltstone.runtime.topics import TopicDescription

if TYPE_CHECKING:
    from siltstone.commands.clients import Clients
    from siltstone.runtime.compactions import Compactions
    from siltstone.runtime.log_cleaner import LogCleaner

Part = TypeVar("Part")
LOOK_ADVICE = "start siltstone serve without --look, on directories that no broker uses"
SNAPSHOT_MS = 5_000
"""In look mode: how long a log is used before its files are read again."""
READ_ONLY_LOGS_MAX = 256
"""In look mode: the most logs that are kept open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of ``siltstone serve``. ``properties``: the broker's ``server.properties``, None: defaults;
    ``is_look``: look mode, which takes no lock and changes nothing; ``engine``: the cleaner's, as for
    ``st.start_cleaner``; ``creates``: see ``refuse_missing``; ``settings``: a program's settings instead of
    the file."""

    paths: tuple[Path, ...]
    properties: Path | None = None
    is_look: bool = False
    engine: EngineName = "auto"
    creates: bool = False
    settings: Mapping[str, ConfigValue] | None = None


def settings_to_serve(options: ServeOptions) -> Config:
    """The settings of ``server.properties``, as far as they are known here, or those of a program. Raises
    UsageError, OSError."""
    if options.settings is not None:
        return Config(static=parse_broker_config(options.settings, "config"))
    return Config(static=read_server_properties(options.properties, "--config", skip_unknown=True))


def ignored_settings(options: ServeOptions) -> list[str]:
    """Lines about the settings of ``server.properties`` that have no effect: unknown names, with the nearest
    known one, and settings that only Kafka uses. Raises UsageError, OSError."""
    if options.properties is None:
        return []
    text = read_text(options.properties, "--config")
    unknown, unused = ignored_properties(text, str(options.properties))
    lines = [f"ignored: {error}" for error in unknown]
    return lines + ([f"{options.properties}: not used here: {', '.join(unused)}"] if unused else [])


def directories_of(properties: Path) -> tuple[Path, ...]:
    """The directories that ``log.dirs`` names in a ``server.properties``, none if it has no such setting.
    Raises UsageError."""
    text = read_text(properties, "--config")
    listed = first_property(text, str(properties), "log.dirs", "log.dir") or ""
    return tuple(Path(part.strip()) for part in listed.split(",") if part.strip())


def refuse_missing(options: ServeOptions) -> list[Path]:
    """The directories that are missing and may be made: those that ``log.dirs`` names in the broker's
    ``server.properties``, or all with ``creates``.

    A broker makes the directories of its ``log.dirs``, as Kafka does. A path on the command line may be a
    typing error, and would start a new, empty broker instead of the right one: so it must exist. Raises
    NotALogDirectoryError for a directory that may not be made, UsageError for a bad file.
    """
    missing = [path for path in options.paths if not files.exists(path)]
    named = set[Path]()
    if missing and options.properties is not None:
        named = {path.absolute() for path in directories_of(options.properties)}
    for path in missing:
        if options.is_look or not (options.creates or path.absolute() in named):
            advice = "check the path" if options.is_look else "check the path, or pass --create to make it"
            raise NotALogDirectoryError("no such directory", path=path, advice=advice)
    return missing


class Served(Closing):
    """The directories of a server. ``manager``, ``cleaner``, ``compactions`` and ``changes`` are None in look
    mode; ``config``: the settings of ``server.properties``; ``clients``: the broker's clients, None without a
    broker; ``restart_asked``: set when a user has requested a restart; ``refuse_restart``: raises UsageError
    if the listeners could not be started with the settings that the file has now."""

    def __init__(self, options: ServeOptions, clock: Clock | None = None) -> None:
        """Open the directories, or read them in look mode. Raises UsageError, DirectoryLockedError,
        DirectoryRefusedError, SiltstoneError, OSError."""
        self.options, self.clock = options, clock or SystemClock()
        self.config = settings_to_serve(options)
        self.manager: LogManager | None = None
        self.cleaner: LogCleaner | None = None
        self.compactions: Compactions | None = None
        self.changes: ChangeLog | None = None
        self.clients: Clients | None = None
        self.restart_asked = threading.Event()
        self.refuse_restart: Callable[[], object] = lambda: None
        self.counter, self.histories = SegmentCounter(), Histories()
        self.group_records = KeptRecords()
        self._totals = RecordTotals(self.counter, self._open_log)
        self._snapshot: Snapshot | None = None
        self._reopened: tuple[int, Snapshot, Snapshot] | None = None
        """(When a snapshot was reopened, in ms; the snapshot; its reopened copy.)"""
        self._lock = threading.Lock()
        self._read_only_logs: OrderedDict[TopicPartition, tuple[int, ReadOnlyLog]] = OrderedDict()
        """In look mode: when a log was last read (ms), and the log; the least recently used first."""
        with contextlib.ExitStack() as stack:
            if not options.is_look:
                self._open(stack)
            with collector_paused():
                self._watch = Watch(
                    options.paths,
                    LogOptions(broker_config=options.properties),
                    self.clock,
                    for_catalogue=True,
                    is_ours=not options.is_look,
                    history_of=self.histories.of,
                    opened=()
                    if self.manager is None
                    else [served.directory for served in self.manager.directories],
                )
            if not options.is_look:
                self._watch.list_again()
            self.cataloguer = stack.enter_context(Cataloguer(self._watch, self.clock, figures=self.figures))
            self.jobs = stack.enter_context(Jobs(self.clock))
            self.scans = stack.enter_context(Scans(self.clock))
            self._stack = stack.pop_all()

    def _open(self, stack: contextlib.ExitStack) -> None:
        """Open the directories with their cleaner, compactions and audit log; ``stack`` closes them."""
        manager = stack.enter_context(
            LogManager.open(self.options.paths, config=self.config, clock=self.clock)
        )
        self.manager = manager
        self.cleaner = start_cleaner(manager, engine=self.options.engine)
        self.compactions = _compactions(manager, uses_spark=has_session() or self.options.engine == "spark")
        self.changes = ChangeLog(manager.serving()[0].path, self.clock)
        # A restart that a user asked for is done now.
        for change in self.changes.newest():
            if change.action == RESTART and change.outcome is None:
                self.changes.end(change.id, DONE)

    def start(self) -> None:
        """Start the threads: upkeep, compactions, the catalogue. (The cleaner's run since the opening.)"""
        if self.manager is not None:
            self.manager.start()
        if self.compactions is not None:
            self.compactions.start()
        self.cataloguer.start()

    @property
    def is_look(self) -> bool:
        """Is this look mode?"""
        return self.options.is_look

    @property
    def paths(self) -> Sequence[Path]:
        """The log directories."""
        return self.options.paths

    @property
    def catalogue(self) -> Catalogue:
        """The newest catalogue."""
        return self.cataloguer.current

    def unready_reason(self) -> str | None:
        """Why requests cannot be answered yet or no longer; None if they can."""
        if not self.catalogue.is_complete:
            return self.catalogue.error or "the directories are being read for the first time"
        if self.manager is not None and not self.manager.serving():
            return "no log directory is in service"
        return None

    def figures(self, logs: Sequence[WatchedLog]) -> SlowFigures:
        """Counts of records, and savings, for the catalogue. Counts for ``FIGURES_SECONDS``, but always at
        least one segment, so that each call gets further. Raises OSError."""
        until, has_read = time.monotonic() + FIGURES_SECONDS, False

        def may_read(size: int) -> bool:
            nonlocal has_read
            allowed, has_read = not has_read or time.monotonic() < until, True
            return allowed

        records, is_complete = self._totals.count(logs, may_read)
        saved = saved_by_topic(self.histories.savings(self.roots), self.clock.now_ms())
        damage = self._totals.damage
        return SlowFigures(records=records, damage=damage, saved_bytes_7d=saved, is_complete=is_complete)

    @property
    def roots(self) -> list[Path]:
        """The paths of the log directories, links resolved: there are the files of histories and savings."""
        newest = self._watch.newest
        return list(self.paths) if newest is None else [directory.path for directory in newest.directories]

    def opened(self) -> LogManager:
        """The open logs. Raises NotAllowedError in look mode."""
        return _opened(self.manager)

    def opened_changes(self) -> ChangeLog:
        """The audit log. Raises NotAllowedError in look mode."""
        return _opened(self.changes)

    def opened_cleaner(self) -> LogCleaner:
        """The log cleaner. Raises NotAllowedError in look mode."""
        return _opened(self.cleaner)

    def opened_compactions(self) -> Compactions:
        """The side-by-side compactions. Raises NotAllowedError in look mode."""
        return _opened(self.compactions)

    # Reading, the same in both modes

    def snapshot(self) -> Snapshot:
        """The directories without a lock, as the last refresh of the catalogue has read them. Raises
        SiltstoneError, OSError."""
        newest = self._watch.newest
        if newest is not None:
            return newest
        with self._lock:
            self._snapshot = self._snapshot or Snapshot(self.paths, self.config)
            return self._snapshot

    def snapshot_now(self) -> Snapshot:
        """As ``snapshot``, with logs and checkpoints as they were ``SNAPSHOT_MS`` ago at most. Raises
        SiltstoneError, OSError."""
        snapshot, now_ms = self.snapshot(), self.clock.now_ms()
        with self._lock:
            kept = self._reopened
            if kept is None or kept[1] is not snapshot or not 0 <= now_ms - kept[0] < SNAPSHOT_MS:
                kept = self._reopened = now_ms, snapshot, snapshot.reopened()
            return kept[2]

    def log(self, topic: str, partition: int) -> PartitionLog | ReadOnlyLog:
        """A partition's log; in look mode as it was ``SNAPSHOT_MS`` ago at most. Raises UnknownTopicError,
        SiltstoneError, OSError."""
        topic_partition = TopicPartition(topic, partition)
        if self.manager is not None:
            return self.manager.get(topic_partition)
        now_ms, kept = self.clock.now_ms(), self._read_only_logs.get(topic_partition)
        if kept is not None and 0 <= now_ms - kept[0] < SNAPSHOT_MS:
            return kept[1]
        try:
            log = None if kept is None or not kept[1].is_current else kept[1]
            log = log or self.snapshot_now().log(topic_partition)
        except FileNotFoundError:
            raise UnknownTopicError("the partition was deleted", path=str(topic_partition)) from None
        with self._lock:
            self._read_only_logs[topic_partition] = now_ms, log
            self._read_only_logs.move_to_end(topic_partition)
            while len(self._read_only_logs) > READ_ONLY_LOGS_MAX:
                self._read_only_logs.popitem(last=False)
        return log

    def _open_log(self, topic_partition: TopicPartition) -> PartitionLog | None:
        """A log that is open. Raises UnknownTopicError, StorageError."""
        return None if self.manager is None else self.manager.get(topic_partition)

    def describe(self, topic: str) -> TopicDescription:
        """A topic. Raises UnknownTopicError, SiltstoneError, OSError."""
        if self.manager is not None:
            return self.manager.topics.describe(topic)
        return self.snapshot().topic(topic)

    def partition_count(self, topic: str) -> int | None:
        """How many partitions a topic has, here and on other brokers; None if that is not known."""
        if self.manager is not None:
            return self.manager.partition_count(topic)
        snapshot = self.snapshot()
        return snapshot.partition_count(snapshot.topic(topic))

    def settings_of(self, topic: str) -> Config:
        """A topic's settings over the broker's. Raises UnknownTopicError, SiltstoneError, OSError."""
        if self.manager is not None:
            self.manager.partitions_of(topic)
            return self.manager.topics.settings(topic)
        snapshot = self.snapshot()
        return snapshot.config_of(snapshot.topic(topic))

    def broker_settings(self) -> Config:
        """The broker's settings. Raises SiltstoneError, OSError."""
        return self.snapshot().settings.broker if self.manager is None else self.manager.config

    def close(self) -> None:
        """End the jobs and the threads, close the logs."""
        self._stack.close()


def _opened(part: Part | None) -> Part:
    """A part of a server. Raises NotAllowedError if it is None, as in look mode."""
    if part is None:
        raise NotAllowedError("the server is in look mode", advice=LOOK_ADVICE)
    return part


def _compactions(manager: LogManager, *, uses_spark: bool) -> Compactions:
    """The service of side-by-side compaction; the manager closes it."""
    if uses_spark:
        from siltstone.spark.embedded import start_compaction

        return start_compaction(manager)
    from siltstone.compaction.ledger.compactor import InProcessCompactionEngine
    from siltstone.runtime.compactions import Compactions

    return Compactions(manager, InProcessCompactionEngine)
