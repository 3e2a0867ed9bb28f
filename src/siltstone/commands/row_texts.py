"""Finds the rows of a list that contain a text: ``RowTexts`` has the texts of all rows in one string.

::

    orders-0 due overdue by 2 h\\norders-1 up_to_date \\n…      bytes, a line a row, in lower case
    ^ starts[0]                  ^ starts[1]

One search in one string is much quicker than one in each of 50,000 strings. The texts of a catalogue
are joined when it is refreshed, so that no request waits for that.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


class RowTexts:
    """The texts of rows 0, 1, 2 …. A search ignores case, and takes a line break for a space."""

    __slots__ = ("_starts", "_text")

    def __init__(self, texts: Iterable[str]) -> None:
        lines = [_line(text) for text in texts]
        self._text = b"\n".join(lines)
        lengths = np.fromiter(map(len, lines), np.int64, len(lines))
        self._starts = np.cumsum(lengths + 1) - lengths - 1

    def __len__(self) -> int:
        return len(self._starts)

    def rows_with(self, needle: str) -> npt.NDArray[np.int64]:
        """The numbers of the rows whose text contains ``needle``, ascending; all rows if it is empty."""
        wanted = _line(needle)
        if not wanted or not len(self):
            return np.arange(len(self))
        # ``split`` does not see an occurrence that overlaps the one before it. Both are in the same row,
        # since a needle has no line break.
        parts = self._text.split(wanted)
        lengths = np.fromiter(map(len, parts[:-1]), np.int64, len(parts) - 1)
        positions = np.cumsum(lengths + len(wanted)) - len(wanted)
        rows: npt.NDArray[np.int64] = np.unique(np.searchsorted(self._starts, positions, side="right") - 1)
        return rows


def _line(text: str) -> bytes:
    """A text as it is searched: without case and without line breaks."""
    return text.casefold().replace("\n", " ").encode("utf-8", "surrogatepass")
