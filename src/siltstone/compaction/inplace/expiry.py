"""Retention after a cleaning: which old segments expire, and how many records they have.

It answers to ``CleanerThread.cleanFilthiestLog`` and ``UnifiedLog.deleteOldSegments``. Retention looks at the
segments as they are after the cleaning: the new ones, those above the cleaned range, the active one.
Segments below the log start offset expire; under ``cleanup.policy=compact,delete`` also those that
``retention.ms`` and ``retention.bytes`` remove.

As in Kafka, retention applies to every log with a compacting policy, whether it needed a cleaning or not. It
comes after the cleaning: a later value supersedes an older one even if it is about to expire itself. The
active segment stays, since only a broker can roll it. This module decides and counts;
``compaction.inplace.destination`` deletes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np

from siltstone.base import files
from siltstone.base.config import LONG_MAX, ConfigSource, LogConfig
from siltstone.base.errors import (
    CorruptFileError,
    CorruptRecordError,
    InvalidConfigError,
    LedgerError,
    SiltstoneError,
)
from siltstone.base.records.decode import decode_record_keys
from siltstone.base.records.layout import BatchHeaders
from siltstone.compaction import report
from siltstone.compaction.inplace.planning import LogState, PlannedLog, PlanOptions, plan_log
from siltstone.compaction.report import LogResult
from siltstone.compaction.staging import GroupReport
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.lookup import batch_headers
from siltstone.log.overflow import overflowed_segments
from siltstone.log.replacement import swap_leftovers
from siltstone.log.retention import SegmentMetadata, segments_to_delete
from siltstone.log.segments import Segment, largest_timestamp, windows

UNKNOWN_RETENTION = (
    "retention by time was left out: retention.ms is not set, and Kafka's default would delete {count} more "
    "of the oldest segments; pass --config retention.ms=MS, or the broker's settings with --broker-config"
)
RETENTION_LEFT_OUT = "retention was left out: {error}"


def count_records(segment: Segment, end: int | None = None) -> int | None:
    """How many records a segment has, by one pass over its batch headers; None if it is damaged. Message sets
    have no counts in their headers, so they are decoded.

    ``end``: the end offset of a segment that will be deleted, else None. With it, this raises
    CorruptFileError for a batch with offsets outside [base offset, ``end``): the file is that of another
    segment, which must not be deleted because this one is old. A damaged segment expires nevertheless, as in
    Kafka. Raises OSError.
    """
    records, has_message_sets, path = 0, False, segment.path
    try:
        with files.Reader(path) as reader:
            for batches in batch_headers(reader, end=segment.size):
                if end is not None:
                    _refuse_other_offsets(segment, batches, end)
                records += int(batches["count"].sum())
                has_message_sets |= bool((batches["magic"] < 2).any())
            if has_message_sets:
                read_windows = windows(reader, end=segment.size)
                keys = (
                    decode_record_keys(window.data, window.batches, path=path, origin=window.origin)
                    for window in read_windows
                )
                records = sum(map(len, keys))
    except CorruptRecordError:
        return None
    return records


def _refuse_other_offsets(segment: Segment, batches: BatchHeaders, end: int) -> None:
    """Raises CorruptFileError for a batch with offsets outside [the segment's base offset, ``end``)."""
    base, last = batches["base_offset"], batches["last_offset"]
    bad = np.flatnonzero((base < segment.base_offset) | (last >= end))
    if len(bad):
        row = bad[0]
        raise CorruptFileError(
            segment.path,
            int(batches["position"][row]),
            f"offsets {base[row]} to {last[row]} are not of this segment, [{segment.base_offset}, {end})",
            advice="find out which file belongs here; nothing of the log was deleted",
        )


def total_or_none(counts: Sequence[int | None]) -> int | None:
    """The sum, None if a count is None."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


@dataclass(frozen=True, slots=True)
class RemainingSegment:
    """A segment as it is after the cleaning: ``segment`` has its base offset, size and modification time.

    ``report_of_new``: the report on the group whose new segment it is; None for one that was not cleaned.
    """

    segment: Segment
    report_of_new: GroupReport | None = None

    def largest_timestamp(self) -> int:
        """The largest timestamp in ms; the modification time if the records have no timestamps."""
        if self.report_of_new is None:
            return largest_timestamp(self.segment)
        largest = self.report_of_new.largest_timestamp or 0
        return largest if largest > 0 else self.segment.modified_ms

    def count_records(self, end: int | None = None) -> int | None:
        """How many records it has; see the function ``count_records``."""
        return (
            count_records(self.segment, end)
            if self.report_of_new is None
            else self.report_of_new.counts.records_retained
        )


def remaining_segments(state: LogState, planned: PlannedLog | None) -> list[RemainingSegment]:
    """The segments of a log as they are now, the active one last. ``planned``: the log's cleaning, None
    without one."""
    if planned is None:
        return list(map(RemainingSegment, state.segments()))
    remaining, work = [], planned.work
    for report_of_new in planned.committed:
        group = work.groups[report_of_new.group_index]
        # The new segment has the modification time of the last old one (Kafka's ``Cleaner.cleanSegments``).
        source = work.segments[group.end_segment - 1]
        segment = replace(source, base_offset=group.base_offset, size=report_of_new.size)
        remaining.append(RemainingSegment(segment, report_of_new))
    return [*remaining, *map(RemainingSegment, work.segments_above)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """The ``segments`` of a log that retention removes, oldest first, and the reason for each.

    ``records``: how many records these segments have; ``records_of_all``: how many the whole log has, None if
    it was cleaned (its result has the number then). Both are None where a segment is damaged.
    """

    segments: Sequence[Segment]
    reasons: Sequence[str]
    records: int | None
    records_of_all: int | None

    @property
    def bases(self) -> list[int]:
        """The base offsets of the segments, ascending."""
        return [segment.base_offset for segment in self.segments]


def would_change(state: LogState, options: PlanOptions) -> bool:
    """Would a cleaning in place change this log? False for a log that would fail. The caller has checked that
    the log's settings allow a cleaning. This function changes nothing."""
    try:
        if swap_leftovers(state.path) or overflowed_segments(state.segments()):
            return True  # ``InPlace.recover`` comes first
        plan = plan_log(state, state.checkpoints(), options, None)
        if isinstance(plan, PlannedLog):
            return True
        return retention_applies(plan) and find_expiry(state, plan, options, None) is not None
    except (SiltstoneError, OSError):
        return False


def retention_applies(result: LogResult) -> bool:
    """Does retention apply to a log with this result? Not if the log was skipped, or failed."""
    return result.status in (report.CLEANED, report.NOTHING_TO_DO, report.NOT_ELIGIBLE)


def find_expiry(
    state: LogState, result: LogResult, options: PlanOptions, planned: PlannedLog | None
) -> Expiry | None:
    """The segments of a log that expire now, None for none. ``planned``: the cleaning, None without one.

    Where ``retention.ms`` is not set and the broker's settings are not known, nothing is deleted by Kafka's
    default of it, since the broker may have another default. A note in the result says so.

    Raises InvalidConfigError for a deletion policy that is not registered, CorruptFileError, LedgerError,
    OSError.
    """
    assert state.config is not None
    config = LogConfig.of(state.config)
    remaining, checkpoints = remaining_segments(state, planned), state.checkpoints()
    if not remaining:  # an empty directory
        return None
    committed_below = checkpoints.committed_below(
        state.topic_partition, no_other_replica=options.high_watermark_is_end
    )
    decide = functools.partial(
        segments_to_delete,
        _segment_metadata(remaining, needs_times=config.deletes),
        now_ms=options.now_ms,
        log_start_offset=checkpoints.log_start.get(state.topic_partition, 0),
        high_watermark=committed_below or 0,
        retain_from=LedgerStore(state.path).first_needed_offset() if config.deletes else None,
        retain_active_segment=True,
    )
    decisions = decide(config=config)
    is_default_retention = state.config.setting("retention.ms").config_source is ConfigSource.DEFAULT_CONFIG
    if decisions and is_default_retention and not state.has_brokers_defaults:
        without_time = decide(config=replace(config, retention_ms=-1))
        if len(without_time) < len(decisions):
            result.notes.append(UNKNOWN_RETENTION.format(count=len(decisions) - len(without_time)))
        decisions = without_time
    if not decisions:
        return None
    expired, retained = remaining[: len(decisions)], remaining[len(decisions) :]
    # Each expired segment ends where the next one begins. (There is a next one: the active segment stays.)
    expired_with_next = pairwise(remaining[: len(decisions) + 1])
    counts = [entry.count_records(following.segment.base_offset) for entry, following in expired_with_next]
    records_of_all = None
    if result.status != report.CLEANED:
        records_of_all = total_or_none([*counts, *(entry.count_records() for entry in retained)])
    return Expiry(
        segments=[entry.segment for entry in expired],
        reasons=[decision.reason for decision in decisions],
        records=total_or_none(counts),
        records_of_all=records_of_all,
    )


def find_expiry_or_note(
    state: LogState, result: LogResult, options: PlanOptions, planned: PlannedLog | None
) -> Expiry | None:
    """``find_expiry``; if wrong settings or a damaged ledger leave retention out, None, with a note."""
    try:
        return find_expiry(state, result, options, planned)
    except (InvalidConfigError, LedgerError) as error:
        result.notes.append(RETENTION_LEFT_OUT.format(error=error))
        return None


def expiry_without_cleaning(state: LogState, result: LogResult, options: PlanOptions) -> Expiry | None:
    """The segments that retention would remove of a log that is not cleaned; None for none. Adds notes to
    ``result``. Where ``clean`` would remove the segments itself, ``result`` becomes that of such a run
    (``fill_expiry``); where it leaves them to the broker, ``result`` stays. Raises SiltstoneError, OSError.
    """
    if retention_applies(result):
        expiry = find_expiry_or_note(state, result, options, None)
        if expiry is not None:
            fill_expiry(result, expiry)
        return expiry
    # A broker, or a program that serves the directory, applies retention to a log that only deletes.
    if state.config is None:  # the metadata log, or one that is refused
        return None
    if state.config.policies != ("delete",) or state.config.flag("remote.storage.enable"):
        return None
    try:
        # With the status cleaned, only the records of expired segments are counted, not those of all.
        expiry = find_expiry(state, replace(result, status=report.CLEANED), options, None)
    except (SiltstoneError, OSError):  # no failure of a log that is skipped
        return None
    if expiry is not None:
        result.notes += [f"{note}; clean leaves it to the broker" for note in expiry_notes(expiry)]
    return expiry


def _segment_metadata(remaining: Sequence[RemainingSegment], *, needs_times: bool) -> list[SegmentMetadata]:
    """The segments as ``log.retention`` needs them. The active one stays, so its end and its largest
    timestamp are not needed: they are LONG_MAX."""
    ends = [*(entry.segment.base_offset for entry in remaining[1:]), LONG_MAX]
    last = len(remaining) - 1
    return [
        SegmentMetadata(
            base_offset=entry.segment.base_offset,
            end_offset=end,
            size=entry.segment.size,
            largest_timestamp=entry.largest_timestamp() if needs_times and number < last else LONG_MAX,
            is_active=number == last,
        )
        for number, (entry, end) in enumerate(zip(remaining, ends, strict=True))
    ]


def fill_expiry(result: LogResult, expiry: Expiry) -> None:
    """Add the removal of expired segments to the log's result. A log that needed no cleaning gets the status
    cleaned, and its reason becomes a note."""
    if result.status != report.CLEANED:
        result.records_before = expiry.records_of_all
        result.notes.append(f"not compacted: {result.reason}")
        result.set_status(report.CLEANED, "")
    result.discarded.expired = expiry.records or 0
    result.records_after = None
    if expiry.records is None:
        result.records_before = None
    elif result.records_before is not None:
        result.records_after = result.records_before - result.discarded.total()
    result.bytes_after -= sum(segment.size for segment in expiry.segments)
    result.segments_after -= len(expiry.segments)
    result.notes += expiry_notes(expiry)


def expiry_notes(expiry: Expiry) -> list[str]:
    """A line for each reason, with the segments that it removes."""
    notes = []
    for reason, pairs in groupby(zip(expiry.reasons, expiry.segments, strict=True), key=itemgetter(0)):
        segments = [segment for _, segment in pairs]
        count = f"{len(segments)} segment{'s' if len(segments) > 1 else ''}"
        size = sum(segment.size for segment in segments)
        place = f"from offset {segments[0].base_offset} ({size} bytes)"
        notes.append(f"retention: {count} {place}: {reason}")
    return notes
