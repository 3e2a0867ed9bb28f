"""Assembles the staged segment of a segment group from its pieces, which several tasks have rewritten.

::

    old segments ─┬─ range ─► RUN/BASE.ATTEMPT.piece ─┐
                  ├─ range ─► RUN/BASE.ATTEMPT.piece ─┼─ copied ─► RUN/BASE.ATTEMPT.log ─ read ─► its indexes
                  └─ range ─► part of an old segment ─┘

RUN is the staging folder of the run, BASE the base offset of the group or range. A range whose batches all
stay as they are has no file: its piece is that part of the old segment.

The task of a range has verified its piece: checksums, offsets, that each offset is retained. So this module
reads the new file once, compares the CRC32C of each piece, and builds the indexes from the batch headers; it
decompresses nothing. Log and indexes have the same bytes as if one task had rewritten the group: batches do
not depend on each other, and the entries of a transaction index are ordered by markers.

Spark may run such a task twice. So only the driver removes pieces, once their group is assembled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from crc32c import crc32c

from siltstone.base import files
from siltstone.base.errors import CheckFailedError
from siltstone.compaction.report import failure_of, first_failure
from siltstone.compaction.staging import (
    PIECE,
    GroupReport,
    LogReport,
    PieceReport,
    batch_bytes,
    can_link,
    finish_staged,
    index_builder,
    link_unchanged,
    refuse_over_2_gib,
    remove_staged,
    stage_indexes,
)
from siltstone.compaction.work import Group, LogWork, Throttler, check_ascending
from siltstone.log.segments import open_unchanged, windows


def assemble_log(work: LogWork, log_report: LogReport, attempt: str) -> None:
    """Assemble the groups of a log that was cleaned in one process from the pieces in its report."""
    pieces, log_report.pieces = log_report.pieces, []
    for group in sorted({piece.group.group_index for piece in pieces}):
        pieces_of_group = [piece for piece in pieces if piece.group.group_index == group]
        log_report.groups.append(assemble_pieces(work, work.groups[group], pieces_of_group, attempt))
    log_report.groups.sort(key=lambda report: report.group_index)
    remove_pieces(work)


def remove_pieces(work: LogWork) -> None:
    """Remove all pieces of the log, also those of tasks that were repeated. Raises nothing."""
    if work.staging is not None and work.cut_ranges:
        with contextlib.suppress(OSError):
            for name in files.list_files(work.staging):
                if name.endswith(f".{PIECE}"):
                    files.unlink(Path(work.staging) / name)


def assemble_pieces(work: LogWork, group: Group, pieces: Sequence[PieceReport], attempt: str) -> GroupReport:
    """Assemble the staged segment of a group from its ``pieces``, in any order.

    ``attempt`` is a part of the files' names. Raises nothing: if a piece is damaged or missing, or the disk
    fails, the report has the failure, and the files of this attempt are removed.
    """
    ordered = sorted(pieces, key=lambda piece: piece.base_offset)
    report = _summed(group, ordered)
    try:
        if report.failure is None:
            bases = [part.base_offset for part in work.cut_ranges if part.group == group.index]
            if [piece.base_offset for piece in ordered] != bases:
                raise CheckFailedError(
                    "a segment group does not have one piece for each range", path=work.name
                )
            if work.staging is not None:
                _assemble(
                    work, group, ordered, report, Path(work.staging) / f"{group.base_offset:020d}.{attempt}"
                )
    except Exception as error:
        report.failure = failure_of(error)
        remove_staged(report)
    return report


def _summed(group: Group, pieces: Sequence[PieceReport]) -> GroupReport:
    """The report on a group before it is assembled: the sum of its pieces' reports, and their first
    failure."""
    report = GroupReport(group_index=group.index, failure=first_failure(pieces))
    for piece in pieces:
        report.counts.add(piece.group.counts)
        report.retained_count += piece.group.retained_count
        report.size += piece.group.size
    timestamps = [piece.group.largest_timestamp for piece in pieces]
    report.largest_timestamp = max((time for time in timestamps if time is not None), default=None)
    return report


def _assemble(
    work: LogWork, group: Group, pieces: Sequence[PieceReport], report: GroupReport, stem: Path
) -> None:
    """Stage the group's segment in files named ``stem``. Raises CheckFailedError, OSError."""
    source = work.segments[group.first_segment]
    refuse_over_2_gib(report.size, source.path)
    log = report.staged["log"] = f"{stem}.log"
    # Nothing has changed if all pieces are parts of the old segment, and together as large.
    is_unchanged = report.size == source.size and all(piece.path == source.path for piece in pieces)
    is_link = is_unchanged and can_link(work, group, stem) and link_unchanged(source, log)
    new_log = _NewLog(work, group, log)
    with contextlib.ExitStack() as stack:
        writer = None if is_link else stack.enter_context(files.Writer(log))
        for piece in pieces:
            if writer is not None:
                _copy(work, group, piece, writer)
            new_log.verify(piece)
            if writer is not None:
                writer.drop_cached(writer.size)
        indexes = new_log.indexes.finish()
        transaction_index = b"".join(piece.transaction_index for piece in pieces)
        if transaction_index:
            indexes["txnindex"] = transaction_index
        stage_indexes(work, group, report, indexes, is_link=is_link)
        if writer is not None:
            writer.drop_cached_rest()
    finish_staged(report, indexes)


def _copy(work: LogWork, group: Group, piece: PieceReport, writer: files.Writer) -> None:
    """Append a piece to the new segment's log. Raises CheckFailedError, SourceChangedError, OSError."""
    assert piece.path is not None
    source = next((segment for segment in work.sources(group) if segment.path == piece.path), None)
    with files.Reader(piece.path) if source is None else open_unchanged(source) as reader:
        if writer.copy(reader, piece.position, piece.group.size) < piece.group.size:
            raise CheckFailedError("the piece is shorter than when it was verified", path=piece.path)
    Throttler(work.limits.io_bytes_per_second).maybe_throttle(piece.group.size)


class _NewLog:
    """Reads the new segment's log at ``path`` back, piece by piece, and builds its ``indexes``."""

    def __init__(self, work: LogWork, group: Group, path: str) -> None:
        self._work, self._group, self._path = work, group, path
        self.indexes = index_builder(work, group.base_offset)
        self._size, self._next_offset = 0, group.base_offset

    def verify(self, piece: PieceReport) -> None:
        """Read the next piece. Raises CheckFailedError unless it has the bytes that the task of its range has
        verified, CorruptRecordError, CorruptFileError, OSError."""
        limits, end, checksum = self._work.limits, self._size + piece.group.size, 0
        throttler = Throttler(limits.io_bytes_per_second)
        with files.Reader(self._path) as reader:
            for window in windows(
                reader, start=self._size, end=end, window_size=limits.window_size, verify=False
            ):
                self._next_offset = check_ascending(
                    self._path, window, self._next_offset, self._group.end_offset
                )
                checksum = crc32c(batch_bytes(window), checksum)
                self.indexes.add_batches(window.batches)
                throttler.maybe_throttle(len(window.data))
        if checksum != piece.checksum:
            reason = "a part of the new segment is not the piece that was verified"
            raise CheckFailedError(reason, path=self._path)
        self._size = end
