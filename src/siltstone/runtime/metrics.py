"""What a ``LogManager`` can be measured by: samples with the names that exporters give Kafka's MBeans.

``samples`` are those of the logs (Kafka's ``UnifiedLog``) and of the directories (``LogManager``);
``LogManager.samples`` adds those of whoever works on the logs, such as the cleaner. Where one means another
thing than in Kafka, its help says so. What is offline has no samples of its logs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from siltstone.log.partition import PartitionLog
from siltstone.runtime.served_directory import ServedDirectory

GAUGE = "gauge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One number. ``type`` and ``help`` are the same for all samples of a name."""

    name: str
    value: float
    help: str
    labels: Mapping[str, str] = field(default_factory=dict)
    type: str = GAUGE


_LOG = {
    "size": "Bytes of the log's .log files.",
    "numlogsegments": "Segments of the log.",
    "logstartoffset": "The first offset that may be read.",
    "logendoffset": "The offset behind the last record.",
}
_OFFLINE_COUNT = "Log directories that are out of service."
_OFFLINE = "1 where the log directory is out of service, else 0."


def samples(serving: Sequence[ServedDirectory], offline: Mapping[Path, str]) -> list[Sample]:
    """The numbers of directories in service, with their logs, and of those that are ``offline``, of this
    moment. Takes no lock of a log: each log's four are of one view."""
    found = [
        Sample(
            name="kafka_log_logmanager_offlinelogdirectorycount",
            value=len(offline),
            help=_OFFLINE_COUNT,
        )
    ]
    states = {**dict.fromkeys(offline, 1), **{each.path: 0 for each in serving}}
    found += [
        Sample(
            name="kafka_log_logmanager_logdirectoryoffline",
            value=state,
            help=_OFFLINE,
            labels={"logDirectory": str(path)},
        )
        for path, state in sorted(states.items())
    ]
    for served in serving:
        for _, log in sorted(served.logs.items()):
            if log.offline is None:
                found += _log_samples(log)
    return found


def _log_samples(log: PartitionLog) -> Iterator[Sample]:
    view = log.view
    values = {
        "size": sum(view.size_of(number) for number in range(len(view.segments))),
        "numlogsegments": len(view.segments),
        "logstartoffset": view.log_start_offset,
        "logendoffset": view.log_end_offset,
    }
    labels = {"topic": log.where.topic, "partition": str(log.where.partition)}
    for name, value in values.items():
        yield Sample(name=f"kafka_log_log_{name}", value=value, help=_LOG[name], labels=labels)
