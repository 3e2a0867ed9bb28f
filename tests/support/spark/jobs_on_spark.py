"""Tasks that take their time, importable by workers."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Iterator

import pyarrow as pa


def hold(seconds: float, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Wait, then hand on nothing."""
    for _ in batches:
        time.sleep(seconds)
    yield from ()


HOLD = functools.partial(hold, 1.5)
