"""The cleaner that runs while its logs are written and read (Kafka's ``LogCleaner`` and its
``CleanerThread``).

::

    with LogManager.open(["/data/logs"]) as logs:
        logs.start()
        cleaner = LogCleaner(logs, engine)          # engine(): called at the first cleaning
        cleaner.start()                             # closed with the logs
        …
        print(cleaner.cleanings, cleaner.metrics(), logs.uncleanable)

Each of ``log.cleaner.threads`` workers, again and again: choose (``next_batch``), claim
(``CleaningStates``), clean (``CleaningRun``), rest (``WINDOW_SECONDS``); with nothing to do it sleeps
``log.cleaner.backoff.ms``. Logs that are not dirty enough are looked at for tombstones that may go
(``find_horizons``): after a cleaning once ``delete.retention.ms`` has passed, after a start once. Settings
are read anew for every run.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from siltstone.base.config import LONG_MAX, Config, LogConfig
from siltstone.base.errors import CleaningAbortedError, EngineError, SiltstoneError
from siltstone.compaction import report
from siltstone.compaction.engine import Engine
from siltstone.compaction.inplace import plan
from siltstone.compaction.inplace.cleaner import Cleaner, RunLimits
from siltstone.compaction.inplace.destination import (
    DROPPED,
    InPlace,
    check_sizes,
    cleaned_up_to,
    drop_staged,
    swap_of,
)
from siltstone.compaction.inplace.facts import Choices, LogState, OpenLog, Planned, find_horizons
from siltstone.compaction.inplace.plan import kafka_map_keys
from siltstone.compaction.report import (
    CLEANED,
    CLEANING_REASONS,
    Cleaning,
    History,
    LogResult,
    read_cleanings,
)
from siltstone.compaction.staging import Rewritten
from siltstone.compaction.work import IO_LIMIT, UNLIMITED, failure_of, share_of_io
from siltstone.log.directory import Checkpoints
from siltstone.log.ledger.store import uncovered
from siltstone.log.names import CLUSTER_METADATA, TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.replacement import adopt, drop_cleaned
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import find_segment
from siltstone.runtime.cleaning_states import NONE, Claim
from siltstone.runtime.engines import EngineUse, LogService
from siltstone.runtime.manager import LogManager, Sample
from siltstone.runtime.served_directory import ServedDirectory
from siltstone.runtime.upkeep import Upkeep

# One run of the embedded cleaner over some claimed logs, and what is made of each result.
#
# ::
#
#     cleaned                             statistics, checkpoint and retention are done
#     the log was wanted back             left as it is; its turn comes again
#     the engine was lost                 left as it is; tried again alone, after all others, on a new engine
#     damage, or what no retry changes    uncleanable, with the reason; the others go on
#     anything else                       tried again, and uncleanable after ``MOST_FAILURES`` in a row

# What planning wants to know of logs that are open: from memory where it is asked of all logs at every
# round, from the disk only for those that are to be cleaned (Kafka's
# ``LogCleanerManager.grabFilthiestCompactedLog``).
#
# Of an open log nothing may be cleaned that is not flushed: a crash must not take from a source what a
# cleaned segment above it has superseded. So the recovery point bounds the range as well as the high
# watermark and the last stable offset do.


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An open log that the cleaner may have a look at, and what of it may be cleaned now."""

    served: ServedDirectory
    log: PartitionLog
    range: plan.CleanableRange

    @property
    def where(self) -> TopicPartition:
        """Topic and partition."""
        return self.log.where

    @property
    def is_eligible(self) -> bool:
        """Is it so dirty, or has it waited so long, that it is to be cleaned?"""
        return plan.is_eligible(self.range, self.log.config.min_cleanable_dirty_ratio)

    @property
    def size(self) -> int:
        """Bytes that a cleaning reads."""
        return sum(each.size for each in self.log.view.segments if each.base_offset < self.range.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed(Candidate):
    """A candidate that the cleaner has claimed."""

    claim: Claim


def candidate(
    served: ServedDirectory, log: PartitionLog, checkpoint: int | None, now_ms: int
) -> Candidate | None:
    """The log as a candidate, None where its settings keep the cleaner away. Raises OSError."""
    config, view = log.config, log.view
    if not config.compacts or config.remote_storage_enable:
        return None
    durable = min(log.recovery_point, uncovered(log.directory).clean_below)
    following = [segment.base_offset for segment in view.segments[1:]] + [view.log_end_offset]
    dirty_from = checkpoint if checkpoint is not None else view.log_start_offset
    facts = plan.LogFacts(
        segments=[
            _segment_facts(segment, view.size_of(number), config, is_dirty=following[number] > dirty_from)
            for number, segment in enumerate(view.segments)
        ],
        log_start_offset=view.log_start_offset,
        log_end_offset=view.log_end_offset,
        stable_offset=min(view.last_stable_offset, view.high_watermark, durable),
        checkpoint=checkpoint,
    )
    lag = plan.LagLimits(min_ms=config.min_compaction_lag_ms, max_ms=config.max_compaction_lag_ms)
    return Candidate(served=served, log=log, range=plan.cleanable_range(facts, lag, now_ms))


def _segment_facts(segment: LiveSegment, size: int, config: LogConfig, *, is_dirty: bool) -> plan.PlanSegment:
    """Timestamps only of what is dirty: they may have to be read from the files."""
    has_max_lag = is_dirty and config.max_compaction_lag_ms != LONG_MAX
    first = segment.first_timestamp() if has_max_lag else -1
    return plan.PlanSegment(
        base_offset=segment.base_offset,
        size=size,
        modified_ms=segment.modified_ms if has_max_lag else 0,
        largest_timestamp=segment.largest_timestamp if is_dirty and config.min_compaction_lag_ms > 0 else 0,
        first_timestamp=first if first > 0 else None,
    )


def log_state(served: ServedDirectory, log: PartitionLog, config: Config, checkpoint: int | None) -> LogState:
    """A claimed log for the planner. Raises OSError."""
    view, producers = log.view_and_producers()
    durable = min(view.last_stable_offset, view.high_watermark, log.recovery_point)
    opened = OpenLog(
        segments=tuple(find_segment(log.directory, each.base_offset) for each in view.segments),
        producers=producers,
        checkpoints=Checkpoints(
            cleaner={} if checkpoint is None else {log.where: checkpoint},
            recovery_point={},
            log_start={log.where: view.log_start_offset},
            high_watermark={log.where: durable},
        ),
    )
    return LogState(
        where=log.where, path=log.directory, directory=served.directory, config=config, opened=opened
    )


# Into logs that are open: each group is swapped under the log's claim, readers and appends going on.
#
# What is staged belongs to the cleaner alone. Only here does it touch the log: in ``Claim.changing``, for
# which whoever aborts the cleaning waits, and which raises CleaningAbortedError once somebody has.

_FULL = (errno.ENOSPC, errno.EDQUOT)


class IntoOpenLogs(InPlace):
    """``logs``: those of the run, by partition, each with its claim. Appends wait for no more than one
    group's swap."""

    def __init__(self, run: str, logs: Mapping[TopicPartition, Claimed], upkeep: Upkeep) -> None:
        super().__init__(run)
        self.at_once, self.takes_together = 1, False
        self._logs = logs
        self._upkeep = upkeep

    @contextlib.contextmanager
    def _changing(self, state: LogState) -> Iterator[Claimed]:
        claimed = self._logs[state.where]
        with claimed.claim.changing():
            yield claimed

    def _write_checkpoint(self, claimed: Claimed, offset: int) -> None:
        try:
            claimed.served.write_cleaner_checkpoint(claimed.where, offset)
        except OSError as error:
            if error.errno not in _FULL:
                claimed.served.go_offline(f"{error.strerror or error}")
            raise

    def tidy(self, state: LogState) -> list[str]:
        """Drop what an earlier run staged; nothing else is unfinished in a log that is open."""
        return [DROPPED] if drop_staged(state.path) else []

    def check(self, planned: Planned) -> None:
        """Raises CleaningAbortedError where the log is wanted back."""
        self._logs[planned.state.where].claim.check()

    def reset_checkpoint(self, state: LogState, offset: int) -> None:
        """Write the checkpoint anew."""
        with self._changing(state) as claimed:
            self._write_checkpoint(claimed, offset)

    def accept(self, planned: Planned, groups: Sequence[Rewritten]) -> None:
        """Swap groups in; their sources' files are unlinked after ``file.delete.delay.ms``."""
        found = swap_of(planned, groups)
        directory = planned.state.path
        with self._changing(planned.state) as claimed:
            try:
                for group in groups:
                    check_sizes(group)
                adopt(directory, found.staged)
                retired = claimed.log.replace(list(found.staged), found.old, found.known)
            except (SiltstoneError, OSError):
                for base_offset in found.staged:
                    with contextlib.suppress(OSError):
                        drop_cleaned(directory, base_offset)
                raise
        delay_ms = claimed.log.config.file_delete_delay_ms
        self._upkeep.unlink_later(claimed.served, retired, delay_ms)

    def finish(self, planned: Planned) -> None:
        """Move the cleaner checkpoint; then old segments of ``compact,delete``, and those below the log
        start, have their turn, which retention has left to us."""
        with self._changing(planned.state) as claimed:
            self._write_checkpoint(claimed, cleaned_up_to(planned))
        with contextlib.suppress(SiltstoneError, OSError):
            self.give_up(planned)
        claimed = self._logs[planned.state.where]
        with (
            contextlib.suppress(CleaningAbortedError),
            self._changing(planned.state),
            self._upkeep.guarded(claimed.served),
        ):
            self._upkeep.delete_old_segments_of(claimed.served, claimed.log)


CLEANER, MANAGER = "kafka_log_logcleaner_", "kafka_log_logcleanermanager_"


def told(result: LogResult) -> str:
    """A cleaning in one line, in Kafka's words."""
    megabytes, discarded = result.bytes_before / (1 << 20), result.removed.counts
    seconds = max(result.seconds, 1e-3)
    went = ", ".join(f"{discarded[name]} {name}" for name in CLEANING_REASONS if discarded[name])
    return (
        f"Log cleaner cleaned log {result.where} "
        f"(dirty section = [{result.first_dirty_offset}, {result.cleaned_end_offset}]): "
        f"{megabytes:,.1f} MB of log processed in {result.seconds:,.1f} seconds "
        f"({megabytes / seconds:,.1f} MB/sec), end size {result.bytes_after / (1 << 20):,.1f} MB; "
        f"removed: {went or 'nothing'}"
    )


MOST_FAILURES = 3
_FINAL = (report.UNCLEANABLE, report.SKIPPED)


@dataclass(slots=True, kw_only=True)
class CleaningRun:
    """Cleans ``batch`` with ``engine``. ``failures``: how often logs have failed in a row, kept up here."""

    manager: LogManager
    batch: Mapping[TopicPartition, Claimed]
    engine: EngineUse[Engine]
    limits: RunLimits
    failures: dict[TopicPartition, int]
    began_ms: int

    def clean(self) -> list[LogResult]:
        """A result for each log that is still the cleaner's. Nothing about a log is raised."""
        started = datetime.fromtimestamp(self.began_ms / 1000, UTC)
        run = f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
        destination = IntoOpenLogs(run, self.batch, self.manager.upkeep)
        results = list[LogResult]()
        states = self._states(results)
        for each in self.batch.values():
            _tell_beginning(each)
        try:
            config, tasks = self.manager.config, 1
            if share_of_io(config.number(IO_LIMIT), 1) != UNLIMITED:  # else the engine need not be started
                tasks = self.engine.engine.workers * max(config.integer("log.cleaner.threads"), 1)
            choices = Choices(now_ms=self.began_ms, drop_keyless=True, tasks_at_once=tasks)
            cleaner = Cleaner(lambda: self.engine.engine, destination, self.limits)
            results += cleaner.run(states, choices)
        except EngineError as error:
            _logger.warning("the cleaner has no engine: %s", error)
        self.manager.upkeep.take_failed_offline()
        for result in results:
            self._take_in(result)
        return results

    def _states(self, results: list[LogResult]) -> list[LogState]:
        checkpoints: dict[int, dict[TopicPartition, int]] = {}
        states = []
        for where, each in self.batch.items():
            served, log = each.served, each.log
            try:
                if id(served) not in checkpoints:
                    checkpoints[id(served)] = served.cleaner_checkpoint()
                config = self.manager.topics.settings(where.topic)
                states.append(log_state(served, log, config, checkpoints[id(served)].get(where)))
            except (SiltstoneError, OSError) as error:
                failure = failure_of(error)
                blank = LogResult(topic=where.topic, partition=where.partition, directory=str(log.directory))
                results.append(blank.stop(failure.status, failure.reason))
        return states

    def _take_in(self, result: LogResult) -> None:
        where = result.where
        claim = self.batch[where].claim
        if result.status == CLEANED:
            self.failures.pop(where, None)
            _logger.info("%s", told(result))
        elif claim.is_lost:
            _logger.info("Cleaning of log %s was aborted", where)
        elif result.status in (report.NOTHING_TO_DO, report.NOT_ELIGIBLE):
            pass
        elif self.engine.lost is not None:
            _logger.warning("log %s was not cleaned: %s", where, result.reason)
            if self.engine.started:
                self.failures[where] = self.failures.get(where, 0) + 1
        elif result.status in _FINAL:
            self._give_up(result)
        else:
            _logger.warning("log %s was not cleaned: %s", where, result.reason)
            self.failures[where] = self.failures.get(where, 0) + 1
            if self.failures[where] >= MOST_FAILURES:
                self._give_up(result)

    def _give_up(self, result: LogResult) -> None:
        self.failures.pop(result.where, None)
        _logger.error(
            "Unexpected exception thrown when cleaning log %s. Marking its partition (%s) as uncleanable: %s",
            result.directory,
            result.where,
            result.reason,
        )
        try:
            self.manager.mark_uncleanable(result.where, result.reason, self.began_ms)
        except SiltstoneError as error:
            _logger.warning("%s", error)


def _tell_beginning(candidate: Candidate) -> None:
    """What is about to be cleaned, in Kafka's words."""
    where, dirty = candidate.where, candidate.range
    _logger.info("Beginning cleaning of log %s", where)
    if not candidate.is_eligible:
        _logger.info("Cleaning log %s (cleaning prior to %d, for its tombstones)", where, dirty.end)
        return
    segments = candidate.log.view.segments
    following = [each.base_offset for each in segments[1:]]
    count = sum(dirty.first_dirty < end <= dirty.end for end in following)
    _logger.info(
        "Building offset map for log %s for %d segments in offset range [%d, %d); dirty ratio %.3f, %d bytes",
        where,
        count,
        dirty.first_dirty,
        dirty.end,
        dirty.dirty_ratio,
        dirty.cleanable_bytes,
    )
    _logger.info("Cleaning log %s (cleaning prior to %d)", where, dirty.end)


# Which logs are cleaned next, and which of them together (``LogCleanerManager.grabFilthiestCompactedLog``).
#
# The filthiest first. Small ones go together, since a job costs about the same for one and for a hundred; a
# large one goes alone. Logs whose cleaning has failed come last and go alone, so that they hold up nobody.
# All pure.

LOGS_AT_ONCE = 1000


def next_batch(
    candidates: Iterable[Candidate],
    failures: Mapping[TopicPartition, int],
    *,
    workers: int,
    small_bytes: int,
    run_bytes: float,
) -> list[Candidate]:
    """Those that one of ``workers`` cleans in one run: a large one (over ``small_bytes``), or small ones up
    to ``run_bytes`` and to the worker's share; none where none is eligible."""
    turn = sorted(
        (each for each in candidates if each.is_eligible),
        key=lambda each: (failures.get(each.where, 0), -each.range.dirty_ratio, each.where),
    )
    if not turn:
        return []
    first = turn[0]
    if first.size > small_bytes or failures.get(first.where):
        return [first]
    small = [each for each in turn if each.size <= small_bytes and not failures.get(each.where)]
    share = min(max(-(-len(small) // workers), 1), LOGS_AT_ONCE)
    batch, used = [first], first.size
    for each in small[1:share]:
        used += each.size
        if used > run_bytes:
            break
        batch.append(each)
    return batch


# ``log.cleaner.io.max.bytes.per.second``: how long the cleaner waits before it goes on (Kafka's
# ``Throttler``).
#
# Kafka's cleaner waits between buffers, and so does each task of a run here, for its share of the limit
# (``compaction.work``). What is done beside the tasks, as the check before a swap, is made up for
# after the run: the cleaner rests until the average is within the limit. A run is kept to what may be done in
# ``WINDOW_SECONDS`` or to one log, whichever is more.

WINDOW_SECONDS = 10.0


# The embedded cleaner's gauges, with Kafka's names: what each of them means here, and how it is labelled.
#
# ``Statistics`` works out the numbers. A help that says "Unlike Kafka's" tells where a dashboard made
# for Kafka shows something else.

UNCLEANABLE_COUNT = f"{MANAGER}uncleanable_partitions_count"
UNCLEANABLE_BYTES = f"{MANAGER}uncleanable_bytes"

_HELP = {
    f"{CLEANER}max_buffer_utilization_percent": (
        "Unlike Kafka's: distinct dirty keys of the last run that cleaned something, as a share of what "
        "Kafka's map would hold with log.cleaner.dedupe.buffer.size. Nothing fills up here, so it may be "
        "over 100."
    ),
    f"{CLEANER}cleaner_recopy_percent": (
        "Unlike Kafka's, of whole logs: bytes after over bytes before, in percent, of the last run that "
        "cleaned something, be it before a restart."
    ),
    f"{CLEANER}max_clean_time_secs": (
        "Seconds that the slowest log took in the last run that cleaned something, be it before a restart."
    ),
    f"{CLEANER}max_compaction_delay_secs": (
        "By how many seconds the oldest dirty record is over max.compaction.lag.ms, the most of all logs."
    ),
    f"{CLEANER}deadthreadcount": "Cleaner threads that should run and do not.",
    f"{MANAGER}max_dirty_percent": "The dirty ratio of the filthiest log at the last look, in percent.",
    f"{MANAGER}time_since_last_run_ms": (
        "Unlike Kafka's, which counts from the last look at the logs: ms since the last cleaning began, be "
        "it before a restart; 0 where nothing was ever cleaned."
    ),
    UNCLEANABLE_COUNT: (
        "Partitions of the log directory that the cleaner leaves alone. Unlike Kafka's, kept over restarts."
    ),
    UNCLEANABLE_BYTES: (
        "Unlike Kafka's, which counts only what would be cleaned: bytes of the logs that the cleaner leaves "
        "alone."
    ),
}


RESULTS_KEPT = 1000
LOOKS_AT_ONCE = 64
"""Idle logs whose headers are read in one round."""
PASSES = 3
"""A cleaning reads its sources twice and writes them once, at the most."""
_logger = logging.getLogger("siltstone.cleaner")


class LogCleaner(LogService[Engine]):
    """Cleans the logs of ``manager`` with the engine that ``engine`` makes and ``stop_engine`` closes.

    Nothing happens before ``start``; without it ``clean_once`` does one round in the caller's thread.
    """

    def __init__(
        self,
        manager: LogManager,
        engine: Callable[[], Engine],
        *,
        stop_engine: Callable[[Engine], object] | None = None,
        limits: RunLimits | None = None,
    ) -> None:
        super().__init__(manager, manager.cleaning, engine, stop_engine)
        self._limits = limits or RunLimits()
        self._choosing = threading.Lock()
        self._threads: dict[int, threading.Thread] = {}
        self._failures: dict[TopicPartition, int] = {}
        self._next_look_ms: dict[TopicPartition, int | None] = {}
        self._history = History()
        # What the metrics are made of; under a lock of its own.
        self._counting = threading.Lock()
        self._cleanings: collections.deque[Cleaning] = collections.deque(maxlen=RESULTS_KEPT)
        self._last_run: list[Cleaning] = []
        self._last_run_ms: int | None = None
        self._dirtiest, self._delay_ms = 0.0, 0
        earlier = sorted(self._earlier_cleanings(), key=lambda cleaning: cleaning.began_ms)
        for began_ms, cleanings in itertools.groupby(earlier, key=lambda cleaning: cleaning.began_ms):
            self._count(began_ms, list(cleanings))

    # Its life

    def start(self) -> bool:
        """Begin, in threads; False where ``log.cleaner.enable`` is false."""
        if not self._manager.config.flag("log.cleaner.enable"):
            _logger.info("The log cleaner is not started: log.cleaner.enable=false")
            return False
        _logger.info("Starting the log cleaner")
        self._started = True
        self._begin_threads()
        return True

    def _begin_threads(self) -> None:
        with self._changed:
            for number in range(self._wanted_threads):
                thread = self._threads.get(number)
                if thread is None or not thread.is_alive():
                    name = f"siltstone-log-cleaner-{number}"
                    thread = threading.Thread(target=self._work, args=(number,), name=name, daemon=True)
                    self._threads[number] = thread
                    thread.start()
            self._changed.notify_all()

    @property
    def _wanted_threads(self) -> int:
        return 0 if self._closed else self._manager.config.integer("log.cleaner.threads")

    def settings_changed(self) -> None:
        """More or fewer workers, and no one sleeps for longer than it is to now."""
        if self._started:
            self._begin_threads()

    def close(self, *, abort: bool = True) -> None:
        """Let go of all logs and of the engine; twice is once. Without ``abort``, finish what was begun."""
        if self._started and not self._closed:
            _logger.info("Shutting down the log cleaner")
        super().close(abort=abort)

    def _end_work(self) -> None:
        for thread in list(self._threads.values()):
            thread.join()

    def _work(self, number: int) -> None:
        """A worker's life. What is no Exception ends it, as an error of Kafka's threads does."""
        try:
            while number < self._wanted_threads:
                is_busy = False
                try:
                    is_busy = any(result.status == CLEANED for result in self.clean_once())
                except Exception:
                    _logger.exception("the log cleaner failed; it goes on")
                if not is_busy:
                    self._sleep(self._manager.config.integer("log.cleaner.backoff.ms") / 1000, number)
        except BaseException:
            name = threading.current_thread().name
            _logger.critical(
                "[%s]: Error due to what follows; this log cleaner thread is dead", name, exc_info=True
            )

    def _sleep(self, seconds: float, number: int = 0) -> None:
        with self._changed:
            if number < self._wanted_threads:
                self._changed.wait(min(seconds, threading.TIMEOUT_MAX))

    # What it did

    @property
    def cleanings(self) -> list[Cleaning]:
        """The last thousand results, oldest first."""
        with self._counting:
            return list(self._cleanings)

    def metrics(self) -> dict[str, float]:
        """``samples`` by name, over all directories together."""
        totals = dict.fromkeys(_HELP, 0.0)
        for sample in self.samples():
            totals[sample.name] += sample.value
        return totals

    def samples(self) -> list[Sample]:
        """Kafka's gauges of ``LogCleaner`` and ``LogCleanerManager``, by the names that the usual exporter
        rules give them; those of uncleanable logs for each directory in service.

        ``LogManager.samples`` has them too. The buffer's utilization is that of a map as large as Kafka's:
        ours does not fill up, so it may be over 100. Where nothing was ever cleaned there is a
        ``time_since_last_run_ms`` of 0.
        """
        config, now_ms = self._manager.config, self._manager.clock.now_ms()
        with self._counting:
            last, last_ms = [cleaning.result for cleaning in self._last_run], self._last_run_ms
            dirtiest, delay_ms = self._dirtiest, self._delay_ms
        before = sum(result.bytes_before for result in last)
        after = sum(result.bytes_after for result in last)
        keys = max((result.distinct_dirty_keys or 0 for result in last), default=0)
        map_keys = kafka_map_keys(
            config.integer("log.cleaner.dedupe.buffer.size"),
            config.number("log.cleaner.io.buffer.load.factor"),
        )
        alive = sum(thread.is_alive() for thread in self._threads.values())
        wanted = self._wanted_threads if self._started else 0
        values = {
            f"{CLEANER}max_buffer_utilization_percent": 100 * keys / max(map_keys, 1),
            f"{CLEANER}cleaner_recopy_percent": 100 * after / before if before else 0.0,
            f"{CLEANER}max_clean_time_secs": max((result.seconds for result in last), default=0.0),
            f"{CLEANER}max_compaction_delay_secs": delay_ms / 1000,
            f"{CLEANER}deadthreadcount": max(wanted - alive, 0),
            f"{MANAGER}max_dirty_percent": 100 * dirtiest,
            f"{MANAGER}time_since_last_run_ms": 0 if last_ms is None else now_ms - last_ms,
        }
        found = [Sample(name=name, value=value, help=_HELP[name]) for name, value in values.items()]
        for served in self._manager.serving():
            size = sum(served.logs[where].size for where in served.uncleanable if where in served.logs)
            by_directory = {UNCLEANABLE_COUNT: len(served.uncleanable), UNCLEANABLE_BYTES: size}
            found += [
                Sample(name=name, value=value, help=_HELP[name], labels={"logDirectory": str(served.path)})
                for name, value in by_directory.items()
            ]
        return found

    def _earlier_cleanings(self) -> list[Cleaning]:
        """What the directories' histories hold of the partitions that are here."""
        found = list[Cleaning]()
        for served in self._manager.serving():
            try:
                listed = read_cleanings(served.path)
            except OSError as error:
                _logger.warning("%s", error)
                continue
            found += [each for each in listed if each.result.where in served.logs]
        return found

    def _count(self, began_ms: int, cleanings: Sequence[Cleaning]) -> None:
        with self._counting:
            self._cleanings += cleanings
            cleaned = [cleaning for cleaning in cleanings if cleaning.result.status == CLEANED]
            self._last_run, self._last_run_ms = cleaned or self._last_run, began_ms

    def _keep(self, cleanings: Iterable[Cleaning], *, engine_lost: bool) -> None:
        """Write down what came of a run; what has found nothing to do is no cleaning, nor is what only the
        engine kept from being one."""
        passing = (report.NOTHING_TO_DO, report.NOT_ELIGIBLE)
        kept = [
            cleaning
            for cleaning in cleanings
            if cleaning.result.status == CLEANED or not (engine_lost or cleaning.result.status in passing)
        ]
        for served in self._manager.serving():
            self._history.keep(served.path, [each for each in kept if each.result.where in served.logs])

    # One round

    def clean_once(self) -> list[LogResult]:
        """Choose, clean, rest; the results. Empty when nothing was to be done."""
        batch = self._claim_dirty() or self._claim_overdue_tombstones()
        if not batch:
            return []
        began, size = time.monotonic(), PASSES * sum(each.size for each in batch)
        engine = EngineUse(self._engine)
        try:
            run = CleaningRun(
                manager=self._manager,
                batch={each.where: each for each in batch},
                engine=engine,
                limits=self._limits,
                failures=self._failures,
                began_ms=self._manager.clock.now_ms(),
            )
            results = run.clean()
        finally:
            for each in batch:
                each.claim.done()
        cleanings = [Cleaning(began_ms=run.began_ms, result=result) for result in results]
        self._count(run.began_ms, cleanings)
        self._keep(cleanings, engine_lost=engine.lost is not None)
        # What a cleaning stamps may go after ``delete.retention.ms``.
        backoff_ms = self._manager.config.integer("log.cleaner.backoff.ms")
        cleaned = {result.where for result in results if result.status == CLEANED}
        for each in batch:
            if each.where in cleaned:
                wait_ms = max(each.log.config.delete_retention_ms, backoff_ms)
                self._next_look_ms[each.where] = run.began_ms + wait_ms
        limit = self._manager.config.number("log.cleaner.io.max.bytes.per.second")
        self._sleep(max(size / limit - (time.monotonic() - began), 0.0))
        return results

    def _candidates(self, now_ms: int) -> list[Candidate]:
        manager, found = self._manager, []
        uncleanable = manager.uncleanable
        for served in manager.serving():
            checkpoints = None
            for where, log in list(served.logs.items()):
                apart = where in uncleanable or where.topic == CLUSTER_METADATA or log.offline is not None
                if apart or manager.cleaning.state(where) != NONE:
                    continue
                with contextlib.suppress(FileNotFoundError):  # its segments are others now: the next round
                    checkpoints = served.cleaner_checkpoint() if checkpoints is None else checkpoints
                    each = candidate(served, log, checkpoints.get(where), now_ms)
                    if each is not None:
                        found.append(each)
        return found

    def _claim_dirty(self) -> list[Claimed]:
        """The filthiest log, or several small ones."""
        config, limits = self._manager.config, self._limits
        bytes_per_second = config.number("log.cleaner.io.max.bytes.per.second") / PASSES
        with self._choosing:
            candidates = self._candidates(self._manager.clock.now_ms())
            with self._counting:
                self._dirtiest = max((each.range.dirty_ratio for each in candidates), default=0.0)
                self._delay_ms = max((each.range.delay_ms for each in candidates), default=0)
            batch = next_batch(
                candidates,
                self._failures,
                workers=max(config.integer("log.cleaner.threads"), 1),
                small_bytes=limits.whole_log_bytes,
                run_bytes=min(limits.wave_bytes, bytes_per_second * WINDOW_SECONDS),
            )
            return self._claimed(batch)

    def _claimed(self, batch: Iterable[Candidate]) -> list[Claimed]:
        """Those that could be claimed, none once the cleaner is closed."""
        claimed = []
        for each in batch:
            claim = self._manager.cleaning.begin(each.where)
            if claim is not None and self._closed:
                claim.done()  # ``close`` may have aborted all claims before this one
            elif claim is not None:
                claimed.append(Claimed(served=each.served, log=each.log, range=each.range, claim=claim))
        return claimed

    # Idle logs

    def _claim_overdue_tombstones(self) -> list[Claimed]:
        """Idle logs whose delete horizons have all passed."""
        now_ms = self._manager.clock.now_ms()
        waiting = []
        for each in self._candidates(now_ms):
            next_look_ms = self._next_look_ms.get(each.where, 0)
            has_clean_part = each.log.view.segments[0].base_offset < each.range.clean_end
            if has_clean_part and next_look_ms is not None and next_look_ms <= now_ms:
                waiting.append(each)
        due = []
        for claimed in self._claimed(waiting[:LOOKS_AT_ONCE]):
            if self._is_due(claimed, now_ms):
                due.append(claimed)
            else:
                claimed.claim.done()
        return due

    def _is_due(self, each: Candidate, now_ms: int) -> bool:
        try:
            clean_end, config = each.range.clean_end, each.log.config
            below = [part.base_offset for part in each.log.view.segments[:-1] if part.base_offset < clean_end]
            found = find_horizons(
                [find_segment(each.log.directory, base_offset) for base_offset in below],
                clean_end,
                now_ms,
                uncovered(each.log.directory).tombstones_from,
                config.max_decompressed_message_bytes,
            )
        except (SiltstoneError, OSError) as error:
            _logger.warning("%s", error)
            self._next_look_ms[each.where] = None
            return False
        due_later = found.newest_ms is not None and found.newest_ms > now_ms
        self._next_look_ms[each.where] = found.newest_ms if due_later else None
        return found.is_due
