"""Which old segments go once a log was cleaned, and what its result says of them (``CleanerThread`` and
``UnifiedLog.deleteOldSegments``).

::

    cleaned ─► checkpoint ─► retention on what is there now: new segments · those above them · active segment
                             what lies below the log start goes; under ``compact,delete``, what is too old or
                             too much

As in Kafka it is asked of every log whose policy compacts, also of one that needs no cleaning, and cleaning
comes before it: a value is superseded by a later one that is about to expire. The active segment stays; to
begin a new one is the broker's. Only decisions and counts are here, ``compaction.inplace.destination``
carries them out.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np

from siltstone.base import files
from siltstone.base.config import LONG_MAX, ConfigSource, LogConfig
from siltstone.base.errors import CorruptFileError, CorruptRecordError
from siltstone.base.records.decode import decode_record_keys
from siltstone.compaction import report
from siltstone.compaction.inplace.facts import Choices, LogState, Planned
from siltstone.compaction.report import LogResult
from siltstone.compaction.staging import Rewritten
from siltstone.compaction.work import LogWork
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.lookup import batch_headers
from siltstone.log.retention import Decision, SegmentFacts, decide
from siltstone.log.segments import Segment, count_records, largest_timestamp, windows

UNKNOWN_RETENTION = (
    "retention by time was left out: nothing says retention.ms, and by Kafka's default {count} more of the "
    "oldest segments would go; give --config retention.ms=MS, or the broker's settings by --broker-config"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A segment as the cleaning leaves it: ``size`` in bytes; its largest timestamp in ms and its records
    when they are asked for: ``records`` answers None where damage keeps them from being counted.

    ``refuse_strange``: raises CorruptFileError where a batch is not of the segment, which ends at an offset.
    """

    base_offset: int
    size: int
    largest_timestamp: Callable[[], int]
    records: Callable[[], int | None]
    refuse_strange: Callable[[int], None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """The segments that go of a log, oldest first, each with its reason.

    ``base.records``: how many are in them; ``records_of_all``: in the whole log, asked of one that was not
    cleaned. None: damage keeps them from being counted.
    """

    going: tuple[Left, ...]
    decisions: tuple[Decision, ...]
    records: int | None
    records_of_all: int | None

    @property
    def bases(self) -> list[int]:
        """The base offsets of what goes, ascending."""
        return [each.base_offset for each in self.going]


def is_asked(result: LogResult) -> bool:
    """Is retention asked of a log with this result? Not where it was left alone, or something is wrong."""
    return result.status in (report.CLEANED, report.NOTHING_TO_DO, report.NOT_ELIGIBLE)


def as_they_are(state: LogState) -> list[Left]:
    """The segments of a log that was not cleaned, the active one last. Raises OSError."""
    return [_untouched(segment) for segment in state.segments()]


def after_cleaning(planned: Planned, groups: Sequence[Rewritten]) -> list[Left]:
    """The segments of a log whose ``groups`` were taken over, all of them; the active one last."""
    untouched = [_untouched(segment) for segment in planned.uncleaned]
    return [*(_new(planned.work, group) for group in groups), *untouched]


def _untouched(segment: Segment) -> Left:
    return Left(
        base_offset=segment.base_offset,
        size=segment.size,
        largest_timestamp=lambda: largest_timestamp(segment),
        records=lambda: _count(segment),
        refuse_strange=lambda end: _refuse_strange(segment, end),
    )


def _refuse_strange(segment: Segment, end: int) -> None:
    """What goes has to be the segment's own: a log file in the place of another one has that one's indexes,
    and would go by its times. Damage is none of it: a segment that is too old goes with it, as in Kafka.

    Raises CorruptFileError for a batch with offsets outside [base, ``end``).
    """
    with files.Reader(segment.path) as reader, contextlib.suppress(CorruptRecordError):
        for rows in batch_headers(reader, end=segment.size):
            bad = np.flatnonzero((rows["base_offset"] < segment.base_offset) | (rows["last_offset"] >= end))
            if len(bad):
                row = rows[bad[0]]
                offsets = f"offsets {row['base_offset']} to {row['last_offset']}"
                span = f"[{segment.base_offset}, {end})"
                raise CorruptFileError(
                    segment.path, int(row["position"]), f"{offsets} are not of this segment, {span}"
                )


def _new(work: LogWork, group: Rewritten) -> Left:
    """A group's new segment, wherever it is by now.

    Without a time in its time index the file's own counts, which is that of its last source.
    """
    plan, largest = work.groups[group.group], group.largest_timestamp or 0
    source = work.segments[plan.last - 1]
    return Left(
        base_offset=plan.base_offset,
        size=group.size,
        largest_timestamp=lambda: largest if largest > 0 else source.modified_ms,
        records=lambda: group.kept,
    )


def expired(state: LogState, result: LogResult, choices: Choices, left: Sequence[Left]) -> Expiry | None:
    """What retention takes now, None for nothing. ``left``: the log's segments, the active one last.

    A ``retention.ms`` that nobody set takes nothing unless the broker's own settings are known: the broker
    may have another default, and what is gone is gone; a note in the result says so.

    Raises InvalidConfigError for a deletion policy that nobody registered, CorruptFileError, LedgerError,
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
    going = tuple(left[: len(decisions)])
    for each, following in zip(going, left[1:], strict=False):
        each.refuse_strange(following.base_offset)
    return Expiry(
        going=going,
        decisions=decisions,
        records=_total(going),
        records_of_all=None if result.status == report.CLEANED else _total(left),
    )


def _facts(left: Sequence[Left], *, with_times: bool) -> list[SegmentFacts]:
    """What retention wants to know; where the active segment ends nobody asks, since it stays."""
    ends = [*(later.base_offset for _, later in pairwise(left)), LONG_MAX]
    last = len(left) - 1
    return [
        SegmentFacts(
            base_offset=each.base_offset,
            end_offset=end,
            size=each.size,
            largest_timestamp=each.largest_timestamp() if with_times and number < last else LONG_MAX,
            is_active=number == last,
        )
        for number, (each, end) in enumerate(zip(left, ends, strict=True))
    ]


def _total(segments: Sequence[Left]) -> int | None:
    counts = [segment.records() for segment in segments]
    return None if None in counts else sum(count or 0 for count in counts)


def fill_expired(result: LogResult, found: Expiry) -> None:
    """Count what went into the result. A log that was not cleaned is now, and its reason becomes a note."""
    if result.status != report.CLEANED:
        result.records_before = found.records_of_all
        result.notes.append(f"not compacted: {result.reason}")
        result.stop(report.CLEANED, "")
    result.removed.expired = found.records or 0
    known = result.records_before is not None and found.records is not None
    result.records_before = result.records_before if known else None
    result.records_after = (result.records_before or 0) - result.removed.total() if known else None
    result.bytes_after -= sum(each.size for each in found.going)
    result.segments_after -= len(found.going)
    result.notes += _reasons(found)


def _reasons(found: Expiry) -> list[str]:
    """A line for each reason: what goes by it."""
    by_base = {each.base_offset: each for each in found.going}
    notes = []
    for reason, decisions in groupby(found.decisions, key=lambda decision: decision.reason):
        going = [by_base[decision.base_offset] for decision in decisions]
        size = sum(each.size for each in going)
        segments = f"{len(going)} segment{'s' if len(going) > 1 else ''}"
        notes.append(f"retention: {segments} from offset {going[0].base_offset} ({size} bytes): {reason}")
    return notes


def _count(segment: Segment) -> int | None:
    """The segment's records, counted one by one where message sets do not say; None when it is damaged."""
    try:
        claimed = count_records(segment)
        return _decoded(segment) if claimed is None else claimed
    except CorruptFileError:
        return None


def _decoded(segment: Segment) -> int:
    with files.Reader(segment.path) as reader:
        return sum(
            len(decode_record_keys(part.data, part.batches, path=segment.path, origin=part.origin))
            for part in windows(reader)
        )
