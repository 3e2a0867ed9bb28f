"""Previews a change of a topic's settings: what it would do, before it is applied.

``preview`` reads no records: it calls the functions by which retention, the cleaner and the roll of a segment
decide, with the present settings and with the new ones. ``count_kinds`` reads the records, for a job: how
many have no key, and are lost once the topic compacts; how many tombstones have no delete horizon yet.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from siltstone.base.clock import duration_text
from siltstone.base.config import (
    Config,
    ConfigSource,
    find_key,
    format_value,
    parse_topic_config,
    refuse_contradictions,
)
from siltstone.base.errors import SiltstoneError, UsageError
from siltstone.base.records.layout import have_delete_horizons
from siltstone.commands.cleaning_conditions import CleaningConditions
from siltstone.commands.counting import SegmentCounter, sum_of
from siltstone.commands.explain_page import counted
from siltstone.log.fetch import READ_COMMITTED
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.read_only import ReadableLog
from siltstone.log.reading import LogReader
from siltstone.log.retention import deletions_of
from siltstone.runtime.compactions import backlog_bytes, compaction_threshold

CHECK_INTERVAL = "log.retention.check.interval.ms"
RETENTION_SETTINGS = ("cleanup.policy", "retention.ms", "retention.bytes")
"""With other values of these, retention may delete more segments."""
ROLL_SETTINGS = ("segment.bytes", "segment.ms", "segment.index.bytes", "max.compaction.lag.ms")
"""With other values of these, an append may roll the active segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiringSegment:
    """A segment that retention deletes at its next check, and why."""

    base_offset: int
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPreview:
    """One partition before and after the change.

    ``expiring``: the segments that retention deletes with the new settings, ``expires_already`` of them with
    the present ones, too. ``is_due``: would the cleaner clean the log now, with the new settings?
    ``was_due``: with the present ones? ``first_dirty_offset`` and ``first_uncleanable_offset``: the range
    that may be cleaned with the new settings, None if they do not compact. ``rolls``: would the next append
    roll the active segment, with the new settings? ``rolled``: with the present ones? ``is_over_threshold``,
    ``was_over_threshold``: likewise, is the backlog over ``compactionThreshold``? ``problem``: why none of
    this is known, None if it is.
    """

    partition: int
    expiring: Sequence[ExpiringSegment] = ()
    expires_already: int = 0
    was_due: bool = False
    is_due: bool = False
    first_dirty_offset: int | None = None
    first_uncleanable_offset: int | None = None
    cleanable_bytes: int = 0
    rolled: bool = False
    rolls: bool = False
    was_over_threshold: bool = False
    is_over_threshold: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePreview:
    """The effect of a change on a topic. ``changed``: (before, after) by setting; ``contradiction``: why the
    settings are refused, None if they are not; ``check_ms``: retention checks the logs within so many ms.
    ``sentences``: for display.

    ``stamped_batches``: with a delete horizon, which they keep, and its newest; None if they were not all
    counted. ``deletes_data``: segments are deleted, or may be where a partition has a ``problem``, or the
    topic begins to compact, which discards records without a key and older ones of a key.
    """

    topic: str
    changed: Mapping[str, tuple[str, str]]
    contradiction: str | None
    partitions: Sequence[PartitionPreview]
    check_ms: int
    stamped_batches: int | None
    newest_horizon_ms: int | None
    deletes_data: bool
    sentences: Sequence[str]

    @property
    def expiring_bytes(self) -> int:
        """Bytes of all segments that are deleted."""
        return sum(segment.bytes for partition in self.partitions for segment in partition.expiring)

    def to_json(self) -> dict[str, object]:
        """One object."""
        changed = [
            {"name": name, "before": before, "after": after} for name, (before, after) in self.changed.items()
        ]
        document = {name: getattr(self, name) for name in ChangePreview.__slots__}
        partitions = [asdict(partition) for partition in self.partitions]
        return {
            **document,
            "changed": changed,
            "partitions": partitions,
            "sentences": list(self.sentences),
            "expiring_bytes": self.expiring_bytes,
        }


def preview(
    topic: str,
    logs: Sequence[CleaningConditions],
    after: Config,
    *,
    namespaces: Mapping[str, Mapping[str, str]] | None = None,
    counter: SegmentCounter | None = None,
) -> ChangePreview:
    """Preview the effect of ``after``, the topic's new settings over the broker's.

    ``logs``: of the partitions, with the settings as they are; ``namespaces``: the policies of Pulsar's
    namespaces; ``counter``: has the delete horizons, if it has counted the segments. Reads no record. What
    cannot be found out of a partition is its ``problem``. Raises UsageError without a partition.
    """
    if not logs:
        advice = "name all log directories of the broker"
        raise UsageError("the topic has no partition here", path=topic, advice=advice)
    before = logs[0].config
    changed = {
        name: (format_value(setting.value), format_value(after.setting(name).value))
        for name, setting in before.settings().items()
        if setting.value != after.setting(name).value
    }
    contradiction = _contradiction(after)
    partitions = [_partition(topic, conditions, after, namespaces or {}) for conditions in logs]
    stamped = _stamped(logs, counter)
    begins_to_compact = "compact" in after.policies and "compact" not in before.policies
    # Of a partition that cannot be read it is not known what retention would delete.
    may_delete = "delete" in after.policies and any(name in changed for name in RETENTION_SETTINGS)
    result = ChangePreview(
        topic=topic,
        changed=changed,
        contradiction=contradiction,
        partitions=partitions,
        check_ms=before.integer(CHECK_INTERVAL),
        stamped_batches=None if stamped is None else stamped[0],
        newest_horizon_ms=None if stamped is None else stamped[1],
        deletes_data=begins_to_compact
        or any(len(part.expiring) > part.expires_already for part in partitions)
        or (may_delete and any(part.problem is not None for part in partitions)),
        sentences=(),
    )
    return replace(result, sentences=_sentences(result, before, after))


def changed_settings(before: Config, set_to: Mapping[str, str], remove: Sequence[str] = ()) -> Config:
    """The settings after some of the topic's own were set and others removed. Raises UsageError."""
    own = dict(before.layer(ConfigSource.DYNAMIC_TOPIC_CONFIG))
    removed = {name for asked in remove for name in find_key(asked).names}  # by any of its names
    kept = {name: setting for name, setting in own.items() if name not in removed}
    without = before.with_layer(ConfigSource.DYNAMIC_TOPIC_CONFIG, kept)
    return without.with_topic_layer(parse_topic_config(set_to, "the change"))


def _contradiction(config: Config) -> str | None:
    try:
        refuse_contradictions(config)
    except UsageError as error:
        return str(error)
    return None


def _partition(
    topic: str, conditions: CleaningConditions, after: Config, namespaces: Mapping[str, Mapping[str, str]]
) -> PartitionPreview:
    """One partition; a damaged file of it is its ``problem``."""
    number = conditions.log.topic_partition.partition
    new = CleaningConditions(
        log=conditions.log,
        config=after,
        now_ms=conditions.now_ms,
        checkpoint=conditions.checkpoint,
        uncleanable=conditions.uncleanable,
        is_paused=conditions.is_paused,
        skipped=conditions.skipped,
    )
    try:
        expiring, already = _expiring(new), {segment.base_offset for segment in _expiring(conditions)}
        over = [_is_over_threshold(topic, part, namespaces) for part in (conditions, new)]
        preview = PartitionPreview(
            partition=number,
            expiring=expiring,
            expires_already=sum(segment.base_offset in already for segment in expiring),
            was_due=_is_due(conditions),
            is_due=_is_due(new),
            rolled=_rolls(conditions),
            rolls=_rolls(new),
            was_over_threshold=over[0],
            is_over_threshold=over[1],
        )
        if "compact" not in after.policies:
            return preview
        return replace(
            preview,
            first_dirty_offset=new.range.first_dirty,
            first_uncleanable_offset=new.range.end,
            cleanable_bytes=new.range.cleanable_bytes,
        )
    except (SiltstoneError, OSError) as error:
        return PartitionPreview(partition=number, problem=str(error))


def _expiring(conditions: CleaningConditions) -> list[ExpiringSegment]:
    """The segments that retention deletes now, by the function that retention itself calls."""
    view, config = conditions.log.view, conditions.log_config
    retain_from = LedgerStore(conditions.log.directory).first_needed_offset() if config.deletes else None
    sizes = {segment.base_offset: view.size_of(number) for number, segment in enumerate(view.segments)}
    return [
        ExpiringSegment(
            base_offset=deletion.base_offset, bytes=sizes[deletion.base_offset], reason=deletion.reason
        )
        for deletion in deletions_of(view, config, conditions.now_ms, retain_from)
    ]


def _is_due(conditions: CleaningConditions) -> bool:
    """Would the cleaner clean the log now, for what is dirty in it?"""
    is_left_alone = conditions.uncleanable is not None or conditions.is_paused or bool(conditions.skipped)
    return conditions.log_config.compacts and not is_left_alone and conditions.is_eligible


def _rolls(conditions: CleaningConditions) -> bool:
    """Would an append now roll the active segment, even of one byte?"""
    active, config = conditions.log.view.segments[-1], conditions.log_config
    has_records = conditions.log.view.active_size > 0
    return active.is_full_for(1, config) or (
        has_records and active.is_old_for(conditions.now_ms, config, conditions.now_ms)
    )


def _is_over_threshold(
    topic: str, conditions: CleaningConditions, namespaces: Mapping[str, Mapping[str, str]]
) -> bool:
    threshold = compaction_threshold(topic, conditions.config, namespaces)
    if not threshold.size:
        return False
    cursor = LedgerStore(conditions.log.directory).cursor()
    return threshold.is_exceeded_by(
        backlog_bytes(conditions.log.view, None if cursor is None else cursor.horizon)
    )


def _stamped(
    logs: Sequence[CleaningConditions], counter: SegmentCounter | None
) -> tuple[int, int | None] | None:
    """(How many batches have a delete horizon, the newest horizon in ms), None if not all segments are
    counted."""
    if counter is None:
        return None
    # With ``bytes_max`` 0 nothing is read: segments that were not counted before have None.
    counts = [count for conditions in logs for count in counter.counts_of(conditions.log, bytes_max=0)]
    known = [count for count in counts if count is not None]
    total = sum_of(known)
    return (total.stamped_batches, total.newest_horizon_ms) if len(known) == len(counts) else None


def _sentences(preview: ChangePreview, before: Config, after: Config) -> list[str]:
    """Sentences on the effect of the change."""
    sentences, parts = list[str](), preview.partitions
    if preview.contradiction is not None:
        sentences.append(f"It is refused: {preview.contradiction}.")
    segments = sum(len(part.expiring) for part in parts)
    already = sum(part.expires_already for part in parts)
    if segments:
        going = f"{counted(segments, 'segment')} with {counted(preview.expiring_bytes, 'byte')}"
        verb = "goes" if segments == 1 else "go"
        text = f"{going} {verb} at the next check, within {preview.check_ms / 60_000:g} min"
        sentences.append(
            f"{text}; {counted(already, 'of them goes', 'of them go')} already." if already else f"{text}."
        )
    if "compact" in after.policies and "compact" not in before.policies:
        size = sum(part.cleanable_bytes for part in parts)
        sentences.append(
            f"The topic begins to compact: {size:,} bytes may be cleaned now. Of each key only the last "
            "record stays, and records without a key go; a job counts them."
        )
    if "compact" in before.policies and "compact" not in after.policies:
        until = " until retention" if after.policies else ""
        sentences.append(f"The topic no longer compacts: old records of a key stay{until}.")
    if before.policies and not after.policies:
        sentences.append("Nothing is removed any more: cleanup.policy is empty.")
    if "delete" in after.policies and "delete" not in before.policies:
        sentences.append(_retention_sentence(after))
    sentences += _difference(parts, "was_due", "is_due", "due for a cleaning")
    sentences += _difference(parts, "was_over_threshold", "is_over_threshold", "over compactionThreshold")
    if any(name in preview.changed for name in ROLL_SETTINGS):
        rolling = sum(part.rolls and not part.rolled for part in parts)
        rolled = counted(rolling, "active segment")
        sentences.append(f"The next append rolls {rolled} that it would not roll now.")
    if "delete.retention.ms" in preview.changed:
        one, many = "batch that has one keeps it", "batches that have one keep it"
        known = preview.stamped_batches
        kept = "those that have one keep it" if known is None else f"the {counted(known, one, many)}"
        sentences.append(
            f"It is for new delete horizons only: {kept}. Tombstones without one lie "
            "above the cleaner checkpoint; a job counts them."
        )
    problems = [part for part in parts if part.problem is not None]
    if problems:
        unread = counted(len(problems), "partition")
        first = f"partition {problems[0].partition}: {problems[0].problem}"
        sentences.append(f"What it would do to {unread} is not known, since files cannot be read: {first}.")
    return sentences or ["Nothing goes, and no log becomes due, because of this change alone."]


def _retention_sentence(after: Config) -> str:
    """Sentences on records that retention will delete from now on."""
    age_ms, size = after.integer("retention.ms"), after.integer("retention.bytes")
    age = duration_text(age_ms / 1000) if age_ms >= 1000 else f"{age_ms} ms"
    ways = [f"it is older than {age} (retention.ms)"] if age_ms >= 0 else []
    ways += [f"newer ones have {size:,} bytes (retention.bytes)"] if size >= 0 else []
    when = f"whole segments go, the last record of a key, too: a segment when {' or '.join(ways)}"
    return f"From then on {when if ways else 'nothing goes: neither age nor size is limited'}."


def _difference(parts: Sequence[PartitionPreview], before: str, after: str, what: str) -> list[str]:
    """Sentences on how many logs become ``what``, and how many stop being it; ``before``, ``after``: the
    fields of a partition's preview that say whether it is."""
    begin = sum(not getattr(part, before) and getattr(part, after) for part in parts)
    end = sum(getattr(part, before) and not getattr(part, after) for part in parts)
    pairs = (
        (begin, f"{counted(begin, 'log becomes', 'logs become')} {what}."),
        (end, f"{counted(end, 'log stops', 'logs stop')} being {what}."),
    )
    return [text for count, text in pairs if count]


# For a job: counts that need the records themselves.


@dataclass(frozen=True, slots=True, kw_only=True)
class KindCounts:
    """Counts of a log's records by kind. ``end``: the first uncleanable offset.

    ``keyless``: below ``end``, without a key, of no aborted transaction: the first cleaning removes them;
    ``keyless_later``: from ``end`` on, which later cleanings remove. ``unstamped_tombstones``: without a
    delete horizon, in the whole log; ``stamped_tombstones``: with one. ``records``: that were read.
    """

    end: int
    records: int = 0
    keyless: int = 0
    keyless_later: int = 0
    unstamped_tombstones: int = 0
    stamped_tombstones: int = 0

    def to_json(self) -> dict[str, object]:
        """One object."""
        return asdict(self)


def count_kinds(log: ReadableLog, end: int, stop: threading.Event | None = None) -> KindCounts:
    """Count the records of a log by kind, exactly; ``end``: see ``KindCounts``. Reads the whole log; a set
    ``stop`` ends it with what was counted so far. Raises CorruptRecordError, OSError."""
    reader = LogReader(log, isolation=READ_COMMITTED, end=log.view.last_stable_offset)
    sums = np.zeros(5, np.int64)
    while not (stop is not None and stop.is_set()):
        polled = reader.poll_once()
        if polled is None:
            break
        columns = polled.columns
        is_keyless, is_below = columns.key_size < 0, columns.offset < end
        is_tombstone = ~is_keyless & (columns.value_size < 0)
        is_stamped = have_delete_horizons(polled.batches)[columns.batch]
        sums += [
            len(columns),
            (is_keyless & is_below).sum(),
            (is_keyless & ~is_below).sum(),
            (is_tombstone & ~is_stamped).sum(),
            (is_tombstone & is_stamped).sum(),
        ]
    records, keyless, later, unstamped, stamped = sums.tolist()
    return KindCounts(
        end=end,
        records=records,
        keyless=keyless,
        keyless_later=later,
        unstamped_tombstones=unstamped,
        stamped_tombstones=stamped,
    )
