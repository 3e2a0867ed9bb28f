"""Room for what ``cramjam`` decompresses: it starts from a guess and grows while the output does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cramjam

from siltstone.records.codecs.scratch import DecompressedTooLargeError, DecompressionError, Scratch


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
