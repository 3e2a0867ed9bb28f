"""Retention after a cleaning: which old segments are deleted, and the counts of their records.

It answers to ``CleanerThread.cleanOrSleep`` and ``UnifiedLog.deleteOldSegments``.

::

    cleaned ─► checkpoint ─► retention on the segments as they are now: new ones, those above, the active one
                             deleted is what lies below the log start; under ``compact,delete`` also what is
                             too old or too much

As in Kafka, retention applies to every log with a compacting policy, cleaned or not, and after the cleaning:
a value may be superseded by a later one that is about to expire. The active segment stays, since only a
broker can roll it. This module decides and counts; ``compaction.inplace.destination`` deletes.
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
from siltstone.base.errors import CorruptFileError, CorruptRecordError
from siltstone.base.records.decode import decode_record_keys
from siltstone.base.records.layout import BatchHeaders
from siltstone.compaction import report
from siltstone.compaction.inplace.planning import LogState, PlannedLog, PlanOptions
from siltstone.compaction.report import LogResult
from siltstone.compaction.staging import GroupReport
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.lookup import batch_headers
from siltstone.log.retention import SegmentMetadata, decide
from siltstone.log.segments import Segment, largest_timestamp, windows

UNKNOWN_RETENTION = (
    "retention by time was left out: retention.ms is not set, and Kafka's default would delete {count} more "
    "of the oldest segments; pass --config retention.ms=MS, or the broker's settings with --broker-config"
)


def count_records(segment: Segment, end: int | None = None) -> int | None:
    """How many records a segment has, in one pass over the batch headers; None if it is damaged. Message sets
    have no counts in their headers and are decoded.

    Given the ``end`` offset of a segment that will be deleted, this raises CorruptFileError for a batch with
    offsets outside [base, ``end``): such a file was put in the place of another segment, and has its index
    and times. A damaged segment expires all the same, as in Kafka. Raises OSError.
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
                parts = windows(reader, end=segment.size)
                keys = (decode_record_keys(p.data, p.batches, path=path, origin=p.origin) for p in parts)
                records = sum(map(len, keys))
    except CorruptRecordError:
        return None
    return records


def _refuse_other_offsets(segment: Segment, batches: BatchHeaders, end: int) -> None:
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
    """A segment after the cleaning: one that was not cleaned, or a ``new`` one, of which ``segment`` has what
    the swap gives it: base offset, size, and the modification time of its last source."""

    segment: Segment
    new: GroupReport | None = None

    def largest_timestamp(self) -> int:
        """In ms; without timestamps the modification time."""
        if self.new is None:
            return largest_timestamp(self.segment)
        largest = self.new.largest_timestamp or 0
        return largest if largest > 0 else self.segment.modified_ms

    def count_records(self, end: int | None = None) -> int | None:
        """How many records it has; see the function."""
        return count_records(self.segment, end) if self.new is None else self.new.counts.records_retained


def remaining_segments(state: LogState, planned: PlannedLog | None) -> list[RemainingSegment]:
    """The segments of a log that was cleaned (``planned``) or not; the active one last."""
    if planned is None:
        return list(map(RemainingSegment, state.segments()))
    remaining, work = [], planned.work
    for new in planned.committed:
        group = work.groups[new.group_index]
        source = work.segments[group.end_segment - 1]
        segment = replace(source, base_offset=group.base_offset, size=new.size)
        remaining.append(RemainingSegment(segment, new))
    return [*remaining, *map(RemainingSegment, work.segments_above)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """The ``segments`` of a log that retention removes, oldest first, each with its reason.

    ``records``: in these segments; ``records_of_all``: in the whole log, None if it was cleaned. Both are
    None where a segment is damaged.
    """

    segments: Sequence[Segment]
    reasons: Sequence[str]
    records: int | None
    records_of_all: int | None

    @property
    def bases(self) -> list[int]:
        """Their base offsets, ascending."""
        return [segment.base_offset for segment in self.segments]


def retention_applies(result: LogResult) -> bool:
    """Does retention apply to a log with this result? Not if it was skipped, or if something is wrong."""
    return result.status in (report.CLEANED, report.NOTHING_TO_DO, report.NOT_ELIGIBLE)


def find_expiry(
    state: LogState, result: LogResult, options: PlanOptions, planned: PlannedLog | None
) -> Expiry | None:
    """The segments that expire now, None for none. ``planned``: the cleaning, if there was one.

    A default ``retention.ms`` deletes nothing unless the broker's settings are known, since the broker may
    have another default; a note in the result says so.

    Raises InvalidConfigError for a deletion policy that is not registered, CorruptFileError, LedgerError,
    OSError.
    """
    assert state.config is not None
    config = LogConfig.of(state.config)
    remaining = remaining_segments(state, planned)
    checkpoints = state.checkpoints()
    committed_below = checkpoints.committed_below(
        state.topic_partition, no_other_replica=options.high_watermark_is_end
    )
    decide_with = functools.partial(
        decide,
        _segment_facts(remaining, with_times=config.deletes),
        now_ms=options.now_ms,
        log_start_offset=checkpoints.log_start.get(state.topic_partition, 0),
        high_watermark=committed_below or 0,
        retain_from=LedgerStore(state.path).held_horizon() if config.deletes else None,
        retain_active=True,
    )
    decisions = decide_with(config=config)
    is_default = state.config.setting("retention.ms").origin is ConfigSource.DEFAULT_CONFIG
    if decisions and is_default and not state.has_brokers_defaults:
        without_time = decide_with(config=replace(config, retention_ms=-1))
        if len(without_time) < len(decisions):
            result.notes.append(UNKNOWN_RETENTION.format(count=len(decisions) - len(without_time)))
        decisions = without_time
    if not decisions:
        return None
    expired, rest = remaining[: len(decisions)], remaining[len(decisions) :]
    counted = pairwise(remaining[: len(decisions) + 1])
    counts = [one.count_records(following.segment.base_offset) for one, following in counted]
    of_all = None
    if result.status != report.CLEANED:
        of_all = total_or_none([*counts, *(one.count_records() for one in rest)])
    return Expiry(
        segments=[one.segment for one in expired],
        reasons=[decision.reason for decision in decisions],
        records=total_or_none(counts),
        records_of_all=of_all,
    )


def _segment_facts(remaining: Sequence[RemainingSegment], *, with_times: bool) -> list[SegmentMetadata]:
    """What ``log.retention`` needs to know. The active segment stays, so its end and its time are not
    needed."""
    ends = [*(one.segment.base_offset for one in remaining[1:]), LONG_MAX]
    last = len(remaining) - 1
    return [
        SegmentMetadata(
            base_offset=one.segment.base_offset,
            end_offset=end,
            size=one.segment.size,
            largest_timestamp=one.largest_timestamp() if with_times and number < last else LONG_MAX,
            is_active=number == last,
        )
        for number, (one, end) in enumerate(zip(remaining, ends, strict=True))
    ]


def fill_expiry(result: LogResult, expiry: Expiry) -> None:
    """Add an expiry to the result. A log that was not cleaned is cleaned then; its reason becomes a note."""
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
    # A line for each reason, with the segments that it removes.
    for reason, pairs in groupby(zip(expiry.reasons, expiry.segments, strict=True), key=itemgetter(0)):
        segments = [segment for _, segment in pairs]
        count = f"{len(segments)} segment{'s' if len(segments) > 1 else ''}"
        size = sum(segment.size for segment in segments)
        place = f"from offset {segments[0].base_offset} ({size} bytes)"
        result.notes.append(f"retention: {count} {place}: {reason}")
