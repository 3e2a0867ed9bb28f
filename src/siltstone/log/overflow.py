"""Splitting segments whose offsets do not fit into an index (``UnifiedLog.splitOverflowedSegment``).

An index has four bytes for an offset less the segment's base. Brokers before 1.1 could write segments with
larger differences, and could clean several segments into such a one. Such a segment is *overflowed* and is
split between batches::

    base 0: 0 … 2147483647 … 4000000000      ──►      base 0 · base 2147483650

The new segments replace the old one by the swap of ``replacement``, so after a crash the log has either the
old one or the new ones.
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
    """A new segment: its base offset, and its bytes [``start``, ``end``) in the old one's file."""

    base_offset: int
    start: int
    end: int


def overflowed_segments(segments: Sequence[Segment]) -> list[Segment]:
    """The closed segments (all but the last) with offsets more than 2³¹-1 above their base.

    Reads the headers of those segments only that could be. Raises CorruptRecordError for damage and for
    offsets that reach into the next segment, OSError.
    """
    overflowed = []
    for segment, following in itertools.pairwise(segments):
        if not could_overflow(segment, following):
            continue
        last, position = segment.base_offset, 0
        with files.Reader(segment.path) as reader:
            for batches in batch_headers(reader):
                last, position = int(batches["last_offset"][-1]), int(batches["position"][-1])
        if last >= following.base_offset:
            reason = (
                f"offset {last} is not below {following.base_offset}, the base offset of the next segment"
            )
            raise CorruptRecordError(segment.path, position, reason)
        if last - segment.base_offset > LARGEST_RELATIVE_OFFSET:
            overflowed.append(segment)
    return overflowed


def could_overflow(segment: Segment, following: Segment) -> bool:
    """Is the next segment's base so far above that this segment's offsets could be too far apart?

    The segment's last offset is at most one below that base: hence the 1.
    """
    return following.base_offset - segment.base_offset > LARGEST_RELATIVE_OFFSET + 1


def split_overflowed_segment(
    directory: Path, segment: Segment, *, interval: int, index_bytes: int
) -> list[int]:
    """Split one overflowed segment; returns the new base offsets.

    ``interval`` and ``index_bytes`` are ``index.interval.bytes`` and ``segment.index.bytes``. The first new
    segment keeps the base offset if the first batch fits. Raises CorruptRecordError and DirectoryRefusedError
    (something else has the name of Siltstone's folder), before the log has changed; OSError, after which the
    log may be in the middle of the swap, which recovery completes or undoes.
    """
    # A crash during an earlier attempt may have left its files; nothing refers to them.
    folder = directory / STAGING / "split"
    if has_siltstone_folder(directory) and files.exists(folder):
        files.remove_tree(folder)
    files.make_directory(folder, parents=True)
    try:
        staged = {
            new.base_offset: _write_segment(folder, segment, new, interval, index_bytes)
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
    files.remove_tree(folder)
    if not files.entries(folder.parent):
        files.remove_tree(folder.parent)


def _plan_split(segment: Segment) -> list[_NewSegment]:
    """The segments that a segment is split into: each takes as many batches as its base offset allows.

    Raises CorruptRecordError where a batch's offsets are not above those of the batch before.
    """
    starts: list[tuple[int, int]] = []  # (base offset, position) of each new segment so far
    base = next_offset = segment.base_offset
    with files.Reader(segment.path) as reader:
        for batches in batch_headers(reader):
            # The least base offset of each batch, and at the end that of the batch after these.
            expected = np.append(next_offset, batches["last_offset"] + 1)
            regressions = np.flatnonzero(batches["base_offset"] < expected[:-1])
            if len(regressions):
                row = int(regressions[0])
                offset, position = (batches[name].item(row) for name in ("base_offset", "position"))
                reason = f"base offset {offset} is not above the last offset of the batch before"
                raise CorruptRecordError(segment.path, position, reason)
            row = 0
            while row < len(batches):
                largest = base + LARGEST_RELATIVE_OFFSET
                end = int(np.searchsorted(batches["last_offset"], largest, side="right"))
                # The batches [row, end) fit into the newest segment: go on at the first that does not.
                if end > row and starts:
                    row = end
                    continue
                # A new segment begins at this batch. The very first keeps the old base if the batch fits;
                # any other, and a first batch that does not fit, names its segment by its first offset. The
                # row stays: the next round finds how many batches fit into the segment that has just begun.
                if end <= row:
                    base = _first_offset(reader, batches[row : row + 1], int(expected[row]))
                starts.append((base, batches["position"].item(row)))
            next_offset = int(expected[-1])
    ends = [*(start for _, start in starts[1:]), segment.size]
    return [_NewSegment(base, start, end) for (base, start), end in zip(starts, ends, strict=True)]


def _first_offset(reader: files.Reader, batch: BatchHeaders, expected: int) -> int:
    """The offset of the first record in ``batch``, which is not below ``expected``.

    A compressed message set (v0, v1) is stored under its last message's offset: a segment named after that
    would begin below its name. Kafka decodes it too (``AbstractLegacyRecordBatch.baseOffset``). Raises
    CorruptRecordError.
    """
    position, last = batch["position"].item(), batch["last_offset"].item()
    first: int = batch["base_offset"].item()
    if batch["magic"].item() < 2:
        columns = decode_record_keys(*read_batch(reader, batch), path=reader.path, origin=position)
        first = int(columns.offset[0]) if len(columns) else first
    if first < expected or last - first > LARGEST_RELATIVE_OFFSET:
        reason = (
            f"the batch has offsets {first} to {last}, but they must be at least {expected} and at most "
            f"{LARGEST_RELATIVE_OFFSET} apart"
        )
        raise CorruptRecordError(reader.path, position, reason)
    return first


def _write_segment(
    folder: Path, segment: Segment, new: _NewSegment, interval: int, index_bytes: int
) -> dict[str, Path]:
    """Write a new segment, durably: its log, its indexes, and its entries of the old transaction index.

    Returns its files by kind.
    """
    indexes, last_offset = IndexBuilder(new.base_offset, interval, index_bytes), new.base_offset
    paths = {"log": folder / segment_file(new.base_offset, "log")}
    with files.Reader(segment.path) as reader, files.Writer(paths["log"]) as writer:
        for window in windows(reader, start=new.start, end=new.end):
            last = window.batches[-1]
            writer.write(window.data[: int(last["position"]) + int(last["size"])])
            indexes.add_batches(window.batches)
            last_offset = int(last["last_offset"])
    built = indexes.finish()
    if segment.transaction_index_size:
        path = Path(segment.directory) / segment_file(segment.base_offset, "txnindex")
        entries = read_entries(files.read_bytes(path), "txnindex", str(path))
        # An aborted transaction is listed in the segment that has its marker, whose offset is its last one.
        markers = entries["last_offset"]
        entries = entries[(markers >= new.base_offset) & (markers <= last_offset)]
        built |= {"txnindex": entries.tobytes()} if len(entries) else {}
    for kind, data in built.items():
        paths[kind] = folder / segment_file(new.base_offset, kind)
        with files.Writer(paths[kind]) as writer:
            writer.write(data)
    for path in paths.values():
        files.copy_attributes(segment.path, path)
        files.set_modified(path, segment.modified_ns)
    files.sync_files(paths.values())
    return paths
