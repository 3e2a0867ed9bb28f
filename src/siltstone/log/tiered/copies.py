"""Chooses which remote segments make up a log below its local segments.

A remote storage has copies of segments by several leaders. Two of them may overlap, when another broker
became leader and copied its own segments, and some may hold records that no replica has any more, after an
unclean election. A log's leader epochs tell which records are its own: offset ``o`` is of the epoch that
starts last at or below ``o``. So a copy counts at an offset only if it has that epoch there, as in Kafka's
``RemoteLogManager``, which looks a segment up by epoch and offset::

    the log           epoch 0 from offset 0, epoch 2 from offset 100, local segments from offset 181
    copies            A: offsets 0–99, epoch 0
                      B: offsets 60–180, epoch 0, and epoch 2 from offset 100
                      C: offsets 0–130, epoch 0, and epoch 1 from offset 70, which the log does not have
    chosen            A for 0–99, then B for 100–180
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from siltstone.base.config import LONG_MAX

Epochs = Sequence[tuple[int, int]]
"""(leader epoch, its first offset), ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCopy:
    """A copy of a segment: offsets ``start_offset`` to ``end_offset``, both included.

    ``epochs``: those of its records, as in ``Epochs``; the first may begin before the copy does.
    ``event_ms``: when the segment was copied.
    """

    segment_id: str
    start_offset: int
    end_offset: int
    epochs: tuple[tuple[int, int], ...]
    event_ms: int = 0


class ChosenRange(NamedTuple):
    """Offsets ``first`` to ``last``, both included, are read from ``copy``."""

    copy: RemoteCopy
    first: int
    last: int


class OffsetGap(NamedTuple):
    """No copy has the offsets ``first`` to ``last``, both included."""

    first: int
    last: int


def choose(
    copies: Iterable[RemoteCopy], leader_epochs: Epochs, *, log_start: int, local_start: int | None
) -> list[ChosenRange | OffsetGap]:
    """The parts of the copies that make up the log from ``log_start`` to below ``local_start``, by offset.

    The first part begins where its copy does, maybe below ``log_start``, as a local segment may.

    ``leader_epochs``: the log's leader epochs; empty if they are unknown: then a newer leader's copy is taken
    before an older leader's. ``local_start``: the base offset of the first local segment, None if there is
    none. A log may begin above ``log_start``, so the offsets below its first copy are no gap; offsets between
    that copy and ``local_start`` that no copy has are a gap.
    """
    valid = sorted(
        itertools.chain.from_iterable(_valid_ranges(copy, leader_epochs) for copy in copies), key=_order
    )
    end = LONG_MAX if local_start is None else local_start
    chosen: list[ChosenRange | OffsetGap] = []
    offset = log_start
    while offset < end:
        covering = [part for part in valid if part.first <= offset <= part.last]
        if covering:
            best = max(covering, key=_reach if leader_epochs else _by_leader)
            first = offset if chosen else best.first
            chosen.append(ChosenRange(best.copy, first, min(best.last, end - 1)))
            offset = best.last + 1
            continue
        later = min((part.first for part in valid if part.first > offset), default=None)
        if later is None or later >= end:
            break
        if chosen:
            chosen.append(OffsetGap(offset, later - 1))
        offset = later
    if chosen and local_start is not None and offset < local_start:
        chosen.append(OffsetGap(offset, local_start - 1))
    return _merged(chosen)


def _order(part: ChosenRange) -> tuple[int, int]:
    return part.first, part.last


def _reach(part: ChosenRange) -> tuple[int, int, str]:
    """Sort key: the copy that reaches the furthest is the largest, then the newest one. The id decides
    between copies that are equal in both, so that every run chooses the same."""
    return part.last, part.copy.event_ms, part.copy.segment_id


def _by_leader(part: ChosenRange) -> tuple[int, int, int, str]:
    """Sort key: the copy of the newest leader is the largest, then as in ``_reach``."""
    return part.copy.epochs[-1][0] if part.copy.epochs else -1, *_reach(part)


def _valid_ranges(copy: RemoteCopy, leader_epochs: Epochs) -> list[ChosenRange]:
    """The offsets of a copy at which it has the log's own epoch; adjacent ones are one range."""
    if not leader_epochs or not copy.epochs:
        return [ChosenRange(copy, copy.start_offset, copy.end_offset)]
    log_spans = dict(_spans(leader_epochs, 0, LONG_MAX))
    parts: list[ChosenRange | OffsetGap] = []
    for epoch, (first, last) in _spans(copy.epochs, copy.start_offset, copy.end_offset):
        if epoch in log_spans:
            low, high = max(first, log_spans[epoch][0]), min(last, log_spans[epoch][1])
            if low <= high:
                parts.append(ChosenRange(copy, low, high))
    return [part for part in _merged(parts) if isinstance(part, ChosenRange)]


def _spans(epochs: Epochs, first: int, last: int) -> list[tuple[int, tuple[int, int]]]:
    """(epoch, (first offset, last offset)) of each epoch that has offsets from ``first`` to ``last``."""
    ends = [start - 1 for _, start in epochs[1:]] + [last]
    spans = (
        (epoch, (max(start, first), min(end, last))) for (epoch, start), end in zip(epochs, ends, strict=True)
    )
    return [(epoch, span) for epoch, span in spans if span[0] <= span[1]]


def _merged(parts: Sequence[ChosenRange | OffsetGap]) -> list[ChosenRange | OffsetGap]:
    """The parts, with consecutive ranges of the same copy joined to one range."""
    merged: list[ChosenRange | OffsetGap] = []
    for part in parts:
        before = merged[-1] if merged else None
        if (
            isinstance(part, ChosenRange)
            and isinstance(before, ChosenRange)
            and before.copy is part.copy
            and before.last + 1 == part.first
        ):
            merged[-1] = ChosenRange(part.copy, before.first, part.last)
        else:
            merged.append(part)
    return merged
