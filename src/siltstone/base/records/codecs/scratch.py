"""The buffer that decompressed records go to, and what can be wrong with compressed ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cramjam
import numpy as np

from siltstone.base.records.layout import Bytes

SPANS_END = (1 << 31) - 1
"""Bytes that one buffer of records may have: spans are int32."""
DEFAULT_LIMIT = 256 << 20
"""Bytes that one batch may decompress to where nobody says otherwise: the setting's default."""
LIMIT_SETTING = "max.decompressed.message.bytes"
_GROWTH_MAX = 16 << 20


class DecompressionError(ValueError):
    """Compressed bytes that make no sense, or that grow past the limit: says which."""


class DecompressedTooLargeError(DecompressionError):
    """Compressed bytes that grow past the limit."""

    def __init__(self, codec: str, limit: int) -> None:
        super().__init__(f"{codec}: decompresses to more than {limit} bytes")


class Scratch:
    """A buffer that is used again and grows: where decompressed records go.

    The array may move when it grows, so take ``array()`` only when all of a window is in.
    """

    def __init__(self, capacity: int = 1 << 20) -> None:
        self._array: Bytes = np.empty(capacity, np.uint8)
        self._view = self._array.data
        self.used = 0

    def clear(self) -> None:
        """Forget the contents, keep the memory."""
        self.used = 0

    def array(self) -> Bytes:
        """The bytes in use: uint8, a view."""
        return self._array[: self.used]

    def reserve(self, size: int) -> Bytes:
        """At least ``size`` free bytes behind what is in use: uint8, a view."""
        self._grow(size)
        return self._array[self.used :]

    def room(self, size: int) -> memoryview:
        """``size`` free bytes behind what is in use, for who writes there and adds to ``used``."""
        self._grow(size)
        return self._view[self.used : self.used + size]

    def make_room(self, size: int) -> None:
        """See to ``size`` free bytes in one go, where nothing is in use yet."""
        assert self.used == 0, "what is in use would be lost"
        if len(self._view) < size:
            self._array, self._view = np.empty(0, np.uint8), memoryview(b"")  # the old memory goes first
            self._array = np.empty(size, np.uint8)
            self._view = self._array.data

    def append(self, data: memoryview | bytes) -> int:
        """Copy ``data`` in as it is; returns its size."""
        size, used = len(data), self.used
        self._grow(size)
        self._view[used : used + size] = data
        self.used = used + size
        return size

    def _grow(self, size: int) -> None:
        if len(self._view) - self.used >= size:
            return
        more = min(len(self._array), _GROWTH_MAX)
        grown = np.empty(max(self.used + size, len(self._array) + more), np.uint8)
        grown[: len(self._array)] = self._array  # blocks of a frame may lie behind ``used``
        self._array, self._view = grown, grown.data


# Room for what ``cramjam`` decompresses: it starts from a guess and grows while the output does not fit.


def decompress_into(
    function: Callable[[memoryview, Any], int], codec: str, data: memoryview, scratch: Scratch, limit: int
) -> int:
    """``function(data, room)`` decompresses; returns the size. Raises DecompressionError."""
    guess = min(max(4 * len(data), 4096), limit)
    while True:
        room = scratch.reserve(guess)[:limit]
        try:
            size = int(function(data, room))
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise DecompressionError(f"{codec}: {error}") from None
        else:
            scratch.used += size
            return size
        if len(room) >= limit:
            raise DecompressedTooLargeError(codec, limit)
        guess = min(4 * len(room), limit)
