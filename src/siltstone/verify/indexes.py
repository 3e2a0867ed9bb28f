"""Does a reader who goes by a segment's indexes see everything? And are they what its log gives?

Sound, whatever ``index.interval.bytes`` was: an offset entry (o, position) points at a batch, and all batches
before it end below o; a time entry (t, o) has no batch before o's that is younger than t. Where the interval
is known, a rewritten segment's indexes must be those that its log gives, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from siltstone.base import files
from siltstone.base.errors import CorruptFileError
from siltstone.base.records.layout import Directory, Int64
from siltstone.log.indexes import IndexBuilder, read_entries
from siltstone.log.lookup import batch_headers
from siltstone.log.names import segment_file
from siltstone.log.segments import Segment
from siltstone.verify.findings import Findings
from siltstone.verify.pairs import LogPair


def check_indexes(pair: LogPair, number: int, findings: Findings) -> None:
    """The offset and the time index of segment ``number`` of AFTER, whose log is sound. Raises OSError."""
    segment = pair.after[number]
    is_active = number == len(pair.after) - 1
    with files.Reader(segment.path) as reader:
        parts = list(batch_headers(reader, end=segment.size))
    wanted = _wanted(pair, segment, parts)
    for kind, problem, check in (
        ("index", "index", _check_offsets),
        ("timeindex", "time_index", _check_times),
    ):
        path = Path(segment.directory) / segment_file(segment.base_offset, kind)
        try:
            data = files.read_bytes(path)
        except FileNotFoundError:
            if segment.size:
                findings.add(problem, "is missing", path=str(path))
            continue
        try:
            entries = read_entries(data, kind, str(path))
            for row, detail in check(parts, segment, entries, is_active):
                findings.add(problem, detail, path=str(path), position=row * entries.itemsize)
        except CorruptFileError as error:
            findings.add(problem, error.reason, path=str(path), position=error.position)
        if wanted.get(kind, data) != data:
            findings.add(problem, "is not what its log gives", path=str(path))


def _wanted(pair: LogPair, segment: Segment, parts: list[Directory]) -> dict[str, bytes]:
    """What the indexes of a rewritten segment must be, where the interval is known."""
    interval = pair.terms.index_interval
    if interval is None or segment.base_offset >= pair.rewritten_end or not pair.was_cleaned:
        return {}
    builder = IndexBuilder(segment.base_offset, interval, pair.terms.index_bytes)
    for part in parts:
        builder.add_directory(part)
    built = builder.finish()
    return {"index": built.offset_index, "timeindex": built.time_index}


def _joined(parts: list[Directory], name: str) -> Int64:
    return np.concatenate([*(part[name] for part in parts), np.empty(0, np.int64)]).astype(np.int64)


def _check_offsets(
    parts: list[Directory], segment: Segment, entries: Directory, is_active: bool
) -> Iterator[tuple[int, str]]:
    """Offset entries that lead past a record, with their rows."""
    positions, last = _joined(parts, "position"), _joined(parts, "last_offset")
    offsets = entries["relative_offset"].astype(np.int64) + segment.base_offset
    at = entries["position"].astype(np.int64)
    if not len(entries):
        return
    if not len(positions):
        yield 0, "an entry for a segment without a batch"
        return
    where = np.searchsorted(positions, at).clip(max=len(positions) - 1)
    previous = np.where(where > 0, last[np.maximum(where - 1, 0)], segment.base_offset - 1)
    for bad, detail in (
        (positions[where] != at, "points at no batch"),
        (previous >= offsets, "points behind its offset"),
        (offsets > last[-1], "is of an offset behind the segment's last"),
    ):
        rows = np.flatnonzero(bad)
        if len(rows):
            yield int(rows[0]), f"an entry {detail}"
            return


def _check_times(
    parts: list[Directory], segment: Segment, entries: Directory, is_active: bool
) -> Iterator[tuple[int, str]]:
    """Time entries that lead past a record; the last one of a closed segment is its largest timestamp."""
    last, stamps = _joined(parts, "last_offset"), _joined(parts, "max_timestamp")
    times = entries["timestamp"].astype(np.int64)
    offsets = entries["relative_offset"].astype(np.int64) + segment.base_offset
    if len(entries):
        before = np.searchsorted(last, offsets)  # batches that end below the entry's offset
        youngest = np.concatenate((np.array([-1], np.int64), np.maximum.accumulate(stamps)))
        for bad, detail in (
            (youngest[before] > times, "has an older time than a batch before it"),
            (offsets > (last[-1] if len(last) else -1), "is of an offset behind the segment's last"),
        ):
            rows = np.flatnonzero(bad)
            if len(rows):
                yield int(rows[0]), f"an entry {detail}"
                return
    largest = int(stamps.max(initial=-1))
    if not is_active and largest > 0 and (not len(times) or int(times[-1]) != largest):
        yield max(len(entries) - 1, 0), "does not end with the segment's largest timestamp"
