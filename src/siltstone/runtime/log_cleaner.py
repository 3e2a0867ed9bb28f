"""The log cleaner that runs beside appends and reads (Kafka's ``LogCleaner`` and its ``CleanerThread``).

::

    with LogManager.open(["/data/logs"]) as logs:
        logs.start()
        cleaner = LogCleaner(logs, start_engine)    # calls start_engine at the first cleaning
        cleaner.start()                             # logs.close() closes it
        …
        print(cleaner.cleanings, cleaner.metrics(), logs.uncleanable)

Each of ``log.cleaner.threads`` threads repeats a *round* (Kafka's ``CleanerThread.tryCleanFilthiestLog``):
choose logs (``choose_logs``), claim them (``CleaningStates``), clean them (``IntoOpenLogs``), sleep for the
I/O limit. If nothing was cleaned, the thread sleeps for ``log.cleaner.backoff.ms``. If no log is dirty
enough, the round looks for logs with tombstones whose delete horizon has passed (``find_horizons``). It
checks a log once after the start, and ``delete.retention.ms`` after each cleaning. Every round reads the
settings anew.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import functools
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from siltstone.base.config import Config
from siltstone.base.errors import CleaningAbortedError, EngineError, SiltstoneError, UsageError
from siltstone.compaction import report
from siltstone.compaction.engine import Engine, InProcessEngine
from siltstone.compaction.history import History
from siltstone.compaction.inplace import ranges
from siltstone.compaction.inplace.cleaner import Cleaner, RunLimits
from siltstone.compaction.inplace.destination import (
    REMOVED_STAGED,
    InPlace,
    check_and_collect_swap,
    next_cleaner_checkpoint,
    remove_all_staged,
)
from siltstone.compaction.inplace.planning import (
    LogState,
    OpenLog,
    PlannedLog,
    PlanOptions,
    facts_of_view,
    find_horizons,
)
from siltstone.compaction.inplace.ranges import kafka_map_keys
from siltstone.compaction.report import (
    CLEANED,
    CLEANING_REASONS,
    Cleaning,
    LogResult,
    failure_of,
    read_cleanings,
)
from siltstone.compaction.staging import GroupReport
from siltstone.compaction.work import IO_LIMIT, UNLIMITED, share_of_io
from siltstone.log.directory import Checkpoints
from siltstone.log.fetch import LogView
from siltstone.log.names import CLUSTER_METADATA, INTERNAL_TOPICS, TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.replacement import drop_cleaned, rename_to_cleaned
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import find_segment
from siltstone.runtime.cleaner_metrics import CleanerMetrics, uncleanable_samples
from siltstone.runtime.cleaning_states import NONE, Claim
from siltstone.runtime.engines import EngineProxy, LogService, SharedEngine
from siltstone.runtime.manager import LogManager
from siltstone.runtime.metrics import Sample
from siltstone.runtime.served_directory import ServedDirectory
from siltstone.runtime.upkeep import Upkeep

# A round cleans some claimed logs. What each result leads to:
#
# ::
#
#     cleaned                             the checkpoint has moved, and retention was applied
#     the claim was aborted               the log is unchanged, and is chosen again later
#     the engine was lost                 the log is unchanged; it is tried again alone, after all other logs
#     damage, or another lasting cause    the log becomes uncleanable, with the reason
#     any other failure                   tried again; uncleanable after ``MAX_FAILURES`` in a row

# Facts about open logs for the planner. Every round needs those of all logs, so most come from memory. Only
# the checkpoint, the horizon of a compacted ledger and, for ``max.compaction.lag.ms``, the first batch
# headers of segments are read from files.
#
# ``log.view`` is the immutable state of a log at one moment: its segments and offsets.


def durable_stable_offset(log: PartitionLog, view: LogView) -> int:
    """The end of the records that are replicated, belong to no open transaction, and are on disk.

    Kafka has only the first two bounds. A crash could lose an unflushed record after a cleaning has removed
    the older records of its key. Kafka gets such a record back from a replica; here there may be none.
    """
    return min(view.last_stable_offset, view.high_watermark, log.recovery_point)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An open log that may be chosen, and the range of it that may be cleaned now."""

    served: ServedDirectory
    log: PartitionLog
    cleanable_range: ranges.CleanableRange

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the log."""
        return self.log.topic_partition

    @property
    def is_eligible(self) -> bool:
        """Is the dirty ratio high enough, or the oldest dirty record older than ``max.compaction.lag.ms``?"""
        return ranges.is_eligible(self.cleanable_range, self.log.config.min_cleanable_dirty_ratio)

    @property
    def size(self) -> int:
        """Bytes of the segments that a cleaning reads."""
        end = self.cleanable_range.end
        return sum(segment.size for segment in self.log.view.segments if segment.base_offset < end)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedLog(Candidate):
    """A candidate that the cleaner has claimed."""

    claim: Claim


def make_candidate(
    served: ServedDirectory, log: PartitionLog, checkpoint: int | None, now_ms: int
) -> Candidate | None:
    """The log as a candidate (Kafka's ``LogToClean``). None if its settings exclude it from cleaning.

    ``checkpoint``: the log's entry in the cleaner checkpoint, None without one. Raises CorruptRecordError,
    OSError.
    """
    config, view = log.config, log.view
    if not config.compacts or config.remote_storage_enable:
        return None
    facts = facts_of_view(log.directory, view, config, checkpoint, durable_stable_offset(log, view))
    return Candidate(served=served, log=log, cleanable_range=ranges.cleanable_range(facts, config, now_ms))


def log_state(served: ServedDirectory, log: PartitionLog, config: Config, checkpoint: int | None) -> LogState:
    """The state of a claimed log for the planner, from memory and from its files. Raises OSError.

    ``config``: the topic's settings over the broker's. ``checkpoint``: as for ``make_candidate``.
    """
    view, producers = log.view_and_producers()
    opened = OpenLog(
        segments=tuple(find_segment(log.directory, segment.base_offset) for segment in view.segments),
        producers=producers,
        checkpoints=Checkpoints(
            cleaner={} if checkpoint is None else {log.topic_partition: checkpoint},
            recovery_point={},
            log_start={log.topic_partition: view.log_start_offset},
            # Lower than the log's own, so that the planner cleans nothing that a crash could lose.
            high_watermark={log.topic_partition: durable_stable_offset(log, view)},
        ),
    )
    return LogState(
        topic_partition=log.topic_partition,
        path=log.directory,
        directory=served.directory,
        config=config,
        opened=opened,
    )


# The destination of a cleaning of open logs: each segment group is swapped in while appends and reads go on.
#
# Only the cleaner uses its staged files. It changes the log itself only within ``Claim.uninterrupted``. This
# raises CleaningAbortedError if the claim was aborted before, and a thread that aborts it meanwhile waits for
# the end.

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class IntoOpenLogs(InPlace):
    """Swaps new segments into open logs. ``run``: the name of the round; ``logs``: its claimed logs.

    Appends wait only while the segment list is exchanged.
    """

    def __init__(self, run: str, logs: Mapping[TopicPartition, ClaimedLog], upkeep: Upkeep) -> None:
        super().__init__(run)
        # One swap at a time, of one group: an append, or an abort of the claim, waits for one swap at most.
        self.swap_threads, self.commits_groups_together = 1, False
        self._logs = logs
        self._upkeep = upkeep

    @contextlib.contextmanager
    def _changing(self, state: LogState) -> Iterator[ClaimedLog]:
        """The claimed log, to be changed within the block; raises CleaningAbortedError before it."""
        claimed = self._logs[state.topic_partition]
        with claimed.claim.uninterrupted():
            yield claimed

    def _write_checkpoint(self, claimed: ClaimedLog, offset: int) -> None:
        try:
            claimed.served.write_cleaner_checkpoint(claimed.topic_partition, offset)
        except OSError as error:
            # With a full disk the old checkpoint stays, and the log is cleaned once more later. Any other
            # error takes the directory offline. (In Kafka every error does, in ``updateCheckpoints``.)
            if error.errno not in _DISK_FULL:
                claimed.served.go_offline(error)
            raise

    def recover(self, state: LogState) -> list[str]:
        """Remove files that an earlier round staged. Returns notes for the result. The recovery at the start
        has completed interrupted swaps."""
        return [REMOVED_STAGED] if remove_all_staged(state.path) else []

    def check_not_aborted(self, planned: PlannedLog) -> None:
        """Raises CleaningAbortedError if the claim was aborted."""
        self._logs[planned.state.topic_partition].claim.check()

    def reset_checkpoint(self, state: LogState, offset: int) -> None:
        """Replace a checkpoint that is outside the log by ``offset``
        (``LogCleanerManager.cleanableOffsets``)."""
        with self._changing(state) as claimed:
            self._write_checkpoint(claimed, offset)

    def commit_groups(self, planned: PlannedLog, groups: Sequence[GroupReport]) -> None:
        """Swap groups in (``UnifiedLog.replaceSegments``). The old segments' files are unlinked after
        ``file.delete.delay.ms``."""
        directory = planned.state.path
        with self._changing(planned.state) as claimed:
            swap = check_and_collect_swap(planned, groups)
            try:
                rename_to_cleaned(directory, swap.staged)
                retired = claimed.log.replace(list(swap.staged), swap.old, swap.verified)
            except (SiltstoneError, OSError):
                # A refused swap has changed nothing. After a disk error the log is offline, and the next
                # start completes or undoes the swap.
                for base_offset in swap.staged:
                    with contextlib.suppress(OSError):
                        drop_cleaned(directory, base_offset)
                raise
        delay_ms = claimed.log.config.file_delete_delay_ms
        self._upkeep.unlink_later(claimed.served, retired, delay_ms)

    def commit_log(self, planned: PlannedLog) -> None:
        """Move the cleaner checkpoint (``LogCleanerManager.doneCleaning``), then apply retention.

        Kafka's cleaner threads delete old segments of compacted logs, too (``deletableLogs``). The periodic
        retention skips logs that are claimed, so a log that is cleaned all the time depends on this.
        """
        with self._changing(planned.state) as claimed:
            # After all swaps: if a crash comes first, the range is cleaned again, which changes nothing.
            self._write_checkpoint(claimed, next_cleaner_checkpoint(planned))
        # ``abort_log`` removes the staging folder. If that fails, ``recover`` of the next round removes it.
        with contextlib.suppress(SiltstoneError, OSError):
            self.abort_log(planned)
        claimed = self._logs[planned.state.topic_partition]
        with (
            contextlib.suppress(CleaningAbortedError),
            self._changing(planned.state),
            self._upkeep.guarded(claimed.served),
        ):
            self._upkeep.delete_old_segments_of(claimed.served, claimed.log)


def summary_line(result: LogResult) -> str:
    """A log line about a cleaning, in the words of Kafka's ``Cleaner``."""
    megabytes, counts = result.bytes_before / (1 << 20), result.discarded.counts
    seconds = max(result.seconds, 1e-3)  # a divisor, so never 0
    discarded = ", ".join(f"{counts[name]} {name}" for name in CLEANING_REASONS if counts[name])
    return (
        f"Log cleaner cleaned log {result.topic_partition} "
        f"(dirty section = [{result.first_dirty_offset}, {result.cleaned_end_offset}]): "
        f"{megabytes:,.1f} MB of log processed in {result.seconds:,.1f} seconds "
        f"({megabytes / seconds:,.1f} MB/sec), end size {result.bytes_after / (1 << 20):,.1f} MB; "
        f"removed: {discarded or 'nothing'}"
    )


MAX_FAILURES = 3
"""Failures in a row after which a log is uncleanable. Kafka gives up at the first unexpected exception."""
_NOTHING_DONE = (report.NOTHING_TO_DO, report.NOT_ELIGIBLE)
"""Statuses that are neither a cleaning nor a failure: not logged, not in the history."""
_NO_RETRY = (report.UNCLEANABLE, report.SKIPPED)
"""Statuses of failures that another try would repeat."""
_NO_RECHECK = (*_NO_RETRY, *_NOTHING_DONE)
"""Statuses after which a log is not checked for removable tombstones before its next cleaning."""


def _failed_result(log: PartitionLog, error: SiltstoneError | OSError) -> LogResult:
    """The result of a log that cannot be read."""
    where = log.topic_partition
    result = LogResult(topic=where.topic, partition=where.partition, directory=str(log.directory))
    return result.set_failure(failure_of(error))


def _log_beginning(candidate: Candidate) -> None:
    """Log what is about to be cleaned, in the words of Kafka's ``Cleaner``."""
    topic_partition, cleanable = candidate.topic_partition, candidate.cleanable_range
    _logger.info("Beginning cleaning of log %s", topic_partition)
    if not candidate.is_eligible:
        _logger.info(
            "Cleaning log %s (cleaning prior to %d, for its tombstones)", topic_partition, cleanable.end
        )
        return
    end_offsets = [segment.base_offset for segment in candidate.log.view.segments[1:]]
    dirty_segments = sum(cleanable.first_dirty < end <= cleanable.end for end in end_offsets)
    _logger.info(
        "Building offset map for log %s for %d segments in offset range [%d, %d); dirty ratio %.3f, %d bytes",
        topic_partition,
        dirty_segments,
        cleanable.first_dirty,
        cleanable.end,
        cleanable.dirty_ratio,
        cleanable.cleanable_bytes,
    )
    _logger.info("Cleaning log %s (cleaning prior to %d)", topic_partition, cleanable.end)


# The choice of the next logs, step by step as in ``LogCleanerManager.grabFilthiestCompactedLog``:
#
# ::
#
#     1  compacted logs that are not in progress, paused or uncleanable          LogCleaner._candidates
#     2  their cleanable ranges and dirty ratios; the largest becomes a gauge    make_candidate, _claim_dirty
#     3  those over min.cleanable.dirty.ratio or max.compaction.lag.ms           Candidate.is_eligible
#     4  the dirtiest of them (Kafka), and other small ones (here)               choose_logs
#     5  state InProgress                                                        LogCleaner._claim_candidates
#
# Kafka does this under one lock. Here threads choose under ``_choosing``, and a log that was paused after
# step 1 is not claimed in step 5.
#
# Small logs are cleaned together, since a job for a hundred of them takes about as long as a job for one. A
# large log is cleaned alone. Logs whose cleaning has failed come last and alone: they delay no other log.

MAX_LOGS_PER_ROUND = 1000
"""The most logs that are cleaned together."""


def choose_logs(
    candidates: Iterable[Candidate],
    failures: Mapping[TopicPartition, int],
    *,
    threads: int,
    small_bytes: int,
    round_bytes: float,
) -> list[Candidate]:
    """The logs that one of ``threads`` threads cleans in one round; empty if none is eligible.

    Either one large log (over ``small_bytes``), or small logs of ``round_bytes`` together, at most the
    thread's share of them. ``failures``: failed cleanings in a row, by partition.
    """
    logs = sorted(
        (log for log in candidates if log.is_eligible),
        key=lambda log: (
            failures.get(log.topic_partition, 0),
            -log.cleanable_range.dirty_ratio,
            log.topic_partition,
        ),
    )
    if not logs:
        return []
    dirtiest = logs[0]
    if dirtiest.size > small_bytes or failures.get(dirtiest.topic_partition):
        return [dirtiest]
    # The other threads choose at the same time: with equal shares of the small logs all of them are busy. The
    # first of ``small`` is ``dirtiest``, so it is always chosen.
    small = [log for log in logs if log.size <= small_bytes and not failures.get(log.topic_partition)]
    share = min(max(-(-len(small) // threads), 1), MAX_LOGS_PER_ROUND)  # rounded up
    total_sizes = itertools.accumulate(log.size for log in small)
    fitting = sum(1 for _ in itertools.takewhile(lambda total: total <= round_bytes, total_sizes))
    return small[: max(min(share, fitting), 1)]


# ``log.cleaner.io.max.bytes.per.second`` (Kafka's ``Throttler``).
#
# Kafka's cleaner sleeps between buffers. So does each task of a round here, for its share of the limit
# (``compaction.work``). Tasks do not count all I/O, for instance not the verification before a swap. So the
# thread sleeps after the round until the average is within the limit. A round reads and writes no more bytes
# than the limit allows in ``ROUND_SECONDS``, or one log if that is larger.

ROUND_SECONDS = 10.0
IO_PASSES = 3
"""A cleaning reads the bytes of a log for the keys, reads them again for the rewrite, and writes them."""


MAX_RESULTS = 1000
"""How many results ``LogCleaner.cleanings`` keeps."""
MAX_HORIZON_CHECKS_PER_ROUND = 64
"""Idle logs whose batch headers one round reads for delete horizons."""
_logger = logging.getLogger("siltstone.cleaner")


class LogCleaner(LogService[Engine]):
    """Cleans the logs of ``manager``; ``start_engine`` starts the engine, ``stop_engine`` closes it.

    ``start`` starts the threads. ``clean_once`` does one round in the caller's thread, also without
    ``start``. ``_failures``: failed cleanings in a row, by log. ``_unreadable``: logs that the last round
    could not read, and the reason that was logged. ``_choosing``: held while logs are chosen and claimed.
    ``_paused``: the logs that a user has paused; ``_pausing`` guards it.
    """

    def __init__(
        self,
        manager: LogManager,
        start_engine: Callable[[], Engine],
        *,
        stop_engine: Callable[[Engine], object] | None = None,
        limits: RunLimits | None = None,
    ) -> None:
        super().__init__(manager, manager.cleaning_states, start_engine, stop_engine)
        self._internal_engine = SharedEngine[Engine](InProcessEngine)
        self._limits = limits or RunLimits()
        self._choosing = threading.Lock()
        self._pausing, self._paused = threading.Lock(), set[TopicPartition]()
        self._threads: dict[int, threading.Thread] = {}
        self._failures: dict[TopicPartition, int] = {}
        self._next_check_ms: dict[TopicPartition, int | None] = {}
        self._unreadable: dict[TopicPartition, str] = {}
        self._history = History()
        earlier = sorted(self._earlier_cleanings(), key=lambda cleaning: cleaning.began_ms)
        self._cleanings: collections.deque[Cleaning] = collections.deque(earlier, maxlen=MAX_RESULTS)
        self._metrics = CleanerMetrics()
        self._metrics.restore(earlier)

    # Start, settings, close

    def start(self) -> bool:
        """Start the threads. Returns False if ``log.cleaner.enable`` is false."""
        if not self._manager.config.flag("log.cleaner.enable"):
            _logger.info("The log cleaner is not started: log.cleaner.enable=false")
            return False
        _logger.info("Starting the log cleaner")
        self._is_started = True
        self._begin_threads()
        return True

    def _begin_threads(self) -> None:
        """Start the threads that should run and do not, and wake those that sleep: surplus ones then end."""
        with self._condition:
            for number in range(self._wanted_threads):
                thread = self._threads.get(number)
                if thread is None or not thread.is_alive():
                    name = f"siltstone-log-cleaner-{number}"
                    thread = threading.Thread(target=self._work, args=(number,), name=name, daemon=True)
                    self._threads[number] = thread
                    thread.start()
            self._condition.notify_all()

    @property
    def _wanted_threads(self) -> int:
        return 0 if self._is_closed else self._manager.config.integer("log.cleaner.threads")

    def settings_changed(self) -> None:
        """Start or end threads until ``log.cleaner.threads`` run, and wake those that sleep."""
        if self._is_started:
            self._begin_threads()

    def close(self, *, abort: bool = True) -> None:
        """Abort all cleanings and close the engine; without ``abort``, finish those that run. May be called
        twice."""
        if self._is_started and not self._is_closed:
            _logger.info("Shutting down the log cleaner")
        super().close(abort=abort)

    def _end_work(self) -> None:
        for thread in list(self._threads.values()):
            thread.join()

    def _work(self, number: int) -> None:
        """Repeat rounds until the cleaner is closed, or has fewer threads. An Exception ends only its round,
        any other BaseException the thread, as a Throwable in Kafka's ``CleanerThread``."""
        try:
            while number < self._wanted_threads:
                has_cleaned = False
                try:
                    has_cleaned = any(result.status == CLEANED for result in self.clean_once())
                except Exception:
                    _logger.exception("A round of the log cleaner failed; the next one follows")
                if not has_cleaned:
                    self._sleep(self._manager.config.integer("log.cleaner.backoff.ms") / 1000, number)
        except BaseException:
            name = threading.current_thread().name
            _logger.critical(
                "[%s]: Error due to the exception below; this thread has ended", name, exc_info=True
            )

    def _sleep(self, seconds: float, number: int = 0) -> None:
        with self._condition:
            if number < self._wanted_threads:
                self._condition.wait(min(seconds, threading.TIMEOUT_MAX))

    # Results and gauges

    @property
    def cleanings(self) -> list[Cleaning]:
        """The last ``MAX_RESULTS`` results, oldest first."""
        return list(self._cleanings.copy())

    def metrics(self) -> dict[str, float]:
        """The values by name; those that have labels are added up."""
        totals = dict[str, float]()
        for sample in self.samples():
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
        return totals

    def samples(self) -> list[Sample]:
        """The cleaner's metrics (``cleaner_metrics``), and each directory's gauges of uncleanable logs.
        ``LogManager.samples`` includes them."""
        live_threads = sum(thread.is_alive() for thread in self._threads.values())
        wanted_threads = self._wanted_threads if self._is_started else 0
        samples = self._metrics.samples(
            self._manager.clock.now_ms(),
            map_keys=kafka_map_keys(self._manager.config),
            dead_threads=max(wanted_threads - live_threads, 0),
        )
        for served in self._manager.serving():
            samples += uncleanable_samples(served)
        return samples

    def _earlier_cleanings(self) -> list[Cleaning]:
        """The cleanings of open logs in the histories of their directories."""
        earlier = list[Cleaning]()
        for served in self._manager.serving():
            try:
                listed = read_cleanings(served.path)
            except OSError as error:
                _logger.warning("%s: the history of cleanings cannot be read: %s", served.path, error)
                continue
            earlier += [cleaning for cleaning in listed if cleaning.result.topic_partition in served.logs]
        return earlier

    def _append_history(self, cleanings: Iterable[Cleaning], *, engine_failed: bool) -> None:
        """Add a round's cleanings and failures to the histories on disk. Failures are left out if the engine
        failed: they say nothing about the logs."""
        statuses = (CLEANED,) if engine_failed else (CLEANED, *_NO_RETRY, report.FAILED)
        listed = [cleaning for cleaning in cleanings if cleaning.result.status in statuses]
        for served in self._manager.serving():
            in_directory = [cleaning for cleaning in listed if cleaning.result.topic_partition in served.logs]
            self._history.append(served.path, in_directory)

    # One round

    def clean_once(self) -> list[LogResult]:
        """One round: choose logs, clean them, sleep for the I/O limit. Returns the results, an empty list if
        no log was chosen."""
        claimed_logs = self._claim_dirty() or self._claim_logs_with_passed_horizons()
        return self._clean_claimed(claimed_logs) if claimed_logs else []

    def clean_now(
        self,
        where: Collection[str | TopicPartition] = (),
        *,
        force: bool = True,
        wait_seconds: float = 0.0,
    ) -> list[LogResult]:
        """Clean the compacted logs of the topics and partitions in ``where``, or all if it is empty, in the
        caller's thread. Returns their results.

        ``force``: whatever their dirty ratio and with their active segments, which are rolled first; without
        it, those that are due. ``wait_seconds``: how long to wait for a log that is being cleaned, to clean
        it again after that; by default it is left out. Raises UnknownTopicError, UsageError for a topic that
        is not compacted, StorageError.
        """
        self.refuse_not_compacted(
            dict.fromkeys(place if isinstance(place, str) else place.topic for place in where)
        )

        def is_chosen(log: PartitionLog) -> bool:
            return not where or log.topic_partition in where or log.topic_partition.topic in where

        for _, log in self._manager.logs() if force else ():
            if log.config.compacts and is_chosen(log):
                log.roll()
                log.flush()
        with self._choosing:  # so that no other thread claims a log when it is free again
            for _, log in self._manager.logs() if wait_seconds > 0 else ():
                if is_chosen(log):
                    self._states.wait_until_unclaimed(log.topic_partition, wait_seconds)
            candidates = self._candidates(self._manager.clock.now_ms())
            claimed_logs = self._claim_candidates(
                candidate
                for candidate in candidates
                if is_chosen(candidate.log) and (force or candidate.is_eligible)
            )
        return self._clean_claimed(claimed_logs, force=force) if claimed_logs else []

    def refuse_not_compacted(self, topics: Iterable[str]) -> None:
        """Raises UsageError for a topic that is not compacted, UnknownTopicError."""
        for topic in topics:
            self._manager.partitions_of(topic)
            if not self._manager.topics.log_config(topic).compacts:
                advice = "set cleanup.policy=compact"
                raise UsageError(f"topic {topic!r} is not compacted", advice=advice)

    # Pauses that a user has asked for. They end with the process.

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The logs that are left alone until they are resumed."""
        return frozenset(self._paused)

    def pause(self, topic_partition: TopicPartition) -> None:
        """Abort the cleaning of a log, and leave it alone until ``resume``. May be called twice."""
        with self._pausing:
            if topic_partition not in self._paused:
                self._states.abort_and_pause(topic_partition)
                self._paused.add(topic_partition)

    def resume(self, topic_partition: TopicPartition) -> None:
        """End the pause of a log; nothing happens if it is not paused."""
        with self._pausing:
            if topic_partition in self._paused:
                self._paused.discard(topic_partition)
                self._states.resume(topic_partition)

    def _clean_claimed(self, claimed_logs: Sequence[ClaimedLog], *, force: bool = False) -> list[LogResult]:
        """Clean claimed logs, release them, sleep for the I/O limit. ``force``: whatever the dirty ratio."""
        began, io_bytes = time.monotonic(), IO_PASSES * sum(claimed.size for claimed in claimed_logs)
        began_ms, results, has_engine_failed = self._manager.clock.now_ms(), list[LogResult](), False
        try:
            for shared, logs in self._by_engine(claimed_logs):
                engine = EngineProxy(shared)
                results += self._clean(logs, engine, began_ms, force)
                has_engine_failed |= engine.failure is not None
        finally:
            for claimed in claimed_logs:
                claimed.claim.done()
        cleanings = [Cleaning(began_ms=began_ms, result=result) for result in results]
        self._cleanings.extend(cleanings)
        self._metrics.cleaned(cleanings, is_engine_up=not has_engine_failed)
        self._append_history(cleanings, engine_failed=has_engine_failed)
        # A cleaned log is checked again when the delete horizons that this cleaning has set have passed. A
        # log whose cleaning was aborted or failed is checked after the backoff: if it was chosen for its
        # tombstones, only another check can choose it again.
        backoff_ms = self._manager.config.integer("log.cleaner.backoff.ms")
        statuses = {result.topic_partition: result.status for result in results}
        for claimed in claimed_logs:
            status = statuses.get(claimed.topic_partition)
            if status not in _NO_RECHECK:
                retention_ms = claimed.log.config.delete_retention_ms if status == CLEANED else 0
                self._next_check_ms[claimed.topic_partition] = began_ms + max(retention_ms, backoff_ms)
        limit = self._manager.config.number("log.cleaner.io.max.bytes.per.second")
        self._sleep(max(io_bytes / limit - (time.monotonic() - began), 0.0))
        return results

    def _by_engine(
        self, claimed_logs: Iterable[ClaimedLog]
    ) -> Iterator[tuple[SharedEngine[Engine], dict[TopicPartition, ClaimedLog]]]:
        """The engines of a round, each with the logs that it cleans. Internal topics are small, and a broker
        must not lack room for offsets and transactions because it lacks Java: this process cleans them."""
        logs = {claimed.topic_partition: claimed for claimed in claimed_logs}
        internal = {place: log for place, log in logs.items() if place.topic in INTERNAL_TOPICS}
        others = {place: log for place, log in logs.items() if place not in internal}
        yield from (
            (engine, chosen)
            for engine, chosen in ((self._internal_engine, internal), (self._shared_engine, others))
            if chosen
        )

    def _clean(
        self,
        claimed_logs: Mapping[TopicPartition, ClaimedLog],
        engine: EngineProxy[Engine],
        began_ms: int,
        force: bool,
    ) -> list[LogResult]:
        """Clean claimed logs, and return their results. An error that concerns one log is in its result.
        ``force``: whatever the dirty ratio."""
        started = datetime.fromtimestamp(began_ms / 1000, UTC)
        run = f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
        destination = IntoOpenLogs(run, claimed_logs, self._manager.upkeep)
        results = list[LogResult]()
        states = self._log_states(claimed_logs, results)
        for claimed in claimed_logs.values():
            _log_beginning(claimed)
        cleaner = Cleaner(lambda: engine.proxied, destination, self._limits)
        # The reasons in results of logs that were planned, but not cleaned, because there was no engine; ""
        # while the cleaner has not come to a log.
        reasons_without_cleaning = [""]
        try:
            config, tasks = self._manager.config, 1
            # Only a limit needs the number of workers, for which the engine is started.
            if share_of_io(config.number(IO_LIMIT), 1) != UNLIMITED:
                tasks = engine.proxied.parallelism * max(config.integer("log.cleaner.threads"), 1)
            options = PlanOptions(now_ms=began_ms, drop_keyless=True, tasks_at_once=tasks, force=force)
            cleaner.run(states, options)
        except EngineError as error:
            _logger.warning("The round ends, since the engine did not start: %s", error)
            reasons_without_cleaning.append(str(error))
        for result in cleaner.results:
            for note in result.notes:
                _logger.info("Log %s: %s", result.topic_partition, note)
            if result.status == CLEANED or result.reason not in reasons_without_cleaning:
                results.append(result)
        self._manager.upkeep.take_failed_offline()
        for result in results:
            self._apply_result(result, claimed_logs[result.topic_partition].claim, engine, began_ms)
        return results

    def _log_states(
        self, claimed_logs: Mapping[TopicPartition, ClaimedLog], results: list[LogResult]
    ) -> list[LogState]:
        """The states of the logs for the planner. A log that cannot be read gets a failed result in
        ``results`` instead."""
        # The checkpoints are read after the claims: another thread may have moved one before.
        checkpoint_of = functools.cache(ServedDirectory.cleaner_checkpoint)
        states = []
        for topic_partition, claimed in claimed_logs.items():
            served, log = claimed.served, claimed.log
            try:
                config = self._manager.topics.settings(topic_partition.topic)
                states.append(log_state(served, log, config, checkpoint_of(served).get(topic_partition)))
            except (SiltstoneError, OSError) as error:
                results.append(_failed_result(log, error))
        return states

    def _apply_result(
        self, result: LogResult, claim: Claim, engine: EngineProxy[Engine], began_ms: int
    ) -> None:
        """Log a result, and count or forget the log's failures. The claim is not ``done`` yet: if it has
        ended, it was aborted."""
        topic_partition, has_engine_failed = result.topic_partition, engine.failure is not None
        if result.status == CLEANED:
            self._failures.pop(topic_partition, None)
            _logger.info("%s", summary_line(result))
        elif claim.has_ended:
            _logger.info("Cleaning of log %s was aborted", topic_partition)
        elif result.status in _NO_RETRY and not has_engine_failed:
            self._mark_uncleanable(result, began_ms)
        elif result.status not in _NOTHING_DONE:
            _logger.warning("Log %s was not cleaned: %s", topic_partition, result.reason)
            # If the engine was lost after its start, this log may be the cause. The failure is counted, so
            # the log is tried again alone, after the others; but the log does not become uncleanable for it.
            if engine.has_started or not has_engine_failed:
                self._failures[topic_partition] = self._failures.get(topic_partition, 0) + 1
            if not has_engine_failed and self._failures[topic_partition] >= MAX_FAILURES:
                self._mark_uncleanable(result, began_ms)

    def _mark_uncleanable(self, result: LogResult, now_ms: int) -> None:
        self._failures.pop(result.topic_partition, None)
        # Kafka's text (``CleanerThread.tryCleanFilthiestLog``): operators and alerts search for it.
        _logger.error(
            "Unexpected exception thrown when cleaning log %s. Marking its partition (%s) as uncleanable: %s",
            result.directory,
            result.topic_partition,
            result.reason,
        )
        try:
            self._manager.mark_uncleanable(result.topic_partition, result.reason, now_ms)
        except SiltstoneError as error:
            _logger.warning("Partition %s was not marked as uncleanable: %s", result.topic_partition, error)

    def _candidates(self, now_ms: int) -> list[Candidate]:
        """The compacted logs that are neither claimed nor paused nor uncleanable."""
        uncleanable, candidates = self._manager.uncleanable, []
        checkpoint_of = functools.cache(ServedDirectory.cleaner_checkpoint)
        for served, log in self._manager.logs():
            is_metadata = log.topic_partition.topic == CLUSTER_METADATA
            is_excluded = is_metadata or log.topic_partition in uncleanable or log.offline is not None
            if is_excluded or self._states.state(log.topic_partition) != NONE:
                continue
            segments = log.view.segments
            try:
                checkpoint = checkpoint_of(served).get(log.topic_partition)
                candidate = make_candidate(served, log, checkpoint, now_ms)
            except FileNotFoundError:
                continue  # a segment was removed meanwhile; the next round sees the new segment list
            except (SiltstoneError, OSError) as error:
                self._leave_out(log, segments, error, now_ms)
                continue
            self._unreadable.pop(log.topic_partition, None)
            if candidate is not None:
                candidates.append(candidate)
        return candidates

    def _leave_out(
        self, log: PartitionLog, segments: Sequence[LiveSegment], error: SiltstoneError | OSError, now_ms: int
    ) -> None:
        """Leave a log with these ``segments`` out of a round, since it cannot be read. A damaged one becomes
        uncleanable; any other reason is logged once, and the next round tries again."""
        result, topic_partition = _failed_result(log, error), log.topic_partition
        if result.status in _NO_RETRY:
            # Not if it was truncated meanwhile: its files may have changed while they were read.
            if self._states.state(topic_partition) == NONE and log.view.segments == segments:
                self._mark_uncleanable(result, now_ms)
        elif self._unreadable.get(topic_partition) != result.reason:
            self._unreadable[topic_partition] = result.reason
            _logger.warning("Log %s cannot be chosen for cleaning: %s", topic_partition, result.reason)

    def _claim_dirty(self) -> list[ClaimedLog]:
        """Claim the logs that ``choose_logs`` returns: the dirtiest one, perhaps with others."""
        config, limits = self._manager.config, self._limits
        bytes_per_second = config.number("log.cleaner.io.max.bytes.per.second") / IO_PASSES
        # One thread chooses at a time: two would claim parts of the same choice.
        with self._choosing:
            now_ms = self._manager.clock.now_ms()
            candidates = self._candidates(now_ms)
            self._metrics.checked(
                now_ms,
                [candidate.cleanable_range.dirty_ratio for candidate in candidates],
                [candidate.cleanable_range.overdue_ms for candidate in candidates],
            )
            chosen = choose_logs(
                candidates,
                self._failures,
                threads=max(config.integer("log.cleaner.threads"), 1),
                small_bytes=limits.whole_log_bytes,
                round_bytes=min(limits.wave_bytes, bytes_per_second * ROUND_SECONDS),
            )
            return self._claim_candidates(chosen)

    def _claim_candidates(self, candidates: Iterable[Candidate]) -> list[ClaimedLog]:
        """Claim candidates, except those that another thread has claimed or paused meanwhile."""
        claimed = []
        for candidate in candidates:
            claim = self._claim(candidate.topic_partition)
            if claim is not None:
                claimed.append(
                    ClaimedLog(
                        served=candidate.served,
                        log=candidate.log,
                        cleanable_range=candidate.cleanable_range,
                        claim=claim,
                    )
                )
        return claimed

    # Idle logs. In Kafka tombstones whose delete horizon (KIP-534) has passed stay until the log gets dirty
    # again. Here the log is chosen when all its horizons have passed.
    #
    # ``_next_check_ms``, by partition: when the horizons are read next; None: not before the next cleaning. A
    # log without an entry was not checked since the start, and is checked at once.

    def _claim_logs_with_passed_horizons(self) -> list[ClaimedLog]:
        """Claim idle logs of which the delete horizons of all tombstones have passed."""
        now_ms = self._manager.clock.now_ms()
        to_check = []
        for candidate in self._candidates(now_ms):
            next_check_ms = self._next_check_ms.get(candidate.topic_partition, 0)
            has_clean_section = (
                candidate.log.view.segments[0].base_offset < candidate.cleanable_range.clean_end
            )
            if has_clean_section and next_check_ms is not None and next_check_ms <= now_ms:
                to_check.append(candidate)
        due = []
        for claimed in self._claim_candidates(to_check[:MAX_HORIZON_CHECKS_PER_ROUND]):
            if self._has_removable_tombstones(claimed, now_ms):
                due.append(claimed)
            else:
                claimed.claim.done()
        return due

    def _has_removable_tombstones(self, claimed: ClaimedLog, now_ms: int) -> bool:
        """Would a cleaning now remove all tombstones of the clean section? Sets ``_next_check_ms``."""
        try:
            log, clean_end = claimed.log, claimed.cleanable_range.clean_end
            base_offsets = [segment.base_offset for segment in log.view.segments[:-1]]
            horizons = find_horizons(
                [find_segment(log.directory, base) for base in base_offsets if base < clean_end],
                clean_end,
                now_ms,
                log.config.max_decompressed_message_bytes,
            )
        except (SiltstoneError, OSError) as error:
            _logger.warning(
                "Log %s was not checked for tombstones to remove: %s", claimed.topic_partition, error
            )
            self._next_check_ms[claimed.topic_partition] = None
            return False
        # If no horizon is in the future, the next check is due after the next cleaning, which sets new ones.
        is_due_later = horizons.newest_ms is not None and horizons.newest_ms > now_ms
        self._next_check_ms[claimed.topic_partition] = horizons.newest_ms if is_due_later else None
        return horizons.is_due
