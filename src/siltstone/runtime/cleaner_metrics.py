"""The metrics of the embedded cleaner: Kafka's ``LogCleaner`` and ``LogCleanerManager`` by the names that the
usual exporter rules give them, and Siltstone's own.

Kafka's are gauges of the last round that cleaned a log. Siltstone's are counters since the start.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence

from siltstone.compaction.report import CLEANED, CLEANING_REASONS, Cleaning
from siltstone.runtime.metrics import Histogram, Sample, samples_of
from siltstone.runtime.served_directory import ServedDirectory

_CLEANER, _MANAGER = "kafka_log_logcleaner_", "kafka_log_logcleanermanager_"
_OWN = "siltstone_cleaner_"

CLEANINGS, REMOVED = f"{_OWN}cleanings_total", f"{_OWN}removed_records_total"
RECLAIMED, SECONDS = f"{_OWN}reclaimed_bytes_total", f"{_OWN}seconds"
LAST_SUCCESS, ENGINE_UP = f"{_OWN}last_success_timestamp_seconds", f"{_OWN}engine_up"
DEAD_THREADS = f"{_CLEANER}deadthreadcount"
SECONDS_BOUNDS = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600)

UNCLEANABLE_COUNT = f"{_MANAGER}uncleanable_partitions_count"
UNCLEANABLE_BYTES = f"{_MANAGER}uncleanable_bytes"

# A text that begins with "Unlike Kafka's" says where a dashboard made for Kafka shows another number.
HELP = {
    f"{_CLEANER}max_buffer_utilization_percent": (
        "Unlike Kafka's: distinct dirty keys of the last round that cleaned a log, in percent of what "
        "Kafka's map would hold with log.cleaner.dedupe.buffer.size. Siltstone has no such limit, so it may "
        "be over 100."
    ),
    f"{_CLEANER}cleaner_recopy_percent": (
        "Unlike Kafka's, of whole logs: bytes after over bytes before, in percent, of the last round that "
        "cleaned a log, also before a restart."
    ),
    f"{_CLEANER}max_clean_time_secs": (
        "Seconds that the slowest log took in the last round that cleaned a log, also before a restart."
    ),
    f"{_CLEANER}max_compaction_delay_secs": (
        "By how many seconds the oldest dirty record is over max.compaction.lag.ms, the most of all logs."
    ),
    DEAD_THREADS: "Cleaner threads that should run and do not.",
    f"{_MANAGER}max_dirty_percent": "The dirty ratio of the dirtiest log in the last round, in percent.",
    f"{_MANAGER}time_since_last_run_ms": (
        "ms since the cleaner last searched for logs to clean; 0 before its first search."
    ),
    UNCLEANABLE_COUNT: (
        "Partitions of the log directory that the cleaner skips. Unlike Kafka's, it survives restarts."
    ),
    UNCLEANABLE_BYTES: (
        "Unlike Kafka's, which counts only what would be cleaned: bytes of the logs that the cleaner skips."
    ),
    CLEANINGS: "Logs that were cleaned, or could not be, by status.",
    REMOVED: "Records that cleanings removed, by reason.",
    RECLAIMED: "Bytes of .log files that cleanings freed.",
    SECONDS: "Seconds that the cleaning of a log took.",
    LAST_SUCCESS: "Time of the last cleaning that succeeded, also before a restart; 0 if there was none.",
    ENGINE_UP: "0 if the engine was lost or did not start when it was needed last, else 1.",
}


class CleanerMetrics:
    """Collects what the cleaner's rounds report. Safe in several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Of the last round that cleaned a log, also before a restart.
        self._last_round: list[Cleaning] = []
        # Of the last check of which logs are due; None before the first.
        self._last_run_ms: int | None = None
        self._max_dirty_ratio, self._max_delay_ms = 0.0, 0
        # Since the start.
        self._cleanings: Counter[str] = Counter({CLEANED: 0})
        self._removed: Counter[str] = Counter(dict.fromkeys(CLEANING_REASONS, 0))
        self._reclaimed = 0
        self._seconds = Histogram(SECONDS_BOUNDS)
        self._last_success_ms = 0
        self._is_engine_up = True

    def restore(self, cleanings: Iterable[Cleaning]) -> None:
        """Take over the cleanings of earlier processes, in order of time: only the last round counts."""
        with self._lock:
            for cleaning in cleanings:
                self._note_success(cleaning)

    def checked(self, now_ms: int, dirty_ratios: Sequence[float], delays_ms: Sequence[int]) -> None:
        """The cleaner has checked which logs are due: their dirty ratios, and by how much each is overdue."""
        with self._lock:
            self._last_run_ms = now_ms
            self._max_dirty_ratio = max(dirty_ratios, default=0.0)
            self._max_delay_ms = max(delays_ms, default=0)

    def cleaned(self, cleanings: Iterable[Cleaning], *, is_engine_up: bool) -> None:
        """A round has ended: the results of its logs. ``is_engine_up``: the engine did not fail."""
        with self._lock:
            self._is_engine_up = is_engine_up
            for cleaning in cleanings:
                result = cleaning.result
                self._cleanings[result.status] += 1
                for reason, count in result.discarded.counts.items():
                    if reason in self._removed:
                        self._removed[reason] += count
                if result.status == CLEANED:
                    self._reclaimed += max(result.bytes_before - result.bytes_after, 0)
                    self._seconds.observe(result.seconds)
                self._note_success(cleaning)

    def _note_success(self, cleaning: Cleaning) -> None:
        if cleaning.result.status != CLEANED:
            return
        # The cleanings of one round have the same ``began_ms``.
        if self._last_round and self._last_round[0].began_ms != cleaning.began_ms:
            self._last_round = []
        self._last_round.append(cleaning)
        self._last_success_ms = cleaning.began_ms + round(1000 * cleaning.result.seconds)

    def samples(self, now_ms: int, *, map_keys: int, dead_threads: int) -> list[Sample]:
        """The metrics now. ``map_keys``: the keys that Kafka's offset map would hold."""
        with self._lock:
            last = [cleaning.result for cleaning in self._last_round]
            before = sum(result.bytes_before for result in last)
            after = sum(result.bytes_after for result in last)
            keys = max((result.distinct_dirty_keys or 0 for result in last), default=0)
            last_run_ms = now_ms if self._last_run_ms is None else self._last_run_ms
            values = {
                f"{_CLEANER}max_buffer_utilization_percent": 100 * keys / max(map_keys, 1),
                f"{_CLEANER}cleaner_recopy_percent": 100 * after / before if before else 0.0,
                f"{_CLEANER}max_clean_time_secs": max((result.seconds for result in last), default=0.0),
                f"{_CLEANER}max_compaction_delay_secs": self._max_delay_ms / 1000,
                DEAD_THREADS: dead_threads,
                f"{_MANAGER}max_dirty_percent": 100 * self._max_dirty_ratio,
                f"{_MANAGER}time_since_last_run_ms": now_ms - last_run_ms,
                RECLAIMED: self._reclaimed,
                LAST_SUCCESS: self._last_success_ms / 1000,
                ENGINE_UP: int(self._is_engine_up),
            }
            samples = samples_of(values, HELP)
            for status, count in sorted(self._cleanings.items()):
                samples += samples_of({CLEANINGS: count}, HELP, status=status)
            for reason, count in self._removed.items():
                samples += samples_of({REMOVED: count}, HELP, reason=reason)
            return [*samples, self._seconds.sample(SECONDS, HELP[SECONDS])]


def uncleanable_samples(served: ServedDirectory) -> list[Sample]:
    """The gauges of a directory's uncleanable logs."""
    size = sum(
        served.logs[topic_partition].size
        for topic_partition in served.uncleanable
        if topic_partition in served.logs
    )
    values = {UNCLEANABLE_COUNT: len(served.uncleanable), UNCLEANABLE_BYTES: size}
    return samples_of(values, HELP, logDirectory=str(served.path))
