"""One segment read with its checksums: how far it is sound, and the indexes that belong to it.

Kafka's ``LogSegment.recover``. Damage (an impossible length or magic byte, a checksum that does not match, a
batch that goes on beyond the file) is where a crash may have cut a write: it ends the scan. An offset that
goes back is none of this, since its batch is whole: nothing says which of the two is right, so that is an
error.

``check_tail`` is the small version for a log that was stopped cleanly: it starts at one of the last index
entries, so that the bytes read are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from siltstone.base import files
from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.checksum import first_bad_checksum
from siltstone.base.records.layout import Bytes, Directory, Int64
from siltstone.base.records.scan import ScanEnd, scan_batches
from siltstone.log.indexes import LARGEST_RELATIVE_OFFSET, OFFSET_ENTRY, IndexBuilder, Indexes
from siltstone.log.names import segment_file
from siltstone.log.segments import Segment, windows

_TAIL = 64 << 10
"""Bytes at a segment's end that are read again after a clean stop; more up to the next index entry."""
_TAIL_ENTRIES = 64
_LARGEST_TAIL = 16 << 20
UNWRITTEN = "the first bytes of its base offset were never written"
BAD_CHECKSUM = "checksum does not match"

Visit = Callable[[Bytes, Directory], None]
"""Is given each run of sound batches: the window's data, and their directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What is wrong in a file, and at which byte."""

    path: str
    position: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: byte {self.position}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentScan:
    """A scanned segment: ``size`` bytes are sound, the next record gets ``next_offset``.

    ``damage``: what ended the scan, None at a clean end. ``skipped``: batches with bad checksums that were
    passed over. ``gaps``: offsets before which some are missing inside the segment.
    """

    size: int
    next_offset: int
    indexes: Indexes
    damage: Damage | None
    skipped: tuple[Damage, ...] = ()
    gaps: int = 0


@dataclass(slots=True)
class _Scanning:
    """Where a scan is: the byte and the offset that come next, and what was met."""

    path: str
    base_offset: int
    limit_offset: int
    next_offset: int
    size: int = 0
    gaps: int = 0
    damage: Damage | None = None
    skipped: list[Damage] = field(default_factory=list)


def scan_segment(
    segment: Segment,
    *,
    interval: int,
    index_limit: int,
    limit_offset: int | None = None,
    keep_going: bool = False,
    visit: Visit | None = None,
) -> SegmentScan:
    """Read a segment's log up to its end or its first damage.

    ``interval`` and ``index_limit``: ``index.interval.bytes`` and ``segment.index.bytes``. ``limit_offset``:
    no offset is as high (None: as far as an index reaches). With ``keep_going`` a bad checksum is noted and
    passed over. Raises CorruptRecordError where offsets go back or cannot belong to the segment, OSError.
    """
    limit = segment.base_offset + LARGEST_RELATIVE_OFFSET + 1 if limit_offset is None else limit_offset
    state = _Scanning(segment.path, segment.base_offset, limit, segment.base_offset)
    builder = IndexBuilder(segment.base_offset, interval, index_limit)
    for data, found, origin in _sound(state, keep_going):
        batches = found if keep_going else _before_unwritten(state, found, origin)
        if not len(batches):
            break
        _refuse_disorder(state, batches, origin)
        builder.add_directory(batches)
        if visit is not None:
            _visit(visit, data, batches, state.path, origin)
        state.size = origin + int(batches["position"][-1]) + int(batches["size"][-1])
        state.next_offset = int(batches["last_offset"][-1]) + 1
        if len(batches) < len(found):
            break
    return SegmentScan(
        size=state.size,
        next_offset=state.next_offset,
        indexes=builder.finish(),
        damage=state.damage,
        skipped=tuple(state.skipped),
        gaps=state.gaps,
    )


def _visit(visit: Visit, data: Bytes, batches: Directory, path: str, origin: int) -> None:
    try:
        visit(data, batches)
    except CorruptRecordError as error:
        raise CorruptRecordError(path, origin + error.position, error.reason) from None


def _sound(state: _Scanning, keep_going: bool) -> Iterator[tuple[Bytes, Directory, int]]:
    """Runs of batches with good checksums; what ends them, or is passed over, goes into ``state``."""
    with files.Reader(state.path) as reader:
        found = windows(reader, verify=False)
        while True:
            try:
                window = next(found, None)
            except CorruptRecordError as error:
                state.damage = Damage(path=state.path, position=error.position, reason=error.reason)
                return
            if window is None:
                return
            rest, data, origin = window.batches, window.data, window.origin
            while (bad := first_bad_checksum(data, rest)) is not None:
                if bad:
                    yield data, rest[:bad], origin
                at = origin + int(rest["position"][bad])
                damage = Damage(path=state.path, position=at, reason=BAD_CHECKSUM)
                if not keep_going:
                    state.damage = damage
                    return
                state.skipped.append(damage)
                rest = rest[bad + 1 :]
            if len(rest):
                yield data, rest, origin


def _before_unwritten(state: _Scanning, batches: Directory, origin: int) -> Directory:
    """The batches before the first whose front bytes are zeros, which is damage then.

    No checksum covers the base offset. Where a batch begins in the last bytes of a block, and that block is
    the only one that never arrived, the offset's own bytes are zeros and all the rest is sound.
    """
    expected = _following(state, batches)
    back = np.flatnonzero(batches["base_offset"] < expected)
    if not len(back):
        return batches
    row = int(back[0])
    base, wanted = int(batches["base_offset"][row]), int(expected[row])
    if not any(base == wanted & ((1 << bits) - 1) for bits in range(0, 64, 8)):
        return batches
    at = origin + int(batches["position"][row])
    state.damage = Damage(path=state.path, position=at, reason=UNWRITTEN)
    return batches[:row]


def _following(state: _Scanning, batches: Directory) -> Int64:
    """The offsets behind the batches before each: where each begins, unless there is a gap."""
    expected = np.empty(len(batches), np.int64)
    expected[0], expected[1:] = state.next_offset, batches["last_offset"][:-1] + 1
    return expected


def _refuse_disorder(state: _Scanning, batches: Directory, origin: int) -> None:
    bases, lasts = batches["base_offset"], batches["last_offset"]
    expected = _following(state, batches)
    state.gaps += int(np.count_nonzero(bases != expected))
    back = np.flatnonzero((bases < expected) | (lasts >= state.limit_offset))
    if not len(back):
        return
    row = int(back[0])
    base, last = int(bases[row]), int(lasts[row])
    if base >= expected[row]:
        reason = f"offset {last} cannot be in this segment, whose offsets end before {state.limit_offset}"
    elif base < state.base_offset:
        reason = f"base offset {base} goes back: the segment starts at {state.base_offset}"
    else:
        reason = f"base offset {base} goes back: the batch before ends at {int(expected[row]) - 1}"
    raise CorruptRecordError(state.path, origin + int(batches["position"][row]), reason)


def check_tail(segment: Segment) -> int | None:
    """The next offset of a segment whose tail is sound; None where it is not.

    None too where an index entry in the tail points at no batch that it can stand for, or the tail is large:
    then a scan of the whole segment has to tell. Raises OSError.
    """
    if not segment.size:
        return segment.base_offset
    start, entries = _tail_entries(segment)
    tail = segment.size - start
    if not 0 < tail <= _LARGEST_TAIL:
        return None
    path = f"{segment.directory}/{segment_file(segment.base_offset, 'log')}"
    data = np.frombuffer(files.read_slice(path, start, tail), np.uint8)
    scan = scan_batches(data)
    batches = scan.batches
    if len(data) != tail or scan.outcome != ScanEnd.CLEAN or first_bad_checksum(data, batches) is not None:
        return None
    bases, lasts = batches["base_offset"], batches["last_offset"]
    if bases[0] < segment.base_offset or (bases[1:] <= lasts[:-1]).any():
        return None
    if lasts[-1] - segment.base_offset > LARGEST_RELATIVE_OFFSET:
        return None
    rows = np.searchsorted(batches["position"], entries["position"] - start)
    stands = rows < len(batches)
    rows = np.minimum(rows, len(batches) - 1)
    stands &= batches["position"][rows] == entries["position"] - start
    stands &= lasts[rows] <= entries["relative_offset"] + segment.base_offset
    return int(lasts[-1]) + 1 if stands.all() else None


def _tail_entries(segment: Segment) -> tuple[int, npt.NDArray[np.void]]:
    """Where the tail of a segment starts, and the offset index's entries that lie in it.

    It starts at an entry that leaves ``_TAIL`` bytes to the end, or as near to that as the last entries go.
    """
    width = OFFSET_ENTRY.itemsize
    count = min(segment.offset_index_size // width, _TAIL_ENTRIES)
    path = f"{segment.directory}/{segment_file(segment.base_offset, 'index')}"
    raw = files.read_slice(path, segment.offset_index_size - count * width, count * width) if count else b""
    entries = np.frombuffer(raw, OFFSET_ENTRY).astype([("relative_offset", "i8"), ("position", "i8")])
    early = np.flatnonzero(entries["position"] <= segment.size - _TAIL)
    if len(early):
        first = int(early[-1])
    elif count == _TAIL_ENTRIES:
        first = 0
    else:
        return 0, entries
    return int(entries["position"][first]), entries[first:]
