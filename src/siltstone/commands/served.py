"""What one ``siltstone serve`` process has: its log directories, open or only looked at, and their catalogue.

::

    open   LogManager (locked, recovered) ─ LogCleaner, Compactions, upkeep ─ Cataloguer, Jobs, ChangeLog
    look   Snapshot (no lock, nothing changed) ──────────────────────────── Cataloguer, Jobs
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from siltstone.base.clock import Clock, SystemClock
from siltstone.base.closing import Closing
from siltstone.base.config import Config
from siltstone.base.errors import NotAllowedError
from siltstone.commands.catalogue import Catalogue, Cataloguer, Facts
from siltstone.commands.changes import DONE, RESTART, ChangeLog
from siltstone.commands.counting import SegmentCounter
from siltstone.commands.directories import Snapshot
from siltstone.commands.engines import has_session
from siltstone.commands.jobs import Jobs
from siltstone.commands.library import EngineName, start_cleaner
from siltstone.commands.policies import LogOptions, read_server_properties
from siltstone.commands.watch import Watch
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.read_only import ReadOnlyLog
from siltstone.runtime.manager import LogManager
from siltstone.runtime.metrics import Sample, samples_of
from siltstone.runtime.topics import TopicDescription

if TYPE_CHECKING:
    from siltstone.runtime.compactions import Compactions
    from siltstone.runtime.log_cleaner import LogCleaner

Part = TypeVar("Part")
LOOK_ADVICE = "start siltstone serve without --look, on directories that no broker uses"
SNAPSHOT_MS = 5_000
"""How long a snapshot of directories that are only looked at is used."""
_HELP = {
    "siltstone_catalogue_age_seconds": "Seconds since the catalogue of topics was read.",
    "siltstone_logs": "Logs by their state, as clean --watch has it.",
    "siltstone_jobs": "Background jobs by their state.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What ``siltstone serve`` serves. ``properties``: the broker's ``server.properties``, None: defaults;
    ``is_look``: take no lock and change nothing; ``engine``: the cleaner's, as for ``st.start_cleaner``."""

    paths: tuple[Path, ...]
    properties: Path | None = None
    is_look: bool = False
    engine: EngineName = "auto"


def settings_to_serve(options: ServeOptions) -> Config:
    """The settings of ``server.properties``. Raises UsageError, OSError."""
    return Config(static=read_server_properties(options.properties, "--config", skip_unknown=options.is_look))


class Served(Closing):
    """The directories of a server. ``manager``, ``cleaner``, ``compactions`` and ``changes`` are None in look
    mode; ``config``: the settings of ``server.properties``."""

    def __init__(self, options: ServeOptions, clock: Clock | None = None) -> None:
        """Open or look. Raises UsageError, DirectoryLockedError, DirectoryRefusedError, SiltstoneError,
        OSError."""
        self.options, self.clock = options, clock or SystemClock()
        self.config = settings_to_serve(options)
        self.manager: LogManager | None = None
        self.cleaner: LogCleaner | None = None
        self.compactions: Compactions | None = None
        self.changes: ChangeLog | None = None
        self.restart_asked = threading.Event()
        self.counter = SegmentCounter()
        self._snapshot: tuple[int, Snapshot] | None = None
        self._snapshot_lock = threading.Lock()
        with contextlib.ExitStack() as stack:
            if not options.is_look:
                self._open(stack)
            watch = Watch(
                options.paths,
                LogOptions(broker_config=options.properties),
                self.clock,
                for_catalogue=True,
            )
            if not options.is_look:
                watch.list_again()
            self.cataloguer = stack.enter_context(Cataloguer(watch, self.clock, facts=self.facts))
            self.jobs = stack.enter_context(Jobs(self.clock))
            self._stack = stack.pop_all()

    def _open(self, stack: contextlib.ExitStack) -> None:
        manager = stack.enter_context(
            LogManager.open(self.options.paths, config=self.config, clock=self.clock)
        )
        self.manager = manager
        self.cleaner = start_cleaner(manager, engine=self.options.engine)
        self.compactions = _compactions(manager, uses_spark=has_session() or self.options.engine == "spark")
        self.changes = ChangeLog(manager.serving()[0].path, self.clock)
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
        """Are the directories only looked at?"""
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

    def facts(self) -> Facts:
        """What is known of partitions beside their states: stored records, saved bytes."""
        return Facts()

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
        """The directories without a lock, at most ``SNAPSHOT_MS`` old. Raises SiltstoneError, OSError."""
        with self._snapshot_lock:
            now_ms = self.clock.now_ms()
            if self._snapshot is None or not 0 <= now_ms - self._snapshot[0] < SNAPSHOT_MS:
                self._snapshot = now_ms, Snapshot(self.paths, self.config)
            return self._snapshot[1]

    def log(self, topic: str, partition: int) -> PartitionLog | ReadOnlyLog:
        """A partition's log. Raises UnknownTopicError, SiltstoneError, OSError."""
        topic_partition = TopicPartition(topic, partition)
        if self.manager is not None:
            return self.manager.get(topic_partition)
        return self.snapshot().log(topic_partition)

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

    def samples(self) -> list[Sample]:
        """What is measured now."""
        samples = [] if self.manager is None else self.manager.samples()
        catalogue = self.catalogue
        age = max(self.clock.now_ms() - catalogue.at_ms, 0) / 1000
        samples += samples_of({"siltstone_catalogue_age_seconds": age}, _HELP)
        for state, count in catalogue.totals.states.items():
            samples += samples_of({"siltstone_logs": count}, _HELP, state=state)
        states = [job.state for job in self.jobs.all()]
        for state in sorted(set(states)):
            samples += samples_of({"siltstone_jobs": states.count(state)}, _HELP, state=state)
        return samples

    def close(self) -> None:
        """End the jobs and the threads, close the logs."""
        self._stack.close()


def _opened(part: Part | None) -> Part:
    """A part of a server that only look mode does not have. Raises NotAllowedError without it."""
    if part is None:
        raise NotAllowedError("the directories are only looked at", advice=LOOK_ADVICE)
    return part


def _compactions(manager: LogManager, *, uses_spark: bool) -> Compactions:
    """The service of side-by-side compaction; the manager closes it."""
    if uses_spark:
        from siltstone.spark.embedded import start_compaction

        return start_compaction(manager)
    from siltstone.compaction.ledger.compactor import InProcessCompactionEngine
    from siltstone.runtime.compactions import Compactions

    return Compactions(manager, InProcessCompactionEngine)
