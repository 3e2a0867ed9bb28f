"""What the embedded cleaner did: the last results, and Kafka's metrics out of them (``LogCleaner``'s
gauges)."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable

from siltstone.cleaner.history import Cleaning
from siltstone.cleaner.plan import kafka_map_keys
from siltstone.cleaner.report import CLEANED, LogResult


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
        cleaner, manager = "kafka_log_logcleaner_", "kafka_log_logcleanermanager_"
        return {
            f"{cleaner}max_buffer_utilization_percent": 100 * keys / map_keys,
            f"{cleaner}cleaner_recopy_percent": 100 * after / before if before else 0.0,
            f"{cleaner}max_clean_time_secs": max((each.result.seconds for each in last), default=0.0),
            f"{cleaner}max_compaction_delay_secs": delay_ms / 1000,
            f"{manager}max_dirty_percent": 100 * dirtiest,
            f"{manager}time_since_last_run_ms": 0 if last_ms is None else now_ms - last_ms,
        }


def told(result: LogResult) -> str:
    """A cleaning in one line, in Kafka's words."""
    megabytes, gone = result.bytes_before / (1 << 20), result.removed
    seconds = max(result.seconds, 1e-3)
    went = ", ".join(
        f"{count} {name}"
        for name, count in (
            ("superseded", gone.superseded),
            ("tombstones", gone.tombstones),
            ("aborted", gone.aborted),
            ("keyless", gone.keyless),
            ("markers", gone.markers),
        )
        if count
    )
    return (
        f"Log cleaner cleaned log {result.where} "
        f"(dirty section = [{result.first_dirty_offset}, {result.cleaned_end_offset}]): "
        f"{megabytes:,.1f} MB of log processed in {result.seconds:,.1f} seconds "
        f"({megabytes / seconds:,.1f} MB/sec), end size {result.bytes_after / (1 << 20):,.1f} MB; "
        f"removed: {went or 'nothing'}"
    )
