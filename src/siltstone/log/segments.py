"""Segments of a partition directory: listing them, reading one in windows, and renaming one that is deleted.

A segment is a ``.log`` file and its indexes; the files are named by the segment's base offset. The last
segment is the active segment, which a broker appends to. Closed segments never change, though a cleaning may
replace one by another of the same name: ``Segment`` records inode, size and modification time, and
``open_unchanged`` refuses a file that differs in them.

A window is a buffer with consecutive whole batches. The next window uses the buffer again, so reading a
segment takes no more memory than one window, or than the largest batch if that is larger.
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
from siltstone.base.records.layout import BATCH_OVERHEAD, MAGIC_POSITION, BatchHeaders, Bytes
from siltstone.base.records.scan import SCAN_REASON, ScanEnd, scan_batches, scan_headers
from siltstone.log.directory import partition_files, require_kind
from siltstone.log.indexes import read_entries
from siltstone.log.lookup import batch_headers
from siltstone.log.names import (
    DELETED,
    INDEX_KINDS,
    SEGMENT_KINDS,
    SNAPSHOT,
    parse_segment_file,
    segment_file,
)

DEFAULT_WINDOW_SIZE = 4 << 20  # bytes
LARGEST_BATCH = (1 << 31) - 1
"""Bytes of the largest batch that Kafka's int32 sizes allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment's files as they were when the directory was listed.

    Sizes are in bytes; ``size`` is that of the ``.log``. An index that does not exist has size 0.
    ``modified_ns`` and ``inode`` are the ``.log``'s.
    """

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
        """The path of the ``.log``."""
        return f"{self.directory}/{segment_file(self.base_offset, 'log')}"

    @property
    def modified_ms(self) -> int:
        """Modification time in ms, Kafka's unit."""
        return self.modified_ns // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Consecutive whole batches of a file. The next window overwrites ``data``.

    ``data``: their bytes, uint8. ``batches``: their headers, with positions in ``data``. ``origin``: the
    position of ``data[0]`` in the file.
    """

    data: Bytes
    batches: BatchHeaders
    origin: int


def list_segments(directory: Path, *, require_owner: bool = False) -> list[Segment]:
    """List a partition directory's segments by base offset.

    The files of an unfinished swap (``.cleaned``, ``.swap``, ``.deleted``) are left out. ``require_owner``:
    all files must belong to the directory's owner. Raises UnsafeFileError, OSError.
    """
    return segments_of_listing(directory, partition_files(directory, require_owner=require_owner))


def segments_of_listing(directory: Path, listed: Mapping[str, files.FileStat]) -> list[Segment]:
    """The segments in a listing, by base offset. ``listed``: name → status of the directory's files."""
    logs = [name for name in listed if name.endswith(".log")]
    if len(logs) > 1:
        logs.sort()  # by base offset: all have 20 digits
    text, parsed = str(directory), map(parse_segment_file, logs)
    return [
        _segment(text, log, name.base_offset, listed)
        for log, name in zip(logs, parsed, strict=True)
        if name is not None
    ]


def find_segment(directory: Path, base_offset: int) -> Segment:
    """One segment, without listing the directory. Raises FileNotFoundError, UnsafeFileError."""
    log = segment_file(base_offset, "log")
    listed = {log: files.stat(directory / log, follow=False)}
    for kind in INDEX_KINDS:
        name = segment_file(base_offset, kind)
        with contextlib.suppress(FileNotFoundError):
            listed[name] = files.stat(directory / name, follow=False)
    for name, status in listed.items():
        require_kind(directory / name, status, files.FILE)
    return _segment(str(directory), log, base_offset, listed)


def _segment(
    directory: str, log_name: str, base_offset: int, listed: Mapping[str, files.FileStat]
) -> Segment:
    log, stem = listed[log_name], log_name.removesuffix("log")
    indexes = [listed.get(stem + kind) for kind in INDEX_KINDS]
    offset_index, time_index, transaction_index = [stat.size if stat else 0 for stat in indexes]
    return Segment(
        directory=directory,
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
    """Open the segment's log, if it is still the file that was listed. ``path``: another name of the same
    file.

    Raises SourceChangedError, OSError.
    """
    reader = files.Reader(path or segment.path)
    opened = reader.stat
    if (opened.inode, opened.size, opened.modified_ns) != (segment.inode, segment.size, segment.modified_ns):
        with reader:
            raise SourceChangedError(
                "the segment has changed since it was listed, so it is not read",
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
    """Read the batches in bytes [``start``, ``end``) of a file, window by window.

    A batch begins at ``start``. ``verify``: check every batch's checksum. Raises CorruptRecordError with
    path, position and reason for the first batch that is damaged or incomplete. Before, it yields the batches
    that precede that one; for a wrong checksum only those of earlier windows.
    """
    end = reader.stat.size if end is None else end
    buffer = np.empty(min(window_size, max(end - start, 1)), np.uint8)
    # ``buffer[0]`` is byte ``origin`` of the file. The last read may have ended within a batch: the buffer
    # begins with the ``incomplete_size`` bytes of it that are read already.
    origin, incomplete_size = start, 0
    while origin + incomplete_size < end or incomplete_size:
        to_fill = buffer[incomplete_size : min(len(buffer), end - origin)]
        read_size = reader.read_into(to_fill, origin + incomplete_size)
        data = buffer[: incomplete_size + read_size]
        scan = scan_batches(data)
        is_at_end = origin + len(data) >= end or read_size == 0
        if len(scan.batches):
            if verify:
                refuse_bad_checksum(data, scan.batches, path=reader.path, origin=origin)
            yield Window(data=data, batches=scan.batches, origin=origin)
        incomplete = data[scan.end :]
        is_too_long = origin + scan.end + scan.needed > end  # by its size, the next batch ends beyond ``end``
        if scan.outcome != ScanEnd.CLEAN and (scan.outcome != ScanEnd.TRUNCATED or is_at_end or is_too_long):
            raise CorruptRecordError(reader.path, origin + scan.end, SCAN_REASON[scan.outcome])
        if is_at_end:
            return
        if not len(scan.batches):
            # The batch does not fit into the buffer. ``scan.needed`` is its size, or 0 if the buffer does not
            # even hold its first 17 bytes, up to the magic byte. A larger buffer is allocated only if the
            # batch's header is possible: a damaged size field may say 2 GiB.
            header = scan_headers(incomplete[:BATCH_OVERHEAD], end - origin)
            if header.outcome not in (ScanEnd.CLEAN, ScanEnd.TRUNCATED):
                raise CorruptRecordError(reader.path, origin, SCAN_REASON[header.outcome])
            size = max(scan.needed, 2 * len(buffer))
            buffer = np.empty(min(size, end - origin, LARGEST_BATCH), np.uint8)
        buffer[: len(incomplete)] = incomplete.copy()
        origin, incomplete_size = origin + scan.end, len(incomplete)


def largest_timestamp(segment: Segment) -> int:
    """The largest record timestamp in ms (Kafka's ``LogSegment.largestTimestamp``).

    It is that of the time index's last entry; if there is none over 0 (Kafka: none from 0 on), the file's
    modification time. If the time index is missing or damaged, the ``.log`` is scanned instead.
    """
    path = Path(segment.directory) / segment_file(segment.base_offset, "timeindex")
    try:
        entries = read_entries(files.read_bytes(path), "timeindex", str(path))
        largest = int(entries["timestamp"][-1]) if len(entries) else -1
    except (FileNotFoundError, CorruptFileError):
        with files.Reader(segment.path) as reader:
            read = windows(reader, verify=False)
            timestamps = [int(window.batches["max_timestamp"].max()) for window in read]
        largest = max(timestamps, default=-1)
    return largest if largest > 0 else segment.modified_ms


def first_batch_timestamp(segment: Segment) -> int | None:
    """The largest timestamp of the segment's first batch in ms; None if there is none over 0."""
    with files.Reader(segment.path) as reader:
        try:
            first = next(batch_headers(reader, end=segment.size, first_read=4096), None)
        except CorruptRecordError:
            first = None
    timestamp = 0 if first is None else int(first["max_timestamp"][0])
    return timestamp if timestamp > 0 else None


def has_message_sets(segment: Segment) -> bool:
    """Does the segment begin with a message set (magic 0 or 1)?

    A message set follows v2 batches only if a broker's ``message.format.version`` was lowered. It is cleaned
    as well then, but less disk space is reserved for its segment. Raises OSError.
    """
    with files.Reader(segment.path) as reader:
        # Filled with 2, so an empty segment, of which no byte is read, counts as one of v2 batches.
        head = np.full(MAGIC_POSITION + 1, 2, np.uint8)
        reader.read_into(head, 0)
    return int(head[MAGIC_POSITION]) < 2


def rename_to_deleted(directory: Path, base_offset: int) -> list[Path]:
    """Rename the files of a segment, and its producer snapshot, to ``.deleted``; returns the new paths. The
    caller syncs the directory. Raises OSError.

    The ``.log`` is first, as in Kafka: after a crash, a start removes indexes without a log, whereas a log
    without its transaction index would seem to have no aborted transactions. (A swap renames the log last,
    for another reason: ``log.replacement._mark_deleted``.)
    """
    renamed = []
    for kind in (*SEGMENT_KINDS, SNAPSHOT):
        path = directory / segment_file(base_offset, kind)
        if files.exists(path):
            renamed.append(directory / segment_file(base_offset, kind, DELETED))
            files.rename(path, renamed[-1])
    return renamed
