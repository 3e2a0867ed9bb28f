"""Stretches of a log that tasks read: whole segments, or parts of one where there are too few for all tasks.

::

    segments      |------------------------|--------------|      two tasks, more bytes in the first segment
    splits     |--------------------|                         a cut between two batches, at an entry of the
                                       |---|--------------|      offset index, where a sound batch begins

An index that is missing, or names no such place, costs nothing but the balance. One that names a batch inside
of another one's value is found out: who reads up to that cut meets a batch that goes beyond it. The log is
extracted once more then, its segments whole.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from siltstone.base import files
from siltstone.base.errors import SiltstoneError
from siltstone.log.indexes import read_entries
from siltstone.log.names import segment_file
from siltstone.log.segments import Segment, Window, unchanged, windows

LEAST_BYTES = 16 << 20
"""What a part of a segment has to have to be a task's."""
_NEAR = 16
"""A border between segments is taken that is no further off than this part of a task's share."""
_FIRST_READ = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSplit:
    """Bytes ``start`` to ``behind`` of segment number ``segment``, which hold offsets ``first`` to ``end``
    (``behind`` and ``end`` not included)."""

    segment: int
    start: int
    behind: int
    first: int
    end: int


def whole(segments: Sequence[Segment], end: int) -> list[InputSplit]:
    """A split for each segment; ``end`` is the offset after the last one's."""
    firsts = [*(segment.base_offset for segment in segments), end]
    return [
        InputSplit(segment=number, start=0, behind=segment.size, first=firsts[number], end=firsts[number + 1])
        for number, segment in enumerate(segments)
    ]


def shares(segments: Sequence[Segment], end: int, tasks: int, *, may_cut: bool) -> list[list[InputSplit]]:
    """A log in up to ``tasks`` runs of neighbouring splits, of about the same number of bytes each.

    Segments are cut only where that ``may_cut`` (not where message sets are, whose entries do not say where
    they begin), and into parts of ``LEAST_BYTES`` or more.
    """
    total = sum(segment.size for segment in segments)
    tasks = max(1, min(tasks, max(len(segments), total // LEAST_BYTES)))
    share = total / tasks
    borders = np.cumsum([0, *(segment.size for segment in segments)])
    begins: dict[int, set[tuple[int, int]]] = {}
    for task in range(1, tasks):
        wanted = total * task // tasks
        nearest = int(np.argmin(np.abs(borders - wanted)))
        found = None
        if may_cut and share >= LEAST_BYTES and abs(int(borders[nearest]) - wanted) > share / _NEAR:
            number = int(np.searchsorted(borders, wanted, side="right")) - 1
            found = place_near(segments[number], wanted - int(borders[number]))
        if found is not None:
            begins.setdefault(number, set()).add(found)
        elif 0 < nearest < len(segments):
            begins.setdefault(nearest, set()).add((0, segments[nearest].base_offset))
    return [run for run in _cut(whole(segments, end), begins) if run]


def are_cut(runs: Sequence[Sequence[InputSplit]]) -> bool:
    """Does any of the runs begin within a segment?"""
    return any(split.start for run in runs for split in run)


def _cut(everything: Sequence[InputSplit], begins: dict[int, set[tuple[int, int]]]) -> list[list[InputSplit]]:
    """Runs that begin at places (position, offset) in segments, by their numbers."""
    runs: list[list[InputSplit]] = [[]]
    for split in everything:
        rest = split
        for position, offset in sorted(begins.get(split.segment, ())):
            if position:
                runs[-1].append(replace(rest, behind=position, end=offset))
                rest = replace(rest, start=position, first=offset)
            runs.append([])
        runs[-1].append(rest)
    return runs


def place_near(segment: Segment, position: int) -> tuple[int, int] | None:
    """The place nearest to byte ``position`` that the offset index names, where a v2 batch begins whose
    checksum holds: (position, base offset). None where the index names no such place."""
    path = Path(segment.directory) / segment_file(segment.base_offset, "index")
    try:
        entries = read_entries(files.read_bytes(path), "index", str(path))
        if not len(entries):
            return None
        entry = entries[np.argmin(np.abs(entries["position"].astype(np.int64) - position))]
        start, last = int(entry["position"]), segment.base_offset + int(entry["relative_offset"])
        with unchanged(segment) as reader:
            batch = next(windows(reader, start=start, window_size=_FIRST_READ)).batches[0]
    except (OSError, SiltstoneError, StopIteration):
        return None
    first = int(batch["base_offset"])
    if start <= 0 or batch["magic"] != 2 or not segment.base_offset < first <= last:
        return None
    return start, first


# ``log.cleaner.io.max.bytes.per.second``: a task reads and writes no faster than its share (Kafka's
# ``Throttler``).

IO_LIMIT = "log.cleaner.io.max.bytes.per.second"
UNLIMITED = math.inf
_LONGEST_SLEEP = 1.0
"""Seconds: an interrupt is noticed in between."""


def share_of_io(bytes_per_second: float, tasks: int) -> float:
    """What each of so many tasks may read and write, of the setting's value."""
    return UNLIMITED if bytes_per_second >= sys.float_info.max else bytes_per_second / max(tasks, 1)


class Pacer:
    """Holds back who has done more bytes than ``bytes_per_second`` allow since it began."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._began = time.monotonic() if bytes_per_second < UNLIMITED else 0.0
        self._bytes = 0

    def done(self, size: int) -> None:
        """So many bytes more were read or written: wait until they may have been."""
        if self._rate == UNLIMITED:
            return
        self._bytes += size
        while (ahead := self._bytes / self._rate - (time.monotonic() - self._began)) > 0:
            time.sleep(min(ahead, _LONGEST_SLEEP))


def paced_windows(
    reader: files.Reader,
    window_size: int,
    pacer: Pacer,
    *,
    span: tuple[int, int | None] = (0, None),
    verify: bool = True,
) -> Iterator[Window]:
    """``windows`` of a ``span`` of a segment (its first byte, and the one behind it), each handed on when its
    bytes may have been read."""
    start, behind = span
    for window in windows(reader, start=start, size=behind, window_size=window_size, verify=verify):
        pacer.done(len(window.data))
        yield window
