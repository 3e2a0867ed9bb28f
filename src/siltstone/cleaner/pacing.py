"""``log.cleaner.io.max.bytes.per.second``: a task reads and writes no faster than its share (Kafka's
``Throttler``)."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator

from siltstone import files
from siltstone.log.segments import Window, windows

IO_LIMIT = "log.cleaner.io.max.bytes.per.second"
UNLIMITED = math.inf
_LONGEST_SLEEP = 1.0
"""Seconds: an interrupt is noticed in between."""


def share_of_io(bytes_per_second: float, tasks: int) -> float:
    """What each of so many tasks may read and write, of the setting's value."""
    return UNLIMITED if bytes_per_second >= sys.float_info.max else bytes_per_second / max(tasks, 1)


class Pacer:
    """Holds back who has done more bytes than ``bytes_per_second`` allow since it began."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._began = time.monotonic() if bytes_per_second < UNLIMITED else 0.0
        self._bytes = 0

    def done(self, size: int) -> None:
        """So many bytes more were read or written: wait until they may have been."""
        if self._rate == UNLIMITED:
            return
        self._bytes += size
        while (ahead := self._bytes / self._rate - (time.monotonic() - self._began)) > 0:
            time.sleep(min(ahead, _LONGEST_SLEEP))


def paced_windows(
    reader: files.Reader,
    window_size: int,
    pacer: Pacer,
    *,
    span: tuple[int, int | None] = (0, None),
    verify: bool = True,
) -> Iterator[Window]:
    """``windows`` of a ``span`` of a segment (its first byte, and the one behind it), each handed on when its
    bytes may have been read."""
    start, behind = span
    for window in windows(reader, start=start, size=behind, window_size=window_size, verify=verify):
        pacer.done(len(window.data))
        yield window
