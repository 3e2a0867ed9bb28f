"""The tail of a log as files that nobody can take away while it is compacted.

Cleaning, retention and truncation rename and remove segments, so a run begins with names of its own for those
that it needs: hard links in its folder. The segment that is appended to may be among them; it is read up to
where it was when the run began. Where a file system has no links the segments' own names do, and a run fails
when one of them goes.
"""

from __future__ import annotations

import bisect
import errno
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from siltstone import files
from siltstone.compacted.work import Group, Source
from siltstone.errors import SourceChangedError
from siltstone.log.fetch import LogView
from siltstone.log.indexes import TRANSACTION_ENTRY
from siltstone.log.live_segment import LiveSegment
from siltstone.log.names import segment_file
from siltstone.log.reading import HasView

_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES)
_TRIES = 20
LEAST_GROUP_BYTES, MOST_GROUP_BYTES = 32 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What is to be compacted: offsets [first, end) in ``sources``; ``aborted``: entries of ``.txnindex``."""

    first: int
    end: int
    sources: tuple[Source, ...]
    aborted: bytes


def end_of(view: LogView) -> int:
    """Up to where a log may be compacted: what is replicated, and no transaction is open in.

    Not below the log's start: of a transaction that began before it that much was given up.
    """
    return max(min(view.high_watermark, view.last_stable_offset), view.log_start_offset)


def hold_tail(log: HasView, horizon: int | None, folder: Path) -> Tail:
    """Links to the segments that hold what is at or above ``horizon`` (None: the log's start).

    Raises SourceChangedError when segments went again and again while they were being linked, OSError.
    """
    for attempt in range(_TRIES):
        view = log.view
        first = max(view.log_start_offset, horizon or 0)
        end = max(end_of(view), first)
        place = folder / f"sources-{attempt}"
        files.make_directory(place)
        try:
            sources = _link_all(view, first, end, place)
            aborted = _aborted(view, first)
        except FileNotFoundError:
            continue
        if sources is not None:
            return Tail(first=first, end=end, sources=sources, aborted=aborted)
    raise SourceChangedError(f"{folder}: segments were replaced while they were being held; run again")


def _link_all(view: LogView, first: int, end: int, folder: Path) -> tuple[Source, ...] | None:
    """None when a name was another file's by the time that it was linked."""
    bases = [segment.base_offset for segment in view.segments]
    found = []
    for number in range(max(bisect.bisect_right(bases, first) - 1, 0), len(bases)):
        if bases[number] >= end:
            break
        segment, size = view.segments[number], view.size_of(number)
        place = segment.place_of(first, size) if size else None
        if place is None:
            continue
        until = segment.place_of(end, size)
        path = _link(segment, folder)
        if path is None:
            return None
        found.append(
            Source(
                path=str(path),
                base_offset=bases[number],
                end_offset=bases[number + 1] if number + 1 < len(bases) else view.log_end_offset,
                start=place.position,
                size=size if until is None else until.position + until.size,
                inode=segment.reader.stat.inode,
            )
        )
    return tuple(found)


def _link(segment: LiveSegment, folder: Path) -> Path | None:
    """A name of ours for the segment's file; None when its own name is another file's by now."""
    wanted = segment.reader.stat.inode
    path = folder / segment_file(segment.base_offset, "log")
    try:
        files.link(segment.path(), path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        path = segment.path()
    return path if files.stat(path).inode == wanted else None


def _aborted(view: LogView, first: int) -> bytes:
    """The aborted transactions that ended at or above ``first``, in the form of ``.txnindex`` files."""
    rows = [(0, *row) for segment in view.segments for row in segment.aborted() if row[2] >= first]
    return np.array(rows, TRANSACTION_ENTRY).tobytes()


def groups_of(sources: Sequence[Source], end: int, workers: int) -> tuple[Group, ...]:
    """Runs of neighbouring sources of about the same size, a few for each worker; ``end`` is the last's."""
    total = sum(source.size - source.start for source in sources)
    target = min(max(total // (4 * workers), LEAST_GROUP_BYTES), MOST_GROUP_BYTES)
    firsts, size = [0] if sources else [], 0
    for number, source in enumerate(sources):
        if size and size + (source.size - source.start) // 2 > target:
            firsts.append(number)
            size = 0
        size += source.size - source.start
    bounds = itertools.pairwise([*firsts, len(sources)])
    return tuple(
        Group(
            index=index,
            first=first,
            last=last,
            base_offset=sources[first].base_offset,
            end_offset=sources[last].base_offset if last < len(sources) else end,
        )
        for index, (first, last) in enumerate(bounds)
    )
