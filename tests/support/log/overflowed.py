"""Logs with an overflowed segment: offsets too far above the base for an index."""

from __future__ import annotations

from pathlib import Path

from siltstone.base.config import INT_MAX
from tests.support.cleaning.logs import one, write_log

FAR = INT_MAX + 10
WIDE = [3, 7, INT_MAX, FAR, FAR + 5, 2 * FAR + INT_MAX]


def wide_log(path: Path, at: list[int] = WIDE) -> Path:
    """A closed segment with base 0 and batches at these offsets, and an active one far above."""
    first = [one(offset, f"k{number % 4}") for number, offset in enumerate(at)]
    return write_log(path, {0: first, 4 * FAR: [one(4 * FAR, "z")]})
