"""Segments of a partition directory: listing them, and reading one in windows.

A segment is a ``.log`` file and its indexes; its name is its base offset. The last one is the active segment,
which a broker appends to. Closed segments never change: ``Segment`` has the inode, size and modification time
of the listing, and ``open_unchanged`` refuses another file under the same name.

A window has consecutive whole batches in a buffer that the next window uses again, so memory is bounded by
the window's size, or by the largest batch where that is larger.
"""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from siltstone.base import files
from siltstone.base.errors import CorruptFileError, CorruptRecordError, SourceChangedError
from siltstone.base.records.checksum import refuse_bad_checksum
from siltstone.base.records.layout import MAGIC_POSITION, BatchHeaders, Bytes
from siltstone.base.records.scan import SCAN_REASON, ScanEnd, scan_batches
from siltstone.log.directory import partition_files, require_kind
from siltstone.log.indexes import read_entries
from siltstone.log.lookup import batch_headers
from siltstone.log.names import SEGMENT_KINDS, parse_segment_file, segment_file

DEFAULT_WINDOW_SIZE = 4 << 20
LARGEST_BATCH = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One segment when it was listed: sizes in bytes, times in ns or ms; a missing index has size 0."""

    directory: str
    base_offset: int
    size: int
    modified_ns: int
    inode: int = 0
    offset_index_size: int = 0
    time_index_size: int = 0
    transaction_index_size: int = 0

    @property
    def path(self) -> str:
        """The ``.log`` file."""
        return f"{self.directory}/{segment_file(self.base_offset, 'log')}"

    @property
    def modified_ms(self) -> int:
        """Modification time in ms, as Kafka counts it."""
        return self.modified_ns // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Whole batches: ``data`` uint8, ``batches`` with positions in ``data``, ``origin`` the file position
    of ``data[0]``. ``data`` is used again by the next window."""

    data: Bytes
    batches: BatchHeaders
    origin: int


def list_segments(directory: Path, *, owned: bool = False) -> list[Segment]:
    """The directory's segments by base offset, without the files of an unfinished swap.

    ``owned``: all files must belong to the directory's owner. Raises UnsafeFileError, OSError.
    """
    return segments_among(directory, partition_files(directory, owned=owned))


def segments_among(directory: Path, listed: Mapping[str, files.FileStat]) -> list[Segment]:
    """The segments among a directory's files ``listed``, by base offset."""
    logs = (parse_segment_file(name) for name in listed if name.endswith(".log"))
    bases = sorted(name.base_offset for name in logs if name is not None)
    return [_segment(directory, base, listed) for base in bases]


def find_segment(directory: Path, base_offset: int) -> Segment:
    """One segment, without listing the directory. Raises FileNotFoundError, UnsafeFileError."""
    log = segment_file(base_offset, "log")
    listed = {log: files.stat(directory / log, follow=False)}
    for kind in SEGMENT_KINDS[1:]:
        name = segment_file(base_offset, kind)
        with contextlib.suppress(FileNotFoundError):
            listed[name] = files.stat(directory / name, follow=False)
    for name, status in listed.items():
        require_kind(directory / name, status, files.FILE)
    return _segment(directory, base_offset, listed)


def _segment(directory: Path, base_offset: int, listed: Mapping[str, files.FileStat]) -> Segment:
    log = listed[segment_file(base_offset, "log")]
    indexes = (listed.get(segment_file(base_offset, kind)) for kind in SEGMENT_KINDS[1:])
    offset_index, time_index, transaction_index = (stat.size if stat else 0 for stat in indexes)
    return Segment(
        directory=str(directory),
        base_offset=base_offset,
        size=log.size,
        modified_ns=log.modified_ns,
        inode=log.inode,
        offset_index_size=offset_index,
        time_index_size=time_index,
        transaction_index_size=transaction_index,
    )


def floor_segment_index(segments: list[Segment], offset: int) -> int:
    """Index of the last segment with a base offset at or below ``offset``, -1 if all are above.

    (Kafka's ``LogSegments.floorSegment``.)
    """
    return bisect.bisect_right([segment.base_offset for segment in segments], offset) - 1


def open_unchanged(segment: Segment, path: str | None = None) -> files.Reader:
    """Open the segment's log, or the file at ``path``, if it is still the file that was listed.

    Raises SourceChangedError.
    """
    reader = files.Reader(path or segment.path)
    opened = reader.stat
    if (opened.inode, opened.size, opened.modified_ns) != (segment.inode, segment.size, segment.modified_ns):
        with reader:
            raise SourceChangedError(
                "the segment has changed since the cleaning was planned; nothing was swapped",
                path=segment.path,
            )
    return reader


def windows(
    reader: files.Reader,
    *,
    start: int = 0,
    end: int | None = None,
    window_size: int = DEFAULT_WINDOW_SIZE,
    verify: bool = True,
) -> Iterator[Window]:
    """The file's batches in its bytes [``start``, ``end``), window by window; ``start`` is a batch boundary.

    With ``verify`` every batch's checksum is checked. Yields the batches before the first one that is damaged
    or incomplete, and then raises CorruptRecordError with its path, position and reason.
    """
    end = reader.stat.size if end is None else end
    buffer = np.empty(min(window_size, max(end - start, 1)), np.uint8)
    # ``buffer[0]`` is byte ``origin`` of the file. The first ``carried`` bytes of the buffer are the
    # incomplete batch at the end of the window before.
    origin, carried = start, 0
    while origin + carried < end or carried:
        read = reader.read_into(buffer[carried : min(len(buffer), end - origin)], origin + carried)
        data = buffer[: carried + read]
        scan = scan_batches(data)
        at_end = origin + len(data) >= end or read == 0
        if len(scan.batches):
            if verify:
                refuse_bad_checksum(data, scan.batches, path=reader.path, origin=origin)
            yield Window(data=data, batches=scan.batches, origin=origin)
        rest = data[scan.end :]
        if scan.outcome != ScanEnd.CLEAN and (scan.outcome != ScanEnd.TRUNCATED or at_end):
            raise CorruptRecordError(reader.path, origin + scan.end, SCAN_REASON[scan.outcome])
        if at_end:
            return
        if not len(scan.batches):
            # The batch does not fit into the buffer: its header says how large it is, if that was read.
            size = max(scan.needed, 2 * len(buffer))
            buffer = np.empty(min(size, end - origin, LARGEST_BATCH), np.uint8)
        buffer[: len(rest)] = rest.copy()
        origin, carried = origin + scan.end, len(rest)


def largest_timestamp(segment: Segment) -> int:
    """Largest record timestamp in ms: the time index's last entry if over 0, else the modification time.

    (Kafka's ``LogSegment.largestTimestamp``.) Where the time index is missing or damaged the log is scanned.
    """
    path = Path(segment.directory) / segment_file(segment.base_offset, "timeindex")
    try:
        entries = read_entries(files.read_bytes(path), "timeindex", str(path))
        largest = int(entries["timestamp"][-1]) if len(entries) else -1
    except (FileNotFoundError, CorruptFileError):
        with files.Reader(segment.path) as reader:
            timestamps = [int(part.batches["max_timestamp"].max()) for part in windows(reader, verify=False)]
        largest = max(timestamps, default=-1)
    return largest if largest > 0 else segment.modified_ms


def first_batch_timestamp(segment: Segment) -> int | None:
    """Largest timestamp of the segment's first batch in ms, None where there is no batch or no time."""
    with files.Reader(segment.path) as reader:
        try:
            first = next(batch_headers(reader, end=segment.size, first_read=4096), None)
        except CorruptRecordError:
            first = None
    timestamp = 0 if first is None else int(first["max_timestamp"][0])
    return timestamp if timestamp > 0 else None


def has_message_sets(segment: Segment) -> bool:
    """Does the segment begin with a message set of magic 0 or 1? None follows a batch of magic 2.

    Raises OSError.
    """
    with files.Reader(segment.path) as reader:
        head = np.full(MAGIC_POSITION + 1, 2, np.uint8)
        reader.read_into(head, 0)
    return int(head[MAGIC_POSITION]) < 2


def count_records(segment: Segment) -> int | None:
    """The sum of the batch headers' record counts, None where a message set (v0, v1) has none."""
    total = 0
    with files.Reader(segment.path) as reader:
        for window in windows(reader, verify=False):
            if (window.batches["magic"] < 2).any():
                return None
            total += int(window.batches["count"].sum())
    return total
