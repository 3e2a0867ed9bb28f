"""Tombstones that may go although nothing new was written (Kafka leaves them there for ever).

A cleaning stamps a batch with tombstones, or with a transaction's marker, with the time from which they may
go: the delete horizon, attribute bit 6 and the base timestamp of its header. On a log that is idle nothing
takes them away then. So a log becomes eligible as well once all its horizons have passed and something is
there that goes.

Finding that out reads the headers of the clean part. A stamp stays when its tombstones have gone, so the
batches that are stamped and past their horizon are decoded as well: else such a log would be cleaned for
ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from siltstone import files
from siltstone.config import LONG_MAX
from siltstone.log.lookup import batch_headers
from siltstone.log.segments import Segment, unchanged, windows
from siltstone.records.codecs import DEFAULT_LIMIT, Scratch
from siltstone.records.decode import decode_records
from siltstone.records.layout import CONTROL_BIT, Directory, delete_horizons
from siltstone.records.pieces import pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizons:
    """Of a log's clean part: ``newest_ms``, the latest delete horizon, None when nothing is stamped.

    ``is_due``: all of them have passed, and a tombstone or a marker is there that a cleaning removes.
    """

    newest_ms: int | None = None
    is_due: bool = False


def find_horizons(
    segments: Sequence[Segment],
    end: int,
    now_ms: int,
    tombstones_from: int = LONG_MAX,
    batch_limit: int = DEFAULT_LIMIT,
) -> Horizons:
    """The horizons below offset ``end``, as of ``now_ms``; tombstones from ``tombstones_from`` on stay.

    ``batch_limit``: what one batch may decompress to, in bytes. Raises CorruptFileError, OSError.
    """
    stamped = []
    newest: int | None = None
    for segment in segments:
        if segment.base_offset < end and segment.size:
            latest = _newest_in(segment)
            if latest is not None:
                stamped.append(segment)
                newest = latest if newest is None else max(newest, latest)
    if newest is None or newest > now_ms:
        return Horizons(newest_ms=newest)
    due = (_has_something_to_remove(each, tombstones_from, batch_limit) for each in stamped)
    return Horizons(newest_ms=newest, is_due=any(due))


def _is_stamped(batches: Directory) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """The batches with a horizon; those that were emptied hold nothing that could go."""
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = delete_horizons(batches) & (batches["count"] > 0)
    return found


def _newest_in(segment: Segment) -> int | None:
    newest = None
    with files.Reader(segment.path) as reader:
        for batches in batch_headers(reader, end=segment.size):
            horizons = batches["base_timestamp"][_is_stamped(batches)]
            if len(horizons):
                newest = max(int(horizons.max()), newest if newest is not None else int(horizons[0]))
    return newest


def _has_something_to_remove(segment: Segment, tombstones_from: int, limit: int) -> bool:
    scratch = Scratch()
    with unchanged(segment) as reader:
        for window in windows(reader):
            batches = window.batches[np.flatnonzero(_is_stamped(window.batches))]
            if not len(batches):
                continue
            if (batches["attributes"] & CONTROL_BIT).any():
                return True
            batches = batches[batches["last_offset"] < tombstones_from]
            for part in pieces(window.data, batches):
                columns = decode_records(
                    window.data, batches[part], scratch, limit=limit, path=segment.path, origin=window.origin
                )
                if ((columns.value_size < 0) & (columns.key_size >= 0)).any():
                    return True
    return False
