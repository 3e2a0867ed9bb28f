"""From bounds as people give them to offsets, as Spark's Kafka source does it (``KafkaOffsetReader``).

Offsets that are given for partitions have to name every chosen one and no other. What is no longer in the
log, or not yet, is loss of data where ``failOnDataLoss`` says so. Gaps that cleaning left are none.
"""

from __future__ import annotations

from typing import NamedTuple

from siltstone.errors import OffsetOutOfRangeError, UsageError
from siltstone.log.names import TopicPartition
from siltstone.log.service.read_only import ReadOnlyLog
from siltstone.tables.choice import EARLIEST, LATEST, Bound
from siltstone.tables.opened import Logs, readable_end
from siltstone.tables.options import LATEST_VIEW, ReadOptions


class OffsetRange(NamedTuple):
    """Offsets ``[start, end)`` of one partition."""

    start: int
    end: int


def find_ranges(logs: Logs, options: ReadOptions) -> dict[TopicPartition, OffsetRange]:
    """What is to be read of each log. Raises UsageError, OffsetOutOfRangeError."""
    for bound, name in ((options.starting, "starting"), (options.ending, "ending"), (options.as_of, "asOf")):
        _refuse_others(bound, logs, name)
    found = {}
    for where, log in logs.items():
        start = start_offset(log, options)
        end = _as_of(log, options) if options.as_of is not None else _end_offset(log, options)
        found[where] = OffsetRange(start, max(start, end))
    return found


def _refuse_others(bound: Bound | None, logs: Logs, name: str) -> None:
    if bound is None or bound.every is not None or set(bound.each) == set(logs):
        return
    missing = ", ".join(str(each) for each in sorted(set(logs) - set(bound.each)))
    too_many = ", ".join(str(each) for each in sorted(set(bound.each) - set(logs)))
    raise UsageError(
        f"{name} offsets must name every partition that is read, and no other"
        + (f"; missing: {missing} (-2 is the earliest, -1 the latest)" if missing else "")
        + (f"; not read: {too_many}" if too_many else "")
    )


def start_offset(log: ReadOnlyLog, options: ReadOptions) -> int:
    """Where reading starts. Raises OffsetOutOfRangeError, UsageError where no record is that late."""
    first, limit = log.log_start_offset, readable_end(log, options.isolation)
    given = None if options.starting is None else options.starting.of(log.where)
    if options.starting is None or given is None:
        return first
    if not options.starting.is_time:
        return first if given == EARLIEST else limit if given == LATEST else _inside(log, given, options)
    place = log.offset_for_time(given)
    if place is not None:
        return min(max(place.offset, first), limit)
    if options.latest_without_match:
        return limit
    raise UsageError(
        f"{log.where}: no record at or after {given} ms; "
        "startingOffsetsByTimestampStrategy=latest starts at the end then"
    )


def _end_offset(log: ReadOnlyLog, options: ReadOptions) -> int:
    limit = readable_end(log, options.isolation)
    given = None if options.ending is None else options.ending.of(log.where)
    if options.ending is None or given is None:
        return limit
    if not options.ending.is_time:
        return limit if given == LATEST else _inside(log, given, options)
    place = log.offset_for_time(given)
    return limit if place is None else min(place.offset, limit)


def _inside(log: ReadOnlyLog, offset: int, options: ReadOptions) -> int:
    """An offset that was given, if the log has it."""
    first, limit = log.log_start_offset, readable_end(log, options.isolation)
    if first <= offset <= limit:
        return offset
    if options.fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"{log.where}: offset {offset} is outside {first} to {limit}: deleted, or not there yet; "
            "failOnDataLoss=false reads what there is"
        )
    return min(max(offset, first), limit)


def _as_of(log: ReadOnlyLog, options: ReadOptions) -> int:
    """The end of the log as it was: behind an offset, or before the first record that is later."""
    assert options.as_of is not None
    limit, given = readable_end(log, options.isolation), options.as_of.of(log.where)
    assert given is not None
    if options.as_of.is_time:
        place = log.offset_for_time(given + 1)
        end = limit if place is None else min(place.offset, limit)
    else:
        end = min(given + 1, limit)
    if options.fail_on_data_loss:
        _refuse_unknown_past(log, end, options)
    return end


def _refuse_unknown_past(log: ReadOnlyLog, end: int, options: ReadOptions) -> None:
    """A state is only known where nothing has gone that belonged to it."""
    if end < log.log_start_offset:
        raise OffsetOutOfRangeError(
            f"{log.where}: as of offset {end - 1}, but all before {log.log_start_offset} was deleted; "
            "failOnDataLoss=false reads what there is"
        )
    cleaned = log.first_dirty_offset
    if options.view == LATEST_VIEW and end < cleaned:
        raise OffsetOutOfRangeError(
            f"{log.where}: as of offset {end - 1}, but the log is cleaned up to {cleaned}: values that were "
            "the latest then may have gone; failOnDataLoss=false reads what there is"
        )
