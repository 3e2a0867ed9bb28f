"""Dealing offsets to the groups that they lie in, without a sort."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from siltstone.records.kernel import inlined, kernel
from siltstone.records.layout import Int32, Int64

_HINT_BITS = 12


@inlined
def _base_of(offset: int, bases: Int64, hints: Int32, shift: int) -> int:
    """The number of the last base at or below an offset."""
    number = int(hints[np.uint64((offset - bases[0]) >> shift)])
    while number + 1 < len(bases) and offset >= bases[number + 1]:
        number += 1
    return number


@kernel
def _deal(
    offsets: Int64, bases: Int64, hints: Int32, shift: int, out: npt.NDArray[np.uint32], bounds: Int64
) -> None:
    """Offsets by the last base at or below them, less it: ``bounds[g]:bounds[g + 1]`` of ``out`` are g's.

    ``hints``: for each run of 2 ** ``shift`` offsets the base that its first one has.
    """
    bounds[:] = 0
    for i in range(len(offsets)):
        bounds[_base_of(offsets[i], bases, hints, shift) + 1] += 1
    for group in range(len(bases)):
        bounds[group + 1] += bounds[group]
    cursor = bounds[:-1].copy()
    for i in range(len(offsets)):
        group = _base_of(offsets[i], bases, hints, shift)
        out[np.uint64(cursor[group])] = offsets[i] - bases[group]
        cursor[group] += 1


def by_base(offsets: Int64, bases: Int64) -> tuple[npt.NDArray[np.uint32], Int64]:
    """Offsets (int64, in any order, none below the first base) by the last of the ``bases`` (ascending) at or
    below them: (less that base: uint32, where each base's begin: int64, one more than bases)."""
    out, bounds = np.empty(len(offsets), np.uint32), np.zeros(len(bases) + 1, np.int64)
    if len(offsets):
        assert int(offsets.min()) >= bases[0]
        span = int(offsets.max() - bases[0])
        shift = max(0, span.bit_length() - _HINT_BITS)
        starts = bases[0] + (np.arange((span >> shift) + 1) << shift)
        hints = (np.searchsorted(bases, starts, side="right") - 1).astype(np.int32)
        _deal(offsets, bases, hints, shift, out, bounds)
    return out, bounds
