"""One run of the embedded cleaner over some claimed logs, and what is made of each result.

::

    cleaned                             statistics, checkpoint and retention are done
    the log was wanted back             left as it is; its turn comes again
    the engine was lost                 left as it is; tried again alone, after all others, on a new engine
    damage, or what no retry changes    uncleanable, with the reason; the others go on
    anything else                       tried again, and uncleanable after ``MOST_FAILURES`` in a row
"""

from __future__ import annotations

import collections
import contextlib
import errno
import logging
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from siltstone.base.config import LONG_MAX, Config, LogConfig
from siltstone.base.errors import CleaningAbortedError, EngineError, SiltstoneError
from siltstone.compaction import report
from siltstone.compaction.discards import CLEANING_REASONS
from siltstone.compaction.engine import Engine
from siltstone.compaction.extraction import failure_of
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
from siltstone.compaction.inplace.facts import Choices, LogState, OpenLog, Planned
from siltstone.compaction.inplace.plan import kafka_map_keys
from siltstone.compaction.input_splits import IO_LIMIT, UNLIMITED, share_of_io
from siltstone.compaction.report import CLEANED, Cleaning, LogResult
from siltstone.compaction.staging import Rewritten
from siltstone.log.directory import Checkpoints
from siltstone.log.fetch import LogView
from siltstone.log.ledger.keeping import uncovered
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.replacement import adopt, drop_cleaned
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import Segment, find_segment
from siltstone.runtime.cleaning_states import Claim
from siltstone.runtime.engines import EngineUse
from siltstone.runtime.manager import LogManager
from siltstone.runtime.served_directory import ServedDirectory
from siltstone.runtime.upkeep import Upkeep

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
        dirty = self.range.end > self.range.first_dirty and self.range.cleanable_bytes > 0
        return dirty and plan.is_eligible(self.range, self.log.config.min_cleanable_dirty_ratio)

    @property
    def size(self) -> int:
        """Bytes that a cleaning reads."""
        return sum(each.size for each in self.log.view.segments if each.base_offset < self.range.end)

    @property
    def clean_end(self) -> int:
        """Below this offset lies what of the clean part may be cleaned again."""
        return self.range.clean_end


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A candidate that a run has."""

    candidate: Candidate
    claim: Claim

    @property
    def where(self) -> TopicPartition:
        """Topic and partition."""
        return self.claim.where


def candidate(
    served: ServedDirectory, log: PartitionLog, checkpoint: int | None, now_ms: int
) -> Candidate | None:
    """The log as a candidate, None where its settings keep the cleaner away. Raises OSError."""
    config, view = log.config, log.view
    if not config.compacts or config.remote_storage_enable:
        return None
    lag = plan.LagLimits(min_ms=config.min_compaction_lag_ms, max_ms=config.max_compaction_lag_ms)
    bound = min(log.recovery_point, uncovered(log.directory).clean_below)
    found = plan.cleanable_range(_facts(view, config, bound, checkpoint), lag, now_ms)
    return Candidate(served=served, log=log, range=found)


def _facts(view: LogView, config: LogConfig, durable: int, checkpoint: int | None) -> plan.LogFacts:
    """Timestamps only of what is dirty: they may have to be read from the files."""
    following = [segment.base_offset for segment in view.segments[1:]] + [view.log_end_offset]
    dirty_from = checkpoint if checkpoint is not None else view.log_start_offset
    return plan.LogFacts(
        segments=[
            _segment_facts(segment, view.size_of(number), config, is_dirty=following[number] > dirty_from)
            for number, segment in enumerate(view.segments)
        ],
        log_start_offset=view.log_start_offset,
        log_end_offset=view.log_end_offset,
        stable_offset=min(view.last_stable_offset, view.high_watermark, durable),
        checkpoint=checkpoint,
    )


def _segment_facts(segment: LiveSegment, size: int, config: LogConfig, *, is_dirty: bool) -> plan.PlanSegment:
    hurried = is_dirty and config.max_compaction_lag_ms != LONG_MAX
    first = segment.first_timestamp() if hurried else -1
    return plan.PlanSegment(
        base_offset=segment.base_offset,
        size=size,
        modified_ms=segment.modified_ms if hurried else 0,
        largest_timestamp=segment.largest_timestamp if is_dirty and config.min_compaction_lag_ms > 0 else 0,
        first_timestamp=first if first > 0 else None,
    )


def segments_below(log: PartitionLog, end: int) -> list[Segment]:
    """The closed segments below ``end`` as they lie on the disk. Raises OSError."""
    below = [each.base_offset for each in log.view.segments[:-1] if each.base_offset < end]
    return [find_segment(log.directory, base) for base in below]


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
    def _changing(self, state: LogState) -> Iterator[Candidate]:
        claimed = self._logs[state.where]
        with claimed.claim.changing():
            yield claimed.candidate

    def _write_checkpoint(self, candidate: Candidate, offset: int) -> None:
        try:
            candidate.served.write_cleaner_checkpoint(candidate.where, offset)
        except OSError as error:
            if error.errno not in _FULL:
                candidate.served.go_offline(f"{error.strerror or error}")
            raise

    def tidy(self, state: LogState) -> list[str]:
        """Drop what an earlier run staged; nothing else is unfinished in a log that is open."""
        return [DROPPED] if drop_staged(state.path) else []

    def check(self, planned: Planned) -> None:
        """Raises CleaningAbortedError where the log is wanted back."""
        self._logs[planned.state.where].claim.check()

    def reset_checkpoint(self, state: LogState, offset: int) -> None:
        """Write the checkpoint anew."""
        with self._changing(state) as candidate:
            self._write_checkpoint(candidate, offset)

    def accept(self, planned: Planned, groups: Sequence[Rewritten]) -> None:
        """Swap groups in; their sources' files are unlinked after ``file.delete.delay.ms``."""
        found = swap_of(planned, groups)
        directory = planned.state.path
        with self._changing(planned.state) as candidate:
            try:
                for group in groups:
                    check_sizes(group)
                adopt(directory, found.staged)
                retired = candidate.log.replace(list(found.staged), found.old, found.known)
            except (SiltstoneError, OSError):
                for base_offset in found.staged:
                    with contextlib.suppress(OSError):
                        drop_cleaned(directory, base_offset)
                raise
        delay_ms = candidate.log.config.file_delete_delay_ms
        self._upkeep.unlink_later(candidate.served, retired, delay_ms)

    def finish(self, planned: Planned) -> None:
        """Move the cleaner checkpoint; then old segments of ``compact,delete``, and those below the log
        start, have their turn, which retention has left to us."""
        with self._changing(planned.state) as candidate:
            self._write_checkpoint(candidate, cleaned_up_to(planned))
        with contextlib.suppress(SiltstoneError, OSError):
            self.give_up(planned)
        candidate = self._logs[planned.state.where].candidate
        with (
            contextlib.suppress(CleaningAbortedError),
            self._changing(planned.state),
            self._upkeep.guarded(candidate.served),
        ):
            self._upkeep.delete_old_segments_of(candidate.served, candidate.log)


# What the embedded cleaner did: the last results, and Kafka's metrics out of them (``LogCleaner``'s
# gauges).


CLEANER, MANAGER = "kafka_log_logcleaner_", "kafka_log_logcleanermanager_"


class Statistics:
    """The last ``most`` cleanings, and what the last look at all logs has shown. Safe for several threads."""

    def __init__(self, most: int, before: Iterable[Cleaning] = ()) -> None:
        """``before``: what is known of earlier cleanings, in any order."""
        self._lock = threading.Lock()
        self._cleanings: collections.deque[Cleaning] = collections.deque(maxlen=most)
        self._last_run: list[Cleaning] = []
        self._last_run_ms: int | None = None
        self._dirtiest = 0.0
        self._delay_ms = 0
        runs: dict[int, list[LogResult]] = {}
        for each in sorted(before, key=lambda each: each.began_ms):
            runs.setdefault(each.began_ms, []).append(each.result)
        for began_ms, results in runs.items():
            self.ran(began_ms, results)

    @property
    def cleanings(self) -> list[Cleaning]:
        """The last ones, oldest first."""
        with self._lock:
            return list(self._cleanings)

    def looked(self, ratios: Iterable[float], delays_ms: Iterable[int]) -> None:
        """All logs were looked at: their dirty ratios, and how long over the maximum lag they are."""
        dirtiest, delay_ms = max(ratios, default=0.0), max(delays_ms, default=0)
        with self._lock:
            self._dirtiest, self._delay_ms = dirtiest, delay_ms

    def ran(self, began_ms: int, results: Iterable[LogResult]) -> list[Cleaning]:
        """A run is over; its cleanings."""
        cleanings = [Cleaning(began_ms=began_ms, result=result) for result in results]
        with self._lock:
            self._cleanings += cleanings
            self._last_run = [each for each in cleanings if each.result.status == CLEANED] or self._last_run
            self._last_run_ms = began_ms
        return cleanings

    def metrics(self, now_ms: int, buffer_bytes: int, load_factor: float) -> dict[str, float]:
        """Kafka's gauges by the names that the usual exporter rules give them.

        The buffer's utilization is that of a map as large as Kafka's: ours does not fill up, so it may be
        over 100. Where nothing was ever cleaned there is a ``time_since_last_run_ms`` of 0.
        """
        with self._lock:
            last, last_ms = self._last_run, self._last_run_ms
            dirtiest, delay_ms = self._dirtiest, self._delay_ms
        before = sum(each.result.bytes_before for each in last)
        keys = max((each.result.distinct_dirty_keys or 0 for each in last), default=0)
        after = sum(each.result.bytes_after for each in last)
        map_keys = max(kafka_map_keys(buffer_bytes, load_factor), 1)
        return {
            f"{CLEANER}max_buffer_utilization_percent": 100 * keys / map_keys,
            f"{CLEANER}cleaner_recopy_percent": 100 * after / before if before else 0.0,
            f"{CLEANER}max_clean_time_secs": max((each.result.seconds for each in last), default=0.0),
            f"{CLEANER}max_compaction_delay_secs": delay_ms / 1000,
            f"{MANAGER}max_dirty_percent": 100 * dirtiest,
            f"{MANAGER}time_since_last_run_ms": 0 if last_ms is None else now_ms - last_ms,
        }


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
_logger = logging.getLogger("siltstone.cleaner")


class CleaningRun:
    """Cleans ``batch`` with ``engine``. ``failures``: how often logs have failed in a row, kept up here."""

    def __init__(
        self,
        manager: LogManager,
        batch: Sequence[Claimed],
        engine: EngineUse[Engine],
        limits: RunLimits,
        failures: dict[TopicPartition, int],
    ) -> None:
        self._manager = manager
        self._batch = {each.where: each for each in batch}
        self._engine = engine
        self._limits = limits
        self._failures = failures
        self.began_ms = manager.clock.now_ms()

    def clean(self) -> list[LogResult]:
        """A result for each log that is still the cleaner's. Nothing about a log is raised."""
        started = datetime.fromtimestamp(self.began_ms / 1000, UTC)
        run = f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
        destination = IntoOpenLogs(run, self._batch, self._manager.upkeep)
        results = list[LogResult]()
        states = self._states(results)
        for each in self._batch.values():
            _tell_beginning(each.candidate)
        try:
            cleaner = Cleaner(lambda: self._engine.engine, destination, self._limits)
            results += cleaner.run(states, self._choices())
        except EngineError as error:
            _logger.warning("the cleaner has no engine: %s", error)
        self._manager.upkeep.take_failed_offline()
        for result in results:
            self._take_in(result)
        return results

    def _choices(self) -> Choices:
        """An engine is asked how many tasks it runs only where they have to share a limit."""
        config, tasks = self._manager.config, 1
        if share_of_io(config.number(IO_LIMIT), 1) != UNLIMITED:
            tasks = self._engine.engine.workers * max(config.integer("log.cleaner.threads"), 1)
        return Choices(now_ms=self.began_ms, drop_keyless=True, tasks_at_once=tasks)

    def is_nobodys_fault(self, result: LogResult) -> bool:
        """Was it the engine that kept the log from being cleaned?"""
        return result.status != report.CLEANED and self._engine.lost is not None

    def _states(self, results: list[LogResult]) -> list[LogState]:
        checkpoints: dict[int, dict[TopicPartition, int]] = {}
        states = []
        for where, each in self._batch.items():
            served, log = each.candidate.served, each.candidate.log
            try:
                if id(served) not in checkpoints:
                    checkpoints[id(served)] = served.cleaner_checkpoint()
                config = self._manager.topics.settings(where.topic)
                states.append(log_state(served, log, config, checkpoints[id(served)].get(where)))
            except (SiltstoneError, OSError) as error:
                failure = failure_of(error)
                blank = LogResult(topic=where.topic, partition=where.partition, directory=str(log.directory))
                results.append(blank.stop(failure.status, failure.reason))
        return states

    def _take_in(self, result: LogResult) -> None:
        where = result.where
        claim = self._batch[where].claim
        if result.status == report.CLEANED:
            self._failures.pop(where, None)
            _logger.info("%s", told(result))
        elif claim.is_lost:
            _logger.info("Cleaning of log %s was aborted", where)
        elif result.status in (report.NOTHING_TO_DO, report.NOT_ELIGIBLE):
            pass
        elif self._engine.lost is not None:
            _logger.warning("log %s was not cleaned: %s", where, result.reason)
            if self._engine.started:
                self._failures[where] = self._failures.get(where, 0) + 1
        elif result.status in _FINAL:
            self._give_up(result)
        else:
            _logger.warning("log %s was not cleaned: %s", where, result.reason)
            self._failures[where] = self._failures.get(where, 0) + 1
            if self._failures[where] >= MOST_FAILURES:
                self._give_up(result)

    def _give_up(self, result: LogResult) -> None:
        self._failures.pop(result.where, None)
        _logger.error(
            "Unexpected exception thrown when cleaning log %s. Marking its partition (%s) as uncleanable: %s",
            result.directory,
            result.where,
            result.reason,
        )
        try:
            self._manager.mark_uncleanable(result.where, result.reason, self.began_ms)
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
