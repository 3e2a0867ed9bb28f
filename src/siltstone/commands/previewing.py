"""What a change of a topic's settings would do, before it is made: at once, from segment facts.

::

    settings now  ─┐                      ┌─ logs that become due, or stop being due (``clean --watch``)
    settings then ─┴─ for each partition ─┴─ segments that retention takes at its next check, their bytes

Nothing is changed. Records that a cleaning would remove are not counted here: a dry run does that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from siltstone.base.clock import ManualClock
from siltstone.base.config import Config, ConfigSource, LogConfig, parse_topic_config, refuse_contradictions
from siltstone.base.config_table import TOPIC_KEYS
from siltstone.commands.policies import LogOptions
from siltstone.commands.served import Served
from siltstone.commands.watch import DUE, Watch
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.read_only import ReadableLog
from siltstone.log.retention import segment_metadata, segments_to_delete


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPreview:
    """One partition under the settings now and then: is it due, which segments (base offsets) would retention
    delete at its next check, and their bytes."""

    partition: int
    state_now: str
    state_then: str
    deleted_now: tuple[int, ...]
    deleted_then: tuple[int, ...]
    deleted_bytes_then: int

    @property
    def becomes_due(self) -> bool:
        """Would the cleaner take it, and does not now?"""
        return self.state_then == DUE != self.state_now

    def to_json(self) -> dict[str, object]:
        """One object."""
        return {name: getattr(self, name) for name in PartitionPreview.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsPreview:
    """A change of a topic's settings: the effective values that differ (name → now, then), its partitions,
    and one sentence for each thing that would happen. ``deletes``: does retention take other segments?"""

    topic: str
    differences: Mapping[str, tuple[str, str]]
    partitions: Sequence[PartitionPreview]
    sentences: Sequence[str]
    deletes: bool

    def to_json(self) -> dict[str, object]:
        """One object."""
        return {
            "topic": self.topic,
            "differences": {
                name: {"now": now, "then": then} for name, (now, then) in self.differences.items()
            },
            "partitions": [partition.to_json() for partition in self.partitions],
            "sentences": list(self.sentences),
            "deletes": self.deletes,
        }


def preview(
    served: Served, topic: str, set_to: Mapping[str, str], remove: Sequence[str] = ()
) -> SettingsPreview:
    """What the change would do. Raises UsageError for a setting or a contradiction, UnknownTopicError,
    SiltstoneError, OSError."""
    now = served.settings_of(topic)
    then = _changed(now, set_to, remove)
    numbers, clock_ms = served.describe(topic).partitions, served.clock.now_ms()
    states_now, states_then = _states(served, topic, now, clock_ms), _states(served, topic, then, clock_ms)
    rows = []
    for number in numbers:
        log = served.log(topic, number)
        deleted = _deleted(log, then, clock_ms)
        rows.append(
            PartitionPreview(
                partition=number,
                state_now=states_now.get(number, ""),
                state_then=states_then.get(number, ""),
                deleted_now=tuple(base for base, _ in _deleted(log, now, clock_ms)),
                deleted_then=tuple(base for base, _ in deleted),
                deleted_bytes_then=sum(size for _, size in deleted),
            )
        )
    return SettingsPreview(
        topic=topic,
        differences=_differences(now, then),
        partitions=rows,
        sentences=_sentences(now, then, rows),
        deletes=any(row.deleted_then != row.deleted_now for row in rows),
    )


def _changed(now: Config, set_to: Mapping[str, str], remove: Sequence[str]) -> Config:
    """The settings after the change. Raises UsageError."""
    own = dict(now.layer(ConfigSource.DYNAMIC_TOPIC_CONFIG))
    for name in remove:
        own.pop(name, None)
    own |= parse_topic_config(set_to, "the change")
    return refuse_contradictions(now.with_layer(ConfigSource.DYNAMIC_TOPIC_CONFIG, own))


def _texts(config: Config) -> dict[str, str]:
    return {
        key.name: ",".join(map(str, value)) if isinstance(value := config[key.name], tuple) else str(value)
        for key in TOPIC_KEYS
    }


def _differences(now: Config, then: Config) -> dict[str, tuple[str, str]]:
    before, after = _texts(now), _texts(then)
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


def _states(served: Served, topic: str, config: Config, now_ms: int) -> dict[int, str]:
    """The states of the topic's logs with these settings, by partition."""
    passed = [f"{name}={value}" for name, value in _texts(config).items() if value != ""]
    options = LogOptions(topics=(topic,), config=passed, broker_config=served.options.properties)
    watched = Watch(served.paths, options, ManualClock(now_ms)).snapshot().logs
    return {log.topic_partition.partition: log.state for log in watched}


def _deleted(log: ReadableLog, config: Config, now_ms: int) -> list[tuple[int, int]]:
    """(base offset, bytes) of the segments that retention would delete now."""
    view = log.view
    metadata = segment_metadata(view)
    deletions = segments_to_delete(
        metadata,
        now_ms=now_ms,
        config=LogConfig.of(config),
        log_start_offset=view.log_start_offset,
        high_watermark=view.high_watermark,
        retain_from=LedgerStore(log.directory).first_needed_offset(),
    )
    sizes = {segment.base_offset: segment.size for segment in metadata}
    return [(deletion.base_offset, sizes[deletion.base_offset]) for deletion in deletions]


def _sentences(now: Config, then: Config, rows: Sequence[PartitionPreview]) -> list[str]:
    sentences = []
    segments = sum(len(row.deleted_then) for row in rows)
    if segments:
        total = sum(row.deleted_bytes_then for row in rows)
        minutes = then.integer("log.retention.check.interval.ms") // 60_000
        sentences.append(
            f"{segments} segments with {total:,} bytes would be deleted at the next check of the retention, "
            f"within {max(minutes, 1)} minutes."
        )
    due = sum(row.becomes_due for row in rows)
    if due:
        sentences.append(f"{due} logs would become due for cleaning.")
    stopped = sum(row.state_now == DUE != row.state_then for row in rows)
    if stopped:
        sentences.append(f"{stopped} logs would no longer be due.")
    if "compact" in then.policies and "compact" not in now.policies:
        sentences.append(
            "Cleaning would remove records without a key, and all but the last record of each key."
        )
    if "compact" in now.policies and "compact" not in then.policies:
        sentences.append("No log would be compacted any more; tombstones stay until retention takes them.")
    return sentences or ["Nothing would be deleted or cleaned because of this change alone."]
