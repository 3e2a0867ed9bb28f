"""How much of a log the next compaction would read: the backlog of Pulsar's ``__compaction`` cursor."""

from __future__ import annotations

from siltstone.log import fetch
from siltstone.log.fetch import LogView


def backlog_bytes(view: LogView, horizon: int | None) -> int:
    """Bytes from the batch that holds ``horizon`` (None: never compacted) up to what is committed.

    Beyond the high watermark and the first open transaction nothing is compacted, so nothing is counted.
    Raises CorruptRecordError, OSError.
    """
    start = max(view.log_start_offset, horizon or 0)
    end = min(view.high_watermark, view.last_stable_offset)
    return max(_position(view, end) - _position(view, start), 0) if start < end else 0


def _position(view: LogView, offset: int) -> int:
    """Where the batch that holds ``offset`` begins, counted over all segments."""
    sizes = [view.size_of(number) for number in range(len(view.segments))]
    if offset >= view.log_end_offset:
        return sum(sizes)
    whole = view._replace(high_watermark=view.log_end_offset, last_stable_offset=view.log_end_offset)
    found = fetch.read(whole, offset, 1, whole_first=False)
    if found.slice is None or found.segment is None:
        return sum(sizes)
    before = [each.base_offset for each in view.segments].index(found.segment.base_offset)
    return sum(sizes[:before]) + found.slice.position
