"""The parts of an explanation: bounds, groups, times, keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from siltstone import files
from siltstone.cleaner import plan
from siltstone.cleaner.explanation.model import (
    Bound,
    Frequency,
    GroupExplained,
    LogExplanation,
    Moment,
    Waiting,
)
from siltstone.cleaner.explanation.observing import Bins, Observed
from siltstone.cleaner.explanation.tallying import KeyTally
from siltstone.cleaner.facts import Choices, LogState, log_facts
from siltstone.cleaner.staging import Rewritten
from siltstone.cleaner.work import LogWork
from siltstone.config import LONG_MAX
from siltstone.log.directory import Checkpoints
from siltstone.log.lookup import position_of_offset
from siltstone.log.producers import producer_state
from siltstone.log.segments import first_batch_timestamp, largest_timestamp, segment_holding
from siltstone.records.decode import decode_records
from siltstone.records.scan import scan_batches

BINS = 60
KEY_BYTES_SHOWN = 64


def bins_of(work: LogWork) -> Bins:
    """Equal steps from the first batch's time to the largest one below the first uncleanable offset."""
    full = [segment for segment in work.segments if segment.size]
    first = first_batch_timestamp(full[0]) if full else None
    last = max((largest_timestamp(segment) for segment in full), default=work.now_ms)
    start = last if first is None else min(first, last)
    return Bins(start_ms=start, width_ms=max(1, -(-(last - start + 1) // BINS)), count=BINS)


def bounds_of(state: LogState, checkpoints: Checkpoints, choices: Choices, log: LogExplanation) -> None:
    """The offsets that bound the cleaning, each with its name, into ``log``."""
    assert state.config is not None
    segments = state.segments()
    if not segments:
        return
    producers = producer_state(state.path, segments)
    mark = checkpoints.high_watermark.get(state.where)
    facts = log_facts(state, checkpoints, segments, producers, LONG_MAX if mark is None else mark)
    lag = plan.LagLimits(
        min_ms=state.config.integer("min.compaction.lag.ms"),
        max_ms=state.config.integer("max.compaction.lag.ms"),
    )
    found = plan.cleanable_range(facts, lag, choices.now_ms)
    log.log_start_offset, log.log_end_offset = facts.log_start_offset, facts.log_end_offset
    log.first_dirty_offset, log.first_uncleanable_offset = found.first_dirty, found.end
    log.dirty_ratio, log.overdue_ms, log.cleanable_bytes = (
        found.dirty_ratio,
        found.delay_ms,
        found.cleanable_bytes,
    )
    log.min_dirty_ratio = state.config.number("min.cleanable.dirty.ratio")
    log.bounds = [Bound(name="active segment", offset=segments[-1].base_offset)]
    if mark is not None:
        log.bounds.append(Bound(name="high watermark", offset=mark))
    opened = producers.first_open_transaction()
    if opened is not None:
        log.bounds.append(Bound(name="open transaction", offset=opened))
    if found.end < min(bound.offset for bound in log.bounds) and lag.min_ms > 0:
        log.bounds.append(Bound(name="min.compaction.lag.ms", offset=found.end))
    log.bounds.sort(key=lambda bound: bound.offset)


def groups_of(work: LogWork, done: Sequence[Rewritten]) -> list[GroupExplained]:
    """The groups, each with what becomes of it."""
    found = []
    for each in sorted(done, key=lambda group: group.group):
        group = work.groups[each.group]
        members = work.segments[group.first : group.last]
        reasons = ("superseded", "tombstones", "aborted", "keyless", "markers")
        found.append(
            GroupExplained(
                base_offset=group.base_offset,
                end_offset=group.end_offset,
                segments=len(members),
                bytes_before=sum(segment.size for segment in members),
                bytes_after=each.size,
                records_before=each.records,
                records_after=each.kept,
                removed={name: getattr(each, name) for name in reasons},
            )
        )
    return found


def moments(bins: Bins, observed: Observed, tally: KeyTally) -> list[Moment]:
    """Sums up to the end of each bin; tombstones whose window has passed count at the end."""
    superseded = tally.superseded_by_bin or [0] * bins.count
    free = np.cumsum([a + b for a, b in zip(superseded, observed.lost, strict=True)])
    written = np.cumsum(observed.written)
    if len(free):
        free[-1] += tally.tombstones_size
    return [
        Moment(
            at_ms=bins.start_ms + (number + 1) * bins.width_ms - 1,
            written_bytes=int(written[number]),
            reclaimable_bytes=int(free[number]),
        )
        for number in range(bins.count)
    ]


def waiting(observed: Observed) -> list[Waiting]:
    """Tombstones by the horizon that they wait for."""
    return [
        Waiting(at_ms=horizon, tombstones=count, bytes=size)
        for horizon, (count, size) in sorted(observed.waiting.items())
    ]


def frequencies(tally: KeyTally) -> list[Frequency]:
    """How many keys have 1, 2, 3–4, 5–8, … records."""
    found = []
    for step, keys in enumerate(tally.by_frequency):
        least = 1 if step == 0 else (1 << (step - 1)) + 1
        if keys:
            found.append(Frequency(records_from=least, records_to=1 << step, keys=keys))
    return found


def key_text(work: LogWork, offset: int) -> str:
    """The key of one record for people: its text, or hexadecimal digits; long ones are cut.

    Raises CorruptFileError, OSError.
    """
    segment = work.segments[segment_holding(list(work.segments), offset)]
    with files.Reader(segment.path) as reader:
        place = position_of_offset(reader, offset, end=segment.size)
        if place is None:
            return ""
        window = np.empty(place.size, np.uint8)
        reader.read_into(window, place.position)
    columns = decode_records(
        window,
        scan_batches(window).batches,
        limit=work.batch_limit,
        path=segment.path,
        origin=place.position,
    )
    rows = np.flatnonzero(columns.offset == offset)
    key = columns.key(int(rows[0])) if len(rows) else None
    if key is None:
        return ""
    cut = "…" if len(key) > KEY_BYTES_SHOWN else ""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and text:
        return text[:KEY_BYTES_SHOWN] + ("…" if len(text) > KEY_BYTES_SHOWN else "")
    return f"0x{key[:KEY_BYTES_SHOWN].hex()}{cut}" if key else '""'
