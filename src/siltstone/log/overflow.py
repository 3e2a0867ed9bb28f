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

from siltstone.base import files
from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.decode import decode_record_keys
from siltstone.base.records.layout import Directory
from siltstone.log.directory import has_own_folder
from siltstone.log.indexes import LARGEST_RELATIVE_OFFSET, IndexBuilder, read_entries
from siltstone.log.lookup import batch_headers
from siltstone.log.names import STAGING, segment_file
from siltstone.log.replacement import adopt, replace_segments
from siltstone.log.segments import Segment, Window, windows

FOLDER = "split"


def overflowed(segments: Sequence[Segment]) -> list[Segment]:
    """The closed segments (all but the last) with offsets more than 2³¹-1 above their base.

    Only those are read, their headers, that could be. Raises CorruptRecordError where bytes make no sense or
    offsets reach into the next segment, OSError.
    """
    return [each for each, following in itertools.pairwise(segments) if _reaches_too_far(each, following)]


def could_overflow(segment: Segment, following: Segment) -> bool:
    """Is the next segment so far above that this one's offsets could be too far apart?"""
    return following.base_offset - segment.base_offset > LARGEST_RELATIVE_OFFSET + 1


def _reaches_too_far(segment: Segment, following: Segment) -> bool:
    if not could_overflow(segment, following):
        return False
    last, position = segment.base_offset, 0
    with files.Reader(segment.path) as reader:
        for batches in batch_headers(reader):
            last, position = int(batches["last_offset"][-1]), int(batches["position"][-1])
    if last >= following.base_offset:
        reason = f"offset {last} cannot be in this segment: the next one begins at {following.base_offset}"
        raise CorruptRecordError(segment.path, position, reason)
    return last - segment.base_offset > LARGEST_RELATIVE_OFFSET


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
    keeps the base where a batch of it fits there. Raises CorruptRecordError, DirectoryRefusedError (something
    else has our folder's name), OSError; the log is whole then.
    """
    folder = directory / STAGING / FOLDER
    if has_own_folder(directory) and files.exists(folder):
        files.remove_tree(folder)
    files.make_directory(folder, parents=True)
    try:
        bases = [part.base_offset for part in _write_parts(folder, segment, interval, index_bytes)]
    except CorruptRecordError:
        _clear_away(folder)
        raise
    files.sync_directory(folder)
    kinds = ("log", "index", "timeindex", "txnindex")
    staged = {
        base: {kind: path for kind in kinds if files.exists(path := folder / segment_file(base, kind))}
        for base in bases
    }
    adopt(directory, staged)
    _clear_away(folder)
    replace_segments(directory, bases, [segment.base_offset])
    return bases


def _clear_away(folder: Path) -> None:
    files.remove_tree(folder)
    if not files.entries(folder.parent):
        files.remove_tree(folder.parent)


def _write_parts(folder: Path, segment: Segment, interval: int, index_bytes: int) -> list[_Part]:
    parts: list[_Part] = []
    following = segment.base_offset
    with contextlib.ExitStack() as stack, files.Reader(segment.path) as reader:
        for window in windows(reader):
            batches = window.batches
            following = _following_in_order(segment, batches, following, window.origin)
            while len(batches):
                base = parts[-1].base_offset if parts else segment.base_offset
                fits = int(
                    np.searchsorted(batches["last_offset"], base + LARGEST_RELATIVE_OFFSET, side="right")
                )
                if not fits or not parts:
                    least = parts[-1].end if parts else base
                    start = base if fits else _first_offset(segment, window, batches, least)
                    parts.append(_Part(folder, start, interval, index_bytes))
                    stack.enter_context(parts[-1].writer)
                    continue
                parts[-1].put(window.data, batches[:fits])
                batches = batches[fits:]
        for part in parts:
            _finish(folder, part, segment)
    return parts


def _first_offset(segment: Segment, window: Window, batches: Directory, least: int) -> int:
    """The offset of the first record in ``batches``, which is not below ``least``.

    A compressed message set (v0, v1) is stored under its last message's offset: a segment named after that
    would begin below its name. Kafka looks inside too (``AbstractLegacyRecordBatch.baseOffset``). Raises
    CorruptRecordError.
    """
    first, last = int(batches["base_offset"][0]), int(batches["last_offset"][0])
    if int(batches["magic"][0]) < 2:
        columns = decode_record_keys(window.data, batches[:1], path=segment.path, origin=window.origin)
        first = int(columns.offset[0]) if len(columns) else first
    if first < least or last - first > LARGEST_RELATIVE_OFFSET:
        position = window.origin + int(batches["position"][0])
        reason = f"offsets {first} to {last} of one batch: below {least}, or too far apart for any index"
        raise CorruptRecordError(segment.path, position, reason)
    return first


def _following_in_order(segment: Segment, batches: Directory, following: int, origin: int) -> int:
    """The offset behind the batches, which begin at ``following`` or above. Raises CorruptRecordError."""
    behind = np.append(following, batches["last_offset"] + 1)
    back = np.flatnonzero(batches["base_offset"] < behind[:-1])
    if len(back):
        base, position = (int(batches[name][back[0]]) for name in ("base_offset", "position"))
        raise CorruptRecordError(segment.path, origin + position, f"base offset {base} goes back")
    return int(behind[-1])


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
            with files.Writer(paths[-1]) as writer:
                writer.write(data)
    for path in paths:
        files.copy_attributes(segment.path, path)
        files.set_modified(path, segment.modified_ns)
    files.sync_files(paths)
