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
(``CleaningStates``), clean (``CleaningRun``), rest (``rest_seconds``); with nothing to do it sleeps
``log.cleaner.backoff.ms``. Logs that are not dirty enough are looked at for tombstones that may go
(``find_horizons``): after a cleaning once ``delete.retention.ms`` has passed, after a start once. Settings
are read anew for every run.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from siltstone.base.errors import SiltstoneError
from siltstone.compaction import report
from siltstone.compaction.engine import Engine
from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.inplace.facts import find_horizons
from siltstone.compaction.report import Cleaning, History, LogResult, read_cleanings
from siltstone.log.ledger.store import uncovered
from siltstone.log.names import CLUSTER_METADATA, TopicPartition
from siltstone.runtime.cleaning import (
    CLEANER,
    MANAGER,
    Candidate,
    Claimed,
    CleaningRun,
    Statistics,
    candidate,
    segments_below,
)
from siltstone.runtime.cleaning_states import NONE
from siltstone.runtime.engines import EngineUse, LogService
from siltstone.runtime.manager import LogManager
from siltstone.runtime.metrics import Sample

# Which logs are cleaned next, and which of them together (``LogCleanerManager.grabFilthiestCompactedLog``).
#
# The filthiest first. Small ones go together, since a job costs about the same for one and for a hundred; a
# large one goes alone. Logs whose cleaning has failed come last and go alone, so that they hold up nobody.
# All pure.

LOGS_AT_ONCE = 1000


def in_turn(candidates: Sequence[Candidate], failures: Mapping[TopicPartition, int]) -> list[Candidate]:
    """The eligible ones, best first."""
    eligible = [each for each in candidates if each.is_eligible]
    return sorted(
        eligible, key=lambda each: (failures.get(each.where, 0), -each.range.dirty_ratio, each.where)
    )


def next_batch(
    turn: Sequence[Candidate],
    failures: Mapping[TopicPartition, int],
    *,
    workers: int,
    small_bytes: int,
    run_bytes: int,
) -> list[Candidate]:
    """Those that one of ``workers`` cleans in one run: a large one (over ``small_bytes``), or small ones up
    to ``run_bytes`` and to the worker's share."""
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


def rest_seconds(size: int, seconds: float, bytes_per_second: float) -> float:
    """How long to rest after ``size`` bytes were read and written in ``seconds``."""
    return max(size / bytes_per_second - seconds, 0.0)


def run_bytes(most: int, bytes_per_second: float) -> int:
    """How many bytes of sources a run may take: ``most`` without a limit."""
    return int(min(most, bytes_per_second * WINDOW_SECONDS))


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


def cleaner_samples(values: Mapping[str, float], manager: LogManager) -> list[Sample]:
    """``values`` (``LogCleaner.metrics``) as samples; what is uncleanable, for each directory in service."""
    found = [
        Sample(name=name, value=value, help=_HELP[name])
        for name, value in values.items()
        if name not in (UNCLEANABLE_COUNT, UNCLEANABLE_BYTES)
    ]
    for served in manager.serving():
        labels = {"logDirectory": str(served.path)}
        listed = served.uncleanable
        size = sum(served.logs[where].size for where in listed if where in served.logs)
        found.append(
            Sample(name=UNCLEANABLE_COUNT, value=len(listed), help=_HELP[UNCLEANABLE_COUNT], labels=labels)
        )
        found.append(Sample(name=UNCLEANABLE_BYTES, value=size, help=_HELP[UNCLEANABLE_BYTES], labels=labels))
    return found


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
        self._statistics = Statistics(RESULTS_KEPT, self._earlier_cleanings())
        self._history = History()
        self._choosing = threading.Lock()
        self._threads: dict[int, threading.Thread] = {}
        self._held: set[TopicPartition] = set()
        self._failures: dict[TopicPartition, int] = {}
        self._next_look_ms: dict[TopicPartition, int | None] = {}

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
            self._clean_again_and_again(number)
        except BaseException:
            name = threading.current_thread().name
            _logger.critical(
                "[%s]: Error due to what follows; this log cleaner thread is dead", name, exc_info=True
            )

    def _clean_again_and_again(self, number: int) -> None:
        while number < self._wanted_threads:
            busy = False
            try:
                busy = any(result.status == report.CLEANED for result in self.clean_once())
            except Exception:
                _logger.exception("the log cleaner failed; it goes on")
            if not busy:
                self._sleep(self._manager.config.integer("log.cleaner.backoff.ms") / 1000, number)

    def _sleep(self, seconds: float, number: int = 0) -> None:
        with self._changed:
            if number < self._wanted_threads:
                self._changed.wait(min(seconds, threading.TIMEOUT_MAX))

    # What it did

    @property
    def cleanings(self) -> list[Cleaning]:
        """The last thousand results, oldest first."""
        return self._statistics.cleanings

    def samples(self) -> list[Sample]:
        """``metrics`` with labels, types and what they mean; ``LogManager.samples`` has them too."""
        return cleaner_samples(self.metrics(), self._manager)

    def metrics(self) -> dict[str, float]:
        """Kafka's gauges of ``LogCleaner`` and ``LogCleanerManager``, over all directories together."""
        config, manager = self._manager.config, self._manager
        found = self._statistics.metrics(
            manager.clock.now_ms(),
            config.integer("log.cleaner.dedupe.buffer.size"),
            config.number("log.cleaner.io.buffer.load.factor"),
        )
        listed = manager.uncleanable
        sizes = [manager[where].size for where in listed if where in manager]
        dead = [thread for thread in self._threads.values() if not thread.is_alive()]
        wanted = self._wanted_threads if self._started else 0
        return {
            **found,
            f"{CLEANER}deadthreadcount": max(wanted - (len(self._threads) - len(dead)), 0),
            UNCLEANABLE_COUNT: len(listed),
            UNCLEANABLE_BYTES: sum(sizes),
        }

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

    def _keep(self, cleanings: Iterable[Cleaning]) -> None:
        """Write down what came of a run; what has found nothing to do is no cleaning."""
        told = [
            each
            for each in cleanings
            if each.result.status not in (report.NOTHING_TO_DO, report.NOT_ELIGIBLE)
        ]
        for served in self._manager.serving():
            self._history.keep(served.path, [each for each in told if each.result.where in served.logs])

    # One round

    def clean_once(self) -> list[LogResult]:
        """Choose, clean, rest; the results. Empty when nothing was to be done."""
        batch = self._claim_dirty() or self._claim_overdue_tombstones()
        if not batch:
            return []
        began, size = time.monotonic(), PASSES * sum(each.candidate.size for each in batch)
        try:
            run = CleaningRun(self._manager, batch, EngineUse(self._engine), self._limits, self._failures)
            results = run.clean()
        finally:
            for each in batch:
                each.claim.done()
                self._held.discard(each.where)
        found = self._statistics.ran(run.began_ms, results)
        self._keep([each for each in found if not run.is_nobodys_fault(each.result)])
        cleaned = {each.where for each in results if each.status == report.CLEANED}
        self._look_again_later(run.began_ms, [each for each in batch if each.where in cleaned])
        limit = self._manager.config.number("log.cleaner.io.max.bytes.per.second")
        rest = rest_seconds(size, time.monotonic() - began, limit)
        if rest > 0:
            self._sleep(rest)
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
        with self._choosing:
            candidates = self._candidates(self._manager.clock.now_ms())
            self._statistics.looked(
                (each.range.dirty_ratio for each in candidates), (each.range.delay_ms for each in candidates)
            )
            batch = next_batch(
                in_turn(candidates, self._failures),
                self._failures,
                workers=max(config.integer("log.cleaner.threads"), 1),
                small_bytes=limits.whole_log_bytes,
                run_bytes=run_bytes(
                    limits.wave_bytes, config.number("log.cleaner.io.max.bytes.per.second") / PASSES
                ),
            )
            return self._claimed(batch)

    def _claimed(self, batch: Iterable[Candidate]) -> list[Claimed]:
        """Those that could be claimed, none once the cleaner is closed."""
        found = []
        for each in batch:
            self._held.add(each.where)
            claim = None if self._closed else self._manager.cleaning.begin(each.where)
            if claim is None:
                self._held.discard(each.where)
            else:
                found.append(Claimed(candidate=each, claim=claim))
        return found

    # Idle logs

    def _look_again_later(self, now_ms: int, cleaned: Sequence[Claimed]) -> None:
        """What a cleaning stamps may go after ``delete.retention.ms``."""
        backoff_ms = self._manager.config.integer("log.cleaner.backoff.ms")
        for each in cleaned:
            wait_ms = max(each.candidate.log.config.delete_retention_ms, backoff_ms)
            self._next_look_ms[each.where] = now_ms + wait_ms

    def _claim_overdue_tombstones(self) -> list[Claimed]:
        """Idle logs whose delete horizons have all passed."""
        now_ms = self._manager.clock.now_ms()
        waiting = [each for each in self._candidates(now_ms) if self._may_be_due(each, now_ms)]
        due = []
        for claimed in self._claimed(waiting[:LOOKS_AT_ONCE]):
            if self._is_due(claimed.candidate, now_ms):
                due.append(claimed)
            else:
                claimed.claim.done()
                self._held.discard(claimed.where)
        return due

    def _may_be_due(self, each: Candidate, now_ms: int) -> bool:
        next_look_ms = self._next_look_ms.get(each.where, 0)
        has_clean_part = each.log.view.segments[0].base_offset < each.clean_end
        return has_clean_part and next_look_ms is not None and next_look_ms <= now_ms

    def _is_due(self, each: Candidate, now_ms: int) -> bool:
        try:
            below, leave = segments_below(each.log, each.clean_end), uncovered(each.log.directory)
            limit = each.log.config.max_decompressed_message_bytes
            found = find_horizons(below, each.clean_end, now_ms, leave.tombstones_from, limit)
        except (SiltstoneError, OSError) as error:
            _logger.warning("%s", error)
            self._next_look_ms[each.where] = None
            return False
        due_later = found.newest_ms is not None and found.newest_ms > now_ms
        self._next_look_ms[each.where] = found.newest_ms if due_later else None
        return found.is_due
