"""Pulsar's ``pulsar_compaction_*`` for every log that was ever compacted, out of its kept status.

All of them are gauges, as in Pulsar. Labels: ``namespace`` and ``topic`` as Pulsar writes them, and
``partition``. Unlike Pulsar's, the numbers outlive a restart.
"""

from __future__ import annotations

from collections.abc import Iterator

from siltstone import files
from siltstone.compacted.service.status import NOT_RUN, CompactionStatus, status_of
from siltstone.log.names import COMPACTED
from siltstone.log.partition import PartitionLog
from siltstone.log.service.manager import LogManager
from siltstone.log.service.metrics import Sample
from siltstone.log.service.namespaces import namespace_of, persistent_name

_PREFIX = "pulsar_compaction_"
_HELP = {
    "removed_event_count": (
        "Records that compactions left out or replaced: superseded, deleted, without a key, aborted."
    ),
    "succeed_count": "Compactions that succeeded, those that found nothing new too.",
    "failed_count": "Compactions that failed or were interrupted.",
    "duration_time_in_mills": "Milliseconds that the last successful compaction took.",
    "read_throughput": "Bytes per second that the last successful compaction read of the log.",
    "write_throughput": "Bytes per second that the last successful compaction wrote.",
    "compacted_entries_count": "Records of the compacted ledger.",
    "compacted_entries_size": "Bytes of the compacted ledger's segments.",
}


def compaction_samples(manager: LogManager) -> list[Sample]:
    """A sample of each kind for each log. A log whose status cannot be read for now has none."""
    return [
        sample
        for served in manager.serving()
        for _, log in sorted(served.logs.items())
        if files.exists(log.directory / COMPACTED)
        for sample in _samples(log)
    ]


def _samples(log: PartitionLog) -> Iterator[Sample]:
    try:
        status = status_of(log.directory)
    except OSError:
        return
    if status.status == NOT_RUN:
        return
    labels = {
        "namespace": str(namespace_of(log.where.topic)),
        "topic": persistent_name(log.where.topic),
        "partition": str(log.where.partition),
    }
    for name, value in _values(status).items():
        yield Sample(name=f"{_PREFIX}{name}", value=value, help=_HELP[name], labels=labels)


def _values(status: CompactionStatus) -> dict[str, float]:
    seconds = max(status.seconds, 1e-3)
    return {
        "removed_event_count": status.removed,
        "succeed_count": status.succeeded,
        "failed_count": status.failed,
        "duration_time_in_mills": 1000 * status.seconds,
        "read_throughput": status.read_bytes / seconds,
        "write_throughput": status.written_bytes / seconds,
        "compacted_entries_count": status.entries,
        "compacted_entries_size": status.size,
    }
