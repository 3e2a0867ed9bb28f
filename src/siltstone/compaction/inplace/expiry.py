"""Retention after a cleaning: which old segments are deleted, and their counts
(``CleanerThread.cleanOrSleep``, ``UnifiedLog.deleteOldSegments``).

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
from collections.abc import Iterable, Iterator, Sequence
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
from siltstone.compaction.inplace.facts import Choices, LogState, Planned
from siltstone.compaction.report import LogResult
from siltstone.compaction.staging import GroupReport
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.lookup import batch_headers
from siltstone.log.retention import SegmentFacts, decide
from siltstone.log.segments import Segment, largest_timestamp, windows

UNKNOWN_RETENTION = (
    "retention by time was left out: nothing says retention.ms, and by Kafka's default {count} more of the "
    "oldest segments would go; give --config retention.ms=MS, or the broker's settings by --broker-config"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A segment after the cleaning, of ``size`` bytes: one that was not cleaned, or a ``new`` one, whose last
    source is ``segment``."""

    base_offset: int
    size: int
    segment: Segment
    new: GroupReport | None = None

    def largest_timestamp(self) -> int:
        """In ms; without timestamps the modification time, which a new segment has from its last source."""
        if self.new is None:
            return largest_timestamp(self.segment)
        largest = self.new.largest_timestamp or 0
        return largest if largest > 0 else self.segment.modified_ms

    def count(self, end: int | None = None) -> int | None:
        """How many records it has, in one pass over the batch headers; None if the segment is damaged.
        Message sets have no counts in their headers and are decoded.

        Given the ``end`` offset of a segment that will be deleted, this raises CorruptFileError for a batch
        with offsets outside [base, ``end``): such a file was put in the place of another segment, and has its
        index and times. A damaged segment expires all the same, as in Kafka.
        """
        if self.new is not None:
            return self.new.counts.records_retained
        records, has_message_sets, path = 0, False, self.segment.path
        try:
            with files.Reader(path) as reader:
                for rows in batch_headers(reader, end=self.size):
                    if end is not None:
                        _refuse_strange(self.segment, rows, end)
                    records += int(rows["count"].sum())
                    has_message_sets |= bool((rows["magic"] < 2).any())
                if has_message_sets:
                    parts = windows(reader)
                    keys = (decode_record_keys(p.data, p.batches, path=path, origin=p.origin) for p in parts)
                    records = sum(map(len, keys))
        except CorruptRecordError:
            return None
        return records


def _refuse_strange(segment: Segment, rows: BatchHeaders, end: int) -> None:
    bad = np.flatnonzero((rows["base_offset"] < segment.base_offset) | (rows["last_offset"] >= end))
    if len(bad):
        row = rows[bad[0]]
        offsets, span = f"{row['base_offset']} to {row['last_offset']}", f"[{segment.base_offset}, {end})"
        reason = f"offsets {offsets} are not of this segment, {span}"
        raise CorruptFileError(segment.path, int(row["position"]), reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """The segments of a log that expire, oldest first, each with its reason.

    ``records``: in these segments; ``records_of_all``: in the whole log, None if it was cleaned. Both are
    None where a segment is damaged.
    """

    going: Sequence[Left]
    reasons: Sequence[str]
    records: int | None
    records_of_all: int | None

    @property
    def bases(self) -> list[int]:
        """Their base offsets, ascending."""
        return [segment.base_offset for segment in self.going]


def retention_applies(result: LogResult) -> bool:
    """Does retention apply to a log with this result? Not if it was skipped, or if something is wrong."""
    return result.status in (report.CLEANED, report.NOTHING_TO_DO, report.NOT_ELIGIBLE)


def as_they_are(segments: Iterable[Segment]) -> list[Left]:
    """Segments that were not cleaned, as ``Left``."""
    return [Left(base_offset=segment.base_offset, size=segment.size, segment=segment) for segment in segments]


def after_cleaning(planned: Planned) -> list[Left]:
    """The segments of a log that was cleaned; the active one last."""
    left, work = [], planned.work
    for new in planned.accepted:
        group = work.groups[new.group]
        source = work.segments[group.end_segment - 1]
        left.append(Left(base_offset=group.base_offset, size=new.size, segment=source, new=new))
    return left + as_they_are(planned.uncleaned)


def expired(state: LogState, result: LogResult, choices: Choices, left: Sequence[Left]) -> Expiry | None:
    """The segments that expire now, None for none. ``left``: the log's segments, the active one last.

    A default ``retention.ms`` deletes nothing unless the broker's settings are known, since the broker may
    have another default; a note in the result says so.

    Raises InvalidConfigError for a deletion policy that is not registered, CorruptFileError, LedgerError,
    OSError.
    """
    assert state.config is not None
    config = LogConfig.of(state.config)
    checkpoints = state.checkpoints()
    deciding = functools.partial(
        decide,
        _facts(left, with_times=config.deletes),
        now_ms=choices.now_ms,
        log_start_offset=checkpoints.log_start.get(state.where, 0),
        high_watermark=choices.committed_below(state.where, checkpoints) or 0,
        held_from=LedgerStore(state.path).held_horizon() if config.deletes else None,
        keeps_active=True,
    )
    decisions = deciding(config=config)
    guessed = state.config.setting("retention.ms").origin is ConfigSource.DEFAULT_CONFIG
    if decisions and guessed and not state.defaults_hold:
        known = deciding(config=replace(config, retention_ms=-1))
        if len(known) < len(decisions):
            result.notes.append(UNKNOWN_RETENTION.format(count=len(decisions) - len(known)))
        decisions = known
    if not decisions:
        return None
    going, staying = left[: len(decisions)], left[len(decisions) :]
    counts = [segment.count(later.base_offset) for segment, later in pairwise(left[: len(going) + 1])]
    return Expiry(
        going=going,
        reasons=[decision.reason for decision in decisions],
        records=_total(counts),
        records_of_all=(
            None
            if result.status == report.CLEANED
            else _total(counts + [segment.count() for segment in staying])
        ),
    )


def _facts(left: Sequence[Left], *, with_times: bool) -> list[SegmentFacts]:
    """The facts for ``log.retention``. The active segment stays, so its end and its time are not needed."""
    ends = [*(later.base_offset for _, later in pairwise(left)), LONG_MAX]
    last = len(left) - 1
    return [
        SegmentFacts(
            base_offset=segment.base_offset,
            end_offset=end,
            size=segment.size,
            largest_timestamp=segment.largest_timestamp() if with_times and number < last else LONG_MAX,
            is_active=number == last,
        )
        for number, (segment, end) in enumerate(zip(left, ends, strict=True))
    ]


def _total(counts: Sequence[int | None]) -> int | None:
    return None if None in counts else sum(count or 0 for count in counts)


def fill_expired(result: LogResult, expiry: Expiry) -> None:
    """Add an expiry to the result. A log that was not cleaned is cleaned then; its reason becomes a note."""
    if result.status != report.CLEANED:
        result.records_before = expiry.records_of_all
        result.notes.append(f"not compacted: {result.reason}")
        result.stop(report.CLEANED, "")
    result.discarded.expired = expiry.records or 0
    known = result.records_before is not None and expiry.records is not None
    result.records_before = result.records_before if known else None
    result.records_after = (result.records_before or 0) - result.discarded.total() if known else None
    result.bytes_after -= sum(segment.size for segment in expiry.going)
    result.segments_after -= len(expiry.going)
    result.notes += _reasons(expiry)


def _reasons(expiry: Expiry) -> Iterator[str]:
    """A line for each reason, with the segments that it removes."""
    for reason, pairs in groupby(zip(expiry.reasons, expiry.going, strict=True), key=itemgetter(0)):
        going = [left for _, left in pairs]
        size = sum(left.size for left in going)
        segments = f"{len(going)} segment{'s' if len(going) > 1 else ''}"
        yield f"retention: {segments} from offset {going[0].base_offset} ({size} bytes): {reason}"
