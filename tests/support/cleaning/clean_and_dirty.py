"""A log with a clean section of three segments and a dirty one of two, for the two joins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.support.cleaning import logs
from tests.support.cleaning.logs import one


def write_clean_and_dirty(path: Path, more: Sequence[bytes] = ()) -> Path:
    """Three clean segments and two dirty ones; the checkpoint lies within the third. ``more``: batches of the
    first dirty segment from offset 27 on."""
    return logs.write_log(
        path,
        {
            0: [one(offset, f"a{offset}") for offset in range(10)],
            10: [one(offset, f"b{offset}") for offset in range(10, 20)],
            20: [one(20, "c"), one(21, "a3", None), one(22, "b12"), one(23, "d")],
            24: [one(24, "a1"), one(25, "d"), one(26, "e"), *more],
            40: [one(40, "a1"), one(41, "f")],
            50: [one(50, "a9")],
        },
        checkpoint=22,
    )
