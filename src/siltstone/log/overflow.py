"""Segments whose offsets no index can tell: split (Kafka's ``UnifiedLog.splitOverflowedSegment``).

An index has four bytes for an offset less the segment's base. Brokers before 1.1 could write, and clean
together, segments that reach further. Such a segment is split into several, batch by batch as they lie::

    base 0: 0 … 2147483647 … 4000000000      ──►      base 0 · base 2147483650

by the swap of ``replacement``: until the last of the new ones is swapped in, a start finds the old one.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from siltstone import files
from siltstone.config import INT_MAX
from siltstone.log.indexes import IndexBuilder, read_entries
from siltstone.log.lookup import batch_headers
from siltstone.log.names import STAGING, segment_file
from siltstone.log.replacement import adopt, replace_segments
from siltstone.log.segments import Segment, windows
from siltstone.records.layout import Directory

FOLDER = "split"


def overflowed(segments: Sequence[Segment]) -> list[Segment]:
    """The closed segments (all but the last) with offsets more than 2³¹-1 above their base.

    Only those are read, their headers, that could be. Raises CorruptRecordError, OSError.
    """
    pairs = itertools.pairwise(segments)
    wide = [each for each, following in pairs if following.base_offset - each.base_offset > INT_MAX + 1]
    return [each for each in wide if _last_offset(each) - each.base_offset > INT_MAX]


def _last_offset(segment: Segment) -> int:
    last = segment.base_offset
    with files.Reader(segment.path) as reader:
        for batches in batch_headers(reader):
            last = int(batches["last_offset"][-1])
    return last


class _Part:
    """One new segment while it is written, and its indexes."""

    def __init__(self, folder: Path, base_offset: int, interval: int, index_bytes: int) -> None:
        self.base_offset = base_offset
        self.end = base_offset
        self.indexes = IndexBuilder(base_offset, interval, index_bytes)
        self.writer = files.Writer(folder / segment_file(base_offset, "log"))

    def put(self, data: np.ndarray[tuple[int], np.dtype[np.uint8]], batches: Directory) -> None:
        """Batches that lie one behind the other in ``data``."""
        first, last = batches[0], batches[-1]
        self.writer.write(data[int(first["position"]) : int(last["position"]) + int(last["size"])])
        self.indexes.add_directory(batches)
        self.end = int(last["last_offset"]) + 1


def split_overflowed(directory: Path, segment: Segment, *, interval: int, index_bytes: int) -> list[int]:
    """Split one overflowed segment; the new base offsets.

    ``interval`` and ``index_bytes`` are ``index.interval.bytes`` and ``segment.index.bytes``. The first part
    keeps the base where a batch of it fits there. Raises CorruptRecordError, OSError; the log is whole then.
    """
    folder = directory / STAGING / FOLDER
    if files.exists(folder):
        files.remove_tree(folder)
    files.make_directory(folder, parents=True)
    bases = [part.base_offset for part in _write_parts(folder, segment, interval, index_bytes)]
    files.sync_directory(folder)
    kinds = ("log", "index", "timeindex", "txnindex")
    staged = {
        base: {kind: path for kind in kinds if files.exists(path := folder / segment_file(base, kind))}
        for base in bases
    }
    adopt(directory, staged)
    files.remove_tree(folder)
    if not files.entries(directory / STAGING):
        files.remove_tree(directory / STAGING)
    replace_segments(directory, bases, [segment.base_offset])
    return bases


def _write_parts(folder: Path, segment: Segment, interval: int, index_bytes: int) -> list[_Part]:
    parts: list[_Part] = []
    with contextlib.ExitStack() as stack, files.Reader(segment.path) as reader:
        for window in windows(reader):
            batches = window.batches
            while len(batches):
                base = parts[-1].base_offset if parts else segment.base_offset
                fits = int(np.searchsorted(batches["last_offset"], base + INT_MAX, side="right"))
                if not fits or not parts:
                    start = base if fits else int(batches["base_offset"][0])
                    parts.append(_Part(folder, start, interval, index_bytes))
                    stack.enter_context(parts[-1].writer)
                    continue
                parts[-1].put(window.data, batches[:fits])
                batches = batches[fits:]
        for part in parts:
            _finish(folder, part, segment)
    return parts


def _finish(folder: Path, part: _Part, segment: Segment) -> None:
    """The part's indexes, and of the old transaction index what ended in it; all of it durable."""
    indexes = part.indexes.finish()
    built = {"index": indexes.offset_index, "timeindex": indexes.time_index}
    if segment.transaction_index_size:
        path = Path(segment.directory) / segment_file(segment.base_offset, "txnindex")
        entries = read_entries(files.read_bytes(path), "txnindex", str(path))
        last = entries["last_offset"]
        built["txnindex"] = entries[(last >= part.base_offset) & (last < part.end)].tobytes()
    paths = [folder / segment_file(part.base_offset, "log")]
    for kind, data in built.items():
        if data or kind != "txnindex":
            paths.append(folder / segment_file(part.base_offset, kind))
            files.write_new(paths[-1], data)
    part.writer.sync()
    for path in paths:
        files.copy_attributes(segment.path, path)
        files.set_modified(path, segment.modified_ns)
        files.sync_file(path)
