"""Splitting segments whose offsets do not fit into an index (``UnifiedLog.splitOverflowedSegment``).

An index stores offsets relative to the segment's base offset, in four bytes (signed). Brokers before 1.1
could write a segment whose relative offsets are larger, also by cleaning several segments into one. Such a
segment is *overflowed*. It is split between two batches, into segments whose offsets fit::

    base 0: 0 … 2147483647, 2147483650 … 4000000000      ──►      base 0 · base 2147483650

The swap of ``replacement`` replaces the old segment by the new ones, so after a crash the log has either the
old segment or the new ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from siltstone.base import files
from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.decode import decode_record_keys
from siltstone.base.records.layout import BatchHeaders
from siltstone.log.directory import has_siltstone_folder
from siltstone.log.indexes import LARGEST_RELATIVE_OFFSET, IndexBuilder, read_entries
from siltstone.log.lookup import batch_headers, read_batch
from siltstone.log.names import STAGING, segment_file
from siltstone.log.replacement import rename_to_cleaned, replace_segments
from siltstone.log.segments import Segment, windows


class _NewSegment(NamedTuple):
    """A new segment: its base offset, and which bytes [start, end) of the old segment's log it gets."""

    base_offset: int
    start_position: int
    end_position: int


def overflowed_segments(segments: Sequence[Segment]) -> list[Segment]:
    """The closed segments (all but the last) with offsets more than 2³¹-1 above their base offset.

    Reads the batch headers of segments that ``could_overflow``. Raises CorruptRecordError for damage and for
    offsets that reach into the next segment, OSError.
    """
    overflowed = []
    for segment, next_segment in itertools.pairwise(segments):
        if not could_overflow(segment, next_segment):
            continue
        last_offset, position = segment.base_offset, 0
        with files.Reader(segment.path) as reader:
            for batches in batch_headers(reader):
                last_offset, position = int(batches["last_offset"][-1]), int(batches["position"][-1])
        if last_offset >= next_segment.base_offset:
            reason = (
                f"offset {last_offset} is not below {next_segment.base_offset}, the base offset of the next "
                "segment"
            )
            raise CorruptRecordError(segment.path, position, reason)
        if last_offset - segment.base_offset > LARGEST_RELATIVE_OFFSET:
            overflowed.append(segment)
    return overflowed


def could_overflow(segment: Segment, next_segment: Segment) -> bool:
    """Is the next segment's base offset so high that this segment may have offsets too far apart?"""
    # The segment's largest possible offset is one below the next base offset: hence the 1.
    return next_segment.base_offset - segment.base_offset > LARGEST_RELATIVE_OFFSET + 1


def split_overflowed_segment(
    directory: Path, segment: Segment, *, index_interval: int, index_bytes: int
) -> list[int]:
    """Split one overflowed segment; returns the base offsets of the new segments.

    ``index_interval`` and ``index_bytes`` are ``index.interval.bytes`` and ``segment.index.bytes``. The first
    new segment keeps the base offset if the first batch fits. Raises CorruptRecordError, and
    DirectoryRefusedError if something else has the name of Siltstone's folder: the log is unchanged then.
    Raises OSError: the swap may be unfinished then, and recovery completes or undoes it.
    """
    # A crash during an earlier attempt may have left its files; nothing refers to them.
    folder = directory / STAGING / "split"
    if has_siltstone_folder(directory) and files.exists(folder):
        files.remove_tree(folder)
    files.make_directory(folder, parents=True)
    try:
        staged = {
            new.base_offset: _write_segment(folder, segment, new, index_interval, index_bytes)
            for new in _plan_split(segment)
        }
    except CorruptRecordError:
        _remove_staging(folder)
        raise
    files.sync_directory(folder)
    rename_to_cleaned(directory, staged)
    _remove_staging(folder)
    replace_segments(directory, list(staged), [segment.base_offset])
    return list(staged)


def _remove_staging(folder: Path) -> None:
    """Remove ``folder``, and Siltstone's folder that it is in if nothing else is there."""
    files.remove_tree(folder)
    if not files.entries(folder.parent):
        files.remove_tree(folder.parent)


def _plan_split(segment: Segment) -> list[_NewSegment]:
    """The new segments: each takes as many batches as fit above its base offset.

    Raises CorruptRecordError where a batch's offsets are not above those of the batch before.
    """
    starts: list[tuple[int, int]] = []  # (base offset, position) of each new segment so far
    base_offset = next_offset = segment.base_offset
    with files.Reader(segment.path) as reader:
        for batches in batch_headers(reader):
            # The smallest base offset that each batch may have; the last element is that of the next batch.
            minimum = np.append(next_offset, batches["last_offset"] + 1)
            regressions = np.flatnonzero(batches["base_offset"] < minimum[:-1])
            if len(regressions):
                row = int(regressions[0])
                offset, position = (batches[name].item(row) for name in ("base_offset", "position"))
                reason = f"base offset {offset} is not above the last offset of the batch before"
                raise CorruptRecordError(segment.path, position, reason)
            row = 0
            while row < len(batches):
                largest_offset = base_offset + LARGEST_RELATIVE_OFFSET
                end = int(np.searchsorted(batches["last_offset"], largest_offset, side="right"))
                # The batches [row, end) fit into the current new segment: go on at the first batch that does
                # not.
                if end > row and starts:
                    row = end
                    continue
                # A new segment begins at this batch. If the very first batch fits, the first new segment
                # keeps the old base offset. All others get the first offset of their first batch. ``row``
                # does not move: the next iteration finds how many batches fit into this new segment.
                if end <= row:
                    base_offset = _first_offset(reader, batches[row : row + 1], int(minimum[row]))
                starts.append((base_offset, batches["position"].item(row)))
            next_offset = int(minimum[-1])
    ends = [*(start for _, start in starts[1:]), segment.size]
    return [_NewSegment(*start, end) for start, end in zip(starts, ends, strict=True)]


def _first_offset(reader: files.Reader, batch: BatchHeaders, minimum: int) -> int:
    """The offset of the first record in ``batch``. Raises CorruptRecordError if it is below ``minimum``.

    A compressed message set (v0, v1) has its last message's offset in the header. A segment that is named by
    it would have offsets below its name, so the set is decoded (as in Kafka's
    ``AbstractLegacyRecordBatch.baseOffset``).
    """
    position, last = batch["position"].item(), batch["last_offset"].item()
    first: int = batch["base_offset"].item()
    if batch["magic"].item() < 2:
        columns = decode_record_keys(*read_batch(reader, batch), path=reader.path, origin=position)
        first = int(columns.offset[0]) if len(columns) else first
    if first < minimum or last - first > LARGEST_RELATIVE_OFFSET:
        reason = (
            f"the batch has offsets {first} to {last}, but they must be at least {minimum} and at most "
            f"{LARGEST_RELATIVE_OFFSET} apart"
        )
        raise CorruptRecordError(reader.path, position, reason)
    return first


def _write_segment(
    folder: Path, segment: Segment, new: _NewSegment, index_interval: int, index_bytes: int
) -> dict[str, Path]:
    """Write a new segment, durably: its log, its indexes, and its entries of the old transaction index.

    Returns the paths by kind of file.
    """
    builder, last_offset = IndexBuilder(new.base_offset, index_interval, index_bytes), new.base_offset
    paths = {"log": folder / segment_file(new.base_offset, "log")}
    with files.Reader(segment.path) as reader, files.Writer(paths["log"]) as writer:
        for window in windows(reader, start=new.start_position, end=new.end_position):
            last = window.batches[-1]
            writer.write(window.data[: int(last["position"]) + int(last["size"])])
            builder.add_batches(window.batches)
            last_offset = int(last["last_offset"])
    indexes = builder.finish()
    if segment.transaction_index_size:
        path = Path(segment.directory) / segment_file(segment.base_offset, "txnindex")
        entries = read_entries(files.read_bytes(path), "txnindex", str(path))
        # An entry belongs to the segment that has the transaction's ABORT marker, at offset ``last_offset``.
        markers = entries["last_offset"]
        entries = entries[(markers >= new.base_offset) & (markers <= last_offset)]
        indexes |= {"txnindex": entries.tobytes()} if len(entries) else {}
    for kind, data in indexes.items():
        paths[kind] = folder / segment_file(new.base_offset, kind)
        with files.Writer(paths[kind]) as writer:
            writer.write(data)
    for path in paths.values():
        files.copy_attributes(segment.path, path)
        files.set_modified(path, segment.modified_ns)
    files.sync_files(paths.values())
    return paths
