"""Are a segment's index files there, and can they be of this segment?

An index has no checksum. ``quick_trouble`` asks what a size and the last entry tell, for a start after a
clean stop; ``whole_trouble`` reads all entries; ``trouble_with_log`` holds each of them against the log, and
``contradict_markers`` all transaction indexes together. What does not pass is built again.
"""

from __future__ import annotations

from collections.abc import Sequence

from siltstone import files
from siltstone.errors import CorruptFileError, CorruptRecordError
from siltstone.log.indexes import ENTRY_OF_KIND, ENTRY_STRUCTS, read_entries
from siltstone.log.inspection.indexes import IndexFile, index_rows
from siltstone.log.inspection.rows import DumpOptions, Finding
from siltstone.log.names import SEGMENT_KINDS, segment_file
from siltstone.log.segments import Segment, windows
from siltstone.log.transactions import Aborted, TransactionScan, carried_by_group, transaction_indexes
from siltstone.records.layout import Int64

INDEX_KINDS = SEGMENT_KINDS[1:]
_LEAST_TIMESTAMP = -1
_BEHIND_ALL = (1 << 63) - 1
_WIDTHS = {kind: ENTRY_OF_KIND[kind].itemsize for kind in INDEX_KINDS}


def quick_trouble(segment: Segment, limit_offset: int, names: dict[str, files.FileStat]) -> list[str]:
    """The names of a segment's indexes that are missing or whose last entry is impossible. Raises OSError.

    ``limit_offset``: no offset of the segment is as high; ``names`` are the files of the directory.
    """
    found = []
    for kind in INDEX_KINDS:
        name = segment_file(segment.base_offset, kind)
        facts = names.get(name)
        if facts is None:
            if kind != "txnindex":
                found.append(name)
        elif facts.size and not _last_is_possible(segment, kind, name, facts.size, limit_offset):
            found.append(name)
    return found


def _last_is_possible(segment: Segment, kind: str, name: str, size: int, limit_offset: int) -> bool:
    width = _WIDTHS[kind]
    if size % width:
        return False
    raw = files.read_slice(f"{segment.directory}/{name}", size - width, width)
    if kind == "txnindex":
        return raw[:2] == b"\0\0"
    if raw == bytes(width):
        return False
    relative: int
    if kind == "index":
        relative, position = ENTRY_STRUCTS[kind].unpack(raw)
        if not 0 <= position < segment.size:
            return False
    else:
        timestamp, relative = ENTRY_STRUCTS[kind].unpack(raw)
        if timestamp < _LEAST_TIMESTAMP or not segment.size:
            return False
    return 0 <= relative < limit_offset - segment.base_offset


def whole_trouble(segment: Segment, limit_offset: int, names: dict[str, files.FileStat]) -> list[str]:
    """The same with every entry read: they ascend, and all lie within the segment. Raises OSError."""
    found = quick_trouble(segment, limit_offset, names)
    for kind in INDEX_KINDS:
        name = segment_file(segment.base_offset, kind)
        if name in found or name not in names or not names[name].size:
            continue
        try:
            data = files.read_bytes(f"{segment.directory}/{name}")
            entries = read_entries(data, kind, name)
        except CorruptFileError:
            found.append(name)
            continue
        if len(entries) * entries.dtype.itemsize != len(data):
            found.append(name)
        elif kind == "txnindex":
            first, last = entries["first_offset"], entries["last_offset"]
            if (last < segment.base_offset).any() or (last >= limit_offset).any() or (first > last).any():
                found.append(name)
        elif (entries["relative_offset"] < 0).any():
            found.append(name)
    return found


def trouble_with_log(segment: Segment, names: dict[str, files.FileStat]) -> list[str]:
    """The names of a sound segment's indexes with entries that its log does not bear out. Raises OSError."""
    found = []
    for kind in ("index", "timeindex"):
        name = segment_file(segment.base_offset, kind)
        if name in names:
            path = f"{segment.directory}/{name}"
            index = IndexFile(path=path, kind=kind, base_offset=segment.base_offset, suffix="")
            rows = index_rows(index, DumpOptions(verify_index_only=True))
            if any(isinstance(row, Finding) and row.path == path for row in rows):
                found.append(name)
    return found


def lacks_transactions(
    segment: Segment, names: dict[str, files.FileStat], aborted: Sequence[tuple[int, int, int, int, int]]
) -> list[str]:
    """The name of the transaction index when it lacks a transaction that ends in the segment, aborted.

    ``aborted``: what the log says, as rows of the index. The index may say more: cleaning takes the data of
    an aborted transaction before its entry. Raises OSError.
    """
    name = segment_file(segment.base_offset, "txnindex")
    listed: dict[tuple[int, int], int] = {}
    if name in names:
        data = files.read_bytes(f"{segment.directory}/{name}")
        try:
            for _, producer, first, last, _ in read_entries(data, "txnindex", name).tolist():
                listed[(producer, last)] = first
        except CorruptFileError:
            return [name]
    covered = all(listed.get((producer, last), last + 1) <= first for _, producer, first, last, _ in aborted)
    return [] if covered else [name]


def contradict_markers(segments: Sequence[Segment]) -> bool:
    """Do the transaction indexes of a log say something that its batches do not bear out?

    Reads all of the log where there is an entry. Where batches are damaged nothing is said of transactions
    that go beyond their segment. Raises OSError.
    """
    try:
        aborted = Aborted.of(transaction_indexes(segments))
        if not len(aborted.entries):
            return False
        ends = [*(segment.base_offset for segment in segments[1:]), _BEHIND_ALL]
        summaries = [_gone_through(aborted, *each) for each in zip(segments, ends, strict=True)]
        whole = [each for each in summaries if each is not None]
        if len(whole) == len(summaries):
            carried_by_group(whole, [])
    except CorruptFileError:
        return True
    return False


def _gone_through(aborted: Aborted, segment: Segment, end: int) -> Int64 | None:
    """How a segment leaves its transactions, None where it is damaged. Raises CorruptFileError."""
    scan = TransactionScan(aborted)
    with files.Reader(segment.path) as reader:
        try:
            for window in windows(reader, verify=False):
                scan.follow(window.data, window.batches, path=segment.path, origin=window.origin)
        except CorruptRecordError:
            return None
    scan.refuse_unmarked(segment.base_offset, end, segment.path)
    return scan.summary(segment.base_offset)
