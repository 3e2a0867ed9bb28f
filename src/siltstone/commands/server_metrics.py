"""Collects the metrics of a server. Those of its directories and its cleaner are one ``Sample`` a value.
Those of its logs are one ``MetricFamily`` a metric, with all values in one list, since there may be 100,000
logs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import siltstone
from siltstone.base import files
from siltstone.commands import console
from siltstone.commands.catalogue import UNKNOWN, Catalogue
from siltstone.commands.changes import DONE, FAILED, INTERRUPTED
from siltstone.commands.groups import ConsumerGroup
from siltstone.commands.metrics import MetricFamily
from siltstone.commands.served import Served
from siltstone.log.names import TopicPartition
from siltstone.runtime.manager import FREE_BYTES, LOG_HELP, USED_BYTES, LogManager, log_figures
from siltstone.runtime.metrics import Sample, samples_of

PARTITIONS_MAX = 20_000
"""The most partitions that have series of their own; with more, a topic has one."""
_HELP = {
    "siltstone_build_info": "1, with the version as label.",
    "siltstone_catalogue_age_seconds": "Seconds since the catalogue of topics was read.",
    "siltstone_logs": "Logs by their state (those of clean --watch).",
    "siltstone_jobs": "Background jobs by their state.",
    "siltstone_setting_changes_total": "Changes of settings by outcome.",
    FREE_BYTES: "Bytes that are free on the log directory's file system.",
    USED_BYTES: "Bytes of the .log files in the log directory.",
}
_LOG_HELP = {
    "siltstone_log_records": "Records that are stored, counted from batch headers.",
    "siltstone_log_clean_bytes": "Bytes of the log's clean section.",
    "siltstone_log_dirty_bytes": "Bytes of the log's dirty section that may be cleaned.",
    "siltstone_log_dirty_ratio": "Dirty bytes over clean and dirty bytes; of a topic: of its dirtiest log.",
    "siltstone_log_overdue_seconds": (
        "By how many seconds the oldest dirty record is over max.compaction.lag.ms; of a topic: the most."
    ),
}
_EXPORTER_OFFSETS = {
    "kafka_topic_partition_oldest_offset": ("kafka_log_log_logstartoffset", "The first offset of the log."),
    "kafka_topic_partition_current_offset": ("kafka_log_log_logendoffset", "The end offset of the log."),
}
"""kafka_exporter's names of two gauges of a log, for its dashboards; it has them by partition only."""
_GROUP_HELP = {
    "kafka_consumergroup_current_offset": "The offset that a consumer group has committed.",
    "kafka_consumergroup_lag": "By how many offsets a consumer group is behind the end of a log.",
}
"""kafka_exporter's, too."""


def server_samples(served: Served) -> list[Sample]:
    """The current samples of a server, without the metrics by log or by topic (``log_metrics``)."""
    manager, catalogue = served.manager, served.catalogue
    samples = _directory_samples(catalogue) if manager is None else manager.samples(with_logs=False)
    samples += samples_of({"siltstone_build_info": 1}, _HELP, version=siltstone.__version__)
    age = max(served.clock.now_ms() - catalogue.at_ms, 0) / 1000
    samples += samples_of({"siltstone_catalogue_age_seconds": age}, _HELP)
    for state, count in catalogue.totals.states.items():
        samples += samples_of({"siltstone_logs": count}, _HELP, state=state)
    states = [job.state for job in served.jobs.all()]
    for state in sorted(set(states)):
        samples += samples_of({"siltstone_jobs": states.count(state)}, _HELP, state=state)
    for outcome in (DONE, FAILED, INTERRUPTED):
        count = 0 if served.changes is None else served.changes.setting_changes[outcome]
        samples += samples_of({"siltstone_setting_changes_total": count}, _HELP, outcome=outcome)
    return samples if served.clients is None else samples + served.clients.samples()


def _directory_samples(catalogue: Catalogue) -> list[Sample]:
    """The space of the directories in look mode, which has no ``LogManager``."""
    samples = list[Sample]()
    for path, (_, size) in catalogue.sums_by_directory.items():
        values = {USED_BYTES: size}
        with contextlib.suppress(OSError):
            values[FREE_BYTES] = files.free_space(Path(path)).free_bytes
        samples += samples_of(values, _HELP, logDirectory=path)
    return samples


def log_metrics(served: Served, *, all_partitions: bool = False) -> list[MetricFamily]:
    """The gauges of the logs, then the broker's counters by topic. A gauge has a value for each partition, or
    for each topic if there are more than ``PARTITIONS_MAX`` partitions, unless ``all_partitions``. A value
    that is not known is left out. The metrics of consumer groups are from the last scan of the groups: the
    first page may lack them."""
    catalogue = served.catalogue
    by_partition = all_partitions or len(catalogue.watched) <= PARTITIONS_MAX
    families = [] if served.manager is None else _open_log_metrics(served.manager, by_partition=by_partition)
    families += _exporter_offsets(families if by_partition else [])
    families += _catalogue_metrics(catalogue, by_partition=by_partition)
    families += _group_metrics(served)
    return families if served.clients is None else families + served.clients.topic_metrics()


def _open_log_metrics(manager: LogManager, *, by_partition: bool) -> list[MetricFamily]:
    """Kafka's gauges of the open logs; for a topic the sums of its logs'."""
    figures_by_labels: dict[str, list[int]] = {}
    for log in manager.sorted_logs():
        if log.offline is not None:
            continue
        topic, partition = log.topic_partition.topic, log.topic_partition.partition
        labels = partition_label(topic, partition) if by_partition else topic_label(topic)
        figures = log_figures(log)
        sums = figures_by_labels.setdefault(labels, [0] * len(figures))
        for column, value in enumerate(figures):
            sums[column] += value
    columns = zip(*figures_by_labels.values(), strict=True) if figures_by_labels else ()
    return [
        MetricFamily(name=name, help=meaning, labels=list(figures_by_labels), values=values)
        for (name, meaning), values in zip(LOG_HELP.items(), columns, strict=False)
    ]


def _exporter_offsets(families: Sequence[MetricFamily]) -> list[MetricFamily]:
    """The gauges of open logs again, under the names of ``_EXPORTER_OFFSETS``; the lists of values are
    shared. Without ``families`` they are empty."""
    of_kafka = {family.name: family for family in families}
    none = MetricFamily(name="", help="", labels=[], values=[])
    return [
        replace(of_kafka.get(kafka_name, none), name=name, help=meaning)
        for name, (kafka_name, meaning) in _EXPORTER_OFFSETS.items()
    ]


def _group_metrics(served: Served) -> list[MetricFamily]:
    """The committed offset and the lag of each consumer group in each partition. ``__consumer_offsets`` is
    read in the background (``scans``)."""
    groups = list[ConsumerGroup]()
    if console.CONSUMER_OFFSETS in served.catalogue.topics:
        found = served.scans.of("groups", lambda report: console.groups(served)[0]).found
        groups = found or groups
    offsets = [
        (_group_label(group.name, offset.topic_partition), offset)
        for group in groups
        for offset in group.offsets
        if offset.current_offset is not None and offset.lag is not None
    ]
    labels = [label for label, _ in offsets]
    values = (
        [offset.current_offset or 0 for _, offset in offsets],
        [offset.lag or 0 for _, offset in offsets],
    )
    return [
        MetricFamily(name=name, help=meaning, labels=labels, values=column)
        for (name, meaning), column in zip(_GROUP_HELP.items(), values, strict=True)
    ]


def _catalogue_metrics(catalogue: Catalogue, *, by_partition: bool) -> list[MetricFamily]:
    """The gauges of the logs that the catalogue has. For a topic they are sums, but the dirty ratio and the
    overdue time are the largest of its logs'."""
    columns = catalogue.partition_columns
    if by_partition:
        topics = [catalogue.names[row] for row in columns["topic"].tolist()]
        labels = list(map(partition_label, topics, columns["partition"].tolist()))
        column: Callable[[str], npt.NDArray[Any]] = columns.__getitem__
        largest, is_read = column, columns["is_read"]
    else:
        labels = list(map(topic_label, catalogue.names))
        column, largest = catalogue.topic_sums, catalogue.topic_maxima
        is_read = catalogue.topic_maxima("is_read")
    records = column("records")
    values = (
        (records != UNKNOWN, records),
        (is_read, column("clean_bytes")),
        (is_read, column("dirty_bytes")),
        (is_read, largest("dirty_ratio").round(6)),
        (is_read, largest("overdue_ms") / 1000),
    )
    return [
        MetricFamily(
            name=name,
            help=meaning,
            labels=[labels[row] for row in np.flatnonzero(is_known).tolist()],
            values=known[is_known].tolist(),
        )
        for (name, meaning), (is_known, known) in zip(_LOG_HELP.items(), values, strict=True)
    ]


def partition_label(topic: str, partition: int) -> str:
    """The labels of a partition's series, as Prometheus writes them."""
    return f'{{partition="{partition}",topic="{_escaped(topic)}"}}'


def _group_label(group: str, topic_partition: TopicPartition) -> str:
    """The labels of a group's series of a partition."""
    partition = f'partition="{topic_partition.partition}",topic="{_escaped(topic_partition.topic)}"'
    return f'{{consumergroup="{_escaped(group)}",{partition}}}'


def topic_label(topic: str) -> str:
    """The labels of a topic's series, as Prometheus writes them."""
    return f'{{topic="{_escaped(topic)}"}}'


def _escaped(value: str) -> str:
    """A label's value, escaped: the catalogue also has directories whose names Kafka allows no topic."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
