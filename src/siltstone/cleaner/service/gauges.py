"""The embedded cleaner's gauges, with Kafka's names: what each of them means here, and how it is labelled.

Numbers are worked out in ``statistics``. A help that says "Unlike Kafka's" tells where a dashboard made
for Kafka shows something else.
"""

from __future__ import annotations

from collections.abc import Mapping

from siltstone.log.service.manager import LogManager
from siltstone.log.service.metrics import Sample

CLEANER, MANAGER = "kafka_log_logcleaner_", "kafka_log_logcleanermanager_"
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
