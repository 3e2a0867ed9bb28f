"""Reading the two sides of a span, piece by piece: whole batches with their records.

Memory is bounded by a window (4 MiB, or the largest batch), a piece's decompressed records and the largest
batch's, whatever the sizes of the segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from siltstone import files
from siltstone.errors import CorruptFileError
from siltstone.log.segments import Segment, Window, unchanged, windows
from siltstone.records.codecs import Scratch
from siltstone.records.columns import RecordColumns
from siltstone.records.decode import decode_records
from siltstone.records.layout import Bytes, Directory
from siltstone.records.pieces import pieces


class DisorderError(Exception):
    """Batches of AFTER that cannot be told apart by their offsets: ``kind`` of problem, and where."""

    def __init__(self, kind: str, position: int, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.position = position


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some batches, rows of a scan over ``data``, and their records; ``origin``: ``data[0]`` in the file.

    All batches are of magic 2, or all older.
    """

    path: str
    origin: int
    data: Bytes
    batches: Directory
    columns: RecordColumns

    @property
    def is_modern(self) -> bool:
        """Batches of magic 2?"""
        return bool(self.batches["magic"][0] == 2)

    def position(self, row: int) -> int:
        """Where a batch begins in the file."""
        return self.origin + int(self.batches["position"][row])


def before_pieces(segment: Segment, start: int, end: int, batch_limit: int) -> Iterator[Piece]:
    """A segment of BEFORE, as far as its batches end in [start, end).

    ``batch_limit``: what one batch may decompress to, in bytes. Raises CorruptFileError, OSError.
    """
    scratch = Scratch()
    with unchanged(segment) as reader:
        for window in windows(reader):
            inside = (window.batches["last_offset"] >= start) & (window.batches["base_offset"] < end)
            batches = window.batches if inside.all() else window.batches[np.flatnonzero(inside)]
            for part in pieces(window.data, batches):
                yield _piece(window, batches[part], segment.path, scratch, batch_limit)


def _piece(window: Window, batches: Directory, path: str, scratch: Scratch, limit: int) -> Piece:
    columns = decode_records(window.data, batches, scratch, limit=limit, path=path, origin=window.origin)
    return Piece(path=path, origin=window.origin, data=window.data, batches=batches, columns=columns)


class AfterStream:
    """A segment of AFTER, handed out up to an offset at a time; close it.

    Every batch must lie in [the segment's base, ``end``) and ascend. ``batch_limit``: what one may decompress
    to, in bytes.
    """

    def __init__(self, segment: Segment, end: int, batch_limit: int) -> None:
        self.path = segment.path
        self._following, self._end = segment.base_offset, end
        self._reader: files.Reader = unchanged(segment)
        self._windows = windows(self._reader)
        self._window: Window | None = None
        self._row = 0
        self._scratch, self._limit = Scratch(), batch_limit

    def take(self, upto: int) -> Iterator[Piece]:
        """What begins at or below offset ``upto``, once. A piece is good until the next one is asked for.

        Raises CorruptFileError, DisorderError.
        """
        while True:
            at_end = self._window is None or self._row == len(self._window.batches)
            if at_end and not self._advance():
                return
            assert self._window is not None
            bases = self._window.batches["base_offset"]
            stop = int(np.searchsorted(bases, upto, side="right"))
            if stop <= self._row:
                return
            mine = self._window.batches[self._row : stop]
            self._row = stop
            for part in pieces(self._window.data, mine):
                yield _piece(self._window, mine[part], self.path, self._scratch, self._limit)

    def _advance(self) -> bool:
        try:
            window = next(self._windows, None)
        except CorruptFileError:
            self._window = None
            raise
        if window is None:
            return False
        self._window, self._row = window, 0
        self._refuse_disorder(window)
        return True

    def _refuse_disorder(self, window: Window) -> None:
        base, last = window.batches["base_offset"], window.batches["last_offset"]
        before = np.concatenate((np.array([self._following], np.int64), last[:-1] + 1))
        bad = np.flatnonzero((base < before) | (last >= self._end))
        if len(bad):
            row = int(bad[0])
            outside = last[row] >= self._end or (row == 0 and window.origin == 0)
            raise DisorderError(
                "segment_bounds" if outside else "order",
                window.origin + int(window.batches["position"][row]),
                f"offsets {base[row]} to {last[row]}, where {before[row]} to {self._end - 1} may be",
            )
        self._following = int(last[-1]) + 1

    def close(self) -> None:
        """Let go of the file."""
        self._reader.close()
